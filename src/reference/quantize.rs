//! Quantize and dequantize: the bytes that the GPU must produce.
//!
//! FP8 is here: amax of every group in FP32 with NaN ignored, [`Fp8Recipe::group_scale`], then `code = sat(fl(x * encode))`.

use std::borrow::Cow;

use multiversion::multiversion;
use ndarray::{Array2, ArrayView2};

use super::nvfp4::Levels;
use super::{mx, nvfp4, parallel};
use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{
    BlockShape, DType, Extent, Fp8Format, Fp8Recipe, GivenScale, GroupScale, HostQuantMatrix, Mxfp4Recipe, Mxfp8Recipe,
    Nvfp4Recipe, Recipe, Scheme, check_dims, codec, pair,
};

/// The largest magnitude; NaN ignored, 0 if there is nothing else.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn amax(x: &[f32]) -> f32 {
    largest(x)
}

/// The same, to be compiled for the CPU of the function that it is in.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    // No comparison with a NaN holds; several numbers abreast vectorise.
    let larger = |a: f32, v: f32| if v > a { v } else { a };
    let (chunks, rest) = x.as_chunks::<32>();
    let mut lanes = [0.0; 32];
    for chunk in chunks {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, v.abs());
        }
    }
    for width in [16, 8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] = larger(lanes[i], lanes[i + width]);
        }
    }
    rest.iter().fold(lanes[0], |a, v| larger(a, v.abs()))
}

/// `value = code * block_scale * scale`, codes and scales chosen as the recipe says: FP8 in [`Fp8Rule`](crate::format::Fp8Rule),
/// MXFP8 and MXFP4 in [`MxScaleRule`](crate::MxScaleRule), NVFP4 in [`nvfp4`](super::nvfp4).
///
/// `x` may have any strides and any number of rows, also none; its columns are the contraction axis. `source` is the
/// type the values were widened from (TransformerEngine's overflow rule for FP8 asks for it). NaN becomes code 0x7F, or 7 in
/// E2M1; infinity gives what the formulas give. Runs on all cores; allocates the result and one table of its size at most.
///
/// # Errors
/// [`Error::Shape`] if the columns are not a multiple of 16, or the rows of [`Recipe::row_multiple`], or there are more than 2^31 - 1 of
/// either or more elements than memory can have; [`Error::DType`] if `source` is an 8-bit type.
pub fn quantize(x: ArrayView2<f32>, source: DType, recipe: impl Into<Recipe>) -> Result<HostQuantMatrix> {
    let recipe = recipe.into();
    check(&x, source, recipe)?;
    match recipe {
        Recipe::Fp8(recipe) => cast(&x, recipe.scheme(), recipe.format, &factors(&x, source, recipe)),
        Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => {
            mx::quantize(&x, recipe.scheme(), rule)
        }
        Recipe::Nvfp4(recipe) => nvfp4::quantize(&x, recipe, Levels::Found, 0),
    }
}

/// [`quantize`] of the transpose of `x`: codes `k x m` for an `m x k` matrix, groups along the rows of `x`.
///
/// The operand of the products that contract over m, e.g. a weight gradient.
///
/// # Errors
/// As [`quantize`], for the transpose: the rows of `x` must be a multiple of 16.
pub fn quantize_transposed(x: ArrayView2<f32>, source: DType, recipe: impl Into<Recipe>) -> Result<HostQuantMatrix> {
    let (x, recipe) = (x.reversed_axes(), recipe.into());
    check(&x, source, recipe)?;
    // Gathered once: the cast reads every row twice.
    quantize(x.as_standard_layout().view(), source, recipe)
}

/// [`quantize`] to NVFP4 with a second level that the caller brings instead of the amax of `x`.
///
/// With a Hadamard recipe it is that of the transformed data. A scale too small for the data saturates codes and block scales; none is refused
/// ([`GivenScale`]).
///
/// # Errors
/// As [`quantize`]; [`Error::Unsupported`] if the recipe is for another scheme than [`Scheme::Nvfp4`].
pub fn quantize_with_scale(
    x: ArrayView2<f32>,
    source: DType,
    recipe: impl Into<Recipe>,
    scale: GivenScale,
) -> Result<HostQuantMatrix> {
    let recipe = check_given(&x, source, recipe.into())?;
    nvfp4::quantize(&x, recipe, Levels::One(scale), 0)
}

/// [`quantize`] to `nvfp4-row` with a second level for each row that the caller brings: rows of one level have the codes and scales that they have as an `nvfp4` matrix of it
/// ([`quantize_with_scale`]). So rows of experts are quantized whose activations have a given scale for each expert. None is refused ([`GivenScale`]).
///
/// # Errors
/// As [`quantize`]; [`Error::Shape`] unless there is one for each row; [`Error::Unsupported`] if the recipe is for another scheme than [`Scheme::Nvfp4Row`].
pub fn quantize_with_row_scales(
    x: ArrayView2<f32>,
    source: DType,
    recipe: impl Into<Recipe>,
    scales: GivenScale<&[f32]>,
) -> Result<HostQuantMatrix> {
    let recipe = recipe.into();
    check(&x, source, recipe)?;
    let recipe = recipe.of_row_levels()?;
    let found = scales.number().len();
    if found != x.nrows() {
        return Err(Error::shape(
            "second levels of rows",
            format!("{found} numbers"),
            format!("must be {}: one for each row", x.nrows()),
            "pass the level of each row, also of rows that share one",
        ));
    }
    nvfp4::quantize(&x, recipe, Levels::Each(scales), 0)
}

/// [`quantize_rows`] of the first rows of a matrix, or of any but of a stochastic recipe.
///
/// # Errors
/// As [`quantize`].
pub fn quantize_part(
    x: ArrayView2<f32>,
    source: DType,
    recipe: impl Into<Recipe>,
    whole: GivenScale,
) -> Result<HostQuantMatrix> {
    quantize_rows(x, source, recipe, whole, 0)
}

/// [`quantize`] of the rows from `first_row` on of a matrix whose amax is known, or whose scale is given: the codes and scales that
/// these rows have in the whole.
///
/// `whole` matters to `fp8-tensor` and `nvfp4`, which have one scale for the matrix; the others take it from the rows. None is refused ([`GivenScale`]). With a
/// Hadamard recipe it is that of the transformed data ([`hadamard16_amax`](super::hadamard16_amax)). `first_row` matters to
/// stochastic recipes, whose random bytes go by the number of a row, and to those with tiles (`fp8-128x128`, 16x16): a part begins at
/// the first row of a tile, and unless it is the last ends with a whole one.
///
/// # Errors
/// As [`quantize`]; [`Error::Shape`] for a `first_row` within a tile.
pub fn quantize_rows(
    x: ArrayView2<f32>,
    source: DType,
    recipe: impl Into<Recipe>,
    whole: GivenScale,
    first_row: usize,
) -> Result<HostQuantMatrix> {
    let recipe = recipe.into();
    check(&x, source, recipe)?;
    check_first_row(first_row, recipe)?;
    match recipe {
        Recipe::Fp8(fp8) if matches!(fp8.scheme(), Scheme::Fp8Tensor(_)) => {
            let factors = match whole {
                GivenScale::Amax(amax) => fp8.group_scale(amax, source),
                given => given.factors()?,
            };
            cast(&x, fp8.scheme(), fp8.format, &[factors])
        }
        Recipe::Nvfp4(nv) if nv.scheme() == Scheme::Nvfp4 => nvfp4::quantize(&x, nv, Levels::One(whole), first_row),
        _ => quantize(x, source, recipe),
    }
}

/// [`quantize_with_scale`] of the transpose of `x`.
///
/// # Errors
/// As [`quantize_with_scale`], for the transpose.
pub fn quantize_transposed_with_scale(
    x: ArrayView2<f32>,
    source: DType,
    recipe: impl Into<Recipe>,
    scale: GivenScale,
) -> Result<HostQuantMatrix> {
    let (x, recipe) = (x.reversed_axes(), recipe.into());
    check_given(&x, source, recipe)?;
    quantize_with_scale(x.as_standard_layout().view(), source, recipe, scale)
}

/// [`amax`] of a matrix, on all cores.
pub(super) fn amax_of(x: &ArrayView2<f32>) -> f32 {
    let mut row_amax = vec![0.0; x.nrows()];
    parallel::for_each_piece(&mut row_amax, 1, x.ncols(), |i, out| out[0] = amax(&row(x, i)));
    amax(&row_amax)
}

/// What every quantizer asks of its arguments.
pub(super) fn check(x: &ArrayView2<f32>, source: DType, recipe: Recipe) -> Result<()> {
    if !source.is_wide() {
        return Err(Error::dtype("x", source, "cannot be quantized", "pass bf16, f16 or f32"));
    }
    recipe.check(x.nrows())?;
    pair::check_quantize_cols("x", x.ncols())?;
    // Before anything of this size is made: what has no elements may have any number of rows.
    check_dims(recipe.scheme(), x.nrows(), x.ncols())
}

/// Refuses a part that begins within a tile: its tiles would not be those of the whole.
fn check_first_row(first_row: usize, recipe: Recipe) -> Result<()> {
    let tile = match (recipe, recipe.scheme().spec().group_rows) {
        (Recipe::Nvfp4(nv), _) if nv.options().shape == BlockShape::Tile16x16 => 16,
        (_, Extent::Elements(rows)) => rows,
        (_, Extent::All) => 1,
    };
    if first_row.is_multiple_of(tile) {
        return Ok(());
    }
    Err(Error::shape(
        "first row of x",
        first_row.to_string(),
        format!("must be a multiple of {tile}: so many rows share a scale ({}, {recipe})", recipe.scheme()),
        "cut the matrix between tiles, or use a recipe without them",
    ))
}

/// [`check`] where a second level is given; gives the recipe, of which it is a part.
pub(super) fn check_given(x: &ArrayView2<f32>, source: DType, recipe: Recipe) -> Result<Nvfp4Recipe> {
    check(x, source, recipe)?;
    match recipe {
        Recipe::Nvfp4(recipe) if recipe.scheme() == Scheme::Nvfp4 => Ok(recipe),
        _ => Err(Error::unsupported(
            format!("a given second-level scale with {}", recipe.scheme()),
            "only nvfp4 has one such scale for the whole matrix",
            "quantize as nvfp4, or leave the scale out",
        )),
    }
}

/// `code = sat(fl(x * encode))` with a given scale, and the amax of `x` before scaling (NaN ignored). No scale is refused ([`GivenScale`]).
///
/// # Errors
/// [`Error::Shape`] if the columns are not a multiple of 16, or there are more than 2^31 - 1 rows or columns.
pub fn quantize_tensor(x: ArrayView2<f32>, format: Fp8Format, scale: GivenScale) -> Result<(HostQuantMatrix, f32)> {
    pair::check_quantize_cols("x", x.ncols())?;
    check_dims(Scheme::Fp8Tensor(format), x.nrows(), x.ncols())?;
    let matrix = cast(&x, Scheme::Fp8Tensor(format), format, &[scale.factors()?])?;
    Ok((matrix, amax_of(&x)))
}

/// `fl(code * f)` with `f = fl(block_scale * scale)`, rounded to nearest even in `out`, as FP32 values; `rows x cols`.
///
/// What a scheme lacks counts as 1: `f` is the scale of FP8 and the block scale of MXFP8 and MXFP4. Rows in a Hadamard basis stay in
/// it. A value beyond the range of `out` becomes infinite in F32, BF16 and F16 (from 65520 on), and the largest value in E4M3
/// and E5M2, which saturate. Runs on all cores; allocates the result.
pub fn dequantize(q: &HostQuantMatrix, out: DType) -> Array2<f32> {
    let (rows, cols) = (q.rows(), q.cols());
    let spec = q.scheme().spec();
    let [_, col_groups] = q.scheme().scale_grid(rows, cols);
    let group_rows = spec.group_rows.size(rows);
    // A block lies within one column group.
    let width = spec.block.map_or(spec.group_cols.size(cols), |block| block.cols);
    // In logical order: the place of each in the device's takes longer to find.
    let ([_, blocks], scales, block_scales) =
        (q.scheme().block_grid(rows, cols), q.logical_scales(), q.logical_block_scales());
    let factor = |row: usize, at: usize| {
        let block = spec.block.map(|block| codec::decode_block_scale(block.format, block_scales[row * blocks + at]));
        let col_group = if spec.block.is_some() { 0 } else { at };
        let scale = match spec.scale_layout {
            ScaleLayout::Absent => None,
            _ => Some(scales[row / group_rows * col_groups + col_group]),
        };
        match (block, scale) {
            (Some(block), Some(scale)) => block * scale,
            (one, other) => one.or(other).unwrap_or(1.0),
        }
    };
    let mut values = vec![0.0f32; rows * cols];
    parallel::for_each_piece(&mut values, cols, 1, |i, row| {
        q.decode_row(i, row);
        for (at, values) in row.chunks_mut(width).enumerate() {
            let factor = factor(i, at);
            values.iter_mut().for_each(|v| *v *= factor);
        }
        codec::round_all(out, row);
    });
    Array2::from_shape_vec((rows, cols), values).expect("rows * cols values were made")
}

/// Row `i`, copied only if its elements are not adjacent.
pub(super) fn row<'a>(x: &'a ArrayView2<f32>, i: usize) -> Cow<'a, [f32]> {
    let row = x.row(i);
    row.to_slice().map_or_else(|| Cow::Owned(row.to_vec()), Cow::Borrowed)
}

/// The factors of every group, in logical order.
fn factors(x: &ArrayView2<f32>, source: DType, recipe: Fp8Recipe) -> Vec<GroupScale> {
    let (rows, cols) = x.dim();
    let spec = recipe.scheme().spec();
    let [row_groups, col_groups] = recipe.scheme().scale_grid(rows, cols);
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

fn cast(x: &ArrayView2<f32>, scheme: Scheme, format: Fp8Format, factors: &[GroupScale]) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let spec = scheme.spec();
    let [_, col_groups] = scheme.scale_grid(rows, cols);
    let (height, width) = (spec.group_rows.size(rows), spec.group_cols.size(cols));
    let mut codes = vec![0u8; scheme.code_bytes(rows, cols)];
    parallel::for_each_piece(&mut codes[..rows * cols], cols, 1, |i, out| {
        let row = row(x, i);
        for (group, (codes, values)) in out.chunks_mut(width).zip(row.chunks(width)).enumerate() {
            let factor = factors[i / height * col_groups + group];
            codec::encode_scaled(format, values, factor.encode, codes);
        }
    });
    codes.truncate(rows * cols);
    let scales: Vec<f32> = factors.iter().map(|f| f.scale).collect();
    HostQuantMatrix::from_logical(scheme, rows, cols, codes, &scales)
}
