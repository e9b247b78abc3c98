//! SwiGLU of two products of FP8 operands in two steps of `sm90`: the products side by side in FP32, and a pass over them. The bits are those of the one kernel: the
//! products have the same sums, and nothing is rounded in between.

use super::{FusedGemmArgs, FusedOut};
use crate::epilogue::Activation;
use crate::error::Result;
use crate::format::{Basis, DType, Fp8Format};
use crate::gpu::gemm::sm90_rules;
use crate::gpu::grouped::fit::{check_codes_apart, check_operands_apart};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{KernelFamily, Output, Sm90Call, Sm90Config, Sm90End, Sm90Operand, Sm90Scales};
use crate::gpu::matrix::QuantMatrix;

impl FusedGemmArgs<'_> {
    /// The configuration of the products, where two steps should be faster than one kernel.
    pub(super) fn in_steps(&self, sm_count: usize) -> Option<Sm90Config> {
        let asked = self.swiglu && self.groups.is_none() && self.config.is_none();
        asked.then(|| sm90_rules::swiglu_in_steps(self.mnk(), sm_count)).flatten()
    }

    /// Scratch memory of both products.
    pub(super) fn both_bytes(&self) -> usize {
        let [m, n, _] = self.mnk();
        m * 2 * n * 4
    }

    pub(super) fn multiply_in_steps(
        &mut self,
        handle: &Handle,
        a: &QuantMatrix,
        layout: Sm90Scales,
        config: Sm90Config,
    ) -> Result<()> {
        let [m, n, k] = self.mnk();
        let (queue, kernels, bytes) = (handle.queue(), handle.kernels(), self.both_bytes());
        kernels.load(queue, KernelFamily::Sm90)?;
        kernels.load(queue, KernelFamily::SmallM)?;
        handle.reserve_scratch(bytes)?;
        let _turn = queue.turn();
        let FusedGemmArgs { b, d, alpha, recipe, .. } = self;
        {
            let order = queue.order();
            let (a, b, both) = (a.read(&order)?, b.read(&order)?, handle.scratch(bytes)?);
            let product = Sm90Call {
                config,
                stand_in: None,
                formats: [Fp8Format::E4M3; 2],
                m,
                n: 2 * n,
                k,
                a: Sm90Operand { codes: &a.codes, scales: &a.scales },
                b: Sm90Operand { codes: &b.codes, scales: &b.scales },
                layout,
                d: &both,
                d_stride: 2 * n,
                d_type: DType::F32,
                alpha: *alpha,
                beta: 0.0,
                bias: None,
                activation: Activation::None,
                residual: None,
                groups: None,
                end: Sm90End::Numbers,
            };
            match d {
                FusedOut::Plain(d) => {
                    let (stride, dtype, bytes_of_d) = (d.row_stride(), d.dtype(), d.extent_bytes());
                    let d = d.data_mut().at(&order)?.slice(0, bytes_of_d);
                    check_operands_apart(&a, &b, &d)?;
                    handle.sm90_product(&product)?;
                    kernels.small_m_swiglu(queue, &both, [m, n], (&d, stride, dtype))?;
                }
                FusedOut::Quantized(d) => {
                    let out = d.write(&order)?;
                    check_codes_apart(&a, &b, &out)?;
                    handle.sm90_product(&product)?;
                    let none = out.codes.slice(0, 0);
                    let out = Output { codes: &out.codes, scales: &out.scales, block_scales: &none };
                    kernels.small_m_swiglu_codes(queue, &both, [m, n], *recipe, &out)?;
                }
            }
        }
        if let FusedOut::Quantized(d) = d {
            d.set_basis(Basis::Plain);
            d.derive_again(handle)?;
        }
        Ok(())
    }
}
