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

// Four codes in bytes 1 and 3, from their magnitudes (`bytes4`) and signs (`signs4`).
__device__ __forceinline__ u32 join4(u32 w, u32 signs) {
    // * 136 moves code << 1 of even bytes to the low half of the byte above, of odd bytes to the high half of their own; * 17
    // does the same to the sign bits. All sums are of disjoint bits.
    return w * 136 + (signs & 0x80808080u) * 17;
}

// Eight codes, element 0 in the lowest four bits, from two words of `join4`.
__device__ __forceinline__ u32 join8(u32 n0, u32 n1) { return __byte_perm(n0, n1, 0x7531); }

// What data are multiplied by for `encode8_e2m1`, for a factor that is a power of two or NaN. A power of two loses nothing but
// below FP32's normal numbers, where codes are 0, and beyond its largest, where they are 6.
__device__ __forceinline__ float e2m1_factor(float factor) {
#ifdef HARDWARE_E2M1
    return factor;
#else
    return __fmul_rn(factor, CODE_UNIT);
#endif
}

// Eight codes of any numbers, each multiplied by `e2m1_factor` already, element 0 in the lowest four bits.
__device__ __forceinline__ u32 encode8_e2m1(const float (&v)[8]) {
#ifdef HARDWARE_E2M1
    return hardware_e2m1(v);
#else
    u32 n[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float y[4], q[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // The minimum makes +6 of a NaN; its sign goes with it.
            y[i] = fmaxf(fminf(v[4 * k + i], 6.0f * CODE_UNIT), -6.0f * CODE_UNIT);
            q[i] = round_scaled(y[i]);
        }
        n[k] = join4(bytes4(q), top_bytes(__float_as_uint(y[0]), __float_as_uint(y[1]), __float_as_uint(y[2]), __float_as_uint(y[3])));
    }
    return join8(n[0], n[1]);
#endif
}

// The same of numbers that `e2m1_factor` made less than 7 * 2^-14 in size, without NaN.
__device__ __forceinline__ u32 encode8_e2m1_bounded(const float (&v)[8]) {
#ifdef HARDWARE_E2M1
    return hardware_e2m1(v);
#else
    u32 n[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float* y = v + 4 * k;
        const float q[4] = {round_scaled(y[0]), round_scaled(y[1]), round_scaled(y[2]), round_scaled(y[3])};
        n[k] = join4(bytes4(q), top_bytes(__float_as_uint(y[0]), __float_as_uint(y[1]), __float_as_uint(y[2]), __float_as_uint(y[3])));
    }
    return join8(n[0], n[1]);
#endif
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
