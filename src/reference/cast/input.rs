//! [`CastInput`]: what a cast reads, numbers or a quantized matrix, and which of its rows.

use ndarray::ArrayView2;

use crate::error::{Error, Result};
use crate::format::{CodeFormat, HostCastMatrix, codec};

/// Where the values of a cast come from.
#[derive(Debug, Clone, Copy)]
pub enum CastValues<'a> {
    /// Numbers as they are; any strides. What a producer gives is cast so.
    Plain(ArrayView2<'a, f32>),
    /// `fl(code * scale)` in FP32: the matrix is quantized again.
    Quantized(&'a HostCastMatrix),
}

/// The input of a cast: values, and an optional choice of rows.
///
/// Row i is row i of the values; gathered by `rows`, it is row `rows[i]`, or zeros where that is negative.
#[derive(Debug, Clone, Copy)]
pub struct CastInput<'a> {
    values: CastValues<'a>,
    rows: Option<&'a [i32]>,
}

impl<'a> From<ArrayView2<'a, f32>> for CastInput<'a> {
    fn from(x: ArrayView2<'a, f32>) -> Self {
        Self { values: CastValues::Plain(x), rows: None }
    }
}

impl<'a> From<&'a HostCastMatrix> for CastInput<'a> {
    fn from(q: &'a HostCastMatrix) -> Self {
        Self { values: CastValues::Quantized(q), rows: None }
    }
}

impl<'a> CastInput<'a> {
    /// The same values with these rows, in this order and as often as they are named; a negative index is a row of zeros. Indices
    /// are those of the values: a second gather takes the place of the first.
    ///
    /// # Errors
    /// [`Error::Shape`] for an index beyond the rows.
    pub fn gathered(self, rows: &'a [i32]) -> Result<Self> {
        let there = self.source_rows();
        match rows.iter().position(|row| usize::try_from(*row).is_ok_and(|row| row >= there)) {
            None => Ok(Self { rows: Some(rows), ..self }),
            Some(at) => Err(Error::shape(
                format!("rows of a gathered cast, index {at}"),
                rows[at].to_string(),
                format!("must be below the {there} rows of the input"),
                "pass indices of its rows, and a negative one for a row of zeros",
            )),
        }
    }

    /// Where the values come from.
    pub fn values(&self) -> CastValues<'a> {
        self.values
    }

    /// The rows that are gathered, if not all in order.
    pub fn gather(&self) -> Option<&'a [i32]> {
        self.rows
    }

    /// Rows of the cast: those that are gathered.
    pub fn rows(&self) -> usize {
        self.rows.map_or(self.source_rows(), <[i32]>::len)
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        match self.values {
            CastValues::Plain(x) => x.ncols(),
            CastValues::Quantized(q) => q.cols(),
        }
    }

    fn source_rows(&self) -> usize {
        match self.values {
            CastValues::Plain(x) => x.nrows(),
            CastValues::Quantized(q) => q.rows(),
        }
    }

    /// Refuses scales that no cast writes.
    pub(super) fn check_scales(&self) -> Result<()> {
        let CastValues::Quantized(q) = self.values else { return Ok(()) };
        q.check_scales()
    }

    /// The values of a row, in `scratch` unless they lie side by side already.
    pub(super) fn row<'s>(&'s self, i: usize, scratch: &'s mut Vec<f32>) -> &'s [f32] {
        scratch.clear();
        let Ok(from) = usize::try_from(self.rows.map_or(i as i64, |rows| i64::from(rows[i]))) else {
            scratch.resize(self.cols(), 0.0);
            return scratch;
        };
        match &self.values {
            CastValues::Plain(x) => {
                if let Some(row) = x.row(from).to_slice() {
                    return row;
                }
                scratch.extend(x.row(from));
            }
            CastValues::Quantized(q) => {
                scratch.resize(q.cols(), 0.0);
                decode_row(q, from, scratch);
            }
        }
        scratch
    }
}

/// `values[j] = fl(code * scale)` for a row.
pub(super) fn decode_row(q: &HostCastMatrix, i: usize, values: &mut [f32]) {
    let (scheme, rows, cols) = (q.scheme(), q.rows(), q.cols());
    match scheme.format() {
        _ if scheme.is_transposed() => values.iter_mut().enumerate().for_each(|(j, v)| *v = q.code_value(i, j)),
        CodeFormat::Fp8(format) => codec::decode_values(format, &q.codes()[i * cols..][..cols], values),
        CodeFormat::E2M1 => codec::decode_values_e2m1(&q.codes()[i * cols / 2..][..cols / 2], values),
    }
    let ([height, width], [_, groups]) = (scheme.group().extents(), scheme.group().grid(rows, cols));
    let scales = &q.scales()[i / height.size(rows) * groups..][..groups];
    for (values, scale) in values.chunks_mut(width.size(cols).max(1)).zip(scales) {
        values.iter_mut().for_each(|v| *v *= scale);
    }
}
