//! Allocations: of device memory, in stream order or not, and of page-locked host memory.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

use super::codes::*;
use super::op::Op;
use super::state::{Handle, State, Turn, call, call_in_context};
use super::stream::resolve;
use crate::memory::Memory;

/// The only device's pool.
pub const POOL: Handle = 0x00D0_0100;
/// Page-locked memory begins at a page.
const PAGE: usize = 4096;

impl State {
    /// Page-locked memory, which all of `bytes` at this address belong to.
    pub fn is_pinned(&self, address: u64, bytes: usize) -> bool {
        let before = self.pinned.range(..=address).next_back();
        before.is_some_and(|(start, length)| {
            let at = (address - start) as usize;
            at < *length && bytes <= length - at
        })
    }

    fn allocate(&mut self, bytes: usize) -> Outcome<u64> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        self.memory.allocate(bytes).ok_or(OUT_OF_MEMORY)
    }

    /// In stream order: at once, as no work touches memory that nobody has freed.
    fn allocate_on(&mut self, bytes: usize, stream: Handle) -> Outcome<u64> {
        self.stream(stream)?;
        self.refuse_implicit(stream)?;
        if self.capture_of(stream)?.is_none() {
            self.refuse_unsafe()?;
            let address = self.allocate(bytes)?;
            self.pooled.insert(address, bytes);
            self.pooled_high = self.pooled_high.max(self.pooled.values().sum());
            return Ok(address);
        }
        // The memory of a graph: there from now on, and never given back unless somebody frees it outside.
        let address = self.allocate(bytes)?;
        self.record_op(stream, Op::Empty)?;
        if let Some(capture) = self.capture_of(stream)? {
            capture.allocated.push(address);
        }
        Ok(address)
    }

    fn free_on(&mut self, address: u64, stream: Handle) -> Outcome {
        self.stream(stream)?;
        let Some(capture) = self.capture_of(stream)? else {
            self.refuse_unsafe()?;
            return self.submit(stream, Op::Free(address));
        };
        let own = capture.allocated.iter().position(|own| *own == address);
        if let Some(own) = own {
            capture.allocated.swap_remove(own);
        }
        let op = if own.is_some() { Op::Empty } else { Op::Free(address) };
        self.submit(stream, op)
    }
}

fn wait_for_all(turn: &mut Turn) -> Outcome {
    turn.wait_until(|state| state.streams.values().all(|stream| stream.queue.is_empty()))
}

/// `cuMemAlloc_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> Code {
    call_in_context(|turn| {
        turn.refuse_unsafe()?;
        let allocated = turn.allocate(bytes)?;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(address, allocated) }
    })
}

/// `cuMemFree_v2`, which waits for all work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: u64) -> Code {
    call(|turn| {
        if address == 0 {
            return Ok(());
        }
        turn.refuse_unsafe()?;
        wait_for_all(turn)?;
        turn.run(&Op::Free(address))
    })
}

/// `cuMemAllocAsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: Handle) -> Code {
    call(|turn| {
        let allocated = turn.allocate_on(bytes, resolve(stream)?)?;
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(address, allocated) }
    })
}

/// `cuMemAllocFromPoolAsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    address: *mut u64,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> Code {
    if pool != POOL {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuMemAllocAsync(address, bytes, stream) }
}

/// `cuMemFreeAsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(address: u64, stream: Handle) -> Code {
    call(|turn| turn.free_on(address, resolve(stream)?))
}

/// `cuMemGetInfo_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    call_in_context(|turn| {
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(free, turn.memory.unused()).and(put(total, Memory::TOTAL)) }
    })
}

/// `cuMemGetAddressRange_v2`; either place may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(start: *mut u64, bytes: *mut usize, address: u64) -> Code {
    call_in_context(|turn| {
        let (first, length) = turn.memory.allocation(address).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's, as CUDA documents; null is passed over.
        let _ = unsafe { (put(start, first), put(bytes, length)) };
        Ok(())
    })
}

/// `cuMemHostAlloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(place: *mut *mut std::ffi::c_void, bytes: usize, _flags: u32) -> Code {
    call_in_context(|turn| {
        turn.refuse_unsafe()?;
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| OUT_OF_MEMORY)?;
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the layout is not of size 0.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        turn.pinned.insert(start as u64, bytes);
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(place, start.cast()) }
    })
}

/// `cuMemAllocHost_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(place: *mut *mut std::ffi::c_void, bytes: usize) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuMemHostAlloc(place, bytes, 0) }
}

/// `cuMemFreeHost`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(place: *mut std::ffi::c_void) -> Code {
    call(|turn| {
        let pinned: &mut BTreeMap<u64, usize> = &mut turn.pinned;
        let bytes = pinned.remove(&(place as u64)).ok_or(INVALID_VALUE)?;
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| INVALID_VALUE)?;
        // SAFETY: allocated by `cuMemHostAlloc` with this layout, and known to nobody any more.
        unsafe { dealloc(place.cast(), layout) };
        Ok(())
    })
}
