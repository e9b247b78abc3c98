//! The matrices of a [`Checkpoint`] that were cast to groupings that no product reads, whole or by rows.

use std::collections::HashSet;
use std::ops::Range;

use safetensors::Dtype;

use super::cast_recipe::{StoredScheme, WrittenCast, cast_codes, cast_scales, padded};
use super::cast_writer::is_scale;
use super::header::{RECIPE_KEY, TensorInfo};
use super::listing::Listing;
use super::names::{SCALE_SUFFIXES, Tensor};
use super::parts::Parts;
use super::reader::Checkpoint;
use crate::error::Result;
use crate::format::{CastScales, CastScheme, CodeFormat, HostCastMatrix, codec};

/// Rows of transposed codes, of which a matrix has so many or a multiple of them.
const ROWS: usize = 16;

impl Checkpoint {
    /// How a quantized matrix is read: by the rules of this module as what products take, or as its metadata say as a cast.
    ///
    /// # Errors
    /// As [`Checkpoint::scheme`], but for casts; [`Error::File`](crate::Error::File) for one whose tensors are not those of its
    /// metadata, or whose metadata name what is not known.
    pub fn stored_scheme(&self, name: &str) -> Result<StoredScheme> {
        self.listing.stored_scheme(name)
    }

    /// The recipe that a matrix was cast with; `None` for one that is no cast.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if the metadata entry is broken or names an unknown rule.
    pub fn cast_recipe(&self, name: &str) -> Result<Option<WrittenCast>> {
        let Parts::Cast { .. } = self.listing.parts(name)? else { return Ok(None) };
        let text = self.listing.written(name).map(String::as_str).unwrap_or_default();
        let remedy = "read it with the version that wrote it";
        WrittenCast::from_json(text).map(Some).map_err(|e| self.listing.refuse(name, e, remedy))
    }

    /// A cast with its scales. Allocates.
    ///
    /// # Errors
    /// As [`Checkpoint::cast_rows`].
    pub fn cast_matrix(&self, name: &str) -> Result<HostCastMatrix> {
        let (rows, _) = self.quant_shape(name)?;
        self.cast_rows(name, 0..rows)
    }

    /// Some rows of a cast with the scales that they have in the whole: a matrix of its own. Allocates; several threads may read at
    /// once.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) for a matrix that is no cast, as [`Checkpoint::stored_scheme`], for rows that are not
    /// there, for a first row that is not the first of a group, for transposed codes of a number of rows that is no multiple of 16,
    /// and for a scale that is NaN, infinite or negative.
    pub fn cast_rows(&self, name: &str, rows: Range<usize>) -> Result<HostCastMatrix> {
        let parts = self.listing.parts(name)?;
        let Parts::Cast { scheme, codes, scale } = parts else {
            let found = format!("is {}, and no cast", self.listing.stored_scheme(name)?);
            return Err(self.listing.refuse(name, found, "read it as what products take"));
        };
        let (all, cols) = self.listing.logical_shape(name, &parts)?;
        let [height, _] = scheme.group().extents();
        let height = height.size(all);
        if rows.start > rows.end || rows.end > all || !rows.start.is_multiple_of(height) {
            let found =
                format!("has {all} rows in groups of {height}, and {} to {} were to be read", rows.start, rows.end);
            return Err(self.listing.refuse(name, found, "read whole groups that are there"));
        }
        if scheme.is_transposed() && !rows.len().is_multiple_of(ROWS) {
            let found = format!("has transposed codes, of which rows {} to {} were asked for", rows.start, rows.end);
            let remedy = format!("read a multiple of {ROWS} rows, as its {all} are");
            return Err(self.listing.refuse(name, found, remedy));
        }
        let cannot = |e| self.listing.refuse(name, format!("cannot be used: {e}"), "quantize it again");
        scheme.check_shape(rows.len(), cols).map_err(cannot)?;
        let bits = scheme.format().bits();
        let codes = match scheme.is_transposed() {
            false => {
                self.runs(codes, [1, all * cols * bits / 8], rows.start * cols * bits / 8..rows.end * cols * bits / 8)
            }
            true => self.runs(codes, [cols, all * bits / 8], rows.start * bits / 8..rows.end * bits / 8),
        }?;
        let scales = self.cast_scales(scheme, scale, [all, cols], rows.start / height..rows.end.div_ceil(height))?;
        HostCastMatrix::from_logical(scheme, rows.len(), cols, codes, scales).map_err(cannot)
    }

    /// The scales of these rows of groups, in logical order.
    pub(super) fn cast_scales(
        &self,
        scheme: CastScheme,
        scale: &TensorInfo,
        [rows, cols]: [usize; 2],
        bands: Range<usize>,
    ) -> Result<Vec<f32>> {
        let [all, across] = scheme.group().grid(rows, cols);
        let (first, count) = (bands.start, bands.len());
        let column = 4 * padded(all);
        let bytes = match scheme.scales() {
            CastScales::RowMajor => self.runs(scale, [1, 4 * all * across], 4 * first * across..4 * bands.end * across),
            CastScales::ColumnMajor => self.runs(scale, [across, column], 4 * first..4 * bands.end),
            // Words of four bytes, in the order of columns.
            CastScales::Ue8m0 => self.runs(scale, [across.div_ceil(4), column], 4 * first..4 * bands.end),
        }?;
        let float = |at: usize| f32::from_le_bytes(*bytes[4 * at..].first_chunk().expect("four bytes, by the length"));
        let read = |at: usize| {
            let (r, c) = (at / across, at % across);
            match scheme.scales() {
                CastScales::RowMajor => float(at),
                CastScales::ColumnMajor => float(c * count + r),
                CastScales::Ue8m0 => codec::decode_e8m0(bytes[4 * (c / 4 * count + r) + c % 4]),
            }
        };
        let scales: Vec<f32> = (0..count * across).map(read).collect();
        match scales.iter().position(|scale| !is_scale(*scale)) {
            None => Ok(scales),
            Some(at) => {
                let place = format!("({}, {})", first + at / across, at % across);
                let found = format!("holds {} as scale {place}: every scale is finite, and not negative", scales[at]);
                Err(self.listing.refuse(&scale.name, found, "quantize the matrix again from finite values"))
            }
        }
    }

    /// Tensors of two codes a byte that are no matrix here, and that fit a cast with the scale beside them: what is left of one in a file
    /// that lost the metadata entry which a cast is read by. Formats that are not read here may look so, too.
    ///
    /// (Of a cast with a byte for each code it is said where the matrix is read.)
    pub fn lost_casts(&self) -> Vec<&str> {
        let read: HashSet<&str> = self.quantized().into_iter().collect();
        let is_code = |t: &&TensorInfo| t.dtype == Dtype::U8 && !read.contains(t.name.as_str());
        let codes = self.tensors().iter().filter(is_code).map(|t| t.name.as_str());
        codes.filter(|name| self.listing.is_lost_cast(name)).collect()
    }

    /// The same bytes of each of so many runs of a tensor, which are so long. At once where they are whole.
    fn runs(&self, tensor: &TensorInfo, [count, run]: [usize; 2], part: Range<usize>) -> Result<Vec<u8>> {
        if count == 1 || part.len() == run {
            return self.part(&tensor.name, part.start as u64, (count * part.len()) as u64);
        }
        let mut bytes = vec![0; count * part.len()];
        for (i, bytes) in bytes.chunks_exact_mut(part.len().max(1)).enumerate() {
            self.read(&tensor.name, (i * run + part.start) as u64, bytes)?;
        }
        Ok(bytes)
    }
}

impl Listing {
    pub(super) fn stored_scheme(&self, name: &str) -> Result<StoredScheme> {
        let parts = self.parts(name)?;
        match parts {
            Parts::Cast { scheme, .. } => {
                self.logical_shape(name, &parts)?;
                Ok(StoredScheme::Cast(scheme))
            }
            _ => Ok(StoredScheme::Product(self.reading(name, &parts)?.scheme)),
        }
    }

    /// True if the tensors of a matrix fit a cast, and no metadata say what it is.
    pub(super) fn is_lost_cast(&self, name: &str) -> bool {
        let parts = self.get(name).zip(self.ending(name, SCALE_SUFFIXES[0]));
        let Some((codes, scale)) = parts.filter(|_| self.written(name).is_none()) else { return false };
        let [lines, width] = *codes.shape.as_slice() else { return false };
        CastScheme::all().any(|scheme| {
            let Some(length) = width.checked_mul(8 / scheme.format().bits()) else { return false };
            let (rows, cols) = if scheme.is_transposed() { (length, lines) } else { (lines, length) };
            let fits = |found: &TensorInfo, want: Tensor| (found.dtype, &found.shape) == (want.dtype, &want.shape);
            lines > 0
                && width > 0
                && scheme.check_shape(rows, cols).is_ok()
                && fits(codes, cast_codes(scheme, rows, cols))
                && fits(scale, cast_scales(scheme, rows, cols))
        })
    }

    /// What to do about tensors of a matrix that do not fit, in words: `remedy`, but for a cast that lost its metadata.
    pub(super) fn or_lost_cast(&self, name: &str, remedy: &str) -> String {
        if !self.is_lost_cast(name) {
            return remedy.into();
        }
        format!(
            "its tensors fit a cast, which no product reads, and the metadata entry {RECIPE_KEY}{name}, which a cast is read by, \
             is not in the file: write it with quantize --group again, or copy it with the __metadata__ of its header"
        )
    }

    /// Rows and columns of a cast; refuses tensors that are not its.
    pub(super) fn cast_shape(
        &self,
        name: &str,
        scheme: CastScheme,
        [codes, scale]: [&TensorInfo; 2],
    ) -> Result<(usize, usize)> {
        let again = "quantize it again";
        let [lines, width] = self.two_dimensions(name)?;
        let packed = if scheme.format() == CodeFormat::E2M1 { 2 } else { 1 };
        let length = width.checked_mul(packed).filter(|_| lines > 0 && width > 0).ok_or_else(|| {
            self.refuse(
                name,
                format!("has shape [{lines}, {width}]"),
                "a cast has rows and columns, each of them below 2^31: quantize it again",
            )
        })?;
        let (rows, cols) = if scheme.is_transposed() { (length, lines) } else { (lines, length) };
        scheme.check_shape(rows, cols).map_err(|e| self.refuse(name, format!("cannot be used: {e}"), again))?;
        for (found, want) in [(codes, cast_codes(scheme, rows, cols)), (scale, cast_scales(scheme, rows, cols))] {
            if (found.dtype, &found.shape) != (want.dtype, &want.shape) {
                let found_as = format!(
                    "is {} {:?}, but must be {} {:?} for {rows} x {cols} cast to {scheme}",
                    found.dtype, found.shape, want.dtype, want.shape
                );
                return Err(self.refuse(&found.name, found_as, again));
            }
        }
        Ok((rows, cols))
    }
}
