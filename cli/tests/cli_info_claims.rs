//! `info`: what configs and marks say of numbers, formats and activations, against the tensors.

mod common;

use std::collections::HashMap;
use std::fs;

use common::quantized::Model;
use common::*;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// (Formats of integers, other widths and other strategies passed over FP8 and NVFP4 tensors.)
#[test]
fn formats_and_numbers_of_compressed_tensors_are_held_against_the_tensors() {
    for recipe in ["fp8-row", "nvfp4"] {
        let model = Model::new(recipe, "compressed-tensors");
        for (format, what) in [
            ("int-quantized", "of integers"),
            ("pack-quantized", "of integers"),
            ("marlin-24", "of integers"),
            ("dense", "of plain weights"),
        ] {
            let words = format!("config.json says format {format}, which is {what}, and 2 layers (m.0.");
            let claim = |q: &mut Value| q["format"] = format.into();
            model.one(claim, &[&words, &format!(") are {recipe}"), "mend it, or quantize the model again"]);
        }
        let bits = if recipe == "nvfp4" { 8 } else { 4 };
        let set = |key: &'static str, value: Value| {
            move |q: &mut Value| q["config_groups"]["group_0"]["weights"][key] = value.clone()
        };
        let words = format!("config.json says num_bits {bits} of weights, and 2 layers (m.0.");
        model.one(set("num_bits", bits.into()), &[&words, ") are ", "mend it"]);
        model.one(set("type", "int".into()), &["config.json says type int of weights, and 2 layers"]);
    }
    // Of more rows than a tile has: the scale of one tile is that of a small matrix, too.
    let folder = Folder::new();
    let path = folder.file("rows");
    let tensors: [Tensor; 2] = [
        ("l.o_proj.weight", Dtype::F8_E4M3, vec![256, 256], vec![0x35; 65536]),
        ("l.o_proj.weight_scale", Dtype::F32, vec![256, 1], f32_bytes(&[0.5; 256])),
    ];
    let config = |strategy: &str| {
        let weights = json!({"num_bits": 8, "type": "float", "strategy": strategy});
        let group = json!({"targets": ["Linear"], "weights": weights});
        json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"g": group}}})
    };
    model_folder(&path, &tensors, Some(config("channel")));
    good(&["info", &path]);
    for strategy in ["tensor", "block"] {
        fs::write(format!("{path}/config.json"), config(strategy).to_string()).unwrap();
        let words = format!("config.json says strategy {strategy} of weights, and 1 layer (l.o_proj) is fp8-row:e4m3");
        assert_words(&wrong(&["info", &path]).0, &[&words]);
    }
}

const SCALE: &str = "l.o_proj.weight_scale";

/// A layer in FP8 with a scale of its activations, or none, and this config.
fn fp8(folder: &Folder, name: &str, input_scale: Option<f32>, quantization: Value) -> String {
    let mut tensors: Vec<Tensor> = vec![
        ("l.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x35; 256]),
        (SCALE, Dtype::F32, vec![1], f32_bytes(&[0.5])),
    ];
    tensors.extend(
        input_scale.map(|scale| -> Tensor { ("l.o_proj.input_scale", Dtype::F32, vec![1], f32_bytes(&[scale])) }),
    );
    let path = folder.file(name);
    model_folder(&path, &tensors, Some(json!({"quantization_config": quantization})));
    path
}

/// (Nothing was said of any.)
#[test]
fn scales_of_activations_are_finite_and_above_zero_and_there() {
    let folder = Folder::new();
    let fixed = json!({"quant_method": "fp8", "activation_scheme": "static"});
    good(&["info", &fp8(&folder, "right", Some(0.5), fixed.clone())]);
    for (name, scale) in [("NaN", f32::NAN), ("0", 0.0), ("-1", -1.0), ("inf", f32::INFINITY)] {
        let (text, _) = wrong(&["info", &fp8(&folder, name, Some(scale), fixed.clone())]);
        let words = "1 scale (l.o_proj.input_scale) of activations not finite or not above 0, the first ";
        assert_words(&text, &[&format!("{words}{name}; calibrate the model again")]);
    }
    let (text, _) = wrong(&["info", &fp8(&folder, "none", None, fixed)]);
    let words =
        "1 layer (l.o_proj) without input_scale, which config.json promises by activation_scheme static; quantize with";
    assert_words(&text, &[words]);
    good(&["info", &fp8(&folder, "dynamic", None, json!({"quant_method": "fp8", "activation_scheme": "dynamic"}))]);
    let compressed = |dynamic: Value| {
        let weights = json!({"num_bits": 8, "type": "float", "strategy": "tensor"});
        let inputs = json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": dynamic});
        let group = json!({"targets": ["Linear"], "weights": weights, "input_activations": inputs});
        json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"g": group}})
    };
    good(&["info", &fp8(&folder, "a", None, compressed(true.into()))]);
    good(&["info", &fp8(&folder, "b", Some(0.5), compressed(false.into()))]);
    let (text, _) = wrong(&["info", &fp8(&folder, "c", None, compressed(false.into()))]);
    assert_words(&text, &["without input_scale, which config.json promises by input_activations that are not dynamic"]);
    // NVFP4 has one scale of the whole beside those that are found while it runs.
    let model = Model::new("nvfp4", "compressed-tensors");
    let promise = |q: &mut Value| q["config_groups"]["group_0"]["input_activations"] = json!({"dynamic": "local"});
    let words = "without input_global_scale, which config.json promises by input_activations that are not dynamic";
    model.one(promise, &["2 layers (m.0.", words, "name no input_activations"]);
}

/// (It was "none", and to `quantize` "no method named".)
#[test]
fn the_method_of_modelopts_own_file_is_named() {
    let folder = Folder::new();
    let path = folder.file("in");
    let tensors: [Tensor; 2] = [
        ("l.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x35; 256]),
        (SCALE, Dtype::F32, vec![1], f32_bytes(&[0.5])),
    ];
    model_folder(&path, &tensors, Some(json!({"model_type": "llama"})));
    let hf = json!({"quantization": {"quant_algo": "W8A16", "exclude_modules": ["lm_head"]}});
    fs::write(format!("{path}/hf_quant_config.json"), hf.to_string()).unwrap();
    assert_words(&good(&["info", &path]), &["quant_method  modelopt, by hf_quant_config.json\n"]);
    assert_eq!(json(&["info", &path, "--json"])["quant_method"], "modelopt");
    let args = ["quantize", &path, "-o", &folder.file("out"), "--recipe", "nvfp4"];
    let error = bad(2, &args);
    assert_words(&error, &["is quantized already (modelopt); dequantize it first"]);
    assert!(!error.contains("--dialect plain"), "{error}");
    // The other way is named where a layer is plain.
    let plain: Tensor = ("l.q_proj.weight", Dtype::BF16, vec![16, 16], vec![0x3F; 512]);
    write(&format!("{path}/model.safetensors"), &[&tensors[..], &[plain]].concat());
    assert_words(
        &bad(2, &args),
        &[
            "is quantized already (modelopt); dequantize it first, or for layers that are still plain write --dialect plain",
        ],
    );
}

/// (Marks were not compared with anything.)
#[test]
fn marks_of_comfyui_are_held_against_the_tensors() {
    let folder = Folder::new();
    let file = folder.file("a.safetensors");
    let model = |layer: &str, mark: &[u8], metadata: Option<&str>| {
        let scale = f32_bytes(&[0.5]);
        let mut tensors = vec![
            ("a.weight".to_string(), TensorView::new(Dtype::F8_E4M3, vec![16, 16], &[0x35; 256]).unwrap()),
            ("a.weight_scale".to_string(), TensorView::new(Dtype::F32, vec![], &scale).unwrap()),
            ("b.weight".to_string(), TensorView::new(Dtype::BF16, vec![16, 16], &[0; 512]).unwrap()),
        ];
        if !mark.is_empty() {
            tensors.push((format!("{layer}.comfy_quant"), TensorView::new(Dtype::U8, vec![mark.len()], mark).unwrap()));
        }
        let metadata = metadata.map(|text| HashMap::from([("_quantization_metadata".to_string(), text.to_string())]));
        fs::write(&file, safetensors::serialize(tensors, metadata).unwrap()).unwrap();
    };
    model("a", br#"{"format": "float8_e4m3fn"}"#, None);
    good(&["info", &file]);
    for (layer, mark, words) in [
        ("a", &br#"{"format": "nvfp4"}"#[..], "says format nvfp4, whose codes are U8, and the weight is F8_E4M3"),
        (
            "a",
            br#"{"format": "float8_e5m2"}"#,
            "says format float8_e5m2, whose codes are F8_E5M2, and the weight is F8_E4M3",
        ),
        ("a", br#"{"format": "mxfp8"}"#, "says format mxfp8, and the weight is fp8-tensor"),
        ("a", br#"{"format": "foo"}"#, "says format foo, which is none of float8_e4m3fn, float8_e5m2, nvfp4, mxfp8"),
        ("a", b"{\"form", "is no JSON object with a format"),
        ("a", b"[1]", "is no JSON object with a format"),
        ("a", b"{}", "is no JSON object with a format"),
        (
            "b",
            br#"{"format": "float8_e4m3fn"}"#,
            "says format float8_e4m3fn, whose codes are F8_E4M3, and the weight is BF16",
        ),
        ("z", br#"{"format": "float8_e4m3fn"}"#, "says format float8_e4m3fn, and no weight is there"),
        // (Its name was nothing at all.)
        ("", br#"{"format": "float8_e4m3fn"}"#, "says format float8_e4m3fn, and no weight is there"),
    ] {
        model(layer, mark, None);
        let (text, error) = wrong(&["info", &file]);
        let layer = if layer.is_empty() { "\"\"" } else { layer };
        let words = format!("1 layer ({layer}) marked for ComfyUI, where comfy_quant {words}");
        assert_words(&text, &[&words, "; write the file again"]);
        assert_words(&error, &["1 thing is wrong"]);
    }
    model("", b"", Some(r#"{"layers": {"a": {"format": "float8_e4m3fn"}, "c": {"format": "nvfp4"}}}"#));
    good(&["info", &file]);
    model("", b"", Some(r#"{"layers": {"b": {"format": "float8_e4m3fn"}}}"#));
    assert_words(
        &wrong(&["info", &file]).0,
        &["1 layer (b) marked for ComfyUI, where _quantization_metadata says format"],
    );
    for broken in ["{", "[1]", r#"{"layers": [1]}"#] {
        model("", b"", Some(broken));
        assert_words(
            &wrong(&["info", &file]).0,
            &["_quantization_metadata of the metadata is no JSON object of layers"],
        );
    }
    model("", b"", Some("{}"));
    good(&["info", &file]);
}

/// (`fp8` was said to have them, and its engines have one scale for a matrix, or for tiles.)
#[test]
fn a_scale_for_each_row_is_not_what_the_method_fp8_has() {
    let folder = Folder::new();
    let path = folder.file("in");
    let layer = |rows: usize| -> [Tensor; 2] {
        [
            ("l.o_proj.weight", Dtype::F8_E4M3, vec![256, 256], vec![0x35; 65536]),
            (SCALE, Dtype::F32, vec![rows, 1], f32_bytes(&vec![0.5; rows])),
        ]
    };
    let config = json!({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}});
    model_folder(&path, &layer(256), Some(config.clone()));
    let words = "config.json says quant_method fp8 with weight_block_size null, which is fp8-tensor, and 1 layer (l.o_proj) is fp8-row:e4m3";
    assert_words(&wrong(&["info", &path]).0, &[words, "mend it, or quantize the model again"]);
    fs::remove_dir_all(&path).unwrap();
    model_folder(&path, &layer(1), Some(config));
    good(&["info", &path]);
}

/// (Any of them that was that of the tensors hid the others.)
#[test]
fn sizes_of_groups_that_contradict_each_other_are_said() {
    for (recipe, dialect, size) in [("nvfp4", "modelopt", 16), ("mxfp8", "compressed-tensors", 32)] {
        let model = Model::new(recipe, dialect);
        let outer = |q: &mut Value| q["group_size"] = 128.into();
        let words = format!("config.json says group_size {size} of the weights of config_groups, and 128 of all");
        model.one(outer, &[&words, "engines go by one or the other; mend it, or quantize the model again"]);
        assert_eq!(model.wrong(|q: &mut Value| q["group_size"] = size.into(), |_| {}), [""; 0]);
    }
}
