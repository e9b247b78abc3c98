//! Block-scaled codes as plain values.

use super::Kernels;
use crate::error::{Error, Result};
use crate::format::{DType, Scheme};
use crate::gpu::memory::{LaunchStream, Span};

/// A block-scaled matrix on the device.
pub(crate) struct BlockCodes<'a> {
    pub(crate) scheme: Scheme,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) codes: &'a Span<'a>,
    pub(crate) block_scales: &'a Span<'a>,
    /// The second level; `None` counts as 1.
    pub(crate) scales: Option<&'a Span<'a>>,
}

impl Kernels {
    /// `y[i, j] = code * block_scale * scale`, rounded to `dtype`, rows `y_stride` elements apart.
    pub(crate) fn dequantize_blocks(
        &self,
        _stream: &LaunchStream,
        q: &BlockCodes<'_>,
        _y: &Span<'_>,
        _y_stride: usize,
        dtype: DType,
    ) -> Result<()> {
        let BlockCodes { scheme, rows, cols, codes, block_scales, scales } = q;
        Err(Error::unsupported(
            format!("dequantizing {rows} x {cols} {scheme} to {dtype}"),
            format!("{} codes, {} block scales, scaled: {}", codes.bytes, block_scales.bytes, scales.is_some()),
            "wait for its kernel",
        ))
    }
}
