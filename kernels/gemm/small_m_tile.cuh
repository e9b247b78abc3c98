// Products of up to 64 rows of 16-bit numbers with a matrix of E2M1 codes, D = A Bᵀ, on Hopper: one pass over the codes, each decoded once for all rows of A.
//
// A block takes the 128 rows of B that share tiles of block scales, 128 of k at a time, and the blocks of a cluster take parts of k. Codes, scales and A
// come to a ring of stages in shared memory, as more rows of A than 16 are too much to be read by each warp for itself, or to wait in registers. Which of B's
// numbers a lane decodes, and so the order in which the tensor core adds, is that of small_m_e2m1.cuh: a warp takes eight of each 32 rows, its lane l
// 32 columns from 32 (l % 4) on. What a lane wants of A at once, eight neighbours, are the units that threads copy; as codes make pairs of a number and the
// fourth behind it, who copied a unit puts it in that order, once for the four warps.
// At the end every block of the cluster takes an equal part of the 128 rows, gets the sums of all parts of k in the place of the ring, and adds them in
// the order of k: the order of sums depends on k and the split alone, and a row of D has the same bits whatever stands beside it.
#pragma once
#include "gemm/async_copy.cuh"
#include "gemm/small_m_e2m1.cuh"

// TOKENS: columns of a product, at least m. RING: stages.
template <class Number_, bool NVFP4_, u32 TOKENS_, u32 RING_> struct SmallMTileConfig {
    using Number = Number_;
    static constexpr bool NVFP4 = NVFP4_;
    static constexpr u32 TOKENS = TOKENS_, RING = RING_, ROWS = 128, THREADS = 128;
    // A stage: codes, one or two tiles of scales, A.
    static constexpr u32 SCALES = ROWS * 64, A = SCALES + 1024, STAGE = A + TOKENS * 256, SHARED = RING * STAGE;
    // In their place at the end: the parts of sums that the block gets.
    static constexpr u32 PARTS_BYTES = ROWS * TOKENS * 4;
    static_assert(PARTS_BYTES <= SHARED && SHARED <= 227 * 1024, "shared memory of a block");
};

template <class C> struct SmallMTile {
    using Number = typename C::Number;
    static constexpr u32 GROUPS = C::TOKENS / 8;
    const SmallME2m1Problem& p;
    u32 ring, end;    // steps of k, of the block
    u32 row_of_b;     // of what this thread copies: rows 32 apart
    const u8* codes;
    const u8* scales;
    u32 unit;         // columns of A, and rows eight apart
    const u16* a;
    u32 lane_row;     // what it multiplies: rows 32 apart
    u32 lane_a;       // where its units of A lie in a stage
    u32 chunk, pick;  // its columns of 128, and their scales of a row's

    __device__ __forceinline__ void load_weights(u32 step, u32 slot) const {
        const u32 to = ring + slot * C::STAGE, thread = threadIdx.x;
        const bool codes_inside = step * 128 + thread % 4 * 32 < p.k;
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            copy_16(to + (thread + 128 * j) * 16, codes + (u64)(32 * j) * (p.k / 2) + (u64)step * 64, codes_inside && row_of_b + 32 * j < p.n);
        // A tile has 64 columns of NVFP4, 128 of MXFP4.
        const u32 tile = C::NVFP4 ? 2 * step + thread / 32 : step;
        if (thread < (C::NVFP4 ? 64 : 32)) copy_16(to + C::SCALES + thread * 16, scales + (u64)tile * 512, tile < p.scale_tiles);
    }

    __device__ __forceinline__ void load_a(u32 step, u32 slot) const {
        const u32 to = ring + slot * C::STAGE, thread = threadIdx.x, col = step * 128;
        const bool a_inside = col + unit < p.k;
        const u16* from = a + col;
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++) {
            // What is beyond m is no part of a result.
            if (thread / 16 + 8 * j < p.m) copy_16(to + C::A + (thread + 128 * j) * 16, from, a_inside);
            from = once(from + 8 * p.stride_a);
        }
    }

    // The units that this thread has copied.
    __device__ __forceinline__ void arrange(u32 stage) const {
        // Two at a time: as many as there are would take registers that the sums need.
#pragma unroll
        for (u32 j = 0; j < GROUPS; j += 2) {
            const u32 at = stage + C::A + (threadIdx.x + 128 * j) * 16;
            const bool second = threadIdx.x / 16 + 8 * j + 8 < p.m;
            uint4 x, y;
            if (threadIdx.x / 16 + 8 * j < p.m) x = shared_vector(at);
            if (second) y = shared_vector(at + 2048);
            if (threadIdx.x / 16 + 8 * j < p.m) shared_store(at, pairs_of(x));
            if (second) shared_store(at + 2048, pairs_of(y));
        }
    }

    __device__ __forceinline__ void multiply(u32 step, u32 stage, float (&sum)[2][GROUPS][4]) const {
        uint4 weights[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) weights[j] = shared_vector(stage + (32 * j + lane_row) * 64 + chunk / 2);
        uint4 scale = shared_vector(stage + C::SCALES + lane_row * 16 + (C::NVFP4 ? chunk / 64 * 512 : 0));
        // Beyond k codes and A are zeros, and scales what fills their tile up.
        if (step * 128 + chunk >= p.k) scale = {0, 0, 0, 0};
        u32 by[4][2];
        scales_of<C::NVFP4>(Number(), scale, pick, by);
#pragma unroll
        for (u32 w = 0; w < 4; w++) {
            u32 upper[2][4], lower[2][4];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                numbers_of<C::NVFP4>(Number(), word(weights[2 * half], w), by[2 * half][w / 2], upper[half]);
                numbers_of<C::NVFP4>(Number(), word(weights[2 * half + 1], w), by[2 * half + 1][w / 2], lower[half]);
            }
            const u32 at = stage + (lane_a ^ w * 64);
#pragma unroll
            for (u32 t = 0; t < GROUPS; t++) {
                const uint4 x = shared_vector(at + t * 2048);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32(&u)[4] = upper[half];
                    const u32(&l)[4] = lower[half];
                    multiply_16(Number(), sum[half][t], u[0], l[0], u[1], l[1], x.x, x.y);
                    multiply_16(Number(), sum[half][t], u[2], l[2], u[3], l[3], x.z, x.w);
                }
            }
        }
    }

    // The sums over the block's part of k: of the tensor core's two products of 16 rows, by groups of eight rows of A.
    __device__ __forceinline__ void sums(u32 first, float (&sum)[2][GROUPS][4]) const {
        // Groups of copies are counted as if each stage had one: weights that came before the wait belong to the first.
        if (p.loads_early) {
#pragma unroll
            for (u32 i = 0; i < C::RING - 1; i++)
                if (first + i < end) load_weights(first + i, i);
        }
        begin();
        if (p.releases) release();
#pragma unroll
        for (u32 i = 0; i < C::RING - 1; i++) {
            if (first + i < end) {
                if (!p.loads_early) load_weights(first + i, i);
                load_a(first + i, i);
            }
            copies_commit();
        }
        u32 slot = 0;
#pragma unroll 1
        for (u32 step = first; step < end; step++) {
            const u32 stage = ring + slot * C::STAGE;
            copies_wait<C::RING - 2>();
            arrange(stage);
            // All have waited for their part of this stage, and none reads the one before, which is filled next.
            __syncthreads();
            if (step + C::RING - 1 < end) {
                const u32 free = slot == 0 ? C::RING - 1 : slot - 1;
                load_weights(step + C::RING - 1, free);
                load_a(step + C::RING - 1, free);
            }
            copies_commit();
            multiply(step, stage, sum);
            slot = slot + 1 == C::RING ? 0 : slot + 1;
        }
    }
};

// The sums of a row of B and two rows of A, over all parts of k in their order.
template <u32 PARTS> __device__ __forceinline__ float2 sum_of_parts(u32 at, u32 pitch) {
    float2 each[PARTS], v = {0.0f, 0.0f};
#pragma unroll
    for (u32 s = 0; s < PARTS; s++) each[s] = shared_pair(at + s * pitch);
#pragma unroll
    for (u32 s = 0; s < PARTS; s++) v = {__fadd_rn(v.x, each[s].x), __fadd_rn(v.y, each[s].y)};
    return v;
}

template <class C> __device__ __forceinline__ void small_m_tile(const SmallME2m1Problem& p) {
    constexpr u32 TOKENS = C::TOKENS, GROUPS = TOKENS / 8;
    extern __shared__ uint4 tile_shared[];
    const u32 base = shared_address(tile_shared);
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const u32 rank = cluster_rank(), ranks = cluster_size(), first_row = blockIdx.x / ranks * C::ROWS;
    const u32 steps = (p.k + 127) / 128, first = (u32)((u64)steps * rank / ranks);
    // Of a row's 16 units in a stage those that the lanes want at once are neighbours, and rows alternate between the halves of 128 bytes: no bank is met twice.
    const u32 place = thread % 16 ^ thread / 16 % 2 * 4, unit = (place % 4 * 4 + place / 4) * 8;
    const SmallMTile<C> m = {p,
                             base,
                             (u32)((u64)steps * (rank + 1) / ranks),
                             first_row + thread / 4,
                             once(p.b + (u64)(first_row + thread / 4) * (p.k / 2) + thread % 4 * 16),
                             once(p.block_scales + (u64)(first_row / 128) * p.scale_tiles * 512 + thread % 32 * 16),
                             unit,
                             once((const u16*)p.a + (u64)(thread / 16) * p.stride_a + unit),
                             warp * 8 + lane / 4,
                             C::A + lane / 4 * 256 + (lane / 4 % 2 * 64) + lane % 4 * 16,
                             lane % 4 * 32,
                             pick_of<C::NVFP4>(lane)};
    // What the end reads of vectors: on its way to L2 while B is read.
    if (thread < 4 && first_row + 32 * thread < p.n) {
        const u32 at = first_row + 32 * thread;
        if (p.scales_b) prefetch_line(p.scales_b + at * p.b_step);
        if (p.bias) prefetch_line((const char*)p.bias + (u64)at * (p.bias_type == 2 ? 4 : 2));
    }
    float sum[2][GROUPS][4] = {};
    m.sums(first, sum);

    // The ring is read by nobody any more, in no block of the cluster. (There is no room for an mbarrier beside it, and one in its place racecheck takes for
    // a race with what was read there before the barrier: the cluster's own barrier says when all parts are there.)
    if (ranks > 1) cluster_sync();
    else __syncthreads();
    // To each block of the cluster its rows of this part.
    const u32 rows = C::ROWS / ranks;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        const u32 r = 32 * j + m.lane_row, to = r / rows;
#pragma unroll
        for (u32 t = 0; t < GROUPS; t++) {
            const u32 at = base + ((rank * (TOKENS / 2) + t * 4 + lane % 4) * rows + r % rows) * 8;
            const float x = sum[j / 2][t][2 * (j % 2)], y = sum[j / 2][t][2 * (j % 2) + 1];
            if (ranks == 1) shared_store_pair(at, x, y);
            else store_pair_in_cluster(at_rank(at, to), x, y);
        }
    }
    if (ranks > 1) cluster_sync();
    else __syncthreads();
    const u32 pitch = TOKENS / 2 * rows * 8;
    for (u32 o = thread; o < rows * ((p.m + 1) / 2); o += C::THREADS) {
        const u32 pair = o / rows, r = o % rows, col = first_row + rank * rows + r, at = base + o * 8;
        if (col >= p.n) continue;
        const float2 both = ranks == 1   ? sum_of_parts<1>(at, pitch)
                            : ranks == 2 ? sum_of_parts<2>(at, pitch)
                            : ranks == 4 ? sum_of_parts<4>(at, pitch)
                                         : sum_of_parts<8>(at, pitch);
#pragma unroll 1
        for (u32 token = 2 * pair; token < min(2 * pair + 2, p.m); token++) {
            float v[1] = {token % 2 ? both.y : both.x}, residual[1];
            if (C::NVFP4) v[0] = __fmul_rn(Unit<typename C::Number>::NVFP4, v[0]);
            load_residual(p, token, col, residual);
            v[0] = finish_sum<true>(p, token, col, col, v[0]);
            finish(p, residual, v);
            store_numbers(p.d, token * p.stride_d + col, p.d_type, v);
        }
    }
}
