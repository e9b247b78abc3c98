//! [`Linear`]: a linear layer that trains, on the CPU: what its three products must give.

mod delayed_scales;
mod form;

use ndarray::{Array2, ArrayView1, ArrayView2};

use self::delayed_scales::{DelayedScales, Tensor};
use self::form::{Form, form, in_type, padded_transpose, product, weight_forms};
use crate::error::{Error, Result};
use crate::format::{DType, DelayedState, GivenScale, KeptInput, LinearRecipe, codec, pair};

/// `Y = X W^T + bias` with gradients; X is tokens x in, W out x in, Y tokens x out. [`LinearRecipe`] says what is quantized how.
///
/// ```text
/// Y   = cast(sum X W^T + bias)
/// dX  = cast(sum dY (W^T)^T)
/// dW += sum dY^T (X^T)^T         FP32
/// db += sum of dY over tokens    FP32; a sum in f64, token after token, rounded once
/// ```
///
/// The sums are those of [`scaled_gemm`](super::scaled_gemm), dW and bias added in its epilogue; of BF16 operands they are FP32, in an order
/// that is not specified. X, W, bias, dY, Y and dX are of one type, the layer's; numbers that are not of it are rounded to it first.
/// Any number of tokens, also none: where a product contracts over them, they are padded with zeros to a multiple of 16, which
/// changes neither codes nor scales. Runs on all cores; every call allocates what it gives and the operands that it quantizes.
#[derive(Debug, Clone)]
pub struct Linear {
    recipe: LinearRecipe,
    dtype: DType,
    kept: KeptInput,
    bias: Option<Vec<f32>>,
    /// W, and W^T, each quantized along its columns.
    weight: Form,
    transposed: Form,
    scales: Option<DelayedScales>,
}

/// X, kept for the weight gradient.
#[derive(Debug, Clone)]
pub struct SavedInput {
    of: Made,
    kept: Kept,
}

#[derive(Debug, Clone)]
enum Kept {
    /// With the scale that the forward pass had, where it was one of past steps: the backward pass has the same.
    HighPrecision(Array2<f32>, Option<GivenScale>),
    Transposed(Form),
}

/// dY, quantized for both gradients, and what it gives the bias.
#[derive(Debug, Clone)]
pub struct QuantizedGradient {
    of: Made,
    rows: Form,
    transposed: Form,
    bias: Vec<f32>,
}

/// Whose X or dY it is: of two layers that agree in all of this, one takes the other's.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Made {
    recipe: LinearRecipe,
    dtype: DType,
    tokens: usize,
    features: usize,
}

/// Gradients of a layer's parameters, to which each backward pass adds; start from [`Linear::zero_gradients`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LinearGradients {
    /// dW, out x in.
    pub weight: Array2<f32>,
    /// The gradient of the bias, one number an out feature; empty without bias.
    pub bias: Vec<f32>,
}

impl Linear {
    /// A layer with this weight, out x in; `dtype` is the type of all that enters and leaves it.
    ///
    /// # Errors
    /// [`Error::Shape`] unless both numbers of features are positive multiples of 16; [`Error::DType`] for 8-bit types.
    pub fn new(weight: ArrayView2<f32>, dtype: DType, recipe: LinearRecipe) -> Result<Self> {
        pair::check_linear(weight.dim(), dtype)?;
        let mut scales = DelayedScales::new(recipe);
        let [weight, transposed] = quantized_weight(weight, dtype, recipe, &mut scales)?;
        Ok(Self { recipe, dtype, kept: KeptInput::default(), bias: None, weight, transposed, scales })
    }

    /// The same with a bias, one number for each out feature.
    ///
    /// # Errors
    /// [`Error::Shape`] for another length.
    pub fn with_bias(self, mut bias: Vec<f32>) -> Result<Self> {
        self.check_bias(bias.len())?;
        codec::round_all(self.dtype, &mut bias);
        Ok(Self { bias: Some(bias), ..self })
    }

    /// The same, keeping X in this form.
    pub fn with_kept_input(self, kept: KeptInput) -> Self {
        Self { kept, ..self }
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

    /// The bias, if there is one.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// Features of Y.
    pub fn out_features(&self) -> usize {
        self.weight.rows()
    }

    /// Features of X.
    pub fn in_features(&self) -> usize {
        self.weight.cols()
    }

    /// Takes a weight of the same shape, after an optimizer step: both forms are made again. With delayed scaling,
    /// [`Linear::update_scales`] goes before: the other way round W has the factor of the step before.
    ///
    /// # Errors
    /// [`Error::Shape`] for another shape; nothing is changed then.
    pub fn refresh(&mut self, weight: ArrayView2<f32>) -> Result<()> {
        let [out, features] = [self.out_features(), self.in_features()];
        if weight.dim() != (out, features) {
            let (r, c) = weight.dim();
            return Err(Error::shape(
                "weight of a linear layer",
                format!("{r} x {c}"),
                format!("must be {out} x {features}, as before"),
                "make another layer for another shape",
            ));
        }
        [self.weight, self.transposed] = quantized_weight(weight, self.dtype, self.recipe, &mut self.scales)?;
        Ok(())
    }

    /// Takes a bias, after an optimizer step.
    ///
    /// # Errors
    /// [`Error::Shape`] for another length; [`Error::Unsupported`] for a layer without bias.
    pub fn refresh_bias(&mut self, bias: &[f32]) -> Result<()> {
        self.check_bias(bias.len())?;
        let Some(old) = &mut self.bias else {
            return Err(Error::unsupported(
                "a new bias",
                "this layer was made without one",
                "make it with Linear::with_bias",
            ));
        };
        old.copy_from_slice(bias);
        codec::round_all(self.dtype, old);
        Ok(())
    }

    /// Y, for inference and evaluation: nothing is kept, and no amax is remembered.
    ///
    /// # Errors
    /// [`Error::Shape`] if X has not the layer's in features.
    pub fn forward(&self, x: ArrayView2<f32>) -> Result<Array2<f32>> {
        self.check_input(&x)?;
        self.product_with(in_type(x, self.dtype).view())
    }

    /// Y, and X in the form that [`Linear::with_kept_input`] asks for. Its amax is remembered for delayed scaling.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward_saving(&mut self, x: ArrayView2<f32>) -> Result<(Array2<f32>, SavedInput)> {
        self.check_input(&x)?;
        let of = self.made(&x);
        let x = in_type(x, self.dtype);
        let y = self.product_with(x.view())?;
        let scale = self.given(Tensor::Input);
        self.record(Tensor::Input, &x.view());
        let kept = match self.kept {
            KeptInput::HighPrecision => Kept::HighPrecision(x.into_owned(), scale),
            KeptInput::Quantized => Kept::Transposed(self.input_transposed(x.view(), scale)?),
        };
        Ok((y, SavedInput { of, kept }))
    }

    /// dY in the forms that both gradients read, and its sum over the tokens if the layer has a bias. Its amax is remembered for
    /// delayed scaling.
    ///
    /// # Errors
    /// [`Error::Shape`] if dY has not the layer's out features.
    pub fn quantize_gradient(&mut self, dy: ArrayView2<f32>) -> Result<QuantizedGradient> {
        self.check_output(&dy)?;
        let of = self.made(&dy);
        let dy = in_type(dy, self.dtype);
        let scale = self.given(Tensor::Gradient);
        let rows = form(dy.view(), self.dtype, self.recipe.input_gradient().map(|[dy, _]| dy), scale)?;
        let recipe = self.recipe.weight_gradient().map(|[dy, _]| dy);
        let transposed = form(padded_transpose(dy.view()).view(), self.dtype, recipe, scale)?;
        let sum = |col: ArrayView1<f32>| col.iter().map(|v| f64::from(*v)).sum::<f64>() as f32;
        let bias = if self.bias.is_some() { dy.columns().into_iter().map(sum).collect() } else { Vec::new() };
        self.record(Tensor::Gradient, &dy.view());
        Ok(QuantizedGradient { of, rows, transposed, bias })
    }

    /// dX.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Unsupported`] for a gradient of another layer.
    #[doc(alias = "dgrad")]
    pub fn input_gradient(&self, dy: &QuantizedGradient) -> Result<Array2<f32>> {
        self.check_gradient(dy)?;
        product(&dy.rows, &self.transposed, self.dtype, None, None)
    }

    /// Adds dW, and the gradient of the bias, to `gradients`.
    ///
    /// # Errors
    /// [`Error::Shape`] if gradients, dY or X have other shapes or numbers of tokens; [`Error::Unsupported`] if they are of a layer of
    /// another recipe or type. `gradients` are then as they were.
    #[doc(alias = "wgrad")]
    pub fn weight_gradient(
        &self,
        dy: &QuantizedGradient,
        saved: &SavedInput,
        gradients: &mut LinearGradients,
    ) -> Result<()> {
        self.check_gradient(dy)?;
        self.check_saved(dy.of.tokens, saved)?;
        self.check_gradients(gradients)?;
        if dy.of.tokens > 0 {
            let made;
            let x = match &saved.kept {
                Kept::Transposed(x) => x,
                Kept::HighPrecision(x, scale) => {
                    made = self.input_transposed(x.view(), *scale)?;
                    &made
                }
            };
            gradients.weight = product(&dy.transposed, x, DType::F32, None, Some(gradients.weight.view()))?;
        }
        gradients.bias.iter_mut().zip(&dy.bias).for_each(|(sum, dy)| *sum += dy);
        Ok(())
    }

    /// All of a backward pass: dX, with dW and the gradient of the bias added to `gradients`.
    ///
    /// # Errors
    /// As [`Linear::quantize_gradient`] and [`Linear::weight_gradient`]; neither layer nor `gradients` are then changed.
    pub fn backward(
        &mut self,
        dy: ArrayView2<f32>,
        saved: &SavedInput,
        gradients: &mut LinearGradients,
    ) -> Result<Array2<f32>> {
        self.check_output(&dy)?;
        self.check_saved(dy.nrows(), saved)?;
        self.check_gradients(gradients)?;
        let dy = self.quantize_gradient(dy)?;
        self.weight_gradient(&dy, saved, gradients)?;
        self.input_gradient(&dy)
    }

    /// Gradients of zero.
    pub fn zero_gradients(&self) -> LinearGradients {
        let weight = Array2::zeros((self.out_features(), self.in_features()));
        LinearGradients { weight, bias: vec![0.0; self.bias.as_ref().map_or(0, Vec::len)] }
    }

    /// Ends a step of delayed scaling: the amax of X, W and dY since the last call go into the factors of the next step
    /// ([`delayed_update`](super::delayed_update)). One that had none, or 0, keeps factor and history. W keeps its codes until
    /// [`Linear::refresh`]. Does nothing for other recipes.
    pub fn update_scales(&mut self) {
        if let Some(scales) = &mut self.scales {
            scales.update();
        }
    }

    /// Factors and past amax of X, W and dY: what a checkpoint of the training keeps. `None` without delayed scaling.
    pub fn delayed_states(&self) -> Option<[DelayedState; 3]> {
        self.scales.as_ref().map(DelayedScales::states)
    }

    /// Takes what [`Linear::delayed_states`] gave: to go on with a training, or, before [`Linear::update_scales`], with the largest amax of all
    /// ranks in front of each history. W keeps its codes until [`Linear::refresh`].
    ///
    /// # Errors
    /// [`Error::Shape`] for histories of another window, [`Error::Unsupported`] for numbers that none can be, or a recipe without delayed
    /// scaling; nothing is changed then.
    pub fn set_delayed_states(&mut self, states: [DelayedState; 3]) -> Result<()> {
        match &mut self.scales {
            Some(scales) => scales.set_states(states),
            None => Err(Error::unsupported(
                "a state of delayed scaling",
                format!("a layer of {} finds its scales anew", self.recipe),
                "leave it out",
            )),
        }
    }

    /// Y of an X that was checked and is in the layer's type.
    fn product_with(&self, x: ArrayView2<f32>) -> Result<Array2<f32>> {
        let x = form(x, self.dtype, self.recipe.forward().map(|[x, _]| x), self.given(Tensor::Input))?;
        let bias = self.bias.as_deref().map(|bias| (bias, self.dtype));
        product(&x, &self.weight, self.dtype, bias, None)
    }

    /// X^T as the weight gradient reads it.
    fn input_transposed(&self, x: ArrayView2<f32>, scale: Option<GivenScale>) -> Result<Form> {
        form(padded_transpose(x).view(), self.dtype, self.recipe.weight_gradient().map(|[_, x]| x), scale)
    }

    /// The factor of past steps; `None` where a cast finds its own.
    fn given(&self, tensor: Tensor) -> Option<GivenScale> {
        self.scales.as_ref().map(|scales| scales.given(tensor))
    }

    fn record(&mut self, tensor: Tensor, values: &ArrayView2<f32>) {
        if let Some(scales) = &mut self.scales {
            scales.record(tensor, values);
        }
    }

    fn made(&self, values: &ArrayView2<f32>) -> Made {
        let (tokens, features) = values.dim();
        Made { recipe: self.recipe, dtype: self.dtype, tokens, features }
    }

    fn check_input(&self, x: &ArrayView2<f32>) -> Result<()> {
        check_tokens("X", x.dim(), (self.in_features(), "in"), "X is tokens x in, W is out x in")
    }

    fn check_output(&self, dy: &ArrayView2<f32>) -> Result<()> {
        check_tokens("dY", dy.dim(), (self.out_features(), "out"), "dY has the shape of Y, tokens x out")
    }

    fn check_bias(&self, len: usize) -> Result<()> {
        let out = self.out_features();
        if len == out {
            return Ok(());
        }
        Err(Error::shape("bias", format!("length {len}"), format!("must be {out}"), "one value for each out feature"))
    }

    /// Refuses what a layer of another recipe or type has made.
    fn check_made(&self, operand: &str, of: Made) -> Result<()> {
        if (of.recipe, of.dtype) == (self.recipe, self.dtype) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("{operand} of a layer of {} in {}", of.recipe, of.dtype),
            format!("this layer is one of {} in {}, and reads other bytes", self.recipe, self.dtype),
            "pass what this layer's own calls gave",
        ))
    }

    fn check_gradient(&self, dy: &QuantizedGradient) -> Result<()> {
        self.check_made("dY", dy.of)?;
        let remedy = "pass what quantize_gradient of this layer gave";
        check_tokens("dY", (dy.of.tokens, dy.of.features), (self.out_features(), "out"), remedy)?;
        let bias = self.bias.as_ref().map_or(0, Vec::len);
        if dy.bias.len() != bias {
            let found = format!("{} sums for a bias", dy.bias.len());
            return Err(Error::shape("dY", found, format!("must have the {bias} of the layer"), remedy));
        }
        Ok(())
    }

    fn check_saved(&self, tokens: usize, saved: &SavedInput) -> Result<()> {
        self.check_made("saved X", saved.of)?;
        if (saved.of.tokens, saved.of.features) == (tokens, self.in_features()) {
            return Ok(());
        }
        Err(Error::shape(
            "saved X",
            format!("{} x {}", saved.of.tokens, saved.of.features),
            format!("must be {tokens} x {}, the tokens of dY and the in features", self.in_features()),
            "pass what forward_saving gave for the same tokens",
        ))
    }

    fn check_gradients(&self, gradients: &LinearGradients) -> Result<()> {
        let want = (self.out_features(), self.in_features(), self.bias.as_ref().map_or(0, Vec::len));
        let (rows, cols) = gradients.weight.dim();
        if (rows, cols, gradients.bias.len()) == want {
            return Ok(());
        }
        Err(Error::shape(
            "gradients",
            format!("{rows} x {cols} and {} of a bias", gradients.bias.len()),
            format!("must be {} x {} and {}", want.0, want.1, want.2),
            "begin with zero_gradients of this layer",
        ))
    }
}

impl SavedInput {
    /// Rows of X.
    pub fn tokens(&self) -> usize {
        self.of.tokens
    }

    /// What is kept, in bytes as a GPU would hold it: elements of X's type, or codes and scales with padding.
    pub fn bytes(&self) -> usize {
        match &self.kept {
            Kept::HighPrecision(x, _) => x.len() * self.of.dtype.bytes(),
            Kept::Transposed(x) => x.bytes(),
        }
    }
}

/// Both forms of a weight, whose amax is remembered for delayed scaling.
fn quantized_weight(
    weight: ArrayView2<f32>,
    dtype: DType,
    recipe: LinearRecipe,
    scales: &mut Option<DelayedScales>,
) -> Result<[Form; 2]> {
    let weight = in_type(weight, dtype);
    let scale = scales.as_ref().map(|scales| scales.given(Tensor::Weight));
    let forms = weight_forms(weight.view(), dtype, recipe, scale)?;
    if let Some(scales) = scales {
        scales.record(Tensor::Weight, &weight.view());
    }
    Ok(forms)
}

/// Refuses a matrix of tokens with other features than the layer's.
fn check_tokens(
    operand: &str,
    (tokens, features): (usize, usize),
    (wanted, which): (usize, &str),
    remedy: &str,
) -> Result<()> {
    if features == wanted {
        return Ok(());
    }
    let rule = format!("must have the {wanted} {which} features of the layer");
    Err(Error::shape(operand, format!("{tokens} x {features}"), rule, remedy))
}
