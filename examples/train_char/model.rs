//! A transformer that predicts the next character: two blocks of attention and a gated MLP.

use ndarray::Array2;
use scaled_gemm::reference::Noise;
use scaled_gemm::{DType, LinearRecipe, Result};

use crate::dense::{Dense, Device};
use crate::layers::{Attention, Gate, Norm, Weights};

/// Sizes.
#[derive(Clone, Copy)]
pub struct Shape {
    pub alphabet: usize,
    /// Characters that a prediction sees at most.
    pub len: usize,
    /// The most characters of a pass.
    pub tokens: usize,
    pub width: usize,
    pub hidden: usize,
    pub heads: usize,
    pub blocks: usize,
}

struct Block {
    norms: [Norm; 2],
    qkv: Dense,
    attention: Attention,
    projection: Dense,
    gate_up: Dense,
    gate: Gate,
    down: Dense,
}

pub struct Model {
    shape: Shape,
    embedding: Weights,
    positions: Weights,
    blocks: Vec<Block>,
    norm: Norm,
    head: Dense,
}

impl Model {
    /// With linear layers of this recipe; embedding and head stay BF16, as trainers leave them.
    pub fn new(shape: Shape, recipe: LinearRecipe, seed: u64, device: &Device) -> Result<Self> {
        let mut noise = Noise::new(seed);
        let Shape { alphabet, len, tokens, width, hidden, heads, blocks } = shape;
        let embedding = Weights::new(noise.matrix(alphabet, width, DType::F32) * 0.5);
        let positions = Weights::new(noise.matrix(len, width, DType::F32) * 0.1);
        let dense = |shape, recipe, noise: &mut Noise| Dense::new(shape, tokens, recipe, noise, device);
        let blocks = (0..blocks).map(|_| {
            Ok(Block {
                norms: [Norm::new(width), Norm::new(width)],
                qkv: dense([3 * width, width], recipe, &mut noise)?,
                attention: Attention::new(len, heads),
                projection: dense([width, width], recipe, &mut noise)?,
                gate_up: dense([2 * hidden, width], recipe, &mut noise)?,
                gate: Gate::default(),
                down: dense([width, hidden], recipe, &mut noise)?,
            })
        });
        let blocks = blocks.collect::<Result<_>>()?;
        // A linear layer's features are multiples of 16: characters beyond the alphabet never occur.
        let head = dense([alphabet.next_multiple_of(16), width], LinearRecipe::Bf16, &mut noise)?;
        Ok(Self { shape, embedding, positions, blocks, norm: Norm::new(width), head })
    }

    /// For each character, a number for each that could follow it.
    pub fn forward(&mut self, symbols: &[usize]) -> Result<Array2<f32>> {
        let len = self.shape.len;
        let mut x = Array2::from_shape_fn((symbols.len(), self.shape.width), |(i, j)| {
            self.embedding.value[[symbols[i], j]] + self.positions.value[[i % len, j]]
        });
        for block in &mut self.blocks {
            let h = block.norms[0].forward(&x)?;
            let h = block.attention.forward(block.qkv.forward(&h)?);
            x += &block.projection.forward(&h)?;
            let h = block.norms[1].forward(&x)?;
            let h = block.gate.forward(block.gate_up.forward(&h)?)?;
            x += &block.down.forward(&h)?;
        }
        let x = self.norm.forward(&x)?;
        self.head.forward(&x)
    }

    /// One step against the mean cross entropy of what follows, which it gives (in nats, before the step).
    pub fn train(&mut self, symbols: &[usize], next: &[usize], rate: f32) -> Result<f32> {
        let logits = self.forward(symbols)?;
        let (loss, gradient) = cross_entropy(logits, next);
        let mut dx = self.norm.backward(&self.head.backward(&gradient)?);
        for block in self.blocks.iter_mut().rev() {
            let d = block.gate.backward(&block.down.backward(&dx)?)?;
            dx += &block.norms[1].backward(&block.gate_up.backward(&d)?);
            let d = block.attention.backward(&block.projection.backward(&dx)?);
            dx += &block.norms[0].backward(&block.qkv.backward(&d)?);
        }
        for (i, (symbol, dx)) in symbols.iter().zip(dx.rows()).enumerate() {
            self.embedding.gradient.row_mut(*symbol).scaled_add(1.0, &dx);
            self.positions.gradient.row_mut(i % self.shape.len).scaled_add(1.0, &dx);
        }
        self.step(rate)?;
        Ok(loss)
    }

    fn step(&mut self, rate: f32) -> Result<()> {
        for weights in [&mut self.embedding, &mut self.positions, &mut self.norm.gain] {
            weights.step(rate);
        }
        self.head.step(rate)?;
        for Block { norms, qkv, projection, gate_up, down, .. } in &mut self.blocks {
            norms.iter_mut().for_each(|norm| norm.gain.step(rate));
            for dense in [qkv, projection, gate_up, down] {
                dense.step(rate)?;
            }
        }
        Ok(())
    }
}

/// The mean of `-ln softmax(logits)[next]`, and its gradient.
fn cross_entropy(mut logits: Array2<f32>, next: &[usize]) -> (f32, Array2<f32>) {
    let tokens = next.len() as f32;
    let mut loss = 0.0;
    for (mut row, next) in logits.rows_mut().into_iter().zip(next) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.mapv_inplace(|v| (v - largest).exp());
        let sum = row.sum();
        loss -= (row[*next] / sum).ln() / tokens;
        row /= sum * tokens;
        row[*next] -= 1.0 / tokens;
    }
    (loss, logits)
}
