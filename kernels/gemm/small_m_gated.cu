// SwiGLU of two products of at most 32 rows with E4M3 operands, which lie one behind the other in B, on Hopper: see small_m.cuh. And behind other products.
#include "gemm/small_m.cuh"

// SwiGLU of two products of any kernel that stores them side by side in FP32. A number each thread.
extern "C" __global__ void __launch_bounds__(256) gemm_small_m_swiglu(
    const float* both, /* [m][2n]: gates, and what they multiply */
    u32 n,
    void* d,           /* [m][n] of d_type, rows stride_d apart */
    u64 stride_d,
    u32 d_type)
{
    begin();
    const u32 col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (col >= n) return;
    const float* const at = both + (u64)row * 2 * n + col;
    float v[1] = {at[0]};
    const float up = at[n];
    activate_each(ACTIVATION_SILU, v);
    v[0] = __fmul_rn(v[0], up);
    store_numbers(d, row * stride_d + col, d_type, v);
}

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
