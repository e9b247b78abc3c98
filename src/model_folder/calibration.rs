//! [`InputScales`]: the largest activations that calibration saw, from a file.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::checkpoint::{Checkpoint, printable};
use crate::error::{Error, Result};

/// The largest magnitude of the inputs of each layer, by calibration.
///
/// The file is a JSON object of names and numbers, `{"model.layers.0.self_attn.q_proj": 31.5}`, or a safetensors file with one
/// BF16, F16 or F32 element under each name. Names are those of layers or of their weights (`.weight` is left out). The numbers are
/// amax of the layer's input over the calibration data, finite and above 0; what a file of a model makes of them,
/// `input_scale = amax / 448` of FP8 and `amax / (6 * 448)` of NVFP4, is the writer's business.
#[derive(Debug, Clone, Default)]
pub struct InputScales {
    amax: HashMap<String, f32>,
}

impl InputScales {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::File`] if it is neither of the two, or a number is not finite and above 0; [`Error::Io`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let refuse = |tensor: Option<&str>, reason: String| Error::File {
            path: path.to_path_buf(),
            tensor: tensor.map(printable),
            reason: printable(&reason),
            remedy: "give a JSON object of layers and the amax of their inputs, or a safetensors file of such scalars"
                .into(),
        };
        let mut amax = HashMap::new();
        let mut add = |name: &str, value: f64| {
            let found = value as f32;
            if !(found.is_finite() && found > 0.0) {
                return Err(refuse(Some(name), format!("is {value}: an amax is finite and above 0")));
            }
            let module = name.strip_suffix(".weight").unwrap_or(name);
            match amax.insert(module.to_string(), found) {
                Some(_) => Err(refuse(Some(name), "is there twice".into())),
                None => Ok(()),
            }
        };
        match fs::read(path).ok().filter(|bytes| bytes.trim_ascii_start().first() == Some(&b'{')) {
            Some(text) => {
                let value: Value =
                    serde_json::from_slice(&text).map_err(|e| refuse(None, format!("is no JSON: {e}")))?;
                let entries = value.as_object().into_iter().flatten();
                for (name, value) in entries {
                    let number =
                        value.as_f64().ok_or_else(|| refuse(Some(name), format!("is {value}, not a number")))?;
                    add(name, number)?;
                }
            }
            None => {
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
