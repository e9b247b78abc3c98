// The products of sm90_block.cu where D is BF16 and nothing follows the sums: gemm_fp8_plain_<configuration>, and gemm_fp8_plain_<configuration>_grouped. What that saves:
// END_PLAIN in sm90_config.cuh.
#include "gemm/sm90.cuh"

#define SM90(NAME, ...)                                                                   \
    SM90_CONFIG_LOOPING(NAME, loop_of_blocks, END_PLAIN, SCALES_BLOCK, __VA_ARGS__)       \
    SM90_KERNEL(gemm_fp8_plain_##NAME, Config_##NAME, GROUPS_NONE)                        \
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
