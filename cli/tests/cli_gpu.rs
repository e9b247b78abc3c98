//! The program on a GPU: the same files as on the CPU, byte for byte, and every command that times something.
//!
//! Without a GPU it skips, saying why; `SCALED_GEMM_REQUIRE_GPU=1` makes that a failure.

mod common;

use std::fs;

use common::{Folder, assert_words, error_of, f32_tensor, model, read_f32, run_on, sqnr_db, values, write};
use safetensors::tensor::Dtype;
use serde_json::Value;

/// Whether there is a GPU to test on.
fn gpu() -> bool {
    let output = run_on("cuda", &["info"]);
    if output.status.success() {
        return true;
    }
    let reason = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{reason}");
    assert_words(&reason, &["; "]);
    let required = std::env::var("SCALED_GEMM_REQUIRE_GPU").is_ok_and(|v| v == "1");
    assert!(!required, "SCALED_GEMM_REQUIRE_GPU=1 and {reason}");
    println!("skipped: {reason}");
    false
}

fn good(device: &str, args: &[&str]) -> String {
    let output = run_on(device, args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?} on {device}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&good("cuda", args)).unwrap()
}

#[test]
fn info_and_verify() {
    if !gpu() {
        return;
    }
    let value = json(&["info", "--json"]);
    assert_eq!(value["device"], "cuda");
    for fact in ["gpu", "cublaslt", "from", "driver"] {
        assert!(!value["facts"][fact].as_str().unwrap().is_empty(), "{fact}");
    }
    // What serves few rows alone is listed, too.
    if value["facts"]["architecture"].as_str().unwrap().starts_with("sm_90,") {
        let pairs = value["pairs"].as_array().unwrap();
        let rows = pairs.iter().find(|pair| pair["a"] == "fp8-row:e4m3" && pair["b"] == "fp8-row:e4m3").unwrap();
        assert_eq!(rows["of_few_rows_alone"][0], "small-m", "{rows:#}");
        assert_words(&good("cuda", &["info"]), &["small-m (few rows)"]);
    }
    // Reasons are long, and not in the way.
    let text = good("cuda", &["info"]);
    let table: Vec<_> = text.lines().skip_while(|line| !line.starts_with("Pairs")).skip(2).collect();
    assert!(table.len() > 10 && table.iter().all(|line| line.len() <= 120), "{text}");
    assert_words(&good("cuda", &["info", "--reasons"]), &["    not by "]);
    let value = json(&["verify", "--json"]);
    assert_eq!(value["passed"], true, "{:#}", value["failed"]);
    // Every cast of so many rows that a GPU has other kernels for them, of each source that has such.
    let sources = value["sources"].as_array().unwrap();
    for of in ["", " of codes of e4m3", " of codes of e2m1", " of swiglu", " of gelu-tanh", " of rms norm"] {
        let found = sources.iter().find(|check| check["source"] == format!("many rows{of}") && check["to"] == "casts");
        let made = found.unwrap_or_else(|| panic!("many rows{of}"))["made"].as_array().unwrap().len();
        assert_eq!(made, 26, "many rows{of}");
    }
}

#[test]
fn a_gpu_is_chosen_by_its_place() {
    if !gpu() {
        return;
    }
    let first: Value = serde_json::from_str(&good("cuda:0", &["info", "--json"])).unwrap();
    assert_eq!(first["facts"], json(&["info", "--json"])["facts"]);
    let error = error_of(&run_on("cuda:4000", &["info"]), 2);
    assert_words(&error, &["GPU 4000 was asked for"]);
    let second = run_on("cuda:1", &["info", "--json"]);
    if second.status.code() == Some(2) {
        println!("one GPU only: {}", error_of(&second, 2));
        return;
    }
    let second: Value = serde_json::from_slice(&second.stdout).unwrap();
    assert!(second["title"].as_str().unwrap().starts_with("cuda:1, "), "{second:#}");
    let folder = Folder::new();
    let (input, there, here) = (folder.file("in"), folder.file("there"), folder.file("here"));
    model(&input);
    for (device, output) in [("cuda:1", &there), ("cuda:0", &here)] {
        good(device, &["quantize", &input, "-o", output, "--recipe", "nvfp4"]);
    }
    assert!(fs::read(&there).unwrap() == fs::read(&here).unwrap(), "the second GPU makes other bytes");
}

#[test]
fn files_equal_those_of_the_cpu() {
    if !gpu() {
        return;
    }
    let folder = Folder::new();
    let input = folder.file("in");
    model(&input);
    let fp8 = ["fp8-tensor", "fp8-row", "fp8-1x128", "fp8-128x128", "mxfp8"];
    let fp8 = fp8.into_iter().flat_map(|r| ["e4m3", "e5m2"].map(|f| (r, vec!["--format", f])));
    let options: [(&str, &[&str]); 11] = [
        ("mxfp8", &["--mx-rounding", "even"]),
        ("nvfp4", &[]),
        ("nvfp4", &["--preset", "torchao"]),
        ("nvfp4", &["--tile-16x16"]),
        ("nvfp4", &["--hadamard"]),
        ("nvfp4", &["--stochastic", "3"]),
        ("nvfp4", &["--hadamard", "--stochastic", "3"]),
        ("nvfp4", &["--four-over-six", "mae"]),
        ("nvfp4", &["--four-over-six", "mse", "--error-math", "fast", "--e4m3-max", "256"]),
        ("nvfp4-row", &[]),
        ("nvfp4-row", &["--four-over-six", "mse"]),
    ];
    for (recipe, options) in fp8.chain(options.map(|(recipe, options)| (recipe, options.to_vec()))) {
        let mut files = Vec::new();
        for device in ["cpu", "cuda"] {
            let (packed, back) = (folder.file(&format!("q-{device}")), folder.file(&format!("b-{device}")));
            good(device, &[&["quantize", &input, "-o", &packed, "--recipe", recipe], options.as_slice()].concat());
            good(device, &["dequantize", &packed, "-o", &back]);
            files.push((fs::read(&packed).unwrap(), fs::read(&back).unwrap()));
        }
        assert!(files[0].0 == files[1].0, "{recipe} {options:?}: quantized files differ");
        assert!(files[0].1 == files[1].1, "{recipe} {options:?}: dequantized files differ");
    }
}

#[test]
fn files_of_casts_are_those_of_the_cpu() {
    if !gpu() {
        return;
    }
    let folder = Folder::new();
    let input = folder.file("in");
    write(&input, &[f32_tensor("w", [160, 272], 1), f32_tensor("v", [16, 48], 2)]);
    let mut all: Vec<Vec<&str>> = Vec::new();
    for group in ["1x16", "1x32", "1x64", "1x128", "row", "32x32", "32x128", "128x32", "128x128", "32x1", "128x1"] {
        for format in ["e4m3", "e2m1"] {
            for scales in ["row-major", "column-major", "ue8m0"] {
                let options = ["--group", group, "--format", format, "--scales", scales];
                all.push(options.to_vec());
                all.extend(group.ends_with("x1").then(|| [&options[..], &["--transposed"]].concat()));
                all.extend((scales != "ue8m0").then(|| [&options[..], &["--power-of-two"]].concat()));
            }
        }
    }
    // One process for each would load the driver hundreds of times.
    for options in all.iter().step_by(5) {
        let mut files = Vec::new();
        for device in ["cpu", "cuda"] {
            let (q, back) = (folder.file(&format!("q-{device}")), folder.file(&format!("b-{device}")));
            good(device, &[&["quantize", &input, "-o", &q], options.as_slice()].concat());
            good(device, &["dequantize", &q, "-o", &back]);
            files.push((fs::read(&q).unwrap(), fs::read(&back).unwrap()));
        }
        assert!(files[0].0 == files[1].0, "{options:?}: files differ");
        assert!(files[0].1 == files[1].1, "{options:?}: dequantized files differ");
    }
}

#[test]
fn quantizers_are_timed() {
    if !gpu() {
        return;
    }
    let value = json(&["bench", "--quantizers", "--shapes", "256x16x512", "--json"]);
    let rows = value["rows"].as_array().unwrap();
    assert!(rows.len() > 50 && value["not_run"].as_array().unwrap().is_empty(), "{value:#}");
    for row in rows {
        assert!(row["us"].as_f64().unwrap() > 0.0 && row["of_copy_rate"].as_f64().unwrap() > 0.0, "{row:#}");
    }
}

#[test]
fn products_agree_with_the_cpu() {
    if !gpu() {
        return;
    }
    let folder = Folder::new();
    let (x, w, qx, qw) = (folder.file("x"), folder.file("w"), folder.file("qx"), folder.file("qw"));
    let plain = folder.file("plain");
    model(&w);
    write(&x, &[f32_tensor("x", [5, 272], 7)]);
    let bf16: Vec<u8> = values(5 * 272, 7).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    write(&plain, &[("x", Dtype::BF16, vec![5, 272], bf16)]);
    let pairs: [(&str, &str, &[&str]); 12] = [
        ("fp8-tensor", "fp8-tensor", &[]),
        ("fp8-row", "fp8-row", &[]),
        ("fp8-1x128", "fp8-1x128", &[]),
        ("fp8-1x128", "fp8-128x128", &[]),
        ("mxfp8", "mxfp8", &[]),
        ("nvfp4", "nvfp4", &[]),
        ("nvfp4", "nvfp4", &["--hadamard"]),
        ("nvfp4-row", "nvfp4", &[]),
        ("nvfp4-row", "nvfp4-row", &["--four-over-six", "mae"]),
        ("plain", "mxfp8", &[]),
        ("plain", "nvfp4", &[]),
        ("plain", "nvfp4-row", &[]),
    ];
    for (activations, weights, options) in pairs {
        let mut a = format!("{plain}:x");
        if activations != "plain" {
            good("cpu", &[&["quantize", &x, "-o", &qx, "--recipe", activations], options].concat());
            a = format!("{qx}:x");
        }
        good("cpu", &[&["quantize", &w, "-o", &qw, "--recipe", weights], options].concat());
        let (b, bias) = (format!("{qw}:layer.weight"), format!("{qw}:layer.bias"));
        let d: Vec<Vec<f32>> = ["cpu", "cuda"]
            .into_iter()
            .map(|device| {
                let d = folder.file(&format!("d-{device}"));
                let epilogue = ["--bias", &bias, "--activation", "gelu", "--out-dtype", "f32", "-o", &d];
                good(device, &[&["gemm", "--a", &a, "--b", &b][..], &epilogue].concat());
                read_f32(&d, "d").1
            })
            .collect();
        // A few units of 2^-13 for FP8, the precision of its tensor cores, less for the others; `verify` holds the rigorous
        // bound.
        let db = sqnr_db(&d[0], &d[1]);
        assert!(db > 60.0, "{activations} x {weights}: {db} dB");
    }
}

#[test]
fn tune_then_bench_with_the_records() {
    if !gpu() {
        return;
    }
    let folder = Folder::new();
    let (records, plot) = (folder.file("tune.json"), folder.file("p.svg"));
    let shape = ["--shapes", "512x512", "--m", "4,64"];
    good("cuda", &[&["tune", "-o", &records][..], &shape].concat());
    let tuned: Value = serde_json::from_slice(&fs::read(&records).unwrap()).unwrap();
    // Four pairs of FP8, mxfp8, nvfp4 by nvfp4, by rows and by plain activations, mxfp4 by mxfp8 and by plain ones; two m.
    assert_eq!(tuned["records"].as_array().map(Vec::len), Some(20), "{tuned:#}");
    let bench = ["bench", "--tuning", &records, "--plot", &plot, "--json"];
    let value = json(&[&bench[..], &shape].concat());
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 20, "{value:#}");
    for row in rows {
        assert!(row["error_of_bound"].as_f64().unwrap() <= 1.0, "{row:#}");
        // Two measurements, one after the other: small products differ by more than a small cast takes.
        assert!(row["both_us"].as_f64().unwrap() >= 0.8 * row["gemm_us"].as_f64().unwrap(), "{row:#}");
        let formulation = row["formulation"].as_str().unwrap();
        // Tuning may have found another way faster for weights that are kept, too.
        let (kept, decoded) = (formulation.ends_with("weights kept dequantized"), formulation.starts_with("small-m"));
        assert_eq!(kept, formulation.starts_with("dequantized-bf16") || (kept && decoded), "{row:#}");
    }
    assert_words(value["baseline"].as_str().unwrap(), &["BF16", "cuBLASLt"]);
    assert_words(&fs::read_to_string(&plot).unwrap(), &["<svg", "bf16"]);
}

/// A record that holds, one of another GPU, and one of another product.
#[test]
fn a_product_says_what_became_of_records() {
    if !gpu() {
        return;
    }
    let folder = Folder::new();
    let [plain, w, d, records] = ["plain", "w", "d", "tune.json"].map(|name| folder.file(name));
    let (n, k) = (64, 256);
    write(&plain, &[f32_tensor("t", [n, k], 2)]);
    good("cpu", &["quantize", &plain, "-o", &w, "--recipe", "nvfp4"]);
    let b = format!("{w}:t");
    let product = |rows: usize| {
        let x = folder.file("x");
        write(&x, &[("t", Dtype::BF16, vec![rows, k], [0x80, 0x3F].repeat(rows * k))]);
        let a = format!("{x}:t");
        let gemm = ["gemm", "--a", &a, "--b", &b, "--tuning", &records, "-o", &d];
        let value = json(&[&gemm[..], &["--json"]].concat());
        value["plan"].as_str().unwrap().to_string()
    };
    let shape = format!("4x{n}x{k}");
    let asked = ["--schemes", "nvfp4", "--activations", "bf16", "--shapes", &shape];
    good("cuda", &[&["tune", "-o", &records][..], &asked].concat());
    assert_words(&product(4), &["a record says so", "us"]);
    let other = product(3);
    assert!(!other.contains("record"), "{other}");
    let tuned = fs::read_to_string(&records).unwrap();
    let elsewhere = tuned.replace("\"sm_count\": ", "\"sm_count\": 9");
    assert_ne!(tuned, elsewhere);
    fs::write(&records, elsewhere).unwrap();
    assert_words(&product(4), &["not taken: tuning record", "sm_count"]);
}

/// Plain rows of FP8 weights, for which nothing is planned but `small-m`, are tuned where that is asked for.
#[test]
fn weight_only_fp8_is_tuned_and_timed() {
    if !gpu() {
        return;
    }
    let folder = Folder::new();
    let records = folder.file("tune.json");
    let asked = ["--shapes", "4x512x512", "--schemes", "fp8-row,fp8-128x128,mxfp8", "--activations", "bf16"];
    good("cuda", &[&["tune", "-o", &records][..], &asked].concat());
    let tuned: Value = serde_json::from_slice(&fs::read(&records).unwrap()).unwrap();
    assert_eq!(tuned["records"].as_array().map(Vec::len), Some(3), "{tuned:#}");
    let value = json(&[&["bench", "--tuning", &records, "--json"][..], &asked].concat());
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{value:#}");
    for row in rows {
        assert!(row["a"] == "bf16" && row["error_of_bound"].as_f64().unwrap() <= 1.0, "{row:#}");
    }
}

/// One m of one pair: still every layer of three models.
#[test]
fn decoding_is_timed() {
    if !gpu() {
        return;
    }
    let asked = ["--decode", "--m", "1", "--schemes", "nvfp4", "--activations", "bf16"];
    let value = json(&[&["bench", "--json"][..], &asked].concat());
    let [rows, skipped, models] = ["rows", "not_run", "models"].map(|key| value[key].as_array().unwrap());
    // What this GPU has no memory for is skipped.
    assert_eq!(rows.len() + skipped.len(), 16, "{value:#}");
    let positive = |value: &Value| value.as_f64().is_some_and(|number| number > 0.0);
    for row in rows {
        assert!(row["pair"] == "bf16 x nvfp4" && row["error_of_bound"].as_f64().unwrap() <= 1.0, "{row:#}");
        for key in ["baseline_us", "baseline_chained_us", "both_us"] {
            assert!(positive(&row[key]), "{key}: {row:#}");
        }
        // `small-m` and `dequantized-bf16`, that from kept weights, too.
        let ways = row["ways"].as_array().unwrap();
        assert!(
            ways.len() >= 3 && ways.iter().all(|way| positive(&way["us"]) && positive(&way["chained_us"])),
            "{row:#}"
        );
        // Each plain, and in a chain.
        for key in ["chained_us", "repacked_us", "repacked_both_us", "x_bf16", "of_copy_rate"] {
            let both = row[key].as_array().unwrap_or_else(|| panic!("{key}: {row:#}"));
            assert!(both.len() == 2 && both.iter().all(positive), "{key}: {row:#}");
        }
        assert!(row["best_other"].as_array().unwrap().iter().all(|other| positive(&other["x"])), "{row:#}");
    }
    if skipped.is_empty() {
        let of = |weights: &str| models.iter().filter(|model| model["weights"] == weights).count();
        assert_eq!([of("published"), of("repacked"), models.len()], [3, 3, 6], "{models:#?}");
    }
    assert_words(value["experts"].as_str().unwrap(), &["one product each", "cargo bench --bench experts"]);
}

/// Rows of D have the same bits alone and among others, tuned or not, where there are such products; elsewhere, and of shapes that have none, they are refused.
#[test]
fn batch_invariant_rows() {
    if !gpu() {
        return;
    }
    let sm_90 = json(&["info", "--json"])["facts"]["architecture"].as_str().unwrap().starts_with("sm_90,");
    let folder = Folder::new();
    let [x, w, d, records] = ["x", "w", "d", "tune.json"].map(|name| folder.file(name));
    let (n, k) = (272, 4112);
    let quantized = |path: &str, rows: usize, seed: u32, recipe: &str| {
        let plain = folder.file("plain");
        write(&plain, &[f32_tensor("t", [rows, k], seed)]);
        good("cpu", &["quantize", &plain, "-o", path, "--recipe", recipe]);
        format!("{path}:t")
    };
    let b = quantized(&w, n, 2, "fp8-128x128");
    let product = |rows: usize, options: &[&str]| {
        let a = quantized(&x, rows, 1, "fp8-1x128");
        let gemm = ["gemm", "--a", &a, "--b", &b, "--batch-invariant", "--out-dtype", "f32", "-o", &d];
        let output = run_on("cuda", &[&gemm[..], options].concat());
        if !sm_90 {
            assert_words(&error_of(&output, 2), &["batch_invariant", "sm_90"]);
            return Vec::new();
        }
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        read_f32(&d, "d").1.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
    };
    let all = product(300, &[]);
    if sm_90 {
        let tune = ["tune", "--schemes", "fp8-128x128", "--shapes", "7x272x4112", "--out-dtype", "f32"];
        good("cuda", &[&tune[..], &["--batch-invariant", "-o", &records]].concat());
        for rows in [1, 7, 65, 129] {
            assert!(product(rows, &[]) == all[..rows * n], "{rows} rows");
        }
        assert!(product(7, &["--tuning", &records]) == all[..7 * n], "7 rows, tuned");
    }
    // Weights that are decoded have them for a k that is a multiple of 32.
    let b = quantized(&w, n, 2, "nvfp4");
    let gemm = ["gemm", "--a", &b, "--b", &b, "--batch-invariant", "-o", &d];
    let words = ["nvfp4 x nvfp4", "multiples of 32", "batch_invariant", "do not ask"];
    assert_words(&error_of(&run_on("cuda", &gemm), 2), &words);
}
