//! The gradients of SwiGLU, cast in one pass.

use super::groups::check_wide;
use super::quantize::{check_target, output};
use super::source::{GatedInput, SwigluSource};
use super::targets::cast_recipe;
use crate::error::{Error, Result};
use crate::format::{Basis, CastGroup, CastRecipe, CastScheme, CodeFormat, DType, Fp8Granularity, Mxfp8Recipe, Recipe};
use crate::gpu::device::memory::DeviceBytesMut;
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{BackwardCall, BackwardTo, CastFrom, CastTo, CastValues, ProducerCall};
use crate::gpu::matrix::{CastMatrix, MatMut, MatRef, QuantMatrix};

/// What [`Handle::swiglu_backward`] writes; nothing by default.
#[derive(Default)]
pub struct SwigluGradientsInto<'a> {
    /// The gradient of x, `[dl | dr]`, as wide as x, of its values in FP32. Half of the columns are a multiple of the group's, so that none has columns
    /// of both.
    pub x: Option<GradientInto<'a>>,
    /// The same values rounded to BF16; rows begin at multiples of 16 bytes.
    pub x_bf16: Option<MatMut<'a>>,
    /// The result of the forward pass again, in BF16, half as wide as x; rows begin at multiples of 16 bytes.
    pub out: Option<MatMut<'a>>,
    /// The gradient of the rows' weights, dw, one FP32 each (4 bytes a row), also where the forward pass has none.
    pub weights: Option<DeviceBytesMut<'a>>,
}

/// What the gradient of x is cast to.
pub enum GradientInto<'a> {
    /// E4M3 in groups of 1x32 or 1x128, scales in any order.
    Cast(CastRecipe, &'a mut CastMatrix),
    /// What products read: `fp8-1x128` in E4M3 under the rule `deepseek`, or `mxfp8` under any rule. Padding as
    /// [`Handle::quantize_source_into`] has it.
    Product(Recipe, &'a mut QuantMatrix),
}

impl<'a> From<(CastRecipe, &'a mut CastMatrix)> for GradientInto<'a> {
    fn from((recipe, out): (CastRecipe, &'a mut CastMatrix)) -> Self {
        Self::Cast(recipe, out)
    }
}

impl<'a, R: Into<Recipe>> From<(R, &'a mut QuantMatrix)> for GradientInto<'a> {
    fn from((recipe, out): (R, &'a mut QuantMatrix)) -> Self {
        Self::Product(recipe.into(), out)
    }
}

impl Handle {
    /// The gradients of [`SwigluSource`] for the gradient g of its result, in the arithmetic of
    /// [`reference::swiglu_backward`](crate::reference::swiglu_backward), bit for bit. x and g are read once, whatever is written; what
    /// `into` leaves out is not. Allocates nothing and waits for nothing: safe inside graph capture, once the kernels are loaded
    /// ([`Handle::load_kernels`]: [`KernelFamily::Fused`](crate::KernelFamily)).
    ///
    /// ```text
    /// x = [l | r], rows x 2H, l and r clamped as in the forward pass; g: rows x H
    /// s   = fl(1 / fl(1 + exp(-l)));  act = fl(fl(l * s) * r);  t = fl(fl(g * w) * s)
    /// dl  = fl(fl(t * r) * fma(l, fl(1 - s), 1))    0 where l was beyond the clamp
    /// dr  = fl(t * l)                               0 where r was
    /// dw  = sum of g * act along the row
    /// ```
    ///
    /// x is a plain matrix, or E4M3 codes with scales ([`SwigluSource::of_codes`]). g has x's type where x is plain, and is BF16, F16 or F32
    /// beside codes. Of a row of a negative expert all gradients are zero.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for operands that do not fit, or lie where something is read or another result is written; [`Error::Alignment`] unless experts and dw begin at multiples of
    /// 4 bytes, and matrices and vectors in cudarc's views, whose address a call learns, at one of their elements' size; [`Error::Unsupported`] for counts, other groups, other formats;
    /// [`Error::Driver`]; [`Error::Kernel`].
    pub fn swiglu_backward(
        &self,
        forward: SwigluSource<'_>,
        gradient: &MatRef<'_>,
        into: SwigluGradientsInto<'_>,
    ) -> Result<()> {
        let (rows, cols) = (forward.x.rows(), forward.x.cols());
        check(&forward, gradient, &into)?;
        let SwigluGradientsInto { x: target, mut x_bf16, mut out, weights: mut weights_out } = into;
        let beside = &mut (x_bf16.as_mut(), out.as_mut(), weights_out.as_mut());
        match target {
            None => self.gradients(&forward, gradient, beside, &self.queue().order(), None),
            Some(GradientInto::Cast(recipe, q)) => {
                let order = self.queue().order();
                let [codes, scales] = q.write(&order)?;
                let to = CastTo { codes: &codes, scales: &scales, scheme: recipe.scheme(), rows, cols };
                self.gradients(&forward, gradient, beside, &order, Some(&BackwardTo::Cast(recipe, to)))
            }
            Some(GradientInto::Product(recipe, q)) => {
                self.check_basis(Basis::Plain, q)?;
                let _turn = self.queue().turn();
                {
                    let order = self.queue().order();
                    let spans = q.write(&order)?;
                    let to = match recipe {
                        Recipe::Mxfp8(Mxfp8Recipe { format, rule }) => BackwardTo::Mx(format, rule, output(&spans)),
                        _ => {
                            let cast = cast_of(recipe)?;
                            let [codes, scales] = [&spans.codes, &spans.scales];
                            BackwardTo::Cast(cast, CastTo { codes, scales, scheme: cast.scheme(), rows, cols })
                        }
                    };
                    self.gradients(&forward, gradient, beside, &order, Some(&to))?;
                }
                q.set_basis(Basis::Plain);
                q.derive_again(self)
            }
        }
    }

    /// Enqueues it.
    fn gradients<'q>(
        &self,
        forward: &'q SwigluSource<'_>,
        gradient: &'q MatRef<'_>,
        (x_bf16, out, weights_out): &'q mut Beside<'_, '_>,
        order: &Order<'q>,
        to: Option<&BackwardTo<'_>>,
    ) -> Result<()> {
        let (rows, cols) = (forward.x.rows(), forward.x.cols());
        let SwigluSource { x, clamp, weights, experts, .. } = forward;
        let weights = weights.as_ref().map(|weights| weights.data().at(order)).transpose()?;
        let experts = experts.as_ref().map(|experts| experts.at(order)).transpose()?;
        let gradient_span = gradient.data().at(order)?;
        let [wide_stride, out_stride] = [&x_bf16, &out].map(|m| m.as_ref().map_or(0, |m| m.row_stride()));
        let wide = x_bf16.as_mut().map(|m| m.data_mut().at(order)).transpose()?;
        let again = out.as_mut().map(|m| m.data_mut().at(order)).transpose()?;
        let weights_out = weights_out.as_mut().map(|bytes| bytes.at(order)).transpose()?;
        let call = |x| BackwardCall {
            x,
            forward: ProducerCall {
                clamp: *clamp,
                weights: weights.as_ref(),
                experts: experts.as_ref(),
                ..ProducerCall::default()
            },
            gradient: (&gradient_span, gradient.row_stride()),
            dtype: gradient.dtype(),
            wide: wide.as_ref().map(|span| (span, wide_stride)),
            again: again.as_ref().map(|span| (span, out_stride)),
            weights: weights_out.as_ref(),
        };
        match x {
            GatedInput::Plain(x) => {
                let span = x.data().at(order)?;
                let values = CastValues::Plain { dtype: x.dtype(), row_stride: x.row_stride() };
                let from = CastFrom { x: &span, values, rows, cols, index: None };
                self.kernels().swiglu_backward(self.queue(), &call(from), to)
            }
            GatedInput::Coded(q) => {
                let [codes, scales] = q.read(order)?;
                let values = CastValues::Coded { scheme: q.scheme(), scales: &scales };
                let from = CastFrom { x: &codes, values, rows, cols, index: None };
                self.kernels().swiglu_backward(self.queue(), &call(from), to)
            }
        }
    }
}

/// The gradient of x in BF16, the forward pass again, the gradient of the weights.
type Beside<'s, 'a> = (Option<&'s mut MatMut<'a>>, Option<&'s mut MatMut<'a>>, Option<&'s mut DeviceBytesMut<'a>>);

fn check(forward: &SwigluSource<'_>, gradient: &MatRef<'_>, into: &SwigluGradientsInto<'_>) -> Result<()> {
    let (rows, cols) = (forward.x.rows(), forward.x.cols());
    let shape = |operand: &str, found: [usize; 2], wanted: [usize; 2]| match found == wanted {
        true => Ok(()),
        false => Err(Error::shape(
            operand,
            format!("{} x {}", found[0], found[1]),
            format!("must be {} x {}, x being {rows} x {cols}", wanted[0], wanted[1]),
            "pass a matrix of that shape",
        )),
    };
    if forward.counts.is_some() {
        return Err(Error::unsupported(
            "counting in the backward pass of SwiGLU",
            "the forward pass has counted what the clamp changes",
            "pass them there",
        ));
    }
    check_wide("gradient of SwiGLU", gradient)?;
    if let GatedInput::Plain(x) = forward.x {
        check_wide("x of SwiGLU", x)?;
        if x.dtype() != gradient.dtype() {
            let rule = format!("must be {}, as x", x.dtype());
            return Err(Error::dtype("gradient of SwiGLU", gradient.dtype(), rule, "convert it first"));
        }
    }
    shape("gradient of SwiGLU", [gradient.rows(), gradient.cols()], [rows, cols / 2])?;
    let wide = [("gradient of x in BF16", &into.x_bf16, cols), ("result of SwiGLU in BF16", &into.out, cols / 2)];
    for (operand, matrix, cols) in wide.into_iter().filter_map(|(operand, m, cols)| Some((operand, m.as_ref()?, cols)))
    {
        if matrix.dtype() != DType::Bf16 {
            return Err(Error::dtype(operand, matrix.dtype(), "is not bf16", "pass a BF16 matrix"));
        }
        shape(operand, [matrix.rows(), matrix.cols()], [rows, cols])?;
    }
    if let Some(bytes) = into.weights.as_ref().filter(|bytes| bytes.len() != rows * 4) {
        return Err(Error::shape(
            "gradient of the weights",
            format!("{} bytes", bytes.len()),
            format!("must be an f32 for each of the {rows} rows of x"),
            "pass one for each row",
        ));
    }
    let group = match &into.x {
        None => return Ok(()),
        Some(GradientInto::Cast(recipe, target)) => {
            shape("gradient of x", [target.rows(), target.cols()], [rows, cols])?;
            let scheme = recipe.scheme();
            if target.scheme() != scheme {
                return Err(Error::unsupported(
                    format!("a gradient of x in {}", target.scheme()),
                    format!("the cast is to {scheme}"),
                    "allocate it with CastMatrix::zeros for that scheme",
                ));
            }
            group_of(scheme)?
        }
        Some(GradientInto::Product(recipe, target)) => {
            let group = match recipe {
                Recipe::Mxfp8(_) => 32,
                recipe => cast_of(*recipe).map(|_| 128)?,
            };
            check_target("gradient of x", target, recipe.scheme(), rows, cols)?;
            group
        }
    };
    check_halves(cols, group)
}

/// Columns of a group of the gradient's cast.
fn group_of(scheme: CastScheme) -> Result<usize> {
    match (scheme.group(), scheme.format()) {
        (CastGroup::Group1x32, CodeFormat::E4M3) => Ok(32),
        (CastGroup::Group1x128, CodeFormat::E4M3) => Ok(128),
        _ => Err(Error::unsupported(
            format!("a gradient of x in {scheme}"),
            "it is cast to e4m3 in groups of 1x32 or 1x128",
            "take one of these, or have it in BF16 (SwigluGradientsInto::x_bf16) and use Handle::cast_into",
        )),
    }
}

/// That no group has columns of both halves.
fn check_halves(cols: usize, group: usize) -> Result<()> {
    let half = cols / 2;
    if half.is_multiple_of(group) {
        return Ok(());
    }
    // The narrower groups are a remedy where they divide a half.
    let narrower = if half.is_multiple_of(32) { "take groups of 1x32 or mxfp8" } else { "pad both halves with zeros" };
    Err(Error::shape(
        "x of SwiGLU",
        format!("halves of {half} columns"),
        format!("must be a multiple of {group}, so that no group of the gradient has columns of both"),
        format!("{narrower}, or have the gradient in BF16 (SwigluGradientsInto::x_bf16) and quantize that"),
    ))
}

/// The cast that writes what a product reads.
fn cast_of(recipe: Recipe) -> Result<CastRecipe> {
    match recipe {
        Recipe::Fp8(fp8) if fp8.granularity == Fp8Granularity::Group1x128 => cast_recipe(fp8),
        _ => Err(Error::unsupported(
            format!("a gradient of x in {}", recipe.scheme()),
            "for products it is written as fp8-1x128 or mxfp8",
            "take one of these, or have it in BF16 (SwigluGradientsInto::x_bf16) and use Handle::quantize_into",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{CodeRounding, Fp8Format};

    /// Operand, numbers, rule, and a remedy that serves the numbers.
    #[test]
    fn what_a_gradient_is_not_written_as_is_refused_with_a_remedy() {
        for scheme in CastScheme::all() {
            let taken = scheme.format() == CodeFormat::E4M3
                && matches!(scheme.group(), CastGroup::Group1x32 | CastGroup::Group1x128);
            match group_of(scheme) {
                Ok(group) => assert!(taken && scheme.group().extents()[1].size(4096) == group, "{scheme}"),
                Err(error) => assert_eq!(
                    (error.to_string(), taken),
                    (
                        format!(
                            "a gradient of x in {scheme} is not supported: it is cast to e4m3 in groups of 1x32 or 1x128; take one of \
                             these, or have it in BF16 (SwigluGradientsInto::x_bf16) and use Handle::cast_into"
                        ),
                        false
                    )
                ),
            }
        }
        for recipe in Recipe::all(CodeRounding::Stochastic { seed: 1, offset: 0 }) {
            if let Err(error) = cast_of(recipe) {
                let text = error.to_string();
                assert!(text.contains(&recipe.scheme().to_string()), "{text}");
                assert!(text.contains("; take ") || text.contains("; give "), "{text}");
            } else {
                assert_eq!(recipe.format(), CodeFormat::Fp8(Fp8Format::E4M3));
            }
        }
    }

    #[test]
    fn halves_that_share_a_group_have_the_remedy_that_serves_them() {
        let text = |cols, group| check_halves(cols, group).unwrap_err().to_string();
        let bf16 = "or have the gradient in BF16 (SwigluGradientsInto::x_bf16) and quantize that";
        assert_eq!(
            text(2 * 160, 128),
            format!(
                "x of SwiGLU: halves of 160 columns must be a multiple of 128, so that no group of the gradient has columns of both; \
                 take groups of 1x32 or mxfp8, {bf16}"
            )
        );
        // (Groups of 32 were said to be the remedy of groups of 32.)
        for group in [32, 128] {
            assert!(text(2 * 48, group).ends_with(&format!("; pad both halves with zeros, {bf16}")), "{group}");
        }
        assert!(check_halves(2 * 256, 128).is_ok() && check_halves(2 * 96, 32).is_ok());
    }
}
