//! Device memory: borrowed ([`DeviceBytes`]), owned ([`DeviceBuffer`]), and how both become an address on a stream.
//!
//! A borrow comes from a cudarc slice or view, from a [`DeviceBuffer`], or from a bare address (`unsafe`, for other runtimes).
//! Launching code turns it into a [`Span`] of an [`Order`], which holds a guard of each use until the work is enqueued. Three
//! rules keep memory whole:
//!
//! - A [`DeviceBuffer`] orders its users by itself: a reader waits for the last writer, a writer and the free wait for all
//!   readers, on whichever streams they are. A captured graph owns the buffers that it uses.
//! - A cudarc slice remembers one reader. Reading one here first waits for the reader that it remembers, so that the event which
//!   takes its place stands for both. Captured graphs cannot own it; see `Handle::capture_borrowing`.
//! - A bare address is its caller's business.

mod apart;
mod buffer;
mod cudarc;
pub(in crate::gpu) mod raw;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use ::cudarc::driver::{
    CudaContext, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};

pub use self::cudarc::{BorrowsOutliveGraph, Element};
#[cfg(test)]
pub(crate) use apart::tests::assert_apart;
pub(crate) use apart::{Named, check_apart};
pub use buffer::DeviceBuffer;
pub(crate) use buffer::{Access, Memory};

use super::stream::{Capture, Order, Queue};
use crate::error::{Error, Result};

/// Device memory borrowed for reading.
pub struct DeviceBytes<'a> {
    source: Source<'a>,
    bytes: usize,
}

enum Source<'a> {
    View(CudaView<'a, u8>),
    Buffer(&'a DeviceBuffer),
    Part(DeviceBuffer),
    Raw(u64, PhantomData<&'a u8>),
}

/// Device memory borrowed for writing.
pub struct DeviceBytesMut<'a> {
    source: SourceMut<'a>,
    bytes: usize,
}

enum SourceMut<'a> {
    View(CudaViewMut<'a, u8>),
    Buffer(&'a DeviceBuffer),
    Part(DeviceBuffer),
    Raw(u64, PhantomData<&'a mut u8>),
}

/// An address on a stream, with its length, for work that is enqueued before the [`Order`] of the call is dropped.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    _order: PhantomData<&'a ()>,
}

/// What happens, when it is dropped, to memory whose work was enqueued.
#[allow(dead_code, reason = "guards are held for their drop")]
pub(crate) enum Guard<'a> {
    Buffer(Access<'a>),
    /// In this order: the event, what waits for it.
    Slice(SyncOnDrop<'a>, Option<Rejoin<'a>>),
}

impl Guard<'_> {
    /// Leaves no event: the stream is captured by others, and an event of theirs is no good afterwards.
    pub(crate) fn abandon(self) {
        if let Self::Buffer(access) = &self {
            access.pin();
        }
        std::mem::forget(self);
    }
}

/// Lets the stream of a cudarc slice wait for what was enqueued, where cudarc itself orders nothing.
pub(crate) struct Rejoin<'a> {
    home: Arc<CudaStream>,
    queue: &'a Queue,
}

impl Drop for Rejoin<'_> {
    fn drop(&mut self) {
        let joined = self.home.join(&self.queue.stream);
        self.home.context().record_err(joined);
    }
}

/// Whether ranges of addresses have a byte in common.
pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
}

impl<'a> Span<'a> {
    /// The addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes as u64
    }

    /// Whether a byte belongs to both.
    pub(crate) fn overlaps(&self, other: &Span<'_>) -> bool {
        overlap(&self.range(), &other.range())
    }

    /// Memory whose order and life are somebody else's care.
    pub(crate) fn unguarded(address: u64, bytes: usize) -> Self {
        Self { address, bytes, _order: PhantomData }
    }

    /// `bytes` bytes from `offset`; what lies past the end is cut off, for the launch checks to find.
    pub(crate) fn slice(self, offset: usize, bytes: usize) -> Self {
        let offset = offset.min(self.bytes);
        Self::unguarded(self.address + offset as u64, bytes.min(self.bytes - offset))
    }
}

/// Refuses memory of another GPU. `noun`: `operand`, with its article.
fn check_context((article, noun): (&str, &str), home: &CudaContext, here: &CudaContext) -> Result<()> {
    if home.cu_ctx() == here.cu_ctx() {
        return Ok(());
    }
    Err(Error::unsupported(
        format!("{article} {noun} in the memory of GPU {}", home.ordinal()),
        format!("the handle is on GPU {}, and these are two contexts", here.ordinal()),
        format!("copy the {noun} to the handle's GPU, or use a handle of the {noun}'s"),
    ))
}

/// A slice of cudarc's for work in this order, or why not: it is another GPU's, a graph would outlive it, or a capture of others
/// has it. `take` lets cudarc wait for the slice's events.
fn admit<'s, 'q: 's>(
    order: &'s Order<'q>,
    home: &Arc<CudaStream>,
    bytes: usize,
    take: impl FnOnce(&'q CudaStream) -> Result<(u64, SyncOnDrop<'q>)>,
) -> Result<Span<'s>> {
    let (queue, theirs, ours) = (order.queue, home.context(), order.queue.context());
    check_context(("an", "operand"), theirs, ours)?;
    if order.capture == Capture::Ours && !queue.may_borrow() {
        return Err(not_owned("a cudarc slice"));
    }
    let runs = order.capture == Capture::No;
    let cudarc_waits = theirs.is_managing_stream_synchronization();
    let mut rejoin = None;
    if runs && home.cu_stream() != queue.stream.cu_stream() {
        if raw::is_capturing(home) {
            return Err(captured_operand());
        }
        // With tracking switched off, which is unsafe to do, order is the caller's business.
        if theirs.is_event_tracking() && !(cudarc_waits && ours.is_managing_stream_synchronization()) {
            queue.stream.join(home).map_err(|e| driver("waiting for an operand's stream", e))?;
            rejoin = Some(Rejoin { home: home.clone(), queue });
        }
    }
    let (address, guard) = take(order.events())?;
    order.hold(Guard::Slice(guard, rejoin));
    // To wait for an event of a capture is to be drawn into it.
    if runs && cudarc_waits && raw::is_capturing(&queue.stream) {
        order.note_drawn_in();
        return Err(captured_operand());
    }
    Ok(Span::unguarded(address, bytes))
}

/// Lets a bare address in, or refuses it where a graph would outlive what its giver promised.
fn lend<'a>(order: &Order<'_>, address: u64, bytes: usize) -> Result<Span<'a>> {
    match order.capture == Capture::Ours && !order.queue.may_borrow() {
        true => Err(not_owned("a bare address")),
        false => Ok(Span::unguarded(address, bytes)),
    }
}

fn captured_operand() -> Error {
    Error::unsupported(
        "an operand of a stream that is captured into a graph",
        "the work would become a part of that graph, which does not own what else it uses",
        "capture on the handle's stream, or call again when the capture has ended",
    )
}

fn not_owned(what: &str) -> Error {
    Error::unsupported(
        format!("{what} in Handle::capture"),
        "the graph cannot keep it alive",
        "hold what a graph uses in DeviceBuffer, or take Handle::capture_borrowing and its promise",
    )
}

impl<'a> DeviceBytes<'a> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True for an empty borrow.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address, where it is known before a stream is: of everything but cudarc's views.
    pub(crate) fn known_address(&self) -> Option<u64> {
        match &self.source {
            Source::View(_) => None,
            Source::Buffer(buffer) => Some(buffer.address()),
            Source::Part(buffer) => Some(buffer.address()),
            Source::Raw(address, _) => Some(*address),
        }
    }

    /// Some of these bytes: of a long matrix, what the host looks at. What lies past the end is cut off; a call for which they are then too few says so.
    ///
    /// # Errors
    /// None today.
    pub fn part(&self, range: Range<usize>) -> Result<DeviceBytes<'_>> {
        let range = cut(range, self.bytes);
        let bytes = range.len();
        let source = match &self.source {
            Source::View(view) => Source::View(view.slice(range)),
            Source::Buffer(buffer) => Source::Part(buffer.part(range)?),
            Source::Part(buffer) => Source::Part(buffer.part(range)?),
            Source::Raw(address, _) => Source::Raw(address + range.start as u64, PhantomData),
        };
        Ok(DeviceBytes { source, bytes })
    }

    /// The memory itself, shared and not copied, where this crate owns it: of nothing but buffers.
    pub(crate) fn share(&self) -> Option<Result<DeviceBuffer>> {
        match &self.source {
            Source::Buffer(buffer) => Some(buffer.part(0..self.bytes)),
            Source::Part(buffer) => Some(buffer.part(0..self.bytes)),
            Source::View(_) | Source::Raw(..) => None,
        }
    }

    /// The address for work in this order: waits, on the GPU, for the last writer.
    pub(crate) fn at<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<Span<'s>> {
        match &self.source {
            Source::View(view) => admit(order, view.stream(), self.bytes, |events| {
                let (address, guard) = view.device_ptr(events);
                if let SyncOnDrop::Record(Some((earlier, stream))) = &guard
                    && stream.context().is_managing_stream_synchronization()
                {
                    stream.wait(earlier).map_err(|e| driver("waiting for an earlier reader", e))?;
                }
                Ok((address, guard))
            }),
            Source::Buffer(buffer) => buffer.read(order),
            Source::Part(buffer) => buffer.read(order),
            Source::Raw(address, _) => lend(order, *address, self.bytes),
        }
    }
}

impl<'a> DeviceBytesMut<'a> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True for an empty borrow.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address, where it is known before a stream is: of everything but cudarc's views.
    pub(crate) fn known_address(&self) -> Option<u64> {
        match &self.source {
            SourceMut::View(_) => None,
            SourceMut::Buffer(buffer) => Some(buffer.address()),
            SourceMut::Part(buffer) => Some(buffer.address()),
            SourceMut::Raw(address, _) => Some(*address),
        }
    }

    /// Some of these bytes, for as long as they are borrowed: row 0 of an amax history, which a cast raises. What lies past the end is cut off; a
    /// call for which they are then too few says so.
    ///
    /// # Errors
    /// None today.
    pub fn part(&mut self, range: Range<usize>) -> Result<DeviceBytesMut<'_>> {
        let range = cut(range, self.bytes);
        let bytes = range.len();
        let source = match &mut self.source {
            SourceMut::View(view) => SourceMut::View(view.slice_mut(range)),
            SourceMut::Buffer(buffer) => SourceMut::Part(buffer.part(range)?),
            SourceMut::Part(buffer) => SourceMut::Part(buffer.part(range)?),
            SourceMut::Raw(address, _) => SourceMut::Raw(*address + range.start as u64, PhantomData),
        };
        Ok(DeviceBytesMut { source, bytes })
    }

    /// The address for work in this order: waits, on the GPU, for all readers and writers.
    pub(crate) fn at<'s, 'q: 's>(&'q mut self, order: &'s Order<'q>) -> Result<Span<'s>> {
        match &mut self.source {
            SourceMut::View(view) => {
                let home = view.stream().clone();
                admit(order, &home, self.bytes, |events| Ok(view.device_ptr_mut(events)))
            }
            SourceMut::Buffer(buffer) => buffer.write(order),
            SourceMut::Part(buffer) => buffer.write(order),
            SourceMut::Raw(address, _) => lend(order, *address, self.bytes),
        }
    }
}

/// The range within `bytes` bytes.
fn cut(range: Range<usize>, bytes: usize) -> Range<usize> {
    let start = range.start.min(bytes);
    start..range.end.clamp(start, bytes)
}

/// Runs what an error that cudarc has kept may not take the place of, as it would of a call of `run`'s: it is kept again behind that, for the next call to tell.
pub(crate) fn with_kept_error_aside<T>(context: &CudaContext, run: impl FnOnce() -> T) -> T {
    let kept = context.check_err();
    let done = run();
    context.record_err(kept);
    done
}

/// A driver error, with what was being done.
pub(crate) fn driver(call: &str, error: ::cudarc::driver::DriverError) -> Error {
    Error::Driver { call: call.to_string(), reason: error.to_string() }
}
