// y = round(fl(code * scale)): FP8 codes back to BF16, F16 or F32, for every order of scales.
#pragma once
#include "base/codec.cuh"
#include "base/layout.cuh"

// Eight values times an encode factor, as codes.
template <u32 FORMAT, class T> __device__ __forceinline__ uint2 encode_scaled(const Vec8<T>& v, float encode) {
    float f[8];
    unpack(v, f);
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = __fmul_rn(f[i], encode);
    return encode8<FORMAT>(f);
}

template <u32 LAYOUT> __device__ __forceinline__ float scale_of(const float* scales, u32 rows, u32 cols, u64 row, u32 col) {
    u64 at = 0;
    if constexpr (LAYOUT == OUTER) at = row;
    if constexpr (LAYOUT == VEC128) at = vec128_index(rows, row, col / 128);
    if constexpr (LAYOUT == BLK128) at = blk128_index((cols + 127) / 128, row / 128, col / 128);
    return __ldg(scales + at);
}

// Each thread takes two vectors of eight codes, one block apart; grid.x covers a row, grid.y walks the rows.
template <class T, u32 LAYOUT, bool ALIGNED>
__device__ __forceinline__ void dequantize(const u8* codes, const float* scales, u32 rows, u32 cols, u32 format, T* y, u64 y_stride) {
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        uint2 c[2];
        u64 col[2];
        float scale[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            col[half] = (((u64)blockIdx.x * 2 + half) * blockDim.x + threadIdx.x) * 8;
            if (col[half] >= cols) continue;
            c[half] = __ldg((const uint2*)(codes + row * cols + col[half]));
            // With the codes, not after the first store, which it would wait for.
            scale[half] = scale_of<LAYOUT>(scales, rows, cols, row, (u32)col[half]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (col[half] >= cols) continue;
            float v[8];
            decode8(format, c[half], v);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], scale[half]);
            store<ALIGNED>(y + row * y_stride + col[half], v);
        }
    }
}

#define DEQUANTIZE(name, T, ALIGNED, NAME, LAYOUT)                                                                        \
    extern "C" __global__ void __launch_bounds__(256) NAME##_##name(                                                      \
        const u8* __restrict__ codes,      /* [rows][cols], 16-byte aligned */                                            \
        const float* __restrict__ scales,  /* in the order LAYOUT (layout.cuh) */                                         \
        u32 rows, u32 cols,                /* cols: multiple of 16 */                                                     \
        u32 format,                        /* E4M3 or E5M2 */                                                             \
        T* __restrict__ y,                 /* [rows][cols], row stride y_stride elements */                               \
        u64 y_stride)                                                                                                     \
    { begin(); dequantize<T, LAYOUT, ALIGNED>(codes, scales, rows, cols, format, y, y_stride); }
