//! What a file says beside its tensors: the metadata of its header, and marks of its layers.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::fs;

use common::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use scaled_gemm::checkpoint::{Checkpoint, RECIPE_KEY};
use serde_json::json;

type Metadata<'a> = &'a [(&'a str, &'a str)];

/// A folder of so many shards, each with a matrix and the metadata of its own.
fn sharded(path: &str, shards: &[Metadata<'_>]) {
    fs::create_dir(path).unwrap();
    fs::write(format!("{path}/config.json"), "{}").unwrap();
    let mut map = BTreeMap::new();
    for (i, metadata) in shards.iter().enumerate() {
        let (name, file) = (format!("l.{i}.o_proj.weight"), format!("model-{i}.safetensors"));
        let (_, dtype, shape, bytes) = f32_tensor("w", [16, 32], i as u32);
        let view = TensorView::new(dtype, shape, &bytes).unwrap();
        let metadata: HashMap<String, String> = metadata.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let metadata = (!metadata.is_empty()).then_some(metadata);
        fs::write(format!("{path}/{file}"), safetensors::serialize([(name.clone(), view)], metadata).unwrap()).unwrap();
        map.insert(name, file);
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    fs::write(format!("{path}/model.safetensors.index.json"), index).unwrap();
}

/// The metadata of what was written, without recipes: of each file the same.
fn metadata_of(path: &str) -> BTreeMap<String, String> {
    let of_file = |file: &std::path::PathBuf| -> BTreeMap<String, String> {
        let bytes = fs::read(file).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let all = header.metadata().clone().unwrap_or_default();
        all.into_iter().filter(|(key, _)| !key.starts_with(RECIPE_KEY)).collect()
    };
    let mut all: Vec<_> = Checkpoint::open(path).unwrap().files().iter().map(of_file).collect();
    all.dedup();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// (Of several values that of the first shard was taken without a word.)
#[test]
fn metadata_of_shards_are_kept_and_where_they_differ_it_is_told() {
    let folder = Folder::new();
    let all: [Metadata; 2] =
        [&[("format", "pt"), ("a", "1"), ("b", "2")], &[("format", "pt"), ("b", "2"), ("a", "3"), ("c", "4")]];
    for (name, shards, a, differ) in [("alike", [all[0], &all[1][..2]], "1", false), ("other", all, "1", true)] {
        let [input, q, back] = ["", "-q", "-back"].map(|end| folder.file(&format!("{name}{end}")));
        sharded(&input, &shards);
        let quantized = said(&["quantize", &input, "-o", &q, "--recipe", "fp8-row", "--shard-size", "600B"]);
        let words = [input.as_str(), ": its shards differ in 1 entry of the metadata (a)"].concat();
        let info = good(&["info", &input]);
        for text in [quantized, info] {
            assert_eq!(text.contains(&words), differ, "{name}: {text}");
        }
        // What is written is alike.
        assert!(!said(&["dequantize", &q, "-o", &back, "--shard-size", "1100B"]).contains("differ"));
        for written in [&q, &back] {
            assert_eq!(Checkpoint::open(written).unwrap().files().len(), 2, "{name}");
            let mut want = BTreeMap::from([("format", "pt"), ("a", a), ("b", "2")]);
            want.extend(differ.then_some(("c", "4")));
            let found = metadata_of(written);
            assert_eq!(found.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect::<BTreeMap<_, _>>(), want, "{name}");
        }
    }
}

/// (dequantize wrote `pt`, whatever was there.)
#[test]
fn the_format_of_the_metadata_stays_and_of_a_folder_without_one_it_is_pt() {
    let folder = Folder::new();
    for (i, (metadata, want)) in
        [(&[("format", "mlx")][..], "mlx"), (&[("format", "pt")], "pt"), (&[("a", "1")], "pt"), (&[], "pt")]
            .into_iter()
            .enumerate()
    {
        let [input, q, back] = ["", "-q", "-back"].map(|end| folder.file(&format!("{i}{end}")));
        sharded(&input, &[metadata]);
        good(&["quantize", &input, "-o", &q, "--recipe", "fp8-row"]);
        good(&["dequantize", &q, "-o", &back]);
        let of = |path: &str| metadata_of(path).remove("format");
        assert_eq!([of(&q).as_deref(), of(&back).as_deref()], [Some(want); 2], "{metadata:?}");
        // Of a file nothing is added.
        let [q, back] = ["q", "back"].map(|end| folder.file(&format!("{i}-{end}.safetensors")));
        good(&["quantize", &format!("{input}/model-0.safetensors"), "-o", &q, "--recipe", "fp8-row"]);
        good(&["dequantize", &q, "-o", &back]);
        let said = metadata.iter().find(|(key, _)| *key == "format").map(|(_, format)| *format);
        assert_eq!([of(&q).as_deref(), of(&back).as_deref()], [said; 2], "{metadata:?}");
    }
}

/// (They went without a word.)
#[test]
fn dequantize_tells_of_marks_that_it_leaves_out() {
    let folder = Folder::new();
    let [input, output] = ["in", "out"].map(|name| folder.file(name));
    write(
        &input,
        &[
            ("l.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
            ("l.weight_scale", Dtype::F32, vec![], f32_bytes(&[1.0])),
            ("l.comfy_quant", Dtype::U8, vec![27], br#"{"format": "float8_e4m3fn"}"#.to_vec()),
            ("scaled_fp8", Dtype::F8_E4M3, vec![0], vec![]),
        ],
    );
    let text = said(&["dequantize", &input, "-o", &output]);
    assert_words(&text, &["left out, ComfyUI's marks of quantized layers: 2 (", "l.comfy_quant", "scaled_fp8"]);
    let value = json(&["dequantize", &input, "-o", &output, "--json"]);
    assert_eq!(value["left_out"].as_array().unwrap().len(), 2, "{value}");
    assert_eq!(Checkpoint::open(&output).unwrap().tensors().len(), 1);
}

/// (Whatever had such a name went: a matrix of values, too.)
#[test]
fn what_merely_has_the_name_of_a_mark_is_copied() {
    let folder = Folder::new();
    let [input, output] = ["in", "out"].map(|name| folder.file(name));
    let layer = [
        ("l.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
        ("l.weight_scale", Dtype::F32, vec![], f32_bytes(&[1.0])),
    ];
    let kept = [
        f32_tensor("scaled_fp8", [64, 64], 1),
        ("m.scaled_fp8", Dtype::F32, vec![3], vec![0; 12]),
        ("n.scaled_fp8", Dtype::BF16, vec![], vec![0; 2]),
        ("l.comfy_quant", Dtype::F32, vec![1], vec![0; 4]),
    ];
    for tensor in kept {
        let name = tensor.0;
        write(&input, &[&layer[..], std::slice::from_ref(&tensor)].concat());
        let value = json(&["dequantize", &input, "-o", &output, "--json"]);
        assert_eq!(value["left_out"], json!([]), "{name}");
        assert_eq!(Checkpoint::open(&output).unwrap().bytes(name).unwrap(), tensor.3, "{name}");
    }
    // Of two dimensions it is no text; and what is left out is a mark of the type that it has.
    for (name, dtype, shape, is_mark) in [
        ("l.comfy_quant", Dtype::U8, vec![2, 8], false),
        ("scaled_fp8", Dtype::F8_E5M2, vec![2], true),
        ("m.scaled_fp8", Dtype::F32, vec![], true),
    ] {
        let bytes = shape.iter().product::<usize>() * if dtype == Dtype::F32 { 4 } else { 1 };
        write(&input, &[&layer[..], &[(name, dtype, shape, vec![0x20; bytes])]].concat());
        let value = json(&["dequantize", &input, "-o", &output, "--json"]);
        assert_eq!(value["left_out"] == json!([name]), is_mark, "{name}: {value}");
        assert_eq!(Checkpoint::open(&output).unwrap().get(name).is_none(), is_mark, "{name}");
    }
    // Codes of that name are codes: without a scale they are refused, and not passed over.
    write(&input, &[&layer[..], &[("scaled_fp8", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256])]].concat());
    assert_words(&bad(2, &["dequantize", &input, "-o", &output]), &["tensor scaled_fp8: is FP8 but has no scale"]);
}

/// (Programs had to read what is said to people.)
#[test]
fn what_is_said_beside_a_result_is_in_its_json() {
    let folder = Folder::new();
    let [input, q, back, again] = ["in", "q", "back", "again"].map(|name| folder.file(name));
    let shards: [Metadata<'_>; 2] = [&[("author", "a")], &[("author", "b")]];
    sharded(&input, &shards);
    let lines = |args: &[&str]| {
        let output = run_on("cpu", args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{error}");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let said: Vec<String> = error.lines().map(|line| line.strip_prefix("scaled-gemm: ").unwrap().into()).collect();
        // The device has a place of its own.
        assert!(said[0].starts_with("device "), "{said:?}");
        assert_eq!(value["notes"], json!(said[1..]), "{args:?}");
        said.join("\n")
    };
    let words = ["its shards differ in 1 entry of the metadata (author)"];
    let quantize = ["quantize", &input, "--recipe", "fp8-row", "--json"];
    assert_words(&lines(&[&quantize[..], &["--dry-run"]].concat()), &words);
    assert_words(&lines(&[&quantize[..], &["-o", &q]].concat()), &words);
    // Shards of the result are one file: nothing differs, and something stays.
    let tensors: Vec<Tensor> = vec![
        ("l.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
        ("l.weight_scale", Dtype::F32, vec![], f32_bytes(&[1.0])),
        ("m.qweight", Dtype::I32, vec![16, 16], vec![0; 1024]),
    ];
    write(&back, &tensors);
    let words = ["1 tensor (m.qweight) holds codes in a format that is not read here"];
    assert_words(&lines(&["dequantize", &back, "-o", &again, "--json"]), &words);
}

/// (A mark of another type or shape was read as nothing: the scales of NVFP4 lie otherwise then, and the values were garbage; that of FP8 stayed
/// beside plain values, which `info` refused. ComfyUI reads the bytes, whatever holds them.)
#[test]
fn a_mark_is_read_by_its_bytes_whatever_their_type_and_shape() {
    let folder = Folder::new();
    let [input, q, marked, output] = ["in", "q", "marked", "out"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("l.weight", [128, 256], 1)]);
    for recipe in ["nvfp4", "fp8-tensor"] {
        good(&["quantize", &input, "-o", &q, "--recipe", recipe, "--dialect", "comfyui"]);
        good(&["dequantize", &q, "-o", &output, "--dtype", "f32"]);
        let want = read_f32(&output, "l.weight");
        let read = Checkpoint::open(&q).unwrap();
        let kept = read.tensors().iter().filter(|tensor| tensor.name != "l.comfy_quant");
        let kept: Vec<Tensor<'_>> = kept
            .map(|tensor| (&*tensor.name, tensor.dtype, tensor.shape.clone(), read.bytes(&tensor.name).unwrap()))
            .collect();
        let mut mark = read.bytes("l.comfy_quant").unwrap();
        mark.resize(mark.len().next_multiple_of(4), b' ');
        let number = mark.len();
        for (dtype, shape) in [
            (Dtype::U8, vec![number]),
            (Dtype::U8, vec![1, number]),
            (Dtype::I8, vec![number]),
            (Dtype::I8, vec![2, number / 2]),
            (Dtype::F32, vec![number / 4]),
            (Dtype::BF16, vec![2, number / 4]),
        ] {
            let case = format!("{recipe}: {dtype:?} {shape:?}");
            write(&marked, &[&kept[..], &[("l.comfy_quant", dtype, shape, mark.clone())]].concat());
            good(&["info", &marked]);
            let value = json(&["dequantize", &marked, "-o", &output, "--dtype", "f32", "--json"]);
            assert_eq!(value["left_out"], json!(["l.comfy_quant"]), "{case}");
            assert_eq!(read_f32(&output, "l.weight"), want, "{case}");
            assert_eq!(Checkpoint::open(&output).unwrap().tensors().len(), 1, "{case}");
            good(&["info", &output]);
        }
    }
    // What is no such text is none for `info`, either.
    write(&marked, &[f32_tensor("l.weight", [16, 16], 1), ("l.comfy_quant", Dtype::F32, vec![1], vec![0; 4])]);
    good(&["info", &marked]);
}
