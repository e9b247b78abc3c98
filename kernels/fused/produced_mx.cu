// MXFP8 and MXFP4 along rows of what is computed, without the values being stored.
#include "cast/mx.cuh"
#include "fused/produced.cuh"

// `quantize_rows` of mx.cuh for a source: the same lanes have the same elements.
template <class S, u32 FORMAT>
__device__ __forceinline__ void quantize_rows(const CastSource& source, u32 rows, u32 cols, const MxRule& rule, u8* codes, u8* block_scales) {
    const u32 chunks = (cols + 127) / 128, blocks = (cols + 31) / 32;
    const u32 lane = threadIdx.x % 32;
    const u64 unit = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const u64 group = unit / chunks, row = group / 32 * 128 + group % 32 + 32 * (lane / 8);
    const u32 col = (u32)(unit % chunks) * 128 + lane % 8 * 8;
    begin();
    const int from = source_row<S>(source, row, rows);
    S data[2];
#pragma unroll
    for (int h = 0; h < 2; h++) load_at(data[h], source, from, col + 64 * h);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        open_at(data[h], source, from, col + 64 * h, true);
        bool clean;
        // Rows and columns past the end are zeros and get scale byte 0: the padding.
        const u32 byte = mx_byte(rule, lanes_max<4>(amax_of<FORMAT>(data[h], 0.0f, clean)));
        const u32 block = (col + 64 * h) / 32;
        if (lane % 4 == 0 && row < ((u64)rows + 127) / 128 * 128) block_scales[tiled_index(blocks, row, block)] = (u8)byte;
        if (row >= rows || col + 64 * h >= cols) continue;
        const float factor = mx_encode(byte);
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(data[h].value(i), factor);
        store_codes<FORMAT>(codes + code_bytes<FORMAT>(row * cols + col + 64 * h), v);
    }
}

// Blocks of a multiprocessor that fit without spilling.
template <class S> constexpr u32 blocks_of = S::BATCH < 4 ? 3 : 4;

#define QUANTIZE_MX_SOURCE(name, SOURCE, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(256, (blocks_of<Unwrap<void SOURCE>::Type>)) quantize_mx_##name(         \
        CastSource source, u32 rows,                                                                                      \
        u32 cols,                       /* of the source; multiple of 16 */                                               \
        MxRule rule,                                                                                                      \
        u8* __restrict__ codes,         /* [rows][cols], 8-byte aligned; E2M1 two a byte */                               \
        u8* __restrict__ block_scales)  /* tiled 128x4 of [rows][ceil(cols / 32)], padding written as 0 */                \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        if (rule.format == E4M3) quantize_rows<S, E4M3>(source, rows, cols, rule, codes, block_scales);                   \
        else if (rule.format == E5M2) quantize_rows<S, E5M2>(source, rows, cols, rule, codes, block_scales);              \
        else quantize_rows<S, E2M1>(source, rows, cols, rule, codes, block_scales);                                       \
    }
FOR_EACH_TYPE(PRODUCED, QUANTIZE_MX_SOURCE)
