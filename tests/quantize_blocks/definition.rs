//! What NVFP4 and MXFP8 quantizers do, written down once more from the published arithmetic, element by element; the recipes;
//! and data with everything that needs care.

use ndarray::{Array2, s};
use scaled_gemm::codec::{
    decode, decode_e2m1, e8m0_reciprocal, encode, encode_e2m1, encode_e2m1_stochastic, encode_e4m3, round_to,
};
use scaled_gemm::reference::{Noise, hadamard16, philox4x32_10};
use scaled_gemm::{
    Basis, BlockScaleRule, BlockShape, CodeRounding, DType, E4m3Bound, ErrorMath, ErrorMetric, Fp8Format,
    HostQuantMatrix, MxRounding, Nvfp4Options, Preset, Recipe, Scheme,
};

pub const E4M3: Fp8Format = Fp8Format::E4M3;
pub const PLAIN: Recipe = Recipe::new(Scheme::Nvfp4);
pub const ROW: Recipe = Recipe::new(Scheme::Nvfp4Row);
pub const INPUTS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

pub fn options(nvfp4: Nvfp4Options) -> Recipe {
    PLAIN.with_nvfp4(nvfp4)
}

pub fn four_over_six() -> Vec<Nvfp4Options> {
    let mut all = Vec::new();
    for metric in [ErrorMetric::Mae, ErrorMetric::Mse] {
        for math in [ErrorMath::Strict, ErrorMath::Fast] {
            for bound in [E4m3Bound::Max448, E4m3Bound::Max256] {
                let block_scale = BlockScaleRule::FourOverSix { metric, math };
                all.push(Nvfp4Options { block_scale, bound, ..Nvfp4Options::default() });
            }
        }
    }
    all
}

/// Every NVFP4 recipe.
pub fn recipes() -> Vec<Recipe> {
    let tiles = |o| Nvfp4Options { shape: BlockShape::Tile16x16, ..o };
    let plain = Nvfp4Options::default();
    let rounding = CodeRounding::Stochastic { seed: 0x1234_5678_9ABC, offset: 1 << 40 };
    let hadamard = Nvfp4Options { basis: Basis::Hadamard16, ..plain };
    let mut all = vec![PLAIN, PLAIN.with_preset(Preset::TorchAo), ROW, options(tiles(plain)), options(hadamard)];
    all.extend([options(Nvfp4Options { rounding, ..plain }), options(Nvfp4Options { rounding, ..hadamard })]);
    for o in four_over_six() {
        all.extend([options(o), options(tiles(o)), ROW.with_nvfp4(o)]);
    }
    all
}

pub fn mx_recipes() -> impl Iterator<Item = Recipe> {
    [E4M3, Fp8Format::E5M2].into_iter().flat_map(|format| {
        MxRounding::ALL.into_iter().map(move |rule| Recipe::new(Scheme::Mxfp8(format)).with_mx(rule))
    })
}

/// Rows that a recipe can take: the tree of 4over6 tiles needs sixteen lines.
pub fn takes(recipe: Recipe, rows: usize) -> bool {
    let o = recipe.nvfp4;
    o.shape == BlockShape::Row1x16 || o.block_scale == BlockScaleRule::Plain || rows.is_multiple_of(16)
}

/// Random numbers with everything that needs care, rounded to `source`.
pub fn hard(rows: usize, cols: usize, source: DType) -> Array2<f32> {
    let mut x = Noise::new(7).matrix(rows, cols, DType::F32);
    for (i, mut row) in x.rows_mut().into_iter().enumerate() {
        // Rows and blocks of different size, down to blocks whose scale is subnormal or zero.
        let exponent = [0, -3, 5, -9, 1][i % 5];
        row.mapv_inplace(|v| v * 2f32.powi(exponent));
        for (b, mut block) in row.exact_chunks_mut(16).into_iter().enumerate() {
            match (i + b) % 11 {
                3 => block.fill(0.0),
                4 => block.fill(-0.0),
                5 => block.mapv_inplace(|v| v * 2f32.powi(-12)),
                6 => block.mapv_inplace(|v| v * 2f32.powi(-24)),
                // Ties of E2M1 where the multiplier is a power of two; the block's largest value is 6.
                7 => (0..16).for_each(|j| block[j] = [6.0, 0.25, -0.75, 1.25, -1.75, 2.5, -3.5, 5.0][j % 8]),
                8 => block[5] = f32::NAN,
                9 => block.mapv_inplace(|v| v * 1e-40),
                _ => {}
            }
        }
    }
    x.mapv(|v| round_to(source, v))
}

pub fn amax<'a>(x: impl IntoIterator<Item = &'a f32>) -> f32 {
    x.into_iter().fold(0.0f32, |a, v| a.max(v.abs()))
}

/// A quantized matrix in logical order.
#[derive(Debug, PartialEq)]
pub struct Bytes {
    /// One byte a code.
    pub codes: Vec<u8>,
    /// Block scales.
    pub blocks: Vec<u8>,
    /// Patterns of the FP32 scales.
    pub scales: Vec<u32>,
}

pub fn bytes(q: &HostQuantMatrix) -> Bytes {
    let codes = match q.scheme().is_nvfp4() {
        true => q.logical_codes().iter().flat_map(|byte| [byte & 15, byte >> 4]).collect(),
        false => q.logical_codes().to_vec(),
    };
    let scales = q.logical_scales().iter().map(|s| s.to_bits()).collect();
    Bytes { codes, blocks: q.logical_block_scales(), scales }
}

/// numerics 5.1 and 5.5: the encode factor.
pub fn encode_factor(amax: f32, e: f32) -> f32 {
    let factor = 6.0 * e / amax;
    let factor = if factor > f32::MAX || factor.is_nan() { f32::MAX } else { factor };
    if amax == 0.0 || factor == 0.0 { 1.0 } else { factor }
}

/// numerics 5.2: what multiplies the data.
pub fn multiplier(s: u8, encode: f32) -> f32 {
    let decode_factor = decode(E4M3, s) * (1.0 / encode);
    let inverse = 1.0 / decode_factor;
    if inverse > f32::MAX || inverse.is_nan() { f32::MAX } else { inverse }
}

pub fn tree(e: &[f32]) -> f32 {
    let half = e.len() / 2;
    if half == 0 { e[0] } else { tree(&(0..half).map(|i| e[i] + e[i + half]).collect::<Vec<_>>()) }
}

/// numerics 5.5, steps 4 and 5, and the tree of 5.6 for sixteen lines.
pub fn error(lines: &[Vec<f32>], s: u8, largest: f32, o: &Nvfp4Options) -> f32 {
    let BlockScaleRule::FourOverSix { metric, math } = o.block_scale else { panic!("plain scales have no error") };
    let e = o.bound.value();
    let (factor, scale) = (encode_factor(largest, e), decode(E4M3, s));
    let inv = multiplier(s, factor);
    let line = |x: &Vec<f32>| {
        let mut sum = 0.0f32;
        for x in x {
            let q = decode_e2m1(encode_e2m1(x * inv));
            let d = if math == ErrorMath::Strict {
                let value = (q * scale * largest) / (6.0 * e);
                value - x
            } else {
                q * scale - x * factor
            };
            sum += if metric == ErrorMetric::Mae { d.abs() } else { d * d };
        }
        sum
    };
    tree(&lines.iter().map(line).collect::<Vec<_>>())
}

/// NVFP4 by definition; `given` is the amax of the second level, where it is not found.
pub fn naive(x: &Array2<f32>, recipe: Recipe, given: Option<f32>) -> Bytes {
    let o = recipe.nvfp4;
    let mut x = x.clone();
    if o.basis == Basis::Hadamard16 {
        for mut block in x.exact_chunks_mut((1, 16)) {
            let input: [f32; 16] = block.iter().copied().collect::<Vec<_>>().try_into().unwrap();
            block.iter_mut().zip(hadamard16(&input)).for_each(|(x, y)| *x = y);
        }
    }
    let (rows, cols) = x.dim();
    let blocks = cols / 16;
    let e = o.bound.value();
    let whole = given.unwrap_or(amax(&x));
    let by_row = recipe.scheme == Scheme::Nvfp4Row;
    let largest = |row: usize| if by_row { amax(x.row(row)) } else { whole };
    let mut out = Bytes { codes: vec![0; rows * cols], blocks: vec![0; rows * blocks], scales: Vec::new() };
    out.scales = (0..if by_row { rows } else { 1 }).map(|row| (largest(row) / (6.0 * e)).to_bits()).collect();
    let height = if o.shape == BlockShape::Tile16x16 { 16 } else { 1 };
    for top in (0..rows).step_by(height) {
        for b in 0..blocks {
            let tile = x.slice(s![top..(top + height).min(rows), b * 16..b * 16 + 16]);
            let lines: Vec<Vec<f32>> = tile.rows().into_iter().map(|r| r.to_vec()).collect();
            let (block_amax, factor) = (amax(tile), encode_factor(largest(top), e));
            let s = if recipe.preset == Preset::TorchAo {
                let scale = if whole == 0.0 { 1.0 } else { whole / 2688.0 };
                encode_e4m3((block_amax / 6.0 / scale).clamp(1.0 / 64.0, 448.0))
            } else if o.block_scale == BlockScaleRule::Plain {
                encode_e4m3((block_amax * (factor * f32::from_bits(0x3E2A_AAAB))).min(f32::MAX))
            } else {
                let base = block_amax / 6.0 * factor;
                let [s4, s6] = [base * 1.5, base].map(|s| encode_e4m3(s.min(448.0)));
                if error(&lines, s4, largest(top), &o) < error(&lines, s6, largest(top), &o) { s4 } else { s6 }
            };
            let inv = match recipe.preset {
                Preset::TorchAo if whole == 0.0 => 1.0 / decode(E4M3, s),
                Preset::TorchAo => 1.0 / (whole / 2688.0) / decode(E4M3, s),
                _ => multiplier(s, factor),
            };
            for (i, line) in lines.iter().enumerate() {
                let row = top + i;
                out.blocks[row * blocks + b] = s;
                for (j, x) in line.iter().enumerate() {
                    out.codes[row * cols + b * 16 + j] = match o.rounding {
                        CodeRounding::Nearest => encode_e2m1(x * inv),
                        CodeRounding::Stochastic { seed, offset } => {
                            let words = philox4x32_10(seed, offset, (row * blocks + b) as u64);
                            encode_e2m1_stochastic(x * inv, words[j / 4].to_le_bytes()[j % 4])
                        }
                    };
                }
            }
        }
    }
    out
}

/// MXFP8 by definition.
pub fn naive_mx(x: &Array2<f32>, recipe: Recipe) -> Bytes {
    let format = recipe.scheme.spec().format.fp8().unwrap();
    let mut out = Bytes { codes: Vec::new(), blocks: Vec::new(), scales: Vec::new() };
    for row in x.rows() {
        for block in row.to_vec().chunks(32) {
            let byte = recipe.mx.byte(amax(block), format);
            out.blocks.push(byte);
            out.codes.extend(block.iter().map(|x| encode(format, x * e8m0_reciprocal(byte))));
        }
    }
    out
}
