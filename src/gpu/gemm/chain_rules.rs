//! [`order`]: which configuration of few rows is tried first for calls that are links of chains ([`GemmDesc::chained`](super::desc::GemmDesc::chained)). Pure.
//!
//! A link has a part of its weights in shared memory when A comes, and its end overlaps with the beginning of the next. So what counts is how many parts of k there are: which blocks have them is the
//! business of who enqueues it (`SmallMConfig::in_chain`, `OneRow::link_of`), to the same bits. More, smaller parts fill the memory evenly where alone a wave more, or a larger cluster, would cost more than it gains.

use crate::format::CodeOrder;
use crate::gpu::gemm::small_m_step::SmallMGpu;
use crate::gpu::gemm::wgmma_rules::order_on;
use crate::gpu::kernels::{FEW_ROWS, SmallMConfig, SmallMOperands};

/// A product, and a GPU's multiprocessors.
#[derive(Clone, Copy)]
struct Product {
    m: usize,
    n: usize,
    /// Of 128 of k.
    steps: usize,
    sm_count: usize,
}

impl Product {
    /// Whether a unit of so many rows of B each makes at most this part of as many as there are multiprocessors, in hundredths.
    fn fill(&self, rows: usize, hundredths: usize) -> bool {
        100 * self.n.div_ceil(rows) <= hundredths * self.sm_count
    }

    /// FP8, up to 16 rows: made from all configurations at 46 shapes and m of 1 and 16 (the record of paced links), and mended at two of 28 others (H200, 2026-11, that record and the one of links planned for chains). What it takes is 1.003 of the time of the fastest number of parts on average,
    /// 1.05 at most; what is planned for calls alone 1.017, 1.26 at most.
    fn parts_of_fp8(&self) -> usize {
        let Self { m, steps, .. } = *self;
        let (few, tiles) = (m <= 8, |hundredths| self.fill(64, hundredths));
        if tiles(50) {
            // Eight parts all stand at once, four blocks to a multiprocessor.
            let short = steps < 28 || (steps < 40 && !tiles(if few { 40 } else { 45 }));
            // A long walk by one block of two warpgroups on each.
            let long = few && steps > 72 && !tiles(45);
            return if (short && !tiles(25)) || long { 4 } else { 8 };
        }
        if tiles(100) {
            let short = steps <= 16 && few || steps < 12;
            return if short && !tiles(70) { 2 } else { 4 };
        }
        if tiles(200) {
            // Three deep ones on each, or nearly.
            let evenly = !tiles(135) && tiles(150);
            return if steps <= 40 || evenly { 2 } else { 4 };
        }
        match steps {
            ..=16 => 1,
            17..40 if tiles(300) => 2,
            17..28 => 2,
            28.. => 4,
        }
    }

    /// E2M1: made from the same records, of the kernels of one row at 21 shapes and of others at 14 and m of 2, 8 and 16, published and repacked, and judged at 14 more. `None`: as many as are the fastest alone.
    fn parts_of_e2m1(&self, codes: CodeOrder) -> Option<usize> {
        let Self { m, steps, .. } = *self;
        let fill = |hundredths| self.fill(32, hundredths);
        if fill(90) {
            return match m {
                1 if steps <= 24 && !fill(45) => Some(8),
                1 if steps >= 40 && fill(45) && !fill(30) => Some(16),
                2..=8 if codes == CodeOrder::Published && steps >= 40 && !fill(45) => Some(16),
                9.. if !fill(60) => Some(16),
                _ => None,
            };
        }
        Some(match m {
            1 if fill(300) => match steps {
                ..=28 if !fill(150) => 4,
                ..=16 => 4,
                64..240 if fill(125) => 16,
                // Of which some multiprocessors have three.
                64.. if !fill(200) && fill(250) => 16,
                48.. if !fill(250) => 4,
                _ => 8,
            },
            2..=8 => match steps {
                ..=16 => 4,
                40.. if fill(125) => 16,
                _ if fill(300) || (fill(450) && codes == CodeOrder::Published) => 8,
                _ => return None,
            },
            9.. if fill(250) => match steps {
                ..=8 => 4,
                48.. if fill(100) => 16,
                96.. if fill(125) => 16,
                _ => 8,
            },
            _ => {
                if steps <= 32 {
                    4
                } else {
                    8
                }
            }
        })
    }
}

/// The configurations of [`order_on`], for calls that are links of chains or stand alone.
pub(crate) fn order(
    operands: SmallMOperands,
    codes: CodeOrder,
    mnk: [usize; 3],
    gpu: SmallMGpu,
    chained: bool,
) -> Vec<SmallMConfig> {
    let mut all = order_on(operands, codes, mnk, gpu);
    if chained {
        sort(&mut all, codes, mnk, gpu);
    }
    all
}

/// Puts those of as many parts of k as are the fastest in chains first; between them the order stays. Nothing changes where they are not known to gain: on other GPUs than sm_90, of more than 16 rows, and of tiles, which are no links.
fn sort(all: &mut [SmallMConfig], codes: CodeOrder, [m, n, k]: [usize; 3], gpu: SmallMGpu) {
    let Some(first) = all.first().map(|first| first.block()) else { return };
    if !gpu.wgmma || m > FEW_ROWS || first.takes_passes() {
        return;
    }
    let product = Product { m, n, steps: k.div_ceil(128), sm_count: gpu.sm_count };
    let wanted = match first.operands() {
        SmallMOperands::Fp8 => Some(product.parts_of_fp8()),
        SmallMOperands::E2m1Weights => product.parts_of_e2m1(codes),
        SmallMOperands::E4m3Weights => None,
    };
    if let Some(wanted) = wanted {
        all.sort_by_key(|config| config.block().takes_passes() || config.parts() != wanted);
    }
}

#[cfg(test)]
#[allow(clippy::approx_constant, reason = "6.28 is a time")]
mod tests;
