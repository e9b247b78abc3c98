//! Borrowed device memory, and how it becomes an address on a stream.
//!
//! A [`DeviceBytes`] comes from a cudarc slice or view (safe: cudarc orders streams through its events) or from a raw
//! address (`unsafe`, for other runtimes; see `DeviceBytes::from_raw`). Launching code turns it into a [`Span`], which
//! keeps cudarc's event guard alive until the work is enqueued.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
use cudarc::driver::{CudaContext, CudaStream, CudaView, CudaViewMut, SyncOnDrop};

use crate::error::{Error, Result};

/// Device memory borrowed for reading.
pub struct DeviceBytes<'a> {
    pub(in crate::gpu) source: Source<'a>,
    pub(in crate::gpu) bytes: usize,
}

pub(in crate::gpu) enum Source<'a> {
    View(CudaView<'a, u8>),
    Raw(u64, PhantomData<&'a u8>),
}

/// Device memory borrowed for writing.
pub struct DeviceBytesMut<'a> {
    pub(in crate::gpu) source: SourceMut<'a>,
    pub(in crate::gpu) bytes: usize,
}

pub(in crate::gpu) enum SourceMut<'a> {
    View(CudaViewMut<'a, u8>),
    Raw(u64, PhantomData<&'a mut u8>),
}

/// An address on a stream, with its length; cudarc's event guard lives in it.
pub(crate) struct Span<'a> {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(in crate::gpu) _guard: SyncOnDrop<'a>,
}

/// The stream that work goes to, and how to ask memory for its address there.
///
/// While the stream is being captured into a graph, cudarc's events (recorded outside the capture) must not be waited
/// for on it: that would invalidate the capture. They are then waited for on `idle`, a stream that does nothing else;
/// ordering against other streams is the business of whoever launches the graph.
#[derive(Clone)]
pub(crate) struct LaunchStream {
    pub(crate) stream: Arc<CudaStream>,
    idle: Arc<CudaStream>,
}

/// The stream on which cudarc's events are waited for and recorded: asked for once in each call, since it costs a driver
/// call (0.1 us, observed) that is the same for all operands.
#[derive(Clone, Copy)]
pub(crate) struct Order<'s>(&'s CudaStream);

impl Span<'_> {
    /// `bytes` bytes from `offset`; what lies past the end is cut off, for the launch checks to find.
    pub(crate) fn slice(&self, offset: usize, bytes: usize) -> Span<'_> {
        let offset = offset.min(self.bytes);
        Span {
            address: self.address + offset as u64,
            bytes: bytes.min(self.bytes - offset),
            _guard: SyncOnDrop::Record(None),
        }
    }
}

impl LaunchStream {
    pub(crate) fn new(stream: Arc<CudaStream>) -> Result<Self> {
        let idle = stream.context().new_stream().map_err(|e| driver("creating a stream", e))?;
        Ok(Self { stream, idle })
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        self.stream.context()
    }

    /// Whose event bookkeeping applies: the stream's own, and during capture that of `idle`.
    ///
    /// It holds until the call that asked returns: a capture begins and ends by calls on the thread that enqueues.
    pub(crate) fn order(&self) -> Order<'_> {
        if !self.context().is_managing_stream_synchronization() {
            return Order(&self.stream);
        }
        match self.stream.capture_status() {
            Ok(CU_STREAM_CAPTURE_STATUS_NONE) => Order(&self.stream),
            _ => Order(&self.idle),
        }
    }
}

impl DeviceBytes<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True for an empty borrow.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The same memory, borrowed once more.
    pub(crate) fn reborrow(&self) -> DeviceBytes<'_> {
        let source = match &self.source {
            Source::View(view) => Source::View(view.slice(..)),
            Source::Raw(address, _) => Source::Raw(*address, PhantomData),
        };
        DeviceBytes { source, bytes: self.bytes }
    }

    /// The address for work on `stream`; a call with several operands asks for the order once, and uses `at`.
    pub(crate) fn on<'s>(&'s self, stream: &'s LaunchStream) -> Span<'s> {
        self.at(stream.order())
    }

    /// The address for work in this order: waits, on the GPU, for the last writer.
    pub(crate) fn at<'s>(&'s self, order: Order<'s>) -> Span<'s> {
        use cudarc::driver::DevicePtr;
        let (address, guard) = match &self.source {
            Source::View(view) => view.device_ptr(order.0),
            Source::Raw(address, _) => (*address, SyncOnDrop::Record(None)),
        };
        Span { address, bytes: self.bytes, _guard: guard }
    }
}

impl DeviceBytesMut<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True for an empty borrow.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address for work on `stream`; a call with several operands asks for the order once, and uses `at`.
    pub(crate) fn on<'s>(&'s mut self, stream: &'s LaunchStream) -> Span<'s> {
        self.at(stream.order())
    }

    /// The address for work in this order: waits, on the GPU, for the last reader and writer.
    pub(crate) fn at<'s>(&'s mut self, order: Order<'s>) -> Span<'s> {
        use cudarc::driver::DevicePtrMut;
        let (address, guard) = match &mut self.source {
            SourceMut::View(view) => view.device_ptr_mut(order.0),
            SourceMut::Raw(address, _) => (*address, SyncOnDrop::Record(None)),
        };
        Span { address, bytes: self.bytes, _guard: guard }
    }
}

/// A driver error, with what was being done.
pub(crate) fn driver(call: &str, error: cudarc::driver::DriverError) -> Error {
    Error::Driver { call: call.to_string(), reason: error.to_string() }
}
