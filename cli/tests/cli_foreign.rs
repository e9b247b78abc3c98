//! Layers that are quantized in formats that are not read here: nothing of theirs is quantized or dequantized, and what helps is said.

mod common;

use std::fs;

use common::*;
use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::json;

fn f16(n: usize, seed: u32) -> Vec<u8> {
    values(n, seed).iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()
}

/// A layer as AWQ has it, one as HQQ, two as quanto (a byte a code, and two codes), one as VPTQ, and a plain one.
fn model() -> Vec<Tensor<'static>> {
    let int = |n: usize| vec![0x35; n];
    vec![
        ("m.a.o_proj.qweight", Dtype::I32, vec![64, 8], int(2048)),
        ("m.a.o_proj.qzeros", Dtype::I32, vec![2, 8], int(64)),
        ("m.a.o_proj.scales", Dtype::F16, vec![2, 64], f16(128, 1)),
        ("m.b.o_proj.W_q", Dtype::U8, vec![32, 64], int(2048)),
        ("m.b.o_proj.scale", Dtype::F16, vec![64, 16], f16(1024, 2)),
        ("m.c.o_proj.weight._data", Dtype::I8, vec![64, 64], int(4096)),
        ("m.c.o_proj.weight._scale", Dtype::F16, vec![64, 16], f16(1024, 3)),
        ("m.e.o_proj.weight._data._data", Dtype::U8, vec![32, 64], int(2048)),
        ("m.e.o_proj.weight._scale", Dtype::F16, vec![64, 16], f16(1024, 5)),
        ("m.e.o_proj.weight._shift", Dtype::F16, vec![64, 16], f16(1024, 6)),
        ("m.f.o_proj.indices", Dtype::I16, vec![1, 64, 8], int(1024)),
        ("m.f.o_proj.centroids.weight", Dtype::F16, vec![1, 4096], f16(4096, 7)),
        ("m.f.o_proj.res_centroids.weight", Dtype::F16, vec![1, 4096], f16(4096, 8)),
        ("m.f.o_proj.weight_scale", Dtype::F16, vec![64], f16(64, 9)),
        f32_tensor("m.d.o_proj.weight", [64, 64], 4),
    ]
}

/// (`scales` of INT4 codes became FP4: what the codes mean was lost. So did codebooks in a module of their own, and scales beside codes that are
/// in two tensors, one in the other.)
#[test]
fn scales_of_codes_that_are_not_read_stay_as_they_are() {
    let folder = Folder::new();
    let (file, path) = (folder.file("a.safetensors"), folder.file("in"));
    write(&file, &model());
    model_folder(&path, &model(), Some(json!({"quantization_config": {"quant_method": "awq"}})));
    for (input, output, options) in [
        (&file, folder.file("b.safetensors"), &[][..]),
        (&path, folder.file("out"), &["--dialect", "plain"]),
        (&file, folder.file("c.safetensors"), &["--only", "scale|o_proj"]),
    ] {
        let args = [&["quantize", input, "-o", &output, "--recipe", "nvfp4"][..], options].concat();
        let text = good(&args);
        assert_words(&text, &["copied as they are, of layers whose codes are in a format that is not read here: 14 ("]);
        let written = if output.ends_with("out") { format!("{output}/model.safetensors") } else { output };
        let (before, after) = (fs::read(&file).unwrap(), fs::read(written).unwrap());
        let [before, after] = [&before, &after].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
        for (name, dtype, shape, _) in model().split_last().unwrap().1 {
            let (old, new) = (before.tensor(name).unwrap(), after.tensor(name).unwrap());
            assert_eq!((new.dtype(), new.shape(), new.data()), (*dtype, shape.as_slice(), old.data()), "{name}");
        }
        assert_eq!(after.tensor("m.d.o_proj.weight").unwrap().dtype(), Dtype::U8);
    }
    // In a dialect the remedy was to dequantize it first, which this program refuses.
    let error = bad(2, &["quantize", &path, "-o", &folder.file("no"), "--recipe", "nvfp4"]);
    let words = "is quantized already (awq); its codes are in a format that is not read here: dequantize it with what wrote it, or write \
                 --dialect plain, which copies them";
    assert_words(&error, &[words]);
}

/// (There was "nothing to do", and the config that names the codes would have gone.)
#[test]
fn dequantize_says_that_it_does_not_read_the_codes() {
    let folder = Folder::new();
    let (file, path) = (folder.file("a.safetensors"), folder.file("in"));
    write(&file, &model());
    model_folder(&path, &model(), Some(json!({"quantization_config": {"quant_method": "awq"}})));
    let codes = "the codes of 6 tensors (m.a.o_proj.qweight, m.a.o_proj.qzeros, m.f.o_proj.indices, ...) are in a format that is not";
    let error = bad(2, &["dequantize", &path, "-o", &folder.file("out")]);
    assert_words(&error, &["is quantized, and", codes, "read here; dequantize it with what wrote it"]);
    let error = bad(2, &["dequantize", &file, "-o", &folder.file("b.safetensors")]);
    assert_words(
        &error,
        &["holds no quantized matrix that is read here, and", codes, "; dequantize them with what wrote them"],
    );
    assert_eq!(folder.names(), ["a.safetensors", "in"]);
}

/// (They were called a foreign format.)
#[test]
fn blocks_of_gpt_oss_without_scales_are_said() {
    let folder = Folder::new();
    let [up, down] = ["gate_up_proj", "down_proj"].map(|name| format!("m.mlp.experts.{name}"));
    let names = [&up, &down].map(|name| [format!("{name}_blocks"), format!("{name}_scales")]);
    let tensors: Vec<Tensor> = vec![
        (&names[0][0], Dtype::U8, vec![2, 32, 2, 16], vec![0x35; 2048]),
        (&names[0][1], Dtype::U8, vec![2, 32, 2], vec![0x7F; 128]),
        (&names[1][0], Dtype::U8, vec![2, 32, 2, 16], vec![0x35; 2048]),
    ];
    let config = json!({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}});
    let words = "tensor m.mlp.experts.down_proj_blocks: holds codes of MXFP4 in the blocks of gpt-oss, and their scales \
                 m.mlp.experts.down_proj_scales are not there; fetch or write the model again";
    // Also where no matrix is whole.
    for (name, tensors) in [("some", &tensors[..]), ("none", &tensors[2..])] {
        let path = folder.file(name);
        model_folder(&path, tensors, Some(config.clone()));
        let (text, _) = wrong(&["info", &path]);
        assert_words(&text, &[words]);
        assert!(!text.contains("a format that this program"), "{text}");
        assert_words(&bad(2, &["dequantize", &path, "-o", &folder.file("out")]), &[words]);
    }
}

/// (A buffer that has the name of codes took all layers below its module with it, whatever `--only` said, and in a file without dots all.)
#[test]
fn a_buffer_takes_no_other_layer_with_it() {
    let folder = Folder::new();
    let int = |n: usize| vec![1; n];
    let buffers = vec![
        ("model.rope_data", Dtype::I8, vec![4, 4], int(16)),
        ("model.layers.weight_map", Dtype::I32, vec![2, 2], int(16)),
        ("model.layers.0.self_attn.position_indices", Dtype::I32, vec![2, 2], int(16)),
        f32_tensor("model.layers.0.self_attn.q_proj.weight", [64, 64], 1),
        f32_tensor("model.layers.0.mlp.down_proj.weight", [64, 64], 2),
    ];
    let path = folder.file("in");
    model_folder(&path, &buffers, Some(json!({"model_type": "llama"})));
    let text = good(&["quantize", &path, "-o", &folder.file("out"), "--recipe", "fp8-row"]);
    assert_words(&text, &["2 matrices to fp8-row"]);
    let file = folder.file("a.safetensors");
    write(
        &file,
        &[f32_tensor("a", [64, 64], 1), f32_tensor("b", [64, 64], 2), ("codes", Dtype::U8, vec![4, 4], int(16))],
    );
    let text = good(&["quantize", &file, "-o", &folder.file("b.safetensors"), "--recipe", "fp8-row"]);
    assert_words(&text, &["2 matrices to fp8-row"]);
}

/// (A layer that is alone in its file has names without dots. Its scales were quantized.)
#[test]
fn scales_of_codes_without_a_layer_stay_as_they_are() {
    let folder = Folder::new();
    let wide = |name, seed| (name, Dtype::F16, vec![64, 64], f16(4096, seed));
    let codes = |name| (name, Dtype::U32, vec![64, 32], vec![0x35; 8192]);
    for (i, (first, scales)) in [
        ("weight", &["scales", "biases"][..]),
        ("weight", &["weight.absmax", "weight.nested_absmax"]),
        ("weight._data", &["weight._scale", "weight._shift"]),
        ("weight_packed", &["weight_scale", "weight_zero_point"]),
        ("W_q", &["scale", "zero"]),
        ("codes", &["codebooks", "scales"]),
        ("indices", &["centroids.weight", "res_centroids.weight"]),
        (".weight", &[".scales"]),
    ]
    .into_iter()
    .enumerate()
    {
        let file = folder.file(&format!("{i}.safetensors"));
        let mut tensors = vec![codes(first), wide("other", 1), wide("m.o_proj.weight", 2)];
        tensors.extend(scales.iter().zip(3..).map(|(name, seed)| wide(*name, seed)));
        write(&file, &tensors);
        for (j, options) in [&[][..], &["--only", "."]].into_iter().enumerate() {
            let output = folder.file(&format!("{i}-{j}.safetensors"));
            let args = [&["quantize", &file, "-o", &output, "--recipe", "fp8-row"][..], options].concat();
            assert_words(&good(&args), &["2 matrices to fp8-row"]);
            let bytes = fs::read(&output).unwrap();
            let after = SafeTensors::deserialize(&bytes).unwrap();
            for (name, dtype, _, bytes) in tensors.iter().filter(|tensor| scales.contains(&tensor.0)) {
                let tensor = after.tensor(name).unwrap();
                assert_eq!((tensor.dtype(), tensor.data()), (*dtype, bytes.as_slice()), "{first}: {name}");
            }
        }
    }
}

/// (They were blocks of gpt-oss whose scales had the wrong type.)
#[test]
fn blocks_with_scales_in_floats_are_called_what_they_are() {
    let folder = Folder::new();
    let path = folder.file("in");
    let tensors = [
        ("l.experts.down_proj_blocks", Dtype::U8, vec![2, 8, 4, 16], vec![0x35; 1024]),
        ("l.experts.down_proj_scales", Dtype::F16, vec![2, 8, 4], f16(64, 1)),
    ];
    write(&path, &tensors);
    let words = "tensor l.experts.down_proj_scales: is F16 [2, 8, 4] beside blocks of 16 bytes, l.experts.down_proj_blocks [2, 8, 4, 16], and \
                 those that are read here, MXFP4, have scales in U8 [2, 8, 4] (E8M0)";
    for error in [wrong(&["info", &path]).0, bad(2, &["dequantize", &path, "-o", &folder.file("out")])] {
        assert_words(&error, &[words, "; "]);
        assert!(!error.contains("gpt-oss"), "{error}");
    }
}

/// (Their codebooks were quantized: codes that lie in floats were none.)
#[test]
fn codes_that_lie_in_floats_have_codebooks_and_zeros_beside_them() {
    let folder = Folder::new();
    let (file, output) = (folder.file("in"), folder.file("out"));
    let wide = |name, shape: &[usize], seed| (name, Dtype::F16, shape.to_vec(), f16(shape.iter().product(), seed));
    let tensors = [
        // VPTQ with `indices_as_float`.
        wide("m.a.o_proj.indices", &[1, 64, 16], 1),
        wide("m.a.o_proj.centroids.weight", &[1, 4096], 2),
        wide("m.b.o_proj.res_indices", &[64, 64], 3),
        wide("m.b.o_proj.res_centroids.weight", &[64, 64], 4),
        // HQQ with `view_as_float`, and with scales and zeros that are quantized themselves.
        wide("m.c.o_proj.W_q", &[64, 64], 5),
        wide("m.c.o_proj.scale", &[64, 16], 6),
        wide("m.c.o_proj.zero", &[64, 16], 7),
        ("m.d.o_proj.W_q", Dtype::U8, vec![32, 64], vec![0x35; 2048]),
        ("m.d.o_proj.zero_q", Dtype::U8, vec![32, 64], vec![0x35; 2048]),
        wide("m.d.o_proj.meta_zero.scale", &[64, 16], 8),
        wide("m.d.o_proj.meta_zero.zero", &[64, 16], 9),
        f32_tensor("m.e.o_proj.weight", [64, 64], 4),
    ];
    write(&file, &tensors);
    let text = good(&["quantize", &file, "-o", &output, "--recipe", "fp8-row", "--only", "o_proj"]);
    assert_words(&text, &["1 matrix to fp8-row"]);
    let bytes = fs::read(&output).unwrap();
    let after = SafeTensors::deserialize(&bytes).unwrap();
    for (name, dtype, _, bytes) in tensors.split_last().unwrap().1 {
        let tensor = after.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.data()), (*dtype, bytes.as_slice()), "{name}");
    }
    // A plain tensor of that name is one.
    write(&file, &[wide("m.a.indices", &[64, 64], 1), wide("m.a.W_q", &[64, 64], 2), wide("m.b.scale", &[64, 64], 3)]);
    fs::remove_file(&output).unwrap();
    good(&["quantize", &file, "-o", &output, "--recipe", "fp8-row", "--dialect", "plain"]);
    // (Those of attention were taken for codes, for a scale and a zero of whatever shape.)
    for beside in [
        &[wide("m.a.scale", &[1], 3), wide("m.a.zero", &[1], 4)][..],
        &[wide("m.a.scale", &[64, 16], 3), wide("m.a.zero", &[64, 8], 4)],
        &[wide("m.a.centroids.weight", &[64, 64], 3), f32_tensor("m.a.indices", [64, 64], 4)],
    ] {
        let all = ["m.a.W_q", "m.a.W_k", "m.a.W_v"].map(|name| wide(name, &[64, 64], 2));
        write(&file, &[&all[..], beside].concat());
        fs::remove_file(&output).unwrap();
        let args =
            ["quantize", &file, "-o", &output, "--recipe", "fp8-row", "--dialect", "plain", "--only", "W_|indices"];
        let number = if beside[1].0 == "m.a.indices" { 4 } else { 3 };
        assert_words(&good(&args), &[&format!("{number} matrices to fp8-row")]);
    }
}

/// (`info` spoke of the codes of another format, and `quantize` of a cast; or of a cast, and `dequantize` of another format.)
#[test]
fn codes_that_look_like_a_cast_are_called_the_same_by_all_commands() {
    let folder = Folder::new();
    let [plain, cast] = ["plain", "cast"].map(|name| folder.file(name));
    write(&plain, &[f32_tensor("m.a.o_proj.weight", [64, 128], 3)]);
    let words = ["(m.a.o_proj.weight) may be the codes of a cast", "are in a format that"];
    for (name, options, said, unsaid) in [
        // Nothing but the config says whose they are, and it speaks of another format.
        ("awq", &["--group", "row"][..], words[1], words[0]),
        // No other format has this order of scales.
        ("lost", &["--group", "1x16", "--scales", "ue8m0"], words[0], words[1]),
    ] {
        let _ = fs::remove_file(&cast);
        good(&[&["quantize", &plain, "-o", &cast, "--format", "e2m1"], options].concat());
        let bytes = fs::read(&cast).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let names = ["m.a.o_proj.weight", "m.a.o_proj.weight_scale"];
        let mut tensors: Vec<Tensor> = names
            .map(|name| file.tensor(name).map(|t| (name, t.dtype(), t.shape().to_vec(), t.data().to_vec())).unwrap())
            .to_vec();
        tensors.push(f32_tensor("m.b.o_proj.weight", [64, 64], 4));
        // What `dequantize` is for.
        tensors.push(("m.c.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]));
        tensors.push(("m.c.o_proj.weight_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])));
        let (path, output) = (folder.file(name), folder.file(&format!("{name}-out")));
        model_folder(&path, &tensors, Some(json!({"quantization_config": {"quant_method": "awq"}})));
        for (command, text) in [
            ("info", wrong(&["info", &path]).0),
            ("dequantize", bad(2, &["dequantize", &path, "-o", &output])),
            ("quantize", bad(2, &["quantize", &path, "-o", &output, "--recipe", "nvfp4"])),
            (
                "plain",
                self::said(&[
                    "quantize",
                    &path,
                    "-o",
                    &output,
                    "--recipe",
                    "nvfp4",
                    "--dialect",
                    "plain",
                    "--only",
                    "b",
                ]),
            ),
        ] {
            assert!(!text.contains(unsaid), "{name}, {command}: {text}");
            // `dequantize` refuses it.
            assert!(!text.contains("dequantize it first"), "{name}, {command}: {text}");
            // `quantize` lists what it copies in its result, and a dialect is refused whatever the codes are.
            if command == "info" || command == "dequantize" || (command == "plain" && said == words[0]) {
                assert!(text.contains(said), "{name}, {command}: {text}");
            }
        }
    }
}

/// (The remedy was to dequantize it first, which `dequantize` refused.)
#[test]
fn quantize_advises_no_dequantize_that_is_refused() {
    let folder = Folder::new();
    let fp8: [Tensor; 2] = [
        ("m.c.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
        ("m.c.o_proj.weight_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
    ];
    let codes = |name| (name, Dtype::U8, vec![16, 16], vec![0x35; 256]);
    let first = "dequantize it first, or for layers that are still plain write --dialect plain";
    for (i, (more, words)) in [
        (None, None),
        (
            Some(codes("m.a.o_proj.weight_packed")),
            Some("tensor m.a.o_proj.weight_packed: holds packed codes, and no scale"),
        ),
        (Some(f32_tensor("m.a.o_proj.weight_scale", [16, 1], 1)), Some("neither tensor m.a.o_proj.weight nor")),
        (
            Some(("m.c.o_proj.pre_quant_scale", Dtype::F32, vec![16], f32_bytes(&[1.0; 16]))),
            Some("holds 1 tensor (m.c.o_proj.pre_quant_scale) of AWQ"),
        ),
        (Some(("m.a.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256])), Some("m.a.o_proj.weight")),
    ]
    .into_iter()
    .enumerate()
    {
        let (path, output) = (folder.file(&i.to_string()), folder.file(&format!("{i}-out")));
        let mut tensors = fp8.to_vec();
        tensors.push(f32_tensor("m.b.o_proj.weight", [64, 64], 4));
        tensors.extend(more);
        model_folder(&path, &tensors, Some(json!({"quantization_config": {"quant_method": "compressed-tensors"}})));
        let text = bad(2, &["quantize", &path, "-o", &output, "--recipe", "nvfp4"]);
        match words {
            None => {
                assert_words(&text, &[first]);
                good(&["dequantize", &path, "-o", &output]);
            }
            Some(words) => {
                assert!(!text.contains("dequantize it first"), "{i}: {text}");
                assert_words(&text, &["is quantized already (compressed-tensors); ", "--dialect plain", words]);
                assert_words(&bad(2, &["dequantize", &path, "-o", &output]), &[words]);
                let args = ["quantize", &path, "-o", &output, "--recipe", "nvfp4", "--dialect", "plain"];
                assert_words(&good(&args), &["1 matrix to nvfp4"]);
            }
        }
    }
}

/// (So it was where there was nothing to quantize, of every file and of folders in the dialect plain, which was offered where no layer was plain.)
#[test]
fn quantize_of_nothing_advises_no_dequantize_that_is_refused() {
    let folder = Folder::new();
    let fp8: [Tensor; 2] = [
        ("m.c.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
        ("m.c.o_proj.weight_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
    ];
    let scale = |name, n: usize| (name, Dtype::F32, vec![n], f32_bytes(&vec![1.0; n]));
    let first = "; dequantize first what is in codes already";
    for (i, (more, words)) in [
        (vec![], None),
        (vec![scale("m.c.o_proj.pre_quant_scale", 16)], Some("holds 1 tensor (m.c.o_proj.pre_quant_scale) of AWQ")),
        (vec![("m.a.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256])], Some("m.a.o_proj.weight")),
        (
            vec![
                ("m.a.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
                scale("m.a.o_proj.weight_scale", 3),
            ],
            Some("m.a.o_proj.weight_scale"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let tensors = [&fp8[..], &more].concat();
        let (file, model, output) =
            (folder.file(&format!("{i}.safetensors")), folder.file(&i.to_string()), folder.file(&format!("{i}-out")));
        write(&file, &tensors);
        model_folder(&model, &tensors, Some(json!({"quantization_config": {"quant_method": "modelopt"}})));
        for (input, options) in
            [(&file, &["--group", "1x32"][..]), (&model, &["--recipe", "nvfp4", "--dialect", "plain"])]
        {
            let text = bad(2, &[&["quantize", input, "-o", &output][..], options].concat());
            assert_words(&text, &["no matrix to quantize"]);
            let refused = words.map(|words| (words, bad(2, &["dequantize", input, "-o", &output])));
            assert_eq!(text.contains(first), refused.is_none(), "{i}: {text}");
            if let Some((words, refused)) = refused {
                assert_words(&text, &["; what is in codes already stays so: dequantize refuses it: ", words]);
                let why = refused.trim_end().trim_start_matches("scaled-gemm: ").replace(&format!("{input}: "), "");
                assert!(text.contains(&why), "{i}: {why} {text}");
            }
        }
        // Nothing is plain.
        let text = bad(2, &["quantize", &model, "-o", &output, "--recipe", "nvfp4"]);
        assert!(text.contains("is quantized already (modelopt); ") && !text.contains("--dialect plain"), "{text}");
        assert_eq!(text.contains("; dequantize it first"), words.is_none(), "{text}");
    }
    // Codes of casts that lost their scales, or the entry that a cast is read by.
    let [input, q, left, output] = ["in", "q", "left", "o"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("w", [64, 64], 1)]);
    good(&["quantize", &input, "-o", &q, "--group", "32x32"]);
    let bytes = fs::read(&q).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let all: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        .collect();
    let all: Vec<Tensor> = all.iter().map(|(n, d, s, b)| (n.as_str(), *d, s.clone(), b.clone())).collect();
    write(&left, &all);
    let text = bad(2, &["quantize", &left, "-o", &output, "--group", "1x32"]);
    assert_words(&text, &["stays so: dequantize refuses it: tensor w", "its tensors fit a cast"]);
    write(&left, &all.into_iter().filter(|t| t.0 == "w").collect::<Vec<_>>());
    let text = bad(2, &["quantize", &left, "-o", &output, "--group", "1x32"]);
    assert_words(&text, &["stays so: dequantize refuses it: tensor w"]);
}

/// (So it was where a scale is no number, which `dequantize` met in its work.)
#[test]
fn quantize_advises_no_dequantize_that_a_scale_would_end() {
    let folder = Folder::new();
    let name = "m.a.o_proj.weight";
    let codes = |bytes: usize| (name, Dtype::U8, vec![64, bytes], vec![0x11; 64 * bytes]);
    let fp8 = || (name, Dtype::F8_E4M3, vec![64, 64], vec![0x38; 4096]);
    let floats = |end: &str, shape: &[usize], value: f32| {
        let name: &'static str = format!("{name}{end}").leak();
        let mut all = vec![1.0; shape.iter().product()];
        *all.last_mut().unwrap() = value;
        (name, Dtype::F32, shape.to_vec(), f32_bytes(&all))
    };
    let bytes = |dtype, shape: [usize; 2], byte: u8| {
        let mut all = vec![0x38; shape[0] * shape[1]];
        *all.last_mut().unwrap() = byte;
        (&*format!("{name}_scale").leak(), dtype, shape.to_vec(), all)
    };
    let fine: [Vec<Tensor>; 4] = [
        vec![fp8(), floats("_scale", &[1], -1.0)],
        vec![fp8(), floats("_scale", &[64, 1], 0.0)],
        vec![fp8(), bytes(Dtype::U8, [64, 2], 0xfe)],
        vec![codes(32), bytes(Dtype::F8_E4M3, [64, 4], 0x7e), floats("_scale_2", &[1], 1.0)],
    ];
    let broken: [Vec<Tensor>; 6] = [
        vec![fp8(), floats("_scale", &[1], f32::NAN)],
        vec![fp8(), floats("_scale", &[64, 1], f32::INFINITY)],
        vec![fp8(), floats("_scale_inv", &[1, 1], f32::NEG_INFINITY)],
        vec![fp8(), bytes(Dtype::U8, [64, 2], 0xff)],
        vec![codes(32), bytes(Dtype::F8_E4M3, [64, 4], 0xff), floats("_scale_2", &[1], 1.0)],
        vec![codes(32), bytes(Dtype::F8_E4M3, [64, 4], 0x38), floats("_scale_2", &[1], f32::NAN)],
    ];
    let all = fine.into_iter().map(|tensors| (tensors, true)).chain(broken.into_iter().map(|tensors| (tensors, false)));
    for (i, (mut tensors, is_fine)) in all.enumerate() {
        let [path, output, file] = ["", "-out", ".safetensors"].map(|end| folder.file(&format!("{i}{end}")));
        write(&file, &tensors);
        tensors.push(f32_tensor("m.b.o_proj.weight", [64, 64], 4));
        model_folder(&path, &tensors, Some(json!({"quantization_config": {"quant_method": "modelopt"}})));
        let text = bad(2, &["quantize", &path, "-o", &output, "--recipe", "nvfp4"]);
        assert_eq!(text.contains("dequantize it first"), is_fine, "{i}: {text}");
        let of_file = bad(2, &["quantize", &file, "-o", &output, "--recipe", "nvfp4"]);
        assert_eq!(of_file.contains("dequantize first what is in codes already"), is_fine, "{i}: {of_file}");
        if is_fine {
            good(&["dequantize", &path, "-o", &output]);
            continue;
        }
        let refused = bad(2, &["dequantize", &file, "-o", &output]);
        let (_, why) = refused.split_once(&format!("{file}: ")).unwrap();
        assert_words(&text, &["for layers that are still plain write --dialect plain; dequantize refuses it: ", why]);
        assert_words(&of_file, &["what is in codes already stays so: dequantize refuses it: ", why]);
    }
    // A cast.
    let [input, q, broken] = ["in", "q", "broken"].map(|name| folder.file(name));
    write(&input, &[f32_tensor("w", [64, 64], 1)]);
    good(&["quantize", &input, "-o", &q, "--group", "1x32"]);
    let mut all = fs::read(&q).unwrap();
    let view = SafeTensors::deserialize(&all).unwrap();
    let at = view.tensor("w_scale").unwrap().data().as_ptr() as usize - all.as_ptr() as usize;
    all[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&broken, all).unwrap();
    let dry = |file| bad(2, &["quantize", file, "--dry-run", "--recipe", "nvfp4"]);
    assert_words(&dry(&q), &["; dequantize first what is in codes already"]);
    assert_words(&dry(&broken), &["dequantize refuses it: ", "tensor w_scale: holds NaN as scale (0, 0)"]);
    let gemm = |file: &str| {
        let operand = format!("{file}:w");
        bad(2, &["gemm", "--a", &operand, "--b", &operand, "-o", &folder.file("d")])
    };
    assert_words(&gemm(&q), &["which no product reads; dequantize it first"]);
    let text = gemm(&broken);
    assert!(text.contains("tensor w_scale: holds NaN as scale (0, 0)") && !text.contains("dequantize"), "{text}");
}

/// (Nothing was said: what came out was refused later, for codes that nobody had spoken of.)
#[test]
fn codes_that_are_not_read_beside_codes_that_are_read_are_told() {
    let folder = Folder::new();
    let read = [
        ("m.z.o_proj.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
        ("m.z.o_proj.weight_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
    ];
    let [one, all] = [&model()[3..5], &model()].map(|tensors| [tensors, &read].concat());
    let holds =
        "1 tensor (m.b.o_proj.W_q) holds codes in a format that is not read here; dequantize it with what wrote it";
    let hold = "6 tensors (m.a.o_proj.qweight, m.a.o_proj.qzeros, m.f.o_proj.indices, ...) hold codes in a format that is not read here; \
                dequantize them with what wrote them";
    for (i, (tensors, words)) in [(one, holds), (all, hold)].into_iter().enumerate() {
        let [file, path] = ["file", "folder"].map(|name| folder.file(&format!("{name}{i}")));
        write(&file, &tensors);
        model_folder(&path, &tensors, Some(json!({"architectures": ["X"]})));
        let copied = if i == 0 { "copied as it is: " } else { "copied as they are: " };
        for input in [&file, &path] {
            // That the config of the folder has no entry is another thing, and wrong with it.
            let text = String::from_utf8(run_on("cpu", &["info", input]).stdout).unwrap();
            assert_words(&text, &[words]);
            let output = format!("{input}-out");
            assert_words(&said(&["dequantize", input, "-o", &output]), &[copied, words]);
        }
    }
    // (`info` said nothing where no other codes were there, and `quantize` in a dialect that they were copied, no more.)
    let file = folder.file("alone");
    write(&file, &model());
    assert_words(&good(&["info", &file]), &[hold]);
    let one = &[&model()[3..5], &[f32_tensor("m.d.o_proj.weight", [64, 64], 4)]].concat();
    for (i, (tensors, words)) in [(one, holds), (&model(), hold)].into_iter().enumerate() {
        let [path, output] = ["plain", "plain-out"].map(|name| folder.file(&format!("{name}{i}")));
        model_folder(&path, tensors, Some(json!({"architectures": ["X"]})));
        assert_words(&good(&["info", &path]), &[words]);
        let args = ["quantize", &*path, "-o", &output, "--recipe", "fp8-tensor", "--dialect"];
        let [copied, it] = if i == 0 { ["copied as it is: ", "it"] } else { ["copied as they are: ", "them"] };
        let engines = format!("; in the dialect fp8 nothing speaks of {it}, and engines take {it} for plain or fail");
        assert_words(&said(&[&args[..], &["fp8"]].concat()), &[copied, words, &engines]);
        let text =
            said(&["quantize", &path, "-o", &format!("{path}-no"), "--recipe", "fp8-tensor", "--dialect", "plain"]);
        assert!(!text.contains("not read here"), "{text}");
    }
    // Where all is read nothing is said.
    let [file, output] = ["read", "read-out"].map(|name| folder.file(name));
    write(&file, &read);
    let text = good(&["info", &file]) + &said(&["dequantize", &file, "-o", &output]);
    assert!(!text.contains("not read here"), "{text}");
}

/// ("1 tensor (b.weight_scale) holds codes in a format that is not read here", beside that it is a scale.)
#[test]
fn a_scale_beside_a_plain_weight_is_no_code() {
    let folder = Folder::new();
    let (file, back) = (folder.file("in"), folder.file("back"));
    let tensors = [
        ("a.weight", Dtype::F8_E4M3, vec![16, 16], vec![0x38; 256]),
        ("a.weight_scale", Dtype::F32, vec![1], f32_bytes(&[1.0])),
        ("b.weight", Dtype::F32, vec![32, 32], f32_bytes(&values(1024, 2))),
        ("b.weight_scale", Dtype::F8_E4M3, vec![32, 2], vec![0x38; 64]),
    ];
    write(&file, &tensors);
    let info = run_on("cpu", &["info", &file]);
    let info = [info.stdout, info.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    for text in [info, said(&["dequantize", &file, "-o", &back])] {
        assert_words(&text, &["1 scale (b.weight_scale)"]);
        assert!(!text.contains("codes in a format"), "{text}");
    }
}
