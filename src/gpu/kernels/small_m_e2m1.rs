//! Launches of `kernels/gemm/small_m_e2m1.cu`: products of few rows of BF16 or F16 numbers on Hopper, with E2M1 codes and block scales.

use super::Kernels;
use super::launch::{Blocks, Kernel, enqueue};
use super::module::Modules;
use super::operand::{address, check_aligned, check_bytes, extent};
use super::small_m::InChain;
use super::small_m_config::{SmallMBlock, SmallMConfig, no_such_block, too_many_rows};
use super::small_m_end::{MOST_LENGTH, SmallMEnd};
use crate::error::{Error, Result};
use crate::format::{BlockScaleFormat, CodeFormat, DType};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// k is a multiple of this: rows of codes are read 16 bytes at a time.
pub(crate) const E2M1_K_MULTIPLE: usize = 32;
/// Of k: the bytes from one row of codes to another of its tile have 32 bits.
pub(crate) const E2M1_MOST_K: usize = 1 << 26;

/// Block scales and type of A of the kernels that there are: F16 does not hold what E8M0 scales reach.
const SERVED: [(BlockScaleFormat, DType); 3] = [
    (BlockScaleFormat::Ue4m3, DType::Bf16),
    (BlockScaleFormat::Ue4m3, DType::F16),
    (BlockScaleFormat::Ue8m0, DType::Bf16),
];

fn name(block: SmallMBlock, tokens: usize, (scales, a_type): (BlockScaleFormat, DType)) -> String {
    let scales = match scales {
        BlockScaleFormat::Ue4m3 => "nvfp4",
        BlockScaleFormat::Ue8m0 => "mxfp4",
    };
    format!("gemm_small_m_{scales}_{a_type}_{tokens}_{block}")
}

/// The kernels of the file.
pub(super) struct SmallME2m1Kernels(Vec<SmallME2m1Kernel>);

struct SmallME2m1Kernel {
    block: SmallMBlock,
    tokens: usize,
    serves: (BlockScaleFormat, DType),
    kernel: Kernel,
}

impl SmallME2m1Kernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/small_m_e2m1")?;
        let mut kernels = Vec::new();
        for block in SmallMBlock::of(CodeFormat::E2M1) {
            for (&tokens, serves) in block.widths().iter().flat_map(|tokens| SERVED.map(|serves| (tokens, serves))) {
                let kernel = file.kernel_with_shared(&name(block, tokens, serves), block.shared(tokens))?;
                kernels.push(SmallME2m1Kernel { block, tokens, serves, kernel });
            }
        }
        Ok(Self(kernels))
    }
}

/// Outer scales of an operand.
#[derive(Clone, Copy)]
pub(crate) struct OuterScales<'a> {
    pub(crate) scales: &'a Span<'a>,
    /// One for each row; else one number.
    pub(crate) each: bool,
}

/// One product, the sum being `A B^T` of plain numbers with codes times block scales, times outer scales.
pub(crate) struct SmallME2m1Call<'a> {
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
    /// E2M1 `[n][k / 2]`.
    pub(crate) codes: &'a Span<'a>,
    /// Of B, in tiles of 128x4.
    pub(crate) block_scales: &'a Span<'a>,
    pub(crate) format: BlockScaleFormat,
    /// Of A and B.
    pub(crate) outer: [Option<OuterScales<'a>>; 2],
    pub(crate) end: SmallMEnd<'a>,
}

/// Mirror of `SmallME2m1Problem` in `kernels/gemm/small_m_e2m1.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SmallME2m1Problem {
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
    scale_tiles: u32,
    alpha: f32,
    beta: f32,
    a: u64,
    b: u64,
    block_scales: u64,
    scales_a: u64,
    scales_b: u64,
    bias: u64,
    residual: u64,
    d: u64,
    stride_a: u64,
    stride_residual: u64,
    stride_d: u64,
}

impl SmallME2m1Call<'_> {
    /// Tiles of block scales along k, of four of them each.
    fn scale_tiles(&self) -> usize {
        let columns = match self.format {
            BlockScaleFormat::Ue4m3 => 64,
            BlockScaleFormat::Ue8m0 => 128,
        };
        self.k.div_ceil(columns)
    }

    /// Every length and alignment against what the kernel touches.
    fn check(&self) -> Result<()> {
        let Self { m, n, k, a_stride, .. } = *self;
        let shape = || format!("m = {m}, n = {n}, k = {k}");
        let block = self.config.block();
        if m > block.most_rows() {
            return Err(too_many_rows(block, shape()));
        }
        if k == 0 || !k.is_multiple_of(E2M1_K_MULTIPLE) || !n.is_multiple_of(8) {
            let rule = format!("k must be a multiple of {E2M1_K_MULTIPLE} above 0, n a multiple of 8");
            return Err(Error::shape("A and B", shape(), rule, "pad k with zeros, and the rows of B"));
        }
        // Numbers in the kernel have 32 bits; the grid has 31.
        let blocks = block.tiles(n) * self.config.split() as usize;
        if n > MOST_LENGTH || k > E2M1_MOST_K || blocks >= 1 << 31 {
            let rule = "n must be at most 2^30, k at most 2^26";
            return Err(Error::shape("A and B", shape(), rule, "split the product"));
        }
        if !matches!(self.a_type, DType::Bf16 | DType::F16) {
            return Err(Error::dtype("A", self.a_type, "is not bf16 or f16", "convert it first"));
        }
        if a_stride < k || !a_stride.is_multiple_of(8) {
            let found = format!("row stride {a_stride} for k = {k}");
            let rule = "must be no shorter than a row, and a multiple of 8";
            return Err(Error::shape("A", found, rule, "pass the stride of its rows, or copy"));
        }
        check_bytes("A", self.a, extent(m, k, a_stride) * 2)?;
        check_aligned("A", self.a, 16)?;
        check_bytes("B", self.codes, n * k / 2)?;
        check_aligned("B", self.codes, 16)?;
        check_bytes("block scales of B", self.block_scales, n.div_ceil(128) * self.scale_tiles() * 512)?;
        check_aligned("block scales of B", self.block_scales, 16)?;
        for (name, outer, rows) in [("scales of A", self.outer[0], m), ("scales of B", self.outer[1], n)] {
            let Some(OuterScales { scales, each }) = outer else { continue };
            check_bytes(name, scales, if each { rows * 4 } else { 4 })?;
            check_aligned(name, scales, 4)?;
        }
        self.end.check(m, n)
    }

    fn problem(&self, place: &InChain) -> Result<SmallME2m1Problem> {
        let end = self.end.fields()?;
        let step = |outer: Option<OuterScales<'_>>| u32::from(outer.is_some_and(|outer| outer.each));
        Ok(SmallME2m1Problem {
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
            loads_early: u32::from(place.loads_early),
            scale_tiles: self.scale_tiles() as u32,
            alpha: self.end.alpha,
            beta: self.end.beta,
            a: self.a.address,
            b: self.codes.address,
            block_scales: self.block_scales.address,
            scales_a: address(self.outer[0].map(|outer| outer.scales)),
            scales_b: address(self.outer[1].map(|outer| outer.scales)),
            bias: end.bias,
            residual: end.residual,
            d: end.d,
            stride_a: self.a_stride as u64,
            stride_residual: end.stride_residual,
            stride_d: end.stride_d,
        })
    }
}

impl Kernels {
    /// Enqueues one product. The order of sums depends on k and the configuration alone: equal rows of A have equal results, whatever stands
    /// beside them.
    pub(crate) fn small_m_e2m1_product(&self, stream: &Queue, call: &SmallME2m1Call<'_>) -> Result<()> {
        call.check()?;
        if call.m == 0 || call.n == 0 {
            return Ok(());
        }
        let mnk = [call.m, call.n, call.k];
        let place = match call.a_is_made {
            true => InChain::alone(call.config),
            false => self.in_chain(stream, call.config, mnk, &[call.codes, call.block_scales]),
        };
        let (block, split, serves) = (place.config.block(), place.config.split(), (call.format, call.a_type));
        let tokens = block.tokens(call.m);
        let kernels = &self.small_m(stream)?.1.0;
        let found = kernels.iter().find(|k| (k.block, k.tokens, k.serves) == (block, tokens, serves));
        let kernel = found.ok_or_else(|| no_such_kernel(block, serves))?.kernel;
        let grid = Blocks::new((block.tiles(call.n) * split as usize, 1), block.threads());
        enqueue!(stream, kernel, grid.clusters(split).shared(block.shared(tokens)), call.problem(&place)?)?;
        self.enqueued(stream, &place, &call.end)
    }
}

fn no_such_kernel(block: SmallMBlock, (scales, a_type): (BlockScaleFormat, DType)) -> Error {
    if block.codes() != CodeFormat::E2M1 {
        return no_such_block(block, CodeFormat::E2M1);
    }
    let rule = format!("is not multiplied by E2M1 weights with {scales} scales in the small-m product");
    Error::dtype("A", a_type, rule, "take bf16, or another formulation")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Activation;
    use crate::gpu::kernels::small_m_config::Shape;

    const SOURCE: &str = include_str!("../../../kernels/gemm/small_m_e2m1.cu");

    #[test]
    fn the_kernels_are_those_of_the_table() {
        let rows: Vec<_> = SOURCE
            .lines()
            .filter_map(|line| line.strip_prefix("SMALL_M(")?.strip_suffix(')'))
            .filter(|row| !row.contains("PARTS"))
            .map(str::to_string)
            .collect();
        let of = |block: SmallMBlock| match block.shape() {
            Shape::E2m1 { warps, residents: [few, more] } => Some(format!("{block}, {warps}, {few}, {more}")),
            Shape::E4m3 { .. } | Shape::Tile { .. } => None,
        };
        assert_eq!(rows, SmallMBlock::ALL.into_iter().filter_map(of).collect::<Vec<_>>());
        let tiles: Vec<_> = SOURCE
            .lines()
            .filter_map(|line| line.strip_prefix("SMALL_M_TILES(")?.strip_suffix(')'))
            .map(str::to_string)
            .collect();
        let of = |block: SmallMBlock| match block.shape() {
            Shape::Tile { stages, residents } => block
                .widths()
                .iter()
                .zip(residents)
                .map(|(tokens, blocks)| format!("{tokens}, {block}, {stages}, {blocks}"))
                .collect(),
            Shape::E4m3 { .. } | Shape::E2m1 { .. } => Vec::new(),
        };
        assert_eq!(tiles, SmallMBlock::ALL.into_iter().flat_map(of).collect::<Vec<_>>());
        let mut count = 0;
        for (scales, a_type) in SERVED {
            let (name, nvfp4) = match scales {
                BlockScaleFormat::Ue4m3 => ("nvfp4", true),
                BlockScaleFormat::Ue8m0 => ("mxfp4", false),
            };
            let number = if a_type == DType::F16 { "F16" } else { "Bf16" };
            for tokens in SmallMBlock::Four.widths() {
                let row = format!("SMALL_M_KERNEL({name}, {nvfp4}, {a_type}, {number}, {tokens}, block, PARTS, ");
                assert!(SOURCE.contains(&row), "{row}");
                count += 1;
            }
            let row = format!("SMALL_M_TILE_KERNEL({name}, {nvfp4}, {a_type}, {number}, tokens, __VA_ARGS__)");
            assert!(SOURCE.contains(&row), "{row}");
        }
        // And their definitions.
        assert_eq!(SOURCE.matches("SMALL_M_KERNEL(").count(), count + 1);
        assert_eq!(SOURCE.matches("SMALL_M_TILE_KERNEL(").count(), SERVED.len() + 1);
        assert_eq!(
            name(SmallMBlock::Eight, 16, (BlockScaleFormat::Ue8m0, DType::Bf16)),
            "gemm_small_m_mxfp4_bf16_16_eight"
        );
        assert_eq!(
            name(SmallMBlock::Tile, 48, (BlockScaleFormat::Ue4m3, DType::F16)),
            "gemm_small_m_nvfp4_f16_48_tile"
        );
    }

    fn span(bytes: usize) -> Span<'static> {
        Span::unguarded(0x7F00_0000_0000, bytes)
    }

    const NAMES: [&str; 8] = ["A", "B", "block scales of B", "scales of A", "scales of B", "bias", "residual", "D"];

    /// What is wrong with a call whose operands are as long as it needs, and so many bytes longer.
    fn check(
        block: SmallMBlock,
        [m, n, k]: [usize; 3],
        (format, each): (BlockScaleFormat, bool),
        (a_stride, d_stride): (usize, usize),
        more: [isize; 8],
        places: [u64; 8],
    ) -> String {
        let columns = if format == BlockScaleFormat::Ue4m3 { 16 } else { 32 };
        let scales = n.next_multiple_of(128) * (k / columns).next_multiple_of(4);
        let count = |rows| if each { rows * 4 } else { 4 };
        let d = extent(m, n, d_stride);
        let a = extent(m, k, a_stride) * 2;
        let exact = [a, n * k / 2, scales, count(m), count(n), n * 4, d * 2, d * 4];
        let mut spans: Vec<_> =
            exact.iter().zip(more).map(|(bytes, more)| span((*bytes as isize + more) as usize)).collect();
        spans.iter_mut().zip(places).for_each(|(span, place)| span.address += place);
        let call = SmallME2m1Call {
            config: SmallMConfig::new(block, 2).unwrap(),
            m,
            n,
            k,
            a: &spans[0],
            a_stride,
            a_type: DType::Bf16,
            a_is_made: false,
            codes: &spans[1],
            block_scales: &spans[2],
            format,
            outer: [3, 4].map(|i| Some(OuterScales { scales: &spans[i], each })),
            end: SmallMEnd {
                alpha: 1.0,
                beta: 0.5,
                bias: Some((&spans[5], DType::F32)),
                activation: Activation::None,
                residual: Some((&spans[6], d_stride, DType::Bf16)),
                d: &spans[7],
                d_stride,
                d_type: DType::F32,
            },
        };
        call.check().err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn every_length_and_place_is_checked() {
        for kind in
            [(BlockScaleFormat::Ue4m3, true), (BlockScaleFormat::Ue4m3, false), (BlockScaleFormat::Ue8m0, false)]
        {
            use SmallMBlock::{Eight, Four, Tile};
            let cases = [
                (Four, [1, 8, 32]),
                (Eight, [7, 136, 416]),
                (Four, [16, 64, 128]),
                (Tile, [3, 64, 32]),
                (Tile, [64, 136, 416]),
            ];
            for (block, shape) in cases {
                let check = |shape, kind, strides, more, places| check(block, shape, kind, strides, more, places);
                let strides = (shape[2] + 8, shape[1] + 4);
                assert_eq!(check(shape, kind, strides, [0; 8], [0; 8]), "");
                for (i, name) in NAMES.into_iter().enumerate() {
                    let (mut more, mut places) = ([0; 8], [0; 8]);
                    more[i] = -1;
                    let why = check(shape, kind, strides, more, [0; 8]);
                    assert!(why.starts_with(&format!("{name}: ")), "{name}: {why}");
                    // An address of half the alignment is refused, one of it taken.
                    let required = match name {
                        "A" | "B" | "block scales of B" => 16,
                        "residual" => 2,
                        _ => 4,
                    };
                    places[i] = required / 2;
                    let why = check(shape, kind, strides, [0; 8], places);
                    let rule = format!("{required}-byte aligned");
                    assert!(why.contains(&format!("{name}: address")) && why.contains(&rule), "{name}: {why}");
                    places[i] = required;
                    assert_eq!(check(shape, kind, strides, [0; 8], places), "", "{name}");
                }
            }
        }
        let of = |block, shape, strides| check(block, shape, (BlockScaleFormat::Ue4m3, true), strides, [0; 8], [0; 8]);
        let why = |shape, strides| of(SmallMBlock::Four, shape, strides);
        let many = why([17, 64, 128], (128, 64));
        assert!(many.contains("m must be at most 16 for e2m1 weights in blocks of four"), "{many}");
        assert!(many.contains("choose blocks for more rows"), "{many}");
        assert_eq!(of(SmallMBlock::Tile, [64, 64, 128], (128, 64)), "");
        let many = of(SmallMBlock::Tile, [65, 64, 128], (128, 64));
        assert!(many.contains("at most 64") && many.contains("use another formulation"), "{many}");
        assert!(why([1, 12, 128], (128, 12)).contains("n a multiple of 8"));
        assert!(why([1, 8, 48], (48, 8)).contains("multiple of 32") && why([1, 8, 0], (0, 8)).contains("above 0"));
        assert!(why([2, 64, 128], (128, 63)).contains("no shorter than a row"));
        assert!(why([2, 64, 128], (120, 64)).contains("A: row stride 120 for k = 128"));
        assert!(why([2, 64, 128], (132, 64)).contains("multiple of 8"));
        assert!(why([1, (1 << 30) + 8, 32], (32, (1 << 30) + 8)).contains("at most 2^30"));
        assert!(why([1, 8, (1 << 26) + 32], ((1 << 26) + 32, 8)).contains("k at most 2^26"));
    }
}
