//! Launches of `kernels/gemm/small_m_fp8.cu`: products of few rows on Hopper, of E4M3 codes with scales of blocks, rows or whole matrices.

use serde::{Deserialize, Serialize};

use super::Kernels;
use super::epilogue::{activation_code, wide_code};
use super::launch::{Blocks, Kernel, enqueue};
use super::module::Modules;
use super::operand::{address, check_aligned, check_bytes, extent};
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::format::layout::ScaleLayout;
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Rows of B that a block multiplies: those of the tensor core's operand.
const ROWS_OF_B: usize = 64;

/// Columns of the tensor core's product, which hold the rows of A.
const TOKENS: [usize; 3] = [8, 16, 32];

/// The most rows of A that the kernels take.
pub(crate) const MOST_ROWS: usize = TOKENS[TOKENS.len() - 1];
/// Of n, and of k.
pub(crate) const MOST_LENGTH: usize = 1 << 30;

/// How a block of the `small-m` product is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SmallMBlock {
    /// One warpgroup, which takes 128 of k at a time: four blocks on a multiprocessor, three from 17 rows of A on.
    One,
    /// One warpgroup, 256 of k at a time.
    OneDeep,
    /// Two warpgroups, each with a half of the block's part of k, 128 at a time.
    Two,
}

named!(SmallMBlock, "block of the small-m product", One => "one", OneDeep => "one-deep", Two => "two");

/// What a launch must know of a block. Mirror of the table in `kernels/gemm/small_m_fp8.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    warpgroups: usize,
    /// Times 128 of k, a stage of the ring.
    steps: usize,
    stages: usize,
}

impl SmallMBlock {
    fn shape(self) -> Shape {
        match self {
            Self::One => Shape { warpgroups: 1, steps: 1, stages: 4 },
            Self::OneDeep => Shape { warpgroups: 1, steps: 2, stages: 3 },
            Self::Two => Shape { warpgroups: 2, steps: 1, stages: 5 },
        }
    }

    /// Parts of k in a block.
    pub(crate) fn warpgroups(self) -> usize {
        self.shape().warpgroups
    }

    /// Dynamic shared memory in bytes: rings of B, A and scales, the sums of 64 rows that arrive, a barrier. Mirror of `SmallMConfig` in
    /// `kernels/gemm/small_m.cuh`.
    fn shared(self, tokens: usize) -> usize {
        let Shape { warpgroups, steps, stages } = self.shape();
        let step = (ROWS_OF_B + tokens) * 128 + tokens * 4 + 16;
        1024 + warpgroups * (stages * steps * step + ROWS_OF_B * tokens * 4) + 16
    }

    /// Blocks on a multiprocessor, of 228 KiB of which each block takes one more; four at the most, as they were measured.
    pub(crate) fn residents(self, m: usize) -> usize {
        ((228 << 10) / (self.shared(tokens(m)) + 1024)).min(4)
    }

    fn kernel(self, blocks: bool, tokens: usize) -> String {
        let scales = if blocks { "block" } else { "outer" };
        format!("gemm_small_m_{scales}_{tokens}_{}", self.name().replace('-', "_"))
    }
}

/// A configuration of the `small-m` product: a block, and into how many parts a cluster of blocks splits k. The parts whose sums are added in the order
/// of k are the split times the warpgroups of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "SmallMConfigFile", into = "SmallMConfigFile")]
pub struct SmallMConfig {
    block: SmallMBlock,
    split: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SmallMConfigFile {
    block: SmallMBlock,
    split: u32,
}

impl From<SmallMConfig> for SmallMConfigFile {
    fn from(SmallMConfig { block, split }: SmallMConfig) -> Self {
        Self { block, split }
    }
}

impl TryFrom<SmallMConfigFile> for SmallMConfig {
    type Error = Error;

    fn try_from(file: SmallMConfigFile) -> Result<Self> {
        Self::new(file.block, file.split)
    }
}

impl SmallMConfig {
    /// The splits of k that there are: blocks of a cluster.
    pub const SPLITS: [u32; 4] = [1, 2, 4, 8];

    /// A block, and into how many parts k is split.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless `split` is one of [`SmallMConfig::SPLITS`].
    pub fn new(block: SmallMBlock, split: u32) -> Result<Self> {
        if !Self::SPLITS.contains(&split) {
            return Err(Error::unsupported(
                format!("a small-m product that splits k into {split}"),
                "a cluster has 1, 2, 4 or 8 blocks",
                "choose one of them, or tune anew",
            ));
        }
        Ok(Self { block, split })
    }

    /// Every configuration.
    pub fn all() -> impl Iterator<Item = Self> {
        SmallMBlock::ALL.into_iter().flat_map(|block| Self::SPLITS.map(|split| Self { block, split }))
    }

    /// The block.
    pub fn block(self) -> SmallMBlock {
        self.block
    }

    /// Blocks of a cluster, each with a part of k.
    pub fn split(self) -> u32 {
        self.split
    }
}

impl std::fmt::Display for SmallMConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, k split by {}", self.block, self.split)
    }
}

/// Columns of the product that holds m rows.
fn tokens(m: usize) -> usize {
    TOKENS.into_iter().find(|tokens| m <= *tokens).unwrap_or(MOST_ROWS)
}

/// Rows of B, in tiles of a block.
pub(crate) fn tiles(n: usize) -> usize {
    n.div_ceil(ROWS_OF_B)
}

/// The kernels of the family.
pub(super) struct SmallMKernels {
    /// With scales of blocks, then of rows and matrices; by tokens, then in the order of [`SmallMBlock::ALL`].
    kernels: Vec<Kernel>,
}

impl SmallMKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/small_m_fp8")?;
        let mut kernels = Vec::new();
        for blocks in [true, false] {
            for tokens in TOKENS {
                for block in SmallMBlock::ALL {
                    let (name, shared) = (block.kernel(blocks, tokens), block.shared(tokens) as u32);
                    kernels.push(file.kernel_with_shared(&name, shared)?);
                }
            }
        }
        Ok(Self { kernels })
    }

    fn of_call(&self, blocks: bool, tokens: usize, block: SmallMBlock) -> Kernel {
        let place = |found: Option<usize>| found.unwrap_or(0);
        let row = usize::from(!blocks) * TOKENS.len() + place(TOKENS.iter().position(|t| *t == tokens));
        self.kernels[row * SmallMBlock::ALL.len() + place(SmallMBlock::ALL.iter().position(|b| *b == block))]
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
        let outer = |layout| match layout {
            ScaleLayout::Outer => Some(true),
            ScaleLayout::Scalar => Some(false),
            _ => None,
        };
        match (a, b) {
            (ScaleLayout::Vec128, ScaleLayout::Blk128) => Some(Self::Blocks),
            _ => Some(Self::Outer { each: [outer(a)?, outer(b)?] }),
        }
    }
}

/// One product: `D = residual + activation(alpha * A B^T + beta * D + bias)`, operation by operation as [`Epilogue`](crate::Epilogue) says.
pub(crate) struct SmallMCall<'a> {
    pub(crate) config: SmallMConfig,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// E4M3 `[m][k]`, `[n][k]`.
    pub(crate) codes: [&'a Span<'a>; 2],
    pub(crate) scales: [&'a Span<'a>; 2],
    pub(crate) layout: SmallMScales,
    pub(crate) alpha: f32,
    /// 0: D is not read. Else it is FP32.
    pub(crate) beta: f32,
    /// `[n]`.
    pub(crate) bias: Option<(&'a Span<'a>, DType)>,
    pub(crate) activation: Activation,
    /// `[m][n]`, its row stride and type.
    pub(crate) residual: Option<(&'a Span<'a>, usize, DType)>,
    /// `[m][n]` of `d_type`: BF16, F16 or F32.
    pub(crate) d: &'a Span<'a>,
    pub(crate) d_stride: usize,
    pub(crate) d_type: DType,
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
    /// Every length and alignment against what the kernel touches.
    fn check(&self) -> Result<()> {
        let Self { m, n, k, .. } = *self;
        let shape = || format!("m = {m}, n = {n}, k = {k}");
        if m > MOST_ROWS {
            let rule = format!("m must be at most {MOST_ROWS}");
            return Err(Error::shape("A", shape(), rule, "use another formulation"));
        }
        if k == 0 || !k.is_multiple_of(16) || !n.is_multiple_of(8) {
            let rule = "k must be a multiple of 16 above 0, n a multiple of 8";
            return Err(Error::shape("A and B", shape(), rule, "pad k with zeros, and the rows of B"));
        }
        // Numbers in the kernel have 32 bits, also one tile or stage past the end; the grid has 31.
        if n > MOST_LENGTH || k > MOST_LENGTH || tiles(n) * self.config.split as usize >= 1 << 31 {
            return Err(Error::shape("A and B", shape(), "n and k must be at most 2^30", "split the product"));
        }
        let blocks = k.div_ceil(128);
        let lens = match self.layout {
            SmallMScales::Blocks => {
                [ScaleLayout::Vec128.len(m, blocks), ScaleLayout::Blk128.len(n.div_ceil(128), blocks)]
            }
            SmallMScales::Outer { each } => [if each[0] { m } else { 1 }, if each[1] { n } else { 1 }],
        };
        // A's scales of blocks are copied 16 bytes at a time.
        let alignments = [if self.layout == SmallMScales::Blocks { 16 } else { 4 }, 4];
        for (i, (names, rows)) in [(["A", "scales of A"], m), (["B", "scales of B"], n)].into_iter().enumerate() {
            check_bytes(names[0], self.codes[i], rows * k)?;
            check_aligned(names[0], self.codes[i], 16)?;
            check_bytes(names[1], self.scales[i], lens[i] * 4)?;
            check_aligned(names[1], self.scales[i], alignments[i])?;
        }
        wide_code(self.d_type)?;
        let matrix = |name: &str, span: &Span<'_>, stride: usize, dtype: DType| {
            if stride < n {
                let found = format!("row stride {stride} for n = {n}");
                return Err(Error::shape(name, found, "must be no shorter than a row", "pass the stride of its rows"));
            }
            check_bytes(name, span, extent(m, n, stride) * dtype.bytes())?;
            check_aligned(name, span, dtype.bytes() as u64)
        };
        matrix("D", self.d, self.d_stride, self.d_type)?;
        self.residual.map_or(Ok(()), |(span, stride, dtype)| matrix("residual", span, stride, dtype))?;
        if self.beta != 0.0 && self.d_type != DType::F32 {
            return Err(Error::dtype("D", self.d_type, "is not f32, which beta is for", "accumulate into f32"));
        }
        self.bias.map_or(Ok(()), |(span, dtype)| {
            check_bytes("bias", span, n * dtype.bytes())?;
            check_aligned("bias", span, dtype.bytes() as u64)
        })
    }

    fn problem(&self) -> Result<SmallMProblem> {
        let each = match self.layout {
            SmallMScales::Blocks => [false; 2],
            SmallMScales::Outer { each } => each,
        };
        Ok(SmallMProblem {
            m: self.m as u32,
            n: self.n as u32,
            k: self.k as u32,
            b_step: u32::from(each[1]),
            a_step: u32::from(each[0]),
            pitch_a: self.m.next_multiple_of(4) as u32,
            pitch_b: self.k.div_ceil(128).next_multiple_of(4) as u32,
            bias_type: self.bias.map_or(Ok(0), |bias| wide_code(bias.1))?,
            residual_type: self.residual.map_or(Ok(0), |residual| wide_code(residual.2))?,
            d_type: wide_code(self.d_type)?,
            activation: activation_code(self.activation),
            alpha: self.alpha,
            beta: self.beta,
            a: self.codes[0].address,
            b: self.codes[1].address,
            scales_a: self.scales[0].address,
            scales_b: self.scales[1].address,
            bias: address(self.bias.map(|bias| bias.0)),
            residual: address(self.residual.map(|residual| residual.0)),
            d: self.d.address,
            stride_residual: self.residual.map_or(0, |residual| residual.1) as u64,
            stride_d: self.d_stride as u64,
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
        let (SmallMConfig { block, split }, tokens) = (call.config, tokens(call.m));
        let kernel = self.small_m(stream)?.of_call(call.layout == SmallMScales::Blocks, tokens, block);
        let grid = (tiles(call.n) * split as usize, 1);
        let threads = 128 * block.warpgroups() as u32;
        let blocks = Blocks::new(grid, threads).clusters(split).shared(block.shared(tokens) as u32);
        enqueue!(stream, kernel, blocks, call.problem()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = include_str!("../../../kernels/gemm/small_m_fp8.cu");

    #[test]
    fn the_kernels_are_those_of_the_table() {
        let rows: Vec<_> = SOURCE
            .lines()
            .filter_map(|line| line.strip_prefix("SMALL_M(")?.strip_suffix(')'))
            .map(|row| row.split(", ").map(str::to_string).collect::<Vec<_>>())
            .collect();
        let ours: Vec<_> = SmallMBlock::ALL
            .into_iter()
            .map(|block| {
                let Shape { warpgroups, steps, stages } = block.shape();
                let name = block.name().replace('-', "_");
                vec![name, warpgroups.to_string(), steps.to_string(), stages.to_string()]
            })
            .collect();
        assert_eq!(rows, ours);
        for (blocks, scales) in [(true, "block"), (false, "outer")] {
            for tokens in TOKENS {
                let row = format!("SMALL_M_KERNEL({scales}, {blocks}, {tokens}, __VA_ARGS__)");
                assert!(SOURCE.contains(&row), "{row}");
            }
        }
        assert_eq!(SOURCE.matches("__VA_ARGS__)").count(), 2 * TOKENS.len());
    }

    #[test]
    fn blocks_fit_a_multiprocessor() {
        let residents = |block: SmallMBlock| [1, 16, 32].map(|m| block.residents(m));
        assert_eq!(residents(SmallMBlock::One), [4, 4, 3]);
        assert_eq!(residents(SmallMBlock::OneDeep), [3, 3, 2]);
        assert_eq!(residents(SmallMBlock::Two), [2, 2, 1]);
        assert!(SmallMBlock::ALL.into_iter().all(|block| block.shared(MOST_ROWS) <= 227 << 10));
        assert_eq!([1, 8, 9, 16, 17, 32].map(tokens), [8, 8, 16, 16, 32, 32]);
    }

    #[test]
    fn configurations_of_a_file_are_checked() {
        let read = |text: &str| serde_json::from_str::<SmallMConfig>(text).map_err(|e| e.to_string());
        for config in SmallMConfig::all() {
            assert_eq!(read(&serde_json::to_string(&config).unwrap()), Ok(config));
        }
        assert_eq!(SmallMConfig::all().count(), 12);
        assert!(read(r#"{"block":"one","split":3}"#).unwrap_err().contains("splits k into 3"));
        assert!(read(r#"{"block":"three","split":2}"#).is_err() && read(r#"{"block":"one"}"#).is_err());
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
            config: SmallMConfig { block: SmallMBlock::One, split: 2 },
            m,
            n,
            k,
            codes: [&spans[0], &spans[1]],
            scales: [&spans[2], &spans[3]],
            layout,
            alpha: 1.0,
            beta: 0.5,
            bias: Some((&spans[4], DType::F32)),
            activation: Activation::None,
            residual: Some((&spans[5], d_stride, DType::Bf16)),
            d: &spans[6],
            d_stride,
            d_type: DType::F32,
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
