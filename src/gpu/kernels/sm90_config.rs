//! Configurations of the kernels for Hopper: their tiles, mirrors of `kernels/gemm/sm90_table.cuh` and of the table in `kernels/gemm/sm90_cast.cu`, and the
//! loaded kernels of all kinds.

use serde::{Deserialize, Serialize};

use super::launch::Kernel;
use super::module::Modules;
use crate::error::{Error, Result};
use crate::format::Fp8Format;

/// A configuration of the `sm90` product, by the tile of D of a thread block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Sm90Config {
    /// 256 x 128, two neighbours share A: for thousands of rows.
    #[serde(rename = "256x128")]
    Tile256x128,
    /// 128 x 128.
    #[serde(rename = "128x128")]
    Tile128x128,
    /// 128 x 160: where tiles of 128 x 128 are a little more than whole rounds.
    #[serde(rename = "128x160")]
    Tile128x160,
    /// 128 x 192: up to 128 rows on a wide B, whose tiles are then one round.
    #[serde(rename = "128x192")]
    Tile128x192,
    /// 64 x 192, one warpgroup: up to 64 rows on a wide B.
    #[serde(rename = "64x192")]
    Tile64x192,
    /// 128 x 64: some hundred rows, long k.
    #[serde(rename = "128x64")]
    Tile128x64,
    /// 64 x 128, half of the columns for each warpgroup.
    #[serde(rename = "64x128")]
    Tile64x128,
    /// 64 x 64, one block on a multiprocessor: few rows, long k.
    #[serde(rename = "64x64")]
    Tile64x64,
    /// 64 x 64, two blocks on a multiprocessor.
    #[serde(rename = "64x64-two")]
    Tile64x64Two,
    /// 128 x 160, two blocks divide k: where tiles of it are about half of the GPU, and k is long.
    #[serde(rename = "128x160-k2")]
    Tile128x160K2,
    /// 128 x 64, two blocks divide k: where tiles are too few for the GPU, and k is long.
    #[serde(rename = "128x64-k2")]
    Tile128x64K2,
    /// 64 x 64, two blocks divide k.
    #[serde(rename = "64x64-k2")]
    Tile64x64K2,
    /// 64 x 64, three blocks divide k.
    #[serde(rename = "64x64-k3")]
    Tile64x64K3,
    /// 64 x 64, four blocks divide k.
    #[serde(rename = "64x64-k4")]
    Tile64x64K4,
    /// 128 x 144, which [ends plainly](Self::ends_plainly): where tiles of 128 x 160 are a little more than whole rounds, or n is a multiple of it.
    #[serde(rename = "128x144")]
    Tile128x144,
    /// 128 x 96, which ends plainly: one round where 128 x 128 leave a quarter of the GPU idle.
    #[serde(rename = "128x96")]
    Tile128x96,
    /// 128 x 80, which ends plainly: likewise, on a long k.
    #[serde(rename = "128x80")]
    Tile128x80,
    /// 64 x 32, which ends plainly: few tiles and a short k.
    #[serde(rename = "64x32")]
    Tile64x32,
    /// 128 x 144, two blocks divide k, which ends plainly.
    #[serde(rename = "128x144-k2")]
    Tile128x144K2,
    /// 128 x 96, two blocks divide k, which ends plainly.
    #[serde(rename = "128x96-k2")]
    Tile128x96K2,
}

named!(
    Sm90Config, "configuration of the sm90 product", Tile256x128 => "256x128", Tile128x128 => "128x128",
    Tile128x160 => "128x160", Tile128x192 => "128x192", Tile64x192 => "64x192", Tile128x64 => "128x64",
    Tile64x128 => "64x128", Tile64x64 => "64x64", Tile64x64Two => "64x64-two",
    Tile128x160K2 => "128x160-k2", Tile128x64K2 => "128x64-k2", Tile64x64K2 => "64x64-k2", Tile64x64K3 => "64x64-k3",
    Tile64x64K4 => "64x64-k4", Tile128x144 => "128x144", Tile128x96 => "128x96", Tile128x80 => "128x80",
    Tile64x32 => "64x32", Tile128x144K2 => "128x144-k2", Tile128x96K2 => "128x96-k2",
);

/// What a launch must know of a configuration. Mirror of `kernels/gemm/sm90_table.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sm90Tile {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Warpgroups that multiply; one more copies.
    pub(super) warpgroups: u32,
    /// Neighbours along n that form a cluster, each with its part of A's rows: 2, or 1 for none.
    pub(super) sharers: usize,
    /// Blocks of a cluster that divide k among themselves, each for the same tile; 1 for none.
    pub(crate) split: usize,
    /// Whether each warpgroup stores D of BF16 or F16 in boxes of 64 columns and all of its rows.
    pub(super) boxes: bool,
    /// Blocks on a multiprocessor.
    pub(crate) residents: usize,
    /// Dynamic shared memory in bytes.
    pub(super) shared: u32,
}

impl Sm90Config {
    /// Tile, threads and memory.
    pub(crate) fn tile(self) -> Sm90Tile {
        match self {
            Self::Tile256x128 => Sm90Tile::of(256, 128, 2, 2, 1, 220_288).boxes(),
            Self::Tile128x128 => Sm90Tile::of(128, 128, 2, 1, 1, 202_912).boxes(),
            Self::Tile128x160 => Sm90Tile::of(128, 160, 2, 1, 1, 207_648),
            Self::Tile128x192 => Sm90Tile::of(128, 192, 2, 1, 1, 219_264).boxes(),
            Self::Tile64x192 => Sm90Tile::of(64, 192, 1, 1, 1, 212_160),
            Self::Tile128x64 => Sm90Tile::of(128, 64, 2, 1, 1, 220_416),
            Self::Tile64x128 => Sm90Tile::of(64, 128, 2, 1, 1, 220_416),
            Self::Tile64x64 => Sm90Tile::of(64, 64, 1, 1, 1, 212_352),
            Self::Tile64x64Two => Sm90Tile::of(64, 64, 1, 1, 2, 110_784),
            Self::Tile128x160K2 => Sm90Tile::of(128, 160, 2, 1, 1, 207_648).split(2),
            Self::Tile128x64K2 => Sm90Tile::of(128, 64, 2, 1, 1, 220_416).split(2),
            Self::Tile64x64K2 => Sm90Tile::of(64, 64, 1, 1, 1, 212_352).split(2),
            Self::Tile64x64K3 => Sm90Tile::of(64, 64, 1, 1, 1, 212_352).split(3),
            Self::Tile64x64K4 => Sm90Tile::of(64, 64, 1, 1, 1, 212_352).split(4),
            Self::Tile128x144 => Sm90Tile::of(128, 144, 2, 1, 1, 216_640),
            Self::Tile128x96 => Sm90Tile::of(128, 96, 2, 1, 1, 178_624),
            Self::Tile128x80 => Sm90Tile::of(128, 80, 2, 1, 1, 220_928),
            Self::Tile64x32 => Sm90Tile::of(64, 32, 1, 1, 1, 153_472),
            Self::Tile128x144K2 => Sm90Tile::of(128, 144, 2, 1, 1, 216_640).split(2),
            Self::Tile128x96K2 => Sm90Tile::of(128, 96, 2, 1, 1, 208_224).split(2),
        }
    }

    /// Whether all it has is a kernel of whole products of E4M3 codes with 1x128 (A) and 128x128 scales (B) to BF16 where nothing follows the sums: no bias, activation, residual or old value of
    /// D. It is offered for no others, and refused where a record or a call names it for them. Where a call's alpha is not 1, kernels of the configuration take its place that should be fastest of those
    /// with other ends and as many [`Sm90Config::k_parts`]: their sums are the same in every bit. `GemmPlan::explain` says which.
    pub fn ends_plainly(self) -> bool {
        matches!(
            self,
            Self::Tile128x144
                | Self::Tile128x96
                | Self::Tile128x80
                | Self::Tile64x32
                | Self::Tile128x144K2
                | Self::Tile128x96K2
        )
    }

    /// Whether it may take the place of one that ends plainly: it has all ends, and gives the same bits.
    pub(crate) fn stands_in_for(self, plain: Self) -> bool {
        !self.ends_plainly() && self.k_parts() == plain.k_parts()
    }

    /// The fewest blocks of 128 along k that its kernels with a plain end alone are for: 8 where they begin with a whole body of their loop, while whose first product they clear their sums.
    pub(super) fn least_plain_blocks(self) -> usize {
        if self == Self::Tile256x128 { 8 } else { 1 }
    }

    /// The same of a kernel for SwiGLU, where there is one: of columns of D, for each of which B has two rows.
    pub(crate) fn swiglu_tile(self) -> Option<Sm90Tile> {
        match self {
            Self::Tile128x128 => Some(Sm90Tile::of(128, 128, 2, 1, 1, 220_288)),
            Self::Tile64x128 => Some(Sm90Tile::of(64, 128, 2, 1, 1, 228_768)),
            _ => None,
        }
    }

    /// In how many parts it adds up k, of which each is added up by itself, and then they are: 1, or as many blocks as divide it. Configurations of equal
    /// parts give an element the same bits. Batch-invariant products and products of groups take those of 1 part alone, the latter of those that do not [end plainly](Self::ends_plainly).
    pub fn k_parts(self) -> usize {
        self.tile().split
    }

    /// The same of a kernel for codes: rows of a tile are whole groups.
    pub(crate) fn codes_tile(self) -> Option<Sm90Tile> {
        match self {
            Self::Tile256x128 => Some(Sm90Tile::of(256, 128, 2, 2, 1, 220_288)),
            Self::Tile128x128 => Some(Sm90Tile::of(128, 128, 2, 2, 1, 220_352)),
            Self::Tile64x128 => Some(self.tile()),
            _ => None,
        }
    }

    /// Whether there is one.
    pub(crate) fn stores_codes(self) -> bool {
        self.codes_tile().is_some()
    }

    /// Whether it is one of the few that have kernels of what is multiplied seldom, too: a row `SM90` of the table.
    fn is_common(self) -> bool {
        matches!(self, Self::Tile256x128 | Self::Tile128x128 | Self::Tile64x128 | Self::Tile64x64Two)
    }

    /// Whether it has kernels for these codes of A and B: all have them for E4M3 on both sides, some for E5M2 on one of the two.
    pub(crate) fn multiplies(self, formats: [Fp8Format; 2]) -> bool {
        use Fp8Format::{E4M3, E5M2};
        match formats {
            [E4M3, E4M3] => true,
            [E5M2, E4M3] | [E4M3, E5M2] => self.is_common(),
            [E5M2, E5M2] => false,
        }
    }

    /// That it has no kernel which stores what was asked for.
    pub(crate) fn casts_nothing(self) -> Error {
        Error::unsupported(
            format!("the configuration {self} of a product that casts D"),
            "codes have it in 256x128, 128x128 and 64x128, SwiGLU in 128x128 and 64x128",
            "ask for one of these, or for none",
        )
    }

    /// That it has no kernel of this kind for these codes.
    pub(super) fn has_none(self, kind: Kind, formats: [Fp8Format; 2]) -> Error {
        if formats != E4M3_PAIR {
            let [a, b] = formats;
            return Error::unsupported(
                format!("the configuration {self} of a product of {a} codes (A) and {b} codes (B)"),
                "with e5m2 on one of the two sides there are products that store numbers, whole or of groups, in 256x128, 128x128, 64x128 and 64x64-two; with e5m2 on both none",
                "quantize both operands to e4m3, or ask for one of these configurations",
            );
        }
        if kind.casts() {
            return self.casts_nothing();
        }
        let what = match kind {
            Kind::BlockA => "with 128x128 scales of A",
            Kind::VectorGrouped if self.k_parts() == 1 => "of groups of rows with 1x128 scales on both sides",
            _ if self.ends_plainly() => return self.has_no_other_end(),
            _ => return self.has_no_groups(),
        };
        Error::unsupported(
            format!("the configuration {self} of a product {what}"),
            "256x128, 128x128, 64x128 and 64x64-two have kernels for it",
            "ask for one of these configurations, or for none",
        )
    }

    fn has_no_other_end(self) -> Error {
        Error::unsupported(
            format!("the configuration {self} of another product than a whole one of 1x128 and 128x128 scales to bf16"),
            "its kernels store the sums, and have no other end",
            "ask for another configuration, or for none",
        )
    }

    fn has_no_groups(self) -> Error {
        Error::unsupported(
            format!("the configuration {self} of a product of groups"),
            "blocks that divide k have one tile of one product each, and groups have any number of tiles",
            "ask for a configuration without -k in its name, or for none",
        )
    }

    /// Refuses it for groups of this kind and such codes, unless it has kernels for them.
    pub(super) fn check_groups(self, kind: Kind, formats: [Fp8Format; 2]) -> Result<()> {
        self.tile_of(kind, formats).map(drop).ok_or_else(|| self.has_none(kind, formats))
    }

    /// The tile of its kernel of this kind for such codes, if there is one.
    pub(super) fn tile_of(self, kind: Kind, formats: [Fp8Format; 2]) -> Option<Sm90Tile> {
        if formats != E4M3_PAIR {
            return (self.multiplies(formats) && E5M2_KINDS.contains(&kind)).then(|| self.tile());
        }
        match kind {
            _ if self.ends_plainly() => (kind == Kind::Plain).then(|| self.tile()),
            Kind::Swiglu | Kind::SwigluGrouped | Kind::OuterSwiglu | Kind::OuterSwigluGrouped => self.swiglu_tile(),
            Kind::Codes | Kind::CodesGrouped => self.codes_tile(),
            Kind::Block | Kind::Plain | Kind::Vector | Kind::VectorFp32 | Kind::Outer | Kind::OuterPlain => {
                Some(self.tile())
            }
            Kind::Grouped
            | Kind::PlainGrouped
            | Kind::VectorOfK
            | Kind::VectorFp32OfK
            | Kind::OuterGrouped
            | Kind::OuterPlainGrouped
            | Kind::OuterFp32OfK => (self.k_parts() == 1).then(|| self.tile()),
            Kind::VectorGrouped | Kind::BlockA => self.is_common().then(|| self.tile()),
        }
    }

    /// `gemm_fp8_block_<configuration>` and its like, with `_grouped` behind it for groups of rows, `_k_grouped` for groups of k; of other codes than E4M3 on both sides
    /// `gemm_e5m2_e4m3_block_<configuration>`.
    pub(super) fn kernel(self, formats: [Fp8Format; 2], kind: Kind) -> String {
        let name = self.name().replace('-', "_");
        let [a, b] = formats;
        let codes = if formats == E4M3_PAIR { "fp8".to_string() } else { format!("{a}_{b}") };
        match kind {
            Kind::Block => format!("gemm_{codes}_block_{name}"),
            Kind::Grouped => format!("gemm_{codes}_block_{name}_grouped"),
            Kind::Plain => format!("gemm_{codes}_plain_{name}"),
            Kind::PlainGrouped => format!("gemm_{codes}_plain_{name}_grouped"),
            Kind::Vector => format!("gemm_{codes}_vector_{name}"),
            Kind::VectorGrouped => format!("gemm_{codes}_vector_{name}_grouped"),
            Kind::VectorOfK => format!("gemm_{codes}_vector_{name}_k_grouped"),
            Kind::VectorFp32 => format!("gemm_{codes}_vector_fp32_{name}"),
            Kind::VectorFp32OfK => format!("gemm_{codes}_vector_fp32_{name}_k_grouped"),
            Kind::OuterPlain => format!("gemm_{codes}_outer_plain_{name}"),
            Kind::OuterPlainGrouped => format!("gemm_{codes}_outer_plain_{name}_grouped"),
            Kind::OuterFp32OfK => format!("gemm_{codes}_outer_fp32_{name}_k_grouped"),
            Kind::BlockA => format!("gemm_{codes}_block_a_{name}"),
            Kind::Outer => format!("gemm_{codes}_outer_{name}"),
            Kind::OuterGrouped => format!("gemm_{codes}_outer_{name}_grouped"),
            Kind::Codes => format!("gemm_{codes}_codes_{name}"),
            Kind::CodesGrouped => format!("gemm_{codes}_codes_{name}_grouped"),
            Kind::Swiglu => format!("gemm_{codes}_swiglu_{name}"),
            Kind::SwigluGrouped => format!("gemm_{codes}_swiglu_{name}_grouped"),
            Kind::OuterSwiglu => format!("gemm_{codes}_outer_swiglu_{name}"),
            Kind::OuterSwigluGrouped => format!("gemm_{codes}_outer_swiglu_{name}_grouped"),
        }
    }
}

impl Sm90Tile {
    fn of(rows: usize, cols: usize, warpgroups: u32, sharers: usize, residents: usize, shared: u32) -> Self {
        Self { rows, cols, warpgroups, sharers, split: 1, boxes: false, residents, shared }
    }

    /// The same of kernels that store boxes.
    fn boxes(self) -> Self {
        Self { boxes: true, ..self }
    }

    /// The same of kernels whose clusters divide k.
    fn split(self, split: usize) -> Self {
        Self { split, ..self }
    }

    /// Blocks of a cluster.
    pub(super) fn cluster(&self) -> usize {
        self.sharers * self.split
    }

    /// Blocks that run at once: whole clusters. (Of four, two multiprocessors in some tens are left over: observed, H200. Of three no more are taken for granted.)
    pub(crate) fn blocks_at_once(&self, sm_count: usize) -> usize {
        let clusters = if self.split > 2 {
            sm_count * self.residents * 10 / 11 / self.split
        } else {
            sm_count * self.residents / self.cluster()
        };
        clusters.max(1) * self.cluster()
    }

    /// Blocks that an m x n product asks for: one a tile, those of whole clusters.
    pub(crate) fn tiles(&self, m: usize, n: usize) -> usize {
        m.div_ceil(self.rows) * n.div_ceil(self.cols * self.sharers) * self.cluster()
    }

    /// Tiles along m that are walked before the next along n, so that what blocks of a moment read stays in L2 (measured: 8 and 16 are
    /// equal, 4 is slower; H200, 2026-11).
    pub(super) fn raster(&self) -> u32 {
        if self.rows >= 256 { 8 } else { 16 }
    }
}

/// What the kernels of a configuration differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// 1x128 and 128x128 scales.
    Block,
    /// The same, of groups of rows.
    Grouped,
    /// The same scales, where D is BF16 and nothing follows the sums.
    Plain,
    /// The same, of groups of rows.
    PlainGrouped,
    /// 1x128 scales on both sides.
    Vector,
    /// The same, of groups of rows.
    VectorGrouped,
    /// The same, of groups of k.
    VectorOfK,
    /// 1x128 scales on both sides, where D is FP32 and stored as it is or added to.
    VectorFp32,
    /// The same, of groups of k.
    VectorFp32OfK,
    /// 128x128 and 1x128 scales.
    BlockA,
    /// Scales of rows or whole matrices.
    Outer,
    /// The same, of groups of rows.
    OuterGrouped,
    /// Scales of rows or whole matrices, where D is BF16 and nothing else follows the sums.
    OuterPlain,
    /// The same, of groups of rows.
    OuterPlainGrouped,
    /// Scales of rows or whole matrices, which groups share, of groups of k, where D is FP32 and added to.
    OuterFp32OfK,
    /// 1x128 and 128x128 scales, D in codes with 1x128 scales.
    Codes,
    /// The same, of groups of rows.
    CodesGrouped,
    /// The same scales, and SwiGLU of two products.
    Swiglu,
    /// The same, of groups of rows.
    SwigluGrouped,
    /// Scales of rows or whole matrices, and SwiGLU of two products.
    OuterSwiglu,
    /// The same, of groups of rows.
    OuterSwigluGrouped,
}

impl Kind {
    pub(super) const ALL: [Self; 21] = [
        Self::Block,
        Self::Grouped,
        Self::Plain,
        Self::PlainGrouped,
        Self::Vector,
        Self::VectorGrouped,
        Self::VectorOfK,
        Self::VectorFp32,
        Self::VectorFp32OfK,
        Self::BlockA,
        Self::Outer,
        Self::OuterGrouped,
        Self::OuterPlain,
        Self::OuterPlainGrouped,
        Self::OuterFp32OfK,
        Self::Codes,
        Self::CodesGrouped,
        Self::Swiglu,
        Self::SwigluGrouped,
        Self::OuterSwiglu,
        Self::OuterSwigluGrouped,
    ];

    /// Whether D is not the sums.
    pub(super) fn casts(self) -> bool {
        self.file() == "gemm/sm90_cast"
    }

    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Block | Self::Grouped => "gemm/sm90_block",
            Self::Plain | Self::PlainGrouped => "gemm/sm90_plain",
            Self::OuterPlain | Self::OuterPlainGrouped => "gemm/sm90_outer_plain",
            Self::OuterFp32OfK => "gemm/sm90_outer_fp32",
            Self::VectorFp32 | Self::VectorFp32OfK => "gemm/sm90_vector_fp32",
            Self::Vector | Self::VectorGrouped | Self::VectorOfK => "gemm/sm90_vector",
            Self::BlockA => "gemm/sm90_block_a",
            Self::Outer | Self::OuterGrouped => "gemm/sm90_outer",
            Self::Codes
            | Self::CodesGrouped
            | Self::Swiglu
            | Self::SwigluGrouped
            | Self::OuterSwiglu
            | Self::OuterSwigluGrouped => "gemm/sm90_cast",
        }
    }
}

/// Which file has which pair of codes with E5M2.
const E5M2_FILES: [(&str, [Fp8Format; 2]); 2] = [
    ("gemm/sm90_e5m2_a", [Fp8Format::E5M2, Fp8Format::E4M3]),
    ("gemm/sm90_e5m2_b", [Fp8Format::E4M3, Fp8Format::E5M2]),
];

/// What there are kernels of with E5M2 on one side.
const E5M2_KINDS: [Kind; 9] = [
    Kind::Block,
    Kind::Grouped,
    Kind::Vector,
    Kind::VectorGrouped,
    Kind::VectorOfK,
    Kind::BlockA,
    Kind::Outer,
    Kind::OuterGrouped,
    Kind::OuterFp32OfK,
];

/// E4M3 on both sides.
pub(super) const E4M3_PAIR: [Fp8Format; 2] = [Fp8Format::E4M3; 2];

/// The kernels of a family, and the codes of A and B that they multiply.
pub(super) struct Sm90Kernels {
    kernels: Vec<([Fp8Format; 2], Kind, Sm90Config, Kernel)>,
}

impl Sm90Kernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let mut kernels = Vec::new();
        for kind in Kind::ALL {
            let file = modules.file(kind.file())?;
            for config in Sm90Config::ALL {
                let Some(tile) = config.tile_of(kind, E4M3_PAIR) else { continue };
                kernels.push((
                    E4M3_PAIR,
                    kind,
                    config,
                    file.kernel_with_shared(&config.kernel(E4M3_PAIR, kind), tile.shared)?,
                ));
            }
        }
        Ok(Self { kernels })
    }

    /// Those with E5M2 on one side.
    pub(super) fn of_e5m2(modules: &Modules) -> Result<Self> {
        let mut kernels = Vec::new();
        for (file, formats) in E5M2_FILES {
            let file = modules.file(file)?;
            for kind in E5M2_KINDS {
                for config in Sm90Config::ALL {
                    let Some(tile) = config.tile_of(kind, formats) else { continue };
                    let kernel = file.kernel_with_shared(&config.kernel(formats, kind), tile.shared)?;
                    kernels.push((formats, kind, config, kernel));
                }
            }
        }
        Ok(Self { kernels })
    }

    pub(super) fn of_call(&self, formats: [Fp8Format; 2], kind: Kind, config: Sm90Config) -> Option<Kernel> {
        let found = self.kernels.iter().find(|(f, k, c, _)| (*f, *k, *c) == (formats, kind, config));
        found.map(|(.., kernel)| *kernel)
    }
}
