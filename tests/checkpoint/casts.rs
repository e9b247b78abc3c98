//! Files of casts: the bytes of the reference in every format, grouping and order, by rows, and what is refused of hostile ones.

use std::collections::HashMap;
use std::path::Path;

use ndarray::Array2;
use safetensors::tensor::{Dtype, SafeTensors};
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, Dialect, StoredScheme, WrittenCast, WrittenRecipe};
use scaled_gemm::reference::{Noise, cast, cast_back, quantize};
use scaled_gemm::{
    CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Fp8Format, Fp8Granularity, Fp8Recipe,
    HostCastMatrix, Recipe, Scheme,
};
use serde_json::{Value, json};

use super::{Folder, foreign};

pub fn matrix(scheme: CastScheme, rows: usize, cols: usize, seed: u64) -> HostCastMatrix {
    let mut random = Noise::new(seed);
    let x = Array2::from_shape_simple_fn((rows, cols), || random.normal());
    cast(&x.view().into(), CastRecipe::new(scheme)).unwrap()
}

pub fn written(scheme: CastScheme) -> WrittenCast {
    WrittenCast { recipe: CastRecipe::new(scheme), source: DType::Bf16 }
}

fn write(path: &Path, q: &HostCastMatrix) {
    let mut layout = CheckpointLayout::new();
    layout.cast("w", q.rows(), q.cols(), written(q.scheme()));
    let writer = layout.create(path, &[]).unwrap();
    writer.write_cast("w", q).unwrap();
    writer.finish().unwrap();
}

/// The rows of a cast as a matrix of their own, by its elements.
fn rows_of(q: &HostCastMatrix, first: usize, rows: usize) -> Array2<f32> {
    Array2::from_shape_fn((rows, q.cols()), |(i, j)| q.code_value(first + i, j) * q.scale_at(first + i, j))
}

#[test]
fn every_cast_round_trips_whole_and_by_rows_and_another_reader_agrees() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    for (i, scheme) in CastScheme::all().enumerate() {
        for (rows, cols) in [(272, 144), (16, 16), (128, 272)] {
            let q = matrix(scheme, rows, cols, (i * 1000 + rows) as u64);
            write(&path, &q);
            let file = Checkpoint::open(&path).unwrap();
            assert_eq!((file.quantized(), file.is_scale("w_scale")), (vec!["w"], true), "{scheme}");
            assert_eq!(file.stored_scheme("w").unwrap(), StoredScheme::Cast(scheme));
            assert_eq!(file.cast_recipe("w").unwrap(), Some(written(scheme)));
            assert_eq!(file.quant_shape("w").unwrap(), (rows, cols), "{scheme}");
            assert_eq!(file.tensors_of("w").unwrap(), ["w", "w_scale"]);
            let (stored, dimensions, tensors) = file.quant_info("w").unwrap();
            assert_eq!((stored, dimensions, tensors.len()), (StoredScheme::Cast(scheme), vec![rows, cols], 2));
            assert_eq!(file.cast_matrix("w").unwrap(), q, "{scheme}");
            // The bytes that a device has.
            let bytes = std::fs::read(&path).unwrap();
            let others = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(others.tensor("w").unwrap().data(), q.codes(), "{scheme}");
            assert_eq!(others.tensor("w_scale").unwrap().data(), q.device_scales(), "{scheme}");
            // By parts: what was written so, and what is read so.
            let [height, _] = scheme.group().extents();
            let step = height.size(rows).max(16);
            let parts: Vec<_> = (0..rows).step_by(step).map(|first| first..(first + step).min(rows)).collect();
            let parts: Vec<_> =
                parts.into_iter().map(|rows| (rows.clone(), file.cast_rows("w", rows).unwrap())).collect();
            for (rows, part) in &parts {
                assert_eq!(cast_back(part, DType::F32), rows_of(&q, rows.start, rows.len()), "{scheme} {rows:?}");
            }
            let mut layout = CheckpointLayout::new();
            layout.cast("w", rows, cols, written(scheme));
            let again = folder.file("again.safetensors");
            let writer = layout.create(&again, &[&file]).unwrap();
            let mut by_rows = writer.cast("w").unwrap();
            parts.iter().for_each(|(_, part)| by_rows.append(part).unwrap());
            by_rows.finish().unwrap();
            writer.finish().unwrap();
            assert_eq!(std::fs::read(&again).unwrap(), bytes, "{scheme}");
            // No product reads it.
            for error in [file.scheme("w").unwrap_err(), file.quant_matrix("w").unwrap_err()] {
                assert!(error.to_string().contains("tensor w: is cast to"), "{error}");
            }
        }
    }
}

#[test]
fn parts_that_are_not_of_the_layout_are_refused() {
    let folder = Folder::new();
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Tile32x32).unwrap();
    let q = matrix(scheme, 64, 32, 1);
    let mut layout = CheckpointLayout::new();
    layout.cast("w", 64, 32, written(scheme));
    let writer = layout.create(folder.file("w.safetensors"), &[]).unwrap();
    let refused = |parts: &[&HostCastMatrix], words: &[&str]| {
        let mut matrix = writer.cast("w").unwrap();
        let last = parts.iter().try_for_each(|part| matrix.append(part)).and_then(|()| matrix.finish());
        let text = last.unwrap_err().to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{text:?} lacks {word:?}"));
    };
    refused(
        &[&matrix(scheme, 64, 48, 2)],
        &["tensor w", "of 48 columns", "64 x 32", "; write all rows of the layout once"],
    );
    refused(&[&matrix(scheme, 80, 32, 2)], &["rows 0 to 80"]);
    refused(&[&matrix(scheme, 16, 32, 2)], &["whole groups of 32 rows"]);
    let other = matrix(scheme.with_scales(CastScales::Ue8m0), 64, 32, 2);
    refused(&[&other], &["cast to e4m3 32x32 ue8m0", "; quantize it as the layout says"]);
    for bad in [f32::NAN, f32::INFINITY, -0.5] {
        let bad = HostCastMatrix::from_logical(scheme, 64, 32, q.codes().to_vec(), vec![1.0, bad]).unwrap();
        refused(&[&bad], &["scale (1, 0) is", "quantize finite values"]);
    }
    refused(&[], &["got 0 rows where the layout says 64"]);
    writer.write_cast("w", &q).unwrap();
    let unknown = writer.cast("v").unwrap_err().to_string();
    assert!(unknown.contains("is no cast of the layout; add it by CheckpointLayout::cast"), "{unknown}");
    writer.finish().unwrap();
    // What no cast has is refused before a file is begun.
    for (rows, cols) in [(64, 20), (usize::MAX, 16), (1 << 40, 1 << 40)] {
        let mut layout = CheckpointLayout::new();
        layout.cast("w", rows, cols, written(scheme.with_scales(CastScales::ColumnMajor)));
        let error = layout.create(folder.file("x.safetensors"), &[]).unwrap_err().to_string();
        // (It was said to be beside other tensors, of which there are none, and to be renamed.)
        let words = if cols == 20 {
            "tensor w: columns of a cast: 20 must be a multiple of 16; pad them"
        } else {
            "cast it in parts"
        };
        assert!(error.contains(words), "{rows} x {cols}: {error}");
    }
}

#[test]
fn hostile_casts_are_refused() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    for scheme in CastScheme::all() {
        let (rows, cols) = (48, 272);
        write(&path, &matrix(scheme, rows, cols, 3));
        let bytes = std::fs::read(&path).unwrap();
        let good = SafeTensors::deserialize(&bytes).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let entry: Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["scaled_gemm.w"]).unwrap();
        let tensor = |name: &str| {
            let view = good.tensor(name).unwrap();
            (view.dtype(), view.shape().to_vec(), view.data().to_vec())
        };
        let (codes, scales) = (tensor("w"), tensor("w_scale"));
        let refused = |codes: &(Dtype, Vec<usize>, Vec<u8>),
                       scales: Option<&(Dtype, Vec<usize>, Vec<u8>)>,
                       entry: &Value,
                       word: &str| {
            let (dtype, shape, data) = codes.clone();
            let mut tensors = vec![("w", dtype, shape, data)];
            tensors.extend(scales.cloned().map(|(dtype, shape, data)| ("w_scale", dtype, shape, data)));
            let text = entry.as_str().map_or_else(|| entry.to_string(), str::to_string);
            foreign(&path, &tensors, Some(HashMap::from([("scaled_gemm.w".to_string(), text)])));
            let file = Checkpoint::open(&path).unwrap();
            let error = file.cast_matrix("w").unwrap_err().to_string();
            assert!(error.contains("tensor w") && error.contains(word), "{scheme}: {error:?} lacks {word:?}");
            assert!(file.quant_matrix("w").is_err() && file.scheme("w").is_err(), "{scheme}");
        };
        let with = |key: &str, value: Value| {
            let mut entry = entry.clone();
            entry[key] = value;
            entry
        };
        for (key, value) in [
            ("group", json!("3x7")),
            ("group", json!(7)),
            ("format", json!("e5m2")),
            ("scales", json!("diagonal")),
            ("transposed", json!("yes")),
        ] {
            refused(&codes, Some(&scales), &with(key, value), "its recipe in the metadata");
        }
        if !scheme.group().is_per_channel() {
            refused(&codes, Some(&scales), &with("transposed", json!(true)), "only groups along columns");
        }
        refused(&codes, None, &entry, "has no scale w_scale");
        // Another shape of as many bytes, and another type.
        let (dtype, shape, data) = scales.clone();
        let flat = (dtype, vec![1, 1, shape.iter().product()], data.clone());
        refused(&codes, Some(&flat), &entry, "but must be");
        refused(&codes, Some(&(Dtype::U8, vec![data.len()], data.clone())), &entry, "but must be");
        let turned = (codes.0, vec![codes.1[1], codes.1[0]], codes.2.clone());
        // Padded, a few scales have the shape of others.
        if scheme.scales() == CastScales::RowMajor {
            refused(&turned, Some(&scales), &entry, "tensor w");
        }
        refused(&(codes.0, vec![1, codes.1[0], codes.1[1]], codes.2.clone()), Some(&scales), &entry, "two dimensions");
        // Scales that no cast writes.
        let bad: Vec<Vec<u8>> = match scheme.scales() {
            CastScales::Ue8m0 => vec![vec![0xFF]],
            _ => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.25].map(|v| v.to_le_bytes().to_vec()).to_vec(),
        };
        for bad in bad {
            let mut data = data.clone();
            data[..bad.len()].copy_from_slice(&bad);
            refused(&codes, Some(&(dtype, shape.clone(), data)), &entry, "as scale (0, 0)");
        }
    }
    // An entry of bytes that are no cast: nothing is assumed, and whoever asks for values has them. (What is quantized was passed over.)
    let plain = [("w", Dtype::F32, vec![16, 16], vec![0; 1024]), ("w_scale", Dtype::F32, vec![16, 1], vec![0; 64])];
    let entry =
        json!({"scheme": "cast", "format": "e4m3", "group": "1x16", "scales": "row-major", "transposed": false});
    foreign(&path, &plain, Some(HashMap::from([("scaled_gemm.w".to_string(), entry.to_string())])));
    let file = Checkpoint::open(&path).unwrap();
    assert!(file.quantized() == ["w"] && file.matrix("w").is_ok());
    assert!(file.cast_matrix("w").unwrap_err().to_string().contains("is F32 [16, 16], but must be F8_E4M3"));
}

/// (What a copy without metadata lost was said of no cast.)
#[test]
fn casts_without_their_metadata_are_known_by_their_tensors() {
    let folder = Folder::new();
    let [path, bare] = ["w.safetensors", "bare.safetensors"].map(|name| folder.file(name));
    for scheme in CastScheme::all() {
        write(&path, &matrix(scheme, 48, 272, 3));
        let file = Checkpoint::open(&path).unwrap();
        assert!(file.lost_casts().is_empty(), "{scheme}");
        let tensor = |name: &'static str| {
            let info = file.info(name).unwrap();
            (name, info.dtype, info.shape.clone(), file.bytes(name).unwrap())
        };
        foreign(&bare, &[tensor("w"), tensor("w_scale")], None);
        let file = Checkpoint::open(&bare).unwrap();
        let lost: &[&str] = if scheme.format() == CodeFormat::E2M1 { &["w"] } else { &[] };
        assert_eq!(file.lost_casts(), lost, "{scheme}");
        // With a byte a code some are what products read.
        if let Err(error) = file.scheme("w") {
            assert!(error.to_string().contains("the metadata entry scaled_gemm.w, which a cast"), "{scheme}: {error}");
        }
        // Scales of another type, or codes of three dimensions.
        let (name, _, shape, data) = tensor("w");
        let other = ("w_scale", Dtype::BOOL, vec![16], vec![0; 16]);
        foreign(&bare, &[tensor("w"), other], None);
        assert!(Checkpoint::open(&bare).unwrap().lost_casts().is_empty(), "{scheme}");
        foreign(&bare, &[(name, Dtype::U8, vec![1, shape[0], shape[1]], data), tensor("w_scale")], None);
        assert!(Checkpoint::open(&bare).unwrap().lost_casts().is_empty(), "{scheme}");
    }
    for shape in [[0, 16], [16, 0], [1, 8], [1 << 20, 0]] {
        let codes = ("w", Dtype::U8, shape.to_vec(), vec![0; shape[0] * shape[1]]);
        foreign(&bare, &[codes, ("w_scale", Dtype::F32, vec![1, 1], vec![0; 4])], None);
        let lost = if shape == [1, 8] { vec!["w"] } else { vec![] };
        assert_eq!(Checkpoint::open(&bare).unwrap().lost_casts(), lost, "{shape:?}");
    }
}

/// (The file was blamed, as if its rows were to be padded.)
#[test]
fn rows_of_transposed_codes_are_read_by_sixteens() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Group32x1).unwrap().transposed().unwrap();
    write(&path, &matrix(scheme, 64, 32, 1));
    let file = Checkpoint::open(&path).unwrap();
    for rows in [0..17, 0..1, 32..63] {
        let words = format!(
            "tensor w: has transposed codes, of which rows {} to {} were asked for; read a multiple of 16 rows, as its 64 are",
            rows.start, rows.end
        );
        let error = file.cast_rows("w", rows).unwrap_err().to_string();
        assert!(error.contains(&words), "{error}");
    }
    assert_eq!(file.cast_rows("w", 32..48).unwrap().rows(), 16);
}

/// (It was written, and its reader refused it.)
#[test]
fn casts_without_an_element_are_refused_before_they_are_written() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Tile32x32).unwrap();
    for [rows, cols] in [[0, 32], [32, 0], [0, 0]] {
        let mut layout = CheckpointLayout::new();
        layout.cast("w", rows, cols, written(scheme));
        let error = layout.create(&path, &[]).unwrap_err().to_string();
        let words = format!("tensor w: would be a cast of {rows} x {cols}, which holds nothing");
        assert!(error.contains(&words) && error.contains("; leave it out"), "{error}");
        assert!(!path.exists());
    }
}

/// (What was refused counted as written, and at the end as not written.)
#[test]
fn after_a_refusal_the_right_matrix_is_written() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Tile32x32).unwrap();
    let other = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x32).unwrap();
    let recipe = Recipe::from(Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3));
    let quantized = |rows| quantize(Noise::new(2).matrix(rows, 32, DType::Bf16).view(), DType::Bf16, recipe).unwrap();
    let (right, whole) = (matrix(scheme, 64, 32, 1), quantized(64));
    let mut layout = CheckpointLayout::new();
    layout.cast("w", 64, 32, written(scheme));
    layout.quantized("q", 64, 32, WrittenRecipe { recipe, source: DType::Bf16 });
    let writer = layout.create(&path, &[]).unwrap();
    for wrong in
        [matrix(scheme, 32, 32, 1), matrix(scheme, 96, 32, 1), matrix(scheme, 64, 64, 1), matrix(other, 64, 32, 1)]
    {
        let error = writer.write_cast("w", &wrong).unwrap_err().to_string();
        assert!(error.contains("tensor w: ") && error.contains("the layout says"), "{error}");
    }
    writer.write_cast("w", &right).unwrap();
    for rows in [48, 80] {
        let error = writer.write_quantized("q", &quantized(rows)).unwrap_err().to_string();
        assert!(error.contains("tensor q: ") && error.contains("the layout says 64"), "{error}");
    }
    let infinite = Array2::from_elem((64, 32), f32::INFINITY);
    let infinite = quantize(infinite.view(), DType::Bf16, recipe).unwrap();
    let error = writer.write_quantized("q", &infinite).unwrap_err().to_string();
    assert!(error.contains("tensor q: scale 0 is "), "{error}");
    writer.write_quantized("q", &whole).unwrap();
    // Whole is whole, whatever is tried again.
    let error = writer.write_cast("w", &right).unwrap_err().to_string();
    assert!(error.contains("tensor w: was written before; write each tensor of the layout once"), "{error}");
    writer.finish().unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().cast_matrix("w").unwrap(), right);
}

/// (ComfyUI's mark of a layer counted as written, and the right matrix was refused.)
#[test]
fn after_a_refusal_of_its_first_rows_a_matrix_is_written_in_every_dialect() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    for dialect in [Dialect::Plain, Dialect::CompressedTensors, Dialect::ComfyUi] {
        for recipe in
            [Recipe::new(Scheme::Nvfp4), Recipe::from(Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3))]
        {
            let of = |x: Array2<f32>| quantize(x.view(), DType::F32, recipe).unwrap();
            let (infinite, right) = (of(Array2::from_elem((128, 64), f32::INFINITY)), of(Array2::ones((128, 64))));
            let mut layout = CheckpointLayout::of_dialect(dialect);
            layout.quantized("w.weight", 128, 64, WrittenRecipe { recipe, source: DType::F32 });
            let writer = layout.create(&path, &[]).unwrap();
            let error = writer.write_quantized("w.weight", &infinite).unwrap_err().to_string();
            assert!(error.contains("tensor w.weight: scale 0 is "), "{error}");
            let error = writer.matrix("w.weight").unwrap().append(&infinite).unwrap_err().to_string();
            assert!(error.contains("tensor w.weight: scale 0 is "), "{error}");
            writer.write_quantized("w.weight", &right).unwrap();
            writer.finish().unwrap();
            assert!(Checkpoint::open(&path).unwrap().quant_matrix("w.weight").is_ok(), "{dialect} {recipe}");
        }
    }
}

/// Whatever the padding of scales holds: nobody reads it, and what is read is whole. (docs/casts.md says so.)
#[test]
fn padding_of_scales_is_not_read() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128).unwrap().with_scales(CastScales::Ue8m0);
    let q = matrix(scheme, 18, 144, 1);
    write(&path, &q);
    let mut bytes = std::fs::read(&path).unwrap();
    let (at, _) = SafeTensors::read_metadata(&bytes).unwrap();
    let start = {
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let data = file.tensor("w_scale").unwrap().data();
        data.as_ptr() as usize - bytes.as_ptr() as usize
    };
    assert!(start >= 8 + at);
    // Two columns of four, and two rows of twenty: all else is padding.
    for (place, byte) in bytes[start..][..20 * 4].iter_mut().enumerate() {
        if place / 4 >= 18 || place % 4 >= 2 {
            *byte = 0xFF;
        }
    }
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().cast_matrix("w").unwrap(), q);
}

/// By rows there is no way back: each error says so.
#[test]
fn what_was_begun_and_left_asks_for_a_new_writer() {
    let folder = Folder::new();
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Tile32x32).unwrap();
    let mut layout = CheckpointLayout::new();
    layout.cast("w", 64, 32, written(scheme));
    let writer = layout.create(folder.file("w.safetensors"), &[]).unwrap();
    let mut rows = writer.cast("w").unwrap();
    rows.append(&matrix(scheme, 32, 32, 1)).unwrap();
    let error = rows.finish().unwrap_err().to_string();
    assert!(error.contains("tensor w: got 32 rows where the layout says 64"), "{error}");
    let again = writer.write_cast("w", &matrix(scheme, 64, 32, 1)).unwrap_err().to_string();
    let end = writer.finish().unwrap_err().to_string();
    for (error, found) in [(again, "was begun before, and is not whole"), (end, "was begun, and is not whole")] {
        assert!(error.contains(found) && error.contains("begin a new CheckpointWriter"), "{error}");
    }
    assert!(folder.names().is_empty());
}

#[test]
fn the_name_of_the_metadata_is_reserved() {
    let folder = Folder::new();
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Tile32x32).unwrap();
    let mut layout = CheckpointLayout::new();
    layout.cast("__metadata__", 64, 32, written(scheme));
    let error = layout.create(folder.file("w.safetensors"), &[]).unwrap_err().to_string();
    let words = "tensor __metadata__: has the name that safetensors keeps for its metadata; rename it";
    assert!(error.contains(words), "{error}");
}

/// What is the scale of two matrices by its name, and read for one of them, goes with no entry of the other; and whatever an entry's dialect makes of
/// extents that no matrix has.
#[test]
fn a_scale_that_another_matrix_is_read_by_was_not_left() {
    let folder = Folder::new();
    let path = folder.file("w.safetensors");
    let recipe = Recipe::from(Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3));
    let entry = |dialect| {
        let mut layout = CheckpointLayout::of_dialect(dialect);
        layout.quantized("w", 128, 64, WrittenRecipe { recipe, source: DType::Bf16 });
        let writer = layout.create(folder.file("q.safetensors"), &[]).unwrap();
        let q = quantize(Array2::ones((128, 64)).view(), DType::Bf16, recipe).unwrap();
        writer.write_quantized("w", &q).unwrap();
        writer.finish().unwrap();
        Checkpoint::open(folder.file("q.safetensors")).unwrap().metadata()["scaled_gemm.w"].clone()
    };
    let plain = ("x.weight_global", Dtype::BF16, vec![32, 64], vec![0; 2 * 32 * 64]);
    let divisor = ("x.weight_global_scale", Dtype::F32, vec![1], 1f32.to_le_bytes().to_vec());
    let codes = ("x.weight_packed", Dtype::U8, vec![32, 32], vec![0x11; 32 * 32]);
    let scale = ("x.weight_scale", Dtype::F8_E4M3, vec![32, 4], vec![0x38; 32 * 4]);
    let entries = HashMap::from([("scaled_gemm.x.weight_global".to_string(), entry(Dialect::Plain))]);
    for is_read in [false, true] {
        let mut tensors = vec![plain.clone(), divisor.clone()];
        if is_read {
            tensors.extend([codes.clone(), scale.clone()]);
        }
        foreign(&path, &tensors, Some(entries.clone()));
        let file = Checkpoint::open(&path).unwrap();
        assert!(file.is_left("x.weight_global"));
        assert_eq!(file.is_left_scale(file.get("x.weight_global_scale").unwrap()), !is_read);
        assert_eq!(file.quant_matrix("x.weight").is_ok(), is_read);
    }
    for shape in [vec![usize::MAX, 0], vec![0, usize::MAX]] {
        for scheme in Scheme::ALL {
            let mut json: Value = serde_json::from_str(&entry(Dialect::Plain)).unwrap();
            json["scheme"] = scheme.spec().name.into();
            json["format"] = scheme.spec().format.name().into();
            json["basis"] = "plain".into();
            json["nibble_order"] = "low-first".into();
            for dialect in Dialect::ALL {
                json["dialect"] = dialect.name().into();
                let entries = HashMap::from([("scaled_gemm.x".to_string(), json.to_string())]);
                let scale = |name: &'static str| (name, Dtype::F32, vec![1], vec![0; 4]);
                let of = [("x", Dtype::BF16, shape.clone(), vec![]), scale("x_scale"), scale("x_scale_2")];
                foreign(&path, &of, Some(entries));
                let file = Checkpoint::open(&path).unwrap();
                file.tensors().iter().for_each(|tensor| assert!(!file.is_left_scale(tensor)));
                assert!(file.said_scheme("x").is_some());
            }
        }
    }
}
