// The end of a product of few rows whose parts of k were summed by blocks that are no cluster: see small_m_tile.cuh and small_m_wgmma.cuh.
#include "gemm/small_m_tile.cuh"

// One thread an element of D, neighbours along n, blocks by rows. The parts are added in the order of k, from zero on, as blocks of a cluster do.
extern "C" __global__ void __launch_bounds__(256) gemm_small_m_join(SmallMWeightsProblem p, /* `p.parts` holds p.split parts */
                                                                    float unit /* what multiplies their sum */) {
    begin();
    const u32 token = blockIdx.y, col = blockIdx.x * 256 + threadIdx.x;
    if (col >= p.n) return;
    const u64 each = (u64)p.m * p.n;
    const float* const from = p.parts + (u64)token * p.n + col;
    float v[1] = {0.0f}, residual[1];
    // Eight at a time are on their way, also where there are fewer: the rest of a loop that is unrolled waits for each load before the next.
    for (u32 first = 0; first < p.split; first += 8) {
        float x[8];
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = first + i < p.split ? from[(first + i) * each] : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++)
            if (first + i < p.split) v[0] = __fadd_rn(v[0], x[i]);
    }
    v[0] = __fmul_rn(unit, v[0]);
    load_residual(p, token, col, residual);
    v[0] = finish_sum<true>(p, token, col, col, v[0]);
    finish(p, residual, v);
    store_numbers(p.d, token * p.stride_d + col, p.d_type, v);
}
