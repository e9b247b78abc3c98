//! Matrices on the device: borrowed plain ones ([`MatRef`], [`MatMut`], [`VecRef`]) and quantized ones ([`QuantMatrix`]).

use std::marker::PhantomData;
use std::sync::OnceLock;

use cudarc::driver::CudaSlice;

use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{Basis, CodeFormat, DType, Extent, HostParts, HostQuantMatrix, Scheme};

use super::handle::Handle;
use super::memory::{DeviceBytes, DeviceBytesMut, Source, SourceMut, driver};

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

/// Bytes from the first to past the last element of a strided matrix; `None` if the number overflows.
fn extent_bytes(dtype: DType, rows: usize, cols: usize, row_stride: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    (rows - 1).checked_mul(row_stride)?.checked_add(cols)?.checked_mul(dtype.bytes())
}

/// Refuses a stride below the row length and memory too short for the matrix.
fn check_matrix(bytes: usize, dtype: DType, rows: usize, cols: usize, row_stride: usize) -> Result<()> {
    if row_stride < cols {
        return Err(Error::shape(
            "matrix",
            format!("row stride {row_stride} for {cols} columns"),
            "must be at least the number of columns",
            "give the stride in elements, not in bytes",
        ));
    }
    match extent_bytes(dtype, rows, cols, row_stride) {
        Some(needed) if needed <= bytes => Ok(()),
        needed => Err(Error::shape(
            "matrix",
            format!("{bytes} bytes for {rows} x {cols} {dtype} with row stride {row_stride}"),
            match needed {
                Some(needed) => format!("must be at least {needed} bytes"),
                None => "overflow the address space".to_string(),
            },
            "pass the whole buffer, or the shape that it really has",
        )),
    }
}

impl<'a> MatRef<'a> {
    /// `rows x cols` elements of type `dtype`, rows contiguous and packed.
    ///
    /// # Errors
    /// [`Error::Shape`] if `data` is shorter than the matrix.
    pub fn new(data: impl Into<DeviceBytes<'a>>, dtype: DType, rows: usize, cols: usize) -> Result<Self> {
        let data = data.into();
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

    pub(crate) fn data(&self) -> &DeviceBytes<'a> {
        &self.data
    }
}

impl<'a> MatMut<'a> {
    /// `rows x cols` elements of type `dtype`, rows contiguous and packed.
    ///
    /// # Errors
    /// [`Error::Shape`] if `data` is shorter than the matrix.
    pub fn new(data: impl Into<DeviceBytesMut<'a>>, dtype: DType, rows: usize, cols: usize) -> Result<Self> {
        let data = data.into();
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

    pub(crate) fn data_mut(&mut self) -> &mut DeviceBytesMut<'a> {
        &mut self.data
    }
}

impl<'a> VecRef<'a> {
    /// `len` elements of type `dtype`.
    ///
    /// # Errors
    /// [`Error::Shape`] if `data` is shorter than the vector.
    pub fn new(data: impl Into<DeviceBytes<'a>>, dtype: DType, len: usize) -> Result<Self> {
        let data = data.into();
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

/// Memory of a [`QuantMatrix`]: owned, or lent through an `unsafe` constructor of `kernels.rs`.
pub(super) enum Store<T> {
    Owned(CudaSlice<T>),
    Raw { address: u64, len: usize },
}

impl<T> Store<T> {
    fn len(&self) -> usize {
        match self {
            Self::Owned(slice) => slice.len(),
            Self::Raw { len, .. } => *len,
        }
    }

    fn bytes<'a>(&'a self) -> DeviceBytes<'a>
    where
        DeviceBytes<'a>: From<&'a CudaSlice<T>>,
    {
        match self {
            Self::Owned(slice) => slice.into(),
            Self::Raw { address, len } => {
                DeviceBytes { source: Source::Raw(*address, PhantomData), bytes: len * size_of::<T>() }
            }
        }
    }

    fn bytes_mut<'a>(&'a mut self) -> DeviceBytesMut<'a>
    where
        DeviceBytesMut<'a>: From<&'a mut CudaSlice<T>>,
    {
        match self {
            Self::Owned(slice) => slice.into(),
            Self::Raw { address, len } => {
                DeviceBytesMut { source: SourceMut::Raw(*address, PhantomData), bytes: *len * size_of::<T>() }
            }
        }
    }
}

/// A quantized `rows x cols` matrix on the device: `value[i, j] = code[i, j] * block_scale[i, block] * scale[group of (i, j)]`.
///
/// Codes are row-major and packed (two E2M1 codes a byte, the even column in the low half), rows padded with zeros to the
/// scheme's row multiple ([`SchemeSpec::row_multiple`](crate::format::SchemeSpec::row_multiple)); FP32 scales and byte block
/// scales lie in the order the GEMM reads ([`ScaleLayout`]). Codes, scales and scheme travel as this one value; the lengths
/// were checked when it was built.
pub struct QuantMatrix {
    scheme: Scheme,
    rows: usize,
    cols: usize,
    codes: Store<u8>,
    scales: Store<f32>,
    block_scales: Store<u8>,
    basis: Basis,
    /// The 128x128 scales repeated for every row, in 1x128 order; made once by [`QuantMatrix::repeat_scales`].
    repeated: OnceLock<CudaSlice<f32>>,
    /// Codes times block scales as plain numbers; made once by [`QuantMatrix::keep_dequantized`].
    pub(super) kept: OnceLock<KeptValues>,
}

/// The values of a [`QuantMatrix`] without its FP32 scales, row-major and packed.
pub(super) struct KeptValues {
    pub(super) dtype: DType,
    pub(super) values: CudaSlice<u8>,
}

/// The buffers of a [`QuantMatrix`], in device order; empty where its scheme has none of a kind.
pub struct Parts<T> {
    /// `scheme.code_bytes(rows, cols)` bytes.
    pub codes: T,
    /// `scheme.scale_len(rows, cols)` FP32 numbers.
    pub scales: T,
    /// `scheme.block_scale_len(rows, cols)` bytes.
    pub block_scales: T,
}

impl QuantMatrix {
    /// A matrix of zero codes and zero scales. Allocates on the handle's stream.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is not enough memory; [`Error::Unsupported`] inside graph capture.
    pub fn zeros(handle: &Handle, scheme: Scheme, rows: usize, cols: usize) -> Result<Self> {
        handle.refuse_capture("allocating a QuantMatrix")?;
        Self::check_size(scheme, rows, cols)?;
        // The driver has no allocation of zero bytes, hence the floor of one element.
        let codes = handle.stream().alloc_zeros(scheme.code_bytes(rows, cols).max(1));
        let scales = handle.stream().alloc_zeros(scheme.scale_len(rows, cols).max(1));
        let block_scales = match scheme.block_scale_len(rows, cols) {
            0 => Store::Raw { address: 0, len: 0 },
            len => Store::Owned(handle.stream().alloc_zeros(len).map_err(|e| driver("allocating block scales", e))?),
        };
        Ok(Self {
            scheme,
            rows,
            cols,
            codes: Store::Owned(codes.map_err(|e| driver("allocating codes", e))?),
            scales: Store::Owned(scales.map_err(|e| driver("allocating scales", e))?),
            block_scales,
            basis: Basis::Plain,
            repeated: OnceLock::new(),
            kept: OnceLock::new(),
        })
    }

    /// A matrix without block scales from its two buffers, as [`QuantMatrix`] describes them. Nothing is copied or read.
    ///
    /// Padding rows of the codes must be zero; the contents are not checked.
    ///
    /// # Errors
    /// [`Error::Shape`] if a buffer is not exactly `scheme.code_bytes(rows, cols)` bytes or
    /// `scheme.scale_len(rows, cols)` scales long, or the scheme has block scales.
    pub fn from_parts(
        scheme: Scheme,
        rows: usize,
        cols: usize,
        codes: CudaSlice<u8>,
        scales: CudaSlice<f32>,
    ) -> Result<Self> {
        let none = Store::Raw { address: 0, len: 0 };
        Self::from_store(scheme, rows, cols, Store::Owned(codes), Store::Owned(scales), none)
    }

    /// A matrix with block scales from its buffers, as [`QuantMatrix`] describes them; `scales` is `None` for MXFP8. Nothing
    /// is copied or read.
    ///
    /// Padding of the block scales must be zero; the contents are not checked.
    ///
    /// # Errors
    /// [`Error::Shape`] if a buffer is not exactly as long as the scheme says.
    pub fn from_block_parts(
        scheme: Scheme,
        rows: usize,
        cols: usize,
        codes: CudaSlice<u8>,
        scales: Option<CudaSlice<f32>>,
        block_scales: CudaSlice<u8>,
    ) -> Result<Self> {
        let scales = scales.map_or(Store::Raw { address: 0, len: 0 }, Store::Owned);
        Self::from_store(scheme, rows, cols, Store::Owned(codes), scales, Store::Owned(block_scales))
    }

    /// The checks of [`QuantMatrix::from_parts`], for every kind of memory.
    pub(super) fn from_store(
        scheme: Scheme,
        rows: usize,
        cols: usize,
        codes: Store<u8>,
        scales: Store<f32>,
        block_scales: Store<u8>,
    ) -> Result<Self> {
        Self::check_size(scheme, rows, cols)?;
        let lengths = [
            ("codes", codes.len(), scheme.code_bytes(rows, cols)),
            ("scales", scales.len(), scheme.scale_len(rows, cols)),
            ("block scales", block_scales.len(), scheme.block_scale_len(rows, cols)),
        ];
        for (what, found, needed) in lengths {
            if found != needed {
                return Err(Error::shape(
                    format!("{what} of a {rows} x {cols} {scheme} matrix"),
                    format!("{found} elements"),
                    format!("must be {needed} (device order, padding included)"),
                    "allocate the lengths that Scheme says, or convert through HostQuantMatrix",
                ));
            }
        }
        let (basis, repeated, kept) = (Basis::Plain, OnceLock::new(), OnceLock::new());
        Ok(Self { scheme, rows, cols, codes, scales, block_scales, basis, repeated, kept })
    }

    /// Copies a host matrix to the device, byte for byte. Allocates.
    ///
    /// # Errors
    /// [`Error::Driver`] if there is not enough memory; [`Error::Unsupported`] inside graph capture.
    pub fn from_host(handle: &Handle, host: &HostQuantMatrix) -> Result<Self> {
        let mut matrix = Self::zeros(handle, host.scheme(), host.rows(), host.cols())?.assume_basis(host.basis());
        if let Store::Owned(codes) = &mut matrix.codes {
            let copied = handle.stream().memcpy_htod(host.codes(), codes);
            copied.map_err(|e| driver("copying codes to the device", e))?;
        }
        if let Store::Owned(scales) = &mut matrix.scales {
            let copied = handle.stream().memcpy_htod(host.scales(), scales);
            copied.map_err(|e| driver("copying scales to the device", e))?;
        }
        if let Store::Owned(scales) = &mut matrix.block_scales {
            let copied = handle.stream().memcpy_htod(host.block_scales(), scales);
            copied.map_err(|e| driver("copying block scales to the device", e))?;
        }
        Ok(matrix)
    }

    /// Copies the matrix to the host, byte for byte. Waits for the handle's stream.
    ///
    /// # Errors
    /// [`Error::Driver`] if the copy fails; [`Error::Unsupported`] inside graph capture.
    pub fn to_host(&self, handle: &Handle) -> Result<HostQuantMatrix> {
        let (scheme, rows, cols) = (self.scheme, self.rows, self.cols);
        let read = |bytes: DeviceBytes<'_>, len: usize| {
            let mut host = if len == 0 { Vec::new() } else { handle.read_bytes(&bytes)? };
            host.truncate(len);
            Ok::<_, Error>(host)
        };
        let codes = read(self.codes(), scheme.code_bytes(rows, cols))?;
        let bytes = read(self.scales(), scheme.scale_len(rows, cols) * 4)?;
        let scales = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        let block_scales = read(self.block_scales(), scheme.block_scale_len(rows, cols))?;
        HostQuantMatrix::from_parts(scheme, rows, cols, HostParts { codes, scales, block_scales, basis: self.basis })
    }

    /// The same matrix, said to be in this basis. Nothing is transformed.
    pub fn assume_basis(self, basis: Basis) -> Self {
        Self { basis, ..self }
    }

    /// How codes and scales are read.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The basis of the rows: that of the data, or a Hadamard transform of it.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// The quantizers say in which basis they wrote the rows.
    pub(super) fn set_basis(&mut self, basis: Basis) {
        self.basis = basis;
    }

    /// Number of logical rows (padding not counted).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns: the length along which the GEMM sums.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes, row-major, padding rows included.
    pub fn codes(&self) -> DeviceBytes<'_> {
        self.codes.bytes()
    }

    /// The FP32 scales, in device order.
    pub fn scales(&self) -> DeviceBytes<'_> {
        self.scales.bytes()
    }

    /// The block scales, one byte each, in device order; empty if the scheme has none.
    pub fn block_scales(&self) -> DeviceBytes<'_> {
        self.block_scales.bytes()
    }

    /// The codes, for writing; the caller keeps padding rows zero. Drops values kept dequantized.
    pub fn codes_mut(&mut self) -> DeviceBytesMut<'_> {
        self.kept.take();
        self.codes.bytes_mut()
    }

    /// The scales, for writing, in device order. Drops the repeated scales made from the old ones, and values kept
    /// dequantized.
    pub fn scales_mut(&mut self) -> DeviceBytesMut<'_> {
        self.kept.take();
        self.repeated.take();
        self.scales.bytes_mut()
    }

    /// All buffers at once, for writing. Drops what was made from the old ones: repeated scales, values kept dequantized.
    pub fn parts_mut(&mut self) -> Parts<DeviceBytesMut<'_>> {
        self.kept.take();
        self.repeated.take();
        Parts {
            codes: self.codes.bytes_mut(),
            scales: self.scales.bytes_mut(),
            block_scales: self.block_scales.bytes_mut(),
        }
    }

    /// Device bytes of codes and scales, and where they were made, of repeated scales and values kept dequantized.
    pub fn device_bytes(&self) -> usize {
        let scales = self.scales().len() + self.block_scales().len();
        let kept = self.kept.get().map_or(0, |kept| kept.values.num_bytes());
        self.codes().len() + scales + kept + self.repeated.get().map_or(0, CudaSlice::num_bytes)
    }

    /// The scales in 1x128 order, if [`QuantMatrix::repeat_scales`] made them.
    pub(crate) fn repeated_scales(&self) -> Option<DeviceBytes<'_>> {
        self.repeated.get().map(DeviceBytes::from)
    }

    /// Length of the repeated scales: one for each row and K block, in 1x128 order.
    pub(crate) fn repeated_len(rows: usize, cols: usize) -> usize {
        ScaleLayout::Vec128.len(rows, Extent::Elements(128).groups(cols))
    }

    /// Makes the second scale buffer of [`Formulation::RepeatedScales`](super::formulation::Formulation), once. Allocates.
    pub(crate) fn repeat_scales(&self, handle: &Handle) -> Result<()> {
        if self.repeated.get().is_some() {
            return Ok(());
        }
        handle.refuse_capture("making repeated scales")?;
        let mut out = handle
            .stream()
            .alloc_zeros::<f32>(Self::repeated_len(self.rows, self.cols).max(1))
            .map_err(|e| driver("allocating repeated scales", e))?;
        {
            let (scales, mut repeated) = (self.scales(), DeviceBytesMut::from(&mut out));
            let stream = handle.launch_stream();
            handle.kernels().repeat_scales(stream, &scales.on(stream), self.rows, self.cols, &repeated.on(stream))?;
        }
        // Two threads may both come here; the scales are equal, so the second buffer is simply dropped.
        let _ = self.repeated.set(out);
        Ok(())
    }

    /// Refuses sizes whose byte counts do not fit in an `isize`, and rows of half-byte codes that are not whole.
    pub(super) fn check_size(scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
        if scheme.spec().format == CodeFormat::E2M1 && !cols.is_multiple_of(16) {
            return Err(Error::shape(
                format!("{scheme} matrix"),
                format!("{rows} x {cols}"),
                "must have a multiple of 16 columns: blocks of 16 codes are whole",
                "pad the columns with zeros",
            ));
        }
        let fits = |len: Option<usize>| len.is_some_and(|len| len <= isize::MAX as usize / 8);
        let padded = rows.checked_add(128).and_then(|r| r.checked_mul(cols.checked_add(512)?));
        if fits(padded) {
            return Ok(());
        }
        Err(Error::shape(
            format!("{scheme} matrix"),
            format!("{rows} x {cols}"),
            "is larger than the address space",
            "check the order of rows and columns",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(bytes: usize) -> DeviceBytes<'static> {
        DeviceBytes { source: Source::Raw(4096, PhantomData), bytes }
    }

    #[test]
    fn plain_matrices_check_stride_and_length() {
        assert!(MatRef::new(raw(32), DType::Bf16, 2, 8).is_ok());
        let short = MatRef::new(raw(31), DType::Bf16, 2, 8).map(|_| ()).unwrap_err().to_string();
        assert!(short.contains("31 bytes") && short.contains("at least 32 bytes"), "{short}");
        // The last row of a strided matrix needs no full stride.
        let strided = MatRef::new(raw(48), DType::Bf16, 2, 8).and_then(|m| m.with_row_stride(16));
        assert_eq!(strided.map(|m| m.row_stride()).unwrap(), 16);
        let tight = MatRef::new(raw(48), DType::Bf16, 2, 8).and_then(|m| m.with_row_stride(7));
        assert!(tight.map(|_| ()).unwrap_err().to_string().contains("row stride 7 for 8 columns"));
        assert!(MatRef::new(raw(8), DType::F32, usize::MAX / 2, 8).is_err());
        assert!(MatRef::new(raw(0), DType::F32, 0, 8).is_ok());
        assert!(VecRef::new(raw(7), DType::F16, 4).is_err());
    }

    #[test]
    fn quantized_matrices_check_both_lengths() {
        let scheme = Scheme::ALL[2];
        let build = |codes, scales| {
            let (codes, scales) = (Store::Raw { address: 4096, len: codes }, Store::Raw { address: 8192, len: scales });
            QuantMatrix::from_store(scheme, 3, 144, codes, scales, Store::Raw { address: 0, len: 0 })
        };
        // 3 rows are stored as 4, and 144 columns have two groups.
        assert!(build(4 * 144, 8).is_ok());
        let error = build(3 * 144, 8).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("432 elements") && error.contains("must be 576"), "{error}");
        assert!(build(4 * 144, 6).is_err());
        assert!(
            QuantMatrix::from_store(
                scheme,
                usize::MAX,
                16,
                Store::Raw { address: 16, len: 0 },
                Store::Raw { address: 16, len: 0 },
                Store::Raw { address: 16, len: 0 }
            )
            .is_err()
        );
    }
}
