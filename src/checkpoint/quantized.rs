//! The quantized matrices of a [`Checkpoint`], whole or by rows.

use std::collections::HashSet;
use std::ops::Range;

use super::cast_recipe::StoredScheme;
use super::comfy;
use super::header::TensorInfo;
use super::names::{Dialect, NibbleOrder, is_e8m0, scaled_by_name, wide_dtype};
use super::parts::{Parts, Second};
use super::plain_rows::widen;
use super::reader::Checkpoint;
use super::recipe::{Reading, WrittenRecipe, dialect};
use crate::error::Result;
use crate::format::layout::ScaleLayout;
use crate::format::{BlockScaleFormat, Extent, HostQuantMatrix, Scheme, codec};

impl Checkpoint {
    /// Names of what is quantized: FP8, packed NVFP4 or casts, and not the scale of another tensor. That of a matrix of
    /// compressed-tensors is without `_packed`.
    ///
    /// Tensors with a missing scale are among them, those that are not 2-D, and those that the metadata have a recipe of and that are of a type
    /// which no codes have; reading one is then refused.
    pub fn quantized(&self) -> Vec<&str> {
        self.listing.quantized()
    }

    /// True for a matrix that is plain (BF16, F16, F32, F64), under whatever name its codes would have: an entry of the metadata that says how it is
    /// quantized ([`RECIPE_KEY`](super::RECIPE_KEY) and its name) was left when its values were written.
    pub fn is_left(&self, name: &str) -> bool {
        self.listing.is_left(name)
    }

    /// True for a scale that was left with such an entry ([`Checkpoint::is_left`]), as that says it: of codes that are gone.
    pub fn is_left_scale(&self, tensor: &TensorInfo) -> bool {
        self.listing.is_left_scale(tensor)
    }

    /// The matrices that the metadata have a recipe of, and of which no codes are there.
    pub fn said_of_nothing(&self) -> impl Iterator<Item = &str> {
        self.listing.said_of_nothing()
    }

    /// How the metadata say that a matrix is quantized, whatever is there of it; `None` where they do not say, or nothing that is known.
    pub fn said_scheme(&self, name: &str) -> Option<StoredScheme> {
        self.listing.said_scheme(name)?.ok()
    }

    /// Tensors with the name of a scale of a quantized matrix which is read without them, and the name of the matrix: scales of what it was
    /// before, or of nothing.
    pub fn scales_of_others(&self) -> Vec<(&str, &str)> {
        let read = self.quantized().into_iter().filter_map(|name| Some((name, self.tensors_of(name).ok()?)));
        let (matrices, parts): (HashSet<&str>, Vec<Vec<String>>) = read.unzip();
        let own: HashSet<&str> = parts.iter().flatten().map(String::as_str).collect();
        let others = self.tensors().iter().map(|tensor| tensor.name.as_str()).filter(|name| !own.contains(name));
        others
            .filter_map(|name| Some((name, scaled_by_name(name).find_map(|of| matrices.get(&*of).copied())?)))
            .collect()
    }

    /// True for the scale of another tensor of the file.
    pub fn is_scale(&self, name: &str) -> bool {
        self.listing.is_scale(name)
    }

    /// True for what marks a quantized layer and goes with its quantization: ComfyUI's `comfy_quant` and `scaled_fp8`, the one by its
    /// bytes, the other by type and shape. What merely has the name is a tensor like others.
    pub fn is_mark(&self, name: &str) -> bool {
        let has_weight = |layer: &str| self.listing.get(&format!("{layer}.weight")).is_some();
        self.marked_layer(name).is_some_and(has_weight) || self.listing.get(name).is_some_and(comfy::is_marker)
    }

    /// The layer that a tensor marks for ComfyUI, `LAYER.comfy_quant`.
    pub fn marked_layer<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_suffix(comfy::SUFFIX).filter(|_| self.marks.contains(name))
    }

    /// What the metadata list for ComfyUI (`_quantization_metadata`), without the layers that are `gone`; nothing where none is left.
    pub fn marks_without(&self, gone: impl Fn(&str) -> bool) -> Option<String> {
        comfy::without(self.metadata().get(comfy::METADATA)?, gone)
    }

    /// Files whose list of marks for ComfyUI is no JSON object of layers: none of it is read, and of [`Checkpoint::metadata`] it is no part
    /// where another file has one. A matrix that it may have marked, and of which nothing else says how it is read, is refused.
    pub fn broken_marks(&self) -> impl Iterator<Item = &std::path::Path> {
        self.listing.broken_marks.iter().map(|place| self.files()[*place].as_path())
    }

    /// Refuses a checkpoint of which a matrix cannot be read for such a list: without it the others would be read, and it as something else.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) naming the first of them.
    pub fn check_marks(&self) -> Result<()> {
        if self.listing.broken_marks.is_empty() {
            return Ok(());
        }
        let parts = self.quantized().into_iter().filter_map(|name| Some((name, self.listing.parts(name).ok()?)));
        parts.into_iter().try_for_each(|(name, parts)| self.listing.refuse_lost_mark(name, &parts))
    }

    /// True for a matrix whose block scales lie in ComfyUI's tiles of 128 x 4, and the even column in the high half of a byte: by the
    /// dialect that it says it was written in, else by a mark of its layer.
    pub fn is_tiled(&self, name: &str) -> bool {
        let reading = self.listing.parts(name).and_then(|parts| self.listing.reading(name, &parts));
        reading.is_ok_and(|reading| reading.tiled)
    }

    /// The names of the tensors that a quantized matrix is made of: codes, scales, second-level scale if there is one.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if one is missing, or there are too many.
    pub fn tensors_of(&self, name: &str) -> Result<Vec<String>> {
        self.listing.tensors_of(name)
    }

    /// The name of the scales of a quantized matrix; of its block scales if it has two levels.
    ///
    /// # Errors
    /// As [`Checkpoint::tensors_of`].
    pub fn scale_name(&self, name: &str) -> Result<String> {
        Ok(match self.listing.parts(name)? {
            Parts::Bytes { scale, .. }
            | Parts::Packed { scale, .. }
            | Parts::Mxfp4 { scale, .. }
            | Parts::Cast { scale, .. } => scale.name.clone(),
        })
    }

    /// How a quantized matrix is read, by the rules of this module.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if it is not a quantized 2-D matrix, a scale is missing or fits no scheme, the nibble order asked
    /// for is not that of the metadata, or it is a cast, which no product reads ([`Checkpoint::stored_scheme`]).
    pub fn scheme(&self, name: &str) -> Result<Scheme> {
        self.listing.scheme(name)
    }

    /// All of this at once, of casts too: scheme, dimensions ([`Checkpoint::quant_dimensions`]), and the tensors, as [`Checkpoint::tensors_of`] names
    /// them.
    ///
    /// # Errors
    /// As [`Checkpoint::stored_scheme`].
    pub fn quant_info(&self, name: &str) -> Result<(StoredScheme, Vec<usize>, Vec<&TensorInfo>)> {
        let (parts, scheme) = (self.listing.parts(name)?, self.listing.stored_scheme(name)?);
        Ok((scheme, self.listing.dimensions(name, &parts)?, parts.tensors()))
    }

    /// The recipe a matrix was written with; `None` where the file does not say.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if the metadata entry is broken or names an unknown rule.
    pub fn recipe(&self, name: &str) -> Result<Option<WrittenRecipe>> {
        self.listing.parts(name)?;
        match self.listing.written(name) {
            Some(text) => WrittenRecipe::from_json(text)
                .map(Some)
                .map_err(|e| self.listing.refuse(name, e, "read it with the version that wrote it")),
            None => Ok(None),
        }
    }

    /// The dialect that a matrix was written in; `None` where the file does not say. One written in [`Dialect::Plain`] is for this
    /// crate, whatever a config beside it says.
    pub fn written_dialect(&self, name: &str) -> Option<Dialect> {
        dialect(self.listing.written(name)?)
    }

    /// A quantized matrix with its scales, in the basis that the metadata say. Allocates.
    ///
    /// # Errors
    /// As [`Checkpoint::scheme`], and [`Error::File`](crate::Error::File) for FP32 scales that are not F32, BF16 or F16, or not finite, and for
    /// block scales that are NaN or have a sign.
    pub fn quant_matrix(&self, name: &str) -> Result<HostQuantMatrix> {
        let (rows, _) = self.quant_shape(name)?;
        self.quant_rows(name, 0..rows)
    }

    /// Rows and columns of a quantized matrix.
    ///
    /// # Errors
    /// As [`Checkpoint::scheme`].
    pub fn quant_shape(&self, name: &str) -> Result<(usize, usize)> {
        self.listing.logical_shape(name, &self.listing.parts(name)?)
    }

    /// Dimensions of the values of a quantized matrix: rows and columns; of experts in one tensor (`[experts, rows, columns]`) all, of
    /// which all but the last together are its rows.
    ///
    /// # Errors
    /// As [`Checkpoint::scheme`].
    pub fn quant_dimensions(&self, name: &str) -> Result<Vec<usize>> {
        self.listing.dimensions(name, &self.listing.parts(name)?)
    }

    /// Some rows of a quantized matrix with the scales that they have in the whole: a matrix of its own. Allocates; several
    /// threads may read at once.
    ///
    /// # Errors
    /// As [`Checkpoint::quant_matrix`], and [`Error::File`](crate::Error::File) for rows that are not there, and for a first row that is not
    /// the first of a group of rows.
    pub fn quant_rows(&self, name: &str, rows: Range<usize>) -> Result<HostQuantMatrix> {
        let parts = self.listing.parts(name)?;
        let reading = self.listing.reading(name, &parts)?;
        let (all, cols) = self.listing.logical_shape(name, &parts)?;
        let scheme = reading.scheme;
        let group = match scheme.spec().group_rows {
            // One for the whole, whatever the rows.
            Extent::All => 1,
            extent => extent.size(all),
        };
        if rows.start > rows.end || rows.end > all || !rows.start.is_multiple_of(group) {
            let found =
                format!("has {all} rows in groups of {group}, and {} to {} were to be read", rows.start, rows.end);
            return Err(self.listing.refuse(name, found, "read whole groups that are there"));
        }
        let mut codes = self.slice(parts.codes(), rows.clone(), cols * scheme.spec().code_bits / 8)?;
        let (scales, block_scales) = self.scales(name, &parts, &reading, [all, cols], rows.clone())?;
        if reading.nibble_order == Some(NibbleOrder::HighFirst) {
            codes.iter_mut().for_each(|pair| *pair = pair.rotate_left(4));
        }
        HostQuantMatrix::from_block_logical(scheme, rows.len(), cols, codes, &scales, &block_scales)
            .map(|matrix| matrix.assume_basis(reading.basis))
            .map_err(|e| self.listing.refuse(name, format!("cannot be used: {e}"), "quantize it again"))
    }

    /// The FP32 scales and the block scales of some rows, which begin with a group.
    fn scales(
        &self,
        name: &str,
        parts: &Parts<'_>,
        reading: &Reading,
        [all, cols]: [usize; 2],
        rows: Range<usize>,
    ) -> Result<(Vec<f32>, Vec<u8>)> {
        let scheme = reading.scheme;
        let groups = match scheme.spec().group_rows {
            Extent::All => 0..1,
            extent => rows.start / extent.size(all)..rows.end.div_ceil(extent.size(all)),
        };
        let [_, across] = scheme.scale_grid(all, cols);
        let floats = |tensor, meaning| self.float_scales(tensor, meaning, groups.clone(), across);
        let [_, blocks] = scheme.block_grid(all, cols);
        let bytes = |tensor, bad: fn(u8) -> bool| self.block_scales(tensor, bad, rows.clone(), blocks, reading.tiled);
        Ok(match *parts {
            Parts::Bytes { scale, .. } if is_e8m0(scale.dtype) && scheme.spec().block.is_some() => {
                (Vec::new(), bytes(scale, |b| b == 0xFF)?)
            }
            Parts::Mxfp4 { scale, .. } => (Vec::new(), bytes(scale, |b| b == 0xFF)?),
            Parts::Bytes { scale, .. } => match reading.fused_rows {
                Some(fused) => {
                    let scales = self.float_scales(scale, Second::Factor, 0..fused.number(all), 1)?;
                    (groups.clone().map(|row| scales[fused.matrix_of(row)]).collect(), Vec::new())
                }
                None => (floats(scale, Second::Factor)?, Vec::new()),
            },
            Parts::Packed { scale, second, meaning, .. } => (floats(second, meaning)?, bytes(scale, |b| b >= 0x7F)?),
            Parts::Cast { scheme, .. } => return Err(self.listing.no_product(name, scheme)),
        })
    }

    /// Refuses a matrix with a scale that is NaN or infinite, or otherwise none, as its readers do. Its codes are not read.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) naming the first such scale, and as [`Checkpoint::stored_scheme`].
    pub fn check_scales(&self, name: &str) -> Result<()> {
        let parts = self.listing.parts(name)?;
        let (all, cols) = self.listing.logical_shape(name, &parts)?;
        if let Parts::Cast { scheme, scale, .. } = parts {
            let [bands, _] = scheme.group().grid(all, cols);
            return in_parts(bands).try_for_each(|bands| self.cast_scales(scheme, scale, [all, cols], bands).map(drop));
        }
        let reading = self.listing.reading(name, &parts)?;
        in_parts(all).try_for_each(|rows| self.scales(name, &parts, &reading, [all, cols], rows).map(drop))
    }

    /// Rows of a tensor of `width` elements a row.
    fn slice(&self, tensor: &TensorInfo, rows: Range<usize>, width: usize) -> Result<Vec<u8>> {
        let row = width as u64 * tensor.dtype.bitsize() as u64 / 8;
        self.part(&tensor.name, rows.start as u64 * row, rows.len() as u64 * row)
    }

    /// FP32 scales of these groups of rows, `across` in each, every one finite.
    fn float_scales(
        &self,
        scale: &TensorInfo,
        meaning: Second,
        groups: Range<usize>,
        across: usize,
    ) -> Result<Vec<f32>> {
        if is_e8m0(scale.dtype) {
            // Exact: also the smallest, 2^-127, is an FP32 number.
            let bytes = self.slice(scale, groups.clone(), across)?;
            if let Some(at) = bytes.iter().position(|byte| *byte == 0xFF) {
                let found = format!("holds byte 0xff at element {}, which is NaN", groups.start * across + at);
                return Err(self.listing.refuse(&scale.name, found, "quantize the matrix again from finite values"));
            }
            return Ok(bytes.iter().map(|b| codec::decode_block_scale(BlockScaleFormat::Ue8m0, *b)).collect());
        }
        let Some(dtype) = wide_dtype(scale.dtype) else {
            // Refused with more words where the matrix was looked at.
            return Err(self.listing.refuse(
                &scale.name,
                format!("has dtype {}", scale.dtype),
                "write it again as F32",
            ));
        };
        let stored = widen(dtype, &self.slice(scale, groups.clone(), across)?);
        let factor = |s: &f32| if meaning == Second::Divisor { 1.0 / s } else { *s };
        let scales: Vec<f32> = stored.iter().map(factor).collect();
        // A divisor must be finite as well: its inverse would be a zero that nobody wrote.
        match stored.iter().zip(&scales).position(|(s, f)| !s.is_finite() || !f.is_finite()) {
            None => Ok(scales),
            Some(at) => {
                let inverse = if meaning == Second::Divisor { " and its inverse" } else { "" };
                let place = groups.start * across + at;
                let found = format!("holds {} at element {place}: every scale{inverse} must be finite", stored[at]);
                Err(self.listing.refuse(&scale.name, found, "quantize the matrix again from finite values"))
            }
        }
    }

    /// Scale bytes of the blocks of these rows, `blocks` in each, refusing those that are `bad`: NaN, or negative.
    fn block_scales(
        &self,
        scale: &TensorInfo,
        bad: impl Fn(u8) -> bool,
        rows: Range<usize>,
        blocks: usize,
        tiled: bool,
    ) -> Result<Vec<u8>> {
        let bytes = match tiled {
            false => self.slice(scale, rows.clone(), blocks)?,
            true => {
                // Tiles of 128 rows lie one after the other, each as long as so many whole rows.
                let tiles = rows.start / 128 * 128..rows.end.next_multiple_of(128);
                let bytes = self.slice(scale, tiles.clone(), blocks.next_multiple_of(4))?;
                let logical = ScaleLayout::Tiled128x4.to_logical(tiles.len(), blocks, &bytes);
                logical[(rows.start - tiles.start) * blocks..][..rows.len() * blocks].to_vec()
            }
        };
        match bytes.iter().position(|b| bad(*b)) {
            None => Ok(bytes),
            Some(at) => {
                let what = if is_e8m0(scale.dtype) { "NaN" } else { "NaN or negative" };
                let place = rows.start * blocks + at;
                let found = format!("holds byte {:#04x} at element {place}, which is {what}", bytes[at]);
                Err(self.listing.refuse(&scale.name, found, "quantize the matrix again from finite values"))
            }
        }
    }
}

/// Rows, a multiple of those of every group, by so many as are read at a time.
fn in_parts(rows: usize) -> impl Iterator<Item = Range<usize>> {
    const PART: usize = 4096;
    (0..rows).step_by(PART).map(move |first| first..rows.min(first + PART))
}
