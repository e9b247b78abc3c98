// Grouped tensors: what their kernels share. Members of any shapes lie in one buffer; how many rows each has is known on the device alone,
// and may be anything: `plan_grouped` (grouped.cu) says which rows lie where they may, and the other kernels touch no others.
#pragma once
#include "cast/tile.cuh"

// Elements of a chunk, and rows and columns of a tile: what a block takes of a member at once. Tiles of members with few rows are lower and wider.
constexpr u32 CHUNK = 8192;
constexpr u32 SIDE = 64;

// Tiles of a member are SIDE >> wide rows high at the most, and SIDE << wide columns wide.
__device__ __forceinline__ u32 wide_of(u64 rows) { return rows > SIDE / 2 ? 0 : rows > SIDE / 4 ? 1 : rows > SIDE / 8 ? 2 : 3; }

struct GroupedMembers {
    const i64* rows;     // [members], any numbers
    const i64* cols;     // [members], any numbers
    const i64* offsets;  // [members], in elements, any numbers
    const i64* forward;  // [members]: where members of a second input of the same shapes begin; null: there is none
    u64* fitting;        // [members]: rows that lie where they may; 0 where a row has no elements; null: each block adds up members itself
    u64* chunks;         // [members + 1]: chunks of all members before each
    u64* tiles;          // [members + 1]: the same of tiles
    u32* clamped;        // one: receives how many members were not taken as they say
    u64 length;          // elements of the buffer
    u64 forward_length;  // elements of that of the second input
    u32 members;
};

// An offset within [0, length].
__device__ __forceinline__ u64 within(i64 offset, u64 length) { return offset < 0 ? 0 : min((u64)offset, length); }

// Elements of the second input that member t may use.
__device__ __forceinline__ u64 forward_room(const GroupedMembers& m, u64 t) {
    const i64 begin = m.forward[t];
    const u64 end = t + 1 < m.members ? within(m.forward[t + 1], m.forward_length) : m.forward_length;
    return begin < 0 || (u64)begin >= end ? 0 : end - (u64)begin;
}

// Extents of a member: begin + rows * cols is at most `length`, and rows * cols at most `forward_length` where there is a second input.
struct Extents {
    u64 begin, rows, cols;
};

// Chunks of a member that has elements. They begin at the multiple of eight elements at or before its first.
struct InChunks {
    static __device__ __forceinline__ u64 units(u64 begin, u64 rows, u64 cols) { return (begin % 8 + rows * cols + CHUNK - 1) / CHUNK; }
    static __device__ __forceinline__ const u64* before(const GroupedMembers& m) { return m.chunks; }
};

// Tiles of one.
struct InTiles {
    static __device__ __forceinline__ u64 units(u64, u64 rows, u64 cols) {
        const u32 wide = SIDE << wide_of(rows);
        return ((rows + SIDE - 1) / SIDE) * ((cols + wide - 1) / wide);
    }
    static __device__ __forceinline__ const u64* before(const GroupedMembers& m) { return m.tiles; }
};

// Inclusive sum, and maximum, over the lanes of a warp.
template <class N> __device__ __forceinline__ N lanes_sum(N v) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const N other = __shfl_up_sync(0xFFFFFFFFu, v, step);
        if (lane >= step) v += other;
    }
    return v;
}
template <class N> __device__ __forceinline__ N lanes_largest(N v) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        const N other = __shfl_up_sync(0xFFFFFFFFu, v, step);
        if (lane >= step) v = max(v, other);
    }
    return v;
}

// What each block finds itself of so many members at the most, in a buffer that ends 2^16 elements before 2^32 or earlier, so that 32 bits
// hold every place, also some behind the end: what `plan_grouped` would write, without
// a launch before and a chain of loads from memory behind it.
constexpr u32 FEW = 512;

struct Few {
    u32 begin[FEW], rows[FEW], cols[FEW];  // extents of members
    u32 before[FEW + 1];                   // chunks, or tiles, of all members before each
    u32 warps[2][8];
};

// One of a block, however many formats a kernel has.
__device__ __forceinline__ Few& few_of_block() {
    __shared__ Few few;
    return few;
}

// Before `begin()`: block 0 asks for the numbers, and for factors if they are wanted, to be in L2 when all blocks read them; what the kernel before still writes of
// them L2 has anyway. By each block it took longer than it saved (observed: H200, 2026-11).
__device__ __forceinline__ void prefetch_numbers(const GroupedMembers& m, const float* factors, bool shared) {
    u32 line;  // known here alone, so that no register holds an address over the plan
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(line));
    const auto ask = [](const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); };
    if (blockIdx.x != 0 || line * 16 >= m.members) return;
    ask(m.rows + line * 16);
    ask(m.cols + line * 16);
    ask(m.offsets + line * 16);
    if (factors) ask(factors + (shared ? 0 : line * 16));
}

// By all 256 threads of a block. The numbers are read once: what others write meanwhile cannot lead outside. A second input's offsets alone are read
// again, by its `enter`.
template <class UNITS> __device__ __forceinline__ void plan_few(const GroupedMembers& m, Few& few) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, length = (u32)m.length;
    constexpr u32 NONE = 0xFFFFFFFFu;
#pragma unroll
    for (u32 i = 0; i < FEW / 256; i++) {
        const u32 t = threadIdx.x + i * 256;
        if (t >= m.members) break;
        const i64 offset = m.offsets[t], rows = m.rows[t], cols = m.cols[t];
        // A row of the most columns that 32 bits hold fits nowhere, nor do as many rows.
        const bool bad = rows < 0 || cols < 0 || offset < 0 || (u64)offset > m.length;
        few.begin[t] = (u32)within(offset, m.length);
        few.rows[t] = bad ? NONE : (u32)min((u64)rows, (u64)NONE);
        few.cols[t] = bad ? NONE : (u32)min((u64)cols, (u64)NONE);
        few.before[t] = m.forward ? (u32)min(forward_room(m, t), (u64)NONE) : NONE;
    }
    __syncthreads();
    // Neighbours from here on.
    const u32 each = (m.members + 255) / 256, first = threadIdx.x * each, last = min(first + each, m.members);
    u32 largest = 0;
    for (u32 t = first; t < last; t++) largest = max(largest, few.begin[t]);
    const u32 up_to = lanes_largest(largest);
    if (lane == 31) few.warps[0][warp] = up_to;
    largest = __shfl_up_sync(0xFFFFFFFFu, up_to, 1);
    if (lane == 0) largest = 0;
    __syncthreads();
#pragma unroll
    for (u32 w = 0; w < 7; w++)
        if (w < warp) largest = max(largest, few.warps[0][w]);
    u32 own = 0, count = 0;
    for (u32 k = 0; k < each; k++) {
        const u32 t = first + k;
        bool bad = false;
        if (t < last) {
            const u32 begin = few.begin[t], rows = few.rows[t], cols = few.cols[t];
            const u32 end = t + 1 < m.members ? few.begin[t + 1] : length;
            largest = max(largest, begin);
            u32 fitting = 0;
            bad = begin < largest;
            if (!bad && rows > 0 && cols > 0) {
                const u32 fit = min(end > begin ? end - begin : 0, few.before[t]) / cols;
                fitting = min(rows, fit);
                bad = rows > fit;
            }
            const u32 units = fitting == 0 ? 0 : (u32)UNITS::units(begin, fitting, cols);
            few.rows[t] = fitting;
            few.before[t] = units;
            own += units;
        }
        // The same for all threads of the block.
        if (blockIdx.x == 0) count += __syncthreads_count(bad);
    }
    const u32 sum = lanes_sum(own);
    if (lane == 31) few.warps[1][warp] = sum;
    __syncthreads();
    u32 before = sum - own;
#pragma unroll
    for (u32 w = 0; w < 7; w++)
        if (w < warp) before += few.warps[1][w];
    for (u32 t = first; t < last; t++) {
        const u32 units = few.before[t];
        few.before[t] = before;
        before += units;
    }
    if (threadIdx.x == 255) few.before[m.members] = before;
    if (blockIdx.x == 0 && threadIdx.x == 0) *m.clamped = count;
    __syncthreads();
}

// A tile of a member: where it begins, and what of it there is.
struct Tile {
    u64 row, col;
    u32 rows, cols;

    __device__ __forceinline__ Tile(const Extents& e, u32 wide, u64 tile) {
        const u64 across = max((e.cols + (SIDE << wide) - 1) / (SIDE << wide), (u64)1);
        row = tile / across * SIDE;
        col = tile % across * (SIDE << wide);
        rows = (u32)min(e.rows - min(row, e.rows), (u64)SIDE);
        cols = (u32)min(e.cols - min(col, e.cols), (u64)(SIDE << wide));
    }
};

// p / by and the rest, for p below 4096 and `by` from 1 to 64: p times the error of 2^20 / by, which is below by, stays below 2^20.
struct SmallDivisor {
    u32 by, factor;
    __device__ __forceinline__ explicit SmallDivisor(u32 by) : by(by), factor(((1u << 20) + by - 1) / by) {}
    __device__ __forceinline__ u32 divide(u32 p, u32& rest) const {
        const u32 q = p * factor >> 20;
        rest = p - q * by;
        return q;
    }
};

// A block's part of all chunks or tiles, member by member. Every number is the same in all threads of the block.
template <class UNITS> struct Walk {
    const GroupedMembers& m;
    Few& few;
    u32 t;
    u64 unit, last;   // the next, and past the last of the block
    u64 first, stop;  // the first of member t, and past the last of it that is the block's

    // Neighbours, so that a block meets few members.
    __device__ __forceinline__ Walk(const GroupedMembers& m) : m(m), few(few_of_block()), t(0), first(0), stop(0) {
        if (!m.fitting) plan_few<UNITS>(m, few);
        const u64 total = before(m.members), share = total / gridDim.x, more = total % gridDim.x;
        unit = share * blockIdx.x + min((u64)blockIdx.x, more);
        last = unit + share + (blockIdx.x < more ? 1 : 0);
        if (unit < last) find(0);
    }

    __device__ __forceinline__ u64 before(u32 member) const { return m.fitting ? UNITS::before(m)[member] : few.before[member]; }

    // Those of member t. Of numbers that have not changed since `plan_grouped` they are the plan's; of others they lie in the buffer all the same, and are no
    // more elements than a second input has.
    __device__ __forceinline__ Extents extents() const {
        if (!m.fitting) return {few.begin[t], few.rows[t], few.cols[t]};
        const u64 begin = within(m.offsets[t], m.length), cols = m.cols[t] < 0 ? 0 : (u64)m.cols[t];
        const u64 room = m.forward ? min(m.length - begin, m.forward_length) : m.length - begin;
        return {begin, cols == 0 ? 0 : min(m.fitting[t], room / cols), cols};
    }

    __device__ __forceinline__ bool any() const { return unit < last; }

    // The last member from `low` on that begins at `unit` or before: its next one begins behind it, so that it is not empty. All threads ask at
    // once, each for the first of as many neighbours: one or two waits for memory where halving would take ten.
    __device__ __forceinline__ void find(u32 low) {
        u32 count = m.members - low;
        while (count > 1) {
            const u32 each = (count + blockDim.x - 1) / blockDim.x, at = threadIdx.x * each;
            const u32 found = __syncthreads_count(at < count && before(low + at) <= unit) - 1;
            low += found * each;
            count = min(each, count - found * each);
        }
        enter(low);
    }

    __device__ __forceinline__ void enter(u32 member) {
        t = member;
        first = before(t);
        stop = min(before(t + 1), last);
    }

    // Behind the units of a member: the next that has any.
    __device__ __forceinline__ void next() {
        unit = stop;
        if (unit >= last) return;
        if (before(t + 2) > unit) enter(t + 1); else find(t + 1);
    }
};

// How the factors of members are given: FACTOR_ENCODE or FACTOR_DECODE, or by their amax and a rule.
constexpr u32 FACTOR_AMAX = 3;

struct GroupedFactors {
    const float* factor;  // [members], or one that is shared
    float* scales;        // the same number: receives decode factors; null: not wanted
    float* scales_t;      // the same of the transposed output
    u32 kind;             // FACTOR_ENCODE, FACTOR_DECODE or FACTOR_AMAX
    u32 shared;           // 1: all members share one factor, and one amax
    ScaleRule rule;       // of FACTOR_AMAX; its format is that of the codes always
};

__device__ __forceinline__ GroupScale scale_of(const GroupedFactors& f, float factor) {
    if (f.kind == FACTOR_AMAX) return group_scale(f.rule, factor);
    const float other = __frcp_rn(factor);
    return f.kind == FACTOR_ENCODE ? GroupScale{factor, other} : GroupScale{other, factor};
}
__device__ __forceinline__ GroupScale grouped_scale(const GroupedFactors& f, u64 i) { return scale_of(f, f.factor[i]); }

// Of every member, also without elements: no block meets those.
__device__ __forceinline__ void write_scales(const GroupedFactors& f, u32 members) {
    const u64 count = f.shared ? 1 : members;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        const float scale = grouped_scale(f, i).scale;
        if (f.scales) f.scales[i] = scale;
        if (f.scales_t) f.scales_t[i] = scale;
    }
}

// Raises a member's amax by that of all threads of a block. `scratch` has two rows that take turns: a thread that writes one again has
// passed the barrier of the other, behind which all have read this one.
struct RaiseAmax {
    u32 turn = 0;
    __device__ __forceinline__ void raise(float* to, float amax, float (&scratch)[2][32]) {
        amax = block_max(amax, scratch[turn]);
        turn ^= 1;
        if (threadIdx.x == 0 && amax > 0.0f) atomic_max(to, amax);
    }
};

// A source: `load` eight elements at a multiple of eight, as `Raw`; `ask` for the LINE elements about one, to be in L2; `values` makes numbers of them; `one` is the number of an element.
// `enter` is called once for each member, with extents as `Walk` gives them. Places count from the start of the buffer. AT_ONCE: eights that a
// thread asks for together; AHEAD: it asks for the next ones before it computes.
//
// ALIGNED: the buffer begins at a multiple of 16 bytes, and so do eight elements at a multiple of eight, whatever member they are of.
// Of 16-bit types; half as many of FP32. Before sm_90 the compiler has no registers for four.
#if __CUDA_ARCH__ >= 900
constexpr u32 EIGHTS_16 = 4;
#else
constexpr u32 EIGHTS_16 = 2;
#endif

template <class T, bool ALIGNED> struct PlainSource {
    using Raw = Vec8<T>;
    static constexpr u32 AT_ONCE = !ALIGNED ? 1 : EIGHTS_16 * 2 / sizeof(T);
    static constexpr bool AHEAD = AT_ONCE > 1;
    static constexpr u32 LINE = 128 / sizeof(T);
    const T* x;
    __device__ __forceinline__ void enter(const GroupedMembers&, u32, const Extents&) {}
    __device__ __forceinline__ Raw load(u64 at) const { return ::load<ALIGNED>(x + at); }
    __device__ __forceinline__ void ask(u64 at) const { asm volatile("prefetch.global.L2 [%0];" ::"l"(x + at)); }
    __device__ __forceinline__ void values(const Raw& raw, float (&v)[8]) const { unpack(raw, v); }
    __device__ __forceinline__ float one(u64 at) const { return to_float(x[at]); }
};

template <u32 FORMAT> __device__ __forceinline__ u8 encode_byte(float v, float encode) { return (u8)encode_pair<FORMAT>(__fmul_rn(v, encode), 0.0f); }

template <u32 FORMAT> __device__ __forceinline__ uint2 encode_values(const float (&v)[8], float encode) {
    float scaled[8];
#pragma unroll
    for (int i = 0; i < 8; i++) scaled[i] = __fmul_rn(v[i], encode);
    return encode8<FORMAT>(scaled);
}

__device__ __forceinline__ float amax_of(const float (&v)[8], float amax) {
#pragma unroll
    for (int i = 0; i < 8; i++) amax = fmaxf(amax, fabsf(v[i]));
    return amax;
}

// Blocks of a multiprocessor at once, each with its part of the chunks or tiles, or with pieces in turns: src/gpu/kernels/grouped.rs launches as many, or twice.
// Four leave 64 registers: what a thread asks for ahead takes 16 to 32.
constexpr u32 CHUNK_BLOCKS = 4, TILE_BLOCKS_GROUPED = 3;
constexpr u32 GRADIENT_BLOCKS = 3, GRADIENT_TILE_BLOCKS = 2;

// In place of a format: no codes are written.
constexpr u32 NO_CODES = 3;

// Codes by rows, or the amax alone, chunk by chunk. Chunks begin at the multiple of eight elements at or before their member's first, so
// that only its first and last eight are taken one by one; where a chunk has those, each eight is looked at before it is loaded.
template <class S, u32 FORMAT>
__device__ __forceinline__ void grouped_chunks(S source, const GroupedMembers& m, const GroupedFactors& f, u8* codes, float* amax_out) {
    __shared__ float scratch[2][32];
    RaiseAmax raise;
    if (!m.fitting) prefetch_numbers(m, FORMAT == NO_CODES ? nullptr : f.factor, f.shared);
    begin();
    constexpr u32 STEP = 256 * 8, AT_ONCE = S::AT_ONCE;
    const bool wants_amax = FORMAT == NO_CODES || amax_out;
    for (Walk<InChunks> walk(m); walk.any(); walk.next()) {
        const u32 shared_or_own = f.shared ? 0 : walk.t;
        const float encode = FORMAT == NO_CODES ? 1.0f : grouped_scale(f, shared_or_own).encode;
        float amax = 0.0f;
        u64 at, end, begin;
        {
            const Extents e = walk.extents();
            begin = e.begin;
            end = e.begin + e.rows * e.cols;
            at = e.begin / 8 * 8 + (walk.unit - walk.first) * CHUNK;
            source.enter(m, walk.t, e);
        }
        const auto take = [&](const typename S::Raw& raw, u64 here) {
            float v[8];
            source.values(raw, v);
            if (wants_amax) amax = amax_of(v, amax);
            if constexpr (FORMAT != NO_CODES) *(uint2*)(codes + here) = encode_values<FORMAT>(v, encode);
        };
        const auto take_cut = [&]() {
#pragma unroll 1
            for (u32 i = 0; i < CHUNK / STEP; i++) {
                const u64 here = at + threadIdx.x * 8 + i * STEP;
                if (here >= begin && here + 8 <= end) {
                    take(source.load(here), here);
                } else if (here < end) {
                    const u64 to = min(here + 8, end);
#pragma unroll 1
                    for (u64 k = max(here, begin); k < to; k++) {
                        const float v = source.one(k);
                        amax = fmaxf(amax, fabsf(v));
                        if constexpr (FORMAT != NO_CODES) codes[k] = encode_byte<FORMAT>(v, encode);
                    }
                }
            }
            at += CHUNK;
        };
        u32 left = (u32)(walk.stop - walk.unit);
        if (at < begin) {
            take_cut();
            left--;
        }
        const u32 whole = end > at ? (u32)min((u64)left, (end - at) / CHUNK) : 0;
        if (whole > 0) {
            u32 steps = whole * (CHUNK / STEP / AT_ONCE);
            u64 here = at + threadIdx.x * 8;
            typename S::Raw raw[AT_ONCE], next[AT_ONCE];
            const auto ask = [&](typename S::Raw (&to)[AT_ONCE], u64 from) {
#pragma unroll
                for (u32 i = 0; i < AT_ONCE; i++) to[i] = source.load(from + i * STEP);
            };
            if (S::AHEAD) ask(raw, here);
            for (; steps > 0; steps--, here += AT_ONCE * STEP) {
                if (!S::AHEAD) ask(raw, here);
                else if (steps > 1) ask(next, here + AT_ONCE * STEP);
#pragma unroll
                for (u32 i = 0; i < AT_ONCE; i++) {
                    take(raw[i], here + i * STEP);
                    if (S::AHEAD) raw[i] = next[i];
                }
            }
            at += (u64)whole * CHUNK;
        }
        if (whole < left) take_cut();
        if (amax_out) raise.raise(amax_out + shared_or_own, amax, scratch);
    }
    if constexpr (FORMAT != NO_CODES) write_scales(f, m.members);
}

// A tile of codes as bytes, turned. Lines are an odd number of words apart, and every eight one word more: neighbours begin in other banks,
// and so do lines eight apart. Or packed, one behind the other as in memory, from where the first byte is in its 16 there: then they are copied as they lie (0.78 of the
// time of members of 18 rows that gathering each byte took).
struct Turned {
    static constexpr u32 BYTES = 6400;
    u8* bytes;
    u32 pitch, more;

    // Lines of so many places, SIDE * SIDE in all.
    __device__ __forceinline__ Turned(u8 (&memory)[BYTES], u32 places) : bytes(memory), pitch(places + 4), more(4) {}
    __device__ __forceinline__ Turned(u8 (&memory)[BYTES], u32 places, u32 skew) : bytes(memory + skew), pitch(places), more(0) {}
    __device__ __forceinline__ u32 at(u32 line, u32 place) const { return line * pitch + line / 8 * more + place; }
    __device__ __forceinline__ void put(u32 line, u32 place, u8 code) const { bytes[at(line, place)] = code; }
    // Eight codes go to eight lines, from a multiple of eight on.
    __device__ __forceinline__ void put8(u32 line, u32 place, uint2 codes) const {
        const u32 first = at(line, place);
#pragma unroll
        for (u32 i = 0; i < 8; i++) bytes[first + i * pitch] = (u8)((i < 4 ? codes.x : codes.y) >> 8 * (i % 4));
    }
    __device__ __forceinline__ u8 get(u32 line, u32 place) const { return bytes[at(line, place)]; }
    __device__ __forceinline__ uint2 get8(u32 line, u32 place) const {
        const u32* words = (const u32*)(bytes + at(line, place));
        return {words[0], words[1]};
    }
};

// Writes what `code(i)` gives to bytes i of [0, count) from `to` on, whose words of eight lie on multiples of eight: word `word` of those that
// hold any of them.
template <class CODE> __device__ __forceinline__ void store_word(u8* to, u32 count, u32 word, CODE code) {
    const u32 skew = (u32)((u64)to % 8), first = word * 8;
    if (first >= skew && first + 8 <= skew + count) {
        uint2 eight = {0, 0};
#pragma unroll
        for (u32 i = 0; i < 4; i++) eight.x |= (u32)code(first - skew + i) << 8 * i;
#pragma unroll
        for (u32 i = 0; i < 4; i++) eight.y |= (u32)code(first - skew + 4 + i) << 8 * i;
        *(uint2*)(to - skew + first) = eight;
        return;
    }
#pragma unroll 1
    for (u32 i = first < skew ? 0 : first - skew; i < min(first + 8 - skew, count); i++) to[i] = code(i);
}

// Transposed codes, and where `codes` is given also those by rows, tile by tile.
template <class S, u32 FORMAT>
__device__ __forceinline__ void grouped_tiles(S source, const GroupedMembers& m, const GroupedFactors& f, u8* codes, u8* codes_t, float* amax_out) {
    __shared__ float scratch[2][32];
    __shared__ __align__(16) u8 memory[Turned::BYTES];
    constexpr u32 AT_ONCE = S::AT_ONCE > 1 && sizeof(typename S::Raw) == 16 ? 2 : 1;
    RaiseAmax raise;
    if (!m.fitting) prefetch_numbers(m, f.factor, f.shared);
    begin();
    write_scales(f, m.members);
    for (Walk<InTiles> walk(m); walk.any(); walk.next()) {
        const Extents e = walk.extents();
        const u32 wide = wide_of(e.rows), shared_or_own = f.shared ? 0 : walk.t;
        const float encode = grouped_scale(f, shared_or_own).encode;
        // Whether every row, and every column, begins at a multiple of eight elements.
        const bool eights = e.begin % 8 == 0 && e.cols % 8 == 0, eights_t = e.begin % 8 == 0 && e.rows % 8 == 0;
        const bool packed = !eights_t && e.rows <= SIDE;
        source.enter(m, walk.t, e);
        float amax = 0.0f;
        for (u64 at = walk.unit - walk.first; at < walk.stop - walk.first; at++) {
            const Tile tile(e, wide, at);
            const u64 from = e.begin + tile.row * e.cols + tile.col;
            u8* const to = codes_t + e.begin + tile.col * e.rows + tile.row;
            const u32 skew = (u32)((u64)to % 16);
            const Turned turned = packed ? Turned(memory, (u32)e.rows, skew) : Turned(memory, SIDE >> wide);
            if (eights) {
#pragma unroll 1
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE / 8; slot += 256 * AT_ONCE) {
                    typename S::Raw raw[AT_ONCE];
                    const auto row = [&](u32 i) { return (slot + 256 * i) >> (3 + wide); };
                    const u32 c = (slot & ((8u << wide) - 1)) * 8;
#pragma unroll
                    for (u32 i = 0; i < AT_ONCE; i++)
                        if (c < tile.cols && row(i) < tile.rows) raw[i] = source.load(from + row(i) * e.cols + c);
                    // The lines of the tile beside it are on their way meanwhile: 0.85 to 0.93 of the time (observed: H200, 2026-11).
                    if (c % S::LINE == 0 && tile.col + (SIDE << wide) + c < e.cols)
#pragma unroll
                        for (u32 i = 0; i < AT_ONCE; i++)
                            if (row(i) < tile.rows) source.ask(from + row(i) * e.cols + (SIDE << wide) + c);
#pragma unroll
                    for (u32 i = 0; i < AT_ONCE; i++) {
                        if (c >= tile.cols || row(i) >= tile.rows) continue;
                        float v[8];
                        source.values(raw[i], v);
                        amax = amax_of(v, amax);
                        const uint2 eight = encode_values<FORMAT>(v, encode);
                        if (codes) *(uint2*)(codes + from + row(i) * e.cols + c) = eight;
                        turned.put8(c, row(i), eight);
                    }
                }
            } else {
#pragma unroll 1
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE; slot += 256) {
                    const u32 r = slot >> (6 + wide), c = slot & ((SIDE << wide) - 1);
                    if (r >= tile.rows || c >= tile.cols) continue;
                    const float v = source.one(from + r * e.cols + c);
                    amax = fmaxf(amax, fabsf(v));
                    const u8 code = encode_byte<FORMAT>(v, encode);
                    if (codes) codes[from + r * e.cols + c] = code;
                    turned.put(c, r, code);
                }
            }
            __syncthreads();
            if (eights_t) {
#pragma unroll 1
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE / 8; slot += 256) {
                    const u32 c = slot >> (3 - wide), r = (slot & ((8u >> wide) - 1)) * 8;
                    if (c < tile.cols && r < tile.rows) *(uint2*)(to + c * e.rows + r) = turned.get8(c, r);
                }
            } else if (packed) {
                // All rows: the columns of the tile lie one behind the other.
                const u32 end = skew + tile.rows * tile.cols;
                u8* const aligned = to - skew;
#pragma unroll 1
                for (u32 first = threadIdx.x * 16; first < end; first += 256 * 16) {
                    if (first >= skew && first + 16 <= end) {
                        *(uint4*)(aligned + first) = *(const uint4*)(memory + first);
                        continue;
                    }
#pragma unroll 1
                    for (u32 i = max(first, skew); i < min(first + 16, end); i++) aligned[i] = memory[i];
                }
            } else {
#pragma unroll 1
                for (u32 slot = threadIdx.x; slot < SIDE * 9; slot += 256) {
                    const u32 c = slot / 9;
                    if (c < tile.cols) store_word(to + c * e.rows, tile.rows, slot % 9, [&](u32 i) { return turned.get(c, i); });
                }
            }
            // The next tile is put where this one is read.
            __syncthreads();
        }
        if (amax_out) raise.raise(amax_out + shared_or_own, amax, scratch);
    }
}
