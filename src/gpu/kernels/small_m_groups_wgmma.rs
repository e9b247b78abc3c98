//! Launches of `kernels/gemm/small_m_groups_wgmma.cu`: groups of more than a few rows of BF16 or F16 numbers, each with quantized weights of its own, by the warpgroup products of Hopper. They have the bits of the tiles of
//! `kernels/gemm/small_m_groups.cuh`, of as many parts of k.

use super::launch::Kernel;
use super::module::Modules;
use super::small_m_codes::SmallMWeights;
use super::small_m_config::SmallMOperands;
use super::small_m_wgmma;
use crate::error::Result;
use crate::format::DType;

/// Columns of the tensor core's product, which hold rows of a group. Mirror of the tables in the kernel file.
const E2M1: [usize; 2] = [32, 64];
const E4M3: [usize; 1] = [48];
/// Steps of codes on their way, and blocks on a multiprocessor. Likewise.
const STEPS: usize = 2;
pub(super) const RESIDENTS: usize = 2;

/// Rows of A that are neighbours where it is arranged.
const PANEL: usize = 8;

/// Usual rows of a group up to which the tiles that read A as it is are taken. (H100, 2026-11, the record of groups by warpgroup products, eight groups of 4096 x 7168, us: `nvfp4-row` 32 rows each 93 for 119, 64 rows 117 for
/// 210, 256 rows 414 for 708; `fp8-128x128` 64 rows 195 (in 32 columns) for 194 (in 64), 96 rows 216 for 303, 256 rows 595 for 689. 16 rows and fewer were not compared.)
fn few_rows(operands: SmallMOperands) -> usize {
    if operands == SmallMOperands::E2m1Weights { 16 } else { 64 }
}

fn widths(operands: SmallMOperands) -> &'static [usize] {
    match operands {
        SmallMOperands::Fp8 => &[],
        SmallMOperands::E2m1Weights => &E2M1,
        SmallMOperands::E4m3Weights => &E4M3,
    }
}

/// Rows that are multiplied at once of groups that have so many, as a rule: the narrowest that take the fewest passes. `None`: those go to other tiles.
pub(super) fn tokens(operands: SmallMOperands, rows: usize) -> Option<usize> {
    let all = widths(operands).iter().copied().filter(|_| rows > few_rows(operands));
    all.min_by_key(|tokens| rows.div_ceil(*tokens))
}

/// Rows as which A is arranged.
pub(super) fn arranged_rows(m: usize) -> usize {
    m.next_multiple_of(PANEL)
}

/// Bytes of it.
pub(super) fn arranged_bytes([m, k]: [usize; 2]) -> usize {
    arranged_rows(m).saturating_mul(k.next_multiple_of(128)).saturating_mul(2)
}

/// Blocks of the kernel that arranges it, a thread of which makes 64 bytes.
pub(super) fn arranging(bytes: usize, threads: u32) -> usize {
    (bytes / 64).div_ceil(threads as usize)
}

/// Whether its threads have numbers of 32 bits.
pub(super) fn can_arrange(mk: [usize; 2]) -> bool {
    arranged_bytes(mk) / 64 < 1 << 31
}

/// Dynamic shared memory in bytes.
pub(super) fn shared(operands: SmallMOperands, tokens: usize) -> u32 {
    small_m_wgmma::shared(operands, tokens, STEPS)
}

fn name(tokens: usize, (weights, a_type): (SmallMWeights, DType)) -> String {
    format!("gemm_small_m_groups_{}_{a_type}_{tokens}_wgmma", weights.name())
}

/// The kernels of the file.
pub(super) struct SmallMGroupsWgmmaKernels {
    pub(super) all: Vec<(usize, (SmallMWeights, DType), Kernel)>,
    pub(super) arrange: Kernel,
}

impl SmallMGroupsWgmmaKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/small_m_groups_wgmma")?;
        let mut all = Vec::new();
        for serves in SmallMWeights::served() {
            let operands = serves.0.operands();
            for &tokens in widths(operands) {
                let kernel = file.kernel_with_shared(&name(tokens, serves), shared(operands, tokens))?;
                all.push((tokens, serves, kernel));
            }
        }
        Ok(Self { all, arrange: file.kernel_before_shared("gemm_small_m_groups_arrange")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = include_str!("../../../kernels/gemm/small_m_groups_wgmma.cu");
    const HEADER: &str = include_str!("../../../kernels/gemm/small_m_groups_wgmma.cuh");

    #[test]
    fn the_kernels_are_those_of_the_table() {
        for (table, operands) in [("E2M1", SmallMOperands::E2m1Weights), ("E4M3", SmallMOperands::E4m3Weights)] {
            let rows: Vec<_> = SOURCE.lines().filter(|line| line.starts_with(&format!("SMALL_M_{table}("))).collect();
            let of = |tokens: &usize| format!("SMALL_M_{table}({tokens}, {STEPS}, {RESIDENTS})");
            assert_eq!(rows, widths(operands).iter().map(of).collect::<Vec<_>>());
            for &tokens in widths(operands) {
                assert!(RESIDENTS * (shared(operands, tokens) as usize + 1024) <= 228 << 10, "{table}, {tokens}");
            }
        }
        for list in ["E2M1", "REPACKED", "E4M3"] {
            let line = format!("EACH_{list}_WEIGHTS(SMALL_M_GROUPS_WGMMA_KERNEL, __VA_ARGS__)");
            assert!(SOURCE.contains(&line), "{list}");
        }
        assert!(HEADER.contains(&format!("SmallMWalk<C::TOKENS, {PANEL}>")));
        assert!(
            HEADER.contains("WEIGHTS, tokens, RING, 4, true>>(p, g, arranged)"),
            "as many stages as without groups"
        );
        assert_eq!(name(64, (SmallMWeights::Mxfp4, DType::Bf16)), "gemm_small_m_groups_mxfp4_bf16_64_wgmma");
    }

    #[test]
    fn rows_choose_the_width() {
        use SmallMOperands::{E2m1Weights, E4m3Weights, Fp8};
        assert_eq!([1, 16].map(|rows| tokens(E2m1Weights, rows)), [None; 2]);
        assert_eq!([17, 32, 33, 5000].map(|rows| tokens(E2m1Weights, rows)), [32, 32, 64, 64].map(Some));
        assert_eq!([64, 65, 1000].map(|rows| tokens(E4m3Weights, rows)), [None, Some(48), Some(48)]);
        assert_eq!(tokens(Fp8, 64), None);
        assert_eq!([arranged_bytes([1, 128]), arranged_bytes([20, 144])], [8 * 256, 24 * 512]);
        assert_eq!([arranging(2048, 256), arranging(64 * 257, 256)], [1, 2]);
        assert!(
            can_arrange([1 << 20, 1 << 14]) && !can_arrange([1 << 22, 1 << 14]) && !can_arrange([usize::MAX / 2; 2])
        );
    }
}
