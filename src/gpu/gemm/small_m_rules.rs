//! [`order`]: which configuration of our product of few rows is tried first; [`is_first`]: where it is tried before all other ways. Pure.

use crate::gpu::kernels::{SmallMBlock, SmallMConfig, tiles};

/// Nanoseconds of a warpgroup for 128 of k, from one barrier to the next.
fn step(block: SmallMBlock) -> f64 {
    match block {
        SmallMBlock::One => 267.0,
        SmallMBlock::OneDeep => 285.0,
        SmallMBlock::TwoDeep => 296.0,
    }
}

/// Clusters of `split` blocks that run at once: those of four and eight do not fill every part of the GPU (observed on an H200: 15 of 16 of what its
/// multiprocessors would hold).
fn clusters_at_once(block: SmallMBlock, split: usize, m: usize, sm_count: usize) -> usize {
    let all = sm_count * block.residents(m) / split;
    if split < 4 { all.max(1) } else { (all * 15 / 16).max(1) }
}

/// Nanoseconds of a product, beside what all configurations take: whole waves of blocks that each walk their part of k, against the memory's rate; of the
/// shorter a part counts, too. Fitted to 12 configurations at 6 published shapes and m of 1, 16 and 32 (H200, 2026-11): the fastest, or within 2 % of it,
/// except where blocks outnumber their places.
fn cost(config: SmallMConfig, [m, n, k]: [usize; 3], sm_count: usize) -> f64 {
    let (block, split) = (config.block(), config.split() as usize);
    let tokens = m.next_multiple_of(8) as f64;
    let waves = tiles(n).div_ceil(clusters_at_once(block, split, m, sm_count)) as f64;
    let steps = k.div_ceil(128).div_ceil(split * block.warpgroups()) as f64;
    let walk = waves * (steps * step(block) * (1.0 + tokens / 224.0) + 1425.0);
    let bytes = (tiles(n) * 64) as f64 * k as f64 * (1.0 + tokens / 64.0);
    let memory = bytes / 4680.0 * 132.0 / sm_count.max(1) as f64;
    walk.max(memory) + 0.15 * walk.min(memory) + 100.0 * f64::from(config.split().ilog2())
}

/// The configurations, the one that should be fastest first. Where even unsplit blocks outnumber their places, deep ones with a half of k leave the least idle
/// at the end.
pub(crate) fn order(mnk: [usize; 3], sm_count: usize) -> Vec<SmallMConfig> {
    let mut all: Vec<_> = SmallMConfig::all().collect();
    all.sort_by(|a, b| cost(*a, mnk, sm_count).total_cmp(&cost(*b, mnk, sm_count)));
    let [m, n, _] = mnk;
    if tiles(n) > clusters_at_once(SmallMBlock::One, 1, m, sm_count) {
        all.sort_by_key(|config| (config.block(), config.split()) != (SmallMBlock::OneDeep, 2));
    }
    all
}

/// How often the clusters of the configuration fill the GPU.
pub(crate) fn waves(config: SmallMConfig, [m, n, _]: [usize; 3], sm_count: usize) -> f32 {
    tiles(n) as f32 / clusters_at_once(config.block(), config.split() as usize, m, sm_count) as f32
}

/// Whether it is tried before all other ways.
pub(crate) fn is_first([m, n, k]: [usize; 3]) -> bool {
    m <= 8 || (m <= 16 && n <= 4096 && k >= 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Microseconds of the fastest, and of those within 3 % of it, at m = 1 and 16.
    #[test]
    fn what_was_fastest_comes_first() {
        use SmallMBlock::{One, OneDeep, TwoDeep};
        let cases: [([usize; 3], &[(SmallMBlock, u32)]); 11] = [
            ([1, 4096, 7168], &[(TwoDeep, 2), (OneDeep, 4)]),           // 9.56, 9.68
            ([16, 4096, 7168], &[(TwoDeep, 2), (OneDeep, 4)]),          // 10.63, 10.76
            ([1, 7168, 2048], &[(TwoDeep, 1), (OneDeep, 2), (One, 4)]), // 6.10, 6.20, 6.24
            ([16, 7168, 2048], &[(One, 4)]),                            // 7.34; 7.72
            ([1, 2112, 7168], &[(One, 8)]),                             // 6.46; 6.72
            ([16, 2112, 7168], &[(One, 8)]),                            // 7.09; 7.49
            ([1, 24576, 1536], &[(OneDeep, 1), (One, 1)]),              // 11.18, 11.21
            ([16, 24576, 1536], &[(OneDeep, 1), (One, 1)]),             // 14.45, 14.53
            ([1, 57344, 8192], &[(OneDeep, 2)]),                        // 110.3; 115.4
            ([16, 57344, 8192], &[(OneDeep, 2)]),                       // 121.5; 125.3
            ([1, 576, 7168], &[(TwoDeep, 8)]),                          // 4.26; 4.45
        ];
        for (mnk, fastest) in cases {
            let order = order(mnk, 132);
            let first = (order[0].block(), order[0].split());
            assert!(fastest.contains(&first), "{mnk:?}: {first:?}");
            let mut all = order;
            all.sort();
            assert_eq!(all, SmallMConfig::all().collect::<Vec<_>>(), "none is lost");
        }
    }

    #[test]
    fn waves_count_whole_clusters() {
        let config = |block, split| SmallMConfig::new(block, split).unwrap();
        assert_eq!(waves(config(SmallMBlock::One, 1), [1, 64, 16], 132), 1.0 / 528.0);
        assert_eq!(waves(config(SmallMBlock::TwoDeep, 2), [1, 4096, 7168], 132), 64.0 / 66.0);
        assert_eq!(waves(config(SmallMBlock::TwoDeep, 4), [1, 4096, 7168], 132), 64.0 / 30.0);
        assert!(waves(config(SmallMBlock::TwoDeep, 8), [1, 64, 16], 1).is_finite() && !order([1, 8, 16], 1).is_empty());
    }

    #[test]
    fn few_rows_are_its_own() {
        assert!(is_first([1, 57344, 8192]) && is_first([8, 32768, 512]) && is_first([16, 2112, 7168]));
        assert!(!is_first([9, 57344, 8192]) && !is_first([16, 7168, 2048]) && !is_first([17, 2112, 7168]));
    }
}
