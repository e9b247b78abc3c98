// MXFP8: FP8 codes with one power of two (E8M0) for each 32 elements of a row; along rows, transposed, and back.
#include "cast/mx.cuh"

#define QUANTIZE_MXFP8(name, T, ALIGNED, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(256) quantize_mxfp8_##name(                                              \
        const T* __restrict__ x,        /* [rows][cols], row stride x_stride elements */                                  \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                       /* multiple of 16 */                                                              \
        MxRule rule,                                                                                                      \
        u8* __restrict__ codes,         /* [rows][cols], 8-byte aligned */                                                \
        u8* __restrict__ block_scales)  /* tiled 128x4 of [rows][ceil(cols / 32)], padding written as 0 */                \
    {                                                                                                                     \
        if (rule.format == E4M3) quantize_rows<T, ALIGNED, E4M3>(x, x_stride, rows, cols, rule, codes, block_scales);     \
        else quantize_rows<T, ALIGNED, E5M2>(x, x_stride, rows, cols, rule, codes, block_scales);                         \
    }
FOR_EACH_TYPE(QUANTIZE_MXFP8)

#define QUANTIZE_MXFP8_TILE(name, T, ALIGNED, ...)                                                                        \
    extern "C" __global__ void __launch_bounds__(256, (tile_blocks<T, ALIGNED>)) quantize_mxfp8_tile_##name(              \
        const T* __restrict__ x,  /* [rows][cols], row stride x_stride elements */                                        \
        u64 x_stride,                                                                                                     \
        u32 rows,                 /* multiple of 16 where the transposed output is wanted */                              \
        u32 cols,                 /* multiple of 16 */                                                                    \
        MxRule rule, MxOut out)                                                                                           \
    {                                                                                                                     \
        if (rule.format == E4M3) quantize_tile_mx<T, ALIGNED, E4M3>(x, x_stride, rows, cols, rule, out);                  \
        else quantize_tile_mx<T, ALIGNED, E5M2>(x, x_stride, rows, cols, rule, out);                                      \
    }
FOR_EACH_TYPE(QUANTIZE_MXFP8_TILE)

#define DEQUANTIZE_MXFP8(name, T, ALIGNED, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(256) dequantize_mxfp8_##name(                                            \
        const u8* __restrict__ codes,         /* [rows][cols], 8-byte aligned */                                          \
        const u8* __restrict__ block_scales,  /* tiled 128x4 of [rows][ceil(cols / 32)], 16-byte aligned */               \
        u32 rows, u32 cols,                   /* cols: multiple of 16 */                                                  \
        u32 format,                           /* E4M3 or E5M2 */                                                          \
        T* __restrict__ y,                    /* [rows][cols], row stride y_stride elements */                            \
        u64 y_stride)                                                                                                     \
    { begin(); dequantize_mx<T, ALIGNED, uint2>(codes, block_scales, rows, cols, format, y, y_stride); }
FOR_EACH_TYPE(DEQUANTIZE_MXFP8)
