//! What is left of matrices of which a tensor is missing: scales without codes, and codes without scales.

use std::collections::{BTreeMap, HashSet};

use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo, printable};

use crate::folder;
use crate::output::{Failure, shown};

/// How the names of scales end, of which the codes are `weight` or `weight_packed` beside them.
const SCALES: [&str; 4] = [".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale"];

/// How the names of codes end that other formats may have in the place of gpt-oss's blocks.
const CODES: [&str; 6] = ["", ".weight", "_packed", "_qweight", "_codes", "_data"];

/// The tensors, by name, and what there is to say of them.
#[derive(Default)]
pub struct Remains<'a> {
    pub tensors: HashSet<&'a str>,
    pub problems: Vec<String>,
}

impl<'a> Remains<'a> {
    fn add(&mut self, name: &'a str, problem: String) {
        self.tensors.insert(name);
        self.problems.push(problem);
    }
}

pub fn find(input: &Checkpoint) -> Remains<'_> {
    let (mut found, path) = (Remains::default(), shown(input.path()));
    let remedy = match input.folder() {
        Some(_) => "fetch or write the model again",
        None => "fetch or write the model again, or give the folder where this is one of its shards",
    };
    for (module, names) in scales_alone(input) {
        found.tensors.extend(&names);
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
            if input.get(&blocks).is_none() && !has_codes() {
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
pub fn refuse(input: &Checkpoint) -> Result<(), Failure> {
    find(input).problems.into_iter().next().map_or(Ok(()), |text| Err(Failure::Use(text)))
}

/// By module, scales of a weight that is not there.
fn scales_alone(input: &Checkpoint) -> BTreeMap<&str, Vec<&str>> {
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
    scales
}

/// Codes of MXFP4 and NVFP4 of compressed-tensors, which are known by their scales, without one.
fn packed_alone(input: &Checkpoint) -> impl Iterator<Item = &str> {
    let is_alone = |name: &str| {
        let base = name.strip_suffix("_packed").filter(|base| base.ends_with(".weight"));
        base.is_some_and(|base| {
            !SCALES.iter().any(|end| input.get(&format!("{}{end}", &base[..base.len() - 7])).is_some())
        })
    };
    let packed = input.tensors().iter().filter(move |tensor| tensor.dtype == Dtype::U8 && is_alone(&tensor.name));
    packed.map(|tensor| tensor.name.as_str())
}
