// One FP32 scale for the whole matrix: amax, cast with a given or computed scale, and back.
#include "base/codec.cuh"
#include "cast/dequantize.cuh"
#include "cast/tile.cuh"

// Progress of one amax over the matrix; zero before the first call, and left zero by every call.
struct AmaxState {
    float amax;   // maximum so far
    u32 arrived;  // blocks that have added theirs
};

// amax = max |x|; the last block to finish turns it into the two factors and resets the state for the next call.
template <class T, bool ALIGNED>
__device__ __forceinline__ void amax_tensor(const T* x, u64 x_stride, u32 rows, u64 cols, const ScaleRule& rule, AmaxState* state, float* factor, float* amax_out) {
    __shared__ float scratch[32];
    constexpr int UNROLL = 4;
    const u64 vectors = cols / 8;
    const u64 stride = (u64)gridDim.x * blockDim.x;
    float amax = 0.0f;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        const T* in = x + row * x_stride;
        for (u64 v = (u64)blockIdx.x * blockDim.x + threadIdx.x; v < vectors; v += UNROLL * stride) {
            Vec8<T> data[UNROLL];
#pragma unroll
            for (int i = 0; i < UNROLL; i++) {
                const u64 at = v + i * stride;
                data[i] = at < vectors ? load<ALIGNED>(in + 8 * at) : zero8<T>();
            }
#pragma unroll
            for (int i = 0; i < UNROLL; i++) amax = amax8(data[i], amax);
        }
    }
    amax = block_max(amax, scratch);
    if (threadIdx.x != 0) return;
    atomic_max(&state->amax, amax);
    __threadfence();
    if (atomicAdd(&state->arrived, 1) + 1 != gridDim.x * gridDim.y) return;
    __threadfence();
    const float total = __uint_as_float(atomicExch((u32*)&state->amax, 0));
    state->arrived = 0;
    if (amax_out) *amax_out = total;
    if (factor) {
        const GroupScale s = group_scale(rule, total);
        factor[0] = s.encode;
        factor[1] = s.scale;
    }
}

#define AMAX_TENSOR(name, T, ALIGNED, ...)                                                                                \
    extern "C" __global__ void __launch_bounds__(256) amax_tensor_##name(                                                 \
        const T* __restrict__ x,  /* [rows][cols], row stride x_stride elements */                                        \
        u64 x_stride, u32 rows, u64 cols,                                                                                 \
        ScaleRule rule,                                                                                                   \
        AmaxState* state,         /* zero before the call and after it */                                                 \
        float* factor,            /* encode factor and scale; null: only the amax is wanted */                            \
        float* amax_out)          /* one amax; null: not wanted */                                                        \
    { begin(); amax_tensor<T, ALIGNED>(x, x_stride, rows, cols, rule, state, factor, amax_out); }
FOR_EACH_TYPE(AMAX_TENSOR)

// code = sat(fl(x * encode)). Each thread takes UNROLL vectors of eight elements, one block apart.
template <class T, int UNROLL, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void quantize_tensor(const T* x, u64 x_stride, u32 rows, u64 cols, const float* factor, u32 factor_kind, u8* codes, float* scale, float* amax_out) {
    __shared__ float scratch[32];
    // After an amax pass the end of the matrix is what L2 still holds: begin there.
    const u32 block = factor_kind == FACTOR_COMPUTED ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    if constexpr (UNROLL == 1) {
        const u64 first = ((u64)block * blockDim.x + threadIdx.x) * 8;
        if (blockIdx.y < rows && first < cols) prefetch(x + blockIdx.y * x_stride + first, 8 * sizeof(T));
    }
    begin();
    float amax = 0.0f;
    for (u32 row = blockIdx.y; row < rows; row += gridDim.y) {
        const T* in = x + row * x_stride;
        Vec8<T> data[UNROLL];
        u64 at[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            at[i] = (((u64)block * UNROLL + i) * blockDim.x + threadIdx.x) * 8;
            data[i] = at[i] < cols ? load<ALIGNED>(in + at[i]) : zero8<T>();
        }
        const GroupScale s = given_scale(factor, factor_kind);
        if (blockIdx.x == 0 && row == 0 && threadIdx.x == 0) *scale = s.scale;
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            if (amax_out) amax = amax8(data[i], amax);
            if (at[i] < cols) *(uint2*)(codes + row * cols + at[i]) = encode_scaled<FORMAT>(data[i], s.encode);
        }
    }
    if (amax_out) {
        amax = block_max(amax, scratch);
        if (threadIdx.x == 0) atomic_max(amax_out, amax);
    }
}

#define QUANTIZE_TENSOR(name, T, ALIGNED, UNROLL)                                                                          \
    extern "C" __global__ void __launch_bounds__(256) quantize_fp8_tensor_##UNROLL##_##name(                              \
        const T* __restrict__ x,           /* [rows][cols], row stride x_stride elements */                               \
        u64 x_stride, u32 rows, u64 cols,                                                                                 \
        u32 format,                        /* E4M3 or E5M2 */                                                             \
        const float* __restrict__ factor,  /* one or two floats */                                                        \
        u32 factor_kind,                   /* FACTOR_ENCODE, FACTOR_DECODE or FACTOR_COMPUTED (tile.cuh) */               \
        u8* __restrict__ codes,            /* [rows][cols], 16-byte aligned */                                            \
        float* __restrict__ scale,         /* receives the stored scale */                                                \
        float* __restrict__ amax_out)      /* raised to max |x|; null: not wanted */                                      \
    {                                                                                                                     \
        if (format == E4M3) quantize_tensor<T, UNROLL, ALIGNED, E4M3>(x, x_stride, rows, cols, factor, factor_kind, codes, scale, amax_out); \
        else quantize_tensor<T, UNROLL, ALIGNED, E5M2>(x, x_stride, rows, cols, factor, factor_kind, codes, scale, amax_out);     \
    }
FOR_EACH_TYPE(QUANTIZE_TENSOR, 1)
FOR_EACH_TYPE(QUANTIZE_TENSOR, 2)

FOR_EACH_TYPE(TILE_KERNEL, quantize_fp8_tensor_transposed, PER_TENSOR)

FOR_EACH_TYPE(DEQUANTIZE, dequantize_fp8_tensor, SCALAR)
