//! The only file that launches kernels and the only one that makes device memory out of bare addresses: one typed
//! function for each kernel family, with every length checked against what the kernel touches.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaFunction, sys};

mod block;
mod epilogue;
mod quantize;

pub(crate) use block::{BlockCodes, BlockOutput, Given};
pub(crate) use epilogue::{EpilogueCall, ScaleVector};
pub(crate) use quantize::{Factor, Input, Output};

use crate::error::{Error, Result};
use crate::format::{CodeFormat, DType};
use crate::gpu::compile::{self, KernelFile, KernelSource};
use crate::gpu::device::libraries;
use crate::gpu::device::memory::{LaunchStream, Span, driver};
use crate::gpu::lt;

const THREADS: u32 = 256;
/// Blocks along `grid.y` at the most; the kernels walk the rest.
const GRID_Y: usize = 65535;

/// The kernels of one context, loaded once for each process.
pub(crate) struct Kernels {
    source: KernelSource,
    amax_tensor: ByInput,
    /// For one and two vectors of eight elements in each thread.
    quantize_tensor: [ByInput; 2],
    quantize_tensor_transposed: ByInput,
    dequantize: [ByInput; 4],
    /// For 0 (row read twice), 1, 2, 4 and 8 vectors of eight elements in each thread.
    quantize_row: [ByInput; 5],
    amax_row_column: ByInput,
    quantize_row_transposed: ByInput,
    /// For small matrices, then for one and two groups of each row in each warp.
    quantize_1x128: [ByInput; 3],
    quantize_1x128_transposed: ByInput,
    /// For 2 and 4 rows in each thread.
    quantize_128x128: [ByInput; 2],
    quantize_128x128_transposed: ByInput,
    /// By output type.
    epilogue: ByInput,
    epilogue_e4m3: [CudaFunction; 2],
    gemm_factors: CudaFunction,
    repeat_scales: CudaFunction,
    block: block::BlockKernels,
    sm_count: usize,
}

/// One kernel for BF16, F16 and F32 elements, first for rows that start 16-byte aligned, then for any.
type ByInput = [[CudaFunction; 3]; 2];

static LOADED: Mutex<Vec<(usize, KernelSource, Weak<Kernels>)>> = Mutex::new(Vec::new());

impl Kernels {
    /// The kernels of this context, from the source the build and the environment say.
    pub(crate) fn get(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        let source = KernelSource::from_env();
        let key = context.cu_ctx() as usize;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.retain(|(_, _, kernels)| kernels.strong_count() > 0);
        if let Some(kernels) =
            loaded.iter().find(|(k, s, _)| (*k, *s) == (key, source)).and_then(|(_, _, k)| k.upgrade())
        {
            return Ok(kernels);
        }
        let kernels = Arc::new(Self::load(context, source)?);
        loaded.push((key, source, Arc::downgrade(&kernels)));
        Ok(kernels)
    }

    fn load(context: &Arc<CudaContext>, source: KernelSource) -> Result<Self> {
        let capability = context.compute_capability().map_err(|e| driver("reading the compute capability", e))?;
        let module = |file: &KernelFile| {
            let image = file.image(source, capability)?;
            context.load_module(image).map_err(|e| Error::Kernel {
                kernel: format!("kernels/{}.cu for sm_{}{}", file.name, capability.0, capability.1),
                reason: format!("the driver refused the {source:?} image: {e}"),
                remedy: "set SCALED_GEMM_KERNELS=nvrtc to compile for this GPU at run time".into(),
            })
        };
        let (nvfp4, nvfp4_tile, mxfp8) =
            (module(&compile::NVFP4)?, module(&compile::NVFP4_TILE)?, module(&compile::MXFP8)?);
        let (tensor, row, block, finish) = (
            module(&compile::FP8_TENSOR)?,
            module(&compile::FP8_ROW)?,
            module(&compile::FP8_BLOCK)?,
            module(&compile::EPILOGUE)?,
        );
        // Asking for an attribute makes the driver load the code now: inside a capture it could not.
        let one = |module: &Arc<_>, name: &str| {
            let function = cudarc::driver::CudaModule::load_function(module, name);
            function.and_then(|function| function.num_regs().map(|_| function)).map_err(|e| Error::Kernel {
                kernel: name.to_string(),
                reason: e.to_string(),
                remedy: "rebuild: the image and this program are not of one version".into(),
            })
        };
        let by_input = |module: &Arc<_>, pattern: &str| -> Result<ByInput> {
            let name = |dtype: &str| one(module, &format!("{pattern}_{dtype}"));
            Ok([
                [name("bf16")?, name("f16")?, name("f32")?],
                [name("bf16_unaligned")?, name("f16_unaligned")?, name("f32_unaligned")?],
            ])
        };
        Ok(Self {
            source,
            amax_tensor: by_input(&tensor, "amax_tensor")?,
            quantize_tensor: [by_input(&tensor, "quantize_fp8_tensor_1")?, by_input(&tensor, "quantize_fp8_tensor_2")?],
            quantize_tensor_transposed: by_input(&tensor, "quantize_fp8_tensor_transposed")?,
            dequantize: [
                by_input(&tensor, "dequantize_fp8_tensor")?,
                by_input(&row, "dequantize_fp8_row")?,
                by_input(&block, "dequantize_fp8_1x128")?,
                by_input(&block, "dequantize_fp8_128x128")?,
            ],
            quantize_row: [
                by_input(&row, "quantize_fp8_row_0")?,
                by_input(&row, "quantize_fp8_row_1")?,
                by_input(&row, "quantize_fp8_row_2")?,
                by_input(&row, "quantize_fp8_row_4")?,
                by_input(&row, "quantize_fp8_row_8")?,
            ],
            amax_row_column: by_input(&row, "amax_row_column")?,
            quantize_row_transposed: by_input(&row, "quantize_fp8_row_transposed")?,
            quantize_1x128: [
                by_input(&block, "quantize_fp8_1x128_small")?,
                by_input(&block, "quantize_fp8_1x128_1")?,
                by_input(&block, "quantize_fp8_1x128_2")?,
            ],
            quantize_1x128_transposed: by_input(&block, "quantize_fp8_1x128_transposed")?,
            quantize_128x128: [
                by_input(&block, "quantize_fp8_128x128_2")?,
                by_input(&block, "quantize_fp8_128x128_4")?,
            ],
            quantize_128x128_transposed: by_input(&block, "quantize_fp8_128x128_transposed")?,
            epilogue: by_input(&finish, "epilogue")?,
            epilogue_e4m3: [one(&finish, "epilogue_e4m3")?, one(&finish, "epilogue_e4m3_unaligned")?],
            gemm_factors: one(&finish, "gemm_factors")?,
            repeat_scales: one(&finish, "repeat_scales_128x128")?,
            block: block::BlockKernels::load([&nvfp4, &nvfp4_tile, &mxfp8], by_input)?,
            sm_count: context
                .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
                .map_err(|e| driver("reading the multiprocessor count", e))? as usize,
        })
    }

    /// Where the images came from.
    pub(crate) fn source(&self) -> KernelSource {
        self.source
    }
}

fn format_code(format: impl Into<CodeFormat>) -> u32 {
    match format.into() {
        CodeFormat::E4M3 => 0,
        CodeFormat::E5M2 => 1,
        CodeFormat::E2M1 => 2,
    }
}

fn by_input(kernels: &ByInput, dtype: DType, aligned: bool) -> Result<&CudaFunction> {
    let kernels = &kernels[usize::from(!aligned)];
    match dtype {
        DType::Bf16 => Ok(&kernels[0]),
        DType::F16 => Ok(&kernels[1]),
        DType::F32 => Ok(&kernels[2]),
        other => Err(Error::dtype("matrix", other, "is not one of bf16, f16, f32", "convert it first")),
    }
}

/// Elements from the first to past the last of a strided matrix.
fn extent(rows: usize, cols: usize, stride: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * stride + cols }
}

/// True if every row starts 16-byte aligned.
fn is_aligned(address: u64, rows: usize, stride: usize, dtype: DType) -> bool {
    address.is_multiple_of(16) && (rows <= 1 || (stride * dtype.bytes()).is_multiple_of(16))
}

fn check_bytes(operand: &str, span: &Span<'_>, needed: usize) -> Result<()> {
    if span.bytes < needed {
        return Err(Error::shape(
            operand,
            format!("{} bytes", span.bytes),
            format!("must be at least {needed}"),
            "allocate the length the scheme asks for",
        ));
    }
    Ok(())
}

fn check_aligned(operand: &str, span: &Span<'_>, required: u64) -> Result<()> {
    if !span.address.is_multiple_of(required) {
        return Err(Error::Alignment {
            operand: operand.to_string(),
            address: span.address,
            required,
            remedy: "start the buffer at the allocation, or at a multiple of that many bytes".into(),
        });
    }
    Ok(())
}

/// Checks a buffer of FP32 values.
fn check_floats(name: &str, span: &Span<'_>, count: usize) -> Result<()> {
    check_bytes(name, span, count * 4)?;
    check_aligned(name, span, 4)
}

fn address(span: Option<&Span<'_>>) -> u64 {
    span.map_or(0, |s| s.address)
}

/// Enqueues one kernel: `enqueue!(stream, kernel, (grid x, grid y), threads, parameters...)`. Each parameter must have
/// the size and meaning that the kernel's declaration gives it.
macro_rules! enqueue {
    ($stream:expr, $kernel:expr, $grid:expr, $threads:expr, $($parameter:expr),+ $(,)?) => {
        launch($stream, $kernel, $grid, $threads, &mut [$(&$parameter as *const _ as *mut c_void),+])
    };
}

fn launch(
    stream: &LaunchStream,
    kernel: &CudaFunction,
    grid: (usize, usize),
    threads: u32,
    parameters: &mut [*mut c_void],
) -> Result<()> {
    let (Ok(x), Ok(y)) = (i32::try_from(grid.0), u16::try_from(grid.1)) else {
        return Err(Error::shape(
            "kernel grid",
            format!("{} x {} blocks", grid.0, grid.1),
            "must fit 2^31 - 1 by 65535",
            "split the matrix by rows",
        ));
    };
    stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
    // Every kernel begins with `begin()` of kernels/common.cuh, which waits for the kernel before it: that makes
    // programmatic serialization safe, and a launch overlaps the tail of its predecessor.
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: x as u32,
        gridDimY: u32::from(y),
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream.stream.cu_stream(),
        attrs: &mut attribute,
        numAttrs: u32::from(stream.overlaps_launches),
    };
    // SAFETY: `parameters` point to values that outlive this call, which copies them. The typed functions of this
    // module pass them in the order and of the size that each kernel declares, and have checked every span against
    // what the kernel touches; the spans' owners are borrowed by the caller until after this enqueue, and cudarc's
    // guards in them make later users on other streams wait.
    unsafe { sys::cuLaunchKernelEx(&config, kernel.cu_function(), parameters.as_mut_ptr(), std::ptr::null_mut()) }
        .result()
        .map_err(|e| driver("launching a kernel", e))
}

use enqueue;

impl Kernels {
    /// Copies `rows` rows of `row_bytes` bytes between device buffers; strides in bytes.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn copy_2d(
        &self,
        stream: &LaunchStream,
        src: &Span<'_>,
        src_stride: usize,
        dst: &Span<'_>,
        dst_stride: usize,
        rows: usize,
        row_bytes: usize,
    ) -> Result<()> {
        if rows == 0 || row_bytes == 0 {
            return Ok(());
        }
        check_bytes("source of a copy", src, extent(rows, row_bytes, src_stride))?;
        check_bytes("target of a copy", dst, extent(rows, row_bytes, dst_stride))?;
        let copy = sys::CUDA_MEMCPY2D_st {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: src.address,
            srcArray: std::ptr::null_mut(),
            srcPitch: src_stride,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype_enum::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: dst.address,
            dstArray: std::ptr::null_mut(),
            dstPitch: dst_stride,
            WidthInBytes: row_bytes,
            Height: rows,
        };
        stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
        let raw = stream.stream.cu_stream();
        // SAFETY: both spans are long enough (checked above), borrowed by the caller past this enqueue, and cudarc's
        // guards in them order later users on other streams.
        let result = unsafe {
            if rows == 1 || (src_stride == row_bytes && dst_stride == row_bytes) {
                sys::cuMemcpyDtoDAsync_v2(dst.address, src.address, rows * row_bytes, raw)
            } else {
                sys::cuMemcpy2DAsync_v2(&copy, raw)
            }
        };
        result.result().map_err(|e| driver("copying on the device", e))
    }

    /// Sets the first `bytes` bytes to zero.
    pub(crate) fn zero(&self, stream: &LaunchStream, dst: &Span<'_>, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        check_bytes("memory to clear", dst, bytes)?;
        stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
        // SAFETY: the span is long enough (checked above) and borrowed by the caller past this enqueue; cudarc's guard
        // in it orders later users on other streams.
        let result = unsafe { sys::cuMemsetD8Async(dst.address, 0, bytes, stream.stream.cu_stream()) };
        result.result().map_err(|e| driver("clearing device memory", e))
    }
}

/// The version of the NVRTC in this process, loading it if need be.
pub(crate) fn nvrtc_version() -> Result<String> {
    libraries::nvrtc_available(lt::keep_loaded)?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present (asked just above) and writes the two integers.
    let status = unsafe { cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    match status {
        cudarc::nvrtc::sys::nvrtcResult::NVRTC_SUCCESS => Ok(format!("{major}.{minor}")),
        status => Err(Error::Library {
            library: "NVRTC".into(),
            reason: format!("nvrtcVersion returned {status:?}"),
            remedy: "reinstall the CUDA run-time compiler".into(),
        }),
    }
}
