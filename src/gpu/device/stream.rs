//! [`Queue`]: the stream that a handle's work goes to, and the order between it and other streams.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use smallvec::SmallVec;

use super::chain::Tails;
use super::graph::Log;
use super::memory::raw::{UncountedStream, is_capturing};
use super::memory::{Guard, Memory, driver};
use crate::error::{Error, Result};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// How long a new handle waits for captures on the first stream of its context to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The stream that work goes to. `Send`, not `Sync`: one thread enqueues at a time.
pub(crate) struct Queue {
    pub(crate) stream: Arc<CudaStream>,
    /// Tells streams apart, also where the driver gives a dead stream's address to a new one.
    pub(crate) id: u64,
    /// Tells queues apart, also those of one stream: each has a workspace of its own.
    pub(super) serial: u64,
    /// Takes cudarc's events while `stream` is captured: waiting there for events from outside would break the capture.
    idle: UncountedStream,
    pub(crate) tracking: Arc<Tracking>,
    /// Of a queue on the first stream of its context.
    pub(super) first: Option<Arc<First>>,
    /// What the capture under way has used so far; `None` outside the captures of this crate.
    pub(super) log: RefCell<Option<Log>>,
    /// Memory that only this queue uses, and that any captured work may use: workspace, scratch.
    private: RefCell<Vec<Weak<Memory>>>,
    /// Scopes of [`Queue::enter_chain`] that are open.
    pub(super) chains: Cell<usize>,
}

fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Who captures a stream at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capture {
    /// Nobody: work runs.
    No,
    /// `Handle::capture`, which keeps a log of what the work uses.
    Ours,
    /// Somebody else, through cudarc or the driver.
    Foreign,
}

/// What one call asks once: the queue, and whether it is captured. It holds until the call returns: a capture begins and ends
/// by calls on the thread that enqueues.
///
/// It holds what the uses of memory that begin in it leave behind when their work is enqueued: every [`Span`](super::memory::Span)
/// borrows it, so that it is dropped after the launches. It has the context's turn as long.
pub(crate) struct Order<'q> {
    pub(crate) queue: &'q Queue,
    pub(crate) capture: Capture,
    /// Before the turn: they leave events.
    guards: RefCell<SmallVec<[Guard<'q>; 8]>>,
    /// An operand has drawn the stream into a capture of others: nothing may be recorded on it.
    drawn_in: Cell<bool>,
    _turn: Turn<'q>,
}

impl Drop for Order<'_> {
    fn drop(&mut self) {
        if self.drawn_in.get() {
            self.guards.take().into_iter().for_each(Guard::abandon);
        }
    }
}

impl Queue {
    /// A queue for this stream, known to the other queues of its context.
    pub(crate) fn new(stream: Arc<CudaStream>) -> Result<Self> {
        if stream.cu_stream() as usize == PER_THREAD {
            return Err(Error::unsupported(
                "a handle on CU_STREAM_PER_THREAD",
                "it is another queue in each thread, and a handle that moves between threads would race with itself",
                "use a stream of its own: CudaContext::new_stream, in candle Device::new_cuda_with_stream",
            ));
        }
        let idle = UncountedStream::beside(&stream)?;
        let (tracking, id, first) = Tracking::register(&stream)?;
        let serial = next_serial();
        let (log, private) = (RefCell::new(None), RefCell::new(Vec::new()));
        Ok(Self { stream, id, serial, idle, tracking, first, log, private, chains: Cell::new(0) })
    }

    /// A stream of its own for parts of this queue's work ([`Sides`](super::fork::Sides)), which others do not see: uses of memory are this queue's, so that
    /// no [order](Queue::order) is asked of it, and a context with one stream of its caller's stays one.
    pub(super) fn beside(&self) -> Result<Self> {
        let idle = UncountedStream::beside(&self.stream)?;
        let (stream, tracking, serial) = (idle.stream().clone(), self.tracking.clone(), next_serial());
        let (log, private, chains) = (RefCell::new(None), RefCell::default(), Cell::new(0));
        Ok(Self { stream, id: self.id, serial, idle, tracking, first: None, log, private, chains })
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Asks, once for each call, whether the stream is captured. Elsewhere it also frees what waited for a capture to end.
    ///
    /// The turn is the caller's as long as it holds this: take no lock meanwhile that others hold when they ask.
    pub(crate) fn order(&self) -> Order<'_> {
        let turn = self.tracking.turn();
        let capture = match (is_capturing(&self.stream), self.log.borrow().is_some()) {
            (false, _) => Capture::No,
            (true, true) => Capture::Ours,
            (true, false) => Capture::Foreign,
        };
        match capture {
            Capture::No => Memory::free_deferred(self.context()),
            Capture::Ours => {}
            // Nobody tells when such a graph is gone.
            Capture::Foreign => self.private().iter().for_each(|memory| memory.pin()),
        }
        Order { queue: self, capture, guards: RefCell::default(), drawn_in: Cell::new(false), _turn: turn }
    }

    /// Several calls in one turn: no work of other threads comes between them.
    pub(crate) fn turn(&self) -> Turn<'_> {
        self.tracking.turn()
    }

    /// Says that any work of this queue may use this memory as long as it lives: captured graphs keep it alive.
    pub(crate) fn keep(&self, memory: &Arc<Memory>) {
        let mut private = self.private.borrow_mut();
        private.retain(|known| known.strong_count() > 0);
        private.push(Arc::downgrade(memory));
    }

    /// What any work of this queue may use.
    pub(super) fn private(&self) -> Vec<Arc<Memory>> {
        self.private.borrow().iter().filter_map(Weak::upgrade).collect()
    }
}

impl<'q> Order<'q> {
    /// Keeps a use until the work is enqueued.
    pub(super) fn hold(&self, guard: Guard<'q>) {
        self.guards.borrow_mut().push(guard);
    }

    /// Says that an operand has drawn the stream into a capture.
    pub(super) fn note_drawn_in(&self) {
        self.drawn_in.set(true);
    }

    /// True if some use that has begun satisfies this.
    pub(super) fn holds(&self, is_it: impl Fn(&Guard<'q>) -> bool) -> bool {
        self.guards.borrow().iter().any(is_it)
    }

    /// The stream on which cudarc's events are waited for and recorded.
    pub(super) fn events(&self) -> &'q CudaStream {
        match self.capture {
            Capture::No => &self.queue.stream,
            Capture::Ours | Capture::Foreign => self.queue.idle.stream(),
        }
    }
}

/// The streams of one context that queues were made for, and whose turn it is to enqueue.
///
/// While there is one stream, its own order is all the order that this crate's memory needs, and no event is ever recorded. From
/// the second on every use of memory leaves an event. A call holds its turn ([`Order`]) from the question what its uses must wait
/// for until their events are recorded, so that uses by several threads are one after the other; captures begin, memory is freed
/// and streams are added between turns.
pub(crate) struct Tracking {
    several: AtomicBool,
    turn: ReentrantMutex<()>,
    /// The first stream, as long as anybody may rely on its order.
    first: Mutex<Weak<First>>,
    /// Of chains of all its streams.
    pub(super) tails: Tails,
}

/// The first stream of a context. Its queues hold it, and all memory that was used in its order without an event: a stream that
/// comes later is a second one until nothing is left that it would have to wait for.
pub(crate) struct First {
    stream: Arc<CudaStream>,
    id: u64,
}

/// Held by a call while it enqueues. The thread that has it may take it again.
pub(crate) type Turn<'a> = ReentrantMutexGuard<'a, ()>;

impl Tracking {
    /// More than one stream has been seen. It changes between turns.
    pub(crate) fn several(&self) -> bool {
        self.several.load(Ordering::Acquire)
    }

    /// Waits for the other threads of the context to have enqueued what they are at.
    pub(crate) fn turn(&self) -> Turn<'_> {
        self.turn.lock()
    }

    /// The tracking of a context.
    pub(crate) fn of(context: &CudaContext) -> Arc<Self> {
        static CONTEXTS: Mutex<Option<HashMap<usize, Arc<Tracking>>>> = Mutex::new(None);
        let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let (several, turn) = (AtomicBool::new(false), ReentrantMutex::new(()));
            Arc::new(Tracking { several, turn, first: Mutex::new(Weak::new()), tails: Tails::default() })
        };
        contexts.get_or_insert_default().entry(context.cu_ctx() as usize).or_insert_with(new).clone()
    }

    /// The tracking of this stream's context, the stream's number, and the first stream if this is it.
    fn register(stream: &Arc<CudaStream>) -> Result<(Arc<Self>, u64, Option<Arc<First>>)> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let tracking = Self::of(stream.context());
        let start = Instant::now();
        loop {
            {
                let _turn = tracking.turn();
                let mut first = tracking.first.lock().unwrap_or_else(PoisonError::into_inner);
                let ready = match first.upgrade() {
                    None => {
                        let id = NEXT.fetch_add(1, Ordering::Relaxed);
                        let new = Arc::new(First { stream: stream.clone(), id });
                        *first = Arc::downgrade(&new);
                        Some((id, Some(new)))
                    }
                    // The first stream is alive, so an equal address is the same stream, if not the same `Arc`.
                    Some(known) if known.stream.cu_stream() == stream.cu_stream() => Some((known.id, Some(known))),
                    Some(known) if tracking.several() || !is_capturing(&known.stream) => {
                        if !tracking.several() {
                            let waited = known.stream.synchronize();
                            waited.map_err(|e| driver("waiting for the first stream of the context", e))?;
                            tracking.several.store(true, Ordering::Release);
                        }
                        Some((NEXT.fetch_add(1, Ordering::Relaxed), None))
                    }
                    Some(_) => None,
                };
                if let Some((id, known)) = ready {
                    drop(first);
                    return Ok((tracking.clone(), id, known));
                }
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::unsupported(
                    "a second stream's handle while the first stream is captured into a graph",
                    format!("the capture did not end within {} seconds", PATIENCE.as_secs()),
                    "make all handles before a capture begins",
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
