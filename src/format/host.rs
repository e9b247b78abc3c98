//! [`HostQuantMatrix`]: the same bytes as on the device, in host memory.

use std::fmt;

use super::scheme::Scheme;
use crate::error::{Error, Result};

/// A quantized matrix in host memory: codes, scales and scheme as one value, byte for byte what the device holds.
///
/// Code (i, j) is byte `i * cols + j`; rows beyond `rows`, up to the scheme's row multiple, are zero. Scales lie in the
/// device's order with padding ([`SchemeSpec::scale_layout`](super::SchemeSpec::scale_layout)).
#[derive(Clone, PartialEq)]
pub struct HostQuantMatrix {
    scheme: Scheme,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl HostQuantMatrix {
    /// A matrix from the bytes of a device: `codes` with row padding, `scales` in device order with padding.
    ///
    /// Padding is set to zero whatever it held.
    ///
    /// # Errors
    /// [`Error::Shape`] if a length is not `scheme.code_bytes(rows, cols)` or `scheme.scale_len(rows, cols)`, or a
    /// dimension is above 2^31 - 1.
    pub fn from_parts(scheme: Scheme, rows: usize, cols: usize, mut codes: Vec<u8>, scales: Vec<f32>) -> Result<Self> {
        check_dims(rows, cols)?;
        check_len("codes", scheme, rows, cols, codes.len(), scheme.code_bytes(rows, cols))?;
        check_len("scales", scheme, rows, cols, scales.len(), scheme.scale_len(rows, cols))?;
        codes[rows * cols..].fill(0);
        let mut matrix = Self { scheme, rows, cols, codes, scales: Vec::new() };
        let logical = matrix.gather(&scales);
        matrix.scales = matrix.scatter(&logical);
        Ok(matrix)
    }

    /// A matrix from codes without padding (`rows * cols`) and scales in logical order (`[row groups][column groups]`).
    ///
    /// # Errors
    /// [`Error::Shape`] if a length is wrong, or a dimension is above 2^31 - 1.
    pub fn from_logical(scheme: Scheme, rows: usize, cols: usize, mut codes: Vec<u8>, scales: &[f32]) -> Result<Self> {
        check_dims(rows, cols)?;
        let [row_groups, col_groups] = scheme.scale_grid(rows, cols);
        check_len("codes", scheme, rows, cols, codes.len(), rows * cols)?;
        check_len("scales", scheme, rows, cols, scales.len(), row_groups * col_groups)?;
        codes.resize(scheme.code_bytes(rows, cols), 0);
        let mut matrix = Self { scheme, rows, cols, codes, scales: Vec::new() };
        matrix.scales = matrix.scatter(scales);
        Ok(matrix)
    }

    /// How the codes are read.
    pub fn scheme(&self) -> Scheme {
        self.scheme
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
        &self.codes[..self.rows * self.cols]
    }

    /// The scales in device order, padding included.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The scales in logical order: `[row groups][column groups]`. Allocates.
    pub fn logical_scales(&self) -> Vec<f32> {
        self.gather(&self.scales)
    }

    /// The scale of a group of rows and a group of columns.
    ///
    /// # Panics
    /// If a group is outside [`Scheme::scale_grid`].
    pub fn scale_at(&self, row_group: usize, col_group: usize) -> f32 {
        let [rows, cols] = self.scheme.scale_grid(self.rows, self.cols);
        assert!(row_group < rows && col_group < cols, "scale ({row_group}, {col_group}) of a {rows} x {cols} grid");
        self.scales[self.scheme.spec().scale_layout.index(rows, cols, row_group, col_group)]
    }

    /// The codes with padding, and the scales in device order.
    pub fn into_parts(self) -> (Vec<u8>, Vec<f32>) {
        (self.codes, self.scales)
    }

    /// Logical order from device order.
    fn gather(&self, device: &[f32]) -> Vec<f32> {
        let [rows, cols] = self.scheme.scale_grid(self.rows, self.cols);
        self.scheme.spec().scale_layout.to_logical(rows, cols, device)
    }

    /// Device order from logical order.
    fn scatter(&self, logical: &[f32]) -> Vec<f32> {
        let [rows, cols] = self.scheme.scale_grid(self.rows, self.cols);
        self.scheme.spec().scale_layout.to_device(rows, cols, logical)
    }
}

/// Keeps every product of two dimensions far from overflow.
fn check_dims(rows: usize, cols: usize) -> Result<()> {
    const LIMIT: usize = i32::MAX as usize;
    if rows <= LIMIT && cols <= LIMIT {
        return Ok(());
    }
    Err(Error::shape(
        "matrix",
        format!("{rows} x {cols}"),
        format!("must have at most {LIMIT} rows and columns"),
        "split it",
    ))
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
        write!(f, "HostQuantMatrix({} x {} {}, {} scales)", self.rows, self.cols, self.scheme, self.scales.len())
    }
}
