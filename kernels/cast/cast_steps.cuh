// Casts of E4M3 codes to E2M1 in groups of 16, 32, 64 or 128 columns, each within one group of the source, of a matrix without gaps whose scales are FP32 by rows: by thresholds.
#pragma once
#include "cast/maximum.cuh"
#include "cast/thresholds.cuh"

// The highest bits of bytes of both words in turns, from `odd` where they are and from `even` four below; the rest is junk.
__device__ __forceinline__ u32 in_turns(u32 odd, u32 even) { return (odd & 0x80808080u) | (even >> 4 & 0x7F7F7F7Fu); }

// Thirty-two neighbours, as magnitudes of even and of odd elements of each eight, and their signs, where those of E2M1 codes are (beside junk).
struct Magnitudes {
    u32 even[4], odd[4], signs[4];
    __device__ __forceinline__ void of(const u32 (&words)[8]) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 lower = __byte_perm(words[2 * k], words[2 * k + 1], 0x6420), upper = __byte_perm(words[2 * k], words[2 * k + 1], 0x7531);
            even[k] = lower & MAGNITUDES;
            odd[k] = upper & MAGNITUDES;
            asm("" : "+r"(even[k]), "+r"(odd[k]));
            signs[k] = in_turns(upper, lower);
        }
    }
    // Of COUNT eights from the FROM-th on.
    template <int COUNT> __device__ __forceinline__ u32 largest(int from) const {
        u32 m = 0;
#pragma unroll
        for (int k = from; k < from + COUNT; k++) m = max_u16x2(max_u16x2(m, max_u16x2(even[k], even[k] << 8)), max_u16x2(odd[k], odd[k] << 8));
        return max(m, m << 16) >> 24;
    }
    __device__ __forceinline__ u32 codes(int k, const Ladder& l) const {
        const PlaceBits low(even[k], l), high(odd[k], l);
        // Each step moves what is there one place to the right, in halves of bytes, and puts a bit above it: junk has left when the fourth is there.
        u32 codes = in_turns(high.ones, low.ones);
        codes = (in_turns(high.twos, low.twos) & 0x88888888u) | (codes >> 1 & 0x77777777u);
        codes = (in_turns(high.fours, low.fours) & 0x88888888u) | (codes >> 1 & 0x77777777u);
        return (signs[k] & 0x88888888u) | (codes >> 1 & 0x77777777u);
    }
};

__device__ __forceinline__ void load_words(bool inside, const uint4* p, u32 (&words)[8]) {
    const uint4 a = load_if(inside, p), b = load_if(inside, p + 1);
    words[0] = a.x, words[1] = a.y, words[2] = a.z, words[3] = a.w;
    words[4] = b.x, words[5] = b.y, words[6] = b.z, words[7] = b.w;
}

// A thread has 32 neighbours in each of its PIECES, one or two; SHIFT: log2 of a group's columns. PARTS are what it has of groups: whole pieces, or their halves.
constexpr u32 STEPS_THREADS = 128, APART = STEPS_THREADS * 32;  // elements from a thread's piece to its next
template <int SHIFT> struct Steps32 {
    static constexpr int PIECES = SHIFT < 6 ? 1 : 2, OF_PIECE = SHIFT == 4 ? 2 : 1, PARTS = PIECES * OF_PIECE, EIGHTS = 4 / OF_PIECE;
    static constexpr u32 LANES = SHIFT == 4 ? 1 : (1 << SHIFT) / 32;  // that share a group
    static constexpr int OWN = LANES == 1 ? PARTS : 1;                // groups that a lane makes the factors of
    static constexpr u32 TWINS = LANES == 1 ? 1 : LANES / PIECES;      // lanes that make the same
    static_assert(OWN == 1 || PIECES == 1, "a lane's own groups are of one piece");
    // The piece of a lane's own groups, and the i-th group's first column in it.
    static __device__ __forceinline__ u32 own() { return PIECES == 1 ? 0 : threadIdx.x / TWINS % 2; }
    static __device__ __forceinline__ u32 right(int i) { return LANES == 1 ? i % OF_PIECE << SHIFT : 0; }
    template <class T, class JOIN> static __device__ __forceinline__ void join(T (&of_parts)[PARTS], JOIN larger) {
        if constexpr (LANES > 1) exchange<PARTS, LANES / 2>(of_parts, larger);
    }
    template <class T> static __device__ __forceinline__ void spread(const T (&own)[OWN], T (&of_parts)[PARTS]) {
#pragma unroll
        for (int p = 0; p < PARTS; p++) of_parts[p] = OWN == PARTS ? own[p % OWN] : __shfl_sync(0xFFFFFFFFu, own[0], threadIdx.x % 32 / LANES * LANES + p * TWINS);
    }
};

// What has no thresholds, or not those: by products, from memory again. Rare, and called.
template <int SHIFT> __device__ __noinline__ void cast_steps_far(const CastSource* source, u32 start, u32 n, const CastRule* rule, const CastOut* out) {
    using Of = Steps32<SHIFT>;
    Sixteen<E4M3, true> data[Of::PIECES][2];
    float m[Of::PARTS] = {};
#pragma unroll
    for (int p = 0; p < Of::PIECES; p++) {
        const u32 first = start + p * APART;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            data[p][h].load(Sixteen<E4M3, true>::at(*source, 0, first + 16 * h), first < n);
            float& of_part = m[p * Of::OF_PIECE + h % Of::OF_PIECE];
            of_part = amax_without_nan(data[p][h], of_part);
        }
    }
    Of::join(m, [](float a, float b) { return fmaxf(a, b); });
    float encode[Of::OWN], of_parts[Of::PARTS];
    const u32 first = start + Of::own() * APART;
#pragma unroll
    for (int i = 0; i < Of::OWN; i++) {
        const GroupScale s = cast_scale<E2M1>(*rule, m[i]);
        if (threadIdx.x % Of::TWINS == 0 && first < n) ((float*)out->scales)[(first + Of::right(i)) >> SHIFT] = s.scale;
        encode[i] = s.encode;
    }
    Of::spread(encode, of_parts);
#pragma unroll
    for (int p = 0; p < Of::PIECES; p++) {
        const u32 first = start + p * APART;
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (first < n) store_piece(out->codes + first / 2 + 8 * h, codes_of<E2M1, false>(data[p][h], of_parts[p * Of::OF_PIECE + h % Of::OF_PIECE]));
    }
}

// A thread's pieces of the source, on their way, and their scales.
template <int PIECES> struct Asked {
    u32 words[PIECES][8];
    float scales[PIECES];
    __device__ __forceinline__ void ask(const CastSource& source, u32 start, u32 n) {
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const u32 first = start + p * APART;
            load_words(first < n, (const uint4*)((const u8*)source.x + first), words[p]);
            scales[p] = __uint_as_float(load_if(first < n, (const u32*)source.scales + (first >> source.grid.col_shift)));
        }
    }
};

// The pieces from `start` on, of magnitudes `data` under scales s.
template <int SHIFT, class Of = Steps32<SHIFT>>
__device__ __forceinline__ void cast_pieces(const Magnitudes (&data)[Of::PIECES], const float (&s)[Of::PIECES], const CastSource& source, u32 start, u32 n, const CastRule& rule, const CastOut& out) {
    // Where a group has one scale its largest number is that of the largest code.
    u32 m[Of::PARTS];
#pragma unroll
    for (int p = 0; p < Of::PARTS; p++) m[p] = data[p / Of::OF_PIECE].template largest<Of::EIGHTS>(p % Of::OF_PIECE * Of::EIGHTS);
    Of::join(m, [](u32 a, u32 b) { return max(a, b); });
    bool clean = true;
    const float of_group = Of::own() ? s[Of::PIECES - 1] : s[0];
    float a[Of::OWN], least = 3.402823466e38f;
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < Of::OWN; i++) {
        float largest, other;
        decode_pair(E4M3, m[i], largest, other);
        a[i] = fmaxf(__fmul_rn(largest, of_group), rule.floor);
        least = fminf(least, a[i]);
        most = max(most, m[i]);
        clean = clean && has_ladder(m[i]);
    }
    // A NaN is the largest code.
    clean = clean && most != 0x7F && has_thresholds(of_group);
    if (!__all_sync(0xFFFFFFFFu, clean)) return cast_steps_far<SHIFT>(&source, start, n, &rule, &out);
    GroupScale scale[Of::OWN];
#pragma unroll
    for (int i = 0; i < Of::OWN; i++) scale[i] = cast_scale_near<E2M1>(a[i]);
    // A code times a scale that has thresholds is less than 4.5e29; a floor may be more. Of a floor y is a quarter at most, and all codes 0, only from about 24 times that on, 1.07e31. Below, the
    // factor counts, and is right: it is up to 8.5e37. The scale is right of every floor.
    if (least <= 1e-30f) {
#pragma unroll
        for (int i = 0; i < Of::OWN; i++) scale[i] = cast_scale_far(a[i], largest_number<E2M1>);
    }
    if (rule.pow2) {
#pragma unroll
        for (int i = 0; i < Of::OWN; i++) scale[i] = power_above(scale[i].scale);
    }
    u32 below[Of::OWN], of_parts[Of::PARTS];
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(of_group));
#pragma unroll
    for (int i = 0; i < Of::OWN; i++) below[i] = below_thresholds(of_group, scale[i].encode, __fmul_rn(scale[i].scale, inverse));
    const u32 own = start + Of::own() * APART;
    if (threadIdx.x % Of::TWINS == 0 && own < n) {
        float* const to = (float*)out.scales + (own >> SHIFT);
        // Two neighbours at once.
        if constexpr (Of::OWN == 2) *(float2*)to = {scale[0].scale, scale[1].scale};
        else *to = scale[0].scale;
    }
    Of::spread(below, of_parts);
    const u32 one = blockDim.x / STEPS_THREADS, sixteen = blockDim.x / (STEPS_THREADS / 16);
#pragma unroll
    for (int p = 0; p < Of::PIECES; p++) {
        const u32 first = start + p * APART;
        u32 codes[4];
#pragma unroll
        for (int h = 0; h < Of::OF_PIECE; h++) {
            const Ladder ladder(of_parts[p * Of::OF_PIECE + h], one, sixteen);
#pragma unroll
            for (int k = h * Of::EIGHTS; k < (h + 1) * Of::EIGHTS; k++) codes[k] = data[p].codes(k, ladder);
        }
        if (first < n) store_piece(out.codes + first / 2, uint4{codes[0], codes[1], codes[2], codes[3]});
    }
}

// Blocks that stay, and ask for their next pieces before they cast what has come: 0.91 to 1.01 of the time of as many blocks as there are pieces, the less the fewer there are (H200, 2026-11).
template <int SHIFT> __device__ __forceinline__ void cast_steps(const CastSource& source, u32 n, const CastRule& rule, const CastOut& out) {
    using Of = Steps32<SHIFT>;
    const u32 further = gridDim.x * (Of::PIECES * APART);
    begin();
    Asked<Of::PIECES> asked;
    u32 start = blockIdx.x * (Of::PIECES * APART) + threadIdx.x * 32;
    asked.ask(source, start, n);
    // All of a block's threads have as many turns.
    for (; start - threadIdx.x * 32 < n; start += further) {
        Magnitudes data[Of::PIECES];
        float s[Of::PIECES];
#pragma unroll
        for (int p = 0; p < Of::PIECES; p++) data[p].of(asked.words[p]), s[p] = asked.scales[p];
        asked.ask(source, start + further, n);
        cast_pieces<SHIFT>(data, s, source, start, n, rule, out);
    }
}

// Of a multiprocessor, without spilling; mirrored in src/gpu/kernels/cast.rs.
#if __CUDA_ARCH__ == 900
template <int PIECES> constexpr u32 STEPS_BLOCKS = PIECES == 1 ? 9 : 5;
#else
template <int PIECES> constexpr u32 STEPS_BLOCKS = 4;
#endif
#define CAST_STEPS(SHIFT)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(STEPS_THREADS, STEPS_BLOCKS<Steps32<SHIFT>::PIECES>) cast_steps_##SHIFT##_e4m3(          \
        const __grid_constant__ CastSource source, u32 rows, u32 cols, const __grid_constant__ CastRule rule, const __grid_constant__ CastOut out) \
    { cast_steps<SHIFT>(source, cols, rule, out); }
