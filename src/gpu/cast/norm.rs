//! RMSNorm as a source: cast in the pass that finds its factors, or by these in a second one.

use super::groups::check_wide;
use super::source::check_norm_weight;
use crate::error::{Error, Result};
use crate::format::{CastRecipe, CastScheme, DType, Extent, Recipe};
use crate::gpu::device::memory::{DeviceBytesMut, Span};
use crate::gpu::device::stream::Order;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{CastFrom, CastTo, CastValues, NormCall, ProducerCall, ProducerKind, Strided};
use crate::gpu::matrix::{CastMatrix, MatMut, MatRef, QuantMatrix, VecRef};

/// `y = s / sqrt(mean(s^2) + epsilon) * weight` along rows, `s` being x, or x and a residual added and rounded to x's type, in the arithmetic of
/// [`reference::rms_norm`](crate::reference::rms_norm), bit for bit. A [`CastSource`](crate::CastSource): every cast and every target of products takes it.
///
/// Whole casts along rows (groups of 16 to 128 columns, rows; `fp8-row`, `fp8-1x128`) are written in the pass that reads x. Others take two launches of the same call, the
/// second of which computes y again of x, or of the sum, and of the factors of rows: pass memory for these ([`RmsNormArgs::with_rstd`]).
pub struct RmsNormArgs<'a> {
    pub(super) x: &'a MatRef<'a>,
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

    /// Receives the factors of the rows, `1 / sqrt(mean + epsilon)`, one FP32 each: for what takes two launches, for [`CastSource::normed`](crate::CastSource::normed), and for the
    /// gradient. They begin at a multiple of 4 bytes, which the call that writes them asks.
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
    /// [`Handle::cast_into`] of a norm: in one pass along rows, in groups of 16 to 128 columns or whole rows; in two launches to tiles and channels, the
    /// second of which reads the factors of rows, [`RmsNormArgs::with_rstd`]. Allocates nothing and waits for nothing: safe inside graph capture, once the
    /// kernels are loaded ([`Handle::load_kernels`]: [`KernelFamily::Fused`](crate::KernelFamily), and for two launches `Cast`, which [`CastMatrix::zeros`]
    /// loads). What is refused has written nothing: a residual in place is what it was.
    ///
    /// # Errors
    /// [`Error::Shape`] if the target has another shape, or results overlap what is read or each other; [`Error::Alignment`] unless the factors begin at a multiple of 4 bytes,
    /// and matrices and vectors in cudarc's views, whose address a call learns, at one of their elements' size; [`Error::Unsupported`] if it has another scheme than the recipe, or two launches are needed and there is
    /// no memory for the factors; [`Error::Driver`]; [`Error::Kernel`].
    pub fn rms_norm_cast_into(&self, norm: RmsNormArgs<'_>, recipe: CastRecipe, out: &mut CastMatrix) -> Result<()> {
        self.cast_into(norm, recipe, out)
    }

    /// [`Handle::quantize_source_into`] of a norm: `fp8-row` and `fp8-1x128` in one pass, `mxfp8`, `mxfp4` and `nvfp4-row` in two launches. Otherwise as
    /// [`Handle::rms_norm_cast_into`]; with a given scale [`Handle::quantize_source_tensor_into`] and [`Handle::quantize_source_nvfp4_into`] take a norm,
    /// too.
    ///
    /// # Errors
    /// As [`Handle::rms_norm_cast_into`]; [`Error::Unsupported`] for other recipes.
    pub fn rms_norm_quantize_into(
        &self,
        norm: RmsNormArgs<'_>,
        recipe: impl Into<Recipe>,
        out: &mut QuantMatrix,
    ) -> Result<()> {
        self.quantize_source_into(norm, recipe, out)
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
        self.with_norm(&mut norm, &order, None, |_, _| Ok(nothing_more))
    }

    /// A norm cast in the pass that finds its factors: to what lies along rows.
    pub(super) fn norm_at_once<'q>(
        &self,
        norm: &'q mut RmsNormArgs<'_>,
        order: &Order<'q>,
        cast: (CastRecipe, &CastTo<'_>),
    ) -> Result<()> {
        self.with_norm(norm, order, Some(cast), |_, _| Ok(nothing_more))
    }

    /// A norm whose values another launch computes again, by the factors of rows: calls `ready` with them as a source, and the launch that it returns after
    /// the norm's.
    pub(super) fn with_normed<'q, L: FnOnce() -> Result<()>>(
        &self,
        norm: &'q mut RmsNormArgs<'_>,
        order: &Order<'q>,
        index: Option<&Span<'_>>,
        ready: impl FnOnce(&CastFrom<'_>) -> Result<L>,
    ) -> Result<()> {
        if norm.rstd.is_none() {
            return Err(Error::unsupported(
                "a norm without memory for its factors, to what takes two launches",
                "the second launch reads the factors; only whole casts along rows, fp8-row and fp8-1x128 are written in one",
                "pass memory for them (RmsNormArgs::with_rstd)",
            ));
        }
        let (dtype, rows, cols) = (norm.x.dtype(), norm.x.rows(), norm.x.cols());
        self.with_norm(norm, order, None, |(x, row_stride), producer| {
            ready(&CastFrom { x, values: CastValues::Produced { dtype, row_stride, producer }, rows, cols, index })
        })
    }

    /// Enqueues a norm, cast or only with what is written beside; then the launch that `more` returns for what its values are computed of: x or the sum, by
    /// rows and columns. `more` comes before the norm's launch: what it refuses must not have added to a residual.
    fn with_norm<'q, L: FnOnce() -> Result<()>>(
        &self,
        norm: &'q mut RmsNormArgs<'_>,
        order: &Order<'q>,
        cast: Option<(CastRecipe, &CastTo<'_>)>,
        more: impl FnOnce(Strided<'_>, ProducerCall<'_>) -> Result<L>,
    ) -> Result<()> {
        let RmsNormArgs { x, weight, epsilon, residual, rstd } = norm;
        let (x_span, weight_span) = (x.data().at(order)?, weight.data().at(order)?);
        let rstd = rstd.as_mut().map(|rstd| rstd.at(order)).transpose()?;
        let weight = (&weight_span, weight.dtype());
        let enqueue = |residual, sum: Option<Strided<'_>>| {
            let plain = (&x_span, x.row_stride());
            let call = NormCall {
                x: plain,
                dtype: x.dtype(),
                rows: x.rows(),
                cols: x.cols(),
                residual,
                sum,
                weight,
                epsilon: *epsilon,
                rstd: rstd.as_ref(),
            };
            let producer = ProducerCall {
                kind: ProducerKind::Normed,
                weights: rstd.as_ref(),
                columns: Some(weight),
                before: call.before(),
                ..ProducerCall::default()
            };
            let launch = more(sum.unwrap_or(plain), producer)?;
            self.kernels().rms_norm(self.queue(), &call, cast)?;
            launch()
        };
        match residual {
            Residual::None => enqueue(None, None),
            Residual::Added { residual, sum } => {
                let read = residual.data().at(order)?;
                let stride = sum.row_stride();
                let written = sum.data_mut().at(order)?;
                enqueue(Some((&read, residual.row_stride())), Some((&written, stride)))
            }
            Residual::Updated(both) => {
                let stride = both.row_stride();
                let both = both.data_mut().at(order)?;
                let both = Some((&both, stride));
                enqueue(both, both)
            }
        }
    }
}

fn nothing_more() -> Result<()> {
    Ok(())
}

/// Whether a row's groups are its own, so that a block that reads the row writes them.
pub(super) fn along_rows(scheme: CastScheme) -> bool {
    matches!(scheme.group().extents(), [Extent::Elements(1), _]) && !scheme.is_transposed()
}
