// Groups of rows of BF16 or F16 with E2M1 codes and block scales, on Hopper: see small_m_groups.cuh.
#include "gemm/small_m_groups.cuh"

#define SMALL_M_GROUPS(...)                                                                                                      \
    EACH_E2M1_WEIGHTS(SMALL_M_GROUPS_KERNEL, __VA_ARGS__)                                                                        \
    EACH_REPACKED_WEIGHTS(SMALL_M_GROUPS_KERNEL, __VA_ARGS__)

// Five blocks of eight columns, for which there are registers, were slower (H200, 2026-11: 1322 us for 1265, 221 experts of 4096 x 7168).
// Nor were 96 columns faster than 64 (2545 us for 2563, eight experts of 4096 x 7168, 1024 rows each).
// columns, stages, blocks on a multiprocessor. Mirror of the table in src/gpu/kernels/small_m_groups.rs.
SMALL_M_GROUPS(8, 3, 4)
SMALL_M_GROUPS(16, 3, 4)
SMALL_M_GROUPS(32, 3, 3)
SMALL_M_GROUPS(64, 3, 2)
