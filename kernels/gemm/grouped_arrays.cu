// What cuBLASLt's own products of groups read on the device: of each group the addresses of its matrices and scales, their rows, columns and leading dimensions; and alpha and beta.
#include "base/launch.cuh"
#include "gemm/groups.cuh"

// One operand: where it begins, and the bytes from one row to the next.
struct GroupArraysOperand { u64 at, row; };
// Its scales, if their addresses are asked for (0: not): bytes from a group to the next, and from 128 rows to the next.
struct GroupArraysScales { u64 at, group, rows128; };

struct GroupArraysProblem {
    const i64* starts;   // null: in slots
    const i64* counts;
    u64 slot_rows;
    u32 groups, rows;    // of A
    u32 n, k;
    u64 d_stride;        // elements
    GroupArraysOperand a, b, d;
    GroupArraysScales a_scales, b_scales;
    const float* levels[2];  // further factors of all products; null: 1
    float alpha;
    u32 step;            // rows that a group begins at a multiple of: 4, or 128
    i64* arrays;         // ARRAYS of them, `pitch` numbers each; alpha and beta are the first two floats behind them
    u64 pitch;
};

static_assert(sizeof(GroupArraysProblem) == 184, "its mirror has as many bytes");

// As `GroupArray` in src/gpu/kernels/grouped_arrays.rs has them.
enum { B_AT, A_AT, D_AT, B_SCALES, A_SCALES, N, K, ROWS, D_STRIDE, ARRAYS };

template <u32 STEP> __device__ __forceinline__ void grouped_arrays(const GroupArraysProblem& p) {
    u32 largest = 0;
    for (u32 first = 0; first < p.groups; first += 32) {
        u32 start, count;
        load_32_groups<STEP>(p, p.rows, first, largest, start, count);
        const u32 g = first + threadIdx.x;
        if (g >= p.groups) continue;
        const auto set = [&](u32 array, u64 value) { p.arrays[array * p.pitch + g] = (i64)value; };
        set(B_AT, p.b.at + (u64)g * p.n * p.b.row);
        set(A_AT, p.a.at + start * p.a.row);
        set(D_AT, p.d.at + start * p.d.row);
        if (p.b_scales.at) set(B_SCALES, p.b_scales.at + g * p.b_scales.group + (u64)g * p.n / 128 * p.b_scales.rows128);
        if (p.a_scales.at) set(A_SCALES, p.a_scales.at + g * p.a_scales.group + (u64)start / 128 * p.a_scales.rows128);
        set(N, p.n);
        set(K, p.k);
        set(ROWS, count);
        set(D_STRIDE, p.d_stride);
    }
}

// One warp.
extern "C" __global__ void __launch_bounds__(32) gemm_grouped_arrays(GroupArraysProblem p) {
    begin();
    if (p.step == 128) grouped_arrays<128>(p);
    else grouped_arrays<4>(p);
    if (threadIdx.x) return;
    float alpha = p.alpha;
    for (int i = 0; i < 2; i++) {
        if (p.levels[i]) alpha = __fmul_rn(alpha, *p.levels[i]);
    }
    float* const factors = (float*)(p.arrays + ARRAYS * p.pitch);
    factors[0] = alpha;
    factors[1] = 0.0f;
}
