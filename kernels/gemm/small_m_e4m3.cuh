// E4M3 weights as 16-bit numbers for the tensor core: see small_m_tile.cuh. Each code is such a number exactly, NaN is NaN, and four neighbours are two pairs.
#pragma once
#include "gemm/small_m_e2m1.cuh"

// Two F16 numbers, of E4M3 codes, as BF16: all 240 finite ones are in the range and the bits of both.
__device__ __forceinline__ u32 bf16_of_f16(u32 pair) {
    // What BF16 drops of FP32 numbers is zeros here.
    return __byte_perm(__float_as_uint(to_float(F16{(u16)pair})), __float_as_uint(to_float(F16{(u16)(pair >> 16)})), 0x7632);
}
__device__ __forceinline__ u32 number_pair(Bf16, u32 codes) { return bf16_of_f16(f16_of_e4m3(codes)); }
__device__ __forceinline__ u32 number_pair(F16, u32 codes) { return f16_of_e4m3(codes); }

// Eight codes of a row as four pairs of neighbours.
template <class Number> __device__ __forceinline__ void neighbours_of(Number number, u32 low, u32 high, u32 (&pairs)[4]) {
    pairs[0] = number_pair(number, low);
    pairs[1] = number_pair(number, low >> 16);
    pairs[2] = number_pair(number, high);
    pairs[3] = number_pair(number, high >> 16);
}
