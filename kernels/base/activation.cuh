// Activations in FP32. Mirror of src/epilogue.rs and src/reference/producers/activation.rs, operation by operation; compiled without
// contraction, so the bytes are equal.
#pragma once
#include "base/types.cuh"

// e^x = p * 2^n by IEEE operations alone: p, and n in the lowest bits of `shifted`. See src/epilogue.rs for the method and its error.
__device__ __forceinline__ float exp_parts(float x, float& shifted, float& n) {
    shifted = __fmaf_rn(x, 1.44269504f, 12582912.0f);
    n = __fsub_rn(shifted, 12582912.0f);
    float r = __fmaf_rn(n, -0.69314575f, x);
    r = __fmaf_rn(n, -1.4286068e-6f, r);
    float p = 1.3814541e-3f;
    p = __fmaf_rn(p, r, 8.368745e-3f);
    p = __fmaf_rn(p, r, 4.166839e-2f);
    p = __fmaf_rn(p, r, 0.16666521f);
    p = __fmaf_rn(p, r, 0.49999994f);
    p = __fmaf_rn(p, r, 1.0f);
    return __fmaf_rn(p, r, 1.0f);
}

__device__ __forceinline__ float exp_ieee(float x) {
    float shifted, n;
    const float p = exp_parts(x, shifted, n);
    const int e = (int)n, half = e >> 1;
    const float y = __fmul_rn(__fmul_rn(p, __uint_as_float((u32)(half + 127) << 23)), __uint_as_float((u32)(e - half + 127) << 23));
    return x > 89.0f ? __uint_as_float(0x7F800000u) : x < -104.0f ? 0.0f : y;
}

// fl(1 / fl(1 + e^-x)).
__device__ __forceinline__ float sigmoid(float x) { return __frcp_rn(__fadd_rn(1.0f, exp_ieee(-x))); }

// The same bits for less where |x| is at most NEAR; of a NaN anything. The power of e is a normal number, so that n is added to the
// exponent of p, and the sum's inverse is one: an approximation and one step of Newton's give it correctly rounded (what the compiler
// makes of __frcp_rn behind its tests; tests/gpu_producers.rs compares every BF16 and F16 number, and a million of FP32).
constexpr float NEAR = 80.0f;
__device__ __forceinline__ float sigmoid_near(float x) {
    float shifted, n, inverse;
    const float p = exp_parts(-x, shifted, n);
    const float sum = __fadd_rn(1.0f, __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(sum));
    return __fmaf_rn(inverse, __fmaf_rn(-sum, inverse, 1.0f), inverse);
}

// Those of which one is far, rare enough to be called: inlined eight times over they made up most of a kernel.
struct Far {
    float x[8], s[8];
};
__device__ __noinline__ void sigmoids_far(Far* far) {
#pragma unroll 1
    for (int i = 0; i < 8; i++) far->s[i] = sigmoid(far->x[i]);
}

// The sigmoids of eight numbers, of which the tests are made together; TIMES: times the numbers.
template <bool TIMES> __device__ __forceinline__ void sigmoids_of(const float (&x)[8], float (&to)[8]) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(x[i]));
    if (largest <= NEAR) {
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = TIMES ? __fmul_rn(x[i], sigmoid_near(x[i])) : sigmoid_near(x[i]);
    } else {
        Far far;
#pragma unroll
        for (int i = 0; i < 8; i++) far.x[i] = x[i];
        sigmoids_far(&far);
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = TIMES ? __fmul_rn(far.x[i], far.s[i]) : far.s[i];
    }
}
__device__ __forceinline__ void sigmoids(const float (&x)[8], float (&s)[8]) { sigmoids_of<false>(x, s); }
__device__ __forceinline__ void silus(float (&v)[8]) { sigmoids_of<true>(v, v); }

// GELU in its tanh form is v times the sigmoid of this: 2 u.
__device__ __forceinline__ float gelu_tanh_argument(float v) {
    const float cube = __fmul_rn(__fmul_rn(v, v), v);
    return __fmul_rn(2.0f, __fmul_rn(0.7978846f, __fadd_rn(v, __fmul_rn(0.044715f, cube))));
}

constexpr u32 ACTIVATION_RELU = 1;
constexpr u32 ACTIVATION_GELU = 2;
constexpr u32 ACTIVATION_SILU = 3;

__device__ __forceinline__ float activate(u32 activation, float v) {
    if (activation == ACTIVATION_RELU) return v < 0.0f ? 0.0f : v;
    if (activation == ACTIVATION_GELU) return __fmul_rn(v, sigmoid(gelu_tanh_argument(v)));
    if (activation == ACTIVATION_SILU) return __fmul_rn(v, sigmoid(v));
    return v;
}

// ((c0 x + c1) x + c2) x + ..., each step one fused multiply-add.
template <int N> __device__ __forceinline__ float horner(float x, const float (&c)[N]) {
    float p = c[0];
#pragma unroll
    for (int i = 1; i < N; i++) p = __fmaf_rn(p, x, c[i]);
    return p;
}

// v erfc(-v / sqrt 2) / 2. See src/reference/producers/activation.rs for the method and its error.
__device__ __forceinline__ float gelu_erf(float v) {
    // A NaN stays one in `a`, and is dropped from `rest`, where a zero keeps its sign.
    float a, rest;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(fabsf(v)), "f"(14.5f));
    asm("max.f32 %0, %1, %2;" : "=f"(rest) : "f"(v), "f"(-0.0f));
    const float s = __fmul_rn(a, a), shifted = __fmaf_rn(s, -0.7213475f, 12582912.0f), n = __fsub_rn(shifted, 12582912.0f);
    const float r = __fmaf_rn(n, 2.8572135e-6f, __fmaf_rn(a, a, __fmul_rn(n, 1.3862915f)));
    const float of_w[6] = {2.158522e-5f, -2.615233e-4f, 2.6042743e-3f, -2.083315e-2f, 0.124999985f, -0.5f};
    const float even[3] = {4.0157237e-3f, 0.1812168f, 0.5f}, odd[2] = {0.03995394f, 0.43556437f};
    const float even_below[3] = {0.100157104f, 1.1941097f, 1.0f}, odd_below[3] = {0.010065783f, 0.4641429f, 1.6690136f};
    const float w = __fmul_rn(r, horner(r, of_w)), numerator = __fmaf_rn(horner(s, odd), a, horner(s, even));
    const float denominator = __fmaf_rn(horner(s, odd_below), a, horner(s, even_below));
    // From 1 to 8192: as in `sigmoid_near` the inverse is correctly rounded.
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(denominator));
    inverse = __fmaf_rn(inverse, __fmaf_rn(-denominator, inverse, 1.0f), inverse);
    const float scaled = __uint_as_float(__float_as_uint(numerator) + (__float_as_uint(shifted) + 64 << 23));
    const float tail = __fmul_rn(a, __fmul_rn(inverse, scaled));
    return __fmaf_rn(__fmaf_rn(tail, w, tail), -5.421010862427522e-20f, rest);
}
