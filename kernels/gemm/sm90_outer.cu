// Products on Hopper of E4M3 codes with scales of rows or of whole matrices: gemm_fp8_outer_<configuration>.
#include "gemm/sm90.cuh"

#define SM90(NAME, ...)                           \
    SM90_CONFIG(NAME, SCALES_OUTER, __VA_ARGS__)  \
    SM90_KERNEL(gemm_fp8_outer_##NAME, Config_##NAME, false)

#include "gemm/sm90_table.cuh"
