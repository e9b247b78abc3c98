//! Plain matrices on the device, borrowed: [`MatRef`], [`MatMut`], and [`VecRef`].

use std::ops::Range;

use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytes, DeviceBytesMut, overlap};

/// A plain row-major matrix on the device, borrowed for reading.
pub struct MatRef<'a> {
    data: DeviceBytes<'a>,
    dtype: DType,
    rows: usize,
    cols: usize,
    row_stride: usize,
}

/// A plain row-major matrix on the device, borrowed for writing.
pub struct MatMut<'a> {
    data: DeviceBytesMut<'a>,
    dtype: DType,
    rows: usize,
    cols: usize,
    row_stride: usize,
}

/// A vector on the device, borrowed for reading: the bias.
pub struct VecRef<'a> {
    data: DeviceBytes<'a>,
    dtype: DType,
    len: usize,
}

/// A plain row-major matrix in a buffer whose ownership is shared: it lives as long as somebody holds it.
pub(crate) struct SharedMatrix {
    data: DeviceBuffer,
    dtype: DType,
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl SharedMatrix {
    pub(crate) fn matrix(&self) -> Result<MatRef<'_>> {
        MatRef::new(&self.data, self.dtype, self.rows, self.cols)?.with_row_stride(self.row_stride)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows * self.cols * self.dtype.bytes()
    }

    /// Refuses a target that overlaps it. A cudarc slice, whose address is not known here, is memory of its own.
    pub(crate) fn check_apart(&self, operand: &str, which: &str, target: &MatMut<'_>) -> Result<()> {
        let (from, bytes) = (self.data.address(), self.data.len() as u64);
        let (to, length) = (target.data.known_address(), target.data.len() as u64);
        match to.filter(|to| overlap(&(from..from + bytes), &(*to..*to + length))) {
            None => Ok(()),
            Some(to) => Err(Error::shape(
                which,
                format!("{length} bytes at {to:#x}"),
                format!("must not overlap the {operand}, {bytes} bytes at {from:#x}"),
                "pass memory of its own",
            )),
        }
    }
}

/// Bytes from the first to past the last element of a strided matrix; `None` if the number overflows.
fn extent_bytes(dtype: DType, rows: usize, cols: usize, row_stride: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    (rows - 1).checked_mul(row_stride)?.checked_add(cols)?.checked_mul(dtype.bytes())
}

/// Where some rows of a matrix lie, in bytes: up to the end of the last one.
fn bytes_of_rows(dtype: DType, all: usize, cols: usize, row_stride: usize, rows: &Range<usize>) -> Range<usize> {
    let size = dtype.bytes();
    let (first, last) = (rows.start.min(all), rows.end.min(all));
    let end = if last > first { (last - 1) * row_stride + cols } else { first * row_stride };
    first * row_stride * size..end * size
}

/// Refuses an address that elements of this type cannot lie at. Where it is not known yet, launches ask.
fn check_address(operand: &str, address: Option<u64>, dtype: DType) -> Result<()> {
    let required = dtype.bytes() as u64;
    match address.filter(|address| !address.is_multiple_of(required)) {
        None => Ok(()),
        Some(address) => Err(Error::Alignment {
            operand: format!("{operand} of {dtype}"),
            address,
            required,
            remedy: "begin at a whole element".to_string(),
        }),
    }
}

/// Bytes of a strided matrix, after refusing a stride below the row length and a matrix that no memory holds.
pub(crate) fn check_strided(operand: &str, dtype: DType, [rows, cols]: [usize; 2], row_stride: usize) -> Result<usize> {
    if row_stride < cols {
        return Err(Error::shape(
            operand,
            format!("row stride {row_stride} for {cols} columns"),
            "must be at least the number of columns",
            "give the stride in elements, not in bytes",
        ));
    }
    extent_bytes(dtype, rows, cols, row_stride).ok_or_else(|| {
        Error::shape(
            operand,
            format!("{rows} x {cols} {dtype} with row stride {row_stride}"),
            "must not overflow the address space",
            "pass the shape that it really has",
        )
    })
}

/// The same, and refuses memory too short for the matrix.
fn check_matrix(bytes: usize, dtype: DType, rows: usize, cols: usize, row_stride: usize) -> Result<()> {
    let needed = check_strided("matrix", dtype, [rows, cols], row_stride)?;
    if needed <= bytes {
        return Ok(());
    }
    Err(Error::shape(
        "matrix",
        format!("{bytes} bytes for {rows} x {cols} {dtype} with row stride {row_stride}"),
        format!("must be at least {needed} bytes"),
        "pass the whole buffer, or the shape that it really has",
    ))
}

/// What is said of a matrix, whether it is for reading or for writing.
macro_rules! extent_of {
    ($($matrix:ident),+) => {$(
        impl $matrix<'_> {
            /// Number of rows.
            pub fn rows(&self) -> usize {
                self.rows
            }

            /// Number of columns.
            pub fn cols(&self) -> usize {
                self.cols
            }

            /// Elements from one row to the next.
            pub fn row_stride(&self) -> usize {
                self.row_stride
            }

            /// Element type.
            pub fn dtype(&self) -> DType {
                self.dtype
            }

            /// Bytes from its first to past its last element: its memory may be longer.
            pub(crate) fn extent_bytes(&self) -> usize {
                extent_bytes(self.dtype, self.rows, self.cols, self.row_stride).unwrap_or(usize::MAX)
            }
        }
    )+};
}
extent_of!(MatRef, MatMut);

impl<'a> MatRef<'a> {
    /// `rows x cols` elements of type `dtype`, rows contiguous and packed.
    ///
    /// # Errors
    /// [`Error::Shape`] if `data` is shorter than the matrix; [`Error::Alignment`] if it begins inside an element.
    pub fn new(data: impl Into<DeviceBytes<'a>>, dtype: DType, rows: usize, cols: usize) -> Result<Self> {
        let data = data.into();
        check_address("matrix", data.known_address(), dtype)?;
        check_matrix(data.len(), dtype, rows, cols, cols)?;
        Ok(Self { data, dtype, rows, cols, row_stride: cols })
    }

    /// The same matrix with rows that begin `row_stride` elements apart.
    ///
    /// # Errors
    /// [`Error::Shape`] if the stride is below the row length, or the memory too short for it.
    pub fn with_row_stride(self, row_stride: usize) -> Result<Self> {
        check_matrix(self.data.len(), self.dtype, self.rows, self.cols, row_stride)?;
        Ok(Self { row_stride, ..self })
    }

    pub(crate) fn data(&self) -> &DeviceBytes<'a> {
        &self.data
    }

    /// Some rows of it.
    pub(crate) fn rows_part(&self, rows: Range<usize>) -> Result<MatRef<'_>> {
        let &Self { dtype, cols, row_stride, .. } = self;
        let data = self.data.part(bytes_of_rows(dtype, self.rows, cols, row_stride, &rows))?;
        let none = MatRef::new(data, dtype, 0, cols)?;
        MatRef { rows: rows.len(), ..none }.with_row_stride(row_stride)
    }

    /// The same matrix, its memory shared and not copied: `None` for memory that this crate does not own.
    pub(crate) fn share(&self) -> Option<Result<SharedMatrix>> {
        let &Self { dtype, rows, cols, row_stride, .. } = self;
        Some(self.data.share()?.map(|data| SharedMatrix { data, dtype, rows, cols, row_stride }))
    }
}

impl<'a> MatMut<'a> {
    /// `rows x cols` elements of type `dtype`, rows contiguous and packed.
    ///
    /// # Errors
    /// [`Error::Shape`] if `data` is shorter than the matrix; [`Error::Alignment`] if it begins inside an element.
    pub fn new(data: impl Into<DeviceBytesMut<'a>>, dtype: DType, rows: usize, cols: usize) -> Result<Self> {
        let data = data.into();
        check_address("matrix", data.known_address(), dtype)?;
        check_matrix(data.len(), dtype, rows, cols, cols)?;
        Ok(Self { data, dtype, rows, cols, row_stride: cols })
    }

    /// The same matrix with rows that begin `row_stride` elements apart; what lies between rows is left alone.
    ///
    /// # Errors
    /// [`Error::Shape`] if the stride is below the row length, or the memory too short for it.
    pub fn with_row_stride(self, row_stride: usize) -> Result<Self> {
        check_matrix(self.data.len(), self.dtype, self.rows, self.cols, row_stride)?;
        Ok(Self { row_stride, ..self })
    }

    pub(crate) fn data_mut(&mut self) -> &mut DeviceBytesMut<'a> {
        &mut self.data
    }

    /// Which of its bytes some rows are.
    pub(crate) fn bytes_of_rows(&self, rows: &Range<usize>) -> Range<usize> {
        bytes_of_rows(self.dtype, self.rows, self.cols, self.row_stride, rows)
    }

    /// Some rows of it, for as long as they are borrowed.
    pub(crate) fn rows_part(&mut self, rows: Range<usize>) -> Result<MatMut<'_>> {
        let &mut Self { dtype, cols, row_stride, .. } = self;
        let data = self.data.part(self.bytes_of_rows(&rows))?;
        let none = MatMut::new(data, dtype, 0, cols)?;
        MatMut { rows: rows.len(), ..none }.with_row_stride(row_stride)
    }
}

impl<'a> VecRef<'a> {
    /// `len` elements of type `dtype`.
    ///
    /// # Errors
    /// [`Error::Shape`] if `data` is shorter than the vector; [`Error::Alignment`] if it begins inside an element.
    pub fn new(data: impl Into<DeviceBytes<'a>>, dtype: DType, len: usize) -> Result<Self> {
        let data = data.into();
        check_address("vector", data.known_address(), dtype)?;
        if len.checked_mul(dtype.bytes()).is_none_or(|needed| needed > data.len()) {
            return Err(Error::shape(
                "vector",
                format!("{} bytes for {len} {dtype}", data.len()),
                format!("must hold {len} elements of {} bytes", dtype.bytes()),
                "pass the whole buffer, or the length that it really has",
            ));
        }
        Ok(Self { data, dtype, len })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn data(&self) -> &DeviceBytes<'a> {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_matrices_check_stride_and_length() {
        assert!(MatRef::new(DeviceBytes::pretended(4096, 32), DType::Bf16, 2, 8).is_ok());
        let short =
            MatRef::new(DeviceBytes::pretended(4096, 31), DType::Bf16, 2, 8).map(|_| ()).unwrap_err().to_string();
        assert!(short.contains("31 bytes") && short.contains("at least 32 bytes"), "{short}");
        // The last row of a strided matrix needs no full stride.
        let strided =
            MatRef::new(DeviceBytes::pretended(4096, 48), DType::Bf16, 2, 8).and_then(|m| m.with_row_stride(16));
        assert_eq!(strided.map(|m| m.row_stride()).unwrap(), 16);
        let tight = MatRef::new(DeviceBytes::pretended(4096, 48), DType::Bf16, 2, 8).and_then(|m| m.with_row_stride(7));
        assert!(tight.map(|_| ()).unwrap_err().to_string().contains("row stride 7 for 8 columns"));
        assert!(MatRef::new(DeviceBytes::pretended(4096, 8), DType::F32, usize::MAX / 2, 8).is_err());
        assert!(MatRef::new(DeviceBytes::pretended(4096, 0), DType::F32, 0, 8).is_ok());
        assert!(VecRef::new(DeviceBytes::pretended(4096, 7), DType::F16, 4).is_err());
    }

    #[test]
    fn elements_begin_at_multiples_of_their_size() {
        let at = |address| DeviceBytes::pretended(address, 64);
        for (dtype, address) in [(DType::Bf16, 4097), (DType::F16, 4099), (DType::F32, 4098)] {
            let error = MatRef::new(at(address), dtype, 2, 4).map(|_| ()).unwrap_err();
            assert!(matches!(&error, Error::Alignment { address: a, .. } if *a == address), "{error}");
            assert!(VecRef::new(at(address), dtype, 4).is_err());
            assert!(MatRef::new(at(4096), dtype, 2, 4).is_ok());
        }
        assert!(MatRef::new(at(4097), DType::E4M3, 2, 4).is_ok());
    }
}
