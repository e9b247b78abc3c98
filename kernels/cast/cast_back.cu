// Casts back to BF16, F16 and F32, and E2M1 codes to E4M3 codes without loss.
#include "cast/cast_rows.cuh"

// y = round(fl(code * scale)). A row for each block, as in cast_rows.cuh; two vectors in a thread are worth 1 % of four (observed: H200,
// 2026-11).
template <u32 FORMAT, class T, bool ALIGNED>
__device__ __forceinline__ void cast_back(const CastSource& source, T* y, u64 y_stride) {
    const Held<Opened<FORMAT>, Line<2>> line(source, source.rows, source.cols);
    T* const to = once(y + (u64)line.shape.row * y_stride + line.shape.first);
#pragma unroll
    for (u32 v = 0; v < 2; v++)
        if (line.inside(v)) store<ALIGNED>(to + line.shape.right(v), line.data[v].v);
}

// The same of codes that lie transposed, [cols][rows]: a thread takes eight neighbours of a column.
template <u32 FORMAT, class T>
__device__ __forceinline__ void cast_back_transposed(const CastSource& source, T* y, u64 y_stride) {
    const u32 col = blockIdx.y * 32 + threadIdx.x % 32;
    const u64 row = ((u64)blockIdx.x * 8 + threadIdx.x / 32) * 8;
    if (row >= source.rows || col >= source.cols) return;
    const u64 at = (u64)col * source.rows + row;
    float v[8];
    if constexpr (FORMAT == E2M1) decode_word(__ldg((const u32*)((const u8*)source.x + at / 2)), 1.0f, v);
    else decode8(FORMAT, __ldg((const uint2*)((const u8*)source.x + at)), v);
    // Groups have 32 rows or more.
    const float scale = load_scale(source.grid, source.scales, row >> source.grid.row_shift, col >> source.grid.col_shift);
#pragma unroll
    for (int i = 0; i < 8; i++) y[(row + i) * y_stride + col] = from_float<T>(__fmul_rn(v[i], scale));
}

#define CAST_BACK(name, T, ALIGNED, FORMAT, FORMAT_NAME)                                                                  \
    extern "C" __global__ void __launch_bounds__(512, 2) cast_back_##FORMAT_NAME##_##name(                                \
        CastSource source,                                                                                                \
        T* __restrict__ y,  /* [rows][cols], row stride y_stride elements */                                              \
        u64 y_stride)                                                                                                     \
    { begin(); cast_back<FORMAT, T, ALIGNED>(source, y, y_stride); }
FOR_EACH_TYPE(CAST_BACK, E4M3, e4m3)
FOR_EACH_TYPE(CAST_BACK, E2M1, e2m1)

#define CAST_BACK_TRANSPOSED(name, T, ALIGNED, FORMAT, FORMAT_NAME)                                                       \
    extern "C" __global__ void __launch_bounds__(256) cast_back_transposed_##FORMAT_NAME##_##name(                        \
        CastSource source,  /* codes [cols][rows] */                                                                      \
        T* __restrict__ y,  /* [rows][cols], row stride y_stride elements */                                              \
        u64 y_stride)                                                                                                     \
    { begin(); cast_back_transposed<FORMAT, T>(source, y, y_stride); }
FOR_EACH_TYPE(CAST_BACK_TRANSPOSED, E4M3, e4m3)
FOR_EACH_TYPE(CAST_BACK_TRANSPOSED, E2M1, e2m1)

// The byte of E8M0 for a scale; -1 for what is no power of two from 2^-127 to 2^127.
__device__ __forceinline__ int exponent_of(float scale) {
    const u32 bits = __float_as_uint(scale);
    if (bits == 0x00400000u) return 0;
    const bool power = (bits & 0x807FFFFFu) == 0 && bits != 0 && bits != 0x7F800000u;
    return power ? (int)(bits >> 23) : -1;
}

// E2M1 codes and their scales as they lie in memory.
struct Unopened : PackedCodes<E2M1> {
    __device__ __forceinline__ void open(const CastSource&, const At&, u32, int, u32, bool) {}
};

// What decides over a group of 128 columns: the largest exponent of its parts and one, and above, how far the least one of those that are not all zeros
// is from LEAST; WRONG where a scale is no power of two.
struct Exponents {
    static constexpr u32 LEAST = 0x3FFF, WRONG = 0x7FFF;
    using Type = u32;
    static __device__ __forceinline__ u32 of(u32 codes, int exponent) {
        const u32 least = exponent < 0 ? WRONG : codes & 0x77777777 ? LEAST - exponent : 0;  // zeros stay zeros, whatever their scale
        return (u32)(exponent + 1) | least << 16;
    }
    static __device__ __forceinline__ u32 larger(u32 a, u32 b) { return max_u16x2(a, b); }
};

// Groups of 128 columns get 2^(o - 127), o the largest exponent of their parts less 6 (at least 0), and codes times 2^(i - o): exact
// while -5 <= i - o <= 6. A row for each block, as in cast_rows.cuh, VECTORS vectors in a thread.
template <int VECTORS>
__device__ __forceinline__ void fp4_to_fp8(const CastSource& source, const CastOut& out, u32* inexact) {
    using Columns = Groups<Exponents, VECTORS, 32, 7>;
    begin();
    const Held<Unopened, Line<VECTORS>> line(source, source.rows, source.cols);
    int exponent[VECTORS];
    u32 m[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const float scale = PackedCodes<E2M1>::scale_of(source, line.data[v].bits, line.column(v));
        exponent[v] = line.inside(v) ? exponent_of(scale) : 0;
        m[v] = line.inside(v) ? Exponents::of(line.data[v].codes[0], exponent[v]) : 0;
    }
    // As many groups of sixteen lanes each, one for every few of these.
    Columns::template reduce<VECTORS, 8>(m);
    const int o = max((int)(m[0] & 0xFFFF) - 1 - 6, 0);
    const u32 lane = threadIdx.x % 32, own = lane % 16 / Columns::TWINS, col = line.column(own) / 128;
    if (lane % Columns::TWINS == 0 && line.column(own) / 128 * 128 < source.cols) {
        out.scales[scale_index(out.grid, line.shape.row, col)] = (u8)o;
        const u32 least = m[0] >> 16;
        if (inexact && (least == Exponents::WRONG || (least && (int)(Exponents::LEAST - least) - o < -5))) atomicAdd(inexact, 1u);
    }
    u8* const codes = once(out.codes + (u64)line.shape.row * source.cols + line.shape.first);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const int shift = exponent[v] - __shfl_sync(0xFFFFFFFFu, o, lane / 16 * 16 + v * Columns::TWINS);
        if (!line.inside(v)) continue;
        const u32 four = line.data[v].codes[0];
        uint2 wide = {e4m3_of_e2m1(four, shift), e4m3_of_e2m1(four >> 16, shift)};
        if (shift < -5 || shift > 6) {
            // Codes are rounded, or 448; far outside 0 or 448.
            float f[8];
            decode8(E4M3, {e4m3_of_e2m1(four), e4m3_of_e2m1(four >> 16)}, f);
#pragma unroll
            for (int i = 0; i < 8; i++) f[i] = __fmul_rn(f[i], __uint_as_float((u32)(127 + min(max(shift, -100), 100)) << 23));
            wide = encode8<E4M3>(f);
        }
        store_eight(codes + line.shape.right(v), wide);
    }
}

// Of many rows, and of few.
#define FP4_TO_FP8(VECTORS, THREADS, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) fp4_to_fp8_##VECTORS(                                   \
        CastSource source,          /* E2M1 codes, groups of 16 to 128 columns, scales powers of two */                   \
        CastOut out,                /* E4M3 codes, groups of 128 columns, scales UE8M0 */                                 \
        u32* __restrict__ inexact)  /* raised by each group of 128 that is not exact, or has a scale that is no power of two; null: not wanted */ \
    { fp4_to_fp8<VECTORS>(source, out, inexact); }
FP4_TO_FP8(8, 128, 8)
FP4_TO_FP8(2, 512, 2)
