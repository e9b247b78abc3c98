// One FP32 scale for 1x128 groups or 128x128 tiles: amax and cast in one pass over the input, and back.
#include "codec.cuh"
#include "dequantize.cuh"
#include "tile.cuh"

// 1x128 groups without transposed output. A warp takes 4 rows x 128 columns, eight lanes a row, sixteen elements a lane
// in two loads that each cover 128 consecutive bytes; the four scales of a warp lie side by side. A block takes 4 rows
// and GROUPS times 8 groups along them.
template <class T, int GROUPS>
__device__ __forceinline__ void quantize_1x128(const T* x, u64 x_stride, u32 rows, u32 cols, u32 aligned, const ScaleRule& rule, u8* codes, float* scales) {
    const u32 blocks = (cols + 127) / 128;
    const u32 chunks = (blocks + 8 * GROUPS - 1) / (8 * GROUPS);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 row = (u64)(blockIdx.x / chunks) * 4 + lane / 8;
    const u32 first = blockIdx.x % chunks * 8 * GROUPS + warp;
    const T* in = x + row * x_stride;
    Vec8<T> data[GROUPS][2];
    // Rows past the end read as zeros: their codes and scales are the padding, written as zeros.
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 col = (first + 8 * g) * 128 + 64 * h + lane % 8 * 8;
            const bool inside = row < rows && col < cols;
            data[g][h] = !inside ? zero8<T>() : aligned ? load8(in + col) : load8_unaligned(in + col);
        }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const u32 block = first + 8 * g;
        const GroupScale s = group_scale(rule, lanes_max<8>(amax8(data[g][1], amax8(data[g][0], 0.0f))));
        if (lane % 8 == 0 && block < blocks) scales[vec128_index(rows, row, block)] = row < rows ? s.scale : 0.0f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 col = block * 128 + 64 * h + lane % 8 * 8;
            if (col < cols) *(uint2*)(codes + row * cols + col) = encode_scaled(rule.format, data[g][h], s.encode);
        }
    }
}

#define QUANTIZE_1X128(name, T, GROUPS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) quantize_fp8_1x128_##name##_##GROUPS(                               \
        const T* __restrict__ x,     /* [rows][cols], row stride x_stride elements */                                     \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                    /* multiple of 16 */                                                                 \
        u32 aligned,                 /* 1: every row of x starts 16-byte aligned */                                       \
        ScaleRule rule,                                                                                                   \
        u8* __restrict__ codes,      /* [rows rounded up to 4][cols], 16-byte aligned, padding written as 0 */            \
        float* __restrict__ scales)  /* VEC128, padding written as 0 */                                                   \
    { quantize_1x128<T, GROUPS>(x, x_stride, rows, cols, aligned, rule, codes, scales); }
QUANTIZE_1X128(bf16, Bf16, 1)
QUANTIZE_1X128(f16, F16, 1)
QUANTIZE_1X128(f32, float, 1)
QUANTIZE_1X128(bf16, Bf16, 2)
QUANTIZE_1X128(f16, F16, 2)
QUANTIZE_1X128(f32, float, 2)

TILE_KERNEL(quantize_fp8_1x128_transposed_bf16, Bf16, PER_1X128)
TILE_KERNEL(quantize_fp8_1x128_transposed_f16, F16, PER_1X128)
TILE_KERNEL(quantize_fp8_1x128_transposed_f32, float, PER_1X128)
TILE_KERNEL(quantize_fp8_128x128_bf16, Bf16, PER_128X128)
TILE_KERNEL(quantize_fp8_128x128_f16, F16, PER_128X128)
TILE_KERNEL(quantize_fp8_128x128_f32, float, PER_128X128)

DEQUANTIZE(dequantize_fp8_1x128, VEC128)
DEQUANTIZE(dequantize_fp8_128x128, BLK128)
