// Derivatives of activations in FP32. Mirror of `ActivationGradient` in src/epilogue.rs, operation by operation.
#pragma once
#include "base/activation.cuh"

// In the order of ActivationGradient.
constexpr u32 GRADIENT_RELU = 0;
constexpr u32 GRADIENT_GELU = 1;
constexpr u32 GRADIENT_SILU = 2;
constexpr u32 GRADIENT_QUICK_GELU = 3;
constexpr u32 GRADIENT_SQUARED_RELU = 4;

// s (1 + w (1 - s)) of s = sigmoid(z). Where s is 0 or 1 that is s to the last bit, and w may be infinite; of a NaN `sigmoids` may give
// either, so that it is asked for first.
__device__ __forceinline__ float gated_slope(float z, float w, float s) {
    if (z != z) return z;
    if (s == 0.0f || s == 1.0f) return s;
    return __fmul_rn(s, __fmaf_rn(w, __fsub_rn(1.0f, s), 1.0f));
}

// The derivatives at eight numbers, in their place. `of` is the same for all threads.
__device__ __forceinline__ void activation_slopes(u32 of, float (&x)[8]) {
    if (of == GRADIENT_RELU || of == GRADIENT_SQUARED_RELU) {
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = x[i] > 0.0f ? (of == GRADIENT_RELU ? 1.0f : __fmul_rn(2.0f, x[i])) : 0.0f;
        return;
    }
    float z[8], s[8];
#pragma unroll
    for (int i = 0; i < 8; i++) z[i] = of == GRADIENT_GELU ? gelu_tanh_argument(x[i]) : of == GRADIENT_QUICK_GELU ? __fmul_rn(1.702f, x[i]) : x[i];
    sigmoids(z, s);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float w = z[i];
        if (of == GRADIENT_GELU) {
            const float cube = __fmul_rn(__fmul_rn(x[i], x[i]), x[i]);
            w = __fmul_rn(2.0f, __fmul_rn(0.7978846f, __fadd_rn(x[i], __fmul_rn(0.134145f, cube))));
        }
        x[i] = gated_slope(z[i], w, s[i]);
    }
}

// The derivative at one.
__device__ __forceinline__ float activation_slope(u32 of, float x) {
    if (of == GRADIENT_RELU) return x > 0.0f ? 1.0f : 0.0f;
    if (of == GRADIENT_SQUARED_RELU) return x > 0.0f ? __fmul_rn(2.0f, x) : 0.0f;
    if (of == GRADIENT_GELU) {
        const float cube = __fmul_rn(__fmul_rn(x, x), x), z = gelu_tanh_argument(x);
        return gated_slope(z, __fmul_rn(2.0f, __fmul_rn(0.7978846f, __fadd_rn(x, __fmul_rn(0.134145f, cube)))), sigmoid(z));
    }
    const float z = of == GRADIENT_QUICK_GELU ? __fmul_rn(1.702f, x) : x;
    return gated_slope(z, z, sigmoid(z));
}
