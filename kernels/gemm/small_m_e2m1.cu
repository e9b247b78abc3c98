// Products of at most 64 rows of BF16 or F16 with E2M1 codes and block scales: see small_m_e2m1.cuh for at most 16, small_m_tile.cuh for all.
#include "gemm/small_m_tile.cuh"

#define SMALL_M(block, PAIRS, PARTS, STAGES, FEW, MORE)                                                                          \
    EACH_E2M1_WEIGHTS(SMALL_M_KERNEL, 8, block, PAIRS, PARTS, STAGES, FEW)                                                       \
    EACH_E2M1_WEIGHTS(SMALL_M_KERNEL, 16, block, PAIRS, PARTS, STAGES, MORE)

// name, times 16 rows, warps, stages, blocks on a multiprocessor with at most 8 rows of A and with more. Mirror of `SmallMBlock` in src/gpu/kernels.
SMALL_M(four, 2, 4, 2, 6, 4)
SMALL_M(eight, 2, 8, 2, 3, 2)
SMALL_M(sixteen, 2, 16, 1, 1, 1)
SMALL_M(narrow, 1, 16, 2, 2, 1)

// As a link of a chain with few steps, which are all on their way before its wait, or all but one (H200, 2026-11, the record of links planned for chains). Mirror of `LINK_STAGES` in src/gpu/kernels/small_m_chain.rs.
#define SMALL_M_LINK(...) SMALL_M(__VA_ARGS__)
SMALL_M_LINK(four_3, 2, 4, 3, 6, 4)

#define SMALL_M_TILES(...) EACH_E2M1_WEIGHTS(SMALL_M_TILE_KERNEL, __VA_ARGS__)

// columns, name, stages, blocks on a multiprocessor. Mirror of `SmallMBlock`, too.
SMALL_M_TILES(16, tile, 3, 4)
SMALL_M_TILES(32, tile, 3, 4)
SMALL_M_TILES(48, tile, 3, 3)
SMALL_M_TILES(64, tile, 3, 3)
