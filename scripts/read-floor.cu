// Reads bytes and does nothing else with them than to add them up: the floor of products of few rows, which read their weights once. For scripts/beside_floor.py.
//
//     nvcc -std=c++17 -O3 -Ikernels -arch=sm_90 -shared -Xcompiler -fPIC -o floor.so scripts/read-floor.cu
#include <cuda_runtime.h>

#include "base/launch.cuh"
#include "base/types.cuh"

// Each block reads a part of its own, each thread LOADS pieces of 16 bytes at a time, and leaves the sum of the part's words, modulo 2^32. As a link of a chain it releases its successor
// and reads before it waits: nobody writes what is read.
template <int LOADS>
__global__ void __launch_bounds__(512) read(const uint4* __restrict__ from,  // [pieces], 16 bytes each, written by no kernel before
                                            u32 pieces,
                                            u32* __restrict__ sums,  // [gridDim.x]
                                            bool chained, u32 zero) {
    __shared__ u32 of_warps[16];
    if (chained) release();
    const u32 end = (u64)pieces * (blockIdx.x + 1) / gridDim.x;
    u32 sum = 0;
    for (u32 at = (u64)pieces * blockIdx.x / gridDim.x + threadIdx.x; at < end; at += LOADS * blockDim.x) {
        uint4 v[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) v[i] = load_stream(from + min(at + i * blockDim.x, end - 1));
        // Zero, but known only when the last load is back: ptxas moves loads to their first use, and few would be in flight.
        u32 none = 0;
#pragma unroll
        for (int i = 0; i < LOADS; i++) none ^= v[i].x;
        none &= zero;
#pragma unroll
        for (int i = 0; i < LOADS; i++) sum += at + i * blockDim.x < end ? (v[i].x ^ none) + (v[i].y ^ none) + (v[i].z ^ none) + (v[i].w ^ none) : 0;
    }
    sum = __reduce_add_sync(~0u, sum);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    begin();
    if (threadIdx.x) return;
    for (u32 i = 1; i < blockDim.x / 32; i++) sum += of_warps[i];
    sums[blockIdx.x] = sum;
}

// Enqueues it; 0, or CUDA's error. `bytes` is a multiple of 16 below 2^36, `loads` 4, 8 or 16, and there is a sum for each block.
extern "C" int read_floor(const void* from, unsigned long long bytes, u32* sums, u32 blocks, u32 threads, u32 loads, int chained, void* stream) {
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.stream = (cudaStream_t)stream;
    config.attrs = &overlap;
    config.numAttrs = chained ? 1 : 0;
    const auto kernel = loads == 4 ? read<4> : loads == 8 ? read<8> : read<16>;
    return cudaLaunchKernelEx(&config, kernel, (const uint4*)from, (u32)(bytes / 16), sums, chained != 0, 0u);
}
