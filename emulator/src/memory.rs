//! Device memory: allocations of the host, at their own addresses, and which bytes belong to one.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

/// What is found in memory that nothing was written to.
const NEVER_WRITTEN: u8 = 0xFF;
/// As CUDA aligns.
const ALIGNMENT: usize = 512;

/// Live allocations by address. One that is freed is no longer found, so that what still reads it is refused.
#[derive(Default)]
pub struct Memory {
    allocations: BTreeMap<u64, usize>,
    used: usize,
}

impl Memory {
    /// Bytes of this process that a device may have at the most.
    pub const TOTAL: usize = 6 << 30;

    /// Address of `bytes` new bytes; `None` where [`Self::TOTAL`] would be passed.
    pub fn allocate(&mut self, bytes: usize) -> Option<u64> {
        if bytes == 0 || self.used.checked_add(bytes)? > Self::TOTAL {
            return None;
        }
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: the layout is not of size 0.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: `bytes` bytes were allocated at `start`.
        unsafe { start.write_bytes(NEVER_WRITTEN, bytes) };
        self.used += bytes;
        self.allocations.insert(start as u64, bytes);
        Some(start as u64)
    }

    /// Whether there was an allocation that begins at `address`; it is gone now.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(bytes) = self.allocations.remove(&address) else { return false };
        self.used -= bytes;
        let layout = Layout::from_size_align(bytes, ALIGNMENT).expect("it was allocated so");
        // SAFETY: allocated by `allocate` with this layout, and no longer in the map.
        unsafe { dealloc(address as *mut u8, layout) };
        true
    }

    /// Bytes that no allocation has.
    pub fn unused(&self) -> usize {
        Self::TOTAL - self.used
    }

    /// Begin and length of the allocation that `address` lies in.
    pub fn allocation(&self, address: u64) -> Option<(u64, usize)> {
        let (&start, &bytes) = self.allocations.range(..=address).next_back()?;
        (address - start < bytes as u64).then_some((start, bytes))
    }

    /// Whether all of `bytes` at `address` belong to one allocation.
    pub fn has(&self, address: u64, bytes: usize) -> bool {
        self.allocation(address).is_some_and(|(start, length)| bytes as u64 <= length as u64 - (address - start))
    }

    /// Begins and lengths of all, by address: what a launch may touch.
    pub fn all(&self) -> Vec<(u64, u64)> {
        self.allocations.iter().map(|(&start, &bytes)| (start, bytes as u64)).collect()
    }
}
