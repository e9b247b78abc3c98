// Products on Hopper of E4M3 codes with scales of rows or of whole matrices, of groups of k, as of weight gradients: gemm_fp8_outer_fp32_<configuration>_k_grouped. D is FP32, and added to.
#include "gemm/sm90.cuh"

#define SM90(NAME, ...)                                 \
    SM90_CONFIG_OUTER_FP32(NAME, __VA_ARGS__)           \
    SM90_KERNEL(gemm_fp8_outer_fp32_##NAME##_k_grouped, Config_##NAME, GROUPS_OF_K)

#define SM90_E4M3 SM90
#define SM90_SPLIT(...)

#include "gemm/sm90_table.cuh"
