//! A Llama in candle's operations that gives the logits of every place, and lets its caller see what enters each linear layer.
//!
//! candle-transformers has the same model, which gives the last place alone; [`Llama::same_as_candles`] compares the two there.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_nn::ops::{rms_norm, silu, softmax_last_dim};
use candle_nn::rotary_emb::rope;
use candle_transformers::models::llama::{self, Cache, Config, LlamaConfig};
use candle_transformers::utils::repeat_kv;

use crate::{Outcome, ensure};

/// The weights, in F32, and what the config says of them.
pub struct Llama {
    config: Config,
    tensors: HashMap<String, Tensor>,
}

/// What a linear layer gets: its name without `.weight`, and its input `[tokens, columns]`; what comes back is multiplied.
pub type AtInput<'a> = dyn FnMut(&str, Tensor) -> Result<Tensor> + 'a;

/// The config of a folder.
///
/// # Errors
/// A file that is not there, or is of no Llama.
pub fn config(folder: &Path) -> Outcome<Config> {
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(serde_json::from_str::<LlamaConfig>(&text)?.into_config(false))
}

impl Llama {
    /// A model of these weights, under the hub's names.
    pub fn new(config: Config, tensors: HashMap<String, Tensor>) -> Self {
        Self { config, tensors }
    }

    fn weight(&self, name: &str) -> Result<&Tensor> {
        let full = format!("{name}.weight");
        self.tensors.get(&full).ok_or_else(|| candle_core::Error::Msg(format!("the model has no {full}")))
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        rms_norm(x, self.weight(name)?, self.config.rms_norm_eps as f32)
    }

    fn linear(&self, x: &Tensor, name: &str, at_input: &mut AtInput) -> Result<Tensor> {
        at_input(name, x.clone())?.matmul(&self.weight(name)?.t()?)
    }

    /// Cosines and sines of every place and frequency.
    fn rotations(&self, places: usize) -> Result<[Tensor; 2]> {
        let size = self.config.hidden_size / self.config.num_attention_heads;
        let frequency = |i: usize| 1.0 / self.config.rope_theta.powf((2 * i) as f32 / size as f32);
        let angles = (0..places).flat_map(|place| (0..size / 2).map(move |i| place as f32 * frequency(i)));
        let angles = Tensor::from_vec(angles.collect::<Vec<f32>>(), (places, size / 2), &Device::Cpu)?;
        Ok([angles.cos()?, angles.sin()?])
    }

    /// The logits `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// A weight that is missing or has another shape.
    pub fn forward(&self, tokens: &[u32], at_input: &mut AtInput) -> Result<Tensor> {
        let ids = Tensor::new(tokens, &Device::Cpu)?;
        let mut x = self.weight("model.embed_tokens")?.index_select(&ids, 0)?;
        let rotations = self.rotations(tokens.len())?;
        let future = |at: usize| if at % tokens.len() > at / tokens.len() { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..tokens.len() * tokens.len()).map(future).collect();
        let mask = Tensor::from_vec(mask, (tokens.len(), tokens.len()), &Device::Cpu)?;
        for layer in 0..self.config.num_hidden_layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let inner = self.norm(&x, &name("input_layernorm"))?;
            x = (x + self.attention(&inner, &name("self_attn"), &rotations, &mask, at_input)?)?;
            let inner = self.norm(&x, &name("post_attention_layernorm"))?;
            let gate = silu(&self.linear(&inner, &name("mlp.gate_proj"), at_input)?)?;
            let up = self.linear(&inner, &name("mlp.up_proj"), at_input)?;
            x = (x + self.linear(&(gate * up)?, &name("mlp.down_proj"), at_input)?)?;
        }
        let head = if self.config.tie_word_embeddings { "model.embed_tokens" } else { "lm_head" };
        self.norm(&x, "model.norm")?.matmul(&self.weight(head)?.t()?)
    }

    fn attention(
        &self,
        x: &Tensor,
        name: &str,
        [cos, sin]: &[Tensor; 2],
        mask: &Tensor,
        at_input: &mut AtInput,
    ) -> Result<Tensor> {
        let (heads, kv_heads) = (self.config.num_attention_heads, self.config.num_key_value_heads);
        let (places, hidden) = x.dims2()?;
        let size = hidden / heads;
        let mut part = |which: &str, heads: usize| {
            let all = self.linear(x, &format!("{name}.{which}"), at_input)?;
            all.reshape((1, places, heads, size))?.transpose(1, 2)?.contiguous()
        };
        let q = rope(&part("q_proj", heads)?, cos, sin)?;
        let k = rope(&part("k_proj", kv_heads)?, cos, sin)?;
        let v = part("v_proj", kv_heads)?;
        let [k, v] = [repeat_kv(k, heads / kv_heads)?, repeat_kv(v, heads / kv_heads)?];
        let scores = (q.matmul(&k.t()?)? / (size as f64).sqrt())?.broadcast_add(mask)?;
        let y = softmax_last_dim(&scores)?.matmul(&v.contiguous()?)?;
        let y = y.transpose(1, 2)?.reshape((places, hidden))?;
        self.linear(&y, &format!("{name}.o_proj"), at_input)
    }

    /// The largest difference of the last place's logits to those of candle-transformers' Llama of the same weights.
    ///
    /// # Errors
    /// A difference above 1e-3, which F32 does not explain: the logits are some tens.
    pub fn same_as_candles(&self, tokens: &[u32]) -> Outcome<f32> {
        let weights = VarBuilder::from_tensors(self.tensors.clone(), DType::F32, &Device::Cpu);
        let theirs = llama::Llama::load(weights, &self.config)?;
        let mut cache = Cache::new(false, DType::F32, &self.config, &Device::Cpu)?;
        let theirs = theirs.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?, 0, &mut cache)?.squeeze(0)?;
        let ours = self.forward(tokens, &mut |_, x| Ok(x))?.get(tokens.len() - 1)?;
        let largest = (theirs - ours)?.abs()?.max(0)?.to_scalar::<f32>()?;
        ensure(largest <= 1e-3, || {
            format!(
                "logits differ by {largest} from candle-transformers' Llama, and 1e-3 is the most that F32 explains"
            )
        })?;
        Ok(largest)
    }
}
