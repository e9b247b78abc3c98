// Which tile of 128 rows a block has, in casts in tiles and per channel.
#pragma once
#include "base/types.cuh"

// The thread's number, asked for anew: what is made of it would be kept in registers from the start to the codes.
__device__ __forceinline__ u32 thread_anew() {
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

struct TilePlace {
    u32 down, right;  // rows of tiles above it, and tiles left of it
    // Whether the matrix, which has rows, has no such row of tiles.
    __device__ __forceinline__ bool is_past(u32 rows) const { return down > (rows - 1) / 128; }
};

// Blocks are numbered by columns and rows of tiles, without a division. Where there are more rows of tiles than a grid has, its columns begin anew, 257 times at the most (`tile_grid` in src/gpu/kernels/cast.rs), and blocks may be past the last.
__device__ __forceinline__ TilePlace tile_of_block(u32 tiles_across) {
    u32 down = blockIdx.y, right = blockIdx.x;
    for (; right >= tiles_across; right -= tiles_across) down += gridDim.y;
    return {down, right};
}
