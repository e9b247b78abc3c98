// Products on Hopper of E4M3 codes with scales of rows or of whole matrices: gemm_fp8_outer_<configuration>, and with `_grouped` behind it of groups of rows.
#include "gemm/sm90.cuh"

#define SM90(NAME, ...)                                             \
    SM90_CONFIG(NAME, SCALES_OUTER, __VA_ARGS__)                    \
    SM90_KERNEL(gemm_fp8_outer_##NAME, Config_##NAME, GROUPS_NONE)  \
    SM90_KERNEL(gemm_fp8_outer_##NAME##_grouped, Config_##NAME, GROUPS_OF_ROWS)

#define SM90_E4M3 SM90

#define SM90_SPLIT(NAME, ...)                            \
    SM90_CONFIG_SPLIT(NAME, END_NUMBERS, SCALES_OUTER, __VA_ARGS__)   \
    SM90_KERNEL(gemm_fp8_outer_##NAME, Config_##NAME, GROUPS_NONE)

#include "gemm/sm90_table.cuh"
