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
template <class S, class T>
__device__ __forceinline__ float gradients(const Producer& p, const Pair<S, T>& x, float weight, float (&dl)[8], float (&dr)[8], float (&again)[8]) {
    float l[8], r[8], sigma[8], sum = 0.0f;
    values(x.l, l);
    values(x.r, r);
    u32 beyond = 0;
    if (p.clamped) {
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
        const float t = __fmul_rn(__fmul_rn(g, weight), sigma[i]);
        sum = __fmaf_rn(g, act, sum);
        again[i] = __fmul_rn(act, weight);
        dl[i] = __fmul_rn(__fmul_rn(t, r[i]), __fmaf_rn(l[i], __fsub_rn(1.0f, sigma[i]), 1.0f));
        dr[i] = __fmul_rn(t, l[i]);
    }
    if (beyond) {
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

// A block takes four rows, a warp two of them and every fourth 128 columns of both halves, a lane eight of these: with eight lanes a row, which have twice as much each, half as many
// blocks fit. `source` is x, both halves; its producer has clamp, weights and experts. Groups of 32 or 128 columns. TARGET: `CastTarget` or its like.
template <class S, class T, bool ALIGNED, u32 FORMAT, int SHIFT, class TARGET>
__device__ __forceinline__ void swiglu_backward(const CastSource& source, const Backward& b, u32 rows, const TARGET& to) {
    constexpr u32 WIDTH = 16, ABREAST = 4;  // lanes of a row, and warps that share two rows
    __shared__ float sums[8][4];
    const u32 half = source.cols / 2, chunks = (half + 127) / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 row_of_block = warp / ABREAST * 2 + lane / WIDTH;
    const u64 row = (u64)blockIdx.x * 4 + row_of_block;
    begin();
    const int from = source_row<Expert>(source, row, rows);
    const float weight = from >= 0 && source.producer.weights ? __ldg(source.producer.weights + from) : 1.0f;
    const u32 lane_col = lane % WIDTH * 8;
    const typename S::At left = S::at(source, from, lane_col), right = S::at(source, from, half + lane_col);
    const T* const g = (const T*)b.gradient + (u32)from * b.gradient_stride + lane_col;
    // Sums c modulo 8 of the row are those of warp c modulo 4: of its first chunk and every other, and of those between.
    float sum[2] = {0.0f, 0.0f};
    for (u32 chunk = warp % ABREAST; chunk < chunks; chunk += ABREAST) {
        const u32 at = chunk * 128, col = lane_col + at;
        Pair<S, T> x;
        {
            const bool inside = from >= 0 && col < half;
            x.l.load(source, left, at, inside);
            x.r.load(source, right, at, inside);
            x.g = inside ? load<ALIGNED>(g + at) : zero8<T>();
        }
        const int row_of = col < half ? from : -1;
        x.l.open(source, left, at, row_of, col, true);
        x.r.open(source, right, at, row_of, half + col, true);
        float d[2][8], again[8];
        const float tree = lanes_sum<WIDTH>(gradients(source.producer, x, weight, d[0], d[1], again));
        const bool exists = row < rows && col < half;
        if (exists && b.again) store8(b.again + row * b.again_stride + col, again);
        if (exists && b.wide) {
            store8(b.wide + row * b.wide_stride + col, d[0]);
            store8(b.wide + row * b.wide_stride + half + col, d[1]);
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            if (chunk / ABREAST % 2 == i) sum[i] = __fadd_rn(sum[i], tree);
        if (!to.wanted()) continue;
        const auto place = [&](u32 v) { return col + v * half; };
        float m[2], encode[2];
        bool clean[2];
#pragma unroll
        for (u32 v = 0; v < 2; v++) {
            clean[v] = true;
            m[v] = amax_of<FORMAT>(Numbers{d[v]}, 0.0f, clean[v]);
        }
        // Halves are whole groups, so that one begins within a half wherever it ends there.
        const bool inside = row < to.lines(rows) && col >> SHIFT << SHIFT < half;
        Groups<Maximum<Numbers, FORMAT>, 2, 8, WIDTH, SHIFT>::template factors<FORMAT>(m, to.rule, encode, [&](u32 v, const GroupScale& s) {
            if (inside) to.keep(row, place(v) >> SHIFT, s.scale);
        });
        if (!exists) continue;
#pragma unroll
        for (u32 v = 0; v < 2; v++)
            store_codes<FORMAT>(to.codes(), row * source.cols + place(v), Numbers{d[v]}, encode[v], clean[v] && is_factor(encode[v]));
    }
    if (warp % ABREAST == 0 && to.wanted() && row < to.lines(rows)) to.pad(row, lane % WIDTH);
    if (!b.weights) return;
    if (lane % WIDTH == 0) {
        sums[warp % ABREAST][row_of_block] = sum[0];
        sums[warp % ABREAST + ABREAST][row_of_block] = sum[1];
    }
    __syncthreads();
    if (threadIdx.x < 4 && (u64)blockIdx.x * 4 + threadIdx.x < rows)
        b.weights[(u64)blockIdx.x * 4 + threadIdx.x] = sum_of_eight(&sums[0][threadIdx.x], 4);
}

// Blocks of a multiprocessor that fit without spilling.
#if __CUDA_ARCH__ == 900
template <class S, class T, bool MX = false> constexpr u32 backward_blocks = sizeof(T) == 4 || (MX && sizeof(S) > 32) ? 3 : 4;
#else
template <class S, class T, bool MX = false> constexpr u32 backward_blocks = 2;
#endif

#define BACKWARD_OF_PLAIN(name, T, ALIGNED, KERNEL, ...) KERNEL(plain_##name, T, ALIGNED, (Plain<T, ALIGNED>))
#define BACKWARD_OF_CODES(name, T, ALIGNED, KERNEL, ...) KERNEL(e4m3_##name, T, ALIGNED, (OpenedGroups<E4M3>))
