//! Where the numbers of a cast come from.

use crate::error::{Error, Result};
use crate::gpu::device::memory::{DeviceBuffer, Span};
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{CastMatrix, MatRef};

/// What a cast reads: a plain matrix, or codes with scales, whose values are `fl(code * scale)`; of either also chosen rows.
#[derive(Clone, Copy)]
pub struct CastSource<'a> {
    pub(super) values: Values<'a>,
    pub(super) index: Option<&'a RowIndex>,
}

#[derive(Clone, Copy)]
pub(super) enum Values<'a> {
    Plain(&'a MatRef<'a>),
    Coded(&'a CastMatrix),
}

impl<'a> From<&'a MatRef<'a>> for CastSource<'a> {
    fn from(x: &'a MatRef<'a>) -> Self {
        Self { values: Values::Plain(x), index: None }
    }
}

impl<'a> From<&'a CastMatrix> for CastSource<'a> {
    fn from(q: &'a CastMatrix) -> Self {
        Self { values: Values::Coded(q), index: None }
    }
}

impl<'a> CastSource<'a> {
    /// Row i of the source is row `index[i]` of the matrix, or zeros.
    ///
    /// # Errors
    /// [`Error::Shape`] if the index was made for a matrix of more rows.
    pub fn gathered(self, index: &'a RowIndex) -> Result<Self> {
        let rows = self.matrix_rows();
        match index.of_rows {
            Some(of) if of > rows => Err(Error::shape(
                "row index",
                format!("was made for {of} rows"),
                format!("the matrix has {rows}"),
                "make it for this matrix",
            )),
            _ => Ok(Self { index: Some(index), ..self }),
        }
    }

    /// Rows of the matrix that is read.
    pub(super) fn matrix_rows(&self) -> usize {
        match self.values {
            Values::Plain(x) => x.rows(),
            Values::Coded(q) => q.rows(),
        }
    }

    /// Rows that the cast has.
    pub fn rows(&self) -> usize {
        self.index.map_or(self.matrix_rows(), RowIndex::len)
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        match self.values {
            Values::Plain(x) => x.cols(),
            Values::Coded(q) => q.cols(),
        }
    }
}

/// Which row of a matrix each row of a cast is, in device memory: 32-bit numbers, negative for a row of zeros.
pub struct RowIndex {
    data: DeviceBuffer,
    /// The rows of the matrix that it was checked for.
    of_rows: Option<usize>,
}

impl RowIndex {
    /// An index into a matrix of `rows` rows. Allocates; the numbers have been read when it returns.
    ///
    /// # Errors
    /// [`Error::Shape`] for a number that is no row of such a matrix; otherwise as [`Handle::alloc`].
    pub fn new(handle: &Handle, index: &[i32], rows: usize) -> Result<Self> {
        if let Some((at, row)) =
            index.iter().enumerate().find(|(_, row)| usize::try_from(**row).is_ok_and(|r| r >= rows))
        {
            return Err(Error::shape(
                "row index",
                format!("{row} at place {at}"),
                format!("must be below {rows}, the rows of the matrix, or negative for a row of zeros"),
                "pass the index of that matrix",
            ));
        }
        // As they lie in memory: two's complement.
        let numbers: Vec<u32> = index.iter().map(|row| row.cast_unsigned()).collect();
        Ok(Self { data: handle.upload(&numbers)?, of_rows: Some(rows) })
    }

    /// Numbers in device memory, which may change between launches. They are not checked: one beyond the matrix counts as negative.
    ///
    /// # Errors
    /// [`Error::Shape`] if the length is no multiple of 4 bytes; [`Error::Alignment`] unless it begins at a multiple of 4 bytes.
    pub fn from_device(data: DeviceBuffer) -> Result<Self> {
        if !data.len().is_multiple_of(4) {
            let found = format!("{} bytes", data.len());
            return Err(Error::shape("row index", found, "must be whole 32-bit numbers", "pass the whole buffer"));
        }
        if !data.is_empty() && !data.address().is_multiple_of(4) {
            let remedy = "start the buffer at a multiple of 4 bytes".into();
            return Err(Error::Alignment { operand: "row index".into(), address: data.address(), required: 4, remedy });
        }
        Ok(Self { data, of_rows: None })
    }

    /// Rows of the cast.
    pub fn len(&self) -> usize {
        self.data.len() / 4
    }

    /// Whether the cast has none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub(super) fn read<'s, 'q: 's>(&'q self, order: &'s Order<'q>) -> Result<Span<'s>> {
        self.data.read(order)
    }
}
