//! The FP32 epilogue as a call of its own: rescale, bias, activation, residual and one rounding, in one pass.

use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{EpilogueCall, ScaleVector};
use crate::gpu::matrix::{MatMut, MatRef, VecRef};

/// Operands of [`Handle::rescale_into`]. Start from [`RescaleArgs::new`] and add what is wanted.
pub struct RescaleArgs<'a> {
    acc: MatRef<'a>,
    d: MatMut<'a>,
    row_scale: Option<VecRef<'a>>,
    col_scale: Option<VecRef<'a>>,
    bias: Option<VecRef<'a>>,
    activation: Activation,
    residual: Option<MatRef<'a>>,
}

impl<'a> RescaleArgs<'a> {
    /// `D = round(acc)`: both `m x n`, acc FP32, D BF16, F16 or F32.
    pub fn new(acc: MatRef<'a>, d: MatMut<'a>) -> Self {
        let activation = Activation::None;
        Self { acc, d, row_scale: None, col_scale: None, bias: None, activation, residual: None }
    }

    /// Multiplies row i by `scale[i]` (FP32, m values).
    pub fn row_scale(self, scale: VecRef<'a>) -> Self {
        Self { row_scale: Some(scale), ..self }
    }

    /// Then multiplies column j by `scale[j]` (FP32, n values).
    pub fn col_scale(self, scale: VecRef<'a>) -> Self {
        Self { col_scale: Some(scale), ..self }
    }

    /// Then adds `bias[j]` (BF16, F16 or F32, n values).
    pub fn bias(self, bias: VecRef<'a>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Then applies the activation.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Then adds the residual (BF16, F16 or F32, `m x n`).
    pub fn residual(self, residual: MatRef<'a>) -> Self {
        Self { residual: Some(residual), ..self }
    }
}

impl Handle {
    /// `D = round(activation(acc * row_scale * col_scale + bias) + residual)`, each step one FP32 operation
    /// ([`Epilogue`](crate::Epilogue)): what turns the FP32 result of any GEMM into a scaled layer's output.
    ///
    /// acc and D: `m x n`, n a multiple of 8. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] if an operand does not fit.
    pub fn rescale_into(&self, args: RescaleArgs<'_>) -> Result<()> {
        let RescaleArgs { acc, mut d, row_scale, col_scale, bias, activation, residual } = args;
        let (m, n) = (d.rows(), d.cols());
        let same = |operand: &str, rows: usize, cols: usize| {
            if (rows, cols) == (m, n) {
                return Ok(());
            }
            let rule = format!("must be {m} x {n}, as D");
            Err(Error::shape(operand, format!("{rows} x {cols}"), rule, "pass matrices of one shape"))
        };
        let float = |operand: &str, dtype: DType| match dtype {
            DType::F32 => Ok(()),
            other => Err(Error::dtype(operand, other, "must be f32", "keep sums and scales in f32")),
        };
        let length = |operand: &str, vector: &VecRef<'_>, len: usize| {
            if vector.len() == len {
                return Ok(());
            }
            let rule = format!("must have {len} values for D of {m} x {n}");
            Err(Error::shape(operand, format!("{} values", vector.len()), rule, "pass a vector of that length"))
        };
        same("acc", acc.rows(), acc.cols())?;
        float("acc", acc.dtype())?;
        for (operand, vector, len) in [("row scale", &row_scale, m), ("column scale", &col_scale, n)] {
            if let Some(vector) = vector {
                length(operand, vector, len)?;
                float(operand, vector.dtype())?;
            }
        }
        bias.as_ref().map_or(Ok(()), |bias| length("bias", bias, n))?;
        residual.as_ref().map_or(Ok(()), |r| same("residual", r.rows(), r.cols()))?;
        if !d.dtype().is_wide() {
            return Err(Error::dtype(
                "D",
                d.dtype(),
                "must be bf16, f16 or f32",
                "quantize the result in a second step",
            ));
        }
        if m == 0 || n == 0 {
            return Ok(());
        }
        let stream = self.queue();
        let order = stream.order();
        let row_scale = row_scale.as_ref().map(|v| v.data().at(&order)).transpose()?;
        let col_scale = col_scale.as_ref().map(|v| v.data().at(&order)).transpose()?;
        let bias = bias.as_ref().map(|v| Ok::<_, Error>((v.data().at(&order)?, v.dtype()))).transpose()?;
        let residual =
            residual.as_ref().map(|r| Ok::<_, Error>((r.data().at(&order)?, r.row_stride(), r.dtype()))).transpose()?;
        let (d_stride, d_type) = (d.row_stride(), d.dtype());
        self.kernels().epilogue(
            stream,
            &EpilogueCall {
                m,
                n,
                acc: &acc.data().at(&order)?,
                acc_stride: acc.row_stride(),
                row_scale: row_scale.as_ref().map(ScaleVector::Each),
                col_scale: col_scale.as_ref().map(ScaleVector::Each),
                beta: 0.0,
                c: None,
                bias: bias.as_ref().map(|(span, dtype)| (span, *dtype)),
                activation,
                residual: residual.as_ref().map(|(span, stride, dtype)| (span, *stride, *dtype)),
                d: &d.data_mut().at(&order)?,
                d_stride,
                d_type,
                out_encode: None,
                amax: None,
            },
        )
    }
}
