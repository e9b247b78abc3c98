//! E4M3, E5M2, E2M1 and the byte scales E8M0 and UE4M3: every code, every rounding boundary, special values, and an
//! independent crate or definition.

use half::{bf16, f16};
use scaled_gemm::codec::{
    E2M1_VALUES, decode, decode_block_scale, decode_e2m1, decode_e8m0, e8m0_reciprocal, encode, encode_e2m1,
    encode_e2m1_stochastic, encode_e4m3, encode_e5m2, round_to, to_f8e4m3, to_f8e5m2,
};
use scaled_gemm::{BlockScaleFormat, DType, Fp8Format, MxScaleRule};

const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];

/// Code of the largest finite number; codes up to it are the non-negative finite numbers in order.
fn last(format: Fp8Format) -> u8 {
    match format {
        Fp8Format::E4M3 => 0x7E,
        Fp8Format::E5M2 => 0x7B,
    }
}

fn next(x: f32, ulps: i32) -> f32 {
    f32::from_bits(x.to_bits().wrapping_add_signed(ulps))
}

#[test]
fn every_code_decodes_as_microfloat_says() {
    for code in 0..=255u8 {
        let want = [microfloat::f8e4m3fn::from_bits(code).to_f32(), microfloat::f8e5m2::from_bits(code).to_f32()];
        for (format, want) in FORMATS.into_iter().zip(want) {
            let got = decode(format, code);
            assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{format:?} {code:#x}: {got}");
        }
    }
}

#[test]
fn codes_ascend_from_the_definition() {
    for format in FORMATS {
        let (mantissa_bits, bias) = if format == Fp8Format::E4M3 { (3, 7) } else { (2, 15) };
        for code in 0..=last(format) {
            let (e, m) = (i32::from(code) >> mantissa_bits, f64::from(code & ((1 << mantissa_bits) - 1)));
            let one = f64::from(1 << mantissa_bits);
            let want = if e == 0 { m / one * 2f64.powi(1 - bias) } else { (1.0 + m / one) * 2f64.powi(e - bias) };
            assert_eq!(f64::from(decode(format, code)), want);
            assert_eq!(decode(format, code | 0x80).to_bits(), (-want as f32).to_bits());
        }
        assert_eq!(decode(format, last(format)), format.max());
    }
}

#[test]
fn boundaries_round_to_even_and_one_ulp_decides() {
    for format in FORMATS {
        for low in 0..last(format) {
            let (a, b) = (decode(format, low), decode(format, low + 1));
            // Exact: neighbours differ by one unit, and FP32 has bits to spare.
            let middle = a + (b - a) / 2.0;
            let even = if low % 2 == 0 { low } else { low + 1 };
            for sign in [0u8, 0x80] {
                let s = |x: f32| if sign == 0 { x } else { -x };
                assert_eq!(encode(format, s(next(middle, -1))), low | sign, "{format:?} below {middle}");
                assert_eq!(encode(format, s(middle)), even | sign, "{format:?} at {middle}");
                assert_eq!(encode(format, s(next(middle, 1))), (low + 1) | sign, "{format:?} above {middle}");
                assert_eq!(encode(format, s(a)), low | sign);
                if low > 0 {
                    assert_eq!(encode(format, s(next(a, -1))), low | sign);
                    assert_eq!(encode(format, s(next(a, 1))), low | sign);
                }
            }
        }
    }
}

#[test]
fn beyond_the_largest_value_saturates_and_nan_is_0x7f() {
    for format in FORMATS {
        let max = format.max();
        for x in [max, next(max, 1), max * 1.03, max * 1.1, max * 2.0, f32::MAX, f32::INFINITY] {
            assert_eq!(encode(format, x), last(format), "{x}");
            assert_eq!(encode(format, -x), last(format) | 0x80, "{x}");
        }
        for bits in [0x7F80_0001u32, 0x7FC0_0000, 0x7FFF_FFFF, 0xFF80_0001, 0xFFC0_0000, 0xFFFF_FFFF] {
            assert_eq!(encode(format, f32::from_bits(bits)), 0x7F, "{bits:#x}");
        }
        for (x, code) in [(0.0, 0x00), (-0.0, 0x80), (f32::from_bits(1), 0), (-f32::MIN_POSITIVE, 0x80)] {
            assert_eq!(encode(format, x), code, "{x:e}");
        }
    }
}

#[test]
fn a_dense_sweep_agrees_with_microfloat() {
    // Every 251st pattern: 17 million numbers over all exponents and both signs.
    for bits in (0..=u32::MAX).step_by(251) {
        let x = f32::from_bits(bits);
        if x.is_nan() {
            continue;
        }
        // Saturated first: microfloat follows the OCP conversions, which overflow to NaN or infinity.
        let (x4, x5) = (x.clamp(-448.0, 448.0), x.clamp(-57344.0, 57344.0));
        assert_eq!(encode_e4m3(x), microfloat::f8e4m3fn::from_f32(x4).to_bits(), "{bits:#x}");
        assert_eq!(encode_e5m2(x), microfloat::f8e5m2::from_f32(x5).to_bits(), "{bits:#x}");
    }
}

#[test]
fn float8_types_hold_our_bits() {
    for x in [0.0f32, -0.0, 1.0, -3.3, 447.0, 1e9, f32::NAN] {
        assert_eq!(to_f8e4m3(x).to_bits(), encode_e4m3(x));
        assert_eq!(to_f8e5m2(x).to_bits(), encode_e5m2(x));
    }
}

#[test]
fn rounding_to_16_bits_is_nearest_even_and_overflows_to_infinity() {
    for (dtype, x, want) in [
        (DType::Bf16, 1.0 + 1.0 / 256.0, 1.0),
        (DType::Bf16, 1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
        (DType::Bf16, 3.4e38, f32::INFINITY),
        (DType::F16, 65519.0, 65504.0),
        (DType::F16, 65520.0, f32::INFINITY),
        (DType::F16, 2f32.powi(-25), 0.0),
        (DType::F32, 1.0 + 1.0 / 256.0, 1.0 + 1.0 / 256.0),
        (DType::E4M3, 500.0, 448.0),
        (DType::E5M2, 1.125, 1.0),
    ] {
        assert_eq!(round_to(dtype, x), want, "{dtype} {x}");
        assert_eq!(round_to(dtype, -x), -want, "{dtype} {x}");
    }
    for dtype in [DType::Bf16, DType::F16, DType::F32, DType::E4M3, DType::E5M2] {
        assert!(round_to(dtype, f32::NAN).is_nan());
    }
    assert_eq!(round_to(DType::Bf16, -0.0).to_bits(), 0x8000_0000);
    assert_eq!(round_to(DType::F16, 0.1), f16::from_f32(0.1).to_f32());
    assert_eq!(round_to(DType::Bf16, 0.1), bf16::from_f32(0.1).to_f32());
}

#[test]
fn e2m1_boundaries_round_to_even_and_one_ulp_decides() {
    for low in 0..7u8 {
        let (a, b) = (decode_e2m1(low), decode_e2m1(low + 1));
        let middle = (a + b) / 2.0;
        let even = low + low % 2;
        for (x, code) in
            [(next(middle, -1), low), (middle, even), (next(middle, 1), low + 1), (a, low), (next(b, -1), low + 1)]
        {
            assert_eq!(encode_e2m1(x), code, "{x}");
            assert_eq!(encode_e2m1(-x), code | 8, "-{x}");
        }
    }
    for x in [6.0, next(6.0, 1), 7.0, 1e30, f32::MAX, f32::INFINITY] {
        assert_eq!((encode_e2m1(x), encode_e2m1(-x)), (7, 15), "{x}");
    }
    for bits in [0x7F80_0001u32, 0x7FC0_0000, 0x7FFF_FFFF, 0xFF80_0001, 0xFFC0_0000, 0xFFFF_FFFF] {
        assert_eq!(encode_e2m1(f32::from_bits(bits)), 7, "{bits:#x}");
    }
    for x in [0.0, f32::from_bits(1), f32::MIN_POSITIVE, 0.2, 0.25] {
        assert_eq!((encode_e2m1(x), encode_e2m1(-x)), (0, 8), "{x:e}");
    }
}

#[test]
fn a_dense_sweep_of_e2m1_finds_the_nearest_value() {
    // By definition, in f64: the value at the least distance; of two, the one with an even mantissa.
    let nearest = |x: f32| {
        let a = f64::from(x.abs()).min(6.0);
        let distance = |code: u8| (a - f64::from(E2M1_VALUES[usize::from(code)])).abs();
        let best = (1..8u8).fold(0, |best, code| match distance(code).total_cmp(&distance(best)) {
            std::cmp::Ordering::Less => code,
            std::cmp::Ordering::Equal if code % 2 == 0 => code,
            _ => best,
        });
        best | if x.is_sign_negative() { 8 } else { 0 }
    };
    for bits in (0..=u32::MAX).step_by(1021) {
        let x = f32::from_bits(bits);
        assert_eq!(encode_e2m1(x), if x.is_nan() { 7 } else { nearest(x) }, "{bits:#x}");
    }
    // Every number from 1/8 to 8 with a step of 2^-18 or less, where all boundaries are.
    for bits in (0x3E00_0000u32..0x4100_0000).step_by(7) {
        let x = f32::from_bits(bits);
        assert_eq!(encode_e2m1(x), nearest(x), "{x}");
    }
}

#[test]
fn e2m1_codes_survive_and_their_values_are_the_definition() {
    for code in 0..16u8 {
        let (e, m) = (i32::from(code >> 1 & 3), f32::from(code & 1));
        let magnitude = if e == 0 { m / 2.0 } else { (1.0 + m / 2.0) * 2f32.powi(e - 1) };
        let want = if code & 8 == 0 { magnitude } else { -magnitude };
        assert_eq!(decode_e2m1(code).to_bits(), want.to_bits());
        assert_eq!(decode_e2m1(code | 0xF0).to_bits(), want.to_bits(), "only the low four bits count");
        assert_eq!(encode_e2m1(want), code);
    }
}

#[test]
fn stochastic_codes_keep_values_and_are_unbiased_to_a_256th_of_a_step() {
    for code in 0..16u8 {
        for u in 0..=255u8 {
            assert_eq!(encode_e2m1_stochastic(decode_e2m1(code), u), code, "{u}");
        }
    }
    for at in 0..=6000 {
        let v = at as f32 / 1000.0;
        let step = if v >= 4.0 {
            2.0
        } else if v >= 2.0 {
            1.0
        } else {
            0.5
        };
        let (low, mut sum, mut last) = ((v / step).floor() * step, 0.0f64, 0.0);
        for u in 0..=255u8 {
            let code = encode_e2m1_stochastic(v, u);
            assert_eq!(encode_e2m1_stochastic(-v, u), code | 8, "the sign is kept");
            let value = decode_e2m1(code);
            assert!((value == low || value == low + step) && value >= last, "{v} {u}: {value}");
            last = value;
            sum += f64::from(value);
        }
        // It goes up for all u with u / 256 >= 1 - (v - low) / step: within one of 256 (v - low) / step of them.
        assert!((sum / 256.0 - f64::from(v)).abs() <= f64::from(step) / 256.0 * 1.001, "{v}: mean {}", sum / 256.0);
        assert_eq!(encode_e2m1_stochastic(v, 0), encode_e2m1(low), "u = 0 never goes up");
    }
    for u in [0, 1, 127, 255] {
        assert_eq!(encode_e2m1_stochastic(f32::NAN, u), 7);
        assert_eq!(encode_e2m1_stochastic(-f32::NAN, u), 7);
        assert_eq!(encode_e2m1_stochastic(f32::INFINITY, u), 7);
        assert_eq!(encode_e2m1_stochastic(f32::NEG_INFINITY, u), 15);
        assert_eq!(encode_e2m1_stochastic(f32::MAX, u), 7);
        assert_eq!(encode_e2m1_stochastic(-0.0, u), 8);
    }
}

#[test]
fn byte_scales_decode_as_defined() {
    for byte in 0..=254u8 {
        let want = 2f64.powi(i32::from(byte) - 127);
        assert_eq!(f64::from(decode_e8m0(byte)), want);
        assert_eq!(f64::from(e8m0_reciprocal(byte)), 1.0 / want);
        assert_eq!(decode_block_scale(BlockScaleFormat::Ue8m0, byte), decode_e8m0(byte));
    }
    assert!(decode_e8m0(255).is_nan() && e8m0_reciprocal(255).is_nan());
    for byte in 0..=254u8 {
        assert_eq!(decode_e8m0(byte), microfloat::f8e8m0fnu::from_bits(byte).to_f32());
    }
    for code in 0..16u8 {
        assert_eq!(decode_e2m1(code).to_bits(), microfloat::f4e2m1fn::from_bits(code).to_f32().to_bits());
    }
    for byte in 0..=255u8 {
        let (got, want) = (decode_block_scale(BlockScaleFormat::Ue4m3, byte), decode(Fp8Format::E4M3, byte & 0x7F));
        assert!(got.to_bits() == want.to_bits() || (got.is_nan() && byte & 0x7F == 0x7F), "{byte:#x}");
    }
}

#[test]
fn mx_scales_are_their_definitions() {
    for format in FORMATS {
        let (emax, mantissa_bits) = if format == Fp8Format::E4M3 { (8, 3) } else { (15, 2) };
        for bits in (0..0x7F80_0000u32).step_by(4099).chain((0..255).map(|e| e << 23)).chain(0x43DF_FFF0..0x43E0_0010) {
            let amax = f32::from_bits(bits);
            let byte = |rule: MxScaleRule| i32::from(rule.byte(amax, format));
            let exact = |power: i32| 2f64.powi(power);
            let a = f64::from(amax);
            // The smallest power of two with which nothing saturates.
            let up = byte(MxScaleRule::Up);
            assert!(a <= f64::from(format.max()) * exact(up - 127), "{amax:e} {up}");
            assert!(up == 0 || a > f64::from(format.max()) * exact(up - 128), "{amax:e} {up}");
            assert_eq!(up, byte(MxScaleRule::Rceil));
            if amax < f32::MIN_POSITIVE {
                // Below the normal numbers nothing but byte 0 is left.
                assert!(
                    [MxScaleRule::Floor, MxScaleRule::Ceil, MxScaleRule::Even].into_iter().all(|rule| byte(rule) == 0)
                );
                continue;
            }
            let log2 = (bits >> 23) as i32 - 127;
            assert!(exact(log2) <= a && a < exact(log2 + 1));
            let of = |power: i32| (power - emax).clamp(-127, 127) + 127;
            assert_eq!(byte(MxScaleRule::Floor), of(log2), "{amax:e}");
            assert_eq!(byte(MxScaleRule::Ceil), of(log2 + i32::from(a != exact(log2))), "{amax:e}");
            // Half a unit of the code's mantissa and more rounds up to the next power of two at the end of a binade.
            let carry = a >= exact(log2 + 1) - exact(log2 - mantissa_bits - 1);
            assert_eq!(byte(MxScaleRule::Even), of(log2 + i32::from(carry)), "{amax:e}");
        }
        for rule in MxScaleRule::ALL {
            assert_eq!(rule.byte(f32::NAN, format), 255);
            assert_eq!(rule.byte(f32::INFINITY, format), if rule == MxScaleRule::Up { 254 } else { 255 });
            assert_eq!(rule.byte(0.0, format), 0);
            assert_eq!(rule.name().parse(), Ok(rule));
        }
    }
}
