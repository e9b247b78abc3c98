// Configurations of the product for Hopper (sm90.cuh), its problem, and what is known of a tile.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/types.cuh"

// What a cluster of two blocks shares: nothing (no cluster), or A (neighbours along n). Shared B, of neighbours along m, was never faster.
constexpr u32 SHARE_NONE = 0;
constexpr u32 SHARE_A = 1;

// What multiplies codes: with each k-block 1x128 scales of A and 128x128 scales of B, 1x128 scales of both, or 128x128 scales of A and 1x128 scales of B; or scales of rows or
// whole matrices, at the end.
constexpr u32 SCALES_BLOCK = 0;
constexpr u32 SCALES_OUTER = 1;
constexpr u32 SCALES_VECTOR = 2;
constexpr u32 SCALES_BLOCK_A = 3;

// How a warp writes its part of a BF16 or F16 D: from registers, or through shared memory, or its warpgroup through the copy engine, which writes memory while the next tile is
// multiplied. FP32 goes through shared memory.
constexpr u32 STORE_DIRECT = 0;
constexpr u32 STORE_STAGED = 1;
constexpr u32 STORE_BOXES = 2;

// What becomes of the sums: numbers of D's type, after alpha, bias, activation and residual; E4M3 codes with 1x128 scales of what stands before a
// residual; or of two matrices, whose rows lie one behind the other in B, SwiGLU: numbers or codes. Or BF16 numbers as they are (Sm90Problem's `plain` and alpha 1), in a kernel that has no
// other end: it takes 0.87 to 1.02 of the time of one that has them all and does the same, in tiles of 256 x 128 0.97 to 0.99 (observed: H100, 2026-11). Or FP32 numbers as they are, stored or added to D: what that saves was not measured alone.
constexpr u32 END_NUMBERS = 0;
constexpr u32 END_CODES = 1;
constexpr u32 END_SWIGLU = 2;
constexpr u32 END_PLAIN = 3;
constexpr u32 END_FP32 = 4;

// What groups share among themselves: nothing, D being one product; the rows of A and D, each group having a B of its own; or k, each having a D of its own.
constexpr u32 GROUPS_NONE = 0;
constexpr u32 GROUPS_OF_ROWS = 1;
constexpr u32 GROUPS_OF_K = 2;

template <u32 ROWS_, u32 COLS_,  // rows of A and of B in the tile of a block; of B 64, 128, 160 or 192, with a plain end also 32, 80, 96 or 144, of SwiGLU twice 128
          u32 GROUPS_,           // math warpgroups, side by side along rows, or along columns where rows are 64
          u32 SHARE_, u32 STAGES_,
          u32 ATOM_,      // columns of one product, likewise
          u32 DEPTH_,     // products of a warpgroup that run at once; 1: each is waited for
          u32 UNROLL_,    // k-blocks of the loop's body
          u32 STORE_,
          u32 RESIDENT_,  // blocks on a multiprocessor
          u32 SCALES_, u32 END_ = END_NUMBERS,
          u32 SPLIT_ = 1>  // blocks of a cluster that divide k among themselves, of one tile
struct Sm90Config {
    static constexpr u32 ROWS = ROWS_, COLS = COLS_, GROUPS = GROUPS_, SHARE = SHARE_, STAGES = STAGES_, ATOM = ATOM_, DEPTH = DEPTH_;
    static constexpr u32 UNROLL = UNROLL_, STORE = STORE_, RESIDENT = RESIDENT_, SCALES = SCALES_, END = END_, SPLIT = SPLIT_;
    static constexpr u32 DOWN = ROWS >= 64 * GROUPS ? GROUPS : 1, ACROSS = GROUPS / DOWN;
    static constexpr u32 TALL = ROWS / DOWN, WIDE = COLS / ACROSS;  // of a warpgroup
    static constexpr u32 WAVES = TALL / 64, ATOMS = WIDE / ATOM;
    // Matrices in B, of each of which a tile and a warpgroup take equal parts; columns of D in them, and atoms.
    static constexpr u32 PARTS = END == END_SWIGLU ? 2 : 1, OUT_COLS = COLS / PARTS, OUT_WIDE = WIDE / PARTS, OUT_ATOMS = ATOMS / PARTS;
    static constexpr u32 THREADS = 128 * (GROUPS + 1), SHARERS = SHARE == SHARE_NONE ? 1 : 2, CLUSTER = SHARERS * SPLIT;
    static constexpr u32 A_BOX = SHARE == SHARE_A ? ROWS / 2 : ROWS;  // rows that a copy brings
    // For each warp 16 x 64 of D in BF16, or 16 x 32 of sums in FP32; a warpgroup's, or all of its D in BF16, or nothing where that is stored directly.
    static constexpr u32 SLAB_BYTES = 2048, SLABS_BYTES = STORE == STORE_BOXES ? TALL * OUT_WIDE * 2 : STORE == STORE_DIRECT && END == END_PLAIN ? 0 : 4 * SLAB_BYTES;
    // Tiles of 128x128 scales along n that a tile lies in at the most: they meet at multiples of CUT columns; inside of an atom that is longer.
    static constexpr u32 CUT = OUT_COLS % 128 == 0 ? 128 : OUT_COLS % 64 == 0 ? 64 : OUT_COLS % 32 == 0 ? 32 : 16;
    static constexpr u32 SPAN = (128 - CUT + OUT_COLS + 127) / 128, SCALE_PARTS = PARTS * SPAN;
    static_assert(SPAN <= 2, "a tile lies in two tiles of scales at the most");
    static constexpr bool CROSSED = SPAN > 1 && ATOM > CUT && SCALES == SCALES_BLOCK;
    // Whether tiles whose D needs nothing but to be stored have a loop of their own.
    static constexpr bool AS_NUMBERS = END == END_NUMBERS || END == END_PLAIN || END == END_FP32;
    static constexpr bool PLAIN_LOOP = STORE == STORE_BOXES && COLS == 128 && SCALES == SCALES_BLOCK && AS_NUMBERS;
    // Shared memory: stages of A, of B; slabs; scales of A, what to do, scales of B, of a stage each; barriers. Of 128x128 scales there are 16 bytes, those of four k-blocks, for each tile of them.
    static constexpr u32 A_BYTES = ROWS * 128, B_BYTES = COLS * 128, SCALES_A_BYTES = ROWS * 4, SCALES_B_BYTES = COLS * 4;
    static constexpr u32 B = STAGES * A_BYTES, SLAB = B + STAGES * B_BYTES;
    static constexpr u32 SCALES_A = SLAB + GROUPS * SLABS_BYTES;
    static constexpr u32 WORK = SCALES_A + STAGES * SCALES_A_BYTES, SCALES_B = WORK + STAGES * 16;
    static constexpr u32 FULL = SCALES_B + STAGES * SCALES_B_BYTES, EMPTY = FULL + 8 * STAGES, SHARED = 1024 + EMPTY + 8 * STAGES;
    // What B's columns are multiplied by is their own. Tiles of 128x128 scales of A that a tile lies in, from the first row of one on: a warpgroup's rows are of one.
    static constexpr bool OF_COLUMNS = SCALES == SCALES_VECTOR || SCALES == SCALES_BLOCK_A;
    static constexpr u32 TILES_A = ROWS > 128 ? 2 : 1;
    // How often their scales lie in a stage: for each half of the rows of an atom, where a warpgroup has more than one. With one number for both halves ptxas keeps sums of the largest
    // tile in other registers from block to block, and spills some (observed: CUDA 13.0).
    static constexpr u32 TWICE_A = WAVES > 1 ? 2 : 1;
    // How many pairs of scales of columns, of a thread's ATOM / 8, the second 64 rows of a warpgroup take from the registers of the first: as many as there are left, which beside 128x128
    // scales of A are none (a register is spilled; observed: CUDA 13.0).
    static constexpr int KEPT = SCALES == SCALES_VECTOR && WAVES == 2 && ATOMS == 1 ? 8 : 0;
    // Whether one warp asks for operands and scales of k-blocks, where two do else: 1.00 to 1.02 of the time, but 0.97 where two blocks are on a multiprocessor (observed: H200, 2026-11).
    static constexpr bool ONE_PRODUCER = SCALES == SCALES_OUTER || RESIDENT > 1;
    // Whether the first tile of a block is known before all of the block is ready: its first copies are asked for 700 cycles earlier, 0.94 to 0.99 of the time of a round and of smaller tiles. Of 1x128 scales on both sides it took 0.96 to 1.06,
    // and of rows' 0.99 to 1.01 (observed: H200, 2026-11).
    static constexpr bool EARLY = SCALES == SCALES_BLOCK;
    // Whether four k-blocks that are left behind the body of the loop have one of their own. Where k is 512 to 1536 that takes, of the time of the same loop without it, 0.96 to 0.99 with 128x128 scales of B, 0.92 to 1.01 with scales of rows and a plain end, and 1.00 to 1.07 with 1x128 scales on both sides (H200, 2026-12). SwiGLU of rows has no registers for it, and of their other ends it was not measured.
    static constexpr bool REST_OF_FOUR = UNROLL > 4 && (SCALES == SCALES_BLOCK || (SCALES == SCALES_OUTER && END == END_PLAIN));
    // Whether the body of the loop goes round the ring whole times: from the first stage on it has 64 instructions for a k-block of 64 columns in the place of 82, 97 for 114 of 128. In tiles of up to 128 rows that alone takes 0.96 to 1.00 of the time with 128x128 scales of B and a plain end, 0.92 to 1.01 with 1x128 scales
    // on both sides, and 0.87 to 1.00 with scales of rows and a plain end (H200, 2026-12; of a k that no body fits in up to 1.07; SwiGLU and codes have no registers for it; other ends, groups and parts of k have it, too, and were not measured). In the largest tile it takes 0.99 to 1.00, but some registers are spilled; of 128x128 scales of A it was not measured.
    static constexpr bool WHOLE_RINGS = UNROLL % STAGES == 0 && ROWS < 256 && SCALES != SCALES_BLOCK_A && AS_NUMBERS;
    static_assert(SCALES != SCALES_BLOCK_A || (ROWS <= 256 && TALL <= 128), "a warpgroup's rows lie in one tile of 128x128 scales");
    // Where an atom of a warpgroup begins in a stage of B, in rows.
    __device__ __forceinline__ static constexpr u32 atom_row(u32 atom) { return atom / OUT_ATOMS * OUT_COLS + atom % OUT_ATOMS * ATOM; }
    static_assert(TALL % 64 == 0 && OUT_WIDE % ATOM == 0 && OUT_WIDE % (END == END_PLAIN ? 16 : 32) == 0 && (STORE == STORE_DIRECT || OUT_WIDE % 64 == 0), "whole atoms");
    static_assert(SPAN == 1 || (ACROSS == 1 && (DEPTH == 1 || !CROSSED)), "a tile lies in two tiles of scales");
    static_assert(AS_NUMBERS || OUT_COLS == 128, "a row of a tile is a group; each part of B has one scale of 128x128");
    static_assert(AS_NUMBERS || SCALES == SCALES_BLOCK || (END == END_SWIGLU && SCALES == SCALES_OUTER), "scales of what is cast");
    static_assert(END != END_FP32 || SCALES == SCALES_VECTOR || SCALES == SCALES_OUTER, "what adds to D itself");
    static_assert(SHARED <= 227 * 1024, "shared memory of a block");
    // Where k is divided: columns of a warpgroup that a block of the cluster ends, in whole stores of 32, or in halves of one where a plain end would else leave the last block half of the others'
    // or less; how many blocks end some, the last of them what is left, and their partial sums in the place of the stages.
    static constexpr u32 WHOLE = (WIDE / SPLIT + 31) / 32 * 32, PART_STEP = END == END_PLAIN && 2 * (WIDE - (WIDE - 1) / WHOLE * WHOLE) <= WHOLE ? 16 : 32;
    static constexpr u32 PART_WIDE = SPLIT == 1 ? WIDE : (WIDE / SPLIT + PART_STEP - 1) / PART_STEP * PART_STEP;
    static constexpr u32 ENDERS = (WIDE + PART_WIDE - 1) / PART_WIDE, LAST_WIDE = WIDE - (ENDERS - 1) * PART_WIDE;
    static constexpr u32 PART_BYTES = 128 * GROUPS * WAVES * PART_WIDE * 2;
    static_assert(SPLIT == 1 || (SHARE == SHARE_NONE && STORE == STORE_DIRECT && AS_NUMBERS && (SPLIT - 1) * PART_BYTES <= SLAB), "as sm90_join has it");
};

// What a block of a cluster that divides k ends of a tile: some columns of each warpgroup.
template <class C, u32 WIDE_> struct Sm90Part : C {
    static constexpr u32 WIDE = WIDE_, OUT_WIDE = WIDE, ATOM = WIDE, ATOMS = 1, OUT_ATOMS = 1;
};

// Mirror of the struct of the same name in src/gpu/kernels/sm90.rs.
struct Sm90Problem {
    u32 m, n, k;            // rows of A in all groups, or of each group's D; columns of D; k in all groups
    u32 raster;             // tiles along m that are walked before the next along n
    const float* scales_a;  // vec128, `pitch_a` apart; SCALES_BLOCK_A: blk128; SCALES_OUTER: of rows, `a_step` apart, or where that is 0 of groups, `pitch_a` apart
    const float* scales_b;  // blk128, `pitch_b` apart, one group after the other; SCALES_VECTOR, SCALES_BLOCK_A: vec128; SCALES_OUTER: likewise
    u32 pitch_a, pitch_b;
    void* d;  // [m][n], rows `stride_d` apart, each aligned to 16 bytes
    u64 stride_d;
    // Groups: rows `starts[g]` (a multiple of 4; of k, of 128) or g * slot_rows, and the next `counts[g]`.
    const i64* starts;
    const i64* counts;
    u32 groups, slot_rows;
    u32 group_b, group_tiles;  // rows of B, and tiles of its scales along n, from one group to the next
    // What follows the sums: see finish.cuh.
    float alpha, beta;
    u32 plain;  // 1: beta is 0, and there is no bias, activation and residual; else 0 (that it is less than 2, Sm90Math takes for granted and the compiler does not know)
    u32 d_type, activation, bias_type, residual_type;
    u32 a_step, b_step;
    u32 group_bias;        // numbers from the bias of a group to that of the next
    const void* bias;      // [n], of each group; null: none
    const void* residual;  // [m][n], rows `stride_residual` apart; null: none
    u64 stride_residual;
    // Of codes: their scales, vec128, `pitch_d` apart, and the rule that makes them. Else null.
    float* scales_d;
    u32 pitch_d;
    ScaleRule rule;
#ifdef SCALED_GEMM_STAMPS
    u64* stamps;  // for benchmarks: for each block start and end, cycles in all and in the loop of the first warpgroup
#endif
};

struct Sm90Tile {
    u32 row, col;  // of D
    int rows;      // of the tile that belong to D; none where negative
    u32 group;
    u32 first_block, blocks;  // of groups of k: the tile's part of it, in blocks of 128
    u32 row_of_a;  // `row`; of groups of k, which share A, without the rows of D of other groups. Known where sums end.
};

// The sums of a warpgroup: waves of 64 rows, atoms of columns, and a thread's part of each.
template <class C> using Sm90Sums = float[C::WAVES][C::ATOMS][C::ATOM / 2];

#ifndef SCALED_GEMM_STAMPS
static_assert(sizeof(Sm90Problem) == 184, "as src/gpu/kernels/sm90.rs has them");
#endif
