//! What makes codes, and what is made of them: the quantizers, casts and producers that `bench --quantizers` times.

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

/// What is timed. Casts of codes are to exact scales, from ones of powers of two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantizer {
    /// A plain matrix, or what a producer makes of it, to codes.
    Quantize(Producer, Target),
    /// Codes to other codes.
    Again(CastScheme, CastScheme),
    /// Codes to BF16.
    Back(CastScheme),
    /// E2M1 to E4M3 of the same values.
    Lossless(CastScheme, CastScheme),
}

impl Quantizer {
    /// The default recipe of each scheme; every cast, with scales row-major and of two groupings in each order; every producer to what
    /// products read, to rows and to channels; casts of codes.
    pub fn all() -> Result<Vec<Self>> {
        use CastGroup::{Group1x32, Group1x128, Group128x1, Row};
        let recipe = |name| Target::Recipe(Recipe::new(scheme(name, Fp8Format::E4M3)));
        let plain = |target| Self::Quantize(Producer::Plain, target);
        let mut all: Vec<_> = scheme_names().into_iter().map(|name| plain(recipe(name))).collect();
        let cast = |scheme| Target::Cast(CastRecipe::new(scheme));
        for scheme in cast_schemes() {
            all.push(plain(cast(scheme)));
            if matches!(scheme.group(), Group1x32 | Group1x128) {
                let orders = [CastScales::ColumnMajor, CastScales::Ue8m0];
                all.extend(orders.map(|order| plain(cast(scheme.with_scales(order)))));
            }
        }
        for group in [Group1x128, Row, Group128x1] {
            let target = cast(CastScheme::new(CodeFormat::E4M3, group)?.with_scales(CastScales::ColumnMajor));
            let producers = [Producer::Swiglu, Producer::Silu, Producer::Gelu, Producer::GeluTanh];
            all.extend(producers.map(|producer| Self::Quantize(producer, target)));
        }
        let e4m3 = |group| CastScheme::new(CodeFormat::E4M3, group);
        let e2m1 = |group| CastScheme::new(CodeFormat::E2M1, group);
        for to in [e4m3(Group1x32)?, e4m3(Group128x1)?, e2m1(Group1x32)?] {
            all.push(Self::Again(e4m3(Group1x128)?, to));
        }
        all.push(Self::Again(e2m1(Group1x32)?, e4m3(Group1x128)?));
        all.extend([Self::Back(e4m3(Group1x128)?), Self::Back(e2m1(Group1x32)?)]);
        let bytes = |scheme: CastScheme| scheme.with_scales(CastScales::Ue8m0);
        all.push(Self::Lossless(bytes(e2m1(Group1x32)?), bytes(e4m3(Group1x128)?)));
        Ok(all)
    }

    /// What it reads.
    pub fn reads(self) -> String {
        match self {
            Self::Quantize(producer, _) => producer.name().into(),
            Self::Again(from, _) | Self::Back(from) | Self::Lossless(from, _) => from.to_string(),
        }
    }

    /// What it makes.
    pub fn makes(self) -> String {
        match self {
            Self::Quantize(_, Target::Recipe(recipe)) => recipe.scheme().to_string(),
            Self::Quantize(_, Target::Cast(recipe)) => StoredScheme::Cast(recipe.scheme()).to_string(),
            Self::Again(_, to) => StoredScheme::Cast(to).to_string(),
            Self::Back(_) => DType::Bf16.to_string(),
            Self::Lossless(_, to) => format!("{to}, lossless"),
        }
    }

    /// Bytes that it must move for a result of this shape: each element, code and scale read or written once.
    pub fn bytes(self, rows: usize, cols: usize) -> u64 {
        let plain = (rows * cols * DType::Bf16.bytes()) as u64;
        let cast = |scheme| Target::Cast(CastRecipe::new(scheme)).bytes(rows, cols);
        match self {
            Self::Quantize(Producer::Swiglu, target) => 2 * plain + target.bytes(rows, cols),
            Self::Quantize(_, target) => plain + target.bytes(rows, cols),
            Self::Again(from, to) | Self::Lossless(from, to) => cast(from) + cast(to),
            Self::Back(from) => cast(from) + plain,
        }
    }
}

/// Every format and grouping of a cast, per channel also transposed.
pub fn cast_schemes() -> Vec<CastScheme> {
    CastScheme::all().filter(|scheme| scheme.scales() == CastScales::RowMajor).collect()
}
