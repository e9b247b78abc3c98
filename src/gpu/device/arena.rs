//! [`Arena`]: scratch memory that all plans of a handle share. One stream orders their uses, so that each call may
//! overwrite what the one before it left.

use std::cell::RefCell;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::gpu::device::memory::{Memory, Span};
use crate::gpu::device::stream::Queue;

/// One chunk of device memory, as large as the largest reservation. Captured graphs keep the chunk that they use.
#[derive(Default)]
pub(crate) struct Arena {
    chunk: RefCell<Option<Arc<Memory>>>,
}

/// Chunks grow in these steps, so that small plans do not each move the arena.
const GRAIN: usize = 2 << 20;

impl Arena {
    /// Makes `bytes` bytes available to [`Arena::span`]. Where the chunk is smaller it is replaced: allocates, and frees the
    /// old chunk in stream order, behind the work that uses it. Not while the stream is captured.
    pub(crate) fn reserve(&self, queue: &Queue, bytes: usize) -> Result<()> {
        if bytes > self.bytes() {
            let memory = Memory::zeros(queue, bytes.next_multiple_of(GRAIN))?;
            queue.keep(&memory);
            self.chunk.replace(Some(memory));
        }
        Ok(())
    }

    /// The first `bytes` bytes, for work on the queue that they were reserved on. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if fewer are reserved.
    pub(crate) fn span(&self, bytes: usize) -> Result<Span<'_>> {
        let chunk = self.chunk.borrow();
        let (address, reserved) = chunk.as_ref().map_or((0, 0), |chunk| (chunk.span().address, chunk.bytes()));
        if bytes > reserved {
            return Err(Error::unsupported(
                format!("a call that needs {bytes} bytes of scratch memory"),
                format!("the handle holds {reserved}, and execute allocates nothing"),
                "call GemmPlan::prepare, or plan a grouped product again, after Handle::trim_scratch, and before any graph capture",
            ));
        }
        Ok(Span::unguarded(address, bytes))
    }

    /// Bytes that are reserved.
    pub(crate) fn bytes(&self) -> usize {
        self.chunk.borrow().as_ref().map_or(0, |chunk| chunk.bytes())
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
