// Products of at most 32 rows with E4M3 operands, on Hopper: see small_m.cuh.
#include "gemm/small_m.cuh"

#define SMALL_M_KERNEL(scales, BLOCKS, tokens, block, GROUPS, STEPS, FEW, MORE)                                                  \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS) gemm_small_m_##scales##_##tokens##_##block(SmallMProblem p) {       \
        small_m<SmallMConfig<tokens, 1, GROUPS, STEPS, tokens <= 8 ? FEW : MORE, BLOCKS>>(p);                                    \
    }
#define SMALL_M(...)                                                                                                             \
    SMALL_M_KERNEL(block, true, 8, __VA_ARGS__)                                                                                  \
    SMALL_M_KERNEL(block, true, 16, __VA_ARGS__)                                                                                 \
    SMALL_M_KERNEL(block, true, 32, __VA_ARGS__)                                                                                 \
    SMALL_M_KERNEL(outer, false, 8, __VA_ARGS__)                                                                                 \
    SMALL_M_KERNEL(outer, false, 16, __VA_ARGS__)                                                                                \
    SMALL_M_KERNEL(outer, false, 32, __VA_ARGS__)

// Measured (H200, 2026-11) against two and four warpgroups with rings of 3 to 6 stages, and 128 rows of B: one of these three is the fastest, or
// within 2 % of it, at ten published shapes and m of 1 to 16.
// name, warpgroups, times 128 of k a stage, stages with up to eight rows of A and with more. Mirror of `SmallMBlock` in src/gpu/kernels/small_m.rs.
SMALL_M(one, 1, 1, 4, 4)
SMALL_M(one_deep, 1, 2, 3, 3)
SMALL_M(two, 2, 1, 6, 5)

// The end of a chain: launched without programmatic serialization, it begins when all before it has ended, and so does what follows.
extern "C" __global__ void gemm_small_m_end_of_chain() { begin(); }
