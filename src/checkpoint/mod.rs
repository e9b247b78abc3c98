//! Quantized matrices in safetensors files, under the names and shapes that published checkpoints use. No GPU needed.
//!
//! | scheme | tensor `NAME` | scales written | also read |
//! |---|---|---|---|
//! | `fp8-tensor` | F8_E4M3 or F8_E5M2 `[n, k]` | `NAME_scale` F32 `[1]` | `[]`, `[1, 1]` |
//! | `fp8-row` | same | `NAME_scale` F32 `[n, 1]` | `[n]` |
//! | `fp8-1x128` | same | `NAME_scale_inv` F32 `[n, ceil(k/128)]` | |
//! | `fp8-128x128` (DeepSeek-V3) | same | `NAME_scale_inv` F32 `[ceil(n/128), ceil(k/128)]` | |
//!
//! Scales lie in logical order, row-major, and multiply the codes under both names (`_scale_inv` is the published name
//! of a decode factor, not of an inverse). Either name is read with any of the shapes; BF16 and F16 scales are widened,
//! which is exact. A scale is never assumed: a file that lacks one, or whose scale fits no scheme, is refused with the
//! tensor's name.
//!
//! Where several schemes fit one shape (one row, or one block of columns) they decode to the same numbers. The recipe
//! in the metadata decides then; without one, in this order: the scheme that is written under this name, the one
//! that is written with this shape, the one with larger groups.
//!
//! The metadata entry `scaled_gemm.NAME` holds the recipe with every option used, as JSON; see [`WrittenRecipe`].

mod header;
mod names;
mod reader;
mod writer;

pub use header::TensorInfo;
pub use names::WrittenRecipe;
pub use reader::Checkpoint;
pub use safetensors::Dtype;
pub use writer::{CheckpointWriter, FileLayout};
