// E2M1 codes of E4M3 codes whose scale they share, without a product for each.
#pragma once
#include "cast/cast.cuh"

// What becomes of a code's magnitude c, y = fl(fl(c s) e), grows with c, and so do a code's lowest seven bits. The place of y among E2M1's eight
// magnitudes is then the number of thresholds that the code has reached: a threshold is the first code whose y is rounded to a magnitude or
// above it. There are 127 magnitudes of E4M3, so that all seven are bytes, and four codes are compared at once.
struct Thresholds {
    u32 low, high;  // bytes: 128 less the thresholds of the places 1 to 4, and 5 to 7
};

// Where what `thresholds` does holds: a scale that is zero, or no step leaves the normal range. Negative scales, -0 among them, move signs: not here.
__device__ __forceinline__ bool has_thresholds(float s, float e) {
    const float p = __fmul_rn(s, e);
    return __float_as_uint(s) == 0 || (s > 1e-30f && s < 1e30f && p > 1e-30f && p < 1e30f);
}

// Thresholds I and I + 1, of places 1 to 7, in the lowest bytes. The nearest code r to (1/4, 3/4, ...) / (s e), `inverse` being 1 / (s e), is the threshold if its y is far
// enough, else the next code is: neighbours of r are at least 1/32 off, a thousand times what the quotient is. Quotients above 448 become 448, and
// if that does not reach, 127: no code does.
template <int I> __device__ __forceinline__ u32 two_thresholds(float s, float e, float inverse) {
    const float from[8] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 5.0f};
    u32 pair = encode_pair<E4M3>(__fmul_rn(from[I - 1], inverse), __fmul_rn(from[I], inverse));
    float c[2];
    decode_pair(E4M3, pair, c[0], c[1]);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        // Ties go to the even place: to every other y must be above what lies half way.
        const u32 least = __float_as_uint(from[I - 1 + j]) + (j == 0);
        if (__float_as_uint(__fmul_rn(__fmul_rn(c[j], s), e)) < least) pair += 1u << 8 * j;
    }
    return pair;
}

__device__ __forceinline__ Thresholds thresholds(float s, float e) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fmul_rn(s, e)));
    const u32 low = two_thresholds<1>(s, e, inverse) | two_thresholds<3>(s, e, inverse) << 16, third = low >> 16 & 0xFF;
    // Of twice a code y is twice its y, so that T5, T6 and T7 are eight and sixteen codes above T3 and T4 where T3, and the code before it, has an
    // exponent and none of them is above 127.
    u32 high = __byte_perm(low, 0, 0x4232) + 0x00100808u;
    if (third - 9 > 0x6E - 9) high = two_thresholds<5>(s, e, inverse) | two_thresholds<7>(s, e, inverse) << 16;
    return {0x80808080u - low, 0x80808080u - (high & 0xFFFFFFu)};
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

// Four codes in bytes that are no lower than what the four bytes of `from` are 128 less of, in the highest bits. As a product by `one`, which is 1, where the compiler does not see it: logic,
// permutations and sums share a pipe of half the rate, which these kernels fill.
__device__ __forceinline__ u32 reached(u32 codes, u32 from, u32 one) { return codes * one + from; }

struct Steps {
    u32 from[8];  // of all places, each four times
    u32 one;
    __device__ __forceinline__ Steps(const Thresholds& t, u32 one)
        : from{0, four_of<0>(t.low), four_of<1>(t.low), four_of<2>(t.low), four_of<3>(t.low), four_of<0>(t.high), four_of<1>(t.high), four_of<2>(t.high)}, one(one) {}
};

// The places of four codes: bits 2 and 1 in all bits of bytes, bit 0 in their highest.
struct Places {
    u32 fours, twos, ones;
    __device__ __forceinline__ Places(u32 codes, const Steps& t) {
        const u32 c = codes & 0x7F7F7F7Fu;
        fours = fill_bytes(reached(c, t.from[4], t.one));
        twos = fill_bytes(reached(c, choose(fours, t.from[6], t.from[2]), t.one));
        ones = reached(c, choose(twos, choose(fours, t.from[7], t.from[3]), choose(fours, t.from[5], t.from[1])), t.one);
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
