//! [`Arena`]: scratch memory that all plans of a handle share. One stream orders their uses, so that each call may
//! overwrite what the one before it left.

use std::cell::RefCell;

use cudarc::driver::{CudaSlice, SyncOnDrop};

use crate::error::{Error, Result};
use crate::gpu::device::memory::{DeviceBytes, LaunchStream, Span, driver};

/// One chunk of device memory, as large as the largest reservation.
#[derive(Default)]
pub(crate) struct Arena {
    chunk: RefCell<Option<Chunk>>,
}

/// Memory that only one stream touches, so that its address can be taken once.
struct Chunk {
    memory: CudaSlice<u8>,
    address: u64,
}

/// Chunks grow in these steps, so that small plans do not each move the arena.
const GRAIN: usize = 2 << 20;

impl Arena {
    /// Makes `bytes` bytes available to [`Arena::span`]. Where the chunk is smaller it is replaced: allocates, and frees the
    /// old chunk in stream order, behind the work that uses it. Not while the stream is captured.
    pub(crate) fn reserve(&self, stream: &LaunchStream, bytes: usize) -> Result<()> {
        if bytes <= self.bytes() {
            return Ok(());
        }
        let size = bytes.next_multiple_of(GRAIN);
        let memory = stream.stream.alloc_zeros::<u8>(size);
        let memory = memory.map_err(|e| driver(&format!("allocating {size} bytes of scratch memory"), e))?;
        let address = DeviceBytes::from(&memory).on(stream).address;
        self.chunk.replace(Some(Chunk { memory, address }));
        Ok(())
    }

    /// The first `bytes` bytes, for work on the stream that they were reserved on. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if fewer are reserved.
    pub(crate) fn span(&self, bytes: usize) -> Result<Span<'_>> {
        let (address, reserved) = match &*self.chunk.borrow() {
            Some(chunk) => (chunk.address, chunk.memory.len()),
            None => (0, 0),
        };
        if bytes > reserved {
            return Err(Error::unsupported(
                format!("a call that needs {bytes} bytes of scratch memory"),
                format!("the handle holds {reserved}, and execute allocates nothing"),
                "call GemmPlan::prepare after Handle::trim_scratch, and before any graph capture",
            ));
        }
        Ok(Span { address, bytes, _guard: SyncOnDrop::Record(None) })
    }

    /// Bytes that are reserved.
    pub(crate) fn bytes(&self) -> usize {
        self.chunk.borrow().as_ref().map_or(0, |chunk| chunk.memory.len())
    }

    /// Frees the chunk in stream order. Not while the stream is captured.
    pub(crate) fn trim(&self) {
        self.chunk.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_reserved_is_refused_with_both_numbers() {
        let arena = Arena::default();
        assert_eq!(arena.bytes(), 0);
        assert_eq!(arena.span(0).map(|span| span.bytes).unwrap(), 0);
        let error = arena.span(300).map(drop).unwrap_err().to_string();
        assert!(error.contains("300 bytes") && error.contains("holds 0") && error.contains("prepare"), "{error}");
    }
}
