//! What the program must not take without a word: files that nobody reads again, files of other kinds, options that do nothing.

mod common;

use std::fs;

use common::*;
use safetensors::tensor::Dtype;
use serde_json::json;

fn one(name: &str) -> Tensor<'_> {
    (name, Dtype::F32, vec![1], f32_bytes(&[1.0]))
}

#[test]
fn quantize_writes_nothing_that_its_reader_refuses() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    let bytes = ("w_packed", Dtype::U8, vec![16, 16], vec![1; 256]);
    let matrix = |name| f32_tensor(name, [16, 32], 1);
    let old = vec![
        ("m_scale_scale", Dtype::F8_E4M3, vec![4, 16], vec![1; 64]),
        ("m_scale_scale_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
    ];
    let scales: [(&str, Vec<Tensor>, &str); 4] = [
        ("fp8-row", vec![one("w_scale_inv")], "w"),
        ("mxfp8", vec![one("w_scale_inv")], "w"),
        ("fp8-128x128", vec![one("w_scale")], "w"),
        ("fp8-row", vec![one("w_scale_2")], "w"),
    ];
    for (recipe, others, whose) in scales {
        write(&input, &[&[matrix("w")], &others[..]].concat());
        let error = bad(2, &["quantize", &input, "-o", &packed, "--recipe", recipe]);
        assert_words(&error, &[&format!("would be read as a scale of {whose}, "), "; take it out of the input"]);
    }
    // Codes that are there already.
    write(&input, &[matrix("w"), bytes, one("w_global_scale")]);
    let error = bad(2, &["quantize", &input, "-o", &packed, "--recipe", "nvfp4"]);
    assert_words(&error, &["tensor w_packed: is there, and holds codes of w, which is there plain, too"]);
    let cases: [(&str, Vec<Tensor>, &[&str]); 5] = [
        // Both would be quantized.
        ("nvfp4", vec![matrix("w_packed")], &["as w and as w_packed"]),
        // The codes of `v_packed` would be those of `v`.
        ("nvfp4", vec![matrix("v_packed"), one("v_global_scale")], &["tensor v_packed: would", "matrix v"]),
        // Its own block scales would make it one of those too.
        ("nvfp4", vec![matrix("w_packed"), one("w_packed_global_scale")], &["as w and as w_packed"]),
        // The scale of `m` would make `m_scale_scale`, a matrix of its own, the scale of a scale.
        ("fp8-row", vec![matrix("m"), matrix("m_scale_scale")], &["tensor m_scale_scale: would", "another tensor"]),
        // A matrix that is there already and stays.
        ("fp8-row", [vec![matrix("m")], old.clone()].concat(), &["tensor m_scale_scale: would", "another tensor"]),
    ];
    for (recipe, others, words) in cases {
        write(&input, &[&[matrix("w")], &others[..]].concat());
        let error = bad(2, &["quantize", &input, "-o", &packed, "--recipe", recipe]);
        let again =
            format!("would not be read again as it would be written to {packed}, beside the tensors there: it ");
        assert_words(
            &error,
            &[format!("{input}: tensor ").as_str(), again.as_str(), "; rename or leave out one of the two"],
        );
        assert_words(&error, words);
        assert_eq!(folder.names(), ["in"]);
    }
    // Names that only look alike disturb nobody, nor does what was not read before.
    let alone = ("f8", Dtype::F8_E4M3, vec![4, 4], vec![1; 16]);
    write(&input, &[matrix("w"), one("w_global_scale"), one("w_scales"), one("w_packed"), alone]);
    for recipe in ["fp8-row", "fp8-1x128", "mxfp8", "nvfp4"] {
        good(&["quantize", &input, "-o", &packed, "--recipe", recipe]);
    }
}

#[test]
fn a_bias_has_one_value_for_each_column() {
    let folder = Folder::new();
    let (input, packed, d) = (folder.file("in"), folder.file("q"), folder.file("d"));
    let bias = |name, shape: &[usize]| (name, Dtype::F32, shape.to_vec(), f32_bytes(&[1.0; 24]));
    let flat = [bias("n", &[24]), bias("1n", &[1, 24]), bias("b2", &[2, 12]), bias("n1", &[24, 1])];
    write(&input, &[&[f32_tensor("w", [24, 32], 1)], &flat[..]].concat());
    good(&["quantize", &input, "-o", &packed, "--recipe", "fp8-row", "--only", "^w$"]);
    let w = format!("{packed}:w");
    for (name, taken) in [("n", true), ("1n", true), ("b2", false), ("n1", false)] {
        let bias = format!("{packed}:{name}");
        let args = ["gemm", "--a", &w, "--b", &w, "--bias", &bias, "-o", &d];
        if taken {
            good(&args);
            fs::remove_file(&d).unwrap();
        } else {
            let error = bad(2, &args);
            assert_words(&error, &["tensor", name, "bias", "[24] or [1, 24]"]);
            assert_eq!(folder.names(), ["in", "q"]);
        }
    }
}

#[test]
fn an_index_says_what_is_wrong_with_it() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let cases: [(&str, &[&str]); 7] = [
        ("\n  {\n  \"weight_map\": {}}", &["names no shard"]),
        (r#"{"model_type": "llama"}"#, &["no index of shards", "weight_map"]),
        (r#"{"weight_map": {"w": 7}}"#, &["no index of shards", "tensor \"w\""]),
        (r#"{"weight_map": {"w": "../a.safetensors"}}"#, &["../a.safetensors", "no name"]),
        (r#"{"weight_map": {"w": "/etc/a.safetensors"}}"#, &["/etc/a.safetensors", "no name"]),
        (r#"{"weight_map": {"w": "a\\u0000.safetensors"}}"#, &["no name"]),
        (
            r#"{"weight_map": {"w": "model-00001-of-00002.safetensors"}}"#,
            &[
                "names model-00001-of-00002.safetensors, which is not there (1 of 1 shards is missing)",
                "fetch what is missing",
            ],
        ),
    ];
    for (text, words) in cases {
        fs::write(&input, text.replace("\\\\", "\\")).unwrap();
        assert_words(&bad(2, &["quantize", &input, "-o", &output, "--recipe", "nvfp4"]), words);
        assert_eq!(folder.names(), ["in"]);
    }
}

#[test]
fn a_file_of_another_kind_is_called_what_it_is() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    let cases: [(&[u8], &[&str]); 8] = [
        (b"PK\x03\x04\x00\x00\x08\x08\x00\x00 archive/data.pkl", &["zip", "PyTorch", "; convert it"]),
        // A length of 67 MB, were it one.
        (b"PK\x03\x04\x00\x00\x00\x00\x00\x00 archive/data.pkl", &["zip", "PyTorch", "; convert it"]),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 and so on", &["pickle", "PyTorch", "; convert it"]),
        (b"GGUF\x03\x00\x00\x00 and so on", &["GGUF", "; "]),
        (b"[1, 2, 3, 4, 5]", &["JSON", "the index of a model's shards"]),
        (lfs, &["Git LFS", "git lfs pull"]),
        (b"plain text, some of it\x1b[2J", &["begins with \"plain text, some"]),
        (b"\xff\xfe\x00\x01\x02\x03\x04\x05\x06\x07", &["begins with", r"\xff\xfe"]),
    ];
    for (bytes, words) in cases {
        fs::write(&input, bytes).unwrap();
        let place = format!("{input}:w");
        let runs: [&[&str]; 3] = [
            &["quantize", &input, "-o", &output, "--recipe", "fp8-row"],
            &["dequantize", &input, "-o", &output],
            &["gemm", "--a", &place, "--b", &place, "-o", &output],
        ];
        for args in runs {
            let error = bad(2, args);
            assert_words(&error, &[&input, "not a safetensors file"]);
            assert_words(&error, words);
            assert!(!error.contains("would be"), "{error}");
        }
    }
    // A safetensors file that ends early is one.
    model(&input);
    let whole = fs::read(&input).unwrap();
    for end in [100, whole.len() - 1] {
        fs::write(&input, &whole[..end]).unwrap();
        let error = bad(2, &["dequantize", &input, "-o", &output]);
        assert_words(&error, &["fetch or write the file again"]);
        assert!(!error.contains("not a safetensors file"), "{error}");
    }
}

#[test]
fn everything_that_is_copied_is_listed_with_its_reason() {
    let folder = Folder::new();
    let (input, packed) = (folder.file("in"), folder.file("q"));
    let quantized = [
        ("old", Dtype::F8_E4M3, vec![4, 16], vec![1; 64]),
        ("old_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
        ("empty", Dtype::F32, vec![0, 16], vec![]),
        ("ids", Dtype::I64, vec![2], vec![9; 16]),
    ];
    write(&input, &[&[f32_tensor("w", [16, 32], 1), f32_tensor("v", [16, 32], 1)], &quantized[..]].concat());
    let args = ["quantize", &input, "-o", &packed, "--recipe", "fp8-row", "--only", "^(w|old|ids|empty)"];
    let text = good(&args);
    let reasons = [
        ("old", "FP8 already"),
        ("old_scale", "scales of another tensor"),
        ("empty", "without an element"),
        ("ids", "neither BF16 nor F16 nor F32"),
        ("v", "not matched by --only"),
    ];
    let copied = json(&[&args[..], &["--json"]].concat())["copied"].as_array().unwrap().clone();
    assert_eq!(copied.len(), reasons.len());
    for (name, reason) in reasons {
        assert_words(&text, &[&format!("copied as it is, {reason}: 1 ({name} [")]);
        assert!(copied.iter().any(|c| c["tensor"] == name && c["reason"] == reason), "{name}: {copied:?}");
    }
    // Where nothing is left to do, that is why.
    write(&input, &[("ids", Dtype::I64, vec![4, 16], vec![9; 512])]);
    let error = bad(2, &args);
    assert_words(&error, &["among its 1 tensor; neither BF16 nor F16 nor F32: 1 (ids [4, 16])"]);
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let folder = Folder::new();
    let (input, fp8, fp4, out) = (folder.file("in"), folder.file("fp8"), folder.file("fp4"), folder.file("out"));
    write(&input, &[f32_tensor("w", [16, 32], 1)]);
    good(&["quantize", &input, "-o", &fp8, "--recipe", "fp8-row"]);
    good(&["quantize", &input, "-o", &fp4, "--recipe", "nvfp4"]);
    let (w8, w4) = (format!("{fp8}:w"), format!("{fp4}:w"));
    let order = |option: &'static str| [option, "low-first"];
    for (args, option, word) in [
        (["dequantize", &fp8, "-o", &out].to_vec(), order("--nibble-order"), "no nvfp4 matrix"),
        (["gemm", "--a", &w8, "--b", &w8, "-o", &out].to_vec(), order("--nibble-order"), "neither A nor B is nvfp4"),
        (["gemm", "--a", &w8, "--b", &w8, "-o", &out].to_vec(), order("--a-nibble-order"), "A is fp8-row"),
        (["gemm", "--a", &w8, "--b", &w8, "-o", &out].to_vec(), order("--b-nibble-order"), "B is fp8-row"),
        (["gemm", "--a", &w8, "--b", &w8, "-o", &out].to_vec(), ["--accumulation", "fast"], "CPU"),
        (["bench", "--shapes", "16x16x16"].to_vec(), ["--accumulation", "fast"], "CPU"),
        (["bench", "--shapes", "16x16x16"].to_vec(), ["--m", "3"], "every shape"),
        (["tune", "--shapes", "16x16x16", "-o", &out].to_vec(), ["--m", "3"], "every shape"),
    ] {
        let error = bad(2, &[&args[..], &option].concat());
        assert_words(&error, &[option[0], word, "leave it out"]);
        assert_eq!(folder.names(), ["fp4", "fp8", "in"]);
    }
    let gemm = ["gemm", "--a", &w8, "--b", &w8, "--batch-invariant", "-o", &out];
    assert_words(&bad(2, &gemm), &["--batch-invariant on the CPU", "sm_90", "leave it out"]);
    let tune = ["tune", "--shapes", "16x16x16", "--batch-invariant", "-o", &out];
    assert_words(&bad(2, &tune), &["--schemes"]);
    assert_eq!(folder.names(), ["fp4", "fp8", "in"]);
    // One of two that it applies to is enough.
    good(&["gemm", "--a", &w4, "--b", &w4, "--nibble-order", "low-first", "-o", &out]);
    good(&["gemm", "--a", &w4, "--b", &w4, "--b-nibble-order", "low-first", "-o", &out]);
    good(&["dequantize", &fp4, "--nibble-order", "low-first", "-o", &out]);
    good(&["gemm", "--a", &w8, "--b", &w8, "--accumulation", "precise", "--out-dtype", "f32", "-o", &out]);
    assert_eq!(read_f32(&out, "d").0, [16, 16]);
}

/// (Without the rule, or with a tip that does not work; of numbers beyond all, that they are none.)
#[test]
fn numbers_that_are_none_are_refused_with_the_rule() {
    let rule = "write a whole number from 1 to 1048576, or several with commas between them";
    for m in ["1-8", "0", "-1", "1048577", "1,x", ""] {
        let error = bad(2, &["bench", "--m", m]);
        assert_words(&error, &["--m <M>", rule]);
        assert!(!error.contains("tip:"), "{error}");
        let error = bad(2, &["tune", "-o", "t.json", "--m", m, "--shapes", "16x16"]);
        assert_words(&error, &["--m <M>", rule]);
    }
    let rule = "write a whole number from 0 to 18446744073709551615";
    for args in [&["quantize", "x", "--recipe", "nvfp4", "--stochastic", "-1"][..], &["verify", "--seed", "-1"]] {
        let error = bad(2, args);
        assert_words(&error, &["invalid value '-1'", rule]);
        assert!(!error.contains("tip:"), "{error}");
    }
    for shape in ["99999999999999999999x64", "1000000000x1000000000", "16x16x99999999999999999999", "0x64"] {
        let error = bad(2, &["bench", "--shapes", shape]);
        assert_words(&error, &[shape, "every extent must be from 1 to 1048576"]);
    }
}

/// (`invalid UTF-8 was detected in one or more arguments`)
#[cfg(unix)]
#[test]
fn an_argument_that_is_no_utf8_is_named() {
    use std::os::unix::ffi::OsStrExt;
    let word = std::ffi::OsStr::from_bytes(b"nonutf\xff.safetensors:x.weight");
    let mut run = std::process::Command::new(program());
    run.arg("gemm").arg("--a").arg(word).args(["--b", "x:y", "-o", "d", "--device", "cpu"]);
    let error = error_of(&run.output().unwrap(), 2);
    assert_words(
        &error,
        &["nonutf\u{fffd}.safetensors:x.weight", "is no UTF-8", "rename the file, or make a link to it"],
    );
}

#[test]
fn tune_without_a_gpu_does_not_send_to_the_cpu() {
    let folder = Folder::new();
    let records = folder.file("t.json");
    for device in [&["--device", "cuda"][..], &[]] {
        let mut hidden = std::process::Command::new(program());
        hidden.args(["tune", "--shapes", "16x16x16", "-o", &records]).args(device).env("CUDA_VISIBLE_DEVICES", "");
        let error = error_of(&hidden.output().unwrap(), 2);
        assert!(!error.contains("the cpu") && !error.contains("--device cpu"), "{error}");
        assert_words(&error, &["GPU"]);
        assert_eq!(folder.names(), [""; 0]);
    }
}

/// (Each was refused without what to do about it.)
#[test]
fn refusals_have_a_remedy() {
    let folder = Folder::new();
    let (input, output, path) = (folder.file("in"), folder.file("out"), folder.file("model"));
    let tensors = [
        f32_tensor("a.weight", [16, 32], 1),
        ("cube", Dtype::F8_E4M3, vec![4], vec![0x35; 4]),
        ("cube_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
        ("odd", Dtype::F8_E4M3, vec![16, 32], vec![0x35; 512]),
        ("odd_scale", Dtype::F32, vec![3], f32_bytes(&[1.0; 3])),
    ];
    write(&input, &tensors);
    let quantize =
        |options: &[&str]| bad(2, &[&["quantize", &input, "-o", &output, "--recipe", "nvfp4"][..], options].concat());
    let words = "no matrix to quantize that --only nothing matches among its 5 tensors; ";
    assert_words(
        &quantize(&["--only", "nothing"]),
        &[words, "; mend the pattern, which info has the names for, or leave it out"],
    );
    assert_words(
        &quantize(&["--only", "odd"]),
        &[
            "--only odd matches",
            "; name others with --only, or leave it out; what is in codes already stays so: dequantize refuses it: tensor cube: has shape [4]; ",
        ],
    );
    assert_words(
        &quantize(&["--exclude", "a"]),
        &["matched by --exclude: 1", "; give a file with other matrices, or narrow --exclude"],
    );
    let gemm = |name: &str| {
        let [a, b] = ["a.weight", name].map(|name| format!("{input}:{name}"));
        bad(2, &["gemm", "--a", &a, "--b", &b, "-o", &output])
    };
    assert_words(&gemm("cube"), &["has shape [4]; a matrix has two dimensions, rows and columns: give one that has"]);
    assert_words(&gemm("odd"), &["a scale is never reshaped: fetch the file again, or write it again with the scales"]);
    fs::create_dir(&path).unwrap();
    write(&format!("{path}/model.safetensors"), &tensors[..1]);
    let size = "99999999999999999999GB";
    let error = bad(2, &["quantize", &path, "-o", &output, "--recipe", "nvfp4", "--shard-size", size]);
    assert_words(&error, &["such as 5GB; this is more than 18446744073709551615 bytes, the most that can be counted"]);
    let mark = "begins with the byte order mark EF BB BF, and JSON has none";
    fs::write(format!("{path}/config.json"), "{}").unwrap();
    fs::write(format!("{path}/hf_quant_config.json"), "\u{feff}{}").unwrap();
    let output = common::run_on("cpu", &["info", &path]);
    assert_words(std::str::from_utf8(&output.stdout).unwrap(), &["hf_quant_config.json: ", mark, "; save it without"]);
    fs::write(format!("{path}/config.json"), "\u{feff}{}").unwrap();
    assert_words(&bad(2, &["info", &path]), &["config.json: ", mark, ": save it without; mend the config"]);
}

/// (Zeros that were not written yet became a model of zeros, exit code 0.)
#[test]
fn a_folder_that_a_run_did_not_finish_is_no_model() {
    let folder = Folder::new();
    let (partial, moved, output) = (folder.file(".q.partial"), folder.file("moved"), folder.file("out"));
    let tensors = [("w.weight", Dtype::F8_E4M3, vec![16, 32], vec![0; 512]), one("w.weight_scale")];
    for path in [&partial, &moved] {
        model_folder(path, &tensors, Some(json!({"quantization_config": {"quant_method": "fp8"}})));
        fs::write(format!("{path}/.scaled-gemm-is-writing"), "").unwrap();
    }
    let file = format!("{moved}/model.safetensors");
    let place = format!("{file}:w.weight");
    for path in [&partial, &moved, &file] {
        let runs: [&[&str]; 3] = [
            &["info", path],
            &["quantize", path, "-o", &output, "--recipe", "nvfp4", "--dialect", "plain"],
            &["dequantize", path, "-o", &output],
        ];
        for args in runs {
            let error = bad(2, args);
            let words =
                "; wait for it if it still runs; else run the command that wrote it again, or remove the folder";
            assert_words(&error, &["the run that wrote", "did not finish", words]);
        }
    }
    assert_words(&bad(2, &["gemm", "--a", &place, "--b", &place, "-o", &output]), &["did not finish"]);
    assert_eq!(folder.names(), [".q.partial", "moved"]);
}

/// (The output was named, which is not there, and what was advised could not be done.)
#[test]
fn a_tensor_that_is_there_before_its_matrix_is_quantized_is_one_of_the_input() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let names = ["q", "k", "o"].map(|part| format!("l.0.self_attn.{part}_proj.weight"));
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [32, 32], seed)).collect();
    let stale = one("l.0.self_attn.q_proj.weight_scale");
    model_folder(&input, &[&tensors[..], &[stale]].concat(), Some(json!({"architectures": ["LlamaForCausalLM"]})));
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4"];
    for options in [&[][..], &["--dry-run"]] {
        let error = bad(2, &[&args[..], options].concat());
        assert_words(
            &error,
            &[
                &format!("{input}: tensor l.0.self_attn.q_proj.weight_scale: is there, and "),
                "l.0.self_attn.q_proj.weight would be quantized to a tensor of that name",
                r"; take it out of the input, or leave the matrix as it is with --exclude '^l\.0\.self_attn\.q_proj\.weight$'",
            ],
        );
    }
    assert_eq!(folder.names(), ["in"]);
    // What is advised can be done, and it is said that the scale is left. (Without the third matrix nothing would be left to quantize in a dialect.)
    let exclude = ["--exclude", r"^l\.0\.self_attn\.q_proj\.weight$"];
    let words = "1 scale (l.0.self_attn.q_proj.weight_scale) beside weights that are plain, copied as it is";
    for dialect in [&["--dialect", "plain", "--dry-run"][..], &[]] {
        assert_words(&said(&[&args[..], &exclude, dialect].concat()), &[words]);
    }
    // A scale of inputs, too.
    let inputs = folder.file("inputs");
    fs::write(
        &inputs,
        json!({"l.0.self_attn.q_proj": 1.0, "l.0.self_attn.k_proj": 1.0, "l.0.self_attn.o_proj": 1.0}).to_string(),
    )
    .unwrap();
    let stale = one("l.0.self_attn.k_proj.input_scale");
    write(&format!("{input}/model.safetensors"), &[&tensors[..], &[stale]].concat());
    let error = bad(2, &["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--input-scales", &inputs]);
    assert_words(
        &error,
        &["tensor l.0.self_attn.k_proj.input_scale: is there, and l.0.self_attn.k_proj.weight would", "; take it out"],
    );
}

/// (Nothing was said before the model was quantized, and then it was wrong.)
#[test]
fn scales_without_codes_are_said_of_a_plain_model_and_where_it_is_quantized() {
    let folder = Folder::new();
    let config = json!({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": false});
    let words = |module: &str| {
        format!(
            "neither tensor {module}.weight nor {module}.weight_packed is there, and scales of it are ({module}.weight_scale)"
        )
    };
    for (i, module) in ["l.0.self_attn.q_proj", "lm_head"].into_iter().enumerate() {
        let (input, output) = (folder.file(&format!("in{i}")), folder.file(&format!("out{i}")));
        let scale = format!("{module}.weight_scale");
        let tensors = [f32_tensor("l.0.mlp.down_proj.weight", [32, 32], 1), one(&scale)];
        model_folder(&input, &tensors, Some(config.clone()));
        let text = good(&["info", &input]);
        assert_words(&text, &[&words(module), "; fetch or write the model again, unless it is meant so"]);
        assert!(!text.contains("What is wrong"), "{text}");
        let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4"];
        for options in [&["--dry-run"][..], &[]] {
            let error = said(&[&args[..], options].concat());
            assert_words(&error, &["copied as it is: ", &words(module)]);
            assert_eq!(error.matches("copied as ").count(), 1, "{error}");
        }
        assert_words(&wrong(&["info", &output]).0, &[&words(module)]);
    }
    // One line for all of them.
    let (input, output) = (folder.file("many"), folder.file("quantized"));
    let names: Vec<String> = (0..3).map(|i| format!("l.{i}.mlp.up_proj.weight_scale")).collect();
    let scales: Vec<_> = names.iter().map(|name| one(name)).collect();
    let tensors = [&[f32_tensor("l.0.mlp.down_proj.weight", [32, 32], 1)], &scales[..]].concat();
    model_folder(&input, &tensors, Some(config));
    let error = said(&["quantize", &input, "-o", &output, "--recipe", "nvfp4"]);
    assert_words(&error, &["copied as they are: ", &words("l.0.mlp.up_proj"), "; 2 more are named by info"]);
    assert_eq!(error.matches("copied as they are").count(), 1, "{error}");
}

/// (The output was named, with no word of what to do; a dry run found nothing.)
#[test]
fn a_scale_of_another_scheme_beside_a_matrix_is_one_of_the_input() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let names = ["down", "up"].map(|part| format!("l.0.mlp.{part}_proj.weight"));
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [128, 128], seed)).collect();
    let cases = [
        ("fp8-128x128", "weight_scale"),
        ("fp8-row", "weight_scale_inv"),
        ("fp8-tensor", "weight_scale_inv"),
        ("fp8-tensor", "weight_scale_2"),
        ("fp8-tensor", "scale_weight"),
    ];
    for (recipe, last) in cases {
        let name = format!("l.0.mlp.down_proj.{last}");
        let _ = fs::remove_dir_all(&input);
        model_folder(&input, &[&tensors[..], &[one(&name)]].concat(), Some(json!({"architectures": ["X"]})));
        let args = ["quantize", &input, "--recipe", recipe];
        for options in [&["--dry-run"][..], &["-o", &output, "--dry-run"], &["-o", &output]] {
            assert_words(
                &bad(2, &[&args[..], options].concat()),
                &[
                    &format!("{input}: tensor {name}: is there, and would be read as a scale of "),
                    "l.0.mlp.down_proj.weight, which would be quantized; take it out of the input, or leave the matrix as it is with ",
                    r"--exclude '^l\.0\.mlp\.down_proj\.weight$'",
                ],
            );
        }
        assert_eq!(folder.names(), ["in"]);
    }
    fs::remove_dir_all(&input).unwrap();
    // Beside a matrix that stays plain it is copied, and that is said of it alone.
    let stale = one("l.0.mlp.down_proj.weight_scale_inv");
    model_folder(&input, &[&tensors[..], &[stale]].concat(), Some(json!({"architectures": ["X"]})));
    let args = ["quantize", &input, "-o", &output, "--recipe", "fp8-row", "--exclude", "down", "--dialect", "plain"];
    assert_words(&said(&args), &["1 scale (l.0.mlp.down_proj.weight_scale_inv) beside weights that are plain"]);
}

/// The experts of a layer in two tensors, as Llama 4 has them, and one more tensor.
fn experts<'a>(more: Tensor<'a>) -> Vec<Tensor<'a>> {
    let bf16 =
        |name, shape: [usize; 3]| (name, Dtype::BF16, shape.to_vec(), vec![0; 2 * shape.iter().product::<usize>()]);
    let [up, down] = ["l.0.feed_forward.experts.gate_up_proj", "l.0.feed_forward.experts.down_proj"];
    vec![bf16(up, [2, 32, 64]), bf16(down, [2, 32, 32]), more]
}

/// (A tensor was named that no input has, and a dry run found nothing.)
#[test]
fn a_tensor_with_the_name_of_an_expert_is_one_of_the_input() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let name = "l.0.feed_forward.experts.1.gate_proj.weight";
    for (dtype, bytes) in [(Dtype::F64, 8), (Dtype::BF16, 2)] {
        let tensors = experts((name, dtype, vec![32, 32], vec![0; 1024 * bytes]));
        let _ = fs::remove_dir_all(&input);
        model_folder(&input, &tensors, Some(json!({"model_type": "llama4", "architectures": ["X"]})));
        for recipe in ["nvfp4", "fp8-row"] {
            let args = ["quantize", &input, "--recipe", recipe, "--dialect", "plain"];
            for options in [&["--dry-run"][..], &["-o", &output, "--dry-run"], &["-o", &output]] {
                let error = bad(2, &[&args[..], options].concat());
                let words =
                    "is there, and expert 1 of l.0.feed_forward.experts.gate_up_proj would be written under that name";
                assert_words(&error, &[&format!("{input}: tensor {name}: {words}; take it out of the input")]);
            }
        }
    }
    assert_eq!(folder.names(), ["in"]);
}

/// (To leave one expert as it is was advised, and refused: all are, or none.)
#[test]
fn no_expert_of_a_tensor_is_to_be_left_alone() {
    let folder = Folder::new();
    let input = folder.file("in");
    let names =
        ["experts.0.gate_proj.weight_scale", "experts.0.gate_proj.weight_scale_inv", "experts.gate_up_proj_scale"];
    for name in names.map(|name| format!("l.0.feed_forward.{name}")) {
        let _ = fs::remove_dir_all(&input);
        model_folder(&input, &experts(one(&name)), Some(json!({"model_type": "llama4", "architectures": ["X"]})));
        let error = bad(2, &["quantize", &input, "--recipe", "fp8-row", "--dry-run"]);
        assert_words(&error, &[&format!("{input}: tensor {name}: is there, and "), "; take it out of the input"]);
        assert!(!error.contains("--exclude"), "{error}");
    }
}
