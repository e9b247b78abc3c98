//! Values that are written as zeros and were none, each too small for what it is written in.

mod common;

use common::*;
use safetensors::tensor::Dtype;
use serde_json::Value;

const E4M3: Dtype = Dtype::F8_E4M3;

/// A file, the type asked for, and how many values are too small for it, with the types that are not.
type Case<'a> = (Vec<Tensor<'a>>, &'a str, Option<(usize, &'a str)>);

/// (Nothing was said, however many they were.)
#[test]
fn dequantize_says_how_many_values_are_too_small_for_the_type() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    // Codes of 1, but for the first, which is 0.
    let codes = |others: u8| (0..16).map(|i| if i == 0 { 0 } else { others }).collect::<Vec<u8>>();
    let one_scale = |scale: f32| ("w_scale", Dtype::F32, vec![1], f32_bytes(&[scale]));
    let mixed: Vec<u8> = (0..16).map(|i| if i == 7 { 0x01 } else { 0x38 }).collect();
    let cases: Vec<Case<'_>> = vec![
        (vec![("w", E4M3, vec![1, 16], codes(0x38)), one_scale(1e-12)], "f16", Some((15, "bf16 or f32"))),
        (vec![("w", E4M3, vec![1, 16], codes(0x38)), one_scale(1e-12)], "bf16", None),
        (vec![("w", E4M3, vec![1, 16], codes(0x38)), one_scale(1e-41)], "f16", Some((15, "f32"))),
        (vec![("w", E4M3, vec![1, 16], codes(0x38)), one_scale(1e-41)], "bf16", Some((15, "f32"))),
        (vec![("w", E4M3, vec![1, 16], codes(0x38)), one_scale(1e-41)], "f32", None),
        // One of them alone, and one in each type.
        (vec![("w", E4M3, vec![1, 16], mixed.clone()), one_scale(1e-6)], "f16", Some((1, "bf16 or f32"))),
        (vec![("w", E4M3, vec![1, 16], mixed.clone()), one_scale(1e-4)], "f16", None),
        // Of a scale of 0 another thing is said.
        (vec![("w", E4M3, vec![1, 16], mixed), one_scale(0.0)], "f16", None),
        // 2^-127 times 2^-9, which BF16 does not reach.
        (
            vec![("w", E4M3, vec![1, 32], [0x01; 32].to_vec()), ("w_scale", Dtype::U8, vec![1, 1], vec![0])],
            "bf16",
            Some((32, "f32")),
        ),
        // Codes of 0.5 with block scales of 2^-9.
        (
            vec![
                ("w", Dtype::U8, vec![1, 8], vec![0x11; 8]),
                ("w_scale", E4M3, vec![1, 1], vec![1]),
                ("w_scale_2", Dtype::F32, vec![1], f32_bytes(&[1e-5])),
            ],
            "f16",
            Some((16, "bf16 or f32")),
        ),
    ];
    for (tensors, dtype, want) in cases {
        write(&input, &tensors);
        let args = ["dequantize", &*input, "-o", &output, "--dtype", dtype];
        let value = json(&[&args[..], &["--json"]].concat());
        let notes: Vec<&str> = value["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let text = said(&args);
        let Some((number, other)) = want else {
            assert!(!text.contains("too small"), "{text}");
            continue;
        };
        let line = match number {
            1 => format!(
                "1 value of 1 matrix (w) became 0 and was not: it is too small for {dtype}; --dtype {other} keeps it"
            ),
            _ => format!(
                "{number} values of 1 matrix (w) became 0 and were not: they are too small for {dtype}; --dtype {other} keeps them"
            ),
        };
        let line = format!("{input}: {line}");
        assert_words(&text, &[&line]);
        assert!(notes.contains(&&*line), "{notes:?}");
        // What is advised says nothing of the kind.
        for dtype in other.split(" or ") {
            let text = said(&["dequantize", &input, "-o", &output, "--dtype", dtype]);
            assert!(!text.contains("too small"), "{dtype}: {text}");
        }
    }
}

/// (Only of an amax that was given it was said.)
#[test]
fn quantize_says_where_most_values_of_a_matrix_became_zero() {
    let folder = Folder::new();
    let (input, output, back) = (folder.file("in"), folder.file("out"), folder.file("back"));
    // A row has one value that is a million times the others, or a block has; and half of the values are zeros, as they stay.
    let wide = |every: usize| -> Vec<f32> {
        (0..64 * 128).map(|i| if i % every == 0 { 1.0 } else { 1e-6 * (i % 2) as f32 }).collect()
    };
    let (rows, blocks, even) = (wide(128), wide(32), values(64 * 128, 1));
    let tensor = |name, values: &[f32]| (name, Dtype::F32, vec![64, 128], f32_bytes(values));
    for (x, recipe, is_said, remedy) in [
        (&rows, &["--recipe", "fp8-tensor"][..], true, "use --recipe mxfp8"),
        (&rows, &["--recipe", "fp8-row"], true, "use --recipe mxfp8"),
        (&rows, &["--group", "1x128"], true, "use --recipe mxfp8"),
        (&rows, &["--group", "1x128", "--format", "e2m1"], true, "use --recipe mxfp8"),
        (&rows, &["--recipe", "mxfp8"], false, ""),
        (&blocks, &["--recipe", "mxfp8"], true, "use --recipe mxfp8 --format e5m2"),
        (&blocks, &["--recipe", "mxfp8", "--format", "e5m2"], false, ""),
        (&even, &["--recipe", "fp8-tensor"], false, ""),
        (&even, &["--recipe", "nvfp4"], false, ""),
    ] {
        write(&input, &[tensor("w", x)]);
        let args = [&["quantize", &input, "-o", &output], recipe].concat();
        let one = &json(&[&args[..], &["--json"]].concat())["quantized"][0];
        let text = good(&args);
        good(&["dequantize", &output, "-o", &back, "--dtype", "f32"]);
        let is_lost = |(x, back): &(&f32, &f32)| **x != 0.0 && **back == 0.0;
        let zeros = x.iter().zip(&read_f32(&back, "w").1).filter(is_lost).count();
        let all = x.iter().filter(|value| **value != 0.0).count();
        assert_eq!(one["zero_values"], zeros, "{recipe:?}: {one}");
        assert_eq!(zeros > all / 2, is_said, "{recipe:?}: {zeros} of {all}");
        let line = format!("w: {zeros} of {all} values that are not zero became zero; {remedy}\n");
        assert_eq!(text.contains(&line), is_said, "{recipe:?}: {text}");
        assert_eq!(text.contains("became zero"), is_said, "{recipe:?}: {text}");
    }
    // Another recipe would be for the others, too.
    write(&input, &[tensor("w", &rows), tensor("v", &even)]);
    let text = good(&["quantize", &input, "-o", &output, "--recipe", "fp8-tensor"]);
    assert_words(
        &text,
        &["w: 4096 of 4160 values that are not zero became zero; leave the matrix as it is (--exclude)\n"],
    );
    assert_eq!(text.matches("became zero").count(), 1, "{text}");
}
