//! `quantize` of folders that are not what they should be, or hold more than matrices: what was found by readers.

mod common;

use std::fs;

use common::*;
use serde_json::{Value, json};

/// A folder with one file of these F32 tensors, 32 columns each, and this config.
fn model(folder: &Folder, name: &str, tensors: &[&str], config: Value) -> String {
    let path = folder.file(name);
    fs::create_dir(&path).unwrap();
    let all: Vec<_> = tensors.iter().enumerate().map(|(i, name)| f32_tensor(name, [32, 32], i as u32 + 1)).collect();
    write(&format!("{path}/model.safetensors"), &all);
    fs::write(format!("{path}/config.json"), config.to_string()).unwrap();
    path
}

fn groups(value: &Value) -> Vec<usize> {
    let all = value["quantized"].as_array().unwrap().iter();
    all.map(|q| q["shares_its_scale_with"].as_array().map_or(0, Vec::len)).collect()
}

const QKV: [&str; 4] = ["l.q_proj.weight", "l.k_proj.weight", "l.v_proj.weight", "l.o_proj.weight"];

/// (Random rounding switched sharing off, and a pattern of the caller's took layers out of the engines' groups.)
#[test]
fn no_option_divides_what_engines_fuse() {
    let folder = Folder::new();
    let input = model(&folder, "in", &QKV, json!({}));
    let plan = |options: &[&str]| {
        let args = [&["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--json"][..], options].concat();
        groups(&json(&args))
    };
    assert_eq!(plan(&["--stochastic", "1"]), [2, 0, 2, 2]);
    assert_eq!(plan(&["--fuse", "(q|k)_proj"]), [2, 0, 2, 2]);
    assert_eq!(plan(&["--fuse", "(q|o)_proj"]), [3, 3, 3, 3]);
    // The bytes, too.
    let output = folder.file("out");
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--stochastic", "1"]);
    assert!(!good(&["info", &output]).contains("What is wrong"));
}

/// Engines run the experts of a layer as one.
#[test]
fn experts_are_quantized_together_and_named_where_they_are_not() {
    let folder = Folder::new();
    let names = ["w1", "w2", "w3"].map(|w| [0, 1].map(|e| format!("m.layers.0.mlp.experts.{e}.{w}.weight")));
    let names: Vec<&str> =
        names.as_flattened().iter().map(String::as_str).chain(["m.layers.0.o_proj.weight"]).collect();
    let input = model(&folder, "in", &names, json!({}));
    let args = ["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--json", "--exclude", "experts.0"];
    let value = json(&args);
    let quantized: Vec<_> = value["quantized"].as_array().unwrap().iter().map(|q| q["tensor"].clone()).collect();
    assert_eq!(quantized, ["m.layers.0.o_proj.weight"]);
    // Those in one tensor stay, and the config says so.
    let path = folder.file("three");
    fs::create_dir(&path).unwrap();
    let (three, two) = (f32_bytes(&values(2 * 32 * 32, 1)), f32_bytes(&values(32 * 32, 2)));
    let view =
        |shape: &[usize], bytes| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes);
    let tensors = [
        ("m.layers.0.mlp.experts.down_proj", view(&[2, 32, 32], &three).unwrap()),
        ("m.layers.0.o_proj.weight", view(&[32, 32], &two).unwrap()),
    ];
    fs::write(format!("{path}/model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    fs::write(format!("{path}/config.json"), "{}").unwrap();
    let output = folder.file("out");
    assert_words(&good(&["quantize", &path, "-o", &output, "--recipe", "nvfp4"]), &["experts in one tensor"]);
    let config: Value = serde_json::from_slice(&fs::read(format!("{output}/config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"]["ignore"], json!(["m.layers.0.mlp.experts", "lm_head"]));
}

/// (A GPTQ model with one plain layer was written as FP8, and what GPTQ needs to be read was gone.)
#[test]
fn a_model_of_another_method_is_refused() {
    let folder = Folder::new();
    let input = model(&folder, "in", &QKV, json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}));
    let bytes = vec![0; 64];
    let codes = safetensors::tensor::TensorView::new(safetensors::Dtype::I32, vec![4, 4], &bytes).unwrap();
    fs::write(
        format!("{input}/model-2.safetensors"),
        safetensors::serialize([("l.up_proj.qweight", codes)], None).unwrap(),
    )
    .unwrap();
    fs::rename(format!("{input}/model.safetensors"), format!("{input}/model-1.safetensors")).unwrap();
    let output = folder.file("out");
    let said = bad(2, &["quantize", &input, "-o", &output, "--recipe", "fp8-128x128"]);
    // (The remedy was "dequantize it first", which this program does not do.)
    assert_words(&said, &["quantized already (gptq)", "not read here: dequantize it with what wrote it"]);
    assert_eq!(folder.names(), ["in"]);
}

#[test]
fn shards_whose_names_say_that_some_are_missing_are_refused() {
    let folder = Folder::new();
    let input = model(&folder, "in", &QKV, json!({}));
    fs::rename(format!("{input}/model.safetensors"), format!("{input}/model-00001-of-00002.safetensors")).unwrap();
    let said = bad(2, &["quantize", &input, "--dry-run", "--recipe", "nvfp4"]);
    assert_words(&said, &["model-00001-of-00002.safetensors, and not model-00002-of-00002.safetensors"]);
    fs::rename(
        format!("{input}/model-00001-of-00002.safetensors"),
        format!("{input}/model-00001-of-00001.safetensors"),
    )
    .unwrap();
    good(&["quantize", &input, "--dry-run", "--recipe", "nvfp4"]);
}

/// The words are those of what failed, not of the tensor that was therefore not written whole.
#[test]
fn a_failure_of_the_reader_is_the_one_that_is_told() {
    let folder = Folder::new();
    let (n, k) = (3000, 1024);
    let codes = vec![0x38u8; n * k];
    let mut scales = vec![127u8; n * k / 32];
    let at = scales.len() - 5;
    scales[at] = 0xFF;
    let view =
        |dtype, shape: [usize; 2], bytes| safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let tensors = [
        ("w", view(safetensors::Dtype::F8_E4M3, [n, k], &codes)),
        ("w_scale", view(safetensors::Dtype::U8, [n, k / 32], &scales)),
    ];
    let input = folder.file("in");
    fs::write(&input, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let said = bad(2, &["dequantize", &input, "-o", &folder.file("out")]);
    assert_words(&said, &["w_scale", &format!("0xff at element {at}"), "NaN"]);
    assert_eq!(folder.names(), ["in"]);
}

/// Groups of the caller's go through layers of experts, of which one expert that is left alone leaves the others.
#[test]
fn a_group_torn_by_experts_that_are_left_is_left_whole() {
    let folder = Folder::new();
    let parts = ["gate_proj", "up_proj", "down_proj"];
    let names: Vec<String> = (0..12)
        .map(|i| format!("model.layers.{}.mlp.experts.{}.{}.weight", i / 6, i / 3 % 2, parts[i % 3]))
        .chain(["model.layers.0.self_attn.o_proj.weight".into()])
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let config = json!({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"});
    let input = model(&folder, "in", &names, config);
    // Gate and up of an expert are one group of the engines', the same of two layers one of the caller's.
    let fuse = r"layers\.\d+\.mlp\.experts\.0";
    for recipe in ["nvfp4", "fp8-tensor"] {
        for layer in ["0", "1"] {
            let exclude = format!(r"layers\.{layer}\.mlp\.experts\.1\.down");
            let output = folder.file("out");
            let args = ["quantize", &input, "-o", &output, "--recipe", recipe, "--fuse", fuse, "--exclude", &exclude];
            good(&args);
            // What is still quantized is read rightly where engines fuse it.
            good(&["info", &output]);
            fs::remove_dir_all(&output).unwrap();
        }
    }
}

/// (A weight of a type that is not quantized was not seen among those that engines fuse, nor in the list of those left alone.)
#[test]
fn what_cannot_be_quantized_leaves_its_group() {
    let folder = Folder::new();
    let path = folder.file("in");
    let mut tensors: Vec<_> = QKV[1..].iter().map(|name| f32_tensor(name, [32, 32], 1)).collect();
    tensors.push((QKV[0], safetensors::Dtype::F64, vec![32, 32], vec![0; 8 * 32 * 32]));
    model_folder(&path, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
    let output = folder.file("out");
    good(&["quantize", &path, "-o", &output, "--recipe", "nvfp4"]);
    let config: Value = serde_json::from_str(&fs::read_to_string(format!("{output}/config.json")).unwrap()).unwrap();
    let ignored = config["quantization_config"]["ignore"].to_string();
    assert_words(&ignored, &["l.q_proj", "l.k_proj", "l.v_proj"]);
    assert!(!ignored.contains("l.o_proj"), "{ignored}");
}

/// (The first that shares the scale was blamed.)
#[test]
fn an_infinity_is_said_of_the_matrix_that_holds_it() {
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    let mut tensors: Vec<_> = QKV.iter().map(|name| f32_tensor(name, [32, 32], 1)).collect();
    // The last of the group in the file.
    tensors[2].3[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    model_folder(&path, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
    for recipe in ["nvfp4", "fp8-tensor"] {
        let error = bad(2, &["quantize", &path, "-o", &output, "--recipe", recipe]);
        // (Without its place, and without the rule that takes it.)
        let place = "tensor l.v_proj.weight: 1 non-finite value, the first at row 0, column 0; repair the data";
        let rule = match recipe {
            "nvfp4" => "no rule of nvfp4 has a scale for infinities",
            _ => "or use --preset transformer-engine with --allow-non-finite",
        };
        let shares = "; it shares its scale with l.k_proj.weight";
        assert_words(&error, &[place, rule, r"--exclude '^l\.v_proj\.weight$'", shares]);
        // (And was blamed still where such values are allowed, by the writer.)
        let allowed = ["quantize", &path, "-o", &output, "--recipe", recipe, "--allow-non-finite"];
        let place = "tensor l.v_proj.weight: 1 infinity, the first at row 0, column 0; under this recipe";
        assert_words(&bad(2, &allowed), &[place, "l.k_proj.weight", "--exclude"]);
        if recipe == "fp8-tensor" {
            good(&[&allowed[..], &["--preset", "transformer-engine"]].concat());
        }
    }
}

/// (The rows of GPT-2's weights, `[in, out]`, were quantized: along outputs, with scales that no product can take out.)
#[test]
fn weights_of_conv1d_are_left_alone() {
    let folder = Folder::new();
    let turned =
        ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"].map(|n| format!("transformer.h.0.{n}.weight"));
    let names: Vec<&str> = turned.iter().map(String::as_str).chain(["other.o_proj.weight"]).collect();
    let input = model(&folder, "in", &names, json!({"model_type": "gpt2"}));
    let reason = "Conv1D weights, [in, out]";
    assert_words(&good(&["quantize", &input, "--recipe", "nvfp4", "--dry-run"]), &["1 matrix to nvfp4", reason]);
    let output = folder.file("out");
    assert_words(
        &good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4"]),
        &[reason, "transformer.h.0.mlp.c_fc"],
    );
    let config: Value = serde_json::from_slice(&fs::read(format!("{output}/config.json")).unwrap()).unwrap();
    let ignored = config["quantization_config"]["ignore"].as_array().unwrap();
    for name in &turned {
        assert!(ignored.contains(&json!(name.strip_suffix(".weight").unwrap())), "{name}: {ignored:?}");
    }
    // Of the others nothing is left to do.
    let only = ["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--only", "c_fc"];
    assert_words(&bad(2, &only), &["1 weight of Conv1D layers", "--dialect plain"]);
    assert_words(&said(&[&only[..], &["--dialect", "plain"]].concat()), &["1 weight of Conv1D layers", "transpose"]);
    let alone = model(&folder, "alone", &names[..4], json!({"model_type": "gpt2"}));
    assert_words(&bad(2, &["quantize", &alone, "--recipe", "nvfp4", "--dry-run"]), &["no matrix to quantize", reason]);
    // A file without a config: the shape says it.
    let file = folder.file("file.safetensors");
    write(&file, &[f32_tensor("h.0.attn.c_attn.weight", [32, 96], 1), f32_tensor("h.0.mlp.c_fc.weight", [32, 128], 2)]);
    assert_words(&bad(2, &["quantize", &file, "--recipe", "fp8-tensor", "--dry-run"]), &[reason]);
}

/// (Each of the members named all others, and asked all of them for the scale: 100,000 ended for want of memory.)
#[test]
fn a_group_of_very_many_is_listed_once() {
    let folder = Folder::new();
    let names: Vec<String> = (0..200).map(|i| format!("l.{i:03}.x_proj.weight")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let input = model(&folder, "in", &names, json!({}));
    let args = ["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--fuse", ".*"];
    let value = json(&[&args[..], &["--json"]].concat());
    assert_eq!(value["groups"], json!([names]));
    for quantized in value["quantized"].as_array().unwrap() {
        assert_eq!((&quantized["group"], &quantized["shares_its_scale_with"]), (&json!(0), &Value::Null));
    }
    assert_words(&good(&args), &["1 group (1 of x_proj (200 layers))"]);
    let output = folder.file("out");
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--fuse", ".*"]);
    assert!(!good(&["info", &output]).contains("What is wrong"));
}

/// (All groups and layers were looked at again for each that was torn: 4,000 took 40 s.)
#[test]
fn a_chain_of_torn_groups_is_left_in_one_go() {
    let folder = Folder::new();
    let experts =
        |i: usize| [format!("m.{i}.mlp.experts.0.a{i}.weight"), format!("m.{i}.mlp.experts.0.b{}.weight", i + 1)];
    let names: Vec<String> = (0..4000).flat_map(experts).chain(["m.x.other.weight".into()]).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let input = model(&folder, "in", &names, json!({}));
    let fuse = r"m\.\d+\.mlp\.experts\.0\.[ab]";
    for end in [0, 3999] {
        let args = ["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--json", "--fuse", fuse, "--exclude"];
        let value = within_seconds(8, || json(&[&args[..], &[&format!(r"^m\.{end}\.")]].concat()));
        assert_eq!(value["quantized"].as_array().unwrap().len(), 1, "{end}");
        assert_eq!(value["copied"].as_array().unwrap().len(), 8000, "{end}");
    }
}
