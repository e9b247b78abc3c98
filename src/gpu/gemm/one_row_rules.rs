//! [`sort`]: which configuration of one row with E2M1 weights is tried first, on a GPU that has [kernels for that](OneRow). Pure.

use super::small_m_rules::{CostOfE2m1, REPACKED};
use crate::format::CodeOrder;
use crate::gpu::kernels::{OneRow, SmallMBlock, SmallMConfig};

/// Fitted to ten configurations at 15 published shapes (H200, 2026-11, the record of one row).
const PUBLISHED_ROW: CostOfE2m1 = CostOfE2m1 {
    step: 640.0,
    warp: [40.0; 2],
    narrow: 2.825,
    wave: 264.0,
    split: 429.0,
    part: 175.0,
    bytes: 2280.0,
    shorter: 0.0975,
};

/// The same of repacked codes, beside [`REPACKED`] for the kernels that multiply the other configurations: at the shapes of that fit the fastest or one within 5 % of it, 1.4 % behind on average, and likewise at eight others (the record of links).
const REPACKED_ROW: CostOfE2m1 = CostOfE2m1 {
    step: 230.0,
    warp: [47.0; 2],
    narrow: 1.0,
    wave: 180.0,
    split: 740.0,
    part: 335.0,
    bytes: 4700.0,
    shorter: 0.01,
};

/// What a product takes, in nanoseconds beside what all take; infinite: it comes last.
fn cost(config: SmallMConfig, codes: CodeOrder, nk: [usize; 2], sm_count: usize) -> f64 {
    let (cost, residents) = match (OneRow::first(config, codes, nk), codes) {
        (Some(one), CodeOrder::Published) => (PUBLISHED_ROW, one.residents()),
        // Also where another kernel takes its place: that takes 3 % less at most.
        (Some(one), CodeOrder::Repacked) if one.is_long() => (REPACKED_ROW, one.residents()),
        (_, CodeOrder::Repacked) if config.block() != SmallMBlock::Tile => (REPACKED, config.block().residents(1)),
        _ => return f64::INFINITY,
    };
    cost.of(config, residents, false, nk, sm_count)
}

/// Whether blocks of many warps take all places once, or nearly, with a long k: of published codes those that take one multiprocessor or two, and with a longer one those that do so by twos, which are as fast at 4096 x 12288 and in
/// chains faster (10.5 us for 11.1; at 4096 x 7168 half as many parts are, 6.3 for 7.0: the record of paced links). Of repacked ones sixteen warps with a longer k, for each multiprocessor or most, and eight, which are faster with a shorter one (4096 x 4096 5.3 us for 5.5, in a chain 4.1 for 4.7;
/// 3072 x 7168 by sixteen 6.7 us for 7.0).
fn fills_once(config: SmallMConfig, codes: CodeOrder, [n, k]: [usize; 2], sm_count: usize) -> bool {
    use SmallMBlock::{Eight, Narrow, Sixteen};
    let (split, blocks) = (config.split(), config.block().tiles(n) * config.split() as usize);
    let (ks, places, tenths) = match (codes, config.block(), split) {
        (CodeOrder::Published, Narrow, 1) => (4096..usize::MAX, sm_count, 8),
        (CodeOrder::Published, Eight, 1) => (4096..usize::MAX, 2 * sm_count, 8),
        (CodeOrder::Published, Eight, 2) => (8193..usize::MAX, 2 * sm_count, 8),
        (CodeOrder::Repacked, Sixteen, 1) => (6144..usize::MAX, sm_count, 7),
        (CodeOrder::Repacked, Narrow, 2) => (4096..usize::MAX, 2 * sm_count, 8),
        (CodeOrder::Repacked, Eight, 1) if blocks <= sm_count => (4096..6144, sm_count, 8),
        (CodeOrder::Repacked, Eight, 1) => (4096..usize::MAX, 2 * sm_count, 8),
        _ => return false,
    };
    ks.contains(&k) && blocks <= places && 10 * blocks >= tenths * places
}

/// Sorts the configurations of E2M1 weights in this order: those that should be fastest first; of published codes those of other kernels behind them.
pub(crate) fn sort(all: &mut [SmallMConfig], codes: CodeOrder, nk: [usize; 2], sm_count: usize) {
    let key = |config: SmallMConfig| cost(config, codes, nk, sm_count);
    all.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
    all.sort_by_key(|config| !fills_once(*config, codes, nk, sm_count) || key(*config).is_infinite());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gemm::small_m_step::SmallMGpu;
    use crate::gpu::gemm::wgmma_rules::order_on;
    use crate::gpu::kernels::SmallMOperands;

    const NEVER: f64 = f64::INFINITY;
    const H200: SmallMGpu = SmallMGpu { sm_count: 132, clusters: true, wgmma: true };

    fn order(codes: CodeOrder, nk: [usize; 2]) -> Vec<SmallMConfig> {
        order_on(SmallMOperands::E2m1Weights, codes, [1, nk[0], nk[1]], H200)
    }

    /// Microseconds of splits: of `four` into 1, 2, 4 and 8, of `eight` into 1, 2 and 4, of `narrow` and `sixteen` into 1 and 2 (H200, 2026-11), by the kernel that is planned. NEVER: not timed.
    type Case = ([usize; 2], [f64; 4], [f64; 3], [f64; 2], [f64; 2]);

    fn judge(codes: CodeOrder, cases: &[Case], within: f64, on_average: f64) {
        let mut product = 1.0;
        for (nk, four, eight, narrow, sixteen) in cases {
            let all = order(codes, *nk);
            let place = all[0].split().ilog2() as usize;
            let chosen = match all[0].block() {
                SmallMBlock::Four => four[place],
                SmallMBlock::Eight => eight[place],
                SmallMBlock::Narrow => narrow[place],
                SmallMBlock::Sixteen => sixteen[place],
                other => panic!("{nk:?}: {other}"),
            };
            let fastest = four.iter().chain(eight).chain(narrow).chain(sixteen).copied().fold(NEVER, f64::min);
            assert!(chosen <= within * fastest, "{nk:?}, {}: {chosen} us, {fastest} at best", all[0]);
            product *= chosen / fastest;
        }
        let average = f64::powf(product, 1.0 / cases.len() as f64);
        assert!(average < on_average, "{average}");
    }

    #[test]
    #[expect(clippy::approx_constant, reason = "6.28 is a time")]
    fn what_was_fastest_comes_first() {
        // The record of one row.
        let cases: [Case; 15] = [
            ([4096, 7168], [10.94, 8.60, 10.05, 10.07], [8.55, 8.82, 10.56], [8.75, 10.84], [NEVER; 2]),
            ([7168, 2048], [5.55, 6.25, 6.14, 8.55], [6.01, 6.21, 8.58], [8.38, 12.61], [NEVER; 2]),
            ([2112, 7168], [9.93, 7.49, 6.82, 6.48], [7.54, 7.59, 7.17], [5.96, 6.05], [NEVER; 2]),
            ([576, 7168], [9.31, 5.73, 4.29, 4.09], [7.14, 4.84, 4.09], [5.04, 4.22], [NEVER; 2]),
            ([4096, 2048], [4.49, 4.60, 4.82, 6.40], [4.50, 4.51, 6.33], [4.49, 7.59], [NEVER; 2]),
            ([24576, 1536], [11.18, 11.37, 14.36, 23.39], [11.13, 13.84, 22.42], [20.17, 41.19], [NEVER; 2]),
            ([8192, 8192], [15.10, 14.27, 17.35, 18.02], [14.38, 16.75, 18.48], [15.76, 21.99], [NEVER; 2]),
            ([32768, 512], [6.10, 8.56, 14.37, NEVER], [7.92, 13.48, NEVER], [21.54, NEVER], [NEVER; 2]),
            ([5120, 8192], [13.64, 11.13, 11.89, 12.68], [13.10, 12.20, 13.12], [12.43, 14.63], [NEVER; 2]),
            ([10240, 5120], [13.06, 13.24, 15.14, 15.75], [14.47, 15.29, 16.42], [15.92, 21.87], [NEVER; 2]),
            ([4096, 4096], [6.93, 5.88, 6.94, 7.43], [5.84, 6.28, 7.68], [6.20, 8.91], [NEVER; 2]),
            ([5120, 25600], [37.67, 28.22, 28.14, 28.07], [33.87, 27.71, 29.75], [31.02, 29.74], [NEVER; 2]),
            ([7168, 16384], [26.31, 23.79, 23.90, 25.58], [22.87, 24.57, 26.17], [26.53, 27.74], [NEVER; 2]),
            ([10240, 8192], [18.74, 16.74, 19.05, 21.34], [18.85, 18.97, 22.04], [19.68, 26.93], [NEVER; 2]),
            ([57344, 8192], [74.79, 74.23, 83.56, 102.33], [74.46, 82.66, 108.67], [99.75, 137.88], [NEVER; 2]),
        ];
        judge(CodeOrder::Published, &cases, 1.04, 1.01);
    }

    /// The record of links: the last eight shapes are those that the rule was not made from.
    #[test]
    fn what_was_fastest_of_repacked_codes_comes_first() {
        let cases: [Case; 23] = [
            ([7168, 2048], [5.21, 5.49, 7.14, 9.43], [5.34, 7.22, 9.41], [7.18, 10.49], [7.68, 11.35]),
            ([4096, 4096], [6.34, 5.48, 6.17, 7.80], [5.31, 5.62, 7.90], [5.40, 7.60], [5.54, 8.07]),
            ([4096, 7168], [9.75, 7.77, 8.97, 9.59], [7.71, 7.79, 10.00], [7.21, 9.48], [7.30, 9.79]),
            ([2112, 7168], [8.87, 6.59, 6.10, 6.10], [6.66, 6.61, 6.51], [5.62, 5.24], [6.36, 8.62]),
            ([576, 7168], [8.45, 5.43, 4.15, 4.01], [6.34, 4.53, 4.05], [5.02, 3.84], [6.04, 4.53]),
            ([4096, 2048], [4.34, 4.35, 4.69, 6.50], [4.33, 4.46, 6.45], [4.19, 6.05], [4.39, 6.29]),
            ([24576, 1536], [9.03, 10.91, 14.33, 24.83], [10.59, 13.81, 25.04], [17.13, 30.09], [18.72, 33.37]),
            ([8192, 8192], [13.81, 13.22, 14.77, 16.67], [12.80, 15.41, 17.13], [14.33, 19.05], [14.60, 19.40]),
            ([32768, 512], [6.82, 8.89, 15.00, NEVER], [8.80, 15.32, NEVER], [17.83, NEVER], [18.24, NEVER]),
            ([5120, 8192], [12.24, 10.17, 10.76, 11.58], [11.51, 11.01, 12.12], [11.71, 13.12], [13.62, 14.23]),
            ([10240, 5120], [11.81, 11.11, 13.35, 16.65], [12.28, 12.65, 17.72], [14.43, 19.37], [15.79, 19.72]),
            ([5120, 25600], [33.43, 24.78, 24.41, 23.93], [28.79, 24.16, 26.03], [27.27, 26.60], [31.55, 28.01]),
            ([7168, 16384], [23.51, 21.84, 21.53, 22.94], [20.89, 22.08, 24.42], [23.33, 25.12], [22.61, 27.12]),
            ([10240, 8192], [16.84, 15.40, 17.58, 19.92], [16.53, 16.46, 20.53], [18.37, 23.26], [20.51, 23.90]),
            ([57344, 8192], [67.23, 67.97, 78.30, 95.56], [68.46, 76.29, 99.23], [91.67, 119.87], [95.10, 122.59]),
            ([6144, 4096], [7.62, 6.88, 8.77, 10.19], [7.43, 7.23, 10.43], [9.18, 10.81], [9.67, 11.54]),
            ([4096, 14336], [16.81, 12.53, 13.55, 13.96], [12.55, 11.75, 14.69], [11.23, 13.87], [11.13, 13.62]),
            ([14336, 4096], [12.55, 13.74, 14.67, 18.93], [14.37, 14.96, 19.16], [16.40, 23.09], [18.52, 24.33]),
            ([5120, 5120], [8.75, 7.88, 8.15, 9.90], [8.70, 8.12, 10.08], [9.33, 11.34], [10.49, 11.94]),
            ([3072, 7168], [9.13, 7.15, 7.18, 8.52], [7.02, 7.15, 8.63], [7.07, 8.14], [6.66, 9.13]),
            ([7168, 3072], [6.72, 6.81, 8.75, 10.13], [6.54, 8.60, 10.36], [8.49, 11.40], [8.77, 12.73]),
            ([28672, 4096], [21.24, 22.11, 25.30, 34.24], [21.96, 25.11, 34.73], [29.90, 43.64], [32.02, 46.27]),
            ([8192, 28672], [41.25, 37.91, 38.98, 38.80], [37.27, 36.97, 39.93], [37.82, 42.40], [36.33, 41.36]),
        ];
        judge(CodeOrder::Repacked, &cases[..15], 1.05, 1.02);
        judge(CodeOrder::Repacked, &cases[15..], 1.05, 1.02);
    }

    #[test]
    fn none_is_lost_and_other_kernels_come_last() {
        for nk in [[8, 32], [4096, 7168], [2112, 7168], [4096, 14336], [264, 1 << 17]] {
            let mut all = order(CodeOrder::Published, nk);
            let own = |config: &SmallMConfig| H200.one_row(*config, CodeOrder::Published, [1, nk[0], nk[1]]).is_some();
            let first_other = all.iter().position(|config| !own(config)).unwrap();
            assert!(all[first_other..].iter().all(|config| !own(config)), "{nk:?}");
            all.sort();
            assert_eq!(all, SmallMConfig::all(SmallMOperands::E2m1Weights).collect::<Vec<_>>());
        }
        // What fills the GPU once; or its links do, of half as many parts.
        let first = |nk| {
            let first = order(CodeOrder::Published, nk)[0];
            (first.block(), first.split())
        };
        assert_eq!(
            [first([4096, 7168]), first([4096, 12288]), first([2112, 7168]), first([8192, 8192])],
            [(SmallMBlock::Four, 2), (SmallMBlock::Eight, 2), (SmallMBlock::Narrow, 1), (SmallMBlock::Eight, 1)]
        );
        // Two rows and other GPUs have the order that they had.
        let others = |codes, m, gpu| order_on(SmallMOperands::E2m1Weights, codes, [m, 4096, 7168], gpu)[0];
        let sixteen = SmallMConfig::new(SmallMBlock::Sixteen, 1).unwrap();
        let elsewhere = SmallMGpu { wgmma: false, ..H200 };
        assert_eq!(
            [
                others(CodeOrder::Published, 2, H200),
                others(CodeOrder::Repacked, 2, H200),
                others(CodeOrder::Published, 1, elsewhere)
            ],
            [sixteen; 3]
        );
    }

    #[test]
    fn none_of_repacked_codes_is_lost() {
        for nk in [[8, 128], [4096, 7168], [7168, 2048], [264, 32768]] {
            let mut all = order(CodeOrder::Repacked, nk);
            assert!(all[16..].iter().all(|config| config.block() == SmallMBlock::Tile), "{nk:?}");
            all.sort();
            assert_eq!(all, SmallMConfig::all(SmallMOperands::E2m1Weights).collect::<Vec<_>>());
        }
    }
}
