//! [`order_on`]: which configuration of our products of few rows is tried first on a GPU whose tiles are multiplied by warpgroup products. Pure.

use crate::format::CodeOrder;
use crate::gpu::gemm::small_m_rules::{self, Kept, order};
use crate::gpu::gemm::small_m_step::SmallMGpu;
use crate::gpu::kernels::{SmallMConfig, SmallMOperands, wgmma_residents, wgmma_takes};

/// What a wave of blocks takes beside its steps of 128 of k, in steps. From the splits of 32 rows of `nvfp4` weights at 57344 x 8192 (H100, 2026-11, the record of wgmma: 131, 117.5 and 126.6 us
/// of two, three and five waves of 64, 32 and 16 steps).
const STEPS_OF_A_WAVE: usize = 15;

/// The rows of a pass, if those are multiplied so.
fn of_pass(operands: SmallMOperands, [m, n, k]: [usize; 3], gpu: SmallMGpu) -> Option<usize> {
    let rows = m.min(64);
    (gpu.wgmma && wgmma_takes(operands, [rows, n, k])).then_some(rows)
}

/// How often the clusters of the configuration fill the GPU: as [`small_m_rules::clusters_at_once`] says of clusters of four and eight.
pub(crate) fn waves(config: SmallMConfig, mnk: [usize; 3], gpu: SmallMGpu) -> f32 {
    let operands = config.block().operands();
    let Some(rows) = of_pass(operands, mnk, gpu) else { return small_m_rules::waves(config, mnk, gpu.sm_count) };
    let split = config.split() as usize;
    let at_once = small_m_rules::clusters_at_once(wgmma_residents(operands, rows), split, gpu.sm_count);
    config.block().tiles(mnk[1]) as f32 / at_once as f32
}

/// The configurations that multiply m rows of these operands, whose weights lie in this order, the one that should be fastest first. Of warpgroup products the split whose waves have the fewest steps: a block takes as
/// long for a step alone as beside another.
pub(crate) fn order_on(
    operands: SmallMOperands,
    codes: CodeOrder,
    mnk: [usize; 3],
    gpu: SmallMGpu,
) -> Vec<SmallMConfig> {
    let mut all = order(operands, codes, mnk, gpu.sm_count);
    if of_pass(operands, mnk, gpu).is_some() {
        let steps = |config: &SmallMConfig| mnk[2].div_ceil(128).div_ceil(config.split() as usize) + STEPS_OF_A_WAVE;
        all.sort_by_key(|config| waves(*config, mnk, gpu).ceil() as usize * steps(config));
    }
    all
}

/// Whether warpgroup products are tried before all other ways, beside what [`small_m_rules`] says of every GPU. BF16 products of kept values read four bytes or two where these read one, and take from
/// 17 to 64 rows what one does (H100, 2026-11: 24.7 us at 4096 x 7168, where `nvfp4` takes 17.4 at 32 rows and 22.5 at 64, `mxfp8` 25.9); values that are made in the call cost more than that again (7168 x 2048
/// 21.7 us at 64 rows for 12.6, 2112 x 7168 27.4 for 15.5).
pub(crate) fn is_first(kept: Kept, operands: SmallMOperands, [m, n, k]: [usize; 3]) -> bool {
    let enough = match (kept, operands) {
        (Kept::Nothing, _) => 6 << 20,
        (_, SmallMOperands::E2m1Weights) => 24 << 20,
        _ => 32 << 20,
    };
    wgmma_takes(operands, [m, n, k]) && n * k >= enough
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Microseconds of splits into 1, 2, 4 and 8, those that were timed (H100, 2026-11, the record of wgmma).
    type Case = ([usize; 3], [f64; 4]);

    fn judge(operands: SmallMOperands, cases: &[Case], within: f64) {
        let gpu = SmallMGpu { sm_count: 132, clusters: true, wgmma: true };
        for (mnk, us) in cases {
            let all = order_on(operands, CodeOrder::Published, *mnk, gpu);
            assert_eq!(all.len(), 4, "none is lost");
            let first = us[all[0].split().ilog2() as usize];
            let fastest = us.iter().copied().fold(f64::INFINITY, f64::min);
            assert!(first <= within * fastest, "{mnk:?}: {first} us, {fastest} at best");
        }
    }

    const NEVER: f64 = f64::INFINITY;

    #[test]
    fn what_was_fastest_comes_first() {
        let e2m1: [Case; 19] = [
            ([32, 57344, 8192], [131.26, 117.54, 126.61, NEVER]),
            ([48, 57344, 8192], [142.73, 135.75, 156.85, NEVER]),
            ([64, 57344, 8192], [158.97, 148.71, 171.89, NEVER]),
            ([32, 4096, 7168], [NEVER, NEVER, 24.72, 17.42]),
            ([48, 4096, 7168], [NEVER, NEVER, 21.34, 25.50]),
            ([64, 4096, 7168], [NEVER, NEVER, 22.52, 27.02]),
            ([32, 7168, 2048], [NEVER, 12.95, 11.94, NEVER]),
            ([48, 7168, 2048], [NEVER, 14.75, 12.31, NEVER]),
            ([64, 7168, 2048], [NEVER, 15.90, 12.58, NEVER]),
            ([32, 10240, 8192], [NEVER, 48.69, 28.65, 33.86]),
            ([48, 10240, 8192], [70.31, 39.33, 41.51, 42.53]),
            ([64, 10240, 8192], [75.82, 42.28, 45.47, 45.92]),
            ([32, 24576, 1536], [17.27, 16.12, NEVER, NEVER]),
            ([48, 24576, 1536], [20.10, 23.70, NEVER, NEVER]),
            ([64, 24576, 1536], [22.06, 27.02, NEVER, NEVER]),
            ([48, 2112, 7168], [NEVER, NEVER, 20.41, 14.40]),
            ([64, 2112, 7168], [NEVER, NEVER, 21.83, 15.46]),
            ([32, 8192, 8192], [NEVER, 49.40, 28.61, NEVER]),
            ([64, 8192, 8192], [NEVER, 41.96, 42.45, NEVER]),
        ];
        judge(SmallMOperands::E2m1Weights, &e2m1, 1.07);
        let e4m3: [Case; 13] = [
            ([32, 57344, 8192], [188.66, 195.21, 187.62, NEVER]),
            ([48, 57344, 8192], [191.55, 204.93, 213.06, NEVER]),
            ([64, 57344, 8192], [199.20, 212.97, 220.14, NEVER]),
            ([48, 4096, 7168], [NEVER, 39.42, 24.44, 28.23]),
            ([64, 4096, 7168], [NEVER, 42.04, 25.87, 29.74]),
            ([48, 7168, 2048], [18.60, 16.58, 13.28, NEVER]),
            ([64, 7168, 2048], [20.07, 17.91, 14.49, NEVER]),
            ([32, 10240, 8192], [70.26, 41.43, 48.54, NEVER]),
            ([64, 10240, 8192], [85.58, 48.90, 56.68, NEVER]),
            ([32, 24576, 1536], [22.70, 27.75, NEVER, NEVER]),
            ([64, 24576, 1536], [26.14, 33.05, NEVER, NEVER]),
            ([64, 2112, 7168], [NEVER, NEVER, 24.55, 17.19]),
            ([64, 8192, 8192], [NEVER, 47.77, 52.09, NEVER]),
        ];
        judge(SmallMOperands::E4m3Weights, &e4m3, 1.01);
    }

    #[test]
    fn enough_weights_come_before_values_that_are_kept() {
        use SmallMOperands::{E2m1Weights, E4m3Weights};
        let first =
            |operands, mnk| [Kept::Nothing, Kept::WithPass, Kept::Fused].map(|kept| is_first(kept, operands, mnk));
        assert_eq!([first(E2m1Weights, [17, 4096, 7168]), first(E2m1Weights, [64, 57344, 8192])], [[true; 3]; 2]);
        assert_eq!(first(E2m1Weights, [64, 7168, 2048]), [true, false, false]);
        assert_eq!(first(E4m3Weights, [64, 4096, 7168]), [true, false, false]);
        assert_eq!(first(E4m3Weights, [33, 24576, 1536]), [true; 3]);
        let never = [[16, 4096, 7168], [65, 57344, 8192], [64, 576, 7168], [32, 2112, 7168]];
        assert!(never.into_iter().all(|mnk| first(E2m1Weights, mnk) == [false; 3]));
    }

    #[test]
    fn other_gpus_and_fewer_rows_have_the_order_that_they_had() {
        let gpu = SmallMGpu { sm_count: 132, clusters: true, wgmma: true };
        for mnk in [[16, 4096, 7168], [1, 57344, 8192], [32, 2112, 7168]] {
            for operands in [SmallMOperands::E2m1Weights, SmallMOperands::E4m3Weights] {
                let old = order(operands, CodeOrder::Published, mnk, 132);
                assert_eq!(order_on(operands, CodeOrder::Published, mnk, gpu), old);
                assert_eq!(waves(old[0], mnk, gpu), small_m_rules::waves(old[0], mnk, 132));
            }
        }
        let without = SmallMGpu { wgmma: false, ..gpu };
        let mnk = [64, 4096, 7168];
        let [old, new] =
            [without, gpu].map(|gpu| order_on(SmallMOperands::E2m1Weights, CodeOrder::Published, mnk, gpu));
        assert_eq!([old[0].split(), new[0].split()], [8, 4]);
        assert_eq!(waves(new[0], mnk, gpu), 32.0 / 61.0);
    }
}
