//! [`MxScaleRule`]: the E8M0 scale byte of a block of 32, by each published rule.

use super::scheme::{CodeFormat, Fp8Format};

/// The rule for the power-of-two scale of a block of MXFP8 or MXFP4.
///
/// `amax = max |x|` of the block in FP32 (NaN ignored by the quantizers), MAX the largest value of the code format (448, 57344
/// or 6), emax the exponent of MAX (8, 15 or 2), `fl(.)` one FP32 operation. The codes are then
/// `sat(fl(x * 2^(127 - byte)))`, round to nearest even. Bytes are at least 0 and, for a finite amax, at most 254.
///
/// In E2M1 amax becomes a number above 3 and at most 6 by `Up` and `Rceil`, in [4, 8) by `Floor`, in [3.5, 7) by `Even` and
/// in (2, 4] by `Ceil`, or less where the byte is 0; what is above 6 saturates.
///
/// Mirrored by `mx_byte` in `kernels/cast/mx.cuh`; `tests/` compares both, byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum MxScaleRule {
    /// The hardware's (`cvt.rp.satfinite.ue8m0`): `fl(amax * fl(1 / MAX))` rounded up to a power of two, so that no code
    /// saturates. NaN gives 255, infinity 254. TransformerEngine's for MXFP8; for MXFP4 that of TensorRT-LLM and FlashInfer
    /// (`cvt_warp_fp16_to_fp4`). The default.
    #[default]
    Up,
    /// The OCP rule (Microscaling Formats v1.0, 6.3): `2^(floor(log2 amax) - emax)`; codes may saturate. NaN and infinity give
    /// 255. torchao's FLOOR, its default.
    Floor,
    /// As `Floor`, one more if amax is not a power of two. NaN and infinity give 255. torchao's CEIL.
    Ceil,
    /// As `Floor`, of amax rounded to the mantissa bits of the code format, halves up: in E2M1 1.75 is the first mantissa that
    /// counts as 2. NaN and infinity give 255. torchao's EVEN; AMD Quark's default for MXFP4 (`even_round`).
    Even,
    /// As `Up`, but infinity gives 255. torchao's RCEIL.
    Rceil,
}

named!(MxScaleRule, "MX rule", Up => "up", Floor => "floor", Ceil => "ceil", Even => "even", Rceil => "rceil");

impl MxScaleRule {
    /// The scale byte of a block whose largest magnitude is `amax`, which is not negative.
    pub fn byte(self, amax: f32, format: impl Into<CodeFormat>) -> u8 {
        let (bits, format) = (amax.to_bits(), format.into());
        match self {
            _ if amax.is_nan() => 255,
            Self::Up if amax.is_infinite() => 254,
            _ if amax.is_infinite() => 255,
            Self::Up | Self::Rceil => round_up(amax * (1.0 / format.max())),
            Self::Floor => floor(bits, format),
            Self::Ceil => floor_shifted(bits, format, i32::from(bits & 0x007F_FFFF != 0)),
            Self::Even => floor(bits + (1 << (22 - format.mantissa_bits())), format),
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

/// How to quantize to MXFP4.
///
/// Of the rules, [`MxScaleRule::Up`] keeps the largest value of every block; [`MxScaleRule::Even`] errs least on normal data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mxfp4Recipe {
    /// Rule for the scales.
    pub rule: MxScaleRule,
}

/// The exponent field of `v`, one more if the mantissa is not zero, never beyond 254; a subnormal of at most 2^-127 gives 0.
fn round_up(v: f32) -> u8 {
    let (exponent, mantissa) = (v.to_bits() >> 23, v.to_bits() & 0x007F_FFFF);
    let up = if exponent == 0 { mantissa > 0x0040_0000 } else { mantissa != 0 && exponent < 254 };
    (exponent + u32::from(up)) as u8
}

fn floor(bits: u32, format: CodeFormat) -> u8 {
    floor_shifted(bits, format, 0)
}

fn floor_shifted(bits: u32, format: CodeFormat, more: i32) -> u8 {
    let exponent = (bits >> 23) as i32 - 127 + more;
    ((exponent - format.emax()).clamp(-127, 127) + 127) as u8
}
