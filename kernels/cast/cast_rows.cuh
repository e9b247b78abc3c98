// Casts in groups along rows: 16, 32, 64 or 128 columns, or the whole row; of any source.
#pragma once
#include "cast/cast.cuh"

// A warp takes 4 rows x 128 columns, eight lanes a row, sixteen elements a lane in two vectors of which each covers 64 neighbours
// of a row. A block takes 4 rows and CHUNKS times 8 chunks of 128 columns along them.
template <class S, int CHUNKS, u32 FORMAT>
__device__ __forceinline__ void cast_rows(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    constexpr int VECTORS = 2 * CHUNKS;
    const u32 chunks = (cols + 127) / 128, blocks = (chunks + 8 * CHUNKS - 1) / (8 * CHUNKS);
    const u32 lane = threadIdx.x % 32;
    const u64 row = (u64)(blockIdx.x / blocks) * 4 + lane / 8;
    const u32 first = (blockIdx.x % blocks * 8 * CHUNKS + threadIdx.x / 32) * 128 + lane % 8 * 8;
    const auto column = [&](u32 v) { return first + 1024 * (v / 2) + 64 * (v % 2); };
    begin();
    const i64 from = source_row(source, row, rows);
    S data[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) data[v].load(source, from, column(v));
#pragma unroll
    for (int v = 0; v < VECTORS; v++) data[v].open(source, from, column(v), true);
    const u32 shift = out.grid.col_shift;
    float encode[VECTORS];
    bool clean[VECTORS];
    if (out.part == CODES) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const bool inside = row < rows && column(v) < cols;
            encode[v] = inside ? __frcp_rn(load_scale(out.grid, out.scales, row, column(v) >> shift)) : 0.0f;
            clean[v] = false;
        }
    } else {
        float m[VECTORS];
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            clean[v] = true;
            m[v] = amax_of<FORMAT>(data[v], 0.0f, clean[v]);
        }
        if (shift == 7) {
#pragma unroll
            for (int v = 0; v < VECTORS; v += 2) m[v] = m[v + 1] = fmaxf(m[v], m[v + 1]);
        }
        // A group is these neighbouring lanes of a vector; one of 128 columns is all eight of both vectors.
        const u32 lanes = shift >= 6 ? 8 : shift == 5 ? 4 : 2;
        for (u32 step = lanes / 2; step > 0; step /= 2) {
#pragma unroll
            for (int v = 0; v < VECTORS; v++) m[v] = fmaxf(m[v], __shfl_xor_sync(0xFFFFFFFFu, m[v], step));
        }
        // Each lane makes the factors of one vector's group, or of two where a group has two lanes; the others get them from it.
        const u32 own = lane % lanes;
        const auto make = [&](u32 v) {
            float amax = m[0];
#pragma unroll
            for (int i = 1; i < VECTORS; i++) amax = v == i ? m[i] : amax;
            const GroupScale s = cast_scale(rule, amax);
            const u32 group = column(v) >> shift;
            const bool writes = v < VECTORS && (shift < 7 || v % 2 == 0);
            if (writes && row < rows && group << shift < cols) store_scale(out.grid, out.scales, row, group, s.scale);
            return s.encode;
        };
        const float one = make(own);
        float other = 0.0f;
        if (VECTORS > 2 && lanes == 2) other = make(own + 2);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const u32 of = lane - own + (v < lanes ? v : v - lanes);
            encode[v] = __shfl_sync(0xFFFFFFFFu, v < lanes ? one : other, of);
        }
    }
    if (out.part == SCALES || row >= rows) return;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const u32 col = column(v);
        if (col >= cols) continue;
        data[v].forget();
        float x[8];
        values(data[v], x);
        store_codes<FORMAT>(out.codes, row * cols + col, x, encode[v], clean[v] && encode[v] >= LEAST_ENCODE);
    }
}

#define CAST_ROWS(name, SOURCE, CHUNKS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256, 4) cast_rows_##CHUNKS##_##name(                                        \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        if (rule.format == E4M3) cast_rows<S, CHUNKS, E4M3>(source, rows, cols, rule, out);                               \
        else cast_rows<S, CHUNKS, E2M1>(source, rows, cols, rule, out);                                                   \
    }

// One block a row. The row stays in registers between amax and codes, VECTORS vectors of eight elements in each thread; with 0
// it is read twice.
template <class S, int VECTORS, u32 FORMAT>
__device__ __forceinline__ void cast_row(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    __shared__ float scratch[32];
    const u64 row = blockIdx.x;
    begin();
    const i64 from = source_row(source, row, rows);
    S data[VECTORS > 0 ? VECTORS : 1];
    float amax = 0.0f;
    if constexpr (VECTORS > 0) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) data[i].load(source, from, (threadIdx.x + i * blockDim.x) * 8);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) data[i].open(source, from, (threadIdx.x + i * blockDim.x) * 8, true);
    }
    float encode;
    bool clean = true;
    if (out.part == CODES) {
        encode = __frcp_rn(load_scale(out.grid, out.scales, row, 0));
        clean = false;
    } else {
        if constexpr (VECTORS > 0) {
#pragma unroll
            for (int i = 0; i < VECTORS; i++) amax = amax_of<FORMAT>(data[i], amax, clean);
        } else {
            for (u32 col = threadIdx.x * 8; col < cols; col += blockDim.x * 8) {
                data[0].load(source, from, col);
                data[0].open(source, from, col, true);
                amax = amax_of<FORMAT>(data[0], amax, clean);
            }
        }
        const GroupScale s = cast_scale(rule, block_max(amax, scratch));
        encode = s.encode;
        if (threadIdx.x == 0) store_scale(out.grid, out.scales, row, 0, s.scale);
        if (out.part == SCALES) return;
    }
    const bool bounded = clean && encode >= LEAST_ENCODE;
    const auto write = [&](S& held, u32 col) {
        held.forget();
        float v[8];
        values(held, v);
        store_codes<FORMAT>(out.codes, row * cols + col, v, encode, bounded);
    };
    if constexpr (VECTORS > 0) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const u32 col = (threadIdx.x + i * blockDim.x) * 8;
            if (col < cols) write(data[i], col);
        }
    } else {
        for (u32 col = threadIdx.x * 8; col < cols; col += blockDim.x * 8) {
            data[0].load(source, from, col);
            data[0].open(source, from, col, out.part == CODES);
            write(data[0], col);
        }
    }
}

// Threads at the most: what the registers of VECTORS vectors allow without spilling.
#define CAST_ROW(name, SOURCE, VECTORS, THREADS)                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) cast_row_##VECTORS##_##name(                                    \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        if (rule.format == E4M3) cast_row<S, VECTORS, E4M3>(source, rows, cols, rule, out);                               \
        else cast_row<S, VECTORS, E2M1>(source, rows, cols, rule, out);                                                   \
    }
