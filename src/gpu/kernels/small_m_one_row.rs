//! Launches of `kernels/gemm/small_m_one_row.cu`: one row of BF16 or F16 numbers with E2M1 weights as published, on Hopper. They have the bits of the kernels of `small_m_e2m1.cu` of as many parts of k, and take their place where
//! [`OneRow::of`] says so.

use super::Kernels;
use super::launch::{Blocks, Kernel, enqueue};
use super::module::Modules;
use super::small_m::InChain;
use super::small_m_codes::SmallMWeights;
use super::small_m_config::{SmallMBlock, SmallMConfig, SmallMOperands, leaves_room};
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

/// A product by one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OneRow {
    config: SmallMConfig,
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
    /// That of m rows in this configuration, of weights in this order, on a GPU that has these kernels. `None`: other kernels multiply it, as they do where the row leaves no room for two blocks on a multiprocessor.
    pub(crate) fn of(config: SmallMConfig, codes: CodeOrder, [m, n, k]: [usize; 3]) -> Option<Self> {
        let taken = m == 1 && codes == CodeOrder::Published && config.block().operands() == SmallMOperands::E2m1Weights;
        let row = TABLE.iter().find(|row| taken && row.block == config.block())?;
        Some(Self::by(row, config, [n, k])).filter(|one| one.residents >= 2)
    }

    fn by(row: &Row, config: SmallMConfig, [n, k]: [usize; 2]) -> Self {
        let (block, split, steps) = (row.block, config.split() as usize, k.div_ceil(128));
        // Mirror of `SmallMOneRowConfig`: the row behind all else, in whole lines; of uneven parts of k a block may have the longest.
        let own = block.shared_with_stages(row.stages, 8) as usize - 128;
        let shared = 128 + own.next_multiple_of(128) + steps.div_ceil(split) * 256;
        Self {
            config,
            stages: row.stages,
            shared: shared as u32,
            residents: row.residents.min(SHARED / (shared + 1024)),
            tiles: block.tiles(n),
            steps: steps.div_ceil(split * block.parts()),
        }
    }

    /// Blocks of it on a multiprocessor.
    pub(crate) fn residents(&self) -> usize {
        self.residents
    }

    fn blocks(&self) -> usize {
        self.tiles * self.config.split() as usize
    }

    /// The same as a link of a chain: with all steps on their way before the wait, where all blocks run at once so (H200, 2026-11, the record of one row: `nvfp4`, 7168 x 2048 4.4 us for 5.5, 4096 x 4096 4.6 for 5.9).
    fn in_chain(self, [n, k]: [usize; 2], sm_count: usize) -> Self {
        let deep = TABLE.iter().rev().find(|row| row.block == self.config.block() && row.stages > self.stages);
        let deep = deep.filter(|row| (self.stages + 1..=row.stages).contains(&self.steps));
        let deep = deep.map(|row| Self::by(row, self.config, [n, k]));
        deep.filter(|deep| deep.blocks() <= deep.residents * sm_count).unwrap_or(self)
    }

    /// Whether it releases the next kernel behind its wait: as other blocks do, and with up to four steps, of which half or more are on their way by then (`nvfp4`, 4096 x 7168 in two parts of `eight` 7.3 us for 8.8; of
    /// 8192 x 8192 in two parts of `four`, with eight steps, 16.2 for 14.3).
    fn releases(&self, sm_count: usize) -> bool {
        let rounds = self.blocks() > self.residents * sm_count;
        rounds || self.steps <= 4 || leaves_room(self.blocks(), self.residents, sm_count)
    }

    /// How it is enqueued as a link of a chain.
    pub(super) fn link(&self, nk: [usize; 2], sm_count: usize) -> (SmallMConfig, u32) {
        (self.config, u32::from(self.in_chain(nk, sm_count).releases(sm_count)))
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
        let published = |weights: SmallMWeights| {
            weights.operands() == SmallMOperands::E2m1Weights && weights.code_order() == CodeOrder::Published
        };
        let mut all = Vec::new();
        for serves in SmallMWeights::served().filter(|(weights, _)| published(*weights)) {
            for row in &TABLE {
                // As much as two blocks of a multiprocessor have, which is the most that `OneRow::of` takes.
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
        let one = if place.link { one.in_chain([call.n, call.k], self.sm_count) } else { one };
        let (block, split, serves) = (one.config.block(), one.config.split(), (call.weights, call.a_type));
        tracing::trace!(%block, stages = one.stages, loads_early = place.loads_early, "one row");
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
        OneRow::of(config, CodeOrder::Published, [1, nk[0], nk[1]]).unwrap()
    }

    #[test]
    fn the_kernels_are_those_of_the_table() {
        let rows: Vec<_> = SOURCE
            .lines()
            .filter_map(|line| Some(line.strip_prefix("SMALL_M(")?.strip_suffix(')')?.to_string()))
            .collect();
        let of = |row: &Row| {
            let (pairs, warps) = (if row.block == SmallMBlock::Narrow { 1 } else { 2 }, row.block.parts());
            format!("{}, {pairs}, {warps}, {}, {}", row.block, row.stages, row.residents)
        };
        assert_eq!(rows, TABLE.iter().map(of).collect::<Vec<_>>());
        assert!(SOURCE.contains("EACH_E2M1_WEIGHTS(SMALL_M_ONE_ROW_KERNEL, __VA_ARGS__)"));
        let name = name(&TABLE[1], (SmallMWeights::Mxfp4, DType::Bf16));
        assert_eq!(name, "gemm_small_m_mxfp4_bf16_1_four_4");
    }

    #[test]
    fn rows_fit_beside_the_stages() {
        use SmallMBlock::{Eight, Four, Narrow};
        // 24,592 bytes without the row, in lines of 128 behind what aligns them; and 256 for each 128 of k.
        assert_eq!([of(Four, 1, [8, 32]).shared, of(Four, 1, [8, 256]).shared], [128 + 24704 + 256, 128 + 24704 + 512]);
        assert_eq!(of(Four, 8, [8, 18944]).shared, 128 + 24704 + 19 * 256);
        // As a static_assert of the kernels says.
        let config = |block| SmallMConfig::new(block, 1).unwrap();
        let begins = TABLE.map(|row| OneRow::by(&row, config(row.block), [8, 32]).shared - 128 - 256);
        assert_eq!(begins, [24704, 45184, 49280, 49280]);
        assert_eq!([Four, Eight, Narrow].map(|block| of(block, 1, [4096, 2048]).residents), [6, 3, 2]);
        assert_eq!([Four, Eight, Narrow].map(|block| of(block, 1, [4096, 18944]).residents), [3, 2, 2]);
        for row in &TABLE {
            for split in SmallMConfig::SPLITS {
                let config = SmallMConfig::new(row.block, split).unwrap();
                let fits = |k| OneRow::of(config, CodeOrder::Published, [1, 4096, k]);
                // The longest k that is taken, and how much that is of half a multiprocessor.
                let last = (1..4096).rev().find(|steps| fits(steps * 128).is_some()).unwrap();
                let taken = fits(last * 128).unwrap();
                assert!(taken.residents >= 2 && taken.shared as usize <= SHARED / 2 - 1024);
                assert!(fits((last + 1) * 128).is_none() && last >= 200 * split as usize, "{config}: {last}");
                assert!((1..=last).all(|steps| fits(steps * 128).is_some()));
            }
        }
    }

    #[test]
    fn only_one_row_of_published_codes() {
        let config = |block| SmallMConfig::new(block, 1).unwrap();
        let taken = |block, codes, m| OneRow::of(config(block), codes, [m, 4096, 7168]).is_some();
        for block in SmallMBlock::ALL {
            let has = [SmallMBlock::Four, SmallMBlock::Eight, SmallMBlock::Narrow].contains(&block);
            assert_eq!(taken(block, CodeOrder::Published, 1), has, "{block}");
            assert!(!taken(block, CodeOrder::Published, 2) && !taken(block, CodeOrder::Repacked, 1), "{block}");
        }
    }

    #[test]
    fn links_have_all_on_their_way_where_they_run_at_once() {
        use SmallMBlock::{Eight, Four, Narrow};
        let stages = |block, split, nk| of(block, split, nk).in_chain(nk, H200).stages;
        assert_eq!([stages(Four, 1, [7168, 2048]), stages(Four, 2, [4096, 4096])], [4, 4]);
        // Two steps, five steps, three rounds; and blocks that have no other.
        assert_eq!(
            [stages(Four, 2, [7168, 1024]), stages(Four, 1, [7168, 2560]), stages(Four, 1, [32768, 2048])],
            [2; 3]
        );
        assert_eq!([stages(Eight, 1, [4096, 4096]), stages(Narrow, 1, [2112, 7168])], [2; 2]);
        let releases = |block, split, nk| of(block, split, nk).link(nk, H200).1;
        assert_eq!(
            [releases(Eight, 2, [4096, 7168]), releases(Four, 1, [7168, 2048]), releases(Four, 1, [57344, 8192])],
            [1; 3]
        );
        // With eight steps and more, and places for some blocks of the next kernel alone.
        assert_eq!(
            [releases(Four, 2, [8192, 8192]), releases(Eight, 1, [8192, 8192]), releases(Four, 2, [5120, 25600])],
            [0; 3]
        );
        assert_eq!(releases(Eight, 1, [4096, 7168]), 1, "a place for each");
    }
}
