// Casts by rows of few members, in pieces that warps take in turns. See grouped.cuh.
//
// All warps together sweep over the buffer, as those of the cast of a matrix do: with a stretch of neighbours for each block 256 members took 1.12 of one matrix's
// time (observed: H200, 2026-11). A warp meets another member with nearly each piece, so that what it needs of them all, where they lie and
// their factors, is in shared memory, and nothing in its loop waits for other warps. Of more members it would have to be read for each
// piece, which takes longer than it gains: those go the way of `grouped_chunks`.
#include "cast/grouped.cuh"

// A piece is eight neighbours for each lane. Pieces begin at the multiple of eight elements at or before their member's first.
constexpr u32 PIECE = 32 * 8;
struct InPieces {
    static __device__ __forceinline__ u64 units(u64 begin, u64 rows, u64 cols) { return (begin % 8 + rows * cols + PIECE - 1) / PIECE; }
};

// Of all members, or the one that is shared. One of a block, however many formats a kernel has.
__device__ __forceinline__ float (&factors_of_block())[FEW] {
    __shared__ float factors[FEW];
    return factors;
}

template <class S, u32 FORMAT>
__device__ __forceinline__ void grouped_turns(S source, const GroupedMembers& m, const GroupedFactors& f, u8* codes, float* amax_out) {
    // Pieces that a warp has asked for and not taken yet.
    constexpr u32 AHEAD = S::AT_ONCE;
    float (&encode)[FEW] = factors_of_block();
    begin();
    // Asked for before the plan, which waits for memory, too.
    const u32 factors = f.shared ? 1 : m.members;
    float own[FEW / 256];
#pragma unroll
    for (u32 i = 0; i < FEW / 256; i++) own[i] = threadIdx.x + i * 256 < factors ? grouped_scale(f, threadIdx.x + i * 256).encode : 0.0f;
    Few& few = few_of_block();
    plan_few<InPieces>(m, few);
#pragma unroll
    for (u32 i = 0; i < FEW / 256; i++) encode[threadIdx.x + i * 256] = own[i];
    __syncthreads();

    const u32 lane = threadIdx.x % 32, total = few.before[m.members], step = gridDim.x * 8;
    const auto is_whole = [](u32 here, u32 begin, u32 end) { return here >= begin && here + 8 <= end; };
    const auto end_of = [&](u32 member) { return few.begin[member] + few.rows[member] * few.cols[member]; };

    typename S::Raw raw[AHEAD];
    // Of each piece that was asked for: its member, and the lane's place.
    u32 member[AHEAD], at[AHEAD];
    u32 asked = blockIdx.x * 8 + threadIdx.x / 32, last = 0;
    const auto ask = [&](u32 slot) {
        if (asked >= total) return;
        // The last member from the last one on that begins at the piece or before: the next one begins behind it, so that it is not empty.
        u32 behind;
        do {
            const u32 t = last + 1 + lane;
            behind = __popc(__ballot_sync(0xFFFFFFFFu, t < m.members && few.before[t] <= asked));
            last += behind;
        } while (behind == 32);
        const u32 begin = few.begin[last], here = begin / 8 * 8 + (asked - few.before[last]) * PIECE + lane * 8;
        member[slot] = last;
        at[slot] = here;
        if (is_whole(here, begin, end_of(last))) raw[slot] = source.load(here);
        asked += step;
    };
    float amax = 0.0f;
    u32 of = 0;
    const auto raise = [&]() {
        // Numbers that are not negative are ordered as their bits are.
        const float of_warp = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, __float_as_uint(amax)));
        if (lane == 0 && of_warp > 0.0f) atomic_max(amax_out + of, of_warp);
        amax = 0.0f;
    };
    const auto take = [&](u32 slot) {
        const u32 t = member[slot], here = at[slot], begin = few.begin[t], end = end_of(t), factor = f.shared ? 0 : t;
        const float by = encode[factor];
        if (amax_out && factor != of) {
            raise();
            of = factor;
        }
        if (is_whole(here, begin, end)) {
            float v[8];
            source.values(raw[slot], v);
            if (amax_out) amax = amax_of(v, amax);
            *(uint2*)(codes + here) = encode_values<FORMAT>(v, by);
        } else if (here < end) {
            // A member's first and last eight may be cut.
            const u32 to = min(here + 8, end);
#pragma unroll 1
            for (u32 k = max(here, begin); k < to; k++) {
                const float v = source.one(k);
                if (amax_out) amax = fmaxf(amax, fabsf(v));
                codes[k] = encode_byte<FORMAT>(v, by);
            }
        }
        __syncwarp();
    };
#pragma unroll
    for (u32 slot = 0; slot < AHEAD; slot++) ask(slot);
    for (u32 unit = blockIdx.x * 8 + threadIdx.x / 32; unit < total;) {
#pragma unroll
        for (u32 slot = 0; slot < AHEAD; slot++) {
            if (unit < total) take(slot);
            ask(slot);
            unit += step;
        }
    }
    if (amax_out) raise();
    write_scales(f, m.members);
}

#define QUANTIZE_GROUPED_TURNS(name, T)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256, CHUNK_BLOCKS) quantize_grouped_turns_##name(                        \
        const T* __restrict__ x,  /* the buffer, [m.length] at least, 16-byte aligned */                                  \
        GroupedMembers m, GroupedFactors f,                                                                               \
        u8* __restrict__ codes,   /* [m.length], 16-byte aligned; gaps are left alone */                                  \
        float* amax)              /* [members], or one that is shared: raised to max |x|; null: not wanted */             \
    {                                                                                                                     \
        if (f.rule.format == E4M3) grouped_turns<PlainSource<T, true>, E4M3>({x}, m, f, codes, amax);                     \
        else grouped_turns<PlainSource<T, true>, E5M2>({x}, m, f, codes, amax);                                           \
    }
QUANTIZE_GROUPED_TURNS(bf16, Bf16)
QUANTIZE_GROUPED_TURNS(f16, F16)
QUANTIZE_GROUPED_TURNS(f32, float)
