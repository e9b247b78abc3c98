// What a kernel with a producer warp and math warpgroups waits on and copies with: mbarriers, TMA, bulk copies, clusters.
// For sm_90a. Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/types.cuh"

// A CUtensorMap, made by src/gpu/kernels/tensor_map.rs; a kernel takes it as `const __grid_constant__`.
struct alignas(64) TensorMap { u64 opaque[16]; };

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- mbarriers, by their addresses in shared memory ----

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the inits, before others use them: also for the copy engine, and the other blocks of a cluster.
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// An arrival at a phase that then also waits for `bytes` of copies.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The same at a barrier of any block of the cluster, by its address from `at_rank`. Without `.release.cluster`: what orders the reads before it is the wait for the products
// that made them, and with it a k-block took 2,000 cycles more (observed: H200, 2026-11).
__device__ __forceinline__ void barrier_arrive_in_cluster(u32 at) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory");
}

#ifdef SCALED_GEMM_BOUNDED_WAITS
// For benchmarks of unproven kernels: once another warp has set it, all waits of the block give up.
__shared__ volatile u32 gave_up, finished;
#endif

__device__ __forceinline__ u32 barrier_test(u32 barrier, u32 parity) {
    u32 done;
    asm volatile("{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done;}"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}
// Waits for the phase of this parity. A fresh barrier has done that of parity 1.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    while (!barrier_test(barrier, parity)) {
#ifdef SCALED_GEMM_BOUNDED_WAITS
        if (gave_up) break;
#endif
    }
}

// ---- copies ----

// One lane of a warp, all of whose lanes come here together. Requests to the copy engine are made of uniform registers: of a lane that is chosen so the compiler knows that it is one, of any other it does not, and moves
// everything there in a loop over the lanes. For the same reason what is asked for is computed by all lanes, before.
__device__ __forceinline__ bool elected() {
    u32 chosen;
    asm volatile("{.reg .pred one; elect.sync _|one, 0xFFFFFFFF; selp.u32 %0, 1, 0, one;}" : "=r"(chosen));
    return chosen != 0;
}

// A box of a matrix to shared memory; `x` along its rows, `y` its first row. What lies outside of the matrix becomes zero, and counts.
__device__ __forceinline__ void copy_box(u32 to, const TensorMap& map, u32 x, u32 y, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y) : "memory");
}
// The same into every block of the cluster in `blocks`, at the same place, with its own barrier told.
__device__ __forceinline__ void copy_box_to(u32 to, const TensorMap& map, u32 x, u32 y, u32 barrier, u16 blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%3, %4}], [%2], %5;"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(blocks) : "memory");
}
// `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
// A box from shared memory to a matrix, but for what lies outside of it; after bulk_ready() of the threads that wrote it. Some 60 cycles of the engine each, however small (observed:
// H200, 2026-11).
__device__ __forceinline__ void store_box(const TensorMap& map, u32 x, u32 y, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(from), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void bulk_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until what the thread has stored in boxes is read.
__device__ __forceinline__ void bulk_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// ---- clusters and registers ----

#if __CUDA_ARCH__ >= 900
constexpr bool CLUSTERS = true;
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ u32 cluster_size() {
    u32 size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// After barriers_ready(), which is all that the others must see: with a release it would wait for every copy before.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}
#else
// Earlier GPUs have none. Each block is alone, which the compiler knows, so that nothing of what is asked of other blocks is left.
constexpr bool CLUSTERS = false;
__device__ __forceinline__ u32 cluster_rank() { return 0; }
__device__ __forceinline__ u32 cluster_size() { return 1; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_arrive_relaxed() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void cluster_sync() {}
#endif
// The same place of shared memory in block `rank` of the cluster.
__device__ __forceinline__ u32 at_rank(u32 address, u32 rank) {
    u32 at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(address), "r"(rank));
    return at;
}
// Two numbers to a place of any block of the cluster, whose barrier is told of eight bytes.
__device__ __forceinline__ void store_pair_at(u32 at, float x, float y, u32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(at), "f"(x), "f"(y), "r"(barrier) : "memory");
}
// The same, of which all are told by the barrier of the cluster.
__device__ __forceinline__ void store_pair_in_cluster(u32 at, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
// Four, likewise.
__device__ __forceinline__ void store_four_in_cluster(u32 at, const float* v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
template <u32 N> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <u32 N> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// ---- shared memory by address ----

__device__ __forceinline__ float shared_float(u32 address) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ float2 shared_pair(u32 address) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ uint4 shared_vector(u32 address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ void shared_store(u32 address, const uint4& v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void shared_store_pair(u32 address, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(u32 address, const u32 (&words)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
}
