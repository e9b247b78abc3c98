// Puts the codes of an NVFP4 matrix into their other order, in place: base/repacked.cuh.
#include "base/launch.cuh"
#include "base/repacked.cuh"

// Eight rows are the same memory in both orders: a block of threads holds all of them in registers, each thread so many pieces of 16 bytes, 32 columns of a row.
constexpr u32 PIECES = 8;

template <bool PACK> __device__ __forceinline__ void repack(u8* codes, u32 slabs, u32 cols) {
    const u32 of_row = cols / 32, all = 8 * of_row;
    for (u32 slab = blockIdx.x; slab < slabs; slab += gridDim.x) {
        uint4* const rows = (uint4*)(codes + (u64)slab * all * 16);
        uint4 v[PIECES];
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            const u32 at = i * blockDim.x + threadIdx.x;
            if (at < all) v[i] = rows[at];
        }
        // All of it is in registers before any of it is written.
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < PIECES; i++) {
            const u32 at = i * blockDim.x + threadIdx.x;
            if (at >= all) continue;
            u32 to;
            uint2 low = {v[i].x, v[i].y}, high = {v[i].z, v[i].w};
            if constexpr (PACK) {
                to = at % of_row / 4 * 32 + at / of_row * 4 + at % of_row % 4;
                low = repacked_block(low);
                high = repacked_block(high);
            } else {
                to = at % 32 / 4 * of_row + at / 32 * 4 + at % 4;
                low = published_block(low);
                high = published_block(high);
            }
            rows[to] = {low.x, low.y, high.x, high.y};
        }
    }
}

#define REPACK(name, PACK)                                                                                                \
    extern "C" __global__ void __launch_bounds__(1024) name(                                                              \
        u8* __restrict__ codes,  /* [8 slabs][cols / 2], 16-byte aligned */                                               \
        u32 slabs,               /* of eight rows */                                                                      \
        u32 cols)                /* a multiple of 128, at most 4 * PIECES * threads */                                    \
    { begin(); repack<PACK>(codes, slabs, cols); }
REPACK(repack_nvfp4, true)
REPACK(unpack_nvfp4, false)
