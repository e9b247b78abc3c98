//! RMSNorm, with a residual that is added first.

use ndarray::{Array2, ArrayView2};

use super::sum::sum_of_products;
use super::{matrix, parallel, row};
use crate::error::{Error, Result};
use crate::format::{DType, check_extents, codec};

/// What [`rms_norm`] needs beside x.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm<'a> {
    /// A factor for each column.
    pub weight: &'a [f32],
    /// What is added to the mean of squares.
    pub epsilon: f32,
    /// What is added to x first, of its shape and type.
    pub residual: Option<ArrayView2<'a, f32>>,
    /// The type of x, to which the sum is rounded: BF16, F16 or F32.
    pub dtype: DType,
}

impl<'a> RmsNorm<'a> {
    /// Without a residual.
    #[must_use]
    pub fn new(weight: &'a [f32], epsilon: f32, dtype: DType) -> Self {
        Self { weight, epsilon, residual: None, dtype }
    }

    /// With what is added to x first.
    #[must_use]
    pub fn with_residual(self, residual: ArrayView2<'a, f32>) -> Self {
        Self { residual: Some(residual), ..self }
    }
}

/// What [`rms_norm`] gives.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNormed {
    /// y, for a cast.
    pub values: Array2<f32>,
    /// `x + residual`, rounded to the type of x, where there is a residual: the next layer's residual.
    pub sum: Option<Array2<f32>>,
    /// The factor of each row, `1 / sqrt(mean + epsilon)`.
    pub rstd: Vec<f32>,
}

/// `y = s / sqrt(mean(s^2) + epsilon) * weight` along rows, `s = x + residual`; x is `rows x cols`.
///
/// ```text
/// s    = round(fl(x + residual))                       to the type of x; what follows reads the rounded sum. Without residual: x
/// mean = fl(sum of s^2 / cols)                         the sum in FP32, in the order below
/// rstd = fl(1 / fl(sqrt(fl(mean + epsilon))))
/// y    = fl(fl(s * rstd) * weight)
/// ```
///
/// The order of the sum is that of a GPU, so that the bytes are equal: one fused multiply-add after the other over 8 neighbours, a
/// tree over the 16 such of 128 columns (8 apart, 4, 2, 1), the 128 columns of number c added to the sum of number c modulo 8, and
/// a tree over the eight (4 apart, 2, 1). Squares beyond FP32 make it infinite, and the row zeros; zeros with an epsilon of 0 become NaN. Runs on all cores; allocates the
/// result.
///
/// # Errors
/// [`Error::Shape`] if there are more than 2^31 - 1 rows or columns, the weight has not one element for each column, or the residual
/// another shape; [`Error::DType`] for 8-bit types; [`Error::Unsupported`] unless epsilon is finite and at least 0.
pub fn rms_norm(x: ArrayView2<f32>, options: &RmsNorm<'_>) -> Result<RmsNormed> {
    check(&x, options)?;
    let (rows, cols) = x.dim();
    let mut sum = vec![0.0f32; rows * cols];
    parallel::for_each_piece(&mut sum, cols, 4, |i, sum| {
        sum.copy_from_slice(&row(&x, i));
        if let Some(residual) = options.residual {
            sum.iter_mut().zip(row(&residual, i).iter()).for_each(|(s, r)| *s += r);
            codec::round_all(options.dtype, sum);
        }
    });
    let (mut values, mut rstd) = (sum.clone(), vec![0.0; rows]);
    parallel::for_each_pair((&mut values, cols), (&mut rstd, 1), 4, |_, values, rstd| {
        let squares = sum_of_products(cols, |j| [values[j]; 2]);
        rstd[0] = 1.0 / (squares / cols as f32 + options.epsilon).sqrt();
        values.iter_mut().zip(options.weight).for_each(|(v, weight)| *v = *v * rstd[0] * weight);
    });
    let sum = options.residual.map(|_| matrix(rows, cols, sum));
    Ok(RmsNormed { values: matrix(rows, cols, values), sum, rstd })
}

fn check(x: &ArrayView2<f32>, options: &RmsNorm<'_>) -> Result<()> {
    let (rows, cols) = x.dim();
    // Before anything of this size is made: what has no elements may have any number of rows.
    check_extents("x of a norm", rows, cols, "split it")?;
    if options.weight.len() != cols {
        return Err(Error::shape(
            "weight of a norm",
            format!("{} elements", options.weight.len()),
            format!("must be the {cols} columns of x"),
            "pass a factor for each column",
        ));
    }
    if let Some((r, c)) = options.residual.map(|residual| residual.dim()).filter(|dim| *dim != x.dim()) {
        return Err(Error::shape(
            "residual of a norm",
            format!("{r} x {c}"),
            format!("must be {rows} x {cols}, as x"),
            "pass a matrix of the same shape",
        ));
    }
    if !options.dtype.is_wide() {
        return Err(Error::dtype("x of a norm", options.dtype, "cannot hold a sum", "pass bf16, f16 or f32"));
    }
    if !(options.epsilon >= 0.0 && options.epsilon.is_finite()) {
        return Err(Error::unsupported(
            format!("epsilon {} of a norm", options.epsilon),
            "it must be finite and at least 0",
            "pass the model's, such as 1e-6",
        ));
    }
    Ok(())
}
