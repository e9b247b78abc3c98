// Products on Hopper of E5M2 codes (A) and E4M3 codes (B).
#define WGMMA_TYPES "e5m2.e4m3"
#define SM90_TYPES e5m2_e4m3
#include "gemm/sm90_e5m2.cuh"
