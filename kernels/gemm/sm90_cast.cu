// Products on Hopper of E4M3 codes with 1x128 scales (A) and 128x128 scales (B) that do not store their sums: gemm_fp8_codes_<configuration> stores E4M3 codes
// with 1x128 scales, gemm_fp8_swiglu_<configuration> SwiGLU of two matrices one behind the other in B, as numbers or as such codes, and
// gemm_fp8_outer_swiglu_<configuration> the same of scales of rows or whole matrices. With `_grouped` behind it of groups of rows, each with a B of its own.
#include "gemm/sm90.cuh"

#define SM90(NAME, END, ...) SM90_CAST(NAME, END, SCALES_BLOCK, __VA_ARGS__)

#define SM90_OUTER(NAME, END, ...) SM90_CAST(NAME, END, SCALES_OUTER, __VA_ARGS__)

#define SM90_CAST(NAME, END, ...)                             \
    SM90_CONFIG_ENDING(NAME, END, __VA_ARGS__)                \
    SM90_KERNEL(gemm_fp8_##NAME, Config_##NAME, GROUPS_NONE)  \
    SM90_KERNEL(gemm_fp8_##NAME##_grouped, Config_##NAME, GROUPS_OF_ROWS)

// Sm90Config in src/gpu/kernels/sm90_config.rs mirrors the table; a test of sm90.rs reads these lines. Rows of B of SwiGLU are those of both matrices.
// name, what becomes of the sums; rows, columns, warpgroups, shared operand, stages, atom, depth, unrolled k-blocks, store, residents, shared memory
SM90(codes_256x128, END_CODES, 256, 128, 2, SHARE_A, 4, 128, 1, 8, STORE_DIRECT, 1, 220288)
SM90(codes_128x128, END_CODES, 128, 128, 2, SHARE_A, 6, 128, 1, 8, STORE_STAGED, 1, 220352)
SM90(codes_64x128, END_CODES, 64, 128, 2, SHARE_NONE, 8, 64, 2, 4, STORE_STAGED, 1, 220416)
SM90(swiglu_128x128, END_SWIGLU, 128, 256, 2, SHARE_NONE, 4, 128, 1, 8, STORE_DIRECT, 1, 220288)
SM90(swiglu_64x128, END_SWIGLU, 64, 256, 2, SHARE_NONE, 5, 64, 2, 4, STORE_STAGED, 1, 228768)
SM90_OUTER(outer_swiglu_128x128, END_SWIGLU, 128, 256, 2, SHARE_NONE, 4, 128, 1, 8, STORE_DIRECT, 1, 220288)
SM90_OUTER(outer_swiglu_64x128, END_SWIGLU, 64, 256, 2, SHARE_NONE, 5, 64, 2, 4, STORE_STAGED, 1, 228768)
