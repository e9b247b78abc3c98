//! RMSNorm and the cast of its result in one pass.

use super::groups::check_wide;
use super::source::check_norm_weight;
use super::targets::cast_recipe;
use crate::error::{Error, Result};
use crate::format::{Basis, CastRecipe, DType, Extent, Fp8Recipe};
use crate::gpu::device::memory::DeviceBytesMut;
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{CastTo, NormCall};
use crate::gpu::matrix::{CastMatrix, MatMut, MatRef, QuantMatrix, VecRef};

/// `y = s / sqrt(mean(s^2) + epsilon) * weight` along rows, `s` being x, or x and a residual added and rounded to x's type: what
/// [`Handle::rms_norm_cast_into`] casts, in the arithmetic of [`reference::rms_norm`](crate::reference::rms_norm), bit for bit.
pub struct RmsNormArgs<'a> {
    x: &'a MatRef<'a>,
    weight: VecRef<'a>,
    epsilon: f32,
    residual: Residual<'a>,
    rstd: Option<DeviceBytesMut<'a>>,
}

enum Residual<'a> {
    None,
    Added { residual: &'a MatRef<'a>, sum: MatMut<'a> },
    Updated(MatMut<'a>),
}

impl<'a> RmsNormArgs<'a> {
    /// x is BF16, F16 or F32, with a multiple of 16 columns; the weight has a factor for each column, FP32 or of x's type.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for others; [`Error::Unsupported`] unless epsilon is finite and at least 0.
    pub fn new(x: &'a MatRef<'a>, weight: VecRef<'a>, epsilon: f32) -> Result<Self> {
        check_wide("x of a norm", x)?;
        check_norm_weight(x, &weight)?;
        if !x.cols().is_multiple_of(16) {
            let found = format!("{} columns", x.cols());
            return Err(Error::shape("x of a norm", found, "must be a multiple of 16", "pad rows with zeros"));
        }
        if !(epsilon >= 0.0 && epsilon.is_finite()) {
            return Err(Error::unsupported(
                format!("epsilon {epsilon} of a norm"),
                "it must be finite and at least 0",
                "pass the model's, such as 1e-6",
            ));
        }
        Ok(Self { x, weight, epsilon, residual: Residual::None, rstd: None })
    }

    /// Adds a residual first, and writes the sum: the next layer's residual. Both have x's shape and type.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for others.
    pub fn with_residual(self, residual: &'a MatRef<'a>, sum: MatMut<'a>) -> Result<Self> {
        self.check("residual of a norm", [residual.rows(), residual.cols()], residual.dtype())?;
        self.check("sum of a norm", [sum.rows(), sum.cols()], sum.dtype())?;
        Ok(Self { residual: Residual::Added { residual, sum }, ..self })
    }

    /// Adds a residual first, which the sum replaces.
    ///
    /// # Errors
    /// As [`RmsNormArgs::with_residual`].
    pub fn with_updated_residual(self, residual: MatMut<'a>) -> Result<Self> {
        self.check("residual of a norm", [residual.rows(), residual.cols()], residual.dtype())?;
        Ok(Self { residual: Residual::Updated(residual), ..self })
    }

    /// Receives the factors of the rows, `1 / sqrt(mean + epsilon)`, one FP32 each: for [`CastSource::normed`](crate::CastSource::normed), and for the
    /// gradient.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of bytes.
    pub fn with_rstd(self, rstd: impl Into<DeviceBytesMut<'a>>) -> Result<Self> {
        let rstd = rstd.into();
        if rstd.len() != self.x.rows() * 4 {
            return Err(Error::shape(
                "factors of a norm",
                format!("{} bytes", rstd.len()),
                format!("must be an f32 for each of the {} rows of x", self.x.rows()),
                "pass one for each row",
            ));
        }
        Ok(Self { rstd: Some(rstd), ..self })
    }

    fn check(&self, operand: &str, [rows, cols]: [usize; 2], dtype: DType) -> Result<()> {
        if (rows, cols) != (self.x.rows(), self.x.cols()) {
            return Err(Error::shape(
                operand,
                format!("{rows} x {cols}"),
                format!("must be {} x {}, as x", self.x.rows(), self.x.cols()),
                "pass a matrix of the same shape",
            ));
        }
        if dtype != self.x.dtype() {
            let rule = format!("must be {}, as x", self.x.dtype());
            return Err(Error::dtype(operand, dtype, rule, "convert it first"));
        }
        Ok(())
    }
}

impl Handle {
    /// RMSNorm cast along rows, in groups of 16 to 128 columns or whole rows, without being stored, to a target of x's shape. Allocates nothing and waits for nothing:
    /// safe inside graph capture, once the kernels are loaded ([`Handle::load_kernels`]: [`KernelFamily::Fused`](crate::KernelFamily)).
    ///
    /// # Errors
    /// [`Error::Shape`] if the target has another shape, or overlaps what is read; [`Error::Unsupported`] if it has another scheme than the
    /// recipe, or groups of several rows; [`Error::Driver`]; [`Error::Kernel`].
    pub fn rms_norm_cast_into(&self, norm: RmsNormArgs<'_>, recipe: CastRecipe, out: &mut CastMatrix) -> Result<()> {
        if out.scheme() != recipe.scheme() {
            return Err(Error::unsupported(
                format!("a target of {}", out.scheme()),
                format!("the cast is to {}", recipe.scheme()),
                "allocate it with CastMatrix::zeros for that scheme",
            ));
        }
        let mut norm = norm;
        check_target(&norm, [out.rows(), out.cols()], recipe)?;
        let (scheme, rows, cols) = (out.scheme(), out.rows(), out.cols());
        let order = self.queue().order();
        let [codes, scales] = out.write(&order)?;
        self.norm(&mut norm, &order, Some((recipe, &CastTo { codes: &codes, scales: &scales, scheme, rows, cols })))
    }

    /// RMSNorm quantized to what products read: FP8 E4M3 with scales of rows or of 1x128 groups, under the rule `deepseek`. Padding is left as
    /// it is: zero ([`QuantMatrix::from_parts`]). Otherwise as [`Handle::rms_norm_cast_into`].
    ///
    /// # Errors
    /// As [`Handle::rms_norm_cast_into`]; [`Error::Unsupported`] for other recipes.
    pub fn rms_norm_quantize_into(
        &self,
        norm: RmsNormArgs<'_>,
        recipe: Fp8Recipe,
        out: &mut QuantMatrix,
    ) -> Result<()> {
        let cast = cast_recipe(recipe)?;
        if out.scheme() != recipe.scheme() {
            return Err(Error::unsupported(
                format!("a target of {}", out.scheme()),
                format!("the recipe is {}", recipe.scheme()),
                "allocate it with QuantMatrix::zeros for that scheme",
            ));
        }
        let mut norm = norm;
        check_target(&norm, [out.rows(), out.cols()], cast)?;
        self.check_basis(Basis::Plain, out)?;
        let (scheme, rows, cols) = (cast.scheme(), out.rows(), out.cols());
        let _turn = self.queue().turn();
        {
            let order = self.queue().order();
            let spans = out.write(&order)?;
            let to = CastTo { codes: &spans.codes, scales: &spans.scales, scheme, rows, cols };
            self.norm(&mut norm, &order, Some((cast, &to)))?;
        }
        out.set_basis(Basis::Plain);
        out.derive_again(self)
    }

    /// What a norm writes beside its cast alone: the sum, and the factors of the rows, with which [`CastSource::normed`](crate::CastSource::normed) is a
    /// source for every cast. Otherwise as [`Handle::rms_norm_cast_into`].
    ///
    /// # Errors
    /// As [`Handle::rms_norm_cast_into`]; [`Error::Unsupported`] without [`RmsNormArgs::with_rstd`].
    pub fn rms_norm(&self, norm: RmsNormArgs<'_>) -> Result<()> {
        if norm.rstd.is_none() {
            return Err(Error::unsupported(
                "a norm without a cast and without its factors",
                "nothing that is new would be written",
                "pass memory for the factors (RmsNormArgs::with_rstd)",
            ));
        }
        let mut norm = norm;
        let order = self.queue().order();
        self.norm(&mut norm, &order, None)
    }

    fn norm<'q>(
        &self,
        norm: &'q mut RmsNormArgs<'_>,
        order: &Order<'q>,
        cast: Option<(CastRecipe, &CastTo<'_>)>,
    ) -> Result<()> {
        let RmsNormArgs { x, weight, epsilon, residual, rstd } = norm;
        let call = |residual, sum, x_span, weight_span, rstd| NormCall {
            x: (x_span, x.row_stride()),
            dtype: x.dtype(),
            rows: x.rows(),
            cols: x.cols(),
            residual,
            sum,
            weight: (weight_span, weight.dtype()),
            epsilon: *epsilon,
            rstd,
        };
        let (x_span, weight_span) = (x.data().at(order)?, weight.data().at(order)?);
        let rstd = rstd.as_mut().map(|rstd| rstd.at(order)).transpose()?;
        let rstd = rstd.as_ref();
        match residual {
            Residual::None => {
                self.kernels().rms_norm(self.queue(), &call(None, None, &x_span, &weight_span, rstd), cast)
            }
            Residual::Added { residual, sum } => {
                let read = residual.data().at(order)?;
                let stride = sum.row_stride();
                let written = sum.data_mut().at(order)?;
                let (read, written) = (Some((&read, residual.row_stride())), Some((&written, stride)));
                self.kernels().rms_norm(self.queue(), &call(read, written, &x_span, &weight_span, rstd), cast)
            }
            Residual::Updated(both) => {
                let stride = both.row_stride();
                let both = both.data_mut().at(order)?;
                let both = Some((&both, stride));
                self.kernels().rms_norm(self.queue(), &call(both, both, &x_span, &weight_span, rstd), cast)
            }
        }
    }
}

fn check_target(norm: &RmsNormArgs<'_>, [rows, cols]: [usize; 2], recipe: CastRecipe) -> Result<()> {
    if (rows, cols) != (norm.x.rows(), norm.x.cols()) {
        return Err(Error::shape(
            "target",
            format!("{rows} x {cols}"),
            format!("must be {} x {}, the shape of x", norm.x.rows(), norm.x.cols()),
            "allocate it for that shape",
        ));
    }
    match recipe.scheme().group().extents() {
        [Extent::Elements(1), _] => Ok(()),
        _ => Err(Error::unsupported(
            format!("a norm cast to {} in one pass", recipe.scheme()),
            "a row's factor is known when all of the row was read, and these groups have several rows",
            "find the factors (Handle::rms_norm), then cast CastSource::normed",
        )),
    }
}
