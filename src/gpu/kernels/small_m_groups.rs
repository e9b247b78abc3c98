//! Launches of `kernels/gemm/small_m_groups_e2m1.cu`, `small_m_groups_e4m3.cu` and `small_m_groups_wgmma.cu`: products of groups of few rows of BF16 or F16 numbers on Hopper, each
//! with quantized weights of its own, and of one or two matrices of weights side by side.

use super::Kernels;
use super::launch::{Blocks, Kernel, THREADS, enqueue};
use super::module::Modules;
use super::operand::{address, check_aligned, check_bytes};
use super::sm90_groups::{Sm90Groups, Sm90Rows};
use super::small_m::InChain;
use super::small_m_codes::SmallMWeights;
use super::small_m_config::{SmallMBlock, SmallMConfig, SmallMOperands};
use super::small_m_end::MOST_LENGTH;
use super::small_m_groups_wgmma::{self as wgmma, SmallMGroupsWgmmaKernels};
use super::small_m_weights::SmallMWeightsCall;
use super::small_m_wgmma::BLOCK;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Columns of the tensor core's product, which hold rows of a group, and blocks on a multiprocessor. Mirror of the tables in the kernel files.
type Width = (usize, usize);
const E2M1: [Width; 4] = [(8, 4), (16, 4), (32, 3), (64, 2)];
const E4M3: [Width; 4] = [(8, 3), (16, 3), (32, 3), (64, 2)];

/// The kernels of these tiles.
fn widths(block: SmallMBlock) -> [Width; 4] {
    if block == SmallMBlock::Tile { E2M1 } else { E4M3 }
}

/// Usual rows above which parts of 64 are (of groups with E4M3 weights above 32: H100, 2026-11, the record of groups by warpgroup products: 194 us for 208 at 64) faster than of 32, whose blocks are three on a multiprocessor for two (H200, 2026-11, the record of prefill: BF16 x `nvfp4-row` 270 us for
/// 305 at 96 rows of each group, 358 for 347 at 128).
const MANY_ROWS: usize = 96;

/// Times 128 of k that a part has at least, where k is as long.
const STEPS: usize = 14;

/// How products of groups are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmallMGroupsConfig {
    /// Rows of a group that are multiplied at once: of more, the codes are read once more for as many.
    tokens: usize,
    /// By warpgroup products, behind a kernel that arranges A.
    wgmma: bool,
    /// The order of sums: of a product by itself in the same configuration.
    tile: SmallMConfig,
}

impl SmallMGroupsConfig {
    /// For groups that have so many rows each, as a rule, of an A of m x k. The split follows k alone: what a row's product is does not depend on how many rows or
    /// groups there are.
    pub(crate) fn of(operands: SmallMOperands, rows: usize, [m, k]: [usize; 2]) -> Result<Self> {
        let mut tiles = Self::of_tiles(operands, rows, k)?;
        let [.., (few, _), (many, _)] = widths(tiles.tile.block());
        if operands == SmallMOperands::E4m3Weights && rows > few {
            tiles.tokens = many;
        }
        let tokens = wgmma::tokens(operands, rows).filter(|_| wgmma::can_arrange([m, k]));
        Ok(tokens.map_or(tiles, |tokens| Self { tokens, wgmma: true, ..tiles }))
    }

    /// The same of the tiles that are in one launch.
    pub(crate) fn of_tiles(operands: SmallMOperands, rows: usize, k: usize) -> Result<Self> {
        let block = block(operands);
        let [(eight, _), (sixteen, _), (few, _), (many, _)] = widths(block);
        let tokens = match rows {
            rows if rows > MANY_ROWS => many,
            rows => [eight, sixteen].into_iter().find(|tokens| rows <= *tokens).unwrap_or(few),
        };
        // A cluster walks part after part of D, and each begins with an empty ring: short walks cost the most (H200, 2026-11, the record of experts: with four steps to a part, 256
        // experts of 7168 x 2048 are read at 3.6 TB/s in E4M3, those of 4096 x 7168 with 14 steps at 4.3).
        let split = 1 << (k.div_ceil(128) / STEPS).clamp(1, 4).ilog2();
        Ok(Self { tokens, wgmma: false, tile: SmallMConfig::new(block, split)? })
    }

    /// Parts of D at the most: of each group a part of its last rows, beside those of all rows. Without groups all rows are one's.
    fn units(self, [m, n]: [usize; 2], groups: Option<usize>, gated: bool) -> usize {
        let tiles = n / if gated { 64 } else { 128 };
        let parts = match groups {
            None => m.div_ceil(self.tokens),
            // Of warpgroup products those of a group are counted from up to seven rows before its first one.
            Some(groups) => m / self.tokens + groups.min(m) * if self.wgmma { 2 } else { 1 },
        };
        parts.saturating_mul(tiles)
    }

    /// Rows of B, after refusing what the kernels do not count.
    pub(crate) fn check_shape(
        self,
        weights: SmallMWeights,
        [m, n, k]: [usize; 3],
        groups: Option<usize>,
        gated: bool,
    ) -> Result<usize> {
        let shape = || format!("m = {m}, n = {n}, k = {k}");
        let rule = "n must be a multiple of 128, and rows of A and of B at most 2^30";
        let b_rows = groups.unwrap_or(1).checked_mul(n).and_then(|rows| rows.checked_mul(if gated { 2 } else { 1 }));
        let b_rows = b_rows.filter(|b_rows| n.is_multiple_of(128) && m.max(*b_rows) <= MOST_LENGTH);
        let b_rows = b_rows.ok_or_else(|| Error::shape("A and B", shape(), rule, "pad the rows of each matrix"))?;
        // Places in the kernel, and bytes from a row of the one matrix to that of the other, have 32 bits.
        let far = n.saturating_add(128).saturating_mul(weights.code_bytes(1, k.max(2)));
        if self.units([m, n], groups, gated) >= 1 << 28 || (gated && far >= 1 << 32) {
            let rule = "parts of D must be fewer than 2^28, and one of two matrices smaller than 4 GiB";
            return Err(Error::shape("A and B", shape(), rule, "split the product"));
        }
        weights.check_shape([m, n, k], b_rows)?;
        Ok(b_rows)
    }

    /// With sums in the order of this configuration of tiles.
    pub(crate) fn with_tile(self, tile: SmallMConfig) -> Self {
        Self { tile, ..self }
    }

    /// The configuration in which a product by itself has the same bits.
    pub(crate) fn tile(self) -> SmallMConfig {
        self.tile
    }

    /// Scratch memory of a product for an A of m x k, which the call is given: 0 where it is read as it is.
    pub(crate) fn arranged_bytes(self, mk: [usize; 2]) -> usize {
        if self.wgmma { wgmma::arranged_bytes(mk) } else { 0 }
    }

    fn residents(self) -> usize {
        if self.wgmma {
            return wgmma::RESIDENTS;
        }
        let of_width = |(tokens, _): &Width| *tokens == self.tokens;
        widths(self.tile.block()).into_iter().find(of_width).map_or(1, |(_, blocks)| blocks)
    }
}

impl std::fmt::Display for SmallMGroupsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows at a time, tiles of 128 rows of B, k split by {}", self.tokens, self.tile.split())?;
        if self.wgmma { write!(f, ", by warpgroup products behind a kernel that arranges A") } else { Ok(()) }
    }
}

/// The tiles of these operands.
pub(crate) fn block(operands: SmallMOperands) -> SmallMBlock {
    match operands {
        SmallMOperands::E2m1Weights => SmallMBlock::Tile,
        SmallMOperands::E4m3Weights | SmallMOperands::Fp8 => SmallMBlock::TileE4m3,
    }
}

fn name(tokens: usize, (weights, a_type): (SmallMWeights, DType)) -> String {
    format!("gemm_small_m_groups_{}_{a_type}_{tokens}", weights.name())
}

/// The kernels of all files.
pub(super) struct SmallMGroupsKernels(Vec<SmallMGroupsKernel>, SmallMGroupsWgmmaKernels);

struct SmallMGroupsKernel {
    tokens: usize,
    serves: (SmallMWeights, DType),
    kernel: Kernel,
}

impl SmallMGroupsKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let [e2m1, e4m3] = [modules.file("gemm/small_m_groups_e2m1")?, modules.file("gemm/small_m_groups_e4m3")?];
        let mut kernels = Vec::new();
        for serves in SmallMWeights::served() {
            let file = if serves.0.operands() == SmallMOperands::E2m1Weights { &e2m1 } else { &e4m3 };
            let block = block(serves.0.operands());
            for (tokens, _) in widths(block) {
                let kernel = file.kernel_with_shared(&name(tokens, serves), block.shared(tokens))?;
                kernels.push(SmallMGroupsKernel { tokens, serves, kernel });
            }
        }
        Ok(Self(kernels, SmallMGroupsWgmmaKernels::of(modules)?))
    }
}

/// Products of groups: `D_g = activation(alpha * A_g B_g^T + bias_g)`, or gated.
pub(crate) struct SmallMGroupsCall<'a> {
    pub(crate) config: SmallMGroupsConfig,
    /// All rows of A and D; n columns of D; codes, scales and bias of the matrices of all groups, rows upon rows.
    pub(crate) product: SmallMWeightsCall<'a>,
    /// `None`: all rows are one group's.
    pub(crate) groups: Option<Sm90Groups<'a>>,
    /// Each group has two matrices, G and U, and `D_g = activation(alpha * A_g G_g^T) ∘ (alpha * A_g U_g^T)`.
    pub(crate) gated: bool,
}

/// Mirror of the struct of the same name in `kernels/gemm/small_m_groups.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SmallMGroups {
    starts: u64,
    counts: u64,
    groups: u32,
    slot_rows: u32,
    gated: u32,
}

impl SmallMGroupsCall<'_> {
    fn count(&self) -> Option<usize> {
        self.groups.as_ref().map(|groups| groups.count)
    }

    fn units(&self) -> usize {
        self.config.units([self.product.m, self.product.n], self.count(), self.gated)
    }

    /// Every length and alignment against what the kernel touches. What counts and starts say the kernel clamps.
    fn check(&self) -> Result<usize> {
        let product = &self.product;
        let (m, n, k) = (product.m, product.n, product.k);
        let b_rows = self.config.check_shape(product.weights, [m, n, k], self.count(), self.gated)?;
        if product.end.residual.is_some() || product.end.beta != 0.0 {
            return Err(Error::unsupported(
                "a residual or a beta in a product of groups",
                "its kernel reads none",
                "report it: a launch of this crate asked for it",
            ));
        }
        product.check_memory(b_rows, self.count().unwrap_or(1))?;
        if let Some((bias, dtype)) = product.end.bias {
            check_bytes("bias", bias, b_rows * dtype.bytes())?;
        }
        if let Some(groups) = &self.groups {
            groups.check([m, n, k])?;
        }
        Ok(b_rows)
    }

    /// Where A is arranged, and as many bytes.
    fn arranged(&self) -> Result<(&Span<'_>, usize)> {
        let (product, bytes) = (&self.product, self.config.arranged_bytes([self.product.m, self.product.k]));
        let arranged = product.scratch.ok_or_else(|| {
            let rule = "warpgroup products of groups read A from scratch memory";
            Error::shape("A, arranged", "none", rule, "report it: a launch of this crate forgot it")
        })?;
        check_bytes("A, arranged", arranged, bytes)?;
        // The copy engine's lines.
        check_aligned("A, arranged", arranged, 128)?;
        Ok((arranged, bytes))
    }

    fn groups(&self) -> SmallMGroups {
        let none = SmallMGroups { starts: 0, counts: 0, groups: 0, slot_rows: 0, gated: u32::from(self.gated) };
        let Some(groups) = &self.groups else { return none };
        let (starts, slot_rows) = match groups.rows {
            Sm90Rows::Starts(starts) => (Some(starts), 0),
            Sm90Rows::Slots(rows) => (None, rows as u32),
        };
        SmallMGroups {
            starts: address(starts),
            counts: groups.counts.address,
            groups: groups.count as u32,
            slot_rows,
            ..none
        }
    }
}

impl Kernels {
    /// Enqueues the products of all groups. A row's bits are those of its product by itself in the same configuration of tiles.
    pub(crate) fn small_m_groups(&self, stream: &Queue, call: &SmallMGroupsCall<'_>) -> Result<()> {
        let b_rows = call.check()?;
        let (product, config) = (&call.product, call.config);
        if product.m == 0 || b_rows == 0 {
            return Ok(());
        }
        let serves = (product.weights, product.a_type);
        let kernels = self.small_m_groups_family(stream)?;
        let split = config.tile.split() as usize;
        // As many clusters as run at once: those of four and eight do not fill every part of the GPU (see `small_m_rules`). Without groups it is known how many parts there are, and who
        // takes which the GPU decides.
        let places = self.sm_count * config.residents() / split;
        let at_once = if split < 4 { places } else { places * 15 / 16 };
        let clusters = if call.groups.is_some() { at_once.clamp(1, call.units()) } else { call.units() };
        let mut problem = product.problem(&InChain::alone(config.tile), None)?;
        problem.scale_pitch = product.weights.scales(b_rows, product.k).0 as u32;
        let blocks =
            |threads, shared| Blocks::new((clusters * split, 1), threads).clusters(split as u32).shared(shared);
        if config.wgmma {
            let found = kernels.1.all.iter().find(|(tokens, of, _)| (*tokens, *of) == (config.tokens, serves));
            let kernel = found.ok_or_else(|| no_such_kernel(serves))?.2;
            let (arranged, bytes) = call.arranged()?;
            let rows = wgmma::arranged_rows(product.m) as u32;
            let grid = Blocks::new((wgmma::arranging(bytes, THREADS), 1), THREADS);
            enqueue!(stream, kernels.1.arrange, grid, problem, call.groups(), arranged.address, rows, product.pairs())?;
            let grid = blocks(BLOCK, wgmma::shared(product.weights.operands(), config.tokens));
            return enqueue!(stream, kernel, grid, problem, call.groups(), arranged.address);
        }
        let found = kernels.0.iter().find(|k| (k.tokens, k.serves) == (config.tokens, serves));
        let kernel = found.ok_or_else(|| no_such_kernel(serves))?.kernel;
        let block = config.tile.block();
        enqueue!(stream, kernel, blocks(block.threads(), block.shared(config.tokens)), problem, call.groups())
    }
}

fn no_such_kernel((weights, a_type): (SmallMWeights, DType)) -> Error {
    let rule = format!("is not multiplied by {} weights in products of groups", weights.name());
    Error::dtype("A", a_type, rule, "take bf16")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Activation;
    use crate::gpu::kernels::small_m_end::SmallMEnd;
    use crate::gpu::kernels::{Each, OuterScales, Sm90Along};

    const E2M1_TABLE: &str = include_str!("../../../kernels/gemm/small_m_groups_e2m1.cu");
    const E4M3_TABLE: &str = include_str!("../../../kernels/gemm/small_m_groups_e4m3.cu");

    #[test]
    fn the_kernels_are_those_of_the_table() {
        for (source, weights, block) in
            [(E2M1_TABLE, "E2M1", SmallMBlock::Tile), (E4M3_TABLE, "E4M3", SmallMBlock::TileE4m3)]
        {
            let rows = source.lines().filter_map(|line| line.strip_prefix("SMALL_M_GROUPS(")?.strip_suffix(')'));
            let of = widths(block).into_iter().map(|(tokens, blocks)| format!("{tokens}, 3, {blocks}"));
            assert_eq!(rows.collect::<Vec<_>>(), of.collect::<Vec<_>>());
            // Which weights: see small_m_weights.rs.
            assert!(source.contains(&format!("EACH_{weights}_WEIGHTS(SMALL_M_GROUPS_KERNEL, __VA_ARGS__)")));
        }
        assert_eq!(name(16, (SmallMWeights::Nvfp4, DType::Bf16)), "gemm_small_m_groups_nvfp4_bf16_16");
    }

    #[test]
    fn configurations_follow_rows_and_k() {
        let of = |rows, k| {
            let config = SmallMGroupsConfig::of_tiles(SmallMOperands::E2m1Weights, rows, k).unwrap();
            (config.tokens, config.tile.split(), config.residents())
        };
        assert_eq!([of(1, 7168), of(8, 2048), of(9, 4096)], [(8, 4, 4), (8, 1, 4), (16, 2, 4)]);
        assert_eq!([of(33, 1024), of(96, 1024), of(97, 1024)], [(32, 1, 3), (32, 1, 3), (64, 1, 2)]);
        assert_eq!([of(17, 1024), of(500, 128), of(0, 32)], [(32, 1, 3), (64, 1, 2), (8, 1, 4)]);
    }

    fn span(bytes: usize) -> Span<'static> {
        Span::unguarded(0x7F00_0000_0000, bytes)
    }

    /// What is wrong with a call whose operands are as long as it needs, and so many bytes longer: of A, codes, scales, outer scales, bias, D, starts and counts.
    fn check([m, n, k]: [usize; 3], groups: usize, gated: bool, more: [isize; 8]) -> String {
        let b_rows = groups * n * if gated { 2 } else { 1 };
        let scales = b_rows.div_ceil(128) * k.div_ceil(64) * 512;
        let exact = [m * k * 2, b_rows * k / 2, scales, b_rows * 4, b_rows * 2, m * n * 2, groups * 8, groups * 8];
        let spans: Vec<_> =
            exact.iter().zip(more).map(|(bytes, more)| span((*bytes as isize + more) as usize)).collect();
        let end = SmallMEnd {
            alpha: 1.0,
            beta: 0.0,
            bias: Some((&spans[4], DType::Bf16)),
            activation: Activation::None,
            residual: None,
            d: &spans[5],
            d_stride: n,
            d_type: DType::Bf16,
        };
        let config = SmallMGroupsConfig::of(SmallMOperands::E2m1Weights, 1, [m, k]).unwrap();
        let call = SmallMGroupsCall {
            config,
            product: SmallMWeightsCall {
                config: config.tile,
                m,
                n,
                k,
                a: &spans[0],
                a_stride: k,
                a_type: DType::Bf16,
                a_is_made: false,
                weights: SmallMWeights::Nvfp4,
                codes: &spans[1],
                scales: Some(&spans[2]),
                scratch: None,
                outer: [None, Some(OuterScales { scales: &spans[3], each: Each::Row })],
                end,
            },
            groups: Some(Sm90Groups {
                count: groups,
                along: Sm90Along::Rows,
                rows: Sm90Rows::Starts(&spans[6]),
                counts: &spans[7],
                scales: [false; 2],
            }),
            gated,
        };
        call.check().err().map_or(String::new(), |error| error.to_string())
    }

    /// What is wrong with scales of three groups, of so many numbers on either side.
    fn check_levels(weights: SmallMWeights, gated: bool, counts: [usize; 2]) -> String {
        let (all, [m, n, k]) = (span(1 << 24), [64, 128, 128]);
        let [of_a, of_b] = counts.map(|count| span(count * 4));
        let end = SmallMEnd {
            alpha: 1.0,
            beta: 0.0,
            bias: None,
            activation: Activation::None,
            residual: None,
            d: &all,
            d_stride: n,
            d_type: DType::Bf16,
        };
        let config = SmallMGroupsConfig::of(weights.operands(), 1, [m, k]).unwrap();
        let rows = Sm90Rows::Slots(16);
        let product = SmallMWeightsCall {
            config: config.tile,
            m,
            n,
            k,
            a: &all,
            a_stride: k,
            a_type: DType::Bf16,
            a_is_made: false,
            weights,
            codes: &all,
            scales: Some(&all),
            scratch: None,
            outer: [&of_a, &of_b].map(|scales| Some(OuterScales { scales, each: Each::Group })),
            end,
        };
        let groups = Sm90Groups { count: 3, along: Sm90Along::Rows, rows, counts: &all, scales: [false; 2] };
        let call = SmallMGroupsCall { config, product, groups: Some(groups), gated };
        call.check().err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn levels_are_one_for_each_group_and_matrix() {
        use SmallMWeights::{Fp8, Fp8Tiles, Mxfp4, Nvfp4, Nvfp4Repacked};
        for weights in [Nvfp4, Nvfp4Repacked, Fp8] {
            assert_eq!([check_levels(weights, false, [3, 3]), check_levels(weights, true, [3, 6])], ["", ""]);
            for (gated, counts, name) in [(false, [2, 3], "A"), (false, [3, 2], "B"), (true, [3, 5], "B")] {
                let why = check_levels(weights, gated, counts);
                assert!(why.starts_with(&format!("scales of {name}: ")), "{why}");
            }
        }
        // Their kernels have none.
        for weights in [Mxfp4, Fp8Tiles] {
            assert!(check_levels(weights, false, [3, 3]).contains("reads none"), "{weights:?}");
        }
        let levels = include_str!("../../../kernels/gemm/small_m_tile.cuh");
        assert!(levels.contains("LEVELS = OF_GROUPS && (NVFP4 || WEIGHTS == Weights::FP8)"));
        assert!(include_str!("../../../kernels/gemm/small_m_e2m1.cuh").contains("constexpr u32 EACH_GROUP = 2;"));
    }

    #[test]
    fn every_length_is_checked() {
        let names = ["A", "B", "scales of B in the sum", "scales of B", "bias", "D", "starts", "counts"];
        for (shape, groups, gated) in [([8, 128, 64], 3, false), ([64, 256, 416], 5, true), ([1, 128, 32], 1, true)] {
            assert_eq!(check(shape, groups, gated, [0; 8]), "");
            for (i, name) in names.into_iter().enumerate() {
                let mut more = [0; 8];
                more[i] = -1;
                let why = check(shape, groups, gated, more);
                assert!(why.starts_with(name), "{name}: {why}");
            }
        }
        assert!(check([8, 64, 64], 2, false, [0; 8]).contains("multiple of 128"));
        assert!(check([8, 128, 48], 2, false, [0; 8]).contains("multiple of 32"));
        assert!(check([8, 1 << 24, 64], 128, false, [0; 8]).contains("at most 2^30"));
        assert!(check([8, 1 << 20, 8192], 2, true, [0; 8]).contains("4 GiB"));
    }
}
