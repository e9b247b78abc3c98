//! `info`: configs that say otherwise than the tensors, or than each other, or what no engine expects.

mod common;

use std::fs;

use common::quantized::{LAYERS, Model};
use common::*;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

/// (Names alone were looked at.)
#[test]
fn patterns_that_have_quantized_layers_are_said() {
    let list = |entries: Value| move |q: &mut Value| q["ignore"] = entries.clone();
    let model = Model::new("fp8-row", "compressed-tensors");
    let says =
        ["2 layers (m.0.", "ignore of config.json says are not quantized by re:.*m", "take that out of its list"];
    model.one(list(json!(["lm_head", "re:.*m\\.[01].*proj"])), &says);
    // Python's re.match: at the beginning.
    let rest = "m.1.self_attn.o_proj";
    assert!(model.wrong(list(json!(["lm_head", rest, "re:down_proj", "m.0"])), |_| {}).is_empty());
    // Names of text models begin in several ways.
    assert!(model.wrong(list(json!(["lm_head", "model.language_model.m.1.self_attn.o_proj"])), |_| {}).is_empty());
    assert!(model.wrong(list(json!(["lm_head", "re:language_model\\.model\\.m\\.1.*"])), |_| {}).is_empty());
    // As patterns that leave alone what is plain.
    assert!(model.wrong(list(json!(["re:.*lm_head", "re:m.1.*"])), |_| {}).is_empty());
    // What Rust has no word for says nothing, and is named.
    assert!(model.wrong(list(json!(["re:(?!m.0).*"])), |_| {}).is_empty());
    assert_words(&good(&["info", &model.path()]), &["not understood here", "re:(?!m.0).*"]);
    assert!(model.wrong(list(json!(["re:(", "Linear"])), |_| {}).is_empty());

    let model = Model::new("fp8-128x128", "fp8");
    let list = |entries: Value| move |q: &mut Value| q["modules_to_not_convert"] = entries.clone();
    model.one(
        list(json!(["m.0.mlp", rest])),
        &["1 layer (m.0.mlp.down_proj)", "modules_to_not_convert", "by m.0.mlp: engines"],
    );
    // Engines have the head plain whatever the list says.
    assert!(model.wrong(list(json!([rest])), |_| {}).is_empty());

    let model = Model::new("nvfp4", "modelopt");
    let both = |entries: Value| {
        let other = entries.clone();
        let found = model.wrong(
            move |q| q["ignore"] = entries.clone(),
            move |hf| hf["quantization"]["exclude_modules"] = other.clone(),
        );
        found.join("\n")
    };
    let found = both(json!(["lm_head", rest, "m.0.mlp*"]));
    assert_words(&found, &["ignore of config.json", "exclude_modules of hf_quant_config.json", "by m.0.mlp*"]);
    assert_eq!(found.lines().count(), 2, "{found}");
    assert_words(&both(json!(["lm_head", rest, "mlp"])), &["1 layer (m.0.mlp.down_proj)", "by mlp"]);
    // (A star alone had nothing in it.)
    assert_words(&both(json!(["*"])), &["2 layers (m.0.", "exclude_modules of hf_quant_config.json", "by *: engines"]);
    // Of `X*` engines differ where a part of a name only begins so.
    assert_eq!(both(json!(["lm_head", rest, "m.0.mlp.down*"])), "");
    for entries in
        [json!(["lm_head", "m.1*"]), json!(["*head", "*.1.self_attn.?_proj"]), json!(["lm_head", "m.1.self_attn"])]
    {
        assert_eq!(both(entries.clone()), "", "{entries}");
    }
}

/// (Nobody was told of layers that engines take for quantized.)
#[test]
fn plain_layers_in_no_list_are_said() {
    for (recipe, dialect, key) in
        [("fp8-row", "compressed-tensors", "ignore"), ("fp8-128x128", "fp8", "modules_to_not_convert")]
    {
        let model = Model::new(recipe, dialect);
        let plain = "1 layer (m.1.self_attn.o_proj) plain, and";
        model.one(|q| q[key] = json!(["lm_head"]), &[plain, &format!("not in {key} of config.json"), "add the names"]);
        let drop = |q: &mut Value| drop(q.as_object_mut().unwrap().remove(key));
        match dialect {
            "fp8" => model.one(drop, &[plain, "in no list of config.json"]),
            _ => model.one(drop, &["2 layers (lm_head, m.1.self_attn.o_proj) plain, and"]),
        }
    }
    let model = Model::new("fp8-row", "compressed-tensors");
    // What is no target is plain without being listed.
    let targets = |targets: Value| {
        move |q: &mut Value| {
            q["ignore"] = json!([]);
            q["config_groups"]["group_0"]["targets"] = targets.clone();
        }
    };
    assert!(model.wrong(targets(json!(["re:m\\.0\\..*", "m.2.x"])), |_| {}).is_empty());
    model.one(targets(json!(["re:m\\..*"])), &["1 layer (m.1.self_attn.o_proj) plain"]);
    // A layer that no model is known to have quantized is said, and may be none.
    let tensors = ["m.0.o_proj.weight", "m.0.mixer.weight"].map(|name| f32_tensor(name, [128, 128], 1));
    let (input, output) = (model.folder.file("mixed"), model.folder.file("mq"));
    model_folder(&input, &tensors, Some(json!({})));
    let args = ["quantize", &input, "-o", &output, "--recipe", "fp8-128x128"];
    good(&[&args[..], &["--exclude", "mixer"]].concat());
    let place = format!("{output}/config.json");
    let text = fs::read_to_string(&place).unwrap().replace("m.0.mixer", "lm_head");
    fs::write(place, text).unwrap();
    assert_words(&good(&["info", &output]), &["1 layer (m.0.mixer) plain, and not in modules_to_not_convert"]);
}

/// (The list of TensorRT-LLM's file was not read.)
#[test]
fn lists_that_differ_are_said() {
    let model = Model::new("nvfp4", "modelopt");
    let hf = |entries: Value| model.wrong(|_| {}, move |hf| hf["quantization"]["exclude_modules"] = entries.clone());
    let rest = "m.1.self_attn.o_proj";
    assert!(hf(json!(["lm_head", "m.1.*"])).is_empty());
    for (entries, words) in [
        (
            json!(["lm_head"]),
            "1 layer (m.1.self_attn.o_proj) plain, and not in exclude_modules of hf_quant_config.json",
        ),
        (json!([rest]), "1 layer (lm_head) plain, and not in exclude_modules"),
        (
            json!(["lm_head", rest, "m.0.mlp.down_proj"]),
            "1 layer (m.0.mlp.down_proj) that exclude_modules of hf_quant_config",
        ),
        (json!(["lm_head", rest, "m.9.router"]), "differ in 1 layer (m.9.router)"),
    ] {
        let found = hf(entries.clone());
        assert_eq!(found.len(), 1, "{entries}: {found:?}");
        assert_words(&found[0], &[words]);
    }
    // A head that is tied to the embeddings has no tensor.
    let found = model.wrong(|q| q["ignore"] = json!(["lm_head", rest, "m.9.x", "m.9.y"]), |_| {});
    assert_words(
        &found.join("\n"),
        &["ignore of config.json and exclude_modules of hf_quant_config.json differ in 2 layers (m.9.x, m.9.y)"],
    );
}

/// (FP8 was claimed of other codes without a word.)
#[test]
fn a_method_that_is_not_that_of_the_tensors_is_said() {
    let nvfp4 = Model::new("nvfp4", "compressed-tensors");
    let fp8 = json!({"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["m.1.self_attn.o_proj"]});
    nvfp4.one(|q| *q = fp8.clone(), &["quant_method fp8", "which is fp8-tensor, and 2 layers (m.0.", "are nvfp4"]);
    for method in ["mxfp4", "gptq", "awq"] {
        nvfp4
            .one(|q| *q = json!({"quant_method": method}), &[&format!("quant_method {method}, which is"), "are nvfp4"]);
    }
    // (An algorithm beside another method was taken for what engines go by.)
    let nvfp4 = Model::new("nvfp4", "modelopt");
    for method in ["fp8", "gptq"] {
        let found = nvfp4.wrong(|q| q["quant_method"] = json!(method), |_| {}).join("\n");
        assert_words(&found, &[&format!("config.json says quant_method {method}"), "2 layers (m.0.", "are nvfp4"]);
    }
    assert_eq!(nvfp4.wrong(|q| q["quant_method"] = json!("modelopt_fp4"), |_| {}), [""; 0]);
    // (Without a format nothing was said of compressed-tensors, whatever stood beside it.)
    let foreign = |q: &mut Value| {
        q["quant_method"] = "compressed-tensors".into();
        drop(q.as_object_mut().unwrap().remove("format"));
    };
    let words = "config.json says quant_method compressed-tensors and no format, which engines ask for";
    let found = nvfp4.wrong(foreign, |_| {}).join("\n");
    assert_words(&found, &[words, "(quant_algo W4A16_NVFP4 beside it is ModelOpt's); mend it"]);
    let nvfp4 = Model::new("nvfp4", "compressed-tensors");
    nvfp4.one(foreign, &[words, "; mend it"]);
    nvfp4.one(
        |q| {
            foreign(q);
            q["quant_algo"] = "FP\u{1}9".into();
        },
        &[words, "quant_algo FP\\u{1}9 beside it"],
    );
    // A group has a format, too.
    let format = nvfp4.configs[0].as_ref().unwrap()["quantization_config"]["format"].clone();
    let of_group = |q: &mut Value| {
        foreign(q);
        q["config_groups"]["group_0"]["format"] = format.clone();
    };
    assert_eq!(nvfp4.wrong(of_group, |_| {}), [""; 0]);
    // SGLang reads MXFP8 by it.
    let mxfp8 = Model::new("mxfp8", "modelopt");
    let config = |tile: Value| json!({"quant_method": "fp8", "weight_block_size": tile, "ignored_layers": ["m.1.self_attn.o_proj", "lm_head"]});
    mxfp8.one(|q| *q = config(json!([128, 128])), &["quant_method fp8", "are mxfp8"]);
    assert_eq!(mxfp8.wrong(|q| *q = config(json!([1, 32])), |_| {}), [""; 0]);
}

/// (Each of them passed without a word.)
#[test]
fn entries_of_odd_types_are_said_and_nothing_panics() {
    let model = Model::new("nvfp4", "modelopt");
    let odd = [json!(7), json!("x"), json!([7]), json!({"a": 1}), json!(true), json!(-1.5), json!([[]]), json!([null])];
    let keys = [
        "quant_method",
        "quant_algo",
        "format",
        "ignore",
        "exclude_modules",
        "ignored_layers",
        "modules_to_not_convert",
        "group_size",
        "weight_block_size",
        "config_groups",
        "quantized_layers",
        "quantization",
        "activation_scheme",
    ];
    for key in keys {
        for value in &odd {
            let found =
                model.wrong(|q| q[key] = value.clone(), |hf| hf["quantization"][key] = value.clone()).join("\n");
            let is_right = match key {
                "group_size" => value.is_i64(),
                "config_groups" | "quantized_layers" | "quantization" => value.is_object(),
                "ignore" | "exclude_modules" | "ignored_layers" | "modules_to_not_convert" | "weight_block_size" => {
                    false
                }
                _ => value.is_string(),
            };
            let words = format!("{key} is {value}, and engines expect");
            assert!(is_right || found.contains(&words), "{key} {value}: {found}");
        }
    }
    model.one(|q| q["ignore"] = 3.into(), &["config.json: ignore is 3, and engines expect a list of strings; mend it"]);
    let group =
        |key: &'static str, value: Value| move |q: &mut Value| q["config_groups"]["group_0"][key] = value.clone();
    model.one(group("targets", "Linear".into()), &["config_groups.group_0.targets is \"Linear\"", "a list of strings"]);
    model.one(group("weights", 4.into()), &["config_groups.group_0.weights is 4", "an object"]);
    model.one(group("weights", json!({"group_size": "16"})), &["weights.group_size is \"16\"", "a whole number"]);
    for value in [json!(7), json!([1]), json!("x")] {
        model.one(|q| *q = value.clone(), &[&format!("quantization_config is {value}"), "an object"]);
        let found = model.wrong(|_| {}, |hf| *hf = value.clone()).join("\n");
        assert_words(&found, &[&format!("hf_quant_config.json: what it holds is {value}")]);
    }
    let found = model.wrong(|q| drop(q.as_object_mut().unwrap().remove("quant_method")), |_| {}).join("\n");
    assert_words(&found, &["config.json: quantization_config has no quant_method"]);
}

/// (Layers of an algorithm for weights alone were asked for scales of activations, and no algorithm of a layer was looked at.)
#[test]
fn layers_of_a_mixed_model_are_each_what_it_says() {
    let model = Model::new("nvfp4", "modelopt");
    let layers = |first: &str, second: &str| json!({LAYERS[0]: {"quant_algo": first}, LAYERS[1]: {"quant_algo": second, "group_size": 16}});
    let mixed = |layers: Value| {
        move |value: &mut Value| {
            value["quant_algo"] = "MIXED_PRECISION".into();
            value["quantized_layers"] = layers.clone();
        }
    };
    let hf = |layers: Value| {
        let change = mixed(layers);
        let nested = move |hf: &mut Value| change(&mut hf["quantization"]);
        model.wrong(|q| q["quant_algo"] = "NVFP4".into(), nested)
    };
    assert!(hf(layers("W4A16_NVFP4", "W4A16_NVFP4")).is_empty());
    let found = hf(layers("NVFP4", "W4A16_NVFP4"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_words(&found[0], &["1 layer (m.0.self_attn.o_proj) without input_scale, which quant_algo NVFP4 promises"]);
    let found = hf(layers("FP8", "W4A16_NVFP4"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_words(
        &found[0],
        &[
            "hf_quant_config.json says quant_algo FP8 of 1 layer (m.0.self_attn.o_proj), and it is nvfp4: engines read it by",
        ],
    );
    model.one(mixed(json!({LAYERS[0]: {"quant_algo": "W4A16_NVFP4"}})), &["does not name 1 layer (m.0.mlp.down_proj)"]);
    let mut more = layers("W4A16_NVFP4", "W4A16_NVFP4");
    more[LAYERS[2]] = json!({"quant_algo": "W4A16_NVFP4"});
    model.one(mixed(more), &["names 1 layer (m.1.self_attn.o_proj), and it is plain"]);
    // The modules around are names, too, and without any nothing is said.
    assert!(model.wrong(mixed(json!({"m.0": {"quant_algo": "W4A16_NVFP4"}})), |_| {}).is_empty());
    assert!(model.wrong(|q| q["quant_algo"] = "MIXED_PRECISION".into(), |_| {}).is_empty());
    model.one(mixed(json!({"m.0": "NVFP4"})), &["quantized_layers.m.0 is \"NVFP4\"", "an object with a quant_algo"]);
}

/// (They were found when the matrix was read.)
#[test]
fn bytes_of_block_scales_that_are_nan_are_said() {
    let folder = Folder::new();
    let path = folder.file("a.safetensors");
    let codes = |dtype, cols: usize| ("l.weight", dtype, vec![4, cols], vec![0x11; 4 * cols]);
    for (nvfp4, bad, words) in
        [(true, 0x7F, "NaN or negative in E4M3"), (true, 0xFF, "NaN or negative"), (false, 0xFF, "NaN in E8M0")]
    {
        let info = |byte: u8| {
            let mut scales = vec![0x38; if nvfp4 { 8 } else { 4 }];
            scales[3] = byte;
            match nvfp4 {
                true => write(
                    &path,
                    &[
                        codes(Dtype::U8, 16),
                        ("l.weight_scale", Dtype::F8_E4M3, vec![4, 2], scales),
                        ("l.weight_scale_2", Dtype::F32, vec![1], f32_bytes(&[1.0])),
                    ],
                ),
                false => write(&path, &[codes(Dtype::F8_E4M3, 32), ("l.weight_scale", Dtype::U8, vec![4, 1], scales)]),
            }
            run_on("cpu", &["info", &path])
        };
        assert_eq!(info(0x30).status.code(), Some(0));
        let output = info(bad);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stdout).unwrap();
        let holds = format!("tensor l.weight_scale: holds byte {bad:#04x} at element 3, which is {words}");
        assert_words(&text, &[&holds, "quantize the matrix again"]);
    }
}

/// Published models, in small: DeepSeek-V3 without a list, and a folder of ModelOpt's with its own file alone.
#[test]
fn published_configs_are_not_called_wrong() {
    let folder = Folder::new();
    let (deep, nvidia) = (folder.file("deepseek"), folder.file("nvidia"));
    let plain = |name: &'static str| (name, Dtype::BF16, vec![128, 128], vec![0; 2 * 128 * 128]);
    let codes = |name: &'static str| (name, Dtype::F8_E4M3, vec![128, 128], vec![0x35; 128 * 128]);
    let scale = |name: &'static str, shape: Vec<usize>| (name, Dtype::F32, shape, f32_bytes(&[0.5]));
    let tensors = [
        codes("model.layers.1.self_attn.o_proj.weight"),
        scale("model.layers.1.self_attn.o_proj.weight_scale_inv", vec![1, 1]),
        plain("model.layers.1.mlp.gate.weight"),
        plain("model.layers.1.eh_proj.weight"),
        plain("model.embed_tokens.weight"),
        plain("lm_head.weight"),
    ];
    let quantization =
        json!({"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]});
    model_folder(&deep, &tensors, Some(json!({"quantization_config": quantization})));
    // It is no linear layer to vLLM.
    assert_words(&good(&["info", &deep]), &["1 layer (model.layers.1.eh_proj) plain, and in no list of config.json"]);
    let tensors = [
        ("model.layers.0.self_attn.k_proj.weight", Dtype::U8, vec![128, 64], vec![0x11; 128 * 64]),
        ("model.layers.0.self_attn.k_proj.weight_scale", Dtype::F8_E4M3, vec![128, 8], vec![0x38; 128 * 8]),
        scale("model.layers.0.self_attn.k_proj.weight_scale_2", vec![]),
        scale("model.layers.0.self_attn.k_proj.input_scale", vec![]),
        scale("model.layers.0.self_attn.k_proj.k_scale", vec![]),
        plain("model.layers.0.mlp.gate.weight"),
        plain("lm_head.weight"),
    ];
    model_folder(&nvidia, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
    let write = |list: Value| {
        let quantization =
            json!({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": list});
        let value = json!({"producer": {"name": "modelopt", "version": "0.23.0"}, "quantization": quantization});
        fs::write(format!("{nvidia}/hf_quant_config.json"), value.to_string()).unwrap();
    };
    write(json!(["lm_head"]));
    let text = good(&["info", &nvidia]);
    assert!(!text.contains("plain, and"), "{text}");
    write(json!([]));
    assert_words(
        &wrong(&["info", &nvidia]).0,
        &["1 layer (lm_head) plain, and not in exclude_modules of hf_quant_config.json"],
    );
}

/// Names and entries that no model has take neither the stack nor minutes.
#[test]
fn names_without_end() {
    let folder = Folder::new();
    let [input, q] = ["in", "q"].map(|name| folder.file(name));
    let layer = format!("{}o_proj", "a.".repeat(20_000));
    let names = [format!("{layer}.weight"), "m.down_proj.weight".into()];
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [128, 128], seed)).collect();
    model_folder(&input, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
    good(&["quantize", &input, "-o", &q, "--recipe", "fp8-row", "--dialect", "compressed-tensors", "--exclude", "m.d"]);
    let config: Value = serde_json::from_slice(&fs::read(format!("{q}/config.json")).unwrap()).unwrap();
    let method = |method: &str| json!({"quant_method": method, "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"});
    for said in [method("modelopt"), method("fp8"), config["quantization_config"].clone()] {
        for last in ["x".into(), format!("{}x", "model.".repeat(1 << 20))] {
            let mut config = config.clone();
            config["quantization_config"] = said.clone();
            config["quantization_config"]["ignore"] = json!(["m.down_proj", last]);
            fs::write(format!("{q}/config.json"), config.to_string()).unwrap();
            good(&["info", &q]);
        }
    }
    fs::write(format!("{q}/config.json"), config.to_string()).unwrap();
    // (Of config.json they are refused.)
    let many: Vec<_> = (0..100_000).map(|at| format!("re:{}{at}", "x".repeat(20))).collect();
    let many = json!({"quantization": {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "exclude_modules": many}});
    fs::write(format!("{q}/hf_quant_config.json"), many.to_string()).unwrap();
    let text = run_on("cpu", &["info", &q]);
    assert_words(&String::from_utf8_lossy(&text.stdout), &["not understood here"]);
}
