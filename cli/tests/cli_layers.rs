//! Layers that are not whole: experts that are not there, and layers of which a part is quantized.

mod common;

use std::collections::HashMap;
use std::fs;

use common::*;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

/// Takes the tensors with this in their names out of the one file of a folder.
fn remove(folder: &str, what: &str) {
    let path = format!("{folder}/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let metadata: HashMap<String, String> =
        SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap_or_default();
    let kept = file.tensors().into_iter().filter(|(name, _)| !name.contains(what));
    let kept: Vec<_> = kept.collect();
    assert!(kept.len() < file.len());
    let written = safetensors::serialize(kept, Some(metadata)).unwrap();
    fs::write(path, written).unwrap();
}

/// (`info` was content, and `dequantize` wrote a layer of single experts beside others of one tensor.)
#[test]
fn experts_that_are_not_there_are_said() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("q"));
    let tensor = |name, shape: [usize; 3], seed| -> Tensor<'_> {
        (name, Dtype::F32, shape.to_vec(), f32_bytes(&values(shape.iter().product(), seed)))
    };
    let names = [0, 1]
        .map(|layer| ["gate_up_proj", "down_proj"].map(|part| format!("m.layers.{layer}.feed_forward.experts.{part}")));
    let all: Vec<Tensor> =
        names.iter().flat_map(|[up, down]| [tensor(up, [3, 32, 64], 1), tensor(down, [3, 32, 32], 2)]).collect();
    model_folder(&input, &all, Some(json!({"model_type": "llama4"})));
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4"]);
    good(&["info", &output]);
    let whole = folder.file("whole");
    assert!(!said(&["dequantize", &output, "-o", &whole]).contains("experts lack"));
    remove(&output, "layers.1.feed_forward.experts.1.up_proj");
    let words = "experts lack 1 matrix that others of their layer have (m.layers.1.feed_forward.experts.1.up_proj)";
    let (text, _) = wrong(&["info", &output]);
    assert_words(&text, &[words, "; fetch or write the model again"]);
    let plain = folder.file("plain");
    assert_words(&said(&["dequantize", &output, "-o", &plain]), &[words, "no such layer becomes one tensor"]);
    // All of an expert between others.
    remove(&output, "experts.1.");
    assert_words(
        &wrong(&["info", &output]).0,
        &["experts lack 6 matrices that others", "feed_forward.experts.1.gate_proj"],
    );
}

/// (Nothing was said of them.)
#[test]
fn experts_of_a_layer_are_quantized_all_or_none() {
    let folder = Folder::new();
    let names = [0, 1].map(|e| ["gate_proj", "up_proj", "down_proj"].map(|w| format!("m.mlp.experts.{e}.{w}.weight")));
    let names: Vec<&str> = names.as_flattened().iter().map(String::as_str).collect();
    let write = |name: &str, plain: &[&str], list: bool| {
        let codes = |name: &str| !plain.iter().any(|part| name.contains(part));
        let scales: Vec<_> = names.iter().map(|name| format!("{name}_scale_inv")).collect();
        let mut tensors: Vec<Tensor> = Vec::new();
        for (name, scale) in names.iter().zip(&scales) {
            if codes(name) {
                tensors.push((name, Dtype::F8_E4M3, vec![128, 128], vec![0x35; 128 * 128]));
                tensors.push((scale, Dtype::F32, vec![1, 1], f32_bytes(&[0.5])));
            } else {
                tensors.push(f32_tensor(name, [128, 128], 1));
            }
        }
        let mut quantization = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
        if list {
            let left = names.iter().filter(|name| !codes(name)).map(|name| name.trim_end_matches(".weight"));
            quantization["modules_to_not_convert"] = left.collect();
        }
        let path = folder.file(name);
        model_folder(&path, &tensors, Some(json!({"quantization_config": quantization})));
        path
    };
    good(&["info", &write("all", &[], true)]);
    // One line, whether the config has the plain ones in its list or not.
    for (name, plain, list) in
        [("one", "experts.1.", true), ("no_list", "experts.1.", false), ("down", "1.down_proj", true)]
    {
        let output = run_on("cpu", &["info", &write(name, &[plain], list), "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let problems = value["problems"].as_array().unwrap();
        assert_eq!(problems.len(), 1, "{name}: {problems:?}");
        let words = "engines run the experts of a layer as one, and read all or none; quantize the model again";
        assert_words(problems[0].as_str().unwrap(), &["m.mlp.experts.0.", "quantized, and m.mlp.experts.1.", words]);
    }
}

/// (Without a shared scale nothing was said of it, and `info` called the folder wrong.)
#[test]
fn no_fuse_says_where_it_tears_what_engines_fuse() {
    let folder = Folder::new();
    let names = ["q_proj", "k_proj", "v_proj"].map(|name| format!("l.self_attn.{name}.weight"));
    let tensors: Vec<Tensor> = names.iter().map(|name| f32_tensor(name, [32, 32], 1)).collect();
    let input = folder.file("in");
    model_folder(&input, &tensors, Some(json!({"model_type": "llama"})));
    let words = "--no-fuse: of 1 group of layers that engines fuse, a part is quantized (l.self_attn.q_proj is, l.self_attn.k_proj is \
                 not), and engines read all or none; let --only and --exclude take all of each, or leave the option out, and none of it is \
                 quantized";
    for recipe in ["fp8-row", "nvfp4"] {
        let args = |name: &str, options: &[&'static str]| {
            let output = folder.file(&format!("{recipe}{name}"));
            let all = ["quantize", &input, "-o", &output, "--recipe", recipe].map(String::from);
            [&all[..], &options.iter().map(|text| text.to_string()).collect::<Vec<_>>()].concat()
        };
        let run = |args: Vec<String>| said(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_words(&run(args("a", &["--no-fuse", "--only", "q_proj"])), &[words]);
        wrong(&["info", &folder.file(&format!("{recipe}a"))]);
        assert!(!run(args("b", &["--no-fuse"])).contains("a part is quantized"));
        assert!(!run(args("c", &["--no-fuse", "--only", "q_proj", "--dry-run"])).is_empty());
        // (To leave the option out was the whole remedy.)
        good(&[
            "quantize",
            &input,
            "-o",
            &folder.file(&format!("{recipe}d")),
            "--recipe",
            recipe,
            "--only",
            "[qkv]_proj",
        ]);
        let none = ["quantize", &input, "-o", &folder.file("e"), "--recipe", recipe, "--only", "q_proj"];
        assert_words(&bad(2, &none), &["no matrix"]);
    }
}

/// (An adapter of one expert's matrix counted as a matrix of experts.)
#[test]
fn adapters_are_no_experts() {
    let folder = Folder::new();
    let names = [0, 1].map(|e| ["gate_proj", "up_proj", "down_proj"].map(|w| format!("m.mlp.experts.{e}.{w}.weight")));
    let names: Vec<&str> = names.as_flattened().iter().map(String::as_str).collect();
    let scales: Vec<_> = names.iter().map(|name| format!("{name}_scale_inv")).collect();
    let mut tensors = vec![
        f32_tensor("m.mlp.experts.0.gate_proj.lora_A.weight", [16, 128], 1),
        f32_tensor("m.mlp.experts.0.gate_proj.lora_B.weight", [128, 16], 1),
    ];
    for (name, scale) in names.iter().zip(&scales) {
        tensors.push((name, Dtype::F8_E4M3, vec![128, 128], vec![0x35; 128 * 128]));
        tensors.push((scale, Dtype::F32, vec![1, 1], f32_bytes(&[0.5])));
    }
    let plain = ["lora_A", "lora_B"].map(|name| format!("m.mlp.experts.0.gate_proj.{name}"));
    let quantization = json!({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": plain});
    let path = folder.file("in");
    model_folder(&path, &tensors, Some(json!({"quantization_config": quantization})));
    good(&["info", &path]);
}

/// An expert's matrix in FP8 with its scale.
fn expert(number: usize, part: &str) -> [(String, Dtype, Vec<usize>, Vec<u8>); 2] {
    let name = format!("m.mlp.experts.{number}.{part}.weight");
    let scale = format!("{name}_scale");
    [(name, Dtype::F8_E4M3, vec![16, 16], vec![0x35; 256]), (scale, Dtype::F32, vec![1], f32_bytes(&[0.5]))]
}

fn borrowed(tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)]) -> Vec<Tensor<'_>> {
    tensors.iter().map(|(name, dtype, shape, bytes)| (name.as_str(), *dtype, shape.clone(), bytes.clone())).collect()
}

/// PEFT has the matrix in `base_layer` beside its adapters, which have names of their own. (All experts were alike, and were called quantized in
/// part.)
#[test]
fn adapters_under_the_names_of_peft_are_no_experts() {
    let folder = Folder::new();
    for (case, adapted) in [("first", 0..1), ("last", 1..2), ("all", 0..2)] {
        let part = |e: usize| if adapted.contains(&e) { "w2.base_layer" } else { "w2" };
        let mut tensors: Vec<_> = (0..2).flat_map(|e| expert(e, part(e))).collect();
        let adapters =
            adapted.clone().flat_map(|e| ["A", "B"].map(|x| format!("m.mlp.experts.{e}.w2.lora_{x}.default")));
        let adapters: Vec<String> = adapters.collect();
        tensors.extend(adapters.iter().map(|name| (format!("{name}.weight"), Dtype::BF16, vec![16, 16], vec![0; 512])));
        let config = json!({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": adapters}});
        let path = folder.file(case);
        model_folder(&path, &borrowed(&tensors), Some(config));
        good(&["info", &path]);
    }
    // An adapter is no matrix where its own is not there.
    let mut tensors: Vec<_> =
        [expert(0, "w2.base_layer"), expert(0, "w3"), expert(1, "w3")].into_iter().flatten().collect();
    let adapter = |e: usize, part: &str| format!("m.mlp.experts.{e}.{part}.lora_A.default");
    let adapters = [adapter(1, "w2"), adapter(0, "w4")];
    tensors.extend(adapters.iter().map(|name| (format!("{name}.weight"), Dtype::BF16, vec![16, 16], vec![0; 512])));
    let config = json!({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": adapters}});
    let path = folder.file("lacks");
    model_folder(&path, &borrowed(&tensors), Some(config));
    let (text, error) = wrong(&["info", &path]);
    assert_words(&text, &["experts lack 1 matrix that others of their layer have (m.mlp.experts.1.w2)"]);
    assert_words(&error, &["1 thing is wrong"]);
}

/// (Experts in integers were missing, and to be fetched again, where another of their layer is plain.)
#[test]
fn experts_in_codes_that_are_not_read_are_there() {
    let folder = Folder::new();
    let name = |e: usize| format!("m.mlp.experts.{e}.down_proj");
    let gptq = |e: usize| {
        [
            (format!("{}.qweight", name(e)), Dtype::I32, vec![8, 64], vec![0x35; 2048]),
            (format!("{}.scales", name(e)), Dtype::F16, vec![1, 64], vec![0; 128]),
        ]
    };
    let plain = |e: usize| (format!("{}.weight", name(e)), Dtype::BF16, vec![64, 64], vec![0; 8192]);
    let mut tensors: Vec<_> = [0, 1, 3].into_iter().flat_map(gptq).collect();
    tensors.push(plain(2));
    let config = json!({"quantization_config": {"quant_method": "gptq", "bits": 4}});
    let whole = folder.file("whole");
    model_folder(&whole, &borrowed(&tensors), Some(config.clone()));
    let (text, _) = wrong(&["info", &whole]);
    assert!(!text.contains("experts lack"), "{text}");
    // What stands beside a matrix is none.
    let path = folder.file("lacks");
    tensors.retain(|(tensor, ..)| !tensor.starts_with(&name(1)));
    for end in ["bias", "input_scale", "lora_A.weight"] {
        tensors.push((format!("{}.{end}", name(1)), Dtype::BF16, vec![64], vec![0; 128]));
    }
    model_folder(&path, &borrowed(&tensors), Some(config));
    assert_words(&wrong(&["info", &path]).0, &["experts lack 1 matrix", "(m.mlp.experts.1.down_proj)"]);
}

/// (Of 256 experts the last 48 told that the others were missing, and the last 47 did not.)
#[test]
fn experts_of_a_share_are_not_all() {
    let folder = Folder::new();
    for first in [208, 209, 255] {
        let path = folder.file(&first.to_string());
        let tensors: Vec<_> = (first..256).flat_map(|e| expert(e, "w2")).collect();
        model_folder(&path, &borrowed(&tensors), Some(json!({"quantization_config": {"quant_method": "fp8"}})));
        let words = format!("experts lack {first} matrices that others of their layer have (m.mlp.experts.0.w2, ");
        assert_words(&wrong(&["info", &path]).0, &[&words]);
        let text = said(&["dequantize", &path, "-o", &folder.file(&format!("{first}-plain"))]);
        assert_words(&text, &[&words]);
    }
}

/// (Parts times numbers: a file of 700 kB made sixteen million names, 1.4 GB of them.)
#[test]
fn many_parts_of_many_experts_take_no_time() {
    let folder = Folder::new();
    let matrix = |name| (name, Dtype::BF16, vec![1, 1], vec![0; 2]);
    let mut tensors: Vec<_> = (0..4000).map(|i| matrix(format!("m.mlp.experts.0.p{i}.weight"))).collect();
    tensors.extend((0..4000).map(|e| matrix(format!("m.mlp.experts.{e}.w.weight"))));
    tensors.extend(expert(0, "w2"));
    let path = folder.file("in");
    model_folder(&path, &borrowed(&tensors), None);
    let (text, _) = within_seconds(10, || wrong(&["info", &path]));
    let first = "m.mlp.experts.1.p0, m.mlp.experts.1.p1, m.mlp.experts.1.p10, ...";
    // All that the others lack of 4000 parts and the one in FP8.
    assert_words(&text, &[&format!("experts lack {} matrices that others of their layer have ({first})", 3999 * 4001)]);
}

/// (Each module around a layer was looked up by its whole name: ten minutes.)
#[test]
fn names_of_a_megabyte_take_no_time() {
    let folder = Folder::new();
    let long = format!("m.mlp.experts.0.{}w.weight", "a.".repeat(1 << 19));
    let mut tensors = Vec::from(expert(0, "w2"));
    tensors.push((long, Dtype::BF16, vec![16, 16], vec![0; 512]));
    let path = folder.file("in");
    model_folder(&path, &borrowed(&tensors), Some(json!({"quantization_config": {"quant_method": "fp8"}})));
    within_seconds(60, || wrong(&["info", &path]));
}

/// (Each layer took a million names to look for, sixty megabytes and a second.)
#[test]
fn numbers_far_apart_are_no_experts() {
    let folder = Folder::new();
    let names: Vec<String> = (0..200).map(|i| format!("a{i}.experts.1000000.w.weight")).collect();
    let mut tensors: Vec<Tensor> = names.iter().map(|name| f32_tensor(name, [16, 16], 1)).collect();
    tensors.push(("b.q_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x35; 256]));
    tensors.push(("b.q_proj.weight_scale", Dtype::F32, vec![1], f32_bytes(&[0.5])));
    let path = folder.file("in");
    model_folder(&path, &tensors, None);
    within_seconds(30, || good(&["info", &path]));
}

/// (Matrices with such columns were refused, and experts in one tensor copied.)
#[test]
fn experts_that_a_grouping_cannot_store_are_refused_as_matrices_are() {
    let folder = Folder::new();
    let [input, output] = ["in", "out"].map(|name| folder.file(name));
    let experts =
        |name, shape: [usize; 3]| (name, Dtype::F32, shape.to_vec(), f32_bytes(&values(shape.iter().product(), 1)));
    let tensors = [
        experts("m.experts.gate_up_proj", [2, 72, 96]),
        experts("m.experts.down_proj", [2, 48, 72]),
        f32_tensor("m.o_proj.weight", [32, 32], 2),
    ];
    model_folder(&input, &tensors, Some(json!({"model_type": "gpt_oss"})));
    let args = ["quantize", &input, "-o", &output, "--group", "1x32"];
    let words = ["tensor m.experts.gate_up_proj: [2, 72, 96]", "columns not a multiple of 16", "pad them with zeros"];
    let error = bad(2, &args);
    assert_words(&error, &words);
    let exclude = "--exclude '^m\\.experts\\.gate_up_proj$'";
    assert!(error.ends_with(exclude), "{error}");
    let text = good(&[&args[..], &["--exclude", r"^m\.experts\.gate_up_proj$"]].concat());
    assert_words(&text, &["copied as it is, matched by --exclude: 1 (m.experts.gate_up_proj [2, 72, 96])"]);
    // By a recipe they are left alone, as matrices are.
    good(&["quantize", &input, "--dry-run", "--recipe", "nvfp4", "--dialect", "plain"]);
    // Those that are copied anyway, whatever their columns, refuse nothing.
    let name = "m.experts.gate_up_proj";
    let of = |dtype, bytes: usize| (name, dtype, vec![2, 72, 96], vec![0x38; 2 * 72 * 96 * bytes]);
    let left = json!({"model_type": "gpt_oss", "quantization_config": {"modules_to_not_convert": ["m.experts"]}});
    let gpt_oss = || json!({"model_type": "gpt_oss"});
    let cases: [(Tensor, Value, &[&str], &str); 5] = [
        (of(Dtype::F8_E4M3, 1), gpt_oss(), &[], "FP8 already"),
        (of(Dtype::F64, 8), gpt_oss(), &[], "F64, which is not quantized"),
        (of(Dtype::F32, 4), left, &[], "left alone by config.json"),
        (of(Dtype::F32, 4), gpt_oss(), &["--only", r"^m\.o_proj"], "not matched by --only"),
        (of(Dtype::F32, 4), gpt_oss(), &["--exclude", "experts"], "matched by --exclude"),
    ];
    for (i, (experts, config, options, reason)) in cases.into_iter().enumerate() {
        let [input, output] = ["in", "out"].map(|name| folder.file(&format!("{name}-{i}")));
        model_folder(&input, &[experts, f32_tensor("m.o_proj.weight", [32, 32], 2)], Some(config));
        let text = good(&[&["quantize", &input, "-o", &output, "--group", "1x32"][..], options].concat());
        let copied = format!("copied as it is, {reason}");
        assert_words(&text, &["1 matrix to", &copied, "1 (m.experts.gate_up_proj [2, 72, 96])"]);
    }
}
