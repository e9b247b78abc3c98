//! NVFP4: the bytes, operation by operation. The CUDA kernels give the same bits.
//!
//! Every line below is FP32 rounded to nearest even, one operation after the other in the order of the brackets, nothing
//! contracted; `E4M3(.)` and `E2M1(.)` are the saturating casts; E is 448 or 256; `min(., FLT_MAX)` turns NaN into FLT_MAX, and
//! `min(., 448)` turns it into 448. The scalar rules are [`SecondLevel`]'s; what is left is which elements meet.
//!
//! | step | operations |
//! |---|---|
//! | 0 transform | Hadamard recipes only: 16 elements of a row become 16 BF16 numbers ([`hadamard16`]); below, x is these |
//! | 1 amax | `max abs x`, NaN ignored, 0 if nothing is left: of the matrix or of each row, and of each block or tile |
//! | 2 second level | `encode = min((6 E) / amax, FLT_MAX)`, 1 if amax or encode is 0; stored `scale = amax / (6 E)` |
//! | 3 plain scale | `s = E4M3(min(amax_b * (encode * (1 / 6)), FLT_MAX))`, `1 / 6 = 0x3E2AAAAB` |
//! | 3 4over6 scales | `base = (amax_b / 6) * encode; s4 = E4M3(min(base * 1.5, 448)); s6 = E4M3(min(base, 448))` |
//! | 4 multiplier | `inv = min(1 / (s * (1 / encode)), FLT_MAX)`: s = 0 gives FLT_MAX |
//! | 2 torchao | stored `scale = amax * (1 / 2688)`; torchao-cpu `amax / 2688` |
//! | 3, 4 torchao | `s = E4M3(clamp((amax_b * (1 / 6)) / scale, 2^-6, 448)); inv = (1 / scale) / s`, a scale of 0 counting as 1; torchao-cpu `amax_b / 6` |
//! | 5 codes | `E2M1(x * inv)`, or with random bytes [`codec::encode_e2m1_stochastic`]`(x * inv, u)` |
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

use super::hadamard::hadamard16;
use super::parallel;
use super::philox::philox4x32_10;
use super::quantize::{amax, from_records, row};
use crate::error::Result;
use crate::format::{
    Basis, BlockScaleRule, BlockShape, CodeRounding, E4m3Bound, ErrorMath, ErrorMetric, Fp8Format, GivenScale,
    HostQuantMatrix, Nvfp4Recipe, SecondLevel, codec,
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
            *sum = line_error(line, s, level, 6.0 * bound.value(), metric, math);
        }
        if lines.len() == 1 { sums[0] } else { tree_sum(sums) }
    });
    FourOverSix { scales, errors }
}

/// Steps 4 to 7 of the table for one line and one candidate.
fn line_error(x: &[f32; 16], s: u8, level: &SecondLevel, six_e: f32, metric: ErrorMetric, math: ErrorMath) -> f32 {
    let (inv, s) = (level.multiplier(s), codec::decode(Fp8Format::E4M3, s));
    let q = x.map(|x| codec::decode_e2m1(codec::encode_e2m1(x * inv)));
    let mut d = [0.0; SIDE];
    for ((d, q), x) in d.iter_mut().zip(q).zip(x) {
        *d = match math {
            ErrorMath::Strict => q * s * level.amax / six_e - x,
            ErrorMath::Fast => q * s - x * level.encode,
        };
    }
    d.iter().fold(0.0, |sum, d| match metric {
        ErrorMetric::Mae => sum + d.abs(),
        ErrorMetric::Mse => sum + d * d,
    })
}

/// `x` by an NVFP4 recipe, with the second level found or given. Recipe and columns were checked.
pub(super) fn quantize(x: &ArrayView2<f32>, recipe: Nvfp4Recipe, given: Option<GivenScale>) -> Result<HostQuantMatrix> {
    if recipe.options().basis == Basis::Hadamard16 {
        let transformed = transform(x);
        return encode(&transformed.view(), recipe, given);
    }
    encode(x, recipe, given)
}

/// The rows of `x`, 16 by 16 elements in the Hadamard basis.
fn transform(x: &ArrayView2<f32>) -> Array2<f32> {
    let (rows, cols) = x.dim();
    let mut y = Array2::zeros((rows, cols));
    let values = y.as_slice_mut().expect("a new array is contiguous");
    parallel::for_each_piece(values, cols, 4, |i, out| {
        let (blocks, _) = out.as_chunks_mut::<SIDE>();
        blocks.iter_mut().zip(row(x, i).as_chunks().0).for_each(|(y, x)| *y = hadamard16(x));
    });
    y
}

fn encode(x: &ArrayView2<f32>, recipe: Nvfp4Recipe, given: Option<GivenScale>) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let options = recipe.options();
    let lines = match options.shape {
        BlockShape::Row1x16 => 1,
        BlockShape::Tile16x16 => SIDE,
    };
    let levels = second_levels(x, recipe, given);
    let group_rows = recipe.scheme().spec().group_rows.size(rows);
    // Codes and block scales of a row side by side, so that one pass makes both.
    let (code_bytes, blocks) = (cols / 2, cols / SIDE);
    let mut records = vec![0u8; rows * (code_bytes + blocks)];
    parallel::for_each_piece(&mut records, (code_bytes + blocks) * lines, 16, |tile, piece| {
        let first = tile * lines;
        let level = &levels[first / group_rows];
        let mut records: Vec<_> = piece.chunks_mut(code_bytes + blocks).map(|r| r.split_at_mut(code_bytes)).collect();
        let rows: Vec<_> = (first..first + records.len()).map(|i| row(x, i)).collect();
        let mut block = [[0.0f32; SIDE]; SIDE];
        for b in 0..blocks {
            for (line, row) in block.iter_mut().zip(&rows) {
                line.copy_from_slice(&row[b * SIDE..][..SIDE]);
            }
            let block = &block[..rows.len()];
            let (s, inv) = scale_and_multiplier(block, level, recipe);
            for (line, (values, (codes, scales))) in block.iter().zip(&mut records).enumerate() {
                scales[b] = s;
                let index = ((first + line) * blocks + b) as u64;
                pack(&line_codes(values, inv, options.rounding, index), &mut codes[b * SIDE / 2..][..SIDE / 2]);
            }
        }
    });
    let scales: Vec<f32> = levels.iter().map(|level| level.scale).collect();
    Ok(from_records(recipe.scheme(), rows, cols, &records, &scales)?.assume_basis(options.basis))
}

/// Steps 1 and 2: one second level for the matrix, or one for each row.
fn second_levels(x: &ArrayView2<f32>, recipe: Nvfp4Recipe, given: Option<GivenScale>) -> Vec<SecondLevel> {
    let (rows, cols) = x.dim();
    let bound = recipe.options().bound;
    let level = |given| match recipe.torchao() {
        Some(device) => SecondLevel::torchao(given, device),
        None => SecondLevel::new(given, bound),
    };
    if let Some(given) = given {
        return vec![level(given)];
    }
    let mut row_amax = vec![0.0; rows];
    parallel::for_each_piece(&mut row_amax, 1, cols, |i, out| out[0] = amax(&row(x, i)));
    let [groups, _] = recipe.scheme().scale_grid(rows, cols);
    let size = recipe.scheme().spec().group_rows.size(rows);
    let group = |g: usize| amax(&row_amax[(g * size).min(rows)..((g + 1) * size).min(rows)]);
    (0..groups).map(|g| level(GivenScale::Amax(group(g)))).collect()
}

/// Steps 3 and 4, and the choice of 4over6.
fn scale_and_multiplier(block: &[[f32; 16]], level: &SecondLevel, recipe: Nvfp4Recipe) -> (u8, f32) {
    let options = recipe.options();
    if let Some(device) = recipe.torchao() {
        return level.torchao_block(amax(block.as_flattened()), device);
    }
    let s = match options.block_scale {
        BlockScaleRule::Plain => level.plain_scale(amax(block.as_flattened())),
        BlockScaleRule::FourOverSix { metric, math } => {
            four_over_six(block, level, options.bound, metric, math).scale()
        }
    };
    (s, level.multiplier(s))
}

/// Step 5; `index` counts the blocks of the matrix row by row.
fn line_codes(x: &[f32; 16], inv: f32, rounding: CodeRounding, index: u64) -> [u8; 16] {
    match rounding {
        CodeRounding::Nearest => x.map(|x| codec::encode_e2m1(x * inv)),
        CodeRounding::Stochastic { seed, offset } => {
            let words = philox4x32_10(seed, offset, index);
            let mut codes = [0; SIDE];
            for (e, (code, x)) in codes.iter_mut().zip(x).enumerate() {
                let byte = (words[e / 4] >> (8 * (e % 4))) as u8;
                *code = codec::encode_e2m1_stochastic(x * inv, byte);
            }
            codes
        }
    }
}

/// Two codes a byte, the one of the even column in the low half.
fn pack(codes: &[u8; 16], bytes: &mut [u8]) {
    bytes.iter_mut().zip(codes.as_chunks::<2>().0).for_each(|(byte, [low, high])| *byte = low | high << 4);
}
