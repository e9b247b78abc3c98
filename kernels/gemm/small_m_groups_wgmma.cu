// Groups of rows of BF16 or F16 with E2M1 or E4M3 codes, by warpgroup products on Hopper: see small_m_groups_wgmma.cuh.
#include "gemm/small_m_groups_wgmma.cuh"

#define SMALL_M_E2M1(...)                                                                                                        \
    EACH_E2M1_WEIGHTS(SMALL_M_GROUPS_WGMMA_KERNEL, __VA_ARGS__)                                                                  \
    EACH_REPACKED_WEIGHTS(SMALL_M_GROUPS_WGMMA_KERNEL, __VA_ARGS__)
#define SMALL_M_E4M3(...) EACH_E4M3_WEIGHTS(SMALL_M_GROUPS_WGMMA_KERNEL, __VA_ARGS__)

// 64 columns of FP8 weights with FP32 scales of 128 columns, whose sums of a step stand beside all, leave no registers for the walk; 32 were no faster than small_m_tile.cuh (H100, 2026-11).
// columns, steps of codes on their way, blocks on a multiprocessor. Mirror of the tables in src/gpu/kernels/small_m_groups_wgmma.rs.
SMALL_M_E2M1(32, 2, 2)
SMALL_M_E2M1(64, 2, 2)
SMALL_M_E4M3(48, 2, 2)

// What no part reads is not made.
extern "C" __global__ void __launch_bounds__(256) gemm_small_m_groups_arrange(SmallMWeightsProblem p, SmallMGroups g, uint4* to, u32 rows, u32 pairs) {
    small_m_arrange(p, to, rows, pairs, [&](u32 row) { return in_taken_slot(g, row); });
}
