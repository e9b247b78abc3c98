// NVFP4 blocks of 16: second level, block scales, codes, 4over6, stochastic rounding, Hadamard transform.
// Mirror of src/format/nvfp4.rs and src/reference/nvfp4.rs, operation by operation. A thread owns a whole block, so that its
// error sums run in order without an exchange.
//
// Most blocks take a short path (`plain_block`, `both_candidates`), right where `in_range` says so; the others, and options
// that no short path knows, take `slow_block`, which follows the formulas literally.
#pragma once
#include "base/e2m1.cuh"
#include "base/layout.cuh"

constexpr float FLT_MAX = 3.402823466e38f;

// How the second level is given, as the kernels receive it (src/gpu/kernels/nvfp4.rs).
constexpr u32 GIVEN_AMAX = 0;
constexpr u32 GIVEN_ENCODE = 1;
constexpr u32 GIVEN_DECODE = 2;
constexpr u32 GIVEN_AMAX_TORCHAO = 3;  // an amax whose scale is fl(amax * fl(1 / six_e)), as PyTorch divides on CUDA

// Block scale rules.
constexpr u32 PLAIN = 0;
constexpr u32 FOUR_OVER_SIX = 1;
constexpr u32 TORCHAO_NV = 2;
constexpr u32 TORCHAO_CPU_NV = 3;

struct Nvfp4Rule {
    float six_e;      // 6 * 448 or 6 * 256
    u32 given;        // GIVEN_*
    u32 rule;         // PLAIN, FOUR_OVER_SIX, TORCHAO_NV or TORCHAO_CPU_NV
    u32 mse;          // 1: squared errors
    u32 strict;       // 1: errors in the units of the data
    u32 tile;         // 1: 16 x 16 elements share a block scale
    u32 hadamard;     // 1: rows are transformed first
    u32 stochastic;   // 1: codes are rounded at random
    u64 seed, offset; // of the random bytes
};

// The second level with what is derived from it once.
struct Second {
    float encode;  // multiplies the data
    float amax;    // for the strict error
    float scale;   // the stored decode factor
    float dec;     // fl(1 / encode)
    float sixth;   // fl(encode * fl(1/6))
    u32 first;     // FP32 patterns first .. first + count - 1: the block maxima for which the short paths are right
    u32 count;
};

__device__ __forceinline__ float at_most_flt_max(float x) { return fminf(x, FLT_MAX); }  // NaN too

// What follows from encode.
__device__ __forceinline__ void derive(Second& s);

// Whether the second level of an amax is what dividing gives: no step leaves the normal range, and `errors_compare`.
__device__ __forceinline__ bool has_plain_second(float amax) { return amax > 1e-18f && amax < 1e25f; }

static __device__ __noinline__ Second second_level(float given, u32 kind, float six_e) {
    Second s;
    if (kind == GIVEN_ENCODE) {
        s.encode = given;
        s.amax = __fdiv_rn(six_e, given);
        s.scale = __frcp_rn(given);
    } else {
        const bool decode = kind == GIVEN_DECODE;
        const float e = at_most_flt_max(decode ? __frcp_rn(given) : __fdiv_rn(six_e, given));
        s.encode = given == 0.0f || e == 0.0f ? 1.0f : e;
        s.amax = decode ? __fmul_rn(given, six_e) : given;
        s.scale = decode                       ? given
                  : kind == GIVEN_AMAX_TORCHAO ? __fmul_rn(given, __frcp_rn(six_e))
                                               : __fdiv_rn(given, six_e);
    }
    s.dec = __frcp_rn(s.encode);
    derive(s);
    if (s.encode != s.encode) s.count = 0;
    return s;
}

__device__ __forceinline__ void derive(Second& s) {
    s.sixth = __fmul_rn(s.encode, 0.16666667f);  // 0x3E2AAAAB
    // The short paths want amax * encode / 6 in [2^-6, 500]: there a block scale is a normal E4M3 number, or 448, and the largest
    // element times the multiplier stays below 7, so that nothing rounds to 8. Within 1e-24 and 1e29 no step of theirs, of
    // the exact division or of the doubt about strict errors leaves the normal range. Zero, infinity and NaN are outside.
    const float lowest = fmaxf(__fmul_rn(0.1f, s.dec), 1e-24f), highest = fminf(__fmul_rn(2900.0f, s.dec), 1e29f);
    s.first = __float_as_uint(lowest);
    s.count = highest > lowest ? __float_as_uint(highest) - s.first : 0;
}

// The same from an amax, in line: every thread of a row does it, which is quicker than waiting for one. Blocks of larger amax, of which a row has none, are not
// served by short paths, so that these need no other bound (`derive`).
__device__ __forceinline__ Second second_of(float amax, float six_e) {
    if (!has_plain_second(amax)) return second_level(amax, GIVEN_AMAX, six_e);
    Second s;
    s.amax = amax;
    s.encode = divide(six_e, amax, reciprocal(amax));
    s.scale = divide(amax, six_e, reciprocal(six_e));
    s.dec = reciprocal(s.encode);
    s.sixth = __fmul_rn(s.encode, 0.16666667f);
    s.first = __float_as_uint(fmaxf(__fmul_rn(0.1f, s.dec), 1e-24f));
    s.count = __float_as_uint(amax) + 1 - s.first;
    return s;
}

__device__ __forceinline__ bool in_range(const Second& second, float amax) { return __float_as_uint(amax) - second.first < second.count; }

// E4M3 codes of two numbers that are not negative, and back.
__device__ __forceinline__ void ue4m3_pair(float lo, float hi, u32& code_lo, u32& code_hi) {
    const u32 pair = encode_pair<E4M3>(lo, hi);
    code_lo = pair & 0xFF;
    code_hi = pair >> 8 & 0xFF;
}
__device__ __forceinline__ float ue4m3_value(u32 code) {
    float lo, hi;
    decode_pair(E4M3, code, lo, hi);
    return lo;
}

__device__ __forceinline__ float multiplier(float s, const Second& second) {
    return at_most_flt_max(__frcp_rn(__fmul_rn(s, second.dec)));
}

// s4 and s6 of a block.
__device__ __forceinline__ void four_over_six_scales(float amax, const Second& second, u32& s4, u32& s6) {
    const float base = __fmul_rn(__fdiv_rn(amax, 6.0f), second.encode);
    ue4m3_pair(fminf(__fmul_rn(base, 1.5f), 448.0f), fminf(base, 448.0f), s4, s6);
}

// The same for amax in range, where the cast's saturation does what the minimum does.
__device__ __forceinline__ u32 scales_in_range(float amax, const Second& second) {
    const float base = __fmul_rn(divide(amax, 6.0f, 0.16666667f), second.encode);
    return encode_pair<E4M3>(__fmul_rn(base, 1.5f), base) & 0xFFFF;
}

// ---- E2M1 ----

// Rounded at random by a byte u: t = fma(u / 256, step(|x|), |x|), down to a multiple of step(t), at most 6.
__device__ __forceinline__ u32 encode_e2m1_stochastic(float x, u32 byte) {
    const float a = fabsf(x);
    if (!(a >= 0.0f)) return 7;
    const float step = a >= 4.0f ? 2.0f : a >= 2.0f ? 1.0f : 0.5f;
    const float t = fminf(__fmaf_rn((float)byte * 0.00390625f, step, a), 6.0f);
    // Codes are what thresholds t has reached: each code's own value.
    const u32 code = (t >= 0.5f) + (t >= 1.0f) + (t >= 1.5f) + (t >= 2.0f) + (t >= 3.0f) + (t >= 4.0f) + (t >= 6.0f);
    return code | (__float_as_uint(x) >> 28 & 8);
}

// Philox4x32-10: counter (offset, block), key seed, each 64 bits with the low word first.
__device__ __forceinline__ uint4 philox(u64 seed, u64 offset, u64 block) {
    u32 c0 = (u32)offset, c1 = (u32)(offset >> 32), c2 = (u32)block, c3 = (u32)(block >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        const u32 d0 = (u32)(p1 >> 32) ^ c1 ^ k0, d2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (u32)p1;
        c3 = (u32)p0;
        c0 = d0;
        c2 = d2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
}

// ---- Blocks ----

template <class T> struct Block { Vec8<T> half[2]; };

template <class T> __device__ __forceinline__ float element(const Block<T>& b, int i) { return element(b.half[i / 8], i % 8); }

template <class T> __device__ __forceinline__ void forget(Block<T>& b) {
    forget(b.half[0]);
    forget(b.half[1]);
}

// Two lanes `APART` load their two neighbouring blocks together, a half of each at a time: a lane that loaded its own 32 bytes
// in two steps would touch every sector of memory twice, and the L2 cache was the limit then (observed: H200, 2026-11).
// `load_halves` gives this lane's half of the even block and of the odd one; `own_block` exchanges them. All lanes of a warp
// come to `own_block` together.
template <u32 APART> __device__ __forceinline__ u32 half_of_lane() { return threadIdx.x / APART % 2; }

// `from`: this lane's half of the even block; that of the odd one is 16 elements on. What is not inside the matrix is left
// alone: no result comes of it.
template <bool ALIGNED, class T>
__device__ __forceinline__ void load_halves(Block<T>& halves, const T* from, bool even, bool odd) {
    if constexpr (ALIGNED) {
        load8_if(even, halves.half[0], from);
        load8_if(odd, halves.half[1], from + 16);
    } else {
        if (even) halves.half[0] = load<ALIGNED>(from);
        if (odd) halves.half[1] = load<ALIGNED>(from + 16);
    }
}

template <u32 APART, class T> __device__ __forceinline__ Block<T> own_block(const Block<T>& halves) {
    const bool odd = half_of_lane<APART>();
    Block<T> own;
#pragma unroll
    for (u32 k = 0; k < sizeof(T) / 2; k++) {
        const uint4 even_half = halves.half[0].q[k], odd_half = halves.half[1].q[k];
        uint4 other = odd ? even_half : odd_half;
        other.x = __shfl_xor_sync(0xFFFFFFFFu, other.x, APART);
        other.y = __shfl_xor_sync(0xFFFFFFFFu, other.y, APART);
        other.z = __shfl_xor_sync(0xFFFFFFFFu, other.z, APART);
        other.w = __shfl_xor_sync(0xFFFFFFFFu, other.w, APART);
        own.half[0].q[k] = odd ? other : even_half;
        own.half[1].q[k] = odd ? odd_half : other;
    }
    return own;
}

template <bool ALIGNED, class T> __device__ __forceinline__ Block<T> load_block(const T* p) {
    return {{load<ALIGNED>(p), load<ALIGNED>(p + 8)}};
}
template <class T> __device__ __forceinline__ Block<T> zero_block() { return {{zero8<T>(), zero8<T>()}}; }

struct Codes {
    uint2 packed;  // 16 codes, element 0 in the lowest four bits
    u32 scale;     // E4M3
};

// max |x| as a pattern of T: NaN counts and is larger than infinity. 16-bit elements are compared as integers, two at a time:
// an exact maximum whatever the compiler makes of packed floats.
template <class T> __device__ __forceinline__ u32 amax_pattern(const Block<T>& b) {
    u32 m = 0;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < 16; i++) m = max(m, __float_as_uint(element(b, i)) & 0x7FFFFFFFu);
        return m;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) m = max_u16x2(m, word(b.half[i / 4].q[0], i % 4) & 0x7FFF7FFFu);
        return max(m >> 16, m & 0xFFFF);
    }
}

// max |x|; NaN or a larger pattern if one is among them.
template <class T> __device__ __forceinline__ float amax_or_nan(const Block<T>& b) {
    const u32 m = amax_pattern(b);
    if constexpr (sizeof(T) == 4) return __uint_as_float(m);
    else return to_float(T{(u16)m});
}

// max |x| with NaN ignored.
template <class T> __device__ __forceinline__ float amax_ignoring_nan(const Block<T>& b) {
    return amax8(b.half[1], amax8(b.half[0], 0.0f));
}

// Sixteen codes from four words of magnitudes (`bytes4`) and the signs of the block.
template <class T> __device__ __forceinline__ uint2 pack(const u32 (&w)[4], const Block<T>& b) {
    u32 n[4];
#pragma unroll
    for (int k = 0; k < 4; k++) n[k] = w[k] * 136 + (signs4(b.half[k / 2], k % 2) & 0x80808080u) * 17;
    return {join8(n[0], n[1]), join8(n[2], n[3])};
}

// Everything by the formulas: any values, any rule. Rarely reached from the fast path; out of line, so that its registers
// and code do not burden it. Second level and rule are copied: the address of the kernel's own would put these into local
// memory in every thread, which cost more bandwidth than all results (observed: H200, 2026-11).
struct SlowBlock {
    Second second;
    Nvfp4Rule rule;
    float x[16];
    float amax;     // of the block, or of its tile
    u64 index;      // of the block in the matrix, for random bytes
    float e4, e6;   // 4over6: errors of the candidates, where they are wanted
    u32 s4, s6;
    uint2 c4, c6;
};

static __device__ __noinline__ uint2 slow_codes(const SlowBlock* b, float inv) {
    u32 words[2] = {0, 0};
    uint4 random = {0, 0, 0, 0};
    if (b->rule.stochastic) random = philox(b->rule.seed, b->rule.offset, b->index);
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const float v = __fmul_rn(b->x[i], inv);
        const u32 r = i < 8 ? (i < 4 ? random.x : random.y) : (i < 12 ? random.z : random.w);
        const u32 code = b->rule.stochastic ? encode_e2m1_stochastic(v, r >> 8 * (i % 4) & 0xFF) : encode_e2m1(v);
        if (i < 8) words[0] |= code << 4 * i; else words[1] |= code << 4 * (i - 8);
    }
    return {words[0], words[1]};
}

// One error sum of 4over6, elements in order.
static __device__ __noinline__ float slow_error(const SlowBlock* b, uint2 codes, float s) {
    float e = 0.0f;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const u32 code = (i < 8 ? codes.x >> 4 * i : codes.y >> 4 * (i - 8)) & 15;
        const float q = code & 8 ? -e2m1_magnitude(code) : e2m1_magnitude(code);
        const float qs = __fmul_rn(q, s);
        float d;
        if (b->rule.strict) d = __fsub_rn(__fdiv_rn(__fmul_rn(qs, b->second.amax), b->rule.six_e), b->x[i]);
        else d = __fsub_rn(qs, __fmul_rn(b->x[i], b->second.encode));
        e = __fadd_rn(e, b->rule.mse ? __fmul_rn(d, d) : fabsf(d));
    }
    return e;
}

static __device__ __noinline__ void slow_candidates(SlowBlock* b) {
    four_over_six_scales(b->amax, b->second, b->s4, b->s6);
    const float v4 = ue4m3_value(b->s4), v6 = ue4m3_value(b->s6);
    b->c4 = slow_codes(b, multiplier(v4, b->second));
    b->c6 = slow_codes(b, multiplier(v6, b->second));
    b->e4 = slow_error(b, b->c4, v4);
    b->e6 = slow_error(b, b->c6, v6);
}

static __device__ __noinline__ Codes slow_block(SlowBlock* b) {
    const Second& second = b->second;
    if (b->rule.rule == FOUR_OVER_SIX) {
        slow_candidates(b);
        return b->e4 < b->e6 ? Codes{b->c4, b->s4} : Codes{b->c6, b->s6};
    }
    Codes out;
    float inv;
    u32 unused;
    if (b->rule.rule >= TORCHAO_NV) {
        const float pts = second.scale == 0.0f ? 1.0f : second.scale;
        const float sixth = b->rule.rule == TORCHAO_NV ? __fmul_rn(b->amax, 0.16666667f) : __fdiv_rn(b->amax, 6.0f);
        const float t = __fdiv_rn(sixth, pts);
        // A NaN stays one.
        ue4m3_pair(t != t ? t : fminf(fmaxf(t, 0.015625f), 448.0f), 0.0f, out.scale, unused);
        inv = __fdiv_rn(__frcp_rn(pts), ue4m3_value(out.scale));
    } else {
        ue4m3_pair(at_most_flt_max(__fmul_rn(b->amax, second.sixth)), 0.0f, out.scale, unused);
        inv = multiplier(ue4m3_value(out.scale), second);
    }
    out.packed = slow_codes(b, inv);
    return out;
}

template <class T>
__device__ __forceinline__ SlowBlock slow_input(const Block<T>& b, float amax, const Second& second, const Nvfp4Rule& rule, u64 index) {
    SlowBlock slow;
    slow.second = second;
    slow.rule = rule;
#pragma unroll
    for (int i = 0; i < 16; i++) slow.x[i] = element(b, i);
    slow.amax = amax;
    slow.index = index;
    return slow;
}

// ---- The short paths: amax `in_range`, no NaN, nearest ----

// Codes of a block, each element times inv, all products below 7 in size.
template <class T> __device__ __forceinline__ uint2 nearest_codes(Block<T>& b, float inv) {
    forget(b);
    u32 codes[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = __fmul_rn(element(b, 8 * h + i), inv);
        codes[h] = encode8_e2m1<true>(y, signs8(signs4(b.half[h], 0), signs4(b.half[h], 1)));
    }
    return {codes[0], codes[1]};
}

// Plain rule. amax: of the block or its tile.
template <class T> __device__ __forceinline__ Codes plain_block(Block<T>& b, float amax, const Second& second) {
    Codes out;
    u32 unused;
    ue4m3_pair(__fmul_rn(amax, second.sixth), 0.0f, out.scale, unused);
    out.packed = nearest_codes(b, reciprocal(__fmul_rn(ue4m3_value(out.scale), second.dec)));
    return out;
}

// torchao's rule, in either way to divide. Its block scales are at least 2^-6, so that small blocks and zeros come here too: `below_range`. The
// second level is what its amax makes (`errors_compare`), not what stands for zero or infinity.
__device__ __forceinline__ bool below_range(const Second& second, float amax) { return second.count && __float_as_uint(amax) < second.first + second.count; }
template <class T> __device__ __forceinline__ Codes torchao_block(Block<T>& b, float amax, const Second& second, const Nvfp4Rule& rule) {
    Codes out;
    u32 unused;
    const float sixth = rule.rule == TORCHAO_NV ? __fmul_rn(amax, 0.16666667f) : __fdiv_rn(amax, 6.0f);
    ue4m3_pair(fminf(fmaxf(__fdiv_rn(sixth, second.scale), 0.015625f), 448.0f), 0.0f, out.scale, unused);
    out.packed = nearest_codes(b, __fdiv_rn(reciprocal(second.scale), ue4m3_value(out.scale)));
    return out;
}

// Plain rule, rounded at random: t = fma(u / 256, step(|v|), |v|), down to a multiple of step(t), at most 6. `magic` of
// `round_scaled` is 2^23 steps, and adding it towards zero rounds down.
template <class T>
__device__ __forceinline__ Codes stochastic_block(Block<T>& b, float amax, const Second& second, const Nvfp4Rule& rule, u64 index) {
    Codes out;
    u32 unused;
    ue4m3_pair(__fmul_rn(amax, second.sixth), 0.0f, out.scale, unused);
    const float scaled = __fmul_rn(reciprocal(__fmul_rn(ue4m3_value(out.scale), second.dec)), CODE_UNIT);
    const uint4 random = philox(rule.seed, rule.offset, index);
    forget(b);
    u32 w[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float q[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float y = __fmul_rn(fabsf(element(b, 4 * k + i)), scaled);
            const int power = __float_as_int(y) & 0x7F800000;
            const float steps = __int_as_float(max(power + (22 << 23), 0x43800000));
            // The byte in bits 8 to 15 of 2^23 adds 256 u to it; u / 256 steps is that times 2^-16 times 2^-23.
            const u32 byte = __byte_perm(word(random, k), 0x4B000000u, 0x7604 | i << 4);
            const float u = __fsub_rn(__uint_as_float(byte), 8388608.0f);
            const float t = fminf(__fmaf_rn(__fmul_rn(u, 0x1p-39f), steps, y), 6.0f * CODE_UNIT);
            const float magic = __int_as_float(max((__float_as_int(t) & 0x7F800000) + (22 << 23), 0x43800000));
            q[i] = __fsub_rn(__fadd_rz(t, magic), magic);
        }
        w[k] = bytes4(q);
    }
    out.packed = pack(w, b);
    return out;
}

// Both candidates of 4over6: magnitudes (`bytes4`), scales, and errors in the units of the codes (`fast`), exact and in order.
struct Choice {
    u32 w4[4], w6[4];
    float e4, e6;
    u32 scales;  // E4M3 codes: of the candidate by 4 in the lower byte, in the upper one of that by 6
    __device__ __forceinline__ u32 s4() const { return scales & 0xFF; }
    __device__ __forceinline__ u32 s6() const { return scales >> 8; }
};

// The errors of both candidates' values of one element.
struct Errors {
    float e4, e6;
};

// Both, with the errors that `errors(q4, q6, t4, t6, x)` gives for magnitudes q times 2^-14, block scales t times 2^14 and element
// |x|. They come together: with one function for each the compiler orders the loop worse (observed: mae 2 % slower).
template <class T, class ERRORS>
__device__ __forceinline__ Choice candidates_by(Block<T>& b, float amax, const Second& second, const ERRORS& errors) {
    Choice c;
    c.scales = scales_in_range(amax, second);
    const float v4 = ue4m3_value(c.s4()), v6 = ue4m3_value(c.s6());
    const float m4 = __fmul_rn(reciprocal(__fmul_rn(v4, second.dec)), CODE_UNIT);
    const float m6 = __fmul_rn(reciprocal(__fmul_rn(v6, second.dec)), CODE_UNIT);
    const float t4 = __fmul_rn(v4, 16384.0f), t6 = __fmul_rn(v6, 16384.0f);
    forget(b);
    c.e4 = c.e6 = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float q4[4], q6[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float x = fabsf(element(b, 4 * k + i));
            q4[i] = round_scaled(__fmul_rn(x, m4));
            q6[i] = round_scaled(__fmul_rn(x, m6));
            const Errors e = errors(q4[i], q6[i], t4, t6, x);
            c.e4 = __fadd_rn(c.e4, e.e4);
            c.e6 = __fadd_rn(c.e6, e.e6);
        }
        c.w4[k] = bytes4(q4);
        c.w6[k] = bytes4(q6);
    }
    return c;
}

template <bool MSE> __device__ __forceinline__ float error_of(float d) { return MSE ? __fmul_rn(d, d) : fabsf(d); }

template <class T, bool MSE> __device__ __forceinline__ Choice both_candidates(Block<T>& b, float amax, const Second& second) {
    return candidates_by(b, amax, second, [&](float q4, float q6, float t4, float t6, float x) {
        // The products q t are exact, so the fused subtraction rounds once, as the unfused one does.
        const float xs = __fmul_rn(x, second.encode);
        const float d4 = __fmaf_rn(q4, t4, -xs), d6 = __fmaf_rn(q6, t6, -xs);
        return Errors{error_of<MSE>(d4), error_of<MSE>(d6)};
    });
}

// The same with errors that are only near: of the products, then times the block scale, which is a multiplication less for each element.
template <class T, bool MSE> __device__ __forceinline__ Choice both_nearly(Block<T>& b, float amax, const Second& second) {
    Choice c;
    c.scales = scales_in_range(amax, second);
    forget(b);
    // One after the other, of four elements each, with the registers that leaves: together one block of 16 a thread is 1 % faster, and two of them spill.
    const auto candidate = [&](u32 scale, u32 (&w)[4], float& error, int k) {
        const float m = __fmul_rn(reciprocal(__fmul_rn(ue4m3_value(scale), second.dec)), CODE_UNIT);
        float q[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float y = __fmul_rn(fabsf(element(b, 4 * k + i)), m);
            q[i] = round_scaled(y);
            error = __fadd_rn(error, error_of<MSE>(__fsub_rn(q[i], y)));
        }
        w[k] = bytes4(q);
    };
    c.e4 = c.e6 = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        candidate(c.s4(), c.w4, c.e4, k);
        candidate(c.s6(), c.w6, c.e6, k);
    }
    asm volatile("" : "+r"(c.scales));  // read again, not kept from above
    const float t4 = __fmul_rn(ue4m3_value(c.s4()), 16384.0f), t6 = __fmul_rn(ue4m3_value(c.s6()), 16384.0f);
    c.e4 = __fmul_rn(c.e4, MSE ? __fmul_rn(t4, t4) : t4);
    c.e6 = __fmul_rn(c.e6, MSE ? __fmul_rn(t6, t6) : t6);
    return c;
}

// The strict errors of both candidates, in place of the fast ones: by the formulas, in order.
template <class T, bool MSE>
__device__ __forceinline__ void strict_errors(const Block<T>& b, Choice& c, const Second& second, float six_e) {
    const float t4 = __fmul_rn(ue4m3_value(c.s4()), 16384.0f), t6 = __fmul_rn(ue4m3_value(c.s6()), 16384.0f);
    const float inverse = reciprocal(six_e);
    c.e4 = c.e6 = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float x = fabsf(element(b, i));
        // A byte of magnitudes is the upper byte of an F16 number. fl(q s) is exact.
        const u32 h4 = c.w4[i / 4] >> 8 * (i % 4) << 8 & 0xFF00, h6 = c.w6[i / 4] >> 8 * (i % 4) << 8 & 0xFF00;
        const float a4 = __fmul_rn(__fmul_rn(to_float(F16{(u16)h4}), t4), second.amax);
        const float a6 = __fmul_rn(__fmul_rn(to_float(F16{(u16)h6}), t6), second.amax);
        const float d4 = __fsub_rn(divide(a4, six_e, inverse), x), d6 = __fsub_rn(divide(a6, six_e, inverse), x);
        c.e4 = __fadd_rn(c.e4, error_of<MSE>(d4));
        c.e6 = __fadd_rn(c.e6, error_of<MSE>(d6));
    }
}

// True if the fast errors of a block decide as its strict ones do, or those of `both_nearly`.
//
// With u = 2^-24, X = amax of the block * encode, and d such an error of one element, the strict one times encode is within 8u (|x| encode + |d|) + 3u |d| of it: three
// roundings of v, one of encode, and one of fl(x encode), or four of fl(x m), where v m is encode but for three; two subtractions; the product by v.
// |q s| <= |x| encode + |d|, and |x| encode <= X. A sum of 16 adds at most 16u of itself on either side. So MAE sums differ by at most 16 * 8u X + 43u e each; for two
// of them 2^-15 X + 2^-17 (e4 + e6) is more than enough. Squares: |D^2 - d^2| <= 2 |d| c + c^2 with c = 8u X + 11u |d|, and sum |d| <= 4 sqrt(e), so
// 64u X sqrt(e) + 2048 u^2 X^2 + 60u e each; 2^-17 X (sqrt(e4) + sqrt(e6)) + 2^-35 X^2 + 2^-17 (e4 + e6) is more than enough, as long as strict squares are
// normal numbers: amax between 1e-14 and 1e17.
template <bool MSE> __device__ __forceinline__ bool decides_strictly(const Choice& c, float amax, const Second& second) {
    const float x = amax * second.encode, sum = c.e4 + c.e6;
    float doubt = x * 3.0517578125e-5f + sum * 7.62939453125e-6f;
    if constexpr (MSE) doubt = x * 7.62939453125e-6f * (sqrtf(c.e4) + sqrtf(c.e6)) + x * x * 2.910383e-11f + sum * 7.62939453125e-6f;
    // Equal scales give equal candidates: a tie whatever the units.
    if (c.s4() == c.s6()) return true;
    if (MSE && !(amax > 1e-14f && amax < 1e17f)) return false;
    return fabsf(c.e4 - c.e6) > doubt;
}

// True if fast errors are strict ones in other units: encode is 6E / amax within rounding, and nothing leaves the normal range.
__device__ __forceinline__ bool errors_compare(const Second& second, float six_e) {
    const float product = __fmul_rn(second.encode, second.amax);
    return second.amax > 1e-18f && second.amax < 1e30f && fabsf(product - six_e) < six_e * 4.8e-7f;
}

// ---- Hadamard transform ----

// y_j = bf16(1/4 sum_i sign_i (-1)^popcount(i & j) x_i): signs, four butterfly stages of strides 1, 2, 4, 8, then 1/4.
template <class T> __device__ __forceinline__ Block<Bf16> hadamard(const Block<T>& b) {
    float v[16];
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = 0xD7E8 >> i & 1 ? -element(b, i) : element(b, i);
#pragma unroll
    for (int stride = 1; stride < 16; stride *= 2)
#pragma unroll
        for (int i = 0; i < 16; i++)
            if (!(i & stride)) {
                const float lo = v[i], hi = v[i + stride];
                v[i] = __fadd_rn(lo, hi);
                v[i + stride] = __fsub_rn(lo, hi);
            }
    Block<Bf16> out;
    u32 w[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i] = pair_bits(from_float<Bf16>(__fmul_rn(v[2 * i], 0.25f)), from_float<Bf16>(__fmul_rn(v[2 * i + 1], 0.25f)));
    out.half[0].q[0] = {w[0], w[1], w[2], w[3]};
    out.half[1].q[0] = {w[4], w[5], w[6], w[7]};
    return out;
}
