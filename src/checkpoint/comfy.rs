//! What ComfyUI's files say of their layers: `_quantization_metadata` in the metadata, or a tensor `LAYER.comfy_quant` of JSON.
//!
//! Facts from Comfy-Org/ComfyUI, comfy/ops.py and comfy/quant_ops.py (0271a46), and comfy-kitchen 0.2.40.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

/// The entry of the metadata that lists layers.
pub(super) const METADATA: &str = "_quantization_metadata";
/// Ending of the tensor that describes a layer.
pub(super) const SUFFIX: &str = ".comfy_quant";
/// Most bytes of such a tensor that are looked at.
pub(super) const MOST_BYTES: u64 = 1 << 16;

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

/// The lists of several files as one; nothing where there is none. One that is broken marks no layer, and goes where another is none.
pub(super) fn merge(mut lists: Vec<String>) -> Option<String> {
    lists.dedup();
    if lists.len() < 2 {
        return lists.pop();
    }
    let is_list = |value: &Value| value.is_object() && value.get("layers").is_none_or(Value::is_object);
    let values = lists.iter().filter_map(|text| serde_json::from_str(text).ok().filter(is_list));
    // Of other entries those of the first count. That all say the same of a layer was checked.
    let all = values.reduce(|mut all, mut more| {
        if let Some(layers) = more.get_mut("layers").and_then(Value::as_object_mut) {
            let known = all.as_object_mut().map(|all| all.entry("layers").or_insert_with(|| json!({})));
            known.and_then(Value::as_object_mut).into_iter().for_each(|known| known.append(layers));
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
}
