//! What is left of matrices of which a tensor is missing: `info` names it, and `dequantize` makes no model of the rest.

mod common;

use common::*;
use safetensors::tensor::Dtype;
use serde_json::json;

fn u8(name: &'static str, shape: &[usize]) -> Tensor<'static> {
    (name, Dtype::U8, shape.to_vec(), vec![0x70; shape.iter().product()])
}

fn fp8(name: &'static str, shape: [usize; 2]) -> Tensor<'static> {
    (name, Dtype::F8_E4M3, shape.to_vec(), vec![0x35; shape[0] * shape[1]])
}

fn scale(name: &'static str, shape: &[usize]) -> Tensor<'static> {
    (name, Dtype::F32, shape.to_vec(), f32_bytes(&vec![0.5; shape.iter().product()]))
}

/// `info` finds one thing wrong, in these words, and so does `dequantize`, which writes nothing.
fn refused(tensors: &[Tensor], config: serde_json::Value, words: &[&str]) {
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    model_folder(&path, tensors, Some(config));
    let (text, error) = wrong(&["info", &path]);
    assert_words(&text, words);
    assert_words(&error, &["1 thing is wrong"]);
    for input in [path.clone(), format!("{path}/model.safetensors")] {
        let error = bad(2, &["dequantize", &input, "-o", &output]);
        assert_words(&error, words);
        assert!(!error.contains("not read here"), "{error}");
    }
    assert_eq!(folder.names(), ["in"]);
}

/// (Nothing was said, and the model that was written had no such layer.)
#[test]
fn scales_of_gpt_oss_without_blocks_are_said() {
    let config = json!({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}});
    let there =
        [u8("l.mlp.experts.gate_up_proj_blocks", &[2, 8, 1, 16]), u8("l.mlp.experts.gate_up_proj_scales", &[2, 8, 1])];
    let left = [u8("l.mlp.experts.down_proj_scales", &[2, 4, 2]), scale("l.mlp.experts.down_proj_bias", &[2, 4])];
    let words = ["tensor l.mlp.experts.down_proj_scales: holds scales of MXFP4 as gpt-oss has them, and their codes \
         l.mlp.experts.down_proj_blocks are not there; fetch or write the model again"];
    refused(&[&there[..], &left].concat(), config.clone(), &words);
    refused(&left, config, &words);
}

/// (Thirteen matrices of fourteen became plain, and the scale of the other was copied.)
#[test]
fn scales_without_their_codes_are_refused_whatever_the_scheme() {
    let words = |scale: &str| {
        format!(
            "neither tensor l.down_proj.weight nor l.down_proj.weight_packed is there, and scales of it are ({scale}); fetch or write \
             the model again"
        )
    };
    let config = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}});
    let there = [fp8("l.o_proj.weight", [128, 128]), scale("l.o_proj.weight_scale_inv", &[1, 1])];
    for name in ["l.down_proj.weight_scale_inv", "l.down_proj.weight_scale"] {
        refused(&[&there[..], &[scale(name, &[1, 1])]].concat(), config.clone(), &[&words(name)]);
    }
    // Of MX they were called codes.
    let mx = json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MXFP8"}});
    let there = [fp8("l.o_proj.weight", [4, 64]), u8("l.o_proj.weight_scale", &[4, 2])];
    let name = "l.down_proj.weight_scale";
    refused(&[&there[..], &[u8(name, &[4, 2])]].concat(), mx.clone(), &[&words(name)]);
    refused(&[u8(name, &[4, 2])], mx, &[&words(name)]);
}

/// (It was in no table, and beside nothing quantized nothing was said of it.)
#[test]
fn a_scale_beside_a_plain_weight_is_listed_whatever_is_beside_it() {
    let folder = Folder::new();
    let path = folder.file("in");
    let left = [f32_tensor("a.weight", [16, 32], 1), scale("a.weight_scale", &[3])];
    let quantized = [fp8("b.weight", [16, 32]), scale("b.weight_scale", &[1])];
    for tensors in [&left[..], &[&left[..], &quantized].concat()] {
        write(&path, tensors);
        let (text, error) = wrong(&["info", &path]);
        let row = text.lines().find(|line| line.contains("a.weight_scale  ")).unwrap_or_else(|| panic!("{text}"));
        assert_words(row, &["F32", " 3 "]);
        assert_words(&text, &["1 scale (a.weight_scale) beside weights that are plain"]);
        assert_words(&error, &["1 thing is wrong"]);
        assert!(!text.contains("b.weight_scale"), "{text}");
    }
}
