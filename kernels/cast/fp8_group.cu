// One FP32 scale for 1x128 groups or 128x128 tiles: amax and cast in one pass over the input, and back.
#include "base/codec.cuh"
#include "cast/dequantize.cuh"
#include "cast/tile.cuh"

// 1x128 groups without transposed output. A warp takes 4 rows x 128 columns, eight lanes a row, sixteen elements a lane
// in two loads that each cover 128 consecutive bytes; the four scales of a warp lie side by side. A block takes 4 rows
// and GROUPS times 8 groups along them.
template <class T, int GROUPS, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void quantize_1x128(const T* x, u64 x_stride, u32 rows, u32 cols, const ScaleRule& rule, u8* codes, float* scales) {
    const u32 blocks = (cols + 127) / 128;
    const u32 chunks = (blocks + 8 * GROUPS - 1) / (8 * GROUPS);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 row = (u64)(blockIdx.x / chunks) * 4 + lane / 8;
    const u32 first = blockIdx.x % chunks * 8 * GROUPS + warp;
    const T* in = x + row * x_stride + first * 128 + lane % 8 * 8;
    u8* out = codes + row * cols + first * 128 + lane % 8 * 8;
    begin();
    Vec8<T> data[GROUPS][2];
    // Rows past the end read as zeros: their codes and scales are the padding, written as zeros.
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 col = (first + 8 * g) * 128 + 64 * h + lane % 8 * 8;
            const bool inside = row < rows && col < cols;
            data[g][h] = inside ? load<ALIGNED>(in + 1024 * g + 64 * h) : zero8<T>();
        }
    // Lane g of the eight lanes of a row turns the amax of group g into factors; the others get them by shuffle.
    float amax = 0.0f;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const float m = lanes_max<8>(amax8(data[g][1], amax8(data[g][0], 0.0f)));
        if (lane % 8 == g) amax = m;
    }
    const GroupScale s = group_scale(rule, amax);
    const u32 mine = first + 8 * (lane % 8);
    if (lane % 8 < GROUPS && mine < blocks) scales[vec128_index(rows, row, mine)] = row < rows ? s.scale : 0.0f;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const float encode = __shfl_sync(0xFFFFFFFFu, s.encode, g, 8);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 col = (first + 8 * g) * 128 + 64 * h + lane % 8 * 8;
            forget(data[g][h]);
            if (col < cols) *(uint2*)(out + 1024 * g + 64 * h) = encode_scaled<FORMAT>(data[g][h], encode);
        }
    }
}

#define QUANTIZE_1X128(name, T, ALIGNED, GROUPS)                                                                          \
    extern "C" __global__ void __launch_bounds__(256) quantize_fp8_1x128_##GROUPS##_##name(                               \
        const T* __restrict__ x,     /* [rows][cols], row stride x_stride elements */                                     \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                    /* multiple of 16 */                                                                 \
        ScaleRule rule,                                                                                                   \
        u8* __restrict__ codes,      /* [rows rounded up to 4][cols], 16-byte aligned, padding written as 0 */            \
        float* __restrict__ scales)  /* VEC128, padding written as 0 */                                                   \
    {                                                                                                                     \
        if (rule.format == E4M3) quantize_1x128<T, GROUPS, ALIGNED, E4M3>(x, x_stride, rows, cols, rule, codes, scales);  \
        else quantize_1x128<T, GROUPS, ALIGNED, E5M2>(x, x_stride, rows, cols, rule, codes, scales);                      \
    }
FOR_EACH_TYPE(QUANTIZE_1X128, 1)
FOR_EACH_TYPE(QUANTIZE_1X128, 2)

// The same for small matrices: sixteen lanes a group, one load each, so that more of the GPU shares the work.
template <class T, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void quantize_1x128_small(const T* x, u64 x_stride, u32 rows, u32 cols, const ScaleRule& rule, u8* codes, float* scales,
                                                     u32 releases) {
    const u64 row = blockIdx.y;
    const u32 col = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    const T* in = x + row * x_stride + col;
    const bool inside = row < rows && col < cols;
    if (inside) prefetch(in, 8 * sizeof(T));
    begin_link(releases);
    const Vec8<T> data = inside ? load<ALIGNED>(in) : zero8<T>();
    const GroupScale s = group_scale(rule, lanes_max<16>(amax8(data, 0.0f)));
    if (col >= cols) return;
    if (col % 128 == 0) scales[vec128_index(rows, row, col / 128)] = row < rows ? s.scale : 0.0f;
    *(uint2*)(codes + row * cols + col) = encode_scaled<FORMAT>(data, s.encode);
}

#define QUANTIZE_1X128_SMALL(name, T, ALIGNED, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(256) quantize_fp8_1x128_small_##name(                                          \
        const T* __restrict__ x,     /* [rows][cols], row stride x_stride elements */                                           \
        u64 x_stride, u32 rows,                                                                                                 \
        u32 cols,                    /* multiple of 16 */                                                                       \
        ScaleRule rule,                                                                                                         \
        u8* __restrict__ codes,      /* [rows rounded up to 4][cols], 16-byte aligned, padding written as 0 */                  \
        float* __restrict__ scales,  /* VEC128, padding written as 0 */                                                         \
        u32 releases)                /* 1 in a chain: the next kernel, at once */                                               \
    {                                                                                                                           \
        if (rule.format == E4M3) quantize_1x128_small<T, ALIGNED, E4M3>(x, x_stride, rows, cols, rule, codes, scales, releases);\
        else quantize_1x128_small<T, ALIGNED, E5M2>(x, x_stride, rows, cols, rule, codes, scales, releases);                    \
    }
FOR_EACH_TYPE(QUANTIZE_1X128_SMALL)

// 128x128 tiles without transposed output. A block takes one tile, sixteen lanes a row, STEPS rows in each thread:
// 2048 / STEPS threads. Few tiles want many threads each.
template <class T, int STEPS, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void quantize_128x128(const T* x, u64 x_stride, u32 rows, u32 cols, const ScaleRule& rule, u8* codes, float* scales) {
    __shared__ float scratch[32];
    constexpr u32 ROWS = 128 / STEPS;  // of one step
    const u32 tiles = (cols + 127) / 128;
    const u32 tile_row = blockIdx.x / tiles, tile_col = blockIdx.x % tiles;
    const u64 row = (u64)tile_row * 128 + threadIdx.x / 16;
    const u32 col = tile_col * 128 + threadIdx.x % 16 * 8;
    const u32 inside = col < cols && row < rows ? (u32)(rows - row) : 0;  // rows left from the thread's first
    const T* in = x + row * x_stride + col;
    u8* out = codes + row * cols + col;
    if constexpr (STEPS == 2) {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            if (i * ROWS < inside) prefetch(in + i * ROWS * x_stride, 8 * sizeof(T));
    }
    begin();
    Vec8<T> data[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        data[i] = i * ROWS < inside ? load<ALIGNED>(in) : zero8<T>();
        in += ROWS * x_stride;
    }
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < STEPS; i++) amax = amax8(data[i], amax);
    const GroupScale s = group_scale(rule, block_max(amax, scratch));
    // The block of the last tile along K also writes the padding of its pitch.
    const u32 mine = tile_col + threadIdx.x;
    const u32 end = tile_col + 1 == tiles ? (u32)round_up4(tiles) : tile_col + 1;
    if (mine < end) scales[blk128_index(tiles, tile_row, mine)] = threadIdx.x == 0 ? s.scale : 0.0f;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        forget(data[i]);
        if (i * ROWS < inside) *(uint2*)out = encode_scaled<FORMAT>(data[i], s.encode);
        out += (u64)ROWS * cols;
    }
}

#define QUANTIZE_128X128(name, T, ALIGNED, STEPS)                                                                         \
    extern "C" __global__ void __launch_bounds__(2048 / STEPS) quantize_fp8_128x128_##STEPS##_##name(                     \
        const T* __restrict__ x,     /* [rows][cols], row stride x_stride elements */                                     \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                    /* multiple of 16 */                                                                 \
        ScaleRule rule,                                                                                                   \
        u8* __restrict__ codes,      /* [rows][cols], 16-byte aligned */                                                  \
        float* __restrict__ scales)  /* BLK128, padding written as 0 */                                                   \
    {                                                                                                                     \
        if (rule.format == E4M3) quantize_128x128<T, STEPS, ALIGNED, E4M3>(x, x_stride, rows, cols, rule, codes, scales); \
        else quantize_128x128<T, STEPS, ALIGNED, E5M2>(x, x_stride, rows, cols, rule, codes, scales);                     \
    }
FOR_EACH_TYPE(QUANTIZE_128X128, 2)
FOR_EACH_TYPE(QUANTIZE_128X128, 4)

FOR_EACH_TYPE(TILE_KERNEL, quantize_fp8_1x128_transposed, PER_1X128)
FOR_EACH_TYPE(TILE_KERNEL, quantize_fp8_128x128_transposed, PER_128X128)

FOR_EACH_TYPE(DEQUANTIZE, dequantize_fp8_1x128, VEC128)
FOR_EACH_TYPE(DEQUANTIZE, dequantize_fp8_128x128, BLK128)
