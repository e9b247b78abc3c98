// Casts per channel of codes whose scales are FP32, no row of which is chosen, and not transposed: sixteen neighbours a lane, so that a row's scale and place serve twice as many elements as in
// `cast_channel` (cast_tile.cuh), and a line of memory is eight lanes'.
#pragma once
#include "cast/maximum.cuh"

// What a thread has of a row: codes that are decoded as often as they are wanted, or products that are kept.
template <u32 OF> struct Again : Sixteen<OF, true> {
    __device__ __forceinline__ void open() {}
};
template <u32 OF> struct Kept : Sixteen<OF, true> {
    float v[2][8];
    __device__ __forceinline__ void open() {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            Coded<OF> eight = Sixteen<OF, true>::half(h);
            eight.decode(this->scale, v[h]);
        }
    }
    __device__ __forceinline__ Numbers half(int h) const { return {v[h]}; }
    __device__ __forceinline__ void forget() {}
};

// Patterns of the largest |value| of each column, NaN dropped; whether there was none, which is asked for E2M1 alone.
template <u32 FORMAT, u32 OF, int ROWS> __device__ __forceinline__ bool column_maxima(Again<OF> (&data)[ROWS], u32 (&m)[16]) {
    // Patterns of numbers that are not negative order like them; NaN's is above all.
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 2) {
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
    if (largest <= 0x7F800000u) return true;
#pragma unroll
    for (int r = 0; r < ROWS; r++) data[r].forget();
#pragma unroll
    for (int c = 0; c < 16; c++) {
        float amax = 0.0f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) amax = fmaxf(amax, fabsf(data[r].value(c)));
        m[c] = __float_as_uint(amax);
    }
    return false;
}
template <u32 FORMAT, u32 OF, int ROWS> __device__ __forceinline__ bool column_maxima(Kept<OF> (&data)[ROWS], u32 (&m)[16]) {
    bool clean = true;
#pragma unroll
    for (int c = 0; c < 16; c++) {
        float amax = 0.0f, any = 0.0f;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float size = fabsf(data[r].v[c / 8][c % 8]);
            amax = fmaxf(amax, size);
            if constexpr (FORMAT == E2M1) any = max_or_nan(any, size);
        }
        clean = clean && any == any;
        m[c] = __float_as_uint(amax);
    }
    return clean;
}

template <u32 FORMAT, bool BOUNDED, int ROWS, class S>
__device__ __forceinline__ void write_channels(const S (&data)[ROWS], const float (&encode)[16], u32 row, u32 col, u32 rows, u32 cols, const CastOut& out) {
    const auto bytes = [](u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; };
    const float first[8] = {encode[0], encode[1], encode[2], encode[3], encode[4], encode[5], encode[6], encode[7]};
    const float second[8] = {encode[8], encode[9], encode[10], encode[11], encode[12], encode[13], encode[14], encode[15]};
    u8* codes = once(out.codes + bytes((u64)row * cols + col));
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const auto piece = both(codes_of<FORMAT, BOUNDED>(data[r].half(0), first), codes_of<FORMAT, BOUNDED>(data[r].half(1), second));
        if (row + r < rows) store_piece(codes, piece);
        codes += bytes(cols);
    }
}

// A block holds 128 x 128 elements, a thread ROWS rows of sixteen. Eight rows: what a thread does once is an eighth of its work: to E4M3 0.88 to 1.02 of the time of four from 448 tiles on, to E2M1, whose code is long,
// 0.91 to 0.98 from 1792 tiles on, 1.09 with 896 and up to 1.3 where there are few. Four rows whose products are kept, where there are so few that each waits for itself: to E4M3 0.86 to 0.94, to E2M1 0.90 to 1.03; with many, 1.1
// to 1.3, and two rows up to 1.36. Blocks of 256 columns take 1.01 of the time. Blocks that stay, the codes of their next tile on their way into shared memory: products kept in registers 0.93 to 1.06 to E2M1 and up to 1.1 else, codes decoded
// twice 1.1 to 1.3 (observed: H200, 2026-11).
template <class S, u32 OF, u32 FORMAT, u32 ROWS>
__device__ __forceinline__ void cast_channel_wide(const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out, u32 ahead) {
    constexpr u32 COLS = 128, HEIGHT = 4 * ROWS, WARPS = 128 / HEIGHT, GROUPS = WARPS / 4;  // HEIGHT: rows of a warp; GROUPS: that the threads make scales of at once
    // Patterns of maxima by warp and column, then factors by group and column; what sixteen columns have is apart, so that no bank is met twice.
    __shared__ __align__(16) u32 maxima[WARPS][COLS];
    __shared__ __align__(16) float factors[4][8 * 20];
    const u32 tiles = (cols + COLS - 1) / COLS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 tile_row = blockIdx.x / tiles * 128, tile_col = blockIdx.x % tiles * COLS;
    const u32 row = tile_row + HEIGHT * warp + lane / 8 * ROWS, col = tile_col + lane % 8 * 16;
    const u32 row_shift = out.grid.row_shift;
    begin();
    S data[ROWS];
    const u32 there = row < rows && col < cols ? rows - row : 0;
    const u8* codes = once((const u8*)source.x + S::Of::bytes((u64)row * cols + col));
    const u8* scales = once(source.scales + (u64)(row >> source.grid.row_shift) * source.scale_row + (col >> source.grid.col_shift) * source.scale_right);
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        data[r].load({codes, scales, 0, 0}, r < there);
        codes = once(codes + S::Of::bytes(cols));
        scales = once(scales + source.scale_down);
    }
    if constexpr (OF == E4M3 && FORMAT == E4M3) {
        // A row of the tile that comes so many blocks later, to be in L2 then: 0.98 to 0.99 of the time. From twice as many blocks on, and to E2M1, it takes longer (observed: H100, 2026-11).
        const u32 next = blockIdx.x + ahead, next_row = next / tiles * 128 + threadIdx.x, next_col = next % tiles * COLS;
        if (threadIdx.x < 128 && next_row < rows && next_col < cols) asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)source.x + (u64)next_row * cols + next_col));
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) data[r].open();

    bool clean = false;
    if (out.part != CODES) {
        u32 m[16];
        clean = column_maxima<FORMAT>(data, m);
        // The four lanes that have the same columns take four each.
        exchange<16, 16, 4>(m, [](u32 a, u32 b) { return max(a, b); });
        *(uint4*)&maxima[warp][lane % 8 * 16 + lane / 8 * 4] = {m[0], m[1], m[2], m[3]};
        __syncthreads();
        // Each column's scale is made once for the block.
        const u32 column = threadIdx.x % COLS, first = tile_row >> row_shift, order = out.grid.order;
        u32 group = threadIdx.x / COLS;
        u8* scale = once(out.scales + scale_index(out.grid, first + group, tile_col + column) * (order == UE8M0 ? 1 : 4));
        const u64 step = GROUPS * (order == ROW_MAJOR ? 4ull * out.grid.cols : 4);
        const u32 groups = tile_col + column < cols ? ((rows - 1) >> row_shift) + 1 : 0;  // that have this column
        for (; group < 128u >> row_shift; group += GROUPS) {
            const u32* of_warps = &maxima[(group << row_shift) / HEIGHT][column];
            u32 of_column = of_warps[0];
#pragma unroll
            for (u32 w = 1; w < 32 / HEIGHT; w++) of_column = max(of_column, of_warps[COLS * w]);
            if (row_shift == 7) {
#pragma unroll
                for (u32 w = 32 / HEIGHT; w < WARPS; w++) of_column = max(of_column, of_warps[COLS * w]);
            }
            const GroupScale s = cast_scale<FORMAT>(rule, __uint_as_float(of_column));
            factors[group][column / 16 * 20 + column % 16] = s.encode;
            if (first + group < groups) keep_scale(order, scale, s.scale);
            scale = once(scale + step);
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
    for (u32 r = 0; r < ROWS; r++) data[r].forget();
    if (FORMAT == E2M1 && clean) write_channels<FORMAT, true>(data, encode, row, col, rows, cols, out);
    else write_channels<FORMAT, false>(data, encode, row, col, rows, cols, out);
}

// Of a multiprocessor, without spilling: of eight rows, of four, and of four whose products are kept.
#if __CUDA_ARCH__ == 900
constexpr u32 CHANNEL_BLOCKS_wide = 6, CHANNEL_BLOCKS_four = 4, CHANNEL_BLOCKS_few = 2;
#else
constexpr u32 CHANNEL_BLOCKS_wide = __CUDA_ARCH__ >= 890 ? 4 : 2, CHANNEL_BLOCKS_four = 2, CHANNEL_BLOCKS_few = 1;
#endif
#define CHANNEL_KERNEL(kind, name, ROWS)                                                                                  \
    extern "C" __global__ void __launch_bounds__(1024 / ROWS, CHANNEL_BLOCKS_##kind) cast_channel_##kind##_##name(        \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out,                                                \
        u32 ahead)  /* blocks to the one whose tile is asked for */
#define CHANNEL_OF_BOTH(kind, name, OF, SOURCE, ROWS)                                                                     \
    CHANNEL_KERNEL(kind, name, ROWS) {                                                                                    \
        if (rule.format == E4M3) cast_channel_wide<SOURCE<OF>, OF, E4M3, ROWS>(source, rows, cols, rule, out, ahead);     \
        else cast_channel_wide<SOURCE<OF>, OF, E2M1, ROWS>(source, rows, cols, rule, out, ahead);                         \
    }
#define CAST_CHANNEL_WIDE(name, OF)                                                                                       \
    CHANNEL_OF_BOTH(wide, name, OF, Again, 8)                                                                             \
    CHANNEL_OF_BOTH(few, name, OF, Kept, 4)                                                                               \
    CHANNEL_KERNEL(four, name, 4) { cast_channel_wide<Again<OF>, OF, E2M1, 4>(source, rows, cols, rule, out, ahead); }
