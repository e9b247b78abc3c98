//! [`MatrixWriter`]: a quantized matrix written by rows, so that it need not be in memory as a whole.

use super::comfy;
use super::layout::{Planned, dialect_format};
use super::names::{Dialect, ScaleMeaning, block_scale_tensor, code_tensor, scale_tensor};
use super::writer::{CheckpointWriter, ROWS, SCHEME, TensorWriter};
use crate::error::Result;
use crate::format::{BlockScaleFormat, Extent, HostQuantMatrix};

/// A quantized matrix of a layout, from its first rows to its last.
#[derive(Debug)]
pub struct MatrixWriter<'w> {
    writer: &'w CheckpointWriter,
    name: String,
    planned: Planned,
    rows: usize,
    codes: TensorWriter<'w>,
    block_scales: Option<TensorWriter<'w>>,
    scales: Option<(TensorWriter<'w>, ScaleMeaning)>,
    /// The scale of the whole matrix, where it has one: every part has it.
    whole: Option<f32>,
}

/// Rows that a matrix of a layout may have, with their scales in logical order.
#[derive(Debug)]
pub(super) struct CheckedRows<'p> {
    part: &'p HostQuantMatrix,
    /// Where they end.
    pub(super) end: usize,
    scales: Vec<f32>,
    block_scales: Vec<u8>,
}

impl Planned {
    /// Refuses what are no rows of the matrix from `first` on, and a scale that is not finite, as it would be stored, which no reader accepts.
    pub(super) fn check_part<'p>(
        &self,
        writer: &CheckpointWriter,
        name: &str,
        first: usize,
        part: &'p HostQuantMatrix,
    ) -> Result<CheckedRows<'p>> {
        let Self { scheme, basis, rows, cols, .. } = *self;
        if (part.scheme(), part.basis()) != (scheme, basis) {
            let found = format!("is {} ({:?}) where the layout says {scheme} ({basis:?})", part.scheme(), part.basis());
            return Err(writer.refuse(name, found, SCHEME));
        }
        let end = first + part.rows();
        let group = match scheme.spec().group_rows {
            _ if self.dialect == Dialect::ComfyUi => 128,
            Extent::All => 1,
            extent => extent.size(rows),
        };
        if part.cols() != cols || end > rows || (end < rows && !part.rows().is_multiple_of(group)) {
            let found = format!(
                "got rows {first} to {end} of {} columns, where the layout says {rows} x {cols}, by whole groups of {group} rows",
                part.cols()
            );
            return Err(writer.refuse(name, found, ROWS));
        }
        let (scales, block_scales) = (part.logical_scales(), part.logical_block_scales());
        match self.not_finite(first, &scales, &block_scales) {
            None => Ok(CheckedRows { part, end, scales, block_scales }),
            Some(found) => {
                let remedy = match scheme.spec().block {
                    None => {
                        "quantize smaller values, all finite, or with the preset transformer-engine, which gives such groups scale 1"
                    }
                    Some(_) => "quantize smaller values, all finite",
                };
                let reason = format!(
                    "{found}, because its group holds an infinity, NaN, or values so large that the scale is beyond its format"
                );
                Err(writer.refuse(name, reason, remedy))
            }
        }
    }

    /// The first of the scales of rows from `first` on that is not finite.
    fn not_finite(&self, first: usize, scales: &[f32], block_scales: &[u8]) -> Option<String> {
        let Self { scheme, rows, cols, dialect, .. } = *self;
        // Numbers of the whole matrix, not of a part.
        let [_, groups] = scheme.scale_grid(rows, cols);
        let group = match scheme.spec().group_rows {
            Extent::All => 0,
            extent => first / extent.size(rows) * groups,
        };
        let meaning = scale_tensor(dialect, scheme, rows, cols).map(|(_, meaning)| meaning);
        let is_stored = |scale: f32| meaning.is_none_or(|meaning| meaning.stored(scale).is_finite());
        if let Some(at) = scales.iter().position(|s| !s.is_finite() || !is_stored(*s)) {
            return Some(format!("scale {} is {}", group + at, scales[at]));
        }
        let nan = |byte: &u8| match scheme.spec().block.map(|b| b.format) {
            Some(BlockScaleFormat::Ue8m0) => *byte == 0xFF,
            _ => *byte >= 0x7F,
        };
        let [_, blocks] = scheme.block_grid(rows, cols);
        let at = block_scales.iter().position(nan)?;
        Some(format!("block scale {} is byte {:#04x}", first * blocks + at, block_scales[at]))
    }
}

impl<'w> MatrixWriter<'w> {
    pub(super) fn begin(writer: &'w CheckpointWriter, name: &str) -> Result<Self> {
        let Some(planned) = writer.matrices.get(name).copied() else {
            return Err(writer.refuse(
                name,
                "is no quantized matrix of the layout".into(),
                "add it by CheckpointLayout::quantized, or leave it out",
            ));
        };
        let Planned { scheme, rows, cols, dialect, .. } = planned;
        let begin = |suffix: &str| writer.tensor(&format!("{name}{suffix}"));
        let codes = begin(code_tensor(dialect, scheme, rows, cols).suffix)?;
        let block_scales = block_scale_tensor(dialect, scheme, rows, cols).map(|t| begin(t.suffix)).transpose()?;
        let scales = scale_tensor(dialect, scheme, rows, cols);
        let scales = scales.map(|(t, meaning)| begin(t.suffix).map(|tensor| (tensor, meaning))).transpose()?;
        Ok(Self { writer, name: name.into(), planned, rows: 0, codes, block_scales, scales, whole: None })
    }

    /// Writes the next rows: the rows of a part are those of the matrix, with the scales that they have there. All parts but the
    /// last have whole groups of rows.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for another scheme, basis or width than the layout says, for too many rows, for a group of rows divided
    /// among parts, for parts with different scales of the whole matrix, and for a scale that is not finite, which no reader
    /// accepts; [`Error::Io`](crate::Error::Io).
    pub fn append(&mut self, part: &HostQuantMatrix) -> Result<()> {
        let checked = self.planned.check_part(self.writer, &self.name, self.rows, part)?;
        // Before any of it is written: after a refusal the right rows can be.
        if let (Some(known), [scale]) = (self.whole, checked.scales.as_slice())
            && known.to_bits() != scale.to_bits()
        {
            let found = format!("has parts with the scales {known} and {scale} of the whole");
            return Err(self.writer.refuse(&self.name, found, "quantize all parts with one scale"));
        }
        self.append_checked(checked)
    }

    /// Writes rows that were found to be the next.
    pub(super) fn append_checked(&mut self, rows: CheckedRows<'_>) -> Result<()> {
        let (scheme, CheckedRows { part, end, scales, block_scales }) = (self.planned.scheme, rows);
        let comfy = self.planned.dialect == Dialect::ComfyUi;
        match comfy && scheme.is_nvfp4() {
            true => {
                let swapped: Vec<u8> = part.logical_codes().iter().map(|pair| pair.rotate_left(4)).collect();
                self.codes.append(&swapped)?;
            }
            false => self.codes.append(part.logical_codes())?,
        }
        if let Some(tensor) = &mut self.block_scales {
            // On the device they lie in tiles, too.
            tensor.append(if comfy { part.block_scales() } else { &block_scales })?;
        }
        if let Some((tensor, meaning)) = &mut self.scales {
            match (scheme.spec().group_rows, self.whole) {
                (Extent::All, Some(_)) => {}
                (extent, _) => {
                    self.whole = scales.first().copied().filter(|_| extent == Extent::All);
                    let bytes: Vec<u8> = scales.iter().flat_map(|s| meaning.stored(*s).to_le_bytes()).collect();
                    tensor.append(&bytes)?;
                }
            }
        }
        self.rows = end;
        Ok(())
    }

    /// Ends the matrix.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if rows are missing.
    pub fn finish(self) -> Result<()> {
        let Planned { scheme, dialect, .. } = self.planned;
        if dialect == Dialect::ComfyUi {
            // At the end: what is refused before its first rows may be written yet, and is to find its mark unwritten.
            let mark = format!("{}{}", comfy::layer(&self.name), comfy::SUFFIX);
            self.writer.write(&mark, &comfy::tensor(dialect_format(scheme)))?;
        }
        self.codes.finish()?;
        self.block_scales.map_or(Ok(()), TensorWriter::finish)?;
        self.scales.map_or(Ok(()), |(tensor, _)| tensor.finish())
    }
}
