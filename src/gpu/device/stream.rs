//! [`Queue`]: the stream that a handle's work goes to, and the order between it and other streams.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream};

use super::graph::Log;
use super::memory::raw::{UncountedStream, is_capturing};
use super::memory::{Memory, driver};
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
    /// What the capture under way has used so far; `None` outside the captures of this crate.
    pub(super) log: RefCell<Option<Log>>,
    /// Memory that only this queue uses, and that any captured work may use: workspace, scratch.
    private: RefCell<Vec<Weak<Memory>>>,
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
#[derive(Clone, Copy)]
pub(crate) struct Order<'q> {
    pub(crate) queue: &'q Queue,
    pub(crate) capture: Capture,
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
        let idle = UncountedStream::new(stream.context())?;
        let (tracking, id) = Tracking::register(&stream)?;
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let (log, private) = (RefCell::new(None), RefCell::new(Vec::new()));
        Ok(Self { stream, id, serial, idle, tracking, log, private })
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Asks, once for each call, whether the stream is captured. Elsewhere it also frees what waited for a capture to end.
    pub(crate) fn order(&self) -> Order<'_> {
        let capture = match (is_capturing(&self.stream), self.log.borrow().is_some()) {
            (false, _) => Capture::No,
            (true, true) => Capture::Ours,
            (true, false) => Capture::Foreign,
        };
        match capture {
            Capture::No => Memory::free_deferred(),
            Capture::Ours => {}
            // Nobody tells when such a graph is gone.
            Capture::Foreign => self.private().iter().for_each(|memory| memory.pin()),
        }
        Order { queue: self, capture }
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
    /// The stream on which cudarc's events are waited for and recorded.
    pub(super) fn events(&self) -> &'q CudaStream {
        match self.capture {
            Capture::No => &self.queue.stream,
            Capture::Ours | Capture::Foreign => self.queue.idle.stream(),
        }
    }
}

/// The streams of one context that queues were made for.
///
/// While there is one, its own order is all the order that this crate's memory needs, and no event is ever recorded. From the
/// second on every use of memory leaves an event: the flag is set before the first stream is waited for, and each use looks at
/// it after it was enqueued, so a use either is seen by that wait or leaves its event.
pub(crate) struct Tracking {
    several: AtomicBool,
    /// The first stream and its number, for ever: a later one may have to wait for it.
    first: Mutex<Option<(Arc<CudaStream>, u64)>>,
}

impl Tracking {
    /// More than one stream has been seen.
    pub(crate) fn several(&self) -> bool {
        self.several.load(Ordering::SeqCst)
    }

    /// Held while a capture begins, so that no second stream appears between the question and the wait.
    pub(super) fn hold(&self) -> MutexGuard<'_, Option<(Arc<CudaStream>, u64)>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tracking of this stream's context, and the stream's number.
    fn register(stream: &Arc<CudaStream>) -> Result<(Arc<Self>, u64)> {
        static CONTEXTS: Mutex<Option<HashMap<usize, Arc<Tracking>>>> = Mutex::new(None);
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let tracking = {
            let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
            let tracking = || Arc::new(Tracking { several: AtomicBool::new(false), first: Mutex::new(None) });
            let key = stream.context().cu_ctx() as usize;
            contexts.get_or_insert_default().entry(key).or_insert_with(tracking).clone()
        };
        let start = Instant::now();
        loop {
            let mut first = tracking.hold();
            let (known, id) = match &*first {
                None => {
                    let id = NEXT.fetch_add(1, Ordering::Relaxed);
                    *first = Some((stream.clone(), id));
                    drop(first);
                    return Ok((tracking, id));
                }
                // The first stream is alive, so an equal address is the same stream.
                Some((known, id)) if known.cu_stream() == stream.cu_stream() => {
                    let id = *id;
                    drop(first);
                    return Ok((tracking, id));
                }
                Some((known, _)) => (known, NEXT.fetch_add(1, Ordering::Relaxed)),
            };
            if tracking.several() {
                drop(first);
                return Ok((tracking, id));
            }
            if !is_capturing(known) {
                tracking.several.store(true, Ordering::SeqCst);
                known.synchronize().map_err(|e| driver("waiting for the first stream of the context", e))?;
                drop(first);
                return Ok((tracking, id));
            }
            drop(first);
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
