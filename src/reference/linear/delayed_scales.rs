//! The factors of a layer's tensors, and the amax of past steps.

use ndarray::ArrayView2;

use crate::error::Result;
use crate::format::{DelayedScaling, DelayedState, Fp8Format, GivenScale, LinearRecipe};
use crate::reference::delayed::delayed_update_if_seen;
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

impl DelayedScales {
    /// Factors of 1; `None` for recipes without delayed scaling.
    pub(super) fn new(recipe: LinearRecipe) -> Option<Self> {
        let (rule, formats) = (recipe.delayed()?, recipe.tensor_formats()?);
        let tensors = formats.map(|format| Delayed { format, state: DelayedState::new(rule) });
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
        DelayedState::check_all(&states, self.rule)?;
        self.tensors.iter_mut().zip(states).for_each(|(tensor, state)| tensor.state = state);
        Ok(())
    }

    /// Ends the step.
    pub(super) fn update(&mut self) {
        let rule = self.rule;
        for Delayed { format, state: DelayedState { encode, history } } in &mut self.tensors {
            *encode = delayed_update_if_seen(history, *encode, *format, rule.margin(), rule.rule()).encode;
        }
    }
}
