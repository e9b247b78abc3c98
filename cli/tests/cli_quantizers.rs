//! `bench --quantizers`: every quantizer, cast and producer is timed, and the bytes are those that it must move.

mod common;

use std::collections::HashSet;
use std::fs;

use common::*;
use scaled_gemm::{CastGroup, CastScales, CastScheme, CodeFormat, Fp8Format, Scheme};
use serde_json::{Value, json};

/// Every cast in every order of scales.
fn casts() -> Vec<CastScheme> {
    CastScheme::all().collect()
}

/// Every cast with scales in one order.
fn casts_in(order: CastScales) -> Vec<CastScheme> {
    casts().into_iter().filter(|scheme| scheme.scales() == order).collect()
}

#[test]
fn every_quantizer_cast_and_producer_is_timed() {
    let shape = ["bench", "--quantizers", "--shapes", "16x16x128,8x16x48"];
    let value = json(&[&shape[..], &["--json"]].concat());
    let rows = value["rows"].as_array().unwrap();
    let copy = value["copy_bytes_per_second"].as_f64().unwrap();
    let mut lines = HashSet::new();
    for row in rows {
        let [us, bytes, share] = ["us", "bytes", "of_copy_rate"].map(|key| row[key].as_f64().unwrap());
        assert!(us > 0.0 && (bytes / us * 1e6 / copy - share).abs() <= 1e-6 * share, "{row:#}");
        let [from, to] = ["from", "to"].map(|key| row[key].as_str().unwrap().to_string());
        assert!(lines.insert((from, to, row["rows"].as_u64().unwrap())), "timed twice: {row:#}");
    }
    // Eight rows are not stored as columns, and halves of 48 columns have no whole groups of 32: these are timed at the other shape alone.
    let timed = |from: &str, to: &str| {
        let refused = to.contains("transposed") || from.ends_with("transposed") || from.starts_with("gradients");
        let found = [16, 8].map(|rows| lines.contains(&(from.to_string(), to.to_string(), rows)));
        assert_eq!(found, [true, !refused], "{from} to {to}");
    };
    // From the library's lists: what is new is missing here.
    let products = |given: &str| {
        let name = move |scheme: &Scheme| match scheme {
            Scheme::Fp8Tensor(_) | Scheme::Nvfp4 => format!("{scheme}{given}"),
            _ => scheme.to_string(),
        };
        Scheme::ALL.iter().map(name).collect::<Vec<_>>()
    };
    products("").iter().for_each(|to| timed("bf16", to));
    for scheme in casts() {
        timed("bf16", &format!("cast to {scheme}"));
    }
    let norms = ["rms norm of bf16", "rms norm of bf16 and a residual"];
    for from in ["swiglu", "silu", "gelu", "gelu-tanh"]
        .map(|name| format!("{name} of bf16"))
        .iter()
        .map(String::as_str)
        .chain(norms)
    {
        for scheme in casts_in(CastScales::ColumnMajor) {
            timed(from, &format!("cast to {scheme}"));
        }
        // Tiles are for weights; rows and groups of FP8 are written by casts, which have E4M3 alone.
        let refused = ["fp8-row:e5m2", "fp8-1x128:e5m2", "fp8-128x128:e4m3", "fp8-128x128:e5m2"].map(String::from);
        for to in products(", given scale").iter().filter(|to| !refused.contains(to)) {
            timed(from, to);
        }
    }
    for scheme in casts_in(CastScales::RowMajor) {
        timed(&scheme.to_string(), "bf16");
        for part in ["given scales", "scales alone"] {
            timed("bf16", &format!("cast to {scheme}, {part}"));
        }
        // What is cast again has scales of powers of two.
        for from in ["e4m3 1x128 row-major", "e2m1 1x32 row-major"] {
            timed(from, &format!("cast to {scheme}"));
        }
    }
    for order in ["column-major", "ue8m0"] {
        timed("e4m3 1x128 ue8m0", &format!("cast to e4m3 1x128 {order}"));
    }
    for dtype in ["f16", "f32"] {
        for to in ["e4m3 1x128", "e4m3 row", "e4m3 128x128", "e4m3 128x1", "e2m1 1x32"] {
            timed(dtype, &format!("cast to {to} row-major"));
        }
        timed("e4m3 1x128 row-major", dtype);
    }
    let all = "clamp, counts, weights, experts";
    for beside in ["clamp", "clamp and counts", "weights", "experts, a quarter skipped", all] {
        for to in ["cast to e4m3 1x128 column-major", "cast to e4m3 128x1 column-major", "mxfp8:e4m3"] {
            timed(&format!("swiglu of bf16, {beside}"), to);
        }
    }
    for (from, to) in [
        ("bf16", "e4m3 1x128"),
        ("bf16", "e4m3 128x1"),
        ("bf16", "e2m1 1x32"),
        ("swiglu of bf16", "e4m3 1x128"),
        ("silu of bf16", "e4m3 1x128"),
        ("gelu of bf16", "e4m3 1x128"),
        ("gelu-tanh of bf16", "e4m3 1x128"),
        ("e4m3 1x128 row-major", "e4m3 128x1"),
    ] {
        timed(&format!("chosen rows of {from}"), &format!("cast to {to} row-major"));
    }
    for x in ["bf16", "e4m3 1x128 row-major"] {
        let from = format!("gradients of swiglu of {x}");
        for group in ["1x32", "1x128"] {
            for order in CastScales::ALL {
                timed(&from, &format!("cast to e4m3 {group} {order}"));
                timed(&from, &format!("cast to e4m3 {group} {order}, bf16, the result, weights"));
            }
        }
        let beside = format!("{from}, clamp, weights, experts");
        timed(&beside, "cast to e4m3 1x128 row-major, bf16, the result, weights");
        let mxfp8 = [Fp8Format::E4M3, Fp8Format::E5M2].map(|format| Scheme::Mxfp8(format).to_string());
        for to in mxfp8.iter().map(String::as_str).chain(["fp8-1x128:e4m3"]) {
            timed(&from, to);
            timed(&from, &format!("{to}, bf16, the result, weights"));
        }
    }
    for of in ["tensor", "row", "1x128", "128x128"] {
        // In both directions, so that rows are columns.
        let to = format!("fp8-{of}:e4m3, and transposed");
        assert!(lines.contains(&("bf16".into(), to.clone(), 16)) && !lines.contains(&("bf16".into(), to, 8)));
    }
    for to in ["nvfp4, transformer-engine, hadamard", "nvfp4, transformer-engine, stochastic, seed 1"] {
        timed("bf16", to);
    }
    for group in ["1x16", "1x32", "1x64", "1x128"] {
        for counted in ["", ", counted"] {
            timed(&format!("e2m1 {group} ue8m0"), &format!("e4m3 1x128 ue8m0, lossless{counted}"));
        }
    }
    // What is not run is told, each with its reason, and nothing is missing without a word.
    let not_run = value["not_run"].as_array().unwrap();
    assert_eq!(rows.len() + not_run.len(), 2 * lines.iter().filter(|(_, _, rows)| *rows == 16).count());
    let reasons = ["multiple of 16", "halves of 48 columns must be a multiple of"];
    for line in not_run {
        let line = line.as_str().unwrap();
        assert!(line.starts_with("8 x 48 ") && reasons.iter().any(|reason| line.contains(reason)), "{line}");
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
    assert_eq!(bytes("f32", "cast to e4m3 1x128 row-major"), 8 * 48 * 4 + cast);
}

#[test]
fn what_is_timed_can_be_chosen() {
    let folder = Folder::new();
    let record = folder.file("record.json");
    let shape = ["bench", "--quantizers", "--shapes", "16x16x128,8x16x48"];
    let only = |pattern: &'static str| [&shape[..], &["--only", pattern]].concat();
    let names = |args: &[&str]| -> Vec<String> {
        let value = json(&[args, &["--json"]].concat());
        let rows = value["rows"].as_array().unwrap().iter().filter(|row| row["rows"] == json!(16));
        rows.map(|row| format!("{} to {}", row["from"].as_str().unwrap(), row["to"].as_str().unwrap())).collect()
    };
    let usual = names(&only("^rms norm of bf16 to nvfp4"));
    assert_eq!(usual, ["rms norm of bf16 to nvfp4, given scale", "rms norm of bf16 to nvfp4-row"]);
    // Everything: each rule, and codes of each grouping to each other.
    let every = names(&[&only("^rms norm of bf16 to nvfp4")[..], &["--all"]].concat());
    assert!(every.len() == 18 && usual.iter().all(|name| every.contains(name)), "{every:?}");
    let every = names(&[&only("^e2m1 [0-9a-z]+ row-major to cast to e4m3 32x32 ")[..], &["--all"]].concat());
    assert_eq!(every.len(), CastGroup::ALL.len());
    let order = names(&[&only("^silu of bf16 to cast to e4m3 1x16 ")[..], &["--all"]].concat());
    assert_eq!(order.len(), CastScales::ALL.len());
    let from =
        casts_in(CastScales::RowMajor).into_iter().filter(|s| s.format() == CodeFormat::E4M3 && !s.is_transposed());
    let gradients = names(&[&only("^gradients of .*1x32 ue8m0$")[..], &["--all"]].concat());
    assert_eq!(gradients.len(), 1 + from.count());
    assert_words(
        &bad(2, &only("swigloo")),
        &["--only 'swigloo'", "none of the", "such as \"bf16 to ", "leave it out", "--all"],
    );
    assert_words(&bad(2, &only("(")), &["--only", "unclosed group"]);
    for option in [&["--all"][..], &["--only", "x"]] {
        assert_words(&bad(2, &[&["bench"], option].concat()), &["--quantizers"]);
    }
    let text = good(&[&only("^(bf16|swiglu of bf16) to cast to e2m1 (128x1|row) ")[..], &["--json", &record]].concat());
    assert_words(
        &text,
        &["of the copy rate", "swiglu of bf16", "cast to e2m1 128x1 row-major transposed", "not run: 8 x 48"],
    );
    let written: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let told = text.lines().filter(|line| line.contains(" cast to e2m1 ") && !line.starts_with("not run")).count();
    assert!(told > 10 && written["rows"].as_array().unwrap().len() == told, "{text}");
    assert_words(&bad(2, &["bench", "--quantizers", "--schemes", "nvfp4"]), &["--quantizers", "--schemes"]);
    assert_words(&bad(2, &["bench", "--quantizers", "--activations", "bf16"]), &["--quantizers", "--activations"]);
    assert_words(
        &bad(2, &["bench", "--quantizers", "--shapes", "16x16x20"]),
        &["nothing to measure", "multiple of 16", "; give other numbers with --shapes (MxNxK: m rows, k columns)"],
    );
    // (A matrix that nobody has was to be padded.)
    let given = [
        "bench",
        "--quantizers",
        "--shapes",
        "16x48",
        "--m",
        "20",
        "--only",
        "^bf16 to (mxfp8|cast to e4m3 (1x16|128x1))",
    ];
    let not_run: Vec<_> = good(&given).lines().filter(|line| line.starts_with("not run")).map(String::from).collect();
    assert!(!not_run.is_empty());
    for line in not_run {
        assert!(line.ends_with("; give other numbers with --shapes (NxK: k columns) or --m (rows)"), "{line}");
    }
}
