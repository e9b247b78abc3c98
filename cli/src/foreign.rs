//! Layers that are quantized in formats that are not read here.

use std::collections::HashSet;

use scaled_gemm::checkpoint::{Checkpoint, Dtype};

use crate::folder::some;
use crate::output::{Failure, count, shown};
use crate::unread;

/// What helps with such codes: `dequantize` does not read them.
pub const REMEDY: &str = "dequantize it with what wrote it";

/// Layers of which some tensors hold codes that are not read here.
pub struct ForeignLayers<'a>(HashSet<&'a str>);

impl<'a> ForeignLayers<'a> {
    pub fn new(input: &'a Checkpoint) -> Self {
        Self(unread::unread_codes(input).into_iter().map(|tensor| layer(&tensor.name)).collect())
    }

    /// True for a tensor of such a layer itself, of whatever type: scales in BF16 look like weights. Layers within it are their own: what has the
    /// name of codes may be a buffer. So is a name without a dot, which is of no layer.
    pub fn has(&self, name: &str) -> bool {
        let layer = layer(name);
        !layer.is_empty() && self.0.contains(layer)
    }
}

/// The layer of a tensor; of `X.weight._data` it is X too.
fn layer(name: &str) -> &str {
    let layer = name.rsplit_once('.').map_or("", |(layer, _)| layer);
    layer.strip_suffix(".weight").unwrap_or(layer)
}

/// Refuses codes in formats that are not read, where there is nothing else to dequantize.
pub fn refuse_codes(input: &Checkpoint) -> Result<(), Failure> {
    // Of what is left of casts there is more to say.
    if !input.lost_casts().is_empty() {
        return Ok(());
    }
    match unread::named(&unread::unread_codes(input)) {
        None => Ok(()),
        Some(codes) => Err(Failure::Use(format!(
            "{}: holds no quantized matrix that is read here, and the codes of {codes} are in a format that is not; {REMEDY}",
            shown(input.path())
        ))),
    }
}

/// True for FP8 codes in more than two dimensions, as of experts in one tensor, whatever their scales are.
pub fn is_stacked(input: &Checkpoint, name: &str) -> bool {
    input.get(name).is_some_and(|t| matches!(t.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2) && t.shape.len() > 2)
}

/// What there is to say of such tensors, in a line for all.
pub fn stacked_in_words(names: &[&str]) -> Option<String> {
    Some(format!(
        "{} ({}) with FP8 codes in more than two dimensions (experts in one tensor, convolutions), which are not read here; {REMEDY}, or quantize the plain model",
        count(names.len(), "tensor", "tensors"),
        some(names.iter().copied())?
    ))
}
