//! The definition of every result: loops over elements that follow the formulas of `docs/numerics.md` one by one, slow and on
//! one core. [`reference`](super), which is fast, and the GPU are compared with it, by the tests and by `scaled-gemm verify`.
//!
//! It shares nothing with the rest of [`reference`](super) but the casts of one number in [`codec`], random words
//! ([`philox4x32_10`](super::philox4x32_10)), and the checks of arguments. Powers of two come from logarithms in f64, which are
//! exact enough for every FP32 number, where the reference works on bits.

mod cast;
mod grouped;
pub mod nvfp4;
mod producers;
mod product;

use ndarray::{Array2, ArrayView2};

pub use cast::{cast, cast_back, cast_with_scales, fp4_to_fp8};
pub use grouped::{activation_gradient, dequantize_grouped, quantize_grouped, quantize_grouped_with_scales};
pub use producers::{erf, erfc, gelu, gelu_of, gelu_tanh, gelu_tanh_argument, rms_norm, silu, swiglu, swiglu_backward};
pub use product::{scaled_gemm, values};

use super::quantize::{check, check_given};
use crate::error::Result;
use crate::format::{
    DType, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, Fp8Scales, GivenScale, HostQuantMatrix, MxScaleRule,
    Mxfp4Recipe, Mxfp8Recipe, Recipe, Scheme, codec,
};

/// What [`reference::quantize`](super::quantize) must give.
///
/// # Errors
/// As there.
pub fn quantize(x: ArrayView2<f32>, source: DType, recipe: impl Into<Recipe>) -> Result<HostQuantMatrix> {
    let recipe = recipe.into();
    check(&x, source, recipe)?;
    match recipe {
        Recipe::Fp8(recipe) => fp8(&x, source, recipe),
        Recipe::Mxfp8(recipe) => mxfp8(&x, recipe),
        Recipe::Mxfp4(recipe) => mxfp4(&x, recipe),
        Recipe::Nvfp4(recipe) => nvfp4::quantize(&x, recipe, None),
    }
}

/// What [`reference::quantize_with_scale`](super::quantize_with_scale) must give.
///
/// # Errors
/// As there.
pub fn quantize_with_scale(
    x: ArrayView2<f32>,
    source: DType,
    recipe: impl Into<Recipe>,
    scale: GivenScale,
) -> Result<HostQuantMatrix> {
    let recipe = check_given(&x, source, recipe.into())?;
    nvfp4::quantize(&x, recipe, Some(scale))
}

/// What [`reference::dequantize`](super::dequantize) must give: `round(fl(code * fl(block_scale * scale)))`.
pub fn dequantize(q: &HostQuantMatrix, out: DType) -> Array2<f32> {
    Array2::from_shape_fn((q.rows(), q.cols()), |(i, j)| {
        let [code, block, scale] = product::numbers(q, i, j);
        codec::round_to(out, code * (block * scale))
    })
}

/// The largest magnitude; a NaN is not larger than anything.
fn amax<'a>(x: impl IntoIterator<Item = &'a f32>) -> f32 {
    x.into_iter().fold(0.0, |largest, v| if v.abs() > largest { v.abs() } else { largest })
}

/// FP8: one FP32 scale for each group of elements, smaller at the edges.
fn fp8(x: &ArrayView2<f32>, source: DType, recipe: Fp8Recipe) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let [height, width] = match recipe.granularity {
        Fp8Granularity::Tensor => [rows, cols],
        Fp8Granularity::Row => [1, cols],
        Fp8Granularity::Group1x128 => [1, 128],
        Fp8Granularity::Group128x128 => [128, 128],
    };
    let mut codes = vec![0; rows * cols];
    let mut scales = Vec::new();
    // A matrix without elements still has the groups of an axis that is a group as a whole.
    let starts = |len: usize, size: usize| (0..len.max(usize::from(size == len))).step_by(size.max(1));
    for top in starts(rows, height) {
        for left in starts(cols, width) {
            let [is, js] = [top..(top + height).min(rows), left..(left + width).min(cols)];
            let members = || is.clone().flat_map(|i| js.clone().map(move |j| (i, j)));
            let largest = amax(members().map(|at| &x[at]));
            let (encode, scale) = fp8_scale(largest, source, recipe);
            members().for_each(|(i, j)| codes[i * cols + j] = codec::encode(recipe.format, x[[i, j]] * encode));
            scales.push(scale);
        }
    }
    HostQuantMatrix::from_logical(recipe.scheme(), rows, cols, codes, &scales)
}

/// The factor for the data and the stored scale of a group: the formulas of [`Fp8Rule`].
fn fp8_scale(amax: f32, source: DType, recipe: Fp8Recipe) -> (f32, f32) {
    let max: f32 = if recipe.format == Fp8Format::E4M3 { 448.0 } else { 57344.0 };
    let powers = recipe.scales == Fp8Scales::PowerOfTwo;
    // Encode factors are rounded down to a power of two, scales up.
    let down = |v: f32| if powers { f64::from(v).log2().floor().exp2() as f32 } else { v };
    let up = |v: f32| if powers { f64::from(v).log2().ceil().exp2() as f32 } else { v };
    match recipe.rule {
        Fp8Rule::TorchAo => {
            // In f64, as torchao's source has it.
            let encode = down((f64::from(max) / f64::from(amax.max(1e-12))) as f32);
            (encode, 1.0 / encode)
        }
        Fp8Rule::TransformerEngine if amax == 0.0 || amax == f32::INFINITY => (1.0, 1.0),
        Fp8Rule::TransformerEngine => {
            let largest = match (recipe.granularity, source) {
                (Fp8Granularity::Tensor, _) => f32::MAX,
                (_, DType::Bf16) => half::bf16::MAX.to_f32(),
                (_, DType::F16) => half::f16::MAX.to_f32(),
                _ => f32::MAX,
            };
            let encode = down(if max / amax == f32::INFINITY { largest } else { max / amax });
            (encode, 1.0 / encode)
        }
        Fp8Rule::DeepSeek => {
            let (scale, encode) = (amax.max(1e-4) / max, max / amax.max(1e-4));
            if powers { (1.0 / up(scale), up(scale)) } else { (encode, scale) }
        }
        Fp8Rule::DeepGemm => {
            let scale = up(amax.max(1e-4) * (1.0 / max));
            (1.0 / scale, scale)
        }
        Fp8Rule::DeepGemmCpu => {
            let scale = up(amax.max(1e-4) / max);
            (1.0 / scale, scale)
        }
    }
}

/// MXFP8: blocks of 32 elements of a row, the last one shorter, each with a power of two.
fn mxfp8(x: &ArrayView2<f32>, Mxfp8Recipe { format, rule }: Mxfp8Recipe) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let (mut codes, mut bytes) = (Vec::new(), Vec::new());
    for i in 0..rows {
        for left in (0..cols).step_by(32) {
            let block: Vec<f32> = (left..(left + 32).min(cols)).map(|j| x[[i, j]]).collect();
            // The largest number of the format, the exponent of its leading bit, and the bits behind that.
            let numbers = if format == Fp8Format::E4M3 { (448.0, 8.0, 3.0) } else { (57344.0, 15.0, 2.0) };
            let byte = mx_byte(amax(&block), rule, numbers);
            codes.extend(block.iter().map(|v| codec::encode(format, v * mx_factor(byte))));
            bytes.push(byte);
        }
    }
    HostQuantMatrix::from_block_logical(Scheme::Mxfp8(format), rows, cols, codes, &[], &bytes)
}

/// MXFP4: the same with codes of four bits, the even column's in the low half of a byte.
fn mxfp4(x: &ArrayView2<f32>, Mxfp4Recipe { rule }: Mxfp4Recipe) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let (mut codes, mut bytes) = (vec![0; rows * cols / 2], Vec::new());
    for i in 0..rows {
        for left in (0..cols).step_by(32) {
            let columns = left..(left + 32).min(cols);
            let block: Vec<f32> = columns.clone().map(|j| x[[i, j]]).collect();
            let byte = mx_byte(amax(&block), rule, (6.0, 2.0, 1.0));
            for j in columns {
                let code = codec::encode_e2m1(x[[i, j]] * mx_factor(byte));
                codes[(i * cols + j) / 2] |= if j % 2 == 0 { code } else { code << 4 };
            }
            bytes.push(byte);
        }
    }
    HostQuantMatrix::from_block_logical(Scheme::Mxfp4, rows, cols, codes, &[], &bytes)
}

/// What data are multiplied by.
fn mx_factor(byte: u8) -> f32 {
    if byte == 255 { f32::NAN } else { (127.0 - f64::from(byte)).exp2() as f32 }
}

/// The exponent by the rules of [`MxScaleRule`], from -127 to 127, plus 127.
fn mx_byte(amax: f32, rule: MxScaleRule, (max, largest, fraction): (f32, f64, f64)) -> u8 {
    if amax == f32::INFINITY {
        return if rule == MxScaleRule::Up { 254 } else { 255 };
    }
    let log2 = f64::from(amax).log2();
    let exponent = match rule {
        MxScaleRule::Up | MxScaleRule::Rceil => f64::from(amax * (1.0 / max)).log2().ceil(),
        MxScaleRule::Floor => log2.floor() - largest,
        MxScaleRule::Ceil => log2.ceil() - largest,
        // Half a unit of the format's last place is added, and what lies below that place does not change the exponent.
        MxScaleRule::Even => (f64::from(amax) + (log2.floor() - fraction - 1.0).exp2()).log2().floor() - largest,
    };
    (exponent.clamp(-127.0, 127.0) + 127.0) as u8
}
