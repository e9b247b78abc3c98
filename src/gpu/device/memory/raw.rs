//! Driver calls that cudarc has no safe form of, each made safe here.

use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{CUstream_flags_enum::CU_STREAM_NON_BLOCKING, CUstreamCaptureStatus_enum as CaptureStatus};
use cudarc::driver::{CudaGraph, CudaStream, sys};

use super::{Element, Span, driver};
use crate::error::{Error, Result};

/// Whether a stream is being captured into a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::gpu) enum CaptureState {
    None,
    Active,
    /// Broken, and not ended yet: no graph comes of it.
    Broken,
}

/// `cuStreamIsCapturing`, which breaks no capture: whether it could tell, and what it tells then.
fn ask_capture(stream: &CudaStream) -> (sys::CUresult, CaptureStatus) {
    let mut status = CaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is alive (borrowed), and the driver writes one value to `status`, which outlives the call.
    let answer = unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &mut status) };
    (answer, status)
}

/// One question to the driver and nothing else: it is asked at every call.
pub(in crate::gpu) fn capture_state(stream: &CudaStream) -> CaptureState {
    match ask_capture(stream) {
        (sys::CUresult::CUDA_SUCCESS, CaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE) => CaptureState::Active,
        (sys::CUresult::CUDA_SUCCESS, CaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED) => CaptureState::Broken,
        // Also where there is an error: the legacy default stream, asked while a blocking stream of the context is captured, cannot
        // be captured itself; a sticky error of earlier work will be said by the next call that can return one.
        _ => CaptureState::None,
    }
}

/// True for a stream whose capture is broken, too.
pub(in crate::gpu) fn is_capturing(stream: &CudaStream) -> bool {
    capture_state(stream) != CaptureState::None
}

/// Whether a capture bears no work on a stream beside it: of the stream itself, or, where that is the legacy default stream, of one that waits for it. The stream's context is bound.
pub(super) fn is_held_by_a_capture(stream: &CudaStream) -> bool {
    match ask_capture(stream) {
        (sys::CUresult::CUDA_SUCCESS, status) => status != CaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        (failed, _) => failed == sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    }
}

/// Runs something that leaves streams as they are, such as a free on a stream that is not captured: a capture that this thread has begun on another one would have it
/// refused otherwise, where it is neither ours nor relaxed.
pub(super) fn beside_captures<T>(run: impl FnOnce() -> T) -> T {
    use sys::CUstreamCaptureMode as Mode;
    /// Sets this thread's mode, and says which it was; `None` where that failed and nothing is to be set back.
    fn exchange(mut mode: Mode) -> Option<Mode> {
        // SAFETY: the driver reads and writes one value, which outlives the call.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
        (exchanged == sys::CUresult::CUDA_SUCCESS).then_some(mode)
    }
    struct Restored(Option<Mode>);
    impl Drop for Restored {
        fn drop(&mut self) {
            self.0.and_then(exchange);
        }
    }
    let _restored = Restored(exchange(Mode::CU_STREAM_CAPTURE_MODE_RELAXED));
    run()
}

/// Where the next work of a captured stream goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::gpu) struct CapturePlace {
    /// Of this process, and of no other capture.
    pub(in crate::gpu) capture: u64,
    /// The one node that it follows; `None` where it follows none, or several.
    pub(in crate::gpu) after: Option<usize>,
}

/// `cuStreamGetCaptureInfo` as drivers have it from CUDA 11.3 on.
type CaptureInfo = unsafe extern "C" fn(
    sys::CUstream,
    *mut CaptureStatus,
    *mut u64,
    *mut sys::CUgraph,
    *mut *const sys::CUgraphNode,
    *mut usize,
) -> sys::CUresult;

/// The driver's function. Bindings of CUDA 13 have another form of it alone, which older drivers do not know, so it is asked for by its
/// version; `None` where the driver is older than the question.
fn capture_info() -> Option<CaptureInfo> {
    static FOUND: OnceLock<Option<CaptureInfo>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        if driver_version().ok()? < 12000 {
            return None;
        }
        let (mut function, mut status) =
            (std::ptr::null_mut(), sys::CUdriverProcAddressQueryResult_enum::CU_GET_PROC_ADDRESS_SUCCESS);
        let name = c"cuStreamGetCaptureInfo";
        // SAFETY: the name ends with a NUL, and both places outlive the call, which writes one value to each.
        let asked = unsafe { sys::cuGetProcAddress_v2(name.as_ptr(), &mut function, 12000, 0, &mut status) };
        if asked != sys::CUresult::CUDA_SUCCESS || function.is_null() {
            return None;
        }
        // SAFETY: the driver gives the function of this name as CUDA 12.0 declares it, and is never unloaded.
        Some(unsafe { std::mem::transmute::<*mut std::ffi::c_void, CaptureInfo>(function) })
    })
}

/// Where the next work of this stream goes; `None` where it is not captured, or the driver does not say.
pub(in crate::gpu) fn capture_place(stream: &CudaStream) -> Option<CapturePlace> {
    let info = capture_info()?;
    let (mut status, mut capture) = (CaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
    let (mut graph, mut nodes, mut count) = (std::ptr::null_mut(), std::ptr::null(), 0);
    // SAFETY: the stream is alive (borrowed), and the driver writes one value to each place, which outlive the call.
    let answer = unsafe { info(stream.cu_stream(), &mut status, &mut capture, &mut graph, &mut nodes, &mut count) };
    if answer != sys::CUresult::CUDA_SUCCESS || status != CaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return None;
    }
    let after = match count {
        // SAFETY: the driver keeps so many nodes there until the next call on this stream, whose turn the caller has.
        1 => Some(unsafe { nodes.read() } as usize),
        _ => None,
    };
    Some(CapturePlace { capture, after })
}

/// How soon a stream's blocks are dispatched: lower numbers come first.
pub(in crate::gpu) fn priority(stream: &CudaStream) -> Result<i32> {
    // The legacy default stream is that of the bound context.
    stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
    let mut priority = 0;
    // SAFETY: the stream is alive (borrowed), and the driver writes one number to `priority`, which outlives the call.
    let asked = unsafe { sys::cuStreamGetPriority(stream.cu_stream(), &mut priority) };
    asked.result().map_err(|e| driver("asking for a stream's priority", e))?;
    Ok(priority)
}

/// A stream that cudarc does not count, so that a context with one stream of its caller's stays in cudarc's single-stream mode.
pub(in crate::gpu) struct UncountedStream {
    stream: Arc<CudaStream>,
}

impl UncountedStream {
    /// In the context of this stream, with its priority.
    pub(in crate::gpu) fn beside(stream: &CudaStream) -> Result<Self> {
        let (context, priority) = (stream.context(), priority(stream)?);
        let mut raw = std::ptr::null_mut();
        // SAFETY: asking for the priority has bound the context to this thread, and the driver writes one stream to `raw`.
        let created = unsafe { sys::cuStreamCreateWithPriority(&mut raw, CU_STREAM_NON_BLOCKING as u32, priority) };
        created.result().map_err(|e| driver("creating a stream", e))?;
        // SAFETY: the stream was made in this context just now, and only this value destroys it. Work on it other than events is between a fork
        // and a join of another stream, and the driver keeps what it needs of a destroyed stream until its work is done (documented).
        Ok(Self { stream: unsafe { context.wrap_borrowed_stream(raw) } })
    }

    pub(in crate::gpu) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Drop for UncountedStream {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        if is_capturing(&self.stream) {
            tracing::debug!("a stream that belongs to a capture of others stays");
            return;
        }
        // SAFETY: made by `beside`, destroyed once; who shares `stream` is dropped with this value (a queue's field), so that nothing uses it afterwards.
        context.record_err(unsafe { sys::cuStreamDestroy_v2(self.stream.cu_stream()) }.result());
    }
}

/// An instantiated graph, launched by one thread at a time.
pub(in crate::gpu) struct Graph(CudaGraph);

// SAFETY: the driver ties a graph to no thread and asks only that calls on it do not overlap; `launch` takes the stream's
// [`Queue`](crate::gpu::device::stream::Queue), which is not Sync, so that two launches of one graph never overlap.
unsafe impl Send for Graph {}

impl Graph {
    pub(in crate::gpu) fn new(graph: CudaGraph) -> Self {
        Self(graph)
    }

    pub(in crate::gpu) fn launch(&self) -> Result<()> {
        self.0.launch().map_err(|e| driver("launching a graph", e))
    }
}

/// Copies host numbers to the front of a span, in stream order. They have been read when it returns.
pub(in crate::gpu) fn copy_from_host<T: Element>(stream: &CudaStream, from: &[T], to: &Span<'_>) -> Result<()> {
    let bytes = size_of_val(from);
    if bytes > to.bytes {
        return Err(Error::shape(
            "target of a copy from the host",
            format!("{} bytes", to.bytes),
            format!("must hold {bytes} bytes"),
            "copy into a buffer of that length",
        ));
    }
    if bytes == 0 {
        return Ok(());
    }
    stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
    // SAFETY: the span is long enough (checked above) and borrowed past this enqueue; the driver has staged or copied pageable
    // host memory when the call returns (documented), page-locked memory is waited for below, and `from` is borrowed as long.
    // Elements have no padding.
    let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(to.address, from.as_ptr().cast(), bytes, stream.cu_stream()) };
    copied.result().map_err(|e| driver("copying from the host", e))?;
    match is_page_locked(from.as_ptr().cast()) {
        true => stream.synchronize().map_err(|e| driver("waiting for a copy from page-locked memory", e)),
        false => Ok(()),
    }
}

/// Copies the front of a span to host numbers, and waits for the stream.
pub(in crate::gpu) fn copy_to_host<T: Element>(stream: &CudaStream, from: &Span<'_>, to: &mut [T]) -> Result<()> {
    let bytes = size_of_val(to);
    if bytes > from.bytes {
        return Err(Error::shape(
            "source of a copy to the host",
            format!("{} bytes", from.bytes),
            format!("must hold {bytes} bytes"),
            "copy as many numbers as there are",
        ));
    }
    if bytes == 0 {
        return Ok(());
    }
    stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
    // SAFETY: the span is long enough (checked above) and borrowed; `to` is borrowed until the stream was waited for. Any bytes
    // are a value of an element.
    let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from.address, bytes, stream.cu_stream()) };
    copied.result().map_err(|e| driver("copying to the host", e))?;
    stream.synchronize().map_err(|e| driver("waiting for a copy to the host", e))
}

/// Whether the driver knows host memory, and so copies from it at its leisure.
fn is_page_locked(address: *const std::ffi::c_void) -> bool {
    let mut kind: std::ffi::c_uint = 0;
    let mut attributes = [sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE];
    let mut places: [*mut std::ffi::c_void; 1] = [(&raw mut kind).cast()];
    // SAFETY: one attribute, and one place of its size that outlives the call; any address may be asked about, and one that the
    // driver does not know is no error (unlike with cuPointerGetAttribute) and leaves 0.
    let asked = unsafe {
        sys::cuPointerGetAttributes(1, attributes.as_mut_ptr(), places.as_mut_ptr(), address as sys::CUdeviceptr)
    };
    asked != sys::CUresult::CUDA_SUCCESS || kind != 0
}

/// CUDA version of the driver, 13000 for 13.0. Only where there is a driver: a `CudaContext` exists.
pub(in crate::gpu) fn driver_version() -> Result<u32> {
    let mut version = 0;
    // SAFETY: `version` outlives the call, which writes one number to it; it needs no context.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
    answer.map_err(|e| driver("asking for the driver's version", e))?;
    Ok(u32::try_from(version).unwrap_or(0))
}
