// Products of 9 to 64 rows of BF16 or F16 with E2M1 or E4M3 codes, by warpgroup products on Hopper: see small_m_wgmma.cuh.
#include "gemm/small_m_wgmma.cuh"

#define SMALL_M_E2M1(...)                                                                                                        \
    EACH_E2M1_WEIGHTS(SMALL_M_WGMMA_KERNEL, __VA_ARGS__)                                                                         \
    EACH_REPACKED_WEIGHTS(SMALL_M_WGMMA_KERNEL, __VA_ARGS__)
#define SMALL_M_E4M3(...) EACH_E4M3_WEIGHTS(SMALL_M_WGMMA_KERNEL, __VA_ARGS__)

// Blocks of 256 rows of B, which read A half as often, were no faster, nor were three blocks on a multiprocessor with more than 32 columns, whose registers leave no product on its way while the next
// is decoded (H100, 2026-11, the record of wgmma); nor 16 columns of E4M3 weights than small_m_tile.cuh, or four blocks of E2M1 weights with 16 columns (H200, 2026-11, the record of joins).
// columns, steps of codes on their way, blocks on a multiprocessor. Mirror of the tables in src/gpu/kernels/small_m_wgmma.rs.
SMALL_M_E2M1(16, 2, 3)
SMALL_M_E2M1(32, 2, 3)
SMALL_M_E2M1(48, 2, 2)
SMALL_M_E2M1(64, 2, 2)
SMALL_M_E4M3(32, 3, 2)
SMALL_M_E4M3(48, 2, 2)
SMALL_M_E4M3(64, 2, 2)

extern "C" __global__ void __launch_bounds__(256) gemm_small_m_arrange(SmallMWeightsProblem p, uint4* to, u32 tokens, u32 pairs) {
    small_m_arrange(p, to, tokens, pairs, [](u32) { return true; });
}
