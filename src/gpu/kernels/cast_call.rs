//! Operands of casts, resolved on the stream, and what kernels ask of them.

use super::operand::{check_aligned, check_bytes, check_floats, extent, is_aligned, words};
use crate::error::{Error, Result};
use crate::format::{CastScheme, DType};
use crate::gpu::device::memory::{Named, Span, check_apart};

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
    /// What a launch of the same call reads before, to write what this one reads.
    pub(crate) before: [Option<Named<'a>>; 2],
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
    pub(super) fn spans(&self) -> [Named<'_>; 2] {
        [("codes of the target", *self.codes), ("scales of the target", *self.scales)]
    }

    pub(super) fn check(&self, operand: &str) -> Result<()> {
        let Self { codes, scales, scheme, rows, cols } = *self;
        scheme.check_shape(rows, cols)?;
        check_bytes(&format!("codes of the {operand}"), codes, scheme.code_bytes(rows, cols))?;
        // Some are read and written sixteen bytes at a time.
        check_aligned(&format!("codes of the {operand}"), codes, 16)?;
        check_bytes(&format!("scales of the {operand}"), scales, scheme.scale_bytes(rows, cols))?;
        // Two FP32 scales are written at once.
        check_aligned(&format!("scales of the {operand}"), scales, 8)
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
            CastValues::Plain { dtype, .. } => {
                check_bytes("source", self.x, self.x_bytes())?;
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
            CastValues::Produced { dtype, producer, .. } => {
                check_bytes("source", self.x, self.x_bytes())?;
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

    /// Bytes from the first to past the last that is read of x.
    fn x_bytes(&self) -> usize {
        match self.values {
            CastValues::Plain { dtype, row_stride } => extent(self.rows, self.cols, row_stride) * dtype.bytes(),
            CastValues::Coded { scheme, .. } => scheme.code_bytes(self.rows, self.cols),
            CastValues::Produced { dtype, row_stride, producer } => {
                let cols = if producer.kind == ProducerKind::Swiglu { 2 * self.cols } else { self.cols };
                extent(self.rows, cols, row_stride) * dtype.bytes()
            }
        }
    }

    /// What it reads, by name, as far as it does.
    fn read(&self) -> impl Iterator<Item = Named<'_>> + Clone {
        let others = match &self.values {
            CastValues::Plain { .. } => [None; 5],
            CastValues::Coded { scales, .. } => [Some(("scales of the source", **scales)), None, None, None, None],
            CastValues::Produced { producer, .. } => [
                producer.weights.map(|weights| words("weights of rows", weights, self.rows)),
                producer.experts.map(|experts| words("experts of rows", experts, self.rows)),
                producer
                    .columns
                    .map(|(weights, dtype)| ("weights of columns", weights.slice(0, self.cols * dtype.bytes()))),
                producer.before[0],
                producer.before[1],
            ],
        };
        let x = ("source", self.x.slice(0, self.x_bytes()));
        let index = self.index.map(|index| ("row index", *index));
        [x].into_iter().chain(others.into_iter().flatten()).chain(index)
    }

    /// What it writes beside a result, by name: the clamp raises its counts while the source is read.
    fn counted(&self) -> Option<Named<'_>> {
        let CastValues::Produced { producer, .. } = &self.values else { return None };
        producer.counts.map(|counts| words("counts of the clamp", counts, 6))
    }

    /// That all which a call writes, its results and what the source counts, lies apart from the source, from what is read beside it, and from each other.
    pub(super) fn check_apart<'s>(
        &'s self,
        beside: impl Iterator<Item = Named<'s>> + Clone,
        results: impl Iterator<Item = Named<'s>> + Clone,
    ) -> Result<()> {
        check_apart(self.read().chain(beside), results.chain(self.counted()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::memory::assert_apart;

    #[test]
    fn results_and_counts_of_the_clamp_lie_apart_from_all_that_a_source_reads() {
        let names = [
            "source",
            "weights of rows",
            "experts of rows",
            "weights of columns",
            "x of a norm",
            "row index",
            "codes",
            "counts of the clamp",
        ];
        assert_apart(&names, 2, 256, |at| {
            let producer = ProducerCall {
                clamp: Some(1.0),
                weights: Some(&at[1]),
                experts: Some(&at[2]),
                columns: Some((&at[3], DType::F32)),
                before: [Some((names[4], at[4])), None],
                counts: Some(&at[7]),
                ..ProducerCall::default()
            };
            let values = CastValues::Produced { dtype: DType::Bf16, row_stride: 32, producer };
            let from = CastFrom { x: &at[0], values, rows: 4, cols: 16, index: Some(&at[5]) };
            from.check_apart(std::iter::empty(), [(names[6], at[6])].into_iter())
        });
    }

    /// Memory may be longer than what is read of it, and a target lie there.
    #[test]
    fn what_lies_behind_a_source_is_none_of_it() {
        let x = Span::unguarded(4096, 4096);
        let refused = |values, address| {
            let from = CastFrom { x: &x, values, rows: 4, cols: 16, index: None };
            from.check_apart(std::iter::empty(), [("codes", Span::unguarded(address, 64))].into_iter()).is_err()
        };
        let plain = CastValues::Plain { dtype: DType::Bf16, row_stride: 40 };
        let producer = ProducerCall::default();
        // Three strides and a row: of SwiGLU one of both halves.
        let swiglu = CastValues::Produced { dtype: DType::Bf16, row_stride: 40, producer };
        for (values, end) in [(plain, 4096 + 2 * 136), (swiglu, 4096 + 2 * 152)] {
            assert_eq!([refused(values, end - 1), refused(values, end)], [true, false]);
        }
    }
}
