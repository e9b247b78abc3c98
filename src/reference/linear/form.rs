//! A matrix as a product of a layer reads it.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, CowArray, Ix2, s};

use crate::error::{Error, Result};
use crate::format::{DType, GivenScale, HostQuantMatrix, LinearRecipe, Recipe, codec, pair};
use crate::reference::gemm::{GemmInputs, scaled_gemm};
use crate::reference::operand::View;
use crate::reference::parallel;
use crate::reference::producers::round_values;
use crate::reference::quantize::{quantize, quantize_part};

/// Quantized, or values rounded to BF16.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Form {
    Quantized(HostQuantMatrix),
    Bf16(Array2<f32>),
}

impl Form {
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Quantized(matrix) => matrix.rows(),
            Self::Bf16(values) => values.nrows(),
        }
    }

    pub(super) fn cols(&self) -> usize {
        match self {
            Self::Quantized(matrix) => matrix.cols(),
            Self::Bf16(values) => values.ncols(),
        }
    }

    /// In the memory of a GPU, padding included.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Quantized(q) => q.codes().len() + q.scales().len() * 4 + q.block_scales().len(),
            Self::Bf16(values) => values.len() * DType::Bf16.bytes(),
        }
    }
}

/// By this recipe, or BF16 without one; with one scale that is known before, if there is.
pub(super) fn form(
    x: ArrayView2<f32>,
    dtype: DType,
    recipe: Option<Recipe>,
    scale: Option<GivenScale>,
) -> Result<Form> {
    match (recipe, scale) {
        (None, _) => Ok(Form::Bf16(round_values(x.as_standard_layout().into_owned(), DType::Bf16))),
        (Some(recipe), None) => quantize(x, dtype, recipe).map(Form::Quantized),
        (Some(recipe), Some(scale)) => quantize_part(x, dtype, recipe, scale).map(Form::Quantized),
    }
}

/// The numbers of a tensor in its type: rounded where they are not, as on their way to a GPU.
pub(super) fn in_type(x: ArrayView2<'_, f32>, dtype: DType) -> CowArray<'_, f32, Ix2> {
    match dtype {
        DType::F32 => x.into(),
        _ => round_values(x.as_standard_layout().into_owned(), dtype).into(),
    }
}

/// W for Y, and W^T for dX; both as the caller has them in the layer's type.
pub(super) fn weight_forms(
    weight: ArrayView2<f32>,
    dtype: DType,
    recipe: LinearRecipe,
    scale: Option<GivenScale>,
) -> Result<[Form; 2]> {
    let plain = form(weight, dtype, recipe.forward().map(|[_, w]| w), scale)?;
    let gathered = weight.t().as_standard_layout().into_owned();
    let transposed = form(gathered.view(), dtype, recipe.input_gradient().map(|[_, w]| w), scale)?;
    Ok([plain, transposed])
}

/// The transpose, with columns of zeros up to what a contraction must be a multiple of. Zeros change no amax and no code of another
/// element.
pub(super) fn padded_transpose(x: ArrayView2<f32>) -> Array2<f32> {
    let (rows, cols) = x.dim();
    let mut transposed = Array2::zeros((cols, rows.next_multiple_of(pair::K_MULTIPLE)));
    transposed.slice_mut(s![.., ..rows]).assign(&x.t());
    transposed
}

/// `cast(sum A B^T + C + bias)`.
pub(super) fn product(
    a: &Form,
    b: &Form,
    out: DType,
    bias: Option<(&[f32], DType)>,
    c: Option<View<'_>>,
) -> Result<Array2<f32>> {
    match (a, b) {
        (Form::Quantized(a), Form::Quantized(b)) => {
            let accumulate = c.map(|c| (1.0, c));
            scaled_gemm(&GemmInputs { bias, accumulate, ..GemmInputs::new(a, b, out) })
        }
        (Form::Bf16(a), Form::Bf16(b)) => Ok(plain_product(a, b, out, bias.map(|(bias, _)| bias), c)),
        _ => Err(Error::unsupported(
            "a product of a BF16 operand and a quantized one",
            "the two are of layers with different recipes",
            "pass what this layer's own calls gave",
        )),
    }
}

/// The same of BF16 values: FP32 sums, in an order that is not specified.
fn plain_product(
    a: &Array2<f32>,
    b: &Array2<f32>,
    out: DType,
    bias: Option<&[f32]>,
    c: Option<View<'_>>,
) -> Array2<f32> {
    /// Rows of D that a core works on.
    const ROWS: usize = 64;
    let (m, n, k) = (a.nrows(), b.nrows(), a.ncols());
    let mut d = vec![0.0f32; m * n];
    parallel::for_each_piece(&mut d, ROWS * n, k, |piece, d| {
        let first = piece * ROWS;
        let rows = d.len() / n;
        let mut view = ArrayViewMut2::from_shape((rows, n), d).expect("a piece has whole rows");
        general_mat_mul(1.0, &a.slice(s![first..first + rows, ..]), &b.t(), 0.0, &mut view);
        if let Some(c) = &c {
            view += &c.slice(s![first..first + rows, ..]);
        }
        for d in d.chunks_mut(n) {
            if let Some(bias) = bias {
                d.iter_mut().zip(bias).for_each(|(d, bias)| *d += bias);
            }
            codec::round_all(out, d);
        }
    });
    Array2::from_shape_vec((m, n), d).expect("m * n values were made")
}
