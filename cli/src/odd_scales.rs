//! Scales that no quantizer writes, and what `dequantize` and `gemm` say of them.

use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::{CodeFormat, HostQuantMatrix, Scheme};

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
    pub fn of(codes: &HostQuantMatrix) -> Self {
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
pub fn in_words<'a>(input: &Checkpoint, found: impl Iterator<Item = (&'a str, OddScales)> + Clone) -> Vec<String> {
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
            "{path}: the scales of {} ({first}) are 0 and their codes are not: all their values are 0; fetch the model \
             again, or quantize it again",
            count(zero.len(), "matrix", "matrices")
        ));
    }
    lines
}
