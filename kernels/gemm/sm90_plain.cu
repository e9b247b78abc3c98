// The products of sm90_block.cu where D is BF16 and nothing follows the sums: gemm_fp8_plain_<configuration>, and gemm_fp8_plain_<configuration>_grouped. What that saves:
// END_PLAIN in sm90_config.cuh.
#include "gemm/sm90.cuh"

// The loop over k: stages, products of a warpgroup that run at once, and k-blocks of its body, where they are others than the table's, which hold for all ends, beside which there are fewer registers, and for other scales. What these take of the time of those, in turns
// (H200, benches/record/2026-12-01-nvidia-h200-rings): 128x64 and 64x128 0.93 to 0.99, 128x160 0.97 to 0.99, 128x128 0.98 to 1.01, 64x64_two 0.97 to 1.00; 256x128, in an earlier one, 0.98 to 1.00.
struct Sm90Loop {
    u32 stages, depth, unroll;
};
__device__ constexpr Sm90Loop loop_of(u32 rows, u32 cols, u32 residents, Sm90Loop of_table) {
    if (rows == 256) return {of_table.stages, of_table.depth, 8};
    if (rows == 128 && cols == 128) return {5, 2, 5};
    if (rows == 128 && cols == 160) return {4, 1, 4};
    if (rows * cols == 128 * 64) return {8, 2, 8};
    if (residents == 2) return {6, 1, 6};
    return of_table;
}

#define SM90(NAME, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES)                            \
    constexpr Sm90Loop loop_##NAME = loop_of(ROWS, COLS, RESIDENT, {STAGES, DEPTH, UNROLL});                                  \
    SM90_CONFIG_ENDING(NAME, END_PLAIN, SCALES_BLOCK, ROWS, COLS, GROUPS, SHARE, loop_##NAME.stages, ATOM, loop_##NAME.depth, \
                       loop_##NAME.unroll, STORE, RESIDENT, BYTES)                                                            \
    SM90_KERNEL(gemm_fp8_plain_##NAME, Config_##NAME, GROUPS_NONE)                                                            \
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
