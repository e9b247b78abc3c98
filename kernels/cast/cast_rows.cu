// Casts in groups along rows: 16, 32, 64 or 128 columns, or the whole row.
#include "cast/cast.cuh"

// A warp takes 4 rows x 128 columns, eight lanes a row, sixteen elements a lane in two loads of which each covers 64 neighbours
// of a row. A block takes 4 rows and CHUNKS times 8 chunks of 128 columns along them.
template <class S, int CHUNKS, u32 FORMAT>
__device__ __forceinline__ void cast_rows(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    const u32 chunks = (cols + 127) / 128, blocks = (chunks + 8 * CHUNKS - 1) / (8 * CHUNKS);
    const u32 lane = threadIdx.x % 32;
    const u64 row = (u64)(blockIdx.x / blocks) * 4 + lane / 8;
    const u32 first = (blockIdx.x % blocks * 8 * CHUNKS + threadIdx.x / 32) * 128 + lane % 8 * 8;
    begin();
    const i64 from = source_row(source, row, rows);
    S data[CHUNKS][2];
#pragma unroll
    for (int g = 0; g < CHUNKS; g++)
#pragma unroll
        for (int h = 0; h < 2; h++) data[g][h].load(source, from, first + 1024 * g + 64 * h);
    const u32 shift = out.grid.col_shift;
#pragma unroll
    for (int g = 0; g < CHUNKS; g++) {
        float m[2], encode[2];
        if (out.part != CODES) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float v[8];
                data[g][h].values(source, from, first + 1024 * g + 64 * h, v);
                m[h] = amax_of(v, 0.0f);
            }
            if (shift == 7) m[0] = m[1] = fmaxf(m[0], m[1]);
            // Lanes of a group: 2, 4 or 8.
            for (u32 step = shift >= 6 ? 4 : shift == 5 ? 2 : 1; step > 0; step /= 2) {
#pragma unroll
                for (int h = 0; h < 2; h++) m[h] = fmaxf(m[h], __shfl_xor_sync(0xFFFFFFFFu, m[h], step));
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 col = first + 1024 * g + 64 * h;
            const bool inside = row < rows && col < cols;
            if (out.part == CODES) {
                encode[h] = inside ? __frcp_rn(load_scale(out.grid, out.scales, row, col >> shift)) : 0.0f;
                continue;
            }
            if (h == 1 && shift == 7) {
                encode[1] = encode[0];
                continue;
            }
            const GroupScale s = cast_scale(rule, m[h]);
            encode[h] = s.encode;
            // The group's first lane; its first vector may lie outside a matrix of 16 columns no more than the group does.
            if (inside && (col & ((1u << shift) - 1)) == 0) store_scale(out.grid, out.scales, row, col >> shift, s.scale);
        }
        if (out.part == SCALES) continue;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const u32 col = first + 1024 * g + 64 * h;
            if (row >= rows || col >= cols) continue;
            data[g][h].forget();
            float v[8];
            data[g][h].values(source, from, col, v);
            store_codes<FORMAT>(out.codes, row * cols + col, v, encode[h]);
        }
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
FOR_EACH_SOURCE(CAST_ROWS, 1)
FOR_EACH_SOURCE(CAST_ROWS, 2)

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
    }
    float encode;
    if (out.part == CODES) {
        encode = __frcp_rn(load_scale(out.grid, out.scales, row, 0));
    } else {
        if constexpr (VECTORS > 0) {
#pragma unroll
            for (int i = 0; i < VECTORS; i++) {
                float v[8];
                data[i].values(source, from, (threadIdx.x + i * blockDim.x) * 8, v);
                amax = amax_of(v, amax);
            }
        } else {
            for (u32 col = threadIdx.x * 8; col < cols; col += blockDim.x * 8) {
                float v[8];
                data[0].load(source, from, col);
                data[0].values(source, from, col, v);
                amax = amax_of(v, amax);
            }
        }
        const GroupScale s = cast_scale(rule, block_max(amax, scratch));
        encode = s.encode;
        if (threadIdx.x == 0) store_scale(out.grid, out.scales, row, 0, s.scale);
        if (out.part == SCALES) return;
    }
    const auto write = [&](S& held, u32 col) {
        held.forget();
        float v[8];
        held.values(source, from, col, v);
        store_codes<FORMAT>(out.codes, row * cols + col, v, encode);
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
            write(data[0], col);
        }
    }
}

#define CAST_ROW(name, SOURCE, VECTORS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(512) cast_row_##VECTORS##_##name(                  \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        if (rule.format == E4M3) cast_row<S, VECTORS, E4M3>(source, rows, cols, rule, out);                               \
        else cast_row<S, VECTORS, E2M1>(source, rows, cols, rule, out);                                                   \
    }
FOR_EACH_SOURCE(CAST_ROW, 0)
FOR_EACH_SOURCE(CAST_ROW, 4)
