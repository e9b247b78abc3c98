//! `quantize`, `dequantize` and `info` of models' folders: what engines find there, and what they would make of it.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::*;
use half::{bf16, f16};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::{DType, Fp8Format, HostQuantMatrix, Recipe, Scheme, codec, reference};
use serde_json::{Value, json};

const HIDDEN: usize = 128;
const INNER: usize = 256;

/// Tensors of a small Llama of two layers: name, rows, columns; a vector has one row.
fn tensors() -> Vec<(String, usize, usize)> {
    let mut all = vec![("model.embed_tokens.weight".to_string(), 40, HIDDEN)];
    for layer in 0..2 {
        for (name, n, k) in [
            ("input_layernorm", 1, HIDDEN),
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", HIDDEN, HIDDEN),
            ("self_attn.v_proj", HIDDEN, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", INNER, HIDDEN),
            ("mlp.up_proj", INNER, HIDDEN),
            ("mlp.down_proj", HIDDEN, INNER),
        ] {
            all.push((format!("model.layers.{layer}.{name}.weight"), n, k));
        }
    }
    all.push(("lm_head.weight".into(), 40, HIDDEN));
    all
}

/// The values of a tensor: each has a size of its own, so that layers that are fused have different scales by themselves.
fn weights(at: usize, n: usize, k: usize) -> Vec<bf16> {
    let size = 0.02 * (1.0 + (at % 5) as f32);
    values(n * k, at as u32 + 1).into_iter().map(|v| bf16::from_f32(v * size)).collect()
}

fn bf16_bytes(values: &[bf16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A folder as the hub has it: two shards, an index, config, tokenizer, and what should stay behind.
fn llama(folder: &Folder) -> String {
    let path = folder.file("model");
    fs::create_dir(&path).unwrap();
    let all: Vec<_> = tensors()
        .into_iter()
        .enumerate()
        .map(|(i, (name, n, k))| (name, n, k, bf16_bytes(&weights(i, n, k))))
        .collect();
    let mut map = BTreeMap::new();
    for (i, shard) in all.chunks(all.len() / 2 + 1).enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", i + 1);
        let views = shard.iter().map(|(name, n, k, bytes)| {
            let shape = if *n == 1 { vec![*k] } else { vec![*n, *k] };
            (name.clone(), TensorView::new(Dtype::BF16, shape, bytes).unwrap())
        });
        let metadata = [("format".to_string(), "pt".to_string())].into();
        fs::write(format!("{path}/{file}"), safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
        shard.iter().for_each(|(name, ..)| drop(map.insert(name.clone(), file.clone())));
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::write(format!("{path}/model.safetensors.index.json"), index.to_string()).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "torch_dtype": "bfloat16",
    });
    fs::write(format!("{path}/config.json"), config.to_string()).unwrap();
    fs::write(format!("{path}/tokenizer.json"), "{\"words\": 40}").unwrap();
    fs::write(format!("{path}/pytorch_model.bin"), "weights of the same model, not quantized").unwrap();
    fs::create_dir(format!("{path}/original")).unwrap();
    path
}

fn read_json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Every tensor of a folder, as the safetensors crate reads it: type, shape, bytes.
fn all_tensors(folder: &str) -> BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|e| e == "safetensors") {
            let bytes = fs::read(&entry).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
            assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt", "{entry:?}");
            for (name, view) in file.tensors() {
                let old = found.insert(name.clone(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
                assert!(old.is_none(), "{name} twice");
            }
        }
    }
    found
}

/// The names and shapes that engines look for, by the last part of `q_proj`'s tensors.
fn expected(recipe: &str, dialect: &str) -> Vec<(&'static str, Dtype, Vec<usize>)> {
    let (n, k) = (HIDDEN, HIDDEN);
    match (recipe, dialect) {
        ("fp8-128x128", "fp8") => {
            vec![("weight", Dtype::F8_E4M3, vec![n, k]), ("weight_scale_inv", Dtype::F32, vec![1, 1])]
        }
        ("fp8-128x128", _) => vec![("weight", Dtype::F8_E4M3, vec![n, k]), ("weight_scale", Dtype::F32, vec![1, 1])],
        ("fp8-tensor", _) => vec![("weight", Dtype::F8_E4M3, vec![n, k]), ("weight_scale", Dtype::F32, vec![1])],
        ("fp8-row", _) => vec![("weight", Dtype::F8_E4M3, vec![n, k]), ("weight_scale", Dtype::F32, vec![n, 1])],
        ("mxfp8", _) => vec![("weight", Dtype::F8_E4M3, vec![n, k]), ("weight_scale", Dtype::U8, vec![n, k / 32])],
        ("mxfp4", _) => {
            vec![("weight_packed", Dtype::U8, vec![n, k / 2]), ("weight_scale", Dtype::U8, vec![n, k / 32])]
        }
        ("nvfp4", "compressed-tensors") => vec![
            ("weight_global_scale", Dtype::F32, vec![1]),
            ("weight_packed", Dtype::U8, vec![n, k / 2]),
            ("weight_scale", Dtype::F8_E4M3, vec![n, k / 16]),
        ],
        ("nvfp4", _) => vec![
            ("weight", Dtype::U8, vec![n, k / 2]),
            ("weight_scale", Dtype::F8_E4M3, vec![n, k / 16]),
            ("weight_scale_2", Dtype::F32, vec![1]),
        ],
        other => panic!("{other:?}"),
    }
}

/// What each dialect is asked for, and the keys that its readers decide by.
type Keys = &'static [(&'static str, &'static str)];
const DIALECTS: [(&str, &str, Keys); 10] = [
    (
        "mxfp4",
        "compressed-tensors",
        &[
            ("/format", "mxfp4-pack-quantized"),
            ("/config_groups/group_0/weights/group_size", "32"),
            ("/config_groups/group_0/weights/scale_dtype", "torch.uint8"),
        ],
    ),
    (
        "fp8-128x128",
        "fp8",
        &[("/quant_method", "fp8"), ("/activation_scheme", "dynamic"), ("/weight_block_size", "[128,128]")],
    ),
    (
        "fp8-tensor",
        "fp8",
        &[("/quant_method", "fp8"), ("/activation_scheme", "dynamic"), ("/weight_block_size", "null")],
    ),
    (
        "fp8-row",
        "compressed-tensors",
        &[("/format", "float-quantized"), ("/config_groups/group_0/weights/strategy", "channel")],
    ),
    (
        "fp8-tensor",
        "compressed-tensors",
        &[("/format", "float-quantized"), ("/config_groups/group_0/weights/strategy", "tensor")],
    ),
    ("fp8-128x128", "compressed-tensors", &[("/config_groups/group_0/weights/block_structure", "[128,128]")]),
    (
        "nvfp4",
        "compressed-tensors",
        &[
            ("/format", "nvfp4-pack-quantized"),
            ("/quantization_status", "compressed"),
            ("/config_groups/group_0/weights/group_size", "16"),
        ],
    ),
    (
        "mxfp8",
        "compressed-tensors",
        &[("/format", "mxfp8-quantized"), ("/config_groups/group_0/weights/scale_dtype", "torch.uint8")],
    ),
    ("nvfp4", "modelopt", &[("/quant_method", "modelopt"), ("/quant_algo", "W4A16_NVFP4")]),
    ("mxfp8", "modelopt", &[("/quant_method", "modelopt"), ("/quant_algo", "MXFP8")]),
];

#[test]
fn each_dialect_has_its_names_its_config_and_all_tensors() {
    let folder = Folder::new();
    let input = llama(&folder);
    let before = all_tensors(&input);
    for (i, (recipe, dialect, keys)) in DIALECTS.into_iter().enumerate() {
        let what = format!("{recipe} {dialect}");
        let output = folder.file(&format!("out{i}"));
        // Small shards, so that there are several.
        good(&["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect, "--shard-size", "100KB"]);
        let tensors = all_tensors(&output);
        for (name, tensor) in &before {
            let q = name.strip_suffix("q_proj.weight");
            if name.contains("_proj") {
                let module = name.strip_suffix("weight").unwrap();
                let found = tensors.iter().filter(|(other, _)| other.starts_with(module));
                let found: Vec<_> = found.map(|(n, (d, s, _))| (&n[module.len()..], *d, s.clone())).collect();
                if q.is_some() {
                    assert_eq!(found, expected(recipe, dialect), "{what}: {name}");
                }
                assert_eq!(found.len(), expected(recipe, dialect).len(), "{what}: {name}");
            } else {
                assert_eq!(tensors.get(name), Some(tensor), "{what}: {name}");
            }
        }
        // Whatever is read is what the index says, and nothing else is there.
        let index = read_json(format!("{output}/model.safetensors.index.json"));
        let map = index["weight_map"].as_object().unwrap();
        let files: std::collections::BTreeSet<_> = map.values().map(|v| v.as_str().unwrap().to_string()).collect();
        assert!(files.len() > 1 && map.keys().eq(tensors.keys()), "{what}: {files:?}");
        let total: usize = tensors.values().map(|(_, _, bytes)| bytes.len()).sum();
        assert_eq!(index["metadata"]["total_size"], total, "{what}");
        let mut names: Vec<_> =
            fs::read_dir(&output).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !files.contains(name));
        names.sort();
        let modelopt = if dialect == "modelopt" { vec!["hf_quant_config.json"] } else { vec![] };
        let want = [vec!["config.json"], modelopt, vec!["model.safetensors.index.json", "tokenizer.json"]].concat();
        assert_eq!(names, want, "{what}");

        let config = read_json(format!("{output}/config.json"));
        assert_eq!((&config["model_type"], &config["hidden_size"]), (&json!("llama"), &json!(HIDDEN)), "{what}");
        let quantization = &config["quantization_config"];
        for (pointer, value) in keys {
            let found =
                quantization.pointer(pointer).unwrap_or_else(|| panic!("{what}: no {pointer} in {quantization:#}"));
            let text = found.as_str().map_or(found.to_string(), str::to_string);
            assert_eq!(text, *value, "{what}: {pointer}");
        }
        let ignore = ["ignore", "modules_to_not_convert"].iter().find_map(|key| quantization.get(key));
        assert_eq!(ignore, Some(&json!(["lm_head"])), "{what}");
        let checkpoint = Checkpoint::open(&output).unwrap();
        assert_eq!(checkpoint.quantized().len(), 14, "{what}");
        let report = good(&["info", &output]);
        assert!(!report.contains("What is wrong"), "{what}: {report}");
    }
}

/// Values of a tensor that holds floats.
fn floats(tensors: &BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>, name: &str) -> Vec<f32> {
    let (dtype, _, bytes) = tensors.get(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(*dtype, Dtype::F32, "{name}");
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

const GROUPS: [&[&str]; 2] =
    [&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], &["mlp.gate_proj", "mlp.up_proj"]];

/// Whether an engine that fuses layers reads every weight as this crate does, to the bit.
fn fused_reads_the_same(recipe: &str, dialect: &str, output: &str) -> bool {
    let tensors = all_tensors(output);
    let mut same = true;
    for (layer, group) in (0..2).flat_map(|layer| GROUPS.map(|group| (layer, group))) {
        let name = |part: &str, suffix: &str| format!("model.layers.{layer}.{part}.{suffix}");
        let scale = |part: &str, suffix: &str| floats(&tensors, &name(part, suffix))[0];
        match (recipe, dialect) {
            // vLLM 0.33.0, quantization/modelopt.py:2085: weight_scale_2 of the fused layer is the largest.
            ("nvfp4", "modelopt") => {
                let all: Vec<_> = group.iter().map(|part| scale(part, "weight_scale_2")).collect();
                let kept = all.iter().copied().fold(f32::MIN, f32::max);
                same &= all.iter().all(|s| s.to_bits() == kept.to_bits());
            }
            // compressed_tensors/schemes/compressed_tensors_w4a4_nvfp4.py:101: 1 / the largest divisor.
            ("nvfp4", "compressed-tensors") => {
                let all: Vec<_> = group.iter().map(|part| scale(part, "weight_global_scale")).collect();
                let kept = 1.0 / all.iter().copied().fold(f32::MIN, f32::max);
                same &= all.iter().all(|s| (1.0 / s).to_bits() == kept.to_bits());
            }
            // quantization/utils/w8a8_utils.py:75: every layer by FP16 to the largest scale, also where all are equal.
            ("fp8-tensor", _) => {
                let all: Vec<_> = group.iter().map(|part| scale(part, "weight_scale")).collect();
                let kept = all.iter().copied().fold(f32::MIN, f32::max);
                for (part, scale) in group.iter().zip(&all) {
                    for code in &tensors[&name(part, "weight")].2 {
                        let value = codec::decode(Fp8Format::E4M3, *code);
                        let plain = f16::from_f32(value * scale).to_f32();
                        let again = codec::encode(Fp8Format::E4M3, plain * (1.0 / kept));
                        let read = codec::decode(Fp8Format::E4M3, again) * kept;
                        same &= read.to_bits() == (value * scale).to_bits() || (read == 0.0 && value == 0.0);
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }
    same
}

/// Engines keep one scale for layers that they fuse. (Each matrix had its own, and a model of perplexity 29.7 read as 85,318.)
#[test]
fn what_engines_fuse_reads_the_same_to_the_bit() {
    let folder = Folder::new();
    let input = llama(&folder);
    let cases = [
        ("nvfp4", "modelopt"),
        ("nvfp4", "compressed-tensors"),
        ("fp8-tensor", "fp8"),
        ("fp8-tensor", "compressed-tensors"),
    ];
    for (i, (recipe, dialect)) in cases.into_iter().enumerate() {
        let (shared, own) = (folder.file(&format!("shared{i}")), folder.file(&format!("own{i}")));
        let said = good(&["quantize", &input, "-o", &shared, "--recipe", recipe, "--dialect", dialect]);
        assert_words(
            &said,
            &["share one scale", "4 groups", "k_proj, q_proj, v_proj", "gate_proj, up_proj", "whose scale it changed"],
        );
        assert!(fused_reads_the_same(recipe, dialect, &shared), "{recipe} {dialect}");
        good(&["quantize", &input, "-o", &own, "--recipe", recipe, "--dialect", dialect, "--no-fuse"]);
        assert!(!fused_reads_the_same(recipe, dialect, &own), "{recipe} {dialect}: the emulation would see nothing");
        assert_words(&wrong(&["info", &own]).0, &["What is wrong", "engines that fuse these", "q_proj"]);
    }
}

/// The reciprocal of a divisor is the scale that the codes were made with, to the bit.
#[test]
fn divisors_of_compressed_tensors_are_those_of_the_codes() {
    let folder = Folder::new();
    let input = llama(&folder);
    let output = folder.file("out");
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dialect", "compressed-tensors"]);
    let (tensors, checkpoint) = (all_tensors(&output), Checkpoint::open(&output).unwrap());
    for (i, (name, n, k)) in tensors_of_layers() {
        let divisor = floats(&tensors, &format!("{}_global_scale", name))[0];
        let x: Vec<f32> = weights(i, n, k).iter().map(|v| v.to_f32()).collect();
        let x = ndarray::ArrayView2::from_shape((n, k), &x).unwrap();
        let given = scaled_gemm::GivenScale::Encode(divisor);
        let want = reference::quantize_with_scale(x, DType::Bf16, Recipe::new(Scheme::Nvfp4), given).unwrap();
        assert_eq!(checkpoint.quant_matrix(&name).unwrap(), want, "{name}");
    }
}

fn tensors_of_layers() -> impl Iterator<Item = (usize, (String, usize, usize))> {
    tensors().into_iter().enumerate().filter(|(_, (name, ..))| name.contains("_proj"))
}

#[test]
fn a_folder_and_back_is_the_model_by_its_codes() {
    let folder = Folder::new();
    let input = llama(&folder);
    for (i, recipe) in ["fp8-128x128", "fp8-row", "nvfp4", "mxfp8", "nvfp4-row", "fp8-1x128"].into_iter().enumerate() {
        let (output, back) = (folder.file(&format!("q{i}")), folder.file(&format!("back{i}")));
        good(&["quantize", &input, "-o", &output, "--recipe", recipe]);
        good(&["dequantize", &output, "-o", &back, "--dtype", "f32", "--shard-size", "200KB"]);
        let checkpoint = Checkpoint::open(&output).unwrap();
        let (before, after) = (all_tensors(&input), all_tensors(&back));
        assert!(before.keys().eq(after.keys()), "{recipe}");
        for (_, (name, ..)) in tensors_of_layers() {
            let q = checkpoint.quant_matrix(&name).unwrap();
            let want = reference::dequantize(&q, DType::F32);
            assert_eq!(floats(&after, &name), want.as_slice().unwrap(), "{recipe}: {name}");
        }
        assert_eq!(before["lm_head.weight"], after["lm_head.weight"], "{recipe}");
        let config = read_json(format!("{back}/config.json"));
        assert!(config.get("quantization_config").is_none() && config["model_type"] == "llama", "{recipe}");
        assert!(Path::new(&back).join("tokenizer.json").exists(), "{recipe}");
    }
}

/// A matrix that is quantized in parts has the bytes of one that is not.
#[test]
fn parts_are_those_of_the_whole() {
    let folder = Folder::new();
    let (n, k) = (1300, 2048);
    // More than one part, and rows that are no whole groups at the end.
    let x: Vec<bf16> = values(n * k, 9).into_iter().map(bf16::from_f32).collect();
    let (path, bytes) = (folder.file("in"), bf16_bytes(&x));
    let view = TensorView::new(Dtype::BF16, vec![n, k], &bytes).unwrap();
    fs::write(&path, safetensors::serialize([("w", view)], None).unwrap()).unwrap();
    let x: Vec<f32> = x.iter().map(|v| v.to_f32()).collect();
    let x = ndarray::ArrayView2::from_shape((n, k), &x).unwrap();
    for scheme in Scheme::ALL {
        if scheme.spec().format.name() == "e5m2" {
            continue;
        }
        let output = folder.file(scheme.spec().name);
        good(&["quantize", &path, "-o", &output, "--recipe", scheme.spec().name]);
        let want: HostQuantMatrix = reference::quantize(x, DType::Bf16, Recipe::new(scheme)).unwrap();
        assert!(Checkpoint::open(&output).unwrap().quant_matrix("w").unwrap() == want, "{scheme}");
        let plain = folder.file("plain");
        good(&["dequantize", &output, "-o", &plain, "--dtype", "f32"]);
        let (_, got) = read_f32(&plain, "w");
        assert!(got == reference::dequantize(&want, DType::F32).as_slice().unwrap(), "{scheme}");
    }
}

#[test]
fn dry_runs_and_choices() {
    let folder = Folder::new();
    let input = llama(&folder);
    let names = folder.names();
    let said = good(&["quantize", &input, "--recipe", "nvfp4", "--dry-run"]);
    assert_words(&said, &["would quantize 14 matrices", "dialect modelopt", "an embedding", "an output head"]);
    let value = json(&["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--json", "--only", "lm_head|q_proj"]);
    let quantized: Vec<_> =
        value["quantized"].as_array().unwrap().iter().map(|q| q["tensor"].as_str().unwrap()).collect();
    // A group that engines fuse is quantized whole or not at all.
    assert_eq!(quantized, ["lm_head.weight"]);
    let value = json(&[
        "quantize",
        &input,
        "--recipe",
        "nvfp4",
        "--dry-run",
        "--json",
        "--exclude",
        "layers\\.1",
        "--exclude",
        "mlp",
    ]);
    assert_eq!(value["quantized"].as_array().unwrap().len(), 4);
    let groups = |value: &Value| {
        let all = value["quantized"].as_array().unwrap().iter();
        all.filter_map(|q| Some(q["shares_its_scale_with"].as_array()?.len())).collect::<Vec<_>>()
    };
    assert_eq!(groups(&value), [2, 2, 2]);
    // Those are of different parents.
    let args = ["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--fuse", "(o|down)_proj"];
    assert_words(&bad(2, &args), &["--fuse (o|down)_proj: joins no layers"]);
    let value = json(&[
        "quantize",
        &input,
        "--recipe",
        "nvfp4",
        "--dry-run",
        "--json",
        "--fuse",
        r"layers\.\d",
        "--only",
        "o_proj",
    ]);
    assert_eq!(groups(&value), [1, 1]);
    assert_eq!(folder.names(), names);
}

#[test]
fn what_no_engine_reads_is_refused_in_a_dialect_and_written_without() {
    let folder = Folder::new();
    let input = llama(&folder);
    let output = folder.file("out");
    let cases: [(&[&str], &[&str]); 7] = [
        (
            &["--recipe", "nvfp4-row", "--dialect", "modelopt"],
            &["in the dialect modelopt", ": no engine reads nvfp4-row weights: ", "; choose nvfp4 (", "or write plain"],
        ),
        (
            &["--recipe", "fp8-1x128", "--dialect", "fp8"],
            &[
                "in the dialect fp8",
                ": no engine reads fp8-1x128 weights: ",
                "; choose fp8-128x128 (",
                "or write plain",
            ],
        ),
        (&["--recipe", "nvfp4", "--hadamard", "--dialect", "compressed-tensors"], &["Hadamard"]),
        (&["--recipe", "fp8-row", "--format", "e5m2", "--dialect", "compressed-tensors"], &["e4m3"]),
        (&["--recipe", "fp8-tensor", "--dialect", "modelopt"], &["input scales"]),
        (&["--recipe", "nvfp4", "--dialect", "fp8"], &["nvfp4 in the dialect fp8"]),
        (&["--recipe", "nvfp4", "--dialect", "of-next-year"], &["of-next-year"]),
    ];
    for (options, words) in cases {
        let args = [&["quantize", &input, "-o", &output][..], options].concat();
        assert_words(&bad(2, &args), words);
        assert_eq!(folder.names(), ["model"]);
    }
    for (i, recipe) in ["nvfp4-row", "fp8-1x128"].into_iter().enumerate() {
        let output = folder.file(&format!("out{i}"));
        assert_words(&good(&["quantize", &input, "-o", &output, "--recipe", recipe]), &["dialect plain"]);
        assert!(read_json(format!("{output}/config.json")).get("quantization_config").is_none());
    }
    // A quantized model has one dialect already.
    let (quantized, again) = (folder.file("q"), folder.file("again"));
    good(&["quantize", &input, "-o", &quantized, "--recipe", "fp8-128x128", "--exclude", "down_proj"]);
    let words = ["quantized already (fp8)", "dequantize it first"];
    assert_words(&bad(2, &["quantize", &quantized, "-o", &again, "--recipe", "nvfp4"]), &words);
}

/// A run that was killed leaves nothing under the name; the next one says that it starts over.
#[test]
fn folders_appear_whole_or_not_at_all() {
    let folder = Folder::new();
    let input = llama(&folder);
    let output = folder.file("out");
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4"];
    // As a killed run leaves it.
    let partial = folder.file(".out.partial");
    fs::create_dir(&partial).unwrap();
    fs::write(format!("{partial}/.scaled-gemm-is-writing"), "").unwrap();
    fs::write(format!("{partial}/model-00007-of-00009.safetensors"), "half a shard").unwrap();
    let run = run_on("cpu", &args);
    assert!(run.status.success(), "{run:?}");
    assert_words(&String::from_utf8(run.stderr).unwrap(), &["an earlier run was interrupted", "starts over"]);
    assert_eq!(folder.names(), ["model", "out"]);
    assert!(!Path::new(&output).join("model-00007-of-00009.safetensors").exists());
    let first = all_tensors(&output);
    // What is there stays.
    assert_words(&bad(2, &args), &["out", "not empty"]);
    assert_eq!(all_tensors(&output), first);
    // Somebody else's folder of that name is not emptied.
    let other = folder.file("other");
    fs::create_dir(folder.file(".other.partial")).unwrap();
    fs::write(folder.file(".other.partial/precious"), "mine").unwrap();
    let args = ["quantize", &input, "-o", &other, "--recipe", "nvfp4"];
    assert_words(&bad(2, &args), &["not ours", "move that folder away"]);
    assert_eq!(fs::read(folder.file(".other.partial/precious")).unwrap(), b"mine");
    // An empty folder is as good as none; a file is not.
    let (empty, file) = (folder.file("empty"), folder.file("file"));
    fs::create_dir(&empty).unwrap();
    fs::write(&file, "a file").unwrap();
    good(&["quantize", &input, "-o", &empty, "--recipe", "nvfp4"]);
    assert_eq!(all_tensors(&empty), first);
    assert_words(&bad(2, &["quantize", &input, "-o", &file, "--recipe", "nvfp4"]), &["is a file"]);
    let nowhere = folder.file("no/where");
    assert_words(&bad(2, &["quantize", &input, "-o", &nowhere, "--recipe", "nvfp4"]), &["there is no folder"]);
    // What fails leaves nothing.
    let mut bytes = fs::read(format!("{input}/model-00002-of-00002.safetensors")).unwrap();
    let end = bytes.len();
    bytes[end - 2..].copy_from_slice(&bf16::NAN.to_le_bytes());
    fs::write(format!("{input}/model-00002-of-00002.safetensors"), bytes).unwrap();
    let broken = folder.file("broken");
    let names = folder.names();
    assert_words(&bad(2, &["quantize", &input, "-o", &broken, "--recipe", "nvfp4"]), &["non-finite value", "layers.1"]);
    assert_eq!(folder.names(), names);
}

#[test]
fn input_scales_are_written_as_each_dialect_has_them() {
    let folder = Folder::new();
    let input = llama(&folder);
    let mut amax = serde_json::Map::new();
    for (i, (name, ..)) in tensors_of_layers() {
        amax.insert(name.strip_suffix(".weight").unwrap().into(), json!(1.5 + i as f64));
    }
    let (text, tensors) = (folder.file("amax.json"), folder.file("amax.safetensors"));
    fs::write(&text, Value::from(amax.clone()).to_string()).unwrap();
    let numbers: Vec<_> =
        amax.iter().map(|(name, v)| (name.clone(), f32_bytes(&[v.as_f64().unwrap() as f32]))).collect();
    let views = numbers.iter().map(|(name, b)| (name.clone(), TensorView::new(Dtype::F32, vec![], b).unwrap()));
    fs::write(&tensors, safetensors::serialize(views, None).unwrap()).unwrap();
    let number = |part: &str| amax[&format!("model.layers.0.{part}")].as_f64().unwrap() as f32;
    let qkv = ["q", "k", "v"].map(|p| number(&format!("self_attn.{p}_proj"))).into_iter().fold(0.0, f32::max);
    let cases = [
        ("nvfp4", "modelopt", "input_scale", qkv / 2688.0, number("mlp.down_proj") / 2688.0),
        ("nvfp4", "compressed-tensors", "input_global_scale", 2688.0 / qkv, 2688.0 / number("mlp.down_proj")),
        ("fp8-tensor", "modelopt", "input_scale", qkv / 448.0, number("mlp.down_proj") / 448.0),
        ("fp8-tensor", "fp8", "input_scale", qkv / 448.0, number("mlp.down_proj") / 448.0),
    ];
    for (i, (recipe, dialect, suffix, fused, alone)) in cases.into_iter().enumerate() {
        let output = folder.file(&format!("out{i}"));
        let file = if i % 2 == 0 { &text } else { &tensors };
        good(&["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect, "--input-scales", file]);
        let found = all_tensors(&output);
        for part in ["q", "k", "v"] {
            assert_eq!(
                floats(&found, &format!("model.layers.0.self_attn.{part}_proj.{suffix}")),
                [fused],
                "{recipe} {dialect}"
            );
        }
        assert_eq!(floats(&found, &format!("model.layers.0.mlp.down_proj.{suffix}")), [alone], "{recipe} {dialect}");
        let config = &read_json(format!("{output}/config.json"))["quantization_config"];
        let group = &config["config_groups"]["group_0"]["input_activations"];
        match (recipe, dialect) {
            ("nvfp4", "modelopt") => assert_eq!(config["quant_algo"], "NVFP4"),
            ("nvfp4", _) => assert_eq!(group["dynamic"], "local"),
            (_, "modelopt") => assert_eq!(config["quant_algo"], "FP8"),
            _ => assert_eq!(config["activation_scheme"], "static"),
        }
        // The scales of activations go with the quantized weights.
        let back = folder.file(&format!("back{i}"));
        good(&["dequantize", &output, "-o", &back]);
        assert!(all_tensors(&back).keys().eq(all_tensors(&input).keys()), "{recipe} {dialect}");
    }
    let output = folder.file("refused");
    let refuse = |text: &str, words: &[&str]| {
        let file = folder.file("bad.json");
        fs::write(&file, text).unwrap();
        let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--input-scales", &file];
        assert_words(&bad(2, &args), words);
        assert!(!Path::new(&output).exists());
    };
    refuse("{}", &["has no amax for model.layers.0.", "calibrate"]);
    refuse(r#"{"a": -1}"#, &["a", "above 0 and finite"]);
    refuse(r#"{"a": "large"}"#, &["\"a\" is not a number", "line 1 column"]);
    refuse("{\"a\": 1} 2", &["no JSON", "trailing"]);
    refuse("{\"a\": 1, \"a.weight\": 2}", &["tensor a.weight", "is there twice"]);
    refuse("{\"a\": 1", &["no JSON"]);
    refuse("a: 1 and more than this", &["not a safetensors file"]);
}
