// Sums along a row in FP32. Mirror of src/reference/producers/sum.rs, which says the order: 8 neighbours one after the other, a tree over
// the 16 such of 128 columns, tree number c added to sum c modulo 8, and a tree over the eight.
#pragma once
#include "base/types.cuh"

// Each lane's sum added up over WIDTH lanes, halves of them at a time; every lane receives it.
template <int WIDTH> __device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2) v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
    return v;
}

// The tree over the eight sums of a row, `stride` floats apart.
__device__ __forceinline__ float sum_of_eight(const float* sums, u32 stride) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = sums[i * stride];
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < step; i++) v[i] = __fadd_rn(v[i], v[i + step]);
    return v[0];
}
