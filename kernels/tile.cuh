// 128 x 128 tiles in registers: 128x128 scales, and every scheme that also (or only) writes the transposed codes.
//
// A block of 8 warps holds one tile. A warp holds 32 rows x 64 columns, a thread 8 rows x 8 columns:
//     row    = 32 * (warp / 2) + 8 * (lane / 8) + 0..7         column = 64 * (warp % 2) + 8 * (lane % 8) + 0..7
// so a load covers full 128-byte lines, a store of codes 64 consecutive bytes of a row, and a store of transposed
// codes 32 consecutive bytes (one sector) of a column: no transposition through shared memory is needed, because the
// conversion instruction packs two neighbouring rows of one column as readily as two neighbouring columns of one row.
#pragma once
#include "codec.cuh"
#include "layout.cuh"

// What one scale covers in the plain output; the transposed output has the same grouping of the transposed matrix.
constexpr u32 PER_TENSOR = 0;
constexpr u32 PER_ROW = 1;
constexpr u32 PER_1X128 = 2;
constexpr u32 PER_128X128 = 3;

struct Place {
    u32 row;  // first of this thread's 8 rows, within the tile
    u32 col;  // first of its 8 columns
};

__device__ __forceinline__ Place place() {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return {32 * (warp / 2) + 8 * (lane / 8), 64 * (warp % 2) + 8 * (lane % 8)};
}

// The thread's 8 x 8 elements; zeros outside the matrix.
template <class T>
__device__ __forceinline__ void load_tile(Vec8<T> (&data)[8], const T* x, u64 x_stride, u64 row, u64 col, u32 rows, u32 cols, u32 aligned) {
    const T* in = x + row * x_stride + col;
    const bool inside = col < cols;  // cols is a multiple of 16
    if (aligned) {
#pragma unroll
        for (int r = 0; r < 8; r++) data[r] = inside && row + r < rows ? load8(in + r * x_stride) : zero8<T>();
    } else {
#pragma unroll
        for (int r = 0; r < 8; r++) data[r] = inside && row + r < rows ? load8_unaligned(in + r * x_stride) : zero8<T>();
    }
}

// max |x| of each of the thread's 8 columns over the warp's 32 rows.
template <class T> __device__ __forceinline__ void column_max(const Vec8<T> (&data)[8], float (&m)[8]) {
#pragma unroll
    for (int c = 0; c < 8; c++) {
        m[c] = fabsf(element(data[0], c));
        if (m[c] != m[c]) m[c] = 0.0f;  // the first operand has no partner for fmaxf to drop a NaN against
#pragma unroll
        for (int r = 1; r < 8; r++) m[c] = fmaxf(m[c], fabsf(element(data[r], c)));
        m[c] = fmaxf(m[c], __shfl_xor_sync(0xFFFFFFFFu, m[c], 8));
        m[c] = fmaxf(m[c], __shfl_xor_sync(0xFFFFFFFFu, m[c], 16));
    }
}

// max |x| of each of the thread's 8 rows over the warp's 64 columns.
template <class T> __device__ __forceinline__ void row_max(const Vec8<T> (&data)[8], float (&m)[8]) {
#pragma unroll
    for (int r = 0; r < 8; r++) m[r] = lanes_max<8>(amax8(data[r], 0.0f));
}

template <class T>
__device__ __forceinline__ void amax_row_column(const T* x, u64 x_stride, u32 rows, u32 cols, u32 aligned, float* row_amax, float* col_amax) {
    const u32 tiles = (cols + 127) / 128;
    const Place p = place();
    const u64 row = (u64)(blockIdx.x / tiles) * 128 + p.row, col = (u64)(blockIdx.x % tiles) * 128 + p.col;
    Vec8<T> data[8];
    load_tile(data, x, x_stride, row, col, rows, cols, aligned);
    float m[8];
    if (row_amax) {
        row_max(data, m);
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (threadIdx.x % 8 == r && row + r < rows) atomic_max(row_amax + row + r, m[r]);
    }
    if (col_amax) {
        column_max(data, m);
#pragma unroll
        for (int c = 0; c < 8; c++)
            if (threadIdx.x % 32 / 8 == c % 4 && col + c < cols) atomic_max(col_amax + col + c, m[c]);
    }
}

struct TileOut {
    u8* codes;        // [rows rounded up to row_multiple][cols]; null: not wanted
    float* scales;    // scales of the plain output, in the scheme's order
    u8* codes_t;      // [cols][rows]; null: not wanted
    float* scales_t;  // scales of the transposed output
};

// How the factor of a per-tensor cast is given.
constexpr u32 FACTOR_ENCODE = 0;    // one float: the encode factor; its reciprocal is the stored scale
constexpr u32 FACTOR_DECODE = 1;    // one float: the stored scale; its reciprocal multiplies the data
constexpr u32 FACTOR_COMPUTED = 2;  // two floats: encode factor and scale

__device__ __forceinline__ GroupScale given_scale(const float* factor, u32 kind) {
    const float f = factor[0];
    if (kind == FACTOR_ENCODE) return {f, __frcp_rn(f)};
    if (kind == FACTOR_DECODE) return {__frcp_rn(f), f};
    return {f, factor[1]};
}

struct TileIn {
    const float* factor;    // PER_TENSOR: one or two floats, see factor_kind
    const float* row_amax;  // PER_ROW: [rows]
    const float* col_amax;  // PER_ROW: [cols]
    u32 factor_kind;        // PER_TENSOR: FACTOR_ENCODE, FACTOR_DECODE or FACTOR_COMPUTED
};

template <class T, u32 GROUP>
__device__ __forceinline__ void quantize_tile(const T* x, u64 x_stride, u32 rows, u32 cols, u32 aligned, const ScaleRule& rule, const TileIn& in, const TileOut& out) {
    __shared__ float row_encode[GROUP == PER_1X128 ? 256 : 1];  // PER_1X128: [2 column halves][128], then encode factors
    __shared__ float col_encode[GROUP == PER_1X128 ? 512 : 1];  // PER_1X128: [4 row bands][128], then encode factors
    __shared__ float scratch[32];
    const u32 tiles = (cols + 127) / 128;
    const u32 tile_row = blockIdx.x / tiles, tile_col = blockIdx.x % tiles;
    const Place p = place();
    const u64 row = (u64)tile_row * 128 + p.row, col = (u64)tile_col * 128 + p.col;
    Vec8<T> data[8];
    load_tile(data, x, x_stride, row, col, rows, cols, aligned);

    float encode = 0.0f;
    if constexpr (GROUP == PER_TENSOR) {
        const GroupScale s = given_scale(in.factor, in.factor_kind);
        encode = s.encode;
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            if (out.codes) *out.scales = s.scale;
            if (out.codes_t) *out.scales_t = s.scale;
        }
    }
    if constexpr (GROUP == PER_128X128) {
        float amax = 0.0f;
#pragma unroll
        for (int r = 0; r < 8; r++) amax = amax8(data[r], amax);
        const GroupScale s = group_scale(rule, block_max(amax, scratch));
        encode = s.encode;
        // The block of the last tile along K also writes the padding of its pitch.
        const u32 row_tiles = (rows + 127) / 128;
        if (out.codes && threadIdx.x < 4) {
            const u32 end = tile_col + 1 == tiles ? (u32)round_up4(tiles) : tile_col + 1;
            if (tile_col + threadIdx.x < end) out.scales[blk128_index(tiles, tile_row, tile_col + threadIdx.x)] = threadIdx.x == 0 ? s.scale : 0.0f;
        }
        if (out.codes_t && threadIdx.x < 4) {
            const u32 end = tile_row + 1 == row_tiles ? (u32)round_up4(row_tiles) : tile_row + 1;
            if (tile_row + threadIdx.x < end) out.scales_t[blk128_index(row_tiles, tile_col, tile_row + threadIdx.x)] = threadIdx.x == 0 ? s.scale : 0.0f;
        }
    }
    if constexpr (GROUP == PER_1X128) {
        float m[8];
        if (out.codes) {
            row_max(data, m);
#pragma unroll
            for (int r = 0; r < 8; r++)
                if (threadIdx.x % 8 == r) row_encode[p.col / 64 * 128 + p.row + r] = m[r];
        }
        if (out.codes_t) {
            column_max(data, m);
#pragma unroll
            for (int c = 0; c < 8; c++)
                if (threadIdx.x % 32 / 8 == c % 4) col_encode[p.row / 32 * 128 + p.col + c] = m[c];
        }
        __syncthreads();
        // Half of the block turns row maxima into factors, the other half column maxima.
        const u32 i = threadIdx.x % 128;
        if (threadIdx.x < 128) {
            if (out.codes) {
                const GroupScale s = group_scale(rule, fmaxf(row_encode[i], row_encode[128 + i]));
                row_encode[i] = s.encode;
                const u64 r = (u64)tile_row * 128 + i;
                if (r < round_up4(rows)) out.scales[vec128_index(rows, r, tile_col)] = r < rows ? s.scale : 0.0f;
            }
        } else if (out.codes_t) {
            const float amax = fmaxf(fmaxf(col_encode[i], col_encode[128 + i]), fmaxf(col_encode[256 + i], col_encode[384 + i]));
            const GroupScale s = group_scale(rule, amax);
            col_encode[i] = s.encode;
            const u64 c = (u64)tile_col * 128 + i;
            if (c < cols) out.scales_t[vec128_index(cols, c, tile_row)] = s.scale;
        }
        __syncthreads();
    }
    if (col >= cols) return;

    if (out.codes) {
        // 1x128 codes have their rows padded to a multiple of 4 with zeros: the data there are zeros.
        const u64 row_end = GROUP == PER_1X128 ? round_up4(rows) : rows;
#pragma unroll
        for (int r = 0; r < 8; r++) {
            if (row + r >= row_end) continue;
            float e = encode;
            if constexpr (GROUP == PER_1X128) e = row_encode[p.row + r];
            if constexpr (GROUP == PER_ROW) {
                const GroupScale s = group_scale(rule, in.row_amax[row + r]);
                e = s.encode;
                if (col == 0) out.scales[row + r] = s.scale;
            }
            *(uint2*)(out.codes + (row + r) * cols + col) = encode_scaled(rule.format, data[r], e);
        }
    }
    if (out.codes_t && row < rows) {  // rows is a multiple of 16 here
#pragma unroll
        for (int c = 0; c < 8; c++) {
            float e = encode;
            if constexpr (GROUP == PER_1X128) e = col_encode[p.col + c];
            if constexpr (GROUP == PER_ROW) {
                const GroupScale s = group_scale(rule, in.col_amax[col + c]);
                e = s.encode;
                if (row == 0) out.scales_t[col + c] = s.scale;
            }
            float v[8];
#pragma unroll
            for (int r = 0; r < 8; r++) v[r] = __fmul_rn(element(data[r], c), e);
            *(uint2*)(out.codes_t + (col + c) * rows + row) = encode8(rule.format, v);
        }
    }
}

#define TILE_KERNEL(NAME, T, GROUP)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) NAME(                                                               \
        const T* __restrict__ x,  /* [rows][cols], row stride x_stride elements */                                        \
        u64 x_stride,                                                                                                     \
        u32 rows,                 /* any; a multiple of 16 where the transposed output is wanted */                       \
        u32 cols,                 /* multiple of 16 */                                                                    \
        u32 aligned,              /* 1: every row of x starts 16-byte aligned */                                          \
        ScaleRule rule, TileIn in, TileOut out)                                                                           \
    { quantize_tile<T, GROUP>(x, x_stride, rows, cols, aligned, rule, in, out); }
