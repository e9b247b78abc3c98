// Casts in groups along rows: 16, 32, 64 or 128 columns, or the whole row; of any source.
#pragma once
#include "cast/source.cuh"

// How the amax of vectors becomes their groups' scales. A warp has 4 rows, eight lanes each, and lane l of a row columns 8 l .. 8 l + 7 of 64
// in each of its VECTORS; two such vectors that follow each other are 128 neighbours. SHIFT: log2 of a group's columns, 4 to 7.
template <class M, int VECTORS, int SHIFT> struct Groups {
    static constexpr int LANES = SHIFT >= 6 ? 8 : 1 << (SHIFT - 3);  // that share a group of a vector
    static constexpr int STEP = SHIFT == 7 ? 2 : 1;                   // vectors of a group
    static constexpr int COUNT = VECTORS / STEP;                      // groups that LANES lanes have

    // Stores the groups' scales, each by one lane, which makes the factors that the others get from it. `row(v)` and `column(v)` are where
    // vector v begins in this lane, `inside(v)` whether its group begins within the matrix.
    template <class ROW, class COLUMN, class INSIDE>
    static __device__ __forceinline__ void factors(typename M::Type (&m)[VECTORS], ROW row, COLUMN column, INSIDE inside, const CastRule& rule, const CastOut& out, float (&encode)[VECTORS]) {
#pragma unroll
        for (int g = 0; g < COUNT; g++) {
            typename M::Type amax = m[g * STEP];
            if (STEP == 2) amax = M::larger(amax, m[g * STEP + 1]);
            m[g] = lanes_max<LANES>(amax);
        }
        const u32 lane = threadIdx.x % 32, own = lane % LANES;
#pragma unroll
        for (int first = 0; first < COUNT; first += LANES) {
            typename M::Type amax = m[first];
#pragma unroll
            for (int g = first + 1; g < COUNT && g < first + LANES; g++) amax = own == g - first ? m[g] : amax;
            const GroupScale s = cast_scale(rule, M::amax(amax));
            const u32 vector = (first + own) * STEP;
            if (first + own < COUNT && inside(vector)) store_scale(out.grid, out.scales, row(vector), column(vector) >> SHIFT, s.scale);
#pragma unroll
            for (int g = first; g < COUNT && g < first + LANES; g++) {
                const float factor = __shfl_sync(0xFFFFFFFFu, s.encode, lane - own + g - first);
#pragma unroll
                for (int v = 0; v < STEP; v++) encode[g * STEP + v] = factor;
            }
        }
    }
};

// A block takes eight chunks of 128 columns of QUADS times 4 rows, a lane sixteen elements of a chunk.
template <class S, int QUADS> struct Rows {
    static constexpr int VECTORS = 2 * QUADS;
    const CastSource& source;
    u32 rows, cols;
    u64 row;    // of the lane's first vector
    u32 first;  // column of it
    S data[VECTORS];

    static __device__ __forceinline__ u32 down(u32 v) { return v / 2 * 4; }
    static __device__ __forceinline__ u32 right(u32 v) { return v % 2 * 64; }
    __device__ __forceinline__ bool inside(u32 v) const { return row + down(v) < rows && first + right(v) < cols; }

    // Loads and opens: what all groups share.
    __device__ __forceinline__ Rows(const CastSource& source, u32 rows, u32 cols) : source(source), rows(rows), cols(cols) {
        const u32 lane = threadIdx.x % 32;
        row = (u64)blockIdx.x * (4 * QUADS) + lane / 8;
        first = (blockIdx.y * 8 + threadIdx.x / 32) * 128 + lane % 8 * 8;
        begin();
        int from[QUADS];
        typename S::At at[QUADS];
        if (source.index || S::EXPERTS) {
#pragma unroll
            for (int q = 0; q < QUADS; q++) {
                from[q] = source_row<S>(source, row + 4 * q, rows);
                at[q] = S::at(source, from[q], first);
            }
        } else {
            // Without the tests of each row.
            at[0] = S::at(source, (int)row, first);
#pragma unroll
            for (int q = 0; q < QUADS; q++) {
                from[q] = row + 4 * q < rows ? (int)(row + 4 * q) : -1;
                if (q) at[q] = S::down(source, at[q - 1], 4);
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) data[v].template load<true>(source, at[v / 2], right(v), from[v / 2] >= 0 && first + right(v) < cols);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) data[v].open(source, at[v / 2], right(v), from[v / 2], first + right(v), true);
    }

    template <u32 FORMAT, int SHIFT> __device__ __forceinline__ void cast(const CastRule& rule, const CastOut& out) {
        using M = Maximum<S, FORMAT>;
        float encode[VECTORS];
        bool clean = false;
        if (out.part == CODES) {
#pragma unroll
            for (int v = 0; v < VECTORS; v++)
                encode[v] = inside(v) ? __frcp_rn(load_scale(out.grid, out.scales, row + down(v), (first + right(v)) >> SHIFT)) : 0.0f;
        } else {
            typename M::Type m[VECTORS], largest = 0;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                m[v] = maximum_of<M>(0, data[v]);
                largest = M::larger(largest, m[v]);
            }
            clean = M::is_clean(largest);
            if (!clean) {
#pragma unroll
                for (int v = 0; v < VECTORS; v++) m[v] = M::of(amax_without_nan(data[v], 0.0f));
            }
            const auto column = [&](u32 v) { return first + right(v); };
            const auto begins = [&](u32 v) { return row + down(v) < rows && column(v) >> SHIFT << SHIFT < cols; };
            Groups<M, VECTORS, SHIFT>::factors(m, [&](u32 v) { return row + down(v); }, column, begins, rule, out, encode);
        }
        if (out.part == SCALES) return;
        const u64 start = row * cols + first, step = (u64)cols * 4;
        u8* codes = once(out.codes + (FORMAT == E2M1 ? start / 2 : start));
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            if (v && v % 2 == 0) codes = once(codes + (FORMAT == E2M1 ? step / 2 : step));
            data[v].forget();
            if (inside(v)) store_codes<FORMAT>(codes, right(v), data[v], encode[v], clean);
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

// Quads of rows of a block: one where there are few, else as many as registers hold.
constexpr int FEW = 0;
constexpr int MANY = 1;
template <class S, int AMOUNT> constexpr int quads = AMOUNT == FEW ? 1 : sizeof(S) == 16 && alignof(S) == 16 ? 4 : 2;

// Blocks of a multiprocessor that fit without spilling.
#if __CUDA_ARCH__ == 900
constexpr u32 WIDE_BLOCKS = 4;
#else
constexpr u32 WIDE_BLOCKS = 3;
#endif
template <class S, int AMOUNT> constexpr u32 rows_blocks = AMOUNT == MANY ? 3 : S::BATCH < 4 ? WIDE_BLOCKS : 4;

#define CAST_ROWS(name, SOURCE, NAME, AMOUNT)                                                                             \
    extern "C" __global__ void __launch_bounds__(256, (rows_blocks<Unwrap<void SOURCE>::Type, AMOUNT>)) cast_rows_##NAME##_##name( \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        Rows<S, quads<S, AMOUNT>> loaded(source, rows, cols);                                                             \
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
    if constexpr (VECTORS > 0) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) data[i].load(source, at, i * step, from >= 0 && threadIdx.x * 8 + i * step < cols);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) data[i].open(source, at, i * step, from, threadIdx.x * 8 + i * step, true);
    }
    // Those of a row that is read twice.
    const auto read = [&](u32 col, bool first) {
        data[0].load(source, at, col - threadIdx.x * 8, from >= 0);
        data[0].open(source, at, col - threadIdx.x * 8, from, col, first);
    };
    using M = Maximum<S, FORMAT>;
    float encode;
    bool clean = true;
    if (out.part == CODES) {
        encode = __frcp_rn(load_scale(out.grid, out.scales, row, 0));
        clean = false;
    } else {
        float amax = 0.0f;
        if constexpr (VECTORS > 0) {
            typename M::Type m = 0;
#pragma unroll
            for (int i = 0; i < VECTORS; i++) m = maximum_of<M>(m, data[i]);
            clean = M::is_clean(m);
            amax = M::amax(m);
            if (!clean) {
                amax = 0.0f;
#pragma unroll
                for (int i = 0; i < VECTORS; i++) amax = amax_without_nan(data[i], amax);
            }
        } else {
            for (u32 col = threadIdx.x * 8; col < cols; col += step) {
                read(col, true);
                amax = amax_of<FORMAT>(data[0], amax, clean);
            }
        }
        const GroupScale s = cast_scale(rule, block_max(amax, scratch));
        encode = s.encode;
        if (threadIdx.x == 0) store_scale(out.grid, out.scales, row, 0, s.scale);
        if (out.part == SCALES) return;
    }
    const auto write = [&](S& held, u32 col) {
        held.forget();
        store_codes<FORMAT>(out.codes, row * cols + col, held, encode, clean);
    };
    if constexpr (VECTORS > 0) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const u32 col = threadIdx.x * 8 + i * step;
            if (col < cols) write(data[i], col);
        }
    } else {
        for (u32 col = threadIdx.x * 8; col < cols; col += step) {
            read(col, out.part == CODES);
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
