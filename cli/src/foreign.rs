//! Layers that are quantized in formats that are not read here.

use std::collections::HashSet;

use scaled_gemm::checkpoint::{Checkpoint, Dtype, scaled_by_name};
use scaled_gemm::model_folder::ModelConfig;

use crate::folder::some;
use crate::orphans;
use crate::output::{Failure, Pronouns, count, of_number, shown};
use crate::unread::{self, Unread};

/// What helps with such codes: `dequantize` does not read them.
pub const REMEDY: &str = "dequantize it with what wrote it";

/// Parts of the names of modules that hold what the codes of the layer around them stand for, and nothing else: VPTQ's `centroids`,
/// `res_centroids` and `outlier_centroids`, each an embedding with a `weight` (microsoft/VPTQ, vptq/layers/vqlinear.py), and QuIP#'s
/// `codebook_class.codebook`, where a file has it. AQLM's `codebooks` and the scales of HQQ and EXL3 are tensors of the layer itself.
const CODEBOOKS: [&str; 2] = ["centroids", "codebook"];

/// Modules of HQQ with what the scales and zeros of a layer are quantized by, where they are codes themselves.
const NESTED: [&str; 3] = ["meta", "meta_scale", "meta_zero"];

/// How the names of what belongs to codes end, after a dot or an underscore: scales, what is subtracted or added, and codebooks.
const BESIDE: [&str; 11] =
    ["scale", "scales", "biases", "zero", "zeros", "point", "shift", "absmax", "codebook", "codebooks", "centroids"];

/// Layers of which some tensors hold codes that are not read here.
pub struct ForeignLayers<'a> {
    layers: HashSet<&'a str>,
    /// Those of them of which all such tensors are left of casts, as [`Unread`] has it.
    of_casts: HashSet<&'a str>,
    casts: HashSet<&'a str>,
    /// Matrices of which the metadata have a recipe, and that have no codes.
    gone: HashSet<&'a str>,
}

impl<'a> ForeignLayers<'a> {
    pub fn new(input: &'a Checkpoint, config: Option<&ModelConfig>) -> Self {
        let casts: HashSet<&str> = Unread::find(input, config, &HashSet::new()).lost.into_iter().collect();
        let (of_casts, others): (Vec<_>, Vec<_>) = unread::unread_codes(input)
            .into_iter()
            .map(|tensor| tensor.name.as_str())
            .partition(|name| casts.contains(unread::without_scale(name)));
        let others: HashSet<&str> = others.into_iter().map(layer).collect();
        let of_casts: HashSet<&str> = of_casts.into_iter().map(layer).filter(|layer| !others.contains(layer)).collect();
        Self {
            layers: others.union(&of_casts).copied().collect(),
            of_casts,
            casts,
            gone: input.said_of_nothing().collect(),
        }
    }

    /// True for what has the name of a scale of a matrix whose codes are gone.
    pub fn is_scale_alone(&self, name: &str) -> bool {
        !self.gone.is_empty() && scaled_by_name(name).any(|matrix| self.gone.contains(&*matrix))
    }

    /// True for what may be left of a cast, and for what is in a layer that has no other codes.
    pub fn is_lost(&self, name: &str) -> bool {
        self.casts.contains(unread::without_scale(name)) || (self.has(name) && self.of_casts.contains(layer(name)))
    }

    /// True for a tensor of such a layer itself, of whatever type: scales in BF16 look like weights. Layers within it are their own, but for its
    /// codebooks: what has the name of codes may be a buffer. So are names of no layer, of which those alone that codes have beside them are theirs.
    pub fn has(&self, name: &str) -> bool {
        match layer(name) {
            "" => self.layers.contains("") && name.rsplit(['.', '_']).next().is_some_and(|end| BESIDE.contains(&end)),
            layer => self.layers.contains(layer) || codebook_of(layer).is_some_and(|layer| self.layers.contains(layer)),
        }
    }
}

/// The layer of a tensor; of `X.weight._data`, and of `X.weight._data._data` where quanto has two codes in a byte, it is X too.
fn layer(name: &str) -> &str {
    let layer = name.rsplit_once('.').map_or("", |(layer, _)| layer).trim_end_matches("._data");
    match layer {
        "weight" => "",
        _ => layer.strip_suffix(".weight").unwrap_or(layer),
    }
}

/// The layer around a module of codebooks, or of what its scales and zeros are quantized by.
fn codebook_of(mut module: &str) -> Option<&str> {
    let is_codebook = |name: &str| CODEBOOKS.iter().any(|part| name.contains(part)) || NESTED.contains(&name);
    let mut found = None;
    while let (around, last) = module.rsplit_once('.').unwrap_or(("", module))
        && is_codebook(last)
    {
        (module, found) = (around, Some(around));
    }
    found
}

/// Refuses codes in formats that are not read, where there is nothing else to dequantize.
pub fn refuse_codes(input: &Checkpoint) -> Result<(), Failure> {
    // Of what is left of casts there is more to say.
    if !input.lost_casts().is_empty() {
        return Ok(());
    }
    let codes = unread::unread_codes(input);
    let Pronouns { it, .. } = Pronouns::of(codes.len());
    match unread::named(&codes) {
        None => Ok(()),
        Some(codes) => Err(Failure::Use(format!(
            "{}: holds no quantized matrix that is read here, and the codes of {codes} are in a format that is not; dequantize {it} with what \
             wrote {it}",
            shown(input.path())
        ))),
    }
}

/// What there is to say of such codes where no config says that the model is quantized, and of how many tensors it is: what is made
/// of it has them still. Not of those that `remains`, that are `lost` ([`Unread`]), that have a plain weight beside them, or that are scales of one, of which more is said.
pub fn not_read(input: &Checkpoint, lost: &[&str], remains: &HashSet<&str>) -> Option<(String, usize)> {
    let scales =
        orphans::beside_plain(input).into_iter().chain(input.scales_of_others().into_iter().map(|(name, _)| name));
    let said: HashSet<&str> = both(input).into_iter().map(|(_, codes)| codes).chain(scales).collect();
    let is_said = |name: &str| remains.contains(name) || said.contains(name) || lost.contains(&name);
    let mut codes = unread::unread_codes(input);
    codes.retain(|tensor| !is_said(&tensor.name) && !lost.contains(&unread::without_scale(&tensor.name)));
    let [hold, them] = [("holds", "hold"), ("it", "them")].map(|(one, many)| of_number(codes.len(), one, many));
    let text = format!(
        "{}: {} {hold} codes in a format that is not read here; dequantize {them} with what wrote {them}",
        shown(input.path()),
        unread::named(&codes)?
    );
    Some((text, codes.len()))
}

/// Plain weights that have such codes beside them, each with these.
fn both(input: &Checkpoint) -> Vec<(String, &str)> {
    let weight = |codes: &str| match codes.strip_suffix("_packed") {
        Some(weight) => Some(weight.to_string()),
        None => codes.strip_suffix("qweight").map(|layer| [layer, "weight"].concat()),
    };
    let is_plain = |name: &String| {
        input.get(name).is_some_and(|tensor| matches!(tensor.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64))
    };
    let codes = unread::unread_codes(input).into_iter();
    codes.filter_map(|codes| Some((weight(&codes.name).filter(is_plain)?, codes.name.as_str()))).collect()
}

/// What there is to say of such weights: of which of the two a layer is made nobody knows. With how many they are.
pub fn plain_too(input: &Checkpoint) -> Option<(String, usize)> {
    let both: Vec<String> = both(input).into_iter().map(|(plain, codes)| format!("{plain} beside {codes}")).collect();
    let text = format!(
        "{}: {} plain and in codes that are not read here ({}): engines take one of the two, and not all the same; keep one",
        shown(input.path()),
        count(both.len(), "weight is", "weights are"),
        some(both.iter().map(String::as_str))?
    );
    Some((text, both.len()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_their_layers() {
        for (name, of) in [
            ("a.b.weight", "a.b"),
            ("a.b.weight._data", "a.b"),
            ("a.b.weight._data._data", "a.b"),
            ("a.b.weight.absmax", "a.b"),
            ("weight", ""),
            ("weight._data._data", ""),
            ("weight.absmax", ""),
            (".weight", ""),
            ("a.weighted._scale", "a.weighted"),
        ] {
            assert_eq!(layer(name), of, "{name}");
        }
        for (module, of) in [
            ("a.centroids", Some("a")),
            ("a.res_centroids", Some("a")),
            ("a.codebook_class.codebook", Some("a")),
            ("centroids", Some("")),
            ("a.codebook.b", None),
            ("a", None),
            ("", None),
        ] {
            assert_eq!(codebook_of(module), of, "{module}");
        }
    }
}
