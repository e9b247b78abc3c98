// How a kernel begins: behind the one before it, with its input on the way.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once

// Every kernel calls this once, before its first access to memory: it waits for the end of the kernel before. Launched
// with programmatic serialization (src/gpu/kernels/launch.rs), a kernel is made resident while its predecessor's last
// blocks still run, and memory stays ordered as in a plain stream. In other launches it does nothing.
// Its own successor is released by its end, unless it is a link of a chain (`release`).
__device__ __forceinline__ void begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Asks for the 128-byte line of an input before `begin()`: memory is fetched into L2, where all blocks see it, while the
// kernel before still ends. Only the lane that starts a line asks; `lane_bytes` is what one lane takes.
__device__ __forceinline__ void prefetch(const void* p, unsigned int lane_bytes) {
    if (threadIdx.x * lane_bytes % 128 == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Lets the next kernel be made resident, and run up to its own wait, when all blocks have called this or ended. Behind `begin()` but for `begin_link`, and
// only where the launch says that the next kernel waits: src/gpu/device/chain.rs, which also says why order holds over any number of kernels. A cuBLASLt product
// behind such a kernel gave wrong results under load (observed: H200, cuBLASLt 13.1.0, 2026-11; its kernels seem not to wait before they read
// 1x128 scales). Before its own wait a kernel may load what the launch says that the one before does not write: its weights.
__device__ __forceinline__ void release() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// `begin()` of a small kernel between products of a chain, which releases the next one at once: the product behind it loads its weights while the one
// before it runs. Neither writes them, as the launch has found.
__device__ __forceinline__ void begin_link(unsigned int releases) {
    if (releases) release();
    begin();
}
