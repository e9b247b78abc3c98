//! Finite values of which a recipe keeps nothing: those whose codes and scales come to infinity, and groups and matrices that became zeros.

use ndarray::Array2;
use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::codec::decode_block_scale;
use scaled_gemm::{Basis, BlockScaleFormat, BlockShape, CodeFormat, DType, Mxfp8Recipe, Recipe, Scheme, reference};

use super::plan::Weight;
use super::zero_groups::{ZeroGroups, least_block, smaller};
use super::zero_values::ZeroValues;
use crate::coded::Coded;
use crate::data::undo_hadamard;
use crate::output::{count, named, of_number};
use crate::target::Target;

/// Scales from which on a value may be beyond FP32: no code is above 57344, which is less than 2^16.
const LARGE: f32 = (1u128 << 112) as f32;
/// Scales up to which values may be zeros: the least code is 2^-16, and with a larger scale FP32 holds the value.
const SMALL: f32 = 1.0 / LARGE;

/// The largest value of F16 that there is room above: its largest number is 65504.
const F16_ROOM: f32 = 32768.0;
/// Rows and columns of the largest group that is not a whole row or matrix.
const ROWS: usize = 128;

/// What of some rows, or of a matrix, is lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lost {
    /// Finite values that come back infinite.
    pub beyond: usize,
    /// All that comes back is zero.
    zeros: bool,
    /// What [`least_block`] finds. Of interest where all that comes back is zero.
    least: Option<f32>,
    pub groups: ZeroGroups,
    pub values: ZeroValues,
    /// About the largest value, by the scales.
    largest: f32,
}

impl Lost {
    /// Of rows and what was made of them. They are dequantized only where scales or codes are such that values may be lost.
    pub fn of(x: &PlainRows, part: &Coded) -> Self {
        let (scale, is_zero, groups) = (largest_scale(part), is_zero(part), ZeroGroups::of(x, part));
        let values = ZeroValues::of(x, part);
        let largest = scale * part.format().max();
        if scale > SMALL && scale < LARGE && !is_zero {
            return Self { groups, values, largest, ..Self::default() };
        }
        if is_zero && x.amax() == 0.0 {
            return Self { zeros: true, groups, values, largest, ..Self::default() };
        }
        let mut back = match part {
            Coded::Quantized(q) => reference::dequantize(q, DType::F32),
            Coded::Cast(q) => reference::cast_back(q, DType::F32),
        };
        if part.basis() != Basis::Plain {
            undo_hadamard(&mut back);
        }
        let plain = x.to_f32();
        let beyond = plain.iter().zip(&back).filter(|(x, back)| x.is_finite() && back.is_infinite()).count();
        Self {
            beyond,
            zeros: back.iter().all(|value| *value == 0.0),
            least: least_block(plain.view()),
            groups,
            values,
            largest,
        }
    }

    /// With that of rows that come after.
    pub fn with(self, later: Self) -> Self {
        Self {
            beyond: self.beyond + later.beyond,
            zeros: self.zeros && later.zeros,
            least: smaller(self.least, later.least),
            groups: self.groups.with(later.groups),
            values: self.values.with(later.values),
            largest: self.largest.max(later.largest),
        }
    }

    /// Whether all values of a matrix became zeros that were not all.
    pub fn became_zeros(&self) -> bool {
        self.zeros && self.least.is_some()
    }

    /// Lines for the result, where there is something to say; `are_zeros_said`: of zeros more is said elsewhere.
    pub fn describe(&self, name: &str, weight: &Weight, remedies: &Remedies, are_zeros_said: bool) -> String {
        let (mut text, name) = (String::new(), named(name));
        if self.beyond > 0 {
            text += &format!(
                "{name}: {} beyond FP32 as {}, or round the scales otherwise (mxfp8, mxfp4: --mx-rounding floor; fp8 and --group: exact scales, \
                 without --power-of-two and --scales ue8m0)\n",
                count(self.beyond, "value is", "values are"),
                of_number(
                    self.beyond,
                    "it was quantized, and comes back infinite; scale it down",
                    "they were quantized, and come back infinite; scale them down"
                )
            );
        }
        let ZeroGroups { zeros, all, least, smallest, nearest } = self.groups;
        if self.became_zeros() && !are_zeros_said {
            text += &format!("{name}: all its values became 0, and not all were; {}\n", remedies.of(self.least, true));
        } else if zeros > 0 && !are_zeros_said {
            text += &format!(
                "{name}: all values of {zeros} of its {} became 0, and not all were; {}\n",
                count(all, "group", "groups"),
                remedies.of(
                    least,
                    match nearest.filter(|_| has_scales_of_rows(weight)) {
                        Some([group, row]) => is_kept_larger(weight, row, group),
                        None => smallest.is_none_or(|smallest| is_kept_larger(weight, self.largest, smallest)),
                    }
                )
            );
        }
        // Where most groups are zeros nothing more is to be said of their values.
        if self.values.are_most() && zeros <= all / 2 && !self.became_zeros() && !are_zeros_said {
            let ZeroValues { not_zero, zeros, .. } = self.values;
            text += &format!(
                "{name}: {zeros} of {not_zero} values that are not zero became zero; {}\n",
                remedies.of_values(&self.values)
            );
        }
        text
    }
}

/// Where nothing helps.
const WIDE: &str = "its range is wider than this recipe's, whatever the values are scaled by";

/// What may be done about values that became zeros.
pub enum Remedies {
    /// Others are quantized, too.
    Exclude,
    /// Recipes that take the matrix as it is asked for, and the options that choose them.
    Recipes(Vec<(Mxfp8Recipe, String)>),
}

impl Remedies {
    /// `least`: the smallest of the values that are to be kept, each the largest of its block. `grows`: whether they are kept where all are
    /// larger.
    fn of(&self, least: Option<f32>, grows: bool) -> String {
        let other = match self {
            Self::Exclude => Some("leave the matrix as it is (--exclude)".to_string()),
            Self::Recipes(all) => all
                .iter()
                .find(|(recipe, _)| keeps(*recipe, least.unwrap_or(0.0)))
                .map(|(_, options)| format!("use {options}")),
        };
        match (grows, other) {
            (true, Some(other)) => format!("scale them up, or {other}"),
            (true, None) => "scale them up".into(),
            (false, Some(other)) => other,
            (false, None) => WIDE.into(),
        }
    }

    /// The same where most values of a matrix became zeros, and none of the groups that they are in.
    fn of_values(&self, values: &ZeroValues) -> String {
        match self {
            Self::Exclude => "leave the matrix as it is (--exclude)".into(),
            Self::Recipes(all) => all
                .iter()
                .find(|(recipe, _)| values.are_few_in(recipe.format))
                .map_or(WIDE.into(), |(_, options)| format!("use {options}")),
        }
    }
}

/// Whether blocks share a second scale with those of their row alone.
fn has_scales_of_rows(weight: &Weight) -> bool {
    matches!(weight.target, Target::Recipe(recipe) if recipe.scheme() == Scheme::Nvfp4Row)
}

/// Whether a group of which `smallest` is the largest value is kept where all values are scaled up as far as their type goes, with room for what
/// scales are rounded up to. Beside it, where it may share a scale with others, is one with `largest`: in the same rows, or the same tile; else in others, as schemes of two levels keep what is near it. The reference is asked.
fn is_kept_larger(weight: &Weight, largest: f32, smallest: f32) -> bool {
    let most = if weight.source == DType::F16 { F16_ROOM } else { LARGE };
    // Of what is infinite, or has no scale, nothing is known.
    if !(largest.is_finite() && largest > 0.0) {
        return true;
    }
    let by = (f64::from(most) / f64::from(largest)).max(1.0).log2().floor().exp2();
    let [large, small] = [largest, smallest].map(|value| (f64::from(value) * by) as f32);
    let is_large = |row: usize, col: usize| match weight.target {
        Target::Recipe(Recipe::Nvfp4(recipe)) if recipe.options().shape == BlockShape::Tile16x16 => {
            row.is_multiple_of(16)
        }
        _ if has_scales_of_rows(weight) => col < ROWS / 2,
        _ => row < ROWS,
    };
    let x = Array2::from_shape_fn([2 * ROWS, ROWS], |(row, col)| if is_large(row, col) { large } else { small });
    let back = match weight.target {
        Target::Recipe(recipe) => {
            reference::quantize(x.view(), weight.source, recipe).map(|q| reference::dequantize(&q, DType::F32))
        }
        Target::Cast(recipe) => reference::cast(&x.view().into(), recipe).map(|q| reference::cast_back(&q, DType::F32)),
    };
    back.is_ok_and(|back| back.indexed_iter().any(|((row, col), value)| !is_large(row, col) && *value != 0.0))
}

/// Whether a block of which this is the largest value is kept. No recipe has smaller scales than MXFP8. The reference is asked.
fn keeps(recipe: Mxfp8Recipe, largest: f32) -> bool {
    let x = Array2::from_elem((1, 32), largest);
    let q = reference::quantize(x.view(), DType::F32, recipe);
    q.is_ok_and(|q| reference::dequantize(&q, DType::F32).iter().any(|value| *value != 0.0))
}

/// The largest FP32 scale, times the largest of blocks. NaN does not count.
fn largest_scale(part: &Coded) -> f32 {
    let largest = |scales: &[f32]| scales.iter().fold(0.0f32, |most, scale| most.max(scale.abs()));
    let q = match part {
        Coded::Cast(q) => return largest(q.scales()),
        Coded::Quantized(q) => q,
    };
    let whole = if q.scales().is_empty() { 1.0 } else { largest(q.scales()) };
    let Some(block) = q.scheme().spec().block else { return whole };
    let nan = if block.format == BlockScaleFormat::Ue8m0 { 0xFF } else { 0x7F };
    // Both formats are in the order of their bytes.
    let byte = q.block_scales().iter().copied().filter(|byte| *byte != nan).max();
    whole * byte.map_or(0.0, |byte| decode_block_scale(block.format, byte))
}

/// Whether all codes are zero, of either sign.
fn is_zero(part: &Coded) -> bool {
    let mask = if part.format() == CodeFormat::E2M1 { 0x77 } else { 0x7F };
    part.codes().iter().all(|byte| byte & mask == 0)
}
