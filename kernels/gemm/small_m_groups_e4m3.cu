// Groups of rows of BF16 or F16 with E4M3 codes, on Hopper: see small_m_groups.cuh.
#include "gemm/small_m_groups.cuh"

#define SMALL_M_GROUPS(...) EACH_E4M3_WEIGHTS(SMALL_M_GROUPS_KERNEL, __VA_ARGS__)

// columns, stages, blocks on a multiprocessor. Mirror of the table in src/gpu/kernels/small_m_groups.rs.
SMALL_M_GROUPS(8, 3, 3)
SMALL_M_GROUPS(16, 3, 3)
SMALL_M_GROUPS(32, 3, 3)
SMALL_M_GROUPS(64, 3, 2)
