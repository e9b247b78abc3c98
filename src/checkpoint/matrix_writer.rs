//! [`MatrixWriter`]: a quantized matrix written by rows, so that it need not be in memory as a whole.

use super::comfy;
use super::layout::{Planned, dialect_format};
use super::names::{Dialect, ScaleMeaning, block_scale_tensor, code_tensor, scale_tensor};
use super::writer::{CheckpointWriter, ROWS, SCHEME, TensorWriter};
use crate::error::{Error, Result};
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

impl Planned {
    /// Refuses what are no rows of the matrix from `first` on; gives where they end.
    pub(super) fn check_part(
        &self,
        writer: &CheckpointWriter,
        name: &str,
        first: usize,
        part: &HostQuantMatrix,
    ) -> Result<usize> {
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
        Ok(end)
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
        if dialect == Dialect::ComfyUi {
            let mark = format!("{}{}", comfy::layer(name), comfy::SUFFIX);
            writer.write(&mark, &comfy::tensor(dialect_format(scheme)))?;
        }
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
    /// [`Error::File`] for another scheme, basis or width than the layout says, for too many rows, for a group of rows divided
    /// among parts, for parts with different scales of the whole matrix, and for a scale that is not finite, which no reader
    /// accepts; [`Error::Io`].
    pub fn append(&mut self, part: &HostQuantMatrix) -> Result<()> {
        let scheme = self.planned.scheme;
        let end = self.planned.check_part(self.writer, &self.name, self.rows, part)?;
        let (scales, block_scales) = (part.logical_scales(), part.logical_block_scales());
        self.check_finite(&scales, &block_scales)?;
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
            match (scheme.spec().group_rows, self.whole, scales.as_slice()) {
                (Extent::All, Some(known), [scale]) if known.to_bits() != scale.to_bits() => {
                    let found = format!("has parts with the scales {known} and {scale} of the whole");
                    return Err(self.writer.refuse(&self.name, found, "quantize all parts with one scale"));
                }
                (Extent::All, Some(_), _) => {}
                (extent, ..) => {
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
    /// [`Error::File`] if rows are missing.
    pub fn finish(self) -> Result<()> {
        self.codes.finish()?;
        self.block_scales.map_or(Ok(()), TensorWriter::finish)?;
        self.scales.map_or(Ok(()), |(tensor, _)| tensor.finish())
    }

    fn check_finite(&self, scales: &[f32], block_scales: &[u8]) -> Result<()> {
        let scheme = self.planned.scheme;
        // Numbers of the whole matrix, not of a part.
        let [_, groups] = scheme.scale_grid(self.planned.rows, self.planned.cols);
        let first = match scheme.spec().group_rows {
            Extent::All => 0,
            extent => self.rows / extent.size(self.planned.rows) * groups,
        };
        let stored = |s: &f32| self.scales.as_ref().is_none_or(|(_, meaning)| meaning.stored(*s).is_finite());
        if let Some(at) = scales.iter().position(|s| !s.is_finite() || !stored(s)) {
            return Err(self.not_finite(format!("scale {} is {}", first + at, scales[at])));
        }
        let nan = |byte: &u8| match scheme.spec().block.map(|b| b.format) {
            Some(BlockScaleFormat::Ue8m0) => *byte == 0xFF,
            _ => *byte >= 0x7F,
        };
        let [_, blocks] = scheme.block_grid(self.planned.rows, self.planned.cols);
        if let Some(at) = block_scales.iter().position(nan) {
            let place = self.rows * blocks + at;
            return Err(self.not_finite(format!("block scale {place} is byte {:#04x}", block_scales[at])));
        }
        Ok(())
    }

    fn not_finite(&self, found: String) -> Error {
        let remedy = match self.planned.scheme.spec().block {
            None => {
                "quantize smaller values, all finite, or with the preset transformer-engine, which gives such groups scale 1"
            }
            Some(_) => "quantize smaller values, all finite",
        };
        let reason = format!(
            "{found}, because its group holds an infinity, NaN, or values so large that the scale is beyond its format"
        );
        self.writer.refuse(&self.name, reason, remedy)
    }
}
