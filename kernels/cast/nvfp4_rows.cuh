// NVFP4 along rows, rounded to nearest: what becomes of a block. For kernels that read a matrix (nvfp4.cu) and for those that read what
// is computed (fused/produced_nvfp4.cu).
#pragma once
#include "cast/nvfp4.cuh"

constexpr u32 ROW_BLOCKS = 1024;  // the longest row that a row kernel holds, in blocks of 16
// Threads of a row kernel at the most, HELD blocks in each; 0: rows that are too long for that.
template <int HELD> constexpr u32 row_threads = HELD ? ROW_BLOCKS / HELD : 512;

constexpr u32 KIND_PLAIN = 0;
constexpr u32 KIND_MAE = 1;
constexpr u32 KIND_MSE = 2;
constexpr u32 KIND_STRICT_MAE = 3;
constexpr u32 KIND_STRICT_MSE = 4;
constexpr u32 KIND_TORCHAO = 6;  // 5: fused/produced_nvfp4.cu
constexpr u32 KIND_HADAMARD = 7;
constexpr u32 KIND_STOCHASTIC = 8;

// What the short path does not serve.
template <class T> __device__ __forceinline__ Codes other_block(const Block<T>& data, const Second& second, const Nvfp4Rule& rule, u64 index = 0) {
    SlowBlock slow = slow_input(data, amax_ignoring_nan(data), second, rule, index);
    return slow_block(&slow);
}

// Zeros, and what `other_block` is for.
template <class T>
__device__ __forceinline__ Codes block_out_of_range(const Block<T>& data, float amax, const Second& second, const Nvfp4Rule& rule) {
    const u32 zeros[4] = {0, 0, 0, 0};
    return amax == 0.0f && second.count ? Codes{pack(zeros, data), 0} : other_block(data, second, rule);
}

// The candidate with the smaller error; s6 for a tie.
template <class T> __device__ __forceinline__ Codes chosen(Choice& c, const Block<T>& data) {
    const bool four = c.e4 < c.e6;
#pragma unroll
    for (int k = 0; k < 4; k++) c.w6[k] = four ? c.w4[k] : c.w6[k];
    return {pack(c.w6, data), four ? c.s4() : c.s6()};
}

// amax: `amax_or_nan` of the block.
template <class T, u32 KIND>
__device__ __forceinline__ Codes quantize_block(Block<T>& data, float amax, const Second& second, const Nvfp4Rule& rule, bool compares) {
    if constexpr (KIND == KIND_TORCHAO) return compares && below_range(second, amax) ? torchao_block(data, amax, second, rule) : other_block(data, second, rule);
    if (!in_range(second, amax)) return block_out_of_range(data, amax, second, rule);
    if constexpr (KIND == KIND_PLAIN) {
        return plain_block(data, amax, second);
    } else {
        constexpr bool MSE = KIND == KIND_MSE || KIND == KIND_STRICT_MSE;
        constexpr bool STRICT = KIND == KIND_STRICT_MAE || KIND == KIND_STRICT_MSE;
        Choice c = STRICT ? both_nearly<T, MSE>(data, amax, second) : both_candidates<T, MSE>(data, amax, second);
        if constexpr (STRICT) {
            if (!compares) return other_block(data, second, rule);
            if (!decides_strictly<MSE>(c, amax, second)) strict_errors<T, MSE>(data, c, second, rule.six_e);
        }
        return chosen(c, data);
    }
}

// A block of the matrix, whose place in the output decides its random bytes.
template <class T, u32 KIND>
__device__ __forceinline__ Codes quantize_block_at(Block<T>& data, u64 index, const Second& second, const Nvfp4Rule& rule, bool compares) {
    if constexpr (KIND == KIND_HADAMARD) {
        Block<Bf16> y = hadamard(data);
        return quantize_block<Bf16, KIND_PLAIN>(y, amax_or_nan(y), second, rule, compares);
    } else if constexpr (KIND == KIND_STOCHASTIC) {
        const float amax = amax_or_nan(data);
        return in_range(second, amax) ? stochastic_block(data, amax, second, rule, index) : other_block(data, second, rule, index);
    } else {
        return quantize_block<T, KIND>(data, amax_or_nan(data), second, rule, compares);
    }
}
