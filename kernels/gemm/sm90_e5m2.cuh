// Products on Hopper of E5M2 codes on one side and E4M3 codes on the other, as of gradients with weights: kernels of whole products with scales of each kind,
// gemm_<types>_{block,vector,outer,block_a}_<configuration>, but for the last with `_grouped` behind it of groups of rows, and of two vectors of scales with `_k_grouped` of groups of k, which scales of rows and matrices have as
// gemm_<types>_outer_fp32_<configuration>_k_grouped. The file that includes this says which side: WGMMA_TYPES for the instructions, SM90_TYPES for names.
#pragma once
#include "gemm/sm90.cuh"

// A macro of the types' names and another: of what the names stand for.
#define SM90_E5M2_AS(MACRO, TYPES, NAME) MACRO(TYPES, NAME)

#define SM90_E5M2(NAME) SM90_E5M2_AS(SM90_E5M2_NAMED, SM90_TYPES, NAME)
#define SM90_E5M2_NAMED(TYPES, NAME)    \
    SM90_E5M2_WHOLE_NAMED(TYPES, NAME)  \
    SM90_KERNEL(gemm_##TYPES##_##NAME##_grouped, Config_##NAME, GROUPS_OF_ROWS)

#define SM90_E5M2_WHOLE(NAME) SM90_E5M2_AS(SM90_E5M2_WHOLE_NAMED, SM90_TYPES, NAME)
#define SM90_E5M2_WHOLE_NAMED(TYPES, NAME) SM90_KERNEL(gemm_##TYPES##_##NAME, Config_##NAME, GROUPS_NONE)

#define SM90_E5M2_OF_K(NAME) SM90_E5M2_AS(SM90_E5M2_OF_K_NAMED, SM90_TYPES, NAME)
#define SM90_E5M2_OF_K_NAMED(TYPES, NAME) SM90_KERNEL(gemm_##TYPES##_##NAME##_k_grouped, Config_##NAME, GROUPS_OF_K)

#define SM90(NAME, ...)                                                 \
    SM90_CONFIG(block_##NAME, SCALES_BLOCK, __VA_ARGS__)                \
    SM90_E5M2(block_##NAME)                                             \
    SM90_CONFIG_VECTOR(vector_##NAME, END_NUMBERS, __VA_ARGS__)         \
    SM90_E5M2(vector_##NAME)                                            \
    SM90_E5M2_OF_K(vector_##NAME)                                       \
    SM90_CONFIG(outer_##NAME, SCALES_OUTER, __VA_ARGS__)                \
    SM90_E5M2(outer_##NAME)                                             \
    SM90_CONFIG_OUTER_FP32(outer_fp32_##NAME, __VA_ARGS__)              \
    SM90_E5M2_OF_K(outer_fp32_##NAME)                                   \
    SM90_CONFIG_BLOCK_A(block_a_##NAME, __VA_ARGS__)                    \
    SM90_E5M2_WHOLE(block_a_##NAME)

#define SM90_E4M3(...)
#define SM90_SPLIT(...)

#include "gemm/sm90_table.cuh"
