//! Files of NVFP4 and MXFP8: published layouts byte by byte, both nibble orders, and what is refused.

use std::collections::HashMap;

use safetensors::tensor::Dtype;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, NibbleOrder, WrittenRecipe};
use scaled_gemm::reference::dequantize;
use scaled_gemm::{
    Basis, DType, Fp8Format, HostQuantMatrix, MxScaleRule, Mxfp8Recipe, Nvfp4Options, Nvfp4Recipe, Recipe, Scheme,
};

use super::{Folder, Tensors, f32_bytes, foreign, random_matrix, written};

/// Endings, types and shapes of a small matrix of compressed-tensors.
pub const COMPRESSED: [(&str, Dtype, &[usize]); 3] =
    [("_packed", Dtype::U8, &[2, 8]), ("_scale", Dtype::F8_E4M3, &[2, 1]), ("_global_scale", Dtype::F32, &[1])];

type Tensor<'a> = (&'a str, Dtype, Vec<usize>, Vec<u8>);

/// The codes 0 to 15 in column order, low half first: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same with a sign.
const LOW_FIRST: [u8; 8] = [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE];
const HIGH_FIRST: [u8; 8] = [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF];
const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

fn bytes<'a>(name: &'a str, dtype: Dtype, shape: &[usize], byte: u8) -> Tensor<'a> {
    (name, dtype, shape.to_vec(), vec![byte; shape.iter().product()])
}

fn float<'a>(name: &'a str, shape: &[usize], value: f32) -> Tensor<'a> {
    (name, Dtype::F32, shape.to_vec(), f32_bytes(&vec![value; shape.iter().product()]))
}

fn entry(text: &str) -> Option<HashMap<String, String>> {
    Some(HashMap::from([("scaled_gemm.w".to_string(), text.to_string())]))
}

/// Two rows in ModelOpt's layout, by hand: the second row has twice the block scale. 0x38 is 1, 0x40 is 2.
fn modelopt(codes: &[u8; 8]) -> Vec<Tensor<'static>> {
    vec![
        ("w", Dtype::U8, vec![2, 8], [codes.as_slice(), codes].concat()),
        ("w_scale", Dtype::F8_E4M3, vec![2, 1], vec![0x38, 0x40]),
        float("w_scale_2", &[], 0.25),
        float("input_scale", &[], 7.0),
    ]
}

fn decoded(matrix: &HostQuantMatrix) -> Vec<f32> {
    dequantize(matrix, DType::F32).into_raw_vec_and_offset().0
}

#[test]
fn bytes_of_modelopt_and_compressed_tensors_mean_these_numbers() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let want: Vec<f32> = VALUES.iter().map(|v| v * 0.25).chain(VALUES.iter().map(|v| v * 0.5)).collect();
    foreign(&path, &modelopt(&LOW_FIRST), None);
    let file = Checkpoint::open(&path).unwrap();
    assert_eq!((file.quantized(), file.is_scale("w_scale"), file.is_scale("w_scale_2")), (vec!["w"], true, true));
    assert!(!file.is_scale("input_scale"));
    let matrix = file.quant_matrix("w").unwrap();
    assert_eq!((matrix.scheme(), matrix.rows(), matrix.cols()), (Scheme::Nvfp4, 2, 16));
    assert_eq!(matrix.logical_block_scales(), [0x38, 0x40]);
    assert_eq!(decoded(&matrix), want);
    assert_eq!(file.tensors_of("w").unwrap(), ["w", "w_scale", "w_scale_2"]);

    // The same numbers from a divisor of 4.
    let compressed = [
        ("l.weight_packed", Dtype::U8, vec![2, 8], [LOW_FIRST, LOW_FIRST].concat()),
        ("l.weight_scale", Dtype::F8_E4M3, vec![2, 1], vec![0x38, 0x40]),
        float("l.weight_global_scale", &[1], 4.0),
        float("l.input_global_scale", &[1], 9.0),
    ];
    foreign(&path, &compressed, None);
    let file = Checkpoint::open(&path).unwrap();
    assert_eq!(file.quantized(), ["l.weight"]);
    let matrix = file.quant_matrix("l.weight").unwrap();
    assert_eq!((matrix.scheme(), matrix.logical_scales()), (Scheme::Nvfp4, vec![0.25]));
    assert_eq!(decoded(&matrix), want);
    let names = ["l.weight_packed", "l.weight_scale", "l.weight_global_scale"];
    assert_eq!(file.tensors_of("l.weight").unwrap(), names);
    assert!(names[1..].iter().all(|n| file.is_scale(n)) && !file.is_scale("l.input_global_scale"));
    assert_eq!(file.recipe("l.weight").unwrap(), None);
    let error = file.quant_matrix("l.weight_packed").unwrap_err().to_string();
    assert!(error.contains("l.weight_packed") && error.contains("named l.weight"), "{error}");
}

#[test]
fn swapped_nibbles_are_read_when_said() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let read = |order: Option<NibbleOrder>| {
        let file = Checkpoint::open(&path).unwrap();
        let file = order.map_or(Checkpoint::open(&path).unwrap(), |order| file.with_nibble_order(order));
        file.quant_matrix("w").map(|m| decoded(&m)[..16].to_vec())
    };
    let want: Vec<f32> = VALUES.iter().map(|v| v * 0.25).collect();
    let swapped: Vec<f32> = want.chunks(2).flat_map(|p| [p[1], p[0]]).collect();
    for (codes, low, high) in [(&LOW_FIRST, &want, &swapped), (&HIGH_FIRST, &swapped, &want)] {
        foreign(&path, &modelopt(codes), None);
        assert_eq!(&read(None).unwrap(), low);
        assert_eq!(&read(Some(NibbleOrder::LowFirst)).unwrap(), low);
        assert_eq!(&read(Some(NibbleOrder::HighFirst)).unwrap(), high);
    }
    // The metadata say it, and may not be contradicted.
    for (said, other, values) in
        [("low-first", NibbleOrder::HighFirst, &swapped), ("high-first", NibbleOrder::LowFirst, &want)]
    {
        let text = format!(r#"{{"scheme":"nvfp4","format":"e2m1","basis":"plain","nibble_order":"{said}"}}"#);
        foreign(&path, &modelopt(&HIGH_FIRST), entry(&text));
        assert_eq!(&read(None).unwrap(), values);
        assert_eq!(&read(said.parse().ok()).unwrap(), values);
        let error = read(Some(other)).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor w: is {said}")) && error.contains(other.name()), "{error}");
        assert!(Checkpoint::open(&path).unwrap().with_nibble_order(other).scheme("w").is_err());
    }
}

#[test]
fn one_row_is_what_the_metadata_say_and_bases_come_back() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let hadamard = Nvfp4Options { basis: Basis::Hadamard16, ..Nvfp4Options::default() };
    for (recipe, rows) in [
        (Recipe::new(Scheme::Nvfp4), 1),
        (Recipe::new(Scheme::Nvfp4Row), 1),
        (Nvfp4Recipe::tensor(hadamard).unwrap().into(), 3),
        (Recipe::Mxfp8(Mxfp8Recipe { format: Fp8Format::E5M2, rule: MxScaleRule::Even }), 3),
    ] {
        let matrix = random_matrix(recipe.scheme(), rows, 48, 5).assume_basis(recipe.basis());
        let written = WrittenRecipe { recipe, source: DType::F32 };
        let mut layout = CheckpointLayout::new();
        layout.quantized("w", rows, 48, written);
        let writer = layout.create(&path, &[]).unwrap();
        writer.write_quantized("w", &matrix).unwrap();
        writer.finish().unwrap();
        let file = Checkpoint::open(&path).unwrap();
        assert_eq!(file.quant_matrix("w").unwrap(), matrix);
        assert_eq!(file.recipe("w").unwrap(), Some(written));
        assert_eq!(file.metadata()["scaled_gemm.w"].contains("low-first"), recipe.scheme().is_nvfp4());
        // Without the metadata the shape decides: one scale is one for the matrix.
        let tensors: Vec<_> = file
            .tensors()
            .iter()
            .map(|t| (t.name.as_str(), t.dtype, t.shape.clone(), file.bytes(&t.name).unwrap()))
            .collect();
        foreign(&folder.file("bare"), &tensors, None);
        let bare = Checkpoint::open(folder.file("bare")).unwrap();
        let scheme = if recipe.scheme().is_nvfp4() { Scheme::Nvfp4 } else { recipe.scheme() };
        assert_eq!(bare.scheme("w").unwrap(), scheme);
        assert_eq!(bare.quant_matrix("w").unwrap().basis(), Basis::Plain);
    }
}

#[test]
fn mx_scales_are_read_as_bytes_of_either_type() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    for scale in [Dtype::U8, Dtype::F8_E8M0] {
        for (codes, format) in [(Dtype::F8_E4M3, Fp8Format::E4M3), (Dtype::F8_E5M2, Fp8Format::E5M2)] {
            // 48 columns: a whole block and a half one. 0x3C is 1.5 in E4M3 and 1 in E5M2.
            let w = [bytes("w", codes, &[1, 48], 0x3C), ("w_scale", scale, vec![1, 2], vec![128, 126])];
            foreign(&path, &w, None);
            let file = Checkpoint::open(&path).unwrap();
            assert_eq!((file.quantized(), file.scheme("w").unwrap()), (vec!["w"], Scheme::Mxfp8(format)));
            let one = if format == Fp8Format::E4M3 { 1.5 } else { 1.0 };
            let want = [vec![2.0 * one; 32], vec![0.5 * one; 16]].concat();
            assert_eq!(decoded(&file.quant_matrix("w").unwrap()), want);
        }
    }
}

#[test]
fn plain_bytes_are_no_matrices() {
    let folder = Folder::new();
    let path = folder.file("u8.safetensors");
    let tensors = [
        bytes("image", Dtype::U8, &[4, 8], 1),
        bytes("int8", Dtype::U8, &[4, 8], 1),
        float("int8_scale", &[4], 1.0),
        // 4-bit integers of compressed-tensors.
        bytes("int.weight_packed", Dtype::I32, &[4, 2], 0),
    ];
    let mut tensors = tensors.to_vec();
    tensors[3].3 = vec![0; 32];
    foreign(&path, &tensors, None);
    let file = Checkpoint::open(&path).unwrap();
    assert_eq!(file.quantized(), Vec::<&str>::new());
    for name in ["image", "int8", "int.weight_packed"] {
        let error = file.quant_matrix(name).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor {name}: has dtype")), "{error}");
        assert!(error.contains("F8_E4M3 or F8_E5M2") && error.contains("U8 and scales of blocks"), "{error}");
    }
    assert!(file.quant_matrix("int.weight").unwrap_err().to_string().contains("is not in the file"));
}

#[test]
fn broken_matrices_are_refused_with_the_name() {
    let folder = Folder::new();
    let path = folder.file("bad.safetensors");
    let refused = |name: &str, tensors: Tensors, metadata: Option<&str>, words: &[&str]| {
        foreign(&path, tensors, metadata.and_then(entry));
        let file = Checkpoint::open(&path).unwrap();
        let error = file.quant_matrix(name).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error}");
        for word in words {
            assert!(error.contains(word), "{error:?} lacks {word:?}");
        }
        assert!(file.quantized().contains(&name) || file.info(name).is_ok_and(|t| t.shape.len() != 2), "{name}");
    };
    let w = || bytes("w", Dtype::U8, &[3, 16], 0x21);
    let scale = || bytes("w_scale", Dtype::F8_E4M3, &[3, 2], 0x38);
    let second = || float("w_scale_2", &[1], 1.0);
    let good = r#"{"scheme":"nvfp4","format":"e2m1","basis":"plain","nibble_order":"low-first"}"#;

    refused("w", &[w(), scale()], None, &["tensor w:", "no scale w_scale_2", "none is ever assumed"]);
    refused("w", &[w(), second()], None, &["tensor w:", "no scale w_scale;"]);
    refused("w", &[w()], Some(good), &["tensor w:", "no scale w_scale;"]);
    for shape in [&[3usize, 1][..], &[2, 3], &[6], &[3, 2, 1]] {
        let scale = bytes("w_scale", Dtype::F8_E4M3, shape, 0x38);
        refused("w", &[w(), scale, second()], None, &["tensor w_scale:", &format!("{shape:?}"), "[3, 2] for 3 x 32"]);
    }
    refused("w", &[w(), bytes("w_scale", Dtype::U8, &[3, 2], 0x38), second()], None, &["tensor w_scale:", "U8"]);
    for shape in [&[2usize][..], &[1, 3], &[3, 2], &[0]] {
        let second = float("w_scale_2", shape, 1.0);
        refused(
            "w",
            &[w(), scale(), second],
            None,
            &["tensor w:", "w_scale_2", &format!("{shape:?}"), "nvfp4-row [3]"],
        );
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        refused(
            "w",
            &[w(), scale(), float("w_scale_2", &[3], value)],
            None,
            &["tensor w_scale_2:", "element 0", "finite"],
        );
    }
    let integer = ("w_scale_2", Dtype::I32, vec![1], vec![1, 0, 0, 0]);
    refused("w", &[w(), scale(), integer], None, &["tensor w_scale_2:", "I32"]);
    for byte in [0x7F, 0xFF, 0x80, 0xB8] {
        let mut scale = scale();
        scale.3[4] = byte;
        let word = format!("byte {byte:#04x} at element 4");
        refused("w", &[w(), scale, second()], None, &["tensor w_scale:", &word, "NaN or negative"]);
    }
    for width in [7usize, 12] {
        let w = bytes("w", Dtype::U8, &[3, width], 0);
        let scale = bytes("w_scale", Dtype::F8_E4M3, &[3, 1], 0x38);
        refused("w", &[w, scale, second()], None, &["tensor w:", &format!("{width} bytes a row"), "8 each"]);
    }
    let empty = bytes("w", Dtype::U8, &[0, 16], 0);
    refused("w", &[empty, bytes("w_scale", Dtype::F8_E4M3, &[0, 2], 0), second()], None, &["tensor w:", "[0, 16]"]);
    let cube = bytes("w", Dtype::U8, &[3, 2, 8], 0);
    refused("w", &[cube, scale(), second()], None, &["tensor w:", "[3, 2, 8]", "two dimensions"]);

    let all = || [w(), scale(), second()];
    refused("w", &all(), Some(&good.replace("plain", "fourier")), &["tensor w:", "unknown basis \"fourier\""]);
    refused("w", &all(), Some(&good.replace("low-first", "middle-first")), &["unknown nibble_order"]);
    refused("w", &all(), Some(r#"{"scheme":"nvfp4","format":"e2m1"}"#), &["tensor w:", "has no basis"]);
    refused("w", &all(), Some(&good.replace("\"nvfp4\"", "\"nvfp4-row\"")), &["says nvfp4-row", "[3]", "[1]"]);
    refused(
        "w",
        &all(),
        Some(r#"{"scheme":"fp8-row","format":"e4m3"}"#),
        &["says: fp8-row:e4m3", "is U8 [3, 16], but must be F8_E4M3"],
    );

    let packed = || bytes("w_packed", Dtype::U8, &[3, 16], 0x21);
    let divisor = |value| float("w_global_scale", &[1], value);
    refused("w", &[packed(), scale()], None, &["tensor w:", "no scale w_global_scale"]);
    refused("w", &[packed(), divisor(2.0)], None, &["tensor w:", "no scale w_scale"]);
    for value in [0.0, -0.0, 1e-40, f32::NAN, f32::INFINITY] {
        refused("w", &[packed(), scale(), divisor(value)], None, &["tensor w_global_scale:", "inverse must be finite"]);
    }
    let rows = float("w_global_scale", &[3], 1.0);
    refused("w", &[packed(), scale(), rows], None, &["tensor w_global_scale:", "[3]", "one divisor"]);
    let both = [packed(), scale(), divisor(2.0), bytes("w", Dtype::U8, &[3, 16], 0x21)];
    refused("w", &both, None, &["tensor w:", "twice", "w_packed"]);

    let mx = || bytes("w", Dtype::F8_E4M3, &[3, 48], 0x38);
    let mx_scale = |shape: &[usize], byte| bytes("w_scale", Dtype::U8, shape, byte);
    refused("w", &[mx()], None, &["tensor w:", "no scale"]);
    refused("w", &[mx(), mx_scale(&[3, 2], 255)], None, &["tensor w_scale:", "byte 0xff at element 0", "NaN"]);
    for shape in [&[3usize, 1][..], &[3, 3], &[2, 3], &[6]] {
        refused("w", &[mx(), mx_scale(shape, 127)], None, &["tensor w:", &format!("{shape:?}"), "[3, 2]"]);
    }
    let row = r#"{"scheme":"fp8-row","format":"e4m3"}"#;
    refused("w", &[mx(), mx_scale(&[3, 2], 127)], Some(row), &["says fp8-row:e4m3", "holds bytes"]);
}

#[test]
fn scales_that_no_reader_accepts_are_not_written() {
    let folder = Folder::new();
    let cases = [
        (Scheme::Nvfp4, f32::INFINITY, 0x38, "scale 0 is inf"),
        (Scheme::Nvfp4Row, f32::NAN, 0x38, "scale 0 is NaN"),
        (Scheme::Nvfp4, 1.0, 0x7F, "block scale 0 is byte 0x7f"),
        (Scheme::Nvfp4, 1.0, 0x80, "block scale 0 is byte 0x80"),
        (Scheme::Mxfp8(Fp8Format::E4M3), 1.0, 0xFF, "block scale 0 is byte 0xff"),
    ];
    for (scheme, scale, byte, words) in cases {
        let ([r, c], [blocks, b]) = (scheme.scale_grid(1, 16), scheme.block_grid(1, 16));
        let codes = vec![0; scheme.code_bytes(1, 16)];
        let matrix =
            HostQuantMatrix::from_block_logical(scheme, 1, 16, codes, &vec![scale; r * c], &vec![byte; blocks * b])
                .unwrap();
        let mut layout = CheckpointLayout::new();
        layout.quantized("w", 1, 16, written(scheme));
        let writer = layout.create(folder.file("out"), &[]).unwrap();
        let error = writer.write_quantized("w", &matrix).unwrap_err().to_string();
        assert!(
            error.contains(&format!("tensor w: {words}")) && error.contains("quantize smaller values, all finite"),
            "{error}"
        );
    }
    // What the metadata would say must be what is written.
    let mut layout = CheckpointLayout::new();
    layout.quantized("w", 1, 16, written(Scheme::Nvfp4));
    layout.tensor("bias", Dtype::F32, &[1]);
    let writer = layout.create(folder.file("out"), &[]).unwrap();
    let transformed = random_matrix(Scheme::Nvfp4, 1, 16, 1).assume_basis(Basis::Hadamard16);
    for (name, matrix, word) in [
        ("w", transformed, "Hadamard16"),
        ("w", random_matrix(Scheme::Nvfp4Row, 1, 16, 1), "nvfp4-row"),
        ("bias", random_matrix(Scheme::Nvfp4, 1, 16, 1), "no quantized matrix"),
    ] {
        let error = writer.write_quantized(name, &matrix).unwrap_err().to_string();
        assert!(error.contains(&format!("tensor {name}: is")) && error.contains(word), "{error}");
    }
}

/// Half-byte codes of a number of columns that their blocks do not divide: said so, and not that another tensor is in the way.
#[test]
fn columns_that_blocks_of_codes_do_not_divide_are_refused_as_such() {
    let folder = tempfile::tempdir().unwrap();
    for scheme in [Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp4] {
        for cols in [1, 8, 17, 24, 40] {
            let mut layout = CheckpointLayout::new();
            layout.tensor("bias", Dtype::F32, &[4]);
            layout.quantized("w", 4, cols, written(scheme));
            let said = layout.check(folder.path().join("x"), &[]).unwrap_err().to_string();
            assert!(said.contains("tensor w: ") && said.contains("multiple of 16"), "{scheme}: {said}");
            assert!(said.contains(&format!("{cols} element")) && said.contains("pad"), "{scheme}: {said}");
            assert!(!said.contains("beside"), "{scheme}: {said}");
        }
    }
    let mut layout = CheckpointLayout::new();
    layout.quantized("w", 4, 24, written(Scheme::Fp8Row(Fp8Format::E4M3)));
    layout.check(folder.path().join("x"), &[]).unwrap();
}
