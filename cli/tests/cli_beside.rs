//! What lies beside a matrix: marks of what its layer was before, factors of activations, and low-rank parts.

mod common;

use std::collections::HashMap;
use std::fs;

use common::quantized::Model;
use common::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

const MARKS: &str = "_quantization_metadata";

/// Writes a file with metadata of this key.
fn write_marked(path: &str, tensors: &[Tensor], marks: Option<&Value>) {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.to_string(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()))
        .collect();
    let metadata = marks.map(|marks| HashMap::from([(MARKS.to_string(), marks.to_string())]));
    fs::write(path, safetensors::serialize(views, metadata).unwrap()).unwrap();
}

fn metadata(path: &str) -> HashMap<String, String> {
    let bytes = fs::read(path).unwrap();
    SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap_or_default()
}

fn names(path: &str) -> Vec<String> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.names().into_iter().map(String::from).collect()
}

fn mark<'a>(name: &'a str, format: &str) -> Tensor<'a> {
    let text = json!({"format": format}).to_string().into_bytes();
    (name, Dtype::U8, vec![text.len()], text)
}

/// SQNR of the layer `l` as it comes back.
fn sqnr(folder: &Folder, file: &str) -> f64 {
    let plain = folder.file("plain.safetensors");
    let _ = fs::remove_file(&plain);
    good(&["dequantize", file, "-o", &plain, "--dtype", "f32"]);
    sqnr_db(&values(128 * 256, 1), &read_f32(&plain, "l.weight").1)
}

/// (Rows were read as tiles, by a mark of what the layer had been: 10 dB in the place of 20.)
#[test]
fn marks_of_what_a_layer_was_are_left_out() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in.safetensors"), folder.file("out.safetensors"));
    let weight = || f32_tensor("l.weight", [128, 256], 1);
    let other = || f32_tensor("other.weight", [128, 128], 2);
    let all = json!({"format_version": "1.0", "layers": {"l": {"format": "nvfp4"}, "other": {"format": "nvfp4"}}});
    let (recipes, dialects) =
        ([("nvfp4", 18.0), ("mxfp8", 25.0)], ["plain", "modelopt", "compressed-tensors", "comfyui"]);
    for ((recipe, least), dialect) in recipes.into_iter().flat_map(|r| dialects.map(|d| (r, d))) {
        // One mark of each kind at a time, and of a layer that stays as it is.
        for by_tensor in [true, false] {
            let marks = [mark("l.comfy_quant", "nvfp4"), mark("other.comfy_quant", "nvfp4")];
            match by_tensor {
                true => write_marked(&input, &[&[weight(), other()][..], &marks].concat(), None),
                false => write_marked(&input, &[weight(), other()], Some(&all)),
            }
            let args = ["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect, "--only", "^l"];
            let _ = fs::remove_file(&output);
            let text = good(&args);
            let case = format!("{recipe} {dialect} by tensor: {by_tensor}: {text}");
            assert!(sqnr(&folder, &output) > least, "{case}");
            let own = if dialect == "comfyui" { 1 } else { 0 };
            let left = names(&output).iter().filter(|name| *name == "l.comfy_quant").count();
            assert_eq!(left, own, "{case}");
            if by_tensor {
                assert_words(&text, &["left out, ComfyUI's mark of a layer that is quantized now: 1 (l.comfy_quant ["]);
                let args = [&args[..], &["--json"]].concat();
                fs::remove_file(&output).unwrap();
                assert_eq!(json(&args)["left_out"], json!(["l.comfy_quant"]), "{case}");
                assert!(names(&output).contains(&"other.comfy_quant".to_string()), "{case}");
            } else {
                let left: Value = serde_json::from_str(&metadata(&output)[MARKS]).unwrap();
                assert_eq!(left, json!({"format_version": "1.0", "layers": {"other": {"format": "nvfp4"}}}), "{case}");
            }
        }
    }
    // Where none is left, the list goes; where none of it is quantized, it is as it was.
    for (layer, left) in [("l", None), ("x", Some(r#"{"layers":{"x":{"format":"nvfp4"}}}"#))] {
        write_marked(&input, &[weight()], Some(&json!({"layers": {layer: {"format": "nvfp4"}}})));
        let _ = fs::remove_file(&output);
        good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4"]);
        assert_eq!(metadata(&output).get(MARKS).map(String::as_str), left);
    }
    // A cast has no mark either.
    write_marked(&input, &[weight(), mark("l.comfy_quant", "nvfp4")], None);
    let _ = fs::remove_file(&output);
    good(&["quantize", &input, "-o", &output, "--group", "1x64"]);
    assert!(!names(&output).contains(&"l.comfy_quant".to_string()));
}

/// (It went without a word.)
#[test]
fn a_list_of_layers_that_dequantize_leaves_out_is_told() {
    let folder = Folder::new();
    let [input, coded, plain] = ["in", "coded", "plain"].map(|name| folder.file(name));
    let list = "_quantization_metadata";
    for marks in [Some(json!({"layers": {"other": {"format": "nvfp4"}}})), None] {
        let tensors = [f32_tensor("l.weight", [128, 256], 1), f32_tensor("other.weight", [128, 128], 2)];
        write_marked(&input, &tensors, marks.as_ref());
        good(&["quantize", &input, "-o", &coded, "--recipe", "fp8-row", "--only", "^l"]);
        assert_eq!(metadata(&coded).contains_key(list), marks.is_some());
        let args = ["dequantize", &coded, "-o", &plain];
        let text = said(&args);
        let words = "left out, ComfyUI's list of quantized layers in the metadata: 1 (_quantization_metadata)";
        assert_eq!(text.contains(words), marks.is_some(), "{text}");
        assert!(!metadata(&plain).contains_key(list));
        let want = if marks.is_some() { json!([list]) } else { json!([]) };
        assert_eq!(json(&[&args[..], &["--json"]].concat())["left_out"], want);
    }
}

/// (The same of files that are there already.)
#[test]
fn what_a_matrix_was_written_in_counts_before_a_mark() {
    let folder = Folder::new();
    let (input, output, marked) = (folder.file("in"), folder.file("out"), folder.file("marked"));
    write(&input, &[f32_tensor("l.weight", [128, 256], 1)]);
    for recipe in ["nvfp4", "mxfp8"] {
        for dialect in ["plain", "modelopt", "compressed-tensors", "comfyui"] {
            let _ = fs::remove_file(&output);
            good(&["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect]);
            let found = sqnr(&folder, &output);
            let bytes = fs::read(&output).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let stale = mark("l.comfy_quant", recipe);
            let tensors = file.iter().filter(|(name, _)| *name != "l.comfy_quant");
            let tensors: Vec<_> = tensors.map(|(name, tensor)| (name.to_string(), tensor)).collect();
            let with = (stale.0.to_string(), TensorView::new(stale.1, stale.2, &stale.3).unwrap());
            // With a mark, and with none.
            let all = [&tensors[..], &[with]].concat();
            for all in [all, tensors] {
                fs::write(&marked, safetensors::serialize(all, Some(metadata(&output))).unwrap()).unwrap();
                assert_eq!(sqnr(&folder, &marked), found, "{recipe} {dialect}");
            }
        }
    }
}

/// Adds tensors to a model.
fn extend(model: &Model, tensors: &[Tensor]) {
    let place = format!("{}/model.safetensors", model.path());
    let bytes = fs::read(&place).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let own = file.iter().map(|(name, tensor)| (name.to_string(), tensor));
    let more = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.to_string(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let all: Vec<_> = own.chain(more).collect();
    fs::write(&place, safetensors::serialize(all, Some(metadata(&place))).unwrap()).unwrap();
}

/// (Such a model was written back without that part, without a word.)
#[test]
fn low_rank_parts_are_not_lost() {
    for (start, file) in [(".svdquant_lora_", "diffusers"), (".weight_quantizer._svdquant_lora_", "others")] {
        let model = Model::new("nvfp4", "modelopt");
        let names = ["m.0.mlp.down_proj", "m.1.self_attn.o_proj"].map(|m| ["a", "b"].map(|p| format!("{m}{start}{p}")));
        let part = |name| f32_tensor(name, [32, 128], 8);
        let output = model.folder.file("plain");
        let args = ["dequantize", &model.path(), "-o", &output];
        // Beside a plain layer they are tensors like others.
        extend(&model, &[part(&names[1][0]), part(&names[1][1])]);
        good(&args);
        fs::remove_dir_all(&output).unwrap();
        extend(&model, &[part(&names[0][0]), part(&names[0][1])]);
        let two = format!("2 tensors ({}, {}) of SVDQuant", names[0][0], names[0][1]);
        let error = bad(2, &args);
        assert_words(&error, &[&two, "which are a low-rank part", "product would have to be added", "leave the model"]);
        let info = good(&["info", &model.path()]);
        assert_words(&info, &[&two, "are a low-rank part that is added to a quantized layer", "dequantize refuses"]);
        assert!(!info.contains("AWQ"), "{file}: {info}");
    }
}

/// (Only `info` said it.)
#[test]
fn gemm_says_what_lies_beside_its_matrices() {
    let model = Model::new("nvfp4", "modelopt");
    let (x, y) = (model.folder.file("x"), model.folder.file("y"));
    write(&x, &[("x", Dtype::BF16, vec![16, 128], values(16 * 64, 5).iter().flat_map(|v| v.to_le_bytes()).collect())]);
    extend(
        &model,
        &[
            f32_tensor("m.0.mlp.down_proj.pre_quant_scale", [1, 128], 8),
            f32_tensor("m.0.mlp.down_proj.svdquant_lora_a", [32, 128], 8),
        ],
    );
    let weights = |layer: &str| format!("{}/model.safetensors:{layer}.weight", model.path());
    let gemm = |layer: &str| {
        let _ = fs::remove_file(&y);
        said(&["gemm", "--a", &format!("{x}:x"), "--b", &weights(layer), "-o", &y])
    };
    assert_words(
        &gemm("m.0.mlp.down_proj"),
        &[
            "m.0.mlp.down_proj.weight: 1 tensor (m.0.mlp.down_proj.pre_quant_scale) of AWQ multiply what enters",
            "m.0.mlp.down_proj.weight: 1 tensor (m.0.mlp.down_proj.svdquant_lora_a) of SVDQuant are a low-rank part",
            "d is the product without them",
        ],
    );
    assert!(!gemm("m.0.self_attn.o_proj").contains("without them"));
}

/// Two shards with a layer in ComfyUI's tiles each, and with another that is plain. `list`: what the second has in the place of its marks.
fn write_shards(folder: &Folder, input: &str, list: Option<&str>) {
    let _ = fs::remove_dir_all(input);
    fs::create_dir(input).unwrap();
    for (shard, layer) in [("model-00001-of-00002", "a"), ("model-00002-of-00002", "b")] {
        let (weight, file) = (format!("{layer}.weight"), folder.file("tiles"));
        write(&folder.file("plain"), &[f32_tensor(&weight, [128, 256], 1)]);
        let _ = fs::remove_file(&file);
        good(&["quantize", &folder.file("plain"), "-o", &file, "--recipe", "nvfp4", "--dialect", "comfyui"]);
        let bytes = fs::read(&file).unwrap();
        let tiles = SafeTensors::deserialize(&bytes).unwrap();
        // As ComfyUI has it: the mark is in the metadata alone.
        let kept = tiles.iter().filter(|(name, _)| !name.ends_with("comfy_quant"));
        let mut tensors: Vec<_> = kept.map(|(name, tensor)| (name.to_string(), tensor)).collect();
        let (other, bytes) = (format!("{layer}.more.weight"), f32_bytes(&values(128 * 128, 2)));
        tensors.push((other, TensorView::new(safetensors::Dtype::F32, vec![128, 128], &bytes).unwrap()));
        let marks = json!({"format_version": "1.0", "layers": {layer: {"format": "nvfp4"}}}).to_string();
        let marks = list.filter(|_| layer == "b").map(String::from).unwrap_or(marks);
        let metadata = HashMap::from([(MARKS.to_string(), marks)]);
        fs::write(format!("{input}/{shard}.safetensors"), safetensors::serialize(tensors, Some(metadata)).unwrap())
            .unwrap();
    }
    let map = |layer: &str, shard: &str| {
        let ends = ["weight", "weight_scale", "weight_scale_2", "more.weight"];
        ends.map(|end| (format!("{layer}.{end}"), json!(format!("{shard}.safetensors"))))
    };
    let map: serde_json::Map<_, _> =
        map("a", "model-00001-of-00002").into_iter().chain(map("b", "model-00002-of-00002")).collect();
    fs::write(format!("{input}/model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    fs::write(format!("{input}/config.json"), json!({"architectures": ["X"]}).to_string()).unwrap();
}

/// (Those of the first shard alone were written: tiles of the others were read as rows.)
#[test]
fn each_shard_marks_its_own_layers() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    write_shards(&folder, &input, None);
    good(&["quantize", &input, "-o", &output, "--recipe", "fp8-row", "--dialect", "plain"]);
    let written = format!("{output}/model.safetensors");
    let left: Value = serde_json::from_str(&metadata(&written)[MARKS]).unwrap();
    let both = json!({"a": {"format": "nvfp4"}, "b": {"format": "nvfp4"}});
    assert_eq!(left, json!({"format_version": "1.0", "layers": both}));
    let plain = folder.file("plain.safetensors");
    good(&["dequantize", &written, "-o", &plain, "--dtype", "f32"]);
    for layer in ["a.weight", "b.weight"] {
        assert!(sqnr_db(&values(128 * 256, 1), &read_f32(&plain, layer).1) > 18.0, "{layer}");
    }
}

/// (The list of another shard was taken in its place, and nothing was said: tiles were read as rows.)
#[test]
fn a_list_of_marks_that_is_broken_is_said_of_its_file() {
    let folder = Folder::new();
    let (input, output, plain) = (folder.file("in"), folder.file("out"), folder.file("plain.safetensors"));
    for list in ["[", "7", r#"{"layers": []}"#] {
        write_shards(&folder, &input, Some(list));
        let words =
            "model-00002-of-00002.safetensors: _quantization_metadata of the metadata is no JSON object of layers";
        let text = wrong(&["info", &input]).0;
        assert_words(&text, &[words]);
        assert_eq!(text.matches("no JSON object of layers").count(), 1, "{text}");
        let words = [
            "model-00002-of-00002.safetensors: tensor b.weight: may lie in ComfyUI's tiles or in rows: the list of marks",
            "_quantization_metadata of the metadata, that would say so is broken; fetch or write the file again",
        ];
        let args = ["quantize", &input, "-o", &output, "--recipe", "fp8-row", "--dialect", "plain"];
        assert_words(&bad(2, &args), &words);
        assert_words(&bad(2, &["dequantize", &input, "-o", &output]), &words);
        assert!(fs::metadata(&output).is_err());
    }
    // Nor is one in doubt whose scales do not fill tiles.
    write(&folder.file("plain"), &[f32_tensor("l.weight", [64, 256], 1)]);
    let (coded, broken) = (folder.file("coded"), folder.file("broken"));
    good(&["quantize", &folder.file("plain"), "-o", &coded, "--recipe", "nvfp4", "--dialect", "modelopt"]);
    let bytes = fs::read(&coded).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let metadata = HashMap::from([(MARKS.to_string(), "[".to_string())]);
    fs::write(&broken, safetensors::serialize(tensors.iter(), Some(metadata)).unwrap()).unwrap();
    let [want, got] = [&coded, &broken].map(|file| {
        let _ = fs::remove_file(&plain);
        said(&["dequantize", file, "-o", &plain]);
        let bytes = fs::read(&plain).unwrap();
        SafeTensors::deserialize(&bytes).unwrap().tensor("l.weight").unwrap().data().to_vec()
    });
    assert!(want == got);
    fs::remove_file(&plain).unwrap();
    // Where no matrix depends on it, it is said, and no more.
    let (file, output) = (folder.file("file"), folder.file("quantized"));
    write_marked(&file, &[f32_tensor("l.weight", [128, 256], 1)], Some(&json!(["l"])));
    let words = "_quantization_metadata of the metadata is no JSON object of layers";
    assert_words(&said(&["quantize", &file, "-o", &output, "--recipe", "nvfp4"]), &[words]);
    assert_words(&said(&["dequantize", &output, "-o", &plain]), &[words]);
}

/// (Beside blocks of gpt-oss, and codes in other formats, nothing was said; `quantize` named scales that were in the way.)
#[test]
fn a_plain_weight_beside_its_own_codes_is_told() {
    let folder = Folder::new();
    let plain =
        |name, shape: &[usize]| (name, Dtype::BF16, shape.to_vec(), vec![0x3f; 2 * shape.iter().product::<usize>()]);
    let u8s = |name, shape: &[usize], byte: u8| (name, Dtype::U8, shape.to_vec(), vec![byte; shape.iter().product()]);
    let other = || f32_tensor("z.weight", [32, 32], 1);
    let cases: [(&str, Vec<Tensor>, &str, &str, &str); 5] = [
        (
            "packed",
            vec![
                plain("x.weight", &[32, 32]),
                u8s("x.weight_packed", &[32, 16], 0x11),
                ("x.weight_scale", Dtype::F8_E4M3, vec![32, 2], vec![0x38; 64]),
                ("x.weight_global_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
            ],
            "tensor x.weight: is in the file twice, as x.weight and as x.weight_packed; keep one of the two",
            "x.weight_packed (holds codes of x.weight, which is there plain, too, and would be quantized)",
            "NVFP4 already: 1 (x.weight_packed ",
        ),
        (
            "packed with scales of MX",
            vec![
                plain("x.weight", &[32, 32]),
                u8s("x.weight_packed", &[32, 16], 0x11),
                u8s("x.weight_scale", &[32, 1], 120),
            ],
            "tensor x.weight: is in the file twice, as x.weight and as x.weight_packed; keep one of the two",
            "x.weight_packed (holds codes of x.weight, which is there plain, too, and would be quantized)",
            "MXFP4 already: 1 (x.weight_packed ",
        ),
        (
            "packed with scales of MX, and another",
            vec![
                plain("x.weight", &[32, 32]),
                u8s("x.weight_packed", &[32, 16], 0x11),
                ("x.weight_scale", Dtype::F8_E8M0, vec![32, 1], vec![120; 32]),
                ("x.weight_global_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
            ],
            "tensor x.weight: is in the file twice, as x.weight and as x.weight_packed; keep one of the two",
            "x.weight_packed (holds codes of x.weight, which is there plain, too, and would be quantized)",
            "two codes a byte already, with scales that fit neither NVFP4 nor MXFP4: 1 (x.weight_packed ",
        ),
        (
            "blocks",
            vec![
                plain("x.gate_up_proj", &[2, 32, 32]),
                u8s("x.gate_up_proj_blocks", &[2, 32, 1, 16], 0x11),
                u8s("x.gate_up_proj_scales", &[2, 32, 1], 120),
            ],
            "tensor x.gate_up_proj: is in the file twice, as x.gate_up_proj and as x.gate_up_proj_blocks",
            "",
            "MXFP4 already: 1 (x.gate_up_proj_blocks ",
        ),
        (
            "one matrix in blocks",
            vec![
                plain("x.weight", &[32, 32]),
                u8s("x.weight_blocks", &[32, 1, 16], 0x11),
                u8s("x.weight_scales", &[32, 1], 120),
            ],
            "tensor x.weight: is in the file twice, as x.weight and as x.weight_blocks",
            "tensor x.weight_blocks: is there, and holds codes of x.weight, which is there plain, too",
            "MXFP4 already: 1 (x.weight_blocks ",
        ),
    ];
    for (name, mut tensors, words, in_the_way, already) in cases {
        let [input, output] = ["in", "out"].map(|end| folder.file(&format!("{name}-{end}")));
        tensors.push(other());
        write(&input, &tensors);
        assert_words(&wrong(&["info", &input]).0, &[words]);
        assert_words(&bad(2, &["dequantize", &input, "-o", &output]), &[words]);
        let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dialect", "compressed-tensors"];
        if in_the_way.is_empty() {
            assert_words(&said(&args), &["copied as it is: ", words]);
        } else {
            assert_words(&bad(2, &args), &[in_the_way, "--exclude '^x\\.weight$'"]);
            let text = said(&[&args[..], &["--exclude", r"^x\."]].concat());
            assert_words(&text, &["copied as it is: ", words]);
            // Of both tensors one thing is said. (It was counted as another that info names.)
            assert!(!text.contains("named by info"), "{text}");
        }
        // (Blocks, and what has scales of MX, were NVFP4.)
        let args = ["quantize", &input, "--dry-run", "--recipe", "fp8-tensor", "--only", "z|x.*_(packed|blocks)"];
        assert_words(&good(&args), &[already]);
    }
    // In formats that are not read here.
    for codes in ["x.weight_packed", "x.qweight"] {
        let [input, output] = ["in", "out"].map(|end| folder.file(&format!("{codes}-{end}")));
        let mut tensors = vec![
            plain("x.weight", &[32, 32]),
            (codes, Dtype::I32, vec![32, 4], vec![0x11; 512]),
            ("y.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
            ("y.weight_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
            other(),
        ];
        let words = format!("1 weight is plain and in codes that are not read here (x.weight beside {codes})");
        write(&input, &tensors);
        assert_words(&wrong(&["info", &input]).0, &[&words]);
        for command in
            [&["dequantize", &input, "-o", &output][..], &["quantize", &input, "-o", &output, "--recipe", "nvfp4"]]
        {
            assert_words(&said(command), &["copied as it is: ", &words]);
        }
        tensors.remove(0);
        write(&input, &tensors);
        assert!(!good(&["info", &input]).contains("plain and in codes"), "{codes}");
    }
}

/// (It was said that the matrix was in the file twice, and each of two files had it once.)
#[test]
fn a_matrix_that_is_plain_in_one_shard_and_packed_in_another_is_said_to_be_in_both() {
    let folder = Folder::new();
    let model = folder.file("model");
    fs::create_dir(&model).unwrap();
    let [plain, packed] = ["a", "b"].map(|name| format!("{model}/{name}.safetensors"));
    write(&plain, &[f32_tensor("x.weight", [32, 32], 1)]);
    let codes: [Tensor; 3] = [
        ("x.weight_packed", Dtype::U8, vec![32, 16], vec![0x11; 512]),
        ("x.weight_scale", Dtype::F8_E4M3, vec![32, 2], vec![0x38; 64]),
        ("x.weight_global_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
    ];
    write(&packed, &codes);
    let words = format!(
        "tensor x.weight: is there twice, as x.weight in {plain} and as x.weight_packed in {packed}; keep one of the two"
    );
    let error = bad(2, &["dequantize", &model, "-o", &folder.file("out")]);
    assert_words(&error, &[&words]);
}
