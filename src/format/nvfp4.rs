//! How NVFP4 codes are chosen: [`Nvfp4Rule`], the options of a recipe, and the scales of both levels ([`SecondLevel`]).

use super::codec;
use super::given::GivenScale;

/// In which basis the rows of a quantized matrix are.
///
/// Rows in a Hadamard basis multiply rows in the same basis only: the transform is orthogonal, so the product is that of
/// the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Basis {
    /// That of the data.
    #[default]
    Plain,
    /// Each 16 consecutive elements of a row are replaced by `y_j = 1/4 sum_i sign_i (-1)^popcount(i & j) x_i`, rounded to
    /// BF16; `sign_i` is negative where bit i of 0xD7E8 is set.
    Hadamard16,
}

named!(Basis, "basis", Plain => "plain", Hadamard16 => "hadamard16");

/// The signs of [`Basis::Hadamard16`]: bit i is set where `sign_i` is negative.
pub(crate) const HADAMARD_SIGNS: u16 = 0xD7E8;

/// What a 4over6 block's error is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorMetric {
    /// Sum of `|d|`.
    Mae,
    /// Sum of `fl(d * d)`.
    Mse,
}

named!(ErrorMetric, "error metric", Mae => "mae", Mse => "mse");

/// How the error of one element is computed; sums run over the block's elements in order, in FP32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ErrorMath {
    /// `d = fl(fl(fl(fl(q * s) * amax) / (6 E)) - x)`: in the units of the data.
    #[default]
    Strict,
    /// `d = fl(q * s - fl(x * encode))`, the product exact: in the units of the codes.
    Fast,
}

named!(ErrorMath, "error math", Strict => "strict", Fast => "fast");

/// How the scale of a block is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BlockScaleRule {
    /// The block's largest magnitude becomes 6.
    #[default]
    Plain,
    /// The largest magnitude becomes 6 or 4, whichever errs less.
    FourOverSix {
        /// What errors are compared by.
        metric: ErrorMetric,
        /// How they are computed.
        math: ErrorMath,
    },
}

/// E, the largest block scale that the second level aims at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum E4m3Bound {
    /// 448, the largest E4M3 number.
    #[default]
    Max448,
    /// 256: leaves room for the 1.5 times larger scales of 4over6. With 4over6 only.
    Max256,
}

named!(E4m3Bound, "largest block scale", Max448 => "448", Max256 => "256");

impl E4m3Bound {
    /// 448 or 256.
    pub const fn value(self) -> f32 {
        match self {
            Self::Max448 => 448.0,
            Self::Max256 => 256.0,
        }
    }
}

/// What shares a block scale while quantizing. Readers see a scale for each 1x16 block either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BlockShape {
    /// 16 elements of a row.
    #[default]
    Row1x16,
    /// Tiles of 16 rows by 16 columns (edge tiles may have fewer rows), so that a weight and its transpose share scales.
    Tile16x16,
}

named!(BlockShape, "block shape", Row1x16 => "1x16", Tile16x16 => "16x16");

/// How a scaled element is rounded to a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CodeRounding {
    /// To the nearest, ties to even.
    #[default]
    Nearest,
    /// Up or down at random, unbiased to 1/256 of a step, never changing a value that a code holds.
    ///
    /// One byte u for each element: `step = 2, 1 or 1/2` as `|v| >= 4, >= 2` or less, `t = fma(u / 256, step, |v|)`, and the
    /// code is `t` rounded down to a multiple of its step, at most 6. The bytes come from Philox4x32-10: the key is the
    /// seed, the counter `(offset, b)` (64 bits each, low word first), b = `row * blocks_of_a_row + block` of the matrix that is
    /// written. Element e of the block uses byte `e % 4` (lowest first) of word `e / 4`. The launch has no part in it: equal
    /// seed and offset give equal codes, on the CPU too. A captured graph repeats its bytes at each launch.
    Stochastic {
        /// The key.
        seed: u64,
        /// The counter's first half: a step number, so that each step of a training run draws other bytes.
        offset: u64,
    },
}

/// The rule that scales and codes of NVFP4 follow, named after the project whose bytes it reproduces.
///
/// `fl(.)` is one FP32 operation rounded to nearest even, `E4M3(.)` and `E2M1(.)` are the saturating casts of
/// [`codec`], E is the bound of the block scales (448, or 256 with 4over6). Every 16 consecutive elements of a row
/// are a block with one E4M3 scale `s`; the whole matrix, or each row, has a second-level scale.
///
/// ```text
/// second level   amax = max |x| (NaN ignored);  encode = min(fl(6 E / amax), FLT_MAX), 1 if amax is 0 or infinite
///                stored decode factor: scale = fl(amax / (6 E))
/// plain          s = E4M3(min(fl(amax_b * fl(encode * fl(1/6))), FLT_MAX))
/// 4over6         base = fl(fl(amax_b / 6) * encode);  s4 = E4M3(min(fl(base * 1.5), 448));  s6 = E4M3(min(base, 448))
///                each candidate is quantized; s4 is taken if its error is smaller, s6 otherwise (a tie, a NaN)
/// codes          inv = min(fl(1 / fl(s * fl(1 / encode))), FLT_MAX);  code = E2M1(fl(x * inv))
/// torchao        pts = fl(amax * fl(1/2688));  s = E4M3(clamp(fl(fl(amax_b * fl(1/6)) / pts), 2^-6, 448))
///                stored scale = pts;  inv = fl(fl(1 / pts) / s)
/// torchao-cpu    the same with fl(amax / 2688) and fl(amax_b / 6)
/// ```
///
/// These are TransformerEngine's rules and, last, torchao's: of its PyTorch code on CUDA, where a tensor is divided by a number
/// by multiplying with the number's rounded reciprocal, and on the CPU. Divisions by tensors (`pts`, `s`) are true ones on
/// both. Mirrored by `kernels/cast/nvfp4.cuh`, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Nvfp4Rule {
    /// TransformerEngine's; all options are of this rule.
    #[default]
    TransformerEngine,
    /// torchao's two levels on a GPU, where its users run it. No options.
    TorchAo,
    /// torchao's two levels as its code gives them in host memory. No options.
    TorchAoCpu,
}

named!(
    Nvfp4Rule, "NVFP4 rule", TransformerEngine => "transformer-engine", TorchAo => "torchao", TorchAoCpu => "torchao-cpu",
);

/// The options of an NVFP4 recipe, some of which exclude each other: [`Nvfp4Recipe`](super::Nvfp4Recipe). `Default` is
/// TransformerEngine's plain NVFP4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Nvfp4Options {
    /// Whose rule scales follow.
    pub rule: Nvfp4Rule,
    /// How the scale of a block is found.
    pub block_scale: BlockScaleRule,
    /// The largest block scale aimed at.
    pub bound: E4m3Bound,
    /// What shares a block scale.
    pub shape: BlockShape,
    /// Whether rows are transformed before they are quantized.
    pub basis: Basis,
    /// How codes are rounded.
    pub rounding: CodeRounding,
}

impl Nvfp4Options {
    /// The default.
    pub const PLAIN: Self = Self {
        rule: Nvfp4Rule::TransformerEngine,
        block_scale: BlockScaleRule::Plain,
        bound: E4m3Bound::Max448,
        shape: BlockShape::Row1x16,
        basis: Basis::Plain,
        rounding: CodeRounding::Nearest,
    };

    /// Every combination, also of what excludes each other, with this random rounding.
    pub(crate) fn all(random: CodeRounding) -> Vec<Self> {
        let mut block_scales = vec![BlockScaleRule::Plain];
        for metric in ErrorMetric::ALL {
            block_scales.extend(ErrorMath::ALL.map(|math| BlockScaleRule::FourOverSix { metric, math }));
        }
        let mut all = vec![Self::PLAIN];
        let each = |all: Vec<Self>, of: &dyn Fn(Self) -> Vec<Self>| all.into_iter().flat_map(of).collect::<Vec<_>>();
        all = each(all, &|o| Nvfp4Rule::ALL.map(|rule| Self { rule, ..o }).to_vec());
        all = each(all, &|o| block_scales.iter().map(|s| Self { block_scale: *s, ..o }).collect());
        all = each(all, &|o| E4m3Bound::ALL.map(|bound| Self { bound, ..o }).to_vec());
        all = each(all, &|o| BlockShape::ALL.map(|shape| Self { shape, ..o }).to_vec());
        all = each(all, &|o| Basis::ALL.map(|basis| Self { basis, ..o }).to_vec());
        each(all, &|o| [CodeRounding::Nearest, random].map(|rounding| Self { rounding, ..o }).to_vec())
    }
}

/// The three numbers of a second level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SecondLevel {
    /// Multiplies the data before the block scales: TransformerEngine's S_enc.
    pub encode: f32,
    /// The largest magnitude, for the strict error of 4over6.
    pub amax: f32,
    /// Multiplies codes and block scales; the stored scale.
    pub scale: f32,
}

/// `min(x, FLT_MAX)`; NaN gives FLT_MAX too.
#[inline(always)]
pub(crate) fn at_most_flt_max(x: f32) -> f32 {
    if x <= f32::MAX { x } else { f32::MAX }
}

impl SecondLevel {
    /// From what the caller brings, for block scales up to `bound`.
    ///
    /// `Amax(amax)`: as [`Nvfp4Rule`] says. `Encode(encode)`: `scale = fl(1 / encode)`, `amax = fl(6 E / encode)`. `Decode(scale)`:
    /// `encode = fl(1 / scale)` by the rule for amax, `amax = fl(scale * 6 E)`.
    pub fn new(given: GivenScale, bound: E4m3Bound) -> Self {
        let six_e = 6.0 * bound.value();
        match given {
            GivenScale::Amax(amax) => Self { encode: encode_of(amax, six_e / amax), amax, scale: amax / six_e },
            GivenScale::Encode(encode) => Self { encode, amax: six_e / encode, scale: 1.0 / encode },
            GivenScale::Decode(scale) => Self { encode: encode_of(scale, 1.0 / scale), amax: scale * six_e, scale },
        }
    }

    /// `s` of a block by the plain rule.
    #[inline(always)]
    pub fn plain_scale(&self, block_amax: f32) -> u8 {
        codec::encode_e4m3(at_most_flt_max(block_amax * (self.encode * (1.0 / 6.0))))
    }

    /// `[s4, s6]` of a block.
    #[inline(always)]
    pub fn four_over_six_scales(&self, block_amax: f32) -> [u8; 2] {
        let base = block_amax / 6.0 * self.encode;
        [codec::encode_e4m3((base * 1.5).min(448.0)), codec::encode_e4m3(base.min(448.0))]
    }

    /// `inv`: what multiplies the elements of a block with scale `s` before the cast.
    #[inline(always)]
    pub fn multiplier(&self, s: u8) -> f32 {
        at_most_flt_max(1.0 / (codec::decode_e4m3(s) * (1.0 / self.encode)))
    }

    /// From what the caller brings, by torchao's rule: [`SecondLevel::new`], but a stored scale that is found from an amax is
    /// divided as PyTorch does `on` that device.
    pub fn torchao(given: GivenScale, on: TorchDevice) -> Self {
        let level = Self::new(given, E4m3Bound::Max448);
        match given {
            GivenScale::Amax(amax) => Self { scale: on.divide(amax, 2688.0), ..level },
            GivenScale::Encode(_) | GivenScale::Decode(_) => level,
        }
    }

    /// `s` and `inv` of a block by torchao's rule, `scale` being its per-tensor scale `pts`.
    ///
    /// A matrix of zeros has `pts = 0`, for which torchao divides zero by zero; here `pts` counts as 1 then. Up to an amax of
    /// `2688 * 2^-128` the reciprocal overflows, and zeros become NaN: code 7 here, whatever its bit arithmetic makes of a
    /// NaN there.
    #[inline(always)]
    pub fn torchao_block(&self, block_amax: f32, on: TorchDevice) -> (u8, f32) {
        let pts = if self.scale == 0.0 { 1.0 } else { self.scale };
        let s = codec::encode_e4m3((on.divide(block_amax, 6.0) / pts).clamp(0.015625, 448.0));
        (s, 1.0 / pts / codec::decode_e4m3(s))
    }
}

/// Where PyTorch ran the code whose bytes a rule reproduces: it divides a tensor by a Python number in two ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TorchDevice {
    /// `fl(a * fl(1 / number))`.
    Cuda,
    /// `fl(a / number)`.
    Cpu,
}

named!(TorchDevice, "device of PyTorch", Cuda => "cuda", Cpu => "cpu");

impl TorchDevice {
    /// `a` divided by a number of the source text.
    #[inline(always)]
    pub fn divide(self, a: f32, number: f32) -> f32 {
        match self {
            Self::Cuda => a * (1.0 / number),
            Self::Cpu => a / number,
        }
    }
}

/// 1 where the largest magnitude is zero or the quotient vanishes, else the quotient, at most FLT_MAX.
fn encode_of(amax: f32, quotient: f32) -> f32 {
    let encode = at_most_flt_max(quotient);
    if amax == 0.0 || encode == 0.0 { 1.0 } else { encode }
}
