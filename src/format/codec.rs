//! E4M3 (FN), E5M2 and E2M1: encode with round to nearest even and saturation, decode exactly; the byte scales E8M0 and
//! UE4M3; rounding to BF16 and F16.
//!
//! Mirrored by `kernels/base/codec.cuh`. The bytes are those of `float8::F8E4M3` and `float8::F8E5M2` (`to_bits`), with two
//! rules of our own for encoding, which are also those of the GPU's `cvt.rn.satfinite`: everything beyond the largest
//! value, infinity included, becomes it; every NaN becomes 0x7F, whatever its sign.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::dtype::DType;
use super::scheme::{BlockScaleFormat, Fp8Format};

/// The code of every NaN in both formats.
pub const NAN: u8 = 0x7F;

/// The numbers that make one 8-bit format, for the shared encoder.
struct Bits {
    /// Mantissa bits dropped from FP32.
    shift: u32,
    /// `shift`ed FP32 exponent bias minus that of the format.
    rebias: u32,
    /// FP32 pattern of the smallest normal number.
    normal: u32,
    /// A power of two whose FP32 unit in the last place is the format's subnormal step.
    magic: f32,
    /// Code of the largest finite number.
    max: u32,
}

const E4M3: Bits = Bits { shift: 20, rebias: (127 - 7) << 3, normal: 0x3C80_0000, magic: 16384.0, max: 0x7E };
const E5M2: Bits = Bits { shift: 21, rebias: (127 - 15) << 2, normal: 0x3880_0000, magic: 128.0, max: 0x7B };

/// Integer selects only, so that a loop over it vectorises.
#[inline(always)]
fn encode_bits(f: &Bits, x: f32) -> u8 {
    let bits = x.to_bits();
    let abs = bits & 0x7FFF_FFFF;
    // Nearest even on the dropped bits; a carry out of the mantissa moves to the next exponent, as it should.
    let rounded = abs.wrapping_add((1 << (f.shift - 1)) - 1 + ((abs >> f.shift) & 1));
    let normal = (rounded >> f.shift).wrapping_sub(f.rebias).min(f.max);
    // FP32 addition rounds to the subnormal step.
    let subnormal = (f32::from_bits(abs) + f.magic).to_bits().wrapping_sub(f.magic.to_bits());
    let code = if abs < f.normal { subnormal } else { normal };
    let signed = code | ((bits >> 24) & 0x80);
    (if abs > 0x7F80_0000 { NAN as u32 } else { signed }) as u8
}

/// E4M3 code of `x`: nearest even, saturating at 448, NaN to 0x7F, sign of zero kept.
#[inline]
pub fn encode_e4m3(x: f32) -> u8 {
    encode_bits(&E4M3, x)
}

/// E5M2 code of `x`: nearest even, saturating at 57344 (never infinity), NaN to 0x7F, sign of zero kept.
#[inline]
pub fn encode_e5m2(x: f32) -> u8 {
    encode_bits(&E5M2, x)
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
pub fn encode_scaled(format: Fp8Format, x: &[f32], factor: f32, codes: &mut [u8]) {
    match format {
        Fp8Format::E4M3 => codes.iter_mut().zip(x).for_each(|(c, v)| *c = encode_bits(&E4M3, v * factor)),
        Fp8Format::E5M2 => codes.iter_mut().zip(x).for_each(|(c, v)| *c = encode_bits(&E5M2, v * factor)),
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
pub fn decode_scaled(format: Fp8Format, codes: &[u8], scale: f32, values: &mut [f32]) {
    let table = values_of(format);
    values.iter_mut().zip(codes).for_each(|(v, c)| *v = table[usize::from(*c)] * scale);
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
#[inline]
pub fn encode_e2m1(x: f32) -> u8 {
    if x.is_nan() {
        return 7;
    }
    let a = x.abs();
    // Ties go to the code with an even mantissa: of the boundaries, .75, 1.75 and 3.5 round up.
    let code = u8::from(a > 0.25)
        + u8::from(a >= 0.75)
        + u8::from(a > 1.25)
        + u8::from(a >= 1.75)
        + u8::from(a > 2.5)
        + u8::from(a >= 3.5)
        + u8::from(a > 5.0);
    code | (((x.to_bits() >> 28) as u8) & 8)
}

/// E2M1 code of `v`, rounded up or down by the random byte `u`: unbiased to 1/256 of a step, values of codes unchanged.
///
/// `step = 2` if `|v| >= 4`, 1 if `|v| >= 2`, else 1/2; `t = fma(u / 256, step, |v|)`; the code is that of `t` rounded down to a
/// multiple of its own step, at most 6, with the sign of `v`. NaN gives +6 (code 7).
#[inline]
pub fn encode_e2m1_stochastic(v: f32, u: u8) -> u8 {
    if v.is_nan() {
        return 7;
    }
    let a = v.abs();
    let step = if a >= 4.0 {
        2.0
    } else if a >= 2.0 {
        1.0
    } else {
        0.5
    };
    let t = (f32::from(u) / 256.0).mul_add(step, a);
    // Rounding down to a multiple of t's step finds the largest value not above t.
    let code = E2M1_VALUES[1..8].iter().map(|value| u8::from(t >= *value)).sum::<u8>();
    code | (((v.to_bits() >> 28) as u8) & 8)
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
}
