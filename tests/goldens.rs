//! Golden values of the published projects, bit for bit. `data/numerics.json` comes from an independent generator.
//!
//! Every case is either checked here or in [`LATER`] with the reason; a case that is in neither fails the test.

use std::collections::BTreeSet;

use ndarray::{Array2, ArrayView2};
use scaled_gemm::codec::{decode, encode_e4m3, encode_e5m2, round_to};
use scaled_gemm::layout::ScaleLayout;
use scaled_gemm::reference::{
    GemmInputs, GroupedInput, GroupedView, Promotion, amax, calc_diff, delayed_update, dequantize_grouped, promote,
    promote_unfused, quantize, quantize_grouped_with_scales, quantize_tensor, quantize_transposed, scaled_gemm,
    sqnr_db,
};
use scaled_gemm::{
    ActivationGradient, AmaxHistory, DType, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale, GroupedLayout,
    GroupedScheme, HostGroupedTensor, Recipe, Scheme,
};
use serde_json::Value;

const E4M3: Fp8Format = Fp8Format::E4M3;
const VECTOR: Fp8Recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, E4M3);

#[path = "goldens/blocks.rs"]
mod blocks;
#[path = "goldens/casts.rs"]
mod casts;

/// Cases, by prefix, and parts of cases that this crate does not check, and why.
const LATER: [(&str, &str); 2] = [
    // Parts of cases that are checked otherwise; named here so that nobody thinks they are covered.
    ("sf_amax: sf_mul_recip", "PyTorch's division by a scalar as a multiplication: depends on its version"),
    ("sf_amax: inv_mul", "PyTorch's division by a scalar as a multiplication: depends on its version"),
];

fn bits(v: &Value) -> f32 {
    f32::from_bits(u32::from_str_radix(v.as_str().expect("hex"), 16).expect("hex"))
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().expect("list").iter().map(bits).collect()
}

fn hex(v: &Value) -> Vec<u8> {
    let s = v.as_str().expect("hex");
    (0..s.len()).step_by(2).map(|i| u8::from_str_radix(&s[i..i + 2], 16).expect("hex")).collect()
}

/// A run-length coded array of FP32 patterns.
fn array(v: &Value) -> Vec<f32> {
    runs(&v["f32_rle"], bits)
}

/// A run-length coded array of bytes.
fn bytes(v: &Value) -> Vec<u8> {
    runs(v, |v| hex(v)[0])
}

fn runs<T: Clone>(v: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    v.as_array()
        .expect("runs")
        .iter()
        .flat_map(|run| vec![read(&run[1]); run[0].as_u64().expect("count") as usize])
        .collect()
}

fn ints(v: &Value) -> Vec<usize> {
    v.as_array().expect("list").iter().map(|v| v.as_u64().expect("integer") as usize).collect()
}

fn fold(bytes: impl IntoIterator<Item = u64>) -> String {
    format!("{:016x}", bytes.into_iter().fold(0u64, |h, b| h.wrapping_mul(1_000_003).wrapping_add(b)))
}

fn fold_bytes(bytes: &[u8]) -> String {
    fold(bytes.iter().map(|b| u64::from(*b)))
}

fn fold_floats(values: &[f32]) -> String {
    fold(values.iter().flat_map(|v| v.to_le_bytes()).map(u64::from))
}

#[track_caller]
fn same(got: f32, want: &Value) {
    let want = bits(want);
    assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{got:e} is not {want:e}");
}

fn row(x: &[f32]) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((1, x.len()), x).expect("one row")
}

/// Checks one group: codes, stored scale, encode factor where given.
#[track_caller]
fn check_group(x: &[f32], recipe: Fp8Recipe, scale: &Value, encode: Option<&Value>, codes: &Value) {
    let q = quantize(row(x), DType::F32, recipe).unwrap();
    assert_eq!(q.logical_codes(), bytes(codes));
    assert_eq!(q.logical_scales().len(), 1);
    same(q.logical_scales()[0], scale);
    if let Some(encode) = encode {
        same(recipe.group_scale(amax(x), DType::F32).encode, encode);
    }
}

/// True if the case was checked; some are those of a quantizer and of a cast.
fn check(id: &str, input: &Value, expect: &Value) -> bool {
    casts::check(id, input, expect) | check_quantizers(id, input, expect)
}

fn check_quantizers(id: &str, input: &Value, expect: &Value) -> bool {
    match id {
        "e4m3_satfinite" | "e5m2_satfinite" => {
            let encode = if id.starts_with("e4m3") { encode_e4m3 } else { encode_e5m2 };
            let got: Vec<u8> = floats(&input["x"]).into_iter().map(encode).collect();
            assert_eq!(got, hex(&expect["bytes"]));
        }
        "e4m3_decode_all" => {
            for code in 0..=255u8 {
                same(decode(E4M3, code), &expect["f32"][usize::from(code)]);
            }
        }
        "e8m0_modes_e4m3" => {
            let recipe = VECTOR.with_rule(Fp8Rule::DeepSeek).power_of_two();
            for row in expect["rows"].as_array().unwrap() {
                blocks::check_mx_modes(row);
                let Some(byte) = row.get("clamp1e-4_ceil") else { continue };
                let scale = recipe.group_scale(bits(&row["amax"]), DType::F32).scale;
                assert_eq!(scale.to_bits(), u32::from(hex(byte)[0]) << 23);
            }
        }
        "e4m3_g128_fp32sf" | "e4m3_g128_pow2" | "e4m3_g32_zero_block" | "bf16_hidden7168_edge" => {
            let x = array(&input["x"]);
            let granularity = if x.len() > 128 { Fp8Granularity::Row } else { Fp8Granularity::Group1x128 };
            let recipe = Fp8Recipe::new(granularity, E4M3).with_rule(Fp8Rule::DeepSeek);
            let recipe = if input["round_sf"] == true { recipe.power_of_two() } else { recipe };
            check_group(&x, recipe, &expect["sf"][0], None, &expect["data"]);
            if let Some(byte) = expect.get("ue8m0") {
                assert_eq!(bits(&expect["sf"][0]).to_bits(), u32::from(hex(byte)[0]) << 23);
            }
        }
        "fp32_amax_contract_requant" => {
            let scale = bits(&input["x_sf"]);
            let x: Vec<f32> = hex(&input["x_bytes"]).into_iter().map(|c| decode(E4M3, c) * scale).collect();
            same(amax(&x), &expect["amax"]);
            check_group(&x, VECTOR.with_rule(Fp8Rule::DeepSeek), &expect["sf"], None, &expect["data"]);
        }
        "per_channel_128x1" => {
            let columns: Vec<Vec<f32>> = input["columns"].as_array().unwrap().iter().map(array).collect();
            let x = Array2::from_shape_fn((128, columns.len()), |(i, j)| columns[j][i]);
            let q = quantize_transposed(x.view(), DType::F32, VECTOR.with_rule(Fp8Rule::DeepSeek)).unwrap();
            for (j, codes) in q.logical_codes().chunks(128).enumerate() {
                assert_eq!(codes, bytes(&expect["data_per_channel"][j]));
                same(q.scale_at(j, 0), &expect["sf"][j]);
            }
        }
        "act_1x128_amax3" | "act_1x128_zero" | "act_1x128_amax448" => {
            let x = array(&input["x"]);
            check_group(&x, VECTOR, &expect["stored_decode"], Some(&expect["encode"]), &expect["data"]);
        }
        "layouts_M128_K256" => {
            assert_eq!(ScaleLayout::Vec128.index(128, 2, 5, 1), expect["mmajor(5,1)"].as_u64().unwrap() as usize);
            let blk = expect["blk(nb=2,kb=1), L=2 -> L4=4"].as_u64().unwrap() as usize;
            assert_eq!(ScaleLayout::Blk128.index(3, 2, 2, 1), blk);
            let mut logical = vec![0.0; 256];
            logical[expect["rowmajor(5,1)"].as_u64().unwrap() as usize] = 1.0;
            let device = ScaleLayout::Vec128.to_device(128, 2, &logical);
            assert_eq!(device.iter().position(|v| *v == 1.0), Some(133));
        }
        "five_layouts_256x256" => check_five_layouts(expect),
        "linear_fwd_K256_const" => check_linear(expect),
        "sqnr" => {
            let list = |v: &Value| v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>();
            let got = sqnr_db(&list(&input["ref"]), &list(&input["got"]));
            assert!((got - expect["db"].as_f64().unwrap()).abs() < 1e-9, "{got}");
        }
        "calc_diff" => {
            let list = |v: &Value| v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>();
            let got = calc_diff(&list(&input["x"]), &list(&input["y"]));
            assert!((got - expect["diff"].as_f64().unwrap()).abs() < 1e-12, "{got}");
            assert_eq!(calc_diff(&[0.0f32; 3], &[0.0f32; 3]), 0.0);
        }
        "block_accumulate_orders" => {
            let blocks = input["blocks"].as_array().unwrap();
            let sum = |step: fn(f32, [f32; 3]) -> f32| {
                blocks.iter().map(|b| [bits(&b[0]), bits(&b[1]), bits(&b[2])]).fold(0.0, step)
            };
            same(sum(|acc, [p, a, b]| promote(acc, p, a, b)), &expect["te_order"]);
            // The order that newer cuBLASLt versions announce; ours must differ here, or this case would prove nothing.
            same(sum(|acc, [p, a, b]| (a * b).mul_add(p, acc)), &expect["scale_product_first"]);
        }
        "scale_from_amax" => {
            for row in expect["rows"].as_array().unwrap() {
                let format = if row["max"] == 448 { E4M3 } else { Fp8Format::E5M2 };
                let recipe = Fp8Recipe::new(Fp8Granularity::Tensor, format).with_rule(Fp8Rule::TransformerEngine);
                let recipe = if row["pow2"] == 1 { recipe.power_of_two() } else { recipe };
                // `amax_epsilon` is the caller's clamp; the rule has none.
                let (amax, eps) = (bits(&row["amax"]), bits(&row["eps"]));
                let got = recipe.group_scale(if amax < eps { eps } else { amax }, DType::F32);
                same(got.encode, &row["scale"]);
                same(got.scale, &row["scale_inv"]);
            }
        }
        "per_tensor_quantize_scale2" => {
            let mut x = floats(&input["x"]);
            let len = x.len();
            x.resize(16, 0.0);
            for (format, key) in [(E4M3, "e4m3"), (Fp8Format::E5M2, "e5m2")] {
                let scale = GivenScale::Encode(bits(&input["scale"]));
                let (q, amax) = quantize_tensor(row(&x), format, scale).unwrap();
                assert_eq!(q.logical_codes()[..len], hex(&expect[key]));
                same(amax, &expect["amax"]);
                same(q.scales()[0], &expect["scale_inv"]);
            }
        }
        "delayed_max" | "delayed_recent" | "delayed_margin1" | "delayed_keep_on_zero" | "delayed_keep_on_inf" => {
            let mut history = floats(&input["history"]);
            let rule = if input["algo"] == "max" { AmaxHistory::Max } else { AmaxHistory::MostRecent };
            let margin = input["margin"].as_i64().unwrap() as i32;
            let got = delayed_update(&mut history, bits(&input["old_scale"]), E4M3, margin, rule).unwrap();
            same(got.encode, &expect["scale"]);
            same(got.scale, &expect["scale_inv"]);
            assert_eq!(history, floats(&expect["history"]));
        }
        "grouped_quantize_70" => {
            let (q, amax) = grouped(&ints(&input["rows"]), Some(&ints(&input["offsets"])));
            assert_eq!(q.codes(), hex(&expect["data"]));
            for t in 0..70 {
                same(amax[t], &expect["amax"][t]);
                same(q.scales()[t], &expect["scale_inv"][t]);
            }
        }
        "grouped_dequantize_70" => {
            let rows: Vec<usize> = (0..70).map(|t| if t == 3 || t == 69 { 0 } else { 1 + t % 3 }).collect();
            let (q, _) = grouped(&rows, None);
            let values = dequantize_grouped(&q, DType::F32);
            assert_eq!(fold(values.iter().map(|v| u64::from(v.to_bits()))), expect["hash"]);
            for (got, want) in values[q.layout().members()[66].range()].iter().zip(floats(&expect["t66_first8"])) {
                assert_eq!(got.to_bits(), want.to_bits());
            }
        }
        "grouped_backward_drelu" => {
            // The gradient without gaps, x with one.
            let [of_g, of_x] = [2, 3].map(|alignment| GroupedLayout::aligned(&[[1, 2]; 2], alignment).unwrap());
            let (g, x) = (floats(&input["g"]), floats(&input["x"]));
            let x = [x[0], x[1], f32::NAN, x[2], x[3], f32::NAN];
            let [g, x] = [(&of_g, &g[..]), (&of_x, &x)].map(|(layout, v)| GroupedView::new(layout, v).unwrap());
            let gradient = GroupedInput::activation_gradient(ActivationGradient::Relu, g, x).unwrap();
            let encode = floats(&input["scale"]);
            let scheme = GroupedScheme::new(E4M3);
            let (q, amax) = quantize_grouped_with_scales(&gradient, scheme, GivenScale::Encode(&encode)).unwrap();
            assert_eq!(q.codes(), hex(&expect["bytes"]));
            assert_eq!(amax, floats(&expect["amax"]));
        }
        "block1x128_pow2" | "block1x128_fp32" | "block1x128_zero" | "block1x128_inf_element" => {
            let recipe = VECTOR.with_rule(Fp8Rule::TransformerEngine);
            let recipe = if input["pow2"] == true { recipe.power_of_two() } else { recipe };
            check_group(&array(&input["x"]), recipe, &expect["stored"], Some(&expect["encode"]), &expect["data"]);
        }
        "vec128_fp32" => check_points(ScaleLayout::Vec128, 12, 5, input, expect),
        "blk128x128_fp32" => check_points(ScaleLayout::Blk128, 3, 5, input, expect),
        "te_block_shapes" => {
            let (m, k) = (input["M"].as_u64().unwrap() as usize, input["K"].as_u64().unwrap() as usize);
            for (key, scheme, rows, cols) in [
                ("1d_row", Scheme::Fp8Group1x128(E4M3), m, k),
                ("1d_col", Scheme::Fp8Group1x128(E4M3), k, m),
                ("2d_row", Scheme::Fp8Group128x128(E4M3), m, k),
                ("2d_col", Scheme::Fp8Group128x128(E4M3), k, m),
            ] {
                assert_eq!(scheme.scale_len(rows, cols), ints(&expect[key]).iter().product::<usize>(), "{key}");
            }
        }
        _ if id.starts_with("sf_amax_") => {
            let amax = bits(&input["amax"]);
            for (rule, scale) in [
                (Fp8Rule::DeepGemm, "sf_mul_recip"),
                (Fp8Rule::DeepGemmCpu, "sf_true_div"),
                (Fp8Rule::DeepSeek, "sf_true_div"),
            ] {
                let recipe = VECTOR.with_rule(rule);
                let exact = recipe.group_scale(amax, DType::F32);
                same(exact.scale, &expect[scale]);
                match rule {
                    Fp8Rule::DeepGemm => same(exact.encode, &expect["inv_mul"]),
                    Fp8Rule::DeepGemmCpu => assert_eq!(exact.encode, 1.0 / exact.scale),
                    _ => {}
                }
                let byte = u32::from(hex(&expect["ue8m0"])[0]);
                let rounded = recipe.power_of_two().group_scale(amax, DType::F32);
                assert_eq!(rounded.scale.to_bits(), byte << 23);
                assert_eq!(rounded.encode.to_bits(), (254 - byte) << 23);
            }
        }
        _ => return blocks::check(id, input, expect),
    }
    true
}

fn check_points(layout: ScaleLayout, rows: usize, cols: usize, input: &Value, expect: &Value) {
    for (point, offset) in input["pts"].as_array().unwrap().iter().zip(ints(&expect["off"])) {
        let point = ints(point);
        assert_eq!(layout.index(rows, cols, point[0], point[1]), offset);
    }
    assert_eq!(layout.len(rows, cols), expect["elements"].as_u64().unwrap() as usize);
}

/// The grouped cases, and the amax of each member: 16 columns, scale 1.5 + 0.5 t, at the offsets of the case, where it has some.
fn grouped(rows: &[usize], offsets: Option<&[usize]>) -> (HostGroupedTensor, Vec<f32>) {
    let shapes: Vec<_> = rows.iter().map(|rows| [*rows, 16]).collect();
    let packed = GroupedLayout::packed(&shapes).unwrap();
    let layout = offsets.map_or(packed, |offsets| GroupedLayout::from_offsets(&shapes, offsets).unwrap());
    let of_member = |t: usize| (0..rows[t] * 16).map(move |i| ((i * 7 + t * 3) % 17) as f32 / 4.0 - 2.0);
    let x: Vec<f32> = (0..rows.len()).flat_map(of_member).collect();
    let encode: Vec<f32> = (0..rows.len()).map(|t| 1.5 + 0.5 * t as f32).collect();
    let input = GroupedView::new(&layout, &x).unwrap().into();
    quantize_grouped_with_scales(&input, GroupedScheme::new(E4M3), GivenScale::Encode(&encode)).unwrap()
}

fn check_five_layouts(expect: &Value) {
    let x = Array2::from_shape_fn((256, 256), |(i, j)| {
        (((i * 3 + j * 5) % 23) as f32 - 11.0) / 8.0 * (1 + i / 128 + 2 * (j / 128)) as f32
    });
    let tile = Recipe::new(Scheme::Fp8Group128x128(E4M3));
    let forward = quantize(x.view(), DType::F32, VECTOR).unwrap();
    let want = &expect["act_1x128"];
    assert_eq!(fold_bytes(forward.codes()), want["data(row-major MxK)"]);
    assert_eq!(fold_floats(forward.scales()), want["scale(mem order kb-major, m fastest)"]);
    same(forward.scale_at(0, 0), &want["s[0][0],s[200][1]"][0]);
    same(forward.scale_at(200, 1), &want["s[0][0],s[200][1]"][1]);

    // 128x1 groups of X are 1x128 groups of its transpose: the same bytes under two names.
    let transposed = quantize_transposed(x.view(), DType::F32, VECTOR).unwrap();
    for (case, data, scale) in [
        ("act_128x1", "data(col-major MxK: m fastest)", "scale(row-major M/128 x K)"),
        ("act_transposed_1x128", "data(row-major KxM)", "scale(mem order mb-major, k fastest)"),
    ] {
        assert_eq!(fold_bytes(transposed.codes()), expect[case][data]);
        assert_eq!(fold_floats(transposed.scales()), expect[case][scale]);
    }
    same(transposed.scale_at(37, 1), &expect["act_128x1"]["s[1][37]"]);

    let want = &expect["weight_128x128"];
    let weight = quantize(x.view(), DType::F32, tile).unwrap();
    let weight_t = quantize_transposed(x.view(), DType::F32, tile).unwrap();
    assert_eq!(fold_bytes(weight.codes()), want["data(row-major, same memory as input)"]);
    assert_eq!(fold_bytes(weight_t.codes()), want["data(col-major, m fastest)"]);
    for (at, (got, got_t)) in weight.logical_scales().iter().zip(weight_t.logical_scales()).enumerate() {
        same(*got, &want["s"][at]);
        same(got_t, &want["mem_order(kb slow? strides (1,Mb))"][at]);
    }
}

fn check_linear(expect: &Value) {
    let mut unfused = 0.0;
    for block in expect["blocks"].as_array().unwrap() {
        unfused = promote_unfused(unfused, bits(&block[0]), bits(&block[1]), bits(&block[2]));
    }
    same(unfused, &expect["y_unfused"]);
    same(round_to(DType::Bf16, unfused), &expect["y_bf16"]);

    // The same through the whole path: a row of x, eight equal rows of w.
    let x = Array2::from_shape_fn((1, 256), |(_, j)| if j < 128 { 2.0 } else { -1.0 });
    let w = Array2::from_shape_fn((8, 256), |(_, j)| if j < 128 { 1.0 } else { 0.5 });
    let a = quantize(x.view(), DType::F32, VECTOR).unwrap();
    let b = quantize(w.view(), DType::F32, Recipe::new(Scheme::Fp8Group128x128(E4M3))).unwrap();
    let inputs = GemmInputs { promotion: Promotion::Unfused, ..GemmInputs::new(&a, &b, DType::F32) };
    scaled_gemm(&inputs).unwrap().iter().for_each(|y| same(*y, &expect["y_unfused"]));
    let fused = GemmInputs::new(&a, &b, DType::Bf16);
    scaled_gemm(&fused).unwrap().iter().for_each(|y| same(*y, &expect["y_bf16"]));
}

#[test]
fn every_golden_is_met_or_named_as_later_work() {
    let text = include_str!("data/numerics.json");
    let all: Value = serde_json::from_str(text).unwrap();
    let mut used = BTreeSet::new();
    let (mut checked, mut skipped, mut forgotten) = (0, 0, Vec::new());
    for (section, cases) in all.as_object().unwrap() {
        for case in cases.as_array().unwrap() {
            let id = case["id"].as_str().unwrap();
            let later = LATER.iter().find(|(prefix, _)| id.starts_with(prefix));
            match later {
                Some((prefix, reason)) => {
                    assert!(!check(id, &case["in"], &case["expect"]), "{id} is checked and also listed: {reason}");
                    used.insert(*prefix);
                    skipped += 1;
                }
                None if check(id, &case["in"], &case["expect"]) => checked += 1,
                None => forgotten.push(format!("{section}/{id}")),
            }
        }
    }
    assert!(forgotten.is_empty(), "neither checked nor listed: {forgotten:?}");
    let stale: Vec<_> = LATER.iter().filter(|(p, _)| !p.contains(": ") && !used.contains(p)).collect();
    assert!(stale.is_empty(), "listed but not in the file: {stale:?}");
    assert_eq!(checked + skipped, 98);
    println!("{checked} cases checked, {skipped} not ours or left to later issues");
}
