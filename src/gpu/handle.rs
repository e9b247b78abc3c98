//! [`Handle`]: one stream with its cuBLASLt handle, kernels, workspace and scratch memory. What it is used for, products
//! among it, keeps its own state in a slot.

use std::any::Any;
use std::cell::{RefCell, RefMut};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::error::{Error, Result};

use crate::gpu::device::arena::Arena;
use crate::gpu::device::graph::CapturedGraph;
use crate::gpu::device::info::DeviceInfo;
use crate::gpu::device::libraries;
use crate::gpu::device::memory::{
    BorrowsOutliveGraph, DeviceBuffer, DeviceBytes, DeviceBytesMut, Element, Memory, Span, driver, raw,
};
use crate::gpu::device::search::CUBLASLT;
use crate::gpu::device::stream::{Capture, Order, Queue};
use crate::gpu::kernels::{KernelFamily, KernelSource, Kernels};
use crate::gpu::lt::quirks::Version;
use crate::gpu::lt::{self, LtHandle};

/// What NVIDIA documents for sm_90 and up; other GPUs are content with less, and 32 MiB is little.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

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

/// One stream, and everything that work on it needs: cuBLASLt, kernels, a 32 MiB workspace, scratch memory for its plans.
///
/// `Send`, not `Sync`: use one handle for each thread and stream. Its own memory and every [`DeviceBuffer`] that its work uses
/// live as long as the work, and as the graphs that captured it, whatever is dropped first. cudarc's events keep cudarc's
/// slices, and bare addresses are their caller's care.
pub struct Handle {
    id: u64,
    slots: Slots,
    device: DeviceInfo,
    kernels: Arc<Kernels>,
    /// `None`: no cuBLASLt on this machine. [`Handle::lt`] says why.
    lt: Option<LtHandle>,
    workspace: Private,
    ones: Private,
    /// Of the tensor quantizer: amax and count of arrived blocks (zero between calls), encode factor and scale; where the blocks of one
    /// launch meet ([`Kernels::meeting_bytes`], zero before the first call).
    amax: Private,
    arena: Arena,
    queue: Queue,
}

/// State that higher modules keep for each handle, one value of each type: the handle need not know them.
#[derive(Default)]
struct Slots(RefCell<Vec<Box<dyn Any + Send>>>);

impl Slots {
    fn get<T: Any + Send + Default>(&self) -> RefMut<'_, T> {
        let mut slots = self.0.borrow_mut();
        // There are as many as modules with state: a search is quicker than a hash.
        let place = slots.iter().position(|slot| slot.is::<T>()).unwrap_or_else(|| {
            slots.push(Box::<T>::default());
            slots.len() - 1
        });
        RefMut::map(slots, |slots| slots[place].downcast_mut().expect("the slot at this place holds a T"))
    }
}

/// Memory that only the handle's own queue ever touches: its address is taken without events. Captured graphs keep it.
pub(crate) struct Private {
    memory: Arc<Memory>,
}

impl Private {
    /// `bytes` zero bytes. Allocates.
    pub(crate) fn zeros(queue: &Queue, bytes: usize) -> Result<Self> {
        let memory = Memory::zeros(queue, bytes)?;
        queue.keep(&memory);
        Ok(Self { memory })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(crate) fn span(&self) -> Span<'_> {
        self.memory.span()
    }
}

impl Handle {
    /// A handle on a new stream of GPU `ordinal`. Loads the libraries at the first call; takes milliseconds, and allocates.
    ///
    /// The first handle of a GPU synchronizes its context: make it before any thread captures a graph there.
    ///
    /// # Errors
    /// [`Error::NoGpu`] without a driver or such a GPU; [`Error::Library`] for a driver that lacks what is called of it, and for a cuBLASLt that
    /// `SCALED_GEMM_CUBLASLT` names and that does not load. Where none is found a handle has what needs none: casts and quantizers, and products by our own kernels
    /// ([`Handle::supports`]); [`Handle::library`] says why.
    pub fn new(ordinal: usize) -> Result<Self> {
        libraries::driver_available(lt::keep_loaded)?;
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
        Self::from_stream(new_stream(&shared_context(ordinal)?)?)
    }

    /// A handle on a stream that exists, as other libraries on cudarc have one. Loads and allocates as [`Handle::new`].
    ///
    /// # Errors
    /// [`Error::Library`], [`Error::Driver`]; [`Error::Unsupported`] for `CU_STREAM_PER_THREAD`, and while the stream is captured
    /// into a graph.
    pub fn from_stream(stream: Arc<CudaStream>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        libraries::driver_available(lt::keep_loaded)?;
        if raw::is_capturing(&stream) {
            return Err(Error::unsupported(
                "a handle on a stream that is captured into a graph",
                "its memory would be the graph's, and exist while that runs",
                "make handles before captures begin",
            ));
        }
        let context = stream.context().clone();
        let device = DeviceInfo::of(&context)?;
        let lt = match LtHandle::new(&context) {
            Ok(lt) => Some(lt),
            // There are still casts, and products by our own kernels. What needs the library says why there is none; a file that was named must load.
            Err(error @ Error::Library { .. }) if !CUBLASLT.is_named() => {
                tracing::warn!(%error, "no cuBLASLt: products by our own kernels alone");
                None
            }
            Err(error) => return Err(error),
        };
        let kernels = Kernels::get(&context)?;
        let queue = Queue::new(stream)?;
        // No capture of this crate begins on the stream before the memory is there and written.
        let turn = queue.turn();
        let workspace = Private::zeros(&queue, WORKSPACE_BYTES)?;
        // Sixteen ones: unit scales at the front, and a place 16 bytes further that is aligned to exactly 16.
        let ones = Private::zeros(&queue, 16 * size_of::<f32>())?;
        raw::copy_from_host(&queue.stream, &[1f32; 16], &ones.span())?;
        let amax = Private::zeros(&queue, 16 + kernels.meeting_bytes())?;
        drop(turn);
        tracing::debug!(%device, cublaslt = ?lt.as_ref().map(LtHandle::version), "handle");
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            slots: Slots::default(),
            device,
            kernels,
            lt,
            workspace,
            ones,
            amax,
            arena: Arena::default(),
            queue,
        })
    }

    /// The stream that all work of this handle goes to.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.queue.stream
    }

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    /// [`Error::Driver`] with what went wrong in earlier work, if anything did; [`Error::Unsupported`] inside graph capture.
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_capture("waiting for the stream")?;
        self.queue.stream.synchronize().map_err(|e| driver("waiting for the stream", e))
    }

    /// The GPU.
    pub fn device(&self) -> &DeviceInfo {
        &self.device
    }

    /// The cuBLASLt in use: version, file, and how it was found.
    ///
    /// # Errors
    /// [`Error::Library`] where none was found, with the reason and the remedy.
    pub fn library(&self) -> Result<LibraryInfo> {
        self.lt()?;
        let library = lt::library()?;
        Ok(LibraryInfo {
            version: library.version().raw(),
            version_text: library.version().to_string(),
            path: library.path().map(PathBuf::from),
            found_by: library.found_by().to_string(),
        })
    }

    /// Where this crate's own kernels come from: compiled with the crate, or at run time.
    pub fn kernel_source(&self) -> KernelSource {
        self.kernels.source()
    }

    /// Loads kernels now, for every handle on this GPU, instead of when the first of a family is used.
    ///
    /// Takes milliseconds, or where NVRTC compiles them up to a minute for each family and once for each machine. Allocating a
    /// [`QuantMatrix`](crate::QuantMatrix) loads its scheme's families, and planning a product those that it may run, so that
    /// captures find them there. To be called before a capture that is the first to use others: of matrices made of memory
    /// that exists, or of [`Handle::amax_into`] and its like alone.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there is no image for this GPU, or a family is not for it ([`KernelFamily::runs_on`]); [`Error::Library`] if
    /// NVRTC is needed and missing; [`Error::Unsupported`] inside graph capture, unless all are loaded already.
    pub fn load_kernels(&self, families: &[KernelFamily]) -> Result<()> {
        families.iter().try_for_each(|&family| self.kernels.load(&self.queue, family))
    }

    /// Bytes of scratch memory that the handle holds for its plans: as many as the largest so far needs, in steps of 2 MiB.
    pub fn scratch_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Frees the scratch memory, in stream order; waits for nothing. A plan that needs some asks for it again in
    /// [`GemmPlan::prepare`](crate::gpu::GemmPlan::prepare), and refuses to be executed before; of groups [plan](Handle::plan_grouped) again. A captured graph keeps what it
    /// uses as long as it lives.
    ///
    /// # Errors
    /// [`Error::Unsupported`] inside graph capture.
    pub fn trim_scratch(&self) -> Result<()> {
        self.refuse_capture("freeing scratch memory")?;
        self.arena.trim();
        Ok(())
    }

    /// Makes [`Handle::scratch`] give as many bytes as these. Allocates where there are fewer.
    pub(crate) fn reserve_scratch(&self, bytes: usize) -> Result<()> {
        if bytes <= self.arena.bytes() {
            return Ok(());
        }
        self.refuse_first_in_capture("reserving scratch memory")?;
        self.arena.reserve(&self.queue, bytes)
    }

    /// Scratch memory for one call, which the next call overwrites. Allocates nothing.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Span<'_>> {
        self.arena.span(bytes)
    }

    /// What a higher module keeps for this handle. Hold it no longer than a call: one slot is lent at a time.
    pub(crate) fn slot<T: Any + Send + Default>(&self) -> RefMut<'_, T> {
        self.slots.get()
    }

    /// Refuses a thing that was made for another handle.
    pub(crate) fn check_own(&self, made_for: u64, what: &str) -> Result<()> {
        if made_for == self.id {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("{what} on another handle than its own"),
            format!(
                "it was made for handle {made_for}, on whose stream its workspace and scratch memory are in order, and this is \
                 handle {} (counted in this process)",
                self.id
            ),
            "pass the handle that made it, or make a plan for each handle",
        ))
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// cuBLASLt, or why there is none.
    pub(crate) fn lt(&self) -> Result<&LtHandle> {
        let later = || Error::Library {
            library: "cuBLASLt".to_string(),
            reason: "it was not there when the handle was made".to_string(),
            remedy: "make a new handle".to_string(),
        };
        self.lt.as_ref().ok_or_else(|| lt::library().err().unwrap_or_else(later))
    }

    pub(crate) fn lt_version(&self) -> Option<Version> {
        self.lt.as_ref().map(LtHandle::version)
    }

    pub(crate) fn workspace(&self) -> Span<'_> {
        self.workspace.span()
    }

    /// 1.0 on the device, as the scale of an unscaled operand.
    pub(crate) fn unit_scale(&self) -> Span<'_> {
        Span::unguarded(self.ones.span().address, 4)
    }

    /// State of an amax over a matrix, and where its encode factor and scale go.
    pub(crate) fn amax_state(&self) -> (Span<'_>, Span<'_>) {
        (Span::unguarded(self.amax.span().address, 8), Span::unguarded(self.amax.span().address + 8, 8))
    }

    /// Where the blocks of a launch meet that casts a matrix whole.
    pub(crate) fn meeting_place(&self) -> Span<'_> {
        Span::unguarded(self.amax.span().address + 16, self.kernels.meeting_bytes())
    }

    /// A device address aligned to 16 bytes and no more: what a heuristic may expect of pointers not yet known.
    pub(crate) fn placeholder(&self) -> u64 {
        self.ones.span().address + 16
    }

    /// Refuses what allocates or waits while the stream is being captured into a graph.
    pub(crate) fn refuse_capture(&self, what: &str) -> Result<()> {
        self.order_outside_capture(what).map(drop)
    }

    /// Refuses what the first of equal calls allocates alone.
    pub(crate) fn refuse_first_in_capture(&self, what: &str) -> Result<()> {
        let remedy = "make this call once before the capture begins; then it allocates nothing";
        self.order_outside(what, remedy).map(drop)
    }

    /// The order of a call that does so. No capture of this crate begins before it is dropped.
    pub(crate) fn order_outside_capture(&self, what: &str) -> Result<Order<'_>> {
        let remedy = "do it before the capture begins, and capture only calls that allocate nothing and do not wait";
        self.order_outside(what, remedy)
    }

    fn order_outside(&self, what: &str, remedy: &'static str) -> Result<Order<'_>> {
        let order = self.queue.order();
        if order.capture == Capture::No {
            return Ok(order);
        }
        Err(Error::unsupported(
            format!("{what} while the stream is captured into a graph"),
            "it allocates memory or waits, which would break the capture",
            remedy,
        ))
    }

    /// A buffer of `bytes` zero bytes, allocated in the order of the handle's stream.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is not enough memory; [`Error::Unsupported`] inside graph capture.
    pub fn alloc(&self, bytes: usize) -> Result<DeviceBuffer> {
        self.refuse_capture("allocating device memory")?;
        DeviceBuffer::zeros(&self.queue, bytes)
    }

    /// A buffer with these numbers. Allocates; they have been read when it returns.
    ///
    /// # Errors
    /// As [`Handle::alloc`].
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<DeviceBuffer> {
        let mut buffer = self.alloc(size_of_val(values))?;
        self.write(&mut buffer.view_mut(), values)?;
        Ok(buffer)
    }

    /// Copies numbers from the host to the front of device memory, in stream order. They have been read when it returns, for which it waits
    /// where they lie in page-locked memory. Allocates nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] if they are longer than the memory; [`Error::Unsupported`] inside graph capture; [`Error::Driver`].
    pub fn write<T: Element>(&self, to: &mut DeviceBytesMut<'_>, values: &[T]) -> Result<()> {
        let order = self.order_outside_capture("copying from the host")?;
        raw::copy_from_host(&self.queue.stream, values, &to.at(&order)?)
    }

    /// The numbers in device memory, on the host. Allocates and waits.
    ///
    /// # Errors
    /// As [`Handle::read_bytes`].
    pub fn read<T: Element>(&self, from: &DeviceBytes<'_>) -> Result<Vec<T>> {
        let mut numbers = vec![T::default(); from.len() / size_of::<T>()];
        self.read_into(from, &mut numbers)?;
        Ok(numbers)
    }

    /// Copies numbers from the front of device memory to the host. Waits for them; allocates nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are fewer; otherwise as [`Handle::read_bytes`].
    pub fn read_into<T: Element>(&self, from: &DeviceBytes<'_>, to: &mut [T]) -> Result<()> {
        // Held until the numbers are there: no capture begins on the stream between the copy and its end.
        let order = self.order_outside_capture("reading device memory")?;
        raw::copy_to_host(&self.queue.stream, &from.at(&order)?, to)
    }

    /// The bytes of device memory, on the host: codes and scales with their padding as they are. Allocates and waits.
    ///
    /// # Errors
    /// [`Error::Driver`] if the copy fails; [`Error::Unsupported`] inside graph capture.
    pub fn read_bytes(&self, bytes: &DeviceBytes<'_>) -> Result<Vec<u8>> {
        self.read(bytes)
    }

    /// `rows` rows of `row_bytes` bytes, `stride` bytes apart, packed, on the host. Allocates and waits.
    ///
    /// The caller holds the span's order, and with it the turn, until the bytes are there: no capture begins on the stream between
    /// the copy, its way to the host and the free.
    pub(crate) fn read_rows(&self, src: &Span<'_>, rows: usize, row_bytes: usize, stride: usize) -> Result<Vec<u8>> {
        self.refuse_capture("reading device memory")?;
        let packed = self.stream().alloc_zeros(rows * row_bytes);
        let mut packed: CudaSlice<u8> = packed.map_err(|e| driver("allocating a copy", e))?;
        {
            let (mut target, order) = (DeviceBytesMut::from(&mut packed), self.queue.order());
            let target = target.at(&order)?;
            self.kernels.copy_2d(&self.queue, src, stride, &target, row_bytes, rows, row_bytes)?;
        }
        let (packed, order) = (DeviceBytes::from(&packed), self.queue.order());
        let mut host = vec![0; rows * row_bytes];
        raw::copy_to_host(&self.queue.stream, &packed.at(&order)?, &mut host)?;
        Ok(host)
    }

    /// Captures the work that `enqueue` puts on this handle into a graph, which owns what the work uses. Waits for the stream
    /// first.
    ///
    /// Inside, only calls that allocate nothing and wait for nothing are taken: `GemmPlan::execute` after `GemmPlan::prepare`, `GroupedGemmPlan::execute`,
    /// `Handle::scaled_gemm` of problems that it has planned, `Handle::grouped_gemm` and `Handle::fused_gemm` behind a call of the same shapes (and as chained), and the `*_into` calls. The memory they use is this crate's: a
    /// [`QuantMatrix`](crate::gpu::QuantMatrix), or a [`DeviceBuffer`] behind `MatRef` and `MatMut`. For cudarc slices see
    /// [`Handle::capture_borrowing`].
    ///
    /// # Errors
    /// What `enqueue` returns; [`Error::Unsupported`] for a cudarc slice, or inside another capture; [`Error::Driver`] if the
    /// capture was broken or is empty. What synchronizes the whole context in another thread meanwhile breaks it: the first
    /// handle of a GPU does, and so may the driver where kernels are used for the first time (ours, cuBLASLt's, its own). Nothing is
    /// lost: warm up before, or capture again.
    pub fn capture(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<CapturedGraph> {
        self.queue.capture(false, enqueue)
    }

    /// [`Handle::capture`] of work that also uses cudarc slices, which the graph cannot own.
    ///
    /// # Errors
    /// As [`Handle::capture`], and slices are taken.
    pub fn capture_borrowing(
        &self,
        _: BorrowsOutliveGraph,
        enqueue: impl FnOnce() -> Result<()>,
    ) -> Result<CapturedGraph> {
        self.queue.capture(true, enqueue)
    }

    /// Lets products of few rows follow one another more closely in captured graphs: each begins to load its weights while the one before
    /// it still runs. For the products of a decode step, inside [`Handle::capture`] or a capture of the caller's; elsewhere it changes nothing.
    /// Waits for nothing. Those by `small-m` gain, but for tiles (FP8 weights with plain rows, E2M1 weights above 16 rows and many of them above 8, groups), and the end of a scope costs more than one of them gains: put a whole step into one (docs/memory.md). Plan its products
    /// for it: [`GemmDesc::with_chained`](crate::GemmDesc::with_chained), [`GemmArgs::chained`](crate::GemmArgs::chained), [`FusedGemmArgs::chained`](crate::FusedGemmArgs::chained). The scope itself changes no plan.
    ///
    /// Results are the same bits as without. All calls of this crate may be made inside, on any handle, of this stream or of others of the same
    /// capture, and are in order. Nothing else may be enqueued on the stream inside: kernels of other libraries may read what the last product has
    /// not written yet, if they were launched with programmatic serialization and do not wait. Nor may an event be recorded on it for other streams
    /// to wait for: fork before the scope, join behind it. What is enqueued after the scope comes behind all of it, however it ends.
    ///
    /// # Errors
    /// What `enqueue` returns; [`Error::Driver`] if the end of the scope cannot be enqueued.
    pub fn chain<T>(&self, enqueue: impl FnOnce() -> Result<T>) -> Result<T> {
        let scope = self.queue.enter_chain();
        let enqueued = enqueue();
        let left = scope.leave();
        let enqueued = enqueued?;
        left.map(|()| enqueued)
    }

    /// Enqueues a graph that this handle captured: all its work once, on the same memory. Waits for nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a graph of another handle, or inside a capture; [`Error::Driver`] if the launch fails.
    pub fn launch(&self, graph: &CapturedGraph) -> Result<()> {
        self.queue.launch(graph)
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

/// A stream of this context, one at a time: whoever makes the first synchronizes the context (see above) after cudarc has counted it,
/// and a second thread would have its stream, and perhaps begin a capture, before that.
fn new_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    context.new_stream().map_err(|e| driver("creating a stream", e))
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lt_version() {
            Some(version) => write!(f, "Handle({}, cuBLASLt {version})", self.device),
            None => write!(f, "Handle({}, no cuBLASLt)", self.device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_can_move_to_another_thread() {
        fn send<T: Send>() {}
        send::<Handle>();
        send::<Error>();
    }

    #[test]
    fn a_slot_keeps_one_value_of_each_type() {
        let slots = Slots::default();
        *slots.get::<u32>() += 7;
        slots.get::<String>().push('a');
        *slots.get::<u32>() += 1;
        assert_eq!(*slots.get::<u32>(), 8);
        assert_eq!(*slots.get::<String>(), "a");
    }
}
