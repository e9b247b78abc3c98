// Products on Hopper of E4M3 codes with 1x128 scales on both sides, as of weight gradients: gemm_fp8_vector_<configuration>; with `_k_grouped`
// behind it of groups of k, of all of which A and B are one matrix each.
#include "gemm/sm90.cuh"

// The body of the loop of the largest tile is four k-blocks: 0.96 of one's time, and eight were no faster (observed: H200, 2026-11). Those of 160 and 192 columns are one: with more
// registers are spilled. For boxes of D, which is FP32 mostly, the largest has none left either.
#define SM90(NAME, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, ...)                      \
    SM90_CONFIG(NAME, SCALES_VECTOR, ROWS, COLS, GROUPS, SHARE, ((ROWS) == 256 ? 4 : (STAGES)), ATOM, DEPTH, \
                ((ROWS) == 256 ? 4 : (COLS) > 128 ? 1 : (UNROLL)),                                         \
                ((ROWS) == 256 ? STORE_DIRECT : (STORE)), __VA_ARGS__)                                     \
    SM90_KERNEL(gemm_fp8_vector_##NAME, Config_##NAME, GROUPS_NONE)                                        \
    SM90_KERNEL(gemm_fp8_vector_##NAME##_k_grouped, Config_##NAME, GROUPS_OF_K)

#define SM90_SPLIT(NAME, ...)                                                                               \
    SM90_CONFIG_SPLIT(NAME, SCALES_VECTOR, __VA_ARGS__)                                                     \
    SM90_KERNEL(gemm_fp8_vector_##NAME, Config_##NAME, GROUPS_NONE)

#include "gemm/sm90_table.cuh"
