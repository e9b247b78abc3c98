// Products on Hopper of E4M3 codes with 1x128 scales (A) and 128x128 scales (B) into BF16 or FP32: gemm_fp8_block_<configuration>,
// and gemm_fp8_block_<configuration>_grouped for groups of rows, each with a B of its own.
#include "gemm/sm90.cuh"

// What these have in common: {A's map, B's map, the problem}.
#define SM90_KERNEL(NAME, C, GROUPED)                                                                                   \
    extern "C" __global__ void __launch_bounds__(C::THREADS, C::RESIDENT)                                               \
    NAME(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, const __grid_constant__ Sm90Problem p) { \
        sm90_block<C, GROUPED>(a, b, p);                                                                                \
    }

#define SM90(NAME, ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT, BYTES)                      \
    using Config_##NAME = Sm90Config<ROWS, COLS, GROUPS, SHARE, STAGES, ATOM, DEPTH, UNROLL, STORE, RESIDENT>;          \
    static_assert(Config_##NAME::SHARED == BYTES, "dynamic shared memory, as src/gpu/kernels/sm90.rs asks for it");     \
    SM90_KERNEL(gemm_fp8_block_##NAME, Config_##NAME, false)                                                            \
    SM90_KERNEL(gemm_fp8_block_##NAME##_grouped, Config_##NAME, true)

static_assert(sizeof(Sm90Problem) == 96 && sizeof(TensorMap) == 128, "as src/gpu/kernels/sm90.rs has them");

// The table that Sm90Config in src/gpu/kernels/sm90.rs mirrors; a test there reads these lines. What was measured of them, and of others
// that did not win: benches/record/2026-11-23-nvidia-h200/sm90-kernels.md.
// name, rows, columns, warpgroups, shared operand, stages, atom, depth, unrolled k-blocks, store, residents, shared memory
SM90(256x128, 256, 128, 2, SHARE_A, 4, 128, 1, 8, STORE_DIRECT, 1, 201920)
SM90(128x128, 128, 128, 2, SHARE_A, 6, 128, 1, 8, STORE_STAGED, 1, 217376)
SM90(64x128, 64, 128, 2, SHARE_NONE, 8, 64, 2, 4, STORE_STAGED, 1, 216448)
SM90(64x64, 64, 64, 1, SHARE_NONE, 12, 64, 4, 8, STORE_STAGED, 1, 209472)
SM90(64x64_two, 64, 64, 1, SHARE_NONE, 6, 64, 2, 4, STORE_STAGED, 2, 109344)
