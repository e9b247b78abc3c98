// Casts per channel of codes whose scales are FP32, no row of which is chosen, and not transposed: sixteen neighbours a lane, so that a row's scale and place serve twice as many elements as in
// `cast_channel` (cast_tile.cuh), and a line of memory is eight lanes'.
#pragma once
#include "cast/maximum.cuh"
#include "cast/tile_place.cuh"

// What a thread has of a row, codes that are decoded as often as they are wanted (`Again`) or products that are kept (`Kept`). `codes_by` are codes of eight values by factors that `is_factor`, where no value is NaN or infinite and,
// of E2M1 codes, no scale has a sign; where it ASKS whether that holds it takes fewer instructions than codes of any values. `Again::sizes` are patterns of |value| of eight, NaN's and infinity's not below infinity's.
template <u32 OF> struct Again : Sixteen<OF, true> {
    template <u32 FORMAT> static constexpr bool ASKS = FORMAT == E2M1 || OF == E2M1;
    __device__ __forceinline__ void open() {}
    __device__ __forceinline__ void sizes(int h, u32 (&patterns)[8]) const {
        if constexpr (OF != E2M1) {
            this->half(h).sizes(patterns);
        } else {
            float v[8];
            positive(h, v);
#pragma unroll
            for (int i = 0; i < 8; i++) patterns[i] = __float_as_uint(v[i]);
        }
    }
    template <u32 FORMAT> __device__ __forceinline__ typename EightCodes<FORMAT>::Type codes_by(int h, const float (&encode)[8]) const {
        if constexpr (OF != E2M1) {
            return codes_of<FORMAT, true>(this->half(h), encode);
        } else {
            float y[8];
            positive(h, y);
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = __fmul_rn(y[i], encode[i]);
            if constexpr (FORMAT == E2M1) {
                return encode8_e2m1_sizes<true>(y, this->codes[h] & 0x88888888u);
            } else {
                const uint2 sizes = encode8<FORMAT>(y);
                return {sizes.x | signs_of_e2m1(this->codes[h]), sizes.y | signs_of_e2m1(this->codes[h] >> 16)};
            }
        }
    }

private:
    // |fl(code * scale)| of E2M1 codes: half of what signs cost. Infinity where the scale is huge.
    __device__ __forceinline__ void positive(int h, float (&v)[8]) const {
        e2m1_sizes(this->codes[h], v);
        const float factor = __fmul_rn(fabsf(this->scale), 16384.0f);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], factor);
    }
};
template <u32 OF> struct Kept : Sixteen<OF, true> {
    template <u32 FORMAT> static constexpr bool ASKS = FORMAT == E2M1;
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
    template <u32 FORMAT> __device__ __forceinline__ typename EightCodes<FORMAT>::Type codes_by(int h, const float (&encode)[8]) const { return codes_of<FORMAT, true>(half(h), encode); }
};

// Patterns of the largest |value| of each column, NaN dropped; whether there was none of what `codes_by` does not have.
template <u32 FORMAT, u32 OF, int ROWS> __device__ __forceinline__ bool column_maxima(Again<OF> (&data)[ROWS], u32 (&m)[16]) {
    // Patterns of numbers that are not negative order like them; NaN's is above all.
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int r = 0; r < ROWS; r += 2) {
            u32 upper[8], lower[8];
            data[r].sizes(h, upper);
            data[r + 1].sizes(h, lower);
#pragma unroll
            for (int i = 0; i < 8; i++) m[8 * h + i] = max(r ? max(m[8 * h + i], upper[i]) : upper[i], lower[i]);
        }
    }
    u32 largest = m[0];
#pragma unroll
    for (int c = 1; c < 16; c++) largest = max(largest, m[c]);
    if constexpr (OF == E2M1) {
        // As patterns scales with a sign are above infinity's, and finite ones without are below it.
#pragma unroll
        for (int r = 0; r < ROWS; r++) largest = max(largest, __float_as_uint(data[r].scale));
    }
    if (largest < 0x7F800000u) return true;
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

template <u32 FORMAT, bool CLEAN, int ROWS, class S>
__device__ __forceinline__ void write_channels(const S (&data)[ROWS], const float (&encode)[2][8], u32 row, u32 col, u32 rows, u32 cols, const CastOut& out) {
    const auto bytes = [](u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; };
    u8* codes = once(out.codes + bytes((u64)row * cols + col));
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const auto eight = [&](int h) {
            if constexpr (CLEAN) return data[r].template codes_by<FORMAT>(h, encode[h]);
            else return codes_of<FORMAT, false>(data[r].half(h), encode[h]);
        };
        store_piece(codes, both(eight(0), eight(1)), row + r < rows);
        codes += bytes(cols);
    }
}

// What a block's threads share. Patterns of maxima by slice of rows, one thread's, and column, four neighbours where `turned` has them, so that no bank is met twice; factors by group and column, what sixteen columns have apart.
template <u32 ROWS> struct ChannelShared {
    static constexpr u32 COLS = 128, SLICES = 128 / ROWS;
    u32 maxima[SLICES][COLS];
    float factors[4][8 * 20];
    static __device__ __forceinline__ u32 turned(u32 column) { return column ^ column / 32 % 4 * 4; }
};

// The thread's rows, of which so many are `there`: all, where they are known to be WHOLE.
template <bool WHOLE, class S, int ROWS>
__device__ __forceinline__ void load_channels(S (&data)[ROWS], const CastSource& source, const u8* codes, const u8* scales, u32 cols, u32 there) {
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
        if constexpr (WHOLE) data[r].load_inside({codes, scales, 0, 0});
        else data[r].load({codes, scales, 0, 0}, r < there);
        codes = once(codes + S::Of::bytes(cols));
        scales = once(scales + source.scale_down);
    }
}

// The largest of a column's maxima in so many slices, each of which has as many columns.
template <u32 SLICES, u32 COLS> __device__ __forceinline__ float largest_of(const u32* of_slices) {
    u32 amax = of_slices[0];
#pragma unroll
    for (u32 slice = 1; slice < SLICES; slice++) amax = max(amax, of_slices[COLS * slice]);
    return __uint_as_float(amax);
}

// A block holds 128 x 128 elements, a thread ROWS rows of sixteen. Eight rows, whose codes are decoded twice: what a thread does once is an eighth of its work. Four whose products are kept, where there are so few tiles that each waits for
// itself: 0.83 to 0.96 of the time of eight up to 224 tiles, 1.06 and more from 448 on. Sixteen rows took 1.1 and more, codes in shared memory 0.97 to 1.2, blocks that stay, the codes of their next tile on their way, 1.2 to 1.6
// (observed: H200, 2026-12). PREFETCH: a block asks for a later one's tile; between E4M3 0.98 to 0.99 of the time, from E2M1 to E4M3 0.95 to 0.96, to E2M1 no difference, and from E4M3 to it 1.02.
template <class S, u32 OF, u32 FORMAT, u32 ROWS, bool PREFETCH>
__device__ __forceinline__ void cast_channel_of_codes(ChannelShared<ROWS>& shared, const CastSource& source, u32 rows, u32 cols, const CastRule& rule, const CastOut& out, u32 ahead_down, u32 ahead_right) {
    using Shared = ChannelShared<ROWS>;
    constexpr u32 COLS = Shared::COLS, SLICES = Shared::SLICES, GROUPS = 8 / ROWS;  // GROUPS: of rows, that the threads make scales of at once
    static_assert(!PREFETCH || ROWS == 8, "a thread asks for a row of 128");
    const u32 across = (cols + COLS - 1) / COLS;
    const TilePlace tile = tile_of_block(across);
    if (tile.is_past(rows)) return;
    const u32 tile_row = tile.down * 128, tile_col = tile.right * COLS, row_shift = out.grid.row_shift;
    begin();
    S data[ROWS];
    {
        const u32 row = tile_row + threadIdx.x / 8 * ROWS, col = tile_col + threadIdx.x % 8 * 16;
        const u8* codes = once((const u8*)source.x + S::Of::bytes((u64)row * cols + col));
        const u8* scales = once(source.scales + (u64)(row >> source.grid.row_shift) * source.scale_row + (col >> source.grid.col_shift) * source.scale_right);
        // Whole tiles without the tests and zeros of what may be outside: 0.97 to 0.99 of the time (observed: H200, 2026-12).
        if (tile_row + 128 <= rows && tile_col + COLS <= cols) load_channels<true>(data, source, codes, scales, cols, ROWS);
        else load_channels<false>(data, source, codes, scales, cols, row < rows && col < cols ? rows - row : 0);
    }
    if constexpr (PREFETCH) {
        // A row of the tile that comes so many blocks later, to be in L2 then; from twice as many blocks on it takes longer.
        TilePlace next = {tile.down + ahead_down, tile.right + ahead_right};
        if (next.right >= across) next.right -= across, next.down++;
        const u32 next_row = next.down * 128 + threadIdx.x;
        if (next_row < rows) asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)source.x + S::Of::bytes((u64)next_row * cols + next.right * COLS)));
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) data[r].open();

    bool clean = false;
    if (out.part != CODES) {
        u32 m[16];
        clean = column_maxima<FORMAT>(data, m);
        const u32 thread = thread_anew();
#pragma unroll
        for (u32 k = 0; k < 4; k++) *(uint4*)&shared.maxima[thread / 8][Shared::turned(thread % 8 * 16 + 4 * k)] = {m[4 * k], m[4 * k + 1], m[4 * k + 2], m[4 * k + 3]};
        __syncthreads();
    }
    {
        // Each column's scale is made, or asked for, once for the block.
        const u32 thread = thread_anew(), column = thread % COLS, order = out.grid.order, first = tile_row >> row_shift;
        u32 group = thread / COLS;
        u8* scale = once(out.scales + scale_index(out.grid, first + group, tile_col + column) * (order == UE8M0 ? 1 : 4));
        const u32* of_slices = &shared.maxima[0][Shared::turned(column)];
        float* factor = &shared.factors[group][column / 16 * 20 + column % 16];
        const auto make = [&](float amax, bool inside) {
            const GroupScale s = cast_scale<FORMAT>(rule, amax);
            *factor = s.encode;
            if (inside) keep_scale(order, scale, s.scale);
            clean = clean && is_factor(s.encode);
        };
        const bool inside = tile_col + column < cols;
        if (out.part == CODES) {
            for (; group < 128u >> row_shift; group += GROUPS) {
                *factor = inside && first + group < out.grid.rows ? __frcp_rn(load_scale(out.grid, out.scales, first + group, tile_col + column)) : 0.0f;
                factor += GROUPS * 8 * 20;
            }
        } else if (row_shift == 7) {
            if (group == 0) make(largest_of<SLICES, COLS>(of_slices), inside);
        } else {
            of_slices += COLS * (SLICES / 4) * group;
            const u64 step = GROUPS * (order == ROW_MAJOR ? 4ull * out.grid.cols : 4);
#pragma unroll 1
            for (; group < 4; group += GROUPS) {
                make(largest_of<SLICES / 4, COLS>(of_slices), inside && first + group < out.grid.rows);
                of_slices += COLS * (SLICES / 4) * GROUPS;
                factor += GROUPS * 8 * 20;
                scale = once(scale + step);
            }
        }
    }
    if (out.part == SCALES) return;
    if constexpr (S::template ASKS<FORMAT>) clean = __syncthreads_and(clean);
    else __syncthreads();
    const u32 thread = thread_anew(), row = tile_row + thread / 8 * ROWS, col = tile_col + thread % 8 * 16;
    float encode[2][8];
    const float4* of_group = (const float4*)&shared.factors[(row - tile_row) >> row_shift][thread % 8 * 20];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float4 four = of_group[k];
        float* const to = &encode[k / 2][k % 2 * 4];
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
    if (col >= cols) return;
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) data[r].forget();
    if (S::template ASKS<FORMAT> && clean) write_channels<FORMAT, true>(data, encode, row, col, rows, cols, out);
    else write_channels<FORMAT, false>(data, encode, row, col, rows, cols, out);
}

// Blocks of a multiprocessor, without spilling. Of eight rows one more or one less takes up to 1.05 of the time (observed: H200, 2026-12).
#if __CUDA_ARCH__ == 900
template <u32 OF, u32 FORMAT> constexpr u32 CHANNEL_BLOCKS = OF == E2M1 || FORMAT == E2M1 ? 7 : 6;
constexpr u32 KEPT_BLOCKS = 2;
#else
template <u32, u32> constexpr u32 CHANNEL_BLOCKS = __CUDA_ARCH__ >= 890 ? 4 : 2;
constexpr u32 KEPT_BLOCKS = 1;
#endif
#define CHANNEL_PARAMETERS                                                                                                \
    CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out,                                                    \
        u32 ahead_down, u32 ahead_right  /* rows and columns of tiles to the one that is asked for */
#define CAST_CHANNEL_OF_TO(from, OF, to, TO)                                                                              \
    extern "C" __global__ void __launch_bounds__(128, (CHANNEL_BLOCKS<OF, TO>)) cast_channel_wide_##from##_##to(CHANNEL_PARAMETERS) { \
        __shared__ __align__(16) ChannelShared<8> shared;                                                                 \
        cast_channel_of_codes<Again<OF>, OF, TO, 8, OF == E2M1 || TO == E4M3>(shared, source, rows, cols, rule, out, ahead_down, ahead_right); \
    }
#define CAST_CHANNEL_WIDE(from, OF)                                                                                       \
    CAST_CHANNEL_OF_TO(from, OF, e4m3, E4M3)                                                                              \
    CAST_CHANNEL_OF_TO(from, OF, e2m1, E2M1)                                                                              \
    extern "C" __global__ void __launch_bounds__(256, KEPT_BLOCKS) cast_channel_few_##from(CHANNEL_PARAMETERS) {   \
        __shared__ __align__(16) ChannelShared<4> shared;                                                                 \
        if (rule.format == E4M3) cast_channel_of_codes<Kept<OF>, OF, E4M3, 4, false>(shared, source, rows, cols, rule, out, ahead_down, ahead_right); \
        else cast_channel_of_codes<Kept<OF>, OF, E2M1, 4, false>(shared, source, rows, cols, rule, out, ahead_down, ahead_right); \
    }
