// Rows of experts: what lies between groups becomes zeros, before casts and products that read it, a number of each group that of its rows, and the largest
// of its rows' numbers that of a group.
#include "base/types.cuh"

// Where groups of rows lie, as the grouped product reads it (gemm/sm90.cuh): group g has rows up to the next one's start at the most, and none where it
// begins before an earlier one, outside of the matrix, or at no multiple of `step`.
struct GroupPlaces {
    const i64* starts;  // [groups], first rows; null: in slots
    const i64* counts;  // [groups], rows of each
    u64 slot_rows;
    u32 groups;
    u32 step;           // 4; where tiles of so many rows have a scale, those, as 128 of gradients of the matrices
};

__device__ __forceinline__ i64 start_of(const GroupPlaces& p, u32 g) { return p.starts ? p.starts[g] : (i64)(g * p.slot_rows); }

// Rows that lie there for group g, which begins at `at`.
__device__ __forceinline__ i64 room_of(const GroupPlaces& p, u32 rows, u32 g, i64 at) {
    if (at < 0 || at % p.step != 0) return 0;
    const i64 next = !p.starts ? at + (i64)p.slot_rows : g + 1 < p.groups ? p.starts[g + 1] : (i64)rows;
    // Not below 0: the compiler subtracts before it compares, and of the least number there is no less.
    const i64 end = max(min(next, (i64)rows), (i64)0);
    return end > at ? end - at : 0;
}

__device__ __forceinline__ i64 lanes_largest(i64 v) {
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) v = max(v, __shfl_xor_sync(0xFFFFFFFFu, v, step));
    return v;
}

// How many groups are not taken as they say. All lanes of a warp together.
__device__ __forceinline__ u32 clamped_groups(const GroupPlaces& p, u32 rows) {
    const u32 lane = threadIdx.x % 32;
    i64 largest = 0;
    u32 clamped = 0;
    for (u32 first = 0; first < p.groups; first += 32) {
        const u32 g = first + lane;
        const i64 at = g < p.groups ? start_of(p, g) : 0, count = g < p.groups ? p.counts[g] : 0;
        i64 so_far = at;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const i64 before = __shfl_up_sync(0xFFFFFFFFu, so_far, step);
            if (lane >= step) so_far = max(so_far, before);
        }
        const bool bad = count < 0 || (count > 0 && (at < largest || at < so_far || count > room_of(p, rows, g, at)));
        clamped += __popc(__ballot_sync(0xFFFFFFFFu, bad));
        largest = max(largest, __shfl_sync(0xFFFFFFFFu, so_far, 31));
    }
    return clamped;
}

constexpr u32 NO_GROUP = 0xFFFFFFFFu;

// Whose a row is. All lanes of a warp together.
__device__ __forceinline__ u32 group_of(const GroupPlaces& p, u32 rows, u32 row) {
    const u32 lane = threadIdx.x % 32;
    // The last group before the first that begins behind the row, and the largest start up to there: where that is another's, the group is none.
    u32 behind = p.groups;
    i64 largest = 0;
    if (p.starts) {
        for (u32 first = 0; first < p.groups; first += 32) {
            const i64 at = first + lane < p.groups ? p.starts[first + lane] : 0;
            const u32 found = __ballot_sync(0xFFFFFFFFu, first + lane < p.groups && at > (i64)row);
            const u32 before = found ? __ffs(found) - 1 : 32;
            largest = max(largest, lanes_largest(lane < before ? at : 0));
            if (found) {
                behind = first + before;
                break;
            }
        }
    } else {
        behind = p.slot_rows == 0 ? 0 : (u32)min(row / p.slot_rows + 1, (u64)p.groups);
        largest = behind == 0 ? 0 : start_of(p, behind - 1);
    }
    if (behind == 0) return NO_GROUP;
    const i64 at = start_of(p, behind - 1);
    return at == largest && (i64)row < at + min(p.counts[behind - 1], room_of(p, rows, behind - 1, at)) ? behind - 1 : NO_GROUP;
}

// Warp by warp, each with rows in turns.
extern "C" __global__ void __launch_bounds__(256) clear_between_groups(
    u8* x,         /* rows of row_bytes bytes, row_stride bytes apart */
    u64 row_bytes, u64 row_stride,
    u32 rows,
    GroupPlaces p,
    u32* clamped)  /* receives how many groups were not taken as they say; null: not wanted */
{
    begin();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    if (clamped && blockIdx.x == 0 && warp == 0) {
        const u32 count = clamped_groups(p, rows);
        if (lane == 0) *clamped = count;
    }
    for (u32 row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        if (group_of(p, rows, row) != NO_GROUP) continue;
        u8* const to = x + row * row_stride;
        const u64 head = min((16 - (u64)to % 16) % 16, row_bytes), whole = (row_bytes - head) / 16 * 16;
        if (lane < head) to[lane] = 0;
        for (u64 i = lane * 16; i < whole; i += 32 * 16) *(uint4*)(to + head + i) = {0, 0, 0, 0};
        for (u64 i = head + whole + lane; i < row_bytes; i += 32) to[i] = 0;
    }
}

// A number of each group for all its rows. Warp by warp, each with rows in turns.
extern "C" __global__ void __launch_bounds__(256) spread_over_groups(
    const float* of_groups,  /* [groups] */
    float of_none,           /* of rows of no group */
    float* of_rows,          /* [rows] */
    u32 rows,
    GroupPlaces p)
{
    begin();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (u32 row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        const u32 group = group_of(p, rows, row);
        if (lane == 0) of_rows[row] = group == NO_GROUP ? of_none : of_groups[group];
    }
}

// Of each group the largest of its rows' amaxes, 0 without rows; those of no group count nowhere. A block for each group.
extern "C" __global__ void __launch_bounds__(1024) amax_over_groups(
    const float* of_rows,  /* [rows], none below 0, 16-byte aligned */
    u32 rows,
    GroupPlaces p,
    float* of_groups)      /* [groups] */
{
    __shared__ float scratch[32];
    begin();
    const u32 g = blockIdx.x;
    const i64 at = start_of(p, g);
    // Behind a group that begins later it has no rows. In slots none does.
    bool behind = false;
    if (p.starts)
        for (u32 before = threadIdx.x; before < g; before += blockDim.x) behind = behind || p.starts[before] > at;
    const bool out = __syncthreads_or(behind);
    const u32 count = out ? 0 : (u32)max(min(p.counts[g], room_of(p, rows, g, at)), (i64)0);
    // A group with rows begins at a multiple of 4.
    constexpr u32 UNROLL = 4;
    const float* const own = of_rows + (count == 0 ? 0 : at);
    const u32 fours = count / 4;
    float amax = threadIdx.x < count % 4 ? own[4 * fours + threadIdx.x] : 0.0f;
    for (u32 first = threadIdx.x; first < fours; first += UNROLL * blockDim.x) {
        float4 v[UNROLL];
#pragma unroll
        for (u32 i = 0; i < UNROLL; i++) {
            const u32 place = first + i * blockDim.x;
            v[i] = place < fours ? ((const float4*)own)[place] : float4{};
        }
#pragma unroll
        for (u32 i = 0; i < UNROLL; i++) amax = fmaxf(fmaxf(fmaxf(amax, v[i].x), fmaxf(v[i].y, v[i].z)), v[i].w);
    }
    amax = block_max(amax, scratch);
    if (threadIdx.x == 0) of_groups[g] = amax;
}

// Those of a product. One warp.
extern "C" __global__ void __launch_bounds__(32) count_clamped_groups(
    u32 rows,
    GroupPlaces p,
    u32* clamped)  /* receives how many groups are not taken as they say */
{
    begin();
    const u32 count = clamped_groups(p, rows);
    if (threadIdx.x == 0) *clamped = count;
}
