// Casts in groups along rows: 16, 32, 64 or 128 columns, or the whole row; of any source.
#pragma once
#include "cast/cast.cuh"

// How the amax of vectors becomes their groups' scales. A warp has 4 rows, eight lanes each, and lane l of a row columns 8 l .. 8 l + 7 of 64
// in each of its VECTORS; two such vectors that follow each other are 128 neighbours. SHIFT: log2 of a group's columns, 4 to 7.
template <int VECTORS, int SHIFT> struct Groups {
    static constexpr int LANES = SHIFT >= 6 ? 8 : 1 << (SHIFT - 3);  // that share a group of a vector
    static constexpr int STEP = SHIFT == 7 ? 2 : 1;                   // vectors of a group
    static constexpr int COUNT = VECTORS / STEP;                      // groups that LANES lanes have

    // Stores the groups' scales, each by one lane, which makes the factors that the others get from it. `column(v)` is where vector v
    // begins in this lane, `inside(v)` whether its group begins within the matrix.
    template <class COLUMN, class INSIDE>
    static __device__ __forceinline__ void factors(float (&m)[VECTORS], u64 row, COLUMN column, INSIDE inside, const CastRule& rule, const CastOut& out, float (&encode)[VECTORS]) {
#pragma unroll
        for (int g = 0; g < COUNT; g++) {
            float amax = m[g * STEP];
            if (STEP == 2) amax = fmaxf(amax, m[g * STEP + 1]);
            m[g] = lanes_max<LANES>(amax);
        }
        const u32 lane = threadIdx.x % 32, own = lane % LANES;
#pragma unroll
        for (int first = 0; first < COUNT; first += LANES) {
            float amax = m[first];
#pragma unroll
            for (int g = first + 1; g < COUNT && g < first + LANES; g++) amax = own == g - first ? m[g] : amax;
            const GroupScale s = cast_scale(rule, amax);
            const u32 vector = (first + own) * STEP;
            if (first + own < COUNT && inside(vector)) store_scale(out.grid, out.scales, row, column(vector) >> SHIFT, s.scale);
#pragma unroll
            for (int g = first; g < COUNT && g < first + LANES; g++) {
                const float factor = __shfl_sync(0xFFFFFFFFu, s.encode, lane - own + g - first);
#pragma unroll
                for (int v = 0; v < STEP; v++) encode[g * STEP + v] = factor;
            }
        }
    }
};

// A block takes 4 rows and CHUNKS times 8 chunks of 128 columns along them, a lane sixteen elements of each chunk.
template <class S, int CHUNKS> struct Rows {
    static constexpr int VECTORS = 2 * CHUNKS;
    const CastSource& source;
    u32 rows, cols;
    u64 row;
    u32 first;  // column of the lane's first vector
    S data[VECTORS];

    static __device__ __forceinline__ u32 offset(u32 v) { return 1024 * (v / 2) + 64 * (v % 2); }

    // Loads and opens: what all groups share.
    __device__ __forceinline__ Rows(const CastSource& source, u32 rows, u32 cols) : source(source), rows(rows), cols(cols) {
        const u32 lane = threadIdx.x % 32;
        row = (u64)blockIdx.x * 4 + lane / 8;
        first = (blockIdx.y * 8 * CHUNKS + threadIdx.x / 32) * 128 + lane % 8 * 8;
        begin();
        const int from = source_row<S>(source, row, rows);
        const typename S::At at = S::at(source, from, first);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) data[v].load(source, at, offset(v), from >= 0 && first + offset(v) < cols);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) data[v].open(source, at, offset(v), from, first + offset(v), true);
    }

    template <u32 FORMAT, int SHIFT> __device__ __forceinline__ void cast(const CastRule& rule, const CastOut& out) {
        float encode[VECTORS];
        bool clean[VECTORS];
        if (out.part == CODES) {
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                const bool inside = row < rows && first + offset(v) < cols;
                encode[v] = inside ? __frcp_rn(load_scale(out.grid, out.scales, row, (first + offset(v)) >> SHIFT)) : 0.0f;
                clean[v] = false;
            }
        } else {
            float m[VECTORS];
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                clean[v] = true;
                m[v] = amax_of<FORMAT>(data[v], 0.0f, clean[v]);
            }
            const auto column = [&](u32 v) { return first + offset(v); };
            const auto inside = [&](u32 v) { return row < rows && column(v) >> SHIFT << SHIFT < cols; };
            Groups<VECTORS, SHIFT>::factors(m, row, column, inside, rule, out, encode);
        }
        if (out.part == SCALES || row >= rows) return;
        const u64 start = row * cols + first;
        u8* const codes = once(out.codes + (FORMAT == E2M1 ? start / 2 : start));
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            if (first + offset(v) >= cols) continue;
            data[v].forget();
            float x[8];
            values(data[v], x);
            store_codes<FORMAT>(codes, offset(v), x, encode[v], clean[v] && encode[v] >= LEAST_ENCODE);
        }
    }

    template <u32 FORMAT> __device__ __forceinline__ void cast(const CastRule& rule, const CastOut& out) {
        const u32 shift = out.grid.col_shift;
        if (shift == 7) cast<FORMAT, 7>(rule, out);
        else if (shift == 6) cast<FORMAT, 6>(rule, out);
        else if (shift == 5) cast<FORMAT, 5>(rule, out);
        else cast<FORMAT, 4>(rule, out);
    }
};

// Blocks of a multiprocessor that fit without spilling.
#if __CUDA_ARCH__ == 900
constexpr u32 WIDE_BLOCKS = 4;
#else
constexpr u32 WIDE_BLOCKS = 3;
#endif
template <class S, int CHUNKS> constexpr u32 rows_blocks = sizeof(S) > 16 && CHUNKS == 2 ? 3 : S::BATCH < 4 ? WIDE_BLOCKS : 4;

#define CAST_ROWS(name, SOURCE, CHUNKS)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256, (rows_blocks<Unwrap<void SOURCE>::Type, CHUNKS>)) cast_rows_##CHUNKS##_##name( \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        Rows<Unwrap<void SOURCE>::Type, CHUNKS> loaded(source, rows, cols);                                               \
        if (rule.format == E4M3) loaded.template cast<E4M3>(rule, out);                                                   \
        else loaded.template cast<E2M1>(rule, out);                                                                       \
    }

// One block a row. The row stays in registers between amax and codes, VECTORS vectors of eight elements in each thread; with 0
// it is read twice.
template <class S, int VECTORS, u32 FORMAT>
__device__ __forceinline__ void cast_row(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    __shared__ float scratch[32];
    const u64 row = blockIdx.x;
    begin();
    const int from = source_row<S>(source, row, rows);
    const typename S::At at = S::at(source, from, threadIdx.x * 8);
    const u32 step = blockDim.x * 8;
    S data[VECTORS > 0 ? VECTORS : 1];
    float amax = 0.0f;
    if constexpr (VECTORS > 0) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) data[i].load(source, at, i * step, from >= 0 && threadIdx.x * 8 + i * step < cols);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) data[i].open(source, at, i * step, from, threadIdx.x * 8 + i * step, true);
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
            for (u32 col = threadIdx.x * 8; col < cols; col += step) {
                data[0].load(source, at, col - threadIdx.x * 8, from >= 0);
                data[0].open(source, at, col - threadIdx.x * 8, from, col, true);
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
            const u32 col = threadIdx.x * 8 + i * step;
            if (col < cols) write(data[i], col);
        }
    } else {
        for (u32 col = threadIdx.x * 8; col < cols; col += step) {
            data[0].load(source, at, col - threadIdx.x * 8, from >= 0);
            data[0].open(source, at, col - threadIdx.x * 8, from, col, out.part == CODES);
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
