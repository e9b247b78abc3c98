// SwiGLU of two products of at most 32 rows with E4M3 operands, which lie one behind the other in B, on Hopper: see small_m.cuh. And behind other products.
#include "base/codec.cuh"
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

// The same to E4M3 codes with 1x128 scales, the bytes of the quantizer (cast/fp8_group.cu) of the same FP32 numbers. 128 columns of a row each warp.
extern "C" __global__ void __launch_bounds__(256) gemm_small_m_swiglu_codes(
    const float* both, /* [m][2n]: gates, and what they multiply; n a multiple of 128, 16-byte aligned */
    u32 n,
    ScaleRule rule,
    u8* codes,         /* [m][n] */
    float* scales,     /* VEC128, from those of 128 columns to the next `pitch` */
    u32 pitch)
{
    begin();
    const u32 warp = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y;
    if (warp * 128 >= n) return;
    const float* const at = both + (u64)row * 2 * n + warp * 128 + lane * 4;
    const float4 gates = *(const float4*)at, ups = *(const float4*)(at + n);
    float v[4] = {gates.x, gates.y, gates.z, gates.w};
    const float up[4] = {ups.x, ups.y, ups.z, ups.w};
    activate_each(ACTIVATION_SILU, v);
    float amax = 0.0f;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        v[i] = __fmul_rn(v[i], up[i]);
        amax = fmaxf(amax, fabsf(v[i]));  // NaN left out
    }
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, step));
    const GroupScale s = group_scale(rule, amax);
    if (lane == 0) scales[(u64)warp * pitch + row] = s.scale;
    const u32 four = encode_pair<E4M3>(__fmul_rn(v[0], s.encode), __fmul_rn(v[1], s.encode)) | encode_pair<E4M3>(__fmul_rn(v[2], s.encode), __fmul_rn(v[3], s.encode)) << 16;
    *(u32*)(codes + (u64)row * n + warp * 128 + lane * 4) = four;
}

#define SMALL_M_KERNEL(tokens, block, GROUPS, STEPS, FEW, MORE)                                                                  \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS) gemm_small_m_gated_block_##tokens##_##block(SmallMProblem p) {    \
        small_m<SmallMConfig<tokens, 1, GROUPS, STEPS, tokens <= 8 ? FEW : MORE, true, true>>(p);                                \
    }
#define SMALL_M(...)                                                                                                             \
    SMALL_M_KERNEL(8, __VA_ARGS__)                                                                                               \
    SMALL_M_KERNEL(16, __VA_ARGS__)                                                                                              \
    SMALL_M_KERNEL(32, __VA_ARGS__)

// Those of small_m_fp8.cu.
// name, warpgroups, times 128 of k a stage, stages with up to eight rows of A and with more. Mirror of `SmallMBlock` in src/gpu/kernels/small_m.rs.
SMALL_M(one, 1, 1, 4, 4)
SMALL_M(one_deep, 1, 2, 3, 3)
SMALL_M(two, 2, 1, 6, 5)
