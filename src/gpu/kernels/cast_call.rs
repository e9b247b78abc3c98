//! Operands of casts, resolved on the stream, and what kernels ask of them.

use super::operand::{check_aligned, check_bytes, check_floats, extent, is_aligned};
use crate::error::{Error, Result};
use crate::format::{CastScheme, DType};
use crate::gpu::device::memory::Span;

/// What a cast reads, resolved on the stream.
pub(crate) struct CastFrom<'a> {
    /// Elements, or codes.
    pub(crate) x: &'a Span<'a>,
    pub(crate) values: CastValues<'a>,
    /// Of the source.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The source's row (i32) for each row of the result.
    pub(crate) index: Option<&'a Span<'a>>,
}

/// What it is.
#[derive(Clone, Copy)]
pub(crate) enum CastValues<'a> {
    Plain {
        dtype: DType,
        row_stride: usize,
    },
    Coded {
        scheme: CastScheme,
        scales: &'a Span<'a>,
    },
    /// Computed of a plain matrix, whose columns are twice those of the source where it is gated.
    Produced {
        dtype: DType,
        row_stride: usize,
        producer: ProducerCall<'a>,
    },
}

/// What is computed.
#[derive(Clone, Copy, Default)]
pub(crate) struct ProducerCall<'a> {
    pub(crate) kind: ProducerKind,
    pub(crate) clamp: Option<f32>,
    /// FP32, one for each row.
    pub(crate) weights: Option<&'a Span<'a>>,
    /// i32, one for each row.
    pub(crate) experts: Option<&'a Span<'a>>,
    /// Three u64.
    pub(crate) counts: Option<&'a Span<'a>>,
    /// Factors of columns, of x's type or FP32.
    pub(crate) columns: Option<(&'a Span<'a>, DType)>,
}

/// As `kernels/fused/produced.cuh` numbers it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ProducerKind {
    #[default]
    Swiglu = 0,
    Silu = 1,
    Gelu = 2,
    GeluTanh = 3,
    /// x times its row's weight, times its column's.
    Normed = 4,
}

/// Codes and scales of a matrix.
pub(crate) struct CastTo<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
    pub(crate) scheme: CastScheme,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// What is written of it, as `kernels/cast/cast.cuh` numbers it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CastPart {
    Both = 0,
    /// By the scales that are there.
    Codes = 1,
    Scales = 2,
}

impl CastTo<'_> {
    pub(super) fn spans(&self) -> [(&'static str, &Span<'_>); 2] {
        [("codes of the target", self.codes), ("scales of the target", self.scales)]
    }

    pub(super) fn check(&self, operand: &str) -> Result<()> {
        let Self { codes, scales, scheme, rows, cols } = *self;
        scheme.check_shape(rows, cols)?;
        check_bytes(&format!("codes of the {operand}"), codes, scheme.code_bytes(rows, cols))?;
        // Some are read and written sixteen bytes at a time.
        check_aligned(&format!("codes of the {operand}"), codes, 16)?;
        check_bytes(&format!("scales of the {operand}"), scales, scheme.scale_bytes(rows, cols))?;
        check_aligned(&format!("scales of the {operand}"), scales, 4)
    }
}

impl CastFrom<'_> {
    /// That the kernels may read it for a result of so many rows.
    pub(super) fn check(&self, result_rows: usize) -> Result<()> {
        if self.rows > i32::MAX as usize {
            return Err(Error::shape(
                "source",
                format!("{} rows", self.rows),
                format!("must have at most {}", i32::MAX),
                "cast it in parts",
            ));
        }
        match self.values {
            CastValues::Plain { dtype, row_stride } => {
                check_bytes("source", self.x, extent(self.rows, self.cols, row_stride) * dtype.bytes())?;
                check_aligned("source", self.x, dtype.bytes() as u64)?;
            }
            CastValues::Coded { scheme, scales } => {
                if scheme.is_transposed() {
                    return Err(Error::unsupported(
                        format!("a cast of codes in {scheme}"),
                        "its rows do not lie together",
                        "cast it back first (Handle::cast_back_into), or keep it as it was before it was transposed",
                    ));
                }
                CastTo { codes: self.x, scales, scheme, rows: self.rows, cols: self.cols }.check("source")?;
            }
            CastValues::Produced { dtype, row_stride, producer } => {
                let cols = if producer.kind == ProducerKind::Swiglu { 2 * self.cols } else { self.cols };
                check_bytes("source", self.x, extent(self.rows, cols, row_stride) * dtype.bytes())?;
                check_aligned("source", self.x, dtype.bytes() as u64)?;
                check_floats("weights of rows", producer.weights, self.rows)?;
                check_floats("experts of rows", producer.experts, self.rows)?;
                if let Some((weights, dtype)) = producer.columns {
                    check_bytes("weights of columns", weights, self.cols * dtype.bytes())?;
                    check_aligned("weights of columns", weights, dtype.bytes() as u64)?;
                }
                if let Some(counts) = producer.counts {
                    check_bytes("counts of the clamp", counts, 24)?;
                    check_aligned("counts of the clamp", counts, 8)?;
                }
            }
        }
        match self.index {
            Some(index) => {
                check_bytes("row index", index, result_rows * 4)?;
                check_aligned("row index", index, 4)
            }
            None if result_rows == self.rows => Ok(()),
            None => Err(Error::shape(
                "target",
                format!("{result_rows} rows"),
                format!("must have {}, as the source", self.rows),
                "pass a matrix of that shape, or a row index",
            )),
        }
    }

    /// Whether all that is read sixteen bytes at a time begins so.
    pub(super) fn is_aligned(&self) -> bool {
        let rows_are = |dtype, row_stride| is_aligned(self.x.address, self.rows, row_stride, dtype);
        match self.values {
            CastValues::Plain { dtype, row_stride } => rows_are(dtype, row_stride),
            CastValues::Coded { .. } => true,
            CastValues::Produced { dtype, row_stride, producer } => {
                let columns = producer.columns.is_none_or(|(weights, _)| weights.address.is_multiple_of(16));
                columns && rows_are(dtype, row_stride)
            }
        }
    }

    /// What it reads, by name.
    pub(super) fn spans(&self) -> impl Iterator<Item = (&'static str, &Span<'_>)> {
        let others = match &self.values {
            CastValues::Plain { .. } => [None; 4],
            CastValues::Coded { scales, .. } => [Some(("scales of the source", *scales)), None, None, None],
            CastValues::Produced { producer, .. } => [
                producer.weights.map(|weights| ("weights of rows", weights)),
                producer.experts.map(|experts| ("experts of rows", experts)),
                producer.counts.map(|counts| ("counts of the clamp", counts)),
                producer.columns.map(|(weights, _)| ("weights of columns", weights)),
            ],
        };
        let others = others.into_iter().flatten();
        [("source", self.x)].into_iter().chain(others).chain(self.index.map(|index| ("row index", index)))
    }
}

/// Refuses a target that lies where something is read.
pub(super) fn check_apart<'s>(
    sources: impl Iterator<Item = (&'static str, &'s Span<'s>)>,
    targets: &[(&'static str, &Span<'_>)],
) -> Result<()> {
    for (what, source) in sources {
        for (which, target) in targets {
            if source.overlaps(target) {
                return Err(Error::shape(
                    *which,
                    format!("{} bytes at {:#x}", target.bytes, target.address),
                    format!("must not overlap the {what}, {} bytes at {:#x}", source.bytes, source.address),
                    "cast into memory of its own",
                ));
            }
        }
    }
    Ok(())
}
