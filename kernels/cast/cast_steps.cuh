// Casts of E4M3 codes to E2M1 in groups of 32, 64 or 128 columns, each within one group of the source, of a matrix without gaps whose scales are FP32 by rows: by thresholds.
#pragma once
#include "cast/maximum.cuh"
#include "cast/thresholds.cuh"

// Thirty-two neighbours, as magnitudes of even and of odd elements of each eight, and their signs where those of E2M1 codes are.
struct Magnitudes {
    u32 even[4], odd[4], signs[4];
    __device__ __forceinline__ explicit Magnitudes(const u32 (&words)[8]) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 lower = __byte_perm(words[2 * k], words[2 * k + 1], 0x6420), upper = __byte_perm(words[2 * k], words[2 * k + 1], 0x7531);
            even[k] = lower & MAGNITUDES;
            odd[k] = upper & MAGNITUDES;
            asm("" : "+r"(even[k]), "+r"(odd[k]));
            signs[k] = (upper & 0x80808080u) | (lower >> 4 & 0x08080808u);
        }
    }
    __device__ __forceinline__ u32 largest() const {
        u32 m = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) m = max_u16x2(max_u16x2(m, max_u16x2(even[k], even[k] << 8)), max_u16x2(odd[k], odd[k] << 8));
        return max(m, m << 16) >> 24;
    }
    __device__ __forceinline__ u32 codes(int k, const Ladder& l) const {
        const PlaceBits low(even[k], l), high(odd[k], l);
        u32 codes = signs[k] | (high.fours >> 1 & 0x40404040u);
        codes |= high.twos >> 2 & 0x20202020u;
        codes |= high.ones >> 3 & 0x10101010u;
        codes |= low.fours >> 5 & 0x04040404u;
        codes |= low.twos >> 6 & 0x02020202u;
        return codes | (low.ones >> 7 & 0x01010101u);
    }
};

__device__ __forceinline__ void load_words(bool inside, const uint4* p, u32 (&words)[8]) {
    const uint4 a = load_if(inside, p), b = load_if(inside, p + 1);
    words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
    words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
}

// A thread has 32 neighbours in each of two PIECES; SHIFT: log2 of a group's columns.
constexpr int PIECES = 2;
constexpr u32 STEPS_THREADS = 128;
template <int SHIFT> struct Steps32 {
    static constexpr u32 LANES = (1 << SHIFT) / 32;          // that share a group
    static constexpr int OWN = LANES == 1 ? 2 : 1;           // groups that a lane makes the factors of
    static constexpr u32 TWINS = LANES == 1 ? 1 : LANES / 2;  // lanes that make the same
    static __device__ __forceinline__ u32 second() { return threadIdx.x / TWINS % 2; }
    // The piece of a lane's i-th own group.
    static __device__ __forceinline__ u32 own(int i) { return LANES == 1 ? i : second(); }
    template <class T, class JOIN> static __device__ __forceinline__ void join(T (&of_pieces)[PIECES], JOIN larger) {
        exchange<(LANES == 1 ? 1 : PIECES), LANES / 2>(of_pieces, larger);
    }
    template <class T> static __device__ __forceinline__ void spread(const T (&own)[OWN], T (&of_pieces)[PIECES]) {
#pragma unroll
        for (int p = 0; p < PIECES; p++) of_pieces[p] = LANES == 1 ? own[p % OWN] : __shfl_sync(0xFFFFFFFFu, own[0], threadIdx.x % 32 / LANES * LANES + p * TWINS);
    }
};

// What has no thresholds, or not those: by products, from memory again. Rare, and called.
template <int SHIFT> __device__ __noinline__ void cast_steps_far(const CastSource* source, u32 start, u32 n, const CastRule* rule, const CastOut* out) {
    using Of = Steps32<SHIFT>;
    Sixteen<E4M3, true> data[PIECES][2];
    float m[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 first = start + p * STEPS_THREADS * 32;
        m[p] = 0.0f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            data[p][h].load(Sixteen<E4M3, true>::at(*source, 0, first + 16 * h), first < n);
            m[p] = amax_without_nan(data[p][h], m[p]);
        }
    }
    Of::join(m, [](float a, float b) { return fmaxf(a, b); });
    float encode[Of::OWN], of_pieces[PIECES];
#pragma unroll
    for (int i = 0; i < Of::OWN; i++) {
        const GroupScale s = cast_scale<E2M1>(*rule, m[i]);
        const u32 first = start + Of::own(i) * STEPS_THREADS * 32;
        if (threadIdx.x % Of::TWINS == 0 && first < n) ((float*)out->scales)[first >> SHIFT] = s.scale;
        encode[i] = s.encode;
    }
    Of::spread(encode, of_pieces);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 first = start + p * STEPS_THREADS * 32;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (first < n) store_piece(out->codes + first / 2 + 8 * h, codes_of<E2M1, false>(data[p][h], of_pieces[p]));
    }
}

template <int SHIFT> __device__ __forceinline__ void cast_steps(const CastSource& source, u32 n, const CastRule& rule, const CastOut& out) {
    using Of = Steps32<SHIFT>;
    const u32 start = blockIdx.x * (PIECES * STEPS_THREADS * 32) + threadIdx.x * 32;
    begin();
    u32 words[PIECES][8];
    float s[PIECES];
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 first = start + p * STEPS_THREADS * 32;
        load_words(first < n, (const uint4*)((const u8*)source.x + first), words[p]);
        s[p] = __uint_as_float(load_if(first < n, (const u32*)source.scales + (first >> source.grid.col_shift)));
    }
    const Magnitudes data[PIECES] = {Magnitudes(words[0]), Magnitudes(words[1])};
    // Where a group has one scale its largest number is that of the largest code.
    u32 m[PIECES] = {data[0].largest(), data[1].largest()};
    Of::join(m, [](u32 a, u32 b) { return max(a, b); });
    bool clean = true;
    float written[Of::OWN];
    u32 four[Of::OWN], of_pieces[PIECES];
#pragma unroll
    for (int i = 0; i < Of::OWN; i++) {
        const float of_group = Of::OWN == 2 ? s[i] : Of::second() ? s[1] : s[0];
        float largest, other;
        decode_pair(E4M3, m[i], largest, other);
        const float most = __fmul_rn(largest, of_group), amax = fabsf(most);
        const GroupScale scale = cast_scale<E2M1>(rule, amax);
        written[i] = scale.scale;
        clean = clean && amax <= 3.402823466e38f && is_factor(scale.encode);
        const bool all = first_thresholds(of_group, scale.encode, four[i]) && has_thresholds(of_group, scale.encode);
        // +0 where all codes are zeros, or too small for their scale: all products are zeros of their codes' signs, and every threshold is above the largest code. -0: the scale has a sign.
        clean = clean && (all || __float_as_uint(most) == 0);
    }
    if (!__all_sync(0xFFFFFFFFu, clean)) return cast_steps_far<SHIFT>(&source, start, n, &rule, &out);
#pragma unroll
    for (int i = 0; i < Of::OWN; i++) {
        const u32 first = start + Of::own(i) * STEPS_THREADS * 32;
        if (threadIdx.x % Of::TWINS == 0 && first < n) ((float*)out.scales)[first >> SHIFT] = written[i];
    }
    Of::spread(four, of_pieces);
    const u32 one = blockDim.x / STEPS_THREADS, sixteen = blockDim.x / (STEPS_THREADS / 16);
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 first = start + p * STEPS_THREADS * 32;
        const Ladder ladder(of_pieces[p], one, sixteen);
        const uint4 codes = {data[p].codes(0, ladder), data[p].codes(1, ladder), data[p].codes(2, ladder), data[p].codes(3, ladder)};
        if (first < n) store_piece(out.codes + first / 2, codes);
    }
}

#if __CUDA_ARCH__ == 900
constexpr u32 STEPS_BLOCKS = 8;
#else
constexpr u32 STEPS_BLOCKS = 4;
#endif
#define CAST_STEPS(SHIFT)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(STEPS_THREADS, STEPS_BLOCKS) cast_steps_##SHIFT##_e4m3(                  \
        const __grid_constant__ CastSource source, u32 rows, u32 cols, const __grid_constant__ CastRule rule, const __grid_constant__ CastOut out) \
    { cast_steps<SHIFT>(source, cols, rule, out); }
