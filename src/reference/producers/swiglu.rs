//! SwiGLU and its gradients, TileKernels' arithmetic.

use ndarray::{Array2, ArrayView2};

use super::sum::sum_of_products;
use super::{matrix, parallel, row};
use crate::epilogue::sigmoid;
use crate::error::{Error, Result};
use crate::format::{DType, check_extents, codec};

/// What [`swiglu`] and [`swiglu_backward`] take beside x; nothing by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Swiglu<'a> {
    /// The bound c: l is at most c, r between -c and c. A NaN stays one.
    pub clamp: Option<f32>,
    /// w, a factor for each row; 1 without.
    pub weights: Option<&'a [f32]>,
    /// The expert of each row. A row whose expert is negative is skipped: its results are zeros, and it counts nothing.
    pub experts: Option<&'a [i32]>,
}

/// How many elements a clamp has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClampCounts {
    /// `l > c`.
    pub left_above: u64,
    /// `r > c`.
    pub right_above: u64,
    /// `r < -c`.
    pub right_below: u64,
}

/// What [`swiglu_backward`] gives.
#[derive(Debug, Clone, PartialEq)]
pub struct SwigluGradients {
    /// The gradient of x, `[dl | dr]`, rows x 2H: FP32 as a cast reads it.
    pub x: Array2<f32>,
    /// The result of the forward pass again, rounded to BF16; rows x H.
    pub out: Array2<f32>,
    /// The gradient of w, one number for each row.
    pub weights: Vec<f32>,
}

/// `y = silu(l) * r * w` of x = `[l | r]`, rows x 2H; y is rows x H.
///
/// ```text
/// l = min(l, c);  r = max(min(r, c), -c)               with a clamp; what is strictly beyond is counted
/// s = fl(1 / fl(1 + exp(-l)));  y = fl(fl(l * s) * r)
/// y = fl(y * w)                                        with weights
/// ```
///
/// A cast along rows reads y as it is; one per channel reads it rounded to BF16
/// ([`round_values`](super::round_values)). Runs on all cores; allocates the result.
///
/// # Errors
/// [`Error::Shape`] if the columns of x are odd, there are more than 2^31 - 1 rows or columns, or weights or experts are not one for each
/// row; [`Error::Unsupported`] for a clamp that is negative or NaN.
pub fn swiglu(x: ArrayView2<f32>, options: &Swiglu<'_>) -> Result<(Array2<f32>, ClampCounts)> {
    let [rows, half] = options.check(&x)?;
    let mut counts = vec![ClampCounts::default(); rows];
    let mut values = vec![0.0f32; rows * half];
    parallel::for_each_pair((&mut values, half), (&mut counts, 1), 16, |i, values, counts| {
        let Some(weight) = options.weight(i) else { return };
        let x = row(&x, i);
        let (left, right) = x.split_at(half);
        for ((y, l), r) in values.iter_mut().zip(left).zip(right) {
            let (l, r) = options.clamped(*l, *r, &mut counts[0]);
            *y = l * sigmoid(l) * r * weight;
        }
    });
    let total = counts.iter().fold(ClampCounts::default(), |a, b| ClampCounts {
        left_above: a.left_above + b.left_above,
        right_above: a.right_above + b.right_above,
        right_below: a.right_below + b.right_below,
    });
    Ok((matrix(rows, half, values), total))
}

/// The gradients of [`swiglu`] for the gradient g of y, rows x H; l and r are clamped as there.
///
/// ```text
/// s   = fl(1 / fl(1 + exp(-l)));  act = fl(fl(l * s) * r)
/// out = bf16(fl(act * w))
/// t   = fl(fl(g * w) * s)
/// dl  = fl(fl(t * r) * fma(l, fl(1 - s), 1))           0 where l was beyond the clamp
/// dr  = fl(t * l)                                      0 where r was
/// dw  = sum of g * act along the row                   in FP32, in the order that rms_norm says
/// ```
///
/// Runs on all cores; allocates the result.
///
/// # Errors
/// As [`swiglu`]; [`Error::Shape`] if g is not rows x H.
pub fn swiglu_backward(x: ArrayView2<f32>, gradient: ArrayView2<f32>, options: &Swiglu<'_>) -> Result<SwigluGradients> {
    let [rows, half] = options.check(&x)?;
    if gradient.dim() != (rows, half) {
        return Err(Error::shape(
            "gradient of SwiGLU",
            format!("{} x {}", gradient.nrows(), gradient.ncols()),
            format!("must be {rows} x {half}, half the columns of x"),
            "pass the gradient of its result",
        ));
    }
    let mut results = vec![0.0f32; rows * 3 * half];
    let mut weights = vec![0.0f32; rows];
    // dl, dr and out of a row side by side.
    parallel::for_each_pair((&mut results, 3 * half), (&mut weights, 1), 16, |i, results, dw| {
        let Some(weight) = options.weight(i) else { return };
        let (x, g) = (row(&x, i), row(&gradient, i));
        let (dl, rest) = results.split_at_mut(half);
        let (dr, out) = rest.split_at_mut(half);
        let mut acts = vec![0.0f32; half];
        for j in 0..half {
            let mut beyond = ClampCounts::default();
            let (l, r) = options.clamped(x[j], x[half + j], &mut beyond);
            let s = sigmoid(l);
            let act = l * s * r;
            let t = g[j] * weight * s;
            out[j] = codec::round_to(DType::Bf16, act * weight);
            dl[j] = if beyond.left_above > 0 { 0.0 } else { t * r * l.mul_add(1.0 - s, 1.0) };
            dr[j] = if beyond.right_above + beyond.right_below > 0 { 0.0 } else { t * l };
            acts[j] = act;
        }
        dw[0] = sum_of_products(half, |j| [g[j], acts[j]]);
    });
    let (mut x, mut out) = (Vec::with_capacity(rows * 2 * half), Vec::with_capacity(rows * half));
    for row in results.chunks(3 * half.max(1)) {
        x.extend(&row[..2 * half]);
        out.extend(&row[2 * half..]);
    }
    Ok(SwigluGradients { x: matrix(rows, 2 * half, x), out: matrix(rows, half, out), weights })
}

impl Swiglu<'_> {
    /// Rows and columns of the result.
    pub(in crate::reference) fn check(&self, x: &ArrayView2<f32>) -> Result<[usize; 2]> {
        let (rows, cols) = x.dim();
        // Before anything of this size is made: what has no elements may have any number of rows.
        check_extents("x of SwiGLU", rows, cols, "split it")?;
        if !cols.is_multiple_of(2) {
            return Err(Error::shape(
                "x of SwiGLU",
                format!("{cols} columns"),
                "must be even: the left half is gated, the right half multiplies",
                "pass both halves side by side",
            ));
        }
        let lengths = [("weights", self.weights.map(<[f32]>::len)), ("experts", self.experts.map(<[i32]>::len))];
        for (what, found) in lengths.into_iter().filter_map(|(what, len)| Some((what, len?))) {
            if found != rows {
                return Err(Error::shape(
                    format!("{what} of SwiGLU"),
                    found.to_string(),
                    format!("must be the {rows} rows of x"),
                    "pass one for each row",
                ));
            }
        }
        match self.clamp {
            Some(c) if c.is_nan() || c < 0.0 => Err(Error::unsupported(
                format!("a clamp of {c} in SwiGLU"),
                "r is bounded by it on both sides, so that it must be at least 0",
                "pass the model's bound, or leave it out",
            )),
            _ => Ok([rows, cols / 2]),
        }
    }

    /// w of a row; none if the row is skipped.
    fn weight(&self, i: usize) -> Option<f32> {
        let skipped = self.experts.is_some_and(|experts| experts[i] < 0);
        (!skipped).then(|| self.weights.map_or(1.0, |weights| weights[i]))
    }

    /// l and r within the clamp; notes what was beyond.
    fn clamped(&self, mut l: f32, mut r: f32, counts: &mut ClampCounts) -> (f32, f32) {
        if let Some(c) = self.clamp {
            if l > c {
                l = c;
                counts.left_above += 1;
            }
            if r > c {
                r = c;
                counts.right_above += 1;
            } else if r < -c {
                r = -c;
                counts.right_below += 1;
            }
        }
        (l, r)
    }
}
