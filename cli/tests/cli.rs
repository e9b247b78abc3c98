//! The program as its users run it, on the CPU: results, messages, exit codes.

mod common;

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use common::{
    Folder, assert_words, bad, error_of, f32_tensor, good, json, model, read_f32, run_bare, sqnr_db, values, write,
};
use safetensors::tensor::{Dtype, SafeTensors};
use scaled_gemm::{CastGroup, CastScales, CastScheme, CodeFormat, MxScaleRule};
use serde_json::{Value, json};

#[test]
fn help_version_and_wrong_use() {
    assert_words(
        &good(&["--help"]),
        &["info", "verify", "bench", "quantize", "dequantize", "gemm", "tune", "--device"],
    );
    assert_words(&good(&["--version"]), &["scaled-gemm", env!("CARGO_PKG_VERSION")]);
    for command in ["info", "verify", "bench", "quantize", "dequantize", "gemm", "tune"] {
        good(&[command, "--help"]);
    }
    assert_words(&bad(2, &["frobnicate"]), &["frobnicate", "--help"]);
    assert_words(&bad(2, &["quantize"]), &["--output", "--recipe", "see scaled-gemm quantize --help"]);
    assert_words(&error_of(&run_bare(&["--device", "cpu", "tune", "--m", "0"]), 2), &["see scaled-gemm tune --help"]);
    let help = good(&["bench", "--help"]);
    assert_words(&help, &["fp8-tensor", "fp8-row", "fp8-1x128", "fp8-128x128", "mxfp8", "nvfp4 and nvfp4-row", "512"]);
    let known = "fp8-tensor, fp8-row, fp8-1x128, fp8-128x128, mxfp8, mxfp4, nvfp4, nvfp4-row";
    assert_words(&help, &["Not with --shapes, since", "Not with --schemes, --activations"]);
    assert_words(&good(&["gemm", "--help"]), &["128x128 x 1x128"]);
    assert_words(&good(&["info", "--help"]), &["1 if what can be read is wrong, 2 if it cannot be read"]);
    for later in ["mxfp6", "nvfp4-tensor", "fp8", ""] {
        assert_words(&bad(2, &["quantize", "a", "-o", "b", "--recipe", later]), &["unknown recipe", known]);
        assert_words(&bad(2, &["bench", "--schemes", later]), &["unknown scheme", known]);
    }
    let preset = bad(2, &["quantize", "a", "-o", "b", "--recipe", "fp8-row", "--preset", "x"]);
    assert_words(&preset, &["unknown preset", "torchao, transformer-engine, deepseek, deepgemm"]);
    assert_words(&bad(2, &["quantize", "a", "-o", "b", "--recipe", "fp8-row", "--only", "("]), &["regex"]);
    assert_words(&bad(2, &["bench", "--shapes", "llama9"]), &["llama9", "deepseek-v3", "MxNxK"]);
    assert_words(&bad(2, &["bench", "--m", "0"]), &["0"]);
    assert_words(&bad(2, &["gemm", "--a", "x", "--b", "y:z", "-o", "o"]), &["FILE:TENSOR"]);
    assert_words(&bad(2, &["dequantize", "a", "-o", "b", "--dtype", "e4m3"]), &["unknown type", "bf16, f16, f32"]);
    for device in ["tpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", ""] {
        let error = error_of(&run_bare(&["info", "--device", device]), 2);
        assert_words(&error, &["known are auto, cpu, cuda and cuda:N"]);
    }
    // No machine has this one.
    let error = error_of(&run_bare(&["info", "--device", "cuda:4000"]), 2);
    assert_words(&error, &["; "]);
}

#[test]
fn info_lists_the_pairs_and_why_not() {
    let text = good(&["info"]);
    assert_words(&text, &["cpu", "fp8-1x128:e4m3", "fp8-128x128:e4m3", "reference"]);
    let value = json(&["info", "--json"]);
    assert_eq!(value["device"], "cpu");
    let pairs = value["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 15 * 13);
    let by = |a: &str, b: &str| {
        let pair = pairs.iter().find(|p| p["a"] == a && p["b"] == b).unwrap();
        pair["formulations"].as_array().unwrap().len()
    };
    assert_eq!(
        (by("nvfp4-row", "nvfp4"), by("f16", "nvfp4"), by("bf16", "mxfp8:e4m3"), by("f16", "mxfp8:e4m3")),
        (1, 1, 1, 0)
    );
    assert_words(&text, &["nvfp4-row", "mxfp8:e5m2", "bf16"]);
    // The reasons would make the table as wide as they are long: they are shown on demand.
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    assert!(!text.contains("not by"), "{text}");
    let reasons = good(&["info", "--reasons"]);
    assert_words(&reasons, &["fp8-128x128:e4m3 x fp8-128x128:e4m3\n    not by reference: ", "usually A, as fp8-1x128"]);
    let tiles = pairs.iter().find(|p| p["a"] == "fp8-128x128:e4m3" && p["b"] == "fp8-128x128:e4m3").unwrap();
    assert_words(tiles["refused"][0]["reason"].as_str().unwrap(), &["1x128"]);
}

#[test]
fn the_device_can_be_named_before_the_command() {
    let output = run_bare(&["--device", "cpu", "info", "--json"]);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["device"], "cpu");
    assert_words(&String::from_utf8(output.stderr).unwrap(), &["device cpu"]);
}

#[test]
fn verify_passes() {
    let value = json(&["verify", "--json"]);
    assert_eq!(value["passed"], true);
    let kinds = ["normal", "outliers", "zeros", "subnormal", "NaN", "infinities", "powers of two", "ties"];
    let sources = value["sources"].as_array().unwrap();
    let check = |source: &str, to: &str| {
        let found = sources.iter().find(|check| check["source"] == source && check["to"] == to);
        let found = found.unwrap_or_else(|| panic!("{source} to {to}"));
        assert_eq!(found["passed"], true, "{found:#}");
        found
    };
    // Every cast, or every recipe, and each kind of data.
    let mut casts: Vec<_> = CastScheme::all().filter(|scheme| scheme.scales() == CastScales::RowMajor).collect();
    let names_of = |schemes: &[CastScheme]| -> HashSet<String> {
        let name = |s: &CastScheme| s.to_string().replace(" row-major", "");
        schemes.iter().map(name).collect()
    };
    let all = |source: &str, to: &str| {
        let found = check(source, to);
        assert_eq!(found["data"], json!(kinds), "{source} to {to}");
        found["made"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_string()).collect::<HashSet<_>>()
    };
    let gates = ["", ", clamp", ", clamp and counts", ", weights", ", experts", ", clamp, counts, weights and experts"];
    let gated = gates.map(|gate| format!("swiglu{gate}"));
    let others = ["silu", "gelu", "gelu-tanh", "rms norm by its factors", "rms norm", "rms norm of x and a residual"];
    for source in gated.iter().map(String::as_str).chain(others).chain(["chosen rows of producers"]) {
        assert_eq!(all(source, "casts"), names_of(&casts), "{source}");
        assert_eq!(all(source, "what products read").len(), 39, "{source}");
    }
    let parts = ["scales alone", "codes by given scales"];
    let parts = parts.into_iter().flat_map(|part| ["", " of codes", " of producers"].map(|of| format!("{part}{of}")));
    for source in parts.chain(["chosen rows", "chosen rows of codes"].map(String::from)) {
        assert_eq!(all(&source, "casts"), names_of(&casts), "{source}");
    }
    // Codes of every grouping are cast again, to every other.
    for group in CastGroup::ALL {
        for format in ["e4m3", "e2m1"] {
            assert_eq!(all(&format!("codes of {format} {group}"), "casts"), names_of(&casts), "{format} {group}");
        }
    }
    casts.retain(|s| s.format() == CodeFormat::E4M3 && ["1x32", "1x128"].contains(&s.group().name()));
    for source in ["gradients of swiglu", "gradients of swiglu, x in codes"] {
        assert_eq!(all(source, "1x32 and 1x128"), names_of(&casts));
        let made = all(source, "what products read");
        for format in ["e4m3", "e5m2"] {
            for rule in MxScaleRule::ALL {
                assert!(made.contains(&format!("mxfp8:{format} scales rounded {rule}")), "{format} {rule}: {made:?}");
            }
        }
        assert_eq!(made.len(), 12, "{made:?}");
    }
    for group in ["1x16", "1x32", "1x64", "1x128"] {
        let exact = check(&format!("codes of e2m1 {group}"), "e4m3 1x128 ue8m0, lossless");
        assert_eq!(exact["data"].as_array().unwrap().len(), 7, "of infinities none");
        let lost = check(&format!("codes of e2m1 {group}"), "the same, groups that are lost");
        assert!(lost["data"].as_array().unwrap().contains(&json!("infinities")) && !lost["beside_different"].is_null());
    }
    let of_casts = value["casts"].as_array().unwrap();
    assert_eq!((of_casts.len(), sources.len()), (26, 68));
    assert!(of_casts.iter().all(|cast| cast["data"] == json!(kinds) && cast["passed"] == true));
    let recipes = value["recipes"].as_array().unwrap();
    assert_eq!(recipes.len(), 64 + 10 + 5 + 32);
    assert!(recipes.iter().any(|r| r["recipe"].as_str().unwrap().contains("4over6 mse fast, bound 256, 16x16 tiles")));
    assert!(recipes.iter().any(|r| r["options"]["hadamard"] == true && r["options"]["stochastic"] == 1));
    let pairs = value["pairs"].as_array().unwrap();
    assert_eq!(pairs.len(), 15 + 3 + 4 + 6 + 5 + 8 + 1);
    // README's transcript ends in this number.
    assert_eq!(recipes.len() + 26 + sources.len() + pairs.len(), 247);
    assert!(recipes.iter().all(|recipe| recipe["data"] == json!(kinds)));
    // It says what it is that was checked.
    assert_words(
        value["checked"].as_str().unwrap(),
        &["the library's own reference", "by its definition", "nothing has run on a GPU"],
    );
    assert!(pairs.iter().all(|p| p["error_of_bound"]["f32"].as_f64().is_some_and(|e| e <= 1.0)));
    assert!(pairs.iter().any(|p| p["a"] == "nvfp4 hadamard" && p["b"] == "nvfp4 hadamard"));
}

fn rows_of(record: &str) -> Vec<Value> {
    let value: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    value["rows"].as_array().unwrap().clone()
}

/// What the table shows under each name is what the record holds under it.
fn headers_stand_over_their_columns(text: &str, rows: Vec<Value>) {
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(String::from).collect()
    };
    let mut lines = text.lines().skip_while(|line| !line.contains("A x B"));
    let header = cells(lines.next().unwrap());
    for row in rows {
        let line = cells(lines.next().unwrap());
        assert_eq!(line.len(), header.len(), "{header:?}\n{line:?}");
        let under = |name: &str| line[header.iter().position(|h| h == name).unwrap()].parse::<f64>().unwrap();
        for (name, key) in [
            ("baseline us", "baseline_us"),
            ("gemm us", "gemm_us"),
            ("x", "ratio"),
            ("quantize us", "quantize_us"),
            ("both us", "both_us"),
            ("x both", "ratio_with_quantize"),
            ("error", "error_of_bound"),
        ] {
            let want = row[key].as_f64().unwrap();
            assert!((under(name) - want).abs() <= 6e-3 * want, "{name}: {} and {want}", under(name));
        }
    }
}

#[test]
fn bench_prints_writes_and_draws() {
    let folder = Folder::new();
    let (record, plot) = (folder.file("r.json"), folder.file("p.svg"));
    let shapes = ["bench", "--shapes", "32x64,5x16x48", "--m", "1,3", "--schemes", "fp8-row,fp8-128x128"];
    let text = good(&[&shapes[..], &["--json", &record, "--plot", &plot]].concat());
    assert_words(&text, &["fp8-row x fp8-row", "fp8-1x128 x fp8-128x128", "copy", "baseline"]);
    headers_stand_over_their_columns(&text, rows_of(&record));
    let value: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert!(row["gemm_us"].as_f64().unwrap() > 0.0 && row["ratio_with_quantize"].as_f64().unwrap() > 0.0);
        assert!(row["error_of_bound"].as_f64().unwrap() <= 1.0);
    }
    assert!(value["copy_bytes_per_second"].as_f64().unwrap() > 0.0);
    assert_words(&fs::read_to_string(&plot).unwrap(), &["<svg", "n = 32, k = 64: TFLOP/s", "fp8-row x fp8-row", "f32"]);
    assert_eq!(json(&[&shapes[..], &["--json"]].concat())["rows"].as_array().unwrap().len(), 6);
    let shapes = ["bench", "--shapes", "5x16x48", "--schemes", "nvfp4,nvfp4-row,mxfp8,mxfp4", "--json"];
    let value = json(&shapes);
    let rows = value["rows"].as_array().unwrap();
    let pairs: Vec<_> =
        rows.iter().map(|r| format!("{} {}", r["a"].as_str().unwrap(), r["b"].as_str().unwrap())).collect();
    let nvfp4 = ["nvfp4 nvfp4", "bf16 nvfp4", "nvfp4-row nvfp4"];
    assert_eq!(pairs, [&nvfp4[..], &["mxfp8:e4m3 mxfp8:e4m3", "mxfp8:e4m3 mxfp4", "bf16 mxfp4"]].concat());
    for row in rows {
        assert!(row["error_of_bound"].as_f64().unwrap() <= 1.0, "{row}");
        assert_eq!(row["quantize_us"] == 0.0, row["a"] == "bf16");
    }
    // Plain rows of every scheme of weights, where they are asked for.
    let schemes = "fp8-tensor,fp8-row,fp8-1x128,fp8-128x128,mxfp8,mxfp4,nvfp4,nvfp4-row";
    let shapes = ["bench", "--shapes", "5x16x128", "--schemes", schemes, "--activations", "bf16", "--json"];
    let value = json(&shapes);
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8, "{value:#}");
    for row in rows {
        assert!(row["a"] == "bf16" && row["error_of_bound"].as_f64().unwrap() <= 1.0, "{row}");
    }
    let shapes = ["bench", "--shapes", "5x16x48", "--schemes", "fp8-row,nvfp4"];
    let count =
        |asked| json(&[&shapes[..], &["--activations", asked, "--json"]].concat())["rows"].as_array().map(Vec::len);
    assert_eq!([count("quantized"), count("quantized,bf16")], [Some(2), Some(4)]);
    assert_words(&bad(2, &[&shapes[..], &["--activations", "f32"]].concat()), &["--activations", "quantized", "bf16"]);
    // A shape that cannot run is said, and the others still run.
    let text = good(&["bench", "--shapes", "4x16x40,4x16x48", "--schemes", "fp8-row"]);
    assert_words(&text, &["not run: 4 x 16 x 40", "k = 40", "multiple of 16"]);
    // Ways are compared on a GPU alone.
    assert_words(&bad(2, &["bench", "--decode"]), &["bench --decode on the CPU", "--device cuda"]);
    assert_words(&bad(2, &["bench", "--decode", "--shapes", "16x48"]), &["--decode", "--shapes"]);
    // Where none can, that is the answer, and no file is written.
    let empty = Folder::new();
    let (record, plot) = (empty.file("r.json"), empty.file("p.svg"));
    let error =
        bad(2, &["bench", "--shapes", "4x16x40", "--schemes", "fp8-row,mxfp8", "--json", &record, "--plot", &plot]);
    assert_words(&error, &["nothing to measure: 4 x 16 x 40 fp8-row x fp8-row", "k = 40", "(and 1 more)"]);
    assert_eq!(empty.names(), [""; 0]);
}

#[test]
fn quantize_and_dequantize_round_trip() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("in"), folder.file("q"), folder.file("back"));
    model(&input);
    for recipe in ["fp8-tensor", "fp8-row", "fp8-1x128", "fp8-128x128"] {
        for (format, floor) in [("e4m3", 29.0), ("e5m2", 23.0)] {
            let options = ["--recipe", recipe, "--format", format, "--preset", "deepseek", "--power-of-two", "--json"];
            let value = json(&[&["quantize", &input, "-o", &packed][..], &options].concat());
            assert_eq!((value["scheme"].as_str(), value["format"].as_str()), (Some(recipe), Some(format)));
            assert_eq!(value["quantized"].as_array().unwrap().len(), 2);
            let copied: Vec<_> =
                value["copied"].as_array().unwrap().iter().map(|c| c["tensor"].as_str().unwrap()).collect();
            assert_eq!(copied.len(), 3);
            assert!(["odd.weight", "layer.bias", "ids"].iter().all(|name| copied.contains(name)));
            let bytes = fs::read(&packed).unwrap();
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            let metadata = header.metadata().as_ref().unwrap();
            assert_eq!(metadata["format"], "pt");
            let written: Value = serde_json::from_str(&metadata["scaled_gemm.layer.weight"]).unwrap();
            assert_eq!(written["scheme"], recipe);
            assert_eq!(written["preset"], "deepseek");
            assert_eq!(written["rounding"], "power-of-two");
            assert_eq!(written["source"], "f32");

            good(&["dequantize", &packed, "-o", &back, "--dtype", "f32"]);
            for (name, n, seed) in [("layer.weight", 40 * 272, 1), ("other.weight", 8 * 32, 2)] {
                let db = sqnr_db(&values(n, seed), &read_f32(&back, name).1);
                assert!(db > floor, "{recipe} {format} {name}: {db} dB");
            }
            assert_eq!(read_f32(&back, "odd.weight").1, values(120, 4));
            let bytes = fs::read(&back).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(file.len(), 5);
            assert_eq!(file.tensor("ids").unwrap().data(), [9; 16]);
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            assert_eq!(header.metadata().as_ref().unwrap().len(), 1);
        }
    }
}

#[test]
fn only_chooses_and_the_rest_is_copied() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    model(&input);
    let text = good(&["quantize", &input, "-o", &packed, "--recipe", "fp8-1x128", "--only", r"^other\."]);
    assert_words(&text, &["other.weight", "1 matrix to"]);
    assert_eq!(read_f32(&packed, "layer.weight").1, values(40 * 272, 1));
    let error = bad(2, &["quantize", &input, "-o", &packed, "--recipe", "fp8-row", "--only", "nothing"]);
    assert_words(&error, &["--only nothing", "5 tensors"]);
    // Quantizing again what is left keeps what is there.
    let again = folder.file("q2");
    good(&["quantize", &packed, "-o", &again, "--recipe", "fp8-row"]);
    let bytes = fs::read(&again).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert!(file.tensor("other.weight_scale_inv").is_ok() && file.tensor("layer.weight_scale").is_ok());
}

#[test]
fn broken_input_is_refused_and_leaves_nothing_behind() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    let base = ["quantize", &input, "-o", &packed, "--recipe", "fp8-row"];
    let quantize = |more: &[&'static str]| [&base[..], more].concat();
    assert_words(&bad(2, &quantize(&[])), &["in", "No such file", "; give a file or folder that is there"]);
    fs::write(&input, "not a safetensors file").unwrap();
    assert_words(&bad(2, &quantize(&[])), &["in: ", "not a safetensors file"]);

    write(&input, &[f32_tensor("w", [4, 16], 1)]);
    let error = bad(2, &["quantize", &input, "-o", &input, "--recipe", "fp8-row"]);
    assert_words(&error, &["it is the input"]);
    let codes = ("w", Dtype::F8_E4M3, vec![4, 16], vec![1; 64]);
    write(&input, std::slice::from_ref(&codes));
    assert_words(&bad(2, &["dequantize", &input, "-o", &packed]), &["tensor w", "no scale"]);
    write(&input, &[codes, ("w_scale", Dtype::F32, vec![3], vec![0; 12])]);
    assert_words(&bad(2, &["dequantize", &input, "-o", &packed]), &["tensor w", "[3]"]);
    write(&input, &[f32_tensor("w", [4, 16], 1)]);
    assert_words(&bad(2, &["dequantize", &input, "-o", &packed]), &["no quantized matrix"]);
    write(&input, &[f32_tensor("w", [4, 16], 1), f32_tensor("w_scale", [4, 1], 2)]);
    assert_words(&bad(2, &quantize(&[])), &["tensor w_scale", "w would be quantized to a tensor of that name"]);
}

#[test]
fn gemm_multiplies_files() {
    let folder = Folder::new();
    let (x, w, qx, qw, d) =
        (folder.file("x"), folder.file("w"), folder.file("qx"), folder.file("qw"), folder.file("d"));
    let (m, n, k) = (5, 40, 272);
    model(&w);
    write(&x, &[f32_tensor("x", [m, k], 7)]);
    good(&["quantize", &x, "-o", &qx, "--recipe", "fp8-1x128"]);
    good(&["quantize", &w, "-o", &qw, "--recipe", "fp8-128x128", "--only", "layer"]);
    let (a, b, bias) = (format!("{qx}:x"), format!("{qw}:layer.weight"), format!("{qw}:layer.bias"));
    let options = ["--bias", &bias, "--out-dtype", "f32", "-o", &d, "--json"];
    let value = json(&[&["gemm", "--a", &a, "--b", &b][..], &options].concat());
    assert_eq!((value["m"].as_u64(), value["n"].as_u64(), value["k"].as_u64()), (Some(5), Some(40), Some(272)));
    let (shape, got) = read_f32(&d, "d");
    assert_eq!(shape, [m, n]);
    let (x, w, bias) = (values(m * k, 7), values(n * k, 1), values(n, 3));
    let want: Vec<f32> = (0..m * n)
        .map(|at| {
            let (i, j) = (at / n, at % n);
            (0..k).map(|l| x[i * k + l] * w[j * k + l]).sum::<f32>() + half::bf16::from_f32(bias[j]).to_f32()
        })
        .collect();
    let db = sqnr_db(&want, &got);
    assert!(db > 25.0, "{db} dB");

    let other = format!("{qw}:other.weight");
    assert_words(&bad(2, &["gemm", "--a", &a, "--b", &other, "-o", &d]), &["dtype F32", "quantize"]);
    assert_words(&bad(2, &["gemm", "--a", &b, "--b", &b, "-o", &d]), &["fp8-128x128", "not supported on cpu"]);
    let missing = format!("{qw}:nowhere");
    assert_words(&bad(2, &["gemm", "--a", &a, "--b", &missing, "-o", &d]), &["tensor nowhere: is not in the file"]);
    assert_words(&bad(2, &["gemm", "--a", &a, "--b", &b, "-o", &qw]), &["it is the input"]);
    let ids = format!("{qw}:ids");
    assert_words(&bad(2, &["gemm", "--a", &a, "--b", &b, "--bias", &ids, "-o", &d]), &["tensor ids", "I64"]);
    let weight = format!("{qw}:other.weight");
    assert_words(&bad(2, &["gemm", "--a", &a, "--b", &b, "--bias", &weight, "-o", &d]), &["bias", "40"]);
}

#[test]
fn tune_needs_a_gpu() {
    let folder = Folder::new();
    let error = bad(2, &["tune", "--shapes", "16x16x16", "-o", &folder.file("t.json")]);
    assert_words(&error, &["GPU"]);
    assert_eq!(folder.names().len(), 0);
    assert!(!Path::new(&folder.file("t.json")).exists());
}
