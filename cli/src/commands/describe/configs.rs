//! The two files of a folder that say how a model is quantized.

use std::fs;
use std::io::Read;
use std::path::Path;

use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::model_folder::{ModelConfig, python_json};
use serde_json::Value;

/// Longest `hf_quant_config.json` read: as long as a config.
const MOST_BYTES: u64 = 16 << 20;
pub const HF: &str = "hf_quant_config.json";
pub const CONFIG: &str = "config.json";

/// What one of them says.
#[derive(Clone, Copy)]
pub struct Said<'a> {
    pub file: &'static str,
    /// What `top` is called there.
    pub name: &'static str,
    pub top: &'a Value,
    /// Engines ask for a `quant_method`.
    pub needs_method: bool,
}

/// By whose rules a config is read.
#[derive(Clone, Copy, PartialEq)]
pub enum Method {
    Fp8,
    CompressedTensors,
    ModelOpt,
    Other,
}

impl<'a> Said<'a> {
    /// A `quant_algo` is ModelOpt's: engines go by another method where there is one.
    pub fn method(&self) -> Method {
        match (self.word("quant_method"), self.word("quant_algo")) {
            (Some("fp8"), _) => Method::Fp8,
            (Some("compressed-tensors"), _) => Method::CompressedTensors,
            (Some(method), _) if method.starts_with("modelopt") => Method::ModelOpt,
            (None, Some(_)) => Method::ModelOpt,
            _ => Method::Other,
        }
    }

    /// An entry, also of the `quantization` that ModelOpt puts around what it says.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        let of = |value: &'a Value| value.get(key).filter(|value| !value.is_null());
        of(self.top).or_else(|| of(self.top.get("quantization")?))
    }

    pub fn word(&self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }
}

/// Both, where they are there, and what is wrong with the second as a file.
pub struct Configs {
    pub config: Option<Value>,
    pub hf: Option<Value>,
    pub problem: Option<String>,
}

impl Configs {
    pub fn read(input: &Checkpoint, config: Option<&ModelConfig>) -> Self {
        let (hf, problem) = match input.folder().map(hf_quant_config).transpose() {
            Ok(hf) => (hf.flatten(), None),
            Err(reason) => (None, Some(reason)),
        };
        Self { config: config.and_then(ModelConfig::quantization).cloned(), hf, problem }
    }

    pub fn said(&self) -> Vec<Said<'_>> {
        let config =
            self.config.iter().map(|top| Said { file: CONFIG, name: "quantization_config", top, needs_method: true });
        let hf = self.hf.iter().map(|top| Said { file: HF, name: "what it holds", top, needs_method: false });
        config.chain(hf).collect()
    }
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
    if text.starts_with('\u{feff}') {
        return Err(format!("{HF}: begins with the byte order mark EF BB BF, and JSON has none; save it without"));
    }
    let value = python_json(&text);
    value.map(Some).map_err(|e| format!("{HF}: is no JSON: {e}; mend it, or fetch the model again"))
}
