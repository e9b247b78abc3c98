//! Forward and backward.

use super::delayed::{DelayedScales, Tensor};
use super::operand::{nothing_there, other_form, round_to_bf16, share};
use super::product::{Plans, bf16, quantized};
use super::saved::{GradientForm, Kept, LinearGradientsInto, Made, QuantizedGradient, SavedInput};
use super::{Linear, padded};
use crate::error::Result;
use crate::format::{DType, GivenScale, Recipe};
use crate::gpu::cast::quantize::QuantizeTo;
use crate::gpu::device::memory::{DeviceBuffer, DeviceBytesMut};
use crate::gpu::gemm::bf16::Lies;
use crate::gpu::gemm::desc::Accumulate;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, VecRef};

/// Casts by the recipe, or with the factor of past steps; then the amax is remembered where that is asked for. Of casts to both forms `sums` receives the
/// column sums of each 128 rows.
pub(super) fn cast(
    handle: &Handle,
    scales: &mut Option<DelayedScales>,
    (tensor, records): (Tensor, bool),
    x: &MatRef<'_>,
    recipe: Recipe,
    to: QuantizeTo<'_>,
    sums: Option<&DeviceBuffer>,
) -> Result<()> {
    let Some(scales) = scales else {
        return match (to, sums) {
            (QuantizeTo::Both(plain, turned), Some(sums)) => {
                handle.quantize_summing_into(x, recipe, (plain, turned), sums)
            }
            (to, _) => handle.quantize_into(x, recipe, to),
        };
    };
    let (plain, transposed) = match to {
        QuantizeTo::Plain(plain) => (Some(plain), None),
        QuantizeTo::Transposed(transposed) => (None, Some(transposed)),
        QuantizeTo::Both(plain, transposed) => (Some(plain), Some(transposed)),
    };
    let format = scales.format(tensor);
    if let Some(plain) = plain {
        let (given, amax) = scales.given_and_amax(tensor);
        let mut amax = records.then(|| amax.view_mut());
        handle.quantize_tensor_into(x, format, &given, plain, amax.as_mut())?;
    }
    match transposed {
        Some(out) => handle.quantize_tensor_transposed_into(x, format, &scales.given(tensor), out, sums),
        None => Ok(()),
    }
}

impl Linear {
    /// Y, for inference and evaluation: nothing is kept, and no amax is remembered. X and Y are of the layer's type, tokens x in and tokens x
    /// out. Allocates nothing and waits for nothing once products of so many tokens are planned ([`Linear::prepare`]); safe inside graph
    /// capture then.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) if X or Y does not fit the layer; [`Error::Alignment`](crate::Error::Alignment) unless matrices begin at multiples of 16
    /// bytes; [`Error::Unsupported`](crate::Error::Unsupported) on another handle, or inside a capture where a product is left to be planned.
    pub fn forward_into(&mut self, handle: &Handle, x: &MatRef<'_>, mut y: MatMut<'_>) -> Result<()> {
        self.check_forward(handle, x, &mut y)?;
        if x.rows() == 0 {
            return Ok(());
        }
        if let (Some([recipe, _]), Some(room)) = (self.recipe.forward(), &self.x) {
            let mut rows = room.matrix(x.rows(), self.features)?;
            cast(handle, &mut self.scales, (Tensor::Input, false), x, recipe, QuantizeTo::Plain(&mut rows), None)?;
            return self.product_of_rows(handle, &rows, y);
        }
        self.product_of_plain(handle, x, y)
    }

    /// Y, and X in the form that [`Linear::with_kept_input`] asks for, in `saved`. Its amax is remembered for delayed scaling. Otherwise as
    /// [`Linear::forward_into`].
    ///
    /// # Errors
    /// As [`Linear::forward_into`]; [`Error::Unsupported`](crate::Error::Unsupported) for a `saved` of a layer that is made otherwise, or, where X is kept in high
    /// precision, for an X in memory that this crate does not own.
    pub fn forward_saving_into(
        &mut self,
        handle: &Handle,
        x: &MatRef<'_>,
        mut y: MatMut<'_>,
        saved: &mut SavedInput,
    ) -> Result<()> {
        self.check_forward(handle, x, &mut y)?;
        self.check_room(saved)?;
        let (tokens, features) = (x.rows(), self.features);
        saved.of = None;
        if let Kept::HighPrecision(shared) = &mut saved.kept {
            *shared = if tokens > 0 { Some(share("X", x)?) } else { None };
        }
        saved.check_apart("Y", &y)?;
        if tokens > 0 {
            if let (Some(scales), Some(factor)) = (&self.scales, &mut saved.factor) {
                scales.copy_factor(handle, Tensor::Input, factor)?;
            }
            // Before Y is written, as a product of codes does not hold X apart from it.
            if let Kept::Bf16(form) = &mut saved.kept {
                form.take(handle, "X", x)?;
            }
            match (self.recipe.forward(), &self.x) {
                (Some([recipe, _]), Some(room)) => {
                    let mut rows = room.matrix(tokens, features)?;
                    let of = (Tensor::Input, true);
                    if let Kept::Transposed(room) = &saved.kept {
                        // X has one recipe in both forms (a test of LinearRecipe).
                        let mut turned = room.matrix(features, padded(tokens))?;
                        cast(handle, &mut self.scales, of, x, recipe, QuantizeTo::Both(&mut rows, &mut turned), None)?;
                    } else {
                        cast(handle, &mut self.scales, of, x, recipe, QuantizeTo::Plain(&mut rows), None)?;
                    }
                    self.product_of_rows(handle, &rows, y)?;
                }
                _ => self.product_of_plain(handle, x, y)?,
            }
        }
        saved.of = Some(self.made(tokens, features));
        Ok(())
    }

    /// dY in the forms that both gradients read, and its sum over the tokens if the layer has a bias, in `into`. Its amax is remembered for
    /// delayed scaling. Allocates nothing and waits for nothing; safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) if dY does not fit the layer; [`Error::Unsupported`](crate::Error::Unsupported) for an `into` of a layer that is made otherwise, on
    /// another handle, or, where gradients are products of BF16 in a layer of BF16, for a dY in memory that this crate does not own.
    pub fn quantize_gradient_into(
        &mut self,
        handle: &Handle,
        dy: &MatRef<'_>,
        into: &mut QuantizedGradient,
    ) -> Result<()> {
        self.check_handle(handle)?;
        self.check_output(dy)?;
        self.check_gradient_room(into)?;
        let (tokens, out) = (dy.rows(), self.out);
        into.of = None;
        let QuantizedGradient { form, sums, bias, .. } = into;
        if tokens > 0 {
            match (form, self.recipe.input_gradient()) {
                (GradientForm::Quantized { rows, transposed }, Some([recipe, _])) => {
                    let (mut rows, mut turned) = (rows.matrix(tokens, out)?, transposed.matrix(out, padded(tokens))?);
                    // dY has one recipe in both forms, too.
                    let to = QuantizeTo::Both(&mut rows, &mut turned);
                    cast(handle, &mut self.scales, (Tensor::Gradient, true), dy, recipe, to, sums.as_ref())?;
                }
                (GradientForm::Bf16(form), _) => match sums {
                    Some(sums) => form.take_summing(handle, "dY", dy, sums)?,
                    None => form.take(handle, "dY", dy)?,
                },
                (GradientForm::Quantized { .. }, None) => return Err(nothing_there("a recipe of dY")),
            }
        }
        if let (Some(bias), Some(sums)) = (bias, sums) {
            let order = handle.queue().order();
            let (sums, bias) = (sums.read(&order)?, bias.write(&order)?);
            handle.kernels().bias_gradient(handle.queue(), &sums, (tokens, out), &bias)?;
        }
        into.of = Some(self.made(tokens, out));
        Ok(())
    }

    /// dX, tokens x in, of the layer's type. Allocates nothing and waits for nothing once planned; safe inside graph capture then.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) if dX does not fit; [`Error::Unsupported`](crate::Error::Unsupported) for a gradient of another layer, or none.
    #[doc(alias = "dgrad")]
    pub fn input_gradient_into(&mut self, handle: &Handle, dy: &QuantizedGradient, mut dx: MatMut<'_>) -> Result<()> {
        self.check_handle(handle)?;
        let Made { tokens, .. } = self.check_gradient(dy)?;
        self.check_input_gradient(handle, tokens, &mut dx)?;
        if tokens == 0 {
            return Ok(());
        }
        match (&dy.form, &self.weight.transposed, &self.weight.bf16) {
            (GradientForm::Quantized { rows, .. }, Some(weight), _) => {
                let rows = rows.matrix(tokens, self.out)?;
                quantized(handle, &mut self.plans, &rows, weight, dx, None, Accumulate::Replace)
            }
            (GradientForm::Bf16(form), _, Some(weight)) => {
                form.check_apart("dY", "dX", &dx)?;
                let dy = form.matrix("dY", tokens, self.out)?;
                let weight = MatRef::new(weight, DType::Bf16, self.out, self.features)?;
                let (dy, weight) = ((&dy, Lies::AlongK), (&weight, Lies::AcrossK));
                bf16(handle, &mut self.plans, dy, weight, dx, None, Accumulate::Replace, self.wide.as_mut())
            }
            _ => Err(nothing_there("W of this recipe")),
        }
    }

    /// Adds dW, and the gradient of the bias, to `gradients`. Allocates nothing and waits for nothing once planned; safe inside graph
    /// capture then.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType) if gradients, dY or X have other shapes or numbers of tokens; [`Error::Unsupported`](crate::Error::Unsupported) if they are of a
    /// layer of another recipe or type, or nothing was written to them; [`Error::Shape`](crate::Error::Shape) for a dW in the memory of an X or dY
    /// that is read there. `gradients` are then as they were.
    #[doc(alias = "wgrad")]
    pub fn weight_gradient_into(
        &mut self,
        handle: &Handle,
        dy: &QuantizedGradient,
        saved: &SavedInput,
        mut gradients: LinearGradientsInto<'_>,
    ) -> Result<()> {
        self.check_handle(handle)?;
        let Made { tokens, .. } = self.check_gradient(dy)?;
        self.check_saved(tokens, saved)?;
        self.check_gradients(handle, &mut gradients)?;
        if tokens == 0 {
            return Ok(());
        }
        gradients.check_apart(saved)?;
        if let GradientForm::Bf16(form) = &dy.form {
            form.check_apart("dY", "dW", &gradients.weight)?;
        }
        let LinearGradientsInto { weight, mut bias } = gradients;
        if let Some(bias) = &mut bias {
            // What refuses it does so before dW is added.
            let order = handle.queue().order();
            handle.kernels().check_bias_sum(&bias.at(&order)?, self.out)?;
        }
        // Out of the layer while X is borrowed of it.
        let mut plans = std::mem::take(&mut self.plans);
        let done = self.weight_product(handle, &mut plans, dy, saved, tokens, weight);
        self.plans = plans;
        done?;
        match (&dy.bias, bias) {
            (Some(from), Some(to)) => add_bias(handle, from, to, self.out),
            _ => Ok(()),
        }
    }

    /// dW of checked operands.
    fn weight_product(
        &mut self,
        handle: &Handle,
        plans: &mut Plans,
        dy: &QuantizedGradient,
        saved: &SavedInput,
        tokens: usize,
        weight: MatMut<'_>,
    ) -> Result<()> {
        match &dy.form {
            GradientForm::Quantized { transposed, .. } => {
                let x = self.input_transposed(handle, saved, tokens)?;
                let dy = transposed.matrix(self.out, padded(tokens))?;
                quantized(handle, plans, &dy, &x, weight, None, Accumulate::Add)
            }
            GradientForm::Bf16(form) => {
                let dy = form.matrix("dY", tokens, self.out)?;
                let x = self.input_bf16(handle, saved, tokens)?;
                let (dy, x) = ((&dy, Lies::AcrossK), (&x, Lies::AcrossK));
                bf16(handle, plans, dy, x, weight, None, Accumulate::Add, None)
            }
        }
    }

    /// All of a backward pass: dX, with dW and the gradient of the bias added to `gradients`. dY is quantized in memory of the layer.
    /// Allocates nothing and waits for nothing once planned; safe inside graph capture then.
    ///
    /// # Errors
    /// As [`Linear::quantize_gradient_into`], [`Linear::input_gradient_into`] and [`Linear::weight_gradient_into`]; [`Error::Shape`](crate::Error::Shape) for a dX, or
    /// a dW, in the memory of an X that is kept in high precision. `gradients` are then as they were.
    pub fn backward_into(
        &mut self,
        handle: &Handle,
        dy: &MatRef<'_>,
        saved: &SavedInput,
        mut dx: MatMut<'_>,
        mut gradients: LinearGradientsInto<'_>,
    ) -> Result<()> {
        self.check_handle(handle)?;
        self.check_output(dy)?;
        self.check_saved(dy.rows(), saved)?;
        self.check_gradients(handle, &mut gradients)?;
        self.check_input_gradient(handle, dy.rows(), &mut dx)?;
        saved.check_apart("dX", &dx)?;
        gradients.check_apart(saved)?;
        // Out of the layer while the passes borrow that.
        let Some(mut own) = self.gradient.take() else { return Err(nothing_there("dY")) };
        let done = self.quantize_gradient_into(handle, dy, &mut own).and_then(|()| {
            // What is added comes last: a call that is refused can be made again.
            self.input_gradient_into(handle, &own, dx)?;
            self.weight_gradient_into(handle, &own, saved, gradients)
        });
        own.forget();
        self.gradient = Some(own);
        done
    }

    fn check_forward(&self, handle: &Handle, x: &MatRef<'_>, y: &mut MatMut<'_>) -> Result<()> {
        self.check_handle(handle)?;
        self.check_input(x)?;
        self.check_result(handle, x.rows(), y)
    }

    fn made(&self, tokens: usize, features: usize) -> Made {
        Made { recipe: self.recipe, dtype: self.dtype, tokens, features }
    }

    /// Y of quantized rows.
    fn product_of_rows(&mut self, handle: &Handle, rows: &QuantMatrix, y: MatMut<'_>) -> Result<()> {
        let Some(weight) = &self.weight.plain else { return Err(nothing_there("W of this recipe")) };
        let bias = self.bias.as_ref().map(|bias| VecRef::new(bias, self.dtype, self.out)).transpose()?;
        quantized(handle, &mut self.plans, rows, weight, y, bias, Accumulate::Replace)
    }

    /// Y of plain rows, as BF16.
    fn product_of_plain(&mut self, handle: &Handle, x: &MatRef<'_>, y: MatMut<'_>) -> Result<()> {
        let Some(weight) = &self.weight.bf16 else { return Err(nothing_there("W of this recipe")) };
        let weight = MatRef::new(weight, DType::Bf16, self.out, self.features)?;
        let bias = self.bias.as_ref().map(|bias| VecRef::new(bias, self.dtype, self.out)).transpose()?;
        let rounded;
        let x = match &mut self.x_bf16 {
            Some(buffer) => {
                round_to_bf16(handle, x, buffer)?;
                rounded = MatRef::new(&*buffer, DType::Bf16, x.rows(), self.features)?;
                &rounded
            }
            None => x,
        };
        let wide = self.wide.as_mut();
        let (x, weight) = ((x, Lies::AlongK), (&weight, Lies::AlongK));
        bf16(handle, &mut self.plans, x, weight, y, bias, Accumulate::Replace, wide)
    }

    /// X^T as the weight gradient reads it.
    fn input_transposed(&self, handle: &Handle, saved: &SavedInput, tokens: usize) -> Result<QuantMatrix> {
        let shape = (self.features, padded(tokens));
        match (&saved.kept, &self.x_transposed, self.recipe.weight_gradient()) {
            (Kept::Transposed(room), ..) => room.matrix(shape.0, shape.1),
            (Kept::HighPrecision(Some(x)), Some(room), Some([_, recipe])) => {
                let mut turned = room.matrix(shape.0, shape.1)?;
                let x = x.matrix()?;
                match (&self.scales, &saved.factor) {
                    (Some(scales), Some(factor)) => {
                        let (format, given) = (scales.format(Tensor::Input), GivenScale::Encode(factor.view()));
                        handle.quantize_tensor_transposed_into(&x, format, &given, &mut turned, None)?;
                    }
                    _ => handle.quantize_into(&x, recipe, QuantizeTo::Transposed(&mut turned))?,
                }
                Ok(turned)
            }
            _ => Err(other_form()),
        }
    }

    /// X in BF16, as it lies.
    fn input_bf16<'a>(&'a mut self, handle: &Handle, saved: &'a SavedInput, tokens: usize) -> Result<MatRef<'a>> {
        match (&saved.kept, &mut self.x_bf16) {
            (Kept::Bf16(form), _) => form.matrix("saved X", tokens, self.features),
            (Kept::HighPrecision(Some(x)), None) => x.matrix(),
            (Kept::HighPrecision(Some(x)), Some(buffer)) => {
                round_to_bf16(handle, &x.matrix()?, buffer)?;
                MatRef::new(&*buffer, DType::Bf16, tokens, self.features)
            }
            _ => Err(other_form()),
        }
    }
}

/// `to += from`.
fn add_bias(handle: &Handle, from: &DeviceBuffer, mut to: DeviceBytesMut<'_>, count: usize) -> Result<()> {
    let order = handle.queue().order();
    let (from, to) = (from.read(&order)?, to.at(&order)?);
    handle.kernels().add_bias_gradient(handle.queue(), &from, &to, count)
}
