//! [`sort`]: which configuration of one row with E2M1 weights as published is tried first, on a GPU that has [kernels for that](OneRow). Pure.

use super::small_m_rules::CostOfE2m1;
use crate::format::CodeOrder;
use crate::gpu::kernels::{OneRow, SmallMBlock, SmallMConfig};

/// Fitted to ten configurations at 15 published shapes (H200, 2026-11, the record of one row).
const ONE_ROW: CostOfE2m1 = CostOfE2m1 {
    step: 640.0,
    warp: [40.0; 2],
    narrow: 2.825,
    wave: 264.0,
    split: 429.0,
    part: 175.0,
    bytes: 2280.0,
    shorter: 0.0975,
};

/// What a product takes, in nanoseconds beside what all take; `None`: not by these kernels.
fn cost(config: SmallMConfig, nk: [usize; 2], sm_count: usize) -> Option<f64> {
    let one = OneRow::of(config, CodeOrder::Published, [1, nk[0], nk[1]])?;
    Some(ONE_ROW.of(config, one.residents(), false, nk, sm_count))
}

/// Whether blocks of many warps take all places once, or nearly, with a long k: those that take one multiprocessor or two, and those that do so by twos, which are 3 % slower than the fastest at 4096 x 7168, and in chains 11 %
/// faster than any (7.3 us for 8.2).
fn fills_once(config: SmallMConfig, [n, k]: [usize; 2], sm_count: usize) -> bool {
    let split = config.split();
    let (least_k, places) = match (config.block(), split) {
        (SmallMBlock::Narrow, 1) => (4096, sm_count),
        (SmallMBlock::Eight, 1) => (4096, 2 * sm_count),
        (SmallMBlock::Eight, 2) => (6144, 2 * sm_count),
        _ => return false,
    };
    let blocks = config.block().tiles(n) * split as usize;
    k >= least_k && blocks <= places && 5 * blocks >= 4 * places
}

/// Sorts the configurations of E2M1 weights: those that should be fastest first, those of other kernels behind them.
pub(crate) fn sort(all: &mut [SmallMConfig], nk: [usize; 2], sm_count: usize) {
    let key = |config: SmallMConfig| cost(config, nk, sm_count).unwrap_or(f64::INFINITY);
    all.sort_by(|a, b| key(*a).total_cmp(&key(*b)));
    all.sort_by_key(|config| !fills_once(*config, nk, sm_count) || key(*config).is_infinite());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gemm::small_m_step::SmallMGpu;
    use crate::gpu::gemm::wgmma_rules::order_on;
    use crate::gpu::kernels::SmallMOperands;

    const NEVER: f64 = f64::INFINITY;
    const H200: SmallMGpu = SmallMGpu { sm_count: 132, clusters: true, wgmma: true };

    fn order(nk: [usize; 2]) -> Vec<SmallMConfig> {
        order_on(SmallMOperands::E2m1Weights, CodeOrder::Published, [1, nk[0], nk[1]], H200)
    }

    /// Microseconds of splits: of `four` into 1, 2, 4 and 8, of `eight` into 1, 2 and 4, of `narrow` into 1 and 2 (H200, 2026-11, the record of one row). NEVER: not timed.
    type Case = ([usize; 2], [f64; 4], [f64; 3], [f64; 2]);

    #[test]
    #[expect(clippy::approx_constant, reason = "6.28 is a time")]
    fn what_was_fastest_comes_first() {
        let cases: [Case; 15] = [
            ([4096, 7168], [10.94, 8.60, 10.05, 10.07], [8.55, 8.82, 10.56], [8.75, 10.84]),
            ([7168, 2048], [5.55, 6.25, 6.14, 8.55], [6.01, 6.21, 8.58], [8.38, 12.61]),
            ([2112, 7168], [9.93, 7.49, 6.82, 6.48], [7.54, 7.59, 7.17], [5.96, 6.05]),
            ([576, 7168], [9.31, 5.73, 4.29, 4.09], [7.14, 4.84, 4.09], [5.04, 4.22]),
            ([4096, 2048], [4.49, 4.60, 4.82, 6.40], [4.50, 4.51, 6.33], [4.49, 7.59]),
            ([24576, 1536], [11.18, 11.37, 14.36, 23.39], [11.13, 13.84, 22.42], [20.17, 41.19]),
            ([8192, 8192], [15.10, 14.27, 17.35, 18.02], [14.38, 16.75, 18.48], [15.76, 21.99]),
            ([32768, 512], [6.10, 8.56, 14.37, NEVER], [7.92, 13.48, NEVER], [21.54, NEVER]),
            ([5120, 8192], [13.64, 11.13, 11.89, 12.68], [13.10, 12.20, 13.12], [12.43, 14.63]),
            ([10240, 5120], [13.06, 13.24, 15.14, 15.75], [14.47, 15.29, 16.42], [15.92, 21.87]),
            ([4096, 4096], [6.93, 5.88, 6.94, 7.43], [5.84, 6.28, 7.68], [6.20, 8.91]),
            ([5120, 25600], [37.67, 28.22, 28.14, 28.07], [33.87, 27.71, 29.75], [31.02, 29.74]),
            ([7168, 16384], [26.31, 23.79, 23.90, 25.58], [22.87, 24.57, 26.17], [26.53, 27.74]),
            ([10240, 8192], [18.74, 16.74, 19.05, 21.34], [18.85, 18.97, 22.04], [19.68, 26.93]),
            ([57344, 8192], [74.79, 74.23, 83.56, 102.33], [74.46, 82.66, 108.67], [99.75, 137.88]),
        ];
        let mut product = 1.0;
        for (nk, four, eight, narrow) in cases {
            let all = order(nk);
            let place = all[0].split().ilog2() as usize;
            let chosen = match all[0].block() {
                SmallMBlock::Four => four[place],
                SmallMBlock::Eight => eight[place],
                SmallMBlock::Narrow => narrow[place],
                other => panic!("{nk:?}: {other}"),
            };
            let fastest = four.into_iter().chain(eight).chain(narrow).fold(NEVER, f64::min);
            assert!(chosen <= 1.04 * fastest, "{nk:?}, {}: {chosen} us, {fastest} at best", all[0]);
            product *= chosen / fastest;
        }
        let average = f64::powf(product, 1.0 / cases.len() as f64);
        assert!(average < 1.01, "{average}");
    }

    #[test]
    fn none_is_lost_and_other_kernels_come_last() {
        for nk in [[8, 32], [4096, 7168], [2112, 7168], [4096, 14336], [264, 1 << 17]] {
            let mut all = order(nk);
            let own = |config: &SmallMConfig| H200.one_row(*config, CodeOrder::Published, [1, nk[0], nk[1]]).is_some();
            let first_other = all.iter().position(|config| !own(config)).unwrap();
            assert!(all[first_other..].iter().all(|config| !own(config)), "{nk:?}");
            all.sort();
            assert_eq!(all, SmallMConfig::all(SmallMOperands::E2m1Weights).collect::<Vec<_>>());
        }
        // What fills the GPU once, and in a chain is the fastest by far.
        let first = |nk| (order(nk)[0].block(), order(nk)[0].split());
        assert_eq!(
            [first([4096, 7168]), first([2112, 7168]), first([8192, 8192])],
            [(SmallMBlock::Eight, 2), (SmallMBlock::Narrow, 1), (SmallMBlock::Eight, 1)]
        );
        // Two rows, repacked codes and other GPUs have the order that they had.
        let others = |codes, m, gpu| order_on(SmallMOperands::E2m1Weights, codes, [m, 4096, 7168], gpu)[0];
        let sixteen = SmallMConfig::new(SmallMBlock::Sixteen, 1).unwrap();
        let elsewhere = SmallMGpu { wgmma: false, ..H200 };
        assert_eq!(
            [
                others(CodeOrder::Published, 2, H200),
                others(CodeOrder::Repacked, 1, H200),
                others(CodeOrder::Published, 1, elsewhere)
            ],
            [sixteen; 3]
        );
    }
}
