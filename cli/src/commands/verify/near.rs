//! How far values before a cast are from their definition in f64, as a fraction of what they may be off.

use ndarray::Array2;
use scaled_gemm::reference::{RmsNorm, Swiglu, definition};

use crate::device::sources::{GatedInput, HostValues};
use crate::quantizers::Function;

/// What values before a cast may be off, relative.
const NEAR: f64 = 4e-7;
/// One rounding to FP32, of a normal number; and of a subnormal one, half a step of 2^-149.
const ROUNDING: f64 = 1.0 / 16_777_216.0;
const HALF_STEP: f64 = 8e-46;
/// Half a step of the smallest numbers, some times over: what is lost where a result is that small.
const STEPS: f64 = 6e-45;
/// Where exp(-l) is infinite in FP32 the sigmoid, below 1 / 3.4e38, becomes zero: lost times what it is multiplied by.
const LEAST_SIGMOID: f64 = 3e-39;

/// How much of what a number may be off it is: none where both are the same infinity, or NaN, which is far from everything else.
fn part_of(got: f32, want: f64, may: f64) -> f64 {
    let got = f64::from(got);
    if got == want || got.is_nan() && want.is_nan() {
        return 0.0;
    }
    let fraction = (got - want).abs() / may;
    if fraction.is_nan() || !want.is_finite() { f64::INFINITY } else { fraction }
}

/// The worst fraction of what an element may be off; beyond 1 is wrong.
fn worst(got: &Array2<f32>, want: &Array2<f64>, may: impl Fn([usize; 2], f64) -> f64) -> f64 {
    let fraction = |(((i, j), got), want): (((usize, usize), &f32), &f64)| part_of(*got, *want, may([i, j], *want));
    got.indexed_iter().zip(want).map(fraction).fold(0.0, f64::max)
}

fn sigmoid(l: f64) -> f64 {
    1.0 / (1.0 + (-l).exp())
}

/// What `fl(1 / fl(1 + exp(-l)))` may be off of its value s: exp by 1.3 roundings, and one each for the sum and the quotient.
fn off_of_sigmoid(s: f64) -> f64 {
    (1.3 * (1.0 - s) + 2.0) * ROUNDING
}

/// What GELU in its tanh form, `v * sigmoid(z)`, may be off: below 0 the sigmoid follows z by `|z| (1 - s)`, and z is off by 2.5 roundings and
/// 3.6 of the part that the cube has. The library's `tests/producers_reference.rs` derives this and the next.
fn off_of_gelu_tanh(v: f64, want: f64) -> f64 {
    let z = definition::gelu_tanh_argument(v);
    let (s, cube) = (sigmoid(z), 0.044_715 * v * v);
    let off_of_z = (2.5 + 3.6 * cube / (1.0 + cube)) * ROUNDING;
    let relative = off_of_sigmoid(s) + ROUNDING + z.abs() * (1.0 - s) * off_of_z;
    NEAR.max(relative) * want.abs() + LEAST_SIGMOID * v.abs() + STEPS
}

/// What the gradients of l and of r may be off, y being the gradient times the weight.
///
/// ```text
/// dr = y s l                          NEAR of its own value
/// dl = y s r q, q = 1 + l (1 - s)     five roundings and the sigmoid, and what q is off: `|l|` times what s is, and a rounding of 1 - s
/// ```
fn off_of_gradients([l, r]: [f64; 2], y: f64, [of_l, of_r]: [f64; 2]) -> [f64; 2] {
    let (s, y, l_abs, r) = (sigmoid(l), y.abs(), l.abs(), r.abs());
    let q = (1.0 + l * (1.0 - s)).abs();
    let off_of_q = l_abs * (s * off_of_sigmoid(s) + if s < 0.5 { ROUNDING / 2.0 } else { 0.0 });
    let left = (5.0 * ROUNDING + off_of_sigmoid(s)) * of_l.abs()
        + y * r * (s * off_of_q + LEAST_SIGMOID * (1.0 + l_abs))
        + HALF_STEP * (1.0 + q * (1.0 + r * (1.0 + s)));
    [left, NEAR * of_r.abs() + LEAST_SIGMOID * y * l_abs + HALF_STEP * (1.0 + l_abs * (1.0 + s))]
}

/// Of what the reference makes of them before a cast; 0 of what is read as it is.
pub fn of_values(values: &HostValues<'_>, got: &Array2<f32>) -> f64 {
    match values {
        HostValues::Plain(_) | HostValues::Coded(_) => 0.0,
        HostValues::Swiglu(x, options, _) => {
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
            worst(got, &definition::gelu_tanh(x.values.view()), |at, want| {
                off_of_gelu_tanh(f64::from(x.values[at]), want)
            })
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
    let c = options.clamp.map_or(f64::INFINITY, f64::from);
    let halves = |i: usize, j: usize| {
        let [l, r] = [x[(i, j)], x[(i, half + j)]].map(f64::from);
        [l.min(c), r.clamp(-c, c)]
    };
    let weight = |i: usize| options.weights.map_or(1.0, |weights| f64::from(weights[i]));
    let fraction = worst(got.0, &of_x, |[i, j], _| {
        let y = f64::from(gradient[(i, j % half)]) * weight(i);
        off_of_gradients(halves(i, j % half), y, [of_x[[i, j % half]], of_x[[i, half + j % half]]])[j / half]
    });
    got.1.iter().zip(&of_w).enumerate().fold(fraction, |fraction, (i, (got, want))| {
        // Of what is summed, which rounds up as often as down.
        let term = |j: usize| {
            let [l, r] = halves(i, j);
            (NEAR * sigmoid(l) + LEAST_SIGMOID) * (l * r * f64::from(gradient[(i, j)])).abs() + STEPS
        };
        fraction.max(part_of(*got, *want, (0..half).map(term).sum()))
    })
}
