// Where groups of rows, or of k, lie, which device memory says: for kernels that walk them a warp at a time, 32 groups at once.
// Compiles under nvcc and NVRTC alike: no host code, no headers.
#pragma once
#include "base/types.cuh"

// Where the rows of group `first` + lane start, and how many, all lanes of a warp together; `largest`: the largest start of the groups before, and then
// of these. A group has rows up to the next one's start at the most, and one that starts before an earlier one, or outside of the `all` rows, has none: no two
// share a row. P: `starts` (null: in slots of `slot_rows`), `counts`, `groups`. STEP: rows that a group begins at a multiple of; of k these are blocks of 128, and no two share one.
template <u32 STEP, class P>
__device__ __forceinline__ void load_32_groups(const P& p, u32 all, u32 first, u32& largest, u32& start, u32& count) {
    const u32 lane = threadIdx.x % 32, g = first + lane;
    i64 at = 0, end = 0, rows = 0;
    if (g < p.groups) {
        at = p.starts ? p.starts[g] : (i64)g * p.slot_rows;
        end = !p.starts ? at + p.slot_rows : g + 1 < p.groups ? p.starts[g + 1] : (i64)all;
        rows = p.counts[g];
    }
    end = end < (i64)all ? end : (i64)all;
    u32 so_far = at < 0 ? 0 : at < (i64)all ? (u32)at : all;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const u32 before = __shfl_up_sync(0xFFFFFFFFu, so_far, step);
        if (lane >= step) so_far = max(so_far, before);
    }
    so_far = max(so_far, largest);
    largest = __shfl_sync(0xFFFFFFFFu, so_far, 31);
    const bool any = rows > 0 && at == (i64)so_far && at < end && at % STEP == 0;
    start = any ? (u32)at : 0;
    count = any ? (u32)(rows < end - at ? rows : end - at) : 0;
}
