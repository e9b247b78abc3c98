// Where groups of rows, or of k, lie, which device memory says, and which of their units of work is whose: for kernels that walk them a warp at a time, 32 groups at once.
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

// A unit of a group, and where its rows lie.
struct UnitOfGroup { u32 group, start, count, inside; };

// The units of work of all groups, numbered one group after the other. `units_of`: how many a group has that starts there, of so many rows. All lanes of a warp together.
template <u32 STEP> struct GroupWalk {
    u32 first = 0, base = 0, end = 0, upto = 0, units = 0, start = 0, count = 0, largest = 0;  // of the 32 groups from `first` on, the lane's: units up to its last, its own, rows

    // Reads 32 groups from `first` on: once before the first `find`. P: see load_32_groups.
    template <class P, class F> __device__ __forceinline__ void load(const P& p, u32 all, F units_of) {
        load_32_groups<STEP>(p, all, first, largest, start, count);
        units = units_of(start, count);
        upto = units;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 before = __shfl_up_sync(0xFFFFFFFFu, upto, step);
            if (threadIdx.x % 32 >= step) upto += before;
        }
        base = end;
        end += __shfl_sync(0xFFFFFFFFu, upto, 31);
    }

    // Which one unit number `unit` is; numbers increase from call to call. False: there are not as many.
    template <class P, class F> __device__ __forceinline__ bool find(const P& p, u32 all, F units_of, u32 unit, UnitOfGroup& of) {
        while (unit >= end) {
            first += 32;
            if (first >= p.groups) return false;
            load(p, all, units_of);
        }
        const u32 lane = __ffs(__ballot_sync(0xFFFFFFFFu, unit - base < upto)) - 1;
        of.group = first + lane;
        of.inside = unit - base - __shfl_sync(0xFFFFFFFFu, upto - units, lane);
        of.start = __shfl_sync(0xFFFFFFFFu, start, lane);
        of.count = __shfl_sync(0xFFFFFFFFu, count, lane);
        return true;
    }
};
