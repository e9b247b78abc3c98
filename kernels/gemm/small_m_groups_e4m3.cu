// Groups of rows of BF16 or F16 with E4M3 codes, on Hopper: see small_m_groups.cuh.
#include "gemm/small_m_groups.cuh"

#define SMALL_M_GROUPS(tokens, ...)                                                                                              \
    SMALL_M_GROUPS_KERNEL(fp8, FP8, bf16, Bf16, tokens, __VA_ARGS__)                                                             \
    SMALL_M_GROUPS_KERNEL(fp8, FP8, f16, F16, tokens, __VA_ARGS__)                                                               \
    SMALL_M_GROUPS_KERNEL(fp8_1x128, FP8_1X128, bf16, Bf16, tokens, __VA_ARGS__)                                                 \
    SMALL_M_GROUPS_KERNEL(fp8_1x128, FP8_1X128, f16, F16, tokens, __VA_ARGS__)                                                   \
    SMALL_M_GROUPS_KERNEL(fp8_128x128, FP8_128X128, bf16, Bf16, tokens, __VA_ARGS__)                                             \
    SMALL_M_GROUPS_KERNEL(fp8_128x128, FP8_128X128, f16, F16, tokens, __VA_ARGS__)                                               \
    SMALL_M_GROUPS_KERNEL(mxfp8, MXFP8, bf16, Bf16, tokens, __VA_ARGS__)

// columns, stages, blocks on a multiprocessor. Mirror of `SmallMGroupsShape` in src/gpu/kernels.
SMALL_M_GROUPS(8, 3, 3)
SMALL_M_GROUPS(16, 3, 3)
SMALL_M_GROUPS(32, 3, 3)
