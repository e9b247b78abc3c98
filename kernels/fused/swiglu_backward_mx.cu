// Gradients of SwiGLU as MXFP8, E4M3 or E5M2.
#include "cast/mx.cuh"
#include "fused/swiglu_backward.cuh"

// Codes and scale bytes as products read them; bytes of padding are written as 0, which is that of rows of zeros.
struct MxTarget {
    const MxRule& rule;
    u8 *of_codes, *block_scales;
    u32 blocks;
    __device__ __forceinline__ bool wanted() const { return true; }
    __device__ __forceinline__ u8* codes() const { return of_codes; }
    __device__ __forceinline__ u64 lines(u32 rows) const { return ((u64)rows + 127) / 128 * 128; }
    __device__ __forceinline__ u8* place(u64 row, u32 group) const { return block_scales + tiled_index(blocks, row, group); }
    __device__ __forceinline__ u64 step(u32 groups) const { return groups / 4 * 512; }
    __device__ __forceinline__ void keep(u8* place, float scale) const { *place = (u8)(__float_as_uint(scale) >> 23); }
    __device__ __forceinline__ void pad(u64 row, u32 lane) const {
        if (lane < round_up4(blocks) - blocks) block_scales[tiled_index(blocks, row, blocks + lane)] = 0;
    }
};

#define SWIGLU_BACKWARD_MX(name, T, ALIGNED, SOURCE)                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * BACKWARD_WARPS, BACKWARD_MX_BLOCKS) swiglu_backward_mx_##name(      \
        CastSource source, Backward b, u32 rows, MxRule rule,                                                             \
        u8* __restrict__ codes,         /* [rows][source.cols], 8-byte aligned */                                         \
        u8* __restrict__ block_scales)  /* tiled 128x4 of [rows][source.cols / 32], padding written as 0 */               \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        const MxTarget to{rule, codes, block_scales, source.cols / 32};                                                   \
        if (rule.format == E4M3) swiglu_backward_of<S, T, ALIGNED, E4M3, 5>(source, b, rows, to);                         \
        else swiglu_backward_of<S, T, ALIGNED, E5M2, 5>(source, b, rows, to);                                             \
    }
FOR_EACH_TYPE(BACKWARD_OF_PLAIN, SWIGLU_BACKWARD_MX)
FOR_EACH_TYPE(BACKWARD_OF_CODES, SWIGLU_BACKWARD_MX)
