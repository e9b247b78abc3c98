// One FP32 scale a row: amax and cast in one pass over the input, and back.
#include "codec.cuh"
#include "dequantize.cuh"
#include "tile.cuh"

// code = sat(fl(x * encode(row amax))). One block a row; the row stays in registers between amax and cast,
// VECTORS vectors of eight elements in each thread. VECTORS = 0: the row is read twice (rows too long for registers).
template <class T, int VECTORS>
__device__ __forceinline__ void quantize_row(const T* x, u64 x_stride, u32 cols, u32 aligned, ScaleRule rule, u8* codes, float* scales) {
    __shared__ float scratch[32];
    const u64 row = blockIdx.x;
    const u32 vectors = cols / 8;
    const T* in = x + row * x_stride;
    uint2* out = (uint2*)(codes + row * cols);
    float amax = 0.0f;
    if constexpr (VECTORS > 0) {
        Vec8<T> data[VECTORS];
        if (aligned) {
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                const u32 v = threadIdx.x + i * blockDim.x;
                data[i] = v < vectors ? load8(in + 8 * v) : zero8<T>();
            }
        } else {
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                const u32 v = threadIdx.x + i * blockDim.x;
                data[i] = v < vectors ? load8_unaligned(in + 8 * v) : zero8<T>();
            }
        }
#pragma unroll
        for (int i = 0; i < VECTORS; i++) amax = amax8(data[i], amax);
        const GroupScale s = group_scale(rule, block_max(amax, scratch));
        if (threadIdx.x == 0) scales[row] = s.scale;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const u32 v = threadIdx.x + i * blockDim.x;
            if (v < vectors) out[v] = encode_scaled(rule.format, data[i], s.encode);
        }
    } else {
        for (u32 v = threadIdx.x; v < vectors; v += blockDim.x) amax = amax8(aligned ? load8(in + 8 * v) : load8_unaligned(in + 8 * v), amax);
        const GroupScale s = group_scale(rule, block_max(amax, scratch));
        if (threadIdx.x == 0) scales[row] = s.scale;
        for (u32 v = threadIdx.x; v < vectors; v += blockDim.x)
            out[v] = encode_scaled(rule.format, aligned ? load8(in + 8 * v) : load8_unaligned(in + 8 * v), s.encode);
    }
}

#define QUANTIZE_ROW(name, T, VECTORS)                                                                                    \
    extern "C" __global__ void __launch_bounds__(VECTORS == 4 ? 256 : VECTORS == 8 ? 512 : 1024)                               \
    quantize_fp8_row_##name##_##VECTORS(                                                                                  \
        const T* __restrict__ x,     /* [rows][cols], row stride x_stride elements */                                     \
        u64 x_stride,                                                                                                     \
        u32 cols,                    /* multiple of 16 */                                                                 \
        u32 aligned,                 /* 1: every row of x starts 16-byte aligned */                                       \
        ScaleRule rule,                                                                                                   \
        u8* __restrict__ codes,      /* [rows][cols], 16-byte aligned */                                                  \
        float* __restrict__ scales)  /* [rows] */                                                                         \
    { quantize_row<T, VECTORS>(x, x_stride, cols, aligned, rule, codes, scales); }
#define QUANTIZE_ROW_ALL(name, T) QUANTIZE_ROW(name, T, 0) QUANTIZE_ROW(name, T, 2) QUANTIZE_ROW(name, T, 4) QUANTIZE_ROW(name, T, 8)
QUANTIZE_ROW_ALL(bf16, Bf16)
QUANTIZE_ROW_ALL(f16, F16)
QUANTIZE_ROW_ALL(f32, float)

// Row maxima, and column maxima where wanted: the first pass of a per-row cast with transposed output.
#define AMAX_ROW_COLUMN(name, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) amax_row_column_##name(                                             \
        const T* __restrict__ x,        /* [rows][cols], row stride x_stride elements */                                  \
        u64 x_stride, u32 rows, u32 cols,                                                                                 \
        u32 aligned,                    /* 1: every row of x starts 16-byte aligned */                                    \
        float* __restrict__ row_amax,   /* [rows], zero at the start; null: not wanted */                                 \
        float* __restrict__ col_amax)   /* [cols], zero at the start; null: not wanted */                                 \
    { amax_row_column<T>(x, x_stride, rows, cols, aligned, row_amax, col_amax); }
AMAX_ROW_COLUMN(bf16, Bf16)
AMAX_ROW_COLUMN(f16, F16)
AMAX_ROW_COLUMN(f32, float)

TILE_KERNEL(quantize_fp8_row_transposed_bf16, Bf16, PER_ROW)
TILE_KERNEL(quantize_fp8_row_transposed_f16, F16, PER_ROW)
TILE_KERNEL(quantize_fp8_row_transposed_f32, float, PER_ROW)

DEQUANTIZE(dequantize_fp8_row, OUTER)
