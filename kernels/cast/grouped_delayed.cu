// Delayed scaling of grouped tensors: the factors of the next step, of every scale, from the amax of past steps. Mirror of `delayed_update_grouped` in
// src/reference/grouped.rs.
#include "base/delayed.cuh"

// A block has a warp for each of so many rows of the history at once, times EACH, and a lane for each of its scales, which lie side by side in a row.
constexpr u32 WARPS = 32;
constexpr u32 EACH = 4;

// Mirror of GroupedDelayed in src/gpu/kernels/grouped_delayed.rs.
struct GroupedDelayed {
    float range;      // the format's largest value times 2^-margin
    u32 window;       // steps that are remembered
    u32 most_recent;  // 1: the amax of the step just finished decides, 0: the largest of the window
    u32 scales;
};

// A scale that had no amax in this step, or 0, keeps factor and history; the history of the others is rotated by one row, and row 0 cleared for the next
// step.
extern "C" __global__ void __launch_bounds__(1024) delayed_update_grouped(
    GroupedDelayed rule,
    float* __restrict__ history,  // [window][scales], row 0 that of the step that ends
    float* __restrict__ encode)   // [scales]
{
    __shared__ float of_warps[WARPS][32];
    begin();
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 scale = (u64)blockIdx.x * 32 + lane;
    float* const column = history + scale;
    const float recent = scale < rule.scales ? column[0] : 0.0f;
    const bool seen = recent != 0.0f;
    const u32 rows = seen ? rule.window : 0;
    float amax = 0.0f;
    for (u32 first = 0; first < rule.window; first += WARPS * EACH) {
        // What row `i` becomes: all of these together are the rows there are.
        const auto row = [&](u32 j) { return first + j * WARPS + warp; };
        float next[EACH];
#pragma unroll
        for (u32 j = 0; j < EACH; j++) next[j] = row(j) + 1 < rows ? column[(u64)(row(j) + 1) * rule.scales] : row(j) < rows ? recent : 0.0f;
#pragma unroll
        for (u32 j = 0; j < EACH; j++) amax = fmaxf(amax, next[j]);
        // A stretch, and the row behind it, is read whole before it is written.
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < EACH; j++)
            if (row(j) < rows) column[(u64)row(j) * rule.scales] = row(j) == 0 ? 0.0f : next[j];
    }
    of_warps[warp][lane] = amax;
    __syncthreads();
    if (warp != 0 || !seen) return;
#pragma unroll
    for (u32 w = 1; w < WARPS; w++) amax = fmaxf(amax, of_warps[w][lane]);
    encode[scale] = delayed_factor(rule.range, rule.most_recent ? recent : amax, encode[scale]);
}
