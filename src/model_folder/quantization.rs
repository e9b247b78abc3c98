//! [`QuantizationConfig`]: what `config.json` says of quantized weights, in each dialect.

use serde_json::{Value, json};

use crate::checkpoint::Dialect;
use crate::error::{Error, Result};
use crate::format::{Basis, CodeFormat, Recipe, Scheme};

/// The dialect that a recipe's weights are written in where nobody says: the one that most engines load.
pub fn default_dialect(recipe: Recipe) -> Dialect {
    let choices = [Dialect::Fp8, Dialect::ModelOpt, Dialect::CompressedTensors];
    let fits = |dialect: &Dialect| QuantizationConfig::new(*dialect, recipe, false).is_ok();
    choices.into_iter().find(fits).unwrap_or(Dialect::Plain)
}

/// How the linear layers of a model are quantized, for its `config.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantizationConfig {
    dialect: Dialect,
    scheme: Scheme,
    input_scales: bool,
}

impl QuantizationConfig {
    /// Weights of this recipe in this dialect; `input_scales`: with calibrated scales of the activations beside them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for what no engine reads in this dialect.
    pub fn new(dialect: Dialect, recipe: Recipe, input_scales: bool) -> Result<Self> {
        let scheme = recipe.scheme();
        let refuse = |reason: String, remedy: &str| {
            Err(Error::unsupported(format!("{scheme} in the dialect {}", dialect.name()), reason, remedy))
        };
        if recipe.basis() != Basis::Plain && dialect != Dialect::Plain {
            return refuse(
                "no engine transforms the rows back".into(),
                "leave the Hadamard transform out, or write plain",
            );
        }
        if recipe.format() == CodeFormat::E5M2 && dialect != Dialect::Plain {
            return refuse("engines read weights of e4m3".into(), "leave the format out, or write plain");
        }
        let known: &[&str] = match dialect {
            Dialect::Plain => return Ok(Self { dialect, scheme, input_scales }),
            Dialect::Fp8 => &["fp8-128x128", "fp8-tensor"],
            Dialect::CompressedTensors => &["fp8-row", "fp8-tensor", "fp8-128x128", "nvfp4", "mxfp8", "mxfp4"],
            Dialect::ModelOpt => &["nvfp4", "mxfp8", "fp8-tensor"],
            Dialect::ComfyUi => &["nvfp4", "mxfp8", "fp8-tensor"],
            Dialect::GptOss => &["mxfp4"],
        };
        let name = scheme.spec().name;
        // Not what this dialect lacks: what none has.
        let of_activations = match name {
            "nvfp4-row" => Some((
                "a second-level scale for each row is for activations, weights have one",
                "choose nvfp4 (dialects modelopt, compressed-tensors, comfyui), or write plain",
            )),
            "fp8-1x128" => Some((
                "groups of 1x128 are for activations, weights have tiles of 128x128",
                "choose fp8-128x128 (dialects fp8, compressed-tensors), or write plain",
            )),
            _ => None,
        };
        if let Some((reason, remedy)) = of_activations {
            return refuse(format!("no engine reads {name} weights: {reason}"), remedy);
        }
        if !known.contains(&name) {
            return refuse(format!("its weights are {}", known.join(", ")), "choose one of these, or write plain");
        }
        if dialect == Dialect::ModelOpt && name == "fp8-tensor" && !input_scales {
            let reason = "its engines take the scales of activations from the file".to_string();
            return refuse(
                reason,
                "give input scales (--input-scales FILE), or use the dialect fp8, which finds them while it runs",
            );
        }
        if input_scales && !takes_input_scales(name) {
            return refuse("it has no place for calibrated scales of activations".into(), "leave the input scales out");
        }
        Ok(Self { dialect, scheme, input_scales })
    }

    /// The `quantization_config` of `config.json`, or nothing where the dialect has none. `ignore`: the names of all linear layers
    /// that are not quantized, each in full, which every engine understands alike.
    pub fn value(&self, ignore: &[String]) -> Option<Value> {
        let name = self.scheme.spec().name;
        Some(match self.dialect {
            // ComfyUI's marks are in the file.
            Dialect::Plain | Dialect::ComfyUi => return None,
            // vLLM Q/fp8.py:158; transformers takes blocks for granted where the entry is not null.
            Dialect::Fp8 => json!({
                "quant_method": "fp8", "fmt": "e4m3",
                "activation_scheme": if self.input_scales { "static" } else { "dynamic" },
                "weight_block_size": (name == "fp8-128x128").then_some([128, 128]),
                "modules_to_not_convert": ignore,
            }),
            Dialect::CompressedTensors => self.compressed_tensors(ignore),
            Dialect::ModelOpt => self.modelopt(ignore),
            // transformers 5.23.0 utils/quantization_config.py:1791 takes no other key.
            Dialect::GptOss => json!({"quant_method": "mxfp4", "modules_to_not_convert": ignore}),
        })
    }

    /// The whole of `hf_quant_config.json`, which TensorRT-LLM reads; nothing in other dialects.
    pub fn hf_quant_config(&self, ignore: &[String]) -> Option<Value> {
        (self.dialect == Dialect::ModelOpt).then(|| {
            let mut quantization = json!({
                "quant_algo": self.quant_algo(), "kv_cache_quant_algo": null, "exclude_modules": ignore,
            });
            if self.scheme.is_nvfp4() {
                quantization["group_size"] = json!(16);
            }
            json!({"producer": producer(), "quantization": quantization})
        })
    }

    fn quant_algo(&self) -> &'static str {
        match (self.scheme.spec().name, self.input_scales) {
            ("nvfp4", true) => "NVFP4",
            ("nvfp4", false) => "W4A16_NVFP4",
            ("mxfp8", _) => "MXFP8",
            _ => "FP8",
        }
    }

    /// ModelOpt 0.47.0, torch/export/convert_hf_config.py:130.
    fn modelopt(&self, ignore: &[String]) -> Value {
        let mut config = json!({
            "quant_method": "modelopt", "quant_algo": self.quant_algo(), "ignore": ignore, "producer": producer(),
        });
        let operand = |bits: u32, group: Option<u32>| {
            let mut operand = json!({"dynamic": false, "num_bits": bits, "type": "float"});
            if let Some(size) = group {
                operand["group_size"] = json!(size);
            }
            operand
        };
        let operand = match self.scheme.spec().name {
            "nvfp4" => operand(4, Some(16)),
            "fp8-tensor" => operand(8, None),
            // Its converter has no groups for this one.
            _ => return config,
        };
        let mut group = json!({"weights": operand, "targets": ["Linear"]});
        if self.input_scales {
            group["input_activations"] = operand;
        }
        config["config_groups"] = json!({"group_0": group});
        config
    }

    /// compressed-tensors 0.20.0, quantization/quant_args.py and quant_scheme.py: a key that they do not know is an error.
    fn compressed_tensors(&self, ignore: &[String]) -> Value {
        let operand = |bits: u32, strategy: &str, dynamic: Value| json!({"num_bits": bits, "type": "float", "strategy": strategy, "symmetric": true, "dynamic": dynamic});
        let grouped = |mut operand: Value, size: u32| {
            operand["group_size"] = json!(size);
            operand
        };
        // By this, quantization/utils/mxfp_utils.py:38 of ac8e2ba knows scales of MX; compressors/mxfp8/base.py:103 does too, that of
        // mxfp4 (:57) does not ask, and its presets (quantization/quant_scheme.py:204) have it.
        let bytes = |mut operand: Value| {
            operand["scale_dtype"] = json!("torch.uint8");
            operand
        };
        let (format, weights, activations) = match self.scheme.spec().name {
            "nvfp4" => {
                let weights = grouped(operand(4, "tensor_group", json!(false)), 16);
                let activations = grouped(operand(4, "tensor_group", json!("local")), 16);
                ("nvfp4-pack-quantized", weights, self.input_scales.then_some(activations))
            }
            // vLLM reads weights of MXFP4 with activations of any kind, or none.
            "mxfp4" => ("mxfp4-pack-quantized", bytes(grouped(operand(4, "group", json!(false)), 32)), None),
            "mxfp8" => {
                let with = |dynamic: bool| bytes(grouped(operand(8, "group", json!(dynamic)), 32));
                ("mxfp8-quantized", with(false), Some(with(true)))
            }
            "fp8-row" => {
                let activations = operand(8, "token", json!(true));
                ("float-quantized", operand(8, "channel", json!(false)), Some(activations))
            }
            "fp8-128x128" => {
                let mut weights = operand(8, "block", json!(false));
                weights["block_structure"] = json!([128, 128]);
                ("float-quantized", weights, Some(grouped(operand(8, "group", json!(true)), 128)))
            }
            _ => {
                let activations = operand(8, "tensor", json!(!self.input_scales));
                ("float-quantized", operand(8, "tensor", json!(false)), Some(activations))
            }
        };
        let mut group = json!({"targets": ["Linear"], "weights": weights});
        if let Some(activations) = activations {
            group["input_activations"] = activations;
        }
        json!({
            "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ignore, "kv_cache_scheme": null,
        })
    }
}

fn takes_input_scales(scheme: &str) -> bool {
    matches!(scheme, "nvfp4" | "fp8-tensor")
}

fn producer() -> Value {
    // vLLM knows the algorithms of hf_quant_config.json by this name.
    json!({"name": "modelopt", "version": "0.47.0"})
}
