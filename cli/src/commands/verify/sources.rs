//! Casts of codes and of chosen rows, parts of casts, and producers, against their definition: every source to every cast, and
//! producers to what products read too. Data and types of elements take turns over the targets.

use ndarray::Array2;
use scaled_gemm::codec::{self, round_to};
use scaled_gemm::reference::{self, CastInput, ClampCounts, RmsNorm, Swiglu, definition};
use scaled_gemm::{
    BlockScaleRule, CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, ErrorMath, ErrorMetric,
    Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale, HostCastMatrix, HostQuantMatrix, Nvfp4Options,
    Nvfp4Recipe, Recipe, Scheme,
};
use serde_json::json;

use super::{Findings, WIDE, differences, near, spell, test_matrix, verdict};
use crate::device::sources::{GatedInput, HostSource, HostValues, Part, Sources, Wide};
use crate::output::{Failure, number};
use crate::quantizers::{Function, cast_schemes};

/// Shape of what is made: more than a group of 128 rows, ragged columns, rows that can be stored as columns.
const SHAPE: [usize; 2] = [144, 208];

/// What the data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Normal,
    /// A hundredth a thousand times as large.
    Outliers,
    /// Of both signs.
    Zeros,
    /// Below the normal numbers of their type.
    Subnormal,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Normal, Self::Outliers, Self::Zeros, Self::Subnormal];

    /// A matrix of them.
    pub fn matrix(self, rows: usize, cols: usize, dtype: DType, seed: u64) -> Array2<f32> {
        let mut x = test_matrix(rows, cols, dtype, seed);
        let least = if dtype == DType::F16 { 2f32.powi(-17) } else { 2f32.powi(-129) };
        for ((i, j), v) in x.indexed_iter_mut() {
            let factor = match self {
                Self::Normal => continue,
                Self::Outliers if (i * cols + j) % 97 == 5 => 1000.0,
                Self::Outliers => 1.0,
                Self::Zeros => 0.0,
                Self::Subnormal => least,
            };
            *v = round_to(dtype, *v * factor);
        }
        x
    }
}

/// What one check has found.
#[derive(Default)]
struct Tally {
    codes: usize,
    scales: usize,
    /// Of what is written beside a cast, where there is such.
    beside: Option<usize>,
    /// The worst fraction of what a value may be off before the cast, where it is computed.
    off: Option<f64>,
    casts: usize,
    first: Option<String>,
}

impl Tally {
    fn note(&mut self, wrong: usize, what: impl FnOnce() -> String) {
        if wrong > 0 && self.first.is_none() {
            self.first = Some(what());
        }
    }

    fn cast(&mut self, want: &HostCastMatrix, got: &HostCastMatrix, kind: Kind) {
        let codes = differences(want.codes(), got.codes(), |a, b| a == b);
        let scales = differences(&want.device_scales(), &got.device_scales(), |a, b| a == b);
        (self.codes, self.scales, self.casts) = (self.codes + codes, self.scales + scales, self.casts + 1);
        self.note(codes + scales, || format!("to {}, {kind:?} data", want.scheme()));
    }

    fn product(&mut self, want: &HostQuantMatrix, got: &HostQuantMatrix, kind: Kind) {
        let codes = differences(want.codes(), got.codes(), |a, b| a == b);
        let bits = |a: &f32, b: &f32| a.to_bits() == b.to_bits();
        let scales = differences(want.scales(), got.scales(), bits)
            + differences(want.block_scales(), got.block_scales(), |a, b| a == b);
        (self.codes, self.scales, self.casts) = (self.codes + codes, self.scales + scales, self.casts + 1);
        self.note(codes + scales, || format!("to {}, {kind:?} data", want.scheme()));
    }

    fn beside(&mut self, wrong: usize, what: &str, kind: Kind) {
        self.beside = Some(self.beside.unwrap_or(0) + wrong);
        self.note(wrong, || format!("{what}, {kind:?} data"));
    }

    fn counts(&mut self, want: ClampCounts, got: ClampCounts, kind: Kind) {
        self.beside(usize::from(want != got), "the counts of a clamp", kind);
    }

    fn floats(&mut self, want: &[f32], got: &[f32], what: &str, kind: Kind) {
        self.beside(differences(want, got, |a, b| a.to_bits() == b.to_bits()), what, kind);
    }

    fn off(&mut self, fraction: f64, kind: Kind) {
        self.off = Some(self.off.unwrap_or(0.0).max(fraction));
        self.note(usize::from(fraction > 1.0), || format!("values before the cast, {kind:?} data"));
    }

    fn finish(self, source: &str, to: &str, found: &mut Findings<7>) {
        let wrong = self.codes + self.scales + self.beside.unwrap_or(0);
        let passed = wrong == 0 && self.off.is_none_or(|off| off <= 1.0);
        found.rows.push([
            source.into(),
            to.into(),
            spell(self.codes),
            spell(self.scales),
            self.beside.map_or("-".into(), spell),
            self.off.map_or("-".into(), number),
            verdict(passed),
        ]);
        found.values.push(json!({
            "source": source, "to": to, "casts": self.casts, "codes_different": self.codes,
            "scales_different": self.scales, "beside_different": self.beside, "error_of_bound": self.off,
            "passed": passed,
        }));
        if !passed {
            found.failed.push(format!("{source} to {to}: {}", self.first.unwrap_or_default()));
        }
    }
}

/// How many steps [`check`] takes.
pub const STEPS: usize = 6;

/// All of them; `step` hears of each.
pub fn check(
    device: &mut dyn Sources,
    seed: u64,
    found: &mut Findings<7>,
    step: &mut dyn FnMut(),
) -> Result<(), Failure> {
    for check in [codes, parts, lossless, produced, norms, gradients] {
        check(device, seed, found)?;
        step();
    }
    Ok(())
}

fn e4m3(group: CastGroup) -> Result<CastScheme, Failure> {
    Ok(CastScheme::new(CodeFormat::E4M3, group)?)
}

fn e2m1(group: CastGroup) -> Result<CastScheme, Failure> {
    Ok(CastScheme::new(CodeFormat::E2M1, group)?)
}

/// Every cast, exact scales and powers of two in turns, with data whose codes and scales differ, and for every second one also with data that
/// says little else: zeros, and numbers below every scale.
fn turns(shift: usize) -> impl Iterator<Item = (CastRecipe, Kind, DType)> {
    cast_schemes().into_iter().enumerate().flat_map(move |(at, scheme)| {
        let recipe = CastRecipe::new(scheme.with_scales(CastScales::ALL[at % 3]));
        let recipe = if (at + shift).is_multiple_of(5) { recipe.power_of_two() } else { recipe };
        let turn = at + shift;
        let telling = [Kind::Normal, Kind::Outliers][turn / 2 % 2];
        let other = turn.is_multiple_of(2).then(|| [Kind::Zeros, Kind::Subnormal][turn / 2 % 2]);
        [Some(telling), other].into_iter().flatten().map(move |kind| (recipe, kind, WIDE[turn % 3]))
    })
}

/// Codes that are cast again, and rows that are chosen: some twice, some not, some rows of zeros.
fn codes(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    use CastGroup::{Group1x32, Group1x128, Group32x1, Row, Tile128x128};
    let [rows, cols] = SHAPE;
    let chosen: Vec<i32> =
        (0..rows as i32 + 16).map(|i| if i % 9 == 4 { -1 - i } else { i * 7 % rows as i32 }).collect();
    let from = [e4m3(Group1x128)?, e4m3(Row)?, e4m3(Tile128x128)?, e2m1(Group1x32)?, e2m1(Group32x1)?];
    for (shift, from) in from.into_iter().enumerate() {
        let (mut again, mut gathered) = (Tally::default(), Tally::default());
        for (recipe, kind, dtype) in turns(shift) {
            let x = kind.matrix(rows, cols, dtype, seed.wrapping_add(shift as u64));
            let q = reference::cast(&x.view().into(), CastRecipe::new(from))?;
            let source = HostSource::from(HostValues::Coded(&q));
            let want = definition::cast(&(&q).into(), recipe)?;
            again.cast(&want, &device.cast_source(&source, Part::Whole, recipe)?.0, kind);
            let source = HostSource { rows: Some(&chosen), ..source };
            let want = definition::cast(&CastInput::from(&q).gathered(&chosen)?, recipe)?;
            gathered.cast(&want, &device.cast_source(&source, Part::Whole, recipe)?.0, kind);
        }
        again.finish(&format!("codes of {from}"), "casts", found);
        gathered.finish(&format!("chosen rows of {from}"), "casts", found);
    }
    let mut gathered = Tally::default();
    for (recipe, kind, dtype) in turns(0) {
        let x = kind.matrix(rows, cols, dtype, seed);
        let want = definition::cast(&CastInput::from(x.view()).gathered(&chosen)?, recipe)?;
        let source = HostSource { values: HostValues::Plain(Wide { values: &x, dtype }), rows: Some(&chosen) };
        gathered.cast(&want, &device.cast_source(&source, Part::Whole, recipe)?.0, kind);
    }
    gathered.finish("chosen rows", "casts", found);
    Ok(())
}

/// Scales alone, and codes by scales that are given.
fn parts(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    let [rows, cols] = SHAPE;
    let (mut alone, mut given) = (Tally::default(), Tally::default());
    for (recipe, kind, dtype) in turns(1) {
        let scheme = recipe.scheme();
        let x = kind.matrix(rows, cols, dtype, seed);
        let source = HostSource::from(HostValues::Plain(Wide { values: &x, dtype }));
        let scales = definition::cast(&x.view().into(), recipe)?.scales().to_vec();
        let codes = vec![0; scheme.code_bytes(rows, cols)];
        let want = HostCastMatrix::from_logical(scheme, rows, cols, codes, scales)?;
        alone.cast(&want, &device.cast_source(&source, Part::Scales, recipe)?.0, kind);
        let [r, c] = scheme.group().grid(rows, cols);
        // Some saturate, some leave little of the data.
        let scales: Vec<f32> = (0..r * c).map(|i| 2f32.powi((i % 9) as i32 - 6)).collect();
        let scales = if scheme.scales() == CastScales::Ue8m0 {
            scales
        } else {
            scales.into_iter().map(|scale| scale * 1.37).collect()
        };
        let want = definition::cast_with_scales(&x.view().into(), scheme, &scales)?;
        given.cast(&want, &device.cast_source(&source, Part::Codes(&scales), recipe)?.0, kind);
    }
    alone.finish("scales alone", "casts", found);
    given.finish("codes by given scales", "casts", found);
    Ok(())
}

fn lossless(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    use CastGroup::{Group1x16, Group1x32, Group1x64, Group1x128};
    let [rows, cols] = SHAPE;
    for group in [Group1x16, Group1x32, Group1x64, Group1x128] {
        let mut tally = Tally::default();
        // Outliers are more than 11 powers of two beyond their neighbours: those are refused.
        let kinds = [Kind::Normal, Kind::Zeros, Kind::Subnormal];
        for (kind, order) in kinds.into_iter().flat_map(|kind| CastScales::ALL.map(|order| (kind, order))) {
            let x = kind.matrix(rows, cols, DType::F32, seed);
            let recipe = CastRecipe::new(e2m1(group)?.with_scales(order)).power_of_two();
            let q = reference::cast(&x.view().into(), recipe)?;
            tally.cast(&definition::fp4_to_fp8(&q)?, &device.fp4_to_fp8(&q)?, kind);
        }
        tally.finish(&format!("codes of {}", e2m1(group)?), "e4m3 1x128 ue8m0, lossless", found);
    }
    Ok(())
}

/// What a producer can be quantized to, with the scale of the whole matrix where there is one.
fn products() -> Result<Vec<(Recipe, Option<GivenScale>)>, Failure> {
    let deepseek = |granularity| Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let mut all = vec![
        (deepseek(Fp8Granularity::Row).into(), None),
        (deepseek(Fp8Granularity::Group1x128).into(), None),
        (deepseek(Fp8Granularity::Group1x128).power_of_two().into(), None),
        (Recipe::new(Scheme::Fp8Tensor(Fp8Format::E4M3)), Some(GivenScale::Encode(3.7))),
        (Recipe::new(Scheme::Fp8Tensor(Fp8Format::E5M2)), Some(GivenScale::Decode(0.11))),
        (Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3)), None),
        (Recipe::new(Scheme::Mxfp8(Fp8Format::E5M2)), None),
        (Recipe::new(Scheme::Mxfp4), None),
    ];
    let strict = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mse, math: ErrorMath::Strict };
    for block_scale in [BlockScaleRule::Plain, strict] {
        let options = Nvfp4Options { block_scale, ..Nvfp4Options::PLAIN };
        all.push((Nvfp4Recipe::tensor(options)?.into(), Some(GivenScale::Amax(90.0))));
        all.push((Nvfp4Recipe::rows(options)?.into(), None));
    }
    Ok(all)
}

/// What the definition makes of values before they are quantized.
fn defined(values: &Array2<f32>, recipe: Recipe, given: Option<GivenScale>) -> Result<HostQuantMatrix, Failure> {
    let x = values.view();
    Ok(match (recipe, given) {
        (Recipe::Fp8(fp8), Some(given)) => {
            let (encode, scale) = match given {
                GivenScale::Decode(scale) => (1.0 / scale, scale),
                GivenScale::Encode(number) | GivenScale::Amax(number) => (number, 1.0 / number),
            };
            let codes = x.iter().map(|v| codec::encode(fp8.format, v * encode)).collect();
            HostQuantMatrix::from_logical(fp8.scheme(), x.nrows(), x.ncols(), codes, &[scale])?
        }
        (_, Some(given)) => definition::quantize_with_scale(x, DType::F32, recipe, given)?,
        (_, None) => definition::quantize(x, DType::F32, recipe)?,
    })
}

/// The producers of [`produced`], by their number there.
fn values_of<'a>(way: usize, x: Wide<'a>, all: Swiglu<'a>, columns: &'a [f32]) -> HostValues<'a> {
    match way {
        0 => HostValues::Swiglu(x, Swiglu::default()),
        1 => HostValues::Swiglu(x, all),
        2..=4 => HostValues::Activated(x, Function::ALL[way - 2]),
        _ => HostValues::Normed(x, all.weights.unwrap_or_default(), columns),
    }
}

/// SwiGLU, activations, and norms whose factors are known, to every cast and to what products read.
fn produced(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    let [rows, cols] = SHAPE;
    let weights: Vec<f32> = (0..rows).map(|i| 0.25 + (i * 37 % rows) as f32 / rows as f32).collect();
    let columns: Vec<f32> = (0..cols).map(|j| 0.5 + (j * 53 % cols) as f32 / cols as f32).collect();
    let experts: Vec<i32> = (0..rows as i32).map(|i| if i % 7 == 3 { -1 } else { i % 5 }).collect();
    let all = Swiglu { clamp: Some(2.0), weights: Some(&weights), experts: Some(&experts) };
    let names =
        ["swiglu", "swiglu, clamp, weights and experts", "silu", "gelu", "gelu-tanh", "rms norm by its factors"];
    for (way, name) in names.into_iter().enumerate() {
        let width = if way < 2 { 2 * cols } else { cols };
        let mut tally = Tally::default();
        for (recipe, kind, dtype) in turns(way) {
            let x = kind.matrix(rows, width, dtype, seed.wrapping_add(way as u64));
            let values = values_of(way, Wide { values: &x, dtype }, all, &columns);
            let (computed, _) = values.computed()?;
            tally.off(near::of_values(&values, &computed), kind);
            let (read, counts) = values.read_by(recipe.scheme())?;
            let want = definition::cast(&read.view().into(), recipe)?;
            let (got, counted) = device.cast_source(&values.into(), Part::Whole, recipe)?;
            tally.cast(&want, &got, kind);
            if let HostValues::Swiglu(x, options) = values {
                tally.counts(definition::swiglu(x.values.view(), &options).1, counts, kind);
                tally.counts(counts, counted, kind);
            }
        }
        tally.finish(name, "casts", found);
        let mut tally = Tally::default();
        for (at, (recipe, given)) in products()?.into_iter().enumerate() {
            for kind in [Kind::ALL[at % 4], Kind::ALL[(at + 2) % 4]] {
                let dtype = WIDE[(at + way) % 3];
                let x = kind.matrix(rows, width, dtype, seed.wrapping_add(way as u64));
                let values = values_of(way, Wide { values: &x, dtype }, all, &columns);
                let (computed, _) = values.computed()?;
                tally.off(near::of_values(&values, &computed), kind);
                let got = device.quantize_source(&values.into(), recipe, given)?;
                tally.product(&defined(&computed, recipe, given)?, &got, kind);
            }
        }
        tally.finish(name, "what products read", found);
    }
    Ok(())
}

/// RMSNorm, with and without a residual.
fn norms(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    let [rows, cols] = SHAPE;
    let weight: Vec<f32> = (0..cols).map(|j| 0.5 + (j * 53 % cols) as f32 / cols as f32).collect();
    for (name, added) in [("rms norm", false), ("rms norm of x and a residual", true)] {
        let (mut casts, mut products) = (Tally::default(), Tally::default());
        // In one pass along rows, in two to tiles and channels.
        for (recipe, kind, dtype) in turns(usize::from(added)) {
            let (x, residual) =
                (kind.matrix(rows, cols, dtype, seed), test_matrix(rows, cols, dtype, seed.wrapping_add(1)));
            let residual = added.then(|| residual.view());
            let norm = RmsNorm { weight: &weight, epsilon: 1e-6, residual, dtype };
            let want = reference::rms_norm(x.view(), &norm)?;
            casts.off(near::of_norm(&x, &norm, &want.values), kind);
            let got = device.rms_norm_cast(Wide { values: &x, dtype }, &norm, recipe)?;
            casts.cast(&definition::cast(&want.values.view().into(), recipe)?, &got.cast, kind);
            casts.floats(&want.rstd, &got.rstd, "the factors of rows", kind);
            if let Some(residual) = residual {
                let sum: Vec<f32> = x.iter().zip(&residual).map(|(x, r)| round_to(dtype, x + r)).collect();
                let got: Vec<f32> = got.sum.iter().flatten().copied().collect();
                casts.floats(&sum, &got, "the sum", kind);
            }
        }
        casts.finish(name, "casts", found);
        // In one pass, then in two.
        let fp8 = |of| Recipe::from(Fp8Recipe::new(of, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek));
        let two = [Scheme::Mxfp8(Fp8Format::E4M3), Scheme::Mxfp4, Scheme::Nvfp4Row].map(Recipe::new);
        let recipes = [fp8(Fp8Granularity::Row), fp8(Fp8Granularity::Group1x128)].into_iter().chain(two);
        for (at, recipe) in recipes.enumerate() {
            for kind in Kind::ALL {
                let dtype = WIDE[at % 3];
                let (x, residual) =
                    (kind.matrix(rows, cols, dtype, seed), test_matrix(rows, cols, dtype, seed.wrapping_add(1)));
                let residual = added.then(|| residual.view());
                let norm = RmsNorm { weight: &weight, epsilon: 1e-6, residual, dtype };
                let values = reference::rms_norm(x.view(), &norm)?.values;
                products.off(near::of_norm(&x, &norm, &values), kind);
                let got = device.rms_norm_quantize(Wide { values: &x, dtype }, &norm, recipe)?;
                products.product(&definition::quantize(values.view(), DType::F32, recipe)?, &got, kind);
            }
        }
        products.finish(name, "what products read", found);
    }
    Ok(())
}

/// The gradients of SwiGLU, x plain or in codes, with and without a clamp, weights and experts.
fn gradients(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    // Whole groups of 128 in either half.
    let (rows, half) = (SHAPE[0], 384);
    let weights: Vec<f32> = (0..rows).map(|i| 0.25 + (i * 37 % rows) as f32 / rows as f32).collect();
    let experts: Vec<i32> = (0..rows as i32).map(|i| if i % 7 == 3 { -1 } else { i % 5 }).collect();
    let all = Swiglu { clamp: Some(2.0), weights: Some(&weights), experts: Some(&experts) };
    let from = e4m3(CastGroup::Group1x128)?;
    for (name, coded) in [("gradients of swiglu", false), ("gradients of swiglu, x in codes", true)] {
        let (mut tally, mut products) = (Tally::default(), Tally::default());
        let of_groups = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
        let read_by_products = [of_groups.into(), Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3))];
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            for (way, group) in [CastGroup::Group1x32, CastGroup::Group1x128].into_iter().enumerate() {
                let dtype = WIDE[(at + way) % 3];
                let options = if (at + way) % 2 == 0 { Swiglu::default() } else { all };
                let recipe = CastRecipe::new(e4m3(group)?.with_scales(CastScales::ALL[(at + way) % 3]));
                let x = kind.matrix(rows, 2 * half, dtype, seed);
                let gradient = test_matrix(rows, half, dtype, seed.wrapping_add(1));
                let q = reference::cast(&x.view().into(), CastRecipe::new(from))?;
                let input = if coded { GatedInput::Coded(&q) } else { GatedInput::Plain(Wide { values: &x, dtype }) };
                let want = reference::swiglu_backward(input.values().view(), gradient.view(), &options)?;
                tally.off(near::of_gradients(input, &gradient, &options, (&want.x, &want.weights)), kind);
                let got = device.swiglu_backward(input, Wide { values: &gradient, dtype }, &options, recipe)?;
                tally.cast(&definition::cast(&want.x.view().into(), recipe)?, &got.x, kind);
                let flat = |m: &Array2<f32>| m.iter().copied().collect::<Vec<_>>();
                let rounded: Vec<f32> = want.x.iter().map(|v| round_to(DType::Bf16, *v)).collect();
                tally.floats(&rounded, &flat(&got.x_bf16), "gradients in BF16", kind);
                tally.floats(&flat(&want.out), &flat(&got.out), "the forward pass again", kind);
                tally.floats(&want.weights, &got.weights, "gradients of the weights", kind);
                let to = read_by_products[way];
                let got = device.swiglu_backward_quantize(input, Wide { values: &gradient, dtype }, &options, to)?;
                products.product(&definition::quantize(want.x.view(), DType::F32, to)?, &got, kind);
            }
        }
        tally.finish(name, "1x32 and 1x128", found);
        products.finish(name, "what products read", found);
    }
    Ok(())
}
