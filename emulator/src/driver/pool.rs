//! The device's pool of stream-ordered memory: what may be asked about it.

use std::ffi::c_void;

use super::codes::*;
use super::memory::POOL;
use super::state::{Handle, call};

/// `CUmemPool_attribute`: bytes that the pool has, the most of them, bytes in use, the most of them.
const RESERVED: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED: u32 = 7;
const USED_HIGH: u32 = 8;
/// Those below are three switches (`int`) and a threshold.
const RELEASE_THRESHOLD: u32 = 4;

/// `cuDeviceGetDefaultMemPool`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut Handle, device: i32) -> Code {
    if device != 0 {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller's, as CUDA documents.
    code(unsafe { put(pool, POOL) })
}

/// `cuDeviceGetMemPool`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut Handle, device: i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuDeviceGetDefaultMemPool(pool, device) }
}

/// `cuMemPoolGetAttribute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: *mut c_void) -> Code {
    call(|turn| {
        if pool != POOL {
            return Err(INVALID_VALUE);
        }
        let used = turn.pooled.values().sum::<usize>() as u64;
        // SAFETY: the caller's, as CUDA documents: a place for an `int` or a 64-bit number, by the attribute.
        unsafe {
            match attribute {
                1..RELEASE_THRESHOLD => put(value.cast::<i32>(), 1),
                RELEASE_THRESHOLD => put(value.cast(), 0u64),
                RESERVED | USED => put(value.cast(), used),
                RESERVED_HIGH | USED_HIGH => put(value.cast(), turn.pooled_high as u64),
                _ => Err(INVALID_VALUE),
            }
        }
    })
}

/// `cuMemPoolSetAttribute`: the most bytes in use are counted anew; the rest has no meaning here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: *mut c_void) -> Code {
    call(|turn| {
        if pool != POOL || value.is_null() {
            return Err(INVALID_VALUE);
        }
        if matches!(attribute, RESERVED_HIGH | USED_HIGH) {
            turn.pooled_high = turn.pooled.values().sum();
        }
        Ok(())
    })
}

/// `cuMemPoolTrimTo`: there is nothing to give back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) -> Code {
    if pool == POOL { SUCCESS } else { INVALID_VALUE }
}
