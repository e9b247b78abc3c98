// Copies of 16 bytes from global to shared memory by the threads that want them, for GPUs from sm_80 on.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/types.cuh"

// To shared memory at `to`; zeros, and nothing is read, unless `wanted`. Both addresses are multiples of 16.
__device__ __forceinline__ void copy_16(u32 to, const void* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
// Eight bytes; both addresses are multiples of eight.
__device__ __forceinline__ void copy_8(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
// One FP32 number, as sixteen bytes.
__device__ __forceinline__ void copy_4(u32 to, const void* from, bool wanted) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(wanted ? 4 : 0) : "memory");
}
// Eight bytes, likewise, at multiples of eight.
__device__ __forceinline__ void copy_8(u32 to, const void* from, bool wanted) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(wanted ? 8 : 0) : "memory");
}
// The copies since the last call form a group, which may be empty.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `PENDING` groups of this thread are on their way.
template <u32 PENDING> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }
