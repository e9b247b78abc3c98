// E2M1 codes <-> FP32 on the device: nearest even, saturating, NaN to +6 (E2M1 has none), sign of zero kept.
// Mirror of src/format/codec.rs; tests compare both over every boundary.
#pragma once
#include "base/codec.cuh"

// E2M1 conversion exists on these GPUs, in code compiled for exactly one of them.
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM101_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || \
    defined(__CUDA_ARCH_FEAT_SM110_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define HARDWARE_E2M1
// Eight E2M1 codes, element 0 in the lowest four bits: nearest even, saturating, NaN to +6, sign of zero kept.
__device__ __forceinline__ u32 hardware_e2m1(const float* v) {
    u32 codes;
    asm("{\n\t.reg .b8 a, b, c, d;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 a, %2, %1;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 b, %4, %3;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 c, %6, %5;\n\t"
        "cvt.rn.satfinite.e2m1x2.f32 d, %8, %7;\n\t"
        "mov.b32 %0, {a, b, c, d};\n\t}"
        : "=r"(codes)
        : "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "f"(v[4]), "f"(v[5]), "f"(v[6]), "f"(v[7]));
    return codes;
}
#endif

// Code 0 to 15: nearest even, saturating, NaN to +6, sign of zero kept.
__device__ __forceinline__ u32 encode_e2m1(float x) {
    const float a = fabsf(x);
    if (!(a >= 0.0f)) return 7;
    const u32 code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return code | (__float_as_uint(x) >> 28 & 8);
}

// The magnitude of a code: 0.5 * (0, 1, 2, 3, 4, 6, 8, 12).
__device__ __forceinline__ float e2m1_magnitude(u32 code) {
    return __fmul_rn(0.5f, (float)(0xC8643210u >> (code & 7) * 4 & 15));
}

// Four magnitudes, each an E2M1 number times 2^-14, as four bytes code << 1: E5M2 has E2M1's numbers there, one mantissa bit
// wider, its smallest normal number being 2^-14 as E2M1's is 1.
__device__ __forceinline__ u32 bytes4(const float (&q)[4]) {
    return encode_pair<E5M2>(q[0], q[1]) | encode_pair<E5M2>(q[2], q[3]) << 16;
}

// |y| below 7 times 2^-14, rounded to the nearest E2M1 number times 2^-14, ties to even: adding 2^22 times the power of two
// not above |y| (at least 1, times 2^-14) leaves the FP32 adder one mantissa bit, or steps of 1/2 below 2.
__device__ __forceinline__ float round_scaled(float y) {
    const int power = __float_as_int(y) & 0x7F800000;
    const float magic = __int_as_float(max(power + (22 << 23), 0x43800000));
    return __fsub_rn(__fadd_rn(fabsf(y), magic), magic);
}

constexpr float CODE_UNIT = 6.103515625e-5f;  // 2^-14

// The top bytes of four words.
__device__ __forceinline__ u32 top_bytes(u32 a, u32 b, u32 c, u32 d) { return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410); }

// The sign bits of elements 4k .. 4k + 3, in bit 7 of bytes 0 .. 3; other bits are junk.
template <class T> __device__ __forceinline__ u32 signs4(const Vec8<T>& v, int k) {
    if constexpr (sizeof(T) == 4) {
        const uint4 q = v.q[k];
        return top_bytes(q.x, q.y, q.z, q.w);
    } else {
        const uint4 q = v.q[0];
        return k == 0 ? __byte_perm(q.x, q.y, 0x7531) : __byte_perm(q.z, q.w, 0x7531);
    }
}

// Four codes in bytes 1 and 3 each come from their magnitudes (`bytes4`) times 136, which moves code << 1 of even bytes to the low half of the byte
// above, of odd bytes to the high half of their own, and their signs (`signs4`) times 17, which does the same to the sign bits: sums of
// disjoint bits.

// Eight codes, element 0 in the lowest four bits, from two such words.
__device__ __forceinline__ u32 join8(u32 n0, u32 n1) { return __byte_perm(n0, n1, 0x7531); }

// The place of |y| among E2M1's eight magnitudes, plus FIRST_PLACE, of patterns that order like the numbers. Magnitudes are 1/2 apart below 2, 1 apart from there, 2 from 4 on, and so are FP32 numbers below 2^23, from
// there, and 2^23 more than half of them: |y| + 2^23 - 2 is rounded as up to 4, ties to even, by the FP32 adder, |y| / 2 + 2^23 as from 4 on (its product is exact), and the place is the lesser. NaN's is above them all.
constexpr u32 FIRST_PLACE = 0x4AFFFFFCu;  // the pattern of 2^23 - 2
__device__ __forceinline__ u32 e2m1_place(float y) {
    const float a = fabsf(y);
    return min(__float_as_uint(__fadd_rn(a, 8388606.0f)), __float_as_uint(__fmaf_rn(a, 0.5f, 8388608.0f)));
}

// The signs of elements 4k .. 4k + 3, as those of a vector.
__device__ __forceinline__ u32 signs4(const float (&v)[8], int k) {
    return top_bytes(__float_as_uint(v[4 * k]), __float_as_uint(v[4 * k + 1]), __float_as_uint(v[4 * k + 2]), __float_as_uint(v[4 * k + 3]));
}

// Eight signs in the places of those of codes, from `signs4` of the first four and of the others.
__device__ __forceinline__ u32 signs8(u32 first, u32 second) {
    // * 17 moves the sign bits of even bytes to the low half of the byte above, those of odd bytes stay.
    return join8((first & 0x80808080u) * 17, (second & 0x80808080u) * 17);
}

// The same of any |y|, or NaN.
template <bool BOUNDED> __device__ __forceinline__ u32 e2m1_place_in(float y) { return BOUNDED ? e2m1_place(y) : min(e2m1_place(y), FIRST_PLACE + 7); }

// Eight codes, element 0 in the lowest four bits; `signs` are `signs8` of the same numbers. BOUNDED: none is 7 or
// more in size, and none is NaN.
template <bool BOUNDED> __device__ __forceinline__ u32 encode8_e2m1(const float* y, u32 signs) {
#ifdef HARDWARE_E2M1
    return hardware_e2m1(y);
#else
    // Sums instead of shifts.
    const u32 a = e2m1_place_in<BOUNDED>(y[0]) + e2m1_place_in<BOUNDED>(y[1]) * 16;
    const u32 b = e2m1_place_in<BOUNDED>(y[2]) + e2m1_place_in<BOUNDED>(y[3]) * 16;
    const u32 c = e2m1_place_in<BOUNDED>(y[4]) + e2m1_place_in<BOUNDED>(y[5]) * 16;
    const u32 d = e2m1_place_in<BOUNDED>(y[6]) + e2m1_place_in<BOUNDED>(y[7]) * 16;
    return a + b * 256 + (c + d * 256) * 65536 + signs - FIRST_PLACE * 0x11111111u;
#endif
}

// The same of numbers that are not negative, whose signs are apart, where those of codes are.
template <bool BOUNDED> __device__ __forceinline__ u32 encode8_e2m1_sizes(const float (&y)[8], u32 signs) {
#ifdef HARDWARE_E2M1
    return hardware_e2m1(y) | signs;
#else
    return encode8_e2m1<BOUNDED>(y, signs);
#endif
}

// The same of any products: that of a NaN has no sign.
__device__ __forceinline__ u32 encode8_e2m1(const float (&y)[8]) {
    return encode8_e2m1<false>(y, signs8(signs4(y, 0), signs4(y, 1)));
}

#if __CUDA_ARCH__ >= 900 && !defined(HARDWARE_E2M1)
#define E2M1_BY_POWER
// A factor that is a power of two leaves numbers of 16 bits exact, so that their places are found in 16 bits, two at a time: half the instructions.

// What rounds them, as in `e2m1_place`: the power of two from which numbers are 1 apart, and 2 less.
template <class T> constexpr u32 from_four16 = 0x43004300u;  // 2^7
template <> constexpr u32 from_four16<F16> = 0x64006400u;    // 2^10
template <class T> constexpr u32 up_to_four16 = from_four16<T> - 0x00040004u;
template <class T> constexpr u32 octave16 = 0x00800080u;   // a factor of two
template <> constexpr u32 octave16<F16> = 0x04000400u;
// Both halves: fl(a b + c).
template <class T> __device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 d;
    if constexpr (octave16<T> == 0x00800080u) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ u32 min_u16x2(u32 a, u32 b) {
    u32 m;
    asm("min.u16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
}
// Whether a power of two and its half are normal numbers of T.
template <class T> __device__ __forceinline__ bool has_power(float power) {
    const u32 bits = __float_as_uint(power);
    return octave16<T> == 0x00800080u ? bits - 0x01000000u <= 0x7E000000u : bits - 0x39000000u <= 0x0E000000u;
}
// It, twice.
template <class T> __device__ __forceinline__ u32 power16(float power) {
    const u32 bits = __float_as_uint(power);
    if constexpr (octave16<T> == 0x00800080u) return __byte_perm(bits, 0, 0x3232);
    const u32 half = (bits >> 13) - 0x1C000u;
    return half | half << 16;
}
// Places of two numbers times a `power16`, in the lowest bits of both halves: as in `e2m1_place`, so that bit 2 is inverted; bits above are junk. BOUNDED: none comes to 7 or more. None is NaN.
// `sizes` is what masks signs off: SIZES16, or the same where the compiler does not see it.
constexpr u32 SIZES16 = 0x7FFF7FFFu;
template <class T, bool BOUNDED> __device__ __forceinline__ u32 places_by_power(u32 x, u32 power, u32 sizes) {
    const u32 a = x & sizes;
    const u32 place = min_u16x2(fma2<T>(a, power, up_to_four16<T>), fma2<T>(a, power - octave16<T>, from_four16<T>));
    return BOUNDED ? place : min_u16x2(place, from_four16<T> + 0x00030003u);
}
// Four codes but for that bit from such places and the signs, in the highest bits, of as many bytes: 0 and 1 in byte 1, 2 and 3 in byte 3.
__device__ __forceinline__ u32 four_by_power(u32 places, u32 signs) {
    // Codes are in the upper halves of bytes; * 17 puts 0 below 1 and 2 below 3.
    return ((places * 16 & 0x70707070u) | (signs & 0x80808080u)) * 17;
}
constexpr u32 PLACE_BITS = 0x44444444u;  // the inverted ones

// Eight codes of numbers times a `power16`, of which none is NaN, and where they are BOUNDED none comes to 7 or more.
template <class T, bool BOUNDED = true> __device__ __forceinline__ u32 encode8_e2m1_by_power(const uint4& x, u32 power, u32 sizes = SIZES16) {
    u32 n[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const u32 first = word(x, 2 * k), second = word(x, 2 * k + 1);
        const u32 p = places_by_power<T, BOUNDED>(first, power, sizes), q = places_by_power<T, BOUNDED>(second, power, sizes);
        n[k] = four_by_power(__byte_perm(p, q, 0x6420), __byte_perm(first, second, 0x7531));
    }
    return join8(n[0], n[1]) ^ PLACE_BITS;
}

// The same of two neighbouring columns, each of eight rows times a power of its own: x are both columns' numbers.
template <class T> __device__ __forceinline__ uint2 encode_columns_e2m1_by_power(const u32 (&x)[8], u32 powers, u32 sizes) {
    u32 n[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u32 p = places_by_power<T, false>(x[2 * k], powers, sizes), q = places_by_power<T, false>(x[2 * k + 1], powers, sizes);
        n[k] = four_by_power(__byte_perm(p, q, 0x6240), __byte_perm(x[2 * k], x[2 * k + 1], 0x7351));
    }
    const u32 upper = __byte_perm(n[0], n[1], 0x7351), lower = __byte_perm(n[2], n[3], 0x7351);
    return {__byte_perm(upper, lower, 0x5410) ^ PLACE_BITS, __byte_perm(upper, lower, 0x7632) ^ PLACE_BITS};
}
#endif

// Bytes for the magnitudes of four codes, the lowest sixteen bits of `codes`: byte m of `table`, its lower word first, for magnitude m.
__device__ __forceinline__ u32 bytes_of_e2m1(u32 codes, uint2 table) {
    // The selector of a byte permutation is four nibbles: three bits choose one of eight bytes, the fourth asks for its sign instead.
    return __byte_perm(table.x, table.y, codes & 0x7777);
}

// The signs of these codes, in bit 7 of bytes.
__device__ __forceinline__ u32 signs_of_e2m1(u32 codes) {
    // Those of even nibbles, moved up, and of odd ones.
    u32 signs;
    asm("prmt.b32 %0, %1, %2, 0xD9C8;" : "=r"(signs) : "r"(codes << 4), "r"(codes));
    return signs & 0x80808080u;
}

// The E4M3 codes of these codes: every number of E2M1 is one of E4M3. `shift`: they are multiplied by two to that power, -5 to 6.
__device__ __forceinline__ u32 e4m3_of_e2m1(u32 codes, int shift = 0) {
    const u32 eights = (u32)shift * 8;
    return bytes_of_e2m1(codes, {0x3C383000u + eights * 0x01010100u, 0x4C484440u + eights * 0x01010101u}) | signs_of_e2m1(codes);
}

// The magnitudes of eight codes, 2^14 too small: a code's bits, where E5M2 has its lowest three in the upper byte of an F16 number. Two at a time, of codes that are four apart.
__device__ __forceinline__ void e2m1_sizes(u32 codes, float (&v)[8]) {
    const u32 pairs[4] = {codes << 9, codes << 5, codes << 1, codes >> 3};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u32 halves = pairs[k] & 0x0E000E00u;
        v[k] = to_float(F16{(u16)halves});
        v[k + 4] = to_float(F16{(u16)(halves >> 16)});
    }
}

// The values of eight codes, each times f: fl(code * f). A code's bits, three places up, are an E5M2 number and so the upper byte
// of an F16 one, 2^14 too small, which f makes up for unless it is huge. The two products put both halves of a byte in place,
// where the masks find them.
__device__ __forceinline__ void decode_word(u32 codes, float f, float (&v)[8]) {
    const bool huge = f > 1e30f;
    const float factor = huge ? f : __fmul_rn(f, 16384.0f);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u32 byte = __byte_perm(codes, 0, 0x4440 | k);
        const u32 halves = (byte * 0x00200200u & 0x0E000E00u) | (byte * 0x01001000u & 0x80008000u);
        v[2 * k] = to_float(F16{(u16)halves});
        v[2 * k + 1] = to_float(F16{(u16)(halves >> 16)});
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (huge) v[k] = __fmul_rn(v[k], 16384.0f);
        v[k] = __fmul_rn(v[k], factor);
    }
}
