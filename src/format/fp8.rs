//! [`Fp8Recipe`]: the FP32 scales of FP8, by each published rule. The arithmetic is written here once, in operation order.
//!
//! `fl(.)` is one FP32 operation rounded to nearest even; MAX is the largest value of the code format (448 or 57344).
//! Every rule takes the group's `amax = max |x|` (FP32, NaN ignored, 0 for an empty group), gives an `encode`
//! factor for the data and the stored decode factor `scale`, and then `code = sat(fl(x * encode))`: round to nearest
//! even, saturating at +-MAX, NaN to 0x7F, sign of zero kept.
//!
//! Mirrored by `kernels/base/types.cuh` (`group_scale`); `tests/` compares both, byte for byte.

use super::dtype::DType;
use super::given::GroupScale;
use super::nvfp4::TorchDevice;
use super::scheme::{Fp8Format, Fp8Granularity, Scheme};
use crate::error::{Error, Result};

/// The rule that the scales of FP8 follow, named after the project whose bytes it reproduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Fp8Rule {
    /// torchao's current blockwise kernels; the default.
    ///
    /// `a = max(amax, 1e-12)`; `encode = fl(MAX / a)`; `scale = fl(1 / encode)`.
    /// An infinite amax gives `encode = 0` and `scale = inf`.
    #[default]
    TorchAo,
    /// TransformerEngine's current and blockwise scaling, `amax_epsilon = 0`.
    ///
    /// amax 0 or infinite: `encode = 1`. Otherwise `encode = fl(MAX / amax)`; where that overflows, FLT_MAX for a
    /// whole tensor and the largest finite value of the input type for rows and groups. `scale = fl(1 / encode)`.
    TransformerEngine,
    /// DeepSeek's TileKernels casts.
    ///
    /// `a = max(amax, 1e-4)`; `scale = fl(a / MAX)`; `encode = fl(MAX / a)`, a second true division.
    DeepSeek,
    /// DeepGEMM's casts (`per_token_cast_to_fp8`, `per_block_cast_to_fp8`) of tensors on a GPU, where its users run them.
    ///
    /// `a = max(amax, 1e-4)`; `scale = fl(a * fl(1 / MAX))`; `encode = fl(1 / scale)`. The source says `a / 448.0`: on CUDA,
    /// PyTorch divides a tensor by a Python number by multiplying with the number's rounded reciprocal.
    DeepGemm,
    /// The same casts of tensors in host memory, where PyTorch divides; `scale` differs from [`Fp8Rule::DeepGemm`] in its
    /// last bit for 55 % of all amax.
    ///
    /// `a = max(amax, 1e-4)`; `scale = fl(a / MAX)`; `encode = fl(1 / scale)`.
    DeepGemmCpu,
}

named!(
    Fp8Rule, "FP8 rule", TorchAo => "torchao", TransformerEngine => "transformer-engine", DeepSeek => "deepseek",
    DeepGemm => "deepgemm", DeepGemmCpu => "deepgemm-cpu",
);

impl Fp8Rule {
    /// True if the project has codes of this format by this rule: DeepGEMM has E4M3 codes only.
    pub const fn has(self, format: Fp8Format) -> bool {
        !matches!((self, format), (Self::DeepGemm | Self::DeepGemmCpu, Fp8Format::E5M2))
    }
}

/// Whether the scales of FP8 are any FP32 number or powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fp8Scales {
    /// As the rule gives them.
    #[default]
    Exact,
    /// Raised to a power of two, so that no code saturates.
    ///
    /// DeepSeek, DeepGEMM: `scale` becomes the next power of two not below it, `encode` its exact inverse.
    /// TransformerEngine, torchao: the mantissa of `encode` is cleared before `scale = fl(1 / encode)`.
    /// For finite amax above the floor all give the same power of two.
    PowerOfTwo,
}

named!(Fp8Scales, "kind of FP8 scales", Exact => "exact", PowerOfTwo => "power-of-two");

/// How to quantize to FP8. A rule with a format that its project does not have ([`Fp8Rule::has`]) is refused by whatever quantizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fp8Recipe {
    /// What shares a scale.
    pub granularity: Fp8Granularity,
    /// Code format.
    pub format: Fp8Format,
    /// Rule for the scales.
    pub rule: Fp8Rule,
    /// What numbers scales are.
    pub scales: Fp8Scales,
}

impl Fp8Recipe {
    /// The default rule, torchao's, with exact scales.
    pub const fn new(granularity: Fp8Granularity, format: Fp8Format) -> Self {
        Self { granularity, format, rule: Fp8Rule::TorchAo, scales: Fp8Scales::Exact }
    }

    /// The same with another rule.
    pub const fn with_rule(self, rule: Fp8Rule) -> Self {
        Self { rule, ..self }
    }

    /// The same with scales that are powers of two.
    pub const fn power_of_two(self) -> Self {
        Self { scales: Fp8Scales::PowerOfTwo, ..self }
    }

    /// Every FP8 recipe there is: all rules with the formats that they have.
    pub fn all() -> impl Iterator<Item = Self> {
        let kinds = Fp8Format::ALL.into_iter().flat_map(|f| Fp8Granularity::ALL.map(|g| Self::new(g, f)));
        let rules = kinds.flat_map(|recipe| Fp8Rule::ALL.map(|rule| recipe.with_rule(rule)));
        let rules = rules.filter(|recipe| recipe.rule.has(recipe.format));
        rules.flat_map(|recipe| Fp8Scales::ALL.map(|scales| Self { scales, ..recipe }))
    }

    /// Refuses a rule with codes that its project does not have.
    pub(crate) fn check(self) -> Result<()> {
        let Self { rule, format, .. } = self;
        if rule.has(format) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("the rule {rule} with {format}"),
            "DeepGEMM has E4M3 codes only",
            "take E4M3, or another rule",
        ))
    }

    /// Scheme of the result.
    pub const fn scheme(self) -> Scheme {
        Scheme::fp8(self.granularity, self.format)
    }

    /// `encode` and `scale` of a group with this amax, for data of type `input`.
    ///
    /// The formula is that of [`Fp8Rule`] and [`Fp8Scales`]. `input` matters to TransformerEngine's overflow rule only.
    pub fn group_scale(self, amax: f32, input: DType) -> GroupScale {
        let max = self.format.max();
        let pow2 = self.scales == Fp8Scales::PowerOfTwo;
        match self.rule {
            Fp8Rule::TorchAo => encode_first(max / amax.max(1e-12), pow2),
            Fp8Rule::TransformerEngine => {
                if amax == 0.0 || !amax.is_finite() {
                    return GroupScale { encode: 1.0, scale: 1.0 };
                }
                let encode = max / amax;
                encode_first(if encode.is_infinite() { self.overflow_encode(input) } else { encode }, pow2)
            }
            Fp8Rule::DeepSeek | Fp8Rule::DeepGemm | Fp8Rule::DeepGemmCpu => {
                let a = amax.max(1e-4);
                let on = if self.rule == Fp8Rule::DeepGemm { TorchDevice::Cuda } else { TorchDevice::Cpu };
                let scale = on.divide(a, max);
                if pow2 {
                    return ceil_power_of_two(scale);
                }
                let encode = if self.rule == Fp8Rule::DeepSeek { max / a } else { 1.0 / scale };
                GroupScale { encode, scale }
            }
        }
    }

    /// TransformerEngine's stand-in for an encode factor that overflows FP32.
    pub(crate) fn overflow_encode(self, input: DType) -> f32 {
        match (self.granularity, input) {
            (Fp8Granularity::Tensor, _) => f32::MAX,
            (_, DType::Bf16) => f32::from_bits(0x7F7F_0000),
            (_, DType::F16) => 65504.0,
            _ => f32::MAX,
        }
    }
}

/// `scale = fl(1 / encode)`, after clearing the mantissa of `encode` where a power of two is wanted.
fn encode_first(encode: f32, pow2: bool) -> GroupScale {
    let encode = if pow2 { f32::from_bits(encode.to_bits() & 0xFF80_0000) } else { encode };
    GroupScale { encode, scale: 1.0 / encode }
}

/// The smallest power of two not below `scale` (exponent field e) and its inverse (254 - e).
///
/// An infinite scale keeps its pattern and gets `encode = 0`: finite data become 0, infinities NaN.
pub(super) fn ceil_power_of_two(scale: f32) -> GroupScale {
    let exponent = ((scale.to_bits() - 1) >> 23) + 1;
    GroupScale { encode: f32::from_bits(254u32.saturating_sub(exponent) << 23), scale: f32::from_bits(exponent << 23) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTOR: Fp8Recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3);

    #[test]
    fn powers_of_two_agree_across_rules_above_the_floor() {
        for mantissa in (0..1 << 23).step_by(997) {
            for exponent in [114u32, 120, 127, 140] {
                let amax = f32::from_bits(exponent << 23 | mantissa);
                let scale = |rule| VECTOR.with_rule(rule).power_of_two().group_scale(amax, DType::F32).scale.to_bits();
                for rule in Fp8Rule::ALL {
                    assert_eq!(scale(rule), scale(Fp8Rule::DeepSeek), "amax {amax:e}, {rule}");
                }
            }
        }
    }

    #[test]
    fn infinite_amax_never_faults_and_is_as_documented() {
        for recipe in Fp8Recipe::all() {
            let got = recipe.group_scale(f32::INFINITY, DType::F32);
            match recipe.rule {
                Fp8Rule::TransformerEngine => assert_eq!((got.encode, got.scale), (1.0, 1.0)),
                _ => assert_eq!((got.encode, got.scale), (0.0, f32::INFINITY), "{recipe:?}"),
            }
        }
    }

    #[test]
    fn overflowing_encode_depends_on_the_input_type() {
        let te = VECTOR.with_rule(Fp8Rule::TransformerEngine);
        let tiny = f32::from_bits(1);
        assert_eq!(te.group_scale(tiny, DType::Bf16).encode.to_bits(), 0x7F7F_0000);
        assert_eq!(te.group_scale(tiny, DType::F16).encode, 65504.0);
        let tensor = Fp8Recipe { granularity: Fp8Granularity::Tensor, ..te };
        assert_eq!(tensor.group_scale(tiny, DType::Bf16).encode, f32::MAX);
    }
}
