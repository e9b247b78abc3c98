//! NVFP4: the bytes, operation by operation. The CUDA kernels give the same bits.
//!
//! Every line below is FP32 rounded to nearest even, one operation after the other in the order of the brackets, nothing
//! contracted; `E4M3(.)` and `E2M1(.)` are the saturating casts; E is 448 or 256; `min(., FLT_MAX)` turns NaN into FLT_MAX, and
//! `min(., 448)` turns it into 448. The scalar rules are [`SecondLevel`]'s; what is left is which elements meet.
//!
//! | step | operations |
//! |---|---|
//! | 0 transform | Hadamard recipes only: 16 elements of a row become 16 BF16 numbers ([`hadamard16`](super::hadamard16)); below, x is these |
//! | 1 amax | `max abs x`, NaN ignored, 0 if nothing is left: of the matrix or of each row, and of each block or tile |
//! | 2 second level | `encode = min((6 E) / amax, FLT_MAX)`, 1 if amax or encode is 0; stored `scale = amax / (6 E)` |
//! | 3 plain scale | `s = E4M3(min(amax_b * (encode * (1 / 6)), FLT_MAX))`, `1 / 6 = 0x3E2AAAAB` |
//! | 3 4over6 scales | `base = (amax_b / 6) * encode; s4 = E4M3(min(base * 1.5, 448)); s6 = E4M3(min(base, 448))` |
//! | 4 multiplier | `inv = min(1 / (s * (1 / encode)), FLT_MAX)`: s = 0 gives FLT_MAX |
//! | 2 torchao | stored `scale = amax * (1 / 2688)`; torchao-cpu `amax / 2688` |
//! | 3, 4 torchao | `s = E4M3(clamp((amax_b * (1 / 6)) / scale, 2^-6, 448)); inv = (1 / scale) / s`, a scale of 0 counting as 1; torchao-cpu `amax_b / 6` |
//! | 5 codes | `E2M1(x * inv)`, or with random bytes [`codec::encode_e2m1_stochastic`](crate::codec::encode_e2m1_stochastic)`(x * inv, u)` |
//! | 6 error, strict | `q = value of E2M1(x * inv); d = (((q * s) * amax) / (6 E)) - x`, with the amax of step 2 |
//! | 6 error, fast | `d = (q * s) - (x * encode)`; `q * s` is exact |
//! | 7 sum of a line | `e = 0; for i in 0..16 { e = e + t_i }`, `t = abs d` (MAE) or `d * d` (MSE) |
//! | 8 sum of a tile | sixteen lines: `e_i = e_i + e_{i+8}` for i < 8, then 4, 2, 1 ([`tree_sum`]) |
//! | 9 choice | s4 if `e(s4) < e(s6)`; a tie or a NaN takes s6. One choice for a tile |
//!
//! A block is a line of 16 elements of a row; a tile is 16 rows of such lines (fewer at the edge, but not with 4over6, whose tree
//! needs sixteen), and every row of it stores the tile's s. The transposed output is all of this for Xᵀ: its tiles
//! have the same amax and, with plain scales, the transposed codes, but the errors of 4over6 are summed along the other axis,
//! so that a near tie may go the other way.

use ndarray::{Array2, ArrayView2};

use super::hadamard::hadamard16_all;
use super::quantize::{amax, row};
use super::{blocks, parallel};
use crate::error::Result;
use crate::format::{
    Basis, BlockShape, CodeRounding, E4m3Bound, ErrorMath, ErrorMetric, GivenScale, HostQuantMatrix, Nvfp4Recipe,
    SecondLevel,
};

/// Elements of a block, lines of a tile.
const SIDE: usize = 16;

/// The two candidates of a 4over6 block or tile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FourOverSix {
    /// The E4M3 scales that map the largest magnitude to 4 and to 6.
    pub scales: [u8; 2],
    /// The error sums with these scales, in the unit of the error math.
    pub errors: [f32; 2],
}

impl FourOverSix {
    /// 4 if its error is smaller, 6 otherwise: also for a tie or a NaN.
    pub fn maps_to(&self) -> u8 {
        if self.errors[0] < self.errors[1] { 4 } else { 6 }
    }

    /// The scale of the candidate that is taken.
    pub fn scale(&self) -> u8 {
        self.scales[usize::from(self.maps_to() == 6)]
    }
}

/// Both candidates of a block of 16 elements. Allocates nothing.
pub fn four_over_six_block(
    x: &[f32; 16],
    level: &SecondLevel,
    bound: E4m3Bound,
    metric: ErrorMetric,
    math: ErrorMath,
) -> FourOverSix {
    four_over_six(std::slice::from_ref(x), level, bound, metric, math)
}

/// Both candidates of a tile of 16 lines; its transpose may choose otherwise. Allocates nothing.
pub fn four_over_six_tile(
    x: &[[f32; 16]; 16],
    level: &SecondLevel,
    bound: E4m3Bound,
    metric: ErrorMetric,
    math: ErrorMath,
) -> FourOverSix {
    four_over_six(x, level, bound, metric, math)
}

/// `e_i = fl(e_i + e_{i + w})` for i < w, with w = 8, 4, 2, 1: the error of a tile from those of its lines.
pub fn tree_sum(mut errors: [f32; 16]) -> f32 {
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            errors[i] += errors[i + width];
        }
    }
    errors[0]
}

/// One line, or the sixteen of a tile.
fn four_over_six(
    lines: &[[f32; 16]],
    level: &SecondLevel,
    bound: E4m3Bound,
    metric: ErrorMetric,
    math: ErrorMath,
) -> FourOverSix {
    let scales = level.four_over_six_scales(amax(lines.as_flattened()));
    let errors = scales.map(|s| {
        let mut sums = [0.0; SIDE];
        for (sum, line) in sums.iter_mut().zip(lines) {
            let line = std::slice::from_ref(line);
            blocks::errors(line, &[s], &[level.multiplier(s)], level, bound, (metric, math), std::slice::from_mut(sum));
        }
        if lines.len() == 1 { sums[0] } else { tree_sum(sums) }
    });
    FourOverSix { scales, errors }
}

/// Where second levels come from.
#[derive(Clone, Copy)]
pub(super) enum Levels<'a> {
    Found,
    /// Given for the whole matrix.
    One(GivenScale),
    /// Given for each row.
    Each(GivenScale<&'a [f32]>),
}

/// `x` by an NVFP4 recipe, with second levels found or given: rows from `first_row` on of the matrix that random bytes are
/// counted in. Recipe and columns were checked.
pub(super) fn quantize(
    x: &ArrayView2<f32>,
    recipe: Nvfp4Recipe,
    given: Levels<'_>,
    first_row: usize,
) -> Result<HostQuantMatrix> {
    if recipe.options().basis == Basis::Hadamard16 {
        let transformed = transform(x);
        return encode(&transformed.view(), recipe, given, first_row);
    }
    encode(x, recipe, given, first_row)
}

/// The rows of `x`, 16 by 16 elements in the Hadamard basis.
fn transform(x: &ArrayView2<f32>) -> Array2<f32> {
    let (rows, cols) = x.dim();
    let mut y = Array2::zeros((rows, cols));
    let values = y.as_slice_mut().expect("a new array is contiguous");
    parallel::for_each_piece(values, cols, 4, |i, out| hadamard16_all(row(x, i).as_chunks().0, out.as_chunks_mut().0));
    y
}

fn encode(x: &ArrayView2<f32>, recipe: Nvfp4Recipe, given: Levels<'_>, first_row: usize) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let options = recipe.options();
    let lines = match options.shape {
        BlockShape::Row1x16 => 1,
        BlockShape::Tile16x16 => SIDE,
    };
    let levels = second_levels(x, recipe, given);
    let group_rows = recipe.scheme().spec().group_rows.size(rows);
    let (code_bytes, blocks) = (cols / 2, cols / SIDE);
    let (mut codes, mut bytes) = (vec![0u8; rows * code_bytes], vec![0u8; rows * blocks]);
    let (codes_of, bytes_of) = ((&mut codes[..], code_bytes * lines), (&mut bytes[..], blocks * lines));
    parallel::for_each_pair(codes_of, bytes_of, 8, |tile, codes, bytes| {
        let first = tile * lines;
        let rows: Vec<_> = (first..first + codes.len() / code_bytes).map(|i| row(x, i)).collect();
        let rows: Vec<_> = rows.iter().map(|row| row.as_chunks().0).collect();
        for from in (0..blocks).step_by(blocks::AT_ONCE) {
            let some = from..(from + blocks::AT_ONCE).min(blocks);
            let (mut s, mut inv) = ([0; blocks::AT_ONCE], [0.0; blocks::AT_ONCE]);
            let (s, inv) = (&mut s[..some.len()], &mut inv[..some.len()]);
            blocks::scales(&rows, some.clone(), &levels[first / group_rows], recipe, s, inv);
            for (line, row) in rows.iter().enumerate() {
                bytes[line * blocks..][some.clone()].copy_from_slice(s);
                let codes = &mut codes[line * code_bytes..][..code_bytes].as_chunks_mut().0[some.clone()];
                match options.rounding {
                    CodeRounding::Nearest => blocks::nearest(&row[some.clone()], inv, codes),
                    CodeRounding::Stochastic { seed, offset } => {
                        let index = ((first_row + first + line) * blocks + from) as u64;
                        blocks::stochastic(&row[some.clone()], inv, [seed, offset, index], codes);
                    }
                }
            }
        }
    });
    let scales: Vec<f32> = levels.iter().map(|level| level.scale).collect();
    let matrix = HostQuantMatrix::from_block_logical(recipe.scheme(), rows, cols, codes, &scales, &bytes)?;
    Ok(matrix.assume_basis(options.basis))
}

/// Steps 1 and 2: one second level for the matrix, or one for each row.
fn second_levels(x: &ArrayView2<f32>, recipe: Nvfp4Recipe, given: Levels<'_>) -> Vec<SecondLevel> {
    let (rows, cols) = x.dim();
    let bound = recipe.options().bound;
    let level = |given| match recipe.torchao() {
        Some(device) => SecondLevel::torchao(given, device),
        None => SecondLevel::new(given, bound),
    };
    match given {
        Levels::Found => {}
        Levels::One(given) => return vec![level(given)],
        // Rows without elements have an amax of 0, and so has their scale.
        Levels::Each(_) if cols == 0 => {}
        Levels::Each(given) => return given.number().iter().map(|number| level(given.with_number(*number))).collect(),
    }
    let mut row_amax = vec![0.0; rows];
    parallel::for_each_piece(&mut row_amax, 1, cols, |i, out| out[0] = amax(&row(x, i)));
    let [groups, _] = recipe.scheme().scale_grid(rows, cols);
    let size = recipe.scheme().spec().group_rows.size(rows);
    let group = |g: usize| amax(&row_amax[(g * size).min(rows)..((g + 1) * size).min(rows)]);
    (0..groups).map(|g| level(GivenScale::Amax(group(g)))).collect()
}
