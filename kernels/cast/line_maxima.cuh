// Maxima of the rows and columns of a tile in registers (tile.cuh).
#pragma once
#include "base/codec.cuh"
#include "base/exchange.cuh"

// Whether lines are compared by 16-bit patterns, two at a time: from sm_90 on, whose maximum of two is one instruction. Before it is some six, and the registers of a tile do not hold them (observed: nvcc 13, sm_80 and sm_89).
#if __CUDA_ARCH__ >= 900
template <class T> constexpr bool BY_PATTERNS = sizeof(T) == 2;
#else
template <class T> constexpr bool BY_PATTERNS = false;
#endif

// Both halves of a word without signs; DROPS: NaN counts as zero.
template <class T, bool DROPS> __device__ __forceinline__ u32 sizes16(u32 word) {
    const u32 sizes = word & 0x7FFF7FFFu, lower = sizes & 0xFFFF, upper = sizes >> 16;
    if (!DROPS) return sizes;
    return (lower <= INFINITY16<T> ? lower : 0) | (upper <= INFINITY16<T> ? upper << 16 : 0);
}
// The largest lower halves and the largest upper halves of words without signs.
template <class T, int COUNT> __device__ __forceinline__ u32 largest_sizes(const Vec8<T> (&data)[COUNT]) {
    u32 m = 0;
#pragma unroll
    for (int r = 0; r < COUNT; r++) {
#pragma unroll
        for (int k = 0; k < 4; k++) m = max_u16x2(m, sizes16<T, false>(word(data[r].q[0], k)));
    }
    return m;
}

// Of a thread's 8 x 8 elements of 16 bits, as patterns: what `line_maxima` gives its lanes, and the largest of the thread's own. Two rows at a time, so that registers hold no more.
template <int LANES, bool DROPS, class T> __device__ __forceinline__ u32 patterns_of_lines(const Vec8<T> (&data)[8], bool rows, bool columns, u32 (&of_rows)[4], u32 (&of_columns)[4]) {
    const auto larger = [](u32 a, u32 b) { return max_u16x2(a, b); };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 pair[2] = {};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            u32 sizes[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                sizes[j] = sizes16<T, DROPS>(word(data[2 * i + j].q[0], k));
                pair[j] = larger(pair[j], sizes[j]);
            }
            of_columns[k] = i ? larger(larger(of_columns[k], sizes[0]), sizes[1]) : larger(sizes[0], sizes[1]);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) asm volatile("" : "+r"(of_columns[k]));
        if (rows) exchange<2, 1>(pair, larger);
        of_rows[i] = pair[0];
    }
    const u32 largest = larger(larger(of_columns[0], of_columns[1]), larger(of_columns[2], of_columns[3]));
    if (rows) exchange<4, LANES / 2, 1>(of_rows, larger);
    if (columns) exchange<4, 16, 4>(of_columns, larger);
    return largest;
}

// max |x|, NaN dropped, of the lines of a warp's 32 rows and 64 columns, of which a thread has 8 x 8 (tile.cuh): of rows over LANES lanes, 4 or 8, that follow one another, and of columns over the four that have them. `row(r, amax)` and
// `column(c, amax)` are called for each of the thread's own rows and columns by one of these lanes. Returns whether the thread has no NaN where lines are compared BY_PATTERNS; else false. All lanes of a warp come here together.
template <int LANES, class T, class ROW, class COLUMN>
__device__ __forceinline__ bool line_maxima(Vec8<T> (&data)[8], bool rows, bool columns, const ROW& row, const COLUMN& column) {
    static_assert(LANES == 4 || LANES == 8, "of half a warp's columns, or all");
    constexpr int OWN = 8 / LANES;
    const u32 lane = threadIdx.x % 32;
    if constexpr (BY_PATTERNS<T>) {
        u32 of_rows[4], of_columns[4];
        const float top = larger_half<T>(patterns_of_lines<LANES, false>(data, rows, columns, of_rows, of_columns));
        const bool clean = top == top;
        if (__any_sync(0xFFFFFFFFu, !clean)) {
#pragma unroll
            for (int r = 0; r < 8; r++) forget(data[r]);
            patterns_of_lines<LANES, true>(data, rows, columns, of_rows, of_columns);
        }
        if (rows) {
#pragma unroll
            // A lane's rows are of the pairs that its upper bits say, of each the one that its lowest bit says.
            for (int i = 0; i < OWN; i++) row((lane % LANES / 2 * OWN + i) * 2 + lane % 2, larger_half<T>(of_rows[i]));
        }
        if (columns) {
#pragma unroll
            for (int i = 0; i < 2; i++) column(lane / 8 * 2 + i, to_float(T{(u16)(of_columns[0] >> 16 * i)}));
        }
        return clean;
    } else {
        const auto larger = [](float a, float b) { return fmaxf(a, b); };
        float m[8];
        if (rows) {
#pragma unroll
            for (int r = 0; r < 8; r++) m[r] = amax8(data[r], 0.0f);
            exchange<8, LANES / 2>(m, larger);
#pragma unroll
            for (int i = 0; i < OWN; i++) row(lane % LANES * OWN + i, m[i]);
        }
        if (columns) {
#pragma unroll
            for (int c = 0; c < 8; c++) {
                m[c] = 0.0f;
#pragma unroll
                for (int r = 0; r < 8; r++) m[c] = fmaxf(m[c], fabsf(element(data[r], c)));
            }
            exchange<8, 16, 4>(m, larger);
#pragma unroll
            for (int i = 0; i < 2; i++) column(lane / 8 * 2 + i, m[i]);
        }
        return false;
    }
}

// max |x| of a thread's 8 x 8 elements, NaN dropped.
template <class T> __device__ __forceinline__ float amax_of_tile(Vec8<T> (&data)[8]) {
    if constexpr (BY_PATTERNS<T>) {
        const float amax = larger_half<T>(largest_sizes(data));
        if (amax == amax) return amax;
#pragma unroll
        for (int r = 0; r < 8; r++) forget(data[r]);
    }
    float amax = 0.0f;
#pragma unroll
    for (int r = 0; r < 8; r++) amax = amax8(data[r], amax);
    return amax;
}
