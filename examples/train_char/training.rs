//! A training: sizes, the loop over steps, and the loss at its end.

use scaled_gemm::reference::Noise;
use scaled_gemm::{LinearRecipe, Result};

use crate::dense::Device;
use crate::model::{Model, Shape};
use crate::text::Text;

/// Stretches of text in a step, their length, and the model's sizes: features are multiples of 128, as the scales' groups are.
const STRETCHES: usize = 6;
pub const LEN: usize = 32;
const WIDTH: usize = 128;
const HIDDEN: usize = 256;
const HEADS: usize = 4;
const BLOCKS: usize = 2;
const RATE: f32 = 3e-3;
/// The loss at the end is the mean of so many last steps.
pub const LAST: usize = 10;

/// What is compared.
pub const RECIPES: [LinearRecipe; 2] = [LinearRecipe::Bf16, LinearRecipe::Fp8Blockwise];

/// The loss of every step, and the model. Weights and text depend on the seed alone.
pub fn train(
    text: &Text,
    device: &Device,
    recipe: LinearRecipe,
    seed: u64,
    steps: usize,
    mut each: impl FnMut(f32),
) -> Result<(Vec<f32>, Model)> {
    let alphabet = text.alphabet();
    let tokens = STRETCHES * LEN;
    let shape = Shape { alphabet, len: LEN, tokens, width: WIDTH, hidden: HIDDEN, heads: HEADS, blocks: BLOCKS };
    let mut model = Model::new(shape, recipe, seed, device)?;
    let mut noise = Noise::new(100 + seed);
    let mut losses = Vec::new();
    for step in 0..steps {
        let (symbols, next) = text.batch(STRETCHES, LEN, &mut noise);
        // Smaller steps towards the end.
        let rate = RATE * (1.0 - 0.9 * step as f32 / steps as f32);
        losses.push(model.train(&symbols, &next, rate)?);
        each(losses[step]);
    }
    Ok((losses, model))
}

/// The loss at the end.
pub fn last(losses: &[f32]) -> f32 {
    let last = &losses[losses.len().saturating_sub(LAST)..];
    last.iter().sum::<f32>() / last.len() as f32
}
