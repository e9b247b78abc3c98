// How the product for Hopper (sm90.cuh) finishes its sums and stores a tile of D.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "gemm/finish.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/sm90_config.cuh"

// The lane, and the warp of its warpgroup. With scales of columns the loop over k has no register left: what the end of a tile computes of numbers that are
// known is computed before it and kept, and so they are asked for again.
template <class C> __device__ __forceinline__ u32 sm90_lane() {
    if constexpr (!C::OF_COLUMNS) return threadIdx.x % 32;
    u32 lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
template <class C> __device__ __forceinline__ u32 sm90_warp() {
    u32 thread = threadIdx.x;
    if constexpr (C::OF_COLUMNS) asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread / 32 % 4;
}

// Two numbers in one word.
template <class T> __device__ __forceinline__ u32 pack_pair(float lo, float hi);
template <> __device__ __forceinline__ u32 pack_pair<Bf16>(float lo, float hi) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
    return pair;
}
template <> __device__ __forceinline__ u32 pack_pair<F16>(float lo, float hi) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
    return pair;
}

// Word i of lane q of each four lanes becomes word q of lane i.
__device__ __forceinline__ void transpose_words(u32 (&w)[4]) {
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    u32 x = __shfl_xor_sync(0xFFFFFFFFu, odd ? w[0] : w[1], 1), y = __shfl_xor_sync(0xFFFFFFFFu, odd ? w[2] : w[3], 1);
    if (odd) w[0] = x, w[2] = y;
    else w[1] = x, w[3] = y;
    x = __shfl_xor_sync(0xFFFFFFFFu, upper ? w[0] : w[2], 2), y = __shfl_xor_sync(0xFFFFFFFFu, upper ? w[1] : w[3], 2);
    if (upper) w[0] = x, w[1] = y;
    else w[2] = x, w[3] = y;
}

// From registers: each thread sixteen bytes of a row, four neighbours 64; of the last 16 columns of a tile that is no multiple of 32 wide two of them 32.
template <class T, class C>
__device__ __forceinline__ void sm90_store_direct(const Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 lane = sm90_lane<C>();
    const u32 first = tile.col + col + 8 * (lane % 4);
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = row + 64 * wave + 8 * half + lane / 4;
            T* to = (T*)p.d + (u64)(tile.row + at) * p.stride_d + first;
#pragma unroll
            for (u32 c = 0; c < C::OUT_WIDE; c += 32) {
                constexpr u32 WIDE = C::OUT_WIDE;
                u32 w[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    // Beyond a tail of 16 columns, whatever: it is not stored.
                    const u32 from = c + 8 * i < WIDE ? i : 0;
                    const float* pair = &sum[wave][c / C::ATOM][(c % C::ATOM / 8 + from) * 4 + 2 * half];
                    w[i] = pack_pair<T>(pair[0], pair[1]);
                }
                transpose_words(w);
                if (WIDE % 32 != 0 && c + 8 * (lane % 4) >= WIDE) continue;
                if ((int)at < tile.rows && first + c < p.n) *(uint4*)(to + c) = {w[0], w[1], w[2], w[3]};
            }
        }
}

// Through a slab of 16 rows by 64 columns in shared memory, a warp's own, swizzled against bank conflicts: no warp waits for another.
template <class T, class C>
__device__ __forceinline__ void sm90_store_staged(const Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    const u32 lane = sm90_lane<C>(), in_row = lane % 16, in_chunk = lane / 16, chunk = lane % 8;
    const auto place = [](u32 r, u32 chunk) { return r * 128 + ((chunk ^ (r % 8)) << 4); };
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++) {
        const u32 at = row + 64 * wave;
        // A vote, for the compiler to know that all lanes go the same way.
        if (!__any_sync(0xFFFFFFFFu, (int)at < tile.rows)) continue;
#pragma unroll
        for (u32 c = 0; c < C::OUT_WIDE; c += 64) {
            __syncwarp();
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                const float* v = &sum[wave][c / C::ATOM][(c % C::ATOM / 8 + 2 * q) * 4];
                const u32 words[4] = {pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]), pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7])};
                store_matrices(slab + place(in_row, 2 * q + in_chunk), words);
            }
            __syncwarp();
            const u32 to_col = tile.col + col + c + 8 * chunk;
#pragma unroll
            for (u32 r = lane / 8; r < 16; r += 4) {
                const uint4 v = shared_vector(slab + place(r, chunk));
                if ((int)(at + r) < tile.rows && to_col < p.n) *(uint4*)((T*)p.d + (u64)(tile.row + at + r) * p.stride_d + to_col) = v;
            }
        }
    }
}

// All warps of a math warpgroup.
template <class C> __device__ __forceinline__ void sm90_meet() {
    asm volatile("bar.sync %0, 128;" ::"r"(5 + threadIdx.x / 128) : "memory");
}

// The warpgroup's slabs are free when what was stored from them is read.
template <class C> __device__ __forceinline__ void sm90_slabs_free() {
    if (threadIdx.x % 128 == 0) bulk_read();
    sm90_meet<C>();
}

// Through the warpgroup's slabs, as boxes of 64 columns and all of its rows. `row`, `slabs`: of the warpgroup.
template <class T, class C>
__device__ __forceinline__ void sm90_store_boxes(const Sm90Sums<C>& sum, const TensorMap& map, const Sm90Tile& tile, u32 row, u32 col, u32 slabs) {
    const u32 lane = sm90_lane<C>(), in_row = lane % 16, in_chunk = lane / 16;
    const u32 to = slabs + (16 * sm90_warp<C>() + in_row) * 128;
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 c = 0; c < C::OUT_WIDE; c += 16) {
            const float* v = &sum[wave][c / C::ATOM][c % C::ATOM / 2];
            const u32 words[4] = {pack_pair<T>(v[0], v[1]), pack_pair<T>(v[2], v[3]), pack_pair<T>(v[4], v[5]), pack_pair<T>(v[6], v[7])};
            store_matrices(to + (c / 64 * C::TALL + wave * 64) * 128 + (((c % 64 / 8 + in_chunk) ^ (in_row % 8)) << 4), words);
        }
    bulk_ready();
    sm90_meet<C>();
    if (threadIdx.x % 128 == 0) {
#pragma unroll
        for (u32 c = 0; c < C::OUT_WIDE; c += 64) store_box(map, tile.col + col + c, tile.row + row, slabs + c / 64 * C::TALL * 128);
        bulk_commit();
    }
}

// Residual and old D of a tile: half of a row of it for each lane, from the memory to the L2 cache.
template <class C> __device__ __forceinline__ void sm90_prefetch_matrices(const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 to_col, u32 lane) {
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++) {
        const u32 at = row + 64 * wave + lane / 2;
        if ((int)at >= tile.rows) continue;
        const auto ask = [&](const void* matrix, u64 stride, u32 type) {
            // Half of a row of the tile for each lane, in lines of 128 bytes.
            const u32 size = type == 2 ? 4 : 2;
#pragma unroll
            for (u32 c = 0; c < C::WIDE / 2; c += 32)
                if (to_col + c < p.n && (c % 64 == 0 || type == 2))
                    asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)matrix + ((tile.row + at) * stride + to_col + c) * size));
        };
        if (p.residual) ask(p.residual, p.stride_residual, p.residual_type);
        if (p.beta != 0.0f) ask(p.d, p.stride_d, 2);
    }
}

// What the end of a tile reads, asked for while its products still run: matrices from memory, vectors to this multiprocessor.
template <class C> __device__ __forceinline__ void sm90_prefetch(const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 lane = sm90_lane<C>(), to_col = tile.col + col + C::WIDE / 2 * (lane % 2);
    const auto touch = [](const void* at) { asm volatile("{.reg .u32 unused; ld.global.u16 unused, [%0];}" ::"l"(at) : "memory"); };
    if (C::SCALES == SCALES_OUTER) {
        const u32 at = row + 64 * (lane / 16 % C::WAVES) + lane % 16;
        if ((int)at < tile.rows) touch(p.scales_a + (u64)(tile.row_of_a + at) * p.a_step);
    }
#pragma unroll
    for (u32 c = 0; c < C::WIDE; c += 128) {
        const u32 at = tile.col + col + c + 4 * lane;
        if (at >= p.n || c + 4 * lane >= C::WIDE) continue;
        if (C::SCALES == SCALES_OUTER) touch(p.scales_b + (u64)(tile.group * p.group_b + at) * p.b_step);
        if (C::END != END_PLAIN && p.bias) touch((const char*)p.bias + (u64)(tile.group * p.group_bias + at) * (p.bias_type == 2 ? 4 : 2));
    }
    // Of the second matrix.
    if (C::SCALES == SCALES_OUTER && C::PARTS > 1 && 4 * lane < C::OUT_WIDE)
        touch(p.scales_b + (u64)(tile.group * p.group_b + p.n + tile.col + col + 4 * lane) * p.b_step);
    if (C::END != END_PLAIN && (p.residual || p.beta != 0.0f)) sm90_prefetch_matrices<C>(p, tile, row, to_col, lane);
}

// `change(wave, column, half, x, y)` of every pair of sums, row after row. (NVRTC takes no generic lambda.)
template <class C, class F> __device__ __forceinline__ void sm90_each(Sm90Sums<C>& sum, const F& change) {
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 half = 0; half < 2; half++)
#pragma unroll
            for (u32 c = 0; c < C::WIDE; c += 8) {
                float* pair = &sum[wave][c / C::ATOM][c % C::ATOM / 8 * 4 + 2 * half];
                change(wave, c, half, pair[0], pair[1]);
            }
}

// `change(x, y, other)` of every pair of sums and what lies at its place in a matrix of FP32: four neighbours read a sector of 32 bytes.
template <class C, class F>
__device__ __forceinline__ void sm90_each_with(Sm90Sums<C>& sum, const void* matrix, u64 stride, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col, const F& change) {
    const u32 lane = sm90_lane<C>(), first = tile.col + col + 2 * (lane % 4);
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = row + 64 * wave + 8 * half + lane / 4;
            const float* from = (const float*)matrix + (tile.row + at) * stride + first;
            __syncwarp();  // for more loads at once than those of a row there are no registers
#pragma unroll
            for (u32 c = 0; c < C::WIDE; c += 8) {
                if ((int)at >= tile.rows || first + c >= p.n) continue;
                float* pair = &sum[wave][c / C::ATOM][c % C::ATOM / 8 * 4 + 2 * half];
                change(pair[0], pair[1], *(const float2*)(from + c));
            }
        }
}

// Whether all that follows alpha is D's old value, once: gradients of weights that are added up, whose operands have two vectors of scales.
template <class C> __device__ __forceinline__ bool sm90_only_adds(const Sm90Problem& p) {
    return C::SCALES == SCALES_VECTOR && p.beta == 1.0f && !p.bias && !p.activation && !p.residual;
}

// Sums go to the L2 cache, which adds them to an FP32 D: nothing is read back, and no warp waits for memory at the end of its tile (0.91 of the time of a
// product of 14336 x 4096 x 8192 that reads D; observed: H200, 2026-11). One rounding to nearest, as the addition here, but subnormal numbers count as 0.
// Sixteen bytes at once: of each eight columns neighbours exchange a pair, so that one has four sums of the upper row and the other four of the lower. Half as many
// additions as of pairs: 0.99 of the time of that product with pauses, 0.97 back to back, where power is what limits it.
template <class C> __device__ __forceinline__ void sm90_add_to(Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 lane = sm90_lane<C>(), first = tile.col + col + 4 * (lane % 4 / 2);
    const bool lower = lane % 2;
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++) {
        const u32 at = row + 64 * wave + lane / 4 + (lower ? 8 : 0);
        float* const to = (float*)p.d + (u64)(tile.row + at) * p.stride_d + first;
#pragma unroll
        for (u32 c = 0; c < C::WIDE; c += 8) {
            const float* v = &sum[wave][c / C::ATOM][c % C::ATOM / 8 * 4];
            const float x = __shfl_xor_sync(0xFFFFFFFFu, lower ? v[0] : v[2], 1), y = __shfl_xor_sync(0xFFFFFFFFu, lower ? v[1] : v[3], 1);
            if ((int)at < tile.rows && first + c < p.n)
                asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                             ::"l"(to + c), "f"(lower ? x : v[0]), "f"(lower ? y : v[1]), "f"(lower ? v[2] : x), "f"(lower ? v[3] : y) : "memory");
        }
    }
}

// The numbers of a bias that a thread's pairs need, from its first column on.
template <class C, class T> __device__ __forceinline__ void sm90_load_bias(float (&bias)[C::WIDE / 8][2], const T* from, u32 first, u32 n) {
#pragma unroll
    for (u32 c = 0; c < C::WIDE; c += 8)
#pragma unroll
        for (u32 i = 0; i < 2; i++) bias[c / 8][i] = first + c < n ? to_float(from[c + i]) : 0.0f;
}

// What multiplies a thread's rows, from its first one on: zero beyond the tile's. `scales`: those of A, from the group's on where each has one.
template <class C> __device__ __forceinline__ void sm90_load_scales_of_rows(float (&of_rows)[C::WAVES][2], const float* scales, const Sm90Problem& p, const Sm90Tile& tile, u32 at) {
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 r = at + 64 * wave + 8 * half;
            of_rows[wave][half] = (int)r < tile.rows ? scales[(u64)(tile.row_of_a + r) * p.a_step] : 0.0f;
        }
}

// Sums in registers become what activations and residuals are for: alpha, scales and bias, as finish_sum has them, all of a kind at once.
template <class C>
__device__ __forceinline__ void sm90_finish_sums(Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 lane = sm90_lane<C>(), at = row + lane / 4, first = tile.col + col + 2 * (lane % 4);
    if (C::END != END_PLAIN && C::END != END_FP32 && p.alpha != 1.0f) sm90_each<C>(sum, [&](u32, u32, u32, float& x, float& y) { x = __fmul_rn(p.alpha, x), y = __fmul_rn(p.alpha, y); });
    if (C::SCALES == SCALES_OUTER) {
        float of_rows[C::WAVES][2], of_cols[C::WIDE / 8][2];
        const float* scales = p.scales_b + tile.group * p.group_b + first;
        const float one = p.b_step ? 0.0f : p.scales_b[(u64)tile.group * p.pitch_b];
        const float* scales_a = p.scales_a + (p.a_step ? 0 : (u64)tile.group * p.pitch_a);
#pragma unroll
        for (u32 c = 0; c < C::WIDE; c += 8)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                of_cols[c / 8][i] = one;
                if (p.b_step && first + c < p.n) of_cols[c / 8][i] = scales[c + i];
            }
        sm90_load_scales_of_rows<C>(of_rows, scales_a, p, tile, at);
        sm90_each<C>(sum, [&](u32 wave, u32 c, u32 half, float& x, float& y) {
            x = __fmul_rn(__fmul_rn(x, of_rows[wave][half]), of_cols[c / 8][0]);
            y = __fmul_rn(__fmul_rn(y, of_rows[wave][half]), of_cols[c / 8][1]);
        });
    }
    if (C::END == END_PLAIN || C::END == END_FP32 || p.plain || sm90_only_adds<C>(p)) return;
    if (p.beta != 0.0f) {
        const float beta = p.beta;
        sm90_each_with<C>(sum, p.d, p.stride_d, p, tile, row, col, [&](float& x, float& y, float2 old) {
            x = __fadd_rn(__fmul_rn(beta, old.x), x), y = __fadd_rn(__fmul_rn(beta, old.y), y);
        });
    }
    if (p.bias) {
        float bias[C::WIDE / 8][2];
        const u32 start = tile.group * p.group_bias + first;
        if (p.bias_type == 0) sm90_load_bias<C>(bias, (const Bf16*)p.bias + start, first, p.n);
        else if (p.bias_type == 1) sm90_load_bias<C>(bias, (const F16*)p.bias + start, first, p.n);
        else sm90_load_bias<C>(bias, (const float*)p.bias + start, first, p.n);
        sm90_each<C>(sum, [&](u32, u32 c, u32, float& x, float& y) { x = __fadd_rn(x, bias[c / 8][0]), y = __fadd_rn(y, bias[c / 8][1]); });
    }
}

// Whether the activation of all of the warp's sums in D may be had with `sigmoid_near`; others are of whatever a stage had. Where |v| is at most 9.6, GELU's argument is at most 79.4.
template <class C> __device__ __forceinline__ bool sm90_all_near(Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 activation = p.activation, lane = sm90_lane<C>(), at = row + lane / 4, first = tile.col + col + 2 * (lane % 4);
    if (activation <= ACTIVATION_RELU) return true;
    float largest = 0.0f;
    sm90_each<C>(sum, [&](u32 wave, u32 c, u32 half, float& x, float& y) {
        if ((int)(at + 64 * wave + 8 * half) < tile.rows && first + c < p.n) largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
    });
    return __all_sync(0xFFFFFFFFu, largest <= (activation == ACTIVATION_GELU ? 9.6f : NEAR));
}

// The bits of `activate`, of sums that are all near.
template <class C> __device__ __forceinline__ void sm90_activate(Sm90Sums<C>& sum, u32 activation) {
    if (activation == ACTIVATION_SILU)
        sm90_each<C>(sum, [](u32, u32, u32, float& x, float& y) { x = __fmul_rn(x, sigmoid_near(x)), y = __fmul_rn(y, sigmoid_near(y)); });
    else if (activation == ACTIVATION_GELU)
        sm90_each<C>(sum, [](u32, u32, u32, float& x, float& y) {
            x = __fmul_rn(x, sigmoid_near(gelu_tanh_argument(x))), y = __fmul_rn(y, sigmoid_near(gelu_tanh_argument(y)));
        });
    else if (activation == ACTIVATION_RELU)
        sm90_each<C>(sum, [](u32, u32, u32, float& x, float& y) { x = x < 0.0f ? 0.0f : x, y = y < 0.0f ? 0.0f : y; });
}

// Whether `sm90_add_residual` may read it: rows and columns of a tile are as aligned as the first.
__device__ __forceinline__ bool sm90_residual_is_aligned(const Sm90Problem& p) {
    return p.residual_type == 2 ? (u64)p.residual % 8 == 0 && p.stride_residual % 2 == 0 : (u64)p.residual % 16 == 0 && p.stride_residual % 8 == 0;
}

// A residual of BF16 or F16 comes as sm90_store_direct writes: sixteen bytes of a row for each thread, exchanged among four neighbours.
template <class T, class C>
__device__ __forceinline__ void sm90_add_half(Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 lane = sm90_lane<C>(), first = tile.col + col + 8 * (lane % 4);
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = row + 64 * wave + 8 * half + lane / 4;
            const T* from = (const T*)p.residual + (u64)(tile.row + at) * p.stride_residual + first;
            __syncwarp();
#pragma unroll
            for (u32 c = 0; c < C::WIDE; c += 32) {
                uint4 words = {0, 0, 0, 0};
                if ((int)at < tile.rows && first + c < p.n) words = *(const uint4*)(from + c);
                u32 w[4] = {words.x, words.y, words.z, words.w};
                transpose_words(w);
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    float* pair = &sum[wave][c / C::ATOM][(c % C::ATOM / 8 + i) * 4 + 2 * half];
                    pair[0] = __fadd_rn(pair[0], to_float(T{(u16)w[i]}));
                    pair[1] = __fadd_rn(pair[1], to_float(T{(u16)(w[i] >> 16)}));
                }
            }
        }
}

template <class C>
__device__ __forceinline__ void sm90_add_residual(Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    if (p.residual_type == 0) return sm90_add_half<Bf16, C>(sum, p, tile, row, col);
    if (p.residual_type == 1) return sm90_add_half<F16, C>(sum, p, tile, row, col);
    sm90_each_with<C>(sum, p.residual, p.stride_residual, p, tile, row, col, [](float& x, float& y, float2 other) {
        x = __fadd_rn(x, other.x), y = __fadd_rn(y, other.y);
    });
}

// A warp's slab as 16 rows by 32 columns of FP32, swizzled so that a phase of either access meets every bank once: each thread writes pairs
// of rows lane / 4 and the eighth below, and reads four columns of rows lane / 8 and each fourth below.
struct Sm90Slab {
    u32 slab, from;
    __device__ __forceinline__ explicit Sm90Slab(u32 slab) : slab(slab) {
        const u32 lane = threadIdx.x % 32;
        from = slab + lane / 8 * 128 + ((lane % 8) ^ (2 * (lane / 8) & 6)) * 16;
    }
    // The thread's pair of columns 8q and on, in its upper row; that below: + 1024.
    __device__ __forceinline__ u32 place(u32 q) const {
        const u32 lane = threadIdx.x % 32, row = lane / 4;
        return slab + row * 128 + ((2 * q + lane % 4 / 2) ^ (2 * row & 6)) * 16 + lane % 2 * 8;
    }
    // Strip `i` of the sums: of each 32 columns all waves.
    template <class C> __device__ __forceinline__ void write(const Sm90Sums<C>& sum, u32 i) const {
        const u32 wave = i % C::WAVES, c = i / C::WAVES * 32;
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            const float* v = &sum[wave][c / C::ATOM][(c % C::ATOM / 8 + q) * 4];
            shared_store_pair(place(q), v[0], v[1]);
            shared_store_pair(place(q) + 1024, v[2], v[3]);
        }
    }
    // What the thread itself wrote, and may have changed.
    template <class C> __device__ __forceinline__ void take_back(Sm90Sums<C>& sum, u32 i) const {
        const u32 wave = i % C::WAVES, c = i / C::WAVES * 32;
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            float* v = &sum[wave][c / C::ATOM][(c % C::ATOM / 8 + q) * 4];
            const float2 upper = shared_pair(place(q)), lower = shared_pair(place(q) + 1024);
            v[0] = upper.x, v[1] = upper.y, v[2] = lower.x, v[3] = lower.y;
        }
    }
    __device__ __forceinline__ void read(u32 row, float (&v)[4]) const {
        const uint4 words = shared_vector(from + row * 128);
        v[0] = __uint_as_float(words.x), v[1] = __uint_as_float(words.y), v[2] = __uint_as_float(words.z), v[3] = __uint_as_float(words.w);
    }
};

// Activations of sums of which one is far, and residuals that are not aligned: rare, so a loop, in which what they are exists once in the code. Registers have
// no numbers at run time: the loop's step finds its sums in the slab, each thread its own. Of the first `STRIPS` strips.
template <class C, u32 STRIPS>
__device__ __forceinline__ void sm90_finish_slowly(Sm90Sums<C>& sum, const Sm90Problem& p, u32 activation, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    const Sm90Slab through(slab);
    const u32 lane = sm90_lane<C>();
    __syncwarp();
#pragma unroll 1
    for (u32 step = 0; step < STRIPS; step++) {
#pragma unroll
        for (u32 i = 0; i < STRIPS; i++)
            if (i == step) through.template write<C>(sum, i);
#pragma unroll 1
        for (u32 j = 0; j < 8; j++) {
            const u32 place = through.place(j % 4) + j / 4 * 1024;
            const u32 at = row + 64 * (step % C::WAVES) + lane / 4 + j / 4 * 8, to_col = tile.col + col + 32 * (step / C::WAVES) + 8 * (j % 4) + 2 * (lane % 4);
            const float2 pair = shared_pair(place);
            float v[2] = {activate(activation, pair.x), activate(activation, pair.y)};
            if (p.residual && (int)at < tile.rows && to_col < p.n)
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    float other[1];
                    load_residual(p, tile.row + at, to_col + i, other);
                    v[i] = __fadd_rn(v[i], other[0]);
                }
            shared_store_pair(place, v[0], v[1]);
        }
#pragma unroll
        for (u32 i = 0; i < STRIPS; i++)
            if (i == step) through.template take_back<C>(sum, i);
    }
}

// Activation and residual of sums that alpha, scales, D's old value and bias have been applied to.
template <class C>
__device__ __forceinline__ void sm90_finish(Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    if (!sm90_all_near<C>(sum, p, tile, row, col) || (p.residual && !sm90_residual_is_aligned(p)))
        return sm90_finish_slowly<C, C::WAVES * C::WIDE / 32>(sum, p, p.activation, tile, row, col, slab);
    sm90_activate<C>(sum, p.activation);
    if (p.residual) sm90_add_residual<C>(sum, p, tile, row, col);
}

// FP32, sixteen bytes of a row for each thread, eight neighbours 128.
template <class C>
__device__ __forceinline__ void sm90_store_wide(const Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    const Sm90Slab through(slab);
    const u32 lane = sm90_lane<C>(), at = row + lane / 8, to_col = tile.col + col + lane % 8 * 4;
#pragma unroll
    for (u32 i = 0; i < C::WAVES * C::OUT_WIDE / 32; i++) {
        const u32 wave = i % C::WAVES, c = i / C::WAVES * 32;
        __syncwarp();
        through.template write<C>(sum, i);
        __syncwarp();
#pragma unroll
        for (u32 r = 0; r < 16; r += 4) {
            float v[4];
            through.read(r, v);
            if ((int)(at + 64 * wave + r) < tile.rows && to_col + c < p.n)
                *(float4*)((float*)p.d + (u64)(tile.row + at + 64 * wave + r) * p.stride_d + to_col + c) = {v[0], v[1], v[2], v[3]};
        }
    }
}

// In boxes, but for the last rows of a group: those below D are outside of its map, those below a group's may be another's. `row`, `slabs`: of the warpgroup.
template <class T, class C, u32 GROUPED>
__device__ __forceinline__ void sm90_store_rows(const Sm90Sums<C>& sum, const Sm90Problem& p, const TensorMap& map, const Sm90Tile& tile, u32 row, u32 col, u32 slabs) {
    if (GROUPED == GROUPS_NONE || p.groups == 0 || (int)(row + C::TALL) <= tile.rows) sm90_store_boxes<T, C>(sum, map, tile, row, col, slabs);
    else sm90_store_direct<T, C>(sum, p, tile, row + 16 * sm90_warp<C>(), col);
}

template <class T, class C>
__device__ __forceinline__ void sm90_store_as(const Sm90Sums<C>& sum, const Sm90Problem& p, const TensorMap& map, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    if constexpr (C::STORE == STORE_BOXES) {
        const u32 warp = sm90_warp<C>();
        sm90_store_rows<T, C, GROUPS_OF_ROWS>(sum, p, map, tile, row - 16 * warp, col, slab - warp * C::SLAB_BYTES);
    } else if constexpr (C::STORE == STORE_DIRECT) {
        sm90_store_direct<T, C>(sum, p, tile, row, col);
    } else {
        sm90_store_staged<T, C>(sum, p, tile, row, col, slab);
    }
}

template <class C>
__device__ __forceinline__ void sm90_store_numbers(const Sm90Sums<C>& sum, const Sm90Problem& p, const TensorMap& map, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    if (p.d_type == 0) sm90_store_as<Bf16, C>(sum, p, map, tile, row, col, slab);
    else if (p.d_type == 1) sm90_store_as<F16, C>(sum, p, map, tile, row, col, slab);
    else sm90_store_wide<C>(sum, p, tile, row, col, slab);
}

// From sums to D, of which `map` is one of boxes: a warp's part of a tile.
template <class C>
__device__ __forceinline__ void sm90_store(Sm90Sums<C>& sum, const Sm90Problem& p, const TensorMap& map, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    if (C::END == END_FP32) {
        if (C::SCALES == SCALES_OUTER) sm90_finish_sums<C>(sum, p, tile, row, col);
        if (p.beta != 0.0f) return sm90_add_to<C>(sum, p, tile, row, col);
        return sm90_store_wide<C>(sum, p, tile, row, col, slab);
    }
    if (C::STORE == STORE_BOXES) sm90_slabs_free<C>();
    sm90_finish_sums<C>(sum, p, tile, row, col);
    if (C::END == END_PLAIN) return sm90_store_as<Bf16, C>(sum, p, map, tile, row, col, slab);
    if (sm90_only_adds<C>(p)) return sm90_add_to<C>(sum, p, tile, row, col);
    if (!p.plain) sm90_finish<C>(sum, p, tile, row, col, slab);
    sm90_store_numbers<C>(sum, p, map, tile, row, col, slab);
}

// Adds up what blocks of these ranks end, WIDE columns each, in the order of the parts of k, and stores it.
template <class C, u32 WIDE, u32 FIRST, u32 END>
__device__ __forceinline__ void sm90_end_part(const Sm90Sums<C>& sum, const Sm90Problem& p, const TensorMap& d, const Sm90Tile& tile, u32 row, u32 col, u32 rank, u32 place, u32 slab) {
    using Part = Sm90Part<C, WIDE>;
    constexpr u32 EACH = WIDE / 2, STEP = C::PART_WIDE / 2, MATH = 128 * C::GROUPS;
    Sm90Sums<Part> own, all;
#pragma unroll
    for (u32 to = FIRST; to < END; to++)
        if (to == rank)
#pragma unroll
            for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
                for (u32 e = 0; e < EACH; e++) own[wave][0][e] = sum[wave][(to * STEP + e) / (C::ATOM / 2)][(to * STEP + e) % (C::ATOM / 2)];
#pragma unroll
    for (u32 from = 0; from < C::SPLIT; from++)
#pragma unroll
        for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
            for (u32 e = 0; e < EACH; e += 4) {
                float4 v = {own[wave][0][e], own[wave][0][e + 1], own[wave][0][e + 2], own[wave][0][e + 3]};
                if (from != rank) {
                    const uint4 w = shared_vector(place + (from < rank ? from : from - 1) * C::PART_BYTES + (wave * STEP + e) / 4 * 16 * MATH);
                    v = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z), __uint_as_float(w.w)};
                }
                float* to = &all[wave][0][e];
                if (from == 0) to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
                else to[0] = __fadd_rn(to[0], v.x), to[1] = __fadd_rn(to[1], v.y), to[2] = __fadd_rn(to[2], v.z), to[3] = __fadd_rn(to[3], v.w);
            }
    sm90_store<Part>(all, p, d, tile, row, col + rank * C::PART_WIDE, slab);
}

// The sums of all blocks of a cluster that divide k: each block ends some columns, and gets those of the others to where its stages were, which nobody uses again, as there is one tile. A
// thread's numbers go to the same thread.
template <class C>
__device__ __forceinline__ void sm90_join(const Sm90Sums<C>& sum, const Sm90Problem& p, const TensorMap& d, const Sm90Tile& tile, u32 row, u32 col, u32 shared, u32 slab) {
    constexpr u32 STEP = C::PART_WIDE / 2, MATH = 128 * C::GROUPS, LAST = C::ENDERS - 1;
    const u32 rank = cluster_rank(), place = shared + 16 * threadIdx.x;
    cluster_sync();  // all have multiplied what lies in their stages
#pragma unroll
    for (u32 to = 0; to < C::ENDERS; to++) {
        if (to == rank) continue;
        const u32 at = at_rank(place + (rank < to ? rank : rank - 1) * C::PART_BYTES, to);
#pragma unroll
        for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
            for (u32 e = 0; e < (to == LAST ? C::LAST_WIDE : C::PART_WIDE) / 2; e += 4) {
                const u32 c = to * STEP + e;
                store_four_in_cluster(at + (wave * STEP + e) / 4 * 16 * MATH, &sum[wave][c / (C::ATOM / 2)][c % (C::ATOM / 2)]);
            }
    }
    cluster_sync();
    if (rank >= C::ENDERS) return;
    if constexpr (C::LAST_WIDE == C::PART_WIDE) {
        sm90_end_part<C, C::PART_WIDE, 0, C::ENDERS>(sum, p, d, tile, row, col, rank, place, slab);
    } else if (rank != LAST) {
        sm90_end_part<C, C::PART_WIDE, 0, LAST>(sum, p, d, tile, row, col, rank, place, slab);
    } else {
        sm90_end_part<C, C::LAST_WIDE, LAST, C::ENDERS>(sum, p, d, tile, row, col, rank, place, slab);
    }
}
