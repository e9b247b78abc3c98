//! Quantize and dequantize: the bytes that the GPU must produce.
//!
//! amax of every group in FP32 with NaN ignored, [`Recipe::group_scale`], then `code = sat(fl(x * encode))`.

use std::borrow::Cow;

use ndarray::{Array2, ArrayView2};

use super::parallel;
use crate::error::{Error, Result};
use crate::format::{DType, Fp8Format, GroupScale, HostQuantMatrix, Recipe, Scheme, TensorScale, codec, pair};

/// The largest magnitude; NaN ignored, 0 if there is nothing else.
pub fn amax(x: &[f32]) -> f32 {
    // Patterns of non-negative numbers are ordered like the numbers; an integer maximum vectorises.
    let largest = x.iter().fold(0u32, |largest, v| {
        let abs = v.to_bits() & 0x7FFF_FFFF;
        largest.max(if abs > 0x7F80_0000 { 0 } else { abs })
    });
    f32::from_bits(largest)
}

/// `code = sat(fl(x * encode))`, `scale` as the recipe's rule gives it for each group's amax.
///
/// `x` may have any strides and any number of rows, also none; its columns are the contraction axis. `source` is the
/// type the values were widened from (TransformerEngine's overflow rule asks for it). NaN becomes code 0x7F; infinity
/// gives what [`Preset`](crate::format::Preset) says. Runs on all cores; allocates the result and one scale table.
///
/// # Errors
/// [`Error::Shape`] if the columns are not a multiple of 16; [`Error::DType`] if `source` is an 8-bit type.
pub fn quantize(x: ArrayView2<f32>, source: DType, recipe: Recipe) -> Result<HostQuantMatrix> {
    if !source.is_wide() {
        return Err(Error::dtype("x", source, "cannot be quantized", "pass bf16, f16 or f32"));
    }
    pair::check_quantize_cols("x", x.ncols())?;
    let factors = factors(&x, source, recipe);
    cast(&x, recipe.scheme, &factors)
}

/// [`quantize`] of the transpose of `x`: codes `k x m` for an `m x k` matrix, groups along the rows of `x`.
///
/// The operand of the products that contract over m, e.g. a weight gradient.
///
/// # Errors
/// As [`quantize`], for the transpose: the rows of `x` must be a multiple of 16.
pub fn quantize_transposed(x: ArrayView2<f32>, source: DType, recipe: Recipe) -> Result<HostQuantMatrix> {
    // Gathered once: the cast reads every row twice.
    quantize(x.t().as_standard_layout().view(), source, recipe)
}

/// `code = sat(fl(x * encode))` with a given scale, and the amax of `x` before scaling (NaN ignored).
///
/// # Errors
/// [`Error::Shape`] if the columns are not a multiple of 16.
pub fn quantize_tensor(x: ArrayView2<f32>, format: Fp8Format, scale: TensorScale) -> Result<(HostQuantMatrix, f32)> {
    pair::check_quantize_cols("x", x.ncols())?;
    let mut row_amax = vec![0.0; x.nrows()];
    parallel::for_each_piece(&mut row_amax, 1, x.ncols(), |i, out| out[0] = amax(&row(&x, i)));
    let matrix = cast(&x, Scheme::Fp8Tensor(format), &[scale.factors()])?;
    Ok((matrix, amax(&row_amax)))
}

/// `fl(code * scale)`, rounded to nearest even in `out`, as FP32 values; `rows x cols`.
///
/// Runs on all cores; allocates the result.
pub fn dequantize(q: &HostQuantMatrix, out: DType) -> Array2<f32> {
    let (rows, cols) = (q.rows(), q.cols());
    let spec = q.scheme().spec();
    let [row_groups, col_groups] = q.scheme().scale_grid(rows, cols);
    let (group_rows, group_cols) = (spec.group_rows.size(rows), spec.group_cols.size(cols));
    let mut values = vec![0.0f32; rows * cols];
    parallel::for_each_piece(&mut values, cols, 1, |i, row| {
        let codes = &q.codes()[i * cols..][..cols];
        let chunks = row.chunks_mut(group_cols).zip(codes.chunks(group_cols));
        for (group, (values, codes)) in chunks.enumerate() {
            let scale = q.scales()[spec.scale_layout.index(row_groups, col_groups, i / group_rows, group)];
            codec::decode_scaled(spec.format.fp8().unwrap_or_default(), codes, scale, values);
        }
        if out != DType::F32 {
            row.iter_mut().for_each(|v| *v = codec::round_to(out, *v));
        }
    });
    Array2::from_shape_vec((rows, cols), values).expect("rows * cols values were made")
}

/// Row `i`, copied only if its elements are not adjacent.
fn row<'a>(x: &'a ArrayView2<f32>, i: usize) -> Cow<'a, [f32]> {
    let row = x.row(i);
    row.to_slice().map_or_else(|| Cow::Owned(row.to_vec()), Cow::Borrowed)
}

/// The factors of every group, in logical order.
fn factors(x: &ArrayView2<f32>, source: DType, recipe: Recipe) -> Vec<GroupScale> {
    let (rows, cols) = x.dim();
    let spec = recipe.scheme.spec();
    let [row_groups, col_groups] = recipe.scheme.scale_grid(rows, cols);
    let width = spec.group_cols.size(cols).max(1);
    // One amax for each row and column group first: rows are independent.
    let mut partial = vec![0.0f32; rows * col_groups];
    parallel::for_each_piece(&mut partial, col_groups, width, |i, out| {
        let row = row(x, i);
        out.iter_mut().zip(row.chunks(width)).for_each(|(a, group)| *a = amax(group));
    });
    let height = spec.group_rows.size(rows);
    let mut factors = Vec::with_capacity(row_groups * col_groups);
    for group in 0..row_groups {
        let members = (group * height).min(rows)..((group + 1) * height).min(rows);
        for col in 0..col_groups {
            let largest = members.clone().fold(0.0f32, |a, i| a.max(partial[i * col_groups + col]));
            factors.push(recipe.group_scale(largest, source));
        }
    }
    factors
}

fn cast(x: &ArrayView2<f32>, scheme: Scheme, factors: &[GroupScale]) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let spec = scheme.spec();
    let [_, col_groups] = scheme.scale_grid(rows, cols);
    let (height, width) = (spec.group_rows.size(rows), spec.group_cols.size(cols));
    let mut codes = vec![0u8; scheme.code_bytes(rows, cols)];
    parallel::for_each_piece(&mut codes[..rows * cols], cols, 1, |i, out| {
        let row = row(x, i);
        for (group, (codes, values)) in out.chunks_mut(width).zip(row.chunks(width)).enumerate() {
            codec::encode_scaled(spec.format.fp8().unwrap_or_default(), values, factors[i / height * col_groups + group].encode, codes);
        }
    });
    codes.truncate(rows * cols);
    let scales: Vec<f32> = factors.iter().map(|f| f.scale).collect();
    HostQuantMatrix::from_logical(scheme, rows, cols, codes, &scales)
}
