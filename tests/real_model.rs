//! Every recipe on the weights of a real model, through files.
//!
//! `SCALED_GEMM_MODEL` names a safetensors file (`scripts/real-model.sh` fetches one); without it the test skips.
//! `SCALED_GEMM_MODEL_OUT` names a folder where written files and `report.json` stay for another reader to check.
//!
//! Least SQNR: a mantissa of p bits has steps of 2^-p for values in [1, 2), mean square error 2^-2p / 12. Values spread
//! evenly over their binades have a mean square of 3 / (2 ln 2) = 2.16, which gives 32.2 dB for E4M3 and 26.1 for E5M2
//! at any scale, as long as few values are subnormal; normal data give 31.5. The floors are those of the worst
//! distribution, all values at the bottom of a binade: mean square 1, 28.8 and 22.8 dB. (Embeddings of two rows come near
//! them.) A product with E4M3 activations of normal data, 31 dB, adds both noises, which are independent: 26.8 and 22.2.
//!
//! The MX rules Floor and Even clip largest elements from 1.75 to 2 times a power of two: their mean square error is
//! 0.25^2 / 3, 0.006 of their energy. A tenth of all energy in such elements adds 0.0006 to 0.0013 or 0.0052: 27.2 and
//! 22.3 dB.
//!
//! E2M1 has steps of 1/2, 1 and 2 for values below 2, 4 and 6, mean square error step^2 / 12. The largest of 16 normal
//! numbers is 1.77 sigma on average; as 6 that makes sigma 3.4, with 44, 32 and 24 % of the values in the three ranges: 20.0
//! dB. Random rounding errs by step^2 / 6: 17.0, and 0.3 less for few draws. A Hadamard transform makes sixteen numbers of
//! like size of a few outliers, at worst all just above 4, where the step is 2: 1/3 against 16, 16.8 dB. Tiles of 256 with a
//! largest element of 6 sigma have sigma = 1: 16.2 dB. A product of two 1x16 operands: 17.0 dB, and 0.3 less for
//! the draw of the activations (`TOKENS`). 4over6 is above plain.

use std::fs;
use std::path::{Path, PathBuf};

use ndarray::Array2;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, WrittenRecipe};
use scaled_gemm::pair::check_pair;
use scaled_gemm::reference::{
    Accumulator, Gelu, GemmInputs, HostOperand, Noise, dequantize, gemm_bound, hadamard16_inverse, quantize,
    scaled_gemm, sqnr_db,
};
use scaled_gemm::{
    Basis, BlockScaleRule, BlockShape, CodeFormat, CodeRounding, DType, E4m3Bound, ErrorMath, ErrorMetric, Fp8Format,
    Fp8Recipe, HostQuantMatrix, MxScaleRule, Mxfp4Recipe, Mxfp8Recipe, Nvfp4Options, Nvfp4Recipe, Nvfp4Rule, Recipe,
    Scheme,
};

/// Rows of the random activations. The energy of t rows in a product with W has a relative deviation of sqrt(2 / (t r)), where
/// r = (tr G)^2 / tr G^2, G = W^T W: 69 to 196 for this model's linear layers, 12 for its positions. So 37 rows deviate by
/// 0.07 to 0.12 dB and 0.29; five would by 0.2 to 0.3 and 0.8.
const TOKENS: usize = 37;

fn floor(recipe: Recipe) -> f64 {
    let clips = matches!(recipe, Recipe::Mxfp8(r) if matches!(r.rule, MxScaleRule::Floor | MxScaleRule::Even));
    match recipe.format() {
        CodeFormat::E4M3 if clips => 27.2,
        CodeFormat::E5M2 if clips => 22.3,
        CodeFormat::E4M3 => 28.8,
        CodeFormat::E5M2 => 22.8,
        CodeFormat::E2M1 if nvfp4_options(recipe).shape == BlockShape::Tile16x16 => 16.2,
        CodeFormat::E2M1 if recipe.basis() == Basis::Hadamard16 => 16.8,
        CodeFormat::E2M1 if nvfp4_options(recipe).rounding != CodeRounding::Nearest => 16.7,
        CodeFormat::E2M1 => 20.0,
    }
}

fn product_floor(format: CodeFormat) -> f64 {
    match format {
        CodeFormat::E4M3 => 26.8,
        CodeFormat::E5M2 => 22.2,
        CodeFormat::E2M1 => 16.7,
    }
}

/// Every rule, rounding and option of the schemes that files hold.
fn recipes() -> Vec<Recipe> {
    let mut recipes = Vec::new();
    recipes.extend(Fp8Recipe::all().map(Recipe::Fp8));
    for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
        recipes.extend(MxScaleRule::ALL.map(|rule| Recipe::Mxfp8(Mxfp8Recipe { format, rule })));
    }
    let torchao = [Nvfp4Rule::TorchAo, Nvfp4Rule::TorchAoCpu];
    recipes.extend(torchao.map(|rule| tensor(Nvfp4Options { rule, ..Nvfp4Options::PLAIN })));
    for plain in plain_recipes() {
        recipes.push(plain);
        recipes.extend(four_over_six().map(|o| with(plain, Nvfp4Options { shape: nvfp4_options(plain).shape, ..o })));
    }
    let options = Nvfp4Options { basis: Basis::Hadamard16, ..Nvfp4Options::default() };
    let rounding = CodeRounding::Stochastic { seed: 1, offset: 2 };
    recipes.extend([tensor(options), tensor(Nvfp4Options { rounding, ..Nvfp4Options::default() })]);
    recipes
}

/// The NVFP4 recipes that 4over6 improves on.
fn plain_recipes() -> [Recipe; 3] {
    let tiles = Nvfp4Options { shape: BlockShape::Tile16x16, ..Nvfp4Options::default() };
    [Recipe::new(Scheme::Nvfp4), Recipe::new(Scheme::Nvfp4Row), tensor(tiles)]
}

fn tensor(options: Nvfp4Options) -> Recipe {
    Nvfp4Recipe::tensor(options).unwrap().into()
}

/// A recipe of the same scheme with these options.
fn with(recipe: Recipe, options: Nvfp4Options) -> Recipe {
    let row = recipe.scheme() == Scheme::Nvfp4Row;
    if row { Nvfp4Recipe::rows(options).unwrap().into() } else { tensor(options) }
}

/// The options of an NVFP4 recipe, the default of others.
fn nvfp4_options(recipe: Recipe) -> Nvfp4Options {
    if let Recipe::Nvfp4(recipe) = recipe { recipe.options() } else { Nvfp4Options::PLAIN }
}

fn four_over_six() -> impl Iterator<Item = Nvfp4Options> {
    use {E4m3Bound::*, ErrorMath::*, ErrorMetric::*};
    let all = [Mae, Mse].into_iter().flat_map(|metric| [Strict, Fast].map(|math| (metric, math)));
    all.flat_map(|(metric, math)| {
        let block_scale = BlockScaleRule::FourOverSix { metric, math };
        [Max448, Max256].map(|bound| Nvfp4Options { block_scale, bound, ..Nvfp4Options::default() })
    })
}

fn file_name(recipe: Recipe) -> String {
    let spec = recipe.scheme().spec();
    let mut name = format!("{}-{}", spec.name, spec.format.name());
    name += &match recipe {
        Recipe::Fp8(recipe) => format!("-{}-{}", recipe.rule, recipe.scales),
        Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => format!("-{rule}"),
        Recipe::Nvfp4(recipe) => format!("-{}", recipe.options().rule),
    };
    let options = nvfp4_options(recipe);
    if let BlockScaleRule::FourOverSix { metric, math } = options.block_scale {
        name += &format!("-4over6-{}-{}-{}", metric.name(), math.name(), options.bound.value());
    }
    for (said, word) in [
        (options.shape == BlockShape::Tile16x16, "-16x16"),
        (options.basis == Basis::Hadamard16, "-hadamard"),
        (options.rounding != CodeRounding::Nearest, "-stochastic"),
    ] {
        name += if said { word } else { "" };
    }
    name + ".safetensors"
}

/// The values of a matrix in the basis of the data.
fn values_of(q: &HostQuantMatrix) -> Vec<f32> {
    let values = dequantize(q, DType::F32).into_raw_vec_and_offset().0;
    match q.basis() {
        Basis::Plain => values,
        Basis::Hadamard16 => values.as_chunks().0.iter().flat_map(hadamard16_inverse).collect(),
    }
}

/// A matrix of the model.
struct Weight {
    name: String,
    values: Array2<f32>,
    dtype: DType,
}

fn weights(model: &Checkpoint) -> Vec<Weight> {
    let matrices = model.tensors().iter().filter(|t| t.shape.len() == 2);
    let wide = matrices.filter_map(|t| {
        let (values, dtype) = model.matrix(&t.name).ok()?;
        values.ncols().is_multiple_of(16).then(|| Weight { name: t.name.clone(), values, dtype })
    });
    wide.collect()
}

/// The tree of 4over6 in 16x16 tiles needs sixteen lines; the embedding of two token types has two.
fn takes(recipe: Recipe, w: &Weight) -> bool {
    let o = nvfp4_options(recipe);
    let tree = o.shape == BlockShape::Tile16x16 && o.block_scale != BlockScaleRule::Plain;
    !tree || w.values.nrows().is_multiple_of(16)
}

/// Writes these matrices of the model with the recipe.
fn write(path: &Path, model: &Checkpoint, weights: &[&Weight], recipe: Recipe) {
    let mut layout = CheckpointLayout::new();
    for w in weights {
        let (rows, cols) = w.values.dim();
        layout.quantized(&w.name, rows, cols, WrittenRecipe { recipe, source: w.dtype });
    }
    let writer = layout.create(path, &[model]).unwrap();
    for w in weights {
        writer.write_quantized(&w.name, &quantize(w.values.view(), w.dtype, recipe).unwrap()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_real_model_keeps_its_accuracy_through_every_recipe() {
    let Some(model) = std::env::var_os("SCALED_GEMM_MODEL") else {
        println!("skipped: SCALED_GEMM_MODEL is not set; scripts/real-model.sh fetches a model and sets it");
        return;
    };
    let keep = std::env::var_os("SCALED_GEMM_MODEL_OUT").map(PathBuf::from);
    let folder = keep
        .clone()
        .unwrap_or_else(|| std::env::temp_dir().join(format!("scaled-gemm-real-model-{}", std::process::id())));
    fs::create_dir_all(&folder).unwrap();
    let model = Checkpoint::open(model).unwrap();
    let weights = weights(&model);
    assert!(weights.len() >= 8, "only {} matrices in {}", weights.len(), model.path().display());

    let mut report = serde_json::Map::new();
    // Decibels of every matrix by the last plain NVFP4 recipe, which the 4over6 recipes after it are to beat.
    let mut plain = Vec::new();
    for recipe in recipes() {
        let path = folder.join(file_name(recipe));
        let weights: Vec<&Weight> = weights.iter().filter(|w| takes(recipe, w)).collect();
        write(&path, &model, &weights, recipe);
        let file = Checkpoint::open(&path).unwrap();
        assert_eq!(file.quantized().len(), weights.len());
        let (mut least, mut noises) = (f64::INFINITY, serde_json::Map::new());
        if plain_recipes().contains(&recipe) {
            plain.clear();
        }
        for w in &weights {
            let q = file.quant_matrix(&w.name).unwrap();
            assert_eq!(q.scheme(), recipe.scheme(), "{}", w.name);
            assert_eq!(file.recipe(&w.name).unwrap().unwrap().recipe, recipe);
            assert_eq!(q.basis(), recipe.basis());
            let db = sqnr_db(w.values.as_slice().unwrap(), &values_of(&q));
            assert!(db >= floor(recipe), "{} {recipe:?}: {db} dB", w.name);
            least = least.min(db);
            noises.insert(w.name.clone(), db.into());
            if nvfp4_options(recipe).block_scale == BlockScaleRule::Plain {
                plain.push((w.name.clone(), db));
            } else {
                let (_, before) = plain.iter().find(|(name, _)| *name == w.name).unwrap();
                // The bound 256 moves scales to other E4M3 numbers: luck, for the 48 blocks of an embedding of two rows. The
                // largest of 256 elements is so far out that mapping it to 4 rarely helps: tiles are only not worse.
                let (few, tiles) = (w.values.nrows() < 16, nvfp4_options(recipe).shape == BlockShape::Tile16x16);
                let enough = if tiles { db > before - 0.05 } else { few || db > *before };
                assert!(enough, "{} {recipe:?}: {db} dB, {before} dB without 4over6", w.name);
            }
        }
        // Every rule with one scheme, and every scheme with one rule: the rest would repeat them.
        let default_rule = Recipe::new(recipe.scheme()) == recipe;
        if default_rule {
            check_products(&file, &weights, recipe);
        }
        if default_rule || recipe.scheme() == Scheme::Fp8Group128x128(Fp8Format::E4M3) {
            report.insert(file_name(recipe), noises.into());
        } else {
            fs::remove_file(&path).unwrap();
        }
        println!("{:<52} at least {least:.2} dB", file_name(recipe));
    }
    match keep {
        Some(folder) => fs::write(folder.join("report.json"), serde_json::Value::from(report).to_string()).unwrap(),
        None => fs::remove_dir_all(&folder).unwrap(),
    }
}

/// E4M3 like the weights where such a pair exists, else 1x128; NVFP4 with row scales.
fn activation_scheme(weights: Scheme) -> Scheme {
    if weights.is_nvfp4() {
        return Scheme::Nvfp4Row;
    }
    let alike = Scheme::from_name(weights.spec().name, Fp8Format::E4M3);
    let alike = alike.filter(|scheme| check_pair(*scheme, weights, "cpu").is_ok());
    alike.unwrap_or(Scheme::Fp8Group1x128(Fp8Format::E4M3))
}

/// Products of random activations with the weights as they lie in the file: within the f64 bound of the quantized
/// operands, and near the f64 product of the original ones. With plain activations too, where the crate has such a product.
fn check_products(file: &Checkpoint, weights: &[&Weight], recipe: Recipe) {
    let scheme = activation_scheme(recipe.scheme());
    for w in weights.iter().filter(|w| w.values.nrows().is_multiple_of(8)) {
        let x = Noise::new(1).matrix(TOKENS, w.values.ncols(), DType::Bf16);
        let a = quantize(x.view(), DType::Bf16, Recipe::new(scheme)).unwrap();
        let b = file.quant_matrix(&w.name).unwrap();
        let wide = |m: &Array2<f32>| m.mapv(f64::from);
        let exact = wide(&x).dot(&wide(&w.values).t());
        let db_of = |inputs: &GemmInputs| {
            let d = scaled_gemm(inputs).unwrap();
            let bound = gemm_bound(inputs, Accumulator::Fp32, Gelu::Ieee).unwrap();
            bound.check(d.view()).unwrap_or_else(|line| panic!("{} {recipe:?}: {line}", w.name));
            sqnr_db(exact.as_slice().unwrap(), d.as_slice().unwrap())
        };
        let db = db_of(&GemmInputs::new(&a, &b, DType::F32));
        assert!(db >= product_floor(recipe.format()), "{} {recipe:?}: the product has {db} dB", w.name);
        if recipe.scheme().spec().block.is_some() {
            let db = db_of(&GemmInputs::new(HostOperand::Plain(x.view(), DType::Bf16), &b, DType::F32));
            let least = floor(recipe) - 0.3;
            assert!(db >= least, "{} {recipe:?}: the product with BF16 activations has {db} dB", w.name);
        }
    }
}
