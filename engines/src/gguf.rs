//! A GGUF file of a Llama as the folder that the hub would have: BF16 weights, `config.json`, `tokenizer.json`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use candle_core::{DType, Device, Tensor};
use serde_json::json;
use tokenizers::Tokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::{Outcome, ensure};

/// An open file of which candle has read the header.
pub struct Gguf {
    content: Content,
    file: File,
}

impl Gguf {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// A file that cannot be read, is no GGUF, or is of another architecture.
    pub fn open(path: &Path) -> Outcome<Self> {
        let mut file = File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let content = Content::read(&mut file).map_err(|e| format!("{}: {e}", path.display()))?;
        let this = Self { content, file };
        let architecture = this.value("general.architecture")?.to_string()?;
        ensure(architecture == "llama", || {
            format!("{} is a {architecture}, and only llama is known here", path.display())
        })?;
        Ok(this)
    }

    fn value(&self, key: &str) -> Outcome<&Value> {
        self.content.metadata.get(key).ok_or_else(|| format!("the GGUF file has no {key}").into())
    }

    fn number(&self, key: &str) -> Outcome<u32> {
        Ok(self.value(&format!("llama.{key}"))?.to_u32()?)
    }

    /// `config.json` as transformers would write it.
    ///
    /// # Errors
    /// A missing entry.
    pub fn config(&self) -> Outcome<serde_json::Value> {
        let float = |key: &str| -> Outcome<f32> { Ok(self.value(&format!("llama.{key}"))?.to_f32()?) };
        Ok(json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "dtype": "bfloat16",
            "hidden_act": "silu",
            "hidden_size": self.number("embedding_length")?,
            "intermediate_size": self.number("feed_forward_length")?,
            "max_position_embeddings": self.number("context_length")?,
            "num_attention_heads": self.number("attention.head_count")?,
            "num_hidden_layers": self.number("block_count")?,
            "num_key_value_heads": self.number("attention.head_count_kv")?,
            "rms_norm_eps": float("attention.layer_norm_rms_epsilon")?,
            "rope_theta": float("rope.freq_base")?,
            "tie_word_embeddings": !self.content.tensor_infos.contains_key("output.weight"),
            "vocab_size": self.number("vocab_size")?,
        }))
    }

    /// Every weight in F32 under the hub's name.
    ///
    /// # Errors
    /// A tensor of another architecture, or one that cannot be read.
    pub fn tensors(&mut self) -> Outcome<HashMap<String, Tensor>> {
        let heads = [self.number("attention.head_count")?, self.number("attention.head_count_kv")?].map(|n| n as usize);
        let names: Vec<String> = self.content.tensor_infos.keys().cloned().collect();
        let mut tensors = HashMap::new();
        for name in names {
            let weight = self.content.tensor(&mut self.file, &name, &Device::Cpu)?.dequantize(&Device::Cpu)?;
            let weight = match name.rsplit('.').nth(1) {
                Some("attn_q") => halves_apart(&weight, heads[0])?,
                Some("attn_k") => halves_apart(&weight, heads[1])?,
                _ => weight,
            };
            tensors.insert(hub_name(&name)?, weight);
        }
        Ok(tensors)
    }

    /// The tokenizer, by candle.
    ///
    /// # Errors
    /// A kind that candle does not know.
    pub fn tokenizer(&self) -> Outcome<Tokenizer> {
        let mut tokenizer = Tokenizer::from_gguf(&self.content)?;
        // candle puts a space before every text, whatever the file says; transformers does not.
        let space = self.value("tokenizer.ggml.add_space_prefix")?.to_bool()?;
        tokenizer.with_pre_tokenizer(Some(ByteLevel::new(space, true, true)));
        Ok(tokenizer)
    }

    /// Writes the model as a new folder, its weights in BF16.
    ///
    /// # Errors
    /// As the other functions, and what a full disk says.
    pub fn write_folder(&mut self, folder: &Path) -> Outcome<()> {
        fs::create_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let narrow = |(name, tensor): (String, Tensor)| Ok((name, tensor.to_dtype(DType::BF16)?));
        let tensors = self.tensors()?.into_iter().map(narrow).collect::<Outcome<HashMap<_, _>>>()?;
        candle_core::safetensors::save(&tensors, folder.join("model.safetensors"))?;
        fs::write(folder.join("config.json"), serde_json::to_string_pretty(&self.config()?)?)?;
        self.tokenizer()?.save(folder.join("tokenizer.json"), false)?;
        Ok(())
    }
}

/// GGUF has the two coordinates of each rotation side by side; the hub has the first of all, then the second of all.
fn halves_apart(weight: &Tensor, heads: usize) -> Outcome<Tensor> {
    let (rows, cols) = weight.dims2()?;
    Ok(weight.reshape((heads, rows / heads / 2, 2, cols))?.transpose(1, 2)?.reshape((rows, cols))?)
}

fn hub_name(name: &str) -> Outcome<String> {
    let known = match name {
        "token_embd.weight" => "model.embed_tokens.weight",
        "output_norm.weight" => "model.norm.weight",
        "output.weight" => "lm_head.weight",
        _ => "",
    };
    if !known.is_empty() {
        return Ok(known.into());
    }
    let parts: Vec<&str> = name.split('.').collect();
    let ["blk", layer, module, "weight"] = parts[..] else {
        return Err(format!("{name} is no tensor of a Llama").into());
    };
    let module = match module {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        _ => return Err(format!("{name} is no tensor of a Llama").into()),
    };
    Ok(format!("model.layers.{layer}.{module}.weight"))
}
