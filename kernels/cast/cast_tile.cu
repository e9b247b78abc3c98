// Casts of plain matrices and of codes in tiles and per channel.
#include "cast/cast_tile.cuh"

FOR_EACH_SOURCE(CAST_TILE, 0)
FOR_EACH_CHANNEL(CAST_TILE, 0)
