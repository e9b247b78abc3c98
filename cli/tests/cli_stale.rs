//! Scales of what a model was before, beside matrices that are quantized now: refused where a reader would take them, and named elsewhere.

mod common;

use std::fs;

use common::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

fn one(name: &str) -> Tensor<'_> {
    (name, Dtype::F32, vec![1], f32_bytes(&[1.0]))
}

/// Two layers, and what is beside them.
fn layers<'a>(beside: &[Tensor<'a>]) -> Vec<Tensor<'a>> {
    let [down, up] = ["l.down_proj.weight", "l.up_proj.weight"];
    [&[f32_tensor(down, [128, 128], 1), f32_tensor(up, [128, 128], 2)], beside].concat()
}

/// The file with a tensor more.
fn add(from: &str, to: &str, (name, dtype, shape, data): Tensor<'_>) {
    let bytes = fs::read(from).unwrap();
    let entries = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let more = (name, TensorView::new(dtype, shape, &data).unwrap());
    fs::write(to, safetensors::serialize(file.iter().chain([more]).collect::<Vec<_>>(), entries).unwrap()).unwrap();
}

/// (All were refused, as what would be read as a scale, which no reader does.)
#[test]
fn scales_that_no_reader_takes_are_copied_and_named() {
    let folder = Folder::new();
    let (input, output, plain) = (folder.file("in"), folder.file("out"), folder.file("plain"));
    let cases = [
        ("modelopt", "nvfp4", "weight_scale_inv"),
        ("modelopt", "nvfp4", "weight_global_scale"),
        ("modelopt", "nvfp4", "scale_weight"),
        ("compressed-tensors", "nvfp4", "weight_scale_2"),
        ("compressed-tensors", "nvfp4", "weight_scale_inv"),
        ("compressed-tensors", "mxfp4", "weight_scale_2"),
        ("compressed-tensors", "fp8-row", "weight_global_scale"),
        ("plain", "nvfp4", "weight_scale_inv"),
        ("plain", "mxfp4", "weight_scale_2"),
        ("fp8", "fp8-128x128", "weight_global_scale"),
    ];
    for (dialect, recipe, last) in cases {
        let name = format!("l.down_proj.{last}");
        for path in [&input, &output, &plain] {
            let _ = fs::remove_dir_all(path);
        }
        model_folder(&input, &layers(&[one(&name)]), Some(json!({"architectures": ["X"]})));
        let args = ["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect];
        let words = [
            format!("1 tensor ({name}) with the name of a scale that its matrix has not as it is written"),
            "copied as it is: no reader takes it for it".into(),
            "take it out of the input".into(),
        ];
        let text = said(&args);
        assert_words(&text, &words.each_ref().map(String::as_str));
        // (That the weights were plain was said of them, too.)
        assert!(!text.contains("beside weights that are plain"), "{text}");
        let bytes = fs::read(format!("{output}/model.safetensors")).unwrap();
        assert!(SafeTensors::deserialize(&bytes).unwrap().tensor(&name).is_ok(), "{dialect} {recipe} {last}");
        // What is there is said by both. (`info` had no word of it.)
        let file = format!("{output}/model.safetensors");
        let again = folder.file("again");
        let noted = good(&["info", &file]);
        assert_words(&noted, &[&words[0], "matrix has not as it is written: no reader takes it for it", &words[2]]);
        let options = ["--recipe", "fp8-row", "--only", "other"];
        let with = folder.file("with");
        add(&file, &with, f32_tensor("other.weight", [32, 64], 3));
        let text = said(&[&["quantize", &with, "-o", &again][..], &options].concat());
        assert_words(&text, &words.each_ref().map(String::as_str));
        // The matrix is what it would be without it.
        said(&["dequantize", &output, "-o", &plain, "--dtype", "f32"]);
        let sqnr =
            sqnr_db(&values(128 * 128, 1), &read_f32(&format!("{plain}/model.safetensors"), "l.down_proj.weight").1);
        assert!(sqnr > 15.0, "{dialect} {recipe} {last}: {sqnr}");
    }
}

/// (The divisor of NVFP4 made NVFP4 of it: that was said of all schemes, and is so of this.)
#[test]
fn scales_that_a_reader_takes_are_refused() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let cases = [
        ("compressed-tensors", "mxfp4", "weight_global_scale"),
        ("compressed-tensors", "fp8-row", "weight_scale_inv"),
        ("modelopt", "mxfp8", "weight_scale_2"),
        ("plain", "fp8-1x128", "scale_weight"),
    ];
    for (dialect, recipe, last) in cases {
        let name = format!("l.down_proj.{last}");
        let _ = fs::remove_dir_all(&input);
        model_folder(&input, &layers(&[one(&name)]), Some(json!({"architectures": ["X"]})));
        let args = ["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect];
        let words = format!(
            "tensor {name}: is there, and would be read as a scale of l.down_proj.weight, which would be quantized"
        );
        assert_words(&bad(2, &args), &[&words]);
    }
    // (FP8 that no reader takes for a scale was copied, and then taken for codes: the output could not be dequantized.)
    for (dialect, recipe, last) in [
        ("compressed-tensors", "nvfp4", "weight_scale_inv"),
        ("compressed-tensors", "mxfp4", "weight_scale_2"),
        ("plain", "fp8-row", "weight_global_scale"),
        ("plain", "nvfp4", "weight_global_scale"),
    ] {
        let name = format!("l.down_proj.{last}");
        let _ = fs::remove_dir_all(&input);
        let stale = (name.as_str(), Dtype::F8_E4M3, vec![1], vec![0x38]);
        model_folder(&input, &layers(&[stale]), Some(json!({"architectures": ["X"]})));
        let args = ["quantize", &input, "-o", &output, "--recipe", recipe, "--dialect", dialect];
        let words = format!(
            "tensor {name}: is there, and is F8_E4M3, as codes are, with the name of a scale of l.down_proj.weight, which would be quantized"
        );
        assert_words(&bad(2, &args), &[&words, "; take it out of the input", "--exclude"]);
    }
    // ComfyUI gives the older name to the scale of whatever is there.
    let file = folder.file("file");
    write(&file, &layers(&[one("l.down_proj.scale_weight")]));
    let args = ["quantize", &file, "-o", &output, "--recipe", "nvfp4", "--dialect", "comfyui"];
    assert_words(&bad(2, &args), &["l.down_proj.scale_weight: is there, and would be read as a scale of "]);
    assert_eq!(folder.names(), ["file", "in"]);
}

/// (They were named one at a time, a run for each.)
#[test]
fn all_that_is_in_the_way_is_named_at_once() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let names = ["l.down_proj.weight_scale_inv", "l.up_proj.weight_scale", "l.up_proj.weight_scale_2"];
    // One that has nothing in its way is left where these are excluded.
    let other = f32_tensor("other.weight", [16, 32], 3);
    write(&input, &layers(&[&names.map(one)[..], std::slice::from_ref(&other)].concat()));
    let args = ["quantize", &input, "-o", &output, "--recipe", "fp8-row"];
    assert_words(
        &bad(2, &args),
        &[
            &format!("{input}: 3 tensors are in the way of matrices that would be quantized: "),
            "l.up_proj.weight_scale (l.up_proj.weight would be quantized to a tensor of that name)",
            "l.down_proj.weight_scale_inv (would be read as a scale of l.down_proj.weight, which would be quantized)",
            "l.up_proj.weight_scale_2 (would be read",
            "; take them out of the input, or leave the matrices as they are with ",
            r"--exclude '^(l\.down_proj\.weight|l\.up_proj\.weight)$'",
        ],
    );
    // Of many, some.
    let matrices: Vec<_> = (0..50).map(|i| format!("x{i}.weight")).collect();
    let stale: Vec<_> = (0..50).map(|i| format!("x{i}.weight_scale_inv")).collect();
    let tensors = matrices.iter().map(|name| f32_tensor(name, [16, 32], 1)).chain(stale.iter().map(|name| one(name)));
    write(&input, &tensors.chain([other]).collect::<Vec<_>>());
    let error = bad(2, &args);
    assert_words(&error, &["50 tensors are in the way", "and 42 more; take them out of the input", "with --exclude"]);
    assert!(!error.contains("'^") && error.len() < 1500, "{error}");
    assert_eq!(folder.names(), ["in"]);
}

/// (They were copied without a word: engines took a number that was made for other codes.)
#[test]
fn scales_of_what_enters_are_of_the_codes_that_they_were_made_for() {
    let folder = Folder::new();
    let (input, output, amax) = (folder.file("in"), folder.file("out"), folder.file("amax.json"));
    for last in ["input_scale", "input_global_scale", "activation_scale", "scale_input"] {
        let name = format!("l.down_proj.{last}");
        let _ = fs::remove_dir_all(&input);
        model_folder(&input, &layers(&[one(&name)]), Some(json!({"architectures": ["X"]})));
        for recipe in ["nvfp4", "fp8-tensor", "mxfp8"] {
            let args = ["quantize", &input, "-o", &output, "--recipe", recipe];
            let words = format!(
                "tensor {name}: is there, and engines would take it for the scale of what enters l.down_proj.weight, which would be quantized"
            );
            assert_words(&bad(2, &args), &[&words, "; take it out of the input", "--exclude"]);
        }
        // A power of two is a number like others.
        let _ = fs::remove_dir_all(&input);
        let fp8 = (name.as_str(), Dtype::F8_E8M0, vec![1], vec![0x7F]);
        model_folder(&input, &layers(&[fp8]), Some(json!({"architectures": ["X"]})));
        let words = format!("tensor {name}: is there, and engines would take it for the scale of what enters");
        assert_words(&bad(2, &["quantize", &input, "-o", &output, "--recipe", "nvfp4"]), &[&words]);
        // Beside a layer that stays it stays.
        let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--exclude", "down"];
        said(&args);
        fs::remove_dir_all(&output).unwrap();
    }
    // With one that is given, it has that one's name.
    fs::write(&amax, json!({"l.down_proj": 3.0, "l.up_proj": 3.0}).to_string()).unwrap();
    let _ = fs::remove_dir_all(&input);
    model_folder(&input, &layers(&[one("l.down_proj.input_scale")]), Some(json!({"architectures": ["X"]})));
    let args = ["quantize", &input, "-o", &output, "--recipe", "fp8-tensor", "--input-scales", &amax];
    assert_words(
        &bad(2, &args),
        &["tensor l.down_proj.input_scale: is there, and l.down_proj.weight would be quantized to"],
    );
}

/// (All of that name were refused, for the sake of engines that read nothing of what is written, or no such tensor.)
#[test]
fn what_no_engine_takes_for_a_scale_of_what_enters_is_copied_and_named() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let name = "l.down_proj.input_scale";
    let vector = (name, Dtype::F32, vec![128], f32_bytes(&values(128, 3)));
    let number = (name, Dtype::I32, vec![1], vec![1, 0, 0, 0]);
    let cases: [(&Tensor, &[&str]); 5] = [
        (&one(name), &["--group", "1x64"]),
        (&one(name), &["--recipe", "fp8-row", "--dialect", "plain"]),
        (&one(name), &["--recipe", "nvfp4-row", "--dialect", "plain"]),
        (&vector, &["--recipe", "nvfp4", "--dialect", "modelopt"]),
        (&number, &["--recipe", "nvfp4", "--dialect", "compressed-tensors"]),
    ];
    for (tensor, how) in cases {
        for path in [&input, &output] {
            let _ = fs::remove_dir_all(path);
        }
        model_folder(&input, &layers(std::slice::from_ref(tensor)), Some(json!({"architectures": ["X"]})));
        let text = said(&[&["quantize", &input, "-o", &output], how].concat());
        let words = format!(
            "1 tensor ({name}) with the name of a scale of what enters layers that are quantized, copied as it is"
        );
        assert_words(&text, &[&words, "; if it is a scale of what the layers were before, take it out of the input"]);
        let held = |folder: &str| {
            let bytes = fs::read(format!("{folder}/model.safetensors")).unwrap();
            SafeTensors::deserialize(&bytes).unwrap().tensor(name).ok().map(|tensor| tensor.data().to_vec())
        };
        assert_eq!(held(&output).as_ref(), Some(&tensor.3), "{how:?}");
        // What cannot be such a scale comes back, and is none to info, and what is beside a cast, which no product reads; what can goes with the codes that it may be of.
        let back = folder.file("back");
        let _ = fs::remove_dir_all(&back);
        said(&["dequantize", &output, "-o", &back]);
        let is_scale = tensor.1 == Dtype::F32 && tensor.2 == [1] && how[0] != "--group";
        assert_eq!(held(&back).is_some(), !is_scale, "{how:?}");
        let out = run_on("cpu", &["info", &output]);
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(!text.contains("of activations not finite"), "{text}");
    }
}

/// (Under the name of the tensor that they are in it was copied, where that ends in `weight`.)
#[test]
fn scales_of_what_enters_experts_have_the_name_of_their_tensor_or_their_own() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    fn bf16(name: &str, shape: [usize; 3]) -> Tensor<'_> {
        (name, Dtype::BF16, shape.to_vec(), vec![0; 2 * shape.iter().product::<usize>()])
    }
    let layer = "l.0.block_sparse_moe";
    let [up, down] = ["input_linear", "output_linear"].map(|part| format!("{layer}.{part}.weight"));
    for stale in ["input_linear.input_scale", "output_linear.input_scale", "experts.1.down_proj.input_scale"] {
        let name = format!("{layer}.{stale}");
        let _ = fs::remove_dir_all(&input);
        let tensors = [bf16(&up, [2, 64, 32]), bf16(&down, [2, 32, 32]), one(&name)];
        model_folder(&input, &tensors, Some(json!({"model_type": "granitemoe", "architectures": ["X"]})));
        let error = bad(2, &["quantize", &input, "-o", &output, "--recipe", "fp8-row"]);
        let words =
            format!("tensor {name}: is there, and engines would take it for the scale of what enters {layer}.experts.");
        assert_words(&error, &[&words, "which would be quantized; take it out of the input"]);
        assert!(!error.contains("--exclude"), "{error}");
    }
}

/// (They were replaced, or left out beside what is copied, without a word.)
#[test]
fn metadata_of_others_with_the_name_of_a_recipe_are_said_to_go() {
    let folder = Folder::new();
    let (input, output) = (folder.file("in"), folder.file("out"));
    let words = |key: &str| ("scaled_gemm.".to_string() + key, "words of mine".to_string());
    let layers = layers(&[f32_tensor("norm.weight", [1, 128], 3)]);
    let write = |entries: &[(String, String)]| {
        let views = layers.iter().map(|(n, d, s, b)| (*n, TensorView::new(*d, s.clone(), b).unwrap()));
        let entries = entries.iter().cloned().collect();
        fs::write(&input, safetensors::serialize(views.collect::<Vec<_>>(), Some(entries)).unwrap()).unwrap();
    };
    let args = ["quantize", &input, "-o", &output, "--recipe", "fp8-row", "--only", "proj"];
    let kept = |key: &str| {
        let bytes = fs::read(&output).unwrap();
        SafeTensors::read_metadata(&bytes).unwrap().1.metadata().as_ref().unwrap().get(key).cloned()
    };
    write(&["l.up_proj.weight", "norm.weight", "another"].map(words));
    let text = said(&args);
    assert_words(
        &text,
        &[
            "2 entries of the metadata (scaled_gemm.l.up_proj.weight, scaled_gemm.norm.weight) with the name of a recipe",
            "not in what is written; write them under other names to keep them",
        ],
    );
    assert_eq!(kept("scaled_gemm.norm.weight"), None);
    assert_eq!(kept("scaled_gemm.another").as_deref(), Some("words of mine"));
    // A recipe of this program's, which a plain matrix kept, is nobody's.
    let recipe = kept("scaled_gemm.l.up_proj.weight").unwrap();
    write(&[("scaled_gemm.l.up_proj.weight".to_string(), recipe)]);
    assert!(!said(&args).contains("of the metadata"));
}

/// (They were quantized as a weight, without a word.)
#[test]
fn scales_of_casts_whose_codes_are_gone_are_copied_and_named() {
    let folder = Folder::new();
    let [input, q, left, output] = ["in", "q", "left", "out"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("w", [32, 512], 1)]);
    good(&["quantize", &input, "-o", &q, "--group", "1x32"]);
    let bytes = fs::read(&q).unwrap();
    let metadata = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let scale = file.tensor("w_scale").unwrap();
    let v = f32_bytes(&values(512, 2));
    let both = |with_v: bool| {
        let v = with_v.then(|| ("v", TensorView::new(Dtype::F32, vec![16, 32], &v).unwrap()));
        let tensors: Vec<_> = [("w_scale", scale.clone())].into_iter().chain(v).collect();
        fs::write(&left, safetensors::serialize(tensors, metadata.clone()).unwrap()).unwrap();
    };
    let args = ["quantize", &left, "-o", &output, "--recipe", "nvfp4"];
    let list = "scales of a matrix by its entry in the metadata, whose codes are not there: 1 (w_scale [32, 16])";
    both(false);
    assert_words(&bad(2, &args), &["no matrix to quantize", list]);
    both(true);
    assert_words(&good(&args), &["1 matrix to nvfp4", &format!("copied as it is, {list}")]);
    assert_words(&said(&args), &["1 scale (w_scale), copied as it is: the metadata say how its matrix was quantized"]);
    assert_eq!(read_f32(&output, "w_scale").0, [32, 16]);
}
