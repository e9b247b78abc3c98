//! Every FP8 recipe on the weights of a real model, through files.
//!
//! `SCALED_GEMM_MODEL` names a safetensors file (`scripts/real-model.sh` fetches one); without it the test skips.
//! `SCALED_GEMM_MODEL_OUT` names a folder where written files and `report.json` stay for another reader to check.
//!
//! Least SQNR: a mantissa of p bits has steps of 2^-p for values in [1, 2), mean square error 2^-2p / 12. Values spread
//! evenly over their binades have a mean square of 3 / (2 ln 2) = 2.16, which gives 32.2 dB for E4M3 and 26.1 for E5M2
//! at any scale, as long as few values are subnormal; normal data give 31.5. The floors are those of the worst
//! distribution, all values at the bottom of a binade: mean square 1, 28.8 and 22.8 dB. (Embeddings of two rows come near
//! them.) A product with E4M3 activations of normal data, 31 dB, adds both noises, which are independent: 26.8 and 22.2.

use std::fs;
use std::path::{Path, PathBuf};

use ndarray::Array2;
use scaled_gemm::checkpoint::{Checkpoint, FileLayout, WrittenRecipe};
use scaled_gemm::format::pair::check_pair;
use scaled_gemm::reference::{Accumulator, Gelu, GemmInputs, dequantize, gemm_bound, quantize, scaled_gemm, sqnr_db};
use scaled_gemm::{DType, Fp8Format, Preset, Recipe, ScaleRounding, Scheme};

/// Rows of the random activations.
const TOKENS: usize = 5;

fn floor(format: Fp8Format) -> f64 {
    match format {
        Fp8Format::E4M3 => 28.8,
        Fp8Format::E5M2 => 22.8,
    }
}

fn product_floor(format: Fp8Format) -> f64 {
    match format {
        Fp8Format::E4M3 => 26.8,
        Fp8Format::E5M2 => 22.2,
    }
}

/// Every scheme, rule and rounding.
fn recipes() -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for scheme in Scheme::ALL {
        for preset in Preset::ALL {
            let recipe = Recipe::new(scheme).with_preset(preset);
            recipes.extend([recipe, recipe.power_of_two()]);
        }
    }
    recipes
}

fn file_name(recipe: Recipe) -> String {
    let spec = recipe.scheme.spec();
    let rounding = if recipe.rounding == ScaleRounding::Exact { "exact" } else { "power-of-two" };
    format!("{}-{}-{}-{rounding}.safetensors", spec.name, spec.format.name(), recipe.preset.name())
}

/// Normal numbers (twelve uniform ones added), rounded to BF16.
fn activations(rows: usize, cols: usize) -> Array2<f32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    Array2::from_shape_simple_fn((rows, cols), || {
        let sum: f32 = (0..12).map(|_| uniform()).sum();
        half::bf16::from_f32(sum - 6.0).to_f32()
    })
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

/// Writes every matrix of the model with the recipe.
fn write(path: &Path, model: &Checkpoint, weights: &[Weight], recipe: Recipe) {
    let mut layout = FileLayout::new();
    for w in weights {
        let (rows, cols) = w.values.dim();
        layout.quantized(&w.name, rows, cols, WrittenRecipe { recipe, source: w.dtype });
    }
    let mut writer = layout.create(path, &[model]).unwrap();
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
    for recipe in recipes() {
        let path = folder.join(file_name(recipe));
        write(&path, &model, &weights, recipe);
        let file = Checkpoint::open(&path).unwrap();
        assert_eq!(file.quantized().len(), weights.len());
        let (mut least, mut noises) = (f64::INFINITY, serde_json::Map::new());
        for w in &weights {
            let q = file.quant_matrix(&w.name).unwrap();
            assert_eq!(q.scheme(), recipe.scheme, "{}", w.name);
            assert_eq!(file.recipe(&w.name).unwrap().unwrap().recipe, recipe);
            let db = sqnr_db(w.values.as_slice().unwrap(), dequantize(&q, DType::F32).as_slice().unwrap());
            assert!(db >= floor(recipe.format()), "{} {recipe:?}: {db} dB", w.name);
            least = least.min(db);
            noises.insert(w.name.clone(), db.into());
        }
        // Every rule with one scheme, and every scheme with one rule: the rest would repeat them.
        let default_rule = Recipe::new(recipe.scheme) == recipe;
        if default_rule {
            check_products(&file, &weights, recipe);
        }
        if default_rule || recipe.scheme == Scheme::Fp8Block128x128(Fp8Format::E4M3) {
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

/// Products of random activations with the weights as they lie in the file: within the f64 bound of the quantized
/// operands, and near the f64 product of the original ones.
fn check_products(file: &Checkpoint, weights: &[Weight], recipe: Recipe) {
    let format = Fp8Format::E4M3;
    let alike = Scheme::from_name(recipe.scheme.spec().name, format).unwrap();
    let scheme = if check_pair(alike, recipe.scheme, "cpu").is_ok() { alike } else { Scheme::Fp8Block1x128(format) };
    for w in weights.iter().filter(|w| w.values.nrows().is_multiple_of(8)) {
        let x = activations(TOKENS, w.values.ncols());
        let a = quantize(x.view(), DType::Bf16, Recipe::new(scheme)).unwrap();
        let b = file.quant_matrix(&w.name).unwrap();
        let inputs = GemmInputs::new(&a, &b, DType::F32);
        let d = scaled_gemm(&inputs).unwrap();
        let bound = gemm_bound(&inputs, Accumulator::Fp32, Gelu::Ieee).unwrap();
        bound.check(d.view()).unwrap_or_else(|line| panic!("{} {recipe:?}: {line}", w.name));
        let wide = |m: &Array2<f32>| m.mapv(f64::from);
        let exact = wide(&x).dot(&wide(&w.values).t());
        let db = sqnr_db(exact.as_slice().unwrap(), d.as_slice().unwrap());
        assert!(db >= product_floor(recipe.format()), "{} {recipe:?}: the product has {db} dB", w.name);
    }
}
