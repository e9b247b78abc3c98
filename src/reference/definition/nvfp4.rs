//! NVFP4: a second level for the matrix or each row, E4M3 scales for 16 elements or 16 x 16, E2M1 codes.

use ndarray::{Array2, ArrayView2, s};

use super::amax;
use crate::error::Result;
use crate::format::{
    Basis, BlockScaleRule, BlockShape, CodeRounding, E4m3Bound, ErrorMath, ErrorMetric, Fp8Format, GivenScale,
    HostQuantMatrix, Nvfp4Options, Nvfp4Recipe, Nvfp4Rule, Scheme, SecondLevel, codec,
};
use crate::reference::philox4x32_10;

/// `min(v, FLT_MAX)`, also for NaN.
fn finite(v: f32) -> f32 {
    if v <= f32::MAX { v } else { f32::MAX }
}

/// The three numbers of the second level.
pub fn second_level(given: GivenScale, bound: E4m3Bound, rule: Nvfp4Rule) -> SecondLevel {
    let six_e = if bound == E4m3Bound::Max448 { 2688.0f32 } else { 1536.0 };
    let or_one = |zero: bool, encode: f32| if zero || encode == 0.0 { 1.0 } else { encode };
    match given {
        GivenScale::Amax(amax) => {
            let scale = if rule == Nvfp4Rule::TorchAo { amax * (1.0 / 2688.0) } else { amax / six_e };
            SecondLevel { encode: or_one(amax == 0.0, finite(six_e / amax)), amax, scale }
        }
        GivenScale::Encode(encode) => SecondLevel { encode, amax: six_e / encode, scale: 1.0 / encode },
        GivenScale::Decode(scale) => {
            SecondLevel { encode: or_one(scale == 0.0, finite(1.0 / scale)), amax: scale * six_e, scale }
        }
    }
}

/// What multiplies the elements of a block with the E4M3 scale `s`.
pub fn multiplier(s: u8, encode: f32) -> f32 {
    let decode = codec::decode(Fp8Format::E4M3, s) * (1.0 / encode);
    finite(1.0 / decode)
}

/// The error of a line, or the sum over the sixteen lines of a tile, if its E4M3 scale is `s`.
pub fn error(lines: &[[f32; 16]], s: u8, level: &SecondLevel, bound: E4m3Bound, by: (ErrorMetric, ErrorMath)) -> f32 {
    let scale = codec::decode(Fp8Format::E4M3, s);
    let mut sums = Vec::new();
    for line in lines {
        let mut sum = 0.0f32;
        for x in line {
            let q = codec::decode_e2m1(codec::encode_e2m1(x * multiplier(s, level.encode)));
            let d = match by.1 {
                ErrorMath::Strict => ((q * scale) * level.amax) / (6.0 * bound.value()) - x,
                ErrorMath::Fast => (q * scale) - (x * level.encode),
            };
            sum += if by.0 == ErrorMetric::Mae { d.abs() } else { d * d };
        }
        sums.push(sum);
    }
    while sums.len() > 1 {
        let half = sums.len() / 2;
        sums = (0..half).map(|i| sums[i] + sums[i + half]).collect();
    }
    sums[0]
}

/// Sixteen elements by the butterfly of [`Basis::Hadamard16`], in FP32, then a quarter of each in BF16.
fn hadamard(x: [f32; 16]) -> [f32; 16] {
    let mut v: [f32; 16] = std::array::from_fn(|i| if 0xD7E8 & 1 << i != 0 { -x[i] } else { x[i] });
    for stride in [1, 2, 4, 8] {
        let of = v;
        v = std::array::from_fn(|i| {
            let partner = of[i ^ stride];
            if i & stride == 0 { of[i] + partner } else { partner - of[i] }
        });
    }
    v.map(|v| half::bf16::from_f32(v * 0.25).to_f32())
}

/// The E4M3 scale of a block or tile and what multiplies its elements.
fn block_scale(lines: &[[f32; 16]], level: &SecondLevel, options: &Nvfp4Options) -> (u8, f32) {
    let largest = amax(lines.as_flattened());
    if options.rule != Nvfp4Rule::TransformerEngine {
        let sixth = if options.rule == Nvfp4Rule::TorchAo { largest * (1.0 / 6.0) } else { largest / 6.0 };
        let pts = if level.scale == 0.0 { 1.0 } else { level.scale };
        let s = codec::encode_e4m3((sixth / pts).clamp(1.0 / 64.0, 448.0));
        return (s, (1.0 / pts) / codec::decode(Fp8Format::E4M3, s));
    }
    let s = match options.block_scale {
        BlockScaleRule::Plain => codec::encode_e4m3(finite(largest * (level.encode * f32::from_bits(0x3E2A_AAAB)))),
        BlockScaleRule::FourOverSix { metric, math } => {
            let base = (largest / 6.0) * level.encode;
            let [s4, s6] = [base * 1.5, base].map(|v| codec::encode_e4m3(if v < 448.0 { v } else { 448.0 }));
            let error = |s| error(lines, s, level, options.bound, (metric, math));
            if error(s4) < error(s6) { s4 } else { s6 }
        }
    };
    (s, multiplier(s, level.encode))
}

/// The matrix by an NVFP4 recipe; `given` takes the place of the amax.
pub(super) fn quantize(x: &ArrayView2<f32>, recipe: Nvfp4Recipe, given: Option<GivenScale>) -> Result<HostQuantMatrix> {
    let options = recipe.options();
    let (rows, blocks) = (x.nrows(), x.ncols() / 16);
    let mut data = Array2::from_shape_fn((rows, blocks), |(i, b)| std::array::from_fn(|j| x[[i, 16 * b + j]]));
    if options.basis == Basis::Hadamard16 {
        data.mapv_inplace(hadamard);
    }
    let level = |given| second_level(given, options.bound, options.rule);
    let of_rows = |rows: std::ops::Range<usize>| {
        level(given.unwrap_or(GivenScale::Amax(amax(data.slice(s![rows, ..]).iter().flatten()))))
    };
    let levels: Vec<SecondLevel> = match recipe.scheme() {
        Scheme::Nvfp4Row => (0..rows).map(|i| of_rows(i..i + 1)).collect(),
        _ => vec![of_rows(0..rows)],
    };
    let height = if options.shape == BlockShape::Tile16x16 { 16 } else { 1 };
    let (mut codes, mut bytes) = (vec![0; rows * blocks * 8], vec![0; rows * blocks]);
    for top in (0..rows).step_by(height) {
        let level = &levels[top.min(levels.len() - 1)];
        for b in 0..blocks {
            let lines: Vec<[f32; 16]> = (top..(top + height).min(rows)).map(|i| data[[i, b]]).collect();
            let (scale, inv) = block_scale(&lines, level, &options);
            for (line, i) in lines.iter().zip(top..) {
                bytes[i * blocks + b] = scale;
                for (j, x) in line.iter().enumerate() {
                    let code = match options.rounding {
                        CodeRounding::Nearest => codec::encode_e2m1(x * inv),
                        CodeRounding::Stochastic { seed, offset } => {
                            let word = philox4x32_10(seed, offset, (i * blocks + b) as u64)[j / 4];
                            codec::encode_e2m1_stochastic(x * inv, word.to_le_bytes()[j % 4])
                        }
                    };
                    codes[(i * blocks + b) * 8 + j / 2] |= code << (4 * (j % 2));
                }
            }
        }
    }
    let scales: Vec<f32> = levels.iter().map(|level| level.scale).collect();
    HostQuantMatrix::from_block_logical(recipe.scheme(), rows, x.ncols(), codes, &scales, &bytes)
        .map(|q| q.assume_basis(options.basis))
}
