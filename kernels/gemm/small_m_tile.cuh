// Products of up to 64 rows of 16-bit numbers with a matrix of E2M1 or E4M3 codes, D = A Bᵀ: one pass over the codes, each decoded once for all rows of A.
//
// A block takes 128 rows of B, those that share tiles of block scales, 128 of k at a time, and the blocks of a cluster take parts of k. Codes, scales and A
// come to a ring of stages in shared memory, as more rows of A than 16 are too much to be read by each warp for itself, or to wait in registers. Which of B's
// numbers a lane decodes is that of small_m_e2m1.cuh: a warp takes eight of each 32 rows, its lane l 32 columns from 32 (l % 4) on, eight after eight, of
// which one product takes four and the next one the others. What a lane wants of A at once, eight neighbours, are the units that threads copy. Four
// neighbouring E4M3 codes are two pairs of neighbours; E2M1 codes make pairs of a number and the fourth behind it, and who copied a unit of A puts
// it in that order, once for the four warps.
// FP32 scales of 128 columns multiply the sum over those (multiply_group). At the end every block of the cluster takes an equal part of the 128 rows, gets
// the sums of all parts of k through shared memory, and adds them in the order of k: the order of sums depends on k and the split alone, and a row of D
// has the same bits whatever stands beside it. GPUs before sm_90 have no clusters: there blocks leave their parts in memory, and small_m_join.cu adds them, in
// the same order.
// Of E4M3, eight warps of 16 rows each, a ring of four stages and two blocks on a multiprocessor were no faster, and rings of five slower (H200, 2026-11): with few rows of A
// the conversion of codes to BF16 takes more instructions than all else.
#pragma once
#include "gemm/async_copy.cuh"
#include "gemm/small_m_e4m3.cuh"

// How B is stored: its codes (repacked: base/repacked.cuh), and the scales that are a part of the sum. FP8 has none of those, FP8_1X128 and FP8_128X128 have FP32 scales of 128 columns.
enum class Weights { NVFP4, NVFP4_REPACKED, MXFP4, MXFP8, FP8, FP8_1X128, FP8_128X128 };

// The weights and rows of A that there are kernels for, F16 where it holds what scales reach: KERNEL of each with what else it takes. Mirror of
// `SmallMWeights::served` in src/gpu/kernels/small_m_weights.rs.
#define EACH_E2M1_WEIGHTS(KERNEL, ...)                                                                                           \
    KERNEL(nvfp4, NVFP4, bf16, Bf16, __VA_ARGS__)                                                                                \
    KERNEL(nvfp4, NVFP4, f16, F16, __VA_ARGS__)                                                                                  \
    KERNEL(mxfp4, MXFP4, bf16, Bf16, __VA_ARGS__)
#define EACH_REPACKED_WEIGHTS(KERNEL, ...)                                                                                       \
    KERNEL(nvfp4_repacked, NVFP4_REPACKED, bf16, Bf16, __VA_ARGS__)                                                              \
    KERNEL(nvfp4_repacked, NVFP4_REPACKED, f16, F16, __VA_ARGS__)
#define EACH_E4M3_WEIGHTS(KERNEL, ...)                                                                                           \
    KERNEL(fp8, FP8, bf16, Bf16, __VA_ARGS__)                                                                                    \
    KERNEL(fp8, FP8, f16, F16, __VA_ARGS__)                                                                                      \
    KERNEL(fp8_1x128, FP8_1X128, bf16, Bf16, __VA_ARGS__)                                                                        \
    KERNEL(fp8_1x128, FP8_1X128, f16, F16, __VA_ARGS__)                                                                          \
    KERNEL(fp8_128x128, FP8_128X128, bf16, Bf16, __VA_ARGS__)                                                                    \
    KERNEL(fp8_128x128, FP8_128X128, f16, F16, __VA_ARGS__)                                                                      \
    KERNEL(mxfp8, MXFP8, bf16, Bf16, __VA_ARGS__)

// TOKENS: columns of a product, at least m. RING: stages. OF_GROUPS: in a product of groups.
template <class Number_, Weights WEIGHTS_, u32 TOKENS_, u32 RING_, bool OF_GROUPS = false> struct SmallMTileConfig {
    using Number = Number_;
    static constexpr Weights WEIGHTS = WEIGHTS_;
    static constexpr bool REPACKED = WEIGHTS == Weights::NVFP4_REPACKED, NVFP4 = WEIGHTS == Weights::NVFP4 || REPACKED, E2M1 = NVFP4 || WEIGHTS == Weights::MXFP4;
    // Bytes that multiply each weight; FP32 numbers that multiply sums of 128 columns.
    static constexpr bool BLOCK_SCALES = E2M1 || WEIGHTS == Weights::MXFP8;
    static constexpr bool GROUP_SCALES = WEIGHTS == Weights::FP8_1X128 || WEIGHTS == Weights::FP8_128X128;
    // Whether outer scales may be those of groups: of schemes that have one for a matrix.
    static constexpr bool LEVELS = OF_GROUPS && (NVFP4 || WEIGHTS == Weights::FP8);
    static constexpr u32 TOKENS = TOKENS_, RING = RING_, ROWS = 128, THREADS = 128;
    // Codes of 128 columns of a row: their bytes, and units of 16 of them.
    static constexpr u32 PITCH = E2M1 ? 64 : 128, UNITS = PITCH / 16;
    // A stage: codes, scales (tiles of 512 bytes, or FP32 numbers of rows), A.
    static constexpr u32 SCALES = ROWS * PITCH, A = SCALES + (E2M1 ? 1024 : 512), STAGE = A + TOKENS * 256;
    // The parts of sums that the block gets at the end: in a place of their own with a barrier where they are small, so that blocks wait for each other once;
    // else in that of the ring.
    static constexpr u32 PARTS_BYTES = ROWS * TOKENS * 4;
    static constexpr bool OWN_PARTS = !E2M1 && TOKENS <= 16;
    static constexpr u32 PARTS = OWN_PARTS ? RING * STAGE : 0, BARRIER = PARTS + PARTS_BYTES, SHARED = OWN_PARTS ? BARRIER + 16 : RING * STAGE;
    static_assert(PARTS_BYTES <= SHARED && SHARED <= 227 * 1024, "shared memory of a block");
};

// The part of D that a block of a cluster computes: of a whole product, or of a group of rows with a matrix of its own (small_m_groups.cuh).
struct SmallMPlace {
    u32 m, row;  // rows of A and D, and which comes first
    u32 b_row;   // of B, the first of the group's matrix
    u32 col;     // of D, the first: 128, or 64 that are gated
    u32 round;   // parts that the block has computed before
    // B has two matrices of n rows, one behind the other, and D = activation(A Gᵀ) ∘ (A Uᵀ): of the block's rows of B one half is G's.
    bool gated;
    __device__ __forceinline__ u32 columns() const { return gated ? 64 : 128; }
    // Which row of B the block's row r is. In the place of rows beyond the last that one: their sums are not stored.
    __device__ __forceinline__ u32 row_of_b(u32 r, u32 n) const { return b_row + (gated ? col + r % 64 + r / 64 * n : min(col + r, n - 1)); }
};

template <class C> struct SmallMTile {
    using Number = typename C::Number;
    static constexpr u32 GROUPS = C::TOKENS / 8;
    // Rows of B that all threads copy at once.
    static constexpr u32 APART = C::THREADS / C::UNITS;
    const SmallMWeightsProblem& p;
    const SmallMPlace& part;
    u32 ring, end;      // steps of k, of the block
    u32 codes_to, a_to; // where in the ring's first stage what this thread copies goes: rows APART apart, and of A eight
    u32 codes_end, a_end;  // steps from which on its columns are beyond k
    const u8* codes;    // its first row, and bytes from there to the others
    u32 further[C::UNITS];
    const char* scales; // of all that this thread copies
    const u16* a;
    u32 a_copies;       // its rows of A: what is beyond m is no part of a result
    u32 lane_row;       // what it multiplies: rows 32 apart
    u32 lane_a;         // where its units of A lie in a stage
    u32 chunk, pick;    // its columns of 128, and their scales of a row's

    __device__ __forceinline__ void load_scales(u32 step, u32 to) const {
        const u32 thread = threadIdx.x;
        if constexpr (C::WEIGHTS == Weights::FP8_128X128) {
            if (thread < (part.gated ? 2 : 1)) copy_4(to + thread * 4, scales + (u64)step * 4, true);
        } else if constexpr (C::WEIGHTS == Weights::FP8_1X128) {
            if (thread < 32)
                copy_16(to + thread * 16, scales + (u64)step * p.scale_pitch * 4, part.gated || part.col + thread * 4 < p.n);
        } else if constexpr (C::BLOCK_SCALES) {
            // A tile has 64 columns of NVFP4, 128 of the others.
            const u32 tile = C::NVFP4 ? 2 * step + thread / 32 : step;
            if (thread < (C::NVFP4 ? 64 : 32)) {
                const char* const from = scales + (u64)tile * 512;
                if (!part.gated) {
                    copy_16(to + thread * 16, from, tile < p.scale_pitch);
                } else {
                    // Of a tile of either matrix the half that has the block's 64 rows.
                    copy_8(to + thread * 16, from, tile < p.scale_pitch);
                    copy_8(to + thread * 16 + 8, from + (u64)(p.n / 128) * p.scale_pitch * 512, tile < p.scale_pitch);
                }
            }
        }
    }

    __device__ __forceinline__ void load(u32 step, u32 slot) const {
        const u32 at = slot * C::STAGE;
        const u8* codes_from = once(codes + (u64)step * (C::REPACKED ? 512 : C::PITCH));
#pragma unroll
        for (u32 j = 0; j < C::UNITS; j++) copy_16(at + codes_to + j * APART * C::PITCH, codes_from + further[j], step < codes_end);
        load_scales(step, ring + at + C::SCALES);
        const u16* from = once(a + (u64)step * 128);
#pragma unroll
        for (u32 j = 0; j < GROUPS; j++) {
            if (j < a_copies) copy_16(at + a_to + j * 2048, from, step < a_end);
            if (j + 1 < GROUPS) from = once(from + 8 * p.stride_a);
        }
        copies_commit();
    }

    // The units that this thread has copied.
    __device__ __forceinline__ void arrange(u32 stage) const {
        // Two at a time: as many as there are would take registers that the sums need.
#pragma unroll
        for (u32 j = 0; j < GROUPS; j += 2) {
            const u32 at = stage + C::A + threadIdx.x * 16 + j * 2048;
            uint4 x, y;
            if (j < a_copies) x = shared_vector(at);
            if (j + 1 < a_copies) y = shared_vector(at + 2048);
            if (j < a_copies) shared_store(at, pairs_of<C::REPACKED>(x));
            if (j + 1 < a_copies) shared_store(at + 2048, pairs_of<C::REPACKED>(y));
        }
    }

    // Where a row's codes begin.
    __device__ __forceinline__ static u64 place_of_row(u32 row, u32 k) {
        if constexpr (C::REPACKED) return repacked_place(row, 0, k);
        else return (u64)row * (C::E2M1 ? k / 2 : k);
    }

    // Where a lane's unit of codes lies, of a row: E4M3 rows alternate, so that no bank is met twice.
    __device__ __forceinline__ static u32 place_of_codes(u32 row, u32 unit) { return row * C::PITCH + (C::E2M1 ? unit : unit ^ row % 2) * 16; }

    // `w`: of the four times eight columns of a lane.
    __device__ __forceinline__ static void numbers(const uint4& weights, u32 w, const u32 (&by)[2], u32& shared, u32 (&pairs)[4]) {
        if constexpr (C::E2M1) {
            constexpr E2m1Weights OF_E2M1 = C::REPACKED ? E2m1Weights::NVFP4_REPACKED : C::NVFP4 ? E2m1Weights::NVFP4 : E2m1Weights::MXFP4;
            numbers_of<OF_E2M1>(Number(), weights, w, by[w / 2], shared, pairs);
        } else {
            neighbours_of(Number(), word(weights, w % 2 * 2), pairs[0], pairs[1]);
            neighbours_of(Number(), word(weights, w % 2 * 2 + 1), pairs[2], pairs[3]);
            if constexpr (C::BLOCK_SCALES)
#pragma unroll
                for (u32 i = 0; i < 4; i++) pairs[i] = product_of_pairs(Number(), pairs[i], by[0]);
        }
    }

    // Adds the products of a step to the sums: of the tensor core's two products of 16 rows, by groups of eight rows of A.
    __device__ __forceinline__ void multiply(u32 step, u32 stage, float (&sum)[2][GROUPS][4]) const {
        u32 by[4][2] = {};
        if constexpr (C::BLOCK_SCALES) {
            uint4 scale = shared_vector(stage + C::SCALES + lane_row * 16 + (C::NVFP4 ? chunk / 64 * 512 : 0));
            // Beyond k codes and A are zeros, and scales what fills their tile up.
            if (step * 128 + chunk >= p.k) scale = {0, 0, 0, 0};
            scales_of<C::NVFP4>(Number(), scale, pick, by);
        }
        // A lane's units of codes, one after the other, each with its part of the four times eight columns.
        constexpr u32 PIECES = C::UNITS / 4, EACH = 4 / PIECES;
#pragma unroll
        for (u32 piece = 0; piece < PIECES; piece++) {
            uint4 weights[4];
            u32 shared[4];
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                weights[j] = shared_vector(stage + place_of_codes(32 * j + lane_row, chunk / 32 * PIECES + piece));
#pragma unroll
            for (u32 w = piece * EACH; w < (piece + 1) * EACH; w++) {
                u32 upper[2][4], lower[2][4];
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    numbers(weights[2 * half], w, by[2 * half], shared[2 * half], upper[half]);
                    numbers(weights[2 * half + 1], w, by[2 * half + 1], shared[2 * half + 1], lower[half]);
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
    }

    // The same for weights whose scales multiply the sums of 128 columns.
    __device__ __forceinline__ void multiply_group(u32 step, u32 stage, float (&sum)[2][GROUPS][4]) const {
        float of_group[2][GROUPS][4] = {};
        multiply(step, stage, of_group);
        float by[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            by[j] = shared_float(stage + C::SCALES + (C::WEIGHTS == Weights::FP8_1X128 ? (32 * j + lane_row) * 4 : part.gated ? j / 2 * 4 : 0));
#pragma unroll
        for (u32 half = 0; half < 2; half++)
#pragma unroll
            for (u32 t = 0; t < GROUPS; t++)
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    sum[half][t][i] = __fmaf_rn(of_group[half][t][i], by[2 * half + i / 2], sum[half][t][i]);
    }

    // The sums over the block's part of k.
    __device__ __forceinline__ void sums(u32 first, float (&sum)[2][GROUPS][4]) const {
#pragma unroll
        for (u32 i = 0; i < C::RING - 1; i++) {
            if (first + i < end) load(first + i, i);
            else copies_commit();
        }
        u32 slot = 0;
#pragma unroll 1
        for (u32 step = first; step < end; step++) {
            const u32 stage = ring + slot * C::STAGE;
            copies_wait<C::RING - 2>();
            if constexpr (C::E2M1) arrange(stage);
            // All have waited for their part of this stage, and none reads the one before, which is filled next.
            __syncthreads();
            if (step + C::RING - 1 < end) load(step + C::RING - 1, slot == 0 ? C::RING - 1 : slot - 1);
            else copies_commit();
            if constexpr (C::GROUP_SCALES) multiply_group(step, stage, sum);
            else multiply(step, stage, sum);
            slot = slot + 1 == C::RING ? 0 : slot + 1;
        }
    }

    // Writes the sums over this part of k where another kernel adds them to those of the other parts.
    __device__ __forceinline__ void leave(u32 of_k, const float (&sum)[2][GROUPS][4]) const {
        float* to = p.parts + (u64)of_k * p.m * p.n;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 col = part.col + 32 * j + lane_row;
#pragma unroll
            for (u32 t = 0; t < GROUPS; t++)
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    const u32 token = t * 8 + threadIdx.x % 4 * 2 + i;
                    if (token < p.m && col < p.n) to[(u64)token * p.n + col] = sum[j / 2][t][2 * (j % 2) + i];
                }
        }
    }
};

// Steps of 128 of k, from the first on, in which this column of each is within k.
__device__ __forceinline__ u32 steps_within(u32 k, u32 column) { return k > column ? (k - column + 127) / 128 : 0; }

// The sums of a row of B and two rows of A, over all parts of k in their order.
template <u32 PARTS> __device__ __forceinline__ float2 sum_of_parts(u32 at, u32 pitch) {
    float2 each[PARTS], v = {0.0f, 0.0f};
#pragma unroll
    for (u32 s = 0; s < PARTS; s++) each[s] = shared_pair(at + s * pitch);
#pragma unroll
    for (u32 s = 0; s < PARTS; s++) v = {__fadd_rn(v.x, each[s].x), __fadd_rn(v.y, each[s].y)};
    return v;
}

// Where part `part` of `parts` begins, of at most 2^19 steps of k. Mostly a power of two, which needs no division: it stands before the first copy.
__device__ __forceinline__ u32 part_of_steps(u32 steps, u32 part, u32 parts) {
    return parts & (parts - 1) ? steps * part / parts : steps * part >> __popc(parts - 1);
}

// The sums of a row of B and two rows of A, over the parts of a cluster of `ranks` blocks.
__device__ __forceinline__ float2 sum_of_ranks(u32 ranks, u32 at, u32 pitch) {
    return ranks == 1 ? sum_of_parts<1>(at, pitch) : ranks == 2 ? sum_of_parts<2>(at, pitch) : ranks == 4 ? sum_of_parts<4>(at, pitch) : sum_of_parts<8>(at, pitch);
}

// What a sum becomes before its activation. `b_row`: its row of B.
template <class C> __device__ __forceinline__ float finish_tile_sum(const SmallMWeightsProblem& p, bool gated, u32 row, u32 b_row, float sum) {
    if (C::NVFP4) sum = __fmul_rn(Unit<typename C::Number>::NVFP4, sum);
    if constexpr (C::LEVELS) {
        SmallMWeightsProblem of = p;
        if (p.a_step == EACH_GROUP) of.scales_a += b_row / p.n / (gated ? 2 : 1), of.a_step = 0;
        if (p.b_step == EACH_GROUP) of.scales_b += b_row / p.n, of.b_step = 0;
        return finish_sum<true>(of, row, b_row, b_row, sum);
    } else {
        return finish_sum<true>(p, row, b_row, b_row, sum);
    }
}

template <class C> __device__ __forceinline__ void small_m_tile(const SmallMWeightsProblem& p, const SmallMPlace& part) {
    constexpr u32 TOKENS = C::TOKENS, GROUPS = TOKENS / 8;
    extern __shared__ uint4 tile_shared[];
    const u32 base = shared_address(tile_shared), parts = base + C::PARTS, arrived = base + C::BARRIER;
    const u32 thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    const u32 rank = cluster_rank(), ranks = cluster_size();
    // The part of k that this block takes, of so many.
    const u32 split = CLUSTERS ? ranks : p.split, of_k = CLUSTERS ? rank : blockIdx.x % split;
    const u32 steps = (p.k + 127) / 128, first = part_of_steps(steps, of_k, split);
    // Of a row's 16 units in a stage those that the lanes want at once are neighbours, and rows alternate between the halves of 128 bytes: no bank is met twice.
    const u32 place = thread % 16 ^ thread / 16 % 2 * 4, unit = (place % 4 * 4 + place / 4) * 8;
    const u32 row = thread / C::UNITS, at_row = part.row_of_b(row, p.n);
    // FP32 scales lie by rows (1x128), or by columns (128x128); of the latter the second thread takes those of the other matrix.
    const u32 tile_row = (part.b_row + part.col) / 128, other = part.gated && thread == 1 ? p.n / 128 : 0;
    const u64 scales = C::WEIGHTS == Weights::FP8_1X128     ? (u64)(part.b_row + (part.gated ? part.row_of_b(thread % 32 * 4, p.n) - part.b_row : part.col + thread % 32 * 4)) * 4
                       : C::WEIGHTS == Weights::FP8_128X128 ? (u64)(tile_row + other) * p.scale_pitch * 4
                                                            : (u64)tile_row * p.scale_pitch * 512 + thread % 32 * 16 + (part.gated ? part.col / 64 % 2 * 8 : 0);
    SmallMTile<C> m = {p,
                       part,
                       base,
                       part_of_steps(steps, of_k + 1, split),
                       base + SmallMTile<C>::place_of_codes(row, thread % C::UNITS),
                       base + C::A + thread * 16,
                       steps_within(p.k, thread % C::UNITS * (128 / C::UNITS)),
                       steps_within(p.k, unit),
                       once(p.b + SmallMTile<C>::place_of_row(at_row, p.k) + thread % C::UNITS * 16),
                       {},
                       once((const char*)p.scales + scales),
                       once((const u16*)p.a + (u64)(part.row + thread / 16) * p.stride_a + unit),
                       part.m > thread / 16 ? (part.m - thread / 16 + 7) / 8 : 0,
                       warp * 8 + lane / 4,
                       C::A + lane / 4 * 256 + (lane / 4 % 2 * 64) + lane % 4 * 16,
                       lane % 4 * 32,
                       pick_of<C::NVFP4>(lane)};
#pragma unroll
    for (u32 j = 0; j < C::UNITS; j++) {
        const u32 other = part.row_of_b(row + SmallMTile<C>::APART * j, p.n);
        m.further[j] = C::REPACKED ? (u32)(SmallMTile<C>::place_of_row(other, p.k) - SmallMTile<C>::place_of_row(at_row, p.k))
                                   : (other - at_row) * (C::E2M1 ? p.k / 2 : p.k);
        keep(m.further[j]);
    }
    // Made again at each use they would cost as much as the copies.
    keep(m.codes_to);
    keep(m.a_to);
    keep(m.codes_end);
    keep(m.a_end);
    keep(m.a_copies);
    // What the end reads of vectors: on its way to L2 while B is read.
    if (thread < 4 && part.col + 32 * thread % part.columns() < p.n) {
        const u32 at = part.row_of_b(32 * thread, p.n);
        if (p.scales_b) prefetch_line(p.scales_b + (C::LEVELS && p.b_step == EACH_GROUP ? at / p.n : at * p.b_step));
        if (p.bias) prefetch_line((const char*)p.bias + (u64)at * (p.bias_type == 2 ? 4 : 2));
    }
    if constexpr (C::OWN_PARTS) {
        if (part.round == 0) {
            if (thread == 0 && ranks > 1) {
                barrier_init(arrived, 1);
                barriers_ready();
            }
            __syncwarp();
            cluster_arrive_relaxed();
        } else {
            cluster_arrive();  // the parts that came before have been read
        }
    }
    float sum[2][GROUPS][4] = {};
    m.sums(first, sum);
    if (!CLUSTERS && p.parts) return m.leave(of_k, sum);

    if constexpr (C::OWN_PARTS) {
        // Some parts may be here before their number is announced: they count all the same.
        cluster_wait();
        if (thread == 0 && ranks > 1) barrier_expect(arrived, C::PARTS_BYTES);
        __syncwarp();
    } else {
        // The ring is read by nobody any more, in no block of the cluster. (There is no room for an mbarrier beside it, and one in its place racecheck takes
        // for a race with what was read there before the barrier: the cluster's own barrier says when all parts are there.)
        if (ranks > 1) cluster_sync();
        else __syncthreads();
    }
    // To each block of the cluster its rows of this part: neighbours, of either matrix.
    const u32 rows = C::ROWS >> __popc(ranks - 1), columns = part.gated ? rows / 2 : rows, log_columns = 31 - __clz(columns);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        const u32 r = 32 * j + m.lane_row, of_matrix = part.gated ? r % 64 : r;
        const u32 to = of_matrix >> log_columns, in_block = (of_matrix & (columns - 1)) + (part.gated && j >= 2 ? columns : 0);
#pragma unroll
        for (u32 t = 0; t < GROUPS; t++) {
            const u32 at = parts + ((rank * (TOKENS / 2) + t * 4 + lane % 4) * rows + in_block) * 8;
            const float x = sum[j / 2][t][2 * (j % 2)], y = sum[j / 2][t][2 * (j % 2) + 1];
            if (ranks == 1) shared_store_pair(at, x, y);
            else if constexpr (C::OWN_PARTS) store_pair_at(at_rank(at, to), x, y, at_rank(arrived, to));
            else store_pair_in_cluster(at_rank(at, to), x, y);
        }
    }
    if (ranks == 1) __syncthreads();
    else if constexpr (C::OWN_PARTS) barrier_wait(arrived, part.round % 2);
    else cluster_sync();
    const u32 parts_pitch = TOKENS / 2 * rows * 8;
    for (u32 o = thread; o < columns * ((part.m + 1) / 2); o += C::THREADS) {
        const u32 pair = o >> log_columns, r = o & (columns - 1), col = part.col + rank * columns + r, at = parts + (pair * rows + r) * 8;
        if (col >= p.n) continue;
        const float2 both = sum_of_ranks(ranks, at, parts_pitch);
        float2 others = {0.0f, 0.0f};
        if (part.gated) others = sum_of_ranks(ranks, at + columns * 8, parts_pitch);
#pragma unroll 1
        for (u32 token = 2 * pair; token < min(2 * pair + 2, part.m); token++) {
            const u32 d_row = part.row + token;
            float v[1] = {token % 2 ? both.y : both.x}, residual[1];
            load_residual(p, d_row, col, residual);
            v[0] = finish_tile_sum<C>(p, part.gated, d_row, part.b_row + col, v[0]);
            finish(p, residual, v);
            if (part.gated) v[0] = __fmul_rn(v[0], finish_tile_sum<C>(p, part.gated, d_row, part.b_row + p.n + col, token % 2 ? others.y : others.x));
            store_numbers(p.d, d_row * p.stride_d + col, p.d_type, v);
        }
    }
}

// The whole product, the blocks of a cluster 128 of its columns.
template <class C> __device__ __forceinline__ void small_m_whole(const SmallMWeightsProblem& p) {
    const SmallMPlace part = {p.m, 0, 0, blockIdx.x / (CLUSTERS ? cluster_size() : p.split) * C::ROWS, 0, false};
    small_m_tile<C>(p, part);
}

// A kernel of the tables in small_m_e2m1.cu and small_m_e4m3.cu.
#define SMALL_M_TILE_KERNEL(scales, WEIGHTS, number, Number, tokens, block, RING, BLOCKS)                                        \
    extern "C" __global__ void __launch_bounds__(128, RESIDENTS<BLOCKS>)                                                         \
        gemm_small_m_##scales##_##number##_##tokens##_##block(SmallMWeightsProblem p) {                                          \
        begin();                                                                                                                 \
        small_m_whole<SmallMTileConfig<Number, Weights::WEIGHTS, tokens, RING>>(p);                                              \
    }
