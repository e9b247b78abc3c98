//! [`Scheme`]: how a quantized matrix is read. [`SchemeSpec`] is the one table of facts about it.
//!
//! Only this file matches on `Scheme`; everyone else reads [`Scheme::spec`].

use std::fmt;
use std::str::FromStr;

use super::layout::ScaleLayout;
use crate::names::UnknownName;

/// The 8-bit code format of an FP8 scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Fp8Format {
    /// 4 exponent bits, 3 mantissa bits, largest value 448, no infinity.
    #[default]
    E4M3,
    /// 5 exponent bits, 2 mantissa bits, largest finite value 57344.
    E5M2,
}

named!(Fp8Format, "FP8 format", E4M3 => "e4m3", E5M2 => "e5m2");

impl Fp8Format {
    /// Largest finite value: 448 or 57344.
    pub const fn max(self) -> f32 {
        match self {
            Self::E4M3 => 448.0,
            Self::E5M2 => 57344.0,
        }
    }
}

/// The format of one code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodeFormat {
    /// One byte.
    Fp8(Fp8Format),
    /// Four bits: 2 exponent bits, 1 mantissa bit, largest value 6, neither infinity nor NaN. Two codes a byte, the one of
    /// the even column in the low half.
    E2M1,
}

named!(CodeFormat, "code format", E4M3 => "e4m3", E5M2 => "e5m2", E2M1 => "e2m1");

impl CodeFormat {
    /// [`Fp8Format::E4M3`].
    pub const E4M3: Self = Self::Fp8(Fp8Format::E4M3);
    /// [`Fp8Format::E5M2`].
    pub const E5M2: Self = Self::Fp8(Fp8Format::E5M2);

    /// Largest finite value: 448, 57344 or 6.
    pub const fn max(self) -> f32 {
        match self {
            Self::Fp8(format) => format.max(),
            Self::E2M1 => 6.0,
        }
    }

    /// Bits of one code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Fp8(_) => 8,
            Self::E2M1 => 4,
        }
    }

    /// Exponent of the largest value, `floor(log2(max))`: 8, 15 or 2. The MX specification's `emax`.
    pub const fn emax(self) -> i32 {
        match self {
            Self::E4M3 => 8,
            Self::E5M2 => 15,
            Self::E2M1 => 2,
        }
    }

    /// Bits of the mantissa: 3, 2 or 1.
    pub const fn mantissa_bits(self) -> u32 {
        match self {
            Self::E4M3 => 3,
            Self::E5M2 => 2,
            Self::E2M1 => 1,
        }
    }

    /// The FP8 format; `None` for E2M1.
    pub const fn fp8(self) -> Option<Fp8Format> {
        match self {
            Self::Fp8(format) => Some(format),
            Self::E2M1 => None,
        }
    }
}

impl From<Fp8Format> for CodeFormat {
    fn from(format: Fp8Format) -> Self {
        Self::Fp8(format)
    }
}

impl PartialEq<Fp8Format> for CodeFormat {
    fn eq(&self, other: &Fp8Format) -> bool {
        *self == Self::Fp8(*other)
    }
}

/// The format of a block scale: one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockScaleFormat {
    /// E4M3 without sign: up to 448 (NVFP4).
    Ue4m3,
    /// Powers of two: byte b is `2^(b - 127)`, 255 is NaN (MXFP8, MXFP4).
    Ue8m0,
}

named!(BlockScaleFormat, "format of block scales", Ue4m3 => "ue4m3", Ue8m0 => "ue8m0");

/// Block scales: one byte for each `cols` consecutive elements of a row (the last block may be shorter), always in the
/// order [`ScaleLayout::Tiled128x4`] on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockSpec {
    /// Elements of a row that share a block scale: 16 or 32.
    pub cols: usize,
    /// Format of the scale.
    pub format: BlockScaleFormat,
}

/// What shares an FP32 scale of FP8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fp8Granularity {
    /// The whole matrix.
    Tensor,
    /// A row.
    Row,
    /// 128 consecutive elements of a row.
    Group1x128,
    /// 128 rows and 128 columns.
    Group128x128,
}

named!(Fp8Granularity, "granularity", Tensor => "tensor", Row => "row", Group1x128 => "1x128", Group128x128 => "128x128");

/// How a quantized matrix is read: `value[i, j] = code[i, j] * block_scale[i, block of j] * scale[group of (i, j)]`.
///
/// FP8 schemes have no block scales, MXFP8 and MXFP4 no FP32 scales: what a scheme lacks counts as 1. The FP32 scale of NVFP4 is
/// its second-level decode factor, `amax / (6 * 448)` for most recipes.
/// The enum holds what a reader needs; how the codes were chosen is a [`Recipe`](super::Recipe).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scheme {
    /// One FP32 scale for the whole matrix.
    Fp8Tensor(Fp8Format),
    /// One FP32 scale for each row.
    Fp8Row(Fp8Format),
    /// One FP32 scale for each 128 consecutive elements of a row (the last group may be shorter).
    Fp8Group1x128(Fp8Format),
    /// One FP32 scale for each tile of 128 rows and 128 columns (edge tiles may be smaller).
    Fp8Group128x128(Fp8Format),
    /// FP8 codes, one power of two (E8M0) for each 32 consecutive elements of a row. No FP32 scale.
    Mxfp8(Fp8Format),
    /// E2M1 codes, one power of two (E8M0) for each 32 consecutive elements of a row. No FP32 scale. OCP's Microscaling
    /// Formats v1.0, table 1; the weights of gpt-oss are published in it.
    Mxfp4,
    /// E2M1 codes, one E4M3 scale for each 16 consecutive elements of a row, and one FP32 scale for the whole matrix.
    Nvfp4,
    /// E2M1 codes, one E4M3 scale for each 16 consecutive elements of a row, and one FP32 scale for each row.
    Nvfp4Row,
}

/// How far one scale reaches along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// The whole axis.
    All,
    /// This many elements.
    Elements(usize),
}

impl Extent {
    /// Number of groups along an axis of `len` elements (1 for `All`).
    pub const fn groups(self, len: usize) -> usize {
        match self {
            Self::All => 1,
            Self::Elements(size) => len.div_ceil(size),
        }
    }

    /// Elements of one group along an axis of `len` elements.
    pub const fn size(self, len: usize) -> usize {
        match self {
            Self::All => len,
            Self::Elements(size) => size,
        }
    }
}

/// The facts about one [`Scheme`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SchemeSpec {
    /// Name in files and on the command line, without the code format: `fp8-1x128`.
    pub name: &'static str,
    /// Code format.
    pub format: CodeFormat,
    /// Bits of one code.
    pub code_bits: usize,
    /// Rows that share an FP32 scale.
    pub group_rows: Extent,
    /// Columns that share an FP32 scale.
    pub group_cols: Extent,
    /// Order of the FP32 scales on the device, as the GEMM reads them; [`ScaleLayout::Absent`] if there are none.
    pub scale_layout: ScaleLayout,
    /// The block scales below the FP32 scales; `None` for the FP8 schemes.
    pub block: Option<BlockSpec>,
    /// Code rows are stored up to a multiple of this, the rest zero: the 1x128 GEMMs of cuBLASLt read rows in fours.
    pub row_multiple: usize,
}

impl Scheme {
    /// Every scheme in every code format.
    pub const ALL: [Self; 13] = {
        use Fp8Format::{E4M3, E5M2};
        let [t4, r4, v4, b4, t5, r5, v5, b5] = Self::FP8;
        let [mx4, mx5] = [Self::Mxfp8(E4M3), Self::Mxfp8(E5M2)];
        [t4, r4, v4, b4, t5, r5, v5, b5, mx4, mx5, Self::Mxfp4, Self::Nvfp4, Self::Nvfp4Row]
    };

    /// The schemes with FP32 scales only.
    pub const FP8: [Self; 8] = {
        use Fp8Format::{E4M3, E5M2};
        [
            Self::Fp8Tensor(E4M3),
            Self::Fp8Row(E4M3),
            Self::Fp8Group1x128(E4M3),
            Self::Fp8Group128x128(E4M3),
            Self::Fp8Tensor(E5M2),
            Self::Fp8Row(E5M2),
            Self::Fp8Group1x128(E5M2),
            Self::Fp8Group128x128(E5M2),
        ]
    };

    /// The FP8 scheme of this granularity.
    pub const fn fp8(granularity: Fp8Granularity, format: Fp8Format) -> Self {
        match granularity {
            Fp8Granularity::Tensor => Self::Fp8Tensor(format),
            Fp8Granularity::Row => Self::Fp8Row(format),
            Fp8Granularity::Group1x128 => Self::Fp8Group1x128(format),
            Fp8Granularity::Group128x128 => Self::Fp8Group128x128(format),
        }
    }

    /// The facts about this scheme.
    pub const fn spec(self) -> SchemeSpec {
        use BlockScaleFormat::{Ue4m3, Ue8m0};
        use Extent::{All, Elements};
        const NV: Option<BlockSpec> = Some(BlockSpec { cols: 16, format: Ue4m3 });
        const MX: Option<BlockSpec> = Some(BlockSpec { cols: 32, format: Ue8m0 });
        let (name, format, group_rows, group_cols, scale_layout, row_multiple, block) = match self {
            Self::Fp8Tensor(f) => ("fp8-tensor", CodeFormat::Fp8(f), All, All, ScaleLayout::Scalar, 1, None),
            Self::Fp8Row(f) => ("fp8-row", CodeFormat::Fp8(f), Elements(1), All, ScaleLayout::Outer, 1, None),
            Self::Fp8Group1x128(f) => {
                ("fp8-1x128", CodeFormat::Fp8(f), Elements(1), Elements(128), ScaleLayout::Vec128, 4, None)
            }
            Self::Fp8Group128x128(f) => {
                ("fp8-128x128", CodeFormat::Fp8(f), Elements(128), Elements(128), ScaleLayout::Blk128, 1, None)
            }
            Self::Mxfp8(f) => ("mxfp8", CodeFormat::Fp8(f), All, All, ScaleLayout::Absent, 1, MX),
            Self::Mxfp4 => ("mxfp4", CodeFormat::E2M1, All, All, ScaleLayout::Absent, 1, MX),
            Self::Nvfp4 => ("nvfp4", CodeFormat::E2M1, All, All, ScaleLayout::Scalar, 1, NV),
            Self::Nvfp4Row => ("nvfp4-row", CodeFormat::E2M1, Elements(1), All, ScaleLayout::Outer, 1, NV),
        };
        let code_bits = format.bits();
        SchemeSpec { name, format, code_bits, group_rows, group_cols, scale_layout, block, row_multiple }
    }

    /// The scheme of this name (`fp8-tensor`, `fp8-row`, `fp8-1x128`, `fp8-128x128`, `mxfp8`, `mxfp4`, `nvfp4`, `nvfp4-row`) in
    /// the given code format, which is E2M1 for MXFP4 and NVFP4.
    pub fn from_name(name: &str, format: impl Into<CodeFormat>) -> Option<Self> {
        let format = format.into();
        Self::ALL.into_iter().find(|s| s.spec().name == name && s.spec().format == format)
    }

    /// True for NVFP4 with one FP32 scale for the matrix or for each row.
    pub const fn is_nvfp4(self) -> bool {
        matches!(self, Self::Nvfp4 | Self::Nvfp4Row)
    }

    /// Bytes of the code buffer of a `rows x cols` matrix, row padding included.
    pub const fn code_bytes(self, rows: usize, cols: usize) -> usize {
        let spec = self.spec();
        // Bits of codes of 2^31 rows and columns are more than a word counts.
        rows.next_multiple_of(spec.row_multiple) * cols / (8 / spec.code_bits)
    }

    /// Number of FP32 scales in logical order: `[row groups, column groups]`; `[0, 0]` if the scheme has none.
    pub const fn scale_grid(self, rows: usize, cols: usize) -> [usize; 2] {
        let spec = self.spec();
        match spec.scale_layout {
            ScaleLayout::Absent => [0, 0],
            _ => [spec.group_rows.groups(rows), spec.group_cols.groups(cols)],
        }
    }

    /// Number of block scales in logical order: `[rows, blocks of a row]`; `[0, 0]` if the scheme has none.
    pub const fn block_grid(self, rows: usize, cols: usize) -> [usize; 2] {
        match self.spec().block {
            Some(block) => [rows, cols.div_ceil(block.cols)],
            None => [0, 0],
        }
    }

    /// Number of block scales, one byte each, in the device buffer, padding included; 0 if the scheme has none.
    pub const fn block_scale_len(self, rows: usize, cols: usize) -> usize {
        let [r, c] = self.block_grid(rows, cols);
        ScaleLayout::Tiled128x4.len(r, c)
    }

    /// Number of FP32 scales in the device buffer, padding included.
    pub const fn scale_len(self, rows: usize, cols: usize) -> usize {
        let [r, c] = self.scale_grid(rows, cols);
        self.spec().scale_layout.len(r, c)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = self.spec();
        match spec.format {
            CodeFormat::E2M1 => f.pad(spec.name),
            CodeFormat::Fp8(format) => f.pad(&format!("{}:{format}", spec.name)),
        }
    }
}

/// As displayed (`fp8-1x128:e5m2`, `nvfp4`); a name without a format is E4M3.
impl FromStr for Scheme {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        // E4M3 comes first of two formats.
        let named = |scheme: &Self| scheme.spec().name == text || scheme.to_string() == text;
        let known = || Self::ALL.iter().map(Self::to_string);
        Self::ALL.into_iter().find(named).ok_or_else(|| UnknownName::new("scheme", text, known()))
    }
}
