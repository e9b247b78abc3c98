// What follows the FP32 sum, and the small kernels around a GEMM.
// Mirror of src/epilogue.rs, operation by operation; compiled without contraction, so the bytes are equal.
#include "base/codec.cuh"
#include "base/layout.cuh"
#include "base/activation.cuh"

// Element types of bias and residual, as the kernel receives them.
constexpr u32 TYPE_BF16 = 0;
constexpr u32 TYPE_F16 = 1;

// Eight neighbouring elements of a bias or residual of run-time type.
template <bool ALIGNED> __device__ __forceinline__ void load_any(const void* p, u64 at, u32 type, float (&v)[8]) {
    if (type == TYPE_BF16) {
        unpack(load<ALIGNED>((const Bf16*)p + at), v);
    } else if (type == TYPE_F16) {
        unpack(load<ALIGNED>((const F16*)p + at), v);
    } else {
        unpack(load<ALIGNED>((const float*)p + at), v);
    }
}

struct Epilogue {
    const float* acc;        // [m][n] FP32, row stride acc_stride
    const float* row_scale;  // [m], or one number if row_step is 0; null: none
    const float* col_scale;  // [n], or one number if col_step is 0; null: none
    const float* c;          // [m][n] FP32, row stride c_stride; null: none
    const void* bias;        // [n] of bias_type; null: none
    const void* residual;    // [m][n] of residual_type, row stride residual_stride; null: none
    const float* out_encode; // one factor, E4M3 output only
    float* amax;             // raised to max |v| before out_encode; null: not wanted
    void* d;                 // [m][n] of the output type, row stride d_stride
    u64 acc_stride, c_stride, residual_stride, d_stride;
    u32 m, n;                // n: multiple of 8
    float beta;
    u32 activation, bias_type, residual_type;
    u32 row_step, col_step;  // 0 or 1
};

struct E4m3 { u8 bits; };

// Each thread takes eight columns and ROWS rows, the rows a block apart in grid.y, so scales and bias are read once.
template <class D, bool ALIGNED> __device__ __forceinline__ void epilogue(const Epilogue& e) {
    constexpr int ROWS = sizeof(D) == 1 ? 2 : 4;
    __shared__ float scratch[32];
    const u32 col = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    const bool inside = col < e.n;
    float amax = 0.0f;
    if (inside) {
        float col_scale[8], bias[8];
        if (e.col_scale) {
            if (e.col_step) {
                load_any<ALIGNED>(e.col_scale, col, 2, col_scale);
            } else {
                const float s = *e.col_scale;
#pragma unroll
                for (int i = 0; i < 8; i++) col_scale[i] = s;
            }
        }
        if (e.bias) load_any<ALIGNED>(e.bias, col, e.bias_type, bias);
        for (u64 first = (u64)blockIdx.y * ROWS; first < e.m; first += (u64)gridDim.y * ROWS) {
            Vec8<float> acc[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (first + r >= e.m) continue;
                acc[r] = load<ALIGNED>(e.acc + (first + r) * e.acc_stride + col);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const u64 row = first + r;
                if (row >= e.m) continue;
                float v[8];
                unpack(acc[r], v);
                if (e.row_scale) {
                    const float s = e.row_scale[row * e.row_step];
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], s);
                }
                if (e.col_scale) {
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], col_scale[i]);
                }
                if (e.c) {
                    float c[8];
                    load_any<ALIGNED>(e.c, row * e.c_stride + col, 2, c);
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] = __fadd_rn(__fmul_rn(e.beta, c[i]), v[i]);
                }
                if (e.bias) {
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] = __fadd_rn(v[i], bias[i]);
                }
                if (e.activation) {
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] = activate(e.activation, v[i]);
                }
                if (e.residual) {
                    float x[8];
                    load_any<ALIGNED>(e.residual, row * e.residual_stride + col, e.residual_type, x);
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] = __fadd_rn(v[i], x[i]);
                }
                if constexpr (sizeof(D) == 1) {
                    const float encode = *e.out_encode;
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        amax = fmaxf(amax, fabsf(v[i]));
                        v[i] = __fmul_rn(v[i], encode);
                    }
                    const uint2 codes = encode8<E4M3>(v);
                    u8* out = (u8*)e.d + row * e.d_stride + col;
                    if constexpr (ALIGNED) {
                        *(uint2*)out = codes;
                    } else {
#pragma unroll
                        for (int i = 0; i < 8; i++) out[i] = (u8)((i < 4 ? codes.x : codes.y) >> (i % 4 * 8));
                    }
                } else {
                    D* out = (D*)e.d + row * e.d_stride + col;
                    store<ALIGNED>(out, v);
                }
            }
        }
    }
    if constexpr (sizeof(D) == 1) {
        if (e.amax) {
            amax = block_max(amax, scratch);
            if (threadIdx.x == 0) atomic_max(e.amax, amax);
        }
    }
}


// With one block asked for, the compiler of sm_120 spills nothing.
#if __CUDA_ARCH__ >= 1200
#define EPILOGUE_BOUNDS __launch_bounds__(256, 1)
#else
#define EPILOGUE_BOUNDS __launch_bounds__(256)
#endif
#define EPILOGUE(name, D, ALIGNED, ...)                                                                                   \
    extern "C" __global__ void EPILOGUE_BOUNDS epilogue_##name(Epilogue e) {                                         \
        begin();                                                                                   \
        epilogue<D, ALIGNED>(e);                                                                                          \
    }
FOR_EACH_TYPE(EPILOGUE)
EPILOGUE(e4m3, E4m3, true)
EPILOGUE(e4m3_unaligned, E4m3, false)

// alpha and beta of a product whose operands have one second-level scale each, where the host does not know the scales:
// {fl(fl(alpha * scale_a) * scale_b), beta}. In this order no product of two large scales overflows before alpha shrinks it.
extern "C" __global__ void __launch_bounds__(32) gemm_factors(
    float alpha, float beta,
    const float* __restrict__ scale_a,  // one FP32; null: A has none
    const float* __restrict__ scale_b,  // one FP32; null: B has none
    float* __restrict__ out)            // two FP32: alpha, beta
{
    begin();
    if (threadIdx.x != 0) return;
    float factor = alpha;
    if (scale_a) factor = __fmul_rn(factor, *scale_a);
    if (scale_b) factor = __fmul_rn(factor, *scale_b);
    out[0] = factor;
    out[1] = beta;
}

// The scales of 128x128 tiles repeated for each row: what lets a 1x128 GEMM read a 128x128 matrix.
extern "C" __global__ void __launch_bounds__(256) repeat_scales_128x128(
    const float* __restrict__ tiles,  // BLK128 of a [rows][cols] matrix
    u32 rows, u32 cols,
    float* __restrict__ out)          // VEC128 of the same matrix, padding written as 0
{
    begin();
    const u32 blocks = (cols + 127) / 128;
    const u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= round_up4(rows)) return;
    for (u32 block = blockIdx.y; block < blocks; block += gridDim.y)
        out[vec128_index(rows, row, block)] = row < rows ? tiles[blk128_index(blocks, row / 128, block)] : 0.0f;
}
