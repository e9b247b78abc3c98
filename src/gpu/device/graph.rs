//! [`CapturedGraph`]: captured work that owns what it uses.

use std::cell::Cell;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL};
use cudarc::driver::{CudaEvent, CudaGraph, DriverError};

use super::memory::raw::{CaptureState, Graph, capture_state, is_capturing};
use super::memory::{Memory, driver, with_kept_error_aside};
use super::stream::{Capture, Queue};
use crate::error::{Error, Result};

/// What a capture has used.
pub(crate) struct Log {
    uses: Vec<(Arc<Memory>, bool)>,
    /// Borrowed memory is let in, by a caller who keeps it alive.
    borrows: bool,
    /// Recorded where the capture began.
    begin: Option<CudaEvent>,
}

/// Work captured by `Handle::capture`, to be launched again and again by `Handle::launch`.
///
/// It owns a share of all memory of this crate that the work uses: matrices, buffers, scratch and workspace live as long as the
/// graph, whatever becomes of the values that they were captured from. A launch is ordered against other streams' uses of
/// them, as any call is.
pub struct CapturedGraph {
    graph: Graph,
    queue: u64,
    uses: Vec<(Arc<Memory>, bool)>,
    /// Workspace and scratch: never touched by other queues.
    _private: Vec<Arc<Memory>>,
}

thread_local! {
    /// Captures of this crate that are under way on this thread.
    static CAPTURES: Cell<usize> = const { Cell::new(0) };
}

/// True while this thread captures: frees and other calls that a capture does not bear wait until it has ended.
pub(crate) fn capturing_here() -> bool {
    CAPTURES.get() > 0
}

/// Ends the capture and the log also where the captured closure panics.
struct Capturing<'q>(&'q Queue);

impl Drop for Capturing<'_> {
    fn drop(&mut self) {
        CAPTURES.set(CAPTURES.get() - 1);
        // What is left of an unwinding closure.
        let Some(log) = self.0.log.replace(None) else { return };
        let _turn = self.0.turn();
        with_kept_error_aside(self.0.context(), || {
            if !self.0.is_capture_of(&log) {
                self.0.pin(&log);
            }
            self.0.context().record_err(self.0.end().map_or(Ok(()), |ended| ended.map(drop)));
        });
    }
}

impl Queue {
    /// In a capture: the work uses this memory.
    pub(super) fn note(&self, memory: &Arc<Memory>, writes: bool) {
        let mut log = self.log.borrow_mut();
        let Some(log) = log.as_mut() else { return };
        match log.uses.iter_mut().find(|(known, _)| Arc::ptr_eq(known, memory)) {
            Some((_, written)) => *written |= writes,
            None => log.uses.push((memory.clone(), writes)),
        }
    }

    /// True if nobody can have ended the capture that this log was begun with, and have its graph.
    fn is_capture_of(&self, log: &Log) -> bool {
        match capture_state(&self.stream) {
            // Which capture is broken the driver does not say: it may be one that followed ours.
            CaptureState::None | CaptureState::Broken => false,
            // Within its own capture a wait for an event changes nothing; the driver refuses that of another one. Without the
            // event nothing was enqueued.
            CaptureState::Active => log.begin.as_ref().is_none_or(|begin| self.stream.wait(begin).is_ok()),
        }
    }

    /// Ends what is captured on the stream; `None` where nothing is. An error that cudarc has kept may take the place of the first
    /// attempts.
    fn end(&self) -> Option<std::result::Result<Option<CudaGraph>, DriverError>> {
        let mut ended = None;
        for _ in 0..3 {
            if is_capturing(&self.stream) {
                ended = Some(self.stream.end_capture(CUgraphInstantiate_flags(0)));
            }
        }
        ended
    }

    /// Somebody holds a graph of this work, and does not own what it uses.
    fn pin(&self, log: &Log) {
        let used = log.uses.iter().map(|(memory, _)| memory);
        used.chain(&self.private()).for_each(|memory| memory.pin());
    }

    /// True if the capture under way lets borrowed memory in.
    pub(super) fn may_borrow(&self) -> bool {
        self.log.borrow().as_ref().is_some_and(|log| log.borrows)
    }

    /// Captures what `enqueue` puts on the stream. Waits for the stream first. `borrows`: the caller keeps borrowed memory alive
    /// as long as the graph is launched.
    pub(crate) fn capture(&self, borrows: bool, enqueue: impl FnOnce() -> Result<()>) -> Result<CapturedGraph> {
        if is_capturing(&self.stream) || self.log.borrow().is_some() {
            return Err(Error::unsupported(
                "a capture inside a capture",
                "the stream is being captured into a graph already",
                "end that capture first, or put the work into it",
            ));
        }
        self.stream.synchronize().map_err(|e| driver("waiting for the stream", e))?;
        {
            // Not while another thread enqueues, frees or adds a stream.
            let _turn = self.turn();
            let begun = self.stream.begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
            begun.map_err(|e| driver("beginning a capture", e))?;
        }
        CAPTURES.set(CAPTURES.get() + 1);
        let begin = self.stream.record_event(None);
        let failed = begin.as_ref().err().copied();
        self.log.replace(Some(Log { uses: Vec::new(), borrows, begin: begin.ok() }));
        let capturing = Capturing(self);
        let enqueued = match failed {
            None => enqueue(),
            Some(error) => Err(driver("recording an event", error)),
        };
        let (kept, settled, graph, log) = {
            // Not in the middle of a call of another handle on this stream.
            let _turn = self.turn();
            let settled = self.settle();
            // What cudarc could tell nobody yet, its next call would return in the place of its work.
            let kept = self.context().check_err();
            let log = self.log.replace(None).filter(|log| {
                let ours = self.is_capture_of(log);
                if !ours {
                    self.pin(log);
                }
                ours
            });
            (kept, settled, self.end(), log)
        };
        drop(capturing);
        Memory::free_deferred(self.context());
        match (enqueued, &graph) {
            // Another thread broke the capture before cuBLASLt launched, which cannot say so.
            (Err(said @ Error::Cublas { .. }), Some(Err(e))) => {
                let broken = driver("ending a capture", *e);
                return Err(Error::Driver {
                    call: "capturing".into(),
                    reason: format!("{broken}; before that, {said}"),
                });
            }
            (enqueued, _) => enqueued?,
        }
        settled?;
        kept.map_err(|e| driver("capturing", e))?;
        // Also of one that another thread broke, whose log is none of ours any more.
        if let Some(Err(e)) = graph {
            return Err(driver("ending a capture", e));
        }
        let (Some(graph), Some(log)) = (graph, log) else {
            return Err(Error::unsupported(
                "work that ends the capture it is in",
                "whoever has its graph does not own what it uses, which is therefore never freed",
                "leave the end to Handle::capture",
            ));
        };
        let Some(graph) = graph.map_err(|e| driver("ending a capture", e))? else {
            return Err(Error::Driver { call: "ending a capture".into(), reason: "nothing was captured".into() });
        };
        Ok(CapturedGraph { graph: Graph::new(graph), queue: self.serial, uses: log.uses, _private: self.private() })
    }

    /// Enqueues a graph of this queue once.
    pub(crate) fn launch(&self, graph: &CapturedGraph) -> Result<()> {
        self.launch_with(graph, |launch| launch())
    }

    /// The same with something of the caller's directly before and after the graph: what orders its memory lies around both.
    pub(crate) fn launch_with<T>(
        &self,
        graph: &CapturedGraph,
        around: impl FnOnce(&dyn Fn() -> Result<()>) -> Result<T>,
    ) -> Result<T> {
        if graph.queue != self.serial {
            return Err(Error::unsupported(
                "launching a graph with another handle than the one that captured it",
                "its scratch memory is ordered by what that handle enqueues",
                "launch it with the handle that captured it",
            ));
        }
        let order = self.order();
        if order.capture != Capture::No {
            return Err(Error::unsupported(
                "launching a graph while the stream is captured into another",
                "the launch would become a part of that graph, which does not own what this one uses",
                "launch it after the capture has ended",
            ));
        }
        // Waits, on the GPU, for other streams' uses of what the work uses.
        graph.uses.iter().try_for_each(|(memory, writes)| memory.begin(&order, *writes))?;
        self.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
        around(&|| graph.graph.launch())
    }
}
