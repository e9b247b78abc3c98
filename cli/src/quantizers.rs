//! What turns a plain matrix into codes: the quantizers, casts and producers that `bench --quantizers` times.

use scaled_gemm::checkpoint::StoredScheme;
use scaled_gemm::{CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Fp8Format, Recipe, Result};

use crate::args::{scheme, scheme_names};
use crate::target::Target;

/// What is computed of a matrix on the way to its codes, and not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Producer {
    /// Nothing.
    Plain,
    /// `silu(l) * r` of `[l | r]`, which has twice the columns.
    Swiglu,
    Silu,
    Gelu,
    GeluTanh,
}

impl Producer {
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "bf16",
            Self::Swiglu => "swiglu of bf16",
            Self::Silu => "silu of bf16",
            Self::Gelu => "gelu of bf16",
            Self::GeluTanh => "gelu-tanh of bf16",
        }
    }
}

/// A producer, and what its values are quantized to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantizer {
    pub producer: Producer,
    pub target: Target,
}

impl Quantizer {
    /// The default recipe of each scheme; every cast, with scales row-major and of two groupings in each order; every producer to what
    /// products read, to rows and to channels.
    pub fn all() -> Result<Vec<Self>> {
        let recipe = |name| Recipe::new(scheme(name, Fp8Format::E4M3));
        let mut all: Vec<_> = scheme_names().into_iter().map(|name| Self::of(Target::Recipe(recipe(name)))).collect();
        let cast = |scheme| Target::Cast(CastRecipe::new(scheme));
        for scheme in cast_schemes()? {
            all.push(Self::of(cast(scheme)));
            if matches!(scheme.group(), CastGroup::Group1x32 | CastGroup::Group1x128) {
                let orders = [CastScales::ColumnMajor, CastScales::Ue8m0];
                all.extend(orders.map(|order| Self::of(cast(scheme.with_scales(order)))));
            }
        }
        for group in [CastGroup::Group1x128, CastGroup::Row, CastGroup::Group128x1] {
            let target = cast(CastScheme::new(CodeFormat::E4M3, group)?.with_scales(CastScales::ColumnMajor));
            let producers = [Producer::Swiglu, Producer::Silu, Producer::Gelu, Producer::GeluTanh];
            all.extend(producers.map(|producer| Self { producer, target }));
        }
        Ok(all)
    }

    fn of(target: Target) -> Self {
        Self { producer: Producer::Plain, target }
    }

    /// What it makes.
    pub fn makes(self) -> String {
        match self.target {
            Target::Recipe(recipe) => recipe.scheme().to_string(),
            Target::Cast(recipe) => StoredScheme::Cast(recipe.scheme()).to_string(),
        }
    }

    /// Bytes that it must move for a result of this shape: each element read once, each code and scale written once.
    pub fn bytes(self, rows: usize, cols: usize) -> u64 {
        let read = if self.producer == Producer::Swiglu { 2 * cols } else { cols };
        (rows * read * DType::Bf16.bytes()) as u64 + self.target.bytes(rows, cols)
    }
}

/// Every format and grouping of a cast, per channel also transposed.
pub fn cast_schemes() -> Result<Vec<CastScheme>> {
    let mut all = Vec::new();
    for format in [CodeFormat::E4M3, CodeFormat::E2M1] {
        for group in CastGroup::ALL {
            let scheme = CastScheme::new(format, group)?;
            all.push(scheme);
            if group.is_per_channel() {
                all.push(scheme.transposed()?);
            }
        }
    }
    Ok(all)
}
