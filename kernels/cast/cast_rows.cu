// Casts of plain matrices and of codes in groups along rows.
#include "cast/cast_rows.cuh"

// As many vectors as registers hold where instructions are the limit: for E2M1, of 16-bit elements.
template <class S> constexpr bool is_narrow = sizeof(S) == 16 && alignof(S) == 16;
template <class S> constexpr int e2m1_vectors = is_narrow<S> ? 8 : 4;
template <class S> constexpr u32 e2m1_blocks = is_narrow<S> ? 7 : 3;
template <class S> constexpr u32 e4m3_blocks = is_narrow<S> ? 4 : 3;

#define CAST_GROUPS_MANY(name, SOURCE, ...)                                                                               \
    CAST_GROUPS(e4m3_##name, SOURCE, E4M3, 4, 256, (e4m3_blocks<Unwrap<void SOURCE>::Type>))                              \
    CAST_GROUPS(e2m1_##name, SOURCE, E2M1, (e2m1_vectors<Unwrap<void SOURCE>::Type>), (1024 / e2m1_vectors<Unwrap<void SOURCE>::Type>), (e2m1_blocks<Unwrap<void SOURCE>::Type>))

FOR_EACH_SOURCE(CAST_GROUPS_FEW)
FOR_EACH_SOURCE(CAST_GROUPS_MANY)
FOR_EACH_SOURCE(CAST_ROW, 0, 512)
FOR_EACH_SOURCE(CAST_ROW, 4, 512)
