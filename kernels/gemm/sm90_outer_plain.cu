// The products of sm90_outer.cu where D is BF16 and nothing but their scales follows the sums: gemm_fp8_outer_plain_<configuration>, and with `_grouped` behind it of groups of rows.
#include "gemm/sm90.cuh"

#define SM90(NAME, ...)                                                     \
    SM90_CONFIG_LOOPING(NAME, loop_of_rows, END_PLAIN, SCALES_OUTER, __VA_ARGS__)   \
    SM90_KERNEL(gemm_fp8_outer_plain_##NAME, Config_##NAME, GROUPS_NONE)    \
    SM90_KERNEL(gemm_fp8_outer_plain_##NAME##_grouped, Config_##NAME, GROUPS_OF_ROWS)

#define SM90_E4M3 SM90

#define SM90_SPLIT(NAME, ...)                                               \
    SM90_CONFIG_SPLIT(NAME, END_PLAIN, SCALES_OUTER, __VA_ARGS__)           \
    SM90_KERNEL(gemm_fp8_outer_plain_##NAME, Config_##NAME, GROUPS_NONE)

#include "gemm/sm90_table.cuh"
