// Delayed scaling: an encode factor from the amax of past steps. Mirror of src/reference/delayed.rs.
#pragma once
#include "base/types.cuh"

// `range` is the format's largest value times 2^-margin, `previous` the factor so far. An amax that is 0, infinite or NaN keeps it; what is infinite becomes
// the largest number.
__device__ __forceinline__ float delayed_factor(float range, float amax, float previous) {
    const bool gives_one = amax > 0.0f && __float_as_uint(amax) < 0x7F800000u;
    const float factor = gives_one ? __fdiv_rn(range, amax) : previous;
    return (__float_as_uint(factor) & 0x7FFFFFFFu) == 0x7F800000u ? __uint_as_float(0x7F7FFFFFu) : factor;
}
