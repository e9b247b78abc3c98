// The gradient of a bias: the sum of dY over the tokens, in f64 and in one order, whatever the GPU. Sums of 128 rows come from here where
// dY is no operand in FP8, beside its BF16 numbers where it has to be rounded to those; else from gradient.cu.
#include "base/types.cuh"

constexpr u32 WARPS = 8;
constexpr u32 STRIP_ROWS = 128;
constexpr u32 COLUMNS = 256;  // of a block: eight in each lane

// sums[strip][column], rows of a strip one after the other in each warp, then the warps in order. ROUNDS: y[row][column] is X rounded to BF16.
template <class T, bool ALIGNED, bool ROUNDS>
__device__ __forceinline__ void sum_strip(const T* x, u64 x_stride, u32 rows, u32 cols, double* sums, Bf16* y) {
    __shared__ double parts[WARPS][COLUMNS];
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 col = (u64)blockIdx.x * COLUMNS + 8 * lane;
    const u64 first = (u64)blockIdx.y * STRIP_ROWS;
    const u64 end = first + STRIP_ROWS < rows ? first + STRIP_ROWS : rows;
    begin();
    double sum[8] = {};
    if (col < cols) {
        for (u64 row = first + warp; row < end; row += WARPS) {
            const Vec8<T> data = load<ALIGNED>(x + row * x_stride + col);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] += (double)element(data, i);
            if constexpr (ROUNDS) {
                float v[8];
                unpack(data, v);
                store8(y + row * cols + col, v);
            }
        }
    }
    // Neighbouring lanes write neighbouring numbers.
#pragma unroll
    for (int i = 0; i < 8; i++) parts[warp][32 * i + lane] = sum[i];
    __syncthreads();
    // Thread t has column t / 8 of the 32 lanes, number t % 8 of eight.
    const u32 at = 32 * (threadIdx.x % 8) + threadIdx.x / 8;
    double total = 0.0;
#pragma unroll
    for (u32 w = 0; w < WARPS; w++) total += parts[w][at];
    const u64 mine = (u64)blockIdx.x * COLUMNS + threadIdx.x;
    if (mine < cols) sums[(u64)blockIdx.y * cols + mine] = total;
}

#define BIAS_STRIPS(name, T, ALIGNED, ...)                                                                                \
    extern "C" __global__ void __launch_bounds__(256) bias_strips_##name(                                                 \
        const T* __restrict__ x,     /* [rows][cols], row stride x_stride elements */                                     \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                    /* multiple of 8 */                                                                  \
        double* __restrict__ sums)   /* [rows / 128 rounded up][cols] */                                                                 \
    { sum_strip<T, ALIGNED, false>(x, x_stride, rows, cols, sums, nullptr); }
FOR_EACH_TYPE(BIAS_STRIPS)

// The same, and the cast to BF16 as to_bf16.cu has it.
#define BIAS_TO_BF16(name, T, ALIGNED, ...)                                                                               \
    extern "C" __global__ void __launch_bounds__(256) bias_to_bf16_##name(                                                \
        const T* __restrict__ x,     /* [rows][cols], row stride x_stride elements */                                     \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                    /* multiple of 8 */                                                                  \
        double* __restrict__ sums,   /* [rows / 128 rounded up][cols] */                                                  \
        Bf16* __restrict__ y)        /* [rows][cols], 16-byte aligned */                                                  \
    { sum_strip<T, ALIGNED, true>(x, x_stride, rows, cols, sums, y); }
FOR_EACH_TYPE(BIAS_TO_BF16)

// The strips in order, rounded once.
extern "C" __global__ void __launch_bounds__(256) bias_gradient(
    const double* __restrict__ sums,  // [strips][cols]
    u32 strips, u32 cols,
    float* __restrict__ out)          // [cols]
{
    begin();
    const u32 col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    double total = 0.0;
    for (u32 strip = 0; strip < strips; strip++) total += sums[(u64)strip * cols + col];
    out[col] = (float)total;
}

// to += from, FP32.
extern "C" __global__ void __launch_bounds__(256) add_bias_gradient(
    const float* __restrict__ from,  // [count]
    u32 count,
    float* __restrict__ to)          // [count]
{
    begin();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = __fadd_rn(to[i], from[i]);
}
