// RMSNorm of x, or of x + residual, cast along rows without being stored. Mirror of reference::rms_norm; compiled without contraction, so
// the bytes are equal.
#include "base/sum.cuh"
#include "cast/cast_rows.cuh"
#include "fused/produced.cuh"

struct Norm {
    const void* residual;  // [rows][cols] of x's type; null: none
    u64 residual_stride;   // elements from row to row
    void* sum;             // [rows][cols] of x's type: x + residual; null: not wanted
    u64 sum_stride;
    const void* weight;    // [cols]: FP32, or of x's type
    u32 weight_f32;        // 1: FP32
    float epsilon;
    float* rstd;           // [rows]: the rows' factors; null: not wanted
};

// Threads of a block, at the most: of a row that is held, which has as many as it takes, and of one that is not, where each adds up trees of its
// own.
template <int VECTORS> constexpr u32 norm_threads = VECTORS > 0 ? 256 : 128;
template <int VECTORS> __device__ __forceinline__ u32 threads_of_block() { return VECTORS > 0 ? blockDim.x : norm_threads<0>; }

template <int BYTES> struct BitsOf { using Type = u16; };
template <> struct BitsOf<4> { using Type = u32; };

// Vectors of a row in groups of columns, as `Line` of cast_rows.cuh has them.
template <u32 FORMAT, int SHIFT, int VECTORS>
__device__ __forceinline__ void cast_groups(const float (&v)[VECTORS][8], u64 row, u32 cols, const CastRule& rule, const CastOut& out) {
    using M = Maximum<Numbers, FORMAT>;
    const auto column = [](u32 i) { return (threadIdx.x + i * threads_of_block<VECTORS>()) * 8; };
    float m[VECTORS], encode[VECTORS];
    bool clean = true;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        m[i] = M::with(0.0f, Numbers{v[i]});
        if (!M::is_clean(m[i])) {
            clean = false;
            m[i] = amax_without_nan(Numbers{v[i]}, 0.0f);
        }
    }
    Groups<M, VECTORS, 8, 32, SHIFT>::template factors<FORMAT>(m, rule, encode, [&](u32 i, float scale) {
        if (column(i) >> SHIFT << SHIFT < cols) store_scale(out.grid, out.scales, row, column(i) >> SHIFT, scale);
    });
#pragma unroll
    for (int i = 0; i < VECTORS; i++)
        if (column(i) < cols) store_codes<FORMAT>(out.codes, row * cols + column(i), Numbers{v[i]}, encode[i], clean && is_factor(encode[i]));
}

// One block a row. The row stays in registers, VECTORS vectors of eight elements in each thread; with 0 it is read again.
template <class T, bool ALIGNED, int VECTORS, u32 FORMAT>
__device__ __forceinline__ void norm_row(const CastSource& x, const Norm& n, const CastRule& rule, const CastOut& out) {
    constexpr u32 MOST_TREES = VECTORS * norm_threads<VECTORS> / 16;
    // The trees of sum.cuh where a row is held, else its eight sums.
    __shared__ float sums[VECTORS > 0 ? MOST_TREES : 8], scratch[32];
    const u64 row = blockIdx.x;
    const u32 threads = threads_of_block<VECTORS>(), cols = x.cols, steps = (cols + 8 * threads - 1) / (8 * threads);
    begin();
    const auto column = [&](u32 i) { return (threadIdx.x + i * threads) * 8; };
    // What this thread has written; the residual may lie there, and be gone.
    const auto reload = [&](const T* p) {
        using Bits = typename BitsOf<sizeof(T)>::Type;
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const Bits bits = ((const volatile Bits*)p)[k];
            v[k] = to_float(*(const T*)&bits);
        }
        return pack8<T>(v);
    };
    const T* const from = once((const T*)x.x + row * x.stride + threadIdx.x * 8);
    const T* const other = once((const T*)n.residual + row * n.residual_stride + threadIdx.x * 8);
    const auto offset = [&](u32 i) { return i * threads * 8; };
    const auto inside = [&](u32 i) { return column(i) < cols; };
    // x + residual, rounded to x's type, which is stored. The residual may lie where the sum goes: not read as what never changes.
    const auto fetch_other = [&](u32 i) {
        if constexpr (ALIGNED) return inside(i) ? load8_changing(other + offset(i)) : zero8<T>();
        else return inside(i) ? reload(other + offset(i)) : zero8<T>();
    };
    const auto add_other = [&](Vec8<T>& data, const Vec8<T>& residual, u32 i) {
        float v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = __fadd_rn(element(data, k), element(residual, k));
        data = pack8<T>(v);
        if (n.sum && inside(i)) store<ALIGNED>((T*)n.sum + row * n.sum_stride + column(i), v);
    };
    const auto fetch = [&](u32 i) { return inside(i) ? load<ALIGNED>(from + offset(i)) : zero8<T>(); };
    // What is normed, of x's type, where the row is not held.
    const auto normed_input = [&](u32 i, bool first) {
        if (!first && n.sum) return inside(i) ? reload((const T*)n.sum + row * n.sum_stride + column(i)) : zero8<T>();
        Vec8<T> data = fetch(i);
        if (n.residual) add_other(data, fetch_other(i), i);
        return data;
    };
    Vec8<T> held[VECTORS > 0 ? VECTORS : 1];
    // The sum of the squares of 128 columns, for the sixteen lanes that have them.
    const auto tree = [&](const Vec8<T>& data) {
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < 8; k++) squares = __fmaf_rn(element(data, k), element(data, k), squares);
        return lanes_sum<16>(squares);
    };
    float sum = 0.0f;
    if constexpr (VECTORS > 0) {
        // All that is read is asked for before any of it is waited for.
#pragma unroll
        for (int i = 0; i < VECTORS; i++) held[i] = fetch(i);
        if (n.residual) {
            Vec8<T> residual[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++) residual[i] = fetch_other(i);
#pragma unroll
            for (int i = 0; i < VECTORS; i++) add_other(held[i], residual[i], i);
        }
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            const float of_tree = tree(held[i]);
            if (threadIdx.x % 16 == 0) sums[i * (threads / 16) + threadIdx.x / 16] = of_tree;
        }
        __syncthreads();
        // Every warp adds them up, eight lanes the trees of a sum each.
#pragma unroll
        for (u32 c = 0; c < MOST_TREES; c += 8) sum = __fadd_rn(sum, c < VECTORS * threads / 16 ? sums[c + threadIdx.x % 8] : 0.0f);
        sum = lanes_sum<8>(sum);
    } else {
        for (u32 i = 0; i < steps; i++) sum = __fadd_rn(sum, tree(normed_input(i, true)));
        if (threadIdx.x % 16 == 0) sums[threadIdx.x / 16] = sum;
        __syncthreads();
        sum = sum_of_eight(sums, 1);
    }
    const float mean = __fdiv_rn(sum, (float)cols);
    const float rstd = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, n.epsilon)));
    if (n.rstd && threadIdx.x == 0) n.rstd[row] = rstd;
    if (!out.scales) return;

    const auto normed = [&](Vec8<T> data, u32 i, float (&v)[8]) {
        forget(data);
        const u32 col = column(i);
        float w[8];
        if (col < cols) {
            column_weights<T, ALIGNED>(n.weight, n.weight_f32, col, w);
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++) w[k] = 0.0f;
        }
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = __fmul_rn(__fmul_rn(element(data, k), rstd), w[k]);
    };
    const u32 shift = out.grid.col_shift;
    if (shift == 31) {
        float amax = 0.0f, v[8];
        bool clean = true;
        const auto raise = [&](const Vec8<T>& data, u32 i) {
            normed(data, i, v);
            amax = amax_of<FORMAT>(Numbers{v}, amax, clean);
        };
        if constexpr (VECTORS > 0) {
#pragma unroll
            for (int i = 0; i < VECTORS; i++) raise(held[i], i);
        } else {
            for (u32 i = 0; i < steps; i++) raise(normed_input(i, false), i);
        }
        const GroupScale s = cast_scale<FORMAT>(rule, block_max(amax, scratch));
        if (threadIdx.x == 0) store_scale(out.grid, out.scales, row, 0, s.scale);
        const bool bounded = clean && is_factor(s.encode);
        const auto write = [&](const Vec8<T>& data, u32 i) {
            if (column(i) >= cols) return;
            normed(data, i, v);
            store_codes<FORMAT>(out.codes, row * cols + column(i), Numbers{v}, s.encode, bounded);
        };
        if constexpr (VECTORS > 0) {
#pragma unroll
            for (int i = 0; i < VECTORS; i++) write(held[i], i);
        } else {
            for (u32 i = 0; i < steps; i++) write(normed_input(i, false), i);
        }
        return;
    }
    if constexpr (VECTORS > 0) {
        float v[VECTORS][8];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) normed(held[i], i, v[i]);
        if (shift == 7) cast_groups<FORMAT, 7>(v, row, cols, rule, out);
        else if (shift == 6) cast_groups<FORMAT, 6>(v, row, cols, rule, out);
        else if (shift == 5) cast_groups<FORMAT, 5>(v, row, cols, rule, out);
        else cast_groups<FORMAT, 4>(v, row, cols, rule, out);
    } else {
        // A group is so many neighbouring lanes.
        const u32 lanes = 1u << (shift - 3);
        for (u32 i = 0; i < steps; i++) {
            const u32 col = column(i);
            float v[8];
            normed(normed_input(i, false), i, v);
            bool clean = true;
            float amax = amax_of<FORMAT>(Numbers{v}, 0.0f, clean);
            for (u32 step = lanes / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, step));
            const GroupScale s = cast_scale<FORMAT>(rule, amax);
            if (col >= cols) continue;
            if (threadIdx.x % lanes == 0) store_scale(out.grid, out.scales, row, col >> shift, s.scale);
            store_codes<FORMAT>(out.codes, row * cols + col, Numbers{v}, s.encode, clean && is_factor(s.encode));
        }
    }
}

// Blocks of a multiprocessor that fit without spilling.
template <class T, int VECTORS> constexpr u32 norm_blocks = VECTORS == 0 ? 4 : sizeof(T) == 4 ? 2 : 3;

#define RMS_NORM(name, T, ALIGNED, VECTORS)                                                                               \
    extern "C" __global__ void __launch_bounds__(norm_threads<VECTORS>, (norm_blocks<T, VECTORS>)) rms_norm_##VECTORS##_##name( \
        CastSource x, Norm n, CastRule rule, CastOut out)                                                                 \
    {                                                                                                                     \
        if (rule.format == E4M3) norm_row<T, ALIGNED, VECTORS, E4M3>(x, n, rule, out);                                    \
        else norm_row<T, ALIGNED, VECTORS, E2M1>(x, n, rule, out);                                                        \
    }
FOR_EACH_TYPE(RMS_NORM, 0)
FOR_EACH_TYPE(RMS_NORM, 4)
