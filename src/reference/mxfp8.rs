//! MXFP8: blocks of 32 elements of a row (the last may be shorter), one E8M0 byte each.
//!
//! ```text
//! amax = max |x| of the block (FP32, NaN ignored, 0 if there is nothing else)
//! byte = MxScaleRule::byte(amax, format)                         crate::format::mx
//! code = sat(fl(x * 2^(127 - byte)))                            the factor is exact; byte 255 makes every code NaN, 0x7F
//! ```

use multiversion::multiversion;
use ndarray::ArrayView2;

use super::parallel;
use super::quantize::{largest, row};
use crate::error::Result;
use crate::format::{HostQuantMatrix, Mxfp8Recipe, Scheme, codec};

/// `x` by an MXFP8 recipe. The columns were checked.
pub(super) fn quantize(x: &ArrayView2<f32>, recipe: Mxfp8Recipe) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let scheme = Scheme::Mxfp8(recipe.format);
    let [_, blocks] = scheme.block_grid(rows, cols);
    let block_cols = scheme.spec().block.map_or(cols, |block| block.cols);
    let (mut codes, mut bytes) = (vec![0u8; rows * cols], vec![0u8; rows * blocks]);
    parallel::for_each_pair((&mut codes, cols), (&mut bytes, blocks), 4, |i, codes, bytes| {
        quantize_row(&row(x, i), block_cols, recipe, codes, bytes);
    });
    HostQuantMatrix::from_block_logical(scheme, rows, cols, codes, &[], &bytes)
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn quantize_row(row: &[f32], block_cols: usize, recipe: Mxfp8Recipe, codes: &mut [u8], bytes: &mut [u8]) {
    let groups = row.chunks(block_cols).zip(codes.chunks_mut(block_cols));
    for ((values, codes), byte) in groups.zip(bytes) {
        *byte = recipe.rule.byte(largest(values), recipe.format);
        codec::encode_group(recipe.format, values, codec::e8m0_reciprocal(*byte), codes);
    }
}
