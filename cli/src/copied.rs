//! What there is to say of what is copied and cannot be read: scales that belong to nothing that is written, and matrices that are broken.

use std::collections::HashSet;

use scaled_gemm::checkpoint::Checkpoint;

use crate::foreign;
use crate::orphans;
use crate::output::{Pronouns, shown};
use crate::readable::Readable;

/// What is said of so many tensors, of which it tells first that they are copied.
pub fn told(number: usize, text: &str) -> String {
    format!("copied {}: {text}", Pronouns::of(number).as_it_is)
}

/// Of those beside plain weights, but for what was `said` to be something else; nothing where there are none.
pub fn beside_plain(input: &Checkpoint, said: impl Fn(&str) -> bool) -> Option<String> {
    let mut names = orphans::beside_plain(input);
    names.retain(|name| !said(name));
    let Pronouns { it, as_it_is, .. } = Pronouns::of(names.len());
    Some(format!(
        "{}: {} beside weights that are plain, copied {as_it_is}: engines that go by names take the weights for codes; fetch the model \
         again, or take {it} out",
        shown(input.path()),
        orphans::in_words(&names)?
    ))
}

/// What is wrong with quantized matrices that cannot be read, for their headers or for scales that are no numbers, one by one, but for what `remains` of some, of which it is said what is missing,
/// for what is of another format, and for what is plain now, whose entry goes. What is said of two tensors of a matrix is one fault.
pub fn broken(input: &Checkpoint, remains: &HashSet<&str>) -> Vec<String> {
    let is_said = |name: &str| remains.contains(name) || foreign::is_stacked(input, name) || input.is_left(name);
    let names = input.quantized().into_iter().filter(|name| !is_said(name));
    let mut readable = Readable::new(input);
    let mut faults: Vec<_> = names.filter_map(|name| readable.check(name).err()).map(|e| e.to_string()).collect();
    let mut known = HashSet::new();
    faults.retain(|fault| known.insert(fault.clone()));
    faults
}
