// Products of groups of rows of 16-bit numbers, of more than a few each, each group with a matrix of E2M1 or E4M3 codes of its own, by warpgroup products on Hopper: experts at prefill. Also of one matrix, where B has
// two that are multiplied side by side ("gated").
//
// Clusters walk the parts of D as small_m_groups.cuh says, and compute each as small_m_wgmma.cuh does: a row has the bits that its product alone has, split likewise. A is arranged once, all of its rows, so that a part
// finds them in two panels for each step, from a multiple of eight on.
#pragma once
#include "gemm/small_m_groups.cuh"
#include "gemm/small_m_wgmma.cuh"

template <class C> __device__ __forceinline__ void small_m_groups_wgmma(const SmallMWeightsProblem& p, const SmallMGroups& g, const uint4* arranged) {
    SmallMWalk<C::TOKENS, 8> walk(p, g);
    SmallMPlace part;
    part.round = 0;
    for (u32 unit = blockIdx.x / cluster_size(); walk.find(unit, part); unit += gridDim.x / cluster_size()) {
        if (part.round > 0) {
            // Nobody reads what the part before left in shared memory, where the copy engine writes next.
            bulk_ready();
            __syncthreads();
        }
        small_m_wgmma<C>(p, part, arranged);
        part.round++;
    }
}

// Whether a row of A is one of a group that lies in slots; of other groups all are.
__device__ __forceinline__ bool in_taken_slot(const SmallMGroups& g, u32 row) {
    if (!g.groups || g.starts) return true;
    if (!g.slot_rows) return false;
    const u32 slot = row / g.slot_rows;
    return slot < g.groups && (i64)(row - slot * g.slot_rows) < g.counts[slot];
}

// A kernel of the tables in small_m_groups_wgmma.cu.
#define SMALL_M_GROUPS_WGMMA_KERNEL(scales, WEIGHTS, number, Number, tokens, RING, BLOCKS)                                       \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                                    \
        gemm_small_m_groups_##scales##_##number##_##tokens##_wgmma(SmallMWeightsProblem p, SmallMGroups g, const uint4* arranged) { \
        begin();                                                                                                                 \
        small_m_groups_wgmma<SmallMWgmmaConfig<Number, Weights::WEIGHTS, tokens, RING, 4, true>>(p, g, arranged);                \
    }
