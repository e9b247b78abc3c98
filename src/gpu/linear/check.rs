//! What the calls of a layer ask of their operands, in words.

use super::Linear;
use super::operand::other_form;
use super::saved::{Kept, LinearGradientsInto, Made, QuantizedGradient, SavedInput};
use crate::error::{Error, Result};
use crate::format::{DType, LinearRecipe};
use crate::gpu::gemm::available::{Facts, available};
use crate::gpu::gemm::call::check_alignment;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::formulation::Formulation;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatMut, MatRef, VecRef};

/// One of the matrices of tokens that enter or leave a layer.
struct Tokens {
    operand: &'static str,
    shape: (usize, usize),
    dtype: DType,
}

impl Tokens {
    fn read(operand: &'static str, x: &MatRef<'_>) -> Self {
        Self { operand, shape: (x.rows(), x.cols()), dtype: x.dtype() }
    }

    fn written(operand: &'static str, x: &MatMut<'_>) -> Self {
        Self { operand, shape: (x.rows(), x.cols()), dtype: x.dtype() }
    }
}

impl Linear {
    pub(super) fn check_handle(&self, handle: &Handle) -> Result<()> {
        handle.check_own(self.handle_id, "a linear layer")
    }

    /// X, tokens x in.
    pub(super) fn check_input(&self, x: &MatRef<'_>) -> Result<()> {
        let remedy = "X is tokens x in, W is out x in";
        self.check_tokens(&Tokens::read("X", x), (self.in_features(), "in"), remedy)
    }

    /// Y of so many tokens.
    pub(super) fn check_result(&self, handle: &Handle, tokens: usize, y: &mut MatMut<'_>) -> Result<()> {
        let remedy = "Y is tokens x out, with the tokens of X";
        self.check_tokens(&Tokens::written("Y", y), (self.out_features(), "out"), remedy)?;
        check_rows("Y", y.rows(), tokens, "X")?;
        self.check_stored(handle, "Y", y)
    }

    /// dY, tokens x out.
    pub(super) fn check_output(&self, dy: &MatRef<'_>) -> Result<()> {
        let remedy = "dY has the shape of Y, tokens x out";
        self.check_tokens(&Tokens::read("dY", dy), (self.out_features(), "out"), remedy)
    }

    /// dX of so many tokens.
    pub(super) fn check_input_gradient(&self, handle: &Handle, tokens: usize, dx: &mut MatMut<'_>) -> Result<()> {
        let remedy = "dX has the shape of X, tokens x in";
        self.check_tokens(&Tokens::written("dX", dx), (self.in_features(), "in"), remedy)?;
        check_rows("dX", dx.rows(), tokens, "dY")?;
        self.check_stored(handle, "dX", dx)
    }

    /// What the product would refuse of its D, before a cast remembers an amax for delayed scaling.
    fn check_stored(&self, handle: &Handle, operand: &str, d: &mut MatMut<'_>) -> Result<()> {
        let bytes = d.dtype().bytes();
        if self.scales.is_none() {
            return Ok(());
        }
        if !(d.row_stride() * bytes).is_multiple_of(16) {
            return Err(Error::shape(
                operand,
                format!("row stride {} ({})", d.row_stride(), d.dtype()),
                "a row must be a multiple of 16 bytes",
                format!("use a multiple of {} elements", 16 / bytes),
            ));
        }
        if d.rows() == 0 {
            return Ok(());
        }
        let order = handle.queue().order();
        check_alignment(operand, &d.data_mut().at(&order)?)
    }

    fn check_tokens(&self, of: &Tokens, (features, which): (usize, &str), remedy: &str) -> Result<()> {
        let &Tokens { operand, shape: (rows, cols), dtype } = of;
        if cols != features {
            let rule = format!("must have the {features} {which} features of the layer");
            return Err(Error::shape(operand, format!("{rows} x {cols}"), rule, remedy));
        }
        if dtype != self.dtype {
            let rule = format!("is not {}, the type of the layer", self.dtype);
            return Err(Error::dtype(operand, dtype, rule, "convert it, or make a layer of its type"));
        }
        self.check_most(operand, rows)
    }

    pub(super) fn check_most(&self, operand: &str, tokens: usize) -> Result<()> {
        if tokens <= self.max_tokens {
            return Ok(());
        }
        Err(Error::shape(
            operand,
            format!("{tokens} tokens"),
            format!("must have at most {}, for which the layer has memory", self.max_tokens),
            "make the layer for more tokens, or pass them in parts",
        ))
    }

    /// A weight, out x in.
    pub(super) fn check_weight(&self, weight: &MatRef<'_>) -> Result<()> {
        let [out, features] = [self.out_features(), self.in_features()];
        if (weight.rows(), weight.cols()) != (out, features) {
            return Err(Error::shape(
                "weight of a linear layer",
                format!("{} x {}", weight.rows(), weight.cols()),
                format!("must be {out} x {features}, as before"),
                "make another layer for another shape",
            ));
        }
        if weight.dtype() != self.dtype {
            let rule = format!("is not {}, the type of the layer", self.dtype);
            let remedy = "round the master weight to it first";
            return Err(Error::dtype("weight of a linear layer", weight.dtype(), rule, remedy));
        }
        Ok(())
    }

    pub(super) fn check_bias(&self, bias: &VecRef<'_>) -> Result<()> {
        let out = self.out_features();
        if bias.len() != out {
            let (found, rule) = (format!("length {}", bias.len()), format!("must be {out}"));
            return Err(Error::shape("bias", found, rule, "one value for each out feature"));
        }
        if bias.dtype() != self.dtype {
            let rule = format!("is not {}, the type of the layer", self.dtype);
            return Err(Error::dtype("bias", bias.dtype(), rule, "convert it first"));
        }
        Ok(())
    }

    /// Refuses what a layer of another recipe or type has made, or nobody.
    fn check_made(&self, operand: &str, of: Option<Made>) -> Result<Made> {
        let Some(of) = of else {
            return Err(super::operand::nothing_there(operand));
        };
        if (of.recipe, of.dtype) == (self.recipe, self.dtype) {
            return Ok(of);
        }
        Err(Error::unsupported(
            format!("{operand} of a layer of {} in {}", of.recipe, of.dtype),
            format!("this layer is one of {} in {}, and reads other bytes", self.recipe, self.dtype),
            "pass what this layer's own calls gave",
        ))
    }

    pub(super) fn check_gradient(&self, dy: &QuantizedGradient) -> Result<Made> {
        let of = self.check_made("dY", dy.of)?;
        let remedy = "pass what quantize_gradient_into of this layer gave";
        if of.features != self.out_features() {
            let rule = format!("must have the {} out features of the layer", self.out_features());
            return Err(Error::shape("dY", format!("{} x {}", of.tokens, of.features), rule, remedy));
        }
        if dy.bias.is_some() != self.bias.is_some() {
            let found = if dy.bias.is_some() { "sums for a bias" } else { "no sums for a bias" };
            let rule = if self.bias.is_some() { "must have those of the layer" } else { "must have none" };
            return Err(Error::shape("dY", found, rule, remedy));
        }
        Ok(of)
    }

    pub(super) fn check_saved(&self, tokens: usize, saved: &SavedInput) -> Result<()> {
        let of = self.check_made("saved X", saved.of)?;
        if (of.tokens, of.features) == (tokens, self.in_features()) {
            let is_plain = matches!(saved.kept, Kept::HighPrecision(_)) && self.recipe.weight_gradient().is_some();
            return if is_plain && self.x_transposed.is_none() && tokens > 0 { Err(other_form()) } else { Ok(()) };
        }
        Err(Error::shape(
            "saved X",
            format!("{} x {}", of.tokens, of.features),
            format!("must be {tokens} x {}, the tokens of dY and the in features", self.in_features()),
            "pass what forward_saving_into gave for the same tokens",
        ))
    }

    /// The form that a forward pass of this layer fills.
    pub(super) fn check_room(&self, saved: &SavedInput) -> Result<()> {
        let made_for = (self.recipe, self.dtype, self.in_features(), self.max_tokens, self.kept);
        if saved.made_for == made_for {
            return Ok(());
        }
        let (recipe, dtype, features, tokens, kept) = saved.made_for;
        Err(Error::unsupported(
            format!(
                "saving X in memory of a layer of {recipe} in {dtype}, {features} in features, {tokens} tokens, kept {kept}"
            ),
            format!(
                "this layer is one of {} in {}, {} in features, {} tokens, kept {}",
                made_for.0, made_for.1, made_for.2, made_for.3, made_for.4
            ),
            "make it with saved_input of this layer",
        ))
    }

    /// The memory that a dY of this layer fills.
    pub(super) fn check_gradient_room(&self, dy: &QuantizedGradient) -> Result<()> {
        let made_for = (self.recipe, self.dtype, self.out_features(), self.max_tokens, self.bias.is_some());
        if dy.made_for == made_for {
            return Ok(());
        }
        let (recipe, dtype, features, tokens, bias) = dy.made_for;
        Err(Error::unsupported(
            format!(
                "quantizing dY into memory of a layer of {recipe} in {dtype}, {features} out features, {tokens} tokens, bias: {bias}"
            ),
            format!(
                "this layer is one of {} in {}, {} out features, {} tokens, bias: {}",
                made_for.0, made_for.1, made_for.2, made_for.3, made_for.4
            ),
            "make it with quantized_gradient of this layer",
        ))
    }

    pub(super) fn check_gradients(&self, handle: &Handle, gradients: &mut LinearGradientsInto<'_>) -> Result<()> {
        let [out, features] = [self.out_features(), self.in_features()];
        let weight = &mut gradients.weight;
        let bias = self.bias.as_ref().map_or(0, |_| 4 * out);
        let found = gradients.bias.as_ref().map_or(0, |bias| bias.len());
        if (weight.rows(), weight.cols(), found) != (out, features, bias) {
            return Err(Error::shape(
                "gradients",
                format!("{} x {} and {found} bytes of a bias", weight.rows(), weight.cols()),
                format!("must be {out} x {features} and {bias}"),
                "pass FP32 memory of the shapes of W and the bias, and zero_gradients it first",
            ));
        }
        if weight.dtype() != DType::F32 {
            return Err(Error::dtype("dW", weight.dtype(), "is not f32", "add gradients up in f32"));
        }
        self.check_stored(handle, "dW", weight)
    }
}

/// Refuses a recipe of whose products one runs in no way on this GPU and library, before memory is taken for it.
pub(super) fn check_recipe(
    recipe: LinearRecipe,
    [out, features]: [usize; 2],
    device: &str,
    facts: Facts,
) -> Result<()> {
    // More rows than products of few rows take.
    const TOKENS: usize = 128;
    let products = [
        (recipe.forward(), [TOKENS, out, features]),
        (recipe.input_gradient(), [TOKENS, features, out]),
        (recipe.weight_gradient(), [out, features, TOKENS]),
    ];
    for (operands, [m, n, k]) in products {
        let Some([a, b]) = operands.map(|operands| operands.map(|recipe| recipe.scheme())) else { continue };
        let desc = GemmDesc::new(m, n, k, a, b, DType::F32);
        let refusal = |way: Formulation| available(&desc, facts, way).err().map(|why| format!("{way}: {why}"));
        let refusals: Option<Vec<_>> = Formulation::ALL.into_iter().map(refusal).collect();
        if let Some(refusals) = refusals {
            return Err(Error::unsupported(
                format!("a linear layer of {recipe} on {device}"),
                format!("its product {a} x {b} runs in no way there: {}", refusals.join("; ")),
                "make it of nvfp4-row or bf16, on sm_89 and newer also of fp8-row or fp8-tensor, or take the CPU (reference::Linear)",
            ));
        }
    }
    Ok(())
}

fn check_rows(operand: &str, found: usize, tokens: usize, of: &str) -> Result<()> {
    if found == tokens {
        return Ok(());
    }
    let rule = format!("must have the {tokens} tokens of {of}");
    Err(Error::shape(operand, format!("{found} tokens"), rule, "pass a matrix of that shape"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::lt::quirks::Version;

    /// The column of LinearRecipe's table. (All were taken, and refused with the first product.)
    #[test]
    fn recipes_are_refused_where_a_product_of_theirs_does_not_run() {
        for recipe in LinearRecipe::all() {
            for cc in [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] {
                let facts = Facts { cc, version: Some(Version::new(13, 1, 0)), sm_count: 100, measured: None };
                let runs = match recipe {
                    LinearRecipe::Bf16 | LinearRecipe::Nvfp4Row => true,
                    LinearRecipe::Fp8Row | LinearRecipe::Fp8Tensor(_) => cc >= (8, 9),
                    LinearRecipe::Fp8Blockwise => cc == (9, 0),
                };
                let checked = check_recipe(recipe, [256, 512], "a GPU", facts);
                assert_eq!(checked.is_ok(), runs, "{recipe} on {cc:?}: {checked:?}");
                if let Err(error) = checked {
                    let error = error.to_string();
                    let words = format!("a linear layer of {recipe} on a GPU is not supported: its product ");
                    assert!(error.starts_with(&words) && error.contains("native: "), "{error}");
                }
            }
        }
    }
}
