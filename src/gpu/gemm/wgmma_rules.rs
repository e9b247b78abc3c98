//! [`order_on`]: which configuration of our products of few rows is tried first on a GPU whose tiles are multiplied by warpgroup products. Pure.

use crate::format::CodeOrder;
use crate::gpu::gemm::one_row_rules;
use crate::gpu::gemm::small_m_rules::{self, Kept, order};
use crate::gpu::gemm::small_m_step::SmallMGpu;
use crate::gpu::kernels::{Meeting, SmallMBlock, SmallMConfig, SmallMOperands, clusters_at_once, wgmma_takes};

/// How often the blocks of the configuration fill the GPU, or its clusters: as [`clusters_at_once`] says of those of four and eight.
pub(crate) fn waves(config: SmallMConfig, codes: CodeOrder, mnk: [usize; 3], gpu: SmallMGpu) -> f32 {
    let (tiles, split) = (config.block().tiles(mnk[1]), config.split() as usize);
    if let Some(one) = gpu.one_row(config, codes, mnk) {
        return tiles as f32 / clusters_at_once(one.residents(), split, gpu.sm_count) as f32;
    }
    let Some(pass) = gpu.wgmma(config, codes, mnk) else { return small_m_rules::waves(config, mnk, gpu.sm_count) };
    match pass.meeting() {
        Meeting::Memory => (tiles * split) as f32 / (gpu.sm_count.max(1) * pass.residents()) as f32,
        Meeting::Cluster => tiles as f32 / clusters_at_once(pass.residents(), split, gpu.sm_count) as f32,
    }
}

/// The configurations that multiply m rows of these operands, whose weights lie in this order, the one that should be fastest first: of warpgroup products, which come before others, that which costs the least. Splits that no
/// cluster has are among them where parts of sums can meet in memory.
pub(crate) fn order_on(
    operands: SmallMOperands,
    codes: CodeOrder,
    mnk: [usize; 3],
    gpu: SmallMGpu,
) -> Vec<SmallMConfig> {
    let mut all = order(operands, codes, mnk, gpu.sm_count);
    if gpu.wgmma && mnk[0] == 1 && operands == SmallMOperands::E2m1Weights {
        one_row_rules::sort(&mut all, codes, [mnk[1], mnk[2]], gpu.sm_count);
    }
    let in_memory = SmallMBlock::of(operands).flat_map(SmallMConfig::in_memory);
    all.extend(in_memory.filter(|config| gpu.check_split(*config, codes, mnk).is_ok()));
    all.sort_by_key(|config| gpu.wgmma(*config, codes, mnk).map_or((1, 0), |pass| (0, pass.cost())));
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
    m > 16 && wgmma_takes(operands, CodeOrder::Published, [m, n, k]) && n * k >= enough
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::kernels::SmallMBlock;

    /// Microseconds of splits into 1, 2, 4 and 8, of blocks in clusters and of those that leave their sums in memory, and of these into 3 and 6 (H200, 2026-11, the record of joins). NEVER: not timed.
    type Case = ([usize; 3], [[f64; 2]; 4], [f64; 2]);

    fn judge(operands: SmallMOperands, cases: &[Case], within: f64, on_average: f64) {
        let gpu = SmallMGpu { sm_count: 132, clusters: true, wgmma: true };
        let mut product = 1.0;
        for (mnk, us, more) in cases {
            let all = order_on(operands, CodeOrder::Published, *mnk, gpu);
            let pass = |config: SmallMConfig| gpu.wgmma(config, CodeOrder::Published, *mnk);
            let clusters = all.iter().filter(|config| pass(**config).is_some() && !config.needs_memory());
            assert_eq!(clusters.count(), 4, "none is lost");
            let time = |config: SmallMConfig| match config.split() {
                3 => more[0],
                6 => more[1],
                split => us[split.ilog2() as usize][usize::from(pass(config).unwrap().meeting() == Meeting::Memory)],
            };
            // Of 48 rows 3 and 6 were not timed.
            let timed = |config: &SmallMConfig| !config.needs_memory() || time(*config) < NEVER;
            let first = all.into_iter().find(timed).unwrap();
            let (chosen, fastest) = (time(first), us.iter().flatten().chain(more).copied().fold(NEVER, f64::min));
            assert!(chosen <= within * fastest, "{mnk:?}, {first}: {chosen} us, {fastest} at best");
            product *= chosen / fastest;
        }
        let average = product.powf(1.0 / cases.len() as f64);
        assert!(average < on_average, "{average}");
    }

    const NEVER: f64 = f64::INFINITY;

    #[test]
    fn what_was_fastest_comes_first() {
        let e2m1: [Case; 34] = [
            ([16, 57344, 8192], [[114.66, NEVER], [96.28, 98.57], [108.41, 102.81], [NEVER, NEVER]], [NEVER, NEVER]),
            ([32, 57344, 8192], [[129.02, NEVER], [110.89, 115.93], [124.59, 124.23], [NEVER, NEVER]], [NEVER, NEVER]),
            ([48, 57344, 8192], [[138.38, NEVER], [126.43, 132.66], [147.81, 147.13], [NEVER, NEVER]], [NEVER, NEVER]),
            ([64, 57344, 8192], [[156.34, NEVER], [139.17, 150.93], [164.37, 169.81], [NEVER, NEVER]], [NEVER, NEVER]),
            ([16, 28672, 8192], [[57.19, NEVER], [58.20, 58.58], [63.74, 56.07], [65.76, 56.78]], [NEVER, NEVER]),
            ([32, 28672, 8192], [[65.34, NEVER], [66.24, 66.47], [69.80, 65.14], [74.77, 68.07]], [NEVER, NEVER]),
            ([48, 28672, 8192], [[71.16, NEVER], [74.26, 76.00], [83.01, 76.61], [93.65, 82.70]], [NEVER, NEVER]),
            ([64, 28672, 8192], [[78.24, NEVER], [81.27, 81.83], [89.39, 85.80], [102.35, 94.71]], [NEVER, NEVER]),
            ([16, 10240, 8192], [[36.99, NEVER], [31.12, 31.07], [24.97, 24.95], [NEVER, NEVER]], [23.61, 25.43]),
            ([32, 10240, 8192], [[40.83, NEVER], [35.34, 34.66], [28.04, 28.00], [NEVER, NEVER]], [26.37, 28.49]),
            ([64, 10240, 8192], [[46.05, NEVER], [42.10, 41.62], [37.05, 36.02], [NEVER, NEVER]], [31.94, 35.55]),
            ([16, 8192, 8192], [[36.26, NEVER], [21.42, 21.82], [24.54, 18.87], [25.05, 19.99]], [22.97, 20.01]),
            ([32, 8192, 8192], [[40.14, NEVER], [23.44, 23.69], [27.39, 20.94], [29.75, 22.54]], [25.65, 22.31]),
            ([48, 8192, 8192], [[42.13, NEVER], [24.69, 25.14], [33.55, 23.58], [33.61, 25.38]], [NEVER, NEVER]),
            ([64, 8192, 8192], [[45.07, NEVER], [26.25, 26.36], [36.01, 24.66], [36.46, 28.02]], [30.69, 27.79]),
            ([16, 14336, 4096], [[20.96, NEVER], [18.31, 18.52], [20.87, 19.74], [NEVER, NEVER]], [19.41, NEVER]),
            ([32, 14336, 4096], [[23.50, NEVER], [20.75, 21.17], [23.49, 22.43], [NEVER, NEVER]], [22.17, NEVER]),
            ([64, 14336, 4096], [[27.40, NEVER], [25.14, 26.00], [29.44, 28.66], [NEVER, NEVER]], [28.59, NEVER]),
            ([16, 24576, 1536], [[14.90, NEVER], [13.41, 13.90], [NEVER, NEVER], [NEVER, NEVER]], [NEVER, NEVER]),
            ([32, 24576, 1536], [[17.74, NEVER], [15.78, 16.70], [NEVER, NEVER], [NEVER, NEVER]], [NEVER, NEVER]),
            ([64, 24576, 1536], [[22.46, NEVER], [22.69, 23.34], [NEVER, NEVER], [NEVER, NEVER]], [NEVER, NEVER]),
            ([16, 4096, 7168], [[31.63, NEVER], [18.25, 18.37], [16.10, 12.44], [14.42, 11.42]], [14.24, 13.89]),
            ([32, 4096, 7168], [[36.03, NEVER], [20.16, 19.71], [17.88, 13.20], [16.31, 12.67]], [15.27, 15.05]),
            ([48, 4096, 7168], [[37.42, NEVER], [21.28, 20.37], [19.76, 13.74], [21.39, 13.77]], [NEVER, NEVER]),
            ([64, 4096, 7168], [[40.52, NEVER], [23.01, 21.52], [21.24, 14.43], [22.37, 14.99]], [16.84, 17.51]),
            ([32, 5120, 5120], [[NEVER, NEVER], [15.98, 15.72], [14.44, 14.69], [14.29, 13.61]], [12.94, 13.08]),
            ([64, 5120, 5120], [[NEVER, NEVER], [18.34, 17.22], [17.27, 17.21], [22.16, 17.93]], [14.33, 15.22]),
            ([32, 2112, 7168], [[NEVER, NEVER], [NEVER, NEVER], [12.41, 12.85], [12.35, 11.77]], [NEVER, 11.33]),
            ([64, 2112, 7168], [[NEVER, NEVER], [NEVER, NEVER], [14.24, 13.90], [14.15, 13.53]], [NEVER, 12.30]),
            ([32, 7168, 2048], [[14.18, NEVER], [9.82, 9.68], [9.45, 9.92], [15.40, 12.28]], [11.27, 11.84]),
            ([48, 7168, 2048], [[15.76, NEVER], [10.72, 10.68], [11.08, 11.69], [15.63, 13.36]], [NEVER, NEVER]),
            ([64, 7168, 2048], [[17.58, NEVER], [11.76, 11.37], [12.03, 11.77], [17.29, 14.93]], [13.70, 15.47]),
            ([32, 576, 7168], [[NEVER, NEVER], [NEVER, NEVER], [NEVER, NEVER], [8.56, 8.43]], [NEVER, NEVER]),
            ([64, 576, 7168], [[NEVER, NEVER], [NEVER, NEVER], [NEVER, NEVER], [9.70, 9.16]], [NEVER, NEVER]),
        ];
        judge(SmallMOperands::E2m1Weights, &e2m1, 1.07, 1.015);
        let e4m3: [Case; 26] = [
            ([32, 57344, 8192], [[148.26, NEVER], [139.79, 145.33], [156.84, 152.41], [NEVER, NEVER]], [NEVER, NEVER]),
            ([48, 57344, 8192], [[160.03, NEVER], [154.11, 162.74], [178.58, 173.38], [NEVER, NEVER]], [NEVER, NEVER]),
            ([64, 57344, 8192], [[176.83, NEVER], [164.12, 176.17], [189.88, 193.42], [NEVER, NEVER]], [NEVER, NEVER]),
            ([32, 28672, 8192], [[73.90, NEVER], [78.79, 78.98], [82.80, 85.93], [98.14, 82.67]], [NEVER, NEVER]),
            ([48, 28672, 8192], [[80.98, NEVER], [85.08, 87.43], [93.53, 96.57], [110.07, 93.34]], [NEVER, NEVER]),
            ([64, 28672, 8192], [[88.15, NEVER], [92.53, 94.91], [99.61, 106.02], [118.98, 105.05]], [NEVER, NEVER]),
            ([32, 10240, 8192], [[48.21, NEVER], [39.26, 38.81], [38.74, 42.30], [NEVER, NEVER]], [30.95, 34.98]),
            ([64, 10240, 8192], [[57.15, NEVER], [46.46, 46.11], [46.65, 43.90], [NEVER, NEVER]], [36.25, 41.08]),
            ([32, 8192, 8192], [[48.07, NEVER], [28.04, 28.14], [36.09, 25.92], [35.77, 27.92]], [29.27, 32.26]),
            ([48, 8192, 8192], [[53.26, NEVER], [31.70, 32.08], [39.73, 27.94], [40.23, 30.45]], [NEVER, NEVER]),
            ([64, 8192, 8192], [[56.92, NEVER], [33.91, 33.95], [42.96, 29.31], [43.17, 33.42]], [34.62, 37.77]),
            ([32, 14336, 4096], [[28.15, NEVER], [24.24, 24.65], [28.04, 27.14], [NEVER, NEVER]], [31.57, NEVER]),
            ([64, 14336, 4096], [[34.59, NEVER], [28.35, 29.67], [33.77, 33.04], [NEVER, NEVER]], [37.98, NEVER]),
            ([32, 24576, 1536], [[20.24, NEVER], [23.08, 21.82], [NEVER, NEVER], [NEVER, NEVER]], [NEVER, NEVER]),
            ([64, 24576, 1536], [[25.24, NEVER], [30.06, 27.43], [NEVER, NEVER], [NEVER, NEVER]], [NEVER, NEVER]),
            ([32, 4096, 7168], [[42.25, NEVER], [23.82, 23.26], [20.18, 15.48], [21.60, 14.76]], [17.97, 17.17]),
            ([48, 4096, 7168], [[47.07, NEVER], [26.19, 25.12], [22.17, 16.79], [23.64, 15.32]], [NEVER, NEVER]),
            ([64, 4096, 7168], [[48.72, NEVER], [28.88, 27.16], [23.90, 17.88], [25.49, 16.80]], [20.79, 19.88]),
            ([32, 5120, 5120], [[NEVER, NEVER], [18.65, 18.28], [16.48, 16.77], [21.53, 17.09]], [15.08, 15.18]),
            ([64, 5120, 5120], [[NEVER, NEVER], [22.62, 21.15], [19.62, 19.51], [25.25, 20.20]], [17.34, 16.99]),
            ([32, 2112, 7168], [[NEVER, NEVER], [NEVER, NEVER], [14.08, 14.58], [13.60, 12.89]], [NEVER, 12.56]),
            ([64, 2112, 7168], [[NEVER, NEVER], [NEVER, NEVER], [17.24, 16.66], [15.54, 14.78]], [NEVER, 14.39]),
            ([32, 7168, 2048], [[16.03, NEVER], [10.83, 10.67], [10.89, 11.26], [15.39, 13.39]], [12.54, 15.10]),
            ([48, 7168, 2048], [[18.44, NEVER], [12.24, 11.96], [11.99, 12.76], [17.32, 14.95]], [NEVER, NEVER]),
            ([64, 7168, 2048], [[20.43, NEVER], [13.71, 13.02], [13.09, 12.90], [18.90, 16.71]], [14.81, 17.39]),
            ([64, 576, 7168], [[NEVER, NEVER], [NEVER, NEVER], [NEVER, NEVER], [11.27, 10.68]], [NEVER, NEVER]),
        ];
        judge(SmallMOperands::E4m3Weights, &e4m3, 1.10, 1.015);
    }

    /// Splits that no cluster has: 31.9 us for 36.0 of the best other, 15.2 (14.3 by 3) for 17.2, and 12.3 for 13.5.
    #[test]
    fn three_and_six_come_first_where_they_fill_the_gpu_once() {
        let gpu = SmallMGpu { sm_count: 132, clusters: true, wgmma: true };
        let of = |operands, [m, n, k]: [usize; 3]| order_on(operands, CodeOrder::Published, [m, n, k], gpu);
        let first = |mnk| of(SmallMOperands::E2m1Weights, mnk)[0];
        assert_eq!([16, 32, 64].map(|m| first([m, 10240, 8192]).split()), [3; 3]);
        assert_eq!([32, 64].map(|m| first([m, 5120, 5120]).split()), [6; 2]);
        assert_eq!([32, 64].map(|m| first([m, 2112, 7168]).split()), [6; 2]);
        assert_eq!(of(SmallMOperands::E4m3Weights, [64, 10240, 8192])[0].split(), 3);
        // 80 tiles times three, two to a multiprocessor.
        assert_eq!(waves(first([64, 10240, 8192]), CodeOrder::Published, [64, 10240, 8192], gpu), 240.0 / 264.0);
        // Nowhere are they where parts cannot meet in memory: more blocks than run at once, passes of few rows, other GPUs.
        let none = |operands, mnk, gpu| {
            let all = order_on(operands, CodeOrder::Published, mnk, gpu);
            !all.is_empty() && all.iter().all(|config| !config.needs_memory())
        };
        let (e2m1, e4m3) = (SmallMOperands::E2m1Weights, SmallMOperands::E4m3Weights);
        assert!([[64, 57344, 8192], [8, 10240, 8192], [16, 2112, 7168]].into_iter().all(|mnk| none(e2m1, mnk, gpu)));
        assert!([[16, 10240, 8192], [130, 10240, 8192]].into_iter().all(|mnk| none(e4m3, mnk, gpu)));
        assert!(!none(e4m3, [128, 10240, 8192], gpu), "two whole passes");
        assert!(none(e2m1, [64, 10240, 8192], SmallMGpu { wgmma: false, ..gpu }));
        assert!(none(SmallMOperands::Fp8, [16, 10240, 8192], gpu));
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
        for mnk in [[16, 4096, 7040], [8, 57344, 8192], [32, 576, 7168]] {
            for operands in [SmallMOperands::E2m1Weights, SmallMOperands::E4m3Weights] {
                if (operands, mnk[0]) == (SmallMOperands::E2m1Weights, 32) {
                    continue;
                }
                let old = order(operands, CodeOrder::Published, mnk, 132);
                assert_eq!(order_on(operands, CodeOrder::Published, mnk, gpu), old);
                assert_eq!(waves(old[0], CodeOrder::Published, mnk, gpu), small_m_rules::waves(old[0], mnk, 132));
            }
        }
        let without = SmallMGpu { wgmma: false, ..gpu };
        let mnk = [64, 4096, 7168];
        let [old, new] =
            [without, gpu].map(|gpu| order_on(SmallMOperands::E2m1Weights, CodeOrder::Published, mnk, gpu));
        assert_eq!([old[0].split(), new[0].split()], [8; 2]);
        // 256 blocks, two on a multiprocessor; the clusters of a split into two.
        assert_eq!(waves(new[0], CodeOrder::Published, mnk, gpu), 256.0 / 264.0);
        let two = new.iter().find(|config| config.split() == 2).unwrap();
        assert_eq!(waves(*two, CodeOrder::Published, mnk, gpu), 32.0 / 132.0);
        // Of 16 rows tiles come before blocks of few rows where there are many weights.
        let blocks = |nk: [usize; 2]| {
            let all = order_on(SmallMOperands::E2m1Weights, CodeOrder::Published, [16, nk[0], nk[1]], gpu);
            all.iter().map(|config| config.block()).collect::<Vec<_>>()
        };
        assert_eq!(blocks([8192, 8192])[..6], [SmallMBlock::Tile; 6]);
        assert!(!blocks([8192, 8192])[6..].contains(&SmallMBlock::Tile));
    }
}
