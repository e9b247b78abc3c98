// Copies with the proportions of casts, for scripts/casts-in-turns.py: what a cast's bytes take, whatever is computed of them.
//
//     nvcc -std=c++17 -Ikernels -arch=sm_90a -cubin -o cast-copies.cubin scripts/cast-copies.cu
#include "base/types.cuh"

struct alignas(16) Pair { uint4 first, second; };

// A piece that is read becomes one that is written.
__device__ __forceinline__ void change(const uint4& from, uint4& to) { to = from; }
__device__ __forceinline__ void change(const uint4& from, uint2& to) { to = {from.x ^ from.z, from.y ^ from.w}; }
__device__ __forceinline__ void change(const uint4& from, u32& to) { to = from.x ^ from.y ^ from.z ^ from.w; }
__device__ __forceinline__ void change(const uint2& from, uint2& to) { to = from; }
__device__ __forceinline__ void change(const uint2& from, uint4& to) { to = {from.x, from.y, from.x + 1, from.y + 1}; }
__device__ __forceinline__ void change(const u32& from, uint4& to) { to = {from, from + 1, from + 2, from + 3}; }
__device__ __forceinline__ void change(const Pair& from, uint2& to) {
    to = {from.first.x ^ from.first.z ^ from.second.x ^ from.second.z, from.first.y ^ from.first.w ^ from.second.y ^ from.second.w};
}

// Pairs lie half the source apart, as the halves of gated rows do.
__device__ __forceinline__ void load(const void* x, u32 at, u32, uint4& v) { v = load_stream((const uint4*)x + at); }
__device__ __forceinline__ void load(const void* x, u32 at, u32, uint2& v) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"((const uint2*)x + at));
}
__device__ __forceinline__ void load(const void* x, u32 at, u32, u32& v) { v = load_word((const u32*)x + at); }
__device__ __forceinline__ void load(const void* x, u32 at, u32 pieces, Pair& v) { v = {load_stream((const uint4*)x + at), load_stream((const uint4*)x + pieces + at)}; }

// LOADS pieces a thread; every `read`-th piece has a scale that is read, every `written`-th one that is written; 0: none has.
template <int LOADS, class FROM, class TO>
__device__ __forceinline__ void copy(const void* x, const u32* scales, u32 read, TO* y, u32* new_scales, u32 written, u32 pieces) {
    begin();
    const u32 first = blockIdx.x * LOADS * blockDim.x + threadIdx.x;
    FROM v[LOADS];
    u32 scale[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const u32 at = first + i * blockDim.x;
        if (at < pieces) load(x, at, pieces, v[i]);
        scale[i] = read && at < pieces ? load_word(scales + at / read) : 0;
    }
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        const u32 at = first + i * blockDim.x;
        if (at >= pieces) return;
        TO to;
        change(v[i], to);
        *(u32*)&to ^= scale[i];
        y[at] = to;
        if (written && at % written == 0) new_scales[at / written] = *(u32*)&to;
    }
}

#define COPY(name, LOADS, FROM, TO)                                                                                       \
    extern "C" __global__ void __launch_bounds__(512) name##_##LOADS(                                                     \
        const void* x, const u32* scales, u32 read, TO* y, u32* new_scales, u32 written, u32 pieces)                      \
    { copy<LOADS, FROM, TO>(x, scales, read, y, new_scales, written, pieces); }
#define COPIES(name, FROM, TO) COPY(name, 1, FROM, TO) COPY(name, 2, FROM, TO) COPY(name, 4, FROM, TO)
COPIES(copy_16_16, uint4, uint4)
COPIES(copy_16_8, uint4, uint2)
COPIES(copy_16_4, uint4, u32)
COPIES(copy_8_16, uint2, uint4)
COPIES(copy_8_8, uint2, uint2)
COPIES(copy_4_16, u32, uint4)
COPIES(copy_32_8, Pair, uint2)

// The reads and writes of a cast to E2M1 that is stored transposed: 128 rows by 128 columns a block, 64 bytes of each column.
extern "C" __global__ void __launch_bounds__(256) copy_transposed(const u16* x, u8* y, u32 rows, u32 cols) {
    begin();
    const u32 tiles = cols / 128, row = blockIdx.x / tiles * 128, col = blockIdx.x % tiles * 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4 v[8];
    uint2 sum = {0, 0};
#pragma unroll
    for (int r = 0; r < 8; r++) v[r] = load_stream(x + (u64)(row + warp / 2 * 32 + lane / 8 * 8 + r) * cols + col + warp % 2 * 64 + lane % 8 * 8);
#pragma unroll
    for (int r = 0; r < 8; r++) sum = {sum.x ^ v[r].x ^ v[r].y, sum.y ^ v[r].z ^ v[r].w};
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) *(uint2*)(y + ((col + threadIdx.x / 8 + 32 * i) * (u64)rows + row) / 2 + threadIdx.x % 8 * 8) = {sum.x + i, sum.y};
}

extern "C" __global__ void empty() { begin(); }
