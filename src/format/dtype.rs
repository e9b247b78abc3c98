//! Element types of plain (unquantized or output) matrices.

use super::scheme::Fp8Format;

/// Element type of an input, output, bias or residual.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
    /// One byte.
    Fp8(Fp8Format),
}

named!(DType, "element type", Bf16 => "bf16", F16 => "f16", F32 => "f32", E4M3 => "e4m3", E5M2 => "e5m2");

impl DType {
    /// [`Fp8Format::E4M3`].
    pub const E4M3: Self = Self::Fp8(Fp8Format::E4M3);
    /// [`Fp8Format::E5M2`].
    pub const E5M2: Self = Self::Fp8(Fp8Format::E5M2);

    /// The types a matrix can be quantized from.
    pub const WIDE: [Self; 3] = [Self::Bf16, Self::F16, Self::F32];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Fp8(_) => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// True for the types a matrix can be quantized from: BF16, F16, F32.
    pub const fn is_wide(self) -> bool {
        !matches!(self, Self::Fp8(_))
    }
}
