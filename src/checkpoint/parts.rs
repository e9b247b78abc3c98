//! Which tensors of a listing are the parts of a matrix, and what is refused where they are not all there.

use safetensors::Dtype;

use super::cast_recipe::cast_scheme;
use super::comfy;
use super::header::{RECIPE_KEY, TensorInfo};
use super::listing::Listing;
use super::names::{
    BLOCK_SCALES_SUFFIX, BLOCKS_SUFFIX, DIVISOR_SUFFIX, PACKED_SUFFIX, SCALE_ENDINGS, SCALE_SUFFIXES, SECOND_SUFFIX,
    code_format, is_e8m0, is_scale_beside, old_comfy_scale, scaled_beside,
};
use super::recipe::Reading;
use crate::error::{Error, Result};
use crate::format::{CastScheme, Fp8Format, Scheme};

/// Columns that one E4M3 scale of NVFP4 serves, and the bytes that hold them.
pub(super) const NVFP4_BLOCK: usize = 16;
const NVFP4_BLOCK_BYTES: usize = 8;
/// Bytes of a block of MXFP4, 32 columns.
const MX_BLOCK_BYTES: usize = 16;

/// What to do about a scale of another shape.
pub(super) const NEVER_RESHAPED: &str =
    "a scale is never reshaped: fetch the file again, or write it again with the scales that its codes have";

/// The tensors of a matrix.
pub(super) enum Parts<'a> {
    /// One byte a code, and one kind of scales.
    Bytes { format: Fp8Format, codes: &'a TensorInfo, scale: &'a TensorInfo },
    /// MXFP4: two codes a byte, one byte of scale for 32 columns.
    Mxfp4 { codes: &'a TensorInfo, scale: &'a TensorInfo },
    /// Two codes a byte, and two levels of scales.
    Packed { codes: &'a TensorInfo, scale: &'a TensorInfo, second: &'a TensorInfo, meaning: Second },
    /// The result of a cast, told by the metadata: no product reads it.
    Cast { scheme: CastScheme, codes: &'a TensorInfo, scale: &'a TensorInfo },
}

/// What the second-level scale of a file does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Second {
    /// ModelOpt: multiplies.
    Factor,
    /// compressed-tensors: divides.
    Divisor,
}

impl<'a> Parts<'a> {
    pub(super) fn codes(&self) -> &'a TensorInfo {
        match *self {
            Self::Bytes { codes, .. }
            | Self::Packed { codes, .. }
            | Self::Mxfp4 { codes, .. }
            | Self::Cast { codes, .. } => codes,
        }
    }

    pub(super) fn tensors(&self) -> Vec<&'a TensorInfo> {
        match *self {
            Self::Bytes { codes, scale, .. } | Self::Mxfp4 { codes, scale } | Self::Cast { codes, scale, .. } => {
                vec![codes, scale]
            }
            Self::Packed { codes, scale, second, .. } => vec![codes, scale, second],
        }
    }
}

impl Listing {
    pub(super) fn quantized(&self) -> Vec<&str> {
        let is_codes = |t: &&TensorInfo| !self.is_scale(&t.name) && !comfy::is_marker(t);
        let tensors = self.header.tensors.iter().filter(is_codes);
        tensors
            .filter_map(|t| match (t.name.strip_suffix(PACKED_SUFFIX), t.name.strip_suffix(BLOCKS_SUFFIX)) {
                (Some(name), _) if self.is_compressed(name) => Some(name),
                (_, Some(name)) if self.is_of_blocks(name) => Some(name),
                _ if code_format(t.dtype).is_some() || self.is_modelopt(t) => Some(t.name.as_str()),
                // Of a type that is not read as codes: reading them is refused.
                _ => self.said_matrix(&t.name),
            })
            .collect()
    }

    pub(super) fn is_scale(&self, name: &str) -> bool {
        is_scale_beside(name, |name| self.get(name).is_some())
            || name.strip_suffix(BLOCK_SCALES_SUFFIX).is_some_and(|name| self.is_of_blocks(name))
    }

    /// The matrix whose codes are there and that a tensor is a scale of by its name.
    fn scaled_there<'n>(&self, name: &'n str) -> Option<&'n str> {
        scaled_beside(name, |name| self.get(name).is_some())
    }

    pub(super) fn tensors_of(&self, name: &str) -> Result<Vec<String>> {
        Ok(self.parts(name)?.tensors().iter().map(|t| t.name.clone()).collect())
    }

    pub(super) fn written(&self, name: &str) -> Option<&String> {
        self.header.metadata.get(&[RECIPE_KEY, name].concat())
    }

    /// True if `NAME_packed` is NVFP4 of compressed-tensors. (Its other packed formats have other types or no global scale.)
    pub(super) fn is_compressed(&self, name: &str) -> bool {
        let dtype = |suffix: &str| self.ending(name, suffix).map(|t| t.dtype);
        let is_scale = |dtype| matches!(dtype, Dtype::F8_E4M3 | Dtype::U8 | Dtype::F8_E8M0);
        // Asked of every name: most have no such tensor, and no more is asked of them.
        dtype(PACKED_SUFFIX) == Some(Dtype::U8)
            && (dtype(SCALE_SUFFIXES[0]).is_some_and(is_scale) || dtype(DIVISOR_SUFFIX).is_some())
    }

    /// True if `NAME_blocks` and `NAME_scales` are MXFP4 as gpt-oss has it, by their names and what little else has: their shapes are
    /// those of [`Listing::check_blocks`], or refused there.
    fn is_of_blocks(&self, name: &str) -> bool {
        // Asked of every name: most have no such tensor, and no more is asked of them.
        let blocks = self.ending(name, BLOCKS_SUFFIX).filter(|t| t.dtype == Dtype::U8 && t.shape.len() > 2);
        let Some((blocks, scale)) = blocks.zip(self.ending(name, BLOCK_SCALES_SUFFIX)) else { return false };
        let (bytes, rank, scales) = (blocks.shape.last().copied().unwrap_or(0), blocks.shape.len(), &scale.shape);
        // Of a row in one piece, a scale for each 16 bytes of it.
        let is_in_one_piece =
            || scales.len() == rank && scales.last().and_then(|n| n.checked_mul(MX_BLOCK_BYTES)) == Some(bytes);
        // Other formats have blocks of 16 bytes, too (ggml's Q4_0), but of matrices, and with floats.
        match is_e8m0(scale.dtype) {
            true => bytes == MX_BLOCK_BYTES || scales.len() + 1 == rank || is_in_one_piece(),
            false => bytes == MX_BLOCK_BYTES && rank > 3,
        }
    }

    /// Refuses blocks of gpt-oss that are not `[.., k/32, 16]` with scales `[.., k/32]`.
    fn check_blocks(&self, codes: &TensorInfo, scale: &TensorInfo) -> Result<()> {
        let bytes = MX_BLOCK_BYTES;
        if let [rest @ .., last] = codes.shape.as_slice()
            && *last == bytes
            && !is_e8m0(scale.dtype)
        {
            let (dtype, shape) = (scale.dtype, &scale.shape);
            let found = format!(
                "is {dtype} {shape:?} beside blocks of {bytes} bytes, {} {:?}, and those that are read here, MXFP4, have scales in U8 {rest:?} (E8M0)",
                codes.name, codes.shape
            );
            let remedy = "if it is of another format, dequantize it with what wrote it; else fetch the file again";
            return Err(self.refuse(&scale.name, found, remedy));
        }
        let refuse = |tensor: &TensorInfo, want: &[usize]| {
            let must = if std::ptr::eq(tensor, codes) { Dtype::U8 } else { e8m0_like(tensor) };
            let found = format!("is {} {:?}, but must be {must} {want:?}", tensor.dtype, tensor.shape);
            let of = if std::ptr::eq(tensor, codes) { "32 columns a block" } else { "its blocks" };
            Err(self.refuse(&tensor.name, format!("{found} for {of}, as gpt-oss has them"), NEVER_RESHAPED))
        };
        match codes.shape.as_slice() {
            [rest @ .., last] if *last == bytes && rest.len() > 1 => {
                match is_e8m0(scale.dtype) && scale.shape == rest {
                    true => Ok(()),
                    false => refuse(scale, rest),
                }
            }
            [rest @ .., last] => {
                // Of a row in one piece its blocks are known again.
                let blocks = if rest.len() > 2 { None } else { Some(last.div_ceil(bytes)) };
                refuse(codes, &rest.iter().copied().chain(blocks).chain([bytes]).collect::<Vec<_>>())
            }
            [] => refuse(codes, &[bytes]),
        }
    }

    /// True if the metadata say that a matrix is MXFP4: its bytes could be anything.
    fn is_written_as_mxfp4(&self, name: &str) -> bool {
        let read = self.written(name).and_then(|text| Reading::from_json(text).ok());
        read.is_some_and(|reading| reading.scheme == Scheme::Mxfp4)
    }

    /// Dimensions of the values of a matrix: rows and columns, or of experts in one tensor more, all but the last of which are its
    /// rows.
    pub(super) fn dimensions(&self, name: &str, parts: &Parts<'_>) -> Result<Vec<usize>> {
        let (rows, cols) = self.logical_shape(name, parts)?;
        Ok(match parts.codes().shape.as_slice() {
            [outer @ .., _, _] if outer.len() > 1 => outer.iter().copied().chain([cols]).collect(),
            _ => vec![rows, cols],
        })
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
        let get = |suffix: &str| self.ending(&tensor.name, suffix);
        let scale = || get(SCALE_SUFFIXES[0]).is_some_and(|t| t.dtype == Dtype::F8_E4M3);
        tensor.dtype == Dtype::U8 && (scale() || get(SECOND_SUFFIX).is_some() || self.written(&tensor.name).is_some())
    }

    pub(super) fn parts(&self, name: &str) -> Result<Parts<'_>> {
        if let Some(scheme) = self.written(name).and_then(|text| cast_scheme(text)) {
            self.check_said_type(name)?;
            let scheme = scheme.map_err(|e| self.refuse(name, e, "quantize it again"))?;
            let (codes, own) = (self.info(name)?, [name, SCALE_SUFFIXES[0]].concat());
            let scale = self.get(&own).ok_or_else(|| {
                let found = format!("is cast to {scheme} but has no scale {own}{}", self.beside(name, &[], "cast"));
                self.refuse(name, found, "use a file that carries its scales; none is ever assumed")
            })?;
            return Ok(Parts::Cast { scheme, codes, scale });
        }
        if self.is_compressed(name) {
            self.refuse_plain_too(name, PACKED_SUFFIX)?;
            let codes = self.info(&format!("{name}{PACKED_SUFFIX}"))?;
            let scale = self.ending(name, SCALE_SUFFIXES[0]);
            if let Some(scale) = scale.filter(|scale| is_e8m0(scale.dtype))
                && self.ending(name, DIVISOR_SUFFIX).is_none()
            {
                return Ok(Parts::Mxfp4 { codes, scale });
            }
            return Ok(Parts::Packed {
                codes,
                scale: self.companion(name, SCALE_SUFFIXES[0])?,
                second: self.companion(name, DIVISOR_SUFFIX)?,
                meaning: Second::Divisor,
            });
        }
        if self.is_of_blocks(name) {
            self.refuse_plain_too(name, BLOCKS_SUFFIX)?;
            let part = |suffix: &str| self.info(&format!("{name}{suffix}"));
            let (codes, scale) = (part(BLOCKS_SUFFIX)?, part(BLOCK_SCALES_SUFFIX)?);
            self.check_blocks(codes, scale)?;
            return Ok(Parts::Mxfp4 { codes, scale });
        }
        self.check_said_type(name)?;
        let codes = self.info(name)?;
        if let Some(format) = code_format(codes.dtype) {
            if codes.shape.len() > 2 {
                let found = format!(
                    "holds FP8 codes of shape {:?}, in more than two dimensions (experts in one tensor, convolutions), which are not read here",
                    codes.shape
                );
                return Err(self.refuse(name, found, "dequantize it with what wrote it, or quantize the plain model"));
            }
            let scale = self.fp8_scale(name)?;
            if self.ending(name, SECOND_SUFFIX).is_some() {
                let found = format!("is FP8 with a second scale {name}{SECOND_SUFFIX}, which no FP8 scheme has");
                return Err(self.refuse(name, found, "it is of a format that is not read here"));
            }
            return Ok(Parts::Bytes { format, codes, scale });
        }
        if codes.dtype == Dtype::U8 && self.is_written_as_mxfp4(name) {
            let remedy = "use a file that carries its scales; none is ever assumed";
            let scale = self.ending(name, SCALE_SUFFIXES[0]).ok_or_else(|| {
                let beside = self.beside(name, &[], "MXFP4");
                self.refuse(name, format!("is MXFP4 but has no scale {name}{}{beside}", SCALE_SUFFIXES[0]), remedy)
            })?;
            return Ok(Parts::Mxfp4 { codes, scale });
        }
        if self.is_modelopt(codes) {
            // A broken entry, of a cast perhaps, says more than a scale that is not there.
            let companion = |suffix: &str| {
                self.companion(name, suffix).map_err(|missing| {
                    let broken = self.written(name).and_then(|text| Reading::from_json(text).err());
                    broken.map_or(missing, |e| self.refuse(name, e, "quantize it again"))
                })
            };
            let [scale, second] = [companion(SCALE_SUFFIXES[0])?, companion(SECOND_SUFFIX)?];
            return Ok(Parts::Packed { codes, scale, second, meaning: Second::Factor });
        }
        if let Some(base) = self.scaled_there(name) {
            return Err(self.is_the_scale(name, base));
        }
        let matrix = name.strip_suffix(PACKED_SUFFIX).filter(|n| self.is_compressed(n));
        let remedy = match matrix {
            Some(matrix) => format!("its matrix is named {matrix}"),
            None => self.or_lost_cast(
                name,
                "FP8 matrices have dtype F8_E4M3 or F8_E5M2, NVFP4 and MXFP4 ones U8 and scales of blocks; quantize plain ones first",
            ),
        };
        Err(self.refuse(name, format!("has dtype {}", codes.dtype), remedy))
    }

    /// Refuses a matrix whose codes have this ending, and whose name another tensor has: its plain values most likely.
    fn refuse_plain_too(&self, name: &str, ending: &str) -> Result<()> {
        let Some((plain, codes)) = self.get(name).zip(self.ending(name, ending)) else { return Ok(()) };
        let (place, [first, second]) = match self.files.len() {
            1 => (" in the file", Default::default()),
            _ => (" there", [plain, codes].map(|tensor| format!(" in {}", self.files[tensor.file].display()))),
        };
        let found = format!("is{place} twice, as {name}{first} and as {name}{ending}{second}");
        Err(self.refuse(name, found, "keep one of the two"))
    }

    /// What is said of a scale where a matrix was asked for.
    fn is_the_scale(&self, name: &str, base: &str) -> Error {
        self.refuse(name, format!("is the scale of {base}, and no matrix"), format!("give {base}"))
    }

    /// The matrix whose codes are there and that a tensor has zero points of by its name. compressed-tensors 0.20.0 stores
    /// none for symmetric schemes (compressors/base.py), older ones stored zeros in the type of the codes.
    fn zero_points_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let base = name.strip_suffix("_zero_point")?;
        ["", PACKED_SUFFIX].iter().any(|codes| self.ending(base, codes).is_some()).then_some(base)
    }

    /// The one scale of an FP8 matrix.
    fn fp8_scale(&self, name: &str) -> Result<&TensorInfo> {
        let old = old_comfy_scale(name);
        let names = SCALE_SUFFIXES.into_iter().map(|suffix| [name, suffix].concat()).chain(old.clone());
        let found: Vec<_> = names.filter_map(|name| self.get(&name)).collect();
        if let Some(base) = self.zero_points_of(name).filter(|_| found.is_empty()) {
            let of = self.get(name).map(|t| format!(" in {} {:?}", t.dtype, t.shape)).unwrap_or_default();
            let found = format!("holds zero points of {base}{of}, and codes that are read here have none");
            let remedy = "if all are 0, as of a symmetric scheme, write the file without it, else dequantize the matrix with what wrote it";
            return Err(self.refuse(name, found, remedy));
        }
        match *found.as_slice() {
            [scale] => Ok(scale),
            [] => Err(match (self.scaled_there(name), scaled(name)) {
                (Some(base), _) => self.is_the_scale(name, base),
                (None, Some(base)) => self.refuse(
                    name,
                    format!("is FP8 with the name of a scale of {base}, and neither that nor a scale of its own is in the file"),
                    "fetch or write the file again",
                ),
                (None, None) => {
                    let names = match old {
                        Some(old) => format!("none of {name}_scale, {name}_scale_inv and {old}"),
                        None => format!("neither {name}_scale nor {name}_scale_inv"),
                    };
                    let found =
                        format!("is FP8 but has no scale: {names} is in the file{}", self.beside(name, &[], "FP8"));
                    self.refuse(name, found, "use a file that carries its scales; none is ever assumed")
                }
            }),
            _ => {
                let names: Vec<_> = found.iter().map(|t| t.name.as_str()).collect();
                let found = format!("has two scales, {}", names.join(" and "));
                Err(self.refuse(name, found, "keep the one that multiplies its codes"))
            }
        }
    }

    /// The scales by their names that are beside a matrix which lacks one, but for those with the endings of its `own`: to go on with in the
    /// refusal.
    fn beside(&self, name: &str, own: &[&str], what: &str) -> String {
        let endings = SCALE_ENDINGS.iter().chain(&[BLOCK_SCALES_SUFFIX]).filter(|ending| !own.contains(ending));
        let old = old_comfy_scale(name);
        let names = endings.map(|ending| [name, ending].concat()).chain(old);
        let found: Vec<_> = names.filter(|name| self.get(name).is_some()).collect();
        match found.as_slice() {
            [] => String::new(),
            [one] => format!("; beside it is {one}, which no {what} has"),
            all => format!("; beside it are {}, which no {what} has", all.join(" and ")),
        }
    }

    /// A scale of an NVFP4 matrix.
    fn companion(&self, name: &str, suffix: &str) -> Result<&TensorInfo> {
        self.ending(name, suffix).ok_or_else(|| {
            let own = [SCALE_SUFFIXES[0], SECOND_SUFFIX, DIVISOR_SUFFIX];
            let found = format!("is NVFP4 but has no scale {name}{suffix}{}", self.beside(name, &own, "NVFP4"));
            self.refuse(name, found, "use a file that carries both levels of scales; none is ever assumed")
        })
    }

    /// Rows and columns of the matrix; refuses what no matrix has.
    pub(super) fn logical_shape(&self, name: &str, parts: &Parts<'_>) -> Result<(usize, usize)> {
        let per_byte = match *parts {
            Parts::Cast { scheme, codes, scale } => return self.cast_shape(name, scheme, [codes, scale]),
            Parts::Bytes { .. } => 1,
            Parts::Packed { .. } | Parts::Mxfp4 { .. } => 2,
        };
        let [rows, width] = match parts.codes().shape.as_slice() {
            // Blocks of gpt-oss: rows of all experts, one after the other.
            [outer @ .., blocks, bytes] if outer.len() > 1 && matches!(parts, Parts::Mxfp4 { .. }) => {
                let rows = outer.iter().try_fold(1usize, |rows, n| rows.checked_mul(*n));
                let sizes = rows.zip(blocks.checked_mul(*bytes)).map(|(rows, width)| [rows, width]);
                sizes.ok_or_else(|| {
                    self.refuse(name, format!("has shape {:?}", parts.codes().shape), "no matrix has so many rows")
                })?
            }
            _ => self.two_dimensions(&parts.codes().name)?,
        };
        if rows == 0 || width == 0 {
            let found = format!("has shape [{rows}, {width}], and an empty matrix has no scheme");
            return Err(self.refuse(
                name,
                found,
                "give a matrix that has rows and columns, or take it out of the file",
            ));
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
}

/// The type that MX scales must have: of the two that are read, that which they have, so that their shape alone is said to be wrong.
pub(super) fn e8m0_like(scale: &TensorInfo) -> Dtype {
    if is_e8m0(scale.dtype) { scale.dtype } else { Dtype::U8 }
}

/// The matrix that a tensor is a scale of by its name alone.
fn scaled(name: &str) -> Option<&str> {
    SCALE_ENDINGS.iter().find_map(|ending| name.strip_suffix(ending))
}
