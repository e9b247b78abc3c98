//! Scales without codes and codes without scales: what is left of a matrix of which a tensor is missing.

use std::collections::{BTreeMap, HashSet};

use scaled_gemm::checkpoint::{Checkpoint, Dtype, printable};

use crate::folder;
use crate::foreign;
use crate::orphans::beside_plain;
use crate::output::shown;

/// How the names of scales end, of which the codes are `weight` or `weight_packed` beside them.
const SCALES: [&str; 4] = [".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale"];

/// What is left of matrices: the tensors, by name, and what there is to say of them.
#[derive(Default)]
pub struct Orphans<'a> {
    pub tensors: HashSet<&'a str>,
    pub problems: Vec<String>,
}

pub fn find(input: &Checkpoint) -> Orphans<'_> {
    let mut found = Orphans::default();
    let module = |name: &'_ str| SCALES.iter().find_map(|end| Some(name.strip_suffix(end)?.len()));
    let mut scales: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    // A format that is not read here may have codes of other names beside them.
    let mut codes: HashSet<&str> = HashSet::new();
    for tensor in input.tensors() {
        match module(&tensor.name) {
            Some(end) if !input.is_scale(&tensor.name) => {
                scales.entry(&tensor.name[..end]).or_default().push(&tensor.name)
            }
            Some(_) => {}
            None if tensor.shape.len() > 1 => codes.extend(tensor.name.rsplit_once('.').map(|(module, _)| module)),
            None => {}
        }
    }
    scales.retain(|module, _| !codes.contains(module));
    for (module, names) in &scales {
        found.tensors.extend(names);
        found.problems.push(format!(
            "{}: neither tensor {}.weight nor {}.weight_packed is there, and scales of it are ({}); fetch or write the model again",
            shown(input.path()),
            printable(module),
            printable(module),
            folder::some(names.iter().copied()).unwrap_or_default()
        ));
    }
    // Of MXFP4 and NVFP4 of compressed-tensors, which are known by their scales.
    let is_alone = |name: &str| {
        let base = name.strip_suffix("_packed").filter(|base| base.ends_with(".weight"));
        base.is_some_and(|base| {
            !SCALES.iter().any(|end| input.get(&format!("{}{end}", &base[..base.len() - 7])).is_some())
        })
    };
    for tensor in input.tensors().iter().filter(|tensor| tensor.dtype == Dtype::U8 && is_alone(&tensor.name)) {
        found.tensors.insert(&tensor.name);
        found.problems.push(format!(
            "{}: tensor {}: holds packed codes, and no scale of theirs is there; fetch or write the model again",
            shown(input.path()),
            printable(&tensor.name)
        ));
    }
    if let Some(tensors) = beside_plain(input) {
        found.problems.push(format!(
            "{}: {tensors} beside weights that are plain: engines that go by names take the weights for codes; fetch or write the \
             model again",
            shown(input.path())
        ));
    }
    for (name, text) in foreign::blocks_without_scales(input) {
        found.tensors.insert(name);
        found.problems.push(text);
    }
    found
}
