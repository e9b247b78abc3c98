//! Numbers as the instructions make them: rounding to small floats, what is NaN, sums that are rounded once.

use half::{bf16, f16};

/// The NaN that arithmetic gives.
const NAN: u32 = 0x7FFF_FFFF;

pub(super) fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// The bits of a result: one NaN, whatever came in.
pub(super) fn bits(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

pub(super) fn bits64(value: f64) -> u64 {
    if value.is_nan() { 0x7FFF_FFFF_FFFF_FFFF } else { value.to_bits() }
}

/// The sum, toward zero.
pub(super) fn add_toward_zero(a: f32, b: f32) -> f32 {
    // Two floats' sum has a rest that is known: towards zero is the neighbour where the sum was rounded away from it.
    let sum = a + b;
    if !sum.is_finite() {
        return if a.is_finite() && b.is_finite() { f32::MAX.copysign(sum) } else { sum };
    }
    let exact = f64::from(a) + f64::from(b);
    // The exponents of both may be too far apart for 53 bits: then the rest's sign is the smaller one's.
    let (large, small) = if a.abs() >= b.abs() { (f64::from(a), f64::from(b)) } else { (f64::from(b), f64::from(a)) };
    let rest = small - (exact - large);
    let beyond = f64::from(sum) - exact;
    let error = beyond - rest;
    let away = if sum > 0.0 { error > 0.0 } else { error < 0.0 };
    if away && sum != 0.0 { f32::from_bits(sum.to_bits() - 1) } else { sum }
}

/// `max` of PTX: the number where the other is NaN, and +0 above -0.
pub(super) fn max(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        return b;
    }
    if b.is_nan() || a > b {
        return a;
    }
    if a == b { f32::from_bits(a.to_bits() & b.to_bits()) } else { b }
}

pub(super) fn min(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        return b;
    }
    if b.is_nan() || a < b {
        return a;
    }
    if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { b }
}

/// A float of few bits, rounded to the nearest, ties to even, and to the largest where it is beyond.
struct Small {
    mantissa: u32,
    /// The exponent of the least normal number.
    least: i32,
    largest: f64,
    largest_code: u32,
    nan: u32,
    sign: u32,
}

impl Small {
    fn code(&self, value: f32) -> u32 {
        if value.is_nan() {
            return self.nan;
        }
        let sign = if value.is_sign_negative() { self.sign } else { 0 };
        let magnitude = f64::from(value.abs());
        if magnitude >= self.largest {
            return sign | self.largest_code;
        }
        let exponent =
            if magnitude == 0.0 { self.least } else { (((magnitude.to_bits() >> 52) as i32) - 1023).max(self.least) };
        let step = 2f64.powi(exponent - self.mantissa as i32);
        let steps = (magnitude / step).round_ties_even() as u32;
        // A carry goes on into the exponent; below the least normal number there is none.
        let code = if exponent == self.least && steps < 1 << self.mantissa {
            steps
        } else {
            (((exponent - self.least + 1) as u32) << self.mantissa) + steps - (1 << self.mantissa)
        };
        sign | code.min(self.largest_code)
    }
}

const E4M3: Small = Small { mantissa: 3, least: -6, largest: 448.0, largest_code: 0x7E, nan: 0x7F, sign: 0x80 };
const E5M2: Small = Small { mantissa: 2, least: -14, largest: 57344.0, largest_code: 0x7B, nan: 0x7F, sign: 0x80 };
// NaN becomes the largest number.
const E2M1: Small = Small { mantissa: 1, least: 0, largest: 6.0, largest_code: 7, nan: 7, sign: 8 };

pub(super) fn e4m3(value: f32) -> u32 {
    E4M3.code(value)
}
pub(super) fn e5m2(value: f32) -> u32 {
    E5M2.code(value)
}
pub(super) fn e2m1(value: f32) -> u32 {
    E2M1.code(value)
}

/// The least power of two that is not below, as its exponent's byte; 255 of NaN.
pub(super) fn ue8m0_up(value: f32) -> u32 {
    if value.is_nan() {
        return 255;
    }
    let (bits, mut code) = (value.abs().to_bits(), value.abs().to_bits() >> 23);
    let mantissa = bits & 0x7F_FFFF;
    // Subnormal numbers above 2^-127 have the next one.
    if (code > 0 && mantissa != 0) || (code == 0 && mantissa > 0x40_0000) {
        code += 1;
    }
    code.min(254)
}

pub(super) fn of_e4m3(code: u32) -> f32 {
    let magnitude = match (code >> 3 & 15, code & 7) {
        (15, 7) => f32::NAN,
        (0, m) => m as f32 * 2f32.powi(-9),
        (e, m) => (8 + m) as f32 * 2f32.powi(e as i32 - 10),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

pub(super) fn of_e5m2(code: u32) -> f32 {
    f16::from_bits((code << 8) as u16).to_f32()
}

pub(super) fn of_e2m1(code: u32) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code as usize & 7];
    if code & 8 != 0 { -magnitude } else { magnitude }
}

pub(super) fn of_f16(code: u32) -> f32 {
    f16::from_bits(code as u16).to_f32()
}
pub(super) fn of_bf16(code: u32) -> f32 {
    f32::from_bits(code << 16)
}

pub(super) fn f16_of(value: f32) -> u32 {
    if value.is_nan() { 0x7FFF } else { u32::from(f16::from_f32(value).to_bits()) }
}
pub(super) fn bf16_of(value: f32) -> u32 {
    if value.is_nan() { 0x7FFF } else { u32::from(bf16::from_f32(value).to_bits()) }
}

/// Rounded once, of a number that has more bits than a double may keep: `a * b + c` of halves is exact in a double but for the
/// sum, whose last bit stands for all behind it.
pub(super) fn fma_f64_odd(a: f64, b: f64, c: f64) -> f64 {
    let product = a * b;
    let sum = product + c;
    if !sum.is_finite() {
        return sum;
    }
    let shadow = sum - product;
    let rest = (product - (sum - shadow)) + (c - shadow);
    if rest == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // Toward the rest, so that the last bit is set.
    if (rest > 0.0) == (sum > 0.0) { f64::from_bits(sum.to_bits() + 1) } else { f64::from_bits(sum.to_bits() - 1) }
}

/// The float of a double that says by its last bit whether anything lies behind it: rounded again, to fewer bits, it is right.
/// (`half` looks at the double's upper word alone.)
fn odd(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || !nearest.is_finite() {
        return nearest;
    }
    let below = if f64::from(nearest).abs() > value.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() };
    f32::from_bits(below | 1)
}

/// To the nearest half, of a double.
pub(super) fn f16_of_f64(value: f64) -> u32 {
    f16_of(odd(value))
}
pub(super) fn bf16_of_f64(value: f64) -> u32 {
    bf16_of(odd(value))
}

/// Halves of a word, one function each.
pub(super) fn halves(a: u32, b: u32, c: u32, each: impl Fn(u32, u32, u32) -> u32) -> u32 {
    each(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF) & 0xFFFF | each(a >> 16, b >> 16, c >> 16) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_nearest() {
        for code in 0..0x7Fu32 {
            assert_eq!(e4m3(of_e4m3(code)), code);
            let next = of_e4m3((code + 1).min(0x7E));
            let middle = (of_e4m3(code) + next) / 2.0;
            if code < 0x7E {
                assert_eq!(e4m3(middle), code + code % 2, "the tie above {code}");
                assert_eq!(e4m3(middle.next_up()), code + 1);
            }
        }
        for code in 0..0x7Cu32 {
            assert_eq!(e5m2(of_e5m2(code)), code);
        }
        for code in 0..16 {
            assert_eq!(e2m1(of_e2m1(code)), code);
        }
        assert_eq!((e2m1(2.5), e2m1(-5.0), e2m1(0.25), e2m1(0.75), e2m1(1e9)), (4, 14, 0, 2, 7));
        assert_eq!((e4m3(1e9), e4m3(-f32::INFINITY), e4m3(f32::NAN)), (0x7E, 0xFE, 0x7F));
        assert_eq!((ue8m0_up(1.0), ue8m0_up(1.5), ue8m0_up(0.0), ue8m0_up(f32::INFINITY)), (127, 128, 0, 254));
    }

    #[test]
    fn halves_of_doubles_are_rounded_once() {
        // One and a half of the last place, and what only a double shows of it.
        let tie = 1.0 + 1.5 * 2f64.powi(-7);
        assert_eq!([bf16_of_f64(tie), bf16_of_f64(tie - 1e-13), bf16_of_f64(tie + 1e-13)], [0x3F82, 0x3F81, 0x3F82]);
        let tie = 1.0 + 0.5 * 2f64.powi(-10);
        assert_eq!([f16_of_f64(tie), f16_of_f64(tie - 1e-13), f16_of_f64(tie + 1e-13)], [0x3C00, 0x3C00, 0x3C01]);
        assert_eq!([f16_of_f64(65520.0), f16_of_f64(65519.99999999), f16_of_f64(-1e300)], [0x7C00, 0x7BFF, 0xFC00]);
        assert_eq!(bf16_of_f64(fma_f64_odd(1.0, 1.0, 2f64.powi(-60))), 0x3F80);
    }

    #[test]
    fn sums_toward_zero() {
        assert_eq!(add_toward_zero(1.0, 2f32.powi(-24)), 1.0);
        assert_eq!(add_toward_zero(1.0, -(2f32.powi(-30))), 1.0f32.next_down());
        assert_eq!(add_toward_zero(-1.0, 2f32.powi(-30)), (-1.0f32).next_up());
        assert_eq!(add_toward_zero(1.0, 2f32.powi(-23)), 1.0f32.next_up());
        assert_eq!(add_toward_zero(1.0, 1.5 * 2f32.powi(-23)), 1.0f32.next_up());
        assert_eq!(add_toward_zero(f32::MAX, f32::MAX), f32::MAX);
        assert_eq!(add_toward_zero(3e30, -3e30), 0.0);
        assert_eq!(add_toward_zero(1e30, -1e-30), 1e30f32.next_down());
    }
}
