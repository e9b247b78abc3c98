//! What there is to say of what is written: experts that are missing, and scales that stay beside plain weights.

use scaled_gemm::checkpoint::{Checkpoint, TensorInfo};

use crate::copied;
use crate::experts;
use crate::folder::some;
use crate::orphans;
use crate::output::{Pronouns, count, shown};

/// That experts are missing, in what is written too.
pub fn missing_experts(input: &Checkpoint) -> Option<String> {
    let missing = experts::missing_in_words(input)?;
    Some(format!(
        "{missing}; what is written lacks the same, and no such layer becomes one tensor; fetch or write the model again"
    ))
}

/// Last parts of the names of scales of a cache of keys and values.
const CACHE: [&str; 5] = ["k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale"];

/// What stays as it is and would be taken for something else: scales beside plain weights, those beside matrices that are read without
/// them, and those of a cache of which the config spoke that goes. `says`: whether one did.
pub fn scales_that_stay(input: &Checkpoint, says: bool) -> Vec<String> {
    let path = shown(input.path());
    let is_of_cache = |tensor: &&TensorInfo| CACHE.contains(&tensor.name.rsplit('.').next().unwrap_or_default());
    let names: Vec<&str> = input.tensors().iter().filter(is_of_cache).map(|tensor| tensor.name.as_str()).collect();
    let Pronouns { it, as_it_is, .. } = Pronouns::of(names.len());
    let cache = some(names.iter().copied()).filter(|_| says).map(|first| {
        format!(
            "{path}: {} of a cache of keys and values ({first}) copied {as_it_is}, and no config speaks of {it} any more: tell the engine \
             the type of its cache, or take {it} out",
            count(names.len(), "scale", "scales")
        )
    });
    copied::beside_plain(input, |_| false).into_iter().chain(orphans::of_others_that_stay(input)).chain(cache).collect()
}
