// Grouped tensors of the gradient of an activation, fl(OP'(x) * g): amax, codes by rows, and transposed codes. See grouped.cuh.
#include "base/activation_gradient.cuh"
#include "cast/grouped.cuh"

// The second input: what the activation was given in the forward pass. Members have the extents of the gradient's, which alone are asked.
struct GroupedForward {
    const void* x;  // a buffer of its own, [GroupedMembers::forward_length] at least
    u32 dtype;      // 0: BF16, 1: F16, 2: F32
    u32 of;         // GRADIENT_RELU and its like (activation_gradient.cuh)
    u32 aligned;    // 1: the buffer begins at a multiple of 16 bytes
};

template <class T, bool ALIGNED> struct GradientSource {
    struct Raw {
        Vec8<T> g;
        uint4 x[2];
    };
    static constexpr u32 AT_ONCE = 1;
    static constexpr bool AHEAD = false;
    static constexpr u32 LINE = 128 / sizeof(T);
    const T* g;
    GroupedForward forward;
    i64 shift;    // from a place in the gradient to that in x
    bool eights;  // eight of x begin at a multiple of 16 bytes where those of the gradient do

    __device__ __forceinline__ GradientSource(const T* g, const GroupedForward& forward) : g(g), forward(forward), shift(0), eights(false) {}
    // The offset is read again, as are those that `Walk` reads: of one that has changed since the plan the member's elements lie in x all the same.
    __device__ __forceinline__ void enter(const GroupedMembers& m, u32 t, const Extents& e) {
        const u64 last = m.forward_length - e.rows * e.cols;
        shift = (i64)within(m.forward[t], last) - (i64)e.begin;
        eights = forward.aligned && shift % 8 == 0;
    }
    __device__ __forceinline__ Raw load(u64 at) const {
        Raw raw;
        raw.g = ::load<ALIGNED>(g + at);
        const u64 there = at + (u64)shift;
        raw.x[1] = {0, 0, 0, 0};
        if (forward.dtype == 2) {
            const float* x = (const float*)forward.x + there;
            const Vec8<float> v = eights ? load8(x) : load8_unaligned(x);
            raw.x[0] = v.q[0];
            raw.x[1] = v.q[1];
        } else {
            // Of BF16 and F16 the same sixteen bytes.
            const Bf16* x = (const Bf16*)forward.x + there;
            raw.x[0] = (eights ? load8(x) : load8_unaligned(x)).q[0];
        }
        return raw;
    }
    __device__ __forceinline__ void ask(u64 at) const { asm volatile("prefetch.global.L2 [%0];" ::"l"(g + at)); }
    __device__ __forceinline__ void values(const Raw& raw, float (&v)[8]) const {
        float x[8];
        if (forward.dtype == 0) unpack(Vec8<Bf16>{{raw.x[0]}}, x);
        else if (forward.dtype == 1) unpack(Vec8<F16>{{raw.x[0]}}, x);
        else unpack(Vec8<float>{{raw.x[0], raw.x[1]}}, x);
        activation_slopes(forward.of, x);
        unpack(raw.g, v);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(x[i], v[i]);
    }
    __device__ __forceinline__ float one(u64 at) const {
        const u64 there = at + (u64)shift;
        float x;
        if (forward.dtype == 0) x = to_float(((const Bf16*)forward.x)[there]);
        else if (forward.dtype == 1) x = to_float(((const F16*)forward.x)[there]);
        else x = ((const float*)forward.x)[there];
        return __fmul_rn(activation_slope(forward.of, x), to_float(g[at]));
    }
};

#define AMAX_GROUPED_GRADIENT(name, T, ALIGNED, ...)                                                                      \
    extern "C" __global__ void __launch_bounds__(256, GRADIENT_BLOCKS) amax_grouped_gradient_##name(                                    \
        const T* __restrict__ g,  /* the buffer of the gradient, [m.length] at least */                                   \
        GroupedForward forward, GroupedMembers m, GroupedFactors f,                                                       \
        float* amax)              /* [members], or one that is shared: raised to max |value| */                           \
    { grouped_chunks<GradientSource<T, ALIGNED>, NO_CODES>({g, forward}, m, f, nullptr, amax); }
FOR_EACH_TYPE(AMAX_GROUPED_GRADIENT)

#define QUANTIZE_GROUPED_GRADIENT(name, T, ALIGNED, ...)                                                                  \
    extern "C" __global__ void __launch_bounds__(256, GRADIENT_BLOCKS) quantize_grouped_gradient_##name(                                \
        const T* __restrict__ g,  /* the buffer of the gradient, [m.length] at least */                                   \
        GroupedForward forward, GroupedMembers m, GroupedFactors f,                                                       \
        u8* __restrict__ codes,   /* [m.length], 16-byte aligned; gaps are left alone */                                  \
        float* amax)              /* [members], or one that is shared: raised to max |value|; null: not wanted */         \
    {                                                                                                                     \
        if (f.rule.format == E4M3) grouped_chunks<GradientSource<T, ALIGNED>, E4M3>({g, forward}, m, f, codes, amax);     \
        else grouped_chunks<GradientSource<T, ALIGNED>, E5M2>({g, forward}, m, f, codes, amax);                           \
    }
FOR_EACH_TYPE(QUANTIZE_GROUPED_GRADIENT)

#define QUANTIZE_GROUPED_GRADIENT_TILES(name, T, ALIGNED, ...)                                                            \
    extern "C" __global__ void __launch_bounds__(256, GRADIENT_TILE_BLOCKS) quantize_grouped_gradient_tiles_##name(                          \
        const T* __restrict__ g,   /* the buffer of the gradient, [m.length] at least */                                  \
        GroupedForward forward, GroupedMembers m, GroupedFactors f,                                                       \
        u8* __restrict__ codes,    /* [m.length], 16-byte aligned, by rows; null: not wanted */                           \
        u8* __restrict__ codes_t,  /* the same of the transposed codes */                                                 \
        float* amax)               /* [members], or one that is shared: raised to max |value|; null: not wanted */        \
    {                                                                                                                     \
        if (f.rule.format == E4M3) grouped_tiles<GradientSource<T, ALIGNED>, E4M3>({g, forward}, m, f, codes, codes_t, amax); \
        else grouped_tiles<GradientSource<T, ALIGNED>, E5M2>({g, forward}, m, f, codes, codes_t, amax);                   \
    }
FOR_EACH_TYPE(QUANTIZE_GROUPED_GRADIENT_TILES)
