//! A least amax of one's own ([`CastRecipe::with_floor`]) in every cast: of groups some lie below it and some above, ordinary ones and such as are divided another way. Bytes equal the reference's.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "common/strided.rs"]
mod strided;

use cast::*;
use common::*;
use ndarray::{Array2, ArrayView2, Axis, concatenate};
use scaled_gemm::reference::{self, RmsNorm, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastSource, CodeFormat, DType, Handle, HostCastMatrix, KernelFamily,
    MatRef, RmsNormArgs, SourceActivation, SwigluGradientsInto, SwigluSource, VecRef,
};
use strided::Both;

/// Powers of two by which all numbers are multiplied: floors below 1e-30 and above 1e30 are divided by other instructions.
const SIZES: [i32; 3] = [0, -110, 106];

/// Few rows and many, which other kernels cast, with columns that are whole groups and not; and rows that are read twice.
fn shapes(handle: &Handle) -> [(usize, usize); 4] {
    let many = 4 * handle.device().sm_count as usize + 5;
    [(160, 640), (many, 640), (many, 272), (2, 16400)]
}

/// The same with groups of other sizes than those beside, before and behind them, all times 2^size.
fn sized(x: &Array2<f32>, group: CastGroup, dtype: DType, size: i32) -> Array2<f32> {
    let (rows, cols) = x.dim();
    let [height, width] = group.extents();
    let (height, width) = (height.size(rows), width.size(cols));
    let power = |i: usize, j: usize| ((5 * (i / height) + 3 * (j / width)) % 13) as i32 - 8 + size;
    Array2::from_shape_fn((rows, cols), |(i, j)| round_to(dtype, x[(i, j)] * 2f32.powi(power(i, j))))
}

/// The recipe with a floor in the middle of what the groups of these values have.
fn with_floor_among(values: ArrayView2<'_, f32>, recipe: CastRecipe) -> CastRecipe {
    let (scheme, max) = (recipe.scheme(), recipe.scheme().format().max());
    let least = max * f32::MIN_POSITIVE;
    let bare = CastRecipe::new(scheme.with_scales(CastScales::RowMajor)).with_floor(least).unwrap();
    let mut scales = reference::cast_scales(&values.into(), bare).unwrap();
    scales.sort_by(f32::total_cmp);
    let middle = scales.len() / 2;
    let between = (f64::from(scales[middle - 1]) * f64::from(scales[middle])).sqrt() as f32 * max;
    let recipe = recipe.with_floor(between.max(least)).unwrap();
    let found = reference::cast_scales(&values.into(), recipe).unwrap();
    let raised = found.iter().filter(|scale| **scale == recipe.group_scale(0.0).scale).count();
    assert!(raised > 0 && raised < found.len(), "{raised} of {} below {between:e}, {recipe:?}", found.len());
    recipe
}

/// Every recipe with its floor; scales alone, too, for some.
fn check<'a>(
    handle: &Handle,
    source: &dyn Fn() -> CastSource<'a>,
    values: ArrayView2<'_, f32>,
    recipe: CastRecipe,
    alone: bool,
    context: &str,
) {
    let recipe = with_floor_among(values, recipe);
    let context = format!("{context}, floor {:e}", recipe.floor());
    check_cast(handle, source(), &values.into(), recipe, &context);
    if alone {
        let (rows, cols) = values.dim();
        let scales = reference::cast_scales(&values.into(), recipe).unwrap();
        let codes = vec![0xA5; recipe.scheme().code_bytes(rows, cols)];
        let want = HostCastMatrix::from_logical(recipe.scheme(), rows, cols, codes, scales).unwrap();
        let mut got = poisoned_cast(handle, recipe.scheme(), rows, cols);
        handle.cast_scales_into(source(), recipe, &mut got).unwrap();
        assert_cast(handle, &got, &want, &format!("{context}, scales alone to {}", recipe.scheme()));
    }
}

/// Types of numbers that hold those of a size.
fn types(size: i32) -> impl Iterator<Item = DType> {
    INPUTS.into_iter().filter(move |dtype| size == 0 || *dtype != DType::F16)
}

#[test]
fn plain() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(1000);
    for (rows, cols) in shapes(&handle) {
        let base = rng.matrix(rows, cols, DType::F32);
        for size in SIZES {
            for (at, recipe) in recipes_of(rows).into_iter().enumerate() {
                for dtype in types(size) {
                    let x = sized(&base, recipe.scheme().group(), dtype, size);
                    let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
                    let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
                    let context = format!("{rows} x {cols} {dtype}");
                    check(&handle, &|| (&matrix).into(), x.view(), recipe, at % 3 == 0, &context);
                }
            }
        }
    }
}

#[test]
fn codes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(1001);
    // Groups that hold those of many targets, of which E2M1 is found by thresholds; and each other kind of place for a scale.
    let sources = [
        scheme(CodeFormat::E4M3, CastGroup::Group1x128),
        scheme(CodeFormat::E2M1, CastGroup::Group1x32),
        scheme(CodeFormat::E4M3, CastGroup::Group1x16).with_scales(CastScales::ColumnMajor),
        scheme(CodeFormat::E4M3, CastGroup::Tile32x32),
        scheme(CodeFormat::E2M1, CastGroup::Group32x1),
    ];
    for (turn, (rows, cols)) in shapes(&handle).into_iter().enumerate() {
        let base = rng.matrix(rows, cols, DType::F32);
        for (at, size) in SIZES.into_iter().enumerate() {
            let recipes = recipes_of(rows);
            for (number, recipe) in recipes.into_iter().enumerate() {
                let from = sources[(number + number / 5 + at + turn) % sources.len()];
                let x = sized(&base, recipe.scheme().group(), DType::F32, size);
                let exact = CastRecipe::new(from).with_floor(from.format().max() * f32::MIN_POSITIVE).unwrap();
                let q = reference::cast(&x.view().into(), exact).unwrap();
                let there = CastMatrix::from_host(&handle, &q).unwrap();
                let values = reference::cast_back(&q, DType::F32);
                let context = format!("{rows} x {cols} of {from}");
                check(&handle, &|| (&there).into(), values.view(), recipe, number % 3 == 0, &context);
            }
        }
    }
}

/// SwiGLU, activations and a norm by known factors.
#[test]
fn what_is_computed() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(1002);
    handle.load_kernels(&[KernelFamily::Cast, KernelFamily::Fused]).unwrap();
    for (turn, (rows, cols)) in shapes(&handle).into_iter().enumerate() {
        let base = rng.matrix(rows, cols, DType::F32);
        let gates = base.mapv(|v| round_to(DType::Bf16, v + 2.0));
        let ones = handle.upload(&vec![1.0f32; rows.max(cols)]).unwrap();
        for (at, size) in SIZES.into_iter().enumerate() {
            for (number, recipe) in recipes_of(rows).into_iter().enumerate() {
                let all: Vec<_> = types(size).collect();
                let dtype = all[(number + number / 5 + at) % all.len()];
                let group = recipe.scheme().group();
                let x = sized(&base, group, dtype, size);
                let context = format!("{rows} x {cols} {dtype}");
                let alone = number % 3 == 0;
                if (number + turn) % 2 == 0 {
                    let gated = concatenate(Axis(1), &[gates.view(), x.view()]).unwrap();
                    let gated = gated.mapv(|v| round_to(dtype, v));
                    let (values, _) = reference::swiglu(gated.view(), &Swiglu::default()).unwrap();
                    let rounded = group.is_per_channel().then(|| reference::round_values(values.clone(), DType::Bf16));
                    let values = rounded.unwrap_or(values);
                    let data = handle.upload(&bytes_of(dtype, &gated)).unwrap();
                    let matrix = MatRef::new(&data, dtype, rows, 2 * cols).unwrap();
                    let source = || SwigluSource::new(&matrix).unwrap().into();
                    check(&handle, &source, values.view(), recipe, alone, &format!("SwiGLU of {context}"));
                    continue;
                }
                let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
                let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
                let (activation, values) = match (number / 2 + at) % 4 {
                    0 => (Some(SourceActivation::Silu), reference::silu(x.view())),
                    1 => (Some(SourceActivation::Gelu), reference::gelu(x.view())),
                    2 => (Some(SourceActivation::GeluTanh), reference::gelu_tanh(x.view())),
                    _ => (None, x.clone()),
                };
                let of = |count| VecRef::new(&ones, DType::F32, count).unwrap();
                let source = || match activation {
                    Some(activation) => CastSource::activated(&matrix, activation),
                    None => CastSource::normed(&matrix, of(rows), of(cols)).unwrap(),
                };
                check(&handle, &source, values.view(), recipe, alone, &format!("{activation:?} of {context}"));
            }
        }
    }
}

/// In the pass that finds the factors, and in a second one.
#[test]
fn norms() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(1003);
    handle.load_kernels(&[KernelFamily::Cast, KernelFamily::Fused]).unwrap();
    for (rows, cols) in shapes(&handle) {
        // One number far above the others makes these small, in every other row.
        let x = Array2::from_shape_fn(
            (rows, cols),
            |(i, j)| if i % 2 == 0 && j == i * 7 % cols { 1e4 } else { rng.normal() },
        );
        let x = Both::new(&handle, DType::Bf16, cols, x);
        let matrix = x.matrix();
        for size in SIZES {
            let weight: Vec<f32> =
                (0..cols).map(|j| 2f32.powi((j / 16 % 4 + j / 128 * 5 % 13) as i32 - 8 + size)).collect();
            let there = handle.upload(&weight).unwrap();
            let options = RmsNorm::new(&weight, 1e-6, DType::Bf16);
            let values = reference::rms_norm(x.values.view(), &options).unwrap().values;
            let mut rstd = handle.alloc(4 * rows).unwrap();
            for recipe in recipes_of(rows) {
                let recipe = with_floor_among(values.view(), recipe);
                let columns = VecRef::new(&there, DType::F32, cols).unwrap();
                let norm = RmsNormArgs::new(&matrix, columns, 1e-6).unwrap().with_rstd(&mut rstd).unwrap();
                let mut got = poisoned_cast(&handle, recipe.scheme(), rows, cols);
                handle.rms_norm_cast_into(norm, recipe, &mut got).unwrap();
                let want = reference::cast(&values.view().into(), recipe).unwrap();
                assert_cast(&handle, &got, &want, &format!("norm of {rows} x {cols} to {recipe:?}"));
            }
        }
    }
}

/// Of numbers and of codes.
#[test]
fn gradients() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(1004);
    handle.load_kernels(&[KernelFamily::Cast, KernelFamily::Fused]).unwrap();
    let many = 4 * handle.device().sm_count as usize + 5;
    for (rows, half) in [(33, 256), (many, 256), (3, 8192)] {
        let [left, right, g] = [(); 3].map(|()| rng.matrix(rows, half, DType::Bf16));
        for size in SIZES {
            for group in [CastGroup::Group1x32, CastGroup::Group1x128] {
                let x = concatenate(Axis(1), &[left.view(), sized(&right, group, DType::Bf16, 0).view()]).unwrap();
                let g = g.mapv(|v| round_to(DType::Bf16, v * 2f32.powi(size)));
                let from = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group1x16));
                let q = reference::cast(&x.view().into(), from.with_floor(448.0 * f32::MIN_POSITIVE).unwrap()).unwrap();
                let coded = CastMatrix::from_host(&handle, &q).unwrap();
                let (data, of_g) = (
                    Both::new(&handle, DType::Bf16, 2 * half, x.clone()),
                    Both::new(&handle, DType::Bf16, half, g.clone()),
                );
                let (matrix, gradient) = (data.matrix(), of_g.matrix());
                for from_codes in [false, true] {
                    let read = if from_codes { reference::cast_back(&q, DType::F32) } else { x.clone() };
                    let want = reference::swiglu_backward(read.view(), g.view(), &Swiglu::default()).unwrap().x;
                    for order in CastScales::ALL {
                        let exact = CastRecipe::new(scheme(CodeFormat::E4M3, group).with_scales(order));
                        for recipe in [exact, exact.power_of_two()] {
                            let recipe = with_floor_among(want.view(), recipe);
                            let forward = match from_codes {
                                true => SwigluSource::of_codes(&coded).unwrap(),
                                false => SwigluSource::new(&matrix).unwrap(),
                            };
                            let mut dx = poisoned_cast(&handle, recipe.scheme(), rows, 2 * half);
                            let into = SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() };
                            handle.swiglu_backward(forward, &gradient, into).unwrap();
                            let wanted = reference::cast(&want.view().into(), recipe).unwrap();
                            let context = format!("{rows} x {half}, of codes {from_codes}, to {recipe:?}");
                            assert_cast(&handle, &dx, &wanted, &context);
                        }
                    }
                }
            }
        }
    }
}
