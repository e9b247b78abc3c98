//! [`LinearRecipe`]: what the three products of a linear layer read, and [`KeptInput`], what is kept for the last of them.

use std::fmt;
use std::str::FromStr;

use super::delayed::DelayedScaling;
use super::fp8::{Fp8Recipe, Fp8Rule};
use super::recipe::{Nvfp4Recipe, Recipe};
use super::scheme::{Fp8Format, Fp8Granularity};
use crate::names::UnknownName;

/// How a linear layer quantizes what its three products read. X is tokens x in, W is out x in, Y and dY are tokens x out.
///
/// ```text
/// Y  = X  W^T      contracts over the in features
/// dX = dY (W^T)^T  over the out features
/// dW = dY^T (X^T)^T  over the tokens
/// ```
///
/// Each operand is quantized along what its product contracts over, so that X, W and dY have two quantized forms each: as they
/// lie, and transposed.
///
/// | | X, Y | W, Y | dY, dX | W^T, dX | dY^T, dW | X^T, dW |
/// |---|---|---|---|---|---|---|
/// | `bf16` | BF16 | BF16 | BF16 | BF16 | BF16 | BF16 |
/// | `fp8-blockwise` | 1x128 | 128x128 | 1x128 | 128x128 | 1x128 | 1x128 |
/// | `fp8-row` | row | row | row | row | row | row |
/// | `fp8-tensor` | tensor | tensor | tensor, E5M2 | tensor | tensor, E5M2 | tensor |
/// | `nvfp4-row` | nvfp4-row | nvfp4 | BF16 | BF16 | BF16 | BF16 |
///
/// Codes are E4M3 but where the table says E5M2. On GPUs `fp8-blockwise` runs on sm_90, `fp8-row` and `fp8-tensor` on sm_89 and newer, `bf16` and
/// `nvfp4-row` on sm_80 and newer; on the CPU all do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinearRecipe {
    /// Nothing is quantized: operands are BF16 numbers. What the others are compared with.
    Bf16,
    /// torchao's `Float8BlockwiseLinear`, its rule ([`Fp8Rule::TorchAo`]). A tile of 128x128 of W has one scale in both forms, so W^T
    /// has the codes and scales of W, transposed.
    #[doc(alias = "Float8BlockwiseLinear")]
    Fp8Blockwise,
    /// A scale for each row of an operand, a power of two: torchao's recipe `rowwise`, its rule.
    Fp8Row,
    /// One scale for each tensor, TransformerEngine's rule ([`Fp8Rule::TransformerEngine`]), gradients in E5M2. Both forms have one
    /// scale.
    Fp8Tensor(TensorScaling),
    /// NVFP4 forward, a second-level scale for each token and one for W; gradients by BF16 products.
    Nvfp4Row,
}

/// Where the one scale of a tensor comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TensorScaling {
    /// From its own amax: the tensor is read twice.
    #[default]
    Current,
    /// From those of past steps; the amax found on the way is remembered. The first step has the factor 1, as in TransformerEngine: numbers
    /// below 2^-10 are then zeros in E4M3, below 2^-17 in E5M2.
    Delayed(DelayedScaling),
}

/// In what form X is kept from the forward pass to the weight gradient. The gradient is the same, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeptInput {
    /// As it came: tokens x in elements of the layer's type, quantized in the backward pass.
    #[default]
    HighPrecision,
    /// Transposed, and quantized along the tokens: a byte an element in FP8, and its scales. BF16 where dW is a product of BF16.
    Quantized,
}

named!(KeptInput, "way to keep an input", HighPrecision => "high-precision", Quantized => "quantized");

impl LinearRecipe {
    /// One of each kind, delayed scaling with TransformerEngine's defaults.
    pub fn all() -> [Self; 6] {
        [
            Self::Bf16,
            Self::Fp8Blockwise,
            Self::Fp8Row,
            Self::Fp8Tensor(TensorScaling::Current),
            Self::Fp8Tensor(TensorScaling::Delayed(DelayedScaling::default())),
            Self::Nvfp4Row,
        ]
    }

    /// Recipes of X and W in `Y = X W^T`; `None` for BF16 operands.
    pub fn forward(self) -> Option<[Recipe; 2]> {
        match self {
            Self::Bf16 => None,
            Self::Fp8Blockwise => Some([torchao(Fp8Granularity::Group1x128), torchao(Fp8Granularity::Group128x128)]),
            Self::Fp8Row => Some([row(); 2]),
            Self::Fp8Tensor(_) => Some([tensor(Fp8Format::E4M3); 2]),
            Self::Nvfp4Row => Some([Nvfp4Recipe::ROWS.into(), Nvfp4Recipe::TENSOR.into()]),
        }
    }

    /// Recipes of dY and W^T in `dX = dY (W^T)^T`; `None` for BF16 operands.
    pub fn input_gradient(self) -> Option<[Recipe; 2]> {
        match self {
            Self::Bf16 | Self::Nvfp4Row => None,
            Self::Fp8Blockwise | Self::Fp8Row => self.forward(),
            Self::Fp8Tensor(_) => Some([tensor(Fp8Format::E5M2), tensor(Fp8Format::E4M3)]),
        }
    }

    /// Recipes of dY^T and X^T in `dW = dY^T (X^T)^T`; `None` for BF16 operands.
    pub fn weight_gradient(self) -> Option<[Recipe; 2]> {
        match self {
            Self::Bf16 | Self::Nvfp4Row => None,
            Self::Fp8Blockwise => Some([torchao(Fp8Granularity::Group1x128); 2]),
            Self::Fp8Row => Some([row(); 2]),
            Self::Fp8Tensor(_) => Some([tensor(Fp8Format::E5M2), tensor(Fp8Format::E4M3)]),
        }
    }

    /// Code formats of X, W and dY, where each has one scale.
    pub(crate) fn tensor_formats(self) -> Option<[Fp8Format; 3]> {
        let Self::Fp8Tensor(_) = self else { return None };
        Some([Fp8Format::E4M3, Fp8Format::E4M3, Fp8Format::E5M2])
    }

    /// Delayed scaling, where that is how scales are found.
    pub const fn delayed(self) -> Option<DelayedScaling> {
        match self {
            Self::Fp8Tensor(TensorScaling::Delayed(delayed)) => Some(delayed),
            _ => None,
        }
    }
}

fn torchao(granularity: Fp8Granularity) -> Recipe {
    Fp8Recipe::new(granularity, Fp8Format::E4M3).into()
}

fn row() -> Recipe {
    Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3).power_of_two().into()
}

fn tensor(format: Fp8Format) -> Recipe {
    Fp8Recipe::new(Fp8Granularity::Tensor, format).with_rule(Fp8Rule::TransformerEngine).into()
}

/// The name, delayed scaling with TransformerEngine's defaults.
impl FromStr for LinearRecipe {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let all = Self::all();
        let found = all.into_iter().find(|recipe| recipe.to_string() == text);
        found.ok_or_else(|| UnknownName::new("linear recipe", text, all.map(|recipe| recipe.to_string())))
    }
}

/// The name; what delayed scaling is set to is not told.
impl fmt::Display for LinearRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bf16 => "bf16",
            Self::Fp8Blockwise => "fp8-blockwise",
            Self::Fp8Row => "fp8-row",
            Self::Fp8Tensor(TensorScaling::Current) => "fp8-tensor",
            Self::Fp8Tensor(TensorScaling::Delayed(_)) => "fp8-tensor-delayed",
            Self::Nvfp4Row => "nvfp4-row",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DType, pair};

    #[test]
    fn every_product_of_every_recipe_is_one_that_exists() {
        let mut names = std::collections::HashSet::new();
        for recipe in LinearRecipe::all() {
            let products = [recipe.forward(), recipe.input_gradient(), recipe.weight_gradient()];
            for [a, b] in products.into_iter().flatten() {
                pair::check_pair(a.scheme(), b.scheme(), "cpu").unwrap();
                pair::check_output(a.scheme(), b.scheme(), DType::F32).unwrap();
            }
            assert!(names.insert(recipe.to_string()), "{recipe}");
            assert_eq!(recipe.to_string().parse(), Ok(recipe));
        }
    }

    /// One cast writes both forms of X and of dY.
    #[test]
    fn an_input_and_a_gradient_have_one_recipe_in_both_forms() {
        for recipe in LinearRecipe::all() {
            if let (Some([x, _]), Some([dy, _]), Some([turned_dy, turned_x])) =
                (recipe.forward(), recipe.input_gradient(), recipe.weight_gradient())
            {
                assert_eq!((x, dy), (turned_x, turned_dy), "{recipe}");
            }
            let formats = recipe.tensor_formats();
            assert_eq!(formats.is_some(), matches!(recipe, LinearRecipe::Fp8Tensor(_)), "{recipe}");
            if let (Some([x, w, dy]), Some(forward), Some([gradient, _])) =
                (formats, recipe.forward(), recipe.input_gradient())
            {
                assert_eq!(forward, [x, w].map(tensor));
                assert_eq!(gradient, tensor(dy));
            }
        }
    }

    /// W^T may be made from W only where the same number gets the same scale in both.
    #[test]
    fn a_weight_has_one_granularity_in_both_forms() {
        for recipe in LinearRecipe::all() {
            if let (Some([_, w]), Some([_, transposed])) = (recipe.forward(), recipe.input_gradient()) {
                assert_eq!(w, transposed, "{recipe}");
            }
        }
    }
}
