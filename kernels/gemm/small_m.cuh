// Products of few rows, D = A Bᵀ with E4M3 operands, on Hopper: one pass over B, at the rate of the memory.
//
// The tensor core's 64 rows are rows of B, its columns the rows of A ("tokens"): m of them cost what eight do. A block takes 64 rows of
// B, and its warpgroups parts of k; the blocks of a cluster take parts of k, too, so that every multiprocessor has its share of B. Each warpgroup
// has a ring of stages of its own: B, A and scales for 128 of k, which its threads copy, RING - 1 stages ahead (links of chains, with up to 16 rows, all of the ring before they multiply). Products of a stage are waited for,
// and added times their scales to FP32 sums ("promotion": tensor cores keep some 14 bits of FP8 sums). At the end every block of the cluster takes an
// equal part of the 64 rows, gets the sums of all parts of k through shared memory, adds them in the order of k, and finishes them. So the
// order of sums depends on k, the split and the warpgroups alone, and a row of D has the same bits whatever stands beside it.
#pragma once
#include "gemm/async_copy.cuh"
#include "gemm/finish.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/wgmma.cuh"

// Mirror of the struct of the same name in src/gpu/kernels/small_m.rs.
struct SmallMProblem {
    u32 m, n, k;
    u32 b_step, a_step;     // elements from the scale of a row to the next: 1, or 0 for one number; not of blocks
    u32 pitch_a, pitch_b;   // of blocks: from the scales of 128 columns to the next, and of 128 rows
    u32 bias_type, residual_type, d_type, activation;
    // In links of chains: with how many stages left the next kernel is released (0: by the end), and whether weights are loaded before the wait.
    // See `release` of base/launch.cuh.
    u32 releases, loads_early;
    float alpha, beta;
    const u8* a;            // E4M3 [m][k]
    const u8* b;            // E4M3 [n][k]
    const float* scales_a;  // of blocks VEC128
    const float* scales_b;  // of blocks BLK128
    const void* bias;       // [n]; null: none
    const void* residual;   // [m][n], rows `stride_residual` apart; null: none
    void* d;                // [m][n], rows `stride_d` apart
    u64 stride_residual, stride_d;
};

__device__ __forceinline__ void prefetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// The warpgroup's own barrier.
__device__ __forceinline__ void warpgroup_sync(u32 group) {
    if (group == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
    else asm volatile("bar.sync 2, 128;" ::: "memory");
}

// The sum over all parts, in their order; FOURS: they are a multiple of four. Four are asked for together; zeros in the place of those that there are not change nothing: no sum that begins with 0 is -0.
template <bool FOURS> __device__ __forceinline__ float add_parts(u32 at, u32 pitch, u32 parts) {
    float sum = 0.0f;
    for (u32 s = 0; s < parts; s += 4) {
        float each[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) each[i] = FOURS || s + i < parts ? shared_float(at + (s + i) * pitch) : 0.0f;
#pragma unroll
        for (u32 i = 0; i < 4; i++) sum = __fadd_rn(sum, each[i]);
    }
    return sum;
}

// Whether D is its sums, times alpha and outer scales.
template <class P> __device__ __forceinline__ bool ends_plain(const P& p) { return !p.bias && !p.residual && !p.activation && p.beta == 0.0f; }

// TOKENS: columns of a product, at least m. ATOMS: times 64 rows of B, the block's. GROUPS: warpgroups, each with a part of k. STEPS: times 128 of k, a
// stage. BLOCKS: scales of 1x128 and 128x128; else of rows, or of whole matrices. GATED: B has two matrices of n rows, one behind the other, and D = activation(A Gᵀ) ∘ (A Uᵀ):
// half of the block's rows of B are G's, those of its first warps, and the others U's.
template <u32 TOKENS_, u32 ATOMS_, u32 GROUPS_, u32 STEPS_, u32 RING_, bool BLOCKS_, bool GATED_ = false> struct SmallMConfig {
    static constexpr u32 TOKENS = TOKENS_, ATOMS = ATOMS_, GROUPS = GROUPS_, STEPS = STEPS_, RING = RING_;
    static constexpr bool BLOCKS = BLOCKS_, GATED = GATED_;
    static constexpr u32 ROWS = 64 * ATOMS, THREADS = 128 * GROUPS;
    // Links of chains ask for the weights of EARLY stages before they wait for the kernel before, of PACE at once: what comes in turn keeps the queues of the memory short, in which the end of the kernel before stands, too, and
    // A behind it. Of up to 16 rows they fill the ring with them before they multiply (H200, 2026-11, the record of paced links: 4096 x 7168, m = 1, 8.0 us become 7.5, and 7.8 by `one`, 7.3).
    static constexpr bool PACED = TOKENS <= 16;
    static constexpr u32 EARLY = !PACED ? (RING > 4 ? RING - 2 : 2) : GROUPS > 1 ? 4 : STEPS > 1 ? 2 : 3;
    static constexpr u32 PACE = !PACED ? EARLY : STEPS > 1 ? 1 : 2;
    static constexpr u32 FILL = PACED ? RING : RING - 1;
    // Columns of D, and matrices in B.
    static constexpr u32 MATRICES = GATED ? 2 : 1, COLUMNS = ROWS / MATRICES;
    // Shared memory: the rings of the warpgroups, the parts of sums that the block gets, the rings' scales, a barrier.
    static constexpr u32 B_BYTES = ROWS * 128, A_BYTES = TOKENS * 128, STEP = B_BYTES + A_BYTES, STAGE = STEPS * STEP;
    static constexpr u32 SCALES_STEP = TOKENS * 4 + 16, SCALES_STAGE = STEPS * SCALES_STEP;
    static constexpr u32 PARTS = GROUPS * RING * STAGE, PARTS_BYTES = ROWS * TOKENS * 4 * GROUPS;
    static constexpr u32 SCALES = PARTS + PARTS_BYTES, BARRIER = SCALES + GROUPS * RING * SCALES_STAGE;
    static constexpr u32 SHARED = BARRIER + 16;
    static_assert(EARLY <= FILL, "they have places in the ring");
    static_assert(GROUPS <= 2 && ATOMS <= 2, "barriers of warpgroups; the rows of a block lie in one tile of scales");
    static_assert(SHARED <= 227 * 1024, "shared memory of a block");
    static_assert(!GATED || (BLOCKS && ATOMS == 1), "a warp has rows of one matrix; scales of two tiles");
};

template <class C> struct SmallM {
    static constexpr u32 TOKENS = C::TOKENS, ATOMS = C::ATOMS, STEPS = C::STEPS, RING = C::RING;
    const SmallMProblem& p;
    u32 thread, warp, lane;
    u32 ring, scales;     // of this warpgroup
    u32 first, count;     // its blocks of 128 of k
    u32 row, chunk;       // what this thread copies of B: every fourth of 16 rows, of each 16 bytes
    u32 row_of_b;
    const u8* b;
    const float* scales_b;

    // 16 rows of B for each warp and atom, four at a time, eight lanes for the 128 bytes of one; A likewise.
    // Of a step its weights, which are B and its scales, or what the kernel before may have written, or both.
    template <bool WEIGHTS, bool REST> __device__ __forceinline__ void load_step(u32 step, u32 to, u32 scales_to) const {
        const u32 block = first + step, col = block * 128 + chunk * 16;
        const bool inside = step < count && col < p.k;
        if (WEIGHTS) {
#pragma unroll
            for (u32 j = 0; j < 4 * ATOMS; j++) {
                const u32 r = row + 4 * j;
                copy_16(to + r * 128 + ((chunk ^ r % 8) * 16), b + (u64)(4 * j) * p.k + col, inside && row_of_b + 4 * j < C::MATRICES * p.n);
            }
            // Of the other matrix the last thread but one.
            if (C::BLOCKS && thread >= 128 - C::MATRICES)
                copy_4(scales_to + TOKENS * 4 + (127 - thread) * 4, scales_b + (u64)((127 - thread) * (p.n / 128)) * p.pitch_b + block, step < count);
        }
        if (REST) {
#pragma unroll
            for (u32 j = 0; j < (TOKENS * 8 + 127) / 128; j++) {
                const u32 token = (thread + j * 128) / 8;
                // What is beyond m is no part of a result.
                if (token < p.m && token < TOKENS)
                    copy_16(to + C::B_BYTES + token * 128 + ((chunk ^ token % 8) * 16), p.a + (u64)token * p.k + col, inside);
            }
            if (C::BLOCKS && thread * 4 < p.m)
                copy_16(scales_to + thread * 16, p.scales_a + (u64)block * p.pitch_a + thread * 4, step < count);
        }
    }

    template <bool WEIGHTS, bool REST> __device__ __forceinline__ void load(u32 stage, u32 slot) const {
#pragma unroll
        for (u32 s = 0; s < STEPS; s++)
            load_step<WEIGHTS, REST>(stage * STEPS + s, ring + slot * C::STAGE + s * C::STEP, scales + slot * C::SCALES_STAGE + s * C::SCALES_STEP);
    }

    __device__ __forceinline__ void promote(const float (&d)[TOKENS / 2], float (&sum)[TOKENS / 2], u32 at, float scale) const {
#pragma unroll
        for (u32 g = 0; g < TOKENS / 8; g++) {
            float x = 1.0f, y = 1.0f;
            if (C::BLOCKS) {
                const u32 token = g * 8 + lane % 4 * 2;
                x = __fmul_rn(shared_float(at + token * 4), scale);
                y = __fmul_rn(shared_float(at + token * 4 + 4), scale);
            }
            sum[4 * g] = __fmaf_rn(d[4 * g], x, sum[4 * g]);
            sum[4 * g + 1] = __fmaf_rn(d[4 * g + 1], y, sum[4 * g + 1]);
            sum[4 * g + 2] = __fmaf_rn(d[4 * g + 2], x, sum[4 * g + 2]);
            sum[4 * g + 3] = __fmaf_rn(d[4 * g + 3], y, sum[4 * g + 3]);
        }
    }

    // Waits for this thread's part of a stage. All but what is behind it may be on its way: the stages that follow, as many as are asked for ahead. Where weights came
    // early the first stage waits for all that is no weight, which was asked for behind them, and so for them.
    template <bool LOADED_EARLY> __device__ __forceinline__ void wait_for_stage(u32 i) const {
        if (LOADED_EARLY && i == 0) copies_wait<C::FILL - C::EARLY>();
        else copies_wait<RING - 2>();
    }

    // The sums over this warpgroup's part of k. LOADED_EARLY: as `p` says, which a loop of its own need not ask for each stage.
    template <bool LOADED_EARLY> __device__ __forceinline__ void sums(u32 group, float (&sum)[ATOMS][TOKENS / 2]) const {
        float d[STEPS][ATOMS][TOKENS / 2];
#pragma unroll
        for (u32 a = 0; a < ATOMS; a++)
#pragma unroll
            for (u32 i = 0; i < TOKENS / 2; i++) sum[a][i] = 0.0f;
        const u32 stages = (count + STEPS - 1) / STEPS, release_at = p.releases ? stages - min(stages, p.releases) : stages;
        u32 slot = 0;
        for (u32 i = 0; i < stages; i++) {
            if (i == release_at) release();
            wait_for_stage<LOADED_EARLY>(i);
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            // All have waited for their part of this stage, and none reads the one before, which is filled next.
            warpgroup_sync(group);
#pragma unroll
            for (u32 s = 0; s < STEPS; s++)
#pragma unroll
                for (u32 a = 0; a < ATOMS; a++) hold(d[s][a]);
            wgmma_fence();
#pragma unroll
            for (u32 s = 0; s < STEPS; s++) {
                const u32 at = ring + slot * C::STAGE + s * C::STEP;
#pragma unroll
                for (u32 a = 0; a < ATOMS; a++)
#pragma unroll
                    for (u32 k = 0; k < 4; k++)
                        wgmma(d[s][a], wgmma_operand(at) + a * 512 + 2 * k, wgmma_operand(at + C::B_BYTES) + 2 * k, k != 0);
            }
            wgmma_commit();
            // While they run. (A link that has filled its ring waits for the first place.)
            if (!LOADED_EARLY || C::FILL < RING || i > 0) {
                if (i + RING - 1 < stages) load<true, true>(i + RING - 1, slot == 0 ? RING - 1 : slot - 1);
                copies_commit();
            }
            wgmma_wait<0>();
#pragma unroll
            for (u32 s = 0; s < STEPS; s++) {
                const u32 at = scales + slot * C::SCALES_STAGE + s * C::SCALES_STEP;
                const float scale = C::BLOCKS ? shared_float(at + TOKENS * 4 + (C::GATED ? warp / 2 * 4 : 0)) : 1.0f;
#pragma unroll
                for (u32 a = 0; a < ATOMS; a++) {
                    hold(d[s][a]);
                    promote(d[s][a], sum[a], at, scale);
                }
            }
            slot = slot + 1 == RING ? 0 : slot + 1;
        }
    }
};

// Adds the parts of the block's sums, from `got` on in its shared memory, finishes and stores them.
template <class C, bool PLAIN>
__device__ __forceinline__ void small_m_end(const SmallMProblem& p, u32 got, u32 first_row, u32 rank, u32 log_columns, u32 parts) {
    constexpr u32 TOKENS = C::TOKENS;
    const u32 columns = 1u << log_columns, pitch = columns * C::MATRICES * TOKENS * 4;
    for (u32 o = threadIdx.x; o < columns * p.m; o += C::THREADS) {
        const u32 token = o >> log_columns, r = o & (columns - 1), col = first_row + (rank << log_columns) + r;
        if (col >= p.n) continue;
        const u32 at = got + (r * TOKENS + token) * 4;
        float v[1] = {add_parts<false>(at, pitch, parts)};
        if constexpr (PLAIN) {
            v[0] = finish_sum<!C::BLOCKS, true>(p, token, col, col, v[0]);
        } else {
            const float up = C::GATED ? add_parts<false>(at + columns * TOKENS * 4, pitch, parts) : 0.0f;
            float residual[1];
            load_residual(p, token, col, residual);
            v[0] = finish_sum<!C::BLOCKS>(p, token, col, col, v[0]);
            finish(p, residual, v);
            if (C::GATED) v[0] = __fmul_rn(v[0], __fmul_rn(p.alpha, up));
        }
        store_numbers(p.d, token * p.stride_d + col, p.d_type, v);
    }
}

template <class C> __device__ __forceinline__ void small_m(const SmallMProblem& p) {
    constexpr u32 TOKENS = C::TOKENS;
    extern __shared__ __align__(1024) uint4 small_m_shared[];
    const u32 base = shared_address(small_m_shared), arrived = base + C::BARRIER;
    const u32 thread = threadIdx.x % 128, group = threadIdx.x / 128, warp = thread / 32, lane = thread % 32;
    // Powers of two, as the numbers of ranks and warpgroups are: what stands before the first copy, and behind the last product, is waited for (64-bit divisions
    // here, and 32-bit ones at the end, took 0.3 us each: H200, 2026-11).
    const u32 rank = cluster_rank(), ranks = cluster_size(), log_ranks = __popc(ranks - 1), first_row = (blockIdx.x >> log_ranks) * C::COLUMNS;
    const u32 blocks = (p.k + 127) / 128, parts = ranks * C::GROUPS, log_parts = log_ranks + C::GROUPS / 2, part = rank * C::GROUPS + group;
    const u32 first = blocks * part >> log_parts, end = blocks * (part + 1) >> log_parts;
    const u32 row = warp * 16 * C::ATOMS + lane / 8, row_of_b = first_row + row + (C::GATED && warp >= 2 ? p.n - C::COLUMNS : 0);
    const SmallM<C> m = {p, thread, warp, lane, base + group * C::RING * C::STAGE, base + C::SCALES + group * C::RING * C::SCALES_STAGE,
                         first, end - first, row, lane % 8, row_of_b, p.b + (u64)row_of_b * p.k,
                         p.scales_b + (u64)(first_row / 128) * p.pitch_b};
    if (threadIdx.x == 0 && ranks > 1) {
        barrier_init(arrived, 1);
        barriers_ready();
    }
    const u32 stages = (m.count + C::STEPS - 1) / C::STEPS;
    // A shorter walk has nothing to wait in turn for (observed: H200, 2026-11).
    constexpr u32 PACED_FROM = 3;
    // Groups of copies: one for each stage; or the weights of some, one each, then the rest of all of them, then the weights of the others.
    if (p.loads_early) {
#pragma unroll
        for (u32 i = 0; i < C::EARLY; i++) {
            if (i >= C::PACE && stages > PACED_FROM) copies_wait<C::PACE - 1>();
            if (i < stages) m.template load<true, false>(i, i);
            copies_commit();
        }
        begin();
#pragma unroll
        for (u32 i = 0; i < C::FILL; i++)
            if (i < stages) m.template load<false, true>(i, i);
        copies_commit();
#pragma unroll
        for (u32 i = C::EARLY; i < C::FILL; i++) {
            if (i < stages) m.template load<true, false>(i, i);
            copies_commit();
        }
    } else {
        begin();
#pragma unroll
        for (u32 i = 0; i < C::RING - 1; i++) {
            if (i < stages) m.template load<true, true>(i, i);
            copies_commit();
        }
    }
    // What the end reads of vectors: on its way to L2 while B is read.
    if (threadIdx.x % 8 == 0 && threadIdx.x < C::COLUMNS && first_row + threadIdx.x < p.n) {
        if (!C::BLOCKS) prefetch_line(p.scales_b + (first_row + threadIdx.x) * p.b_step);
        if (p.bias) prefetch_line((const char*)p.bias + (u64)(first_row + threadIdx.x) * (p.bias_type == 2 ? 4 : 2));
    }
    __syncwarp();
    cluster_arrive_relaxed();
    float sum[C::ATOMS][TOKENS / 2];
    if (p.loads_early) m.template sums<true>(group, sum);
    else m.template sums<false>(group, sum);

    // To each block of the cluster its rows of this part. Some may be here before their number is announced: they count all the same.
    cluster_wait();
    if (threadIdx.x == 0 && ranks > 1) barrier_expect(arrived, C::PARTS_BYTES);
    __syncwarp();
    const u32 rows = C::ROWS >> log_ranks, log_columns = 31 - __clz(C::COLUMNS) - log_ranks, columns = 1u << log_columns;
#pragma unroll
    for (u32 h = 0; h < 2 * C::ATOMS; h++) {
        const u32 r = h / 2 * 64 + warp * 16 + lane / 4 + h % 2 * 8, of_matrix = r % C::COLUMNS, to = of_matrix >> log_columns, barrier = at_rank(arrived, to);
        const u32 in_block = (of_matrix & (columns - 1)) + (r / C::COLUMNS << log_columns);
#pragma unroll
        for (u32 g = 0; g < TOKENS / 8; g++) {
            const u32 at = base + C::PARTS + ((part * rows + in_block) * TOKENS + g * 8 + lane % 4 * 2) * 4;
            const float x = sum[h / 2][4 * g + 2 * (h % 2)], y = sum[h / 2][4 * g + 2 * (h % 2) + 1];
            if (ranks == 1) shared_store_pair(at, x, y);
            else store_pair_at(at_rank(at, to), x, y, barrier);
        }
    }
    if (ranks == 1) __syncthreads();
    else barrier_wait(arrived, 0);
    // Of plain sums by a loop of its own: what else may follow them is asked for once, and not for each.
    if (!C::GATED && ends_plain(p)) small_m_end<C, true>(p, base + C::PARTS, first_row, rank, log_columns, parts);
    else small_m_end<C, false>(p, base + C::PARTS, first_row, rank, log_columns, parts);
}
