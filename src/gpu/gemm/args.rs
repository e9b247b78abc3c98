//! [`GemmArgs`]: the operands of one call.

use crate::epilogue::{Activation, Epilogue};
use crate::error::{Error, Result};
use crate::format::{Basis, DType, Fp8Format, Fp8Recipe, GivenScale, Operand, pair};

use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut};
use crate::gpu::gemm::desc::{Accumulate, Accumulation, GemmDesc, OutAmax};
use crate::gpu::gemm::quantize_a::QuantizeA;
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, VecRef};

/// A of one call.
pub(crate) enum ArgA<'a> {
    Quantized(&'a QuantMatrix),
    Plain(MatRef<'a>),
    /// Plain, and quantized by the call: by this recipe, with its own scale or a given one.
    Quantize(MatRef<'a>, Fp8Recipe, Option<GivenScale<DeviceBytes<'a>>>),
}

impl ArgA<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Quantized(a) => (a.rows(), a.cols()),
            Self::Plain(a) | Self::Quantize(a, ..) => (a.rows(), a.cols()),
        }
    }

    fn operand(&self) -> Operand {
        match self {
            Self::Quantized(a) => a.scheme().into(),
            Self::Plain(a) => Operand::Plain(a.dtype()),
            Self::Quantize(_, recipe, _) => recipe.scheme().into(),
        }
    }

    fn quantize(&self) -> Option<QuantizeA> {
        match self {
            Self::Quantized(_) | Self::Plain(_) => None,
            Self::Quantize(a, recipe, None) => Some(QuantizeA::new(a.dtype(), *recipe)),
            // The rule has no part in it: one plan for all.
            Self::Quantize(a, recipe, Some(_)) => Some(QuantizeA::with_given_scale(a.dtype(), recipe.format)),
        }
    }

    fn row_stride(&self) -> usize {
        match self {
            Self::Quantized(a) => a.cols(),
            Self::Plain(a) | Self::Quantize(a, ..) => a.row_stride(),
        }
    }

    fn basis(&self) -> Basis {
        match self {
            Self::Quantized(a) => a.basis(),
            Self::Plain(_) | Self::Quantize(..) => Basis::Plain,
        }
    }
}

/// The operands of one call of `D = epilogue(alpha * A Bᵀ + beta * D)`.
///
/// ```no_run
/// use scaled_gemm::{GemmArgs, Handle, MatMut, QuantMatrix, VecRef};
/// use scaled_gemm::{Activation, Result};
///
/// fn layer(handle: &Handle, x: &QuantMatrix, weight: &QuantMatrix, bias: VecRef<'_>, y: MatMut<'_>) -> Result<()> {
///     handle.scaled_gemm(GemmArgs::new(x, weight, y).bias(bias).activation(Activation::Gelu))
/// }
/// ```
pub struct GemmArgs<'a> {
    pub(crate) a: ArgA<'a>,
    pub(crate) b: &'a QuantMatrix,
    pub(crate) d: MatMut<'a>,
    pub(crate) bias: Option<VecRef<'a>>,
    pub(crate) residual: Option<MatRef<'a>>,
    pub(crate) activation: Activation,
    pub(crate) alpha: f32,
    /// `Some(beta)` adds `beta * D`.
    pub(crate) beta: Option<f32>,
    pub(crate) out_encode: Option<DeviceBytes<'a>>,
    pub(crate) amax: Option<DeviceBytesMut<'a>>,
    pub(crate) accumulation: Accumulation,
    pub(crate) batch_invariant: bool,
    pub(crate) chained: bool,
}

impl<'a> GemmArgs<'a> {
    /// `D = A Bᵀ`: A `m x k`, B `n x k`, D `m x n`.
    pub fn new(a: &'a QuantMatrix, b: &'a QuantMatrix, d: MatMut<'a>) -> Self {
        Self::of(ArgA::Quantized(a), b, d)
    }

    /// `D = A Bᵀ` with plain activations: A `m x k` BF16 or F16, B `n x k` NVFP4, MXFP4 or FP8 in E4M3 (or MXFP8, for a BF16 A), D `m x n`.
    ///
    /// The pairs are those of [`check_pair`](crate::pair::check_pair): FP8 weights are read once for every 64 rows of A, as there is no other way: quantize A where there are many.
    /// [`Handle::supports`](crate::Handle::supports) says what runs one on a GPU.
    ///
    /// B is multiplied in A's type, in which its codes times block scales are exact, but for MXFP4 by an F16 A, which rounds them
    /// ([`multiplied_in`](crate::pair::multiplied_in)), and for MXFP8 at the ends of BF16's range; sums are FP32. A's rows may lie apart, by
    /// a multiple of 16 bytes.
    pub fn weight_only(a: MatRef<'a>, b: &'a QuantMatrix, d: MatMut<'a>) -> Self {
        Self::of(ArgA::Plain(a), b, d)
    }

    /// `D = A Bᵀ` with an A in BF16, F16 or F32 that the call quantizes by this recipe before it multiplies: A `m x k`, B `n x k` FP8, D `m x n`.
    ///
    /// D has the bits of [`Handle::quantize_into`](crate::Handle::quantize_into) and a product of the result by the same plan, for any m and by every
    /// formulation; NaN is treated as there. Codes and scales lie in the plan's scratch memory ([`GemmPlan::scratch_bytes`](crate::GemmPlan::scratch_bytes)): nothing is
    /// allocated in a call, and a captured graph follows A. A's rows may lie apart, by a multiple of 16 bytes; D must lie apart from A.
    ///
    /// ```no_run
    /// use scaled_gemm::{Fp8Format, Fp8Granularity, Fp8Recipe, GemmArgs, Handle, MatMut, MatRef, QuantMatrix, Result};
    ///
    /// fn decode(handle: &Handle, x: MatRef<'_>, weight: &QuantMatrix, y: MatMut<'_>) -> Result<()> {
    ///     let recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3);
    ///     handle.scaled_gemm(GemmArgs::quantize_a(x, recipe, weight, y))
    /// }
    /// ```
    pub fn quantize_a(a: MatRef<'a>, recipe: Fp8Recipe, b: &'a QuantMatrix, d: MatMut<'a>) -> Self {
        Self::of(ArgA::Quantize(a, recipe, None), b, d)
    }

    /// [`GemmArgs::quantize_a`] to `fp8-tensor` with a given scale, one FP32 number on the device: a checkpoint's input scale, or one of delayed scaling.
    /// A captured graph follows it.
    pub fn quantize_a_by(
        a: MatRef<'a>,
        format: Fp8Format,
        scale: GivenScale<DeviceBytes<'a>>,
        b: &'a QuantMatrix,
        d: MatMut<'a>,
    ) -> Self {
        let recipe = QuantizeA::with_given_scale(a.dtype(), format).recipe;
        Self::of(ArgA::Quantize(a, recipe, Some(scale)), b, d)
    }

    fn of(a: ArgA<'a>, b: &'a QuantMatrix, d: MatMut<'a>) -> Self {
        Self {
            a,
            b,
            d,
            bias: None,
            residual: None,
            activation: Activation::None,
            alpha: 1.0,
            beta: None,
            out_encode: None,
            amax: None,
            accumulation: Accumulation::Precise,
            batch_invariant: false,
            chained: false,
        }
    }

    /// Adds `bias[j]` to column j, before the activation.
    pub fn bias(self, bias: VecRef<'a>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Applies a function after the bias.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Adds a matrix of D's shape after the activation. D must lie apart from it: one that overlaps is refused, D itself, too.
    pub fn residual(self, residual: MatRef<'a>) -> Self {
        Self { residual: Some(residual), ..self }
    }

    /// Multiplies the product by `alpha` (a host number: a captured graph keeps the value it was captured with).
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Adds `beta * D`, what D held before ([`Accumulate::Add`]; F32 output): there is no other C. With `beta = 0` D's old value is not read. Subnormal numbers may
    /// count as 0.
    pub fn accumulate(self, beta: f32) -> Self {
        Self { beta: Some(beta), ..self }
    }

    /// The factor D is multiplied by before it is stored as E4M3: one FP32 number on the device.
    pub fn out_encode(self, encode: impl Into<DeviceBytes<'a>>) -> Self {
        Self { out_encode: Some(encode.into()), ..self }
    }

    /// Where `max |D|` before encoding goes: one FP32 number on the device. E4M3 output.
    pub fn amax(self, amax: impl Into<DeviceBytesMut<'a>>) -> Self {
        Self { amax: Some(amax.into()), ..self }
    }

    /// Precision of the sums; [`Accumulation::Precise`] unless told.
    pub fn accumulation(self, accumulation: Accumulation) -> Self {
        Self { accumulation, ..self }
    }

    /// Whether a row of D must have the same bits whatever m is and whichever rows stand beside it ([`GemmDesc::batch_invariant`]); not unless told. Of an A in
    /// `fp8-128x128` that is so where a row's tile of 128 rows travels with it.
    ///
    /// ```no_run
    /// use scaled_gemm::{GemmArgs, Handle, MatMut, QuantMatrix, Result};
    ///
    /// fn serve(handle: &Handle, x: &QuantMatrix, weight: &QuantMatrix, y: MatMut<'_>) -> Result<()> {
    ///     handle.scaled_gemm(GemmArgs::new(x, weight, y).batch_invariant(true))
    /// }
    /// ```
    pub fn batch_invariant(self, batch_invariant: bool) -> Self {
        Self { batch_invariant, ..self }
    }

    /// Whether the call is a link of a chain ([`GemmDesc::chained`]); not unless told. It is for [`Handle::scaled_gemm`](crate::Handle::scaled_gemm) and [`GemmArgs::desc`]: a plan is what it was planned for, and disregards it. A call that warms up before a capture must say it, too: a chained product is another
    /// problem, with a plan of its own in the handle's cache.
    ///
    /// ```no_run
    /// use scaled_gemm::{GemmArgs, Handle, MatMut, QuantMatrix, Result};
    ///
    /// /// To be called once, and then captured: the products of one token, each of what the one before it wrote.
    /// fn token(handle: &Handle, xs: &[QuantMatrix], weights: &[QuantMatrix], ys: Vec<MatMut<'_>>) -> Result<()> {
    ///     handle.chain(|| {
    ///         let layers = xs.iter().zip(weights).zip(ys);
    ///         layers.into_iter().try_for_each(|((x, weight), y)| handle.scaled_gemm(GemmArgs::new(x, weight, y).chained(true)))
    ///     })
    /// }
    /// ```
    pub fn chained(self, chained: bool) -> Self {
        Self { chained, ..self }
    }

    /// The problem these operands pose, after checking that they fit together.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the operand that does not fit; [`Error::DType`] for an E4M3 output without encode factor;
    /// [`Error::Unsupported`] if A and B are in different bases ([`Basis`]), if the codes of A are repacked, or if A is to be quantized by a given amax.
    pub fn desc(&self) -> Result<GemmDesc> {
        let ((m, k), n) = (self.a.shape(), self.b.rows());
        pair::check_columns(m, k)?;
        if self.b.cols() != k {
            return Err(Error::shape(
                "B",
                format!("{} x {}", n, self.b.cols()),
                format!("must have A's {k} columns"),
                "B is n x k, as the weight of a linear layer lies in memory",
            ));
        }
        let expect = |operand: &str, rows: usize, cols: usize| {
            if (rows, cols) == (m, n) {
                return Ok(());
            }
            Err(Error::shape(
                operand,
                format!("{rows} x {cols}"),
                format!("must be {m} x {n}: the rows of A by the rows of B"),
                format!("pass {operand} of that shape"),
            ))
        };
        expect("D", self.d.rows(), self.d.cols())?;
        if let Some(residual) = &self.residual {
            expect("residual", residual.rows(), residual.cols())?;
            if !(residual.row_stride() * residual.dtype().bytes()).is_multiple_of(16) {
                return Err(Error::shape(
                    "residual",
                    format!("row stride {} ({})", residual.row_stride(), residual.dtype()),
                    "must be a multiple of 16 bytes",
                    format!("use a multiple of {} elements", 16 / residual.dtype().bytes()),
                ));
            }
        }
        if let Some(bias) = self.bias.as_ref().filter(|b| b.len() != n) {
            return Err(Error::shape(
                "bias",
                format!("{} elements", bias.len()),
                format!("must be n = {n}: one for each column of D"),
                "pass one value for each row of B",
            ));
        }
        self.check_output_factors()?;
        if let ArgA::Quantize(_, _, Some(scale @ GivenScale::Amax(_))) = &self.a {
            return Err(scale.needs_recipe());
        }
        pair::check_basis(self.a.basis(), self.b.basis())?;
        if let ArgA::Quantized(a) = &self.a {
            a.check_published("A of a product")?;
        }
        Ok(GemmDesc {
            m,
            n,
            k,
            a: self.a.operand(),
            a_stride: self.a.row_stride(),
            quantize_a: self.a.quantize(),
            b: self.b.scheme(),
            b_order: self.b.code_order(),
            kept: self.b.kept(),
            out: self.d.dtype(),
            out_stride: self.d.row_stride(),
            epilogue: Epilogue {
                bias: self.bias.as_ref().map(VecRef::dtype),
                activation: self.activation,
                residual: self.residual.as_ref().map(MatRef::dtype),
            },
            accumulate: if self.beta.is_some() { Accumulate::Add } else { Accumulate::Replace },
            accumulation: self.accumulation,
            out_amax: if self.amax.is_some() { OutAmax::Store } else { OutAmax::Ignore },
            batch_invariant: self.batch_invariant,
            chained: self.chained,
        })
    }

    /// An encode factor belongs to E4M3 output, and E4M3 output to an encode factor: a scale is never assumed.
    fn check_output_factors(&self) -> Result<()> {
        let out = self.d.dtype();
        match (&self.out_encode, out) {
            (None, DType::E4M3) => {
                return Err(Error::dtype("D", out, "needs an encode factor", "pass it with GemmArgs::out_encode"));
            }
            (Some(_), out) if out != DType::E4M3 => {
                return Err(Error::dtype("D", out, "takes no encode factor", "store e4m3, or drop out_encode"));
            }
            _ => {}
        }
        let given = match &self.a {
            ArgA::Quantize(_, _, scale) => scale.as_ref().map(|scale| scale.number().len()),
            ArgA::Quantized(_) | ArgA::Plain(_) => None,
        };
        let numbers = [
            ("scale of A", given),
            ("out_encode", self.out_encode.as_ref().map(DeviceBytes::len)),
            ("amax", self.amax.as_ref().map(DeviceBytesMut::len)),
        ];
        for (operand, bytes) in numbers {
            if let Some(bytes) = bytes.filter(|&bytes| bytes < 4) {
                return Err(Error::shape(
                    operand,
                    format!("{bytes} bytes"),
                    "must hold one FP32 number",
                    "pass a CudaSlice<f32>",
                ));
            }
        }
        Ok(())
    }
}
