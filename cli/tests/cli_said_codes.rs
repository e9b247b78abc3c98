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

/// Options, the tensor of the codes, the type and shape that it must have, and of what.
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
        (&["--group", "32x32"], "l.weight", "F8_E4M3", [160, 256], " for 160 x 256 cast to e4m3 32x32"),
        (&["--group", "32x1", "--transposed"], "l.weight", "F8_E4M3", [256, 160], " for 160 x 256 cast to e4m3 32x1"),
        (&["--group", "1x32", "--format", "e2m1"], "l.weight", "U8", [160, 128], " for 160 x 256 cast to e2m1 1x32"),
        (&["--recipe", "fp8-128x128"], "l.weight", "F8_E4M3", [160, 256], ", as the metadata says fp8-128x128"),
        (
            &["--recipe", "fp8-row", "--format", "e5m2"],
            "l.weight",
            "F8_E5M2",
            [160, 256],
            ", as the metadata says fp8-row",
        ),
        (&["--recipe", "nvfp4"], "l.weight", "U8", [160, 128], ", as the metadata says nvfp4"),
        (&["--recipe", "mxfp4"], "l.weight", "U8", [160, 128], ", as the metadata says mxfp4"),
        (
            &["--recipe", "nvfp4", "--dialect", "compressed-tensors"],
            "l.weight_packed",
            "U8",
            [160, 128],
            ", as the metadata says nvfp4",
        ),
    ];
    for (options, name, must, shape, of) in ways {
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        for (dtype, is, width) in TYPES {
            retyped(&q, &bad_one, name, dtype, width);
            let found = format!("tensor {name}: is {is} {shape:?}, but must be {must} {shape:?}{of}");
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
            let found = format!("tensor {name}: is U8 {shape:?}, but must be {must} {shape:?}{of}");
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
