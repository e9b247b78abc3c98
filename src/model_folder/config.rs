//! [`ModelConfig`]: the `config.json` of a model's folder.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::ignored::Ignored;
use super::text::{Change, edited, with_entry};
use crate::checkpoint::{Heads, open_regular, printable};
use crate::error::{Error, Result};
use crate::format::DType;

/// Longest config accepted: its tree takes many times as much.
const MOST_BYTES: u64 = 16 << 20;

/// Whether the head shares the weight of the embeddings.
const TIED: &str = "tie_word_embeddings";

/// The `config.json` of a model's folder.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    path: PathBuf,
    /// With the numbers that JSON does not have as strings.
    text: String,
    /// What these begin with.
    mark: String,
    entries: Map<String, Value>,
    ignored: Ignored,
}

impl ModelConfig {
    /// Reads `config.json` of a folder; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::File`] if it is no JSON object, longer than 16 MiB, or leaves modules alone by very many or very large
    /// patterns; [`Error::Io`].
    pub fn read(folder: impl AsRef<Path>) -> Result<Option<Self>> {
        let path = folder.as_ref().join("config.json");
        if !path.exists() {
            return Ok(None);
        }
        let refuse = |reason: String| Error::File {
            path: path.clone(),
            tensor: None,
            reason: printable(&reason),
            remedy: "mend the config, or fetch the model again".into(),
        };
        let mut text = Vec::new();
        let file = open_regular(&path, "a model's config.json is a file")?;
        file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|source| Error::Io { path: path.clone(), source })?;
        if text.len() as u64 > MOST_BYTES {
            return Err(refuse(format!("is longer than {MOST_BYTES} bytes")));
        }
        let text = String::from_utf8(text).map_err(|_| refuse("is no UTF-8".into()))?;
        if text.starts_with('\u{feff}') {
            return Err(refuse("begins with the byte order mark EF BB BF, and JSON has none: save it without".into()));
        }
        let mark = mark(&text);
        let text = quoted(&text, &mark);
        let entries: Map<String, Value> =
            serde_json::from_str(&text).map_err(|e| refuse(format!("is no JSON object: {e}")))?;
        let lists = ["modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"];
        let quantizations = quantizations(&entries, 0);
        let texts = quantizations.iter().flat_map(|q| lists.iter().filter_map(|key| q.get(key)?.as_array())).flatten();
        let ignored = Ignored::new(texts.filter_map(Value::as_str)).map_err(refuse)?;
        Ok(Some(Self { path, text, mark, entries, ignored }))
    }

    /// Where it was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The class that an engine makes of it, `LlamaForCausalLM`; empty where it does not say.
    pub fn architecture(&self) -> &str {
        self.entries.get("architectures").and_then(|list| list.get(0)?.as_str()).unwrap_or_default()
    }

    /// Its `model_type`, and that of its text model, where it has one inside.
    pub fn model_types(&self) -> impl Iterator<Item = &str> {
        let inner = self.entries.get("text_config").and_then(|text| text.get("model_type"));
        self.entries.get("model_type").into_iter().chain(inner).filter_map(Value::as_str)
    }

    /// The heads of its attention, or of its text model's, where it says them. Without a word of those of keys there are as many as
    /// of queries.
    pub fn heads(&self) -> Option<Heads> {
        const QUERIES: &str = "num_attention_heads";
        let says = |entries: &&Map<String, Value>| entries.get(QUERIES).is_some_and(|value| !value.is_null());
        let inner = || self.entries.get("text_config").and_then(Value::as_object).filter(says);
        let entries = Some(&self.entries).filter(says).or_else(inner)?;
        // Not said, said, or said in a way that is no number.
        let number = |key: &str| match entries.get(key) {
            None | Some(Value::Null) => Some(None),
            Some(value) => Some(Some(usize::try_from(value.as_u64()?).ok()?)),
        };
        let queries = number(QUERIES)?.filter(|queries| *queries > 0)?;
        let keys = number("num_key_value_heads")?.unwrap_or(queries);
        Some(Heads { queries, keys, rows: number("head_dim")?, cols: number("hidden_size")? })
    }

    /// True if it, or its text model's, says that the head shares the weight of the embeddings (`tie_word_embeddings`).
    ///
    /// The two differ in published models, and transformers goes by the inner one (`get_text_config(decoder=True)`), as far as an
    /// architecture has it: one of them is enough. Where neither has the key it is not: it says nothing then, and what transformers
    /// takes differs by architecture and by version.
    pub fn has_tied_head(&self) -> bool {
        let says = |config: Option<&Value>| config == Some(&Value::Bool(true));
        let inner = self.entries.get("text_config").and_then(|text| text.get(TIED));
        says(self.entries.get(TIED)) || says(inner)
    }

    /// The `quantization_config`, where there is one: that of the whole, or else of a part (`text_config`).
    pub fn quantization(&self) -> Option<&Value> {
        quantizations(&self.entries, 0).first().copied()
    }

    /// True if the `quantization_config` leaves this module alone.
    pub fn ignores(&self, module: &str) -> bool {
        self.ignored.contains(module)
    }

    /// True if the `quantization_config` names this module itself as left alone, and not by a pattern or a module around it.
    pub fn ignores_by_name(&self, module: &str) -> bool {
        self.ignored.names(module)
    }

    /// The same for weights of this plain type, where it names one (`torch_dtype`, `dtype`).
    pub fn with_dtype(mut self, dtype: DType) -> Self {
        let name = match dtype {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::Bf16 => "bfloat16",
            // What weights are stored as is no type that a model computes in.
            DType::E4M3 | DType::E5M2 => return self,
        };
        if let Some(text) = with_dtype(&self.text, 0, name) {
            self.text = text;
        }
        self
    }

    /// The text of the config as it was read, with what [`ModelConfig::with_dtype`] changed.
    pub fn text(&self) -> String {
        plain(&self.text, &self.mark)
    }

    /// The text of the config with this `quantization_config` alone, or without one: those of its parts (`text_config`) go. The one
    /// that is there stays in its place, and what is not changed is as it was, byte for byte; so is a `null` that was to go.
    pub fn with_quantization(&self, quantization: Option<Value>) -> String {
        let there = self.entries.get(QUANTIZATION);
        // One deeper than it is printed; no string of JSON has a line of its own.
        let new = quantization.as_ref().map(|value| format!("{value:#}").replace('\n', "\n  "));
        let change = match &new {
            None => Entry::Drop,
            Some(_) if there == quantization.as_ref() => Entry::Keep,
            Some(new) => Entry::To(new),
        };
        let text = with_quantization(&self.text, 0, change).unwrap_or_else(|| self.text.clone());
        let text = match new.filter(|_| there.is_none()) {
            Some(new) => with_entry(&text, QUANTIZATION, &new),
            None => text,
        };
        plain(&text, &self.mark)
    }
}

const QUANTIZATION: &str = "quantization_config";

/// Parts within parts that are looked at; models have two. Each is read again where the text of one around it is changed.
const DEEPEST: usize = 8;

/// True for the config of a part of what is so deep itself: models of several parts have one for each.
fn is_of_part(key: &str, depth: usize) -> bool {
    depth < DEEPEST && key.ends_with("_config") && key != QUANTIZATION
}

/// What it says of quantized weights: for the whole, then for the text model, then for other parts.
fn quantizations(entries: &Map<String, Value>, depth: usize) -> Vec<&Value> {
    let mut found: Vec<&Value> = entries.get(QUANTIZATION).filter(|value| !value.is_null()).into_iter().collect();
    let mut parts: Vec<_> = entries.iter().filter(|(key, _)| is_of_part(key, depth)).collect();
    parts.sort_by_key(|(key, _)| *key != "text_config");
    let parts = parts.into_iter().filter_map(|(_, part)| part.as_object());
    found.extend(parts.flat_map(|part| quantizations(part, depth + 1)));
    found
}

/// What becomes of the `quantization_config` of an object.
#[derive(Clone, Copy)]
enum Entry<'a> {
    Keep,
    Drop,
    To(&'a str),
}

/// The text of an object with its `quantization_config` changed, and without those of its parts. Nothing where it is the same.
fn with_quantization(text: &str, depth: usize, entry: Entry<'_>) -> Option<String> {
    edited(text, &mut |key, value| match (key, entry) {
        (QUANTIZATION, Entry::To(new)) => Change::To(new.into()),
        // It says nothing.
        (QUANTIZATION, Entry::Drop) if value == "null" => Change::Keep,
        (QUANTIZATION, Entry::Drop) => Change::Drop,
        _ if is_of_part(key, depth) && value.starts_with('{') => {
            with_quantization(value, depth + 1, Entry::Drop).map_or(Change::Keep, Change::To)
        }
        _ => Change::Keep,
    })
}

/// The text with the name of a type wherever one is named, in the parts too. Nothing where it is the same.
fn with_dtype(text: &str, depth: usize, name: &str) -> Option<String> {
    edited(text, &mut |key, value| match value.as_bytes().first() {
        Some(b'"') if key == "torch_dtype" || key == "dtype" => Change::To(format!("\"{name}\"")),
        Some(b'{') if is_of_part(key, depth) => with_dtype(value, depth + 1, name).map_or(Change::Keep, Change::To),
        _ => Change::Keep,
    })
}

/// Numbers that Python writes and JSON does not have.
const NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// What a string of JSON begins with where a mark does.
const ESCAPE: &str = "\\u0001";

/// What is nowhere in a text: strings that begin so are none of its own. With a number, since a mark that grew with the text would make
/// a text of many such numbers very long.
fn mark(text: &str) -> String {
    let numbers = text.match_indices(ESCAPE).filter_map(|(at, _)| {
        let rest = &text[at + ESCAPE.len()..];
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    });
    let taken: HashSet<usize> = numbers.collect();
    let free = (0..).find(|number| !taken.contains(number)).unwrap_or_default();
    format!("{ESCAPE}{free}")
}

/// The text with the numbers that [`quoted`] made strings of.
fn plain(text: &str, mark: &str) -> String {
    NUMBERS.iter().fold(text.to_string(), |text, number| text.replace(&format!("\"{mark}{number}\""), number))
}

/// A value of JSON, with the numbers that Python writes and JSON does not have as strings.
///
/// # Errors
/// Text that is no such value.
pub fn python_json(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(&quoted(text, &mark(text)))
}

/// The text with such numbers as strings that no config has.
fn quoted(text: &str, mark: &str) -> String {
    let (mut out, mut rest, mut in_string) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        if let Some(number) = NUMBERS.iter().find(|number| !in_string && rest.starts_with(**number)) {
            out += &format!("\"{mark}{number}\"");
            rest = &rest[number.len()..];
            continue;
        }
        let len = match c {
            // An escape: what follows ends no string.
            '\\' if in_string => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            '"' => {
                in_string = !in_string;
                1
            }
            _ => c.len_utf8(),
        };
        out += &rest[..len];
        rest = &rest[len..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_names_the_type_that_is_written() {
        let text = r#"{"torch_dtype": "bfloat16", "text_config": {"dtype": "float32", "torch_dtype": null}, "other": {"dtype": "x"},
            "quantization_config": {"dtype": "int4"}}"#;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let config = ModelConfig::read(folder.path()).unwrap().unwrap().with_dtype(DType::F16);
        let compact: String = config.with_quantization(config.quantization().cloned()).split_whitespace().collect();
        let want = r#"{"torch_dtype":"float16","text_config":{"dtype":"float16","torch_dtype":null},"other":{"dtype":"x"},"quantization_config":{"dtype":"int4"}}"#;
        assert_eq!(compact, want);
    }

    #[test]
    fn parts_say_that_they_are_quantized_too() {
        let text = r#"{"audio_config": {"quantization_config": {"ignore": ["ears"]}}, "quantization_config": null,
            "text_config": {"quantization_config": {"quant_method": "fp8", "ignore": ["l.0"]}}, "x": {"quantization_config": 1}}"#;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let config = ModelConfig::read(folder.path()).unwrap().unwrap();
        assert_eq!(config.quantization().unwrap()["quant_method"], "fp8");
        assert!(config.ignores_by_name("l.0") && config.ignores_by_name("ears") && !config.ignores_by_name("l.0.q"));
        assert_eq!(config.text(), text);
        let with = |value| serde_json::from_str::<Value>(&config.with_quantization(value)).unwrap();
        let mut want = serde_json::json!({"audio_config": {}, "text_config": {}, "x": {"quantization_config": 1}});
        want["quantization_config"] = Value::Null;
        assert_eq!(with(None), want);
        // (What equalled the first stayed in its part, and those of other parts beside it.)
        want["quantization_config"] = config.quantization().unwrap().clone();
        assert_eq!(with(config.quantization().cloned()), want);
        want["quantization_config"] = "new".into();
        assert_eq!(with(Some("new".into())), want);
    }

    #[test]
    fn pythons_numbers_come_back_and_strings_stay() {
        let text = r#"{"a": [0.0, Infinity, -Infinity, NaN], "NaN": "NaN \" Infinity", "quantization_config": {"ignore": ["re:(?!x).*", "h"]}}"#;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let config = ModelConfig::read(folder.path()).unwrap().unwrap();
        assert!(config.ignores("h.0") && !config.ignores("x"));
        let back = config.with_quantization(None);
        let compact: String = back.split_whitespace().collect();
        assert_eq!(compact, r#"{"a":[0.0,Infinity,-Infinity,NaN],"NaN":"NaN\"Infinity"}"#);
        // A quote, and then what stands for a number, within a string.
        std::fs::write(folder.path().join("config.json"), r#"{"a": "b \"\u0001NaN"}"#).unwrap();
        let back = ModelConfig::read(folder.path()).unwrap().unwrap().with_quantization(None);
        assert_eq!(serde_json::from_str::<Value>(&back).unwrap(), serde_json::json!({"a": "b \"\u{1}NaN"}), "{back}");
    }

    /// (Such a string came back as the number.)
    #[test]
    fn strings_that_look_like_what_stands_for_a_number_stay() {
        let folder = tempfile::tempdir().unwrap();
        for text in [
            r#"{"a":"\u0001NaN"}"#,
            r#"{"a":"\u0001NaN","b":"\u00010NaN","c":NaN,"\u0001Infinity":-Infinity,"d":"\u0001\u0001NaN","e":"\\u00010NaN"}"#,
        ] {
            std::fs::write(folder.path().join("config.json"), text).unwrap();
            let config = ModelConfig::read(folder.path()).unwrap().unwrap();
            assert_eq!(config.with_quantization(None), text);
            // What is changed around them.
            let with = config.with_quantization(Some(1.into()));
            std::fs::write(folder.path().join("config.json"), with).unwrap();
            let back = ModelConfig::read(folder.path()).unwrap().unwrap().with_quantization(None);
            assert_eq!(back.split_whitespace().collect::<String>(), text);
        }
    }

    /// (Keys were sorted and numbers written anew, so that nobody saw what had changed.)
    #[test]
    fn a_config_differs_in_what_was_changed() {
        let text = r#"{
  "rms_norm_eps": 1e-05,
  "architectures": [
    "LlamaForCausalLM"
  ],
  "limits": [-Infinity,NaN, 1.0E+2],
  "torch_dtype": "bfloat16",
  "name": "\u00e9",
  "vision_config": {
    "z": 1e-6,
    "a": {}
  }
}
"#;
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(folder.path().join("config.json"), text).unwrap();
            ModelConfig::read(folder.path()).unwrap().unwrap()
        };
        let config = read(text);
        assert_eq!(config.with_quantization(None), text);
        let changed = text.replace("bfloat16", "float16");
        assert_eq!(config.clone().with_dtype(DType::F16).with_quantization(None), changed);
        let quantized = config.with_quantization(Some(serde_json::json!({"ignore": ["h"], "bits": 4})));
        let entry =
            "  },\n  \"quantization_config\": {\n    \"bits\": 4,\n    \"ignore\": [\n      \"h\"\n    ]\n  }\n}\n";
        assert_eq!(quantized, text.replace("  }\n}\n", entry));
        // Another in its place, and without it as it was.
        let other = read(&quantized).with_quantization(Some(Value::from(1)));
        assert_eq!(other, text.replace("  }\n}\n", "  },\n  \"quantization_config\": 1\n}\n"));
        assert_eq!(read(&other).with_quantization(None), text);
        for (text, with, without) in [
            ("{}", "{\n  \"quantization_config\": 1\n}", "{}"),
            (r#"{"a":{"b":{}}}"#, "{\"a\":{\"b\":{}},\n  \"quantization_config\": 1\n}", "{\"a\":{\"b\":{}}\n}"),
        ] {
            let written = read(text).with_quantization(Some(Value::from(1)));
            assert_eq!(written, with);
            assert_eq!(read(&written).with_quantization(None), without);
        }
    }

    /// Parts within parts, as deep as JSON is read: each would be read again for every one around it.
    #[test]
    #[cfg(target_os = "linux")]
    fn deep_parts_cost_little() {
        use crate::model_folder::worked::seconds_worked;

        let deep =
            |depth: usize, inner: &str| format!("{}{inner}{}", "{\"a_config\":".repeat(depth), "}".repeat(depth));
        let inner = format!("{{\"x\":[{}0],\"quantization_config\":1,\"dtype\":\"x\"}}", "0,".repeat(1 << 20));
        let folder = tempfile::tempdir().unwrap();
        for (depth, is_seen) in [(DEEPEST, true), (120, false)] {
            std::fs::write(folder.path().join("config.json"), deep(depth, &inner)).unwrap();
            let config = ModelConfig::read(folder.path()).unwrap().unwrap();
            assert_eq!(config.quantization().is_some(), is_seen);
            let start = seconds_worked();
            let text = config.with_dtype(DType::F16).with_quantization(None);
            let worked = seconds_worked() - start;
            assert!(worked < 2.0, "{worked} s");
            assert_eq!([text.contains(QUANTIZATION), text.contains("float16")], [!is_seen, is_seen]);
        }
    }
}
