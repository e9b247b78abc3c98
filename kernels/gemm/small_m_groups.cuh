// Products of groups of rows of 16-bit numbers, made for few of each, each group with a matrix of E2M1 or E4M3 codes of its own, on Hopper: the experts of a layer. Also of
// one matrix, where B has two that are multiplied side by side ("gated").
//
// Clusters are persistent, but where all rows are one group's: each walks the parts of D with its own number modulo the grid, and computes each as small_m_tile.cuh does, in the same order of
// sums: a row has the bits that its product alone has, split likewise. What device memory says of the groups decides which parts there are, so that
// the matrices of groups without rows are not read. More rows of a group than TOKENS are parts one behind the other in the walk: clusters that run at once multiply
// them, and all but one find the codes in L2.
#pragma once
#include "gemm/groups.cuh"
#include "gemm/small_m_tile.cuh"

// Mirror of the struct of the same name in src/gpu/kernels/small_m_groups.rs. `m` of the problem is A's rows, `n` the columns of D, a multiple of 128.
struct SmallMGroups {
    const i64* starts;  // first rows; null: in slots
    const i64* counts;  // rows
    u32 groups;         // 0: all rows are one group's
    u32 slot_rows, gated;
};

// The parts of D of a cluster, in order. Every warp walks for itself. PANEL: what a part's rows are counted from is a multiple of it.
template <u32 TOKENS, u32 PANEL = 1> struct SmallMWalk {
    const SmallMWeightsProblem& p;
    const SmallMGroups& g;
    // Of a product that is gated, halves of as many columns.
    const u32 tiles;
    GroupWalk<4> groups;

    __device__ __forceinline__ static u32 chunks(u32 start, u32 rows) { return rows == 0 ? 0 : (start % PANEL + rows + TOKENS - 1) / TOKENS; }
    __device__ __forceinline__ u32 units_of(u32 start, u32 rows) const { return chunks(start, rows) * tiles; }

    __device__ __forceinline__ SmallMWalk(const SmallMWeightsProblem& p, const SmallMGroups& g) : p(p), g(g), tiles(p.n / (g.gated ? 64 : 128)) {
        if (!g.groups) return;
        // All lines on their way at once: the walk finds them in L1.
        for (u32 at = threadIdx.x * 16; at < g.groups; at += blockDim.x * 16) {
            if (g.starts) touch(g.starts + at);
            touch(g.counts + at);
        }
        groups.load(g, p.m, [&](u32 start, u32 rows) { return units_of(start, rows); });
    }
    __device__ __forceinline__ static void touch(const i64* p) {
        i64 unused;
        asm volatile("ld.global.s64 %0, [%1];" : "=l"(unused) : "l"(p));
    }

    // Which part unit number `unit` is; numbers increase. All lanes of a warp together.
    __device__ __forceinline__ bool find(u32 unit, SmallMPlace& part) {
        UnitOfGroup of = {0, 0, p.m, unit};
        if (g.groups && !groups.find(g, p.m, [&](u32 start, u32 rows) { return units_of(start, rows); }, unit, of)) return false;
        const u32 each = chunks(of.start, of.count), tile = of.inside / each, chunk = of.inside - tile * each;
        if (tile >= tiles) return false;  // of one group
        const u32 lead = of.start % PANEL, from = chunk == 0 ? 0 : chunk * TOKENS - lead;
        part.m = min(of.count - from, chunk == 0 ? TOKENS - lead : TOKENS);
        part.row = of.start + from;
        part.b_row = of.group * p.n * (g.gated ? 2 : 1);
        part.gated = g.gated;
        part.col = tile * part.columns();
        return true;
    }
};

template <class C> __device__ __forceinline__ void small_m_groups(const SmallMWeightsProblem& p, const SmallMGroups& g) {
    SmallMWalk<C::TOKENS> walk(p, g);
    SmallMPlace part;
    part.round = 0;
    for (u32 unit = blockIdx.x / cluster_size(); walk.find(unit, part); unit += gridDim.x / cluster_size()) {
        // Nobody reads what the part before left in shared memory.
        if (part.round > 0) __syncthreads();
        small_m_tile<C>(p, part);
        part.round++;
    }
}

// A kernel of the tables in small_m_groups_e2m1.cu and small_m_groups_e4m3.cu.
#define SMALL_M_GROUPS_KERNEL(scales, WEIGHTS, number, Number, tokens, RING, BLOCKS)                                             \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                                                    \
        gemm_small_m_groups_##scales##_##number##_##tokens(SmallMWeightsProblem p, SmallMGroups g) {                             \
        begin();                                                                                                                 \
        small_m_groups<SmallMTileConfig<Number, Weights::WEIGHTS, tokens, RING, true>>(p, g);                                    \
    }
