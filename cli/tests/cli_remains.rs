//! What is left of matrices of which a tensor is missing: `info` names it, and `dequantize` makes no model of the rest.

mod common;

use std::fs;

use common::*;
use safetensors::tensor::{Dtype, SafeTensors};
use serde_json::json;

fn u8(name: &'static str, shape: &[usize]) -> Tensor<'static> {
    (name, Dtype::U8, shape.to_vec(), vec![0x70; shape.iter().product()])
}

fn fp8(name: &'static str, shape: [usize; 2]) -> Tensor<'static> {
    (name, Dtype::F8_E4M3, shape.to_vec(), vec![0x35; shape[0] * shape[1]])
}

fn scale<'a>(name: &'a str, shape: &[usize]) -> Tensor<'a> {
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

/// (What is beside scales in two dimensions was taken for codes of another format, and the layer was gone without a word.)
#[test]
fn zero_points_and_scales_of_activations_are_no_codes() {
    let there = [fp8("l.o_proj.weight", [32, 32]), scale("l.o_proj.weight_scale", &[1])];
    let config = json!({"quantization_config": {"quant_method": "fp8"}});
    let words = ["neither tensor l.down_proj.weight nor ", "scales of it are (l.down_proj.weight_scale)"];
    for last in ["weight_zero_point", "input_zero_point", "zeros", "weight_shape", "input_scale", "output_scale"] {
        let name = format!("l.down_proj.{last}");
        let beside = (&*name, Dtype::BF16, vec![32, 2], vec![0; 128]);
        let left = [scale("l.down_proj.weight_scale", &[32, 2]), beside];
        refused(&[&there[..], &left].concat(), config.clone(), &words);
    }
    // (So were the two matrices of an adapter, which are below a module as weights of its own would be.)
    let below = |last: &str| format!("l.down_proj.{last}");
    for names in
        [["lora_A.weight", "lora_B.weight"], ["lora_A.default.weight", "lora_B.default.weight"]].map(|n| n.map(below))
    {
        let adapter = [scale(&names[0], &[4, 32]), scale(&names[1], &[32, 4])];
        let left = [scale("l.down_proj.weight_scale", &[1])];
        refused(&[&there[..], &left, &adapter].concat(), config.clone(), &words);
    }
}

/// (It was in no table, and beside nothing quantized nothing was said of it.)
#[test]
fn a_scale_beside_a_plain_weight_is_listed_whatever_is_beside_it() {
    let folder = Folder::new();
    let path = folder.file("in");
    let left = [f32_tensor("a.weight", [16, 32], 1), scale("a.weight_scale", &[3])];
    let quantized = [fp8("b.weight", [16, 32]), scale("b.weight_scale", &[1])];
    let words = "1 scale (a.weight_scale) beside weights that are plain";
    let listed = |text: &str| {
        let row = text.lines().find(|line| line.contains("a.weight_scale  ")).unwrap_or_else(|| panic!("{text}"));
        assert_words(row, &["F32", " 3 "]);
        assert_words(text, &[words]);
        assert!(!text.contains("b.weight_scale"), "{text}");
    };
    write(&path, &[&left[..], &quantized].concat());
    let (text, error) = wrong(&["info", &path]);
    listed(&text);
    assert_words(&error, &["1 thing is wrong"]);
    // A plain model may have learned it. (That was wrong, too.)
    write(&path, &left);
    let text = good(&["info", &path]);
    listed(&text);
    assert!(!text.contains("What is wrong") && !text.contains("fetch or write"), "{text}");
    let (plain, said) = (folder.file("plain"), folder.file("said"));
    model_folder(&plain, &left, Some(json!({"architectures": ["LlamaForCausalLM"]})));
    listed(&good(&["info", &plain]));
    // One that says that it is quantized has not.
    model_folder(&said, &left, Some(json!({"quantization_config": {"quant_method": "fp8"}})));
    listed(&wrong(&["info", &said]).0);
}

/// `info` finds nothing wrong with these beside a good layer, and `dequantize` copies them.
fn copied(tensors: &[Tensor]) {
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    let layer = [fp8("l.o_proj.weight", [32, 32]), scale("l.o_proj.weight_scale", &[1])];
    write(&path, &[&layer[..], tensors].concat());
    let text = good(&["info", &path]);
    good(&["dequantize", &path, "-o", &output]);
    let bytes = fs::read(output).unwrap();
    let written = SafeTensors::deserialize(&bytes).unwrap();
    for (name, _, _, bytes) in tensors {
        assert!(text.contains(name), "{text}");
        assert_eq!(written.tensor(name).unwrap().data(), bytes, "{name}");
    }
}

/// (Each was refused: "no scale of theirs is there".)
#[test]
fn packed_codes_with_scales_of_other_names_are_of_another_format() {
    let names =
        ["y.weight_scales", "y.weight_absmax", "y.scales", "y.absmax", "y.zeros", "y.zero_point", "y.weight.absmax"];
    for name in names {
        copied(&[u8("y.weight_packed", &[16, 16]), scale(name, &[16])]);
    }
    // Those of activations are of no codes.
    let config = json!({"quantization_config": {"quant_method": "compressed-tensors"}});
    let words = "tensor y.weight_packed: holds packed codes, and no scale of theirs is there";
    for name in ["y.input_global_scale", "y.input_scale", "z.weight_scales"] {
        let folder = Folder::new();
        let path = folder.file("in");
        model_folder(&path, &[u8("y.weight_packed", &[16, 16]), scale(name, &[1])], Some(config.clone()));
        assert_words(&wrong(&["info", &path]).0, &[words]);
        assert_words(&bad(2, &["dequantize", &path, "-o", &folder.file("out")]), &[words]);
    }
}

/// (They were refused as what is left of a matrix.)
#[test]
fn a_learned_scale_of_a_module_with_weights_below_it_is_copied() {
    for name in ["y.parametrizations.weight.original0", "y.conv.weight"] {
        copied(&[scale("y.weight_scale", &[1]), scale(name, &[4, 1])]);
    }
}

/// (They were refused, and their codes are there under names of their own.)
#[test]
fn bytes_of_three_dimensions_with_codes_of_other_names_are_copied() {
    for [scales, codes] in
        [["y_scales", "y_weight"], ["y.w_scales", "y.q"], ["m.y_scales", "m.y_q"], ["m.y_scales", "m.y.codes"]]
    {
        for dtype in [Dtype::U8, Dtype::I32] {
            let bytes = if dtype == Dtype::I32 { 4 } else { 1 };
            copied(&[u8(scales, &[2, 4, 2]), (codes, dtype, vec![8, 16], vec![1; 128 * bytes])]);
        }
    }
}

/// A layer, and embeddings of this name, 32 by 32.
fn layer(embeddings: &str) -> [Tensor<'_>; 3] {
    [
        fp8("l.o_proj.weight", [32, 32]),
        scale("l.o_proj.weight_scale", &[1]),
        (embeddings, Dtype::F32, vec![32, 32], f32_bytes(&values(1024, 1))),
    ]
}

/// A config that says that the head is tied.
fn tied() -> serde_json::Value {
    json!({"tie_word_embeddings": true, "quantization_config": {"quant_method": "fp8"}})
}

/// The tensors that are left where these words are said, once by `info` and once by `dequantize`.
fn left_out(tensors: &[Tensor], config: serde_json::Value, words: &str) -> Vec<String> {
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    model_folder(&path, tensors, Some(config));
    assert_words(&good(&["info", &path]), &[words]);
    assert_words(&said(&["dequantize", &path, "-o", &output]), &[words, "left out"]);
    let bytes = fs::read(format!("{output}/model.safetensors")).unwrap();
    let mut names: Vec<_> = SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(String::from).collect();
    names.sort();
    names
}

/// (There was no way around the refusal.)
#[test]
fn a_scale_of_a_tied_head_is_left_out_and_said() {
    let quantization = json!({"quant_method": "fp8"});
    let layer = layer("model.embed_tokens.weight");
    let scales = [
        scale("lm_head.weight_scale", &[1]),
        u8("lm_head.weight_scale", &[32, 1]),
        ("lm_head.weight_scale", Dtype::F8_E4M3, vec![32, 2], vec![0x38; 64]),
    ];
    let (own, inner) = (json!({"tie_word_embeddings": false}), json!({"tie_word_embeddings": true}));
    // Where the two differ, one that says so is enough. (The inner one, which engines go by, was not asked.)
    let configs = [
        inner.clone(),
        json!({"text_config": inner}),
        json!({"tie_word_embeddings": false, "text_config": inner}),
        json!({"tie_word_embeddings": true, "text_config": own}),
    ];
    let words = "1 tensor (lm_head.weight_scale) of a head that shares the weight of the embeddings";
    let want = ["l.o_proj.weight", "model.embed_tokens.weight"];
    for head in scales {
        let tensors = [&layer[..], &[head]].concat();
        for mut config in configs.clone() {
            config["quantization_config"] = quantization.clone();
            assert_eq!(left_out(&tensors, config, words), want);
        }
    }
    // Of another layer, or a head of its own, or one whose embeddings are not there, it is what is left.
    let folder = Folder::new();
    let cases = [
        ("lm_head.weight_scale", own, &layer[..]),
        ("lm_head.weight_scale", json!({}), &layer[..]),
        ("lm_head.weight_scale", inner.clone(), &layer[..2]),
        ("m.up_proj.weight_scale", inner.clone(), &layer[..]),
    ];
    for (i, (name, mut config, layer)) in cases.into_iter().enumerate() {
        let path = folder.file(&format!("left{i}"));
        config["quantization_config"] = quantization.clone();
        model_folder(&path, &[layer, &[scale(name, &[1])]].concat(), Some(config));
        let words = "and scales of it are";
        assert_words(&wrong(&["info", &path]).0, &[words]);
        assert_words(&bad(2, &["dequantize", &path, "-o", &folder.file("out")]), &[words]);
    }
}

/// (All but those of what enters were copied, and zero points in two dimensions hid the rest.)
#[test]
fn all_that_is_beside_the_codes_of_a_tied_head_goes() {
    let layer = layer("model.embed_tokens.weight");
    for last in ["input_scale", "pre_quant_scale", "output_scale", "weight_shape", "weight_zero_point", "weight_g_idx"]
    {
        let name = format!("lm_head.{last}");
        // What the head learned beside its weight stays.
        let head = [scale("lm_head.weight_scale", &[32, 2]), scale(&name, &[2, 2]), scale("lm_head.bias", &[32])];
        let mut names = ["lm_head.weight_scale", &name];
        names.sort();
        let words = format!("2 tensors ({}) of a head that shares", names.join(", "));
        let left = left_out(&[&layer[..], &head].concat(), tied(), &words);
        assert_eq!(left, ["l.o_proj.weight", "lm_head.bias", "model.embed_tokens.weight"]);
    }
}

/// (Whatever had `embed` in its name was one, and those of T5 were none.)
#[test]
fn embeddings_of_a_tied_head_are_known_by_their_module() {
    let head = [scale("lm_head.weight_scale", &[1])];
    let names = [
        "model.embed_tokens",
        "shared",
        "transformer.wte",
        "backbone.embeddings",
        "m.token_embedding",
        "m.vocab_embedding",
    ];
    for name in names.map(|name| format!("{name}.weight")) {
        left_out(&[&layer(&name)[..], &head].concat(), tied(), "of a head that shares");
    }
    for name in ["vision.patch_embed.proj.weight", "model.embed_positions.weight", "model.embed_tokens.bias"] {
        let words = "scales of it are (lm_head.weight_scale)";
        refused(&[&layer(name)[..], &head].concat(), tied(), &[words]);
    }
    // Quantized ones.
    let packed = [
        u8("model.embed_tokens.weight_packed", &[32, 16]),
        ("model.embed_tokens.weight_scale", Dtype::F8_E4M3, vec![32, 2], vec![0x38; 64]),
        scale("model.embed_tokens.weight_global_scale", &[1]),
    ];
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    model_folder(&path, &[&layer("x.weight")[..2], &packed, &head].concat(), Some(tied()));
    assert_words(&said(&["dequantize", &path, "-o", &output]), &["of a head that shares"]);
    // Those of GPTQ and AWQ. (The head was what is left of a matrix.)
    let words = ("model.embed_tokens.qweight", Dtype::I32, vec![4, 32], vec![1; 512]);
    fs::remove_dir_all(&path).unwrap();
    model_folder(&path, &[&layer("x.weight")[..2], &[words], &head].concat(), Some(tied()));
    let text = String::from_utf8(run_on("cpu", &["info", &path]).stdout).unwrap();
    assert!(text.contains("of a head that shares") && !text.contains("neither tensor"), "{text}");
}

/// (`info` named the codes that are lost, and this a scale of theirs that is no matrix.)
#[test]
fn lost_codes_of_nvfp4_are_refused_in_the_words_of_info() {
    let there = [
        u8("l.a.weight", &[16, 16]),
        ("l.a.weight_scale", Dtype::F8_E4M3, vec![16, 2], vec![0x38; 32]),
        scale("l.a.weight_scale_2", &[1]),
    ];
    let left = [("l.b.weight_scale", Dtype::F8_E4M3, vec![16, 2], vec![0x38; 32]), scale("l.b.weight_scale_2", &[1])];
    let config = json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}});
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    model_folder(&path, &[&there[..], &left].concat(), Some(config));
    let words = "scales of it are (l.b.weight_scale_2, l.b.weight_scale)";
    assert_words(&wrong(&["info", &path]).0, &[words]);
    assert_words(&bad(2, &["dequantize", &path, "-o", &output]), &[words]);
}

/// (Its scale in FP8 counted as a matrix, and nothing was wrong.)
#[test]
fn a_folder_with_nothing_but_a_scale_of_a_tied_head_is_not_quantized() {
    let folder = Folder::new();
    let path = folder.file("in");
    let head = ("lm_head.weight_scale", Dtype::F8_E4M3, vec![32, 2], vec![0x38; 64]);
    model_folder(&path, &[&layer("model.embed_tokens.weight")[2..], &[head]].concat(), Some(tied()));
    let (text, error) = wrong(&["info", &path]);
    assert_words(&text, &["and no quantized matrix is there", "of a head that shares"]);
    assert_words(&error, &["1 thing is wrong"]);
}

/// (All of them were noted again for each.)
#[test]
fn many_scales_of_tied_heads_take_no_time() {
    let folder = Folder::new();
    let names: Vec<_> = (0..20_000).map(|i| format!("x{i}.lm_head.weight_scale")).collect();
    let heads = names.iter().map(|name| scale(name, &[1]));
    let tensors: Vec<Tensor> = layer("model.embed_tokens.weight").into_iter().chain(heads).collect();
    let path = folder.file("in");
    model_folder(&path, &tensors, Some(tied()));
    within_seconds(10, || said(&["dequantize", &path, "-o", &folder.file("out")]));
}

/// (Each module around a tensor was hashed by its whole name, for each tensor.)
#[test]
fn deep_modules_that_lost_their_codes_take_no_time() {
    let folder = Folder::new();
    let deep = "a.".repeat(1000);
    let lost: Vec<_> = (1..1000).map(|depth| format!("{}weight_scale", &deep[..2 * depth])).collect();
    let within: Vec<_> = (0..2000).map(|i| format!("{deep}{i}")).collect();
    let tensors = lost.iter().map(|name| scale(name, &[1]));
    let tensors = tensors.chain(within.iter().map(|name| (&**name, Dtype::BF16, vec![2, 2], vec![0; 8])));
    let layer = [fp8("q.weight", [16, 16]), scale("q.weight_scale", &[1])];
    let path = folder.file("in");
    model_folder(&path, &tensors.chain(layer).collect::<Vec<_>>(), Some(json!({"quantization_config": {}})));
    within_seconds(10, || good(&["dequantize", &path, "-o", &folder.file("out")]));
}

/// (Every module around a tensor was looked up by its whole name.)
#[test]
fn long_names_beside_lost_codes_take_no_time() {
    let folder = Folder::new();
    let long = "a.".repeat(1 << 20);
    let (lost, other) = (format!("{long}y.weight_scale"), format!("{long}z"));
    let tensors = [
        fp8("q.weight", [16, 16]),
        scale("q.weight_scale", &[1]),
        (&lost, Dtype::F32, vec![1], f32_bytes(&[0.5])),
        (&other, Dtype::BF16, vec![16, 16], vec![0; 512]),
    ];
    let path = folder.file("in");
    model_folder(&path, &tensors, Some(json!({"quantization_config": {"quant_method": "fp8"}})));
    within_seconds(15, || bad(2, &["dequantize", &path, "-o", &folder.file("out")]));
}

/// (All tensors were looked at for each scale without codes.)
#[test]
fn many_scales_without_codes_take_no_time() {
    let folder = Folder::new();
    let names = |end: &str| (0..2000).map(|i| format!("m.x{i}{end}")).collect::<Vec<_>>();
    let (weights, scales, lost) = (names("_w"), names("_w_scale"), names("_d_scales"));
    let mut tensors: Vec<Tensor> = Vec::new();
    for i in 0..weights.len() {
        tensors.push((&weights[i], Dtype::F8_E4M3, vec![16, 16], vec![0x35; 256]));
        tensors.push((&scales[i], Dtype::F32, vec![1], f32_bytes(&[0.5])));
        tensors.push((&lost[i], Dtype::U8, vec![2, 2, 2], vec![0x70; 8]));
    }
    let path = folder.file("in");
    model_folder(&path, &tensors, Some(json!({"quantization_config": {"quant_method": "fp8"}})));
    let error = within_seconds(5, || bad(2, &["dequantize", &path, "-o", &folder.file("out")]));
    assert!(error.contains("m.x0_d_scales"), "{error}");
}

/// (They were FP8 without a scale, for which one was asked.)
#[test]
fn zero_points_in_fp8_are_called_so() {
    let layer = [fp8("l.o_proj.weight", [32, 32]), scale("l.o_proj.weight_scale", &[32, 1])];
    let zeros = ("l.o_proj.weight_zero_point", Dtype::F8_E4M3, vec![32, 1], vec![0; 32]);
    let folder = Folder::new();
    let (path, output) = (folder.file("in"), folder.file("out"));
    write(&path, &[&layer[..], &[zeros]].concat());
    let words = "tensor l.o_proj.weight_zero_point: holds zero points of l.o_proj.weight in F8_E4M3 [32, 1], and codes that are read here have \
                 none; if all are 0, as of a symmetric scheme, write the file without it, else dequantize the matrix with what wrote it";
    assert_words(&wrong(&["info", &path]).0, &[words]);
    assert_words(&bad(2, &["dequantize", &path, "-o", &output]), &[words]);
    // Of another type they are beside the codes, as compressed-tensors has those of integers.
    copied(&[("l.o_proj.weight_zero_point", Dtype::I8, vec![32, 1], vec![0; 32])]);
}
