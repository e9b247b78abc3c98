//! [`TransposedLayers`]: linear layers whose weights lie `[in, out]`, as GPT-2 has them.

use std::collections::{HashMap, HashSet};

use super::ModelConfig;
use crate::checkpoint::TensorInfo;

/// Architectures that transformers 5.23.0 makes with `Conv1D` (pytorch_utils.py:93: `x @ W`): models/gpt2/modeling_gpt2.py:103,
/// imagegpt/modeling_imagegpt.py:92, openai/modeling_openai.py:60, decision_transformer/modeling_decision_transformer.py:97 and
/// clvp/modeling_clvp.py:565.
const MODEL_TYPES: [&str; 6] = ["gpt2", "imagegpt", "openai-gpt", "decision_transformer", "clvp", "clvp_decoder"];
/// What such layers are called in all of them, and in SantaCoder (`gpt2` with code of its own: bigcode/santacoder, modeling_gpt2_mq.py),
/// which has keys and values of one head apart from the queries.
const NAMES: [&str; 5] = ["c_attn", "q_attn", "kv_attn", "c_proj", "c_fc"];

/// The linear layers of a model whose weights are `[in, out]`, the transpose of all others.
///
/// Quantized rows run along what a product sums over, and these weights' rows do not. No engine reads them quantized: transformers
/// and compressed-tensors replace `Linear` and no `Conv1D`, and vLLM (models/gpt2.py: `conv1d_weight_name`) transposes what it
/// loads under these names, codes but not scales.
#[derive(Debug, Clone, Default)]
pub struct TransposedLayers {
    everywhere: bool,
    /// What the layers of a stack begin with: `transformer.h`.
    stacks: HashSet<String>,
    /// Layers by other names whose bias says it.
    others: HashSet<String>,
}

impl TransposedLayers {
    /// Those of a model with these tensors: by its `model_type`, or because a `c_attn` that gives queries, keys and values of as many
    /// features as come in is `[d, 3 d]`, and `[3 d, d]` in other models, or because a layer by such a name has a bias as long as a
    /// row. Of such a model, any layer with a bias like that is one.
    pub fn new(config: Option<&ModelConfig>, tensors: &[TensorInfo]) -> Self {
        Self::of(config, tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())))
    }

    fn of<'a>(config: Option<&ModelConfig>, tensors: impl Iterator<Item = (&'a str, &'a [usize])> + Clone) -> Self {
        let everywhere = config.is_some_and(|config| config.model_types().any(|name| MODEL_TYPES.contains(&name)));
        let bias = |(name, shape): (&'a str, &'a [usize])| Some((name.strip_suffix(".bias")?, shape));
        let biases: HashMap<&str, &[usize]> = tensors.clone().filter_map(bias).collect();
        let weights = tensors.filter_map(|(name, shape)| match *shape {
            [rows, cols] if rows > 0 => Some((name.strip_suffix(".weight")?, rows, cols)),
            _ => None,
        });
        let (mut stacks, mut biased) = (HashSet::new(), Vec::new());
        for (module, rows, cols) in weights {
            // Of as many features as come in nobody knows.
            let by_bias = rows != cols && biases.get(module).is_some_and(|shape| **shape == [cols]);
            let by_shape = last(module) == "c_attn" && rows.checked_mul(3) == Some(cols);
            if by_shape || (by_bias && NAMES.contains(&last(module))) {
                stacks.extend(stack(module).map(str::to_string));
            } else if by_bias {
                biased.push(module);
            }
        }
        let mut found = Self { everywhere, stacks, others: HashSet::new() };
        found.others = biased.into_iter().filter(|module| found.has(module)).map(str::to_string).collect();
        found
    }

    /// True for such a layer, by its name without `.weight`.
    pub fn contains(&self, module: &str) -> bool {
        self.others.contains(module) || (NAMES.contains(&last(module)) && self.has(module))
    }

    /// True for all layers of a stack that has such ones.
    fn has(&self, module: &str) -> bool {
        self.everywhere || stack(module).is_some_and(|stack| self.stacks.contains(stack))
    }
}

fn last(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// `transformer.h` of `transformer.h.0.attn.c_attn`: what is before the number of the layer.
fn stack(module: &str) -> Option<&str> {
    let (block, _) = module.rsplit_once('.')?.0.rsplit_once('.')?;
    let (stack, number) = block.rsplit_once('.').unwrap_or(("", block));
    number.bytes().all(|b| b.is_ascii_digit()).then_some(stack)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn shapes_tell_where_no_config_does() {
        let of = |name, shape: &[usize]| TransposedLayers::of(None, [(name, shape)].into_iter());
        let found = of("transformer.h.0.attn.c_attn.weight", &[64, 192]);
        for module in ["transformer.h.0.attn.c_attn", "transformer.h.11.attn.c_proj", "transformer.h.3.mlp.c_fc"] {
            assert!(found.contains(module), "{module}");
        }
        // open_clip's and Qwen's are linear.
        for module in ["transformer.resblocks.0.mlp.c_fc", "transformer.h.0.attn.q_proj", "c_fc", "h.0.attn.c_attn"] {
            assert!(!found.contains(module), "{module}");
        }
        assert!(of("h.0.attn.c_attn.weight", &[64, 192]).contains("h.1.mlp.c_fc"));
        let linear = of("transformer.h.0.attn.c_attn.weight", &[192, 64]);
        assert!(!linear.contains("transformer.h.0.attn.c_attn"));
    }

    /// (SantaCoder's `attn.kv_attn` was quantized, along its outputs.)
    #[test]
    fn a_bias_as_long_as_a_row_tells() {
        let of = |config: Option<&ModelConfig>, tensors: &[(&'static str, &'static [usize])]| {
            TransposedLayers::of(config, tensors.iter().copied())
        };
        let santa: [(&str, &[usize]); 2] =
            [("transformer.h.0.mlp.c_fc.weight", &[64, 256]), ("transformer.h.0.mlp.c_fc.bias", &[256])];
        let found = of(None, &santa);
        for module in
            ["attn.q_attn", "attn.kv_attn", "attn.c_proj", "mlp.c_proj"].map(|n| format!("transformer.h.1.{n}"))
        {
            assert!(found.contains(&module), "{module}");
        }
        // A linear layer's bias is as long as a column; of a square one nobody knows.
        for shape in [[256, 64], [256, 256]] {
            let shape: &'static [usize] = Box::leak(Box::new(shape));
            let linear =
                of(None, &[("transformer.h.0.mlp.c_fc.weight", shape), ("transformer.h.0.mlp.c_fc.bias", &[256])]);
            assert!(!linear.contains("transformer.h.0.mlp.c_fc"), "{shape:?}");
        }
        // Another name, in such a stack or a model of that type; elsewhere it is no Conv1D.
        let other: [(&str, &[usize]); 2] =
            [("transformer.h.0.attn.kv.weight", &[64, 32]), ("transformer.h.0.attn.kv.bias", &[32])];
        assert!(of(None, &[santa, other].concat()).contains("transformer.h.0.attn.kv"));
        assert!(!of(None, &other).contains("transformer.h.0.attn.kv"));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"model_type": "gpt2"}"#).unwrap();
        let config = ModelConfig::read(folder.path()).unwrap();
        let found = of(config.as_ref(), &other);
        assert!(found.contains("transformer.h.0.attn.kv") && found.contains("transformer.h.0.attn.kv_attn"));
        assert!(!found.contains("transformer.h.1.attn.q_proj"));
    }

    #[test]
    fn model_types_tell_where_no_shape_does() {
        let folder = tempfile::tempdir().unwrap();
        for (model_type, is) in [("gpt2", true), ("clvp", true), ("gpt_bigcode", false), ("qwen", false)] {
            std::fs::write(folder.path().join("config.json"), format!(r#"{{"model_type": "{model_type}"}}"#)).unwrap();
            let config = ModelConfig::read(folder.path()).unwrap();
            let found = TransposedLayers::new(config.as_ref(), &[]);
            assert_eq!(found.contains("speech_decoder_model.model.decoder.layers.0.mlp.c_fc"), is, "{model_type}");
            assert!(!found.contains("speech_decoder_model.model.decoder.layers.0.attn.q_proj"));
        }
    }
}
