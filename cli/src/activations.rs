//! The scales of what enters a quantized layer: their names, and which tensors of such a name are one.

use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo};

/// The last parts of their names: of most files, of compressed-tensors' NVFP4, of transformers, and of ComfyUI's older files.
pub const ACTIVATIONS: [&str; 4] = ["input_scale", "input_global_scale", "activation_scale", "scale_input"];

/// Whether a tensor of such a name can be one: a floating number, one for each of the matrices that are fused in the layer, or one for each
/// of so many experts. Others are something else that a model has learned.
pub fn is_scale(tensor: &TensorInfo, experts: Option<usize>) -> bool {
    let is_wide = matches!(tensor.dtype, Dtype::F64 | Dtype::F32 | Dtype::BF16 | Dtype::F16);
    let is_float = is_wide || matches!(tensor.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F8_E8M0);
    let layer = tensor.name.rsplit('.').nth(1).unwrap_or_default();
    let fused = match layer {
        "qkv_proj" => 3,
        "gate_up_proj" => 2,
        _ => 1,
    };
    let numbers: usize = tensor.shape.iter().product();
    is_float && (numbers == 1 || numbers == fused || Some(numbers) == experts)
}

/// How many experts lie in the tensor of this quantized matrix, if it is one of experts: rank 3.
pub fn experts(input: &Checkpoint, matrix: &str) -> Option<usize> {
    let shape = input.quant_dimensions(matrix).ok()?;
    (shape.len() == 3).then(|| shape[0])
}
