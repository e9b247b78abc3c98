//! SiLU and GELU, element by element.

use ndarray::{Array2, ArrayView2};

use super::map;
use crate::epilogue::Activation;

/// `fl(v * fl(1 / fl(1 + exp(-v))))`; [`Activation::Silu`]. NaN at minus infinity. Runs on all cores; allocates the result, and panics or aborts where that cannot be (of a view that is larger than memory).
pub fn silu(x: ArrayView2<f32>) -> Array2<f32> {
    map(x, |v| Activation::Silu.apply(v))
}

/// GELU in its tanh form, [`Activation::Gelu`]. NaN at minus infinity. Runs on all cores; allocates the result, and panics or aborts where that cannot be (of a view that is larger than memory).
pub fn gelu_tanh(x: ArrayView2<f32>) -> Array2<f32> {
    map(x, |v| Activation::Gelu.apply(v))
}

/// GELU in its exact form, `v * erfc(-v / sqrt 2) / 2`, with all digits for every v: within 3.7e-7 of its value, and of subnormal ones within
/// 3.7e-45. 0 with v's sign where that is less than FP32 has, and at minus infinity. Runs on all cores; allocates the result, and panics or aborts where that cannot be (of a view that is larger than memory).
///
/// ```text
/// a  = min(|v|, 14.5);  s = fl(a * a)                         beyond 14.5 the tail is zero
/// n  = round(-s / (2 ln2));  r = a^2 + 2 n ln2                in two steps, the first of the exact square: exp(-a^2 / 2) = 2^n exp(-r / 2)
/// t  = 2^n fl(1 / D(a)) * N(a) * (1 + w),  w = exp(-r / 2) - 1
/// y  = fl(max(v, 0) - a t)                                    a t once more with a factor of 2^64, which the last step takes back
/// ```
///
/// t is `erfc(a / sqrt 2) / 2`: N of degree 4 and D of degree 5 have its quotient with `exp(-a^2 / 2)` within 4.9e-9 up to 13.25, w is that of [`exp`](crate::Epilogue).
pub fn gelu(x: ArrayView2<f32>) -> Array2<f32> {
    map(x, gelu_of)
}

fn gelu_of(v: f32) -> f32 {
    // Not `min`, which would lose a NaN.
    let a = if v.abs() > 14.5 { 14.5 } else { v.abs() };
    let s = a * a;
    // Adding 1.5 * 2^23 rounds to the nearest integer, which stands in the lowest bits.
    let shifted = s.mul_add(-0.721_347_5, 12_582_912.0);
    let n = shifted - 12_582_912.0;
    let r = n.mul_add(2.857_213_5e-6, a.mul_add(a, n * 1.386_291_5));
    let w = r * horner(r, [2.158_522e-5, -2.615_233e-4, 2.604_274_3e-3, -2.083_315e-2, 0.124_999_985, -0.5]);
    // Even and odd powers by themselves: an error of s is in numerator and denominator alike.
    let even = horner(s, [4.015_723_7e-3, 0.181_216_8, 0.5]);
    let numerator = horner(s, [0.039_953_94, 0.435_564_37]).mul_add(a, even);
    let even = horner(s, [0.100_157_104, 1.194_109_7, 1.0]);
    let denominator = horner(s, [0.010_065_783, 0.464_142_9, 1.669_013_6]).mul_add(a, even);
    // 2^(n + 64): a normal number for every n, of which the least is -152.
    let numerator = f32::from_bits(numerator.to_bits().wrapping_add(shifted.to_bits().wrapping_add(64) << 23));
    let tail = a * (1.0 / denominator * numerator);
    let tail = tail.mul_add(w, tail);
    let rest = if v >= 0.0 { v } else { -0.0 };
    tail.mul_add(-5.421_011e-20, rest)
}

/// `((c0 x + c1) x + c2) x + ...`, each step one fused multiply-add.
fn horner<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    coefficients[1..].iter().fold(coefficients[0], |p, c| p.mul_add(x, *c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::definition;

    /// Both signs of every so many numbers between 0 and 15; of all of them 3.69e-7 was the worst (a run of the same operations in C).
    #[test]
    fn gelu_keeps_its_digits_for_every_argument() {
        let (mut worst, mut least) = (0.0f64, 0.0f64);
        let mut check = |v: f32| {
            let want = definition::gelu_of(f64::from(v));
            let off = (f64::from(gelu_of(v)) - want).abs();
            match want.abs() >= f64::from(f32::MIN_POSITIVE) {
                true => worst = worst.max(off / want.abs()),
                false => least = least.max(off),
            }
        };
        (0..15.0f32.to_bits())
            .step_by(1999)
            .for_each(|bits| [bits, bits | 1 << 31].map(f32::from_bits).into_iter().for_each(&mut check));
        // Where most arguments are, and the last ones whose result is a normal number.
        (-140_000..140_000).for_each(|i| check(i as f32 * 1e-4));
        assert!(worst < 3.7e-7 && least < 4e-45, "{worst:e} {least:e}");
    }

    #[test]
    fn gelu_at_the_ends() {
        assert_eq!(gelu_of(f32::INFINITY), f32::INFINITY);
        assert!(gelu_of(f32::NAN).is_nan() && gelu_of(-f32::NAN).is_nan());
        assert_eq!([f32::MAX, 15.0, 0.0].map(gelu_of), [f32::MAX, 15.0, 0.0]);
        assert_eq!([-0.0, -15.0, f32::MIN, f32::NEG_INFINITY].map(|v| gelu_of(v).to_bits()), [1 << 31; 4]);
        assert_eq!(gelu_of(0.0).to_bits(), 0);
    }
}
