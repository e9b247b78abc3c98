//! [`Handle`]: one stream with its cuBLASLt handle, kernels, workspace and plan cache.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, SyncOnDrop};

use crate::error::{Error, Result};

use super::cache::PlanCache;
use super::compile::KernelSource;
use super::formulation::Facts;
use super::gemm::GemmPlan;
use super::gemm_desc::GemmDesc;
use super::kernels::Kernels;
use super::libraries;
use super::lt::{self, LtHandle};
use super::measured;
use super::memory::{DeviceBytes, DeviceBytesMut, LaunchStream, Span, driver};
use super::record::TuneTable;

/// What NVIDIA documents for sm_90 and up; other GPUs are content with less, and 32 MiB is little.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Plans kept behind [`Handle::scaled_gemm`], and the scratch memory they may hold together.
///
/// A model has a few dozen shapes at each batch size; a plan without scratch is some kilobytes. The FP32 scratch of an
/// epilogue at m = 256 is 4 to 58 MB for the shapes of DeepSeek-V3 and Llama-3-70B, so 512 MiB hold about all of them.
const CACHED_PLANS: usize = 64;
const CACHED_SCRATCH: usize = 512 << 20;

/// The GPU of a [`Handle`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Place in the driver's list.
    pub ordinal: usize,
    /// Name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor: `(9, 0)` is sm_90.
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors.
    pub sm_count: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: usize,
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// CUDA version of the driver: 13000 is 13.0.
    pub driver: u32,
}

impl DeviceInfo {
    fn of(context: &Arc<CudaContext>) -> Result<Self> {
        let number = |attribute, what: &str| {
            let value = context.attribute(attribute).map_err(|e| driver(&format!("reading the {what}"), e))?;
            u32::try_from(value).map_err(|_| Error::Driver {
                call: format!("reading the {what}"),
                reason: format!("the driver said {value}"),
            })
        };
        Ok(Self {
            ordinal: context.ordinal(),
            name: context.name().map_err(|e| driver("reading the GPU's name", e))?,
            compute_capability: (
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "compute capability")?,
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "compute capability")?,
            ),
            sm_count: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessor count")?,
            l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, "L2 cache size")? as usize,
            memory_bytes: context.total_mem().map_err(|e| driver("reading the memory size", e))?,
            driver: lt::driver_version()?,
        })
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute_capability;
        write!(f, "{} (sm_{major}{minor})", self.name)
    }
}

/// The cuBLASLt that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LibraryInfo {
    /// `cublasLtGetVersion()`: 130100 is 13.1.0.
    pub version: u32,
    /// The version in words.
    pub version_text: String,
    /// The file, where the system tells.
    pub path: Option<PathBuf>,
    /// How it was found.
    pub found_by: String,
}

/// One stream, and everything that work on it needs: cuBLASLt, kernels, a 32 MiB workspace, a cache of plans.
///
/// `Send`, not `Sync`: use one handle for each thread and stream. Memory that its work uses, the handle's own included,
/// must live as long as the work does; for a captured graph that is as long as the graph is launched.
pub struct Handle {
    id: u64,
    pub(super) state: RefCell<State>,
    device: DeviceInfo,
    kernels: Arc<Kernels>,
    lt: LtHandle,
    workspace: Fixed<u8>,
    ones: Fixed<f32>,
    /// Of the tensor quantizer: amax and count of arrived blocks (zero between calls), then encode factor and scale.
    amax: Fixed<f32>,
    stream: LaunchStream,
}

/// What changes behind `&Handle`.
pub(super) struct State {
    pub(super) plans: PlanCache<GemmDesc, GemmPlan>,
    pub(super) tuning: TuneTable,
    /// Problems whose choice was logged.
    pub(super) announced: HashSet<GemmDesc>,
}

/// Memory that only the handle's own stream ever touches, so that its address can be taken once: cudarc's events would
/// cost two driver calls a use and could say nothing new.
pub(super) struct Fixed<T> {
    slice: CudaSlice<T>,
    address: u64,
}

impl<T> Fixed<T> {
    /// Takes the address of memory allocated on `stream`.
    pub(super) fn new(slice: CudaSlice<T>, stream: &LaunchStream) -> Self
    where
        for<'a> DeviceBytes<'a>: From<&'a CudaSlice<T>>,
    {
        let address = DeviceBytes::from(&slice).on(stream).address;
        Self { slice, address }
    }

    pub(super) fn bytes(&self) -> usize {
        self.slice.num_bytes()
    }

    pub(super) fn span(&self) -> Span<'_> {
        Span { address: self.address, bytes: self.bytes(), _guard: SyncOnDrop::Record(None) }
    }
}

impl Handle {
    /// A handle on a new stream of GPU `ordinal`. Loads the libraries at the first call; takes milliseconds, and allocates.
    ///
    /// The first handle of a GPU synchronizes its context: make it before any thread captures a graph there.
    ///
    /// # Errors
    /// [`Error::NoGpu`] without a driver or such a GPU; [`Error::Library`] without a usable cuBLASLt; [`Error::Kernel`].
    pub fn new(ordinal: usize) -> Result<Self> {
        libraries::driver_available()?;
        let count = CudaContext::device_count().map_err(|e| Error::NoGpu {
            reason: format!("the driver does not start: {e}"),
            remedy: "check nvidia-smi, and CUDA_VISIBLE_DEVICES".to_string(),
        })?;
        if usize::try_from(count).unwrap_or(0) <= ordinal {
            return Err(Error::NoGpu {
                reason: format!("GPU {ordinal} was asked for and the driver shows {count}"),
                remedy: "GPUs are counted from 0; check nvidia-smi, and CUDA_VISIBLE_DEVICES".to_string(),
            });
        }
        let context = shared_context(ordinal)?;
        Self::from_stream(context.new_stream().map_err(|e| driver("creating a stream", e))?)
    }

    /// A handle on a stream that exists, as other libraries on cudarc have one. Loads and allocates as [`Handle::new`].
    ///
    /// # Errors
    /// [`Error::Library`], [`Error::Kernel`], [`Error::Driver`].
    pub fn from_stream(stream: Arc<CudaStream>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let context = stream.context().clone();
        let device = DeviceInfo::of(&context)?;
        let lt = LtHandle::new(&context)?;
        let kernels = Kernels::get(&context)?;
        let stream = LaunchStream::new(stream)?;
        let workspace =
            stream.stream.alloc_zeros(WORKSPACE_BYTES).map_err(|e| driver("allocating the workspace", e))?;
        // Sixteen ones: unit scales at the front, and a place 16 bytes further that is aligned to exactly 16.
        let ones = stream.stream.clone_htod(&[1.0f32; 16]).map_err(|e| driver("allocating unit scales", e))?;
        let amax = stream.stream.alloc_zeros(4).map_err(|e| driver("allocating the amax state", e))?;
        tracing::debug!(%device, cublaslt = %lt.version(), "handle");
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            state: RefCell::new(State {
                plans: PlanCache::new(CACHED_PLANS, CACHED_SCRATCH),
                tuning: TuneTable::default(),
                announced: HashSet::new(),
            }),
            device,
            kernels,
            lt,
            workspace: Fixed::new(workspace, &stream),
            ones: Fixed::new(ones, &stream),
            amax: Fixed::new(amax, &stream),
            stream,
        })
    }

    /// The stream that all work of this handle goes to.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream.stream
    }

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    /// [`Error::Driver`] with what went wrong in earlier work, if anything did.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.stream.synchronize().map_err(|e| driver("waiting for the stream", e))
    }

    /// The GPU.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// The cuBLASLt in use: version, file, and how it was found.
    ///
    /// # Errors
    /// [`Error::Library`], which cannot happen after the handle was made.
    pub fn library(&self) -> Result<LibraryInfo> {
        let library = lt::library()?;
        Ok(LibraryInfo {
            version: library.version().raw(),
            version_text: library.version().to_string(),
            path: library.path().map(PathBuf::from),
            found_by: library.found_by().to_string(),
        })
    }

    /// Where this crate's own kernels came from: compiled with the crate, or at run time.
    pub fn kernel_source(&self) -> KernelSource {
        self.kernels.source()
    }

    /// Measured choices for [`Handle::plan`] and [`Handle::scaled_gemm`]. Forgets all cached plans.
    ///
    /// Records of another GPU or library version stay in the table and are passed over.
    pub fn set_tuning(&self, table: TuneTable) {
        let mut state = self.state.borrow_mut();
        state.tuning = table;
        state.plans.clear();
    }

    /// Forgets all cached plans and frees their scratch memory, in stream order.
    pub fn clear_plans(&self) {
        self.state.borrow_mut().plans.clear();
    }

    /// Number of cached plans, and the bytes of scratch memory they hold.
    pub fn cached_plans(&self) -> (usize, usize) {
        let state = self.state.borrow();
        (state.plans.len(), state.plans.bytes())
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn launch_stream(&self) -> &LaunchStream {
        &self.stream
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    pub(crate) fn lt(&self) -> &LtHandle {
        &self.lt
    }

    pub(crate) fn workspace(&self) -> Span<'_> {
        self.workspace.span()
    }

    /// 1.0 on the device, as the scale of an unscaled operand.
    pub(crate) fn unit_scale(&self) -> Span<'_> {
        Span { bytes: 4, ..self.ones.span() }
    }

    /// State of an amax over a matrix, and where its encode factor and scale go.
    pub(crate) fn amax_state(&self) -> (Span<'_>, Span<'_>) {
        let whole = self.amax.span();
        (Span { bytes: 8, ..self.amax.span() }, Span { address: whole.address + 8, bytes: 8, ..whole })
    }

    /// A device address aligned to 16 bytes and no more: what a heuristic may expect of pointers not yet known.
    pub(crate) fn placeholder(&self) -> u64 {
        self.ones.address + 16
    }

    pub(crate) fn facts(&self) -> Facts {
        let version = self.lt.version();
        let measured = measured::applies(&self.device.name, version);
        Facts { cc: self.device.compute_capability, version, sm_count: self.device.sm_count, measured }
    }

    /// Refuses what allocates or waits while the stream is being captured into a graph.
    pub(crate) fn refuse_capture(&self, what: &str) -> Result<()> {
        let status = self.stream.stream.capture_status().map_err(|e| driver("asking for the capture state", e))?;
        if status == CU_STREAM_CAPTURE_STATUS_NONE {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("{what} while the stream is captured into a graph"),
            "it allocates memory or waits, which would break the capture",
            "do it before the capture begins, and capture only GemmPlan::execute and the *_into calls",
        ))
    }

    /// The bytes of device memory, on the host: codes and scales with their padding as they are. Allocates and waits.
    ///
    /// # Errors
    /// [`Error::Driver`] if the copy fails; [`Error::Unsupported`] inside graph capture.
    pub fn read_bytes(&self, bytes: &DeviceBytes<'_>) -> Result<Vec<u8>> {
        self.refuse_capture("reading device memory")?;
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let span = bytes.on(&self.stream);
        self.read_rows(&span, 1, span.bytes, span.bytes)
    }

    /// `rows` rows of `row_bytes` bytes, `stride` bytes apart, packed, on the host. Allocates and waits.
    pub(crate) fn read_rows(&self, src: &Span<'_>, rows: usize, row_bytes: usize, stride: usize) -> Result<Vec<u8>> {
        let mut packed: CudaSlice<u8> =
            self.stream().alloc_zeros(rows * row_bytes).map_err(|e| driver("allocating a copy", e))?;
        {
            let mut target = DeviceBytesMut::from(&mut packed);
            let target = target.on(&self.stream);
            self.kernels.copy_2d(&self.stream, src, stride, &target, row_bytes, rows, row_bytes)?;
        }
        let host = self.stream().clone_dtoh(&packed).map_err(|e| driver("copying to the host", e))?;
        self.synchronize()?;
        Ok(host)
    }
}

/// The primary context of this GPU, one cudarc object for all handles of the process.
///
/// cudarc synchronizes a context when its second stream is made, and the driver refuses that, and breaks the capture,
/// while any thread captures a stream of it (observed: H200, driver 580). With one object that happens once.
fn shared_context(ordinal: usize) -> Result<Arc<CudaContext>> {
    static CONTEXTS: Mutex<Vec<(usize, Weak<CudaContext>)>> = Mutex::new(Vec::new());
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    contexts.retain(|(_, context)| context.strong_count() > 0);
    if let Some(context) = contexts.iter().find(|(o, _)| *o == ordinal).and_then(|(_, context)| context.upgrade()) {
        return Ok(context);
    }
    let context = CudaContext::new(ordinal).map_err(|e| Error::NoGpu {
        reason: format!("GPU {ordinal} gives no context: {e}"),
        remedy: "check nvidia-smi for the GPU's state and free memory".to_string(),
    })?;
    contexts.push((ordinal, Arc::downgrade(&context)));
    Ok(context)
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}, cuBLASLt {})", self.device, self.lt.version())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_plans_can_move_to_another_thread() {
        fn send<T: Send>() {}
        send::<Handle>();
        send::<GemmPlan>();
        send::<Error>();
    }
}
