//! [`DeviceBuffer`]: device memory that this crate owns, with one event for each stream that uses it.

use std::any::Any;
use std::mem;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtrMut};

use super::raw::{beside_captures, is_capturing, is_held_by_a_capture};
use super::{
    DeviceBytes, DeviceBytesMut, Guard, Source, SourceMut, Span, check_context, driver, with_kept_error_aside,
};
use crate::error::{Error, Result};
use crate::gpu::device::graph::capturing_here;
use crate::gpu::device::stream::{Capture, First, Order, Queue, Tracking};

/// One allocation, or a part of one: bytes on the device that several handles and captured graphs may use.
///
/// Uses on different streams are ordered by events of its own, one for each stream. Dropping it frees the memory in the order
/// of its stream, after every use; inside a graph capture the free waits until the capture has ended. Captured graphs share
/// the ownership of what they use. Made by `Handle::alloc`, [`DeviceBuffer::from_slice`] and [`DeviceBuffer::from_raw`].
pub struct DeviceBuffer {
    memory: Arc<Memory>,
    offset: usize,
    bytes: usize,
}

/// The allocation behind a [`DeviceBuffer`].
pub(crate) struct Memory {
    address: u64,
    bytes: usize,
    /// The stream in whose order the memory was allocated and is freed.
    home: Arc<CudaStream>,
    /// Frees the memory when it is dropped.
    owner: Option<Box<dyn Any + Send + Sync>>,
    uses: Mutex<Uses>,
    /// Held from the first use that left no event.
    in_order_of: OnceLock<Arc<First>>,
    /// Work of another stream than its home has used it, and left its event.
    used_elsewhere: AtomicBool,
    /// Used by a captured graph of which nobody tells when it is gone: never freed.
    pinned: AtomicBool,
    /// Some captured graph uses it, or even writes it: then what it holds may change at any launch.
    used_by_graphs: AtomicBool,
    written_by_graphs: AtomicBool,
    tracking: Arc<Tracking>,
}

/// The uses that a later one may have to wait for.
#[derive(Default)]
struct Uses {
    write: Option<Use>,
    /// Since that write, the last of each queue.
    reads: Vec<Use>,
    /// Events to be used again.
    spare: Vec<CudaEvent>,
}

struct Use {
    queue: u64,
    event: CudaEvent,
}

/// The number of no queue: what happened before the memory came here.
const ELSEWHERE: u64 = 0;

/// One use between its address being taken and its work being enqueued.
pub(crate) struct Access<'a> {
    memory: &'a Memory,
    queue: &'a Queue,
    writes: bool,
}

impl Access<'_> {
    /// Nobody will be able to wait for this use: the memory stays.
    pub(super) fn pin(&self) {
        self.memory.pin();
    }

    /// Whether the event of this use stands for such a one of the same call, too.
    fn covers(&self, memory: &Memory, writes: bool) -> bool {
        std::ptr::eq(self.memory, memory) && (self.writes || !writes)
    }
}

impl Drop for Access<'_> {
    fn drop(&mut self) {
        self.memory.finish(self.queue, self.writes);
    }
}

impl Memory {
    /// `bytes` zero bytes, at least one, allocated in the order of the queue.
    pub(crate) fn zeros(queue: &Queue, bytes: usize) -> Result<Arc<Self>> {
        let _turn = queue.turn();
        if is_capturing(&queue.stream) {
            return Err(Error::unsupported(
                format!("allocating {bytes} bytes while the stream is captured into a graph"),
                "the memory would be the graph's, and exist while it runs",
                "allocate, and make handles, before the capture begins",
            ));
        }
        // The driver has no allocation of zero bytes.
        let slice = queue.stream.alloc_zeros::<u8>(bytes.max(1));
        let mut slice = slice.map_err(|e| driver(&format!("allocating {bytes} bytes"), e))?;
        let address = slice.device_ptr_mut(&queue.stream).0;
        let memory = Self::new(address, bytes, queue.stream.clone(), Some(Box::new(slice)));
        memory.finish(queue, true);
        Ok(Arc::new(memory))
    }

    fn new(address: u64, bytes: usize, home: Arc<CudaStream>, owner: Option<Box<dyn Any + Send + Sync>>) -> Self {
        let tracking = Tracking::of(home.context());
        Self {
            address,
            bytes,
            home,
            owner,
            uses: Mutex::default(),
            in_order_of: OnceLock::new(),
            used_elsewhere: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            used_by_graphs: AtomicBool::new(false),
            written_by_graphs: AtomicBool::new(false),
            tracking,
        }
    }

    /// The whole of it for work of the one queue that ever uses it.
    pub(crate) fn span(&self) -> Span<'_> {
        Span::unguarded(self.address, self.bytes)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// From now on it is never freed.
    pub(crate) fn pin(&self) {
        self.pinned.store(true, Ordering::Relaxed);
    }

    /// Whether uses of this queue wait for events and leave some: another stream may use the memory, or has, or its free is in
    /// another stream's order.
    fn tracked(&self, queue: &Queue) -> bool {
        queue.tracking.several()
            || self.home.cu_stream() != queue.stream.cu_stream()
            || self.used_elsewhere.load(Ordering::Acquire)
    }

    /// Notes a use that leaves no event: the order of its stream is all that a later one can rely on.
    fn rely_on_order(&self, queue: &Queue) {
        if let Some(first) = &queue.first {
            self.in_order_of.get_or_init(|| first.clone());
        }
    }

    /// Refuses a queue on another GPU.
    fn check_context(&self, queue: &Queue) -> Result<()> {
        check_context(("a", "buffer"), self.home.context(), queue.context())
    }

    /// Waits, on the GPU, for what a use must come after; the order holds the use until its work is enqueued. In a capture nothing
    /// is waited for: the launch does that.
    pub(crate) fn begin<'q>(self: &'q Arc<Self>, order: &Order<'q>, writes: bool) -> Result<()> {
        let queue = order.queue;
        self.check_context(queue)?;
        if order.capture != Capture::No {
            self.used_by_graphs.store(true, Ordering::Release);
            self.written_by_graphs.fetch_or(writes, Ordering::AcqRel);
        }
        match order.capture {
            // The order has the turn, so that this stays as it is until the work is enqueued.
            Capture::No if self.tracked(queue) => {
                let begun = |guard: &Guard<'_>| matches!(guard, Guard::Buffer(access) if access.covers(self, writes));
                if order.holds(begun) {
                    return Ok(());
                }
                let uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
                let reads = uses.reads.iter().filter(|_| writes);
                for earlier in uses.write.iter().chain(reads).filter(|u| u.queue != queue.id) {
                    if earlier.queue == ELSEWHERE && self.home.cu_stream() == queue.stream.cu_stream() {
                        continue;
                    }
                    queue.stream.wait(&earlier.event).map_err(|e| driver("waiting for another stream", e))?;
                }
                order.hold(Guard::Buffer(Access { memory: self, queue, writes }));
            }
            Capture::No => self.rely_on_order(queue),
            Capture::Ours => queue.note(self, writes),
            Capture::Foreign => self.pin(),
        }
        Ok(())
    }

    /// Leaves the event of a use that is enqueued now.
    fn finish(&self, queue: &Queue, writes: bool) {
        if !self.tracked(queue) {
            return self.rely_on_order(queue);
        }
        if self.home.cu_stream() != queue.stream.cu_stream() {
            self.used_elsewhere.store(true, Ordering::Release);
        }
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = uses.leave(queue, writes) {
            // Whoever comes next could not wait for this use, so the memory stays.
            self.pin();
            queue.context().record_err(Err::<(), _>(error));
        }
    }

    /// Frees memory of this context that was dropped while its stream was captured, where that capture has ended. That of other
    /// contexts is left to their queues, whose turn it takes.
    pub(crate) fn free_deferred(context: &CudaContext) {
        if WAITING.load(Ordering::Acquire) == 0 || capturing_here() {
            return;
        }
        let graves: Vec<_> = {
            let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
            let here = |grave: &mut Grave| grave.home.context().cu_ctx() == context.cu_ctx();
            let graves_here = graves.extract_if(.., here).collect();
            WAITING.store(graves.len(), Ordering::Release);
            graves_here
        };
        // Those whose stream is still captured wait again.
        graves.into_iter().for_each(Grave::bury);
    }
}

impl Uses {
    fn leave(&mut self, queue: &Queue, writes: bool) -> std::result::Result<(), cudarc::driver::DriverError> {
        let mut left = match writes {
            // A write has waited for all before it, and its turn lets none in between, so whoever waits for it waits for them.
            true => {
                self.spare.extend(self.reads.drain(..).map(|read| read.event));
                self.write.take()
            }
            false => match self.reads.iter().position(|read| read.queue == queue.id) {
                Some(place) => Some(self.reads.swap_remove(place)),
                None => None,
            },
        };
        let event = match left.take().map(|left| left.event).or_else(|| self.spare.pop()) {
            Some(event) => event,
            None => queue.context().new_event(None)?,
        };
        event.record(&queue.stream)?;
        let left = Use { queue: queue.id, event };
        match writes {
            true => self.write = Some(left),
            false => self.reads.push(left),
        }
        Ok(())
    }
}

/// Memory on its way back to the driver.
struct Grave {
    home: Arc<CudaStream>,
    owner: Box<dyn Any + Send + Sync>,
    uses: Vec<Use>,
}

/// Memory dropped while its stream was captured, and how much of it there is.
static GRAVES: Mutex<Vec<Grave>> = Mutex::new(Vec::new());
static WAITING: AtomicUsize = AtomicUsize::new(0);

impl Grave {
    /// Gives the memory back in the order of its stream, after every use; or, while that stream is captured, later.
    fn bury(self) {
        let context = self.home.context().clone();
        let tracking = Tracking::of(&context);
        // No capture begins during a turn.
        let _turn = tracking.turn();
        with_kept_error_aside(&context, || {
            // The default stream is that of the bound context, and cudarc's free binds none.
            context.record_err(context.bind_to_thread());
            self.bury_in_turn();
        });
    }

    fn bury_in_turn(self) {
        if capturing_here() || is_held_by_a_capture(&self.home) {
            // A free inside a capture would become a part of the graph, or break it.
            let mut graves = GRAVES.lock().unwrap_or_else(PoisonError::into_inner);
            graves.push(self);
            return WAITING.store(graves.len(), Ordering::Release);
        }
        let Self { home, owner, uses } = self;
        for left in &uses {
            if let Err(error) = home.wait(&left.event) {
                tracing::error!(%error, "memory is not given back: its uses cannot be waited for");
                return mem::forget(owner);
            }
        }
        // Within the turn: the free goes to the stream.
        beside_captures(|| drop(owner));
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        if *self.pinned.get_mut() {
            tracing::debug!(bytes = self.bytes, "memory stays with a graph that was captured elsewhere");
            return mem::forget(owner);
        }
        let uses = mem::take(self.uses.get_mut().unwrap_or_else(PoisonError::into_inner));
        let uses = uses.write.into_iter().chain(uses.reads).collect();
        Grave { home: self.home.clone(), owner, uses }.bury();
    }
}

impl DeviceBuffer {
    /// `bytes` zero bytes.
    pub(crate) fn zeros(queue: &Queue, bytes: usize) -> Result<Self> {
        Ok(Self { memory: Memory::zeros(queue, bytes)?, offset: 0, bytes })
    }

    /// Parts of one allocation, each at a multiple of 256 bytes: they share their events.
    pub(crate) fn zeros_together<const N: usize>(queue: &Queue, lengths: [usize; N]) -> Result<[Self; N]> {
        let mut end = 0usize;
        let places = lengths.map(|bytes| {
            let offset = end.next_multiple_of(256);
            end = offset + bytes;
            (offset, bytes)
        });
        let memory = Memory::zeros(queue, end)?;
        Ok(places.map(|(offset, bytes)| Self { memory: memory.clone(), offset, bytes }))
    }

    /// Takes over a cudarc slice: no copy, nothing is waited for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] while the slice's stream is captured into a graph; [`Error::Driver`].
    pub fn from_slice<T: Send + Sync + 'static>(mut slice: CudaSlice<T>) -> Result<Self> {
        let (home, bytes) = (slice.stream().clone(), slice.num_bytes());
        let tracking = Tracking::of(home.context());
        let _turn = tracking.turn();
        if is_capturing(&home) {
            // Freeing it now would become a part of the graph.
            mem::forget(slice);
            return Err(captured_home());
        }
        // On the stream of its own it waits for its last reader and writer there: the event that follows stands for both.
        let address = slice.device_ptr_mut(&home).0;
        Self::taken_over(&home, address, bytes, Box::new(slice))
    }

    /// Memory of others, ordered behind what they have enqueued on this stream.
    pub(super) fn taken_over(
        home: &Arc<CudaStream>,
        address: u64,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        let memory = Memory::new(address, bytes, home.clone(), Some(owner));
        let write = {
            let _turn = memory.tracking.turn();
            if is_capturing(home) {
                memory.pin();
                return Err(captured_home());
            }
            let event = home.record_event(None).map_err(|e| driver("recording an event", e))?;
            Some(Use { queue: ELSEWHERE, event })
        };
        *memory.uses.lock().unwrap_or_else(PoisonError::into_inner) = Uses { write, ..Uses::default() };
        Ok(Self { memory: Arc::new(memory), offset: 0, bytes })
    }

    /// Whether a captured graph uses it.
    pub(crate) fn used_by_graphs(&self) -> bool {
        self.memory.used_by_graphs.load(Ordering::Acquire)
    }

    /// Whether a captured graph writes it: then what it holds may change at any launch.
    pub(crate) fn written_by_graphs(&self) -> bool {
        self.memory.written_by_graphs.load(Ordering::Acquire)
    }

    /// Where it begins on the device.
    pub(crate) fn address(&self) -> u64 {
        self.memory.address + self.offset as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its bytes for reading.
    pub fn view(&self) -> DeviceBytes<'_> {
        DeviceBytes { source: Source::Buffer(self), bytes: self.bytes }
    }

    /// Its bytes for writing.
    pub fn view_mut(&mut self) -> DeviceBytesMut<'_> {
        self.view_written()
    }

    /// Splits off the bytes of a range as a buffer that shares the allocation and its events.
    ///
    /// # Errors
    /// [`Error::Shape`] if the range does not lie in the buffer.
    pub(crate) fn part(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.bytes {
            return Err(Error::shape(
                "part of a buffer",
                format!("{} to {}", range.start, range.end),
                format!("must lie in its {} bytes", self.bytes),
                "give offsets in bytes",
            ));
        }
        Ok(Self { memory: self.memory.clone(), offset: self.offset + range.start, bytes: range.len() })
    }

    /// Bytes for writing through a shared reference: whoever calls holds a lock, or is the only one to know the buffer.
    pub(crate) fn view_written(&self) -> DeviceBytesMut<'_> {
        DeviceBytesMut { source: SourceMut::Buffer(self), bytes: self.bytes }
    }

    /// Refuses a queue on another GPU, as each use does.
    pub(crate) fn check_context(&self, queue: &Queue) -> Result<()> {
        self.memory.check_context(queue)
    }

    pub(crate) fn read<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<Span<'s>> {
        self.memory.begin(order, false)?;
        Ok(Span::unguarded(self.address(), self.bytes))
    }

    pub(crate) fn write<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<Span<'s>> {
        self.memory.begin(order, true)?;
        Ok(Span::unguarded(self.address(), self.bytes))
    }
}

fn captured_home() -> Error {
    Error::unsupported(
        "taking over device memory whose stream is captured into a graph",
        "what happened to it before cannot be told from what the graph will do, and so it is never freed",
        "do it before the capture begins",
    )
}

impl<'a> From<&'a DeviceBuffer> for DeviceBytes<'a> {
    fn from(buffer: &'a DeviceBuffer) -> Self {
        buffer.view()
    }
}

impl<'a> From<&'a mut DeviceBuffer> for DeviceBytesMut<'a> {
    fn from(buffer: &'a mut DeviceBuffer) -> Self {
        buffer.view_mut()
    }
}
