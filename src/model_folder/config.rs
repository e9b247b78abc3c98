//! [`ModelConfig`]: the `config.json` of a model's folder.

use std::io::Read;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde_json::{Map, Value};

use crate::checkpoint::{open_regular, printable};
use crate::error::{Error, Result};

/// Longest config accepted.
const MOST_BYTES: u64 = 64 << 20;

/// The `config.json` of a model's folder.
#[derive(Debug, Clone)]
pub struct ModelConfig {
    path: PathBuf,
    entries: Map<String, Value>,
    /// What an earlier quantization left alone.
    ignored: Vec<Ignored>,
}

/// One entry of a list of modules that are not quantized.
#[derive(Debug, Clone)]
enum Ignored {
    /// A module, and all within it.
    Module(String),
    /// Names that begin so.
    Beginning(String),
    Pattern(Regex),
}

impl ModelConfig {
    /// Reads `config.json` of a folder; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::File`] if it is no JSON object, longer than 64 MiB, or names modules by a pattern that is none; [`Error::Io`].
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
        let entries: Map<String, Value> =
            serde_json::from_slice(&text).map_err(|e| refuse(format!("is no JSON object: {e}")))?;
        let lists = ["modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"];
        let quantization = entries.get("quantization_config");
        let texts = lists.iter().filter_map(|key| quantization?.get(key)?.as_array()).flatten();
        let ignored = texts.filter_map(Value::as_str).map(|text| match text.strip_prefix("re:") {
            Some(pattern) => Regex::new(&format!("^(?:{pattern})")).map(Ignored::Pattern).map_err(|e| {
                refuse(format!("its quantization_config names modules by {text:?}, which is no pattern: {e}"))
            }),
            None => Ok(match text.strip_suffix('*') {
                Some(beginning) => Ignored::Beginning(beginning.into()),
                None => Ignored::Module(text.into()),
            }),
        });
        let ignored = ignored.collect::<Result<_>>()?;
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

    /// The `quantization_config`, where there is one.
    pub fn quantization(&self) -> Option<&Value> {
        self.entries.get("quantization_config").filter(|value| !value.is_null())
    }

    /// True if the `quantization_config` leaves this module alone.
    pub fn ignores(&self, module: &str) -> bool {
        self.ignored.iter().any(|ignored| match ignored {
            Ignored::Module(name) => {
                module.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }
            Ignored::Beginning(beginning) => module.starts_with(beginning.as_str()),
            Ignored::Pattern(pattern) => pattern.is_match(module),
        })
    }

    /// The text of the config with this `quantization_config`, or without one.
    pub fn with_quantization(&self, quantization: Option<Value>) -> String {
        let mut entries = self.entries.clone();
        match quantization {
            Some(value) => drop(entries.insert("quantization_config".into(), value)),
            None => drop(entries.remove("quantization_config")),
        }
        format!("{:#}\n", Value::Object(entries))
    }
}
