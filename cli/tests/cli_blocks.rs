//! NVFP4 and MXFP8 through the program, on the CPU: every option, files of other writers, products, refusals.

mod common;

use std::fs;
use std::path::Path;

use common::{
    Folder, Tensor, assert_words, bad, f32_bytes, f32_tensor, good, json, model, read_f32, sqnr_db, values, write,
};
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::Value;

fn refused(args: &[&str]) -> String {
    bad(2, args)
}

/// Type and shape of every tensor, and the metadata.
fn header(path: &str) -> (Vec<(String, Dtype, Vec<usize>)>, Value) {
    let bytes = fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut tensors: Vec<_> = header.tensors().into_iter().map(|(name, t)| (name, t.dtype, t.shape.clone())).collect();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    (tensors, serde_json::to_value(header.metadata()).unwrap())
}

fn data(path: &str, name: &str) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().data().to_vec()
}

/// Options and least SQNR of the weights of the small model: sums of three uniform numbers, whose tails are shorter than
/// those of normal ones, so that the floors of `verify` hold.
const RECIPES: [(&str, &[&str], f64); 13] = [
    ("nvfp4", &[], 18.4),
    ("nvfp4", &["--preset", "torchao"], 18.4),
    ("nvfp4", &["--four-over-six", "mae"], 18.4),
    ("nvfp4", &["--four-over-six", "mse", "--error-math", "fast", "--e4m3-max", "256"], 18.4),
    ("nvfp4", &["--tile-16x16"], 15.4),
    ("nvfp4", &["--hadamard"], 18.4),
    ("nvfp4", &["--stochastic", "7"], 15.4),
    ("nvfp4", &["--hadamard", "--stochastic", "18446744073709551615"], 15.4),
    ("nvfp4-row", &[], 18.4),
    ("nvfp4-row", &["--four-over-six", "mae", "--error-math", "strict"], 18.4),
    ("mxfp8", &[], 30.0),
    ("mxfp8", &["--mx-rounding", "floor"], 28.0),
    ("mxfp8", &["--mx-rounding", "even", "--format", "e5m2"], 22.0),
];

#[test]
fn every_option_round_trips() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("in"), folder.file("q"), folder.file("back"));
    model(&input);
    for (recipe, options, floor) in RECIPES {
        let value = json(&[&["quantize", &input, "-o", &packed, "--recipe", recipe, "--json"], options].concat());
        assert_eq!(value["scheme"], recipe);
        let names = value["quantized"].as_array().unwrap();
        assert_eq!(names.len(), 2, "{recipe} {options:?}");
        let (tensors, metadata) = header(&packed);
        let shapes: Vec<_> = tensors.iter().filter(|t| t.0.starts_with("layer.weight")).cloned().collect();
        let want = |suffix: &str, dtype, shape: &[usize]| (format!("layer.weight{suffix}"), dtype, shape.to_vec());
        if recipe == "mxfp8" {
            let codes = if options.contains(&"e5m2") { Dtype::F8_E5M2 } else { Dtype::F8_E4M3 };
            assert_eq!(shapes, [want("", codes, &[40, 272]), want("_scale", Dtype::U8, &[40, 9])]);
        } else {
            let second: &[usize] = if recipe == "nvfp4-row" { &[40] } else { &[1] };
            let scale = want("_scale", Dtype::F8_E4M3, &[40, 17]);
            assert_eq!(shapes, [want("", Dtype::U8, &[40, 136]), scale, want("_scale_2", Dtype::F32, second)]);
        }
        let text = metadata["scaled_gemm.layer.weight"].as_str().unwrap();
        let written: Value = serde_json::from_str(text).unwrap();
        assert_eq!((&written["scheme"], &written["source"]), (&Value::from(recipe), &Value::from("f32")));
        if recipe == "mxfp8" {
            assert_eq!(written["mx_rounding"], value["options"]["mx_rounding"]);
        } else {
            assert_eq!(written["nibble_order"], "low-first");
            assert_eq!(written["basis"] == "hadamard16", options.contains(&"--hadamard"));
            assert_eq!(written["block_shape"] == "16x16", options.contains(&"--tile-16x16"));
            assert_eq!(written["block_scale"] == "four-over-six", options.contains(&"--four-over-six"));
            assert_eq!(written["code_rounding"] == "stochastic", options.contains(&"--stochastic"));
            assert_eq!(written["e4m3_max"], value["options"]["e4m3_max"]);
        }

        let value = json(&["dequantize", &packed, "-o", &back, "--dtype", "f32", "--json"]);
        let transformed = options.contains(&"--hadamard");
        assert!(value["dequantized"].as_array().unwrap().iter().all(|d| d["inverse_hadamard"] == transformed));
        for (name, n, seed) in [("layer.weight", 40 * 272, 1), ("other.weight", 8 * 32, 2)] {
            let (shape, got) = read_f32(&back, name);
            assert_eq!(shape.iter().product::<usize>(), n);
            let db = sqnr_db(&values(n, seed), &got);
            // 256 values draw less evenly than 10880.
            assert!(db > floor - if n < 1000 { 1.0 } else { 0.0 }, "{recipe} {options:?} {name}: {db} dB");
        }
        assert_eq!(header(&back).0.len(), 5);
        assert_eq!(header(&back).1.as_object().unwrap().len(), 1);
    }
}

#[test]
fn tiles_of_4over6_need_whole_tiles() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    let options = ["--recipe", "nvfp4", "--tile-16x16", "--four-over-six", "mae"];
    write(&input, &[f32_tensor("whole", [32, 64], 1), f32_tensor("ragged", [40, 64], 2)]);
    let text = good(&[&["quantize", &input, "-o", &packed][..], &options].concat());
    assert_words(&text, &["4over6 mae strict, bound 448, 16x16 tiles", "rows not a multiple of 16", "ragged [40, 64]"]);
    assert_eq!(header(&packed).0.iter().find(|t| t.0 == "ragged").unwrap().1, Dtype::F32);
    // The rows of a tile share their scales.
    let scales = data(&packed, "whole_scale");
    assert!(scales.chunks(4 * 16).all(|tile_row| tile_row.chunks(4).all(|row| row == &tile_row[..4])));
    write(&input, &[f32_tensor("ragged", [40, 64], 2)]);
    let error = refused(&[&["quantize", &input, "-o", &packed][..], &options].concat());
    assert_words(&error, &["rows not a multiple of 16", "1 (ragged [40, 64])"]);
}

#[test]
fn random_rounding_is_reproducible_and_differs_from_matrix_to_matrix() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    write(&input, &[f32_tensor("a", [16, 64], 1), f32_tensor("b", [16, 64], 1)]);
    let codes = |seed: &str| {
        good(&["quantize", &input, "-o", &packed, "--recipe", "nvfp4", "--stochastic", seed]);
        (data(&packed, "a"), data(&packed, "b"))
    };
    let (first, again, other) = (codes("1"), codes("1"), codes("2"));
    assert!(first == again && first.0 != first.1 && first.0 != other.0);
    assert_eq!(data(&packed, "a_scale"), data(&packed, "b_scale"));
    let metadata = header(&packed).1;
    for (name, offset) in [("a", 0), ("b", 1)] {
        let written: Value = serde_json::from_str(metadata[format!("scaled_gemm.{name}")].as_str().unwrap()).unwrap();
        assert_eq!((&written["seed"], &written["offset"]), (&Value::from(2), &Value::from(offset)));
    }
}

#[test]
fn options_that_exclude_each_other_are_refused_with_the_reason() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    model(&input);
    let cases: [(&str, &[&str], &[&str]); 18] = [
        ("nvfp4", &["--four-over-six", "mae", "--stochastic", "1"], &["4over6 with stochastic", "biased"]),
        ("nvfp4", &["--four-over-six", "mae", "--hadamard"], &["4over6 with the Hadamard"]),
        ("nvfp4", &["--tile-16x16", "--hadamard"], &["16x16 tiles with the Hadamard"]),
        ("nvfp4", &["--tile-16x16", "--stochastic", "1"], &["16x16 tiles with stochastic"]),
        ("nvfp4", &["--e4m3-max", "256"], &["256 without 4over6"]),
        ("nvfp4", &["--error-math", "fast"], &["--four-over-six"]),
        ("nvfp4", &["--preset", "torchao", "--four-over-six", "mae"], &["torchao"]),
        ("nvfp4", &["--preset", "deepseek"], &["the preset deepseek with nvfp4", "two levels"]),
        ("nvfp4", &["--power-of-two"], &["powers of two with nvfp4"]),
        ("nvfp4", &["--format", "e4m3"], &["nvfp4 with the code format e4m3", "e2m1"]),
        ("nvfp4-row", &["--tile-16x16"], &["nvfp4-row", "second-level"]),
        ("nvfp4-row", &["--hadamard"], &["nvfp4-row", "Hadamard"]),
        ("nvfp4", &["--mx-rounding", "floor"], &["MX scales with nvfp4", "mxfp8"]),
        ("mxfp8", &["--four-over-six", "mae"], &["mxfp8", "belong to nvfp4"]),
        ("mxfp4", &["--preset", "torchao"], &["a preset with mxfp4"]),
        ("mxfp8", &["--preset", "torchao"], &["MX rounding"]),
        ("fp8-1x128", &["--preset", "deepgemm", "--format", "e5m2"], &["deepgemm", "fp8-1x128:e5m2", "E4M3"]),
        ("fp8-row", &["--format", "e2m1"], &["fp8-row with the code format e2m1", "e4m3 or e5m2"]),
    ];
    for (recipe, options, words) in cases {
        let error = refused(&[&["quantize", &input, "-o", &packed, "--recipe", recipe], options].concat());
        assert_words(&error, words);
    }
    for (option, value, known) in [
        ("--four-over-six", "max", "mae, mse"),
        ("--error-math", "exact", "strict, fast"),
        ("--e4m3-max", "300", "448, 256"),
        ("--mx-rounding", "down", "up, floor, ceil, even, rceil"),
        ("--stochastic", "-1", "-1"),
    ] {
        let error = refused(&["quantize", &input, "-o", &packed, "--recipe", "nvfp4", option, value]);
        assert_words(&error, &[known]);
    }
    assert!(!Path::new(&packed).exists());
}

/// The codes 0 to 15 in column order, low half first, and their values.
const CODES: [u8; 8] = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE];
const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A matrix of eight equal rows in compressed-tensors' layout, block scale 1, divisor 4.
fn compressed(codes: [u8; 8]) -> Vec<Tensor<'static>> {
    vec![
        ("l.weight_packed", Dtype::U8, vec![8, 8], codes.repeat(8)),
        ("l.weight_scale", Dtype::F8_E4M3, vec![8, 1], vec![0x38; 8]),
        ("l.weight_global_scale", Dtype::F32, vec![1], f32_bytes(&[4.0])),
        ("l.input_global_scale", Dtype::F32, vec![1], f32_bytes(&[9.0])),
    ]
}

#[test]
fn files_of_other_writers_are_read_in_either_nibble_order() {
    let folder = Folder::new();
    let (input, back, again) = (folder.file("in"), folder.file("back"), folder.file("again"));
    let want: Vec<f32> = VALUES.iter().map(|v| v * 0.25).collect();
    let swapped = CODES.map(|pair| pair.rotate_left(4));
    for (codes, options) in
        [(CODES, &[][..]), (CODES, &["--nibble-order", "low-first"]), (swapped, &["--nibble-order", "high-first"])]
    {
        write(&input, &compressed(codes));
        let base = ["dequantize", &input, "-o", &back, "--dtype", "f32"];
        assert_words(&good(&[&base[..], options].concat()), &["l.weight", "nvfp4", "8 x 16"]);
        let (shape, got) = read_f32(&back, "l.weight");
        assert_eq!((shape, got), (vec![8, 16], want.repeat(8)));
        // The scale of the activations that met it is gone with the matrix.
        assert_eq!(header(&back).0.len(), 1);
    }
    // What is packed already stays as it is.
    let plain = f32_tensor("plain", [8, 16], 1);
    write(&input, &[compressed(CODES), vec![plain]].concat());
    let text = good(&["quantize", &input, "-o", &again, "--recipe", "nvfp4"]);
    assert_words(&text, &["1 matrix to", "NVFP4 already", "l.weight_packed"]);
    assert_eq!(data(&again, "l.weight_packed"), CODES.repeat(8));
    // Files written here say their order.
    let error = refused(&["dequantize", &again, "-o", &back, "--nibble-order", "high-first"]);
    assert_words(&error, &["tensor plain: is low-first", "high-first"]);
    assert_words(&refused(&["dequantize", &input, "-o", &back, "--nibble-order", "big"]), &["low-first, high-first"]);
    let broken =
        vec![("w", Dtype::U8, vec![8, 8], CODES.repeat(8)), ("w_scale", Dtype::F8_E4M3, vec![8, 1], vec![0x38; 8])];
    write(&input, &broken);
    assert_words(&refused(&["dequantize", &input, "-o", &back]), &["tensor w: is NVFP4", "no scale w_scale_2"]);
}

#[test]
fn products_of_files() {
    let folder = Folder::new();
    let (x, w, qx, qw, d) =
        (folder.file("x"), folder.file("w"), folder.file("qx"), folder.file("qw"), folder.file("d"));
    let (m, n, k) = (5, 40, 272);
    model(&w);
    let half: Vec<u8> = values(m * k, 7).iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let brain: Vec<u8> = values(m * k, 7).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    let plain = |name, dtype, bytes| (name, dtype, vec![m, k], bytes);
    write(&x, &[f32_tensor("x", [m, k], 7), plain("f16", Dtype::F16, half), plain("bf16", Dtype::BF16, brain)]);
    let (a, b) = (format!("{qx}:x"), format!("{qw}:layer.weight"));
    let (xs, ws) = (values(m * k, 7), values(n * k, 1));
    let want: Vec<f32> = (0..m * n).map(|at| (0..k).map(|l| xs[at / n * k + l] * ws[at % n * k + l]).sum()).collect();
    let product = |a: &str, floor: f64| {
        let value = json(&["gemm", "--a", a, "--b", &b, "--out-dtype", "f32", "-o", &d, "--json"]);
        let (shape, got) = read_f32(&d, "d");
        assert_eq!(shape, [m, n]);
        let db = sqnr_db(&want, &got);
        // Both operands' noise, independent of each other, in a product as large as theirs.
        assert!(db > floor, "{a}: {db} dB");
        value["a"].as_str().unwrap().to_string()
    };
    for (activations, weights, floor) in [
        ("nvfp4", "nvfp4", 15.4),
        ("nvfp4-row", "nvfp4", 15.4),
        ("nvfp4-row", "nvfp4-row", 15.4),
        ("mxfp8", "mxfp8", 26.0),
    ] {
        good(&["quantize", &x, "-o", &qx, "--recipe", activations, "--only", "^x$"]);
        good(&["quantize", &w, "-o", &qw, "--recipe", weights]);
        let name = product(&a, floor);
        assert!(name.starts_with(activations), "{name}");
        // Weights only: half the noise.
        assert_eq!(product(&format!("{x}:bf16"), floor + 2.0), "bf16");
        let f16 = format!("{x}:f16");
        if weights == "mxfp8" {
            let error = refused(&["gemm", "--a", &f16, "--b", &b, "-o", &d]);
            assert_words(&error, &["f16 x mxfp8:e4m3 is not supported", "bf16"]);
        } else {
            assert_eq!(product(&f16, floor + 2.0), "f16");
        }
        let error = refused(&["gemm", "--a", &format!("{x}:x"), "--b", &b, "-o", &d]);
        assert_words(&error, &["f32 x", "not supported", "bf16"]);
    }
    // Bases must be equal.
    good(&["quantize", &w, "-o", &qw, "--recipe", "nvfp4", "--hadamard"]);
    good(&["quantize", &x, "-o", &qx, "--recipe", "nvfp4", "--only", "^x$"]);
    for a in [&a, &format!("{x}:bf16")] {
        assert_words(&refused(&["gemm", "--a", a, "--b", &b, "-o", &d]), &["one basis", "Hadamard16"]);
    }
    good(&["quantize", &x, "-o", &qx, "--recipe", "nvfp4", "--hadamard", "--only", "^x$"]);
    product(&a, 15.4);
    // Families do not mix.
    good(&["quantize", &x, "-o", &qx, "--recipe", "fp8-row", "--only", "^x$"]);
    good(&["quantize", &w, "-o", &qw, "--recipe", "nvfp4"]);
    assert_words(&refused(&["gemm", "--a", &a, "--b", &b, "-o", &d]), &["fp8-row:e4m3 x nvfp4", "not supported"]);
}

#[test]
fn nibble_orders_of_products() {
    let folder = Folder::new();
    let (x, w, d) = (folder.file("x"), folder.file("w"), folder.file("d"));
    let ones: Vec<u8> = [0x80, 0x3F].repeat(2 * 16);
    // The even columns of the positive codes: with the others the sum would be zero in either order.
    let ones_at_even = [[0x80, 0x3F, 0, 0].repeat(4), vec![0; 16]].concat();
    write(&x, &[("ones", Dtype::BF16, vec![2, 16], ones), ("even", Dtype::BF16, vec![1, 16], ones_at_even)]);
    write(&w, &compressed(CODES));
    let b = format!("{w}:l.weight");
    let product = |options: &[&str]| {
        let a = format!("{x}:even");
        good(&[&["gemm", "--a", &a, "--b", &b, "--out-dtype", "f32", "-o", &d], options].concat());
        read_f32(&d, "d").1[0]
    };
    let sum = |first: usize| VALUES[..8].iter().skip(first).step_by(2).sum::<f32>() * 0.25;
    let (even, odd) = (sum(0), sum(1));
    assert_eq!((product(&[]), product(&["--b-nibble-order", "low-first"])), (even, even));
    assert_eq!((product(&["--b-nibble-order", "high-first"]), product(&["--nibble-order", "high-first"])), (odd, odd));
    let packed = format!("{w}:l.weight_packed");
    assert_words(&refused(&["gemm", "--a", &format!("{x}:ones"), "--b", &packed, "-o", &d]), &["named l.weight"]);
}
