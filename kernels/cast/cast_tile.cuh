// Casts in tiles of 32 or 128 rows by 32 or 128 columns, and per channel: 32 or 128 rows by one column, plain and transposed; of any
// source.
#pragma once
#include "cast/maximum.cuh"
#include "cast/tile_place.cuh"

// A block holds 128 rows of one or two HALVES of 64 columns, a thread 8 x 8 elements: a warp 32 rows (a band) x 64 columns. Loads cover whole lines, stores
// of codes 64 neighbours of a row, those of transposed codes 128 of a column. One half leaves multiprocessors idle for less of the end: per channel 1 to 3 % less at
// 4096 x 7168, nothing in tiles of 32 x 32 (observed: H200, 2026-11).
template <class S, u32 HALVES = 2> struct Patch {
    static constexpr u32 COLS = 64 * HALVES;
    u32 rows, cols;
    u32 band;       // the warp's of the block's four
    u32 below;      // rows of the matrix from the thread's first one on
    u32 tile_row, row;
    u32 tile_col, col;
    S data[8];

    __device__ __forceinline__ Patch(const CastSource& source, u32 rows, u32 cols) : rows(rows), cols(cols) {
        const TilePlace tile = tile_of_block((cols + COLS - 1) / COLS);
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        tile_row = tile.down * 128;
        tile_col = tile.right * COLS;
        band = warp / HALVES;
        row = tile_row + 32 * band + 8 * (lane / 8);
        col = tile_col + 64 * (warp % HALVES) + 8 * (lane % 8);
        below = row < rows ? rows - row : 0;
        begin();
        const bool chosen = source.index || (S::EXPERTS && source.producer.experts);
        if constexpr (is_narrow<S> || is_coded<S>) {
            // Whole tiles without the tests and zeros of what may be outside: with the grid of two dimensions and rows as one stretch of code 0.985 to 1.0 of the time of numbers (observed: H200, 2026-12).
            if (!chosen && tile_row + 128 <= rows && tile_col + COLS <= cols) {
                typename S::At at = S::here(source, S::at(source, (int)row, col));
#pragma unroll
                for (int r = 0; r < 8; r++) {
                    data[r].load(source, at, 0, true);
                    at = S::down(source, at, 1);
                }
#pragma unroll
                for (int r = 0; r < 8; r++) data[r].open(source, at, 0, (int)row + r, col, true);
                return;
            }
        }
        int from[8];
        bool wanted[8];
        typename S::At at[8];
        // Without the tests of each row, some 25 instructions.
        const u32 there = col < cols ? below : 0;
        const auto place = [&](int r) {
            from[r] = chosen ? source_row<S>(source, row + r, rows) : r < below ? (int)(row + r) : -1;
            wanted[r] = chosen ? from[r] >= 0 && col < cols : r < there;
            if (chosen || !steps<S>) at[r] = S::at(source, from[r], col);
            else at[r] = r ? S::down(source, at[r - 1], 1) : S::here(source, S::at(source, (int)row, col));
        };
        if (!S::EXPERTS && chosen) {
#pragma unroll
            for (int r = 0; r < 8; r++) place(r);
        } else if (!S::EXPERTS) {
#pragma unroll
            for (int r = 0; r < 8; r++) place(r);
        }
#pragma unroll
        for (int b = 0; b < 8; b += S::BATCH) {
#pragma unroll
            for (int r = b; r < b + S::BATCH; r++) {
                // What is computed wants the registers of all other rows' places.
                if (S::EXPERTS) place(r);
                data[r].load(source, at[r], 0, wanted[r]);
            }
#pragma unroll
            for (int r = b; r < b + S::BATCH; r++) data[r].open(source, at[r], 0, from[r], col, true);
        }
    }

    // The first column, of the block's.
    __device__ __forceinline__ u32 own() const {
        const u32 thread = thread_anew();
        return thread / 32 % HALVES * 64 + thread % 8 * 8;
    }
    __device__ __forceinline__ bool inside() const { return row < rows && col < cols; }
    // A block that has no tile.
    __device__ __forceinline__ bool is_past() const { return TilePlace{tile_row / 128, 0}.is_past(rows); }

    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int r = 0; r < 8; r++) data[r].forget();
    }

    // Codes by one factor, or by one for each column.
    template <u32 FORMAT, bool BOUNDED, class ENCODE> __device__ __forceinline__ void write(const ENCODE& encode, const CastOut& out) {
        const auto bytes = [](u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; };
        u8* codes = once(out.codes + bytes((u64)row * cols + col));
#pragma unroll
        for (int r = 0; r < 8; r++) {
            // All rows as one stretch of code, where registers hold it: what is computed would spill.
            if constexpr (is_narrow<S> || is_coded<S>) store_piece(codes, codes_of<FORMAT, BOUNDED>(data[r], encode), r < below);
            else if (r < below) store_codes<FORMAT, BOUNDED>(codes, 0, data[r], encode);
            codes += bytes(cols);
        }
    }
};

// In tiles.
template <class S, u32 FORMAT>
__device__ __forceinline__ void cast_tile(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    using M = Maximum<S, FORMAT>;
    __shared__ typename M::Type maxima[4][4];  // by band and 32 columns
    Patch<S> patch(source, rows, cols);
    if (patch.is_past()) return;
    const u32 lane = threadIdx.x % 32, row_shift = out.grid.row_shift, col_shift = out.grid.col_shift;
    const u32 group_row = patch.row >> row_shift;
    const u32 group_col = patch.col >> col_shift;
    float encode = 0.0f;
    bool clean = false;
    if (out.part == CODES) {
        if (patch.inside()) encode = __frcp_rn(load_scale(out.grid, out.scales, group_row, group_col));
    } else {
        typename M::Type m = 0;
#pragma unroll
        for (int r = 0; r < 8; r++) m = M::with(m, patch.data[r]);
        clean = M::is_clean(m);
        if (!clean) {
            patch.forget();
            float amax = 0.0f;
#pragma unroll
            for (int r = 0; r < 8; r++) amax = amax_without_nan(patch.data[r], amax);
            m = M::of(amax);
        }
        // Of the warp's rows and four lanes; then of the warps that have parts of the group.
        m = lanes_largest<M, 0b11011>(m);
        if (row_shift != 5 || col_shift != 5) {
            if (lane % 4 == 0 && lane < 8) maxima[patch.band][patch.own() / 32] = m;
            __syncthreads();
            m = maxima[row_shift == 7 ? lane / 8 : patch.band][col_shift == 7 ? lane % 4 : patch.own() / 32];
            m = lanes_largest<M, 0b11011>(m);
        }
        // Every lane, instead of waiting for one.
        const GroupScale s = cast_scale<FORMAT>(rule, M::amax(m));
        const bool first = (patch.row & ((1u << row_shift) - 1)) == 0 && (patch.col & ((1u << col_shift) - 1)) == 0;
        if (first && patch.inside()) store_scale(out.grid, out.scales, group_row, group_col, s.scale);
        encode = s.encode;
        clean = clean && is_factor(encode);
    }
    if (out.part == SCALES || patch.col >= cols) return;
    patch.forget();
    if (FORMAT == E2M1 && clean) patch.template write<FORMAT, true>(encode, out);
    else patch.template write<FORMAT, false>(encode, out);
}

// Numbers of a column, and their signs.
struct Column {
    const float (&v)[8];
    u32 first, second;
    __device__ __forceinline__ float value(int i) const { return v[i]; }
    __device__ __forceinline__ u32 signs(int k) const { return k == 0 ? first : second; }
};

// `signs4` of rows `from` .. `from` + 3 of column c, whose numbers are v: of 16-bit elements from their words, which two columns share.
template <class S, u32 HALVES> __device__ __forceinline__ u32 signs_of_column(const Patch<S, HALVES>& patch, const float (&v)[8], int c, int from) {
    if constexpr (is_narrow<S>) {
        u32 w[4];
#pragma unroll
        for (int r = 0; r < 4; r++) w[r] = word(patch.data[from + r].v.q[0], c / 2);
        return __byte_perm(__byte_perm(w[0], w[1], 0x7531), __byte_perm(w[2], w[3], 0x7531), c % 2 ? 0x7531 : 0x6420);
    } else {
        return signs4(v, from / 4);
    }
}

// The codes of a block, transposed. They go through shared memory, so that what is written of a column lies together: sectors that are
// filled by parts cost twice their time (observed: H200, 2026-11). `exchange` has 16 units of eight codes for each of the columns, in pairs; the place
// of a pair is turned by the thread's columns, so that no bank is met twice.
template <u32 FORMAT, bool BOUNDED, class S, u32 HALVES>
__device__ __forceinline__ void exchange_codes(Patch<S, HALVES>& patch, const float (&encode)[8], typename EightCodes<FORMAT>::Type* exchange) {
    const u32 own = patch.own(), unit = 4 * patch.band + threadIdx.x % 32 / 8, turn = threadIdx.x % 8 * 2;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        float v[8];
#pragma unroll
        for (int r = 0; r < 8; r++) {
            if (c % 2 == 0) patch.data[r].forget();
            v[r] = patch.data[r].value(c);
        }
        const u32 first = signs_of_column(patch, v, c, 0), second = signs_of_column(patch, v, c, 4);
        exchange[(own + c) * 16 + (unit ^ turn)] = codes_of<FORMAT, BOUNDED>(Column{v, first, second}, encode[c]);
    }
}
template <u32 FORMAT, class S, u32 HALVES>
__device__ __forceinline__ void write_exchanged(const Patch<S, HALVES>& patch, const typename EightCodes<FORMAT>::Type* exchange, const CastOut& out) {
    const auto bytes = [](u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; };
    __syncthreads();
    // rows is a multiple of 16 here, and a thread takes as many.
    const u32 row = patch.tile_row + threadIdx.x % 8 * 16;
    if (row >= patch.rows) return;
    u32 column = threadIdx.x / 8;
    u8* codes = once(out.codes + bytes((patch.tile_col + column) * (u64)patch.rows + row));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const typename EightCodes<FORMAT>::Type* pair = exchange + column * 16 + (threadIdx.x % 8 ^ column / 8 % 8) * 2;
        if (patch.tile_col + column < patch.cols) {
            if constexpr (FORMAT == E2M1) *(uint2*)codes = *(const uint2*)pair;
            else *(uint4*)codes = *(const uint4*)pair;
        }
        column += 16 * HALVES;
        codes += bytes(16 * HALVES * (u64)patch.rows);
    }
}

// Per channel.
template <class S, u32 FORMAT, u32 HALVES = 2>
__device__ __forceinline__ void cast_channel(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    using M = Maximum<S, FORMAT>;
    constexpr int PER = M::PER, TYPES = 8 / PER;
    __shared__ typename M::Type maxima[4][64 * HALVES / PER];  // by band and column
    using Of = Patch<S, HALVES>;
    Of patch(source, rows, cols);
    if (patch.is_past()) return;
    const u32 lane = threadIdx.x % 32, row_shift = out.grid.row_shift;
    const u32 group_row = patch.row >> row_shift;
    float encode[8] = {};
    bool clean = false;
    if (out.part == CODES) {
        if (patch.inside()) {
#pragma unroll
            for (int c = 0; c < 8; c++) encode[c] = __frcp_rn(load_scale(out.grid, out.scales, group_row, patch.col + c));
        }
    } else {
        typename M::Type m[TYPES], largest = 0;
#pragma unroll
        for (int k = 0; k < TYPES; k++) m[k] = M::of_columns(patch.data[0], k);
#pragma unroll
        for (int r = 1; r < 8; r++) {
#pragma unroll
            for (int k = 0; k < TYPES; k++) m[k] = M::larger(m[k], M::of_columns(patch.data[r], k));
        }
#pragma unroll
        for (int k = 0; k < TYPES; k++) largest = M::larger(largest, m[k]);
        clean = M::is_clean(largest);
        if (!clean) {
            patch.forget();
            float amax[8];
#pragma unroll
            for (int c = 0; c < 8; c++) {
                amax[c] = 0.0f;
#pragma unroll
                for (int r = 0; r < 8; r++) amax[c] = fmaxf(amax[c], fabsf(patch.data[r].value(c)));
                if constexpr (PER == 1) m[c] = M::of(amax[c]);
                else if (c % 2) m[c / 2] = M::of(amax[c - 1], amax[c]);
            }
        }
        // The four lanes of a warp that have the same columns take two each.
        exchange<TYPES, 16, 4>(m, M::larger);
        const u32 quarter = lane / 8;
        if (row_shift == 7) {
            // Each column's scale is made once for the block.
            __shared__ __align__(16) float factors[Of::COLS];
#pragma unroll
            for (int i = 0; i < 2 / PER; i++) maxima[patch.band][(patch.own() + 2 * quarter) / PER + i] = m[i];
            __syncthreads();
            const u32 column = threadIdx.x, own = patch.own();
            if (column < Of::COLS) {
                typename M::Type of_column = maxima[0][column / PER];
#pragma unroll
                for (int b = 1; b < 4; b++) of_column = M::larger(of_column, maxima[b][column / PER]);
                const GroupScale s = cast_scale<FORMAT>(rule, M::amax(of_column, column % PER));
                factors[column] = s.encode;
                if (patch.tile_col + column < cols) store_scale(out.grid, out.scales, patch.tile_row >> 7, patch.tile_col + column, s.scale);
                clean = clean && is_factor(s.encode);
            }
            clean = __syncthreads_and(clean);
#pragma unroll
            for (int c = 0; c < 8; c += 4) {
                const float4 four = *(const float4*)(factors + own + c);
                encode[c] = four.x, encode[c + 1] = four.y, encode[c + 2] = four.z, encode[c + 3] = four.w;
            }
        } else {
            float factor[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const GroupScale s = cast_scale<FORMAT>(rule, M::amax(m[i / PER], i));
                factor[i] = s.encode;
                clean = clean && is_factor(s.encode);
                if (patch.row - 8 * quarter < rows && patch.col < cols)
                    store_scale(out.grid, out.scales, group_row, patch.col + 2 * quarter + i, s.scale);
            }
#pragma unroll
            for (int c = 0; c < 8; c++) encode[c] = __shfl_sync(0xFFFFFFFFu, factor[c % 2], lane % 8 + c / 2 * 8);
            clean = __all_sync(0xFFFFFFFFu, clean);
        }
    }
    if (out.part == SCALES) return;
    patch.forget();
    if (out.transposed) {
        __shared__ __align__(16) typename EightCodes<FORMAT>::Type exchange[Of::COLS * 16];
        if (FORMAT == E2M1 && clean) exchange_codes<FORMAT, true>(patch, encode, exchange);
        else exchange_codes<FORMAT, false>(patch, encode, exchange);
        write_exchanged<FORMAT>(patch, exchange, out);
    } else if (patch.col < cols) {
        if (FORMAT == E2M1 && clean) patch.template write<FORMAT, true>(encode, out);
        else patch.template write<FORMAT, false>(encode, out);
    }
}

// Blocks of a multiprocessor that fit without spilling: what keeps enough loads in flight. Tuned where it was measured.
#if __CUDA_ARCH__ == 900
template <class S> constexpr u32 patch_blocks = is_narrow<S> || is_coded<S> ? 4 : 2;
#else
template <class S> constexpr u32 patch_blocks = 2;
#endif

#define CAST_PATCH(name, SOURCE, KERNEL)                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, (patch_blocks<Unwrap<void SOURCE>::Type>)) KERNEL##_##name(         \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        if (rule.format == E4M3) KERNEL<S, E4M3>(source, rows, cols, rule, out);                                          \
        else KERNEL<S, E2M1>(source, rows, cols, rule, out);                                                              \
    }
// Halves of a block that casts per channel: of codes two, as with one they spill.
template <class S> constexpr u32 channel_halves = 2;
template <class T, bool ALIGNED> constexpr u32 channel_halves<Plain<T, ALIGNED>> = 1;
#define CAST_CHANNEL(name, SOURCE) CAST_CHANNEL_OF(name, Unwrap<void SOURCE>::Type, channel_halves<Unwrap<void SOURCE>::Type>)
#define CAST_CHANNEL_OF(name, S, HALVES)                                                                                  \
    extern "C" __global__ void __launch_bounds__(128 * HALVES, (2 / HALVES * patch_blocks<S>)) cast_channel_##name(       \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        if (rule.format == E4M3) cast_channel<S, E4M3, HALVES>(source, rows, cols, rule, out);                            \
        else cast_channel<S, E2M1, HALVES>(source, rows, cols, rule, out);                                                \
    }
#define CAST_TILE(name, SOURCE, ...)                                                                                      \
    CAST_PATCH(name, SOURCE, cast_tile)                                                                                   \
    CAST_CHANNEL(name, SOURCE)
