// NVFP4 along rows, rounded to nearest: with a given second level, with one of each row, and back to plain numbers.
// Transposes, 16x16 tiles, the Hadamard transform and random rounding are in nvfp4_tile.cu.
#include "nvfp4.cuh"

// A warp's unit is four rows, 32 apart, by eight blocks: 256 consecutive bytes of each 16-bit row, and 16 consecutive bytes
// in each of two tiles of block scales.
constexpr u32 UNIT_BLOCKS = 8;

struct Unit {
    u64 row;
    u32 block;
};

// This lane's row and block of a unit.
__device__ __forceinline__ Unit unit_place(u64 unit, u32 units_of_a_row) {
    const u32 lane = threadIdx.x % 32;
    const u64 group = unit / units_of_a_row;
    return {group / 32 * 128 + group % 32 + 32 * (lane / 8), (u32)(unit % units_of_a_row) * UNIT_BLOCKS + lane % 8};
}

__device__ __forceinline__ u32 units_of(u32 blocks) { return ((u32)round_up4(blocks) + UNIT_BLOCKS - 1) / UNIT_BLOCKS; }

constexpr u32 KIND_PLAIN = 0;
constexpr u32 KIND_MAE = 1;
constexpr u32 KIND_MSE = 2;

template <class T, u32 KIND>
__device__ __forceinline__ Codes quantize_block(Block<T>& data, const Second& second, const Nvfp4Rule& rule, bool compares) {
    bool finite;
    const float amax = block_amax(data, finite);
    if constexpr (KIND == KIND_PLAIN) return plain_block(data, amax, finite, second, rule);
    return four_over_six_block<T, KIND == KIND_MSE>(data, amax, finite, second, rule, compares);
}

// One second level for the matrix. Each warp takes ITEMS units, one grid apart in the block.
template <class T, bool ALIGNED, u32 KIND, int ITEMS>
__device__ __forceinline__ void quantize_given(const T* x, u64 x_stride, u32 rows, u32 cols, const Nvfp4Rule& rule, const float* given, u32 backwards, u8* codes, u8* block_scales, float* scale) {
    __shared__ Second shared_second;
    const u32 blocks = cols / 16, units = units_of(blocks), warps = blockDim.x / 32;
    // After an amax pass the end of the matrix is what L2 still holds: begin there.
    const u64 first = (u64)(backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * warps * ITEMS + threadIdx.x / 32;
    begin();
    Unit at[ITEMS];
    Block<T> data[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        at[i] = unit_place(first + i * warps, units);
        const bool inside = at[i].row < rows && at[i].block < blocks;
        data[i] = inside ? load_block<ALIGNED>(x + at[i].row * x_stride + at[i].block * 16) : zero_block<T>();
    }
    if (threadIdx.x == 0) {
        shared_second = second_level(given[0], rule.given, rule.six_e);
        if (blockIdx.x == 0) *scale = shared_second.scale;
    }
    __syncthreads();
    const Second second = shared_second;
    const bool compares = errors_compare(second, rule.six_e);
    const u64 padded_rows = ((u64)rows + 127) / 128 * 128;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (at[i].row >= padded_rows || at[i].block >= round_up4(blocks)) continue;
        const bool inside = at[i].row < rows && at[i].block < blocks;
        Codes out = {{0, 0}, 0};
        if (inside) {
            out = quantize_block<T, KIND>(data[i], second, rule, compares);
            *(uint2*)(codes + (at[i].row * blocks + at[i].block) * 8) = out.packed;
        }
        block_scales[tiled_index(blocks, at[i].row, at[i].block)] = (u8)out.scale;
    }
}

#define QUANTIZE_NVFP4(name, T, ALIGNED, NAME, KIND, ITEMS)                                                               \
    extern "C" __global__ void __launch_bounds__(256) quantize_nvfp4_##NAME##_##name(                                     \
        const T* __restrict__ x,          /* [rows][cols], row stride x_stride elements */                                \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                         /* multiple of 16 */                                                            \
        Nvfp4Rule rule,                                                                                                   \
        const float* __restrict__ given,  /* one float: amax, encode or decode factor (rule.given) */                     \
        u32 backwards,                    /* 1: the last rows first */                                                    \
        u8* __restrict__ codes,           /* [rows][cols / 2], 8-byte aligned */                                          \
        u8* __restrict__ block_scales,    /* tiled 128x4 of [rows][cols / 16], padding written as 0 */                    \
        float* __restrict__ scale)        /* receives the stored decode factor */                                         \
    { quantize_given<T, ALIGNED, KIND, ITEMS>(x, x_stride, rows, cols, rule, given, backwards, codes, block_scales, scale); }
FOR_EACH_TYPE(QUANTIZE_NVFP4, plain, KIND_PLAIN, 1)
FOR_EACH_TYPE(QUANTIZE_NVFP4, mae, KIND_MAE, 1)
FOR_EACH_TYPE(QUANTIZE_NVFP4, mse, KIND_MSE, 1)

// A second level for each row, its amax found in the same pass. One block a row; BLOCKS blocks of 16 in each thread's
// registers; BLOCKS = 0: the row is read twice (rows too long for registers).
template <class T, bool ALIGNED, u32 KIND, int BLOCKS>
__device__ __forceinline__ void quantize_row(const T* x, u64 x_stride, u32 rows, u32 cols, const Nvfp4Rule& rule, u8* codes, u8* block_scales, float* scales) {
    __shared__ float scratch[32];
    __shared__ Second shared_second;
    const u32 blocks = cols / 16, padded_blocks = (u32)round_up4(blocks);
    const u64 row = blockIdx.x;
    begin();
    if (row >= rows) {
        for (u32 b = threadIdx.x; b < padded_blocks; b += blockDim.x) block_scales[tiled_index(blocks, row, b)] = 0;
        return;
    }
    const T* in = x + row * x_stride;
    constexpr int HELD = BLOCKS == 0 ? 1 : BLOCKS;
    Block<T> data[HELD];
    float amax = 0.0f;
    if constexpr (BLOCKS > 0) {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            const u32 b = threadIdx.x + i * blockDim.x;
            data[i] = b < blocks ? load_block<ALIGNED>(in + 16 * b) : zero_block<T>();
        }
        bool finite;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) amax = fmaxf(amax, block_amax(data[i], finite));
    } else {
        bool finite;
        for (u32 b = threadIdx.x; b < blocks; b += blockDim.x) {
            data[0] = load_block<ALIGNED>(in + 16 * b);
            amax = fmaxf(amax, block_amax(data[0], finite));
        }
    }
    amax = block_max(amax, scratch);
    if (threadIdx.x == 0) {
        shared_second = second_level(amax, GIVEN_AMAX, rule.six_e);
        scales[row] = shared_second.scale;
    }
    __syncthreads();
    const Second second = shared_second;
    const bool compares = errors_compare(second, rule.six_e);
    const u32 steps = BLOCKS > 0 ? (u32)BLOCKS : (padded_blocks + blockDim.x - 1) / blockDim.x;
#pragma unroll
    for (u32 i = 0; i < (BLOCKS > 0 ? (u32)BLOCKS : 0u) || (BLOCKS == 0 && i < steps); i++) {
        const u32 b = threadIdx.x + i * blockDim.x;
        Codes out = {{0, 0}, 0};
        if (b < blocks) {
            Block<T>& held = data[BLOCKS > 0 ? i : 0];
            if constexpr (BLOCKS == 0) held = load_block<ALIGNED>(in + 16 * b);
            forget(held);
            out = quantize_block<T, KIND>(held, second, rule, compares);
            *(uint2*)(codes + (row * blocks + b) * 8) = out.packed;
        }
        if (b < padded_blocks) block_scales[tiled_index(blocks, row, b)] = (u8)out.scale;
    }
}

#define QUANTIZE_NVFP4_ROW(name, T, ALIGNED, NAME, KIND, BLOCKS)                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCKS == 1 ? 512 : 1024) quantize_nvfp4_row_##NAME##_##BLOCKS##_##name( \
        const T* __restrict__ x,        /* [rows][cols], row stride x_stride elements */                                  \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                       /* multiple of 16 */                                                              \
        Nvfp4Rule rule,                                                                                                   \
        u8* __restrict__ codes,         /* [rows][cols / 2], 8-byte aligned */                                            \
        u8* __restrict__ block_scales,  /* tiled 128x4 of [rows][cols / 16], padding written as 0 */                      \
        float* __restrict__ scales)     /* [rows] decode factors */                                                       \
    { quantize_row<T, ALIGNED, KIND, BLOCKS>(x, x_stride, rows, cols, rule, codes, block_scales, scales); }
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, plain, KIND_PLAIN, 0)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, plain, KIND_PLAIN, 1)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, mae, KIND_MAE, 0)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, mae, KIND_MAE, 1)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, mse, KIND_MSE, 0)
FOR_EACH_TYPE(QUANTIZE_NVFP4_ROW, mse, KIND_MSE, 1)

// Sixteen values of eight bytes of codes, each times f: fl(code * f). A code's bits, three places up, are an E5M2 number and so
// the upper byte of an F16 one, 2^14 too small.
__device__ __forceinline__ void decode_block(uint2 packed, float f, float (&v)[16]) {
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const u32 byte = (k < 4 ? packed.x : packed.y) >> 8 * (k % 4);
        const u32 lo = (byte & 7) << 9 | (byte & 8) << 12, hi = (byte & 0x70) << 5 | (byte & 0x80) << 8;
        v[2 * k] = __fmul_rn(__fmul_rn(to_float(F16{(u16)lo}), 16384.0f), f);
        v[2 * k + 1] = __fmul_rn(__fmul_rn(to_float(F16{(u16)hi}), 16384.0f), f);
    }
}

// y = round(fl(code * fl(s * scale))).
#define DEQUANTIZE_NVFP4(name, T, ALIGNED, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(256) dequantize_nvfp4_##name(                                            \
        const u8* __restrict__ codes,         /* [rows][cols / 2], 8-byte aligned */                                      \
        const u8* __restrict__ block_scales,  /* tiled 128x4 of [rows][cols / 16] */                                      \
        const float* __restrict__ scales,     /* decode factors: null: 1 */                                               \
        u32 scale_step,                       /* 0: one for the matrix, 1: one for each row */                            \
        u32 rows, u32 cols,                                                                                               \
        T* __restrict__ y,                    /* [rows][cols], row stride y_stride elements */                            \
        u64 y_stride)                                                                                                     \
    {                                                                                                                     \
        const u32 blocks = cols / 16, units = units_of(blocks);                                                           \
        const Unit at = unit_place((u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, units);                        \
        begin();                                                                                                          \
        if (at.row >= rows || at.block >= blocks) return;                                                                 \
        const uint2 packed = __ldg((const uint2*)(codes + (at.row * blocks + at.block) * 8));                             \
        float f = ue4m3_value(block_scales[tiled_index(blocks, at.row, at.block)] & 0x7F);                                \
        if (scales) f = __fmul_rn(f, scales[at.row * scale_step]);                                                        \
        float v[16];                                                                                                      \
        decode_block(packed, f, v);                                                                                       \
        T* to = y + at.row * y_stride + at.block * 16;                                                                    \
        store<ALIGNED>(to, *(const float(*)[8])(v));                                                                      \
        store<ALIGNED>(to + 8, *(const float(*)[8])(v + 8));                                                              \
    }
FOR_EACH_TYPE(DEQUANTIZE_NVFP4)
