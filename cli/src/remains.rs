//! What is left of matrices of which a tensor is missing: scales without codes, and codes without scales.

use std::collections::{BTreeMap, HashSet};

use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo, printable};
use scaled_gemm::model_folder::ModelConfig;

use crate::activations::ACTIVATIONS;
use crate::by_parts::ByParts;
use crate::folder;
use crate::output::{Failure, count, shown};

/// How the names of scales end, of which the codes are `weight` or `weight_packed` beside them.
const SCALES: [&str; 4] = [".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale"];

/// How the names of codes end that other formats may have in the place of gpt-oss's blocks.
const CODES: [&str; 6] = ["", ".weight", "_packed", "_qweight", "_codes", "_data"];

/// Of what comes out of a layer, and of a cache of it: scales of no codes, as those of [`ACTIVATIONS`].
const OUTPUTS: [&str; 3] = ["output_scale", "k_scale", "v_scale"];

/// The module whose weight is that of the embeddings where it shares theirs.
const HEAD: &str = "lm_head";

/// The tensors, by name, and what there is to say of them.
#[derive(Default)]
pub struct Remains<'a> {
    pub tensors: HashSet<&'a str>,
    pub problems: Vec<String>,
    /// Those of them that nothing is wrong with: scales of a head whose weight is not saved, being that of the embeddings.
    pub of_head: Vec<&'a str>,
}

impl<'a> Remains<'a> {
    fn add(&mut self, name: &'a str, problem: String) {
        self.tensors.insert(name);
        self.problems.push(problem);
    }

    /// What there is to say of scales of such a head; nothing where there are none.
    pub fn of_head_in_words(&self, input: &Checkpoint) -> Option<String> {
        let scales = folder::some(self.of_head.iter().copied())?;
        Some(format!(
            "{}: {} ({scales}) of a head that shares the weight of the embeddings (tie_word_embeddings), and has no codes",
            shown(input.path()),
            count(self.of_head.len(), "scale", "scales")
        ))
    }
}

pub fn find<'a>(input: &'a Checkpoint, config: Option<&ModelConfig>) -> Remains<'a> {
    let (mut found, path) = (Remains::default(), shown(input.path()));
    let remedy = match input.folder() {
        Some(_) => "fetch or write the model again",
        None => "fetch or write the model again, or give the folder where this is one of its shards",
    };
    let is_tied = config.is_some_and(ModelConfig::has_tied_head);
    for (module, names) in scales_alone(input) {
        found.tensors.extend(&names);
        if is_tied && module.rsplit('.').next() == Some(HEAD) {
            found.of_head.extend(names);
            continue;
        }
        found.problems.push(format!(
            "{path}: neither tensor {}.weight nor {}.weight_packed is there, and scales of it are ({}); {remedy}",
            printable(module),
            printable(module),
            folder::some(names.iter().copied()).unwrap_or_default()
        ));
    }
    for name in packed_alone(input) {
        let problem = format!(
            "{path}: tensor {}: holds packed codes, and no scale of theirs is there; {remedy}",
            printable(name)
        );
        found.add(name, problem);
    }
    let of_blocks = |tensor: &&TensorInfo| tensor.dtype == Dtype::U8 && tensor.shape.len() > 2;
    for TensorInfo { name, shape, .. } in input.tensors().iter().filter(of_blocks) {
        if let Some(base) = name.strip_suffix("_blocks").filter(|_| shape.last() == Some(&16)) {
            let scales = format!("{base}_scales");
            if input.get(&scales).is_none() {
                let problem = format!(
                    "{path}: tensor {}: holds codes of MXFP4 in the blocks of gpt-oss, and their scales {} are not there; {remedy}",
                    printable(name),
                    printable(&scales)
                );
                found.add(name, problem);
            }
        }
        if let Some(base) = name.strip_suffix("_scales") {
            let blocks = format!("{base}_blocks");
            let has_codes = || CODES.iter().any(|end| input.get(&format!("{base}{end}")).is_some());
            if input.get(&blocks).is_none() && !has_codes() && !has_other_codes(input, base) {
                let problem = format!(
                    "{path}: tensor {}: holds scales of MXFP4 as gpt-oss has them, and their codes {} are not there; {remedy}",
                    printable(name),
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

/// By module, scales of a weight that is not there.
fn scales_alone(input: &Checkpoint) -> BTreeMap<&str, Vec<&str>> {
    let module = |name: &'_ str| SCALES.iter().find_map(|end| Some(name.strip_suffix(end)?.len()));
    let mut scales: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut others = Vec::new();
    for tensor in input.tensors() {
        match module(&tensor.name) {
            Some(end) if !input.is_scale(&tensor.name) => {
                scales.entry(&tensor.name[..end]).or_default().push(&tensor.name)
            }
            Some(_) => {}
            None if tensor.shape.len() > 1 => others.push(tensor.name.as_str()),
            None => {}
        }
    }
    // A format that is not read here may have codes of other names beside them, and a module that learned its scale has its weights below
    // it: `parametrizations.weight.original0`, `conv.weight`.
    let modules = ByParts::new(scales.keys().map(|module| (*module, *module)));
    let mut with_codes: HashSet<&str> = HashSet::new();
    for name in others {
        with_codes.extend(modules.around(name).filter(|(end, _)| *end < name.len()).map(|(_, module)| module));
    }
    scales.retain(|module, _| !with_codes.contains(module));
    scales
}

/// True if there are codes that scales `NAME_scales` may be of in a format that is not read here, under whatever name: beside them in their
/// module, or with a name that begins with theirs.
fn has_other_codes(input: &Checkpoint, base: &str) -> bool {
    let module = |name: &str| name.rfind('.').map_or(0, |end| end + 1);
    let is_codes = |tensor: &&TensorInfo| {
        // Nor are positions and masks.
        let is_other =
            matches!(tensor.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64 | Dtype::I64 | Dtype::BOOL);
        !is_other && tensor.shape.len() > 1 && !["_blocks", "_scales"].iter().any(|end| tensor.name.ends_with(end))
    };
    let is_beside = |tensor: &&TensorInfo| {
        let rest = tensor.name.strip_prefix(base);
        tensor.name[..module(&tensor.name)] == base[..module(base)]
            || rest.is_some_and(|rest| rest.starts_with(['_', '.']))
    };
    let mut others = input.tensors().iter().filter(is_codes).filter(is_beside).peekable();
    if others.peek().is_none() {
        return false;
    }
    // What is read has scales of its own.
    let read: HashSet<String> =
        input.quantized().into_iter().flat_map(|name| input.tensors_of(name).unwrap_or_default()).collect();
    others.any(|tensor| !read.contains(&tensor.name))
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
    let is_named_so = last.starts_with("weight_") && last != "weight_packed";
    let is_scale = ["scale", "scales", "absmax"].iter().any(|end| last.ends_with(end)) || last.contains("zero");
    let is_of_weight = is_scale && !ACTIVATIONS.contains(&last) && !OUTPUTS.contains(&last);
    (is_named_so || is_of_weight).then_some(module)
}
