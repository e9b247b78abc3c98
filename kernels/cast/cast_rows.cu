// Casts of plain matrices and of codes in groups along rows.
#include "cast/cast_rows.cuh"

FOR_EACH_SOURCE(CAST_ROWS, 1)
FOR_EACH_SOURCE(CAST_ROWS, 2)
FOR_EACH_SOURCE(CAST_ROW, 0, 512)
FOR_EACH_SOURCE(CAST_ROW, 4, 512)
