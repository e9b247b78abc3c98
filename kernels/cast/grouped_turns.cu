// Casts by rows and amax of few members, in pieces that blocks take in turns. See grouped.cuh.
//
// All blocks together sweep over the buffer, as those of the cast of a matrix do: with a stretch of neighbours for each block 256 members took 1.12
// of one matrix's time, in turns 1.055; by pieces of 512 bytes that warps take, 1.32 (observed: H200, 2026-11). A block meets another member with nearly each
// piece, so that what it needs of them all, where they lie and their factors, is in its shared memory, and nothing in its loop waits for the other warps, but
// where an amax is wanted: of each warp by itself they would be too many. Of more members all that would have to be read for
// each piece, which takes longer than it gains: those go the way of `grouped_chunks`.
#include "cast/grouped.cuh"

// A piece is what the threads of a block ask for at once. Pieces begin at the multiple of eight elements at or before their member's first.
template <class S> struct InPieces {
    static constexpr u32 STEP = 256 * 8, ELEMENTS = S::AT_ONCE * STEP;
    static __device__ __forceinline__ u64 units(u64 begin, u64 rows, u64 cols) { return (begin % 8 + rows * cols + ELEMENTS - 1) / ELEMENTS; }
};

// A piece is [at, at + ELEMENTS) of its member.
struct Piece {
    u32 member, at;
};

// Asks for the first pieces of all blocks, as far as no gap and no piece that is cut lies before them: what is early is needed later all the same. It is on its way
// while the blocks wait for the numbers of members.
template <class PIECES, class T> __device__ __forceinline__ void prefetch_first(const T* x, u64 length) {
    constexpr u32 LINES = PIECES::ELEMENTS * sizeof(T) / 128;
    const u32 line = blockIdx.x * LINES + threadIdx.x;
    if (threadIdx.x < LINES && line < length * sizeof(T) / 128) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)x + (u64)line * 128));
}

// Of all members, or the one that is shared. One of a block, however many formats a kernel has.
__device__ __forceinline__ float (&factors_of_block())[FEW] {
    __shared__ float factors[FEW];
    return factors;
}

// Codes, or where the format is NO_CODES maxima: warps raise them in the block's shared memory, without a barrier, and the block those of members at its end. A cast behind an amax
// pass goes back from the end of the buffer, which L2 still holds: both together take 1.01 of one matrix's time, 1.07 by stretches of neighbours and forwards (observed: H100, 2026-11).
template <class S, u32 FORMAT>
__device__ __forceinline__ void grouped_turns(S source, const GroupedMembers& m, const GroupedFactors& f, u8* codes, float* amax_out) {
    using Pieces = InPieces<S>;
    constexpr u32 STEP = Pieces::STEP, AT_ONCE = S::AT_ONCE;
    constexpr bool AMAX = FORMAT == NO_CODES;
    __shared__ float scratch[2][32];
    RaiseAmax raise;
    float (&encode)[FEW] = factors_of_block();  // or maxima
    prefetch_numbers(m, AMAX ? nullptr : f.factor, f.shared);
    begin();
    Few& few = few_of_block();
    const bool back = !AMAX && f.kind == FACTOR_AMAX;
    const u32 factors = f.shared ? 1 : m.members;
    // Asked for before the plan, which waits for memory, too; what follows from them is computed behind it.
    float own[FEW / 256];
#pragma unroll
    for (u32 i = 0; i < FEW / 256; i++) own[i] = !AMAX && threadIdx.x + i * 256 < factors ? f.factor[threadIdx.x + i * 256] : 0.0f;
    if (!back) prefetch_first<Pieces>(source.x, m.length);
    plan_few<Pieces>(m, few);
    // Scales are those of members without elements, too. The last block has no more pieces than others.
    const bool writes = blockIdx.x == gridDim.x - 1;
#pragma unroll
    for (u32 i = 0; i < FEW / 256; i++) {
        const u32 t = threadIdx.x + i * 256;
        if (t >= factors) break;
        if constexpr (AMAX) {
            encode[t] = 0.0f;
            continue;
        }
        const GroupScale s = scale_of(f, own[i]);
        encode[t] = s.encode;
        if (!writes) continue;
        if (f.scales) f.scales[t] = s.scale;
        if (f.scales_t) f.scales_t[t] = s.scale;
    }
    __syncthreads();

    const u32 lane = threadIdx.x % 32, total = few.before[m.members];
    // The piece's member is the last that begins at it or before: the next one begins behind it, so that it is not empty. It is looked for from `member` on, on the way back
    // from there down.
    const auto piece = [&](u32 member, u32 number) -> Piece {
        const u32 unit = back ? total - 1 - number : number;
        if (back) {
            for (;;) {
                const u32 found = __ballot_sync(0xFFFFFFFFu, lane <= member && few.before[member - lane] <= unit);
                if (found) {
                    member -= __ffs(found) - 1;
                    break;
                }
                member -= 32;
            }
        } else {
            u32 behind;
            do {
                const u32 t = member + 1 + lane;
                behind = __popc(__ballot_sync(0xFFFFFFFFu, t < m.members && few.before[t] <= unit));
                member += behind;
            } while (behind == 32);
        }
        return {member, few.begin[member] / 8 * 8 + (unit - few.before[member]) * Pieces::ELEMENTS};
    };
    // Where the piece's member ends.
    const auto end_of = [&](const Piece& p) { return few.begin[p.member] + few.rows[p.member] * few.cols[p.member]; };
    // Element i of a thread's eights.
    const auto place = [&](const Piece& p, u32 i) { return p.at + threadIdx.x * 8 + i * STEP; };
    const auto is_whole = [](u32 here, u32 begin, u32 end) { return here >= begin && here + 8 <= end; };
    const auto ask = [&](const Piece& p, typename S::Raw (&raw)[AT_ONCE]) {
        const u32 begin = few.begin[p.member], end = end_of(p);
        // Of an amax pass all but the end of the buffer makes room first, where the cast goes back from there: tiles, which transpose, are read in stretches from all over the buffer.
        if (AMAX && !f.scales_t && (m.length - p.at) * sizeof(*source.x) > KEPT_BYTES) {
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (is_whole(place(p, i), begin, end)) raw[i] = load_passing<true>(source.x + place(p, i));
            return;
        }
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            if (is_whole(place(p, i), begin, end)) raw[i] = source.load(place(p, i));
    };
    const auto in_factors = [&](u32 member) { return f.shared ? 0 : member; };

    u32 unit = blockIdx.x;
    bool any = unit < total;
    Piece now = {0, 0};
    typename S::Raw raw[AT_ONCE], ahead[AT_ONCE];
    if (any) {
        now = piece(back ? m.members - 1 : 0, unit);
        ask(now, raw);
    }
    float amax = 0.0f;
    while (any) {
        unit += gridDim.x;
        any = unit < total;
        Piece next = now;
        if (any) {
            next = piece(now.member, unit);
            ask(next, ahead);
        }
        const float factor = AMAX ? 1.0f : encode[in_factors(now.member)];
        const u32 begin = few.begin[now.member], end = end_of(now);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 here = place(now, i);
            if (!is_whole(here, begin, end)) continue;
            float v[8];
            source.values(raw[i], v);
            if (AMAX || amax_out) amax = amax_of(v, amax);
            if constexpr (!AMAX) *(uint2*)(codes + here) = encode_values<FORMAT>(v, factor);
        }
        // A member's first and last eight may be cut.
        if (now.at < begin || end - now.at < Pieces::ELEMENTS) {
#pragma unroll 1
            for (u32 i = 0; i < AT_ONCE; i++) {
                const u32 here = place(now, i);
                if (is_whole(here, begin, end)) continue;
                const u32 to = min(here + 8, end);
#pragma unroll 1
                for (u32 k = max(here, begin); k < to; k++) {
                    const float v = source.one(k);
                    if (AMAX || amax_out) amax = fmaxf(amax, fabsf(v));
                    if constexpr (!AMAX) codes[k] = encode_byte<FORMAT>(v, factor);
                }
            }
        }
        if ((AMAX || amax_out) && (!any || in_factors(next.member) != in_factors(now.member))) {
            if constexpr (AMAX) {
                const u32 largest = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(amax));
                if (lane == 0) atomicMax((u32*)&encode[in_factors(now.member)], largest);
            } else {
                raise.raise(amax_out + in_factors(now.member), amax, scratch);
            }
            amax = 0.0f;
        }
        now = next;
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) raw[i] = ahead[i];
    }
    if constexpr (AMAX) {
        __syncthreads();
        for (u32 t = threadIdx.x; t < factors; t += 256)
            if (encode[t] > 0.0f) atomic_max(amax_out + t, encode[t]);
    }
}

#define AMAX_GROUPED_TURNS(name, T)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256, CHUNK_BLOCKS) amax_grouped_turns_##name(                            \
        const T* __restrict__ x,  /* the buffer, [m.length] at least, 16-byte aligned */                                  \
        GroupedMembers m, GroupedFactors f,                                                                               \
        float* amax)              /* [members], or one that is shared: raised to max |x| */                               \
    { grouped_turns<PlainSource<T, true>, NO_CODES>({x}, m, f, nullptr, amax); }
AMAX_GROUPED_TURNS(bf16, Bf16)
AMAX_GROUPED_TURNS(f16, F16)
AMAX_GROUPED_TURNS(f32, float)

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
