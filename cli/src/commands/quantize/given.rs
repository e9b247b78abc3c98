//! What an amax that was given makes of the values of a matrix: one too small cuts them off, one too large makes zeros of them, or leaves
//! them few bits.

use std::collections::BTreeMap;

use ndarray::Array2;
use rayon::prelude::*;
use scaled_gemm::checkpoint::{PlainRows, printable};
use scaled_gemm::codec::decode_block_scale;
use scaled_gemm::{
    Basis, BlockScaleFormat, BlockShape, CodeFormat, DType, E4m3Bound, Fp8Format, GivenScale, HostQuantMatrix, Recipe,
    reference,
};
use serde_json::{Value, json};

use crate::output::{Failure, MANY, float, named, of_number, starred};

/// Values beyond what an amax reaches, of a hundred, from which on that is said. Calibration by percentiles cuts off fewer.
const MOST_BEYOND: f64 = 1.0;
/// Values that became zero, of a hundred that are not zero, from which on that is said. Blocks with a value that is much larger than their
/// others have some with any amax.
const MOST_ZERO: f64 = 50.0;

/// Columns that a block scale of NVFP4 serves.
const BLOCK: usize = 16;

/// The scale of the whole that an amax makes.
pub fn scale(recipe: Recipe, source: DType, given: GivenScale) -> Result<f32, Failure> {
    let none = Array2::zeros((recipe.row_multiple(), BLOCK));
    Ok(reference::quantize_part(none.view(), source, recipe, given)?.scales()[0])
}

/// What is left of any values, in dB of SQNR, by an amax that is their largest: not more than the worst that there is. Of FP8 each is off
/// by 2^-4 (E4M3) or 2^-3 (E5M2) of itself at most. Of a block of NVFP4 the worst is 15 values between codes 4 and 6 beside a 6, 14.3
/// dB, 13.4 with stochastic rounding; of a tile 255 halfway from 0 to the smallest code, 4.9 and 4.2. Those too small for normal codes or block scales add nothing to either.
fn least_db(recipe: Recipe) -> f64 {
    match recipe {
        Recipe::Nvfp4(nv) if nv.options().shape == BlockShape::Tile16x16 => 4.0,
        recipe => match recipe.format() {
            CodeFormat::Fp8(Fp8Format::E4M3) => 24.0,
            CodeFormat::Fp8(Fp8Format::E5M2) => 18.0,
            CodeFormat::E2M1 => 13.0,
        },
    }
}

/// How many values of a matrix are beyond what the amax reaches that its scale is made for, how many became zero, and what is left.
#[derive(Debug, Clone, Copy, Default)]
pub struct GivenAmax {
    amax: f32,
    /// What the largest codes and block scales come to: the amax, or more where scales have room above it.
    reach: f32,
    /// The largest magnitude that is there.
    largest: f32,
    values: u64,
    not_zero: u64,
    beyond: u64,
    became_zero: u64,
    /// The largest magnitude in a block that came back as zeros, and the least one that a block scale of this scale is not zero for.
    in_zeros: f32,
    least: f32,
    blocks: u64,
    zero_blocks: u64,
    /// Sums of squares: of the values, and of how far off they come back. Nothing in another basis, which they are not compared in.
    power: f64,
    noise: f64,
    /// See [`least_db`].
    least_db: f64,
}

/// What is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Beyond,
    Zero,
    Coarse,
    Blocks,
}

impl GivenAmax {
    /// Those of some rows and their codes.
    pub fn of_rows(amax: f32, recipe: Recipe, x: &PlainRows, codes: &HostQuantMatrix) -> Self {
        let none = Self {
            amax,
            reach: reach(amax, codes),
            least: least(codes),
            least_db: least_db(recipe),
            ..Self::default()
        };
        // By rows: a matrix in FP32 may be twice what there is of it.
        let rows = (0..x.rows()).into_par_iter();
        let of_row = |(values, back): &mut (Vec<f32>, Vec<f32>), row| {
            x.row_into(row, values);
            decode_row(codes, row, back);
            let mut found = Self { values: values.len() as u64, ..none };
            for (values, back) in values.chunks(BLOCK).zip(back.chunks(BLOCK)) {
                let most = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                let is_zero = most > 0.0 && back.iter().all(|value| *value == 0.0);
                found.blocks += 1;
                found.zero_blocks += u64::from(is_zero);
                found.in_zeros = found.in_zeros.max(if is_zero { most } else { 0.0 });
            }
            for (value, back) in values.iter().zip(back) {
                let size = value.abs();
                found.largest = found.largest.max(size);
                found.beyond += u64::from(size > none.reach);
                found.not_zero += u64::from(size != 0.0);
                found.became_zero += u64::from(size != 0.0 && *back == 0.0);
                let (value, off) = (f64::from(*value), f64::from(*value) - f64::from(*back));
                if codes.basis() == Basis::Plain && value.is_finite() {
                    found.power += value * value;
                    found.noise += off * off;
                }
            }
            found
        };
        rows.map_init(Default::default, of_row).reduce(|| none, Self::with)
    }

    /// With those of other rows.
    pub fn with(self, other: Self) -> Self {
        Self {
            amax: other.amax,
            reach: other.reach,
            largest: self.largest.max(other.largest),
            values: self.values + other.values,
            not_zero: self.not_zero + other.not_zero,
            beyond: self.beyond + other.beyond,
            became_zero: self.became_zero + other.became_zero,
            in_zeros: self.in_zeros.max(other.in_zeros),
            least: other.least,
            blocks: self.blocks + other.blocks,
            zero_blocks: self.zero_blocks + other.zero_blocks,
            power: self.power + other.power,
            noise: self.noise + other.noise,
            least_db: other.least_db,
        }
    }

    /// SQNR of the values as they come back; nothing where there is none.
    fn sqnr_db(&self) -> Option<f64> {
        Some(10.0 * (self.power / self.noise).log10()).filter(|db| db.is_finite())
    }

    /// Where much is lost: more than [`MOST_BEYOND`] % cut off, or, of an amax larger than all of them, more than [`MOST_ZERO`] % zero, or less
    /// left than an amax of their size leaves of any values, or blocks zero.
    fn loss(&self) -> Option<Loss> {
        let Self { amax, largest, least_db, .. } = *self;
        let coarse = self.sqnr_db().is_some_and(|db| db < least_db);
        match self.percents() {
            [cut, _] if cut > MOST_BEYOND => Some(Loss::Beyond),
            [_, zero] if zero > MOST_ZERO && amax > largest => Some(Loss::Zero),
            _ if coarse && amax > largest => Some(Loss::Coarse),
            _ => Some(Loss::Blocks).filter(|_| self.has_zero_blocks()),
        }
    }

    /// Whether it is said that values became zero by this amax: what else is said of zeros, and helps where none was given, is not.
    pub fn is_said_of_zeros(&self) -> bool {
        match self.loss() {
            Some(Loss::Zero | Loss::Blocks) => true,
            Some(Loss::Coarse) => self.has_zero_blocks(),
            Some(Loss::Beyond) | None => false,
        }
    }

    /// Whether blocks became zeros of which an amax near the largest value had kept one.
    fn has_zero_blocks(&self) -> bool {
        let Self { amax, largest, in_zeros, least, .. } = *self;
        amax > largest && in_zeros > least * (largest / amax)
    }

    /// Values beyond the amax, and those that became zero, of a hundred.
    fn percents(&self) -> [f64; 2] {
        let percent = |n: u64, of: u64| 100.0 * n as f64 / of.max(1) as f64;
        [percent(self.beyond, self.values), percent(self.became_zero, self.not_zero)]
    }

    /// A line for people where much is lost.
    fn describe(&self, name: &str, loss: Loss) -> String {
        let Self { amax, reach, largest, values, not_zero, beyond, became_zero, least_db, blocks, zero_blocks, .. } =
            *self;
        let ([cut, _], given, are) = (self.percents(), float(amax), of_number(beyond as usize, "is", "are"));
        let found = match loss {
            Loss::Beyond => {
                let most = if reach > amax { format!("{reach}, the most for ") } else { String::new() };
                format!(
                    "{beyond} of {values} values ({cut:.1} %) {are} beyond {most}the given amax {given} and became the largest code"
                )
            }
            Loss::Zero => {
                format!("{became_zero} of {not_zero} values that are not zero became zero by the given amax {given}")
            }
            Loss::Coarse => format!(
                "the given amax {given} leaves {:.1} dB of SQNR, less than the {least_db} that one near the largest value leaves of any",
                self.sqnr_db().unwrap_or_default()
            ),
            Loss::Blocks => format!(
                "all values of {zero_blocks} of its {blocks} groups became 0, and not all were, by the given amax {given}"
            ),
        };
        let whose = if loss == Loss::Blocks { "its values" } else { "them" };
        format!("{}: {found}, and the largest of {whose} is {largest}; give an amax near it\n", named(name))
    }

    /// A line for several matrices of such a name.
    fn describe_all(&self, name: &str, number: usize, loss: Loss) -> String {
        let Self { not_zero, values, beyond, became_zero, least_db, blocks, zero_blocks, .. } = *self;
        let ([cut, _], are) = (self.percents(), of_number(beyond as usize, "is", "are"));
        let found = match loss {
            Loss::Beyond => format!(
                "{beyond} of {values} values ({cut:.1} %) {are} beyond the given amax and became the largest code"
            ),
            Loss::Zero => {
                format!("{became_zero} of {not_zero} values that are not zero became zero by the given amax")
            }
            Loss::Coarse => {
                format!(
                    "the given amax leaves less than the {least_db} dB of SQNR that one near the largest value leaves of any"
                )
            }
            Loss::Blocks => {
                format!("all values of {zero_blocks} of {blocks} groups became 0, and not all were, by the given amax")
            }
        };
        format!(
            "{}: of {number} matrices {found}; give an amax near the largest value of each, which --json has\n",
            named(name)
        )
    }

    /// For programs, always.
    pub fn value(&self) -> Value {
        let Self { amax, largest, beyond, became_zero, .. } = *self;
        let sqnr = self.sqnr_db();
        json!({"amax": amax, "largest": largest, "beyond": beyond, "became_zero": became_zero, "sqnr_db": sqnr})
    }
}

/// Lines for people, of matrices where much is lost; from [`MANY`] on one for those that differ in a number.
pub fn losses<'a>(all: impl Iterator<Item = (&'a str, &'a GivenAmax)>) -> String {
    let lost: Vec<_> = all.filter_map(|(name, given)| Some((name, given, given.loss()?))).collect();
    if lost.len() <= MANY {
        return lost.into_iter().map(|(name, given, loss)| given.describe(name, loss)).collect();
    }
    let mut lines: BTreeMap<(String, Loss), Vec<(&str, &GivenAmax)>> = BTreeMap::new();
    for (name, given, loss) in lost {
        lines.entry((starred(name), loss)).or_default().push((name, given));
    }
    let line = |((name, loss), of): ((String, Loss), Vec<(&str, &GivenAmax)>)| match of.as_slice() {
        [(name, given)] => given.describe(name, loss),
        several => {
            let sum = several.iter().fold(GivenAmax::default(), |sum, (_, given)| sum.with(**given));
            sum.describe_all(&name, several.len(), loss)
        }
    };
    lines.into_iter().map(line).collect()
}

/// Lines for people, of each amax that changes nothing, with its matrix and the one whose amax counts; put together as [`losses`] are.
pub fn outweighed<'a>(all: impl ExactSizeIterator<Item = (&'a str, &'a Outweighed, &'a str)>) -> String {
    if all.len() <= MANY {
        return all.map(|(name, idle, of)| idle.describe(name, of)).collect();
    }
    let mut lines: BTreeMap<[String; 2], Vec<(&str, &Outweighed, &str)>> = BTreeMap::new();
    for (name, idle, of) in all {
        lines.entry([starred(name), starred(of)]).or_default().push((name, idle, of));
    }
    let line = |([name, of], all): ([String; 2], Vec<(&str, &Outweighed, &str)>)| match all.as_slice() {
        [(name, idle, of)] => idle.describe(name, of),
        several => format!(
            "{}: the given amax of {} matrices changes nothing: they share their scales with {}, whose amax counts, which --json has\n",
            printable(&name),
            several.len(),
            printable(&of)
        ),
    };
    lines.into_iter().map(line).collect()
}

/// The values of a row as they come back.
fn decode_row(codes: &HostQuantMatrix, row: usize, values: &mut Vec<f32>) {
    values.resize(codes.cols(), 0.0);
    codes.decode_row(row, values);
    let whole = codes.scales().first().copied().unwrap_or_default();
    let has_blocks = !codes.block_scales().is_empty();
    for (block, values) in values.chunks_mut(BLOCK).enumerate() {
        let scale = match has_blocks {
            // Codes of a block whose scale is zero are zero, whatever they are.
            true => decode_block_scale(BlockScaleFormat::Ue4m3, codes.block_scale_at(row, block)),
            false => 1.0,
        };
        values.iter_mut().for_each(|value| *value = *value * scale * whole);
    }
}

/// An amax that was given and changes nothing: another that shares the scale has a larger one.
#[derive(Debug, Clone, Copy)]
pub struct Outweighed {
    pub given: f32,
    /// The amax that counts, and the place of the matrix that has it.
    pub counts: f32,
    pub of: usize,
}

impl Outweighed {
    /// A line for people.
    fn describe(&self, name: &str, of: &str) -> String {
        let Self { given, counts, .. } = self;
        let [name, of] = [name, of].map(named);
        format!(
            "{name}: the given amax {} changes nothing: it shares its scale with {of}, whose amax {counts} counts\n",
            float(*given)
        )
    }

    /// For programs.
    pub fn value(&self, of: &str) -> Value {
        json!({"amax": self.given, "counts": self.counts, "of": of})
    }
}

/// What the largest codes come to under the scale that was made for an amax: more than it where that was rounded up to a power of two, or
/// block scales have a bound below their largest.
fn reach(amax: f32, codes: &HostQuantMatrix) -> f32 {
    let block = if codes.block_scales().is_empty() { 1.0 } else { E4m3Bound::Max448.value() };
    let most = codes.scheme().spec().format.max() * block * codes.scales().first().copied().unwrap_or_default();
    // The scale is rounded.
    if most > amax * 1.001 { most } else { amax }
}

/// The least magnitude of the largest value of a block whose scale is not zero: half the least block scale is rounded to zero. Infinite where
/// there are no blocks.
fn least(codes: &HostQuantMatrix) -> f32 {
    match codes.block_scales() {
        [] => f32::INFINITY,
        _ => {
            let half = decode_block_scale(BlockScaleFormat::Ue4m3, 1) / 2.0;
            codes.scheme().spec().format.max() * half * codes.scales().first().copied().unwrap_or_default()
        }
    }
}
