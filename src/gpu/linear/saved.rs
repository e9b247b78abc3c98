//! What goes from one pass of a layer to the next: [`SavedInput`], [`QuantizedGradient`] and [`LinearGradientsInto`].

use super::operand::{Bf16Form, Room, nothing_there};
use crate::error::Result;
use crate::format::{DType, KeptInput, LinearRecipe, pair};
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytesMut};
use crate::gpu::matrix::{MatMut, QuantMatrix, SharedMatrix};

/// Whose X or dY it is: of two layers that agree in all of this, one takes the other's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Made {
    pub(super) recipe: LinearRecipe,
    pub(super) dtype: DType,
    pub(super) tokens: usize,
    pub(super) features: usize,
}

/// X, kept for the weight gradient: memory that [`Linear::saved_input`](crate::Linear::saved_input) makes once, and each
/// [`Linear::forward_saving_into`](crate::Linear::forward_saving_into) fills anew.
///
/// [`KeptInput::HighPrecision`](crate::KeptInput): X itself, in the caller's [`DeviceBuffer`], which is kept alive and not copied; whoever
/// writes it before the backward pass changes the gradient. No memory of its own, but X's: tokens x in elements of the layer's type.
/// [`KeptInput::Quantized`](crate::KeptInput): the quantized transpose, in memory of its own for the most tokens: in x tokens codes of a
/// byte with scales; BF16 where dW is a product of BF16. What [`SavedInput::tokens`] says is what was last enqueued or captured: a launch of
/// a graph does not change it, so that each captured number of tokens wants one of its own.
pub struct SavedInput {
    /// Recipe, type, in features, most tokens and form of the layer that made it.
    pub(super) made_for: (LinearRecipe, DType, usize, usize, KeptInput),
    pub(super) of: Option<Made>,
    pub(super) kept: Kept,
    /// The factor that X had in the forward pass, one FP32, where it was one of past steps.
    pub(super) factor: Option<DeviceBuffer>,
}

pub(super) enum Kept {
    HighPrecision(Option<SharedMatrix>),
    Transposed(Room),
    Bf16(Bf16Form),
}

impl SavedInput {
    /// Rows of X; 0 before the first forward pass.
    pub fn tokens(&self) -> usize {
        self.of.map_or(0, |of| of.tokens)
    }

    /// Bytes on the device that it keeps: those of X, or of its own memory.
    pub fn bytes(&self) -> usize {
        let factor = self.factor.as_ref().map_or(0, DeviceBuffer::len);
        factor
            + match &self.kept {
                Kept::HighPrecision(shared) => shared.as_ref().map_or(0, SharedMatrix::bytes),
                Kept::Transposed(room) => room.bytes(),
                Kept::Bf16(form) => form.bytes(),
            }
    }

    /// The quantized transpose as the product reads it, sharing its memory; `None` where X is not kept so. Its columns are the tokens,
    /// filled up with zeros to a multiple of 16.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) before the first forward pass.
    pub fn transposed(&self) -> Result<Option<QuantMatrix>> {
        let Kept::Transposed(room) = &self.kept else { return Ok(None) };
        let of = self.of.ok_or_else(|| nothing_there("saved X"))?;
        room.matrix(of.features, of.tokens.next_multiple_of(pair::K_MULTIPLE)).map(Some)
    }

    /// Refuses a target in the memory of X: dW reads that while it is written, and after Y and dX are.
    pub(super) fn check_apart(&self, which: &str, target: &MatMut<'_>) -> Result<()> {
        match &self.kept {
            Kept::HighPrecision(Some(x)) => x.check_apart("saved X", which, target),
            _ => Ok(()),
        }
    }
}

/// dY in the forms that both gradients read, and its sum over the tokens: memory that
/// [`Linear::quantized_gradient`](crate::Linear::quantized_gradient) makes once, and each
/// [`Linear::quantize_gradient_into`](crate::Linear::quantize_gradient_into) fills anew.
///
/// Quantized: a byte an element as it lies, another transposed, and scales, for the most tokens. Where gradients are products of BF16 and
/// the layer's type is BF16, dY itself, in the caller's [`DeviceBuffer`], which is kept alive and not copied: nobody may write it before
/// both gradients are enqueued, and dX may not lie there.
pub struct QuantizedGradient {
    /// Recipe, type, out features and most tokens of the layer that made it, and whether it has a bias.
    pub(super) made_for: (LinearRecipe, DType, usize, usize, bool),
    pub(super) of: Option<Made>,
    pub(super) form: GradientForm,
    /// If the layer has a bias: its column sums of each 128 rows, FP64, and all of them, one FP32 for each out feature.
    pub(super) sums: Option<DeviceBuffer>,
    pub(super) bias: Option<DeviceBuffer>,
}

pub(super) enum GradientForm {
    Quantized { rows: Room, transposed: Room },
    Bf16(Bf16Form),
}

impl QuantizedGradient {
    /// Rows of dY; 0 before the first.
    pub fn tokens(&self) -> usize {
        self.of.map_or(0, |of| of.tokens)
    }

    /// Bytes on the device that it keeps.
    pub fn bytes(&self) -> usize {
        let sums = [&self.sums, &self.bias].into_iter().flatten().map(DeviceBuffer::len).sum::<usize>();
        sums + match &self.form {
            GradientForm::Quantized { rows, transposed } => rows.bytes() + transposed.bytes(),
            GradientForm::Bf16(form) => form.bytes(),
        }
    }

    /// dY and its transpose as the products read them, sharing their memory; `None` where gradients are products of BF16. The columns of
    /// the transpose are the tokens, filled up with zeros to a multiple of 16.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) before the first dY.
    pub fn operands(&self) -> Result<Option<[QuantMatrix; 2]>> {
        let GradientForm::Quantized { rows, transposed } = &self.form else { return Ok(None) };
        let of = self.of.ok_or_else(|| nothing_there("dY"))?;
        let padded = of.tokens.next_multiple_of(pair::K_MULTIPLE);
        Ok(Some([rows.matrix(of.tokens, of.features)?, transposed.matrix(of.features, padded)?]))
    }

    /// Lets go of a dY that is the caller's.
    pub(super) fn forget(&mut self) {
        if let GradientForm::Bf16(form) = &mut self.form {
            form.forget();
        }
    }
}

/// Where the gradients of a layer's parameters are added: memory of the caller, which
/// [`Linear::zero_gradients`](crate::Linear::zero_gradients) clears before the first backward pass of a step.
pub struct LinearGradientsInto<'a> {
    /// dW, out x in, FP32, rows at any stride that is a multiple of 16 bytes.
    pub weight: MatMut<'a>,
    /// The gradient of the bias, one FP32 an out feature; of layers with a bias, and no others.
    pub bias: Option<DeviceBytesMut<'a>>,
}

impl LinearGradientsInto<'_> {
    /// Refuses a dW in the memory of X.
    pub(super) fn check_apart(&self, saved: &SavedInput) -> Result<()> {
        saved.check_apart("dW", &self.weight)
    }
}
