//! MXFP8 and MXFP4: blocks of 32 elements of a row (the last may be shorter), one E8M0 byte each.
//!
//! ```text
//! amax = max |x| of the block (FP32, NaN ignored, 0 if there is nothing else)
//! byte = MxScaleRule::byte(amax, format)                         crate::format::mx
//! code = sat(fl(x * 2^(127 - byte)))                            the factor is exact; byte 255 makes every code that of NaN
//! ```
//!
//! NaN is code 0x7F in FP8. E2M1 has none: code 7, +6, whose value is NaN where the byte is 255 and `6 * 2^(byte - 127)` elsewhere.

use multiversion::multiversion;
use ndarray::ArrayView2;

use super::parallel;
use super::quantize::{largest, row};
use crate::error::Result;
use crate::format::{CodeFormat, HostQuantMatrix, MxScaleRule, Scheme, codec};

/// `x` in an MX scheme. The columns were checked.
pub(super) fn quantize(x: &ArrayView2<f32>, scheme: Scheme, rule: MxScaleRule) -> Result<HostQuantMatrix> {
    let (rows, cols) = x.dim();
    let spec = scheme.spec();
    let [_, blocks] = scheme.block_grid(rows, cols);
    let block_cols = spec.block.map_or(cols, |block| block.cols);
    let code_bytes = cols * spec.code_bits / 8;
    let (mut codes, mut bytes) = (vec![0u8; rows * code_bytes], vec![0u8; rows * blocks]);
    parallel::for_each_pair((&mut codes, code_bytes), (&mut bytes, blocks), 4, |i, codes, bytes| {
        quantize_row(&row(x, i), block_cols, rule, spec.format, codes, bytes);
    });
    HostQuantMatrix::from_block_logical(scheme, rows, cols, codes, &[], &bytes)
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn quantize_row(
    row: &[f32],
    block_cols: usize,
    rule: MxScaleRule,
    format: CodeFormat,
    codes: &mut [u8],
    bytes: &mut [u8],
) {
    let per_byte = if format == CodeFormat::E2M1 { 2 } else { 1 };
    let groups = row.chunks(block_cols).zip(codes.chunks_mut(block_cols / per_byte));
    for ((values, codes), byte) in groups.zip(bytes) {
        *byte = rule.byte(largest(values), format);
        let factor = codec::e8m0_reciprocal(*byte);
        match format {
            CodeFormat::Fp8(format) => codec::encode_group(format, values, factor, codes),
            CodeFormat::E2M1 => codec::encode_scaled_e2m1(values, factor, codes),
        }
    }
}
