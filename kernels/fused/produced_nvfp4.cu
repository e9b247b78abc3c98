// NVFP4 of what is computed, rounded to nearest: with a given second level and with one of each row, without the values being stored.
#include "cast/nvfp4_rows.cuh"
#include "fused/produced.cuh"

// Eight opened values in a row as elements of a block.
template <class S> __device__ __forceinline__ Vec8<float> half_of(const S& s) {
    const auto bits = [&](int i) { return __float_as_uint(s.value(i)); };
    return {{{bits(0), bits(1), bits(2), bits(3)}, {bits(4), bits(5), bits(6), bits(7)}}};
}

// 4over6 with the errors that the rule says: with a kernel for each of them this file took more than twice as long to compile.
constexpr u32 KIND_CHOICE = 5;

__device__ __forceinline__ Codes choose_block(Block<float>& data, float amax, const Second& second, const Nvfp4Rule& rule, bool compares) {
    if (!in_range(second, amax)) return block_out_of_range(data, amax, second, rule);
    if (rule.strict && !compares) return other_block(data, second, rule);
    const bool mse = rule.mse;
    // As `both_candidates`.
    Choice c = candidates_by(data, amax, second, [&](float q4, float q6, float t4, float t6, float x) {
        const float xs = __fmul_rn(x, second.encode);
        const float d4 = __fmaf_rn(q4, t4, -xs), d6 = __fmaf_rn(q6, t6, -xs);
        return Errors{mse ? __fmul_rn(d4, d4) : fabsf(d4), mse ? __fmul_rn(d6, d6) : fabsf(d6)};
    });
    if (rule.strict) {
        const bool decides = mse ? decides_strictly<true>(c, amax, second) : decides_strictly<false>(c, amax, second);
        if (!decides && mse) strict_errors<float, true>(data, c, second, rule.six_e);
        if (!decides && !mse) strict_errors<float, false>(data, c, second, rule.six_e);
    }
    return chosen(c, data);
}

// What becomes of a block, of which amax is `amax_or_nan`.
template <u32 KIND>
__device__ __forceinline__ Codes codes_of(Block<float>& data, float amax, const Second& second, const Nvfp4Rule& rule, bool compares) {
    if constexpr (KIND == KIND_CHOICE) return choose_block(data, amax, second, rule, compares);
    else return quantize_block<float, KIND>(data, amax, second, rule, compares);
}

// A second level that is given, for the matrix, or one for each row (`given` is null), its amax found in the same pass. A block of threads
// has one row, padding among them, and HELD blocks of 16 in each thread; with 0 the row is too long for registers, and computed twice
// where its amax is wanted. Warps that walk as those of nvfp4.cu took two to four times as long as these rows (observed: H200, 2026-11).
template <class S, u32 KIND, int HELD>
__device__ __forceinline__ void quantize_source(const CastSource& source, u32 rows, u32 cols, const Nvfp4Rule& rule, const float* given, u8* codes, u8* block_scales, float* scales) {
    __shared__ float scratch[32];
    const u32 blocks = cols / 16, padded_blocks = (u32)round_up4(blocks), row = blockIdx.x;
    u8* to_scales = block_scales + tiled_index(blocks, row, 0);
    const auto keep_scale = [&](u32 b, u32 scale) { to_scales[(u64)(b / 4) * 512 + b % 4] = (u8)scale; };
    begin();
    const float number = given ? *given : 0.0f;
    // An empty matrix has one too, and no padding.
    if (given && row == 0 && threadIdx.x == 0) *scales = second_level(number, rule.given, rule.six_e).scale;
    if (row >= rows) {
        for (u32 b = threadIdx.x; rows && b < padded_blocks; b += blockDim.x) keep_scale(b, 0);
        return;
    }
    const int from = source_row<S>(source, row, rows);
    constexpr int COUNT = HELD ? HELD : 1;
    Block<float> held[COUNT];
    float amax[COUNT], of_row = 0.0f;
    // A thread's own block, without an exchange: its neighbour may have none left.
    const auto compute = [&](u32 b, bool first) {
        S data[2];
#pragma unroll
        for (u32 h = 0; h < 2; h++) load_at(data[h], source, from, b * 16 + 8 * h);
#pragma unroll
        for (u32 h = 0; h < 2; h++) open_at(data[h], source, from, b * 16 + 8 * h, first);
        return Block<float>{{half_of(data[0]), half_of(data[1])}};
    };
    if constexpr (HELD > 0) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            // Where this lane's half of the even block of its pair begins; that of the odd one is 16 elements on (`load_halves` of
            // nvfp4.cuh).
            const u32 col = (threadIdx.x + i * blockDim.x) / 2 * 32 + 8 * half_of_lane<1>();
            S data[2];
#pragma unroll
            for (u32 h = 0; h < 2; h++) load_at(data[h], source, from, col + 16 * h);
#pragma unroll
            for (u32 h = 0; h < 2; h++) open_at(data[h], source, from, col + 16 * h, true);
            held[i] = own_block<1>(Block<float>{{half_of(data[0]), half_of(data[1])}});
            amax[i] = amax_or_nan(held[i]);
            of_row = fmaxf(of_row, amax[i] == amax[i] ? amax[i] : amax_ignoring_nan(held[i]));
        }
    } else if (!given) {
        for (u32 b = threadIdx.x; b < blocks; b += blockDim.x) of_row = fmaxf(of_row, amax_ignoring_nan(compute(b, true)));
    }
    const Second second = rule.given == GIVEN_AMAX ? second_of(given ? number : block_max(of_row, scratch), rule.six_e)
                                                   : second_level(number, rule.given, rule.six_e);
    if (!given && threadIdx.x == 0) scales[row] = second.scale;
    const bool compares = errors_compare(second, rule.six_e);
    const auto write = [&](u32 b, Block<float>& own, float amax) {
        Codes result = {{0, 0}, 0};
        if (b < blocks) {
            result = codes_of<KIND>(own, amax, second, rule, compares);
            ((uint2*)codes)[(u64)row * blocks + b] = result.packed;
        }
        if (b < padded_blocks) keep_scale(b, result.scale);
    };
    if constexpr (HELD > 0) {
#pragma unroll
        for (int i = 0; i < HELD; i++) write(threadIdx.x + i * blockDim.x, held[i], amax[i]);
    } else {
        for (u32 b = threadIdx.x; b < padded_blocks; b += blockDim.x) {
            held[0] = compute(b, given);
            write(b, held[0], amax_or_nan(held[0]));
        }
    }
}

#define QUANTIZE_NVFP4_SOURCE(name, SOURCE, NAME, KIND, WHICH, HELD)                                                      \
    extern "C" __global__ void __launch_bounds__(row_threads<HELD>, 1) quantize_nvfp4_##NAME##_##WHICH##_##name(          \
        CastSource source, u32 rows,                                                                                      \
        u32 cols,                         /* of the source; multiple of 16 */                                             \
        Nvfp4Rule rule,                                                                                                   \
        const float* __restrict__ given,  /* one float: amax, encode or decode factor (rule.given); null: each row's amax */ \
        u8* __restrict__ codes,           /* [rows][cols / 2], 8-byte aligned */                                          \
        u8* __restrict__ block_scales,    /* tiled 128x4 of [rows][cols / 16], padding written as 0 */                    \
        float* __restrict__ scales)       /* receives the stored decode factor, or [rows] of them */                      \
    { quantize_source<Unwrap<void SOURCE>::Type, KIND, HELD>(source, rows, cols, rule, given, codes, block_scales, scales); }
FOR_EACH_TYPE(PRODUCED, QUANTIZE_NVFP4_SOURCE, plain, KIND_PLAIN, long, 0)
FOR_EACH_TYPE(PRODUCED, QUANTIZE_NVFP4_SOURCE, plain, KIND_PLAIN, held, 2)
FOR_EACH_TYPE(PRODUCED, QUANTIZE_NVFP4_SOURCE, choice, KIND_CHOICE, long, 0)
FOR_EACH_TYPE(PRODUCED, QUANTIZE_NVFP4_SOURCE, choice, KIND_CHOICE, held, 2)
