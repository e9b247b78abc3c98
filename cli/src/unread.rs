//! Codes in formats that are not read here, and casts that lost their metadata. They are copied, and what a config says of them is still needed then.

use std::collections::HashSet;
use std::path::Path;

use scaled_gemm::checkpoint::{CODES_ENDINGS, Checkpoint, Dtype, RECIPE_KEY, TensorInfo, scaled_by_name};
use scaled_gemm::model_folder::ModelConfig;

use crate::folder::{module, some};
use crate::output::count;

/// The last part of the name of AWQ's factors of activations.
const PRE_SCALE: &str = "pre_quant_scale";

/// Those of SVDQuant's low-rank part, in the diffusers exports of ModelOpt 0.47.0. Other exports have the names of its buffers:
/// `X.weight_quantizer._svdquant_lora_a`.
const LOW_RANK: [&str; 2] = ["svdquant_lora_a", "svdquant_lora_b"];

/// Tensors that hold codes, by their type, and belong to no matrix that is read.
pub fn unread_codes(input: &Checkpoint) -> Vec<&TensorInfo> {
    let (mut read, mut broken) = (HashSet::new(), HashSet::new());
    for name in input.quantized() {
        match input.tensors_of(name) {
            Ok(tensors) => read.extend(tensors),
            Err(_) => drop(broken.insert(name)),
        }
    }
    // Also of matrices that lack a part: what is there of them is in a format that is read.
    let is_of_broken = |name: &str| {
        let mut codes = CODES_ENDINGS.iter().filter_map(|ending| name.strip_suffix(ending));
        codes.any(|matrix| broken.contains(matrix)) || scaled_by_name(name).any(|matrix| broken.contains(&*matrix))
    };
    let is_code = |tensor: &TensorInfo| match tensor.dtype {
        Dtype::BF16 | Dtype::F16 | Dtype::F32 => is_in_floats(input, tensor),
        Dtype::F64 | Dtype::C64 | Dtype::I64 | Dtype::BOOL => false,
        // Positions and masks are integers too.
        Dtype::U8 | Dtype::I8 | Dtype::U16 | Dtype::I16 | Dtype::U32 | Dtype::I32 | Dtype::U64 => {
            is_name_of_codes(&tensor.name)
        }
        _ => true,
    };
    let is_read = |name: &String| read.contains(name) || is_of_broken(name);
    input.tensors().iter().filter(|t| t.shape.len() > 1 && is_code(t) && !is_read(&t.name)).collect()
}

/// True for codes whose bits lie in floats: of VPTQ (`indices_as_float`, two bytes each) and of HQQ (`view_as_float`). What they stand for is
/// beside them: HQQ's scales and zeros are as many, and none has one for the whole.
fn is_in_floats(input: &Checkpoint, TensorInfo { name, dtype, .. }: &TensorInfo) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_half = matches!(dtype, Dtype::F16 | Dtype::BF16);
    let there = |other: &str| input.get(&format!("{}{other}", &name[..name.len() - last.len()]));
    let is_there = |other: &str| is_half && there(other).is_some();
    // Those that are quantized themselves have names that no plain model has.
    let are_alike = || match (there("scale"), there("zero")) {
        (Some(scale), Some(zero)) => scale.shape == zero.shape && scale.shape.iter().product::<usize>() > 1,
        (scale, zero) => {
            (scale.is_some() || there("scale_q").is_some()) && (zero.is_some() || there("zero_q").is_some())
        }
    };
    match last {
        "indices" => is_there("centroids.weight"),
        "res_indices" => is_there("res_centroids.weight"),
        "outlier_indices" => is_there("outlier_centroids.weight"),
        "W_q" => are_alike(),
        _ => false,
    }
}

/// Names of integers that published formats keep weights in. Losing such a weight's config is worse than to refuse a model: hence
/// also those of layers themselves.
fn is_name_of_codes(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    // GPTQ and AWQ, QuIP, HQQ, AQLM, VPTQ, EXL3, quanto.
    let whole = ["qzeros", "qidxs", "w_q", "codes", "indices", "trellis", "data", "_data", "blocks", "packed"];
    let layers = ["w1", "w2", "w3", "wq", "wk", "wv", "wo"];
    let ends = ["_packed", "_blocks", "_data", "_proj", "_codes", "_indices"];
    last.contains("weight")
        || whole.contains(&last.as_str())
        || layers.contains(&last.as_str())
        || ends.iter().any(|end| last.ends_with(end))
}

/// `3 tensors (a, b, c)`; nothing where there are none.
pub fn named(codes: &[&TensorInfo]) -> Option<String> {
    let first = some(codes.iter().map(|tensor| tensor.name.as_str()))?;
    Some(format!("{} ({first})", count(codes.len(), "tensor", "tensors")))
}

/// Tensors that hold codes and that no matrix has, each as what it is told to be, by every command alike.
pub struct Unread<'a> {
    /// In a model that says that it is quantized, those in formats that are not read here; else none.
    pub codes: Vec<&'a TensorInfo>,
    /// Those that may be what is left of casts ([`Checkpoint::lost_casts`]).
    pub lost: Vec<&'a str>,
    /// Whether they are such most likely.
    pub are_casts: bool,
}

impl<'a> Unread<'a> {
    /// `remains`: tensors of which more is said elsewhere.
    pub fn find(input: &'a Checkpoint, config: Option<&ModelConfig>, remains: &HashSet<&str>) -> Self {
        let mut lost = input.lost_casts();
        let are_casts = are_casts(input, &lost);
        lost.retain(|name| !remains.contains(name));
        let says = input.folder().is_some_and(|folder| says_quantized(folder, config));
        let mut codes = if says { unread_codes(input) } else { Vec::new() };
        codes.retain(|tensor| !remains.contains(tensor.name.as_str()));
        // Codes of a model that says so are its format's, unless something says that they are casts.
        if are_casts {
            let casts: HashSet<&str> = lost.iter().copied().collect();
            // Scales that are packed look like codes, too.
            codes.retain(|TensorInfo { name, .. }| {
                !casts.contains(without_scale(name)) && !casts.contains(name.as_str())
            });
        } else {
            let of_format: HashSet<&str> = codes.iter().map(|tensor| tensor.name.as_str()).collect();
            lost.retain(|name| !of_format.contains(name));
        }
        Self { codes, lost, are_casts }
    }
}

/// The codes whose scale has this name in a cast, or the name itself.
pub fn without_scale(name: &str) -> &str {
    name.strip_suffix("_scale").unwrap_or(name)
}

/// True where tensors that may be what is left of casts are such most likely: the metadata are this program's, or the order of scales is one
/// that no other writes. Integers with a scale for each row, or some columns, have the same shapes.
fn are_casts(input: &Checkpoint, lost: &[&str]) -> bool {
    let is_packed = |name: &&str| input.get(&format!("{name}_scale")).is_some_and(|scale| scale.dtype == Dtype::U8);
    input.metadata().keys().any(|key| key.starts_with(RECIPE_KEY)) || lost.iter().any(is_packed)
}

/// What there is to say of tensors that may be what is left of casts ([`Checkpoint::lost_casts`]), with what is missing and the remedy;
/// nothing where there are none.
pub fn lost_casts(lost: &[&str]) -> Option<String> {
    let first = some(lost.iter().copied())?;
    let (codes, their) = match lost.len() {
        1 => ("the codes of a cast", "its entry"),
        _ => ("the codes of casts", "the entry of each"),
    };
    Some(format!(
        "{} ({first}) may be {codes}, and {their} in the metadata, scaled_gemm.NAME, which a cast is read by, is not in the file: if so, \
         write it with quantize --group again, or copy it with the __metadata__ of its header",
        count(lost.len(), "tensor", "tensors")
    ))
}

/// What a quantized layer has beside its matrix, without which that alone is not its weight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// AWQ of ModelOpt: factors by channel of what enters the layer.
    PreScale,
    /// SVDQuant of ModelOpt: `B A`, which is added to the weight.
    LowRank,
}

impl Beside {
    pub const ALL: [Self; 2] = [Self::PreScale, Self::LowRank];

    /// The layer that a tensor is beside.
    fn layer(self, name: &str) -> Option<&str> {
        let (layer, last) = name.rsplit_once('.')?;
        match self {
            Self::PreScale => (last == PRE_SCALE).then_some(layer),
            Self::LowRank if LOW_RANK.contains(&last) => Some(layer),
            Self::LowRank => {
                let is_buffer = last.strip_prefix('_').is_some_and(|last| LOW_RANK.contains(&last));
                layer.strip_suffix(".weight_quantizer").filter(|_| is_buffer)
            }
        }
    }

    /// Those of some quantized layers: `3 tensors (a, b, c)`; nothing where there are none.
    pub fn of(self, input: &Checkpoint, is_quantized: impl Fn(&str) -> bool) -> Option<String> {
        let is_so = |name: &&str| self.layer(name).is_some_and(&is_quantized);
        let names: Vec<&str> = input.tensors().iter().map(|tensor| tensor.name.as_str()).filter(is_so).collect();
        Some(format!("{} ({})", count(names.len(), "tensor", "tensors"), some(names.iter().copied())?))
    }

    /// Those of all quantized layers of a checkpoint.
    pub fn of_all(self, input: &Checkpoint) -> Option<String> {
        let layers: HashSet<&str> = input.quantized().into_iter().map(module).collect();
        self.of(input, |layer| layers.contains(layer))
    }

    /// Whose they are, and what they do.
    pub fn words(self) -> [&'static str; 2] {
        match self {
            Self::PreScale => ["of AWQ", "multiply what enters a quantized layer"],
            Self::LowRank => ["of SVDQuant", "are a low-rank part that is added to a quantized layer"],
        }
    }
}

/// True if a folder says that its model is quantized.
pub fn says_quantized(folder: &Path, config: Option<&ModelConfig>) -> bool {
    config.is_some_and(|config| config.quantization().is_some()) || folder.join("hf_quant_config.json").exists()
}
