//! `verify`: every recipe, cast and pair against their definition (`reference::definition`), on any device.
//!
//! Recipes: the device's codes and scales must equal those of the definition, byte for byte, and the noise must be that of the
//! format. Casts likewise (`casts`), and what else they read (`sources`) and what is computed before them (`producers`): each of each kind of
//! data (`kinds`), and on a GPU of so many rows that other kernels run (`many_rows`). What there is to check are the library's own lists.
//! Pairs: the product must be that of the definition in f64, within the tolerance of `reference::gemm_bound`.

mod casts;
mod gradients;
mod kinds;
mod lossless;
mod many_rows;
mod near;
mod producers;
mod sources;
mod tally;
mod targets;

use ndarray::Array2;
use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::codec::round_to;
use scaled_gemm::pair::check_pair;
use scaled_gemm::reference::{self, GemmInputs, Noise, definition, sqnr_db};
use scaled_gemm::{
    Activation, Basis, BlockShape, CodeFormat, CodeRounding, DType, Fp8Scales, HostQuantMatrix, MxScaleRule,
    Mxfp4Recipe, Mxfp8Recipe, Nvfp4Options, Nvfp4Recipe, Recipe, Scheme,
};
use serde_json::{Value, json};

use crate::args::{DeviceChoice, VerifyArgs};
use crate::data::{normal, undo_hadamard};
use crate::device::{self, Activations, Caster, Device, HostA, Pair};
use crate::output::{Failure, Form, Outcome, count, number, step_bar, table};
use crate::quantizers::cast_schemes;
use crate::recipes::{options, preset};
use crate::target::Target;
use kinds::{Draw, Kind};
use tally::same_number;

const WIDE: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
/// Shape of the quantized matrices: ragged tiles, rows and blocks of 32.
const MATRIX: [usize; 2] = [131, 400];
/// The same for recipes that want whole tiles of 16 rows.
const WHOLE_TILES: [usize; 2] = [144, 400];
/// Shape of those of other kinds of data, whole tiles of 16 rows too.
const OTHER_DATA: [usize; 2] = [48, 208];
/// Shapes of the products: one row, an odd number of them, more than a tile; ragged along k.
const PRODUCTS: [[usize; 3]; 3] = [[1, 8, 16], [17, 264, 400], [130, 136, 1040]];

/// What a run of checks found: lines for people, values for programs, names of what failed.
#[derive(Default)]
struct Findings<const COLUMNS: usize> {
    rows: Vec<[String; COLUMNS]>,
    values: Vec<Value>,
    failed: Vec<String>,
}

pub fn run(args: &VerifyArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let mut device = device::open(choice)?;
    let (all, products) =
        (Recipe::all(CodeRounding::Stochastic { seed: args.seed, offset: 1 }), products(device.name()));
    let (cast_schemes, checks) = (cast_schemes(), sources::checks());
    let steps = all.len() + cast_schemes.len() + checks.len() + products.len();
    let bar = step_bar(device.as_ref(), steps);
    let (mut recipes, mut casts, mut pairs) = (Findings::default(), Findings::default(), Findings::default());
    let mut caster = device.caster();
    for recipe in all {
        bar.set_message(recipe.scheme().to_string());
        check_recipe(caster.as_mut(), recipe, args.seed, &mut recipes)?;
        bar.inc(1);
    }
    for scheme in cast_schemes {
        bar.set_message(format!("cast to {scheme}"));
        casts::check(caster.as_mut(), scheme, args.seed, &mut casts)?;
        bar.inc(1);
    }
    let mut others = Findings::default();
    bar.set_message("casts of codes, and producers");
    for check in checks {
        check(device.sources().as_mut(), args.seed, &mut others)?;
        bar.inc(1);
    }
    for pair in products {
        bar.set_message(format!("{} x {}", name(pair.a), pair.b.scheme()));
        check_products(device.as_mut(), pair, args.seed, &mut pairs)?;
        bar.inc(1);
    }
    bar.finish_and_clear();

    let checked = match device.name() {
        "cpu" => {
            "what is checked is the library's own reference, by its definition in the plainest words; nothing has run on a GPU"
        }
        _ => "what is checked is what the GPU makes, by the definition in the plainest words, which the CPU computes",
    };
    let mut text = format!("device {}\n", device.described());
    text += &format!("{checked}\n");
    let kinds = Kind::ALL.map(Kind::name).join(", ");
    text += &format!("Data: {kinds}; ties lie halfway between codes\n");
    let ([rows, cols], [other_rows, other_cols]) = (MATRIX, OTHER_DATA);
    text += &format!(
        "\nRecipes: {rows} x {cols} normal values, rows of different size, in every type; of each other kind of data {other_rows} x {other_cols} in \
         one type\n\n"
    );
    let header = ["scheme", "recipe", "codes", "scales", "decoded", "SQNR dB", "floor", ""];
    text += &table(header, 5, &recipes.rows);
    text += "\nCasts to groupings that no product reads, every order of scales, exact and powers of two, each of each kind of data\n\n";
    text += &table(["group", "codes of", "codes", "scales", "decoded", ""], 2, &casts.rows);
    text += "\nCasts of codes and of chosen rows, parts of casts, and what is computed before a cast. Made: how many casts or recipes; data: of how \
             many kinds.\nBeside: counts, sums, factors, other gradients. Values: the error before the cast as a fraction of what it may be; above 1 \
             is wrong\n";
    if let Some(many) = device.sources().many_rows() {
        let [one, other] = many_rows::COLS;
        text += &format!(
            "Many rows: {many} x {one} and {many} x {other}, which other kernels cast; each by one kind of data\n"
        );
    }
    text += "\n";
    text += &table(["source", "to", "made", "data", "codes", "scales", "beside", "values", ""], 2, &others.rows);
    text += "\nProducts against the f64 bound (error as a fraction of it; above 1 is wrong)\n\n";
    text += &table(["A", "B", "bf16", "f16", "f32", ""], 2, &pairs.rows);
    let failed: Vec<String> =
        recipes.failed.into_iter().chain(casts.failed).chain(others.failed).chain(pairs.failed).collect();
    let checks = count(recipes.rows.len() + casts.rows.len() + others.rows.len() + pairs.rows.len(), "check", "checks");
    text += &format!("\n{checks}, {} failed\n", failed.len());
    let value = json!({
        "device": device.name(), "title": device.title(), "recipes": recipes.values, "casts": casts.values,
        "sources": others.values, "pairs": pairs.values, "data": Kind::ALL.map(Kind::name), "checked": checked,
        "failed": failed, "passed": failed.is_empty(),
    });
    let mut outcome = Outcome::new(device.as_ref(), Form::from_flag(args.json), text, value);
    if let Some(first) = failed.first() {
        outcome.failed =
            Some(format!("{} failed, the first: {first}; please report it", count(failed.len(), "check", "checks")));
    }
    Ok(outcome)
}

/// Every pair that is legal anywhere, plain activations included, and one pair in the Hadamard basis.
fn products(device: &str) -> Vec<Pair> {
    let hadamard = Nvfp4Options { basis: Basis::Hadamard16, ..Nvfp4Options::default() };
    let hadamard = Nvfp4Recipe::tensor(hadamard).map(Recipe::Nvfp4);
    let quantized = Scheme::ALL.map(|scheme| Activations::Quantized(Recipe::new(scheme)));
    let all = quantized.into_iter().chain([DType::Bf16, DType::F16].map(Activations::Plain));
    let pairs = all.flat_map(|a| Scheme::ALL.map(|b| Pair { a, b: Recipe::new(b) }));
    let mut pairs: Vec<_> = pairs.filter(|p| check_pair(p.a.operand(), p.b.scheme(), device).is_ok()).collect();
    pairs.extend(hadamard.map(|both| Pair { a: Activations::Quantized(both), b: both }));
    pairs
}

/// A with its basis, as a reader of the table knows it.
fn name(a: Activations) -> String {
    match a {
        Activations::Quantized(recipe) if recipe.basis() == Basis::Hadamard16 => {
            format!("{} hadamard", recipe.scheme())
        }
        other => other.operand().to_string(),
    }
}

/// Least SQNR of the test matrix, in dB.
///
/// FP8 and MXFP8: for a mantissa of p bits and any magnitude, the step of a value in [1, 2) is 2^-p, its mean square error
/// 2^-2p / 12, the mean square of such a value 3 / (2 ln 2): 32 dB for p = 3, 26 for p = 2. Values of one binade only come
/// 2 dB lower. The MX rules floor and even let the largest values of some blocks saturate; that may cost 2 dB more.
///
/// NVFP4, normal values of variance s^2 in units of the code: the steps 1/2, 1, 2 below 2, below 4 and above give mean square
/// errors of 1/48, 1/12, 1/3. The largest of 16 such values is about 2.1 s and becomes 6, so s = 2.9: 51, 32 and 17 % of the
/// values lie in the three ranges, the error is 0.094, the signal 8.2, which is 19.4 dB. E4M3 scales are off by at most
/// 1/16, which moves values to other steps rather than adding an error; 1 dB is left for that and for the draw. Random
/// rounding has twice the variance: 3 dB. A tile's largest of 256 is about 3 s of its largest rows: s = 2 there, and half, a
/// quarter and so on in the other rows, whose error is about 1/48 whatever their size: 0.052 + 0.024 + 3 / 48 of 4 + 1 + ... =
/// 5.33, 15.9 dB; 1 dB for the draw again, and half a dB more as few tiles hold all sizes.
///
/// MXFP4: the largest of 32 is about 2.2 s and becomes 3 to 6, so s = 1.4 to 2.7, which is 17.8 to 19.4 dB in the same way; floor
/// and even have larger codes, and lose by saturation what they win. Ceil makes it 2 to 4: s = 0.9 to 1.8, 15.6 dB at the
/// least. 1 dB of their mean is left for the draw.
fn sqnr_floor(recipe: Recipe) -> f64 {
    let mx = match recipe {
        Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => rule,
        _ => MxScaleRule::Up,
    };
    let saturating = if matches!(mx, MxScaleRule::Floor | MxScaleRule::Even) { 2.0 } else { 0.0 };
    let nvfp4 = if let Recipe::Nvfp4(recipe) = recipe { recipe.options() } else { Nvfp4Options::PLAIN };
    match recipe.format() {
        CodeFormat::E4M3 => 30.0 - saturating,
        CodeFormat::E5M2 => 24.0 - saturating,
        CodeFormat::E2M1 if recipe.scheme() == Scheme::Mxfp4 && mx == MxScaleRule::Ceil => 15.6,
        CodeFormat::E2M1 if recipe.scheme() == Scheme::Mxfp4 => 17.6,
        CodeFormat::E2M1 if nvfp4.shape == BlockShape::Tile16x16 => 14.4,
        CodeFormat::E2M1 if nvfp4.rounding != CodeRounding::Nearest => 15.4,
        CodeFormat::E2M1 => 18.4,
    }
}

/// Normal rows whose sizes go from 1/4 to 4, so that a scale in the wrong place shows.
fn test_matrix(rows: usize, cols: usize, dtype: DType, seed: u64) -> Array2<f32> {
    let mut random = Noise::new(seed ^ 0x5CA1E);
    let mut x = normal(rows, cols, dtype, seed);
    for mut row in x.rows_mut() {
        let size = ((random.bits() % 5) as f32 - 2.0).exp2();
        row.mapv_inplace(|v| round_to(dtype, v * size));
    }
    x
}

/// How many differ, in words.
fn spell(n: usize) -> String {
    if n == 0 { "equal".to_string() } else { format!("{n} differ") }
}

fn check_recipe(caster: &mut dyn Caster, recipe: Recipe, seed: u64, found: &mut Findings<8>) -> Result<(), Failure> {
    let floor = sqnr_floor(recipe);
    let tiles = matches!(recipe, Recipe::Nvfp4(r) if r.options().shape == BlockShape::Tile16x16);
    let [rows, cols] = if tiles { WHOLE_TILES } else { MATRIX };
    let (mut codes, mut scales, mut values, mut sqnr, mut of) = (0, 0, 0, f64::INFINITY, Vec::new());
    let normal = WIDE.map(|dtype| (Kind::Normal, dtype));
    let others = Kind::ALL[1..].iter().enumerate().map(|(i, kind)| (*kind, WIDE[(i + found.rows.len()) % 3]));
    for (i, (kind, dtype)) in normal.into_iter().chain(others).enumerate() {
        let shape = if kind == Kind::Normal { [rows, cols] } else { OTHER_DATA };
        let x = kind.matrix(Draw { shape, dtype, format: recipe.format(), seed: seed.wrapping_add(i as u64) });
        let want = definition::quantize(x.view(), dtype, recipe)?;
        let got = caster.quantize_part(&PlainRows::from_f32(x.view(), dtype, Vec::new())?, recipe, None, Vec::new())?;
        let wrong = [
            differences(want.codes(), got.codes(), |a, b| a == b),
            differences(want.scales(), got.scales(), |a, b| a.to_bits() == b.to_bits())
                + differences(want.block_scales(), got.block_scales(), |a, b| a == b),
        ];
        (codes, scales) = (codes + wrong[0], scales + wrong[1]);
        let mut decoded = caster.dequantize(&got, DType::F32, Vec::new())?.to_f32();
        let right = definition::dequantize(&got, DType::F32);
        let wrong_values = right.iter().zip(&decoded).filter(|(a, b)| !same_number(a, b)).count();
        values += wrong_values;
        if wrong.iter().sum::<usize>() + wrong_values > 0 {
            of.push(kind.name());
        }
        if got.basis() != recipe.basis() {
            found.failed.push(format!("{} {}: the basis is {:?}", recipe.scheme(), recipe, got.basis()));
        }
        if kind != Kind::Normal {
            continue;
        }
        if recipe.basis() == Basis::Hadamard16 {
            undo_hadamard(&mut decoded);
        }
        sqnr = sqnr.min(match (x.as_slice(), decoded.as_slice()) {
            (Some(x), Some(decoded)) => sqnr_db(x, decoded),
            _ => f64::NAN,
        });
    }
    let passed = codes + scales + values == 0 && sqnr >= floor;
    found.rows.push([
        recipe.scheme().to_string(),
        recipe.to_string(),
        spell(codes),
        spell(scales),
        spell(values),
        number(sqnr),
        number(floor),
        verdict(passed),
    ]);
    let rounding = if let Recipe::Fp8(recipe) = recipe { recipe.scales } else { Fp8Scales::Exact };
    let target = Target::Recipe(recipe);
    found.values.push(json!({
        "scheme": recipe.scheme().to_string(), "preset": preset(target), "rounding": rounding.name(),
        "options": options(target), "recipe": recipe.to_string(), "data": Kind::ALL.map(Kind::name),
        "codes_different": codes, "scales_different": scales, "decoded_different": values,
        "sqnr_db": sqnr, "sqnr_floor_db": floor, "passed": passed,
    }));
    if !passed {
        of.dedup();
        let data = if of.is_empty() { String::new() } else { format!(" (data: {})", of.join(", ")) };
        found.failed.push(format!(
            "{} {}: {}, {}, {} differ{data}, SQNR {}",
            recipe.scheme(),
            recipe,
            count(codes, "code", "codes"),
            count(scales, "scale", "scales"),
            count(values, "decoded value", "decoded values"),
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

fn check_products(device: &mut dyn Device, pair: Pair, seed: u64, found: &mut Findings<6>) -> Result<(), Failure> {
    let (a, b) = (pair.a.operand(), pair.b.scheme());
    let mut cells: [String; WIDE.len()] = Default::default();
    let mut passed = true;
    let mut ratios = serde_json::Map::new();
    for (out, cell) in WIDE.into_iter().zip(&mut cells) {
        // None where no shape is served; some ways serve few rows alone.
        let mut worst: Option<f64> = None;
        for (i, [m, n, k]) in PRODUCTS.into_iter().enumerate() {
            let support = device.support([m, n, k], a, b, out);
            if support.ways.is_empty() {
                continue;
            }
            let quantized = |rows, recipe, seed| -> scaled_gemm::Result<HostQuantMatrix> {
                reference::quantize(test_matrix(rows, k, DType::Bf16, seed).view(), DType::Bf16, recipe)
            };
            let qa = match pair.a {
                Activations::Quantized(recipe) => HostA::Quantized(quantized(m, recipe, seed.wrapping_add(10))?),
                Activations::Plain(dtype) => HostA::Plain(test_matrix(m, k, dtype, seed.wrapping_add(10)), dtype),
            };
            let qb = quantized(n, pair.b, seed.wrapping_add(20))?;
            let bias = normal(1, n, DType::Bf16, seed.wrapping_add(30)).into_raw_vec_and_offset().0;
            let mut inputs = GemmInputs::new(qa.operand(), &qb, out);
            // One shape bare, one with a bias, one with all of the epilogue that files can have.
            if i > 0 {
                inputs.bias = Some((&bias, DType::Bf16));
            }
            if i == 2 {
                inputs.activation = Activation::Silu;
            }
            let (accumulator, gelu) = device.arithmetic(a, b);
            let mut bound = reference::gemm_bound(&inputs, accumulator, gelu)?;
            bound.exact = definition::scaled_gemm(&inputs)?;
            match bound.check(device.gemm(&inputs)?.view()) {
                Ok(ratio) => worst = Some(worst.unwrap_or(0.0).max(ratio)),
                Err(line) => {
                    worst = Some(f64::INFINITY);
                    found.failed.push(format!("{} x {b} to {out} at m {m}, n {n}, k {k}: {line}", name(pair.a)));
                }
            }
        }
        passed &= worst.is_none_or(|w| w <= 1.0);
        *cell = worst.map_or("-".to_string(), number);
        ratios.insert(out.name().to_string(), worst.map_or(Value::Null, Value::from));
    }
    let names = [name(pair.a), name(Activations::Quantized(pair.b))];
    found.values.push(json!({"a": names[0], "b": names[1], "error_of_bound": ratios, "passed": passed}));
    let ([a, b], [bf16, f16, f32]) = (names, cells);
    found.rows.push([a, b, bf16, f16, f32, verdict(passed)]);
    Ok(())
}

fn verdict(passed: bool) -> String {
    if passed { "ok".into() } else { "FAILED".into() }
}
