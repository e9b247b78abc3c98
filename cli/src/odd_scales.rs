//! Scales that no quantizer writes, and what `dequantize` and `gemm` say of them.

use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::{CodeFormat, HostCastMatrix, HostQuantMatrix, Scheme};

use crate::folder::some;
use crate::output::{count, float, shown};

/// Scales that no quantizer writes, and with which codes are read all the same. (NaN and infinities are refused.)
#[derive(Debug, Default, Clone, Copy)]
pub struct OddScales {
    /// The first that is negative.
    negative: Option<f32>,
    /// A scale is not zero, or is one of several of which those of groups of zeros may be.
    has_scale: bool,
    /// Codes are not zero; looked at where no scale is.
    has_codes: bool,
}

impl OddScales {
    pub fn of(codes: &HostQuantMatrix) -> Self {
        // Of several, those of groups of zeros may be zero.
        let is_whole = matches!(codes.scheme(), Scheme::Nvfp4 | Scheme::Fp8Tensor(_));
        let negative = codes.scales().iter().copied().find(|scale| *scale < 0.0);
        let has_scale = !is_whole || codes.scales() != [0.0];
        let has_codes = !has_scale && holds_values(codes.logical_codes(), codes.scheme().spec().format);
        Self { negative, has_scale, has_codes }
    }

    /// Those of a cast: negative ones are refused, and that all are zero none of its rules writes, whose amax has a floor.
    pub fn of_cast(codes: &HostCastMatrix) -> Self {
        let has_scale = codes.scales().iter().any(|scale| *scale != 0.0);
        let has_codes = !has_scale && holds_values(codes.codes(), codes.scheme().format());
        Self { negative: None, has_scale, has_codes }
    }

    /// All values are zero, and codes are not.
    fn is_zero(self) -> bool {
        self.has_codes && !self.has_scale
    }

    /// With those of rows that come after.
    pub fn with(self, later: Self) -> Self {
        Self {
            negative: self.negative.or(later.negative),
            has_scale: self.has_scale || later.has_scale,
            has_codes: self.has_codes || later.has_codes,
        }
    }
}

/// True if one of the codes is not zero, of whatever sign.
fn holds_values(codes: &[u8], format: CodeFormat) -> bool {
    let mask = if format == CodeFormat::E2M1 { 0x77 } else { 0x7F };
    codes.iter().any(|byte| byte & mask != 0)
}

/// What such scales did, of all matrices in a line each.
pub fn in_words<'a>(input: &Checkpoint, found: impl Iterator<Item = (&'a str, OddScales)> + Clone) -> Vec<String> {
    let path = shown(input.path());
    let negative: Vec<_> = found.clone().filter_map(|(name, odd)| Some((name, odd.negative?))).collect();
    let zero: Vec<&str> = found.filter(|(_, odd)| odd.is_zero()).map(|(name, _)| name).collect();
    let mut lines = Vec::new();
    if let (Some(first), Some((_, scale))) = (some(negative.iter().map(|(name, _)| *name)), negative.first()) {
        lines.push(format!(
            "{path}: scales of {} ({first}) are negative, the first {}, which no quantizer writes: their values have the opposite sign of \
             their codes; quantize the model again from finite values",
            count(negative.len(), "matrix", "matrices"),
            float(*scale)
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
