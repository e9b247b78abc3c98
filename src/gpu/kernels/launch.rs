//! How a kernel is launched: grid, cluster, dynamic shared memory, and overlap with the kernel before it.

use std::ffi::c_void;

use cudarc::driver::{DriverError, result, sys};

use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::chain::Seal;
use crate::gpu::device::memory::driver;
use crate::gpu::device::stream::Queue;

/// Threads of a block where a kernel does not ask for another number.
pub(super) const THREADS: u32 = 256;
/// Blocks along `grid.y` at the most; kernels walk the rest, or for tiles columns of the grid begin anew (`tile_grid` in cast.rs).
pub(super) const GRID_Y: usize = 65535;

/// A function of a loaded image. Images are never unloaded, so it may be copied and kept.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    function: sys::CUfunction,
    /// It was compiled for 90 or above, where `begin()` of `kernels/base/launch.cuh` waits for the kernel before: only then may
    /// the launch ask to overlap it. PTX for 89 runs on every later GPU, and waits on none.
    waits: bool,
}

// SAFETY: a function of an image that is never unloaded, which the driver lets any thread launch, each with the context bound.
unsafe impl Send for Kernel {}
// SAFETY: as above; nothing of it changes.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Reads what the launch must know. Asking makes the driver load the code now: inside a capture it could not.
    ///
    /// # Safety
    /// `function` must be of an image that is never unloaded, and its context must be bound to this thread.
    pub(super) unsafe fn new(function: sys::CUfunction) -> std::result::Result<Self, DriverError> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PTX_VERSION;
        // SAFETY: the caller vouches for the function.
        let compiled_for = unsafe { result::function::get_function_attribute(function, attribute) }?;
        Ok(Self { function, waits: waits(compiled_for) })
    }

    /// Lets launches ask for so many bytes of dynamic shared memory. The context is bound, as for [`Kernel::new`].
    pub(super) fn allow_shared(&self, bytes: u32) -> std::result::Result<(), DriverError> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is of an image that is never unloaded.
        unsafe { result::function::set_function_attribute(self.function, attribute, bytes as i32) }
    }

    /// Asks for as much of a multiprocessor's memory as shared memory as there is, though the kernel takes none: the blocks of one that is released by this find room for theirs while these still run.
    /// (Else they stand where these do not, for as long as they run: H100, 2026-11, the record of wgmma.) The context is bound, as for [`Kernel::new`].
    pub(super) fn leave_shared(&self) -> std::result::Result<(), DriverError> {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function is of an image that is never unloaded.
        unsafe { result::function::set_function_attribute(self.function, attribute, 100) }
    }

    /// The same, for launches that begin when all before them has ended.
    pub(super) fn behind_all(self) -> Self {
        Self { waits: false, ..self }
    }

    /// Whether its code knows clusters: they came with the wait.
    pub(super) fn has_clusters(&self) -> bool {
        self.waits
    }
}

/// Whether code for this virtual architecture (`CU_FUNC_ATTRIBUTE_PTX_VERSION`, major * 10 + minor; machine code keeps that
/// of the PTX it was made from) has the wait.
fn waits(compiled_for: i32) -> bool {
    compiled_for >= 90
}

/// One kernel for BF16, F16 and F32 elements, first for rows that start 16-byte aligned, then for any.
pub(super) struct ByInput(pub(super) [[Kernel; 3]; 2]);

impl ByInput {
    pub(super) fn of(&self, dtype: DType, aligned: bool) -> Result<Kernel> {
        let kernels = &self.0[usize::from(!aligned)];
        match dtype {
            DType::Bf16 => Ok(kernels[0]),
            DType::F16 => Ok(kernels[1]),
            DType::F32 => Ok(kernels[2]),
            other => Err(Error::dtype("matrix", other, "is not one of bf16, f16, f32", "convert it first")),
        }
    }
}

/// The blocks of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    grid: (usize, usize),
    threads: u32,
    /// Neighbours along `grid.x` that form one cluster; 1: none.
    cluster: u32,
    /// All blocks run at once, so that each may wait for every other; a grid that does not fit is refused by the driver.
    cooperative: bool,
    /// Dynamic shared memory of each, in bytes.
    shared: u32,
}

impl Blocks {
    /// `grid.0` by `grid.1` blocks.
    pub(super) fn new(grid: (usize, usize), threads: u32) -> Self {
        Self { grid, threads, cluster: 1, cooperative: false, shared: 0 }
    }

    /// Blocks that run at once, all of them.
    pub(super) fn cooperative(self) -> Self {
        Self { cooperative: true, ..self }
    }

    /// Clusters of this many blocks along x, at most 8 (what every GPU with clusters can place).
    pub(super) fn clusters(self, cluster: u32) -> Self {
        Self { cluster, ..self }
    }

    /// Dynamic shared memory, at most 48 KiB unless [`Kernel::allow_shared`] was told of more.
    pub(super) fn shared(self, shared: u32) -> Self {
        Self { shared, ..self }
    }

    /// `grid.x` and `grid.y` as the driver takes them.
    pub(super) fn checked(&self) -> Result<(u32, u32)> {
        let Self { grid: (x, y), threads, cluster, .. } = *self;
        if x == 0 || y == 0 || x > i32::MAX as usize || y > GRID_Y {
            return Err(Error::shape(
                "kernel grid",
                format!("{x} x {y} blocks"),
                format!("must be at least 1 and fit 2^31 - 1 by {GRID_Y}"),
                "split the matrix, by columns where it has few rows",
            ));
        }
        if !(1..=8).contains(&cluster) || !x.is_multiple_of(cluster as usize) || !(1..=1024).contains(&threads) {
            return Err(Error::shape(
                "kernel grid",
                format!("{x} blocks of {threads} threads in clusters of {cluster}"),
                "must be whole clusters of 1 to 8 blocks, of 1 to 1024 threads each",
                "report it: a launch of this crate asked for it",
            ));
        }
        Ok((x as u32, y as u32))
    }
}

/// Enqueues one kernel: `enqueue!(stream, kernel, Blocks::new(grid, threads), parameters...)`. Each parameter must have the
/// size and meaning that the kernel's declaration gives it.
macro_rules! enqueue {
    ($stream:expr, $kernel:expr, $blocks:expr, $($parameter:expr),+ $(,)?) => {
        $crate::gpu::kernels::launch::launch(
            $stream, $kernel, $blocks, &mut [$(&$parameter as *const _ as *mut std::ffi::c_void),+])
    };
}
pub(super) use enqueue;

/// [`enqueue!`] of a kernel whose parameters begin with an input, its address, row stride, rows and columns:
/// `enqueue_input!(stream, kernel, x, blocks, parameters...)`.
macro_rules! enqueue_input {
    ($stream:expr, $kernel:expr, $x:expr, $blocks:expr, $($parameter:expr),+ $(,)?) => {
        $crate::gpu::kernels::launch::enqueue!(
            $stream,
            $kernel,
            $blocks,
            $x.x.address,
            $x.row_stride as u64,
            $x.rows as u32,
            $x.cols as u32,
            $($parameter),+
        )
    };
}
pub(super) use enqueue_input;

/// [`enqueue_input!`] of a cast: `enqueue_cast!(stream, by_input, x, blocks, parameters...)` takes the kernel for the input's type and
/// alignment.
macro_rules! enqueue_cast {
    ($stream:expr, $kernels:expr, $x:expr, $blocks:expr, $($parameter:expr),+ $(,)?) => {
        $crate::gpu::kernels::launch::enqueue_input!(
            $stream,
            $kernels.of($x.dtype, $x.aligned())?,
            $x,
            $blocks,
            $($parameter),+
        )
    };
}
pub(super) use enqueue_cast;

/// The end of a chain: a kernel without parameters, which touches no memory.
pub(super) fn seal(kernel: Kernel) -> Seal {
    Box::new(move |stream| launch(stream, kernel.behind_all(), Blocks::new((1, 1), 32), &mut []))
}

pub(super) fn launch(stream: &Queue, kernel: Kernel, blocks: Blocks, parameters: &mut [*mut c_void]) -> Result<()> {
    let (x, y) = blocks.checked()?;
    stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
    let mut attributes = [sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    }; 3];
    let mut count = 0;
    if kernel.waits {
        // The launch overlaps the tail of its predecessor, and memory stays in order: the kernel waits before it touches any.
        attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count].value.programmaticStreamSerializationAllowed = 1;
        count += 1;
    }
    if blocks.cooperative {
        attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attributes[count].value.cooperative = 1;
        count += 1;
    }
    if blocks.cluster > 1 {
        attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks.cluster, y: 1, z: 1 };
        count += 1;
    }
    let config = sys::CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: 1,
        blockDimX: blocks.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: blocks.shared,
        hStream: stream.stream.cu_stream(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: count as u32,
    };
    // SAFETY: `parameters` point to values that outlive this call, which copies them. The typed functions of this
    // module pass them in the order and of the size that each kernel declares, and have checked every span against
    // what the kernel touches; the spans' owners are borrowed by the caller until after this enqueue, and the
    // guards of their order make later users on other streams wait.
    unsafe { sys::cuLaunchKernelEx(&config, kernel.function, parameters.as_mut_ptr(), std::ptr::null_mut()) }
        .result()
        .map_err(|e| driver("launching a kernel", e))?;
    stream.in_order();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_for_90_and_above_waits() {
        // Forward PTX of earlier versions of this crate, on any GPU, was for 89.
        assert!(![0, 80, 86, 89].into_iter().any(waits));
        assert!([90, 100, 103, 110, 120, 121].into_iter().all(waits));
    }

    #[test]
    fn grids_are_checked() {
        let blocks = |x, y| Blocks::new((x, y), 256);
        assert_eq!(blocks(7, GRID_Y).checked().unwrap(), (7, 65535));
        assert_eq!(blocks(i32::MAX as usize, 1).clusters(1).checked().unwrap().0, i32::MAX as u32);
        assert_eq!(blocks(264, 1).clusters(4).shared(4096).checked().unwrap(), (264, 1));
        for bad in [
            blocks(0, 1),
            blocks(1, 0),
            blocks(1 << 31, 1),
            blocks(1, GRID_Y + 1),
            blocks(usize::MAX, usize::MAX),
            blocks(7, 1).clusters(2),
            blocks(16, 1).clusters(16),
            blocks(16, 1).clusters(0),
            Blocks::new((1, 1), 0),
            Blocks::new((1, 1), 1025),
        ] {
            assert!(matches!(bad.checked(), Err(Error::Shape { .. })), "{bad:?}");
        }
    }
}
