//! Scales of quantized weights beside weights that are plain.

use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo};

use crate::folder::some;
use crate::output::count;
use crate::remains;

/// Their names, in the order of the files.
pub fn beside_plain(input: &Checkpoint) -> Vec<&str> {
    let is_plain = |name: &str| {
        let tensor = input.get(name).filter(|tensor| tensor.shape.len() > 1);
        tensor.is_some_and(|tensor| matches!(tensor.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64))
    };
    let is_beside = |tensor: &&TensorInfo| {
        remains::of_scale(&tensor.name).is_some_and(|module| {
            is_plain(&format!("{module}.weight")) && input.get(&format!("{module}.weight_packed")).is_none()
        })
    };
    input.tensors().iter().filter(is_beside).map(|tensor| tensor.name.as_str()).collect()
}

/// `3 scales (a, b, c)`; nothing where there are none.
pub fn in_words(names: &[&str]) -> Option<String> {
    Some(format!("{} ({})", count(names.len(), "scale", "scales"), some(names.iter().copied())?))
}
