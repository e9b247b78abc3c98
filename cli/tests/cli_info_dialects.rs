//! `info`: names and words of one dialect in another, or of none.

mod common;

use std::fs;

use common::quantized::{LAYERS, Model};
use common::*;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

/// No config has a method for ComfyUI's names.
const COMFY: &str = "write them to a single file for ComfyUI, which reads no config, or quantize the model again";

/// (Names of one dialect under the config of another passed without a word.)
#[test]
fn names_of_another_dialect_are_said() {
    let cases = [
        ("nvfp4", "modelopt", "compressed-tensors", "weight_packed, weight_scale and weight_global_scale"),
        ("nvfp4", "compressed-tensors", "modelopt", "weight, weight_scale and weight_scale_2"),
        ("fp8-128x128", "fp8", "compressed-tensors", "weight and weight_scale"),
        ("fp8-128x128", "compressed-tensors", "fp8", "weight and weight_scale_inv"),
    ];
    for (recipe, from, to, names) in cases {
        let (model, other) = (Model::new(recipe, from), Model::new(recipe, to));
        let [config, hf] = &other.configs;
        let config = &config.as_ref().unwrap()["quantization_config"];
        let own = cases.into_iter().find(|(r, f, t, _)| (*r, *f, *t) == (recipe, to, from)).unwrap().3;
        let says = format!("config.json says quant_method {to}, and tensors of 2 layers (m.0.");
        let looks =
            format!("are called {own}: its engines look for {names}; name the method that these are of ({from}");
        model.one(|q| *q = config.clone(), &[&says, &looks, "), or quantize the model again"]);
        // The other file has names, too.
        if let Some(hf) = hf {
            model.write(|_| {}, |_| {});
            fs::write(format!("{}/hf_quant_config.json", model.path()), hf.to_string()).unwrap();
            let text = wrong(&["info", &model.path()]).0;
            assert_words(&text, &["hf_quant_config.json says quant_algo W4A16_NVFP4, and tensors of 2 layers", &looks]);
        }
    }
    // A scale of each matrix is weight_scale to vLLM, and weight_scale_inv to transformers.
    let model = Model::new("fp8-tensor", "fp8");
    let place = format!("{}/model.safetensors", model.path());
    let bytes = fs::read(&place).unwrap();
    let renamed = |from: &str, to: &str| {
        let text: Vec<u8> = bytes.clone();
        let (length, rest) = text.split_at(8);
        let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        let header = String::from_utf8(rest[..length].to_vec()).unwrap().replace(from, to);
        let header = format!("{header}{}", " ".repeat(header.len().next_multiple_of(8) - header.len()));
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &rest[length..]].concat();
        fs::write(&place, file).unwrap();
    };
    renamed("weight_scale\"", "weight_scale_inv\"");
    good(&["info", &model.path()]);
    renamed("weight_scale\"", "scale_weight\"");
    model.one(|_| {}, &["config.json says quant_method fp8", "are called weight and scale_weight: ", COMFY]);
    // Scales of activations have names of their own.
    let tensors = [
        ("l.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x35; 256]),
        ("l.o_proj.weight_scale", Dtype::F32, vec![1], f32_bytes(&[0.5])),
        ("l.o_proj.input_global_scale", Dtype::F32, vec![1], f32_bytes(&[0.5])),
    ];
    let path = model.folder.file("activations");
    let config = json!({"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}});
    model_folder(&path, &tensors, Some(config));
    let text = wrong(&["info", &path]).0;
    assert_words(
        &text,
        &["are called input_global_scale: its engines look for input_scale or activation_scale; mend it"],
    );
    // ComfyUI's scales lie in tiles, under names that others have too.
    let (input, output) = (model.folder.file("a.safetensors"), model.folder.file("comfy"));
    write(&input, &[f32_tensor("l.o_proj.weight", [128, 128], 1)]);
    fs::create_dir(&output).unwrap();
    let file = format!("{output}/model.safetensors");
    good(&["quantize", &input, "-o", &file, "--recipe", "nvfp4", "--dialect", "comfyui"]);
    let config = json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}});
    fs::write(format!("{output}/config.json"), config.to_string()).unwrap();
    let words = |mark: &str| format!("tensors of 1 layer (l.o_proj) are called {mark}: its engines know no such mark");
    assert_words(&wrong(&["info", &output]).0, &[&words("comfy_quant"), COMFY]);
    let bytes = fs::read(&file).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let kept = read.names().into_iter().filter(|name| !name.ends_with("comfy_quant")).map(String::from);
    let kept: Vec<_> = kept.map(|name| (name.clone(), read.tensor(&name).unwrap())).collect();
    let mark = json!({"layers": {"l.o_proj": {"format": "nvfp4"}}}).to_string();
    let mark = std::collections::HashMap::from([("_quantization_metadata".to_string(), mark)]);
    fs::write(&file, safetensors::serialize(kept, Some(mark)).unwrap()).unwrap();
    // (Tensors were said to be called so.)
    let words =
        "the metadata marks 1 layer (l.o_proj) for ComfyUI by _quantization_metadata: its engines know no such mark";
    assert_words(&wrong(&["info", &output]).0, &[words, COMFY]);
}

/// (Each of them passed without a word.)
#[test]
fn words_that_no_engine_knows_are_said() {
    let model = Model::new("fp8-row", "compressed-tensors");
    let known = "; known are dense, int-quantized, float-quantized";
    let format = |format: &'static str| move |q: &mut Value| q["format"] = format.into();
    model.one(format("foo"), &["config.json says format foo, which no engine knows", known, "; mend it"]);
    model.one(format("fakequant"), &["says format fakequant, which no engine knows"]);
    let of_group = |format: &'static str| move |q: &mut Value| q["config_groups"]["group_0"]["format"] = format.into();
    model.one(of_group("foo"), &["config.json says format foo of config_groups.group_0, which no engine knows", known]);
    model
        .one(of_group("mixed-precision"), &["mixed-precision of config_groups.group_0, which is no format of a group"]);
    model.one(|q| q["config_groups"] = json!({}), &["config.json: config_groups has no group", "plain", "mend it"]);
    let drop_groups = |q: &mut Value| drop(q.as_object_mut().unwrap().remove("config_groups"));
    model.one(drop_groups, &["config.json: quantization_config has no config_groups"]);

    let model = Model::new("nvfp4", "modelopt");
    let known = "which no engine knows; known are FP8, FP8_PER_CHANNEL_PER_TOKEN,";
    model
        .one(|q| q["quant_algo"] = "foo".into(), &["config.json says quant_algo foo,", known, "and those of integers"]);
    let found = model.wrong(|_| {}, |hf| hf["quantization"]["quant_algo"] = "foo".into());
    assert_words(&found.join("\n"), &["hf_quant_config.json says quant_algo foo,", known]);
    assert_eq!(found.len(), 1, "{found:?}");
    let layers = json!({LAYERS[0]: {"quant_algo": "NVFP5"}, LAYERS[1]: {"quant_algo": "W4A16_NVFP4"}});
    let found = model.wrong(
        |_| {},
        |hf| {
            hf["quantization"]["quant_algo"] = "mixed_precision".into();
            hf["quantization"]["quantized_layers"] = layers.clone();
        },
    );
    assert_words(&found.join("\n"), &["hf_quant_config.json says quant_algo NVFP5 of 1 layer (m.0.self", known]);
    // Another method's algorithm is not gone by, and those of integers are known.
    let fp8 = Model::new("fp8-tensor", "fp8");
    assert_eq!(fp8.wrong(|q| q["quant_algo"] = "foo".into(), |_| {}), [""; 0]);
    let integers = |q: &mut Value| q["quant_algo"] = "w4a16_awq".into();
    assert!(!model.wrong(integers, |_| {}).join("").contains("no engine knows"));
    // The second file may be as flat as the first.
    let flat = json!({"quant_method": "compressed-tensors", "format": "bar", "config_groups": {}});
    fs::write(format!("{}/hf_quant_config.json", fp8.path()), flat.to_string()).unwrap();
    let text = wrong(&["info", &fp8.path()]).0;
    assert_words(&text, &["hf_quant_config.json says format bar, which", "hf_quant_config.json: config_groups has no"]);
}

/// (A format of one group stood for all groups, and for the whole.)
#[test]
fn a_group_without_a_format_has_that_of_the_whole() {
    let model = Model::new("nvfp4", "compressed-tensors");
    let set = |whole: Value, groups: [Value; 2]| {
        move |q: &mut Value| {
            q["format"] = whole.clone();
            let [mut first, mut second] =
                [q["config_groups"]["group_0"].clone(), q["config_groups"]["group_0"].clone()];
            first["format"] = groups[0].clone();
            second["format"] = groups[1].clone();
            second["targets"] = json!(["re:.*none.*"]);
            q["config_groups"] = json!({"a": first, "b": second});
        }
    };
    let (fp4, fp8) = (json!("nvfp4-pack-quantized"), json!("float-quantized"));
    let none = [""; 0];
    for (whole, groups) in [
        (fp4.clone(), [Value::Null, fp4.clone()]),
        (fp4.clone(), [Value::Null, fp8.clone()]),
        (Value::Null, [fp4.clone(), fp4.clone()]),
        (json!("mixed-precision"), [fp4.clone(), fp8.clone()]),
        (fp8.clone(), [fp4.clone(), fp4.clone()]),
    ] {
        assert_eq!(model.wrong(set(whole.clone(), groups.clone()), |_| {}), none, "{whole} {groups:?}");
    }
    for whole in [Value::Null, json!("mixed-precision")] {
        let has = match &whole {
            Value::Null => "and the whole has none",
            _ => "and that of the whole, mixed-precision, is none of codes",
        };
        let words = ["config.json: config_groups.b has no format, ", has, "; give it one, or quantize the model again"];
        model.one(set(whole, [fp4.clone(), Value::Null]), &words);
    }
    // One format of all groups is what the tensors are held against, whatever the whole has.
    for whole in [Value::Null, fp4.clone(), json!("mixed-precision")] {
        model.one(set(whole, [fp8.clone(), fp8.clone()]), &["says format float-quantized, which is fp8", "are nvfp4"]);
    }
}

/// (Such a model was written back without its factors, without a word.)
#[test]
fn factors_of_activations_are_not_lost() {
    let model = Model::new("nvfp4", "modelopt");
    let other = f32_tensor("m.1.self_attn.o_proj.pre_quant_scale", [1, 128], 8);
    let extra = |tensor: Tensor| {
        let index = |file: &str| {
            let bytes = fs::read(format!("{}/{file}", model.path())).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let all = file.iter().filter(|(name, _)| !name.ends_with("pre_quant_scale"));
            let mut all: Vec<_> =
                all.map(|(name, t)| (name.to_string(), t.dtype(), t.shape().to_vec(), t.data().to_vec())).collect();
            all.push((tensor.0.into(), tensor.1, tensor.2.clone(), tensor.3.clone()));
            all
        };
        let all = index("model.safetensors");
        let all: Vec<Tensor> = all.iter().map(|(n, d, s, b)| (n.as_str(), *d, s.clone(), b.clone())).collect();
        write(&format!("{}/model.safetensors", model.path()), &all);
    };
    let algorithm = |q: &mut Value, name: &str| match q.get("quantization").is_some() {
        true => q["quantization"]["quant_algo"] = name.into(),
        false => q["quant_algo"] = name.into(),
    };
    let output = model.folder.file("plain");
    let args = ["dequantize", &model.path(), "-o", &output];
    // Beside a plain layer they are a tensor like others.
    extra(other);
    good(&args);
    extra(f32_tensor("m.0.mlp.down_proj.pre_quant_scale", [1, 128], 8));
    let name = "1 tensor (m.0.mlp.down_proj.pre_quant_scale) of AWQ multiply what enters a quantized layer";
    fs::remove_dir_all(&output).unwrap();
    let error = bad(2, &args);
    assert_words(&error, &[&name.replace(" multiply", ", which multiply"), "its columns", "leave the model quantized"]);
    model.write(|q| algorithm(q, "W4A16_NVFP4"), |hf| algorithm(hf, "W4A16_NVFP4"));
    assert_words(&good(&["info", &model.path()]), &[name]);
}

/// (A missing format of compressed-tensors was called wrong, and this was not.)
#[test]
fn an_algorithm_that_is_missing_is_said() {
    let model = Model::new("nvfp4", "modelopt");
    let remedy = "which engines ask for; give it that of its tensors, or quantize the model again";
    let words = format!("config.json says quant_method modelopt and no quant_algo, {remedy}");
    model.one(|q| q["quant_algo"] = Value::Null, &[&words]);
    model.one(|q| drop(q.as_object_mut().unwrap().remove("quant_algo")), &[&words]);
    let found = model.wrong(|_| {}, |hf| hf["quantization"]["quant_algo"] = Value::Null);
    assert_eq!(found, [format!("hf_quant_config.json has no quant_algo, {remedy}")]);
}

/// (Twice the same line, and lines without a remedy.)
#[test]
fn lines_are_said_once_in_whole_words_and_with_a_remedy() {
    let model = Model::new("nvfp4", "compressed-tensors");
    model.one(|q| q["format"] = "".into(), &["config.json says format \"\", which no engine knows"]);
    let groups = |number: usize| {
        move |q: &mut Value| {
            let groups = q["config_groups"].as_object_mut().unwrap();
            let mut group = groups["group_0"].clone();
            drop(group.as_object_mut().unwrap().remove("format"));
            (0..number).for_each(|i| drop(groups.insert(format!("group_{}", i + 1), group.clone())));
            groups["group_0"]["format"] = "nvfp4-pack-quantized".into();
            q["format"] = "mixed-precision".into();
        }
    };
    model.one(groups(2), &["config_groups.group_1 has no format (nor has 1 other), and"]);
    model.one(groups(3), &["(nor have 2 others), and"]);
    let found = model.wrong(|q| drop(q.as_object_mut().unwrap().remove("quant_method")), |_| {}).join("\n");
    assert_words(&found, &["how to read it; give it one, or quantize the model again"]);
    model.write(|_| {}, |_| {});
    let place = format!("{}/config.json", model.path());
    fs::write(&place, "{}").unwrap();
    assert_words(&wrong(&["info", &model.path()]).0, &["take the weights for plain ones; fetch the config"]);
    // Two matrices of one name.
    let file = format!("{}/model.safetensors", model.path());
    let bytes = fs::read(&file).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> = read.iter().map(|(n, t)| (n, t.dtype(), t.shape().to_vec(), t.data().to_vec())).collect();
    all.push(("m.0.mlp.down_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]));
    write(&file, &all);
    model.write(|_| {}, |_| {});
    let text = wrong(&["info", &model.path()]).0;
    assert_eq!(text.matches("is in the file twice").count(), 1, "{text}");
    write(&file, &[f32_tensor("m.0.mlp.down_proj.weight", [16, 16], 1)]);
    assert_words(&wrong(&["info", &model.path()]).0, &["no quantized matrix is there: take the quantization_config"]);
    let error = bad(2, &["dequantize", &file, "-o", &model.folder.file("x.safetensors")]);
    assert_words(&error, &["U8 with scales of NVFP4 or MXFP4, or a cast)"]);
    // Names of gpt-oss go on behind the layer.
    let model = Model::new("mxfp4", "compressed-tensors");
    let found = model.wrong(|q| *q = json!({"quant_method": "mxfp4", "modules_to_not_convert": []}), |_| {}).join("\n");
    assert_words(&found, &["its engines look for X_blocks and X_scales"]);
}

/// (Each of these was called wrong, or in words that are not true.)
#[test]
fn what_engines_read_is_not_called_wrong() {
    // TensorRT-LLM looks for `weight_scale_inv` first, and then for what ModelOpt writes.
    let model = Model::new("fp8-128x128", "fp8");
    let place = format!("{}/hf_quant_config.json", model.path());
    let hf = |value: Value| fs::write(&place, value.to_string()).unwrap();
    let exclude = json!([LAYERS[2], LAYERS[3]]);
    hf(json!({"quantization": {"quant_algo": "FP8_BLOCK_SCALES", "exclude_modules": exclude}}));
    good(&["info", &model.path()]);
    let layers = json!({LAYERS[0]: {"quant_algo": "FP8_BLOCK_SCALES"}, LAYERS[1]: {"quant_algo": "FP8_BLOCK_SCALES"}});
    hf(json!({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}));
    good(&["info", &model.path()]);
    hf(json!({"quantization": {"quant_algo": "FP8_PB_WO", "exclude_modules": exclude}}));
    assert_words(&wrong(&["info", &model.path()]).0, &["weight and weight_scale_inv: its engines look for weight and"]);

    let model = Model::new("nvfp4", "modelopt");
    let algorithm = |name: &'static str| model.wrong(move |q| q["quant_algo"] = name.into(), |_| {});
    for name in ["NVFP4_SVD", "NVFP4_ARC", "nvfp4_svdquant"] {
        assert_eq!(algorithm(name), [""; 0], "{name}");
    }
    let fp8 = Model::new("fp8-tensor", "fp8");
    for name in ["NVFP4_SVD", "NVFP4_ARC", "NVFP4_SVDQUANT"] {
        let found = fp8.wrong(|q| *q = json!({"quant_method": "modelopt", "quant_algo": name}), |_| {}).join("\n");
        assert_words(&found, &[&format!("says quant_algo {name}, which is nvfp4, and 2 layers"), "are fp8-tensor"]);
    }
    // A null says nothing of what is nested.
    assert_eq!(model.wrong(|_| {}, |hf| hf["quant_algo"] = Value::Null), [""; 0]);

    // ComfyUI's list of other layers, of none, and of these as they are not written.
    let place = format!("{}/model.safetensors", model.path());
    let bytes = fs::read(&place).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let own = safetensors::SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap_or_default();
    for layers in [
        json!({"layers": {"other": {"format": "nvfp4"}}}),
        json!({}),
        json!({"layers": {LAYERS[0]: {"format": "nvfp4"}}}),
    ] {
        let mut metadata = own.clone();
        metadata.insert("_quantization_metadata".into(), layers.to_string());
        let tensors: Vec<_> = file.iter().collect();
        fs::write(&place, safetensors::serialize(tensors, Some(metadata)).unwrap()).unwrap();
        assert_eq!(model.wrong(|_| {}, |_| {}), [""; 0], "{layers}");
    }
}

/// (Of FP8 it said that engines take tiles of block scales for rows, and of a scale that is there that it is called otherwise.)
#[test]
fn what_is_said_of_names_is_true() {
    let folder = Folder::new();
    let path = folder.file("m");
    let scalar = |name: &'static str| (name, Dtype::F32, vec![1], f32_bytes(&[0.5]));
    let mark = br#"{"format": "float8_e4m3fn"}"#;
    let codes = [("l.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x35; 256]), scalar("l.o_proj.weight_scale")];
    let marked = ("l.o_proj.comfy_quant", Dtype::U8, vec![mark.len()], mark.to_vec());
    let config = json!({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}});
    model_folder(&path, &[&codes[..], &[marked]].concat(), Some(config.clone()));
    good(&["info", &path]);
    for other in ["l.o_proj.input_global_scale", "l.o_proj.scale_input"] {
        fs::remove_dir_all(&path).unwrap();
        model_folder(
            &path,
            &[&codes[..], &[scalar("l.o_proj.input_scale"), scalar(other)]].concat(),
            Some(config.clone()),
        );
        good(&["info", &path]);
        fs::remove_dir_all(&path).unwrap();
        model_folder(&path, &[&codes[..], &[scalar(other)]].concat(), Some(config.clone()));
        assert_words(&wrong(&["info", &path]).0, &["its engines look for input_scale or activation_scale; mend it"]);
    }
    // A remedy is a method that there is.
    let blocks = [
        ("l.experts.gate_up_proj_blocks", Dtype::U8, vec![2, 64, 4, 16], vec![1; 2 * 64 * 64]),
        ("l.experts.gate_up_proj_scales", Dtype::U8, vec![2, 64, 4], vec![0x7F; 512]),
    ];
    let group = json!({"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 32}});
    let config =
        json!({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "config_groups": {"g": group}});
    fs::remove_dir_all(&path).unwrap();
    model_folder(&path, &blocks, Some(json!({"quantization_config": config})));
    assert_words(&wrong(&["info", &path]).0, &["; name the method that these are of (mxfp4), or quantize"]);
}
