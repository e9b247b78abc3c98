//! SwiGLU of two products of few rows, one pass over both matrices: of FP8 operands by `small-m`, of plain rows by the kernels of [`few`]. Codes of either by
//! the quantizer behind it.

use super::{FusedGemmArgs, FusedOut};
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{Basis, CodeOrder, DType};
use crate::gpu::device::memory::Span;
use crate::gpu::gemm::chain_rules;
use crate::gpu::gemm::small_m_step::SmallMGpu;
use crate::gpu::grouped::fit::{check_codes_apart, check_operands_apart};
use crate::gpu::grouped::{GroupedA, few};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{
    Input, KernelFamily, Output, Sm90Scales, SmallMCall, SmallMConfig, SmallMEnd, SmallMOperands, SmallMScales,
    SmallMWeights,
};
use crate::gpu::matrix::QuantMatrix;

impl<'a> FusedGemmArgs<'a> {
    /// The configuration of `small-m` for FP8 operands: the one asked for, or the one that should be fastest where it is before `sm90`.
    pub(super) fn small_m(&self, layout: Sm90Scales, gpu: SmallMGpu) -> Result<Option<SmallMConfig>> {
        let ([m, n, k], blocks) = (self.mnk(), layout == Sm90Scales::Blocks);
        if let Some(config) = self.small_m_config {
            let operands = config.block().operands();
            if !self.swiglu
                || !blocks
                || self.groups.is_some()
                || operands != SmallMOperands::Fp8
                || self.config.is_some()
            {
                return Err(Error::unsupported(
                    format!("{config} of small-m in a product with the pass behind it"),
                    "it is for SwiGLU of fp8-1x128 and fp8-128x128, without groups, and for no configuration of sm90 beside it",
                    "leave it out",
                ));
            }
            if self.batch_invariant {
                return Err(Error::unsupported(
                    format!("{config} of small-m in a batch-invariant product"),
                    "small-m serves few rows alone, and sums k in another order than sm90 does for more",
                    "leave it out, or do not ask for batch_invariant",
                ));
            }
            if m > config.block().most_rows() {
                let rule =
                    format!("must have at most {} rows in blocks of {}", config.block().most_rows(), config.block());
                return Err(Error::shape("A", format!("{m} x {k}"), rule, "leave the configuration out"));
            }
            return Ok(Some(config));
        }
        let few = self.swiglu && blocks && self.groups.is_none() && self.config.is_none() && !self.batch_invariant;
        // Of both products the same rows as of one, where its alternative has a pass behind it (H200, 2026-11, the record of experts: 32 x 2048 x 7168 13 us for 31 in the kernel of
        // `sm90`; 32 x 18432 x 7168 87 for 80 by `sm90` and a pass).
        // Above 16 rows of fewer columns alone: a rule of its own, as the other way is not one product of `sm90` but its SwiGLU, or a pass.
        if !few || m > 32 || (m > 16 && 2 * n > 10240) {
            return Ok(None);
        }
        let (codes, mnk) = (CodeOrder::Published, [m, 2 * n, k]);
        Ok(chain_rules::order(SmallMOperands::Fp8, codes, mnk, gpu, self.chained).first().copied())
    }

    /// Scratch memory of SwiGLU of few rows to codes: the hidden layer in FP32.
    pub(super) fn hidden_bytes(&self) -> usize {
        let [m, n, _] = self.mnk();
        if matches!(self.d, FusedOut::Quantized(_)) { m * n * 4 } else { 0 }
    }

    /// SwiGLU of FP8 operands.
    pub(super) fn multiply_codes(&mut self, handle: &Handle, a: &QuantMatrix, config: SmallMConfig) -> Result<()> {
        let [m, n, k] = self.mnk();
        let (queue, kernels) = (handle.queue(), handle.kernels());
        kernels.load(queue, KernelFamily::SmallM)?;
        let bytes = self.hidden_bytes();
        if bytes > 0 {
            kernels.load(queue, KernelFamily::Fp8)?;
            handle.reserve_scratch(bytes)?;
        }
        let _turn = queue.turn();
        let FusedGemmArgs { b, d, alpha, recipe, .. } = self;
        {
            let order = queue.order();
            let (a, b) = (a.read(&order)?, b.read(&order)?);
            let multiply = |d: &Span<'_>, d_stride: usize, d_type: DType| {
                check_operands_apart(&a, &b, d)?;
                let end = SmallMEnd {
                    alpha: *alpha,
                    beta: 0.0,
                    bias: None,
                    activation: Activation::Silu,
                    residual: None,
                    d,
                    d_stride,
                    d_type,
                };
                let (codes, scales) = ([&a.codes, &b.codes], [&a.scales, &b.scales]);
                let layout = SmallMScales::Blocks;
                kernels.small_m_product(queue, &SmallMCall { config, gated: true, m, n, k, codes, scales, layout, end })
            };
            match d {
                FusedOut::Plain(d) => {
                    let (stride, dtype, bytes) = (d.row_stride(), d.dtype(), d.extent_bytes());
                    multiply(&d.data_mut().at(&order)?.slice(0, bytes), stride, dtype)?;
                }
                FusedOut::Quantized(d) => {
                    let (out, hidden) = (d.write(&order)?, handle.scratch(bytes)?);
                    check_codes_apart(&a, &b, &out)?;
                    multiply(&hidden, n, DType::F32)?;
                    let x = Input { x: &hidden, dtype: DType::F32, rows: m, cols: n, row_stride: n };
                    let none = out.codes.slice(0, 0);
                    let out = Output { codes: &out.codes, scales: &out.scales, block_scales: &none };
                    handle.enqueue_fp8(&x, *recipe, &out)?;
                }
            }
        }
        if let FusedOut::Quantized(d) = d {
            d.set_basis(Basis::Plain);
            d.derive_again(handle)?;
        }
        Ok(())
    }

    /// SwiGLU of plain rows.
    pub(super) fn multiply_plain(&mut self, handle: &Handle, weights: SmallMWeights, way: few::Gated) -> Result<()> {
        let GroupedA::Plain(a) = &self.a else {
            let remedy = "this is a bug of scaled-gemm: please report it";
            return Err(Error::unsupported("codes with plain weights", "the kernel has none", remedy));
        };
        let d = match &mut self.d {
            FusedOut::Plain(d) => few::FewOut::Numbers(d),
            FusedOut::Quantized(d) => few::FewOut::Codes(d, self.recipe),
        };
        let groups = self.groups.as_ref().map(|(count, rows)| (*count, rows));
        let (a, b, alpha, bias, activation) = (few::RowsOfA::Plain(a), self.b, self.alpha, None, Activation::Silu);
        let scales = [None, self.scales_of_b.as_ref()];
        few::FewRows { weights, a, b, groups, d, alpha, bias, activation, scales, way: few::FewWay::Gated(way) }
            .multiply(handle)
    }

    /// Refuses codes of plain rows in groups: those of FP8 rows are cast in the kernel, tile by tile, these by a quantizer that casts what it finds.
    pub(super) fn check_codes_of_groups(&self) -> Result<()> {
        if self.groups.is_none() || matches!(self.d, FusedOut::Plain(_)) {
            return Ok(());
        }
        Err(Error::unsupported(
            "a quantized D of plain rows in groups",
            "the quantizer behind the product casts every row, and rows of no group must not be written",
            "store numbers (a MatMut), and quantize them in a call of its own where all rows may be written, or quantize A as fp8-1x128 and multiply fp8-128x128 weights",
        ))
    }
}
