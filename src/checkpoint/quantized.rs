//! The quantized matrices of a [`Checkpoint`]: which tensors they are made of, how they are read, and what is refused.

use std::ops::Range;

use safetensors::Dtype;

use super::header::TensorInfo;
use super::listing::Listing;
use super::names::{
    DIVISOR_SUFFIX, NibbleOrder, PACKED_SUFFIX, SCALE_SUFFIXES, SECOND_SUFFIX, code_format, is_e8m0, recognise,
    recognise_mx, wide_dtype,
};
use super::reader::{Checkpoint, widen};
use super::recipe::{Reading, WrittenRecipe};
use crate::error::Result;
use crate::format::{CodeFormat, Extent, Fp8Format, HostQuantMatrix, Scheme};

/// Columns that one E4M3 scale of NVFP4 serves, and the bytes that hold them.
const NVFP4_BLOCK: usize = 16;
const NVFP4_BLOCK_BYTES: usize = 8;

/// The tensors of a matrix.
enum Parts<'a> {
    /// One byte a code, and one kind of scales.
    Bytes { format: Fp8Format, codes: &'a TensorInfo, scale: &'a TensorInfo },
    /// Two codes a byte, and two levels of scales.
    Packed { codes: &'a TensorInfo, scale: &'a TensorInfo, second: &'a TensorInfo, meaning: Second },
}

/// What the second-level scale of a file does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    /// ModelOpt: multiplies.
    Factor,
    /// compressed-tensors: divides.
    Divisor,
}

impl<'a> Parts<'a> {
    fn codes(&self) -> &'a TensorInfo {
        match *self {
            Self::Bytes { codes, .. } | Self::Packed { codes, .. } => codes,
        }
    }

    fn tensors(&self) -> Vec<&'a TensorInfo> {
        match *self {
            Self::Bytes { codes, scale, .. } => vec![codes, scale],
            Self::Packed { codes, scale, second, .. } => vec![codes, scale, second],
        }
    }
}

impl Checkpoint {
    /// Names of what is quantized: FP8 or packed NVFP4, and not the scale of another tensor. That of a matrix of
    /// compressed-tensors is without `_packed`.
    ///
    /// Tensors with a missing scale are among them, and those that are not 2-D; reading one is then refused.
    pub fn quantized(&self) -> Vec<&str> {
        self.listing.quantized()
    }

    /// True for the scale of another tensor of the file.
    pub fn is_scale(&self, name: &str) -> bool {
        self.listing.is_scale(name)
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
            Parts::Bytes { scale, .. } | Parts::Packed { scale, .. } => scale.name.clone(),
        })
    }

    /// How a quantized matrix is read, by the rules of this module.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if it is not a quantized 2-D matrix, a scale is missing or fits no scheme, or the nibble order asked
    /// for is not that of the metadata.
    pub fn scheme(&self, name: &str) -> Result<Scheme> {
        self.listing.scheme(name)
    }

    /// The recipe a matrix was written with; `None` where the file does not say.
    ///
    /// # Errors
    /// [`Error::File`](crate::Error::File) if the metadata entry is broken or names an unknown rule.
    pub fn recipe(&self, name: &str) -> Result<Option<WrittenRecipe>> {
        if !self.listing.is_compressed(name) {
            self.info(name)?;
        }
        match self.listing.written(name) {
            Some(text) => WrittenRecipe::from_json(text)
                .map(Some)
                .map_err(|e| self.listing.refuse(name, e, "read it with the version that wrote it")),
            None => Ok(None),
        }
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
        let groups = match scheme.spec().group_rows {
            Extent::All => 0..1,
            _ => rows.start / group..rows.end.div_ceil(group),
        };
        let [_, across] = scheme.scale_grid(all, cols);
        let mut codes = self.slice(parts.codes(), rows.clone(), parts.codes().shape[1])?;
        let floats = |tensor, meaning| self.float_scales(tensor, meaning, groups.clone(), across);
        let [_, blocks] = scheme.block_grid(all, cols);
        let bytes = |tensor, bad: fn(u8) -> bool| self.block_scales(tensor, bad, rows.clone(), blocks);
        let (scales, block_scales) = match parts {
            Parts::Bytes { scale, .. } if is_e8m0(scale.dtype) => (Vec::new(), bytes(scale, |b| b == 0xFF)?),
            Parts::Bytes { scale, .. } => (floats(scale, Second::Factor)?, Vec::new()),
            Parts::Packed { scale, second, meaning, .. } => (floats(second, meaning)?, bytes(scale, |b| b >= 0x7F)?),
        };
        if reading.nibble_order == Some(NibbleOrder::HighFirst) {
            codes.iter_mut().for_each(|pair| *pair = pair.rotate_left(4));
        }
        HostQuantMatrix::from_block_logical(scheme, rows.len(), cols, codes, &scales, &block_scales)
            .map(|matrix| matrix.assume_basis(reading.basis))
            .map_err(|e| self.listing.refuse(name, format!("cannot be used: {e}"), "quantize it again"))
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
        if wide_dtype(scale.dtype).is_none() {
            let remedy = "such scales are F32 (BF16 and F16 are widened)";
            return Err(self.listing.refuse(&scale.name, format!("has dtype {}", scale.dtype), remedy));
        }
        let stored = widen(scale.dtype, &self.slice(scale, groups.clone(), across)?);
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
    ) -> Result<Vec<u8>> {
        let bytes = self.slice(scale, rows.clone(), blocks)?;
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

impl Listing {
    pub(super) fn quantized(&self) -> Vec<&str> {
        let tensors = self.header.tensors.iter().filter(|t| !self.is_scale(&t.name));
        tensors
            .filter_map(|t| match t.name.strip_suffix(PACKED_SUFFIX) {
                Some(name) if self.is_compressed(name) => Some(name),
                _ if code_format(t.dtype).is_some() || self.is_modelopt(t) => Some(t.name.as_str()),
                _ => None,
            })
            .collect()
    }

    pub(super) fn is_scale(&self, name: &str) -> bool {
        let base_is_there = |suffix: &str, packed: &str| {
            name.strip_suffix(suffix).is_some_and(|base| self.get(&format!("{base}{packed}")).is_some())
        };
        [SCALE_SUFFIXES[0], SCALE_SUFFIXES[1], SECOND_SUFFIX].iter().any(|s| base_is_there(s, ""))
            || [SCALE_SUFFIXES[0], DIVISOR_SUFFIX].iter().any(|s| base_is_there(s, PACKED_SUFFIX))
    }

    pub(super) fn tensors_of(&self, name: &str) -> Result<Vec<String>> {
        Ok(self.parts(name)?.tensors().iter().map(|t| t.name.clone()).collect())
    }

    pub(super) fn scheme(&self, name: &str) -> Result<Scheme> {
        Ok(self.reading(name, &self.parts(name)?)?.scheme)
    }

    fn written(&self, name: &str) -> Option<&String> {
        self.header.metadata.get(&format!("scaled_gemm.{name}"))
    }

    /// True if `NAME_packed` is NVFP4 of compressed-tensors. (Its other packed formats have other types or no global scale.)
    fn is_compressed(&self, name: &str) -> bool {
        let has = |suffix: &str, dtype| self.get(&format!("{name}{suffix}")).is_some_and(|t| t.dtype == dtype);
        let divisor = self.get(&format!("{name}{DIVISOR_SUFFIX}")).is_some();
        has(PACKED_SUFFIX, Dtype::U8) && (has(SCALE_SUFFIXES[0], Dtype::F8_E4M3) || divisor)
    }

    /// What a tensor is that [`Listing::quantized`] leaves out though it holds codes.
    pub(super) fn taken_as(&self, name: &str) -> String {
        match name.strip_suffix(PACKED_SUFFIX).filter(|base| self.is_compressed(base)) {
            Some(base) => {
                let of = [SCALE_SUFFIXES[0], DIVISOR_SUFFIX].map(|s| format!("{base}{s}"));
                let there: Vec<_> = of.into_iter().filter(|scale| self.get(scale).is_some()).collect();
                format!("would be the codes of a matrix {base}, as {} is there", there.join(" and "))
            }
            None => "would be the scale of another tensor".into(),
        }
    }

    /// True if a U8 tensor is NVFP4 as ModelOpt and this crate write it, complete or not.
    fn is_modelopt(&self, tensor: &TensorInfo) -> bool {
        let name = &tensor.name;
        let scale = self.get(&format!("{name}{}", SCALE_SUFFIXES[0])).is_some_and(|t| t.dtype == Dtype::F8_E4M3);
        let second = self.get(&format!("{name}{SECOND_SUFFIX}")).is_some();
        tensor.dtype == Dtype::U8 && (scale || second || self.written(name).is_some())
    }

    fn parts(&self, name: &str) -> Result<Parts<'_>> {
        if self.is_compressed(name) {
            if self.get(name).is_some() {
                return Err(self.refuse(
                    name,
                    format!("is in the file twice, as {name} and as {name}{PACKED_SUFFIX}"),
                    "keep one of the two",
                ));
            }
            return Ok(Parts::Packed {
                codes: self.info(&format!("{name}{PACKED_SUFFIX}"))?,
                scale: self.companion(name, SCALE_SUFFIXES[0])?,
                second: self.companion(name, DIVISOR_SUFFIX)?,
                meaning: Second::Divisor,
            });
        }
        let codes = self.info(name)?;
        if let Some(format) = code_format(codes.dtype) {
            let scale = self.fp8_scale(name)?;
            if self.get(&format!("{name}{SECOND_SUFFIX}")).is_some() {
                let found = format!("is FP8 with a second scale {name}{SECOND_SUFFIX}, which no FP8 scheme has");
                return Err(self.refuse(name, found, "it is of a format that is not read here"));
            }
            return Ok(Parts::Bytes { format, codes, scale });
        }
        if self.is_modelopt(codes) {
            return Ok(Parts::Packed {
                codes,
                scale: self.companion(name, SCALE_SUFFIXES[0])?,
                second: self.companion(name, SECOND_SUFFIX)?,
                meaning: Second::Factor,
            });
        }
        let matrix = name.strip_suffix(PACKED_SUFFIX).filter(|n| self.is_compressed(n));
        let remedy = match matrix {
            Some(matrix) => format!("its matrix is named {matrix}"),
            None => "FP8 matrices have dtype F8_E4M3 or F8_E5M2, NVFP4 ones U8 and an F8_E4M3 scale; quantize plain ones first"
                .into(),
        };
        Err(self.refuse(name, format!("has dtype {}", codes.dtype), remedy))
    }

    /// The one scale of an FP8 matrix.
    fn fp8_scale(&self, name: &str) -> Result<&TensorInfo> {
        let found: Vec<_> = SCALE_SUFFIXES.iter().filter_map(|s| self.get(&format!("{name}{s}"))).collect();
        match *found.as_slice() {
            [scale] => Ok(scale),
            [] => Err(self.refuse(
                name,
                format!("is FP8 but has no scale: neither {name}_scale nor {name}_scale_inv is in the file"),
                "use a file that carries its scales; none is ever assumed",
            )),
            _ => {
                let names: Vec<_> = found.iter().map(|t| t.name.as_str()).collect();
                let found = format!("has two scales, {}", names.join(" and "));
                Err(self.refuse(name, found, "keep the one that multiplies its codes"))
            }
        }
    }

    /// A scale of an NVFP4 matrix.
    fn companion(&self, name: &str, suffix: &str) -> Result<&TensorInfo> {
        self.get(&format!("{name}{suffix}")).ok_or_else(|| {
            let found = format!("is NVFP4 but has no scale {name}{suffix}");
            self.refuse(name, found, "use a file that carries both levels of scales; none is ever assumed")
        })
    }

    /// Rows and columns of the matrix; refuses what no matrix has.
    fn logical_shape(&self, name: &str, parts: &Parts<'_>) -> Result<(usize, usize)> {
        let per_byte = match parts {
            Parts::Bytes { .. } => 1,
            Parts::Packed { .. } => 2,
        };
        let [rows, width] = self.two_dimensions(&parts.codes().name)?;
        if rows == 0 || width == 0 {
            return Err(self.refuse(name, format!("has shape [{rows}, {width}]"), "an empty matrix has no scheme"));
        }
        if per_byte == 2 && !width.is_multiple_of(NVFP4_BLOCK_BYTES) {
            let found =
                format!("has {width} bytes a row, but blocks of {NVFP4_BLOCK} codes take {NVFP4_BLOCK_BYTES} each");
            return Err(self.refuse(name, found, "pad its columns with zeros before quantizing"));
        }
        let cols = width.checked_mul(per_byte).ok_or_else(|| {
            self.refuse(name, format!("has shape [{rows}, {width}]"), "no matrix has so many columns")
        })?;
        Ok((rows, cols))
    }

    /// Scheme, basis and order of the codes.
    fn reading(&self, name: &str, parts: &Parts<'_>) -> Result<Reading> {
        let (rows, cols) = self.logical_shape(name, parts)?;
        let written = match self.written(name) {
            Some(text) => Some(Reading::from_json(text).map_err(|e| self.refuse(name, e, "quantize it again"))?),
            None => None,
        };
        let metadata = written.map(|w| w.scheme);
        let shape_fault = |e: String| self.refuse(name, e.replace("NAME", name), "a scale is never reshaped");
        let ending = |scale: &TensorInfo| scale.name.get(name.len()..).unwrap_or_default().to_string();
        let scheme = match *parts {
            Parts::Bytes { format, scale, .. } if is_e8m0(scale.dtype) => {
                recognise_mx(format, [rows, cols], &ending(scale), &scale.shape, metadata).map_err(shape_fault)?
            }
            Parts::Bytes { format, scale, .. } => {
                recognise(format.into(), [rows, cols], &ending(scale), &scale.shape, metadata).map_err(shape_fault)?
            }
            Parts::Packed { scale, second, meaning, .. } => {
                let blocks = [rows, cols / NVFP4_BLOCK];
                if scale.dtype != Dtype::F8_E4M3 || scale.shape != blocks {
                    let found = format!(
                        "is {} {:?}, but must be F8_E4M3 {blocks:?} for {rows} x {cols}",
                        scale.dtype, scale.shape
                    );
                    return Err(self.refuse(&scale.name, found, "a scale is never reshaped"));
                }
                let scheme = recognise(CodeFormat::E2M1, [rows, cols], &ending(second), &second.shape, metadata)
                    .map_err(shape_fault)?;
                if meaning == Second::Divisor && scheme != Scheme::Nvfp4 {
                    let found = format!("has shape {:?}, but one divisor serves the whole matrix", second.shape);
                    return Err(self.refuse(&second.name, found, "a scale is never reshaped"));
                }
                scheme
            }
        };
        let said = written.and_then(|w| w.nibble_order);
        if let (Some(said), Some(asked)) = (said, self.nibble_order)
            && said != asked
        {
            let found = format!("is {} by its metadata, and was to be read {}", said.name(), asked.name());
            return Err(self.refuse(name, found, "leave the nibble order out"));
        }
        let nibble_order = match parts {
            Parts::Bytes { .. } => None,
            Parts::Packed { .. } => Some(said.or(self.nibble_order).unwrap_or_default()),
        };
        Ok(Reading { scheme, basis: written.map(|w| w.basis).unwrap_or_default(), nibble_order })
    }
}
