//! `quantize` and `dequantize` of models whose experts are in one tensor of rank 3: each expert is what its matrix alone would be.

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::*;
use half::bf16;
use ndarray::{Array2, ArrayView2};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::{DType, GivenScale, HostQuantMatrix, Recipe, Scheme, reference};
use serde_json::{Value, json};

const EXPERTS: usize = 3;
const HIDDEN: usize = 256;
const INNER: usize = 128;

/// An architecture as its checkpoints have it, in words of this test.
#[derive(Clone, Copy)]
struct Model {
    model_type: &'static str,
    /// Before the names of its tensors, and before those of its experts.
    parent: &'static str,
    experts: &'static str,
    /// Names of gate and up, and of down; gate and up apart where there are three.
    names: &'static [&'static str],
    transposed: bool,
    interleaved: bool,
}

const LLAMA4: Model = Model {
    model_type: "llama4_text",
    parent: "model.layers.0.feed_forward",
    experts: "model.layers.0.feed_forward.experts",
    names: &["experts.gate_up_proj", "experts.down_proj"],
    transposed: true,
    interleaved: false,
};
const GRANITE: Model = Model {
    model_type: "granitemoe",
    parent: "model.layers.0.block_sparse_moe",
    experts: "model.layers.0.block_sparse_moe.experts",
    names: &["input_linear.weight", "output_linear.weight"],
    transposed: false,
    ..LLAMA4
};
const STEP: Model = Model {
    model_type: "step3p5",
    parent: "model.layers.0.moe",
    experts: "model.layers.0.moe.experts",
    names: &["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
    ..GRANITE
};
const GPT_OSS: Model = Model {
    model_type: "gpt_oss",
    parent: "model.layers.0.mlp",
    experts: "model.layers.0.mlp.experts",
    interleaved: true,
    ..LLAMA4
};
const MODELS: [Model; 7] = [
    LLAMA4,
    GRANITE,
    STEP,
    GPT_OSS,
    Model { model_type: "qwen3_vl_moe", interleaved: false, ..GPT_OSS },
    Model { model_type: "gemma4", transposed: false, interleaved: false, ..GPT_OSS },
    Model { model_type: "aria", names: &["experts.fc1.weight", "experts.fc2.weight"], interleaved: false, ..GPT_OSS },
];

/// The matrix `[out, in]` of an expert: 0 gate, 1 up, 2 down. Each has a size of its own.
fn matrix(expert: usize, part: usize) -> Array2<f32> {
    let (rows, cols) = if part == 2 { (HIDDEN, INNER) } else { (INNER, HIDDEN) };
    let size = 0.02 * (1 + (expert * 3 + part) % 5) as f32;
    let all = values(rows * cols, (expert * 3 + part + 1) as u32).into_iter();
    Array2::from_shape_vec((rows, cols), all.map(|v| bf16::from_f32(v * size).to_f32()).collect()).unwrap()
}

/// A tensor of rank 3 of such matrices: gate and up, or one.
fn bank(model: &Model, parts: &[usize]) -> (Vec<usize>, Vec<f32>) {
    let experts: Vec<Vec<Array2<f32>>> = (0..EXPERTS).map(|e| parts.iter().map(|p| matrix(e, *p)).collect()).collect();
    let (each, cols) = experts[0][0].dim();
    let rows = each * parts.len();
    let at = |e: usize, row: usize, col: usize| match model.interleaved {
        true => experts[e][row % parts.len()][[row / parts.len(), col]],
        false => experts[e][row / each][[row % each, col]],
    };
    let mut all = Vec::new();
    for e in 0..EXPERTS {
        match model.transposed {
            true => (0..cols).for_each(|col| all.extend((0..rows).map(|row| at(e, row, col)))),
            false => (0..rows).for_each(|row| all.extend((0..cols).map(|col| at(e, row, col)))),
        }
    }
    (if model.transposed { vec![EXPERTS, cols, rows] } else { vec![EXPERTS, rows, cols] }, all)
}

fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
}

/// The tensors of experts of a model: name, shape, values.
fn banks(model: &Model) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let parts: &[&[usize]] = if model.names.len() == 3 { &[&[0], &[1], &[2]] } else { &[&[0, 1], &[2]] };
    let named = model.names.iter().zip(parts);
    named
        .map(|(name, parts)| {
            let (shape, values) = bank(model, parts);
            (format!("{}.{name}", model.parent), shape, values)
        })
        .collect()
}

/// A folder of one layer with experts, an attention weight, a router and a head.
fn folder_of(folder: &Folder, model: &Model, name: &str) -> String {
    let mut tensors: Vec<_> =
        banks(model).into_iter().map(|(name, shape, values)| (name, shape, bf16_bytes(&values))).collect();
    let plain = |n: usize, k: usize, seed| bf16_bytes(&values(n * k, seed));
    tensors.push(("model.layers.0.self_attn.q_proj.weight".into(), vec![64, HIDDEN], plain(64, HIDDEN, 40)));
    let router = format!("{}.router.weight", model.parent);
    tensors.push((router, vec![EXPERTS, HIDDEN], plain(EXPERTS, HIDDEN, 41)));
    tensors.push(("lm_head.weight".into(), vec![32, HIDDEN], plain(32, HIDDEN, 42)));
    if model.model_type == "gpt_oss" {
        let bias = format!("{}.experts.gate_up_proj_bias", model.parent);
        tensors.push((bias, vec![EXPERTS, 2 * INNER], plain(EXPERTS, 2 * INNER, 43)));
    }
    of_tensors(folder, name, &json!({"model_type": model.model_type}), &tensors)
}

fn of_tensors(folder: &Folder, name: &str, config: &Value, tensors: &[(String, Vec<usize>, Vec<u8>)]) -> String {
    let path = folder.file(name);
    fs::create_dir(&path).unwrap();
    let all: Vec<Tensor<'_>> =
        tensors.iter().map(|(n, shape, bytes)| (n.as_str(), Dtype::BF16, shape.clone(), bytes.clone())).collect();
    write(&format!("{path}/model.safetensors"), &all);
    fs::write(format!("{path}/config.json"), config.to_string()).unwrap();
    path
}

type All = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn all_tensors(path: &str) -> All {
    let bytes = fs::read(format!("{path}/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(n, t)| (n.to_string(), (t.dtype(), t.shape().to_vec(), t.data().to_vec()))).collect()
}

fn config(path: &str) -> Value {
    serde_json::from_slice(&fs::read(format!("{path}/config.json")).unwrap()).unwrap()
}

fn scheme(recipe: &str) -> Scheme {
    Scheme::ALL.into_iter().find(|s| s.spec().name == recipe && s.spec().format.name() != "e5m2").unwrap()
}

/// What an expert's matrix alone is, with the scale that gate and up share.
fn alone(expert: usize, part: usize, recipe: &str, fused: bool) -> HostQuantMatrix {
    let x = matrix(expert, part);
    let amax = |part: usize| reference::amax(matrix(expert, part).as_slice().unwrap());
    let (view, recipe) = (ArrayView2::from(&x), Recipe::new(scheme(recipe)));
    match recipe.scheme() {
        Scheme::Nvfp4 | Scheme::Fp8Tensor(_) if part < 2 && fused => {
            let given = GivenScale::Amax(amax(0).max(amax(1)));
            reference::quantize_part(view, DType::Bf16, recipe, given).unwrap()
        }
        _ => reference::quantize(view, DType::Bf16, recipe).unwrap(),
    }
}

const PARTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

fn names(model: &Model) -> impl Iterator<Item = (usize, usize, String)> + use<> {
    let experts = model.experts;
    (0..EXPERTS).flat_map(move |e| (0..3).map(move |p| (e, p, format!("{experts}.{e}.{}.weight", PARTS[p]))))
}

#[test]
fn each_expert_is_what_its_matrix_alone_would_be() {
    let folder = Folder::new();
    for (i, model) in MODELS.into_iter().enumerate() {
        let input = folder_of(&folder, &model, &format!("in{i}"));
        let all: &[(&str, &str)] = match model.model_type {
            "llama4_text" => &[
                ("nvfp4", "modelopt"),
                ("nvfp4", "plain"),
                ("fp8-tensor", "fp8"),
                ("fp8-tensor", "compressed-tensors"),
                ("fp8-128x128", "fp8"),
                ("fp8-row", "compressed-tensors"),
                ("mxfp8", "modelopt"),
                ("mxfp4", "compressed-tensors"),
                ("nvfp4-row", "plain"),
                ("fp8-1x128", "plain"),
            ],
            "gpt_oss" => &[("nvfp4", "plain"), ("mxfp4", "plain")],
            "aria" => &[("fp8-row", "plain")],
            _ => &[("nvfp4", "modelopt"), ("fp8-128x128", "fp8")],
        };
        for (j, (recipe, dialect)) in all.iter().enumerate() {
            let what = format!("{} {recipe} {dialect}", model.model_type);
            let output = folder.file(&format!("out{i}-{j}"));
            let said = good(&["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect]);
            assert_words(&said, &["experts", "written one by one"]);
            let checkpoint = Checkpoint::open(&output).unwrap();
            for (e, p, name) in names(&model) {
                assert_eq!(checkpoint.quant_matrix(&name).unwrap(), alone(e, p, recipe, true), "{what}: {name}");
            }
            assert_eq!(checkpoint.quantized().len(), EXPERTS * 3 + 1, "{what}");
            for (bank, ..) in banks(&model) {
                assert!(checkpoint.get(&bank).is_none(), "{what}: {bank}");
            }
            if *dialect == "plain" {
                continue;
            }
            let report = good(&["info", &output]);
            assert!(!report.contains("What is wrong"), "{what}: {report}");
            let config = &config(&output)["quantization_config"];
            let list = ["ignore", "modules_to_not_convert"].iter().find_map(|key| config.get(key)).unwrap();
            assert_eq!(list, &json!(["lm_head", format!("{}.router", model.parent)]), "{what}");
        }
    }
}

/// One divisor of gate and up, of which the reciprocal is the scale of the codes.
#[test]
fn gate_and_up_of_an_expert_share_their_divisor() {
    let folder = Folder::new();
    let input = folder_of(&folder, &LLAMA4, "in");
    let output = folder.file("out");
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--dialect", "compressed-tensors"]);
    let (tensors, checkpoint) = (all_tensors(&output), Checkpoint::open(&output).unwrap());
    let divisor = |name: &str| {
        let (_, shape, bytes) = &tensors[&format!("{name}_global_scale")];
        assert_eq!(shape, &[1]);
        f32::from_le_bytes(bytes.as_slice().try_into().unwrap())
    };
    let mut found = Vec::new();
    for (e, p, name) in names(&LLAMA4) {
        let x = matrix(e, p);
        let given = GivenScale::Encode(divisor(&name));
        let recipe = Recipe::new(Scheme::Nvfp4);
        let want = reference::quantize_with_scale(x.view(), DType::Bf16, recipe, given).unwrap();
        assert_eq!(checkpoint.quant_matrix(&name).unwrap(), want, "{name}");
        found.push(divisor(&name));
    }
    for expert in found.chunks(3) {
        assert!(expert[0] == expert[1] && expert[0] != expert[2], "{found:?}");
    }
    // Without it each has its own, and info says so.
    let own = folder.file("own");
    good(&["quantize", &input, "-o", &own, "--recipe", "nvfp4", "--no-fuse"]);
    let checkpoint = Checkpoint::open(&own).unwrap();
    for (e, p, name) in names(&LLAMA4) {
        assert_eq!(checkpoint.quant_matrix(&name).unwrap(), alone(e, p, "nvfp4", false), "{name}");
    }
    assert_words(&wrong(&["info", &own]).0, &["What is wrong", "experts.0.gate_proj"]);
}

/// transformers and vLLM read `_blocks` and `_scales` of all experts, rows of output features, gate and up in turn.
#[test]
fn gpt_oss_is_written_as_it_was_published() {
    let folder = Folder::new();
    let input = folder_of(&folder, &GPT_OSS, "in");
    let output = folder.file("out");
    let said = good(&["quantize", &input, "-o", &output, "--recipe", "mxfp4"]);
    assert_words(&said, &["dialect gpt-oss", "2 matrices", "which alone engines read in the MXFP4 of gpt-oss"]);
    let (before, after) = (all_tensors(&input), all_tensors(&output));
    let parent = "model.layers.0.mlp.experts";
    for (name, parts, cols) in [("gate_up_proj", &[0, 1][..], HIDDEN), ("down_proj", &[2], INNER)] {
        let (dtype, shape, blocks) = &after[&format!("{parent}.{name}_blocks")];
        let rows = if parts.len() == 2 { 2 * INNER } else { HIDDEN };
        assert_eq!((*dtype, shape), (Dtype::U8, &vec![EXPERTS, rows, cols / 32, 16]), "{name}");
        let (dtype, shape, scales) = &after[&format!("{parent}.{name}_scales")];
        assert_eq!((*dtype, shape), (Dtype::U8, &vec![EXPERTS, rows, cols / 32]), "{name}");
        for e in 0..EXPERTS {
            let each: Vec<Array2<f32>> =
                parts.iter().map(|p| reference::dequantize(&alone(e, *p, "mxfp4", true), DType::F32)).collect();
            for row in 0..rows {
                let want = each[row % each.len()].row(row / each.len()).to_vec();
                // Low half first: transformers integrations/mxfp4.py:270.
                let place = (e * rows + row) * cols;
                let value = |at: usize| {
                    let nibble = blocks[at / 2] >> (4 * (at % 2)) & 15;
                    let number = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(nibble & 7)];
                    let scale = 2f32.powi(i32::from(scales[at / 32]) - 127);
                    if nibble & 8 == 0 { number * scale } else { -number * scale }
                };
                let got: Vec<f32> = (place..place + cols).map(value).collect();
                assert_eq!(got, want, "{name} of expert {e}, row {row}");
            }
        }
    }
    for name in [format!("{parent}.gate_up_proj_bias"), "model.layers.0.self_attn.q_proj.weight".into()] {
        assert_eq!(before[&name], after[&name], "{name}");
    }
    let left = json!(["lm_head", "model.layers.0.mlp.router", "model.layers.0.self_attn.q_proj"]);
    let want = json!({"quant_method": "mxfp4", "modules_to_not_convert": left});
    assert_eq!(config(&output)["quantization_config"], want);
    let said = good(&["info", &output]);
    assert!(said.contains("3 x 256 x 256") && !said.contains("What is wrong"), "{said}");
    // (A file alone came back as [experts, rows, columns], the folder as the model's own code multiplies it.)
    let (single, back, whole) = (folder.file("alone.safetensors"), folder.file("b.safetensors"), folder.file("b"));
    fs::copy(format!("{output}/model.safetensors"), &single).unwrap();
    good(&["dequantize", &single, "-o", &back, "--dtype", "f32"]);
    good(&["dequantize", &output, "-o", &whole, "--dtype", "f32"]);
    let (back, whole) = (Checkpoint::open(&back).unwrap(), Checkpoint::open(&whole).unwrap());
    for name in ["gate_up_proj", "down_proj"].map(|name| format!("{parent}.{name}")) {
        assert_eq!(back.info(&name).unwrap().shape, before[&name].1, "{name}");
        assert_eq!(back.bytes(&name).unwrap(), whole.bytes(&name).unwrap(), "{name}");
    }
    // Engines read no other recipe of it: said, and copied.
    let value = json(&["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--json"]);
    assert_eq!(value["quantized"].as_array().unwrap().len(), 1);
    let words = ["which no engine reads quantized in this dialect", "--recipe mxfp4 with --dialect gpt-oss"];
    assert_words(&value["copied"].to_string(), &words);
    // All or none: vLLM reads no list.
    let args = ["quantize", &input, "--recipe", "mxfp4", "--dry-run", "--exclude", "down_proj"];
    assert_words(&bad(2, &args), &["no matrix to quantize", "left alone"]);
}

#[test]
fn a_folder_and_back_has_the_tensors_that_it_had() {
    let folder = Folder::new();
    for (i, model) in MODELS.into_iter().enumerate() {
        let input = folder_of(&folder, &model, &format!("in{i}"));
        let plain = ["--dialect", "plain"];
        let cases: &[(&str, &[&str])] =
            &[("mxfp4", if model.model_type == "aria" { &plain } else { &[] }), ("nvfp4", &plain), ("fp8-row", &plain)];
        for (j, (recipe, options)) in cases.iter().enumerate() {
            let what = format!("{} {recipe}", model.model_type);
            let (output, back) = (folder.file(&format!("q{i}-{j}")), folder.file(&format!("b{i}-{j}")));
            good(&[&["quantize", &input, "-o", &output, "--recipe", recipe][..], options].concat());
            let said = good(&["dequantize", &output, "-o", &back, "--dtype", "f32"]);
            let after = all_tensors(&back);
            assert!(all_tensors(&input).keys().eq(after.keys()), "{what}: {:?}", after.keys());
            let mut wanted = banks(&model);
            let parts: &[&[usize]] = if model.names.len() == 3 { &[&[0], &[1], &[2]] } else { &[&[0, 1], &[2]] };
            for ((name, shape, values), parts) in wanted.iter_mut().zip(parts) {
                // The same tensor made of what the experts' codes decode to.
                let decoded: Vec<Vec<Array2<f32>>> = (0..EXPERTS)
                    .map(|e| {
                        let one = |p: &usize| reference::dequantize(&alone(e, *p, recipe, true), DType::F32);
                        parts.iter().map(one).collect()
                    })
                    .collect();
                for (e, expert) in decoded.iter().enumerate() {
                    let (each, cols) = expert[0].dim();
                    let rows = each * parts.len();
                    for row in 0..rows {
                        for col in 0..cols {
                            let at = if model.transposed { col * rows + row } else { row * cols + col };
                            let (part, of_part) = match model.interleaved {
                                true => (row % parts.len(), row / parts.len()),
                                false => (row / each, row % each),
                            };
                            values[e * rows * cols + at] = expert[part][[of_part, col]];
                        }
                    }
                }
                let (dtype, found, bytes) = &after[name.as_str()];
                assert_eq!((*dtype, found), (Dtype::F32, &*shape), "{what}: {name}");
                assert!(*bytes == f32_bytes(values), "{what}: {name}");
                assert_words(&said, &[name.as_str()]);
            }
        }
    }
}

fn reason(value: &Value, name: &str) -> String {
    let copied = value["copied"].as_array().unwrap();
    let found = copied.iter().find(|c| c["tensor"] == name);
    found.unwrap_or_else(|| panic!("{name} is not copied: {value:#}"))["reason"].as_str().unwrap().to_string()
}

#[test]
fn what_cannot_be_quantized_is_copied_with_its_tensor_and_named() {
    let folder = Folder::new();
    let (gate_up, down) = ("m.mlp.experts.gate_up_proj", "m.mlp.experts.down_proj");
    let o_proj = || ("m.o_proj.weight".to_string(), vec![32, 32], bf16_bytes(&values(32 * 32, 3)));
    let tensor = |name: &str, shape: [usize; 3]| {
        (name.to_string(), shape.to_vec(), bf16_bytes(&values(shape.iter().product(), 5)))
    };
    let whole = "engines run it with experts that are left alone";
    // Shapes of gate and up and of down, [experts, in, out]; why the first and the second stay.
    let cases: [([usize; 3], [usize; 3], &str, &str); 4] = [
        ([0, 32, 64], [0, 32, 32], "without an element", "without an element"),
        ([2, 32, 63], [2, 32, 32], "gate and up are not halves", whole),
        ([2, 24, 64], [2, 32, 24], "columns not a multiple of 16", whole),
        ([2, 32, 48], [2, 24, 32], whole, "columns not a multiple of 16"),
    ];
    for (i, (first, second, why_first, why_second)) in cases.into_iter().enumerate() {
        let all = [tensor(gate_up, first), tensor(down, second), o_proj()];
        let input = of_tensors(&folder, &format!("in{i}"), &json!({"model_type": "llama4"}), &all);
        let value = json(&["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--json"]);
        assert_words(&reason(&value, gate_up), &[why_first]);
        assert_words(&reason(&value, down), &[why_second]);
        let output = folder.file(&format!("out{i}"));
        good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4"]);
        let (before, after) = (all_tensors(&input), all_tensors(&output));
        assert!([gate_up, down].iter().all(|name| before[*name] == after[*name]), "{i}");
        assert_eq!(config(&output)["quantization_config"]["ignore"], json!(["m.mlp.experts", "lm_head"]), "{i}");
    }
    // Another architecture, or none that is known: which axis is summed over cannot be seen.
    for (i, config) in [json!({}), json!({"model_type": "of_next_year"})].iter().enumerate() {
        let all = [tensor(gate_up, [2, 32, 64]), tensor(down, [2, 32, 32]), o_proj()];
        let input = of_tensors(&folder, &format!("unknown{i}"), config, &all);
        let value = json(&["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--json"]);
        assert_words(&reason(&value, down), &["experts in one tensor", "not known for this model_type"]);
        assert_eq!(value["quantized"].as_array().unwrap().len(), 1);
    }
    let words = ["the dialect gpt-oss is for the model_type gpt_oss", "of_next_year", "choose another"];
    let input = folder.file("unknown1");
    assert_words(&bad(2, &["quantize", &input, "--recipe", "mxfp4", "--dialect", "gpt-oss", "--dry-run"]), &words);
    // A value that is not finite is found by its expert.
    let mut broken = tensor(down, [2, 32, 32]);
    let at = 2 * (32 * 32 + 5 * 32 + 7);
    broken.2[at..at + 2].copy_from_slice(&bf16::NAN.to_le_bytes());
    let all = [tensor(gate_up, [2, 32, 64]), broken];
    let input = of_tensors(&folder, "nan", &json!({"model_type": "llama4"}), &all);
    let said = bad(2, &["quantize", &input, "-o", &folder.file("none"), "--recipe", "nvfp4"]);
    assert_words(&said, &["m.mlp.experts.1.down_proj.weight", "row 7, column 5"]);
}

/// (Files of another layout than the architecture's were taken apart into rows of nothing.)
#[test]
fn experts_whose_tensors_do_not_fit_together_stay_whole() {
    let folder = Folder::new();
    let (gate_up, down) = ("m.experts.gate_up_proj", "m.experts.down_proj");
    let tensor = |name: &str, shape: [usize; 3]| {
        (name.to_string(), shape.to_vec(), vec![0; 2 * shape.iter().product::<usize>()])
    };
    let o_proj = ("m.o_proj.weight".to_string(), vec![32, 32], bf16_bytes(&values(32 * 32, 3)));
    let unfit = "the sizes do not fit";
    // Of [experts, in, out]: another number of experts, another inside, another outside, both turned, and only one.
    let cases = [
        ([2, 32, 64], Some([3, 32, 32]), unfit),
        ([2, 32, 64], Some([2, 16, 32]), unfit),
        ([2, 32, 64], Some([2, 32, 48]), unfit),
        ([2, 64, 48], Some([2, 48, 32]), unfit),
        ([2, 32, 64], None, "without the other tensors"),
    ];
    for (i, (first, second, why)) in cases.into_iter().enumerate() {
        let mut all = vec![tensor(gate_up, first), o_proj.clone()];
        all.extend(second.map(|shape| tensor(down, shape)));
        let input = of_tensors(&folder, &format!("in{i}"), &json!({"model_type": "llama4"}), &all);
        for dialect in ["modelopt", "plain"] {
            let value = json(&["quantize", &input, "--recipe", "nvfp4", "--dialect", dialect, "--dry-run", "--json"]);
            // One tensor alone contradicts nothing, and plain has no engine that needs the other.
            if second.is_none() && dialect == "plain" {
                assert_eq!(value["quantized"].as_array().unwrap().len(), 5);
                continue;
            }
            assert_words(&reason(&value, gate_up), &[why]);
            second.iter().for_each(|_| assert_words(&reason(&value, down), &[why]));
            assert_eq!(value["quantized"].as_array().unwrap().len(), 1, "{i} {dialect}");
        }
    }
}

/// (A name for each took 1.8 GB.)
#[test]
fn millions_of_experts_are_not_listed() {
    let folder = Folder::new();
    let cases = [([4_000_000, 1, 2], "columns not a multiple of 16"), ([65_537, 16, 2], "more than 65536 experts")];
    for (i, (shape, why)) in cases.into_iter().enumerate() {
        let name = "m.experts.gate_up_proj";
        let shape: Vec<usize> = shape.into();
        let bytes = vec![0; 2 * shape.iter().product::<usize>()];
        let all = [(name.to_string(), shape.clone(), bytes), ("m.o_proj.weight".into(), vec![16, 16], vec![0; 512])];
        let input = of_tensors(&folder, &format!("in{i}"), &json!({"model_type": "llama4"}), &all);
        let value = json(&["quantize", &input, "--recipe", "fp8-row", "--dialect", "plain", "--dry-run", "--json"]);
        assert_words(&reason(&value, name), &[why]);
    }
}

#[test]
fn filters_know_the_tensor_and_the_matrices() {
    let folder = Folder::new();
    let input = folder_of(&folder, &LLAMA4, "in");
    let plan = |options: &[&str]| {
        let args = [&["quantize", &input, "--recipe", "fp8-row", "--dry-run", "--json"][..], options].concat();
        json(&args)
    };
    let count = |value: &Value| value["quantized"].as_array().unwrap().len();
    assert_eq!(count(&plan(&[])), 10);
    assert_eq!(count(&plan(&["--only", "experts.gate_up_proj|experts.down_proj"])), 9);
    assert_eq!(count(&plan(&["--only", r"experts\.\d"])), 9);
    assert_eq!(count(&plan(&["--only", "q_proj"])), 1);
    let (gate_up, down) =
        ("model.layers.0.feed_forward.experts.gate_up_proj", "model.layers.0.feed_forward.experts.down_proj");
    let value = plan(&["--exclude", "down_proj"]);
    assert_eq!(count(&value), 1);
    assert_words(&reason(&value, down), &["matched by --exclude"]);
    assert_words(&reason(&value, gate_up), &["left alone"]);
    // Without a dialect each tensor stands for itself, but whole.
    let value = plan(&["--exclude", "down_proj", "--dialect", "plain"]);
    assert_eq!(count(&value), 7);
    let value = plan(&["--exclude", r"experts\.1\.", "--dialect", "plain"]);
    assert_eq!(count(&value), 1);
    assert_words(&reason(&value, gate_up), &["of which some are left alone"]);
    // What a matrix is of.
    let value = plan(&["--only", r"experts\.\d"]);
    let of = |q: &Value| (q["tensor"].as_str().unwrap().contains("gate"), q["of"].clone());
    assert!(value["quantized"].as_array().unwrap().iter().any(|q| of(q) == (true, json!(gate_up))), "{value:#}");
    let said = good(&["quantize", &input, "--recipe", "fp8-row", "--dry-run"]);
    assert_words(
        &said,
        &["would quantize 10 matrices", "experts.2.up_proj.weight", "128 x 256", "written one by one: 2 tensors"],
    );
}

#[test]
fn a_file_is_of_the_model_beside_it() {
    let folder = Folder::new();
    let input = folder_of(&folder, &GRANITE, "in");
    let output = folder.file("out.safetensors");
    good(&["quantize", &format!("{input}/model.safetensors"), "-o", &output, "--recipe", "fp8-row"]);
    let checkpoint = Checkpoint::open(&output).unwrap();
    for (e, p, name) in names(&GRANITE) {
        assert_eq!(checkpoint.quant_matrix(&name).unwrap(), alone(e, p, "fp8-row", true), "{name}");
    }
    // Without one it is not known.
    fs::rename(format!("{input}/model.safetensors"), folder.file("alone.safetensors")).unwrap();
    let args = ["quantize", &folder.file("alone.safetensors"), "--recipe", "fp8-row", "--dry-run"];
    assert_words(&good(&args), &["would quantize 1 matrix"]);
}

#[test]
fn one_amax_may_stand_for_all_experts() {
    let folder = Folder::new();
    let input = folder_of(&folder, &LLAMA4, "in");
    let (output, scales) = (folder.file("out"), folder.file("amax.json"));
    let layer = "model.layers.0.feed_forward.experts";
    let amax = json!({
        format!("{layer}.gate_up_proj"): 4.0, format!("{layer}.down_proj"): 2.0, format!("{layer}.1.down_proj"): 3.0,
        "model.layers.0.self_attn.q_proj": 1.0,
    });
    fs::write(&scales, amax.to_string()).unwrap();
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--input-scales", &scales]);
    let tensors = all_tensors(&output);
    let scale = |name: &str| {
        f32::from_le_bytes(tensors[&format!("{layer}.{name}.input_scale")].2.as_slice().try_into().unwrap())
    };
    assert_eq!([scale("0.gate_proj"), scale("2.up_proj")], [4.0 / 2688.0; 2]);
    assert_eq!([scale("0.down_proj"), scale("1.down_proj")], [2.0 / 2688.0, 3.0 / 2688.0]);
}

/// Parts of 128 rows here: the third of gpt-oss's has rows of both experts.
#[test]
fn parts_end_where_they_do_and_not_with_an_expert() {
    let folder = Folder::new();
    let [experts, cols, rows] = [2, 8192, 320];
    let all: Vec<f32> =
        values(experts * cols * rows, 7).into_iter().map(|v| bf16::from_f32(v * 0.02).to_f32()).collect();
    let turned = ndarray::ArrayView3::from_shape((experts, cols, rows), &all).unwrap();
    let tensor = ("m.experts.gate_up_proj".to_string(), vec![experts, cols, rows], bf16_bytes(&all));
    // Without the other tensor of its layer none is taken apart.
    let down = ("m.experts.down_proj".to_string(), vec![experts, rows / 2, cols], bf16_bytes(&all[..all.len() / 2]));
    let tensors = [tensor.clone(), down];
    let input = of_tensors(&folder, "oss", &json!({"model_type": "gpt_oss"}), &tensors);
    let output = folder.file("oss-out");
    good(&["quantize", &input, "-o", &output, "--recipe", "mxfp4"]);
    let x = turned.permuted_axes([0, 2, 1]);
    let stacked = Array2::from_shape_vec((experts * rows, cols), x.iter().copied().collect()).unwrap();
    let want = reference::quantize(stacked.view(), DType::Bf16, Recipe::new(Scheme::Mxfp4)).unwrap();
    assert!(Checkpoint::open(&output).unwrap().quant_matrix(&tensor.0).unwrap() == want);

    let input = of_tensors(&folder, "llama", &json!({"text_config": {"model_type": "llama4_text"}}), &tensors);
    let output = folder.file("llama-out");
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4"]);
    let checkpoint = Checkpoint::open(&output).unwrap();
    for e in 0..experts {
        let given = GivenScale::Amax(reference::amax(&all[e * cols * rows..(e + 1) * cols * rows]));
        for (p, part) in ["gate_proj", "up_proj"].iter().enumerate() {
            let matrix = x.slice(ndarray::s![e, p * rows / 2..(p + 1) * rows / 2, ..]).to_owned();
            let recipe = Recipe::new(Scheme::Nvfp4);
            let want = reference::quantize_part(matrix.view(), DType::Bf16, recipe, given).unwrap();
            let name = format!("m.experts.{e}.{part}.weight");
            assert!(checkpoint.quant_matrix(&name).unwrap() == want, "{name}");
        }
    }
}
