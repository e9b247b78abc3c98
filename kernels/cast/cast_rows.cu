// Casts of plain matrices and of codes in groups along rows.
#include "cast/cast_rows.cuh"

FOR_EACH_SOURCE(CAST_ROWS, few, FEW)
FOR_EACH_SOURCE(CAST_ROWS, many, MANY)
FOR_EACH_SOURCE(CAST_ROW, 0, 512)
FOR_EACH_SOURCE(CAST_ROW, 4, 512)
