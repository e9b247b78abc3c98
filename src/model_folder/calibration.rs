//! [`InputScales`]: the largest activations that calibration saw, from a file.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::error::Category;

use crate::checkpoint::{Checkpoint, Words, each_entry, open_regular, printable};
use crate::error::{Error, Result};

/// Longest JSON read: that of a million layers.
const MOST_BYTES: u64 = 64 << 20;

const FORM: &str = "give a JSON object of layers and their amax, or a safetensors file of such scalars";
const RULE: &str = "an amax is above 0 and finite in FP32, at most 3.4028235e38";
const NUMBER: &str =
    "give the largest magnitude that was seen, or leave the layer out of the file, for --input-scales with --exclude";
/// What to do about a value that is no number: in Python's NaN, quotation marks, or a list.
const NO_NUMBER: &str = "give the largest magnitude that was seen as a number, or leave the layer out of the file, for --input-scales with --exclude; JSON has no NaN and no infinity";
/// What serde_json says of a number that no FP64 is.
const BEYOND: &str = " is not a number: number out of range";

/// What text of other encodings begins with.
const ENCODINGS: [(&[u8], &str); 3] = [
    (b"\xEF\xBB\xBF", "begins with the byte order mark EF BB BF, and JSON has none"),
    (b"\xFF\xFE", "begins with the byte order mark FF FE of UTF-16, and JSON is UTF-8"),
    (b"\xFE\xFF", "begins with the byte order mark FE FF of UTF-16, and JSON is UTF-8"),
];

/// The largest magnitude of the inputs of each layer, by calibration; or of the weights of layers, where those are given.
///
/// The file is a JSON object of names and numbers, `{"model.layers.0.self_attn.q_proj": 31.5}`, or a safetensors file with one
/// BF16, F16 or F32 element under each name. Names are those of layers or of their weights (`.weight` is left out). The numbers are
/// amax of the layer's input over the calibration data, finite and above 0; what a file of a model makes of them,
/// `input_scale = amax / 448` of FP8 and `amax / (6 * 448)` of NVFP4, is the writer's business.
#[derive(Debug, Clone, Default)]
pub struct InputScales {
    amax: HashMap<String, f32>,
}

/// What serde_json says of a number that no FP64 is, in other words. It ends with that and the place: a name may have the same words.
fn beyond(text: &str) -> Option<String> {
    let (found, place) = text.split_at(text.rfind(" at line ")?);
    Some(format!("{} has a number beyond FP64{place}", found.strip_suffix(BEYOND)?))
}

impl InputScales {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::File`] if it is neither of the two, a layer is there twice, or a number is not finite and above 0; [`Error::Io`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let refuse_with = |tensor: Option<&str>, reason: String, remedy: &str| Error::File {
            path: path.to_path_buf(),
            tensor: tensor.map(printable),
            reason: printable(&reason),
            remedy: remedy.into(),
        };
        let refuse = |tensor: Option<&str>, reason: String| refuse_with(tensor, reason, FORM);
        let mut amax = HashMap::new();
        let mut add = |name: &str, value: f64| {
            let found = value as f32;
            if !(found.is_finite() && found > 0.0) {
                // With an exponent where it has many digits.
                return Err(refuse_with(Some(name), format!("is {value:?}: {RULE}"), NUMBER));
            }
            let module = name.strip_suffix(".weight").unwrap_or(name);
            match amax.insert(module.to_string(), found) {
                Some(_) => Err(refuse(Some(name), "is there twice".into())),
                None => Ok(()),
            }
        };
        let file = open_regular(path, "give a JSON or safetensors file on a disk")?;
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let len = file.metadata().map_err(io)?.len();
        let mut reader = BufReader::new(file);
        let beginning = reader.fill_buf().map_err(io)?;
        if beginning.trim_ascii().is_empty() && beginning.len() as u64 == len {
            return Err(refuse(None, format!("is empty: {len} bytes, and no amax among them")));
        }
        // A safetensors file begins with its length, and is read in its own way.
        let is_length = beginning.first_chunk::<8>().is_some_and(|first| u64::from_le_bytes(*first) < MOST_BYTES);
        let first = beginning.trim_ascii_start().first().copied().filter(|_| !is_length);
        let encoding = ENCODINGS.into_iter().find(|(mark, _)| !is_length && beginning.starts_with(mark));
        if let Some((_, words)) = encoding {
            return Err(refuse_with(None, words.into(), "save it as UTF-8 without a byte order mark"));
        }
        match first {
            Some(b'[') => return Err(refuse(None, "is JSON, and no object".into())),
            Some(b'{') if len > MOST_BYTES => {
                return Err(refuse(None, format!("is JSON of {len} bytes, more than {MOST_BYTES}")));
            }
            Some(b'{') => {
                let mut refused = None;
                let mut reader = serde_json::Deserializer::from_reader(reader);
                let words = Words { object: "an object of layers and their amax", key: "layer", value: "a number" };
                let read = each_entry(&mut reader, words, |name, value| {
                    add(&name, value).map_err(|e| {
                        refused = Some(e);
                        String::new()
                    })
                });
                if let Err(e) = read.and_then(|()| reader.end()) {
                    let beyond = beyond(&e.to_string());
                    return Err(refused.unwrap_or_else(|| match (e.classify(), beyond) {
                        (Category::Io, _) => io(e.into()),
                        (Category::Data, Some(found)) => refuse_with(None, format!("{found}: {RULE}"), NUMBER),
                        (Category::Data, _) if e.to_string().contains(" is not a number") => {
                            refuse_with(None, e.to_string(), NO_NUMBER)
                        }
                        (Category::Data, _) => refuse(None, e.to_string()),
                        (Category::Syntax | Category::Eof, _) => refuse(None, format!("is no JSON: {e}")),
                    }));
                }
            }
            _ => {
                let file = Checkpoint::open(path)?;
                for tensor in file.tensors() {
                    let (values, _) = file.values(&tensor.name)?;
                    let [value] = values.as_slice() else {
                        let found = format!("has shape {:?}, and one number is the amax of a layer", tensor.shape);
                        return Err(refuse(Some(&tensor.name), found));
                    };
                    add(&tensor.name, f64::from(*value))?;
                }
            }
        }
        Ok(Self { amax })
    }

    /// The amax of the inputs of a module.
    pub fn amax(&self, module: &str) -> Option<f32> {
        self.amax.get(module).copied()
    }

    /// Its modules, in no order.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.amax.keys().map(String::as_str)
    }
}
