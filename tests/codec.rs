//! E4M3 and E5M2: every code, every rounding boundary, special values, and an independent crate.

use half::{bf16, f16};
use scaled_gemm::codec::{decode, encode, encode_e4m3, encode_e5m2, round_to, to_f8e4m3, to_f8e5m2};
use scaled_gemm::{DType, Fp8Format};

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
        (DType::E4m3, 500.0, 448.0),
        (DType::E5m2, 1.125, 1.0),
    ] {
        assert_eq!(round_to(dtype, x), want, "{dtype} {x}");
        assert_eq!(round_to(dtype, -x), -want, "{dtype} {x}");
    }
    for dtype in [DType::Bf16, DType::F16, DType::F32, DType::E4m3, DType::E5m2] {
        assert!(round_to(dtype, f32::NAN).is_nan());
    }
    assert_eq!(round_to(DType::Bf16, -0.0).to_bits(), 0x8000_0000);
    assert_eq!(round_to(DType::F16, 0.1), f16::from_f32(0.1).to_f32());
    assert_eq!(round_to(DType::Bf16, 0.1), bf16::from_f32(0.1).to_f32());
}
