// Products on Hopper of E4M3 codes with 128x128 scales (A) and 1x128 scales (B), in the configurations that other codes have: gemm_fp8_block_a_<configuration>.
#include "gemm/sm90.cuh"

#define SM90(NAME, ...)                                        \
    SM90_CONFIG_BLOCK_A(NAME, __VA_ARGS__)                     \
    SM90_KERNEL(gemm_fp8_block_a_##NAME, Config_##NAME, GROUPS_NONE)

#define SM90_E4M3(...)
#define SM90_SPLIT(...)

#include "gemm/sm90_table.cuh"
