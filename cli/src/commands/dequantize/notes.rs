//! What there is to say of what is written: scales that no quantizer writes, and scales that stay beside plain weights.

use scaled_gemm::checkpoint::{Checkpoint, TensorInfo};
use scaled_gemm::{CodeFormat, Scheme};

use crate::coded::Coded;
use crate::copied;
use crate::experts;
use crate::folder::some;
use crate::output::{count, shown};

/// Scales that no quantizer writes, and with which codes are read all the same. (NaN and infinities are refused.)
#[derive(Debug, Default, Clone, Copy)]
pub struct OddScales {
    /// The first that is negative.
    negative: Option<f32>,
    /// The one scale is zero, and codes are not.
    zero: bool,
}

impl OddScales {
    pub fn of(part: &Coded) -> Self {
        // Casts have none: they are refused.
        let Coded::Quantized(codes) = part else { return Self::default() };
        // Without signs.
        let mask = if codes.scheme().spec().format == CodeFormat::E2M1 { 0x77 } else { 0x7F };
        let holds_values = || codes.logical_codes().iter().any(|byte| byte & mask != 0);
        // Of several, those of groups of zeros may be zero.
        let is_whole = matches!(codes.scheme(), Scheme::Nvfp4 | Scheme::Fp8Tensor(_));
        let negative = codes.scales().iter().copied().find(|scale| *scale < 0.0);
        Self { negative, zero: is_whole && codes.scales() == [0.0] && holds_values() }
    }

    /// With those of rows that come after.
    pub fn with(self, later: Self) -> Self {
        Self { negative: self.negative.or(later.negative), zero: self.zero || later.zero }
    }
}

/// What such scales did, of all matrices in a line each.
pub fn odd_scales<'a>(input: &Checkpoint, found: impl Iterator<Item = (&'a str, OddScales)> + Clone) -> Vec<String> {
    let path = shown(input.path());
    let negative: Vec<_> = found.clone().filter_map(|(name, odd)| Some((name, odd.negative?))).collect();
    let zero: Vec<&str> = found.filter(|(_, odd)| odd.zero).map(|(name, _)| name).collect();
    let mut lines = Vec::new();
    if let (Some(first), Some((_, scale))) = (some(negative.iter().map(|(name, _)| *name)), negative.first()) {
        lines.push(format!(
            "{path}: scales of {} ({first}) are negative, the first {scale}, which no quantizer writes: their values have the opposite sign of \
             their codes; quantize the model again from finite values",
            count(negative.len(), "matrix", "matrices")
        ));
    }
    if let Some(first) = some(zero.iter().copied()) {
        lines.push(format!(
            "{path}: the scales of {} ({first}) are 0 and their codes are not: all their values are written as 0; fetch the model \
             again, or quantize it again",
            count(zero.len(), "matrix", "matrices")
        ));
    }
    lines
}

/// That experts are missing, in what is written too.
pub fn missing_experts(input: &Checkpoint) -> Option<String> {
    let missing = experts::missing_in_words(input)?;
    Some(format!(
        "{missing}; they lack in what is written too, and no such layer becomes one tensor; fetch or write the model again"
    ))
}

/// Last parts of the names of scales of a cache of keys and values.
const CACHE: [&str; 5] = ["k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale"];

/// What stays as it is and would be taken for something else: scales beside plain weights, and those of a cache of which the config
/// spoke that goes. `says`: whether one did.
pub fn scales_that_stay(input: &Checkpoint, says: bool) -> Vec<String> {
    let path = shown(input.path());
    let is_of_cache = |tensor: &&TensorInfo| CACHE.contains(&tensor.name.rsplit('.').next().unwrap_or_default());
    let names: Vec<&str> = input.tensors().iter().filter(is_of_cache).map(|tensor| tensor.name.as_str()).collect();
    let cache = some(names.iter().copied()).filter(|_| says).map(|first| {
        format!(
            "{path}: {} of a cache of keys and values ({first}) copied as they are, and no config speaks of them any more: tell the engine \
             the type of its cache, or take them out",
            count(names.len(), "scale", "scales")
        )
    });
    copied::beside_plain(input, |_| false).into_iter().chain(cache).collect()
}
