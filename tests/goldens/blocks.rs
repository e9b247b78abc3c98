//! The cases of NVFP4, MXFP8, their conversions and the tiled scale layout.

use scaled_gemm::codec::{
    decode, decode_e2m1, decode_e8m0, e8m0_reciprocal, encode_e2m1, encode_e2m1_stochastic, round_to,
};
use scaled_gemm::layout::ScaleLayout;
use scaled_gemm::reference::nvfp4::{four_over_six_block, four_over_six_tile, tree_sum};
use scaled_gemm::reference::{
    GemmInputs, amax, dequantize, hadamard16, philox4x32_10, quantize, quantize_transposed_with_scale,
    quantize_with_scale, scaled_gemm, transformer_engine,
};
use scaled_gemm::{
    BlockScaleRule, BlockShape, DType, E4m3Bound, ErrorMath, ErrorMetric, Fp8Format, GivenScale, HostQuantMatrix,
    MxScaleRule, Nvfp4Options, Nvfp4Recipe, Nvfp4Rule, Recipe, Scheme, SecondLevel,
};
use serde_json::Value;

use super::{array, bits, bytes, check_points, floats, hex, ints, row, same};

const PLAIN: Nvfp4Recipe = Nvfp4Recipe::TENSOR;
const MX: Recipe = Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3));

/// Two roundings are at most this far apart, relative to either, per operation in which they differ.
const ULP: f32 = 1.0 / (1 << 23) as f32;

/// True if the case was checked.
pub fn check(id: &str, input: &Value, expect: &Value) -> bool {
    match id {
        "e2m1_rne" => {
            let codes: String = floats(&input["x"]).iter().map(|x| format!("{:x}", encode_e2m1(*x))).collect();
            assert_eq!(codes, expect["codes"]);
        }
        "e2m1_tie_down_variant" => {
            for (x, want) in floats(&input["x"]).into_iter().zip(nibbles(&expect["codes"])) {
                assert_eq!(tie_down(x), want, "{x}");
            }
        }
        "e8m0_reciprocal" => {
            for (byte, want) in hex(&input["bytes"]).into_iter().zip(expect["f32"].as_array().unwrap()) {
                same(e8m0_reciprocal(byte), want);
                assert!(byte == 255 || decode_e8m0(byte) * e8m0_reciprocal(byte) == 1.0);
            }
        }
        "fp4_tie_down" => {
            let x = array(&input["x"]);
            let inv = e8m0_reciprocal(hex(&expect["ue8m0"])[0]);
            assert_eq!(packed(&x, inv), bytes(&expect["rne_packed"]));
            let codes: Vec<u8> = x.iter().map(|x| tie_down(x * inv)).collect();
            assert_eq!(pack(&codes), bytes(&expect["packed"]));
        }
        "mxfp8_amax448" | "mxfp8_amax1" | "mxfp8_zero" | "mxfp8_inf" | "mxfp8_tiny" => {
            check_mx(&array(&input["x"]), expect);
        }
        "mxfp8_dact_round_to_bf16" => {
            // A fused activation rounds the product to the input type before anything else.
            let product =
                array(&input["g"]).into_iter().zip(array(&input["dact"])).map(|(g, d)| round_to(DType::Bf16, g * d));
            let product: Vec<f32> = product.collect();
            product.iter().zip(expect["rounded"].as_array().unwrap()).for_each(|(got, want)| same(*got, want));
            check_mx(&product, expect);
        }
        "base_Senc1"
        | "base_amax3"
        | "base_zero_block"
        | "base_all_zero_tensor"
        | "base_scale_underflow"
        | "base_inf_amax" => check_base(&array(&input["block"]), bits(&input["global_amax"]), expect),
        "row_scaled_2x16" => {
            let rows: Vec<f32> = input["rows"].as_array().unwrap().iter().flat_map(array).collect();
            let x = ndarray::ArrayView2::from_shape((2, 16), &rows).unwrap();
            let q = quantize(x, DType::F32, Recipe::new(Scheme::Nvfp4Row)).unwrap();
            assert_eq!(q.logical_block_scales(), hex(&expect["scale_e4m3"]));
            for i in 0..2 {
                let largest = bits(&expect["row_amax"][i]);
                assert_eq!(amax(&rows[i * 16..][..16]), largest);
                assert_eq!(q.scale_at(i, 0), largest / 2688.0);
                assert_eq!(q.row_codes(i), hex(&expect["packed"][i]));
            }
        }
        "two_d_16x16" => {
            let mut x = vec![0.0f32; 256];
            scatter(&input["nonzero"], 16, &mut x);
            let scale = hex(&expect["scale_e4m3_each_row"])[0];
            for (q, key) in
                tiles(&x, PLAIN, bits(&input["global_amax"])).iter().zip(["rows_packed", "transposed_rows_packed"])
            {
                assert_eq!(q.logical_block_scales(), [scale; 16]);
                same_rows(q, &expect[key]);
            }
        }
        "base_vs_4over6_scale_formula" => {
            let rows = input["rows"].as_array().unwrap();
            for (at, row) in rows.iter().enumerate() {
                let level = SecondLevel::new(GivenScale::Amax(bits(&row[0])), E4m3Bound::Max448);
                assert_eq!(level.plain_scale(bits(&row[1])), hex(&expect["base_byte"])[at]);
                assert_eq!(level.four_over_six_scales(bits(&row[1]))[1], hex(&expect["fo6_byte"])[at]);
            }
        }
        "fo6_2d_tree_sum" => {
            let errors: [f32; 16] = floats(&input["row_errors"]).try_into().unwrap();
            same(tree_sum(errors), &expect["tree"]);
            same(errors.iter().fold(0.0, |sum, e| sum + e), &expect["sequential_wrong"]);
        }
        "fo6_2d_row_col_disagree" => {
            let (x, amax) = (array(&input["tile_row_major"]), bits(&input["global_amax"]));
            let transposed: Vec<f32> = (0..256).map(|at| x[at % 16 * 16 + at / 16]).collect();
            let [q, t] = tiles(&x, four_over_six(E4m3Bound::Max448, ErrorMetric::Mae, ErrorMath::Strict), amax);
            check_tile(&x, amax, &expect["rowwise"]);
            same_rows(&q, &expect["rowwise"]["packed_rows"]);
            assert_eq!(q.logical_block_scales(), [hex(&expect["rowwise"]["s4"])[0]; 16]);
            check_tile(&transposed, amax, &expect["columnwise"]);
            same_rows(&t, &expect["columnwise"]["packed_rows_of_transpose"]);
            assert_eq!(t.logical_block_scales(), [hex(&expect["rowwise"]["s6"])[0]; 16]);
        }
        "fo6_2d_map4" | "fo6_2d_map6" => {
            let (amax, others) = (bits(&input["global_amax"]), if id.ends_with('4') { 4.5 } else { 4.0 });
            let x: Vec<f32> = (0..256)
                .map(|at| {
                    if at == 0 {
                        6.0
                    } else if at % 17 == 0 {
                        others
                    } else {
                        0.0
                    }
                })
                .collect();
            check_tile(&x, amax, expect);
            for q in tiles(&x, four_over_six(E4m3Bound::Max448, ErrorMetric::Mae, ErrorMath::Strict), amax) {
                assert_eq!(q.row_codes(0), hex(&expect["row0"]));
                assert_eq!(q.row_codes(1), hex(&expect["row1"]));
            }
        }
        "philox4x32_10" => {
            for (at, words) in expect["words"].as_array().unwrap().iter().enumerate() {
                let [seed, subsequence, offset] = counters(&input["seed_sub_off"][at]);
                let got = philox4x32_10(seed, offset, subsequence).map(|word| Value::from(format!("{word:08x}")));
                assert_eq!(words.as_array().unwrap(), &got);
            }
        }
        "sr_8bit" => {
            for row in expect["rows"].as_array().unwrap() {
                let got = encode_e2m1_stochastic(bits(&row["x"]), hex(&row["u8"])[0]);
                assert_eq!(format!("{got:x}"), row["code"], "{row}");
            }
        }
        "sr_block_S1" => {
            let [seed, subsequence, offset] = counters(&input["seed_sub_off"]);
            let words = philox4x32_10(seed, offset, subsequence);
            let random = |e: usize| words[e / 4].to_le_bytes()[e % 4];
            let codes = array(&input["x"]).into_iter().enumerate().map(|(e, x)| encode_e2m1_stochastic(x, random(e)));
            assert_eq!(codes.collect::<Vec<u8>>(), nibbles(&expect["codes"]));
        }
        "torchao_two_level" | "torchao_min_scale" | "torchao_zero_block" => {
            let given = GivenScale::Amax(bits(&input["global_amax"]));
            // Amax values for which both ways to divide agree.
            for rule in [Nvfp4Rule::TorchAo, Nvfp4Rule::TorchAoCpu] {
                let recipe = Nvfp4Recipe::tensor(Nvfp4Options { rule, ..Nvfp4Options::PLAIN }).unwrap();
                let q = quantize_with_scale(row(&array(&input["block"])), DType::F32, recipe, given).unwrap();
                same(q.scale_at(0, 0), &expect["per_tensor_scale"]);
                assert_eq!(q.logical_block_scales(), hex(&expect["scale_e4m3"]));
                assert_eq!(q.logical_codes(), hex(&expect["packed"]));
            }
        }
        "gemm_alpha" => check_alpha(expect),
        "row_scaled_gemm_2x1x16" => check_row_scaled_gemm(input, expect),
        "vec16_vec32_tile128x4" => {
            let cols = input["C"].as_u64().unwrap() as usize;
            for (point, offset) in input["pts"].as_array().unwrap().iter().zip(ints(&expect["off"])) {
                let point = ints(point);
                assert_eq!(ScaleLayout::Tiled128x4.index(256, cols, point[0], point[1]), offset);
            }
        }
        "vec16_ragged_C5_M130" => {
            let mut expect = expect.clone();
            expect["elements"] = expect["bytes_total"].take();
            check_points(ScaleLayout::Tiled128x4, 130, 5, input, &expect);
            let device = ScaleLayout::Tiled128x4.to_device(130, 5, &[1u8; 650]);
            assert_eq!(device.iter().filter(|b| **b == 1).count(), 650, "two scales share a place");
            assert_eq!(device.iter().filter(|b| **b == 0).count(), 2048 - 650);
        }
        "nvfp4_mx_shapes" => {
            let (m, k) = (input["M"].as_u64().unwrap() as usize, input["K"].as_u64().unwrap() as usize);
            for (key, scheme, rows, cols) in [
                ("nvfp4_row", Scheme::Nvfp4, m, k),
                ("nvfp4_col", Scheme::Nvfp4, k, m),
                ("mx_row", MX.scheme(), m, k),
                ("mx_col", MX.scheme(), k, m),
            ] {
                assert_eq!(scheme.block_scale_len(rows, cols), ints(&expect[key]).iter().product::<usize>(), "{key}");
            }
        }
        _ if id.starts_with("rht_") => {
            let x: [f32; 16] = array(&input["x"]).try_into().unwrap();
            hadamard16(&x).iter().zip(expect["y"].as_array().unwrap()).for_each(|(got, want)| same(*got, want));
        }
        _ if id.starts_with("4o6_") => check_four_over_six(input, expect),
        _ => return false,
    }
    true
}

/// The byte of every MX rule for one amax.
pub fn check_mx_modes(row: &Value) {
    let names = ["te_rp", "floor", "ceil", "even", "rceil"];
    for (rule, name) in MxScaleRule::ALL.into_iter().zip(names) {
        assert_eq!(rule.byte(bits(&row["amax"]), Fp8Format::E4M3), hex(&row[name])[0], "{rule:?} {row}");
    }
}

/// DeepGEMM's helper from our codec: a tie goes down, a zero has no sign.
fn tie_down(x: f32) -> u8 {
    let code = encode_e2m1(x);
    let magnitude = if matches!(x.abs(), 0.75 | 1.75 | 3.5) { (code & 7) - 1 } else { code & 7 };
    if magnitude == 0 { 0 } else { magnitude | code & 8 }
}

fn nibbles(v: &Value) -> Vec<u8> {
    v.as_str().unwrap().chars().map(|c| c.to_digit(16).unwrap() as u8).collect()
}

fn counters(v: &Value) -> [u64; 3] {
    [0, 1, 2].map(|at| v[at].as_u64().unwrap())
}

/// Two codes a byte, and back through a host matrix, whose nibble order this checks too.
fn pack(codes: &[u8]) -> Vec<u8> {
    let bytes: Vec<u8> = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
    let blocks = vec![0x38; codes.len() / 16];
    let q = HostQuantMatrix::from_block_logical(Scheme::Nvfp4, 1, codes.len(), bytes.clone(), &[1.0], &blocks).unwrap();
    let mut values = vec![0.0f32; codes.len()];
    q.decode_row(0, &mut values);
    assert!(values.iter().zip(codes).all(|(value, code)| value.to_bits() == decode_e2m1(*code).to_bits()));
    bytes
}

fn packed(x: &[f32], inv: f32) -> Vec<u8> {
    pack(&x.iter().map(|x| encode_e2m1(x * inv)).collect::<Vec<_>>())
}

/// Puts `{"i,j": value}` into a matrix of `cols` columns.
fn scatter(nonzero: &Value, cols: usize, x: &mut [f32]) {
    for (place, value) in nonzero.as_object().unwrap() {
        let (i, j) = place.split_once(',').unwrap();
        x[i.parse::<usize>().unwrap() * cols + j.parse::<usize>().unwrap()] = value.as_f64().unwrap() as f32;
    }
}

fn check_mx(x: &[f32], expect: &Value) {
    let q = quantize(row(x), DType::F32, MX).unwrap();
    assert_eq!(q.logical_block_scales(), hex(&expect["e8m0"]));
    assert_eq!(q.logical_codes(), bytes(&expect["data"]));
}

#[track_caller]
fn near(got: f32, want: f32, operations: f32) {
    let close = (got - want).abs() <= operations * ULP * want.abs();
    assert!(close || got == want || (got.is_nan() && want.is_nan()), "{got:e} is far from {want:e}");
}

fn check_base(x: &[f32], global: f32, expect: &Value) {
    let given = GivenScale::Amax(global);
    same(SecondLevel::new(given, E4m3Bound::Max448).encode, &expect["S_enc"]);
    let q = quantize_with_scale(row(x), DType::F32, PLAIN, given).unwrap();
    assert_eq!(q.logical_block_scales(), hex(&expect["scale_e4m3"]));
    assert_eq!(q.logical_codes(), hex(&expect["packed"]));
    let ours = dequantize(&q, DType::F32);
    for (at, want) in expect["dequant"].as_array().unwrap().iter().enumerate() {
        let code = q.row_codes(0)[at / 2] >> (at % 2 * 4);
        let te = transformer_engine::dequantize(code, q.block_scale_at(0, 0), global, E4m3Bound::Max448);
        same(te, want);
        // Ours rounds three times (amax / 2688, times s, times code), TransformerEngine four times.
        near(ours[[0, at]], te, 4.0);
        assert!(te.is_nan() || ours[[0, at]].is_sign_negative() == te.is_sign_negative());
    }
}

fn four_over_six(bound: E4m3Bound, metric: ErrorMetric, math: ErrorMath) -> Nvfp4Recipe {
    let block_scale = BlockScaleRule::FourOverSix { metric, math };
    Nvfp4Recipe::tensor(Nvfp4Options { block_scale, bound, ..Nvfp4Options::default() }).unwrap()
}

fn check_four_over_six(input: &Value, expect: &Value) {
    let x: [f32; 16] = array(&input["block"]).try_into().unwrap();
    let given = GivenScale::Amax(bits(&input["global_amax"]));
    let bound = if input["e4m3_max"] == 256 { E4m3Bound::Max256 } else { E4m3Bound::Max448 };
    let metric = input["err"].as_str().unwrap().parse().unwrap();
    let math = if input["fast"] == true { ErrorMath::Fast } else { ErrorMath::Strict };
    let level = SecondLevel::new(given, bound);
    same(level.encode, &expect["S_enc"]);
    let choice = four_over_six_block(&x, &level, bound, metric, math);
    assert_eq!(format!("map{}", choice.maps_to()), expect["pick"]);
    assert_eq!(choice.scales, [hex(&expect["s4"])[0], hex(&expect["s6"])[0]]);
    same(choice.errors[0], &expect["err4"]);
    same(choice.errors[1], &expect["err6"]);
    let q = quantize_with_scale(row(&x), DType::F32, four_over_six(bound, metric, math), given).unwrap();
    assert_eq!(q.logical_block_scales(), hex(&expect["scale_e4m3"]));
    assert_eq!(q.logical_codes(), hex(&expect["packed"]));
}

/// A 16x16 matrix and its transpose, in tiles.
fn tiles(x: &[f32], recipe: Nvfp4Recipe, amax: f32) -> [HostQuantMatrix; 2] {
    let recipe = Nvfp4Recipe::tensor(Nvfp4Options { shape: BlockShape::Tile16x16, ..recipe.options() }).unwrap();
    let (x, given) = (ndarray::ArrayView2::from_shape((16, 16), x).unwrap(), GivenScale::Amax(amax));
    let q = quantize_with_scale(x, DType::F32, recipe, given).unwrap();
    [q, quantize_transposed_with_scale(x, DType::F32, recipe, given).unwrap()]
}

fn same_rows(q: &HostQuantMatrix, rows: &Value) {
    rows.as_array().unwrap().iter().enumerate().for_each(|(i, row)| assert_eq!(q.row_codes(i), hex(row), "row {i}"));
}

/// Candidates and choice of one tile, strict MAE, E = 448.
fn check_tile(x: &[f32], amax: f32, expect: &Value) {
    let lines: [[f32; 16]; 16] = x.as_chunks().0.try_into().unwrap();
    let level = SecondLevel::new(GivenScale::Amax(amax), E4m3Bound::Max448);
    let choice = four_over_six_tile(&lines, &level, E4m3Bound::Max448, ErrorMetric::Mae, ErrorMath::Strict);
    assert_eq!(format!("map{}", choice.maps_to()), expect["pick"]);
    same(choice.errors[0], &expect["err4"]);
    same(choice.errors[1], &expect["err6"]);
    if let Some(s4) = expect.get("s4") {
        assert_eq!(choice.scales, [hex(s4)[0], hex(&expect["s6"])[0]]);
    }
}

fn check_alpha(expect: &Value) {
    for row in expect["rows"].as_array().unwrap() {
        let amax = [bits(&row["amaxA"]), bits(&row["amaxB"])];
        let bounds = [0, 1].map(|at| if row["E"][at] == 256 { E4m3Bound::Max256 } else { E4m3Bound::Max448 });
        same(36.0 * bounds[0].value() * bounds[1].value(), &row["factor"]);
        let te = transformer_engine::alpha(1.0, amax, bounds);
        same(te, &row["alpha"]);
        // Ours is fl(fl(alpha * scale_a) * scale_b): three roundings, as many as theirs; and it does not overflow.
        let [a, b] = [0, 1].map(|at| SecondLevel::new(GivenScale::Amax(amax[at]), bounds[at]).scale);
        match te.is_infinite() {
            true => assert!((1.0 * a * b).is_finite()),
            false => near(1.0 * a * b, te, 4.0),
        }
    }
}

fn check_row_scaled_gemm(input: &Value, expect: &Value) {
    let w = array(&input["w"]);
    let w_amax = amax(&w);
    let qw = quantize(row(&w), DType::F32, PLAIN).unwrap();
    let bias = bits(&input["bias"]);
    // The same through the whole path: both rows, eight equal rows of w.
    let rows = ndarray::Array2::from_shape_fn((2, 16), |(i, j)| [6.0, 1.0, 0.0][j.min(2)] / [1.0, 16.0][i]);
    let weights = ndarray::Array2::from_shape_fn((8, 16), |(_, j)| w[j]);
    let a = quantize(rows.view(), DType::F32, Recipe::new(Scheme::Nvfp4Row)).unwrap();
    let b = quantize(weights.view(), DType::F32, PLAIN).unwrap();
    let whole = scaled_gemm(&GemmInputs::new(&a, &b, DType::F32)).unwrap();
    // The rows of [row_scaled_2x16].
    for (at, (want, scale)) in expect["rows"].as_array().unwrap().iter().zip([1.0f32, 0.0625]).enumerate() {
        let mut x = vec![0.0f32; 16];
        (x[0], x[1]) = (6.0 * scale, scale);
        let qx = quantize(row(&x), DType::F32, Recipe::new(Scheme::Nvfp4Row)).unwrap();
        let (mut a, mut b) = ([0.0f32; 16], [0.0f32; 16]);
        qx.decode_row(0, &mut a);
        qw.decode_row(0, &mut b);
        let dot: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
        same(dot, &want["dot"]);
        let [sx, sw] = [&qx, &qw].map(|q| q.block_scale_at(0, 0));
        assert_eq!([sx, sw], [hex(&want["sx"])[0], hex(&want["sw"])[0]]);
        let sum = dot * decode(Fp8Format::E4M3, sx) * decode(Fp8Format::E4M3, sw);
        let bounds = [E4m3Bound::Max448; 2];
        let te = |bias| transformer_engine::row_scaled_output(sum, amax(&x), w_amax, bounds, bias);
        same(sum * transformer_engine::alpha(1.0, [1.0; 2], bounds), &want["gemm_out"]);
        same(amax(&x) * w_amax, &want["row_scale"]);
        same(te(0.0), &want["scaled"]);
        same(te(bias), &want["plus_bias"]);
        same(round_to(DType::Bf16, te(bias)), &want["bf16"]);
        // Ours: fl(fl(fl(sum * alpha) * scale_a) * scale_b), four roundings with those of the scales, as many as theirs.
        let ours = sum * 1.0 * qx.scale_at(0, 0) * qw.scale_at(0, 0);
        near(ours, te(0.0), 5.0);
        whole.row(at).iter().for_each(|y| assert_eq!(y.to_bits(), ours.to_bits()));
    }
}
