// Element types, 16-byte loads and stores, reductions, and the scale rules of src/format/fp8.rs.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/launch.cuh"

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct Bf16 { u16 bits; };
struct F16 { u16 bits; };

__device__ __forceinline__ float to_float(Bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_float(F16 x) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x.bits));
    return f;
}
__device__ __forceinline__ float to_float(float x) { return x; }

template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ Bf16 from_float<Bf16>(float x) {
    u16 b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(x));
    return {b};
}
template <> __device__ __forceinline__ F16 from_float<F16>(float x) {
    u16 b;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(x));
    return {b};
}
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }

// Eight consecutive elements as they lie in memory: 16 bytes of BF16 or F16, 32 of F32.
template <class T> struct Vec8 { uint4 q[sizeof(T) / 2]; };

// An address of global memory that is computed here, and not again under the predicate of each use of it.
template <class T> __device__ __forceinline__ T* once(T* p) {
    asm("" : "+l"(p));
    __builtin_assume(__isGlobal(p));
    return p;
}

// Sixteen bytes of an input. Not by `ld.global.nc`: that promises memory which nobody writes while the kernel runs, and the kernel before may still
// write it until `begin()` returns. ptxas takes the promise, and moves such loads over the wait (nvcc 13.0: in 27 kernels, whose address a
// prefetch had computed; behind a kernel that releases early they read old numbers in each run). scripts/check-kernels.sh looks for them.
// Not `L1::no_allocate`: with it, mixed with stores, these kernels lost 5 % of their bandwidth (observed: H200, 2026-11, 4.30 against 3.98 TB/s).
__device__ __forceinline__ uint4 load_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

template <class T> __device__ __forceinline__ Vec8<T> load8(const T* p) {
    Vec8<T> v;
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 2; i++) v.q[i] = load_stream((const char*)p + 16 * i);
    return v;
}

// Eight elements that this kernel itself may write later: not through the path for what nobody writes.
template <class T> __device__ __forceinline__ Vec8<T> load8_changing(const T* p) {
    Vec8<T> v;
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 2; i++)
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.q[i].x), "=r"(v.q[i].y), "=r"(v.q[i].z), "=r"(v.q[i].w) : "l"((const char*)p + 16 * i) : "memory");
    return v;
}

// The same only if `wanted`; otherwise `v` stays what it was. No branch, and no zeros to be written first.
template <class T> __device__ __forceinline__ void load8_if(bool wanted, Vec8<T>& v, const T* p) {
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 2; i++)
        asm volatile("{.reg .pred wanted; setp.ne.u32 wanted, %5, 0; @wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
                     : "+r"(v.q[i].x), "+r"(v.q[i].y), "+r"(v.q[i].z), "+r"(v.q[i].w)
                     : "l"((const char*)p + 16 * i), "r"((u32)wanted));
}

// Not `*p`: where a kernel declares its input `const` and `__restrict__`, that is an `ld.global.nc`.
__device__ __forceinline__ u32 load_word(const u32* p) {
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ u32 load_two(const u16* p) {
    u16 low, high;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(low) : "l"(p));
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(high) : "l"(p + 1));
    return low | (u32)high << 16;
}

// The same from an address that is not 16-byte aligned.
template <class T> __device__ __forceinline__ Vec8<T> load8_unaligned(const T* p) {
    Vec8<T> v;
    if constexpr (sizeof(T) == 4) {
        const u32* w = (const u32*)p;
        v.q[0] = {load_word(w), load_word(w + 1), load_word(w + 2), load_word(w + 3)};
        v.q[1] = {load_word(w + 4), load_word(w + 5), load_word(w + 6), load_word(w + 7)};
    } else {
        const u16* h = (const u16*)p;
        v.q[0] = {load_two(h), load_two(h + 2), load_two(h + 4), load_two(h + 6)};
    }
    return v;
}

// Whether every row of an operand starts 16-byte aligned is a template parameter, and each kernel exists twice: a choice
// at each load would make the second load wait for the first (both paths end in the same registers).
template <bool ALIGNED, class T> __device__ __forceinline__ Vec8<T> load(const T* p) {
    if constexpr (ALIGNED) return load8(p);
    return load8_unaligned(p);
}

// One kernel for each element type, aligned and not: what the host picks by name.
#define FOR_EACH_TYPE(KERNEL, ...)                                                                                        \
    KERNEL(bf16, Bf16, true, __VA_ARGS__)                                                                                 \
    KERNEL(f16, F16, true, __VA_ARGS__)                                                                                   \
    KERNEL(f32, float, true, __VA_ARGS__)                                                                                 \
    KERNEL(bf16_unaligned, Bf16, false, __VA_ARGS__)                                                                      \
    KERNEL(f16_unaligned, F16, false, __VA_ARGS__)                                                                        \
    KERNEL(f32_unaligned, float, false, __VA_ARGS__)

template <class T> __device__ __forceinline__ Vec8<T> zero8() {
    Vec8<T> v;
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 2; i++) v.q[i] = {0, 0, 0, 0};
    return v;
}

// One element of a vector; `i` must be a compile-time constant after unrolling.
__device__ __forceinline__ u32 word(const uint4& q, int i) { return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w; }
__device__ __forceinline__ float element(const Vec8<Bf16>& v, int i) {
    const u32 w = word(v.q[0], i >> 1);
    return __uint_as_float(i & 1 ? w & 0xFFFF0000u : w << 16);
}
__device__ __forceinline__ float element(const Vec8<F16>& v, int i) {
    const u32 w = word(v.q[0], i >> 1);
    return to_float(F16{(u16)(i & 1 ? w >> 16 : w)});
}
__device__ __forceinline__ float element(const Vec8<float>& v, int i) {
    return __uint_as_float(word(v.q[i >> 2], i & 3));
}

template <class T> __device__ __forceinline__ void unpack(const Vec8<T>& v, float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = element(v, i);
}

__device__ __forceinline__ u32 pair_bits(Bf16 lo, Bf16 hi) { return lo.bits | (u32)hi.bits << 16; }
__device__ __forceinline__ u32 pair_bits(F16 lo, F16 hi) { return lo.bits | (u32)hi.bits << 16; }

// Eight values rounded to T.
template <class T> __device__ __forceinline__ Vec8<T> pack8(const float (&v)[8]) {
    Vec8<T> packed;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            packed.q[i] = {__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]), __float_as_uint(v[4 * i + 2]), __float_as_uint(v[4 * i + 3])};
    } else {
        packed.q[0].x = pair_bits(from_float<T>(v[0]), from_float<T>(v[1]));
        packed.q[0].y = pair_bits(from_float<T>(v[2]), from_float<T>(v[3]));
        packed.q[0].z = pair_bits(from_float<T>(v[4]), from_float<T>(v[5]));
        packed.q[0].w = pair_bits(from_float<T>(v[6]), from_float<T>(v[7]));
    }
    return packed;
}

// Rounds eight values to T and stores them; the address must be 16-byte aligned.
template <class T> __device__ __forceinline__ void store8(T* p, const float (&v)[8]) {
    const Vec8<T> packed = pack8<T>(v);
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 2; i++) ((uint4*)p)[i] = packed.q[i];
}

template <class T> __device__ __forceinline__ void store8_unaligned(T* p, const float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) p[i] = from_float<T>(v[i]);
}

template <bool ALIGNED, class T> __device__ __forceinline__ void store(T* p, const float (&v)[8]) {
    if constexpr (ALIGNED) store8(p, v); else store8_unaligned(p, v);
}

// Makes the compiler forget what it derived from these registers. Between amax and cast it would keep all elements as
// FP32, twice the registers, instead of unpacking them again.
template <class T> __device__ __forceinline__ void forget(Vec8<T>& v) {
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 2; i++) asm volatile("" : "+r"(v.q[i].x), "+r"(v.q[i].y), "+r"(v.q[i].z), "+r"(v.q[i].w));
}

// max |v| in FP32 from the first step, NaN dropped (fmaxf ignores it), so a packed 16-bit maximum is never formed.
template <class T> __device__ __forceinline__ float amax8(const Vec8<T>& v, float amax) {
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(element(v, i)));
    return amax;
}

// Maximum over `WIDTH` neighbouring lanes (a power of two), given to all of them.
template <int WIDTH> __device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
    return v;
}

// Maximum over the block of numbers that are not negative, given to every thread; `scratch` has one float for each of
// 32 warps. Such numbers order like their bit patterns, for which a warp has one instruction.
__device__ __forceinline__ float block_max(float v, float* scratch) {
    const u32 lane = threadIdx.x % 32;
    u32 bits = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(v));
    if (lane == 0) scratch[threadIdx.x / 32] = __uint_as_float(bits);
    __syncthreads();
    bits = lane < blockDim.x / 32 ? __float_as_uint(scratch[lane]) : 0;
    return __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, bits));
}

// fl(1 / p) for p in [1e-30, 1e30]: the steps of __frcp_rn without its test of the range.
__device__ __forceinline__ float reciprocal(float p) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(p));
    return __fmaf_rn(r, -__fmaf_rn(p, r, -1.0f), r);
}

// fl(a / d) for a normal quotient and remainder, or a = 0; r = fl(1 / d): one correction makes it the rounded quotient
// (checked over all mantissas: of a for d = 6, 448, 1536 and 2688, of d for a = 6, 448, 1536 and 2688).
__device__ __forceinline__ float divide(float a, float d, float r) {
    const float q = __fmul_rn(a, r);
    return __fmaf_rn(__fmaf_rn(-q, d, a), r, q);
}

// FP32 numbers that are not negative order like their bit patterns.
__device__ __forceinline__ void atomic_max(float* p, float v) { atomicMax((u32*)p, __float_as_uint(v)); }

// ---- Scale rules: mirror of Fp8Recipe::group_scale in src/format/fp8.rs, operation by operation. ----

constexpr u32 TORCHAO = 0;
constexpr u32 TRANSFORMER_ENGINE = 1;
constexpr u32 DEEPSEEK = 2;
constexpr u32 DEEPGEMM = 3;
constexpr u32 DEEPGEMM_CPU = 4;

struct ScaleRule {
    float max;       // largest value of the code format: 448 or 57344
    float overflow;  // TransformerEngine: encode factor where max / amax overflows
    u32 rule;        // TORCHAO, TRANSFORMER_ENGINE, DEEPSEEK, DEEPGEMM, DEEPGEMM_CPU
    u32 pow2;        // 1: scales rounded up to powers of two
    u32 format;      // E4M3 or E5M2 (codec.cuh)
};

struct GroupScale {
    float encode;  // multiplies the data before the cast
    float scale;   // multiplies the codes; the stored decode factor
};

// The power of two that is not below this scale, and its inverse.
__device__ __forceinline__ GroupScale power_above(float scale) {
    const u32 exponent = ((__float_as_uint(scale) - 1) >> 23) + 1;
    return {__uint_as_float((exponent < 254 ? 254 - exponent : 0) << 23), __uint_as_float(exponent << 23)};
}

__device__ __forceinline__ GroupScale group_scale(const ScaleRule& rule, float amax) {
    if (rule.rule <= TRANSFORMER_ENGINE) {
        float encode;
        if (rule.rule == TORCHAO) {
            encode = __fdiv_rn(rule.max, fmaxf(amax, 1e-12f));
        } else {
            if (amax == 0.0f || __float_as_uint(amax) >= 0x7F800000u) return {1.0f, 1.0f};
            encode = __fdiv_rn(rule.max, amax);
            if (__float_as_uint(encode) == 0x7F800000u) encode = rule.overflow;
        }
        if (rule.pow2) encode = __uint_as_float(__float_as_uint(encode) & 0xFF800000u);
        return {encode, __frcp_rn(encode)};
    }
    const float a = fmaxf(amax, 1e-4f);
    // As PyTorch divides by a constant on CUDA, or truly.
    const float scale = rule.rule == DEEPGEMM ? __fmul_rn(a, __frcp_rn(rule.max)) : __fdiv_rn(a, rule.max);
    if (rule.pow2) return power_above(scale);
    return {rule.rule == DEEPSEEK ? __fdiv_rn(rule.max, a) : __frcp_rn(scale), scale};
}
