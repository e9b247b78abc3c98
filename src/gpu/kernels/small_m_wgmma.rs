//! Launches of `kernels/gemm/small_m_wgmma.cu`: tiles of 9 to 64 rows of BF16 or F16 numbers with weights that are decoded, by the warpgroup products of Hopper. They have the bits of
//! the tiles that every GPU has, `kernels/gemm/small_m_tile.cuh`, of as many parts of k, and take their place where [`takes`] says so.

use super::Kernels;
use super::launch::{Blocks, Kernel, THREADS, enqueue};
use super::module::Modules;
use super::operand::{check_aligned, check_bytes};
use super::small_m::InChain;
use super::small_m_codes::SmallMWeights;
use super::small_m_config::{SmallMConfig, SmallMOperands};
use super::small_m_split::{Meeting, meeting};
use super::small_m_weights::{SmallMWeightsCall, no_such_kernel};
use crate::error::{Error, Result};
use crate::format::{CodeOrder, DType};
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
const E2M1: [Width; 4] = [width(16, 2, 3), width(32, 2, 3), width(48, 2, 2), width(64, 2, 2)];
const E4M3: [Width; 3] = [width(32, 3, 2), width(48, 2, 2), width(64, 2, 2)];

/// The copy engine's lines, in bytes.
const LINE: usize = 128;
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
/// 32 x 576 x 7168 10.0 us for 9.1; 32 x 2112 x 7168 14.5 for 14.6; `nvfp4` 9.0 for 10.1 and 12.6 for 15.5). Of 9 to 16 rows of many E2M1 weights, too, which blocks of few rows decode for every eight rows (H200, 2026-11, the record of joins:
/// `nvfp4` 57344 x 8192 96 us for 127, repacked 88 for 120, 4096 x 7168 11.4 for 12.4, repacked 10.5 for 10.5).
pub(crate) fn takes(operands: SmallMOperands, codes: CodeOrder, [m, n, k]: [usize; 3]) -> bool {
    match (operands, m) {
        (SmallMOperands::E2m1Weights, 9..=16) => {
            n * k >= if codes == CodeOrder::Repacked { 64 << 20 } else { 28 << 20 }
        }
        (SmallMOperands::Fp8, _) | (_, 0..=16 | 65..) => false,
        (SmallMOperands::E4m3Weights, 17..=32) => n >= 2048,
        _ => true,
    }
}

/// That of a pass of m rows in this configuration, if it is one by these tiles.
fn width_of(config: SmallMConfig, codes: CodeOrder, [m, n, k]: [usize; 3]) -> Option<&'static Width> {
    let (operands, tile) = (config.block().operands(), config.block().takes_passes());
    of_rows(operands, m).filter(|_| tile && takes(operands, codes, [m, n, k]))
}

/// Rows of the passes that differ: whole ones, and what is left.
fn rows_of_passes(m: usize) -> impl Iterator<Item = usize> {
    [m.min(64), if m > 64 { m % 64 } else { 0 }].into_iter().filter(|rows| *rows > 0)
}

/// A pass by these tiles.
#[derive(Clone, Copy)]
pub(crate) struct Wgmma {
    width: &'static Width,
    meeting: Meeting,
    cost: usize,
    arranged: usize,
    parts: usize,
}

impl Wgmma {
    /// That of at most 64 rows in this configuration, of weights in this order, on a GPU of so many multiprocessors that has them; `None`: other kernels multiply it, or, of a split that no cluster has, nothing does
    /// ([`Wgmma::check_split`]).
    pub(crate) fn of(config: SmallMConfig, codes: CodeOrder, [m, n, k]: [usize; 3], sm_count: usize) -> Option<Self> {
        let width = width_of(config, codes, [m, n, k])?;
        let (meeting, cost) = meeting(config, [n, k], width.residents, sm_count)?;
        let parts = config.parts_bytes(meeting == Meeting::Cluster, [m, n]);
        Some(Self { width, meeting, cost, arranged: width.tokens * k.next_multiple_of(128) * 2, parts })
    }

    /// Those of a product of any m, of 64 rows and of what is left.
    pub(crate) fn passes(
        config: SmallMConfig,
        codes: CodeOrder,
        [m, n, k]: [usize; 3],
        sm_count: usize,
    ) -> impl Iterator<Item = Self> {
        rows_of_passes(m).filter_map(move |rows| Self::of(config, codes, [rows, n, k], sm_count))
    }

    /// Refuses a split that no cluster has, of a product of any m, unless each of its passes is one by these tiles and leaves its parts of sums in memory. `sm_count`: of a GPU that has these tiles.
    pub(crate) fn check_split(
        config: SmallMConfig,
        codes: CodeOrder,
        [m, n, k]: [usize; 3],
        sm_count: Option<usize>,
    ) -> Result<()> {
        if !config.needs_memory() {
            return Ok(());
        }
        let why = match sm_count {
            None => "warpgroup products, which sm_90 alone has".to_string(),
            Some(sm_count) => {
                let refused = |rows: &usize| Self::of(config, codes, [*rows, n, k], sm_count).is_none();
                let Some(rows) = rows_of_passes(m).find(refused) else { return Ok(()) };
                match width_of(config, codes, [rows, n, k]) {
                    None => format!("warpgroup products, which do not multiply {rows} rows with such a B"),
                    Some(width) => {
                        let (blocks, most) =
                            (config.block().tiles(n) * config.split() as usize, width.residents * sm_count);
                        format!("no more blocks than run at once, {most}, and here are {blocks}")
                    }
                }
            }
        };
        let rule = format!("with k split by {} parts of sums meet in memory alone, which takes {why}", config.split());
        let found = format!("m = {m}, n = {n}, k = {k}:");
        Err(Error::shape("A and B", found, rule, "choose a split of 1, 2, 4 or 8"))
    }

    /// Scratch memory of all passes, which follow one another: A arranged, and behind it the parts of sums that meet there, in whole lines. 0: none is of these tiles.
    pub(crate) fn scratch_of(config: SmallMConfig, codes: CodeOrder, mnk: [usize; 3], sm_count: usize) -> usize {
        let passes = Self::passes(config, codes, mnk, sm_count);
        passes.map(|pass| (pass.arranged + pass.parts).next_multiple_of(LINE)).max().unwrap_or(0)
    }

    /// Blocks of it on a multiprocessor.
    pub(crate) fn residents(&self) -> usize {
        self.width.residents
    }

    /// Where the parts of its sums meet.
    pub(crate) fn meeting(&self) -> Meeting {
        self.meeting
    }

    /// What it costs, in half steps of 128 of k.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }
}

impl SmallMWeightsCall<'_> {
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
    /// Enqueues a pass, if it is one by these tiles: A arranged, the product, and where its parts meet in memory their sum. `false`: it is not, and nothing is enqueued.
    pub(super) fn small_m_wgmma_pass(
        &self,
        stream: &Queue,
        call: &SmallMWeightsCall<'_>,
        place: &InChain,
    ) -> Result<bool> {
        let config = place.config;
        let (codes, mnk) = (call.weights.code_order(), [call.m, call.n, call.k]);
        let pass = Wgmma::of(config, codes, mnk, self.sm_count).filter(|_| self.on_hopper());
        let Some(pass) = pass else { return Ok(false) };
        let scratch = call.scratch.ok_or_else(|| {
            let bytes = format!("{} bytes for {config}", pass.arranged + pass.parts);
            Error::shape("A, arranged", "no memory", bytes, "report it: a launch of this crate forgot it")
        })?;
        let (width, operands, serves) = (pass.width, call.weights.operands(), (call.weights, call.a_type));
        check_bytes("A, arranged, and parts of sums", scratch, pass.arranged + pass.parts)?;
        check_aligned("A, arranged", scratch, LINE as u64)?;
        let (arranged, parts) = (scratch.slice(0, pass.arranged), scratch.slice(pass.arranged, pass.parts));
        let in_memory = pass.meeting == Meeting::Memory;
        let problem = call.problem(place, Some(&parts).filter(|_| in_memory))?;
        let kernels = &self.small_m(stream)?.2;
        let found = kernels.all.iter().find(|(tokens, of, _)| (*tokens, *of) == (width.tokens, serves));
        let kernel = found.ok_or_else(|| no_such_kernel(config.block(), serves))?.2;
        let grid = Blocks::new(((width.tokens * 4 * call.k.div_ceil(128)).div_ceil(THREADS as usize), 1), THREADS);
        enqueue!(stream, kernels.arrange, grid, problem, arranged.address, width.tokens as u32, call.pairs())?;
        let (tiles, split) = (config.block().tiles(call.n), config.split());
        let grid = match in_memory {
            true => Blocks::new((tiles, split as usize), BLOCK),
            false => Blocks::new((tiles * split as usize, 1), BLOCK).clusters(split),
        };
        let grid = grid.shared(shared(operands, width.tokens, width.steps));
        enqueue!(stream, kernel, grid, problem, arranged.address)?;
        if in_memory {
            self.join_parts(stream, call, problem)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::kernels::small_m_config::SmallMBlock;

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

    fn of(block: SmallMBlock, split: u32, mnk: [usize; 3]) -> Option<Wgmma> {
        Wgmma::of(SmallMConfig::new(block, split).unwrap(), CodeOrder::Published, mnk, 132)
    }

    #[test]
    fn scratch_memory_is_that_of_the_widest_pass() {
        let bytes = |block, split, mnk| {
            Wgmma::scratch_of(SmallMConfig::new(block, split).unwrap(), CodeOrder::Published, mnk, 132)
        };
        let (e2m1, e4m3) = (SmallMBlock::Tile, SmallMBlock::TileE4m3);
        assert_eq!([1, 16].map(|m| bytes(e2m1, 2, [m, 4096, 7040])), [0, 0]);
        assert_eq!([17, 32, 33, 64].map(|m| bytes(e2m1, 2, [m, 4096, 7168])), [32, 32, 48, 64].map(|t| t * 7168 * 2));
        assert_eq!([8, 9, 16].map(|m| bytes(e2m1, 1, [m, 57344, 8192])), [0, 16, 16].map(|t| t * 8192 * 2));
        // With the parts of rows that there are.
        assert_eq!(bytes(e2m1, 4, [33, 4096, 7168]), 48 * 7168 * 2 + 4 * 33 * 4096 * 4);
        assert_eq!([128, 130, 64 + 40].map(|m| bytes(e4m3, 2, [m, 4096, 7184])), [64 * 7296 * 2; 3], "whole steps");
        assert_eq!(bytes(e4m3, 4, [130, 4096, 7168]), 64 * 7168 * 2 + 4 * 64 * 4096 * 4, "one pass at a time");
        assert_eq!(bytes(SmallMBlock::One, 2, [32, 4096, 7168]), 0);
        assert_eq!([17, 32].map(|m| bytes(e4m3, 2, [m, 1024, 7168])), [0, 0], "few rows of narrow E4M3 weights");
    }

    #[test]
    fn tiles_of_more_rows_are_these() {
        use SmallMOperands::{E2m1Weights, E4m3Weights};
        let of_order = |codes| move |operands, mnk| super::takes(operands, codes, mnk);
        let (takes, repacked) = (of_order(CodeOrder::Published), of_order(CodeOrder::Repacked));
        assert!(!takes(E2m1Weights, [65, 4096, 7168]) && takes(E2m1Weights, [64, 8, 32]));
        assert_eq!([8, 9, 16].map(|m| takes(E2m1Weights, [m, 4096, 7168])), [false, true, true]);
        assert_eq!([9, 16].map(|m| takes(E2m1Weights, [m, 4096, 7040])), [false; 2], "fewer weights");
        assert_eq!([8, 9, 16].map(|m| repacked(E2m1Weights, [m, 8192, 8192])), [false, true, true]);
        assert_eq!([9, 17].map(|m| repacked(E2m1Weights, [m, 8192, 7168])), [false, true]);
        assert!(!takes(E4m3Weights, [16, 57344, 8192]));
        assert!(of(SmallMBlock::Eight, 2, [16, 57344, 8192]).is_none(), "no tile");
        let residents = |block, m| of(block, 1, [m, 57344, 8192]).unwrap().residents();
        let (e2m1, e4m3) = (SmallMBlock::Tile, SmallMBlock::TileE4m3);
        assert_eq!([16, 32, 33].map(|m| residents(e2m1, m)), [3, 3, 2]);
        assert_eq!(residents(e4m3, 17), 2);
        assert_eq!(of(e2m1, 4, [64, 4096, 7168]).unwrap().meeting(), Meeting::Memory);
        assert_eq!(of(e2m1, 2, [64, 4096, 7168]).unwrap().meeting(), Meeting::Cluster);
    }

    /// Of all passes, with words for each reason.
    #[test]
    fn splits_that_no_cluster_has_are_refused_where_parts_cannot_meet() {
        let (e2m1, e4m3) = (SmallMBlock::Tile, SmallMBlock::TileE4m3);
        let check = |block, split, mnk, sm_count| {
            let config = SmallMConfig::new(block, split).unwrap();
            let refusal = Wgmma::check_split(config, CodeOrder::Published, mnk, sm_count);
            refusal.err().map_or(String::new(), |error| error.to_string())
        };
        let here = |block, split, mnk| check(block, split, mnk, Some(132));
        assert_eq!([3, 6].map(|split| here(e2m1, split, [17, 2112, 7168])), ["", ""]);
        assert_eq!([16, 64].map(|m| here(e2m1, 3, [m, 10240, 8192])), ["", ""]);
        assert_eq!([64, 128, 96, 192].map(|m| here(e4m3, 3, [m, 10240, 8192])), ["", "", "", ""]);
        assert_eq!(here(e2m1, 6, [0, 10240, 8192]), "", "no row is no pass");
        let many = "A and B: m = 64, n = 10240, k = 8192: with k split by 6 parts of sums meet in memory alone, which takes no more blocks than run at once, 264, and here are 480; choose a split of 1, 2, 4 or 8";
        assert_eq!(here(e2m1, 6, [64, 10240, 8192]), many);
        let rows = |m| format!("warpgroup products, which do not multiply {m} rows with such a B; choose");
        assert!(here(e2m1, 3, [8, 10240, 8192]).contains(&rows(8)));
        assert!(here(e2m1, 3, [16, 4096, 7040]).contains(&rows(16)), "fewer weights");
        assert!(here(e4m3, 3, [17, 1024, 7168]).contains(&rows(17)));
        assert!(here(e4m3, 3, [130, 10240, 8192]).contains(&rows(2)), "what is left of the last pass");
        let elsewhere = check(e2m1, 3, [64, 10240, 8192], None);
        assert!(elsewhere.contains("which takes warpgroup products, which sm_90 alone has"), "{elsewhere}");
        // Others meet anywhere.
        for split in SmallMConfig::SPLITS {
            assert_eq!([None, Some(132)].map(|sm_count| check(e2m1, split, [3, 57344, 64], sm_count)), ["", ""]);
        }
        // What is refused is none of these tiles, and has no scratch memory.
        assert!(of(e2m1, 6, [64, 10240, 8192]).is_none() && of(e2m1, 3, [8, 10240, 8192]).is_none());
        let three = SmallMConfig::new(e2m1, 3).unwrap();
        let bytes = |mnk| Wgmma::scratch_of(three, CodeOrder::Published, mnk, 132);
        assert_eq!(bytes([64, 10240, 8192]), 64 * 8192 * 2 + 3 * 64 * 10240 * 4);
        assert_eq!(bytes([8, 10240, 8192]), 0);
    }
}
