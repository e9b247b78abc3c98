// NVFP4 along rows: with a given second level, with one of each row, and back to plain numbers.
// Transposes, 16x16 tiles and what goes with them are in nvfp4_tile.cu.
#include "base/repacked.cuh"
#include "cast/dequantize_blocks.cuh"
#include "cast/nvfp4_rows.cuh"

// A warp takes eight rows by four blocks at a time: two neighbouring rows and those 32, 64 and 96 further, whose 32 block scales
// lie side by side. Narrower stores of scales made the L2 cache the limit (observed: H200, 2026-11). It keeps its columns
// and walks tiles of 128 rows; the data of its next tile are on their way while it works on one.
constexpr u32 WARP_BLOCKS = 4;

// Where a lane begins. grid.y is a multiple of 16, so that a step of the grid is a number of whole tiles of 128 rows.
struct Walk {
    u32 block;     // of the lane's rows
    u32 within;    // its row within a tile
    u32 scale_at;  // the place of its block scale within a tile of 128 rows by 4 blocks
    u32 tile;      // its first tile of 128 rows
    u32 tiles;     // tiles of 128 rows
    u32 step;      // from one of its tiles to the next
};

__device__ __forceinline__ Walk walk(u32 rows) {
    const u32 lane = threadIdx.x % 32, pair = blockIdx.y % 16;
    Walk w;
    w.block = (blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32) * WARP_BLOCKS + lane % 4;
    w.within = pair * 2 + lane / 16 + lane / 4 % 4 * 32;
    w.scale_at = pair * 32 + lane;
    w.tile = blockIdx.y / 16;
    w.tiles = rows / 128 + (rows % 128 != 0);
    w.step = gridDim.y / 16;
    return w;
}

// One second level for the matrix.
template <class T, bool ALIGNED, u32 KIND>
__device__ __forceinline__ void quantize_given(const T* x, u64 x_stride, u32 rows, u32 cols, const Nvfp4Rule& rule, const float* given, u32 backwards, u8* codes, u8* block_scales, float* scale) {
    __shared__ Second shared_second;
    const u32 blocks = cols / 16;
    const Walk at = walk(rows);
    const bool column = at.block < blocks;
    // After an amax pass the end of the matrix is what L2 still holds: begin there.
    const u32 first = backwards ? at.tiles - 1 - at.tile : at.tile;
    const int step = backwards ? -(int)at.step : (int)at.step;
    u32 row = first * 128 + at.within;
    const T* in = x + row * x_stride + at.block / 2 * 32 + 8 * half_of_lane<1>();
    const bool even = at.block / 2 * 2 < blocks, odd = at.block / 2 * 2 + 1 < blocks;
    u8* scales = block_scales + ((u64)first * ((blocks + 3) / 4) + at.block / 4) * 512 + at.scale_at;
    const i64 in_step = step * 128 * (i64)x_stride, scales_step = step * (i64)((blocks + 3) / 4) * 512;
    begin();
    Block<T> next = zero_block<T>();
    const bool begins = at.tile < at.tiles && row < rows;
    load_halves<ALIGNED>(next, in, begins && even, begins && odd);
    if (threadIdx.x == 0) {
        shared_second = second_level(given[0], rule.given, rule.six_e);
        if (blockIdx.x == 0 && blockIdx.y == 0) *scale = shared_second.scale;
    }
    __syncthreads();
    const Second second = shared_second;
    const bool compares = errors_compare(second, rule.six_e);
    if (at.block >= (blocks + 3) / 4 * 4) return;
    for (u32 tile = at.tile; tile < at.tiles; tile += at.step) {
        Block<T> data = own_block<1>(next);
        const bool inside = column && row < rows;
        // From the row each time: a pointer kept beside it cost the registers of one more block of threads.
        uint2* out = (uint2*)codes + (u64)row * blocks + at.block;
        row += step * 128;
        in += in_step;
        const bool more = tile + at.step < at.tiles && row < rows;
        load_halves<ALIGNED>(next, in, more && even, more && odd);
        Codes result = {{0, 0}, 0};
        if (inside) {
            result = quantize_block_at<T, KIND>(data, out - (uint2*)codes, second, rule, compares);
            *out = result.packed;
        }
        *scales = (u8)result.scale;
        scales += scales_step;
    }
}

// Blocks of a multiprocessor that fit without spilling, tuned where it was measured: in machine code of sm_90, not in PTX for later GPUs.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PLAIN_BLOCKS 5
#define CHOICE_BLOCKS 4
#define STRICT_BLOCKS 3
#define ROW_PLAIN_BLOCKS 2
#else
#define PLAIN_BLOCKS 4
#define CHOICE_BLOCKS 3
#define STRICT_BLOCKS 2
#define ROW_PLAIN_BLOCKS 1
#endif
template <class T, bool ALIGNED, u32 KIND>
constexpr u32 given_blocks = sizeof(T) == 4 || !ALIGNED ? 2 : KIND == KIND_PLAIN ? PLAIN_BLOCKS : KIND <= KIND_MSE || KIND >= KIND_TORCHAO ? CHOICE_BLOCKS : STRICT_BLOCKS;

#define QUANTIZE_NVFP4(name, T, ALIGNED, NAME, KIND)                                                                      \
    extern "C" __global__ void __launch_bounds__(256, (given_blocks<T, ALIGNED, KIND>)) quantize_nvfp4_##NAME##_##name(   \
        const T* __restrict__ x,          /* [rows][cols], row stride x_stride elements */                                \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                         /* multiple of 16 */                                                            \
        Nvfp4Rule rule,                                                                                                   \
        const float* __restrict__ given,  /* one float: amax, encode or decode factor (rule.given) */                     \
        u32 backwards,                    /* 1: the last rows first */                                                    \
        u8* __restrict__ codes,           /* [rows][cols / 2], 8-byte aligned */                                          \
        u8* __restrict__ block_scales,    /* tiled 128x4 of [rows][cols / 16], padding written as 0 */                    \
        float* __restrict__ scale)        /* receives the stored decode factor */                                         \
    { quantize_given<T, ALIGNED, KIND>(x, x_stride, rows, cols, rule, given, backwards, codes, block_scales, scale); }
FOR_EACH_TYPE(QUANTIZE_NVFP4, plain, KIND_PLAIN)
FOR_EACH_TYPE(QUANTIZE_NVFP4, mae, KIND_MAE)
FOR_EACH_TYPE(QUANTIZE_NVFP4, mse, KIND_MSE)
FOR_EACH_TYPE(QUANTIZE_NVFP4, strict_mae, KIND_STRICT_MAE)
FOR_EACH_TYPE(QUANTIZE_NVFP4, strict_mse, KIND_STRICT_MSE)
FOR_EACH_TYPE(QUANTIZE_NVFP4, torchao, KIND_TORCHAO)
FOR_EACH_TYPE(QUANTIZE_NVFP4, hadamard, KIND_HADAMARD)
FOR_EACH_TYPE(QUANTIZE_NVFP4, stochastic, KIND_STOCHASTIC)

// `amax_or_nan` of some blocks: of 16-bit elements two in a register.
template <class T, int COUNT> struct BlockMaxima {
    static constexpr int PER = sizeof(T) == 2 ? 2 : 1;
    u32 patterns[(COUNT + PER - 1) / PER] = {};
    __device__ __forceinline__ float find(const Block<T>& b, int i) {
        patterns[i / PER] |= amax_pattern(b) << i % PER * 16;
        return of(i);
    }
    __device__ __forceinline__ float of(int i) const {
        if constexpr (PER == 1) return __uint_as_float(patterns[i]);
        else return to_float(T{(u16)(patterns[i / PER] >> i % PER * 16)});
    }
};

// A second level for each row, its amax found in the same pass. A block holds a row, HELD blocks of 16 in each thread, and if AHEAD
// fetches its next row while it works on one. It takes four rows in turn, 32 apart, whose block scales lie side by side, and
// stores these together (`together` = 4), or single rows where there are too few (1).
// HELD = 0: rows too long for registers are read twice; `together` is 1.
template <class T, bool ALIGNED, u32 KIND, int HELD, bool AHEAD>
__device__ __forceinline__ void quantize_row(const T* x, u64 x_stride, u32 rows, u32 cols, const Nvfp4Rule& rule, u32 together, u8* codes, u8* block_scales, float* scales) {
    // Two places in turn: a slow warp may still read the last row's.
    __shared__ float scratch[2][32];
    __shared__ __align__(16) u8 collected[HELD ? ROW_BLOCKS * 4 : 16];  // [tile of 4 blocks][4 rows][4]
    const u32 blocks = cols / 16, padded_blocks = (u32)round_up4(blocks);
    const u32 padded_rows = (rows / 128 + (rows % 128 != 0)) * 128;
    const auto row_of = [&](u32 step) {
        if (together == 1) return blockIdx.x + step * gridDim.x;
        const u32 unit = blockIdx.x + step / 4 * gridDim.x;
        return unit / 32 * 128 + unit % 32 + step % 4 * 32;
    };
    const T* mine = x + threadIdx.x / 2 * 32 + 8 * half_of_lane<1>();
    constexpr int COUNT = HELD ? HELD : 1;
    Block<T> next[COUNT];
    const auto fetch = [&](u32 row) {
        const T* from = mine + row * x_stride;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const u32 pair = (threadIdx.x + i * blockDim.x) / 2 * 2;
            load_halves<ALIGNED>(next[i], from + i * blockDim.x * 16, row < rows && pair < blocks, row < rows && pair + 1 < blocks);
        }
    };
#pragma unroll
    for (int i = 0; i < COUNT; i++) next[i] = zero_block<T>();
    begin();
    if constexpr (HELD > 0 && AHEAD) fetch(row_of(0));
    for (u32 step = 0;; step++) {
        const u32 row = row_of(step);
        if (row >= padded_rows) break;
        Block<T> data[COUNT];
        if constexpr (HELD > 0) {
            if (!AHEAD) fetch(row);
#pragma unroll
            for (int i = 0; i < COUNT; i++) data[i] = own_block<1>(next[i]);
            if (AHEAD) fetch(row_of(step + 1));
        }
        u8* tile = block_scales + (u64)(row / 128) * (padded_blocks / 4) * 512;
        const auto keep_scale = [&](u32 b, u32 scale) {
            if (HELD && together == 4) collected[b / 4 * 16 + step % 4 * 4 + b % 4] = (u8)scale;
            else tile[(u64)(b / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + b % 4] = (u8)scale;
        };
        if (row >= rows) {
            for (u32 b = threadIdx.x; b < padded_blocks; b += blockDim.x) keep_scale(b, 0);
        } else {
            const T* in = x + row * x_stride;
            uint2* out = (uint2*)codes + (u64)row * blocks;
            BlockMaxima<T, COUNT> maxima;
            float of_row = 0.0f;
            if constexpr (HELD > 0) {
#pragma unroll
                for (int i = 0; i < COUNT; i++) {
                    const float amax = maxima.find(data[i], i);
                    const float known = amax == amax ? amax : amax_ignoring_nan(data[i]);
                    if (threadIdx.x + i * blockDim.x < blocks) of_row = fmaxf(of_row, known);
                }
            } else {
                for (u32 b = threadIdx.x; b < blocks; b += blockDim.x) of_row = fmaxf(of_row, amax_ignoring_nan(load_block<ALIGNED>(in + 16 * b)));
            }
            const Second second = second_of(block_max(of_row, scratch[step % 2]), rule.six_e);
            if (threadIdx.x == 0) scales[row] = second.scale;
            const bool compares = has_plain_second(second.amax);
            const auto write = [&](u32 b, Block<T>& held, float amax) {
                Codes result = {{0, 0}, 0};
                if (b < blocks) {
                    result = quantize_block<T, KIND>(held, amax, second, rule, compares);
                    out[b] = result.packed;
                }
                if (b < padded_blocks) keep_scale(b, result.scale);
            };
            if constexpr (HELD > 0) {
#pragma unroll
                for (int i = 0; i < COUNT; i++) {
                    forget(data[i]);
                    write(threadIdx.x + i * blockDim.x, data[i], maxima.of(i));
                }
            } else {
                for (u32 b = threadIdx.x; b < padded_blocks; b += blockDim.x) {
                    if (b < blocks) data[0] = load_block<ALIGNED>(in + 16 * b);
                    write(b, data[0], amax_or_nan(data[0]));
                }
            }
        }
        if (HELD && together == 4 && step % 4 == 3) {
            __syncthreads();
            // The sixteen scales of four rows and four blocks a thread.
            for (u32 i = threadIdx.x; i < padded_blocks / 4; i += blockDim.x)
                *(uint4*)(tile + (u64)i * 512 + row % 32 * 16) = ((const uint4*)collected)[i];
            __syncthreads();
        }
    }
}

template <class T, bool ALIGNED, u32 KIND, int HELD>
constexpr u32 row_blocks = HELD && ALIGNED && sizeof(T) == 2 && KIND == KIND_PLAIN ? ROW_PLAIN_BLOCKS : 1;

#define QUANTIZE_NVFP4_ROW(name, T, ALIGNED, NAME, KIND, WHICH, HELD)                                                     \
    QUANTIZE_NVFP4_ROW_OF(name, T, ALIGNED, NAME, KIND, WHICH, HELD, true, row_threads<HELD>, (row_blocks<T, ALIGNED, KIND, HELD>))
#define QUANTIZE_NVFP4_ROW_OF(name, T, ALIGNED, NAME, KIND, WHICH, HELD, AHEAD, THREADS, BLOCKS)                          \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                         \
    quantize_nvfp4_row_##NAME##_##WHICH##_##name(                                                                         \
        const T* __restrict__ x,        /* [rows][cols], row stride x_stride elements */                                  \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                       /* multiple of 16 */                                                              \
        Nvfp4Rule rule,                                                                                                   \
        u32 together,                   /* rows that a block takes in turn: 1 or 4 */                                     \
        u8* __restrict__ codes,         /* [rows][cols / 2], 8-byte aligned */                                            \
        u8* __restrict__ block_scales,  /* tiled 128x4 of [rows][cols / 16], 16-byte aligned, padding written as 0 */     \
        float* __restrict__ scales)     /* [rows] decode factors */                                                       \
    { quantize_row<T, ALIGNED, KIND, HELD, AHEAD>(x, x_stride, rows, cols, rule, together, codes, block_scales, scales); }
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, plain, KIND_PLAIN, long, 0)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, plain, KIND_PLAIN, held, 2)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, mae, KIND_MAE, long, 0)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, mae, KIND_MAE, held, 2)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, mse, KIND_MSE, long, 0)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, mse, KIND_MSE, held, 2)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, strict_mae, KIND_STRICT_MAE, long, 0)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, strict_mae, KIND_STRICT_MAE, held, 2)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, strict_mse, KIND_STRICT_MSE, long, 0)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, strict_mse, KIND_STRICT_MSE, held, 2)

// 4over6 of many rows that are not too long: with fewer registers more rows fit, on sm_90 worth 4 to 16 % (observed: H200, 2026-11). Two blocks of 16 in each
// thread where errors are compared fast, one where they are strict, as src/gpu/kernels/nvfp4_row_launch.rs has it. On sm_80 strict ones spilled with two.
#define FAST_ROWS 3
#if __CUDA_ARCH__ == 800
#define STRICT_ROWS 1
#else
#define STRICT_ROWS 2
#endif
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MOST_ROWS 3
#else
#define MOST_ROWS 2
#endif
#define QUANTIZE_NVFP4_ROWS(name, T, NAME, KIND, WHICH, HELD, AHEAD, THREADS, BLOCKS)                                     \
    QUANTIZE_NVFP4_ROW_OF(name, T, true, NAME, KIND, WHICH, HELD, AHEAD, THREADS, BLOCKS)
#define EACH_NARROW_TYPE(...)                                                                                             \
    QUANTIZE_NVFP4_ROWS(bf16, Bf16, __VA_ARGS__)                                                                          \
    QUANTIZE_NVFP4_ROWS(f16, F16, __VA_ARGS__)
EACH_NARROW_TYPE(mae, KIND_MAE, many, 2, true, 256, FAST_ROWS)
EACH_NARROW_TYPE(mse, KIND_MSE, many, 2, true, 256, FAST_ROWS)
EACH_NARROW_TYPE(strict_mae, KIND_STRICT_MAE, many, 1, true, 448, STRICT_ROWS)
EACH_NARROW_TYPE(strict_mse, KIND_STRICT_MSE, many, 1, true, 448, STRICT_ROWS)
// Of very many rows: what a row costs each thread serves twice as many elements, for registers that leave fewer rows at once.
EACH_NARROW_TYPE(strict_mae, KIND_STRICT_MAE, most, 2, false, 224, MOST_ROWS)
EACH_NARROW_TYPE(strict_mse, KIND_STRICT_MSE, most, 2, false, 224, MOST_ROWS)

// Eight codes in their published order, of the columns from `col` on.
template <bool REPACKED> __device__ __forceinline__ u32 load_codes(const u8* codes, u64 row, u32 col, u32 cols) {
    if constexpr (!REPACKED) return __ldg((const u32*)(codes + (row * cols + col) / 2));
    const uint2 block = __ldg((const uint2*)(codes + repacked_place(row, col / 16 * 16, cols)));
    const u32 half = col / 8 % 2;
    return published_word(half, half ? block.y : block.x, shared_word(block.x, block.y));
}

// y = round(fl(code * fl(s * scale))).
template <class T, bool ALIGNED, bool REPACKED>
__device__ __forceinline__ void dequantize(const u8* codes, const u8* block_scales, const float* scales, u32 scale_step, u32 rows, u32 cols, T* y, u64 y_stride) {
    struct Loaded {
        u32 codes;
        float scale;
    };
    // Loads alone: anything else under their condition would keep those of all rows from being on the way together.
    const auto load = [&](Loaded& at, u64 row, u32 col, bool inside) {
        if (inside) at.codes = load_codes<REPACKED>(codes, row, col, cols);
        at.scale = 1.0f;
        if (scales && inside) at.scale = __ldg(scales + row * scale_step);
    };
    const auto decode = [](const Loaded& at, u32 byte, float (&v)[8]) { decode_word(at.codes, __fmul_rn(ue4m3_value(byte & 0x7F), at.scale), v); };
    dequantize_blocks<16, ALIGNED, Loaded>(block_scales, rows, cols, cols / 16, y, y_stride, load, decode);
}

#define DEQUANTIZE_NVFP4(name, T, ALIGNED, NAME, REPACKED)                                                                       \
    extern "C" __global__ void __launch_bounds__(256) dequantize_##NAME##_##name(                                         \
        const u8* __restrict__ codes,         /* [rows][cols / 2], 8-byte aligned; or repacked */                         \
        const u8* __restrict__ block_scales,  /* tiled 128x4 of [rows][cols / 16], 16-byte aligned */                     \
        const float* __restrict__ scales,     /* decode factors; null: 1 */                                               \
        u32 scale_step,                       /* 0: one for the matrix, 1: one for each row */                            \
        u32 rows, u32 cols,                   /* cols: multiple of 16 */                                                  \
        T* __restrict__ y,                    /* [rows][cols], row stride y_stride elements */                            \
        u64 y_stride)                                                                                                     \
    { begin(); dequantize<T, ALIGNED, REPACKED>(codes, block_scales, scales, scale_step, rows, cols, y, y_stride); }
FOR_EACH_TYPE(DEQUANTIZE_NVFP4, nvfp4, false)
// Of rows in a multiple of 8 and columns in one of 128.
FOR_EACH_TYPE(DEQUANTIZE_NVFP4, nvfp4_repacked, true)
