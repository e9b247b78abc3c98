//! MXFP4 on the device equals the reference byte for byte: every scale rule, input type, shape and direction; special values, and
//! every place where the rounding of scales or codes turns. Products where F16 does not hold the weights.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/quantize.rs"]
mod quantize;

use common::gemm::*;
use common::*;
use quantize::*;
use scaled_gemm::codec::E2M1_VALUES;
use scaled_gemm::{
    Accumulation, DType, DeviceBytes, Formulation, Fp8Format, GemmDesc, GivenScale, HostQuantMatrix, MatRef,
    MxScaleRule, Mxfp4Recipe, QuantMatrix, QuantizeTo, Recipe, Scheme, reference,
};

fn recipes() -> Vec<Recipe> {
    MxScaleRule::ALL.map(|rule| Recipe::Mxfp4(Mxfp4Recipe { rule })).to_vec()
}

/// Small, for runs under a sanitizer: aligned rows and others, in every direction, and back.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    check_once(&handle, &mut Noise::new(140), &recipes(), &[Recipe::new(Scheme::Mxfp4)]);
}

#[test]
fn every_recipe_type_and_shape() {
    let Some(handle) = handle() else { return };
    // 16, 48, 144, 272 and 1040 columns end in half a block; a warp takes 256 of 16-bit elements.
    let shapes = grid(&[1, 3, 16, 17, 130, 144, 272], &[16, 32, 48, 144, 256, 272, 384, 576, 1040]);
    check_shapes(&handle, &mut Noise::new(141), shapes, &recipes());
}

#[test]
fn model_widths_and_long_rows() {
    let Some(handle) = handle() else { return };
    let shapes = [(17, 7168), (272, 7168), (3, 16384), (16, 16400), (2, 65536), (16, 65536), (4001, 576)];
    check_shapes(&handle, &mut Noise::new(142), shapes, &recipes());
}

#[test]
fn strided_and_unaligned_rows() {
    let Some(handle) = handle() else { return };
    let shapes = [(5, 144), (32, 272), (160, 576), (16, 16400)];
    check_strides(&handle, &mut Noise::new(143), shapes, &recipes());
}

#[test]
fn special_values() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(144);
    let minus_nan = f32::from_bits(0xFFC0_0000);
    let specials =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::from_bits(1), -1e-40, 3.3e38, -65504.0, minus_nan];
    check_specials(&handle, recipes, |dtype, tiny| {
        vec![
            with_specials(&mut rng, dtype, 1.0, &specials),
            with_specials(&mut rng, dtype, tiny, &specials[3..6]),
            with_specials(&mut rng, dtype, 2e4, &[6.0, 57344.0, -7.0, 61440.0, 6.5, minus_nan]),
        ]
    });
}

/// Every exponent with the mantissas at which any of the rules changes its mind, as the largest magnitude of a block; and
/// every BF16 and F16 number as that.
#[test]
fn scale_boundaries() {
    let Some(handle) = handle() else { return };
    // Powers of two, MAX (1.5), and where a mantissa of one bit rounds up to the next exponent (1.75).
    check_tops(&handle, &mut Noise::new(145), &[0, 0x40_0000, 0x60_0000, 0x80_0000], recipes);
}

/// Each value as near as possible to where the rounding of codes turns, and to where they saturate, at scales from the smallest
/// to the largest of each type.
#[test]
fn rounding_boundaries() {
    let Some(handle) = handle() else { return };
    let codes = &E2M1_VALUES[..8];
    let middles = codes.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let edges: Vec<f32> = codes.iter().copied().chain(middles).chain([7.0, 7.5]).collect();
    // F16 numbers end at 65504 and are whole multiples of 2^-24; factors and their halves are normal numbers of it from scales of 2^-15 to 2^13.
    let wide = [-147, -140, -128, -127, -126, -120, -60, -8, 0, 60, 124, 125];
    let narrow = [-24, -22, -18, -16, -15, -14, -13, -8, 0, 5, 12, 13];
    for (dtype, powers) in [(DType::F32, wide), (DType::Bf16, wide), (DType::F16, narrow)] {
        let mut blocks = Vec::new();
        // The largest value of a block is 6, and 7.9, which saturates by floor and is half as large a code by the others.
        for top in [6.0, 7.9] {
            for power in powers {
                let scale = |v: f32| by_power(v, power);
                let largest = round_to(dtype, scale(top));
                let near = edges.iter().flat_map(|edge| around_in(dtype, scale(*edge)));
                blocks.push((largest, near.filter(|v| v.abs() <= largest).collect()));
            }
        }
        let x = Source::new(&handle, in_blocks(&blocks, 32, 8), dtype);
        recipes().into_iter().for_each(|recipe| x.check(&handle, recipe));
    }
}

/// One largest element, in every place of a block in turn, along rows and along columns.
#[test]
fn the_amax_is_found_in_every_place() {
    let Some(handle) = handle() else { return };
    check_places(&handle, recipes);
}

#[test]
fn dequantize_every_code_and_scale() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(146);
    // Row i has scale byte i everywhere, and every pair of codes.
    let codes = (0..256 * 256).map(|i| i as u8).collect();
    let block_scales: Vec<u8> = (0..256 * 16).map(|i| (i / 16) as u8).collect();
    let q = HostQuantMatrix::from_block_logical(Scheme::Mxfp4, 256, 512, codes, &[], &block_scales).unwrap();
    check_dequantize(&handle, &q);
    for (rows, cols) in [(1, 16), (3, 48), (130, 144), (257, 1040), (5, 16400), (33, 2880)] {
        let x = spread(&mut rng, rows, cols, DType::F32);
        check_dequantize(&handle, &reference::quantize(x.view(), DType::F32, Recipe::new(Scheme::Mxfp4)).unwrap());
    }
}

/// With F16 activations MXFP4 weights are F16 numbers: those that F16 rounds or makes infinite give what the reference gives. And the
/// plan says why no library multiplies MXFP4.
#[test]
fn mxfp4_weights_beyond_f16() {
    let Some(handle) = handle() else { return };
    let (m, n, k) = (5, 16, 64);
    let x = Noise::new(111).matrix(m, k, DType::F16);
    let codes: Vec<u8> = (0..n * k / 2).map(|i| (i * 37 + i / 5) as u8).collect();
    let bytes: Vec<u8> = (0..2 * n as u8).map(|i| if i % 16 < 8 { 96 + i } else { 130 + i % 8 }).collect();
    let ends: Vec<u8> = bytes.iter().map(|b| if *b == 130 { 141 } else { *b }).collect();
    for scales in [bytes, ends] {
        let b = HostQuantMatrix::from_block_logical(Scheme::Mxfp4, n, k, codes.clone(), &[], &scales).unwrap();
        let ops = PlainOperands::of(&handle, &x, DType::F16, 0, b);
        let extras = Extras::new(&handle, &mut Noise::new(112), m, n, &[0]);
        let sums = ops.sums(Accumulation::Precise);
        for out in [DType::Bf16, DType::F32] {
            let case = Case::new(out);
            check_case(&handle, &ops, &extras, &sums, &case);
            let plan = handle.plan(&case.desc(&ops)).unwrap();
            assert_eq!(plan.formulation(), Formulation::DequantizedBf16);
        }
    }
    let desc = GemmDesc::new(m, n, k, Scheme::Mxfp4, Scheme::Mxfp4, DType::Bf16);
    let words = handle.plan(&desc).unwrap().explain();
    assert!(words.contains("no MXFP4 on any GPU"), "{words}");
}

#[test]
fn captured_casts_follow_the_data() {
    let Some(handle) = handle() else { return };
    check_captured(&handle, &mut Noise::new(147), recipes());
}

#[test]
fn refusals_name_operand_numbers_and_rule() {
    let Some(handle) = handle() else { return };
    let buffer = poisoned(&handle, 65536);
    let recipe = Recipe::new(Scheme::Mxfp4);
    let x = |dtype, rows, cols| MatRef::new(&buffer, dtype, rows, cols).unwrap();
    refused(handle.quantize(&x(DType::Bf16, 4, 24), recipe).map(|_| ()), &["24", "multiple of 16"]);
    refused(handle.quantize(&x(DType::E4M3, 4, 32), recipe).map(|_| ()), &["e4m3"]);
    let mut wrong = QuantMatrix::zeros(&handle, Scheme::Mxfp8(Fp8Format::E4M3), 4, 32).unwrap();
    let to = QuantizeTo::Plain(&mut wrong);
    refused(handle.quantize_into(&x(DType::Bf16, 4, 32), recipe, to), &["mxfp8:e4m3", "must be 4 x 32 mxfp4"]);
    let number = handle.stream().clone_htod(&[5.0f32]).unwrap();
    let amax = GivenScale::Amax(DeviceBytes::from(&number));
    let mut out = QuantMatrix::zeros(&handle, recipe.scheme(), 4, 32).unwrap();
    let to = QuantizeTo::Plain(&mut out);
    refused(handle.quantize_nvfp4_into(&x(DType::Bf16, 4, 32), recipe, &amax, to), &["mxfp4"]);
    assert!(handle.quantize(&x(DType::Bf16, 0, 32), recipe).is_ok());
    // The rows of X are the columns of the transpose, two of which share a byte.
    let text = QuantMatrix::zeros(&handle, Scheme::Mxfp4, 32, 20).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("mxfp4") && text.contains("multiple of 16"), "{text}");
}
