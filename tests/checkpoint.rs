//! Safetensors in and out: published names and shapes, refusals that name the tensor, and files of arbitrary bytes.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, WrittenRecipe};
use scaled_gemm::reference::Noise;
use scaled_gemm::{BlockScaleFormat, CastScheme, DType, Fp8Rule, HostQuantMatrix, Recipe, Scheme};

#[path = "checkpoint/blocks.rs"]
mod blocks;
#[path = "checkpoint/casts.rs"]
mod casts;
#[path = "checkpoint/folders.rs"]
mod folders;
#[path = "checkpoint/formats.rs"]
mod formats;
#[path = "checkpoint/limits.rs"]
mod limits;
#[path = "checkpoint/output.rs"]
mod output;

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("scaled-gemm-test-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn random_matrix(scheme: Scheme, rows: usize, cols: usize, seed: u64) -> HostQuantMatrix {
    let mut random = Noise::new(seed);
    let spec = scheme.spec();
    let codes = (0..rows * cols * spec.code_bits / 8).map(|_| random.bits() as u8).collect();
    let [r, c] = scheme.scale_grid(rows, cols);
    let scales: Vec<f32> = (0..r * c).map(|_| (1 + random.below(1 << 20)) as f32 * 1e-6).collect();
    // Neither NaN nor negative.
    let bytes = match spec.block.map(|b| b.format) {
        Some(BlockScaleFormat::Ue8m0) => 0xFF,
        _ => 0x7F,
    };
    let [r, c] = scheme.block_grid(rows, cols);
    let block_scales: Vec<u8> = (0..r * c).map(|_| random.below(bytes) as u8).collect();
    HostQuantMatrix::from_block_logical(scheme, rows, cols, codes, &scales, &block_scales).unwrap()
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Tensors of a file: name, type, shape, bytes.
type Tensors<'a> = &'a [(&'a str, Dtype, Vec<usize>, Vec<u8>)];

/// A file written by the safetensors crate, not by the writer under test.
fn foreign(path: &Path, tensors: Tensors, metadata: Option<HashMap<String, String>>) {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.to_string(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()))
        .collect();
    fs::write(path, safetensors::serialize(views, metadata).unwrap()).unwrap();
}

/// A file of raw header text and data.
fn raw(path: &Path, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    fs::write(path, bytes).unwrap();
}

fn written(scheme: Scheme) -> WrittenRecipe {
    WrittenRecipe { recipe: Recipe::new(scheme), source: DType::Bf16 }
}

#[test]
fn every_scheme_round_trips_and_another_reader_agrees() {
    let folder = Folder::new();
    for (i, scheme) in Scheme::ALL.into_iter().enumerate() {
        for (rows, cols) in [(1, 16), (3, 144), (130, 272), (256, 128), (5, 640)] {
            let path = folder.file("q.safetensors");
            let matrix = random_matrix(scheme, rows, cols, (i * 1000 + rows) as u64);
            let mut recipe = WrittenRecipe { recipe: Recipe::new(scheme), source: DType::F16 };
            if let Recipe::Fp8(fp8) = &mut recipe.recipe {
                *fp8 = fp8.with_rule(Fp8Rule::DeepSeek).power_of_two();
            }
            let mut layout = CheckpointLayout::new();
            layout.metadata("format", "pt");
            layout.tensor("ids", Dtype::I64, &[2]);
            layout.quantized("w", rows, cols, recipe);
            layout.tensor("empty", Dtype::F32, &[0, 7]);
            let writer = layout.create(&path, &[]).unwrap();
            writer.write_quantized("w", &matrix).unwrap();
            writer.write("empty", &[]).unwrap();
            writer.write("ids", &[7; 16]).unwrap();
            writer.finish().unwrap();

            let file = Checkpoint::open(&path).unwrap();
            assert_eq!(file.quantized(), ["w"]);
            assert_eq!(file.scheme("w").unwrap(), scheme, "{rows} x {cols}");
            assert_eq!(file.quant_matrix("w").unwrap(), matrix, "{scheme} {rows} x {cols}");
            assert_eq!(file.recipe("w").unwrap(), Some(recipe));
            assert_eq!(file.bytes("ids").unwrap(), [7; 16]);
            assert_eq!(file.metadata()["format"], "pt");

            let bytes = fs::read(&path).unwrap();
            let other = SafeTensors::deserialize(&bytes).unwrap();
            let mut want = vec![matrix.logical_codes().to_vec(), matrix.logical_block_scales()];
            want.push(f32_bytes(&matrix.logical_scales()));
            want.retain(|bytes| !bytes.is_empty());
            let names = file.tensors_of("w").unwrap();
            let (scheme_again, shape, tensors) = file.quant_info("w").unwrap();
            assert_eq!((scheme_again.product(), shape), (Some(scheme), vec![rows, cols]));
            assert!(tensors.iter().map(|tensor| &tensor.name).eq(&names));
            let found: Vec<_> = names.iter().map(|n| other.tensor(n).unwrap().data().to_vec()).collect();
            assert_eq!(found, want, "{scheme}: {names:?}");
            assert_eq!(file.scale_name("w").unwrap(), names[1]);
            for name in other.names() {
                let view = other.tensor(name).unwrap();
                let offset = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
                assert_eq!(offset % (view.dtype().bitsize() / 8), 0, "{name} is not aligned");
            }
        }
    }
}

#[test]
fn scales_are_written_under_the_published_names_and_shapes() {
    let folder = Folder::new();
    type Scale<'a> = (&'a str, Dtype, Vec<usize>);
    let expected: [(&str, Dtype, usize, &[Scale]); 7] = [
        ("fp8-tensor", Dtype::F8_E4M3, 272, &[("w_scale", Dtype::F32, vec![1])]),
        ("fp8-row", Dtype::F8_E4M3, 272, &[("w_scale", Dtype::F32, vec![130, 1])]),
        ("fp8-1x128", Dtype::F8_E4M3, 272, &[("w_scale_inv", Dtype::F32, vec![130, 3])]),
        ("fp8-128x128", Dtype::F8_E4M3, 272, &[("w_scale_inv", Dtype::F32, vec![2, 3])]),
        ("mxfp8", Dtype::F8_E4M3, 272, &[("w_scale", Dtype::U8, vec![130, 9])]),
        ("nvfp4", Dtype::U8, 136, &[("w_scale", Dtype::F8_E4M3, vec![130, 17]), ("w_scale_2", Dtype::F32, vec![1])]),
        (
            "nvfp4-row",
            Dtype::U8,
            136,
            &[("w_scale", Dtype::F8_E4M3, vec![130, 17]), ("w_scale_2", Dtype::F32, vec![130])],
        ),
    ];
    for (name, dtype, width, scales) in expected {
        let scheme = Scheme::ALL.into_iter().find(|s| s.spec().name == name).unwrap();
        let mut layout = CheckpointLayout::new();
        layout.quantized("w", 130, 272, written(scheme));
        let writer = layout.create(folder.file("q"), &[]).unwrap();
        writer.write_quantized("w", &random_matrix(scheme, 130, 272, 1)).unwrap();
        writer.finish().unwrap();
        let file = Checkpoint::open(folder.file("q")).unwrap();
        let tensor = |name: &str| file.info(name).map(|t| (t.dtype, t.shape.clone())).unwrap();
        assert_eq!(tensor("w"), (dtype, vec![130, width]));
        for (scale, dtype, shape) in scales {
            assert_eq!(tensor(scale), (*dtype, shape.clone()), "{name}");
        }
        assert_eq!(file.tensors().len(), 1 + scales.len());
    }
}

#[test]
fn files_of_other_writers_are_read() {
    let folder = Folder::new();
    let path = folder.file("other.safetensors");
    let (rows, cols) = (200, 384);
    let codes: Vec<u8> = (0..rows * cols).map(|i| (i % 127) as u8).collect();
    let values = |n: usize| -> Vec<f32> { (0..n).map(|i| 0.5 + i as f32).collect() };
    let cases: [(&str, Vec<usize>, &str); 8] = [
        ("w_scale", vec![], "fp8-tensor"),
        ("w_scale", vec![1], "fp8-tensor"),
        ("w_scale_inv", vec![], "fp8-tensor"),
        ("w_scale", vec![200], "fp8-row"),
        ("w_scale", vec![200, 1], "fp8-row"),
        ("w_scale_inv", vec![200, 3], "fp8-1x128"),
        ("w_scale_inv", vec![2, 3], "fp8-128x128"),
        ("w_scale", vec![2, 3], "fp8-128x128"),
    ];
    for (scale, shape, scheme) in cases {
        let n = shape.iter().product();
        for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
            // Half-integers below 256 are exact in all three types.
            let bytes = match dtype {
                Dtype::F32 => f32_bytes(&values(n)),
                Dtype::BF16 => values(n).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
                _ => values(n).iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
            };
            let w = ("w", Dtype::F8_E4M3, vec![rows, cols], codes.clone());
            foreign(&path, &[w, (scale, dtype, shape.clone(), bytes)], None);
            let file = Checkpoint::open(&path).unwrap();
            let matrix = file.quant_matrix("w").unwrap();
            assert_eq!(matrix.scheme().spec().name, scheme, "{scale} {shape:?}");
            assert_eq!(matrix.logical_codes(), codes);
            let want: Vec<f32> = match dtype {
                Dtype::BF16 => values(n).iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect(),
                _ => values(n),
            };
            assert_eq!(matrix.logical_scales(), want);
            assert_eq!(file.recipe("w").unwrap(), None);
        }
    }
}

#[test]
fn plain_values_are_widened_exactly() {
    let folder = Folder::new();
    let path = folder.file("plain.safetensors");
    let tensors = [
        ("a", Dtype::BF16, vec![1, 2], vec![0x80, 0x3F, 0x00, 0xC0]),
        ("b", Dtype::F16, vec![2], vec![0x00, 0x3C, 0x01, 0x00]),
        ("c", Dtype::F32, vec![1, 1], f32_bytes(&[0.1])),
        ("d", Dtype::I64, vec![1, 1], vec![0; 8]),
    ];
    foreign(&path, &tensors, None);
    let file = Checkpoint::open(&path).unwrap();
    let (a, dtype) = file.matrix("a").unwrap();
    assert_eq!((a.as_slice().unwrap(), dtype), (&[1.0, -2.0][..], DType::Bf16));
    assert_eq!(file.values("b").unwrap(), (vec![1.0, 2f32.powi(-24)], DType::F16));
    assert_eq!(file.matrix("c").unwrap().0[[0, 0]], 0.1);
    assert!(file.matrix("b").unwrap_err().to_string().contains("tensor b: has shape [2]"));
    assert!(file.matrix("d").unwrap_err().to_string().contains("tensor d: has dtype I64"));
    let missing = file.matrix("e").unwrap_err().to_string();
    assert!(missing.contains("tensor e: is not in the file; its 4 tensors are "), "{missing}");
    assert!(missing.ends_with(": give one that is there"), "{missing}");
}

#[test]
fn broken_scales_are_refused_with_the_name() {
    let folder = Folder::new();
    let path = folder.file("bad.safetensors");
    let w = || ("layer.w", Dtype::F8_E4M3, vec![256usize, 128], vec![0x38u8; 256 * 128]);
    let refused = |tensors: Tensors, metadata: Option<&str>, words: &[&str]| {
        let metadata = metadata.map(|m| HashMap::from([("scaled_gemm.layer.w".to_string(), m.to_string())]));
        foreign(&path, tensors, metadata);
        let file = Checkpoint::open(&path).unwrap();
        let error = file.quant_matrix("layer.w").unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        for word in words {
            assert!(error.contains(word), "{error:?} lacks {word:?}");
        }
    };
    refused(&[w()], None, &["layer.w", "no scale", "layer.w_scale_inv", "none is ever assumed"]);
    let scale = |name, shape: Vec<usize>, v: f32| {
        let n = shape.iter().product();
        (name, Dtype::F32, shape, f32_bytes(&vec![v; n]))
    };
    let two = [w(), scale("layer.w_scale", vec![1], 1.0), scale("layer.w_scale_inv", vec![1], 1.0)];
    refused(&two, None, &["layer.w", "two scales"]);
    refused(&[w(), scale("layer.w_scale", vec![2], 1.0)], None, &["layer.w", "[2]", "256 x 128", "[256, 1]"]);
    refused(&[w(), scale("layer.w_scale", vec![1, 256], 1.0)], None, &["layer.w", "[1, 256]"]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        refused(&[w(), scale("layer.w_scale", vec![256, 1], bad)], None, &["layer.w_scale", "element 0", "finite"]);
    }
    let bytes = ("layer.w_scale", Dtype::I8, vec![256, 1], vec![127; 256]);
    refused(&[w(), bytes], None, &["layer.w_scale", "is I8 [256, 1]"]);
    let second = scale("layer.w_scale_2", vec![1], 1.0);
    refused(&[w(), scale("layer.w_scale", vec![1], 1.0), second], None, &["layer.w", "second scale layer.w_scale_2"]);
    let good = || scale("layer.w_scale", vec![256, 1], 1.0);
    let tensor = r#"{"scheme":"fp8-tensor","format":"e4m3"}"#;
    refused(&[w(), good()], Some(tensor), &["layer.w", "metadata says fp8-tensor:e4m3", "[256, 1]"]);
    refused(&[w(), good()], Some(r#"{"scheme":"fp8-row","format":"e5m2"}"#), &["fp8-row:e5m2", "codes are e4m3"]);
    refused(&[w(), good()], Some(r#"{"scheme":"mxfp8","format":"e4m3"}"#), &["says mxfp8:e4m3", "holds floats"]);
    refused(&[w(), good()], Some(r#"{"scheme":"mxfp9","format":"e4m3"}"#), &["unknown scheme", "mxfp9"]);
    refused(&[w(), good()], Some("{"), &["layer.w", "metadata"]);
    let cube = ("layer.w", Dtype::F8_E4M3, vec![2, 128, 128], vec![0; 256 * 128]);
    refused(&[cube, good()], None, &["layer.w", "[2, 128, 128]", "two dimensions"]);
    let empty = ("layer.w", Dtype::F8_E4M3, vec![0, 128], vec![]);
    refused(&[empty, scale("layer.w_scale", vec![1], 1.0)], None, &["layer.w", "[0, 128]"]);
}

#[test]
fn broken_files_are_refused_with_the_reason() {
    let folder = Folder::new();
    let path = folder.file("bad.safetensors");
    let refused = |header: &str, data: usize, words: &[&str]| {
        raw(&path, header, &vec![0; data]);
        let error = Checkpoint::open(&path).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{header}: {error:?} lacks {word:?}");
        }
    };
    let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    refused(&format!("{{{a}}}"), 7, &["tensor a", "truncated"]);
    refused(&format!("{{{a}}}"), 9, &["holds 9 bytes of data", "take 8"]);
    refused(&format!("{{{a},{a}}}"), 8, &["tensor a", "twice"]);
    refused(&format!(r#"{{{a},"b":{{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}}}"#), 8, &["tensor b", "inside"]);
    refused(
        &format!(r#"{{{a},"b":{{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}}}"#),
        16,
        &["tensor b", "byte 12"],
    );
    refused(r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8, &["tensor a", "takes 12 bytes"]);
    refused(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8, &["tensor a"]);
    refused(r#"{"a":{"dtype":"F7","shape":[2],"data_offsets":[0,8]}}"#, 8, &["tensor a", "unknown dtype \"F7\""]);
    refused(r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#, 2, &["tensor a", "not whole"]);
    refused(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}"#, 8, &["tensor a", "shape"]);
    refused(
        r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#,
        8,
        &["tensor a", "overflows"],
    );
    refused(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}}"#, 8, &["tensor a", "data_offsets"]);
    refused(r#"{"a":7}"#, 0, &["tensor a"]);
    refused(r#"{"a":{"dtype":"F32","shape":[2]}}"#, 8, &["tensor a", "data_offsets"]);
    refused(r#"{"a":{"shape":[2],"data_offsets":[0,8]}}"#, 8, &["tensor a", "dtype"]);
    let shape = ["1"; 65].join(",");
    refused(&format!(r#"{{"a":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}"#), 1, &["tensor a", "64"]);
    refused(r#"{"__metadata__":{},"__metadata__":{}}"#, 0, &["__metadata__", "twice"]);
    refused(r#"{} {}"#, 0, &["not a JSON object"]);
    refused(r#"{"__metadata__":{"x":1}}"#, 0, &["metadata entry \"x\""]);
    let pairs: Vec<_> = (0..=1 << 20).map(|i| format!("\"{i:x}\":\"\"")).collect();
    refused(&format!(r#"{{"__metadata__":{{{}}}}}"#, pairs.join(",")), 0, &["more than 1048576 entries"]);
    refused("[]", 0, &["not a JSON object"]);
    refused("{", 0, &["not a JSON object"]);
    refused(&"[".repeat(100_000), 0, &["not a JSON object"]);
    refused("{\"line\\nbreak\":7}", 0, &["line\\nbreak"]);
    for bytes in [&b""[..], b"1234567", &[0xFF; 16], &200_000_000u64.to_le_bytes(), &9u64.to_le_bytes()] {
        fs::write(&path, bytes).unwrap();
        assert!(Checkpoint::open(&path).is_err(), "{bytes:?}");
    }
    assert!(Checkpoint::open(folder.file("none")).unwrap_err().to_string().contains("none"));
    assert!(Checkpoint::open(&folder.0).is_err());
}

/// Every public reader over whatever the file says; returns how many calls succeeded.
fn read_everything(file: &Checkpoint) -> usize {
    let mut good = 0;
    for name in file.tensors().iter().map(|t| t.name.as_str()).chain(["missing", "packed"]) {
        good += usize::from(file.bytes(name).is_ok());
        good += usize::from(file.values(name).is_ok());
        good += usize::from(file.matrix(name).is_ok());
        good += usize::from(file.scheme(name).is_ok());
        good += usize::from(file.recipe(name).is_ok_and(|r| r.is_some()));
        good += usize::from(file.tensors_of(name).is_ok());
        good += usize::from(file.cast_recipe(name).is_ok_and(|r| r.is_some()));
        if let Ok(cast) = file.cast_matrix(name) {
            assert!(cast.scales().iter().all(|s| *s >= 0.0 && s.is_finite()), "a scale that is none came through");
            good += 1;
        }
        if let Ok(matrix) = file.quant_matrix(name) {
            assert!(matrix.scales().iter().all(|s| s.is_finite()), "a scale that is not finite came through");
            let largest = matrix.block_scales().iter().copied().max().unwrap_or(0);
            let limit = if matrix.scheme().is_nvfp4() { 0x7F } else { 0xFF };
            assert!(largest < limit, "a block scale that is NaN or negative came through");
            good += 1;
        }
    }
    good
}

#[test]
fn mutated_files_never_panic() {
    let folder = Folder::new();
    let path = folder.file("seed.safetensors");
    let mut layout = CheckpointLayout::new();
    layout.metadata("format", "pt");
    let mut matrices = Vec::new();
    for (i, scheme) in Scheme::ALL.into_iter().enumerate() {
        let (rows, cols) = ([1, 2, 5, 8][i % 4], 16);
        layout.quantized(&format!("w{i}"), rows, cols, written(scheme));
        matrices.push((format!("w{i}"), random_matrix(scheme, rows, cols, i as u64)));
    }
    let casts: Vec<_> = CastScheme::all().step_by(7).map(|scheme| casts::matrix(scheme, 16, 32, 5)).collect();
    for (i, cast) in casts.iter().enumerate() {
        layout.cast(&format!("c{i}"), 16, 32, casts::written(cast.scheme()));
    }
    layout.tensor("bias", Dtype::F32, &[4]);
    for (suffix, dtype, shape) in blocks::COMPRESSED {
        layout.tensor(format!("packed{suffix}"), dtype, shape);
    }
    let writer = layout.create(&path, &[]).unwrap();
    for (suffix, _, shape) in blocks::COMPRESSED {
        let bytes = if shape.len() == 1 { f32_bytes(&[8.0]) } else { vec![0x38; shape[0] * shape[1]] };
        writer.write(&format!("packed{suffix}"), &bytes).unwrap();
    }
    for (name, matrix) in &matrices {
        writer.write_quantized(name, matrix).unwrap();
    }
    casts.iter().enumerate().for_each(|(i, cast)| writer.write_cast(&format!("c{i}"), cast).unwrap());
    writer.write("bias", &[0; 16]).unwrap();
    writer.finish().unwrap();
    let seed = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(seed[..8].try_into().unwrap()) as usize;
    let everything = read_everything(&Checkpoint::open(&path).unwrap());

    // Words whose exchange makes headers that are well-formed and wrong.
    const WORDS: [&str; 33] = [
        "F8_E4M3",
        "F8_E5M2",
        "F32",
        "BF16",
        "F16",
        "U8",
        "F8_E8M0",
        "F4",
        "[1]",
        "[]",
        "[0,16]",
        "16",
        "0",
        "-1",
        "1e9",
        "18446744073709551615",
        "4294967296",
        "_scale",
        "_scale_2",
        "_global_scale",
        "_packed",
        "fp8-row",
        "nvfp4",
        "nvfp4-row",
        "low-first",
        "hadamard16",
        "cast",
        "1x32",
        "128x1",
        "row-major",
        "column-major",
        "ue8m0",
        "true",
    ];
    let mut random = Noise::new(7);
    let (mut opened, mut partial) = (0, 0);
    for _ in 0..6000 {
        let mut bytes = seed.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            match random.below(8) {
                0 => bytes.truncate(at),
                1 => bytes[at..].iter_mut().take(4).for_each(|b| *b = random.bits() as u8),
                2 => bytes[random.below(8)] = random.bits() as u8,
                3 => bytes.insert(at, random.bits() as u8),
                4 => {
                    // A run of the header moves elsewhere in it, its length kept.
                    let (from, to) = (8 + random.below(header - 40), 8 + random.below(header - 40));
                    let run = bytes.get(from..from + 24).map(<[u8]>::to_vec);
                    if let (Some(run), Some(place)) = (run, bytes.get_mut(to..to + 24)) {
                        place.copy_from_slice(&run);
                    }
                }
                5 => {
                    let from = header + random.below(seed.len() - header);
                    bytes.iter_mut().skip(from).take(4).for_each(|b| *b = 0xFF);
                }
                _ => {
                    bytes = exchange_word(
                        &bytes,
                        WORDS[random.below(WORDS.len())],
                        WORDS[random.below(WORDS.len())],
                        &mut random,
                    )
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        fs::write(&path, &bytes).unwrap();
        let what = || format!("{:?}", String::from_utf8_lossy(&bytes));
        let good = limits::within_a_second(what, || {
            let (file, most) = limits::memory_of(|| Checkpoint::open(&path));
            let header = limits::header_of(&bytes);
            let allowed = limits::allowed(header);
            assert!(most <= allowed, "{most} bytes in use of {allowed}, with a header of {header}: {}", what());
            file.ok().map(|file| read_everything(&file))
        });
        if let Some(good) = good {
            opened += 1;
            partial += usize::from(good < everything);
        }
    }
    assert!(opened > 500 && partial > 100, "too few mutants got past the header: {opened} opened, {partial} damaged");
}

/// Puts `new` in place of a random occurrence of `old` in the header, and mends the header's length.
fn exchange_word(bytes: &[u8], old: &str, new: &str, random: &mut Noise) -> Vec<u8> {
    let Some(len) = bytes.get(..8).map(|b| u64::from_le_bytes(b.try_into().unwrap()) as usize) else {
        return bytes.to_vec();
    };
    let Some(text) = bytes.get(8..8usize.saturating_add(len)).and_then(|b| std::str::from_utf8(b).ok()) else {
        return bytes.to_vec();
    };
    let places: Vec<_> = text.match_indices(old).map(|(i, _)| i).collect();
    if places.is_empty() {
        return bytes.to_vec();
    }
    let at = places[random.below(places.len())];
    let changed = format!("{}{new}{}", &text[..at], &text[at + old.len()..]);
    let mut out = (changed.len() as u64).to_le_bytes().to_vec();
    out.extend(changed.as_bytes());
    out.extend(&bytes[8 + len..]);
    out
}

#[test]
fn nothing_appears_until_the_file_is_whole() {
    let folder = Folder::new();
    let path = folder.file("out.safetensors");
    fs::write(&path, "old").unwrap();
    let layout = || {
        let mut layout = CheckpointLayout::new();
        layout.tensor("a", Dtype::U8, &[2]);
        layout.tensor("b", Dtype::U8, &[2]);
        layout
    };
    let writer = layout().create(&path, &[]).unwrap();
    writer.write("b", &[3, 4]).unwrap();
    assert!(writer.write("b", &[3, 4]).unwrap_err().to_string().contains("written before"));
    assert!(writer.write("c", &[1]).unwrap_err().to_string().contains("not in the layout; add it"));
    assert!(writer.write("a", &[1]).unwrap_err().to_string().contains("got 1 bytes"));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(folder.names().len(), 2);
    assert!(writer.finish().unwrap_err().to_string().contains("tensor a: was not written"));
    assert_eq!(folder.names(), ["out.safetensors"]);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    let writer = layout().create(&path, &[]).unwrap();
    writer.write("b", &[3, 4]).unwrap();
    writer.write("a", &[1, 2]).unwrap();
    writer.finish().unwrap();
    assert_eq!(folder.names(), ["out.safetensors"]);
    assert_eq!(Checkpoint::open(&path).unwrap().bytes("a").unwrap(), [1, 2]);
}

#[test]
fn the_input_repeated_names_and_infinite_scales_are_not_written() {
    let folder = Folder::new();
    let path = folder.file("in.safetensors");
    foreign(&path, &[("a", Dtype::U8, vec![1], vec![9])], None);
    let input = Checkpoint::open(&path).unwrap();
    let mut layout = CheckpointLayout::new();
    layout.tensor("a", Dtype::U8, &[1]);
    let other_spelling = folder.0.join(".").join("in.safetensors");
    let error = layout.clone().create(&other_spelling, &[&input]).unwrap_err().to_string();
    assert!(error.contains("it is the input"), "{error}");
    layout.tensor("a", Dtype::U8, &[1]);
    let error = layout.create(folder.file("out"), &[&input]).unwrap_err().to_string();
    assert!(error.contains("tensor a: would be in the file twice"), "{error}");
    assert_eq!(folder.names(), ["in.safetensors"]);

    let scheme = Scheme::ALL[1];
    let matrix = HostQuantMatrix::from_logical(scheme, 2, 16, vec![0; 32], &[1.0, f32::INFINITY]).unwrap();
    let mut layout = CheckpointLayout::new();
    layout.quantized("w", 2, 16, written(scheme));
    let writer = layout.create(folder.file("out"), &[]).unwrap();
    let error = writer.write_quantized("w", &matrix).unwrap_err().to_string();
    assert!(error.contains("tensor w: scale 1 is inf") && error.contains("transformer-engine"), "{error}");
    drop(writer);
    assert_eq!(folder.names(), ["in.safetensors"]);
}
