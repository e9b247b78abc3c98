// Gradients of SwiGLU cast to E4M3 in groups of 32 or 128 columns.
#include "fused/swiglu_backward.cuh"

#define SWIGLU_BACKWARD(name, T, ALIGNED, SOURCE)                                                                         \
    extern "C" __global__ void __launch_bounds__(32 * BACKWARD_WARPS, BACKWARD_BLOCKS) swiglu_backward_##name(            \
        CastSource source, Backward b, u32 rows, CastRule rule, CastOut out)                                              \
    {                                                                                                                     \
        using S = Unwrap<void SOURCE>::Type;                                                                              \
        if (out.grid.col_shift == 7) swiglu_backward_of<S, T, ALIGNED, E4M3, 7>(source, b, rows, CastTarget{rule, out});  \
        else swiglu_backward_of<S, T, ALIGNED, E4M3, 5>(source, b, rows, CastTarget{rule, out});                          \
    }
FOR_EACH_TYPE(BACKWARD_OF_PLAIN, SWIGLU_BACKWARD)
FOR_EACH_TYPE(BACKWARD_OF_CODES, SWIGLU_BACKWARD)
