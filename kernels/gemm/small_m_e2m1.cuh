// Products of few rows of 16-bit numbers with a matrix of E2M1 codes, D = A Bᵀ: one pass over the codes, as they are published.
//
// A block takes 32 rows of B, eight of each 32 of the 128 that share tiles of block scales, or 16, eight of each 32 of half of those, and its warps parts of
// k; the blocks of a cluster take parts of k, too. A warp takes 128 of k at a time: lane l those 32 of its rows that come from 32 (l % 4) on, 16 bytes of
// codes. For a product of 16 of k a lane gives four numbers of each of two rows, and which of k they are is free, as long as A is read alike: the codes of
// one word, of rows of B as the rows of the tensor core's first operand, make two products.
// Codes and block scales come by way of shared memory, where each lane has places for what it alone will read: copies hold no registers while they are on
// their way, and nobody waits for another warp. A is read to registers, one step ahead: it is small, all blocks of a multiprocessor find it in its L1 cache, and by
// copies, which pass that by, it was up to twice as slow. The more codes are on their way the later A comes, which waits in the same queues: with 16 warps
// one step is best, with four and eight two are (H200, 2026-11, the record of orders of codes; bulk copies for all warps were slower, too).
// Codes times block scales are exact in BF16 and in F16: their bits, put where they belong, are an E2M1 number times 2^-126 (2^-14), and the block scale
// brings most of that back (UNIT). At the end every block of the cluster takes an equal part of the 128 rows, gets the sums of all parts of k through shared
// memory, and adds them in the order of k: the order of sums depends on k, the split and the warps alone, and a row of D has the same bits
// whatever stands beside it. GPUs before sm_90 have no clusters: there the warps of a block take all parts of k.
#pragma once
#include "base/repacked.cuh"
#include "gemm/async_copy.cuh"
#include "gemm/small_m.cuh"

// In the place of a step, in products of groups alone: A has an outer scale for each group, or B one for each matrix, of which a group that is gated has two.
constexpr u32 EACH_GROUP = 2;

// Mirror of the struct of the same name in src/gpu/kernels/small_m_weights.rs.
struct SmallMWeightsProblem {
    u32 m, n, k;         // k at most 2^26
    u32 a_step, b_step;  // elements from the outer scale of a row to the next: 1, or 0 for one number; EACH_GROUP: see there
    u32 bias_type, residual_type, d_type, activation;
    u32 releases, loads_early;  // in links of chains 1: the next kernel behind the wait, weights before it, of 2 one step of them behind the other. See
                                // `release` of base/launch.cuh
    u32 scale_pitch;  // of tiles of block scales their number along k; of FP32 scales of 128 columns from those of 128 columns to the next (1x128), or from
                      // those of 128 rows (128x128)
    u32 split;        // of tiles whose parts of sums meet in memory: blocks that share rows of B, each with a part of k
    float alpha, beta;
    const void* a;           // BF16 or F16 [m][k], rows `stride_a` apart, each 16-byte aligned
    const u8* b;             // E2M1 [n][k / 2], k a multiple of 32, or E4M3 [n][k]
    const void* scales;      // of B, a part of the sum. Tiled 128x4: E4M3 of 16 columns, or E8M0 of 32. FP32: VEC128, BLK128. Null: none
    const float* scales_a;   // outer scales of A; null: none
    const float* scales_b;   // outer scales of B; null: none
    const void* bias;        // [n]; null: none
    const void* residual;    // [m][n], rows `stride_residual` apart; null: none
    void* d;                 // [m][n], rows `stride_d` apart
    float* parts;            // sums over parts of k, [split][m][n], for small_m_join.cu; null: they meet in a cluster, or are all
    u64 stride_a, stride_residual, stride_d;
};

// ---- what a type of A asks for ----

__device__ __forceinline__ u32 product_of_pairs(Bf16, u32 a, u32 b) {
    u32 p;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(p) : "r"(a), "r"(b));
#else
    // With -0 added, which changes no product.
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(p) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
    return p;
}
__device__ __forceinline__ u32 product_of_pairs(F16, u32 a, u32 b) {
    u32 p;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(p) : "r"(a), "r"(b));
    return p;
}
// d += a b, 16 rows by 8 columns by 16 of k.
#define MULTIPLY_16(type)                                                                                                        \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
__device__ __forceinline__ void multiply_16(Bf16, float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { MULTIPLY_16("bf16"); }
__device__ __forceinline__ void multiply_16(F16, float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { MULTIPLY_16("f16"); }
#undef MULTIPLY_16

// Eight codes as four pairs, code i and code i + 4, of E2M1 numbers times 2^-126 (BF16) or 2^-14 (F16): the three bits of the magnitude are the lowest of
// the exponent and the highest of the mantissa, and as in E2M1 an exponent of 0 is that of a subnormal number.
__device__ __forceinline__ void spread(Bf16, u32 codes, u32 (&pairs)[4]) {
    // The product puts a code six and twelve places up: its magnitude in place, and its sign.
    constexpr u32 BITS = 0x81C081C0u;
    const u32 high = codes >> 8;
    pairs[0] = (codes & 0x000F000Fu) * 0x1040u & BITS;
    pairs[1] = (codes & 0x00F000F0u) * 0x0104u & BITS;
    pairs[2] = (high & 0x000F000Fu) * 0x1040u & BITS;
    pairs[3] = (high & 0x00F000F0u) * 0x0104u & BITS;
}
__device__ __forceinline__ void spread(F16, u32 codes, u32 (&pairs)[4]) {
    constexpr u32 MAGNITUDE = 0x0E000E00u, SIGN = 0x80008000u;
    pairs[0] = (codes << 9 & MAGNITUDE) | (codes << 12 & SIGN);
    pairs[1] = (codes << 5 & MAGNITUDE) | (codes << 8 & SIGN);
    pairs[2] = (codes << 1 & MAGNITUDE) | (codes << 4 & SIGN);
    pairs[3] = (codes >> 3 & MAGNITUDE) | (codes & SIGN);
}

// Two E4M3 numbers, the low bytes of `codes`, as F16.
__device__ __forceinline__ u32 f16_of_e4m3(u32 codes) {
#if __CUDA_ARCH__ >= 890
    u32 pair;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low;}" : "=r"(pair) : "r"(codes));
    return pair;
#else
    // The bits put where they belong are the number times 2^-8, subnormal ones included; of NaN, 480 times that.
    const u32 spread = __byte_perm(codes, 0, 0x1404), bits = (spread >> 1 & 0x3F803F80u) | (spread & 0x80008000u);
    const u32 pair = product_of_pairs(F16(), bits, 0x5C005C00u), nan = ((bits & 0x3F803F80u) + 0x00800080u) & 0x40004000u;
    return pair | nan | nan >> 1 | nan >> 2 | nan >> 3 | nan >> 4;
#endif
}
__device__ __forceinline__ u32 twice_bf16(float v) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(pair) : "f"(v));
    return pair;
}

// NVFP4: of two blocks of 16, the low bytes of `codes`, each scale twice, times 2^118 for BF16: as large as 448 leaves room for.
__device__ __forceinline__ void block_scales(Bf16, u32 codes, u32 (&scales)[2]) {
    const u32 pair = f16_of_e4m3(codes);
    scales[0] = twice_bf16(__fmul_rn(to_float(F16{(u16)pair}), 0x1p118f));
    scales[1] = twice_bf16(__fmul_rn(to_float(F16{(u16)(pair >> 16)}), 0x1p118f));
}
__device__ __forceinline__ void block_scales(F16, u32 codes, u32 (&scales)[2]) {
    const u32 pair = f16_of_e4m3(codes);
    scales[0] = __byte_perm(pair, 0, 0x1010);
    scales[1] = __byte_perm(pair, 0, 0x3232);
}
// MXFP4: a power of two, twice, as BF16: its byte is the exponent. 2^-127 is subnormal, 255 is NaN.
__device__ __forceinline__ u32 power_scale(u32 byte) {
    const u32 bits = max(byte << 7, 0x40u) | (byte == 255 ? 0x40u : 0);
    return bits * 0x00010001u;
}

// Kept as it is, in a register: not made again from what it was made of at each use.
__device__ __forceinline__ void keep(u32& v) { asm("" : "+r"(v)); }

// How B is stored: the scales of its codes, of which those of NVFP4 may be repacked (base/repacked.cuh).
enum class E2m1Weights { NVFP4, NVFP4_REPACKED, MXFP4 };

// Of a row's 32 codes eight neighbours, those of word `w` in the published order, by their scale (twice), as four pairs. `shared`: of repacked codes what is kept
// from an even `w` for the next.
template <E2m1Weights WEIGHTS, class Number>
__device__ __forceinline__ void numbers_of(Number number, const uint4& codes, u32 w, u32 scale, u32& shared, u32 (&pairs)[4]) {
    if constexpr (WEIGHTS == E2m1Weights::NVFP4_REPACKED) {
        if (w % 2 == 0) {
            shared = shared_word(word(codes, w), word(codes, w + 1));
            keep(shared);
        }
        spread_repacked(number, w % 2, word(codes, w), shared, pairs);
    } else {
        spread(number, word(codes, w), pairs);
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        // MXFP4: E2M1 exactly, first, as a power of two may be as large as any.
        if constexpr (WEIGHTS == E2m1Weights::MXFP4) pairs[i] = product_of_pairs(number, pairs[i], 0x7E807E80u);
        pairs[i] = product_of_pairs(number, pairs[i], scale);
    }
}

// Of the bytes of a row's four block scales how a lane takes its own: of blocks of 16 the two in a half of the four, of blocks of 32 one; zeros above.
template <bool NVFP4> __device__ __forceinline__ u32 pick_of(u32 lane) { return NVFP4 ? (lane % 2 ? 0x4432 : 0x4410) : 0x4440 + lane % 4; }

// Those scales of up to four rows, of each row for the first and the last 16 of the lane's 32 columns.
template <bool NVFP4, class Number, u32 ROWS>
__device__ __forceinline__ void scales_of(Number number, const uint4& scales, u32 pick, u32 (&by)[ROWS][2]) {
#pragma unroll
    for (u32 j = 0; j < ROWS; j++) {
        const u32 picked = __byte_perm(word(scales, j), 0, pick);
        if constexpr (NVFP4) {
            // Block scales have no sign: that bit counts as nothing, as in `decode_block_scale` of src/format/codec.rs.
            block_scales(number, picked & 0x7F7F, by[j]);
        } else {
            by[j][0] = power_scale(picked);
            by[j][1] = by[j][0];
        }
    }
}

// Eight neighbours of a row of A as the pairs that codes come in: a number and the fourth behind it, or repacked neighbours. In either order the first two pairs have columns
// 0, 1, 4 and 5, so that a product adds the same numbers.
template <bool REPACKED = false> __device__ __forceinline__ uint4 pairs_of(const uint4& v) {
    if constexpr (REPACKED) return {v.x, v.z, v.y, v.w};
    else return {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410), __byte_perm(v.y, v.w, 0x7632)};
}

// TOKENS: columns of a product, at least m. PAIRS: times 16 rows of B, of a block. PARTS: of k, of a block: its warps. STAGES: steps of codes on their way.
template <class Number_, E2m1Weights WEIGHTS_, u32 TOKENS_, u32 PAIRS_, u32 PARTS_, u32 STAGES_> struct SmallME2m1Config {
    using Number = Number_;
    static constexpr E2m1Weights WEIGHTS = WEIGHTS_;
    static constexpr bool NVFP4 = WEIGHTS != E2m1Weights::MXFP4, REPACKED = WEIGHTS == E2m1Weights::NVFP4_REPACKED;
    static constexpr u32 TOKENS = TOKENS_, PAIRS = PAIRS_, PARTS = PARTS_, STAGES = STAGES_, THREADS = 32 * PARTS;
    // Of B: a warp's, which are neighbours by eights, and a lane's.
    static constexpr u32 ROWS = 16 * PAIRS, NEIGHBOURS = 8, OF_LANE = 2 * PAIRS;
    // Of 128 rows, which share tiles of block scales, as many blocks have a part.
    static constexpr u32 OF_TILE = 128 / ROWS;
    // Shared memory: of each warp and stage codes and block scales; the parts of sums that the block gets; a barrier.
    static constexpr u32 CODES = 512 * OF_LANE, OF_SCALES = 4 * OF_LANE, STAGE = CODES + 32 * OF_SCALES;
    static_assert(PAIRS <= 2 && PARTS % 4 == 0 && (PARTS & (PARTS - 1)) == 0, "rows 32 apart of one tile; warps that take turns by fours, parts by shifts");
    static constexpr u32 SUMS = PARTS * STAGES * STAGE, PARTS_BYTES = ROWS * TOKENS * 4 * PARTS, BARRIER = SUMS + PARTS_BYTES;
    static constexpr u32 SHARED = 128 + BARRIER + 16;
};

template <class T> struct Unit;
// What a product of code and scale is of what it stands for.
template <> struct Unit<Bf16> { static constexpr float NVFP4 = 0x1p8f; };
template <> struct Unit<F16> { static constexpr float NVFP4 = 0x1p14f; };

// Blocks on a multiprocessor: those of sm_90 are measured, and other GPUs need some registers more.
#if __CUDA_ARCH__ == 900
constexpr bool IS_MEASURED = true;
#else
constexpr bool IS_MEASURED = false;
#endif
#if __CUDA_ARCH__ == 900
template <u32 MEASURED> constexpr u32 RESIDENTS = MEASURED;
#elif __CUDA_ARCH__ < 900
template <u32 MEASURED> constexpr u32 RESIDENTS = MEASURED > 1 ? MEASURED - 1 : 1;
#else
template <u32 MEASURED> constexpr u32 RESIDENTS = MEASURED > 2 ? MEASURED - 2 : 1;
#endif

// Where the block's shared memory begins, in whole lines.
__device__ __forceinline__ u32 shared_base() {
    extern __shared__ char shared[];
    return (shared_address(shared) + 127) & ~127u;
}

template <class C> struct SmallME2m1 {
    using Number = typename C::Number;
    static constexpr u32 GROUPS = C::TOKENS / 8, OTHERS = C::OF_LANE - 1;
    const u8* codes;       // of the lane's first row
    u32 further[OTHERS];   // bytes from there to those of the others
    const u8* scales;      // of all of them
    const u16* a[GROUPS];  // of the lane's rows of A
    u32 k, first, end;     // columns; `first` is a multiple of 128
    u32 chunk;             // where the lane's 32 columns of each 128 begin
    u32 pick;              // how its scales are taken of those of a row
    u32 codes_at;          // the lane's place in the first stage; behind all codes that of scales, which are as long for four rows, and half for two

    // The lane's columns of 128 from `from` on; in the place of those beyond k others, which count as nothing later.
    __device__ __forceinline__ u32 column(u32 from) const { return C::REPACKED ? from + chunk : min(from + chunk, k - 32); }

    __device__ __forceinline__ u32 scales_at() const { return codes_at + C::CODES - threadIdx.x % 32 * (16 - C::OF_SCALES); }

    __device__ __forceinline__ void copy(u32 from, u32 slot) const {
        const u32 at = column(from), to = codes_at + slot * C::STAGE, scales_to = scales_at() + slot * C::STAGE;
        // Repacked, eight rows of 128 columns are 512 bytes.
        const u8* row = once(codes + (C::REPACKED ? from * 4 : at / 2));
        copy_16(to, row, true);
#pragma unroll
        for (u32 j = 0; j < OTHERS; j++) copy_16(to + (j + 1) * 512, row + further[j], true);
        // A tile has 64 columns of NVFP4, 128 of MXFP4.
        const u8* of = once(scales + (u64)(at / (C::NVFP4 ? 64 : 128)) * 512);
        if constexpr (C::PAIRS == 2) copy_16(scales_to, of, true);
        else copy_8(scales_to, of);
    }

    // What the lane itself has copied.
    __device__ __forceinline__ void take(u32 slot, uint4 (&weights)[C::OF_LANE], uint4& scale) const {
#pragma unroll
        for (u32 j = 0; j < C::OF_LANE; j++) weights[j] = shared_vector(codes_at + slot * C::STAGE + j * 512);
        if constexpr (C::PAIRS == 2) {
            scale = shared_vector(scales_at() + slot * C::STAGE);
        } else {
            const float2 two = shared_pair(scales_at() + slot * C::STAGE);
            scale = {__float_as_uint(two.x), __float_as_uint(two.y), 0, 0};
        }
    }

    __device__ __forceinline__ void a_from(u32 from, const u16* (&at)[GROUPS]) const {
        const u32 col = column(from);
#pragma unroll
        for (u32 t = 0; t < GROUPS; t++) at[t] = once(a[t] + col);
    }

    __device__ __forceinline__ void load_a(const u16* const (&from)[GROUPS], u32 word, uint4 (&to)[GROUPS]) const {
#pragma unroll
        for (u32 t = 0; t < GROUPS; t++) to[t] = load_stream(from[t] + word * 8);
    }

    // `paced`: one behind the other, so that the end of the kernel before and A do not stand behind all of them in the queues of the memory.
    __device__ __forceinline__ void copy_first(bool paced) const {
#pragma unroll
        for (u32 i = 0; i < C::STAGES; i++) {
            if (paced && i > 0) copies_wait<0>();
            if (first + i * 128 < end) copy(first + i * 128, i);
            copies_commit();
        }
    }

    // The sums over the warp's part of k: of the tensor core's products of 16 rows, by groups of eight rows of A.
    __device__ __forceinline__ void sums(const SmallMWeightsProblem& p, float (&sum)[C::PAIRS][GROUPS][4]) const {
        uint4 weights[C::OF_LANE], scale, numbers[4][GROUPS];
        const u16* next_a[GROUPS];
        if (p.loads_early) copy_first(p.loads_early > 1);
        begin();
        if (p.releases) release();
        if (first < end) {
            a_from(first, next_a);
#pragma unroll
            for (u32 w = 0; w < 4; w++) load_a(next_a, w, numbers[w]);
        }
        // Behind A, which would wait for them.
        if (!p.loads_early) copy_first(false);
        u32 slot = 0;
#pragma unroll 1
        for (u32 from = first; from < end; from += 128) {
            copies_wait<C::STAGES - 1>();
            take(slot, weights, scale);
            if (!C::REPACKED && from + 128 > k && from + chunk >= k) {
                scale = {0, 0, 0, 0};
#pragma unroll
                for (u32 w = 0; w < 4; w++)
#pragma unroll
                    for (u32 t = 0; t < GROUPS; t++) numbers[w][t] = {0, 0, 0, 0};
            }
            u32 by[C::OF_LANE][2], shared[C::OF_LANE];
            scales_of<C::NVFP4>(Number(), scale, pick, by);
            const bool more = from + 128 < end;
            if (more) a_from(from + 128, next_a);
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
                uint4 x[GROUPS];
#pragma unroll
                for (u32 t = 0; t < GROUPS; t++) x[t] = pairs_of<C::REPACKED>(numbers[w][t]);
                if (!C::REPACKED && more) load_a(next_a, w, numbers[w]);
#pragma unroll
                for (u32 pair = 0; pair < C::PAIRS; pair++) {
                    u32 upper[4], lower[4];
                    numbers_of<C::WEIGHTS>(Number(), weights[2 * pair], w, by[2 * pair][w / 2], shared[2 * pair], upper);
                    numbers_of<C::WEIGHTS>(Number(), weights[2 * pair + 1], w, by[2 * pair + 1][w / 2], shared[2 * pair + 1], lower);
#pragma unroll
                    for (u32 t = 0; t < GROUPS; t++) {
                        multiply_16(Number(), sum[pair][t], upper[0], lower[0], upper[1], lower[1], x[t].x, x[t].y);
                        multiply_16(Number(), sum[pair][t], upper[2], lower[2], upper[3], lower[3], x[t].z, x[t].w);
                    }
                }
                if (C::REPACKED && more) load_a(next_a, w, numbers[w]);
                // All that the lane read of this stage it has in registers, and has used some of each: it is filled anew. (Sooner it takes registers that there
                // are not.)
                if (w == 2) {
                    if (from + C::STAGES * 128 < end) copy(from + C::STAGES * 128, slot);
                    copies_commit();
                }
            }
            slot = slot + 1 == C::STAGES ? 0 : slot + 1;
        }
    }
};

// The part of k of a warp, of those of its block. Where steps are not a multiple of parts every second part, say, has one more: warps four apart, which share
// a quarter of the multiprocessor, take such in turns.
__device__ __forceinline__ u32 part_of_warp(u32 warp) { return warp / 4 * 4 + (warp + warp / 4) % 4; }

// Adds the parts of the block's sums, from `got` on in its shared memory, finishes and stores them.
template <class C, bool PLAIN>
__device__ __forceinline__ void small_m_e2m1_end(const SmallMWeightsProblem& p, u32 got, u32 first_row, u32 rank, u32 log_rows, u32 parts) {
    const u32 rows = 1u << log_rows, pitch = C::TOKENS * rows * 4;
    for (u32 o = threadIdx.x; o < rows * p.m; o += C::THREADS) {
        const u32 token = o >> log_rows, r = o & (rows - 1), of_block = rank * rows + r;
        const u32 col = first_row + of_block / C::NEIGHBOURS * 32 + of_block % C::NEIGHBOURS;
        if (col >= p.n) continue;
        float v[1] = {add_parts<true>(got + ((token / 2 * rows + r) * 2 + token % 2) * 4, pitch, parts)};
        if (C::NVFP4) v[0] = __fmul_rn(Unit<typename C::Number>::NVFP4, v[0]);
        if constexpr (PLAIN) {
            v[0] = finish_sum<true, true>(p, token, col, col, v[0]);
        } else {
            float residual[1];
            load_residual(p, token, col, residual);
            v[0] = finish_sum<true>(p, token, col, col, v[0]);
            finish(p, residual, v);
        }
        store_numbers(p.d, token * p.stride_d + col, p.d_type, v);
    }
}

// M: how the warps multiply.
template <class C, class M = SmallME2m1<C>> __device__ __forceinline__ void small_m_e2m1(const SmallMWeightsProblem& p) {
    constexpr u32 TOKENS = C::TOKENS, GROUPS = TOKENS / 8;
    const u32 base = shared_base(), got = base + C::SUMS, arrived = base + C::BARRIER;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 rank = cluster_rank(), ranks = cluster_size(), log_ranks = __popc(ranks - 1);
    const u32 tile = blockIdx.x >> log_ranks, of_tile = tile % C::OF_TILE;
    // Powers of two: what stands before the first copy is waited for.
    const u32 steps = (p.k + 127) / 128, parts = ranks * C::PARTS, log_parts = log_ranks + __popc(C::PARTS - 1), part = rank * C::PARTS + part_of_warp(warp);
    // Rows 32 apart; 16 of them are of the first 64 of a tile, or of the others.
    const u32 first_row = tile / C::OF_TILE * 128 + of_tile % 4 * C::NEIGHBOURS + of_tile / 4 * 64, row = lane / 4;
    M m;
    m.k = p.k;
    m.first = (steps * part >> log_parts) * 128;
    m.end = (steps * (part + 1) >> log_parts) * 128;
    m.chunk = lane % 4 * 32;
    m.pick = pick_of<C::NVFP4>(lane);
    keep(m.chunk);
    keep(m.pick);
    m.codes_at = base + warp * C::STAGES * C::STAGE + lane * 16;
    keep(m.codes_at);
    // In the place of rows beyond the last whichever: their sums are not stored.
    // Repacked, rows come by eights, n being a multiple of that.
    const u32 last = C::REPACKED ? p.n - 8 : p.n - 1, at_row = min(C::REPACKED ? first_row : first_row + row, last);
    m.codes = once(p.b + (u64)at_row * (p.k / 2) + (C::REPACKED ? lane * 16 : 0));
#pragma unroll
    for (u32 j = 0; j < C::OF_LANE - 1; j++) {
        m.further[j] = (min(at_row + 32 * (j + 1), last) - at_row) * (p.k / 2);
        keep(m.further[j]);
    }
    m.scales = once((const u8*)p.scales + (u64)(first_row / 128) * p.scale_pitch * 512 + (first_row % 32 + row) * 16 + of_tile / 4 * 8);
#pragma unroll
    for (u32 t = 0; t < GROUPS; t++) m.a[t] = once((const u16*)p.a + min(lane / 4 + 8 * t, p.m - 1) * p.stride_a);
    if (threadIdx.x == 0 && ranks > 1) {
        barrier_init(arrived, 1);
        barriers_ready();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    // What the end reads of vectors: on its way to L2 while B is read.
    if (threadIdx.x < C::OF_LANE && first_row + 32 * threadIdx.x < p.n) {
        const u32 at = first_row + 32 * threadIdx.x;
        if (p.scales_b) prefetch_line(p.scales_b + at * p.b_step);
        if (p.bias) prefetch_line((const char*)p.bias + (u64)at * (p.bias_type == 2 ? 4 : 2));
    }
    float sum[C::PAIRS][GROUPS][4] = {};
    m.sums(p, sum);
    // Other GPUs have no registers to keep them through the loop.
    if (!IS_MEASURED) rank = cluster_rank(), ranks = cluster_size(), log_ranks = __popc(ranks - 1);

    // To each block of the cluster its rows of this part. Some may be here before their number is announced: they count all the same.
    cluster_wait();
    if (threadIdx.x == 0 && ranks > 1) barrier_expect(arrived, C::PARTS_BYTES);
    __syncwarp();
    const u32 rows = C::ROWS >> log_ranks, log_rows = 31 - __clz(rows);
#pragma unroll
    for (u32 j = 0; j < C::OF_LANE; j++) {
        const u32 r = C::NEIGHBOURS * j + row, to = r >> log_rows, barrier = CLUSTERS ? at_rank(arrived, to) : arrived;
#pragma unroll
        for (u32 t = 0; t < GROUPS; t++) {
            // Two rows of A are side by side, and such pairs of neighbouring rows of B: who adds them meets no bank more than twice.
            const u32 at = got + ((part * (TOKENS / 2) + t * 4 + lane % 4) * rows + (r & (rows - 1))) * 8;
            const float x = sum[j / 2][t][2 * (j % 2)], y = sum[j / 2][t][2 * (j % 2) + 1];
            if (ranks == 1) shared_store_pair(at, x, y);
            else store_pair_at(at_rank(at, to), x, y, barrier);
        }
    }
    if (ranks == 1) __syncthreads();
    else barrier_wait(arrived, 0);
    // As small_m() does, on the GPU where that was measured: sm_120 has no registers for both in blocks of sixteen warps.
    if (IS_MEASURED && ends_plain(p)) small_m_e2m1_end<C, true>(p, got, first_row, rank, log_rows, parts);
    else small_m_e2m1_end<C, false>(p, got, first_row, rank, log_rows, parts);
}

// A kernel of the tables in small_m_e2m1.cu and small_m_repacked.cu.
#define SMALL_M_KERNEL(scales, WEIGHTS, number, Number, tokens, block, PAIRS, PARTS, STAGES, BLOCKS)                             \
    extern "C" __global__ void __launch_bounds__(32 * PARTS, RESIDENTS<BLOCKS>)                                                  \
        gemm_small_m_##scales##_##number##_##tokens##_##block(SmallMWeightsProblem p) {                                          \
        small_m_e2m1<SmallME2m1Config<Number, E2m1Weights::WEIGHTS, tokens, PAIRS, PARTS, STAGES>>(p);                           \
    }
