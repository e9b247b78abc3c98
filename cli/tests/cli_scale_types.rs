//! Scales of a type or a shape that no scheme has: `info` says of them what `dequantize` and `gemm` say.

mod common;

use std::fs;

use common::*;
use safetensors::tensor::Dtype;
use serde_json::json;

/// (Both read as matrices by `info`, which refused neither.)
#[test]
fn scales_of_types_that_none_have_are_refused_by_all() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let codes = |name| (name, Dtype::F8_E4M3, vec![32, 32], vec![0x35; 1024]);
    for (dtype, bytes) in [(Dtype::I32, 4), (Dtype::I64, 8), (Dtype::I8, 1), (Dtype::F64, 8)] {
        let tensors = [
            codes("w"),
            ("w_scale", dtype, vec![1], vec![1; bytes]),
            codes("v"),
            ("v_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
        ];
        write(&input, &tensors);
        let words = format!("tensor w_scale: is {dtype} [1], and such scales are F32 (BF16 and F16 are widened)");
        let (text, error) = wrong(&["info", &input]);
        assert_words(&text, &[&words, "; a scale is never converted: fetch the file again", "fp8-tensor"]);
        assert_words(&error, &["1 thing is wrong"]);
        assert_words(&bad(2, &["dequantize", &input, "-o", &output]), &[&words]);
        let place = format!("{input}:w");
        assert_words(&bad(2, &["gemm", "--a", &place, "--b", &place, "-o", &output]), &[&words]);
        assert_eq!(folder.names(), ["in"]);
    }
    // The second level of NVFP4.
    write(
        &input,
        &[
            ("w", Dtype::U8, vec![4, 16], vec![0x11; 64]),
            ("w_scale", Dtype::F8_E4M3, vec![4, 2], vec![0x38; 8]),
            ("w_scale_2", Dtype::I32, vec![1], vec![1; 4]),
        ],
    );
    let (text, _) = wrong(&["info", &input]);
    assert_words(&text, &["tensor w_scale_2: is I32 [1], and such scales are F32"]);
}

/// (They were called codes in a format that is not read.)
#[test]
fn blocks_of_gpt_oss_with_other_scales_are_said_with_both_shapes() {
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    let config = json!({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}});
    let u8 = |name, shape: &[usize]| (name, Dtype::U8, shape.to_vec(), vec![0x70; shape.iter().product()]);
    let (blocks, scales) = ("l.experts.down_proj_blocks", "l.experts.down_proj_scales");
    let f32_scales = (scales, Dtype::F32, vec![2, 4, 2], vec![0; 64]);
    let cases = [
        (u8(blocks, &[2, 4, 2, 16]), u8(scales, &[2, 4, 1]), "_scales: is U8 [2, 4, 1], but must be U8 [2, 4, 2]"),
        (u8(blocks, &[2, 4, 2, 16]), u8(scales, &[2, 2, 4]), "_scales: is U8 [2, 2, 4], but must be U8 [2, 4, 2]"),
        (
            u8(blocks, &[2, 4, 2, 16]),
            f32_scales,
            "_scales: is F32 [2, 4, 2] beside blocks of 16 bytes, l.experts.down_proj_blocks [2, 4, 2, 16]",
        ),
        (u8(blocks, &[2, 4, 32]), u8(scales, &[2, 4, 2]), "_blocks: is U8 [2, 4, 32], but must be U8 [2, 4, 2, 16]"),
    ];
    for (codes, scales, words) in cases {
        let good_one =
            [u8("l.experts.gate_up_proj_blocks", &[2, 8, 1, 16]), u8("l.experts.gate_up_proj_scales", &[2, 8, 1])];
        for tensors in [&[codes.clone(), scales.clone()][..], &[&good_one[..], &[codes, scales]].concat()] {
            let _ = fs::remove_dir_all(&path);
            model_folder(&path, tensors, Some(config.clone()));
            let (text, error) = wrong(&["info", &path]);
            let is_float = words.contains("F32");
            let remedy =
                if is_float { "; if it is of another format, dequantize it" } else { "a scale is never reshaped" };
            assert_words(&text, &["tensor l.experts.down_proj", words, remedy]);
            assert!(!text.contains("does not read"), "{text}");
            assert_words(&error, &["1 thing is wrong"]);
            assert_words(&bad(2, &["dequantize", &path, "-o", &output]), &["tensor l.experts.down_proj", words]);
        }
    }
}

/// (E8M0 is read, and the error asked for U8.)
#[test]
fn scales_of_blocks_are_asked_for_in_the_type_that_they_have() {
    let folder = Folder::new();
    let path = folder.file("in");
    let blocks = ("l.down_proj_blocks", Dtype::U8, vec![2, 4, 2, 16], vec![0x70; 256]);
    write(&path, &[blocks.clone(), ("l.down_proj_scales", Dtype::F8_E8M0, vec![2, 4, 2], vec![127; 16])]);
    assert_words(&good(&["info", &path]), &["l.down_proj", "mxfp4"]);
    write(&path, &[blocks, ("l.down_proj_scales", Dtype::F8_E8M0, vec![2, 4, 1], vec![127; 8])]);
    assert_words(&wrong(&["info", &path]).0, &["is F8_E8M0 [2, 4, 1], but must be F8_E8M0 [2, 4, 2] for its blocks"]);
    let packed = ("l.weight_packed", Dtype::U8, vec![4, 32], vec![0x70; 128]);
    write(&path, &[packed, ("l.weight_scale", Dtype::F8_E8M0, vec![4, 1], vec![127; 4])]);
    assert_words(&wrong(&["info", &path]).0, &["is F8_E8M0 [4, 1], but must be F8_E8M0 [4, 2] for 4 x 64"]);
}

/// (All were taken for gpt-oss's, and models that hold them refused.)
#[test]
fn blocks_that_gpt_oss_cannot_have_are_tensors_like_others() {
    let folder = Folder::new();
    let (path, file, output) = (folder.file("in"), folder.file("file"), folder.file("out"));
    let u8 = |name, shape: &[usize]| (name, Dtype::U8, shape.to_vec(), vec![0x70; shape.iter().product()]);
    let half =
        |shape: &[usize]| ("y_scales", Dtype::F16, shape.to_vec(), vec![0x30; 2 * shape.iter().product::<usize>()]);
    let cases = [
        [u8("y_blocks", &[2, 3, 4]), ("y_scales", Dtype::F32, vec![3], vec![0; 12])],
        // ggml's Q4_0: a scale and 32 codes, together or each for itself.
        [u8("y_blocks", &[32, 1, 18]), half(&[32, 1])],
        [u8("y_blocks", &[32, 1, 16]), half(&[32, 1])],
        [u8("y_blocks", &[2, 3, 4]), u8("y_scales", &[3])],
        [u8("y_blocks", &[2, 3, 4]), u8("y_scales", &[2, 3, 1])],
    ];
    for parts in cases {
        let tensors = [&[f32_tensor("l.weight", [128, 128], 1)], &parts[..]].concat();
        model_folder(&path, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
        let text = good(&["info", &path]);
        assert_words(&text, &["y_blocks", "y_scales"]);
        good(&["quantize", &path, "-o", &output, "--recipe", "fp8-128x128"]);
        let layer = [
            ("l.weight", Dtype::F8_E4M3, vec![32, 32], vec![0x35; 1024]),
            ("l.weight_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
        ];
        write(&file, &[&layer[..], &parts].concat());
        good(&["dequantize", &file, "-o", &folder.file("plain")]);
        for folder in [&path, &output] {
            fs::remove_dir_all(folder).unwrap();
        }
    }
}
