//! Operands of our kernels, resolved on a stream, and the checks against what a kernel touches.

use crate::error::{Error, Result};
use crate::format::{CodeFormat, DType, Scheme};
use crate::gpu::device::memory::Span;

/// A plain input of a quantizer, resolved on the stream.
pub(crate) struct Input<'a> {
    pub(crate) x: &'a Span<'a>,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row_stride: usize,
}

impl Input<'_> {
    pub(super) fn aligned(&self) -> bool {
        is_aligned(self.x.address, self.rows, self.row_stride, self.dtype)
    }

    pub(super) fn check(&self) -> Result<()> {
        let needed = extent(self.rows, self.cols, self.row_stride) * self.dtype.bytes();
        check_bytes("input", self.x, needed)?;
        check_aligned("input", self.x, self.dtype.bytes() as u64)?;
        if !self.cols.is_multiple_of(16) || self.rows > u32::MAX as usize || self.cols > i32::MAX as usize {
            return Err(Error::shape(
                "input",
                format!("{} x {}", self.rows, self.cols),
                "must have a multiple of 16 columns and fewer than 2^31 of each",
                "pad the columns with zeros",
            ));
        }
        Ok(())
    }

    /// The same as one long row where the rows are contiguous: fewer, fuller blocks.
    pub(super) fn flattened(&self) -> (usize, usize) {
        if self.row_stride == self.cols { (1, self.rows * self.cols) } else { (self.rows, self.cols) }
    }
}

/// Codes and scales that a quantizer writes.
pub(crate) struct Output<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
}

/// The factor of a per-tensor cast, on the device.
#[derive(Clone, Copy)]
pub(crate) enum Factor<'a> {
    /// One FP32 that multiplies the data; the stored scale is its reciprocal.
    Encode(&'a Span<'a>),
    /// One FP32, the stored scale; its reciprocal multiplies the data.
    Decode(&'a Span<'a>),
    /// Two FP32: encode factor and scale, as [`Kernels::amax_tensor`] writes them.
    Computed(&'a Span<'a>),
}

impl Factor<'_> {
    /// Address and kind, as `kernels/cast/tile.cuh` numbers it.
    pub(super) fn checked(&self) -> Result<(u64, u32)> {
        let (span, kind, count) = match self {
            Self::Encode(span) => (span, 0, 1),
            Self::Decode(span) => (span, 1, 1),
            Self::Computed(span) => (span, 2, 2),
        };
        check_floats("factor", span, count)?;
        Ok((span.address, kind))
    }
}

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

impl BlockCodes<'_> {
    /// That a dequantizer may write `y` from these, rows `y_stride` elements apart.
    pub(super) fn check(&self, y: &Span<'_>, y_stride: usize, dtype: DType) -> Result<()> {
        let &Self { scheme, rows, cols, codes, block_scales, scales } = self;
        check_bytes("codes", codes, scheme.code_bytes(rows, cols))?;
        check_aligned("codes", codes, 8)?;
        check_bytes("block scales", block_scales, scheme.block_scale_len(rows, cols))?;
        check_aligned("block scales", block_scales, 16)?;
        scales.map_or(Ok(()), |s| check_floats("scales", s, scheme.scale_len(rows, cols)))?;
        check_bytes("output", y, extent(rows, cols, y_stride) * dtype.bytes())?;
        check_aligned("output", y, dtype.bytes() as u64)?;
        if !cols.is_multiple_of(16) || rows > u32::MAX as usize || cols > i32::MAX as usize {
            return Err(Error::shape(
                "quantized matrix",
                format!("{rows} x {cols}"),
                "must have a multiple of 16 columns and fewer than 2^31 of each",
                "pad the columns with zeros",
            ));
        }
        Ok(())
    }
}

/// What a block-scaled quantizer writes; `scales` is not touched for MXFP8.
pub(crate) struct BlockOutput<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
    pub(crate) block_scales: &'a Span<'a>,
}

/// A second level on the device: one FP32, or with [`Given::RowAmax`] one for each row of the output.
#[derive(Clone, Copy)]
pub(crate) enum Given<'a> {
    Amax(&'a Span<'a>),
    Encode(&'a Span<'a>),
    Decode(&'a Span<'a>),
    RowAmax(&'a Span<'a>),
}

impl<'a> Given<'a> {
    /// As `kernels/cast/nvfp4.cuh` numbers it.
    pub(super) fn kind(self) -> u32 {
        match self {
            Self::Amax(_) | Self::RowAmax(_) => 0,
            Self::Encode(_) => 1,
            Self::Decode(_) => 2,
        }
    }

    pub(super) fn span(self) -> &'a Span<'a> {
        match self {
            Self::Amax(span) | Self::Encode(span) | Self::Decode(span) | Self::RowAmax(span) => span,
        }
    }

    pub(super) fn check(self, rows: usize) -> Result<()> {
        let count = if matches!(self, Self::RowAmax(_)) { rows } else { 1 };
        check_floats("second-level scale", self.span(), count)
    }
}

/// Codes are stored eight at a time, scales one float at a time.
pub(super) fn check_output(out: &Output<'_>, scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
    check_bytes("codes", out.codes, scheme.code_bytes(rows, cols))?;
    check_aligned("codes", out.codes, 16)?;
    check_bytes("scales", out.scales, scheme.scale_len(rows, cols) * 4)?;
    check_aligned("scales", out.scales, 4)
}

/// Codes are stored eight bytes at a time, block scales up to sixteen.
pub(super) fn check_block_output(out: &BlockOutput<'_>, scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
    check_bytes("codes", out.codes, scheme.code_bytes(rows, cols))?;
    check_aligned("codes", out.codes, 8)?;
    check_bytes("block scales", out.block_scales, scheme.block_scale_len(rows, cols))?;
    check_aligned("block scales", out.block_scales, 16)?;
    check_bytes("scales", out.scales, scheme.scale_len(rows, cols) * 4)?;
    check_aligned("scales", out.scales, 4)
}

pub(super) fn check_transposable(x: &Input<'_>) -> Result<()> {
    if x.rows.is_multiple_of(16) {
        return Ok(());
    }
    Err(Error::shape(
        "input of a transposing cast",
        format!("{} rows", x.rows),
        "must be a multiple of 16 (they become the columns of the transpose)",
        "pad the rows with zeros",
    ))
}

pub(super) fn format_code(format: impl Into<CodeFormat>) -> u32 {
    match format.into() {
        CodeFormat::E4M3 => 0,
        CodeFormat::E5M2 => 1,
        CodeFormat::E2M1 => 2,
    }
}

/// Elements from the first to past the last of a strided matrix.
pub(super) fn extent(rows: usize, cols: usize, stride: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * stride + cols }
}

/// True if every row starts 16-byte aligned.
pub(super) fn is_aligned(address: u64, rows: usize, stride: usize, dtype: DType) -> bool {
    address.is_multiple_of(16) && (rows <= 1 || (stride * dtype.bytes()).is_multiple_of(16))
}

pub(super) fn check_bytes(operand: &str, span: &Span<'_>, needed: usize) -> Result<()> {
    if span.bytes < needed {
        return Err(Error::shape(
            operand,
            format!("{} bytes", span.bytes),
            format!("must be at least {needed}"),
            "allocate the length the scheme asks for",
        ));
    }
    Ok(())
}

pub(super) fn check_aligned(operand: &str, span: &Span<'_>, required: u64) -> Result<()> {
    if !span.address.is_multiple_of(required) {
        return Err(Error::Alignment {
            operand: operand.to_string(),
            address: span.address,
            required,
            remedy: "start the buffer at the allocation, or at a multiple of that many bytes".into(),
        });
    }
    Ok(())
}

/// Checks a buffer of FP32 values.
pub(super) fn check_floats(name: &str, span: &Span<'_>, count: usize) -> Result<()> {
    check_bytes(name, span, count * 4)?;
    check_aligned(name, span, 4)
}

pub(super) fn address(span: Option<&Span<'_>>) -> u64 {
    span.map_or(0, |s| s.address)
}
