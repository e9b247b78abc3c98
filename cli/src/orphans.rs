//! Scales of quantized weights beside weights that are plain.

use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo};

use crate::folder::some;
use crate::output::count;

/// How the names of scales end, of which the codes are `weight`.
const SCALES: [&str; 4] = ["_scale", "_scale_inv", "_scale_2", "_global_scale"];

/// Their names, in the order of the files.
pub fn beside_plain(input: &Checkpoint) -> Vec<&str> {
    let is_plain = |name: &str| {
        let tensor = input.get(name).filter(|tensor| tensor.shape.len() > 1);
        tensor.is_some_and(|tensor| matches!(tensor.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64))
    };
    let is_beside = |tensor: &&TensorInfo| {
        // `_global_scale` ends in `_scale`, too.
        let mut weights = SCALES.iter().filter_map(|end| tensor.name.strip_suffix(end));
        weights
            .any(|name| name.ends_with(".weight") && is_plain(name) && input.get(&format!("{name}_packed")).is_none())
    };
    input.tensors().iter().filter(is_beside).map(|tensor| tensor.name.as_str()).collect()
}

/// `3 scales (a, b, c)`; nothing where there are none.
pub fn in_words(input: &Checkpoint) -> Option<String> {
    let names = beside_plain(input);
    Some(format!("{} ({})", count(names.len(), "scale", "scales"), some(names.iter().copied())?))
}
