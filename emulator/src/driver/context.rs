//! Start, and the only device's primary context: it is always there, so that what was loaded into it stays when nobody holds it.

use super::codes::*;
use super::device::check_device;
use super::state::{CONTEXT, CURRENT, Handle, call};

/// What `cuDriverGetVersion` says: CUDA 13.0.
const VERSION: i32 = 13000;

/// `cuInit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: u32) -> Code {
    if flags == 0 { SUCCESS } else { INVALID_VALUE }
}

/// `cuDriverGetVersion`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(unsafe { put(version, VERSION) })
}

/// `cuDevicePrimaryCtxRetain`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> Code {
    call(|_| {
        check_device(device)?;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(context, CONTEXT) }
    })
}

/// `cuDevicePrimaryCtxRelease_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Code {
    code(check_device(device))
}

/// `cuDevicePrimaryCtxGetState`: active, with flags 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(check_device(device).and_then(|()| unsafe { put(flags, 0).and(put(active, 1)) }))
}

/// `cuDevicePrimaryCtxSetFlags_v2`: they say how to wait, which nobody does here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _flags: u32) -> Code {
    code(check_device(device))
}

/// `cuCtxGetCurrent`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(unsafe { put(context, CURRENT.get()) })
}

/// `cuCtxSetCurrent`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    if context != 0 && context != CONTEXT {
        return INVALID_CONTEXT;
    }
    CURRENT.set(context);
    SUCCESS
}

/// `cuCtxPushCurrent_v2`: with one context there is no stack to be told apart from the current one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> Code {
    if context != CONTEXT {
        return INVALID_CONTEXT;
    }
    CURRENT.set(context);
    SUCCESS
}

/// `cuCtxPopCurrent_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut Handle) -> Code {
    let popped = CURRENT.replace(0);
    // SAFETY: the caller's, as CUDA documents; null is passed over.
    let _ = unsafe { put(context, popped) };
    if popped == 0 { INVALID_CONTEXT } else { SUCCESS }
}

/// `cuCtxGetDevice`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut i32) -> Code {
    if CURRENT.get() == 0 {
        return INVALID_CONTEXT;
    }
    // SAFETY: the caller's, as CUDA documents.
    code(unsafe { put(device, 0) })
}

/// `cuCtxGetApiVersion`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetApiVersion(_context: Handle, version: *mut u32) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    code(unsafe { put(version, VERSION as u32) })
}

/// `cuCtxSetFlags`: they say how to wait, which nobody does here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetFlags(_flags: u32) -> Code {
    SUCCESS
}
