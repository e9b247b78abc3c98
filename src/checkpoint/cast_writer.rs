//! [`CastWriter`]: a matrix that was cast, written by rows.

use super::cast_recipe::{cast_codes, cast_scales};
use super::writer::{CheckpointWriter, ROWS, SCHEME, TensorWriter};
use crate::error::Result;
use crate::format::{CastScales, CastScheme, HostCastMatrix};

/// A cast as it is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlannedCast {
    pub(super) scheme: CastScheme,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl PlannedCast {
    /// Refuses what are no rows of the cast from `first` on; gives where they end.
    fn check_part(&self, writer: &CheckpointWriter, name: &str, first: usize, part: &HostCastMatrix) -> Result<usize> {
        let Self { scheme, rows, cols } = *self;
        if part.scheme() != scheme {
            let found = format!("is cast to {} where the layout says {scheme}", part.scheme());
            return Err(writer.refuse(name, found, SCHEME));
        }
        let end = first + part.rows();
        let [height, _] = scheme.group().extents();
        let height = height.size(rows);
        if part.cols() != cols || end > rows || (end < rows && !part.rows().is_multiple_of(height)) {
            let found = format!(
                "got rows {first} to {end} of {} columns, where the layout says {rows} x {cols}, by whole groups of {height} rows",
                part.cols()
            );
            return Err(writer.refuse(name, found, ROWS));
        }
        let [_, across] = scheme.group().grid(rows, cols);
        let band = first / height;
        if let Some(at) = part.scales().iter().position(|scale| !is_scale(*scale)) {
            let found = format!(
                "scale ({}, {}) is {}: no reader accepts one that is not finite, or negative",
                band + at / across,
                at % across,
                part.scales()[at]
            );
            return Err(writer.refuse(name, found, "quantize finite values"));
        }
        Ok(end)
    }
}

/// A cast of a layout, from its first rows to its last.
///
/// What does not lie in the order of the rows is kept until the matrix is whole: scales other than `row-major`, and transposed codes.
#[derive(Debug)]
pub struct CastWriter<'w> {
    writer: &'w CheckpointWriter,
    name: String,
    planned: PlannedCast,
    rows: usize,
    codes: TensorWriter<'w>,
    scales: TensorWriter<'w>,
    kept_codes: Vec<u8>,
    kept_scales: Vec<u8>,
}

impl<'w> CastWriter<'w> {
    pub(super) fn begin(writer: &'w CheckpointWriter, name: &str) -> Result<Self> {
        let Some(planned) = writer.casts.get(name).copied() else {
            return Err(writer.refuse(
                name,
                "is no cast of the layout".into(),
                "add it by CheckpointLayout::cast, or leave it out",
            ));
        };
        let PlannedCast { scheme, rows, cols } = planned;
        let begin = |suffix: &str| writer.tensor(&format!("{name}{suffix}"));
        let codes = begin(cast_codes(scheme, rows, cols).suffix)?;
        let scales = begin(cast_scales(scheme, rows, cols).suffix)?;
        // The lengths of the header, which was checked.
        let kept = |is: bool, bytes: usize| vec![0; if is { bytes } else { 0 }];
        Ok(Self {
            writer,
            name: name.into(),
            planned,
            rows: 0,
            codes,
            scales,
            kept_codes: kept(scheme.is_transposed(), scheme.code_bytes(rows, cols)),
            kept_scales: kept(scheme.scales() != CastScales::RowMajor, scheme.scale_bytes(rows, cols)),
        })
    }

    /// Writes the next rows: the rows of a part are those of the matrix, with the scales that they have there. All parts but the
    /// last have whole groups of rows.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for another scheme or width than the layout says, for too many rows, for a group of rows divided among parts,
    /// and for a scale that is not finite, or negative, which no reader accepts; [`Error::Io`](crate::Error::Io).
    pub fn append(&mut self, part: &HostCastMatrix) -> Result<()> {
        let end = self.planned.check_part(self.writer, &self.name, self.rows, part)?;
        self.append_checked(part, end)
    }

    /// Writes rows that were found to be the next, up to `end`.
    fn append_checked(&mut self, part: &HostCastMatrix, end: usize) -> Result<()> {
        let (PlannedCast { scheme, rows, cols }, first) = (self.planned, self.rows);
        let [height, _] = scheme.group().extents();
        let ([all, across], band) = (scheme.group().grid(rows, cols), first / height.size(rows));
        if scheme.is_transposed() {
            let of = |rows: usize| rows * scheme.format().bits() / 8;
            let columns = part.codes().chunks_exact(of(part.rows()).max(1));
            for (whole, column) in self.kept_codes.chunks_exact_mut(of(rows).max(1)).zip(columns) {
                whole[of(first)..of(end)].copy_from_slice(column);
            }
        } else {
            self.codes.append(part.codes())?;
        }
        let bytes = part.scales().iter().map(|scale| scale.to_le_bytes());
        match scheme.scales() {
            CastScales::RowMajor => self.scales.append(&bytes.flatten().collect::<Vec<_>>())?,
            order => {
                for (at, scale) in part.scales().iter().enumerate() {
                    let place = order.index(all, across, band + at / across, at % across);
                    match order {
                        // Of a power of two, the field of its exponent: that of 2^-127, which is subnormal, is 0 as well.
                        CastScales::Ue8m0 => self.kept_scales[place] = (scale.to_bits() >> 23) as u8,
                        _ => self.kept_scales[4 * place..][..4].copy_from_slice(&scale.to_le_bytes()),
                    }
                }
            }
        }
        self.rows = end;
        Ok(())
    }

    /// Ends the matrix.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if rows are missing; [`Error::Io`](crate::Error::Io).
    pub fn finish(mut self) -> Result<()> {
        let PlannedCast { rows, .. } = self.planned;
        if self.rows != rows {
            return Err(self.writer.too_few_rows(&self.name, self.rows, rows));
        }
        self.codes.append(&self.kept_codes)?;
        self.scales.append(&self.kept_scales)?;
        self.codes.finish()?;
        self.scales.finish()
    }
}

/// True for what a scale can be: a cast of finite values has no other.
pub(super) fn is_scale(scale: f32) -> bool {
    scale.is_finite() && scale >= 0.0
}

impl CheckpointWriter {
    /// Begins a cast of the layout, to be written by rows.
    ///
    /// # Errors
    /// As [`CheckpointWriter::tensor`], and [`Error::File`](crate::Error::File) for a name that is no cast of the layout.
    pub fn cast(&self, name: &str) -> Result<CastWriter<'_>> {
        CastWriter::begin(self, name)
    }

    /// Writes a cast of the layout: codes and scales.
    ///
    /// # Errors
    /// As [`CheckpointWriter::cast`] and [`CastWriter::append`].
    pub fn write_cast(&self, name: &str, matrix: &HostCastMatrix) -> Result<()> {
        let Some(planned) = self.casts.get(name) else { return self.cast(name).map(drop) };
        // Before a tensor is begun, which it is once: after a refusal the right matrix can be written.
        let end = planned.check_part(self, name, 0, matrix)?;
        if end != planned.rows {
            return Err(self.too_few_rows(name, end, planned.rows));
        }
        let mut writer = self.cast(name)?;
        writer.append_checked(matrix, end)?;
        writer.finish()
    }
}
