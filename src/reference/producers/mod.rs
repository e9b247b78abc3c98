//! Producers: what is computed right before a cast. Each gives FP32 values, which any cast takes as
//! [`CastValues::Plain`](super::CastValues::Plain); fused on a GPU they are never stored.
//!
//! `fl(.)` is one FP32 operation, in the order that is written; `exp` is that of the epilogues
//! ([`Activation`](crate::Activation)), made of IEEE operations alone (error below 2 ulp), so that a GPU can give the same bits.

mod activation;
mod rms_norm;
mod sum;
mod swiglu;

use ndarray::{Array2, ArrayView2};

pub use activation::{gelu, gelu_tanh, silu};
pub use rms_norm::{RmsNorm, RmsNormed, rms_norm};
pub use swiglu::{ClampCounts, Swiglu, SwigluGradients, swiglu, swiglu_backward};

use super::parallel;
use super::quantize::row;
use crate::format::{DType, codec};

/// Every value rounded to nearest even in `dtype`: TileKernels' casts per channel read the values of SwiGLU rounded to BF16, those
/// along rows read them as they are.
pub fn round_values(mut values: Array2<f32>, dtype: DType) -> Array2<f32> {
    let cols = values.ncols();
    let slice = values
        .as_slice_mut()
        .map(|values| parallel::for_each_piece(values, cols, 4, |_, row| codec::round_all(dtype, row)));
    if slice.is_none() {
        values.mapv_inplace(|v| codec::round_to(dtype, v));
    }
    values
}

/// `f` of every element.
fn map(x: ArrayView2<f32>, f: impl Fn(f32) -> f32 + Sync) -> Array2<f32> {
    let (rows, cols) = x.dim();
    let mut values = vec![0.0; rows * cols];
    parallel::for_each_piece(&mut values, cols, 16, |i, out| {
        out.iter_mut().zip(row(&x, i).iter()).for_each(|(out, v)| *out = f(*v));
    });
    matrix(rows, cols, values)
}

fn matrix(rows: usize, cols: usize, values: Vec<f32>) -> Array2<f32> {
    Array2::from_shape_vec((rows, cols), values).expect("rows * cols values were made")
}
