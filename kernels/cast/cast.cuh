// Casts to groupings that no product reads: TileKernels' rule, where scales lie, and how eight numbers become codes.
// Mirror of src/format/cast.rs; tests compare every byte with src/reference/cast.
#pragma once
#include "base/e2m1.cuh"
#include "base/layout.cuh"

// Order of the scales, as the kernels receive it (src/gpu/kernels/cast_args.rs).
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

// A scale in its place, as that order has it.
__device__ __forceinline__ void keep_scale(u32 order, u8* place, float scale) {
    if (order != UE8M0) *(float*)place = scale;
    else *place = (u8)(__float_as_uint(scale) >> 23);
}

__device__ __forceinline__ void store_scale(const CastGrid& grid, u8* scales, u64 row, u64 col, float scale) {
    const u64 at = scale_index(grid, row, col);
    if (grid.order != UE8M0) ((float*)scales)[at] = scale;
    else scales[at] = (u8)(__float_as_uint(scale) >> 23);
}

// Mirror of CastRecipe.
struct CastRule {
    float floor;   // the least amax that counts
    u32 pow2;      // 1: scales are powers of two
    u32 format;    // E4M3 or E2M1 (codec.cuh)
};

// The largest number of a format of codes.
template <u32 FORMAT> constexpr float largest_number = FORMAT == E2M1 ? 6.0f : 448.0f;

// Where `divide` does not hold.
static __device__ __noinline__ GroupScale cast_scale_far(float a, float max) { return {__fdiv_rn(max, a), __fdiv_rn(a, max)}; }

// Of a above 1e-30: the scale of every finite one, the factor up to 2^126 (8.5e37). Above that 1 / a is subnormal, and the factor may be 0.
template <u32 FORMAT> __device__ __forceinline__ GroupScale cast_scale_near(float a) {
    constexpr float MAX = largest_number<FORMAT>;
    return {divide(MAX, a, reciprocal(a)), divide(a, MAX, 1.0f / MAX)};
}

// Mirror of CastRecipe::group_scale, operation by operation.
template <u32 FORMAT> __device__ __forceinline__ GroupScale cast_scale(const CastRule& rule, float amax) {
    static_assert(FORMAT == E4M3 || FORMAT == E2M1, "no cast to another format");
    const float a = fmaxf(amax, rule.floor);
    const GroupScale s = a > 1e-30f && a < 1e30f ? cast_scale_near<FORMAT>(a) : cast_scale_far(a, largest_number<FORMAT>);
    return rule.pow2 ? power_above(s.scale) : s;
}

// What is written: scales and codes, codes by scales that are there, or scales alone.
constexpr u32 BOTH = 0;
constexpr u32 CODES = 1;
constexpr u32 SCALES = 2;

struct CastOut {
    u8* codes;       // [rows][cols] codes, transposed [cols][rows]; 16-byte aligned
    u8* scales;      // in the order of `grid`; padding is left alone
    CastGrid grid;
    u32 part;        // BOTH, CODES or SCALES
    u32 transposed;
};

// Numbers that a kernel has computed.
struct Numbers {
    const float (&v)[8];
    __device__ __forceinline__ float value(int i) const { return v[i]; }
    __device__ __forceinline__ u32 signs(int k) const { return signs4(v, k); }
};

template <class S> __device__ __forceinline__ void values(const S& s, float (&f)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = s.value(i);
}

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

// Whether it is that of finite numbers: an infinity's is 0, and that of numbers too small for an inverse is infinite.
__device__ __forceinline__ bool is_factor(float encode) { return __float_as_uint(encode) - 1 < 0x7F7FFFFFu; }

// Codes of eight numbers: eight bytes, or four of E2M1.
template <u32 FORMAT> struct EightCodes { using Type = uint2; };
template <> struct EightCodes<E2M1> { using Type = u32; };

// Of eight products y = fl(x * encode). BOUNDED: no y is above 6 by more than a rounding (`encode8_e2m1` asks for less), and none is NaN, as where they are of a group without NaN
// whose factor `is_factor`.
template <u32 FORMAT, bool BOUNDED, class S> __device__ __forceinline__ typename EightCodes<FORMAT>::Type encode_products(const S& x, const float (&y)[8]) {
    if constexpr (FORMAT != E2M1) return encode8<FORMAT>(y);
    else if constexpr (BOUNDED) return encode8_e2m1<true>(y, signs8(x.signs(0), x.signs(1)));
    else return encode8_e2m1(y);
}

// Of eight values by one factor, or each by its own.
template <u32 FORMAT, bool BOUNDED, class S> __device__ __forceinline__ typename EightCodes<FORMAT>::Type codes_of(const S& x, float encode) {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = __fmul_rn(x.value(i), encode);
    return encode_products<FORMAT, BOUNDED>(x, y);
}
template <u32 FORMAT, bool BOUNDED, class S> __device__ __forceinline__ typename EightCodes<FORMAT>::Type codes_of(const S& x, const float (&encode)[8]) {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) y[i] = __fmul_rn(x.value(i), encode[i]);
    return encode_products<FORMAT, BOUNDED>(x, y);
}

// To global memory in one piece: left to itself the compiler stores some in halves.
__device__ __forceinline__ void store_piece(u8* to, u32 codes) { *(u32*)to = codes; }
__device__ __forceinline__ void store_piece(u8* to, uint4 codes) { *(uint4*)to = codes; }
__device__ __forceinline__ void store_piece(u8* to, uint2 codes) { asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(codes.x), "r"(codes.y) : "memory"); }

// The same if it is `wanted`, without a branch that what comes to be written would be moved into.
__device__ __forceinline__ void store_piece(u8* to, u32 codes, bool wanted) {
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %2, 0; @wanted st.global.u32 [%0], %1;}" ::"l"(to), "r"(codes), "r"((u32)wanted) : "memory");
}
__device__ __forceinline__ void store_piece(u8* to, uint4 codes, bool wanted) {
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %5, 0; @wanted st.global.v4.u32 [%0], {%1, %2, %3, %4};}"
                 ::"l"(to), "r"(codes.x), "r"(codes.y), "r"(codes.z), "r"(codes.w), "r"((u32)wanted) : "memory");
}
__device__ __forceinline__ void store_piece(u8* to, uint2 codes, bool wanted) {
    asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %3, 0; @wanted st.global.v2.u32 [%0], {%1, %2};}" ::"l"(to), "r"(codes.x), "r"(codes.y), "r"((u32)wanted) : "memory");
}

// Writes them; `at` is the number of the first.
template <u32 FORMAT, bool BOUNDED, class S, class ENCODE> __device__ __forceinline__ void store_codes(u8* codes, u64 at, const S& x, const ENCODE& encode) {
    store_piece(codes + (FORMAT == E2M1 ? at / 2 : at), codes_of<FORMAT, BOUNDED>(x, encode));
}
template <u32 FORMAT, class S> __device__ __forceinline__ void store_codes(u8* codes, u64 at, const S& x, float encode, bool bounded) {
    if (FORMAT == E2M1 && bounded) store_codes<FORMAT, true>(codes, at, x, encode);
    else store_codes<FORMAT, false>(codes, at, x, encode);
}
