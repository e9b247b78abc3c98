//! [`Sum`]: what a product step computes, whoever computes it.

use crate::epilogue::Activation;
use crate::format::DType;
use crate::format::layout::ScaleLayout;
use crate::gpu::gemm::desc::{Accumulate, Accumulation, OutAmax};

/// What a product step computes, in row-major terms: `D[rows, n] = A[rows, k] B[n, k]ᵀ`, with what it fuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sum {
    /// Rows that the product computes: m, or m padded.
    pub(crate) rows: usize,
    /// Operands as plain numbers; `None` where the product takes codes.
    pub(crate) values: Option<Values>,
    /// Order of the scales of A and B as the product reads them, which is not always that of the matrices.
    pub(crate) a_scales: ScaleLayout,
    pub(crate) b_scales: ScaleLayout,
    /// Where those scales come from.
    pub(crate) scales: ScaleSource,
    /// Where alpha and beta come from.
    pub(crate) factors: FactorPlace,
    /// Where the result goes, its type and row stride.
    pub(crate) target: Target,
    pub(crate) d_type: DType,
    pub(crate) d_stride: usize,
    /// What is fused.
    pub(crate) bias: Option<DType>,
    pub(crate) activation: Activation,
    pub(crate) accumulate: Accumulate,
    pub(crate) amax: OutAmax,
    pub(crate) accumulation: Accumulation,
}

/// Which scales a product applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleSource {
    /// Those of the matrices.
    Matrices,
    /// 1.0: the epilogue kernel applies those of the matrices.
    Ones,
}

/// Where a product writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The caller's D.
    D,
    /// Scratch memory, for the finish to read.
    Scratch,
}

/// Operands of a product as plain numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) dtype: DType,
    pub(crate) a: ValueSource,
    pub(crate) b: ValueSource,
}

/// Where the numbers of an operand are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueSource {
    /// The caller has them: a plain A, or a B that keeps them.
    Given,
    /// Each call dequantizes them into scratch memory.
    Scratch,
    /// Nowhere: the product reads codes and block scales.
    Codes,
}

/// Where alpha and beta of a product are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FactorPlace {
    Host,
    /// In scratch memory, where a kernel multiplies alpha by the second-level scales of whole matrices.
    Device,
}
