// The cast of dY to both forms, and its sums over the tokens in the same pass: tiles of 128 x 128, see tile.cuh.
#include "base/codec.cuh"
#include "cast/dequantize.cuh"
#include "cast/tile.cuh"

// The sums take registers: blocks of a multiprocessor that fit without spilling.
#if __CUDA_ARCH__ >= 1000
constexpr u32 GRADIENT_BLOCKS = 2;
#else
constexpr u32 GRADIENT_BLOCKS = 3;
#endif
template <class T, bool ALIGNED> constexpr u32 gradient_blocks = sizeof(T) == 4 || !ALIGNED ? 2 : GRADIENT_BLOCKS;

#define QUANTIZE_GRADIENT(name, T, ALIGNED, NAME, GROUP)                                                                  \
    extern "C" __global__ void __launch_bounds__(256, (gradient_blocks<T, ALIGNED>)) quantize_gradient_##NAME##_##name(   \
        const T* __restrict__ x,  /* [rows][cols], row stride x_stride elements */                                        \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                 /* multiple of 16 */                                                                    \
        ScaleRule rule, TileIn in, TileOut out,                                                                           \
        double* __restrict__ sums)  /* [rows / 128 rounded up][cols] */                                                   \
    {                                                                                                                     \
        if (rule.format == E4M3) quantize_tile<T, GROUP, ALIGNED, E4M3, true>(x, x_stride, rows, cols, rule, in, out, sums); \
        else quantize_tile<T, GROUP, ALIGNED, E5M2, true>(x, x_stride, rows, cols, rule, in, out, sums);                  \
    }
FOR_EACH_TYPE(QUANTIZE_GRADIENT, tensor, PER_TENSOR)
FOR_EACH_TYPE(QUANTIZE_GRADIENT, row, PER_ROW)
FOR_EACH_TYPE(QUANTIZE_GRADIENT, 1x128, PER_1X128)
