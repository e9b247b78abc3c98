//! The recipes of NVFP4, MXFP8 and MXFP4, and data with everything that needs care.

use ndarray::Array2;
use scaled_gemm::codec::round_to;
use scaled_gemm::reference::Noise;
use scaled_gemm::{
    Basis, BlockScaleRule, BlockShape, CodeFormat, CodeRounding, DType, E4m3Bound, ErrorMath, ErrorMetric, Fp8Format,
    HostQuantMatrix, MxScaleRule, Mxfp4Recipe, Mxfp8Recipe, Nvfp4Options, Nvfp4Recipe, Nvfp4Rule, Recipe,
};

pub const E4M3: Fp8Format = Fp8Format::E4M3;
pub const PLAIN: Recipe = Recipe::Nvfp4(Nvfp4Recipe::TENSOR);
pub const ROW: Recipe = Recipe::Nvfp4(Nvfp4Recipe::ROWS);
pub const INPUTS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

pub fn options(nvfp4: Nvfp4Options) -> Recipe {
    Nvfp4Recipe::tensor(nvfp4).unwrap().into()
}

pub fn by_row(nvfp4: Nvfp4Options) -> Recipe {
    Nvfp4Recipe::rows(nvfp4).unwrap().into()
}

/// Of an NVFP4 recipe.
pub fn options_of(recipe: Recipe) -> Nvfp4Options {
    let Recipe::Nvfp4(recipe) = recipe else { panic!("{recipe:?} is not of NVFP4") };
    recipe.options()
}

pub fn torchao(rule: Nvfp4Rule) -> Recipe {
    options(Nvfp4Options { rule, ..Nvfp4Options::PLAIN })
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
    let mut all = vec![
        PLAIN,
        torchao(Nvfp4Rule::TorchAo),
        torchao(Nvfp4Rule::TorchAoCpu),
        ROW,
        options(tiles(plain)),
        options(hadamard),
    ];
    all.extend([options(Nvfp4Options { rounding, ..plain }), options(Nvfp4Options { rounding, ..hadamard })]);
    for o in four_over_six() {
        all.extend([options(o), options(tiles(o)), by_row(o)]);
    }
    all
}

/// Every recipe of MXFP8 and MXFP4.
pub fn mx_recipes() -> impl Iterator<Item = Recipe> {
    MxScaleRule::ALL.into_iter().flat_map(|rule| {
        let fp8 = |format| Recipe::Mxfp8(Mxfp8Recipe { format, rule });
        [fp8(E4M3), fp8(Fp8Format::E5M2), Recipe::Mxfp4(Mxfp4Recipe { rule })]
    })
}

/// Of an MX recipe.
pub fn rule_of(recipe: Recipe) -> MxScaleRule {
    match recipe {
        Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => rule,
        _ => panic!("{recipe:?} is not of an MX scheme"),
    }
}

/// Rows that a recipe can take: the tree of 4over6 tiles needs sixteen lines.
pub fn takes(recipe: Recipe, rows: usize) -> bool {
    let o = options_of(recipe);
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

/// The codes, one a byte.
pub fn codes(q: &HostQuantMatrix) -> Vec<u8> {
    match q.scheme().spec().format {
        CodeFormat::E2M1 => q.logical_codes().iter().flat_map(|byte| [byte & 15, byte >> 4]).collect(),
        _ => q.logical_codes().to_vec(),
    }
}

/// Every byte that a device would hold, NaN included, and the basis.
pub fn bytes(q: &HostQuantMatrix) -> (&[u8], &[u8], Vec<u32>, Basis) {
    (q.codes(), q.block_scales(), q.scales().iter().map(|s| s.to_bits()).collect(), q.basis())
}
