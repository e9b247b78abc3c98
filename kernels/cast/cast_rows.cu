// Casts of plain matrices and of codes in groups along rows.
#include "cast/cast_rows.cuh"

// Vectors of a thread, along a row and in a square: as many as registers hold where instructions are the limit.
template <class S> constexpr bool is_narrow = sizeof(S) == 16 && alignof(S) == 16;
template <class S> constexpr int e2m1_vectors = is_narrow<S> ? 8 : 4;
// Blocks of a multiprocessor that fit without spilling.
#if __CUDA_ARCH__ == 900
template <class S> constexpr u32 e2m1_blocks = is_narrow<S> ? 5 : 3;
template <> constexpr u32 e2m1_blocks<Plain<Bf16, true>> = 7;
template <> constexpr u32 e2m1_blocks<Plain<F16, true>> = 7;
#else
template <class S> constexpr u32 e2m1_blocks = is_narrow<S> ? 4 : 3;
#endif
template <class S> constexpr u32 wide_blocks = is_narrow<S> ? 4 : 3;

#define CAST_GROUPS_MANY(name, SOURCE, ...)                                                                               \
    CAST_GROUPS(e4m3_##name, SOURCE, Line<4>, E4M3, 256, (wide_blocks<Unwrap<void SOURCE>::Type>))                        \
    CAST_GROUPS(e2m1_##name, SOURCE, Line<e2m1_vectors<Unwrap<void SOURCE>::Type>>, E2M1,                                 \
                (1024 / e2m1_vectors<Unwrap<void SOURCE>::Type>), (e2m1_blocks<Unwrap<void SOURCE>::Type>))               \
    CAST_GROUPS_BOTH(square_##name, SOURCE, Square<2>, 256, (wide_blocks<Unwrap<void SOURCE>::Type>))

FOR_EACH_SOURCE(CAST_GROUPS_FEW)
FOR_EACH_SOURCE(CAST_GROUPS_MANY)
FOR_EACH_SOURCE(CAST_ROW, 0, 512)
FOR_EACH_SOURCE(CAST_ROW, 4, 512)
