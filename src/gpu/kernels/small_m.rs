//! Launches of `kernels/gemm/small_m_fp8.cu`: products of few rows on Hopper, of E4M3 codes with scales of blocks, rows or whole matrices; those of two
//! matrices side by side are in `small_m_gated.cu`.

use super::Kernels;
use super::launch::{Blocks, Kernel, enqueue, seal};
use super::module::Modules;
use super::operand::{check_aligned, check_bytes};
use super::sm90_call::Sm90Scales;
use super::small_m_chain::AsLink;
use super::small_m_config::{SmallMBlock, SmallMConfig, SmallMOperands, most_rows, no_such_block};
use super::small_m_end::{MOST_LENGTH, SmallMEnd};
use crate::error::{Error, Result};
use crate::format::CodeOrder;
use crate::format::layout::ScaleLayout;
use crate::gpu::device::chain::{Beside, Follows, Seal};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

pub(super) fn name(block: SmallMBlock, blocks: bool, tokens: usize) -> String {
    let scales = if blocks { "block" } else { "outer" };
    format!("gemm_small_m_{scales}_{tokens}_{}", block.name().replace('-', "_"))
}

/// The kernels of the file.
pub(super) struct SmallMKernels {
    all: Vec<SmallMKernel>,
    /// Of products of all weights.
    end_of_chain: Kernel,
}

pub(super) struct SmallMKernel {
    pub(super) block: SmallMBlock,
    pub(super) tokens: usize,
    /// With scales of blocks, else of rows and matrices.
    pub(super) blocks: bool,
    pub(super) kernel: Kernel,
}

impl SmallMKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/small_m_fp8")?;
        let mut kernels = Vec::new();
        for block in SmallMBlock::of(SmallMOperands::Fp8) {
            for (&tokens, blocks) in block.widths().iter().flat_map(|tokens| [(tokens, true), (tokens, false)]) {
                let kernel = file.kernel_with_shared(&name(block, blocks, tokens), block.shared(tokens))?;
                kernels.push(SmallMKernel { block, tokens, blocks, kernel });
            }
        }
        Ok(Self { all: kernels, end_of_chain: file.kernel("gemm_small_m_end_of_chain")? })
    }
}

/// How the scales of both operands lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SmallMScales {
    /// A's [`ScaleLayout::Vec128`], B's [`ScaleLayout::Blk128`].
    Blocks,
    /// Of A, then of B: one for each row, or one for the matrix.
    Outer { each: [bool; 2] },
}

impl SmallMScales {
    /// Of these layouts, if the kernels read them.
    pub(crate) fn of(a: ScaleLayout, b: ScaleLayout) -> Option<Self> {
        match Sm90Scales::of(a, b)? {
            Sm90Scales::Blocks => Some(Self::Blocks),
            Sm90Scales::Outer { each } => Some(Self::Outer { each }),
            Sm90Scales::Vectors | Sm90Scales::BlocksOfA => None,
        }
    }
}

/// One product, the sum being `A B^T`.
pub(crate) struct SmallMCall<'a> {
    pub(crate) config: SmallMConfig,
    /// B has two matrices, G and U, of n rows, one behind the other, and `D = activation(alpha * A G^T) ∘ (alpha * A U^T)`, with scales of blocks.
    pub(crate) gated: bool,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// E4M3 `[m][k]`, `[n][k]` (gated: twice as many rows).
    pub(crate) codes: [&'a Span<'a>; 2],
    pub(crate) scales: [&'a Span<'a>; 2],
    pub(crate) layout: SmallMScales,
    pub(crate) end: SmallMEnd<'a>,
}

/// Mirror of `SmallMProblem` in `kernels/gemm/small_m.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SmallMProblem {
    m: u32,
    n: u32,
    k: u32,
    b_step: u32,
    a_step: u32,
    pitch_a: u32,
    pitch_b: u32,
    bias_type: u32,
    residual_type: u32,
    d_type: u32,
    activation: u32,
    releases: u32,
    loads_early: u32,
    alpha: f32,
    beta: f32,
    a: u64,
    b: u64,
    scales_a: u64,
    scales_b: u64,
    bias: u64,
    residual: u64,
    d: u64,
    stride_residual: u64,
    stride_d: u64,
}

impl SmallMCall<'_> {
    /// Rows of B.
    fn b_rows(&self) -> usize {
        self.n.saturating_mul(if self.gated { 2 } else { 1 })
    }

    /// Every length and alignment against what the kernel touches.
    fn check(&self) -> Result<()> {
        let Self { m, n, k, .. } = *self;
        let shape = || format!("m = {m}, n = {n}, k = {k}");
        if m > most_rows(SmallMOperands::Fp8) {
            let rule = format!("m must be at most {}", most_rows(SmallMOperands::Fp8));
            return Err(Error::shape("A", shape(), rule, "use another formulation"));
        }
        if k == 0 || !k.is_multiple_of(16) || !n.is_multiple_of(8) {
            let rule = "k must be a multiple of 16 above 0, n a multiple of 8";
            return Err(Error::shape("A and B", shape(), rule, "pad k with zeros, and the rows of B"));
        }
        // Numbers in the kernel have 32 bits, also one tile or stage past the end; the grid has 31.
        let b_rows = self.b_rows();
        if b_rows > MOST_LENGTH
            || k > MOST_LENGTH
            || self.config.block().tiles(b_rows) * self.config.split() as usize >= 1 << 31
        {
            return Err(Error::shape("A and B", shape(), "n and k must be at most 2^30", "split the product"));
        }
        let end = &self.end;
        let more = end.beta != 0.0 || end.bias.is_some() || end.residual.is_some();
        if self.gated && (!n.is_multiple_of(128) || self.layout != SmallMScales::Blocks || more) {
            let rule = "two matrices need n of a multiple of 128 and scales of blocks, and have neither beta, bias nor residual";
            return Err(Error::shape("B", shape(), rule, "report it: a launch of this crate asked for it"));
        }
        let blocks = k.div_ceil(128);
        let lens = match self.layout {
            SmallMScales::Blocks => {
                [ScaleLayout::Vec128.len(m, blocks), ScaleLayout::Blk128.len(b_rows.div_ceil(128), blocks)]
            }
            SmallMScales::Outer { each } => [if each[0] { m } else { 1 }, if each[1] { n } else { 1 }],
        };
        // A's scales of blocks are copied 16 bytes at a time.
        let alignments = [if self.layout == SmallMScales::Blocks { 16 } else { 4 }, 4];
        for (i, (names, rows)) in [(["A", "scales of A"], m), (["B", "scales of B"], b_rows)].into_iter().enumerate() {
            check_bytes(names[0], self.codes[i], rows * k)?;
            check_aligned(names[0], self.codes[i], 16)?;
            check_bytes(names[1], self.scales[i], lens[i] * 4)?;
            check_aligned(names[1], self.scales[i], alignments[i])?;
        }
        self.end.check(m, n)
    }

    fn problem(&self, place: &InChain) -> Result<SmallMProblem> {
        let each = match self.layout {
            SmallMScales::Blocks => [false; 2],
            SmallMScales::Outer { each } => each,
        };
        let end = self.end.fields()?;
        Ok(SmallMProblem {
            m: self.m as u32,
            n: self.n as u32,
            k: self.k as u32,
            b_step: u32::from(each[1]),
            a_step: u32::from(each[0]),
            pitch_a: self.m.next_multiple_of(4) as u32,
            pitch_b: self.k.div_ceil(128).next_multiple_of(4) as u32,
            bias_type: end.bias_type,
            residual_type: end.residual_type,
            d_type: end.d_type,
            activation: end.activation,
            releases: place.releases,
            loads_early: place.ahead as u32,
            alpha: self.end.alpha,
            beta: self.end.beta,
            a: self.codes[0].address,
            b: self.codes[1].address,
            scales_a: self.scales[0].address,
            scales_b: self.scales[1].address,
            bias: end.bias,
            residual: end.residual,
            d: end.d,
            stride_residual: end.stride_residual,
            stride_d: end.stride_d,
        })
    }
}

impl Kernels {
    /// Enqueues one product. The order of sums depends on k and the configuration alone: equal rows of A have equal results, whatever stands
    /// beside them.
    pub(crate) fn small_m_product(&self, stream: &Queue, call: &SmallMCall<'_>) -> Result<()> {
        call.check()?;
        if call.m == 0 || call.n == 0 {
            return Ok(());
        }
        let mnk = [call.m, call.b_rows(), call.k];
        let as_link = || call.config.in_chain(CodeOrder::Published, mnk, self.sm_count);
        let place = self.in_chain(stream, call.config, &[call.codes[1], call.scales[1]], as_link);
        let (block, split) = (place.config.block(), place.config.split());
        let (tokens, blocks) = (block.tokens(call.m), call.layout == SmallMScales::Blocks);
        let family = self.small_m(stream)?;
        let kernels = if call.gated { &family.1.all } else { &family.0.all };
        let found = kernels.iter().find(|k| (k.block, k.tokens, k.blocks) == (block, tokens, blocks));
        let kernel = found.ok_or_else(|| no_such_block(block, SmallMOperands::Fp8))?.kernel;
        let grid = Blocks::new((block.tiles(call.b_rows()) * split as usize, 1), block.threads());
        enqueue!(stream, kernel, grid.clusters(split).shared(block.shared(tokens)), call.problem(&place)?)?;
        self.enqueued(stream, &place, &call.end)
    }

    /// How the next product is enqueued: as a link, if it is in the scope of a chain, as what is called then says, as [`SmallMConfig::in_chain`] does. `weights`: all that it would load before its wait.
    pub(super) fn in_chain(
        &self,
        stream: &Queue,
        config: SmallMConfig,
        weights: &[&Span<'_>],
        as_link: impl FnOnce() -> Option<AsLink>,
    ) -> InChain {
        // What ends a chain is sm_90's: elsewhere nothing releases early.
        let follows = self.end_of_chain().and_then(|_| stream.link(weights));
        let link = follows.and_then(|follows| Some((follows, as_link()?)));
        match link {
            Some((Follows { loads_early, .. }, AsLink { config, releases, deep, paced })) => {
                tracing::trace!(loads_early, releases, deep, paced, %config, "link of a chain");
                let ahead = match (loads_early, paced) {
                    (false, _) => Ahead::Nothing,
                    (true, false) => Ahead::AtOnce,
                    (true, true) => Ahead::InTurn,
                };
                InChain { config, releases, ahead, deep, link: true }
            }
            None => InChain::alone(config),
        }
    }

    /// After its launch.
    pub(super) fn enqueued(&self, stream: &Queue, place: &InChain, end: &SmallMEnd<'_>) -> Result<()> {
        if place.link {
            let seal = self.end_of_chain().filter(|_| place.releases > 0);
            stream.linked(&[end.d], Beside::Nothing, seal);
        }
        Ok(())
    }

    /// What ends a chain; `None` before products of few rows are loaded.
    pub(super) fn end_of_chain(&self) -> Option<Seal> {
        self.small_m.get().map(|family| seal(family.0.end_of_chain))
    }
}

/// How a product is enqueued.
pub(super) struct InChain {
    pub(super) config: SmallMConfig,
    /// With so many stages left; 0: not before its end.
    pub(super) releases: u32,
    pub(super) ahead: Ahead,
    /// By a kernel of links ([`AsLink::deep`]).
    pub(super) deep: bool,
    pub(super) link: bool,
}

/// The weights that a product asks for before its wait, as `loads_early` of the problems has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    Nothing,
    AtOnce,
    InTurn,
}

impl InChain {
    /// As outside of chains.
    pub(super) fn alone(config: SmallMConfig) -> Self {
        Self { config, releases: 0, ahead: Ahead::Nothing, deep: false, link: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Activation;
    use crate::format::DType;
    use crate::gpu::kernels::operand::extent;
    use crate::gpu::kernels::small_m_config::Shape;

    const SOURCE: &str = include_str!("../../../kernels/gemm/small_m_fp8.cu");

    #[test]
    fn the_kernels_are_those_of_the_table() {
        let rows: Vec<_> = SOURCE
            .lines()
            .filter_map(|line| line.strip_prefix("SMALL_M(")?.strip_suffix(')'))
            .map(|row| row.split(", ").map(str::to_string).collect::<Vec<_>>())
            .collect();
        let of = |block: SmallMBlock| match block.shape() {
            Shape::E4m3 { warpgroups, steps, stages: [few, more] } => {
                let name = block.name().replace('-', "_");
                let numbers = [warpgroups, steps, few, more].map(|number| number.to_string());
                Some([name].into_iter().chain(numbers).collect::<Vec<_>>())
            }
            Shape::E2m1 { .. } | Shape::Tile { .. } => None,
        };
        assert_eq!(rows, SmallMBlock::ALL.into_iter().filter_map(of).collect::<Vec<_>>());
        let widths = SmallMBlock::One.widths();
        for (blocks, scales) in [(true, "block"), (false, "outer")] {
            for tokens in widths {
                let row = format!("SMALL_M_KERNEL({scales}, {blocks}, {tokens}, __VA_ARGS__)");
                assert!(SOURCE.contains(&row), "{row}");
            }
        }
        assert_eq!(SOURCE.matches("__VA_ARGS__)").count(), 2 * widths.len());
    }

    fn span(bytes: usize) -> Span<'static> {
        Span::unguarded(0x7F00_0000_0000, bytes)
    }

    /// What is wrong with a call whose operands are as long as it needs, and so many bytes longer.
    fn check(
        [m, n, k]: [usize; 3],
        layout: SmallMScales,
        d_stride: usize,
        more: [isize; 7],
        places: [u64; 7],
    ) -> String {
        let scales = match layout {
            SmallMScales::Blocks => {
                [m.next_multiple_of(4) * k.div_ceil(128), n.div_ceil(128) * k.div_ceil(128).next_multiple_of(4)]
            }
            SmallMScales::Outer { each } => [if each[0] { m } else { 1 }, if each[1] { n } else { 1 }],
        };
        let d = extent(m, n, d_stride);
        let exact = [m * k, n * k, scales[0] * 4, scales[1] * 4, n * 4, d * 2, d * 4];
        let mut spans: Vec<_> =
            exact.iter().zip(more).map(|(bytes, more)| span((*bytes as isize + more) as usize)).collect();
        spans.iter_mut().zip(places).for_each(|(span, place)| span.address += place);
        let call = SmallMCall {
            config: SmallMConfig::new(SmallMBlock::One, 2).unwrap(),
            gated: false,
            m,
            n,
            k,
            codes: [&spans[0], &spans[1]],
            scales: [&spans[2], &spans[3]],
            layout,
            end: SmallMEnd {
                alpha: 1.0,
                beta: 0.5,
                bias: Some((&spans[4], DType::F32)),
                activation: Activation::None,
                residual: Some((&spans[5], d_stride, DType::Bf16)),
                d: &spans[6],
                d_stride,
                d_type: DType::F32,
            },
        };
        call.check().err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn every_length_and_place_is_checked() {
        let outer = |a, b| SmallMScales::Outer { each: [a, b] };
        let names = ["A", "B", "scales of A", "scales of B", "bias", "residual", "D"];
        for layout in [SmallMScales::Blocks, outer(true, true), outer(false, false)] {
            for shape in [[1, 8, 16], [7, 136, 400], [32, 64, 128]] {
                let stride = shape[1] + 4;
                assert_eq!(check(shape, layout, stride, [0; 7], [0; 7]), "");
                for (i, name) in names.into_iter().enumerate() {
                    let (mut more, mut places) = ([0; 7], [0; 7]);
                    more[i] = -1;
                    let why = check(shape, layout, stride, more, [0; 7]);
                    assert!(why.contains(name), "{name}: {why}");
                    // An address of half the alignment is refused, one of it taken.
                    let required = match name {
                        "A" | "B" => 16,
                        "scales of A" if layout == SmallMScales::Blocks => 16,
                        "residual" => 2,
                        _ => 4,
                    };
                    places[i] = required / 2;
                    let why = check(shape, layout, stride, [0; 7], places);
                    let rule = format!("{required}-byte aligned");
                    assert!(why.contains(&format!("{name}: address")) && why.contains(&rule), "{name}: {why}");
                    places[i] = required;
                    assert_eq!(check(shape, layout, stride, [0; 7], places), "", "{name}");
                }
            }
        }
        let why = |shape, stride| check(shape, outer(true, true), stride, [0; 7], [0; 7]);
        assert!(why([33, 64, 128], 64).contains("m must be at most 32"));
        assert!(why([1, 12, 128], 12).contains("n a multiple of 8") && why([1, 8, 8], 8).contains("multiple of 16"));
        assert!(why([2, 64, 128], 63).contains("no shorter than a row"));
        assert!(why([1, (1 << 30) + 8, 16], (1 << 30) + 8).contains("at most 2^30"));
    }

    #[test]
    fn layouts_that_are_read() {
        use ScaleLayout::{Blk128, Outer, Scalar, Vec128};
        let of = |a, b| SmallMScales::of(a, b);
        assert_eq!(of(Vec128, Blk128), Some(SmallMScales::Blocks));
        assert_eq!(of(Outer, Scalar), Some(SmallMScales::Outer { each: [true, false] }));
        assert_eq!([of(Vec128, Vec128), of(Blk128, Vec128), of(Scalar, Blk128)], [None; 3]);
    }
}
