// 128 x 128 tiles in registers, for every scheme that also (or only) writes the transposed codes.
//
// A block of 8 warps holds one tile. A warp holds 32 rows x 64 columns, a thread 8 rows x 8 columns:
//     row    = 32 * (warp / 2) + 8 * (lane / 8) + 0..7         column = 64 * (warp % 2) + 8 * (lane % 8) + 0..7
// so a load covers full 128-byte lines and a store of codes 64 consecutive bytes of a row. Transposed codes are made of neighbouring rows of a column, and go
// through shared memory.
#pragma once
#include "base/layout.cuh"
#include "cast/line_maxima.cuh"

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

// Eight elements that nobody reads again soon: the L2 cache need not keep them.
template <bool ALIGNED, class T> __device__ __forceinline__ Vec8<T> load_passing(const T* p) {
    if constexpr (!ALIGNED) {
        return load<ALIGNED>(p);
    } else {
        Vec8<T> v;
#pragma unroll
        for (u32 i = 0; i < sizeof(T) / 2; i++)
            asm volatile("{.reg .b64 first; createpolicy.fractional.L2::evict_first.b64 first, 1.0; ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], first;}"
                         : "=r"(v.q[i].x), "=r"(v.q[i].y), "=r"(v.q[i].z), "=r"(v.q[i].w) : "l"((const char*)p + 16 * i));
        return v;
    }
}

// The thread's 8 x 8 elements; zeros outside the matrix.
template <bool ALIGNED, bool PASSING = false, class T>
__device__ __forceinline__ void load_tile(Vec8<T> (&data)[8], const T* x, u64 x_stride, u64 row, u64 col, u32 rows, u32 cols) {
    const T* in = x + row * x_stride + col;
    const bool inside = col < cols;  // cols is a multiple of 16
#pragma unroll
    for (int r = 0; r < 8; r++) {
        if (!(inside && row + r < rows)) data[r] = zero8<T>();
        else if constexpr (PASSING) data[r] = load_passing<ALIGNED>(in);
        else data[r] = load<ALIGNED>(in);
        in += x_stride;
    }
}

// Raises row and column maxima; a block walks STRIP tiles along a row, so that its 128 rows meet memory fewer times. Four left multiprocessors idle at 4096 x 7168,
// whose blocks were 3.4 for each of them: 16.7 us for 15.9 (observed: H200, 2026-11).
constexpr u32 STRIP = 2;

// Bytes at the end of the matrix that the L2 cache is to keep: the next pass begins there (`backwards`), and what lies before makes room first. Half of the cache
// of an H200, which for other GPUs was not measured.
#if __CUDA_ARCH__ == 900
constexpr u64 KEPT_BYTES = 24 << 20;
#else
constexpr u64 KEPT_BYTES = ~0ull;
#endif

template <class T, bool ALIGNED>
__device__ __forceinline__ void amax_row_column(const T* x, u64 x_stride, u32 rows, u32 cols, float* row_amax, float* col_amax) {
    __shared__ float by_row[256];     // [2 column halves][128]
    __shared__ float by_col[2][512];  // [4 row bands][128], for two tiles in turn
    const u32 strips = ((cols + 127) / 128 + STRIP - 1) / STRIP;
    const Place p = place();
    const u64 row = (u64)(blockIdx.x / strips) * 128 + p.row;
    const u32 i = threadIdx.x % 128;
    const bool passing = (rows - row / 128 * 128) * cols * sizeof(T) > KEPT_BYTES;
    float row_so_far = 0.0f;  // of the thread's own row
    for (u32 tile = 0; tile < STRIP; tile++) {
        const u64 first = ((u64)(blockIdx.x % strips) * STRIP + tile) * 128;
        if (first >= cols) break;
        Vec8<T> data[8];
        if (passing) load_tile<ALIGNED, true>(data, x, x_stride, row, first + p.col, rows, cols);
        else load_tile<ALIGNED>(data, x, x_stride, row, first + p.col, rows, cols);
        line_maxima<8>(
            data, row_amax, col_amax, [&](u32, float amax) { row_so_far = fmaxf(row_so_far, amax); },
            [&](u32 c, float amax) { by_col[tile % 2][p.row / 32 * 128 + p.col + c] = amax; });
        if (!col_amax) continue;
        __syncthreads();
        const float* band = by_col[tile % 2];
        if (threadIdx.x < 128 && first + i < cols)
            atomic_max(col_amax + first + i, fmaxf(fmaxf(band[i], band[128 + i]), fmaxf(band[256 + i], band[384 + i])));
    }
    if (!row_amax) return;
    by_row[p.col / 64 * 128 + p.row + threadIdx.x % 8] = row_so_far;
    __syncthreads();
    const u64 mine = (u64)(blockIdx.x / strips) * 128 + i;
    if (threadIdx.x < 128 && mine < rows) atomic_max(row_amax + mine, fmaxf(by_row[i], by_row[128 + i]));
}

struct TileOut {
    u8* codes;        // [rows rounded up to row_multiple][cols]; null: not wanted
    float* scales;    // scales of the plain output, in the scheme's order
    u8* codes_t;      // [cols][rows rounded up to 16], the rest zero; null: not wanted
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

// The sum of each of the tile's columns in f64: of a thread's 8 rows, of the 32 of a warp, then the four bands of 32 in order.
template <class T>
__device__ __forceinline__ void column_sums(Vec8<T> (&data)[8], double* sums, u64 first, u32 cols) {
    __shared__ double band[512];  // [4 row bands][128]
    const Place p = place();
    const u32 i = threadIdx.x % 128;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        double sum = (double)element(data[0], c);
#pragma unroll
        for (int r = 1; r < 8; r++) sum += (double)element(data[r], c);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 8);
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 16);
        if (threadIdx.x % 32 / 8 == c % 4) band[p.row / 32 * 128 + p.col + c] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 128 && first + i < cols) sums[first + i] = ((band[i] + band[128 + i]) + band[256 + i]) + band[384 + i];
#pragma unroll
    for (int r = 0; r < 8; r++) forget(data[r]);
}

// `sums`, where SUMS: of the columns of each 128 rows, [rows / 128 rounded up][cols].
template <class T, u32 GROUP, bool ALIGNED, u32 FORMAT, bool SUMS = false>
__device__ __forceinline__ void quantize_tile(const T* x, u64 x_stride, u32 rows, u32 cols, const ScaleRule& rule, const TileIn& in, const TileOut& out, double* sums = nullptr) {
    constexpr bool LINES = GROUP == PER_1X128 || GROUP == PER_ROW;  // factors of their own for each row and column
    __shared__ float row_encode[LINES ? 256 : 1];  // PER_1X128: maxima [2 column halves][128]; then encode factors
    __shared__ float col_encode[LINES ? 512 : 1];  // PER_1X128: maxima [4 row bands][128]; then encode factors
    __shared__ float scratch[32];
    const u32 tiles = (cols + 127) / 128;
    // After an amax pass the end of the matrix is what L2 still holds: begin there.
    const bool backwards = GROUP == PER_ROW || (GROUP == PER_TENSOR && in.factor_kind == FACTOR_COMPUTED);
    const u32 tile = backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const u32 tile_row = tile / tiles, tile_col = tile % tiles;
    const Place p = place();
    const u64 row = (u64)tile_row * 128 + p.row, col = (u64)tile_col * 128 + p.col;
    begin();
    Vec8<T> data[8];
    load_tile<ALIGNED>(data, x, x_stride, row, col, rows, cols);
    if constexpr (SUMS) column_sums(data, sums + (u64)tile_row * cols, (u64)tile_col * 128, cols);

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
        const GroupScale s = group_scale(rule, block_max(amax_of_tile(data), scratch));
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
        line_maxima<8>(
            data, out.codes, out.codes_t, [&](u32 r, float amax) { row_encode[p.col / 64 * 128 + p.row + r] = amax; },
            [&](u32 c, float amax) { col_encode[p.row / 32 * 128 + p.col + c] = amax; });
        __syncthreads();
    }
    if constexpr (LINES) {
        // Half of the block turns row maxima into factors, the other half column maxima.
        const u32 i = threadIdx.x % 128;
        if (threadIdx.x < 128) {
            const u64 r = (u64)tile_row * 128 + i;
            if (out.codes) {
                float amax;
                if constexpr (GROUP == PER_1X128) amax = fmaxf(row_encode[i], row_encode[128 + i]);
                else amax = r < rows ? in.row_amax[r] : 0.0f;
                const GroupScale s = group_scale(rule, amax);
                row_encode[i] = s.encode;
                if constexpr (GROUP == PER_1X128) {
                    if (r < round_up4(rows)) out.scales[vec128_index(rows, r, tile_col)] = r < rows ? s.scale : 0.0f;
                } else if (tile_col == 0 && r < rows) {
                    out.scales[r] = s.scale;
                }
            }
        } else if (out.codes_t) {
            const u64 c = (u64)tile_col * 128 + i;
            float amax;
            if constexpr (GROUP == PER_1X128) amax = fmaxf(fmaxf(col_encode[i], col_encode[128 + i]), fmaxf(col_encode[256 + i], col_encode[384 + i]));
            else amax = c < cols ? in.col_amax[c] : 0.0f;
            const GroupScale s = group_scale(rule, amax);
            col_encode[i] = s.encode;
            if constexpr (GROUP == PER_1X128) {
                if (c < cols) out.scales_t[vec128_index(cols, c, tile_row)] = s.scale;
            } else if (tile_row == 0 && c < cols) {
                out.scales_t[c] = s.scale;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 8; r++) forget(data[r]);

    if (out.codes && col < cols) {
        // 1x128 codes have their rows padded to a multiple of 4 with zeros: the data there are zeros.
        const u64 row_end = GROUP == PER_1X128 ? round_up4(rows) : rows;
        u8* to = out.codes + row * cols + col;
#pragma unroll
        for (int r = 0; r < 8; r++) {
            if (row + r >= row_end) break;
            float e = encode;
            if constexpr (LINES) e = row_encode[p.row + r];
            *(uint2*)to = encode_scaled<FORMAT>(data[r], e);
            to += cols;
        }
    }
    if (!out.codes_t) return;
    // Through shared memory, so that the 128 codes of a column are written as one line: 16 units of eight codes for each of 128 columns, in pairs, the place of a
    // pair turned by the thread's columns, so that no bank is met twice.
    __shared__ __align__(16) uint2 exchange[128 * 16];
#pragma unroll
    for (int r = 0; r < 8; r++) forget(data[r]);
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float e = encode;
        if constexpr (LINES) e = col_encode[p.col + c];
        float v[8];
#pragma unroll
        for (int r = 0; r < 8; r++) v[r] = __fmul_rn(element(data[r], c), e);
        exchange[(p.col + c) * 16 + (p.row / 8 ^ threadIdx.x % 8 * 2)] = encode8<FORMAT>(v);
    }
    __syncthreads();
    // What contracts over the rows asks for a multiple of 16 of them: the data beyond the matrix are zeros, and so are their codes.
    const u64 pitch_t = round_up16(rows), row_t = (u64)tile_row * 128 + threadIdx.x % 8 * 16;
    if (row_t >= pitch_t) return;
    u32 column = threadIdx.x / 8;
    u8* to = out.codes_t + ((u64)tile_col * 128 + column) * pitch_t + row_t;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (tile_col * 128 + column < cols) *(uint4*)to = *(const uint4*)(exchange + column * 16 + (threadIdx.x % 8 ^ column / 8 % 8) * 2);
        column += 32;
        to += 32 * pitch_t;
    }
}

// Blocks of a multiprocessor that fit without spilling: what keeps enough loads in flight. Tuned where it was measured.
#ifndef TILE_BLOCKS
#if __CUDA_ARCH__ == 900
#define TILE_BLOCKS 4
#else
#define TILE_BLOCKS 3
#endif
#endif
template <class T, bool ALIGNED> constexpr u32 tile_blocks = sizeof(T) == 4 ? 2 : ALIGNED ? TILE_BLOCKS : TILE_BLOCKS - 1;

#define TILE_KERNEL(name, T, ALIGNED, NAME, GROUP)                                                                        \
    extern "C" __global__ void __launch_bounds__(256, (tile_blocks<T, ALIGNED>)) NAME##_##name(              \
        const T* __restrict__ x,  /* [rows][cols], row stride x_stride elements */                                        \
        u64 x_stride,                                                                                                     \
        u32 rows,                                                                                                         \
        u32 cols,                 /* multiple of 16 */                                                                    \
        ScaleRule rule, TileIn in, TileOut out)                                                                           \
    {                                                                                                                     \
        if (rule.format == E4M3) quantize_tile<T, GROUP, ALIGNED, E4M3>(x, x_stride, rows, cols, rule, in, out);  \
        else quantize_tile<T, GROUP, ALIGNED, E5M2>(x, x_stride, rows, cols, rule, in, out);                      \
    }
