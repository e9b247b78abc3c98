//! What is left of matrices of which a tensor is missing: scales without codes, and codes without scales.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use scaled_gemm::checkpoint::{Checkpoint, Dtype, SCALE_ENDINGS, TensorInfo, printable};
use scaled_gemm::model_folder::ModelConfig;

use crate::activations::ACTIVATIONS;
use crate::by_parts::ByParts;
use crate::folder;
use crate::output::{Failure, count, named, shown};

/// How the last parts of names end, of zero points, shapes and orders: of what formats have beside codes of theirs.
const BESIDE: [&str; 4] = ["zero_point", "zeros", "weight_shape", "g_idx"];

/// How the names of codes end that other formats may have in the place of gpt-oss's blocks.
const CODES: [&str; 6] = ["", ".weight", "_packed", "_qweight", "_codes", "_data"];

/// Of what comes out of a layer, of a cache of it, and of what enters it (AWQ's): scales of no codes, as those of [`ACTIVATIONS`].
const OUTPUTS: [&str; 4] = ["output_scale", "k_scale", "v_scale", "pre_quant_scale"];

/// The module whose weight is that of the embeddings where it shares theirs.
const HEAD: &str = "lm_head";

/// What modules of embeddings of tokens are called: in most models, GPT-2, BLOOM and Falcon, Llama as Meta has it, Mamba and RWKV, ChatGLM,
/// GPT-NeoX, T5 and BART, DeepSeek as it publishes it, GPT, TensorRT-LLM. Not those of positions, patches and types.
const EMBEDDINGS: [&str; 13] = [
    "embed_tokens",
    "wte",
    "word_embeddings",
    "tok_embeddings",
    "embeddings",
    "embedding",
    "embed_in",
    "shared",
    "emb",
    "embed",
    "tokens_embed",
    "token_embedding",
    "vocab_embedding",
];

/// The tensors, by name, and what there is to say of them.
#[derive(Default)]
pub struct Remains<'a> {
    pub tensors: HashSet<&'a str>,
    pub problems: Vec<String>,
    /// Those of them that nothing is wrong with: what is beside the codes of a head whose weight is not saved, being that of the embeddings.
    pub of_head: BTreeSet<&'a str>,
}

impl<'a> Remains<'a> {
    fn add(&mut self, name: &'a str, problem: String) {
        self.tensors.insert(name);
        self.problems.push(problem);
    }

    /// What there is to say of what such a head has; nothing where it has nothing.
    pub fn of_head_in_words(&self, input: &Checkpoint) -> Option<String> {
        let tensors = folder::some(self.of_head.iter().copied())?;
        Some(format!(
            "{}: {} ({tensors}) of a head that shares the weight of the embeddings (tie_word_embeddings), and has no codes",
            shown(input.path()),
            count(self.of_head.len(), "tensor", "tensors")
        ))
    }
}

pub fn find<'a>(input: &'a Checkpoint, config: Option<&ModelConfig>) -> Remains<'a> {
    let (mut found, path) = (Remains::default(), shown(input.path()));
    let remedy = match input.folder() {
        Some(_) => "fetch or write the model again",
        None => "fetch or write the model again, or give the folder where this is one of its shards",
    };
    // A head that is lost looks the same: its weight must be there as that of the embeddings.
    let is_tied = config.is_some_and(ModelConfig::has_tied_head)
        && input.tensors().iter().any(|tensor| is_embedding(&tensor.name));
    let mut heads = HashSet::new();
    for (module, names) in scales_alone(input) {
        found.tensors.extend(&names);
        if is_tied && module.rsplit('.').next() == Some(HEAD) {
            heads.insert(module);
            continue;
        }
        found.problems.push(format!(
            "{path}: neither tensor {}.weight nor {}.weight_packed is there, and scales of it are ({}); {remedy}",
            printable(module),
            printable(module),
            folder::some(names.iter().copied()).unwrap_or_default()
        ));
    }
    if !heads.is_empty() {
        // All but the bias, which it has of its own.
        let is_in_one = |name: &str| name.rsplit_once('.').is_some_and(|(module, _)| heads.contains(module));
        let is_of_head = |name: &&str| is_beside_codes(name) && is_in_one(name);
        found.of_head.extend(input.tensors().iter().map(|tensor| tensor.name.as_str()).filter(is_of_head));
        found.tensors.extend(&found.of_head);
    }
    for name in packed_alone(input) {
        let problem =
            format!("{path}: tensor {}: holds packed codes, and no scale of theirs is there; {remedy}", named(name));
        found.add(name, problem);
    }
    let others = LazyCell::new(|| OtherCodes::new(input));
    let of_blocks = |tensor: &&TensorInfo| tensor.dtype == Dtype::U8 && tensor.shape.len() > 2;
    for TensorInfo { name, shape, .. } in input.tensors().iter().filter(of_blocks) {
        if let Some(base) = name.strip_suffix("_blocks").filter(|_| shape.last() == Some(&16)) {
            let scales = format!("{base}_scales");
            if input.get(&scales).is_none() {
                let problem = format!(
                    "{path}: tensor {}: holds codes of MXFP4 in the blocks of gpt-oss, and their scales {} are not there; {remedy}",
                    named(name),
                    printable(&scales)
                );
                found.add(name, problem);
            }
        }
        if let Some(base) = name.strip_suffix("_scales") {
            let blocks = format!("{base}_blocks");
            let has_codes = || CODES.iter().any(|end| input.get(&format!("{base}{end}")).is_some());
            if input.get(&blocks).is_none() && !has_codes() && !others.are_beside(base) {
                let problem = format!(
                    "{path}: tensor {}: holds scales of MXFP4 as gpt-oss has them, and their codes {} are not there; {remedy}",
                    named(name),
                    printable(&blocks)
                );
                found.add(name, problem);
            }
        }
    }
    found
}

/// Refuses such a file or model: what became of the rest would lack a matrix, or have one that no config speaks of any more.
pub fn refuse(found: &Remains<'_>) -> Result<(), Failure> {
    found.problems.first().map_or(Ok(()), |text| Err(Failure::Use(text.clone())))
}

/// The module of whose weight a tensor is a scale, by its name: the codes are `weight` or `weight_packed` beside it.
pub fn of_scale(name: &str) -> Option<&str> {
    SCALE_ENDINGS.iter().find_map(|end| name.strip_suffix(end)?.strip_suffix(".weight"))
}

/// True for the embeddings of tokens, quantized ones too.
fn is_embedding(name: &str) -> bool {
    let module = [".weight", ".weight_packed", ".qweight"].iter().find_map(|end| name.strip_suffix(end));
    module.and_then(|module| module.rsplit('.').next()).is_some_and(|last| EMBEDDINGS.contains(&last))
}

/// True for what a layer has beside codes, and for scales of what enters it and of what comes out: no weight, of whatever shape.
fn is_beside_codes(name: &str) -> bool {
    let last = &name[around(name).len()..];
    of_scale(name).is_some()
        || ACTIVATIONS.contains(&last)
        || OUTPUTS.contains(&last)
        || BESIDE.iter().any(|end| last.ends_with(end))
}

/// True for the matrices of a LoRA adapter: `X.lora_A.weight`, `X.lora_B.default.weight`. What they are added to is not in them.
fn is_of_adapter(name: &str) -> bool {
    name.split('.').any(|part| ["lora_A", "lora_B"].contains(&part))
}

/// By module, scales of a weight that is not there.
fn scales_alone(input: &Checkpoint) -> BTreeMap<&str, Vec<&str>> {
    let mut scales: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut others = Vec::new();
    for TensorInfo { name, shape, .. } in input.tensors() {
        match of_scale(name) {
            Some(module) if !input.is_scale(name) => scales.entry(module).or_default().push(name),
            None if shape.len() > 1 && !is_beside_codes(name) && !is_of_adapter(name) => others.push(name),
            _ => {}
        }
    }
    // A format that is not read here may have codes of other names beside them, and a module that learned its scale has its weights below
    // it: `parametrizations.weight.original0`, `conv.weight`.
    let modules = ByParts::new(scales.keys().copied().zip(0..));
    let mut have_codes = vec![false; scales.len()];
    for name in others {
        for (_, module) in modules.around(name).filter(|(end, _)| *end < name.len()) {
            have_codes[*module] = true;
        }
    }
    let mut have_codes = have_codes.into_iter();
    scales.retain(|_, _| have_codes.next() == Some(false));
    scales
}

/// Codes of formats that are not read here, under whatever names.
struct OtherCodes<'a> {
    names: BTreeSet<&'a str>,
    /// What is before the last parts of their names, with its dot.
    modules: HashSet<&'a str>,
}

impl<'a> OtherCodes<'a> {
    fn new(input: &'a Checkpoint) -> Self {
        // What is read has scales of its own.
        let read: HashSet<String> =
            input.quantized().into_iter().flat_map(|name| input.tensors_of(name).unwrap_or_default()).collect();
        let is_one = |tensor: &&TensorInfo| {
            // Nor are positions and masks.
            let is_other =
                matches!(tensor.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64 | Dtype::I64 | Dtype::BOOL);
            !is_other && tensor.shape.len() > 1 && !["_blocks", "_scales"].iter().any(|end| tensor.name.ends_with(end))
        };
        let names: BTreeSet<&str> = input
            .tensors()
            .iter()
            .filter(is_one)
            .map(|t| t.name.as_str())
            .filter(|name| !read.contains(*name))
            .collect();
        let modules = names.iter().map(|name| around(name)).collect();
        Self { names, modules }
    }

    /// True if scales `NAME_scales` may be of one: beside them in their module, or with a name that begins with theirs.
    fn are_beside(&self, name: &str) -> bool {
        self.modules.contains(around(name))
            || ["_", "."].iter().any(|dot| {
                let start = format!("{name}{dot}");
                self.names.range(start.as_str()..).next().is_some_and(|first| first.starts_with(&start))
            })
    }
}

/// What is before the last part of a name, with its dot.
fn around(name: &str) -> &str {
    &name[..name.rfind('.').map_or(0, |end| end + 1)]
}

/// Codes of MXFP4 and NVFP4 of compressed-tensors, which are known by their scales, without one.
fn packed_alone(input: &Checkpoint) -> Vec<&str> {
    let packed = input.tensors().iter().filter(|tensor| tensor.dtype == Dtype::U8);
    let mut alone: BTreeMap<&str, &str> =
        packed.filter_map(|t| Some((t.name.strip_suffix(".weight_packed")?, t.name.as_str()))).collect();
    if alone.is_empty() {
        return Vec::new();
    }
    for TensorInfo { name, .. } in input.tensors() {
        if let Some(module) = of_packed(name) {
            alone.remove(module);
        }
    }
    alone.into_values().collect()
}

/// The module for whose codes a tensor is, by its name, whatever the format: `X.weight_scale`, `X.scales`, `X.weight.absmax`.
fn of_packed(name: &str) -> Option<&str> {
    let (module, last) = name.rsplit_once('.')?;
    if let Some(module) = module.strip_suffix(".weight").or(module.strip_suffix(".weight_packed")) {
        return Some(module);
    }
    // Shapes and orders are beside codes of every kind, and scales are not.
    let is_named_so = last.starts_with("weight_") && !["weight_packed", "weight_shape", "weight_g_idx"].contains(&last);
    let is_scale = ["scale", "scales", "absmax"].iter().any(|end| last.ends_with(end)) || last.contains("zero");
    let is_of_weight = is_scale && !ACTIVATIONS.contains(&last) && !OUTPUTS.contains(&last);
    (is_named_so || is_of_weight).then_some(module)
}
