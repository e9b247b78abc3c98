// What follows the sums of products that are not stored as they are: SwiGLU of two matrices, and codes with 1x128 scales.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/codec.cuh"
#include "gemm/sm90_store.cuh"

// Scales of rows and matrices of both products, as sm90_finish_sums has them of one. A tile has all of its columns: n is a multiple of 128.
template <class C> __device__ __forceinline__ void sm90_scale_parts(Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col) {
    const u32 lane = threadIdx.x % 32, at = row + lane / 4;
    const float one = p.b_step ? 0.0f : p.scales_b[(u64)tile.group * p.pitch_b];
    const float* scales_a = p.scales_a + (p.a_step ? 0 : (u64)tile.group * p.pitch_a);
    float of_rows[C::WAVES][2];
    sm90_load_scales_of_rows<C>(of_rows, scales_a, p, tile, at);
#pragma unroll
    for (u32 part = 0; part < C::PARTS; part++) {
        const float* scales = p.scales_b + tile.group * p.group_b + part * p.n + tile.col + col + 2 * (lane % 4);
#pragma unroll
        for (u32 c = 0; c < C::OUT_WIDE; c += 8) {
            float of_col[2] = {one, one};
#pragma unroll
            for (u32 i = 0; i < 2; i++)
                if (p.b_step) of_col[i] = scales[c + i];
#pragma unroll
            for (u32 wave = 0; wave < C::WAVES; wave++) {
                float* v = &sum[wave][part * C::OUT_ATOMS + c / C::ATOM][c % C::ATOM / 8 * 4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) v[i] = __fmul_rn(__fmul_rn(v[i], of_rows[wave][i / 2]), of_col[i % 2]);
            }
        }
    }
}

// h = silu(gate) * up in the gate's place, operation by operation as the producer of src/reference/producers: gate * sigmoid(gate), times up.
template <class C>
__device__ __forceinline__ void sm90_swiglu(Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col, u32 slab) {
    // Of rows that there are.
    const u32 at = row + sm90_lane<C>() / 4;
    float largest = 0.0f;
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 a = 0; a < C::OUT_ATOMS; a++)
#pragma unroll
            for (u32 e = 0; e < C::ATOM / 2; e++)
                if ((int)(at + 64 * wave + 8 * (e / 2 % 2)) < tile.rows) largest = fmaxf(largest, fabsf(sum[wave][a][e]));
    const bool near = __all_sync(0xFFFFFFFFu, largest <= NEAR);
    if (!near) sm90_finish_slowly<C, C::WAVES * C::OUT_WIDE / 32>(sum, p, ACTIVATION_SILU, tile, row, col, slab);
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 a = 0; a < C::OUT_ATOMS; a++)
#pragma unroll
            for (u32 e = 0; e < C::ATOM / 2; e++) {
                float& gate = sum[wave][a][e];
                if (near) gate = __fmul_rn(gate, sigmoid_near(gate));
                gate = __fmul_rn(gate, sum[wave][C::OUT_ATOMS + a][e]);
            }
}

// A row's largest magnitude over the columns that the warpgroup has, NaN left out. All lanes of a warp together; the same in each four.
template <class C> __device__ __forceinline__ float sm90_row_amax(const Sm90Sums<C>& sum, u32 wave, u32 half) {
    float amax = 0.0f;
#pragma unroll
    for (u32 c = 0; c < C::OUT_WIDE; c += 8) {
        const float* pair = &sum[wave][c / C::ATOM][c % C::ATOM / 8 * 4 + 2 * half];
        amax = fmaxf(amax, fmaxf(fabsf(pair[0]), fabsf(pair[1])));
    }
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 1));
    return fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 2));
}

// E4M3 codes of groups of 128 columns, the bytes of the quantizer (cast/fp8_group.cu) of the same FP32 numbers, and their scales. Where two
// warpgroups share a row, warps of the same number tell each other what they found in their slabs. `slab_beside` is that of the other.
template <class C>
__device__ __forceinline__ void sm90_store_codes(const Sm90Sums<C>& sum, const Sm90Problem& p, const Sm90Tile& tile, u32 row, u32 col, u32 slab, u32 slab_beside) {
    const u32 lane = threadIdx.x % 32;
    float amax[C::WAVES][2];
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) amax[wave][half] = sm90_row_amax<C>(sum, wave, half);
    // The last tile may have columns for the first warpgroup alone.
    if (C::ACROSS > 1 && tile.col + C::OUT_WIDE < p.n) {
        static_assert(C::ACROSS == 1 || (C::ACROSS == 2 && C::WAVES == 1), "two warpgroups, 16 rows for each warp");
        const u32 place = lane / 4 * 8;
        const auto meet = [] { asm volatile("bar.sync %0, 64;" ::"r"(1 + threadIdx.x / 32 % 4) : "memory"); };
        __syncwarp();  // all lanes have done with the slab
        if (lane % 4 == 0) shared_store_pair(slab + place, amax[0][0], amax[0][1]);
        meet();
        const float2 other = shared_pair(slab_beside + place);
        meet();  // read: the other may use its slab again
        amax[0][0] = fmaxf(amax[0][0], other.x), amax[0][1] = fmaxf(amax[0][1], other.y);
    }
    float* scales = p.scales_d + (u64)(tile.col / 128) * p.pitch_d + tile.row;
    const u32 first = tile.col + col + 16 * (lane % 4);
#pragma unroll
    for (u32 wave = 0; wave < C::WAVES; wave++)
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = row + 64 * wave + 8 * half + lane / 4;
            const GroupScale s = group_scale(p.rule, amax[wave][half]);
            // Of a row's lanes one writes the scale, of the first warpgroup.
            if (lane % 4 == 0 && col == 0 && (int)at < tile.rows) scales[at] = s.scale;
            u8* to = (u8*)p.d + (u64)(tile.row + at) * p.stride_d + first;
#pragma unroll
            for (u32 c = 0; c < C::OUT_WIDE; c += 64) {
                // Word i: of columns 16i and on, and of those eight behind them. Four neighbours exchange theirs, so that each has sixteen columns.
                u32 w[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const float* v = &sum[wave][(c + 16 * i) / C::ATOM][(c + 16 * i) % C::ATOM / 8 * 4 + 2 * half];
                    w[i] = encode_pair<E4M3>(__fmul_rn(v[0], s.encode), __fmul_rn(v[1], s.encode))
                        | encode_pair<E4M3>(__fmul_rn(v[4], s.encode), __fmul_rn(v[5], s.encode)) << 16;
                }
                transpose_words(w);
                const uint4 codes = {__byte_perm(w[0], w[1], 0x5410), __byte_perm(w[2], w[3], 0x5410), __byte_perm(w[0], w[1], 0x7632), __byte_perm(w[2], w[3], 0x7632)};
                if ((int)at < tile.rows && first + c < p.n) *(uint4*)(to + c) = codes;
            }
        }
}

template <class C>
__device__ __forceinline__ void sm90_store_cast(Sm90Sums<C>& sum, const Sm90Problem& p, const TensorMap& map, const Sm90Tile& tile, u32 row, u32 col, u32 slab, u32 slab_beside) {
    if (C::END == END_SWIGLU) {
        if (p.alpha != 1.0f) sm90_each<C>(sum, [&](u32, u32, u32, float& x, float& y) { x = __fmul_rn(p.alpha, x), y = __fmul_rn(p.alpha, y); });
        if (C::SCALES == SCALES_OUTER) sm90_scale_parts<C>(sum, p, tile, row, col);
        sm90_swiglu<C>(sum, p, tile, row, col, slab);
        if (!p.scales_d) return sm90_store_numbers<C>(sum, p, map, tile, row, col, slab);
    } else {
        sm90_finish_sums<C>(sum, p, tile, row, col);
        if (!p.plain) sm90_finish<C>(sum, p, tile, row, col, slab);
    }
    sm90_store_codes<C>(sum, p, tile, row, col, slab, slab_beside);
}
