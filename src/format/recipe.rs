//! [`Recipe`]: how codes are chosen. The arithmetic of every FP8 rule is written here once, in operation order; that of
//! MXFP8 is in [`mx`](super::mx), that of NVFP4 in [`nvfp4`](super::nvfp4).
//!
//! `fl(.)` is one FP32 operation rounded to nearest even; MAX is the largest value of the code format (448 or 57344).
//! Every rule takes the group's `amax = max |x|` (FP32, NaN ignored, 0 for an empty group), gives an `encode`
//! factor for the data and the stored decode factor `scale`, and then `code = sat(fl(x * encode))`: round to nearest
//! even, saturating at +-MAX, NaN to 0x7F, sign of zero kept.
//!
//! Mirrored by `kernels/base/types.cuh` (`group_scale`); `tests/` compares both, byte for byte.

use super::dtype::DType;
use super::given::GroupScale;
use super::mx::MxRounding;
use super::nvfp4::{Basis, BlockScaleRule, BlockShape, CodeRounding, E4m3Bound, Nvfp4Options, TorchDevice};
use super::scheme::{CodeFormat, Scheme};
use crate::error::{Error, Result};

/// The published rule that scales follow, named after the project whose bytes it reproduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Preset {
    /// torchao's current blockwise kernels; the default for FP8. For NVFP4 its two-level rule ([`super::nvfp4`]).
    ///
    /// `a = max(amax, 1e-12)`; `encode = fl(MAX / a)`; `scale = fl(1 / encode)`.
    /// An infinite amax gives `encode = 0` and `scale = inf`.
    #[default]
    TorchAo,
    /// TransformerEngine's current and blockwise scaling, `amax_epsilon = 0`; the default for NVFP4 ([`super::nvfp4`]).
    ///
    /// amax 0 or infinite: `encode = 1`. Otherwise `encode = fl(MAX / amax)`; where that overflows, FLT_MAX for a
    /// whole tensor and the largest finite value of the input type for rows and blocks. `scale = fl(1 / encode)`.
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
    /// The same casts of tensors in host memory, where PyTorch divides; `scale` differs from [`Preset::DeepGemm`] in its
    /// last bit for 55 % of all amax.
    ///
    /// `a = max(amax, 1e-4)`; `scale = fl(a / MAX)`; `encode = fl(1 / scale)`.
    DeepGemmCpu,
    /// torchao's two-level rule for NVFP4 as its code gives it in host memory; on a GPU see [`Preset::TorchAo`]. For FP8
    /// there is no such rule: torchao's FP8 kernels round alike everywhere.
    TorchAoCpu,
}

named!(
    Preset, "preset", TorchAo => "torchao", TransformerEngine => "transformer-engine", DeepSeek => "deepseek",
    DeepGemm => "deepgemm", DeepGemmCpu => "deepgemm-cpu", TorchAoCpu => "torchao-cpu",
);

impl Preset {
    /// Those with a rule for FP8.
    pub const FP8: [Self; 5] =
        [Self::TorchAo, Self::TransformerEngine, Self::DeepSeek, Self::DeepGemm, Self::DeepGemmCpu];
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

named!(ScaleRounding, "rounding of scales", Exact => "exact", PowerOfTwo => "power-of-two");

/// How to quantize: the scheme of the result and the rule for its scales and codes.
///
/// Options of another scheme than its own stay at their defaults; [`Recipe::check`] refuses what does not go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// Scheme of the result.
    pub scheme: Scheme,
    /// Rule for the scales of FP8 and NVFP4.
    pub preset: Preset,
    /// Rounding of FP8's FP32 scales.
    pub rounding: ScaleRounding,
    /// Rule for the scales of MXFP8.
    pub mx: MxRounding,
    /// The options of NVFP4.
    pub nvfp4: Nvfp4Options,
}

impl Recipe {
    /// The scheme with the default rule: torchao's for FP8, TransformerEngine's for MXFP8 and NVFP4, scales not rounded.
    pub const fn new(scheme: Scheme) -> Self {
        Self {
            scheme,
            preset: Self::default_preset(scheme),
            rounding: ScaleRounding::Exact,
            mx: MxRounding::Up,
            nvfp4: Nvfp4Options {
                block_scale: BlockScaleRule::Plain,
                bound: E4m3Bound::Max448,
                shape: BlockShape::Row1x16,
                basis: Basis::Plain,
                rounding: CodeRounding::Nearest,
            },
        }
    }

    /// The preset of [`Recipe::new`].
    pub const fn default_preset(scheme: Scheme) -> Preset {
        match scheme.spec().block {
            None => Preset::TorchAo,
            Some(_) => Preset::TransformerEngine,
        }
    }

    /// The same with another rule.
    pub const fn with_preset(self, preset: Preset) -> Self {
        Self { preset, ..self }
    }

    /// The same with scales that are powers of two.
    pub const fn power_of_two(self) -> Self {
        Self { rounding: ScaleRounding::PowerOfTwo, ..self }
    }

    /// The same with this rule for the scales of MXFP8.
    pub const fn with_mx(self, mx: MxRounding) -> Self {
        Self { mx, ..self }
    }

    /// The same with these options of NVFP4.
    pub const fn with_nvfp4(self, nvfp4: Nvfp4Options) -> Self {
        Self { nvfp4, ..self }
    }

    /// The basis in which the quantized rows are.
    pub const fn basis(self) -> Basis {
        self.nvfp4.basis
    }

    /// Checks that the options go together. Every quantizer asks this first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the two options and why they exclude each other.
    pub fn check(self) -> Result<()> {
        let refuse = |what: &str, reason: &str, remedy: &str| {
            Err(Error::unsupported(format!("{what} with {}", self.scheme), reason, remedy))
        };
        if self.scheme.spec().block.is_some() && self.rounding != ScaleRounding::Exact {
            return refuse(
                "rounding scales to powers of two",
                "its block scales have a format of their own",
                "leave it out",
            );
        }
        if self.mx != MxRounding::Up && !matches!(self.scheme, Scheme::Mxfp8(_)) {
            return refuse("a rule for MX scales", "they belong to mxfp8", "leave it out, or quantize as mxfp8");
        }
        if !self.scheme.is_nvfp4() {
            if self.nvfp4 != Nvfp4Options::default() {
                return refuse(
                    "an NVFP4 option (4over6, bound, 16x16 tiles, Hadamard, stochastic rounding)",
                    "they belong to nvfp4 and nvfp4-row",
                    "leave it out, or quantize as nvfp4",
                );
            }
            if matches!(self.scheme, Scheme::Mxfp8(_)) && self.preset != Preset::TransformerEngine {
                let reason = "its rules are told apart by the rounding of the scale, not by a project";
                return refuse("a preset", reason, "choose an MX rounding instead");
            }
            if self.preset == Preset::TorchAoCpu {
                let reason = "torchao's FP8 kernels give the same bytes on the CPU and on a GPU";
                return refuse("the preset torchao-cpu", reason, "use the preset torchao");
            }
            return Ok(());
        }
        self.check_nvfp4()
    }

    fn check_nvfp4(self) -> Result<()> {
        let options = self.nvfp4;
        let four_over_six = options.block_scale != BlockScaleRule::Plain;
        let tiles = options.shape == BlockShape::Tile16x16;
        let hadamard = options.basis != Basis::Plain;
        let stochastic = options.rounding != CodeRounding::Nearest;
        let row = self.scheme == Scheme::Nvfp4Row;
        let refuse = |what: &str, reason: &str, remedy: &str| {
            Err(Error::unsupported(format!("{what} in a recipe for {}", self.scheme), reason, remedy))
        };
        match self.preset {
            Preset::TransformerEngine => {}
            Preset::TorchAo | Preset::TorchAoCpu if options == Nvfp4Options::default() && !row => {}
            Preset::TorchAo | Preset::TorchAoCpu => {
                let reason =
                    "torchao's rule knows one scale for the matrix, plain block scales and rounding to nearest";
                return refuse("the preset torchao with NVFP4 options", reason, "use the preset transformer-engine");
            }
            Preset::DeepSeek | Preset::DeepGemm | Preset::DeepGemmCpu => {
                let reason = "that project has no NVFP4 rule with two levels of scales";
                return refuse("this preset", reason, "use the preset transformer-engine or torchao");
            }
        }
        if options.bound == E4m3Bound::Max256 && !four_over_six {
            let reason = "the bound 256 makes room for the larger scales of 4over6; without it, it only loses range";
            return refuse("the bound 256 without 4over6", reason, "leave the bound at 448");
        }
        if four_over_six && stochastic {
            let reason = "the error of a candidate would be that of one random draw, and the choice biased";
            return refuse("4over6 with stochastic rounding", reason, "round to nearest, or use plain block scales");
        }
        if four_over_six && hadamard {
            let reason = "4over6 compares errors of the data, and a transformed block mixes sixteen of them";
            return refuse("4over6 with the Hadamard transform", reason, "use one of the two");
        }
        if tiles && hadamard {
            let reason = "a transform along rows leaves a tile and its transpose without a common scale";
            return refuse("16x16 tiles with the Hadamard transform", reason, "use 1x16 blocks");
        }
        if tiles && stochastic {
            let reason =
                "tiles exist so that a weight and its transpose hold the same numbers, and random rounding breaks that";
            return refuse("16x16 tiles with stochastic rounding", reason, "round weights to nearest");
        }
        if row && tiles {
            let reason = "the rows of a tile would have different second-level scales";
            return refuse("16x16 tiles", reason, "use nvfp4, or 1x16 blocks");
        }
        if row && hadamard {
            let reason =
                "the row scale would have to be that of the transformed row, which no published consumer expects";
            return refuse("the Hadamard transform", reason, "use nvfp4");
        }
        if row && stochastic {
            let reason = "row scales are for activations of a forward pass, stochastic rounding is for gradients";
            return refuse("stochastic rounding", reason, "use nvfp4");
        }
        Ok(())
    }

    /// For torchao's rule of NVFP4, where PyTorch runs it; `None` for other rules.
    pub(crate) fn torchao(self) -> Option<TorchDevice> {
        match self.preset {
            Preset::TorchAo if self.scheme.is_nvfp4() => Some(TorchDevice::Cuda),
            Preset::TorchAoCpu if self.scheme.is_nvfp4() => Some(TorchDevice::Cpu),
            _ => None,
        }
    }

    /// `encode` and `scale` of a group with this amax, for data of type `input`.
    ///
    /// For the FP8 schemes. The formula is that of [`Preset`] and [`ScaleRounding`]. `input` matters to TransformerEngine's overflow rule only.
    pub fn group_scale(self, amax: f32, input: DType) -> GroupScale {
        let max = self.scheme.spec().format.max();
        let pow2 = self.rounding == ScaleRounding::PowerOfTwo;
        match self.preset {
            Preset::TorchAo | Preset::TorchAoCpu => encode_first(max / amax.max(1e-12), pow2),
            Preset::TransformerEngine => {
                if amax == 0.0 || !amax.is_finite() {
                    return GroupScale { encode: 1.0, scale: 1.0 };
                }
                let encode = max / amax;
                encode_first(if encode.is_infinite() { self.overflow_encode(input) } else { encode }, pow2)
            }
            Preset::DeepSeek | Preset::DeepGemm | Preset::DeepGemmCpu => {
                let a = amax.max(1e-4);
                let on = if self.preset == Preset::DeepGemm { TorchDevice::Cuda } else { TorchDevice::Cpu };
                let scale = on.divide(a, max);
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

    /// The code format of the scheme.
    pub fn format(self) -> CodeFormat {
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
    use crate::format::{ErrorMath, ErrorMetric, Fp8Format};

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

    #[test]
    fn options_that_exclude_each_other_say_why() {
        let nv = Nvfp4Options::default();
        let four = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Fast };
        let sixes = Nvfp4Options { block_scale: four, ..nv };
        let random = CodeRounding::Stochastic { seed: 1, offset: 0 };
        let tiles = Nvfp4Options { shape: BlockShape::Tile16x16, ..nv };
        let hadamard = Nvfp4Options { basis: Basis::Hadamard16, ..nv };
        let of = |scheme, nvfp4| Recipe::new(scheme).with_nvfp4(nvfp4);
        let good = [
            of(Scheme::Nvfp4, nv),
            of(Scheme::Nvfp4, sixes),
            of(Scheme::Nvfp4, Nvfp4Options { bound: E4m3Bound::Max256, ..sixes }),
            of(Scheme::Nvfp4, Nvfp4Options { shape: BlockShape::Tile16x16, ..sixes }),
            of(Scheme::Nvfp4, tiles),
            of(Scheme::Nvfp4, Nvfp4Options { rounding: random, ..hadamard }),
            of(Scheme::Nvfp4Row, sixes),
            Recipe::new(Scheme::Nvfp4).with_preset(Preset::TorchAo),
            Recipe::new(Scheme::Mxfp8(Fp8Format::E5M2)).with_mx(MxRounding::Even),
        ];
        for recipe in good {
            recipe.check().unwrap();
        }
        let bad = [
            (of(Scheme::Nvfp4, Nvfp4Options { rounding: random, ..sixes }), "4over6 with stochastic"),
            (of(Scheme::Nvfp4, Nvfp4Options { basis: Basis::Hadamard16, ..sixes }), "4over6 with the Hadamard"),
            (of(Scheme::Nvfp4, Nvfp4Options { bound: E4m3Bound::Max256, ..nv }), "256 without 4over6"),
            (of(Scheme::Nvfp4, Nvfp4Options { basis: Basis::Hadamard16, ..tiles }), "tiles with the Hadamard"),
            (of(Scheme::Nvfp4, Nvfp4Options { rounding: random, ..tiles }), "tiles with stochastic"),
            (of(Scheme::Nvfp4Row, tiles), "second-level"),
            (of(Scheme::Nvfp4Row, hadamard), "Hadamard"),
            (of(Scheme::Nvfp4Row, Nvfp4Options { rounding: random, ..nv }), "stochastic"),
            (of(BLOCK, sixes), "belong to nvfp4"),
            (of(Scheme::Nvfp4, sixes).with_preset(Preset::TorchAo), "torchao"),
            (Recipe::new(Scheme::Nvfp4Row).with_preset(Preset::TorchAo), "torchao"),
            (Recipe::new(Scheme::Nvfp4).with_preset(Preset::DeepSeek), "two levels"),
            (Recipe::new(Scheme::Nvfp4).power_of_two(), "powers of two"),
            (Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3)).with_preset(Preset::TorchAo), "MX rounding"),
            (Recipe::new(BLOCK).with_mx(MxRounding::Floor), "mxfp8"),
        ];
        for (recipe, word) in bad {
            let text = recipe.check().unwrap_err().to_string();
            assert!(text.contains(word), "{recipe:?}: {text}");
        }
    }
}
