//! Device bytes equal reference bytes: every recipe, input type and shape, special values, strides, poisoned outputs.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/quantize.rs"]
mod quantize;

use common::*;
use ndarray::Array2;
use quantize::{INPUTS, Source, check_dequantize, check_empty, check_shapes, check_strides, grid};
use scaled_gemm::reference;
use scaled_gemm::{
    Basis, DType, DeviceBytes, DeviceBytesMut, Error, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale,
    Handle, MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme,
};

fn recipes() -> Vec<Recipe> {
    Fp8Recipe::all().map(Recipe::Fp8).collect()
}

/// Each scheme with the default recipe.
fn defaults() -> Vec<Recipe> {
    Scheme::FP8.map(Recipe::new).to_vec()
}

#[test]
fn every_recipe_type_and_shape() {
    let Some(handle) = handle() else { return };
    let shapes = grid(&[1, 3, 16, 17, 130, 144, 272], &[16, 144, 576, 1040]);
    check_shapes(&handle, &mut Noise::new(1), shapes, &recipes());
}

#[test]
fn matrices_without_elements() {
    let Some(handle) = handle() else { return };
    check_empty(&handle, &Recipe::all(quantize::stochastic(7, 3)));
    // One given scale: written, and no amax raised.
    for dtype in INPUTS {
        for scale in [GivenScale::Encode(0.0371), GivenScale::Decode(2.0)] {
            given(&handle, &Array2::zeros((0, 64)), dtype, Fp8Format::E4M3, scale);
            given(&handle, &Array2::zeros((16, 0)), dtype, Fp8Format::E5M2, scale);
        }
    }
    // Rows without elements have an amax, too.
    let nothing = upload(&handle, &[]);
    let x = MatRef::new(&nothing, DType::Bf16, 3, 0).unwrap();
    let mut each = handle.stream().clone_htod(&[f32::NAN; 4]).unwrap();
    handle.row_amax_into(&x, &mut DeviceBytesMut::from(&mut each.slice_mut(..3))).unwrap();
    let got = handle.stream().clone_dtoh(&each).unwrap();
    assert!(got[..3] == [0.0; 3] && got[3].is_nan(), "{got:?}");
    handle.row_amax_into(&MatRef::new(&nothing, DType::Bf16, 0, 64).unwrap(), &mut (&mut each).into()).unwrap();
    assert!(handle.stream().clone_dtoh(&each).unwrap()[..3] == [0.0; 3]);
}

#[test]
fn strided_and_unaligned_rows() {
    let Some(handle) = handle() else { return };
    check_strides(&handle, &mut Noise::new(2), [(5, 144), (32, 272), (160, 576)], &defaults());
}

#[test]
fn model_widths_and_long_rows() {
    let Some(handle) = handle() else { return };
    // Rows beyond 32768 elements do not fit in registers and are read twice.
    let shapes = [(4001, 576), (128, 7168), (300, 6144), (264, 16384), (20, 28672), (2, 57344), (3, 131072)];
    let mut recipes = defaults();
    recipes.retain(|r| r.scheme().spec().format == Fp8Format::E4M3);
    check_shapes(&handle, &mut Noise::new(3), shapes, &recipes);
}

#[test]
fn special_values() {
    let Some(handle) = handle() else { return };
    let specials =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::from_bits(1), -1e-40, 3e38, -65504.0, 1e-12, 1e-4];
    let mut rng = Noise::new(4);
    for dtype in INPUTS {
        let mut x = rng.matrix(160, 400, dtype);
        for (i, v) in specials.into_iter().enumerate() {
            // One special a row, and one in each of several groups of one row.
            x[[3 * i, 37 * i]] = round_to(dtype, v);
            x[[150, 40 * i]] = round_to(dtype, v);
        }
        x.row_mut(40).fill(0.0);
        x.row_mut(41).fill(-0.0);
        x.row_mut(42).fill(round_to(dtype, 1e-30));
        x.column_mut(7).fill(0.0);
        let x = Source::new(&handle, x, dtype);
        let zeros = Source::new(&handle, Array2::zeros((16, 256)), dtype);
        // A whole matrix without anything but one NaN has amax 0.
        let mut lone = Array2::zeros((16, 256));
        lone[[5, 77]] = f32::NAN;
        let lone = Source::new(&handle, lone, dtype);
        for recipe in Fp8Recipe::all() {
            [&x, &zeros, &lone].iter().for_each(|x| x.check(&handle, recipe));
        }
    }
}

/// The failure of packed BF16 maxima: 448 everywhere and one 450, at every position of a row in turn.
#[test]
fn the_amax_is_found_in_every_lane() {
    let Some(handle) = handle() else { return };
    for (rows, cols) in [(512, 512), (7168, 7168)] {
        let mut x = Array2::from_elem((rows, cols), 448.0f32);
        for i in 0..rows {
            x[[i, i % cols]] = 450.0;
        }
        let x = Source::new(&handle, x, DType::Bf16);
        for granularity in [Fp8Granularity::Row, Fp8Granularity::Group1x128] {
            let recipe = Fp8Recipe::new(granularity, Fp8Format::E4M3);
            x.check(&handle, recipe.with_rule(Fp8Rule::DeepSeek).power_of_two());
        }
    }
    // A tile, a tensor: the one large value in each row and column of a tile in turn.
    for at in 0..128 {
        let mut x = Array2::from_elem((128, 128), 448.0f32);
        x[[at, (at * 37) % 128]] = 450.0;
        let x = Source::new(&handle, x, DType::Bf16);
        for granularity in [Fp8Granularity::Tensor, Fp8Granularity::Group128x128] {
            let recipe = Fp8Recipe::new(granularity, Fp8Format::E4M3);
            x.check(&handle, recipe.with_rule(Fp8Rule::TransformerEngine).power_of_two());
        }
    }
}

/// What a block of the kernels that cast a whole matrix in one launch takes at the most, and eight of them, which are a cluster.
const BLOCK: usize = 512 * 32;
const IN_CLUSTER: usize = 8 * BLOCK;

fn of_tensor(format: Fp8Format) -> Recipe {
    Fp8Recipe::new(Fp8Granularity::Tensor, format).into()
}

/// Both meetings of such kernels, for runs under a sanitizer.
#[test]
fn one_launch_in_a_cluster_and_in_a_grid() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(13);
    for elements in [16, BLOCK, IN_CLUSTER + 1024] {
        for offset in [0, 1] {
            let cols = elements.min(1024);
            let x = rng.matrix(elements / cols, cols, DType::Bf16);
            let x = Source::strided(&handle, x, DType::Bf16, cols, offset);
            let want = reference::quantize(x.x.view(), x.dtype, of_tensor(Fp8Format::E4M3)).unwrap();
            let got = x.quantized(&handle, of_tensor(Fp8Format::E4M3));
            assert!(got.codes() == want.codes() && got.scales() == want.scales(), "{elements}, offset {offset}");
        }
    }
}

/// A whole matrix is cast in one launch while it fits a block of each multiprocessor, in one cluster or in a grid, else in two: shapes at and
/// past these ends, with NaN and infinities too; and the one large number in every block's part in turn.
#[test]
fn tensors_in_one_launch_and_in_two() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(12);
    let most = BLOCK * handle.device().sm_count as usize;
    let recipes: Vec<_> = Fp8Recipe::all().filter(|recipe| recipe.granularity == Fp8Granularity::Tensor).collect();
    assert!(!recipes.is_empty());
    let ends = [16, 272, BLOCK - 16, IN_CLUSTER, IN_CLUSTER + 1024, 3 * IN_CLUSTER, most, most + 1024];
    for (number, elements) in ends.into_iter().enumerate() {
        let cols = if elements % 1024 == 0 { 1024 } else { elements };
        for dtype in INPUTS {
            for (offset, special) in [(0, None), (1, Some(f32::NAN)), (0, Some(f32::INFINITY))] {
                let mut x = rng.matrix(elements / cols, cols, dtype);
                for at in special.iter().flat_map(|_| [0, elements / 2, elements - 1]) {
                    x[[at / cols, at % cols]] = special.unwrap_or_default();
                }
                let x = Source::strided(&handle, x, dtype, cols, offset);
                x.check(&handle, recipes[(number * 5 + offset) % recipes.len()]);
                x.check(&handle, of_tensor(Fp8Format::E5M2));
            }
        }
    }
    for elements in [IN_CLUSTER, 3 * IN_CLUSTER, most] {
        let places: Vec<_> = (BLOCK / 2..elements).step_by(BLOCK).collect();
        let mut x = Array2::from_elem((elements / 1024, 1024), 1.0f32);
        // Smaller from call to call, so that no earlier one hides it.
        for (call, &at) in places.iter().enumerate() {
            x[[at / 1024, at % 1024]] = 448.0 - call as f32;
            let there = Source::new(&handle, x.clone(), DType::F32);
            let got = there.quantized(&handle, of_tensor(Fp8Format::E4M3));
            let want = reference::quantize(x.view(), DType::F32, of_tensor(Fp8Format::E4M3)).unwrap();
            assert!(got.codes() == want.codes() && got.scales() == want.scales(), "{elements}: {at}");
            x[[at / 1024, at % 1024]] = 1.0;
        }
    }
}

/// Two matrices of one shape, the second far smaller: what is left of the first would be seen in its scale.
fn large_and_small(handle: &Handle, seed: u64, elements: usize) -> [Source; 2] {
    let x = Noise::new(seed).matrix(elements / 1024, 1024, DType::Bf16);
    let small = Source::new(handle, &x / 64.0, DType::Bf16);
    [Source::new(handle, x, DType::Bf16), small]
}

/// Launches whose blocks wait for each other, one behind the other and on several streams at once: none takes another's amax, and none waits
/// for ever.
#[test]
fn tensors_of_several_streams_at_once() {
    let Some(first) = handle() else { return };
    let most = BLOCK * first.device().sm_count as usize;
    let recipe = of_tensor(Fp8Format::E4M3);
    std::thread::scope(|scope| {
        for (number, elements) in [most, most, most / 2, 3 * IN_CLUSTER, BLOCK].into_iter().enumerate() {
            scope.spawn(move || {
                let handle = handle().expect("one was there");
                let sources = large_and_small(&handle, 20 + number as u64, elements / 1024 * 1024);
                let want = sources.each_ref().map(|x| reference::quantize(x.x.view(), x.dtype, recipe).unwrap());
                let mut outs: Vec<_> =
                    (0..8).map(|_| poisoned_matrix(&handle, recipe.scheme(), elements / 1024, 1024)).collect();
                for _ in 0..16 {
                    for (at, out) in outs.iter_mut().enumerate() {
                        handle.quantize_into(&sources[at % 2].matrix(), recipe, QuantizeTo::Plain(out)).unwrap();
                    }
                }
                for (at, out) in outs.iter().enumerate() {
                    assert_device_bits(&handle, out, &want[at % 2], &format!("stream {number}, {at}"));
                }
            });
        }
    });
}

/// The same in graphs, launched without a wait.
#[test]
fn captured_tensors_in_one_launch() {
    let Some(handle) = handle() else { return };
    let recipe = of_tensor(Fp8Format::E4M3);
    for elements in [IN_CLUSTER, IN_CLUSTER + 65536] {
        let sources = large_and_small(&handle, 30, elements);
        let want = sources.each_ref().map(|x| reference::quantize(x.x.view(), x.dtype, recipe).unwrap());
        let mut outs = [(); 4].map(|()| poisoned_matrix(&handle, recipe.scheme(), elements / 1024, 1024));
        // Loads what the capture launches.
        drop(sources[0].quantized(&handle, recipe));
        let graph = capture_among_others(&handle, || {
            outs.iter_mut().enumerate().try_for_each(|(at, out)| {
                handle.quantize_into(&sources[at % 2].matrix(), recipe, QuantizeTo::Plain(out))
            })
        })
        .unwrap();
        (0..20).for_each(|_| handle.launch(&graph).unwrap());
        for (at, out) in outs.iter().enumerate() {
            assert_device_bits(&handle, out, &want[at % 2], &format!("{elements}, captured {at}"));
        }
    }
}

/// Each FP32 value as near as possible to where rounding turns, by one given scale: the device's conversion.
#[test]
fn rounding_boundaries_of_both_formats() {
    let Some(handle) = handle() else { return };
    for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
        let mut values =
            vec![0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::from_bits(1)];
        let codes: Vec<f32> =
            (0..0x7Fu8).map(|c| scaled_gemm::codec::decode(format, c)).filter(|v| v.is_finite()).collect();
        for pair in codes.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            for edge in [pair[0], middle, pair[1]] {
                let bits = edge.to_bits();
                for near in [bits.saturating_sub(1), bits, bits + 1] {
                    values.extend([f32::from_bits(near), -f32::from_bits(near)]);
                }
            }
        }
        values.resize(values.len().next_multiple_of(16), 1.0);
        let x = Array2::from_shape_vec((1, values.len()), values).unwrap();
        given(&handle, &x, DType::F32, format, GivenScale::Encode(1.0));
    }
}

/// Casts with a given scale, both ways of giving it, and compares bytes, scale and amax.
fn given(handle: &Handle, x: &Array2<f32>, dtype: DType, format: Fp8Format, scale: GivenScale) {
    let (rows, cols) = x.dim();
    let (want, want_amax) = reference::quantize_tensor(x.view(), format, scale).unwrap();
    let buffer = upload_strided(handle, x, dtype, cols, 0);
    let input = MatRef::new(&buffer, dtype, rows, cols).unwrap();
    let factor = handle.stream().clone_htod(&[*scale.number()]).unwrap();
    let factor = scale.with_number(DeviceBytes::from(&factor));
    let mut amax = handle.stream().clone_htod(&[0.0f32]).unwrap();
    let mut out = poisoned_matrix(handle, Scheme::Fp8Tensor(format), rows, cols);
    let mut amax_bytes = DeviceBytesMut::from(&mut amax);
    handle.quantize_tensor_into(&input, format, &factor, &mut out, Some(&mut amax_bytes)).unwrap();
    let context = format!("{rows} x {cols} {dtype} {format:?} {scale:?}");
    assert_device_bits(handle, &out, &want, &context);
    assert_eq!(handle.stream().clone_dtoh(&amax).unwrap()[0].to_bits(), want_amax.to_bits(), "{context}");
}

#[test]
fn given_scales() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(5);
    for dtype in INPUTS {
        for (rows, cols) in [(1, 16), (17, 144), (300, 1040)] {
            let x = spread(&mut rng, rows, cols, dtype);
            for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
                for value in [2.0, 0.0371, 1e30, 1e-39] {
                    given(&handle, &x, dtype, format, GivenScale::Encode(value));
                    given(&handle, &x, dtype, format, GivenScale::Decode(value));
                }
            }
        }
    }
}

#[test]
fn amax_of_matrices_and_rows() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(6);
    for dtype in INPUTS {
        for (rows, cols, stride) in [(1, 16, 16), (17, 144, 160), (1000, 7168, 7168)] {
            let mut x = spread(&mut rng, rows, cols, dtype);
            x[[rows / 2, 3]] = f32::NAN;
            let buffer = upload_strided(&handle, &x, dtype, stride, 0);
            let input = MatRef::new(&buffer, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap();
            let mut one = handle.stream().clone_htod(&[f32::NAN]).unwrap();
            handle.amax_into(&input, &mut DeviceBytesMut::from(&mut one)).unwrap();
            let want: Vec<f32> = x.rows().into_iter().map(|r| reference::amax(r.as_slice().unwrap())).collect();
            assert_eq!(handle.stream().clone_dtoh(&one).unwrap()[0], reference::amax(&want));
            let mut each = handle.stream().clone_htod(&vec![f32::NAN; rows]).unwrap();
            handle.row_amax_into(&input, &mut DeviceBytesMut::from(&mut each)).unwrap();
            assert_eq!(handle.stream().clone_dtoh(&each).unwrap(), want);
        }
    }
}

/// What is refused is left as it was.
#[test]
fn an_amax_of_rows_that_is_refused_is_not_touched() {
    let Some(handle) = handle() else { return };
    let x = Source::new(&handle, Noise::new(7).matrix(2, 16, DType::Bf16), DType::Bf16);
    let input = x.matrix();
    for (from, bytes) in [(2, 8), (4, 4)] {
        let mut memory = handle.stream().clone_htod(&[7u8; 12]).unwrap();
        let mut whole = DeviceBytesMut::from(&mut memory);
        let refused = handle.row_amax_into(&input, &mut whole.part(from..from + bytes).unwrap()).unwrap_err();
        assert!(matches!((from, &refused), (2, Error::Alignment { .. }) | (4, Error::Shape { .. })), "{refused}");
        assert_eq!(handle.stream().clone_dtoh(&memory).unwrap(), [7; 12]);
    }
}

/// FP8 casts transform nothing: whatever basis the matrix was said to be in before, it is that of the data afterwards.
#[test]
fn the_basis_of_a_cast_is_that_of_the_data() {
    let Some(handle) = handle() else { return };
    let (rows, cols) = (32, 64);
    let x = Source::new(&handle, Noise::new(8).matrix(rows, cols, DType::Bf16), DType::Bf16);
    let turned = |scheme| QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap().assume_basis(Basis::Hadamard16);
    for recipe in defaults() {
        let mut out = turned(recipe.scheme());
        handle.quantize_into(&x.matrix(), recipe, QuantizeTo::Plain(&mut out)).unwrap();
        assert_eq!(out.basis(), Basis::Plain, "{recipe}");
    }
    let factor = handle.stream().clone_htod(&[2f32]).unwrap();
    let scale = GivenScale::Encode(DeviceBytes::from(&factor));
    let mut out = turned(Scheme::Fp8Tensor(Fp8Format::E4M3));
    handle.quantize_tensor_into(&x.matrix(), Fp8Format::E4M3, &scale, &mut out, None).unwrap();
    assert_eq!(out.basis(), Basis::Plain, "a given scale");
}

#[test]
fn dequantize_every_scheme_and_type() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(7);
    for (rows, cols) in [(1, 16), (3, 144), (130, 576), (257, 1040)] {
        for scheme in Scheme::FP8 {
            let x = spread(&mut rng, rows, cols, DType::F32);
            let q = reference::quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap();
            // Every code at least once, NaN and the infinities of E5M2 included.
            let mut parts = q.into_parts();
            for (i, code) in parts.codes.iter_mut().take(rows * cols).enumerate().filter(|(i, _)| i % 3 == 0) {
                *code = (i / 3) as u8;
            }
            let q = scaled_gemm::HostQuantMatrix::from_parts(scheme, rows, cols, parts).unwrap();
            check_dequantize(&handle, &q);
        }
    }
}

#[test]
fn refusals_name_operand_numbers_and_rule() {
    let Some(handle) = handle() else { return };
    let recipe = Recipe::new(Scheme::Fp8Row(Fp8Format::E4M3));
    let buffer = poisoned(&handle, 4096);
    let x = MatRef::new(&buffer, DType::Bf16, 4, 24).unwrap();
    let error = handle.quantize(&x, recipe).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("24") && error.contains("multiple of 16"), "{error}");
    let x = MatRef::new(&buffer, DType::E4M3, 4, 32).unwrap();
    let error = handle.quantize(&x, recipe).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("e4m3"), "{error}");
    let x = MatRef::new(&buffer, DType::Bf16, 4, 32).unwrap();
    let mut wrong = poisoned_matrix(&handle, Scheme::Fp8Row(Fp8Format::E5M2), 4, 32);
    let error = handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut wrong)).unwrap_err().to_string();
    assert!(error.contains("fp8-row:e5m2") && error.contains("fp8-row:e4m3"), "{error}");
    assert!(handle.quantize(&MatRef::new(&buffer, DType::Bf16, 0, 32).unwrap(), recipe).is_ok());
}
