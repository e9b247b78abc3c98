//! Producers against their definition: to every cast and to what products read, of all rows and of chosen ones, whole and in parts.

use ndarray::Array2;
use scaled_gemm::codec::{self, round_to};
use scaled_gemm::reference::{self, CastInput, RmsNorm, Swiglu, definition};
use scaled_gemm::{
    BlockScaleRule, CastGroup, CastRecipe, CastScales, DType, ErrorMath, ErrorMetric, Fp8Format, Fp8Granularity,
    Fp8Recipe, Fp8Rule, GivenScale, HostQuantMatrix, Nvfp4Options, Nvfp4Recipe, Recipe, Scheme,
};

use super::sources::{Check, Kind, Parts, SHAPE, Tally, chosen_rows, e4m3, turns};
use super::{Findings, WIDE, near, test_matrix};
use crate::device::sources::{GatedInput, HostSource, HostValues, Part, Sources, Wide, gather, read_rows};
use crate::output::Failure;
use crate::quantizers::Function;

/// All that there is to check.
pub(super) const CHECKS: [Check; 5] = [produced, chosen, parts, norms, gradients];

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

/// What goes with the rows and columns of [`SHAPE`].
struct Beside {
    weights: Vec<f32>,
    columns: Vec<f32>,
    experts: Vec<i32>,
}

impl Beside {
    fn new() -> Self {
        let [rows, cols] = SHAPE;
        Self {
            weights: (0..rows).map(|i| 0.25 + (i * 37 % rows) as f32 / rows as f32).collect(),
            columns: (0..cols).map(|j| 0.5 + (j * 53 % cols) as f32 / cols as f32).collect(),
            experts: (0..rows as i32).map(|i| if i % 7 == 3 { -1 } else { i % 5 }).collect(),
        }
    }

    /// A producer of [`NAMES`], of a matrix of [`Beside::matrix`].
    fn values<'a>(&'a self, way: usize, x: Wide<'a>) -> HostValues<'a> {
        let all = Swiglu { clamp: Some(2.0), weights: Some(&self.weights), experts: Some(&self.experts) };
        match way {
            0 => HostValues::Swiglu(x, Swiglu::default()),
            1 => HostValues::Swiglu(x, all),
            2..=4 => HostValues::Activated(x, Function::ALL[way - 2]),
            _ => HostValues::Normed(x, &self.weights, &self.columns),
        }
    }
}

/// The producers of [`Beside::values`].
const NAMES: [&str; 6] =
    ["swiglu", "swiglu, clamp, weights and experts", "silu", "gelu", "gelu-tanh", "rms norm by its factors"];

/// What a producer reads.
fn matrix(way: usize, kind: Kind, dtype: DType, seed: u64) -> Array2<f32> {
    let [rows, cols] = SHAPE;
    kind.matrix(rows, if way < 2 { 2 * cols } else { cols }, dtype, seed.wrapping_add(way as u64))
}

/// SwiGLU, activations, and norms whose factors are known, to every cast and to what products read.
fn produced(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    let beside = Beside::new();
    for (way, name) in NAMES.into_iter().enumerate() {
        let mut tally = Tally::default();
        for (recipe, kind, dtype) in turns(way) {
            let x = matrix(way, kind, dtype, seed);
            let values = beside.values(way, Wide { values: &x, dtype });
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
                let x = matrix(way, kind, dtype, seed);
                let values = beside.values(way, Wide { values: &x, dtype });
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

/// Chosen rows of every producer: each to every third cast, and to all that products read.
fn chosen(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    let (beside, rows) = (Beside::new(), chosen_rows());
    let (mut casts, mut quantized) = (Tally::default(), Tally::default());
    for way in 0..NAMES.len() {
        for (recipe, kind, dtype) in turns(way).skip(way % 3).step_by(3) {
            let x = matrix(way, kind, dtype, seed);
            let values = beside.values(way, Wide { values: &x, dtype });
            let (read, _) = values.read_by(recipe.scheme())?;
            let want = definition::cast(&CastInput::from(read.view()).gathered(&rows)?, recipe)?;
            let source = HostSource { values, rows: Some(&rows) };
            let (got, counted) = device.cast_source(&source, Part::Whole, recipe)?;
            casts.cast(&want, &got, kind);
            if let HostValues::Swiglu(x, options) = values {
                let (x, experts) = read_rows(x.values, options.experts, &rows);
                let options = Swiglu { weights: None, experts: experts.as_deref(), ..options };
                casts.counts(definition::swiglu(x.view(), &options).1, counted, kind);
            }
        }
        for (at, (recipe, given)) in products()?.into_iter().enumerate() {
            let (kind, dtype) = (Kind::ALL[(at + way) % 4], WIDE[(at + way) % 3]);
            let x = matrix(way, kind, dtype, seed);
            let values = beside.values(way, Wide { values: &x, dtype });
            let want = defined(&gather(&values.computed()?.0, &rows), recipe, given)?;
            let got = device.quantize_source(&HostSource { values, rows: Some(&rows) }, recipe, given)?;
            quantized.product(&want, &got, kind);
        }
    }
    casts.finish("chosen rows of producers", "casts", found);
    quantized.finish("chosen rows of producers", "what products read", found);
    Ok(())
}

/// Scales alone, and codes by given scales, of every producer: each to every third cast.
fn parts(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    let (beside, mut parts) = (Beside::new(), Parts::default());
    for way in 0..NAMES.len() {
        for (recipe, kind, dtype) in turns(way).skip((way + 1) % 3).step_by(3) {
            let x = matrix(way, kind, dtype, seed);
            let values = beside.values(way, Wide { values: &x, dtype });
            let (read, _) = values.read_by(recipe.scheme())?;
            let counted = parts.check(device, &values.into(), &read.view().into(), (recipe, kind))?;
            if let HostValues::Swiglu(x, options) = values {
                parts.counts(definition::swiglu(x.values.view(), &options).1, counted, kind);
            }
        }
    }
    parts.finish(" of producers", found);
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
        // FP8 of rows and groups in one pass, the others in two.
        for (at, (recipe, given)) in self::products()?.into_iter().enumerate() {
            for kind in [Kind::ALL[at % 4], Kind::ALL[(at + 2) % 4]] {
                let dtype = WIDE[at % 3];
                let (x, residual) =
                    (kind.matrix(rows, cols, dtype, seed), test_matrix(rows, cols, dtype, seed.wrapping_add(1)));
                let residual = added.then(|| residual.view());
                let norm = RmsNorm { weight: &weight, epsilon: 1e-6, residual, dtype };
                let values = reference::rms_norm(x.view(), &norm)?.values;
                products.off(near::of_norm(&x, &norm, &values), kind);
                let got = device.rms_norm_quantize(Wide { values: &x, dtype }, &norm, recipe, given)?;
                products.product(&defined(&values, recipe, given)?, &got, kind);
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
