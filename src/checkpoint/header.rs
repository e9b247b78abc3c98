//! The header of a safetensors file: 8 bytes of length, then JSON that says what lies where.
//!
//! Parsed here rather than by the safetensors crate's reader because that one wants the whole file in memory, forgets
//! the order and lets a repeated name pass.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use safetensors::Dtype;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::by_name::ByName;
use super::comfy;
use super::names::CODES_ENDINGS;

/// Most dimensions of a tensor accepted, as in PyTorch and NumPy: more of them would be memory for nothing.
const MAX_DIMENSIONS: usize = 64;

/// Most entries of metadata accepted: each takes a hundred bytes, and ten in the header.
const MAX_METADATA: usize = 1 << 20;
/// Bytes of the shortest entry of a tensor: `"":{"dtype":"U8","shape":[],"data_offsets":[0,0]}`.
const SHORTEST_ENTRY: usize = 49;

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
    /// Which file of the checkpoint its data are in.
    pub(super) file: usize,
}

impl TensorInfo {
    /// Bytes of its data.
    pub fn bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// What a header says, or those of several files, tensors in the order of their data.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) metadata: BTreeMap<String, String>,
    by_name: ByName,
}

/// What two files differ in that are to be one checkpoint.
pub(super) enum Clash {
    /// A tensor that both have.
    Tensor(String),
    /// How a matrix is read, by the metadata of these; and the one among all that holds its codes.
    Recipes { matrix: String, files: [usize; 2], codes: Option<usize> },
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

/// The length of the header from the first 8 bytes of a file of `file_len` bytes that is of no other kind.
pub(super) fn header_len(first: [u8; 8], file_len: u64) -> Result<usize, Fault> {
    let len = u64::from_le_bytes(first);
    if len > file_len.saturating_sub(8) {
        return Err(file_fault(format!("its header would be {len} bytes long, but the file has {file_len} bytes")));
    }
    usize::try_from(len).map_err(|_| file_fault(format!("its header of {len} bytes does not fit in memory")))
}

impl Header {
    /// The header of these tensors. `Err` is a name that is there twice, or that of the metadata.
    pub(super) fn new(tensors: Vec<TensorInfo>, metadata: BTreeMap<String, String>) -> Result<Self, String> {
        let twice = ByName::new(&tensors);
        let reserved = tensors.iter().position(|tensor| tensor.name == METADATA);
        match (twice, reserved) {
            (Err(place), _) | (_, Some(place)) => Err(tensors[place].name.clone()),
            (Ok(by_name), None) => Ok(Self { tensors, metadata, by_name }),
        }
    }

    /// Those of several files as one, in their order, with the keys of metadata in which they differ. `is_recipe`: whether such an entry says how
    /// a matrix is read. Without that, and without a tensor of that name, it is somebody else's, and that of the first file that has it stands, as
    /// of all other metadata.
    pub(super) fn merge(
        mut headers: Vec<Self>,
        is_recipe: impl Fn(&str) -> bool,
    ) -> Result<(Self, BTreeSet<String>), Clash> {
        if headers.len() == 1 {
            return Ok((headers.remove(0), BTreeSet::new()));
        }
        let (mut metadata, mut marks) = (BTreeMap::<String, (usize, String)>::new(), Vec::new());
        let (mut differ, mut keys) = (Vec::new(), BTreeSet::new());
        let mut tensors = Vec::with_capacity(headers.iter().map(|h| h.tensors.len()).sum());
        for (file, header) in headers.into_iter().enumerate() {
            tensors.extend(header.tensors.into_iter().map(|tensor| TensorInfo { file, ..tensor }));
            for (key, value) in header.metadata {
                if key == comfy::METADATA {
                    marks.push(value);
                    continue;
                }
                match metadata.entry(key) {
                    Entry::Vacant(place) => drop(place.insert((file, value))),
                    Entry::Occupied(known) => {
                        let (first, text) = known.get();
                        if *text == value {
                            continue;
                        }
                        keys.insert(known.key().clone());
                        if let Some(matrix) = known.key().strip_prefix(RECIPE_KEY) {
                            differ.push((matrix.to_string(), [*first, file], is_recipe(text) || is_recipe(&value)));
                        }
                    }
                }
            }
        }
        // Each file marks its own layers.
        let mut metadata: BTreeMap<_, _> = metadata.into_iter().map(|(key, (_, value))| (key, value)).collect();
        metadata.extend(comfy::merge(marks).map(|marks| (comfy::METADATA.to_string(), marks)));
        let merged = Self::new(tensors, metadata).map_err(Clash::Tensor)?;
        // What says how a matrix is read must not depend on the order of files.
        let codes =
            |matrix: &str| CODES_ENDINGS.iter().find_map(|ending| Some(merged.get(&[matrix, ending].concat())?.file));
        match differ.into_iter().find(|(matrix, _, are_recipes)| *are_recipes || codes(matrix).is_some()) {
            None => Ok((merged, keys)),
            Some((matrix, files, _)) => Err(Clash::Recipes { codes: codes(&matrix), matrix, files }),
        }
    }

    /// Where the tensor of this name is.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(&self.tensors, name)
    }

    /// The tensor of this name.
    pub(super) fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.position(name).map(|i| &self.tensors[i])
    }

    /// Parses and checks the JSON against `data_len` bytes of data behind it.
    pub(super) fn parse(json: &[u8], data_len: u64) -> Result<Self, Fault> {
        let text = std::str::from_utf8(json).map_err(|_| file_fault("its header is not UTF-8"))?;
        // Grown step by step, the list would take twice its room. No file makes it reserve more than tensors of its length could.
        let count = text.matches("data_offsets").count().min(text.len() / SHORTEST_ENTRY);
        let mut entries = Entries { tensors: Vec::with_capacity(count), ..Entries::default() };
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = reader.deserialize_map(&mut entries).and_then(|()| reader.end());
        if let Err(e) = read {
            return Err(entries.fault.unwrap_or_else(|| file_fault(format!("its header is not a JSON object: {e}"))));
        }
        let Entries { mut tensors, metadata, .. } = entries;
        // Most writers have them in order, and sorting takes memory.
        if !tensors.is_sorted_by_key(|t| (t.start, t.end)) {
            tensors.sort_by_key(|t| (t.start, t.end));
        }
        let header = Self::new(tensors, metadata.unwrap_or_default())
            .map_err(|name| fault(&name, "appears twice in the header"))?;
        check_cover(&header.tensors, data_len)?;
        Ok(header)
    }

    /// The first bytes of a file: length and JSON, padded with spaces so that the data start at a multiple of 8.
    ///
    /// `file`: of the tensors and recipes of this one among several.
    pub(super) fn to_bytes(&self, file: usize) -> Vec<u8> {
        // Written by hand to keep the order; every string goes through serde_json.
        let quoted = |s: &str| Value::from(s).to_string();
        let mut bytes = vec![0; 8];
        bytes.push(b'{');
        let here = |key: &str| match key.strip_prefix(RECIPE_KEY) {
            Some(matrix) => {
                let mut codes = CODES_ENDINGS.iter().filter_map(|ending| self.get(&[matrix, ending].concat()));
                codes.next().is_none_or(|codes| codes.file == file)
            }
            None => true,
        };
        let metadata = self.metadata.iter().filter(|(key, _)| here(key));
        let pairs: Vec<_> = metadata.map(|(k, v)| format!("{}:{}", quoted(k), quoted(v))).collect();
        if !pairs.is_empty() {
            bytes.extend(format!("\"{METADATA}\":{{{}}},", pairs.join(",")).bytes());
        }
        for t in self.tensors.iter().filter(|t| t.file == file) {
            let (name, shape) = (quoted(&t.name), Value::from(t.shape.as_slice()));
            let entry = format!(
                "{name}:{{\"dtype\":\"{}\",\"shape\":{shape},\"data_offsets\":[{},{}]}},",
                t.dtype, t.start, t.end
            );
            bytes.extend(entry.bytes());
        }
        // The comma behind the last entry.
        bytes.pop_if(|last| *last == b',');
        bytes.push(b'}');
        bytes.resize(bytes.len().next_multiple_of(8), b' ');
        let len = (bytes.len() - 8) as u64;
        bytes[..8].copy_from_slice(&len.to_le_bytes());
        bytes
    }
}

/// The name under which a header holds its metadata.
pub(super) const METADATA: &str = "__metadata__";
/// How the key of a matrix's entry in the metadata begins, before its name: what holds its recipe.
pub const RECIPE_KEY: &str = "scaled_gemm.";

/// What was read of a header so far, and what is wrong with the entry that ended the reading. Each entry is read into what is
/// kept of it: a tree of JSON values takes fifteen times the header.
#[derive(Default)]
struct Entries {
    tensors: Vec<TensorInfo>,
    metadata: Option<BTreeMap<String, String>>,
    fault: Option<Fault>,
}

impl Entries {
    fn push<'de, A: MapAccess<'de>>(&mut self, name: String, map: &mut A) -> Result<(), A::Error> {
        let stop = |entries: &mut Self, fault: Fault| {
            entries.fault = Some(fault);
            Err(A::Error::custom("stopped"))
        };
        if name == METADATA {
            if self.metadata.is_some() {
                return stop(self, fault(&name, "appears twice in the header"));
            }
            match map.next_value::<Option<Metadata>>() {
                Ok(metadata) => self.metadata = Some(metadata.unwrap_or_default().0),
                Err(e) => return stop(self, file_fault(format!("its metadata cannot be read: {e}"))),
            }
            return Ok(());
        }
        let entry = match map.next_value::<Spelled>() {
            Ok(entry) => entry,
            Err(e) => return stop(self, fault(&name, format!("cannot be read in the header: {e}"))),
        };
        match tensor(name, entry) {
            Ok(tensor) => self.tensors.push(tensor),
            Err(fault) => return stop(self, fault),
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for &mut Entries {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key()? {
            self.push(name, &mut map)?;
        }
        Ok(())
    }
}

/// The metadata: an object of strings, every name once.
#[derive(Default)]
struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = BTreeMap<String, String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = BTreeMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value =
                        map.next_value().map_err(|e| A::Error::custom(format!("metadata entry {key:?}: {e}")))?;
                    pairs.insert(key, value);
                    if pairs.len() > MAX_METADATA {
                        return Err(A::Error::custom(format!("more than {MAX_METADATA} entries")));
                    }
                }
                Ok(pairs)
            }
        }
        deserializer.deserialize_map(Strings).map(Self)
    }
}

/// One tensor as the header spells it.
#[derive(serde::Deserialize)]
#[serde(rename = "tensor")]
struct Spelled {
    dtype: String,
    #[serde(deserialize_with = "dimensions")]
    shape: Vec<usize>,
    #[serde(deserialize_with = "offsets")]
    data_offsets: [u64; 2],
}

fn dimensions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    struct Dimensions;
    impl<'de> Visitor<'de> for Dimensions {
        type Value = Vec<usize>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a shape of at most {MAX_DIMENSIONS} whole numbers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<usize>, A::Error> {
            let mut shape = Vec::new();
            while let Some(len) = items.next_element()? {
                if shape.len() == MAX_DIMENSIONS {
                    return Err(A::Error::invalid_length(MAX_DIMENSIONS + 1, &self));
                }
                shape.push(len);
            }
            shape.shrink_to_fit();
            Ok(shape)
        }
    }
    deserializer.deserialize_seq(Dimensions).map_err(|e| D::Error::custom(format!("shape: {e}")))
}

fn offsets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u64; 2], D::Error> {
    <[u64; 2]>::deserialize(deserializer)
        .map_err(|e| D::Error::custom(format!("data_offsets of two whole numbers: {e}")))
}

fn tensor(name: String, Spelled { dtype, shape, data_offsets: [start, end] }: Spelled) -> Result<TensorInfo, Fault> {
    let Ok(dtype) = Dtype::deserialize(BorrowedStrDeserializer::<serde::de::value::Error>::new(&dtype)) else {
        return Err(fault(&name, format!("has the unknown dtype {dtype:?}")));
    };
    let size = data_bytes(dtype, &shape).ok_or_else(|| fault(&name, too_large(dtype, &shape)))?;
    if start > end || end - start != size {
        let found = format!("lies at bytes {start} to {end}, but {dtype} {shape:?} takes {size} bytes");
        return Err(fault(&name, found));
    }
    Ok(TensorInfo { name, dtype, shape, start, end, file: 0 })
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
