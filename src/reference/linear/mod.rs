//! [`Linear`]: a linear layer that trains, on the CPU: what its three products must give.

mod delayed_scales;
mod form;

use ndarray::{Array2, ArrayView1, ArrayView2};

use self::delayed_scales::{DelayedScales, Tensor};
use self::form::{Form, form, padded_transpose, product, weight_forms};
use crate::error::{Error, Result};
use crate::format::{DType, GivenScale, LinearRecipe, pair};

/// In what form X is kept from the forward pass to the weight gradient. The gradient is the same, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeptInput {
    /// As it came: tokens x in elements of its type, quantized in the backward pass. Costs nothing where the model keeps X anyway.
    #[default]
    HighPrecision,
    /// Transposed, and quantized along the tokens: a byte an element in FP8, and its scales. BF16 where the recipe says so.
    Quantized,
}

named!(KeptInput, "way to keep an input", HighPrecision => "high-precision", Quantized => "quantized");

/// `Y = X W^T + bias` with gradients; X is tokens x in, W out x in, Y tokens x out. [`LinearRecipe`] says what is quantized how.
///
/// ```text
/// Y   = cast(sum X W^T + bias)
/// dX  = cast(sum dY (W^T)^T)
/// dW += sum dY^T (X^T)^T         FP32
/// db += sum of dY over tokens    FP32; the sum is exact, rounded once
/// ```
///
/// The sums are those of [`scaled_gemm`](super::scaled_gemm), dW and bias added in its epilogue; of BF16 operands they are FP32, in an order that is not
/// specified. X, Y, dX and dY are of one type. Any number of tokens, also none: where a product contracts over them, they are padded
/// with zeros to a multiple of 16, which changes neither codes nor scales nor sums. Runs on all cores; every call allocates what it
/// gives and the operands that it quantizes.
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
    tokens: usize,
    features: usize,
    kept: Kept,
}

#[derive(Debug, Clone)]
enum Kept {
    /// With the scale that the forward pass had, where it was one of past steps: the backward pass has the same.
    HighPrecision(Array2<f32>, DType, Option<GivenScale>),
    Transposed(Form),
}

/// dY, quantized for both gradients, and what it gives the bias.
#[derive(Debug, Clone)]
pub struct QuantizedGradient {
    tokens: usize,
    features: usize,
    rows: Form,
    transposed: Form,
    bias: Vec<f32>,
}

/// Gradients of a layer's parameters, to which each backward pass adds; start from [`Linear::zero_gradients`].
#[derive(Debug, Clone, PartialEq)]
pub struct LinearGradients {
    /// dW, out x in.
    pub weight: Array2<f32>,
    /// The gradient of the bias, one number an out feature; empty without bias.
    pub bias: Vec<f32>,
}

impl Linear {
    /// A layer with this weight, out x in; `dtype` is the type of X, Y and their gradients, and the one that W's values were
    /// widened from.
    ///
    /// # Errors
    /// [`Error::Shape`] unless both numbers of features are multiples of 16; [`Error::DType`] for 8-bit types;
    /// [`Error::Unsupported`] for delayed scaling with a window of 0.
    pub fn new(weight: ArrayView2<f32>, dtype: DType, recipe: LinearRecipe) -> Result<Self> {
        check_features(&weight)?;
        if !dtype.is_wide() {
            return Err(Error::dtype("X of a linear layer", dtype, "must be a wide type", "pass bf16, f16 or f32"));
        }
        let mut scales = DelayedScales::new(recipe)?;
        let [weight, transposed] = weight_forms(weight, dtype, recipe, &mut scales)?;
        Ok(Self { recipe, dtype, kept: KeptInput::default(), bias: None, weight, transposed, scales })
    }

    /// The same with a bias, one number for each out feature, widened from the layer's type.
    ///
    /// # Errors
    /// [`Error::Shape`] for another length.
    pub fn with_bias(self, bias: Vec<f32>) -> Result<Self> {
        self.check_bias(bias.len())?;
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

    /// Features of Y.
    pub fn out_features(&self) -> usize {
        self.weight.rows()
    }

    /// Features of X.
    pub fn in_features(&self) -> usize {
        self.weight.cols()
    }

    /// Takes a weight of the same shape, after an optimizer step: both forms are made again.
    ///
    /// # Errors
    /// [`Error::Shape`] for another shape.
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
        [self.weight, self.transposed] = weight_forms(weight, self.dtype, self.recipe, &mut self.scales)?;
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
        Ok(())
    }

    /// Y. What a backward pass needs is not kept: for inference.
    ///
    /// # Errors
    /// [`Error::Shape`] if X has not the layer's in features.
    pub fn forward(&mut self, x: ArrayView2<f32>) -> Result<Array2<f32>> {
        self.check_input(&x)?;
        let scale = self.given(Tensor::Input, &x);
        let x = form(x, self.dtype, self.recipe.forward().map(|[x, _]| x), scale)?;
        let bias = self.bias.as_deref().map(|bias| (bias, self.dtype));
        product(&x, &self.weight, self.dtype, bias, None)
    }

    /// Y, and X in the form that [`Linear::with_kept_input`] asks for.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward_saving(&mut self, x: ArrayView2<f32>) -> Result<(Array2<f32>, SavedInput)> {
        let y = self.forward(x)?;
        let (tokens, features) = x.dim();
        let scale = self.scales.as_ref().map(|scales| scales.given(Tensor::Input));
        let kept = match self.kept {
            KeptInput::HighPrecision => Kept::HighPrecision(x.to_owned(), self.dtype, scale),
            KeptInput::Quantized => Kept::Transposed(self.input_transposed(x, scale)?),
        };
        Ok((y, SavedInput { tokens, features, kept }))
    }

    /// dY in the forms that both gradients read, and its sum over the tokens if the layer has a bias.
    ///
    /// # Errors
    /// [`Error::Shape`] if dY has not the layer's out features.
    pub fn quantize_gradient(&mut self, dy: ArrayView2<f32>) -> Result<QuantizedGradient> {
        let (tokens, features) = dy.dim();
        if features != self.out_features() {
            return Err(Error::shape(
                "dY",
                format!("{tokens} x {features}"),
                format!("must have the {} out features of the layer", self.out_features()),
                "dY has the shape of Y, tokens x out",
            ));
        }
        let scale = self.given(Tensor::Gradient, &dy);
        let rows = form(dy, self.dtype, self.recipe.input_gradient().map(|[dy, _]| dy), scale)?;
        let recipe = self.recipe.weight_gradient().map(|[dy, _]| dy);
        let transposed = form(padded_transpose(dy).view(), self.dtype, recipe, scale)?;
        let sum = |col: ArrayView1<f32>| col.iter().map(|v| f64::from(*v)).sum::<f64>() as f32;
        let bias = if self.bias.is_some() { dy.columns().into_iter().map(sum).collect() } else { Vec::new() };
        Ok(QuantizedGradient { tokens, features, rows, transposed, bias })
    }

    /// dX.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Unsupported`] for a gradient of another layer.
    pub fn input_gradient(&self, dy: &QuantizedGradient) -> Result<Array2<f32>> {
        self.check_gradient(dy)?;
        product(&dy.rows, &self.transposed, self.dtype, None, None)
    }

    /// Adds dW, and the gradient of the bias, to `gradients`.
    ///
    /// # Errors
    /// [`Error::Shape`] if gradients, dY or X have other shapes or numbers of tokens; [`Error::Unsupported`] if they are of another
    /// layer. `gradients` are then as they were.
    pub fn weight_gradient(
        &self,
        dy: &QuantizedGradient,
        saved: &SavedInput,
        gradients: &mut LinearGradients,
    ) -> Result<()> {
        self.check_gradient(dy)?;
        self.check_saved(dy, saved)?;
        self.check_gradients(gradients)?;
        if dy.tokens > 0 {
            let made;
            let x = match &saved.kept {
                Kept::Transposed(x) => x,
                Kept::HighPrecision(x, dtype, scale) => {
                    made = form(
                        padded_transpose(x.view()).view(),
                        *dtype,
                        self.recipe.weight_gradient().map(|[_, x]| x),
                        *scale,
                    )?;
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
    /// As [`Linear::weight_gradient`].
    pub fn backward(
        &mut self,
        dy: ArrayView2<f32>,
        saved: &SavedInput,
        gradients: &mut LinearGradients,
    ) -> Result<Array2<f32>> {
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
    /// ([`delayed_update`](super::delayed_update)). W keeps its codes until [`Linear::refresh`]. Does nothing for other recipes.
    pub fn update_scales(&mut self) {
        if let Some(scales) = &mut self.scales {
            scales.update();
        }
    }

    /// X^T as the weight gradient reads it.
    fn input_transposed(&self, x: ArrayView2<f32>, scale: Option<GivenScale>) -> Result<Form> {
        form(padded_transpose(x).view(), self.dtype, self.recipe.weight_gradient().map(|[_, x]| x), scale)
    }

    /// The factor of past steps, having remembered the amax of this one; `None` where a cast finds its own.
    fn given(&mut self, tensor: Tensor, values: &ArrayView2<f32>) -> Option<GivenScale> {
        self.scales.as_mut().map(|scales| scales.given_after(tensor, values))
    }

    fn check_input(&self, x: &ArrayView2<f32>) -> Result<()> {
        let (tokens, features) = x.dim();
        if features == self.in_features() {
            return Ok(());
        }
        Err(Error::shape(
            "X",
            format!("{tokens} x {features}"),
            format!("must have the {} in features of the layer", self.in_features()),
            "X is tokens x in, W is out x in",
        ))
    }

    fn check_bias(&self, len: usize) -> Result<()> {
        let out = self.out_features();
        if len == out {
            return Ok(());
        }
        Err(Error::shape("bias", format!("length {len}"), format!("must be {out}"), "one value for each out feature"))
    }

    fn check_gradient(&self, dy: &QuantizedGradient) -> Result<()> {
        let remedy = "pass what quantize_gradient of this layer gave";
        if dy.features != self.out_features() {
            let rule = format!("must have the {} out features of the layer", self.out_features());
            return Err(Error::shape("dY", format!("{} x {}", dy.tokens, dy.features), rule, remedy));
        }
        let bias = self.bias.as_ref().map_or(0, Vec::len);
        if dy.bias.len() != bias {
            let found = format!("{} sums for a bias", dy.bias.len());
            return Err(Error::shape("dY", found, format!("must have the {bias} of the layer"), remedy));
        }
        Ok(())
    }

    fn check_saved(&self, dy: &QuantizedGradient, saved: &SavedInput) -> Result<()> {
        if (saved.tokens, saved.features) == (dy.tokens, self.in_features()) {
            return Ok(());
        }
        Err(Error::shape(
            "saved X",
            format!("{} x {}", saved.tokens, saved.features),
            format!("must be {} x {}, the tokens of dY and the in features", dy.tokens, self.in_features()),
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
        self.tokens
    }

    /// What is kept, in bytes as a GPU would hold it: elements of X's type, or codes and scales with padding.
    pub fn bytes(&self) -> usize {
        match &self.kept {
            Kept::HighPrecision(x, dtype, _) => x.len() * dtype.bytes(),
            Kept::Transposed(x) => x.bytes(),
        }
    }
}

fn check_features(weight: &ArrayView2<f32>) -> Result<()> {
    let (out, features) = weight.dim();
    let multiple = pair::K_MULTIPLE;
    if out.is_multiple_of(multiple) && features.is_multiple_of(multiple) {
        return Ok(());
    }
    Err(Error::shape(
        "weight of a linear layer",
        format!("{out} x {features}"),
        format!("must have multiples of {multiple} of both features: Y contracts over one, dX over the other"),
        "pad it with zeros",
    ))
}
