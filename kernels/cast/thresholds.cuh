// E2M1 codes of E4M3 codes whose scale they share, without a product for each.
#pragma once
#include "cast/cast.cuh"

// What becomes of a code's magnitude c, y = fl(fl(c s) e), grows with c, and so do a code's lowest seven bits. The place of y among E2M1's eight
// magnitudes is then the number of thresholds that the code has reached: a threshold is the first code whose y is rounded to a magnitude or
// above it. There are 127 magnitudes of E4M3, so that all seven are bytes, and four codes are compared at once.

// Scales under which no step leaves the normal range, and 0, under which nothing reaches a threshold. Negative scales, -0 among them, move signs: not here.
__device__ __forceinline__ bool has_thresholds(float s) { return (s > 1e-30f && s < 1e27f) || __float_as_uint(s) == 0; }
// Largest codes of groups whose thresholds of places 5 to 7 lie eight and sixteen codes above those of places 3 and 4: of twice a code y is twice its y where it and the code
// before it have an exponent. T3 is 1.25 / 6 of the largest code's value or more, so that 0.09375 is enough; of zeros nothing reaches any. What is above 126 no code reaches.
constexpr u32 LEAST_OF_LADDER = 0x1C;
__device__ __forceinline__ bool has_ladder(u32 largest) { return largest - 1 >= LEAST_OF_LADDER - 1; }

// Four E4M3 codes, the first in the lowest byte.
__device__ __forceinline__ u32 encode_four(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
    u32 codes;
    asm("{\n\t.reg .b16 lo, hi;\n\tcvt.rn.satfinite.e4m3x2.f32 lo, %2, %1;\n\tcvt.rn.satfinite.e4m3x2.f32 hi, %4, %3;\n\tmov.b32 %0, {lo, hi};\n\t}" : "=r"(codes) : "f"(a), "f"(b), "f"(c), "f"(d));
    return codes;
#else
    return encode_pair<E4M3>(a, b) | encode_pair<E4M3>(c, d) << 16;
#endif
}
// The sign of the first number in all bits of the lowest byte, that of the other in the next.
__device__ __forceinline__ u32 two_signs(float a, float b) {
    u32 signs;
    asm("prmt.b32 %0, %1, %2, 0xFBFB;" : "=r"(signs) : "r"(__float_as_uint(a)), "r"(__float_as_uint(b)));
    return signs;
}

// 128 - T for the thresholds T of places 1 to 4, in bytes. The nearest code r to (1/4, 3/4, 5/4, 7/4) / (s e), `inverse` being about 1 / (s e), is the threshold if its y is far
// enough, else the next code is: neighbours of r are at least 1/32 off, a thousand times what the quotient is. Quotients above 448 become 448, and if that does not reach, 127: no
// code does.
__device__ __forceinline__ u32 below_thresholds(float s, float e, float inverse) {
    const float from[4] = {0.25f, 0.75f, 1.25f, 1.75f};
    // Numbers that y must be above: ties go to the even place, and so to every other.
    const float above[4] = {0.25f, 0x1.7FFFFEp-1f, 1.25f, 0x1.BFFFFEp0f};
    const u32 nearest = encode_four(__fmul_rn(from[0], inverse), __fmul_rn(from[1], inverse), __fmul_rn(from[2], inverse), __fmul_rn(from[3], inverse));
    float c[4], left[4];
    decode_pair(E4M3, nearest & 0xFFFF, c[0], c[1]);
    decode_pair(E4M3, nearest >> 16, c[2], c[3]);
#pragma unroll
    for (int j = 0; j < 4; j++) left[j] = __fsub_rn(above[j], __fmul_rn(__fmul_rn(c[j], s), e));  // is negative where y reaches
    return (__byte_perm(two_signs(left[0], left[1]), two_signs(left[2], left[3]), 0x5410) & 0x01010101u) + 0x7F7F7F7Fu - nearest;
}

// A byte in all four places.
template <u32 BYTE> __device__ __forceinline__ u32 four_of(u32 word) { return __byte_perm(word, 0, BYTE * 0x1111); }

// Places of four magnitudes c in bytes, each bit of the places in the highest bit of bytes; what lies below is junk. Of c + 128 - T the highest bit says whether T has been
// reached, and from T3 and T4 on bit 3 whether that was an odd number of octaves ago: c is less than three of them above T3, two above T4. Sums and shifts to the left are
// products by numbers that the compiler does not see: logic, permutations and shifts share a pipe of half the rate, which these kernels fill.
struct Ladder {
    u32 from[4];
    u32 one, sixteen;
    __device__ __forceinline__ Ladder(u32 below, u32 one, u32 sixteen) : one(one), sixteen(sixteen) {
        from[0] = four_of<0>(below), from[1] = four_of<1>(below), from[2] = four_of<2>(below), from[3] = four_of<3>(below);
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
