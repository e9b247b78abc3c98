//! What the definition makes of values that are quantized for products.

use ndarray::Array2;
use scaled_gemm::codec;
use scaled_gemm::reference::definition;
use scaled_gemm::{DType, GivenScale, HostQuantMatrix, Recipe, Scheme};

use crate::output::Failure;

/// The scale of the whole matrix, where one is given; what is given takes turns.
pub fn given(recipe: Recipe, turn: usize) -> Option<GivenScale> {
    match recipe.scheme() {
        Scheme::Fp8Tensor(_) => Some([GivenScale::Encode(3.7), GivenScale::Decode(0.11)][turn % 2]),
        Scheme::Nvfp4 => Some([GivenScale::Amax(90.0), GivenScale::Encode(29.0), GivenScale::Decode(0.03)][turn % 3]),
        _ => None,
    }
}

/// The largest magnitude of values, NaN ignored.
pub fn amax(values: &Array2<f32>) -> f32 {
    values.iter().fold(0.0, |amax, v| if v.abs() > amax { v.abs() } else { amax })
}

/// What the definition makes of values before they are quantized.
pub fn defined(values: &Array2<f32>, recipe: Recipe, given: Option<GivenScale>) -> Result<HostQuantMatrix, Failure> {
    let x = values.view();
    Ok(match (recipe, given) {
        (Recipe::Fp8(fp8), Some(given)) => {
            let (encode, scale) = match given {
                GivenScale::Decode(scale) => (1.0 / scale, scale),
                GivenScale::Encode(number) | GivenScale::Amax(number) => (number, 1.0 / number),
            };
            let codes = x.iter().map(|v| codec::encode(fp8.format, v * encode)).collect();
            HostQuantMatrix::from_logical(fp8.scheme(), x.nrows(), x.ncols(), codes, &[scale])?
        }
        (_, Some(given)) => definition::quantize_with_scale(x, DType::F32, recipe, given)?,
        (_, None) => definition::quantize(x, DType::F32, recipe)?,
    })
}
