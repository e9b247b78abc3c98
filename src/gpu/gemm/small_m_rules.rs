//! [`order`]: which configuration of our product of few rows is tried first; [`is_first`]: where it is tried before all other ways. Pure.

use crate::gpu::kernels::{SmallMBlock, SmallMConfig, SmallMScales, tiles};

/// Nanoseconds of a warpgroup for 128 of k, from one barrier to the next.
fn step(block: SmallMBlock) -> f64 {
    match block {
        SmallMBlock::One => 186.0,
        SmallMBlock::OneDeep => 285.0,
        SmallMBlock::Two => 311.0,
    }
}

/// Clusters of `split` blocks that run at once: those of four and eight do not fill every part of the GPU (observed on an H200: 15 of 16 of what its
/// multiprocessors would hold).
fn clusters_at_once(block: SmallMBlock, split: usize, m: usize, sm_count: usize) -> usize {
    let all = sm_count * block.residents(m) / split;
    if split < 4 { all.max(1) } else { (all * 15 / 16).max(1) }
}

/// Nanoseconds of a product, beside what all configurations take: whole waves of blocks that each walk their part of k, against the memory's rate; of the
/// shorter a part counts, too. Fitted to 12 configurations at 10 published shapes and m of 1, 8, 16 and 32 (H200, 2026-11), where it takes the fastest or one
/// within 5 % of it up to m = 16, and within 7 % at 32.
fn cost(config: SmallMConfig, [m, n, k]: [usize; 3], sm_count: usize) -> f64 {
    let (block, split) = (config.block(), config.split() as usize);
    let tokens = m.next_multiple_of(8) as f64;
    let waves = tiles(n).div_ceil(clusters_at_once(block, split, m, sm_count)) as f64;
    let steps = k.div_ceil(128).div_ceil(split * block.warpgroups()) as f64;
    let walk = waves * (steps * step(block) * (1.0 + tokens / 356.0) + 519.0);
    let bytes = (tiles(n) * 64) as f64 * k as f64 * (1.0 + tokens / 64.0);
    let memory = bytes / 3163.0 * 132.0 / sm_count.max(1) as f64;
    walk.max(memory) + 0.25 * walk.min(memory) + 124.0 * f64::from(config.split().ilog2())
}

/// The configurations, the one that should be fastest first. Where even unsplit blocks outnumber their places, and a walk is long, deep ones with a half of k
/// leave the least idle at the end.
pub(crate) fn order(mnk: [usize; 3], sm_count: usize) -> Vec<SmallMConfig> {
    let mut all: Vec<_> = SmallMConfig::all().collect();
    all.sort_by(|a, b| cost(*a, mnk, sm_count).total_cmp(&cost(*b, mnk, sm_count)));
    let [m, n, k] = mnk;
    if k >= 1024 && tiles(n) > clusters_at_once(SmallMBlock::One, 1, m, sm_count) {
        all.sort_by_key(|config| (config.block(), config.split()) != (SmallMBlock::OneDeep, 2));
    }
    all
}

/// How often the clusters of the configuration fill the GPU.
pub(crate) fn waves(config: SmallMConfig, [m, n, _]: [usize; 3], sm_count: usize) -> f32 {
    tiles(n) as f32 / clusters_at_once(config.block(), config.split() as usize, m, sm_count) as f32
}

/// Whether it is tried before all other ways; `stored`: one of cuBLASLt's ways does the whole epilogue, too.
///
/// Every tile of B reads all of A once more, so that many rows of both are for the library's larger tiles; a short k leaves little to be split. Made from
/// `formulations` up to m = 32 (H200, cuBLASLt 13.1, 2026-11: 17 shapes of 1x128 x 128x128 and of rows), and from `gemm` for whole matrices.
pub(crate) fn is_first(scales: SmallMScales, stored: bool, [m, n, k]: [usize; 3]) -> bool {
    let within = |most: usize| m * n <= most;
    if !stored {
        return m <= 16 || n <= 10240;
    }
    match scales {
        SmallMScales::Blocks => {
            m <= 4
                || (m <= 8 && k >= 2048)
                || (m <= 16 && k >= 1024 && (within(1 << 16) || 2 * n <= k))
                || (within(1 << 15) && k >= 4096)
        }
        SmallMScales::Outer { each: [false, false] } => {
            k >= 2048 && n <= 5120 && (m <= 8 || (m <= 16 && within(1 << 16)))
        }
        SmallMScales::Outer { .. } => {
            m <= 12 || (m <= 16 && (k >= 1024 || within(1 << 15))) || (k >= 1024 && within(1 << 17))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A product, and the configurations that are taken for the fastest.
    type Case = ([usize; 3], &'static [(SmallMBlock, u32)]);

    /// Microseconds of the fastest, and of those within 5 % of it.
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
        assert_eq!(waves(config(SmallMBlock::Two, 2), [1, 4096, 7168], 132), 64.0 / 132.0);
        assert_eq!(waves(config(SmallMBlock::Two, 4), [1, 4096, 7168], 132), 64.0 / 61.0);
        assert!(waves(config(SmallMBlock::Two, 8), [1, 64, 16], 1).is_finite() && !order([1, 8, 16], 1).is_empty());
    }

    #[test]
    fn few_rows_are_its_own() {
        let blocks = |mnk| is_first(SmallMScales::Blocks, true, mnk);
        assert!(
            [[4, 32768, 512], [8, 57344, 8192], [16, 4096, 7168], [16, 8192, 28672], [32, 576, 7168]]
                .into_iter()
                .all(blocks)
        );
        assert!(
            ![[8, 32768, 512], [9, 57344, 8192], [16, 7168, 2048], [32, 2112, 7168], [16, 2048, 768]]
                .into_iter()
                .any(blocks)
        );
        let rows = |mnk| is_first(SmallMScales::Outer { each: [true, true] }, true, mnk);
        assert!([[12, 57344, 8192], [16, 24576, 1536], [16, 2048, 768], [32, 4096, 7168]].into_iter().all(rows));
        assert!(![[16, 32768, 512], [32, 8192, 8192]].into_iter().any(rows));
        let tensors = |mnk| is_first(SmallMScales::Outer { each: [false, false] }, true, mnk);
        assert!(tensors([8, 5120, 8192]) && tensors([16, 4096, 7168]));
        assert!(!tensors([1, 8192, 8192]) && !tensors([1, 24576, 1536]) && !tensors([32, 576, 7168]));
        // With a pass of the epilogue kernel as the alternative.
        let passed = |mnk| is_first(SmallMScales::Blocks, false, mnk);
        assert!(passed([16, 57344, 8192]) && passed([32, 4096, 7168]) && !passed([32, 57344, 8192]));
    }
}
