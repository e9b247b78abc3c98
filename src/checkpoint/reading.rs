//! How a matrix is read that a listing has the parts of: scheme, basis, and orders of codes and scales. What fits no scheme is refused.

use safetensors::Dtype;

use super::comfy;
use super::header::TensorInfo;
use super::listing::Listing;
use super::names::{Dialect, NibbleOrder, SCALE_SUFFIXES, is_e8m0, recognise, recognise_e8m0, wide_dtype};
use super::parts::{NEVER_RESHAPED, NVFP4_BLOCK, Parts, Second, e8m0_like};
use super::recipe::{Reading, dialect};
use crate::error::{Error, Result};
use crate::format::{CastScheme, CodeFormat, Scheme};

/// What to do about a scale of another type.
const NEVER_CONVERTED: &str =
    "a scale is never converted: fetch the file again, or write it again with the numbers of its scales as F32";

impl Listing {
    pub(super) fn scheme(&self, name: &str) -> Result<Scheme> {
        Ok(self.reading(name, &self.parts(name)?)?.scheme)
    }

    /// Scheme, basis and order of the codes.
    pub(super) fn reading(&self, name: &str, parts: &Parts<'_>) -> Result<Reading> {
        let (rows, cols) = self.logical_shape(name, parts)?;
        let written = match self.written(name) {
            // Its entry has words of its own, and was read.
            _ if matches!(parts, Parts::Cast { .. }) => None,
            Some(text) => Some(Reading::from_json(text).map_err(|e| self.refuse(name, e, "quantize it again"))?),
            None => None,
        };
        let metadata = written.map(|w| w.scheme);
        // A scale of another name, of ComfyUI's older files, counts as one of the first.
        let ending = |scale: &TensorInfo| scale.name.strip_prefix(name).unwrap_or(SCALE_SUFFIXES[0]).to_string();
        let shape_fault = |scale: &TensorInfo, e: String| {
            let e = e.replace(&["NAME", &ending(scale)].concat(), &scale.name);
            self.refuse(name, e, self.or_lost_cast(name, NEVER_RESHAPED))
        };
        match *parts {
            Parts::Bytes { scale, .. } if !is_e8m0(scale.dtype) => self.check_float(scale)?,
            Parts::Packed { second, .. } => self.check_float(second)?,
            _ => {}
        }
        self.refuse_lost_mark(name, parts)?;
        let tiled = self.is_tiled(name);
        let tiles = |blocks: usize| [rows.next_multiple_of(128), blocks.next_multiple_of(4)];
        let fused_rows = match *parts {
            Parts::Bytes { scale, .. } if !is_e8m0(scale.dtype) && metadata.is_none() => {
                self.fused_rows(name, [rows, cols], &grid_of(&scale.shape))?
            }
            _ => None,
        };
        let scheme = match *parts {
            Parts::Cast { scheme, .. } => return Err(self.no_product(name, scheme)),
            Parts::Bytes { format, scale, .. } if is_e8m0(scale.dtype) && tiled => {
                let scheme = Scheme::Mxfp8(format);
                let [_, blocks] = scheme.block_grid(rows, cols);
                self.check_tiles(scale, tiles(blocks), [rows, cols])?;
                scheme
            }
            Parts::Bytes { format, scale, .. } if is_e8m0(scale.dtype) => {
                recognise_e8m0(format, [rows, cols], &ending(scale), &scale.shape, metadata)
                    .map_err(|e| shape_fault(scale, e))?
            }
            Parts::Bytes { format, .. } if fused_rows.is_some() => Scheme::Fp8Row(format),
            Parts::Bytes { format, scale, .. } => {
                recognise(format.into(), [rows, cols], &ending(scale), &grid_of(&scale.shape), metadata)
                    .map_err(|e| shape_fault(scale, e))?
            }
            Parts::Mxfp4 { codes, scale } => {
                let scheme = Scheme::Mxfp4;
                let grid = scheme.block_grid(rows, cols);
                let of_blocks = codes.shape.len() > 2
                    && codes.shape.last() == Some(&16)
                    && scale.shape == codes.shape[..codes.shape.len() - 1];
                if !is_e8m0(scale.dtype) || !(of_blocks || scale.shape == grid) {
                    let (dtype, shape, must) = (scale.dtype, &scale.shape, e8m0_like(scale));
                    let found = format!("is {dtype} {shape:?}, but must be {must} {grid:?} for {rows} x {cols}");
                    return Err(self.refuse(&scale.name, found, NEVER_RESHAPED));
                }
                if let Some(other) = metadata.filter(|other| *other != scheme) {
                    let found = format!("is {other} by its metadata, but its tensors are those of mxfp4");
                    return Err(self.refuse(name, found, "quantize it again"));
                }
                scheme
            }
            Parts::Packed { scale, second, meaning, .. } => {
                let blocks = [rows, cols / NVFP4_BLOCK];
                // A view of one byte for another, as ComfyUI takes it.
                let is_bytes = scale.dtype == Dtype::F8_E4M3 || (tiled && scale.dtype == Dtype::U8);
                if tiled && is_bytes {
                    self.check_tiles(scale, tiles(blocks[1]), [rows, cols])?;
                } else if !is_bytes || scale.shape != blocks {
                    let found = format!(
                        "is {} {:?}, but must be F8_E4M3 {blocks:?} for {rows} x {cols}",
                        scale.dtype, scale.shape
                    );
                    return Err(self.refuse(&scale.name, found, NEVER_RESHAPED));
                }
                let scheme = recognise(CodeFormat::E2M1, [rows, cols], &ending(second), &second.shape, metadata)
                    .map_err(|e| shape_fault(second, e))?;
                if meaning == Second::Divisor && scheme != Scheme::Nvfp4 {
                    let found = format!("has shape {:?}, but one divisor serves the whole matrix", second.shape);
                    return Err(self.refuse(&second.name, found, NEVER_RESHAPED));
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
            Parts::Bytes { .. } | Parts::Cast { .. } => None,
            Parts::Packed { .. } | Parts::Mxfp4 { .. } => {
                let default = if tiled { NibbleOrder::HighFirst } else { NibbleOrder::LowFirst };
                Some(said.or(self.nibble_order).unwrap_or(default))
            }
        };
        let (basis, tiled) = (written.map(|w| w.basis).unwrap_or_default(), tiled && scheme.spec().block.is_some());
        Ok(Reading { scheme, basis, nibble_order, tiled, fused_rows })
    }

    /// Refuses a scale of a type that FP32 scales do not have: what its bytes are cannot be known.
    fn check_float(&self, scale: &TensorInfo) -> Result<()> {
        if wide_dtype(scale.dtype).is_some() {
            return Ok(());
        }
        let (dtype, shape) = (scale.dtype, &scale.shape);
        let found = format!("is {dtype} {shape:?}, and such scales are F32 (BF16 and F16 are widened)");
        Err(self.refuse(&scale.name, found, NEVER_CONVERTED))
    }

    /// True where block scales lie in ComfyUI's tiles: by what the matrix was written in, and only where it does not say, by a mark of its
    /// layer. A mark may be left of what the layer was before.
    fn is_tiled(&self, name: &str) -> bool {
        match self.written(name).and_then(|text| dialect(text)) {
            Some(dialect) => dialect == Dialect::ComfyUi,
            None => matches!(self.comfy.get(comfy::layer(name)).map(String::as_str), Some("nvfp4" | "mxfp8")),
        }
    }

    /// Refuses a matrix that may lie in tiles, where the list that would say so is broken, and nothing else says it.
    pub(super) fn refuse_lost_mark(&self, name: &str, parts: &Parts<'_>) -> Result<()> {
        // Columns of codes that share a byte of scale.
        let (codes, scale, block) = match parts {
            Parts::Packed { codes, scale, meaning: Second::Factor, .. } => (codes, scale, NVFP4_BLOCK / 2),
            Parts::Bytes { codes, scale, .. } if is_e8m0(scale.dtype) => (codes, scale, 32),
            _ => return Ok(()),
        };
        // Others do not fill tiles.
        let [rows, cols] = codes.shape[..] else { return Ok(()) };
        if scale.shape != [rows.next_multiple_of(128), cols.div_ceil(block).next_multiple_of(4)] {
            return Ok(());
        }
        let is_said = || {
            self.written(name).and_then(|text| dialect(text)).is_some() || self.comfy.contains_key(comfy::layer(name))
        };
        if !self.broken_marks.contains(&codes.file) || is_said() {
            return Ok(());
        }
        let found = format!(
            "may lie in ComfyUI's tiles or in rows: the list of marks of its file, {} of the metadata, that would say so is broken",
            comfy::METADATA
        );
        Err(self.refuse(&codes.name, found, "fetch or write the file again"))
    }

    /// What is said of a cast where products are to read it.
    pub(super) fn no_product(&self, name: &str, scheme: CastScheme) -> Error {
        let found = format!("is cast to {scheme}, which no product reads");
        self.refuse(name, found, "dequantize it first, or quantize the matrix by a recipe in place of a grouping")
    }

    /// Refuses scales that are not padded to whole tiles, as ComfyUI has them.
    fn check_tiles(&self, scale: &TensorInfo, want: [usize; 2], [rows, cols]: [usize; 2]) -> Result<()> {
        if scale.shape == want {
            return Ok(());
        }
        let found =
            format!("has shape {:?}, but tiles of 128 x 4 scales for {rows} x {cols} take {want:?}", scale.shape);
        Err(self.refuse(&scale.name, found, NEVER_RESHAPED))
    }
}

/// The grid of FP32 scales of tiles: ModelOpt writes `[R, 1, C, 1]` (`FP8_PB_WO`), in the same order.
fn grid_of(shape: &[usize]) -> Vec<usize> {
    match *shape {
        [rows, 1, cols, 1] => vec![rows, cols],
        _ => shape.to_vec(),
    }
}
