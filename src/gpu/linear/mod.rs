//! [`Linear`]: a linear layer that trains, on the GPU. [`reference::Linear`](crate::reference::Linear) says what its products must give.
//!
//! `operand` is where operands of any number of tokens are written, `saved` what goes from pass to pass, `delayed` the scales of past
//! steps, `product` the products, `passes` forward and backward, `check` what is refused.

mod check;
mod delayed;
mod operand;
mod passes;
mod product;
mod saved;

pub use self::saved::{LinearGradientsInto, QuantizedGradient, SavedInput};

use self::delayed::{DelayedScales, Tensor};
use self::operand::{Bf16Form, Room, round_to_bf16};
use self::passes::cast;
use self::product::{Plans, goes_wide};
use self::saved::{GradientForm, Kept};
use crate::error::{Error, Result};
use crate::format::{DType, DelayedState, KeptInput, LinearRecipe, Recipe, Scheme, pair};
use crate::gpu::cast::quantize::QuantizeTo;
use crate::gpu::device::memory::DeviceBuffer;
use crate::gpu::gemm::available::Facts;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{KernelFamily, MOST_SUMMED_ROWS, column_sum_bytes};
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, VecRef};

/// `Y = X W^T + bias` with gradients, each product by quantized operands as [`LinearRecipe`] says; X is tokens x in, W out x in, Y
/// tokens x out. [`reference::Linear`](crate::reference::Linear) is the same layer on the CPU: codes and scales are equal to its, products within
/// [`gemm_bound`](crate::reference::gemm_bound).
///
/// ```text
/// Y   = cast(sum X W^T + bias)
/// dX  = cast(sum dY (W^T)^T)
/// dW += sum dY^T (X^T)^T         FP32
/// db += sum of dY over tokens    FP32; a sum in f64 in a fixed order, rounded once
/// ```
///
/// X, W, bias, dY, Y and dX are of one type, the layer's, in memory of the caller, row-major, rows at any stride that is a multiple of 16
/// bytes. Any number of tokens up to the most that the layer was made for, also none: what contracts over them is filled up with zeros in
/// memory of the layer; nothing outside of the caller's matrices is read or written.
///
/// It works on the handle that it was made for. Calls after construction allocate nothing and wait for nothing, but for what they say, and
/// for the first call with a number of tokens (or with rows at another stride), which plans its products: [`Linear::prepare`] does that before, and all of
/// `refresh`, `refresh_bias`, the passes, `update_scales` and `zero_gradients` may then be captured into a graph.
///
/// ```no_run
/// use scaled_gemm::{DType, Handle, KeptInput, Linear, LinearGradientsInto, LinearRecipe, MatMut, MatRef, Result};
///
/// # fn main() -> Result<()> {
/// let (tokens, features, out) = (200, 4096, 14336);
/// let handle = Handle::new(0)?;
/// let weight = handle.alloc(out * features * 2)?;
/// let weight = MatRef::new(&weight, DType::Bf16, out, features)?;
/// let mut layer = Linear::new(&handle, &weight, LinearRecipe::Fp8Blockwise, 8192)?.with_kept_input(&handle, KeptInput::Quantized)?;
/// layer.prepare(&handle, tokens)?;
///
/// let (x, dy) = (handle.alloc(tokens * features * 2)?, handle.alloc(tokens * out * 2)?);
/// let (mut y, mut dx) = (handle.alloc(tokens * out * 2)?, handle.alloc(tokens * features * 2)?);
/// let mut dw = handle.alloc(out * features * 4)?; // zeros
/// let mut saved = layer.saved_input(&handle)?;
/// let x = MatRef::new(&x, DType::Bf16, tokens, features)?;
/// layer.forward_saving_into(&handle, &x, MatMut::new(&mut y, DType::Bf16, tokens, out)?, &mut saved)?;
/// let dy = MatRef::new(&dy, DType::Bf16, tokens, out)?;
/// let dx = MatMut::new(&mut dx, DType::Bf16, tokens, features)?;
/// let gradients = LinearGradientsInto { weight: MatMut::new(&mut dw, DType::F32, out, features)?, bias: None };
/// layer.backward_into(&handle, &dy, &saved, dx, gradients)?;
///
/// layer.update_scales(&handle)?; // ends a step of delayed scaling, before the new weight; nothing for other recipes
/// layer.refresh(&handle, &weight)?; // after the optimizer's step
/// # Ok(())
/// # }
/// ```
pub struct Linear {
    recipe: LinearRecipe,
    dtype: DType,
    kept: KeptInput,
    out: usize,
    features: usize,
    max_tokens: usize,
    handle_id: u64,
    weight: Weight,
    /// In the layer's type.
    bias: Option<DeviceBuffer>,
    scales: Option<DelayedScales>,
    /// X for Y.
    x: Option<Room>,
    /// Its transpose for dW, where X is kept as it came.
    x_transposed: Option<Room>,
    /// X as an operand of BF16 products, where the layer is of another type.
    x_bf16: Option<DeviceBuffer>,
    /// FP32 sums of BF16 products.
    wide: Option<DeviceBuffer>,
    /// That of `backward_into`.
    gradient: Option<QuantizedGradient>,
    plans: Plans,
}

/// W in the forms that products read.
struct Weight {
    /// W for Y, and its transpose for dX.
    plain: Option<QuantMatrix>,
    transposed: Option<QuantMatrix>,
    /// W itself, for products of BF16, which read it either way.
    bf16: Option<DeviceBuffer>,
}

impl Linear {
    /// A layer with this weight, out x in, whose type is the layer's, for at most `max_tokens` tokens. Allocates W in the recipe's forms and memory for
    /// quantized X and dY ([`Linear::device_bytes`]); loads kernels; waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] unless both numbers of features are positive multiples of 16; [`Error::DType`] for 8-bit types;
    /// [`Error::Unsupported`] for a recipe that this GPU does not run ([`LinearRecipe`]), before anything is allocated, and inside graph capture;
    /// [`Error::Driver`] if there is not enough memory; [`Error::Kernel`].
    pub fn new(handle: &Handle, weight: &MatRef<'_>, recipe: LinearRecipe, max_tokens: usize) -> Result<Self> {
        let (out, features, dtype) = (weight.rows(), weight.cols(), weight.dtype());
        handle.refuse_capture("making a linear layer")?;
        pair::check_linear((out, features), dtype)?;
        check_max_tokens(max_tokens, out.max(features))?;
        check::check_recipe(recipe, [out, features], &handle.device().to_string(), Facts::of(handle))?;
        handle.load_kernels(&[KernelFamily::Linear, KernelFamily::Epilogue])?;
        let scheme = |recipe: Recipe| recipe.scheme();
        let quantized = |scheme, rows, cols| QuantMatrix::zeros(handle, scheme, rows, cols);
        let plain_w = recipe.forward().map(|[_, w]| quantized(scheme(w), out, features)).transpose()?;
        let transposed = recipe.input_gradient().map(|[_, w]| quantized(scheme(w), features, out)).transpose()?;
        let has_bf16 = recipe.forward().is_none() || recipe.weight_gradient().is_none();
        let bf16 = |elements: usize| DeviceBuffer::zeros(handle.queue(), elements * DType::Bf16.bytes());
        let weight_bf16 = has_bf16.then(|| bf16(out * features)).transpose()?;
        let x = recipe.forward().map(|[x, _]| Room::new(handle, scheme(x), max_tokens, features)).transpose()?;
        let x_bf16 = (has_bf16 && dtype != DType::Bf16).then(|| bf16(max_tokens * features)).transpose()?;
        let mut layer = Self {
            recipe,
            dtype,
            kept: KeptInput::default(),
            out,
            features,
            max_tokens,
            handle_id: handle.id(),
            weight: Weight { plain: plain_w, transposed, bf16: weight_bf16 },
            bias: None,
            scales: DelayedScales::new(handle, recipe)?,
            x,
            x_transposed: None,
            x_bf16,
            wide: None,
            gradient: Some(new_gradient(handle, recipe, dtype, [out, max_tokens], false)?),
            plans: Plans::default(),
        };
        layer.x_transposed = layer.input_room(handle)?;
        layer.make_wide(handle)?;
        layer.write_weight(handle, weight)?;
        Ok(layer)
    }

    /// The same with a bias, one number of the layer's type for each out feature, which is copied. Allocates.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for other vectors; [`Error::Shape`] where the gradient stays BF16 (recipes [`LinearRecipe::Bf16`] and [`LinearRecipe::Nvfp4Row`]) and the layer is made for more than 8,388,480 tokens, whose sum no kernel makes in one pass; otherwise as [`Linear::new`].
    pub fn with_bias(mut self, handle: &Handle, bias: &VecRef<'_>) -> Result<Self> {
        self.check_handle(handle)?;
        self.check_bias(bias)?;
        check_summed(self.recipe, self.max_tokens)?;
        handle.refuse_capture("giving a linear layer a bias")?;
        self.bias = Some(DeviceBuffer::zeros(handle.queue(), self.out * self.dtype.bytes())?);
        self.gradient = Some(new_gradient(handle, self.recipe, self.dtype, [self.out, self.max_tokens], true)?);
        self.make_wide(handle)?;
        self.refresh_bias(handle, bias)?;
        Ok(self)
    }

    /// The same, keeping X in this form. Allocates, or frees, memory for the transpose of X.
    ///
    /// # Errors
    /// As [`Linear::new`].
    pub fn with_kept_input(mut self, handle: &Handle, kept: KeptInput) -> Result<Self> {
        self.check_handle(handle)?;
        handle.refuse_capture("changing how a linear layer keeps X")?;
        self.kept = kept;
        self.x_transposed = self.input_room(handle)?;
        Ok(self)
    }

    /// Memory for an X of at most the layer's most tokens, in the form in which it keeps X: one for each forward pass that waits for its
    /// backward pass. Allocates.
    ///
    /// # Errors
    /// [`Error::Unsupported`] inside graph capture, or on another handle; [`Error::Driver`] if there is not enough memory.
    pub fn saved_input(&self, handle: &Handle) -> Result<SavedInput> {
        self.check_handle(handle)?;
        handle.refuse_capture("allocating memory for X")?;
        let kept = match (self.kept, self.recipe.weight_gradient()) {
            (KeptInput::HighPrecision, _) => Kept::HighPrecision(None),
            (KeptInput::Quantized, Some([_, x])) => {
                Kept::Transposed(Room::new(handle, x.scheme(), self.features, padded(self.max_tokens))?)
            }
            (KeptInput::Quantized, None) => {
                Kept::Bf16(Bf16Form::new(handle, self.dtype, true, self.max_tokens * self.features)?)
            }
        };
        let needs_factor = self.scales.is_some() && self.kept == KeptInput::HighPrecision;
        let factor = needs_factor.then(|| DeviceBuffer::zeros(handle.queue(), 4)).transpose()?;
        let made_for = (self.recipe, self.dtype, self.features, self.max_tokens, self.kept);
        Ok(SavedInput { made_for, of: None, kept, factor })
    }

    /// Memory for a dY of at most the layer's most tokens, for schedules that put gradients off; [`Linear::backward_into`] needs none.
    /// Allocates.
    ///
    /// # Errors
    /// As [`Linear::saved_input`].
    pub fn quantized_gradient(&self, handle: &Handle) -> Result<QuantizedGradient> {
        self.check_handle(handle)?;
        handle.refuse_capture("allocating memory for dY")?;
        new_gradient(handle, self.recipe, self.dtype, [self.out, self.max_tokens], self.bias.is_some())
    }

    /// Makes ready all that passes of so many tokens need: runs forward and backward once on zeros, so that products are planned, their
    /// scratch memory is reserved and kernels are loaded. The layer keeps these plans, some kilobytes of host memory each, whatever its handle forgets, and
    /// until it is prepared for as many tokens again: after [`Handle::set_tuning`] and [`Handle::trim_scratch`]. For packed rows, and after [`Linear::with_bias`]. Scales and amax stay as they are. Allocates operands, which are freed in stream order; waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] for more than the most tokens; [`Error::Unsupported`] inside graph capture, or where this GPU offers no product;
    /// [`Error::Driver`] if there is not enough memory.
    pub fn prepare(&mut self, handle: &Handle, tokens: usize) -> Result<()> {
        self.check_handle(handle)?;
        handle.refuse_capture("preparing a linear layer")?;
        self.check_most("X", tokens)?;
        self.plans.keep = true;
        let done = self.pass_zeros(handle, tokens);
        self.plans.keep = false;
        done
    }

    fn pass_zeros(&mut self, handle: &Handle, tokens: usize) -> Result<()> {
        let (dtype, out, features) = (self.dtype, self.out, self.features);
        let zeros = |elements: usize, dtype: DType| handle.alloc(elements * dtype.bytes());
        let (x, dy) = (zeros(tokens * features, dtype)?, zeros(tokens * out, dtype)?);
        let (mut y, mut dx) = (zeros(tokens * out, dtype)?, zeros(tokens * features, dtype)?);
        let (mut dw, mut db) = (zeros(out * features, DType::F32)?, zeros(out, DType::F32)?);
        let mut saved = self.saved_input(handle)?;
        let x = MatRef::new(&x, dtype, tokens, features)?;
        self.forward_saving_into(handle, &x, MatMut::new(&mut y, dtype, tokens, out)?, &mut saved)?;
        let bias = self.bias.is_some().then(|| db.view_mut());
        let gradients = LinearGradientsInto { weight: MatMut::new(&mut dw, DType::F32, out, features)?, bias };
        let dx = MatMut::new(&mut dx, dtype, tokens, features)?;
        self.backward_into(handle, &MatRef::new(&dy, dtype, tokens, out)?, &saved, dx, gradients)
    }

    /// Takes a weight of the same shape and type, after an optimizer step: all its forms are written anew, in place, so that captured
    /// passes find them. Safe inside graph capture. With delayed scaling, [`Linear::update_scales`] goes before: the other way round W has
    /// the factor of the step before.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for another weight; [`Error::Unsupported`] on another handle.
    pub fn refresh(&mut self, handle: &Handle, weight: &MatRef<'_>) -> Result<()> {
        self.check_handle(handle)?;
        self.check_weight(weight)?;
        self.write_weight(handle, weight)
    }

    /// Takes a bias, after an optimizer step: copied in place. Safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for another vector; [`Error::Unsupported`] for a layer without bias, or on another handle.
    pub fn refresh_bias(&mut self, handle: &Handle, bias: &VecRef<'_>) -> Result<()> {
        self.check_handle(handle)?;
        self.check_bias(bias)?;
        let Some(own) = &mut self.bias else {
            return Err(Error::unsupported(
                "a new bias",
                "this layer was made without one",
                "make it with Linear::with_bias",
            ));
        };
        let order = handle.queue().order();
        let (from, to) = (bias.data().at(&order)?, own.write(&order)?);
        handle.kernels().copy_2d(handle.queue(), &from, to.bytes, &to, to.bytes, 1, to.bytes)
    }

    /// Sets gradients to zero. Safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] if they are not those of this layer; with delayed scaling [`Error::Alignment`] unless dW begins at a
    /// multiple of 16 bytes, as the passes ask for.
    pub fn zero_gradients(&self, handle: &Handle, mut gradients: LinearGradientsInto<'_>) -> Result<()> {
        self.check_handle(handle)?;
        self.check_gradients(handle, &mut gradients)?;
        let LinearGradientsInto { mut weight, mut bias } = gradients;
        handle.zero(&mut weight)?;
        let (stream, order) = (handle.queue(), handle.queue().order());
        match &mut bias {
            Some(bias) => handle.kernels().zero(stream, &bias.at(&order)?, self.out * 4),
            None => Ok(()),
        }
    }

    /// Ends a step of delayed scaling: the amax of X, W and dY since the last call go into the factors of the next step
    /// ([`reference::delayed_update`](crate::reference::delayed_update)), on the device. One that had none, or 0, keeps factor and history. W keeps
    /// its codes until [`Linear::refresh`]. Does nothing for other recipes. Safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on another handle; [`Error::Driver`].
    pub fn update_scales(&mut self, handle: &Handle) -> Result<()> {
        self.check_handle(handle)?;
        self.scales.as_mut().map_or(Ok(()), |scales| scales.update(handle))
    }

    /// Factors and past amax of X, W and dY: what a checkpoint of the training keeps. `None` without delayed scaling. Allocates on the host,
    /// and waits for the handle's stream.
    ///
    /// # Errors
    /// [`Error::Unsupported`] inside graph capture, or on another handle; [`Error::Driver`].
    pub fn delayed_states(&self, handle: &Handle) -> Result<Option<[DelayedState; 3]>> {
        self.check_handle(handle)?;
        self.scales.as_ref().map(|scales| scales.states(handle)).transpose()
    }

    /// Takes what [`Linear::delayed_states`] gave: to go on with a training, or, before [`Linear::update_scales`], with the largest amax of
    /// all ranks in front of each history. W keeps its codes until [`Linear::refresh`]. Copies from the host, in stream order;
    /// allocates there alone, and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] for histories of another window, [`Error::Unsupported`] for numbers that none can be, a recipe without delayed
    /// scaling, or inside graph capture; nothing is changed then.
    pub fn set_delayed_states(&mut self, handle: &Handle, states: &[DelayedState; 3]) -> Result<()> {
        self.check_handle(handle)?;
        match &mut self.scales {
            Some(scales) => scales.set_states(handle, states),
            None => Err(Error::unsupported(
                "a state of delayed scaling",
                format!("a layer of {} finds its scales anew", self.recipe),
                "leave it out",
            )),
        }
    }

    /// How operands are quantized.
    pub fn recipe(&self) -> LinearRecipe {
        self.recipe
    }

    /// The type of all that enters and leaves the layer.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// In what form X is kept.
    pub fn kept_input(&self) -> KeptInput {
        self.kept
    }

    /// Features of Y.
    pub fn out_features(&self) -> usize {
        self.out
    }

    /// Features of X.
    pub fn in_features(&self) -> usize {
        self.features
    }

    /// The most tokens that it has memory for.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// W for Y, and its transpose for dX, as products read them; `None` where their operands are BF16.
    pub fn quantized_weight(&self) -> [Option<&QuantMatrix>; 2] {
        [self.weight.plain.as_ref(), self.weight.transposed.as_ref()]
    }

    /// Bytes on the device that the layer itself holds: W in all its forms, the bias, X and dY of the most tokens, and FP32 sums where its products take them.
    pub fn device_bytes(&self) -> usize {
        let matrices =
            [&self.weight.plain, &self.weight.transposed].into_iter().flatten().map(QuantMatrix::device_bytes);
        let rooms = [&self.x, &self.x_transposed].into_iter().flatten().map(Room::bytes);
        let buffers = [&self.weight.bf16, &self.bias, &self.x_bf16, &self.wide].into_iter().flatten();
        let scales = self.scales.as_ref().map_or(0, DelayedScales::bytes);
        let gradient = self.gradient.as_ref().map_or(0, QuantizedGradient::bytes);
        matrices.chain(rooms).chain(buffers.map(DeviceBuffer::len)).sum::<usize>() + scales + gradient
    }

    /// All forms of a weight that was checked.
    fn write_weight(&mut self, handle: &Handle, weight: &MatRef<'_>) -> Result<()> {
        if let Some(bf16) = &mut self.weight.bf16 {
            round_to_bf16(handle, weight, bf16)?;
        }
        let Some([_, recipe]) = self.recipe.forward() else { return Ok(()) };
        let to = match (&mut self.weight.plain, &mut self.weight.transposed) {
            (Some(plain), Some(transposed)) => QuantizeTo::Both(plain, transposed),
            (Some(plain), None) | (None, Some(plain)) => QuantizeTo::Plain(plain),
            (None, None) => return Ok(()),
        };
        cast(handle, &mut self.scales, (Tensor::Weight, true), weight, recipe, to, None)
    }

    /// Where X is transposed in the backward pass, if it is.
    fn input_room(&self, handle: &Handle) -> Result<Option<Room>> {
        match (self.kept, self.recipe.weight_gradient()) {
            (KeptInput::HighPrecision, Some([_, x])) => {
                Room::new(handle, x.scheme(), self.features, padded(self.max_tokens)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Memory for FP32 sums, if products of BF16 operands need it.
    fn make_wide(&mut self, handle: &Handle) -> Result<()> {
        let has_bf16 = self.recipe.forward().is_none() || self.recipe.input_gradient().is_none();
        let shape = [self.out, self.features];
        if self.wide.is_none() && has_bf16 && goes_wide(handle, self.dtype, self.bias.is_some(), shape) {
            let bytes = self.max_tokens * self.out.max(self.features) * DType::F32.bytes();
            self.wide = Some(DeviceBuffer::zeros(handle.queue(), bytes)?);
        }
        Ok(())
    }
}

/// Memory for dY, `[out features, most tokens]`.
fn new_gradient(
    handle: &Handle,
    recipe: LinearRecipe,
    dtype: DType,
    [out, tokens]: [usize; 2],
    has_bias: bool,
) -> Result<QuantizedGradient> {
    let room = |scheme: Scheme, rows, cols| Room::new(handle, scheme, rows, cols);
    let form = match (recipe.input_gradient(), recipe.weight_gradient()) {
        (Some([rows, _]), Some([transposed, _])) => GradientForm::Quantized {
            rows: room(rows.scheme(), tokens, out)?,
            transposed: room(transposed.scheme(), out, padded(tokens))?,
        },
        _ => GradientForm::Bf16(Bf16Form::new(handle, dtype, false, tokens * out)?),
    };
    let buffer = |bytes: usize| has_bias.then(|| DeviceBuffer::zeros(handle.queue(), bytes)).transpose();
    let (sums, bias) = (buffer(column_sum_bytes(tokens, out))?, buffer(out * 4)?);
    Ok(QuantizedGradient { made_for: (recipe, dtype, out, tokens, has_bias), of: None, form, sums, bias })
}

/// Columns of a transpose over so many tokens.
fn padded(tokens: usize) -> usize {
    tokens.next_multiple_of(pair::K_MULTIPLE)
}

/// Refuses numbers of tokens whose matrices no kernel takes.
fn check_max_tokens(tokens: usize, features: usize) -> Result<()> {
    let most = i32::MAX as usize / 2;
    let fits = tokens.checked_mul(features).is_some_and(|elements| elements <= isize::MAX as usize / 16);
    if tokens <= most && fits {
        return Ok(());
    }
    Err(Error::shape(
        "tokens of a linear layer",
        format!("{tokens}"),
        format!("must be at most {most}, and matrices of them fit the address space"),
        "pass them in parts",
    ))
}

/// Refuses numbers of tokens that the gradient of a bias cannot sum: those of a dY that no cast reads.
fn check_summed(recipe: LinearRecipe, tokens: usize) -> Result<()> {
    if recipe.input_gradient().is_some() || tokens <= MOST_SUMMED_ROWS {
        return Ok(());
    }
    let rule = format!("a layer with a bias whose gradient stays BF16 takes at most {MOST_SUMMED_ROWS}");
    Err(Error::shape("tokens of a linear layer", format!("{tokens}"), rule, "pass them in parts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_no_kernel_sums_are_refused() {
        for recipe in [LinearRecipe::Bf16, LinearRecipe::Nvfp4Row] {
            assert!(check_summed(recipe, MOST_SUMMED_ROWS).is_ok());
            let text = check_summed(recipe, MOST_SUMMED_ROWS + 1).unwrap_err().to_string();
            assert!(text.contains("8388481") && text.contains("at most 8388480"), "{text}");
        }
        assert!(check_summed(LinearRecipe::Fp8Blockwise, usize::MAX).is_ok());
    }

    #[test]
    fn tokens_beyond_any_memory_are_refused() {
        assert!(check_max_tokens(0, 16).is_ok() && check_max_tokens(1 << 20, 1 << 16).is_ok());
        for (tokens, features) in [(usize::MAX, 16), (1 << 31, 16), (1 << 30, usize::MAX / 2)] {
            let text = check_max_tokens(tokens, features).unwrap_err().to_string();
            assert!(text.contains(&tokens.to_string()) && text.contains("at most"), "{text}");
        }
    }
}
