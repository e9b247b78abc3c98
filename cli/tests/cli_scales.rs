//! Scales that are not where they belong, or that no quantizer writes: what `info`, `dequantize` and `gemm` say of them.

mod common;

use std::fs;

use common::*;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};

const CODES: &str = "l.o_proj.weight";

fn codes() -> Tensor<'static> {
    (CODES, Dtype::F8_E4M3, vec![256, 256], (0..65536u32).map(|i| (i % 0x7F) as u8).collect())
}

fn fp8() -> Option<Value> {
    Some(json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}))
}

/// (It was said that neither the matrix nor a scale of its own was in the file; of `weight_global_scale` that it was the scale of `weight_global`.)
#[test]
fn a_scale_in_the_place_of_a_matrix_is_called_one() {
    let folder = Folder::new();
    let (input, output) = (folder.file("a.safetensors"), folder.file("b.safetensors"));
    for (matrix, recipe, dialect, ends) in [
        ("w", "nvfp4", "plain", &["_scale", "_scale_2"][..]),
        (CODES, "nvfp4", "compressed-tensors", &["_scale", "_global_scale"]),
        ("w", "fp8-row", "plain", &["_scale"]),
        ("w", "fp8-128x128", "plain", &["_scale_inv"]),
        ("w", "mxfp8", "plain", &["_scale"]),
        // A matrix of this name has such a scale, too.
        ("w_global", "fp8-row", "plain", &["_scale"]),
    ] {
        write(&input, &[f32_tensor(matrix, [32, 32], 1)]);
        good(&["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect]);
        for scale in ends.iter().map(|end| format!("{matrix}{end}")) {
            let [a, b] = [matrix, &scale].map(|name| format!("{output}:{name}"));
            let error = bad(2, &["gemm", "--a", &a, "--b", &b, "-o", &folder.file("d")]);
            assert_words(&error, &[&format!("tensor {scale}: is the scale of {matrix}, and no matrix; give {matrix}")]);
        }
        fs::remove_file(&output).unwrap();
    }
}

/// (`info` said nothing, and `dequantize` left it.)
#[test]
fn a_scale_beside_plain_weights_is_said() {
    let folder = Folder::new();
    let path = folder.file("in");
    let scales = |name| (name, Dtype::F32, vec![2, 2], f32_bytes(&[0.5; 4]));
    let tensors = [
        codes(),
        scales("l.o_proj.weight_scale_inv"),
        f32_tensor("l.down_proj.weight", [256, 256], 1),
        scales("l.down_proj.weight_scale_inv"),
    ];
    let mut config = fp8().unwrap();
    config["quantization_config"]["modules_to_not_convert"] = json!(["l.down_proj"]);
    model_folder(&path, &tensors, Some(config));
    let words = "1 scale (l.down_proj.weight_scale_inv) beside weights that are plain";
    let (text, error) = wrong(&["info", &path]);
    assert_words(&text, &[words, "fetch or write the model again"]);
    assert_words(&error, &["1 thing is wrong"]);
    let said = said(&["dequantize", &path, "-o", &folder.file("out")]);
    assert_words(&said, &[words, "copied as it is", "take it out"]);
}

/// (`_scale`, which is looked for first, is an ending of `_global_scale`: no weight has the name before it.)
#[test]
fn scales_of_every_name_beside_plain_weights_are_said() {
    let folder = Folder::new();
    for end in ["_scale", "_scale_inv", "_scale_2", "_global_scale"] {
        let (path, name) = (folder.file(end), format!("l.down_proj.weight{end}"));
        let tensors = [
            codes(),
            ("l.o_proj.weight_scale_inv", Dtype::F32, vec![2, 2], f32_bytes(&[0.5; 4])),
            f32_tensor("l.down_proj.weight", [256, 256], 1),
            (&name, Dtype::F32, vec![1], f32_bytes(&[0.5])),
        ];
        let mut config = fp8().unwrap();
        config["quantization_config"]["modules_to_not_convert"] = json!(["l.down_proj"]);
        model_folder(&path, &tensors, Some(config));
        let words = format!("1 scale ({name}) beside weights that are plain");
        assert_words(&wrong(&["info", &path]).0, &[&words]);
        assert_words(&said(&["dequantize", &path, "-o", &folder.file(&format!("out{end}"))]), &[&words]);
    }
}

/// (`activation_scale`, as transformers has it, stayed without a word.)
#[test]
fn scales_of_activations_go_with_their_matrices() {
    let folder = Folder::new();
    for end in ["input_scale", "input_global_scale", "activation_scale", "scale_input"] {
        let (path, output, name) = (folder.file(end), folder.file(&format!("{end}-plain")), format!("l.o_proj.{end}"));
        let scalar = |name| (name, Dtype::F32, vec![1], f32_bytes(&[0.5]));
        // Beside a weight that is plain it stays.
        let other = format!("l.down_proj.{end}");
        let tensors = [
            codes(),
            scalar("l.o_proj.weight_scale"),
            scalar(&name),
            f32_tensor("l.down_proj.weight", [16, 16], 1),
            scalar(&other),
        ];
        model_folder(&path, &tensors, Some(json!({"quantization_config": {"quant_method": "fp8"}})));
        good(&["dequantize", &path, "-o", &output]);
        let bytes = fs::read(format!("{output}/model.safetensors")).unwrap();
        let mut names =
            SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(String::from).collect::<Vec<_>>();
        names.sort();
        assert_eq!(names, [&other, "l.down_proj.weight", CODES]);
    }
}

/// ModelOpt's `FP8_PB_WO` has scales of four dimensions. (They were no shape of any scheme.)
#[test]
fn scales_of_tiles_in_four_dimensions_are_read() {
    let folder = Folder::new();
    let outputs = [vec![2, 2], vec![2, 1, 2, 1]].map(|shape| {
        let name = shape.len().to_string();
        let (path, output) = (folder.file(&name), folder.file(&format!("{name}-plain")));
        let scales = ("l.o_proj.weight_scale", Dtype::F32, shape, f32_bytes(&[0.5, 1.0, 2.0, 3.0]));
        let config = json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}});
        model_folder(&path, &[codes(), scales], Some(config));
        assert_words(&good(&["info", &path]), &["fp8-128x128:e4m3"]);
        good(&["dequantize", &path, "-o", &output, "--dtype", "f32"]);
        read_f32(&format!("{output}/model.safetensors"), CODES)
    });
    assert_eq!(outputs[0], outputs[1]);
    // Others of so many dimensions are none.
    for shape in [vec![2, 2, 1, 1], vec![1, 2, 1, 2], vec![4, 1, 1, 1]] {
        let path = folder.file(&format!("{shape:?}"));
        let scales = ("l.o_proj.weight_scale_inv", Dtype::F32, shape, f32_bytes(&[0.5; 4]));
        model_folder(&path, &[codes(), scales], fp8());
        assert_words(&wrong(&["info", &path]).0, &["a scale is never reshaped: fetch the file again"]);
    }
}

/// (Without a word: `info` alone called them wrong.)
#[test]
fn dequantize_says_which_scales_are_negative_or_zero() {
    let folder = Folder::new();
    let model = |name: &str, scale: f32| {
        let path = folder.file(name);
        let scale = ("l.o_proj.weight_scale", Dtype::F32, vec![1], f32_bytes(&[scale]));
        model_folder(&path, &[codes(), scale], Some(json!({"quantization_config": {"quant_method": "fp8"}})));
        let output = folder.file(&format!("{name}-plain"));
        said(&["dequantize", &path, "-o", &output])
    };
    let text = model("negative", -0.5);
    let words = "scales of 1 matrix (l.o_proj.weight) are negative, the first -0.5, which no quantizer writes";
    assert_words(&text, &[words, "quantize the model again from finite values"]);
    let text = model("zero", 0.0);
    assert_words(
        &text,
        &["the scales of 1 matrix (l.o_proj.weight) are 0 and their codes are not: all their values are 0"],
    );
    let text = model("right", 0.5);
    assert!(!text.contains("scales of"), "{text}");
    // Rows of zeros have scales of zero.
    let path = folder.file("rows");
    let mut bytes = vec![0x35; 65536];
    bytes[..256].fill(0);
    let mut scales = vec![0.5; 256];
    scales[0] = 0.0;
    let tensors: [Tensor; 2] = [
        (CODES, Dtype::F8_E4M3, vec![256, 256], bytes),
        ("l.o_proj.weight_scale", Dtype::F32, vec![256, 1], f32_bytes(&scales)),
    ];
    model_folder(&path, &tensors, Some(json!({"quantization_config": {"quant_method": "fp8"}})));
    let text = said(&["dequantize", &path, "-o", &folder.file("rows-plain")]);
    assert!(!text.contains("scales of"), "{text}");
}

/// (Without a word, where `info` calls them wrong and `dequantize` warns.)
#[test]
fn gemm_says_which_scales_are_negative_or_zero() {
    let folder = Folder::new();
    let file = |name: &str, scale: f32| {
        let path = folder.file(name);
        write(&path, &[codes(), ("l.o_proj.weight_scale", Dtype::F32, vec![1], f32_bytes(&[scale]))]);
        format!("{path}:{CODES}")
    };
    let (right, negative, zero) = (file("right", 0.5), file("negative", -0.5), file("zero", 0.0));
    let words = [
        "scales of 1 matrix (l.o_proj.weight) are negative, the first -0.5, which no quantizer writes",
        "the scales of 1 matrix (l.o_proj.weight) are 0 and their codes are not: all their values are 0",
    ];
    for (a, b, says) in [
        (&right, &right, [false, false]),
        (&right, &negative, [true, false]),
        (&zero, &right, [false, true]),
        (&negative, &zero, [true, true]),
    ] {
        for form in [&[][..], &["--json"]] {
            let text = said(&[&["gemm", "--a", a, "--b", b, "-o", &folder.file("d")], form].concat());
            for (words, says) in words.iter().zip(says) {
                assert_eq!(text.contains(words), says, "{a} {b}: {text}");
            }
        }
    }
}

/// (They stayed without a word, and the config that spoke of them went.)
#[test]
fn scales_of_a_cache_that_stay_are_said() {
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    let scalar = |name| (name, Dtype::F32, vec![], f32_bytes(&[0.5]));
    let tensors = [codes(), scalar("l.o_proj.weight_scale"), scalar("l.k_proj.k_scale"), scalar("l.v_proj.v_scale")];
    model_folder(&path, &tensors, Some(json!({})));
    let quantization = json!({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}});
    fs::write(format!("{path}/hf_quant_config.json"), quantization.to_string()).unwrap();
    let text = said(&["dequantize", &path, "-o", &output]);
    let words = "2 scales of a cache of keys and values (l.k_proj.k_scale, l.v_proj.v_scale) copied as they are, and no config speaks";
    assert_words(&text, &[words, "tell the engine the type of its cache, or take them out"]);
    let bytes = fs::read(format!("{output}/model.safetensors")).unwrap();
    assert_eq!(SafeTensors::deserialize(&bytes).unwrap().len(), 3);
}

/// (Each had a fault of its own that was none: no matrix, or no scale of the name looked for.)
#[test]
fn quantized_experts_in_one_tensor_are_said_once() {
    let folder = Folder::new();
    let names = ["gate_up_proj", "down_proj"].map(|name| format!("l.mlp.experts.{name}"));
    let scales = names.each_ref().map(|name| [format!("{name}_scale_inv"), format!("{name}_weight_scale")]);
    for (style, shape) in [(0, vec![2, 1, 1]), (1, vec![])] {
        let mut tensors: Vec<Tensor> = Vec::new();
        for (name, scales) in names.iter().zip(&scales) {
            tensors.push((name, Dtype::F8_E4M3, vec![2, 64, 64], vec![0x35; 8192]));
            let values = vec![0.5; shape.iter().product()];
            tensors.push((&scales[style], Dtype::F32, shape.clone(), f32_bytes(&values)));
        }
        let path = folder.file(&style.to_string());
        model_folder(&path, &tensors, fp8());
        let (text, error) = wrong(&["info", &path]);
        let words = "2 tensors (l.mlp.experts.down_proj, l.mlp.experts.gate_up_proj) with FP8 codes in more than two dimensions \
                     (experts in one tensor, convolutions), which are not read here; dequantize it with what wrote it, or quantize the \
                     plain model";
        assert_words(&text, &[words]);
        assert_words(&error, &["1 thing is wrong"]);
        let error = bad(2, &["dequantize", &path, "-o", &folder.file("out")]);
        assert_words(
            &error,
            &[
                "holds FP8 codes of shape [2, 64, 64], in more than two dimensions (experts in one tensor, convolutions), which are not",
            ],
        );
    }
}

/// (Neither said a word.)
#[test]
fn casts_of_which_no_scale_is_left_are_told() {
    let folder = Folder::new();
    let [input, q, back] = ["in", "q", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("l.weight", [160, 64], 1)]);
    let info =
        "tensor l.weight_scale: holds 0 as each of its scales, beside codes that are not 0; quantize the matrix again";
    for options in [
        &["--group", "row"][..],
        &["--group", "32x32", "--scales", "column-major"],
        &["--group", "128x128", "--format", "e2m1"],
        &["--group", "32x1", "--transposed"],
    ] {
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        let mut file = fs::read(&q).unwrap();
        let place = |file: &[u8], name: &str| {
            let data = SafeTensors::deserialize(file).unwrap().tensor(name).unwrap().data().to_vec();
            (file.windows(data.len()).position(|bytes| bytes == data).unwrap(), data.len())
        };
        let (at, bytes) = place(&file, "l.weight_scale");
        let first = file[at..at + 4].to_vec();
        file[at..at + bytes].fill(0);
        fs::write(&q, &file).unwrap();
        assert_words(&wrong(&["info", &q]).0, &[info]);
        let words = "the scales of 1 matrix (l.weight) are 0 and their codes are not: all their values are 0";
        assert_words(&said(&["dequantize", &q, "-o", &back]), &[words]);
        // One of several may be left of groups of zeros.
        if bytes > 16 {
            let mut other = file.clone();
            other[at..at + 4].copy_from_slice(&first);
            fs::write(&q, other).unwrap();
            good(&["info", &q]);
            assert!(!said(&["dequantize", &q, "-o", &back]).contains("scales of"));
        }
        // And all are of a matrix of zeros.
        let (at, bytes) = place(&file, "l.weight");
        file[at..at + bytes].fill(0);
        fs::write(&q, file).unwrap();
        good(&["info", &q]);
        assert!(!said(&["dequantize", &q, "-o", &back]).contains("scales of"));
    }
}

/// (`info` and `quantize` told of them, and `dequantize`, which leaves them beside plain weights, did not.)
#[test]
fn stray_scales_beside_a_cast_are_told_by_dequantize() {
    let folder = Folder::new();
    let [input, q, output] = ["in", "q", "out"].map(|name| folder.file(name));
    let stray = ["m.o_proj.weight_scale_inv", "m.o_proj.weight_scale_2"]
        .map(|name| (name, Dtype::F32, vec![1], f32_bytes(&[0.5])));
    for (number, words) in [
        (
            1,
            "1 scale (m.o_proj.weight_scale_inv) that matrices are read without, copied as it is beside weights that are plain now",
        ),
        (
            2,
            "2 scales (m.o_proj.weight_scale_2, m.o_proj.weight_scale_inv) that matrices are read without, copied as they are",
        ),
    ] {
        write(&input, &[&[f32_tensor("m.o_proj.weight", [32, 32], 1)], &stray[..number]].concat());
        good(&["quantize", &input, "-o", &q, "--group", "1x32"]);
        assert_words(&said(&["dequantize", &q, "-o", &output]), &[words, "; take "]);
        assert_words(&good(&["info", &output]), &["beside weights that are plain"]);
    }
    write(&input, &[f32_tensor("m.o_proj.weight", [32, 32], 1)]);
    good(&["quantize", &input, "-o", &q, "--group", "1x32"]);
    let text = said(&["dequantize", &q, "-o", &output]);
    assert!(!text.contains("read without"), "{text}");
}

/// (It was copied without a word.)
#[test]
fn quantize_tells_of_a_cast_that_it_copies_and_that_cannot_be_read() {
    let folder = Folder::new();
    let [input, q, broken, output] = ["in", "q", "broken", "out"].map(|name| folder.file(name));
    let tensors = [f32_tensor("m.o_proj.weight", [32, 32], 1), f32_tensor("m.other.weight", [32, 32], 2)];
    write(&input, &tensors);
    good(&["quantize", &input, "-o", &q, "--group", "1x32", "--only", "o_proj"]);
    let mut all = fs::read(&q).unwrap();
    let view = SafeTensors::deserialize(&all).unwrap();
    let at = view.tensor("m.o_proj.weight_scale").unwrap().data().as_ptr() as usize - all.as_ptr() as usize;
    all[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&broken, all).unwrap();
    let text = said(&["quantize", &broken, "-o", &output, "--recipe", "fp8-row"]);
    assert_words(&text, &["copied as it is: ", "tensor m.o_proj.weight_scale: holds NaN as scale (0, 0)"]);
    let text = said(&["quantize", &q, "-o", &output, "--recipe", "fp8-row"]);
    assert!(!text.contains("copied as "), "{text}");
}
