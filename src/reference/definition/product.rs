//! The product and the values of operands.

use ndarray::Array2;

use crate::epilogue::Activation;
use crate::error::Result;
use crate::format::{CodeFormat, DType, HostQuantMatrix, Scheme, codec};
use crate::reference::{GemmInputs, HostOperand};

/// The code, block scale and FP32 scale of an element; 1 for what the scheme lacks. Each number is exact.
pub(super) fn numbers(q: &HostQuantMatrix, i: usize, j: usize) -> [f32; 3] {
    let code = match q.scheme().spec().format {
        CodeFormat::Fp8(format) => codec::decode(format, q.row_codes(i)[j]),
        CodeFormat::E2M1 => codec::decode_e2m1(q.row_codes(i)[j / 2] >> (4 * (j % 2))),
    };
    let block = |width: usize| {
        let format = q.scheme().spec().block.map(|b| b.format);
        format.map_or(1.0, |format| codec::decode_block_scale(format, q.block_scale_at(i, j / width)))
    };
    match q.scheme() {
        Scheme::Fp8Tensor(_) => [code, 1.0, q.scale_at(0, 0)],
        Scheme::Fp8Row(_) => [code, 1.0, q.scale_at(i, 0)],
        Scheme::Fp8Group1x128(_) => [code, 1.0, q.scale_at(i, j / 128)],
        Scheme::Fp8Group128x128(_) => [code, 1.0, q.scale_at(i / 128, j / 128)],
        Scheme::Mxfp8(_) | Scheme::Mxfp4 => [code, block(32), 1.0],
        Scheme::Nvfp4 => [code, block(16), q.scale_at(0, 0)],
        Scheme::Nvfp4Row => [code, block(16), q.scale_at(i, 0)],
    }
}

/// `code * block_scale * scale` of every element in f64: exact.
pub fn values(operand: HostOperand<'_>) -> Array2<f64> {
    Array2::from_shape_fn((operand.rows(), operand.cols()), |(i, j)| match operand {
        HostOperand::Quantized(q) => numbers(q, i, j).into_iter().map(f64::from).product(),
        HostOperand::Plain(x, dtype) => f64::from(codec::round_to(dtype, x[[i, j]])),
    })
}

/// `act(alpha sum_k a[i, k] b[j, k] + beta C + bias) + residual` in f64, before it is rounded to the output's type; for E4M3
/// times `out_encode`, and within +-448.
///
/// What [`gemm_bound`](crate::reference::gemm_bound) must call exact, but for the last bits of f64.
///
/// # Errors
/// As [`reference::scaled_gemm`](crate::reference::scaled_gemm).
pub fn scaled_gemm(inputs: &GemmInputs<'_>) -> Result<Array2<f64>> {
    let [m, n, k] = inputs.check()?;
    let (a, mut b) = (values(inputs.a), values(inputs.b.into()));
    // The one pair whose B is rounded, as `pair::multiplied_in` says.
    if inputs.b.scheme() == Scheme::Mxfp4 && matches!(inputs.a, HostOperand::Plain(_, DType::F16)) {
        b.mapv_inplace(|v| half::f16::from_f64(v).to_f64());
    }
    Ok(Array2::from_shape_fn((m, n), |(i, j)| {
        let (a, b) = (a.row(i), b.row(j));
        let mut v = f64::from(inputs.alpha) * (0..k).map(|k| a[k] * b[k]).sum::<f64>();
        if let Some((beta, c)) = inputs.accumulate
            && beta != 0.0
        {
            v += f64::from(beta) * f64::from(c[[i, j]]);
        }
        if let Some((bias, _)) = inputs.bias {
            v += f64::from(bias[j]);
        }
        v = match inputs.activation {
            Activation::None => v,
            Activation::Relu => {
                if v < 0.0 {
                    0.0
                } else {
                    v
                }
            }
            Activation::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3));
                0.5 * v * (1.0 + inner.tanh())
            }
            Activation::Silu => v / (1.0 + (-v).exp()),
        };
        if let Some((residual, _)) = inputs.residual {
            v += f64::from(residual[[i, j]]);
        }
        if inputs.out == DType::E4M3 { (v * f64::from(inputs.out_encode)).clamp(-448.0, 448.0) } else { v }
    }))
}
