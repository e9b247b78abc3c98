// Warpgroup products of FP8 codes in shared memory, and the descriptors of their operands: of E4M3 on both sides, unless the file that includes this names
// other types of A and B (WGMMA_TYPES).
// D[64, N] (FP32, in registers) = A[64, 32] B[N, 32]T, added to D or starting anew. Lane l of warp w has of D, for each eight
// columns 8j: d[4j], d[4j + 1] = row 16w + l / 4, columns 8j + 2 (l % 4) and the next; d[4j + 2], d[4j + 3] = the same eight rows below.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/types.cuh"

#ifndef WGMMA_TYPES
#define WGMMA_TYPES "e4m3.e4m3"
#endif

// An operand's descriptor, its lower half: rows of 128 bytes (128 codes along k), swizzled as TMA writes them with a 128-byte swizzle;
// `address` of a tile that starts at a multiple of 1024. The next 32 of k: + 2; the next 8 rows: + 64. The upper half is the same for
// all: 1024 bytes from eight rows to the next, 128-byte swizzle. Made where it is used, it takes no registers.
__device__ __forceinline__ u32 wgmma_operand(u32 address) { return (address & 0x3FFFF) >> 4 | 1 << 16; }

// Before the first product, and after any other touch of its accumulators.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `PENDING` of the committed groups still run.
template <u32 PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving what touches these registers over this place.
template <u32 R> __device__ __forceinline__ void hold(float (&d)[R]) {
#pragma unroll
    for (u32 i = 0; i < R; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// The accumulators of a thread, as assembly names them and as its operands: the N / 2 that products of N columns have.
#define WGMMA_NAMES_4 "%0, %1, %2, %3"
#define WGMMA_NAMES_8 WGMMA_NAMES_4 ", %4, %5, %6, %7"
#define WGMMA_NAMES_16 WGMMA_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_32 WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_40 WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_NAMES_48 WGMMA_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_NAMES_64                                                                                \
    WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
                   ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_NAMES_72 WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_NAMES_80 WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_NAMES_96 WGMMA_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_SUMS_8(i) WGMMA_SUMS_4(i), WGMMA_SUMS_4(i + 4)
#define WGMMA_SUMS_16(i) WGMMA_SUMS_8(i), WGMMA_SUMS_8(i + 8)
#define WGMMA_SUMS_32(i) WGMMA_SUMS_16(i), WGMMA_SUMS_16(i + 16)
#define WGMMA_SUMS_40(i) WGMMA_SUMS_32(i), WGMMA_SUMS_8(i + 32)
#define WGMMA_SUMS_48(i) WGMMA_SUMS_32(i), WGMMA_SUMS_16(i + 32)
#define WGMMA_SUMS_64(i) WGMMA_SUMS_32(i), WGMMA_SUMS_32(i + 32)
#define WGMMA_SUMS_72(i) WGMMA_SUMS_64(i), WGMMA_SUMS_8(i + 64)
#define WGMMA_SUMS_80(i) WGMMA_SUMS_64(i), WGMMA_SUMS_16(i + 64)
#define WGMMA_SUMS_96(i) WGMMA_SUMS_64(i), WGMMA_SUMS_32(i + 64)

// The product of N columns, told by the number of accumulators: the operands behind them are a, b and `add`, which must be a compile-time constant after
// unrolling.
#define WGMMA(N, SUMS, B, ADD)                                                                                                    \
    __device__ __forceinline__ void wgmma(float (&d)[SUMS], u32 a, u32 b, u32 add) {                                              \
        asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %" #ADD ", 0;"                                            \
                     "mov.b64 a, {%" #SUMS ", 0x40000040}; mov.b64 b, {%" #B ", 0x40000040};"                                     \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." WGMMA_TYPES " {" WGMMA_NAMES_##SUMS "}, a, b, add, 1, 1;}" \
                     : WGMMA_SUMS_##SUMS(0)                                                                                       \
                     : "r"(a), "r"(b), "r"(add));                                                                                 \
    }

// columns, accumulators, numbers of the operands b and `add`.
WGMMA(8, 4, 5, 6)
WGMMA(16, 8, 9, 10)
WGMMA(32, 16, 17, 18)
WGMMA(64, 32, 33, 34)
WGMMA(80, 40, 41, 42)
WGMMA(96, 48, 49, 50)
WGMMA(128, 64, 65, 66)
WGMMA(144, 72, 73, 74)
WGMMA(160, 80, 81, 82)
WGMMA(192, 96, 97, 98)
