//! Launches of `kernels/gemm/small_m_one_row.cu`: one row of BF16 or F16 numbers with E2M1 weights, on Hopper. They have the bits of the kernels of `small_m_e2m1.cu` and `small_m_repacked.cu` of as many parts of k, and take
//! their place where [`OneRow::of`] says so, and in chains where [`OneRow::link_of`] does.

use super::Kernels;
use super::launch::{Blocks, Kernel, enqueue};
use super::module::Modules;
use super::small_m::{Ahead, InChain};
use super::small_m_chain::{AsLink, evenly, finds_places};
use super::small_m_codes::SmallMWeights;
use super::small_m_config::{SmallMBlock, SmallMConfig, SmallMOperands};
use super::small_m_weights::{SmallMWeightsCall, no_such_kernel};
use crate::error::Result;
use crate::format::{CodeOrder, DType};
use crate::gpu::device::stream::Queue;

/// A kernel: the block in whose place it stands, the steps of codes on their way, and the blocks that a multiprocessor has registers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    block: SmallMBlock,
    stages: usize,
    residents: usize,
}

const fn row(block: SmallMBlock, stages: usize, residents: usize) -> Row {
    Row { block, stages, residents }
}

/// Mirror of the table in `kernels/gemm/small_m_one_row.cu`: of each block that which is taken outside of chains, and behind all one with more steps on their way.
const TABLE: [Row; 4] = [
    row(SmallMBlock::Four, 2, 6),
    row(SmallMBlock::Four, 4, 6),
    row(SmallMBlock::Eight, 2, 3),
    row(SmallMBlock::Narrow, 2, 2),
];

/// The same of repacked codes.
const REPACKED: [Row; 4] = [
    row(SmallMBlock::Four, 2, 6),
    row(SmallMBlock::Four, 4, 6),
    row(SmallMBlock::Eight, 2, 3),
    row(SmallMBlock::Eight, 3, 3),
];

fn table(codes: CodeOrder) -> &'static [Row] {
    match codes {
        CodeOrder::Published => &TABLE,
        CodeOrder::Repacked => &REPACKED,
    }
}

/// A product by one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OneRow {
    config: SmallMConfig,
    codes: CodeOrder,
    stages: usize,
    /// Dynamic shared memory in bytes, and blocks on a multiprocessor.
    shared: u32,
    residents: usize,
    tiles: usize,
    /// Of 128 of k, of the warp that has the most.
    steps: usize,
}

/// Shared memory of a multiprocessor, of which each block takes 1 KiB more than it asks for.
const SHARED: usize = 228 << 10;

impl OneRow {
    /// That of m rows in this configuration, of weights in this order, on a GPU that has these kernels, and so many multiprocessors. `None`: other kernels multiply it, as they do where the row leaves no room for two blocks on a
    /// multiprocessor.
    pub(crate) fn of(config: SmallMConfig, codes: CodeOrder, [m, n, k]: [usize; 3], sm_count: usize) -> Option<Self> {
        let one = Self::first(config, codes, [n, k]).filter(|_| m == 1)?;
        (codes == CodeOrder::Published || one.pays(sm_count)).then_some(one)
    }

    /// That which may take a configuration's place, with the fewest steps on their way.
    pub(crate) fn first(config: SmallMConfig, codes: CodeOrder, nk: [usize; 2]) -> Option<Self> {
        let row = table(codes).iter().find(|row| row.block == config.block())?;
        Some(Self::by(row, config, codes, nk)).filter(|one| one.residents >= 2)
    }

    fn by(row: &Row, config: SmallMConfig, codes: CodeOrder, [n, k]: [usize; 2]) -> Self {
        let (block, split, steps) = (row.block, config.split() as usize, k.div_ceil(128));
        // Mirror of `SmallMOneRowConfig`: the row behind all else, in whole lines; of uneven parts of k a block may have the longest.
        let own = block.shared_with_stages(row.stages, 8) as usize - 128;
        let shared = 128 + own.next_multiple_of(128) + steps.div_ceil(split) * 256;
        Self {
            config,
            codes,
            stages: row.stages,
            shared: shared as u32,
            residents: row.residents.min(SHARED / (shared + 1024)),
            tiles: block.tiles(n),
            steps: steps.div_ceil(config.parts()),
        }
    }

    /// Of repacked codes: with a step or two for each warp the copies of A cost more than they save.
    pub(crate) fn is_long(&self) -> bool {
        self.steps >= 4
    }

    /// Blocks of it on a multiprocessor.
    pub(crate) fn residents(&self) -> usize {
        self.residents
    }

    fn blocks(&self) -> usize {
        self.tiles * self.config.split() as usize
    }

    fn at_once(&self, sm_count: usize) -> bool {
        self.blocks() <= self.residents * sm_count
    }

    /// Of repacked codes: whether it is faster than the kernel whose place it takes, outside of chains. A is read in few operations there, and each block copies its row: with few steps for each warp, or where many blocks with some
    /// more share a multiprocessor, that costs more (H200, 2026-11, the record of links: 24576 x 1536 9.4 us for 9.0, 10240 x 5120 in two parts of `four` 11.5 for 11.1; 7168 x 2048 5.2 for 5.9).
    fn pays(&self, sm_count: usize) -> bool {
        let few = self.config.split() == 1 || self.blocks() <= 3 * sm_count;
        self.is_long() && (few || self.steps >= 6)
    }

    /// How one row is multiplied as a link of a chain, in a configuration of as many parts of k, whose sums have the same bits. `None`: as [`SmallMConfig::in_chain`] says.
    pub(super) fn link_of(
        config: SmallMConfig,
        codes: CodeOrder,
        [m, n, k]: [usize; 3],
        sm_count: usize,
    ) -> Option<Self> {
        match codes {
            _ if m != 1 => None,
            CodeOrder::Published => Self::published_link(config, [n, k], sm_count),
            CodeOrder::Repacked => Self::repacked_link(config, [n, k], sm_count),
        }
    }

    /// The same with more steps on their way, if that kernel is there.
    fn deep(&self, nk: [usize; 2]) -> Option<Self> {
        let more = |row: &&Row| row.block == self.config.block() && row.stages > self.stages;
        let deep = table(self.codes).iter().rev().find(more)?;
        Some(Self::by(deep, self.config, self.codes, nk)).filter(|deep| deep.residents >= 2)
    }

    /// Whether more steps on their way are faster: where all are before the wait, of at most two blocks on a multiprocessor, or half of them, of so many blocks, too, or of as many as fill it (H200, 2026-11, the records of one row, of
    /// links and of paced links: `nvfp4`, 7168 x 2048 4.1 us for 5.2, 4096 x 7168 6.3 for 8.1, 8192 x 8192 12.5 for 14.3; of three blocks, 6144 x 4096, 7.3 for 6.3).
    fn is_deep(&self, deep: &Self, sm_count: usize) -> bool {
        let (all, half) = (self.stages + 1..=deep.stages, deep.stages + 1..=2 * deep.stages);
        let (few, fills) = (deep.blocks() <= 2 * sm_count, 5 * deep.blocks() >= 4 * deep.residents * sm_count);
        let pays = all.contains(&self.steps) && few || half.contains(&self.steps) && (few || fills);
        pays && deep.at_once(sm_count)
    }

    /// Of published codes, in the block of as many parts of k that is the fastest. Made from all configurations at 36 shapes (H200, 2026-11, the records of links): 3072 x 7168 6.3 us for 7.0, 7168 x 3072 5.8 for 6.9, 14336 x 4096
    /// 12.0 for 13.7.
    fn published_link(config: SmallMConfig, nk: [usize; 2], sm_count: usize) -> Option<Self> {
        use SmallMBlock::{Eight, Four, Narrow};
        let of = |block, split| Self::first(SmallMConfig::new(block, split).ok()?, CodeOrder::Published, nk);
        let own = of(config.block(), config.split())?;
        let deep = |one: Self| one.deep(nk).filter(|deep| one.is_deep(deep, sm_count));
        let even = |one: &Self, part| evenly(one.blocks(), sm_count, part);
        let other = match (config.block(), config.split()) {
            (Four, 2) | (Eight, 1) => {
                let pays =
                    |one: &Self| one.steps >= 2 && even(one, [4, 5]) && (one.steps <= 6 || one.at_once(sm_count));
                of(Four, 2).and_then(deep).or(of(Eight, 1).filter(pays)).or(of(Four, 2))
            }
            (Four, 4) => of(Eight, 2).filter(|one| one.steps >= 3 && even(one, [7, 10])),
            // Of half as many rows of B each, which fill the GPU (4096 x 14336 12.8 us for 13.6).
            (Eight, 2) => of(Narrow, 1).filter(|_| !own.releases(sm_count)),
            _ => deep(own),
        };
        Some(other.unwrap_or(own))
    }

    /// Of repacked codes, whose other kernels have one step on its way before the wait. Made from all configurations at 15 shapes, and judged on 8 others (H200, 2026-11, the record of links): 0.90 of the time
    /// of before, 8192 x 8192 11.1 us for 12.8, 3072 x 7168 5.6 for 8.6, 7168 x 2048 4.1 for 5.7.
    fn repacked_link(config: SmallMConfig, nk: [usize; 2], sm_count: usize) -> Option<Self> {
        use SmallMBlock::{Eight, Four, Narrow, Sixteen};
        let of = |block, split| Self::first(SmallMConfig::new(block, split).ok()?, CodeOrder::Repacked, nk);
        match (config.block(), config.split()) {
            (Four, 1) => {
                let one = of(Four, 1).filter(|one| one.pays(sm_count))?;
                // A long walk of two blocks on some multiprocessors gains nothing (8192 x 8192 12.7 us for 14.6; 12288 x 6144 12.0 for 13.6).
                let two_each = 2 * one.blocks() > 3 * sm_count && 2 * one.blocks() <= 5 * sm_count;
                Some(one.deep(nk).filter(|_| one.steps <= 8 || !two_each).unwrap_or(one))
            }
            (Four, 2) | (Eight, 1) => {
                // Of up to two blocks on a multiprocessor that have half of their steps on their way (4096 x 7168 5.7 us for 6.1).
                let four = of(Four, 2).filter(|four| (5..=8).contains(&four.steps) && four.blocks() <= 2 * sm_count);
                if let Some(deep) = four.and_then(|four| four.deep(nk)) {
                    return Some(deep);
                }
                let one = of(Eight, 1).filter(|one| one.steps >= 2)?;
                if !evenly(one.blocks(), sm_count, [4, 5]) {
                    return of(Four, 2);
                }
                let deep = one.deep(nk).filter(|deep| one.steps >= 4 && deep.at_once(sm_count));
                Some(deep.unwrap_or(one))
            }
            // Half as many rows a block are faster where all run at once, as `SmallMConfig::in_chain` has it, and blocks of sixteen warps where each multiprocessor has one.
            (Eight, 2) if Narrow.tiles(nk[0]) <= Narrow.residents(1) * sm_count => None,
            (Sixteen, 1) if 6 * Sixteen.tiles(nk[0]) >= 5 * sm_count => None,
            (Eight, 2) | (Four, 4) | (Sixteen, 1) => of(Eight, 2).filter(|one| one.steps >= 3),
            (Four, 8) => of(Four, 8),
            _ => None,
        }
    }

    /// Whether it releases the next kernel behind its wait: repacked links, which are taken where that is the fastest; others as other blocks do, and with up to four steps, of which half or more are on their way by then
    /// (`nvfp4`, 4096 x 7168 in two parts of `eight` 7.3 us for 8.8; of 8192 x 8192 in two parts of `four`, with eight steps, 16.2 for 14.3).
    fn releases(&self, sm_count: usize) -> bool {
        let always = self.codes == CodeOrder::Repacked || !self.at_once(sm_count);
        always || self.steps <= 4 || finds_places(self.blocks(), self.residents, sm_count)
    }

    /// How it is enqueued as a link of a chain.
    pub(super) fn place(&self, sm_count: usize) -> AsLink {
        AsLink { config: self.config, releases: u32::from(self.releases(sm_count)), deep: false, paced: true }
    }
}

fn name(row: &Row, (weights, a_type): (SmallMWeights, DType)) -> String {
    format!("gemm_small_m_{}_{a_type}_1_{}_{}", weights.name(), row.block.name(), row.stages)
}

/// The kernels of the file.
pub(super) struct SmallMOneRowKernels {
    all: Vec<(SmallMBlock, usize, (SmallMWeights, DType), Kernel)>,
}

impl SmallMOneRowKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/small_m_one_row")?;
        let mut all = Vec::new();
        for serves in SmallMWeights::served().filter(|(weights, _)| weights.operands() == SmallMOperands::E2m1Weights) {
            for row in table(serves.0.code_order()) {
                // As much as two blocks of a multiprocessor have, which is the most that `OneRow` takes.
                let kernel = file.kernel_with_shared(&name(row, serves), (SHARED / 2 - 1024) as u32)?;
                all.push((row.block, row.stages, serves, kernel));
            }
        }
        Ok(Self { all })
    }
}

impl Kernels {
    /// Enqueues such a product.
    pub(super) fn small_m_one_row(
        &self,
        stream: &Queue,
        call: &SmallMWeightsCall<'_>,
        place: &InChain,
        one: OneRow,
    ) -> Result<()> {
        let (block, split, serves) = (one.config.block(), one.config.split(), (call.weights, call.a_type));
        tracing::trace!(%block, stages = one.stages, loads_early = place.ahead != Ahead::Nothing, "one row");
        let kernels = &self.small_m(stream)?.3;
        let found =
            kernels.all.iter().find(|(of, stages, weights, _)| (*of, *stages, *weights) == (block, one.stages, serves));
        let kernel = found.ok_or_else(|| no_such_kernel(block, serves))?.3;
        let grid = Blocks::new((one.blocks(), 1), block.threads()).clusters(split).shared(one.shared);
        enqueue!(stream, kernel, grid, call.problem(place, None)?)?;
        self.enqueued(stream, place, &call.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = include_str!("../../../kernels/gemm/small_m_one_row.cu");
    const H200: usize = 132;

    fn of(block: SmallMBlock, split: u32, nk: [usize; 2]) -> OneRow {
        let config = SmallMConfig::new(block, split).unwrap();
        OneRow::of(config, CodeOrder::Published, [1, nk[0], nk[1]], H200).unwrap()
    }

    fn repacked(block: SmallMBlock, split: u32, nk: [usize; 2]) -> Option<OneRow> {
        let config = SmallMConfig::new(block, split).unwrap();
        OneRow::of(config, CodeOrder::Repacked, [1, nk[0], nk[1]], H200)
    }

    /// Block, split, steps on their way of a link.
    fn link(codes: CodeOrder, block: SmallMBlock, split: u32, nk: [usize; 2]) -> Option<(SmallMBlock, u32, usize)> {
        let config = SmallMConfig::new(block, split).unwrap();
        let link = OneRow::link_of(config, codes, [1, nk[0], nk[1]], H200)?;
        assert_eq!(link.config.block().parts() as u32 * link.config.split(), block.parts() as u32 * split);
        assert!(link.residents >= 2 && link.shared as usize <= SHARED / 2 - 1024);
        Some((link.config.block(), link.config.split(), link.stages))
    }

    #[test]
    fn the_kernels_are_those_of_the_tables() {
        for (codes, words) in [(CodeOrder::Published, "SMALL_M("), (CodeOrder::Repacked, "SMALL_M_REPACKED(")] {
            let rows: Vec<_> = SOURCE
                .lines()
                .filter_map(|line| Some(line.strip_prefix(words)?.strip_suffix(')')?.to_string()))
                .collect();
            let of = |row: &Row| {
                let (pairs, warps) = (if row.block == SmallMBlock::Narrow { 1 } else { 2 }, row.block.parts());
                format!("{}, {pairs}, {warps}, {}, {}", row.block, row.stages, row.residents)
            };
            assert_eq!(rows, table(codes).iter().map(of).collect::<Vec<_>>());
        }
        assert!(SOURCE.contains("EACH_E2M1_WEIGHTS(SMALL_M_ONE_ROW_KERNEL, __VA_ARGS__)"));
        assert!(SOURCE.contains("EACH_REPACKED_WEIGHTS(SMALL_M_ONE_ROW_KERNEL, __VA_ARGS__)"));
        let names = [
            (&TABLE[1], (SmallMWeights::Mxfp4, DType::Bf16)),
            (&REPACKED[3], (SmallMWeights::Nvfp4Repacked, DType::F16)),
        ];
        let names = names.map(|(row, serves)| name(row, serves));
        assert_eq!(names, ["gemm_small_m_mxfp4_bf16_1_four_4", "gemm_small_m_nvfp4_repacked_f16_1_eight_3"]);
    }

    #[test]
    fn rows_fit_beside_the_stages() {
        use SmallMBlock::{Eight, Four, Narrow};
        // 24,592 bytes without the row, in lines of 128 behind what aligns them; and 256 for each 128 of k.
        assert_eq!([of(Four, 1, [8, 32]).shared, of(Four, 1, [8, 256]).shared], [128 + 24704 + 256, 128 + 24704 + 512]);
        assert_eq!(of(Four, 8, [8, 18944]).shared, 128 + 24704 + 19 * 256);
        // As a static_assert of the kernels says.
        let begins = |codes| {
            let of = |row: &Row| OneRow::by(row, SmallMConfig::new(row.block, 1).unwrap(), codes, [8, 32]).shared;
            table(codes).iter().map(|row| of(row) - 128 - 256).collect::<Vec<_>>()
        };
        assert_eq!(begins(CodeOrder::Published), [24704, 45184, 49280, 49280]);
        assert_eq!(begins(CodeOrder::Repacked), [24704, 45184, 49280, 69760]);
        assert_eq!([Four, Eight, Narrow].map(|block| of(block, 1, [4096, 2048]).residents), [6, 3, 2]);
        assert_eq!([Four, Eight, Narrow].map(|block| of(block, 1, [4096, 18944]).residents), [3, 2, 2]);
        for codes in CodeOrder::ALL {
            for row in table(codes) {
                for split in SmallMConfig::SPLITS {
                    let config = SmallMConfig::new(row.block, split).unwrap();
                    let fits = |k| OneRow::first(config, codes, [4096, k]);
                    // The longest k that is taken, and how much that is of half a multiprocessor.
                    let last = (1..4096).rev().find(|steps| fits(steps * 128).is_some()).unwrap();
                    let taken = fits(last * 128).unwrap();
                    assert!(taken.residents >= 2 && taken.shared as usize <= SHARED / 2 - 1024);
                    assert!(fits((last + 1) * 128).is_none() && last >= 200 * split as usize, "{config}: {last}");
                    assert!((1..=last).all(|steps| fits(steps * 128).is_some()));
                }
            }
        }
    }

    #[test]
    fn only_one_row() {
        let config = |block| SmallMConfig::new(block, 1).unwrap();
        let taken = |block, codes, m| OneRow::of(config(block), codes, [m, 4096, 7168], H200).is_some();
        for block in SmallMBlock::ALL {
            let published = table(CodeOrder::Published).iter().any(|row| row.block == block);
            let repacked = [SmallMBlock::Four, SmallMBlock::Eight].contains(&block);
            assert_eq!(taken(block, CodeOrder::Published, 1), published, "{block}");
            assert_eq!(taken(block, CodeOrder::Repacked, 1), repacked, "{block}");
            assert!(CodeOrder::ALL.into_iter().all(|codes| !taken(block, codes, 2)), "{block}");
            let two = |codes| OneRow::link_of(config(block), codes, [2, 4096, 7168], H200);
            assert!(CodeOrder::ALL.into_iter().all(|codes| two(codes).is_none()), "{block}");
        }
    }

    /// Of repacked codes four steps of each warp, six where blocks of parts share a multiprocessor by more than three.
    #[test]
    fn repacked_codes_are_taken_where_that_pays() {
        use SmallMBlock::{Eight, Four};
        let taken = |block, split, nk| repacked(block, split, nk).is_some();
        assert!(taken(Four, 1, [24576, 2048]) && !taken(Four, 1, [24576, 1536]));
        assert!(taken(Eight, 1, [4096, 4096]) && !taken(Eight, 1, [7168, 2048]));
        assert!(taken(Four, 2, [6144, 4096]) && !taken(Four, 2, [10240, 5120]) && taken(Four, 2, [10240, 8192]));
    }

    #[test]
    fn links_have_all_on_their_way_where_they_run_at_once() {
        use SmallMBlock::{Eight, Four, Narrow};
        let stages = |block, split, nk| link(CodeOrder::Published, block, split, nk).unwrap().2;
        assert_eq!([stages(Four, 1, [7168, 2048]), stages(Four, 2, [4096, 4096])], [4, 4]);
        // Two steps, three rounds, three blocks on a multiprocessor; and blocks that have no other.
        let others = [[7168, 1024], [32768, 2048], [12288, 2048]];
        assert_eq!(others.map(|nk| stages(Four, 1, nk)), [2; 3]);
        // Up to eight steps of two blocks on a multiprocessor, or of blocks that fill the GPU; and of others.
        assert_eq!([stages(Four, 1, [7168, 3072]), stages(Four, 2, [4096, 7168])], [4; 2]);
        assert_eq!([stages(Four, 1, [14336, 4096]), stages(Four, 1, [12288, 4096])], [4, 2]);
        assert_eq!([stages(Eight, 2, [4096, 7168]), stages(Narrow, 1, [2112, 7168])], [2; 2]);
        let releases = |block, split, nk: [usize; 2]| {
            let config = SmallMConfig::new(block, split).unwrap();
            OneRow::link_of(config, CodeOrder::Published, [1, nk[0], nk[1]], H200).unwrap().place(H200).releases
        };
        assert_eq!(
            [releases(Eight, 2, [4096, 7168]), releases(Four, 1, [7168, 2048]), releases(Four, 1, [57344, 8192])],
            [1; 3]
        );
        // With eight steps and more, and places for some blocks of the next kernel alone.
        assert_eq!(releases(Four, 1, [18944, 3584]), 0);
        assert_eq!(releases(Eight, 1, [4096, 7168]), 1, "a place for each");
    }

    /// Each is the fastest of as many parts of k, or within 1 % of it (H200, 2026-11, the second record of links).
    #[test]
    fn published_links_are_those_that_were_fastest() {
        use SmallMBlock::{Eight, Four, Narrow};
        let cases = [
            ((Four, 1, [7168, 2048]), (Four, 1, 4)),
            ((Four, 1, [14336, 4096]), (Four, 1, 4)),
            ((Four, 1, [24576, 1536]), (Four, 1, 2)),
            ((Four, 2, [4096, 4096]), (Four, 2, 4)),
            ((Four, 2, [6144, 4096]), (Four, 2, 2)),
            ((Four, 2, [5120, 8192]), (Four, 2, 2)),
            ((Four, 2, [57344, 8192]), (Four, 2, 2)),
            ((Four, 2, [4096, 2048]), (Eight, 1, 2)),
            ((Four, 2, [7168, 3072]), (Eight, 1, 2)),
            ((Four, 2, [28672, 4096]), (Eight, 1, 2)),
            ((Four, 2, [27648, 5120]), (Eight, 1, 2)),
            ((Four, 2, [10240, 5120]), (Eight, 1, 2)),
            ((Four, 2, [10240, 8192]), (Eight, 1, 2)),
            ((Eight, 1, [8192, 8192]), (Four, 2, 4)),
            ((Eight, 1, [7168, 16384]), (Eight, 1, 2)),
            ((Eight, 2, [4096, 7168]), (Eight, 2, 2)),
            ((Eight, 2, [4096, 14336]), (Narrow, 1, 2)),
            ((Four, 4, [3072, 7168]), (Eight, 2, 2)),
            ((Four, 4, [2560, 9728]), (Four, 4, 2)),
            ((Four, 8, [576, 7168]), (Four, 8, 2)),
            ((Narrow, 1, [2112, 7168]), (Narrow, 1, 2)),
            // A step or two for each warp: not timed.
            ((Four, 2, [7168, 1024]), (Four, 2, 2)),
            ((Four, 4, [3072, 4096]), (Four, 4, 2)),
        ];
        for ((block, split, nk), want) in cases {
            assert_eq!(link(CodeOrder::Published, block, split, nk), Some(want), "{block}, {split}, {nk:?}");
        }
    }

    /// Each is the fastest of as many parts of k, or within 5 % of it (H200, 2026-11, the record of links).
    #[test]
    fn repacked_links_are_those_that_were_fastest() {
        use SmallMBlock::{Eight, Four, Narrow, Sixteen};
        let cases = [
            ((Four, 1, [7168, 2048]), Some((Four, 1, 4))),
            ((Four, 1, [14336, 4096]), Some((Four, 1, 4))),
            ((Four, 1, [57344, 8192]), Some((Four, 1, 4))),
            ((Four, 1, [8192, 8192]), Some((Four, 1, 2))),
            ((Four, 1, [24576, 1536]), None),
            ((Eight, 1, [4096, 4096]), Some((Eight, 1, 3))),
            ((Eight, 1, [4096, 7168]), Some((Four, 2, 4))),
            ((Eight, 1, [8192, 8192]), Some((Eight, 1, 3))),
            ((Eight, 1, [8192, 28672]), Some((Eight, 1, 2))),
            ((Four, 2, [10240, 5120]), Some((Eight, 1, 2))),
            ((Four, 2, [5120, 8192]), Some((Four, 2, 2))),
            ((Four, 2, [6144, 4096]), Some((Four, 2, 2))),
            ((Four, 2, [4096, 128]), None),
            ((Four, 4, [5120, 25600]), Some((Eight, 2, 2))),
            ((Eight, 2, [4096, 7168]), None),
            ((Sixteen, 1, [4096, 7168]), None),
            ((Sixteen, 1, [3072, 7168]), Some((Eight, 2, 2))),
            ((Narrow, 2, [2112, 7168]), None),
            ((Four, 8, [576, 7168]), Some((Four, 8, 2))),
        ];
        for ((block, split, nk), want) in cases {
            assert_eq!(link(CodeOrder::Repacked, block, split, nk), want, "{block}, {split}, {nk:?}");
        }
    }
}
