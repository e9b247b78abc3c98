//! MXFP8 on the device equals the reference byte for byte: every scale rule, code format, input type, shape and direction;
//! special values, and every place where the rounding of scales or codes turns.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/quantize.rs"]
mod quantize;

use common::*;
use quantize::*;
use scaled_gemm::codec::decode;
use scaled_gemm::{
    DType, DeviceBytes, Fp8Format, GivenScale, HostQuantMatrix, MatRef, MxScaleRule, Mxfp8Recipe, QuantMatrix,
    QuantizeTo, Recipe, Scheme, reference,
};

const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];

fn recipes() -> Vec<Recipe> {
    FORMATS
        .into_iter()
        .flat_map(|f| MxScaleRule::ALL.map(|rule| Recipe::Mxfp8(Mxfp8Recipe { format: f, rule })))
        .collect()
}

/// Small, for runs under a sanitizer: aligned rows and others, in every direction, and back.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    check_once(&handle, &mut Noise::new(80), &recipes(), &FORMATS.map(|f| Recipe::new(Scheme::Mxfp8(f))));
}

#[test]
fn every_recipe_type_and_shape() {
    let Some(handle) = handle() else { return };
    // 16, 48, 144 and 1040 columns end in half a block.
    let shapes = grid(&[1, 3, 16, 17, 130, 144, 272], &[16, 32, 48, 144, 576, 1040]);
    check_shapes(&handle, &mut Noise::new(81), shapes, &recipes());
}

#[test]
fn model_widths_and_long_rows() {
    let Some(handle) = handle() else { return };
    let shapes = [(17, 7168), (272, 7168), (3, 16384), (16, 16400), (2, 65536), (16, 65536), (4001, 576)];
    check_shapes(&handle, &mut Noise::new(82), shapes, &recipes());
}

#[test]
fn strided_and_unaligned_rows() {
    let Some(handle) = handle() else { return };
    let shapes = [(5, 144), (32, 272), (160, 576), (16, 16400)];
    check_strides(&handle, &mut Noise::new(83), shapes, &recipes());
}

#[test]
fn special_values() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(84);
    let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::from_bits(1), -1e-40, 3.3e38, -65504.0];
    check_specials(&handle, recipes, |dtype, tiny| {
        vec![
            with_specials(&mut rng, dtype, 1.0, &specials),
            with_specials(&mut rng, dtype, tiny, &specials[3..6]),
            with_specials(&mut rng, dtype, 2e4, &[448.0, 57344.0, -480.0, 61440.0, 464.0]),
        ]
    });
}

/// Every exponent with the mantissas at which any of the rules changes its mind, as the largest magnitude of a block; and
/// every BF16 and F16 number as that.
#[test]
fn scale_boundaries() {
    let Some(handle) = handle() else { return };
    // Powers of two, halves, MAX (1.75), and where a mantissa of 3 or 2 bits rounds up to the next exponent.
    let mantissas = [0, 0x40_0000, 0x60_0000, 0x70_0000, 0x78_0000, 0x80_0000];
    check_tops(&handle, &mut Noise::new(85), &mantissas, recipes);
}

/// Each FP32 value as near as possible to where the rounding of codes turns, at scales from the smallest to the largest.
#[test]
fn rounding_boundaries_of_both_formats() {
    let Some(handle) = handle() else { return };
    for format in FORMATS {
        let codes: Vec<f32> = (0..0x7Fu8).map(|c| decode(format, c)).filter(|v| v.is_finite()).collect();
        let middles = codes.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        let edges: Vec<f32> = codes.iter().copied().chain(middles).collect();
        let top = format.max();
        let largest = if format == Fp8Format::E4M3 { 119 } else { 112 };
        let mut blocks = Vec::new();
        for power in [-145, -140, -127, -120, -60, -8, 0, 60, largest] {
            let scale = |v: f32| by_power(v, power);
            let near = edges.iter().flat_map(|edge| around(scale(*edge)));
            blocks.push((scale(top), near.filter(|v| v.abs() <= scale(top)).collect()));
        }
        let x = Source::new(&handle, in_blocks(&blocks, 32, 8), DType::F32);
        MxScaleRule::ALL.into_iter().for_each(|rule| x.check(&handle, Mxfp8Recipe { format, rule }));
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
    let mut rng = Noise::new(86);
    for scheme in FORMATS.map(Scheme::Mxfp8) {
        // Row i has scale byte i everywhere, and every code.
        let codes = (0..256 * 256).map(|i| i as u8).collect();
        let block_scales: Vec<u8> = (0..256 * 8).map(|i| (i / 8) as u8).collect();
        let q = HostQuantMatrix::from_block_logical(scheme, 256, 256, codes, &[], &block_scales).unwrap();
        check_dequantize(&handle, &q);
        for (rows, cols) in [(1, 16), (3, 48), (130, 144), (257, 1040), (5, 16400)] {
            let x = spread(&mut rng, rows, cols, DType::F32);
            check_dequantize(&handle, &reference::quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap());
        }
    }
}

#[test]
fn captured_casts_follow_the_data() {
    let Some(handle) = handle() else { return };
    check_captured(&handle, &mut Noise::new(87), recipes());
}

#[test]
fn refusals_name_operand_numbers_and_rule() {
    let Some(handle) = handle() else { return };
    let buffer = poisoned(&handle, 65536);
    let recipe = Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3));
    let x = |dtype, rows, cols| MatRef::new(&buffer, dtype, rows, cols).unwrap();
    gemm::refused(handle.quantize(&x(DType::Bf16, 4, 24), recipe).map(|_| ()), &["24", "multiple of 16"]);
    gemm::refused(handle.quantize(&x(DType::E4M3, 4, 32), recipe).map(|_| ()), &["e4m3"]);
    let mut wrong = QuantMatrix::zeros(&handle, Scheme::Mxfp8(Fp8Format::E5M2), 4, 32).unwrap();
    let to = QuantizeTo::Plain(&mut wrong);
    gemm::refused(handle.quantize_into(&x(DType::Bf16, 4, 32), recipe, to), &["mxfp8:e5m2", "mxfp8:e4m3"]);
    let number = handle.stream().clone_htod(&[5.0f32]).unwrap();
    let amax = GivenScale::Amax(DeviceBytes::from(&number));
    let mut out = QuantMatrix::zeros(&handle, recipe.scheme(), 4, 32).unwrap();
    let to = QuantizeTo::Plain(&mut out);
    gemm::refused(handle.quantize_nvfp4_into(&x(DType::Bf16, 4, 32), recipe, &amax, to), &["mxfp8"]);
    assert!(handle.quantize(&x(DType::Bf16, 0, 32), recipe).is_ok());
}
