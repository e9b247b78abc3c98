// The order of repacked E2M1 codes, `CodeOrder::Repacked` of src/format/code_order.rs, which says where each bit lies.
#pragma once
#include "base/types.cuh"

// Of a matrix of `cols` columns, a multiple of 128, eight rows of 128 are 512 bytes, and of those a row's are 64: in which byte of eight rows that begin at `from` the
// codes of columns from `col` on begin, a multiple of 16.
__device__ __forceinline__ u64 repacked_place(u64 row, u32 col, u32 cols) { return row / 8 * (4 * (u64)cols) + col / 128 * 512 + row % 8 * 64 + col % 128 / 2; }

__device__ __forceinline__ u32 rotated(u32 v, u32 left) { return __funnelshift_l(v, v, left); }

// The word that both words of a block share: the codes of pairs 3 and 7.
constexpr u32 OF_FIRST = 0x0C180C18u;
__device__ __forceinline__ u32 shared_word(u32 first, u32 second) { return (first & OF_FIRST) | (second << 2 & ~OF_FIRST); }

// Eight columns of a block, its first (`half` 0) or the others, as pairs of columns 0 and 1, 4 and 5, 2 and 3, 6 and 7 of them: E2M1 numbers times 2^-126. `own` is the block's
// first or second word, `shared` shared_word of both.
__device__ __forceinline__ void spread_repacked(Bf16, u32 half, u32 own, u32 shared, u32 (&pairs)[4]) {
    constexpr u32 BITS = 0x81C081C0u;
    pairs[0] = own & BITS;
    pairs[1] = rotated(own, 26) & BITS;
    pairs[2] = own << 6 & BITS;
    pairs[3] = (half == 0 ? shared << 2 : rotated(shared, 28)) & BITS;
}
// Times 2^-14: the magnitude three places further to the left.
__device__ __forceinline__ u32 f16_of_places(u32 sign, u32 magnitude) { return (sign & 0x80008000u) | (magnitude & 0x0E000E00u); }
__device__ __forceinline__ void spread_repacked(F16, u32 half, u32 own, u32 shared, u32 (&pairs)[4]) {
    pairs[0] = f16_of_places(own, own << 3);
    pairs[1] = f16_of_places(rotated(own, 26), own >> 3);
    pairs[2] = f16_of_places(own << 6, own << 9);
    pairs[3] = half == 0 ? f16_of_places(shared << 2, shared << 5) : f16_of_places(rotated(shared, 28), shared >> 1);
}

// The same eight codes as published, four bits each.
__device__ __forceinline__ u32 published_word(u32 half, u32 own, u32 shared) {
    u32 pairs[4], codes = 0;
    spread_repacked(Bf16(), half, own, shared, pairs);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        // Two codes of four bits, sixteen apart, and then eight bits at the place of their columns.
        const u32 pair = (pairs[i] >> 12 & 0x00080008u) | (pairs[i] >> 6 & 0x00070007u);
        codes |= ((pair | pair >> 12) & 0xFFu) << (i % 2 * 16 + i / 2 * 8);
    }
    return codes;
}

// Eight codes as published as four pairs of neighbours.
__device__ __forceinline__ void pairs_of_published(u32 codes, u32 (&pairs)[4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 both = codes >> (8 * i), pair = (both & 0xFu) | (both & 0xF0u) << 12;
        pairs[i] = (pair & 0x00080008u) << 12 | (pair & 0x00070007u) << 6;
    }
}
// A block of sixteen codes, from the published order and to it.
__device__ __forceinline__ uint2 repacked_block(uint2 published) {
    u32 low[4], high[4];
    pairs_of_published(published.x, low);
    pairs_of_published(published.y, high);
    const u32 shared = rotated(low[3], 30) | rotated(high[3], 4);
    return {low[0] | rotated(low[1], 26) | rotated(low[2], 6) | (shared & OF_FIRST),
            high[0] | rotated(high[1], 26) | rotated(high[2], 6) | (shared & ~OF_FIRST) >> 2};
}
__device__ __forceinline__ uint2 published_block(uint2 repacked) {
    const u32 shared = shared_word(repacked.x, repacked.y);
    return {published_word(0, repacked.x, shared), published_word(1, repacked.y, shared)};
}
