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

// By the number of accumulators a thread has: N / 2. `add` must be a compile-time constant after unrolling.
__device__ __forceinline__ void wgmma(float (&d)[4], u32 a, u32 b, u32 add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %6, 0;"
                 "mov.b64 a, {%4, 0x40000040}; mov.b64 b, {%5, 0x40000040};"
                 "wgmma.mma_async.sync.aligned.m64n8k32.f32." WGMMA_TYPES " {%0, %1, %2, %3}, a, b, add, 1, 1;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a), "r"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[8], u32 a, u32 b, u32 add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %10, 0;"
                 "mov.b64 a, {%8, 0x40000040}; mov.b64 b, {%9, 0x40000040};"
                 "wgmma.mma_async.sync.aligned.m64n16k32.f32." WGMMA_TYPES " {%0, %1, %2, %3, %4, %5, %6, %7}, a, b, add, 1, 1;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "r"(a), "r"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[16], u32 a, u32 b, u32 add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %18, 0;"
                 "mov.b64 a, {%16, 0x40000040}; mov.b64 b, {%17, 0x40000040};"
                 "wgmma.mma_async.sync.aligned.m64n32k32.f32." WGMMA_TYPES " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, a, b, add, 1, 1;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a), "r"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[32], u32 a, u32 b, u32 add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %34, 0;"
                 "mov.b64 a, {%32, 0x40000040}; mov.b64 b, {%33, 0x40000040};"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32." WGMMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "a, b, add, 1, 1;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a), "r"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[64], u32 a, u32 b, u32 add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %66, 0;"
                 "mov.b64 a, {%64, 0x40000040}; mov.b64 b, {%65, 0x40000040};"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32." WGMMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "a, b, add, 1, 1;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a), "r"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[80], u32 a, u32 b, u32 add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %82, 0;"
                 "mov.b64 a, {%80, 0x40000040}; mov.b64 b, {%81, 0x40000040};"
                 "wgmma.mma_async.sync.aligned.m64n160k32.f32." WGMMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "
                 "a, b, add, 1, 1;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                   "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
                 : "r"(a), "r"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[96], u32 a, u32 b, u32 add) {
    asm volatile("{.reg .pred add; .reg .b64 a, b; setp.ne.u32 add, %98, 0;"
                 "mov.b64 a, {%96, 0x40000040}; mov.b64 b, {%97, 0x40000040};"
                 "wgmma.mma_async.sync.aligned.m64n192k32.f32." WGMMA_TYPES " {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
                 "a, b, add, 1, 1;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                   "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                   "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                   "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                   "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
                   "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
                   "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
                   "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
                   "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
                 : "r"(a), "r"(b), "r"(add));
}
