//! [`order`]: which configuration of our products of few rows is tried first; [`is_first`] and, for weights that are decoded, [`is_first_of_e2m1`] and
//! [`is_first_of_e4m3`]: where they are tried before all other ways. Pure.

use crate::format::CodeOrder;
use crate::gpu::kernels::{
    FEW_ROWS, SmallMBlock, SmallMConfig, SmallMOperands, SmallMScales, clusters_at_once, most_rows,
};

/// Nanoseconds of a warpgroup for 128 of k, from one barrier to the next; `None` for blocks of decoded weights.
fn step(block: SmallMBlock) -> Option<f64> {
    match block {
        SmallMBlock::One => Some(186.0),
        SmallMBlock::OneDeep => Some(285.0),
        SmallMBlock::Two => Some(311.0),
        SmallMBlock::Four
        | SmallMBlock::Eight
        | SmallMBlock::Sixteen
        | SmallMBlock::Narrow
        | SmallMBlock::Tile
        | SmallMBlock::TileE4m3 => None,
    }
}

/// Nanoseconds of a product, beside what all configurations take: whole waves of blocks that each walk their part of k, against the memory's rate; of the
/// shorter a part counts, too. E4M3: fitted to 12 configurations at 10 published shapes and m of 1, 8, 16 and 32 (H200, 2026-11), where it takes the fastest
/// or one within 5 % of it up to m = 16, and within 7 % at 32.
fn cost(config: SmallMConfig, codes: CodeOrder, mnk: [usize; 3], sm_count: usize) -> f64 {
    let (block, split, [m, n, k]) = (config.block(), config.split() as usize, mnk);
    let Some(step) = step(block) else { return cost_of_e2m1(config, codes, mnk, sm_count) };
    let tokens = m.next_multiple_of(8) as f64;
    let waves = block.tiles(n).div_ceil(clusters_at_once(block.residents(m), split, sm_count)) as f64;
    let steps = k.div_ceil(128).div_ceil(config.parts()) as f64;
    let walk = waves * (steps * step * (1.0 + tokens / 356.0) + 519.0);
    let bytes = (block.tiles(n) * 64) as f64 * k as f64 * (1.0 + tokens / 64.0);
    let memory = bytes / 3163.0 * 132.0 / sm_count.max(1) as f64;
    walk.max(memory) + 0.25 * walk.min(memory) + 124.0 * f64::from(config.split().ilog2())
}

/// What E2M1 weights cost, in nanoseconds.
pub(super) struct CostOfE2m1 {
    /// Of a step of 128 of k alone; what each warp on a multiprocessor adds to it, with at most 8 rows of A and with more; times that with 16 rows of B for 32.
    pub(super) step: f64,
    pub(super) warp: [f64; 2],
    pub(super) narrow: f64,
    /// Of a wave of blocks, apart from its steps; of doubling the split; of each part of k at the end of a block.
    pub(super) wave: f64,
    pub(super) split: f64,
    pub(super) part: f64,
    /// Of the memory, bytes in a nanosecond; what of the shorter counts, too.
    pub(super) bytes: f64,
    pub(super) shorter: f64,
}

impl CostOfE2m1 {
    /// Of blocks of which a multiprocessor has room for so many; `many`: of more than 8 rows.
    pub(super) fn of(
        &self,
        config: SmallMConfig,
        residents: usize,
        many: bool,
        [n, k]: [usize; 2],
        sm_count: usize,
    ) -> f64 {
        let (block, split) = (config.block(), config.split() as usize);
        let (tiles, at_once) = (block.tiles(n), clusters_at_once(residents, split, sm_count));
        let (parts, sms) = (config.parts(), sm_count.max(1) as f64);
        let on_sm = (tiles.min(at_once) * parts) as f64 / sms;
        let of_rows = if block == SmallMBlock::Narrow { self.narrow } else { 1.0 };
        let step = self.step + on_sm * of_rows * self.warp[usize::from(many)];
        let walk = tiles.div_ceil(at_once) as f64 * (k.div_ceil(128).div_ceil(parts) as f64 * step + self.wave);
        let memory = n as f64 * k as f64 * 0.5625 / self.bytes * 132.0 / sms;
        let ends = self.split * f64::from(config.split().ilog2()) + self.part * block.parts() as f64;
        walk.max(memory) + self.shorter * walk.min(memory) + ends
    }
}

/// Fitted to 16 configurations at 14 published shapes and m of 1, 8 and 16 (H200, 2026-11, the
/// record of orders of codes), where with [`fills_once`] it takes the fastest or one within 5 % of it, 0.6 % behind on average.
const AS_PUBLISHED: CostOfE2m1 = CostOfE2m1 {
    step: 412.0,
    warp: [15.3, 104.0],
    narrow: 1.39,
    wave: 769.0,
    split: 734.0,
    part: 271.0,
    bytes: 3900.0,
    shorter: 0.114,
};

/// The same of repacked codes, at 14 shapes (the record of repacked codes): the fastest or one within 5 % of it, 0.4 % behind on average.
pub(super) const REPACKED: CostOfE2m1 = CostOfE2m1 {
    step: 510.0,
    warp: [40.0, 41.0],
    narrow: 1.1,
    wave: 156.0,
    split: 459.0,
    part: 232.0,
    bytes: 3418.0,
    shorter: 0.018,
};

/// The same for E2M1, where what the warps of a multiprocessor decode at once slows each.
fn cost_of_e2m1(config: SmallMConfig, codes: CodeOrder, [m, n, k]: [usize; 3], sm_count: usize) -> f64 {
    let (block, split) = (config.block(), config.split() as usize);
    match block {
        SmallMBlock::Tile => return cost_of_tiles(split, 8, k),
        SmallMBlock::TileE4m3 => {
            let most = [8, 4, 2].into_iter().find(|split| splits_e4m3(*split, [m, n], sm_count));
            return cost_of_tiles(split, most.unwrap_or(1), k);
        }
        _ => {}
    }
    let cost = match codes {
        CodeOrder::Published => AS_PUBLISHED,
        CodeOrder::Repacked => REPACKED,
    };
    cost.of(config, block.residents(m), m > 8, [n, k], sm_count)
}

/// Whether unsplit blocks of many warps of E2M1 weights take all places once, or nearly: with a long k nothing is faster, as no block waits for another. (H200, 2026-11, m = 1: sixteen
/// warps at 4096 x 7168 9.5 us for 10.1 of the next, eight at 8192 x 8192 15.9 for 17.4, narrow blocks at 2112 x 7168 6.9 for 7.2, and 7.9 for 7.4 at m = 8.) With 16 warps more rows of A are for smaller blocks, though by 4 % alone.
///
/// Of repacked codes narrow blocks do so by twos, which share a multiprocessor (2112 x 7168 5.9 for 6.4 unsplit).
fn fills_once(config: SmallMConfig, codes: CodeOrder, [m, n, k]: [usize; 3], sm_count: usize) -> bool {
    let (block, tiles) = (config.block(), config.block().tiles(n));
    let (split, places, tenths) = match (block, codes) {
        // Also where a quarter of the multiprocessors has none (m = 2, 3072 x 7168, 8.5 us for 9.4, in a chain 7.7 for 9.5, repacked 6.7 for 7.4, 6.0 for 8.6; the record of links).
        // As published with a longer k alone (2 and 8 x 4096 x 4096 in two parts of `four` 6.6 and 6.8 us for 6.8 and 7.3; the record of links planned for chains).
        (SmallMBlock::Sixteen, CodeOrder::Published) if m <= 8 && k > 4096 => (1, sm_count, 7),
        (SmallMBlock::Sixteen, CodeOrder::Repacked) if m <= 8 => (1, sm_count, 7),
        (SmallMBlock::Narrow, CodeOrder::Published) if m <= 2 => (1, sm_count, 8),
        (SmallMBlock::Narrow, CodeOrder::Repacked) if m <= 8 => (2, sm_count, 8),
        (SmallMBlock::Eight, _) => (1, 2 * sm_count, 8),
        _ => return false,
    };
    config.split() == split && k >= 4096 && tiles <= places && 10 * tiles >= tenths * places
}

/// Of tiles, which are compared with tiles alone: how far from the split that should be fastest, the largest up to `most` that leaves four steps to each part. Of E2M1 made from all splits
/// at 12 published shapes and m of 16 to 64 (H200, 2026-11, `tiles.md` of the record): the fastest or within 5 % of it in 65 of 72 places, within 15 % in all, 1.3 % behind on average. A fit as for the other
/// blocks did worse: what slows a multiprocessor is not how often blocks fill it.
fn cost_of_tiles(split: usize, most: usize, k: usize) -> f64 {
    let wanted = (k.div_ceil(128) / 4).clamp(1, most).ilog2();
    f64::from(split.ilog2().abs_diff(wanted)) + if split.ilog2() > wanted { 0.5 } else { 0.0 }
}

/// The most blocks that a split makes of a product with E4M3 weights before a smaller one is faster: about what runs at once. Fitted to all splits at 7 published shapes
/// and m of 1, 8, 16, 32 and 64 (H200, 2026-11, `e4m3.md` of the record), where the split that comes first is the fastest in 32 of 35 places and within 5 % of it in
/// all: at 4096 x 7168 that of 8, at 8192 x 8192 that of 4 (20.3 us; 23.9 with 8), above 16 rows that of 2.
fn splits_e4m3(split: usize, [m, n]: [usize; 2], sm_count: usize) -> bool {
    let blocks = SmallMBlock::TileE4m3.tiles(n) * split;
    let on_sm = match split {
        8 => 3,
        4 if m > 16 => 2,
        _ => return true,
    };
    blocks <= on_sm * sm_count * 15 / 16
}

/// Of FP8 and up to 16 rows: into how many parts k is cut instead where blocks of whole rows of B come first, of which a multiprocessor has three or four, with a long walk: four are as fast outside of chains (0.94 to 1.02 of the time), and in them, where such blocks gain
/// little, take 0.89 to 0.96 (27648 x 5120 32.5 us for 35.2, m = 1, 35.1 for 38.5, m = 16). And eight where sixteen parts do that do not all have multiprocessors of their own, or have less than three steps (1536 x 7168 5.0 us for 5.2, in a chain 3.9 for 4.4). H200, 2026-11, the records of links and of
/// paced links.
fn other_parts(first: SmallMConfig, [n, k]: [usize; 2], sm_count: usize) -> Option<u32> {
    let tiles = first.block().tiles(n);
    match (first.block(), first.split()) {
        (SmallMBlock::One, 1) if k.div_ceil(128) >= 28 && tiles > 3 * sm_count => Some(4),
        (SmallMBlock::Two, 8) if 8 * tiles > sm_count || k.div_ceil(128) < 48 => Some(8),
        _ => None,
    }
}

/// The configurations that multiply m rows of these operands, whose weights lie in this order, the one that should be fastest first. Of FP8: where even unsplit blocks outnumber their
/// places, and a walk is long, deep ones with a half of k leave the least idle at the end.
pub(crate) fn order(operands: SmallMOperands, codes: CodeOrder, mnk: [usize; 3], sm_count: usize) -> Vec<SmallMConfig> {
    let [m, n, k] = mnk;
    let mut all: Vec<_> = SmallMConfig::all(operands).filter(|config| config.block().multiplies(m)).collect();
    all.sort_by(|a, b| cost(*a, codes, mnk, sm_count).total_cmp(&cost(*b, codes, mnk, sm_count)));
    all.sort_by_key(|config| !fills_once(*config, codes, mnk, sm_count));
    // Where each warp can read the rows of A for itself, that is faster than tiles in turns with a barrier.
    all.sort_by_key(|config| m <= SmallMBlock::Four.most_rows() && config.block() == SmallMBlock::Tile);
    let fp8 = operands == SmallMOperands::Fp8;
    if fp8 && k >= 1024 && SmallMBlock::One.tiles(n) > clusters_at_once(SmallMBlock::One.residents(m), 1, sm_count) {
        all.sort_by_key(|config| (config.block(), config.split()) != (SmallMBlock::OneDeep, 2));
    }
    let other = all.first().filter(|_| fp8 && m <= FEW_ROWS).and_then(|first| other_parts(*first, [n, k], sm_count));
    if let Some(split) = other {
        all.sort_by_key(|config| (config.block(), config.split()) != (SmallMBlock::One, split));
    }
    if let Some(fast) = all.first().and_then(|config| config.as_fast(mnk, sm_count)) {
        all.sort_by_key(|config| *config != fast);
    }
    all
}

/// The one configuration in which the bits of a row do not depend on m: tiles, in passes over B, with the split that is best for a full pass.
pub(crate) fn of_any_m(
    operands: SmallMOperands,
    codes: CodeOrder,
    [n, k]: [usize; 2],
    sm_count: usize,
) -> Option<SmallMConfig> {
    let full = most_rows(operands);
    order(operands, codes, [full, n, k], sm_count).into_iter().find(|config| config.block().takes_passes())
}

/// How often the clusters of the configuration fill the GPU.
pub(crate) fn waves(config: SmallMConfig, [m, n, _]: [usize; 3], sm_count: usize) -> f32 {
    config.block().tiles(n) as f32
        / clusters_at_once(config.block().residents(m), config.split() as usize, sm_count) as f32
}

/// Whether it is tried before all other ways; `stored`: one of cuBLASLt's ways does the whole epilogue, too.
///
/// Every tile of B reads all of A once more, so that many rows of both are for the library's larger tiles; a short k leaves little to be split. Made from
/// `formulations` (H200, cuBLASLt 13.1, 2026-11, `2026-11-29-nvidia-h200-formulations`: 17 shapes of 1x128 x 128x128 and of rows), and from `gemm` for whole matrices. Up to 16 rows nothing is more than 2 % faster where it is first, but for
/// rows of 10240 x 5120 (3 %). At m = 32 `sm90` takes 0.7 to 0.97 of this way's time, but for narrow weights with a long k (1.05 at 2112 x 7168, 1.17 at 576 x 7168).
pub(crate) fn is_first(scales: SmallMScales, stored: bool, [m, n, k]: [usize; 3]) -> bool {
    let within = |most: usize| m * n <= most;
    // Where our sm_90 product leaves multiprocessors idle, though it splits k.
    let narrow = k >= 3 * n && n <= 2560;
    match scales {
        SmallMScales::Blocks if !stored => narrow || m <= 8 || (m <= 16 && (k >= 1024 || within(1 << 15))),
        _ if !stored => narrow || m <= 16,
        SmallMScales::Blocks => {
            let small = within(1 << 15) || (k >= 1024 && within(1 << 16));
            m <= 4 || narrow || (m <= 8 && k >= 1024) || (m <= 16 && (k >= 2048 || small))
        }
        SmallMScales::Outer { each: [false, false] } => {
            k >= 2048 && n <= 5120 && (m <= 8 || (m <= 16 && within(1 << 16)))
        }
        SmallMScales::Outer { .. } => m <= 12 || narrow || (m <= 16 && (k >= 1024 || within(1 << 15))),
    }
}

/// What is known of the values of E2M1 weights that cuBLASLt multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// They are made in each call.
    Nothing,
    /// B keeps them, but a pass of the epilogue kernel is needed.
    WithPass,
    /// B keeps them, and the library does the whole epilogue.
    Fused,
}

/// The same of E2M1 weights. One pass over codes is a walk of few steps where k is short (H200, 2026-11: 22.4 us for 20.8 of MXFP4 weights that are kept,
/// 16 x 24576 x 1536).
///
/// Above 16 rows each weight is decoded for tiles of more columns, which takes longer than cuBLASLt's product of kept values, and less than to make them in each
/// call, if there are weights enough (H200, 2026-11, `tiles.md` of the record: BF16 x `nvfp4`, 4096 x 7168, 25.5 us at m = 32 for 43.9, 31.5 for 44.9 at 48, 37.6 for 44.8 at
/// 64; 576 x 7168 16.6 for 15.9 at 48, 7168 x 2048 26.3 for 23.5 and 4096 x 4096 27.4 for 26.7 at 64).
pub(crate) fn is_first_of_e2m1(kept: Kept, [m, n, k]: [usize; 3]) -> bool {
    match m {
        0..=8 => true,
        9..=16 => kept != Kept::Fused || k >= 2048,
        _ if kept != Kept::Nothing || k < 1024 || m > 64 => false,
        17..=32 => true,
        33..=48 => n * k >= 6 << 20,
        _ => n * k >= 24 << 20,
    }
}

/// The same of E4M3 weights with block scales; those with FP32 scales have no other way. From `gemm_blocks` at 4096 x 7168, 24576 x 1536 and 576 x 7168 (H200, 2026-11): BF16 x `mxfp8`
/// at m = 16 15.2, 19.2 and 7.1 us for 19.6, 20.8 and 7.3 with kept values (`mxfp8` x `mxfp8` at 576 x 7168 8.8 for 8.5); at m = 64 37, 53 and 14.7 for 43, 51 and 11.7 where nothing is kept.
pub(crate) fn is_first_of_e4m3(kept: Kept, [m, n, k]: [usize; 3]) -> bool {
    match m {
        0..=8 => true,
        9..=16 => kept == Kept::Nothing || n * k >= 6 << 20,
        _ => is_first_of_e2m1(kept, [m, n, k]) && (m <= 48 || k >= 2048),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A product, and the configurations that are taken for the fastest.
    type Case = ([usize; 3], &'static [(SmallMBlock, u32)]);

    /// Microseconds of the fastest, and of those within 5 % of it.
    #[test]
    fn other_parts_and_blocks_come_first() {
        use SmallMBlock::{One, OneDeep, Two};
        let first = |[m, n, k]: [usize; 3]| {
            let first = order(SmallMOperands::Fp8, CodeOrder::Published, [m, n, k], 132)[0];
            (first.block(), first.split())
        };
        assert_eq!([1, 16].map(|m| first([m, 27648, 5120])), [(One, 4); 2]);
        assert_eq!([1, 16].map(|m| first([m, 29568, 8192])), [(One, 4); 2]);
        // More rows; fewer blocks, of which three stand on a multiprocessor; a short walk; more blocks than places.
        assert_eq!([first([17, 27648, 5120]), first([16, 22016, 4096])], [(OneDeep, 2), (One, 1)]);
        assert_eq!([first([1, 22016, 4096]), first([1, 28672, 2048])], [(OneDeep, 1), (One, 1)]);
        assert_eq!([1, 16].map(|m| first([m, 57344, 8192])), [(OneDeep, 2); 2]);
        // Blocks of as many parts that are faster.
        assert_eq!([1, 16].map(|m| first([m, 4096, 11008])), [(Two, 2); 2]);
        assert_eq!([first([1, 1024, 4096]), first([16, 4096, 7168])], [(OneDeep, 8), (One, 4)]);
        // Sixteen parts that have multiprocessors of their own, and that do not.
        assert_eq!([1, 16].map(|m| first([m, 576, 7168])), [(Two, 8); 2]);
        assert_eq!([1, 16].map(|m| first([m, 1536, 7168])), [(Two, 4), (One, 8)]);
    }

    #[test]
    fn what_was_fastest_comes_first() {
        use SmallMBlock::{One, OneDeep, Two};
        let cases: [Case; 15] = [
            ([1, 4096, 7168], &[(Two, 2), (One, 4)]),               // 9.37, 9.68
            ([8, 4096, 7168], &[(Two, 2), (One, 4)]),               // 9.46, 9.72
            ([16, 4096, 7168], &[(Two, 2), (One, 4)]),              // 10.34, 10.51
            ([1, 7168, 2048], &[(Two, 1), (OneDeep, 2), (One, 4)]), // 5.95, 6.20, 6.23
            ([16, 7168, 2048], &[(One, 4), (Two, 1)]),              // 7.27, 7.43
            ([1, 2112, 7168], &[(One, 8), (OneDeep, 8)]),           // 6.39, 6.64
            ([16, 2112, 7168], &[(One, 8)]),                        // 6.72; 7.11
            ([1, 24576, 1536], &[(One, 1), (OneDeep, 1)]),          // 10.98, 11.05
            ([8, 24576, 1536], &[(One, 1), (OneDeep, 1)]),          // 12.33, 12.39
            ([1, 57344, 8192], &[(OneDeep, 2), (Two, 2)]),          // 108.4, 108.8
            ([16, 57344, 8192], &[(OneDeep, 2), (Two, 2)]),         // 119.0, 119.6
            ([1, 576, 7168], &[(Two, 8), (OneDeep, 8)]),            // 4.08; 4.58
            ([1, 8192, 8192], &[(Two, 1), (OneDeep, 2), (Two, 2)]), // 17.71, 17.80, 17.92
            ([1, 10240, 5120], &[(OneDeep, 2), (One, 2)]),          // 14.68, 14.70
            ([1, 32768, 512], &[(One, 1)]),                         // 6.29; 8.25
        ];
        for (mnk, fastest) in cases {
            let order = order(SmallMOperands::Fp8, CodeOrder::Published, mnk, 132);
            let first = (order[0].block(), order[0].split());
            assert!(fastest.contains(&first), "{mnk:?}: {first:?}");
            let mut all = order;
            all.sort();
            assert_eq!(all, SmallMConfig::all(SmallMOperands::Fp8).collect::<Vec<_>>(), "none is lost");
        }
    }

    /// The same of E2M1, where what is taken is within 5 % of the fastest.
    #[test]
    fn what_was_fastest_of_e2m1_comes_first() {
        use SmallMBlock::{Eight, Four, Narrow, Sixteen, Tile};
        let cases: [Case; 42] = [
            ([1, 576, 7168], &[(Four, 8), (Eight, 4), (Eight, 8), (Sixteen, 4)]), // 4.54, 4.56, 4.59, 4.70
            ([8, 576, 7168], &[(Four, 8), (Eight, 8), (Eight, 4)]),               // 4.60, 4.74, 4.79
            ([16, 576, 7168], &[(Four, 8), (Eight, 8)]),                          // 5.17, 5.40
            ([1, 2112, 7168], &[(Narrow, 1), (Four, 8)]),                         // 6.86, 7.23
            ([8, 2112, 7168], &[(Four, 8)]),                                      // 7.33
            ([16, 2112, 7168], &[(Four, 4)]),                                     // 9.25
            ([1, 4096, 2048], &[(Eight, 1), (Eight, 2), (Four, 2), (Sixteen, 1)]), // 4.83, 4.86, 4.91, 4.92
            ([8, 4096, 2048], &[(Four, 2), (Eight, 2)]),                          // 5.03, 5.13
            ([16, 4096, 2048], &[(Eight, 2), (Four, 2)]),                         // 5.86, 6.01
            ([1, 4096, 7168], &[(Sixteen, 1)]),                                   // 9.52
            ([8, 4096, 7168], &[(Four, 2), (Sixteen, 1), (Eight, 2)]),            // 10.24, 10.51, 10.59
            ([16, 4096, 7168], &[(Four, 2), (Sixteen, 1), (Eight, 2)]),           // 11.89, 12.37, 12.43
            ([1, 5120, 8192], &[(Four, 2)]),                                      // 12.29
            ([8, 5120, 8192], &[(Four, 2)]),                                      // 12.60
            ([16, 5120, 8192], &[(Four, 2)]),                                     // 15.28
            ([1, 5120, 25600], &[(Four, 2)]),                                     // 30.81
            ([8, 5120, 25600], &[(Four, 2)]),                                     // 31.93
            ([16, 5120, 25600], &[(Four, 2), (Eight, 2)]),                        // 41.72, 43.32
            ([1, 7168, 2048], &[(Four, 1), (Eight, 1), (Four, 2)]),               // 6.50, 6.56, 6.76
            ([8, 7168, 2048], &[(Four, 1), (Four, 2), (Eight, 1)]),               // 6.95, 7.04, 7.10
            ([16, 7168, 2048], &[(Four, 1), (Eight, 1), (Four, 2)]),              // 8.39, 8.60, 8.61
            ([1, 7168, 16384], &[(Eight, 1)]),                                    // 25.73
            ([8, 7168, 16384], &[(Eight, 1)]),                                    // 26.50
            ([16, 7168, 16384], &[(Eight, 1), (Four, 2)]),                        // 33.50, 34.57
            ([1, 8192, 8192], &[(Eight, 1)]),                                     // 15.85
            ([8, 8192, 8192], &[(Eight, 1), (Four, 2)]),                          // 16.91, 16.95
            ([16, 8192, 8192], &[(Four, 2), (Eight, 1)]),                         // 20.50, 20.78
            ([1, 10240, 5120], &[(Four, 1)]),                                     // 14.13
            ([8, 10240, 5120], &[(Four, 1), (Four, 2)]),                          // 14.95, 15.44
            ([16, 10240, 5120], &[(Four, 1)]),                                    // 18.71
            ([1, 10240, 8192], &[(Four, 1), (Four, 2)]),                          // 20.43, 20.67
            ([8, 10240, 8192], &[(Four, 2), (Four, 1)]),                          // 21.04, 21.70
            ([16, 10240, 8192], &[(Four, 1)]),                                    // 26.49
            ([1, 24576, 1536], &[(Four, 1), (Eight, 1), (Four, 2)]),              // 12.05, 12.37, 12.59
            ([8, 24576, 1536], &[(Four, 1), (Four, 2)]),                          // 13.14, 13.45
            ([16, 24576, 1536], &[(Four, 2), (Four, 1), (Eight, 1)]),             // 18.92, 19.45, 19.56
            ([1, 32768, 512], &[(Four, 1)]),                                      // 7.60
            ([8, 32768, 512], &[(Four, 1)]),                                      // 8.58
            ([16, 32768, 512], &[(Four, 1)]),                                     // 12.14
            ([1, 57344, 8192], &[(Four, 1), (Four, 2), (Eight, 1)]),              // 83.65, 84.32, 85.79
            ([8, 57344, 8192], &[(Four, 1), (Four, 2), (Eight, 1)]),              // 89.43, 91.41, 91.55
            ([16, 57344, 8192], &[(Four, 1), (Four, 2)]),                         // 117.13, 121.93
        ];
        let mut others = Vec::new();
        for (mnk, fastest) in cases {
            let mut order = order(SmallMOperands::E2m1Weights, CodeOrder::Published, mnk, 132);
            let first = (order[0].block(), order[0].split());
            if !fastest.contains(&first) {
                others.push((mnk, first));
            }
            assert!(order[16..].iter().all(|config| config.block() == Tile), "tiles are for more rows");
            order.sort();
            assert_eq!(order, SmallMConfig::all(SmallMOperands::E2m1Weights).collect::<Vec<_>>(), "none is lost");
        }
        assert_eq!(others, []);
        assert!(!order(SmallMOperands::E2m1Weights, CodeOrder::Published, [1, 8, 32], 1).is_empty());
    }

    /// And of repacked codes.
    #[test]
    fn what_was_fastest_of_repacked_codes_comes_first() {
        use SmallMBlock::{Eight, Four, Narrow, Sixteen};
        let cases: [Case; 42] = [
            ([1, 4096, 7168], &[(Sixteen, 1)]),                      // 7.73
            ([8, 4096, 7168], &[(Eight, 2), (Sixteen, 1)]),          // 8.51, 8.89
            ([16, 4096, 7168], &[(Eight, 2)]),                       // 10.27
            ([1, 7168, 2048], &[(Eight, 1), (Four, 2)]),             // 5.66, 5.87
            ([8, 7168, 2048], &[(Four, 2), (Eight, 1)]),             // 6.13, 6.15
            ([16, 7168, 2048], &[(Eight, 1), (Four, 2), (Four, 1)]), // 7.7, 7.7, 8.0
            ([1, 2112, 7168], &[(Narrow, 2)]),                       // 5.91
            ([8, 2112, 7168], &[(Four, 8), (Narrow, 2)]),            // 6.64, 6.85
            ([16, 2112, 7168], &[(Four, 4)]),                        // 8.13
            ([1, 57344, 8192], &[(Four, 1), (Eight, 1)]),            // 72.77, 74.08
            ([8, 57344, 8192], &[(Four, 1)]),                        // 78.14
            ([16, 57344, 8192], &[(Four, 1)]),                       // 110.71
            ([1, 24576, 1536], &[(Four, 1)]),                        // 9.33
            ([8, 24576, 1536], &[(Four, 1)]),                        // 10.07
            ([16, 24576, 1536], &[(Four, 1)]),                       // 16.85
            ([1, 8192, 8192], &[(Eight, 1), (Four, 2)]),             // 13.26, 13.55
            ([8, 8192, 8192], &[(Four, 2), (Eight, 1)]),             // 13.8, 13.98
            ([16, 8192, 8192], &[(Four, 2), (Eight, 1)]),            // 17.47, 17.56
            ([1, 5120, 25600], &[(Eight, 2), (Four, 4), (Four, 8)]), // 24.9, 25.24, 25.88
            ([8, 5120, 25600], &[(Four, 4), (Eight, 2)]),            // 25.43, 25.44
            ([16, 5120, 25600], &[(Four, 2)]),                       // 35.84
            ([1, 4096, 2048], &[(Eight, 1), (Four, 2), (Sixteen, 1), (Narrow, 1), (Eight, 2)]), // 4.77, 4.8, 4.88, 4.89, 4.97
            ([8, 4096, 2048], &[(Four, 2), (Eight, 2), (Eight, 1)]),                            // 4.96, 5.16, 5.17
            ([16, 4096, 2048], &[(Four, 2), (Eight, 2)]),                                       // 5.83, 5.94
            ([1, 576, 7168], &[(Four, 8), (Narrow, 2), (Eight, 4)]),                            // 4.59, 4.63, 4.64
            ([8, 576, 7168], &[(Four, 8), (Eight, 4)]),                                         // 4.68, 4.8
            ([16, 576, 7168], &[(Four, 8), (Eight, 4)]),                                        // 5.12, 5.3
            ([1, 10240, 8192], &[(Four, 2)]),                                                   // 15.67
            ([8, 10240, 8192], &[(Four, 2)]),                                                   // 16.05
            ([16, 10240, 8192], &[(Four, 1)]),                                                  // 24.88
            ([1, 32768, 512], &[(Four, 1)]),                                                    // 7.27
            ([8, 32768, 512], &[(Four, 1)]),                                                    // 8.22
            ([16, 32768, 512], &[(Four, 1)]),                                                   // 11.71
            ([1, 5120, 8192], &[(Eight, 2), (Four, 4), (Four, 2)]),                             // 10.76, 10.95, 11.25
            ([8, 5120, 8192], &[(Four, 4), (Eight, 2), (Four, 2)]),                             // 11.0, 11.01, 11.5
            ([16, 5120, 8192], &[(Four, 2)]),                                                   // 14.29
            ([1, 7168, 16384], &[(Eight, 1), (Four, 2)]),                                       // 21.96, 22.39
            ([8, 7168, 16384], &[(Four, 2), (Eight, 1)]),                                       // 23.01, 23.27
            ([16, 7168, 16384], &[(Eight, 1), (Four, 2)]),                                      // 29.7, 29.79
            ([1, 10240, 5120], &[(Four, 2)]),                                                   // 11.2
            ([8, 10240, 5120], &[(Four, 2)]),                                                   // 11.53
            ([16, 10240, 5120], &[(Four, 1)]),                                                  // 17.12
        ];
        for (mnk, fastest) in cases {
            let order = order(SmallMOperands::E2m1Weights, CodeOrder::Repacked, mnk, 132);
            let first = (order[0].block(), order[0].split());
            assert!(fastest.contains(&first), "{mnk:?}: {first:?}");
            assert_eq!(order.len(), SmallMConfig::all(SmallMOperands::E2m1Weights).count(), "none is lost");
        }
    }

    /// The shorter k is, the fewer parts it has; other blocks hold no such m.
    #[test]
    fn more_rows_are_for_tiles() {
        for m in [17, 32, 33, 64] {
            let splits = |n, k| {
                order(SmallMOperands::E2m1Weights, CodeOrder::Published, [m, n, k], 132)
                    .iter()
                    .map(|c| c.split())
                    .collect::<Vec<_>>()
            };
            assert_eq!([576, 2112, 4096].map(|n| splits(n, 7168)[0]), [8; 3], "m = {m}");
            assert_eq!([splits(7168, 2048), splits(24576, 1536)], [[4, 2, 8, 1], [2, 1, 4, 8]], "m = {m}");
            assert_eq!(splits(4096, 128)[0], 1, "one step has no parts");
            let order = order(SmallMOperands::E2m1Weights, CodeOrder::Published, [m, 4096, 7168], 132);
            assert!(order.len() == 4 && order.iter().all(|config| config.block() == SmallMBlock::Tile));
        }
        assert_eq!(order(SmallMOperands::Fp8, CodeOrder::Published, [32, 4096, 7168], 132).len(), 12);
        assert_eq!(order(SmallMOperands::E2m1Weights, CodeOrder::Published, [65, 4096, 7168], 132).len(), 4);
    }

    /// All splits of E4M3 weights, microseconds of 1, 2, 4 and 8.
    #[test]
    fn what_was_fastest_of_e4m3_comes_first() {
        let measured: [([usize; 3], [f64; 4]); 35] = [
            ([1, 4096, 7168], [27.08, 15.43, 12.18, 10.95]),
            ([8, 4096, 7168], [28.78, 16.52, 13.47, 11.90]),
            ([16, 4096, 7168], [34.14, 19.13, 16.55, 13.46]),
            ([32, 4096, 7168], [47.04, 26.87, 24.06, 22.39]),
            ([64, 4096, 7168], [86.34, 47.61, 44.20, 37.05]),
            ([1, 7168, 2048], [9.67, 7.19, 6.64, 10.09]),
            ([8, 7168, 2048], [11.44, 8.08, 7.47, 10.93]),
            ([16, 7168, 2048], [15.23, 10.31, 8.72, 11.91]),
            ([32, 7168, 2048], [20.73, 14.06, 13.09, 17.83]),
            ([64, 7168, 2048], [36.71, 21.67, 20.78, 24.67]),
            ([1, 2112, 7168], [26.63, 14.94, 9.21, 7.73]),
            ([8, 2112, 7168], [28.29, 15.63, 9.48, 8.22]),
            ([16, 2112, 7168], [33.88, 18.51, 10.93, 9.72]),
            ([32, 2112, 7168], [46.47, 25.50, 15.08, 14.04]),
            ([64, 2112, 7168], [90.47, 45.20, 25.06, 25.57]),
            ([1, 576, 7168], [26.33, 14.58, 8.68, 5.82]),
            ([8, 576, 7168], [28.02, 15.32, 8.91, 6.01]),
            ([16, 576, 7168], [33.69, 18.26, 10.43, 6.56]),
            ([32, 576, 7168], [46.55, 25.32, 14.36, 9.11]),
            ([64, 576, 7168], [90.53, 45.36, 24.33, 14.12]),
            ([1, 24576, 1536], [13.32, 13.01, 17.33, 22.07]),
            ([8, 24576, 1536], [18.23, 14.91, 18.52, 23.78]),
            ([16, 24576, 1536], [22.12, 18.12, 22.68, 26.43]),
            ([32, 24576, 1536], [32.59, 27.42, 34.92, 39.93]),
            ([64, 24576, 1536], [56.03, 51.62, 56.52, 69.53]),
            ([1, 8192, 8192], [31.14, 21.94, 20.26, 23.93]),
            ([8, 8192, 8192], [34.10, 23.95, 22.73, 25.34]),
            ([16, 8192, 8192], [41.24, 27.93, 26.09, 27.46]),
            ([32, 8192, 8192], [54.95, 36.20, 41.68, 38.74]),
            ([64, 8192, 8192], [96.79, 60.75, 68.35, 61.29]),
            ([1, 57344, 8192], [155.80, 127.20, 116.74, 120.04]),
            ([8, 57344, 8192], [183.90, 138.87, 131.28, 147.43]),
            ([16, 57344, 8192], [227.51, 161.84, 137.04, 148.42]),
            ([32, 57344, 8192], [259.65, 214.40, 204.85, 214.66]),
            ([64, 57344, 8192], [412.40, 328.27, 323.38, 342.32]),
        ];
        for (mnk, us) in measured {
            let order = order(SmallMOperands::E4m3Weights, CodeOrder::Published, mnk, 132);
            assert!(order.len() == 4 && order.iter().all(|config| config.block() == SmallMBlock::TileE4m3));
            let first = us[order[0].split().ilog2() as usize];
            let fastest = us.into_iter().fold(f64::INFINITY, f64::min);
            assert!(first <= 1.05 * fastest, "{mnk:?}: {first} us, {fastest} at best");
        }
        assert_eq!(order(SmallMOperands::E4m3Weights, CodeOrder::Published, [1, 8, 16], 1).len(), 4);
        assert_eq!(order(SmallMOperands::E4m3Weights, CodeOrder::Published, [65, 4096, 7168], 132).len(), 4);
        let first = |kept, m| is_first_of_e4m3(kept, [m, 4096, 7168]);
        assert_eq!([Kept::Nothing, Kept::WithPass, Kept::Fused].map(|kept| first(kept, 16)), [true; 3]);
        assert_eq!([Kept::Nothing, Kept::WithPass, Kept::Fused].map(|kept| first(kept, 17)), [true, false, false]);
        let small = |kept, m| is_first_of_e4m3(kept, [m, 576, 7168]);
        assert_eq!([8, 9, 16].map(|m| small(Kept::Fused, m)), [true, false, false]);
        assert_eq!([16, 32, 33].map(|m| small(Kept::Nothing, m)), [true, true, false]);
        assert_eq!([48, 64].map(|m| is_first_of_e4m3(Kept::Nothing, [m, 24576, 1536])), [true, false]);
    }

    #[test]
    fn waves_count_whole_clusters() {
        let config = |block, split| SmallMConfig::new(block, split).unwrap();
        assert_eq!(waves(config(SmallMBlock::One, 1), [1, 64, 16], 132), 1.0 / 528.0);
        assert_eq!(waves(config(SmallMBlock::Two, 2), [1, 4096, 7168], 132), 64.0 / 132.0);
        assert_eq!(waves(config(SmallMBlock::Two, 4), [1, 4096, 7168], 132), 64.0 / 61.0);
        assert!(waves(config(SmallMBlock::Two, 8), [1, 64, 16], 1).is_finite());
        assert!(!order(SmallMOperands::Fp8, CodeOrder::Published, [1, 8, 16], 1).is_empty());
    }

    #[test]
    fn few_rows_are_its_own() {
        let blocks = |mnk| is_first(SmallMScales::Blocks, true, mnk);
        assert!(
            [[4, 32768, 512], [8, 24576, 1536], [16, 57344, 8192], [16, 7168, 2048], [16, 2048, 768], [32, 2112, 7168]]
                .into_iter()
                .all(blocks)
        );
        assert!(
            ![[8, 32768, 512], [9, 24576, 1536], [17, 7168, 2048], [32, 5120, 25600], [32, 1536, 2048]]
                .into_iter()
                .any(blocks)
        );
        let rows = |mnk| is_first(SmallMScales::Outer { each: [true, true] }, true, mnk);
        assert!([[12, 57344, 8192], [16, 24576, 1536], [16, 2048, 768], [32, 576, 7168]].into_iter().all(rows));
        assert!(![[16, 32768, 512], [32, 8192, 8192], [32, 5120, 25600]].into_iter().any(rows));
        let tensors = |mnk| is_first(SmallMScales::Outer { each: [false, false] }, true, mnk);
        assert!(tensors([8, 5120, 8192]) && tensors([16, 4096, 7168]));
        assert!(!tensors([1, 8192, 8192]) && !tensors([1, 24576, 1536]) && !tensors([32, 576, 7168]));
        // With a pass of the epilogue kernel as the alternative.
        let passed = |mnk| is_first(SmallMScales::Blocks, false, mnk);
        assert!(passed([16, 57344, 8192]) && passed([32, 576, 7168]) && passed([8, 32768, 512]));
        assert!(!passed([32, 4096, 7168]) && !passed([16, 32768, 512]));
        // E2M1 weights, by what is kept of them.
        let first =
            |m, k| [Kept::Nothing, Kept::WithPass, Kept::Fused].map(|kept| is_first_of_e2m1(kept, [m, 4096, k]));
        assert_eq!([first(8, 512), first(16, 2048)], [[true; 3]; 2]);
        assert_eq!(first(9, 2016), [true, true, false]);
        assert_eq!([first(17, 1024), first(32, 7168), first(33, 7168), first(64, 7168)], [[true, false, false]; 4]);
        assert_eq!([first(17, 992), first(33, 992), first(64, 4096)], [[false; 3]; 3]);
        assert!(is_first_of_e2m1(Kept::Nothing, [48, 1536, 4096]) && !is_first_of_e2m1(Kept::Nothing, [48, 576, 7168]));
    }
}
