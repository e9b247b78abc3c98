//! Copies and fills.

use std::ffi::c_void;

use super::codes::*;
use super::op::{Copy, Op, Place};
use super::state::{Handle, State, Turn, call, call_in_context};
use super::stream::{LEGACY, resolve};

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_type: u32,
    from_host: u64,
    from_device: u64,
    from_array: u64,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_type: u32,
    to_host: u64,
    to_device: u64,
    to_array: u64,
    to_pitch: usize,
    width: usize,
    height: usize,
}

/// `CUmemorytype`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const UNIFIED: u32 = 4;

impl Copy2d {
    fn copy(&self, state: &State) -> Outcome<Copy> {
        let side = |kind, host: u64, device: u64, x: usize, y: usize, pitch: usize| {
            let pitch = if pitch == 0 { self.width } else { pitch };
            let offset = y.checked_mul(pitch).and_then(|rows| rows.checked_add(x)).ok_or(INVALID_VALUE)? as u64;
            if x.checked_add(self.width).is_none_or(|end| pitch < end) && self.height > 1 {
                return Err(INVALID_VALUE);
            }
            // No side may end beyond all addresses.
            let behind = self.height.saturating_sub(1).checked_mul(pitch).and_then(|rows| rows.checked_add(self.width));
            let behind = behind.ok_or(INVALID_VALUE)? as u64;
            let at = |base: u64| {
                let start = base.checked_add(offset).ok_or(INVALID_VALUE)?;
                start.checked_add(behind).map(|_| start).ok_or(INVALID_VALUE)
            };
            match kind {
                HOST => Ok((Place::Host(at(host)?), pitch)),
                DEVICE => Ok((Place::Device(at(device)?), pitch)),
                UNIFIED => Ok((state.place(at(device)?), pitch)),
                _ => Err(NOT_SUPPORTED),
            }
        };
        let (from, from_pitch) =
            side(self.from_type, self.from_host, self.from_device, self.from_x, self.from_y, self.from_pitch)?;
        let (to, to_pitch) = side(self.to_type, self.to_host, self.to_device, self.to_x, self.to_y, self.to_pitch)?;
        Ok(Copy { from, from_pitch, to, to_pitch, width: self.width, height: self.height })
    }
}

fn flat(from: Place, to: Place, bytes: usize) -> Copy {
    Copy { from, from_pitch: bytes, to, to_pitch: bytes, width: bytes, height: 1 }
}

impl State {
    /// What a unified address is.
    fn place(&self, address: u64) -> Place {
        match self.memory.allocation(address) {
            Some(_) => Place::Device(address),
            None => Place::Host(address),
        }
    }
}

/// Puts a copy on a stream. Pageable host memory has been read when this returns, and been written: then it waits for the stream.
fn enqueue(turn: &mut Turn, mut copy: Copy, stream: Handle) -> Outcome {
    let is_captured = turn.stream(stream)?.capture.is_some();
    let late = !is_captured && !turn.tails(stream).is_empty();
    let mut waits = false;
    if late {
        let extent = |pitch: usize| copy.height.saturating_sub(1) * pitch + copy.width;
        match copy.from {
            Place::Host(address) if address != 0 && !turn.is_pinned(address, extent(copy.from_pitch)) => {
                // SAFETY: the caller vouches for the host's side of a copy, as CUDA documents.
                let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, extent(copy.from_pitch)) };
                copy.from = Place::Staged(bytes.into());
            }
            _ => {}
        }
        waits = matches!(copy.to, Place::Host(address) if !turn.is_pinned(address, extent(copy.to_pitch)));
    }
    turn.submit(stream, Op::Copy(copy))?;
    match waits {
        true => wait(turn, stream),
        false => Ok(()),
    }
}

fn wait(turn: &mut Turn, stream: Handle) -> Outcome {
    let tails = turn.tails(stream);
    turn.wait_until(|state| tails.iter().all(|tail| state.is_done(*tail)))
}

/// Work of the legacy default stream that the caller waits for.
fn at_once(op: impl FnOnce(&State) -> Outcome<Op>) -> Code {
    call_in_context(|turn| {
        turn.refuse_unsafe()?;
        let op = op(turn)?;
        turn.submit(LEGACY, op)?;
        wait(turn, LEGACY)
    })
}

/// `cuMemcpyHtoDAsync_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> Code {
    call(|turn| enqueue(turn, flat(Place::Host(from as u64), Place::Device(to), bytes), resolve(stream)?))
}

/// `cuMemcpyDtoHAsync_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> Code {
    call(|turn| enqueue(turn, flat(Place::Device(from), Place::Host(to as u64), bytes), resolve(stream)?))
}

/// `cuMemcpyDtoDAsync_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> Code {
    call(|turn| enqueue(turn, flat(Place::Device(from), Place::Device(to), bytes), resolve(stream)?))
}

/// `cuMemcpyAsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) -> Code {
    call(|turn| {
        let copy = flat(turn.place(from), turn.place(to), bytes);
        enqueue(turn, copy, resolve(stream)?)
    })
}

/// `cuMemcpyPeerAsync`, of the only context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    _to_context: Handle,
    from: u64,
    _from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuMemcpyDtoDAsync_v2(to, from, bytes, stream) }
}

/// `cuMemcpy2DAsync_v2`, without arrays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: Handle) -> Code {
    call(|turn| {
        // SAFETY: the caller's, as CUDA documents: null, which is refused, or one copy.
        let copy = unsafe { copy.as_ref() }.ok_or(INVALID_VALUE)?.copy(turn)?;
        enqueue(turn, copy, resolve(stream)?)
    })
}

/// `cuMemcpy2D_v2`, without arrays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2D_v2(copy: *const Copy2d) -> Code {
    // SAFETY: the caller's, as CUDA documents: null, which is refused, or one copy.
    at_once(|state| Ok(Op::Copy(unsafe { copy.as_ref() }.ok_or(INVALID_VALUE)?.copy(state)?)))
}

/// `cuMemcpyHtoD_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> Code {
    at_once(|_| Ok(Op::Copy(flat(Place::Host(from as u64), Place::Device(to), bytes))))
}

/// `cuMemcpyDtoH_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> Code {
    at_once(|_| Ok(Op::Copy(flat(Place::Device(from), Place::Host(to as u64), bytes))))
}

/// `cuMemcpyDtoD_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Code {
    at_once(|_| Ok(Op::Copy(flat(Place::Device(from), Place::Device(to), bytes))))
}

/// `cuMemcpy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> Code {
    at_once(|state| Ok(Op::Copy(flat(state.place(from), state.place(to), bytes))))
}

fn fill(address: u64, pattern: &[u8], width: usize) -> Op {
    let pitch = width.saturating_mul(pattern.len());
    Op::Fill { address, pitch, pattern: pattern.to_vec(), width, height: 1 }
}

/// `cuMemsetD8Async`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(address: u64, value: u8, count: usize, stream: Handle) -> Code {
    call(|turn| turn.submit(resolve(stream)?, fill(address, &[value], count)))
}

/// `cuMemsetD16Async`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD16Async(address: u64, value: u16, count: usize, stream: Handle) -> Code {
    call(|turn| turn.submit(resolve(stream)?, fill(address, &value.to_le_bytes(), count)))
}

/// `cuMemsetD32Async`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD32Async(address: u64, value: u32, count: usize, stream: Handle) -> Code {
    call(|turn| turn.submit(resolve(stream)?, fill(address, &value.to_le_bytes(), count)))
}

/// `cuMemsetD2D8Async`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD2D8Async(
    address: u64,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: Handle,
) -> Code {
    call(|turn| turn.submit(resolve(stream)?, Op::Fill { address, pitch, pattern: vec![value], width, height }))
}

/// `cuMemsetD8_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8_v2(address: u64, value: u8, count: usize) -> Code {
    at_once(|_| Ok(fill(address, &[value], count)))
}

/// `cuMemsetD32_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD32_v2(address: u64, value: u32, count: usize) -> Code {
    at_once(|_| Ok(fill(address, &value.to_le_bytes(), count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_side_wraps_around() {
        let plain = || Copy2d {
            from_x: 0,
            from_y: 0,
            from_type: HOST,
            from_host: 0x1000,
            from_device: 0,
            from_array: 0,
            from_pitch: 64,
            to_x: 0,
            to_y: 0,
            to_type: HOST,
            to_host: 0x9000,
            to_device: 0,
            to_array: 0,
            to_pitch: 64,
            width: 64,
            height: 2,
        };
        assert!(plain().copy(&State::default()).is_ok());
        for bad in [
            Copy2d { from_y: usize::MAX / 2, ..plain() },
            Copy2d { to_x: usize::MAX, ..plain() },
            Copy2d { width: usize::MAX, from_x: 1, ..plain() },
            Copy2d { height: usize::MAX, ..plain() },
            Copy2d { to_host: u64::MAX - 64, ..plain() },
        ] {
            assert!(bad.copy(&State::default()).is_err());
        }
    }
}
