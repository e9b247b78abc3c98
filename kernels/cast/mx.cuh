// MX formats: codes of FP8 or E2M1 with one power of two (E8M0) for each 32 elements of a row; along rows, transposed, and back.
// Mirror of src/format/mx.rs and src/reference/mx.rs.
#pragma once
#include "cast/cast.cuh"
#include "cast/dequantize_blocks.cuh"
#include "cast/tile.cuh"

// Rules for the scale byte, as the kernels receive them (src/gpu/kernels/mx.rs).
constexpr u32 MX_UP = 0;
constexpr u32 MX_CEIL = 2;  // 1 is the floor alone
constexpr u32 MX_EVEN = 3;
constexpr u32 MX_RCEIL = 4;

struct MxRule {
    u32 rounding;       // MX_UP ... MX_RCEIL
    u32 format;         // E4M3, E5M2 or E2M1
    float inverse_max;  // fl(1 / 448), fl(1 / 57344) or fl(1 / 6)
    int largest;        // exponent of the largest value: 8, 15 or 2
    u32 half_step;      // half a step of the code's mantissa, as an FP32 pattern
};

// The scale byte of a block; amax is not negative and not NaN.
__device__ __forceinline__ u32 mx_byte(const MxRule& rule, float amax) {
    u32 bits = __float_as_uint(amax);
    const bool infinite = bits == 0x7F800000u;
    if (rule.rounding == MX_UP || rule.rounding == MX_RCEIL) {
        if (infinite) return rule.rounding == MX_UP ? 254 : 255;
        const u32 v = __float_as_uint(__fmul_rn(amax, rule.inverse_max));
        const u32 exponent = v >> 23, mantissa = v & 0x7FFFFF;
        return exponent + (exponent == 0 ? mantissa > 0x400000 : mantissa != 0 && exponent < 254);
    }
    if (infinite) return 255;
    if (rule.rounding == MX_EVEN) bits += rule.half_step;
    int exponent = (int)(bits >> 23) - 127;
    if (rule.rounding == MX_CEIL && (bits & 0x7FFFFF)) exponent++;
    return (u32)(min(max(exponent - rule.largest, -127), 127) + 127);
}

// What multiplies the data of a block with this scale byte: 2^(127 - byte).
__device__ __forceinline__ float mx_encode(u32 byte) {
    if (byte >= 254) return __uint_as_float(byte == 255 ? 0x7FFFFFFFu : 0x00400000u);
    return __uint_as_float((254 - byte) << 23);
}

// 2^(byte - 127).
__device__ __forceinline__ float mx_scale(u32 byte) {
    if (byte == 0) return __uint_as_float(0x00400000u);
    return __uint_as_float(byte == 255 ? 0x7FC00000u : byte << 23);
}

// Both factors of a block, as `cast_scale` of cast.cuh gives those of casts. The exponent of the scale is the byte.
template <u32 FORMAT> __device__ __forceinline__ GroupScale cast_scale(const MxRule& rule, float amax) {
    const u32 byte = mx_byte(rule, amax);
    return {mx_encode(byte), mx_scale(byte)};
}

// Bytes of so many codes, an even number of E2M1.
template <u32 FORMAT> __device__ __forceinline__ u64 code_bytes(u64 codes) { return FORMAT == E2M1 ? codes / 2 : codes; }

// Codes of eight products, or of eight elements times a factor.
template <u32 FORMAT> __device__ __forceinline__ auto codes_of_products(const float (&v)[8]) { return encode_products<FORMAT, false>(Numbers{v}, v); }
template <u32 FORMAT> __device__ __forceinline__ void store_codes(u8* to, const float (&v)[8]) { *(typename EightCodes<FORMAT>::Type*)to = codes_of_products<FORMAT>(v); }
template <u32 FORMAT, class T> __device__ __forceinline__ auto scaled_codes(const Vec8<T>& x, float factor) {
    float v[8];
    unpack(x, v);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], factor);
    return codes_of_products<FORMAT>(v);
}
template <u32 FORMAT, class T> __device__ __forceinline__ void store_scaled(u8* to, const Vec8<T>& x, float factor) { *(typename EightCodes<FORMAT>::Type*)to = scaled_codes<FORMAT>(x, factor); }

// max |x| of a block, NaN dropped, of which this lane and its neighbour have sixteen each. `clean`: whether neither has a NaN, where blocks are compared BY_PATTERNS. All lanes come here together.
template <class T> __device__ __forceinline__ float block_amax(Vec8<T> (&x)[2], bool& clean) {
    if constexpr (BY_PATTERNS<T>) {
        const u32 m = largest_sizes(x);
        float amax = larger_half<T>(max_u16x2(m, __shfl_xor_sync(0xFFFFFFFFu, m, 1)));
        clean = amax == amax;
        if (__any_sync(0xFFFFFFFFu, !clean)) {
            const float known = lanes_max<2>(amax8(x[1], amax8(x[0], 0.0f)));
            if (!clean) amax = known;
        }
        return amax;
    } else {
        clean = false;
        return lanes_max<2>(amax8(x[1], amax8(x[0], 0.0f)));
    }
}

#ifdef E2M1_BY_POWER
// The biased exponent, in T, of the factor 2^(127 - byte), and whether it and its half are normal numbers: the largest has twice the exponent of 1.
template <class T> constexpr u32 EXPONENT_OF_ONE = 127;
template <> constexpr u32 EXPONENT_OF_ONE<F16> = 15;
template <class T> __device__ __forceinline__ u32 power_of_byte(u32 byte) { return EXPONENT_OF_ONE<T> + 127 - byte; }
template <class T> __device__ __forceinline__ bool has_power_of_byte(u32 byte) { return power_of_byte<T>(byte) - 2 <= 2 * EXPONENT_OF_ONE<T> - 2; }
#endif

// Sixteen E2M1 codes of a block with this scale byte. `clean`: without NaN.
template <class T> __device__ __forceinline__ uint2 e2m1_codes16(Vec8<T> (&x)[2], u32 byte, bool clean) {
#ifdef E2M1_BY_POWER
    if (clean && has_power_of_byte<T>(byte)) {
        // By other rules than the upward ones products come up to 8.
        const u32 power = power_of_byte<T>(byte) * octave16<T>;
        return {encode8_e2m1_by_power<T, false>(x[0].q[0], power), encode8_e2m1_by_power<T, false>(x[1].q[0], power)};
    }
#endif
    const float factor = mx_encode(byte);
    u32 codes[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        forget(x[h]);
        codes[h] = scaled_codes<E2M1>(x[h], factor);
    }
    return {codes[0], codes[1]};
}

// To E2M1 of aligned elements of 16 bits, for which instructions are the limit: a warp takes four rows, 32 apart, by 256 columns, a lane two times sixteen neighbours, each half a block, so that what a lane does once serves
// 32 elements. Sixteen scale bytes of a warp lie side by side.
template <class T> __device__ __forceinline__ void quantize_rows16(const T* x, u64 x_stride, u32 rows, u32 cols, const MxRule& rule, u8* codes, u8* block_scales) {
    constexpr u32 PIECES = 2, COLS = 128 * PIECES;
    const u32 chunks = (cols + COLS - 1) / COLS, tiles = (cols + 127) / 128, lane = threadIdx.x % 32;
    const u32 unit = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, group = unit / chunks, col = unit % chunks * COLS + lane % 8 * 16;
    const u64 row = (u64)(group / 32) * 128 + group % 32 + 32 * (lane / 8);
    const T* in = x + row * x_stride + col;
    const u32 right = row < rows && col < cols ? cols - col : 0;  // columns that are there
    begin();
    Vec8<T> data[PIECES][2];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        data[i][0] = data[i][1] = zero8<T>();
        load8_if(128 * i < right, data[i][0], in + 128 * i);
        load8_if(128 * i < right, data[i][1], in + 128 * i + 8);
    }
    u8* const to = once(codes + (row * cols + col) / 2);
    u8* const scales = once(block_scales + tiled_index((cols + 31) / 32, row, col / 32));
    const bool scaled = lane % 2 == 0 && row < ((u64)rows + 127) / 128 * 128;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        bool clean;
        // Rows and columns past the end are zeros and get scale byte 0: the padding. Neighbouring tiles of scales are 512 bytes apart.
        const u32 byte = mx_byte(rule, block_amax(data[i], clean));
        if (scaled && col / 128 + i < tiles) scales[512 * i] = (u8)byte;
        if (128 * i < right) *(uint2*)(to + 64 * i) = e2m1_codes16(data[i], byte, clean);
    }
}

// A warp takes four rows, 32 apart, by 128 columns: eight lanes a row, sixteen elements a lane, in two loads that each cover
// 128 consecutive bytes; the sixteen scale bytes of a warp lie side by side. Lane l of a row holds columns 8 l .. 8 l + 7 of
// each half of 64, so a block of 32 is four lanes of one half.
template <class T, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void quantize_rows(const T* x, u64 x_stride, u32 rows, u32 cols, const MxRule& rule, u8* codes, u8* block_scales) {
    if constexpr (FORMAT == E2M1 && ALIGNED && sizeof(T) == 2) return quantize_rows16(x, x_stride, rows, cols, rule, codes, block_scales);
    const u32 chunks = (cols + 127) / 128, blocks = (cols + 31) / 32;
    const u32 lane = threadIdx.x % 32;
    const u64 unit = (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const u64 group = unit / chunks, row = group / 32 * 128 + group % 32 + 32 * (lane / 8);
    const u32 col = (u32)(unit % chunks) * 128 + lane % 8 * 8;
    const T* in = x + row * x_stride + col;
    begin();
    Vec8<T> data[2];
#pragma unroll
    for (int h = 0; h < 2; h++) data[h] = row < rows && col + 64 * h < cols ? load<ALIGNED>(in + 64 * h) : zero8<T>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        // Rows and columns past the end read as zeros and get scale byte 0: the padding.
        const u32 byte = mx_byte(rule, lanes_max<4>(amax8(data[h], 0.0f)));
        const u32 block = (col + 64 * h) / 32;
        if (lane % 4 == 0 && row < ((u64)rows + 127) / 128 * 128) block_scales[tiled_index(blocks, row, block)] = (u8)byte;
        forget(data[h]);
        if (row < rows && col + 64 * h < cols) store_scaled<FORMAT>(codes + code_bytes<FORMAT>(row * cols + col + 64 * h), data[h], mx_encode(byte));
    }
}

struct MxOut {
    u8* codes;           // [rows][cols], E2M1 two a byte, 8-byte aligned; null: not wanted
    u8* block_scales;    // tiled 128x4 of [rows][ceil(cols / 32)]
    u8* codes_t;         // [cols][rows], E2M1 two a byte, 16-byte aligned; null: not wanted
    u8* block_scales_t;  // tiled 128x4 of [cols][ceil(rows / 32)]
};

// Place of a scale within a tile of 128 x 4.
__device__ __forceinline__ u32 scale_place(u32 row, u32 block) { return row % 32 * 16 + row / 32 * 4 + block; }

// Eight codes of a row with this scale byte.
template <u32 FORMAT, class T> __device__ __forceinline__ void store_row(u8* to, const Vec8<T>& x, u32 byte, bool clean, u32 sizes) {
#ifdef E2M1_BY_POWER
    if constexpr (FORMAT == E2M1 && sizeof(T) == 2) {
        if (clean && has_power_of_byte<T>(byte)) {
            *(u32*)to = encode8_e2m1_by_power<T, false>(x.q[0], power_of_byte<T>(byte) * octave16<T>, sizes);
            return;
        }
    }
#endif
    store_scaled<FORMAT>(to, x, mx_encode(byte));
}

// Codes of neighbouring columns 2 k and 2 k + 1, of eight rows each.
template <u32 FORMAT, class T, class UNIT> __device__ __forceinline__ void two_columns(const Vec8<T> (&data)[8], int k, const u32 (&bytes)[2], bool clean, u32 sizes, UNIT (&codes)[2]) {
#ifdef E2M1_BY_POWER
    if constexpr (FORMAT == E2M1 && sizeof(T) == 2) {
        if (clean && has_power_of_byte<T>(bytes[0]) && has_power_of_byte<T>(bytes[1])) {
            u32 x[8];
#pragma unroll
            for (int r = 0; r < 8; r++) x[r] = word(data[r].q[0], k);
            const uint2 both = encode_columns_e2m1_by_power<T>(x, (power_of_byte<T>(bytes[0]) | power_of_byte<T>(bytes[1]) << 16) * (octave16<T> & 0xFFFF), sizes);
            codes[0] = both.x, codes[1] = both.y;
            return;
        }
    }
#endif
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float factor = mx_encode(bytes[i]);
        float v[8];
#pragma unroll
        for (int r = 0; r < 8; r++) v[r] = __fmul_rn(element(data[r], 2 * k + i), factor);
        codes[i] = codes_of_products<FORMAT>(v);
    }
}

// Room for the transposed codes of a tile, which kernels of more than one format have once.
template <class UNIT> __device__ __forceinline__ UNIT* units_of_tile() {
    __shared__ __align__(16) UNIT units[128 * 16];
    return units;
}

// A tile of 128 x 128 as in tile.cuh: the 32 rows of a warp are one block of each of its columns, and four lanes of a row one
// block of that row, so every scale is found by shuffles. A tile's scales are one tile of 128 x 4 in either output.
template <class T, bool ALIGNED, u32 FORMAT>
__device__ __forceinline__ void quantize_tile_mx(const T* x, u64 x_stride, u32 rows, u32 cols, const MxRule& rule, const MxOut& out) {
    const u32 tiles = (cols + 127) / 128, tile_row = blockIdx.x / tiles, tile_col = blockIdx.x % tiles;
    const Place p = place();
    const u64 row = (u64)tile_row * 128 + p.row, col = (u64)tile_col * 128 + p.col;
    __shared__ __align__(16) u8 collected[512], collected_t[512];
    begin();
    Vec8<T> data[8];
    load_tile<ALIGNED>(data, x, x_stride, row, col, rows, cols);
    // Scale bytes first, through shared memory: what they need is out of the registers then. Four lanes share a block of a row, and four one of a column.
    const bool clean = line_maxima<4>(
        data, out.codes, out.codes_t,
        [&](u32 r, float amax) { collected[scale_place(p.row + r, p.col / 32)] = (u8)mx_byte(rule, amax); },
        [&](u32 c, float amax) { collected_t[scale_place(p.col + c, p.row / 32)] = (u8)mx_byte(rule, amax); });
    __syncthreads();
    // Seen as the mask of `line_maxima`, all that it made would be kept until here, and spill.
    const u32 sizes = blockDim.x / 256 * 0x7FFF7FFFu;
    if (out.codes && col < cols) {
        u8* to = out.codes + code_bytes<FORMAT>(row * cols + col);
#pragma unroll
        for (int r = 0; r < 8; r++) {
            forget(data[r]);
            if (row + r >= rows) break;
            store_row<FORMAT>(to, data[r], collected[scale_place(p.row + r, p.col / 32)], clean, sizes);
            to += code_bytes<FORMAT>(cols);
        }
    }
    // The scales of a tile are 512 bytes in either output; as single bytes they would be stores of parts of sectors.
    if (out.codes && threadIdx.x < 32) ((uint4*)(out.block_scales + ((u64)tile_row * tiles + tile_col) * 512))[threadIdx.x] = ((const uint4*)collected)[threadIdx.x];
    if (!out.codes_t) return;
    if (threadIdx.x / 32 == 1)
        ((uint4*)(out.block_scales_t + ((u64)tile_col * ((rows + 127) / 128) + tile_row) * 512))[threadIdx.x % 32] = ((const uint4*)collected_t)[threadIdx.x % 32];
    // Through shared memory, as in `quantize_tile`: the codes of a column lie together.
    using Unit = typename EightCodes<FORMAT>::Type;
    Unit* const units = units_of_tile<Unit>();
#pragma unroll
    for (int r = 0; r < 8; r++) forget(data[r]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 bytes[2];
        Unit codes[2];
#pragma unroll
        for (int i = 0; i < 2; i++) bytes[i] = collected_t[scale_place(p.col + 2 * k + i, p.row / 32)];
        two_columns<FORMAT>(data, k, bytes, clean, sizes, codes);
#pragma unroll
        for (int i = 0; i < 2; i++) units[(p.col + 2 * k + i) * 16 + (p.row / 8 ^ threadIdx.x % 8 * 2)] = codes[i];
    }
    __syncthreads();
    // A thread takes sixteen rows; there are a multiple of them.
    const u64 row_t = (u64)tile_row * 128 + threadIdx.x % 8 * 16;
    if (row_t >= rows) return;
    u32 column = threadIdx.x / 8;
    u8* to = out.codes_t + code_bytes<FORMAT>(((u64)tile_col * 128 + column) * rows + row_t);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Unit* pair = units + column * 16 + (threadIdx.x % 8 ^ column / 8 % 8) * 2;
        if (tile_col * 128 + column < cols) {
            if constexpr (FORMAT == E2M1) *(uint2*)to = *(const uint2*)pair;
            else *(uint4*)to = *(const uint4*)pair;
        }
        column += 32;
        to += code_bytes<FORMAT>(32 * (u64)rows);
    }
}

// Eight values times a scale, from their codes.
__device__ __forceinline__ void decode_scaled(u32 format, uint2 codes, float scale, float (&v)[8]) {
    decode8(format, codes, v);
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = __fmul_rn(v[k], scale);
}
__device__ __forceinline__ void decode_scaled(u32, u32 codes, float scale, float (&v)[8]) { decode_word(codes, scale, v); }

// y = round(fl(code * 2^(byte - 127))), CODES being eight codes: uint2 of FP8, u32 of E2M1.
template <class T, bool ALIGNED, class CODES>
__device__ __forceinline__ void dequantize_mx(const u8* codes, const u8* block_scales, u32 rows, u32 cols, u32 format, T* y, u64 y_stride) {
    const auto load = [&](CODES& c, u64 row, u32 col, bool inside) {
        if (inside) c = __ldg((const CODES*)(codes + (row * cols + col) / (8 / sizeof(CODES))));
    };
    const auto decode = [&](CODES c, u32 byte, float (&v)[8]) { decode_scaled(format, c, mx_scale(byte), v); };
    dequantize_blocks<32, ALIGNED, CODES>(block_scales, rows, cols, (cols + 31) / 32, y, y_stride, load, decode);
}
