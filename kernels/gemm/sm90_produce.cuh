// The product for Hopper (sm90.cuh): the tiles of a block, the ring of stages, and the warps that fill it.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "gemm/groups.cuh"
#include "gemm/pipeline.cuh"
#include "gemm/sm90_config.cuh"

// The tiles of a block, in order, for the producer warp, which tells the others. Groups are walked 32 at a time, one in each lane: no
// memory is asked for, empty ones cost nothing, and any number of them will do.
template <class C, u32 GROUPED> struct Sm90Walk {
    const Sm90Problem& p;
    u32 unit;  // the tile of a block, or those of a pair
    u32 first_group, base, end, upto, units, start, count, largest;

    __device__ __forceinline__ Sm90Walk(const Sm90Problem& p) : p(p) {
        unit = blockIdx.x / C::CLUSTER;
        if (GROUPED) {
            first_group = 0;
            end = 0;
            largest = 0;
            if (p.groups) load_groups();
        }
    }

    __device__ __forceinline__ static u32 across(const Sm90Problem& p) {
        constexpr u32 UNIT = C::SHARE == SHARE_A ? 2 * C::OUT_COLS : C::OUT_COLS;
        return (p.n + UNIT - 1) / UNIT;
    }

    __device__ __forceinline__ static u32 down(u32 rows) {
        return (rows + C::ROWS - 1) / C::ROWS;
    }

    // The same of a group: of one along k all of D's, if it has any of k.
    __device__ __forceinline__ static u32 units_of(const Sm90Problem& p, u32 count) {
        if (GROUPED == GROUPS_OF_K) return count > 0 ? down(p.m) * across(p) : 0;
        return down(count) * across(p);
    }

    // See groups.cuh.
    __device__ __forceinline__ static void load_32(const Sm90Problem& p, u32 first, u32& largest, u32& start, u32& count) {
        constexpr bool OF_K = GROUPED == GROUPS_OF_K;
        load_32_groups<OF_K ? 128 : 4>(p, OF_K ? p.k : p.m, first, largest, start, count);
    }

    // How many tiles the block has. All lanes of a warp together.
    __device__ __forceinline__ static u32 tiles(const Sm90Problem& p) {
        u32 all = down(p.m) * across(p);
        if (GROUPED) {
            all = 0;
            u32 largest = 0;
            for (u32 g = 0; g < p.groups; g += 32) {
                u32 start, count;
                load_32(p, g, largest, start, count);
                all += units_of(p, count);
            }
#pragma unroll
            for (u32 step = 16; step > 0; step /= 2) all += __shfl_xor_sync(0xFFFFFFFFu, all, step);
            all = __shfl_sync(0xFFFFFFFFu, all, 0);  // the same for all lanes, and known to be
        }
        const u32 first = blockIdx.x / C::CLUSTER, step = gridDim.x / C::CLUSTER;
        return all > first ? (all - first - 1) / step + 1 : 0;
    }

    __device__ __forceinline__ void load_groups() {
        load_32(p, first_group, largest, start, count);
        units = units_of(p, count);
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
            if (GROUPED == GROUPS_OF_K) {
                tile.first_block = row / 128;
                tile.blocks = (rows + 127) / 128;
                row = tile.group * p.m;
                rows = p.m;
            }
        } else if (unit >= down(p.m) * across(p)) {
            return false;
        }
        // Bands of `raster` tiles along m, each walked along n: what the blocks of a moment read stays in L2. A division is 130 cycles before the first copy: in the first band, and of heights that are powers of two, there is none.
        const u32 band_units = p.raster * across(p);
        u32 band = 0, in_band = inside;
        if (inside >= band_units) {
            band = inside / band_units;
            in_band -= band * band_units;
        }
        const u32 height = min(p.raster, down(rows) - band * p.raster);
        u32 x;
        if ((height & (height - 1)) == 0) x = in_band >> (31 - __clz(height));
        else x = in_band / height;
        const u32 y = band * p.raster + in_band - x * height;
        if (C::SHARE == SHARE_A) x = 2 * x + cluster_rank();
        tile.row = row + y * C::ROWS;
        tile.col = x * C::OUT_COLS;
        tile.rows = (int)rows - (int)(y * C::ROWS);
        skip();
        return true;
    }

    __device__ __forceinline__ void skip() { unit += gridDim.x / C::CLUSTER; }
};

// Of groups memory tells which tile is the first, that the kernel before may write.
template <class C, u32 GROUPED> __device__ __forceinline__ constexpr bool sm90_early() { return C::EARLY && GROUPED == GROUPS_NONE; }

// Where a warp is in the ring of stages.
template <class C> struct Sm90Ring {
    u32 stage, parity;
    __device__ __forceinline__ void advance() {
        stage = stage == C::STAGES - 1 ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

// The part of k of a tile that the block takes, in blocks of 128.
struct Sm90Range {
    u32 first, end;
};
template <class C, u32 GROUPED> __device__ __forceinline__ Sm90Range sm90_range(const Sm90Problem& p, const Sm90Tile& tile) {
    if (GROUPED == GROUPS_OF_K) return {tile.first_block, tile.first_block + tile.blocks};
    const u32 blocks = (p.k + 127) / 128;
    if (C::SPLIT == 1) return {0, blocks};
    const u32 rank = cluster_rank();
    return {rank * blocks / C::SPLIT, (rank + 1) * blocks / C::SPLIT};
}

// The first row of A in a tile, and of B in those of its group. Groups of k share both.
template <u32 GROUPED> __device__ __forceinline__ u32 sm90_row_of_a(const Sm90Problem& p, const Sm90Tile& tile) {
    return GROUPED == GROUPS_OF_K ? tile.row - tile.group * p.m : tile.row;
}
template <u32 GROUPED> __device__ __forceinline__ u32 sm90_group_row(const Sm90Problem& p, const Sm90Tile& tile) {
    return GROUPED == GROUPS_OF_ROWS ? tile.group * p.group_b : 0;
}

// Where 128x128 scales of B's tile begin, and how much further those of the second matrix or, of a tile of D in two tiles of scales, of the next; beyond the last, of that one.
struct Sm90ScalesOfB {
    const float* first;
    u64 next;
};
template <class C, u32 GROUPED> __device__ __forceinline__ Sm90ScalesOfB sm90_scales_of_b(const Sm90Problem& p, const Sm90Tile& tile) {
    const u32 last_tile = (p.n + 127) / 128 - 1;
    return {p.scales_b + (u64)(min(tile.col / 128, last_tile) + (GROUPED == GROUPS_OF_ROWS ? tile.group * p.group_tiles : 0)) * p.pitch_b,
            (u64)(C::PARTS > 1 ? p.n / 128 : tile.col / 128 < last_tile ? 1 : 0) * p.pitch_b};
}

// The first tile of a block, if it has one, where it is known early: before all of the block is ready, and the kernel before has ended.
struct Sm90First {
    Sm90Tile tile;
    bool any;
};
template <class C, u32 GROUPED> __device__ __forceinline__ Sm90First sm90_first(const Sm90Problem& p) {
    Sm90Walk<C, GROUPED> walk(p);
    Sm90First first;
    first.any = walk.next(first.tile);
    return first;
}

// The tiles of a block, one after the other: f of each; of those whose first is known early that one is `first`. All lanes of a warp together.
template <class C, u32 GROUPED, class F> __device__ __forceinline__ void sm90_each_tile(const Sm90Problem& p, const Sm90First& first, const F& f) {
    Sm90Walk<C, GROUPED> walk(p);
    Sm90Tile tile = first.tile;
    if constexpr (sm90_early<C, GROUPED>()) {
        walk.skip();
        for (bool more = first.any; more; more = walk.next(tile)) f(tile);
    } else {
        // In one place: what finds a tile is 240 instructions.
        while (walk.next(tile)) f(tile);
    }
}

// What a copy finds outside of its matrix it fills with zeros at 16 bytes a cycle, a quarter of the rate of what it reads: a tile that was half outside took 1.4 times as long as a whole one
// (observed: H100, 2026-11). So where a tile ends outside, boxes of `a_edge` and `b_edge` end with the matrix; what a stage has behind them is of an earlier tile or kernel, and its products are no
// part of D. Of groups of rows those of A end where the next group begins. Codes have one scale for all columns of a tile: there zeros are what is needed.
template <class C, u32 GROUPED> struct Sm90Boxes {
    static constexpr bool EDGE_A = GROUPED != GROUPS_OF_ROWS, EDGE_B = C::END != END_CODES && C::PARTS == 1;
    const Sm90Problem& p;
    const Sm90Tile& tile;
    const TensorMap &a, &b, &second;
    u32 shared, rank, row, box_row, rows, box_rows, cols, b_row;

    __device__ __forceinline__ static u32 inside(u32 from, u32 end, u32 most) { return from < end ? min(end - from, most) : 0; }

    __device__ __forceinline__ Sm90Boxes(const TensorMap& whole_a, const TensorMap& whole_b, const TensorMap& a_edge, const TensorMap& b_edge, const Sm90Problem& p, const Sm90Tile& tile, u32 shared)
        : p(p), tile(tile), a(box_rows_of(p, tile) < C::A_BOX ? a_edge : whole_a), b(cols_of(p, tile) < C::COLS ? b_edge : whole_b), second(whole_b), shared(shared) {
        rank = rank_of();
        row = sm90_row_of_a<GROUPED>(p, tile);
        box_row = row + rank * C::A_BOX;
        rows = EDGE_A ? inside(row, p.m, C::ROWS) : C::ROWS;
        box_rows = box_rows_of(p, tile);
        cols = cols_of(p, tile);
        b_row = sm90_group_row<GROUPED>(p, tile) + tile.col;
    }

    __device__ __forceinline__ static u32 rank_of() { return C::SHARE == SHARE_A ? cluster_rank() : 0; }
    __device__ __forceinline__ static u32 box_rows_of(const Sm90Problem& p, const Sm90Tile& tile) {
        return EDGE_A ? inside(sm90_row_of_a<GROUPED>(p, tile) + rank_of() * C::A_BOX, p.m, C::A_BOX) : C::A_BOX;
    }
    __device__ __forceinline__ static u32 cols_of(const Sm90Problem& p, const Sm90Tile& tile) { return EDGE_B ? inside(tile.col, p.n, C::COLS) : C::COLS; }

    // Asks for a k-block's, and tells the math warps of the tile where it is the first. By one lane. `more`: bytes that it asks for behind that.
    __device__ __forceinline__ void ask(u32 stage, u32 block, u32 first, u32 more) const {
        const u32 full = shared + C::FULL + 8 * stage, to_a = shared + stage * C::A_BYTES, to_b = shared + C::B + stage * C::B_BYTES;
        if (block == first) shared_store(shared + C::WORK + 16 * stage, {tile.row, tile.col, (u32)tile.rows, GROUPED == GROUPS_OF_K ? tile.blocks : tile.group});
        barrier_expect(full, 128 * (rows + cols) + more);
        if (C::SHARE != SHARE_A) copy_box(to_a, a, 128 * block, row, full);
        else if (box_rows > 0) copy_box_to(to_a + rank * (C::A_BYTES / 2), a, 128 * block, box_row, full, 3);
        // Of a pair's second tile that lies outside, nothing.
        if (!EDGE_B || cols > 0) copy_box(to_b, b, 128 * block, b_row, full);
        if (C::PARTS > 1) copy_box(to_b + C::B_BYTES / 2, second, 128 * block, b_row + p.n, full);
    }
};

// Fills the stages: one warp asks for operands, and another one for scales of k-blocks, in one loop that both have in common; or one for both (ONE_PRODUCER). Requests of a chosen lane cost it little (`elected`), and the engine, which takes 65 cycles for
// each, has the time for them: with 1x128 scales copied by 32 lanes past the engine tiles of 128 rows took 1.01 to 1.04 of the time, with those of four k-blocks by one box 1.00 to 1.03, and without any of 128x128 scales as long (observed: H200, 2026-11,
// benches/record/2026-11-30-nvidia-h200-requests).
template <class C, u32 GROUPED>
__device__ __forceinline__ void sm90_produce(const TensorMap& a, const TensorMap& b, const TensorMap& a_edge, const TensorMap& b_edge, const Sm90Problem& p, u32 shared, bool of_scales, const Sm90First& first_tile) {
    constexpr bool SCALED = C::SCALES != SCALES_OUTER, VECTOR = C::OF_COLUMNS, TILED_A = C::SCALES == SCALES_BLOCK_A;
    static_assert(!TILED_A || GROUPED == GROUPS_NONE, "rows of a group may begin inside a tile of 128x128 scales");
    Sm90Ring<C> ring = {0, 1};
    sm90_each_tile<C, GROUPED>(p, first_tile, [&](const Sm90Tile& tile) {
        const auto [first, end] = sm90_range<C, GROUPED>(p, tile);
        const Sm90Boxes<C, GROUPED> boxes(a, b, a_edge, b_edge, p, tile, shared);
        const u32 row = boxes.row, group_row = sm90_group_row<GROUPED>(p, tile);
        // Of a tile without rows, whichever: its sums are not stored.
        const u32 scale_row = TILED_A ? row / 128 : SCALED ? min(row, p.pitch_a - 4) : 0;
        const u32 scale_bytes = TILED_A ? 16 * C::TILES_A * C::TWICE_A : SCALED ? min(C::ROWS, p.pitch_a - scale_row) * 4 : 0;
        // Scales of all groups' rows of B lie side by side, as those rows do.
        const u32 scale_col = VECTOR ? min(group_row + tile.col, p.pitch_b - 4) : 0;
        const u32 scale_bytes_b = VECTOR ? min(C::COLS, p.pitch_b - scale_col) * 4 : SCALED ? 16 * C::SCALE_PARTS : 0;
        const float* scales_a = TILED_A ? p.scales_a + (u64)scale_row * p.pitch_a : p.scales_a + scale_row;
        const Sm90ScalesOfB of_tile = sm90_scales_of_b<C, GROUPED>(p, tile);
        const float* scales_b = VECTOR ? p.scales_b + scale_col : of_tile.first;
        // Of 128x128 scales of A, those below: of a tile without rows in D, those of the one above.
        const u32 below = scale_row < (p.m - 1) / 128 ? p.pitch_a : 0;
        const auto ask_scales = [&](u32 block) {
            const u32 full = shared + C::FULL + 8 * ring.stage;
            const u32 to_a = shared + C::SCALES_A + ring.stage * C::SCALES_A_BYTES, to_b = shared + C::SCALES_B + ring.stage * C::SCALES_B_BYTES;
            if (!C::ONE_PRODUCER) barrier_expect(full, scale_bytes + scale_bytes_b);
            if (TILED_A) {
                // 128x128 scales of four k-blocks, as copies have no less than 16 bytes.
                const float* of_tiles = scales_a + block / 4 * 4;
#pragma unroll
                for (u32 i = 0; i < C::TILES_A * C::TWICE_A; i++) copy_bytes(to_a + 16 * i, of_tiles + (i < C::TWICE_A ? 0 : below), 16, full);
            } else {
                copy_bytes(to_a, scales_a + (u64)block * p.pitch_a, scale_bytes, full);
            }
            const float* of_block = VECTOR ? scales_b + (u64)block * p.pitch_b : scales_b + block / 4 * 4;
            copy_bytes(to_b, of_block, VECTOR ? scale_bytes_b : 16, full);
            if (C::SCALE_PARTS > 1 && !VECTOR) copy_bytes(to_b + 16, of_block + of_tile.next, 16, full);
        };
        for (u32 block = first; block < end; block++) {
            barrier_wait(shared + C::EMPTY + 8 * ring.stage, ring.parity);
            if (elected()) {
                if (C::ONE_PRODUCER || !of_scales) boxes.ask(ring.stage, block, first, C::ONE_PRODUCER ? scale_bytes + scale_bytes_b : 0);
                if (SCALED && (C::ONE_PRODUCER || of_scales)) ask_scales(block);
            }
            ring.advance();
        }
    });
    if (of_scales) return;
    for (u32 i = 0; i < C::STAGES; i++) {
        barrier_wait(shared + C::EMPTY + 8 * ring.stage, ring.parity);
        ring.advance();
    }
}
