//! Device memory: allocations of the host, at their own addresses, and which bytes belong to one.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap};

/// What is found in memory that nothing was written to.
const NEVER_WRITTEN: u8 = 0xFF;
/// As CUDA aligns.
const ALIGNMENT: usize = 512;
/// Bytes behind each allocation that belong to none, so that what runs past an end is found.
const GAP: usize = 512;
/// Above this, memory that nothing was written to holds zeros: its pages come when they are touched.
const FILLED: usize = 256 << 20;
/// Bytes that are freed and kept for who asks next.
const KEPT: usize = 1 << 30;

/// Live allocations by address. One that is freed is no longer found, so that what still reads it is refused.
#[derive(Default)]
pub struct Memory {
    allocations: BTreeMap<u64, usize>,
    used: usize,
    /// Freed, by room. The last that was freed is the first that is given again, as CUDA's pool does, so that who uses freed
    /// memory meets its next owner.
    freed: HashMap<usize, Vec<u64>>,
    kept: usize,
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_next_multiple_of(ALIGNMENT)?.checked_add(GAP)?, ALIGNMENT).ok()
}

impl Memory {
    /// Bytes of this process that a device may have at the most.
    pub const TOTAL: usize = 6 << 30;

    /// Address of `bytes` new bytes; `None` where [`Self::TOTAL`] would be passed.
    pub fn allocate(&mut self, bytes: usize) -> Option<u64> {
        if bytes == 0 || self.used.checked_add(bytes)? > Self::TOTAL {
            return None;
        }
        let layout = layout(bytes)?;
        let start = match self.freed.get_mut(&layout.size()).and_then(Vec::pop) {
            Some(address) => {
                self.kept -= layout.size();
                address as *mut u8
            }
            // SAFETY: the layout is not of size 0.
            None => unsafe { alloc_zeroed(layout) },
        };
        if start.is_null() {
            return None;
        }
        if bytes <= FILLED {
            // SAFETY: at least `bytes` bytes were allocated at `start`, and belong to nobody else.
            unsafe { start.write_bytes(NEVER_WRITTEN, bytes) };
        }
        self.used += bytes;
        self.allocations.insert(start as u64, bytes);
        Some(start as u64)
    }

    /// Whether there was an allocation that begins at `address`; it is gone now.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(bytes) = self.allocations.remove(&address) else { return false };
        self.used -= bytes;
        let layout = layout(bytes).expect("it was allocated so");
        if bytes <= FILLED && self.kept + layout.size() <= KEPT {
            self.kept += layout.size();
            self.freed.entry(layout.size()).or_default().push(address);
        } else {
            // SAFETY: allocated by `allocate` with this layout, and in neither map any more.
            unsafe { dealloc(address as *mut u8, layout) };
        }
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

impl Drop for Memory {
    fn drop(&mut self) {
        let live = self.allocations.iter().filter_map(|(&address, &bytes)| Some((address, layout(bytes)?)));
        let freed = self.freed.iter().flat_map(|(&size, addresses)| {
            let layout = Layout::from_size_align(size, ALIGNMENT).ok();
            addresses.iter().filter_map(move |&address| Some((address, layout?)))
        });
        for (address, layout) in live.chain(freed) {
            // SAFETY: allocated by `allocate` with this layout, and in one of the two maps, each once.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_belong_to_live_allocations_alone() {
        let mut memory = Memory::default();
        let address = memory.allocate(1000).unwrap();
        assert!(address.is_multiple_of(ALIGNMENT as u64));
        assert!(memory.has(address, 1000) && memory.has(address + 999, 1) && memory.has(address + 16, 0));
        assert!(!memory.has(address, 1001) && !memory.has(address + 1000, 1) && !memory.has(address - 1, 1));
        assert_eq!(memory.allocation(address + 7), Some((address, 1000)));
        assert_eq!(memory.unused(), Memory::TOTAL - 1000);
        assert!(!memory.free(address + 1), "it begins elsewhere");
        assert!(memory.free(address) && !memory.free(address), "freed once");
        assert!(!memory.has(address, 1) && memory.all().is_empty());
        assert_eq!(memory.unused(), Memory::TOTAL);
    }

    #[test]
    fn what_is_freed_is_given_again_as_if_never_written() {
        let mut memory = Memory::default();
        let address = memory.allocate(4096).unwrap();
        // SAFETY: the allocation is alive and as long.
        unsafe { (address as *mut u8).write_bytes(7, 4096) };
        let other = memory.allocate(4096).unwrap();
        assert!(memory.free(address));
        assert_eq!(memory.allocate(4000), Some(address), "of the same room");
        // SAFETY: the allocation is alive and as long.
        let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, 4000) };
        assert!(bytes.iter().all(|byte| *byte == NEVER_WRITTEN));
        assert!(memory.has(other, 4096));
    }

    #[test]
    fn no_more_than_the_device_has() {
        let mut memory = Memory::default();
        assert_eq!(memory.allocate(0), None);
        assert_eq!(memory.allocate(Memory::TOTAL + 1), None);
        assert_eq!(memory.allocate(usize::MAX), None);
    }
}
