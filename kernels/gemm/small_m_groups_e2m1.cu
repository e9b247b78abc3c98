// Groups of rows of BF16 or F16 with E2M1 codes and block scales, on Hopper: see small_m_groups.cuh.
#include "gemm/small_m_groups.cuh"

#define SMALL_M_GROUPS(tokens, ...)                                                                                              \
    SMALL_M_GROUPS_KERNEL(nvfp4, NVFP4, bf16, Bf16, tokens, __VA_ARGS__)                                                         \
    SMALL_M_GROUPS_KERNEL(nvfp4, NVFP4, f16, F16, tokens, __VA_ARGS__)                                                           \
    SMALL_M_GROUPS_KERNEL(nvfp4_repacked, NVFP4_REPACKED, bf16, Bf16, tokens, __VA_ARGS__)                                       \
    SMALL_M_GROUPS_KERNEL(nvfp4_repacked, NVFP4_REPACKED, f16, F16, tokens, __VA_ARGS__)                                         \
    SMALL_M_GROUPS_KERNEL(mxfp4, MXFP4, bf16, Bf16, tokens, __VA_ARGS__)

// Five blocks of eight columns, for which there are registers, were slower (H200, 2026-11: 1322 us for 1265, 221 experts of 4096 x 7168).
// columns, stages, blocks on a multiprocessor. Mirror of `SmallMGroupsShape` in src/gpu/kernels.
SMALL_M_GROUPS(8, 3, 4)
SMALL_M_GROUPS(16, 3, 4)
SMALL_M_GROUPS(32, 3, 3)
