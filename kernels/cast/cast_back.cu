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

// Eight codes where the result is rounded, or 448; far outside 0 or 448.
static __device__ __noinline__ uint2 rounded(u32 codes, float factor) {
    float f[8];
    decode8(E4M3, {e4m3_of_e2m1(codes), e4m3_of_e2m1(codes >> 16)}, f);
#pragma unroll
    for (int i = 0; i < 8; i++) f[i] = __fmul_rn(f[i], factor);
    return encode8<E4M3>(f);
}

// Groups of 128 columns get 2^(o - 127), o the largest exponent of their parts less 6 (at least 0), and codes times 2^(i - o): exact
// while -5 <= i - o <= 6. A row for each block, VECTORS times sixteen neighbours in a thread: with eight, memory is asked in pieces so small that
// it takes 1.2 times as long (observed: H200, 2026-11).
template <int VECTORS>
__device__ __forceinline__ void fp4_to_fp8(const CastSource& source, const CastOut& out, u32* inexact) {
    using Source = PackedCodes<E2M1>;
    begin();
    const u32 row = blockIdx.x, step = blockDim.x * 16, first = blockIdx.y * VECTORS * step + threadIdx.x * 16, cols = source.cols;
    const Source::At at = Source::at(source, (int)row, first);
    u32 bits[VECTORS];
    uint2 four[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const u32 col = first + v * step;
        four[v] = col < cols ? __ldg((const uint2*)(at.codes + v * step / 2)) : uint2{0, 0};
        bits[v] = Source::scale_bits(source, at, col, col < cols);
    }
    u8* const codes = once(out.codes + (u64)row * cols + first);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const u32 col = first + v * step;
        const bool inside = col < cols;
        const int exponent = inside ? exponent_of(Source::scale_of(source, bits[v], col)) : 0;
        // Eight lanes have a group.
        const u32 m = lanes_largest<Exponents, 7>(inside ? Exponents::of(four[v].x | four[v].y, exponent) : 0);
        const int o = max((int)(m & 0xFFFF) - 1 - 6, 0);
        if (!inside) continue;
        if (threadIdx.x % 8 == 0) {
            out.scales[scale_index(out.grid, row, col / 128)] = (u8)o;
            const u32 least = m >> 16;
            if (inexact && (least == Exponents::WRONG || (least && (int)(Exponents::LEAST - least) - o < -5))) atomicAdd(inexact, 1u);
        }
        const int shift = exponent - o;
        uint4 wide = {e4m3_of_e2m1(four[v].x, shift), e4m3_of_e2m1(four[v].x >> 16, shift), e4m3_of_e2m1(four[v].y, shift), e4m3_of_e2m1(four[v].y >> 16, shift)};
        if (shift < -5 || shift > 6) {
            const float factor = __uint_as_float((u32)(127 + min(max(shift, -100), 100)) << 23);
            const uint2 low = rounded(four[v].x, factor), high = rounded(four[v].y, factor);
            wide = {low.x, low.y, high.x, high.y};
        }
        *(uint4*)(codes + v * step) = wide;
    }
}

// The same in blocks of eight rows, a warp's 512 columns of one of them at a time: bytes of scales lie by columns of four, so that eight rows share a sector of them.
// QUICK: of groups of 32 whose scales are UE8M0, and nothing is counted: a word of scales has those of 128 columns, so that lanes need not ask each other.
template <int VECTORS, bool QUICK>
__device__ __forceinline__ void fp4_to_fp8_rows(const CastSource& source, const CastOut& out, u32* inexact) {
    using Source = PackedCodes<E2M1>;
    constexpr u32 STEP = 512;
    begin();
    const u32 row = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * (VECTORS * STEP) + lane * 16, cols = source.cols;
    if (row >= source.rows) return;
    const u8* const from = once((const u8*)source.x + ((u64)row * cols + first) / 2);
    uint2 four[VECTORS];
    u32 bits[VECTORS];
    if constexpr (QUICK) {
        const u64 pitch = round_up4(source.grid.rows);
        const u8* const scales = once(source.scales + ((u64)(first / 128) * pitch + row) * 4);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const bool inside = first + v * STEP < cols;
            four[v] = load_if(inside, (const uint2*)(from + v * STEP / 2));
            bits[v] = load_if(inside, (const u32*)(scales + v * (STEP / 128) * pitch * 4));
        }
    } else {
        const Source::At at = Source::at(source, (int)row, first);
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            const u32 col = first + v * STEP;
            four[v] = load_if(col < cols, (const uint2*)(from + v * STEP / 2));
            bits[v] = Source::scale_bits(source, at, col, col < cols);
        }
    }
    u8* const codes = once(out.codes + (u64)row * cols + first);
    const u64 pitch = round_up4(out.grid.rows);
    u8* const scales = once(out.scales + ((u64)(first / 512) * pitch + row) * 4 + lane / 8);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const u32 col = first + v * STEP;
        const bool inside = col < cols;
        int exponent, o;
        u32 least = 0;
        bool slow = !QUICK;
        if constexpr (QUICK) {
            u32 word = bits[v];
            const u32 group = col & ~127u;
            if (group + 128 > cols) word &= inside ? 0xFFFFFFFFu >> (128 - (cols - group + 31) / 32 * 32) / 4 : 0;
            const u32 odd = word >> 8 & 0x00FF00FFu, m = max_u16x2(word & 0x00FF00FFu, odd), largest = max(m & 0xFFFF, m >> 16);
            o = max((int)largest - 6, 0);
            exponent = (int)__byte_perm(word, 0, 0x4440 | (lane / 2 % 4));
            slow = __any_sync(0xFFFFFFFFu, largest == 255);
        }
        if (!QUICK || slow) {
            exponent = inside ? exponent_of(Source::scale_of(source, bits[v], col)) : 0;
            const u32 m = lanes_largest<Exponents, 7>(inside ? Exponents::of(four[v].x | four[v].y, exponent) : 0);
            o = max((int)(m & 0xFFFF) - 1 - 6, 0);
            least = m >> 16;
        }
        if (!inside) continue;
        if (lane % 8 == 0) {
            scales[v * (u64)pitch * 4] = (u8)o;
            if (!QUICK && inexact && (least == Exponents::WRONG || (least && (int)(Exponents::LEAST - least) - o < -5))) atomicAdd(inexact, 1u);
        }
        const int shift = exponent - o;
        uint4 wide = {e4m3_of_e2m1(four[v].x, shift), e4m3_of_e2m1(four[v].x >> 16, shift), e4m3_of_e2m1(four[v].y, shift), e4m3_of_e2m1(four[v].y >> 16, shift)};
        if (shift < -5 || shift > 6) {
            const float factor = __uint_as_float((u32)(127 + min(max(shift, -100), 100)) << 23);
            const uint2 low = rounded(four[v].x, factor), high = rounded(four[v].y, factor);
            wide = {low.x, low.y, high.x, high.y};
        }
        *(uint4*)(codes + v * STEP) = wide;
    }
}

#define FP4_TO_FP8_ROWS(NAME, VECTORS, QUICK, BLOCKS)                                                                     \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) fp4_to_fp8_rows_##NAME(                                     \
        const __grid_constant__ CastSource source, const __grid_constant__ CastOut out, u32* __restrict__ inexact)        \
    { fp4_to_fp8_rows<VECTORS, QUICK>(source, out, inexact); }
FP4_TO_FP8_ROWS(general_2, 2, false, 6)
FP4_TO_FP8_ROWS(quick_1, 1, true, 8)
FP4_TO_FP8_ROWS(quick_2, 2, true, 8)
FP4_TO_FP8_ROWS(quick_4, 4, true, 6)

// Of many rows, and of few.
#define FP4_TO_FP8(VECTORS, THREADS, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) fp4_to_fp8_##VECTORS(                                   \
        CastSource source,          /* E2M1 codes, groups of 16 to 128 columns, scales powers of two */                   \
        CastOut out,                /* E4M3 codes, groups of 128 columns, scales UE8M0 */                                 \
        u32* __restrict__ inexact)  /* raised by each group of 128 that is not exact, or has a scale that is no power of two; null: not wanted */ \
    { fp4_to_fp8<VECTORS>(source, out, inexact); }
FP4_TO_FP8(4, 128, 8)
FP4_TO_FP8(1, 512, 2)
