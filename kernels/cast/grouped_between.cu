// Rows of experts: what lies between groups becomes zeros, before casts and products that read it.
#include "base/types.cuh"

// Where groups of rows lie, as the grouped product reads it (gemm/sm90.cuh): one that begins outside of the matrix, or at no multiple of
// four, is none.
struct GroupPlaces {
    const i64* starts;  // [groups], first rows; null: in slots
    const i64* counts;  // [groups], rows of each
    u64 slot_rows;
    u32 groups;
};

struct GroupRows {
    u64 begin, end;
    bool taken;  // as its numbers say
};

__device__ __forceinline__ GroupRows group_rows(const GroupPlaces& p, u32 rows, u32 g) {
    const i64 at = p.starts ? p.starts[g] : (i64)(g * p.slot_rows), count = p.counts[g];
    if (count == 0) return {0, 0, true};
    if (count < 0 || at < 0 || at >= (i64)rows || at % 4 != 0) return {0, 0, false};
    const i64 most = p.starts ? (i64)rows - at : (i64)p.slot_rows;
    return {(u64)at, (u64)(at + min(count, most)), count <= most};
}

// Block by block, each with rows in turns.
extern "C" __global__ void __launch_bounds__(256) clear_between_groups(
    u8* x,         /* rows of row_bytes bytes, row_stride bytes apart */
    u64 row_bytes, u64 row_stride,
    u32 rows,
    GroupPlaces p,
    u32* clamped)  /* receives how many groups were not taken as they say; null: not wanted */
{
    begin();
    if (clamped && blockIdx.x == 0) {
        u32 count = 0;
        for (u32 first = 0; first < p.groups; first += blockDim.x) {
            const u32 g = first + threadIdx.x;
            count += __syncthreads_count(g < p.groups && !group_rows(p, rows, g).taken);
        }
        if (threadIdx.x == 0) *clamped = count;
    }
    for (u32 row = blockIdx.x; row < rows; row += gridDim.x) {
        bool mine = false;
        if (p.starts) {
            for (u32 g = threadIdx.x; g < p.groups; g += blockDim.x) {
                const GroupRows r = group_rows(p, rows, g);
                mine |= r.begin <= row && row < r.end;
            }
        } else if (threadIdx.x == 0 && p.slot_rows > 0 && row / p.slot_rows < p.groups) {
            const GroupRows r = group_rows(p, rows, (u32)(row / p.slot_rows));
            mine = r.begin <= row && row < r.end;
        }
        if (__syncthreads_or(mine)) continue;
        u8* const to = x + row * row_stride;
        const u64 head = min((16 - (u64)to % 16) % 16, row_bytes), whole = (row_bytes - head) / 16 * 16;
        for (u64 i = threadIdx.x; i < head; i += blockDim.x) to[i] = 0;
        for (u64 i = threadIdx.x * 16; i < whole; i += blockDim.x * 16) *(uint4*)(to + head + i) = {0, 0, 0, 0};
        for (u64 i = head + whole + threadIdx.x; i < row_bytes; i += blockDim.x) to[i] = 0;
    }
}
