// E2M1 codes of E4M3 codes whose scale they share, without a product for each.
#pragma once
#include "cast/cast.cuh"

// What becomes of a code's magnitude c, y = fl(fl(c s) e), grows with c, and so do a code's lowest seven bits. The place of y among E2M1's eight
// magnitudes is then the number of thresholds that the code has reached: a threshold is the first code whose y is rounded to a magnitude or
// above it. There are 127 magnitudes of E4M3, so that all seven are bytes: they cost some instructions a group instead of nine an element.
struct Thresholds {
    u32 low, high;  // bytes: those of the places 1 to 4, and 5 to 7
};

// Where what `thresholds` does holds: a scale that is zero, or no step leaves the normal range. Negative scales, -0 among them, move signs: not here.
__device__ __forceinline__ bool has_thresholds(float s, float e) {
    const float p = __fmul_rn(s, e);
    return __float_as_uint(s) == 0 || (s > 1e-30f && s < 1e30f && p > 1e-30f && p < 1e30f);
}

// The nearest code r to (1/4, 3/4, ...) / (s e) is the threshold if its y is far enough, else the next code is: neighbours of r are at least 1/32 off, a
// thousand times what the quotient is. Quotients above 448 become 448, and if that does not reach, 127: no code does.
__device__ __forceinline__ Thresholds thresholds(float s, float e) {
    const float from[8] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 5.0f};
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fmul_rn(s, e)));
    u32 words[2];
#pragma unroll
    for (int w = 0; w < 2; w++) {
        u32 pairs[2], later = 0;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int i = 4 * w + 2 * k;
            pairs[k] = encode_pair<E4M3>(__fmul_rn(from[i], inverse), __fmul_rn(from[i + 1], inverse));
            float c[2];
            decode_pair(E4M3, pairs[k], c[0], c[1]);
#pragma unroll
            for (int j = 0; j < 2; j++)
                // Ties go to the even place: to every other y must be above what lies half way.
                if (i + j < 7) later += __float_as_uint(__fmul_rn(__fmul_rn(c[j], s), e)) < __float_as_uint(from[i + j]) + (j == 0) ? 1u << (16 * k + 8 * j) : 0;
        }
        words[w] = __byte_perm(pairs[0], pairs[1], 0x5410) + later;
    }
    return {words[0], words[1]};
}

// A byte in all four places, and the highest bits of four bytes in all of their bits.
template <u32 BYTE> __device__ __forceinline__ u32 four_of(u32 word) { return __byte_perm(word, 0, BYTE * 0x1111); }
__device__ __forceinline__ u32 fill_bytes(u32 tops) {
    u32 filled;
    asm("prmt.b32 %0, %1, 0, 0xBA98;" : "=r"(filled) : "r"(tops));
    return filled;
}
// Bits of `a` where `mask` has ones, else of `b`.
__device__ __forceinline__ u32 choose(u32 mask, u32 a, u32 b) { return (a & mask) | (b & ~mask); }

// Thresholds of all places, each four times.
struct Steps {
    u32 from[8];
    __device__ __forceinline__ Steps(const Thresholds& t)
        : from{0, four_of<0>(t.low), four_of<1>(t.low), four_of<2>(t.low), four_of<3>(t.low), four_of<0>(t.high), four_of<1>(t.high), four_of<2>(t.high)} {}
};

// The places of four codes: bits 2 and 1 in all bits of bytes, bit 0 in their highest.
struct Places {
    u32 fours, twos, ones;
    __device__ __forceinline__ Places(u32 codes, const Steps& t) {
        // Highest bits are ones, so that no difference borrows from the next byte, and stay ones where a code is not below.
        const u32 c = codes | 0x80808080u;
        fours = fill_bytes(c - t.from[4]);
        twos = fill_bytes(c - choose(fours, t.from[6], t.from[2]));
        ones = c - choose(twos, choose(fours, t.from[7], t.from[3]), choose(fours, t.from[5], t.from[1]));
    }
};

// Eight codes, element 0 in the lowest four bits, of eight.
__device__ __forceinline__ u32 e2m1_by_thresholds(u32 first, u32 second, const Steps& t) {
    // Every other code, for lower and upper halves of bytes.
    const u32 even = __byte_perm(first, second, 0x6420), odd = __byte_perm(first, second, 0x7531);
    const Places low(even, t), high(odd, t);
    u32 codes = choose(0x80808080u, odd, high.fours);
    codes = choose(0xC0C0C0C0u, codes, high.twos);
    codes = choose(0xE0E0E0E0u, codes, high.ones >> 3);
    codes = choose(0xF0F0F0F0u, codes, even >> 4);
    codes = choose(0xF8F8F8F8u, codes, low.fours);
    codes = choose(0xFCFCFCFCu, codes, low.twos);
    return choose(0xFEFEFEFEu, codes, low.ones >> 7);
}
