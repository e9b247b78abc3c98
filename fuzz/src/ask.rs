//! Everything that the library can be asked of a checkpoint, whatever is in it.

use std::path::Path;

use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, NibbleOrder, OutputFolder, printable};
use scaled_gemm::model_folder::{fused_groups, left_alone};
use scaled_gemm::{DType, reference};

/// What `info`, `dequantize` and readers of rows ask. Refusals are answers; texts for terminals have no control characters.
pub fn everything(file: &Checkpoint, architecture: &str) {
    let said = |error: scaled_gemm::Error| {
        let text = error.to_string();
        assert!(!text.chars().any(|c| c.is_control()), "{text:?}");
    };
    let quantized = file.quantized();
    for name in &quantized {
        assert!(file.get(name).is_some() || file.tensors().iter().any(|t| t.name.starts_with(name)), "{name:?}");
    }
    let missing = ["missing", "", "w"];
    for name in file.tensors().iter().map(|t| t.name.as_str()).chain(quantized.iter().copied()).chain(missing) {
        let _ = (file.get(name).is_some(), file.is_scale(name), file.is_mark(name), left_alone(name), printable(name));
        file.bytes(name).map(drop).unwrap_or_else(said);
        file.values(name).map(drop).unwrap_or_else(said);
        file.matrix(name).map(drop).unwrap_or_else(said);
        file.scheme(name).map(drop).unwrap_or_else(said);
        file.recipe(name).map(drop).unwrap_or_else(said);
        file.cast_recipe(name).map(drop).unwrap_or_else(said);
        file.tensors_of(name).map(drop).unwrap_or_else(said);
        file.scale_name(name).map(drop).unwrap_or_else(said);
        file.quant_dimensions(name).map(drop).unwrap_or_else(said);
        for rows in [0..0, 0..1, 1..2, 0..usize::MAX, usize::MAX - 1..usize::MAX] {
            file.matrix_rows(name, rows.clone()).map(drop).unwrap_or_else(said);
            file.quant_rows(name, rows.clone()).map(drop).unwrap_or_else(said);
            file.cast_rows(name, rows).map(drop).unwrap_or_else(said);
        }
        let shape = file.quant_shape(name);
        match file.quant_info(name) {
            Ok((scheme, dimensions, tensors)) => {
                assert_eq!(file.stored_scheme(name).ok(), Some(scheme));
                assert_eq!(file.scheme(name).ok(), scheme.product());
                assert_eq!(file.quant_dimensions(name).ok(), Some(dimensions));
                assert_eq!(tensors.len(), file.tensors_of(name).unwrap().len());
            }
            Err(error) => said(error),
        }
        match file.cast_matrix(name) {
            Ok(matrix) => {
                assert_eq!(shape.as_ref().ok(), Some(&(matrix.rows(), matrix.cols())));
                assert!(matrix.scales().iter().all(|scale| scale.is_finite() && *scale >= 0.0), "no scale of a cast");
                let values = reference::cast_back(&matrix, DType::F32);
                assert_eq!(values.dim(), (matrix.rows(), matrix.cols()));
            }
            Err(error) => said(error),
        }
        match file.quant_matrix(name) {
            Ok(matrix) => {
                assert_eq!(shape.ok(), Some((matrix.rows(), matrix.cols())));
                assert!(matrix.scales().iter().all(|scale| scale.is_finite()), "a scale that is not finite");
                let values = reference::dequantize(&matrix, DType::F32);
                assert_eq!(values.dim(), (matrix.rows(), matrix.cols()));
                // The first rows of a matrix have the scales of the whole.
                let rows = matrix.rows().min(128);
                let first = file.quant_rows(name, 0..rows).unwrap();
                let of_part = reference::dequantize(&first, DType::F32);
                let same = of_part.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{name:?}: rows differ from those of the whole");
            }
            Err(error) => said(error),
        }
    }
    let modules: Vec<&str> = quantized.iter().map(|name| name.strip_suffix(".weight").unwrap_or(name)).collect();
    for group in fused_groups(&modules, architecture, |module| module.get(1..).map(String::from)) {
        assert!(group.len() > 1 && group.is_sorted() && group.iter().all(|at| *at < modules.len()));
    }
}

/// The same with the nibbles said to be swapped.
pub fn swapped(file: Checkpoint) {
    let file = file.with_nibble_order(NibbleOrder::HighFirst);
    for name in file.quantized() {
        let _ = file.quant_matrix(name);
    }
}

/// All tensors written to a new folder and read again: the same, or refused before anything is seen under its name.
pub fn copied(file: &Checkpoint, out: &Path, shard_bytes: u64) {
    let mut layout = CheckpointLayout::new();
    for (key, value) in file.metadata() {
        layout.metadata(key, value);
    }
    for tensor in file.tensors() {
        layout.tensor(&tensor.name, tensor.dtype, &tensor.shape);
    }
    let Ok(folder) = OutputFolder::create(out) else { panic!("{out:?} cannot be made") };
    let Ok(writer) = layout.create_folder(folder, shard_bytes, &[file]) else {
        return assert!(!out.exists());
    };
    for tensor in file.tensors() {
        writer.write(&tensor.name, &file.bytes(&tensor.name).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    let again = Checkpoint::open(out).unwrap();
    assert_eq!(again.tensors().len(), file.tensors().len());
    for tensor in file.tensors() {
        let other = again.get(&tensor.name).unwrap();
        assert_eq!((other.dtype, &other.shape), (tensor.dtype, &tensor.shape));
        assert_eq!(again.bytes(&tensor.name).unwrap(), file.bytes(&tensor.name).unwrap(), "{:?}", tensor.name);
    }
}
