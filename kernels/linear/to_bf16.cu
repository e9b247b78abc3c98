// F16 and FP32 numbers as BF16, rounded to nearest even: operands of BF16 products.
#include "base/types.cuh"

template <class T, bool ALIGNED>
__device__ __forceinline__ void to_bf16(const T* x, u64 x_stride, u32 rows, u32 cols, Bf16* y) {
    begin();
    const u64 col = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (col >= cols) return;
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        float v[8];
        unpack(load<ALIGNED>(x + row * x_stride + col), v);
        store8(y + row * cols + col, v);
    }
}

#define TO_BF16(name, T, ALIGNED, ...)                                                                                    \
    extern "C" __global__ void __launch_bounds__(256) to_bf16_##name(                                                     \
        const T* __restrict__ x,  /* [rows][cols], row stride x_stride elements */                                        \
        u64 x_stride, u32 rows,                                                                                           \
        u32 cols,                 /* multiple of 8 */                                                                     \
        Bf16* __restrict__ y)     /* [rows][cols], 16-byte aligned */                                                     \
    { to_bf16<T, ALIGNED>(x, x_stride, rows, cols, y); }
FOR_EACH_TYPE(TO_BF16)
