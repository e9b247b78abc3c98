//! [`Scheme`]: how a quantized matrix is read. [`SchemeSpec`] is the one table of facts about it.
//!
//! Only this file matches on `Scheme`; everyone else reads [`Scheme::spec`].

use std::fmt;

use super::layout::ScaleLayout;

/// The 8-bit code format of an FP8 scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Fp8Format {
    /// 4 exponent bits, 3 mantissa bits, largest value 448, no infinity.
    #[default]
    E4M3,
    /// 5 exponent bits, 2 mantissa bits, largest finite value 57344.
    E5M2,
}

impl Fp8Format {
    /// Largest finite value: 448 or 57344.
    pub const fn max(self) -> f32 {
        match self {
            Self::E4M3 => 448.0,
            Self::E5M2 => 57344.0,
        }
    }

    /// `e4m3` or `e5m2`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::E4M3 => "e4m3",
            Self::E5M2 => "e5m2",
        }
    }

    /// `Some` for `e4m3` or `e5m2`.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::E4M3, Self::E5M2].into_iter().find(|f| f.name() == name)
    }
}

/// How a quantized matrix is read: `value[i, j] = code[i, j] * scale[group of (i, j)]`.
///
/// The enum holds what a reader needs; how the codes were chosen is a [`Recipe`](super::Recipe).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scheme {
    /// One FP32 scale for the whole matrix.
    Fp8Tensor(Fp8Format),
    /// One FP32 scale for each row.
    Fp8Row(Fp8Format),
    /// One FP32 scale for each 128 consecutive elements of a row (the last group may be shorter).
    Fp8Block1x128(Fp8Format),
    /// One FP32 scale for each tile of 128 rows and 128 columns (edge tiles may be smaller).
    Fp8Block128x128(Fp8Format),
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
    pub format: Fp8Format,
    /// Bits of one code.
    pub code_bits: usize,
    /// Rows that share a scale.
    pub group_rows: Extent,
    /// Columns that share a scale.
    pub group_cols: Extent,
    /// Order of the scales on the device, as the GEMM reads them.
    pub scale_layout: ScaleLayout,
    /// Code rows are stored up to a multiple of this, the rest zero: the 1x128 GEMMs of cuBLASLt read rows in fours.
    pub row_multiple: usize,
}

impl Scheme {
    /// Every scheme in every code format.
    pub const ALL: [Self; 8] = {
        use Fp8Format::{E4M3, E5M2};
        [
            Self::Fp8Tensor(E4M3),
            Self::Fp8Row(E4M3),
            Self::Fp8Block1x128(E4M3),
            Self::Fp8Block128x128(E4M3),
            Self::Fp8Tensor(E5M2),
            Self::Fp8Row(E5M2),
            Self::Fp8Block1x128(E5M2),
            Self::Fp8Block128x128(E5M2),
        ]
    };

    /// The facts about this scheme.
    pub const fn spec(self) -> SchemeSpec {
        use Extent::{All, Elements};
        let (name, format, group_rows, group_cols, scale_layout, row_multiple) = match self {
            Self::Fp8Tensor(f) => ("fp8-tensor", f, All, All, ScaleLayout::Scalar, 1),
            Self::Fp8Row(f) => ("fp8-row", f, Elements(1), All, ScaleLayout::Outer, 1),
            Self::Fp8Block1x128(f) => ("fp8-1x128", f, Elements(1), Elements(128), ScaleLayout::Vec128, 4),
            Self::Fp8Block128x128(f) => ("fp8-128x128", f, Elements(128), Elements(128), ScaleLayout::Blk128, 1),
        };
        SchemeSpec { name, format, code_bits: 8, group_rows, group_cols, scale_layout, row_multiple }
    }

    /// The scheme of this name (`fp8-tensor`, `fp8-row`, `fp8-1x128`, `fp8-128x128`) in the given code format.
    pub fn from_name(name: &str, format: Fp8Format) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.spec().name == name && s.spec().format == format)
    }

    /// Bytes of the code buffer of a `rows x cols` matrix, row padding included.
    pub const fn code_bytes(self, rows: usize, cols: usize) -> usize {
        let spec = self.spec();
        rows.next_multiple_of(spec.row_multiple) * cols * spec.code_bits / 8
    }

    /// Number of scales in logical order: `[row groups, column groups]`.
    pub const fn scale_grid(self, rows: usize, cols: usize) -> [usize; 2] {
        let spec = self.spec();
        [spec.group_rows.groups(rows), spec.group_cols.groups(cols)]
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
        write!(f, "{}:{}", spec.name, spec.format.name())
    }
}
