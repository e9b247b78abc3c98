//! The header of a safetensors file: 8 bytes of length, then JSON that says what lies where.
//!
//! Parsed here rather than by the safetensors crate's reader because that one wants the whole file in memory, forgets
//! the order and lets a repeated name pass.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use safetensors::Dtype;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

/// Longest header accepted, as in the safetensors crate.
const MAX_HEADER: u64 = 100_000_000;

/// One tensor of a file: what it is and where its bytes lie.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl TensorInfo {
    /// Bytes of its data.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// What a header says, tensors in the order of their data.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// What is wrong with a header: the tensor to blame, if one is, and the reason.
pub(super) struct Fault {
    pub(super) tensor: Option<String>,
    pub(super) reason: String,
}

fn fault(tensor: &str, reason: impl Into<String>) -> Fault {
    Fault { tensor: Some(tensor.to_string()), reason: reason.into() }
}

fn file_fault(reason: impl Into<String>) -> Fault {
    Fault { tensor: None, reason: reason.into() }
}

/// The length of the header from the first 8 bytes of a file of `file_len` bytes.
pub(super) fn header_len(first: [u8; 8], file_len: u64) -> Result<usize, Fault> {
    let len = u64::from_le_bytes(first);
    if len > MAX_HEADER {
        return Err(file_fault(format!("its header would be {len} bytes long, more than {MAX_HEADER}")));
    }
    if len > file_len.saturating_sub(8) {
        return Err(file_fault(format!("its header would be {len} bytes long, but the file has {file_len} bytes")));
    }
    usize::try_from(len).map_err(|_| file_fault(format!("its header of {len} bytes does not fit in memory")))
}

impl Header {
    /// Parses and checks the JSON against `data_len` bytes of data behind it.
    pub(super) fn parse(json: &[u8], data_len: u64) -> Result<Self, Fault> {
        let text = std::str::from_utf8(json).map_err(|_| file_fault("its header is not UTF-8"))?;
        let Entries(entries) =
            serde_json::from_str(text).map_err(|e| file_fault(format!("its header is not a JSON object: {e}")))?;
        let mut header = Self::default();
        let mut seen = HashMap::new();
        for (name, value) in entries {
            if seen.insert(name.clone(), ()).is_some() {
                return Err(fault(&name, "appears twice in the header"));
            }
            if name == "__metadata__" {
                header.metadata = metadata(&value)?;
            } else {
                header.tensors.push(tensor(name, &value)?);
            }
        }
        header.tensors.sort_by_key(|t| (t.start, t.end));
        check_cover(&header.tensors, data_len)?;
        Ok(header)
    }

    /// The first bytes of a file: length and JSON, padded with spaces so that the data start at a multiple of 8.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        // Written by hand to keep the order; every string goes through serde_json.
        let quoted = |s: &str| Value::from(s).to_string();
        let mut items = Vec::with_capacity(self.tensors.len() + 1);
        if !self.metadata.is_empty() {
            let pairs: Vec<_> = self.metadata.iter().map(|(k, v)| format!("{}:{}", quoted(k), quoted(v))).collect();
            items.push(format!("\"__metadata__\":{{{}}}", pairs.join(",")));
        }
        for t in &self.tensors {
            items.push(format!(
                "{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                quoted(&t.name),
                t.dtype,
                Value::from(t.shape.clone()),
                t.start,
                t.end
            ));
        }
        let mut json = format!("{{{}}}", items.join(",")).into_bytes();
        json.resize(json.len().next_multiple_of(8), b' ');
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json);
        bytes
    }
}

/// The entries of a JSON object in their order, repeated names included.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

fn metadata(value: &Value) -> Result<BTreeMap<String, String>, Fault> {
    match value {
        Value::Null => Ok(BTreeMap::new()),
        Value::Object(pairs) => pairs
            .iter()
            .map(|(key, value)| match value.as_str() {
                Some(text) => Ok((key.clone(), text.to_string())),
                None => Err(file_fault(format!("its metadata entry {key:?} is not a string"))),
            })
            .collect(),
        _ => Err(file_fault("its metadata is not an object")),
    }
}

fn tensor(name: String, value: &Value) -> Result<TensorInfo, Fault> {
    let numbers = |key: &str| -> Option<Vec<u64>> { value.get(key)?.as_array()?.iter().map(Value::as_u64).collect() };
    let Some(dtype_name) = value.get("dtype").and_then(Value::as_str) else {
        return Err(fault(&name, "has no dtype"));
    };
    let Ok(dtype) = serde_json::from_value::<Dtype>(Value::from(dtype_name)) else {
        return Err(fault(&name, format!("has the unknown dtype {dtype_name:?}")));
    };
    let shape: Option<Vec<usize>> =
        numbers("shape").and_then(|s| s.into_iter().map(|n| usize::try_from(n).ok()).collect());
    let Some(shape) = shape else {
        return Err(fault(&name, "has no shape of whole numbers"));
    };
    let Some(&[start, end]) = numbers("data_offsets").as_deref() else {
        return Err(fault(&name, "has no data_offsets of two whole numbers"));
    };
    let size = data_bytes(dtype, &shape).ok_or_else(|| fault(&name, too_large(dtype, &shape)))?;
    if start > end || end - start != size {
        let found = format!("lies at bytes {start} to {end}, but {dtype} {shape:?} takes {size} bytes");
        return Err(fault(&name, found));
    }
    Ok(TensorInfo { name, dtype, shape, start, end })
}

/// Bytes of a tensor; `None` if the number overflows or is not whole.
pub(super) fn data_bytes(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(u64::try_from(n).ok()?))?;
    let bits = elements.checked_mul(dtype.bitsize() as u64)?;
    (bits % 8 == 0).then_some(bits / 8)
}

fn too_large(dtype: Dtype, shape: &[usize]) -> String {
    format!("has a size in bytes that overflows or is not whole ({dtype} {shape:?})")
}

/// The data must be covered from 0 to the end without holes or overlaps, as the format demands.
fn check_cover(tensors: &[TensorInfo], data_len: u64) -> Result<(), Fault> {
    let mut at = 0;
    for t in tensors {
        if t.start < at {
            return Err(fault(&t.name, format!("starts at byte {} inside the tensor before it", t.start)));
        }
        if t.start > at {
            return Err(fault(&t.name, format!("starts at byte {} but the tensor before it ends at {at}", t.start)));
        }
        if t.end > data_len {
            let found = format!("ends at byte {} but the file holds {data_len} bytes of data: it is truncated", t.end);
            return Err(fault(&t.name, found));
        }
        at = t.end;
    }
    if at != data_len {
        return Err(file_fault(format!("it holds {data_len} bytes of data, but its tensors take {at}")));
    }
    Ok(())
}
