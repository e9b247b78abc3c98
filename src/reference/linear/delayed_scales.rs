//! The factors of a layer's tensors, and the amax of past steps.

use ndarray::ArrayView2;

use crate::error::{Error, Result};
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
    state: DelayedState,
}

/// What delayed scaling knows of a tensor: what a checkpoint of the training keeps, and what ranks that share a tensor agree on.
#[derive(Debug, Clone, PartialEq)]
pub struct DelayedState {
    /// The factor of this step.
    pub encode: f32,
    /// The amax of the step that runs, then those of steps before it, as [`delayed_update`] has them.
    pub history: Vec<f32>,
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
        let tensors = [input, weight, gradient].map(|format| {
            let state = DelayedState { encode: 1.0, history: vec![0.0; rule.window()] };
            Delayed { format, state }
        });
        Some(Self { rule, tensors })
    }

    /// The factor of this step.
    pub(super) fn given(&self, tensor: Tensor) -> GivenScale {
        GivenScale::Encode(self.tensors[tensor as usize].state.encode)
    }

    /// Remembers the amax of these values, NaN ignored.
    pub(super) fn record(&mut self, tensor: Tensor, values: &ArrayView2<f32>) {
        let amax = &mut self.tensors[tensor as usize].state.history[0];
        *amax = amax.max(amax_of(values));
    }

    /// X, W and dY.
    pub(super) fn states(&self) -> [DelayedState; 3] {
        self.tensors.each_ref().map(|tensor| tensor.state.clone())
    }

    /// Takes what [`DelayedScales::states`] gave.
    pub(super) fn set_states(&mut self, states: [DelayedState; 3]) -> Result<()> {
        for (name, DelayedState { encode, history }) in ["X", "W", "dY"].iter().zip(&states) {
            if history.len() != self.rule.window() {
                return Err(Error::shape(
                    format!("amax history of {name}"),
                    format!("{} steps", history.len()),
                    format!("must be the {} of the recipe's window", self.rule.window()),
                    "take a state of a layer with this window",
                ));
            }
            let good = encode.is_finite() && *encode > 0.0 && (1.0 / encode).is_finite();
            if let Some(bad) =
                (!good).then_some(encode).or_else(|| history.iter().find(|amax| amax.is_nan() || **amax < 0.0))
            {
                return Err(Error::unsupported(
                    format!("the number {bad:e} in the delayed state of {name}"),
                    "factors and their inverses are finite and above 0, an amax is not negative",
                    "take what delayed_states gave",
                ));
            }
        }
        self.tensors.iter_mut().zip(states).for_each(|(tensor, state)| tensor.state = state);
        Ok(())
    }

    /// Ends the step. A tensor that had no amax, or 0, keeps factor and history, as in TransformerEngine's update of a whole model: an expert
    /// without tokens and a weight that stays the same forget nothing.
    pub(super) fn update(&mut self) {
        for Delayed { format, state: DelayedState { encode, history } } in &mut self.tensors {
            if history[0] != 0.0 {
                *encode = delayed_update(history, *encode, *format, self.rule.margin(), self.rule.rule()).encode;
            }
        }
    }
}
