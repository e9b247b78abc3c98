//! [`Recipe`]: how codes are chosen. The arithmetic of every rule is written here once, in operation order.
//!
//! `fl(.)` is one FP32 operation rounded to nearest even; MAX is the largest value of the code format (448 or 57344).
//! Every rule takes the group's `amax = max |x|` (FP32, NaN ignored, 0 for an empty group), gives an `encode`
//! factor for the data and the stored decode factor `scale`, and then `code = sat(fl(x * encode))`: round to nearest
//! even, saturating at +-MAX, NaN to 0x7F, sign of zero kept.
//!
//! Mirrored by `kernels/common.cuh` (`group_scale`); `tests/` compares both, byte for byte.

use super::dtype::DType;
use super::scheme::{Fp8Format, Scheme};

/// The published rule that scales follow, named after the project whose bytes it reproduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Preset {
    /// torchao's current blockwise kernels; the default.
    ///
    /// `a = max(amax, 1e-12)`; `encode = fl(MAX / a)`; `scale = fl(1 / encode)`.
    /// An infinite amax gives `encode = 0` and `scale = inf`.
    #[default]
    TorchAo,
    /// TransformerEngine's current and blockwise scaling, `amax_epsilon = 0`.
    ///
    /// amax 0 or infinite: `encode = 1`. Otherwise `encode = fl(MAX / amax)`; where that overflows, FLT_MAX for a
    /// whole tensor and the largest finite value of the input type for rows and blocks. `scale = fl(1 / encode)`.
    TransformerEngine,
    /// DeepSeek's TileKernels casts.
    ///
    /// `a = max(amax, 1e-4)`; `scale = fl(a / MAX)`; `encode = fl(MAX / a)`, a second true division.
    DeepSeek,
    /// DeepGEMM's host casts.
    ///
    /// `a = max(amax, 1e-4)`; `scale = fl(a / MAX)`; `encode = fl(1 / scale)`.
    DeepGemm,
}

impl Preset {
    /// Every preset.
    pub const ALL: [Self; 4] = [Self::TorchAo, Self::TransformerEngine, Self::DeepSeek, Self::DeepGemm];

    /// The name on the command line: `torchao`, `transformer-engine`, `deepseek`, `deepgemm`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TorchAo => "torchao",
            Self::TransformerEngine => "transformer-engine",
            Self::DeepSeek => "deepseek",
            Self::DeepGemm => "deepgemm",
        }
    }

    /// The preset of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

/// Whether scales are any FP32 number or powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleRounding {
    /// Scales as the rule gives them.
    #[default]
    Exact,
    /// Scales rounded up to a power of two, so that no code saturates.
    ///
    /// DeepSeek, DeepGEMM: `scale` becomes the next power of two not below it, `encode` its exact inverse.
    /// TransformerEngine, torchao: the mantissa of `encode` is cleared before `scale = fl(1 / encode)`.
    /// For finite amax above the floor all four give the same power of two.
    PowerOfTwo,
}

/// How to quantize: the scheme of the result and the rule for its scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// Scheme of the result.
    pub scheme: Scheme,
    /// Rule for the scales.
    pub preset: Preset,
    /// Rounding of the scales.
    pub rounding: ScaleRounding,
}

/// The two factors of one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupScale {
    /// Multiplies the data before the cast.
    pub encode: f32,
    /// Multiplies the codes; the stored scale.
    pub scale: f32,
}

/// A scale that the caller brings for a whole tensor: from calibration, or from delayed scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TensorScale {
    /// The factor for the data; `scale = fl(1 / encode)`.
    Encode(f32),
    /// The factor for the codes; `encode = fl(1 / scale)`.
    Decode(f32),
}

impl TensorScale {
    /// Both factors.
    pub fn factors(self) -> GroupScale {
        match self {
            Self::Encode(encode) => GroupScale { encode, scale: 1.0 / encode },
            Self::Decode(scale) => GroupScale { encode: 1.0 / scale, scale },
        }
    }
}

impl Recipe {
    /// The scheme with the default rule: torchao's, scales not rounded.
    pub const fn new(scheme: Scheme) -> Self {
        Self { scheme, preset: Preset::TorchAo, rounding: ScaleRounding::Exact }
    }

    /// The same with another rule.
    pub const fn with_preset(self, preset: Preset) -> Self {
        Self { preset, ..self }
    }

    /// The same with scales that are powers of two.
    pub const fn power_of_two(self) -> Self {
        Self { rounding: ScaleRounding::PowerOfTwo, ..self }
    }

    /// `encode` and `scale` of a group with this amax, for data of type `input`.
    ///
    /// The formula is that of [`Preset`] and [`ScaleRounding`]. `input` matters to TransformerEngine's overflow rule only.
    pub fn group_scale(self, amax: f32, input: DType) -> GroupScale {
        let max = self.scheme.spec().format.max();
        let pow2 = self.rounding == ScaleRounding::PowerOfTwo;
        match self.preset {
            Preset::TorchAo => encode_first(max / amax.max(1e-12), pow2),
            Preset::TransformerEngine => {
                if amax == 0.0 || !amax.is_finite() {
                    return GroupScale { encode: 1.0, scale: 1.0 };
                }
                let encode = max / amax;
                encode_first(if encode.is_infinite() { self.overflow_encode(input) } else { encode }, pow2)
            }
            Preset::DeepSeek | Preset::DeepGemm => {
                let a = amax.max(1e-4);
                let scale = a / max;
                if pow2 {
                    return ceil_power_of_two(scale);
                }
                let encode = if self.preset == Preset::DeepSeek { max / a } else { 1.0 / scale };
                GroupScale { encode, scale }
            }
        }
    }

    /// TransformerEngine's stand-in for an encode factor that overflows FP32.
    pub(crate) fn overflow_encode(self, input: DType) -> f32 {
        match (self.scheme, input) {
            (Scheme::Fp8Tensor(_), _) => f32::MAX,
            (_, DType::Bf16) => f32::from_bits(0x7F7F_0000),
            (_, DType::F16) => 65504.0,
            _ => f32::MAX,
        }
    }

    /// Bits of the code format's largest value, for kernels and files.
    pub fn format(self) -> Fp8Format {
        self.scheme.spec().format
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
fn ceil_power_of_two(scale: f32) -> GroupScale {
    let exponent = ((scale.to_bits() - 1) >> 23) + 1;
    GroupScale { encode: f32::from_bits(254u32.saturating_sub(exponent) << 23), scale: f32::from_bits(exponent << 23) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Scheme = Scheme::Fp8Block1x128(Fp8Format::E4M3);

    #[test]
    fn powers_of_two_agree_across_presets_above_the_floor() {
        for mantissa in (0..1 << 23).step_by(997) {
            for exponent in [114u32, 120, 127, 140] {
                let amax = f32::from_bits(exponent << 23 | mantissa);
                let scale = |preset| {
                    Recipe::new(BLOCK).with_preset(preset).power_of_two().group_scale(amax, DType::F32).scale.to_bits()
                };
                for preset in Preset::ALL {
                    assert_eq!(scale(preset), scale(Preset::DeepSeek), "amax {amax:e}, {preset:?}");
                }
            }
        }
    }

    #[test]
    fn infinite_amax_never_faults_and_is_as_documented() {
        for preset in Preset::ALL {
            for recipe in
                [Recipe::new(BLOCK).with_preset(preset), Recipe::new(BLOCK).with_preset(preset).power_of_two()]
            {
                let got = recipe.group_scale(f32::INFINITY, DType::F32);
                match preset {
                    Preset::TransformerEngine => assert_eq!((got.encode, got.scale), (1.0, 1.0)),
                    _ => assert_eq!((got.encode, got.scale), (0.0, f32::INFINITY), "{preset:?} {recipe:?}"),
                }
            }
        }
    }

    #[test]
    fn overflowing_encode_depends_on_the_input_type() {
        let te = |scheme| Recipe::new(scheme).with_preset(Preset::TransformerEngine);
        let tiny = f32::from_bits(1);
        assert_eq!(te(BLOCK).group_scale(tiny, DType::Bf16).encode.to_bits(), 0x7F7F_0000);
        assert_eq!(te(BLOCK).group_scale(tiny, DType::F16).encode, 65504.0);
        assert_eq!(te(Scheme::Fp8Tensor(Fp8Format::E4M3)).group_scale(tiny, DType::Bf16).encode, f32::MAX);
    }
}
