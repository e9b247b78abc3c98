//! [`Formulation`]: the mathematically equal ways to compute one [`GemmDesc`](crate::GemmDesc); [`Finish`]: how each may end.

use serde::{Deserialize, Serialize};

/// How the scales come into the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Formulation {
    /// cuBLASLt's own scale modes for this pair.
    Native,
    /// 1x128 x 128x128 as 1x128 x 1x128: the block scales of B are repeated for each row, once, in a second buffer of B.
    RepeatedScales,
    /// Row x row as an unscaled GEMM into FP32 scratch, then our kernel multiplies rows and columns by their scales.
    Rescaled,
    /// Operands with block scales as plain BF16 (or F16) numbers: codes times block scales are exact in them, so the product
    /// is the same sum. Second-level scales come in through alpha, or with our kernel.
    DequantizedBf16,
    /// `D = residual + activation(alpha A B^T + beta D + bias)` on sm_90 by our own kernel: E4M3 on both sides or E5M2 on one of the two (then in four of the
    /// [configurations](crate::Sm90Config)), with scales of 1x128 x 128x128, 1x128 x 1x128, 128x128 x 1x128 (in the same four), of rows or of whole matrices. Sums are FP32 from one block of 128 along k to the next, whatever [`Accumulation`](crate::Accumulation) is asked for. It stores
    /// BF16, F16 or F32, without scratch; E4M3 is left to the epilogue kernel. Where its tiles are few and k is long, blocks divide k
    /// ([`Sm90Config::k_parts`](crate::Sm90Config::k_parts)), and a row of D may change its last bits with m: who wants rows of the same bits whatever m is and whichever rows stand beside
    /// them asks for them by [`GemmDesc::batch_invariant`](crate::GemmDesc::batch_invariant).
    Sm90,
    /// `D = residual + activation(alpha A B^T + beta D + bias)` for few rows of A by our own kernels, on sm_90 where both sides are FP8, else on sm_80 and newer, in one pass over B. At most 32 rows where both
    /// sides are E4M3, with scales of 1x128 x 128x128, of rows or of whole matrices: sums FP32 from one block of 128 along k to the next, whatever
    /// [`Accumulation`](crate::Accumulation) is asked for. At most 64 where B is NVFP4, NVFP4 by rows or MXFP4 and k a multiple of 32, or where it is MXFP8 in
    /// E4M3: codes times block scales as BF16 numbers, or F16 where A is that, exactly, and FP32 sums; a quantized A is dequantized into scratch first. Values that B
    /// [keeps](crate::QuantMatrix::keep_dequantized) are not read. The planner takes it for those up to 16 rows (8 where B keeps values and k is below 2048, or MXFP8 weights are few), and where B keeps nothing and
    /// k is no shorter than 1024 up to 32, for large B up to 64; on sm_90 up to 64 rows wherever B has some millions of weights, kept values or not (docs/products.md); for others it must be asked for, or tuned. Any number where A is plain and B is FP8 in E4M3,
    /// 64 in each pass over B: codes as BF16 or F16 numbers, FP32 sums, of which scales of 1x128 or 128x128 multiply those of 128 columns. It is the one way to multiply such weights.
    ///
    /// It stores BF16, F16 or F32; E4M3 is left to the epilogue kernel. D needs the
    /// alignment of its elements alone. The [configuration](crate::SmallMConfig) follows m, n, k and the number of multiprocessors, and the bits of a row
    /// with it, but where [`GemmDesc::batch_invariant`](crate::GemmDesc::batch_invariant) asks for the same: weights that are decoded have one configuration then, for any number of rows, 64 in each pass
    /// over B; FP8 on both sides has none.
    SmallM,
}

named!(
    Formulation, "formulation", Native => "native", RepeatedScales => "repeated-scales", Rescaled => "rescaled",
    DequantizedBf16 => "dequantized-bf16", Sm90 => "sm90", SmallM => "small-m",
);

impl Formulation {
    /// Whether cuBLASLt multiplies. The others need none.
    pub(crate) fn is_by_cublaslt(self) -> bool {
        match self {
            Self::Native | Self::RepeatedScales | Self::Rescaled | Self::DequantizedBf16 => true,
            Self::Sm90 | Self::SmallM => false,
        }
    }
}

/// Where the sum goes, and who does the epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Finish {
    /// The product writes D and does the whole epilogue.
    Fused,
    /// cuBLASLt writes a scratch matrix with m padded to a multiple of 4; the m rows are copied to D.
    PaddedCopy,
    /// The product writes an FP32 scratch matrix; our kernel does scales, bias, activation, residual and the cast.
    EpilogueKernel,
}

// The one with the least traffic first.
named!(Finish, "finish", Fused => "fused", PaddedCopy => "padded-copy", EpilogueKernel => "epilogue-kernel");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files() {
        for formulation in Formulation::ALL {
            assert_eq!(formulation.name().parse(), Ok(formulation));
            assert_eq!(serde_json::to_string(&formulation).unwrap(), format!("\"{formulation}\""));
        }
    }
}
