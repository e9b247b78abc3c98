//! Which weights of a model stay as they are by default.

/// Why a module is not quantized unless somebody asks for it by name; `None` for an ordinary linear layer.
///
/// `module` is the name of a weight without `.weight`. What the rules know, they know by name: embeddings and output heads, whose
/// errors reach every token; routers, which choose; norms and convolutions, which are small; the narrow gates of linear attention;
/// towers for images and sound, and multi-token prediction. It is ModelOpt's list (`default_disabled_quantizers.yaml`, 0.47.0), with
/// the names of embeddings, which it knows by class.
pub fn left_alone(module: &str) -> Option<&'static str> {
    let parts: Vec<&str> = module.split('.').collect();
    let last = parts.last().copied().unwrap_or_default();
    let any = |words: &[&str]| parts.iter().any(|part| words.iter().any(|word| part.contains(word)));
    let parent = parts.len().checked_sub(2).map(|at| parts[at]).unwrap_or_default();
    if any(&["vision_tower", "vision_model", "visual", "embed_vision", "multi_modal_projector", "audio_tower"]) {
        return Some("of images or sound");
    }
    if parts.contains(&"mtp") {
        return Some("of multi-token prediction");
    }
    if last.contains("embed") || ["wte", "wpe"].contains(&last) {
        return Some("an embedding");
    }
    if ["lm_head", "output_layer", "proj_out", "score"].contains(&last) || module == "output" {
        return Some("an output head");
    }
    let gate = last == "gate" && (["mlp", "moe", "ffn", "feed_forward", "block_sparse_moe"].contains(&parent));
    if gate || last == "shared_expert_gate" || any(&["router"]) {
        return Some("a router");
    }
    if last.contains("norm") || last.starts_with("ln_") {
        return Some("a norm");
    }
    if last == "bias" || last.ends_with("_bias") {
        return Some("a bias");
    }
    if last.contains("conv1d") {
        return Some("a convolution");
    }
    if parent == "linear_attn" && ["in_proj_a", "in_proj_b", "in_proj_ba"].contains(&last) {
        return Some("a gate of linear attention");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_names_are_known() {
        for module in [
            "model.embed_tokens",
            "transformer.wte",
            "lm_head",
            "output",
            "model.layers.3.mlp.gate",
            "model.layers.3.block_sparse_moe.gate",
            "model.layers.3.mlp.router",
            "model.layers.3.mlp.shared_expert_gate",
            "model.layers.0.input_layernorm",
            "model.layers.0.mlp.experts.gate_up_proj_bias",
            "model.layers.0.linear_attn.conv1d",
            "model.layers.0.linear_attn.in_proj_ba",
            "model.visual.blocks.0.attn.qkv",
            "vision_tower.encoder.layers.0.fc1",
            "mtp.layers.0.mlp.up_proj",
        ] {
            assert!(left_alone(module).is_some(), "{module}");
        }
        for module in [
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.o_proj",
            "model.layers.0.mlp.gate_proj",
            "model.layers.0.mlp.gate_up_proj",
            "model.layers.0.mlp.experts.7.down_proj",
            "model.layers.0.block_sparse_moe.experts.1.w1",
            "model.layers.0.linear_attn.in_proj_qkv",
            "model.layers.0.self_attn.kv_a_proj_with_mqa",
            "transformer.h.0.attn.c_attn",
            "model.layers.0.attn.output",
        ] {
            assert_eq!(left_alone(module), None, "{module}");
        }
    }
}
