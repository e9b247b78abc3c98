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

// Sixteen codes times 2^shift.
__device__ __forceinline__ uint4 shifted(uint2 codes, int shift) {
    if (shift < -5 || shift > 6) {
        const float factor = __uint_as_float((u32)(127 + min(max(shift, -100), 100)) << 23);
        const uint2 low = rounded(codes.x, factor), high = rounded(codes.y, factor);
        return {low.x, low.y, high.x, high.y};
    }
    return {e4m3_of_e2m1(codes.x, shift), e4m3_of_e2m1(codes.x >> 16, shift), e4m3_of_e2m1(codes.y, shift), e4m3_of_e2m1(codes.y >> 16, shift)};
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
        *(uint4*)(codes + v * step) = shifted(four[v], exponent - o);
    }
}

// The same of groups of 32 whose scales are UE8M0, uncounted: a word has the scales of 128 columns, so that lanes need not ask each other. A block takes eight rows, as bytes of scales lie by
// columns of four and a sector has those of eight rows; a warp VECTORS times 512 columns of one. 0.96 to 0.98 of the time, as a copy of the same bytes (observed: H100, 2026-11).
template <int VECTORS>
__device__ __forceinline__ void fp4_to_fp8_words(const CastSource& source, const CastOut& out) {
    constexpr u32 STEP = 512;
    begin();
    const u32 row = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * (VECTORS * STEP) + lane * 16, cols = source.cols;
    if (row >= source.rows) return;
    const u64 pitch = round_up4(source.rows) * 4;  // bytes from four columns of scales to the next, on both sides
    const u8* const from = once((const u8*)source.x + ((u64)row * cols + first) / 2);
    const u8* const from_scales = once(source.scales + first / 128 * pitch + row * 4ull);
    uint2 four[VECTORS];
    u32 words[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const bool inside = first + v * STEP < cols;
        four[v] = load_if(inside, (const uint2*)(from + v * STEP / 2));
        words[v] = load_if(inside, (const u32*)(from_scales + v * (STEP / 128) * pitch));
    }
    u8* const codes = once(out.codes + (u64)row * cols + first);
    u8* const scales = once(out.scales + first / 512 * pitch + row * 4ull + lane / 8);
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        const u32 col = first + v * STEP, left = cols - col / 128 * 128;  // columns from the group's first on
        if (col >= cols) break;
        u32 word = words[v];
        if (left < 128) word &= 0xFFFFFFFFu >> (4 - (left + 31) / 32) * 8;
        const auto largest_of = [](u32 bytes) {
            const u32 m = max_u16x2(bytes & 0x00FF00FFu, bytes >> 8 & 0x00FF00FFu);
            return (int)max(m & 0xFFFF, m >> 16);
        };
        int largest = largest_of(word), exponent = (int)(word >> lane / 2 % 4 * 8 & 0xFF);
        if (largest == 255) {
            // NaN, no power of two: exponent_of() gives -1.
            if (exponent == 255) exponent = -1;
            largest = largest_of(word & ~__vcmpeq4(word, 0xFFFFFFFFu));
        }
        const int o = max(largest - 6, 0);
        if (lane % 8 == 0) scales[v * pitch] = (u8)o;
        *(uint4*)(codes + v * STEP) = shifted(four[v], exponent - o);
    }
}

// Of many rows, and of few.
#define FP4_TO_FP8(VECTORS, THREADS, BLOCKS)                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) fp4_to_fp8_##VECTORS(                                   \
        CastSource source,          /* E2M1 codes, groups of 16 to 128 columns, scales powers of two */                   \
        CastOut out,                /* E4M3 codes, groups of 128 columns, scales UE8M0 */                                 \
        u32* __restrict__ inexact)  /* raised by each group of 128 that is not exact, or has a scale that is no power of two; null: not wanted */ \
    { fp4_to_fp8<VECTORS>(source, out, inexact); }
FP4_TO_FP8(4, 128, 8)
FP4_TO_FP8(1, 512, 2)

#if __CUDA_ARCH__ == 900
constexpr u32 WORDS_BLOCKS = 8;
#else
constexpr u32 WORDS_BLOCKS = 6;  // all threads that some GPUs have
#endif
extern "C" __global__ void __launch_bounds__(256, WORDS_BLOCKS) fp4_to_fp8_words_2(
    const __grid_constant__ CastSource source,  // E2M1 codes, groups of 32 columns, scales UE8M0
    const __grid_constant__ CastOut out)        // as above
{ fp4_to_fp8_words<2>(source, out); }
