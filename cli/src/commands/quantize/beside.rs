//! Scales that the input has, and that belong to no codes there: in the way of those that would be written, or wrong beside them.

use std::collections::HashMap;

use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, TensorInfo, printable};
use scaled_gemm::model_folder::ModelConfig;

use super::items::Item;
use super::plan::Plans;
use crate::copied;
use crate::output::{Failure, shown};
use crate::remains::{self, SCALES};

/// Refuses tensors that are copied where a matrix is quantized: with the name of one that is written, or of a scale of it in any scheme.
/// `owners`: for each tensor of the layout the place of its item in the plans.
pub fn refuse_stale(
    input: &Checkpoint,
    plans: &Plans,
    layout: &CheckpointLayout,
    owners: &[usize],
) -> Result<(), Failure> {
    refuse_experts(input, plans)?;
    refuse_twice(input, plans, layout, owners)?;
    refuse_scales(input, plans)
}

/// Refuses a tensor with the name of an expert that is taken out of another.
fn refuse_experts(input: &Checkpoint, plans: &Plans) -> Result<(), Failure> {
    let slices = plans.items.iter().filter_map(|item| Some((item.name.as_str(), (item, item.slice?))));
    let slices: HashMap<_, _> = slices.collect();
    let is_whole = |item: &&Item| item.slice.is_none();
    let found = plans.items.iter().filter(is_whole).find_map(|item| Some((item, slices.get(item.name.as_str())?)));
    let Some((tensor, (expert, slice))) = found else { return Ok(()) };
    Err(Failure::Use(format!(
        "{}: tensor {}: is there, and expert {} of {} would be written under that name; take it out of the input",
        shown(input.path()),
        printable(&tensor.name),
        slice.experts[0],
        printable(&input.tensors()[expert.tensor].name)
    )))
}

/// Refuses a layout in which a tensor has the name of another.
fn refuse_twice(input: &Checkpoint, plans: &Plans, layout: &CheckpointLayout, owners: &[usize]) -> Result<(), Failure> {
    let mut first: HashMap<&str, usize> = HashMap::with_capacity(owners.len());
    for (name, owner) in layout.names().zip(owners) {
        let Some(other) = first.insert(name, *owner).filter(|_| input.get(name).is_some()) else { continue };
        // One that is copied has the name that it had.
        let Some(matrix) = [other, *owner].into_iter().map(|at| &plans.items[at]).find(|item| item.name != name) else {
            continue;
        };
        let what = format!("{} would be quantized to a tensor of that name", printable(&matrix.name));
        return Err(in_the_way(input, name, &what, matrix));
    }
    Ok(())
}

/// Refuses scales of other schemes: which of them belongs to the codes nothing would tell. Of a tensor of experts, those of its own name too,
/// which is gone then.
fn refuse_scales(input: &Checkpoint, plans: &Plans) -> Result<(), Failure> {
    let mut quantized: HashMap<&str, usize> = HashMap::new();
    for (at, _) in plans.weights() {
        let item = &plans.items[at];
        quantized.insert(&item.name, at);
        quantized.entry(&input.tensors()[item.tensor].name).or_insert(at);
    }
    for TensorInfo { name, .. } in input.tensors() {
        // The older name of ComfyUI's files.
        let old = name.strip_suffix("scale_weight").map(|layer| format!("{layer}weight"));
        // Only of layers' weights is the last of them more than a name that looks alike: it belongs to codes of another name.
        let is_read = |end: &str, matrix: &str| end != "_global_scale" || matrix.ends_with(".weight");
        let of_end = |end: &&'static str| name.strip_suffix(end).filter(|matrix| is_read(end, matrix));
        let matrices = SCALES.iter().filter_map(of_end).chain(old.as_deref());
        if let Some((matrix, at)) = matrices.into_iter().find_map(|matrix| Some((matrix, *quantized.get(matrix)?))) {
            let what = format!("would be read as a scale of {}, which would be quantized", printable(matrix));
            return Err(in_the_way(input, name, &what, &plans.items[at]));
        }
    }
    Ok(())
}

/// What is said of such a tensor. Of experts in one tensor none can be left as it is.
fn in_the_way(input: &Checkpoint, name: &str, what: &str, matrix: &Item) -> Failure {
    let exclude = match matrix.slice {
        None => {
            let pattern = regex::escape(&matrix.name);
            format!(", or leave the matrix as it is with --exclude '^{}$'", printable(&pattern))
        }
        Some(_) => String::new(),
    };
    Failure::Use(format!(
        "{}: tensor {}: is there, and {what}; take it out of the input{exclude}",
        shown(input.path()),
        printable(name)
    ))
}

/// What there is to say of what is copied, and wrong in a model that is quantized: what `info` says of it, in a line or two.
pub fn notes(input: &Checkpoint, config: Option<&ModelConfig>) -> Vec<String> {
    let remains = remains::find(input, config);
    let more = match remains.problems.len() {
        0 | 1 => String::new(),
        all => format!("; {} more are named by info", all - 1),
    };
    let left = remains.problems.first().map(|problem| format!("copied as they are: {problem}{more}"));
    left.into_iter().chain(copied::beside_plain(input)).collect()
}
