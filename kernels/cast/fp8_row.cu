// One FP32 scale a row: amax and cast in one pass over the input, and back.
#include "base/codec.cuh"
#include "cast/dequantize.cuh"
#include "cast/tile.cuh"

// code = sat(fl(x * encode(row amax))). One block a row; the row stays in registers between amax and cast,
// VECTORS vectors of eight elements in each thread. VECTORS = 0: the row is read twice (rows too long for registers).
template <class T, int VECTORS, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void quantize_row(const T* x, u64 x_stride, u32 cols, const ScaleRule& rule, u8* codes, float* scales, u32 releases) {
    __shared__ float scratch[32];
    const u64 row = blockIdx.x;
    const u32 vectors = cols / 8;
    const T* in = x + row * x_stride;
    uint2* out = (uint2*)(codes + row * cols);
    if constexpr (VECTORS == 1 || VECTORS == 2) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const u32 v = threadIdx.x + i * blockDim.x;
            if (v < vectors) prefetch(in + 8 * v, 8 * sizeof(T));
        }
    }
    begin_link(releases);
    float amax = 0.0f;
    if constexpr (VECTORS > 0) {
        Vec8<T> data[VECTORS];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const u32 v = threadIdx.x + i * blockDim.x;
            data[i] = v < vectors ? load<ALIGNED>(in + 8 * v) : zero8<T>();
        }
#pragma unroll
        for (int i = 0; i < VECTORS; i++) amax = amax8(data[i], amax);
        const GroupScale s = group_scale(rule, block_max(amax, scratch));
        if (threadIdx.x == 0) scales[row] = s.scale;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const u32 v = threadIdx.x + i * blockDim.x;
            forget(data[i]);
            if (v < vectors) out[v] = encode_scaled<FORMAT>(data[i], s.encode);
        }
    } else {
        for (u32 v = threadIdx.x; v < vectors; v += blockDim.x) amax = amax8(load<ALIGNED>(in + 8 * v), amax);
        const GroupScale s = group_scale(rule, block_max(amax, scratch));
        if (threadIdx.x == 0) scales[row] = s.scale;
        for (u32 v = threadIdx.x; v < vectors; v += blockDim.x) out[v] = encode_scaled<FORMAT>(load<ALIGNED>(in + 8 * v), s.encode);
    }
}

// Threads at the most: what the registers of VECTORS vectors allow without spilling.
#define QUANTIZE_ROW(name, T, ALIGNED, VECTORS)                                                                           \
    extern "C" __global__ void __launch_bounds__(VECTORS == 4 ? 256 : VECTORS == 8 ? 512 : 1024)                          \
    quantize_fp8_row_##VECTORS##_##name(                                                                                  \
        const T* __restrict__ x,     /* [rows][cols], row stride x_stride elements */                                     \
        u64 x_stride,                                                                                                     \
        u32 cols,                    /* multiple of 16 */                                                                 \
        ScaleRule rule,                                                                                                   \
        u8* __restrict__ codes,      /* [rows][cols], 16-byte aligned */                                                  \
        float* __restrict__ scales,  /* [rows] */                                                                         \
        u32 releases)                /* 1 in a chain: the next kernel, at once */                                         \
    {                                                                                                                     \
        if (rule.format == E4M3) quantize_row<T, VECTORS, ALIGNED, E4M3>(x, x_stride, cols, rule, codes, scales, releases);\
        else quantize_row<T, VECTORS, ALIGNED, E5M2>(x, x_stride, cols, rule, codes, scales, releases);                   \
    }
FOR_EACH_TYPE(QUANTIZE_ROW, 0)
FOR_EACH_TYPE(QUANTIZE_ROW, 1)
FOR_EACH_TYPE(QUANTIZE_ROW, 2)
FOR_EACH_TYPE(QUANTIZE_ROW, 4)
FOR_EACH_TYPE(QUANTIZE_ROW, 8)

// Row maxima, and column maxima where wanted: the first pass of a per-row cast with transposed output.
#define AMAX_ROW_COLUMN(name, T, ALIGNED, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(256, (tile_blocks<T, ALIGNED>)) amax_row_column_##name(                  \
        const T* __restrict__ x,        /* [rows][cols], row stride x_stride elements */                                  \
        u64 x_stride, u32 rows, u32 cols,                                                                                 \
        float* __restrict__ row_amax,   /* [rows], zero at the start; null: not wanted */                                 \
        float* __restrict__ col_amax)   /* [cols], zero at the start; null: not wanted */                                 \
    { begin(); amax_row_column<T, ALIGNED>(x, x_stride, rows, cols, row_amax, col_amax); }
FOR_EACH_TYPE(AMAX_ROW_COLUMN)

FOR_EACH_TYPE(TILE_KERNEL, quantize_fp8_row_transposed, PER_ROW)

FOR_EACH_TYPE(DEQUANTIZE, dequantize_fp8_row, OUTER)
