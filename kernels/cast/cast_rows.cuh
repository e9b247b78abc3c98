// Casts in groups along rows: 16, 32, 64 or 128 columns, or the whole row; of any source.
#pragma once
#include "cast/maximum.cuh"

// How the amax of vectors becomes their groups' scales, where a row has WIDTH lanes of a warp, 8 or 32, and lane l of them the l-th EACH of
// EACH * WIDTH columns in each of its VECTORS; two vectors of eight lanes by eight that follow each other are 128 neighbours. SHIFT: log2 of a group's
// columns, 4 to 7.
template <class M, int VECTORS, int EACH, int WIDTH, int SHIFT> struct Groups {
    static constexpr int WANTED = (1 << SHIFT) / EACH;
    static constexpr int LANES = WANTED < WIDTH ? WANTED : WIDTH;  // that share a group of a vector
    static constexpr int STEP = WANTED / LANES;                     // vectors of a group
    static constexpr int COUNT = VECTORS / STEP;                    // groups that LANES lanes have: a power of two
    static constexpr int OWN = COUNT > LANES ? COUNT / LANES : 1;  // groups that one lane makes the factors of
    static constexpr int TWINS = COUNT > LANES ? 1 : LANES / COUNT;  // lanes that make the same

    static __device__ __forceinline__ u32 own_lane() { return threadIdx.x % 32 % LANES; }
    // The first vector of a lane's i-th own group.
    static __device__ __forceinline__ u32 own_vector(int i) { return (own_lane() / TWINS * OWN + i) * STEP; }

    // Factors of a lane's own groups, of each of which one lane gives it and the scale to `keep(v, both)`, v being the group's first vector.
    // RULE: one that `cast_scale` knows.
    template <u32 FORMAT, class RULE, class KEEP>
    static __device__ __forceinline__ void own_factors(const typename M::Type (&of_vectors)[VECTORS], const RULE& rule, float (&factor)[OWN], KEEP keep) {
        typename M::Type m[COUNT];
#pragma unroll
        for (int g = 0; g < COUNT; g++) {
            m[g] = of_vectors[g * STEP];
#pragma unroll
            for (int v = 1; v < STEP; v++) m[g] = M::larger(m[g], of_vectors[g * STEP + v]);
        }
        exchange<COUNT, LANES / 2>(m, M::larger);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const GroupScale s = cast_scale<FORMAT>(rule, M::amax(m[i]));
            if (own_lane() % TWINS == 0) keep(own_vector(i), s);
            factor[i] = s.encode;
        }
    }

    // What lanes have of their own groups, given to all vectors of these.
    template <class T> static __device__ __forceinline__ void spread(const T (&own)[OWN], T (&of_vectors)[VECTORS]) {
        const u32 lane = threadIdx.x % 32;
#pragma unroll
        for (int g = 0; g < COUNT; g++) {
            const T of_group = __shfl_sync(0xFFFFFFFFu, own[g % OWN], lane - own_lane() + g / OWN * TWINS);
#pragma unroll
            for (int v = 0; v < STEP; v++) of_vectors[g * STEP + v] = of_group;
        }
    }

    // Both steps: factors of all vectors.
    template <u32 FORMAT, class RULE, class KEEP>
    static __device__ __forceinline__ void factors(const typename M::Type (&of_vectors)[VECTORS], const RULE& rule, float (&encode)[VECTORS], KEEP keep) {
        float factor[OWN];
        own_factors<FORMAT>(of_vectors, rule, factor, keep);
        spread(factor, encode);
    }
};

// What was tried on sm_90 alone (H200, 2026-11), and makes some kernels for others, PTX for 90 among them, spill a register. Scales of lines, most of
// which lie by rows, are stored in that order first: fewer instructions, up to 4 % of E2M1's time. E4M3 codes past the end of a row are made, too, and not
// stored: without the branch SwiGLU takes 2 % less; E2M1, whose steps are more, would take 3 % longer.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool TUNED = true;
#else
constexpr bool TUNED = false;
#endif

// The scale of a group of a line. FLAT: it is one of many rows, whose scales are FP32 numbers by rows.
template <bool FLAT = false> __device__ __forceinline__ void store_scale_of_line(const CastOut& out, u64 row, u64 col, float scale) {
    if (FLAT) ((float*)out.scales)[col] = scale;
    else if (TUNED && out.grid.order == ROW_MAJOR) ((float*)out.scales)[row * out.grid.cols + col] = scale;
    else store_scale(out.grid, out.scales, row, col, scale);
}

// Codes of a vector; past the end of a row nothing is stored.
template <u32 FORMAT, bool BOUNDED, class S> __device__ __forceinline__ void store_codes_if(bool inside, u8* codes, u64 at, const S& x, float encode) {
    if constexpr (FORMAT == E2M1 || !TUNED) {
        if (inside) store_codes<FORMAT, BOUNDED>(codes, at, x, encode);
    } else {
        const auto piece = codes_of<FORMAT, BOUNDED>(x, encode);
        if (inside) store_piece(codes + at, piece);
    }
}

// What the threads of a block hold: vectors of eight or sixteen neighbours, and where each lies. SHAPE says which, and shares their lanes out to groups.
template <class S, class SHAPE> struct Held {
    static constexpr int VECTORS = SHAPE::VECTORS;
    SHAPE shape;
    u32 rows, cols;
    int from[SHAPE::ROWS];
    typename S::At at[SHAPE::ROWS];
    S data[VECTORS > 0 ? VECTORS : 1];

    __device__ __forceinline__ u32 row(u32 v) const { return shape.row + SHAPE::down(v); }
    __device__ __forceinline__ u32 column(u32 v) const { return shape.first + shape.right(v); }
    __device__ __forceinline__ bool inside(u32 v) const { return (SHAPE::WHOLE || row(v) < rows) && column(v) < cols; }

    // Loads and opens.
    __device__ __forceinline__ Held(const CastSource& source, u32 rows, u32 cols) : shape(), rows(rows), cols(cols) {
        if (SHAPE::FLAT) {
            from[0] = 0;
            at[0] = S::at(source, 0, shape.first);
        } else if (SHAPE::ROWS == 1 || source.index || S::EXPERTS) {
#pragma unroll
            for (int r = 0; r < SHAPE::ROWS; r++) {
                from[r] = source_row<S>(source, shape.row + r * SHAPE::APART, rows);
                at[r] = S::at(source, from[r], shape.first);
            }
        } else {
            // Without the tests of each row.
            at[0] = S::at(source, (int)shape.row, shape.first);
#pragma unroll
            for (int r = 0; r < SHAPE::ROWS; r++) {
                from[r] = row(r * SHAPE::ALONG) < rows ? (int)row(r * SHAPE::ALONG) : -1;
                if (r) at[r] = S::down(source, at[r - 1], SHAPE::APART);
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const int r = v / SHAPE::ALONG;
            data[v].load(source, at[r], shape.right(v), from[r] >= 0 && column(v) < cols);
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const int r = v / SHAPE::ALONG;
            data[v].open(source, at[r], shape.right(v), from[r], column(v), true);
        }
    }

    template <u32 FORMAT, int SHIFT> __device__ __forceinline__ void cast_groups(const CastRule& rule, const CastOut& out) {
        using M = Maximum<S, FORMAT>;
        float encode[VECTORS];
        bool clean = false;
        if (out.part == CODES) {
#pragma unroll
            for (int v = 0; v < VECTORS; v++) encode[v] = inside(v) ? __frcp_rn(load_scale(out.grid, out.scales, row(v), column(v) >> SHIFT)) : 0.0f;
        } else {
            typename M::Type m[VECTORS], largest = 0;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) {
                m[v] = M::with(0, data[v]);
                largest = M::larger(largest, m[v]);
            }
            clean = M::is_clean(largest);
            if (!clean) {
#pragma unroll
                for (int v = 0; v < VECTORS; v++) m[v] = M::of(amax_without_nan(data[v], 0.0f));
            }
            using Of = Groups<M, VECTORS, neighbours<S>, SHAPE::WIDTH, SHIFT>;
            float own[Of::OWN];
            Of::template own_factors<FORMAT>(m, rule, own, [&](u32 v, const GroupScale& s) {
                if (FORMAT == E2M1) clean = clean && fits(rule, s.encode);
                if ((!SHAPE::WHOLE && row(v) >= rows) || column(v) >> SHIFT << SHIFT >= cols) return;
                if (SHAPE::WHOLE) store_scale_of_line<SHAPE::FLAT>(out, row(v), column(v) >> SHIFT, s.scale);
                else store_scale(out.grid, out.scales, row(v), column(v) >> SHIFT, s.scale);
            });
            Of::spread(own, encode);
            // Of the factors that a lane multiplies by, others have looked at some.
            if (FORMAT == E2M1) clean = __all_sync(0xFFFFFFFFu, clean);
        }
        if (out.part == SCALES) return;
#ifdef E2M1_BY_POWER
        if constexpr (FORMAT == E2M1 && is_wide<S>) {
            if (rule.pow2 && clean) return write_by_power(out, encode);
        }
#endif
        if (FORMAT == E2M1 && clean) write<FORMAT, true>(out, encode);
        else write<FORMAT, false>(out, encode);
    }

    // Whether products by a factor are bounded, and if it is a power of two, may be found by it.
    __device__ __forceinline__ bool fits(const CastRule& rule, float encode) const {
#ifdef E2M1_BY_POWER
        if constexpr (is_wide<S>)
            if (rule.pow2) return has_power_of(data[0], encode);
#endif
        return is_factor(encode);
    }

#ifdef E2M1_BY_POWER
    __device__ __forceinline__ void write_by_power(const CastOut& out, const float* encode) {
        u8* codes = once(out.codes + ((u64)shape.row * cols + shape.first) / 2);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            if (v && v % SHAPE::ALONG == 0) codes = once(codes + (u64)cols * SHAPE::APART / 2);
            if (inside(v)) store_piece(codes + shape.right(v) / 2, codes_by_power(data[v], encode[v]));
        }
    }
#endif

    template <u32 FORMAT, bool BOUNDED> __device__ __forceinline__ void write(const CastOut& out, const float* encode) {
        const auto bytes = [](u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; };
        u8* codes = once(out.codes + bytes((u64)shape.row * cols + shape.first));
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            if (v && v % SHAPE::ALONG == 0) codes = once(codes + bytes((u64)cols * SHAPE::APART));
            data[v].forget();
            store_codes_if<FORMAT, BOUNDED>(inside(v), codes, shape.right(v), data[v], encode[v]);
        }
    }

    template <u32 FORMAT> __device__ __forceinline__ void cast_groups(const CastRule& rule, const CastOut& out) {
        const u32 shift = out.grid.col_shift;
        if (shift == 7) cast_groups<FORMAT, 7>(rule, out);
        else if (shift == 6) cast_groups<FORMAT, 6>(rule, out);
        else if (shift == 5) cast_groups<FORMAT, 5>(rule, out);
        else cast_groups<FORMAT, 4>(rule, out);
    }
};

// A row, or where that is too long, a part of it: of every EACH blockDim.x columns a thread has EACH. Memory is read and written in its order,
// which is worth 3 % (observed: H200, 2026-11).
template <int COUNT, int EACH = 8> struct Line {
    static constexpr int VECTORS = COUNT, ALONG = COUNT > 0 ? COUNT : 1, ROWS = 1, APART = 1, WIDTH = 32;
    static constexpr bool WHOLE = true;  // no row of a block is past the end
    static constexpr bool FLAT = false;
    u32 row, first, step;
    __device__ __forceinline__ Line() : row(blockIdx.x), first(blockIdx.y * COUNT * blockDim.x * EACH + threadIdx.x * EACH), step(blockDim.x * EACH) {}
    static __device__ __forceinline__ u32 down(u32) { return 0; }
    __device__ __forceinline__ u32 right(u32 v) const { return v * step; }
};

// The same of a matrix without gaps, as one long row: blocks of 128 threads, whatever its columns.
template <int COUNT, int EACH> struct Flat {
    static constexpr int VECTORS = COUNT, ALONG = COUNT, ROWS = 1, APART = 1, WIDTH = 32;
    static constexpr bool WHOLE = true, FLAT = true;
    static constexpr u32 row = 0, step = 128 * EACH;
    u32 first;
    __device__ __forceinline__ Flat() : first(blockIdx.x * COUNT * step + threadIdx.x * EACH) {}
    static __device__ __forceinline__ u32 down(u32) { return 0; }
    static __device__ __forceinline__ u32 right(u32 v) { return v * step; }
};

// QUADS times four rows of some chunks of 128 columns, a warp a chunk: so that scales that lie by columns are written some neighbours at a time. One
// by one, sectors of the L2 cache are filled from memory first: 0.73 of the copy's rate instead of 0.95 (observed: H200, 2026-11).
//
// ACROSS: blocks that follow one another are neighbours of the same rows, so that memory is read and written in its order: E4M3 0.96 to 1.02 of the copy's
// rate. E2M1, whose scales are more of what it writes, takes 1 % longer than down the rows; of sixteen neighbours a lane in groups of 16 with FP32
// scales alone, 4 %, in larger ones and with UE8M0 1 to 3 % less (observed: H200, 2026-11).
template <int QUADS, bool ACROSS = false, int EACH = 8, int WARPS = 8> struct Square {
    static constexpr int ALONG = 16 / EACH, VECTORS = ALONG * QUADS, ROWS = QUADS, APART = 4, WIDTH = 8;
    static constexpr bool WHOLE = false, FLAT = false;
    u32 row, first;
    __device__ __forceinline__ Square()
        : row((ACROSS ? blockIdx.y : blockIdx.x) * (4 * QUADS) + threadIdx.x % 32 / 8),
          first(((ACROSS ? blockIdx.x : blockIdx.y) * WARPS + threadIdx.x / 32) * 128 + threadIdx.x % 8 * EACH) {}
    static __device__ __forceinline__ u32 down(u32 v) { return v / ALONG * 4; }
    __device__ __forceinline__ u32 right(u32 v) const { return v % ALONG * 64; }
};

// In groups of columns. THREADS and BLOCKS of a multiprocessor are what registers allow without spilling.
#define CAST_GROUPS(NAME, SOURCE, SHAPE, FORMAT, THREADS, BLOCKS)                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) cast_groups_##NAME(                                     \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        begin();                                                                                                          \
        Held<Unwrap<void SOURCE>::Type, SHAPE> held(source, rows, cols);                                                  \
        held.template cast_groups<FORMAT>(rule, out);                                                                     \
    }
// In groups of 128 columns alone: of few rows, where what is not wanted is fetched from memory, too.
#define CAST_GROUPS_OF_128(NAME, SOURCE, SHAPE, FORMAT, THREADS)                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) cast_groups_##NAME(                                             \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        begin();                                                                                                          \
        Held<Unwrap<void SOURCE>::Type, SHAPE> held(source, rows, cols);                                                  \
        held.template cast_groups<FORMAT, 7>(rule, out);                                                                  \
    }
// To either format.
#define CAST_GROUPS_BOTH(NAME, SOURCE, SHAPE, THREADS, BLOCKS)                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) cast_groups_##NAME(                                     \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        begin();                                                                                                          \
        Held<Unwrap<void SOURCE>::Type, SHAPE> held(source, rows, cols);                                                  \
        if (rule.format == E4M3) held.template cast_groups<E4M3>(rule, out);                                              \
        else held.template cast_groups<E2M1>(rule, out);                                                                  \
    }
// Where there are few rows.
#define CAST_GROUPS_FEW(name, SOURCE, ...) CAST_GROUPS_BOTH(few_##name, SOURCE, Square<1>, 256, 4)

// The whole row is a group. It stays in registers between amax and codes; with 0 VECTORS it is too long, and read twice.
template <class S, int VECTORS, u32 FORMAT>
__device__ __forceinline__ void cast_row(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    using M = Maximum<S, FORMAT>;
    __shared__ float scratch[32];
    begin();
    Held<S, Line<VECTORS, neighbours<S>>> line(source, rows, cols);
    // Those of a row that is read twice.
    S read;
    const auto read_at = [&](u32 col, bool first) {
        read.load(source, line.at[0], col - line.shape.first, line.from[0] >= 0);
        read.open(source, line.at[0], col - line.shape.first, line.from[0], col, first);
    };
    float encode;
    bool clean = true;
    if (out.part == CODES) {
        encode = __frcp_rn(load_scale(out.grid, out.scales, line.shape.row, 0));
        clean = false;
    } else {
        float amax = 0.0f;
        if constexpr (VECTORS > 0) {
            typename M::Type m = 0;
#pragma unroll
            for (int v = 0; v < VECTORS; v++) m = M::with(m, line.data[v]);
            clean = M::is_clean(m);
            amax = M::amax(m);
            if (!clean) {
                amax = 0.0f;
#pragma unroll
                for (int v = 0; v < VECTORS; v++) amax = amax_without_nan(line.data[v], amax);
            }
        } else {
            for (u32 col = line.shape.first; col < cols; col += line.shape.step) {
                read_at(col, true);
                amax = amax_of<FORMAT>(read, amax, clean);
            }
        }
        const GroupScale s = cast_scale<FORMAT>(rule, block_max(amax, scratch));
        encode = s.encode;
        if (threadIdx.x == 0) store_scale(out.grid, out.scales, line.shape.row, 0, s.scale);
        if (out.part == SCALES) return;
    }
    const bool bounded = clean && is_factor(encode);
    const auto write = [&](S& held, u32 col) {
        held.forget();
        store_codes<FORMAT>(out.codes, (u64)line.shape.row * cols + col, held, encode, bounded);
    };
    if constexpr (VECTORS > 0) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            if (line.inside(v)) write(line.data[v], line.column(v));
    } else {
        for (u32 col = line.shape.first; col < cols; col += line.shape.step) {
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
