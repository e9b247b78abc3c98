//! What ComfyUI's files say of their layers: `_quantization_metadata` in the metadata, or a tensor `LAYER.comfy_quant` of JSON.
//!
//! Facts from Comfy-Org/ComfyUI, comfy/ops.py and comfy/quant_ops.py (0271a46), and comfy-kitchen 0.2.40.

use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;
use serde_json::{Value, json};

use super::header::TensorInfo;

/// The entry of the metadata that lists layers.
pub(super) const METADATA: &str = "_quantization_metadata";
/// Ending of the tensor that describes a layer.
pub(super) const SUFFIX: &str = ".comfy_quant";
/// Most bytes of such a tensor that are looked at.
const MOST_BYTES: u64 = 1 << 16;
/// Last part of the name of the tensor by whose type older files say that they are FP8.
const MARKER: &str = "scaled_fp8";

/// The layer that a tensor may describe, by its name and size. What it is its bytes tell ([`is_mark`]).
pub(super) fn layer_by_name(tensor: &TensorInfo) -> Option<&str> {
    tensor.name.strip_suffix(SUFFIX).filter(|_| tensor.bytes() <= MOST_BYTES)
}

/// True for one that does: ComfyUI reads the bytes, whatever their type and shape. A row of bytes that is no such text is a broken mark;
/// whatever else has the name is somebody's data.
pub(super) fn is_mark(tensor: &TensorInfo, bytes: &[u8]) -> bool {
    (tensor.dtype == Dtype::U8 && tensor.shape.len() == 1) || of_tensor(bytes).is_some()
}

/// True for the tensor by whose type and number of elements, 0 to 2, older files say how they are FP8; F32 says E4M3. Observed in copies of ComfyUI:
/// `convert_old_quants`, which asks for nothing else. (A matrix of that name is a matrix.)
pub(super) fn is_marker(tensor: &TensorInfo) -> bool {
    tensor.name.rsplit('.').next() == Some(MARKER)
        && matches!(tensor.dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::F32)
        && tensor.shape.len() < 2
        && tensor.shape.iter().all(|number| *number <= 2)
}

/// The layer of a weight.
pub(super) fn layer(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Layers and their formats by the metadata of a file.
pub(super) fn of_metadata(metadata: &BTreeMap<String, String>) -> HashMap<String, String> {
    let text = metadata.get(METADATA).map(String::as_str).unwrap_or_default();
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let layers = value.get("layers").and_then(Value::as_object).into_iter().flatten();
    layers.filter_map(|(layer, of)| Some((layer.clone(), format(of)?))).collect()
}

/// The list without the layers that are gone, as it was where it has none of them; nothing where none is left.
pub(super) fn without(text: &str, gone: impl Fn(&str) -> bool) -> Option<String> {
    let mut value: Value = serde_json::from_str(text).unwrap_or_default();
    let Some(layers) = value.get_mut("layers").and_then(Value::as_object_mut) else { return Some(text.into()) };
    let number = layers.len();
    layers.retain(|layer, _| !gone(layer));
    match layers.len() {
        left if left == number => Some(text.into()),
        0 => None,
        _ => Some(value.to_string()),
    }
}

/// True for a list that is no JSON object of layers. (One without layers marks none.)
pub(super) fn is_broken(metadata: &BTreeMap<String, String>) -> bool {
    let is_list = |text: &String| serde_json::from_str(text).is_ok_and(|value| is_list(&value));
    metadata.get(METADATA).is_some_and(|text| !is_list(text))
}

fn is_list(value: &Value) -> bool {
    value.is_object() && value.get("layers").is_none_or(Value::is_object)
}

/// The lists of several files as one; nothing where there is none. One that is broken marks no layer, and goes where another is none.
pub(super) fn merge(mut lists: Vec<String>) -> Option<String> {
    lists.dedup();
    if lists.len() < 2 {
        return lists.pop();
    }
    let values = lists.iter().filter_map(|text| serde_json::from_str(text).ok().filter(is_list));
    // What the first says counts, and of a layer what the first says that has a format. That all have the same one was checked.
    let all = values.reduce(|mut all, mut more| {
        if let Some(layers) = more.get_mut("layers").and_then(Value::as_object_mut) {
            let known = all.as_object_mut().map(|all| all.entry("layers").or_insert_with(|| json!({})));
            let Some(known) = known.and_then(Value::as_object_mut) else { return all };
            for (layer, mark) in std::mem::take(layers) {
                let is_said = known.get(&layer).is_some_and(|known| format(known).is_some() || format(&mark).is_none());
                if !is_said {
                    known.insert(layer, mark);
                }
            }
        }
        all
    });
    all.map_or_else(|| lists.pop(), |all| Some(all.to_string()))
}

/// The format that the tensor of a layer names.
pub(super) fn of_tensor(bytes: &[u8]) -> Option<String> {
    format(&serde_json::from_slice(bytes).ok()?)
}

fn format(value: &Value) -> Option<String> {
    Some(value.get("format")?.as_str()?.to_string())
}

/// The tensor that says so of a layer.
pub(super) fn tensor(format: &str) -> Vec<u8> {
    json!({"format": format}).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_files_are_one() {
        let merged = |lists: &[&str]| merge(lists.iter().map(|list| list.to_string()).collect());
        let (a, b) = (r#"{"v":1,"layers":{"a":{"format":"nvfp4"}}}"#, r#"{"v":2,"layers":{"b":{"format":"mxfp8"}}}"#);
        let both = json!({"v": 1, "layers": {"a": {"format": "nvfp4"}, "b": {"format": "mxfp8"}}});
        for lists in [&[a, b][..], &[a, "[", b], &["{\"layers\":1}", a, b, b], &["7", a, "{}", b]] {
            let value: Value = serde_json::from_str(&merged(lists).unwrap()).unwrap();
            assert_eq!(value, both, "{lists:?}");
        }
        // One alone stays as it is, byte for byte, and so do those that are the same.
        assert_eq!(merged(&[]), None);
        for lists in [&[b][..], &[b, b], &["["], &["[", "7"]] {
            assert_eq!(merged(lists).as_deref(), lists.last().copied());
        }
    }

    /// (The last list won: `7` of a later shard took the place of a format.)
    #[test]
    fn a_mark_without_a_format_is_no_layers_where_another_has_one() {
        let merged = |lists: [&str; 2]| merge(lists.map(String::from).into());
        let list = |mark: &str| format!(r#"{{"layers":{{"a":{mark},"b":{{"format":"mxfp8"}}}}}}"#);
        let good = list(r#"{"format":"nvfp4","x":1}"#);
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        for broken in ["7", "{}", "null", r#"{"format":7}"#, r#"{"x":2}"#] {
            let broken = list(broken);
            for lists in [[&*good, &*broken], [&broken, &good]] {
                assert_eq!(value(&merged(lists).unwrap()), value(&good), "{lists:?}");
            }
        }
        // Of two that are the same in what they are read by, the first; and so of two that have no format.
        for second in [r#"{"format":"nvfp4","x":2}"#, r#"{"format":"nvfp4"}"#] {
            assert_eq!(value(&merged([&good, &list(second)]).unwrap()), value(&good), "{second}");
        }
        assert_eq!(value(&merged([&list("7"), &list("{}")]).unwrap()), value(&list("7")));
    }
}
