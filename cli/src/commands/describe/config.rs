//! Where a config and its tensors differ: layers that it leaves out, and those that engines fuse.

use std::collections::HashSet;

use scaled_gemm::Scheme;
use scaled_gemm::checkpoint::{Checkpoint, Dtype, StoredScheme, TensorInfo, printable};
use scaled_gemm::model_folder::{ModelConfig, fused_groups};
use serde_json::Value;

use super::{Matrix, module};
use crate::folder;
use crate::output::count;

/// Where the lists of a config say otherwise than the tensors.
pub fn problems(input: &Checkpoint, config: &ModelConfig, matrices: &[Matrix<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let read: Vec<_> = matrices.iter().filter_map(|m| Some((module(m.name), m.found.as_ref().ok()?.0))).collect();
    let names = |names: &[&str]| Some((folder::some(names.iter().copied())?, count(names.len(), "layer", "layers")));

    let ignored: Vec<&str> = read.iter().map(|(module, _)| *module).filter(|m| config.ignores_by_name(m)).collect();
    if let Some((names, number)) = names(&ignored) {
        let what = "its quantization_config says are not quantized: engines take their codes for plain weights";
        found.push(format!(
            "{number} ({names}) that {what}; take the names out of its list, or quantize the model again"
        ));
    }
    found.extend(divided(input, &read).into_iter().map(|(quantized, plain)| {
        format!("{quantized}: quantized, and {plain} is not: engines that fuse these read all or none; quantize the model again")
    }));
    let entry = |key: &str| config.quantization().and_then(|q| q.get(key)).and_then(Value::as_str);
    if entry("quant_method") == Some("modelopt") && entry("quant_algo") == Some("NVFP4") {
        // The names of experts in one tensor differ from engine to engine.
        let lacks = |module: &str| {
            input.get(&format!("{module}.weight")).is_some() && input.get(&format!("{module}.input_scale")).is_none()
        };
        let nvfp4 =
            read.iter().filter(|(_, scheme)| scheme.product().is_some_and(Scheme::is_nvfp4)).map(|(module, _)| *module);
        let lacking: Vec<&str> = nvfp4.filter(|module| lacks(module)).collect();
        if let Some((names, number)) = names(&lacking) {
            found.push(format!(
                "{number} ({names}) without input_scale, which quant_algo NVFP4 promises; quantize with --input-scales, or name W4A16_NVFP4"
            ));
        }
    }
    found
}

/// Of layers that all engines fuse and that are quantized in part: the first that is, and the last that is not.
fn divided<'a>(input: &'a Checkpoint, read: &[(&'a str, StoredScheme)]) -> Vec<(String, String)> {
    let fused = |module: &str| {
        let last = module.rsplit('.').next().unwrap_or(module);
        ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3"].contains(&last)
    };
    let is_plain = |t: &&TensorInfo| t.shape.len() == 2 && matches!(t.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32);
    let plain = input.tensors().iter().filter(is_plain).filter_map(|t| t.name.strip_suffix(".weight"));
    let quantized: Vec<&str> = read.iter().map(|(module, _)| *module).filter(|m| fused(m)).collect();
    let known: HashSet<&str> = quantized.iter().copied().collect();
    let modules: Vec<&str> =
        quantized.iter().copied().chain(plain.filter(|m| fused(m) && !known.contains(m))).collect();
    let groups = fused_groups(&modules, "", |_| None);
    // Quantized ones are before the others, in each group too.
    let ends = groups.iter().filter_map(|group| Some((*group.first()?, *group.last()?)));
    let torn = ends.filter(|(first, last)| *first < quantized.len() && *last >= quantized.len());
    torn.map(|(first, last)| (printable(modules[first]), printable(modules[last]))).collect()
}
