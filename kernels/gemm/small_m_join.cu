// The end of a product of few rows whose parts of k were summed by blocks that cannot meet in a cluster: see small_m_tile.cuh.
#include "gemm/small_m_tile.cuh"

// One thread an element of D, neighbours along n. The parts are added in the order of k, from zero on, as blocks of a cluster do.
extern "C" __global__ void __launch_bounds__(256) gemm_small_m_join(SmallMWeightsProblem p, /* `p.parts` holds p.split parts */
                                                                    float unit /* what multiplies their sum */) {
    begin();
    const u64 all = (u64)p.m * p.n, at = (u64)blockIdx.x * 256 + threadIdx.x;
    if (at >= all) return;
    const u32 token = (u32)(at / p.n), col = (u32)(at % p.n);
    float v[1] = {0.0f}, residual[1];
    for (u32 part = 0; part < p.split; part++) v[0] = __fadd_rn(v[0], p.parts[part * all + at]);
    v[0] = __fmul_rn(unit, v[0]);
    load_residual(p, token, col, residual);
    v[0] = finish_sum<true>(p, token, col, col, v[0]);
    finish(p, residual, v);
    store_numbers(p.d, token * p.stride_d + col, p.d_type, v);
}
