// Casts of plain matrices and of codes in groups along rows.
#include "cast/cast_rows.cuh"

// Vectors of a thread along a row: eight where registers hold them, of sources that are packed, and where instructions are the limit.
template <class S, u32 FORMAT> constexpr int line_vectors = is_coded<S> || (is_narrow<S> && FORMAT == E2M1) ? 8 : 4;
// Blocks of a multiprocessor that fit without spilling.
#if __CUDA_ARCH__ == 900
template <class S, u32 FORMAT> constexpr u32 line_blocks = is_coded<S> ? 8 : line_vectors<S, FORMAT> == 8 ? 5 : is_narrow<S> ? 4 : 3;
template <> constexpr u32 line_blocks<Plain<Bf16, true>, E2M1> = 7;
template <> constexpr u32 line_blocks<Plain<F16, true>, E2M1> = 7;
#else
template <class S, u32 FORMAT> constexpr u32 line_blocks = is_narrow<S> ? 4 : 3;
#endif
template <class S> constexpr u32 square_blocks = is_narrow<S> || is_coded<S> ? 4 : 3;

#define CAST_GROUPS_LINE(name, SOURCE, FORMAT)                                                                            \
    CAST_GROUPS(name, SOURCE, Line<(line_vectors<Unwrap<void SOURCE>::Type, FORMAT>)>, FORMAT,                            \
                (1024 / line_vectors<Unwrap<void SOURCE>::Type, FORMAT>), (line_blocks<Unwrap<void SOURCE>::Type, FORMAT>))
#define CAST_GROUPS_MANY(name, SOURCE, ...)                                                                               \
    CAST_GROUPS_LINE(e4m3_##name, SOURCE, E4M3)                                                                           \
    CAST_GROUPS_LINE(e2m1_##name, SOURCE, E2M1)                                                                           \
    CAST_GROUPS_BOTH(square_##name, SOURCE, Square<2>, 256, (square_blocks<Unwrap<void SOURCE>::Type>))

FOR_EACH_SOURCE(CAST_GROUPS_FEW)
FOR_EACH_CHANNEL(CAST_GROUPS_FEW)
FOR_EACH_SOURCE(CAST_GROUPS_MANY)
FOR_EACH_SOURCE(CAST_ROW, 0, 512)
FOR_EACH_CHANNEL(CAST_ROW, 0, 512)
FOR_EACH_SOURCE(CAST_ROW, 4, 512)
