// How the product for Hopper (sm90.cuh) stores a tile of D: plain BF16 by one of two ways, and all that follows the sums by a third.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "gemm/finish.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/sm90_config.cuh"

__device__ __forceinline__ u32 bf16_pair(float lo, float hi) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(hi), "f"(lo));
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

// From registers: each thread sixteen bytes of a row, four neighbours 64.
template <class C>
__device__ __forceinline__ void sm90_store_direct(const Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 lane = threadIdx.x % 32;
    const u32 first = tile.col + col + 8 * (lane % 4);
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = row + 64 * wave + 8 * half + lane / 4;
            Bf16* to = (Bf16*)p.d + (u64)(tile.row + at) * p.stride_d + first;
#pragma unroll
            for (u32 c = 0; c < C::WIDE; c += 32) {
                u32 w[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float* pair = &sum[wave][c / C::ATOM][(c % C::ATOM / 8 + i) * 4 + 2 * half];
                    w[i] = bf16_pair(pair[0], pair[1]);
                }
                transpose_words(w);
                if ((int)at < tile.rows && first + c < p.n) *(uint4*)(to + c) = {w[0], w[1], w[2], w[3]};
            }
        }
}

// Through a slab of 16 rows by 64 columns in shared memory, a warp's own, swizzled against bank conflicts: no warp waits for another.
template <class C>
__device__ __forceinline__ void sm90_store_staged(const Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    const u32 lane = threadIdx.x % 32, in_row = lane % 16, in_chunk = lane / 16, chunk = lane % 8;
    const auto place = [](u32 r, u32 chunk) { return r * 128 + ((chunk ^ (r % 8)) << 4); };
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++) {
        const u32 at = row + 64 * wave;
        // A vote, for the compiler to know that all lanes go the same way.
        if (!__any_sync(0xFFFFFFFFu, (int)at < tile.rows)) continue;
#pragma unroll
        for (u32 c = 0; c < C::WIDE; c += 64) {
            __syncwarp();
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                const float* v = &sum[wave][c / C::ATOM][(c % C::ATOM / 8 + 2 * q) * 4];
                const u32 words[4] = {bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7])};
                store_matrices(slab + place(in_row, 2 * q + in_chunk), words);
            }
            __syncwarp();
            const u32 to_col = tile.col + col + c + 8 * chunk;
#pragma unroll
            for (u32 r = lane / 8; r < 16; r += 4) {
                const uint4 v = shared_vector(slab + place(r, chunk));
                if ((int)(at + r) < tile.rows && to_col < p.n) *(uint4*)((Bf16*)p.d + (u64)(tile.row + at + r) * p.stride_d + to_col) = v;
            }
        }
    }
}

// What the end of a tile reads, asked for while its products still run: matrices from memory, vectors to this multiprocessor.
template <class C> __device__ __forceinline__ void sm90_prefetch(const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 lane = threadIdx.x % 32, to_col = tile.col + col + C::WIDE / 2 * (lane % 2);
    const auto touch = [](const void* at) { asm volatile("{.reg .u32 unused; ld.global.u16 unused, [%0];}" ::"l"(at) : "memory"); };
    if (C::SCALES == SCALES_OUTER) {
        const u32 at = row + 64 * (lane / 16 % C::WAVES) + lane % 16;
        if ((int)at < tile.rows) touch(p.scales_a + (u64)(tile.row + at) * p.a_step);
        if (tile.col + col + 4 * lane < p.n && 4 * lane < C::WIDE) touch(p.scales_b + (u64)(tile.col + col + 4 * lane) * p.b_step);
    }
    if (p.bias && tile.col + col + 4 * lane < p.n && 4 * lane < C::WIDE)
        touch((const char*)p.bias + (u64)(tile.group * p.group_bias + tile.col + col + 4 * lane) * (p.bias_type == 2 ? 4 : 2));
    if (!p.residual && p.beta == 0.0f) return;
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

// All that is not plain, through a slab of 16 rows by 32 columns of sums in shared memory, a warp's own: each thread then has four columns of four
// rows, and what follows the sums exists once in the code, whichever part of them it is. Swizzled: a phase of either access meets every bank once.
template <class C>
__device__ __forceinline__ void sm90_finish(const Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    constexpr bool OUTER = C::SCALES == SCALES_OUTER;
    constexpr u32 AT_ONCE = C::RESIDENT > 1 ? 1 : 2;  // rows whose loads wait together: with more, registers are spilled
    const u32 lane = threadIdx.x % 32, in_row = lane / 4, in_chunk = lane % 4 / 2, in_half = lane % 2 * 8;
    const auto place = [](u32 r, u32 chunk) { return r * 128 + (((chunk ^ 2 * r) & 7) << 4); };
#pragma unroll 1
    for (u32 step = 0; step < C::WAVES * C::WIDE / 32; step++) {
        const u32 at = row + 64 * (step % C::WAVES) + lane / 8, to_col = tile.col + col + 32 * (step / C::WAVES) + lane % 8 * 4;
        const bool inside = to_col < p.n;
        FinishColumns<4> columns;
        if (inside) columns = finish_columns<4, OUTER>(p, to_col, tile.group * p.group_bias + to_col);
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < C::WAVES * C::WIDE / 32; i++) {
            // Registers have no numbers at run time.
            if (i != step) continue;
            const u32 wave = i % C::WAVES, c = i / C::WAVES * 32;
#pragma unroll
            for (u32 q = 0; q < 4; q++) {
                const float* v = &sum[wave][c / C::ATOM][(c % C::ATOM / 8 + q) * 4];
                shared_store_pair(slab + place(in_row, 2 * q + in_chunk) + in_half, v[0], v[1]);
                shared_store_pair(slab + place(in_row + 8, 2 * q + in_chunk) + in_half, v[2], v[3]);
            }
        }
        __syncwarp();
#pragma unroll 1
        for (u32 first = 0; first < 16; first += 4 * AT_ONCE) {
            FinishRow<4> rows[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (inside && (int)(at + first + 4 * i) < tile.rows) rows[i] = finish_row<4, OUTER>(p, tile.row + at + first + 4 * i, to_col);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++) {
                if (!inside || (int)(at + first + 4 * i) >= tile.rows) continue;
                const uint4 words = shared_vector(slab + place(lane / 8 + first + 4 * i, lane % 8));
                float v[4] = {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)};
                finish<4, OUTER>(p, columns, rows[i], v);
                store_numbers(p.d, (tile.row + at + first + 4 * i) * p.stride_d + to_col, p.d_type, v);
            }
        }
    }
}
