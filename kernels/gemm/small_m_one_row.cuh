// One row of BF16 or F16 with E2M1 weights on Hopper: the products of small_m_e2m1.cuh, to the same bits. There each warp loads A for itself, a step ahead, behind codes that were asked for before. Here all of the row that a
// block multiplies lies in its shared memory, once, in the order that products take it: more codes are on their way, and A takes fewer operations and registers. Of two rows and more the copies cost what they save (H200, 2026-11,
// the record of one row).
#pragma once
#include "gemm/small_m_e2m1.cuh"

template <class Number, E2m1Weights WEIGHTS, u32 PAIRS, u32 PARTS, u32 STAGES> struct SmallMOneRowConfig : SmallME2m1Config<Number, WEIGHTS, 8, PAIRS, PARTS, STAGES> {
    using Base = SmallME2m1Config<Number, WEIGHTS, 8, PAIRS, PARTS, STAGES>;
    // The row lies behind all else, 256 bytes a step of 128 columns: four groups, each of what is multiplied by one word of codes, of four chunks of 16 bytes.
    static constexpr u32 ROW = (Base::BARRIER + 16 + 127) / 128 * 128, STEP = 256, GROUP = 64;
};

template <class C> struct SmallMOneRow : SmallME2m1<C> {
    // Of the lane's columns from here on codes and scales, zeros in the place of those beyond k.
    struct Ahead {
        const u8* codes;
        const u8* scales;
        int left;  // columns up to k

        // Repacked, eight rows of 128 columns lie together, and k has no other steps.
        static constexpr u32 CODES = C::REPACKED ? 512 : 64, SCALES = C::NVFP4 ? 1024 : 512;
        __device__ __forceinline__ bool inside() const { return C::REPACKED || left > 0; }
    };

    __device__ __forceinline__ Ahead ahead() const {
        const u32 at = this->first + this->chunk;
        return {this->codes + (C::REPACKED ? this->first * 4 : at / 2), this->scales + (u64)(at / (C::NVFP4 ? 64 : 128)) * 512, (int)(this->k - at)};
    }

    // The next step.
    __device__ __forceinline__ void copy(Ahead& ahead, u32 slot) const {
        const u32 to = this->codes_at + slot * C::STAGE, scales_to = this->scales_at() + slot * C::STAGE;
        const bool inside = ahead.inside();
        copy_16(to, ahead.codes, inside);
#pragma unroll
        for (u32 j = 0; j < this->OTHERS; j++) copy_16(to + (j + 1) * 512, ahead.codes + this->further[j], inside);
        if constexpr (C::PAIRS == 2) copy_16(scales_to, ahead.scales, inside);
        else copy_8(scales_to, ahead.scales, inside);
        ahead.codes += Ahead::CODES;
        ahead.scales += Ahead::SCALES;
        ahead.left -= 128;
    }

    // The first steps of codes. PACED: one behind the other where more follow than these, so that the end of the kernel before and A do not stand behind them in the queues of the memory (H200, 2026-11, the record of paced links:
    // `nvfp4`, 4096 x 7168 in two parts of `four` with four steps 6.3 us for 8.1; of walks that end with them 1.03 to 1.12 of the time).
    template <bool PACED> __device__ __forceinline__ void copy_first(Ahead& ahead, u32 steps) const {
#pragma unroll
        for (u32 i = 0; i < C::STAGES; i++) {
            if (PACED && i > 0 && steps > C::STAGES) copies_wait<0>();
            if (i < steps) copy(ahead, i);
            copies_commit();
        }
    }

    // Columns `from` to `to` of the row, zeros in the place of those beyond k. Unless they were asked for before, the first codes are, behind the first loads of A, which would wait for them.
    __device__ __forceinline__ void keep_row(const SmallMWeightsProblem& p, u32 row, u32 from, u32 to, Ahead& ahead, u32 steps) const {
        constexpr u32 AT_ONCE = 2;
        const u32 chunks = (to - from) / 8;
        bool asked = p.loads_early;
        for (u32 i = threadIdx.x; i < chunks || !asked; i += AT_ONCE * C::THREADS) {
            uint4 got[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                const u32 chunk = i + j * C::THREADS, col = from + chunk * 8;
                got[j] = {0, 0, 0, 0};
                if (chunk < chunks && col < this->k) got[j] = load_stream((const u16*)p.a + col);
            }
            if (!asked) copy_first<false>(ahead, steps);
            asked = true;
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                // A lane has 32 columns of each 128, four chunks.
                const u32 chunk = i + j * C::THREADS;
                if (chunk < chunks) shared_store(row + chunk / 16 * C::STEP + chunk % 4 * C::GROUP + chunk / 4 % 4 * 16, pairs_of<C::REPACKED>(got[j]));
            }
        }
        __syncthreads();
    }

    // The sums over the warp's part of k, all columns of the tensor core's products being the one row.
    __device__ __forceinline__ void sums(const SmallMWeightsProblem& p, float (&sum)[C::PAIRS][1][4]) const {
        uint4 weights[C::OF_LANE], scale;
        // Of the block: as small_m_e2m1() cuts k for its warps.
        const u32 all = (p.k + 127) / 128, rank = cluster_rank(), log_ranks = __popc(cluster_size() - 1);
        const u32 from = (all * rank >> log_ranks) * 128, to = (all * (rank + 1) >> log_ranks) * 128, row = shared_base() + C::ROW;
        u32 steps = (this->end - this->first) / 128;
        Ahead next = ahead();
        if (p.loads_early) copy_first<true>(next, steps);
        begin();
        if (p.releases) release();
        keep_row(p, row, from, to, next, steps);
        u32 at = row + (this->first - from) / 128 * C::STEP + threadIdx.x % 4 * 16, slot = 0;
#pragma unroll 1
        for (; steps > 0; steps--) {
            copies_wait<C::STAGES - 1>();
            this->take(slot, weights, scale);
            u32 by[C::OF_LANE][2], shared[C::OF_LANE];
            scales_of<C::NVFP4>(typename C::Number(), scale, this->pick, by);
#pragma unroll
            for (u32 w = 0; w < 4; w++) {
                const uint4 x = shared_vector(at + w * C::GROUP);
#pragma unroll
                for (u32 pair = 0; pair < C::PAIRS; pair++) {
                    u32 upper[4], lower[4];
                    numbers_of<C::WEIGHTS>(typename C::Number(), weights[2 * pair], w, by[2 * pair][w / 2], shared[2 * pair], upper);
                    numbers_of<C::WEIGHTS>(typename C::Number(), weights[2 * pair + 1], w, by[2 * pair + 1][w / 2], shared[2 * pair + 1], lower);
                    multiply_16(typename C::Number(), sum[pair][0], upper[0], lower[0], upper[1], lower[1], x.x, x.y);
                    multiply_16(typename C::Number(), sum[pair][0], upper[2], lower[2], upper[3], lower[3], x.z, x.w);
                }
                // As there: the stage is in registers, and some of these are free.
                if (w == 2) {
                    if (steps > C::STAGES) copy(next, slot);
                    copies_commit();
                }
            }
            at += C::STEP;
            slot = slot + 1 == C::STAGES ? 0 : slot + 1;
        }
    }
};

// A kernel of the table in small_m_one_row.cu.
#define SMALL_M_ONE_ROW_KERNEL(scales, WEIGHTS, number, Number, block, PAIRS, PARTS, STAGES, BLOCKS)                             \
    extern "C" __global__ void __launch_bounds__(32 * PARTS, BLOCKS)                                                             \
        gemm_small_m_##scales##_##number##_1_##block##_##STAGES(SmallMWeightsProblem p) {                                        \
        using Config = SmallMOneRowConfig<Number, E2m1Weights::WEIGHTS, PAIRS, PARTS, STAGES>;                                   \
        small_m_e2m1<Config, SmallMOneRow<Config>>(p);                                                                           \
    }
