// Products of at most 64 rows of BF16 or F16 with E4M3 codes: see small_m_tile.cuh.
#include "gemm/small_m_tile.cuh"

#define SMALL_M_TILES(...) EACH_E4M3_WEIGHTS(SMALL_M_TILE_KERNEL, __VA_ARGS__)

// columns, name, stages, blocks on a multiprocessor. Mirror of `SmallMBlock` in src/gpu/kernels.
SMALL_M_TILES(8, tile_e4m3, 3, 3)
SMALL_M_TILES(16, tile_e4m3, 3, 3)
SMALL_M_TILES(32, tile_e4m3, 3, 3)
SMALL_M_TILES(64, tile_e4m3, 3, 2)
