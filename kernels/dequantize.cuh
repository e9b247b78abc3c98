// y = round(fl(code * scale)): FP8 codes back to BF16, F16 or F32, for every order of scales.
#pragma once
#include "codec.cuh"
#include "layout.cuh"

// Eight values times an encode factor, as codes.
template <class T> __device__ __forceinline__ uint2 encode_scaled(u32 format, const Vec8<T>& v, float encode) {
    float f[8];
    unpack(v, f);
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = __fmul_rn(f[i], encode);
    return encode8(format, f);
}

template <u32 LAYOUT> __device__ __forceinline__ float scale_of(const float* scales, u32 rows, u32 cols, u64 row, u32 col) {
    if constexpr (LAYOUT == SCALAR) return scales[0];
    if constexpr (LAYOUT == OUTER) return scales[row];
    if constexpr (LAYOUT == VEC128) return scales[vec128_index(rows, row, col / 128)];
    return scales[blk128_index((cols + 127) / 128, row / 128, col / 128)];
}

// Each thread takes two vectors of eight codes, one block apart; grid.x covers a row, grid.y walks the rows.
template <class T, u32 LAYOUT>
__device__ __forceinline__ void dequantize(const u8* codes, const float* scales, u32 rows, u32 cols, u32 format, T* y, u64 y_stride, u32 aligned) {
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u64 col = ((u64)blockIdx.x * 2 + half) * blockDim.x * 8 + threadIdx.x * 8;
            if (col >= cols) continue;
            const uint2 c = *(const uint2*)(codes + row * cols + col);
            const float scale = scale_of<LAYOUT>(scales, rows, cols, row, (u32)col);
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(decode(format, ((i < 4 ? c.x : c.y) >> (i % 4 * 8)) & 0xFF), scale);
            T* out = y + row * y_stride + col;
            if (aligned) store8(out, v); else store8_unaligned(out, v);
        }
    }
}

#define DEQUANTIZE_ONE(NAME, T, LAYOUT)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) NAME(                                                               \
        const u8* __restrict__ codes,      /* [rows][cols], 16-byte aligned */                                            \
        const float* __restrict__ scales,  /* in the order LAYOUT (layout.cuh) */                                         \
        u32 rows, u32 cols,                /* cols: multiple of 16 */                                                     \
        u32 format,                        /* E4M3 or E5M2 */                                                             \
        T* __restrict__ y,                 /* [rows][cols], row stride y_stride elements */                               \
        u64 y_stride,                                                                                                     \
        u32 aligned)                       /* 1: every row of y starts 16-byte aligned */                                 \
    { dequantize<T, LAYOUT>(codes, scales, rows, cols, format, y, y_stride, aligned); }
#define DEQUANTIZE(name, LAYOUT)                                                                                          \
    DEQUANTIZE_ONE(name##_bf16, Bf16, LAYOUT) DEQUANTIZE_ONE(name##_f16, F16, LAYOUT) DEQUANTIZE_ONE(name##_f32, float, LAYOUT)
