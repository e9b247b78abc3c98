//! NVFP4 on the device equals the reference byte for byte: every recipe, input type, shape and direction; special values,
//! ties, near ties of 4over6, given second levels.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/quantize.rs"]
mod quantize;

use common::*;
use ndarray::Array2;
use quantize::*;
use scaled_gemm::codec::decode;
use scaled_gemm::{
    Basis, BlockScaleRule, BlockShape, DType, DeviceBytes, E4m3Bound, Error, ErrorMath, ErrorMetric, Fp8Format,
    GivenScale, HostQuantMatrix, MatRef, Nvfp4Options, Nvfp4Rule, QuantMatrix, QuantizeTo, Recipe, Scheme, reference,
};
use serde_json::Value;

/// Every recipe but 4over6: plain, torchao's, tiles, per row, Hadamard, stochastic, both.
fn others() -> Vec<Recipe> {
    let options = Nvfp4Options::default();
    let hadamard = Nvfp4Options { basis: Basis::Hadamard16, ..options };
    vec![
        Recipe::new(Scheme::Nvfp4),
        nvfp4(Scheme::Nvfp4, Nvfp4Options { rule: Nvfp4Rule::TorchAo, ..options }),
        nvfp4(Scheme::Nvfp4, Nvfp4Options { rule: Nvfp4Rule::TorchAoCpu, ..options }),
        Recipe::new(Scheme::Nvfp4Row),
        nvfp4(Scheme::Nvfp4, Nvfp4Options { shape: BlockShape::Tile16x16, ..options }),
        nvfp4(Scheme::Nvfp4, hadamard),
        nvfp4(Scheme::Nvfp4, Nvfp4Options { rounding: stochastic(1234, 7), ..options }),
        nvfp4(Scheme::Nvfp4, Nvfp4Options { rounding: stochastic(u64::MAX, 1 << 40), ..hadamard }),
    ]
}

fn recipes() -> Vec<Recipe> {
    others().into_iter().chain(four_over_six()).collect()
}

/// The recipes that take a given second level.
fn whole() -> impl Iterator<Item = Recipe> {
    recipes().into_iter().filter(|r| r.scheme() == Scheme::Nvfp4)
}

/// Small, for runs under a sanitizer: rows held in registers and rows read twice, aligned and not.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(60);
    for (rows, cols) in [(48, 144), (3, 8208)] {
        for dtype in INPUTS {
            let x = spread(&mut rng, rows, cols, dtype);
            for offset in [0, 1] {
                let x = Source::strided(&handle, x.clone(), dtype, cols, offset);
                recipes().into_iter().for_each(|recipe| x.check(&handle, recipe));
                whole().for_each(|recipe| x.check_given(&handle, recipe, GivenScale::Amax(40.0)));
            }
            for recipe in [Recipe::new(Scheme::Nvfp4), Recipe::new(Scheme::Nvfp4Row)] {
                check_dequantize(&handle, &reference::quantize(x.view(), dtype, recipe).unwrap());
            }
        }
    }
}

#[test]
fn every_recipe_type_and_shape() {
    let Some(handle) = handle() else { return };
    let shapes = grid(&[1, 3, 16, 17, 130, 144, 272], &[16, 48, 144, 1040]);
    check_shapes(&handle, &mut Noise::new(61), shapes, &recipes());
}

#[test]
fn model_widths_and_long_rows() {
    let Some(handle) = handle() else { return };
    let shapes = [(17, 7168), (32, 7168), (3, 16384), (16, 16384), (2, 65536), (16, 65536), (4001, 576)];
    check_shapes(&handle, &mut Noise::new(62), shapes, &recipes());
}

#[test]
fn strided_and_unaligned_rows() {
    let Some(handle) = handle() else { return };
    let shapes = [(5, 144), (32, 272), (160, 576), (16, 16400)];
    check_strides(&handle, &mut Noise::new(63), shapes, &recipes());
}

/// Data of every magnitude that FP32 has: scales, multipliers and errors that overflow, vanish or lose bits.
#[test]
fn every_magnitude() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(75);
    for dtype in [DType::Bf16, DType::F32] {
        for power in (-148..=126).step_by(6) {
            let x = rng.matrix(32, 272, dtype).mapv(|v| round_to(dtype, by_power(v, power)));
            let x = Source::new(&handle, x, dtype);
            recipes().into_iter().for_each(|recipe| x.check(&handle, recipe));
        }
    }
}

/// 4over6 with a second level for each row.
fn four_over_six_of_rows() -> Vec<Recipe> {
    four_over_six().into_iter().filter(|recipe| recipe.scheme() == Scheme::Nvfp4Row).collect()
}

/// Just enough rows for the kernels of many (`RowLaunch` in src/gpu/kernels/nvfp4_row_launch.rs), in one direction, for runs under a sanitizer.
#[test]
fn each_kernel_once_of_many_rows() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(77);
    let (rows, cols) = (16144, 1040);
    for dtype in [DType::Bf16, DType::F16] {
        let x = Source::new(&handle, rows_of_every_kind(&mut rng, rows, cols, dtype), dtype);
        for recipe in four_over_six_of_rows().into_iter().step_by(BOUNDS.len()) {
            let want = reference::quantize(x.x.view(), dtype, recipe).unwrap();
            let mut out = poisoned_matrix(&handle, Scheme::Nvfp4Row, rows, cols);
            handle.quantize_into(&x.matrix(), recipe, QuantizeTo::Plain(&mut out)).unwrap();
            assert_device_bits(&handle, &out, &want, &format!("{rows} x {cols} {dtype} {recipe:?}"));
        }
    }
}

/// The same in every direction, and of the longest rows of these kernels, 7168 and 8192 columns.
#[test]
fn many_rows_of_four_over_six() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(76);
    assert_eq!(four_over_six_of_rows().len(), 8);
    // Just enough of them, and too few; of the long ones those of one bound, more than sixteen for each multiprocessor and than 2^24 elements.
    let shapes = [(16144, 1040, DType::F16, 1), (16128, 1040, DType::Bf16, 2), (1 << 20, 16, DType::Bf16, 2)];
    let rows = (16 * handle.device().sm_count as usize).max((1 << 24) / 7168) + 1;
    let long = [(7168, DType::Bf16), (7184, DType::F16), (8192, DType::Bf16)];
    for (rows, cols, dtype, step) in shapes.into_iter().chain(long.map(|(cols, dtype)| (rows, cols, dtype, 2))) {
        let x = Source::new(&handle, rows_of_every_kind(&mut rng, rows, cols, dtype), dtype);
        four_over_six_of_rows().into_iter().step_by(step).for_each(|recipe| x.check(&handle, recipe));
    }
}

#[test]
fn special_values() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(64);
    let subnormal = f32::from_bits(1);
    let small = [f32::NAN, -0.0, subnormal, -1e-40, 1e-30, -1e-12, 1e-4, 6e-8];
    check_specials(&handle, recipes, |dtype, tiny| {
        vec![
            with_specials(&mut rng, dtype, 1.0, &small),
            with_specials(&mut rng, dtype, tiny, &small[..4]),
            with_specials(&mut rng, dtype, 1.0, &[f32::INFINITY, f32::NAN, f32::NEG_INFINITY, 2.0]),
            with_specials(&mut rng, dtype, 100.0, &[3.3e38, -3e38, 65504.0, f32::NAN]),
            with_specials(&mut rng, dtype, 1.0, &[1e30, -1e20, 1e10, 3e4]),
        ]
    });
    // Without rows there are no blocks; the one second-level scale is that of amax 0.
    let empty = Source::new(&handle, Array2::zeros((0, 64)), DType::F32);
    for recipe in others() {
        let want = reference::quantize(empty.x.view(), DType::F32, recipe).unwrap();
        assert_device_bits(&handle, &handle.quantize(&empty.matrix(), recipe).unwrap(), &want, "no rows");
    }
}

/// Every scale with every value as near as possible to where E2M1 rounding turns: the device's conversion.
#[test]
fn rounding_boundaries_at_every_scale() {
    let Some(handle) = handle() else { return };
    for top in [6.0, 4.0] {
        let blocks: Vec<_> = (1..0x7F)
            .map(|byte| {
                let s = decode(Fp8Format::E4M3, byte);
                let edges = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].into_iter().flat_map(|b| around(b * s));
                (top * s, edges.filter(|v| v.abs() <= top * s).collect())
            })
            .collect();
        let x = Source::new(&handle, in_blocks(&blocks, 16, 5), DType::F32);
        // 2688 makes encode 1 with the bound 448, so that a block whose largest magnitude is 6 s has the scale s.
        for given in [GivenScale::Amax(2688.0), GivenScale::Encode(1.0), GivenScale::Amax(1536.0)] {
            whole().for_each(|recipe| x.check_given(&handle, recipe, given));
        }
    }
}

/// Blocks whose largest magnitude lies as near as possible to where the E4M3 rounding of their scale turns, up to scales
/// that saturate and down to those that vanish.
#[test]
fn scale_boundaries() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(65);
    let values: Vec<f32> = (0..0x7F).map(|byte| decode(Fp8Format::E4M3, byte)).collect();
    let turns = values.iter().copied().chain(values.windows(2).map(|v| (v[0] + v[1]) / 2.0)).chain([464.0, 480.0]);
    let turns: Vec<f32> = turns.collect();
    for (given, encode) in [
        (GivenScale::Amax(2688.0), 1.0),
        (GivenScale::Amax(3.7), 2688.0 / 3.7),
        (GivenScale::Amax(5.0), 1536.0 / 5.0),
        (GivenScale::Encode(0.0371), 0.0371),
        (GivenScale::Decode(0.01), 100.0),
    ] {
        let mut blocks = Vec::new();
        for turn in &turns {
            for target in [6.0, 4.0] {
                for amax in around(turn * target / encode).step_by(2) {
                    let near = rng.uniform();
                    blocks.push((amax, (0..15).map(|i| amax * (near * i as f32 / 14.0).min(1.0)).collect()));
                }
            }
        }
        let x = Source::new(&handle, in_blocks(&blocks, 16, 10), DType::F32);
        whole().for_each(|recipe| x.check_given(&handle, recipe, given));
    }
}

/// Every BF16 and F16 number: with a fixed scale, beside its neighbours, and as the largest magnitude of a block.
#[test]
fn every_half_precision_number() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(66);
    for dtype in [DType::Bf16, DType::F16] {
        let all = every_half(dtype);
        // With encode 448 the scale of every block that holds 6 is 448, and the multiplier 1.
        let fixed = Source::new(&handle, in_blocks(&[(6.0, all.clone())], 16, 10), dtype);
        let sorted = Source::new(&handle, Array2::from_shape_vec((64, 1024), all.clone()).unwrap(), dtype);
        let tops = all.iter().flat_map(|top| {
            let near = rng.uniform();
            (0..16).map(move |i| round_to(dtype, if i == 3 { *top } else { top * near * (i as f32 / 16.0) }))
        });
        let tops = Source::new(&handle, Array2::from_shape_vec((1024, 1024), tops.collect()).unwrap(), dtype);
        for recipe in whole() {
            fixed.check_given(&handle, recipe, GivenScale::Encode(448.0));
            sorted.check_given(&handle, recipe, GivenScale::Amax(2688.0));
            tops.check_given(&handle, recipe, GivenScale::Amax(300.0));
        }
        for recipe in recipes() {
            sorted.check(&handle, recipe);
        }
    }
}

/// Blocks whose two candidates err nearly or exactly alike, where strict and fast errors decide differently.
#[test]
fn near_ties_of_four_over_six() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(67);
    for (amax, power) in
        [(5.0f32, 0), (3.4667969, 0), (2.375, 0), (5.0, 40), (5.0, 63), (5.0, 90), (5.0, -40), (5.0, -60), (5.0, -75)]
    {
        // Far from 1, squares of errors overflow or vanish in the units of the data, and not in those of the codes.
        let (amax, rows) = (amax * 2f32.powi(power), if power == 0 { 512 } else { 128 });
        let mut x = Array2::<f32>::zeros((rows, 1024));
        for (i, block) in x.as_slice_mut().unwrap().chunks_mut(16).enumerate() {
            let mut steps = |n: u64| (rng.bits() % n + 1) as f32 / n as f32 * amax * 0.5;
            match i % 4 {
                // A few coarse numbers: their errors are small multiples of a common unit.
                0 | 1 => block[..3].fill_with(|| steps(64)),
                2 => block[..3].fill_with(|| steps(256)),
                // Two equal ones against the largest.
                _ => {
                    block[0] = 2.0 * steps(128);
                    block[1..3].fill(steps(128));
                }
            }
            block[..3].iter_mut().for_each(|v| *v = round_to(DType::Bf16, *v));
        }
        for dtype in [DType::Bf16, DType::F32] {
            let x = Source::new(&handle, x.clone(), dtype);
            for recipe in four_over_six() {
                match recipe.scheme() {
                    Scheme::Nvfp4 => x.check_given(&handle, recipe, GivenScale::Amax(amax)),
                    _ => x.check(&handle, recipe),
                }
            }
        }
        // What makes the comparison worth something: strict and fast do disagree here.
        let scales = |metric, math| {
            let block_scale = BlockScaleRule::FourOverSix { metric, math };
            let recipe = nvfp4(Scheme::Nvfp4, Nvfp4Options { block_scale, ..Nvfp4Options::default() });
            let given = GivenScale::Amax(amax);
            reference::quantize_with_scale(x.view(), DType::F32, recipe, given).unwrap().logical_block_scales()
        };
        for metric in METRICS {
            let [strict, fast] = MATHS.map(|math| scales(metric, math));
            let differ = strict.iter().zip(&fast).filter(|(a, b)| a != b).count();
            println!("amax {amax} {metric:?}: strict and fast differ in {differ} of {} blocks", strict.len());
            assert!(amax != 5.0 || differ >= 50, "{metric:?}: {differ} blocks tell strict from fast");
        }
    }
}

fn bits(v: &Value) -> f32 {
    f32::from_bits(u32::from_str_radix(v.as_str().unwrap(), 16).unwrap())
}

fn hex(v: &Value) -> Vec<u8> {
    let s = v.as_str().unwrap();
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).unwrap()).collect()
}

fn runs(v: &Value) -> Vec<f32> {
    let run = |run: &Value| vec![bits(&run[1]); run[0].as_u64().unwrap() as usize];
    v["f32_rle"].as_array().unwrap().iter().flat_map(run).collect()
}

fn goldens() -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("data/numerics.json")).unwrap();
    all["5_nvfp4"].as_array().unwrap().clone()
}

/// The published blocks, against the generator's bytes and not against our reference.
#[test]
fn golden_blocks() {
    let Some(handle) = handle() else { return };
    let mut checked = 0;
    for case in goldens() {
        let (id, input, expect) = (case["id"].as_str().unwrap(), &case["in"], &case["expect"]);
        if input["block"].is_null() || expect["packed"].is_null() {
            continue;
        }
        let mut options = Nvfp4Options::default();
        if id.starts_with("4o6_") {
            let metric = input["err"].as_str().unwrap().parse().unwrap();
            let math = if input["fast"].as_bool().unwrap() { ErrorMath::Fast } else { ErrorMath::Strict };
            options.block_scale = BlockScaleRule::FourOverSix { metric, math };
            options.bound = if input["e4m3_max"] == 256 { E4m3Bound::Max256 } else { E4m3Bound::Max448 };
        }
        if id.starts_with("torchao") {
            options.rule = Nvfp4Rule::TorchAo;
        }
        let recipe = nvfp4(Scheme::Nvfp4, options);
        let x = Array2::from_shape_vec((1, 16), runs(&input["block"])).unwrap();
        let x = Source::new(&handle, x, DType::F32);
        let given = GivenScale::Amax(bits(&input["global_amax"]));
        let number = GivenNumber::new(&handle, given);
        let mut out = poisoned_matrix(&handle, Scheme::Nvfp4, 1, 16);
        handle.quantize_nvfp4_into(&x.matrix(), recipe, &number.borrow(), QuantizeTo::Plain(&mut out)).unwrap();
        let got = out.to_host(&handle).unwrap();
        assert_eq!(got.logical_codes(), hex(&expect["packed"]), "{id}");
        assert_eq!(got.logical_block_scales(), hex(&expect["scale_e4m3"]), "{id}");
        x.check_given(&handle, recipe, given);
        checked += 1;
    }
    assert!(checked >= 20, "{checked} golden blocks");
}

/// Tiles whose row pass and transposed pass choose differently: the golden one, and its elements in other orders.
#[test]
fn tiles_where_both_passes_disagree() {
    let Some(handle) = handle() else { return };
    let case = goldens().into_iter().find(|c| c["id"] == "fo6_2d_row_col_disagree").unwrap();
    let tile = runs(&case["in"]["tile_row_major"]);
    let given = GivenScale::Amax(bits(&case["in"]["global_amax"]));
    let block_scale = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Strict };
    let options = Nvfp4Options { block_scale, shape: BlockShape::Tile16x16, ..Nvfp4Options::default() };
    let recipe = nvfp4(Scheme::Nvfp4, options);

    let x = Source::new(&handle, Array2::from_shape_vec((16, 16), tile.clone()).unwrap(), DType::F32);
    let number = GivenNumber::new(&handle, given);
    let [mut plain, mut turned] = [(); 2].map(|()| poisoned_matrix(&handle, Scheme::Nvfp4, 16, 16));
    let to = QuantizeTo::Both(&mut plain, &mut turned);
    handle.quantize_nvfp4_into(&x.matrix(), recipe, &number.borrow(), to).unwrap();
    for (got, pass, rows) in [(&plain, "rowwise", "packed_rows"), (&turned, "columnwise", "packed_rows_of_transpose")] {
        let rows = case["expect"][pass][rows].as_array().unwrap();
        let codes: Vec<u8> = rows.iter().flat_map(hex).collect();
        assert_eq!(got.to_host(&handle).unwrap().logical_codes(), codes, "{pass}");
    }

    let mut rng = Noise::new(68);
    let mut x = Array2::zeros((512, 256));
    for i in 0..512 {
        let mut tile = tile.clone();
        (1..256).rev().for_each(|at| tile.swap(at, (rng.bits() % (at as u64 + 1)) as usize));
        let (row, col) = (i / 16 * 16, i % 16 * 16);
        tile.iter().enumerate().for_each(|(at, v)| x[[row + at / 16, col + at % 16]] = *v);
    }
    let x = Source::new(&handle, x, DType::F32);
    for recipe in four_over_six().into_iter().filter(|r| r.scheme() == Scheme::Nvfp4) {
        x.check_given(&handle, recipe, given);
    }
    let plain = reference::quantize_with_scale(x.x.view(), DType::F32, recipe, given).unwrap();
    let turned = reference::quantize_transposed_with_scale(x.x.view(), DType::F32, recipe, given).unwrap();
    let differ = |i: usize| plain.block_scale_at(i / 16 * 16, i % 16) != turned.block_scale_at(i % 16 * 16, i / 16);
    let differ = (0..512).filter(|i| differ(*i)).count();
    println!("row pass and transposed pass differ in {differ} of 512 tiles");
    assert!(differ >= 50, "{differ} tiles tell the passes apart");
}

/// All three forms, from values that saturate every block to values that let every scale vanish.
#[test]
fn given_second_levels() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(69);
    for dtype in INPUTS {
        for (rows, cols) in [(1, 16), (17, 144), (144, 1040)] {
            let x = Source::new(&handle, spread(&mut rng, rows, cols, dtype), dtype);
            for value in [1.0, 0.0371, 40.0, 2688.0, 1e30, 1e-30, 1e-39, 0.0, f32::INFINITY] {
                for given in [GivenScale::Amax(value), GivenScale::Encode(value), GivenScale::Decode(value)] {
                    whole().for_each(|recipe| x.check_given(&handle, recipe, given));
                }
            }
            whole().for_each(|recipe| x.check_given(&handle, recipe, GivenScale::Encode(f32::NAN)));
            let zeros = Source::new(&handle, Array2::zeros((rows, cols)), dtype);
            whole().for_each(|recipe| zeros.check(&handle, recipe));
        }
    }
}

/// The failure of packed maxima: one largest element, in every place of a block, a tile, a row and a matrix in turn.
#[test]
fn the_amax_is_found_in_every_place() {
    let Some(handle) = handle() else { return };
    // 448 and 450 are neighbours in BF16, and give other second levels; 4 and 6 give other block scales.
    let mut rows = Array2::from_elem((7168, 7168), 448.0f32);
    (0..7168).for_each(|i| rows[[i, i]] = 450.0);
    let rows = Source::new(&handle, rows, DType::Bf16);
    let recipe = Recipe::new(Scheme::Nvfp4Row);
    let mut out = poisoned_matrix(&handle, Scheme::Nvfp4Row, 7168, 7168);
    handle.quantize_into(&rows.matrix(), recipe, QuantizeTo::Plain(&mut out)).unwrap();
    let want = reference::quantize(rows.x.view(), DType::Bf16, recipe).unwrap();
    assert_device_bits(&handle, &out, &want, "450 along the diagonal");
    for dtype in INPUTS {
        let mut rows = Array2::from_elem((512, 512), 448.0f32);
        (0..512).for_each(|i| rows[[i, i]] = 450.0);
        let rows = Source::new(&handle, rows, dtype);
        // Block i has its largest element at place i; tile i at place i.
        let mut blocks = Array2::from_elem((16, 4096), 4.0f32);
        (0..256).for_each(|i| blocks[[i / 16, 16 * i + i % 16]] = -6.0);
        let blocks = Source::new(&handle, blocks, dtype);
        for recipe in recipes() {
            rows.check(&handle, recipe);
            blocks.check(&handle, recipe);
        }
        for at in 0..128 {
            let mut x = Array2::from_elem((128, 144), 448.0f32);
            x[[at, at * 37 % 144]] = -450.0;
            let x = Source::new(&handle, x, dtype);
            others().into_iter().for_each(|recipe| x.check(&handle, recipe));
        }
    }
}

#[test]
fn rows_times_powers_of_two_have_the_same_codes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(70);
    for dtype in [DType::Bf16, DType::F32] {
        let x = rng.matrix(65, 1040, dtype);
        let scaled = Array2::from_shape_fn((65, 1040), |(i, j)| x[[i, j]] * 2f32.powi(i as i32 % 41 - 20));
        let (x, scaled) = (Source::new(&handle, x, dtype), Source::new(&handle, scaled, dtype));
        for recipe in recipes().into_iter().filter(|r| r.scheme() == Scheme::Nvfp4Row) {
            let (x, scaled) = (x.quantized(&handle, recipe), scaled.quantized(&handle, recipe));
            assert_eq!(x.codes(), scaled.codes(), "{recipe:?}");
            assert_eq!(x.block_scales(), scaled.block_scales(), "{recipe:?}");
        }
    }
}

#[test]
fn stochastic_bytes_follow_seed_and_offset_only() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(71);
    for (rows, cols) in [(1, 16), (48, 144), (272, 1040), (16, 16384)] {
        let x = spread(&mut rng, rows, cols, DType::Bf16);
        let strided = Source::strided(&handle, x.clone(), DType::Bf16, cols + 3, 1);
        let x = Source::new(&handle, x, DType::Bf16);
        let mut seen: Vec<HostQuantMatrix> = Vec::new();
        for basis in [Basis::Plain, Basis::Hadamard16] {
            for (seed, offset) in [(0, 0), (1, 0), (0, 1), (1 << 32, 0), (0, 1 << 32), (u64::MAX, u64::MAX)] {
                let options = Nvfp4Options { basis, rounding: stochastic(seed, offset), ..Nvfp4Options::default() };
                let recipe = nvfp4(Scheme::Nvfp4, options);
                x.check(&handle, recipe);
                x.check_given(&handle, recipe, GivenScale::Amax(9.0));
                strided.check(&handle, recipe);
                let got = x.quantized(&handle, recipe);
                assert!(got == x.quantized(&handle, recipe), "the same call twice");
                assert!(rows * cols < 1000 || seen.iter().all(|other| *other != got), "{seed} {offset}: not new");
                seen.push(got);
            }
        }
    }
}

#[test]
fn dequantize_every_code_and_scale() {
    let Some(handle) = handle() else { return };
    for scheme in [Scheme::Nvfp4, Scheme::Nvfp4Row] {
        for second in [1.0, 0.0371, 1e-40, 3e38, f32::INFINITY, f32::NAN, 0.0] {
            // Row i has block scale i everywhere, and every pair of codes.
            let codes = (0..256 * 256).map(|i| i as u8).collect();
            let block_scales: Vec<u8> = (0..256 * 32).map(|i| (i / 32) as u8).collect();
            let [r, c] = scheme.scale_grid(256, 512);
            let scales: Vec<f32> = (0..r * c).map(|i| second * (1.0 + i as f32 / 64.0)).collect();
            let q = HostQuantMatrix::from_block_logical(scheme, 256, 512, codes, &scales, &block_scales).unwrap();
            check_dequantize(&handle, &q);
        }
        let mut rng = Noise::new(72);
        for (rows, cols) in [(1, 16), (3, 48), (130, 144), (257, 1040), (5, 16400)] {
            let x = spread(&mut rng, rows, cols, DType::F32);
            check_dequantize(&handle, &reference::quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap());
        }
    }
}

#[test]
fn the_basis_is_that_of_the_last_cast() {
    let Some(handle) = handle() else { return };
    let x = Source::new(&handle, Noise::new(73).matrix(32, 64, DType::Bf16), DType::Bf16);
    let hadamard = nvfp4(Scheme::Nvfp4, Nvfp4Options { basis: Basis::Hadamard16, ..Nvfp4Options::default() });
    let mut out = handle.quantize(&x.matrix(), hadamard).unwrap();
    assert_eq!(out.basis(), Basis::Hadamard16);
    handle.quantize_into(&x.matrix(), Recipe::new(Scheme::Nvfp4), QuantizeTo::Plain(&mut out)).unwrap();
    assert_eq!(out.basis(), Basis::Plain);
    let (plain, turned) = handle.quantize_both(&x.matrix(), hadamard).unwrap();
    assert_eq!([plain.basis(), turned.basis()], [Basis::Hadamard16; 2]);
}

/// A cast that is refused, whatever is at fault, leaves the matrix as it was, and says nothing else of it.
#[test]
fn the_basis_stays_when_a_cast_is_refused() {
    let Some(handle) = handle() else { return };
    let (rows, cols) = (32, 64);
    let bytes = bytes_of(DType::F32, spread(&mut Noise::new(75), rows, cols, DType::F32).iter());
    let (owned, slice) = (handle.upload(&bytes).unwrap(), upload(&handle, &bytes));
    let x = MatRef::new(&owned, DType::F32, rows, cols).unwrap();
    let borrowed = MatRef::new(&slice, DType::F32, rows, cols).unwrap();
    let number = handle.stream().clone_htod(&[3f32]).unwrap();
    let given = GivenScale::Encode(DeviceBytes::from(&number));
    let hadamard = nvfp4(Scheme::Nvfp4, Nvfp4Options { basis: Basis::Hadamard16, ..Nvfp4Options::default() });
    let plain = Recipe::new(Scheme::Nvfp4);
    for (recipe, other) in [(plain, hadamard), (hadamard, plain)] {
        // Every kernel is loaded before.
        let mut out = handle.quantize(&x, other).unwrap();
        handle.quantize_nvfp4_into(&x, recipe, &given, QuantizeTo::Plain(&mut out)).unwrap();
        let want = out.to_host(&handle).unwrap();
        assert_eq!(want.basis(), recipe.basis(), "the cast that is taken says its basis");
        let refuse = |out: &mut QuantMatrix, words: &[&str], cast: &dyn Fn(QuantizeTo<'_>) -> Result<(), Error>| {
            gemm::refused(cast(QuantizeTo::Plain(out)), words);
            assert_same_bits(&out.to_host(&handle).unwrap(), &want, words[0]);
        };
        // A capture whose graph owns what it uses takes no slice of cudarc's, and no graph changes a basis.
        let slices = ["a cudarc slice", "capture_borrowing"];
        let graphs = ["quantizing to the basis", "assume_basis"];
        refuse(&mut out, &slices, &|to| handle.capture(|| handle.quantize_into(&borrowed, other, to)).map(drop));
        refuse(&mut out, &graphs, &|to| handle.capture(|| handle.quantize_into(&x, other, to)).map(drop));
        refuse(&mut out, &slices, &|to| {
            handle.capture(|| handle.quantize_nvfp4_into(&x, recipe, &given, to)).map(drop)
        });
        // Nor does a call, of a matrix that a graph writes.
        let graph = capture_owned(&handle, || handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut out))).unwrap();
        refuse(&mut out, &graphs, &|to| handle.quantize_into(&x, other, to));
        handle.launch(&graph).unwrap();
        let fresh = handle.quantize(&x, recipe).unwrap().to_host(&handle).unwrap();
        assert_same_bits(&out.to_host(&handle).unwrap(), &fresh, "the graph");
    }
}

#[test]
fn captured_casts_follow_data_and_second_level() {
    let Some(handle) = handle() else { return };
    check_captured(&handle, &mut Noise::new(74), recipes());
}

#[test]
fn refusals_name_operand_numbers_and_rule() {
    let Some(handle) = handle() else { return };
    let buffer = poisoned(&handle, 65536);
    let number = handle.stream().clone_htod(&[5.0f32]).unwrap();
    let amax = GivenScale::Amax(DeviceBytes::from(&number));
    let plain = Recipe::new(Scheme::Nvfp4);
    let x = |dtype, rows, cols| MatRef::new(&buffer, dtype, rows, cols).unwrap();
    gemm::refused(handle.quantize(&x(DType::Bf16, 4, 24), plain).map(|_| ()), &["24", "multiple of 16"]);
    gemm::refused(handle.quantize(&x(DType::E4M3, 4, 32), plain).map(|_| ()), &["e4m3"]);
    let mut wrong = QuantMatrix::zeros(&handle, Scheme::Nvfp4Row, 4, 32).unwrap();
    gemm::refused(
        handle.quantize_into(&x(DType::Bf16, 4, 32), plain, QuantizeTo::Plain(&mut wrong)),
        &["nvfp4-row", "nvfp4"],
    );
    let mut out = QuantMatrix::zeros(&handle, Scheme::Nvfp4, 4, 32).unwrap();
    gemm::refused(
        handle.quantize_into(&x(DType::Bf16, 5, 32), plain, QuantizeTo::Plain(&mut out)),
        &["4 x 32", "5 x 32"],
    );
    // A second level is given for the whole matrix, and is four bytes long.
    let row = Recipe::new(Scheme::Nvfp4Row);
    let to = QuantizeTo::Plain(&mut wrong);
    gemm::refused(handle.quantize_nvfp4_into(&x(DType::Bf16, 4, 32), row, &amax, to), &["nvfp4-row"]);
    let short = GivenScale::Decode(DeviceBytes::from(buffer.slice(..2)));
    gemm::refused(
        handle.quantize_nvfp4_into(&x(DType::Bf16, 4, 32), plain, &short, QuantizeTo::Plain(&mut out)),
        &["4"],
    );
    let uneven = four_over_six().into_iter().find(|r| is_tiled_four_over_six(*r)).unwrap();
    gemm::refused(handle.quantize(&x(DType::Bf16, 4, 32), uneven).map(|_| ()), &["4", "16"]);
}
