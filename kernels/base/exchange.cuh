// Lanes of a warp join what each has many of, without all of them having all of it.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/types.cuh"

// HAVE numbers of each lane become one, or HAVE / (2 STRIDE) where they are more: number i, joined over the lanes that differ in the bits of STRIDE and below, in those whose bits there, from the highest one,
// are i's; down to a stride of 2 LAST. Lanes exchange halves of what they have for as long as they have more than one. At each stride two lanes' numbers are joined, as in a tree.
template <int HAVE, int STRIDE, int LAST = 0, class T, class JOIN> __device__ __forceinline__ void exchange(T* m, JOIN join) {
    if constexpr (STRIDE > LAST) {
        constexpr int KEPT = HAVE > 1 ? HAVE / 2 : 1;
        const bool upper = threadIdx.x & STRIDE;
#pragma unroll
        for (int g = 0; g < KEPT; g++) {
            const T other = m[HAVE > 1 ? g + KEPT : g], sent = HAVE > 1 && upper ? m[g] : other;
            m[g] = join(HAVE > 1 && upper ? other : m[g], __shfl_xor_sync(0xFFFFFFFFu, sent, STRIDE));
        }
        exchange<KEPT, STRIDE / 2, LAST>(m, join);
    }
}
