//! Captured graphs of casts and producers follow what they read: new data are written, and each launch gives the bytes of the reference.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "gpu_cast_captures/of_parts.rs"]
mod of_parts;
#[path = "common/producers.rs"]
mod producers;
#[path = "common/targets.rs"]
mod targets;

use cast::*;
use common::*;
use ndarray::Array2;
use producers::*;
use scaled_gemm::reference::{self, CastInput, ClampCounts, RmsNorm};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer,
    DeviceBytes, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale, Handle, HostCastMatrix, KernelFamily,
    MatMut, MatRef, QuantMatrix, Recipe, RmsNormArgs, RowIndex, Scheme, SourceActivation, SwigluGradientsInto, VecRef,
};

const SHAPE: (usize, usize) = (144, 272);

fn write(handle: &Handle, to: &mut DeviceBuffer, x: &Array2<f32>) {
    handle.write(&mut to.view_mut(), &bytes_of(DType::Bf16, x)).unwrap();
}

fn write_cast(handle: &Handle, to: &mut CastMatrix, from: &HostCastMatrix) {
    handle.write(&mut to.codes_mut(), from.codes()).unwrap();
    handle.write(&mut to.scales_mut(), &from.device_scales()).unwrap();
}

/// Targets of every kind of kernel.
fn casts() -> Vec<CastRecipe> {
    use CastGroup::{Group1x32, Group1x128, Group32x1, Group128x1, Row, Tile32x128, Tile128x128};
    let groups = [Group1x32, Group1x128, Row, Tile32x128, Tile128x128, Group32x1, Group128x1];
    let mut all: Vec<_> = groups.map(|group| CastRecipe::new(scheme(CodeFormat::E4M3, group))).into();
    all.push(CastRecipe::new(scheme(CodeFormat::E2M1, Group1x32).with_scales(CastScales::Ue8m0)));
    all.push(CastRecipe::new(scheme(CodeFormat::E4M3, Group32x1).transposed().unwrap()));
    all
}

fn poisoned_targets(handle: &Handle, (rows, cols): (usize, usize)) -> Vec<CastMatrix> {
    casts().iter().map(|recipe| poisoned_cast(handle, recipe.scheme(), rows, cols)).collect()
}

/// Codes as a source, chosen rows of them, scales alone, codes by given scales.
#[test]
fn codes_rows_and_parts() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(930);
    let (rows, cols) = SHAPE;
    let from = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group1x128));
    let mut q = CastMatrix::zeros(&handle, from.scheme(), rows, cols).unwrap();
    let mut data = handle.alloc(rows * cols * 2).unwrap();
    let index: Vec<i32> = (0..rows as i32).map(|i| if i % 9 == 4 { -1 } else { i * 7 % rows as i32 }).collect();
    let words: Vec<u32> = index.iter().map(|i| i.cast_unsigned()).collect();
    let chosen = RowIndex::from_device(handle.upload(&words).unwrap()).unwrap();
    let given: CastScheme = scheme(CodeFormat::E2M1, CastGroup::Group1x64);
    let mut by_given = poisoned_cast(&handle, given, rows, cols);
    let [mut again, mut gathered, mut scales] = [0; 3].map(|_| poisoned_targets(&handle, SHAPE));
    let graph = {
        let matrix = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
        let graph = capture_owned(&handle, || {
            for (at, recipe) in casts().into_iter().enumerate() {
                handle.cast_into(&q, recipe, &mut again[at])?;
                handle.cast_into(CastSource::from(&q).gathered(&chosen)?, recipe, &mut gathered[at])?;
                handle.cast_scales_into(&matrix, recipe, &mut scales[at])?;
            }
            handle.cast_with_scales_into(&matrix, &mut by_given)
        });
        graph.unwrap()
    };
    for launch in 1..4 {
        let x = of_kind(&mut rng, "nan", rows, cols, DType::Bf16);
        let host = reference::cast(&x.view().into(), from).unwrap();
        write_cast(&handle, &mut q, &host);
        write(&handle, &mut data, &x);
        let [r, c] = given.group().grid(rows, cols);
        let numbers: Vec<f32> = (0..r * c).map(|_| (rng.uniform() * 4.0 - 2.0).exp2()).collect();
        let wanted = reference::cast_with_scales(&x.view().into(), given, &numbers).unwrap();
        handle.write(&mut by_given.scales_mut(), &wanted.device_scales()).unwrap();
        handle.launch(&graph).unwrap();
        assert_cast(&handle, &by_given, &wanted, "captured, by given scales");
        for (at, recipe) in casts().into_iter().enumerate() {
            let context = format!("launch {launch}, captured, to {}", recipe.scheme());
            assert_cast(&handle, &again[at], &reference::cast(&(&host).into(), recipe).unwrap(), &context);
            let input = CastInput::from(&host).gathered(&index).unwrap();
            assert_cast(&handle, &gathered[at], &reference::cast(&input, recipe).unwrap(), &context);
            let numbers = reference::cast_scales(&x.view().into(), recipe).unwrap();
            let codes = vec![0xA5; recipe.scheme().code_bytes(rows, cols)];
            let wanted = HostCastMatrix::from_logical(recipe.scheme(), rows, cols, codes, numbers).unwrap();
            assert_cast(&handle, &scales[at], &wanted, &format!("{context}, scales alone"));
        }
    }
}

#[test]
fn fp4_to_fp8() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(931);
    let (rows, cols) = SHAPE;
    let from = CastRecipe::new(scheme(CodeFormat::E2M1, CastGroup::Group1x32)).power_of_two();
    let to = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
    let mut q = CastMatrix::zeros(&handle, from.scheme(), rows, cols).unwrap();
    let mut out = poisoned_cast(&handle, to, rows, cols);
    let mut inexact = handle.upload(&[0u32]).unwrap();
    let graph = capture_owned(&handle, || handle.fp4_to_fp8_into(&q, &mut out, Some(&mut inexact.view_mut()))).unwrap();
    for _ in 0..3 {
        let x = spread(&mut rng, rows, cols, DType::F32).mapv(|v| v.signum() * v.abs().clamp(0.5, 60.0));
        let host = reference::cast(&x.view().into(), from).unwrap();
        write_cast(&handle, &mut q, &host);
        handle.launch(&graph).unwrap();
        assert_cast(&handle, &out, &reference::fp4_to_fp8(&host).unwrap(), "captured, without loss");
        assert_eq!(handle.read::<u32>(&inexact.view()).unwrap(), [0]);
    }
}

/// SwiGLU and activations to every kind of target.
#[test]
fn produced() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(932);
    let (rows, half) = SHAPE;
    handle.load_kernels(&[KernelFamily::Fused]).unwrap();
    let mut gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
    let mut swiglu = poisoned_targets(&handle, SHAPE);
    let mut activated = SourceActivation::ALL.map(|_| poisoned_targets(&handle, (rows, 2 * half)));
    let mut counts: Vec<_> = casts().iter().map(|_| handle.upload(&[0u32; 6]).unwrap()).collect();
    let graph = {
        let matrix = gated.matrix();
        let graph = capture_owned(&handle, || {
            for (at, recipe) in casts().into_iter().enumerate() {
                handle.cast_into(gated.source(&matrix, true, &mut counts[at]), recipe, &mut swiglu[at])?;
                for (activation, out) in SourceActivation::ALL.into_iter().zip(&mut activated) {
                    handle.cast_into(CastSource::activated(&matrix, activation), recipe, &mut out[at])?;
                }
            }
            Ok(())
        });
        graph.unwrap()
    };
    // Every launch raises them by what it clamps.
    let mut clamped = ClampCounts::default();
    for _ in 0..3 {
        gated.x = Gated::new(&handle, &mut rng, rows, half, DType::Bf16).x;
        write(&handle, &mut gated.data, &gated.x);
        handle.launch(&graph).unwrap();
        let (_, more) = gated.values(true, CastGroup::Row);
        clamped.left_above += more.left_above;
        clamped.right_above += more.right_above;
        clamped.right_below += more.right_below;
        assert!(more.left_above > 0 && more.right_above > 0 && more.right_below > 0, "{more:?}");
        for (at, recipe) in casts().into_iter().enumerate() {
            let context = format!("captured, to {}", recipe.scheme());
            assert_eq!(read_counts(&handle, &counts[at]), clamped, "{context}");
            let (values, _) = gated.values(true, recipe.scheme().group());
            let want = reference::cast(&values.view().into(), recipe).unwrap();
            assert_cast(&handle, &swiglu[at], &want, &format!("SwiGLU {context}"));
            for (activation, out) in SourceActivation::ALL.into_iter().zip(&activated) {
                let values = match activation {
                    SourceActivation::Silu => reference::silu(gated.x.view()),
                    SourceActivation::Gelu => reference::gelu(gated.x.view()),
                    SourceActivation::GeluTanh => reference::gelu_tanh(gated.x.view()),
                };
                let want = reference::cast(&values.view().into(), recipe).unwrap();
                assert_cast(&handle, &out[at], &want, &format!("{activation} {context}"));
            }
        }
    }
}

/// A norm for products, and everything that the backward pass writes.
#[test]
fn norms_and_gradients() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(933);
    let (rows, half) = (33, 128);
    handle.load_kernels(&[KernelFamily::Fused]).unwrap();
    let mut gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
    let mut g = handle.alloc(rows * half * 2).unwrap();
    let weight: Vec<f32> = (0..2 * half).map(|_| rng.uniform() + 0.5).collect();
    let weight_there = handle.upload(&weight).unwrap();
    let read = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let mut normed = QuantMatrix::zeros(&handle, read.scheme(), rows, 2 * half).unwrap();
    let recipe = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group1x32));
    let mut dx = poisoned_cast(&handle, recipe.scheme(), rows, 2 * half);
    let mut wide = handle.alloc(rows * 2 * half * 2).unwrap();
    let mut out = handle.alloc(rows * half * 2).unwrap();
    let mut dw = handle.alloc(rows * 4).unwrap();
    let mut unused = handle.alloc(24).unwrap();
    let graph = {
        let matrix = gated.matrix();
        let gradient = MatRef::new(&g, DType::Bf16, rows, half).unwrap();
        let graph = capture_owned(&handle, || {
            let columns = VecRef::new(&weight_there, DType::F32, 2 * half)?;
            handle.rms_norm_quantize_into(RmsNormArgs::new(&matrix, columns, 1e-6)?, read, &mut normed)?;
            let into = SwigluGradientsInto {
                x: Some((recipe, &mut dx).into()),
                x_bf16: Some(MatMut::new(&mut wide, DType::Bf16, rows, 2 * half)?),
                out: Some(MatMut::new(&mut out, DType::Bf16, rows, half)?),
                weights: Some((&mut dw).into()),
            };
            handle.swiglu_backward(gated.source(&matrix, false, &mut unused), &gradient, into)
        });
        graph.unwrap()
    };
    for _ in 0..3 {
        gated.x = of_kind(&mut rng, "outliers", rows, 2 * half, DType::Bf16);
        let gradient = of_kind(&mut rng, "outliers", rows, half, DType::Bf16);
        write(&handle, &mut gated.data, &gated.x);
        write(&handle, &mut g, &gradient);
        handle.launch(&graph).unwrap();
        let options = RmsNorm::new(&weight, 1e-6, DType::Bf16);
        let values = reference::rms_norm(gated.x.view(), &options).unwrap().values;
        let want = reference::quantize(values.view(), DType::F32, read).unwrap();
        assert_device_bits(&handle, &normed, &want, "captured norm for a product");
        let want = reference::swiglu_backward(gated.x.view(), gradient.view(), &gated.options(false)).unwrap();
        assert_cast(&handle, &dx, &reference::cast(&want.x.view().into(), recipe).unwrap(), "captured gradients");
        let rounded = reference::round_values(want.x, DType::Bf16);
        for (got, want, cols) in [(&wide, &rounded, 2 * half), (&out, &want.out, half)] {
            let got = values_of(DType::Bf16, &handle.read_bytes(&got.view()).unwrap());
            assert_same_values(&got, want.as_slice().unwrap(), cols, "captured, in BF16");
        }
        let got = handle.read::<f32>(&dw.view()).unwrap();
        assert_same_values(&got, &want.weights, 1, "captured gradients of weights");
    }
}

/// Norms of two launches, each of which adds to a residual in place, and gradients as what products read.
#[test]
fn norms_of_two_launches_and_gradients_for_products() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(934);
    let (rows, half) = (130, 128);
    let cols = 2 * half;
    handle.load_kernels(&[KernelFamily::Cast, KernelFamily::Fused]).unwrap();
    let mut gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
    let mut g = handle.alloc(rows * half * 2).unwrap();
    let weight: Vec<f32> = (0..cols).map(|_| rng.uniform() + 0.5).collect();
    let weight_there = handle.upload(&weight).unwrap();
    let number = handle.upload(&[3.5f32]).unwrap();
    let (tensor, mxfp8) = (Scheme::Fp8Tensor(Fp8Format::E4M3), Scheme::Mxfp8(Fp8Format::E4M3));
    let read = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let recipes = [Recipe::new(mxfp8), Recipe::new(Scheme::Nvfp4Row), Recipe::new(Scheme::Nvfp4), Recipe::new(tensor)];
    let to_gradients = [Recipe::new(mxfp8), read.into()];
    let matrix_of = |recipe: &Recipe| QuantMatrix::zeros(&handle, recipe.scheme(), rows, cols).unwrap();
    let mut normed = recipes.each_ref().map(matrix_of);
    let mut gradients = to_gradients.each_ref().map(matrix_of);
    let tile = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Tile32x32));
    let mut tiles = poisoned_cast(&handle, tile.scheme(), rows, cols);
    let mut residual = handle.alloc(rows * cols * 2).unwrap();
    let mut rstd = handle.alloc(rows * 4).unwrap();
    let mut amax = handle.upload(&[0.0f32]).unwrap();
    let mut unused = handle.alloc(24).unwrap();
    let graph = {
        let matrix = gated.matrix();
        let gradient = MatRef::new(&g, DType::Bf16, rows, half).unwrap();
        let mut capture = || {
            let mut norm = |cast: &mut dyn FnMut(RmsNormArgs<'_>) -> scaled_gemm::Result<()>| {
                let columns = VecRef::new(&weight_there, DType::F32, cols)?;
                let norm = RmsNormArgs::new(&matrix, columns, 1e-6)?.with_rstd(&mut rstd)?;
                cast(norm.with_updated_residual(MatMut::new(&mut residual, DType::Bf16, rows, cols)?)?)
            };
            for (recipe, out) in recipes.into_iter().zip(&mut normed) {
                norm(&mut |norm| match recipe.scheme() {
                    Scheme::Nvfp4 => {
                        let given = GivenScale::Amax(DeviceBytes::from(&number));
                        handle.quantize_source_nvfp4_into(norm, recipe, &given, out)
                    }
                    Scheme::Fp8Tensor(format) => {
                        let given = GivenScale::Encode(DeviceBytes::from(&number));
                        handle.quantize_source_tensor_into(norm, format, &given, out, Some(&mut (&mut amax).into()))
                    }
                    _ => handle.quantize_source_into(norm, recipe, out),
                })?;
            }
            norm(&mut |norm| handle.rms_norm_cast_into(norm, tile, &mut tiles))?;
            for (recipe, out) in to_gradients.into_iter().zip(&mut gradients) {
                let into = SwigluGradientsInto { x: Some((recipe, out).into()), ..Default::default() };
                handle.swiglu_backward(gated.source(&matrix, false, &mut unused), &gradient, into)?;
            }
            Ok(())
        };
        capture_owned(&handle, &mut capture).unwrap()
    };
    for _ in 0..3 {
        gated.x = of_kind(&mut rng, "outliers", rows, cols, DType::Bf16);
        let [gradient, first] = [half, cols].map(|cols| of_kind(&mut rng, "outliers", rows, cols, DType::Bf16));
        write(&handle, &mut gated.data, &gated.x);
        write(&handle, &mut g, &gradient);
        write(&handle, &mut residual, &first);
        handle.write(&mut amax.view_mut(), &[0.0f32]).unwrap();
        handle.launch(&graph).unwrap();
        let mut before = first;
        let mut next = || {
            let options = RmsNorm { weight: &weight, epsilon: 1e-6, residual: Some(before.view()), dtype: DType::Bf16 };
            let norm = reference::rms_norm(gated.x.view(), &options).unwrap();
            before = norm.sum.unwrap();
            (norm.values, norm.rstd)
        };
        for (recipe, got) in recipes.into_iter().zip(&normed) {
            let (values, _) = next();
            let want = match recipe.scheme() {
                Scheme::Nvfp4 => {
                    reference::quantize_with_scale(values.view(), DType::F32, recipe, GivenScale::Amax(3.5)).unwrap()
                }
                Scheme::Fp8Tensor(format) => {
                    let (want, largest) =
                        reference::quantize_tensor(values.view(), format, GivenScale::Encode(3.5)).unwrap();
                    assert_eq!(handle.read::<f32>(&amax.view()).unwrap(), [largest], "captured amax");
                    want
                }
                _ => reference::quantize(values.view(), DType::F32, recipe).unwrap(),
            };
            assert_device_bits(&handle, got, &want, &format!("captured norm of two launches to {}", recipe.scheme()));
        }
        let (values, factors) = next();
        let want = reference::cast(&values.view().into(), tile).unwrap();
        assert_cast(&handle, &tiles, &want, "captured norm of two launches to tiles");
        assert_same_values(&handle.read::<f32>(&rstd.view()).unwrap(), &factors, 1, "captured factors");
        let sum = values_of(DType::Bf16, &handle.read_bytes(&residual.view()).unwrap());
        assert_same_values(&sum, before.as_slice().unwrap(), cols, "the residual after five norms");
        let want = reference::swiglu_backward(gated.x.view(), gradient.view(), &gated.options(false)).unwrap();
        for (recipe, got) in to_gradients.into_iter().zip(&gradients) {
            let want = reference::quantize(want.x.view(), DType::F32, recipe).unwrap();
            assert_device_bits(&handle, got, &want, &format!("captured gradients as {}", recipe.scheme()));
        }
    }
}
