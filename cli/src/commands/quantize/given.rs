//! What an amax that was given makes of the values of a matrix: one too small cuts them off, one too large makes zeros of them.

use ndarray::{ArrayView1, Axis};
use rayon::prelude::*;
use scaled_gemm::checkpoint::{PlainRows, printable};
use scaled_gemm::{E4m3Bound, HostQuantMatrix};
use serde_json::{Value, json};

/// Values beyond what an amax reaches, of a hundred, from which on that is said. Calibration by percentiles cuts off fewer.
const MOST_BEYOND: f64 = 1.0;
/// Values that became zero, of a hundred that are not zero, from which on that is said. Blocks with a value that is much larger than their
/// others have some with any amax.
const MOST_ZERO: f64 = 50.0;

/// Columns that a block scale of NVFP4 serves.
const BLOCK: usize = 16;

/// How many values of a matrix are beyond what the amax reaches that its scale is made for, and how many became zero.
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
}

impl GivenAmax {
    /// Those of some rows and their codes.
    pub fn of_rows(amax: f32, x: &PlainRows, codes: &HostQuantMatrix) -> Self {
        let (x, reach) = (x.to_f32(), reach(amax, codes));
        let blocks = if codes.block_scales().is_empty() { 0 } else { codes.cols() / BLOCK };
        let of_row = |(row, values): (usize, ArrayView1<'_, f32>)| {
            let mut found = Self { amax, reach, values: values.len() as u64, ..Self::default() };
            let mut decoded = vec![0.0; codes.cols()];
            codes.decode_row(row, &mut decoded);
            // Codes of a block whose scale is zero are zero, whatever they are.
            for block in (0..blocks).filter(|block| codes.block_scale_at(row, *block) == 0) {
                decoded[BLOCK * block..][..BLOCK].fill(0.0);
            }
            for (value, code) in values.iter().zip(decoded) {
                let size = value.abs();
                found.largest = found.largest.max(size);
                found.beyond += u64::from(size > reach);
                found.not_zero += u64::from(size != 0.0);
                found.became_zero += u64::from(size != 0.0 && code == 0.0);
            }
            found
        };
        let rows: Vec<_> = x.axis_iter(Axis(0)).enumerate().collect();
        rows.into_par_iter().map(of_row).reduce(|| Self { amax, reach, ..Self::default() }, Self::with)
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
        }
    }

    /// A line for people where many values are lost: more than [`MOST_BEYOND`] % cut off, or, of an amax larger than all of them, more than
    /// [`MOST_ZERO`] % zero.
    pub fn describe(&self, name: &str) -> Option<String> {
        let Self { amax, reach, largest, values, not_zero, beyond, became_zero } = *self;
        let percent = |n: u64, of: u64| 100.0 * n as f64 / of.max(1) as f64;
        let (cut, zero) = (percent(beyond, values), percent(became_zero, not_zero));
        let found = if cut > MOST_BEYOND {
            let most = if reach > amax { format!("{reach}, the most for ") } else { String::new() };
            format!(
                "{beyond} of {values} values ({cut:.1} %) are beyond {most}the given amax {amax:e} and became the largest code"
            )
        } else if zero > MOST_ZERO && amax > largest {
            format!("{became_zero} of {not_zero} values that are not zero became zero by the given amax {amax:e}")
        } else {
            return None;
        };
        Some(format!("{}: {found}, and the largest of them is {largest}; give an amax near it\n", printable(name)))
    }

    /// For programs, always.
    pub fn value(&self) -> Value {
        let Self { amax, largest, beyond, became_zero, .. } = *self;
        json!({"amax": amax, "largest": largest, "beyond": beyond, "became_zero": became_zero})
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
    pub fn describe(&self, name: &str, of: &str) -> String {
        let Self { given, counts, .. } = self;
        let [name, of] = [name, of].map(printable);
        format!(
            "{name}: the given amax {given:e} changes nothing: it shares its scale with {of}, whose amax {counts} counts\n"
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
