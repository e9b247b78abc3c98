//! `bench --quantizers`: every quantizer, cast and producer is timed, and the bytes are those that it must move.

mod common;

use std::fs;

use common::*;
use scaled_gemm::CastGroup;
use serde_json::{Value, json};

#[test]
fn every_quantizer_cast_and_producer_is_timed() {
    let folder = Folder::new();
    let record = folder.file("record.json");
    let shape = ["bench", "--quantizers", "--shapes", "16x16x128,8x16x48"];
    let value = json(&[&shape[..], &["--json"]].concat());
    let rows = value["rows"].as_array().unwrap();
    for format in ["e4m3", "e2m1"] {
        for group in CastGroup::ALL {
            let to = format!("cast to {format} {group} row-major");
            let times: Vec<_> =
                rows.iter().filter(|row| row["from"] == json!("bf16") && row["to"] == json!(to)).collect();
            assert_eq!(times.len(), 2, "{to}");
            let copy = value["copy_bytes_per_second"].as_f64().unwrap();
            for row in times {
                let [us, bytes, share] = ["us", "bytes", "of_copy_rate"].map(|key| row[key].as_f64().unwrap());
                assert!(us > 0.0 && (bytes / us * 1e6 / copy - share).abs() <= 1e-6 * share, "{row:#}");
            }
        }
    }
    let timed = |from: &str, to: &str| {
        let found = rows.iter().filter(|row| row["from"] == json!(from) && row["to"] == json!(to)).count();
        assert!(found > 0, "{from} to {to}");
    };
    let products = [
        "fp8-row:e4m3",
        "fp8-1x128:e4m3",
        "fp8-tensor:e4m3, given scale",
        "mxfp8:e4m3",
        "mxfp4",
        "nvfp4, given scale",
        "nvfp4-row",
    ];
    let names = ["swiglu", "silu", "gelu", "gelu-tanh", "rms norm"];
    let norms = ["rms norm of bf16 and a residual".to_string()];
    for from in names.into_iter().map(|name| format!("{name} of bf16")).chain(norms) {
        products.into_iter().for_each(|to| timed(&from, to));
        for to in ["e4m3 1x128", "e4m3 row", "e4m3 128x1", "e4m3 128x128", "e4m3 1x32", "e2m1 1x32"] {
            timed(&from, &format!("cast to {to} column-major"));
        }
    }
    for group in CastGroup::ALL {
        timed("swiglu of bf16", &format!("cast to e4m3 {group} column-major"));
        for format in ["e4m3", "e2m1"] {
            timed(&format!("{format} {group} row-major"), "bf16");
        }
    }
    for group in ["1x16", "1x32", "1x64", "1x128"] {
        for order in ["column-major", "ue8m0"] {
            timed("bf16", &format!("cast to e4m3 {group} {order}"));
            timed("bf16", &format!("cast to e2m1 {group} {order}"));
        }
    }
    ["f16", "f32"].into_iter().for_each(|out| timed("e4m3 1x128 row-major", out));
    let all = "clamp, counts, weights, experts";
    for beside in ["clamp", "clamp and counts", "weights", "experts, a quarter skipped", all] {
        timed(&format!("swiglu of bf16, {beside}"), "cast to e4m3 1x128 column-major");
    }
    timed(&format!("swiglu of bf16, {all}"), "mxfp8:e4m3");
    for (from, to) in [
        ("bf16", "e4m3 1x128"),
        ("bf16", "e4m3 128x1"),
        ("bf16", "e2m1 1x32"),
        ("swiglu of bf16", "e4m3 1x128"),
        ("silu of bf16", "e4m3 1x128"),
        ("e4m3 1x128 row-major", "e4m3 128x1"),
    ] {
        timed(&format!("chosen rows of {from}"), &format!("cast to {to} row-major"));
    }
    for group in ["32x1", "128x1"] {
        timed("swiglu of bf16", &format!("cast to e4m3 {group} row-major transposed"));
    }
    for x in ["bf16", "e4m3 1x128 row-major"] {
        let from = format!("gradients of swiglu of {x}");
        for to in ["1x32 row-major", "1x128 row-major", "1x128 row-major, bf16, the result, weights"] {
            timed(&from, &format!("cast to e4m3 {to}"));
        }
        let beside = format!("{from}, clamp, weights, experts");
        timed(&beside, "cast to e4m3 1x128 row-major, bf16, the result, weights");
        for to in ["fp8-1x128:e4m3", "mxfp8:e4m3"] {
            timed(&from, to);
            timed(&from, &format!("{to}, bf16, the result, weights"));
        }
    }
    for of in ["tensor", "row", "1x128", "128x128"] {
        timed("bf16", &format!("fp8-{of}:e4m3, and transposed"));
    }
    for to in ["nvfp4, transformer-engine, hadamard", "nvfp4, transformer-engine, stochastic, seed 1"] {
        timed("bf16", to);
    }
    for to in ["e4m3 1x32", "e4m3 128x1", "e2m1 1x16", "e2m1 1x128", "e2m1 128x1"] {
        timed("e4m3 1x128 row-major", &format!("cast to {to} row-major"));
    }
    for to in ["1x128", "128x1"] {
        timed("e2m1 1x32 row-major", &format!("cast to e4m3 {to} row-major"));
    }
    for part in ["given scales", "scales alone"] {
        for to in ["e4m3 1x128", "e4m3 row", "e4m3 128x128", "e4m3 128x1", "e2m1 1x32", "e2m1 1x128"] {
            timed("bf16", &format!("cast to {to} row-major, {part}"));
        }
    }
    let row = |to: &str| rows.iter().find(|row| row["to"] == json!(to) && row["rows"] == json!(16)).unwrap();
    let gradients_of = |to: &str| {
        let of = json!("gradients of swiglu of bf16");
        rows.iter().find(|row| row["from"] == of && row["to"] == json!(to) && row["rows"] == json!(16)).unwrap()
    };
    // 2 bytes an element read, 1 written, and a scale of 4 bytes a row.
    assert_eq!(row("cast to e4m3 1x32 row-major")["bytes"], json!(16 * 128 * 3 + 16 * 4 * 4));
    assert_eq!(row("fp8-row:e4m3")["bytes"], json!(16 * 128 * 3 + 16 * 4));
    assert_eq!(row("fp8-row:e4m3, and transposed")["bytes"], json!(16 * 128 * 4 + 16 * 4 + 128 * 4));
    // Gradients of both halves in MXFP8: a byte for each and for each 32 of them.
    assert_eq!(gradients_of("mxfp8:e4m3")["bytes"], json!((2 + 1) * 16 * 128 * 2 + 2 * 16 * (128 + 4)));
    // The first that is cast back has groups of 16.
    assert_eq!(row("bf16")["bytes"], json!(16 * 128 + 16 * 8 * 4 + 16 * 128 * 2));
    // Both halves and the gradient in BF16, their gradients in E4M3 with a scale for each 128; beside them as much in BF16, the result, and
    // a number for each row.
    let gradients = (2 + 1) * 16 * 128 * 2 + 2 * (16 * 128 + 16 * 4);
    let with_all = row("cast to e4m3 1x128 row-major, bf16, the result, weights")["bytes"].as_u64().unwrap();
    assert_eq!(with_all, gradients + 3 * 16 * 128 * 2 + 16 * 4);
    let of_sum =
        |row: &&Value| row["from"] == json!("rms norm of bf16 and a residual") && row["to"] == json!("nvfp4-row");
    let of_sum = rows.iter().filter(|row| row["rows"] == json!(16)).find(of_sum).unwrap();
    assert_eq!(of_sum["bytes"], json!(3 * 16 * 128 * 2 + 16 * (64 + 8 + 4)));
    let bytes = |from: &str, to: &str| {
        let found = rows.iter().find(|row| row["from"] == json!(from) && row["to"] == json!(to));
        found.unwrap_or_else(|| panic!("{from} to {to}"))["bytes"].as_u64().unwrap()
    };
    // Shapes come in order: the first rows are those of 8 x 48.
    let (of_swiglu, cast) = (8 * 48 * 2 * 2, 8 * 48 + 8 * 4);
    assert_eq!(bytes("swiglu of bf16", "cast to e4m3 1x128 column-major"), of_swiglu + cast);
    // Two of eight rows are not read; a weight and an expert for each; three counts.
    let read = of_swiglu / 8 * 6 + 8 * 4 * 2 + 24;
    assert_eq!(bytes(&format!("swiglu of bf16, {all}"), "cast to e4m3 1x128 column-major"), read + cast);
    assert_eq!(bytes("chosen rows of bf16", "cast to e4m3 1x128 row-major"), 8 * 48 * 2 + 8 * 4 + cast);
    assert_eq!(bytes("e4m3 1x128 row-major", "f32"), cast + 8 * 48 * 4);
    for (from, to) in
        [("e2m1 1x32 ue8m0", "e4m3 1x128 ue8m0, lossless"), ("e4m3 1x128 row-major", "cast to e4m3 1x32 row-major")]
    {
        assert!(rows.iter().any(|row| row["from"] == json!(from) && row["to"] == json!(to)), "{from} to {to}");
    }
    // Eight rows are not stored as columns: casts, SwiGLU, FP8 in both directions; halves of 48 columns have no whole groups of 32.
    assert_eq!(value["not_run"].as_array().unwrap().len(), 4 + 2 + 4 + 16);
    let text = good(&[&shape[..], &["--json", &record]].concat());
    assert_words(
        &text,
        &["of the copy rate", "swiglu of bf16", "cast to e2m1 128x1 row-major transposed", "not run: 8 x 48"],
    );
    let written: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    assert_eq!(written["rows"].as_array().unwrap().len(), rows.len());
    assert_words(&bad(2, &["bench", "--quantizers", "--schemes", "nvfp4"]), &["--quantizers", "--schemes"]);
    assert_words(&bad(2, &["bench", "--quantizers", "--activations", "bf16"]), &["--quantizers", "--activations"]);
    assert_words(
        &bad(2, &["bench", "--quantizers", "--shapes", "16x16x20"]),
        &["nothing to measure", "multiple of 16"],
    );
}
