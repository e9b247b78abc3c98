//! `verify`: every recipe and every pair against the reference.
//!
//! Recipes: the device's codes and scales must equal the reference's, byte for byte, and the noise must be that of the
//! format. Pairs: the product must lie within the f64 bound of `reference::bound`; on the CPU that checks its fast path.

use ndarray::Array2;
use scaled_gemm::format::pair::check_pair;
use scaled_gemm::reference::{self, GemmInputs, sqnr_db};
use scaled_gemm::{Activation, DType, Fp8Format, HostQuantMatrix, Preset, Recipe, Scheme};
use serde_json::{Value, json};

use crate::args::{DeviceChoice, VerifyArgs};
use crate::data::{Random, normal, round_to};
use crate::device::{self, Device};
use crate::output::{Failure, Form, Outcome, number, step_bar, table};

const WIDE: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
/// Shape of the quantized matrices: ragged tiles and rows.
const MATRIX: [usize; 2] = [131, 400];
/// Shapes of the products: one row, an odd number of them, more than a tile; ragged along k.
const PRODUCTS: [[usize; 3]; 3] = [[1, 8, 16], [17, 264, 400], [130, 136, 1040]];

/// What a run of checks found: lines for people, values for programs, names of what failed.
#[derive(Default)]
struct Findings {
    rows: Vec<Vec<String>>,
    values: Vec<Value>,
    failed: Vec<String>,
}

pub fn run(args: &VerifyArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let mut device = device::open(choice)?;
    let schemes = Scheme::ALL.len();
    let bar = step_bar(schemes + schemes * schemes);
    let (mut recipes, mut pairs) = (Findings::default(), Findings::default());
    for scheme in Scheme::ALL {
        bar.set_message(scheme.to_string());
        for preset in Preset::ALL {
            for recipe in
                [Recipe::new(scheme).with_preset(preset), Recipe::new(scheme).with_preset(preset).power_of_two()]
            {
                check_recipe(device.as_mut(), recipe, args.seed, &mut recipes)?;
            }
        }
        bar.inc(1);
    }
    for a in Scheme::ALL {
        for b in Scheme::ALL {
            bar.set_message(format!("{a} x {b}"));
            if check_pair(a, b, device.name()).is_ok() {
                check_products(device.as_mut(), a, b, args.seed, &mut pairs)?;
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();

    let mut text = format!("Recipes: {} x {} normal values, rows of different size\n\n", MATRIX[0], MATRIX[1]);
    text += &table(&["scheme", "preset", "scales", "codes", "scales", "SQNR dB", "floor", ""], 5, &recipes.rows);
    text += "\nProducts against the f64 bound (error as a fraction of it; above 1 is wrong)\n\n";
    text += &table(&["A", "B", "bf16", "f16", "f32", ""], 2, &pairs.rows);
    let failed: Vec<String> = recipes.failed.into_iter().chain(pairs.failed).collect();
    text += &format!("\n{} checks, {} failed\n", recipes.rows.len() + pairs.rows.len(), failed.len());
    let value = json!({
        "device": device.name(), "title": device.title(), "recipes": recipes.values, "pairs": pairs.values,
        "failed": failed, "passed": failed.is_empty(),
    });
    let mut outcome = Outcome::new(Form::from_flag(args.json), text, value);
    if let Some(first) = failed.first() {
        outcome.failed = Some(format!("{} checks failed, the first: {first}; please report it", failed.len()));
    }
    Ok(outcome)
}

/// Least SQNR of normal values: for a mantissa of p bits and any magnitude, the step of a value in [1, 2) is 2^-p, its
/// mean square error 2^-2p / 12, the mean square of such a value 3 / (2 ln 2): 32 dB for p = 3, 26 for p = 2. Values of
/// one binade only come 2 dB lower.
fn sqnr_floor(format: Fp8Format) -> f64 {
    match format {
        Fp8Format::E4M3 => 30.0,
        Fp8Format::E5M2 => 24.0,
    }
}

/// Normal rows whose sizes go from 1/4 to 4, so that a scale in the wrong place shows.
fn test_matrix(rows: usize, cols: usize, dtype: DType, seed: u64) -> Array2<f32> {
    let mut random = Random::new(seed ^ 0x5CA1E);
    let mut x = normal(rows, cols, dtype, seed);
    for mut row in x.rows_mut() {
        let size = ((random.bits() % 5) as f32 - 2.0).exp2();
        row.mapv_inplace(|v| round_to(v * size, dtype));
    }
    x
}

fn check_recipe(device: &mut dyn Device, recipe: Recipe, seed: u64, found: &mut Findings) -> Result<(), Failure> {
    let floor = sqnr_floor(recipe.format());
    let (mut codes, mut scales, mut values, mut sqnr) = (0, 0, 0, f64::INFINITY);
    for (i, dtype) in WIDE.into_iter().enumerate() {
        let x = test_matrix(MATRIX[0], MATRIX[1], dtype, seed + i as u64);
        let want = reference::quantize(x.view(), dtype, recipe)?;
        let got = device.quantize(x.view(), dtype, recipe)?;
        codes += differences(want.codes(), got.codes(), |a, b| a == b);
        scales += differences(want.scales(), got.scales(), |a, b| a.to_bits() == b.to_bits());
        let decoded = device.dequantize(&got, DType::F32)?;
        let right = reference::dequantize(&got, DType::F32);
        values += right.iter().zip(&decoded).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        sqnr = sqnr.min(match (x.as_slice(), decoded.as_slice()) {
            (Some(x), Some(decoded)) => sqnr_db(x, decoded),
            _ => f64::NAN,
        });
    }
    let passed = codes + scales + values == 0 && sqnr >= floor;
    let rounding = if recipe.rounding == Default::default() { "exact" } else { "power-of-two" };
    let spell = |n: usize| if n == 0 { "equal".to_string() } else { format!("{n} differ") };
    found.rows.push(vec![
        recipe.scheme.to_string(),
        recipe.preset.name().into(),
        rounding.into(),
        spell(codes),
        spell(scales),
        number(sqnr),
        number(floor),
        verdict(passed),
    ]);
    found.values.push(json!({
        "scheme": recipe.scheme.to_string(), "preset": recipe.preset.name(), "rounding": rounding,
        "codes_different": codes, "scales_different": scales, "decoded_different": values,
        "sqnr_db": sqnr, "sqnr_floor_db": floor, "passed": passed,
    }));
    if !passed {
        found.failed.push(format!(
            "{} {} {rounding}: {codes} codes, {scales} scales, {values} decoded values differ, SQNR {}",
            recipe.scheme,
            recipe.preset.name(),
            number(sqnr)
        ));
    }
    Ok(())
}

/// How many places differ; a different length counts as a difference everywhere.
fn differences<T>(want: &[T], got: &[T], equal: impl Fn(&T, &T) -> bool) -> usize {
    if want.len() != got.len() {
        return want.len().max(got.len());
    }
    want.iter().zip(got).filter(|(a, b)| !equal(a, b)).count()
}

fn check_products(
    device: &mut dyn Device,
    a: Scheme,
    b: Scheme,
    seed: u64,
    found: &mut Findings,
) -> Result<(), Failure> {
    let mut cells = Vec::new();
    let mut passed = true;
    let mut ratios = serde_json::Map::new();
    for out in WIDE {
        let mut worst = Some(0.0f64);
        for (i, [m, n, k]) in PRODUCTS.into_iter().enumerate() {
            let support = device.support([m, n, k], a, b, out);
            if support.ways.is_empty() {
                worst = None;
                break;
            }
            let quantized = |rows, scheme, seed| -> scaled_gemm::Result<HostQuantMatrix> {
                reference::quantize(test_matrix(rows, k, DType::Bf16, seed).view(), DType::Bf16, Recipe::new(scheme))
            };
            let (qa, qb) = (quantized(m, a, seed + 10)?, quantized(n, b, seed + 20)?);
            let bias = normal(1, n, DType::Bf16, seed + 30).into_raw_vec_and_offset().0;
            let mut inputs = GemmInputs::new(&qa, &qb, out);
            // One shape bare, one with a bias, one with all of the epilogue that files can have.
            if i > 0 {
                inputs.bias = Some((&bias, DType::Bf16));
            }
            if i == 2 {
                inputs.activation = Activation::Silu;
            }
            let (accumulator, gelu) = device.arithmetic();
            let bound = reference::gemm_bound(&inputs, accumulator, gelu)?;
            match bound.check(device.gemm(&inputs)?.view()) {
                Ok(ratio) => worst = worst.map(|w| w.max(ratio)),
                Err(line) => {
                    worst = Some(f64::INFINITY);
                    found.failed.push(format!("{a} x {b} to {out} at m {m}, n {n}, k {k}: {line}"));
                }
            }
        }
        passed &= worst.is_none_or(|w| w <= 1.0);
        cells.push(worst.map_or("-".to_string(), number));
        ratios.insert(out.name().to_string(), worst.map_or(Value::Null, Value::from));
    }
    let mut row = vec![a.to_string(), b.to_string()];
    row.extend(cells);
    row.push(verdict(passed));
    found.rows.push(row);
    found.values.push(json!({"a": a.to_string(), "b": b.to_string(), "error_of_bound": ratios, "passed": passed}));
    Ok(())
}

fn verdict(passed: bool) -> String {
    if passed { "ok".into() } else { "FAILED".into() }
}
