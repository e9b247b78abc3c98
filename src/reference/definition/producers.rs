//! Producers in f64, element by element: what the FP32 values are near to.

use ndarray::{Array2, ArrayView2};

use crate::format::codec;
use crate::reference::producers::{ClampCounts, RmsNorm, Swiglu};

pub(super) fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

/// `l` and `r` within the clamp, a NaN as it is, whether they were beyond it, and the weight of the row; none if the row is skipped.
fn element(x: &ArrayView2<f32>, options: &Swiglu<'_>, [i, j]: [usize; 2]) -> Option<([f64; 2], [bool; 3], f64)> {
    if options.experts.is_some_and(|experts| experts[i] < 0) {
        return None;
    }
    let [l, r] = [x[[i, j]], x[[i, x.ncols() / 2 + j]]].map(f64::from);
    let c = options.clamp.map_or(f64::INFINITY, f64::from);
    let weight = options.weights.map_or(1.0, |weights| f64::from(weights[i]));
    Some(([if l > c { c } else { l }, r.clamp(-c, c)], [l > c, r > c, r < -c], weight))
}

/// What [`reference::swiglu`](crate::reference::swiglu) is near to, and the counts that it must give.
pub fn swiglu(x: ArrayView2<f32>, options: &Swiglu<'_>) -> (Array2<f64>, ClampCounts) {
    let mut counts = ClampCounts::default();
    let values = Array2::from_shape_fn((x.nrows(), x.ncols() / 2), |(i, j)| {
        let Some(([l, r], beyond, weight)) = element(&x, options, [i, j]) else { return 0.0 };
        counts.left_above += u64::from(beyond[0]);
        counts.right_above += u64::from(beyond[1]);
        counts.right_below += u64::from(beyond[2]);
        l * sigmoid(l) * r * weight
    });
    (values, counts)
}

/// What [`reference::swiglu_backward`](crate::reference::swiglu_backward) is near to: the gradients of x and of w.
pub fn swiglu_backward(x: ArrayView2<f32>, gradient: ArrayView2<f32>, options: &Swiglu<'_>) -> (Array2<f64>, Vec<f64>) {
    let half = x.ncols() / 2;
    let of_x = Array2::from_shape_fn(x.dim(), |(i, j)| {
        let Some(([l, r], beyond, weight)) = element(&x, options, [i, j % half]) else { return 0.0 };
        let s = sigmoid(l);
        let y = f64::from(gradient[[i, j % half]]) * weight;
        match j < half {
            true if beyond[0] => 0.0,
            true => y * r * (s + l * s * (1.0 - s)),
            false if beyond[1] || beyond[2] => 0.0,
            false => y * l * s,
        }
    });
    let of_weight = |i: usize| {
        let term =
            |j| element(&x, options, [i, j]).map(|([l, r], ..)| f64::from(gradient[[i, j]]) * l * sigmoid(l) * r);
        (0..half).filter_map(term).sum()
    };
    (of_x, (0..x.nrows()).map(of_weight).collect())
}

/// What [`reference::rms_norm`](crate::reference::rms_norm) is near to.
pub fn rms_norm(x: ArrayView2<f32>, options: &RmsNorm<'_>) -> Array2<f64> {
    let s = Array2::from_shape_fn(x.dim(), |at| {
        f64::from(options.residual.map_or(x[at], |residual| codec::round_to(options.dtype, x[at] + residual[at])))
    });
    Array2::from_shape_fn(x.dim(), |(i, j)| {
        let mean = s.row(i).iter().map(|v| v * v).sum::<f64>() / x.ncols() as f64;
        s[[i, j]] / (mean + f64::from(options.epsilon)).sqrt() * f64::from(options.weight[j])
    })
}

/// What [`reference::silu`](crate::reference::silu) is near to.
pub fn silu(x: ArrayView2<f32>) -> Array2<f64> {
    x.mapv(|v| f64::from(v) * sigmoid(f64::from(v)))
}

/// What [`reference::gelu`](crate::reference::gelu) is near to.
pub fn gelu(x: ArrayView2<f32>) -> Array2<f64> {
    x.mapv(|v| gelu_of(f64::from(v)))
}

/// The same of a number; 0 at minus infinity, where the product has no limit of its own.
pub fn gelu_of(v: f64) -> f64 {
    if v == f64::NEG_INFINITY {
        return 0.0;
    }
    v / 2.0 * erfc(-v / std::f64::consts::SQRT_2)
}

/// What [`reference::gelu_tanh`](crate::reference::gelu_tanh) is near to: `v (1 + tanh(u)) / 2` with `u = sqrt(2 / pi) (v + 0.044715 v^3)`, written as
/// `v * sigmoid(2u)`, which keeps its digits below 0.
pub fn gelu_tanh(x: ArrayView2<f32>) -> Array2<f64> {
    x.mapv(|v| f64::from(v) * sigmoid(gelu_tanh_argument(f64::from(v))))
}

/// The 2u of [`gelu_tanh`], which it takes the sigmoid of.
pub fn gelu_tanh_argument(v: f64) -> f64 {
    2.0 * (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044_715 * v.powi(3))
}

/// `1 - erf(z)` with all its digits: from 2 on the continued fraction `exp(-z^2) / sqrt(pi) / (z + (1/2) / (z + (2/2) / (z + (3/2) / ...)))`.
pub fn erfc(z: f64) -> f64 {
    if z < 2.0 || z.is_nan() {
        return 1.0 - erf(z);
    }
    let rest = (1..120).rev().fold(z, |rest, k| z + f64::from(k) / 2.0 / rest);
    std::f64::consts::FRAC_2_SQRT_PI / 2.0 * (-z * z).exp() / rest
}

/// The error function: `2 / sqrt(pi) exp(-z^2) sum of 2^n z^(2n+1) / (1 * 3 * ... * (2n+1))`, whose terms have one sign.
pub fn erf(z: f64) -> f64 {
    if z.abs() > 6.0 {
        return z.signum();
    }
    let (mut term, mut sum) = (z, z);
    for n in 1..200 {
        term *= 2.0 * z * z / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() * sum
}
