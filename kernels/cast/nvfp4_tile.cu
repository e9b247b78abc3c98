// NVFP4 in tiles of 64 rows by 128 columns: transposed output, 16x16 blocks, the Hadamard transform, random rounding and
// torchao's rule, in any mixture that a recipe allows.
#include "cast/nvfp4.cuh"

constexpr u32 TILE_ROWS = 64;
constexpr u32 TILE_COLS = 128;

struct Nvfp4Out {
    u8* codes;           // [rows][cols / 2]; null: not wanted
    u8* block_scales;    // tiled 128x4 of [rows][cols / 16]
    float* scales;       // decode factor of the matrix, or [rows]
    u8* codes_t;         // [cols][rows / 2]; null: not wanted
    u8* block_scales_t;  // tiled 128x4 of [cols][rows / 16]
    float* scales_t;     // decode factor of the transpose, or [cols]
};

struct Nvfp4Given {
    const float* rows;  // one float, or with `each` one for each row: an amax, or what rule.given says
    const float* cols;  // the same for the transposed output
    u32 each;           // 1: a second level for each row of the output
};

// Candidates of 4over6 with exact errors in the recipe's own units, by the short way where it serves.
struct Candidates {
    uint2 c4, c6;
    float e4, e6;
    u32 s4, s6;
};

template <class T>
__device__ __forceinline__ Candidates candidates(Block<T>& b, float amax, bool serves, const Second& second, const Nvfp4Rule& rule, bool compares) {
    if (!serves || (rule.strict && !compares)) {
        SlowBlock slow = slow_input(b, amax, second, rule, 0);
        slow_candidates(&slow);
        return {slow.c4, slow.c6, slow.e4, slow.e6, slow.s4, slow.s6};
    }
    const float six_e_inverse = __frcp_rn(rule.six_e);
    const Choice c = candidates_by(b, amax, second, [&](float q4, float q6, float t4, float t6, float x) {
        float d4, d6;
        if (rule.strict) {
            // fl(q s) is exact; amax is such that the quotients are normal (`compares`), or zero.
            d4 = __fsub_rn(divide(__fmul_rn(__fmul_rn(q4, t4), second.amax), rule.six_e, six_e_inverse), x);
            d6 = __fsub_rn(divide(__fmul_rn(__fmul_rn(q6, t6), second.amax), rule.six_e, six_e_inverse), x);
        } else {
            const float xs = __fmul_rn(x, second.encode);
            d4 = __fmaf_rn(q4, t4, -xs);
            d6 = __fmaf_rn(q6, t6, -xs);
        }
        return rule.mse ? Errors{error_of<true>(d4), error_of<true>(d6)} : Errors{error_of<false>(d4), error_of<false>(d6)};
    });
    return {pack(c.w4, b), pack(c.w6, b), c.e4, c.e6, c.s4(), c.s6()};
}

// Sum over 16 neighbouring lanes by the fixed tree: e[i] + e[i + 8], then 4, 2, 1. Addition commutes, so that a butterfly
// gives every lane the same bits.
__device__ __forceinline__ float tree_sum(float e) {
#pragma unroll
    for (int step = 8; step > 0; step /= 2) e = __fadd_rn(e, __shfl_xor_sync(0xFFFFFFFFu, e, step));
    return e;
}

// The second level of a row that has its own.
__device__ __forceinline__ Second second_of_row(float given, const Nvfp4Rule& rule) {
    if (rule.given == GIVEN_ENCODE || rule.given == GIVEN_DECODE) return second_level(given, rule.given, rule.six_e);
    return second_of(given, rule.six_e);
}

// What a kernel knows of its rule: MODE_PLAIN is the plain rule, rounded to nearest, in the data's own basis.
constexpr u32 MODE_PLAIN = 0;
constexpr u32 MODE_ANY = 1;

// One block a lane; sixteen neighbouring lanes hold the sixteen lines of a tile where tiles share scales. All lanes of a warp
// come here together. `index`: the block's place in the output, for random bytes.
template <class T, u32 MODE>
__device__ __forceinline__ Codes any_block(Block<T>& b, const Second& second, const Nvfp4Rule& rule, u64 index) {
    float amax = amax_or_nan(b);
    const bool finite = amax <= FLT_MAX;
    if (!finite) amax = amax_ignoring_nan(b);
    if (rule.tile) {
#pragma unroll
        for (int step = 8; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, step));
    }
    const bool serves = finite && in_range(second, amax);
    if constexpr (MODE == MODE_PLAIN) {
        const u32 zeros[4] = {0, 0, 0, 0};
        if (serves) return plain_block(b, amax, second);
        if (finite && amax == 0.0f && second.count) return {pack(zeros, b), 0};
        SlowBlock slow = slow_input(b, amax, second, rule, index);
        return slow_block(&slow);
    }
    if (rule.rule == FOUR_OVER_SIX) {
        const Candidates c = candidates(b, amax, serves, second, rule, errors_compare(second, rule.six_e));
        float e4 = c.e4, e6 = c.e6;
        if (rule.tile) {
            e4 = tree_sum(e4);
            e6 = tree_sum(e6);
        }
        return e4 < e6 ? Codes{c.c4, c.s4} : Codes{c.c6, c.s6};
    }
    if (rule.rule >= TORCHAO_NV && finite && below_range(second, amax) && errors_compare(second, rule.six_e)) return torchao_block(b, amax, second, rule);
    if (rule.rule == PLAIN && serves) return rule.stochastic ? stochastic_block(b, amax, second, rule, index) : plain_block(b, amax, second);
    SlowBlock slow = slow_input(b, amax, second, rule, index);
    return slow_block(&slow);
}

template <class T, u32 MODE>
__device__ __forceinline__ Codes transformed_block(Block<T>& b, const Second& second, const Nvfp4Rule& rule, u64 index) {
    if constexpr (MODE == MODE_ANY) {
        if (rule.hadamard) {
            Block<Bf16> y = hadamard(b);
            return any_block<Bf16, MODE>(y, second, rule, index);
        }
    }
    return any_block<T, MODE>(b, second, rule, index);
}

// Elements between the rows of the staged tile: 16-byte aligned rows whose words fall on different banks.
template <class T> constexpr u32 PITCH = sizeof(T) == 4 ? TILE_COLS + 4 : TILE_COLS + 8;

// This lane's block of the row direction, for step `i` of two: sixteen lanes hold the rows of one 16 x 16 tile.
__device__ __forceinline__ void row_place(u32 i, u32& row, u32& block) {
    const u32 lane = threadIdx.x % 32, pair = threadIdx.x / 32 * 2 + i;
    row = pair / 4 * 16 + lane % 16;
    block = pair % 4 * 2 + lane / 16;
}

// The same of the transposed direction: lanes hold neighbouring columns.
__device__ __forceinline__ void col_place(u32 i, u32& col, u32& block) {
    const u32 pair = threadIdx.x / 32 * 2 + i;
    col = pair / 4 * 32 + threadIdx.x % 32;
    block = pair % 4;
}

// This lane's halves of its block and the one beside it, sixteen lanes away, for step `i`.
template <class T, bool ALIGNED>
__device__ __forceinline__ Block<T> row_halves(const T* x, u64 x_stride, u32 rows, u32 cols, u64 first_row, u32 first_col, u32 i) {
    u32 r, b;
    row_place(i, r, b);
    const u32 col = first_col + b / 2 * 32;
    const bool row = first_row + r < rows;
    Block<T> halves = zero_block<T>();
    load_halves<ALIGNED>(halves, x + (first_row + r) * x_stride + col + 8 * half_of_lane<16>(), row && col < cols, row && col + 16 < cols);
    return halves;
}

// A block of the transpose out of the staged tile.
template <class T> __device__ __forceinline__ Block<T> column_block(const T* tile, u32 col, u32 block) {
    const T* from = tile + block * 16 * PITCH<T> + col;
    Block<T> b;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const T* p = from + (8 * h + 4 * k) * PITCH<T>;
                b.half[h].q[k] = {__float_as_uint(p[0]), __float_as_uint(p[PITCH<T>]), __float_as_uint(p[2 * PITCH<T>]), __float_as_uint(p[3 * PITCH<T>])};
            }
        } else {
            u32 w[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const T* p = from + (8 * h + 2 * k) * PITCH<T>;
                w[k] = pair_bits(p[0], p[PITCH<T>]);
            }
            b.half[h].q[0] = {w[0], w[1], w[2], w[3]};
        }
    }
    return b;
}

// Puts what `row_halves` gave into the tile.
template <class T> __device__ __forceinline__ void stage(T* tile, u32 i, const Block<T>& halves) {
    u32 r, b;
    row_place(i, r, b);
    uint4* to = (uint4*)(tile + r * PITCH<T> + b / 2 * 32 + 8 * half_of_lane<16>());
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (u32 k = 0; k < sizeof(T) / 2; k++) to[h * sizeof(T) + k] = halves.half[h].q[k];
}

template <class T, bool ALIGNED, u32 MODE>
__device__ __forceinline__ void quantize_tile_nv(const T* x, u64 x_stride, u32 rows, u32 cols, const Nvfp4Rule& rule, const Nvfp4Given& given, const Nvfp4Out& out) {
    __shared__ __align__(16) T tile[TILE_ROWS * PITCH<T>];
    __shared__ uint2 packed[TILE_COLS * TILE_ROWS / 16];
    // Scales in the order of memory, to be stored together: single bytes made the L2 cache the limit (observed: H200, 2026-11).
    __shared__ __align__(16) u8 collected[2][32][8];   // rows: [tile of 4 blocks][row % 32][row / 32][4]
    __shared__ __align__(16) u8 collected_t[512];      // transpose: one tile of 128 x 4
    __shared__ Second shared_second[2];
    const u32 tiles = (cols + TILE_COLS - 1) / TILE_COLS;
    // An empty matrix has one block, which writes its second level.
    const u64 first_row = tiles == 0 ? 0 : (u64)(blockIdx.x / tiles) * TILE_ROWS;
    const u32 first_col = tiles == 0 ? 0 : blockIdx.x % tiles * TILE_COLS;
    const u32 blocks = cols / 16, blocks_t = rows / 16;
    begin();
    Block<T> data[2];
#pragma unroll
    for (int i = 0; i < 2; i++) data[i] = row_halves<T, ALIGNED>(x, x_stride, rows, cols, first_row, first_col, i);
    if (!given.each && threadIdx.x < 2) {
        float* scale = threadIdx.x == 0 ? out.scales : out.scales_t;
        if (scale) {
            shared_second[threadIdx.x] = second_level(threadIdx.x == 0 ? *given.rows : *given.cols, rule.given, rule.six_e);
            if (blockIdx.x == 0) *scale = shared_second[threadIdx.x].scale;
        }
    }
    if (rows == 0 || cols == 0) return;
    if (out.codes_t) {
#pragma unroll
        for (int i = 0; i < 2; i++) stage(tile, i, data[i]);
    }
    __syncthreads();
    if (out.codes) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 r, b;
            row_place(i, r, b);
            const u64 row = first_row + r, block = first_col / 16 + b;
            const bool inside = row < rows && block < blocks;
            const Second second = given.each ? second_of_row(inside ? given.rows[row] : 0.0f, rule) : shared_second[0];
            if (given.each && inside && block == 0) out.scales[row] = second.scale;
            Block<T> own = own_block<16>(data[i]);
            const Codes c = transformed_block<T, MODE>(own, second, rule, row * blocks + block);
            packed[r * (TILE_COLS / 16) + b] = c.packed;
            collected[b / 4][r % 32][r / 32 * 4 + b % 4] = inside ? (u8)c.scale : 0;
        }
        __syncthreads();
        // Eight bytes of a row and the one 32 further: the upper or the lower half of a tile's sixteen.
        const u32 at = threadIdx.x % 32, half = threadIdx.x / 32;
        const u64 tiles4 = (blocks + 3) / 4, tile4 = first_col / 64 + half;
        if (half < 2 && tile4 < tiles4)
            *(uint2*)(out.block_scales + (first_row / 128 * tiles4 + tile4) * 512 + at * 16 + first_row % 128 / 64 * 8) = *(const uint2*)collected[half][at];
        // Eight lanes write the 64 bytes of one row.
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 place = threadIdx.x + i * blockDim.x;
            const u64 row = first_row + place / 8, block = first_col / 16 + place % 8;
            if (row < rows && block < blocks) *(uint2*)(out.codes + (row * blocks + block) * 8) = packed[place];
        }
        __syncthreads();
    }
    if (!out.codes_t) return;
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        u32 c, b;
        col_place(i, c, b);
        const u64 col = first_col + c, block = first_row / 16 + b;
        const bool inside = col < cols && block < blocks_t;
        Block<T> turned = column_block(tile, c, b);
        const Second second = given.each ? second_of_row(inside ? given.cols[col] : 0.0f, rule) : shared_second[1];
        if (given.each && inside && block == 0) out.scales_t[col] = second.scale;
        const Codes codes = transformed_block<T, MODE>(turned, second, rule, col * blocks_t + block);
        packed[c * (TILE_ROWS / 16) + b] = codes.packed;
        collected_t[c % 32 * 16 + c / 32 * 4 + b] = inside ? (u8)codes.scale : 0;
    }
    __syncthreads();
    const u64 tiles4 = (blocks_t + 3) / 4;
    if (threadIdx.x < 32 && first_row / 64 < tiles4)
        *(uint4*)(out.block_scales_t + (first_col / 128 * tiles4 + first_row / 64) * 512 + threadIdx.x * 16) = ((const uint4*)collected_t)[threadIdx.x];
    // Four lanes write the 32 bytes of one row of the transpose.
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 at = threadIdx.x + i * blockDim.x;
        const u64 col = first_col + at / 4, block = first_row / 16 + at % 4;
        if (col < cols && block < blocks_t) *(uint2*)(out.codes_t + (col * blocks_t + block) * 8) = packed[at];
    }
}

// Blocks of a multiprocessor that fit without spilling, tuned where it was measured.
template <class T> constexpr u32 tile_nv_blocks =
#if __CUDA_ARCH__ == 900
    sizeof(T) == 4 ? 2 : 4;
#else
    2;
#endif

#define QUANTIZE_NVFP4_TILE(name, T, ALIGNED, NAME, MODE)                                                                 \
    extern "C" __global__ void __launch_bounds__(256, (tile_nv_blocks<T>)) quantize_nvfp4_##NAME##_##name(                \
        const T* __restrict__ x,  /* [rows][cols], row stride x_stride elements */                                        \
        u64 x_stride,                                                                                                     \
        u32 rows,                 /* multiple of 16 where the transposed output is wanted */                              \
        u32 cols,                 /* multiple of 16 */                                                                    \
        Nvfp4Rule rule, Nvfp4Given given, Nvfp4Out out)                                                                   \
    { quantize_tile_nv<T, ALIGNED, MODE>(x, x_stride, rows, cols, rule, given, out); }
FOR_EACH_TYPE(QUANTIZE_NVFP4_TILE, tile_plain, MODE_PLAIN)
FOR_EACH_TYPE(QUANTIZE_NVFP4_TILE, tile_any, MODE_ANY)

// max |y| of the transformed rows, and of the transformed columns.
template <class T, bool ALIGNED>
__device__ __forceinline__ void amax_transformed(const T* x, u64 x_stride, u32 rows, u32 cols, float* row_amax, float* col_amax) {
    __shared__ __align__(16) T tile[TILE_ROWS * PITCH<T>];
    __shared__ float scratch[2][32];
    const u32 tiles = (cols + TILE_COLS - 1) / TILE_COLS;
    const u64 first_row = (u64)(blockIdx.x / tiles) * TILE_ROWS;
    const u32 first_col = blockIdx.x % tiles * TILE_COLS;
    float by_row = 0.0f, by_col = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const Block<T> data = row_halves<T, ALIGNED>(x, x_stride, rows, cols, first_row, first_col, i);
        if (row_amax) by_row = fmaxf(by_row, amax_ignoring_nan(hadamard(own_block<16>(data))));
        if (col_amax) stage(tile, i, data);
    }
    __syncthreads();
    if (col_amax) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 c, b;
            col_place(i, c, b);
            by_col = fmaxf(by_col, amax_ignoring_nan(hadamard(column_block(tile, c, b))));
        }
    }
    by_row = block_max(by_row, scratch[0]);
    by_col = block_max(by_col, scratch[1]);
    if (threadIdx.x != 0) return;
    if (row_amax) atomic_max(row_amax, by_row);
    if (col_amax) atomic_max(col_amax, by_col);
}

#define AMAX_HADAMARD(name, T, ALIGNED, ...)                                                                              \
    extern "C" __global__ void __launch_bounds__(256) amax_hadamard_##name(                                               \
        const T* __restrict__ x,       /* [rows][cols], row stride x_stride elements */                                   \
        u64 x_stride, u32 rows,        /* multiple of 16 where col_amax is wanted */                                      \
        u32 cols,                      /* multiple of 16 */                                                               \
        float* __restrict__ row_amax,  /* one float, zero at the start; null: not wanted */                               \
        float* __restrict__ col_amax)  /* the same of the transpose */                                                    \
    { begin(); amax_transformed<T, ALIGNED>(x, x_stride, rows, cols, row_amax, col_amax); }
FOR_EACH_TYPE(AMAX_HADAMARD)
