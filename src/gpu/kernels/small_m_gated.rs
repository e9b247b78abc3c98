//! Launches of `kernels/gemm/small_m_gated.cu`: the kernels of gated products of few E4M3 rows, which [`Kernels::small_m_product`] launches, and the pass behind
//! products of others.

use super::Kernels;
use super::epilogue::wide_code;
use super::launch::{Blocks, GRID_Y, Kernel, THREADS, enqueue};
use super::module::Modules;
use super::operand::{Output, check_aligned, check_bytes, extent};
use super::scale_rule::ScaleRule;
use super::small_m::{SmallMKernel, name};
use super::small_m_config::{SmallMBlock, SmallMOperands};
use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{DType, Fp8Format, Fp8Recipe};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// The kernels of the file.
pub(super) struct SmallMGatedKernels {
    /// Of two matrices, with scales of blocks.
    pub(super) all: Vec<SmallMKernel>,
    swiglu: Kernel,
    swiglu_codes: Kernel,
}

impl SmallMGatedKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/small_m_gated")?;
        let mut all = Vec::new();
        for block in SmallMBlock::of(SmallMOperands::Fp8) {
            for &tokens in block.widths() {
                let name = name(block, true, tokens).replace("small_m_", "small_m_gated_");
                let kernel = file.kernel_with_shared(&name, block.shared(tokens))?;
                all.push(SmallMKernel { block, tokens, blocks: true, kernel });
            }
        }
        let (swiglu, swiglu_codes) = (file.kernel("gemm_small_m_swiglu")?, file.kernel("gemm_small_m_swiglu_codes")?);
        Ok(Self { all, swiglu, swiglu_codes })
    }
}

impl Kernels {
    /// `D = silu(gate) * up` of few rows of FP32, `[m][2n]`, each with its gates first. D: `[m][n]`, rows `stride` elements apart.
    pub(crate) fn small_m_swiglu(
        &self,
        stream: &Queue,
        both: &Span<'_>,
        [m, n]: [usize; 2],
        (d, stride, dtype): (&Span<'_>, usize, DType),
    ) -> Result<()> {
        check_bytes("products", both, m * 2 * n * 4)?;
        check_aligned("products", both, 4)?;
        if stride < n || m > GRID_Y || n >= 1 << 31 {
            let found = format!("{m} x {n}, rows {stride} apart");
            let rule = "rows must lie no closer than they are long, and be at most 65535, shorter than 2^31";
            return Err(Error::shape("D", found, rule, "pass the stride of its rows"));
        }
        check_bytes("D", d, extent(m, n, stride) * dtype.bytes())?;
        check_aligned("D", d, dtype.bytes() as u64)?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let kernel = self.small_m(stream)?.1.swiglu;
        let blocks = Blocks::new((n.div_ceil(THREADS as usize), m), THREADS);
        enqueue!(stream, kernel, blocks, both.address, n as u32, d.address, stride as u64, wide_code(dtype)?)
    }
}

impl Kernels {
    /// The same to E4M3 codes with 1x128 scales: the bytes of the quantizer of D in FP32. n is a multiple of 128.
    pub(crate) fn small_m_swiglu_codes(
        &self,
        stream: &Queue,
        both: &Span<'_>,
        [m, n]: [usize; 2],
        recipe: Fp8Recipe,
        out: &Output<'_>,
    ) -> Result<()> {
        check_bytes("products", both, m * 2 * n * 4)?;
        check_aligned("products", both, 16)?;
        if !n.is_multiple_of(128) || m > GRID_Y || n >= 1 << 31 || recipe.format != Fp8Format::E4M3 {
            let found = format!("{m} x {n} {}", recipe.scheme());
            let rule = "rows of E4M3 must be a multiple of 128, shorter than 2^31, and at most 65535";
            return Err(Error::shape("D", found, rule, "report it: a launch of this crate asked for it"));
        }
        check_bytes("codes of D", out.codes, m * n)?;
        check_aligned("codes of D", out.codes, 4)?;
        check_bytes("scales of D", out.scales, ScaleLayout::Vec128.len(m, n / 128) * 4)?;
        check_aligned("scales of D", out.scales, 4)?;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let kernel = self.small_m(stream)?.1.swiglu_codes;
        let blocks = Blocks::new(((n / 128).div_ceil(8), m), THREADS);
        let (rule, pitch) = (ScaleRule::new(recipe, DType::F32), m.next_multiple_of(4) as u32);
        enqueue!(stream, kernel, blocks, both.address, n as u32, rule, out.codes.address, out.scales.address, pitch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = include_str!("../../../kernels/gemm/small_m_gated.cu");
    const FP8: &str = include_str!("../../../kernels/gemm/small_m_fp8.cu");

    /// The same blocks as those of one matrix, for the same columns.
    #[test]
    fn the_kernels_are_those_of_one_matrix() {
        let rows =
            |source: &'static str| -> Vec<_> { source.lines().filter(|line| line.starts_with("SMALL_M(")).collect() };
        assert_eq!(rows(SOURCE), rows(FP8));
        for tokens in SmallMBlock::One.widths() {
            assert!(SOURCE.contains(&format!("SMALL_M_KERNEL({tokens}, __VA_ARGS__)")), "{tokens}");
        }
        assert_eq!(SOURCE.matches(", __VA_ARGS__)").count(), SmallMBlock::One.widths().len());
    }
}
