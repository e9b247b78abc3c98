// Products on Hopper of E4M3 codes with 1x128 scales (A) and 128x128 scales (B): gemm_fp8_block_<configuration>, and
// gemm_fp8_block_<configuration>_grouped for groups of rows, each with a B of its own.
#include "gemm/sm90.cuh"

#define SM90(NAME, ...)                                             \
    SM90_CONFIG(NAME, SCALES_BLOCK, __VA_ARGS__)                    \
    SM90_KERNEL(gemm_fp8_block_##NAME, Config_##NAME, GROUPS_NONE)  \
    SM90_KERNEL(gemm_fp8_block_##NAME##_grouped, Config_##NAME, GROUPS_OF_ROWS)

#define SM90_E4M3 SM90

#define SM90_SPLIT(NAME, ...)                            \
    SM90_CONFIG_SPLIT(NAME, END_NUMBERS, SCALES_BLOCK, __VA_ARGS__)   \
    SM90_KERNEL(gemm_fp8_block_##NAME, Config_##NAME, GROUPS_NONE)

#include "gemm/sm90_table.cuh"
