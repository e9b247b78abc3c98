// Grouped tensors: where members lie, their amax, their codes by rows, and values back. See grouped.cuh.
#include "cast/grouped.cuh"

// Of all 1024 threads: what lies before this one, and the total. `warps` may be written again behind another barrier.
struct Before {
    u64 before, total;
};
__device__ __forceinline__ Before sum_before(u64 v, u64 (&warps)[32]) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 upto = lanes_sum(v);
    if (lane == 31) warps[warp] = upto;
    __syncthreads();
    const u64 all = lanes_sum(warps[lane]);
    const u64 warps_before = __shfl_sync(0xFFFFFFFFu, all, warp == 0 ? 0 : warp - 1);
    return {(warp == 0 ? 0 : warps_before) + upto - v, __shfl_sync(0xFFFFFFFFu, all, 31)};
}

// Which rows of each member lie where they may, and how many chunks and tiles lie before it, of any number of members. Member t may use [offset t, offset t + 1), the
// last up to the end of the buffer. Rows that do not fit are cut. No row fits where a number is negative, and where an offset is below an
// earlier one: members never overlap. One block.
extern "C" __global__ void __launch_bounds__(1024) plan_grouped(
    GroupedMembers m,
    float* amax,  /* [amaxes]: set to zero for the kernel behind, which raises it; null: not wanted */
    u32 amaxes)
{
    __shared__ u64 warps[3][32];
    begin();
    if (amax)
        for (u32 i = threadIdx.x; i < amaxes; i += 1024) amax[i] = 0.0f;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // The same in all threads: of the rounds before this one.
    u64 largest = 0, chunks = 0, tiles = 0;
    u32 count = 0;
    for (u64 first = 0; first < m.members; first += 1024) {
        const u64 t = first + threadIdx.x;
        const bool exists = t < m.members, is_last = t + 1 >= m.members;
        const i64 offset = exists ? m.offsets[t] : 0, rows = exists ? m.rows[t] : 0, cols = exists ? m.cols[t] : 0;
        const u64 end = exists && !is_last ? within(m.offsets[t + 1], m.length) : m.length;

        // The largest offset up to this member.
        u64 upto = lanes_largest(within(offset, m.length));
        if (lane == 31) warps[0][warp] = upto;
        __syncthreads();
        const u64 all = lanes_largest(warps[0][lane]);
        const u64 warps_before = __shfl_sync(0xFFFFFFFFu, all, warp == 0 ? 0 : warp - 1);
        if (warp > 0) upto = max(upto, warps_before);
        upto = max(upto, largest);
        largest = max(largest, __shfl_sync(0xFFFFFFFFu, all, 31));

        bool bad = rows < 0 || cols < 0 || (exists && (offset < 0 || (u64)offset != upto));
        u64 fitting = 0;
        if (!bad && rows > 0 && cols > 0) {
            u64 room = end > (u64)offset ? end - (u64)offset : 0;
            if (m.forward) room = min(room, forward_room(m, t));
            // No product of what may be anything: only this quotient.
            const u64 fit = room / (u64)cols;
            fitting = min((u64)rows, fit);
            bad = (u64)rows > fit;
        }
        count += __syncthreads_count(bad);
        const u64 own_chunks = fitting == 0 ? 0 : InChunks::units((u64)offset, fitting, (u64)cols);
        const u64 own_tiles = fitting == 0 ? 0 : InTiles::units((u64)offset, fitting, (u64)cols);
        const Before c = sum_before(own_chunks, warps[1]), l = sum_before(own_tiles, warps[2]);
        if (exists) {
            m.fitting[t] = fitting;
            m.chunks[t] = chunks + c.before;
            m.tiles[t] = tiles + l.before;
        }
        chunks += c.total;
        tiles += l.total;
        // The next round writes `warps`.
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        m.chunks[m.members] = chunks;
        m.tiles[m.members] = tiles;
        *m.clamped = count;
    }
}

// The same where members are few, and no plan goes before. A node of zeros in a graph, which overlaps neither the kernel before nor that behind, took 2 us more.
extern "C" __global__ void __launch_bounds__(FEW) clear_grouped_amax(
    float* amax,  /* [count], at most FEW */
    u32 count)
{
    begin();
    if (threadIdx.x < count) amax[threadIdx.x] = 0.0f;
}

#define AMAX_GROUPED(name, T, ALIGNED, ...)                                                                               \
    extern "C" __global__ void __launch_bounds__(256, CHUNK_BLOCKS) amax_grouped_##name(                                             \
        const T* __restrict__ x,  /* the buffer, [m.length] at least */                                                   \
        GroupedMembers m, GroupedFactors f,                                                                               \
        float* amax)              /* [members], or one that is shared: raised to max |x| */                               \
    { grouped_chunks<PlainSource<T, ALIGNED>, NO_CODES>({x}, m, f, nullptr, amax); }
FOR_EACH_TYPE(AMAX_GROUPED)

#define QUANTIZE_GROUPED(name, T, ALIGNED, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(256, CHUNK_BLOCKS) quantize_grouped_##name(                                         \
        const T* __restrict__ x,  /* the buffer, [m.length] at least */                                                   \
        GroupedMembers m, GroupedFactors f,                                                                               \
        u8* __restrict__ codes,   /* [m.length], 16-byte aligned; gaps are left alone */                                  \
        float* amax)              /* [members], or one that is shared: raised to max |x|; null: not wanted */             \
    {                                                                                                                     \
        if (f.rule.format == E4M3) grouped_chunks<PlainSource<T, ALIGNED>, E4M3>({x}, m, f, codes, amax);                 \
        else grouped_chunks<PlainSource<T, ALIGNED>, E5M2>({x}, m, f, codes, amax);                                       \
    }
FOR_EACH_TYPE(QUANTIZE_GROUPED)

// y = round(fl(code * scale)) of codes by rows.
template <class T, bool ALIGNED>
__device__ __forceinline__ void dequantize_chunks(const u8* codes, const float* scales, const GroupedMembers& m, u32 shared, u32 format, T* y) {
    begin();
    constexpr u32 STEP = 256 * 8, AT_ONCE = 2;
    for (Walk<InChunks> walk(m); walk.any(); walk.next()) {
        const Extents e = walk.extents();
        const u64 end = e.begin + e.rows * e.cols;
        const float scale = __ldg(scales + (shared ? 0 : walk.t));
        u64 at = e.begin / 8 * 8 + (walk.unit - walk.first) * CHUNK + threadIdx.x * 8;
        u64 steps = (walk.stop - walk.unit) * (CHUNK / STEP / AT_ONCE);
        const auto is_whole = [&](u64 here) { return here >= e.begin && here + 8 <= end; };
        uint2 raw[AT_ONCE], next[AT_ONCE];
        const auto ask = [&](uint2 (&to)[AT_ONCE], u64 from) {
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (is_whole(from + i * STEP)) to[i] = __ldg((const uint2*)(codes + from + i * STEP));
        };
        ask(raw, at);
        for (; steps > 0; steps--, at += AT_ONCE * STEP) {
            if (steps > 1) ask(next, at + AT_ONCE * STEP);
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                const u64 here = at + j * STEP;
                float v[8];
                if (is_whole(here)) {
                    decode8(format, raw[j], v);
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], scale);
                    store<ALIGNED>(y + here, v);
                } else if (here < end) {
                    const u64 to = min(here + 8, end);
#pragma unroll 1
                    for (u64 k = max(here, e.begin); k < to; k++) {
                        float unused;
                        decode_pair(format, codes[k], v[0], unused);
                        y[k] = from_float<T>(__fmul_rn(v[0], scale));
                    }
                }
                raw[j] = next[j];
            }
        }
    }
}

#define DEQUANTIZE_GROUPED(name, T, ALIGNED, ...)                                                                         \
    extern "C" __global__ void __launch_bounds__(256, CHUNK_BLOCKS) dequantize_grouped_##name(                                       \
        const u8* __restrict__ codes,      /* [m.length], 16-byte aligned */                                              \
        const float* __restrict__ scales,  /* [members], or one that is shared */                                         \
        GroupedMembers m, u32 shared, u32 format,                                                                         \
        T* __restrict__ y)                 /* the buffer, [m.length] at least; gaps are left alone */                     \
    { dequantize_chunks<T, ALIGNED>(codes, scales, m, shared, format, y); }
FOR_EACH_TYPE(DEQUANTIZE_GROUPED)
