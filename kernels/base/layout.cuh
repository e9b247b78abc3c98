// Places of scales on the device. Mirror of src/format/layout.rs; lengths and paddings are tested against it.
#pragma once
#include "base/types.cuh"

__device__ __forceinline__ u64 round_up4(u64 n) { return (n + 3) / 4 * 4; }
__device__ __forceinline__ u64 round_up16(u64 n) { return (n + 15) / 16 * 16; }

// 1x128 groups of a matrix with `rows` rows: row contiguous, pitch rounded up to 4.
__device__ __forceinline__ u64 vec128_index(u64 rows, u64 row, u64 block) { return block * round_up4(rows) + row; }

// 128x128 tiles of a matrix with `blocks` tiles along its columns: tile along K contiguous, pitch rounded up to 4.
__device__ __forceinline__ u64 blk128_index(u64 blocks, u64 tile, u64 block) { return tile * round_up4(blocks) + block; }

// Byte scales of 1x16 or 1x32 blocks, `blocks` in a row: tiles of 128 rows by 4 blocks, 512 bytes each.
__device__ __forceinline__ u64 tiled_index(u64 blocks, u64 row, u64 block) {
    return (row / 128 * ((blocks + 3) / 4) + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

// The 32 scales of eight rows by four blocks lie in one sector: rows 2 pair and 2 pair + 1 of a tile of 128, and those 32, 64
// and 96 further. `block` is any of the four blocks.
struct SectorScales { uint4 q[2]; };

__device__ __forceinline__ SectorScales load_sector(const u8* scales, u64 blocks, u64 tile, u32 pair, u64 block) {
    const uint4* p = (const uint4*)(scales + (tile * ((blocks + 3) / 4) + block / 4) * 512 + pair * 32);
    return {{__ldg(p), __ldg(p + 1)}};
}

// Row j of the eight, counted from the first, and its scale; `j` must be a compile-time constant after unrolling.
__device__ __forceinline__ u32 sector_row(int j) { return j / 4 + j % 4 * 32; }
__device__ __forceinline__ u32 sector_scale(const SectorScales& s, int j, u32 block) { return word(s.q[j / 4], j % 4) >> 8 * (block % 4) & 0xFF; }

// Order of the scales, as the kernels receive it (src/gpu/kernels/fp8.rs).
constexpr u32 SCALAR = 0;
constexpr u32 OUTER = 1;
constexpr u32 VEC128 = 2;
constexpr u32 BLK128 = 3;
