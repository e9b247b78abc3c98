// SwiGLU of two products of at most 32 rows with E4M3 operands, which lie one behind the other in B, on Hopper: see small_m.cuh.
#include "gemm/small_m.cuh"

#define SMALL_M_KERNEL(tokens, block, GROUPS, STEPS, RING)                                                                       \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS) gemm_small_m_gated_block_##tokens##_##block(SmallMProblem p) {    \
        small_m<SmallMConfig<tokens, 1, GROUPS, STEPS, RING, true, true>>(p);                                                    \
    }
#define SMALL_M(...)                                                                                                             \
    SMALL_M_KERNEL(8, __VA_ARGS__)                                                                                               \
    SMALL_M_KERNEL(16, __VA_ARGS__)                                                                                              \
    SMALL_M_KERNEL(32, __VA_ARGS__)

// Those of small_m_fp8.cu.
// name, warpgroups, times 128 of k a stage, stages. Mirror of `SmallMBlock` in src/gpu/kernels/small_m.rs.
SMALL_M(one, 1, 1, 4)
SMALL_M(one_deep, 1, 2, 3)
SMALL_M(two, 2, 1, 5)
