// Casts of plain matrices and of codes in groups along rows.
#include "cast/cast_rows.cuh"

// Codes along a row by sixteen, everything else by eight; blocks of a multiprocessor that fit without spilling.
template <class S> struct AlongLine { using Type = S; };
template <u32 FORMAT> struct AlongLine<Coded<FORMAT>> { using Type = Sixteen<FORMAT>; };
template <class S> using LineOf = Line<4, neighbours<S>>;
#if __CUDA_ARCH__ == 900
template <class S> constexpr u32 line_blocks = is_coded<S> ? 8 : is_narrow<S> ? 4 : 3;
#else
template <class S> constexpr u32 line_blocks = is_coded<S> ? 6 : is_narrow<S> ? 4 : 3;
#endif
template <class S> constexpr u32 square_blocks = is_narrow<S> || is_coded<S> ? 4 : 3;

using SquareAcross = Square<2, true>;

#define CAST_GROUPS_LINE(name, SOURCE, FORMAT)                                                                            \
    CAST_GROUPS_LINE_OF(name, AlongLine<Unwrap<void SOURCE>::Type>::Type, FORMAT, (line_blocks<Unwrap<void SOURCE>::Type>))
#define CAST_GROUPS_LINE_OF(name, S, FORMAT, BLOCKS) CAST_GROUPS(name, (S), LineOf<S>, FORMAT, (2048 / neighbours<S>), BLOCKS)
#define CAST_GROUPS_MANY(name, SOURCE, ...)                                                                               \
    CAST_GROUPS_LINE(e4m3_##name, SOURCE, E4M3)                                                                           \
    CAST_GROUPS_LINE(e2m1_##name, SOURCE, E2M1)                                                                           \
    CAST_GROUPS(square_e4m3_##name, SOURCE, SquareAcross, E4M3, 256, (square_blocks<Unwrap<void SOURCE>::Type>))                   \
    CAST_GROUPS(square_e2m1_##name, SOURCE, Square<2>, E2M1, 256, (square_blocks<Unwrap<void SOURCE>::Type>))
// To E2M1 instructions are the limit, and twice the vectors have fewer; but each block takes as much longer, and the last ones leave
// multiprocessors idle: for large matrices.
#if __CUDA_ARCH__ == 900
constexpr u32 LARGE_BLOCKS = 7;
#else
constexpr u32 LARGE_BLOCKS = 4;
#endif
CAST_GROUPS(large_bf16, (Plain<Bf16, true>), Line<8>, E2M1, 128, LARGE_BLOCKS)
CAST_GROUPS(large_f16, (Plain<F16, true>), Line<8>, E2M1, 128, LARGE_BLOCKS)

FOR_EACH_SOURCE(CAST_GROUPS_FEW)
FOR_EACH_CHANNEL(CAST_GROUPS_FEW)
FOR_EACH_SOURCE(CAST_GROUPS_MANY)
FOR_EACH_SOURCE(CAST_ROW, 0, 512)
FOR_EACH_CHANNEL(CAST_ROW, 0, 512)
FOR_EACH_SOURCE(CAST_ROW, 4, 512)
