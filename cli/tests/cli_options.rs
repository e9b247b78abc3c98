//! Options of `quantize` and `dequantize` on models: what would do nothing is refused, what is seldom meant is said.

mod common;

use std::fs;

use common::*;
use safetensors::tensor::Dtype;
use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::reference::{amax, dequantize, quantize_part};
use scaled_gemm::{DType, Fp8Format, GivenScale, Recipe, Scheme};
use serde_json::json;

/// A folder of one layer with an embedding, an output head and a vision tower.
fn layered(folder: &Folder) -> String {
    let path = folder.file("model");
    let names = [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "vision_tower.fc1.weight",
        "l.0.q_proj.weight",
        "l.0.k_proj.weight",
    ];
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [128, 128], seed)).collect();
    model_folder(&path, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
    path
}

/// (It was `invalid digit found in string`.)
#[test]
fn a_seed_that_is_none_is_refused_with_the_rule() {
    let rule = "write a whole number from 0 to 18446744073709551615";
    for seed in ["x", "-1", "1.5", "18446744073709551616", ""] {
        assert_words(&bad(2, &["verify", &format!("--seed={seed}")]), &["--seed", rule]);
        let args = ["quantize", "in", "-o", "out", "--recipe", "nvfp4", &format!("--stochastic={seed}")];
        assert_words(&bad(2, &args), &["--stochastic", rule]);
    }
}

#[test]
fn what_only_selects_against_the_defaults_is_said_or_refused() {
    let folder = Folder::new();
    let input = layered(&folder);
    let only = |regex: &'static str, dialect: &'static str| {
        ["quantize", &input, "--recipe", "fp8-tensor", "--dry-run", "--dialect", dialect, "--only", regex]
            .map(str::to_string)
    };
    let run = |regex, dialect| {
        let args = only(regex, dialect);
        run_on("cpu", &args.each_ref().map(String::as_str))
    };
    let text = String::from_utf8(run("head|fc1|_proj", "fp8").stderr).unwrap();
    assert_words(&text, &["--only: selects 2 tensors", "lm_head.weight, vision_tower.fc1.weight", "may not read"]);
    // Ordinary layers, and files of this program's own.
    for (regex, dialect) in [("_proj", "fp8"), (".", "plain")] {
        let output = run(regex, dialect);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !text.contains("--only"), "{text}");
    }
    for dialect in ["fp8", "compressed-tensors"] {
        let error = error_of(&run("embed|_proj", dialect), 2);
        assert_words(&error, &["1 embedding (model.embed_tokens.weight)", dialect, "--dialect plain"]);
    }
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let folder = Folder::new();
    let (input, file) = (layered(&folder), folder.file("in"));
    model(&file);
    let (names, output) = (folder.names(), folder.file("out"));
    let cases: [(&str, &str, &[&str], &[&str]); 12] = [
        (&input, "nvfp4", &["--exclude", "^down_proj"], &["--exclude ^down_proj", "no tensor"]),
        (&input, "nvfp4", &["--exclude", "q_proj", "--exclude", "nowhere"], &["--exclude nowhere", "no tensor"]),
        (&input, "nvfp4", &["--fuse", "experts"], &["--fuse experts", "no layer"]),
        // What it matches is the whole of what differs, or nothing of it.
        (&input, "nvfp4", &["--fuse", "q_proj"], &["--fuse q_proj: joins no layers of", "mend it, or leave it out"]),
        (&input, "nvfp4", &["--fuse", "x*"], &["--fuse x*: joins no layers"]),
        (&input, "nvfp4", &["--fuse", "[qk]_proj", "--fuse", "^lm"], &["--fuse ^lm: joins no layers"]),
        (&input, "nvfp4", &["--only", "experts"], &["--only experts", "no matrix"]),
        (&input, "fp8-row", &["--dialect", "plain", "--no-fuse"], &["--no-fuse", "fp8-row", "leave it out"]),
        (&input, "nvfp4-row", &["--fuse", "[qk]_proj"], &["--fuse", "nvfp4-row", "leave it out"]),
        (&input, "nvfp4", &["--dialect", "comfyui"], &["ComfyUI reads single files", "another dialect"]),
        (&file, "fp8-row", &["--shard-size", "5GB"], &["--shard-size", "one file", "leave it out"]),
        (&file, "mxfp8", &["--no-fuse"], &["--no-fuse", "leave it out"]),
    ];
    for (input, recipe, options, words) in cases {
        for end in [&["-o", &output][..], &["--dry-run"]] {
            let args = [&["quantize", input, "--recipe", recipe][..], options, end].concat();
            assert_words(&bad(2, &args), words);
            assert_eq!(folder.names(), names);
        }
    }
    // What does something.
    for options in [&["--no-fuse"][..], &["--fuse", "[qk]_proj"]] {
        good(&[&["quantize", &input, "--recipe", "fp8-128x128", "--dry-run"][..], options].concat());
        good(&[&["quantize", &input, "--recipe", "nvfp4", "--dialect", "plain", "--dry-run"][..], options].concat());
    }
    let packed = folder.file("q");
    good(&["quantize", &file, "-o", &packed, "--recipe", "fp8-row"]);
    let error = bad(2, &["dequantize", &packed, "-o", &output, "--shard-size", "1MB"]);
    assert_words(&error, &["--shard-size", "leave it out"]);
}

/// (Patterns that joined what was joined passed without a word, and engines were blamed for what a pattern did.)
#[test]
fn what_a_pattern_of_fuse_does_is_said_as_it_is() {
    let folder = Folder::new();
    let (input, output) = (folder.file("model"), folder.file("out"));
    let names = [0, 1].map(|i| ["q_proj", "k_proj", "o_proj"].map(|name| format!("l.{i}.{name}.weight")));
    let names: Vec<&str> = names.as_flattened().iter().map(String::as_str).chain(["lm_head.weight"]).collect();
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [128, 128], seed)).collect();
    model_folder(&input, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
    let args = ["quantize", &input, "--recipe", "nvfp4"];
    let run = |options: &[&str]| run_on("cpu", &[&args[..], &["--dry-run"], options].concat());
    let text = |options: &[&str]| {
        let output = run(options);
        assert!(output.status.success(), "{output:?}");
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
    };
    let (fused, own) = (
        "share one scale, as engines that fuse them read it: ",
        "share one scale by --fuse, more than engines are known to fuse: ",
    );
    let [result, error] = text(&["--fuse", r"\d+"]);
    assert_words(&result, &[&format!("{own}2 groups (1 of k_proj, q_proj (4 layers); 1 of o_proj (2 layers))")]);
    assert!(!result.contains(fused) && !error.contains("--fuse"), "{result}{error}");
    // Of one layer alone.
    let [result, _] = text(&["--fuse", "(q|o)_proj", "--exclude", "l.1"]);
    assert_words(&result, &[&format!("{own}1 group (1 of k_proj, o_proj, q_proj)")]);
    let [result, error] = text(&["--fuse", "[qk]_proj"]);
    assert_words(&result, &[&format!("{fused}2 groups")]);
    assert_words(&error, &["--fuse [qk]_proj: changes nothing: engines fuse what it joins", "; leave it out"]);
    assert!(!result.contains(own), "{result}");
    // One of the two is needed.
    let [_, error] = text(&["--fuse", "[qo]_proj", "--fuse", "[oq]_proj"]);
    assert_eq!(error.matches("changes nothing").count(), 1, "{error}");
    // The head is left alone, and with it what the pattern puts beside it.
    let error = error_of(&run(&["--fuse", ".*"]), 2);
    assert_words(
        &error,
        &["no matrix to quantize", "--fuse joins it with a layer that is left alone: narrow the pattern"],
    );
    assert!(!error.contains("engines"), "{error}");
    good(&[&args[..], &["-o", &output, "--fuse", ".*", "--dialect", "plain"]].concat());
}

/// (A mark of the encoding made it no JSON, an empty file no safetensors; a large number was written with 300 zeros; what was given for
/// layers that stay went without a word.)
#[test]
fn what_is_wrong_with_a_file_of_scales_is_said() {
    let folder = Folder::new();
    let (input, output, scales) = (layered(&folder), folder.file("out"), folder.file("amax"));
    let run = |option: &str, content: &[u8]| {
        fs::write(&scales, content).unwrap();
        run_on("cpu", &["quantize", &input, "--recipe", "nvfp4", option, &scales, "--dry-run"])
    };
    let cases: [(&[u8], &[&str]); 11] = [
        (b"", &["amax: is empty: 0 bytes", "; give a JSON object"]),
        (b" \n", &["amax: is empty: 2 bytes"]),
        (b"\xEF\xBB\xBF{}", &["amax: begins with the byte order mark EF BB BF", "; save it as UTF-8 without"]),
        (b"\xFF\xFE{\0}\0", &["byte order mark FF FE of UTF-16", "; save it as UTF-8 without"]),
        (b"\xFE\xFF\0{\0}", &["byte order mark FE FF of UTF-16"]),
        (
            br#"{"l.0.q_proj": 1e300}"#,
            &[
                "amax: tensor l.0.q_proj: is 1e300: an amax is above 0 and finite in FP32, at most 3.4",
                "; give the largest",
            ],
        ),
        (
            br#"{"l.0.q_proj": 1e400}"#,
            &["\"l.0.q_proj\" has a number beyond FP64 at line 1", "finite in FP32, at most 3.4", "; give the largest"],
        ),
        (br#"{"l.0.q_proj": 0}"#, &["tensor l.0.q_proj: is 0.0: an amax is above 0", "; give the largest magnitude"]),
        (br#"{"l.0.q_proj": 1e-320}"#, &["is 1e-320: an amax is above 0"]),
        (br#"{"l.0.q_proj": -0.0}"#, &["is -0.0: an amax is above 0"]),
        (br#"{"l.0.q_proj": -3e38}"#, &["is -3e38: an amax is above 0"]),
    ];
    for (content, words) in cases {
        for option in ["--input-scales", "--weight-amax"] {
            let error = error_of(&run(option, content), 2);
            assert_words(&error, words);
            assert!(error.len() < scales.len() + 260, "{error}");
        }
    }
    let text = |content: &str| String::from_utf8(run("--input-scales", content.as_bytes()).stderr).unwrap();
    let both = r#""l.0.q_proj": 1, "l.0.k_proj.weight": 3e38"#;
    let said = text(&format!("{{{both}, \"lm_head\": 2, \"vision_tower.fc1\": 2}}"));
    assert_words(
        &said,
        &["amax: 2 layers not quantized, whose amax nothing is written for (lm_head, vision_tower.fc1)"],
    );
    assert!(!text(&format!("{{{both}}}")).contains("amax"));
    assert!(!fs::exists(output).unwrap());
}

#[test]
fn sizes_of_shards_say_how_they_are_written() {
    for size in ["0", "1.5GB", "5G", "GB", "-1", "99999999999GB", "5 TB"] {
        let option = format!("--shard-size={size}");
        let error = bad(2, &["quantize", "in", "-o", "out", "--recipe", "nvfp4", &option]);
        assert_words(
            &error,
            &["--shard-size", "a whole number above 0 of B, KB, MB, GB, KiB, MiB or GiB, such as 5GB"],
        );
    }
}

#[test]
fn input_scales_are_those_of_the_layers_and_once() {
    let folder = Folder::new();
    let (input, scales) = (layered(&folder), folder.file("amax"));
    let args = ["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--input-scales", &scales];
    let entries = |more: &str| format!(r#"{{"l.0.q_proj": 3, "l.0.k_proj": 2{more}}}"#);
    let cases: [(&str, &[&str]); 9] = [
        (r#", "l.0.q_proj": 9"#, &["l.0.q_proj", "there twice"]),
        (r#", "l.0.q_proj.weight": 3"#, &["l.0.q_proj", "there twice"]),
        (r#", "x": NaN"#, &["\"x\" is not a number"]),
        (r#", "x": Infinity"#, &["\"x\" is not a number"]),
        (r#", "x": 1e400"#, &["\"x\" has a number beyond FP64"]),
        (r#", "x": 1e39"#, &["x", "above 0 and finite"]),
        (r#", "x": 0"#, &["x", "above 0 and finite"]),
        (r#", "x": -0.5"#, &["x", "above 0 and finite"]),
        (r#", "x": 1e-60"#, &["x", "above 0 and finite"]),
    ];
    for (more, words) in cases {
        fs::write(&scales, entries(more)).unwrap();
        assert_words(&bad(2, &args), words);
    }
    fs::write(&scales, "[1, 2]").unwrap();
    assert_words(&bad(2, &args), &["no object"]);
    for value in [f32::NAN, f32::INFINITY, -1.0, 0.0] {
        write(&scales, &[("l.0.q_proj", Dtype::F32, vec![], f32_bytes(&[value]))]);
        assert_words(&bad(2, &args), &["l.0.q_proj", "above 0 and finite"]);
    }
    // (Those of no layer were only named.)
    fs::write(&scales, entries(r#", "lm_head": 1, "l.0.qkv_proj": 1, "l.7.q_proj.weight": 1"#)).unwrap();
    assert_words(&bad(2, &args), &["2 layers that", "does not have (l.0.qkv_proj, l.7.q_proj); ", "leave them out"]);
    fs::write(&scales, entries(r#", "lm_head": 1"#)).unwrap();
    assert!(!said(&args).contains("does not have"));
    // A head that is tied to the embeddings has no tensor, and calibration sees it.
    let tied = folder.file("tied");
    model_folder(&tied, &[f32_tensor("l.0.q_proj.weight", [16, 32], 1)], Some(json!({})));
    fs::write(&scales, r#"{"l.0.q_proj": 3, "lm_head": 1}"#).unwrap();
    let text = said(&["quantize", &tied, "--recipe", "nvfp4", "--dry-run", "--input-scales", &scales]);
    assert_words(&text, &["1 layer not quantized, whose amax nothing is written for (lm_head)"]);
    // (It had no remedy but the form of the file.)
    for value in ["NaN", "Infinity", "-Infinity", "null", "\"1\""] {
        fs::write(&scales, entries(&format!(r#", "x": {value}"#))).unwrap();
        let words = ["layer \"x\" is not a number", "; give the largest magnitude that was seen", "JSON has no NaN"];
        assert_words(&bad(2, &args), &words);
    }
    fs::remove_file(&scales).unwrap();
    fs::create_dir(&scales).unwrap();
    assert_words(&bad(2, &args), &["amax: is a folder", "a JSON or safetensors file"]);
}

/// The remedy names the tensor as the option takes it.
#[test]
fn what_is_not_finite_is_excluded_by_its_name() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let mut bad_values = values(16 * 32, 1);
    bad_values[40] = f32::NAN;
    write(&input, &[("a+b.0", Dtype::F32, vec![16, 32], f32_bytes(&bad_values)), f32_tensor("axb.0", [16, 32], 1)]);
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4"];
    let error = bad(2, &args);
    let option = error.split("--exclude '").nth(1).and_then(|rest| rest.split('\'').next()).unwrap();
    assert_eq!(option, r"^a\+b\.0$", "{error}");
    let text = good(&[&args[..], &["--exclude", option]].concat());
    assert_words(&text, &["matched by --exclude: 1 (a+b.0", "1 matrix"]);
}

/// What is written is what the reference makes of the amax that was given.
#[test]
fn a_given_amax_of_weights_makes_their_scale() {
    let folder = Folder::new();
    let (input, file, output) = (layered(&folder), folder.file("amax"), folder.file("out"));
    fs::write(&file, r#"{"l.0.q_proj": 0.5}"#).unwrap();
    for (recipe, scheme) in [("nvfp4", Scheme::Nvfp4), ("fp8-tensor", Scheme::Fp8Tensor(Fp8Format::E4M3))] {
        for (fuse, own) in [(vec!["--no-fuse"], true), (vec![], false)] {
            let args = ["quantize", &input, "-o", &output, "--recipe", recipe, "--weight-amax", &file];
            good(&[&args[..], &["--dialect", "plain"], &fuse].concat());
            let [q, k] = ["l.0.q_proj.weight", "l.0.k_proj.weight"].map(|name| {
                let (x, dtype) = Checkpoint::open(&input).unwrap().matrix(name).unwrap();
                let largest = amax(x.as_slice().unwrap());
                assert!(largest > 0.5, "{name}: {largest}");
                let made = |amax| quantize_part(x.view(), dtype, Recipe::new(scheme), GivenScale::Amax(amax)).unwrap();
                let found = Checkpoint::open(&output).unwrap().quant_matrix(name).unwrap();
                (found == made(0.5), found == made(largest))
            });
            // Of those that share one, the largest: that of k, which was not given one.
            assert_eq!((q.0, q.1), (own, false), "{recipe}");
            assert!(k.1, "{recipe}: k keeps its own");
            fs::remove_dir_all(&output).unwrap();
        }
    }
    let run = |recipe: &str| bad(2, &["quantize", &input, "--dry-run", "--recipe", recipe, "--weight-amax", &file]);
    assert_words(&run("fp8-row"), &["--weight-amax", "no scale of the whole", "nvfp4 or fp8-tensor"]);
    fs::write(&file, r#"{"l.0.q_proj": 0.5, "lm_head": 3, "l.0.o_proj": 1}"#).unwrap();
    assert_words(&run("nvfp4"), &["amax", "2 layers", "l.0.o_proj", "leave them out"]);
    fs::write(&file, r#"{"l.0.q_proj": -1}"#).unwrap();
    // (The remedy, to leave it out of the file, was refused of scales of inputs.)
    let remedy = "or leave the layer out of the file, for --input-scales with --exclude";
    assert_words(&run("nvfp4"), &["l.0.q_proj", "above 0", remedy]);
    for wrong in ["0", "-1", "\"NaN\""] {
        fs::write(&file, format!(r#"{{"l.0.q_proj": {wrong}}}"#)).unwrap();
        let args =
            ["quantize", &input, "--dry-run", "--recipe", "nvfp4", "--dialect", "modelopt", "--input-scales", &file];
        assert_words(&bad(2, &args), &["l.0.q_proj", remedy]);
    }
    // (Its scale was 0, and all values with it.)
    fs::write(&file, r#"{"l.0.q_proj": 1e-44}"#).unwrap();
    assert_words(&run("nvfp4"), &["the amax 1e-44 of l.0.q_proj", "nearer to 1"]);
    // (A file of nothing passed without a word, and every layer had its own.)
    let words = [
        "amax: holds no amax, and --weight-amax asks for those of",
        "(l.0.k_proj, l.0.q_proj)",
        "leave the option out",
    ];
    fs::write(&file, "{}").unwrap();
    assert_words(&run("nvfp4"), &words);
    write(&file, &[]);
    assert_words(&run("fp8-tensor"), &words);
}

#[test]
fn what_no_engine_would_load_is_said() {
    let folder = Folder::new();
    let input = layered(&folder);
    let run = |options: &[&str]| said(&[&["quantize", &input, "--dry-run", "--recipe"][..], options].concat());
    let cases: [(&[&str], &str); 5] = [
        (&["fp8-1x128"], "for --recipe fp8-1x128 choose one of"),
        (&["nvfp4-row"], "for --recipe nvfp4-row choose one of"),
        (&["nvfp4", "--hadamard"], "leave --hadamard out"),
        (&["fp8-row", "--format", "e5m2"], "leave --format e5m2 out"),
        (&["fp8-1x128", "--format", "e5m2"], "leave --format e5m2 out, for --recipe fp8-1x128 choose one of"),
    ];
    for (options, remedy) in cases {
        assert_words(&run(options), &["model: engines do not load", remedy, "--dialect plain"]);
        let asked = [options, &["--dialect", "plain"]].concat();
        assert!(!run(&asked).contains("engines do not load"), "{options:?}");
    }
    let text = run(&["fp8-1x128"]);
    let listed = text.split("choose one of ").nth(1).and_then(|rest| rest.split(", or say").next()).unwrap();
    assert_eq!(listed, "fp8-tensor, fp8-row, fp8-128x128, mxfp8, mxfp4, nvfp4", "{text}");
    for recipe in listed.split(", ") {
        assert!(!run(&[recipe]).contains("engines do not load"), "{recipe}");
    }
    // Also where something is written.
    let output = folder.file("out");
    assert_words(&said(&["quantize", &input, "-o", &output, "--recipe", "fp8-1x128"]), &["engines do not load"]);
}

#[test]
fn scales_that_engines_misread_are_said() {
    let folder = Folder::new();
    let input = layered(&folder);
    let run = |recipe, dialect| {
        said(&["quantize", &input, "--dry-run", "--no-fuse", "--recipe", recipe, "--dialect", dialect])
    };
    for (recipe, dialect) in [("nvfp4", "modelopt"), ("fp8-tensor", "fp8")] {
        assert_words(&run(recipe, dialect), &["--no-fuse", "read the others wrongly", "leave it out"]);
    }
    for (recipe, dialect) in [("nvfp4", "plain"), ("fp8-128x128", "fp8")] {
        assert!(!run(recipe, dialect).contains("--no-fuse"), "{recipe} {dialect}");
    }
}

#[test]
fn one_shard_of_several_is_said() {
    let folder = Folder::new();
    let input = layered(&folder);
    let (file, index) = (format!("{input}/model.safetensors"), format!("{input}/model.safetensors.index.json"));
    let run = || said(&["quantize", &file, "--dry-run", "--recipe", "nvfp4"]);
    let alone = json!({"weight_map": {"a": "model.safetensors"}}).to_string();
    let others = json!({"weight_map": {"a": "model-2.safetensors", "b": "model-3.safetensors"}}).to_string();
    for text in ["", "[1]", r#"{"weight_map": 3}"#, r#"{"weight_map": {"a": 3}}"#, &alone, &others] {
        fs::write(&index, text).unwrap();
        assert!(!run().contains("shards"), "{text}");
    }
    fs::write(&index, json!({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}).to_string())
        .unwrap();
    assert_words(&run(), &["model.safetensors: is one of the shards of", "index.json", "give the folder"]);
}

#[test]
fn a_value_that_is_refused_is_found_by_its_file() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let mut bad_values = values(16 * 32, 1);
    bad_values[40] = f32::INFINITY;
    write(&input, &[("w", Dtype::F32, vec![16, 32], f32_bytes(&bad_values))]);
    let run =
        |recipe, more: &[&str]| bad(2, &[&["quantize", &input, "-o", &output, "--recipe", recipe][..], more].concat());
    let place = format!("{input}: tensor w: 1 non-finite value, the first at row 1, column 8");
    assert_words(&run("nvfp4", &[]), &[&place, "for infinities, so they are refused with --allow-non-finite too"]);
    assert_words(&run("fp8-row", &[]), &[&place, "--preset transformer-engine with --allow-non-finite"]);
    assert!(run("nvfp4", &["--allow-non-finite"]).ends_with("so they are refused"));
}

/// (A matrix of zeros, and one of largest codes, went without a word.)
#[test]
fn what_a_given_amax_makes_of_the_values_is_said() {
    let folder = Folder::new();
    let (input, file, output) = (folder.file("in.safetensors"), folder.file("amax"), folder.file("out"));
    let mut x = values(128 * 128, 1);
    x[7] = 0.0;
    let largest = amax(&x);
    let bytes = |x: &[f32]| x.iter().flat_map(|v| v.to_le_bytes()).collect();
    write(&input, &[("l.weight", Dtype::F32, vec![128, 128], bytes(&x)), f32_tensor("m.weight", [128, 128], 2)]);
    for recipe in ["nvfp4", "fp8-tensor"] {
        let args = ["quantize", &input, "-o", &output, "--recipe", recipe, "--weight-amax", &file];
        let run = |amax: f32| {
            fs::write(&file, format!(r#"{{"l": {amax:e}}}"#)).unwrap();
            let value = json(&[&args[..], &["--json"]].concat());
            let matrix = |name: &str| {
                value["quantized"].as_array().unwrap().iter().find(|m| m["tensor"] == name).unwrap()["given_amax"]
                    .clone()
            };
            assert!(matrix("m.weight").is_null());
            let found = matrix("l.weight");
            assert_eq!(found["amax"], json!(amax), "{found}");
            assert_eq!(found["largest"], json!(largest), "{found}");
            // As the written codes have it.
            let written = Checkpoint::open(&output).unwrap().quant_matrix("l.weight").unwrap();
            let back = dequantize(&written, DType::F32);
            let zero = x.iter().zip(&back).filter(|(x, back)| **x != 0.0 && **back == 0.0).count();
            assert_eq!(found["became_zero"], json!(zero), "{recipe} {amax:e}");
            assert_eq!(found["beyond"], json!(x.iter().filter(|x| x.abs() > amax).count()), "{recipe} {amax:e}");
            (good(&args), zero)
        };
        let said = |text: &str| text.lines().find(|line| line.contains("given amax")).map(String::from);
        let (text, zero) = run(1e9);
        assert_eq!(
            (said(&text), zero),
            (
                Some(format!(
                    "l.weight: {zero} of 16383 values that are not zero became zero by the given amax 1e9, and the largest of them is {largest}; \
             give an amax near it"
                )),
                16383
            ),
            "{recipe}"
        );
        let (text, _) = run(largest / 8.0);
        let beyond = x.iter().filter(|x| x.abs() > largest / 8.0).count();
        let percent = 100.0 * beyond as f64 / 16384.0;
        let words = format!("l.weight: {beyond} of 16384 values ({percent:.1} %) are beyond the given amax ");
        assert_words(&said(&text).unwrap(), &[&words, "and became the largest code", "the largest of them is"]);
        // As calibration has it: some are cut off, or there is room.
        for amax in [largest, largest * 4.0, largest * 0.98] {
            let (text, _) = run(amax);
            let few = x.iter().filter(|x| x.abs() > amax).count();
            assert!(few <= 163, "{few}");
            assert_eq!(said(&text), None, "{recipe} {amax}");
        }
    }
    // Block scales of 4over6 with the bound 256 have room above it, and so have scales that are rounded up.
    fs::write(&file, r#"{"l": 0.375}"#).unwrap();
    for (options, most) in [
        (&["--recipe", "nvfp4", "--four-over-six", "mse", "--e4m3-max", "256"][..], 0.65625),
        (&["--recipe", "fp8-tensor", "--power-of-two"], 0.4375),
    ] {
        let text = good(&[&["quantize", &input, "-o", &output, "--weight-amax", &file][..], options].concat());
        let beyond = x.iter().filter(|x| x.abs() > most).count();
        let words = format!("l.weight: {beyond} of 16384 values (");
        assert_words(&text, &[&words, &format!("%) are beyond {most}, the most for the given amax 0.375 and became")]);
        let back = dequantize(&Checkpoint::open(&output).unwrap().quant_matrix("l.weight").unwrap(), DType::F32);
        assert!((amax(back.as_slice().unwrap()) - most).abs() < 1e-5);
    }
    // Of those that share a scale, all that the amax of one made.
    let input = layered(&folder);
    fs::write(&file, r#"{"l.0.q_proj": 1e9}"#).unwrap();
    let text = good(&["quantize", &input, "-o", &folder.file("fused"), "--recipe", "nvfp4", "--weight-amax", &file]);
    assert_words(&text, &["l.0.q_proj.weight: ", "l.0.k_proj.weight: ", "became zero by the given amax 1e9"]);
    // (The other remedy, for values that are small without it, was said beside this one.)
    assert!(!text.contains("scale them up"), "{text}");
}

/// (One that another outweighed went without a word.)
#[test]
fn a_given_amax_that_changes_nothing_is_said() {
    let folder = Folder::new();
    let (input, file, output) = (layered(&folder), folder.file("amax"), folder.file("out"));
    let (q, k) = ("l.0.q_proj.weight", "l.0.k_proj.weight");
    let largest = amax(Checkpoint::open(&input).unwrap().matrix(k).unwrap().0.as_slice().unwrap());
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--weight-amax", &file];
    let words = "changes nothing: it shares its scale with";
    for (text, counts) in [(r#"{"l.0.q_proj": 0.01}"#, largest), (r#"{"l.0.q_proj": 0.01, "l.0.k_proj": 9}"#, 9.0)] {
        fs::write(&file, text).unwrap();
        let line = format!("{q}: the given amax 0.01 {words} {k}, whose amax {counts} counts\n");
        assert_words(&good(&args), &[&line]);
        fs::remove_dir_all(&output).unwrap();
        let value = json(&[&args[..], &["--json"]].concat());
        let matrices = value["quantized"].as_array().unwrap();
        let found: Vec<_> = matrices.iter().filter(|m| !m["given_amax_outweighed"].is_null()).collect();
        assert_eq!(found.len(), 1, "{value}");
        assert_eq!(found[0]["tensor"], q);
        assert_eq!(found[0]["given_amax_outweighed"], json!({"amax": 0.01f32, "counts": counts, "of": k}));
        fs::remove_dir_all(&output).unwrap();
    }
    let text = good(&[&args[..], &["--no-fuse"]].concat());
    assert!(!text.contains(words), "{text}");
}

/// (The name of the tensor was refused: no weight of that name is quantized, but its matrices are.)
#[test]
fn one_amax_of_experts_in_one_tensor_serves_all() {
    let folder = Folder::new();
    let (input, file, output) = (folder.file("in"), folder.file("amax"), folder.file("out"));
    let layer = "model.layers.0.feed_forward.experts";
    let tensor = |name: &'static str, shape: [usize; 3], seed| {
        (name, Dtype::F32, shape.to_vec(), f32_bytes(&values(shape.iter().product(), seed)))
    };
    let tensors = [
        tensor("model.layers.0.feed_forward.experts.gate_up_proj", [2, 128, 256], 1),
        tensor("model.layers.0.feed_forward.experts.down_proj", [2, 128, 128], 2),
    ];
    model_folder(&input, &tensors, Some(json!({"model_type": "llama4_text", "architectures": ["X"]})));
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--weight-amax", &file, "--json"];
    // Its own counts before that of the tensor.
    let text = json!({format!("{layer}.gate_up_proj"): 3.0, format!("{layer}.1.gate_proj"): 7.0}).to_string();
    fs::write(&file, text).unwrap();
    let value = json(&args);
    let found: Vec<_> = value["quantized"].as_array().unwrap().iter().map(|m| &m["given_amax"]["amax"]).collect();
    // Gate and up of an expert share a scale.
    let amax = |name: &str| {
        let at =
            value["quantized"].as_array().unwrap().iter().position(|m| m["tensor"] == format!("{layer}.{name}.weight"));
        found[at.unwrap()].clone()
    };
    assert_eq!(
        ["0.gate_proj", "0.up_proj", "1.gate_proj", "1.up_proj"].map(amax),
        [3.0, 3.0, 7.0, 7.0].map(|amax| json!(amax))
    );
    assert!(amax("0.down_proj").is_null());
    fs::write(&file, json!({format!("{layer}.gate"): 3.0}).to_string()).unwrap();
    assert_words(
        &bad(2, &args),
        &["1 layer of which no weight is quantized (model.layers.0.feed_forward.experts.gate)"],
    );
}

/// (The usage had the output as an option, and the error as required.)
#[test]
fn the_usage_says_what_is_required() {
    let [usage, error] = [&["quantize", "--help"][..], &["quantize", "in", "--recipe", "nvfp4"]].map(|args| {
        let output = run_bare(args);
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    });
    assert_words(
        &usage,
        &[
            "Usage: scaled-gemm quantize [OPTIONS] <--recipe <RECIPE>|--group <GROUP>> <--output <OUTPUT>|--dry-run> <INPUT>",
        ],
    );
    assert_words(&error, &["required arguments were not provided: <--output <OUTPUT>|--dry-run>"]);
}
