//! `quantize --group`: casts in files and folders, there and back, and what is refused.

mod common;

use std::collections::HashMap;
use std::fs;

use common::*;
use half::{bf16, f16};
use ndarray::Array2;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use scaled_gemm::checkpoint::{Checkpoint, StoredScheme, TensorInfo, WrittenCast};
use scaled_gemm::{CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, HostCastMatrix, reference};
use serde_json::{Value, json};

/// Every scheme, with scales of any size and of powers of two.
fn recipes() -> Vec<CastRecipe> {
    let of = |scheme: CastScheme| {
        let recipe = CastRecipe::new(scheme);
        [Some(recipe), (scheme.scales() == CastScales::RowMajor).then(|| recipe.power_of_two())]
    };
    CastScheme::all().flat_map(of).flatten().collect()
}

/// The options of `quantize` for a recipe.
fn options(recipe: CastRecipe) -> Vec<&'static str> {
    let scheme = recipe.scheme();
    let mut all = vec!["--group", scheme.group().name()];
    // What is the default is left out.
    if scheme.format() != CodeFormat::E4M3 {
        all.extend(["--format", scheme.format().name()]);
    }
    if scheme.scales() != CastScales::RowMajor {
        all.extend(["--scales", scheme.scales().name()]);
    }
    all.extend(scheme.is_transposed().then_some("--transposed"));
    all.extend((recipe != CastRecipe::new(scheme)).then_some("--power-of-two"));
    all
}

/// Values as a type has them, and their bytes.
fn typed(dtype: Dtype, rows: usize, cols: usize, seed: u32) -> (Array2<f32>, Vec<u8>) {
    let values = values(rows * cols, seed);
    let (rounded, bytes): (Vec<f32>, Vec<u8>) = match dtype {
        Dtype::BF16 => {
            let all: Vec<_> = values.iter().map(|v| bf16::from_f32(*v)).collect();
            (all.iter().map(|v| v.to_f32()).collect(), all.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        Dtype::F16 => {
            let all: Vec<_> = values.iter().map(|v| f16::from_f32(*v)).collect();
            (all.iter().map(|v| v.to_f32()).collect(), all.iter().flat_map(|v| v.to_le_bytes()).collect())
        }
        _ => (values.clone(), f32_bytes(&values)),
    };
    (Array2::from_shape_vec((rows, cols), rounded).unwrap(), bytes)
}

fn assert_same(got: &Array2<f32>, want: &Array2<f32>, what: &str) {
    assert_eq!(got.dim(), want.dim(), "{what}");
    assert!(got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}");
}

fn cast(x: &Array2<f32>, recipe: CastRecipe) -> HostCastMatrix {
    reference::cast(&x.view().into(), recipe).unwrap()
}

/// The file has the bytes of the reference, and what is read of them is the reference's too.
fn check(q: &str, back: &str, name: &str, x: &Array2<f32>, (recipe, source): (CastRecipe, DType)) {
    let what = format!("{name} {}", recipe.scheme());
    let want = cast(x, recipe);
    let bytes = fs::read(q).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor(name).unwrap().data(), want.codes(), "{what}");
    assert_eq!(file.tensor(&format!("{name}_scale")).unwrap().data(), want.device_scales(), "{what}");
    let file = Checkpoint::open(q).unwrap();
    assert_eq!(file.stored_scheme(name).unwrap(), StoredScheme::Cast(recipe.scheme()), "{what}");
    assert_eq!(file.cast_recipe(name).unwrap(), Some(WrittenCast { recipe, source }), "{what}");
    assert_eq!(file.cast_matrix(name).unwrap(), want, "{what}");
    let (values, dtype) = Checkpoint::open(back).unwrap().matrix(name).unwrap();
    assert_same(&values, &reference::cast_back(&want, dtype), &what);
}

#[test]
fn every_cast_has_the_bytes_of_the_reference_and_comes_back() {
    let folder = Folder::new();
    let [input, q, back] = ["in", "q", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    let types = [(Dtype::BF16, DType::Bf16), (Dtype::F16, DType::F16), (Dtype::F32, DType::F32)];
    for (i, recipe) in recipes().into_iter().enumerate() {
        let (dtype, source) = types[i % 3];
        let [a, b] = [(160, 272), (16, 16)].map(|(rows, cols)| typed(dtype, rows, cols, i as u32 + rows as u32));
        write(
            &input,
            &[
                ("a.weight", dtype, vec![160, 272], a.1),
                ("b.weight", dtype, vec![16, 16], b.1),
                ("norm.weight", Dtype::F32, vec![3], vec![7; 12]),
            ],
        );
        good(&[&["quantize", &input, "-o", &q][..], &options(recipe)].concat());
        let wide = ["bf16", "f16", "f32"][i / 3 % 3];
        good(&["dequantize", &q, "-o", &back, "--dtype", wide]);
        check(&q, &back, "a.weight", &a.0, (recipe, source));
        check(&q, &back, "b.weight", &b.0, (recipe, source));
        assert_words(&good(&["info", &q]), &[&format!("cast to {}", recipe.scheme()), "160 x 272", "norm.weight"]);
        let plain = Checkpoint::open(&back).unwrap();
        assert_eq!(plain.tensors().len(), 3);
        assert!(!plain.metadata().keys().any(|key| key.starts_with("scaled_gemm.")));
        assert_eq!(plain.bytes("norm.weight").unwrap(), [7; 12]);
    }
}

/// Parts of 128 rows: what does not lie in the order of the rows is put together from several.
#[test]
fn matrices_of_several_parts_are_one() {
    let folder = Folder::new();
    let [input, q, back] = ["in", "q", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    let (rows, cols) = (336, 8192);
    let (x, bytes) = typed(Dtype::BF16, rows, cols, 9);
    write(&input, &[("w", Dtype::BF16, vec![rows, cols], bytes)]);
    let scheme = |format, group| CastScheme::new(format, group).unwrap();
    for scheme in [
        scheme(CodeFormat::E2M1, CastGroup::Group32x1).transposed().unwrap().with_scales(CastScales::ColumnMajor),
        scheme(CodeFormat::E4M3, CastGroup::Group128x1).transposed().unwrap().with_scales(CastScales::Ue8m0),
        scheme(CodeFormat::E4M3, CastGroup::Group1x16).with_scales(CastScales::Ue8m0),
        scheme(CodeFormat::E2M1, CastGroup::Row).with_scales(CastScales::ColumnMajor),
        scheme(CodeFormat::E4M3, CastGroup::Tile128x32),
    ] {
        let recipe = CastRecipe::new(scheme);
        good(&[&["quantize", &input, "-o", &q, "--jobs", "2"][..], &options(recipe)].concat());
        good(&["dequantize", &q, "-o", &back, "--dtype", "f32"]);
        check(&q, &back, "w", &x, (recipe, DType::Bf16));
    }
}

#[test]
fn folders_are_cast_by_shards_and_come_back() {
    let folder = Folder::new();
    let [model, q, back] = ["model", "q", "back"].map(|name| folder.file(name));
    let names = ["l.0.q_proj.weight", "l.0.k_proj.weight", "l.1.q_proj.weight"];
    let tensors: Vec<_> = names.iter().zip(1..).map(|(name, seed)| f32_tensor(name, [48, 64], seed)).collect();
    let norm = ("l.0.norm.weight", Dtype::F32, vec![64], vec![1; 256]);
    let head = f32_tensor("lm_head.weight", [32, 64], 7);
    model_folder(&model, &[tensors, vec![norm, head]].concat(), Some(json!({"architectures": ["X"]})));
    fs::write(format!("{model}/tokenizer.json"), "{}").unwrap();
    let group = ["--group", "128x1", "--scales", "column-major", "--transposed", "--format", "e2m1"];
    let to = ["quantize", &model, "-o", &q, "--shard-size", "4KB", "--exclude", r"l\.1\."];
    let dry: Value = json(&[&["quantize", &model, "--dry-run", "--json"][..], &group].concat());
    assert_eq!((&dry["scheme"], &dry["options"]["group"]), (&json!("cast"), &json!("128x1")));
    // It reads no values.
    assert_eq!([&dry["quantized"][0]["nan"], &dry["quantized"][0]["infinite"]], [&Value::Null; 2]);
    assert_eq!(dry["quantized"].as_array().unwrap().len(), 3);
    let note = said(&[&to[..], &group].concat());
    // (It said that engines do not load it, and to say --dialect plain, as if there were something to be done.)
    assert_words(&note, &["model: what is written is for scaled-gemm's own readers: casts have no dialect of engines"]);
    assert!(!note.contains("; ") && !note.contains("--dialect"), "{note}");
    let asked = ["quantize", &model, "--dry-run", "--dialect", "plain"];
    assert!(!said(&[&asked[..], &group].concat()).contains("own readers"));
    let file = Checkpoint::open(&q).unwrap();
    assert!(file.files().len() > 2, "{:?}", file.files());
    assert_eq!(file.quantized().len(), 2, "the third is excluded");
    let config: Value = serde_json::from_slice(&fs::read(format!("{q}/config.json")).unwrap()).unwrap();
    assert_eq!(config, json!({"architectures": ["X"]}), "no engine reads it: no config speaks of it");
    // As of every folder in the plain dialect.
    assert_words(
        &good(&["info", &q]),
        &["cast to e2m1 128x1 column-major transposed", "which this program reads, and no engine"],
    );
    good(&["dequantize", &q, "-o", &back, "--dtype", "f32", "--shard-size", "16KB"]);
    let scheme = CastScheme::new(CodeFormat::E2M1, CastGroup::Group128x1).unwrap().transposed().unwrap();
    let recipe = CastRecipe::new(scheme.with_scales(CastScales::ColumnMajor));
    let plain = Checkpoint::open(&back).unwrap();
    assert_eq!(plain.tensors().len(), 5);
    for (i, name) in names.iter().enumerate() {
        let x = Array2::from_shape_vec((48, 64), values(48 * 64, i as u32 + 1)).unwrap();
        let want = if i == 2 { x } else { reference::cast_back(&cast(&x, recipe), DType::F32) };
        assert_same(&plain.matrix(name).unwrap().0, &want, name);
    }
    // What was cast is copied by the next run, and keeps its entry.
    let again = folder.file("again");
    let text = good(&["quantize", &q, "-o", &again, "--recipe", "fp8-128x128", "--dialect", "plain"]);
    assert_words(&text, &["1 matrix to fp8-128x128", "a cast already: 2"]);
    assert_eq!(Checkpoint::open(&again).unwrap().cast_recipe(names[0]).unwrap().unwrap().recipe, recipe);
    assert_words(
        &bad(2, &["quantize", &q, "-o", &folder.file("x"), "--recipe", "fp8-128x128"]),
        &["is quantized already", "--dialect plain"],
    );
}

/// Each expert of a tensor is cast alone, and all come back as one.
#[test]
fn experts_in_one_tensor_are_cast_one_by_one() {
    let folder = Folder::new();
    let [model, q, back] = ["model", "q", "back"].map(|name| folder.file(name));
    let x = values(2 * 32 * 64, 5);
    // [experts, out, in].
    let name = "model.layers.0.experts.down_proj";
    let tensor = (name, Dtype::F32, vec![2, 64, 32], f32_bytes(&x));
    model_folder(&model, &[tensor], Some(json!({"model_type": "gemma4"})));
    good(&["quantize", &model, "-o", &q, "--group", "32x32", "--scales", "ue8m0"]);
    let file = Checkpoint::open(&q).unwrap();
    assert_eq!(file.quantized().len(), 2, "{:?}", file.tensors());
    good(&["dequantize", &q, "-o", &back, "--dtype", "f32"]);
    let (got, dtype) = Checkpoint::open(&back).unwrap().values(name).unwrap();
    let recipe = CastRecipe::new(
        CastScheme::new(CodeFormat::E4M3, CastGroup::Tile32x32).unwrap().with_scales(CastScales::Ue8m0),
    );
    let x = Array2::from_shape_vec((128, 32), x).unwrap();
    // Tiles end with an expert, as its 64 rows are two of them.
    let want = reference::cast_back(&cast(&x, recipe), dtype);
    assert_eq!(got, want.into_raw_vec_and_offset().0);
}

/// The recipe that is named where a dialect is refused has these bytes.
#[test]
fn what_is_recommended_has_the_codes_and_scales_of_the_cast() {
    let folder = Folder::new();
    let [input, a, b] = ["in", "a", "b"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("w", [160, 272], 3)]);
    let model = folder.file("model");
    model_folder(&model, &[f32_tensor("l.0.o_proj.weight", [128, 128], 3)], Some(json!({})));
    for (group, recipe) in [("128x128", "fp8-128x128"), ("row", "fp8-row")] {
        for power in [&[][..], &["--power-of-two"]] {
            let cast = [&["quantize", &input, "-o", &a, "--group", group][..], power].concat();
            let error = bad(2, &[&cast[..], &["--dialect", "compressed-tensors"]].concat());
            let advice = [&["--recipe", recipe, "--preset", "deepseek"][..], power].concat();
            assert_words(&error, &["no engine reads the tensors of a cast", &format!("write {}", advice.join(" "))]);
            good(&cast);
            good(&[&["quantize", &input, "-o", &b][..], &advice].concat());
            let [cast, recipe] = [&a, &b].map(|path| Checkpoint::open(path).unwrap());
            let other = recipe.scale_name("w").unwrap();
            assert_eq!(cast.bytes("w").unwrap(), recipe.bytes("w").unwrap(), "{group} {power:?}");
            assert_eq!(cast.bytes("w_scale").unwrap(), recipe.bytes(&other).unwrap(), "{group} {power:?}");
            // Of a folder it is said, too: there is something to be done.
            let folder = [&["quantize", &model, "--dry-run", "--group", group][..], power].concat();
            assert_words(
                &said(&folder),
                &["scaled-gemm's own readers", &format!("for engines write {}", advice.join(" "))],
            );
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let folder = Folder::new();
    let [input, output] = ["in", "out"].map(|name| folder.file(&format!("{name}.safetensors")));
    model(&input);
    let refused = |args: &[&str], words: &[&str]| {
        assert_words(&bad(2, &[&["quantize", &input, "-o", &output][..], args].concat()), words);
        assert!(!fs::exists(&output).unwrap());
    };
    for (option, value) in [
        ("--recipe", Some("nvfp4")),
        ("--preset", Some("deepseek")),
        ("--mx-rounding", Some("up")),
        ("--four-over-six", Some("mse")),
        // (It was said to need --four-over-six, which is refused as well.)
        ("--error-math", Some("fast")),
        ("--e4m3-max", Some("256")),
        ("--tile-16x16", None),
        ("--hadamard", None),
        ("--stochastic", Some("1")),
        ("--fuse", Some("q")),
        ("--no-fuse", None),
        ("--input-scales", Some("x.json")),
        ("--weight-amax", Some("x.json")),
    ] {
        let args: Vec<&str> = ["--group", "1x32", option].into_iter().chain(value).collect();
        // (Of all of them either was said to be left out; without --group nothing says what to quantize to.)
        let remedy = match option {
            "--recipe" => "leave one of the two out, --recipe or --group",
            _ => "; leave it out, or write --recipe in the place of --group",
        };
        refused(&args, &[&format!("{option} with --group 1x32"), remedy]);
    }
    refused(
        &["--group", "1x32", "--transposed"],
        &["storing transposed codes in groups of 1x32 is not supported", "take 32x1 or 128x1"],
    );
    // (Of groups of 32, which mxfp8 has, rows were recommended.)
    for (group, recipe) in [("1x32", "mxfp8"), ("1x128", "fp8-1x128"), ("128x128", "fp8-128x128"), ("32x32", "fp8-row")]
    {
        let remedy = format!(
            "take one of these, or --recipe {recipe} --format e5m2 or another recipe that has it (mxfp8 and all of fp8)"
        );
        refused(
            &["--group", group, "--format", "e5m2"],
            &[&format!("--format e5m2 with --group {group}"), "for e4m3 and e2m1", &remedy],
        );
    }
    for recipe in ["mxfp8", "fp8-tensor", "fp8-row", "fp8-1x128", "fp8-128x128"] {
        good(&["quantize", &input, "--dry-run", "--recipe", recipe, "--format", "e5m2"]);
    }
    refused(&["--group", "1x32", "--scales", "ue8m0", "--power-of-two"], &["powers of two already", "leave it out"]);
    // Words that are near what is meant: the message has all that there is.
    let known = CastGroup::ALL.map(|group| group.name()).join(", ");
    for group in ["1x48", "1X32", "1x 32", "32", "token", "1x32,1x64", ""] {
        refused(&["--group", group], &[group, &format!("known are {known}")]);
    }
    refused(&["--group", "1x32", "--scales", "UE8M0"], &["UE8M0", "known are row-major, column-major, ue8m0"]);
    refused(&["--group", "1x32", "--format", "fp8"], &["fp8", "known are e4m3, e5m2, e2m1"]);
    // Before anything is written, in a dry run too.
    let dry = ["quantize", &input, "--dry-run", "--group", "1x32"];
    assert_words(&bad(2, &dry), &["tensor odd.weight", "30 must be a multiple of 16", "--exclude"]);
    refused(&["--group", "1x32", "--scales", "swizzled"], &["swizzled", "known are row-major, column-major, ue8m0"]);
    refused(&["--recipe", "nvfp4", "--scales", "ue8m0"], &["--scales with --recipe nvfp4", "--group in the place"]);
    refused(&["--recipe", "nvfp4", "--transposed"], &["--transposed with --recipe nvfp4"]);
    // (The other way was not named.)
    refused(&[], &["--recipe", "--group"]);
    for (group, scales, words) in [
        ("1x64", "row-major", "leave it out, or write --dialect plain"),
        ("1x32", "ue8m0", "write --recipe mxfp8, which has these groups"),
    ] {
        let args = ["--group", group, "--scales", scales, "--dialect", "modelopt"];
        refused(&args, &["--dialect modelopt", "no engine reads the tensors of a cast", words]);
    }
    // Shapes that are not stored: tensor, numbers, rule, remedy.
    let words = [
        "tensor odd.weight: 4 x 30 cast to e4m3 1x32",
        "columns of a cast: 30 must",
        "multiple of 16",
        r"--exclude '^odd\.weight$'",
    ];
    refused(&["--group", "1x32"], &words);
    // Every grouping refuses these columns, in every order of scales.
    for group in CastGroup::ALL {
        for order in CastScales::ALL {
            let cast = format!("4 x 30 cast to e4m3 {group} {order}");
            refused(&["--group", group.name(), "--scales", order.name()], &[&cast, "30 must be a multiple of 16"]);
        }
    }
    refused(
        &["--group", "32x1", "--transposed", "--exclude", "odd"],
        &["tensor layer.weight: 40 x 272", "rows of a transposed cast: 40", "untransposed", "--exclude"],
    );
    good(&["quantize", &input, "-o", &output, "--group", "1x32", "--exclude", "odd"]);
    // Neither it nor what it is made of is written over.
    for (from, to) in [(&input, &input), (&output, &output)] {
        let before = fs::read(to).unwrap();
        for args in [&["quantize", from, "-o", to, "--group", "1x32"][..], &["dequantize", from, "-o", to]] {
            assert_words(&bad(2, args), &["it is the input; give another name for the output"]);
        }
        assert!(fs::read(to).unwrap() == before);
    }
    // No product reads it.
    let operand = format!("{output}:layer.weight");
    let error = bad(2, &["gemm", "--a", &operand, "--b", &operand, "-o", &folder.file("d.safetensors")]);
    assert_words(
        &error,
        &["layer.weight: is cast to e4m3 1x32 row-major, which no product reads", "dequantize it first"],
    );
}

#[test]
fn infinities_are_refused_and_nan_is_where_it_is_not_allowed() {
    let folder = Folder::new();
    let [input, q, back] = ["in", "q", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    let with = |value: f32| {
        let mut x = values(32 * 32, 1);
        x[40] = value;
        write(&input, &[("w", Dtype::F32, vec![32, 32], f32_bytes(&x))]);
        Array2::from_shape_vec((32, 32), x).unwrap()
    };
    for format in ["e4m3", "e2m1"] {
        let args = ["quantize", &input, "-o", &q, "--group", "1x32", "--format", format];
        let allowed = [&args[..], &["--allow-non-finite"]].concat();
        with(f32::INFINITY);
        let words =
            ["tensor w: 1 non-finite value", "row 1, column 8", "no grouping of a cast has a scale for infinities"];
        assert_words(&bad(2, &args), &words);
        assert_words(&bad(2, &allowed), &["1 infinity", "no grouping of a cast has a scale for infinities"]);
        let x = with(f32::NAN);
        assert_words(&bad(2, &args), &["1 non-finite value", "say --allow-non-finite"]);
        assert_words(&good(&allowed), &["1 NaN and 0 infinities"]);
        let recipe = CastRecipe::new(CastScheme::new(format.parse().unwrap(), CastGroup::Group1x32).unwrap());
        assert_eq!(Checkpoint::open(&q).unwrap().cast_matrix("w").unwrap(), cast(&x, recipe));
        let to = ["dequantize", &q, "-o", &back, "--dtype", "f32"];
        if format == "e4m3" {
            assert_words(&bad(2, &to), &["1 non-finite value among its codes", "row 1, column 8"]);
            good(&[&to[..], &["--allow-non-finite"]].concat());
        } else {
            good(&to);
        }
    }
}

#[test]
fn hostile_files_are_errors() {
    let folder = Folder::new();
    let [input, q, back] = ["in", "q", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("w", [64, 64], 3)]);
    good(&["quantize", &input, "-o", &q, "--group", "1x32"]);
    let seed = fs::read(&q).unwrap();
    let refused = |bytes: &[u8], word: &str| {
        fs::write(&q, bytes).unwrap();
        assert_words(&bad(2, &["dequantize", &q, "-o", &back]), &["tensor w", word]);
        assert_words(&wrong(&["info", &q]).0, &["What is wrong", "tensor w", word]);
        assert!(!fs::exists(&back).unwrap());
    };
    let place = |word: &str| seed.windows(word.len()).position(|found| found == word.as_bytes()).unwrap();
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = seed.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    refused(&changed(place("1x32"), b"9x99"), "unknown group \"9x99\"");
    refused(&changed(place("1x32"), b"1x64"), "but must be F32 [64, 1]");
    refused(&changed(place("row-major"), b"anyhow-or"), "unknown scales");
    refused(&changed(place("e4m3"), b"e2m1"), "but must be U8");
    refused(&changed(place("false"), b"true "), "only groups along columns");
    // Scales come first: four bytes an element.
    let data = 8 + u64::from_le_bytes(*seed.first_chunk().unwrap()) as usize;
    for scale in [f32::NAN, f32::INFINITY, -0.5] {
        refused(&changed(data + 4 * 5, &scale.to_le_bytes()), &format!("{scale}"));
    }
}

/// (Of E2M1 nothing was said at all, and of E4M3 that a scale is never reshaped.)
#[test]
fn casts_that_lost_their_metadata_are_said_to_have() {
    let folder = Folder::new();
    let [input, q, bare, back] = ["in", "q", "bare", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("w", [64, 128], 3), f32_tensor("v.weight", [64, 128], 4)]);
    let remedy = "write it with quantize --group again, or copy it with the __metadata__ of its header";
    let bytes = |path: &str| {
        let file = Checkpoint::open(path).unwrap();
        let tensor = |t: &TensorInfo| (t.name.clone(), t.dtype, t.shape.clone(), file.bytes(&t.name).unwrap());
        file.tensors().iter().map(tensor).collect::<Vec<_>>()
    };
    for (options, is_said) in [
        (&["--group", "1x64"][..], true),
        (&["--group", "32x32", "--scales", "ue8m0"], true),
        (&["--group", "32x1", "--transposed", "--scales", "column-major"], true),
        // What it is read as has the same bytes.
        (&["--group", "1x128"], false),
    ] {
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        assert!(!good(&["info", &q]).contains("scaled_gemm."));
        let tensors = bytes(&q);
        write(
            &bare,
            &tensors.iter().map(|(name, d, s, b)| (name.as_str(), *d, s.clone(), b.clone())).collect::<Vec<_>>(),
        );
        if !is_said {
            assert!(!good(&["info", &bare]).contains("scaled_gemm."));
            continue;
        }
        let entry =
            |name: &str| format!("the metadata entry scaled_gemm.{name}, which a cast is read by, is not in the file");
        let text = wrong(&["info", &bare]).0;
        assert_words(&text, &["tensor w: ", &entry("w"), &entry("v.weight"), remedy]);
        assert_words(&bad(2, &["dequantize", &bare, "-o", &back]), &["tensor v.weight: ", &entry("v.weight"), remedy]);
    }
    // Two codes a byte with FP32 scales may be of other formats, too, unless something says whose they are. (Integers with a scale for
    // each row were called wrong.)
    for (options, is_wrong) in [
        (&["--group", "1x64", "--format", "e2m1"][..], false),
        (&["--group", "row", "--format", "e2m1"], false),
        (&["--group", "1x16", "--format", "e2m1", "--scales", "ue8m0"], true),
        (&["--group", "128x1", "--format", "e2m1", "--transposed"], false),
    ] {
        good(&[&["quantize", &input, "-o", &q][..], options].concat());
        assert!(!good(&["info", &q]).contains("scaled_gemm."));
        let tensors = bytes(&q);
        let mut tensors: Vec<_> =
            tensors.iter().map(|(name, d, s, b)| (name.as_str(), *d, s.clone(), b.clone())).collect();
        write(&bare, &tensors);
        let words =
            ["2 tensors (v.weight, w) may be the codes of casts, and the entry of each", "scaled_gemm.NAME", remedy];
        let is_said = |text: &str| assert_words(text.split("What is wrong").nth(1).unwrap(), &words);
        match is_wrong {
            true => is_said(&wrong(&["info", &bare]).0),
            false => assert_words(&good(&["info", &bare]), &words),
        }
        // Beside what this program wrote.
        let views = tensors.iter().map(|(n, d, s, b)| (*n, TensorView::new(*d, s.clone(), b).unwrap()));
        let entry = HashMap::from([("scaled_gemm.other".to_string(), "{}".to_string())]);
        fs::write(&bare, safetensors::serialize(views.collect::<Vec<_>>(), Some(entry)).unwrap()).unwrap();
        let (text, error) = wrong(&["info", &bare]);
        is_said(&text);
        assert_words(&error, &["1 thing is wrong"]);
        write(&bare, &tensors);
        assert_words(&bad(2, &["dequantize", &bare, "-o", &back]), &words);
        // (They were codes in a format that is not read, or no BF16, and it was not said what they may be.)
        let list =
            "of layers that may hold codes of casts, whose entries in the metadata are not in the file: 2 (v.weight [";
        let error = bad(2, &["quantize", &bare, "-o", &back, "--group", "1x32"]);
        assert_words(&error, &["no matrix to quantize", list, words[0], remedy]);
        // Beside another matrix they are copied.
        tensors.push(("x", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]));
        tensors.push(("x_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])));
        write(&bare, &tensors);
        assert_words(
            &said(&["dequantize", &bare, "-o", &back]),
            &["copied as they are: 2 tensors (v.weight, w)", remedy],
        );
        let error = bad(2, &["gemm", "--a", &format!("{bare}:w"), "--b", &format!("{bare}:x"), "-o", &q]);
        assert_words(&error, &["tensor w: has dtype U8; its tensors fit a cast, which no product reads", remedy]);
        assert_words(&error, &["scaled_gemm.w"]);
        tensors.push(("y.weight", Dtype::F32, vec![32, 64], f32_bytes(&[1.0; 2048])));
        write(&bare, &tensors);
        let said = said(&["quantize", &bare, "-o", &back, "--group", "1x32"]);
        assert_words(&said, &["copied as they are: 2 tensors (v.weight, w) may be the codes of casts", remedy]);
        let text = good(&["quantize", &bare, "-o", &back, "--group", "1x32"]);
        assert_words(&text, &[&format!("copied as they are, {list}")]);
        assert!(!text.contains("a format that is not read here"), "{text}");
    }
    // Scales of no cast.
    write(&bare, &[("w", Dtype::U8, vec![64, 64], vec![1; 4096]), ("w_scale", Dtype::F32, vec![64, 3], vec![0; 768])]);
    assert!(!good(&["info", &bare]).contains("scaled_gemm."));
    assert!(!bad(2, &["dequantize", &bare, "-o", &back]).contains("scaled_gemm."));
}

/// (Entries that no version wrote were read, and one of another type was said not to be there.)
#[test]
fn entries_of_a_cast_are_what_is_known() {
    let folder = Folder::new();
    let [input, q, back] = ["in", "q", "back"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("w", [64, 128], 3)]);
    good(&["quantize", &input, "-o", &q, "--group", "1x64"]);
    let bytes = fs::read(&q).unwrap();
    let header_of = |bytes: &[u8]| {
        let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        (serde_json::from_slice::<Value>(&bytes[8..8 + length]).unwrap(), 8 + length)
    };
    let entry_of = |bytes: &[u8]| header_of(bytes).0["__metadata__"]["scaled_gemm.w"].as_str().unwrap().to_string();
    let refused = |bytes: &[u8], entry: String, words: &str| {
        let (mut header, end) = header_of(bytes);
        header["__metadata__"]["scaled_gemm.w"] = entry.into();
        let header = header.to_string();
        fs::write(&q, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[end..]].concat()).unwrap();
        let words = ["tensor w: its recipe in the metadata ", words, "; quantize it again"];
        assert_words(&wrong(&["info", &q]).0, &words);
        assert_words(&bad(2, &["dequantize", &q, "-o", &back]), &words);
    };
    let cases = [
        ("rounding", json!("foo"), "has the unknown rounding \"foo\"; known are exact, power-of-two"),
        ("rounding", json!(7), "has rounding 7, and a string is expected"),
        ("floor", json!("x"), "has floor \"x\", and a number is expected"),
        ("floor", json!(-1), "has the unknown floor -1; known are finite numbers of at least 5.2662"),
        ("floor", json!(1e-38), "has the unknown floor 1e-38; known are"),
        ("group", json!(7), "has group 7, and a string is expected"),
        ("group", json!("7x7"), "has the unknown group \"7x7\"; known are 1x16, 1x32"),
        ("group", Value::Null, "has no group"),
        ("scheme", json!([1]), "has scheme [1], and a string is expected"),
        ("transposed", json!("yes"), "has transposed \"yes\", and true or false is expected"),
        ("transposed", Value::Null, "does not say whether it is transposed"),
    ];
    for (key, value, words) in cases {
        let mut entry: Value = serde_json::from_str(&entry_of(&bytes)).unwrap();
        entry[key] = value;
        refused(&bytes, entry.to_string(), words);
    }
    // (Of two codes a byte a second level of scales was said to be missing.)
    for (format, schemes) in [("e4m3", "mxfp8, cast; quantize"), ("e2m1", "nvfp4, nvfp4-row, cast; quantize")] {
        good(&["quantize", &input, "-o", &q, "--group", "1x64", "--format", format]);
        // (A byte of E2M1 was said to be one code.)
        let error = bad(2, &["dequantize", &q, "-o", &back, "--nibble-order", "high-first"]);
        assert_words(&error, &["holds no nvfp4 matrix", "that of mxfp4 and of casts is known", "leave it out"]);
        let bytes = fs::read(&q).unwrap();
        let text = entry_of(&bytes);
        let floor = text.find("\"floor\":").unwrap() + 8;
        let end = floor + text[floor..].find(',').unwrap();
        let castle = format!("has the unknown scheme of {format} \"castle\"; known are ");
        let nan = [&text[..floor], "NaN", &text[end..]].concat();
        refused(&bytes, text.replace("\"cast\"", "\"castle\""), &castle);
        refused(&bytes, text.replace("\"cast\"", "\"castle\""), schemes);
        refused(&bytes, nan, "is no JSON: expected");
        refused(&bytes, "{cast".into(), "(JSON has no NaN and no infinity)");
        refused(&bytes, "[]".into(), "is [], and an object is expected");
        refused(&bytes, "null".into(), "is null, and an object is expected");
    }
}
