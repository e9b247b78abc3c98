// Products of one row of BF16 or F16 with E2M1 codes and block scales: see small_m_one_row.cuh. Sums have the order of small_m_e2m1.cu and small_m_repacked.cu.
#include "gemm/small_m_one_row.cuh"
#include "gemm/small_m_tile.cuh"

#define SMALL_M(...) EACH_E2M1_WEIGHTS(SMALL_M_ONE_ROW_KERNEL, __VA_ARGS__)

// name, times 16 rows, warps, steps of codes on their way, blocks on a multiprocessor by registers. Mirror of `TABLE` in src/gpu/kernels/small_m_one_row.rs.
SMALL_M(four, 2, 4, 2, 6)
SMALL_M(four, 2, 4, 4, 6)
SMALL_M(eight, 2, 8, 2, 3)
SMALL_M(narrow, 1, 16, 2, 2)

#define SMALL_M_REPACKED(...) EACH_REPACKED_WEIGHTS(SMALL_M_ONE_ROW_KERNEL, __VA_ARGS__)

// The same of repacked codes: mirror of `REPACKED` there.
SMALL_M_REPACKED(four, 2, 4, 2, 6)
SMALL_M_REPACKED(four, 2, 4, 4, 6)
SMALL_M_REPACKED(eight, 2, 8, 2, 3)
SMALL_M_REPACKED(eight, 2, 8, 3, 3)

// Where the row begins: mirror of what a test there says of its bytes.
template <u32 PAIRS, u32 PARTS, u32 STAGES> constexpr u32 ROW = SmallMOneRowConfig<Bf16, E2m1Weights::NVFP4, PAIRS, PARTS, STAGES>::ROW;
static_assert(ROW<2, 4, 2> == 24704 && ROW<2, 4, 4> == 45184 && ROW<2, 8, 2> == 49280 && ROW<2, 8, 3> == 69760 && ROW<1, 16, 2> == 49280, "those of OneRow::by");
