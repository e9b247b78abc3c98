// Products of up to 64 rows of 16-bit numbers with a matrix of E2M1 or E4M3 codes, D = A Bᵀ, by warpgroup products on Hopper: one pass over the codes, each decoded once.
//
// A block takes 128 rows of B, each of its two warpgroups 64 of them as the first operand of the tensor core, decoded into registers, and several blocks take parts of k each. The
// tensor core reads A from shared memory itself, so that a row of A costs no loads of the warps. Which rows and columns a lane decodes is that of small_m_tile.cuh, and so are the order
// of sums and their bits: a warp has eight of each 32 rows, its lane l 32 columns of each 128 from 32 (l % 4) on, four of them a product.
// Codes and scales of B are copied by the lane that decodes them, RING steps ahead, and nobody else waits for them; of E4M3, whose 32 codes are two units of 16 bytes, by the four lanes of a row,
// which copy neighbouring units at once. A product's 16 columns are four of each 32, so that A is brought into that order
// before, by a kernel of its own that leaves for each step of 128 columns the bytes of a stage, swizzled (`small_m_arrange`): one bulk copy brings them. While that kernel runs the first codes of B are on their way.
// At the end every block of a cluster takes an equal part of the 128 rows, gets the sums of all parts of k through shared memory, and adds them in the order of k. Clusters do not fill every part of the
// GPU: where some would stand with another on the same multiprocessors, blocks that share rows of B are no cluster, but leave their sums in memory (`p.parts`), and small_m_join.cu adds them in the same order.
#pragma once
#include "gemm/small_m_tile.cuh"
#include "gemm/wgmma_16bit.cuh"

// TOKENS: columns of a product, at least m. RING: steps of codes on their way. RING_A: stages of A. OF_GROUPS: in a product of groups (small_m_groups_wgmma.cuh).
template <class Number_, Weights WEIGHTS_, u32 TOKENS_, u32 RING_, u32 RING_A_, bool OF_GROUPS_ = false> struct SmallMWgmmaConfig {
    using Number = Number_;
    static constexpr Weights WEIGHTS = WEIGHTS_;
    static constexpr bool OF_GROUPS = OF_GROUPS_;
    using Tile = SmallMTileConfig<Number_, WEIGHTS_, TOKENS_, 3, OF_GROUPS_>;
    static constexpr bool REPACKED = Tile::REPACKED, NVFP4 = Tile::NVFP4, E2M1 = Tile::E2M1, BLOCK_SCALES = Tile::BLOCK_SCALES, GROUP_SCALES = Tile::GROUP_SCALES;
    static constexpr u32 TOKENS = TOKENS_, RING = RING_, RING_A = RING_A_, ROWS = 128, THREADS = 256, WARPS = THREADS / 32;
    // Units of 16 bytes that a lane decodes in a step: of each of two rows one, or two.
    static constexpr u32 OF_ROW = E2M1 ? 1 : 2, UNITS = 2 * OF_ROW;
    // A step of a warp: units of lanes, unit by unit, and eight bytes of scales of each.
    static constexpr u32 SCALES = UNITS * 512, STEP = SCALES + 256;
    // Shared memory: A, steps of each warp, barriers. Sums are passed on in the place of both rings, rows of B apart so that no bank is met twice.
    static constexpr u32 STAGE_A = TOKENS * 256, STEPS = RING_A * STAGE_A, BARRIERS = STEPS + WARPS * RING * STEP, SHARED = BARRIERS + 16 * RING_A;
    static constexpr u32 APART = 8;
    static_assert(TOKENS / 2 * (ROWS / 8 + APART) * 8 * 8 <= BARRIERS, "the parts of sums that a block gets of eight");
};

// Where in a stage of A lie the 32 columns of a row that make its products number 2w and 2w + 1, 64 bytes: two panels of 64 columns, a row 128 bytes, whose units of 16 are swizzled by the row's
// number modulo 8. Of these the i-th unit: ^ i * 16. Of groups a stage is all rows of A, which may have more bytes than 32 bits have numbers.
__device__ __forceinline__ u64 place_in_stage(u64 tokens, u64 token, u32 w) { return w / 2 * (tokens * 128) + token * 128 + ((w % 2 * 4 ^ token % 8) * 16); }

// A as the stages of small_m_wgmma, of all steps, one behind the other: rows beyond m and columns beyond k are zeros. `pairs`: how eight neighbours become pairs: 0 as they lie, 1 as published E2M1
// codes come, 2 as repacked ones do. A thread makes 64 bytes. `wanted`: whether a row is, asked once the kernel before has ended.
template <class F> __device__ __forceinline__ void small_m_arrange(const SmallMWeightsProblem& p, uint4* to, u32 tokens, u32 pairs, F wanted) {
    begin();
    // The product is what is enqueued next, and waits for this kernel before it reads A or writes: until then it copies weights, which whoever wrote them has done before this kernel began.
    release();
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x, w = at % 4, token = at / 4 % tokens, step = at / 4 / tokens;
    if (step * 128 >= p.k || !wanted(token)) return;
    uint4 x[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 column = step * 128 + 32 * i + 8 * w;
        x[i] = {0, 0, 0, 0};
        if (token < p.m && column < p.k) x[i] = *(const uint4*)((const u16*)p.a + token * p.stride_a + column);
        if (pairs == 1) x[i] = pairs_of<false>(x[i]);
        if (pairs == 2) x[i] = pairs_of<true>(x[i]);
    }
    // Of both products the first pairs of four lanes, and their second ones.
    uint4* const stage = to + (u64)step * tokens * 16;
    const u64 place = place_in_stage(tokens, token, w) / 16;
    stage[place] = {x[0].x, x[1].x, x[2].x, x[3].x};
    stage[place ^ 1] = {x[0].y, x[1].y, x[2].y, x[3].y};
    stage[place ^ 2] = {x[0].z, x[1].z, x[2].z, x[3].z};
    stage[place ^ 3] = {x[0].w, x[1].w, x[2].w, x[3].w};
}

template <class C> struct SmallMWgmma {
    using Number = typename C::Number;
    using Tile = SmallMTile<typename C::Tile>;
    static constexpr u32 SUMS = C::TOKENS / 2;
    const SmallMWeightsProblem& p;
    u32 base, steps_at;    // shared memory: the ring of A, the warp's first step
    u32 copied, decoded;   // where in a step lie the first units that this lane copies, and that it decodes
    u32 first, end;        // steps of k, of the block
    u32 lane_row;          // of the 64 rows of the warpgroup the lane's rows are this one and 32 further
    u32 chunk, pick;       // its columns of 128, and their scales of a row's
    u32 column;            // the first that it copies
    const u8* codes;       // of its first row, and bytes from there to the other
    u32 further, apart;    // (rows)
    const char* scales;    // of both
    const char* arranged;  // A
    u32 row, rows;         // of A, of the part (of groups)
    u32 before;            // stages of A that the block has filled for parts before this one (of groups): the barriers' phases go on from there

    __device__ __forceinline__ u32 full(u32 slot) const { return base + C::BARRIERS + 16 * slot; }
    __device__ __forceinline__ u32 free(u32 slot) const { return full(slot) + 8; }

    // Codes and scales of a step, and the same of none where it is beyond the last.
    __device__ __forceinline__ void load(u32 step, u32 slot) const {
        // Others of the warp have read what they decode of E4M3 codes.
        if constexpr (!C::E2M1) __syncwarp();
        if (step < end) {
            const u32 at = steps_at + slot * C::STEP, left = p.k - min(p.k, step * 128 + column);
            const u8* from = once(codes + (u64)step * (C::REPACKED ? 512 : C::E2M1 ? 64 : 128));
#pragma unroll
            for (u32 j = 0; j < 2; j++)
#pragma unroll
                for (u32 u = 0; u < C::OF_ROW; u++)
                    copy_16(at + copied + j * (C::UNITS * 256) + u * 64, from + (j ? further : 0) + 64 * u, left > 64 * u);
            const u32 scales_to = at + C::SCALES + threadIdx.x % 32 * 8;
            if constexpr (C::BLOCK_SCALES) {
                // A tile has 64 columns of NVFP4, 128 of the others.
                const u32 tile = C::NVFP4 ? 2 * step + chunk / 64 : step;
                copy_8(scales_to, scales + (u64)tile * 512, tile < p.scale_pitch);
            } else if constexpr (C::WEIGHTS == Weights::FP8_1X128) {
                const char* of = once(scales + (u64)step * p.scale_pitch * 4);
                copy_4(scales_to, of, true);
                copy_4(scales_to + 4, of + apart * 4, true);
            } else if constexpr (C::WEIGHTS == Weights::FP8_128X128) {
                copy_4(scales_to, scales + (u64)step * 4, true);
            }
        }
        copies_commit();
    }

    // The sums over the block's part of k.
    __device__ __forceinline__ void sums(float (&sum)[SUMS]) const {
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) sum[i] = 0.0f;
        u32 slot = 0, a_slot = before % C::RING_A, a_phase = before / C::RING_A % 2;
#pragma unroll 1
        for (u32 step = first; step < end; step++) {
            copies_wait<C::RING - 1>();
            if constexpr (!C::E2M1) __syncwarp();
            const u32 from = steps_at + slot * C::STEP;
            u32 by[2][2] = {};
            if constexpr (C::BLOCK_SCALES) {
                const float2 both = shared_pair(from + C::SCALES + threadIdx.x % 32 * 8);
                uint4 scale = {__float_as_uint(both.x), __float_as_uint(both.y), 0, 0};
                // Beyond k codes and A are zeros, and scales what fills their tile up.
                if (step * 128 + chunk >= p.k) scale = {0, 0, 0, 0};
                scales_of<C::NVFP4>(Number(), scale, pick, by);
            }
            barrier_wait(full(a_slot), a_phase);
            const u32 stage = base + a_slot * C::STAGE_A;
            float of_step[C::GROUP_SCALES ? SUMS : 1];
            uint4 weights[2];
            u32 shared[2], pairs[2][2][2][4];
            // Two w at a time: four products, whose first operands are decoded before they begin. With fewer at once the compiler let each product wait for the one before.
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    const u32 w = 2 * n + e;
                    if (w % (4 / C::OF_ROW) == 0)
#pragma unroll
                        for (u32 j = 0; j < 2; j++) weights[j] = shared_vector(((from + decoded) ^ w / 2 * 16 % (C::OF_ROW * 16)) + j * (C::UNITS * 256));
                    u32 upper[4], lower[4];
                    Tile::numbers(weights[0], w, by[0], shared[0], upper);
                    Tile::numbers(weights[1], w, by[1], shared[1], lower);
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        pairs[n][e][i / 2][i % 2 * 2] = upper[i];
                        pairs[n][e][i / 2][i % 2 * 2 + 1] = lower[i];
                    }
                }
                wgmma_fence();
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 b = wgmma_operand(stage + n * (C::TOKENS * 128)) + i * 2;
                    if constexpr (C::GROUP_SCALES) wgmma_16bit(Number(), of_step, pairs[n][i / 2][i % 2], b, n > 0 || i > 0);
                    else wgmma_16bit(Number(), sum, pairs[n][i / 2][i % 2], b, 1);
                }
                wgmma_commit();
                // The registers of those before are free, and with the first so is the stage before.
                wgmma_wait<1>();
                if (n == 0) refill(step, a_slot);
                // All that the lane read of its own it has in registers, and has used some of each.
                if (!C::GROUP_SCALES && n == (C::E2M1 ? 0 : 1)) load(step + C::RING, slot);
            }
            if constexpr (C::GROUP_SCALES) {
                float2 of_group = shared_pair(from + C::SCALES + threadIdx.x % 32 * 8);
                if constexpr (C::WEIGHTS == Weights::FP8_128X128) of_group.y = of_group.x;
                wgmma_wait<0>();
                hold(of_step);
#pragma unroll
                for (u32 i = 0; i < SUMS; i++) sum[i] = __fmaf_rn(of_step[i], i / 2 % 2 ? of_group.y : of_group.x, sum[i]);
                load(step + C::RING, slot);
            }
            slot = C::RING == 2 ? slot ^ 1 : slot + 1 == C::RING ? 0 : slot + 1;
            a_slot = a_slot + 1 == C::RING_A ? 0 : a_slot + 1;
            if (a_slot == 0) a_phase ^= 1;
        }
        wgmma_wait<0>();
        hold(sum);
        // The last stage, too, so that both barriers of a slot have as many phases.
        if (C::OF_GROUPS && threadIdx.x % 32 == 0 && end > first) barrier_arrive(free(a_slot == 0 ? C::RING_A - 1 : a_slot - 1));
    }

    // Writes the sums over this part of k for small_m_join.cu. `col`: the warpgroup's first.
    __device__ __forceinline__ void leave(u32 of_k, u32 col, const float (&sum)[SUMS]) const {
        float* const to = p.parts + (u64)of_k * p.m * p.n;
#pragma unroll
        for (u32 j = 0; j < 2; j++)
#pragma unroll
            for (u32 t = 0; t < SUMS / 4; t++)
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    const u32 token = t * 8 + threadIdx.x % 4 * 2 + i, at = col + 32 * j + lane_row;
                    if (token < p.m && at < p.n) to[(u64)token * p.n + at] = sum[4 * t + 2 * j + i];
                }
    }

    // The stage before this step's is read by this warp no more; when by none, it is filled anew, two steps later, so that no warp is waited for that is less than a step behind.
    __device__ __forceinline__ void refill(u32 step, u32 a_slot) const {
        if (threadIdx.x % 32 == 0 && step > first) barrier_arrive(free(a_slot == 0 ? C::RING_A - 1 : a_slot - 1));
        if (threadIdx.x == 0 && step >= first + 2) {
            const u32 done = step - 2 - first + before, next = step - 2 + C::RING_A, slot = done % C::RING_A;
            if (next < end) {
                barrier_wait(free(slot), done / C::RING_A % 2);
                fill(next, slot);
            }
        }
        __syncwarp();
    }
    __device__ __forceinline__ void fill(u32 step, u32 slot) const {
        const u32 to = base + slot * C::STAGE_A;
        if constexpr (C::OF_GROUPS) {
            // Of each of a step's two panels of all rows, eight after eight, those of the part. What lies in a stage beyond them makes sums that are not stored.
            const u32 of_panel = (row % 8 + rows + 7) / 8 * 1024;
            const u64 panel = (u64)((p.m + 7) / 8) * 1024;
            const char* const from = arranged + 2 * step * panel + (u64)(row / 8) * 1024;
            barrier_expect(full(slot), 2 * of_panel);
            copy_bytes(to, from, of_panel, full(slot));
            copy_bytes(to + C::STAGE_A / 2, from + panel, of_panel, full(slot));
        } else {
            barrier_expect(full(slot), C::STAGE_A);
            copy_bytes(to, arranged + (u64)step * C::STAGE_A, C::STAGE_A, full(slot));
        }
    }
};

// The part of D that a block of a cluster computes. Of groups, A's rows from a multiple of eight on are in the stages: `part.row` is as many further as it is beyond one.
template <class C> __device__ __forceinline__ void small_m_wgmma(const SmallMWeightsProblem& p, const SmallMPlace& part, const uint4* arranged) {
    constexpr u32 TOKENS = C::TOKENS;
    extern __shared__ __align__(1024) uint4 wgmma_shared[];
    const u32 base = shared_address(wgmma_shared), thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const bool leaves = !C::OF_GROUPS && p.parts;
    u32 ranks = leaves ? gridDim.y : cluster_size(), rank = leaves ? blockIdx.y : cluster_rank();
    const u32 steps = (p.k + 127) / 128, half = warp / 4, lead = part.row % 8;
    SmallMWgmma<C> m = {p,
                        base,
                        base + C::STEPS + warp * (C::RING * C::STEP),
                        C::E2M1 ? lane * 16 : lane / 4 * 128 + (lane % 4 ^ lane / 4 % 2) * 16,
                        C::E2M1 ? lane * 16 : lane / 4 * 128 + lane % 4 * 32 + lane / 4 % 2 * 16,
                        part_of_steps(steps, rank, ranks),
                        part_of_steps(steps, rank + 1, ranks),
                        warp % 4 * 8 + lane / 4,
                        lane % 4 * 32,
                        pick_of<C::NVFP4>(lane),
                        lane % 4 * (C::E2M1 ? 32 : 16),
                        nullptr,
                        0,
                        0,
                        nullptr,
                        (const char*)arranged,
                        part.row,
                        part.m,
                        0};
    if constexpr (C::OF_GROUPS) m.before = part.round * (m.end - m.first);
    // A warpgroup of each matrix, where there are two. In the place of rows beyond the last that one: their sums are not stored.
    const u32 row = part.row_of_b(64 * half + m.lane_row, p.n), other = part.row_of_b(64 * half + 32 + m.lane_row, p.n);
    m.codes = once(p.b + SmallMWgmma<C>::Tile::place_of_row(row, p.k) + lane % 4 * 16);
    m.further = (u32)(SmallMWgmma<C>::Tile::place_of_row(other, p.k) - SmallMWgmma<C>::Tile::place_of_row(row, p.k));
    m.apart = other - row;
    keep(m.further);
    // Made again at each use they would take a twentieth of a step's instructions, and 1 to 3 % of the time (H100, 2026-11).
    keep(m.base);
    keep(m.steps_at);
    keep(m.copied);
    keep(m.decoded);
    keep(m.pick);
    const u32 tile_row = (part.b_row + part.col) / 128 + (part.gated ? half * (p.n / 128) : 0), in_tile = part.gated ? part.col / 64 % 2 : half;
    const u64 scales = C::WEIGHTS == Weights::FP8_1X128     ? (u64)row * 4
                       : C::WEIGHTS == Weights::FP8_128X128 ? (u64)tile_row * p.scale_pitch * 4
                                                            : (u64)tile_row * p.scale_pitch * 512 + m.lane_row * 16 + in_tile * 8;
    m.scales = once((const char*)p.scales + scales);
    // Phases are carried on from part to part: with barriers that were ended and made anew racecheck forgets that their copies were complete, and reports the next part's as writes of the same place.
    if (thread == 0 && (!C::OF_GROUPS || part.round == 0)) {
#pragma unroll
        for (u32 i = 0; i < C::RING_A; i++) {
            barrier_init(m.full(i), 1);
            barrier_init(m.free(i), C::WARPS);
        }
        barriers_ready();
    }
    // Before the wait for the kernel that arranges A: what the one before that wrote is there (small_m_arrange).
#pragma unroll
    for (u32 i = 0; i < C::RING; i++) m.load(m.first + i, i);
    __syncthreads();
    if constexpr (!C::OF_GROUPS) begin();
    if (thread == 0)
#pragma unroll
        for (u32 i = 0; i < C::RING_A; i++)
            if (m.first + i < m.end) m.fill(m.first + i, (m.before + i) % C::RING_A);
    float sum[TOKENS / 2];
    m.sums(sum);
    if (leaves) return m.leave(blockIdx.y, part.col + 64 * half, sum);
    // Asked anew: registers that kept them through the loop cost it 2 to 15 instructions a step, and the product 0.99 to 1.04 of the time (H200, 2026-11).
    ranks = cluster_size(), rank = cluster_rank();

    // Both rings are read no more, in no block of the cluster.
    if (ranks > 1) cluster_sync();
    else __syncthreads();
    // To each block of the cluster its rows of this part: neighbours, of either matrix.
    const u32 rows = C::ROWS >> __popc(ranks - 1), pitch = (rows + C::APART) * 8, columns = part.gated ? rows / 2 : rows, log_columns = 31 - __clz(columns);
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
        const u32 r = (part.gated ? 0 : 64 * half) + 32 * j + m.lane_row, in_block = (r & (columns - 1)) + (part.gated ? half * columns : 0);
        const u32 at = base + (rank * (TOKENS / 2) + lane % 4) * pitch + in_block * 8, to = ranks == 1 ? at : at_rank(at, r >> log_columns);
#pragma unroll
        for (u32 t = 0; t < TOKENS / 8; t++) {
            const float x = sum[4 * t + 2 * j], y = sum[4 * t + 2 * j + 1];
            if (ranks == 1) shared_store_pair(to + t * 4 * pitch, x, y);
            else store_pair_in_cluster(to + t * 4 * pitch, x, y);
        }
    }
    if (ranks > 1) cluster_sync();
    else __syncthreads();
    // A thread has one column, and four rows of A at a time.
    const u32 in_block = thread & (columns - 1), col = part.col + rank * columns + in_block;
    if (col >= p.n) return;
    const u32 last = lead + part.m - 1, first_row = part.row - lead;
    for (u32 token = thread >> log_columns << 2; token <= last; token += C::THREADS >> log_columns << 2) {
        const u32 at = base + token / 2 * pitch + in_block * 8;
        const float2 one = sum_of_ranks(ranks, at, TOKENS / 2 * pitch), two = sum_of_ranks(ranks, at + pitch, TOKENS / 2 * pitch);
        float v[4] = {one.x, one.y, two.x, two.y}, residual[4] = {};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            // In the place of rows beyond the last that one, which is not stored, and of those before the first that one.
            const u32 d_row = first_row + max(lead, min(token + i, last));
            float r[1] = {0.0f};
            load_residual(p, d_row, col, r);
            residual[i] = r[0];
            v[i] = finish_tile_sum<typename C::Tile>(p, part.gated, d_row, part.b_row + col, v[i]);
        }
        finish(p, residual, v);
        if (part.gated) {
            const float2 three = sum_of_ranks(ranks, at + columns * 8, TOKENS / 2 * pitch), four = sum_of_ranks(ranks, at + columns * 8 + pitch, TOKENS / 2 * pitch);
            const float others[4] = {three.x, three.y, four.x, four.y};
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 d_row = first_row + max(lead, min(token + i, last));
                v[i] = __fmul_rn(v[i], finish_tile_sum<typename C::Tile>(p, true, d_row, part.b_row + p.n + col, others[i]));
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float one[1] = {v[i]};
            if (token + i >= lead && token + i <= last) store_numbers(p.d, (first_row + token + i) * p.stride_d + col, p.d_type, one);
        }
    }
}

// A kernel of the tables in small_m_wgmma.cu.
#define SMALL_M_WGMMA_KERNEL(scales, WEIGHTS, number, Number, tokens, RING, BLOCKS)                                              \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                                    \
        gemm_small_m_##scales##_##number##_##tokens##_wgmma(SmallMWeightsProblem p, const uint4* arranged) {                     \
        const SmallMPlace part = {p.m, 0, 0, (p.parts ? blockIdx.x : blockIdx.x >> __popc(cluster_size() - 1)) * 128, 0, false};              \
        small_m_wgmma<SmallMWgmmaConfig<Number, Weights::WEIGHTS, tokens, RING, 4>>(p, part, arranged);                          \
    }
