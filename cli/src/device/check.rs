//! Whether what was timed is right.

use std::ops::Range;

use ndarray::{Array2, s};
use scaled_gemm::reference::{Accumulator, Gelu, GemmInputs, gemm_bound};
use scaled_gemm::{DType, HostQuantMatrix, Result};

use crate::data::rows_of;

/// Rows of A in one check.
const ROWS: usize = 8;
/// Rows of B in one check: a tile.
const COLS: usize = 128;

/// Checks a product where it is cheap to: the first rows of A against the last tile of B, and the last tile's first rows
/// of A against the first of B. `rows_of_d` gives whole rows of D.
///
/// The error as a fraction of the f64 bound; infinite where an element is outside it.
pub fn sampled_error(
    a: &HostQuantMatrix,
    b: &HostQuantMatrix,
    out: DType,
    (accumulator, gelu): (Accumulator, Gelu),
    mut rows_of_d: impl FnMut(Range<usize>) -> Result<Array2<f32>>,
) -> Result<f64> {
    let last = |rows: usize| (rows.saturating_sub(1) / 128) * 128;
    let mut worst = 0.0f64;
    for (row, col) in [(0, last(b.rows())), (last(a.rows()), 0)] {
        let (a, b) = (rows_of(a, row, ROWS)?, rows_of(b, col, COLS)?);
        let bound = gemm_bound(&GemmInputs::new(&a, &b, out), accumulator, gelu)?;
        let d = rows_of_d(row..row + a.rows())?;
        let part = d.slice(s![.., col..col + b.rows()]);
        worst = worst.max(bound.check(part).unwrap_or(f64::INFINITY));
    }
    Ok(worst)
}
