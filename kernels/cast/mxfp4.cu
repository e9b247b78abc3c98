// MXFP4: E2M1 codes with one power of two (E8M0) for each 32 elements of a row; along rows, transposed, and back.
#include "cast/mx.cuh"

#define QUANTIZE_MXFP4(name, T, ALIGNED, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(256) quantize_mxfp4_##name(                                              \
        const T* __restrict__ x,        /* [rows][cols], row stride x_stride elements */                                  \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                       /* multiple of 16 */                                                              \
        MxRule rule,                                                                                                      \
        u8* __restrict__ codes,         /* [rows][cols / 2], low half first, 8-byte aligned */                            \
        u8* __restrict__ block_scales)  /* tiled 128x4 of [rows][ceil(cols / 32)], padding written as 0 */                \
    { quantize_rows<T, ALIGNED, E2M1>(x, x_stride, rows, cols, rule, codes, block_scales); }
FOR_EACH_TYPE(QUANTIZE_MXFP4)

#define QUANTIZE_MXFP4_TILE(name, T, ALIGNED, ...)                                                                        \
    extern "C" __global__ void __launch_bounds__(256, (tile_blocks<T, ALIGNED>)) quantize_mxfp4_tile_##name(              \
        const T* __restrict__ x,  /* [rows][cols], row stride x_stride elements */                                        \
        u64 x_stride,                                                                                                     \
        u32 rows,                 /* multiple of 16 where the transposed output is wanted */                              \
        u32 cols,                 /* multiple of 16 */                                                                    \
        MxRule rule, MxOut out)                                                                                           \
    { quantize_tile_mx<T, ALIGNED, E2M1>(x, x_stride, rows, cols, rule, out); }
FOR_EACH_TYPE(QUANTIZE_MXFP4_TILE)

#define DEQUANTIZE_MXFP4(name, T, ALIGNED, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(256) dequantize_mxfp4_##name(                                            \
        const u8* __restrict__ codes,         /* [rows][cols / 2], low half first, 4-byte aligned */                      \
        const u8* __restrict__ block_scales,  /* tiled 128x4 of [rows][ceil(cols / 32)], 16-byte aligned */               \
        u32 rows, u32 cols,                   /* cols: multiple of 16 */                                                  \
        T* __restrict__ y,                    /* [rows][cols], row stride y_stride elements */                            \
        u64 y_stride)                                                                                                     \
    { begin(); dequantize_mx<T, ALIGNED, u32>(codes, block_scales, rows, cols, E2M1, y, y_stride); }
FOR_EACH_TYPE(DEQUANTIZE_MXFP4)
