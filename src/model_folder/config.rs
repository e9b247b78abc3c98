//! [`ModelConfig`]: the `config.json` of a model's folder.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::ignored::Ignored;
use crate::checkpoint::{open_regular, printable};
use crate::error::{Error, Result};
use crate::format::DType;

/// Longest config accepted: its tree takes many times as much.
const MOST_BYTES: u64 = 16 << 20;

/// The `config.json` of a model's folder.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    path: PathBuf,
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
        let entries: Map<String, Value> =
            serde_json::from_str(&quoted(&text)).map_err(|e| refuse(format!("is no JSON object: {e}")))?;
        let lists = ["modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"];
        let quantizations = quantizations(&entries);
        let texts = quantizations.iter().flat_map(|q| lists.iter().filter_map(|key| q.get(key)?.as_array())).flatten();
        let ignored = Ignored::new(texts.filter_map(Value::as_str)).map_err(refuse)?;
        Ok(Some(Self { path, entries, ignored }))
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

    /// The `quantization_config`, where there is one: that of the whole, or else of a part (`text_config`).
    pub fn quantization(&self) -> Option<&Value> {
        quantizations(&self.entries).first().copied()
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
        set_dtype(&mut self.entries, name);
        self
    }

    /// The text of the config with this `quantization_config` alone, or without one. The one that is there stays in its place.
    pub fn with_quantization(&self, quantization: Option<Value>) -> String {
        let mut entries = self.entries.clone();
        if quantization.is_none() || quantization.as_ref() != self.quantization() {
            remove_quantizations(&mut entries);
            entries.extend(quantization.map(|value| (QUANTIZATION.to_string(), value)));
        }
        let text = format!("{:#}\n", Value::Object(entries));
        // Before a string that stands for a number is a space; before a quote within another string, a backslash.
        let plain = |text: String, number: &&str| text.replace(&format!(" \"\\u0001{number}\""), &format!(" {number}"));
        NUMBERS.iter().fold(text, plain)
    }
}

const QUANTIZATION: &str = "quantization_config";

/// True for the config of a part: models of several parts have one for each.
fn is_of_part(key: &str) -> bool {
    key.ends_with("_config") && key != QUANTIZATION
}

/// What it says of quantized weights: for the whole, then for the text model, then for other parts.
fn quantizations(entries: &Map<String, Value>) -> Vec<&Value> {
    let mut found: Vec<&Value> = entries.get(QUANTIZATION).filter(|value| !value.is_null()).into_iter().collect();
    let mut parts: Vec<_> = entries.iter().filter(|(key, _)| is_of_part(key)).collect();
    parts.sort_by_key(|(key, _)| *key != "text_config");
    found.extend(parts.into_iter().filter_map(|(_, part)| part.as_object()).flat_map(quantizations));
    found
}

fn remove_quantizations(entries: &mut Map<String, Value>) {
    entries.remove(QUANTIZATION);
    let parts = entries.iter_mut().filter(|(key, _)| is_of_part(key));
    parts.filter_map(|(_, part)| part.as_object_mut()).for_each(remove_quantizations);
}

/// Writes the name of a type wherever one is named, in the parts too.
fn set_dtype(entries: &mut Map<String, Value>, name: &str) {
    for (key, value) in entries {
        match value {
            Value::String(text) if key == "torch_dtype" || key == "dtype" => *text = name.into(),
            Value::Object(part) if is_of_part(key) => set_dtype(part, name),
            _ => {}
        }
    }
}

/// Numbers that Python writes and JSON does not have.
const NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// The text with such numbers as strings that no config has.
fn quoted(text: &str) -> String {
    let (mut out, mut rest, mut in_string) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        if let Some(number) = NUMBERS.iter().find(|number| !in_string && rest.starts_with(**number)) {
            out += &format!("\"\\u0001{number}\"");
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
        let want = r#"{"other":{"dtype":"x"},"quantization_config":{"dtype":"int4"},"text_config":{"dtype":"float16","torch_dtype":null},"torch_dtype":"float16"}"#;
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
        let with = |value| serde_json::from_str::<Value>(&config.with_quantization(value)).unwrap();
        let mut want = serde_json::json!({"audio_config": {}, "text_config": {}, "x": {"quantization_config": 1}});
        assert_eq!(with(None), want);
        assert_eq!(with(config.quantization().cloned()), serde_json::from_str::<Value>(text).unwrap());
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
        assert_eq!(compact, r#"{"NaN":"NaN\"Infinity","a":[0.0,Infinity,-Infinity,NaN]}"#);
        // A quote, and then what stands for a number, within a string.
        std::fs::write(folder.path().join("config.json"), r#"{"a": "b \"\u0001NaN"}"#).unwrap();
        let back = ModelConfig::read(folder.path()).unwrap().unwrap().with_quantization(None);
        assert_eq!(serde_json::from_str::<Value>(&back).unwrap(), serde_json::json!({"a": "b \"\u{1}NaN"}), "{back}");
    }
}
