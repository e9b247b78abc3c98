//! [`PairKind`]: all that the tables of this folder ask about a pair of operands.

use crate::format::layout::ScaleLayout;
use crate::format::{BlockScaleFormat, CodeFormat, Operand};
use crate::gpu::gemm::desc::GemmDesc;

/// All that matters of A and B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PairKind {
    /// FP8 with FP32 scales in these layouts.
    Fp8(ScaleLayout, ScaleLayout),
    /// Both with block scales of this format: NVFP4 or MXFP8.
    Block(BlockScaleFormat),
    /// Both with block scales, B MXFP4: no library's own product.
    Mxfp4,
    /// A is plain, B has block scales.
    WeightOnly,
    /// A is plain, B is FP8 with FP32 scales.
    WeightOnlyFp8,
}

/// The kind of a pair that [`GemmDesc::check`] accepted.
pub(crate) fn pair_kind(desc: &GemmDesc) -> PairKind {
    let b = desc.b.spec();
    match (desc.a, b.block) {
        (Operand::Plain(_), Some(_)) => PairKind::WeightOnly,
        (Operand::Plain(_), None) => PairKind::WeightOnlyFp8,
        (Operand::Quantized(_), Some(block)) => match (b.format, block.format) {
            (CodeFormat::E2M1, BlockScaleFormat::Ue8m0) => PairKind::Mxfp4,
            (_, format) => PairKind::Block(format),
        },
        (Operand::Quantized(a), None) => PairKind::Fp8(a.spec().scale_layout, b.scale_layout),
    }
}
