//! `info`: what is wrong with a model that reads without an error, or nearly.

mod common;

use std::collections::HashMap;
use std::fs;

use common::*;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use scaled_gemm::CastScales;
use serde_json::{Value, json};

/// A file of one matrix: codes, their scales, and the scale of the whole.
fn file(path: &str, nvfp4: bool, [codes, whole]: [&[u8]; 2], name: &str) {
    let (rows, cols) = (4, 32);
    let scale = (name, Dtype::F32, vec![1], whole.to_vec());
    if !nvfp4 {
        return write(path, &[("l.weight", Dtype::F8_E4M3, vec![rows, cols], codes.to_vec()), scale]);
    }
    let packed = if name.ends_with("global_scale") { "l.weight_packed" } else { "l.weight" };
    let blocks = ("l.weight_scale", Dtype::F8_E4M3, vec![rows, cols / 16], vec![0x38; rows * cols / 16]);
    write(path, &[(packed, Dtype::U8, vec![rows, cols / 2], codes[..rows * cols / 2].to_vec()), blocks, scale]);
}

/// (`info` read no scale, and said of none of these that anything was wrong.)
#[test]
fn scales_that_no_quantizer_writes_are_said() {
    let folder = Folder::new();
    let path = folder.file("a.safetensors");
    let (some, none) = (vec![0x35; 128], vec![0x80; 128]);
    for (nvfp4, name) in [(false, "l.weight_scale"), (true, "l.weight_scale_2"), (true, "l.weight_global_scale")] {
        let info = |codes: &[u8], value: f32| {
            file(&path, nvfp4, [codes, &value.to_le_bytes()], name);
            run_on("cpu", &["info", &path])
        };
        assert_eq!(info(&some, 0.5).status.code(), Some(0), "{name}");
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.25, 0.0] {
            let output = info(&some, value);
            let [text, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
            assert_eq!(output.status.code(), Some(1), "{name} {value}: {text}");
            let holds =
                format!("a.safetensors: tensor {name}: holds {value} at element 0, and a scale is finite and above 0");
            assert_words(&text, &["What is wrong", &holds, "; quantize the matrix again"]);
            assert_words(&error, &["1 thing is wrong"]);
        }
        // What is zero has any scale, also none; but nothing is divided by it.
        let zero = if nvfp4 { vec![0x88; 128] } else { none.clone() };
        let divides = name.ends_with("global_scale");
        assert_eq!(info(&zero, 0.0).status.code(), Some(i32::from(divides)), "{name}");
        assert_eq!(info(&zero, f32::NAN).status.code(), Some(1), "{name}");
    }
}

/// (Padding of scales that is NaN was called wrong, and what was wrong was said by its place in the file and by another rule than
/// that of `dequantize`.)
#[test]
fn scales_of_casts_are_said_as_they_are_read_and_their_padding_is_not() {
    let folder = Folder::new();
    let (input, q, d) = (folder.file("in.safetensors"), folder.file("q.safetensors"), folder.file("d.safetensors"));
    // Five rows, in columns of eight; 144 columns are two groups of 128 and five of 32.
    write(&input, &[f32_tensor("w", [5, 144], 1)]);
    let options = [("1x128", CastScales::RowMajor), ("1x128", CastScales::ColumnMajor), ("1x32", CastScales::Ue8m0)];
    for (group, scales) in options {
        good(&["quantize", &input, "-o", &q, "--group", group, "--scales", scales.name()]);
        let file = fs::read(&q).unwrap();
        let (name, width, [r, c]) = {
            let all = SafeTensors::deserialize(&file).unwrap();
            let name = all.names().into_iter().find(|name| *name != "w").unwrap().to_string();
            let is_bytes = scales == CastScales::Ue8m0;
            (name, if is_bytes { 1 } else { 4 }, if is_bytes { [5, 5] } else { [5, 2] })
        };
        let changed = |element: usize, value: &[u8]| {
            let mut file = file.clone();
            let data = SafeTensors::deserialize(&file).unwrap().tensor(&name).unwrap().data().as_ptr() as usize;
            let at = data - file.as_ptr() as usize + element * width;
            file[at..at + width].copy_from_slice(value);
            fs::write(&q, file).unwrap();
        };
        let read = || run_on("cpu", &["dequantize", &q, "-o", &d]);
        let nan: Vec<u8> = if width == 1 { vec![0xFF] } else { f32::NAN.to_le_bytes().to_vec() };
        let elements = scales.bytes(r, c) / width;
        let mut padding = 0;
        for element in 0..elements {
            changed(element, &nan);
            match scales.position(r, c, element) {
                None => {
                    padding += 1;
                    good(&["info", &q]);
                    assert_eq!(read().status.code(), Some(0), "{scales} {element}");
                }
                Some([row, col]) => {
                    let words =
                        format!("{name}: holds NaN as scale ({row}, {col}): every scale is finite, and not negative");
                    let error = String::from_utf8(read().stderr).unwrap();
                    assert_words(&wrong(&["info", &q]).0, &[&words, "; quantize the matrix again from finite values"]);
                    assert_words(&error, &[&words]);
                }
            }
        }
        assert_eq!(padding > 0, scales != CastScales::RowMajor, "{scales}");
        if width == 4 {
            changed(0, &(-1.5f32).to_le_bytes());
            assert_words(&wrong(&["info", &q]).0, &["holds -1.5 as scale (0, 0): every scale is finite"]);
            // Whoever reads it takes it.
            changed(0, &[0; 4]);
            good(&["info", &q]);
            assert_eq!(read().status.code(), Some(0));
        }
    }
}

#[test]
fn a_config_that_names_another_scheme_is_said() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let tensors = ["l.o_proj.weight", "l.down_proj.weight"].map(|name| f32_tensor(name, [256, 256], 1));
    model_folder(&input, &tensors, Some(json!({})));
    let write = |recipe: &str, dialect: &str| {
        let _ = fs::remove_dir_all(&output);
        good(&["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect]);
        good(&["info", &output]);
    };
    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let place = format!("{output}/{name}");
        let text = fs::read(&place).unwrap();
        let mut value: Value = serde_json::from_slice(&text).unwrap();
        change(&mut value);
        fs::write(&place, value.to_string()).unwrap();
        let (said, error) = wrong(&["info", &output]);
        fs::write(&place, text).unwrap();
        assert_words(&error, &["1 thing is wrong"]);
        said
    };
    write("nvfp4", "modelopt");
    let said = edit("hf_quant_config.json", &|value| value["quantization"]["quant_algo"] = "FP8".into());
    let words = "hf_quant_config.json says quant_algo FP8, which is fp8-tensor, and 2 layers (l.";
    assert_words(&said, &[words, "are nvfp4: engines read them by what it says", "quantize the model again"]);
    let said = edit("config.json", &|value| value["quantization_config"]["quant_algo"] = "MXFP8".into());
    assert_words(&said, &["config.json says quant_algo MXFP8, which is mxfp8, and 2 layers (l."]);
    let said = edit("config.json", &|value| {
        value["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 32.into();
    });
    assert_words(
        &said,
        &["config.json says group_size 32, and 2 layers (l.", "are nvfp4, with a scale for 16 columns"],
    );
    let said = edit("hf_quant_config.json", &|value| value["quantization"]["group_size"] = 128.into());
    assert_words(&said, &["hf_quant_config.json says group_size 128"]);
    fs::write(format!("{output}/hf_quant_config.json"), "{").unwrap();
    assert_words(&wrong(&["info", &output]).0, &["hf_quant_config.json: is no JSON", "; mend it"]);
    for (recipe, format) in
        [("fp8-row", "nvfp4-pack-quantized"), ("mxfp4", "float-quantized"), ("nvfp4", "mxfp8-quantized")]
    {
        write(recipe, "compressed-tensors");
        let said = edit("config.json", &|value| value["quantization_config"]["format"] = format.into());
        assert_words(&said, &[&format!("config.json says format {format}, which is"), &format!("are {recipe}")]);
    }
    write("fp8-128x128", "fp8");
    for (tile, is) in [(Value::Null, "fp8-tensor"), (json!([64, 64]), "fp8-tiles of another size")] {
        let said = edit("config.json", &|value| value["quantization_config"]["weight_block_size"] = tile.clone());
        assert_words(&said, &[&format!("weight_block_size {tile}, which is {is}, and 2 layers"), "are fp8-128x128"]);
    }
    write("fp8-tensor", "fp8");
    let said = edit("config.json", &|value| value["quantization_config"]["weight_block_size"] = json!([128, 128]));
    assert_words(&said, &["weight_block_size [128,128], which is fp8-128x128, and 2 layers", "are fp8-tensor"]);
    // What says several things, says nothing.
    write("nvfp4", "modelopt");
    let place = format!("{output}/config.json");
    let text = fs::read_to_string(&place).unwrap().replace("W4A16_NVFP4", "MIXED_PRECISION");
    fs::write(&place, text).unwrap();
    good(&["info", &output]);
    fs::write(&place, fs::read_to_string(&place).unwrap().replace("MIXED_PRECISION", "OF_NEXT_YEAR")).unwrap();
    assert_words(&wrong(&["info", &output]).0, &["says quant_algo OF_NEXT_YEAR, which no engine knows"]);
}

/// (The first was called wrong, and so were the others.)
#[test]
fn configs_of_several_formats_and_of_groups_are_not_called_wrong() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let tensors = ["l.o_proj.weight", "l.down_proj.weight"].map(|name| f32_tensor(name, [256, 256], 1));
    model_folder(&input, &tensors, Some(json!({})));
    let change = |name: &str, change: &dyn Fn(&mut Value)| {
        let place = format!("{output}/{name}");
        let mut value: Value = serde_json::from_slice(&fs::read(&place).unwrap()).unwrap();
        change(&mut value);
        fs::write(&place, value.to_string()).unwrap();
    };
    // Rows with a scale for 128 columns, as llm-compressor writes them.
    let codes = |name: &'static str| (name, Dtype::F8_E4M3, vec![256, 256], vec![0x35; 256 * 256]);
    let scales = |name: &'static str| (name, Dtype::F32, vec![256, 2], f32_bytes(&[0.5; 512]));
    let groups = |strategy: &str| {
        let weights = json!({"num_bits": 8, "type": "float", "strategy": strategy, "group_size": 128});
        let groups = json!({"group_0": {"weights": weights, "targets": ["Linear"]}});
        let quantization =
            json!({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups});
        json!({"quantization_config": quantization})
    };
    let grouped = folder.file("grouped");
    model_folder(&grouped, &[codes("l.o_proj.weight"), scales("l.o_proj.weight_scale")], Some(groups("group")));
    assert_words(&good(&["info", &grouped]), &["fp8-1x128"]);
    fs::write(format!("{grouped}/config.json"), groups("channel").to_string()).unwrap();
    assert_words(&wrong(&["info", &grouped]).0, &["says format float-quantized, which is", "is fp8-1x128"]);

    // A format for each group of layers.
    good(&["quantize", &input, "-o", &output, "--recipe", "fp8-row", "--dialect", "compressed-tensors"]);
    change("config.json", &|value| {
        let quantization = &mut value["quantization_config"];
        quantization["format"] = "nvfp4-pack-quantized".into();
        quantization["config_groups"]["group_0"]["format"] = "float-quantized".into();
        quantization["config_groups"]["group_1"] = json!({"format": "nvfp4-pack-quantized", "targets": ["x"]});
    });
    good(&["info", &output]);
    change("config.json", &|value| {
        value["quantization_config"]["config_groups"]["group_0"]["format"] = "nvfp4-pack-quantized".into();
    });
    assert_words(&wrong(&["info", &output]).0, &["says format nvfp4-pack-quantized, which is nvfp4"]);

    // Each of two files may say that layers differ; the other then names what most are.
    fs::remove_dir_all(&output).unwrap();
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dialect", "modelopt"]);
    let algorithms = |config: &str, hf: &str| {
        change("config.json", &|value| value["quantization_config"]["quant_algo"] = config.into());
        change("hf_quant_config.json", &|value| value["quantization"]["quant_algo"] = hf.into());
    };
    algorithms("FP8", "MIXED_PRECISION");
    good(&["info", &output]);
    algorithms("mixed_precision", "FP8");
    good(&["info", &output]);
    algorithms("FP8", "FP8");
    assert_words(
        &wrong(&["info", &output]).0,
        &["config.json says quant_algo FP8", "hf_quant_config.json says quant_algo FP8"],
    );
    // Python writes numbers that JSON does not have.
    algorithms("W4A16_NVFP4", "W4A16_NVFP4");
    let place = format!("{output}/hf_quant_config.json");
    let text = fs::read_to_string(&place).unwrap();
    fs::write(&place, text.replacen('{', r#"{"limits": [NaN, -Infinity], "#, 1)).unwrap();
    good(&["info", &output]);
}

/// (It was called wrong, as if a config had been lost.)
#[test]
fn what_is_written_as_plain_is_not_called_wrong() {
    let folder = Folder::new();
    let (input, output, again) = (folder.file("in"), folder.file("out"), folder.file("again"));
    let tensors = ["l.q_proj.weight", "l.k_proj.weight", "l.o_proj.weight"].map(|name| f32_tensor(name, [128, 128], 1));
    model_folder(&input, &tensors, Some(json!({})));
    for recipe in ["fp8-tensor", "fp8-row", "fp8-1x128", "fp8-128x128", "mxfp8", "mxfp4", "nvfp4", "nvfp4-row"] {
        good(&["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", "plain", "--exclude", "k_proj"]);
        assert_words(&good(&["info", &output]), &["2 layers (l.", "_proj) in the dialect plain", "and no engine"]);
        fs::remove_dir_all(&output).unwrap();
    }
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dialect", "plain", "--no-fuse"]);
    good(&["info", &output]);
    fs::remove_dir_all(&output).unwrap();
    // Beside what a config speaks of, which it need not fit.
    good(&["quantize", &input, "-o", &output, "--recipe", "fp8-128x128", "--exclude", "o_proj"]);
    good(&["quantize", &output, "-o", &again, "--recipe", "nvfp4", "--dialect", "plain", "--only", "o_proj"]);
    assert_words(&good(&["info", &again]), &["1 layer (l.o_proj) in the dialect plain", "quant_method  fp8"]);
    // Of a dialect it is wrong.
    fs::write(format!("{output}/config.json"), "{}").unwrap();
    assert_words(&wrong(&["info", &output]).0, &["has no quantization_config"]);
}

/// (A second line said that the rest was in a foreign format; without codes it alone did.)
#[test]
fn a_tensor_that_is_missing_is_said_once() {
    let folder = Folder::new();
    let (input, output, torn) = (folder.file("in"), folder.file("out"), folder.file("torn"));
    let tensors = ["l.o_proj.weight", "l.down_proj.weight"].map(|name| f32_tensor(name, [128, 128], 1));
    model_folder(&input, &tensors, Some(json!({})));
    let cases: [(&str, &str, &[&str]); 6] = [
        ("nvfp4", "modelopt", &["", "_scale", "_scale_2"]),
        ("nvfp4", "compressed-tensors", &["_packed", "_scale", "_global_scale"]),
        ("fp8-128x128", "fp8", &["", "_scale_inv"]),
        ("fp8-row", "compressed-tensors", &["", "_scale"]),
        ("mxfp8", "modelopt", &["", "_scale"]),
        ("mxfp4", "compressed-tensors", &["_packed", "_scale"]),
    ];
    for (recipe, dialect, parts) in cases {
        good(&["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect]);
        let bytes = fs::read(format!("{output}/model.safetensors")).unwrap();
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for part in parts {
            let missing = format!("l.o_proj.weight{part}");
            let kept = read.names().into_iter().filter(|name| **name != missing).map(String::from);
            let kept: Vec<_> = kept.map(|name| (name.clone(), read.tensor(&name).unwrap())).collect();
            let tensors: Vec<Tensor> = kept
                .iter()
                .map(|(name, t)| (name.as_str(), t.dtype(), t.shape().to_vec(), t.data().to_vec()))
                .collect();
            let config = serde_json::from_slice(&fs::read(format!("{output}/config.json")).unwrap()).unwrap();
            model_folder(&torn, &tensors, Some(config));
            let (text, error) = wrong(&["info", &torn]);
            assert_words(&error, &["1 thing is wrong"]);
            let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("What is wrong")).collect();
            let words =
                if ["", "_packed"].contains(part) { "nor l.o_proj.weight_packed is there" } else { " no scale" };
            assert_words(lines[1], &["l.o_proj.weight", words]);
            assert!(!text.contains("_scale_scale") && !text.contains("does not read"), "{text}");
            fs::remove_dir_all(&torn).unwrap();
        }
        fs::remove_dir_all(&output).unwrap();
    }
}

/// (A file without tensors was as good as any.)
#[test]
fn a_file_without_tensors_is_refused() {
    let folder = Folder::new();
    let (file, model) = (folder.file("a.safetensors"), folder.file("model"));
    write(&file, &[]);
    model_folder(&model, &[], Some(json!({})));
    for path in [&file, &model] {
        for json in [&[][..], &["--json"]] {
            let error = bad(2, &[&["info", path][..], json].concat());
            assert_words(&error, &[path, "holds no tensor", "; give a safetensors file", "a model's folder"]);
        }
    }
    fs::write(&file, b"").unwrap();
    assert_words(&bad(2, &["info", &file]), &["it has 0 bytes"]);
}

/// (Two lines, of which one said that its format is not read, and the other how it is.)
#[test]
fn of_a_tensor_that_may_be_a_cast_one_thing_is_said() {
    let folder = Folder::new();
    let path = folder.file("m");
    let codes = ("l.weight", Dtype::U8, vec![64, 64], vec![1; 64 * 64]);
    let scales = ("l.weight_scale", Dtype::F32, vec![64, 2], f32_bytes(&[1.0; 128]));
    let config = json!({"quantization_config": {"quant_method": "foo"}});
    model_folder(&path, &[codes, scales], Some(config));
    let problems = || {
        let output = run_on("cpu", &["info", &path, "--json"]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let lines = |key: &str| serde_json::from_value::<Vec<String>>(value[key].clone()).unwrap();
        [lines("problems"), lines("notes")].map(|lines| lines.into_iter().filter(|l| l.contains("l.weight")).collect())
    };
    let [wrong, notes]: [Vec<String>; 2] = problems();
    assert_eq!((wrong.len(), notes.len()), (1, 0), "{wrong:?} {notes:?}");
    assert_words(&wrong[0], &["the codes of 1 tensor (l.weight) are in a format that this program does not read"]);
    // Where the metadata are this program's, it is a cast.
    let place = format!("{path}/model.safetensors");
    let bytes = fs::read(&place).unwrap();
    let tensors: Vec<_> = SafeTensors::deserialize(&bytes).unwrap().iter().map(|(n, t)| (n.to_string(), t)).collect();
    let entry = HashMap::from([("scaled_gemm.other".to_string(), "{}".to_string())]);
    fs::write(&place, safetensors::serialize(tensors, Some(entry)).unwrap()).unwrap();
    let [wrong, notes] = problems();
    assert_eq!((wrong.len(), notes.len()), (1, 0), "{wrong:?} {notes:?}");
    assert_words(&wrong[0], &["1 tensor (l.weight) may be the codes of a cast"]);
    let all = run_on("cpu", &["info", &path]).stdout;
    assert!(!String::from_utf8(all).unwrap().contains("no quantized matrix is there"));
}

/// (Of ModelOpt's names the tensors were listed as plain ones.)
#[test]
fn a_matrix_with_a_broken_entry_is_no_plain_tensor() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    write(&input, &[f32_tensor("l.weight", [128, 128], 1)]);
    for dialect in ["modelopt", "compressed-tensors", "plain"] {
        let _ = fs::remove_file(&output);
        good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dialect", dialect]);
        let bytes = fs::read(&output).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors: Vec<_> = file.iter().map(|(name, tensor)| (name.to_string(), tensor)).collect();
        let entry = HashMap::from([("scaled_gemm.l.weight".to_string(), "{bad".to_string())]);
        fs::write(&output, safetensors::serialize(tensors, Some(entry)).unwrap()).unwrap();
        let text = run_on("cpu", &["info", &output, "--json"]).stdout;
        let value: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["tensors"], json!([]), "{dialect}: {value}");
        assert_eq!(value["quantized"][0]["tensor"], "l.weight");
        assert_eq!(value["quantized"][0]["bytes"], 128 * 64 + 128 * 8 + 4);
        assert_words(
            value["quantized"][0]["problem"].as_str().unwrap(),
            &["l.weight: its recipe in the metadata is no JSON"],
        );
        assert_words(&bad(2, &["dequantize", &output, "-o", &input]), &["its recipe in the metadata is no JSON"]);
    }
}

/// (Tensors with the name of a scale that their matrix has not were neither listed nor counted.)
#[test]
fn every_tensor_is_listed_or_a_part_of_a_matrix() {
    let folder = Folder::new();
    let [input, q, back] = ["in", "q", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    let names = ["w_scale_2", "w_scale_inv"];
    let scales: [Tensor; 2] = [
        ("w_scale_inv", Dtype::F32, vec![2, 2], f32_bytes(&[1.0; 4])),
        ("w_scale_2", Dtype::F32, vec![1], f32_bytes(&[1.0])),
    ];
    write(&input, &[vec![f32_tensor("w", [64, 64], 1)], scales.to_vec()].concat());
    good(&["quantize", &input, "-o", &q, "--group", "32x32"]);
    good(&["dequantize", &q, "-o", &back]);
    let listed = |path: &str| {
        let tensors = json(&["info", path, "--json"])["tensors"].clone();
        let mut names: Vec<_> =
            tensors.as_array().unwrap().iter().map(|t| t["tensor"].as_str().unwrap().to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(listed(&q), names);
    assert_words(&good(&["info", &q]), &["cast to e4m3 32x32", "w_scale_inv", "w_scale_2"]);
    for path in [input, back] {
        assert_eq!(listed(&path), ["w", names[0], names[1]], "{path}");
    }
}
