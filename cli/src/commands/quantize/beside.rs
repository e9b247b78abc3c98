//! Scales that the input has, and that belong to no codes there: in the way of those that would be written, or wrong beside them.

use std::collections::HashMap;

use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, printable};
use scaled_gemm::model_folder::ModelConfig;

use super::plan::Plans;
use crate::copied;
use crate::output::{Failure, shown};
use crate::remains;

/// Refuses a layout in which a tensor has the name of another. `owners`: for each tensor the place of its item in the plans.
pub fn refuse_twice(
    input: &Checkpoint,
    plans: &Plans,
    layout: &CheckpointLayout,
    owners: &[usize],
) -> Result<(), Failure> {
    let mut first: HashMap<&str, usize> = HashMap::with_capacity(owners.len());
    for (name, owner) in layout.names().zip(owners) {
        let Some(other) = first.insert(name, *owner).filter(|_| input.get(name).is_some()) else { continue };
        // One that is copied has the name that it had.
        let Some(matrix) = [other, *owner].into_iter().map(|at| &plans.items[at].name).find(|item| *item != name)
        else {
            continue;
        };
        return Err(Failure::Use(format!(
            "{}: tensor {}: is there, and {} would be quantized to a tensor of that name; take it out of the input, or leave the matrix as \
             it is with --exclude '^{}$'",
            shown(input.path()),
            printable(name),
            printable(matrix),
            printable(&regex::escape(matrix))
        )));
    }
    Ok(())
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
