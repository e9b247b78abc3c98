//! Casts to groupings that no product reads: which elements share a scale, in which order scales lie, and the rule for them.
//!
//! What products read is a [`Scheme`](super::Scheme); this is what kernels around them exchange (TileKernels' casts).

use std::fmt;

use super::fp8::{Fp8Scales, ceil_power_of_two};
use super::given::GroupScale;
use super::host::check_extents;
use super::scheme::{CodeFormat, Extent};
use crate::error::{Error, Result};

/// What shares a scale: so many rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CastGroup {
    /// 16 consecutive elements of a row.
    Group1x16,
    /// 32 consecutive elements of a row.
    Group1x32,
    /// 64 consecutive elements of a row.
    Group1x64,
    /// 128 consecutive elements of a row.
    Group1x128,
    /// A row.
    Row,
    /// 32 rows and 32 columns.
    Tile32x32,
    /// 32 rows and 128 columns.
    Tile32x128,
    /// 128 rows and 32 columns.
    Tile128x32,
    /// 128 rows and 128 columns.
    Tile128x128,
    /// 32 consecutive elements of a column: per channel.
    Group32x1,
    /// 128 consecutive elements of a column: per channel.
    Group128x1,
}

named!(
    CastGroup, "grouping of a cast", Group1x16 => "1x16", Group1x32 => "1x32", Group1x64 => "1x64", Group1x128 => "1x128",
    Row => "row", Tile32x32 => "32x32", Tile32x128 => "32x128", Tile128x32 => "128x32", Tile128x128 => "128x128",
    Group32x1 => "32x1", Group128x1 => "128x1",
);

impl CastGroup {
    /// Rows and columns that share a scale; groups at the edges may be smaller.
    pub const fn extents(self) -> [Extent; 2] {
        let [rows, cols] = match self {
            Self::Group1x16 => [1, 16],
            Self::Group1x32 => [1, 32],
            Self::Group1x64 => [1, 64],
            Self::Group1x128 => [1, 128],
            Self::Row => return [Extent::Elements(1), Extent::All],
            Self::Tile32x32 => [32, 32],
            Self::Tile32x128 => [32, 128],
            Self::Tile128x32 => [128, 32],
            Self::Tile128x128 => [128, 128],
            Self::Group32x1 => [32, 1],
            Self::Group128x1 => [128, 1],
        };
        [Extent::Elements(rows), Extent::Elements(cols)]
    }

    /// Rows and columns of scales of a `rows x cols` matrix.
    pub const fn grid(self, rows: usize, cols: usize) -> [usize; 2] {
        let [r, c] = self.extents();
        [r.groups(rows), c.groups(cols)]
    }

    /// Whether groups lie along columns: their codes may also be written transposed.
    pub const fn is_per_channel(self) -> bool {
        matches!(self, Self::Group32x1 | Self::Group128x1)
    }
}

/// In which order, and as what, the scales of a cast lie in memory. For a grid of R x C scales:
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CastScales {
    /// FP32; scale (r, c) at `r * C + c`.
    #[default]
    RowMajor,
    /// FP32, for TMA; scale (r, c) at `c * R' + r`, R' = R rounded up to 4, so that columns begin at multiples of 16 bytes.
    ColumnMajor,
    /// A power of two in a byte (E8M0), as DeepGEMM reads it on sm_100: byte (r, c) at `c / 4 * 4 R' + 4 r + c % 4`, four
    /// neighbours along a row in a 32-bit word, words in the order of `ColumnMajor`.
    Ue8m0,
}

named!(CastScales, "order of a cast's scales", RowMajor => "row-major", ColumnMajor => "column-major", Ue8m0 => "ue8m0");

impl CastScales {
    /// Bytes of an R x C grid, padding included, of a matrix that [`CastScheme::check_shape`] takes: of larger ones the number overflows.
    pub const fn bytes(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::RowMajor => rows * cols * 4,
            Self::ColumnMajor => rows.next_multiple_of(4) * cols * 4,
            Self::Ue8m0 => rows.next_multiple_of(4) * cols.next_multiple_of(4),
        }
    }

    /// The place of scale (row, col): of an FP32 number, or of a byte.
    pub const fn index(self, rows: usize, cols: usize, row: usize, col: usize) -> usize {
        match self {
            Self::RowMajor => row * cols + col,
            Self::ColumnMajor => col * rows.next_multiple_of(4) + row,
            Self::Ue8m0 => col / 4 * 4 * rows.next_multiple_of(4) + 4 * row + col % 4,
        }
    }

    /// The scale (row, col) at such a place, none in padding and behind the grid.
    pub const fn position(self, rows: usize, cols: usize, index: usize) -> Option<[usize; 2]> {
        if rows == 0 || cols == 0 {
            return None;
        }
        let pitch = rows.next_multiple_of(4);
        let [row, col] = match self {
            Self::RowMajor => [index / cols, index % cols],
            Self::ColumnMajor => [index % pitch, index / pitch],
            Self::Ue8m0 => [index / 4 % pitch, index / (4 * pitch) * 4 + index % 4],
        };
        if row < rows && col < cols { Some([row, col]) } else { None }
    }
}

/// How the result of a cast is read: `value[i, j] = code[i, j] * scale[group of (i, j)]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CastScheme {
    format: CodeFormat,
    group: CastGroup,
    scales: CastScales,
    transposed: bool,
}

impl CastScheme {
    /// Codes of a format (E4M3 or E2M1) with scales of groups, in row-major order until another is asked for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for E5M2, for which the casts have no rule.
    pub fn new(format: CodeFormat, group: CastGroup) -> Result<Self> {
        if format == CodeFormat::E5M2 {
            return Err(Error::unsupported(
                "a cast to e5m2",
                "the rule of these casts is for e4m3 and e2m1",
                "take e4m3, or quantize by a recipe of fp8, all of which have e5m2",
            ));
        }
        Ok(Self { format, group, scales: CastScales::RowMajor, transposed: false })
    }

    /// Every scheme there is, per channel also transposed.
    pub fn all() -> impl Iterator<Item = Self> {
        let formats = CodeFormat::ALL.into_iter();
        let plain =
            formats.flat_map(|format| CastGroup::ALL.into_iter().filter_map(move |g| Self::new(format, g).ok()));
        let stored = plain.flat_map(|scheme| [Some(scheme), scheme.transposed().ok()]).flatten();
        stored.flat_map(|scheme| CastScales::ALL.map(|scales| scheme.with_scales(scales)))
    }

    /// The same with scales in another order.
    pub const fn with_scales(self, scales: CastScales) -> Self {
        Self { scales, ..self }
    }

    /// The same with codes stored transposed, `[cols][rows]`; scales stay where they are. For groups along columns.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other groups.
    pub fn transposed(self) -> Result<Self> {
        if !self.group.is_per_channel() {
            return Err(Error::unsupported(
                format!("storing transposed codes in groups of {}", self.group),
                "only groups along columns are stored so",
                "take 32x1 or 128x1, or cast the transposed matrix",
            ));
        }
        Ok(Self { transposed: true, ..self })
    }

    /// Format of the codes.
    pub const fn format(self) -> CodeFormat {
        self.format
    }

    /// What shares a scale.
    pub const fn group(self) -> CastGroup {
        self.group
    }

    /// Order of the scales.
    pub const fn scales(self) -> CastScales {
        self.scales
    }

    /// Whether codes are stored transposed.
    pub const fn is_transposed(self) -> bool {
        self.transposed
    }

    /// Bytes of the codes of a matrix: no padding. Of a shape that [`CastScheme::check_shape`] takes: of larger ones the number overflows.
    pub const fn code_bytes(self, rows: usize, cols: usize) -> usize {
        rows * cols * self.format.bits() / 8
    }

    /// Bytes of its scales, padding included; of such a shape, too.
    pub const fn scale_bytes(self, rows: usize, cols: usize) -> usize {
        let [r, c] = self.group.grid(rows, cols);
        self.scales.bytes(r, c)
    }

    /// Refuses shapes that cannot be stored: columns are a multiple of 16, and so are rows that are stored as columns.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn check_shape(self, rows: usize, cols: usize) -> Result<()> {
        let multiple = |operand: &str, found: usize, remedy: &str| match found.is_multiple_of(16) {
            true => Ok(()),
            false => Err(Error::shape(operand, found.to_string(), "must be a multiple of 16", remedy)),
        };
        multiple("columns of a cast", cols, "pad them with zeros")?;
        if self.transposed {
            multiple("rows of a transposed cast", rows, "pad them with zeros, or store the codes untransposed")?;
        }
        check_extents("matrix of a cast", rows, cols, "cast it in parts")
    }
}

impl fmt::Display for CastScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { format, group, scales, transposed } = self;
        write!(f, "{format} {group} {scales}{}", if *transposed { " transposed" } else { "" })
    }
}

/// How a cast chooses scales and codes: TileKernels' rule.
///
/// ```text
/// a      = max(amax, floor)          amax in FP32, NaN ignored
/// scale  = fl(a / max)               max: 448 (E4M3) or 6 (E2M1)
/// encode = fl(max / a)               a second division, not 1 / scale
/// code   = sat(fl(x * encode))
/// ```
///
/// With powers of two `scale` is rounded up to one and `encode` is its inverse. An infinite amax gives scale infinity (byte 255) and
/// encode 0: the codes of finite elements are 0, those of infinities what NaN becomes; with that scale all of the group reads as NaN,
/// but for infinities and NaN in E2M1, which has no NaN: under FP32 scales they read as `+infinity`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CastRecipe {
    scheme: CastScheme,
    numbers: Fp8Scales,
    floor: f32,
}

impl CastRecipe {
    /// The rule with its own floor: 1e-4 for E4M3, `6 * 2^-126` for E2M1. Powers of two where the scales are bytes, exact numbers
    /// otherwise.
    pub fn new(scheme: CastScheme) -> Self {
        let numbers = if scheme.scales == CastScales::Ue8m0 { Fp8Scales::PowerOfTwo } else { Fp8Scales::Exact };
        let floor = if scheme.format == CodeFormat::E2M1 { Self::least_floor(scheme.format) } else { 1e-4 };
        Self { scheme, numbers, floor }
    }

    /// `max * 2^-126`: below, a scale would be no normal number.
    pub(crate) const fn least_floor(format: CodeFormat) -> f32 {
        format.max() * f32::MIN_POSITIVE
    }

    /// The same with scales that are powers of two.
    pub const fn power_of_two(self) -> Self {
        Self { numbers: Fp8Scales::PowerOfTwo, ..self }
    }

    /// The same with another least amax.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless it is finite and at least `max * 2^-126`.
    pub fn with_floor(self, floor: f32) -> Result<Self> {
        let least = Self::least_floor(self.scheme.format);
        if !(floor >= least && floor.is_finite()) {
            return Err(Error::unsupported(
                format!("a floor of {floor:e} for {}", self.scheme.format),
                format!("it must be finite and at least {least:e}, so that scales are normal numbers"),
                "leave it out, or take a larger one",
            ));
        }
        Ok(Self { floor, ..self })
    }

    /// How the result is read.
    pub const fn scheme(self) -> CastScheme {
        self.scheme
    }

    /// What numbers scales are.
    pub const fn numbers(self) -> Fp8Scales {
        self.numbers
    }

    /// The least amax that counts.
    pub const fn floor(self) -> f32 {
        self.floor
    }

    /// `encode` and `scale` of a group.
    pub fn group_scale(self, amax: f32) -> GroupScale {
        let (a, max) = (amax.max(self.floor), self.scheme.format.max());
        let scale = a / max;
        match self.numbers {
            Fp8Scales::PowerOfTwo => ceil_power_of_two(scale),
            Fp8Scales::Exact => GroupScale { encode: max / a, scale },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_there_once() {
        let all: std::collections::HashSet<_> = CastScheme::all().collect();
        // Two formats; eleven groupings, two of which also transposed; three orders.
        assert_eq!((all.len(), CastScheme::all().count()), (2 * 13 * 3, 2 * 13 * 3));
    }

    #[test]
    fn every_place_is_there_once() {
        for scales in CastScales::ALL {
            for (rows, cols) in [(1, 1), (3, 5), (4, 8), (130, 7), (0, 3)] {
                let width = if scales == CastScales::Ue8m0 { 1 } else { 4 };
                let mut seen = vec![false; scales.bytes(rows, cols) / width];
                for at in 0..rows * cols {
                    let place = scales.index(rows, cols, at / cols, at % cols);
                    assert!(!std::mem::replace(&mut seen[place], true), "{scales} {rows} x {cols}");
                    assert_eq!(scales.position(rows, cols, place), Some([at / cols, at % cols]), "{scales}");
                }
                // Padding, and what is behind all.
                let mut others = seen.iter().chain(&[false; 9]).enumerate().filter(|(_, seen)| !**seen);
                assert!(
                    others.all(|(place, _)| scales.position(rows, cols, place).is_none()),
                    "{scales} {rows} x {cols}"
                );
            }
        }
        // The golden ue8m0_pack_M3_nk5 of tests/data/numerics.json: row 2, block 4 of 3 x 5.
        assert_eq!(CastScales::Ue8m0.index(3, 5, 2, 4), 16 + 8);
    }

    #[test]
    fn a_matrix_of_more_bytes_than_there_are_is_refused() {
        // Their product is 982,928 modulo 2^61.
        let (rows, cols) = (1_073_774_585, 2_147_418_128);
        for format in [CodeFormat::E4M3, CodeFormat::E2M1] {
            for group in CastGroup::ALL {
                let scheme = CastScheme::new(format, group).unwrap();
                assert!(matches!(scheme.check_shape(rows, cols), Err(Error::Shape { .. })), "{scheme}");
                assert!(scheme.check_shape(1 << 30, 1 << 28).is_ok(), "{scheme}");
            }
        }
    }

    #[test]
    fn a_floor_that_gives_no_normal_scale_is_refused() {
        let scheme = CastScheme::new(CodeFormat::E2M1, CastGroup::Group1x32).unwrap();
        let recipe = CastRecipe::new(scheme);
        for floor in [0.0, -1.0, f32::NAN, f32::INFINITY, 5.9 * f32::MIN_POSITIVE] {
            assert!(recipe.with_floor(floor).is_err(), "{floor:e}");
        }
        assert_eq!(recipe.group_scale(0.0).scale, f32::MIN_POSITIVE);
        assert!(recipe.with_floor(1.0).is_ok());
    }
}
