//! Launches of `kernels/gemm/small_m_e2m1.cu`, `small_m_repacked.cu` and `small_m_e4m3.cu`: products of few rows of BF16 or F16 numbers on Hopper, with quantized weights that the
//! kernels decode.

use std::ops::Range;

use super::Kernels;
use super::launch::{Blocks, Kernel, enqueue};
use super::module::Modules;
use super::operand::{address, check_aligned, check_bytes, extent};
use super::small_m::InChain;
use super::small_m_chain::LINK_STAGES;
use super::small_m_codes::SmallMWeights;
use super::small_m_config::{SmallMBlock, SmallMConfig, SmallMOperands, no_such_block, too_many_rows};
use super::small_m_end::{MOST_LENGTH, SmallMEnd};
use super::small_m_one_row::OneRow;
use super::small_m_wgmma::Wgmma;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// With E2M1 codes k is a multiple of this: their rows are read 16 bytes at a time.
pub(crate) const E2M1_K_MULTIPLE: usize = 32;
/// Of k, as a power of two: the bytes from one row of codes to another of its tile have 32 bits.
pub(crate) const fn most_k_power(operands: SmallMOperands) -> u32 {
    match operands {
        SmallMOperands::Fp8 => 30,
        SmallMOperands::E2m1Weights => 26,
        SmallMOperands::E4m3Weights => 25,
    }
}

/// Mirror of the constant of the same name in `kernels/gemm/small_m_e2m1.cuh`.
const EACH_GROUP: u32 = 2;

fn name(block: SmallMBlock, tokens: usize, (weights, a_type): (SmallMWeights, DType)) -> String {
    format!("gemm_small_m_{}_{a_type}_{tokens}_{}", weights.name(), block.name().replace('-', "_"))
}

fn name_of_links(tokens: usize, serves: (SmallMWeights, DType)) -> String {
    format!("{}_{LINK_STAGES}", name(SmallMBlock::Four, tokens, serves))
}

/// Dynamic shared memory in bytes.
fn shared(block: SmallMBlock, tokens: usize, weights: SmallMWeights) -> u32 {
    match weights {
        SmallMWeights::Nvfp4Repacked => block.repacked_shared(tokens),
        _ => block.shared(tokens),
    }
}

/// The kernels of all files.
pub(super) struct SmallMWeightsKernels {
    all: Vec<SmallMWeightsKernel>,
    /// Of [`SmallMBlock::Four`], with [`LINK_STAGES`] steps on their way.
    of_links: Vec<SmallMWeightsKernel>,
    /// Adds parts of sums that lie in memory.
    pub(super) join: Kernel,
}

struct SmallMWeightsKernel {
    block: SmallMBlock,
    tokens: usize,
    serves: (SmallMWeights, DType),
    kernel: Kernel,
    /// Dynamic shared memory in bytes.
    shared: u32,
}

impl SmallMWeightsKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let (mut all, mut of_links) = (Vec::new(), Vec::new());
        let [e2m1, repacked, e4m3] = [
            modules.file("gemm/small_m_e2m1")?,
            modules.file("gemm/small_m_repacked")?,
            modules.file("gemm/small_m_e4m3")?,
        ];
        for serves in SmallMWeights::served() {
            let operands = serves.0.operands();
            let file = match (serves.0, operands) {
                (SmallMWeights::Nvfp4Repacked, _) => &repacked,
                (_, SmallMOperands::E2m1Weights) => &e2m1,
                _ => &e4m3,
            };
            for (block, tokens) in
                SmallMBlock::of(operands).flat_map(|block| block.widths().iter().map(move |t| (block, *t)))
            {
                let of = |name: String, shared| -> Result<SmallMWeightsKernel> {
                    let kernel = file.kernel_with_shared(&name, shared)?;
                    Ok(SmallMWeightsKernel { block, tokens, serves, kernel, shared })
                };
                all.push(of(name(block, tokens, serves), shared(block, tokens, serves.0))?);
                if block == SmallMBlock::Four {
                    of_links.push(of(name_of_links(tokens, serves), block.shared_with_stages(LINK_STAGES, tokens))?);
                }
            }
        }
        Ok(Self { all, of_links, join: modules.file("gemm/small_m_join")?.kernel("gemm_small_m_join")? })
    }
}

/// Outer scales of an operand.
#[derive(Clone, Copy)]
pub(crate) struct OuterScales<'a> {
    pub(crate) scales: &'a Span<'a>,
    pub(crate) each: Each,
}

/// What has an outer scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Each {
    /// The operand.
    All,
    Row,
    /// Of a product of groups, of A each group, of B each matrix, of which a group that is gated has two: weights that [have levels](SmallMWeights::have_levels) alone.
    Group,
}

/// One product, the sum being `A B^T` of plain numbers with codes times scales, times outer scales.
pub(crate) struct SmallMWeightsCall<'a> {
    pub(crate) config: SmallMConfig,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// BF16 or F16 `[m][k]`, rows `a_stride` elements apart.
    pub(crate) a: &'a Span<'a>,
    pub(crate) a_stride: usize,
    pub(crate) a_type: DType,
    /// A is made by a kernel of the same call: no link of a chain, as that one releases nothing, and is not waited for the sooner.
    pub(crate) a_is_made: bool,
    pub(crate) weights: SmallMWeights,
    /// E2M1 `[n][k / 2]`, or E4M3 `[n][k]`.
    pub(crate) codes: &'a Span<'a>,
    /// Of B, those that are a part of the sum: bytes in tiles of 128x4, or FP32 numbers of 1x128 or 128x128. `None` where there are none.
    pub(crate) scales: Option<&'a Span<'a>>,
    /// Of A and B.
    pub(crate) outer: [Option<OuterScales<'a>>; 2],
    /// Where parts of sums are left on GPUs without clusters, as many bytes as [`SmallMConfig::parts_bytes`] says; on sm_90 where A is arranged, with parts behind it, as many as
    /// [`Wgmma::scratch_of`](super::Wgmma::scratch_of) says. `None`: parts meet in clusters, and A is read as it is.
    pub(crate) scratch: Option<&'a Span<'a>>,
    pub(crate) end: SmallMEnd<'a>,
}

/// Mirror of the struct of the same name in `kernels/gemm/small_m_e2m1.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SmallMWeightsProblem {
    m: u32,
    n: u32,
    k: u32,
    a_step: u32,
    b_step: u32,
    bias_type: u32,
    residual_type: u32,
    d_type: u32,
    activation: u32,
    releases: u32,
    loads_early: u32,
    pub(super) scale_pitch: u32,
    split: u32,
    alpha: f32,
    beta: f32,
    a: u64,
    b: u64,
    scales: u64,
    scales_a: u64,
    scales_b: u64,
    bias: u64,
    residual: u64,
    d: u64,
    parts: u64,
    stride_a: u64,
    stride_residual: u64,
    stride_d: u64,
}

impl SmallMWeights {
    /// Refuses products whose k or n no kernel takes, with a B of so many rows.
    pub(crate) fn check_shape(self, [m, n, k]: [usize; 3], b_rows: usize) -> Result<()> {
        let shape = || format!("m = {m}, n = {n}, k = {k}");
        let multiple = match (self, self.operands()) {
            (Self::Nvfp4Repacked, _) => 128,
            (_, SmallMOperands::E2m1Weights) => E2M1_K_MULTIPLE,
            _ => 16,
        };
        if k == 0 || !k.is_multiple_of(multiple) || !n.is_multiple_of(8) {
            let rule = format!("k must be a multiple of {multiple} above 0, n a multiple of 8");
            return Err(Error::shape("A and B", shape(), rule, "pad k with zeros, and the rows of B"));
        }
        // Numbers in the kernel have 32 bits.
        let power = most_k_power(self.operands());
        if b_rows > MOST_LENGTH || k > 1 << power {
            let rule = format!("n must be at most 2^30, k at most 2^{power}");
            return Err(Error::shape("A and B", shape(), rule, "split the product"));
        }
        Ok(())
    }
}

impl<'a> SmallMWeightsCall<'a> {
    /// Refuses rows of A that the kernels do not read.
    pub(crate) fn check_a_stride(a_stride: usize, k: usize) -> Result<()> {
        if a_stride >= k && a_stride.is_multiple_of(8) {
            return Ok(());
        }
        let found = format!("row stride {a_stride} for k = {k}");
        let rule = "must be no shorter than a row, and a multiple of 8";
        Err(Error::shape("A", found, rule, "pass the stride of its rows, or copy"))
    }

    /// Every length and alignment against what the kernel touches.
    fn check(&self) -> Result<()> {
        let Self { m, n, k, .. } = *self;
        let shape = || format!("m = {m}, n = {n}, k = {k}");
        let block = self.config.block();
        if !block.multiplies(m) {
            return Err(too_many_rows(block, shape()));
        }
        if self.outer.iter().flatten().any(|outer| outer.each == Each::Group) {
            return Err(no_groups());
        }
        // The grid has 31 bits.
        if block.tiles(n) * self.config.split() as usize >= 1 << 31 {
            return Err(Error::shape("A and B", shape(), "n must be at most 2^30", "split the product"));
        }
        self.check_memory(n, 1)
    }

    /// The product of some of its rows. What lies beyond an operand's end is cut off, for the checks to find.
    fn with_rows<T>(&self, rows: Range<usize>, then: impl FnOnce(&SmallMWeightsCall<'_>) -> T) -> T {
        let (first, m) = (rows.start, rows.len());
        let part = |span: &Span<'a>, cols: usize, stride: usize, dtype: DType| {
            span.slice(first * stride * dtype.bytes(), extent(m, cols, stride) * dtype.bytes())
        };
        let a = part(self.a, self.k, self.a_stride, self.a_type);
        let d = part(self.end.d, self.n, self.end.d_stride, self.end.d_type);
        let residual =
            self.end.residual.map(|(span, stride, dtype)| (part(span, self.n, stride, dtype), stride, dtype));
        let each = self.outer[0].filter(|outer| outer.each == Each::Row);
        let scales_of_a = each.map(|outer| outer.scales.slice(first * 4, m * 4));
        let end = SmallMEnd {
            d: &d,
            residual: residual.as_ref().map(|(span, stride, dtype)| (span, *stride, *dtype)),
            ..self.end
        };
        let of_a = scales_of_a.as_ref().map(|scales| OuterScales { scales, each: Each::Row }).or(self.outer[0]);
        then(&SmallMWeightsCall { m, a: &a, outer: [of_a, self.outer[1]], end, ..*self })
    }

    /// The same without how it is cut, of a B of so many rows, and of so many groups.
    pub(super) fn check_memory(&self, b_rows: usize, groups: usize) -> Result<()> {
        let Self { m, n, k, a_stride, weights, .. } = *self;
        weights.check_shape([m, n, k], b_rows)?;
        if !matches!(self.a_type, DType::Bf16 | DType::F16) {
            return Err(Error::dtype("A", self.a_type, "is not bf16 or f16", "convert it first"));
        }
        Self::check_a_stride(a_stride, k)?;
        check_bytes("A", self.a, extent(m, k, a_stride) * 2)?;
        check_aligned("A", self.a, 16)?;
        check_bytes("B", self.codes, weights.code_bytes(b_rows, k))?;
        check_aligned("B", self.codes, 16)?;
        let (_, bytes) = weights.scales(b_rows, k);
        match self.scales {
            Some(scales) => {
                check_bytes("scales of B in the sum", scales, bytes)?;
                // Those of 128x128 are copied one at a time, others 16 bytes.
                check_aligned(
                    "scales of B in the sum",
                    scales,
                    if weights == SmallMWeights::Fp8Tiles { 4 } else { 16 },
                )?;
            }
            None if bytes > 0 => {
                let rule = format!("{} weights have scales in the sum", weights.name());
                return Err(Error::shape("B", "no such scales", rule, "report it: a launch of this crate forgot them"));
            }
            None => {}
        }
        let of_groups = [groups, b_rows / n.max(1)];
        for (i, (name, rows)) in [("scales of A", m), ("scales of B", b_rows)].into_iter().enumerate() {
            let Some(OuterScales { scales, each }) = self.outer[i] else { continue };
            let count = match each {
                Each::All => 1,
                Each::Row => rows,
                Each::Group if weights.have_levels() => of_groups[i],
                Each::Group => return Err(no_groups()),
            };
            check_bytes(name, scales, count * 4)?;
            check_aligned(name, scales, 4)?;
        }
        self.end.check(m, n)
    }

    pub(super) fn problem(&self, place: &InChain, parts: Option<&Span<'_>>) -> Result<SmallMWeightsProblem> {
        let end = self.end.fields()?;
        let step = |outer: Option<OuterScales<'_>>| match outer.map(|outer| outer.each) {
            None | Some(Each::All) => 0,
            Some(Each::Row) => 1,
            Some(Each::Group) => EACH_GROUP,
        };
        Ok(SmallMWeightsProblem {
            m: self.m as u32,
            n: self.n as u32,
            k: self.k as u32,
            a_step: step(self.outer[0]),
            b_step: step(self.outer[1]),
            bias_type: end.bias_type,
            residual_type: end.residual_type,
            d_type: end.d_type,
            activation: end.activation,
            releases: place.releases,
            loads_early: place.ahead as u32,
            scale_pitch: self.weights.scales(self.n, self.k).0 as u32,
            split: place.config.split(),
            alpha: self.end.alpha,
            beta: self.end.beta,
            a: self.a.address,
            b: self.codes.address,
            scales: address(self.scales),
            scales_a: address(self.outer[0].map(|outer| outer.scales)),
            scales_b: address(self.outer[1].map(|outer| outer.scales)),
            bias: end.bias,
            residual: end.residual,
            d: end.d,
            parts: address(parts),
            stride_a: self.a_stride as u64,
            stride_residual: end.stride_residual,
            stride_d: end.stride_d,
        })
    }
}

impl Kernels {
    /// Enqueues one product, of more rows than the tiles of its configuration hold in passes. The order of sums depends on k and the configuration alone: equal rows of A have equal
    /// results, whatever stands beside them, and in whichever pass.
    pub(crate) fn small_m_weights_product(&self, stream: &Queue, call: &SmallMWeightsCall<'_>) -> Result<()> {
        call.check()?;
        if call.m == 0 || call.n == 0 {
            return Ok(());
        }
        // Before the first pass: where one cannot be launched, none is.
        let here = self.on_hopper().then_some(self.sm_count);
        Wgmma::check_split(call.config, call.weights.code_order(), [call.m, call.n, call.k], here)?;
        let most = call.config.block().most_rows();
        if call.m <= most {
            return self.small_m_weights_pass(stream, call);
        }
        (0..call.m).step_by(most).try_for_each(|first| {
            call.with_rows(first..call.m.min(first + most), |pass| self.small_m_weights_pass(stream, pass))
        })
    }

    fn small_m_weights_pass(&self, stream: &Queue, call: &SmallMWeightsCall<'_>) -> Result<()> {
        let (mnk, all) = ([call.m, call.n, call.k], [call.codes, call.scales.unwrap_or(call.codes)]);
        let (codes, here) = (call.weights.code_order(), self.on_hopper());
        // Asked for in chains alone.
        let mut linked = None;
        let as_link = || {
            linked = OneRow::link_of(call.config, codes, mnk, self.sm_count).filter(|_| here);
            linked.map_or_else(|| call.config.in_chain(codes, mnk, self.sm_count), |one| Some(one.place(self.sm_count)))
        };
        let place = match call.a_is_made {
            true => InChain::alone(call.config),
            false => self.in_chain(stream, call.config, &all, as_link),
        };
        let (block, split, serves) = (place.config.block(), place.config.split(), (call.weights, call.a_type));
        let kernels = self.small_m_weights(stream)?;
        let one_row =
            if place.link { linked } else { OneRow::of(call.config, codes, mnk, self.sm_count).filter(|_| here) };
        if let Some(one) = one_row {
            return self.small_m_one_row(stream, call, &place, one);
        }
        if self.small_m_wgmma_pass(stream, call, &place)? {
            return self.enqueued(stream, &place, &call.end);
        }
        let tokens = block.tokens(call.m);
        let kernels = if place.deep { &kernels.of_links } else { &kernels.all };
        let found = kernels.iter().find(|k| (k.block, k.tokens, k.serves) == (block, tokens, serves));
        let SmallMWeightsKernel { kernel, shared, .. } = *found.ok_or_else(|| no_such_kernel(block, serves))?;
        let clusters = kernel.has_clusters();
        call.check_parts(clusters)?;
        let grid = Blocks::new((block.tiles(call.n) * split as usize, 1), block.threads());
        let grid = grid.clusters(if clusters { split } else { 1 }).shared(shared);
        // Other configurations of the plan may be what the memory is for.
        let parts = call.scratch.filter(|_| !clusters && split > 1);
        let problem = call.problem(&place, parts)?;
        enqueue!(stream, kernel, grid, problem)?;
        if !clusters && split > 1 {
            self.join_parts(stream, call, problem)?;
        }
        self.enqueued(stream, &place, &call.end)
    }
}

fn no_groups() -> Error {
    Error::unsupported(
        "an outer scale for each group of this product",
        "its kernel reads none",
        "report it: a launch of this crate asked for it",
    )
}

pub(super) fn no_such_kernel(block: SmallMBlock, (weights, a_type): (SmallMWeights, DType)) -> Error {
    if block.operands() != weights.operands() {
        return no_such_block(block, weights.operands());
    }
    let rule = format!("is not multiplied by {} weights in the small-m product", weights.name());
    Error::dtype("A", a_type, rule, "take bf16, or another formulation")
}

#[cfg(test)]
mod tests;
