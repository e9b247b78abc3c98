//! Values too small for the type that they are written in: they come back as zeros, and are none.

use ndarray::{Array2, ArrayView2};
use scaled_gemm::checkpoint::{Checkpoint, PlainRows};
use scaled_gemm::codec::decode_block_scale;
use scaled_gemm::{BlockScaleFormat, CodeFormat, DType, Fp8Format};

use crate::coded::Coded;
use crate::folder::some;
use crate::output::{count, of_number, shown};

/// How many there are, and the smallest of them, of which it is asked what type keeps it.
#[derive(Debug, Default, Clone, Copy)]
pub struct Vanished {
    number: usize,
    smallest: f32,
}

impl Vanished {
    /// Those of some rows, written as `values`. `exact` is asked for the values in FP32 only where there may be some: it takes as long as the
    /// work itself.
    pub fn of<E>(part: &Coded, values: &PlainRows, exact: impl FnOnce() -> Result<Array2<f32>, E>) -> Result<Self, E> {
        let least = least(part);
        if keeps(values.dtype(), least) || values.dtype() == DType::F32 {
            return Ok(Self::default());
        }
        let exact = exact()?;
        Ok(Self::between(values.to_f32().view(), exact.view(), least))
    }

    /// Where an inverse transform adds values up, what is left of two that are the same is rounding, and far below the least of them.
    fn between(values: ArrayView2<'_, f32>, exact: ArrayView2<'_, f32>, least: f32) -> Self {
        let mut found = Self::default();
        let is_one = |(value, exact): &(&f32, &f32)| **value == 0.0 && **exact != 0.0 && exact.abs() >= least / 8.0;
        for (_, exact) in values.iter().zip(exact).filter(is_one) {
            found = found.with(Self { number: 1, smallest: exact.abs() });
        }
        found
    }

    /// With those of rows that come after.
    pub fn with(self, later: Self) -> Self {
        let smallest = match (self.number, later.number) {
            (0, _) => later.smallest,
            (_, 0) => self.smallest,
            _ => self.smallest.min(later.smallest),
        };
        Self { number: self.number + later.number, smallest }
    }
}

/// What there is to say of such values of all matrices.
pub fn in_words<'a>(
    input: &Checkpoint,
    dtype: DType,
    found: impl Iterator<Item = (&'a str, Vanished)>,
) -> Option<String> {
    let found: Vec<_> = found.filter(|(_, vanished)| vanished.number > 0).collect();
    let all = found.iter().fold(Vanished::default(), |all, (_, vanished)| all.with(*vanished));
    Some(format!(
        "{}: {} of {} ({}) became 0 and {} not: {} too small for {dtype}; --dtype {} keeps {}",
        shown(input.path()),
        count(all.number, "value", "values"),
        count(found.len(), "matrix", "matrices"),
        some(found.iter().map(|(name, _)| *name))?,
        of_number(all.number, "was", "were"),
        of_number(all.number, "it is", "they are"),
        wider(all.smallest),
        of_number(all.number, "it", "them"),
    ))
}

/// What to ask for in the place of a type that does not hold a value of FP32, one of the largest or of the smallest.
pub fn wider(value: f32) -> &'static str {
    if keeps(DType::Bf16, value) { "bf16 or f32" } else { "f32" }
}

/// Whether a value is written as a number that is not zero.
fn keeps(dtype: DType, value: f32) -> bool {
    let one = PlainRows::from_f32(ArrayView2::from(&[[value]]), dtype, Vec::new());
    one.is_ok_and(|one| one.is_finite() && one.amax() > 0.0)
}

/// What the least code comes to with the least scale, of those that are not zero.
fn least(part: &Coded) -> f32 {
    let smallest = |scales: &[f32]| {
        let sizes = scales.iter().map(|scale| scale.abs()).filter(|size| *size > 0.0);
        sizes.reduce(f32::min).unwrap_or(1.0)
    };
    let scale = match part {
        Coded::Cast(q) => smallest(q.scales()),
        Coded::Quantized(q) => {
            let of_block = q.scheme().spec().block.and_then(|block| {
                let is_zero = |byte: &u8| *byte == 0 && block.format != BlockScaleFormat::Ue8m0;
                let byte = q.block_scales().iter().copied().filter(|byte| !is_zero(byte)).min()?;
                Some(decode_block_scale(block.format, byte))
            });
            smallest(q.scales()) * of_block.unwrap_or(1.0)
        }
    };
    scale
        * match part.format() {
            CodeFormat::Fp8(Fp8Format::E4M3) => 1.0 / 512.0,
            CodeFormat::Fp8(Fp8Format::E5M2) => 1.0 / 65536.0,
            CodeFormat::E2M1 => 0.5,
        }
}
