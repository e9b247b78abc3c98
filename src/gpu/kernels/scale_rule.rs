//! [`ScaleRule`]: how an FP8 scale follows from an amax, as kernels receive it.

use super::operand::format_code;
use crate::format::{DType, Fp8Recipe, Fp8Rule, Fp8Scales};

/// Mirror of `ScaleRule` in `kernels/base/types.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ScaleRule {
    max: f32,
    overflow: f32,
    rule: u32,
    pow2: u32,
    format: u32,
}

impl ScaleRule {
    pub(super) fn new(recipe: Fp8Recipe, input: DType) -> Self {
        Self {
            max: recipe.format.max(),
            overflow: recipe.overflow_encode(input),
            rule: match recipe.rule {
                Fp8Rule::TorchAo => 0,
                Fp8Rule::TransformerEngine => 1,
                Fp8Rule::DeepSeek => 2,
                Fp8Rule::DeepGemm => 3,
                Fp8Rule::DeepGemmCpu => 4,
            },
            pow2: (recipe.scales == Fp8Scales::PowerOfTwo) as u32,
            format: format_code(recipe.format),
        }
    }
}
