//! Files of projects that store their scales in other ways: powers of two for tiles of 128 x 128, ComfyUI's tiles, marks and names.

use std::fs;

use safetensors::{Dtype, SafeTensors};
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, Dialect, SCALE_ENDINGS};
use scaled_gemm::model_folder;
use scaled_gemm::reference::{self, Noise};
use scaled_gemm::{DType, Fp8Format, HostQuantMatrix, Scheme};

use super::{Folder, f32_bytes, foreign, random_matrix, written};

const E4M3: Fp8Format = Fp8Format::E4M3;

/// DeepSeek-V3.1's scales, under either type of byte.
#[test]
fn tiles_with_powers_of_two_are_read() {
    let folder = Folder::new();
    let path = folder.file("in");
    let (rows, cols) = (300, 400);
    let mut random = Noise::new(1);
    let codes: Vec<u8> = (0..rows * cols).map(|_| random.below(0x7F) as u8).collect();
    let bytes: Vec<u8> = vec![0, 1, 100, 126, 127, 128, 130, 200, 253, 254, 127, 120];
    for dtype in [Dtype::U8, Dtype::F8_E8M0] {
        foreign(
            &path,
            &[
                ("w", Dtype::F8_E4M3, vec![rows, cols], codes.clone()),
                ("w_scale_inv", dtype, vec![3, 4], bytes.clone()),
            ],
            None,
        );
        let file = Checkpoint::open(&path).unwrap();
        let scheme = Scheme::Fp8Group128x128(E4M3);
        let scales: Vec<f32> = bytes.iter().map(|b| (f64::from(*b) - 127.0).exp2() as f32).collect();
        let want = HostQuantMatrix::from_logical(scheme, rows, cols, codes.clone(), &scales).unwrap();
        assert_eq!(file.scheme("w").unwrap(), scheme, "{dtype}");
        assert!(file.quant_matrix("w").unwrap() == want, "{dtype}");
        assert!(file.quant_rows("w", 128..300).unwrap() == reference::rows_of(&want, 128, 172).unwrap(), "{dtype}");
        let mut nan = bytes.clone();
        nan[7] = 0xFF;
        foreign(
            &path,
            &[("w", Dtype::F8_E4M3, vec![rows, cols], codes.clone()), ("w_scale_inv", dtype, vec![3, 4], nan)],
            None,
        );
        let error = Checkpoint::open(&path).unwrap().quant_matrix("w").unwrap_err().to_string();
        assert!(error.contains("w_scale_inv") && error.contains("0xff at element 7"), "{error}");
    }
}

/// Where comfy-kitchen puts the scale of row `r` and block `c` of so many: `to_blocked` of its float_utils.
fn place(r: usize, c: usize, blocks: usize) -> usize {
    (r / 128 * blocks.div_ceil(4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4
}

/// A matrix as ComfyUI stores it: codes, and scales in tiles.
fn comfy(matrix: &HostQuantMatrix) -> (Vec<u8>, Vec<u8>, Vec<usize>) {
    let [rows, blocks] = matrix.scheme().block_grid(matrix.rows(), matrix.cols());
    let swap = |pair: &u8| pair.rotate_left(4);
    let codes = match matrix.scheme() {
        Scheme::Nvfp4 => matrix.logical_codes().iter().map(swap).collect(),
        _ => matrix.logical_codes().to_vec(),
    };
    let shape = vec![rows.next_multiple_of(128), blocks.next_multiple_of(4)];
    let mut scales = vec![0; shape[0] * shape[1]];
    for (i, byte) in matrix.logical_block_scales().into_iter().enumerate() {
        scales[place(i / blocks, i % blocks, blocks)] = byte;
    }
    (codes, scales, shape)
}

#[test]
fn comfyuis_tiles_and_halves_are_read_by_either_mark_and_written() {
    let folder = Folder::new();
    let path = folder.file("in");
    // The plain layout of the second has the shape of the tiles: only the mark tells.
    for (rows, cols) in [(80, 96), (256, 128), (416, 320)] {
        let nvfp4 = random_matrix(Scheme::Nvfp4, rows, cols, 3);
        let mxfp8 = random_matrix(Scheme::Mxfp8(E4M3), rows, cols, 4);
        let ((codes, scales, shape), second) = (comfy(&nvfp4), f32_bytes(&nvfp4.logical_scales()));
        let (mx_codes, mx_scales, mx_shape) = comfy(&mxfp8);
        let mut tensors = vec![
            ("model.a.weight", Dtype::U8, vec![rows, cols / 2], codes.clone()),
            ("model.a.weight_scale", Dtype::F8_E4M3, shape.clone(), scales.clone()),
            ("model.a.weight_scale_2", Dtype::F32, vec![], second),
            ("model.b.weight", Dtype::F8_E4M3, vec![rows, cols], mx_codes),
            ("model.b.weight_scale", Dtype::F8_E8M0, mx_shape, mx_scales),
        ];
        let layers =
            r#"{"format_version": "1.0", "layers": {"model.a": {"format": "nvfp4"}, "model.b": {"format": "mxfp8"}}}"#;
        let metadata = Some([("_quantization_metadata".to_string(), layers.to_string())].into());
        foreign(&path, &tensors, metadata);
        let check = |what: &str| {
            let file = Checkpoint::open(&path).unwrap();
            assert_eq!(file.quantized().len(), 2, "{what}");
            for (name, want) in [("model.a.weight", &nvfp4), ("model.b.weight", &mxfp8)] {
                assert!(file.quant_matrix(name).unwrap() == *want, "{what}: {name}, {rows} x {cols}");
                let (from, to) = (rows / 2 / 128 * 128, rows - rows / 4);
                let part = file.quant_rows(name, from..to).unwrap();
                assert!(part == reference::rows_of(want, from, to - from).unwrap(), "{what}: rows of {name}");
            }
        };
        check("metadata");
        let mark = |format: &str| format!("{{\"format\": \"{format}\"}}").into_bytes();
        for (name, format) in [("model.a.comfy_quant", "nvfp4"), ("model.b.comfy_quant", "mxfp8")] {
            tensors.push((name, Dtype::U8, vec![mark(format).len()], mark(format)));
        }
        foreign(&path, &tensors, None);
        check("tensors");

        // Written here, the tensors are the same.
        let written_here = folder.file("out");
        let mut layout = CheckpointLayout::of_dialect(Dialect::ComfyUi);
        layout.quantized("model.a.weight", rows, cols, written(Scheme::Nvfp4));
        layout.quantized("model.b.weight", rows, cols, written(Scheme::Mxfp8(E4M3)));
        let writer = layout.create(&written_here, &[]).unwrap();
        writer.write_quantized("model.a.weight", &nvfp4).unwrap();
        writer.write_quantized("model.b.weight", &mxfp8).unwrap();
        writer.finish().unwrap();
        let bytes = fs::read(&written_here).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for (name, dtype, shape, data) in &tensors {
            let view = file.tensor(name).unwrap();
            if name.ends_with("comfy_quant") {
                let value: serde_json::Value = serde_json::from_slice(view.data()).unwrap();
                assert_eq!(value, serde_json::from_slice::<serde_json::Value>(data).unwrap(), "{name}");
                continue;
            }
            // A byte is a byte: ComfyUI takes either type.
            let same = view.dtype() == *dtype || [view.dtype(), *dtype] == [Dtype::U8, Dtype::F8_E8M0];
            assert!(same && view.shape() == shape && view.data() == data, "{name}: {:?}", view.dtype());
        }
        fs::copy(&written_here, &path).unwrap();
        check("written here");
    }
}

#[test]
fn comfyuis_older_names_are_read() {
    let folder = Folder::new();
    let path = folder.file("in");
    let matrix = random_matrix(Scheme::Fp8Tensor(E4M3), 48, 64, 5);
    foreign(
        &path,
        &[
            ("scaled_fp8", Dtype::F8_E4M3, vec![0], vec![]),
            ("l.weight", Dtype::F8_E4M3, vec![48, 64], matrix.logical_codes().to_vec()),
            ("l.scale_weight", Dtype::F32, vec![], f32_bytes(&matrix.logical_scales())),
            ("l.scale_input", Dtype::F32, vec![], f32_bytes(&[1.0])),
        ],
        None,
    );
    let file = Checkpoint::open(&path).unwrap();
    assert_eq!(file.quantized(), ["l.weight"]);
    assert!(file.is_scale("l.scale_weight") && file.is_mark("scaled_fp8") && !file.is_mark("l.weight"));
    assert!(file.quant_matrix("l.weight").unwrap() == matrix);
}

/// (It was told under the name that the newer files have.)
#[test]
fn a_scale_that_does_not_fit_is_told_under_the_name_that_it_has() {
    let folder = Folder::new();
    let path = folder.file("in");
    for name in ["l.scale_weight", "l.weight_scale", "l.weight_scale_inv"] {
        for dtype in [Dtype::F32, Dtype::U8] {
            let scale = (name, dtype, vec![7], vec![1; 7 * dtype.bitsize() / 8]);
            foreign(&path, &[("l.weight", Dtype::F8_E4M3, vec![48, 64], vec![1; 48 * 64]), scale], None);
            let error = Checkpoint::open(&path).unwrap().scheme("l.weight").unwrap_err().to_string();
            assert!(error.contains(&format!("its scale {name} has shape [7]")), "{error}");
        }
    }
}

/// (Of the name in ComfyUI's older files, which is looked for, too, nothing was said, nor of scales that are there.)
#[test]
fn what_lacks_a_scale_is_told_the_names_looked_for_and_the_scales_beside_it() {
    let folder = Folder::new();
    let path = folder.file("in");
    let said = |tensors: &[(&str, Dtype, usize)], name: &str| {
        let tensors: Vec<_> = tensors
            .iter()
            .map(|(name, dtype, n)| (*name, *dtype, vec![48, *n], vec![0; 48 * n * dtype.bitsize() / 8]))
            .collect();
        foreign(&path, &tensors, None);
        Checkpoint::open(&path).unwrap().scheme(name).unwrap_err().to_string()
    };
    let fp8 = ("l.weight", Dtype::F8_E4M3, 64);
    let names = "is FP8 but has no scale: none of l.weight_scale, l.weight_scale_inv and l.scale_weight is in the file";
    let error = said(&[fp8], "l.weight");
    assert!(error.contains(&format!("{names}; use a file")), "{error}");
    let error = said(&[fp8, ("l.weight_scale_2", Dtype::F32, 1), ("l.weight_scales", Dtype::F32, 1)], "l.weight");
    assert!(
        error.contains(&format!(
            "{names}; beside it are l.weight_scale_2 and l.weight_scales, which no FP8 has; use a file"
        )),
        "{error}"
    );
    // By another name there is no older one.
    let error = said(&[("w", Dtype::F8_E4M3, 64)], "w");
    assert!(error.contains("neither w_scale nor w_scale_inv is in the file; use a file"), "{error}");
    let packed = ("l.weight", Dtype::U8, 32);
    let error = said(&[packed, ("l.weight_scale", Dtype::F8_E4M3, 4), ("l.scale_weight", Dtype::F32, 1)], "l.weight");
    assert!(
        error.contains(
            "is NVFP4 but has no scale l.weight_scale_2; beside it is l.scale_weight, which no NVFP4 has; use a file"
        ),
        "{error}"
    );
}

/// (It was "it its recipe".)
#[test]
fn what_stays_under_a_broken_entry_is_refused_in_a_sentence() {
    let folder = Folder::new();
    let path = folder.file("in");
    let tensors = [("l.weight", Dtype::F8_E4M3, vec![48, 64]), ("l.weight_scale", Dtype::F32, vec![48, 1])];
    let bytes = |dtype: Dtype, shape: &[usize]| vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8];
    let written: Vec<_> = tensors.iter().map(|(name, d, s)| (*name, *d, s.clone(), bytes(*d, s))).collect();
    foreign(&path, &written, None);
    let input = Checkpoint::open(&path).unwrap();
    input.scheme("l.weight").unwrap();
    let mut layout = CheckpointLayout::new();
    for (name, dtype, shape) in &tensors {
        layout.tensor(*name, *dtype, shape);
    }
    layout.metadata("scaled_gemm.l.weight", "{");
    let error = layout.check(folder.file("out"), &[&input]).unwrap_err().to_string();
    assert!(error.contains("beside the tensors there: its recipe in the metadata is no JSON"), "{error}");
}

/// Rows with the scales that they have in the whole.
#[test]
fn rows_of_every_scheme_are_those_of_the_whole() {
    let folder = Folder::new();
    let path = folder.file("in");
    for dialect in [Dialect::Plain, Dialect::CompressedTensors] {
        for scheme in Scheme::ALL {
            if dialect == Dialect::CompressedTensors && scheme == Scheme::Nvfp4Row {
                continue;
            }
            let matrix = random_matrix(scheme, 300, 160, 6);
            let mut layout = CheckpointLayout::of_dialect(dialect);
            layout.quantized("w.weight", 300, 160, written(scheme));
            let writer = layout.create(&path, &[]).unwrap();
            let mut parts = writer.matrix("w.weight").unwrap();
            for (start, len) in [(0, 128), (128, 128), (256, 44)] {
                parts.append(&reference::rows_of(&matrix, start, len).unwrap()).unwrap();
            }
            parts.finish().unwrap();
            writer.finish().unwrap();
            let file = Checkpoint::open(&path).unwrap();
            let back = file.quant_matrix("w.weight").unwrap();
            let values = |q: &HostQuantMatrix| reference::dequantize(q, DType::F32);
            // A divisor is stored, whose reciprocal is not always the scale that it was made of.
            if dialect == Dialect::Plain {
                assert!(back == matrix, "{scheme}");
            }
            for (start, len) in [(0, 300), (128, 100), (256, 44), (128, 0)] {
                let rows = file.quant_rows("w.weight", start..start + len).unwrap();
                assert!(rows == reference::rows_of(&back, start, len).unwrap(), "{scheme}: {start}, {len}");
                assert_eq!(values(&rows).nrows(), len);
            }
            let error = file.quant_rows("w.weight", 200..301).unwrap_err().to_string();
            assert!(error.contains("has 300 rows"), "{error}");
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let folder = Folder::new();
    let scheme = Scheme::Fp8Group128x128(E4M3);
    let matrix = random_matrix(scheme, 300, 160, 6);
    let mut layout = CheckpointLayout::new();
    layout.quantized("w", 300, 160, written(scheme));
    layout.quantized("t", 300, 160, written(Scheme::Fp8Tensor(E4M3)));
    let writer = layout.create(folder.file("out"), &[]).unwrap();
    let part = |start, len| reference::rows_of(&matrix, start, len).unwrap();
    let mut parts = writer.matrix("w").unwrap();
    parts.append(&part(0, 128)).unwrap();
    let error = parts.append(&part(128, 100)).unwrap_err().to_string();
    assert!(error.contains("whole groups of 128 rows"), "{error}");
    parts.append(&part(128, 172)).unwrap();
    let error = parts.append(&part(0, 128)).unwrap_err().to_string();
    assert!(error.contains("300 x 160"), "{error}");
    parts.finish().unwrap();
    // Parts of a matrix with one scale must have it.
    let mut parts = writer.matrix("t").unwrap();
    let of = |scale: f32| {
        HostQuantMatrix::from_logical(Scheme::Fp8Tensor(E4M3), 150, 160, vec![1; 150 * 160], &[scale]).unwrap()
    };
    parts.append(&of(0.5)).unwrap();
    let error = parts.append(&of(0.25)).unwrap_err().to_string();
    assert!(error.contains("scales 0.5 and 0.25"), "{error}");
    let unfinished = writer.matrix("t").unwrap_err().to_string();
    assert!(unfinished.contains("was begun before, and is not whole"), "{unfinished}");
    drop(parts);
    assert!(writer.finish().unwrap_err().to_string().contains("was begun, and is not whole"));
}

/// (Their codes were written before, so that the matrix could be ended with them, under the scale of the others.)
#[test]
fn parts_with_another_scale_of_the_whole_are_not_written() {
    let folder = Folder::new();
    let path = folder.file("out");
    for scheme in [Scheme::Fp8Tensor(E4M3), Scheme::Nvfp4] {
        let of = |scale: f32| {
            let q = random_matrix(scheme, 128, 160, 7);
            let (codes, blocks) = (q.logical_codes().to_vec(), q.logical_block_scales());
            match scheme {
                Scheme::Nvfp4 => HostQuantMatrix::from_block_logical(scheme, 128, 160, codes, &[scale], &blocks),
                _ => HostQuantMatrix::from_logical(scheme, 128, 160, codes, &[scale]),
            }
            .unwrap()
        };
        let mut layout = CheckpointLayout::new();
        layout.quantized("t", 256, 160, written(scheme));
        let writer = layout.create(&path, &[]).unwrap();
        let mut parts = writer.matrix("t").unwrap();
        parts.append(&of(0.5)).unwrap();
        let error = parts.append(&of(0.25)).unwrap_err().to_string();
        assert!(error.contains("tensor t: has parts with the scales 0.5 and 0.25 of the whole"), "{error}");
        parts.append(&of(0.5)).unwrap();
        parts.finish().unwrap();
        writer.finish().unwrap();
        let file = Checkpoint::open(&path).unwrap();
        assert!(file.quant_rows("t", 128..256).unwrap() == of(0.5), "{scheme}");
    }
}

/// gpt-oss's experts: blocks of 16 bytes, all experts in one tensor; and compressed-tensors' MXFP4.
#[test]
fn published_mxfp4_is_read() {
    let folder = Folder::new();
    let path = folder.file("in");
    let (experts, rows, cols) = (3, 6, 96);
    let matrix = random_matrix(Scheme::Mxfp4, experts * rows, cols, 8);
    let (codes, scales) = (matrix.logical_codes().to_vec(), matrix.logical_block_scales());
    let blocks = vec![experts, rows, cols / 32, 16];
    foreign(
        &path,
        &[
            ("e.gate_up_proj_blocks", Dtype::U8, blocks, codes.clone()),
            ("e.gate_up_proj_scales", Dtype::U8, vec![experts, rows, cols / 32], scales.clone()),
            ("e.gate_up_proj_bias", Dtype::BF16, vec![experts, rows], vec![0; 2 * experts * rows]),
            ("l.weight_packed", Dtype::U8, vec![experts * rows, cols / 2], codes.clone()),
            ("l.weight_scale", Dtype::U8, vec![experts * rows, cols / 32], scales),
        ],
        None,
    );
    let file = Checkpoint::open(&path).unwrap();
    assert_eq!(file.quantized(), ["e.gate_up_proj", "l.weight"]);
    assert!(file.is_scale("e.gate_up_proj_scales") && !file.is_scale("e.gate_up_proj_bias"));
    assert_eq!(file.quant_dimensions("e.gate_up_proj").unwrap(), [experts, rows, cols]);
    assert_eq!(file.quant_dimensions("l.weight").unwrap(), [experts * rows, cols]);
    for name in ["e.gate_up_proj", "l.weight"] {
        assert_eq!(file.scheme(name).unwrap(), Scheme::Mxfp4);
        assert!(file.quant_matrix(name).unwrap() == matrix, "{name}");
        // The second expert.
        let expert = reference::dequantize(&file.quant_rows(name, rows..2 * rows).unwrap(), DType::F32);
        let want = reference::dequantize(&matrix, DType::F32);
        assert!(expert.iter().eq(want.slice(ndarray::s![rows..2 * rows, ..]).iter()), "{name}");
    }
    // By hand: transformers' integrations/mxfp4.py takes the low half first, and 2^(byte - 127).
    let lut = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0f64];
    let values = reference::dequantize(&matrix, DType::F32);
    for (i, value) in values.iter().enumerate() {
        let byte = codes[i / 2];
        let code = if i % 2 == 0 { byte & 15 } else { byte >> 4 };
        let scale = (f64::from(matrix.block_scale_at(i / cols, i % cols / 32)) - 127.0).exp2();
        let exact = lut[usize::from(code)] * scale;
        assert_eq!(*value, exact as f32, "{i}");
    }
    // What fits nothing is refused, or is no matrix.
    let wrong = |scales: Vec<usize>| {
        let bytes = vec![127; scales.iter().product()];
        foreign(
            &path,
            &[
                ("l.weight_packed", Dtype::U8, vec![18, 48], codes.clone()),
                ("l.weight_scale", Dtype::U8, scales, bytes),
            ],
            None,
        );
        Checkpoint::open(&path).unwrap().quant_matrix("l.weight").unwrap_err().to_string()
    };
    for shape in [vec![18, 4], vec![18], vec![3, 18], vec![18, 3, 1]] {
        assert!(wrong(shape.clone()).contains("must be U8 [18, 3] for 18 x 96"), "{shape:?}");
    }
}

/// One scale for each of the matrices in a fused one, whose rows are as many: of q, k and v where the config says so.
#[test]
fn scales_of_fused_matrices_are_those_of_their_rows() {
    let folder = Folder::new();
    fs::create_dir(folder.file("in")).unwrap();
    let (path, config) = (folder.file("in").join("model.safetensors"), folder.file("in").join("config.json"));
    let (rows, cols) = (96, 32);
    let mut random = Noise::new(3);
    let codes: Vec<u8> = (0..rows * cols).map(|_| random.below(0x7F) as u8).collect();
    let open = |layer: &str, scales: &[f32]| {
        let name = format!("{layer}.weight");
        let scale = (&*format!("{name}_scale"), Dtype::F32, vec![scales.len()], f32_bytes(scales));
        foreign(&path, &[(&name, Dtype::F8_E4M3, vec![rows, cols], codes.clone()), scale], None);
        (model_folder::open(folder.file("in")).unwrap().0, name)
    };
    fs::write(&config, r#"{"num_attention_heads": 4}"#).unwrap();
    for (layer, scales) in [("l.gate_up_proj", &[0.5, 3.0][..]), ("l.qkv_proj", &[1.0, 0.25, 2.0])] {
        let (file, name) = open(layer, scales);
        let each: Vec<f32> = (0..rows).map(|row| scales[row / (rows / scales.len())]).collect();
        let want = HostQuantMatrix::from_logical(Scheme::Fp8Row(E4M3), rows, cols, codes.clone(), &each).unwrap();
        assert_eq!(file.scheme(&name).unwrap(), Scheme::Fp8Row(E4M3));
        assert!(file.quant_matrix(&name).unwrap() == want, "{layer}");
        let some = codes[31 * cols..65 * cols].to_vec();
        let want = HostQuantMatrix::from_logical(Scheme::Fp8Row(E4M3), 34, cols, some, &each[31..65]).unwrap();
        assert!(file.quant_rows(&name, 31..65).unwrap() == want, "{layer}");
    }
    // Fewer heads of keys: the rows of queries are more than a third, which the config says alone or of its text model.
    for text in [
        r#"{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8}"#,
        r#"{"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 32}"#,
        r#"{"text_config": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "hidden_size": 32}}"#,
    ] {
        fs::write(&config, text).unwrap();
        let (file, name) = open("l.qkv_proj", &[1.0, 0.25, 2.0]);
        let each: Vec<f32> = [(64, 1.0), (16, 0.25), (16, 2.0)].iter().flat_map(|(n, s)| vec![*s; *n]).collect();
        let want = HostQuantMatrix::from_logical(Scheme::Fp8Row(E4M3), rows, cols, codes.clone(), &each).unwrap();
        assert!(file.quant_matrix(&name).unwrap() == want, "{text}");
        let some = codes[63 * cols..81 * cols].to_vec();
        let want = HostQuantMatrix::from_logical(Scheme::Fp8Row(E4M3), 18, cols, some, &each[63..81]).unwrap();
        assert!(file.quant_rows(&name, 63..81).unwrap() == want, "{text}");
    }
    // Nothing says whose rows are whose, or what does speaks of other rows.
    let no_heads = "a config.json with num_attention_heads, num_key_value_heads and head_dim";
    for (text, words) in [
        ("{}", no_heads),
        (r#"{"num_attention_heads": "4"}"#, no_heads),
        (r#"{"num_attention_heads": 0}"#, no_heads),
        (r#"{"num_attention_heads": 8, "num_key_value_heads": 2}"#, "8 heads of queries, 2 of keys and 2 of values"),
        (
            r#"{"num_attention_heads": 4, "head_dim": 16}"#,
            "4 heads of queries, 4 of keys and 4 of values, of 16 rows each",
        ),
        (r#"{"num_attention_heads": 4, "hidden_size": 64}"#, "64 columns"),
        (r#"{"num_attention_heads": 18446744073709551615, "head_dim": 2}"#, "18446744073709551615 heads"),
    ] {
        fs::write(&config, text).unwrap();
        let (file, name) = open("l.qkv_proj", &[1.0, 0.25, 2.0]);
        let error = file.quant_matrix(&name).unwrap_err().to_string();
        assert!(error.contains("[3]") && error.contains("96 x 32") && error.contains(words), "{text}: {error}");
    }
    // Other numbers of scales, and layers whose rows nobody knows.
    for (layer, scales) in [
        ("l.gate_up_proj", &[0.5; 3][..]),
        ("l.qkv_proj", &[0.5; 2]),
        ("l.down_proj", &[0.5; 2]),
        ("my_qkv_proj", &[0.5; 3]),
    ] {
        let (file, name) = open(layer, scales);
        let error = file.quant_matrix(&name).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains(&format!("[{}]", scales.len())), "{error}");
    }
    let (file, name) = open("l.gate_up_proj", &[0.5, f32::NAN]);
    assert!(file.quant_matrix(&name).unwrap_err().to_string().contains("l.gate_up_proj.weight_scale"));
}

#[test]
fn experts_are_written_in_the_layout_of_gpt_oss() {
    let folder = Folder::new();
    let path = folder.file("out");
    let [experts, rows, cols] = [3, 80, 96];
    let matrix = random_matrix(Scheme::Mxfp4, experts * rows, cols, 8);
    let one = random_matrix(Scheme::Mxfp4, rows, cols, 9);
    let mut layout = CheckpointLayout::of_dialect(Dialect::GptOss);
    layout.quantized_experts("l.experts.down_proj", [experts, rows, cols], written(Scheme::Mxfp4));
    layout.quantized("one", rows, cols, written(Scheme::Mxfp4));
    let writer = layout.create(&path, &[]).unwrap();
    let mut parts = writer.matrix("l.experts.down_proj").unwrap();
    for (start, len) in [(0, 128), (128, 112)] {
        parts.append(&reference::rows_of(&matrix, start, len).unwrap()).unwrap();
    }
    parts.finish().unwrap();
    writer.write_quantized("one", &one).unwrap();
    writer.finish().unwrap();
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let blocks = tensors.tensor("l.experts.down_proj_blocks").unwrap();
    assert_eq!((blocks.dtype(), blocks.shape()), (Dtype::U8, &[experts, rows, cols / 32, 16][..]));
    assert_eq!(blocks.data(), matrix.logical_codes());
    let scales = tensors.tensor("l.experts.down_proj_scales").unwrap();
    assert_eq!((scales.dtype(), scales.shape()), (Dtype::U8, &[experts, rows, cols / 32][..]));
    assert_eq!(scales.data(), &*matrix.logical_block_scales());
    let file = Checkpoint::open(&path).unwrap();
    assert_eq!(file.quant_dimensions("l.experts.down_proj").unwrap(), [experts, rows, cols]);
    assert!(file.quant_matrix("l.experts.down_proj").unwrap() == matrix && file.quant_matrix("one").unwrap() == one);
    // In other dialects they are one matrix of all rows.
    let mut layout = CheckpointLayout::new();
    layout.quantized_experts("w", [experts, rows, cols], written(Scheme::Mxfp4));
    let writer = layout.create(&path, &[]).unwrap();
    writer.write_quantized("w", &matrix).unwrap();
    writer.finish().unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().quant_dimensions("w").unwrap(), [experts * rows, cols]);
}

/// What is said of a tensor beside a matrix is what its reader does. (Of FP8 that no reader takes for a scale it takes it for codes.)
#[test]
fn scales_of_others_are_those_that_a_reader_would_take() {
    let folder = Folder::new();
    let path = folder.file("out");
    let dialects = [
        (Dialect::Plain, &Scheme::ALL[..]),
        (Dialect::Fp8, &[Scheme::Fp8Group128x128(E4M3)]),
        (Dialect::CompressedTensors, &[Scheme::Fp8Row(E4M3), Scheme::Nvfp4, Scheme::Mxfp4]),
        (Dialect::ModelOpt, &[Scheme::Nvfp4, Scheme::Mxfp8(E4M3)]),
        (Dialect::GptOss, &[Scheme::Mxfp4]),
        (Dialect::ComfyUi, &[Scheme::Fp8Tensor(E4M3), Scheme::Nvfp4, Scheme::Mxfp8(E4M3)]),
    ];
    for (dialect, scheme) in dialects.into_iter().flat_map(|(dialect, all)| all.iter().map(move |s| (dialect, *s))) {
        let endings = SCALE_ENDINGS.iter().copied().chain(["scale_weight"]);
        let types = [Dtype::F32, Dtype::F8_E4M3, Dtype::F8_E5M2];
        for (ending, dtype) in endings.flat_map(|ending| types.map(|dtype| (ending, dtype))) {
            let name = if ending == "scale_weight" { "l.scale_weight".into() } else { format!("l.weight{ending}") };
            let mut layout = CheckpointLayout::of_dialect(dialect);
            layout.quantized_experts("l.weight", [2, 64, 128], written(scheme));
            let case = format!("{dialect} {scheme} {ending} {dtype}");
            assert_eq!(layout.scales_of_others(), [], "{case}");
            if layout.names().any(|own| own == name) {
                continue;
            }
            layout.tensor(&name, dtype, &[1]);
            let found = layout.scales_of_others();
            let [(tensor, "l.weight", is_read)] = *found else { panic!("{case}: {found:?}") };
            assert_eq!(tensor, name, "{case}");
            let is_refused = layout.clone().check("x", &[]).is_err();
            // This crate asks for the one of its own, and ComfyUI for the older name.
            let by_engine = dialect == Dialect::ComfyUi && ending == "scale_weight";
            let by_type = !is_refused && {
                let writer = layout.clone().create(&path, &[]).unwrap();
                writer.write(&name, &vec![0; dtype.bitsize() / 8]).unwrap();
                writer.write_quantized("l.weight", &random_matrix(scheme, 128, 128, 1)).unwrap();
                writer.finish().unwrap();
                Checkpoint::open(&path).unwrap().quantized().len() > 1
            };
            assert_eq!(is_refused || by_type || by_engine, is_read, "{case}");
        }
    }
}

/// (Of ComfyUI's tiles of scales the rows were rounded up beyond what a number holds.)
#[test]
fn matrices_of_more_rows_or_columns_than_a_number_holds_are_refused_in_every_dialect() {
    let folder = Folder::new();
    for (dialect, scheme) in Dialect::ALL.into_iter().flat_map(|dialect| Scheme::ALL.map(|scheme| (dialect, scheme))) {
        for (rows, cols) in [(usize::MAX, 64), (usize::MAX - 126, 64), (64, usize::MAX - 63)] {
            let mut layout = CheckpointLayout::of_dialect(dialect);
            layout.quantized("l.weight", rows, cols, written(scheme));
            let error = layout.create(folder.file("out"), &[]).unwrap_err().to_string();
            assert!(error.contains("is too large; split it"), "{dialect} {scheme}: {error}");
        }
    }
}
