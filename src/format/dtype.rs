//! Element types of plain (unquantized or output) matrices.

use std::fmt;

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
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinity, largest value 448.
    E4m3,
    /// 8-bit float, 5 exponent and 2 mantissa bits, largest finite value 57344.
    E5m2,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::E4m3 | Self::E5m2 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The name used on the command line and in files: `bf16`, `f16`, `f32`, `e4m3`, `e5m2`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
        }
    }

    /// `Some` for `bf16`, `f16`, `f32`, `e4m3`, `e5m2`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Bf16, Self::F16, Self::F32, Self::E4m3, Self::E5m2].into_iter().find(|t| t.name() == name)
    }

    /// True for the types a matrix can be quantized from: BF16, F16, F32.
    pub const fn is_wide(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16 | Self::F32)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
