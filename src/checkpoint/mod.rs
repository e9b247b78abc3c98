//! Quantized matrices in safetensors files, under the names and shapes that published checkpoints use. No GPU needed.
//!
//! | scheme | tensor `NAME` | scales written | also read |
//! |---|---|---|---|
//! | `fp8-tensor` | F8_E4M3 or F8_E5M2 `[n, k]` | `NAME_scale` F32 `[1]` | `[]`, `[1, 1]` |
//! | `fp8-row` | same | `NAME_scale` F32 `[n, 1]` | `[n]` |
//! | `fp8-1x128` | same | `NAME_scale_inv` F32 `[n, ceil(k/128)]` | |
//! | `fp8-128x128` (DeepSeek-V3) | same | `NAME_scale_inv` F32 `[ceil(n/128), ceil(k/128)]` | `[ceil(n/128), 1, ceil(k/128), 1]` (ModelOpt) |
//! | `mxfp8` | same | `NAME_scale` U8 (E8M0) `[n, ceil(k/32)]` | dtype F8_E8M0 |
//! | `nvfp4` (ModelOpt) | U8 `[n, k/2]` | `NAME_scale` F8_E4M3 `[n, k/16]`, `NAME_scale_2` F32 `[1]` | `[]`, `[1, 1]` |
//! | `mxfp4` | U8 `[n, k/2]`, with a recipe in the metadata | `NAME_scale` U8 (E8M0) `[n, ceil(k/32)]` | `NAME_packed` and `NAME_scale`; `NAME_blocks` and `NAME_scales` (gpt-oss; written in [`Dialect::GptOss`]) |
//! | `nvfp4-row` | same | same, `NAME_scale_2` F32 `[n]` | `[n, 1]` |
//!
//! Casts to groupings that no product reads ([`CheckpointLayout::cast`]) are told by their metadata alone: F8_E4M3 or U8 codes, by rows
//! or transposed, and `NAME_scale` with the bytes that a device has: F32 `[R, C]`, column-major F32 `[C, R']`, or U8 `[ceil(C/4), R', 4]`,
//! R' being R rounded up to 4. [`Checkpoint::stored_scheme`] says which they are, [`Checkpoint::cast_matrix`] reads them.
//!
//! An FP8 `gate_up_proj` with the scales `[2]`, and a `qkv_proj` with `[3]` of a model whose heads are known
//! ([`Checkpoint::with_heads`]), have one scale for each of the matrices that were fused: they are read as `fp8-row`, each row with the scale of its matrix.
//!
//! Scales lie in logical order, row-major, and multiply the codes under all these names (`_scale_inv` is the published name
//! of a decode factor, not of an inverse). For FP8 either of the first two names is read with any of the shapes; BF16 and
//! F16 scales are widened, which is exact. A scale is never assumed: a file that lacks one, or whose scale fits no scheme,
//! is refused with the tensor's name.
//!
//! A U8 matrix is NVFP4 if it has an F8_E4M3 `NAME_scale` or a `NAME_scale_2`, and plain data otherwise. compressed-tensors'
//! `nvfp4-pack-quantized` is read too: `NAME_packed` (U8), `NAME_scale` and `NAME_global_scale` (F32 `[1]` or `[]`) are the
//! matrix `NAME` (`layer.weight` of `layer.weight_packed`), whose second-level scale is `fl(1 / NAME_global_scale)`: that
//! one divides. Scales of activations (`input_scale`, `input_global_scale`) are tensors like others.
//!
//! Bytes of NVFP4 hold two codes, the even column in the low half. Files with the halves swapped are read after
//! [`Checkpoint::with_nibble_order`]; the files written here say their order in the metadata.
//!
//! ComfyUI's block scales lie in tiles of 128 x 4 and its halves are swapped: so is a matrix read that says that it was written in
//! [`Dialect::ComfyUi`], or that does not say, and whose layer has a mark of ComfyUI ([`Checkpoint::is_tiled`]).
//!
//! Where several schemes fit one shape (one row, or one block of columns) they decode to the same numbers. The recipe
//! in the metadata decides then; without one, in this order: the scheme that is written under this name, the one
//! that is written with this shape, for one row `fp8-1x128` (which multiplies `fp8-128x128` too; two of the latter do not
//! multiply), the one with larger groups (`nvfp4`, not `nvfp4-row`, for one row).
//!
//! The metadata entry `scaled_gemm.NAME` holds the recipe with every option used, as JSON; see [`WrittenRecipe`] and [`WrittenCast`]. It also
//! says the basis of the rows, which [`Checkpoint::quant_matrix`] passes on.

mod by_name;
mod cast_recipe;
mod cast_writer;
mod casts;
mod comfy;
mod entries;
mod folder;
mod foreign;
mod fused;
mod header;
mod layout;
mod listing;
mod matrix_writer;
mod names;
mod open_files;
mod output;
mod output_folder;
mod parts;
mod plain_rows;
mod quantized;
mod reader;
mod reading;
mod recipe;
mod said_codes;
mod source;
mod unfinished;
mod writeback;
mod writer;

pub use crate::error::printable;
pub use cast_recipe::{StoredScheme, WrittenCast};
pub use cast_writer::CastWriter;
pub(crate) use entries::{Words, each_entry};
pub use fused::Heads;
pub use header::{RECIPE_KEY, TensorInfo};
pub use layout::CheckpointLayout;
pub use matrix_writer::MatrixWriter;
pub use names::{CODES_ENDINGS, Dialect, NibbleOrder, SCALE_ENDINGS, scaled_by_name};
pub use output::OutputFile;
pub use output_folder::{FolderRemoval, OutputFolder};
pub use plain_rows::PlainRows;
pub use reader::Checkpoint;
pub use recipe::WrittenRecipe;
pub use safetensors::Dtype;
pub(crate) use source::open_regular;
pub use writer::{CheckpointWriter, TensorWriter};
