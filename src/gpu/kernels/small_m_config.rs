//! [`SmallMConfig`]: how a product of few rows is cut into blocks and clusters. What each block costs is known here, who launches it elsewhere.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a block of the `small-m` product multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SmallMOperands {
    /// E4M3 codes of both sides.
    Fp8,
    /// Rows of BF16 or F16 numbers with E2M1 weights.
    E2m1Weights,
    /// Rows of BF16 or F16 numbers with E4M3 weights.
    E4m3Weights,
}

named!(
    SmallMOperands, "operands of the small-m product", Fp8 => "fp8", E2m1Weights => "e2m1-weights", E4m3Weights => "e4m3-weights",
);

/// How a block of the `small-m` product is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SmallMBlock {
    /// FP8: one warpgroup, which takes 128 of k at a time: four blocks on a multiprocessor, three from 17 rows of A on.
    One,
    /// FP8: one warpgroup, 256 of k at a time.
    OneDeep,
    /// FP8: two warpgroups, each with a half of the block's part of k, 128 at a time.
    Two,
    /// E2M1 weights: four warps, each with a quarter of the block's part of k.
    Four,
    /// E2M1 weights: eight warps, each with an eighth of the block's part of k.
    Eight,
    /// E2M1 weights: sixteen warps, each with a sixteenth of the block's part of k.
    Sixteen,
    /// E2M1 weights: the same with 16 rows of B for 32.
    Narrow,
    /// E2M1 weights: four warps, each with a quarter of the block's 128 rows of B, for up to 64 rows of A, which they share. The one above 16 rows; of 9 to 16 rows of many weights the first on sm_90, and else tried last.
    Tile,
    /// E4M3 weights: the same, at any m up to 64.
    TileE4m3,
}

named!(
    SmallMBlock, "block of the small-m product", One => "one", OneDeep => "one-deep", Two => "two", Four => "four", Eight => "eight",
    Sixteen => "sixteen", Narrow => "narrow", Tile => "tile", TileE4m3 => "tile-e4m3",
);

/// What a launch must know of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Mirror of the table in `kernels/gemm/small_m_fp8.cu`: warpgroups; times 128 of k, a stage of the ring; stages with at most eight rows of A, and with more.
    E4m3 { warpgroups: usize, steps: usize, stages: [usize; 2] },
    /// Mirror of the table in `kernels/gemm/small_m_e2m1.cu`: times 16 rows of B; warps; steps of codes on their way; blocks on a multiprocessor with at most
    /// eight rows of A, and with more.
    E2m1 { pairs: usize, warps: usize, stages: usize, residents: [usize; 2] },
    /// Mirror of the other table there, and of that in `kernels/gemm/small_m_e4m3.cu`: E4M3 codes, else E2M1; stages of the ring; blocks on a
    /// multiprocessor for each of the [`SmallMBlock::widths`].
    Tile { e4m3: bool, stages: usize, residents: [usize; 4] },
}

impl SmallMBlock {
    /// What it multiplies.
    pub fn operands(self) -> SmallMOperands {
        match self.shape() {
            Shape::E4m3 { .. } => SmallMOperands::Fp8,
            Shape::E2m1 { .. } | Shape::Tile { e4m3: false, .. } => SmallMOperands::E2m1Weights,
            Shape::Tile { e4m3: true, .. } => SmallMOperands::E4m3Weights,
        }
    }

    /// Those that multiply such operands.
    pub(crate) fn of(operands: SmallMOperands) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |block| block.operands() == operands)
    }

    pub(super) fn shape(self) -> Shape {
        match self {
            Self::One => Shape::E4m3 { warpgroups: 1, steps: 1, stages: [4, 4] },
            Self::OneDeep => Shape::E4m3 { warpgroups: 1, steps: 2, stages: [3, 3] },
            Self::Two => Shape::E4m3 { warpgroups: 2, steps: 1, stages: [6, 5] },
            Self::Four => Shape::E2m1 { pairs: 2, warps: 4, stages: 2, residents: [6, 4] },
            Self::Eight => Shape::E2m1 { pairs: 2, warps: 8, stages: 2, residents: [3, 2] },
            Self::Sixteen => Shape::E2m1 { pairs: 2, warps: 16, stages: 1, residents: [1, 1] },
            Self::Narrow => Shape::E2m1 { pairs: 1, warps: 16, stages: 2, residents: [2, 1] },
            Self::Tile => Shape::Tile { e4m3: false, stages: 3, residents: [4, 4, 3, 3] },
            Self::TileE4m3 => Shape::Tile { e4m3: true, stages: 3, residents: [3, 3, 3, 2] },
        }
    }

    /// Columns of the tensor core's product, which hold the rows of A.
    pub(super) fn widths(self) -> &'static [usize] {
        match self.shape() {
            Shape::E4m3 { .. } => &[8, 16, 32],
            Shape::E2m1 { .. } => &[8, 16],
            Shape::Tile { e4m3: false, .. } => &[16, 32, 48, 64],
            Shape::Tile { e4m3: true, .. } => &[8, 16, 32, 64],
        }
    }

    /// The most rows of A.
    pub(crate) fn most_rows(self) -> usize {
        self.widths().iter().copied().max().unwrap_or(0)
    }

    /// Whether it multiplies any number of rows: what is above the most comes in further passes over B. Only tiles do, which no product of a chain is.
    pub(crate) fn takes_passes(self) -> bool {
        matches!(self.shape(), Shape::Tile { .. })
    }

    /// Whether it multiplies m rows of A, in as many passes as it takes.
    pub(crate) fn multiplies(self, m: usize) -> bool {
        m <= self.most_rows() || self.takes_passes()
    }

    /// The columns that hold m rows of A; the most there are where they do not.
    pub(super) fn tokens(self, m: usize) -> usize {
        self.widths().iter().copied().find(|tokens| m <= *tokens).unwrap_or(self.most_rows())
    }

    /// Parts of k in a block.
    pub(crate) fn parts(self) -> usize {
        match self.shape() {
            Shape::E4m3 { warpgroups, .. } => warpgroups,
            Shape::E2m1 { warps, .. } => warps,
            Shape::Tile { .. } => 1,
        }
    }

    pub(super) fn threads(self) -> u32 {
        match self.shape() {
            Shape::E4m3 { warpgroups, .. } => 128 * warpgroups as u32,
            Shape::E2m1 { warps, .. } => 32 * warps as u32,
            Shape::Tile { .. } => 128,
        }
    }

    /// Blocks, or clusters of them, that n rows of B make.
    pub(crate) fn tiles(self, n: usize) -> usize {
        match self.shape() {
            Shape::E4m3 { .. } => n.div_ceil(E4M3_ROWS),
            // Of the 128 rows that share tiles of scales a block takes a quarter here and there, or a quarter of one half of them.
            Shape::E2m1 { pairs, .. } => n.div_ceil(TILE_ROWS / 2 * pairs) * 4,
            Shape::Tile { .. } => n.div_ceil(TILE_ROWS),
        }
    }

    /// Dynamic shared memory in bytes: for E4M3 the rings of B, A and scales; the sums that arrive, and a barrier; for E2M1 likewise of codes and scales. Of tiles a ring of codes, scales and A, in
    /// whose place sums arrive; of E4M3 and few rows of A they have one of their own. Mirror of `SmallMConfig`, `SmallME2m1Config` and `SmallMTileConfig` in `kernels/gemm/`.
    pub(super) fn shared(self, tokens: usize) -> u32 {
        let stages = match self.shape() {
            Shape::E4m3 { stages, .. } => stages[usize::from(tokens > 8)],
            Shape::E2m1 { stages, .. } | Shape::Tile { stages, .. } => stages,
        };
        self.shared_with_stages(stages, tokens)
    }

    /// The same with so many stages, or steps of codes on their way.
    pub(super) fn shared_with_stages(self, stages: usize, tokens: usize) -> u32 {
        let bytes = match self.shape() {
            Shape::E4m3 { warpgroups, steps, .. } => {
                let step = (E4M3_ROWS + tokens) * 128 + tokens * 4 + 16;
                warpgroups * (stages * steps * step + E4M3_ROWS * tokens * 4) + 16
            }
            Shape::E2m1 { pairs, warps, .. } => {
                // Of a warp's rows 64 bytes of codes, and the block scales of four of them 32 times.
                let rows = PAIR_ROWS * pairs;
                128 + warps * (stages * rows * (64 + 16) + rows * tokens * 4) + 16
            }
            Shape::Tile { e4m3, .. } => {
                let weights = if e4m3 { TILE_ROWS * 128 + 512 } else { TILE_ROWS * 64 + 1024 };
                let own_parts = if e4m3 && tokens <= 16 { TILE_ROWS * tokens * 4 + 16 } else { 0 };
                stages * (weights + tokens * 256) + own_parts
            }
        };
        bytes as u32
    }

    /// That of weights that are repacked, with one step of codes on its way. Mirror of the table in `kernels/gemm/small_m_repacked.cu`.
    pub(super) fn repacked_shared(self, tokens: usize) -> u32 {
        match self.shape() {
            Shape::E2m1 { .. } => self.shared_with_stages(1, tokens),
            Shape::E4m3 { .. } | Shape::Tile { .. } => self.shared(tokens),
        }
    }

    /// Blocks for which a multiprocessor has shared memory: 228 KiB, of which each takes one more than it asks for.
    pub(super) fn have_memory(self, m: usize) -> usize {
        (228 << 10) / (self.shared(self.tokens(m)) as usize + 1024)
    }

    /// Blocks on a multiprocessor. Those of E4M3 share its memory; four at the most, as they were measured. Those of E2M1 have
    /// registers for so many.
    pub(crate) fn residents(self, m: usize) -> usize {
        match self.shape() {
            Shape::E4m3 { .. } => self.have_memory(m).min(4),
            Shape::E2m1 { residents: [few, more], .. } => {
                if m <= 8 {
                    few
                } else {
                    more
                }
            }
            Shape::Tile { residents, .. } => {
                let tokens = self.tokens(m);
                self.widths().iter().zip(residents).find(|(width, _)| **width == tokens).map_or(1, |(_, blocks)| blocks)
            }
        }
    }
}

/// Rows of B that a block multiplies.
const E4M3_ROWS: usize = 64;
/// Times so many, of E2M1 weights: of one product of the tensor core.
const PAIR_ROWS: usize = 16;
/// Those that share tiles of block scales.
const TILE_ROWS: usize = 128;

/// The most rows of A of these operands.
pub(crate) fn most_rows(operands: SmallMOperands) -> usize {
    SmallMBlock::of(operands).map(SmallMBlock::most_rows).max().unwrap_or(0)
}

/// A configuration of the `small-m` product: a block, and into how many parts several blocks split k, those of a cluster, or ones that leave their sums in scratch memory. The parts whose sums are
/// added in the order of k are the split times those of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "SmallMConfigFile", into = "SmallMConfigFile")]
pub struct SmallMConfig {
    block: SmallMBlock,
    split: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SmallMConfigFile {
    block: SmallMBlock,
    split: u32,
}

impl From<SmallMConfig> for SmallMConfigFile {
    fn from(SmallMConfig { block, split }: SmallMConfig) -> Self {
        Self { block, split }
    }
}

impl TryFrom<SmallMConfigFile> for SmallMConfig {
    type Error = Error;

    fn try_from(file: SmallMConfigFile) -> Result<Self> {
        Self::new(file.block, file.split)
    }
}

impl SmallMConfig {
    /// The splits of k of every block: blocks of a cluster.
    pub const SPLITS: [u32; 4] = [1, 2, 4, 8];
    /// Those of tiles beside them, which no cluster has: parts of their sums meet in scratch memory, by warpgroup products of sm_90 alone.
    pub const SPLITS_IN_MEMORY: [u32; 2] = [3, 6];

    /// A block, and into how many parts k is split.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless `split` is one of [`SmallMConfig::SPLITS`], or, of blocks that are tiles, of
    /// [`SmallMConfig::SPLITS_IN_MEMORY`].
    pub fn new(block: SmallMBlock, split: u32) -> Result<Self> {
        let mut all = Self::SPLITS.into_iter().chain(Self::in_memory(block).map(|config| config.split));
        if !all.any(|one| one == split) {
            return Err(Error::unsupported(
                format!("a small-m product in blocks of {block} that splits k into {split}"),
                "a cluster has 1, 2, 4 or 8 blocks, and of tiles alone 3 or 6 leave their parts of sums in memory",
                "choose one of them, or tune anew",
            ));
        }
        Ok(Self { block, split })
    }

    /// Every configuration for these operands that [needs no memory](Self::needs_memory) for its sums. Not each serves as many rows of A: those of E2M1 weights
    /// 64 in blocks of [`SmallMBlock::Tile`], and 16 in others.
    pub fn all(operands: SmallMOperands) -> impl Iterator<Item = Self> {
        SmallMBlock::of(operands).flat_map(|block| Self::SPLITS.map(|split| Self { block, split }))
    }

    /// The others of a block.
    pub(crate) fn in_memory(block: SmallMBlock) -> impl Iterator<Item = Self> {
        Self::SPLITS_IN_MEMORY.into_iter().filter(move |_| block.takes_passes()).map(move |split| Self { block, split })
    }

    /// Whether its parts of sums meet only in scratch memory, as no cluster has so many blocks: a split of [`SmallMConfig::SPLITS_IN_MEMORY`], which serves warpgroup
    /// products of as many blocks as run at once on sm_90. Others of tiles meet there or in a cluster, to the same bits.
    pub fn needs_memory(self) -> bool {
        Self::SPLITS_IN_MEMORY.contains(&self.split)
    }

    /// Whether its blocks must meet in a cluster, which GPUs have since sm_90. Those of tiles may leave their parts of sums in memory instead, for another
    /// kernel to add in the same order.
    pub fn needs_clusters(self) -> bool {
        self.split > 1 && !matches!(self.block.shape(), Shape::Tile { .. })
    }

    /// Bytes in which a product of m by n leaves the sums over its parts of k, where they do not meet in a cluster.
    pub(crate) fn parts_bytes(self, clusters: bool, [m, n]: [usize; 2]) -> usize {
        // Passes follow one another, and each has the same memory.
        let m = m.min(self.block.most_rows());
        if clusters || self.split == 1 { 0 } else { self.split as usize * m * n * 4 }
    }

    /// The block.
    pub fn block(self) -> SmallMBlock {
        self.block
    }

    /// Blocks, each with a part of k.
    pub fn split(self) -> u32 {
        self.split
    }

    /// The parts of k whose sums are added in its order: configurations of as many give the same bits.
    pub(crate) fn parts(self) -> usize {
        self.split as usize * self.block.parts()
    }
}

impl std::fmt::Display for SmallMConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, k split by {}", self.block, self.split)
    }
}

/// For a configuration of other operands.
pub(super) fn no_such_block(block: SmallMBlock, operands: SmallMOperands) -> Error {
    Error::unsupported(
        format!("a small-m product of {operands} in blocks of {block}"),
        format!("those multiply {}", block.operands()),
        "choose one of SmallMConfig::all, or tune anew",
    )
}

/// For a configuration whose columns do not hold m rows of A.
pub(super) fn too_many_rows(block: SmallMBlock, shape: String) -> Error {
    let (operands, most) = (block.operands(), block.most_rows());
    let rule = format!("m must be at most {most} for {operands} in blocks of {block}");
    let remedy = if most < most_rows(operands) { "choose blocks for more rows" } else { "use another formulation" };
    Error::shape("A", shape, rule, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_a_multiprocessor() {
        let residents = |block: SmallMBlock| [1, 8, 16, 32].map(|m| block.residents(m));
        let of_tiles = [1, 16, 17, 32, 33, 48, 49, 64].map(|m| SmallMBlock::Tile.residents(m));
        assert_eq!(of_tiles, [4, 4, 4, 4, 3, 3, 3, 3]);
        assert_eq!([1, 8, 9, 16, 17, 64].map(|m| SmallMBlock::TileE4m3.residents(m)), [3, 3, 3, 3, 3, 2]);
        assert_eq!([1, 9, 16, 17, 33].map(|m| SmallMBlock::TileE4m3.tokens(m)), [8, 16, 16, 32, 64]);
        assert_eq!(residents(SmallMBlock::One), [4, 4, 4, 3]);
        assert_eq!([1, 8, 16, 32].map(|m| SmallMBlock::One.have_memory(m)), [5, 5, 5, 3]);
        assert_eq!(residents(SmallMBlock::OneDeep), [3, 3, 3, 2]);
        assert_eq!(residents(SmallMBlock::Two), [2, 2, 2, 1]);
        assert_eq!(residents(SmallMBlock::Four), [6, 6, 4, 4]);
        assert_eq!(residents(SmallMBlock::Eight), [3, 3, 2, 2]);
        assert_eq!(residents(SmallMBlock::Sixteen), [1; 4]);
        assert_eq!(residents(SmallMBlock::Narrow), [2, 2, 1, 1]);
        for block in SmallMBlock::ALL {
            for tokens in block.widths() {
                assert!(block.shared(*tokens) <= 227 << 10);
                let all = block.residents(*tokens) * (block.shared(*tokens) as usize + 1024);
                assert!(all <= 228 << 10, "{block}, {tokens}");
            }
        }
        assert_eq!([1, 8, 9, 16, 17, 32].map(|m| SmallMBlock::One.tokens(m)), [8, 8, 16, 16, 32, 32]);
        assert_eq!([1, 8, 9, 16, 17].map(|m| SmallMBlock::Four.tokens(m)), [8, 8, 16, 16, 16]);
        assert_eq!(
            [1, 16, 17, 32, 33, 48, 49, 64, 65].map(|m| SmallMBlock::Tile.tokens(m)),
            [16, 16, 32, 32, 48, 48, 64, 64, 64]
        );
        assert_eq!(SmallMBlock::ALL.map(SmallMBlock::most_rows), [32, 32, 32, 16, 16, 16, 16, 64, 64]);
        assert_eq!(SmallMOperands::ALL.map(most_rows), [32, 64, 64]);
        assert_eq!(
            [8, 128, 136].map(|n| {
                [SmallMBlock::Two, SmallMBlock::Four, SmallMBlock::Narrow, SmallMBlock::Tile]
                    .map(|block| block.tiles(n))
            }),
            [[1, 4, 4, 1], [2, 4, 8, 1], [3, 8, 12, 2]]
        );
    }

    #[test]
    fn configurations_of_a_file_are_checked() {
        let read = |text: &str| serde_json::from_str::<SmallMConfig>(text).map_err(|e| e.to_string());
        for (operands, count) in SmallMOperands::ALL.into_iter().zip([12, 20, 4]) {
            assert_eq!(SmallMConfig::all(operands).count(), count);
            for config in SmallMConfig::all(operands) {
                assert_eq!(config.block().operands(), operands);
                assert_eq!(read(&serde_json::to_string(&config).unwrap()), Ok(config));
            }
        }
        let tiles = [SmallMBlock::Tile, SmallMBlock::TileE4m3];
        for block in SmallMBlock::ALL {
            let more: Vec<_> = SmallMConfig::in_memory(block).collect();
            assert_eq!(
                more.iter().map(|config| config.split()).collect::<Vec<_>>(),
                if tiles.contains(&block) { vec![3, 6] } else { vec![] }
            );
            assert!(more.iter().all(|config| config.needs_memory() && !config.needs_clusters()));
            assert!(more.iter().all(|config| read(&serde_json::to_string(config).unwrap()) == Ok(*config)));
            let refused: Vec<_> = (0..20).filter(|split| SmallMConfig::new(block, *split).is_err()).collect();
            assert!(
                [0, 5, 7, 12, 16].iter().all(|split| refused.contains(split))
                    && refused.contains(&3) == more.is_empty()
            );
        }
        assert!(SmallMOperands::ALL.into_iter().flat_map(SmallMConfig::all).all(|config| !config.needs_memory()));
        let no_tile = read(r#"{"block":"one","split":3}"#).unwrap_err();
        assert!(
            no_tile.contains("blocks of one that splits k into 3") && no_tile.contains("of tiles alone 3 or 6"),
            "{no_tile}"
        );
        assert!(read(r#"{"block":"tile","split":5}"#).unwrap_err().contains("splits k into 5"));
        assert!(read(r#"{"block":"three","split":2}"#).is_err() && read(r#"{"block":"one"}"#).is_err());
    }
}
