//! The layer on the CPU, which takes any number of tokens, and rounds W, X and dY to its type itself.

use ndarray::Array2;
use scaled_gemm::reference::{Linear, LinearGradients, SavedInput};
use scaled_gemm::{LinearRecipe, Result};

use super::DTYPE;

pub struct OnCpu {
    layer: Linear,
    saved: Option<SavedInput>,
    gradients: LinearGradients,
}

impl OnCpu {
    pub fn new(weight: &Array2<f32>, recipe: LinearRecipe) -> Result<Self> {
        let layer = Linear::new(weight.view(), DTYPE, recipe)?;
        Ok(Self { gradients: layer.zero_gradients(), layer, saved: None })
    }

    pub fn forward(&mut self, x: &Array2<f32>) -> Result<Array2<f32>> {
        let (y, saved) = self.layer.forward_saving(x.view())?;
        self.saved = Some(saved);
        Ok(y)
    }

    pub fn backward(&mut self, dy: &Array2<f32>) -> Result<Array2<f32>> {
        let saved = self.saved.take().expect("a backward pass follows a forward pass");
        self.layer.backward(dy.view(), &saved, &mut self.gradients)
    }

    /// dW, which is zero afterwards.
    pub fn take_gradient(&mut self) -> Array2<f32> {
        std::mem::replace(&mut self.gradients, self.layer.zero_gradients()).weight
    }

    /// Takes the weight of an optimizer step.
    pub fn refresh(&mut self, weight: &Array2<f32>) -> Result<()> {
        self.layer.update_scales();
        self.layer.refresh(weight.view())
    }
}
