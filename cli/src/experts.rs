//! Layers of single experts: which of their matrices are not there, and whether all are quantized alike.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use scaled_gemm::checkpoint::Checkpoint;

use crate::folder::some;
use crate::output::{count, shown};

/// How the name of the module around a layer's experts ends.
const EXPERTS: &str = ".experts";
/// How the names of scales end.
const SCALES: [&str; 3] = [".weight_scale", ".weight_scale_inv", ".weight_scale_2"];
/// Numbers up to so many times those that are there, and some, are experts of one layer; beyond, they number something else.
const SPREAD: usize = 4;

/// A matrix of one expert: the module of all, its number, and which of its matrices it is.
pub fn of_one(module: &str) -> Option<(&str, usize, &str)> {
    let end = module.find(".experts.")? + EXPERTS.len();
    let (number, part) = module[end + 1..].split_once('.')?;
    Some((&module[..end], number.parse().ok()?, part))
}

/// True where a part of this name, up to one of its dots, is something itself.
fn is_within<'a>(name: &'a str, is: impl Fn(&'a str) -> bool) -> bool {
    name.match_indices('.').any(|(dot, _)| is(&name[..dot]))
}

/// By layer, the names of matrices that its other experts have, or that are between them: quantized ones, and plain.
fn missing(input: &Checkpoint) -> BTreeMap<&str, Vec<String>> {
    // Of the tensors those that hold a matrix, by the name that it has when it is plain.
    let modules = input.tensors().iter().filter(|tensor| tensor.shape.len() == 2).filter_map(|tensor| {
        of_one(tensor.name.strip_suffix(".weight").or_else(|| tensor.name.strip_suffix(".weight_packed"))?)
    });
    let mut layers: BTreeMap<&str, BTreeMap<&str, BTreeSet<usize>>> = BTreeMap::new();
    for (layer, number, part) in modules {
        layers.entry(layer).or_default().entry(part).or_default().insert(number);
    }
    let mut found = BTreeMap::new();
    for (layer, mut parts) in layers {
        // Adapters of a matrix are no matrices of the expert.
        let names: BTreeSet<&str> = parts.keys().copied().collect();
        parts.retain(|part, _| !is_within(part, |outer| names.contains(outer)));
        let last = parts.values().filter_map(|numbers| numbers.last()).max().copied().unwrap_or_default();
        let most = parts.values().map(BTreeSet::len).max().unwrap_or_default();
        if last > SPREAD * (most + 16) {
            continue;
        }
        let all = || (0..=last).flat_map(|number| parts.iter().map(move |(part, numbers)| (number, part, numbers)));
        let missing = all().filter(|(number, _, numbers)| !numbers.contains(number));
        let names = missing.map(|(number, part, _)| format!("{layer}.{number}.{part}"));
        // Of what is left of a matrix it is said by its scales.
        let is_gone = |name: &String| !SCALES.iter().any(|scale| input.get(&format!("{name}{scale}")).is_some());
        let names: Vec<_> = names.filter(is_gone).collect();
        if !names.is_empty() {
            found.insert(layer, names);
        }
    }
    found
}

/// The same in words; nothing where none is missing.
pub fn missing_in_words(input: &Checkpoint) -> Option<String> {
    // One file may be a shard of several.
    let folder = input.folder()?;
    let names: Vec<String> = missing(input).into_values().flatten().collect();
    let first = some(names.iter().map(String::as_str))?;
    let number = count(names.len(), "matrix", "matrices");
    Some(format!("{}: experts lack {number} that others of their layer have ({first})", shown(folder)))
}

/// Layers of which some experts are quantized and some are plain, each with an example of both.
pub fn divided<'a>(quantized: &[&'a str], plain: &[&'a str]) -> Vec<[&'a str; 3]> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    for module in quantized {
        if let Some((layer, ..)) = of_one(module) {
            first.entry(layer).or_insert(module);
        }
    }
    let modules: HashSet<&str> = quantized.iter().chain(plain).copied().collect();
    let mut found: BTreeMap<&str, [&str; 3]> = BTreeMap::new();
    for module in plain {
        if let Some((layer, ..)) = of_one(module)
            && let Some(quantized) = first.get(layer)
            && !is_within(module, |outer| modules.contains(outer))
        {
            found.entry(layer).or_insert([layer, quantized, module]);
        }
    }
    found.into_values().collect()
}
