// Casts in tiles of 32 or 128 rows by 32 or 128 columns, and per channel: 32 or 128 rows by one column, plain and transposed; of any
// source.
#pragma once
#include "cast/source.cuh"

// The codes of a thread's 8 x 8 elements, each column by its factor.
template <class S, u32 FORMAT, bool BOUNDED>
__device__ __forceinline__ void write_tile(S (&data)[8], u64 row, u32 col, u32 rows, u32 cols, const float (&encode)[8], const CastOut& out) {
    const auto bytes = [](u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; };
    if (!out.transposed) {
        u8* codes = once(out.codes + bytes(row * cols + col));
#pragma unroll
        for (int r = 0; r < 8; r++) {
            if (row + r < rows) store_codes<FORMAT, BOUNDED>(codes, 0, data[r], encode);
            codes += bytes(cols);
        }
    } else if (row < rows) {  // rows is a multiple of 16 here
        u8* codes = once(out.codes + bytes((u64)col * rows + row));
#pragma unroll
        for (int c = 0; c < 8; c++) {
            float v[8];
#pragma unroll
            for (int r = 0; r < 8; r++) {
                if (c % 2 == 0) data[r].forget();
                v[r] = data[r].value(c);
            }
            store_codes<FORMAT, BOUNDED>(codes, 0, Numbers{v}, encode[c]);
            codes += bytes(rows);
        }
    }
}

// A block holds 128 x 128 elements, a thread 8 x 8 of them: a warp 32 rows (a band) x 64 columns. Loads cover whole lines, stores
// of codes 64 neighbours of a row, those of transposed codes 32 of a column.
template <class S, u32 FORMAT>
__device__ __forceinline__ void cast_tile(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out) {
    // By band and unit: a column, or 32 columns where groups are as wide.
    using M = Maximum<S, FORMAT>;
    __shared__ typename M::Type maxima[512];
    __shared__ float factors[512];
    const u32 tiles = (cols + 127) / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 tile_row = (u64)(blockIdx.x / tiles) * 128;
    const u32 tile_col = blockIdx.x % tiles * 128;
    const u32 band = warp / 2, own = 64 * (warp % 2) + 8 * (lane % 8);
    const u64 row = tile_row + 32 * band + 8 * (lane / 8);
    const u32 col = tile_col + own;
    const u32 unit_shift = out.grid.col_shift == 0 ? 0 : 5, units = 128 >> unit_shift;
    begin();
    S data[8];
    int from[8];
    typename S::At at[8];
    if (source.index || S::EXPERTS) {
#pragma unroll
        for (int r = 0; r < 8; r++) {
            from[r] = source_row<S>(source, row + r, rows);
            at[r] = S::at(source, from[r], col);
        }
    } else {
        // Without the tests of each row.
        at[0] = S::at(source, (int)row, col);
#pragma unroll
        for (int r = 0; r < 8; r++) {
            from[r] = row + r < rows ? (int)(row + r) : -1;
            if (r) at[r] = S::down(source, at[r - 1], 1);
        }
    }
#pragma unroll
    for (int b = 0; b < 8; b += S::BATCH) {
#pragma unroll
        for (int r = b; r < b + S::BATCH; r++) data[r].load(source, at[r], 0, from[r] >= 0 && col < cols);
#pragma unroll
        for (int r = b; r < b + S::BATCH; r++) data[r].open(source, at[r], 0, from[r], col, true);
    }
    bool clean = out.part != CODES;
    if (out.part != CODES) {
        // Of the columns.
        typename M::Type m[8] = {}, largest = 0;
#pragma unroll
        for (int c = 0; c < 8; c++) {
#pragma unroll
            for (int r = 0; r < 8; r += 2) m[c] = M::raise(m[c], data[r], c, data[r + 1], c);
            largest = M::larger(largest, m[c]);
        }
        clean = M::is_clean(largest);
        if (!clean) {
#pragma unroll
            for (int r = 0; r < 8; r++) data[r].forget();
            largest = 0;
#pragma unroll
            for (int c = 0; c < 8; c++) {
                float amax = 0.0f;
#pragma unroll
                for (int r = 0; r < 8; r++) amax = fmaxf(amax, fabsf(data[r].value(c)));
                m[c] = M::of(amax);
                largest = M::larger(largest, m[c]);
            }
        }
        // The four lanes of a warp that have the same columns, and where groups are as wide, the 32 columns of four lanes.
        const auto of_warp = [](typename M::Type v) {
            v = M::larger(v, __shfl_xor_sync(0xFFFFFFFFu, v, 8));
            return M::larger(v, __shfl_xor_sync(0xFFFFFFFFu, v, 16));
        };
        if (unit_shift == 0) {
#pragma unroll
            for (int c = 0; c < 8; c++) {
                m[c] = of_warp(m[c]);
                if (lane / 8 == c % 4) maxima[band * 128 + own + c] = m[c];
            }
        } else {
            largest = of_warp(lanes_max<4>(largest));
            if (lane == 0 || lane == 4) maxima[band * 4 + own / 32] = largest;
        }
        __syncthreads();
    }
    // One thread a group: bands and units of it.
    const u32 bands_shift = out.grid.row_shift - 5, units_of_shift = out.grid.col_shift == 7 ? 2 : 0;
    const u32 across = units >> units_of_shift;
    for (u32 i = threadIdx.x; i < (4u >> bands_shift) * across; i += blockDim.x) {
        const u32 first_band = i / across << bands_shift, first_unit = i % across << units_of_shift;
        const u64 group_row = (tile_row + 32 * first_band) >> out.grid.row_shift;
        const u32 group_col = (tile_col + (first_unit << unit_shift)) >> out.grid.col_shift;
        const bool inside = tile_row + 32 * first_band < rows && tile_col + (first_unit << unit_shift) < cols;
        float factor = 0.0f;
        if (out.part == CODES) {
            if (inside) factor = __frcp_rn(load_scale(out.grid, out.scales, group_row, group_col));
        } else {
            typename M::Type a = 0;
            for (u32 b = 0; b < 1u << bands_shift; b++)
                for (u32 u = 0; u < 1u << units_of_shift; u++) a = M::larger(a, maxima[(first_band + b) * units + first_unit + u]);
            const GroupScale s = cast_scale(rule, M::amax(a));
            factor = s.encode;
            if (inside) store_scale(out.grid, out.scales, group_row, group_col, s.scale);
        }
        factors[i] = factor;
    }
    if (out.part == SCALES) return;
    __syncthreads();
    if (col >= cols) return;
    float f[8];
    const float* mine = factors + (band >> bands_shift) * across;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        f[c] = mine[unit_shift == 0 ? own + c : own / 32 >> units_of_shift];
        clean = clean && is_factor(f[c]);
    }
#pragma unroll
    for (int r = 0; r < 8; r++) data[r].forget();
    if (FORMAT == E2M1 && clean) write_tile<S, FORMAT, true>(data, row, col, rows, cols, f, out);
    else write_tile<S, FORMAT, false>(data, row, col, rows, cols, f, out);
}

// Blocks of a multiprocessor that fit without spilling: what keeps enough loads in flight. Tuned where it was measured.
#if __CUDA_ARCH__ == 900
constexpr u32 CAST_TILE_BLOCKS = 3;
#else
constexpr u32 CAST_TILE_BLOCKS = 2;
#endif
template <class S> constexpr u32 cast_tile_blocks = sizeof(S) == 16 && alignof(S) == 16 ? CAST_TILE_BLOCKS : 2;

#define CAST_TILE(name, SOURCE, ...)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, (cast_tile_blocks<Unwrap<void SOURCE>::Type>)) cast_tile_##name(                                                \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        if (rule.format == E4M3) cast_tile<S, E4M3>(source, rows, cols, rule, out);                                       \
        else cast_tile<S, E2M1>(source, rows, cols, rule, out);                                                           \
    }
