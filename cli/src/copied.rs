//! What there is to say of scales that are copied, and belong to nothing that is written.

use scaled_gemm::checkpoint::Checkpoint;

use crate::orphans;
use crate::output::shown;

/// Of those beside plain weights, but for what was `said` to be something else; nothing where there are none.
pub fn beside_plain(input: &Checkpoint, said: impl Fn(&str) -> bool) -> Option<String> {
    let mut names = orphans::beside_plain(input);
    names.retain(|name| !said(name));
    Some(format!(
        "{}: {} beside weights that are plain, copied as they are: engines that go by names take the weights for codes; fetch the model \
         again, or take them out",
        shown(input.path()),
        orphans::in_words(&names)?
    ))
}
