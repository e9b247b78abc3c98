// One FP32 scale for the whole matrix in one launch: the matrix stays in registers while its blocks agree on the amax.
#include "base/codec.cuh"
#include "cast/dequantize.cuh"
#include "cast/tile.cuh"

constexpr int HELD = 4;  // vectors of eight elements in a thread
constexpr u32 CLUSTER = 8;

// Where the blocks of a grid meet, zero before the first call.
struct Meeting {
    u32 calls;    // so far
    u32 unused;
    u64 parts[1];  // as many as blocks; of each the pattern of its amax, and in the lower half the number of the call that it is of
};

// The largest of all blocks' amax. All blocks run at once (a cooperative launch), so that each may wait for every other. A part and the number of its call are one access:
// nothing has to be ordered by a fence, and nobody waits for more than one way to the L2 cache and one back. `call` is what `calls` was before this call, plus one: no
// block has another, as the first block counts the call when it has met all others.
__device__ __forceinline__ float meet_in_grid(Meeting* place, u32 call, float amax, float* scratch) {
    if (threadIdx.x == 0) {
        const u64 mine = (u64)__float_as_uint(amax) << 32 | call;
        asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(place->parts + blockIdx.x), "l"(mine) : "memory");
    }
    float other = 0.0f;
    if (threadIdx.x < gridDim.x) {
        u64 part;
        do asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(part) : "l"(place->parts + threadIdx.x) : "memory");
        while ((u32)part != call);
        other = __uint_as_float((u32)(part >> 32));
    }
    other = block_max(other, scratch);
    if (blockIdx.x == 0 && threadIdx.x == 0) place->calls = call;
    return other;
}

// The same where the grid is one cluster: each block writes its amax into the shared memory of all, `parts`, which is theirs once they have begun.
__device__ __forceinline__ void begin_in_cluster() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ float meet_in_cluster(float* parts, float amax) {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x < CLUSTER) {
        const u32 mine = (u32)__cvta_generic_to_shared(parts + blockIdx.x);
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(mine), "r"(threadIdx.x));
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(amax) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) amax = fmaxf(amax, parts[i]);
#endif
    return amax;
}

template <class T, bool ALIGNED, u32 FORMAT, bool IN_CLUSTER>
__device__ __forceinline__ void quantize_tensor_once(const T* x, u32 vectors, const ScaleRule& rule, Meeting* place, u8* codes, float* scale) {
    __shared__ float scratch[32], of_parts[32];
    __shared__ float parts[CLUSTER];
    const u32 first = blockIdx.x * HELD * blockDim.x + threadIdx.x;
    if (IN_CLUSTER) begin_in_cluster();
    begin();
    u32 call = 0;
    if (!IN_CLUSTER) asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(call) : "l"(&place->calls) : "memory");
    Vec8<T> data[HELD];
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        const u32 at = first + v * blockDim.x;
        data[v] = at < vectors ? load<ALIGNED>(x + (u64)at * 8) : zero8<T>();
    }
    float amax = 0.0f;
#pragma unroll
    for (int v = 0; v < HELD; v++) amax = amax8(data[v], amax);
    amax = block_max(amax, scratch);
    amax = IN_CLUSTER ? meet_in_cluster(parts, amax) : meet_in_grid(place, call + 1, amax, of_parts);
    const GroupScale s = group_scale(rule, amax);
    if (blockIdx.x == 0 && threadIdx.x == 0) *scale = s.scale;
#pragma unroll
    for (int v = 0; v < HELD; v++) {
        const u32 at = first + v * blockDim.x;
        forget(data[v]);
        if (at < vectors) *(uint2*)(codes + (u64)at * 8) = encode_scaled<FORMAT>(data[v], s.encode);
    }
}

// Two blocks of a multiprocessor always fit, of which src/gpu/kernels/fp8_tensor_once.rs asks for half: other streams' kernels have the rest. The fewer
// instructions, the fewer are fetched from memory: with rows of any stride, and both meetings in one kernel, 128 x 7168 took 0.6 us longer (measured: H200, 2026-11).
#define QUANTIZE_TENSOR_ONCE(name, T, ALIGNED, IN, IN_CLUSTER)                                                            \
    extern "C" __global__ void __launch_bounds__(512, 2) quantize_fp8_tensor_in_##IN##_##name(                            \
        const T* __restrict__ x,     /* contiguous */                                                                     \
        u32 vectors,                 /* of eight elements in the matrix, at most HELD a thread */                         \
        ScaleRule rule,                                                                                                   \
        Meeting* place,              /* of a grid of no more blocks than threads; a cluster, of CLUSTER blocks, needs none */   \
        u8* __restrict__ codes,      /* [rows][cols], 16-byte aligned */                                                  \
        float* __restrict__ scale)   /* receives the stored scale */                                                      \
    {                                                                                                                     \
        if (rule.format == E4M3) quantize_tensor_once<T, ALIGNED, E4M3, IN_CLUSTER>(x, vectors, rule, place, codes, scale); \
        else quantize_tensor_once<T, ALIGNED, E5M2, IN_CLUSTER>(x, vectors, rule, place, codes, scale);                   \
    }
FOR_EACH_TYPE(QUANTIZE_TENSOR_ONCE, grid, false)
FOR_EACH_TYPE(QUANTIZE_TENSOR_ONCE, cluster, true)
