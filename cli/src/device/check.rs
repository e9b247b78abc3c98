//! Whether what was timed is right.

use std::ops::Range;

use ndarray::{Array2, s};
use scaled_gemm::reference::{Accumulator, Gelu, GemmInputs, gemm_bound, rows_of};
use scaled_gemm::{DType, HostQuantMatrix, Result};

use super::HostA;

/// Rows of A in one check.
const ROWS: usize = 8;
/// Rows of B in one check: a tile.
const COLS: usize = 128;

/// Checks a product where it is cheap to: the first rows of A against the last tile of B, and the last tile's first rows
/// of A against the first of B. `rows_of_a` gives rows of the m of A from a multiple of 128 on, `rows_of_d` whole rows of D.
///
/// The error as a fraction of the f64 bound; infinite where an element is outside it.
pub fn sampled_error(
    m: usize,
    mut rows_of_a: impl FnMut(Range<usize>) -> Result<HostA>,
    b: &HostQuantMatrix,
    out: DType,
    (accumulator, gelu): (Accumulator, Gelu),
    mut rows_of_d: impl FnMut(Range<usize>) -> Result<Array2<f32>>,
) -> Result<f64> {
    let last = |rows: usize| (rows.saturating_sub(1) / 128) * 128;
    let mut worst = 0.0f64;
    for (row, col) in [(0, last(b.rows())), (last(m), 0)] {
        let rows = row..(row + ROWS).min(m);
        let (a, b) = (rows_of_a(rows.clone())?, rows_of(b, col, COLS)?);
        let bound = gemm_bound(&GemmInputs::new(a.operand(), &b, out), accumulator, gelu)?;
        let d = rows_of_d(rows)?;
        let part = d.slice(s![.., col..col + b.rows()]);
        worst = worst.max(bound.check(part).unwrap_or(f64::INFINITY));
    }
    Ok(worst)
}
