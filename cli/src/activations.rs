//! Names of the scales of what enters a quantized layer.

/// The last parts of their names: of most files, of compressed-tensors' NVFP4, of transformers, and of ComfyUI's older files.
pub const ACTIVATIONS: [&str; 4] = ["input_scale", "input_global_scale", "activation_scale", "scale_input"];
