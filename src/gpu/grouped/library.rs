//! cuBLASLt's own product of groups ([`LibraryProduct`]), where it is asked for: one call, behind a launch of ours that tells it on the device where matrices lie and how many rows each group has.

use super::fit::{check_apart, check_operands_apart, check_places_apart};
use super::slots::check_scales;
use super::{GroupedGemmArgs, GroupedGemmDesc};
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{CodeOrder, Fp8Format, Operand, Scheme};
use crate::gpu::device::info::DeviceInfo;
use crate::gpu::device::memory::Span;
use crate::gpu::gemm::call::ALIGNMENT;
use crate::gpu::gemm::lt_step::code_type;
use crate::gpu::handle::{Handle, WORKSPACE_BYTES};
use crate::gpu::kernels::{
    GroupArray, GroupArrays, GroupOperand, GroupScales, KernelFamily, Sm90Call, group_array, group_array_bytes,
    group_factors,
};
use crate::gpu::lt::quirks::Version;
use crate::gpu::lt::{FastAccumulation, GroupedCall, GroupedMatmul, GroupedProblem, ScaleMode, grouped_refusal};
use crate::gpu::matrix::{QuantMatrix, QuantSpans};

/// How it reads the scales of both operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LibraryScales {
    /// One number of each whole matrix.
    One,
    /// One of each group.
    Each,
    /// One of 32 or 16 neighbours along k, rows in tiles of 128.
    Blocks(ScaleMode),
}

impl LibraryScales {
    fn mode(self) -> ScaleMode {
        match self {
            Self::One => ScaleMode::Scalar,
            Self::Each => ScaleMode::EachGroup,
            Self::Blocks(mode) => mode,
        }
    }

    /// Rows that a group begins at a multiple of.
    pub(super) fn step(self) -> usize {
        if matches!(self, Self::Blocks(_)) { 128 } else { 4 }
    }
}

/// How it reads operands of this problem on this GPU, whatever its version; where it does not, why.
fn scales(desc: &GroupedGemmDesc, a: Scheme, device: &DeviceInfo) -> std::result::Result<LibraryScales, String> {
    let GroupedGemmDesc { b, slot_rows, scales_of_groups, .. } = *desc;
    let (major, minor) = device.compute_capability;
    let pair = match (a, b) {
        (Scheme::Fp8Tensor(Fp8Format::E5M2), Scheme::Fp8Tensor(Fp8Format::E5M2)) => {
            return Err("it multiplies no e5m2 by e5m2".to_string());
        }
        (Scheme::Fp8Tensor(_), Scheme::Fp8Tensor(_)) => match scales_of_groups {
            [false, false] => LibraryScales::One,
            _ => LibraryScales::Each,
        },
        (Scheme::Mxfp8(_), Scheme::Mxfp8(_)) if major >= 10 => LibraryScales::Blocks(ScaleMode::Vector32Ue8m0),
        (Scheme::Nvfp4, Scheme::Nvfp4) if major >= 10 => LibraryScales::Blocks(ScaleMode::Vector16Ue4m3),
        (Scheme::Mxfp8(_), Scheme::Mxfp8(_)) | (Scheme::Nvfp4, Scheme::Nvfp4) => {
            return Err(format!("sm_{major}{minor} has no tensor cores for block scales"));
        }
        _ => {
            return Err("its groups are of fp8-tensor, mxfp8 or nvfp4 operands on both sides: of others the scales of some rows do not lie together, or need an epilogue".to_string());
        }
    };
    if matches!(pair, LibraryScales::Blocks(_)) {
        if scales_of_groups.contains(&true) {
            return Err("it has one second level of all groups".to_string());
        }
        if !desc.k.is_multiple_of(32) {
            return Err(format!("k = {} is no multiple of 32, as tensor cores for block scales need", desc.k));
        }
        if let Some(rows) = slot_rows.filter(|rows| !rows.is_multiple_of(128)) {
            return Err(format!("block scales lie in tiles of 128 rows, and slots have {rows}"));
        }
    }
    Ok(pair)
}

/// The same, also where something else is asked of the product that it has not.
///
/// # Errors
/// [`Error::Unsupported`] with the reason; [`Error::Shape`] for rows of D that it cannot store.
pub(super) fn served(desc: &GroupedGemmDesc, a: Scheme, device: &DeviceInfo) -> Result<LibraryScales> {
    let more = desc.bias.is_some() || desc.activation != Activation::None;
    let reason = match scales(desc, a, device) {
        Ok(_) if more => "bias and activation are no part of it".to_string(),
        Ok(_) if desc.b_order != CodeOrder::Published => "it reads codes as they are published".to_string(),
        Ok(scales) => {
            Sm90Call::check_d_stride(desc.n, desc.out_stride, desc.out)?;
            return Ok(scales);
        }
        Err(reason) => reason,
    };
    Err(refused(desc, reason))
}

/// Why it is not what multiplies these where nobody asks for it: it cannot, or is called where it is asked for alone.
pub(super) fn why_not(desc: &GroupedGemmDesc, device: &DeviceInfo, version: Option<Version>) -> String {
    let pair = match desc.a {
        Operand::Quantized(a) => scales(desc, a, device).err(),
        Operand::Plain(_) => Some("it multiplies no plain A".to_string()),
    };
    let refusal = version.map_or(Some("there is no cuBLASLt here".to_string()), |version| {
        grouped_refusal(version, device.compute_capability)
    });
    match (pair, refusal) {
        (Some(reason), _) => format!("cuBLASLt's own product of groups is none of these: {reason}"),
        (None, Some(reason)) => reason,
        (None, None) => {
            "cuBLASLt's own product of groups, experimental there, is called where it is asked for alone".to_string()
        }
    }
}

fn refused(desc: &GroupedGemmDesc, reason: String) -> Error {
    Error::unsupported(
        format!("cuBLASLt's own product of groups of {} x {}", desc.a, desc.b),
        reason,
        "leave by_cublaslt out: this crate chooses another way, or says why there is none",
    )
}

/// Bytes of scratch memory of a call.
pub(super) fn scratch_bytes(desc: &GroupedGemmDesc) -> usize {
    group_array_bytes(desc.groups)
}

/// Loads kernels, and reserves scratch memory.
pub(super) fn make_ready(handle: &Handle, desc: &GroupedGemmDesc) -> Result<()> {
    handle.load_kernels(&[KernelFamily::Grouped])?;
    handle.reserve_scratch(scratch_bytes(desc))
}

/// One made ready: an algorithm, for groups that usually have as many rows as they were said to.
pub(super) struct LibraryProduct {
    scales: LibraryScales,
    /// `None`: there is nothing to multiply.
    matmul: Option<GroupedMatmul>,
}

impl LibraryProduct {
    /// Asks the library for an algorithm.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where its version has none, or is known to err on this GPU, and in a capture; [`Error::Library`] without it.
    pub(super) fn ask(handle: &Handle, desc: &GroupedGemmDesc, a: Scheme, scales: LibraryScales) -> Result<Self> {
        let lt = handle.lt()?;
        if let Some(reason) = grouped_refusal(lt.version(), handle.device().compute_capability) {
            return Err(refused(desc, reason));
        }
        if desc.groups == 0 || desc.rows == 0 || desc.n == 0 {
            return Ok(Self { scales, matmul: None });
        }
        handle.refuse_capture(
            "asking cuBLASLt for its product of groups, of which no plan was made (Handle::plan_grouped),",
        )?;
        let problem = GroupedProblem {
            groups: desc.groups,
            // Column-major, it sees the transpose of D: its A is our B.
            types: [code_type(desc.b), code_type(a), desc.out.into()],
            scales: scales.mode(),
            fast: FastAccumulation::Off,
            usual: [desc.k, desc.n, desc.usual_rows()],
        };
        match GroupedMatmul::ask(handle.lt()?, problem, handle.placeholder(), WORKSPACE_BYTES, ALIGNMENT)? {
            Ok(matmul) => Ok(Self { scales, matmul: Some(matmul) }),
            Err(reason) => Err(refused(desc, reason)),
        }
    }

    pub(super) fn explain(&self, desc: &GroupedGemmDesc) -> String {
        let Some(matmul) = &self.matmul else { return format!("{desc}\n  nothing to do") };
        format!(
            "{desc}\n  cuBLASLt's own product of groups, by groups that the device knows, behind a launch that tells it where they lie in {} bytes of scratch memory; {} bytes of the handle's workspace\n  {}\n  because it is asked for",
            scratch_bytes(desc),
            matmul.workspace_bytes(),
            matmul.words(),
        )
    }

    /// Enqueues both. Allocates nothing, asks nothing.
    pub(super) fn multiply(
        &mut self,
        handle: &Handle,
        args: &mut GroupedGemmArgs<'_>,
        desc: &GroupedGemmDesc,
        all_a: &QuantMatrix,
    ) -> Result<()> {
        let Some(matmul) = &mut self.matmul else { return Ok(()) };
        let &GroupedGemmDesc { groups, rows, n, k, .. } = desc;
        let GroupedGemmArgs { b: all_b, rows: where_rows, d, alpha, scales, .. } = args;
        let (queue, lt) = (handle.queue(), handle.lt()?);
        let _turn = queue.turn();
        let order = queue.order();
        let (a, b) = (all_a.read(&order)?, all_b.read(&order)?);
        let (d_stride, d_bytes, bytes) = (d.row_stride(), d.dtype().bytes(), d.extent_bytes());
        let d = d.data_mut().at(&order)?.slice(0, bytes);
        check_operands_apart(&a, &b, &d)?;
        let [scales_a, scales_b] = scales.each_ref().map(|all| all.as_ref().map(|all| all.at(&order)).transpose());
        let of_groups = [scales_a?, scales_b?];
        for (name, scales) in ["scales of A", "scales of B"].into_iter().zip(&of_groups) {
            let Some(scales) = scales else { continue };
            check_scales(name, scales, groups)?;
            check_apart("scales of groups", &[&scales.slice(0, groups * 4)], &d)?;
        }
        let workspace = handle.workspace();
        let arrays = handle.scratch(scratch_bytes(desc))?;
        let own = self.scales;
        where_rows.with_places(groups, &order, |places| {
            check_places_apart(&places, &d)?;
            handle.kernels().grouped_arrays(
                queue,
                &GroupArrays {
                    places,
                    step: own.step(),
                    mnk: [rows, n, k],
                    a: own.operand(all_a, &a, of_groups[0].as_ref()),
                    b: own.operand(all_b, &b, of_groups[1].as_ref()),
                    d: &d,
                    d_stride,
                    d_bytes,
                    alpha: *alpha,
                    levels: [&a.scales, &b.scales].map(|level| own.has_levels().then_some(level)),
                    arrays: &arrays,
                },
            )?;
            let at = |array| group_array(&arrays, groups, array);
            let is_one = own == LibraryScales::One;
            let scales_at = [GroupArray::BScales, GroupArray::AScales].map(at);
            let call = GroupedCall {
                matrices: [&at(GroupArray::BAt), &at(GroupArray::AAt), &at(GroupArray::DAt)],
                k: &at(GroupArray::K),
                d_rows: &at(GroupArray::N),
                d_cols: &at(GroupArray::Rows),
                d_ld: &at(GroupArray::DStride),
                scales: if is_one { [&b.scales, &a.scales] } else { scales_at.each_ref() },
                factors: &group_factors(&arrays, groups),
                workspace: &workspace,
                stream: queue,
            };
            matmul.enqueue(lt, &call)
        })
    }
}

impl LibraryScales {
    /// Whether one number of each matrix is a factor besides, which is what NVFP4 has.
    fn has_levels(self) -> bool {
        self == Self::Blocks(ScaleMode::Vector16Ue4m3)
    }

    /// An operand as the launch sees it that writes addresses; `of_groups`: scales in the place of its own.
    fn operand<'s>(
        self,
        matrix: &QuantMatrix,
        read: &QuantSpans<'s>,
        of_groups: Option<&Span<'s>>,
    ) -> GroupOperand<'s> {
        let (scheme, k) = (matrix.scheme(), matrix.cols());
        let scales = match self {
            Self::One => None,
            Self::Each => {
                let group = if of_groups.is_some() { size_of::<f32>() } else { 0 };
                Some(GroupScales { all: *of_groups.unwrap_or(&read.scales), group, rows128: 0 })
            }
            Self::Blocks(_) => {
                Some(GroupScales { all: read.block_scales, group: 0, rows128: scheme.block_scale_len(128, k) })
            }
        };
        GroupOperand { codes: read.codes, row: scheme.code_bytes(16, k) / 16, scales }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DType;
    use crate::gpu::grouped::way::tests::gpu;

    const F: Fp8Format = Fp8Format::E4M3;

    fn slots(rows: usize, a: Scheme, b: Scheme) -> GroupedGemmDesc {
        GroupedGemmDesc::slots(8, rows, 4096, 7168, a, b, DType::Bf16).with_by_cublaslt(true)
    }

    /// No GPU of these was at hand but the first.
    #[test]
    fn pairs_and_gpus_decide_how_scales_are_read() {
        let (tensor, e5m2) = (Scheme::Fp8Tensor(F), Scheme::Fp8Tensor(Fp8Format::E5M2));
        let (mxfp8, nvfp4) = (Scheme::Mxfp8(F), Scheme::Nvfp4);
        let read = |desc: GroupedGemmDesc, a, cc| scales(&desc, a, &gpu(cc));
        assert_eq!(read(slots(4, tensor, e5m2), tensor, (9, 0)), Ok(LibraryScales::One));
        let each = slots(4, tensor, tensor).with_scales_of_groups([false, true]);
        assert_eq!(read(each, tensor, (9, 0)), Ok(LibraryScales::Each));
        let blocks = |mode| Ok(LibraryScales::Blocks(mode));
        assert_eq!(read(slots(128, mxfp8, mxfp8), mxfp8, (10, 0)), blocks(ScaleMode::Vector32Ue8m0));
        assert_eq!(read(slots(256, nvfp4, nvfp4), nvfp4, (11, 0)), blocks(ScaleMode::Vector16Ue4m3));
        let why = |desc: GroupedGemmDesc, a, cc| read(desc, a, cc).unwrap_err();
        assert!(why(slots(4, e5m2, e5m2), e5m2, (9, 0)).contains("no e5m2 by e5m2"));
        assert!(why(slots(128, mxfp8, mxfp8), mxfp8, (9, 0)).contains("sm_90 has no tensor cores for block scales"));
        assert!(why(slots(132, nvfp4, nvfp4), nvfp4, (10, 0)).contains("tiles of 128 rows, and slots have 132"));
        for scheme in [mxfp8, nvfp4] {
            let desc = GroupedGemmDesc { k: 48, ..slots(128, scheme, scheme) };
            assert!(why(desc, scheme, (10, 0)).contains("k = 48 is no multiple of 32"));
        }
        let levels = slots(128, nvfp4, nvfp4).with_scales_of_groups([true, false]);
        assert!(why(levels, nvfp4, (10, 0)).contains("one second level"));
        let (vectors, tiles) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F));
        assert!(why(slots(128, vectors, tiles), vectors, (9, 0)).contains("fp8-tensor, mxfp8 or nvfp4"));
        assert_eq!([LibraryScales::Each.step(), LibraryScales::Blocks(ScaleMode::Vector16Ue4m3).step()], [4, 128]);
    }

    #[test]
    fn what_it_has_not_is_refused() {
        let tensor = Scheme::Fp8Tensor(F);
        let text = |desc: GroupedGemmDesc| served(&desc, tensor, &gpu((9, 0))).map(drop).unwrap_err().to_string();
        let desc = slots(4, tensor, tensor);
        for (desc, words) in [
            (desc.with_bias(DType::F32), "bias and activation are no part of it"),
            (desc.with_activation(Activation::Silu), "bias and activation are no part of it"),
            (desc.with_out_stride(4100), "multiple of 16 bytes"),
        ] {
            assert!(text(desc).contains(words), "{}", text(desc));
        }
        let text = text(desc.with_bias(DType::F32));
        assert!(
            text.contains("cuBLASLt's own product of groups of fp8-tensor:e4m3")
                && text.contains("leave by_cublaslt out"),
            "{text}"
        );
    }
}
