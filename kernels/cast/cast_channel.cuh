// Casts per channel of codes whose scales are FP32, no row of which is chosen, and not transposed: sixteen neighbours a lane, so that a row's scale and place serve twice as many elements as in
// `cast_channel` (cast_tile.cuh), and a line of memory is eight lanes'.
#pragma once
#include "cast/maximum.cuh"

template <u32 FORMAT, bool BOUNDED, class S>
__device__ __forceinline__ void write_channels(const S (&data)[4], const float (&encode)[16], u32 row, u32 col, u32 rows, u32 cols, const CastOut& out) {
    const auto bytes = [](u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; };
    const float first[8] = {encode[0], encode[1], encode[2], encode[3], encode[4], encode[5], encode[6], encode[7]};
    const float second[8] = {encode[8], encode[9], encode[10], encode[11], encode[12], encode[13], encode[14], encode[15]};
    u8* codes = once(out.codes + bytes((u64)row * cols + col));
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const auto piece = both(codes_of<FORMAT, BOUNDED>(data[r].half(0), first), codes_of<FORMAT, BOUNDED>(data[r].half(1), second));
        if (row + r < rows) store_piece(codes, piece);
        codes += bytes(cols);
    }
}

// A block holds 128 x 128 elements, a thread four rows of sixteen: a warp sixteen rows. Four lanes with 32 rows, in blocks of 64 columns, are slower (19.2 us for 18.9
// from E4M3 to E4M3 128x1 at 4096 x 7168; observed: H200, 2026-11).
template <u32 OF, u32 FORMAT>
__device__ __forceinline__ void cast_channel_wide(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out, u32 ahead) {
    using S = Sixteen<OF, true>;
    constexpr u32 COLS = 128, WARPS = 8, HEIGHT = 16;  // HEIGHT: rows of a warp
    // Patterns of maxima by warp and column, then factors by group and column; what sixteen columns have is apart, so that no bank is met twice.
    __shared__ __align__(16) u32 maxima[WARPS][COLS];
    __shared__ __align__(16) float factors[4][8 * 20];
    const u32 tiles = (cols + COLS - 1) / COLS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 tile_row = blockIdx.x / tiles * 128, tile_col = blockIdx.x % tiles * COLS;
    const u32 row = tile_row + HEIGHT * warp + lane / 8 * 4, col = tile_col + lane % 8 * 16;
    const u32 row_shift = out.grid.row_shift;
    begin();
    S data[4];
    const u32 there = row < rows && col < cols ? rows - row : 0;
    const u8* codes = once((const u8*)source.x + S::Of::bytes((u64)row * cols + col));
    const u8* scales = once(source.scales + (u64)(row >> source.grid.row_shift) * source.scale_row + (col >> source.grid.col_shift) * source.scale_right);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        data[r].load({codes, scales, 0, 0}, r < there);
        codes = once(codes + S::Of::bytes(cols));
        scales = once(scales + source.scale_down);
    }
    if constexpr (OF == E4M3 && FORMAT == E4M3) {
        // A row of the tile that comes so many blocks later, to be in L2 then: 0.98 to 0.99 of the time. From twice as many blocks on, and to E2M1, it takes longer (observed: H100, 2026-11).
        const u32 next = blockIdx.x + ahead, next_row = next / tiles * 128 + threadIdx.x, next_col = next % tiles * COLS;
        if (threadIdx.x < 128 && next_row < rows && next_col < cols) asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)source.x + (u64)next_row * cols + next_col));
    }

    bool clean = false;
    if (out.part != CODES) {
        // Patterns of numbers that are not negative order like them; NaN's is above all.
        u32 m[16];
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int r = 0; r < 4; r += 2) {
                u32 upper[8], lower[8];
                data[r].half(h).sizes(upper);
                data[r + 1].half(h).sizes(lower);
#pragma unroll
                for (int i = 0; i < 8; i++) m[8 * h + i] = max(r ? max(m[8 * h + i], upper[i]) : upper[i], lower[i]);
            }
        }
        u32 largest = m[0];
#pragma unroll
        for (int c = 1; c < 16; c++) largest = max(largest, m[c]);
        clean = largest <= 0x7F800000u;
        if (!clean) {
#pragma unroll
            for (int r = 0; r < 4; r++) data[r].forget();
#pragma unroll
            for (int c = 0; c < 16; c++) {
                float amax = 0.0f;
#pragma unroll
                for (int r = 0; r < 4; r++) amax = fmaxf(amax, fabsf(data[r].value(c)));
                m[c] = __float_as_uint(amax);
            }
        }
        // The four lanes that have the same columns take four each.
        exchange<16, 16, 4>(m, [](u32 a, u32 b) { return max(a, b); });
        *(uint4*)&maxima[warp][lane % 8 * 16 + lane / 8 * 4] = {m[0], m[1], m[2], m[3]};
        __syncthreads();
        // Each column's scale is made once for the block.
        for (u32 i = threadIdx.x; i < COLS << 7 >> row_shift; i += 32 * WARPS) {
            const u32 group = i / COLS, column = i % COLS;
            const u32* of_warps = &maxima[(group << row_shift) / HEIGHT][column];
            u32 of_column = max(of_warps[0], of_warps[COLS]);
            if (row_shift == 7) {
#pragma unroll
                for (u32 w = 2; w < WARPS; w++) of_column = max(of_column, of_warps[COLS * w]);
            }
            const GroupScale s = cast_scale<FORMAT>(rule, __uint_as_float(of_column));
            factors[group][column / 16 * 20 + column % 16] = s.encode;
            if (tile_row + (group << row_shift) < rows && tile_col + column < cols)
                store_scale(out.grid, out.scales, (tile_row >> row_shift) + group, tile_col + column, s.scale);
            clean = clean && is_factor(s.encode);
        }
        if (out.part == SCALES) return;
        if constexpr (FORMAT == E2M1) clean = __syncthreads_and(clean);
        else __syncthreads();
    }
    float encode[16];
    if (out.part == CODES) {
#pragma unroll
        for (int c = 0; c < 16; c++) encode[c] = row < rows && col < cols ? __frcp_rn(load_scale(out.grid, out.scales, row >> row_shift, col + c)) : 0.0f;
    } else {
        const float4* of_group = (const float4*)&factors[HEIGHT * warp >> row_shift][lane % 8 * 20];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float4 four = of_group[k];
            encode[4 * k] = four.x, encode[4 * k + 1] = four.y, encode[4 * k + 2] = four.z, encode[4 * k + 3] = four.w;
        }
    }
    if (col >= cols) return;
#pragma unroll
    for (int r = 0; r < 4; r++) data[r].forget();
    if (FORMAT == E2M1 && clean) write_channels<FORMAT, true>(data, encode, row, col, rows, cols, out);
    else write_channels<FORMAT, false>(data, encode, row, col, rows, cols, out);
}

#if __CUDA_ARCH__ == 900
constexpr u32 CHANNEL_BLOCKS = 4;
#else
constexpr u32 CHANNEL_BLOCKS = 2;
#endif
#define CAST_CHANNEL_WIDE(name, OF)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, CHANNEL_BLOCKS) cast_channel_wide_##name(                           \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out,                                                \
        u32 ahead)  /* blocks to the one whose tile is asked for */                                                       \
    {                                                                                                                     \
        if (rule.format == E4M3) cast_channel_wide<OF, E4M3>(source, rows, cols, rule, out, ahead);                       \
        else cast_channel_wide<OF, E2M1>(source, rows, cols, rule, out, ahead);                                           \
    }
