//! What an amax that was given makes of the values of a matrix: one too small cuts them off, one too large makes zeros of them.

use ndarray::{ArrayView1, Axis};
use rayon::prelude::*;
use scaled_gemm::HostQuantMatrix;
use scaled_gemm::checkpoint::{PlainRows, printable};
use serde_json::{Value, json};

/// Values beyond an amax, of a hundred, from which on that is said. Calibration by percentiles cuts off fewer.
const MOST_BEYOND: f64 = 1.0;
/// Values that became zero, of a hundred that are not zero, from which on that is said. Blocks with a value that is much larger than their
/// others have some with any amax.
const MOST_ZERO: f64 = 50.0;

/// Columns that a block scale of NVFP4 serves.
const BLOCK: usize = 16;

/// How many values of a matrix are beyond the amax that its scale is made for, and how many became zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct GivenAmax {
    amax: f32,
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
        let x = x.to_f32();
        let blocks = if codes.block_scales().is_empty() { 0 } else { codes.cols() / BLOCK };
        let of_row = |(row, values): (usize, ArrayView1<'_, f32>)| {
            let mut found = Self { amax, values: values.len() as u64, ..Self::default() };
            let mut decoded = vec![0.0; codes.cols()];
            codes.decode_row(row, &mut decoded);
            // Codes of a block whose scale is zero are zero, whatever they are.
            for block in (0..blocks).filter(|block| codes.block_scale_at(row, *block) == 0) {
                decoded[BLOCK * block..][..BLOCK].fill(0.0);
            }
            for (value, code) in values.iter().zip(decoded) {
                let size = value.abs();
                found.largest = found.largest.max(size);
                found.beyond += u64::from(size > amax);
                found.not_zero += u64::from(size != 0.0);
                found.became_zero += u64::from(size != 0.0 && code == 0.0);
            }
            found
        };
        let rows: Vec<_> = x.axis_iter(Axis(0)).enumerate().collect();
        rows.into_par_iter().map(of_row).reduce(|| Self { amax, ..Self::default() }, Self::with)
    }

    /// With those of other rows.
    pub fn with(self, other: Self) -> Self {
        Self {
            amax: other.amax,
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
        let Self { amax, largest, values, not_zero, beyond, became_zero } = *self;
        let percent = |n: u64, of: u64| 100.0 * n as f64 / of.max(1) as f64;
        let (cut, zero) = (percent(beyond, values), percent(became_zero, not_zero));
        let found = if cut > MOST_BEYOND {
            format!(
                "{beyond} of {values} values ({cut:.1} %) are beyond the given amax {amax:e} and became the largest code"
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
