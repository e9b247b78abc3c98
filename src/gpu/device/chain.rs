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
//! A small quantizer between two products releases at once: then it runs beside the quantizer and the product before that.
//! So the successor may there load what these do not write: its weights. Whether it is they, and nothing of somebody else's, that the
//! launch follows, the capture says ([`CapturePlace`]): it names the node.
//!
//! Streams that are captured into one graph have a chain each. Where another stream waits for an event that was recorded in the middle of one, nobody tells
//! that what it enqueues follows a kernel that has released: so `Handle::chain` asks for such events before the scope and behind it.
//!
//! Outside of captures nothing releases: nobody tells what was enqueued before, and events would come between.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::memory::raw::{CapturePlace, capture_place};
use super::memory::{Span, overlap};
use super::stream::Queue;
use crate::error::Result;

/// Enqueues a kernel that begins when all before it has ended.
pub(crate) type Seal = Box<dyn Fn(&Queue) -> Result<()> + Send>;

/// The last kernel of a stream in a capture, where it is a link of a chain.
struct Tail {
    capture: u64,
    /// The driver's address: streams that are captured into one graph have one capture, and each its own last kernel; queues of one stream share it.
    stream: usize,
    /// `None` where the capture did not tell it, or the next kernel may run beside others than are known.
    node: Option<usize>,
    /// Serial number of the queue that enqueued it.
    queue: u64,
    /// What is written by all that the next kernel may run beside before its wait.
    writes: SmallVec<[Range<u64>; 4]>,
    /// Of a kernel that releases its successor.
    seal: Option<Seal>,
}

/// The tails of a context: at most one for each stream of a capture.
#[derive(Default)]
pub(crate) struct Tails {
    /// So many: read at each launch.
    count: AtomicUsize,
    all: Mutex<Vec<Tail>>,
}

/// What a link follows.
pub(crate) struct Follows {
    /// A link, which writes none of its weights: it may load them before its wait.
    pub(crate) loads_early: bool,
    /// What a kernel behind it runs beside, too, if this one releases it before its own wait.
    pub(crate) beside: Beside,
}

/// What a kernel may run beside before its wait, apart from the one before it.
pub(crate) enum Beside {
    Nothing,
    /// Kernels that write this.
    Writers(SmallVec<[Range<u64>; 4]>),
    Unknown,
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

    /// Takes out the tail of this stream in this capture.
    fn take(&self, capture: u64, stream: usize) -> Option<Tail> {
        self.change(|all| {
            let found = all.iter().position(|tail| (tail.capture, tail.stream) == (capture, stream));
            found.map(|at| all.swap_remove(at))
        })
    }

    /// A new tail, in the place of the last one of its stream.
    fn put(&self, new: Tail) {
        self.change(|all| {
            all.retain(|tail| (tail.capture, tail.stream) != (new.capture, new.stream));
            all.push(new);
        });
    }

    /// What work at this place follows.
    fn followed(&self, place: CapturePlace, weights: &[&Span<'_>]) -> Follows {
        self.change(|all| {
            let tail = all
                .iter()
                .find(|tail| tail.capture == place.capture && tail.node.is_some() && tail.node == place.after);
            let Some(tail) = tail else { return Follows { loads_early: false, beside: Beside::Unknown } };
            let written = weights.iter().any(|span| tail.writes.iter().any(|write| overlap(write, &span.range())));
            Follows { loads_early: !written, beside: Beside::Writers(tail.writes.clone()) }
        })
    }
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

    /// Whether the kernel that is enqueued next may be a link of a chain, and then what it follows. `weights`: all that it would load before its
    /// wait.
    pub(crate) fn link(&self, weights: &[&Span<'_>]) -> Option<Follows> {
        if self.chains.get() == 0 {
            return None;
        }
        let place = capture_place(&self.stream)?;
        Some(self.tracking.tails.followed(place, weights))
    }

    /// A link was enqueued: it writes this, and if there is a seal, releases its successor. `beside`: what the next kernel runs beside, apart from
    /// this one; nothing where it releases behind its wait.
    pub(crate) fn linked(&self, writes: &[&Span<'_>], beside: Beside, seal: Option<Seal>) {
        let Some(CapturePlace { capture, after }) = capture_place(&self.stream) else { return };
        let own = writes.iter().map(|span| span.range());
        let (node, writes) = match beside {
            Beside::Nothing => (after, own.collect()),
            Beside::Writers(others) => (after, own.chain(others).collect()),
            Beside::Unknown => (None, own.collect()),
        };
        self.tracking.tails.put(Tail { capture, stream: self.address(), node, queue: self.serial, writes, seal });
    }

    /// A kernel was enqueued that waits for the one before it, and is no link: what comes behind it is in order.
    pub(crate) fn in_order(&self) {
        if !self.tracking.tails.none()
            && let Some(place) = capture_place(&self.stream)
        {
            self.tracking.tails.take(place.capture, self.address());
        }
    }

    /// To be called before anything is enqueued that is no kernel of ours: it comes behind all that was enqueued before.
    pub(crate) fn settle(&self) -> Result<()> {
        if self.tracking.tails.none() {
            return Ok(());
        }
        let Some(place) = capture_place(&self.stream) else { return Ok(()) };
        let Some(tail) = self.tracking.tails.take(place.capture, self.address()) else { return Ok(()) };
        let sealed = tail.seal.as_ref().map_or(Ok(()), |seal| seal(self));
        sealed.inspect_err(|_| self.tracking.tails.put(tail))
    }

    /// Of the stream, as the driver has it.
    fn address(&self) -> usize {
        self.stream.cu_stream() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: CapturePlace = CapturePlace { capture: 7, after: Some(70) };

    /// Of stream 3 in capture 7.
    fn tail(node: Option<usize>, writes: &[Range<u64>]) -> Tail {
        Tail { capture: 7, stream: 3, node, queue: 1, writes: writes.iter().cloned().collect(), seal: None }
    }

    fn tails(node: Option<usize>, writes: &[Range<u64>]) -> Tails {
        let tails = Tails::default();
        tails.put(tail(node, writes));
        tails
    }

    fn early(tails: &Tails, place: CapturePlace, address: u64, bytes: usize) -> bool {
        tails.followed(place, &[&Span::unguarded(1 << 40, 16), &Span::unguarded(address, bytes)]).loads_early
    }

    #[test]
    fn weights_are_loaded_early_behind_a_link_that_does_not_write_them() {
        let behind = tails(Some(70), &[100..200, 300..400]);
        for (address, bytes, want) in [
            (0, 100, true),
            (0, 101, false),
            (199, 1, false),
            (200, 100, true),
            (350, 1, false),
            (400, 8, true),
            (0, 500, false),
        ] {
            assert_eq!(early(&behind, PLACE, address, bytes), want, "{address}, {bytes}");
        }
        // Something came between, several nodes come before, or it is another capture.
        for other in [
            CapturePlace { after: Some(71), ..PLACE },
            CapturePlace { after: None, ..PLACE },
            CapturePlace { capture: 8, ..PLACE },
        ] {
            assert!(!early(&behind, other, 0, 8), "{other:?}");
        }
        assert!(
            !early(&tails(None, &[]), CapturePlace { after: None, ..PLACE }, 0, 8),
            "two that are not known are not the same"
        );
        assert!(!early(&Tails::default(), PLACE, 0, 8));
    }

    #[test]
    fn what_is_written_beside_is_handed_on() {
        let Beside::Writers(writes) = tails(Some(70), &[100..200, 300..310]).followed(PLACE, &[]).beside else {
            panic!("it follows")
        };
        assert_eq!(writes[..], [100..200, 300..310]);
        assert!(matches!(Tails::default().followed(PLACE, &[]).beside, Beside::Unknown));
    }

    #[test]
    fn a_tail_is_taken_once() {
        let tails = tails(Some(70), &[]);
        assert!(!tails.none() && tails.take(8, 3).is_none());
        assert!(tails.take(7, 3).is_some() && tails.none() && tails.take(7, 3).is_none());
    }

    /// Streams of one capture have one number of it. (A link, an end or any kernel on the one took the end of the chain from the other.)
    #[test]
    fn each_stream_of_a_capture_has_a_tail_of_its_own() {
        let tails = tails(Some(70), &[]);
        tails.put(Tail { stream: 4, ..tail(Some(80), &[]) });
        assert!(early(&tails, PLACE, 0, 8), "the link of another stream came between");
        assert!(early(&tails, CapturePlace { after: Some(80), ..PLACE }, 0, 8));
        assert!(tails.take(7, 5).is_none(), "of a stream without links");
        tails.put(Tail { queue: 2, ..tail(Some(71), &[]) });
        assert!(!early(&tails, PLACE, 0, 8), "a queue of the same stream has put its link behind");
        assert_eq!(tails.take(7, 4).map(|tail| tail.node), Some(Some(80)));
        assert_eq!(tails.take(7, 3).map(|tail| tail.node), Some(Some(71)));
        assert!(tails.none());
    }
}
