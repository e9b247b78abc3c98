//! [`Recipe`]: how codes are chosen. The arithmetic is in [`Fp8Rule`](super::Fp8Rule) for FP8, in
//! [`MxScaleRule`] for MXFP8 and MXFP4, in [`Nvfp4Rule`] for NVFP4.

use std::fmt;

use super::fp8::Fp8Recipe;
use super::mx::{MxScaleRule, Mxfp4Recipe, Mxfp8Recipe};
use super::nvfp4::{Basis, BlockScaleRule, BlockShape, CodeRounding, E4m3Bound, Nvfp4Options, Nvfp4Rule, TorchDevice};
use super::scheme::{CodeFormat, Fp8Granularity, Scheme};
use crate::error::{Error, Result};

/// How to quantize: one variant for each family of schemes, with the options of that family. NVFP4 recipes whose options exclude
/// each other cannot be made; an FP8 rule with codes that its project does not have ([`Fp8Rule::has`](crate::Fp8Rule::has)) is
/// refused where it is used.
///
/// The formulas of this crate use three words:
/// * `fl(.)`: one FP32 operation, rounded to nearest even.
/// * `encode`: the factor that data are multiplied by before they become codes. What is stored is its inverse, the decode
///   factor `scale`, which codes are multiplied by.
/// * `sat(.)`: the cast to the code format: round to nearest even, saturating at the format's largest value (448 for E4M3,
///   57344 for E5M2, 6 for E2M1), the sign of zero kept; NaN becomes 0x7F in FP8, 7 in E2M1.
///
/// How `encode`, `scale` and block scales follow from the data is said by [`Fp8Rule`](crate::Fp8Rule), [`MxScaleRule`] and
/// [`Nvfp4Rule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// FP8 codes with FP32 scales.
    Fp8(Fp8Recipe),
    /// FP8 codes with a power of two for each 32.
    Mxfp8(Mxfp8Recipe),
    /// E2M1 codes with a power of two for each 32.
    Mxfp4(Mxfp4Recipe),
    /// E2M1 codes with an E4M3 scale for each 16 and an FP32 scale above it.
    Nvfp4(Nvfp4Recipe),
}

impl Recipe {
    /// The scheme with the default rule: torchao's for FP8, TransformerEngine's for MXFP8 and NVFP4, that of MXFP8 for MXFP4;
    /// exact scales.
    pub const fn new(scheme: Scheme) -> Self {
        match scheme {
            Scheme::Fp8Tensor(format) => Self::Fp8(Fp8Recipe::new(Fp8Granularity::Tensor, format)),
            Scheme::Fp8Row(format) => Self::Fp8(Fp8Recipe::new(Fp8Granularity::Row, format)),
            Scheme::Fp8Group1x128(format) => Self::Fp8(Fp8Recipe::new(Fp8Granularity::Group1x128, format)),
            Scheme::Fp8Group128x128(format) => Self::Fp8(Fp8Recipe::new(Fp8Granularity::Group128x128, format)),
            Scheme::Mxfp8(format) => Self::Mxfp8(Mxfp8Recipe { format, rule: MxScaleRule::Up }),
            Scheme::Mxfp4 => Self::Mxfp4(Mxfp4Recipe { rule: MxScaleRule::Up }),
            Scheme::Nvfp4 => Self::Nvfp4(Nvfp4Recipe::TENSOR),
            Scheme::Nvfp4Row => Self::Nvfp4(Nvfp4Recipe::ROWS),
        }
    }

    /// Every recipe there is; NVFP4's stochastic ones with this rounding, which is [`CodeRounding::Stochastic`].
    pub fn all(random: CodeRounding) -> Vec<Self> {
        let mx = CodeFormat::ALL.into_iter().filter_map(CodeFormat::fp8);
        let mx = mx.flat_map(|format| MxScaleRule::ALL.map(|rule| Self::Mxfp8(Mxfp8Recipe { format, rule })));
        let mx = mx.chain(MxScaleRule::ALL.map(|rule| Self::Mxfp4(Mxfp4Recipe { rule })));
        let nvfp4 = Nvfp4Options::all(random).into_iter();
        let nvfp4 = nvfp4.flat_map(|o| [Nvfp4Recipe::tensor(o), Nvfp4Recipe::rows(o)]).flatten().map(Self::Nvfp4);
        Fp8Recipe::all().map(Self::Fp8).chain(mx).chain(nvfp4).collect()
    }

    /// Scheme of the result.
    pub const fn scheme(self) -> Scheme {
        match self {
            Self::Fp8(recipe) => recipe.scheme(),
            Self::Mxfp8(recipe) => Scheme::Mxfp8(recipe.format),
            Self::Mxfp4(_) => Scheme::Mxfp4,
            Self::Nvfp4(recipe) => recipe.scheme,
        }
    }

    /// The code format of the scheme.
    pub const fn format(self) -> CodeFormat {
        self.scheme().spec().format
    }

    /// The basis in which the quantized rows are.
    pub const fn basis(self) -> Basis {
        match self {
            Self::Fp8(_) | Self::Mxfp8(_) | Self::Mxfp4(_) => Basis::Plain,
            Self::Nvfp4(recipe) => recipe.options.basis,
        }
    }

    /// What the number of rows must be a multiple of: 16 for 4over6 in 16x16 tiles, whose errors are sums of exactly sixteen
    /// lines; 1 for all others.
    pub fn row_multiple(self) -> usize {
        match self {
            Self::Nvfp4(recipe) if recipe.options.shape == BlockShape::Tile16x16 => match recipe.options.block_scale {
                BlockScaleRule::Plain => 1,
                BlockScaleRule::FourOverSix { .. } => 16,
            },
            _ => 1,
        }
    }

    /// A recipe with a second level for each row, which a caller may give; an error for others.
    pub(crate) fn of_row_levels(self) -> Result<Nvfp4Recipe> {
        match self {
            Self::Nvfp4(recipe) if recipe.scheme == Scheme::Nvfp4Row => Ok(recipe),
            _ => Err(Error::unsupported(
                format!("given second levels of rows with {}", self.scheme()),
                "nvfp4-row alone has one for each row",
                "quantize as nvfp4-row, or as nvfp4 with one for the whole matrix",
            )),
        }
    }

    /// Checks options that exclude each other, and the rows of a matrix against [`Recipe::row_multiple`].
    pub(crate) fn check(self, rows: usize) -> Result<()> {
        if let Self::Fp8(recipe) = self {
            recipe.check()?;
        }
        if rows.is_multiple_of(self.row_multiple()) {
            return Ok(());
        }
        Err(Error::shape(
            "x",
            format!("{rows} rows in 16x16 tiles with 4over6"),
            "must be a multiple of 16: the error of a tile is a sum of exactly sixteen lines",
            "pad them with zeros, or use 1x16 blocks or plain block scales",
        ))
    }
}

impl From<Fp8Recipe> for Recipe {
    fn from(recipe: Fp8Recipe) -> Self {
        Self::Fp8(recipe)
    }
}

impl From<Mxfp8Recipe> for Recipe {
    fn from(recipe: Mxfp8Recipe) -> Self {
        Self::Mxfp8(recipe)
    }
}

impl From<Mxfp4Recipe> for Recipe {
    fn from(recipe: Mxfp4Recipe) -> Self {
        Self::Mxfp4(recipe)
    }
}

impl From<Nvfp4Recipe> for Recipe {
    fn from(recipe: Nvfp4Recipe) -> Self {
        Self::Nvfp4(recipe)
    }
}

/// The rule and every option that is not the default: `transformer-engine, 4over6 mae strict, bound 256, 16x16 tiles`.
impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = match self {
            Self::Fp8(recipe) => return write!(f, "{}, {} scales", recipe.rule, recipe.scales),
            Self::Mxfp8(Mxfp8Recipe { rule, .. }) | Self::Mxfp4(Mxfp4Recipe { rule }) => {
                return write!(f, "scales rounded {rule}");
            }
            Self::Nvfp4(recipe) => recipe.options,
        };
        write!(f, "{}", options.rule)?;
        if let BlockScaleRule::FourOverSix { metric, math } = options.block_scale {
            write!(f, ", 4over6 {metric} {math}, bound {}", options.bound)?;
        }
        if options.shape == BlockShape::Tile16x16 {
            f.write_str(", 16x16 tiles")?;
        }
        if options.basis == Basis::Hadamard16 {
            f.write_str(", hadamard")?;
        }
        match options.rounding {
            CodeRounding::Nearest => Ok(()),
            CodeRounding::Stochastic { seed, .. } => write!(f, ", stochastic, seed {seed}"),
        }
    }
}

/// How to quantize to NVFP4: options that go together, and what has a second-level scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nvfp4Recipe {
    /// [`Scheme::Nvfp4`] or [`Scheme::Nvfp4Row`].
    scheme: Scheme,
    options: Nvfp4Options,
}

impl Nvfp4Recipe {
    /// TransformerEngine's plain NVFP4 with one second-level scale for the matrix.
    pub const TENSOR: Self = Self { scheme: Scheme::Nvfp4, options: Nvfp4Options::PLAIN };
    /// The same with a second-level scale for each row.
    pub const ROWS: Self = Self { scheme: Scheme::Nvfp4Row, options: Nvfp4Options::PLAIN };

    /// With one second-level scale for the matrix.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the two options that exclude each other, and why.
    pub fn tensor(options: Nvfp4Options) -> Result<Self> {
        Self { scheme: Scheme::Nvfp4, options }.checked()
    }

    /// With a second-level scale for each row.
    ///
    /// # Errors
    /// As [`Nvfp4Recipe::tensor`]; row scales exclude tiles, transforms and random rounding.
    pub fn rows(options: Nvfp4Options) -> Result<Self> {
        Self { scheme: Scheme::Nvfp4Row, options }.checked()
    }

    /// Scheme of the result.
    pub const fn scheme(self) -> Scheme {
        self.scheme
    }

    /// The options.
    pub const fn options(self) -> Nvfp4Options {
        self.options
    }

    /// For torchao's rule, where PyTorch runs it; `None` for other rules.
    pub(crate) const fn torchao(self) -> Option<TorchDevice> {
        match self.options.rule {
            Nvfp4Rule::TransformerEngine => None,
            Nvfp4Rule::TorchAo => Some(TorchDevice::Cuda),
            Nvfp4Rule::TorchAoCpu => Some(TorchDevice::Cpu),
        }
    }

    fn checked(self) -> Result<Self> {
        let options = self.options;
        let four_over_six = options.block_scale != BlockScaleRule::Plain;
        let tiles = options.shape == BlockShape::Tile16x16;
        let hadamard = options.basis != Basis::Plain;
        let stochastic = options.rounding != CodeRounding::Nearest;
        let row = self.scheme == Scheme::Nvfp4Row;
        let refuse = |what: &str, reason: &str, remedy: &str| {
            Err(Error::unsupported(format!("{what} in a recipe for {}", self.scheme), reason, remedy))
        };
        if self.torchao().is_some() && (row || options != (Nvfp4Options { rule: options.rule, ..Nvfp4Options::PLAIN }))
        {
            let reason = "torchao's rule knows one scale for the matrix, plain block scales and rounding to nearest";
            return refuse("the rule of torchao with NVFP4 options", reason, "use the rule transformer-engine");
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
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ErrorMath, ErrorMetric, Fp8Format};

    #[test]
    fn every_kind_is_there_once() {
        let all = Recipe::all(CodeRounding::Stochastic { seed: 1, offset: 0 });
        let count = |scheme: Scheme| all.iter().filter(|r| r.scheme() == scheme).count();
        assert_eq!(count(Scheme::Fp8Row(Fp8Format::E4M3)), 10);
        assert_eq!(count(Scheme::Mxfp8(Fp8Format::E5M2)), 5);
        assert_eq!(count(Scheme::Mxfp4), 5);
        // torchao's two; plain, Hadamard, stochastic, both, tiles; 4over6 in 8 modes, rows and tiles.
        assert_eq!(count(Scheme::Nvfp4), 2 + 5 + 16);
        assert_eq!(count(Scheme::Nvfp4Row), 1 + 8);
        let words: std::collections::HashSet<_> = all.iter().map(|r| format!("{} {r}", r.scheme())).collect();
        assert_eq!(words.len(), all.len());
        for scheme in Scheme::ALL {
            assert_eq!(Recipe::new(scheme).scheme(), scheme);
            assert!(all.contains(&Recipe::new(scheme)));
        }
    }

    #[test]
    fn options_that_exclude_each_other_say_why() {
        let nv = Nvfp4Options::PLAIN;
        let four = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Fast };
        let sixes = Nvfp4Options { block_scale: four, ..nv };
        let random = CodeRounding::Stochastic { seed: 1, offset: 0 };
        let tiles = Nvfp4Options { shape: BlockShape::Tile16x16, ..nv };
        let hadamard = Nvfp4Options { basis: Basis::Hadamard16, ..nv };
        let torchao = Nvfp4Options { rule: Nvfp4Rule::TorchAo, ..nv };
        let bad = [
            (Nvfp4Recipe::tensor(Nvfp4Options { rounding: random, ..sixes }), "4over6 with stochastic"),
            (Nvfp4Recipe::tensor(Nvfp4Options { basis: Basis::Hadamard16, ..sixes }), "4over6 with the Hadamard"),
            (Nvfp4Recipe::tensor(Nvfp4Options { bound: E4m3Bound::Max256, ..nv }), "256 without 4over6"),
            (Nvfp4Recipe::tensor(Nvfp4Options { basis: Basis::Hadamard16, ..tiles }), "tiles with the Hadamard"),
            (Nvfp4Recipe::tensor(Nvfp4Options { rounding: random, ..tiles }), "tiles with stochastic"),
            (Nvfp4Recipe::rows(tiles), "second-level"),
            (Nvfp4Recipe::rows(hadamard), "Hadamard"),
            (Nvfp4Recipe::rows(Nvfp4Options { rounding: random, ..nv }), "stochastic"),
            (Nvfp4Recipe::tensor(Nvfp4Options { block_scale: four, ..torchao }), "torchao"),
            (Nvfp4Recipe::rows(torchao), "torchao"),
        ];
        for (recipe, word) in bad {
            let text = recipe.unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
