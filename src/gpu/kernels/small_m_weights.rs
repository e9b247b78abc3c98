//! Launches of `kernels/gemm/small_m_e2m1.cu`, `small_m_repacked.cu` and `small_m_e4m3.cu`: products of few rows of BF16 or F16 numbers on Hopper, with quantized weights that the
//! kernels decode.

use super::Kernels;
use super::launch::{Blocks, Kernel, THREADS, enqueue};
use super::module::Modules;
use super::operand::{address, check_aligned, check_bytes, extent};
use super::small_m::InChain;
use super::small_m_codes::SmallMWeights;
use super::small_m_config::{SmallMBlock, SmallMConfig, SmallMOperands, no_such_block, too_many_rows};
use super::small_m_end::{MOST_LENGTH, SmallMEnd};
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

fn name(block: SmallMBlock, tokens: usize, (weights, a_type): (SmallMWeights, DType)) -> String {
    format!("gemm_small_m_{}_{a_type}_{tokens}_{}", weights.name(), block.name().replace('-', "_"))
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
    /// Adds parts of sums that lie in memory.
    join: Kernel,
}

struct SmallMWeightsKernel {
    block: SmallMBlock,
    tokens: usize,
    serves: (SmallMWeights, DType),
    kernel: Kernel,
}

impl SmallMWeightsKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let mut kernels = Vec::new();
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
                let kernel = file.kernel_with_shared(&name(block, tokens, serves), shared(block, tokens, serves.0))?;
                kernels.push(SmallMWeightsKernel { block, tokens, serves, kernel });
            }
        }
        Ok(Self { all: kernels, join: modules.file("gemm/small_m_join")?.kernel("gemm_small_m_join")? })
    }
}

/// Outer scales of an operand.
#[derive(Clone, Copy)]
pub(crate) struct OuterScales<'a> {
    pub(crate) scales: &'a Span<'a>,
    /// One for each row; else one number.
    pub(crate) each: bool,
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
    /// Where parts of sums are left on GPUs without clusters, as many bytes as [`SmallMConfig::parts_bytes`] says; `None`: there are none.
    pub(crate) parts: Option<&'a Span<'a>>,
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

impl SmallMWeightsCall<'_> {
    /// Every length and alignment against what the kernel touches.
    fn check(&self) -> Result<()> {
        let Self { m, n, k, .. } = *self;
        let shape = || format!("m = {m}, n = {n}, k = {k}");
        let block = self.config.block();
        if m > block.most_rows() {
            return Err(too_many_rows(block, shape()));
        }
        // The grid has 31 bits.
        if block.tiles(n) * self.config.split() as usize >= 1 << 31 {
            return Err(Error::shape("A and B", shape(), "n must be at most 2^30", "split the product"));
        }
        self.check_memory(n)
    }

    /// The same without how it is cut, of a B of so many rows.
    pub(super) fn check_memory(&self, b_rows: usize) -> Result<()> {
        let Self { m, n, k, a_stride, weights, .. } = *self;
        let shape = || format!("m = {m}, n = {n}, k = {k}");
        let multiple = match (weights, weights.operands()) {
            (SmallMWeights::Nvfp4Repacked, _) => 128,
            (_, SmallMOperands::E2m1Weights) => E2M1_K_MULTIPLE,
            _ => 16,
        };
        if k == 0 || !k.is_multiple_of(multiple) || !n.is_multiple_of(8) {
            let rule = format!("k must be a multiple of {multiple} above 0, n a multiple of 8");
            return Err(Error::shape("A and B", shape(), rule, "pad k with zeros, and the rows of B"));
        }
        // Numbers in the kernel have 32 bits.
        let power = most_k_power(weights.operands());
        if b_rows > MOST_LENGTH || k > 1 << power {
            let rule = format!("n must be at most 2^30, k at most 2^{power}");
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
        for (name, outer, rows) in [("scales of A", self.outer[0], m), ("scales of B", self.outer[1], b_rows)] {
            let Some(OuterScales { scales, each }) = outer else { continue };
            check_bytes(name, scales, if each { rows * 4 } else { 4 })?;
            check_aligned(name, scales, 4)?;
        }
        self.end.check(m, n)
    }

    pub(super) fn problem(&self, place: &InChain) -> Result<SmallMWeightsProblem> {
        let end = self.end.fields()?;
        let step = |outer: Option<OuterScales<'_>>| u32::from(outer.is_some_and(|outer| outer.each));
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
            loads_early: u32::from(place.loads_early),
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
            // Other configurations of the plan may be what the memory is for.
            parts: address(self.parts.filter(|_| place.config.split() > 1)),
            stride_a: self.a_stride as u64,
            stride_residual: end.stride_residual,
            stride_d: end.stride_d,
        })
    }
}

impl Kernels {
    /// Enqueues one product. The order of sums depends on k and the configuration alone: equal rows of A have equal results, whatever stands
    /// beside them.
    pub(crate) fn small_m_weights_product(&self, stream: &Queue, call: &SmallMWeightsCall<'_>) -> Result<()> {
        call.check()?;
        if call.m == 0 || call.n == 0 {
            return Ok(());
        }
        let (mnk, all) = ([call.m, call.n, call.k], [call.codes, call.scales.unwrap_or(call.codes)]);
        let place = match call.a_is_made {
            true => InChain::alone(call.config),
            false => self.in_chain(stream, call.config, mnk, &all),
        };
        let (block, split, serves) = (place.config.block(), place.config.split(), (call.weights, call.a_type));
        let tokens = block.tokens(call.m);
        let kernels = self.small_m_weights(stream)?;
        let found = kernels.all.iter().find(|k| (k.block, k.tokens, k.serves) == (block, tokens, serves));
        let kernel = found.ok_or_else(|| no_such_kernel(block, serves))?.kernel;
        let clusters = kernel.has_clusters();
        call.check_parts(clusters)?;
        let grid = Blocks::new((block.tiles(call.n) * split as usize, 1), block.threads());
        let grid = grid.clusters(if clusters { split } else { 1 }).shared(shared(block, tokens, call.weights));
        let problem = call.problem(&place)?;
        enqueue!(stream, kernel, grid, problem)?;
        if !clusters && split > 1 {
            let grid = Blocks::new(((call.m * call.n).div_ceil(THREADS as usize), 1), THREADS);
            enqueue!(stream, kernels.join, grid, problem, call.unit())?;
        }
        self.enqueued(stream, &place, &call.end)
    }
}

fn no_such_kernel(block: SmallMBlock, (weights, a_type): (SmallMWeights, DType)) -> Error {
    if block.operands() != weights.operands() {
        return no_such_block(block, weights.operands());
    }
    let rule = format!("is not multiplied by {} weights in the small-m product", weights.name());
    Error::dtype("A", a_type, rule, "take bf16, or another formulation")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Activation;
    use crate::gpu::kernels::small_m_config::Shape;

    const E2M1: &str = include_str!("../../../kernels/gemm/small_m_e2m1.cu");
    const REPACKED: &str = include_str!("../../../kernels/gemm/small_m_repacked.cu");
    const E4M3: &str = include_str!("../../../kernels/gemm/small_m_e4m3.cu");
    const TILE: &str = include_str!("../../../kernels/gemm/small_m_tile.cuh");

    /// Rows of a table: what is in the brackets of its macro, but for its definition.
    fn rows(source: &str, table: &str) -> Vec<String> {
        let of = |line: &str| Some(line.strip_prefix(table)?.strip_prefix('(')?.strip_suffix(')')?.to_string());
        source.lines().filter_map(of).collect()
    }

    #[test]
    fn the_kernels_are_those_of_the_table() {
        let of = |block: SmallMBlock| match block.shape() {
            Shape::E2m1 { pairs, warps, stages, residents: [few, more] } => {
                Some(format!("{block}, {pairs}, {warps}, {stages}, {few}, {more}"))
            }
            Shape::E4m3 { .. } | Shape::Tile { .. } => None,
        };
        assert_eq!(rows(E2M1, "SMALL_M"), SmallMBlock::ALL.into_iter().filter_map(of).collect::<Vec<_>>());
        let in_one_stage = |block: SmallMBlock| match block.shape() {
            Shape::E2m1 { pairs, warps, stages, residents: [few, more] } => {
                let of_stage = warps * 16 * pairs * (64 + 16);
                let [own, published] = [block.repacked_shared(8), block.shared(8)].map(|bytes| bytes as usize);
                assert_eq!(published - own, (stages - 1) * of_stage);
                Some(format!("{block}, {pairs}, {warps}, 1, {few}, {more}"))
            }
            Shape::E4m3 { .. } | Shape::Tile { .. } => None,
        };
        assert_eq!(
            rows(REPACKED, "SMALL_M"),
            SmallMBlock::ALL.into_iter().filter_map(in_one_stage).collect::<Vec<_>>()
        );
        let tiles = |block: SmallMBlock| match block.shape() {
            Shape::Tile { stages, residents, .. } => {
                let name = block.name().replace('-', "_");
                let row = |(tokens, blocks)| format!("{tokens}, {name}, {stages}, {blocks}");
                block.widths().iter().zip(residents).map(row).collect()
            }
            Shape::E4m3 { .. } | Shape::E2m1 { .. } => Vec::new(),
        };
        for (source, block) in [(E2M1, SmallMBlock::Tile), (REPACKED, SmallMBlock::Tile), (E4M3, SmallMBlock::TileE4m3)]
        {
            assert_eq!(rows(source, "SMALL_M_TILES"), tiles(block));
        }
        // Each has its row in the list of its file.
        let mut listed = 0;
        for (weights, a_type) in SmallMWeights::served() {
            let list = match weights.operands() {
                _ if weights == SmallMWeights::Nvfp4Repacked => "REPACKED",
                SmallMOperands::E2m1Weights => "E2M1",
                _ => "E4M3",
            };
            let rows = TILE.split("#define EACH_").find(|rows| rows.starts_with(list)).unwrap();
            let scales = weights.name();
            let number = if a_type == DType::F16 { "F16" } else { "Bf16" };
            let row = format!("KERNEL({scales}, {}, {a_type}, {number}, __VA_ARGS__)", scales.to_uppercase());
            assert!(rows.contains(&row), "{list}: {row}");
            listed += 1;
        }
        assert_eq!(TILE.matches("    KERNEL(").count(), listed);
        // And the files make kernels of all of their list.
        for (source, list) in [(E2M1, "E2M1"), (REPACKED, "REPACKED"), (E4M3, "E4M3")] {
            assert!(source.contains(&format!("EACH_{list}_WEIGHTS(SMALL_M_TILE_KERNEL, __VA_ARGS__)")), "{list}");
        }
        let widths = SmallMBlock::Four.widths();
        for (source, list) in [(E2M1, "E2M1"), (REPACKED, "REPACKED")] {
            for (tokens, blocks) in widths.iter().zip(["FEW", "MORE"]) {
                let of = format!("SMALL_M_KERNEL, {tokens}, block, PAIRS, PARTS, STAGES, {blocks}");
                assert!(source.contains(&format!("EACH_{list}_WEIGHTS({of})")), "{list}: {of}");
            }
            assert_eq!(source.matches("SMALL_M_KERNEL").count(), widths.len(), "{list}");
        }
        assert_eq!(
            name(SmallMBlock::Eight, 16, (SmallMWeights::Mxfp4, DType::Bf16)),
            "gemm_small_m_mxfp4_bf16_16_eight"
        );
        assert_eq!(name(SmallMBlock::Tile, 48, (SmallMWeights::Nvfp4, DType::F16)), "gemm_small_m_nvfp4_f16_48_tile");
        assert_eq!(
            name(SmallMBlock::TileE4m3, 8, (SmallMWeights::Fp8Tiles, DType::Bf16)),
            "gemm_small_m_fp8_128x128_bf16_8_tile_e4m3"
        );
    }

    fn span(bytes: usize) -> Span<'static> {
        Span::unguarded(0x7F00_0000_0000, bytes)
    }

    const NAMES: [&str; 8] =
        ["A", "B", "scales of B in the sum", "scales of A", "scales of B", "bias", "residual", "D"];

    /// What is wrong with a call whose operands are as long as it needs, and so many bytes longer.
    fn check(
        block: SmallMBlock,
        [m, n, k]: [usize; 3],
        (weights, each): (SmallMWeights, bool),
        (a_stride, d_stride): (usize, usize),
        more: [isize; 8],
        places: [u64; 8],
    ) -> String {
        let (groups, tiles) = (k.div_ceil(128), n.div_ceil(128));
        let scales = match weights {
            SmallMWeights::Nvfp4 | SmallMWeights::Nvfp4Repacked => tiles * 128 * (k / 16).next_multiple_of(4),
            SmallMWeights::Mxfp4 | SmallMWeights::Mxfp8 => tiles * groups * 512,
            SmallMWeights::Fp8 => 0,
            SmallMWeights::Fp8Vectors => n * groups * 4,
            SmallMWeights::Fp8Tiles => tiles * groups.next_multiple_of(4) * 4,
        };
        let codes = if weights.operands() == SmallMOperands::E2m1Weights { n * k / 2 } else { n * k };
        let count = |rows| if each { rows * 4 } else { 4 };
        let d = extent(m, n, d_stride);
        let a = extent(m, k, a_stride) * 2;
        let exact = [a, codes, scales, count(m), count(n), n * 4, d * 2, d * 4];
        let mut spans: Vec<_> =
            exact.iter().zip(more).map(|(bytes, more)| span((*bytes as isize + more) as usize)).collect();
        spans.iter_mut().zip(places).for_each(|(span, place)| span.address += place);
        let call = SmallMWeightsCall {
            config: SmallMConfig::new(block, 2).unwrap(),
            m,
            n,
            k,
            a: &spans[0],
            a_stride,
            a_type: DType::Bf16,
            a_is_made: false,
            weights,
            codes: &spans[1],
            scales: (weights != SmallMWeights::Fp8).then_some(&spans[2]),
            outer: [3, 4].map(|i| Some(OuterScales { scales: &spans[i], each })),
            parts: None,
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
        use SmallMBlock::{Eight, Four, Narrow, Sixteen, Tile, TileE4m3};
        use SmallMWeights::{Fp8, Fp8Tiles, Fp8Vectors, Mxfp4, Mxfp8, Nvfp4, Nvfp4Repacked};
        let of_e2m1 = [
            (Four, [1, 8, 32]),
            (Eight, [7, 136, 416]),
            (Sixteen, [9, 72, 2080]),
            (Narrow, [8, 264, 160]),
            (Four, [16, 64, 128]),
            (Tile, [3, 64, 32]),
            (Tile, [64, 136, 416]),
        ];
        let of_e4m3 = [(TileE4m3, [1, 8, 32]), (TileE4m3, [7, 136, 416]), (TileE4m3, [64, 72, 1056])];
        for kind in [
            (Nvfp4, true),
            (Nvfp4, false),
            (Mxfp4, false),
            (Mxfp8, false),
            (Fp8, true),
            (Fp8, false),
            (Fp8Vectors, false),
            (Fp8Tiles, false),
        ] {
            let e2m1 = kind.0.operands() == SmallMOperands::E2m1Weights;
            for &(block, shape) in if e2m1 { &of_e2m1[..] } else { &of_e4m3 } {
                let check = |shape, kind, strides, more, places| check(block, shape, kind, strides, more, places);
                let strides = (shape[2] + 8, shape[1] + 4);
                assert_eq!(check(shape, kind, strides, [0; 8], [0; 8]), "");
                for (i, name) in NAMES.into_iter().enumerate().filter(|(i, _)| *i != 2 || kind.0 != Fp8) {
                    let (mut more, mut places) = ([0; 8], [0; 8]);
                    more[i] = -1;
                    let why = check(shape, kind, strides, more, [0; 8]);
                    assert!(why.starts_with(&format!("{name}: ")), "{name}: {why}");
                    // An address of half the alignment is refused, one of it taken.
                    let required = match name {
                        "scales of B in the sum" if kind.0 == Fp8Tiles => 4,
                        "A" | "B" | "scales of B in the sum" => 16,
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
        let fp8 = |shape, strides| check(TileE4m3, shape, (Fp8, false), strides, [0; 8], [0; 8]);
        assert_eq!(fp8([1, 8, 16], (16, 8)), "");
        assert!(fp8([1, 8, (1 << 25) + 16], ((1 << 25) + 16, 8)).contains("k at most 2^25"));
        assert!(
            fp8([1, 8, 24], (24, 8)).contains("multiple of 16") && fp8([65, 8, 16], (16, 8)).contains("at most 64")
        );
        let of = |block, shape, strides| check(block, shape, (Nvfp4, true), strides, [0; 8], [0; 8]);
        let repacked = |shape, strides| check(Four, shape, (Nvfp4Repacked, true), strides, [0; 8], [0; 8]);
        assert_eq!(repacked([1, 8, 128], (128, 8)), "");
        assert!(repacked([1, 8, 96], (96, 8)).contains("k must be a multiple of 128"));
        let why = |shape, strides| of(SmallMBlock::Four, shape, strides);
        let many = why([17, 64, 128], (128, 64));
        assert!(many.contains("m must be at most 16 for e2m1-weights in blocks of four"), "{many}");
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
