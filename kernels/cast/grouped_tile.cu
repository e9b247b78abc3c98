// Grouped tensors with the codes of members transposed. See grouped.cuh.
#include "cast/grouped.cuh"

#define QUANTIZE_GROUPED_TILES(name, T, ALIGNED, ...)                                                                     \
    extern "C" __global__ void __launch_bounds__(256, TILE_BLOCKS_GROUPED) quantize_grouped_tiles_##name(                                   \
        const T* __restrict__ x,   /* the buffer, [m.length] at least */                                                  \
        GroupedMembers m, GroupedFactors f,                                                                               \
        u8* __restrict__ codes,    /* [m.length], 16-byte aligned, by rows; null: not wanted */                           \
        u8* __restrict__ codes_t,  /* the same of the transposed codes */                                                 \
        float* amax)               /* [members], or one that is shared: raised to max |x|; null: not wanted */            \
    {                                                                                                                     \
        if (f.rule.format == E4M3) grouped_tiles<PlainSource<T, ALIGNED>, E4M3>({x}, m, f, codes, codes_t, amax);         \
        else grouped_tiles<PlainSource<T, ALIGNED>, E5M2>({x}, m, f, codes, codes_t, amax);                               \
    }
FOR_EACH_TYPE(QUANTIZE_GROUPED_TILES)

// y = round(fl(code * scale)) by rows, of transposed codes.
template <class T, bool ALIGNED>
__device__ __forceinline__ void dequantize_tiles(const u8* codes_t, const float* scales, const GroupedMembers& m, u32 shared, u32 format, T* y) {
    __shared__ __align__(16) u8 memory[Turned::BYTES];
    begin();
    for (Walk<InTiles> walk(m); walk.any(); walk.next()) {
        const Extents e = walk.extents();
        const u32 wide = wide_of(e.rows);
        Turned turned(memory, SIDE << wide);
        const float scale = __ldg(scales + (shared ? 0 : walk.t));
        const bool eights = e.begin % 8 == 0 && e.cols % 8 == 0, eights_t = e.begin % 8 == 0 && e.rows % 8 == 0;
        for (u64 at = walk.unit - walk.first; at < walk.stop - walk.first; at++) {
            const Tile tile(e, wide, at);
            const u64 from = e.begin + tile.col * e.rows + tile.row, to = e.begin + tile.row * e.cols + tile.col;
            if (eights_t) {
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE / 8; slot += 256) {
                    const u32 c = slot >> (3 - wide), r = (slot & ((8u >> wide) - 1)) * 8;
                    if (c < tile.cols && r < tile.rows) turned.put8(r, c, __ldg((const uint2*)(codes_t + from + c * e.rows + r)));
                }
            } else if (e.rows <= SIDE) {
                const SmallDivisor divisor(tile.rows);
                for (u32 i = threadIdx.x; i < tile.rows * tile.cols; i += 256) {
                    u32 r;
                    const u32 c = divisor.divide(i, r);
                    turned.put(r, c, codes_t[from + i]);
                }
            } else {
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE; slot += 256) {
                    const u32 c = slot / SIDE, r = slot % SIDE;
                    if (c < tile.cols && r < tile.rows) turned.put(r, c, codes_t[from + c * e.rows + r]);
                }
            }
            __syncthreads();
            float v[8];
            if (eights) {
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE / 8; slot += 256) {
                    const u32 r = slot >> (3 + wide), c = (slot & ((8u << wide) - 1)) * 8;
                    if (c >= tile.cols || r >= tile.rows) continue;
                    decode8(format, turned.get8(r, c), v);
#pragma unroll
                    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], scale);
                    store<ALIGNED>(y + to + r * e.cols + c, v);
                }
            } else {
                for (u32 slot = threadIdx.x; slot < SIDE * SIDE; slot += 256) {
                    const u32 r = slot >> (6 + wide), c = slot & ((SIDE << wide) - 1);
                    if (c >= tile.cols || r >= tile.rows) continue;
                    float unused;
                    decode_pair(format, turned.get(r, c), v[0], unused);
                    y[to + r * e.cols + c] = from_float<T>(__fmul_rn(v[0], scale));
                }
            }
            // The next tile is put where this one is read.
            __syncthreads();
        }
    }
}

#define DEQUANTIZE_GROUPED_TILES(name, T, ALIGNED, ...)                                                                   \
    extern "C" __global__ void __launch_bounds__(256, TILE_BLOCKS_GROUPED) dequantize_grouped_tiles_##name(                                 \
        const u8* __restrict__ codes_t,    /* [m.length], 16-byte aligned, members transposed */                          \
        const float* __restrict__ scales,  /* [members], or one that is shared */                                         \
        GroupedMembers m, u32 shared, u32 format,                                                                         \
        T* __restrict__ y)                 /* the buffer by rows, [m.length] at least; gaps are left alone */             \
    { dequantize_tiles<T, ALIGNED>(codes_t, scales, m, shared, format, y); }
FOR_EACH_TYPE(DEQUANTIZE_GROUPED_TILES)
