//! Tensor maps, as the driver makes them.

use std::ffi::c_void;

use super::codes::*;
use super::device::DEVICE;
use super::state::CURRENT;
use crate::tensor_map::TensorMap;

/// `CUtensorMap`.
#[repr(C, align(64))]
pub struct Opaque([u8; 128]);

/// Up to five numbers; what is beyond the rank is 0.
///
/// # Safety
/// There are `count` numbers at `from`, unless it is null.
unsafe fn numbers<T: Copy + Default, const N: usize>(from: *const T, count: usize) -> Outcome<[T; N]> {
    if count > 0 && from.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's.
    Ok(std::array::from_fn(|at| if at < count { unsafe { from.add(at).read() } } else { T::default() }))
}

/// `cuTensorMapEncodeTiled`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(
    place: *mut Opaque,
    data_type: u32,
    rank: u32,
    address: *mut c_void,
    dims: *const u64,
    strides: *const u64,
    box_dims: *const u32,
    element_strides: *const u32,
    interleave: u32,
    swizzle: u32,
    l2_promotion: u32,
    oob_fill: u32,
) -> Code {
    if CURRENT.get() == 0 {
        return INVALID_CONTEXT;
    }
    if !DEVICE.has_clusters() {
        return NOT_SUPPORTED;
    }
    if !(1..=5).contains(&rank) || !place.is_aligned() {
        return INVALID_VALUE;
    }
    let count = rank as usize;
    // SAFETY: the caller's, as CUDA documents: so many numbers at each.
    let arrays = unsafe {
        (|| {
            Ok((
                numbers(dims, count)?,
                numbers(strides, count - 1)?,
                numbers(box_dims, count)?,
                numbers(element_strides, count)?,
            ))
        })()
    };
    let (dims, strides, box_dims, element_strides) = match arrays {
        Ok(arrays) => arrays,
        Err(error) => return error,
    };
    let address = address as u64;
    #[rustfmt::skip]
    let map = TensorMap {
        address, data_type, rank, dims, strides, box_dims, element_strides, interleave, swizzle, l2_promotion, oob_fill,
    };
    if let Err(words) = map.check() {
        eprintln!("PTX emulator: a tensor map breaks a rule: {words}");
        return INVALID_VALUE;
    }
    // SAFETY: the caller's, as CUDA documents.
    code(unsafe { put(place, Opaque(map.to_bytes())) })
}

/// `cuTensorMapReplaceAddress`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapReplaceAddress(place: *mut Opaque, address: *mut c_void) -> Code {
    // SAFETY: the caller's, as CUDA documents: null, which is refused, or a map.
    let Some(opaque) = (unsafe { place.as_mut() }) else { return INVALID_VALUE };
    let Some(map) = TensorMap::from_bytes(&opaque.0) else { return INVALID_VALUE };
    let map = TensorMap { address: address as u64, ..map };
    if map.check().is_err() {
        return INVALID_VALUE;
    }
    opaque.0 = map.to_bytes();
    SUCCESS
}
