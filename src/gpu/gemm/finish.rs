//! The steps after a product that wrote scratch memory: the copy of its m rows, or our FP32 epilogue kernel.

use crate::error::Result;
use crate::gpu::gemm::call::{Call, Spans};
use crate::gpu::gemm::desc::Accumulate;
use crate::gpu::gemm::outline::ScaleUse;
use crate::gpu::kernels::{EpilogueCall, ScaleVector};

/// Copies the m rows of the padded scratch matrix, in D's type, to D.
pub(crate) fn copy(call: &Call<'_>) -> Result<()> {
    let desc = call.desc;
    let size = desc.out.bytes();
    let (row_bytes, to) = (desc.n * size, desc.out_stride * size);
    call.handle.kernels().copy_2d(call.queue, &call.scratch.sum, row_bytes, &call.d, to, desc.m, row_bytes)
}

/// `D = epilogue(scratch * scales of A's rows * scales of B's rows)`: scratch FP32, packed.
pub(crate) fn epilogue(call: &Call<'_>, rescale: [ScaleUse; 2]) -> Result<()> {
    let (desc, kernels) = (call.desc, call.handle.kernels());
    if let Some(amax) = &call.amax {
        kernels.zero(call.queue, amax, 4)?;
    }
    // beta = 0 means that D's old value is not read, so that a NaN in it does not matter.
    let add = desc.accumulate == Accumulate::Add && call.beta != 0.0;
    kernels.epilogue(
        call.queue,
        &EpilogueCall {
            m: desc.m,
            n: desc.n,
            acc: &call.scratch.sum,
            acc_stride: desc.n,
            row_scale: scale_vector(rescale[0], &call.a),
            col_scale: scale_vector(rescale[1], &call.b),
            beta: call.beta,
            c: add.then_some((&call.d, desc.out_stride)),
            bias: call.bias.as_ref().map(|(span, dtype)| (span, *dtype)),
            activation: desc.epilogue.activation,
            residual: call.residual.as_ref().map(|(span, stride, dtype)| (span, *stride, *dtype)),
            d: &call.d,
            d_stride: desc.out_stride,
            d_type: desc.out,
            out_encode: call.out_encode.as_ref(),
            amax: call.amax.as_ref(),
        },
    )
}

/// The scales that the epilogue kernel applies.
fn scale_vector<'s>(scale: ScaleUse, spans: &'s Spans<'s>) -> Option<ScaleVector<'s>> {
    match scale {
        ScaleUse::Nothing => None,
        ScaleUse::One => spans.scales.as_ref().map(ScaleVector::One),
        ScaleUse::Each => spans.scales.as_ref().map(ScaleVector::Each),
    }
}
