//! Words of configs that no engine knows.

use std::collections::BTreeMap;

use scaled_gemm::checkpoint::printable;
use serde_json::Value;

use super::configs::{HF, Method, Said};
use super::formats::{MIXED, groups};
use super::layers;

/// Formats of compressed-tensors: config/base.py of 0.20.0, and of older versions the last.
const FORMATS: [&str; 11] = [
    "dense",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    MIXED,
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp6-pack-quantized",
    "mxfp8-quantized",
    "marlin-24",
];

/// Algorithms of ModelOpt and TensorRT-LLM for floating-point codes, and for layers that differ: ModelOpt 0.47.0, torch/export, and
/// TensorRT-LLM, quantization/mode.py.
const ALGORITHMS: [&str; 19] = [
    "FP8",
    "FP8_PER_CHANNEL_PER_TOKEN",
    "FP8_PC_PT",
    "FP8_PB_WO",
    "FP8_PB_REAL",
    "FP8_BLOCK_SCALES",
    "NVFP4",
    "W4A16_NVFP4",
    "NVFP4_AWQ",
    "NVFP4_SVDQUANT",
    "NVFP4_SVD",
    "NVFP4_ARC",
    "W4A8_NVFP4_FP8",
    "MXFP8",
    "MXFP4",
    "W4A16_MXFP4",
    "W4A8_MXFP4_FP8",
    "W4A8_MXFP4_MXFP8",
    "MIXED_PRECISION",
];

/// How the names of those for integers begin.
const OF_INTEGERS: [&str; 9] =
    ["INT4", "INT8", "W8A16", "W8A8_SQ", "W4A8_AWQ", "W4A8_QSERVE", "W4A16_AWQ", "W4A16_GPTQ", "NO_QUANT"];

/// Words that no engine knows, each in a line.
pub fn problems(said: &Said<'_>) -> Vec<String> {
    match said.method() {
        Method::CompressedTensors => formats(said),
        Method::ModelOpt => algorithms(said),
        Method::Fp8 | Method::Other => Vec::new(),
    }
}

/// A word as it is; nothing at all in quotation marks.
fn word(text: &str) -> String {
    if text.is_empty() { "\"\"".into() } else { printable(text) }
}

fn formats(said: &Said<'_>) -> Vec<String> {
    let file = said.file;
    let line = |format: &str, place: &str, fault: &str| {
        let format = word(format);
        format!("{file} says format {format}{place}, which {fault}; mend it, or quantize the model again")
    };
    let unknown = format!("no engine knows; known are {}", FORMATS.join(", "));
    let whole = said.word("format").filter(|format| !FORMATS.contains(format));
    let whole = whole.map(|format| line(format, "", &unknown));
    let of_group = groups(said).filter_map(|(name, group)| {
        let (format, place) = (group.get("format")?.as_str()?, format!(" of config_groups.{}", printable(name)));
        match format {
            MIXED => Some(line(format, &place, "is no format of a group but of the whole")),
            _ if FORMATS.contains(&format) => None,
            _ => Some(line(format, &place, &unknown)),
        }
    });
    whole.into_iter().chain(of_group).collect()
}

/// That ModelOpt's entry has no algorithm, which engines choose how codes are read by (vLLM 0.33.0, modelopt.py, `from_config`).
pub fn missing_algorithm(said: &Said<'_>) -> Option<String> {
    // Its own file is ModelOpt's without a method, too; other types are said elsewhere.
    let is_modelopt = said.method() == Method::ModelOpt || (said.file == HF && said.get("quant_method").is_none());
    let is_read = said.top.is_object() && said.top.get("quantization").is_none_or(|v| v.is_null() || v.is_object());
    (is_modelopt && is_read && said.get("quant_algo").is_none()).then(|| {
        let what = match said.word("quant_method") {
            Some(method) => format!("says quant_method {} and no quant_algo", printable(method)),
            None => "has no quant_algo".into(),
        };
        format!("{} {what}, which engines ask for; give it that of its tensors, or quantize the model again", said.file)
    })
}

fn algorithms(said: &Said<'_>) -> Vec<String> {
    let is_known = |name: &&str| {
        let name = name.to_ascii_uppercase();
        ALGORITHMS.contains(&name.as_str())
            || name == "W4A16"
            || OF_INTEGERS.iter().any(|start| name.starts_with(start))
    };
    let mut unknown: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (layer, value) in said.get("quantized_layers").and_then(Value::as_object).into_iter().flatten() {
        if let Some(name) = value.get("quant_algo").and_then(Value::as_str).filter(|name| !is_known(name)) {
            unknown.entry(name).or_default().push(layer);
        }
    }
    let of_layers = unknown.into_iter().map(|(name, names)| (name, layers(&names)));
    let whole = said.word("quant_algo").filter(|name| !is_known(name)).map(|name| (name, None));
    let line = |(name, layers): (&str, Option<String>)| {
        format!(
            "{} says quant_algo {}{}, which no engine knows; known are {} and those of integers; mend it, or quantize the model again",
            said.file,
            word(name),
            layers.map(|layers| format!(" of {layers}")).unwrap_or_default(),
            ALGORITHMS.join(", ")
        )
    };
    whole.into_iter().chain(of_layers).map(line).collect()
}
