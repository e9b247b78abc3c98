// Products of FP8 matrices on Hopper, E4M3 unless WGMMA_TYPES says otherwise: D = A Bᵀ, dense, or of groups of rows or of k that lie where device memory says, with all that follows the sums.
//
// Blocks are persistent: each walks the tiles of D with its own number modulo the grid. A producer warp copies the operands of the
// next k-blocks (128 of k, zeros beyond the end) with their scales into a ring of stages; one or two math warpgroups multiply them
// in atoms of 64 x ATOM x 128 and add each atom times its scales to FP32 sums ("promotion": tensor cores keep some 14 bits of
// FP8 sums). The order of all sums depends on k, and on how many blocks divide it, alone: equal rows have equal results, whatever m and the grid.
//
// A stage has two barriers. `full` has the producer's arrival, which also announces the bytes of its copies, one of each operand that the tile has, and that of a second warp, where there is one, which asks for scales. `empty` has one
// arrival of every math warp, of both blocks where a pair shares an operand: there each producer copies what there is of one half of it into both blocks,
// and waits for both. With the first stage of a tile the producer says which it is. Before a block ends its
// producer waits until all stages are empty: then no copy is on its way to the other block and no arrival to this one.
#pragma once
#include "gemm/groups.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/sm90_config.cuh"
#include "gemm/sm90_cast.cuh"
#include "gemm/sm90_loop.cuh"
#include "gemm/sm90_produce.cuh"
#include "gemm/sm90_store.cuh"
#include "gemm/wgmma.cuh"

#ifdef SCALED_GEMM_STAMPS
__shared__ u32 loop_cycles;
// Time and cycles now; at the end of a warpgroup also the cycles that the first one spent in the loop over k.
__device__ __forceinline__ void stamp(const Sm90Problem& p, u32 which) {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    u64* at = p.stamps + blockIdx.x * 16 + which * 4;
    at[0] = time;
    at[1] = clock64();
    if (which == 0) loop_cycles = 0;
    at[2] = loop_cycles;
}
#endif

// Whether machine code of this compiler was looked at (scripts/check-kernels.sh), of which one thing is asked that PTX does not say: see `give_back_used`.
#if !defined(__CUDACC_RTC__) && __CUDACC_VER_MAJOR__ == 13 && __CUDACC_VER_MINOR__ == 0
constexpr bool LOOKED_AT = true;
#else
constexpr bool LOOKED_AT = false;
#endif

template <class C> struct Sm90Math {
    u32 shared;
    u32 a, b;     // the warpgroup's operands in stage 0
    u32 scale_a;  // the thread's first scale there; of 128x128 those of its rows, for four k-blocks
    u32 scale_b;  // likewise of B, where its rows have scales of their own
    u32 empty;    // the barriers of stages that were read, in the block that the lane tells
    u32 zero;     // see give_back
    Sm90Ring<C> ring;
    u32 edge;     // of a tile in two tiles of scales: its columns in the first, or more

    __device__ __forceinline__ Sm90Math(const Sm90Problem& p, u32 shared, u32 down, u32 across) : shared(shared), zero(p.plain >> 1), ring({0, 0}), edge(0) {
        const u32 warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        a = wgmma_operand(shared + down * C::TALL * 128);
        b = wgmma_operand(shared + C::B + across * C::OUT_WIDE * 128);
        scale_a = shared + C::SCALES_A + (C::SCALES == SCALES_BLOCK_A ? down * C::TALL / 128 * C::TWICE_A * 16 : (down * C::TALL + warp * 16 + lane / 4) * 4);
        scale_b = shared + C::SCALES_B + (across * C::WIDE + lane % 4 * 2) * 4;
        empty = shared + C::EMPTY;
        if (C::SHARERS > 1) empty = at_rank(empty, lane % C::SHARERS);
    }

    // One lane of a warp for each block of the cluster says that the warp has read the stage: once what it loaded from there has arrived. An arrival does not wait for loads that were issued before
    // it: they may stand in a queue behind additions to D, for longer than the next copy takes (observed: H200, 2026-11, once in 13,000 products that add to D, race.md of the record). So
    // either the numbers have been used, or the bits of them, `read`, have a part in where the arrival goes: with `zero` none of them is left, which the compiler does not know. A warp's
    // instructions are issued for all lanes at once, and none before what it takes is there in all of them: so the lanes that arrive tell of the others, too. PTX does not promise that, and what it
    // would take, a vote, was a hundredth of the time (observed: H100, 2026-11): scripts/check-kernels.sh reads in the machine code that at no arrival a load is on its way.
    __device__ __forceinline__ void give_back(u32 stage, u32 read) { arrive(empty + 8 * stage + (read & zero)); }

    // Where they have been used: ptxas leaves a product's accumulators where they are, so that what is added up from there is read, and multiplied, before the next product writes them.
    __device__ __forceinline__ void give_back_used(u32 stage) { arrive(empty + 8 * stage); }

    __device__ __forceinline__ void arrive(u32 at) {
        __syncwarp();  // an arrival tells of what its own lane has read
        if (threadIdx.x % 32 >= C::SHARERS) return;
        if (C::SHARERS > 1) barrier_arrive_in_cluster(at);
        else barrier_arrive(at);
    }

    // The stage of product `j`, where `now` are begun in this call; ROUND: it began at the ring's first stage.
    template <bool ROUND> __device__ __forceinline__ u32 stage_of(u32 j, u32 now, u32 each) const {
        if (ROUND) return j / each % C::STAGES;
        const u32 back = now / each - j / each + 1;
        return ring.stage >= back ? ring.stage - back : ring.stage + C::STAGES - back;
    }

    __device__ __forceinline__ void begin_at(u32 col) {
        if (C::SPAN > 1) edge = __shfl_sync(0xFFFFFFFFu, 128 - col % 128, 0);
    }

    // The 128x128 scale of an atom, or of the columns from `first` of it on.
    template <u32 EDGE> __device__ __forceinline__ float tile_of(const float (&tiles)[C::SCALE_PARTS], u32 atom, u32 first = 0) const {
        if (C::SPAN == 1) return tiles[atom / C::OUT_ATOMS];
        const u32 col = atom * C::ATOM + first;
        return col == 0 || (col < 128 && col < (EDGE ? EDGE : edge)) ? tiles[0] : tiles[C::SCALE_PARTS - 1];
    }

    // `BLOCKS` k-blocks from `block` on, of the first WAVES waves of rows; `edge` is known to be EDGE, or that is 0. ROUND: the ring stands at its first stage, and will again, so that all its places are numbers
    // that the compiler knows. While the first product runs, `meanwhile`, which may still touch the sums.
    template <u32 BLOCKS, u32 EDGE, u32 WAVES = C::WAVES, bool ROUND = false, class F> __device__ __forceinline__ void multiply(Sm90Sums<C>& sum, u32 block, const F& meanwhile) {
        constexpr u32 EACH = WAVES * C::ATOMS, ALL = BLOCKS * EACH, PIECE = C::ATOM / 2;
        // Where products overlap, a k-block's scales of A are loaded together, and multiplied after the products are asked for.
        constexpr bool SCALED = C::SCALES != SCALES_OUTER, VECTOR = C::OF_COLUMNS, TILED_A = C::SCALES == SCALES_BLOCK_A;
        constexpr bool TOGETHER = SCALED && C::DEPTH > 1 && !TILED_A;
        constexpr bool BEHIND = VECTOR && LOOKED_AT;
        static_assert((C::DEPTH + EACH - 1) / EACH < C::STAGES, "stages that wait for the next product");
        static_assert(!ROUND || BLOCKS % C::STAGES == 0, "whole rounds");
        float part[C::DEPTH][PIECE], low[C::DEPTH], high[C::DEPTH], rows[WAVES][2], tiles[C::SCALE_PARTS] = {};
        float2 kept[C::KEPT > 0 ? C::KEPT : 1];
        u32 from_a = 0, from_b = 0, scale = 0, read = 0;
#pragma unroll
        for (u32 i = 0; i < ALL + C::DEPTH - 1; i++) {
            if (i < ALL) {
                const u32 wave = i % EACH / C::ATOMS, atom = i % C::ATOMS, now = i % C::DEPTH;
                if (i % EACH == 0) {
                    const u32 quarter = BLOCKS % 4 == 0 && C::UNROLL % 4 == 0 && C::SPLIT == 1 ? i / EACH % 4 : (block + i / EACH) % 4, stage = ROUND ? i / EACH % C::STAGES : ring.stage;
                    barrier_wait(shared + C::FULL + 8 * stage, ROUND ? ring.parity ^ (i / EACH / C::STAGES & 1) : ring.parity);
                    from_a = a + stage * (C::A_BYTES / 16);
                    from_b = b + stage * (C::B_BYTES / 16);
                    scale = scale_a + stage * C::SCALES_A_BYTES + (TILED_A ? 4 * quarter : 0);
                    if (SCALED && !VECTOR)
#pragma unroll
                        for (u32 part = 0; part < C::SCALE_PARTS; part++)
                            tiles[part] = shared_float(shared + C::SCALES_B + stage * C::SCALES_B_BYTES + 4 * quarter + 16 * part);
                    if (TOGETHER)
#pragma unroll
                        for (u32 w = 0; w < WAVES; w++) {
                            rows[w][0] = shared_float(scale + w * 256);
                            rows[w][1] = shared_float(scale + w * 256 + 32);
                        }
                    if (!ROUND) ring.advance();
                }
                if (TILED_A) {
                    low[now] = shared_float(scale);
                    high[now] = C::TWICE_A > 1 ? shared_float(scale + 16) : low[now];
                } else if (SCALED && !TOGETHER) {
                    low[now] = shared_float(scale + wave * 256);
                    high[now] = shared_float(scale + wave * 256 + 32);
                    if (!VECTOR && !C::CROSSED) low[now] *= tile_of<EDGE>(tiles, atom), high[now] *= tile_of<EDGE>(tiles, atom);
                }
                hold(part[now]);
                wgmma_fence();
#pragma unroll
                for (u32 q = 0; q < 4; q++)
                    wgmma(part[now], from_a + wave * (64 * 128 / 16) + 2 * q, from_b + C::atom_row(atom) * (128 / 16) + 2 * q, q > 0);
                wgmma_commit();
                if (i == 0) meanwhile();
                // It writes where the product DEPTH before it was: that one has been added up, and the scales it was multiplied by have been here.
                if (BEHIND && i >= C::DEPTH && (i - C::DEPTH) % EACH == EACH - 1) give_back_used(stage_of<ROUND>(i - C::DEPTH, i, EACH));
                if (TOGETHER) {
                    low[now] = VECTOR ? rows[wave][0] : rows[wave][0] * tile_of<EDGE>(tiles, atom);
                    high[now] = VECTOR ? rows[wave][1] : rows[wave][1] * tile_of<EDGE>(tiles, atom);
                }
            }
            if (i + 1 >= C::DEPTH) {
                const u32 j = i + 1 - C::DEPTH, done = j % C::DEPTH, running = i < ALL ? C::DEPTH - 1 : ALL + C::DEPTH - 2 - i;
                if (running == 0) wgmma_wait<0>();
                else if (running == 1) wgmma_wait<1>();
                else if (running == 2) wgmma_wait<2>();
                else wgmma_wait<3>();
                hold(part[done]);
                const u32 stage = stage_of<ROUND>(j, i < ALL ? i : ALL - 1, EACH);
                // Bits of what was loaded: scales of A, with those of B where they have been multiplied, else those too.
                if (SCALED) read = __float_as_uint(low[done]) | __float_as_uint(high[done]);
                if (C::CROSSED) read |= __float_as_uint(tiles[0]) | __float_as_uint(tiles[C::SCALE_PARTS - 1]);
                if (!VECTOR && j % EACH == EACH - 1) {
                    if (SCALED) give_back(stage, read);
                    else give_back_used(stage);
                }
                float (&to)[PIECE] = sum[j % EACH / C::ATOMS][j % C::ATOMS];
#pragma unroll
                for (u32 e = 0; e < PIECE; e += 4) {
                    if (!SCALED) {
#pragma unroll
                        for (u32 c = e; c < e + 4; c++) to[c] = __fadd_rn(to[c], part[done][c]);
                        continue;
                    }
                    float2 col = {1.0f, 1.0f};
                    if (C::CROSSED) col.x = col.y = tile_of<EDGE>(tiles, j % C::ATOMS, 2 * e / C::CUT * C::CUT);
                    if (VECTOR) {
                        if ((int)e / 4 >= C::KEPT || j % EACH == 0) col = shared_pair(scale_b + stage * C::SCALES_B_BYTES + (j % C::ATOMS * C::ATOM + 2 * e) * 4);
                        else col = kept[e / 4];
                        if ((int)e / 4 < C::KEPT && j % EACH == 0) kept[e / 4] = col;
                    }
                    if (VECTOR && (!BEHIND || j + C::DEPTH >= ALL)) read |= __float_as_uint(col.x);
                    to[e] = __fmaf_rn(VECTOR || C::CROSSED ? low[done] * col.x : low[done], part[done][e], to[e]);
                    to[e + 1] = __fmaf_rn(VECTOR || C::CROSSED ? low[done] * col.y : low[done], part[done][e + 1], to[e + 1]);
                    to[e + 2] = __fmaf_rn(VECTOR || C::CROSSED ? high[done] * col.x : high[done], part[done][e + 2], to[e + 2]);
                    to[e + 3] = __fmaf_rn(VECTOR || C::CROSSED ? high[done] * col.y : high[done], part[done][e + 3], to[e + 3]);
                }
                // Scales of B are read until now. Where another product follows in this call, the stage is given back behind that.
                if (VECTOR && j % EACH == EACH - 1 && (!BEHIND || j + C::DEPTH >= ALL)) give_back(stage, read);
            }
        }
        if (ROUND) ring.parity ^= BLOCKS / C::STAGES & 1;
    }

    template <u32 EDGE, u32 WAVES = C::WAVES> __device__ __forceinline__ void run_with(Sm90Sums<C>& sum, u32 block, u32 end) {
        // Where it stands elsewhere it will to the end of the tile: of a tile before this some stages were left.
        if constexpr (C::WHOLE_RINGS)
            if (ring.stage == 0)
                for (; block + C::UNROLL <= end; block += C::UNROLL) multiply<C::UNROLL, EDGE, WAVES, true>(sum, block, [] {});
        for (; block + C::UNROLL <= end; block += C::UNROLL) multiply<C::UNROLL, EDGE, WAVES>(sum, block, [] {});
        if constexpr (C::REST_OF_FOUR)
            if (block + 4 <= end) {
                multiply<4, EDGE, WAVES>(sum, block, [] {});
                block += 4;
            }
        for (; block < end; block++) multiply<1, EDGE, WAVES>(sum, block, [] {});
    }

    // The k-blocks from `block` on. Where an atom lies in two tiles of scales, a loop for each place where they meet: their selection costs a tenth of the time.
    __device__ __forceinline__ void run(Sm90Sums<C>& sum, u32 block, u32 end) {
        if constexpr (!C::CROSSED) return run_with<0>(sum, block, end);
        if constexpr (C::CUT == 16 || C::OUT_COLS < 128) return run_from<C::CUT>(sum, block, end);
        if (edge == 128) return run_with<128>(sum, block, end);
        if (edge == 64) return run_with<64>(sum, block, end);
        if constexpr (C::CUT == 32) {
            if (edge == 32) return run_with<32>(sum, block, end);
            return run_with<96>(sum, block, end);
        }
    }

    // Where they meet at EDGE columns, or behind that.
    template <u32 EDGE> __device__ __forceinline__ void run_from(Sm90Sums<C>& sum, u32 block, u32 end) {
        if constexpr (EDGE >= 128 || EDGE >= C::OUT_COLS) run_with<128>(sum, block, end);
        else if (edge == EDGE) run_with<EDGE>(sum, block, end);
        else run_from<EDGE + C::CUT>(sum, block, end);
    }

    // What the producer says with the first stage of a tile; its last word is the group, or how many blocks of k the tile has.
    template <u32 GROUPED> __device__ __forceinline__ Sm90Tile next() {
        barrier_wait(shared + C::FULL + 8 * ring.stage, ring.parity);
        const uint4 work = shared_vector(shared + C::WORK + 16 * ring.stage);
        __syncwarp();
        begin_at(work.y);
        if (GROUPED == GROUPS_OF_K) return {work.x, work.y, (int)work.z, 0, 0, __shfl_sync(0xFFFFFFFFu, work.w, 0)};
        return {work.x, work.y, (int)work.z, work.w, 0, 0};
    }

    // The stages of a tile of which the warpgroup has no row.
    __device__ __forceinline__ void pass(u32 blocks) {
        for (u32 block = 0; block < blocks; block++) {
            barrier_wait(shared + C::FULL + 8 * ring.stage, ring.parity);
            give_back_used(ring.stage);
            ring.advance();
        }
    }
};

template <class C> __device__ __forceinline__ void sm90_clear(Sm90Sums<C>& sum) {
#pragma unroll
    for (u32 w = 0; w < C::WAVES; w++)
#pragma unroll
        for (u32 a = 0; a < C::ATOMS; a++)
#pragma unroll
            for (u32 e = 0; e < C::ATOM / 2; e++) sum[w][a][e] = 0.0f;
}

// The tiles of a warpgroup where D needs nothing but to be stored. Sums are cleared while the first product runs, for which k must have UNROLL blocks or more, as whoever launches a kernel that has no other end knows; where WHOLE_RINGS, or half of the warpgroup's
// rows are multiplied, before the loop, and k may be any. A loop of its own, as between two tiles the one of all ends jumps over their code (observed: H100, 2026-11). To store a tile under the next one's first product, too, was slower.
template <class C, u32 GROUPED>
__device__ __forceinline__ void sm90_multiply_plain(Sm90Math<C>& math, const TensorMap& d, const Sm90Problem& p, u32 tiles, u32 blocks, u32 row, u32 col, u32 slabs) {
    static_assert(C::END != END_PLAIN || C::WHOLE_RINGS || (C::ROWS == 256 && C::UNROLL == 8), "as least_plain_blocks in src/gpu/kernels/sm90_config.rs has it");
    for (u32 i = 0; i < tiles; i++) {
        const Sm90Tile tile = math.template next<GROUPED>();
        if ((int)row >= tile.rows || tile.col + col >= p.n) {
            math.pass(blocks);
            continue;
        }
        Sm90Sums<C> sum;
#ifdef SCALED_GEMM_STAMPS
        if (threadIdx.x == 0) loop_cycles -= (u32)clock();
#endif
        // Of a group that ends in the first half of a warpgroup's rows the second half is none of D, and is not multiplied.
        if (GROUPED == GROUPS_OF_ROWS && C::WAVES == 2 && (int)row + 64 >= tile.rows) {
            sm90_clear<C>(sum);
            math.template run_with<0, 1>(sum, 0, blocks);
        } else if (C::WHOLE_RINGS) {
            sm90_clear<C>(sum);
            math.template run_with<0>(sum, 0, blocks);
        } else {
            math.template multiply<C::UNROLL, 0>(sum, 0, [&] { sm90_clear<C>(sum); });
            math.template run_with<0>(sum, C::UNROLL, blocks);
        }
#ifdef SCALED_GEMM_STAMPS
        if (threadIdx.x == 0) loop_cycles += (u32)clock();
#endif
        sm90_slabs_free<C>();
        if (C::END == END_PLAIN || p.d_type == 0) sm90_store_rows<Bf16, C, GROUPED>(sum, p, d, tile, row, col, slabs);
        else sm90_store_rows<F16, C, GROUPED>(sum, p, d, tile, row, col, slabs);
    }
}

template <class C, u32 GROUPED> __device__ __forceinline__ void sm90_multiply(const TensorMap& d, const Sm90Problem& p, u32 shared, u32 group) {
    u32 blocks = (p.k + 127) / 128, first = 0;
    if (C::SPLIT > 1) {
        const u32 rank = cluster_rank();
        first = rank * blocks / C::SPLIT;
        blocks = (rank + 1) * blocks / C::SPLIT;
    }
    const u32 down = C::DOWN > 1 ? group : 0, across = C::DOWN > 1 ? 0 : group;
    const u32 row = down * C::TALL, col = across * C::OUT_WIDE;
    Sm90Math<C> math(p, shared, down, across);
    // Counted, as the compiler knows then that all lanes go the same way: it keeps the ring and all descriptors in uniform registers. With a
    // loop that ends as shared memory says it moved each descriptor there between two products.
    const u32 tiles = Sm90Walk<C, GROUPED>::tiles(p);
    const bool plain = C::PLAIN_LOOP && (C::END == END_PLAIN || (p.plain && p.alpha == 1.0f && p.d_type < 2 && blocks >= C::UNROLL));
    if constexpr (C::PLAIN_LOOP)
        if (plain) sm90_multiply_plain<C, GROUPED>(math, d, p, tiles, blocks, row, col, shared + C::SLAB + group * C::SLABS_BYTES);
    for (u32 i = plain ? tiles : 0; i < tiles; i++) {
        Sm90Tile tile;
        if (C::SPLIT > 1) {
            // The one tile of the cluster: a block may have no part of k, of whose first stage it would learn which.
            Sm90Walk<C, GROUPED> walk(p);
            walk.next(tile);
            math.begin_at(tile.col);
        } else {
            tile = math.template next<GROUPED>();
        }
        if (GROUPED == GROUPS_OF_K) blocks = tile.blocks;
        tile.row_of_a = GROUPED == GROUPS_OF_K ? tile.row % p.m : tile.row;
        if ((int)row >= tile.rows || tile.col + col >= p.n) {
            math.pass(blocks - first);
            continue;
        }
        if (C::SCALES == SCALES_OUTER || (C::END != END_PLAIN && !p.plain)) sm90_prefetch<C>(p, tile, row + 16 * sm90_warp<C>(), col);
        Sm90Sums<C> sum;
        sm90_clear<C>(sum);
#ifdef SCALED_GEMM_STAMPS
        if (threadIdx.x == 0) loop_cycles -= (u32)clock();
#endif
        math.run(sum, first, blocks);
#ifdef SCALED_GEMM_STAMPS
        if (threadIdx.x == 0) loop_cycles += (u32)clock();
#endif
        const u32 warp = sm90_warp<C>(), slab = shared + C::SLAB + group * C::SLABS_BYTES + warp * C::SLAB_BYTES;
        if (C::SPLIT > 1) sm90_join<C>(sum, p, d, tile, row + 16 * warp, col, shared, slab);
        else if (C::AS_NUMBERS) sm90_store<C>(sum, p, d, tile, row + 16 * warp, col, slab);
        else sm90_store_cast<C>(sum, p, d, tile, row + 16 * warp, col, slab, shared + C::SLAB + (across ^ 1) * C::SLABS_BYTES + warp * C::SLAB_BYTES);
    }
    // Shared memory stays until it is read.
    if (C::STORE == STORE_BOXES && threadIdx.x % 128 == 0) bulk_read();
#ifdef SCALED_GEMM_STAMPS
    if (threadIdx.x % 128 == 0) stamp(p, 1 + group);
#endif
}

template <class C, u32 GROUPED>
__device__ __forceinline__ void sm90_block(const TensorMap& a, const TensorMap& b, const TensorMap& d, const TensorMap& a_edge, const TensorMap& b_edge, const Sm90Problem& p) {
    extern __shared__ u8 memory[];
    const u32 shared = (shared_address(memory) + 1023) & ~1023u;
    const u32 group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);  // the same for all lanes, and known to be
#ifdef SCALED_GEMM_STAMPS
    if (threadIdx.x == 0) stamp(p, 0);
#endif
    constexpr bool EARLY = sm90_early<C, GROUPED>();
    constexpr u32 PRODUCERS = C::ONE_PRODUCER ? 1 : 2;
    const u32 producer = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0) - 4 * C::GROUPS;  // of warps of products a number beyond all
    const auto prefetch = [&] {
        prefetch_map(a);
        prefetch_map(b);
        if (C::STORE == STORE_BOXES && C::AS_NUMBERS && p.d_type < 2) prefetch_map(d);
    };
    Sm90First first = {};
    if (threadIdx.x == 0) {
#ifdef SCALED_GEMM_BOUNDED_WAITS
        gave_up = 0;
        finished = 0;
#endif
        if (!EARLY) prefetch();
        // A stage is read by the warps of every warpgroup.
        for (u32 i = 0; i < C::STAGES; i++) {
            barrier_init(shared + C::FULL + 8 * i, PRODUCERS);
            barrier_init(shared + C::EMPTY + 8 * i, 4 * C::GROUPS * C::SHARERS);
        }
        barriers_ready();
    }
    if (EARLY && producer < PRODUCERS) {
        if (threadIdx.x == 128 * C::GROUPS) prefetch();
        first = sm90_first<C, GROUPED>(p);
    }
    if (C::CLUSTER > 1) {
        cluster_arrive_relaxed();
        cluster_wait();
    } else {
        __syncthreads();
    }
    begin();
    if (group == C::GROUPS) {
        if (C::GROUPS > 1) fewer_registers<40>();
        if (producer < PRODUCERS) sm90_produce<C, GROUPED>(a, b, a_edge, b_edge, p, shared, producer == 1, first);
#ifdef SCALED_GEMM_BOUNDED_WAITS
        if (threadIdx.x == 128 * C::GROUPS) finished = 1;
        if (threadIdx.x == 128 * C::GROUPS + 64) {
            u64 from, now;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
            do {
                __nanosleep(10000);
                asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            } while (!finished && now - from < 200000000);
            if (!finished) {
                gave_up = 1;
                p.stamps[blockIdx.x * 16 + 15] = 1;
            }
        }
#endif
    } else {
        if (C::GROUPS > 1) more_registers<232>();
        sm90_multiply<C, GROUPED>(d, p, shared, group);
    }
}

// What the kernels have in common: {A's map, B's map, D's where it is stored in boxes, A's and B's with the boxes of a last tile that is cut, the problem}.
#define SM90_KERNEL(NAME, C, GROUPED)                                                                                   \
    extern "C" __global__ void __launch_bounds__(C::THREADS, C::RESIDENT)                                               \
    NAME(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ TensorMap d,     \
         const __grid_constant__ TensorMap a_edge, const __grid_constant__ TensorMap b_edge,                            \
         const __grid_constant__ Sm90Problem p) {                                                                       \
        sm90_block<C, GROUPED>(a, b, d, a_edge, b_edge, p);                                                             \
    }

#define SM90_CONFIG(NAME, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES) \
    SM90_CONFIG_ENDING(NAME, END_NUMBERS, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES)

#define SM90_CONFIG_ENDING(NAME, END, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES) \
    SM90_CONFIG_OF(NAME, END, 1, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES)

#define SM90_CONFIG_SPLIT(NAME, END, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES, SPLIT) \
    SM90_CONFIG_OF(NAME, END, SPLIT, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES)

// With a loop of its own, as `LOOP_OF` in sm90_loop.cuh has it.
#define SM90_CONFIG_LOOPING(NAME, LOOP_OF, END, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES) \
    constexpr Sm90Loop loop_##NAME = LOOP_OF(ROWS, COLS, RESIDENT, {STAGES, DEPTH, UNROLL});                                            \
    SM90_CONFIG_ENDING(NAME, END, SCALES, ROWS, COLS, GROUPS, SHARE, loop_##NAME.stages, ATOM, loop_##NAME.depth, loop_##NAME.unroll, STORE, RESIDENT, BYTES)

// Where B's columns have scales of their own: for boxes of D, which is FP32 mostly, the largest tile has no memory left.
#define SM90_CONFIG_OF_COLUMNS(NAME, LOOP_OF, END, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, ...)          \
    SM90_CONFIG_LOOPING(NAME, LOOP_OF, END, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, ((ROWS) == 256 ? STORE_DIRECT : (STORE)), __VA_ARGS__)

#define SM90_CONFIG_VECTOR(NAME, END, ...) SM90_CONFIG_OF_COLUMNS(NAME, loop_of_vectors, END, SCALES_VECTOR, __VA_ARGS__)

#define SM90_CONFIG_BLOCK_A(NAME, ...) SM90_CONFIG_OF_COLUMNS(NAME, loop_of_blocks_of_a, END_NUMBERS, SCALES_BLOCK_A, __VA_ARGS__)

// Of scales of rows or matrices, with FP32 that is added to: no boxes of D, whose memory is a stage more of the largest tile.
#define SM90_CONFIG_OUTER_FP32(NAME, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, ...)                    \
    SM90_CONFIG_ENDING(NAME, END_FP32, SCALES_OUTER, ROWS, COLS, GROUPS, SHARE, ((ROWS) == 256 ? 4 : (STAGES)), ATOM, DEPTH, \
                UNROLL, STORE_DIRECT, __VA_ARGS__)

#define SM90_CONFIG_OF(NAME, END, SPLIT, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES) \
    using Config_##NAME = Sm90Config<ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, SCALES, END, SPLIT>; \
    static_assert(Config_##NAME::SHARED <= BYTES, "dynamic shared memory, as src/gpu/kernels/sm90_config.rs asks for it");
