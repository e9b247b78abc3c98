// y of codes with block scales, which lie in tiles of 128x4 (layout.cuh): what the dequantizers of NVFP4 and of the MX formats have in common.
#pragma once
#include "base/layout.cuh"

// A thread takes eight columns of the eight rows whose block scales share a sector, so that a block of threads writes long stretches of one row after the
// other and reads each sector of scales once. `blocks`: scales in a row, each of GROUP columns. `load(loaded, row, col, inside)` asks for what the eight
// columns need, of which `decode(loaded, byte, v)` makes their values with the byte of their scale.
template <u32 GROUP, bool ALIGNED, class LOADED, class T, class LOAD, class DECODE>
__device__ __forceinline__ void dequantize_blocks(const u8* block_scales, u32 rows, u32 cols, u32 blocks, T* y, u64 y_stride, LOAD load, DECODE decode) {
    const u32 pair = blockIdx.y % 16;
    const u32 col = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (col >= cols) return;
    for (u32 tile = blockIdx.y / 16; tile * 128ull < rows; tile += gridDim.y / 16) {
        const SectorScales sector = load_sector(block_scales, blocks, tile, pair, col / GROUP);
        const u64 first = tile * 128ull + pair * 2;
        LOADED loaded[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const u64 row = first + sector_row(j);
            load(loaded[j], row, col, row < rows);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const u64 row = first + sector_row(j);
            if (row >= rows) continue;
            float v[8];
            decode(loaded[j], sector_scale(sector, j, col / GROUP), v);
            store<ALIGNED>(y + row * y_stride + col, v);
        }
    }
}
