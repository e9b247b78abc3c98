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

// Where a place of a source lies, and bytes of an element there.
template <class T> __device__ __forceinline__ const char* bytes_at(const T* place) { return (const char*)place; }
__device__ __forceinline__ const char* bytes_at(const PackedCodes<E4M3>::At& place) { return (const char*)place.codes; }
template <class S> constexpr u32 element_bytes = 1;
template <class T, bool ALIGNED> constexpr u32 element_bytes<Plain<T, ALIGNED>> = sizeof(T);

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

// A block takes four rows and a warp every eighth 128 columns of both halves of them, lanes as in cast_rows.cuh. `source` is x,
// both halves; its producer has clamp, weights and experts. Groups of 32 or 128 columns. TARGET: `CastTarget` or its like.
template <class S, class T, bool ALIGNED, u32 FORMAT, int SHIFT, class TARGET>
__device__ __forceinline__ void swiglu_backward(const CastSource& source, const Backward& b, u32 rows, const TARGET& to) {
    __shared__ float sums[8][4];
    const u32 half = source.cols / 2, chunks = (half + 127) / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 row = (u64)blockIdx.x * 4 + lane / 8;
    begin();
    const int from = source_row<Expert>(source, row, rows);
    const float weight = from >= 0 && source.producer.weights ? __ldg(source.producer.weights + from) : 1.0f;
    const u32 lane_col = lane % 8 * 8;
    const typename S::At left = S::at(source, from, lane_col), right = S::at(source, from, half + lane_col);
    const T* const g = (const T*)b.gradient + (u32)from * b.gradient_stride + lane_col;
    const auto offset = [](u32 chunk, u32 h) { return chunk * 128 + 64 * h; };
    // Two blocks of a multiprocessor load less at once than memory needs: 0.98 of the time from codes, 0.99 to 1.00 from BF16. Of 128 rows, whose blocks are no
    // more than run at once, it was 1.04 and 1.00 (observed: H100, 2026-11).
    const bool asks = gridDim.x > 264;
    float sum = 0.0f;
    for (u32 chunk = warp; chunk < chunks; chunk += 8) {
        Pair<S, T> x[2];
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 at = offset(chunk, h);
            const bool inside = from >= 0 && lane_col + at < half;
            x[h].l.load(source, left, at, inside);
            x[h].r.load(source, right, at, inside);
            x[h].g = inside ? load<ALIGNED>(g + at) : zero8<T>();
        }
        if (asks) {
            // The lines of the warp's next columns, to be in L2 when they are loaded. 128 elements have as many lines as an element bytes.
            constexpr u32 OF_X = element_bytes<S>, OF_G = sizeof(T);
#pragma unroll
            for (u32 first = 0; first < 2 * OF_X + OF_G; first += 8) {
                const u32 line = first + lane % 8, of_g = line >= 2 * OF_X, size = of_g ? OF_G : OF_X;
                const u32 col = (chunk + 8) * 128 + (of_g ? line - 2 * OF_X : line % OF_X) * (128 / size);
                const char* const p = (of_g ? bytes_at(g) : bytes_at(line < OF_X ? left : right)) + (u64)(col - lane_col) * size;
                if (line < 2 * OF_X + OF_G && from >= 0 && col < half) asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
            }
        }
        float d[4][8], of_chunk[2];
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 at = offset(chunk, h), col = lane_col + at;
            const int row_of = col < half ? from : -1;
            x[h].l.open(source, left, at, row_of, col, true);
            x[h].r.open(source, right, at, row_of, half + col, true);
            float again[8];
            of_chunk[h] = gradients(source.producer, x[h], weight, d[h], d[h + 2], again);
            if (row >= rows || col >= half) continue;
            if (b.again) store8(b.again + row * b.again_stride + col, again);
            if (b.wide) {
                store8(b.wide + row * b.wide_stride + col, d[h]);
                store8(b.wide + row * b.wide_stride + half + col, d[h + 2]);
            }
        }
        sum = __fadd_rn(sum, lanes_sum<8>(__fadd_rn(of_chunk[0], of_chunk[1])));
        if (!to.wanted()) continue;
        // Vectors 0 and 1 are of the left half, 2 and 3 of the right one.
        const auto place = [&](u32 v) { return lane_col + offset(chunk, v % 2) + v / 2 * half; };
        float m[4], encode[4];
        bool clean[4];
#pragma unroll
        for (int v = 0; v < 4; v++) {
            clean[v] = true;
            m[v] = amax_of<FORMAT>(Numbers{d[v]}, 0.0f, clean[v]);
        }
        // Halves are whole groups, so that one begins within a half wherever it ends there.
        const auto inside = [&](u32 v) { return row < to.lines(rows) && (lane_col + offset(chunk, v % 2)) >> SHIFT << SHIFT < half; };
        Groups<Maximum<Numbers, FORMAT>, 4, 8, 8, SHIFT>::template factors<FORMAT>(m, to.rule, encode, [&](u32 v, const GroupScale& s) {
            if (inside(v)) to.keep(row, place(v) >> SHIFT, s.scale);
        });
#pragma unroll
        for (u32 v = 0; v < 4; v++) {
            if (row >= rows || lane_col + offset(chunk, v % 2) >= half) continue;
            store_codes<FORMAT>(to.codes(), row * source.cols + place(v), Numbers{d[v]}, encode[v], clean[v] && is_factor(encode[v]));
        }
    }
    if (warp == 0 && to.wanted() && row < to.lines(rows)) to.pad(row, lane % 8);
    if (!b.weights) return;
    if (lane % 8 == 0) sums[warp][lane / 8] = sum;
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
