// Casts of plain matrices and of codes in groups along rows.
#include "cast/cast_rows.cuh"
#include "cast/cast_steps.cuh"

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
// To E2M1 instructions are the limit: sixteen neighbours a lane have fewer. Small blocks leave multiprocessors idle for less of the end.
#if __CUDA_ARCH__ == 900
constexpr u32 WIDE_BLOCKS = 10, LONG_BLOCKS = 7, CODED_BLOCKS = 8;
#else
constexpr u32 WIDE_BLOCKS = 4, LONG_BLOCKS = 4, CODED_BLOCKS = 4;
#endif
using FlatOne = Flat<1, 8>;
using FlatTwo = Flat<2, 16>;
using FlatFour = Flat<4, 16>;
using LineWide = Line<4, 16>;
using SquareWide = Square<2, false, 16, 4>;
using SquareWideAcross = Square<2, true, 16, 4>;
#define CAST_WIDE(name, T)                                                                                                \
    CAST_GROUPS(flat_##name, (Wide<T>), FlatTwo, E2M1, 128, WIDE_BLOCKS)                                                  \
    CAST_GROUPS_OF_128(flat_few_e4m3_##name, (Plain<T, true>), FlatOne, E4M3, 128)                                        \
    CAST_GROUPS_OF_128(flat_few_e2m1_##name, (Plain<T, true>), FlatOne, E2M1, 128)                                        \
    CAST_GROUPS(wide_##name, (Wide<T>), LineWide, E2M1, 128, LONG_BLOCKS)                                                 \
    CAST_GROUPS(wide_square_##name, (Wide<T>), SquareWide, E2M1, 128, WIDE_BLOCKS)                                        \
    CAST_GROUPS(wide_across_##name, (Wide<T>), SquareWideAcross, E2M1, 128, WIDE_BLOCKS)                                  \
    extern "C" __global__ void __launch_bounds__(128, LONG_BLOCKS) cast_row_wide_##name(                                  \
        CastSource source, u32 rows, u32 cols, CastRule rule, CastOut out)                                                \
    { cast_row<Wide<T>, 4, E2M1>(source, rows, cols, rule, out); }
CAST_WIDE(bf16, Bf16)
CAST_WIDE(f16, F16)

// Codes of a matrix without gaps.
CAST_GROUPS(flat_e4m3_e4m3, (Sixteen<E4M3, true>), FlatTwo, E4M3, 128, CODED_BLOCKS)
CAST_GROUPS(flat_e2m1_e4m3, (Sixteen<E4M3, true>), FlatFour, E2M1, 128, CODED_BLOCKS)
CAST_GROUPS(flat_e4m3_e2m1, (Sixteen<E2M1, true>), FlatFour, E4M3, 128, CODED_BLOCKS)
CAST_GROUPS(flat_e2m1_e2m1, (Sixteen<E2M1, true>), FlatFour, E2M1, 128, CODED_BLOCKS)
// E4M3 to E2M1 in groups of 16 to 128 within one of the source.
CAST_STEPS(4)
CAST_STEPS(5)
CAST_STEPS(6)
CAST_STEPS(7)

FOR_EACH_SOURCE(CAST_GROUPS_FEW)
FOR_EACH_CHANNEL(CAST_GROUPS_FEW)
FOR_EACH_SOURCE(CAST_GROUPS_MANY)
FOR_EACH_SOURCE(CAST_ROW, 0, 512)
FOR_EACH_CHANNEL(CAST_ROW, 0, 512)
FOR_EACH_SOURCE(CAST_ROW, 4, 512)
