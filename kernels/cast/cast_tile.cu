// Casts of plain matrices and of codes in tiles and per channel.
#include "cast/cast_channel.cuh"
#include "cast/cast_tile.cuh"

FOR_EACH_SOURCE(CAST_TILE, 0)
FOR_EACH_CHANNEL(CAST_TILE, 0)

CAST_CHANNEL_WIDE(e4m3, E4M3)
CAST_CHANNEL_WIDE(e2m1, E2M1)
