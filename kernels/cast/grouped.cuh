// Grouped tensors: what their kernels share. Members of any shapes lie in one buffer; how many rows each has is known on the device alone,
// and may be anything: `plan_grouped` (grouped.cu) says which rows lie where they may, and the other kernels touch no others.
#pragma once
#include "cast/tile.cuh"

// Elements of a chunk, and rows and columns of a tile: what a block takes of a member at once.
constexpr u32 CHUNK = 4096;
constexpr u32 SIDE = 64;

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

// Extents of a member: begin + rows * cols is at most `length`.
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
    static __device__ __forceinline__ u64 units(u64, u64 rows, u64 cols) { return ((rows + SIDE - 1) / SIDE) * ((cols + SIDE - 1) / SIDE); }
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

// What each block finds itself of so many members at the most, in a buffer of fewer than 2^32 - 1 elements: what `plan_grouped` would write, without
// a launch before and a chain of loads from memory behind it.
constexpr u32 FEW = 1024;

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

// By all 256 threads of a block. The numbers are read once: what others write meanwhile cannot lead outside.
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

// Tiles of a member across its columns, and what of a tile there is from here on.
__device__ __forceinline__ u64 tiles_across(const Extents& e) { return max((e.cols + SIDE - 1) / SIDE, (u64)1); }
__device__ __forceinline__ u32 tile_part(u64 all, u64 from) { return (u32)min(all - min(from, all), (u64)SIDE); }

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

    // Those of member t. Of numbers that have not changed since `plan_grouped` they are the plan's; of others they lie in the buffer all the same.
    __device__ __forceinline__ Extents extents() const {
        if (!m.fitting) return {few.begin[t], few.rows[t], few.cols[t]};
        const u64 begin = within(m.offsets[t], m.length), cols = m.cols[t] < 0 ? 0 : (u64)m.cols[t];
        return {begin, cols == 0 ? 0 : min(m.fitting[t], (m.length - begin) / cols), cols};
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

__device__ __forceinline__ GroupScale grouped_scale(const GroupedFactors& f, u64 i) {
    return f.kind == FACTOR_AMAX ? group_scale(f.rule, f.factor[i]) : given_scale(f.factor + i, f.kind);
}

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

// A source: `load` eight elements at a multiple of eight, as `Raw`; `values` makes numbers of them; `one` is the number of an element.
// `enter` is called once for each member. Places count from the start of the buffer. AT_ONCE: eights that a thread asks for together; AHEAD:
// it asks for the next ones before it computes.
//
// ALIGNED: the buffer begins at a multiple of 16 bytes, and so do eight elements at a multiple of eight, whatever member they are of.
template <class T, bool ALIGNED> struct PlainSource {
    using Raw = Vec8<T>;
    static constexpr u32 AT_ONCE = sizeof(T) == 4 || !ALIGNED ? 1 : 2;
    static constexpr bool AHEAD = ALIGNED;
    const T* x;
    __device__ __forceinline__ void enter(u32, u64) {}
    __device__ __forceinline__ Raw load(u64 at) const { return ::load<ALIGNED>(x + at); }
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

// Blocks of a multiprocessor, all of them at once, each with its part of the chunks or tiles: src/gpu/kernels/grouped.rs launches as many.
// Four leave 64 registers: what a thread asks for ahead takes 8 to 16.
constexpr u32 CHUNK_BLOCKS = 4, TILE_BLOCKS_GROUPED = 3;
constexpr u32 GRADIENT_BLOCKS = 3, GRADIENT_TILE_BLOCKS = 2;

// In place of a format: no codes are written.
constexpr u32 NO_CODES = 3;

// What a thread takes next of the chunks of a block: from `at` on, of a member of [begin, end).
struct Piece {
    u64 at, begin, end;
    float encode;
    u32 t;
};

// Codes by rows, or the amax alone, chunk by chunk. Chunks begin at the multiple of eight elements at or before their member's first, so
// that only its first and last eight are taken one by one. Where a source asks ahead it does so past the end of a member.
template <class S, u32 FORMAT>
__device__ __forceinline__ void grouped_chunks(S source, const GroupedMembers& m, const GroupedFactors& f, u8* codes, float* amax_out) {
    __shared__ float scratch[2][32];
    RaiseAmax raise;
    begin();
    constexpr u32 STEP = 256 * 8, AT_ONCE = S::AT_ONCE;
    Walk<InChunks> walk(m);
    u64 left = 0;  // steps of this member, this one too
    Piece now;
    const auto enter = [&](Piece& piece) {
        const Extents e = walk.extents();
        piece.begin = e.begin;
        piece.end = e.begin + e.rows * e.cols;
        piece.t = walk.t;
        piece.encode = FORMAT == NO_CODES ? 1.0f : grouped_scale(f, f.shared ? 0 : walk.t).encode;
        piece.at = e.begin / 8 * 8 + (walk.unit - walk.first) * CHUNK + threadIdx.x * 8;
        left = (walk.stop - walk.unit) * (CHUNK / STEP / AT_ONCE);
    };
    typename S::Raw raw[AT_ONCE], next[AT_ONCE];
    const auto ask = [&](typename S::Raw (&to)[AT_ONCE], const Piece& piece) {
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u64 here = piece.at + i * STEP;
            if (here >= piece.begin && here + 8 <= piece.end) to[i] = source.load(here);
        }
    };
    float amax = 0.0f;
    bool any = walk.any();
    if (any) {
        enter(now);
        source.enter(now.t, now.begin);
        if (S::AHEAD) ask(raw, now);
    }
    while (any) {
        if (!S::AHEAD) ask(raw, now);
        // No block has a part of a member without a chunk of it.
        Piece then = now;
        then.at += AT_ONCE * STEP;
        if (--left == 0) {
            walk.next();
            any = walk.any();
            if (any) enter(then);
        }
        if (S::AHEAD && any) ask(next, then);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u64 here = now.at + i * STEP;
            if (here >= now.begin && here + 8 <= now.end) {
                float v[8];
                source.values(raw[i], v);
                amax = amax_of(v, amax);
                if constexpr (FORMAT != NO_CODES) *(uint2*)(codes + here) = encode_values<FORMAT>(v, now.encode);
            } else if (here < now.end) {
                const u64 to = min(here + 8, now.end);
#pragma unroll 1
                for (u64 k = max(here, now.begin); k < to; k++) {
                    const float v = source.one(k);
                    amax = fmaxf(amax, fabsf(v));
                    if constexpr (FORMAT != NO_CODES) codes[k] = encode_byte<FORMAT>(v, now.encode);
                }
            }
            if (S::AHEAD) raw[i] = next[i];
        }
        if (!any || then.t != now.t) {
            if (amax_out) raise.raise(amax_out + (f.shared ? 0 : now.t), amax, scratch);
            amax = 0.0f;
            if (any) source.enter(then.t, then.begin);
        }
        now = then;
    }
    if constexpr (FORMAT != NO_CODES) write_scales(f, m.members);
}

// A tile of codes as bytes, turned. Lines are 17 words apart: an odd number, so that neighbours begin in other banks.
struct Turned {
    static constexpr u32 PITCH = SIDE + 4;
    u8 bytes[SIDE * PITCH];
    __device__ __forceinline__ void put(u32 line, u32 place, u8 code) { bytes[line * PITCH + place] = code; }
    // Eight codes along a line go to eight lines.
    __device__ __forceinline__ void put8(u32 line, u32 place, uint2 codes) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) put(line + i, place, (u8)((i < 4 ? codes.x : codes.y) >> 8 * (i % 4)));
    }
    __device__ __forceinline__ u8 get(u32 line, u32 place) const { return bytes[line * PITCH + place]; }
    __device__ __forceinline__ uint2 get8(u32 line, u32 place) const {
        const u32* words = (const u32*)(bytes + line * PITCH + place);
        return {words[0], words[1]};
    }
};

// Transposed codes, and where `codes` is given also those by rows, tile by tile.
template <class S, u32 FORMAT>
__device__ __forceinline__ void grouped_tiles(S source, const GroupedMembers& m, const GroupedFactors& f, u8* codes, u8* codes_t, float* amax_out) {
    __shared__ float scratch[2][32];
    __shared__ __align__(16) Turned turned;
    RaiseAmax raise;
    begin();
    write_scales(f, m.members);
    for (Walk<InTiles> walk(m); walk.any(); walk.next()) {
        const Extents e = walk.extents();
        const u64 across = tiles_across(e);
        const u32 shared_or_own = f.shared ? 0 : walk.t;
        const float encode = grouped_scale(f, shared_or_own).encode;
        // Whether every row, and every column, begins at a multiple of eight elements.
        const bool eights = e.begin % 8 == 0 && e.cols % 8 == 0, eights_t = e.begin % 8 == 0 && e.rows % 8 == 0;
        source.enter(walk.t, e.begin);
        float amax = 0.0f;
        for (u64 tile = walk.unit - walk.first; tile < walk.stop - walk.first; tile++) {
            const u64 row = tile / across * SIDE, col = tile % across * SIDE;
            const u32 rows = tile_part(e.rows, row), cols = tile_part(e.cols, col);
            const u64 from = e.begin + row * e.cols + col, to = e.begin + col * e.rows + row;
            if (eights) {
                const u32 c = threadIdx.x % 8 * 8;
#pragma unroll 1
                for (u32 r = threadIdx.x / 8; r < SIDE; r += 32 * S::AT_ONCE) {
                    typename S::Raw raw[S::AT_ONCE];
#pragma unroll
                    for (u32 i = 0; i < S::AT_ONCE; i++)
                        if (c < cols && r + 32 * i < rows) raw[i] = source.load(from + (r + 32 * i) * e.cols + c);
#pragma unroll
                    for (u32 i = 0; i < S::AT_ONCE; i++) {
                        if (c >= cols || r + 32 * i >= rows) continue;
                        float v[8];
                        source.values(raw[i], v);
                        amax = amax_of(v, amax);
                        const uint2 eight = encode_values<FORMAT>(v, encode);
                        if (codes) *(uint2*)(codes + from + (r + 32 * i) * e.cols + c) = eight;
                        turned.put8(c, r + 32 * i, eight);
                    }
                }
            } else {
#pragma unroll 1
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE; slot += 256) {
                    const u32 r = slot / SIDE, c = slot % SIDE;
                    if (r >= rows || c >= cols) continue;
                    const float v = source.one(from + r * e.cols + c);
                    amax = fmaxf(amax, fabsf(v));
                    const u8 code = encode_byte<FORMAT>(v, encode);
                    if (codes) codes[from + r * e.cols + c] = code;
                    turned.put(c, r, code);
                }
            }
            __syncthreads();
            if (eights_t) {
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE / 8; slot += 256) {
                    const u32 c = slot / 8, r = slot % 8 * 8;
                    if (c < cols && r < rows) *(uint2*)(codes_t + to + c * e.rows + r) = turned.get8(c, r);
                }
            } else {
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE; slot += 256) {
                    const u32 c = slot / SIDE, r = slot % SIDE;
                    if (c < cols && r < rows) codes_t[to + c * e.rows + r] = turned.get(c, r);
                }
            }
            // The next tile is put where this one is read.
            __syncthreads();
        }
        if (amax_out) raise.raise(amax_out + shared_or_own, amax, scratch);
    }
}
