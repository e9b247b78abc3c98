// RMSNorm of x, or of x + residual, cast along rows without being stored, a block a row. Mirror of reference::rms_norm; compiled without contraction,
// so the bytes are equal.
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

constexpr int HELD = 4;            // vectors of eight elements in a thread, where it holds its part of a row
constexpr u32 HELD_THREADS = 256;  // of a block then, at the most: as many as the row takes
constexpr u32 LONG_THREADS = 128;  // where the row is longer
constexpr u32 MOST_TREES = HELD * HELD_THREADS / 16;

// The first columns of the vectors that a thread holds. Other code than sm_90's own asks for the thread's number anew wherever columns are wanted: what
// compilers made of it before the sum they kept in registers for the codes, and spilled.
struct Columns {
    u32 thread, threads;
    __device__ __forceinline__ Columns() : thread(threadIdx.x), threads(blockDim.x) {
#ifndef __CUDA_ARCH_FEAT_SM90_ALL
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        asm volatile("mov.u32 %0, %%ntid.x;" : "=r"(threads));
#endif
    }
    __device__ __forceinline__ u32 operator()(u32 i) const { return (thread + i * threads) * 8; }
};

// Vectors of a row in groups of columns, as `Line` of cast_rows.cuh has them.
template <u32 FORMAT, int SHIFT>
__device__ __forceinline__ void cast_groups(const float (&v)[HELD][8], u64 row, u32 cols, const CastRule& rule, const CastOut& out) {
    using M = Maximum<Numbers, FORMAT>;
    const Columns column_of;
    float m[HELD], encode[HELD];
    bool clean = true;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        m[i] = M::with(0.0f, Numbers{v[i]});
        if (!M::is_clean(m[i])) {
            clean = false;
            m[i] = amax_without_nan(Numbers{v[i]}, 0.0f);
        }
    }
    Groups<M, HELD, 8, 32, SHIFT>::template factors<FORMAT>(m, rule, encode, [&](u32 i, const GroupScale& s) {
        if (column_of(i) >> SHIFT << SHIFT < cols) store_scale_of_line(out, row, column_of(i) >> SHIFT, s.scale);
    });
    u8* const codes = once(out.codes + (FORMAT == E2M1 ? row * cols / 2 : row * cols));
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (FORMAT == E2M1 && clean && is_factor(encode[i])) store_codes_if<FORMAT, true>(column_of(i) < cols, codes, column_of(i), Numbers{v[i]}, encode[i]);
        else store_codes_if<FORMAT, false>(column_of(i) < cols, codes, column_of(i), Numbers{v[i]}, encode[i]);
    }
}

// The sum of eight squares.
template <class T> __device__ __forceinline__ float squares(const Vec8<T>& data) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) sum = __fmaf_rn(element(data, k), element(data, k), sum);
    return sum;
}

// x + residual, rounded to their type; stored at `sum` + `col`, if there is one.
template <bool ALIGNED, class T> __device__ __forceinline__ void add_residual(Vec8<T>& data, const Vec8<T>& residual, T* sum, u32 col) {
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = __fadd_rn(element(data, k), element(residual, k));
    data = pack8<T>(v);
    if (sum) store<ALIGNED>(sum + col, v);
}

// The factor of a row, from the sum of its squares.
__device__ __forceinline__ float row_factor(const Norm& n, float sum, u64 row, u32 cols) {
    const float mean = __fdiv_rn(sum, (float)cols);
    const float rstd = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, n.epsilon)));
    if (n.rstd && threadIdx.x == 0) n.rstd[row] = rstd;
    return rstd;
}

// Eight elements times the row's factor and the columns'.
template <class T> __device__ __forceinline__ void normed(Vec8<T> data, float rstd, const float (&w)[8], float (&v)[8]) {
    forget(data);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = __fmul_rn(__fmul_rn(element(data, k), rstd), w[k]);
}

template <int BYTES> struct BitsOf { using Type = u16; };
template <> struct BitsOf<4> { using Type = u32; };

// What a thread of this kernel may have written.
template <class T> __device__ __forceinline__ Vec8<T> reload(const T* p) {
    using Bits = typename BitsOf<sizeof(T)>::Type;
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const Bits bits = ((const volatile Bits*)p)[k];
        v[k] = to_float(*(const T*)&bits);
    }
    return pack8<T>(v);
}

// A row in its memory. What lies past its end is zero.
template <class T, bool ALIGNED> struct Row {
    const T *x, *residual;
    T* sum;
    u32 cols;
    __device__ __forceinline__ Row(const CastSource& s, const Norm& n, u64 row)
        : x(once((const T*)s.x + row * s.stride)), residual(once((const T*)n.residual + row * n.residual_stride)),
          sum(n.sum ? (T*)n.sum + row * n.sum_stride : nullptr), cols(s.cols) {}
    __device__ __forceinline__ Vec8<T> of_x(u32 col) const { return col < cols ? load<ALIGNED>(x + col) : zero8<T>(); }
    // It may lie where the sum goes: not read as what never changes.
    __device__ __forceinline__ Vec8<T> of_residual(u32 col) const {
        if constexpr (ALIGNED) return col < cols ? load8_changing(residual + col) : zero8<T>();
        else return col < cols ? reload(residual + col) : zero8<T>();
    }
    __device__ __forceinline__ void add(Vec8<T>& data, const Vec8<T>& other, u32 col) const { add_residual<ALIGNED>(data, other, col < cols ? sum : nullptr, col); }
};

// Factors of columns. Those of 16 bits are on their way while the row is summed up; others, and loads of single elements, take too many registers.
template <class T, bool ALIGNED> struct Weights {
    static constexpr bool EARLY = ALIGNED && sizeof(T) == 2;
    Vec8<T> early[EARLY ? HELD : 1];
    template <class W> static __device__ __forceinline__ Vec8<W> of(const Norm& n, u32 col, u32 cols) {
        return col < cols ? load<ALIGNED>((const W*)n.weight + col) : zero8<W>();
    }
    __device__ __forceinline__ void ask(const Norm& n, u32 cols) {
        if constexpr (EARLY) {
            if (n.weight_f32) return;
            const Columns column_of;
#pragma unroll
            for (int i = 0; i < HELD; i++) early[i] = of<T>(n, column_of(i), cols);
        }
    }
    // Of all vectors. (No lambda for both branches: a generic one is a host function to NVRTC.)
    __device__ __forceinline__ void norm(const Norm& n, const Vec8<T> (&held)[HELD], u32 cols, float rstd, float (&v)[HELD][8]) const {
        const Columns column_of;
        float w[8];
        if (n.weight_f32) {
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                unpack(of<float>(n, column_of(i), cols), w);
                normed(held[i], rstd, w, v[i]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < HELD; i++) {
                unpack(EARLY ? early[EARLY ? i : 0] : of<T>(n, column_of(i), cols), w);
                normed(held[i], rstd, w, v[i]);
            }
        }
    }
};

// The row stays in registers.
template <class T, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void norm_held(const CastSource& x, const Norm& n, const CastRule& rule, const CastOut& out) {
    __shared__ float trees[MOST_TREES], scratch[32];
    begin();
    const u64 row = blockIdx.x;
    const u32 cols = x.cols;
    const Row<T, ALIGNED> memory(x, n, row);
    const Columns column_of;
    Vec8<T> held[HELD];
    Weights<T, ALIGNED> weights;
    // All that is read is asked for before any of it is waited for, but weights, behind the sum with a residual: beside that, registers spilled.
#pragma unroll
    for (int i = 0; i < HELD; i++) held[i] = memory.of_x(column_of(i));
    if (n.residual) {
        Vec8<T> residual[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++) residual[i] = memory.of_residual(column_of(i));
#pragma unroll
        for (int i = 0; i < HELD; i++) memory.add(held[i], residual[i], column_of(i));
    }
    weights.ask(n, cols);
    // Each tree is over sixteen lanes.
    float tree[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) tree[i] = squares(held[i]);
    exchange<HELD, 8>(tree, [](float a, float b) { return __fadd_rn(a, b); });
    if (threadIdx.x % 4 == 0) trees[threadIdx.x / 4 % HELD * (blockDim.x / 16) + threadIdx.x / 16] = tree[0];
    __syncthreads();
    // Every warp adds them up, eight lanes the trees of a sum each.
    float sum = 0.0f;
#pragma unroll
    for (u32 c = 0; c < MOST_TREES; c += 8) sum = __fadd_rn(sum, c < HELD * blockDim.x / 16 ? trees[c + threadIdx.x % 8] : 0.0f);
    const float rstd = row_factor(n, lanes_sum<8>(sum), row, cols);
    if (!out.scales) return;

    float v[HELD][8];
    weights.norm(n, held, cols, rstd, v);
    const u32 shift = out.grid.col_shift;
    if (shift == 7) cast_groups<FORMAT, 7>(v, row, cols, rule, out);
    else if (shift == 6) cast_groups<FORMAT, 6>(v, row, cols, rule, out);
    else if (shift == 5) cast_groups<FORMAT, 5>(v, row, cols, rule, out);
    else if (shift == 4) cast_groups<FORMAT, 4>(v, row, cols, rule, out);
    else {
        const Columns column_of;
        float amax = 0.0f;
        bool clean = true;
#pragma unroll
        for (int i = 0; i < HELD; i++) amax = amax_of<FORMAT>(Numbers{v[i]}, amax, clean);
        const GroupScale s = cast_scale<FORMAT>(rule, block_max(amax, scratch));
        if (threadIdx.x == 0) store_scale(out.grid, out.scales, row, 0, s.scale);
        const bool bounded = clean && is_factor(s.encode);
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (column_of(i) < cols) store_codes<FORMAT>(out.codes, row * cols + column_of(i), Numbers{v[i]}, s.encode, bounded);
    }
}

// The row is read again.
template <class T, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void norm_long(const CastSource& x, const Norm& n, const CastRule& rule, const CastOut& out) {
    __shared__ float sums[8], scratch[32];
    begin();
    const u64 row = blockIdx.x;
    const Row<T, ALIGNED> memory(x, n, row);
    const u32 cols = x.cols, step = 8 * LONG_THREADS, steps = (cols + step - 1) / step;
    const auto column = [&](u32 i) { return threadIdx.x * 8 + i * step; };
    const auto input = [&](u32 i, bool first) {
        if (!first && n.sum) return column(i) < cols ? reload((const T*)memory.sum + column(i)) : zero8<T>();
        Vec8<T> data = memory.of_x(column(i));
        if (n.residual) memory.add(data, memory.of_residual(column(i)), column(i));
        return data;
    };
    // Each thread adds up trees of its own.
    float sum = 0.0f;
    for (u32 i = 0; i < steps; i++) sum = __fadd_rn(sum, lanes_sum<16>(squares(input(i, true))));
    if (threadIdx.x % 16 == 0) sums[threadIdx.x / 16] = sum;
    __syncthreads();
    const float rstd = row_factor(n, sum_of_eight(sums, 1), row, cols);
    if (!out.scales) return;
    const auto values = [&](u32 i, float (&v)[8]) {
        const Vec8<T> data = input(i, false);
        float w[8] = {};
        if (column(i) < cols) column_weights<T, ALIGNED>(n.weight, n.weight_f32, column(i), w);
        normed(data, rstd, w, v);
    };
    const u32 shift = out.grid.col_shift;
    float v[8];
    if (shift == 31) {
        float amax = 0.0f;
        bool clean = true;
        for (u32 i = 0; i < steps; i++) {
            values(i, v);
            amax = amax_of<FORMAT>(Numbers{v}, amax, clean);
        }
        const GroupScale s = cast_scale<FORMAT>(rule, block_max(amax, scratch));
        if (threadIdx.x == 0) store_scale(out.grid, out.scales, row, 0, s.scale);
        for (u32 i = 0; i < steps; i++) {
            if (column(i) >= cols) return;
            values(i, v);
            store_codes<FORMAT>(out.codes, row * cols + column(i), Numbers{v}, s.encode, clean && is_factor(s.encode));
        }
        return;
    }
    // A group is so many neighbouring lanes.
    const u32 lanes = 1u << (shift - 3);
    for (u32 i = 0; i < steps; i++) {
        values(i, v);
        bool clean = true;
        float amax = amax_of<FORMAT>(Numbers{v}, 0.0f, clean);
        for (u32 step = lanes / 2; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, step));
        const GroupScale s = cast_scale<FORMAT>(rule, amax);
        if (column(i) >= cols) continue;
        if (threadIdx.x % lanes == 0) store_scale(out.grid, out.scales, row, column(i) >> shift, s.scale);
        store_codes<FORMAT>(out.codes, row * cols + column(i), Numbers{v}, s.encode, clean && is_factor(s.encode));
    }
}

// BLOCKS of a multiprocessor fit without spilling.
#define RMS_NORM(name, T, ALIGNED, KIND, THREADS, BLOCKS)                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) rms_norm_##KIND##_##name(CastSource x, Norm n, CastRule rule, CastOut out) { \
        if (rule.format == E4M3) norm_##KIND<T, ALIGNED, E4M3>(x, n, rule, out);                                          \
        else norm_##KIND<T, ALIGNED, E2M1>(x, n, rule, out);                                                              \
    }
// Aligned rows of 16 bits in as few registers as three blocks of 288 threads ask for, so that four of 7168 columns fit: on sm_90 their rows take 10 % less
// than with three of more registers (observed: H200, 2026-11).
#define RMS_NORM_HELD(name, T, ALIGNED, ...) \
    RMS_NORM(name, T, ALIGNED, held, (ALIGNED && sizeof(T) == 2 ? 288 : HELD_THREADS), (ALIGNED && sizeof(T) == 2 ? 3 : 2))
#define RMS_NORM_LONG(name, T, ALIGNED, ...) RMS_NORM(name, T, ALIGNED, long, LONG_THREADS, 4)
FOR_EACH_TYPE(RMS_NORM_HELD, )
FOR_EACH_TYPE(RMS_NORM_LONG, )
