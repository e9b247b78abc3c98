//! Delayed scaling on the device: the factors of X, W and dY, and the amax of past steps.

use crate::error::Result;
use crate::format::{DelayedScaling, DelayedState, Fp8Format, GivenScale, LinearRecipe};
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytes};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::DelayedRule;

/// Which tensor of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tensor {
    Input,
    Weight,
    Gradient,
}

/// X, W and dY, in the order of [`Tensor`].
pub(super) struct DelayedScales {
    scaling: DelayedScaling,
    rule: DelayedRule,
    formats: [Fp8Format; 3],
    /// Three FP32.
    encode: DeviceBuffer,
    /// Three times the window of FP32, the step that runs in front of each.
    history: DeviceBuffer,
    /// The parts of both that casts read and raise.
    factors: [DeviceBuffer; 3],
    amax: [DeviceBuffer; 3],
}

impl DelayedScales {
    /// Factors of 1; `None` for recipes without delayed scaling. Allocates.
    pub(super) fn new(handle: &Handle, recipe: LinearRecipe) -> Result<Option<Self>> {
        let (Some(scaling), Some(formats)) = (recipe.delayed(), recipe.tensor_formats()) else { return Ok(None) };
        let window = scaling.window() * 4;
        let [mut encode, history] = DeviceBuffer::zeros_together(handle.queue(), [3 * 4, 3 * window])?;
        handle.write(&mut encode.view_mut(), &[1f32; 3])?;
        let factor = |tensor: usize| encode.part(4 * tensor..4 * tensor + 4);
        let front = |tensor: usize| history.part(tensor * window..tensor * window + 4);
        let factors = [factor(0)?, factor(1)?, factor(2)?];
        let amax = [front(0)?, front(1)?, front(2)?];
        let rule = DelayedRule::new(scaling, formats);
        Ok(Some(Self { scaling, rule, formats, encode, history, factors, amax }))
    }

    pub(super) fn format(&self, tensor: Tensor) -> Fp8Format {
        self.formats[tensor as usize]
    }

    /// The factor of this step, on the device.
    pub(super) fn given(&self, tensor: Tensor) -> GivenScale<DeviceBytes<'_>> {
        GivenScale::Encode(self.factors[tensor as usize].view())
    }

    /// Factor and amax of one tensor.
    pub(super) fn given_and_amax(&mut self, tensor: Tensor) -> (GivenScale<DeviceBytes<'_>>, &mut DeviceBuffer) {
        (GivenScale::Encode(self.factors[tensor as usize].view()), &mut self.amax[tensor as usize])
    }

    pub(super) fn bytes(&self) -> usize {
        self.encode.len() + self.history.len()
    }

    /// Copies the factor of X, for a backward pass that may follow an update.
    pub(super) fn copy_factor(&self, handle: &Handle, tensor: Tensor, to: &mut DeviceBuffer) -> Result<()> {
        let order = handle.queue().order();
        let (from, to) = (self.factors[tensor as usize].read(&order)?, to.write(&order)?);
        handle.kernels().copy_2d(handle.queue(), &from, 4, &to, 4, 1, 4)
    }

    /// Ends the step.
    pub(super) fn update(&mut self, handle: &Handle) -> Result<()> {
        let order = handle.queue().order();
        let (history, encode) = (self.history.write(&order)?, self.encode.write(&order)?);
        handle.kernels().delayed_update(handle.queue(), self.rule, &history, &encode)
    }

    /// X, W and dY, on the host. Waits.
    pub(super) fn states(&self, handle: &Handle) -> Result<[DelayedState; 3]> {
        let encode: Vec<f32> = handle.read(&self.encode.view())?;
        let history: Vec<f32> = handle.read(&self.history.view())?;
        let window = self.scaling.window();
        Ok([0, 1, 2].map(|tensor| DelayedState {
            encode: encode[tensor],
            history: history[tensor * window..(tensor + 1) * window].to_vec(),
        }))
    }

    /// Takes what [`DelayedScales::states`] gave. Waits for no work; the numbers have been read when it returns.
    pub(super) fn set_states(&mut self, handle: &Handle, states: &[DelayedState; 3]) -> Result<()> {
        DelayedState::check_all(states, self.scaling)?;
        let encode = states.each_ref().map(|state| state.encode);
        let history: Vec<f32> = states.iter().flat_map(|state| state.history.iter().copied()).collect();
        handle.write(&mut self.encode.view_mut(), &encode)?;
        handle.write(&mut self.history.view_mut(), &history)
    }
}
