// Casts in groups along rows: 16, 32, 64 or 128 columns, or the whole row; of any source.
#pragma once
#include "cast/source.cuh"

// How the amax of vectors becomes their groups' scales, where a row has WIDTH lanes of a warp, 8 or 32, and lane l of them the columns 8 l .. 8 l + 7 of
// 8 WIDTH in each of its VECTORS; two vectors of eight lanes that follow each other are 128 neighbours. SHIFT: log2 of a group's columns, 4 to 7.
template <class M, int VECTORS, int WIDTH, int SHIFT> struct Groups {
    static constexpr int WANTED = 1 << (SHIFT - 3);
    static constexpr int LANES = WANTED < WIDTH ? WANTED : WIDTH;  // that share a group of a vector
    static constexpr int STEP = WANTED / LANES;                     // vectors of a group
    static constexpr int COUNT = VECTORS / STEP;                    // groups that LANES lanes have

    // Factors of all vectors, made by one lane for each group, of which `keep(v, scale)` gets the scale, v being the group's first vector.
    template <class KEEP>
    static __device__ __forceinline__ void factors(typename M::Type (&m)[VECTORS], const CastRule& rule, float (&encode)[VECTORS], KEEP keep) {
#pragma unroll
        for (int g = 0; g < COUNT; g++) {
            typename M::Type amax = m[g * STEP];
#pragma unroll
            for (int v = 1; v < STEP; v++) amax = M::larger(amax, m[g * STEP + v]);
            m[g] = lanes_max<LANES>(amax);
        }
        const u32 lane = threadIdx.x % 32, own = lane % LANES;
#pragma unroll
        for (int first = 0; first < COUNT; first += LANES) {
            typename M::Type amax = m[first];
#pragma unroll
            for (int g = first + 1; g < COUNT && g < first + LANES; g++) amax = own == g - first ? m[g] : amax;
            const GroupScale s = cast_scale(rule, M::amax(amax));
            if (COUNT - first >= LANES || own < COUNT - first) keep((first + own) * STEP, s.scale);
#pragma unroll
            for (int g = first; g < COUNT && g < first + LANES; g++) {
                const float factor = __shfl_sync(0xFFFFFFFFu, s.encode, lane - own + g - first);
#pragma unroll
                for (int v = 0; v < STEP; v++) encode[g * STEP + v] = factor;
            }
        }
    }
};

// A block takes a row, or where that is too long, a part of it: of every 8 blockDim.x columns a thread has eight, VECTORS times. Along the rows
// memory is read and written in its order, which is worth 3 % (observed: H200, 2026-11).
template <class S, int VECTORS> struct Line {
    u64 row;
    u32 first, step;  // column of the thread's first vector, and from one to the next
    u32 cols;
    int from;
    typename S::At at;
    S data[VECTORS > 0 ? VECTORS : 1];

    __device__ __forceinline__ u32 column(u32 v) const { return first + v * step; }
    __device__ __forceinline__ bool inside(u32 v) const { return column(v) < cols; }

    __device__ __forceinline__ Line(const CastSource& source, u32 rows, u32 cols) : cols(cols) {
        row = blockIdx.x;
        step = blockDim.x * 8;
        first = blockIdx.y * VECTORS * step + threadIdx.x * 8;
        from = source_row<S>(source, row, rows);
        at = S::at(source, from, first);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) data[v].load(source, at, v * step, from >= 0 && inside(v));
#pragma unroll
        for (int v = 0; v < VECTORS; v++) data[v].open(source, at, v * step, from, column(v), true);
    }

    template <u32 FORMAT, int SHIFT> __device__ __forceinline__ void cast_groups(const CastRule& rule, const CastOut& out) {
        using M = Maximum<S, FORMAT>;
        float encode[VECTORS];
        bool clean = false;
        if (out.part == CODES) {
#pragma unroll
            for (int v = 0; v < VECTORS; v++) encode[v] = inside(v) ? __frcp_rn(load_scale(out.grid, out.scales, row, column(v) >> SHIFT)) : 0.0f;
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
            Groups<M, VECTORS, 32, SHIFT>::factors(m, rule, encode, [&](u32 v, float scale) {
                if (column(v) >> SHIFT << SHIFT < cols) store_scale(out.grid, out.scales, row, column(v) >> SHIFT, scale);
            });
#pragma unroll
            for (int v = 0; v < VECTORS; v++) clean = clean && is_factor(encode[v]);
        }
        if (out.part == SCALES) return;
        const u64 start = row * cols + first;
        u8* const codes = once(out.codes + (FORMAT == E2M1 ? start / 2 : start));
        const auto write = [&](auto bounded) {
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                data[v].forget();
                if (inside(v)) store_codes<FORMAT, bounded.value>(codes, v * step, data[v], encode[v]);
            }
        };
        if (FORMAT == E2M1 && clean) write(Bounded<true>{});
        else write(Bounded<false>{});
    }

    template <u32 FORMAT> __device__ __forceinline__ void cast_groups(const CastRule& rule, const CastOut& out) {
        const u32 shift = out.grid.col_shift;
        if (shift == 7) cast_groups<FORMAT, 7>(rule, out);
        else if (shift == 6) cast_groups<FORMAT, 6>(rule, out);
        else if (shift == 5) cast_groups<FORMAT, 5>(rule, out);
        else cast_groups<FORMAT, 4>(rule, out);
    }
};

// In groups of columns, two vectors a thread, for few rows; and for many with VECTORS, of which THREADS and BLOCKS of a multiprocessor are
// what registers allow without spilling.
#define CAST_GROUPS_FEW(name, SOURCE, ...)                                                                                \
    extern "C" __global__ void __launch_bounds__(512, 2) cast_groups_few_##name(                                          \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        begin();                                                                                                          \
        Line<Unwrap<void SOURCE>::Type, 2> line(source, rows, cols);                                                      \
        if (rule.format == E4M3) line.template cast_groups<E4M3>(rule, out);                                              \
        else line.template cast_groups<E2M1>(rule, out);                                                                  \
    }
#define CAST_GROUPS(NAME, SOURCE, FORMAT, VECTORS, THREADS, BLOCKS)                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) cast_groups_##NAME(                                     \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        begin();                                                                                                          \
        Line<Unwrap<void SOURCE>::Type, VECTORS> line(source, rows, cols);                                                \
        line.template cast_groups<FORMAT>(rule, out);                                                                     \
    }

// The whole row is a group. It stays in registers between amax and codes; with 0 VECTORS it is too long, and read twice.
template <class S, int VECTORS, u32 FORMAT>
__device__ __forceinline__ void cast_row(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    using M = Maximum<S, FORMAT>;
    __shared__ float scratch[32];
    begin();
    Line<S, VECTORS> line(source, rows, cols);
    // Those of a row that is read twice.
    S read;
    const auto read_at = [&](u32 col, bool first) {
        read.load(source, line.at, col - line.first, line.from >= 0);
        read.open(source, line.at, col - line.first, line.from, col, first);
    };
    float encode;
    bool clean = true;
    if (out.part == CODES) {
        encode = __frcp_rn(load_scale(out.grid, out.scales, line.row, 0));
        clean = false;
    } else {
        float amax = 0.0f;
        if constexpr (VECTORS > 0) {
            typename M::Type m = 0;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) m = maximum_of<M>(m, line.data[v]);
            clean = M::is_clean(m);
            amax = M::amax(m);
            if (!clean) {
                amax = 0.0f;
#pragma unroll
                for (int v = 0; v < VECTORS; v++) amax = amax_without_nan(line.data[v], amax);
            }
        } else {
            for (u32 col = line.first; col < cols; col += line.step) {
                read_at(col, true);
                amax = amax_of<FORMAT>(read, amax, clean);
            }
        }
        const GroupScale s = cast_scale(rule, block_max(amax, scratch));
        encode = s.encode;
        if (threadIdx.x == 0) store_scale(out.grid, out.scales, line.row, 0, s.scale);
        if (out.part == SCALES) return;
    }
    const bool bounded = clean && is_factor(encode);
    const auto write = [&](S& held, u32 col) {
        held.forget();
        store_codes<FORMAT>(out.codes, line.row * cols + col, held, encode, bounded);
    };
    if constexpr (VECTORS > 0) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (line.inside(v)) write(line.data[v], line.column(v));
    } else {
        for (u32 col = line.first; col < cols; col += line.step) {
            read_at(col, out.part == CODES);
            write(read, col);
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
