//! ComfyUI's marks of quantized layers, against the tensors: `X.comfy_quant`, or `_quantization_metadata` of a file.

use std::collections::BTreeMap;

use scaled_gemm::checkpoint::{Checkpoint, Dtype, printable};
use serde_json::Value;

use super::{Matrix, layers};
use crate::folder::{COMFY_MARK, COMFY_MARKS, broken_marks};
use crate::output::shown;

/// Formats and the types of their codes: Comfy-Org/ComfyUI, comfy/quant_ops.py (0271a46), QUANT_ALGOS.
const FORMATS: [(&str, Dtype); 8] = [
    ("float8_e4m3fn", Dtype::F8_E4M3),
    ("float8_e5m2", Dtype::F8_E5M2),
    ("nvfp4", Dtype::U8),
    ("mxfp8", Dtype::F8_E4M3),
    ("int8_tensorwise", Dtype::I8),
    ("convrot_w4a4", Dtype::I8),
    ("asym_w4a8_int8", Dtype::I8),
    ("awq_w4a16", Dtype::I8),
];

/// What does not fit, a line for each fault.
pub fn problems(input: &Checkpoint, matrices: &[Matrix<'_>]) -> Vec<String> {
    let schemes: BTreeMap<&str, &str> =
        matrices.iter().filter_map(|m| Some((m.name, m.found.as_ref().ok()?.0.name()))).collect();
    let mut faults: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let marks = input.tensors().iter().filter_map(|tensor| Some((tensor, input.marked_layer(&tensor.name)?)));
    for (tensor, layer) in marks {
        let bytes = input.bytes(&tensor.name).unwrap_or_default();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if let Some(fault) = fault(input, &schemes, layer, &value) {
            faults.entry(format!("{COMFY_MARK} {fault}")).or_default().push(layer);
        }
    }
    let value: Option<Value> =
        input.metadata().get(COMFY_MARKS).map(|text| serde_json::from_str(text).unwrap_or_default());
    let of_file = value.as_ref().and_then(|value| value.get("layers"));
    // Of layers of other files nothing is said.
    let is_here = |layer: &str| input.get(&format!("{layer}.weight")).is_some();
    for (layer, value) in of_file.and_then(Value::as_object).into_iter().flatten().filter(|(layer, _)| is_here(layer)) {
        if let Some(fault) = fault(input, &schemes, layer, value) {
            faults.entry(format!("{COMFY_MARKS} {fault}")).or_default().push(layer);
        }
    }
    let path = shown(input.path());
    let line = |(fault, names): (String, Vec<&str>)| {
        Some(format!("{path}: {} marked for ComfyUI, where {fault}; write the file again", layers(&names)?))
    };
    faults.into_iter().filter_map(line).chain(broken_marks(input)).collect()
}

/// What is wrong with the mark of a layer.
fn fault(input: &Checkpoint, schemes: &BTreeMap<&str, &str>, layer: &str, value: &Value) -> Option<String> {
    let weight = format!("{layer}.weight");
    let Some(format) = value.get("format").and_then(Value::as_str) else {
        return Some("is no JSON object with a format".into());
    };
    let Some((_, dtype)) = FORMATS.iter().find(|(name, _)| *name == format) else {
        let known: Vec<&str> = FORMATS.iter().map(|(name, _)| *name).collect();
        return Some(format!("says format {}, which is none of {}", printable(format), known.join(", ")));
    };
    let Some(tensor) = input.get(&weight) else {
        return Some(format!("says format {format}, and no weight is there"));
    };
    if tensor.dtype != *dtype {
        return Some(format!("says format {format}, whose codes are {dtype}, and the weight is {}", tensor.dtype));
    }
    let scheme = schemes.get(weight.as_str())?;
    let fits = match format {
        "nvfp4" | "mxfp8" => *scheme == format,
        _ => scheme.starts_with("fp8-"),
    };
    (!fits).then(|| format!("says format {format}, and the weight is {scheme}"))
}
