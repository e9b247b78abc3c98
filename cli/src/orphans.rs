//! Scales of quantized weights beside weights that are plain, or that are read without them.

use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo};

use crate::folder::some;
use crate::output::{Pronouns, count, shown};
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

/// What becomes of such tensors.
#[derive(Clone, Copy)]
pub enum Fate {
    Copied,
    /// They are there, and nothing is written.
    There,
}

/// What there is to say of tensors with the name of a scale which that matrix has not; nothing where there are none.
pub fn of_others_in_words<'a>(
    input: &Checkpoint,
    found: impl Iterator<Item = (&'a str, &'a str)>,
    fate: Fate,
) -> Option<String> {
    let names = named_so(found);
    let Pronouns { it, its, as_it_is } = Pronouns::of(names.len());
    let copied = match fate {
        Fate::Copied => format!(", copied {as_it_is}"),
        Fate::There => String::new(),
    };
    Some(format!(
        "{}: {} ({}) with the name of a scale that {its} matrix has not as it is written{copied}: no reader takes {it} for it, and engines that \
         refuse what they do not know do not load the model; take {it} out of the input",
        shown(input.path()),
        count(names.len(), "tensor", "tensors"),
        some(names.iter().copied())?
    ))
}

/// What there is to say of them where their matrices become plain, and they are copied.
pub fn of_others_that_stay(input: &Checkpoint) -> Option<String> {
    let names = named_so(input.scales_of_others().into_iter());
    let Pronouns { it, as_it_is, .. } = Pronouns::of(names.len());
    Some(format!(
        "{}: {} that matrices are read without, copied {as_it_is} beside weights that are plain now: engines that go by names take the weights for \
         codes; take {it} out of the input",
        shown(input.path()),
        in_words(&names)?
    ))
}

/// Those of these that are more than names which look alike.
fn named_so<'a>(found: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<&'a str> {
    // Only of layers' weights is the divisor's: it belongs to codes of another name.
    let is_named =
        |name: &str, matrix: &str| matrix.ends_with("weight") || name.strip_suffix("_global_scale") != Some(matrix);
    found.filter(|(name, matrix)| is_named(name, matrix)).map(|(name, _)| name).collect()
}
