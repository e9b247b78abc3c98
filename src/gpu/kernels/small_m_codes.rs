//! [`SmallMWeights`]: the weights that our products of few rows decode.

use super::small_m_config::SmallMOperands;
use crate::format::layout::ScaleLayout;
use crate::format::{BlockScaleFormat, CodeFormat, CodeOrder, DType, Scheme};

/// How B is stored: its codes, and the scales that are a part of the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SmallMWeights {
    /// E2M1 with E4M3 scales of 16 columns.
    Nvfp4,
    /// The same in the order of [`CodeOrder::Repacked`].
    Nvfp4Repacked,
    /// E2M1 with E8M0 scales of 32 columns.
    Mxfp4,
    /// E4M3 with E8M0 scales of 32 columns.
    Mxfp8,
    /// E4M3; its scales are outer ones.
    Fp8,
    /// E4M3 with FP32 scales of 1x128.
    Fp8Vectors,
    /// E4M3 with FP32 scales of 128x128.
    Fp8Tiles,
}

impl SmallMWeights {
    const ALL: [Self; 7] =
        [Self::Nvfp4, Self::Nvfp4Repacked, Self::Mxfp4, Self::Mxfp8, Self::Fp8, Self::Fp8Vectors, Self::Fp8Tiles];

    /// Of a scheme and the order of its codes; `None` where no kernel decodes them.
    pub(crate) fn of(scheme: Scheme, order: CodeOrder) -> Option<Self> {
        let spec = scheme.spec();
        if order == CodeOrder::Repacked {
            return scheme.is_nvfp4().then_some(Self::Nvfp4Repacked);
        }
        match (spec.format, spec.block.map(|block| block.format), spec.scale_layout) {
            (CodeFormat::E2M1, Some(BlockScaleFormat::Ue4m3), _) => Some(Self::Nvfp4),
            (CodeFormat::E2M1, Some(BlockScaleFormat::Ue8m0), _) => Some(Self::Mxfp4),
            (CodeFormat::E4M3, Some(BlockScaleFormat::Ue8m0), _) => Some(Self::Mxfp8),
            (CodeFormat::E4M3, None, ScaleLayout::Scalar | ScaleLayout::Outer) => Some(Self::Fp8),
            (CodeFormat::E4M3, None, ScaleLayout::Vec128) => Some(Self::Fp8Vectors),
            (CodeFormat::E4M3, None, ScaleLayout::Blk128) => Some(Self::Fp8Tiles),
            _ => None,
        }
    }

    /// Whether they are of schemes that have one scale for a matrix, beside those in the sum. Mirror of `LEVELS` in `kernels/gemm/small_m_tile.cuh`.
    pub(crate) fn have_levels(self) -> bool {
        matches!(self, Self::Nvfp4 | Self::Nvfp4Repacked | Self::Fp8)
    }

    pub(crate) fn code_order(self) -> CodeOrder {
        if self == Self::Nvfp4Repacked { CodeOrder::Repacked } else { CodeOrder::Published }
    }

    pub(crate) fn operands(self) -> SmallMOperands {
        match self {
            Self::Nvfp4 | Self::Nvfp4Repacked | Self::Mxfp4 => SmallMOperands::E2m1Weights,
            Self::Mxfp8 | Self::Fp8 | Self::Fp8Vectors | Self::Fp8Tiles => SmallMOperands::E4m3Weights,
        }
    }

    /// Whether rows of such numbers have a kernel: F16 does not hold what E8M0 scales reach.
    pub(crate) fn multiplies(self, a: DType) -> bool {
        let powers = matches!(self, Self::Mxfp4 | Self::Mxfp8);
        a == DType::Bf16 || (a == DType::F16 && !powers)
    }

    /// Rows of A and B that have a kernel.
    pub(super) fn served() -> impl Iterator<Item = (Self, DType)> {
        let types = [DType::Bf16, DType::F16];
        Self::ALL
            .into_iter()
            .flat_map(move |weights| types.map(|a| (weights, a)))
            .filter(|(weights, a)| weights.multiplies(*a))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nvfp4 => "nvfp4",
            Self::Nvfp4Repacked => "nvfp4_repacked",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
            Self::Fp8 => "fp8",
            Self::Fp8Vectors => "fp8_1x128",
            Self::Fp8Tiles => "fp8_128x128",
        }
    }

    pub(super) fn code_bytes(self, n: usize, k: usize) -> usize {
        match self.operands() {
            SmallMOperands::E2m1Weights => n * k / 2,
            SmallMOperands::E4m3Weights | SmallMOperands::Fp8 => n * k,
        }
    }

    /// Of the scales that are a part of the sum: what the kernel steps by, and their bytes.
    pub(super) fn scales(self, n: usize, k: usize) -> (usize, usize) {
        let groups = k.div_ceil(128);
        let tiles = |columns: usize| (k.div_ceil(columns), n.div_ceil(128) * k.div_ceil(columns) * 512);
        match self {
            Self::Nvfp4 | Self::Nvfp4Repacked => tiles(64),
            Self::Mxfp4 | Self::Mxfp8 => tiles(128),
            Self::Fp8 => (0, 0),
            Self::Fp8Vectors => (n.next_multiple_of(4), ScaleLayout::Vec128.len(n, groups) * 4),
            Self::Fp8Tiles => (groups.next_multiple_of(4), ScaleLayout::Blk128.len(n.div_ceil(128), groups) * 4),
        }
    }
}
