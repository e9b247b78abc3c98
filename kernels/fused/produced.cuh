// What is computed of a plain matrix and cast without being stored. Mirror of src/reference/producers; compiled without contraction, so
// the bytes are equal.
#pragma once
#include "base/activation.cuh"
#include "cast/maximum.cuh"

// What it is, as the kernels receive it (src/gpu/kernels/cast_call.rs).
constexpr u32 SWIGLU = 0;  // of [l | r]: silu(l) * r, times the row's weight
constexpr u32 SILU = 1;
constexpr u32 GELU = 2;
constexpr u32 GELU_TANH = 3;
constexpr u32 NORMED = 4;  // x times its row's weight, times its column's

// Eight factors of columns.
template <class T, bool ALIGNED> __device__ __forceinline__ void column_weights(const void* weights, u32 f32, u32 col, float (&w)[8]) {
    if (f32) unpack(load<ALIGNED>((const float*)weights + col), w);
    else unpack(load<ALIGNED>((const T*)weights + col), w);
}

// Which of them a kernel has: all, SWIGLU, those that have no gate, SWIGLU without clamp and weights, or those that have no gate, without options.
constexpr int mixed = 0;
constexpr int gated = 1;
constexpr int single = 2;
constexpr int bare = 3;
constexpr int ungated = 4;

template <class T, bool ALIGNED, int KINDS = mixed> struct Produced {
    // What two halves of so many rows take in registers.
    static constexpr int BATCH = sizeof(T) == 4 ? 2 : 4;
    static constexpr bool EXPERTS = true;
    struct At {
        const T *x, *gate;
    };
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) {
        const T* x = once((const T*)s.x + (u32)row * s.stride + col);
        return {x, once(x + s.cols)};
    }
    static __device__ __forceinline__ At here(const CastSource&, const At& at) { return at; }
    static __device__ __forceinline__ At down(const CastSource& s, const At& at, u32 rows) { return {once(at.x + rows * s.stride), once(at.gate + rows * s.stride)}; }
    Vec8<T> x, gate;
    float v[8];
    __device__ __forceinline__ void load(const CastSource& s, const At& at, u32 offset, bool inside) {
        x = inside ? ::load<ALIGNED>(at.x + offset) : zero8<T>();
        gate = inside && (KINDS == gated || KINDS == bare || (KINDS == mixed && s.producer.kind == SWIGLU)) ? ::load<ALIGNED>(at.gate + offset) : zero8<T>();
    }
    // Of SwiGLU without options zeros, which are what is loaded past an end, are computed to zeros: no branch keeps vectors apart.
    __device__ __forceinline__ void open(const CastSource& s, const At&, u32, int row, u32 col, bool first) { compute<KINDS != bare>(s, row, col, first); }
    // ENDS: with a test of what lies past an end; numbers stay in fewer registers, and are unpacked twice.
    template <bool ENDS> __device__ __forceinline__ void compute(const CastSource& s, int row, u32 col, bool first) {
        const Producer& p = s.producer;
        const u32 kind = KINDS == gated || KINDS == bare ? SWIGLU : p.kind;
        constexpr bool OPTIONS = KINDS != bare && KINDS != ungated;
        if (ENDS && (row < 0 || col >= s.cols)) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = 0.0f;
            return;
        }
        if (KINDS != gated && KINDS != bare && kind == GELU) {
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = gelu_erf(element(x, i));
        } else if (kind == NORMED) {
            const float rstd = __ldg(p.weights + row);
            float w[8];
            column_weights<T, ALIGNED>(p.columns, p.columns_f32, col, w);
#pragma unroll
            for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(element(x, i), rstd), w[i]);
        } else {
            float r[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = element(x, i);
                r[i] = element(gate, i);
            }
            if (OPTIONS && p.clamped) {
                u32 beyond = 0;  // a byte for each count
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    // A NaN is not beyond, and stays.
                    if (v[i] > p.clamp) v[i] = p.clamp, beyond += 1;
                    if (r[i] > p.clamp) r[i] = p.clamp, beyond += 0x100;
                    else if (r[i] < -p.clamp) r[i] = -p.clamp, beyond += 0x10000;
                }
                if (p.counts && first && beyond) {
#pragma unroll
                    for (int i = 0; i < 3; i++)
                        if (beyond >> 8 * i & 0xFF) atomicAdd(p.counts + i, (u64)(beyond >> 8 * i & 0xFF));
                }
            }
            // Where the sigmoid's argument is NaN so is what is multiplied.
            if (!ENDS) {
                silus(v);
            } else {
                float sigma[8];
                if (kind == GELU_TANH) {
                    float argument[8];
#pragma unroll
                    for (int i = 0; i < 8; i++) argument[i] = gelu_tanh_argument(v[i]);
                    sigmoids(argument, sigma);
                } else {
                    sigmoids(v, sigma);
                }
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], sigma[i]);
            }
            if (KINDS != single && KINDS != ungated && kind == SWIGLU) {
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], r[i]);
            }
            if (OPTIONS && p.weights) {
                const float weight = __ldg(p.weights + row);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], weight);
            }
        }
    }
    __device__ __forceinline__ float value(int i) const { return v[i]; }
    __device__ __forceinline__ u32 signs(int k) const { return signs4(v, k); }
    __device__ __forceinline__ void forget() {}
};

// SwiGLU as casts per channel read it: rounded to BF16, and kept so from amax to codes, in half of the registers and with BF16's maximum. KINDS: gated or bare.
template <class T, bool ALIGNED, int KINDS> struct Rounded {
    // Fewer rows in flight are outweighed by one block more that fits (patch_blocks).
    static constexpr int BATCH = 2;
    static constexpr bool EXPERTS = true;
    using Of = Produced<T, ALIGNED, KINDS>;
    using At = typename Of::At;
    static __device__ __forceinline__ At at(const CastSource& s, int row, u32 col) { return Of::at(s, row, col); }
    static __device__ __forceinline__ At here(const CastSource&, const At& at) { return at; }
    static __device__ __forceinline__ At down(const CastSource& s, const At& at, u32 rows) { return Of::down(s, at, rows); }
    Of of;
    Vec8<Bf16> v;
    __device__ __forceinline__ void load(const CastSource& s, const At& at, u32 offset, bool inside) { of.load(s, at, offset, inside); }
    __device__ __forceinline__ void open(const CastSource& s, const At& at, u32 offset, int row, u32 col, bool first) {
        of.template compute<true>(s, row, col, first);
        v = pack8<Bf16>(of.v);
    }
    __device__ __forceinline__ float value(int i) const { return element(v, i); }
    __device__ __forceinline__ u32 signs(int k) const { return signs4(v, k); }
    __device__ __forceinline__ void forget() { ::forget(v); }
};
template <class T, bool ALIGNED, int KINDS, u32 FORMAT>
struct Maximum<Rounded<T, ALIGNED, KINDS>, FORMAT> : NarrowMaximum<Rounded<T, ALIGNED, KINDS>, Bf16> {};

// Where a step would spill: other GPUs than sm_90 have no register for it.
template <bool ALIGNED, int KINDS> constexpr bool steps<Produced<float, ALIGNED, KINDS>> = false;
template <bool ALIGNED, int KINDS> constexpr bool steps<Rounded<float, ALIGNED, KINDS>> = false;

#define PRODUCED(name, T, ALIGNED, KERNEL, ...) KERNEL(produced_##name, (Produced<T, ALIGNED>), __VA_ARGS__)
#define UNGATED(name, T, ALIGNED, KERNEL, ...) KERNEL(ungated_##name, (Produced<T, ALIGNED, ungated>), __VA_ARGS__)
#define ROUNDED(name, T, ALIGNED, KERNEL, ...) KERNEL(gated_##name, (Rounded<T, ALIGNED, gated>), __VA_ARGS__)
