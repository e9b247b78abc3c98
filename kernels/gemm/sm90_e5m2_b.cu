// Products on Hopper of E4M3 codes (A) and E5M2 codes (B).
#define WGMMA_TYPES "e4m3.e5m2"
#define SM90_TYPES e4m3_e5m2
#include "gemm/sm90_e5m2.cuh"
