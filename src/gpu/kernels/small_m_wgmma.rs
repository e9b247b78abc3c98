//! Launches of `kernels/gemm/small_m_wgmma.cu`: tiles of 17 to 64 rows of BF16 or F16 numbers with weights that are decoded, by the warpgroup products of Hopper. They have the bits of
//! the tiles that every GPU has, `kernels/gemm/small_m_tile.cuh`, of as many parts of k, and take their place where [`takes`] says so.

use super::Kernels;
use super::launch::{Blocks, Kernel, THREADS, enqueue};
use super::module::Modules;
use super::operand::{check_aligned, check_bytes};
use super::small_m_codes::SmallMWeights;
use super::small_m_config::{SmallMBlock, SmallMConfig, SmallMOperands};
use super::small_m_weights::{SmallMWeightsCall, SmallMWeightsProblem, no_such_kernel};
use crate::error::Result;
use crate::format::DType;
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// A width: columns of the tensor core's product, which hold the rows of A; steps of codes on their way; blocks on a multiprocessor.
struct Width {
    tokens: usize,
    steps: usize,
    residents: usize,
}

const fn width(tokens: usize, steps: usize, residents: usize) -> Width {
    Width { tokens, steps, residents }
}

/// Mirror of the tables in `kernels/gemm/small_m_wgmma.cu`.
const E2M1: [Width; 3] = [width(32, 2, 3), width(48, 2, 2), width(64, 2, 2)];
const E4M3: [Width; 3] = [width(32, 3, 2), width(48, 2, 2), width(64, 2, 2)];

/// Stages of A.
const STAGES: usize = 4;
const WARPS: usize = 8;
pub(super) const BLOCK: u32 = 32 * WARPS as u32;

fn widths(operands: SmallMOperands) -> &'static [Width] {
    match operands {
        SmallMOperands::Fp8 => &[],
        SmallMOperands::E2m1Weights => &E2M1,
        SmallMOperands::E4m3Weights => &E4M3,
    }
}

/// That which holds m rows.
fn of_rows(operands: SmallMOperands, m: usize) -> Option<&'static Width> {
    widths(operands).iter().find(|width| m <= width.tokens)
}

/// Dynamic shared memory in bytes. Mirror of `SmallMWgmmaConfig` in `kernels/gemm/small_m_wgmma.cuh`.
pub(super) fn shared(operands: SmallMOperands, tokens: usize, steps: usize) -> u32 {
    let codes = if operands == SmallMOperands::E2m1Weights { 1024 } else { 2048 };
    (STAGES * (tokens * 256 + 16) + WARPS * steps * (codes + 256)) as u32
}

/// Whether tiles of this product are these on sm_90: of more than 16 rows, but for up to 32 of narrow E4M3 weights, where the kernel that arranges A costs more than it saves (H100, 2026-11, the record of wgmma: `fp8-128x128`,
/// 32 x 576 x 7168 10.0 us for 9.1; 32 x 2112 x 7168 14.5 for 14.6; `nvfp4` 9.0 for 10.1 and 12.6 for 15.5).
pub(crate) fn takes(operands: SmallMOperands, [m, n, _]: [usize; 3]) -> bool {
    match (operands, m) {
        (SmallMOperands::Fp8, _) | (_, 0..=16 | 65..) => false,
        (SmallMOperands::E4m3Weights, 17..=32) => n >= 2048,
        _ => true,
    }
}

/// Blocks of it on a multiprocessor, of m rows.
pub(crate) fn residents(operands: SmallMOperands, m: usize) -> usize {
    of_rows(operands, m).map_or(1, |width| width.residents)
}

/// Bytes in which A is arranged for a product of m rows, in passes of at most 64, whichever of its configurations is used; 0: none is of these tiles.
pub(crate) fn arranged_bytes(operands: SmallMOperands, [m, n, k]: [usize; 3]) -> usize {
    let passes = [m.min(64), m % 64];
    let of_pass = |rows| if takes(operands, [rows, n, k]) { of_rows(operands, rows) } else { None };
    passes.into_iter().filter_map(of_pass).map(|width| width.tokens * k.next_multiple_of(128) * 2).max().unwrap_or(0)
}

/// How a product by these tiles is launched.
struct Launch<'a> {
    width: &'static Width,
    arranged: &'a Span<'a>,
}

impl<'a> SmallMWeightsCall<'a> {
    /// Whether it is one of these, in this configuration, on a GPU that has them.
    fn by_wgmma(&self, config: SmallMConfig) -> Option<Launch<'a>> {
        let (operands, tile) =
            (self.weights.operands(), matches!(config.block(), SmallMBlock::Tile | SmallMBlock::TileE4m3));
        let (width, arranged) = (of_rows(operands, self.m)?, self.scratch?);
        (tile && takes(operands, [self.m, self.n, self.k])).then_some(Launch { width, arranged })
    }

    /// How eight numbers of A become four pairs, as those of codes come: mirror of `small_m_arrange`.
    pub(super) fn pairs(&self) -> u32 {
        match self.weights {
            SmallMWeights::Nvfp4Repacked => 2,
            _ if self.weights.operands() == SmallMOperands::E2m1Weights => 1,
            _ => 0,
        }
    }
}

fn name(tokens: usize, (weights, a_type): (SmallMWeights, DType)) -> String {
    format!("gemm_small_m_{}_{a_type}_{tokens}_wgmma", weights.name())
}

/// The kernels of the file.
pub(super) struct SmallMWgmmaKernels {
    all: Vec<(usize, (SmallMWeights, DType), Kernel)>,
    arrange: Kernel,
}

impl SmallMWgmmaKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/small_m_wgmma")?;
        let mut all = Vec::new();
        for serves in SmallMWeights::served() {
            let operands = serves.0.operands();
            for width in widths(operands) {
                let kernel =
                    file.kernel_with_shared(&name(width.tokens, serves), shared(operands, width.tokens, width.steps))?;
                all.push((width.tokens, serves, kernel));
            }
        }
        Ok(Self { all, arrange: file.kernel_before_shared("gemm_small_m_arrange")? })
    }
}

impl Kernels {
    /// Enqueues a pass, if it is one by these tiles: A arranged, and the product. `false`: it is not, and nothing is enqueued.
    pub(super) fn small_m_wgmma_pass(
        &self,
        stream: &Queue,
        call: &SmallMWeightsCall<'_>,
        (config, problem): (SmallMConfig, SmallMWeightsProblem),
    ) -> Result<bool> {
        let Some(Launch { width, arranged }) = call.by_wgmma(config).filter(|_| self.on_hopper()) else {
            return Ok(false);
        };
        let (operands, serves) = (call.weights.operands(), (call.weights, call.a_type));
        let steps = call.k.div_ceil(128);
        check_bytes("A, arranged", arranged, width.tokens * steps * 256)?;
        // The copy engine's lines.
        check_aligned("A, arranged", arranged, 128)?;
        let kernels = &self.small_m(stream)?.2;
        let found = kernels.all.iter().find(|(tokens, of, _)| (*tokens, *of) == (width.tokens, serves));
        let kernel = found.ok_or_else(|| no_such_kernel(config.block(), serves))?.2;
        let grid = Blocks::new(((width.tokens * 4 * steps).div_ceil(THREADS as usize), 1), THREADS);
        enqueue!(stream, kernels.arrange, grid, problem, arranged.address, width.tokens as u32, call.pairs())?;
        let grid = Blocks::new((config.block().tiles(call.n) * config.split() as usize, 1), BLOCK);
        let grid = grid.clusters(config.split()).shared(shared(operands, width.tokens, width.steps));
        enqueue!(stream, kernel, grid, problem, arranged.address)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = include_str!("../../../kernels/gemm/small_m_wgmma.cu");
    const HEADER: &str = include_str!("../../../kernels/gemm/small_m_wgmma.cuh");

    #[test]
    fn the_kernels_are_those_of_the_table() {
        for (table, operands) in [("E2M1", SmallMOperands::E2m1Weights), ("E4M3", SmallMOperands::E4m3Weights)] {
            let rows: Vec<_> = SOURCE.lines().filter(|line| line.starts_with(&format!("SMALL_M_{table}("))).collect();
            let row =
                |Width { tokens, steps, residents }: &Width| format!("SMALL_M_{table}({tokens}, {steps}, {residents})");
            assert_eq!(rows, widths(operands).iter().map(row).collect::<Vec<_>>());
            for width in widths(operands) {
                let all = width.residents * (shared(operands, width.tokens, width.steps) as usize + 1024);
                assert!(all <= 228 << 10, "{table}, {}", width.tokens);
            }
        }
        for list in ["E2M1", "REPACKED", "E4M3"] {
            assert!(SOURCE.contains(&format!("EACH_{list}_WEIGHTS(SMALL_M_WGMMA_KERNEL, __VA_ARGS__)")), "{list}");
        }
        assert!(HEADER.contains(&format!("WEIGHTS, tokens, RING, {STAGES}>>(p, part, arranged)")));
        assert!(HEADER.contains(&format!("__launch_bounds__({BLOCK}, BLOCKS)")));
        assert!(SOURCE.contains(&format!("__launch_bounds__({THREADS}) gemm_small_m_arrange(")));
        assert_eq!(name(48, (SmallMWeights::Fp8Tiles, DType::F16)), "gemm_small_m_fp8_128x128_f16_48_wgmma");
    }

    #[test]
    fn a_is_arranged_for_the_widest_pass() {
        use SmallMOperands::{E2m1Weights, E4m3Weights, Fp8};
        let bytes = |operands, mnk| arranged_bytes(operands, mnk);
        assert_eq!([1, 16].map(|m| bytes(E2m1Weights, [m, 4096, 7168])), [0, 0]);
        assert_eq!(
            [17, 32, 33, 64].map(|m| bytes(E2m1Weights, [m, 4096, 7168])),
            [32, 32, 48, 64].map(|t| t * 7168 * 2)
        );
        assert_eq!([128, 130, 64 + 40].map(|m| bytes(E4m3Weights, [m, 4096, 7184])), [64 * 7296 * 2; 3], "whole steps");
        assert_eq!(bytes(Fp8, [32, 4096, 7168]), 0);
        assert_eq!([17, 32].map(|m| bytes(E4m3Weights, [m, 1024, 7168])), [0, 0], "few rows of narrow E4M3 weights");
        assert!(!takes(E2m1Weights, [65, 4096, 7168]) && takes(E2m1Weights, [64, 8, 32]));
        assert_eq!([residents(E2m1Weights, 32), residents(E2m1Weights, 33), residents(E4m3Weights, 17)], [3, 2, 2]);
    }
}
