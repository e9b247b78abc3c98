//! The only wing that launches kernels and the only one that makes device memory out of bare addresses: one typed
//! function for each kernel, with every length checked against what the kernel touches.
//!
//! `image` says where kernels come from, `module` loads them, `launch` enqueues them; then one file for each family.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::{CudaContext, sys};

mod cast;
mod cast_args;
mod cast_call;
mod cast_channels;
mod dequantize_blocks;
mod epilogue;
mod fp8;
mod fp8_tensor_once;
mod fp8_tiles;
mod fused;
mod grouped;
mod grouped_arrays;
mod grouped_between;
mod grouped_delayed;
mod grouped_forward;
mod grouped_members;
mod image;
mod launch;
mod linear;
mod module;
mod mx;
mod nvfp4;
mod nvfp4_row_launch;
mod operand;
mod produced;
mod ptx_cache;
mod scale_rule;
mod sm90;
mod sm90_call;
mod sm90_config;
mod sm90_groups;
mod sm90_maps;
mod small_m;
mod small_m_chain;
mod small_m_codes;
mod small_m_config;
mod small_m_end;
mod small_m_gated;
mod small_m_groups;
mod small_m_groups_wgmma;
mod small_m_join;
mod small_m_one_row;
mod small_m_split;
mod small_m_weights;
mod small_m_wgmma;
mod tensor_map;

pub(crate) use cast_call::{CastFrom, CastPart, CastTo, CastValues, ProducerCall, ProducerKind};
pub(crate) use epilogue::{EpilogueCall, ScaleVector};
pub(crate) use fused::{BackwardCall, BackwardTo, NormCall, Strided};
pub(crate) use grouped::{GroupedCast, GroupedCodes, GroupedFactors, GroupedInput};
pub(crate) use grouped_arrays::{
    GroupArray, GroupArrays, GroupOperand, GroupScales, group_array, group_array_bytes, group_factors,
};
pub(crate) use grouped_between::{CLAMPED, GROUP_AMAX, GroupPlaces};
pub(crate) use grouped_forward::GroupedForward;
pub(crate) use grouped_members::GroupedMembers;
pub use image::{KernelFamily, KernelSource};
pub(crate) use linear::{DelayedRule, MOST_SUMMED_ROWS, column_sum_bytes};
pub(crate) use operand::{BlockCodes, Factor, Input, Output, check_floats};
pub(crate) use sm90_call::{Sm90Call, Sm90Codes, Sm90End, Sm90Operand, Sm90Scales};
pub use sm90_config::Sm90Config;
pub(crate) use sm90_groups::{Sm90Along, Sm90Groups};
#[cfg(test)]
pub(crate) use sm90_maps::call_of;
pub(crate) use sm90_maps::{Sm90Maps, Sm90MapsKey};
pub(crate) use small_m::{SmallMCall, SmallMScales};
pub(crate) use small_m_chain::FEW_ROWS;
pub(crate) use small_m_codes::SmallMWeights;
pub(crate) use small_m_config::most_rows;
pub use small_m_config::{SmallMBlock, SmallMConfig, SmallMOperands};
pub(crate) use small_m_end::{MOST_LENGTH, SmallMEnd};
pub(crate) use small_m_groups::{SmallMGroupsCall, SmallMGroupsConfig};
pub(crate) use small_m_one_row::OneRow;
pub(crate) use small_m_split::{Meeting, clusters_at_once};
pub(crate) use small_m_weights::{E2M1_K_MULTIPLE, Each, OuterScales, SmallMWeightsCall, most_k_power};
pub(crate) use small_m_wgmma::{Wgmma, takes as wgmma_takes};

use crate::error::{Error, Result};
use crate::format::Scheme;
use crate::gpu::device::graph::capturing_here;
use crate::gpu::device::libraries;
use crate::gpu::device::memory::{Span, driver};
use crate::gpu::device::stream::{Capture, Queue};
use crate::gpu::lt;
use module::{Loader, Modules};
use operand::{check_bytes, extent};

/// The kernels of one context. A family is loaded when the first of its kernels is used, and stays as long as the process.
pub(crate) struct Kernels {
    loader: Loader,
    /// Held while a family is loaded, so that two threads do not load it twice.
    loading: Mutex<()>,
    fp8: OnceLock<fp8::Fp8Kernels>,
    grouped: OnceLock<grouped::GroupedKernels>,
    cast: OnceLock<cast::CastKernels>,
    fused: OnceLock<fused::FusedKernels>,
    mxfp8: OnceLock<mx::MxKernels>,
    mxfp4: OnceLock<mx::MxKernels>,
    nvfp4: OnceLock<nvfp4::Nvfp4Kernels>,
    linear: OnceLock<linear::LinearKernels>,
    epilogue: OnceLock<epilogue::EpilogueKernels>,
    sm90: OnceLock<sm90_config::Sm90Kernels>,
    sm90_e5m2: OnceLock<sm90_config::Sm90Kernels>,
    small_m: OnceLock<SmallMFamily>,
    small_m_weights: OnceLock<small_m_weights::SmallMWeightsKernels>,
    small_m_groups: OnceLock<small_m_groups::SmallMGroupsKernels>,
    sm_count: usize,
}

/// Products of few rows of E4M3 codes, those with two matrices, those with weights that are decoded by warpgroup products, and those of one row.
type SmallMFamily = (
    small_m::SmallMKernels,
    small_m_gated::SmallMGatedKernels,
    small_m_wgmma::SmallMWgmmaKernels,
    small_m_one_row::SmallMOneRowKernels,
);

/// By address of the context and source. Nothing is ever taken out: work and graphs may outlive every handle, and the loader
/// keeps the context, so that its address stays its own.
static LOADED: Mutex<Vec<(usize, KernelSource, Arc<Kernels>)>> = Mutex::new(Vec::new());

impl Kernels {
    /// The kernels of this context, from the source the build and the environment say. Loads none yet.
    pub(crate) fn get(context: &Arc<CudaContext>) -> Result<Arc<Self>> {
        let source = KernelSource::from_env();
        let key = context.cu_ctx() as usize;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., kernels)) = loaded.iter().find(|(k, s, _)| (*k, *s) == (key, source)) {
            return Ok(kernels.clone());
        }
        let sm_count = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(|e| driver("reading the multiprocessor count", e))?;
        let kernels = Arc::new(Self {
            loader: Loader::new(context, source)?,
            loading: Mutex::new(()),
            fp8: OnceLock::new(),
            grouped: OnceLock::new(),
            cast: OnceLock::new(),
            fused: OnceLock::new(),
            mxfp8: OnceLock::new(),
            mxfp4: OnceLock::new(),
            nvfp4: OnceLock::new(),
            linear: OnceLock::new(),
            epilogue: OnceLock::new(),
            sm90: OnceLock::new(),
            sm90_e5m2: OnceLock::new(),
            small_m: OnceLock::new(),
            small_m_weights: OnceLock::new(),
            small_m_groups: OnceLock::new(),
            sm_count: sm_count as usize,
        });
        loaded.push((key, source, kernels.clone()));
        Ok(kernels)
    }

    /// Where the images come from.
    pub(crate) fn source(&self) -> KernelSource {
        self.loader.source
    }

    /// Loads a family now, if it is not yet.
    pub(crate) fn load(&self, stream: &Queue, family: KernelFamily) -> Result<()> {
        match family {
            KernelFamily::Fp8 => self.fp8(stream).map(drop),
            KernelFamily::Grouped => self.grouped(stream).map(drop),
            KernelFamily::Cast => self.casts(stream).map(drop),
            KernelFamily::Fused => self.fused(stream).map(drop),
            KernelFamily::Mxfp8 => self.mxfp8(stream).map(drop),
            KernelFamily::Mxfp4 => self.mxfp4(stream).map(drop),
            KernelFamily::Nvfp4 => self.nvfp4(stream).map(drop),
            KernelFamily::Linear => self.linear(stream).map(drop),
            KernelFamily::Epilogue => self.epilogue_kernels(stream).map(drop),
            KernelFamily::Sm90 => self.sm90(stream).map(drop),
            KernelFamily::Sm90E5m2 => self.sm90_e5m2(stream).map(drop),
            KernelFamily::SmallM => self.small_m(stream).map(drop),
            KernelFamily::SmallMWeights => self.small_m_weights(stream).map(drop),
            KernelFamily::SmallMGroups => self.small_m_groups_family(stream).map(drop),
        }
    }

    /// Loads what casts to and from this scheme use.
    pub(crate) fn load_casts(&self, stream: &Queue, scheme: Scheme) -> Result<()> {
        let families: &[KernelFamily] = match scheme {
            Scheme::Fp8Tensor(_) | Scheme::Fp8Row(_) | Scheme::Fp8Group1x128(_) | Scheme::Fp8Group128x128(_) => {
                &[KernelFamily::Fp8]
            }
            Scheme::Mxfp8(_) => &[KernelFamily::Mxfp8],
            Scheme::Mxfp4 => &[KernelFamily::Mxfp4],
            // The maxima for the second level are FP8's.
            Scheme::Nvfp4 | Scheme::Nvfp4Row => &[KernelFamily::Nvfp4, KernelFamily::Fp8],
        };
        families.iter().try_for_each(|&family| self.load(stream, family))
    }

    fn fp8(&self, stream: &Queue) -> Result<&fp8::Fp8Kernels> {
        self.family(&self.fp8, KernelFamily::Fp8, fp8::Fp8Kernels::of, stream)
    }

    fn grouped(&self, stream: &Queue) -> Result<&grouped::GroupedKernels> {
        self.family(&self.grouped, KernelFamily::Grouped, grouped::GroupedKernels::of, stream)
    }

    fn casts(&self, stream: &Queue) -> Result<&cast::CastKernels> {
        self.family(&self.cast, KernelFamily::Cast, cast::CastKernels::of, stream)
    }

    fn fused(&self, stream: &Queue) -> Result<&fused::FusedKernels> {
        self.family(&self.fused, KernelFamily::Fused, fused::FusedKernels::of, stream)
    }

    fn mxfp8(&self, stream: &Queue) -> Result<&mx::MxKernels> {
        self.family(&self.mxfp8, KernelFamily::Mxfp8, mx::MxKernels::mxfp8, stream)
    }

    fn mxfp4(&self, stream: &Queue) -> Result<&mx::MxKernels> {
        self.family(&self.mxfp4, KernelFamily::Mxfp4, mx::MxKernels::mxfp4, stream)
    }

    fn nvfp4(&self, stream: &Queue) -> Result<&nvfp4::Nvfp4Kernels> {
        self.family(&self.nvfp4, KernelFamily::Nvfp4, nvfp4::Nvfp4Kernels::of, stream)
    }

    fn linear(&self, stream: &Queue) -> Result<&linear::LinearKernels> {
        self.family(&self.linear, KernelFamily::Linear, linear::LinearKernels::of, stream)
    }

    fn epilogue_kernels(&self, stream: &Queue) -> Result<&epilogue::EpilogueKernels> {
        self.family(&self.epilogue, KernelFamily::Epilogue, epilogue::EpilogueKernels::of, stream)
    }

    fn sm90(&self, stream: &Queue) -> Result<&sm90_config::Sm90Kernels> {
        self.family(&self.sm90, KernelFamily::Sm90, sm90_config::Sm90Kernels::of, stream)
    }

    fn sm90_e5m2(&self, stream: &Queue) -> Result<&sm90_config::Sm90Kernels> {
        self.family(&self.sm90_e5m2, KernelFamily::Sm90E5m2, sm90_config::Sm90Kernels::of_e5m2, stream)
    }

    fn small_m(&self, stream: &Queue) -> Result<&SmallMFamily> {
        let of = |modules: &Modules| {
            Ok((
                small_m::SmallMKernels::of(modules)?,
                small_m_gated::SmallMGatedKernels::of(modules)?,
                small_m_wgmma::SmallMWgmmaKernels::of(modules)?,
                small_m_one_row::SmallMOneRowKernels::of(modules)?,
            ))
        };
        self.family(&self.small_m, KernelFamily::SmallM, of, stream)
    }

    /// Whether the kernels that are for sm_90 alone run on this GPU.
    fn on_hopper(&self) -> bool {
        KernelFamily::SmallM.runs_on(self.loader.compute_capability())
    }

    fn small_m_weights(&self, stream: &Queue) -> Result<&small_m_weights::SmallMWeightsKernels> {
        if self.on_hopper() {
            // What ends a chain is there, what multiplies tiles by warpgroups, and one row.
            self.small_m(stream)?;
        }
        let of = small_m_weights::SmallMWeightsKernels::of;
        self.family(&self.small_m_weights, KernelFamily::SmallMWeights, of, stream)
    }

    fn small_m_groups_family(&self, stream: &Queue) -> Result<&small_m_groups::SmallMGroupsKernels> {
        let of = small_m_groups::SmallMGroupsKernels::of;
        self.family(&self.small_m_groups, KernelFamily::SmallMGroups, of, stream)
    }

    /// A loaded family, or one that is loaded now. Drivers before CUDA 12.3 cannot load while a stream is captured, and NVRTC may
    /// take a minute: inside a capture of this stream, or on this thread, it is refused, whatever the driver.
    fn family<'k, T>(
        &'k self,
        slot: &'k OnceLock<T>,
        family: KernelFamily,
        of: fn(&Modules) -> Result<T>,
        stream: &Queue,
    ) -> Result<&'k T> {
        if let Some(kernels) = slot.get() {
            return Ok(kernels);
        }
        if stream.order().capture != Capture::No || capturing_here() {
            return Err(Error::unsupported(
                format!("loading the {family} kernels while the stream is captured into a graph"),
                "it may wait, which would break the capture",
                "call Handle::load_kernels before the capture begins, or the same call once outside of it",
            ));
        }
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = slot.get() {
            return Ok(kernels);
        }
        tracing::debug!(%family, source = ?self.loader.source, "loading kernels");
        let kernels = of(&self.loader.load(family)?)?;
        Ok(slot.get_or_init(|| kernels))
    }
}

impl Kernels {
    /// Copies `rows` rows of `row_bytes` bytes between device buffers; strides in bytes.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn copy_2d(
        &self,
        stream: &Queue,
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
        stream.settle()?;
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
        // SAFETY: both spans are long enough (checked above), borrowed by the caller past this enqueue, and the
        // guards of their order make later users on other streams wait.
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
    pub(crate) fn zero(&self, stream: &Queue, dst: &Span<'_>, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        check_bytes("memory to clear", dst, bytes)?;
        stream.settle()?;
        stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
        // SAFETY: the span is long enough (checked above) and borrowed by the caller past this enqueue; the guard
        // of its order makes later users on other streams wait.
        let result = unsafe { sys::cuMemsetD8Async(dst.address, 0, bytes, stream.stream.cu_stream()) };
        result.result().map_err(|e| driver("clearing device memory", e))
    }

    /// Sets `rows` rows of `row_bytes` bytes to zero, `stride` bytes apart; what lies between them is left alone.
    pub(crate) fn zero_2d(
        &self,
        stream: &Queue,
        dst: &Span<'_>,
        stride: usize,
        rows: usize,
        row_bytes: usize,
    ) -> Result<()> {
        if rows == 0 || row_bytes == 0 {
            return Ok(());
        }
        if rows == 1 || stride == row_bytes {
            return self.zero(stream, dst, rows * row_bytes);
        }
        check_bytes("memory to clear", dst, extent(rows, row_bytes, stride))?;
        stream.settle()?;
        stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
        // SAFETY: as in `zero`; the last row ends within the span (checked above).
        let result =
            unsafe { sys::cuMemsetD2D8Async(dst.address, stride, 0, row_bytes, rows, stream.stream.cu_stream()) };
        result.result().map_err(|e| driver("clearing rows of device memory", e))
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
