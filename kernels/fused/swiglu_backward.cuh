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
    u32 row_warps;         // warps of a block that share a row: 1, 2 or all
};

// Eight neighbours of each half of x, and of the gradient.
template <class S, class T> struct Pair {
    S l, r;
    Vec8<T> g;
};

// Gradients of both halves, and the results of the forward pass; `sum`: of gradient times result before the weight. BARE: there is no clamp, the weight is 1,
// and no number of the left half is far from zero.
struct Gradients {
    float l[8], r[8], sum;
    Vec8<Bf16> again;
};
template <bool BARE, class S, class T> __device__ __forceinline__ void gradients(const Producer& p, const Pair<S, T>& x, float weight, Gradients& d) {
    float l[8], r[8], sigma[8], again[8];
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
    if constexpr (BARE) {
#pragma unroll
        for (int i = 0; i < 8; i++) sigma[i] = sigmoid_near(l[i]);
    } else {
        sigmoids(l, sigma);
    }
    d.sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float g = element(x.g, i), act = __fmul_rn(__fmul_rn(l[i], sigma[i]), r[i]);
        const float t = __fmul_rn(BARE ? g : __fmul_rn(g, weight), sigma[i]);
        d.sum = __fmaf_rn(g, act, d.sum);
        again[i] = BARE ? act : __fmul_rn(act, weight);
        d.l[i] = __fmul_rn(__fmul_rn(t, r[i]), __fmaf_rn(l[i], __fsub_rn(1.0f, sigma[i]), 1.0f));
        d.r[i] = __fmul_rn(t, l[i]);
    }
    if (!BARE && beyond) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (beyond >> i & 1) d.l[i] = 0.0f;
            if (beyond >> (i + 8) & 1) d.r[i] = 0.0f;
        }
    }
    d.again = pack8<Bf16>(again);
}

// Whether none of eight numbers is far from zero; of codes by their scale alone.
template <class S> __device__ __forceinline__ bool all_near(const S& x) {
    using M = Maximum<S, E4M3>;
    const typename M::Type m = M::with(0, x);
    return M::is_clean(m) && M::amax(m) <= NEAR;
}
template <> __device__ __forceinline__ bool all_near(const Coded<E4M3>& x) { return fabsf(x.scale) <= NEAR / largest_number<E4M3>; }

// A source whose rows have experts.
struct Expert {
    static constexpr bool EXPERTS = true;
};

// Blocks of a multiprocessor that fit without spilling: four on sm_90 alone, and there not of MXFP8.
constexpr u32 BACKWARD_WARPS = 4, BACKWARD_BLOCKS = TUNED ? 4 : 3, BACKWARD_MX_BLOCKS = 3;

// Where a lane reads of a row. AHEAD: what is read next fits into registers beside what is computed. This one: codes of single columns.
template <class S> struct Walk {
    static constexpr bool AHEAD = false;
    typename S::At at;
    u32 offset;
    __device__ __forceinline__ Walk(const CastSource& s, int row, u32 col, u32) : at(S::at(s, row, col)), offset(0) {}
    __device__ __forceinline__ void load(S& x, const CastSource& s, u32 right, bool inside) const { x.load(s, at, offset + right, inside); }
    __device__ __forceinline__ void open(S& x, const CastSource& s, u32 right, int row, u32 col) const { x.open(s, at, offset + right, row, col, true); }
    __device__ __forceinline__ void step(u32 cols) { offset += cols; }
};
template <class T, bool ALIGNED> struct Walk<Plain<T, ALIGNED>> {
    static constexpr bool AHEAD = sizeof(T) == 2 && ALIGNED;  // what is not aligned takes 0.93 of the time without
    using S = Plain<T, ALIGNED>;
    const T* at;
    __device__ __forceinline__ Walk(const CastSource& s, int row, u32 col, u32) : at(S::at(s, row, col)) {}
    __device__ __forceinline__ void load(S& x, const CastSource& s, u32 right, bool inside) const { x.load(s, at, right, inside); }
    __device__ __forceinline__ void open(S&, const CastSource&, u32, int, u32) const {}
    __device__ __forceinline__ void step(u32 cols) { at = once(at + cols); }
};
// A step, 512 columns or more, is a multiple of four groups, or within one.
template <> struct Walk<Coded<E4M3>> {
    static constexpr bool AHEAD = true;
    using S = Coded<E4M3>;
    const u8 *codes, *scales;
    u64 to_second, to_next;  // bytes of scales: to those of the columns that are `apart`, and of a step
    __device__ __forceinline__ Walk(const CastSource& s, int row, u32 col, u32 apart) {
        const typename S::At at = S::here(s, S::at(s, row, col));
        codes = at.codes, scales = at.scales;
        to_second = (S::number_of(s, col + apart) - at.first) * s.scale_right, to_next = S::number_of(s, 2 * apart) * s.scale_right;
    }
    __device__ __forceinline__ void load(S& x, const CastSource&, u32 right, bool inside) const { x.load_at(codes + right, right ? scales + to_second : scales, inside); }
    __device__ __forceinline__ void open(S& x, const CastSource& s, u32, int row, u32 col) const { x.open(s, {}, 0, row, col, true); }
    __device__ __forceinline__ void step(u32 cols) { codes = once(codes + cols), scales = once(scales + to_next); }
};

// What the gradient of x is cast to: scales in the order of a grid, padding left alone. `place`: where a group's scale lies; `step`: bytes from there to the
// scale of so many groups further right, a multiple of four.
struct CastTarget {
    const CastRule& rule;
    const CastOut& out;
    __device__ __forceinline__ bool wanted() const { return out.scales; }
    __device__ __forceinline__ u8* codes() const { return out.codes; }
    __device__ __forceinline__ u64 lines(u32 rows) const { return rows; }
    __device__ __forceinline__ u32 bytes() const { return out.grid.order == UE8M0 ? 1 : 4; }
    __device__ __forceinline__ u8* place(u64 row, u32 group) const { return out.scales + scale_index(out.grid, row, group) * bytes(); }
    __device__ __forceinline__ u64 step(u32 groups) const { return (u64)groups * bytes() * (out.grid.order == ROW_MAJOR ? 1 : round_up4(out.grid.rows)); }
    __device__ __forceinline__ void keep(u8* place, float scale) const { keep_scale(out.grid.order, place, scale); }
    __device__ __forceinline__ void pad(u64, u32) const {}
};

// Four warps of a block share a long row, or two, so that few are open at a time, or each has a short one, so that none waits for columns that are not there. Eight that shared four
// long rows took 1.06 times as long from codes, and 1.03 where they computed nothing (observed: H200, 2026-11). `source` is x, both halves; its producer has clamp, weights
// and experts. Groups of 32 or 128 columns. TARGET: `CastTarget` or its like.
template <u32 ROW_WARPS, class S, class T, bool ALIGNED, u32 FORMAT, int SHIFT, class TARGET>
__device__ __forceinline__ void swiglu_backward(const CastSource& source, const Backward& b, u32 rows, const TARGET& to) {
    constexpr bool AHEAD = sizeof(T) == 2 && Walk<S>::AHEAD;
    using Of = Groups<Maximum<Numbers, FORMAT>, 4, 8, 32, SHIFT>;
    static_assert(Of::OWN == 1, "a lane keeps one scale");
    __shared__ float sums[BACKWARD_WARPS][8];
    // The warps of a row have 256 neighbours each, eight in a lane, and those `apart` columns further right; then they take a step.
    constexpr u32 threads = 32 * ROW_WARPS, apart = 8 * threads, step = 2 * apart;
    const u32 half = source.cols / 2, row = blockIdx.x * (BACKWARD_WARPS / ROW_WARPS) + threadIdx.x / threads, first = threadIdx.x % threads * 8;
    begin();
    const int from = source_row<Expert>(source, row, rows);
    const float weight = from >= 0 && source.producer.weights ? __ldg(source.producer.weights + from) : 1.0f;
    const bool bare = !source.producer.clamped && weight == 1.0f;
    Walk<S> left(source, from, first, apart), right(source, from, half + first, apart);
    const T* g = once((const T*)b.gradient + (u32)from * b.gradient_stride + first);
    Bf16 *again = once(b.again + row * b.again_stride + first), *wide = once(b.wide + row * b.wide_stride + first);
    u8* codes = once(to.codes() + (u64)row * source.cols + first);
    // Vectors 0 and 1 are of the left half, 2 and 3 of the right one.
    const u32 own = Of::own_vector(0);
    u8* scale = to.place(row, (first + own % 2 * apart + own / 2 * half) >> SHIFT);
    const u64 scale_step = to.step(step >> SHIFT);
    const auto load_all = [&](Pair<S, T> (&x)[2], u32 at) {
#pragma unroll
        for (u32 v = 0; v < 2; v++) {
            const u32 right_of = v * apart;
            const bool inside = from >= 0 && first + at + right_of < half;
            left.load(x[v].l, source, right_of, inside);
            right.load(x[v].r, source, right_of, inside);
            x[v].g = inside ? load<ALIGNED>(g + right_of) : zero8<T>();
        }
    };
    const auto next_columns = [&] {
        left.step(step), right.step(step);
        g = once(g + step);
    };
    // Of every eighth 128 columns half a warp has all, and adds their sums in their order.
    float* const of_row = sums[threadIdx.x / threads];
    const bool sums_here = b.weights && threadIdx.x % 16 == 0;
    if (sums_here)
        for (u32 chunk = first / 128; chunk < 8; chunk += apart / 128) of_row[chunk] = 0.0f;
    Pair<S, T> next[2];
    if constexpr (AHEAD) load_all(next, 0);
    for (u32 at = 0; first / 256 * 256 + at < half; at += step) {
        Pair<S, T> x[2];
        if constexpr (AHEAD) {
            x[0] = next[0], x[1] = next[1];
            next_columns();
            load_all(next, at + step);
        } else {
            load_all(x, at);
        }
        bool plain = bare;
#pragma unroll
        for (u32 v = 0; v < 2; v++) {
            const u32 right_of = v * apart, col = first + at + right_of;
            const int row_of = col < half ? from : -1;
            left.open(x[v].l, source, right_of, row_of, col);
            right.open(x[v].r, source, right_of, row_of, half + col);
            plain = plain && all_near(x[v].l);
        }
        if constexpr (!AHEAD) next_columns();
        Gradients d[2];
        if (__all_sync(0xFFFFFFFFu, plain)) {
#pragma unroll
            for (u32 v = 0; v < 2; v++) gradients<true>(source.producer, x[v], weight, d[v]);
        } else {
#pragma unroll
            for (u32 v = 0; v < 2; v++) gradients<false>(source.producer, x[v], weight, d[v]);
        }
        if (b.weights) {
#pragma unroll
            for (u32 v = 0; v < 2; v++) {
                const float sum = lanes_sum<16>(d[v].sum);
                float& of_chunks = of_row[(first + at + v * apart) / 128 % 8];
                if (sums_here) of_chunks = __fadd_rn(of_chunks, sum);
            }
        }
        const auto inside = [&](u32 v) { return row < rows && first + at + v % 2 * apart < half; };
#pragma unroll
        for (u32 v = 0; v < 2; v++) {
            const u32 right_of = v * apart;
            if (b.again && inside(v)) *(uint4*)(again + right_of) = d[v].again.q[0];
            if (b.wide && inside(v)) {
                store8(wide + right_of, d[v].l);
                store8(once(wide + half) + right_of, d[v].r);
            }
        }
        again = once(again + step), wide = once(wide + step);
        if (!to.wanted()) continue;
        float m[4], encode[4];
#pragma unroll
        for (int v = 0; v < 4; v++) {
            bool clean = true;
            m[v] = amax_of<FORMAT>(Numbers{v < 2 ? d[v % 2].l : d[v % 2].r}, 0.0f, clean);
        }
        // Halves are whole groups.
        Of::template factors<FORMAT>(m, to.rule, encode, [&](u32, const GroupScale& s) {
            if (row < to.lines(rows) && first + at + own % 2 * apart < half) to.keep(scale, s.scale);
        });
#pragma unroll
        for (u32 v = 0; v < 4; v++)
            if (inside(v)) store_codes<FORMAT, false>(v < 2 ? codes : once(codes + half), v % 2 * apart, Numbers{v < 2 ? d[v % 2].l : d[v % 2].r}, encode[v]);
        codes = once(codes + step), scale = once(scale + scale_step);
    }
    if (first < 64 && to.wanted() && row < to.lines(rows)) to.pad(row, first / 8);
    if (!b.weights) return;
    __syncthreads();
    if (first == 0 && row < rows) b.weights[row] = sum_of_eight(of_row, 1);
}

// Codes whose groups have one column are opened by other code than those of more, and have one warp a row (`row_warps` of src/gpu/kernels/fused.rs).
template <class S, class T, bool ALIGNED, u32 FORMAT, int SHIFT, class TARGET>
__device__ __forceinline__ void swiglu_backward_of(const CastSource& source, const Backward& b, u32 rows, const TARGET& to) {
    if (b.row_warps == BACKWARD_WARPS) return swiglu_backward<BACKWARD_WARPS, S, T, ALIGNED, FORMAT, SHIFT>(source, b, rows, to);
    if (b.row_warps == 2) return swiglu_backward<2, S, T, ALIGNED, FORMAT, SHIFT>(source, b, rows, to);
    if constexpr (is_coded<S>) {
        if (source.grid.col_shift == 0) return swiglu_backward<1, Opened<E4M3>, T, ALIGNED, FORMAT, SHIFT>(source, b, rows, to);
    }
    swiglu_backward<1, S, T, ALIGNED, FORMAT, SHIFT>(source, b, rows, to);
}

#define BACKWARD_OF_PLAIN(name, T, ALIGNED, KERNEL, ...) KERNEL(plain_##name, T, ALIGNED, (Plain<T, ALIGNED>))
#define BACKWARD_OF_CODES(name, T, ALIGNED, KERNEL, ...) KERNEL(e4m3_##name, T, ALIGNED, (Coded<E4M3>))
