// Warpgroup products of 16-bit numbers, those of A in registers: see wgmma.cuh for their sums, B's descriptor and how products are waited for. Of B rows of 128 bytes are 64 numbers, and the
// next 16 of k are + 2 in the descriptor.
// D[64, N] (FP32) = A[64, 16] B[N, 16]T, added to D or starting anew. Of A lane l of warp w has pairs of columns: a[0] of row 16w + l / 4 the columns 2 (l % 4) and the next, a[1] the same eight rows
// below, a[2] and a[3] eight columns further.
#pragma once
#include "gemm/wgmma.cuh"

struct Bf16;
struct F16;

#define WGMMA_NAMES_24 WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_SUMS_24(i) WGMMA_SUMS_16(i), WGMMA_SUMS_8(i + 16)

#define WGMMA_16BIT(Number, type, N, SUMS, A0, A1, A2, A3, B, ADD)                                                                \
    __device__ __forceinline__ void wgmma_16bit(Number, float (&d)[SUMS], const u32* a, u32 b, u32 add) {                         \
        asm volatile("{.reg .pred add; .reg .b64 b; setp.ne.u32 add, %" #ADD ", 0; mov.b64 b, {%" #B ", 0x40000040};"            \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" WGMMA_NAMES_##SUMS "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, b, add, 1, 1, 0;}" \
                     : WGMMA_SUMS_##SUMS(0)                                                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));                                             \
    }
#define WGMMA_16BIT_EACH(...)                                                                                                     \
    WGMMA_16BIT(Bf16, "bf16", __VA_ARGS__)                                                                                        \
    WGMMA_16BIT(F16, "f16", __VA_ARGS__)

// columns, accumulators, numbers of the operands a, b and `add`.
WGMMA_16BIT_EACH(16, 8, 8, 9, 10, 11, 12, 13)
WGMMA_16BIT_EACH(32, 16, 16, 17, 18, 19, 20, 21)
WGMMA_16BIT_EACH(48, 24, 24, 25, 26, 27, 28, 29)
WGMMA_16BIT_EACH(64, 32, 32, 33, 34, 35, 36, 37)
