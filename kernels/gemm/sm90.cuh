// Products of E4M3 matrices on Hopper: D = A Bᵀ, dense, or of groups of rows that lie where device memory says, with all that follows the sums.
//
// Blocks are persistent: each walks the tiles of D with its own number modulo the grid. A producer warp copies the operands of the
// next k-blocks (128 of k, zeros beyond the end) with their scales into a ring of stages; one or two math warpgroups multiply them
// in atoms of 64 x ATOM x 128 and add each atom times its scales to FP32 sums ("promotion": tensor cores keep some 14 bits of
// FP8 sums). The order of all sums depends on k alone: equal rows have equal results, whatever m and the grid.
//
// A stage has two barriers. `full` has one arrival, the producer's, which also announces the bytes of its four copies. `empty` has one
// arrival of every math warp, of both blocks where a pair shares an operand: there each producer copies one half of it into both blocks,
// and waits for both. With the first stage of a tile the producer says which it is. Before a block ends its
// producer waits until all stages are empty: then no copy is on its way to the other block and no arrival to this one.
#pragma once
#include "gemm/finish.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/wgmma.cuh"

// What a cluster of two blocks shares: nothing (no cluster), A (neighbours along n), or B (neighbours along m).
constexpr u32 SHARE_NONE = 0;
constexpr u32 SHARE_A = 1;
constexpr u32 SHARE_B = 2;

// What multiplies codes: 1x128 scales of A and 128x128 scales of B, with each k-block; or scales of rows or whole matrices, at the end.
constexpr u32 SCALES_BLOCK = 0;
constexpr u32 SCALES_OUTER = 1;

// How a warp writes a plain BF16 part of D: from registers, or through shared memory. All else goes through shared memory in FP32.
constexpr u32 STORE_DIRECT = 0;
constexpr u32 STORE_STAGED = 1;

template <u32 ROWS_, u32 COLS_,  // the tile of a block; COLS is 64 or 128
          u32 GROUPS_,           // math warpgroups, side by side along rows, or along columns where rows are 64
          u32 SHARE_, u32 STAGES_,
          u32 ATOM_,      // columns of one product: 64 or 128
          u32 DEPTH_,     // products of a warpgroup that run at once; 1: each is waited for
          u32 UNROLL_,    // k-blocks of the loop's body
          u32 STORE_,
          u32 RESIDENT_,  // blocks on a multiprocessor
          u32 SCALES_>
struct Sm90Config {
    static constexpr u32 ROWS = ROWS_, COLS = COLS_, GROUPS = GROUPS_, SHARE = SHARE_, STAGES = STAGES_, ATOM = ATOM_, DEPTH = DEPTH_;
    static constexpr u32 UNROLL = UNROLL_, STORE = STORE_, RESIDENT = RESIDENT_, SCALES = SCALES_;
    static constexpr u32 DOWN = ROWS >= 64 * GROUPS ? GROUPS : 1, ACROSS = GROUPS / DOWN;
    static constexpr u32 TALL = ROWS / DOWN, WIDE = COLS / ACROSS;  // of a warpgroup
    static constexpr u32 WAVES = TALL / 64, ATOMS = WIDE / ATOM;
    static constexpr u32 THREADS = 128 * (GROUPS + 1), CLUSTER = SHARE == SHARE_NONE ? 1 : 2;
    static constexpr u32 A_BOX = SHARE == SHARE_A ? ROWS / 2 : ROWS, B_BOX = SHARE == SHARE_B ? COLS / 2 : COLS;
    static constexpr u32 SLAB_BYTES = 2048;  // for each warp 16 x 64 of D in BF16, or 16 x 32 of sums in FP32
    // Shared memory: stages of A, of B; slabs; stages of scales of A, of what to do, of scales of B; barriers.
    static constexpr u32 A_BYTES = ROWS * 128, B_BYTES = COLS * 128, SCALES_A_BYTES = ROWS * 4;
    static constexpr u32 SCALES_B_BYTES = 16;  // of four k-blocks
    static constexpr u32 B = STAGES * A_BYTES, SLAB = B + STAGES * B_BYTES;
    static constexpr u32 SCALES_A = SLAB + 4 * GROUPS * SLAB_BYTES;
    static constexpr u32 WORK = SCALES_A + STAGES * SCALES_A_BYTES, SCALES_B = WORK + STAGES * 16;
    static constexpr u32 FULL = SCALES_B + STAGES * SCALES_B_BYTES, EMPTY = FULL + 8 * STAGES, SHARED = 1024 + EMPTY + 8 * STAGES;
    static_assert(TALL % 64 == 0 && WIDE % ATOM == 0 && WIDE % 64 == 0 && COLS <= 128, "a tile lies in one tile of scales");
    static_assert(SHARED <= 227 * 1024, "shared memory of a block");
};

// Mirror of the struct of the same name in src/gpu/kernels/sm90.rs.
struct Sm90Problem {
    u32 m, n, k;            // rows of A in all groups
    u32 raster;             // tiles along m that are walked before the next along n
    const float* scales_a;  // vec128, `pitch_a` apart; SCALES_OUTER: of rows, `a_step` apart
    const float* scales_b;  // blk128, `pitch_b` apart, one group after the other; SCALES_OUTER: of rows, `b_step` apart
    u32 pitch_a, pitch_b;
    void* d;  // [m][n], rows `stride_d` apart, each aligned to 16 bytes
    u64 stride_d;
    // Groups: rows `starts[g]` (a multiple of 4) or g * slot_rows, and the next `counts[g]`.
    const i64* starts;
    const i64* counts;
    u32 groups, slot_rows;
    u32 group_b, group_tiles;  // rows of B, and tiles of its scales along n, from one group to the next
    // What follows the sums: see finish.cuh.
    float alpha, beta;
    u32 plain;  // D is BF16 of alpha times the sums, and nothing else
    u32 d_type, activation, bias_type, residual_type;
    u32 a_step, b_step;
    u32 group_bias;        // numbers from the bias of a group to that of the next
    const void* bias;      // [n], of each group; null: none
    const void* residual;  // [m][n], rows `stride_residual` apart; null: none
    u64 stride_residual;
#ifdef SCALED_GEMM_STAMPS
    u64* stamps;  // for benchmarks: for each block start and end, cycles in all and in the loop of the first warpgroup
#endif
};

struct Sm90Tile {
    u32 row, col;  // of D
    int rows;      // of the tile that belong to D; none where negative
    u32 group;
};

// The tiles of a block, in order, for the producer warp, which tells the others. Groups are walked 32 at a time, one in each lane: no
// memory is asked for, empty ones cost nothing, and any number of them will do.
template <class C, bool GROUPED> struct Sm90Walk {
    const Sm90Problem& p;
    u32 unit;  // the tile of a block, or those of a pair
    u32 first_group, base, end, upto, units, start, count;

    __device__ __forceinline__ Sm90Walk(const Sm90Problem& p) : p(p) {
        unit = blockIdx.x / C::CLUSTER;
        if (GROUPED) {
            first_group = 0;
            end = 0;
            if (p.groups) load_groups();
        }
    }

    __device__ __forceinline__ static u32 across(const Sm90Problem& p) {
        constexpr u32 UNIT = C::SHARE == SHARE_A ? 2 * C::COLS : C::COLS;
        return (p.n + UNIT - 1) / UNIT;
    }

    __device__ __forceinline__ static u32 down(u32 rows) {
        constexpr u32 UNIT = C::SHARE == SHARE_B ? 2 * C::ROWS : C::ROWS;
        return (rows + UNIT - 1) / UNIT;
    }

    // Where the rows of a group start, and how many. What does not lie in A is no group.
    __device__ __forceinline__ static void load_group(const Sm90Problem& p, u32 g, u32& start, u32& count) {
        start = 0;
        count = 0;
        if (g < p.groups) {
            const i64 at = p.starts ? p.starts[g] : (i64)g * p.slot_rows, rows = p.counts[g];
            if (at >= 0 && at < (i64)p.m && at % 4 == 0 && rows > 0) {
                const i64 most = p.starts ? (i64)p.m - at : (i64)p.slot_rows;
                start = (u32)at;
                count = (u32)(rows < most ? rows : most);
            }
        }
    }

    // How many tiles the block has. All lanes of a warp together.
    __device__ __forceinline__ static u32 tiles(const Sm90Problem& p) {
        u32 all = down(p.m) * across(p);
        if (GROUPED) {
            all = 0;
            for (u32 g = 0; g < p.groups; g += 32) {
                u32 start, count;
                load_group(p, g + threadIdx.x % 32, start, count);
                all += down(count) * across(p);
            }
#pragma unroll
            for (u32 step = 16; step > 0; step /= 2) all += __shfl_xor_sync(0xFFFFFFFFu, all, step);
            all = __shfl_sync(0xFFFFFFFFu, all, 0);  // the same for all lanes, and known to be
        }
        const u32 first = blockIdx.x / C::CLUSTER, step = gridDim.x / C::CLUSTER;
        return all > first ? (all - first - 1) / step + 1 : 0;
    }

    __device__ __forceinline__ void load_groups() {
        load_group(p, first_group + threadIdx.x % 32, start, count);
        units = down(count) * across(p);
        upto = units;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 before = __shfl_up_sync(0xFFFFFFFFu, upto, step);
            if (threadIdx.x % 32 >= step) upto += before;
        }
        base = end;
        end += __shfl_sync(0xFFFFFFFFu, upto, 31);
    }

    // All lanes of a warp together.
    __device__ __forceinline__ bool next(Sm90Tile& tile) {
        u32 inside = unit, rows = p.m, row = 0;
        tile.group = 0;
        if (GROUPED) {
            while (unit >= end) {
                first_group += 32;
                if (first_group >= p.groups) return false;
                load_groups();
            }
            const u32 lane = __ffs(__ballot_sync(0xFFFFFFFFu, unit - base < upto)) - 1;
            inside = unit - base - __shfl_sync(0xFFFFFFFFu, upto - units, lane);
            row = __shfl_sync(0xFFFFFFFFu, start, lane);
            rows = __shfl_sync(0xFFFFFFFFu, count, lane);
            tile.group = first_group + lane;
        } else if (unit >= down(p.m) * across(p)) {
            return false;
        }
        // Bands of `raster` tiles along m, each walked along n: what the blocks of a moment read stays in L2.
        const u32 band_units = p.raster * across(p), band = inside / band_units, in_band = inside - band * band_units;
        const u32 height = min(p.raster, down(rows) - band * p.raster);
        u32 x = in_band / height, y = band * p.raster + in_band - x * height;
        if (C::SHARE == SHARE_A) x = 2 * x + cluster_rank();
        if (C::SHARE == SHARE_B) y = 2 * y + cluster_rank();
        tile.row = row + y * C::ROWS;
        tile.col = x * C::COLS;
        tile.rows = (int)rows - (int)(y * C::ROWS);
        unit += gridDim.x / C::CLUSTER;
        return true;
    }
};

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

// Where a warp is in the ring of stages.
template <class C> struct Sm90Ring {
    u32 stage, parity;
    __device__ __forceinline__ void advance() {
        stage = stage == C::STAGES - 1 ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

template <class C, bool GROUPED>
__device__ __forceinline__ void sm90_produce(const TensorMap& a, const TensorMap& b, const Sm90Problem& p, u32 shared) {
    const u32 blocks = (p.k + 127) / 128, rank = C::CLUSTER > 1 ? cluster_rank() : 0;
    Sm90Walk<C, GROUPED> walk(p);
    Sm90Ring<C> ring = {0, 1};
    Sm90Tile tile;
    while (walk.next(tile)) {
        if (threadIdx.x % 32 == 0) {
            const u32 last_tile = (p.n + 127) / 128 - 1, group_row = GROUPED ? tile.group * p.group_b : 0;
            // Of a tile without rows, whichever: its sums are not stored.
            constexpr bool SCALED = C::SCALES == SCALES_BLOCK;
            const u32 scale_row = SCALED ? min(tile.row, p.pitch_a - 4) : 0, scale_bytes = SCALED ? min(C::ROWS, p.pitch_a - scale_row) * 4 : 0;
            const float* scales_a = p.scales_a + scale_row;
            const float* scales_b = p.scales_b + (u64)(min(tile.col / 128, last_tile) + (GROUPED ? tile.group * p.group_tiles : 0)) * p.pitch_b;
            for (u32 block = 0; block < blocks; block++) {
                const u32 full = shared + C::FULL + 8 * ring.stage;
                const u32 to_a = shared + ring.stage * C::A_BYTES, to_b = shared + C::B + ring.stage * C::B_BYTES;
                barrier_wait(shared + C::EMPTY + 8 * ring.stage, ring.parity);
                if (block == 0) shared_store(shared + C::WORK + 16 * ring.stage, {tile.row, tile.col, (u32)tile.rows, tile.group});
                barrier_expect(full, C::A_BYTES + C::B_BYTES + (SCALED ? scale_bytes + C::SCALES_B_BYTES : 0));
                if (C::SHARE == SHARE_A)
                    copy_box_to(to_a + rank * (C::A_BYTES / 2), a, 128 * block, tile.row + rank * C::A_BOX, full, 3);
                else
                    copy_box(to_a, a, 128 * block, tile.row, full);
                if (C::SHARE == SHARE_B)
                    copy_box_to(to_b + rank * (C::B_BYTES / 2), b, 128 * block, group_row + tile.col + rank * C::B_BOX, full, 3);
                else
                    copy_box(to_b, b, 128 * block, group_row + tile.col, full);
                if (SCALED) {
                    copy_bytes(shared + C::SCALES_A + ring.stage * C::SCALES_A_BYTES, scales_a + (u64)block * p.pitch_a, scale_bytes, full);
                    // Of four k-blocks, as copies have no less than 16 bytes.
                    copy_bytes(shared + C::SCALES_B + ring.stage * C::SCALES_B_BYTES, scales_b + block / 4 * 4, 16, full);
                }
                ring.advance();
            }
        }
        __syncwarp();
    }
    if (threadIdx.x % 32 == 0)
        for (u32 i = 0; i < C::STAGES; i++) {
            barrier_wait(shared + C::EMPTY + 8 * ring.stage, ring.parity);
            ring.advance();
        }
}

// The sums of a warpgroup: waves of 64 rows, atoms of columns, and a thread's part of each.
template <class C> using Sm90Sums = float[C::WAVES][C::ATOMS][C::ATOM / 2];

template <class C> struct Sm90Math {
    u32 shared;
    u32 a, b;     // the warpgroup's operands in stage 0
    u32 scale_a;  // the thread's first scale there
    Sm90Ring<C> ring;

    __device__ __forceinline__ Sm90Math(u32 shared, u32 down, u32 across) : shared(shared), ring({0, 0}) {
        const u32 warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        a = wgmma_operand(shared + down * C::TALL * 128);
        b = wgmma_operand(shared + C::B + across * C::WIDE * 128);
        scale_a = shared + C::SCALES_A + (down * C::TALL + warp * 16 + lane / 4) * 4;
    }

    // One lane of a warp for each block of the cluster says that the warp has read the stage.
    __device__ __forceinline__ void give_back(u32 stage) {
        const u32 lane = threadIdx.x % 32, empty = shared + C::EMPTY + 8 * stage;
        if (C::CLUSTER > 1) {
            if (lane < C::CLUSTER) barrier_arrive_at(empty, lane);
        } else if (lane == 0) {
            barrier_arrive(empty);
        }
    }

    // `BLOCKS` k-blocks from `block` on.
    template <u32 BLOCKS> __device__ __forceinline__ void multiply(Sm90Sums<C>& sum, u32 block) {
        constexpr u32 EACH = C::WAVES * C::ATOMS, ALL = BLOCKS * EACH, PIECE = C::ATOM / 2;
        // Where products overlap, a k-block's scales of A are loaded together, and multiplied after the products are asked for.
        constexpr bool SCALED = C::SCALES == SCALES_BLOCK, TOGETHER = SCALED && C::DEPTH > 1;
        float part[C::DEPTH][PIECE], low[C::DEPTH], high[C::DEPTH], rows[C::WAVES][2], tile = 0;
        u32 from_a = 0, from_b = 0, scale = 0;
#pragma unroll
        for (u32 i = 0; i < ALL + C::DEPTH - 1; i++) {
            if (i < ALL) {
                const u32 wave = i % EACH / C::ATOMS, atom = i % C::ATOMS, now = i % C::DEPTH;
                if (i % EACH == 0) {
                    const u32 quarter = BLOCKS % 4 == 0 ? i / EACH % 4 : (block + i / EACH) % 4, stage = ring.stage;
                    barrier_wait(shared + C::FULL + 8 * stage, ring.parity);
                    from_a = a + stage * (C::A_BYTES / 16);
                    from_b = b + stage * (C::B_BYTES / 16);
                    scale = scale_a + stage * C::SCALES_A_BYTES;
                    if (SCALED) tile = shared_float(shared + C::SCALES_B + stage * C::SCALES_B_BYTES + 4 * quarter);
                    if (TOGETHER)
#pragma unroll
                        for (u32 w = 0; w < C::WAVES; w++) {
                            rows[w][0] = shared_float(scale + w * 256);
                            rows[w][1] = shared_float(scale + w * 256 + 32);
                        }
                    ring.advance();
                }
                if (SCALED && !TOGETHER) {
                    low[now] = shared_float(scale + wave * 256) * tile;
                    high[now] = shared_float(scale + wave * 256 + 32) * tile;
                }
                hold(part[now]);
                wgmma_fence();
#pragma unroll
                for (u32 q = 0; q < 4; q++)
                    wgmma(part[now], from_a + wave * (64 * 128 / 16) + 2 * q, from_b + atom * (C::ATOM * 128 / 16) + 2 * q, q > 0);
                wgmma_commit();
                if (TOGETHER) {
                    low[now] = rows[wave][0] * tile;
                    high[now] = rows[wave][1] * tile;
                }
            }
            if (i + 1 >= C::DEPTH) {
                const u32 j = i + 1 - C::DEPTH, done = j % C::DEPTH, running = i < ALL ? C::DEPTH - 1 : ALL + C::DEPTH - 2 - i;
                if (running == 0) wgmma_wait<0>();
                else if (running == 1) wgmma_wait<1>();
                else if (running == 2) wgmma_wait<2>();
                else wgmma_wait<3>();
                hold(part[done]);
                if (j % EACH == EACH - 1) {
                    // One stage back for each k-block that is begun and not done.
                    const u32 back = (i < ALL ? i / EACH : BLOCKS - 1) - j / EACH + 1;
                    give_back(ring.stage >= back ? ring.stage - back : ring.stage + C::STAGES - back);
                }
                float (&to)[PIECE] = sum[j % EACH / C::ATOMS][j % C::ATOMS];
#pragma unroll
                for (u32 e = 0; e < PIECE; e += 4) {
                    if (!SCALED) {
#pragma unroll
                        for (u32 c = e; c < e + 4; c++) to[c] = __fadd_rn(to[c], part[done][c]);
                        continue;
                    }
                    to[e] = __fmaf_rn(low[done], part[done][e], to[e]);
                    to[e + 1] = __fmaf_rn(low[done], part[done][e + 1], to[e + 1]);
                    to[e + 2] = __fmaf_rn(high[done], part[done][e + 2], to[e + 2]);
                    to[e + 3] = __fmaf_rn(high[done], part[done][e + 3], to[e + 3]);
                }
            }
        }
    }

    // What the producer says with the first stage of a tile.
    __device__ __forceinline__ Sm90Tile next() {
        barrier_wait(shared + C::FULL + 8 * ring.stage, ring.parity);
        const uint4 work = shared_vector(shared + C::WORK + 16 * ring.stage);
        __syncwarp();
        return {work.x, work.y, (int)work.z, work.w};
    }

    // The stages of a tile of which the warpgroup has no row.
    __device__ __forceinline__ void pass(u32 blocks) {
        for (u32 block = 0; block < blocks; block++) {
            barrier_wait(shared + C::FULL + 8 * ring.stage, ring.parity);
            __syncwarp();  // no lane may still wait for a phase that another has let pass
            give_back(ring.stage);
            ring.advance();
        }
    }
};

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

template <class C, bool GROUPED> __device__ __forceinline__ void sm90_multiply(const Sm90Problem& p, u32 shared, u32 group) {
    const u32 blocks = (p.k + 127) / 128, warp = threadIdx.x / 32 % 4;
    const u32 down = C::DOWN > 1 ? group : 0, across = C::DOWN > 1 ? 0 : group;
    const u32 row = down * C::TALL, col = across * C::WIDE, slab = shared + C::SLAB + (4 * group + warp) * C::SLAB_BYTES;
    Sm90Math<C> math(shared, down, across);
    // Counted, as the compiler knows then that all lanes go the same way: it keeps the ring and all descriptors in uniform registers. With a
    // loop that ends as shared memory says it moved each descriptor there between two products.
    const u32 tiles = Sm90Walk<C, GROUPED>::tiles(p);
    for (u32 i = 0; i < tiles; i++) {
        const Sm90Tile tile = math.next();
        if ((int)row >= tile.rows || tile.col + col >= p.n) {
            math.pass(blocks);
            continue;
        }
        if (C::SCALES == SCALES_OUTER || !p.plain) sm90_prefetch<C>(p, tile, row + 16 * warp, col);
        Sm90Sums<C> sum;
#pragma unroll
        for (u32 w = 0; w < C::WAVES; w++)
#pragma unroll
            for (u32 a = 0; a < C::ATOMS; a++)
#pragma unroll
                for (u32 e = 0; e < C::ATOM / 2; e++) sum[w][a][e] = 0.0f;
#ifdef SCALED_GEMM_STAMPS
        if (threadIdx.x == 0) loop_cycles -= (u32)clock();
#endif
        u32 block = 0;
        for (; block + C::UNROLL <= blocks; block += C::UNROLL) math.template multiply<C::UNROLL>(sum, block);
        for (; block < blocks; block++) math.template multiply<1>(sum, block);
#ifdef SCALED_GEMM_STAMPS
        if (threadIdx.x == 0) loop_cycles += (u32)clock();
#endif
        if (C::SCALES == SCALES_OUTER || !p.plain) {
            sm90_finish<C>(sum, p, tile, row + 16 * warp, col, slab);
            continue;
        }
        if (p.alpha != 1.0f)
#pragma unroll
            for (u32 w = 0; w < C::WAVES; w++)
#pragma unroll
                for (u32 a = 0; a < C::ATOMS; a++)
#pragma unroll
                    for (u32 e = 0; e < C::ATOM / 2; e++) sum[w][a][e] *= p.alpha;
        if (C::STORE == STORE_DIRECT) sm90_store_direct<C>(sum, p, tile, row + 16 * warp, col);
        else sm90_store_staged<C>(sum, p, tile, row + 16 * warp, col, slab);
    }
#ifdef SCALED_GEMM_STAMPS
    if (threadIdx.x % 128 == 0) stamp(p, 1 + group);
#endif
}

template <class C, bool GROUPED>
__device__ __forceinline__ void sm90_block(const TensorMap& a, const TensorMap& b, const Sm90Problem& p) {
    extern __shared__ u8 memory[];
    const u32 shared = (shared_address(memory) + 1023) & ~1023u;
    const u32 group = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);  // the same for all lanes, and known to be
#ifdef SCALED_GEMM_STAMPS
    if (threadIdx.x == 0) stamp(p, 0);
#endif
    if (threadIdx.x == 0) {
#ifdef SCALED_GEMM_BOUNDED_WAITS
        gave_up = 0;
        finished = 0;
#endif
        prefetch_map(a);
        prefetch_map(b);
        // A stage is read by the warps of every warpgroup.
        for (u32 i = 0; i < C::STAGES; i++) {
            barrier_init(shared + C::FULL + 8 * i, 1);
            barrier_init(shared + C::EMPTY + 8 * i, 4 * C::GROUPS * C::CLUSTER);
        }
        barriers_ready();
    }
    if (C::CLUSTER > 1) cluster_sync(); else __syncthreads();
    begin();
    if (group == C::GROUPS) {
        if (C::GROUPS > 1) fewer_registers<40>();
        if (threadIdx.x / 32 == 4 * C::GROUPS) sm90_produce<C, GROUPED>(a, b, p, shared);
#ifdef SCALED_GEMM_BOUNDED_WAITS
        if (threadIdx.x == 128 * C::GROUPS) finished = 1;
        if (threadIdx.x == 128 * C::GROUPS + 32) {
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
        sm90_multiply<C, GROUPED>(p, shared, group);
    }
}

// What the kernels have in common: {A's map, B's map, the problem}.
#define SM90_KERNEL(NAME, C, GROUPED)                                                                                   \
    extern "C" __global__ void __launch_bounds__(C::THREADS, C::RESIDENT)                                               \
    NAME(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ Sm90Problem p) { \
        sm90_block<C, GROUPED>(a, b, p);                                                                                \
    }

#define SM90_CONFIG(NAME, SCALES, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES)       \
    using Config_##NAME = Sm90Config<ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, SCALES>;  \
    static_assert(Config_##NAME::SHARED == BYTES, "dynamic shared memory, as src/gpu/kernels/sm90.rs asks for it");

#ifndef SCALED_GEMM_STAMPS
static_assert(sizeof(Sm90Problem) == 152 && sizeof(TensorMap) == 128, "as src/gpu/kernels/sm90.rs has them");
#endif
