// The products of sm90_vector.cu where D is FP32, and stored as it is or added to: gemm_fp8_vector_fp32_<configuration>, and with `_k_grouped` behind it of groups of k.
#include "gemm/sm90.cuh"

#define SM90(NAME, ...)                                                      \
    SM90_CONFIG_VECTOR(NAME, END_FP32, __VA_ARGS__)                          \
    SM90_KERNEL(gemm_fp8_vector_fp32_##NAME, Config_##NAME, GROUPS_NONE)     \
    SM90_KERNEL(gemm_fp8_vector_fp32_##NAME##_k_grouped, Config_##NAME, GROUPS_OF_K)

#define SM90_E4M3 SM90

#define SM90_SPLIT(NAME, ...)                                                \
    SM90_CONFIG_SPLIT(NAME, END_FP32, SCALES_VECTOR, __VA_ARGS__)            \
    SM90_KERNEL(gemm_fp8_vector_fp32_##NAME, Config_##NAME, GROUPS_NONE)

#include "gemm/sm90_table.cuh"
