// The products of sm90_block.cu where D is BF16 and nothing follows the sums: gemm_fp8_plain_<configuration>, and gemm_fp8_plain_<configuration>_grouped. What that saves:
// END_PLAIN in sm90_config.cuh.
#include "gemm/sm90.cuh"

// The body of the loop of the largest tile, and of 160 columns, is eight k-blocks: 0.98 to 1.00 of the time of four, for which beside other ends there are no registers.
#define SM90(NAME, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, ...)                                                                                        \
    SM90_CONFIG_ENDING(NAME, END_PLAIN, SCALES_BLOCK, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, ((ROWS) == 256 || (COLS) == 160 ? 8 : (UNROLL)), __VA_ARGS__)                    \
    SM90_KERNEL(gemm_fp8_plain_##NAME, Config_##NAME, GROUPS_NONE)                                                                                                      \
    SM90_KERNEL(gemm_fp8_plain_##NAME##_grouped, Config_##NAME, GROUPS_OF_ROWS)

#define SM90_E4M3 SM90

#define SM90_SPLIT(NAME, ...)                                               \
    SM90_CONFIG_SPLIT(NAME, END_PLAIN, SCALES_BLOCK, __VA_ARGS__)           \
    SM90_KERNEL(gemm_fp8_plain_##NAME, Config_##NAME, GROUPS_NONE)

#define SM90_PLAIN(NAME, ...)                                               \
    SM90_CONFIG_ENDING(NAME, END_PLAIN, SCALES_BLOCK, __VA_ARGS__)          \
    SM90_KERNEL(gemm_fp8_plain_##NAME, Config_##NAME, GROUPS_NONE)

#define SM90_PLAIN_SPLIT SM90_SPLIT

#include "gemm/sm90_table.cuh"
