//! The products of a layer, of quantized operands and of BF16 ones, and the plans that it keeps of them.

use std::collections::HashMap;

use crate::error::Result;
use crate::format::DType;
use crate::gpu::device::memory::DeviceBuffer;
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::bf16::{Bf16Desc, Bf16Product, Lies};
use crate::gpu::gemm::desc::{Accumulate, GemmDesc};
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::rescale::RescaleArgs;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, VecRef};

/// Plans for the numbers of tokens that a layer was prepared for. Of others its handle remembers the last ones.
#[derive(Default)]
pub(super) struct Plans {
    quantized: HashMap<GemmDesc, GemmPlan>,
    bf16: HashMap<Bf16Desc, Bf16Product>,
    /// Whether what is multiplied is planned, anew if it was before, and kept.
    pub(super) keep: bool,
}

impl Plans {
    fn multiply(&mut self, handle: &Handle, mut args: GemmArgs<'_>) -> Result<()> {
        let desc = args.desc()?;
        if self.keep {
            self.quantized.insert(desc, handle.plan(&desc)?);
        }
        match self.quantized.get_mut(&desc) {
            Some(plan) => {
                plan.make_ready(handle, args.b)?;
                plan.run(handle, &mut args)
            }
            None => handle.scaled_gemm(args),
        }
    }

    fn multiply_bf16(
        &mut self,
        handle: &Handle,
        problem: &Bf16Desc,
        a: &MatRef<'_>,
        b: &MatRef<'_>,
        d: &mut MatMut<'_>,
        bias: Option<&VecRef<'_>>,
    ) -> Result<()> {
        if self.keep {
            self.bf16.insert(*problem, handle.plan_bf16(problem)?);
        }
        match self.bf16.get_mut(problem) {
            Some(product) => product.execute(handle, a, b, d, bias),
            None => handle.bf16_gemm(problem, a, b, d, bias),
        }
    }
}

/// `D = A B^T + bias`, or `D += A B^T`.
pub(super) fn quantized(
    handle: &Handle,
    plans: &mut Plans,
    a: &QuantMatrix,
    b: &QuantMatrix,
    d: MatMut<'_>,
    bias: Option<VecRef<'_>>,
    accumulate: Accumulate,
) -> Result<()> {
    let args = GemmArgs::new(a, b, d);
    let args = if let Some(bias) = bias { args.bias(bias) } else { args };
    let args = if accumulate == Accumulate::Add { args.accumulate(1.0) } else { args };
    plans.multiply(handle, args)
}

/// The same of BF16 matrices as they lie. What cuBLASLt does not do in the same pass, a D in F16 and on some versions the bias, our epilogue
/// does behind FP32 sums in `wide`.
#[allow(clippy::too_many_arguments)]
pub(super) fn bf16(
    handle: &Handle,
    plans: &mut Plans,
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
        return plans.multiply_bf16(handle, &problem, a, b, &mut d, bias.as_ref());
    };
    let sums = Bf16Desc { out: DType::F32, out_stride: n, bias: None, ..problem };
    plans.multiply_bf16(handle, &sums, a, b, &mut MatMut::new(&mut *wide, DType::F32, m, n)?, None)?;
    let args = RescaleArgs::new(MatRef::new(&*wide, DType::F32, m, n)?, d);
    handle.rescale_into(if let Some(bias) = bias { args.bias(bias) } else { args })
}

/// Whether products of BF16 operands into this type go through FP32 sums in memory.
pub(super) fn goes_wide(handle: &Handle, dtype: DType, has_bias: bool, [out, features]: [usize; 2]) -> bool {
    let product = |m| Bf16Desc { bias: Some(dtype), out: dtype, ..Bf16Desc::packed(m, out, features) };
    let refused = |m| !handle.may_add_bias(&product(m));
    dtype == DType::F16 || (has_bias && (refused(1) || refused(128)))
}
