// Delayed scaling: the factors of the next step from the amax of past steps. Mirror of src/reference/delayed.rs.
#include "base/delayed.cuh"

// Mirror of DelayedRule in src/gpu/kernels/linear.rs.
struct DelayedRule {
    float range[3];   // of X, W and dY: the format's largest value times 2^-margin
    u32 window;       // steps that are remembered
    u32 most_recent;  // 1: the amax of the step just finished decides, 0: the largest of the window
};

// One block a tensor. A tensor that had no amax in this step, or 0, keeps factor and history. An amax of infinity or NaN keeps the
// factor. The history is rotated left by one, its front cleared for the next step.
extern "C" __global__ void __launch_bounds__(1024) delayed_update(
    DelayedRule rule,
    float* __restrict__ history,  // [3][window], the step that ends in front; window numbers from one tensor to the next
    float* __restrict__ encode)   // [3]
{
    __shared__ float scratch[32];
    begin();
    const u32 tensor = blockIdx.x;
    float* steps = history + (u64)tensor * rule.window;
    const float recent = steps[0];
    if (recent == 0.0f) return;
    float amax = 0.0f;
    if (rule.most_recent) {
        amax = recent;
    } else {
        for (u32 i = threadIdx.x; i < rule.window; i += blockDim.x) amax = fmaxf(amax, steps[i]);
        amax = block_max(amax, scratch);
    }
    if (threadIdx.x == 0) encode[tensor] = delayed_factor(rule.range[tensor], amax, encode[tensor]);
    // A stretch is read whole before it is written; the one behind it is read later, and not yet written.
    for (u32 first = 0; first < rule.window; first += blockDim.x) {
        const u32 i = first + threadIdx.x;
        const float next = i + 1 < rule.window ? steps[i + 1] : recent;
        __syncthreads();
        if (i < rule.window) steps[i] = i == 0 ? 0.0f : next;
        __syncthreads();
    }
}
