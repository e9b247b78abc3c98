//! Codes that the metadata speak of, in types that are not read as codes. (They were copied in silence, and listed as plain tensors.)

mod common;

use std::collections::HashMap;
use std::fs;

use common::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

/// Types that no codes have, and F8_E8M0, which scales alone have; the last four are those of plain matrices.
const TYPES: [(Dtype, &str, usize); 13] = [
    (Dtype::I8, "I8", 1),
    (Dtype::BOOL, "BOOL", 1),
    (Dtype::F8_E8M0, "F8_E8M0", 1),
    (Dtype::U16, "U16", 2),
    (Dtype::I16, "I16", 2),
    (Dtype::U32, "U32", 4),
    (Dtype::I32, "I32", 4),
    (Dtype::I64, "I64", 8),
    (Dtype::U64, "U64", 8),
    (Dtype::BF16, "BF16", 2),
    (Dtype::F16, "F16", 2),
    (Dtype::F32, "F32", 4),
    (Dtype::F64, "F64", 8),
];

/// Options, the tensor of the codes, the type that it must have, its shape, and of what.
type Way = (&'static [&'static str], &'static str, &'static str, [usize; 2], &'static str);

/// The file with a tensor in another type, and all else as it is.
fn retyped(from: &str, to: &str, name: &str, dtype: Dtype, width: usize) {
    let bytes = fs::read(from).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let entries: HashMap<String, String> = header.metadata().clone().unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let shape = file.tensor(name).unwrap().shape().to_vec();
    let other = vec![1; width * shape.iter().product::<usize>()];
    let views = file.iter().map(|(tensor, view)| match tensor == name {
        true => (tensor, TensorView::new(dtype, shape.clone(), &other).unwrap()),
        false => (tensor, view),
    });
    fs::write(to, safetensors::serialize(views.collect::<Vec<_>>(), Some(entries)).unwrap()).unwrap();
}

/// Both commands say what the type is, what it must be, and what to do.
#[test]
fn codes_of_another_type_than_the_metadata_say_are_refused() {
    let folder = Folder::new();
    let [input, q, bad_one, back] = ["in", "q", "bad", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1), f32_tensor("v.weight", [160, 256], 2)]);
    let ways: [Way; 8] = [
        (&["--group", "32x32"], "l.weight", "F8_E4M3", [160, 256], "cast to e4m3 32x32"),
        (&["--group", "32x1", "--transposed"], "l.weight", "F8_E4M3", [256, 160], "cast to e4m3 32x1"),
        (&["--group", "1x32", "--format", "e2m1"], "l.weight", "U8", [160, 128], "cast to e2m1 1x32"),
        (&["--recipe", "fp8-128x128"], "l.weight", "F8_E4M3", [160, 256], "fp8-128x128"),
        (&["--recipe", "fp8-row", "--format", "e5m2"], "l.weight", "F8_E5M2", [160, 256], "fp8-row"),
        (&["--recipe", "nvfp4"], "l.weight", "U8", [160, 128], "nvfp4"),
        (&["--recipe", "mxfp4"], "l.weight", "U8", [160, 128], "mxfp4"),
        (&["--recipe", "nvfp4", "--dialect", "compressed-tensors"], "l.weight_packed", "U8", [160, 128], "nvfp4"),
    ];
    for (options, name, must, shape, of) in ways {
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        for (dtype, is, width) in TYPES {
            retyped(&q, &bad_one, name, dtype, width);
            let found = format!("tensor {name}: is {is} {shape:?}, but must be {must}, as the metadata says: {of}");
            let words = [found.as_str(), "; quantize it again"];
            assert_words(&bad(2, &["dequantize", &bad_one, "-o", &back]), &words);
            assert!(!fs::exists(&back).unwrap());
            let (text, _) = wrong(&["info", &bad_one]);
            assert_words(&text, &words);
            // What is no quantized matrix has an entry that was left.
            let is_plain = ["BF16", "F16", "F32", "F64"].contains(&is);
            let left = text.contains("or, if it is plain now, take scaled_gemm.l.weight out of the metadata");
            assert_eq!(left, is_plain, "{text}");
        }
        // FP8 in a byte that is none.
        if must != "U8" {
            retyped(&q, &bad_one, name, Dtype::U8, 1);
            let found = format!("tensor {name}: is U8 {shape:?}, but must be {must}, as the metadata says: {of}");
            assert_words(&bad(2, &["dequantize", &bad_one, "-o", &back]), &[&found, "; quantize it again"]);
        }
    }
}

/// A matrix that is plain by now is quantized, and the entry that was left is replaced.
#[test]
fn plain_matrices_with_an_entry_that_was_left_are_quantized() {
    let folder = Folder::new();
    let [input, q, left, again, back] =
        ["in", "q", "left", "again", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    let plain = f32_tensor("l.weight", [160, 256], 1);
    write(&input, std::slice::from_ref(&plain));
    good(&["quantize", &input, "-o", &q, "--group", "32x32"]);
    let (_, header) = SafeTensors::read_metadata(&fs::read(&q).unwrap()).unwrap();
    let view = TensorView::new(Dtype::F32, plain.2.clone(), &plain.3).unwrap();
    let file = safetensors::serialize([("l.weight", view)], header.metadata().clone()).unwrap();
    fs::write(&left, &file).unwrap();
    good(&["quantize", &left, "-o", &again, "--group", "1x32"]);
    assert_words(&good(&["info", &again]), &["cast to e4m3 1x32"]);
    good(&["dequantize", &again, "-o", &back]);
    // Nor is its model one that is quantized.
    let [model, written] = ["model", "written"].map(|name| folder.file(name));
    model_folder(&model, &[plain], Some(serde_json::json!({})));
    fs::write(format!("{model}/model.safetensors"), file).unwrap();
    let options = ["--recipe", "fp8-row", "--dialect", "compressed-tensors"];
    good(&[&["quantize", &model, "-o", &written][..], &options].concat());
    good(&["info", &written]);
}

/// The file without some tensors, another in a type, and the entries as they are.
fn without(from: &str, to: &str, lost: &[&str], (name, dtype, width): (&str, Dtype, usize)) {
    let bytes = fs::read(from).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let shape = file.tensor(name).unwrap().shape().to_vec();
    let other = vec![1; width * shape.iter().product::<usize>()];
    let views = file.iter().filter(|(tensor, _)| !lost.contains(tensor)).map(|(tensor, view)| match tensor == name {
        true => (tensor, TensorView::new(dtype, shape.clone(), &other).unwrap()),
        false => (tensor, view),
    });
    fs::write(to, safetensors::serialize(views.collect::<Vec<_>>(), header.metadata().clone()).unwrap()).unwrap();
}

/// What is plain has no scale either. (Of casts the remedy was a file that carries the scales, which is none for it.)
#[test]
fn plain_matrices_with_an_entry_that_was_left_are_told_so_without_scales_too() {
    let folder = Folder::new();
    let [input, q, left, back] = ["in", "q", "left", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1)]);
    let ways: [(&[&str], &str, &str); 5] = [
        (&["--group", "32x32"], "F8_E4M3", "cast to e4m3 32x32"),
        (&["--group", "32x1", "--transposed"], "F8_E4M3", "cast to e4m3 32x1"),
        (&["--group", "1x32", "--format", "e2m1"], "U8", "cast to e2m1 1x32"),
        (&["--recipe", "fp8-128x128"], "F8_E4M3", "fp8-128x128"),
        (&["--recipe", "nvfp4"], "U8", "nvfp4"),
    ];
    for (options, must, of) in ways {
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        for (dtype, is, width) in &TYPES[9..] {
            let lost = ["l.weight_scale", "l.weight_scale_inv", "l.weight_scale_2"];
            without(&q, &left, &lost, ("l.weight", *dtype, *width));
            let found = format!("tensor l.weight: is {is} [");
            let remedy = "; quantize it again, or, if it is plain now, take scaled_gemm.l.weight out of the metadata";
            let words = [found.as_str(), &format!("must be {must}"), "as the metadata says", of, remedy];
            let (text, _) = wrong(&["info", &left]);
            for text in [bad(2, &["dequantize", &left, "-o", &back]), text] {
                assert_words(&text, &words);
                assert!(!text.contains("none is ever assumed"), "{text}");
            }
        }
        // Codes are told what they lack.
        let must = if must == "U8" { Dtype::U8 } else { Dtype::F8_E4M3 };
        let lost = ["l.weight_scale", "l.weight_scale_inv", "l.weight_scale_2"];
        without(&q, &left, &lost, ("l.weight", must, 1));
        assert_words(&bad(2, &["dequantize", &left, "-o", &back]), &["has no scale", "none is ever assumed"]);
    }
}

/// What is copied plain is not said to be codes by what `quantize` writes. (Entries were copied as they were, and no command read the file.)
#[test]
fn entries_that_were_left_are_not_copied_with_plain_matrices() {
    let folder = Folder::new();
    let [input, q, left, o, back] =
        ["in", "q", "left", "o", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1), f32_tensor("v.weight", [160, 256], 2)]);
    for options in [&["--group", "32x32"][..], &["--recipe", "fp8-128x128"], &["--recipe", "nvfp4"]] {
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        let (_, header) = SafeTensors::read_metadata(&fs::read(&q).unwrap()).unwrap();
        let mut entries = header.metadata().clone().unwrap();
        entries.insert("of".into(), "another".into());
        for (dtype, width) in [(Dtype::BF16, 2), (Dtype::F16, 2), (Dtype::F32, 4), (Dtype::F64, 8)] {
            // F64 is copied whatever is asked for.
            let asked: &[&[&str]] = match dtype {
                Dtype::F64 => &[&["--recipe", "fp8-row"]],
                _ => &[
                    &["--recipe", "fp8-row", "--only", "v.weight"],
                    &["--group", "1x32", "--exclude", "l.weight"],
                    &["--recipe", "nvfp4", "--only", "v.weight"],
                ],
            };
            let plain = vec![1; 160 * 256 * width];
            let v = f32_tensor("v.weight", [160, 256], 2);
            let views = [("l.weight", dtype, &plain), ("v.weight", Dtype::F32, &v.3)];
            let views =
                views.map(|(name, dtype, bytes)| (name, TensorView::new(dtype, vec![160, 256], bytes).unwrap()));
            fs::write(&left, safetensors::serialize(views, Some(entries.clone())).unwrap()).unwrap();
            for asked in asked {
                good(&[&["quantize", &left, "-o", &o][..], asked].concat());
                let bytes = fs::read(&o).unwrap();
                let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
                let mut keys: Vec<_> = header.metadata().as_ref().unwrap().keys().map(String::as_str).collect();
                keys.sort_unstable();
                assert_eq!(keys, ["format", "of", "scaled_gemm.v.weight"], "{options:?} {asked:?}");
                good(&["info", &o]);
                good(&["dequantize", &o, "-o", &back]);
                let bytes = fs::read(&back).unwrap();
                let file = SafeTensors::deserialize(&bytes).unwrap();
                assert_eq!(file.tensor("l.weight").unwrap().data(), plain, "{options:?} {asked:?}");
            }
        }
    }
    // Codes that are copied keep what they are read by.
    good(&["quantize", &input, "-o", &q, "--group", "32x32", "--only", "l.weight"]);
    good(&["quantize", &q, "-o", &o, "--group", "1x32", "--only", "v.weight"]);
    assert_words(&good(&["info", &o]), &["cast to e4m3 32x32", "cast to e4m3 1x32"]);
}

/// Packed codes of the right type, without their scales, are told so, once. (Their matrix was also told not to be in the file.)
#[test]
fn packed_codes_that_lost_their_scales_are_told_once() {
    let folder = Folder::new();
    let [input, q, left, back] = ["in", "q", "left", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1)]);
    good(&["quantize", &input, "-o", &q, "--recipe", "nvfp4", "--dialect", "compressed-tensors"]);
    let lost = ["l.weight_scale", "l.weight_global_scale"];
    without(&q, &left, &lost, ("l.weight_packed", Dtype::U8, 1));
    let right = "tensor l.weight_packed: holds packed codes, and no scale of theirs is there; fetch or write";
    let text = good(&["info", &left]);
    assert_words(&text, &[right]);
    assert!(!text.contains("is not in the file"), "{text}");
    let text = bad(2, &["dequantize", &left, "-o", &back]);
    assert_words(&text, &[right]);
    // The blocks of gpt-oss, likewise.
    let (_, header) = SafeTensors::read_metadata(&fs::read(&q).unwrap()).unwrap();
    let entry = header.metadata().as_ref().unwrap()["scaled_gemm.l.weight"].replace("nvfp4", "mxfp4");
    let blocks = vec![1; 2 * 64 * 4 * 16];
    let view = TensorView::new(Dtype::U8, vec![2, 64, 4, 16], &blocks).unwrap();
    let entries = HashMap::from([("scaled_gemm.e.gate_up_proj".to_string(), entry)]);
    fs::write(&left, safetensors::serialize([("e.gate_up_proj_blocks", view)], Some(entries)).unwrap()).unwrap();
    let right = "tensor e.gate_up_proj_blocks: holds codes of MXFP4 in the blocks of gpt-oss, and their scales e.gate_up_proj_scales are not";
    let text = good(&["info", &left]);
    assert_words(&text, &[right]);
    assert!(!text.contains("is not in the file"), "{text}");
}

/// A file of these tensors with these entries.
fn with_entries(path: &str, tensors: &[Tensor], entries: &HashMap<String, String>) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    fs::write(path, safetensors::serialize(views.collect::<Vec<_>>(), Some(entries.clone())).unwrap()).unwrap();
}

fn entries(path: &str) -> HashMap<String, String> {
    SafeTensors::read_metadata(&fs::read(path).unwrap()).unwrap().1.metadata().clone().unwrap_or_default()
}

fn f64_tensor<'a>(name: &'a str, shape: [usize; 2]) -> Tensor<'a> {
    (name, Dtype::F64, shape.to_vec(), vec![0; 8 * shape[0] * shape[1]])
}

/// (Its model was refused as one that is quantized, where the values are F64, or have the name of packed codes.)
#[test]
fn entries_that_were_left_make_no_quantized_model_of_plain_values() {
    let folder = Folder::new();
    let [input, q, o] = ["in", "q", "o"].map(|name| folder.file(name));
    for (dialect, tensor) in [
        ("plain", f64_tensor("l.weight", [128, 128])),
        ("compressed-tensors", f32_tensor("l.weight_packed", [128, 128], 1)),
    ] {
        write(&input, &[f32_tensor("l.weight", [128, 128], 1)]);
        let _ = fs::remove_file(&q);
        good(&["quantize", &input, "-o", &q, "--recipe", "nvfp4", "--dialect", dialect]);
        let model = folder.file(&format!("model-{dialect}"));
        let tensors = [tensor, f32_tensor("v.weight", [128, 128], 2)];
        model_folder(&model, &tensors, Some(serde_json::json!({"architectures": ["X"]})));
        with_entries(&format!("{model}/model.safetensors"), &tensors, &entries(&q));
        let _ = fs::remove_dir_all(&o);
        good(&["quantize", &model, "-o", &o, "--recipe", "fp8-row", "--exclude", "l.weight"]);
        let mut keys: Vec<_> = entries(&format!("{o}/model.safetensors")).into_keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, ["format", "scaled_gemm.v.weight"], "{dialect}");
    }
}

/// (The remedy was to quantize it again alone, where the entry is the fault.)
#[test]
fn a_broken_entry_of_a_cast_that_was_left_is_told_so() {
    let folder = Folder::new();
    let [input, q, left, back] = ["in", "q", "left", "back"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1)]);
    good(&["quantize", &input, "-o", &q, "--group", "32x32"]);
    let broken = entries(&q).into_iter().map(|(key, entry)| (key, entry.replace("32x32", "3x7"))).collect();
    with_entries(&left, &[f32_tensor("l.weight", [160, 256], 1)], &broken);
    let remedy = "; quantize it again, or, if it is plain now, take scaled_gemm.l.weight out of the metadata";
    let (text, _) = wrong(&["info", &left]);
    for text in [bad(2, &["dequantize", &left, "-o", &back]), text] {
        assert_words(&text, &["tensor l.weight: its recipe in the metadata has the unknown group", remedy]);
    }
}

/// (A scale that was left stood in the way, or was copied beside the plain matrix, which `info` calls wrong.)
#[test]
fn scales_that_were_left_go_with_their_entry() {
    let folder = Folder::new();
    let [input, q, left, o] = ["in", "q", "left", "o"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1)]);
    let ways: [(&[&str], usize); 6] = [
        (&["--group", "32x32"], 1),
        (&["--group", "1x32", "--scales", "ue8m0"], 1),
        (&["--recipe", "fp8-128x128"], 1),
        (&["--recipe", "nvfp4"], 2),
        (&["--recipe", "nvfp4", "--dialect", "compressed-tensors"], 2),
        (&["--recipe", "mxfp8", "--dialect", "comfyui"], 1),
    ];
    for (options, scales) in ways {
        let _ = fs::remove_file(&q);
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        let bytes = fs::read(&q).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let old: Vec<_> =
            file.tensors().into_iter().filter(|(name, _)| name != "l.weight" && name != "l.weight_packed").collect();
        // ComfyUI's mark goes with them. (It was copied, and `info` called it wrong.)
        let marks = usize::from(options.contains(&"comfyui"));
        assert_eq!(old.len(), scales + marks, "{options:?}");
        let plain = [f32_tensor("l.weight", [160, 256], 1), f32_tensor("v.weight", [160, 256], 2)];
        let mut tensors = plain.to_vec();
        tensors.extend(
            old.iter().map(|(name, view)| (name.as_str(), view.dtype(), view.shape().to_vec(), view.data().to_vec())),
        );
        // A scale of another shape is none of the entry's.
        let other = ("v.weight_scale_2", Dtype::F32, vec![7], f32_bytes(&[1.0; 7]));
        with_entries(&left, &tensors, &entries(&q));
        for how in [&["--exclude", "l.weight"][..], &[]] {
            let text = good(&[&["quantize", &left, "-o", &o, "--recipe", "fp8-row"][..], how].concat());
            assert_words(
                &text,
                &[&format!(
                    "left out, scales of what a matrix was that is plain now, by an entry of the metadata, which is left out, too: {scales} ("
                )],
            );
            let text = good(&["info", &o]);
            assert!(!text.contains("wrong"), "{text}");
            assert!(!text.contains("comfy_quant"), "{text}");
        }
        // Where nothing else is to be quantized they are told, too.
        let error = bad(2, &["quantize", &left, "-o", &o, "--recipe", "fp8-row", "--exclude", "."]);
        assert_words(
            &error,
            &[
                "no matrix to quantize",
                "; to be left out, scales of what a matrix was that is plain now",
                "l.weight_scale",
            ],
        );
        // So does the layer of a list of marks.
        let list = r#"{"format_version":"1.0","layers":{"l":{"format":"mxfp8"}}}"#;
        let with_list = HashMap::from([("_quantization_metadata".to_string(), list.to_string())]);
        with_entries(&left, &tensors, &entries(&q).into_iter().chain(with_list).collect());
        good(&["quantize", &left, "-o", &o, "--recipe", "fp8-row", "--exclude", "^l"]);
        assert_eq!(entries(&o).get("_quantization_metadata"), None, "{options:?}");
        with_entries(&left, &[&tensors[..], std::slice::from_ref(&other)].concat(), &entries(&q));
        let error = bad(2, &["quantize", &left, "-o", &o, "--recipe", "fp8-row"]);
        assert_words(&error, &["v.weight_scale_2: is there, and would be read as a scale of v.weight"]);
    }
}

/// (Of such entries nothing was said.)
#[test]
fn entries_of_matrices_that_are_not_there_are_named() {
    let folder = Folder::new();
    let [input, q, left, o] = ["in", "q", "left", "o"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("l.weight", [128, 256], 1), f32_tensor("v.weight", [128, 256], 2)]);
    for options in [&["--group", "32x32"][..], &["--recipe", "nvfp4", "--dialect", "compressed-tensors"]] {
        let _ = fs::remove_file(&q);
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        assert!(!good(&["info", &q]).contains("no codes are there"));
        with_entries(&left, &[f32_tensor("other.weight", [128, 256], 1)], &entries(&q));
        let words = format!(
            "{left}: the metadata say how 2 matrices (l.weight, v.weight) were quantized, of which no codes are there; take the entries \
             scaled_gemm.NAME out of them, or fetch what is missing"
        );
        assert_words(&good(&["info", &left]), &[&words]);
    }
    // (What somebody else wrote was said to be how a matrix was quantized.)
    let other = HashMap::from(["other", "x"].map(|name| (format!("scaled_gemm.{name}"), "hello".to_string())));
    with_entries(&left, &[f32_tensor("other.weight", [128, 256], 1)], &other);
    assert!(!good(&["info", &left]).contains("the metadata say"));
    // Of a scale without its codes it is said once.
    let bytes = fs::read(&q).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let rest: Vec<_> = file.tensors().into_iter().filter(|(name, _)| name != "l.weight_packed").collect();
    let rest: Vec<Tensor> = rest
        .iter()
        .map(|(name, view)| (name.as_str(), view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    with_entries(&left, &rest, &entries(&q));
    let (text, _) = wrong(&["info", &left]);
    assert_words(&text, &["neither tensor l.weight nor l.weight_packed is there"]);
    assert!(!text.contains("no codes are there"), "{text}");
    // Each of several shards has the entries of its own matrices, those of gpt-oss's blocks too. (All had them.)
    let model = folder.file("model");
    let bf16 =
        |name, shape: [usize; 3]| (name, Dtype::BF16, shape.to_vec(), vec![0; 2 * shape.iter().product::<usize>()]);
    let [up, down] = ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"];
    model_folder(
        &model,
        &[bf16(up, [2, 64, 128]), bf16(down, [2, 64, 64])],
        Some(serde_json::json!({"model_type": "gpt_oss", "architectures": ["X"]})),
    );
    good(&["quantize", &model, "-o", &o, "--recipe", "mxfp4", "--shard-size", "10KB"]);
    for shard in 1..3 {
        let keys: Vec<_> = entries(&format!("{o}/model-0000{shard}-of-00002.safetensors"))
            .into_keys()
            .filter(|key| key.starts_with("scaled"))
            .collect();
        assert_eq!(keys.len(), 1, "{keys:?}");
    }
}

/// (Whatever could not be read, and takes two codes a byte, was called NVFP4.)
#[test]
fn codes_without_their_scales_are_called_what_the_metadata_say() {
    let folder = Folder::new();
    let [input, q, left, o] = ["in", "q", "left", "o"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1), f32_tensor("v.weight", [160, 256], 2)]);
    let ways: [(&[&str], Dtype, &str); 4] = [
        (&["--recipe", "mxfp4"], Dtype::U8, "MXFP4 already"),
        (&["--group", "1x32", "--format", "e2m1"], Dtype::U8, "a cast already"),
        (&["--group", "1x32"], Dtype::F8_E4M3, "a cast already"),
        (&["--recipe", "nvfp4"], Dtype::U8, "NVFP4 already"),
    ];
    for (options, dtype, what) in ways {
        good(&[&["quantize", &input, "-o", &q, "--only", "l.weight"][..], options].concat());
        without(&q, &left, &["l.weight_scale", "l.weight_scale_2"], ("l.weight", dtype, 1));
        let text = good(&["quantize", &left, "-o", &o, "--recipe", "fp8-row"]);
        assert_words(&text, &[&format!("copied as it is, {what}: 1 (l.weight")]);
    }
}

/// The same of gpt-oss's experts, whose rows are columns of the plain ones. (Their scales stood in the way, or were copied, which `info` calls wrong.)
#[test]
fn scales_of_experts_that_were_left_go_with_their_entry() {
    let folder = Folder::new();
    let [plain, q, left, o] = ["plain", "q", "left", "o"].map(|name| folder.file(name));
    let config = || Some(serde_json::json!({"model_type": "gpt_oss", "architectures": ["X"]}));
    let [up, down] = ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"];
    let experts = || {
        [(up, [2, 64, 128]), (down, [2, 64, 64])]
            .map(|(name, shape)| (name, Dtype::BF16, shape.to_vec(), vec![1; 2 * shape.iter().product::<usize>()]))
    };
    model_folder(&plain, &experts(), config());
    good(&["quantize", &plain, "-o", &q, "--recipe", "mxfp4"]);
    let bytes = fs::read(format!("{q}/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let all = file.tensors();
    let scales = all.iter().filter(|(name, _)| name.ends_with("_scales"));
    let scales = scales.map(|(name, view)| (name.as_str(), view.dtype(), view.shape().to_vec(), view.data().to_vec()));
    let tensors: Vec<Tensor> = experts().into_iter().chain(scales).collect();
    assert_eq!(tensors.len(), 4);
    model_folder(&left, &tensors, config());
    with_entries(&format!("{left}/model.safetensors"), &tensors, &entries(&format!("{q}/model.safetensors")));
    for how in [&["--recipe", "mxfp4"][..], &["--recipe", "fp8-row", "--dialect", "plain"]] {
        let _ = fs::remove_dir_all(&o);
        let text = good(&[&["quantize", &left, "-o", &o][..], how].concat());
        assert_words(&text, &["left out, scales of what a matrix was that is plain now", ": 2 ("]);
        let text = good(&["info", &o]);
        assert!(!text.contains("wrong"), "{text}");
    }
}

/// (ComfyUI's mark stayed beside the plain matrix, and the layer was refused as one whose codes are of another type.)
#[test]
fn marks_that_were_left_go_with_their_entry() {
    let folder = Folder::new();
    let [input, q, left, o] = ["in", "q", "left", "o"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1)]);
    good(&["quantize", &input, "-o", &q, "--recipe", "mxfp8", "--dialect", "comfyui"]);
    let bytes = fs::read(&q).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mark = file.tensor("l.comfy_quant").unwrap();
    let mark = ("l.comfy_quant", mark.dtype(), mark.shape().to_vec(), mark.data().to_vec());
    let tensors = [f32_tensor("l.weight", [160, 256], 1), f32_tensor("v.weight", [160, 256], 2), mark];
    let mut old = entries(&q);
    old.insert("_quantization_metadata".into(), r#"{"layers":{"l":{"format":"mxfp8"}}}"#.into());
    with_entries(&left, &tensors, &old);
    for (how, what) in [(&["--exclude", "l.weight"][..], "plain now, by an entry"), (&[], "quantized now")] {
        let text = good(&[&["quantize", &left, "-o", &o, "--recipe", "fp8-row"][..], how].concat());
        assert_words(&text, &[&format!("left out, ComfyUI's mark of a layer that is {what}")]);
        let text = good(&["info", &o]);
        assert!(!text.contains("wrong"), "{text}");
        assert!(!entries(&o).contains_key("_quantization_metadata"));
    }
}

/// (Their codes were copied without a word, as what they are already, where `info` calls the file wrong.)
#[test]
fn what_cannot_be_read_and_is_copied_is_named() {
    let folder = Folder::new();
    let [input, q, left, o] = ["in", "q", "left", "o"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("l.weight", [160, 256], 1), f32_tensor("v.weight", [160, 256], 2)]);
    let again = |words: &str| {
        let args = ["quantize", &left, "-o", &o, "--recipe", "fp8-row"];
        let output = run_on("cpu", &args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        assert_words(&text, &[&format!("scaled-gemm: copied as it is: {left}: tensor {words}")]);
        let (text, _) = wrong(&["info", &o]);
        assert_words(&text, &[&format!("{o}: tensor {words}")]);
    };
    good(&["quantize", &input, "-o", &q, "--recipe", "nvfp4", "--only", "l.weight"]);
    without(&q, &left, &["l.weight_scale_2"], ("l.weight", Dtype::U8, 1));
    again("l.weight: is NVFP4 but has no scale l.weight_scale_2; use a file");
    without(&q, &left, &[], ("l.weight", Dtype::I8, 1));
    again("l.weight: is I8 [160, 128], but must be U8, as the metadata says: nvfp4; quantize it again");
    good(&["quantize", &input, "-o", &q, "--group", "1x32", "--only", "l.weight"]);
    without(&q, &left, &["l.weight_scale"], ("l.weight", Dtype::F8_E4M3, 1));
    again("l.weight: is cast to e4m3 1x32 row-major but has no scale l.weight_scale; use a file");
    // Of a file without metadata, likewise.
    let [codes, plain] =
        [("l.weight", Dtype::F8_E4M3, vec![16, 32], vec![0; 512]), f32_tensor("v.weight", [16, 32], 2)];
    write(&left, &[codes, plain]);
    again(
        "l.weight: is FP8 but has no scale: none of l.weight_scale, l.weight_scale_inv and l.scale_weight is in the file; use a file",
    );
}

/// (All was called NVFP4.)
#[test]
fn what_takes_a_byte_is_no_nvfp4_by_an_entry_that_is_none() {
    let folder = Folder::new();
    let [input, q, file, o] = ["in", "q", "file", "o"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("w", [32, 64], 1)]);
    good(&["quantize", &input, "-o", &q, "--group", "1x32"]);
    let e4m3 = entries(&q)["scaled_gemm.w"].clone();
    good(&["quantize", &input, "-o", &q, "--recipe", "nvfp4"]);
    let nvfp4 = entries(&q)["scaled_gemm.w"].clone();
    for (text, is_nvfp4) in [("hello", false), (&e4m3, false), (&nvfp4, true)] {
        let tensors = [("w", Dtype::U8, vec![32, 32], vec![0x35; 1024]), f32_tensor("v", [32, 64], 2)];
        with_entries(&file, &tensors, &HashMap::from([("scaled_gemm.w".to_string(), text.to_string())]));
        let said = good(&["quantize", &file, "-o", &o, "--recipe", "fp8-row"]);
        assert_eq!(said.contains("NVFP4 already: 1 (w "), is_nvfp4, "{said}");
        let words = "U8 with an entry in the metadata that is no recipe of two codes a byte: 1 (w ";
        assert_eq!(said.contains(words), !is_nvfp4, "{said}");
    }
}
