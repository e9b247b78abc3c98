//! Operands of our kernels, resolved on a stream, and the checks against what a kernel touches.

use crate::error::{Error, Result};
use crate::format::{CodeFormat, CodeOrder, DType, Scheme};
use crate::gpu::device::memory::{Named, Span};

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

    /// The same as one long row where the rows are contiguous: fewer, fuller blocks. Without rows, too, at any stride: of one row without elements
    /// kernels write the scale.
    pub(super) fn flattened(&self) -> (usize, usize) {
        if self.row_stride == self.cols || self.rows == 0 { (1, self.rows * self.cols) } else { (self.rows, self.cols) }
    }
}

/// Codes and scales that a quantizer writes, or an FP8 dequantizer reads. A span is empty where the scheme has none of its kind.
pub(crate) struct Output<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
    pub(crate) block_scales: &'a Span<'a>,
}

/// What the FP32 scale of a matrix follows from, on the device: one FP32 unless said otherwise.
#[derive(Clone, Copy)]
pub(crate) enum Factor<'a> {
    /// max |x|. NVFP4.
    Amax(&'a Span<'a>),
    /// It multiplies the data; the stored scale is its reciprocal.
    Encode(&'a Span<'a>),
    /// The stored scale; its reciprocal multiplies the data.
    Decode(&'a Span<'a>),
    /// Two: encode factor and scale, as [`Kernels::amax_tensor`](super::Kernels::amax_tensor) writes them. FP8.
    Computed(&'a Span<'a>),
    /// max |x| of each row of the output, each with a scale of its own. NVFP4.
    RowAmax(&'a Span<'a>),
    /// The same of what multiplies the data, and of stored scales.
    RowEncode(&'a Span<'a>),
    RowDecode(&'a Span<'a>),
}

impl<'a> Factor<'a> {
    /// Where it lies.
    pub(super) fn span(self) -> &'a Span<'a> {
        match self {
            Self::Amax(span) | Self::Encode(span) | Self::Decode(span) | Self::Computed(span) => span,
            Self::RowAmax(span) | Self::RowEncode(span) | Self::RowDecode(span) => span,
        }
    }

    /// Address and kind of the factor of an FP8 cast, as `kernels/cast/tile.cuh` numbers it.
    pub(super) fn of_fp8(self) -> Result<(u64, u32)> {
        let (kind, count) = match self {
            Self::Encode(_) => (0, 1),
            Self::Decode(_) => (1, 1),
            Self::Computed(_) => (2, 2),
            Self::Amax(_) | Self::RowAmax(_) => return Err(wrong_kind("an FP8 cast", "an amax")),
            Self::RowEncode(_) | Self::RowDecode(_) => return Err(wrong_kind("an FP8 cast", "a second level")),
        };
        check_floats("factor", self.span(), count)?;
        Ok((self.span().address, kind))
    }

    /// Address and kind of the second level of an NVFP4 cast of so many rows, as `kernels/cast/nvfp4.cuh` numbers it.
    pub(super) fn of_nvfp4(self, rows: usize) -> Result<(u64, u32)> {
        let (kind, count) = match self {
            Self::Amax(_) => (0, 1),
            Self::RowAmax(_) => (0, rows),
            Self::Encode(_) => (1, 1),
            Self::RowEncode(_) => (1, rows),
            Self::Decode(_) => (2, 1),
            Self::RowDecode(_) => (2, rows),
            Self::Computed(_) => return Err(wrong_kind("an NVFP4 cast", "an FP8 factor")),
        };
        check_floats("second-level scale", self.span(), count)?;
        Ok((self.span().address, kind))
    }

    pub(super) fn is_of_rows(self) -> bool {
        matches!(self, Self::RowAmax(_) | Self::RowEncode(_) | Self::RowDecode(_))
    }
}

fn wrong_kind(cast: &str, found: &str) -> Error {
    Error::unsupported(format!("{found} as the factor of {cast}"), "its kernels do not know it", "report it")
}

/// A block-scaled matrix on the device.
pub(crate) struct BlockCodes<'a> {
    pub(crate) scheme: Scheme,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Of the codes.
    pub(crate) order: CodeOrder,
    pub(crate) codes: &'a Span<'a>,
    pub(crate) block_scales: &'a Span<'a>,
    /// The second level; `None` counts as 1.
    pub(crate) scales: Option<&'a Span<'a>>,
}

impl BlockCodes<'_> {
    /// That a dequantizer may write `y` from these, rows `y_stride` elements apart.
    pub(super) fn check(&self, y: &Span<'_>, y_stride: usize, dtype: DType) -> Result<()> {
        let &Self { scheme, rows, cols, order, codes, block_scales, scales } = self;
        order.check(scheme, rows, cols)?;
        check_bytes("codes", codes, scheme.code_bytes(rows, cols))?;
        check_aligned("codes", codes, 8)?;
        check_bytes("block scales", block_scales, scheme.block_scale_len(rows, cols))?;
        check_aligned("block scales", block_scales, 16)?;
        check_floats("scales", scales, scheme.scale_len(rows, cols))?;
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

/// Codes are stored up to sixteen bytes at a time, and so are block scales; scales one float at a time.
pub(super) fn check_output(out: &Output<'_>, scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
    check_bytes("codes", out.codes, scheme.code_bytes(rows, cols))?;
    check_aligned("codes", out.codes, 16)?;
    check_bytes("block scales", out.block_scales, scheme.block_scale_len(rows, cols))?;
    check_aligned("block scales", out.block_scales, 16)?;
    check_floats("scales", out.scales, scheme.scale_len(rows, cols))
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

/// Checks a buffer of FP32 values, if there is one.
pub(crate) fn check_floats<'s>(name: &str, span: impl Into<Option<&'s Span<'s>>>, count: usize) -> Result<()> {
    let Some(span) = span.into() else { return Ok(()) };
    check_bytes(name, span, count.saturating_mul(4))?;
    check_aligned(name, span, 4)
}

/// So many numbers of 32 bits by name, for [`check_apart`](crate::gpu::device::memory::check_apart): memory may be longer.
pub(super) fn words<'a>(name: &'static str, span: &Span<'a>, count: usize) -> Named<'a> {
    (name, span.slice(0, count.saturating_mul(4)))
}

pub(super) fn address(span: Option<&Span<'_>>) -> u64 {
    span.map_or(0, |s| s.address)
}
