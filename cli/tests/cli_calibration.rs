//! Files of calibration: which layers they may name, and what is said of an amax.

mod common;

use std::fs;

use common::*;
use safetensors::tensor::Dtype;
use scaled_gemm::checkpoint::Checkpoint;
use serde_json::{Value, json};

/// (These were refused: no tensor of the input has the name.)
#[test]
fn scales_of_layers_that_the_model_has_are_taken() {
    let folder = Folder::new();
    let (input, file) = (folder.file("in"), folder.file("amax"));
    let tensors =
        |layer: &'static str| [f32_tensor(layer, [128, 128], 1), f32_tensor("m.0.mlp.down_proj.weight", [128, 128], 2)];
    let amax = |names: &[&str]| {
        let all: serde_json::Map<_, _> = names.iter().map(|name| (name.to_string(), json!(3))).collect();
        fs::write(&file, json!(all).to_string()).unwrap();
    };
    let run = |input: &str, dialect: &str| {
        // Of a model that is quantized already the rest is left alone, unless it is asked for.
        let args = ["quantize", input, "--dry-run", "--recipe", "nvfp4", "--only", "down_proj", "--dialect", dialect];
        run_on("cpu", &[&args[..], &["--input-scales", &file]].concat())
    };
    // A head that is tied to the embeddings, in a model with a vision tower.
    model_folder(&input, &tensors("language_model.model.embed_tokens.weight"), Some(json!({})));
    amax(&["m.0.mlp.down_proj", "language_model.lm_head"]);
    let text = |output: &std::process::Output| String::from_utf8(output.stderr.clone()).unwrap();
    let said = |output: std::process::Output, words: &[&str]| {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert_words(&text(&output), words);
    };
    said(
        run(&input, "modelopt"),
        &["1 layer not quantized, whose amax nothing is written for (language_model.lm_head)"],
    );
    amax(&["m.0.mlp.down_proj", "language_model.lm_heads"]);
    assert_words(&error_of(&run(&input, "modelopt"), 2), &["1 layer that", "(language_model.lm_heads)"]);
    // Layers that were quantized before, whatever their tensors are called.
    for dialect in ["compressed-tensors", "modelopt"] {
        let (plain, half) = (folder.file("plain"), folder.file("half"));
        model_folder(&plain, &tensors("m.0.self_attn.o_proj.weight"), Some(json!({})));
        let args =
            ["quantize", &plain, "-o", &half, "--recipe", "nvfp4", "--dialect", dialect, "--exclude", "down_proj"];
        good(&args);
        amax(&["m.0.mlp.down_proj", "m.0.self_attn.o_proj"]);
        said(run(&half, "plain"), &["1 layer not quantized, whose amax nothing is written for (m.0.self_attn.o_proj)"]);
        fs::remove_dir_all(&plain).unwrap();
        fs::remove_dir_all(&half).unwrap();
    }
    // One shard, with the calibration of the whole.
    let shards = folder.file("shards");
    fs::create_dir(&shards).unwrap();
    let [first, second] = ["a.safetensors", "b.safetensors"].map(|name| format!("{shards}/{name}"));
    write(&first, &[f32_tensor("m.0.mlp.down_proj.weight", [128, 128], 1)]);
    write(&second, &[f32_tensor("m.1.mlp.down_proj.weight", [128, 128], 1)]);
    let map = json!({"m.0.mlp.down_proj.weight": "a.safetensors", "m.1.mlp.down_proj.weight": "b.safetensors"});
    fs::write(format!("{shards}/model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    amax(&["m.0.mlp.down_proj", "m.1.mlp.down_proj"]);
    let words = "1 layer of other shards, whose amax nothing is written for here (m.1.mlp.down_proj)";
    said(run(&first, "modelopt"), &[words]);
    amax(&["m.0.mlp.down_proj", "m.2.mlp.down_proj"]);
    let error = error_of(&run(&first, "modelopt"), 2);
    assert_words(
        &error,
        &["does not have, nor the other shards of", "model.safetensors.index.json (m.2.mlp.down_proj);"],
    );
}

/// (The words were looked for in names, too, and replaced there.)
#[test]
fn words_in_names_are_left_alone() {
    let folder = Folder::new();
    let (input, file) = (folder.file("in.safetensors"), folder.file("amax"));
    write(&input, &[f32_tensor("l.weight", [128, 128], 1)]);
    let run = |text: &str| {
        fs::write(&file, text).unwrap();
        bad(2, &["quantize", &input, "--dry-run", "--recipe", "nvfp4", "--weight-amax", &file])
    };
    let name = "a is not a number: number out of range";
    let error = run(&format!(r#"{{"{name}": [1]}}"#));
    assert_words(&error, &[&format!("layer \"{name}\" is not a number: invalid type"), "JSON has no NaN"]);
    let error = run(&format!(r#"{{"l": "{name}"}}"#));
    assert_words(&error, &[&format!("string \"{name}\""), "JSON has no NaN"]);
    let error = run(&format!(r#"{{"{name}": 1e400}}"#));
    assert_words(&error, &[&format!("layer \"{name}\" has a number beyond FP64 at line 1"), "finite in FP32"]);
}

/// (What has no scale was asked of an amax / 2688, whatever the recipe.)
#[test]
fn an_amax_is_too_small_by_its_own_recipe() {
    let folder = Folder::new();
    let (input, file, output) = (folder.file("in.safetensors"), folder.file("amax"), folder.file("out"));
    // Of such values, each amax below is sound.
    let tiny = |amax: f32| f32_bytes(&values(128 * 128, 1).iter().map(|v| v * amax).collect::<Vec<_>>());
    let least = f32::MIN_POSITIVE;
    for (options, divisor) in [
        (&["nvfp4"][..], 2688.0),
        (&["nvfp4", "--four-over-six", "mse", "--e4m3-max", "256"], 1536.0),
        (&["fp8-tensor", "--preset", "transformer-engine"], 448.0),
        (&["fp8-tensor", "--preset", "transformer-engine", "--format", "e5m2"], 57344.0),
        // These have a least amax of their own.
        (&["fp8-tensor"], 0.0),
        (&["fp8-tensor", "--preset", "deepgemm"], 0.0),
    ] {
        for (factor, is_good) in [(1.01, true), (0.99, divisor == 0.0)] {
            let amax = least * if divisor == 0.0 { 448.0 } else { divisor } * factor;
            write(&input, &[("l.weight", Dtype::F32, vec![128, 128], tiny(amax))]);
            fs::write(&file, json!({"l": amax}).to_string()).unwrap();
            let _ = fs::remove_file(&output);
            let args = [&["quantize", &input, "-o", &output, "--weight-amax", &file, "--recipe"][..], options].concat();
            match is_good {
                true => {
                    good(&args);
                    let written = Checkpoint::open(&output).unwrap().quant_matrix("l.weight").unwrap();
                    assert!(written.scales()[0].is_normal(), "{options:?} {amax:e}: {}", written.scales()[0]);
                }
                false => {
                    let words = format!("the amax {amax:e} of l has no FP32 scale; give one nearer to 1");
                    assert_words(&bad(2, &args), &[&words]);
                }
            }
        }
    }
}

/// A model of experts in one tensor.
fn experts(path: &str, number: usize) {
    let tensor = |name: &'static str, shape: [usize; 3], seed| {
        (name, Dtype::F32, shape.to_vec(), f32_bytes(&values(shape.iter().product(), seed)))
    };
    let tensors = [
        tensor("model.layers.0.feed_forward.experts.gate_up_proj", [number, 32, 32], 1),
        tensor("model.layers.0.feed_forward.experts.down_proj", [number, 16, 32], 2),
    ];
    model_folder(path, &tensors, Some(json!({"model_type": "llama4_text", "architectures": ["X"]})));
}

/// (It went without a word.)
#[test]
fn an_amax_that_no_weight_takes_is_named() {
    let folder = Folder::new();
    let (input, file) = (folder.file("in"), folder.file("amax"));
    experts(&input, 2);
    let down = "model.layers.0.feed_forward.experts.down_proj";
    let own = |number: usize| format!("model.layers.0.feed_forward.experts.{number}.down_proj");
    let args = ["quantize", &input, "--dry-run", "--recipe", "nvfp4", "--weight-amax", &file];
    fs::write(&file, json!({down: 3, own(0): 2, own(1): 2}).to_string()).unwrap();
    let words = format!(
        "1 layer of experts in one tensor, each of which has an amax of its own: that of the tensor changes nothing ({down})"
    );
    assert_words(&said(&args), &[&words]);
    fs::write(&file, json!({down: 3, own(0): 2}).to_string()).unwrap();
    assert!(!said(&args).contains("changes nothing"));
}

/// (Each was a line of its own, of hundreds of experts.)
#[test]
fn what_is_said_of_many_matrices_is_one_line() {
    let folder = Folder::new();
    let (input, file, output) = (folder.file("in"), folder.file("amax"), folder.file("out"));
    let start = "model.layers.0.feed_forward.experts";
    let all = start.replace('0', "*");
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--weight-amax", &file];
    let lines = |amax: Value| {
        fs::write(&file, amax.to_string()).unwrap();
        let _ = fs::remove_dir_all(&output);
        let text = good(&args);
        text.lines().filter(|line| line.contains("given amax")).map(String::from).collect::<Vec<_>>()
    };
    for (number, few) in [(40, true), (64, false)] {
        let _ = fs::remove_dir_all(&input);
        experts(&input, number);
        let words = format!("{all}.*.down_proj.weight: of {number} matrices ");
        for amax in [1e9, 1e-3] {
            let found = lines(json!({format!("{start}.down_proj"): amax}));
            assert_eq!(found.len(), if few { number } else { 1 }, "{found:?}");
            assert!(few || found[0].starts_with(&words), "{found:?}");
        }
        // Some of them have more left.
        let found = lines(json!({format!("{start}.down_proj"): 4e5}));
        let words =
            " matrices the given amax leaves less than the 13 dB of SQNR that one near the largest value leaves";
        assert_eq!(found.iter().any(|line| line.contains(words)), !few, "{found:?}");
        // And of these some have blocks of zeros.
        let of_blocks = |line: &&String| line.contains("became 0") && line.contains("by the given amax");
        assert!(few || found.len() == 1 + found.iter().filter(of_blocks).count(), "{found:?}");
        // What another outweighs, too: the scale is that of gate and up.
        let gates = (0..number).map(|n| (format!("{start}.{n}.gate_proj"), json!(0.01)));
        let found = lines(Value::Object(gates.collect()));
        assert_eq!(found.len(), if few { number } else { 1 }, "{found:?}");
        let words = format!(
            "{all}.*.gate_proj.weight: the given amax of {number} matrices changes nothing: they share their scales with {all}.*.up_proj.weight"
        );
        assert!(few || found[0].starts_with(&words), "{found:?}");
    }
}

/// (Half of the bits were gone, and not a value was zero or cut off.)
#[test]
fn an_amax_that_leaves_few_bits_is_said() {
    let folder = Folder::new();
    let (input, file, output) = (folder.file("in"), folder.file("amax"), folder.file("out"));
    let x = values(128 * 128, 1);
    let largest = x.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    write(&input, &[("l.weight", Dtype::F32, vec![128, 128], f32_bytes(&x))]);
    for (options, factor, least) in [
        (&["nvfp4"][..], 3e5, 13),
        (&["nvfp4", "--stochastic", "1"], 3e5, 13),
        (&["fp8-tensor"], 5e4, 24),
        (&["fp8-tensor", "--format", "e5m2"], 1e9, 18),
    ] {
        let args = [&["quantize", &input, "-o", &output, "--weight-amax", &file, "--recipe"][..], options].concat();
        let run = |factor: f32| {
            fs::write(&file, json!({"l": largest * factor}).to_string()).unwrap();
            let _ = fs::remove_file(&output);
            let text = good(&args);
            let back = scaled_gemm::reference::dequantize(
                &Checkpoint::open(&output).unwrap().quant_matrix("l.weight").unwrap(),
                scaled_gemm::DType::F32,
            );
            let db = sqnr_db(&x, back.as_slice().unwrap());
            let value = json(&[&args[..], &["--json"]].concat());
            let said = value["quantized"][0]["given_amax"]["sqnr_db"].as_f64().unwrap();
            assert!((said - db).abs() < 1e-3, "{said} {db}");
            (text.lines().find(|line| line.contains("given amax")).map(String::from), db)
        };
        let (line, db) = run(factor);
        let amax = largest * factor;
        let amax = if (1e-4..1e7).contains(&amax) { amax.to_string() } else { format!("{amax:e}") };
        let words = format!("l.weight: the given amax {amax} leaves {db:.1} dB of SQNR, less than the {least} that");
        assert_words(
            &line.unwrap_or_else(|| panic!("{options:?} {db}")),
            &[&words, &format!("the largest of them is {largest}; give an amax near it")],
        );
        // With room to spare it is sound.
        for factor in [1.0, 1.5, 64.0, 1000.0] {
            let (line, db) = run(factor);
            assert!(line.is_none() && db > f64::from(least), "{options:?} {factor}: {line:?} {db}");
        }
    }
}

/// What is the worst that there is with a sound amax is no fault of the amax.
#[test]
fn the_worst_blocks_are_no_fault_of_an_amax() {
    let folder = Folder::new();
    let (input, file, output) = (folder.file("in"), folder.file("amax"), folder.file("out"));
    let least = |options: &[&str], worst: f32, beside: usize| {
        // One in so many values is the largest; the others lie between two codes.
        let x: Vec<f32> =
            (0..128 * 128).map(|i| if i % 128 % 16 == 0 && i / 128 % beside == 0 { 6.0 } else { worst }).collect();
        write(&input, &[("l.weight", Dtype::F32, vec![128, 128], f32_bytes(&x))]);
        fs::write(&file, r#"{"l": 6.000001}"#).unwrap();
        let _ = fs::remove_file(&output);
        let args =
            [&["quantize", &input, "-o", &output, "--weight-amax", &file, "--json", "--recipe"][..], options].concat();
        let found = json(&args)["quantized"][0]["given_amax"]["sqnr_db"].as_f64().unwrap();
        fs::remove_file(&output).unwrap();
        let text = good(&args.iter().copied().filter(|arg| *arg != "--json").collect::<Vec<_>>());
        assert!(!text.contains("given amax"), "{text}");
        found
    };
    let near = |found: f64, want: f64| assert!((found - want).abs() < 0.3, "{found} {want}");
    near(least(&["nvfp4"], 5.0, 1), 14.4);
    near(least(&["nvfp4", "--tile-16x16"], 0.2501, 16), 5.1);
    // Halfway between codes of the smallest mantissas, in the exponent of the largest.
    near(least(&["fp8-tensor"], 6.0 / 448.0 * 272.0, 1), 25.3);
    near(least(&["fp8-tensor", "--format", "e5m2"], 6.0 / 57344.0 * 36864.0, 1), 19.7);
}
