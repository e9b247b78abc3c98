//! [`order_on`]: which configuration of our products of few rows is tried first on a GPU whose tiles are multiplied by warpgroup products. Pure.

use crate::format::CodeOrder;
use crate::gpu::gemm::small_m_rules::{self, Kept, order};
use crate::gpu::gemm::small_m_step::SmallMGpu;
use crate::gpu::kernels::{SmallMConfig, SmallMOperands, wgmma_residents, wgmma_takes};

/// What a wave of blocks takes beside its steps of 128 of k, in steps. Fitted to all splits of 32, 48 and 64 rows of three schemes at 12 shapes (H100, 2026-11, the record of wgmma), where the split that comes first takes 1.006 of the fastest
/// on average, 1.11 at most (`nvfp4`, 64 x 10240 x 8192, 42.8 us for 38.7).
const STEPS_OF_A_WAVE: usize = 8;

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

/// Whether warpgroup products are tried before all other ways, beside what [`small_m_rules`] says of every GPU. BF16 products of kept values read four bytes or two where these read one (H100, 2026-11: at 4096 x 7168 26 us,
/// where `nvfp4` takes 17.2 at 32 rows and 22.1 at 64, `mxfp8` 25.3; at 7168 x 2048 13.1 to 13.5 for 10.0, 12.3 and 14.2); values that are made in the call cost more than that again (64 x 7168 x 2048 21.8 us).
pub(crate) fn is_first(kept: Kept, operands: SmallMOperands, [m, n, k]: [usize; 3]) -> bool {
    let enough = match (kept, operands) {
        (Kept::Nothing, _) => 4 << 20,
        (_, SmallMOperands::E2m1Weights) => 12 << 20,
        _ => 24 << 20,
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
        let e2m1: [Case; 33] = [
            ([32, 57344, 8192], [132.62, 118.66, 128.82, NEVER]),
            ([48, 57344, 8192], [146.01, 135.59, 156.34, NEVER]),
            ([64, 57344, 8192], [160.10, 148.19, 169.96, NEVER]),
            ([32, 4096, 7168], [NEVER, 21.47, 18.86, 17.24]),
            ([48, 4096, 7168], [NEVER, 23.22, 21.14, 22.39]),
            ([64, 4096, 7168], [NEVER, 24.29, 22.06, 23.58]),
            ([32, 7168, 2048], [14.38, 10.79, 9.95, 15.67]),
            ([48, 7168, 2048], [16.20, 11.74, 11.43, 16.44]),
            ([64, 7168, 2048], [17.96, 12.64, 12.31, 18.49]),
            ([32, 10240, 8192], [41.89, 36.11, 29.19, 33.73]),
            ([48, 10240, 8192], [44.96, 39.68, 35.85, 40.10]),
            ([64, 10240, 8192], [47.89, 42.77, 38.66, 43.87]),
            ([32, 24576, 1536], [18.00, 16.41, NEVER, NEVER]),
            ([48, 24576, 1536], [20.55, 22.11, NEVER, NEVER]),
            ([64, 24576, 1536], [22.85, 24.33, NEVER, NEVER]),
            ([32, 2112, 7168], [NEVER, NEVER, 13.01, 12.61]),
            ([48, 2112, 7168], [NEVER, NEVER, 14.37, 13.84]),
            ([64, 2112, 7168], [NEVER, NEVER, 15.05, 14.75]),
            ([32, 8192, 8192], [41.01, 25.72, 28.41, 31.45]),
            ([48, 8192, 8192], [44.77, 27.17, 35.37, 35.28]),
            ([64, 8192, 8192], [47.46, 28.80, 37.87, 38.94]),
            ([32, 28672, 4096], [37.26, 40.91, 44.11, NEVER]),
            ([48, 28672, 4096], [41.37, 45.57, 54.20, NEVER]),
            ([64, 28672, 4096], [44.52, 48.74, 57.54, NEVER]),
            ([32, 5120, 5120], [NEVER, 16.97, 15.12, 15.09]),
            ([48, 5120, 5120], [NEVER, 18.24, 16.82, 21.24]),
            ([64, 5120, 5120], [NEVER, 19.48, 17.88, 22.71]),
            ([32, 1024, 4096], [NEVER, NEVER, 9.46, 7.62]),
            ([48, 1024, 4096], [NEVER, NEVER, 10.57, 8.10]),
            ([64, 1024, 4096], [NEVER, NEVER, 11.00, 8.50]),
            ([32, 14336, 4096], [24.68, 21.60, 24.87, 30.08]),
            ([48, 14336, 4096], [26.87, 23.90, 28.49, 37.58]),
            ([64, 14336, 4096], [28.72, 25.67, 30.41, 41.81]),
        ];
        judge(SmallMOperands::E2m1Weights, &e2m1, 1.11);
        let e4m3: [Case; 31] = [
            ([32, 57344, 8192], [189.18, 197.79, 187.45, NEVER]),
            ([48, 57344, 8192], [191.20, 205.02, 210.57, NEVER]),
            ([64, 57344, 8192], [199.81, 212.75, 216.64, NEVER]),
            ([32, 4096, 7168], [NEVER, 24.47, 21.36, 24.28]),
            ([48, 4096, 7168], [NEVER, 27.06, 23.68, 25.83]),
            ([64, 4096, 7168], [NEVER, 28.87, 24.97, 28.65]),
            ([32, 7168, 2048], [16.17, 11.81, 12.25, 16.97]),
            ([48, 7168, 2048], [18.66, 13.31, 13.17, 18.60]),
            ([64, 7168, 2048], [20.56, 14.51, 14.03, 20.67]),
            ([48, 10240, 8192], [55.00, 45.90, 54.09, 49.85]),
            ([64, 10240, 8192], [58.32, 48.83, 56.62, 53.15]),
            ([32, 24576, 1536], [22.80, 27.81, NEVER, NEVER]),
            ([48, 24576, 1536], [24.24, 30.35, NEVER, NEVER]),
            ([64, 24576, 1536], [26.58, 33.09, NEVER, NEVER]),
            ([32, 2112, 7168], [NEVER, NEVER, 14.76, 14.49]),
            ([48, 2112, 7168], [NEVER, NEVER, 16.61, 14.99]),
            ([64, 2112, 7168], [NEVER, NEVER, 17.39, 15.89]),
            ([32, 8192, 8192], [48.56, 32.38, 45.86, 39.99]),
            ([48, 8192, 8192], [53.08, 36.22, 45.38, 44.06]),
            ([64, 8192, 8192], [56.77, 38.28, 47.38, 48.30]),
            ([32, 28672, 4096], [54.17, 57.56, 59.83, NEVER]),
            ([48, 28672, 4096], [55.60, 59.41, 67.09, NEVER]),
            ([64, 28672, 4096], [58.06, 62.65, 69.74, NEVER]),
            ([32, 5120, 5120], [NEVER, 19.38, 17.87, 23.51]),
            ([48, 5120, 5120], [NEVER, 21.55, 19.40, 25.40]),
            ([64, 5120, 5120], [NEVER, 23.50, 20.62, 27.16]),
            ([48, 1024, 4096], [NEVER, NEVER, 11.94, 8.99]),
            ([64, 1024, 4096], [NEVER, NEVER, 12.48, 9.47]),
            ([32, 14336, 4096], [30.08, 31.08, 32.91, 41.28]),
            ([48, 14336, 4096], [35.34, 31.20, 35.78, 43.63]),
            ([64, 14336, 4096], [37.56, 32.45, 37.36, 48.00]),
        ];
        judge(SmallMOperands::E4m3Weights, &e4m3, 1.04);
    }

    #[test]
    fn enough_weights_come_before_values_that_are_kept() {
        use SmallMOperands::{E2m1Weights, E4m3Weights};
        let first =
            |operands, mnk| [Kept::Nothing, Kept::WithPass, Kept::Fused].map(|kept| is_first(kept, operands, mnk));
        assert_eq!([first(E2m1Weights, [17, 4096, 7168]), first(E2m1Weights, [64, 7168, 2048])], [[true; 3]; 2]);
        assert_eq!(first(E2m1Weights, [64, 1024, 4096]), [true, false, false]);
        assert_eq!(first(E4m3Weights, [64, 7168, 2048]), [true, false, false]);
        assert_eq!(first(E4m3Weights, [33, 4096, 7168]), [true; 3]);
        let never = [[16, 4096, 7168], [65, 57344, 8192], [64, 576, 7168], [32, 2048, 768]];
        assert!(never.into_iter().all(|mnk| first(E2m1Weights, mnk) == [false; 3]));
    }

    #[test]
    fn other_gpus_and_fewer_rows_have_the_order_that_they_had() {
        let gpu = SmallMGpu { sm_count: 132, clusters: true, wgmma: true };
        for mnk in [[16, 4096, 7168], [1, 57344, 8192], [32, 576, 7168]] {
            for operands in [SmallMOperands::E2m1Weights, SmallMOperands::E4m3Weights] {
                if (operands, mnk[0]) == (SmallMOperands::E2m1Weights, 32) {
                    continue;
                }
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
