// Gated MLPs and activations, cast without being stored.
#include "cast/cast_rows.cuh"
#include "cast/cast_tile.cuh"
#include "fused/produced.cuh"

FOR_EACH_TYPE(PRODUCED, CAST_ROWS, few, FEW)
FOR_EACH_TYPE(PRODUCED, CAST_ROW, 0, 256)
FOR_EACH_TYPE(PRODUCED, CAST_ROW, 4, 256)
FOR_EACH_TYPE(PRODUCED, CAST_TILE, 0)
