// Casts to groupings that no product reads: where their numbers come from, TileKernels' rule, and where scales lie.
// Mirror of src/format/cast.rs; tests compare every byte with src/reference/cast.rs.
#pragma once
#include "base/e2m1.cuh"
#include "base/layout.cuh"

// Order of the scales, as the kernels receive it (src/gpu/kernels/cast.rs).
constexpr u32 ROW_MAJOR = 0;
constexpr u32 COLUMN_MAJOR = 1;
constexpr u32 UE8M0 = 2;

// Which element has which scale: extents of groups are powers of two.
struct CastGrid {
    u32 rows, cols;            // of the grid of scales
    u32 row_shift, col_shift;  // log2 of a group's rows and columns; 31: all of them
    u32 order;                 // ROW_MAJOR, COLUMN_MAJOR or UE8M0
};

__device__ __forceinline__ u64 scale_index(const CastGrid& grid, u64 row, u64 col) {
    if (grid.order == ROW_MAJOR) return row * grid.cols + col;
    const u64 pitch = round_up4(grid.rows);
    return grid.order == COLUMN_MAJOR ? col * pitch + row : col / 4 * 4 * pitch + 4 * row + col % 4;
}

__device__ __forceinline__ float load_scale(const CastGrid& grid, const u8* scales, u64 row, u64 col) {
    const u64 at = scale_index(grid, row, col);
    if (grid.order != UE8M0) return __ldg((const float*)scales + at);
    const u32 byte = __ldg(scales + at);
    return __uint_as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7FC00000u : byte << 23);
}

__device__ __forceinline__ void store_scale(const CastGrid& grid, u8* scales, u64 row, u64 col, float scale) {
    const u64 at = scale_index(grid, row, col);
    if (grid.order != UE8M0) ((float*)scales)[at] = scale;
    else scales[at] = (u8)(__float_as_uint(scale) >> 23);
}

// Mirror of CastRecipe.
struct CastRule {
    float max;     // largest value of the code format: 448 or 6
    float floor;   // the least amax that counts
    u32 pow2;      // 1: scales are powers of two
    u32 format;    // E4M3 or E2M1 (codec.cuh)
};

// Mirror of CastRecipe::group_scale, operation by operation.
__device__ __forceinline__ GroupScale cast_scale(const CastRule& rule, float amax) {
    const float a = fmaxf(amax, rule.floor);
    const float scale = __fdiv_rn(a, rule.max);
    if (!rule.pow2) return {__fdiv_rn(rule.max, a), scale};
    const u32 exponent = ((__float_as_uint(scale) - 1) >> 23) + 1;
    return {__uint_as_float((exponent < 254 ? 254 - exponent : 0) << 23), __uint_as_float(exponent << 23)};
}

// What is written: scales and codes, codes by scales that are there, or scales alone.
constexpr u32 BOTH = 0;
constexpr u32 CODES = 1;
constexpr u32 SCALES = 2;

struct CastOut {
    u8* codes;       // [rows][cols] codes, transposed [cols][rows]; 8-byte aligned
    u8* scales;      // in the order of `grid`; padding is left alone
    CastGrid grid;
    u32 part;        // BOTH, CODES or SCALES
    u32 transposed;
};

struct CastSource {
    const void* x;      // [rows][cols]: elements with a row stride, or codes
    const u8* scales;   // of codes
    const int* index;   // the source's row for each row of the result, none where it is no row of it; null: the same row
    u64 stride;         // elements from row to row
    u32 rows, cols;     // of the source
    CastGrid grid;      // of the scales of codes
};

// The source's row of a row of the result; -1: a row of zeros.
__device__ __forceinline__ i64 source_row(const CastSource& s, u64 row, u32 rows) {
    if (row >= rows) return -1;
    if (!s.index) return (i64)row;
    const int at = __ldg(s.index + row);
    return at >= 0 && (u32)at < s.rows ? at : -1;
}

// What a cast reads, eight neighbours of a row at a time: `load` asks for them, without a branch that the next load would wait
// for; `values` are the numbers, as often as they are wanted.

// Elements as they lie in memory.
template <class T, bool ALIGNED> struct Plain {
    Vec8<T> v;
    __device__ __forceinline__ void load(const CastSource& s, i64 row, u32 col) {
        const bool inside = row >= 0 && col < s.cols;
        v = inside ? ::load<ALIGNED>((const T*)s.x + (u64)row * s.stride + col) : zero8<T>();
    }
    __device__ __forceinline__ void values(const CastSource&, i64, u32, float (&f)[8]) const { unpack(v, f); }
    __device__ __forceinline__ void forget() { ::forget(v); }
};

// Codes, and the scale of the first.
template <u32 FORMAT> struct Coded {
    uint2 codes;
    float scale;
    __device__ __forceinline__ void load(const CastSource& s, i64 row, u32 col) {
        const bool inside = row >= 0 && col < s.cols;
        codes = {0, 0};
        scale = 0.0f;
        if (!inside) return;
        const u64 at = (u64)row * s.cols + col;
        if constexpr (FORMAT == E2M1) codes.x = __ldg((const u32*)((const u8*)s.x + at / 2));
        else codes = __ldg((const uint2*)((const u8*)s.x + at));
        scale = load_scale(s.grid, s.scales, (u64)row >> s.grid.row_shift, col >> s.grid.col_shift);
    }
    // fl(code * scale)
    __device__ __forceinline__ void values(const CastSource& s, i64 row, u32 col, float (&f)[8]) const {
        if constexpr (FORMAT == E2M1) decode_word(codes.x, 1.0f, f);
        else decode8(FORMAT, codes, f);
        if (s.grid.col_shift == 0 && row >= 0 && col < s.cols) {
            // Per channel: each element has a scale of its own.
#pragma unroll
            for (int i = 0; i < 8; i++) f[i] = __fmul_rn(f[i], load_scale(s.grid, s.scales, (u64)row >> s.grid.row_shift, col + i));
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) f[i] = __fmul_rn(f[i], scale);
        }
    }
    __device__ __forceinline__ void forget() {}
};

// max |f| in FP32 from the first step, NaN dropped.
__device__ __forceinline__ float amax_of(const float (&f)[8], float amax) {
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(f[i]));
    return amax;
}

// Writes the codes of eight values, each times its factor, fl(x * encode); `at` is the number of the first.
template <u32 FORMAT> __device__ __forceinline__ void store_codes(u8* codes, u64 at, float (&v)[8], const float (&encode)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], encode[i]);
    if constexpr (FORMAT == E2M1) {
        // A product of its own: encode times 2^-14 may be no normal number, and what is rounded is fl(x * encode).
        const float unit = e2m1_factor(1.0f);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], unit);
        *(u32*)(codes + at / 2) = encode8_e2m1(v);
    } else {
        *(uint2*)(codes + at) = encode8<FORMAT>(v);
    }
}

template <u32 FORMAT> __device__ __forceinline__ void store_codes(u8* codes, u64 at, float (&v)[8], float encode) {
    const float all[8] = {encode, encode, encode, encode, encode, encode, encode, encode};
    store_codes<FORMAT>(codes, at, v, all);
}

// KERNEL(name, SOURCE, ...) for every kind of source.
#define CAST_PLAIN(name, T, ALIGNED, KERNEL, ...) KERNEL(name, (Plain<T, ALIGNED>), __VA_ARGS__)
#define FOR_EACH_SOURCE(KERNEL, ...)                                                                                      \
    FOR_EACH_TYPE(CAST_PLAIN, KERNEL, __VA_ARGS__)                                                                        \
    KERNEL(e4m3, (Coded<E4M3>), __VA_ARGS__)                                                                              \
    KERNEL(e2m1, (Coded<E2M1>), __VA_ARGS__)

// Takes the parentheses off a type that has commas.
template <class T> struct Unwrap;
template <class T> struct Unwrap<void(T)> { using Type = T; };
