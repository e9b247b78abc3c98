// How max |value| of a source's elements is found: exactly, in FP32 or by integers.
#pragma once
#include "base/exchange.cuh"
#include "cast/source.cuh"

// A maximum of a source's elements. A `Type` holds those of PER neighbouring columns. `of_columns(s, k)` is that of the k-th PER of eight neighbours,
// `with` raises one by all of them, `larger` is that of two. `is_clean`: no NaN was met, and then `amax` gives the number, of all columns or of one of
// them. `of` makes a maximum of numbers.
template <class S, u32 FORMAT> struct Maximum {
    // E4M3 codes do not ask for NaN: it is dropped.
    using Type = float;
    static constexpr int PER = 1;
    static __device__ __forceinline__ float larger(float a, float b) { return FORMAT == E2M1 ? max_or_nan(a, b) : fmaxf(a, b); }
    static __device__ __forceinline__ float of_columns(const S& s, int k) { return fabsf(s.value(k)); }
    static __device__ __forceinline__ float with(float m, const S& s) {
#pragma unroll
        for (int i = 0; i < 8; i++) m = larger(m, of_columns(s, i));
        return m;
    }
    static __device__ __forceinline__ bool is_clean(float m) { return FORMAT != E2M1 || m == m; }
    static __device__ __forceinline__ float of(float amax) { return amax; }
    static __device__ __forceinline__ float amax(float m) { return m; }
    static __device__ __forceinline__ float amax(float m, int) { return m; }
};
// Of codes that share a scale: fl(code * scale) grows with the code.
template <u32 OF, u32 FORMAT> struct Maximum<Coded<OF>, FORMAT> : Maximum<Numbers, E2M1> {
    static __device__ __forceinline__ float of_columns(const Coded<OF>& s, int k) { return fabsf(s.value(k)); }
    static __device__ __forceinline__ float with(float m, const Coded<OF>& s) { return max_or_nan(m, s.largest()); }
};
template <u32 OF, bool FLAT, u32 FORMAT> struct Maximum<Sixteen<OF, FLAT>, FORMAT> : Maximum<Numbers, E2M1> {
    static __device__ __forceinline__ float with(float m, const Sixteen<OF, FLAT>& s) { return max_or_nan(m, s.largest()); }
};
// Patterns of 16-bit numbers order like the magnitudes: an exact maximum by integers, two at a time. S keeps eight of T in `v`.
template <class S, class T> struct NarrowMaximum {
    using Type = u32;
    static constexpr int PER = 2;
    static __device__ __forceinline__ u32 larger(u32 a, u32 b) { return max_u16x2(a, b); }
    static __device__ __forceinline__ u32 of_columns(const S& s, int k) { return word(s.v.q[0], k) & 0x7FFF7FFF; }
    static __device__ __forceinline__ u32 with(u32 m, const S& s) {
#pragma unroll
        for (int k = 0; k < 4; k++) m = larger(m, of_columns(s, k));
        return m;
    }
    static __device__ __forceinline__ bool is_clean(u32 m) { return larger_pattern(m) <= INFINITY16<T>; }
    static __device__ __forceinline__ u32 of(float amax) { return from_float<T>(amax).bits; }
    static __device__ __forceinline__ u32 of(float first, float second) { return of(first) | of(second) << 16; }
    static __device__ __forceinline__ float amax(u32 m) { return larger_half<T>(m); }
    static __device__ __forceinline__ float amax(u32 m, int column) { return to_float(T{(u16)(column ? m >> 16 : m)}); }
};
template <bool ALIGNED, u32 FORMAT> struct Maximum<Plain<Bf16, ALIGNED>, FORMAT> : NarrowMaximum<Plain<Bf16, ALIGNED>, Bf16> {};
template <bool ALIGNED, u32 FORMAT> struct Maximum<Plain<F16, ALIGNED>, FORMAT> : NarrowMaximum<Plain<F16, ALIGNED>, F16> {};
template <class T, u32 FORMAT> struct Maximum<Wide<T>, FORMAT> : Maximum<Plain<T, true>, FORMAT> {
    using Half = Maximum<Plain<T, true>, FORMAT>;
    static __device__ __forceinline__ u32 with(u32 m, const Wide<T>& s) { return Half::with(Half::with(m, s.halves[0]), s.halves[1]); }
};

// max |value| with NaN dropped.
template <class S> __device__ __forceinline__ float amax_without_nan(const S& s, float amax) {
#pragma unroll
    for (int i = 0; i < neighbours<S>; i++) amax = fmaxf(amax, fabsf(s.value(i)));
    return amax;
}
// The maximum of some lanes: of those whose numbers differ from this one's in the bits of LANES alone.
template <class M, u32 LANES> __device__ __forceinline__ typename M::Type lanes_largest(typename M::Type m) {
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2)
        if (LANES & step) m = M::larger(m, __shfl_xor_sync(0xFFFFFFFFu, m, step));
    return m;
}
