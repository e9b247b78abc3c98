// The loops over k of the products for Hopper, where they are others than sm90_table.cuh says, which holds for all ends and scales: with one end there are more registers. What they take of the time of the table's, in turns, is said of each (H200, 2026-12).
#pragma once
#include "base/types.cuh"

// Stages, products of a warpgroup that run at once, and k-blocks of the loop's body.
struct Sm90Loop {
    u32 stages, depth, unroll;
};

// 1x128 x 128x128 to a plain BF16 D (benches/record/2026-12-01-nvidia-h200-rings): 128x64 and 64x128 0.93 to 0.99, 128x160 0.97 to 0.99, 128x128 0.98 to 1.01, 64x64_two 0.97 to 1.00; 256x128, in an earlier one, 0.98 to 1.00.
__device__ constexpr Sm90Loop loop_of_blocks(u32 rows, u32 cols, u32 residents, Sm90Loop of_table) {
    if (rows == 256) return {of_table.stages, of_table.depth, 8};
    if (rows == 128 && cols == 128) return {5, 2, 5};
    if (rows == 128 && cols == 160) return {4, 1, 4};
    if (rows * cols == 128 * 64) return {8, 2, 8};
    if (residents == 2) return {6, 1, 6};
    return of_table;
}

// 1x128 x 1x128 (benches/record/2026-12-01-nvidia-h200-vectors): 128x192 0.92 to 0.99, 128x128 0.91 to 1.01, 64x192 0.96 to 0.99, 64x64_two 0.88 to 1.01, 128x160 0.97 to 0.99; of k of 512 and 768 up to 1.07. (128x64 and 64x128, whose table is a ring, take 0.93 to 0.99 since bodies go round it.) The body of the largest tile is four k-blocks: 0.96 of
// one's time, and eight were no faster (2026-11); it has no boxes of D, whose memory is a stage more.
__device__ constexpr Sm90Loop loop_of_vectors(u32 rows, u32 cols, u32 residents, Sm90Loop of_table) {
    if (rows == 256) return {4, 1, 4};
    if (rows == 128 && cols == 128) return {5, 2, 5};
    if (rows == 128 && cols > 128) return {4, 1, 4};
    if (cols == 192) return {6, 1, 2};
    if (residents == 2) return {6, 1, 6};
    return of_table;
}

// The same of groups of k where D is what may be, which takes registers: tiles of 192 columns spill with a body of more k-blocks, and those of 160 keep one, too.
__device__ constexpr Sm90Loop loop_of_vectors_of_k(u32 rows, u32 cols, u32 residents, Sm90Loop of_table) {
    if (cols > 128) return {of_table.stages, of_table.depth, 1};
    return loop_of_vectors(rows, cols, residents, of_table);
}

// 128x128 x 1x128, whose largest tile has the same reasons.
__device__ constexpr Sm90Loop loop_of_blocks_of_a(u32 rows, u32 cols, u32 residents, Sm90Loop of_table) {
    if (rows == 256) return {4, 1, 4};
    return of_table;
}

// Of rows or matrices to a plain BF16 D (the same record): 64x128 0.86 to 0.99, 128x64 0.94 to 1.00, 64x64 0.85 to 1.00, 128x128 1.00, and 0.91 where k is 768.
__device__ constexpr Sm90Loop loop_of_rows(u32 rows, u32 cols, u32 residents, Sm90Loop of_table) {
    if (rows == 128 && cols == 128) return {5, 1, 5};
    if (rows * cols == 128 * 64) return {8, 2, 8};
    if (rows * cols == 64 * 64 && residents == 1) return {12, 2, 12};
    return of_table;
}
