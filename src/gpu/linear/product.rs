//! The products of a layer, of quantized operands and of BF16 ones.

use crate::error::Result;
use crate::format::DType;
use crate::gpu::device::memory::DeviceBuffer;
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::bf16::{Bf16Desc, Lies};
use crate::gpu::gemm::desc::Accumulate;
use crate::gpu::gemm::rescale::RescaleArgs;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, VecRef};

/// `D = A B^T + bias`, or `D += A B^T`.
pub(super) fn quantized(
    handle: &Handle,
    a: &QuantMatrix,
    b: &QuantMatrix,
    d: MatMut<'_>,
    bias: Option<VecRef<'_>>,
    accumulate: Accumulate,
) -> Result<()> {
    let args = GemmArgs::new(a, b, d);
    let args = if let Some(bias) = bias { args.bias(bias) } else { args };
    handle.scaled_gemm(match accumulate {
        Accumulate::Add => args.accumulate(1.0),
        Accumulate::Replace => args,
    })
}

/// The same of BF16 matrices as they lie. What cuBLASLt does not do in the same pass, a D in F16 and on some versions the bias, our epilogue
/// does behind FP32 sums in `wide`.
pub(super) fn bf16(
    handle: &Handle,
    (a, a_lies): (&MatRef<'_>, Lies),
    (b, b_lies): (&MatRef<'_>, Lies),
    mut d: MatMut<'_>,
    bias: Option<VecRef<'_>>,
    accumulate: Accumulate,
    wide: Option<&mut DeviceBuffer>,
) -> Result<()> {
    let outer = |x: &MatRef<'_>, lies| if lies == Lies::AlongK { (x.rows(), x.cols()) } else { (x.cols(), x.rows()) };
    let ((m, k), (n, _)) = (outer(a, a_lies), outer(b, b_lies));
    let problem = Bf16Desc {
        m,
        n,
        k,
        a: (a_lies, a.row_stride()),
        b: (b_lies, b.row_stride()),
        out: d.dtype(),
        out_stride: d.row_stride(),
        bias: bias.as_ref().map(VecRef::dtype),
        accumulate,
    };
    let Some(wide) = wide else {
        return handle.bf16_gemm(&problem, a, b, &mut d, bias.as_ref());
    };
    let sums = Bf16Desc { out: DType::F32, out_stride: n, bias: None, ..problem };
    handle.bf16_gemm(&sums, a, b, &mut MatMut::new(&mut *wide, DType::F32, m, n)?, None)?;
    let args = RescaleArgs::new(MatRef::new(&*wide, DType::F32, m, n)?, d);
    handle.rescale_into(if let Some(bias) = bias { args.bias(bias) } else { args })
}

/// Whether products of BF16 operands into this type go through FP32 sums in memory.
pub(super) fn goes_wide(handle: &Handle, dtype: DType, has_bias: bool, [out, features]: [usize; 2]) -> bool {
    let product = |m| Bf16Desc { bias: Some(dtype), out: dtype, ..Bf16Desc::packed(m, out, features) };
    let refused = |m| !handle.may_add_bias(&product(m));
    dtype == DType::F16 || (has_bias && (refused(1) || refused(128)))
}
