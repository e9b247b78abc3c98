//! Files of calibration: which layers they may name, and what is said of an amax.

mod common;

use std::fs;

use common::*;
use scaled_gemm::checkpoint::Checkpoint;
use serde_json::json;

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
