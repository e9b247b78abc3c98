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
    u64 scale_row;      // bytes from a row of scales to the next
    u64 scale_right;    // bytes from a column of scales to the next, of UE8M0 from four columns to the next four
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

// One, two or four words of an input, zeros where they are not `wanted`: no branch, and what was said of `load_stream`.
__device__ __forceinline__ u32 load_if(bool wanted, const u32* p) {
    u32 v = 0;
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %2, 0; @wanted ld.global.u32 %0, [%1];}" : "+r"(v) : "l"(p), "r"((u32)wanted));
    return v;
}
__device__ __forceinline__ uint2 load_if(bool wanted, const uint2* p) {
    uint2 v = {0, 0};
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %3, 0; @wanted ld.global.v2.u32 {%0, %1}, [%2];}"
                 : "+r"(v.x), "+r"(v.y) : "l"(p), "r"((u32)wanted));
    return v;
}
__device__ __forceinline__ uint4 load_if(bool wanted, const uint4* p) {
    uint4 v = {0, 0, 0, 0};
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %5, 0; @wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"((u32)wanted));
    return v;
}

// What a cast reads, eight neighbours of a row at a time. `at` is a place; `down` moves it so many rows down, within sixteen rows that begin at a
// multiple of sixteen; `here` makes it one for rows below each other, which moves for less. `load` asks for the eight `offset` columns to the right, without a branch that the next load would wait for; `open` follows
// when BATCH rows of a tile were asked for, and then `value` gives the numbers. `first`: this element is opened for the first time. The
// column is that of the first of the eight.

// Elements as they lie in memory: unpacked as often as they are wanted.
template <class T, bool ALIGNED> struct Plain {
    static constexpr int BATCH = 8;
    static constexpr bool EXPERTS = false;
    using At = const T*;
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) { return once((const T*)s.x + (u32)row * s.stride + col); }
    static __device__ __forceinline__ At here(const CastSource&, const At& at) { return at; }
    static __device__ __forceinline__ At down(const CastSource& s, At at, u32 rows) { return once(at + rows * s.stride); }
    Vec8<T> v;
    __device__ __forceinline__ void load(const CastSource&, At at, u32 offset, bool inside) { v = inside ? ::load<ALIGNED>(at + offset) : zero8<T>(); }
    __device__ __forceinline__ void open(const CastSource&, At, u32, int, u32, bool) {}
    __device__ __forceinline__ float value(int i) const { return element(v, i); }
    __device__ __forceinline__ u32 signs(int k) const { return signs4(v, k); }
    __device__ __forceinline__ void forget() { ::forget(v); }
};

// Sixteen neighbours of an aligned matrix of 16 bits.
template <class T> struct Wide {
    static constexpr bool EXPERTS = false;
    using Half = Plain<T, true>;
    using At = typename Half::At;
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) { return Half::at(s, row, col); }
    static __device__ __forceinline__ At down(const CastSource& s, At at, u32 rows) { return Half::down(s, at, rows); }
    Half halves[2];
    __device__ __forceinline__ void load(const CastSource& s, At at, u32 offset, bool inside) {
        halves[0].load(s, at, offset, inside);
        halves[1].load(s, at, offset + 8, inside);
    }
    __device__ __forceinline__ void open(const CastSource&, At, u32, int, u32, bool) {}
    __device__ __forceinline__ Half half(int h) const { return halves[h]; }
    __device__ __forceinline__ float value(int i) const { return halves[i / 8].value(i % 8); }
    __device__ __forceinline__ void forget() {
        halves[0].forget();
        halves[1].forget();
    }
};

// Codes times their scales, fl(code * scale): where they lie, and how they are read.
template <u32 FORMAT> struct PackedCodes {
    static constexpr int BATCH = 8;
    static constexpr bool EXPERTS = false;
    struct At {
        const u8 *codes, *scales;  // scales: of the row, from that of number `first` on
        u32 col, first;
    };
    static __device__ __forceinline__ u64 bytes(u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; }
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) {
        return {once((const u8*)s.x + bytes((u64)(u32)row * s.cols + col)), once(s.scales + (u64)((u32)row >> s.grid.row_shift) * s.scale_row), col, 0};
    }
    static __device__ __forceinline__ At down(const CastSource& s, const At& at, u32 rows) {
        return {once(at.codes + bytes((u64)rows * s.cols)), once(at.scales + rows * s.scale_down), at.col, at.first};
    }
    // The number of what holds the scale of a column, of four where they are bytes.
    static __device__ __forceinline__ u32 number_of(const CastSource& s, u32 col) {
        const u32 group = col >> s.grid.col_shift;
        return s.grid.order == UE8M0 ? group / 4 : group;
    }
    // For rows below each other: without a product for each of them.
    static __device__ __forceinline__ At here(const CastSource& s, const At& at) {
        const u32 first = number_of(s, at.col);
        return {at.codes, once(at.scales + first * s.scale_right), at.col, first};
    }
    // What holds the scale of a column: `scale_index` without a branch.
    static __device__ __forceinline__ u32 scale_bits(const CastSource& s, const At& at, u32 col, bool inside) {
        const u8* p = at.scales + (number_of(s, col) - at.first) * s.scale_right;
        return inside ? __ldg((const u32*)p) : 0;
    }
    static __device__ __forceinline__ float scale_of(const CastSource& s, u32 bits, u32 col) {
        return s.grid.order == UE8M0 ? scale_of_byte(bits >> (col >> s.grid.col_shift) % 4 * 8 & 0xFF) : __uint_as_float(bits);
    }
    u32 codes[2];  // E4M3 once they are opened
    u32 bits;      // of the scale: what is made of them waits for them, and comes after all loads
    __device__ __forceinline__ void load(const CastSource& s, const At& at, u32 offset, bool inside) {
        if constexpr (FORMAT == E2M1) {
            codes[0] = inside ? __ldg((const u32*)(at.codes + offset / 2)) : 0;
        } else {
            const uint2 both = inside ? __ldg((const uint2*)(at.codes + offset)) : uint2{0, 0};
            codes[0] = both.x;
            codes[1] = both.y;
        }
        bits = scale_bits(s, at, at.col + offset, inside);
    }
    __device__ __forceinline__ void open_codes() {
        if constexpr (FORMAT == E2M1) {
            codes[1] = e4m3_of_e2m1(codes[0] >> 16);
            codes[0] = e4m3_of_e2m1(codes[0]);
        }
    }
    __device__ __forceinline__ void decode(float factor, float (&v)[8]) const {
        decode8(E4M3, {codes[0], codes[1]}, v);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], factor);
    }
};

// Four E4M3 codes without their signs. Largest codes are found among 16-bit numbers whose highest bits are a code: what lies below
// decides between equal codes alone.
constexpr u32 MAGNITUDES = 0x7F7F7F7Fu;

// Whose groups have more than one column: unpacked as often as they are wanted.
template <u32 FORMAT> struct Coded : PackedCodes<FORMAT> {
    using Of = PackedCodes<FORMAT>;
    float scale;
    __device__ __forceinline__ void open(const CastSource& s, const typename Of::At&, u32, int, u32 col, bool) {
        this->open_codes();
        scale = __uint_as_float(this->bits);
        if (s.grid.order == UE8M0) {
            // A branch that all take, in the place of eight instructions for every row whose scales are FP32.
            asm volatile("" : "+r"(this->bits));
            scale = Of::scale_of(s, this->bits, col);
        }
    }
    // Of a place whose scale is there, or the word of it.
    __device__ __forceinline__ void load_at(const u8* of_codes, const u8* of_scale, bool inside) {
        static_assert(FORMAT == E4M3, "of two words");
        const uint2 both = load_if(inside, (const uint2*)of_codes);
        this->codes[0] = both.x, this->codes[1] = both.y;
        this->bits = load_if(inside, (const u32*)of_scale);
    }
    __device__ __forceinline__ float value(int i) const {
        float v[8];
        this->decode(scale, v);
        return v[i];
    }
    // Patterns of all |value|: NaN's are above those of numbers.
    __device__ __forceinline__ void sizes(u32 (&patterns)[8]) const {
        float v[8];
        decode8(E4M3, {this->codes[0], this->codes[1]}, v);
#pragma unroll
        for (int i = 0; i < 8; i++) patterns[i] = __float_as_uint(__fmul_rn(fabsf(v[i]), fabsf(scale)));
    }
    __device__ __forceinline__ u32 signs(int k) const { return this->codes[k] ^ (u32)(__float_as_int(scale) >> 31); }
    __device__ __forceinline__ void forget() { asm volatile("" : "+r"(this->codes[0]), "+r"(this->codes[1])); }
    // The largest |value|; NaN if there is one.
    __device__ __forceinline__ float largest() const {
        const u32 x = this->codes[0] & MAGNITUDES, y = this->codes[1] & MAGNITUDES;
        const u32 m = max_u16x2(max_u16x2(x, x << 8), max_u16x2(y, y << 8));
        float value, other;
        decode_pair(E4M3, max(m, m << 16) >> 24, value, other);
        return fabsf(__fmul_rn(value, scale));
    }
};

// Of any groups, those of one column among them: kept as numbers.
template <u32 FORMAT> struct Opened : PackedCodes<FORMAT> {
    using Of = PackedCodes<FORMAT>;
    float v[8];
    __device__ __forceinline__ void open(const CastSource& s, const typename Of::At& at, u32, int row, u32 col, bool) {
        this->open_codes();
        if (s.grid.col_shift != 0) return this->decode(Of::scale_of(s, this->bits, col), v);
        const bool inside = row >= 0 && col < s.cols;
        this->decode(1.0f, v);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], Of::scale_of(s, Of::scale_bits(s, at, col + i, inside), col + i));
    }
    __device__ __forceinline__ float value(int i) const { return v[i]; }
    __device__ __forceinline__ u32 signs(int k) const { return signs4(v, k); }
    __device__ __forceinline__ void forget() {}
};

// Sixteen neighbours, which share a scale as no group of these has fewer columns: for memory in larger pieces, and E2M1 codes once for all.
// FLAT: of a matrix that is one row, whose scales are FP32 numbers by rows; its places have no more than two addresses.
template <u32 FORMAT, bool FLAT = false> struct Sixteen {
    static constexpr bool EXPERTS = false;
    using Of = PackedCodes<FORMAT>;
    using At = typename Of::At;
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) {
        if constexpr (!FLAT) return Of::at(s, row, col);
        return {once((const u8*)s.x + Of::bytes(col)), once(s.scales + (col >> s.grid.col_shift) * 4ull), 0, 0};
    }
    static __device__ __forceinline__ At down(const CastSource& s, const At& at, u32 rows) { return Of::down(s, at, rows); }
    u32 codes[FORMAT == E2M1 ? 2 : 4];
    u32 bits;
    float scale;
    __device__ __forceinline__ void load_codes(const At& at, u32 offset, bool inside) {
        if constexpr (FORMAT == E2M1) {
            const uint2 q = load_if(inside, (const uint2*)(at.codes + offset / 2));
            codes[0] = q.x, codes[1] = q.y;
        } else {
            const uint4 q = load_if(inside, (const uint4*)(at.codes + offset));
            codes[0] = q.x, codes[1] = q.y, codes[2] = q.z, codes[3] = q.w;
        }
    }
    __device__ __forceinline__ void load(const CastSource& s, const At& at, u32 offset, bool inside) {
        load_codes(at, offset, inside);
        // Groups are whole in what lies between vectors of a thread.
        if constexpr (FLAT) scale = __uint_as_float(load_if(inside, (const u32*)at.scales + (offset >> s.grid.col_shift)));
        else bits = Of::scale_bits(s, at, at.col + offset, inside);
    }
    // Of a place whose scale is there, an FP32 number.
    __device__ __forceinline__ void load(const At& at, bool inside) {
        load_codes(at, 0, inside);
        scale = __uint_as_float(load_if(inside, (const u32*)at.scales));
    }
    // The same of what is there, in this order, too: left to itself the compiler puts loads where they are wanted.
    __device__ __forceinline__ void load_inside(const At& at) {
        if constexpr (FORMAT == E2M1) asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(codes[0]), "=r"(codes[1]) : "l"(at.codes));
        else asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3]) : "l"(at.codes));
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(scale) : "l"(at.scales));
    }
    __device__ __forceinline__ void open(const CastSource& s, const At&, u32, int, u32 col, bool) {
        if constexpr (!FLAT) scale = Of::scale_of(s, bits, col);
    }
    // Eight of them.
    __device__ __forceinline__ Coded<FORMAT> half(int h) const {
        Coded<FORMAT> eight;
        eight.codes[0] = codes[FORMAT == E2M1 ? h : 2 * h];
        if constexpr (FORMAT != E2M1) eight.codes[1] = codes[2 * h + 1];
        eight.open_codes();
        eight.scale = scale;
        return eight;
    }
    __device__ __forceinline__ float value(int i) const { return half(i / 8).value(i % 8); }
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (u32& word : codes) asm volatile("" : "+r"(word));
    }
    // The largest |value|; NaN if there is one.
    __device__ __forceinline__ float largest() const {
        float value, other;
        if constexpr (FORMAT == E2M1) {
            u32 m = 0;
#pragma unroll
            for (const u32 word : codes) {
                const u32 x = word & 0x77777777u;
                m = max_u16x2(max_u16x2(m, max_u16x2(x, x << 4)), max_u16x2(x << 8, x << 12));
            }
            value = e2m1_magnitude(max(m, m << 16) >> 28);
        } else {
            u32 m = 0;
#pragma unroll
            for (const u32 word : codes) {
                u32 some = word & MAGNITUDES;
                asm("" : "+r"(some));  // or it is masked twice
                m = max_u16x2(m, max_u16x2(some, some << 8));
            }
            decode_pair(E4M3, max(m, m << 16) >> 24, value, other);
        }
        return fabsf(__fmul_rn(value, scale));
    }
};

// Neighbours that a source has at once.
template <class S> constexpr int neighbours = 8;
template <u32 FORMAT, bool FLAT> constexpr int neighbours<Sixteen<FORMAT, FLAT>> = 16;
template <class T> constexpr int neighbours<Wide<T>> = 16;

// What a source takes in registers: eight elements in four of them, or codes that are unpacked late.
template <class S> constexpr bool is_narrow = sizeof(S) == 16 && alignof(S) == 16;
template <class S> constexpr bool is_coded = false;
template <u32 FORMAT> constexpr bool is_coded<Coded<FORMAT>> = true;

// Whether rows below each other are reached by a step from the one before.
template <class S> constexpr bool steps = true;

__device__ __forceinline__ uint4 both(uint2 first, uint2 second) { return {first.x, first.y, second.x, second.y}; }
__device__ __forceinline__ uint2 both(u32 first, u32 second) { return {first, second}; }

// Codes of sixteen values by one factor.
template <u32 FORMAT, bool BOUNDED, class S> __device__ __forceinline__ auto codes_of_halves(const S& x, float encode) {
    return both(codes_of<FORMAT, BOUNDED>(x.half(0), encode), codes_of<FORMAT, BOUNDED>(x.half(1), encode));
}
template <u32 FORMAT, bool BOUNDED, class T> __device__ __forceinline__ auto codes_of(const Wide<T>& x, float encode) { return codes_of_halves<FORMAT, BOUNDED>(x, encode); }
template <u32 FORMAT, bool BOUNDED, bool FLAT> __device__ __forceinline__ auto codes_of(const Sixteen<E4M3, FLAT>& x, float encode) { return codes_of_halves<FORMAT, BOUNDED>(x, encode); }

// E2M1 has eight magnitudes: what becomes of each is computed once and looked up. That of zeros is NaN, or that of the largest, if any is: a code of
// NaN has no sign, and these go the long way.
template <u32 FORMAT, bool BOUNDED, bool FLAT> __device__ __forceinline__ auto codes_of(const Sixteen<E2M1, FLAT>& x, float encode) {
    const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = __fmul_rn(__fmul_rn(magnitudes[i], x.scale), encode);
    if (!(y[0] == y[0] && y[7] == y[7])) return codes_of_halves<FORMAT, false>(x, encode);
    if constexpr (FORMAT == E2M1) {
        // Those of magnitudes that no code has may be above any bound. Nibbles become bytes.
        const u32 all = encode8_e2m1(y);
        const auto spread = [](u32 n) {
            n = (n | n << 8) & 0x00FF00FFu;
            return (n | n << 4) & 0x0F0F0F0Fu;
        };
        const uint2 table = {spread(all & 0xFFFF), spread(all >> 16)};
        const auto eight = [&](u32 codes) {
            u32 low = bytes_of_e2m1(codes, table), high = bytes_of_e2m1(codes >> 16, table);
            low |= low >> 4;
            high |= high >> 4;
            return __byte_perm(low, high, 0x6420) ^ (codes & 0x88888888u);
        };
        return uint2{eight(x.codes[0]), eight(x.codes[1])};
    } else {
        const uint2 table = encode8<FORMAT>(y);
        const auto four = [&](u32 codes) { return bytes_of_e2m1(codes, table) ^ signs_of_e2m1(codes); };
        return uint4{four(x.codes[0]), four(x.codes[0] >> 16), four(x.codes[1]), four(x.codes[1] >> 16)};
    }
}

// Codes of E2M1 by a factor that is a power of two, where there is a shorter way (e2m1.cuh).
template <class S> constexpr bool is_wide = false;
template <class T> constexpr bool is_wide<Wide<T>> = true;
#ifdef E2M1_BY_POWER
template <class T> __device__ __forceinline__ bool has_power_of(const Wide<T>&, float encode) { return has_power<T>(encode); }
template <class T> __device__ __forceinline__ uint2 codes_by_power(const Wide<T>& x, float encode) {
    const u32 power = power16<T>(encode);
    return {encode8_e2m1_by_power<T>(x.halves[0].v.q[0], power), encode8_e2m1_by_power<T>(x.halves[1].v.q[0], power)};
}
#endif

// One place of a source: asked for, and opened.
template <class S> __device__ __forceinline__ void load_at(S& data, const CastSource& s, int row, u32 col) { data.load(s, S::at(s, row, col), 0, row >= 0 && col < s.cols); }
template <class S> __device__ __forceinline__ void open_at(S& data, const CastSource& s, int row, u32 col, bool first) { data.open(s, S::at(s, row, col), 0, row, col, first); }

// KERNEL(name, SOURCE, ...) for every kind of source.
#define CAST_PLAIN(name, T, ALIGNED, KERNEL, ...) KERNEL(name, (Plain<T, ALIGNED>), __VA_ARGS__)
#define FOR_EACH_SOURCE(KERNEL, ...)                                                                                      \
    FOR_EACH_TYPE(CAST_PLAIN, KERNEL, __VA_ARGS__)                                                                        \
    KERNEL(e4m3, (Coded<E4M3>), __VA_ARGS__)                                                                              \
    KERNEL(e2m1, (Coded<E2M1>), __VA_ARGS__)
// Codes whose groups have one column; few kernels are made for them.
#define FOR_EACH_CHANNEL(KERNEL, ...)                                                                                     \
    KERNEL(e4m3_channel, (Opened<E4M3>), __VA_ARGS__)                                                                     \
    KERNEL(e2m1_channel, (Opened<E2M1>), __VA_ARGS__)

// Takes the parentheses off a type that has commas.
template <class T> struct Unwrap;
template <class T> struct Unwrap<void(T)> { using Type = T; };
