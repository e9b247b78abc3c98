//! What configs say of the scheme of the weights, against the tensors.

use std::fs;
use std::io::Read;
use std::path::Path;

use scaled_gemm::checkpoint::{Checkpoint, StoredScheme, printable};
use scaled_gemm::model_folder::{ModelConfig, python_json};
use serde_json::Value;

use super::{Matrix, module};
use crate::folder;
use crate::output::count;

/// Longest `hf_quant_config.json` read: as long as a config.
const MOST_BYTES: u64 = 16 << 20;
const HF: &str = "hf_quant_config.json";

/// Where `config.json` or `hf_quant_config.json` says another scheme, or other groups, than the tensors have.
pub fn problems(input: &Checkpoint, config: Option<&ModelConfig>, matrices: &[Matrix<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let hf = input.folder().map(hf_quant_config).transpose().map(Option::flatten).unwrap_or_else(|reason| {
        found.push(reason);
        None
    });
    let quantization = config.and_then(ModelConfig::quantization);
    let both = [("config.json", quantization), (HF, hf.as_ref())];
    // Where one says that layers differ, the other names what most of them are.
    if !both.iter().any(|(_, value)| value.is_some_and(is_mixed)) {
        found.extend(
            both.iter().flat_map(|(file, value)| value.map_or_else(Vec::new, |value| against(file, value, matrices))),
        );
    }
    found
}

fn hf_quant_config(folder: &Path) -> Result<Option<Value>, String> {
    let path = folder.join(HF);
    if !path.is_file() {
        return Ok(None);
    }
    let mut text = Vec::new();
    let read = fs::File::open(&path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut text));
    read.map_err(|e| format!("{HF}: cannot be read: {e}; mend it, or fetch the model again"))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("{HF}: is longer than {MOST_BYTES} bytes; fetch the model again"));
    }
    let text = String::from_utf8(text).map_err(|_| format!("{HF}: is no UTF-8; mend it, or fetch the model again"))?;
    let value = python_json(&text);
    value.map(Some).map_err(|e| format!("{HF}: is no JSON: {e}; mend it, or fetch the model again"))
}

/// What the schemes of a config are called here, and in which words it says so.
struct Claim {
    words: String,
    schemes: &'static [&'static str],
    /// Nothing is said of weights that are not FP8: such models have experts in other formats.
    of_fp8: bool,
}

fn against(file: &str, quantization: &Value, matrices: &[Matrix<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    let read = || matrices.iter().filter_map(|m| Some((m, m.found.as_ref().ok()?.0)));
    let some = |names: &[&str]| Some((folder::some(names.iter().copied())?, count(names.len(), "layer", "layers")));
    if let Some(claim) = claim(quantization) {
        let others: Vec<_> = read().filter(|(m, scheme)| !fits(&claim, m, *scheme)).collect();
        let names: Vec<&str> = others.iter().map(|(m, _)| module(m.name)).collect();
        if let (Some((names, number)), Some((_, scheme))) = (some(&names), others.first()) {
            found.push(format!(
                "{file} says {}, which is {}, and {number} ({names}) are {scheme}: engines read them by what it says; mend it, or \
                 quantize the model again",
                claim.words,
                claim.schemes.join(" or ")
            ));
        }
    }
    let sizes = group_sizes(quantization);
    for scheme in ["nvfp4", "mxfp8", "mxfp4"] {
        let of = |found: StoredScheme| found.name() == scheme;
        let names: Vec<&str> = read().filter(|(_, found)| of(*found)).map(|(m, _)| module(m.name)).collect();
        let size = if scheme == "nvfp4" { 16 } else { 32 };
        if let Some((names, number)) = some(&names).filter(|_| !sizes.is_empty() && !sizes.contains(&size)) {
            let said: Vec<_> = sizes.iter().map(u64::to_string).collect();
            found.push(format!(
                "{file} says group_size {}, and {number} ({names}) are {scheme}, with a scale for {size} columns; mend it, or quantize the \
                 model again",
                said.join(" and ")
            ));
        }
    }
    found
}

/// True if a matrix is what was claimed. Of one row, or one tile, several schemes have the same scales, and so have matrices that
/// were fused with a scale for each.
fn fits(claim: &Claim, matrix: &Matrix<'_>, scheme: StoredScheme) -> bool {
    let name = scheme.name();
    let is_fp8 = name.starts_with("fp8-");
    let one = |shape: &[usize]| shape.first() == Some(&1) || (is_fp8 && shape.iter().all(|n| *n <= 128));
    let shape = matrix.found.as_ref().map(|(_, shape)| shape.as_slice()).unwrap_or_default();
    let fused = is_fp8 && matrix.parts.get(1).is_some_and(|scale| matches!(*scale.shape, [2] | [3]));
    claim.schemes.contains(&name)
        || (claim.of_fp8 && !is_fp8)
        || (one(shape) && is_fp8 == claim.schemes[0].starts_with("fp8-"))
        || fused
}

/// A word of a config, or of the `quantization` in an `hf_quant_config.json`.
fn entry<'a>(quantization: &'a Value, key: &str) -> Option<&'a str> {
    let inner = quantization.get("quantization").and_then(|inner| inner.get(key));
    quantization.get(key).or(inner).and_then(Value::as_str)
}

/// The groups of layers that compressed-tensors has.
fn groups(quantization: &Value) -> impl Iterator<Item = &Value> {
    quantization.get("config_groups").and_then(Value::as_object).into_iter().flat_map(|groups| groups.values())
}

/// True where a config says that layers differ: for all of ModelOpt's, or by a format of a group that is not that of all
/// (compressed-tensors 0.20.0, config/base.py: `mixed-precision`).
fn is_mixed(quantization: &Value) -> bool {
    let own: Vec<&str> = groups(quantization).filter_map(|group| group.get("format")?.as_str()).collect();
    entry(quantization, "quant_algo").is_some_and(|algorithm| algorithm.eq_ignore_ascii_case("MIXED_PRECISION"))
        || own.iter().any(|format| *format != entry(quantization, "format").unwrap_or(own[0]))
}

/// True if some weights have a scale for so many columns of a row.
fn has_column_groups(quantization: &Value) -> bool {
    groups(quantization).any(|group| group["weights"]["strategy"] == "group")
}

/// What a config says of all weights; nothing where it says several things, or what is not known here.
fn claim(quantization: &Value) -> Option<Claim> {
    let entry = |key: &str| entry(quantization, key);
    if let Some(algorithm) = entry("quant_algo") {
        // vLLM 0.33.0, docs/features/quantization/modelopt.md, and ModelOpt 0.47.0, torch/export/quant_utils.py.
        let schemes: &[&str] = match algorithm.to_ascii_uppercase().as_str() {
            "FP8" => &["fp8-tensor"],
            "FP8_PER_CHANNEL_PER_TOKEN" => &["fp8-row"],
            "FP8_PB_WO" => &["fp8-128x128"],
            "NVFP4" | "W4A16_NVFP4" | "NVFP4_AWQ" | "W4A8_NVFP4_FP8" => &["nvfp4"],
            "MXFP8" => &["mxfp8"],
            "W4A8_MXFP4_FP8" => &["mxfp4"],
            _ => return None,
        };
        return Some(Claim { words: format!("quant_algo {}", printable(algorithm)), schemes, of_fp8: false });
    }
    let (method, format) = (entry("quant_method")?, entry("format"));
    if method == "fp8" {
        // vLLM 0.33.0, Q/fp8.py:158: tiles where there is a size of them, else a scale for each matrix.
        let tile = quantization.get("weight_block_size").unwrap_or(&Value::Null);
        let schemes: &[&str] = match tile {
            Value::Null => &["fp8-tensor", "fp8-row"],
            tile if *tile == serde_json::json!([128, 128]) => &["fp8-128x128"],
            _ => &["fp8-tiles of another size"],
        };
        let short: String = tile.to_string().chars().take(40).collect();
        return Some(Claim { words: format!("weight_block_size {}", printable(&short)), schemes, of_fp8: true });
    }
    let schemes: &[&str] = match (method, format) {
        ("compressed-tensors", Some("nvfp4-pack-quantized")) => &["nvfp4"],
        ("compressed-tensors", Some("mxfp4-pack-quantized")) => &["mxfp4"],
        ("compressed-tensors", Some("mxfp8-quantized")) => &["mxfp8"],
        // With groups of columns: scales for 128 columns of a row are what it says too.
        ("compressed-tensors", Some("float-quantized")) if has_column_groups(quantization) => {
            &["fp8-tensor", "fp8-row", "fp8-128x128", "fp8-1x128"]
        }
        ("compressed-tensors", Some("float-quantized")) => &["fp8-tensor", "fp8-row", "fp8-128x128"],
        _ => return None,
    };
    Some(Claim { words: format!("format {}", format.unwrap_or_default()), schemes, of_fp8: false })
}

/// The sizes of groups that a config has for weights, each once.
fn group_sizes(quantization: &Value) -> Vec<u64> {
    let size = |value: &Value| value.get("group_size").and_then(Value::as_u64);
    let weights = groups(quantization).filter_map(|group| size(group.get("weights")?));
    let outer = [Some(quantization), quantization.get("quantization")].into_iter().flatten().filter_map(size);
    let mut sizes: Vec<u64> = outer.chain(weights).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}
