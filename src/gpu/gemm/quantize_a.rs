//! [`QuantizeA`]: an A that is given in BF16, F16 or F32, and quantized by the product that takes it.

use std::fmt;

use crate::error::{Error, Result};
use crate::format::{DType, Extent, Fp8Format, Fp8Granularity, Fp8Recipe, Operand};

/// Where the scale of an A comes from that a product quantizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleOfA {
    /// Found from A as the recipe says.
    #[default]
    Computed,
    /// One number for all of A, which each call brings ([`GemmArgs::quantize_a_by`](crate::GemmArgs::quantize_a_by)). `fp8-tensor` only.
    Given,
}

named!(ScaleOfA, "source of A's scale", Computed => "computed", Given => "given");

/// How a product quantizes an A that is given in BF16, F16 or F32, in each call. Codes and scales are the bytes of
/// [`Handle::quantize_into`](crate::Handle::quantize_into), or of [`Handle::quantize_tensor_into`](crate::Handle::quantize_tensor_into) with a given scale, in the
/// plan's scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct QuantizeA {
    /// Element type in which A is given.
    pub dtype: DType,
    /// How it is quantized; its scheme is A's in the product. With a given scale the rule has no part in it.
    pub recipe: Fp8Recipe,
    /// Where the scale comes from.
    pub scale: ScaleOfA,
}

impl QuantizeA {
    /// By this recipe, with scales found from A.
    pub const fn new(dtype: DType, recipe: Fp8Recipe) -> Self {
        Self { dtype, recipe, scale: ScaleOfA::Computed }
    }

    /// As `fp8-tensor` with a scale that each call brings.
    pub const fn with_given_scale(dtype: DType, format: Fp8Format) -> Self {
        Self { dtype, recipe: Fp8Recipe::new(Fp8Granularity::Tensor, format), scale: ScaleOfA::Given }
    }

    /// That A can be quantized so, and is what the product multiplies.
    pub(crate) fn check(&self, a: Operand) -> Result<()> {
        if !self.dtype.is_wide() {
            return Err(Error::dtype("A", self.dtype, "cannot be quantized", "pass bf16, f16 or f32"));
        }
        self.recipe.check()?;
        let scheme = self.recipe.scheme();
        if a != scheme {
            return Err(Error::shape(
                "A",
                format!("{a} in a product that quantizes it to {scheme}"),
                "must be the recipe's scheme",
                "set both by GemmDesc::with_quantize_a",
            ));
        }
        if self.scale == ScaleOfA::Given && self.recipe.granularity != Fp8Granularity::Tensor {
            return Err(Error::unsupported(
                format!("a given scale for an A quantized to {scheme}"),
                "one number is given, and this scheme has many scales",
                "quantize A as fp8-tensor, or let its scales be found",
            ));
        }
        Ok(())
    }

    /// That the codes of a row do not depend on the others, of m in all, as batch-invariant products need it.
    pub(crate) fn check_rows_apart(&self, m: usize) -> Result<()> {
        let scheme = self.recipe.scheme();
        if self.scale == ScaleOfA::Given || scheme.spec().group_rows == Extent::Elements(1) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("a batch-invariant product of an A of {m} rows that it quantizes to {scheme}"),
            "a row has a scale that is found from other rows, too, and its codes follow them",
            "quantize A as fp8-row or fp8-1x128, give the scale (GemmArgs::quantize_a_by), or do not ask for batch_invariant",
        ))
    }
}

/// `bf16, torchao, exact scales`, or `bf16, given scale`.
impl fmt::Display for QuantizeA {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fp8Recipe { rule, scales, .. } = self.recipe;
        match self.scale {
            ScaleOfA::Computed => write!(f, "{}, {rule}, {scales} scales", self.dtype),
            ScaleOfA::Given => write!(f, "{}, given scale", self.dtype),
        }
    }
}
