// Where the numbers of a cast come from: plain matrices, codes with their scales, and what the kernels of fused/ compute.
#pragma once
#include "cast/cast.cuh"

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
    u64 scale_down;     // bytes from a scale to that of the row below; 0 where rows share them
    u64 scale_right;    // bytes from an FP32 scale to that to the right
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

// What a cast reads, eight neighbours of a row at a time. `at` is a place; `down` moves it so many rows down, within sixteen rows that begin at a
// multiple of sixteen. `load` asks for the eight `offset` columns to the right, without a branch that the next load would wait for; `open` follows
// when BATCH rows of a tile were asked for, and then `value` gives the numbers. `first`: this element is opened for the first time. The
// column is that of the first of the eight.

// Elements as they lie in memory: unpacked as often as they are wanted.
template <class T, bool ALIGNED> struct Plain {
    static constexpr int BATCH = 8;
    static constexpr bool EXPERTS = false;
    using At = const T*;
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) { return once((const T*)s.x + (u32)row * s.stride + col); }
    static __device__ __forceinline__ At down(const CastSource& s, At at, u32 rows) { return once(at + rows * s.stride); }
    Vec8<T> v;
    __device__ __forceinline__ void load(const CastSource&, At at, u32 offset, bool inside) { v = inside ? ::load<ALIGNED>(at + offset) : zero8<T>(); }
    __device__ __forceinline__ void open(const CastSource&, At, u32, int, u32, bool) {}
    __device__ __forceinline__ float value(int i) const { return element(v, i); }
    __device__ __forceinline__ u32 signs(int k) const { return signs4(v, k); }
    __device__ __forceinline__ void forget() { ::forget(v); }
};

// Codes times their scales, fl(code * scale), kept as numbers.
template <u32 FORMAT> struct Coded {
    static constexpr int BATCH = 8;
    static constexpr bool EXPERTS = false;
    struct At {
        const u8 *codes, *scales;
        u32 row, col;
    };
    static __device__ __forceinline__ u64 bytes(u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; }
    static __device__ __forceinline__ const u8* scale_at(const CastSource& s, u32 row, u32 col) {
        const u64 place = scale_index(s.grid, row >> s.grid.row_shift, col >> s.grid.col_shift);
        return s.scales + (s.grid.order == UE8M0 ? place : 4 * place);
    }
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) {
        return {once((const u8*)s.x + bytes((u64)(u32)row * s.cols + col)), once(scale_at(s, row, col)), (u32)row, col};
    }
    static __device__ __forceinline__ At down(const CastSource& s, const At& at, u32 rows) {
        return {once(at.codes + bytes((u64)rows * s.cols)), once(at.scales + rows * s.scale_down), at.row + rows, at.col};
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
        const u32 within = at.col & ((1u << s.grid.col_shift) - 1);  // its group
        const u8* from = at.scales + (u64)((within + offset) >> s.grid.col_shift) * s.scale_right;
        if (s.grid.order == UE8M0 && offset) from = scale_at(s, at.row, at.col + offset);
        scale = s.grid.order == UE8M0 ? scale_of_byte(__ldg(from)) : __ldg((const float*)from);
    }
    __device__ __forceinline__ void open(const CastSource& s, const At& at, u32, int row, u32 col, bool) {
        if (s.grid.col_shift == 0 && row >= 0 && col < s.cols) {
            // Per channel: each element has a scale of its own.
            decode(1.0f);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], load_scale(s.grid, s.scales, at.row >> s.grid.row_shift, col + i));
        } else {
            decode(scale);
        }
    }
    __device__ __forceinline__ void decode(float factor) {
        if constexpr (FORMAT == E2M1) {
            decode_word(codes[0], factor, v);
        } else {
            decode8(FORMAT, {codes[0], codes[1]}, v);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], factor);
        }
    }
    __device__ __forceinline__ float value(int i) const { return v[i]; }
    __device__ __forceinline__ u32 signs(int k) const { return signs4(v, k); }
    __device__ __forceinline__ void forget() {}
};

// The same of one place.
template <class S> __device__ __forceinline__ void load_at(S& data, const CastSource& s, int row, u32 col) { data.load(s, S::at(s, row, col), 0, row >= 0 && col < s.cols); }
template <class S> __device__ __forceinline__ void open_at(S& data, const CastSource& s, int row, u32 col, bool first) { data.open(s, S::at(s, row, col), 0, row, col, first); }

// How max |value| of a source's elements is found, in FP32 from the first step: `raise` by two elements, `larger` of two. `is_clean`: there was no
// NaN, and then `amax` gives the number. `of` makes a maximum of a number.
template <class S, u32 FORMAT> struct Maximum {
    // E4M3 codes do not ask for NaN: it is dropped.
    using Type = float;
    static __device__ __forceinline__ float larger(float a, float b) { return FORMAT == E2M1 ? max_or_nan(a, b) : fmaxf(a, b); }
    static __device__ __forceinline__ float raise(float m, const S& a, int i, const S& b, int j) { return larger(larger(m, fabsf(a.value(i))), fabsf(b.value(j))); }
    static __device__ __forceinline__ bool is_clean(float m) { return FORMAT != E2M1 || m == m; }
    static __device__ __forceinline__ float of(float amax) { return amax; }
    static __device__ __forceinline__ float amax(float m) { return m; }
};
// FP32 patterns of BF16 numbers, the sign shifted out, order like the magnitudes. The upper element of a word has the lower one's bits
// behind its own, and they decide nothing. A shift and half a maximum of three for each, where unpacking takes more of the slower pipe.
template <bool ALIGNED, u32 FORMAT> struct Maximum<Plain<Bf16, ALIGNED>, FORMAT> {
    using Type = u32;
    using S = Plain<Bf16, ALIGNED>;
    static __device__ __forceinline__ u32 larger(u32 a, u32 b) { return max(a, b); }
    static __device__ __forceinline__ u32 pattern(const S& s, int i) { return word(s.v.q[0], i / 2) << (i % 2 ? 1 : 17); }
    static __device__ __forceinline__ u32 raise(u32 m, const S& a, int i, const S& b, int j) { return max(max(m, pattern(a, i)), pattern(b, j)); }
    static __device__ __forceinline__ bool is_clean(u32 m) { return m < 0xFF020000u; }  // the least of a NaN
    static __device__ __forceinline__ u32 of(float amax) { return __float_as_uint(amax) << 1; }
    static __device__ __forceinline__ float amax(u32 m) { return __uint_as_float(m >> 1 & 0xFFFF0000u); }
};

// The maximum of eight neighbours, a NaN among them or not; and max |value| with NaN dropped.
template <class M, class S> __device__ __forceinline__ typename M::Type maximum_of(typename M::Type m, const S& s) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) m = M::raise(m, s, i, s, i + 1);
    return m;
}
template <class S> __device__ __forceinline__ float amax_without_nan(const S& s, float amax) {
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(s.value(i)));
    return amax;
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
