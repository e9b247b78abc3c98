// Gradients of SwiGLU, cast along rows without being stored, and as BF16; the forward pass again; the gradient of the rows' weights.
// Mirror of reference::swiglu_backward; compiled without contraction, so the bytes are equal. Kernels: swiglu_backward.cu, swiglu_backward_mx.cu.
#pragma once
#include "base/activation.cuh"
#include "base/sum.cuh"
#include "cast/cast_rows.cuh"

struct Backward {
    const void* gradient;  // of the result, [rows][half] of the kernel's type
    u64 gradient_stride;   // elements from row to row
    Bf16* wide;            // [rows][2 half]: the gradient of x, 16-byte aligned rows; null: not wanted
    u64 wide_stride;
    Bf16* again;           // [rows][half]: the result of the forward pass, likewise
    u64 again_stride;
    float* weights;        // [rows]: the gradient of the weights; null: not wanted
};

// Eight values of each half of x, and of the gradient.
template <class S, class T> struct Pair {
    S l, r;
    Vec8<T> g;
};

// Eight gradients of each half and the results of the forward pass; gives the sum of gradient times result before the weight.
template <bool BARE, class S, class T>
__device__ __forceinline__ float gradients(const Producer& p, const Pair<S, T>& x, float weight, float (&dl)[8], float (&dr)[8], float (&again)[8]) {
    float l[8], r[8], sigma[8], sum = 0.0f;
    values(x.l, l);
    values(x.r, r);
    u32 beyond = 0;
    if (!BARE && p.clamped) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (l[i] > p.clamp) l[i] = p.clamp, beyond |= 1u << i;
            if (r[i] > p.clamp) r[i] = p.clamp, beyond |= 256u << i;
            else if (r[i] < -p.clamp) r[i] = -p.clamp, beyond |= 256u << i;
        }
    }
    sigmoids(l, sigma);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float g = element(x.g, i), act = __fmul_rn(__fmul_rn(l[i], sigma[i]), r[i]);
        const float t = __fmul_rn(BARE ? g : __fmul_rn(g, weight), sigma[i]);
        sum = __fmaf_rn(g, act, sum);
        again[i] = BARE ? act : __fmul_rn(act, weight);
        dl[i] = __fmul_rn(__fmul_rn(t, r[i]), __fmaf_rn(l[i], __fsub_rn(1.0f, sigma[i]), 1.0f));
        dr[i] = __fmul_rn(t, l[i]);
    }
    if (!BARE && beyond) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (beyond >> i & 1) dl[i] = 0.0f;
            if (beyond >> (i + 8) & 1) dr[i] = 0.0f;
        }
    }
    return sum;
}

// A source whose rows have experts.
struct Expert {
    static constexpr bool EXPERTS = true;
};

// What the gradient of x is cast to: scales in the order of a grid, padding left alone.
struct CastTarget {
    const CastRule& rule;
    const CastOut& out;
    __device__ __forceinline__ bool wanted() const { return out.scales; }
    __device__ __forceinline__ u8* codes() const { return out.codes; }
    __device__ __forceinline__ u64 lines(u32 rows) const { return rows; }
    __device__ __forceinline__ void keep(u64 row, u32 group, float scale) const { store_scale(out.grid, out.scales, row, group, scale); }
    __device__ __forceinline__ void pad(u64, u32) const {}
};

// A block takes four rows, a row WIDTH lanes, 8 or 16, of as many warps as there are of 128 columns of both halves at once, in turns. Lanes as in cast_rows.cuh. `source` is x,
// both halves; its producer has clamp, weights and experts, of which with BARE there are none. Groups of 32 or 128 columns. TARGET: `CastTarget` or its like.
template <class S, class T, bool ALIGNED, u32 FORMAT, int SHIFT, int WIDTH, bool BARE, class TARGET>
__device__ __forceinline__ void swiglu_backward(const CastSource& source, const Backward& b, u32 rows, const TARGET& to) {
    constexpr u32 HALVES = 16 / WIDTH, BANDS = WIDTH / 8, ABREAST = 8 / BANDS;  // vectors of a lane in each half, bands of rows, warps of a band
    __shared__ float sums[8][4];
    const u32 half = source.cols / 2, chunks = (half + 127) / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 row_of_block = warp / ABREAST * (4 / BANDS) + lane / WIDTH;
    const u64 row = (u64)blockIdx.x * 4 + row_of_block;
    begin();
    const int from = BARE ? (row < rows ? (int)row : -1) : source_row<Expert>(source, row, rows);
    const float weight = !BARE && from >= 0 && source.producer.weights ? __ldg(source.producer.weights + from) : 1.0f;
    const u32 lane_col = lane % WIDTH * 8;
    const typename S::At left = S::at(source, from, lane_col), right = S::at(source, from, half + lane_col);
    const T* const g = (const T*)b.gradient + (u32)from * b.gradient_stride + lane_col;
    const auto offset = [](u32 chunk, u32 h) { return chunk * 128 + 64 * h; };
    // Sum c modulo 8 of the row, of which a warp has each that its chunks meet.
    float sum[BANDS];
#pragma unroll
    for (u32 i = 0; i < BANDS; i++) sum[i] = 0.0f;
    for (u32 chunk = warp % ABREAST; chunk < chunks; chunk += ABREAST) {
        Pair<S, T> x[HALVES];
#pragma unroll
        for (u32 h = 0; h < HALVES; h++) {
            const u32 at = offset(chunk, h);
            const bool inside = from >= 0 && lane_col + at < half;
            x[h].l.load(source, left, at, inside);
            x[h].r.load(source, right, at, inside);
            x[h].g = inside ? load<ALIGNED>(g + at) : zero8<T>();
        }
#ifdef ASK_NEXT
        // The lines of the warp's next columns, to be in L2 when they are loaded.
        {
            constexpr u32 IN_X = sizeof(S) > 32 ? 1 : sizeof(T), IN_G = sizeof(T);  // lines of 128 columns
            const u32 i = lane % WIDTH, col = (chunk + ABREAST) * 128;
            const char* p = nullptr;
            if constexpr (sizeof(S) > 32) {
                if (i < 2) p = (const char*)(i ? right.codes : left.codes) - lane_col + col;
            } else {
                if (i < 2 * IN_X) p = (const char*)((i < IN_X ? left : right) - lane_col + col) + i % IN_X * 128;
            }
            if (i >= 2 * IN_X && i < 2 * IN_X + IN_G) p = (const char*)(g - lane_col + col) + (i - 2 * IN_X) * 128;
            if (p && from >= 0 && col < half) asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
        }
#endif
        float d[2 * HALVES][8], of_chunk[HALVES];
#pragma unroll
        for (u32 h = 0; h < HALVES; h++) {
            const u32 at = offset(chunk, h), col = lane_col + at;
            const int row_of = col < half ? from : -1;
            x[h].l.open(source, left, at, row_of, col, true);
            x[h].r.open(source, right, at, row_of, half + col, true);
            float again[8];
            of_chunk[h] = gradients<BARE>(source.producer, x[h], weight, d[h], d[h + HALVES], again);
            if (row >= rows || col >= half) continue;
            if (b.again) store8(b.again + row * b.again_stride + col, again);
            if (b.wide) {
                store8(b.wide + row * b.wide_stride + col, d[h]);
                store8(b.wide + row * b.wide_stride + half + col, d[h + HALVES]);
            }
        }
        const float tree = lanes_sum<WIDTH>(HALVES == 1 ? of_chunk[0] : __fadd_rn(of_chunk[0], of_chunk[HALVES - 1]));
#pragma unroll
        for (u32 i = 0; i < BANDS; i++)
            if (BANDS == 1 || chunk / ABREAST % BANDS == i) sum[i] = __fadd_rn(sum[i], tree);
        if (!to.wanted()) continue;
        // The first HALVES vectors are of the left half, the others of the right one.
        const auto place = [&](u32 v) { return lane_col + offset(chunk, v % HALVES) + v / HALVES * half; };
        float m[2 * HALVES], encode[2 * HALVES];
        bool clean[2 * HALVES];
#pragma unroll
        for (u32 v = 0; v < 2 * HALVES; v++) {
            clean[v] = true;
            m[v] = amax_of<FORMAT>(Numbers{d[v]}, 0.0f, clean[v]);
        }
        // Halves are whole groups, so that one begins within a half wherever it ends there.
        const auto inside = [&](u32 v) { return row < to.lines(rows) && (lane_col + offset(chunk, v % HALVES)) >> SHIFT << SHIFT < half; };
        Groups<Maximum<Numbers, FORMAT>, 2 * HALVES, 8, WIDTH, SHIFT>::template factors<FORMAT>(m, to.rule, encode, [&](u32 v, const GroupScale& s) {
            if (inside(v)) to.keep(row, place(v) >> SHIFT, s.scale);
        });
#pragma unroll
        for (u32 v = 0; v < 2 * HALVES; v++) {
            if (row >= rows || lane_col + offset(chunk, v % HALVES) >= half) continue;
            store_codes<FORMAT>(to.codes(), row * source.cols + place(v), Numbers{d[v]}, encode[v], clean[v] && is_factor(encode[v]));
        }
    }
    if (warp % ABREAST == 0 && to.wanted() && row < to.lines(rows)) to.pad(row, lane % WIDTH);
    if (!b.weights) return;
#pragma unroll
    for (u32 i = 0; i < BANDS; i++)
        if (lane % WIDTH == 0) sums[warp % ABREAST + ABREAST * i][row_of_block] = sum[i];
    __syncthreads();
    if (threadIdx.x < 4 && (u64)blockIdx.x * 4 + threadIdx.x < rows)
        b.weights[(u64)blockIdx.x * 4 + threadIdx.x] = sum_of_eight(&sums[0][threadIdx.x], 4);
}

// Blocks of a multiprocessor that fit without spilling.
#if __CUDA_ARCH__ == 900
constexpr u32 CODED_BLOCKS = 2;
#else
constexpr u32 CODED_BLOCKS = 1;
#endif
template <class S> constexpr u32 backward_blocks = sizeof(S) > 32 ? CODED_BLOCKS : 2;

#define BACKWARD_OF_PLAIN(name, T, ALIGNED, KERNEL, ...) KERNEL(plain_##name, T, ALIGNED, (Plain<T, ALIGNED>))
#define BACKWARD_OF_CODES(name, T, ALIGNED, KERNEL, ...) KERNEL(e4m3_##name, T, ALIGNED, (Opened<E4M3>))
