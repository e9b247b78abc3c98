//! What is computed and quantized to what products read equals the quantizer of the computed values in FP32, byte for byte: FP8 with a
//! given scale, MXFP8 and MXFP4, NVFP4 with a given second level and with one of each row; what is refused. And such a matrix as a source of casts.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "common/producers.rs"]
mod producers;
#[path = "common/targets.rs"]
mod targets;

use cast::INPUTS;
use common::*;
use ndarray::{Array2, s};
use producers::*;
use scaled_gemm::reference::{self, ClampCounts};
use scaled_gemm::{
    BlockScaleRule, BlockShape, CastGroup, CastMatrix, CastRecipe, CastScheme, CastSource, CodeFormat, CodeRounding,
    DType, DeviceBytes, E4m3Bound, ErrorMath, ErrorMetric, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale,
    Handle, MatRef, MxScaleRule, Mxfp4Recipe, Mxfp8Recipe, Nvfp4Options, Nvfp4Rule, QuantMatrix, Recipe, Result,
    RowIndex, Scheme, SourceActivation, SwigluSource, VecRef,
};
use targets::*;

/// Plain block scales, then 4over6 of every kind.
fn options() -> Vec<Nvfp4Options> {
    let mut all = vec![Nvfp4Options::PLAIN];
    for metric in ErrorMetric::ALL {
        for math in ErrorMath::ALL {
            let block_scale = BlockScaleRule::FourOverSix { metric, math };
            all.extend(E4m3Bound::ALL.map(|bound| Nvfp4Options { block_scale, bound, ..Nvfp4Options::PLAIN }));
        }
    }
    all
}

fn all_targets() -> Vec<Target> {
    let mut all = Vec::new();
    for rule in MxScaleRule::ALL {
        all.extend(Fp8Format::ALL.map(|format| Target::Found(Mxfp8Recipe { format, rule }.into())));
        all.push(Target::Found(Mxfp4Recipe { rule }.into()));
    }
    for options in options() {
        all.push(Target::Found(nvfp4(Scheme::Nvfp4Row, options)));
        all.push(Target::Level(nvfp4(Scheme::Nvfp4, options), GivenScale::Amax(90.0)));
    }
    let given = [GivenScale::Amax(0.5), GivenScale::Amax(0.0), GivenScale::Encode(31.0), GivenScale::Decode(0.0371)];
    all.extend(given.map(|given| Target::Level(Recipe::new(Scheme::Nvfp4), given)));
    for given in [GivenScale::Encode(3.7), GivenScale::Decode(0.11)] {
        all.extend(Fp8Format::ALL.map(|format| Target::Scale(format, given)));
    }
    all
}

/// SwiGLU with everything or nothing; what the clamp changes counts once, whatever is computed twice.
fn check_swiglu(handle: &Handle, gated: &Gated, all: bool, target: Target) {
    let (values, right) = gated.values(all, CastGroup::Row);
    let mut counts = handle.alloc(24).unwrap();
    let matrix = gated.matrix();
    let context = format!("{}, stride {}, all {all}", gated.dtype, gated.stride);
    target.check(handle, gated.source(&matrix, all, &mut counts), values.view(), &context);
    let right = if all { right } else { ClampCounts::default() };
    assert_eq!(read_counts(handle, &counts), right, "{context} to {target:?}");
}

/// Small, for runs under a sanitizer.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(960);
    for dtype in INPUTS {
        // Rows of 16400 are too long for registers.
        for (rows, half) in [(5, 48), (130, 144), (1, 16400)] {
            for stride in [2 * half, 2 * half + 3] {
                let gated = Gated::strided(&handle, &mut rng, (rows, half), dtype, stride);
                few().into_iter().for_each(|target| check_swiglu(&handle, &gated, true, target));
            }
        }
    }
}

/// Small, for runs under a sanitizer: every activation, and a norm by its factors.
#[test]
fn each_activation_once() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(970);
    for (rows, cols) in [(5, 96), (1, 16416)] {
        let gated = Gated::strided(&handle, &mut rng, (rows, cols / 2), DType::Bf16, cols + 3);
        let (matrix, x) = (gated.matrix(), gated.x.view());
        let ones = handle.upload(&vec![1.0f32; cols]).unwrap();
        for target in few() {
            for activation in SourceActivation::ALL {
                let values = match activation {
                    SourceActivation::Silu => reference::silu(x),
                    SourceActivation::Gelu => reference::gelu(x),
                    SourceActivation::GeluTanh => reference::gelu_tanh(x),
                };
                target.check(&handle, CastSource::activated(&matrix, activation), values.view(), activation.name());
            }
            let [factors, columns] = [rows, cols].map(|len| VecRef::new(&ones, DType::F32, len).unwrap());
            target.check(&handle, CastSource::normed(&matrix, factors, columns).unwrap(), x, "norm");
        }
    }
}

/// Every target from every type of element, aligned and not.
#[test]
fn every_target() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(961);
    for dtype in INPUTS {
        for (rows, half) in [(0, 64), (1, 64), (33, 576), (130, 1040)] {
            // Packed, apart but aligned, and not aligned.
            for stride in [2 * half, 2 * half + 8, 2 * half + 1] {
                let gated = Gated::strided(&handle, &mut rng, (rows, half), dtype, stride);
                all_targets().into_iter().for_each(|target| check_swiglu(&handle, &gated, true, target));
            }
        }
    }
}

#[test]
fn what_products_read() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(962);
    for rows in [0, 1, 127, 130] {
        for half in [64, 576, 1040, 16400] {
            let gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
            for target in few() {
                [false, true].into_iter().for_each(|all| check_swiglu(&handle, &gated, all, target));
            }
        }
    }
    // The longest row that is held, shapes of models, and more tiles than there are blocks.
    for (rows, half) in [(2, 16384), (40, 2048), (257, 4096), (70_000, 64)] {
        let gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
        few().into_iter().for_each(|target| check_swiglu(&handle, &gated, true, target));
    }
}

#[test]
fn activations() {
    let Some(handle) = handle() else { return };
    each_activation(&handle, 963, |(matrix, activation), values, name| {
        for target in few() {
            target.check(&handle, CastSource::activated(matrix, activation), values.view(), name);
        }
    });
}

/// Values of every size: scale bytes and second levels at both ends of their range, where the short paths end.
#[test]
fn values_of_every_size() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(964);
    for top in [0.0, -0.0, 1e-45, 1e-38, 1e-30, 1e-12, 1e-3, 1.0, 3e4, 1e12, 1e30, 3e38, f32::INFINITY, f32::NAN] {
        let x = Array2::from_shape_fn((5, 128), |(i, _)| if i == 3 { top } else { top * rng.uniform() });
        let data = handle.upload(&bytes_of(DType::F32, &x)).unwrap();
        let matrix = MatRef::new(&data, DType::F32, 5, 128).unwrap();
        let values = reference::gelu(x.view());
        let own = [GivenScale::Amax(top.abs()), GivenScale::Encode(top.abs()), GivenScale::Decode(top.abs())];
        let own = own.map(|given| Target::Level(Recipe::new(Scheme::Nvfp4), given));
        let own = own.into_iter().filter(|_| !top.is_nan());
        for target in all_targets().into_iter().chain(own) {
            let source = CastSource::activated(&matrix, SourceActivation::Gelu);
            target.check(&handle, source, values.view(), &format!("values up to {top:e}"));
        }
    }
}

/// The amax of delayed scaling is raised to that of the values before they are scaled.
#[test]
fn the_amax_of_a_given_scale() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(965);
    for (rows, half) in [(0, 64), (1, 64), (130, 1040)] {
        let gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
        let matrix = gated.matrix();
        let (values, _) = gated.values(true, CastGroup::Row);
        let given = GivenScale::Encode(3.7);
        let (want, amax) = reference::quantize_tensor(values.view(), Fp8Format::E4M3, given).unwrap();
        let number = handle.upload(&[3.7f32]).unwrap();
        for before in [0.0f32, 1e5] {
            let mut raised = handle.upload(&[before]).unwrap();
            let mut counts = handle.alloc(24).unwrap();
            let mut out = poisoned_matrix(&handle, want.scheme(), rows, half);
            let source = gated.source(&matrix, true, &mut counts);
            let given = given.with_number(DeviceBytes::from(&number));
            let to = Some(&mut raised.view_mut());
            handle.quantize_source_tensor_into(source, Fp8Format::E4M3, &given, &mut out, to).unwrap();
            assert_device_bits(&handle, &out, &want, "with its amax");
            assert_eq!(handle.read::<f32>(&raised.view()).unwrap(), [amax.max(before)]);
        }
    }
}

#[test]
fn gathered_rows() {
    let Some(handle) = handle() else { return };
    let gated = Gated::new(&handle, &mut Noise::new(966), 40, 144, DType::Bf16);
    let matrix = gated.matrix();
    // Weights and experts are those of the rows that are read.
    let (values, _) = gated.values(true, CastGroup::Row);
    for rows in [3i32, 64, 130] {
        let index: Vec<i32> = (0..rows).map(|i| if i % 9 == 4 { -1 } else { (i * 7) % 40 }).collect();
        let rows_of = RowIndex::new(&handle, &index, 40).unwrap();
        let mut taken = Array2::zeros((index.len(), 144));
        for (i, row) in index.iter().enumerate().filter_map(|(i, row)| Some((i, usize::try_from(*row).ok()?))) {
            taken.slice_mut(s![i, ..]).assign(&values.row(row));
        }
        // Numbers that nobody checked: beyond the matrix there is nothing, and nothing is counted.
        let beyond =
            |(i, row): (usize, &i32)| if *row >= 0 { row.cast_unsigned() } else { [40, i32::MAX as u32][i % 2] };
        let unchecked: Vec<u32> = index.iter().enumerate().map(beyond).collect();
        let unchecked = RowIndex::from_device(handle.upload(&unchecked).unwrap()).unwrap();
        for target in all_targets() {
            let counts = [&rows_of, &unchecked].map(|index| {
                let mut counts = handle.alloc(24).unwrap();
                let source = CastSource::from(gated.source(&matrix, true, &mut counts)).gathered(index).unwrap();
                target.check(&handle, source, taken.view(), "gathered");
                read_counts(&handle, &counts)
            });
            assert_eq!(counts[0], counts[1], "{target:?}");
        }
    }
}

/// A norm whose factors are known, to everything, aligned and not.
#[test]
fn factors_of_a_norm() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(969);
    let deepseek = |granularity| Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let fp8 = [Fp8Granularity::Row, Fp8Granularity::Group1x128];
    let fp8 = fp8.into_iter().flat_map(|granularity| [deepseek(granularity), deepseek(granularity).power_of_two()]);
    let all: Vec<_> = all_targets().into_iter().chain(fp8.map(|recipe| Target::Found(recipe.into()))).collect();
    for dtype in INPUTS {
        for (rows, cols, apart) in [(1, 64, 0), (130, 576, 3), (33, 7168, 8), (2, 16416, 0)] {
            let mut gated = Gated::strided(&handle, &mut rng, (rows, cols / 2), dtype, cols + apart);
            // Odd rows are finite, and of one magnitude, so that every factor shows in their codes.
            let ordinary = |v: f32| if v.abs() <= 60.0 { v } else { 1.0 };
            gated.x.rows_mut().into_iter().skip(1).step_by(2).for_each(|mut row| row.mapv_inplace(ordinary));
            let there = |(i, j)| if j < cols { gated.x[(i, j)] } else { f32::NAN };
            let there = bytes_of(dtype, &Array2::from_shape_fn((rows, cols + apart), there));
            handle.write(&mut gated.data.view_mut(), &there).unwrap();
            let x = gated.x.mapv(|v| if v.is_finite() { v.clamp(-60.0, 60.0) } else { 1.0 });
            let weight: Vec<f32> = (0..cols).map(|_| round_to(dtype, rng.uniform() + 0.5)).collect();
            let options = reference::RmsNorm { weight: &weight, epsilon: 1e-6, residual: None, dtype };
            let rstd = reference::rms_norm(x.view(), &options).unwrap().rstd;
            // NaN and infinities stay in what is read.
            let values = Array2::from_shape_fn((rows, cols), |(i, j)| gated.x[(i, j)] * rstd[i] * weight[j]);
            let there = handle.upload(&rstd).unwrap();
            let (narrow, wide) = (handle.upload(&bytes_of(dtype, &weight)).unwrap(), handle.upload(&weight).unwrap());
            let matrix = gated.matrix();
            for target in &all {
                for of in [VecRef::new(&narrow, dtype, cols), VecRef::new(&wide, DType::F32, cols)] {
                    let factors = VecRef::new(&there, DType::F32, rows).unwrap();
                    let source = CastSource::normed(&matrix, factors, of.unwrap()).unwrap();
                    target.check(&handle, source, values.view(), &format!("norm of {dtype}, {apart} apart"));
                }
            }
        }
    }
}

/// A graph follows its input and the numbers that are given.
#[test]
fn captured() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(967);
    let mut gated = Gated::new(&handle, &mut rng, 33, 144, DType::Bf16);
    handle.load_kernels(&[scaled_gemm::KernelFamily::Fused]).unwrap();
    let mut targets = few();
    let mut outs: Vec<_> = targets.iter().map(|t| poisoned_matrix(&handle, t.scheme(), 33, 144)).collect();
    let mut numbers: Vec<_> = targets.iter().map(|t| t.number(&handle)).collect();
    let graph = {
        let matrix = gated.matrix();
        let graph = capture_owned(&handle, || {
            targets.iter().zip(&numbers).zip(&mut outs).try_for_each(|((target, number), out)| {
                target.run(&handle, SwigluSource::new(&matrix)?.with_clamp(10.0)?, number, out)
            })
        });
        graph.unwrap()
    };
    for launch in 1..4 {
        let other = Gated::new(&handle, &mut rng, 33, 144, DType::Bf16);
        handle.write(&mut gated.data.view_mut(), &bytes_of(DType::Bf16, &other.x)).unwrap();
        gated.x = other.x;
        for (target, number) in targets.iter_mut().zip(&mut numbers) {
            if let Target::Level(_, given) | Target::Scale(_, given) = target {
                *given = given.with_number(given.number() * launch as f32);
                handle.write(&mut number.view_mut(), &[*given.number()]).unwrap();
            }
        }
        handle.launch(&graph).unwrap();
        let options = reference::Swiglu { clamp: Some(10.0), ..reference::Swiglu::default() };
        let (values, _) = reference::swiglu(gated.x.view(), &options).unwrap();
        for (target, out) in targets.iter().zip(&outs) {
            assert_device_bits(&handle, out, &target.want(values.view()), &format!("launch {launch} of {target:?}"));
        }
    }
}

/// Where codes and scales lie as those of a cast, its buffers become a source of casts; values in between are those of the codes.
#[test]
fn what_products_read_is_cast_again() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(969);
    for (rows, cols) in [(0, 64), (1, 16), (130, 1040)] {
        let x = rng.matrix(rows, cols, DType::Bf16);
        let data = handle.upload(&bytes_of(DType::Bf16, &x)).unwrap();
        let matrix = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
        for granularity in [Fp8Granularity::Row, Fp8Granularity::Group1x128] {
            for rule in [Fp8Rule::DeepSeek, Fp8Rule::TransformerEngine] {
                let recipe = Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(rule);
                let values =
                    reference::dequantize(&reference::quantize(x.view(), DType::Bf16, recipe).unwrap(), DType::F32);
                let codes = CastMatrix::try_from(handle.quantize(&matrix, recipe).unwrap()).unwrap();
                for recipe in cast::recipes_of(rows) {
                    let context = format!("{rows} x {cols} of {}", codes.scheme());
                    cast::check_cast(&handle, (&codes).into(), &values.view().into(), recipe, &context);
                }
            }
        }
    }
    let zeros = |scheme| QuantMatrix::zeros(&handle, scheme, 16, 128).unwrap();
    let says = |q: QuantMatrix, words: [&str; 2]| {
        let said = CastMatrix::try_from(q).err().map(|error| error.to_string()).unwrap();
        assert!(words.iter().all(|word| said.contains(word)), "{said:?} lacks one of {words:?}");
    };
    let taken =
        [Fp8Granularity::Row, Fp8Granularity::Group1x128].map(|of| Fp8Recipe::new(of, Fp8Format::E4M3).scheme());
    for scheme in Scheme::ALL.into_iter().filter(|scheme| !taken.contains(scheme)) {
        says(zeros(scheme), [&format!("QuantMatrix of {scheme}"), "dequantize_into"]);
    }
    says(zeros(taken[0]).assume_basis(scaled_gemm::Basis::Hadamard16), ["hadamard16", "assume_basis"]);
}

#[test]
fn refusals() {
    let Some(handle) = handle() else { return };
    let gated = Gated::new(&handle, &mut Noise::new(968), 16, 64, DType::Bf16);
    let matrix = gated.matrix();
    let number = handle.upload(&[1.0f32]).unwrap();
    let says = |result: Result<()>, words: &[&str]| {
        let said = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said:?} lacks one of {words:?}");
    };
    let source = || SwigluSource::new(&matrix).unwrap();
    let zeros = |scheme| QuantMatrix::zeros(&handle, scheme, 16, 64).unwrap();
    let given = |given: GivenScale| given.with_number(DeviceBytes::from(&number));

    // A scale of the whole matrix that is not given.
    let tensor = Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3);
    let result = handle.quantize_source_into(source(), tensor, &mut zeros(tensor.scheme()));
    says(result, &["fp8-tensor", "twice", "quantize_source_tensor_into", "Handle::quantize"]);
    let result = handle.quantize_source_into(source(), Recipe::new(Scheme::Nvfp4), &mut zeros(Scheme::Nvfp4));
    says(result, &["nvfp4", "twice", "quantize_source_nvfp4_into", "nvfp4-row", "Handle::quantize"]);
    let result = handle.quantize_source_tensor_into(
        source(),
        Fp8Format::E4M3,
        &given(GivenScale::Amax(1.0)),
        &mut zeros(tensor.scheme()),
        None,
    );
    says(result, &["amax", "group_scale"]);
    let row = Recipe::new(Scheme::Nvfp4Row);
    let amax = given(GivenScale::Amax(1.0));
    says(
        handle.quantize_source_nvfp4_into(source(), row, &amax, &mut zeros(Scheme::Nvfp4Row)),
        &["nvfp4-row", "quantize_source_into"],
    );
    let tiles = Fp8Recipe::new(Fp8Granularity::Group128x128, Fp8Format::E4M3);
    says(handle.quantize_source_into(source(), tiles, &mut zeros(tiles.scheme())), &["weights", "fp8-1x128"]);

    // Options of NVFP4.
    for (options, words) in [
        (
            Nvfp4Options { basis: scaled_gemm::Basis::Hadamard16, ..Nvfp4Options::PLAIN },
            ["Hadamard", "weight gradients"],
        ),
        (
            Nvfp4Options { rounding: CodeRounding::Stochastic { seed: 1, offset: 0 }, ..Nvfp4Options::PLAIN },
            ["stochastic", "nearest"],
        ),
        (Nvfp4Options { shape: BlockShape::Tile16x16, ..Nvfp4Options::PLAIN }, ["16x16", "1x16"]),
        (Nvfp4Options { rule: Nvfp4Rule::TorchAo, ..Nvfp4Options::PLAIN }, ["torchao", "transformer-engine"]),
    ] {
        let recipe = nvfp4(Scheme::Nvfp4, options);
        let result = handle.quantize_source_nvfp4_into(source(), recipe, &amax, &mut zeros(Scheme::Nvfp4));
        says(result, &[words[0], words[1], "Handle::quantize"]);
        let result = handle.quantize_source_into(source(), recipe, &mut zeros(Scheme::Nvfp4));
        says(result, &[words[0], words[1], "Handle::quantize"]);
    }

    // Sources that nothing computes.
    let plain = MatRef::new(&gated.data, DType::Bf16, 16, 64).unwrap();
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128).unwrap();
    let codes: CastMatrix = handle.cast(&plain, CastRecipe::new(scheme)).unwrap();
    for target in few() {
        let mut out = zeros(target.scheme());
        says(target.run(&handle, &plain, &number, &mut out), &["plain", "Handle::quantize_into"]);
        says(target.run(&handle, &codes, &number, &mut out), &["CastMatrix", "cast_back_into"]);
    }

    // Targets and numbers that do not fit.
    for target in few() {
        let mut wide = QuantMatrix::zeros(&handle, target.scheme(), 16, 128).unwrap();
        says(target.run(&handle, source(), &number, &mut wide), &["16 x 128", "16 x 64"]);
        let mut other = zeros(Scheme::Fp8Row(Fp8Format::E5M2));
        says(target.run(&handle, source(), &number, &mut other), &["fp8-row", &target.scheme().to_string()]);
        if !matches!(target, Target::Found(_)) {
            let short = handle.alloc(2).unwrap();
            says(target.run(&handle, source(), &short, &mut zeros(target.scheme())), &["2 bytes", "4"]);
        }
    }
    handle.synchronize().unwrap();
}
