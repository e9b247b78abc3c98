//! [`HostQuantMatrix`]: the same bytes as on the device, in host memory.

use std::fmt;

use super::codec;
use super::layout::ScaleLayout;
use super::nvfp4::Basis;
use super::scheme::{CodeFormat, Scheme};
use crate::error::{Error, Result};

/// A quantized matrix in host memory: codes, scales and scheme as one value, byte for byte what the device holds.
///
/// Codes are row-major: code (i, j) is byte `i * cols + j`, or for E2M1 half of byte `(i * cols + j) / 2`, the low half
/// where j is even. Rows beyond `rows`, up to the scheme's row multiple, are zero. Scales lie in the device's order with
/// padding: FP32 scales in [`SchemeSpec::scale_layout`](super::SchemeSpec::scale_layout), block scales in
/// [`ScaleLayout::Tiled128x4`].
#[derive(Clone, PartialEq)]
pub struct HostQuantMatrix {
    scheme: Scheme,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
    block_scales: Vec<u8>,
    basis: Basis,
}

/// The buffers of a [`HostQuantMatrix`] as on a device, and the basis of its rows; see [`HostQuantMatrix::from_parts`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HostParts {
    /// The codes with row padding.
    pub codes: Vec<u8>,
    /// The FP32 scales in device order with padding; empty if the scheme has none.
    pub scales: Vec<f32>,
    /// The block scales in device order with padding; empty if the scheme has none.
    pub block_scales: Vec<u8>,
    /// The basis of the rows.
    pub basis: Basis,
}

impl HostQuantMatrix {
    /// A matrix from the bytes of a device, the inverse of [`HostQuantMatrix::into_parts`].
    ///
    /// Padding is set to zero whatever it held.
    ///
    /// # Errors
    /// [`Error::Shape`] if a length is not `scheme.code_bytes(rows, cols)`, `scheme.scale_len(rows, cols)` or
    /// `scheme.block_scale_len(rows, cols)`, or a dimension is above 2^31 - 1.
    pub fn from_parts(scheme: Scheme, rows: usize, cols: usize, parts: HostParts) -> Result<Self> {
        let HostParts { mut codes, scales, block_scales, basis } = parts;
        check_dims(scheme, rows, cols)?;
        check_len("codes", scheme, rows, cols, codes.len(), scheme.code_bytes(rows, cols))?;
        check_len("scales", scheme, rows, cols, scales.len(), scheme.scale_len(rows, cols))?;
        check_len("block scales", scheme, rows, cols, block_scales.len(), scheme.block_scale_len(rows, cols))?;
        codes[rows * row_bytes(scheme, cols)..].fill(0);
        let [r, c] = scheme.scale_grid(rows, cols);
        let layout = scheme.spec().scale_layout;
        let scales = layout.to_device(r, c, &layout.to_logical(r, c, &scales));
        let [r, c] = scheme.block_grid(rows, cols);
        let tiled = ScaleLayout::Tiled128x4;
        let block_scales = tiled.to_device(r, c, &tiled.to_logical(r, c, &block_scales));
        Ok(Self { scheme, rows, cols, codes, scales, block_scales, basis })
    }

    /// A matrix without block scales from codes without padding (`rows * cols`) and scales in logical order
    /// (`[row groups][column groups]`).
    ///
    /// # Errors
    /// [`Error::Shape`] if a length is wrong, a dimension is above 2^31 - 1, or the scheme has block scales.
    pub fn from_logical(scheme: Scheme, rows: usize, cols: usize, codes: Vec<u8>, scales: &[f32]) -> Result<Self> {
        Self::from_block_logical(scheme, rows, cols, codes, scales, &[])
    }

    /// A matrix from codes without padding and scales in logical order: FP32 scales `[row groups][column groups]`, block
    /// scales `[rows][blocks]`; a kind that the scheme lacks is empty.
    ///
    /// # Errors
    /// [`Error::Shape`] if a length is wrong, or a dimension is above 2^31 - 1.
    pub fn from_block_logical(
        scheme: Scheme,
        rows: usize,
        cols: usize,
        mut codes: Vec<u8>,
        scales: &[f32],
        block_scales: &[u8],
    ) -> Result<Self> {
        check_dims(scheme, rows, cols)?;
        let [r, c] = scheme.scale_grid(rows, cols);
        let [block_rows, blocks] = scheme.block_grid(rows, cols);
        check_len("codes", scheme, rows, cols, codes.len(), rows * row_bytes(scheme, cols))?;
        check_len("scales", scheme, rows, cols, scales.len(), r * c)?;
        check_len("block scales", scheme, rows, cols, block_scales.len(), block_rows * blocks)?;
        codes.resize(scheme.code_bytes(rows, cols), 0);
        let scales = scheme.spec().scale_layout.to_device(r, c, scales);
        let block_scales = ScaleLayout::Tiled128x4.to_device(block_rows, blocks, block_scales);
        Ok(Self { scheme, rows, cols, codes, scales, block_scales, basis: Basis::Plain })
    }

    /// The same matrix, said to be in this basis. Nothing is transformed.
    pub fn assume_basis(self, basis: Basis) -> Self {
        Self { basis, ..self }
    }

    /// How the codes are read.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The basis of the rows: that of the data, or a Hadamard transform of it.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Logical rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes, padding rows included.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The codes of the logical rows.
    pub fn logical_codes(&self) -> &[u8] {
        &self.codes[..self.rows * row_bytes(self.scheme, self.cols)]
    }

    /// The code bytes of one row: `cols`, or half as many for E2M1.
    ///
    /// # Panics
    /// If `row` is not below [`HostQuantMatrix::rows`].
    pub fn row_codes(&self, row: usize) -> &[u8] {
        let bytes = row_bytes(self.scheme, self.cols);
        &self.logical_codes()[row * bytes..][..bytes]
    }

    /// The FP32 scales in device order, padding included.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The FP32 scales in logical order: `[row groups][column groups]`. Allocates.
    pub fn logical_scales(&self) -> Vec<f32> {
        let [rows, cols] = self.scheme.scale_grid(self.rows, self.cols);
        self.scheme.spec().scale_layout.to_logical(rows, cols, &self.scales)
    }

    /// The block scales in device order, padding included; empty if the scheme has none.
    pub fn block_scales(&self) -> &[u8] {
        &self.block_scales
    }

    /// The block scales in logical order: `[rows][blocks]`. Allocates.
    pub fn logical_block_scales(&self) -> Vec<u8> {
        let [rows, cols] = self.scheme.block_grid(self.rows, self.cols);
        ScaleLayout::Tiled128x4.to_logical(rows, cols, &self.block_scales)
    }

    /// The FP32 scale of a group of rows and a group of columns.
    ///
    /// # Panics
    /// If a group is outside [`Scheme::scale_grid`].
    pub fn scale_at(&self, row_group: usize, col_group: usize) -> f32 {
        let [rows, cols] = self.scheme.scale_grid(self.rows, self.cols);
        assert!(row_group < rows && col_group < cols, "scale ({row_group}, {col_group}) of a {rows} x {cols} grid");
        self.scales[self.scheme.spec().scale_layout.index(rows, cols, row_group, col_group)]
    }

    /// The block scale of a block of a row.
    ///
    /// # Panics
    /// If the place is outside [`Scheme::block_grid`].
    pub fn block_scale_at(&self, row: usize, block: usize) -> u8 {
        let [rows, cols] = self.scheme.block_grid(self.rows, self.cols);
        assert!(row < rows && block < cols, "block scale ({row}, {block}) of a {rows} x {cols} grid");
        self.block_scales[ScaleLayout::Tiled128x4.index(rows, cols, row, block)]
    }

    /// Puts the values of a row's codes, without any scale, into `values`: exact.
    ///
    /// # Panics
    /// If `row` is not below [`HostQuantMatrix::rows`], or `values` has another length than
    /// [`HostQuantMatrix::cols`].
    pub fn decode_row(&self, row: usize, values: &mut [f32]) {
        assert_eq!(values.len(), self.cols, "one value for each column");
        let codes = self.row_codes(row);
        match self.scheme.spec().format {
            CodeFormat::E2M1 => codec::decode_values_e2m1(codes, values),
            CodeFormat::Fp8(format) => codec::decode_values(format, codes, values),
        }
    }

    /// All that the matrix holds but scheme and shape. Copies nothing.
    pub fn into_parts(self) -> HostParts {
        HostParts { codes: self.codes, scales: self.scales, block_scales: self.block_scales, basis: self.basis }
    }
}

/// Bytes of one row of codes.
fn row_bytes(scheme: Scheme, cols: usize) -> usize {
    cols * scheme.spec().code_bits / 8
}

/// Keeps every product of two dimensions far from overflow, and rows of half-byte codes whole.
pub(crate) fn check_dims(scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
    check_extents("matrix", rows, cols, "split it")?;
    if scheme.spec().format == CodeFormat::E2M1 && !cols.is_multiple_of(2) {
        return Err(Error::shape(
            "matrix",
            format!("{cols} columns in {scheme}"),
            "must be an even number: two codes share a byte",
            "pad the columns with zeros",
        ));
    }
    Ok(())
}

/// The first part of [`check_dims`], which is for what has no scheme, too. Whoever makes a matrix asks before anything of its size is
/// made: a view without elements may have any number of rows or columns, and one whose elements are one number more than memory has.
pub(crate) fn check_extents(operand: &str, rows: usize, cols: usize, remedy: &str) -> Result<()> {
    const LIMIT: usize = i32::MAX as usize;
    // Lengths in bytes, of which the longest are some FP32 numbers for each element, are computed without a check from here on.
    const MOST: usize = isize::MAX as usize / 8;
    let rule = match rows.checked_mul(cols) {
        _ if rows > LIMIT || cols > LIMIT => format!("{LIMIT} rows and columns"),
        Some(elements) if elements <= MOST => return Ok(()),
        _ => format!("{MOST} elements"),
    };
    Err(Error::shape(operand, format!("{rows} x {cols}"), format!("must have at most {rule}"), remedy))
}

fn check_len(what: &str, scheme: Scheme, rows: usize, cols: usize, found: usize, want: usize) -> Result<()> {
    if found == want {
        return Ok(());
    }
    Err(Error::shape(
        what,
        format!("length {found}"),
        format!("must be {want} for a {rows} x {cols} matrix in {scheme}"),
        "pass the whole buffer, padding as this constructor asks",
    ))
}

impl fmt::Debug for HostQuantMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scales = self.scales.len() + self.block_scales.len();
        write!(f, "HostQuantMatrix({} x {} {}, {scales} scales)", self.rows, self.cols, self.scheme)
    }
}
