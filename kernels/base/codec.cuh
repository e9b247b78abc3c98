// FP8 codes <-> FP32 on the device: round to nearest even, saturating, NaN to 0x7F, sign of zero kept.
// Mirror of src/format/codec.rs; tests compare both over every boundary.
#pragma once
#include "base/types.cuh"

// Code format, as the kernels receive it (src/gpu/kernels/fp8.rs). Quantizers branch on it once, around their whole
// body, so that neither format's code is in the other's way.
constexpr u32 E4M3 = 0;
constexpr u32 E5M2 = 1;
constexpr u32 E2M1 = 2;

#if __CUDA_ARCH__ >= 890
// Two codes, `lo` in the low byte.
template <u32 FORMAT> __device__ __forceinline__ u32 encode_pair(float lo, float hi) {
    u16 pair;
    if constexpr (FORMAT == E4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
    }
    return pair;
}
#else
// GPUs before sm_89 have no conversion: the same rounding by integer arithmetic.
// Below the smallest normal number, adding a power of two whose ulp is the code step rounds in the FP32 adder.
template <u32 FORMAT> __device__ __forceinline__ u32 encode_one(float x) {
    constexpr u32 mantissa = FORMAT == E4M3 ? 3 : 2;
    constexpr u32 bias_gap = FORMAT == E4M3 ? 120 : 112;          // 127 - code bias
    constexpr u32 largest = FORMAT == E4M3 ? 0x7E : 0x7B;
    constexpr u32 max_bits = FORMAT == E4M3 ? 0x43E00000 : 0x47600000;
    constexpr u32 normal_bits = FORMAT == E4M3 ? 0x3C800000 : 0x38800000;
    constexpr u32 step_bits = FORMAT == E4M3 ? 0x46800000 : 0x43000000;
    const u32 all = __float_as_uint(x);
    const u32 sign = (all >> 24) & 0x80;
    u32 u = all & 0x7FFFFFFF;
    if (u > 0x7F800000) return 0x7F;
    if (u >= max_bits) return sign | largest;
    if (u < normal_bits) return sign | (__float_as_uint(__fadd_rn(__uint_as_float(u), __uint_as_float(step_bits))) - step_bits);
    constexpr u32 drop = 23 - mantissa;
    u += (1u << (drop - 1)) - 1 + ((u >> drop) & 1);
    const u32 code = (u >> drop) - (bias_gap << mantissa);
    return sign | (code < largest ? code : largest);
}

template <u32 FORMAT> __device__ __forceinline__ u32 encode_pair(float lo, float hi) {
    return encode_one<FORMAT>(lo) | (encode_one<FORMAT>(hi) << 8);
}
#endif

// Two values from two codes in the low half of `pair`. An E5M2 code is the upper byte of an FP16 number.
#if __CUDA_ARCH__ >= 890
__device__ __forceinline__ void decode_pair(u32 format, u32 pair, float& lo, float& hi) {
    u32 halves;
    if (format == E4M3) {
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)pair));
    } else {
        halves = (pair & 0xFF) << 8 | (pair & 0xFF00) << 16;
    }
    lo = to_float(F16{(u16)halves});
    hi = to_float(F16{(u16)(halves >> 16)});
}
#else
// An E4M3 code shifted into FP32 place is short of its value by 2^120 (an exact product, subnormals included).
__device__ __forceinline__ float decode_one(u32 format, u32 code) {
    if (format == E5M2) return to_float(F16{(u16)(code << 8)});
    const u32 magnitude = code & 0x7F;
    if (magnitude == 0x7F) return __uint_as_float(0x7FC00000);
    return __uint_as_float(__float_as_uint(__fmul_rn(__uint_as_float(magnitude << 20), 0x1p120f)) | (code & 0x80) << 24);
}

__device__ __forceinline__ void decode_pair(u32 format, u32 pair, float& lo, float& hi) {
    lo = decode_one(format, pair & 0xFF);
    hi = decode_one(format, pair >> 8 & 0xFF);
}
#endif

// The values of eight codes, element 0 in the lowest byte.
__device__ __forceinline__ void decode8(u32 format, uint2 codes, float (&v)[8]) {
    decode_pair(format, codes.x & 0xFFFF, v[0], v[1]);
    decode_pair(format, codes.x >> 16, v[2], v[3]);
    decode_pair(format, codes.y & 0xFFFF, v[4], v[5]);
    decode_pair(format, codes.y >> 16, v[6], v[7]);
}

// Eight codes, element 0 in the lowest byte.
template <u32 FORMAT> __device__ __forceinline__ uint2 encode8(const float (&v)[8]) {
    uint2 out;
    out.x = encode_pair<FORMAT>(v[0], v[1]) | encode_pair<FORMAT>(v[2], v[3]) << 16;
    out.y = encode_pair<FORMAT>(v[4], v[5]) | encode_pair<FORMAT>(v[6], v[7]) << 16;
    return out;
}

// The larger of each of two unsigned 16-bit numbers.
__device__ __forceinline__ u32 max_u16x2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 900
    u32 m;
    asm("max.u16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
#else
    return max(a & 0xFFFF, b & 0xFFFF) | max(a >> 16, b >> 16) << 16;
#endif
}

// Patterns of 16-bit numbers order like the magnitudes. NaN's are above infinity's.
template <class T> constexpr u32 INFINITY16 = 0x7F80;
template <> constexpr u32 INFINITY16<F16> = 0x7C00;
// Of two magnitudes the larger, and its number.
__device__ __forceinline__ u32 larger_pattern(u32 sizes) { return max(sizes >> 16, sizes & 0xFFFF); }
template <class T> __device__ __forceinline__ float larger_half(u32 sizes) { return to_float(T{(u16)larger_pattern(sizes)}); }
