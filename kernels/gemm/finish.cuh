// What follows the FP32 sums of a product whose kernel stores D itself. Mirror of src/epilogue.rs, operation by operation; compiled without
// contraction, so that a kernel which has the same sums gives the same bytes.
//
// The problem P of a kernel has: alpha, beta (0: D is not read; else D is FP32), bias (bias_type; null: none), activation, residual
// (residual_type, rows stride_residual apart; null: none), d (d_type, rows stride_d apart), and where OUTER says that scales of rows or whole
// matrices are still to be multiplied, scales_a, a_step, scales_b, b_step (null: none): elements from the scale of a row to the next, 0 for one number.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/activation.cuh"

// N neighbouring numbers of run-time type: BF16, F16, FP32. Only their own size aligns them.
template <u32 N> __device__ __forceinline__ void load_numbers(const void* p, u64 at, u32 type, float (&v)[N]) {
    static_assert(N == 1 || N == 4, "one number, or four");
    const char* from = (const char*)p + at * (type == 2 ? 4 : 2);
    if (N == 4 && (u64)from % (type == 2 ? 16 : 8) == 0) {
        if (type == 2) {
            const float4 four = *(const float4*)from;
            v[0] = four.x, v[N / 4] = four.y, v[N / 2] = four.z, v[N - 1] = four.w;
        } else {
            const uint2 four = *(const uint2*)from;
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                const u16 bits = (u16)((i < 2 ? four.x : four.y) >> (i % 2 * 16));
                v[i] = type == 0 ? to_float(Bf16{bits}) : to_float(F16{bits});
            }
        }
        return;
    }
#pragma unroll
    for (u32 i = 0; i < N; i++)
        v[i] = type == 0 ? to_float(((const Bf16*)from)[i]) : type == 1 ? to_float(((const F16*)from)[i]) : ((const float*)from)[i];
}

// To a place that is aligned to all N.
template <u32 N> __device__ __forceinline__ void store_numbers(void* p, u64 at, u32 type, const float (&v)[N]) {
    if (N == 4) {
        if (type == 2) *(float4*)((float*)p + at) = {v[0], v[N / 4], v[N / 2], v[N - 1]};
        else if (type == 0)
            *(uint2*)((Bf16*)p + at) = {pair_bits(from_float<Bf16>(v[0]), from_float<Bf16>(v[N / 4])),
                                        pair_bits(from_float<Bf16>(v[N / 2]), from_float<Bf16>(v[N - 1]))};
        else
            *(uint2*)((F16*)p + at) = {pair_bits(from_float<F16>(v[0]), from_float<F16>(v[N / 4])),
                                       pair_bits(from_float<F16>(v[N / 2]), from_float<F16>(v[N - 1]))};
    } else if (type == 2) {
        ((float*)p)[at] = v[0];
    } else if (type == 0) {
        ((Bf16*)p)[at] = from_float<Bf16>(v[0]);
    } else {
        ((F16*)p)[at] = from_float<F16>(v[0]);
    }
}

// What a sum becomes before its activation: alpha, scales, D's old value, bias. `bias_at`: the column's place in `bias`. PLAIN: there is neither of the last two.
template <bool OUTER, bool PLAIN = false, class P> __device__ __forceinline__ float finish_sum(const P& p, u32 row, u32 col, u32 bias_at, float sum) {
    float v = __fmul_rn(p.alpha, sum);
    // One after the other: the product of two outer scales may be out of range.
    if (OUTER && p.scales_a) v = __fmul_rn(v, p.scales_a[(u64)row * p.a_step]);
    if (OUTER && p.scales_b) v = __fmul_rn(v, p.scales_b[(u64)col * p.b_step]);
    if (PLAIN) return v;
    if (p.beta != 0.0f) v = __fadd_rn(__fmul_rn(p.beta, ((const float*)p.d)[row * p.stride_d + col]), v);
    if (p.bias) {
        float bias[1];
        load_numbers(p.bias, bias_at, p.bias_type, bias);
        v = __fadd_rn(v, bias[0]);
    }
    return v;
}

// Activations of N numbers, of which the tests are made together: the bits of `activate`.
template <u32 N> __device__ __forceinline__ void activate_each(u32 activation, float (&v)[N]) {
    if (activation == ACTIVATION_RELU) {
#pragma unroll
        for (u32 i = 0; i < N; i++) v[i] = v[i] < 0.0f ? 0.0f : v[i];
        return;
    }
    float x[N], largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        x[i] = activation == ACTIVATION_GELU ? gelu_tanh_argument(v[i]) : v[i];
        largest = fmaxf(largest, fabsf(x[i]));
    }
    if (largest <= NEAR) {
#pragma unroll
        for (u32 i = 0; i < N; i++) v[i] = __fmul_rn(v[i], sigmoid_near(x[i]));
    } else {
#pragma unroll
        for (u32 i = 0; i < N; i++) v[i] = __fmul_rn(v[i], sigmoid(x[i]));
    }
}

// What of N neighbouring elements of a row is stored: activation and residual.
template <u32 N, class P> __device__ __forceinline__ void finish(const P& p, const float (&residual)[N], float (&v)[N]) {
    if (p.activation) activate_each(p.activation, v);
    if (p.residual)
#pragma unroll
        for (u32 i = 0; i < N; i++) v[i] = __fadd_rn(v[i], residual[i]);
}

template <u32 N, class P> __device__ __forceinline__ void load_residual(const P& p, u32 row, u32 col, float (&residual)[N]) {
    if (p.residual) load_numbers(p.residual, row * p.stride_residual + col, p.residual_type, residual);
}
