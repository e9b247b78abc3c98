// Derivatives of activations in FP32. Mirror of `ActivationGradient` in src/epilogue.rs, operation by operation.
#pragma once
#include "base/activation.cuh"

// In the order of ActivationGradient.
constexpr u32 GRADIENT_RELU = 0;
constexpr u32 GRADIENT_GELU = 1;
constexpr u32 GRADIENT_SILU = 2;
constexpr u32 GRADIENT_QUICK_GELU = 3;
constexpr u32 GRADIENT_SQUARED_RELU = 4;

// s (1 + w e s) of e = exp(-z) and s = fl(1 / fl(1 + e)). Where s or e is 0 that is s, and w may be infinite.
__device__ __forceinline__ float gated_slope(float z, float w) {
    const float e = exp_ieee(-z), s = __frcp_rn(__fadd_rn(1.0f, e));
    return s == 0.0f || e == 0.0f ? s : __fmul_rn(s, __fmaf_rn(w, __fmul_rn(e, s), 1.0f));
}

// The same bits for less where |z| is at most NEAR, as `sigmoid_near` has them: e and s are normal numbers, neither is 0. A NaN gives one.
__device__ __forceinline__ float gated_slope_near(float z, float w) {
    float shifted, n, inverse;
    const float p = exp_parts(-z, shifted, n);
    const float e = __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23)), sum = __fadd_rn(1.0f, e);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));
    const float s = __fmaf_rn(inverse, __fmaf_rn(-sum, inverse, 1.0f), inverse);
    return z != z ? z : __fmul_rn(s, __fmaf_rn(w, __fmul_rn(e, s), 1.0f));
}

// Those of which one is far, rare enough to be called.
struct FarSlopes {
    float z[8], w[8];
};
__device__ __noinline__ void gated_slopes_far(FarSlopes* far) {
#pragma unroll 1
    for (int i = 0; i < 8; i++) far->z[i] = gated_slope(far->z[i], far->w[i]);
}

// The derivatives at eight numbers, in their place. `of` is the same for all threads.
__device__ __forceinline__ void activation_slopes(u32 of, float (&x)[8]) {
    if (of == GRADIENT_RELU || of == GRADIENT_SQUARED_RELU) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = x[i] > 0.0f ? (of == GRADIENT_RELU ? 1.0f : __fmul_rn(2.0f, x[i])) : 0.0f;
        return;
    }
    float z[8], w[8], largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        z[i] = of == GRADIENT_GELU ? gelu_tanh_argument(x[i]) : of == GRADIENT_QUICK_GELU ? __fmul_rn(1.702f, x[i]) : x[i];
        w[i] = z[i];
        if (of == GRADIENT_GELU) {
            const float cube = __fmul_rn(__fmul_rn(x[i], x[i]), x[i]);
            w[i] = __fmul_rn(2.0f, __fmul_rn(0.7978846f, __fadd_rn(x[i], __fmul_rn(0.134145f, cube))));
        }
        largest = fmaxf(largest, fabsf(z[i]));
    }
    if (largest <= NEAR) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = gated_slope_near(z[i], w[i]);
    } else {
        FarSlopes far;
#pragma unroll
        for (int i = 0; i < 8; i++) far.z[i] = z[i], far.w[i] = w[i];
        gated_slopes_far(&far);
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = far.z[i];
    }
}

// The derivative at one.
__device__ __forceinline__ float activation_slope(u32 of, float x) {
    if (of == GRADIENT_RELU) return x > 0.0f ? 1.0f : 0.0f;
    if (of == GRADIENT_SQUARED_RELU) return x > 0.0f ? __fmul_rn(2.0f, x) : 0.0f;
    if (of == GRADIENT_GELU) {
        const float cube = __fmul_rn(__fmul_rn(x, x), x), z = gelu_tanh_argument(x);
        return gated_slope(z, __fmul_rn(2.0f, __fmul_rn(0.7978846f, __fadd_rn(x, __fmul_rn(0.134145f, cube)))));
    }
    const float z = of == GRADIENT_QUICK_GELU ? __fmul_rn(1.702f, x) : x;
    return gated_slope(z, z);
}
