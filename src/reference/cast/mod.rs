//! Casts to the groupings of [`CastGroup`](crate::CastGroup), TileKernels' rule: the bytes that the GPU must produce.
//!
//! ```text
//! v     = x                              numbers
//!         fl(code_in * scale_in)         a quantized input: two multiplications, this one and the one below, never one combined factor
//! amax  = max |v| of the group           FP32 from the first comparison on; NaN ignored, 0 if there is nothing else
//! scale, encode                          CastRecipe::group_scale
//! code  = sat(fl(v * encode))            NaN to 0x7F (E4M3) or 7 (E2M1); sign of zero kept
//! ```

mod input;
mod lossless;

use ndarray::Array2;

pub use input::{CastInput, CastValues};
pub use lossless::fp4_to_fp8;

use super::parallel;
use super::quantize::amax;
use crate::error::{Error, Result};
use crate::format::{
    CastRecipe, CastScales, CastScheme, CodeFormat, DType, Extent, GroupScale, HostCastMatrix, check_given_scales,
    codec, of_byte,
};

/// `code = sat(fl(v * encode))` and `scale` for each group of the input, both chosen by the recipe.
///
/// `v` is the number, or `fl(code * scale)` of a quantized input; rows are those that are gathered. The result is
/// `input.rows() x input.cols()`; transposed schemes store codes `[cols][rows]`. Runs on all cores; allocates the result, a table of
/// its scales, and a byte an element if it is transposed.
///
/// # Errors
/// [`Error::Shape`] if the columns, or the rows of a transposed cast, are not a multiple of 16; [`Error::Unsupported`] if a scale of
/// the input is NaN or negative.
pub fn cast(input: &CastInput<'_>, recipe: CastRecipe) -> Result<HostCastMatrix> {
    write(input, recipe.scheme(), &factors(input, recipe)?)
}

/// The scales that [`cast`] stores, in logical order (`[row groups][column groups]`), without the codes.
///
/// Runs on all cores; allocates the result and a table of its size.
///
/// # Errors
/// As [`cast`].
pub fn cast_scales(input: &CastInput<'_>, recipe: CastRecipe) -> Result<Vec<f32>> {
    let bytes = recipe.scheme().scales() == CastScales::Ue8m0;
    let stored = |f: GroupScale| if bytes { of_byte(f.scale) } else { f.scale };
    Ok(factors(input, recipe)?.into_iter().map(stored).collect())
}

/// [`cast`] with scales that the caller brings, in logical order: `encode = fl(1 / scale)`.
///
/// A scale too small for the data saturates codes; one below 2^-128 has an infinite inverse, which makes NaN of zeros.
///
/// # Errors
/// As [`cast`]; [`Error::Shape`] for another number of scales than the groups have, [`Error::Unsupported`] for one that is NaN,
/// infinite, zero or negative, and among bytes for one that is no power of two from 2^-127 to 2^127.
pub fn cast_with_scales(input: &CastInput<'_>, scheme: CastScheme, scales: &[f32]) -> Result<HostCastMatrix> {
    check(input, scheme)?;
    check_given(input, scheme, scales)?;
    let factors: Vec<_> = scales.iter().map(|scale| GroupScale { encode: 1.0 / scale, scale: *scale }).collect();
    write(input, scheme, &factors)
}

/// `fl(code * scale)`, rounded to nearest even in `out`, as FP32 values; `rows x cols`, never transposed.
///
/// A value beyond the range of `out` becomes infinite in F32, BF16 and F16, and the largest value in E4M3 and E5M2. Runs on all cores;
/// allocates the result.
pub fn cast_back(q: &HostCastMatrix, out: DType) -> Array2<f32> {
    let (rows, cols) = (q.rows(), q.cols());
    let mut values = vec![0.0f32; rows * cols];
    parallel::for_each_piece(&mut values, cols, 1, |i, row| {
        input::decode_row(q, i, row);
        codec::round_all(out, row);
    });
    Array2::from_shape_vec((rows, cols), values).expect("rows * cols values were made")
}

/// What every cast asks of its arguments.
pub(super) fn check(input: &CastInput<'_>, scheme: CastScheme) -> Result<()> {
    scheme.check_shape(input.rows(), input.cols())?;
    input.check_scales()
}

/// What a cast asks of scales that are given.
pub(super) fn check_given(input: &CastInput<'_>, scheme: CastScheme, scales: &[f32]) -> Result<()> {
    let [row_groups, col_groups] = scheme.group().grid(input.rows(), input.cols());
    if scales.len() != row_groups * col_groups {
        return Err(Error::shape(
            format!("given scales of a {} x {} matrix cast to {scheme}", input.rows(), input.cols()),
            scales.len().to_string(),
            format!("must be {row_groups} x {col_groups}"),
            "pass one scale for each group, in logical order",
        ));
    }
    check_given_scales(scheme, input.rows(), input.cols(), scales)
}

/// The factors of every group, in logical order.
fn factors(input: &CastInput<'_>, recipe: CastRecipe) -> Result<Vec<GroupScale>> {
    check(input, recipe.scheme())?;
    Ok(amaxes(input, recipe.scheme()).into_iter().map(|amax| recipe.group_scale(amax)).collect())
}

/// The amax of every group, in logical order.
fn amaxes(input: &CastInput<'_>, scheme: CastScheme) -> Vec<f32> {
    let (rows, cols) = (input.rows(), input.cols());
    let ([height, width], [row_groups, groups]) = (scheme.group().extents(), scheme.group().grid(rows, cols));
    let (height, width) = (height.size(rows), width.size(cols).max(1));
    let mut amaxes = vec![0.0f32; row_groups * groups];
    parallel::for_each_piece(&mut amaxes, groups, height * width, |band, largest| {
        let mut scratch = Vec::new();
        for i in band * height..((band + 1) * height).min(rows) {
            let members = input.row(i, &mut scratch).chunks(width);
            // One element a group is a loop over columns that vectorises.
            let raise = |(a, v): (&mut f32, f32)| *a = if v > *a { v } else { *a };
            match scheme.group().extents()[1] {
                Extent::Elements(1) => largest.iter_mut().zip(members.map(|v| v[0].abs())).for_each(raise),
                _ => largest.iter_mut().zip(members.map(amax)).for_each(raise),
            }
        }
    });
    amaxes
}

/// Codes by the factors of their groups, with the scales.
fn write(input: &CastInput<'_>, scheme: CastScheme, factors: &[GroupScale]) -> Result<HostCastMatrix> {
    let (rows, cols) = (input.rows(), input.cols());
    let ([height, width], [_, groups]) = (scheme.group().extents(), scheme.group().grid(rows, cols));
    let (height, width) = (height.size(rows), width.size(cols).max(1));
    let scaled = |i: usize| {
        let mut values = input.row(i, &mut Vec::new()).to_vec();
        let factors = &factors[i / height * groups..][..groups];
        for (values, factor) in values.chunks_mut(width).zip(factors) {
            values.iter_mut().for_each(|v| *v *= factor.encode);
        }
        values
    };
    let mut codes = vec![0u8; scheme.code_bytes(rows, cols)];
    if scheme.is_transposed() {
        let mut by_row = vec![0u8; rows * cols];
        parallel::for_each_piece(&mut by_row, cols, 4, |i, codes| {
            codes.iter_mut().zip(scaled(i)).for_each(|(code, v)| *code = encode(scheme.format(), v));
        });
        transpose(&by_row, [rows, cols], scheme.format(), &mut codes);
    } else {
        parallel::for_each_piece(&mut codes, scheme.code_bytes(1, cols), 4, |i, codes| match scheme.format() {
            // The values are multiplied already: a factor may hold for one column only.
            CodeFormat::Fp8(format) => codec::encode_scaled(format, &scaled(i), 1.0, codes),
            CodeFormat::E2M1 => codec::encode_scaled_e2m1(&scaled(i), 1.0, codes),
        });
    }
    let scales = factors.iter().map(|f| f.scale).collect();
    HostCastMatrix::from_computed(scheme, rows, cols, codes, scales)
}

fn encode(format: CodeFormat, v: f32) -> u8 {
    match format {
        CodeFormat::Fp8(format) => codec::encode(format, v),
        CodeFormat::E2M1 => codec::encode_e2m1(v),
    }
}

/// Codes of `[rows][cols]`, a byte each, as `[cols][rows]`; two rows share a byte of E2M1.
fn transpose(by_row: &[u8], [rows, cols]: [usize; 2], format: CodeFormat, codes: &mut [u8]) {
    /// Columns of a cache line: what is read of a row is read once.
    const LINE: usize = 64;
    let column = rows * format.bits() / 8;
    parallel::for_each_piece(codes, LINE * column, 2, |line, codes| {
        for (i, row) in by_row.chunks(cols).enumerate() {
            let row = row[LINE * line..].iter().take(LINE);
            match format {
                CodeFormat::Fp8(_) => row.enumerate().for_each(|(j, code)| codes[j * column + i] = *code),
                CodeFormat::E2M1 => {
                    row.enumerate().for_each(|(j, code)| codes[j * column + i / 2] |= code << (i % 2 * 4))
                }
            }
        }
    });
}
