//! How far values before a cast are from their definition in f64, as a fraction of what they may be off.

use ndarray::Array2;
use scaled_gemm::reference::{RmsNorm, Swiglu, definition};

use crate::device::sources::{GatedInput, HostValues};
use crate::quantizers::Function;

/// What values before a cast may be off, relative.
const NEAR: f64 = 4e-7;
/// The same of GELU in its tanh form, relative to its argument.
const NEAR_GELU: f64 = 2e-7;
/// Half a step of the smallest numbers, some times over: what is lost where a result is that small.
const STEPS: f64 = 6e-45;
/// Where exp(-l) is infinite in FP32 the sigmoid, below 1 / 3.4e38, becomes zero: lost times what it is multiplied by.
const LEAST_SIGMOID: f64 = 3e-39;

/// How much of what something may be off it is. A NaN is far from everything.
fn part_of(off: f64, may: f64) -> f64 {
    let fraction = off / may;
    if fraction.is_nan() { f64::INFINITY } else { fraction }
}

/// The worst fraction of what an element may be off; beyond 1 is wrong.
fn worst(got: &Array2<f32>, want: &Array2<f64>, may: impl Fn([usize; 2], f64) -> f64) -> f64 {
    let fraction = |(((i, j), got), want): (((usize, usize), &f32), &f64)| {
        part_of((f64::from(*got) - want).abs(), may([i, j], *want))
    };
    got.indexed_iter().zip(want).map(fraction).fold(0.0, f64::max)
}

/// GELU in its tanh form, in f64.
fn gelu_tanh(v: f32) -> f64 {
    let v = f64::from(v);
    v / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044_715 * v * v * v)).tanh())
}

/// Of what the reference makes of them before a cast; 0 of what is read as it is.
pub fn of_values(values: &HostValues<'_>, got: &Array2<f32>) -> f64 {
    match values {
        HostValues::Plain(_) | HostValues::Coded(_) => 0.0,
        HostValues::Swiglu(x, options) => {
            let half = got.ncols();
            let lost = |[i, j]: [usize; 2]| {
                let [l, r] = [x.values[(i, j)], x.values[(i, half + j)]].map(|v| f64::from(v.abs()));
                let w = options.weights.map_or(1.0, |weights| f64::from(weights[i].abs()));
                LEAST_SIGMOID * l * r * w + STEPS
            };
            let (want, _) = definition::swiglu(x.values.view(), options);
            worst(got, &want, |at, want| NEAR * want.abs() + lost(at))
        }
        HostValues::Activated(x, Function::Silu) => {
            let lost = |at| LEAST_SIGMOID * f64::from(x.values[at].abs()) + STEPS;
            worst(got, &definition::silu(x.values.view()), |at, want| NEAR * want.abs() + lost(at))
        }
        HostValues::Activated(x, Function::Gelu) => {
            worst(got, &definition::gelu(x.values.view()), |_, want| NEAR * want.abs() + STEPS)
        }
        HostValues::Activated(x, Function::GeluTanh) => {
            worst(got, &x.values.mapv(gelu_tanh), |at, _| NEAR_GELU * f64::from(x.values[at].abs()) + STEPS)
        }
        // Two products, each rounded once.
        HostValues::Normed(x, rows, columns) => {
            let want = Array2::from_shape_fn(got.dim(), |(i, j)| {
                f64::from(x.values[(i, j)]) * f64::from(rows[i]) * f64::from(columns[j])
            });
            worst(got, &want, |_, want| NEAR * want.abs() + STEPS)
        }
    }
}

/// Of a norm's values.
pub fn of_norm(x: &Array2<f32>, norm: &RmsNorm<'_>, got: &Array2<f32>) -> f64 {
    worst(got, &definition::rms_norm(x.view(), norm), |_, want| NEAR * want.abs() + STEPS)
}

/// Of the gradients of x and of the rows' weights.
pub fn of_gradients(
    x: GatedInput<'_>,
    gradient: &Array2<f32>,
    options: &Swiglu<'_>,
    got: (&Array2<f32>, &[f32]),
) -> f64 {
    let x = x.values();
    let half = gradient.ncols();
    let (of_x, of_w) = definition::swiglu_backward(x.view(), gradient.view(), options);
    let halves = |i: usize, j: usize| [x[(i, j)], x[(i, half + j)]].map(f64::from);
    let weight = |i: usize| options.weights.map_or(1.0, |weights| f64::from(weights[i].abs()));
    // What may be off of terms that the sigmoid of l multiplies; a clamp of l only lowers it.
    let of_terms = |l: f64, terms: f64| (NEAR / (1.0 + (-l).exp()) + LEAST_SIGMOID) * terms + STEPS;
    // 1 - s and 1 + l (1 - s) cancel: it is their terms that the error is relative to.
    let fraction = worst(got.0, &of_x, |[i, j], _| {
        let [l, r] = halves(i, j % half);
        let terms = if j < half { r.abs() * (1.0 + l.abs()) } else { l.abs() };
        of_terms(l, terms * f64::from(gradient[(i, j % half)].abs()) * weight(i))
    });
    got.1.iter().zip(&of_w).enumerate().fold(fraction, |fraction, (i, (got, want))| {
        let term = |j: usize| {
            let [l, r] = halves(i, j);
            of_terms(l, (l * r * f64::from(gradient[(i, j)])).abs())
        };
        fraction.max(part_of((f64::from(*got) - want).abs(), (0..half).map(term).sum()))
    })
}
