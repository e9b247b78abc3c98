// FP8 with one given scale of what is computed, without the values being stored.
#include "cast/tile.cuh"
#include "fused/produced.cuh"

// code = sat(fl(x * encode)). A warp takes 4 rows x 128 columns, eight lanes a row, as in cast_rows.cuh; warps follow one another along
// the rows, so that none is idle where these are short.
template <class S, u32 FORMAT>
__device__ __forceinline__ void quantize_tensor(const CastSource& source, u32 rows, u32 cols, const float* factor, u32 factor_kind, u8* codes, float* scale, float* amax_out) {
    __shared__ float scratch[32];
    const u32 chunks = max((cols + 127) / 128, 1u), lane = threadIdx.x % 32;
    const u64 unit = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const u64 row = unit / chunks * 4 + lane / 8;
    const u32 col = (u32)(unit % chunks) * 128 + lane % 8 * 8;
    begin();
    const int from = source_row<S>(source, row, rows);
    S data[2];
#pragma unroll
    for (int h = 0; h < 2; h++) load_at(data[h], source, from, col + 64 * h);
    const GroupScale s = given_scale(factor, factor_kind);
    if (blockIdx.x == 0 && threadIdx.x == 0) *scale = s.scale;
    float amax = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        open_at(data[h], source, from, col + 64 * h, true);
        bool clean;
        amax = amax_of<FORMAT>(data[h], amax, clean);
        if (row >= rows || col + 64 * h >= cols) continue;
        store_codes<FORMAT, false>(codes, row * cols + col + 64 * h, data[h], s.encode);
    }
    if (amax_out) {
        amax = block_max(amax, scratch);
        if (threadIdx.x == 0) atomic_max(amax_out, amax);
    }
}

// Blocks of a multiprocessor that fit without spilling.
template <class S> constexpr u32 blocks_of = S::BATCH < 4 ? 3 : 4;

#define QUANTIZE_TENSOR_SOURCE(name, SOURCE, ...)                                                                         \
    extern "C" __global__ void __launch_bounds__(256, (blocks_of<Unwrap<void SOURCE>::Type>)) quantize_fp8_tensor_##name( \
        CastSource source, u32 rows,                                                                                      \
        u32 cols,                          /* of the source; multiple of 16 */                                            \
        u32 format,                        /* E4M3 or E5M2 */                                                             \
        const float* __restrict__ factor,  /* one float */                                                                \
        u32 factor_kind,                   /* FACTOR_ENCODE or FACTOR_DECODE (tile.cuh) */                                \
        u8* __restrict__ codes,            /* [rows][cols], 8-byte aligned */                                             \
        float* __restrict__ scale,         /* receives the stored scale */                                                \
        float* __restrict__ amax_out)      /* raised to max |x|; null: not wanted */                                      \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        if (format == E4M3) quantize_tensor<S, E4M3>(source, rows, cols, factor, factor_kind, codes, scale, amax_out);    \
        else quantize_tensor<S, E5M2>(source, rows, cols, factor, factor_kind, codes, scale, amax_out);                   \
    }
FOR_EACH_TYPE(PRODUCED, QUANTIZE_TENSOR_SOURCE)
