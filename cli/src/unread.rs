//! Codes in formats that are not read here. They are copied, and what a config says of them is still needed then.

use std::collections::HashSet;
use std::path::Path;

use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo};
use scaled_gemm::model_folder::ModelConfig;

use crate::folder::some;
use crate::output::count;

/// Tensors that hold codes, by their type, and belong to no matrix that is read.
pub fn unread_codes(input: &Checkpoint) -> Vec<&TensorInfo> {
    let read: HashSet<String> =
        input.quantized().into_iter().filter_map(|name| input.tensors_of(name).ok()).flatten().collect();
    // Positions and masks are I64 and BOOL.
    let is_plain = |dtype: Dtype| {
        matches!(dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64 | Dtype::C64 | Dtype::I64 | Dtype::BOOL)
    };
    let all = input.tensors().iter();
    all.filter(|t| t.shape.len() > 1 && !is_plain(t.dtype) && !read.contains(&t.name)).collect()
}

/// `3 tensors (a, b, c)`; nothing where there are none.
pub fn named(codes: &[&TensorInfo]) -> Option<String> {
    let first = some(codes.iter().map(|tensor| tensor.name.as_str()))?;
    Some(format!("{} ({first})", count(codes.len(), "tensor", "tensors")))
}

/// True if a folder says that its model is quantized.
pub fn says_quantized(folder: &Path, config: Option<&ModelConfig>) -> bool {
    config.is_some_and(|config| config.quantization().is_some()) || folder.join("hf_quant_config.json").exists()
}
