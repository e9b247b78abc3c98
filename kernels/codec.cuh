// FP8 codes <-> FP32 on the device: round to nearest even, saturating, NaN to 0x7F, sign of zero kept.
// Mirror of src/format/codec.rs; tests compare both over every boundary. The only file with `#if __CUDA_ARCH__`.
#pragma once
#include "common.cuh"

// Code format, as the kernels receive it (src/gpu/kernels.rs).
constexpr u32 E4M3 = 0;
constexpr u32 E5M2 = 1;

#if __CUDA_ARCH__ >= 890
// Two codes, `lo` in the low byte.
__device__ __forceinline__ u32 encode_pair(u32 format, float lo, float hi) {
    u16 pair;
    if (format == E4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(hi), "f"(lo));
    }
    return pair;
}
#else
// GPUs before sm_89 have no conversion: the same rounding by integer arithmetic.
// Below the smallest normal number, adding a power of two whose ulp is the code step rounds in the FP32 adder.
__device__ __forceinline__ u32 encode_one(u32 format, float x) {
    const u32 mantissa = format == E4M3 ? 3 : 2;
    const u32 bias_gap = format == E4M3 ? 120 : 112;          // 127 - code bias
    const u32 largest = format == E4M3 ? 0x7E : 0x7B;
    const u32 max_bits = format == E4M3 ? 0x43E00000 : 0x47600000;
    const u32 normal_bits = format == E4M3 ? 0x3C800000 : 0x38800000;
    const u32 step_bits = format == E4M3 ? 0x46800000 : 0x43000000;
    const u32 all = __float_as_uint(x);
    const u32 sign = (all >> 24) & 0x80;
    u32 u = all & 0x7FFFFFFF;
    if (u > 0x7F800000) return 0x7F;
    if (u >= max_bits) return sign | largest;
    if (u < normal_bits) return sign | (__float_as_uint(__fadd_rn(__uint_as_float(u), __uint_as_float(step_bits))) - step_bits);
    const u32 drop = 23 - mantissa;
    u += (1u << (drop - 1)) - 1 + ((u >> drop) & 1);
    const u32 code = (u >> drop) - (bias_gap << mantissa);
    return sign | (code < largest ? code : largest);
}

__device__ __forceinline__ u32 encode_pair(u32 format, float lo, float hi) {
    return encode_one(format, lo) | (encode_one(format, hi) << 8);
}
#endif

// The value of one code. The bits of an E5M2 code are the upper byte of an FP16 number; an E4M3 code shifted into FP32
// place is short of its value by 2^120 (an exact product, subnormals included).
__device__ __forceinline__ float decode(u32 format, u32 code) {
    if (format == E5M2) return to_float(F16{(u16)(code << 8)});
    const u32 magnitude = code & 0x7F;
    if (magnitude == 0x7F) return __uint_as_float(0x7FC00000);
    return __uint_as_float(__float_as_uint(__fmul_rn(__uint_as_float(magnitude << 20), 0x1p120f)) | (code & 0x80) << 24);
}

// Eight codes, element 0 in the lowest byte.
__device__ __forceinline__ uint2 encode8(u32 format, const float (&v)[8]) {
    uint2 out;
    out.x = encode_pair(format, v[0], v[1]) | encode_pair(format, v[2], v[3]) << 16;
    out.y = encode_pair(format, v[4], v[5]) | encode_pair(format, v[6], v[7]) << 16;
    return out;
}
