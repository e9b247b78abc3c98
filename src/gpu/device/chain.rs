//! Chains: kernels of a captured graph that let the one behind them begin before they end.
//!
//! A kernel that releases its successor (`griddepcontrol.launch_dependents`, `release()` in `kernels/base/launch.cuh`) lets that be made
//! resident, and run up to its own wait, while it runs itself. Only kernels launched with programmatic serialization begin so early, and all
//! of ours wait, in `begin()`, before they touch what others write. Kernels of other libraries are launched with it, too, and not all wait for
//! everything that they read: cuBLASLt's gave wrong results behind such a kernel (observed: H200, cuBLASLt 13.1.0). So a kernel of ours
//! releases only inside a scope, [`Queue::enter_chain`], and nothing of others is enqueued behind it before [`Queue::settle`].
//!
//! Why order holds over any number of links: a kernel's wait ends when the kernel before it has ended and its memory is visible, and that one
//! could not end before its own wait did. So what follows a wait sees all that was enqueued before. And each product releases behind its
//! wait, when all blocks of the grid have passed it: what its successor does before *its* wait runs beside this one kernel, and behind all before it.
//! So the successor may there load what the one kernel does not write: its weights. Whether it is that kernel, and nothing of somebody else's, that the
//! launch follows, the capture says ([`CapturePlace`]): it names the node.
//!
//! Outside of captures nothing releases: nobody tells what was enqueued before, and events would come between.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::memory::Span;
use super::memory::raw::{CapturePlace, capture_place};
use super::stream::Queue;
use crate::error::Result;

/// Enqueues a kernel that begins when all before it has ended.
pub(crate) type Seal = Box<dyn Fn(&Queue) -> Result<()> + Send>;

/// The last kernel of a capture, where it releases its successor.
struct Tail {
    capture: u64,
    /// `None` where the capture did not tell it.
    node: Option<usize>,
    /// Serial number of the queue that enqueued it.
    queue: u64,
    writes: SmallVec<[Range<u64>; 2]>,
    seal: Seal,
}

/// The tails of a context: at most one for each capture.
#[derive(Default)]
pub(crate) struct Tails {
    /// So many: read at each launch.
    count: AtomicUsize,
    all: Mutex<Vec<Tail>>,
}

/// What a kernel may do as a link of a chain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Release its successor, behind its own wait.
    pub(crate) releases: bool,
    /// Load its weights before its wait.
    pub(crate) loads_early: bool,
}

/// An open scope of [`Queue::enter_chain`].
pub(crate) struct ChainScope<'q>(Option<&'q Queue>);

impl ChainScope<'_> {
    /// Closes the scope: what comes behind it comes behind all that is in it.
    pub(crate) fn leave(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), Queue::leave_chain)
    }
}

impl Drop for ChainScope<'_> {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        if let Err(error) = queue.leave_chain() {
            tracing::error!(%error, "the end of a chain is not enqueued: what others enqueue behind it may begin too early");
        }
    }
}

impl Tails {
    /// Calls `change` with all of them.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Tail>) -> T) -> T {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut all);
        self.count.store(all.len(), Ordering::Release);
        changed
    }

    fn none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Takes out the tail of this capture.
    fn take(&self, capture: u64) -> Option<Tail> {
        self.change(|all| all.iter().position(|tail| tail.capture == capture).map(|at| all.swap_remove(at)))
    }

    /// Whether work at this place may load these bytes at once, while the kernel before it runs: that is the tail, and writes none of them.
    fn lets_load(&self, place: CapturePlace, bytes: &[&Span<'_>]) -> bool {
        let written = |tail: &Tail| bytes.iter().any(|span| tail.writes.iter().any(|write| overlap(write, &range(span))));
        self.change(|all| {
            all.iter().any(|tail| {
                tail.capture == place.capture && tail.node.is_some() && tail.node == place.after && !written(tail)
            })
        })
    }
}

fn range(span: &Span<'_>) -> Range<u64> {
    span.address..span.address + span.bytes as u64
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Queue {
    /// Until the scope is left, kernels that know how to release their successors in captures.
    pub(crate) fn enter_chain(&self) -> ChainScope<'_> {
        self.chains.set(self.chains.get() + 1);
        ChainScope(Some(self))
    }

    fn leave_chain(&self) -> Result<()> {
        let left = self.chains.get() - 1;
        self.chains.set(left);
        if left > 0 {
            return Ok(());
        }
        // Not in the middle of a call of another handle on this stream.
        let _turn = self.turn();
        self.settle()?;
        // Those of captures that have ended meanwhile: a graph has ended when all its nodes have.
        self.tracking.tails.change(|all| all.retain(|tail| tail.queue != self.serial));
        Ok(())
    }

    /// What the kernel that is enqueued next may do, of which these are the weights: all that it would load before its wait.
    pub(crate) fn link(&self, weights: &[&Span<'_>]) -> Link {
        if self.chains.get() == 0 {
            return Link::default();
        }
        let Some(place) = capture_place(&self.stream) else { return Link::default() };
        let loads_early = self.tracking.tails.lets_load(place, weights);
        tracing::trace!(queue = self.serial, loads_early, "link of a chain");
        Link { releases: true, loads_early }
    }

    /// A kernel was enqueued that releases its successor and writes this.
    pub(crate) fn released(&self, writes: &[&Span<'_>], seal: Seal) {
        let Some(CapturePlace { capture, after }) = capture_place(&self.stream) else { return };
        let writes = writes.iter().map(|span| range(span)).collect();
        self.tracking.tails.change(|all| {
            all.retain(|tail| tail.capture != capture);
            all.push(Tail { capture, node: after, queue: self.serial, writes, seal });
        });
    }

    /// A kernel was enqueued that waits for the one before it and does not release its successor: what comes behind it is in order.
    pub(crate) fn in_order(&self) {
        if !self.tracking.tails.none()
            && let Some(place) = capture_place(&self.stream)
        {
            self.tracking.tails.take(place.capture);
        }
    }

    /// To be called before anything is enqueued that is no kernel of ours: it comes behind all that was enqueued before.
    pub(crate) fn settle(&self) -> Result<()> {
        if self.tracking.tails.none() {
            return Ok(());
        }
        let Some(place) = capture_place(&self.stream) else { return Ok(()) };
        let Some(tail) = self.tracking.tails.take(place.capture) else { return Ok(()) };
        (tail.seal)(self).inspect_err(|_| self.tracking.tails.change(|all| all.push(tail)))
    }
}
