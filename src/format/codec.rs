//! E4M3 (FN), E5M2 and E2M1: encode with round to nearest even and saturation, decode exactly; the byte scales E8M0 and
//! UE4M3; rounding to BF16 and F16.
//!
//! Mirrored by `kernels/base/codec.cuh`. The bytes are those of `float8::F8E4M3` and `float8::F8E5M2` (`to_bits`), with two
//! rules of our own for encoding, which are also those of the GPU's `cvt.rn.satfinite`: everything beyond the largest
//! value, infinity included, becomes it; every NaN becomes 0x7F, whatever its sign.

use float8::{F8E4M3, F8E5M2};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use multiversion::multiversion;

use super::dtype::DType;
use super::scheme::{BlockScaleFormat, Fp8Format};

/// The code of every NaN in both formats.
pub const NAN: u8 = 0x7F;

/// The numbers that make one small format, for the shared encoder and decoder.
struct Bits {
    /// Mantissa bits.
    mantissa: u32,
    /// The smallest normal number.
    normal: f32,
    /// The largest finite number.
    max: f32,
    /// The code of NaN.
    nan: u32,
    /// Where the sign bit of a code is.
    sign: u32,
}

const E4M3: Bits = Bits { mantissa: 3, normal: 0.015625, max: 448.0, nan: NAN as u32, sign: 7 };
const E5M2: Bits = Bits { mantissa: 2, normal: 1.0 / 16384.0, max: 57344.0, nan: NAN as u32, sign: 7 };
const E2M1: Bits = Bits { mantissa: 1, normal: 1.0, max: 6.0, nan: 7, sign: 3 };

const ABS: u32 = 0x7FFF_FFFF;
const EXPONENT: u32 = 0x7F80_0000;

impl Bits {
    /// `|x|` saturated (NaN too), its power of two but at least that of the smallest normal number, and a power of two
    /// whose FP32 unit in the last place is a step of the format there: adding it rounds to nearest even.
    #[inline(always)]
    fn parts(&self, x: f32) -> (f32, u32, f32) {
        let abs = f32::from_bits(x.to_bits() & ABS);
        let abs = if abs < self.max { abs } else { self.max };
        let power = (if abs > self.normal { abs } else { self.normal }).to_bits() & EXPONENT;
        (abs, power, f32::from_bits(power + ((23 - self.mantissa) << 23)))
    }

    /// Selects only, so that a loop over it vectorises; those of `parts` are a minimum and a maximum.
    #[inline(always)]
    fn encode(&self, x: f32) -> u8 {
        let (abs, power, step) = self.parts(x);
        let steps = (abs + step).to_bits() - step.to_bits();
        // Each power of two has 2^mantissa codes.
        let code = steps + ((power - self.normal.to_bits()) >> (23 - self.mantissa));
        let sign = (x.to_bits() >> 31) << self.sign;
        (if x.is_nan() { self.nan } else { code | sign }) as u8
    }

    /// The value of `encode(x)`, for formats whose code of NaN is the largest.
    #[inline(always)]
    fn round(&self, x: f32) -> f32 {
        let (abs, _, step) = self.parts(x);
        let value = (abs + step) - step;
        let sign = if x.is_nan() { 0 } else { x.to_bits() & !ABS };
        f32::from_bits(value.to_bits() | sign)
    }

    /// The value of a code, exact; those above the largest finite number come out as if they went on.
    #[inline(always)]
    fn decode_finite(&self, code: u8) -> f32 {
        let magnitude = u32::from(code) & ((1 << self.sign) - 1);
        let bias = self.normal.to_bits() - (1 << 23);
        let step = f32::from_bits(self.normal.to_bits() - (self.mantissa << 23));
        let normal = f32::from_bits((magnitude << (23 - self.mantissa)) + bias);
        let value = if magnitude < 1 << self.mantissa { magnitude as f32 * step } else { normal };
        f32::from_bits(value.to_bits() | (u32::from(code) >> self.sign) << 31)
    }
}

/// [`decode`] without its table, so that a loop over it vectorises.
#[inline(always)]
pub(crate) fn decode_e4m3(code: u8) -> f32 {
    let value = E4M3.decode_finite(code);
    if code & NAN == NAN { f32::NAN } else { value }
}

/// [`decode`] without its table, so that a loop over it vectorises.
#[inline(always)]
pub(crate) fn decode_e5m2(code: u8) -> f32 {
    let (value, code) = (E5M2.decode_finite(code), u32::from(code));
    // The upper byte of binary16; NaN is quiet.
    let quiet = if code & 0x7F > 0x7C { 0x0040_0000 } else { 0 };
    let special = (code & 0x80) << 24 | EXPONENT | (code & 3) << 21 | quiet;
    if code & 0x7C == 0x7C { f32::from_bits(special) } else { value }
}

/// E4M3 code of `x`: nearest even, saturating at 448, NaN to 0x7F, sign of zero kept.
#[inline(always)]
pub fn encode_e4m3(x: f32) -> u8 {
    E4M3.encode(x)
}

/// E5M2 code of `x`: nearest even, saturating at 57344 (never infinity), NaN to 0x7F, sign of zero kept.
#[inline(always)]
pub fn encode_e5m2(x: f32) -> u8 {
    E5M2.encode(x)
}

/// The code of `x` in this format: [`encode_e4m3`] or [`encode_e5m2`].
#[inline]
pub fn encode(format: Fp8Format, x: f32) -> u8 {
    match format {
        Fp8Format::E4M3 => encode_e4m3(x),
        Fp8Format::E5M2 => encode_e5m2(x),
    }
}

/// `codes[i] = encode(fl(x[i] * factor))`: the cast of one group.
///
/// Handles as many elements as the shorter slice has; allocates nothing.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn encode_scaled(format: Fp8Format, x: &[f32], factor: f32, codes: &mut [u8]) {
    encode_group(format, x, factor, codes);
}

/// The same, to be compiled for the CPU of the function that it is in.
#[inline(always)]
pub(crate) fn encode_group(format: Fp8Format, x: &[f32], factor: f32, codes: &mut [u8]) {
    match format {
        Fp8Format::E4M3 => codes.iter_mut().zip(x).for_each(|(c, v)| *c = E4M3.encode(v * factor)),
        Fp8Format::E5M2 => codes.iter_mut().zip(x).for_each(|(c, v)| *c = E5M2.encode(v * factor)),
    }
}

/// `code i = encode_e2m1(fl(x[i] * factor))`, two codes a byte, the one of the even element in the low half.
///
/// Handles as many pairs of elements as there are bytes, or whole pairs in `x`; allocates nothing.
pub fn encode_scaled_e2m1(x: &[f32], factor: f32, codes: &mut [u8]) {
    let code = |x: f32| encode_e2m1(x * factor);
    codes.iter_mut().zip(x.as_chunks::<2>().0).for_each(|(byte, [low, high])| *byte = code(*low) | code(*high) << 4);
}

/// `values[i] = fl(decode(codes[i]) * scale)`, the inverse of one group's cast.
///
/// Handles as many elements as the shorter slice has; allocates nothing.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn decode_scaled(format: Fp8Format, codes: &[u8], scale: f32, values: &mut [f32]) {
    match format {
        Fp8Format::E4M3 => values.iter_mut().zip(codes).for_each(|(v, c)| *v = decode_e4m3(*c) * scale),
        Fp8Format::E5M2 => values.iter_mut().zip(codes).for_each(|(v, c)| *v = decode_e5m2(*c) * scale),
    }
}

/// The values of E4M3 or E5M2 codes; as many as the shorter slice has.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn decode_values(format: Fp8Format, codes: &[u8], values: &mut [f32]) {
    match format {
        Fp8Format::E4M3 => values.iter_mut().zip(codes).for_each(|(v, c)| *v = decode_e4m3(*c)),
        Fp8Format::E5M2 => values.iter_mut().zip(codes).for_each(|(v, c)| *v = decode_e5m2(*c)),
    }
}

/// The values of E2M1 codes, two a byte, the first in the low half; as many as the shorter slice has.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn decode_values_e2m1(codes: &[u8], values: &mut [f32]) {
    for (values, bytes) in values.chunks_mut(256).zip(codes.chunks(128)) {
        let mut halves = [[0; 2]; 128];
        halves.iter_mut().zip(bytes).for_each(|(h, byte)| *h = [byte & 15, byte >> 4]);
        values.iter_mut().zip(halves.as_flattened()).for_each(|(v, half)| *v = E2M1.decode_finite(*half));
    }
}

/// The value of a code: exact. E4M3 0x7F and 0xFF are NaN; E5M2 0x7C is infinity, 0x7D to 0x7F NaN.
#[inline]
pub fn decode(format: Fp8Format, code: u8) -> f32 {
    values_of(format)[usize::from(code)]
}

/// The values of all 256 codes.
pub fn values_of(format: Fp8Format) -> &'static [f32; 256] {
    static E4M3_VALUES: [f32; 256] = decode_all(false);
    static E5M2_VALUES: [f32; 256] = decode_all(true);
    match format {
        Fp8Format::E4M3 => &E4M3_VALUES,
        Fp8Format::E5M2 => &E5M2_VALUES,
    }
}

const fn decode_all(e5m2: bool) -> [f32; 256] {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = if e5m2 {
            // E5M2 is the upper byte of binary16.
            f16::from_bits((code as u16) << 8).to_f32_const()
        } else if code & 0x7F == NAN as usize {
            f32::NAN
        } else {
            // Exponent and mantissa in the places of FP32, 2^120 too small; exact for subnormals too.
            let bits = ((code as u32 & 0x80) << 24) | ((code as u32 & 0x7F) << 20);
            f32::from_bits(bits) * f32::from_bits((127 + 120) << 23)
        };
        code += 1;
    }
    values
}

/// The values of the sixteen E2M1 codes: bit 3 is the sign.
pub const E2M1_VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// E2M1 code of `x`, 0 to 15: nearest even, saturating at 6, NaN to +6 (code 7), sign of zero kept.
#[inline(always)]
pub fn encode_e2m1(x: f32) -> u8 {
    E2M1.encode(x)
}

/// The value of [`encode_e2m1`]`(x)`.
#[inline(always)]
pub(crate) fn round_e2m1(x: f32) -> f32 {
    E2M1.round(x)
}

/// E2M1 code of `v`, rounded up or down by the random byte `u`: unbiased to 1/256 of a step, values of codes unchanged.
///
/// `step = 2` if `|v| >= 4`, 1 if `|v| >= 2`, else 1/2; `t = fma(u / 256, step, |v|)`; the code is that of `t` rounded down to a
/// multiple of its own step, at most 6, with the sign of `v`. NaN gives +6 (code 7).
#[inline(always)]
pub fn encode_e2m1_stochastic(v: f32, u: u8) -> u8 {
    let a = v.abs();
    let step = (if a >= 2.0 { 1.0 } else { 0.5 }) + if a >= 4.0 { 1.0 } else { 0.0 };
    let t = (f32::from(u) / 256.0).mul_add(step, a);
    // Rounding down to a multiple of t's step finds the largest value not above t. No branch: a loop over this vectorises.
    let mut code = 0;
    for value in &E2M1_VALUES[1..8] {
        code += u32::from(t >= *value);
    }
    let sign = v.to_bits() >> 28 & 8;
    (if v.is_nan() { 7 } else { code | sign }) as u8
}

/// The value of an E2M1 code; only the low four bits count.
#[inline]
pub fn decode_e2m1(code: u8) -> f32 {
    E2M1_VALUES[usize::from(code & 15)]
}

/// The value of an E8M0 byte: `2^(byte - 127)`, 255 is NaN. Exact: byte 0 is an FP32 subnormal.
#[inline]
pub fn decode_e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        b => f32::from_bits(u32::from(b) << 23),
    }
}

/// What multiplies data whose E8M0 scale is `byte`: `2^(127 - byte)`, 255 gives NaN. Exact.
#[inline]
pub fn e8m0_reciprocal(byte: u8) -> f32 {
    match byte {
        255 => f32::from_bits(0x7FFF_FFFF),
        254 => f32::from_bits(0x0040_0000),
        b => f32::from_bits((254 - u32::from(b)) << 23),
    }
}

/// The value of a block scale. The sign bit of UE4M3 is ignored, as cuBLASLt does.
#[inline]
pub fn decode_block_scale(format: BlockScaleFormat, byte: u8) -> f32 {
    match format {
        BlockScaleFormat::Ue4m3 => decode(Fp8Format::E4M3, byte & 0x7F),
        BlockScaleFormat::Ue8m0 => decode_e8m0(byte),
    }
}

/// `x` rounded to nearest even in this type, as FP32: overflow to infinity for BF16 and F16, saturation for FP8.
#[inline]
pub fn round_to(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::F32 => x,
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::E4M3 => decode(Fp8Format::E4M3, encode_e4m3(x)),
        DType::E5M2 => decode(Fp8Format::E5M2, encode_e5m2(x)),
    }
}

/// [`round_to`] BF16 without a branch.
#[inline(always)]
pub(crate) fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    // A NaN stays one whatever bits it loses.
    f32::from_bits((if x.is_nan() { bits | 0x0040_0000 } else { rounded }) & 0xFFFF_0000)
}

/// [`round_to`] of every value.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn round_all(dtype: DType, values: &mut [f32]) {
    match dtype {
        DType::F32 => {}
        DType::Bf16 => values.iter_mut().for_each(|v| *v = round_bf16(*v)),
        DType::F16 => values.chunks_mut(256).for_each(|values| {
            // The crate's conversions of slices, which know the CPU's.
            let mut halves = [f16::ZERO; 256];
            let halves = &mut halves[..values.len()];
            halves.convert_from_f32_slice(values);
            halves.convert_to_f32_slice(values);
        }),
        DType::E4M3 => values.iter_mut().for_each(|v| *v = decode_e4m3(E4M3.encode(*v))),
        DType::E5M2 => values.iter_mut().for_each(|v| *v = decode_e5m2(E5M2.encode(*v))),
    }
}

/// Like [`encode_e4m3`], as the `float8` crate's type (whose own conversions treat NaN and overflow differently).
pub fn to_f8e4m3(x: f32) -> F8E4M3 {
    F8E4M3::from_bits(encode_e4m3(x))
}

/// Like [`encode_e5m2`], as the `float8` crate's type (whose own conversions treat NaN and overflow differently).
pub fn to_f8e5m2(x: f32) -> F8E5M2 {
    F8E5M2::from_bits(encode_e5m2(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_a_round_trip() {
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            for code in 0..=255u8 {
                let value = decode(format, code);
                let back = encode(format, value);
                if value.is_nan() {
                    assert_eq!(back, NAN, "{code:#x}");
                } else if value.is_infinite() {
                    assert_eq!(back, code - 1, "{code:#x} saturates");
                } else {
                    assert_eq!(back, code, "{value}");
                }
            }
            assert_eq!(decode(format, encode(format, f32::MAX)), format.max());
        }
    }

    #[test]
    fn slices_do_what_scalars_do() {
        let x: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.0) * 1.37).collect();
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            let mut codes = vec![0; x.len()];
            encode_scaled(format, &x, 0.7, &mut codes);
            let mut values = vec![0.0; x.len()];
            decode_scaled(format, &codes, 3.1, &mut values);
            for i in 0..x.len() {
                assert_eq!(codes[i], encode(format, x[i] * 0.7));
                assert_eq!(values[i].to_bits(), (decode(format, codes[i]) * 3.1).to_bits());
            }
        }
    }

    #[test]
    fn values_without_tables_are_those_of_the_tables() {
        let codes: Vec<u8> = (0..=255).collect();
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            let mut values = [0.0; 256];
            decode_values(format, &codes, &mut values);
            assert_eq!(values.map(f32::to_bits), values_of(format).map(f32::to_bits), "{format}");
        }
        let mut values = [0.0; 512];
        decode_values_e2m1(&codes, &mut values);
        for (values, code) in values.as_chunks::<2>().0.iter().zip(codes) {
            assert_eq!([values[0], values[1]].map(f32::to_bits), [code, code >> 4].map(decode_e2m1).map(f32::to_bits));
        }
    }

    /// Bits of all exponents, both signs and all that is special, and what lies at and next to a tie of a small format.
    fn hard() -> Vec<f32> {
        let random = (0..1u32 << 16).map(|i| i.wrapping_mul(0x9E37_79B9) ^ i << 7);
        let ties = (0..=0xFFFFu32).flat_map(|high| [high << 16, (high << 16).wrapping_sub(1), high << 16 | 1]);
        random.chain(ties).map(f32::from_bits).collect()
    }

    #[test]
    fn all_values_round_as_one_does() {
        for dtype in [DType::F32, DType::Bf16, DType::F16, DType::E4M3, DType::E5M2] {
            let x = hard();
            let mut rounded = x.clone();
            round_all(dtype, &mut rounded);
            for (x, got) in x.iter().zip(rounded) {
                let want = round_to(dtype, *x);
                assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{dtype} {x:e}: {got:e}");
            }
        }
    }

    #[test]
    fn e2m1_rounds_to_the_value_of_its_code() {
        for x in hard() {
            assert_eq!(round_e2m1(x).to_bits(), decode_e2m1(encode_e2m1(x)).to_bits(), "{x:e}");
        }
    }
}
