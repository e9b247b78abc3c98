//! What the program does with values and tensors that not every recipe, type or file can hold: it says so, and refuses.

mod common;

use std::fs;

use common::{
    Folder, Tensor, assert_words, bad, f32_bytes, f32_tensor, good, json, read_f32, run_bare, run_on, values, write,
};
use safetensors::tensor::{Dtype, SafeTensors};

/// 16 rows of 32 small values, some of them replaced.
fn with(replaced: &[(usize, f32)]) -> Tensor<'static> {
    let mut data = values(16 * 32, 1);
    replaced.iter().for_each(|(at, value)| data[*at] = *value);
    ("w", Dtype::F32, vec![16, 32], f32_bytes(&data))
}

const RECIPES: [(&str, &[&str]); 9] = [
    ("fp8-tensor", &[]),
    ("fp8-row", &["--preset", "deepseek", "--power-of-two"]),
    ("fp8-1x128", &["--preset", "deepgemm"]),
    ("fp8-128x128", &["--preset", "transformer-engine"]),
    ("mxfp8", &[]),
    ("mxfp8", &["--mx-rounding", "rceil", "--format", "e5m2"]),
    ("nvfp4", &["--preset", "torchao"]),
    ("nvfp4", &["--four-over-six", "mae", "--tile-16x16"]),
    ("nvfp4-row", &[]),
];

#[test]
fn nan_is_refused_unless_allowed_and_then_every_recipe_takes_it() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("in"), folder.file("q"), folder.file("back"));
    write(&input, &[with(&[(33, f32::NAN), (40, -f32::NAN)])]);
    for (recipe, options) in RECIPES {
        let base = [&["quantize", &input, "-o", &packed, "--recipe", recipe], options].concat();
        let error = bad(2, &base);
        assert_words(&error, &["tensor w: 2 non-finite", "row 1, column 1", "or say --allow-non-finite"]);
        assert_eq!(folder.names(), ["in"]);
        let allowed = [&base[..], &["--allow-non-finite"]].concat();
        assert_words(&good(&allowed), &["w: 2 NaN and 0 infinities quantized"]);
        let value = json(&[&allowed[..], &["--json"]].concat());
        assert_eq!((&value["quantized"][0]["nan"], &value["quantized"][0]["infinite"]), (&2.into(), &0.into()));
        good(&["dequantize", &packed, "-o", &back, "--dtype", "f32", "--allow-non-finite"]);
        let got = read_f32(&back, "w").1;
        let x = values(16 * 32, 1);
        for at in [33, 40] {
            // E2M1 has no NaN: the largest code, and so the largest magnitude of its block.
            let block = &got[at / 16 * 16..][..16];
            let largest = block.iter().fold(0.0f32, |a, v| a.max(v.abs()));
            assert!(
                if recipe.starts_with("nvfp4") { got[at] == largest } else { got[at].is_nan() },
                "{recipe}: {}",
                got[at]
            );
        }
        let near = |(a, b): (&f32, &f32)| b.is_nan() || (a - b).abs() < 0.3;
        let others = x.iter().zip(&got).enumerate().filter(|(i, _)| ![33, 40].contains(i));
        assert!(others.map(|(_, pair)| pair).all(near), "{recipe} {options:?}: the other values are lost");
        for file in [&packed, &back] {
            fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn infinities_are_taken_where_the_rule_has_a_scale_and_the_advice_is_never_itself() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("in"), folder.file("q"), folder.file("back"));
    // Where one is excluded another is left.
    let other = f32_tensor("other", [16, 32], 2);
    write(&input, &[with(&[(33, f32::NAN), (70, f32::NEG_INFINITY)]), other]);
    for (recipe, options) in RECIPES {
        let base = [&["quantize", &input, "-o", &packed, "--recipe", recipe], options].concat();
        let allowed = [&base[..], &["--allow-non-finite"]].concat();
        let (bare, takes) =
            (bad(2, &base), options.contains(&"transformer-engine") || (recipe, options.len()) == ("mxfp8", 0));
        assert_words(&bare, &["tensor w: 2 non-finite", "row 1, column 1"]);
        if takes {
            assert_words(&bare, &["or say --allow-non-finite"]);
            assert_words(&good(&allowed), &["w: 1 NaN and 1 infinity quantized"]);
            let text = good(&["dequantize", &packed, "-o", &back, "--dtype", "f32", "--allow-non-finite"]);
            assert_eq!(text.contains("w: 1 value is beyond FP32 and written as infinite"), recipe == "mxfp8", "{text}");
            // The largest code: 448 with scale 1 or 2^127, which is beyond FP32.
            let want = if recipe == "mxfp8" { f32::NEG_INFINITY } else { -448.0 };
            assert_eq!(read_f32(&back, "w").1[70], want, "{recipe}");
            for file in [&packed, &back] {
                fs::remove_file(file).unwrap();
            }
        } else {
            let error = bad(2, &allowed);
            assert_words(
                &error,
                &["tensor w: 1 infinity, the first at row 2, column 6", "infinite or NaN", "--exclude '^w$'"],
            );
            assert!(!error.contains("--allow-non-finite"), "{error}");
            let other = match recipe {
                "mxfp8" => "use --mx-rounding up",
                nvfp4 if nvfp4.starts_with("nvfp4") => "no rule of nvfp4",
                _ => "use --preset transformer-engine",
            };
            assert_words(&error, &[other]);
            assert_words(&bare, &[other, "--allow-non-finite"]);
        }
        assert_eq!(folder.names(), ["in"]);
    }
    write(&input, &[with(&[(70, f32::NEG_INFINITY)])]);
    let error = bad(2, &["quantize", &input, "-o", &packed, "--recipe", "nvfp4"]);
    assert_words(&error, &["tensor w: 1 non-finite value, the first at row 2, column 6"]);
    // Without infinities the same recipes work.
    write(&input, &[with(&[])]);
    assert!(!good(&["quantize", &input, "-o", &packed, "--recipe", "nvfp4", "--allow-non-finite"]).contains("NaN"));
}

/// (Where a matrix passes in parts, the first of them got an infinite scale, and the writer refused that: `scale 0 is inf`.)
#[test]
fn an_infinity_in_the_last_of_several_parts_is_said_as_in_one() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    let (rows, cols) = (4096, 1024);
    let mut x = vec![0.5_f32; rows * cols];
    x[rows * cols - 1] = f32::INFINITY;
    let other = f32_tensor("l.1.o_proj.weight", [16, 32], 2);
    write(&input, &[("l.0.o_proj.weight", Dtype::F32, vec![rows, cols], f32_bytes(&x)), other]);
    for recipe in ["fp8-tensor", "nvfp4"] {
        for (options, first) in [(&[][..], "1 non-finite value"), (&["--allow-non-finite"], "1 infinity")] {
            let base = ["quantize", &input, "-o", &packed, "--recipe", recipe];
            let error = bad(2, &[&base[..], options].concat());
            let words = format!("tensor l.0.o_proj.weight: {first}, the first at row 4095, column 1023; ");
            assert_words(&error, &[&words, "repair the data", r"--exclude '^l\.0\.o_proj\.weight$'"]);
            assert_eq!(folder.names(), ["in"]);
        }
    }
    let takes = ["quantize", &input, "-o", &packed, "--recipe", "fp8-tensor", "--preset", "transformer-engine"];
    assert_words(&good(&[&takes[..], &["--allow-non-finite"]].concat()), &["l.0.o_proj.weight: 0 NaN and 1 infinity"]);
}

/// (They came in another order in each run.)
#[test]
fn what_is_not_finite_is_said_in_the_order_of_the_tensors() {
    let folder = Folder::new();
    let input = folder.file("in");
    let names: Vec<String> = (0..12).map(|i| format!("w{:02}", i)).collect();
    let (_, dtype, shape, bytes) = with(&[(33, f32::NAN)]);
    let tensors: Vec<Tensor> = names.iter().map(|name| (name.as_str(), dtype, shape.clone(), bytes.clone())).collect();
    write(&input, &tensors);
    let text = good(&["quantize", &input, "-o", &folder.file("q"), "--recipe", "fp8-row", "--allow-non-finite"]);
    let said: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_suffix(": 1 NaN and 0 infinities quantized as the recipe has it"))
        .collect();
    assert_eq!(said, names);
}

/// One row of FP8 codes with one scale for all of it.
fn one_scale(code: u8, dtype: Dtype, scale: f32) -> Vec<Tensor<'static>> {
    vec![("w", dtype, vec![1, 16], vec![code; 16]), ("w_scale", Dtype::F32, vec![1], f32_bytes(&[scale]))]
}

#[test]
fn values_beyond_the_type_are_refused_not_written_as_infinities() {
    let folder = Folder::new();
    let (input, back) = (folder.file("in"), folder.file("back"));
    // 448 * 146 = 65408, which F16 holds; 448 * 147 = 65856, which becomes infinite.
    write(&input, &one_scale(0x7E, Dtype::F8_E4M3, 146.0));
    good(&["dequantize", &input, "-o", &back, "--dtype", "f16"]);
    fs::remove_file(&back).unwrap();
    write(&input, &one_scale(0x7E, Dtype::F8_E4M3, 147.0));
    let error = bad(2, &["dequantize", &input, "-o", &back, "--dtype", "f16"]);
    assert_words(&error, &["tensor w: 16 values are beyond", "f16", "65856 at row 0, column 0", "--dtype bf16 or f32"]);
    assert_eq!(folder.names(), ["in"]);
    good(&["dequantize", &input, "-o", &back, "--dtype", "bf16"]);
    // FP32 reaches a little farther than BF16.
    write(&input, &one_scale(0x38, Dtype::F8_E4M3, f32::MAX));
    let error = bad(2, &["dequantize", &input, "-o", &back]);
    assert_words(&error, &["16 values are beyond the range of bf16", "choose --dtype f32"]);
    // (Of F16 the advice was BF16, too.)
    let error = bad(2, &["dequantize", &input, "-o", &back, "--dtype", "f16"]);
    assert_words(&error, &["16 values are beyond the range of f16", "choose --dtype f32"]);
    good(&["dequantize", &input, "-o", &back, "--dtype", "f32"]);
    fs::remove_file(&back).unwrap();
    // Beyond FP32 itself: no type holds them. They are refused in every type, and written if that is asked for.
    write(&input, &one_scale(0xFE, Dtype::F8_E4M3, 3e38));
    for dtype in ["bf16", "f16", "f32"] {
        let error = bad(2, &["dequantize", &input, "-o", &back, "--dtype", dtype]);
        assert_words(&error, &["tensor w: 16 values are beyond FP32", "row 0, column 0", "say --allow-non-finite"]);
        assert_eq!(folder.names(), ["in"]);
    }
    let text = good(&["dequantize", &input, "-o", &back, "--allow-non-finite"]);
    assert_words(&text, &["w: 16 values are beyond FP32 and written as infinite"]);
}

#[test]
fn nan_and_infinities_of_codes_are_written_only_if_allowed_and_counted() {
    let folder = Folder::new();
    let (input, back) = (folder.file("in"), folder.file("back"));
    for (code, dtype, scale, nan, infinite) in [
        (0x7C, Dtype::F8_E5M2, 1.0, 0, 16),
        // What is written counts: infinity times zero.
        (0x7C, Dtype::F8_E5M2, 0.0, 16, 0),
        (0x7E, Dtype::F8_E5M2, 1.0, 16, 0),
        (0x7F, Dtype::F8_E4M3, 1.0, 16, 0),
    ] {
        write(&input, &one_scale(code, dtype, scale));
        let base = ["dequantize", &input, "-o", &back, "--dtype", "f16"];
        let error = bad(2, &base);
        assert_words(&error, &["tensor w: 16 non-finite values", "row 0, column 0", "or say --allow-non-finite"]);
        assert_eq!(folder.names(), ["in"]);
        let allowed = [&base[..], &["--allow-non-finite"]].concat();
        let infinities = if infinite == 0 { "0 infinities" } else { "16 infinities" };
        assert_words(&good(&allowed), &[&format!("w: {nan} NaN and {infinities} of its codes written as they are")]);
        let value = json(&[&allowed[..], &["--json"]].concat())["dequantized"][0].clone();
        assert_eq!((&value["nan"], &value["infinite"]), (&nan.into(), &infinite.into()));
        assert_eq!(value["beyond_fp32"], 0);
        fs::remove_file(&back).unwrap();
    }
}

#[test]
fn nan_in_a_product_is_counted() {
    let folder = Folder::new();
    let (a, b, d) = (folder.file("a"), folder.file("b"), folder.file("d"));
    write(&a, &one_scale(0x7F, Dtype::F8_E4M3, 1.0));
    let codes = ("w", Dtype::F8_E4M3, vec![8, 16], vec![0x38; 128]);
    write(&b, &[codes, ("w_scale", Dtype::F32, vec![1], f32_bytes(&[1.0]))]);
    let args = ["gemm", "--a", &format!("{a}:w"), "--b", &format!("{b}:w"), "-o", &d].map(str::to_string);
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    assert_words(&good(&args), &["d: 8 values are NaN: from NaN or infinite operands"]);
    let value = json(&[&args[..], &["--json"]].concat());
    assert_eq!((&value["nan"], &value["infinite"]), (&8.into(), &0.into()));
}

#[test]
fn finite_values_too_near_the_largest_number_are_not_called_infinite() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("in"), folder.file("q"), folder.file("back"));
    let large = half::bf16::from_f32(3.38e38).to_le_bytes().repeat(16 * 32);
    write(&input, &[("w", Dtype::BF16, vec![16, 32], large)]);
    good(&["quantize", &input, "-o", &packed, "--recipe", "mxfp8"]);
    let error = bad(2, &["dequantize", &packed, "-o", &back]);
    assert_words(&error, &["512 values are beyond FP32", "rounded up", "smaller values", "say --allow-non-finite"]);
    assert!(!error.contains("from finite values"), "{error}");
    fs::remove_file(&packed).unwrap();
    let signs: Vec<f32> = (0..512).map(|i| if i % 2 == 0 { 3.4e38 } else { -3.4e38 }).collect();
    write(&input, &[("w", Dtype::F32, vec![16, 32], f32_bytes(&signs))]);
    let error = bad(2, &["quantize", &input, "-o", &packed, "--recipe", "nvfp4", "--hadamard"]);
    assert_words(&error, &["tensor w: scale 0 is inf", "so large", "quantize smaller values"]);
    assert_eq!(folder.names(), ["in"]);
    // In two parts of 2 MiB it is said alike; an infinity of the second is what is wrong, whatever is too large in the first.
    let (rows, cols) = (256, 4096);
    let mut many: Vec<f32> = signs.iter().copied().cycle().take(rows * cols).collect();
    for (words, infinite) in
        [("tensor w: scale 0 is inf", false), ("1 non-finite value, the first at row 255, column 7", true)]
    {
        if infinite {
            many[255 * cols + 7] = f32::INFINITY;
        }
        write(&input, &[("w", Dtype::F32, vec![rows, cols], f32_bytes(&many))]);
        let error = bad(2, &["quantize", &input, "-o", &packed, "--recipe", "nvfp4", "--hadamard"]);
        assert_words(&error, &[words]);
        assert_eq!(folder.names(), ["in"]);
    }
}

#[test]
fn a_product_beyond_the_output_type_is_counted() {
    let folder = Folder::new();
    let (a, b, d) = (folder.file("a"), folder.file("b"), folder.file("d"));
    // One row of 16 * 448 * 448 = 3211264 and one of zeros; the same a thousand times smaller, and beyond FP32.
    let rows = |codes: &[u8], scale: f32| -> Vec<Tensor<'static>> {
        let bytes = codes.iter().flat_map(|code| [*code; 16]).collect();
        let matrix = ("w", Dtype::F8_E4M3, vec![codes.len(), 16], bytes);
        vec![matrix, ("w_scale", Dtype::F32, vec![1], f32_bytes(&[scale]))]
    };
    write(&a, &rows(&[0x7E, 0], 1.0));
    for (scale, dtype, infinite) in [(1.0, "f16", 8), (1.0, "bf16", 0), (1e-3, "f16", 0), (3e38, "f32", 8)] {
        write(&b, &rows(&[0x7E; 8], scale));
        let args = ["gemm", "--a", &format!("{a}:w"), "--b", &format!("{b}:w"), "--out-dtype", dtype, "-o", &d];
        let args = args.map(str::to_string);
        let mut args: Vec<_> = args.iter().map(String::as_str).collect();
        let text = good(&args);
        assert_eq!(
            text.contains(&format!("8 values are infinite: beyond the range of {dtype}")),
            infinite == 8,
            "{text}"
        );
        args.push("--json");
        assert_eq!(json(&args)["infinite"], infinite);
    }
}

#[test]
fn a_hadamard_matrix_is_checked_after_its_transform() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("in"), folder.file("q"), folder.file("back"));
    let large: Vec<f32> = values(16 * 32, 1).iter().map(|v| v * 1e6).collect();
    write(&input, &[("w", Dtype::F32, vec![16, 32], f32_bytes(&large))]);
    good(&["quantize", &input, "-o", &packed, "--recipe", "nvfp4", "--hadamard"]);
    let error = bad(2, &["dequantize", &packed, "-o", &back, "--dtype", "f16"]);
    assert_words(&error, &["tensor w", "beyond the range of f16"]);
    good(&["dequantize", &packed, "-o", &back]);
}

#[test]
fn codes_that_are_no_matrix_are_refused_not_copied() {
    let folder = Folder::new();
    let (input, back) = (folder.file("in"), folder.file("back"));
    let matrix = [("m", Dtype::F8_E4M3, vec![4, 16], vec![1; 64]), ("m_scale", Dtype::F32, vec![1], f32_bytes(&[1.0]))];
    let scale = ("w_scale", Dtype::F32, vec![1], f32_bytes(&[1.0]));
    let packed_scale = ("w_scale", Dtype::F8_E4M3, vec![2, 2, 1], vec![0x38; 4]);
    let second = ("w_scale_2", Dtype::F32, vec![1], f32_bytes(&[1.0]));
    let others: [(&str, Vec<Tensor>); 4] = [
        ("[64]", vec![("w", Dtype::F8_E4M3, vec![64], vec![1; 64]), scale.clone()]),
        ("[2, 2, 16]", vec![("w", Dtype::F8_E5M2, vec![2, 2, 16], vec![1; 64]), scale.clone()]),
        ("[2, 2, 8]", vec![("w", Dtype::U8, vec![2, 2, 8], vec![1; 32]), packed_scale, second]),
        ("no scale", vec![("w", Dtype::F8_E4M3, vec![64], vec![1; 64])]),
    ];
    for (words, tensors) in others {
        write(&input, &[&matrix[..], &tensors].concat());
        let error = bad(2, &["dequantize", &input, "-o", &back]);
        assert_words(&error, &["tensor w", words]);
        assert_eq!(folder.names(), ["in"]);
    }
    // Bytes that nobody calls codes are copied.
    write(&input, &[&matrix[..], &[("ids", Dtype::U8, vec![2, 2, 8], vec![7; 32])]].concat());
    good(&["dequantize", &input, "-o", &back]);
    let bytes = fs::read(&back).unwrap();
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().tensor("ids").unwrap().data(), [7; 32]);
}

#[test]
fn what_cannot_be_quantized_says_why() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    let quantize = |options: &[&'static str]| bad(2, &[&["quantize", &input, "-o", &packed], options].concat());
    let doubles: Vec<u8> = values(64, 1).iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
    write(&input, &[("d", Dtype::F64, vec![4, 16], doubles)]);
    assert_words(
        &quantize(&["--recipe", "fp8-row"]),
        &["no matrix to quantize among its 1 tensor;", "F64", "F32", "1 (d [4, 16])"],
    );
    write(&input, &[f32_tensor("w", [24, 32], 1), f32_tensor("odd", [4, 30], 1)]);
    let error = quantize(&["--recipe", "nvfp4", "--tile-16x16", "--four-over-six", "mae"]);
    assert_words(&error, &["rows not a multiple of 16, which 4over6 in 16x16 tiles needs: 1 (w [24, 32])"]);
    assert_words(&error, &["columns not a multiple of 16: 1 (odd [4, 30])", "2 tensors"]);
    let error = quantize(&["--recipe", "nvfp4", "--only", "^odd$"]);
    assert_words(&error, &["--only ^odd$", "columns not a multiple of 16"]);
    assert!(!error.contains("[24, 32]"), "{error}");
}

#[test]
fn one_row_of_another_writer_multiplies_128x128_weights() {
    let folder = Folder::new();
    let (x, w, qw, d) = (folder.file("x"), folder.file("w"), folder.file("qw"), folder.file("d"));
    // 256 ones with two scales, as DeepSeek's kernels leave a token's activations.
    let codes = ("x", Dtype::F8_E4M3, vec![1, 256], vec![0x38; 256]);
    write(&x, &[codes, ("x_scale_inv", Dtype::F32, vec![1, 2], f32_bytes(&[1.0, 2.0]))]);
    write(&w, &[("w", Dtype::F32, vec![8, 256], f32_bytes(&[1.0; 8 * 256]))]);
    good(&["quantize", &w, "-o", &qw, "--recipe", "fp8-128x128"]);
    good(&["gemm", "--a", &format!("{x}:x"), "--b", &format!("{qw}:w"), "--out-dtype", "f32", "-o", &d]);
    assert!(read_f32(&d, "d").1.iter().all(|v| (v - 384.0).abs() < 1e-2));
}

/// (The help spoke of mxfp8 and nvfp4 alone.)
#[test]
fn mxfp4_takes_what_the_help_says() {
    let help = String::from_utf8(run_bare(&["quantize", "--help"]).stdout).unwrap();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_words(
        &help,
        &["mxfp8 and mxfp4 with --mx-rounding up", "6 times its scales in nvfp4 and mxfp4, which have no NaN"],
    );
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    let mut x = values(16 * 64, 1);
    (x[3], x[40]) = (f32::NAN, f32::INFINITY);
    write(&input, &[("w", Dtype::F32, vec![16, 64], f32_bytes(&x))]);
    let args = ["quantize", &input, "-o", &packed, "--recipe", "mxfp4", "--allow-non-finite"];
    let floor = bad(2, &[&args[..], &["--mx-rounding", "floor"]].concat());
    assert_words(&floor, &["tensor w: 1 infinity", "row 0, column 40", "or use --mx-rounding up"]);
    assert_words(&good(&[&args[..], &["--mx-rounding", "up"]].concat()), &["w: 1 NaN and 1 infinity"]);
    // NaN is code 7 of its block, with the scale that the others have.
    let q = scaled_gemm::checkpoint::Checkpoint::open(&packed).unwrap().quant_matrix("w").unwrap();
    let back = scaled_gemm::reference::dequantize(&q, scaled_gemm::DType::F32);
    let largest = x[..32].iter().filter(|v| v.is_finite()).fold(0.0_f32, |a, v| a.max(v.abs()));
    assert!(back[(0, 3)] >= largest && back[(0, 3)] <= 2.0 * largest, "{} of {largest}", back[(0, 3)]);
    assert!(back[(0, 40)].is_infinite());
}

/// (Nothing was said, and `dequantize` refused what was written.)
#[test]
fn values_that_became_infinite_are_said() {
    let folder = Folder::new();
    let (input, output, back) = (folder.file("in"), folder.file("out"), folder.file("back"));
    // In two blocks.
    write(&input, &[with(&[(33, 3.3e38), (70, -3.3e38)]), f32_tensor("v", [16, 32], 1)]);
    for (recipe, rounding) in
        [("mxfp8", "even"), ("mxfp8", "rceil"), ("mxfp4", "even"), ("mxfp8", "floor"), ("mxfp4", "floor")]
    {
        let args = ["quantize", &input, "-o", &output, "--recipe", recipe, "--mx-rounding", rounding];
        let value = json(&[&args[..], &["--json"]].concat());
        let text = good(&args);
        let refused = !run_on("cpu", &["dequantize", &output, "-o", &back, "--dtype", "f32"]).status.success();
        let says = text.contains(
            "w: 2 values are beyond FP32 as they were quantized, and come back infinite; scale them down, or ",
        );
        let counted =
            &value["quantized"].as_array().unwrap().iter().find(|one| one["tensor"] == "w").unwrap()["beyond_fp32"];
        assert_eq!((says, counted == 2), (refused, refused), "{recipe} {rounding}: {text} {value}");
        assert_eq!(refused, rounding != "floor", "{recipe} {rounding}");
        assert!(!text.contains("v: "), "{text}");
    }
    // (The rounding of MX scales was said to be the remedy of casts and of FP8, too, which refuse it.)
    let remedy = "fp8 and --group: exact scales, without --power-of-two and --scales ue8m0";
    for (to, powers) in [
        (["--group", "1x32"], &["--scales", "ue8m0"][..]),
        (["--group", "1x32"], &["--power-of-two"]),
        (["--recipe", "fp8-row"], &["--power-of-two"]),
    ] {
        let args = [&["quantize", &input, "-o", &output][..], &to].concat();
        let text = good(&[&args[..], powers].concat());
        assert_words(&text, &["w: 2 values are beyond FP32", remedy]);
        assert!(!good(&args).contains("beyond FP32"), "{to:?}");
        good(&["dequantize", &output, "-o", &back, "--dtype", "f32"]);
    }
}

/// (Without a word.)
#[test]
fn a_matrix_that_became_zeros_is_said() {
    let folder = Folder::new();
    let (input, output, back) = (folder.file("in"), folder.file("out"), folder.file("back"));
    let tiny: Vec<f32> = values(16 * 32, 1).iter().map(|v| v * 1e-40).collect();
    let tensor = |name, values: &[f32]| (name, Dtype::F32, vec![16, 32], f32_bytes(values));
    write(&input, &[tensor("tiny", &tiny), tensor("zeros", &[0.0; 512]), tensor("w", &values(512, 1))]);
    let recipes = ["fp8-tensor", "fp8-row", "fp8-1x128", "fp8-128x128", "mxfp8", "mxfp4", "nvfp4", "nvfp4-row"];
    let mut said = 0;
    for option in recipes.map(|recipe| ["--recipe", recipe]).into_iter().chain([["--group", "1x16"]]) {
        let args = [&["quantize", &input, "-o", &output], &option[..]].concat();
        let value = json(&[&args[..], &["--json"]].concat());
        let text = good(&args);
        good(&["dequantize", &output, "-o", &back, "--dtype", "f32"]);
        for name in ["tiny", "zeros", "w"] {
            let became = name == "tiny" && read_f32(&back, name).1.iter().all(|v| *v == 0.0);
            let words = format!("{name}: all its values became 0, and not all were; scale them up, or leave");
            assert_eq!(text.contains(&words), became, "{option:?}: {text}");
            let one = value["quantized"].as_array().unwrap().iter().find(|one| one["tensor"] == name).unwrap();
            assert_eq!(one["became_zeros"] == true, became, "{option:?}: {value}");
            said += usize::from(became);
        }
    }
    assert!(said >= 6, "{said} recipes make zeros of them");
}

/// (Of a matrix that has other values nothing was said.)
#[test]
fn groups_that_became_zeros_are_said_with_their_number() {
    let folder = Folder::new();
    let (input, output, back) = (folder.file("in"), folder.file("out"), folder.file("back"));
    // Rows 2 to 4 are tiny, but for columns 64 to 96 of row 3; those of row 5 are zeros, as they were. Columns 7, 12, 20 and 21 are
    // tiny too: of a byte of two columns the one, the other, and both.
    let mut x = values(128 * 128, 1);
    for column in [7, 12, 20, 21] {
        x.iter_mut().skip(column).step_by(128).for_each(|v| *v *= 1e-42);
    }
    x[2 * 128..5 * 128].iter_mut().for_each(|v| *v *= 1e-42);
    x[3 * 128 + 64..][..32].fill(1.0);
    x[5 * 128..][..128].fill(0.0);
    // Nor is a matrix told of that keeps all of its groups.
    let tensor = |name, values: &[f32]| (name, Dtype::F32, vec![128, 128], f32_bytes(values));
    write(&input, &[tensor("w", &x), tensor("v", &values(128 * 128, 2))]);
    let mut said = 0;
    for (option, [height, width]) in [
        (&["--recipe", "fp8-row"][..], [1, 128]),
        (&["--recipe", "fp8-1x128"], [1, 128]),
        (&["--recipe", "mxfp8"], [1, 32]),
        (&["--recipe", "mxfp4"], [1, 32]),
        (&["--recipe", "nvfp4"], [1, 16]),
        (&["--recipe", "nvfp4-row"], [1, 16]),
        (&["--group", "1x16"], [1, 16]),
        (&["--group", "1x64", "--format", "e2m1", "--scales", "ue8m0"], [1, 64]),
        (&["--group", "32x1", "--transposed"], [32, 1]),
        (&["--group", "32x32"], [32, 32]),
        // Two groups in each byte.
        (&["--group", "32x1", "--format", "e2m1"], [32, 1]),
        (&["--group", "128x1", "--format", "e2m1"], [128, 1]),
        (&["--group", "128x1", "--format", "e2m1", "--scales", "ue8m0"], [128, 1]),
    ] {
        let args = [&["quantize", &input, "-o", &output], option].concat();
        let value = json(&[&args[..], &["--json"]].concat());
        let text = good(&args);
        good(&["dequantize", &output, "-o", &back, "--dtype", "f32"]);
        let (_, found) = read_f32(&back, "w");
        let is_zero = |values: &[f32], i: usize, j: usize| {
            (0..height).all(|row| (0..width).all(|col| values[(i * height + row) * 128 + j * width + col] == 0.0))
        };
        let places = (0..128 / height).flat_map(|i| (0..128 / width).map(move |j| (i, j)));
        let all = 128 / height * (128 / width);
        let zeros = places.filter(|&(i, j)| is_zero(&found, i, j) && !is_zero(&x, i, j)).count();
        // (It was to scale them up of all of them: a second level of the whole is that of the largest value, scaled or not.)
        let remedy = if option[1] == "nvfp4" { "leave the matrix as it is (--exclude)\n" } else { "scale them up" };
        let words = format!("w: all values of {zeros} of its {all} groups became 0, and not all were; {remedy}");
        assert_eq!(text.contains(&words), zeros > 0, "{option:?}, {zeros}: {text}");
        assert_eq!(text.matches("became 0").count(), usize::from(zeros > 0), "{option:?}: {text}");
        let one = value["quantized"].as_array().unwrap().iter().find(|one| one["tensor"] == "w").unwrap();
        assert_eq!(one["zero_groups"], zeros, "{option:?}: {value}");
        said += usize::from(zeros > 0);
    }
    assert!(said >= 9, "{said} recipes make zeros of some groups");
}

/// (The remedy was to scale them up, or to leave the matrix, and an amax of its own size keeps them.)
#[test]
fn groups_that_became_zeros_by_a_given_amax_are_said_so() {
    let folder = Folder::new();
    let (input, output, file) = (folder.file("in"), folder.file("out"), folder.file("amax.json"));
    // A quarter of the rows are small, or one of them is tiny.
    let mut x = values(64 * 64, 1);
    x[..16 * 64].iter_mut().for_each(|v| *v *= 1e-4);
    let largest = x.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let mut tiny = x.clone();
    tiny[..64].iter_mut().for_each(|v| *v *= 1e-9);
    let tensor = |name, values: &[f32]| (name, Dtype::F32, vec![64, 64], f32_bytes(values));
    for (x, amax, zeros, is_given) in [
        (&x, 100.0 * largest, true, true),
        (&x, largest, false, false),
        (&tiny, largest, true, false),
        (&tiny, largest * 1.5, true, false),
        (&tiny, 100.0 * largest, true, true),
    ] {
        write(&input, &[tensor("w", x), tensor("v", &values(64 * 64, 2))]);
        fs::write(&file, format!("{{\"w\": {amax:e}}}")).unwrap();
        let text = good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--weight-amax", &file]);
        let line = text.lines().find(|line| line.contains("groups became 0"));
        assert_eq!(line.is_some(), zeros, "{amax}: {text}");
        let words = match is_given {
            true => format!(" and the largest of its values is {largest}; give an amax near it"),
            // (They were to be scaled up, which a second level makes nothing of.)
            false => "not all were; leave the matrix as it is (--exclude)".into(),
        };
        if let Some(line) = line {
            assert!(line.ends_with(&words), "{amax}: {line}");
            assert_eq!(line.contains(" groups became 0, and not all were, by the given amax "), is_given, "{line}");
        }
    }
}

/// ("scale them up": what shares a row or a tile with large values is as small beside them whatever all are scaled by.)
#[test]
fn scaling_is_not_advised_for_groups_beside_large_values_of_their_scale() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let columns: Vec<f32> = (0..64 * 128).map(|i| if i % 128 < 64 { 1e-8 } else { 1.0 }).collect();
    let rows: Vec<f32> = (0..64 * 128).map(|i| if i / 128 % 16 == 0 { 1e-4 } else { 1e-9 }).collect();
    for (x, options) in [(columns, &["nvfp4-row"][..]), (rows, &["nvfp4", "--tile-16x16"])] {
        write(&input, &[("w", Dtype::F32, vec![64, 128], f32_bytes(&x))]);
        let text = good(&[&["quantize", &input, "-o", &output, "--recipe"], options].concat());
        assert_words(&text, &["w: all values of ", "became 0, and not all were; "]);
        assert!(!text.contains("scale them up"), "{options:?}: {text}");
    }
}
