//! [`Operand`]: what A of a product can be.

use std::fmt;
use std::str::FromStr;

use super::dtype::DType;
use super::scheme::Scheme;
use crate::names::UnknownName;

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

/// A scheme or an element type, as displayed.
impl FromStr for Operand {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        text.parse().map(Self::Plain).or_else(|_| text.parse().map(Self::Quantized)).map_err(|_: UnknownName| {
            let schemes = Scheme::ALL.iter().map(Scheme::to_string);
            UnknownName::new("operand", text, schemes.chain(DType::ALL.iter().map(DType::to_string)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Activation;

    #[test]
    fn names_are_read_back_and_others_refused_with_the_list() {
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
            assert_eq!(scheme.to_string().parse(), Ok(Operand::from(scheme)));
        }
        assert_eq!("fp8-row".parse(), Ok(Scheme::Fp8Row(Default::default())));
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(dtype.name().parse(), Ok(Operand::Plain(dtype)));
        }
        let text = "gelo".parse::<Activation>().unwrap_err().to_string();
        assert_eq!(text, "unknown activation \"gelo\"; known are none, relu, gelu, silu");
        let text = "nvfp5".parse::<Operand>().unwrap_err().to_string();
        assert!(text.contains("nvfp4-row, bf16"), "{text}");
        assert_eq!(format!("{:>5}|{:<5}", DType::F16, DType::E4M3), "  f16|e4m3 ");
    }
}
