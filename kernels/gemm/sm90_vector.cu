// Products on Hopper of E4M3 codes with 1x128 scales on both sides, as of weight gradients: gemm_fp8_vector_<configuration>; with `_k_grouped`
// behind it of groups of k, of all of which A and B are one matrix each; and in the configurations that other codes have, with `_grouped` of groups of rows, each with a B of its own.
#include "gemm/sm90.cuh"

#define SM90_E4M3(NAME, ...)                                         \
    SM90_CONFIG_VECTOR(NAME, END_NUMBERS, __VA_ARGS__)               \
    SM90_KERNEL(gemm_fp8_vector_##NAME, Config_##NAME, GROUPS_NONE)  \
    SM90_CONFIG_OF_COLUMNS(of_k_##NAME, loop_of_vectors_of_k, END_NUMBERS, SCALES_VECTOR, __VA_ARGS__)  \
    SM90_KERNEL(gemm_fp8_vector_##NAME##_k_grouped, Config_of_k_##NAME, GROUPS_OF_K)

#define SM90(NAME, ...)             \
    SM90_E4M3(NAME, __VA_ARGS__)    \
    SM90_KERNEL(gemm_fp8_vector_##NAME##_grouped, Config_##NAME, GROUPS_OF_ROWS)

#define SM90_SPLIT(NAME, ...)                                                                               \
    SM90_CONFIG_SPLIT(NAME, END_NUMBERS, SCALES_VECTOR, __VA_ARGS__)                                                     \
    SM90_KERNEL(gemm_fp8_vector_##NAME, Config_##NAME, GROUPS_NONE)

#include "gemm/sm90_table.cuh"
