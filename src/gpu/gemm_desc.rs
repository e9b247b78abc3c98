//! What is multiplied: [`GemmDesc`], a hashable problem without pointers, and [`GemmArgs`], the operands of one call.

use std::fmt;

use crate::epilogue::{Activation, Epilogue};
use crate::error::{Error, Result};
use crate::format::{DType, Scheme, pair};

use super::matrix::{MatMut, MatRef, QuantMatrix, VecRef};
use super::memory::{DeviceBytes, DeviceBytesMut};

/// What happens to D's old value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Accumulate {
    /// D is overwritten; its old value is not read.
    #[default]
    Replace,
    /// `beta * D` is added to the sum, before bias and activation. F32 output only.
    Add,
}

/// Width of the tensor cores' accumulator over k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Accumulation {
    /// Partial sums are promoted to FP32 as the GPU offers it.
    #[default]
    Precise,
    /// The GPU may keep partial sums at tensor-core precision (errors near 1e-3 on sm_90, observed), which is faster.
    /// It concerns tensor x tensor and row x row; pairs with 128-blocks are always precise.
    Fast,
}

/// Whether the largest magnitude of D before encoding is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OutAmax {
    /// Not computed.
    #[default]
    Ignore,
    /// Stored as one FP32 number. E4M3 output only.
    Store,
}

/// One problem: `D = epilogue(alpha * A Bᵀ + beta * D)`, A `m x k`, B `n x k`, D `m x n` row-major.
///
/// Everything that decides how it is computed, and nothing else: no pointers, and neither alpha nor beta's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GemmDesc {
    /// Rows of A and D.
    pub m: usize,
    /// Rows of B, columns of D.
    pub n: usize,
    /// Columns of A and B.
    pub k: usize,
    /// Scheme of A.
    pub a: Scheme,
    /// Scheme of B.
    pub b: Scheme,
    /// Element type of D: BF16, F16, F32, or E4M3 for tensor x tensor.
    pub out: DType,
    /// Elements from one row of D to the next.
    pub out_stride: usize,
    /// Bias, activation and residual.
    pub epilogue: Epilogue,
    /// Whether D's old value counts.
    pub accumulate: Accumulate,
    /// Precision of the sums.
    pub accumulation: Accumulation,
    /// Whether amax(D) is stored.
    pub out_amax: OutAmax,
}

impl GemmDesc {
    /// The plain product: packed rows of D, no epilogue, D overwritten, precise sums. Checked when planned.
    pub fn new(m: usize, n: usize, k: usize, a: Scheme, b: Scheme, out: DType) -> Self {
        Self {
            m,
            n,
            k,
            a,
            b,
            out,
            out_stride: n,
            epilogue: Epilogue::default(),
            accumulate: Accumulate::Replace,
            accumulation: Accumulation::Precise,
            out_amax: OutAmax::Ignore,
        }
    }

    /// The same with rows of D that begin `out_stride` elements apart.
    pub fn with_out_stride(self, out_stride: usize) -> Self {
        Self { out_stride, ..self }
    }

    /// The same with this epilogue.
    pub fn with_epilogue(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }

    /// The same with D replaced or added to.
    pub fn with_accumulate(self, accumulate: Accumulate) -> Self {
        Self { accumulate, ..self }
    }

    /// The same with sums of this precision.
    pub fn with_accumulation(self, accumulation: Accumulation) -> Self {
        Self { accumulation, ..self }
    }

    /// The same with amax(D) stored or not.
    pub fn with_out_amax(self, out_amax: OutAmax) -> Self {
        Self { out_amax, ..self }
    }

    /// Checks every rule that does not depend on the GPU; `device` goes into messages.
    ///
    /// # Errors
    /// [`Error::Pair`], [`Error::Shape`], [`Error::DType`] or [`Error::Unsupported`], with the rule that is broken.
    pub fn check(&self, device: &str) -> Result<()> {
        pair::check_pair(self.a, self.b, device)?;
        pair::check_output(self.a, self.b, self.out)?;
        pair::check_shape(self.m, self.n, self.k, self.out)?;
        self.check_sizes()?;
        for (operand, dtype) in [("bias", self.epilogue.bias), ("residual", self.epilogue.residual)] {
            dtype.map_or(Ok(()), |dtype| pair::check_epilogue_operand(operand, dtype))?;
        }
        if self.accumulate == Accumulate::Add {
            pair::check_accumulate(self.out)?;
        }
        if self.out_amax == OutAmax::Store && self.out != DType::E4m3 {
            return Err(Error::dtype("D", self.out, "has no amax: it belongs to e4m3 output", "do not ask for amax"));
        }
        Ok(())
    }

    /// Stride and sizes that cuBLASLt can take.
    fn check_sizes(&self) -> Result<()> {
        // 2^31 bytes from one row to the next gave wrong results before cuBLASLt 13.3 (documented); no real matrix needs it.
        const LIMIT: usize = i32::MAX as usize;
        for (name, value) in
            [("m", self.m), ("n", self.n), ("k", self.k), ("row stride of D", self.out_stride.saturating_mul(4))]
        {
            if value > LIMIT - 512 {
                return Err(Error::shape(
                    "problem",
                    format!("{name} = {value}"),
                    format!("must be below {}", LIMIT - 512),
                    "split the product",
                ));
            }
        }
        if self.out_stride < self.n || !(self.out_stride * self.out.bytes()).is_multiple_of(16) {
            return Err(Error::shape(
                "D",
                format!("row stride {} for n = {} ({})", self.out_stride, self.n, self.out),
                "must be at least n, and a row must be a multiple of 16 bytes",
                format!("use a multiple of {} elements", 16 / self.out.bytes()),
            ));
        }
        Ok(())
    }

    /// True if there is nothing to compute.
    pub(crate) fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0
    }

    /// Names the first fields in which `self` and `other` differ, with both values.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let fields: [(&str, String, String); 11] = [
            ("m", self.m.to_string(), other.m.to_string()),
            ("n", self.n.to_string(), other.n.to_string()),
            ("k", self.k.to_string(), other.k.to_string()),
            ("scheme of A", self.a.to_string(), other.a.to_string()),
            ("scheme of B", self.b.to_string(), other.b.to_string()),
            ("type of D", self.out.to_string(), other.out.to_string()),
            ("row stride of D", self.out_stride.to_string(), other.out_stride.to_string()),
            ("epilogue", format!("{:?}", self.epilogue), format!("{:?}", other.epilogue)),
            ("accumulate", format!("{:?}", self.accumulate), format!("{:?}", other.accumulate)),
            ("accumulation", format!("{:?}", self.accumulation), format!("{:?}", other.accumulation)),
            ("amax of D", format!("{:?}", self.out_amax), format!("{:?}", other.out_amax)),
        ];
        let (name, mine, theirs) = fields.into_iter().find(|(_, a, b)| a != b)?;
        Some(format!("{name} = {theirs} where {mine} was planned"))
    }
}

impl fmt::Display for GemmDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{} {} x {} -> {}", self.m, self.n, self.k, self.a, self.b, self.out)?;
        if self.out_stride != self.n {
            write!(f, " stride {}", self.out_stride)?;
        }
        if let Some(bias) = self.epilogue.bias {
            write!(f, " + {bias} bias")?;
        }
        if self.epilogue.activation != Activation::None {
            write!(f, ", {}", self.epilogue.activation.name())?;
        }
        if let Some(residual) = self.epilogue.residual {
            write!(f, " + {residual} residual")?;
        }
        match self.accumulate {
            Accumulate::Replace => {}
            Accumulate::Add => f.write_str(", added to D")?,
        }
        match self.accumulation {
            Accumulation::Precise => {}
            Accumulation::Fast => f.write_str(", fast accumulation")?,
        }
        match self.out_amax {
            OutAmax::Ignore => Ok(()),
            OutAmax::Store => f.write_str(", amax"),
        }
    }
}

/// The operands of one call of `D = epilogue(alpha * A Bᵀ + beta * D)`.
///
/// ```no_run
/// use scaled_gemm::gpu::{GemmArgs, Handle, MatMut, QuantMatrix, VecRef};
/// use scaled_gemm::{Activation, Result};
///
/// fn layer(handle: &Handle, x: &QuantMatrix, weight: &QuantMatrix, bias: VecRef<'_>, y: MatMut<'_>) -> Result<()> {
///     handle.scaled_gemm(GemmArgs::new(x, weight, y).bias(bias).activation(Activation::Gelu))
/// }
/// ```
pub struct GemmArgs<'a> {
    pub(super) a: &'a QuantMatrix,
    pub(super) b: &'a QuantMatrix,
    pub(super) d: MatMut<'a>,
    pub(super) bias: Option<VecRef<'a>>,
    pub(super) residual: Option<MatRef<'a>>,
    pub(super) activation: Activation,
    pub(super) alpha: f32,
    /// `Some(beta)` adds `beta * D`.
    pub(super) beta: Option<f32>,
    pub(super) out_encode: Option<DeviceBytes<'a>>,
    pub(super) amax: Option<DeviceBytesMut<'a>>,
    pub(super) accumulation: Accumulation,
}

impl<'a> GemmArgs<'a> {
    /// `D = A Bᵀ`: A `m x k`, B `n x k`, D `m x n`.
    pub fn new(a: &'a QuantMatrix, b: &'a QuantMatrix, d: MatMut<'a>) -> Self {
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

    /// Adds a matrix of D's shape after the activation.
    pub fn residual(self, residual: MatRef<'a>) -> Self {
        Self { residual: Some(residual), ..self }
    }

    /// Multiplies the product by `alpha` (a host number: a captured graph keeps the value it was captured with).
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Adds `beta * D` ([`Accumulate::Add`]; F32 output). With `beta = 0` D's old value is not read.
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

    /// The problem these operands pose, after checking that they fit together.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the operand that does not fit; [`Error::DType`] for an E4M3 output without encode factor.
    pub fn desc(&self) -> Result<GemmDesc> {
        let (m, n, k) = (self.a.rows(), self.b.rows(), self.a.cols());
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
        Ok(GemmDesc {
            m,
            n,
            k,
            a: self.a.scheme(),
            b: self.b.scheme(),
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
        })
    }

    /// An encode factor belongs to E4M3 output, and E4M3 output to an encode factor: a scale is never assumed.
    fn check_output_factors(&self) -> Result<()> {
        let out = self.d.dtype();
        match (&self.out_encode, out) {
            (None, DType::E4m3) => {
                return Err(Error::dtype("D", out, "needs an encode factor", "pass it with GemmArgs::out_encode"));
            }
            (Some(_), out) if out != DType::E4m3 => {
                return Err(Error::dtype("D", out, "takes no encode factor", "store e4m3, or drop out_encode"));
            }
            _ => {}
        }
        let numbers = [
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Fp8Format;

    const TENSOR: Scheme = Scheme::Fp8Tensor(Fp8Format::E4M3);
    const ROW: Scheme = Scheme::Fp8Row(Fp8Format::E4M3);

    #[test]
    fn every_refusal_says_operand_numbers_rule_and_remedy() {
        let plain = |out| GemmDesc::new(5, 64, 32, TENSOR, TENSOR, out);
        assert!(plain(DType::Bf16).check("cpu").is_ok());
        assert!(plain(DType::E4m3).with_out_amax(OutAmax::Store).check("cpu").is_ok());
        let bias = |dtype| Epilogue { bias: Some(dtype), ..Epilogue::default() };
        let cases: [(GemmDesc, &[&str]); 7] = [
            (plain(DType::Bf16).with_out_stride(63), &["D", "row stride 63", "n = 64", "multiple of 8"]),
            (plain(DType::Bf16).with_out_stride(68), &["row stride 68", "16 bytes"]),
            (plain(DType::Bf16).with_accumulate(Accumulate::Add), &["D", "bf16", "accumulate", "f32"]),
            (plain(DType::F32).with_out_amax(OutAmax::Store), &["f32", "amax"]),
            (plain(DType::F32).with_epilogue(bias(DType::E4m3)), &["bias", "e4m3", "bf16, f16 or f32"]),
            (GemmDesc::new(5, 64, 32, ROW, TENSOR, DType::Bf16), &["fp8-row", "fp8-tensor"]),
            (GemmDesc::new(5, 64, 0, TENSOR, TENSOR, DType::Bf16), &["k = 0"]),
        ];
        for (desc, words) in cases {
            let text = desc.check("cpu").unwrap_err().to_string();
            for word in words {
                assert!(text.contains(word), "{text:?} lacks {word:?}");
            }
        }
        assert!(GemmDesc::new(0, 0, 16, TENSOR, TENSOR, DType::F32).check("cpu").is_ok());
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let planned = GemmDesc::new(5, 64, 32, TENSOR, TENSOR, DType::F32);
        assert_eq!(planned.difference(&planned), None);
        let other = GemmDesc { n: 72, ..planned };
        assert_eq!(planned.difference(&other).unwrap(), "n = 72 where 64 was planned");
        let other = planned.with_accumulation(Accumulation::Fast);
        assert!(planned.difference(&other).unwrap().contains("accumulation = Fast where Precise"));
        assert!(planned.to_string().starts_with("5x64x32 fp8-tensor:e4m3 x fp8-tensor:e4m3 -> f32"));
    }
}
