//! Folders of models as engines load them: `config.json`, which weights are quantized, which of them engines fuse, and what
//! `quantization_config` says of it. No GPU needed.
//!
//! The tensors themselves are read and written by [`checkpoint`](crate::checkpoint).
//!
//! | dialect | schemes | `quant_method` | loaded by |
//! |---|---|---|---|
//! | `fp8` | `fp8-128x128`, `fp8-tensor` | `fp8` | vLLM, SGLang, mistral.rs, transformers (`fp8-128x128`) |
//! | `compressed-tensors` | `fp8-row`, `fp8-tensor`, `fp8-128x128`, `nvfp4`, `mxfp8`, `mxfp4` | `compressed-tensors` | vLLM, transformers, SGLang (neither MX) |
//! | `modelopt` | `nvfp4`, `mxfp8`, `fp8-tensor` (with input scales) | `modelopt` | vLLM, SGLang, TensorRT-LLM |
//! | `gpt-oss` | `mxfp4` (the experts of gpt-oss) | `mxfp4` | vLLM, SGLang, transformers |
//! | `comfyui` | `nvfp4`, `mxfp8`, `fp8-tensor` | none, marks in the file | ComfyUI |
//! | `plain` | all | none | this crate |
//!
//! Sources, read in 2026-11: vLLM 0.33.0, SGLang 0.5.23, transformers 5.23.0, compressed-tensors 0.20.0, ModelOpt 0.47.0,
//! mistral.rs 9e92262; `docs/models.md` says what to know of them.

mod calibration;
mod config;
mod conv1d;
mod experts;
mod fuse;
mod ignored;
mod quantization;
mod select;
mod text;
#[cfg(all(test, target_os = "linux"))]
mod worked;

use std::path::Path;

use crate::checkpoint::Checkpoint;
use crate::error::Result;

pub use calibration::InputScales;
pub use config::{ModelConfig, python_json};
pub use conv1d::TransposedLayers;
pub use experts::ExpertTensor;
pub use fuse::fused_groups;
pub use quantization::{QuantizationConfig, default_dialect};
pub use select::left_alone;

/// Opens a checkpoint, with the config of its folder, where it has one, and with what that says of how tensors are read.
///
/// # Errors
/// As [`Checkpoint::open`] and [`ModelConfig::read`].
pub fn open(path: impl AsRef<Path>) -> Result<(Checkpoint, Option<ModelConfig>)> {
    let file = Checkpoint::open(path)?;
    let config = file.folder().map(ModelConfig::read).transpose()?.flatten();
    let file = match config.as_ref().and_then(ModelConfig::heads) {
        Some(heads) => file.with_heads(heads),
        None => file,
    };
    Ok((file, config))
}
