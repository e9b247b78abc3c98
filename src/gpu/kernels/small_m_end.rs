//! [`SmallMEnd`]: what the kernels for few rows do with their sums, whatever the operands are.

use super::epilogue::{activation_code, wide_code};
use super::operand::{address, check_aligned, check_bytes, extent};
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::Span;

/// Of n.
pub(crate) const MOST_LENGTH: usize = 1 << 30;

/// `D = residual + activation(alpha * sum + beta * D + bias)`, operation by operation as [`Epilogue`](crate::Epilogue) says.
#[derive(Clone, Copy)]
pub(crate) struct SmallMEnd<'a> {
    pub(crate) alpha: f32,
    /// 0: D is not read. Else it is FP32.
    pub(crate) beta: f32,
    /// `[n]`.
    pub(crate) bias: Option<(&'a Span<'a>, DType)>,
    pub(crate) activation: Activation,
    /// `[m][n]`, its row stride and type.
    pub(crate) residual: Option<(&'a Span<'a>, usize, DType)>,
    /// `[m][n]` of `d_type`: BF16, F16 or F32.
    pub(crate) d: &'a Span<'a>,
    pub(crate) d_stride: usize,
    pub(crate) d_type: DType,
}

/// The same as the kernels take it: codes of types, and addresses.
pub(super) struct EndFields {
    pub(super) bias_type: u32,
    pub(super) residual_type: u32,
    pub(super) d_type: u32,
    pub(super) activation: u32,
    pub(super) bias: u64,
    pub(super) residual: u64,
    pub(super) d: u64,
    pub(super) stride_residual: u64,
    pub(super) stride_d: u64,
}

impl SmallMEnd<'_> {
    /// Every length and alignment against what the kernel touches.
    pub(super) fn check(&self, m: usize, n: usize) -> Result<()> {
        wide_code(self.d_type)?;
        let matrix = |name: &str, span: &Span<'_>, stride: usize, dtype: DType| {
            if stride < n {
                let found = format!("row stride {stride} for n = {n}");
                return Err(Error::shape(name, found, "must be no shorter than a row", "pass the stride of its rows"));
            }
            check_bytes(name, span, extent(m, n, stride) * dtype.bytes())?;
            check_aligned(name, span, dtype.bytes() as u64)
        };
        matrix("D", self.d, self.d_stride, self.d_type)?;
        self.residual.map_or(Ok(()), |(span, stride, dtype)| matrix("residual", span, stride, dtype))?;
        if self.beta != 0.0 && self.d_type != DType::F32 {
            return Err(Error::dtype("D", self.d_type, "is not f32, which beta is for", "accumulate into f32"));
        }
        self.bias.map_or(Ok(()), |(span, dtype)| {
            check_bytes("bias", span, n * dtype.bytes())?;
            check_aligned("bias", span, dtype.bytes() as u64)
        })
    }

    pub(super) fn fields(&self) -> Result<EndFields> {
        Ok(EndFields {
            bias_type: self.bias.map_or(Ok(0), |bias| wide_code(bias.1))?,
            residual_type: self.residual.map_or(Ok(0), |residual| wide_code(residual.2))?,
            d_type: wide_code(self.d_type)?,
            activation: activation_code(self.activation),
            bias: address(self.bias.map(|bias| bias.0)),
            residual: address(self.residual.map(|residual| residual.0)),
            d: self.d.address,
            stride_residual: self.residual.map_or(0, |residual| residual.1) as u64,
            stride_d: self.d_stride as u64,
        })
    }
}
