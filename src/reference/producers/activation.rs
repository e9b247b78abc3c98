//! SiLU and GELU, element by element.

use ndarray::{Array2, ArrayView2};

use super::map;
use crate::epilogue::{Activation, exp};

/// `fl(v * fl(1 / fl(1 + exp(-v))))`; [`Activation::Silu`]. NaN at minus infinity. Runs on all cores; allocates the result.
pub fn silu(x: ArrayView2<f32>) -> Array2<f32> {
    map(x, |v| Activation::Silu.apply(v))
}

/// GELU in its tanh form, [`Activation::Gelu`]. NaN at minus infinity. Runs on all cores; allocates the result.
pub fn gelu_tanh(x: ArrayView2<f32>) -> Array2<f32> {
    map(x, |v| Activation::Gelu.apply(v))
}

/// GELU in its exact form, `v * (1 + erf(v / sqrt 2)) / 2`: `fl(fl(v / 2) * fl(1 + erf(fl(v * fl(sqrt(1 / 2))))))`, as PyTorch orders it.
///
/// `erf` is within 8e-8; below -1 its sum with 1 loses digits, as PyTorch's does: the result is within `2e-7 |v|`, and 0 from
/// about -5.5 on. NaN at minus infinity. Runs on all cores; allocates the result.
pub fn gelu(x: ArrayView2<f32>) -> Array2<f32> {
    map(x, |v| 0.5 * v * (1.0 + erf(v * std::f32::consts::FRAC_1_SQRT_2)))
}

/// The error function from IEEE operations alone; `fma` in every step of a polynomial.
///
/// Up to 1: eleven terms of its Taylor series, `z + z * P(z^2)`. Beyond: `1 - exp(-z^2) * R(1 / (1 + z / 2))`, R of degree 6 by
/// Chebyshev's interpolation of `exp(z^2) erfc(z)` (off by 8.5e-9 at most), with the sign of z.
fn erf(z: f32) -> f32 {
    let a = z.abs();
    let square = z * z;
    if a <= 1.0 {
        let p = horner(
            square,
            [
                1.480_719_3e-8,
                -1.636_584_5e-7,
                1.646_211_4e-6,
                -1.492_565e-5,
                1.205_533_3e-4,
                -8.548_327e-4,
                5.223_977_6e-3,
                -2.686_617e-2,
                0.112_837_92,
                -0.376_126_4,
                0.128_379_17,
            ],
        );
        return z.mul_add(p, z);
    }
    let k = 1.0 / 0.5f32.mul_add(a, 1.0);
    let r =
        horner(k, [-0.058_090_207, -0.043_386_04, 0.386_186_26, 0.113_055_65, 0.326_460_6, 0.274_476_62, 5.370_958e-4]);
    (1.0 - exp(-square) * r).copysign(z)
}

/// `((c0 x + c1) x + c2) x + ...`, each step one fused multiply-add.
fn horner<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    coefficients[1..].iter().fold(coefficients[0], |p, c| p.mul_add(x, *c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::definition;

    #[test]
    fn erf_is_within_8e_8() {
        let mut worst = 0.0f64;
        for i in -600_000..600_000 {
            let z = i as f32 * 1e-5;
            worst = worst.max((f64::from(erf(z)) - definition::erf(f64::from(z))).abs());
        }
        assert!(worst < 8e-8, "{worst:e}");
        assert_eq!([erf(0.0), erf(f32::INFINITY), erf(f32::NEG_INFINITY)], [0.0, 1.0, -1.0]);
        assert!(erf(-0.0).is_sign_negative() && erf(f32::NAN).is_nan());
    }
}
