// Gated MLPs and activations, cast without being stored.
#include "cast/cast_rows.cuh"
#include "cast/cast_tile.cuh"
#include "fused/produced.cuh"

// In groups of columns, where there are many rows and all is aligned: gated MLPs and what has no gate have kernels of their own, which take a
// tenth less than one for both, and gated MLPs without clamp and weights 3 to 6 % less than those that have them. There are never as many
// threads as 288, which asks for 72 registers: four blocks of 7168 columns fit (observed: H200, 2026-11).
#if __CUDA_ARCH__ == 900
constexpr u32 GATED_THREADS = 288;
#else
constexpr u32 GATED_THREADS = 256;
#endif
#define CAST_GROUPS_MANY(KINDS, name, T, THREADS, BLOCKS)                                                                       \
    CAST_GROUPS(e4m3_##KINDS##_##name, (Produced<T, true, KINDS>), Line<4>, E4M3, THREADS, BLOCKS)                            \
    CAST_GROUPS(e2m1_##KINDS##_##name, (Produced<T, true, KINDS>), Line<4>, E2M1, THREADS, BLOCKS)
CAST_GROUPS_MANY(bare, bf16, Bf16, GATED_THREADS, 3)
CAST_GROUPS_MANY(bare, f16, F16, 256, 3)
CAST_GROUPS_MANY(bare, f32, float, 256, 2)
CAST_GROUPS_MANY(gated, bf16, Bf16, GATED_THREADS, 3)
CAST_GROUPS_MANY(gated, f16, F16, 256, 3)
CAST_GROUPS_MANY(gated, f32, float, 256, 2)
CAST_GROUPS_MANY(single, bf16, Bf16, GATED_THREADS, 3)
CAST_GROUPS_MANY(single, f16, F16, GATED_THREADS, 3)
CAST_GROUPS_MANY(single, f32, float, 256, 3)
// FP32 in as many registers as three blocks have: with four, sm_120 spilled.
#define PRODUCED_FEW(name, T, ALIGNED, ...) CAST_GROUPS_BOTH(few_produced_##name, (Produced<T, ALIGNED>), Square<1>, 256, (sizeof(T) == 4 ? 3 : 4))
FOR_EACH_TYPE(PRODUCED_FEW, )
FOR_EACH_TYPE(PRODUCED, CAST_ROW, 0, 256)
FOR_EACH_TYPE(PRODUCED, CAST_ROW, 4, 256)
FOR_EACH_TYPE(PRODUCED, CAST_PATCH, cast_tile)

// Per channel.
#if __CUDA_ARCH__ == 900
template <class T, bool ALIGNED, int KINDS> constexpr u32 patch_blocks<Rounded<T, ALIGNED, KINDS>> = sizeof(T) == 4 ? 2 : KINDS == bare ? 4 : 3;
#endif
FOR_EACH_TYPE(UNGATED, CAST_PATCH, cast_channel)
FOR_EACH_TYPE(ROUNDED, CAST_PATCH, cast_channel)
CAST_PATCH(bare_bf16, (Rounded<Bf16, true, bare>), cast_channel)
