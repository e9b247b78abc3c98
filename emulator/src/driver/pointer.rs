//! What an address is.

use std::ffi::c_void;

use super::codes::*;
use super::memory::POOL;
use super::state::{CONTEXT, State, call};

/// `CU_MEMORYTYPE_HOST` and `CU_MEMORYTYPE_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// An address that the driver knows.
struct Known {
    kind: u32,
    start: u64,
    bytes: usize,
    pooled: bool,
}

impl State {
    fn known(&self, address: u64) -> Option<Known> {
        if let Some((start, bytes)) = self.memory.allocation(address) {
            return Some(Known { kind: DEVICE, start, bytes, pooled: self.pooled.contains_key(&start) });
        }
        let (&start, &bytes) = self.pinned.range(..=address).next_back()?;
        (address - start < bytes as u64).then_some(Known { kind: HOST, start, bytes, pooled: false })
    }
}

/// Writes one attribute; of an address that is not known all are zeros.
///
/// # Safety
/// `place` is of the attribute's size.
unsafe fn answer(known: Option<&Known>, attribute: u32, address: u64, place: *mut c_void) -> Outcome {
    let of = |value: fn(&Known) -> u64| known.map_or(0, value);
    let is_host = known.is_none_or(|known| known.kind == HOST);
    // SAFETY: the caller's: as CUDA documents, of a pointer, an unsigned or signed `int`, a 64-bit number, or a byte that is a bool.
    unsafe {
        match attribute {
            1 => put(place.cast(), of(|_| CONTEXT)),
            2 => put(place.cast(), of(|known| known.kind.into()) as u32),
            3 => put(place.cast(), if known.is_some() { address } else { 0 }),
            4 => put(place.cast(), if known.is_some() && is_host { address } else { 0 }),
            6 | 8 | 10 | 13 | 15 | 21 => {
                let mapped = attribute == 13 && known.is_some();
                put(place.cast(), u8::from(mapped))
            }
            7 | 20 => put(place.cast(), of(|known| known.start)),
            9 => put(place.cast(), if known.is_some() { 0i32 } else { -2 }),
            11 | 19 => put(place.cast(), of(|known| known.start)),
            12 | 18 => put(place.cast(), of(|known| known.bytes as u64)),
            14 => put(place.cast(), 0u64),
            16 => put(place.cast(), of(|_| 3) as u32),
            17 => put(place.cast(), of(|known| if known.pooled { POOL } else { 0 })),
            _ => Err(INVALID_VALUE),
        }
    }
}

/// `cuPointerGetAttribute`: an address that is not known is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(place: *mut c_void, attribute: u32, address: u64) -> Code {
    call(|turn| {
        let known = turn.known(address).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { answer(Some(&known), attribute, address, place) }
    })
}

/// `cuPointerGetAttributes`: of an address that is not known zeros are said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: *const u32,
    places: *const *mut c_void,
    address: u64,
) -> Code {
    call(|turn| {
        if attributes.is_null() || places.is_null() {
            return Err(INVALID_VALUE);
        }
        let known = turn.known(address);
        for at in 0..count as usize {
            // SAFETY: the caller's, as CUDA documents: so many attributes, and so many places.
            unsafe { answer(known.as_ref(), attributes.add(at).read(), address, places.add(at).read())? };
        }
        Ok(())
    })
}
