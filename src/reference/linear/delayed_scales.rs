//! The factors of a layer's tensors, and the amax of past steps.

use ndarray::ArrayView2;

use crate::format::{DelayedScaling, Fp8Format, GivenScale, LinearRecipe, Recipe};
use crate::reference::delayed::delayed_update;
use crate::reference::quantize::amax_of;

/// Which tensor of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tensor {
    Input,
    Weight,
    Gradient,
}

/// X, W and dY, in the order of [`Tensor`].
#[derive(Debug, Clone)]
pub(super) struct DelayedScales {
    rule: DelayedScaling,
    tensors: [Delayed; 3],
}

#[derive(Debug, Clone)]
struct Delayed {
    format: Fp8Format,
    /// The amax of the step that runs is in front.
    history: Vec<f32>,
    encode: f32,
}

impl DelayedScales {
    /// Factors of 1; `None` for recipes without delayed scaling.
    pub(super) fn new(recipe: LinearRecipe) -> Option<Self> {
        let rule = recipe.delayed()?;
        let fp8 = |recipe: Recipe| match recipe {
            Recipe::Fp8(recipe) => Some(recipe.format),
            _ => None,
        };
        let forward = recipe.forward().map(|operands| operands.map(fp8));
        let gradient = recipe.input_gradient().map(|operands| operands.map(fp8));
        let (Some([Some(input), Some(weight)]), Some([Some(gradient), _])) = (forward, gradient) else {
            return None;
        };
        let tensors =
            [input, weight, gradient].map(|format| Delayed { format, history: vec![0.0; rule.window()], encode: 1.0 });
        Some(Self { rule, tensors })
    }

    /// The factor of this step.
    pub(super) fn given(&self, tensor: Tensor) -> GivenScale {
        GivenScale::Encode(self.tensors[tensor as usize].encode)
    }

    /// Remembers the amax of these values, NaN ignored.
    pub(super) fn record(&mut self, tensor: Tensor, values: &ArrayView2<f32>) {
        let amax = &mut self.tensors[tensor as usize].history[0];
        *amax = amax.max(amax_of(values));
    }

    /// Ends the step. A tensor that had no amax, or 0, keeps factor and history, as in TransformerEngine's update of a whole model: an expert
    /// without tokens and a weight that stays the same forget nothing.
    pub(super) fn update(&mut self) {
        for Delayed { format, history, encode } in &mut self.tensors {
            if history[0] != 0.0 {
                *encode = delayed_update(history, *encode, *format, self.rule.margin(), self.rule.rule()).encode;
            }
        }
    }
}
