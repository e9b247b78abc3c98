// Which tile of 128 rows a block has, in casts in tiles and per channel.
#pragma once
#include "base/types.cuh"

struct TilePlace {
    u32 down, right;  // rows of tiles above it, and tiles left of it
    // Whether there is no such row; there is one of 128 at least.
    __device__ __forceinline__ bool is_past(u32 rows) const { return down > (rows - 1) / 128; }
};

// Blocks are numbered by columns and rows of tiles, without a division. Where there are more rows of tiles than a grid has, its columns begin anew, 257 times at the most (`tile_grid` in src/gpu/kernels/cast.rs), and blocks may be past the last.
__device__ __forceinline__ TilePlace tile_of_block(u32 tiles_across) {
    u32 down = blockIdx.y, right = blockIdx.x;
    for (; right >= tiles_across; right -= tiles_across) down += gridDim.y;
    return {down, right};
}
