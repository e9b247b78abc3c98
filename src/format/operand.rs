//! [`Operand`]: what A of a product can be.

use std::fmt;

use super::dtype::DType;
use super::scheme::Scheme;

/// A of a product: a quantized matrix, or a plain one where only the weights are quantized. B is always quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// A quantized matrix.
    Quantized(Scheme),
    /// A plain matrix of this element type: BF16 or F16 activations for weight-only products.
    Plain(DType),
}

impl Operand {
    /// The scheme; `None` for a plain matrix.
    pub const fn scheme(self) -> Option<Scheme> {
        match self {
            Self::Quantized(scheme) => Some(scheme),
            Self::Plain(_) => None,
        }
    }
}

impl From<Scheme> for Operand {
    fn from(scheme: Scheme) -> Self {
        Self::Quantized(scheme)
    }
}

impl PartialEq<Scheme> for Operand {
    fn eq(&self, other: &Scheme) -> bool {
        self.scheme() == Some(*other)
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantized(scheme) => scheme.fmt(f),
            Self::Plain(dtype) => dtype.fmt(f),
        }
    }
}
