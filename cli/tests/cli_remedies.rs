//! Remedies that can be taken, and lines that say what is so.

mod common;

use std::fs;

use common::*;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::json;

/// (It made every row of the table as wide.)
#[test]
fn a_very_long_name_does_not_widen_the_table() {
    let folder = Folder::new();
    let (input, output, back) = (folder.file("in"), folder.file("out"), folder.file("back"));
    let name = format!("first.{}.last", "x".repeat(70_000));
    write(&input, &[f32_tensor(&name, [16, 32], 1), f32_tensor("w", [16, 32], 2)]);
    for args in [
        &["quantize", &input, "-o", &output, "--recipe", "nvfp4"][..],
        &["info", &output],
        &["dequantize", &output, "-o", &back],
    ] {
        let text = good(args);
        let row = text.lines().find(|line| line.contains("first.xxx")).unwrap();
        assert_words(row, &["first.xxx", "...", "xxx.last"]);
        let longest = text.lines().map(str::len).max().unwrap();
        assert!(longest < 400, "{args:?}: {longest}");
    }
    // A program gets all of it.
    assert!(json(&["info", &output, "--json"]).to_string().contains(&name));
}

/// (`1 of q_proj, k_proj, v_proj, q_proj, k_proj, v_proj`)
#[test]
fn layers_of_one_name_are_named_once() {
    let folder = Folder::new();
    let input = folder.file("in");
    let names: Vec<String> = (0..2)
        .flat_map(|i| ["q_proj", "k_proj", "v_proj"].map(|last| format!("model.layers.{i}.self_attn.{last}.weight")))
        .collect();
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [32, 32], seed)).collect();
    model_folder(&input, &tensors, Some(json!({"architectures": ["LlamaForCausalLM"]})));
    let text = good(&["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--fuse", r"layers\.\d+"]);
    assert_words(&text, &["1 group (1 of k_proj, q_proj, v_proj (6 layers))"]);
    let text = good(&["quantize", &input, "--recipe", "nvfp4", "--dry-run"]);
    assert_words(&text, &["2 groups (2 of k_proj, q_proj, v_proj)"]);
}

#[test]
fn what_is_advised_can_be_done() {
    let folder = Folder::new();
    let file = folder.file("odd");
    write(&file, &[f32_tensor("w", [16, 33], 1)]);
    let error = bad(2, &["quantize", &file, "--recipe", "nvfp4", "--dry-run"]);
    assert_words(
        &error,
        &["columns not a multiple of 16: 1", "; give a file with other matrices, or pad their columns"],
    );
    assert!(!error.contains("--only"), "{error}");
    let error = bad(2, &["quantize", &file, "--recipe", "nvfp4", "--dry-run", "--only", "w"]);
    assert_words(
        &error,
        &["columns not a multiple of 16: 1", "; pad their columns with zeros, or give a file with other matrices"],
    );
    // (There are no others to name.)
    assert!(!error.contains("name others"), "{error}");
    // Rows of 48 are no trouble for MX itself: plain is written.
    let odd = folder.file("model-of-48");
    fs::create_dir(&odd).unwrap();
    write(&format!("{odd}/model.safetensors"), &[f32_tensor("model.layers.0.mlp.down_proj.weight", [16, 48], 1)]);
    fs::write(format!("{odd}/config.json"), "{}").unwrap();
    let out = folder.file("out-of-48");
    let error = bad(2, &["quantize", &odd, "-o", &out, "--recipe", "mxfp4"]);
    assert_words(
        &error,
        &["not a multiple of 32, which engines need for MX: 1", "pad their columns", "--dialect plain"],
    );
    good(&["quantize", &odd, "-o", &out, "--recipe", "mxfp4", "--dialect", "plain"]);
    let error = bad(2, &["info", &format!("{odd}/config.json")]);
    assert_words(&error, &["config.json: is no index of shards: it has no weight_map (of a model give the folder)"]);
    write(&file, &[f32_tensor("w", [16, 32], 1)]);
    let error = bad(2, &["quantize", &file, "--recipe", "nvfp4", "--dry-run", "--exclude", "w"]);
    assert_words(&error, &["matched by --exclude: 1", "; give a file with other matrices, or narrow --exclude"]);
    assert!(!error.contains("--only"), "{error}");
    write(&file, &[f32_tensor("lm_head.weight", [16, 32], 1)]);
    let error = bad(2, &["quantize", &file, "--recipe", "nvfp4", "--dry-run"]);
    assert_words(&error, &["; give a file with other matrices, or name with --only what is left alone by default"]);
    // An index was given, and says which of the two belongs to the model.
    let model = folder.file("model");
    fs::create_dir(&model).unwrap();
    for shard in ["a", "b"] {
        write(&format!("{model}/{shard}.safetensors"), &[f32_tensor("w", [16, 32], 1), f32_tensor(shard, [1, 1], 1)]);
    }
    let words = "tensor w: is in two files: ";
    assert_words(&bad(2, &["info", &model]), &[words, "or give the index of its shards"]);
    let index = format!("{model}/model.safetensors.index.json");
    let map = json!({"a": "a.safetensors", "b": "b.safetensors", "w": "a.safetensors"});
    fs::write(&index, json!({"weight_map": map}).to_string()).unwrap();
    for path in [&model, &index] {
        let error = bad(2, &["info", path]);
        assert_words(
            &error,
            &[words, "; remove the one that does not belong to the model, or fetch the shards and their index again"],
        );
        assert!(!error.contains("give the index"), "{error}");
    }
}

/// (`dialect modelopt, without a config.json` was all.)
#[test]
fn a_folder_that_no_engine_loads_is_called_one() {
    let folder = Folder::new();
    let input = folder.file("in");
    model_folder(&input, &[f32_tensor("l.o_proj.weight", [128, 128], 1)], None);
    let text = good(&["quantize", &input, "--recipe", "nvfp4", "--dry-run"]);
    assert_words(&text, &["dialect modelopt, without a config.json, and engines load no folder without one"]);
    let text = good(&["quantize", &input, "--recipe", "nvfp4", "--dry-run", "--dialect", "plain"]);
    assert_words(&text, &["dialect plain, without a config.json\n"]);
}

/// (Of 14 tensors five were shown, and all were scales.)
#[test]
fn matrices_are_named_where_a_tensor_is_not_there() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let tensors: Vec<_> =
        ["a", "b", "c", "d"].iter().zip(1..).map(|(name, seed)| f32_tensor(name, [16, 32], seed)).collect();
    write(&input, &tensors);
    good(&["quantize", &input, "-o", &output, "--recipe", "nvfp4"]);
    let [a, b] = ["nowhere", "a"].map(|name| format!("{output}:{name}"));
    let error = bad(2, &["gemm", "--a", &a, "--b", &b, "-o", &folder.file("d")]);
    assert_words(
        &error,
        &["tensor nowhere: is not in the file; its 12 tensors are a, b, c, d, ", ", ...: give one that is there"],
    );
}

/// (All of FP8 and of two codes a byte had one name, and the remedy lost bits without a word.)
#[test]
fn quantize_says_what_codes_are_and_how_to_keep_their_values() {
    let folder = Folder::new();
    let [input, q, again] = ["in", "q", "again"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("l.weight", [64, 64], 1)]);
    for (options, is) in [
        (&["--recipe", "mxfp4"][..], "MXFP4 already"),
        (&["--recipe", "mxfp4", "--dialect", "compressed-tensors"], "MXFP4 already"),
        (&["--recipe", "nvfp4"], "NVFP4 already"),
        (&["--recipe", "nvfp4", "--dialect", "compressed-tensors"], "NVFP4 already"),
        (&["--recipe", "fp8-row"], "FP8 already"),
        (&["--group", "32x32"], "a cast already"),
        (&["--group", "32x32", "--format", "e2m1"], "a cast already"),
    ] {
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        let error = bad(2, &["quantize", &q, "-o", &again, "--recipe", "fp8-row"]);
        let remedy = "; dequantize first what is in codes already (dequantize --dtype f32 keeps every value)";
        assert_words(&error, &[&format!("; {is}: 1"), remedy]);
    }
}

/// (It ended with "nothing to do".)
#[test]
fn dequantize_of_what_is_plain_says_what_to_give() {
    let folder = Folder::new();
    let [plain, empty, back] = ["plain", "empty", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&plain, &[f32_tensor("l.weight", [64, 64], 1)]);
    write(&empty, &[]);
    let remedy = ": give a file or a folder that quantize wrote, or a quantized model";
    assert_words(&bad(2, &["dequantize", &plain, "-o", &back]), &["; what is plain needs no dequantize", remedy]);
    assert_words(&bad(2, &["dequantize", &empty, "-o", &back]), &["; it holds no tensor at all", remedy]);
}

/// (With thirty zeros.)
#[test]
fn long_numbers_are_told_by_their_power_of_ten() {
    let folder = Folder::new();
    let [input, q, back] = ["in", "q", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    let huge = |value: f32| write(&input, &[("l.weight", Dtype::F32, vec![16, 16], f32_bytes(&[value; 256]))]);
    for (value, words) in [(2f32.powi(100), "the first 1.2676506e30 at row 0"), (65536.0, "the first 65536 at row 0")] {
        huge(value);
        good(&["quantize", &input, "-o", &q, "--recipe", "mxfp8"]);
        assert_words(
            &bad(2, &["dequantize", &q, "-o", &back, "--dtype", "f16"]),
            &[words, "choose --dtype bf16 or f32"],
        );
    }
}

#[test]
fn names_of_groups_and_recipes_in_the_place_of_each_other_are_told() {
    let refused = |options: &[&str], words: &[&str]| {
        let error = bad(2, &[&["quantize", "in.safetensors", "--dry-run"][..], options].concat());
        assert_words(&error, words);
    };
    refused(&["--recipe", "1x128"], &["unknown recipe; known are fp8-tensor, ", "; casts have it: --group 1x128"]);
    refused(&["--group", "fp8-row"], &["unknown group; known are 1x16, ", "; it is a recipe: --recipe fp8-row"]);
    let words = ["unknown order of scales; known are row-major, ", "; such bytes are written in the order ue8m0"];
    refused(&["--group", "1x128", "--scales", "e8m0"], &words);
    let error = bad(2, &["quantize", "in.safetensors", "--dry-run", "--recipe", "cube"]);
    assert!(error.contains("unknown recipe") && !error.contains("--group"), "{error}");
}

/// (It was offered also where nothing would have been left to quantize, which is refused.)
#[test]
fn a_matrix_is_excluded_only_beside_others() {
    let folder = Folder::new();
    let (input, output, scales) = (folder.file("in"), folder.file("out"), folder.file("amax.json"));
    let matrix = |name, values: &[f32]| (name, Dtype::F32, vec![16, 32], f32_bytes(values));
    let mut infinite = values(512, 1);
    infinite[7] = f32::INFINITY;
    let scale = ("w_scale", Dtype::F32, vec![1], f32_bytes(&[1.0]));
    let tiny: Vec<f32> = values(512, 1).iter().map(|v| v * 1e-44).collect();
    fs::write(&scales, "{\"x.weight\": 1.0}").unwrap();
    for (tensors, options, words) in [
        (&[matrix("w", &infinite)][..], &["--recipe", "nvfp4"][..], "repair the data; no rule of nvfp4"),
        (&[matrix("w", &infinite)], &["--recipe", "fp8-row"], "repair the data, or use --preset transformer-engine"),
        (&[matrix("w", &infinite)], &["--recipe", "mxfp8"], "repair the data, or say --allow-non-finite"),
        (&[matrix("w", &values(512, 1)), scale], &["--recipe", "fp8-row"], "take it out of the input"),
        (&[f32_tensor("w", [16, 24], 1)], &["--group", "1x16"], "pad them with zeros"),
        (&[matrix("w", &tiny)], &["--recipe", "fp8-tensor"], "not all were; scale them up\n"),
    ] {
        let args = [&["quantize", &input, "-o", &output], options].concat();
        let both = |tensors: &[Tensor]| {
            write(&input, tensors);
            let found = run_on("cpu", &args);
            String::from_utf8([found.stdout, found.stderr].concat()).unwrap()
        };
        let alone = both(tensors);
        assert!(alone.contains(words) && !alone.contains("--exclude"), "{options:?}: {alone}");
        let beside = both(&[tensors, &[matrix("other", &values(512, 2))]].concat());
        assert!(beside.contains("--exclude"), "{options:?}: {beside}");
    }
}

/// (It was offered, and with it no matrix was left: engines fuse the others with it.)
#[test]
fn a_fused_matrix_is_excluded_only_beside_others_of_its_set() {
    let folder = Folder::new();
    let [q, k, v, o] = ["q", "k", "v", "o"].map(|name| format!("model.layers.0.self_attn.{name}_proj.weight"));
    let mut infinite = values(64 * 64, 1);
    infinite[7] = f32::INFINITY;
    let scale = format!("{}_scale", &q);
    let set = |values: &[f32]| -> Vec<Tensor> {
        vec![
            (&q, Dtype::F32, vec![64, 64], f32_bytes(values)),
            f32_tensor(&k, [64, 64], 2),
            f32_tensor(&v, [64, 64], 3),
        ]
    };
    let mut stale = set(&values(64 * 64, 1));
    stale.push((&scale, Dtype::F32, vec![1], f32_bytes(&[1.0])));
    for (i, (set, words)) in
        [(set(&infinite), "repair the data"), (stale, "take it out of the input")].into_iter().enumerate()
    {
        for (name, more) in [("alone", None), ("beside", Some(f32_tensor(&o, [64, 64], 4)))] {
            let (path, output) = (folder.file(&format!("{name}{i}")), folder.file(&format!("{name}{i}-out")));
            let tensors: Vec<Tensor> = set.iter().cloned().chain(more.clone()).collect();
            model_folder(&path, &tensors, Some(json!({"model_type": "llama"})));
            let args = ["quantize", &path, "-o", &output, "--recipe", "nvfp4"];
            let text = bad(2, &args);
            assert_words(&text, &[words]);
            assert_eq!(text.contains("--exclude"), more.is_some(), "{name}: {text}");
            // What is offered can be done, and where nothing is offered it cannot.
            let without = [&args[..], &["--exclude", "q_proj", "--dry-run"]].concat();
            match more {
                Some(_) => assert_words(&good(&without), &["1 matrix to nvfp4"]),
                None => assert_words(&bad(2, &without), &["no matrix to quantize"]),
            }
            // None is fused with another there.
            let plain = [&args[..], &["--dialect", "plain"]].concat();
            assert_words(&bad(2, &plain), &[words, "--exclude"]);
        }
    }
}

/// (A table had a head and nothing below it.)
#[test]
fn info_has_no_table_where_nothing_is_to_be_listed() {
    let folder = Folder::new();
    let input = folder.file("in");
    let scale = ("w_scale", Dtype::F32, vec![3], f32_bytes(&[1.0; 3]));
    write(&input, &[("w", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]), scale]);
    let (text, _) = wrong(&["info", &input]);
    assert!(!text.contains("scheme or type") && text.contains("\n\nWhat is wrong:\n"), "{text}");
    assert!(!text.contains("\n\n\n"), "{text}");
}

/// (It was a blank between two others.)
#[test]
fn a_tensor_without_a_name_is_named_by_quotes() {
    let folder = Folder::new();
    let [input, output, back] = ["in", "out", "back"].map(|name| folder.file(name));
    let mut x = values(16 * 32, 1);
    write(&input, &[("", Dtype::F32, vec![16, 32], f32_bytes(&x)), f32_tensor("w", [16, 32], 2)]);
    let args = ["quantize", &input, "-o", &output, "--recipe", "fp8-row"];
    for text in [good(&args), good(&["info", &output]), good(&["dequantize", &output, "-o", &back])] {
        assert!(text.lines().any(|line| line.trim_start().starts_with("\"\" ")), "{text}");
    }
    x[3] = f32::NAN;
    write(&input, &[("", Dtype::F32, vec![16, 32], f32_bytes(&x))]);
    assert_words(&bad(2, &args), &["tensor \"\": 1 non-finite value"]);
    write(&input, &[("", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256])]);
    assert_words(&wrong(&["info", &input]).0, &["tensor \"\": "]);
}

/// Rows and columns, and the values.
type Matrix = ([usize; 2], Vec<f32>);

/// (Another recipe was advised of values that none keeps, or that its dialect refuses.)
#[test]
fn another_recipe_is_advised_only_where_it_keeps_values() {
    let folder = Folder::new();
    let [input, output] = ["in", "out"].map(|name| folder.file(name));
    let rows = |[rows, cols]: [usize; 2], of: &dyn Fn(usize) -> f32| -> Matrix {
        ([rows, cols], (0..rows).flat_map(|row| vec![of(row); cols]).collect())
    };
    let all = |shape, value: f32| rows(shape, &|_| value);
    let first = |value: f32, other: f32| rows([16, 32], &|row| if row == 0 { value } else { other });
    let recipe = |options: &[&'static str]| [&["--recipe"], options].concat();
    let dialect = |name| recipe(&["fp8-tensor", "--dialect", name]);
    let (plain, few) = ([16, 32], "of 1 of its 16 groups became 0, and not all were; ");
    // One large value in each column, another column of small ones: in a block of MX they are together.
    let mut column = first(0.0, 1e-20);
    column.1.iter_mut().skip(1).step_by(32).for_each(|value| *value = 1.0);
    // Two blocks of a row.
    let mut blocks = rows([16, 64], &|row| if row == 0 { 1e-20 } else { 1.0 });
    blocks.1[32..64].fill(1e-44);
    let (advised, none) = ("scale them up, or use --recipe mxfp8\n", "scale them up\n");
    let e5m2 = "scale them up, or use --recipe mxfp8 --format e5m2\n";
    let cases: Vec<(Vec<&str>, Matrix, &str, &str)> = vec![
        (recipe(&["fp8-tensor"]), all(plain, 1e-20), "", advised),
        (recipe(&["fp8-tensor"]), all(plain, 1e-42), "", e5m2),
        (recipe(&["fp8-tensor"]), all(plain, 1e-44), "not all were; ", none),
        (recipe(&["mxfp8", "--format", "e5m2"]), all(plain, 1e-44), "not all were; ", none),
        (vec!["--group", "1x32"], all(plain, 1e-20), "", advised),
        // Of groups beside others.
        (recipe(&["fp8-row"]), first(1e-20, 1.0), few, advised),
        (recipe(&["fp8-row"]), first(1e-44, 1.0), few, none),
        (vec!["--group", "128x1"], column, "", none),
        // What keeps the largest of them is not enough.
        (recipe(&["fp8-row"]), rows(plain, &|row| [1e-20, 1e-44, 1.0][row.min(2)]), "of 2 of its 16 groups", none),
        (recipe(&["fp8-row"]), rows(plain, &|row| [1e-20, 1e-42, 1.0][row.min(2)]), "of 2 of its 16 groups", e5m2),
        (recipe(&["fp8-row"]), blocks, few, none),
        (recipe(&["fp8-tensor"]), first(1e-44, 1e-20), "not all were; ", none),
        // In dialects of engines, which lack a format, and some columns and rows.
        (recipe(&["fp8-tensor"]), all([16, 48], 1e-20), "", advised),
        (dialect("compressed-tensors"), all([16, 48], 1e-20), "not all were; ", none),
        (dialect("compressed-tensors"), all([16, 64], 1e-20), "not all were; ", advised),
        (dialect("compressed-tensors"), all([32, 64], 1e-42), "not all were; ", none),
        (dialect("comfyui"), all([32, 64], 1e-20), "not all were; ", advised),
        (dialect("comfyui"), all([16, 64], 1e-20), "not all were; ", none),
        (dialect("comfyui"), all([32, 64], 1e-42), "not all were; ", none),
        (dialect("fp8"), all([32, 64], 1e-20), "not all were; ", none),
    ];
    for (options, (shape, values), words, remedy) in cases {
        write(&input, &[("w.weight", Dtype::F32, shape.to_vec(), f32_bytes(&values))]);
        let args = [&["quantize", &input, "-o", &output][..], &options].concat();
        let text = good(&args);
        let case = format!("{options:?} {shape:?} {:?}: {text}", &values[..2]);
        assert!(text.contains(words) && text.contains(&format!("became 0, and not all were; {remedy}")), "{case}");
        // What is advised helps, in the dialect that was asked for.
        if let Some((_, advised)) = remedy.trim_end().split_once("or use ") {
            let asked = options.iter().position(|option| *option == "--dialect");
            let rest = asked.map_or(&[][..], |at| &options[at..]);
            let advised: Vec<&str> = advised.split(' ').collect();
            let text = good(&[&["quantize", &input, "-o", &output][..], &advised, rest].concat());
            assert!(text.contains("1 matrix to") && !text.contains("became 0"), "{case}{advised:?}: {text}");
        }
    }
}

/// (Of a folder another recipe has a dialect of its own, if none is asked for, and that takes fewer matrices.)
#[test]
fn a_recipe_that_is_advised_stays_in_the_dialect() {
    let folder = Folder::new();
    for (i, (name, shape, options, remedy)) in [
        ("w.weight", [16, 48], &["--group", "1x16"][..], "or use --recipe mxfp8 --dialect plain\n"),
        ("w", [16, 32], &["--recipe", "fp8-row", "--dialect", "plain"], "or use --recipe mxfp8\n"),
        ("w.weight", [32, 64], &["--recipe", "fp8-row"], "or use --recipe mxfp8\n"),
        ("w.weight", [32, 48], &["--recipe", "fp8-row"], "scale them up\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let [input, output, other] = ["in", "out", "other"].map(|name| folder.file(&format!("{name}-{i}")));
        let values = vec![1e-20; shape[0] * shape[1]];
        let tensors = [(name, Dtype::F32, shape.to_vec(), f32_bytes(&values))];
        model_folder(&input, &tensors, Some(json!({"model_type": "llama"})));
        let text = good(&[&["quantize", &input, "-o", &output][..], options].concat());
        assert!(text.contains(remedy), "{i}: {text}");
        if let Some((_, advised)) = remedy.trim_end().split_once("or use ") {
            let asked = options.iter().position(|option| *option == "--dialect");
            let rest = asked.map_or(&[][..], |at| &options[at..]);
            let advised: Vec<&str> = advised.split(' ').collect();
            let text = good(&[&["quantize", &input, "-o", &other][..], &advised, rest].concat());
            assert!(text.contains("1 matrix to") && !text.contains("became 0"), "{i}: {text}");
        }
    }
}

/// (`1 bytes`; `1 of 16 values are beyond`.)
#[test]
fn one_is_no_plural() {
    let folder = Folder::new();
    let [input, output, amax] = ["in", "out", "amax.json"].map(|name| folder.file(name));
    fs::write(&input, "x").unwrap();
    assert_words(&bad(2, &["info", &input]), &["it has 1 byte, fewer than 8"]);
    let mut values = vec![0.5f32; 16];
    values[7] = 1e6;
    write(&input, &[("w.weight", Dtype::F32, vec![1, 16], f32_bytes(&values))]);
    fs::write(&amax, r#"{"w": 1.0}"#).unwrap();
    let text = good(&["quantize", &input, "-o", &output, "--recipe", "fp8-tensor", "--weight-amax", &amax]);
    assert_words(&text, &["w.weight: 1 of 16 values (6.2 %) is beyond the given amax 1 and became the largest code"]);
}

/// (Of two it was the larger one.)
#[test]
fn the_median_of_what_sharing_costs_is_between_two() {
    let folder = Folder::new();
    let [input, q, again] = ["in", "q", "again"].map(|name| folder.file(name));
    let names = ["q", "k", "v"].map(|name| format!("model.layers.0.self_attn.{name}_proj.weight"));
    let matrix = |(name, (size, seed))| {
        let values: Vec<f32> = values(64 * 64, seed).iter().map(|value| value * size).collect();
        (name, Dtype::F32, vec![64, 64], f32_bytes(&values))
    };
    let sizes = [(1.0, 1), (1e-3, 2), (5e-6, 3)];
    let tensors: Vec<Tensor> = names.iter().map(String::as_str).zip(sizes).map(matrix).collect();
    model_folder(&input, &tensors, Some(json!({"model_type": "llama"})));
    let value = json(&["quantize", &input, "-o", &q, "--recipe", "nvfp4", "--json"]);
    let db = |matrix: &serde_json::Value, which: &str| matrix[format!("sqnr_db_{which}_scale")].as_f64();
    let all = value["quantized"].as_array().unwrap().iter();
    let costs: Vec<f64> = all.filter_map(|matrix| Some(db(matrix, "own")? - db(matrix, "shared")?)).collect();
    let [a, b] = costs[..] else { panic!("{costs:?}") };
    assert!((a - b).abs() > 0.1, "{costs:?}");
    let text = good(&["quantize", &input, "-o", &again, "--recipe", "nvfp4"]);
    assert_words(&text, &[&format!("sharing cost {:.2} dB of SQNR in the median of 2 matrices", (a + b) / 2.0)]);
}

/// (Other options were advised that are refused with those that were given.)
#[test]
fn options_that_are_advised_are_not_refused() {
    let folder = Folder::new();
    let [gpt2, tied, coded, q] = ["gpt2", "tied", "coded", "q"].map(|name| folder.file(name));
    let conv = "h.0.attn.c_attn.weight";
    model_folder(&gpt2, &[f32_tensor(conv, [32, 96], 1)], Some(json!({"model_type": "gpt2"})));
    let embedding = "model.embed_tokens.weight";
    model_folder(&tied, &[f32_tensor(embedding, [64, 32], 1)], Some(json!({"model_type": "llama"})));
    let two = [f32_tensor("l.0.mlp.down_proj.weight", [128, 128], 2), f32_tensor("l.1.o_proj.weight", [128, 128], 3)];
    model_folder(&coded, &two, Some(json!({"architectures": ["X"]})));
    good(&["quantize", &coded, "-o", &q, "--recipe", "fp8-128x128", "--exclude", "o_proj"]);
    let dry = |path: &str, options: &[&str]| bad(2, &[&["quantize", path, "--dry-run"][..], options].concat());
    // By its name alone it is refused in the dialect of the recipe.
    for (path, name) in [(&gpt2, conv), (&tied, embedding)] {
        let error = dry(path, &["--recipe", "nvfp4"]);
        assert_words(&error, &["name with --only what is left alone by default, and write --dialect plain"]);
        let error = dry(path, &["--recipe", "nvfp4", "--only", name]);
        assert!(error.contains("; write --dialect plain") && !error.contains("leave"), "{error}");
        good(&["quantize", path, "--dry-run", "--recipe", "nvfp4", "--only", name, "--dialect", "plain"]);
        // What no engine fuses is refused to be joined there.
        let error = dry(path, &["--recipe", "fp8-128x128", "--only", name, "--no-fuse"]);
        assert!(error.contains("; select others") && !error.contains("plain"), "{error}");
        assert_words(
            &dry(path, &["--recipe", "fp8-128x128", "--only", name, "--no-fuse", "--dialect", "plain"]),
            &["--no-fuse: "],
        );
        let error = dry(path, &["--recipe", "fp8-128x128", "--no-fuse"]);
        assert!(error.contains("; give a file with other matrices") && !error.contains("--only"), "{error}");
    }
    // Of a model that is quantized.
    let words = "or for layers that are still plain write --dialect plain";
    let only = ["--recipe", "fp8-128x128", "--only", "o_proj"];
    assert_words(&dry(&q, &only), &[words]);
    let error = dry(&q, &[&only[..], &["--no-fuse"]].concat());
    assert!(error.ends_with("; dequantize it first"), "{error}");
    // Nothing is left where the option is left out, or no more where less is excluded.
    let odd = folder.file("odd");
    write(&odd, &[f32_tensor("odd.weight", [16, 33], 1), f32_tensor("bias", [1, 16], 2)]);
    let error = dry(&odd, &["--recipe", "nvfp4", "--only", "odd", "--exclude", "odd"]);
    assert!(!error.contains("leave it out"), "{error}");
    let error = dry(&odd, &["--recipe", "nvfp4", "--exclude", "odd"]);
    assert!(!error.contains("narrow"), "{error}");
}

/// (One was to be removed, or the shards to be fetched again, and both belong to the model.)
#[test]
fn a_recipe_that_two_shards_tell_differently_is_removed_where_the_codes_are_not() {
    let folder = Folder::new();
    let model = folder.file("model");
    fs::create_dir(&model).unwrap();
    let plain = folder.file("plain");
    for (shard, other, group) in [("a", "a.other", "1x16"), ("b", "b.other", "1x32")] {
        write(&plain, &[f32_tensor("w", [32, 32], 1), f32_tensor(other, [32, 32], 2)]);
        good(&["quantize", &plain, "-o", &format!("{model}/{shard}.safetensors"), "--group", group]);
    }
    // The codes go from the second, and what is said of them stays.
    let path = format!("{model}/b.safetensors");
    let bytes = fs::read(&path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let kept = file.iter().filter(|(name, _)| !["w", "w_scale"].contains(name)).collect::<Vec<_>>();
    let text = safetensors::serialize(kept, header.metadata().clone()).unwrap();
    fs::write(&path, text).unwrap();
    let error = bad(2, &["info", &model]);
    assert_words(
        &error,
        &[
            "tensor w: has different recipes in the metadata of two files: ",
            &format!("; remove scaled_gemm.w from the metadata of {path}, which does not hold its codes"),
        ],
    );
    // What is advised helps.
    let bytes = fs::read(&path).unwrap();
    let mut entries = header.metadata().clone().unwrap();
    entries.remove("scaled_gemm.w").unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    fs::write(&path, safetensors::serialize(file.iter().collect::<Vec<_>>(), Some(entries)).unwrap()).unwrap();
    good(&["info", &model]);
}

/// (They were to be scaled up, whatever that does.)
#[test]
fn values_are_to_be_scaled_up_only_where_that_keeps_them() {
    let folder = Folder::new();
    let [input, output] = ["in", "out"].map(|name| folder.file(name));
    // A first row of small values beside others.
    let f32 = |small: f32, large: f32| {
        let values: Vec<f32> = (0..32 * 64).map(|at| if at < 64 { small } else { large }).collect();
        ("w.weight", Dtype::F32, vec![32, 64], f32_bytes(&values))
    };
    let f16 = |small: f32, large: f32| {
        let values = (0..32 * 64).map(|at| half::f16::from_f32(if at < 64 { small } else { large }));
        ("w.weight", Dtype::F16, vec![32, 64], values.flat_map(half::f16::to_le_bytes).collect::<Vec<_>>())
    };
    let wide = "its range is wider than this recipe's, whatever the values are scaled by\n";
    for (matrix, options, alone, beside) in [
        // A second level is of the largest value, however large that is.
        (f32(1e-8, 1.0), &["--recipe", "nvfp4"][..], wide, "; leave the matrix as it is (--exclude)\n"),
        (f16(6e-8, 1.0), &["--recipe", "nvfp4"], wide, "; leave the matrix as it is (--exclude)\n"),
        // No room is left above, or there is.
        (
            f32(1e-20, 1e38),
            &["--recipe", "fp8-row"],
            "; use --recipe mxfp8\n",
            "; leave the matrix as it is (--exclude)\n",
        ),
        (
            f32(1e-20, 1e3),
            &["--recipe", "fp8-row"],
            "; scale them up, or use --recipe mxfp8\n",
            "; scale them up, or leave",
        ),
        (f32(1e-44, 1e38), &["--group", "1x32"], wide, "; leave the matrix as it is (--exclude)\n"),
        (
            f32(1e-30, 1.0),
            &["--group", "1x32"],
            "; scale them up, or use --recipe mxfp8\n",
            "; scale them up, or leave",
        ),
    ] {
        for (words, more) in [(alone, vec![]), (beside, vec![f32_tensor("z.weight", [32, 64], 1)])] {
            write(&input, &[vec![matrix.clone()], more].concat());
            let text = good(&[&["quantize", &input, "-o", &output][..], options].concat());
            assert_words(&text, &["groups became 0, and not all were; ", words]);
        }
    }
    // What is advised keeps them.
    let scaled = |by: f32| write(&input, &[f32(1e-20 * by, 1e3 * by)]);
    scaled(1e20);
    let text = good(&["quantize", &input, "-o", &output, "--recipe", "fp8-row"]);
    assert!(!text.contains("became 0"), "{text}");
}

/// (", or leave it out": without `--only` a cast refuses the matrix for its columns.)
#[test]
fn what_a_cast_refuses_is_not_advised() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    write(&input, &[("a", Dtype::F32, vec![64, 63], f32_bytes(&values(64 * 63, 1)))]);
    let text = bad(2, &["quantize", &input, "-o", &output, "--group", "1x32", "--only", "zzz"]);
    assert!(text.contains("mend the pattern") && !text.contains("leave it out"), "{text}");
}
