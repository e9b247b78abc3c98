//! Layers of single experts: which of their matrices are not there, and whether all are quantized alike.

use std::collections::{BTreeMap, BTreeSet};

use scaled_gemm::checkpoint::Checkpoint;

use crate::activations::ACTIVATIONS;
use crate::by_parts::ByParts;
use crate::folder::some;
use crate::output::{count, shown};

/// How the name of the module around a layer's experts ends.
const EXPERTS: &str = ".experts";
/// Numbers up to this are those of experts, however few are there: most layers that are published have up to 512.
const MANY: usize = 1024;
/// Numbers up to so many times those that are there, and some, are experts of one layer, too; beyond, they number something else.
const SPREAD: usize = 4;
/// Names of what is not there that are kept: one more than are said.
const NAMED: usize = 4;

/// Something of one expert: the module of all, its number, and which of its parts it is.
pub fn of_one(module: &str) -> Option<(&str, usize, &str)> {
    let end = module.find(".experts.")? + EXPERTS.len();
    let (number, part) = module[end + 1..].split_once('.')?;
    Some((&module[..end], number.parse().ok()?, part))
}

/// The name of a matrix that PEFT has beside adapters, as it is without them.
fn without_base(module: &str) -> &str {
    module.strip_suffix(".base_layer").unwrap_or(module)
}

/// True for PEFT's adapters (`lora_A`, `lora_embedding_B`, `lora_magnitude_vector`), which are no matrices of an expert.
fn is_adapter(part: &str) -> bool {
    part.split('.').any(|part| part.starts_with("lora_"))
}

/// True where a tensor that has this behind the name of a matrix is of the matrix itself, in whatever codes or what is left of them: a bias, the
/// scales of activations and adapters are there without it, too.
fn is_of_matrix(rest: &str) -> bool {
    let last = rest.rsplit('.').next().unwrap_or(rest);
    last != "bias" && !ACTIVATIONS.contains(&last) && !is_adapter(rest)
}

/// What the experts of a layer lack.
#[derive(Default)]
struct Missing {
    number: usize,
    /// The first of their names.
    names: Vec<String>,
}

/// Matrices that the other experts of a layer have, or that are between them: quantized ones, and plain.
fn missing(input: &Checkpoint) -> Missing {
    let tensors = || input.tensors().iter().filter_map(|tensor| Some((tensor, of_one(&tensor.name)?)));
    // Of the tensors those that hold a matrix, by the name that it has when it is plain.
    let mut layers: BTreeMap<&str, BTreeMap<&str, BTreeSet<usize>>> = BTreeMap::new();
    for (_, (layer, number, name)) in tensors().filter(|(tensor, _)| tensor.shape.len() == 2) {
        let part = name.strip_suffix(".weight").or_else(|| name.strip_suffix(".weight_packed"));
        if let Some(part) = part.filter(|part| !is_adapter(part)) {
            layers.entry(layer).or_default().entry(without_base(part)).or_default().insert(number);
        }
    }
    // By layer its last number, its parts, which of them a name is of, and which experts have something of each.
    let mut there = BTreeMap::new();
    for (layer, parts) in layers {
        let last = parts.values().filter_map(|numbers| numbers.last()).max().copied().unwrap_or_default();
        let most = parts.values().map(BTreeSet::len).max().unwrap_or_default();
        if last > MANY.max(SPREAD * (most + 16)) {
            continue;
        }
        // What is in a matrix is none of the expert.
        let all = ByParts::new(parts.keys().map(|part| (*part, ())));
        let parts: Vec<&str> = parts.keys().copied().filter(|part| !all.is_within(part)).collect();
        let places = ByParts::new(parts.iter().copied().zip(0..));
        let numbers = vec![BTreeSet::new(); parts.len()];
        there.insert(layer, (last, parts, places, numbers));
    }
    for (_, (layer, number, name)) in tensors() {
        if let Some((last, _, places, numbers)) = there.get_mut(layer)
            && number <= *last
            && let Some((end, place)) = places.around(name).next()
            && is_of_matrix(&name[end..])
        {
            numbers[*place].insert(number);
        }
    }
    let mut found = Missing::default();
    for (layer, (last, parts, _, numbers)) in &there {
        // Counted, and not listed: experts may lack many times what is there.
        found.number += numbers.iter().map(|numbers| last + 1 - numbers.len()).sum::<usize>();
        let all =
            (0..=*last).flat_map(|number| parts.iter().zip(numbers).map(move |(part, there)| (number, part, there)));
        let names = all.filter(|(number, _, there)| !there.contains(number));
        let names = names.map(|(number, part, _)| format!("{layer}.{number}.{part}"));
        found.names.extend(names.take(NAMED.saturating_sub(found.names.len())));
    }
    found
}

/// The same in words; nothing where none is missing.
pub fn missing_in_words(input: &Checkpoint) -> Option<String> {
    // One file may be a shard of several.
    let folder = input.folder()?;
    let Missing { number, names } = missing(input);
    let first = some(names.iter().map(String::as_str))?;
    let number = count(number, "matrix", "matrices");
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
    let modules = ByParts::new(quantized.iter().chain(plain).map(|module| (without_base(module), ())));
    let mut found: BTreeMap<&str, [&str; 3]> = BTreeMap::new();
    for module in plain {
        if let Some((layer, _, part)) = of_one(module)
            && let Some(quantized) = first.get(layer)
            && !is_adapter(part)
            && !modules.is_within(without_base(module))
        {
            found.entry(layer).or_insert([layer, quantized, module]);
        }
    }
    found.into_values().collect()
}
