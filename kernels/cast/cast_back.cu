// Casts back to BF16, F16 and F32, and E2M1 codes to E4M3 codes without loss.
#include "cast/cast_rows.cuh"

// y = round(fl(code * scale)). A row for each block, as in cast_rows.cuh.
template <u32 FORMAT, class T, bool ALIGNED>
__device__ __forceinline__ void cast_back(const CastSource& source, T* y, u64 y_stride) {
    const Held<Coded<FORMAT>, Line<4>> line(source, source.rows, source.cols);
    T* const to = once(y + (u64)line.shape.row * y_stride + line.shape.first);
#pragma unroll
    for (u32 v = 0; v < 4; v++)
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
    extern "C" __global__ void __launch_bounds__(256, 3) cast_back_##FORMAT_NAME##_##name(                                \
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

// Groups of 128 columns get 2^(o - 127), o the largest exponent of their parts less 6 (at least 0), and codes times 2^(i - o): exact
// while -5 <= i - o <= 6. A warp takes 4 rows x 128 columns, eight lanes a row.
extern "C" __global__ void __launch_bounds__(256) fp4_to_fp8(
    CastSource source,             // E2M1 codes, groups of 16 to 128 columns, scales powers of two
    CastOut out,                   // E4M3 codes, groups of 128 columns, scales UE8M0
    u32* __restrict__ inexact)     // raised by each group of 128 that is not exact, or has a scale that is no power of two; null: not wanted
{
    const u32 chunks = (source.cols + 127) / 128, blocks = (chunks + 7) / 8, lane = threadIdx.x % 32;
    const u64 row = (u64)(blockIdx.x / blocks) * 4 + lane / 8;
    const u32 chunk = blockIdx.x % blocks * 8 + threadIdx.x / 32;
    begin();
    u32 codes[2] = {0, 0};
    int exponent[2] = {-1, -1};
    u32 wrong = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const u32 col = chunk * 128 + 64 * h + lane % 8 * 8;
        if (row >= source.rows || col >= source.cols) continue;
        codes[h] = __ldg((const u32*)((const u8*)source.x + (row * source.cols + col) / 2));
        exponent[h] = exponent_of(load_scale(source.grid, source.scales, row, col >> source.grid.col_shift));
        if (exponent[h] < 0) wrong = 1;
    }
    // Zeros stay zeros, whatever their scale.
    int largest = max(exponent[0], exponent[1]), least = 1 << 20;
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (codes[h] & 0x77777777) least = min(least, exponent[h]);
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
        largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
        least = min(least, __shfl_xor_sync(0xFFFFFFFFu, least, step));
        wrong |= __shfl_xor_sync(0xFFFFFFFFu, wrong, step);
    }
    const int o = max(largest - 6, 0);
    if (row >= source.rows || chunk >= chunks) return;
    if (lane % 8 == 0) {
        out.scales[scale_index(out.grid, row, chunk)] = (u8)o;
        if (inexact && (wrong || least - o < -5)) atomicAdd(inexact, 1u);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const u32 col = chunk * 128 + 64 * h + lane % 8 * 8;
        if (col >= source.cols) continue;
        float v[8];
        // Far outside of the range codes are 0 or 448.
        const int shift = min(max(exponent[h] - o, -100), 100);
        decode_word(codes[h], __uint_as_float((u32)(127 + shift) << 23), v);
        *(uint2*)(out.codes + row * source.cols + col) = encode8<E4M3>(v);
    }
}
