// Places of scales on the device. Mirror of src/format/layout.rs; lengths and paddings are tested against it.
#pragma once
#include "common.cuh"

__device__ __forceinline__ u64 round_up4(u64 n) { return (n + 3) / 4 * 4; }

// 1x128 groups of a matrix with `rows` rows: row contiguous, pitch rounded up to 4.
__device__ __forceinline__ u64 vec128_index(u64 rows, u64 row, u64 block) { return block * round_up4(rows) + row; }

// 128x128 tiles of a matrix with `blocks` tiles along its columns: tile along K contiguous, pitch rounded up to 4.
__device__ __forceinline__ u64 blk128_index(u64 blocks, u64 tile, u64 block) { return tile * round_up4(blocks) + block; }

// Byte scales of 1x16 or 1x32 blocks, `blocks` in a row: tiles of 128 rows by 4 blocks, 512 bytes each.
__device__ __forceinline__ u64 tiled_index(u64 blocks, u64 row, u64 block) {
    return (row / 128 * ((blocks + 3) / 4) + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

// Order of the scales, as the kernels receive it (src/gpu/kernels.rs).
constexpr u32 SCALAR = 0;
constexpr u32 OUTER = 1;
constexpr u32 VEC128 = 2;
constexpr u32 BLK128 = 3;
