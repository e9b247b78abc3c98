// E4M3 weights as 16-bit numbers for the tensor core: see small_m_tile.cuh. Each code is such a number exactly, NaN is NaN, and four neighbours are two pairs.
#pragma once
#include "gemm/small_m_e2m1.cuh"

// Two F16 numbers, of E4M3 codes, as BF16: all 240 finite ones are in the range and the bits of both.
__device__ __forceinline__ u32 bf16_of_f16(u32 pair) {
    // What BF16 drops of FP32 numbers is zeros here.
    return __byte_perm(__float_as_uint(to_float(F16{(u16)pair})), __float_as_uint(to_float(F16{(u16)(pair >> 16)})), 0x7632);
}

// Four codes of a row as two pairs of neighbours.
__device__ __forceinline__ void neighbours_of(F16, u32 codes, u32& first, u32& second) {
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(first), "=r"(second) : "r"(codes));
#else
    first = f16_of_e4m3(codes);
    second = f16_of_e4m3(codes >> 16);
#endif
}
__device__ __forceinline__ void neighbours_of(Bf16, u32 codes, u32& first, u32& second) {
    neighbours_of(F16(), codes, first, second);
    first = bf16_of_f16(first);
    second = bf16_of_f16(second);
}
