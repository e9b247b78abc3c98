//! Models as they lie on disks: many shards, indices that are not whole, codes in formats that are not read, configs that speak
//! of them; and what `info` says of it, with its exit code.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::*;
use safetensors::tensor::Dtype;
use scaled_gemm::checkpoint::Checkpoint;
use serde_json::{Value, json};

fn read_json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn index(map: &BTreeMap<String, String>) -> String {
    json!({"metadata": {}, "weight_map": map}).to_string()
}

/// A matrix in each of so many shards, with their index and a config.
fn sharded(path: &str, shards: usize) -> BTreeMap<String, String> {
    fs::create_dir(path).unwrap();
    let mut map = BTreeMap::new();
    for i in 1..=shards {
        let (name, file) = (format!("l.{i}.o_proj.weight"), format!("model-{i:05}-of-{shards:05}.safetensors"));
        write(&format!("{path}/{file}"), &[f32_tensor(&name, [16, 32], i as u32)]);
        map.insert(name, file);
    }
    fs::write(format!("{path}/model.safetensors.index.json"), index(&map)).unwrap();
    fs::write(format!("{path}/config.json"), "{}").unwrap();
    map
}

/// Each of 200 shards was held open, read and written.
#[cfg(unix)]
#[test]
fn more_shards_than_a_process_may_open() {
    let folder = Folder::new();
    let (input, output, back) = (folder.file("model"), folder.file("q"), folder.file("back"));
    sharded(&input, 200);
    let limited = |args: &[&str]| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""]).arg(program()).args(args).args(["--device", "cpu"]);
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    // One scale for all of them: the reader goes through all shards before the first is done.
    let fuse = ["--fuse", r"l\.\d+"];
    limited(&[&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--shard-size", "400B"][..], &fuse].concat());
    limited(&["info", &output]);
    limited(&["dequantize", &output, "-o", &back, "--dtype", "f32", "--shard-size", "2KB"]);
    let (quantized, plain) = (Checkpoint::open(&output).unwrap(), Checkpoint::open(&back).unwrap());
    assert_eq!([quantized.files().len(), plain.files().len()], [200, 200]);
    for name in quantized.quantized() {
        let want = scaled_gemm::reference::dequantize(&quantized.quant_matrix(name).unwrap(), scaled_gemm::DType::F32);
        assert_eq!(plain.matrix(name).unwrap().0, want, "{name}");
    }
}

/// A file is opened again only if it is still the one whose header was read.
#[test]
fn a_shard_that_was_replaced_is_not_read() {
    let folder = Folder::new();
    let path = folder.file("model");
    sharded(&path, 40);
    let model = Checkpoint::open(&path).unwrap();
    let shard = |i: usize| format!("{path}/model-{i:05}-of-00040.safetensors");
    let read = |i: usize| model.matrix(&format!("l.{i}.o_proj.weight"));
    // The last ones are open; the first were closed for them.
    fs::write(folder.file("other"), fs::read(shard(2)).unwrap()).unwrap();
    fs::rename(folder.file("other"), shard(1)).unwrap();
    fs::remove_file(shard(2)).unwrap();
    assert_words(&read(1).unwrap_err().to_string(), &["model-00001", "was replaced or written to", "start again"]);
    assert_words(&read(2).unwrap_err().to_string(), &["model-00002", "No such file"]);
    for i in (3..=40).chain(3..=40) {
        assert_eq!(read(i).unwrap().0.as_slice().unwrap(), values(16 * 32, i as u32), "{i}");
    }
}

#[test]
fn an_index_that_does_not_fit_its_shards_is_said() {
    let folder = Folder::new();
    let (input, output) = (folder.file("model"), folder.file("q"));
    let mut map = sharded(&input, 3);
    let place = format!("{input}/model.safetensors.index.json");
    write(
        &format!("{input}/model-00002-of-00003.safetensors"),
        &[f32_tensor("l.2.o_proj.weight", [16, 32], 2), f32_tensor("l.9.o_proj.weight", [16, 32], 9)],
    );
    let (text, error) = wrong(&["info", &input]);
    assert_words(&text, &["its index does not name 1 tensor", "l.9.o_proj.weight", "write the index again"]);
    assert_words(&error, &[&input, "1 thing is wrong"]);
    // Nothing is lost, and it is said.
    let text = said(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--shard-size", "400B"]);
    assert_words(&text, &["its index does not name 1 tensor", "l.9.o_proj.weight"]);
    assert_eq!(Checkpoint::open(&output).unwrap().quantized().len(), 4);
    good(&["info", &output]);
    let written = format!("{output}/model.safetensors.index.json");
    fs::write(
        &written,
        fs::read_to_string(&written).unwrap().replace("\"l.9.o_proj.weight_scale\"", "\"l.1.o_proj.weight_scale\""),
    )
    .unwrap();
    // Shards that are not there.
    map.insert("l.7.o_proj.weight".into(), "model-00007-of-00003.safetensors".into());
    fs::remove_file(format!("{input}/model-00003-of-00003.safetensors")).unwrap();
    fs::write(place, index(&map)).unwrap();
    let error = bad(2, &["info", &input]);
    assert_words(
        &error,
        &["index.json: names model-00003-of-00003.safetensors, which is not there (2 of 4", "; fetch"],
    );
}

#[test]
fn info_says_by_its_exit_code_whether_something_is_wrong() {
    let folder = Folder::new();
    let (input, output) = (folder.file("model"), folder.file("q"));
    sharded(&input, 2);
    good(&["info", &input]);
    // Engines load no folder without a config: said, and no fault of the tensors.
    fs::remove_file(format!("{input}/config.json")).unwrap();
    assert_words(&good(&["info", &input]), &["no config.json: engines load no folder without one"]);
    assert_words(&json(&["info", &input, "--json"])["notes"].to_string(), &["no config.json"]);
    // A file needs none.
    let file = format!("{input}/model-00001-of-00002.safetensors");
    assert!(!good(&["info", &file]).contains("config.json"));
    good(&["quantize", &input, "-o", &output, "--recipe", "fp8-128x128"]);
    fs::write(format!("{output}/config.json"), "{}").unwrap();
    let (text, error) = wrong(&["info", &output]);
    assert_words(&text, &["What is wrong", "no quantization_config"]);
    assert_words(&error, &["1 thing is wrong"]);
    let (text, _) = wrong(&["info", &output, "--json"]);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["problems"].as_array().unwrap().len(), 1);
}

#[test]
fn info_shows_names_as_they_are() {
    let folder = Folder::new();
    let input = folder.file("in");
    let names = ["../../evil.weight", "a..b", "", "l.0.w", "l.1.w", "x\u{1b}[2J\n\u{202e}"];
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [4, 4], seed)).collect();
    write(&input, &tensors);
    let text = good(&["info", &input]);
    assert_words(&text, &["\n ../../evil.weight", "\n a..b", "\n \"\" ", "\n l.*.w", r"x\u{1b}[2J\n\u{202e}"]);
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text:?}");
}

/// A folder with a matrix that is read and one in 4-bit integers, and a config that speaks of them.
fn foreign(path: &str, file: &str) {
    write(file, &[f32_tensor("a.weight", [128, 128], 1), f32_tensor("b.weight", [128, 128], 2)]);
    let packed = format!("{file}.q");
    good(&["quantize", file, "-o", &packed, "--recipe", "fp8-128x128", "--only", "a"]);
    let read = Checkpoint::open(&packed).unwrap();
    let bytes = |name: &str| read.bytes(name).unwrap();
    let tensors = [
        ("a.weight", Dtype::F8_E4M3, vec![128, 128], bytes("a.weight")),
        ("a.weight_scale_inv", Dtype::F32, vec![1, 1], bytes("a.weight_scale_inv")),
        ("c.qweight", Dtype::I32, vec![4, 32], vec![7; 512]),
        ("c.position_ids", Dtype::I32, vec![1, 4], vec![0; 16]),
        ("c.positions", Dtype::I64, vec![1, 4], vec![0; 32]),
        f32_tensor("b.weight", [128, 128], 2),
    ];
    let config = json!({"dtype": "float32", "quantization_config": {"quant_method": "of-next-year", "bits": 4}});
    model_folder(path, &tensors, Some(config));
}

#[test]
fn codes_that_are_not_read_are_not_torn_from_their_config() {
    let folder = Folder::new();
    let (input, output) = (folder.file("model"), folder.file("out"));
    foreign(&input, &folder.file("in"));
    let names = folder.names();
    assert_words(
        &bad(2, &["dequantize", &input, "-o", &output]),
        &["1 tensor (c.qweight)", "not read here", "what wrote it"],
    );
    let error = bad(2, &["quantize", &input, "-o", &output, "--recipe", "fp8-128x128"]);
    assert_words(&error, &["quantized already (of-next-year)"]);
    assert_eq!(folder.names(), names);
    assert_words(&wrong(&["info", &input]).0, &["1 tensor (c.qweight)", "does not read"]);
    // The plain dialect has no entry of its own, and keeps the one that is there.
    fs::write(format!("{input}/hf_quant_config.json"), "{\"old\": 1}").unwrap();
    let text = said(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dialect", "plain"]);
    assert_words(&text, &["quantization_config stays as it was"]);
    let [before, after] = [&input, &output].map(|path| read_json(format!("{path}/config.json")));
    assert_eq!(before["quantization_config"], after["quantization_config"]);
    assert_eq!(read_json(format!("{output}/hf_quant_config.json"))["old"], 1);
    let mut names: Vec<_> = Checkpoint::open(&output).unwrap().quantized().into_iter().map(str::to_string).collect();
    names.sort_unstable();
    assert_eq!(names, ["a.weight", "b.weight"]);
}

#[test]
fn the_config_names_the_type_that_is_written() {
    let folder = Folder::new();
    let (input, output) = (folder.file("model"), folder.file("q"));
    let config = json!({"torch_dtype": "bfloat16", "text_config": {"dtype": "bfloat16"}});
    model_folder(&input, &[f32_tensor("w.weight", [128, 128], 1)], Some(config));
    good(&["quantize", &input, "-o", &output, "--recipe", "fp8-128x128"]);
    for (dtype, name) in [("f16", "float16"), ("f32", "float32"), ("bf16", "bfloat16")] {
        let back = folder.file(dtype);
        good(&["dequantize", &output, "-o", &back, "--dtype", dtype]);
        let config = read_json(format!("{back}/config.json"));
        assert_eq!(config, json!({"torch_dtype": name, "text_config": {"dtype": name}}));
    }
}

#[test]
fn scales_of_activations_go_from_files_too() {
    let folder = Folder::new();
    let (input, packed, back, amax) = (folder.file("in"), folder.file("q"), folder.file("back"), folder.file("amax"));
    write(&input, &[f32_tensor("w.weight", [16, 32], 1), f32_tensor("other.input_scale", [1, 1], 2)]);
    fs::write(&amax, r#"{"w": 3}"#).unwrap();
    for recipe in ["nvfp4", "fp8-tensor"] {
        let scales = ["--dialect", "comfyui", "--input-scales", &amax];
        good(&[&["quantize", &input, "-o", &packed, "--recipe", recipe][..], &scales].concat());
        assert!(Checkpoint::open(&packed).unwrap().get("w.input_scale").is_some());
        assert_words(
            &said(&["dequantize", &packed, "-o", &back]),
            &["left out, scales of activations: 1 (w.input_scale)"],
        );
        let plain = Checkpoint::open(&back).unwrap();
        let mut names: Vec<_> = plain.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        // What belongs to no quantized matrix stays.
        assert_eq!(names, ["other.input_scale", "w.weight"]);
    }
    // The names of ComfyUI's older files.
    write(
        &packed,
        &[
            ("w.weight", Dtype::F8_E4M3, vec![16, 32], vec![1; 512]),
            ("w.scale_weight", Dtype::F32, vec![], f32_bytes(&[2.0])),
            ("w.scale_input", Dtype::F32, vec![], f32_bytes(&[3.0])),
        ],
    );
    let told = json(&["dequantize", &packed, "-o", &back, "--json"]);
    assert_eq!(told["left_out"], json!(["w.scale_input"]));
    assert_eq!(Checkpoint::open(&back).unwrap().tensors().len(), 1);
    // Beside a cast, which no product reads, it is a tensor like others.
    let number = ("w.input_scale", Dtype::F32, vec![], f32_bytes(&[3.0]));
    write(&input, &[f32_tensor("w.weight", [16, 32], 1), number]);
    good(&["quantize", &input, "-o", &packed, "--group", "1x32"]);
    good(&["dequantize", &packed, "-o", &back]);
    assert!(Checkpoint::open(&back).unwrap().get("w.input_scale").is_some());
}

/// (Positions in I32 passed for codes, and the config of a part stayed.)
#[test]
fn positions_are_no_codes_and_the_config_of_a_part_goes() {
    let folder = Folder::new();
    let (input, packed, back) = (folder.file("model"), folder.file("q"), folder.file("back"));
    let positions = ("model.embeddings.position_ids", Dtype::I32, vec![1, 4], vec![0; 16]);
    model_folder(&input, &[f32_tensor("w.weight", [128, 128], 1), positions], Some(json!({"text_config": {}})));
    good(&["quantize", &input, "-o", &packed, "--recipe", "fp8-128x128"]);
    let place = format!("{packed}/config.json");
    let quantization = read_json(&place)["quantization_config"].clone();
    fs::write(&place, json!({"text_config": {"quantization_config": quantization}}).to_string()).unwrap();
    assert_words(&good(&["info", &packed]), &["quant_method  fp8"]);
    good(&["dequantize", &packed, "-o", &back]);
    assert_eq!(read_json(format!("{back}/config.json")), json!({"text_config": {}}));
    let names: Vec<_> = Checkpoint::open(&back).unwrap().tensors().iter().map(|t| t.name.clone()).collect();
    assert!(names.contains(&"model.embeddings.position_ids".to_string()), "{names:?}");
}

#[test]
fn info_says_where_a_config_and_its_tensors_differ() {
    let folder = Folder::new();
    let (input, output, amax) = (folder.file("model"), folder.file("q"), folder.file("amax"));
    let tensors = ["l.q_proj.weight", "l.k_proj.weight", "l.o_proj.weight"].map(|name| f32_tensor(name, [128, 128], 1));
    model_folder(&input, &tensors, Some(json!({})));
    fs::write(&amax, r#"{"l.q_proj": 3, "l.k_proj": 3, "l.o_proj": 3}"#).unwrap();
    let quantize = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dialect", "modelopt"];
    good(&[&quantize[..], &["--input-scales", &amax]].concat());
    good(&["info", &output]);
    fs::remove_dir_all(&output).unwrap();
    // Weights alone, and the algorithm says so.
    good(&quantize);
    good(&["info", &output]);
    let place = format!("{output}/config.json");
    let mut config = read_json(&place);
    let mut says = |key: &str, value: Value| {
        config["quantization_config"][key] = value;
        fs::write(&place, config.to_string()).unwrap();
        wrong(&["info", &output])
    };
    let (text, error) = says("quant_algo", "NVFP4".into());
    assert_words(&text, &["3 layers (l.", "without input_scale", "W4A16_NVFP4"]);
    assert_words(&error, &["1 thing is wrong"]);
    let (text, error) = says("ignore", json!(["l.q_proj", "lm_head"]));
    assert_words(&text, &["1 layer (l.q_proj)", "says is not quantized", "take the names out"]);
    assert_words(&error, &["2 things are wrong"]);
    // One of what engines fuse is plain.
    let read = Checkpoint::open(&output).unwrap();
    let mut parts: Vec<_> = read
        .tensors()
        .iter()
        .filter(|t| !t.name.starts_with("l.k_proj"))
        .map(|t| (t.name.as_str(), t.dtype, t.shape.clone(), read.bytes(&t.name).unwrap()))
        .collect();
    parts.push(f32_tensor("l.k_proj.weight", [128, 128], 1));
    let torn = folder.file("torn");
    let config = json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}});
    model_folder(&torn, &parts, Some(config));
    let (text, error) = wrong(&["info", &torn]);
    assert_words(&text, &["l.q_proj: quantized, and l.k_proj is not", "fuse"]);
    assert_words(&error, &["1 thing is wrong"]);
}
