//! What is computed before a cast over shapes and kinds of data, a few of all targets at a time: SwiGLU, its gradients, norms and activations, to casts and to what
//! products read. Up to 2^20 elements that are read each shape meets each kind and type of data; larger ones are sampled (`kinds_and_types`): each kind with one type,
//! and from 2^24 elements on as many kinds as there is time for, others in each shape. Bytes equal the reference's.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "common/producers.rs"]
mod producers;
#[path = "common/strided.rs"]
mod strided;
#[path = "common/targets.rs"]
mod targets;

use cast::*;
use common::*;
use ndarray::Array2;
use producers::*;
use scaled_gemm::reference::{self, ClampCounts, RmsNorm, Swiglu, SwigluGradients};
use scaled_gemm::{
    CastGroup, CastRecipe, CastScales, CastSource, CodeFormat, DType, DeviceBuffer, Fp8Format, Fp8Granularity,
    Fp8Recipe, Fp8Rule, Handle, MatMut, MatRef, MxScaleRule, Mxfp8Recipe, QuantMatrix, Recipe, RmsNormArgs,
    SourceActivation, SwigluGradientsInto, SwigluSource, VecRef,
};
use strided::{Both, floats, same};
use targets::*;

/// More than these are sampled: fewer types of data, fewer targets.
const MANY: usize = 1 << 20;

fn deepseek(granularity: Fp8Granularity) -> Fp8Recipe {
    Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek)
}

/// Of what products read, one for each way through a kernel, and what casts write for them.
fn targets_of_products() -> Vec<Target> {
    let fp8 = [Fp8Granularity::Row, Fp8Granularity::Group1x128].map(deepseek);
    let fp8 = fp8.into_iter().flat_map(|recipe| [recipe, recipe.power_of_two()]);
    few().into_iter().chain(fp8.map(|recipe| Target::Found(recipe.into()))).collect()
}

/// Values of a source that computes, to a few of the casts and one of the matrices of products.
fn check_some<'a>(
    handle: &Handle,
    turns: &mut (InTurns, InTurns),
    casts: usize,
    source: &dyn Fn() -> CastSource<'a>,
    values: &Array2<f32>,
    context: &str,
) {
    for recipe in turns.0.some(&recipes_of(values.nrows()), casts) {
        check_cast(handle, source(), &values.view().into(), recipe, context);
    }
    for target in turns.1.some(&targets_of_products(), 1) {
        target.check(handle, source(), values.view(), context);
    }
}

/// Every kind of data to every recipe: column-major, bytes, powers of two, transposed.
#[test]
fn swiglu_to_every_recipe() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(921);
    for kind in KINDS.into_iter().chain(["tiny"]) {
        for dtype in INPUTS {
            let x = of_kind(&mut rng, kind, 160, 2 * 144, dtype);
            let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
            let matrix = MatRef::new(&data, dtype, 160, 2 * 144).unwrap();
            let (values, _) = reference::swiglu(x.view(), &Swiglu::default()).unwrap();
            let rounded = reference::round_values(values.clone(), DType::Bf16);
            for recipe in recipes_of(160) {
                let values = if recipe.scheme().group().is_per_channel() { &rounded } else { &values };
                let source = SwigluSource::new(&matrix).unwrap().into();
                check_cast(&handle, source, &values.view().into(), recipe, &format!("SwiGLU of {kind} {dtype}"));
            }
        }
    }
}

/// With clamp, counts, weights and experts, and without.
#[test]
fn swiglu() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut casts, mut products) = (Noise::new(990), InTurns::default(), InTurns::default());
    for (turn, (rows, half)) in all_shapes().enumerate() {
        for (at, (kind, dtype)) in kinds_and_types(rows * 2 * half, turn).into_iter().enumerate() {
            let all = (at + turn) % 2 == 0;
            let x = tall_of_kind(&mut rng, kind, rows, 2 * half, dtype);
            let gated = Gated::of(&handle, &mut rng, x, dtype, 2 * half);
            let matrix = gated.matrix();
            let context = format!("SwiGLU of {kind}, {rows} x {half} {dtype}, all {all}");
            let (values, right) = gated.values(all, CastGroup::Row);
            let right = if all { right } else { ClampCounts::default() };
            for recipe in casts.some(&recipes_of(rows), 3) {
                let rounded = recipe
                    .scheme()
                    .group()
                    .is_per_channel()
                    .then(|| reference::round_values(values.clone(), DType::Bf16));
                let mut counts = handle.alloc(24).unwrap();
                let source = gated.source(&matrix, all, &mut counts).into();
                check_cast(&handle, source, &rounded.as_ref().unwrap_or(&values).view().into(), recipe, &context);
                assert_eq!(read_counts(&handle, &counts), right, "{context} to {recipe:?}");
            }
            for target in products.some(&targets_of_products(), 1) {
                let mut counts = handle.alloc(24).unwrap();
                target.check(&handle, gated.source(&matrix, all, &mut counts), values.view(), &context);
                assert_eq!(read_counts(&handle, &counts), right, "{context} to {target:?}");
            }
        }
    }
}

/// Casts that the gradient of x has: halves of 64 and 576 columns are no multiple of 128.
fn gradient_recipes(half: usize) -> Vec<CastRecipe> {
    let groups = [CastGroup::Group1x32, CastGroup::Group1x128];
    let fits = groups.into_iter().filter(|group| half.is_multiple_of(group.extents()[1].size(half)));
    let schemes = fits.flat_map(|group| CastScales::ALL.map(|s| scheme(CodeFormat::E4M3, group).with_scales(s)));
    schemes.map(CastRecipe::new).flat_map(|exact| [exact, exact.power_of_two()]).collect()
}

/// The same of matrices that products read.
fn gradient_targets(half: usize) -> Vec<Recipe> {
    let blocks =
        MxScaleRule::ALL.into_iter().flat_map(|rule| Fp8Format::ALL.map(|format| Mxfp8Recipe { format, rule }));
    let groups = deepseek(Fp8Granularity::Group1x128);
    let groups = [groups, groups.power_of_two()].into_iter().filter(|_| half.is_multiple_of(128));
    blocks.map(Recipe::from).chain(groups.map(Recipe::from)).collect()
}

/// What is written beside the cast of gradients: all of the weights' gradient, and of the matrices the first rows, the last, and some between.
fn check_some_rows(
    handle: &Handle,
    forward: SwigluSource<'_>,
    gradient: &MatRef<'_>,
    want: &SwigluGradients,
    context: &str,
) {
    let (rows, half) = want.out.dim();
    let unwritten = |cols: usize| handle.upload(&vec![0xFFu8; 2 * rows * cols]).unwrap();
    let (mut wide, mut out) = (unwritten(2 * half), unwritten(half));
    let mut dw = handle.upload(&vec![f32::NAN; rows]).unwrap();
    let into = SwigluGradientsInto {
        x: None,
        x_bf16: Some(MatMut::new(&mut wide, DType::Bf16, rows, 2 * half).unwrap()),
        out: Some(MatMut::new(&mut out, DType::Bf16, rows, half).unwrap()),
        weights: Some((&mut dw).into()),
    };
    handle.swiglu_backward(forward, gradient, into).unwrap();
    let [wide, out] = [&wide, &out].map(|there| handle.read_bytes(&there.view()).unwrap());
    let row_of = |all: &[u8], row: usize, cols: usize| values_of(DType::Bf16, &all[2 * row * cols..][..2 * cols]);
    for row in (0..rows).step_by(97).chain([1, 2, 3, rows - 2, rows - 1]) {
        let rounded: Vec<_> = want.x.row(row).iter().map(|v| round_to(DType::Bf16, *v)).collect();
        same(&row_of(&wide, row, 2 * half), &rounded, &format!("{context}: row {row}"));
        same(&row_of(&out, row, half), want.out.row(row), &format!("{context}: row {row} of the forward pass again"));
    }
    same(&floats(handle, &dw), &want.weights, &format!("{context}: weights"));
}

#[test]
fn gradients() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut casts, mut products) = (Noise::new(991), InTurns::default(), InTurns::default());
    for (turn, (rows, half)) in all_shapes().enumerate() {
        // The reference takes its time: as if the matrix were larger.
        for (at, (kind, dtype)) in kinds_and_types(rows * 4 * half, turn).into_iter().enumerate() {
            let all = (at + turn) % 2 == 1;
            let x = tall_of_kind(&mut rng, kind, rows, 2 * half, dtype);
            let gated = Gated::of(&handle, &mut rng, x, dtype, 2 * half);
            // Of another kind as often as not.
            let g = tall_of_kind(&mut rng, if at % 3 == 1 { "outliers" } else { kind }, rows, half, dtype);
            let g_there = handle.upload(&bytes_of(dtype, &g)).unwrap();
            let (matrix, gradient) = (gated.matrix(), MatRef::new(&g_there, dtype, rows, half).unwrap());
            let want = reference::swiglu_backward(gated.x.view(), g.view(), &gated.options(all)).unwrap();
            let forward = || {
                let source = SwigluSource::new(&matrix).unwrap();
                if !all {
                    return source;
                }
                let weights = VecRef::new(&gated.weights_there, DType::F32, rows).unwrap();
                let source = source.with_clamp(10.0).unwrap().with_weights(weights).unwrap();
                source.with_experts(&gated.experts_there).unwrap()
            };
            let context = format!("gradients of {kind}, {rows} x {half} {dtype}, all {all}");
            for recipe in casts.some(&gradient_recipes(half), 2) {
                let codes = reference::cast(&want.x.view().into(), recipe).unwrap();
                let mut dx = poisoned_cast(&handle, recipe.scheme(), rows, 2 * half);
                let into = SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() };
                handle.swiglu_backward(forward(), &gradient, into).unwrap();
                assert_cast(&handle, &dx, &codes, &format!("{context} to {recipe:?}"));
            }
            for recipe in products.some(&gradient_targets(half), 1) {
                let codes = reference::quantize(want.x.view(), DType::F32, recipe).unwrap();
                // Padding of FP8 is left as it is.
                let mut dx = match recipe {
                    Recipe::Fp8(_) => QuantMatrix::zeros(&handle, recipe.scheme(), rows, 2 * half).unwrap(),
                    _ => poisoned_matrix(&handle, recipe.scheme(), rows, 2 * half),
                };
                let into = SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() };
                handle.swiglu_backward(forward(), &gradient, into).unwrap();
                assert_device_bits(&handle, &dx, &codes, &format!("{context} to {recipe:?}"));
            }
            if rows * half > MANY {
                check_some_rows(&handle, forward(), &gradient, &want, &context);
                continue;
            }
            let mut wide = Both::new(&handle, DType::Bf16, 2 * half, Array2::ones((rows, 2 * half)));
            let mut out = Both::new(&handle, DType::Bf16, half, Array2::ones((rows, half)));
            let mut dw = handle.upload(&vec![f32::NAN; rows]).unwrap();
            let into = SwigluGradientsInto {
                x: None,
                x_bf16: Some(wide.matrix_mut()),
                out: Some(out.matrix_mut()),
                weights: Some((&mut dw).into()),
            };
            handle.swiglu_backward(forward(), &gradient, into).unwrap();
            same(&wide.read(&handle), &want.x.mapv(|v| round_to(DType::Bf16, v)), &context);
            same(&out.read(&handle), &want.out, &format!("{context}: forward pass again"));
            same(&floats(&handle, &dw), &want.weights, &format!("{context}: weights"));
        }
    }
}

#[test]
fn activations() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut turns) = (Noise::new(992), (InTurns::default(), InTurns::default()));
    for (turn, (rows, cols)) in all_shapes().enumerate() {
        // The reference takes its time: as if the matrix were larger.
        for (at, (kind, dtype)) in kinds_and_types(2 * rows * cols, turn).into_iter().enumerate() {
            let x = tall_of_kind(&mut rng, kind, rows, cols, dtype);
            let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
            let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
            let all = SourceActivation::ALL;
            let some = if rows * cols > MANY { &all[(at + turn) % 3..][..1] } else { &all[..] };
            for activation in some {
                let values = match activation {
                    SourceActivation::Silu => reference::silu(x.view()),
                    SourceActivation::Gelu => reference::gelu(x.view()),
                    SourceActivation::GeluTanh => reference::gelu_tanh(x.view()),
                };
                let context = format!("{activation} of {kind}, {rows} x {cols} {dtype}");
                let source = || CastSource::activated(&matrix, *activation);
                check_some(&handle, &mut turns, 2, &source, &values, &context);
            }
        }
    }
}

/// Without a residual, with one that is read, with one that the sum replaces.
#[test]
fn norms() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(993);
    let (mut casts, mut turns) = (InTurns::default(), (InTurns::default(), InTurns::default()));
    let is_along_rows = |recipe: &CastRecipe| recipe.scheme().group().grid(128, 128)[0] == 128;
    let along_rows: Vec<_> = recipes_of(1).into_iter().filter(is_along_rows).collect();
    for (turn, (rows, cols)) in all_shapes().enumerate() {
        for (at, (kind, dtype)) in kinds_and_types(rows * cols, turn).into_iter().enumerate() {
            let x = Both::new(&handle, dtype, cols, tall_of_kind(&mut rng, kind, rows, cols, dtype));
            let residual = tall_of_kind(&mut rng, if at % 2 == 0 { "normal" } else { kind }, rows, cols, dtype);
            let weight: Vec<f32> = (0..cols).map(|_| round_to(dtype, rng.uniform() + 0.5)).collect();
            let (narrow, wide) = (handle.upload(&bytes_of(dtype, &weight)).unwrap(), handle.upload(&weight).unwrap());
            let of_columns = || match (at + turn) % 2 {
                0 => VecRef::new(&narrow, dtype, cols).unwrap(),
                _ => VecRef::new(&wide, DType::F32, cols).unwrap(),
            };
            let way = (at + turn) % 3;
            let context = format!("norm of {kind}, {rows} x {cols} {dtype}, way {way}");
            let added = (way > 0).then(|| residual.view());
            let options = RmsNorm { weight: &weight, epsilon: 1e-6, residual: added, dtype };
            let want = reference::rms_norm(x.values.view(), &options).unwrap();
            let read = Both::new(&handle, dtype, cols, residual.clone());
            let (matrix, other) = (x.matrix(), read.matrix());
            for recipe in casts.some(&along_rows, 2) {
                let mut sum = match way {
                    1 => Both::new(&handle, dtype, cols, Array2::zeros((rows, cols))),
                    _ => Both::new(&handle, dtype, cols, residual.clone()),
                };
                let mut rstd = handle.upload(&vec![f32::NAN; rows]).unwrap();
                let norm = RmsNormArgs::new(&matrix, of_columns(), 1e-6).unwrap().with_rstd(&mut rstd).unwrap();
                let norm = match way {
                    0 => norm,
                    1 => norm.with_residual(&other, sum.matrix_mut()).unwrap(),
                    _ => norm.with_updated_residual(sum.matrix_mut()).unwrap(),
                };
                let codes = reference::cast(&want.values.view().into(), recipe).unwrap();
                let mut got = poisoned_cast(&handle, recipe.scheme(), rows, cols);
                handle.rms_norm_cast_into(norm, recipe, &mut got).unwrap();
                assert_cast(&handle, &got, &codes, &format!("{context} to {recipe:?}"));
                same(&floats(&handle, &rstd), &want.rstd, &format!("{context}: factors"));
                if let Some(want) = &want.sum {
                    same(&sum.read(&handle), want, &format!("{context}: sum"));
                }
            }
            // By these factors to everything else, of the sum where there is one.
            let of = want.sum.as_ref().map(|sum| Both::new(&handle, dtype, cols, sum.clone()));
            let of = of.as_ref().unwrap_or(&x);
            let (matrix, factors): (MatRef<'_>, DeviceBuffer) = (of.matrix(), handle.upload(&want.rstd).unwrap());
            let source = || {
                let factors = VecRef::new(&factors, DType::F32, rows).unwrap();
                CastSource::normed(&matrix, factors, of_columns()).unwrap()
            };
            check_some(&handle, &mut turns, 1, &source, &want.values, &format!("{context}, by its factors"));
        }
    }
}
