//! [`MxScaleRule`]: the E8M0 scale byte of a block of 32, by each published rule.

use super::scheme::Fp8Format;

/// The rule for the power-of-two scale of an MXFP8 block.
///
/// `amax = max |x|` of the block in FP32 (NaN ignored by the quantizers), MAX the largest value of the code format (448 or
/// 57344), `fl(.)` one FP32 operation. The codes are then `sat(fl(x * 2^(127 - byte)))`, round to nearest even.
///
/// Mirrored by `mx_scale` in `kernels/cast/mxfp8.cu`; `tests/` compares both, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MxScaleRule {
    /// TransformerEngine's and the hardware's (`cvt.rp.satfinite.ue8m0`): `fl(amax * fl(1 / MAX))` rounded up to a power of
    /// two, so that no code saturates. NaN gives 255, infinity 254. The default.
    #[default]
    Up,
    /// The OCP rule: `floor(log2 amax)` less the exponent of MAX; codes may saturate. NaN and infinity give 255.
    Floor,
    /// As `Floor`, one more if amax is not a power of two. NaN and infinity give 255.
    Ceil,
    /// As `Floor`, of amax rounded to the mantissa bits of the code format. NaN and infinity give 255.
    Even,
    /// As `Up`, but infinity gives 255 (torchao's RCEIL).
    Rceil,
}

named!(MxScaleRule, "MX rule", Up => "up", Floor => "floor", Ceil => "ceil", Even => "even", Rceil => "rceil");

impl MxScaleRule {
    /// The scale byte of a block whose largest magnitude is `amax`, which is not negative.
    pub fn byte(self, amax: f32, format: Fp8Format) -> u8 {
        let bits = amax.to_bits();
        match self {
            _ if amax.is_nan() => 255,
            Self::Up if amax.is_infinite() => 254,
            _ if amax.is_infinite() => 255,
            Self::Up | Self::Rceil => round_up(amax * (1.0 / format.max())),
            Self::Floor => floor(bits, format),
            Self::Ceil => floor_shifted(bits, format, i32::from(bits & 0x007F_FFFF != 0)),
            Self::Even => floor(bits + (1 << (22 - mantissa_bits(format))), format),
        }
    }
}

/// How to quantize to MXFP8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mxfp8Recipe {
    /// Code format.
    pub format: Fp8Format,
    /// Rule for the scales.
    pub rule: MxScaleRule,
}

/// The exponent field of `v`, one more if the mantissa is not zero, never beyond 254; a subnormal of at most 2^-127 gives 0.
fn round_up(v: f32) -> u8 {
    let (exponent, mantissa) = (v.to_bits() >> 23, v.to_bits() & 0x007F_FFFF);
    let up = if exponent == 0 { mantissa > 0x0040_0000 } else { mantissa != 0 && exponent < 254 };
    (exponent + u32::from(up)) as u8
}

fn floor(bits: u32, format: Fp8Format) -> u8 {
    floor_shifted(bits, format, 0)
}

fn floor_shifted(bits: u32, format: Fp8Format, more: i32) -> u8 {
    let exponent = (bits >> 23) as i32 - 127 + more;
    let largest = match format {
        Fp8Format::E4M3 => 8,
        Fp8Format::E5M2 => 15,
    };
    ((exponent - largest).clamp(-127, 127) + 127) as u8
}

fn mantissa_bits(format: Fp8Format) -> u32 {
    match format {
        Fp8Format::E4M3 => 3,
        Fp8Format::E5M2 => 2,
    }
}
