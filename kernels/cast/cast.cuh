// Casts to groupings that no product reads: where their numbers come from, TileKernels' rule, and where scales lie.
// Mirror of src/format/cast.rs; tests compare every byte with src/reference/cast.
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

__device__ __forceinline__ float scale_of_byte(u32 byte) {
    return __uint_as_float(byte == 0 ? 0x00400000u : byte == 255 ? 0x7FC00000u : byte << 23);
}

__device__ __forceinline__ float load_scale(const CastGrid& grid, const u8* scales, u64 row, u64 col) {
    const u64 at = scale_index(grid, row, col);
    return grid.order == UE8M0 ? scale_of_byte(__ldg(scales + at)) : __ldg((const float*)scales + at);
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

// What is computed of a plain matrix before it is cast (fused/produced.cuh).
struct Producer {
    const float* weights;  // [rows of the source] factors of rows; null: none
    const int* experts;    // [rows of the source] a row of a negative expert is zeros; null: none
    u64* counts;           // [3] raised by elements that the clamp changes: l > c, r > c, r < -c; null: not wanted
    const void* columns;   // [cols] factors of columns, of x's type or FP32
    u32 kind;              // SWIGLU, SILU, GELU, GELU_TANH or NORMED
    u32 clamped;           // 1: there is a clamp
    float clamp;
    u32 rounded;           // 1: values are rounded to BF16 before they are cast
    u32 columns_f32;       // 1: factors of columns are FP32
};

struct CastSource {
    const void* x;      // [rows][cols]: elements with a row stride, or codes
    const u8* scales;   // of codes
    const int* index;   // the source's row for each row of the result, none where it is no row of it; null: the same row
    u64 stride;         // elements from row to row
    u32 rows, cols;     // of the source
    CastGrid grid;      // of the scales of codes
    Producer producer;
};

// The source's row of a row of the result; -1: a row of zeros. A source of experts is one that is computed.
template <class S> __device__ __forceinline__ int source_row(const CastSource& s, u64 row, u32 rows) {
    if (row >= rows) return -1;
    int at = (int)row;
    if (s.index) at = __ldg(s.index + row);
    if ((u32)at >= s.rows) return -1;
    if constexpr (S::EXPERTS)
        if (s.producer.experts && __ldg(s.producer.experts + at) < 0) return -1;
    return at;
}

// What a cast reads, eight neighbours of a row at a time: `load` asks for them, `offset` columns from where `at` points, without a branch that
// the next load would wait for; `open` follows when BATCH rows of a tile were asked for, and then `value` gives the numbers.
// `first`: this element is opened for the first time. The column is that of the first of the eight.

// Elements as they lie in memory: unpacked as often as they are wanted.
template <class T, bool ALIGNED> struct Plain {
    static constexpr int BATCH = 8;
    static constexpr bool EXPERTS = false;
    using At = const T*;
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) { return once((const T*)s.x + (u32)row * s.stride + col); }
    Vec8<T> v;
    __device__ __forceinline__ void load(const CastSource&, At at, u32 offset, bool inside) { v = inside ? ::load<ALIGNED>(at + offset) : zero8<T>(); }
    __device__ __forceinline__ void open(const CastSource&, At, u32, int, u32, bool) {}
    __device__ __forceinline__ float value(int i) const { return element(v, i); }
    __device__ __forceinline__ void forget() { ::forget(v); }
};

// Codes times their scales, fl(code * scale), kept as numbers.
template <u32 FORMAT> struct Coded {
    static constexpr int BATCH = 8;
    static constexpr bool EXPERTS = false;
    struct At {
        const u8* codes;
        u32 row, col;
    };
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) {
        const u64 code = (u64)(u32)row * s.cols + col;
        return {once((const u8*)s.x + (FORMAT == E2M1 ? code / 2 : code)), (u32)row >> s.grid.row_shift, col};
    }
    float v[8];
    u32 codes[2];
    float scale;
    __device__ __forceinline__ void load(const CastSource& s, const At& at, u32 offset, bool inside) {
        codes[0] = codes[1] = 0;
        scale = 0.0f;
        if (!inside) return;
        if constexpr (FORMAT == E2M1) {
            codes[0] = __ldg((const u32*)(at.codes + offset / 2));
        } else {
            const uint2 both = __ldg((const uint2*)(at.codes + offset));
            codes[0] = both.x;
            codes[1] = both.y;
        }
        scale = load_scale(s.grid, s.scales, at.row, (at.col + offset) >> s.grid.col_shift);
    }
    __device__ __forceinline__ void open(const CastSource& s, const At& at, u32 offset, int row, u32 col, bool) {
        if constexpr (FORMAT == E2M1) decode_word(codes[0], 1.0f, v);
        else decode8(FORMAT, {codes[0], codes[1]}, v);
        if (s.grid.col_shift == 0 && row >= 0 && col < s.cols) {
            // Per channel: each element has a scale of its own.
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], load_scale(s.grid, s.scales, at.row, col + i));
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], scale);
        }
    }
    __device__ __forceinline__ float value(int i) const { return v[i]; }
    __device__ __forceinline__ void forget() {}
};

// The same of one place.
template <class S> __device__ __forceinline__ void load_at(S& data, const CastSource& s, int row, u32 col) { data.load(s, S::at(s, row, col), 0, row >= 0 && col < s.cols); }
template <class S> __device__ __forceinline__ void open_at(S& data, const CastSource& s, int row, u32 col, bool first) { data.open(s, S::at(s, row, col), 0, row, col, first); }

// Numbers that a kernel has computed.
struct Numbers {
    const float (&v)[8];
    __device__ __forceinline__ float value(int i) const { return v[i]; }
};

// The larger, or NaN if one of them is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

// max |value| in FP32 from the first step, NaN dropped. `clean`: whether there was none, where the format asks for it.
template <u32 FORMAT, class S> __device__ __forceinline__ float amax_of(const S& s, float amax, bool& clean) {
    if constexpr (FORMAT == E2M1) {
        float m = amax;
#pragma unroll
        for (int i = 0; i < 8; i++) m = max_or_nan(m, fabsf(s.value(i)));
        if (m == m) return m;
        clean = false;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(s.value(i)));
    return amax;
}

// Below, encode * 2^-14 is no normal number, and may lose bits that fl(x * encode) has.
constexpr float LEAST_ENCODE = 0x1p-112f;

// Writes the codes of eight values, each times its factor, fl(x * encode); `at` is the number of the first. `bounded`: no product
// is above 6 by more than a rounding, none is NaN, and no factor is below LEAST_ENCODE.
template <u32 FORMAT> __device__ __forceinline__ void store_codes(u8* codes, u64 at, float (&v)[8], const float (&encode)[8], bool bounded) {
    if constexpr (FORMAT == E2M1) {
        const float unit = e2m1_factor(1.0f);
        u32 word;
        if (bounded) {
            // Where x * encode * 2^-14 is no normal number either, the code is 0 whatever it is rounded to.
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], __fmul_rn(encode[i], unit));
            word = encode8_e2m1_bounded(v);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(v[i], encode[i]), unit);
            word = encode8_e2m1(v);
        }
        *(u32*)(codes + at / 2) = word;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], encode[i]);
        *(uint2*)(codes + at) = encode8<FORMAT>(v);
    }
}

template <u32 FORMAT> __device__ __forceinline__ void store_codes(u8* codes, u64 at, float (&v)[8], float encode, bool bounded) {
    const float all[8] = {encode, encode, encode, encode, encode, encode, encode, encode};
    store_codes<FORMAT>(codes, at, v, all, bounded);
}

template <class S> __device__ __forceinline__ void values(const S& s, float (&f)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = s.value(i);
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
