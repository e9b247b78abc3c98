// E2M1 codes of E4M3 codes whose scale they share, without a product for each.
#pragma once
#include "cast/cast.cuh"

// What becomes of a code's magnitude c, y = fl(fl(c s) e), grows with c, and so do a code's lowest seven bits. The place of y among E2M1's eight
// magnitudes is then the number of thresholds that the code has reached: a threshold is the first code whose y is rounded to a magnitude or
// above it. There are 127 magnitudes of E4M3, so that all seven are bytes, and four codes are compared at once.

// Where what `two_thresholds` does holds: no step leaves the normal range. Negative scales move signs: not here.
__device__ __forceinline__ bool has_thresholds(float s, float e) {
    const float p = __fmul_rn(s, e);
    return s > 1e-30f && s < 1e30f && p > 1e-30f && p < 1e30f;
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

// Four thresholds in bytes, those of places 1 to 4, and whether the others are eight and sixteen codes above those of places 3 and 4: of twice a code y is twice its y, where it and
// the code before it have an exponent and none is above 127.
__device__ __forceinline__ bool first_thresholds(float s, float e, u32& four) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(__fmul_rn(s, e)));
    four = two_thresholds<1>(s, e, inverse) | two_thresholds<3>(s, e, inverse) << 16;
    return (four >> 16 & 0xFF) - 9 <= 0x6E - 9;
}

// A byte in all four places.
template <u32 BYTE> __device__ __forceinline__ u32 four_of(u32 word) { return __byte_perm(word, 0, BYTE * 0x1111); }

// Places of four magnitudes c in bytes, each bit of the places in the highest bit of bytes; what lies below is junk. Of c + 128 - T the highest bit says whether T has been
// reached, and from T3 and T4 on bit 3 whether that was an odd number of octaves ago: c is less than three of them above T3, two above T4. Sums and shifts to the left are
// products by numbers that the compiler does not see: logic, permutations and shifts share a pipe of half the rate, which these kernels fill.
struct Ladder {
    u32 from[4];
    u32 one, sixteen;
    __device__ __forceinline__ Ladder(u32 four, u32 one, u32 sixteen) : one(one), sixteen(sixteen) {
        const u32 low = 0x80808080u - four;
        from[0] = four_of<0>(low), from[1] = four_of<1>(low), from[2] = four_of<2>(low), from[3] = four_of<3>(low);
    }
};
struct PlaceBits {
    u32 fours, twos, ones;
    __device__ __forceinline__ PlaceBits(u32 c, const Ladder& l) {
        const u32 first = c * l.one + l.from[0], second = c * l.one + l.from[1], third = c * l.one + l.from[2];
        fours = c * l.one + l.from[3];
        // Whether an odd number of T2, T4 and T6 is reached; of all seven.
        twos = second ^ (fours & ~(fours * l.sixteen));
        ones = first ^ twos ^ (third & ~(third * l.sixteen));
    }
};
