//! [`is_first`]: where our product for sm_90 comes before cuBLASLt's, of pairs for which cuBLASLt has one way: 1x128 scales on both sides, 128x128 x 1x128, and whole matrices. Pure.
//!
//! Of 98 products at 13 shapes, m of 64 to 8192, on an H200 (`benches/record/2026-12-01-nvidia-h200-vectors`, which says how often these rules are right, and at shapes that were kept out).

use crate::gpu::gemm::sm90_rules::fill_rounds;
use crate::gpu::kernels::Sm90Scales;

/// What a call asks of cuBLASLt's one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// That it stores D with all that follows the sums, without a pass of our epilogue kernel.
    pub(super) stores: bool,
    /// That it may take its fast sums, which we do not have.
    pub(super) fast: bool,
    /// D of FP32, whose stores do not overlap our products.
    pub(super) to_fp32: bool,
}

/// Whether ours comes first.
pub(super) fn is_first(scales: Sm90Scales, asked: Asked, mnk: [usize; 3], sm_count: usize) -> bool {
    if mnk[0] < FEWEST_ROWS {
        return false;
    }
    match scales {
        Sm90Scales::Vectors => of_vectors(mnk, sm_count),
        Sm90Scales::BlocksOfA => of_blocks_of_a(mnk, sm_count),
        // A pass costs the other more than any difference between the products.
        Sm90Scales::Outer { each: [false, false] } => {
            !asked.stores || (!asked.fast && !asked.to_fp32 && of_matrices(mnk, sm_count))
        }
        Sm90Scales::Outer { .. } | Sm90Scales::Blocks => false,
    }
}

/// Fewer were not measured.
const FEWEST_ROWS: usize = 33;

/// Tiles of so many rows and columns.
fn tiles(size: usize, [m, n, _]: [usize; 3]) -> usize {
    m.div_ceil(size).saturating_mul(n.div_ceil(size))
}

/// One round of small tiles, nearly full: two of 64 x 64 on a multiprocessor, or one of twice that.
fn is_one_small_round(mnk: [usize; 3], sm_count: usize) -> bool {
    let small = tiles(64, mnk);
    small <= 2 * sm_count && small.saturating_mul(16) >= 23 * sm_count
}

/// cuBLASLt's tiles are of 128 x 128 mostly: ours are faster where these are more than a round, unless they are a little more than one or two, as it has smaller ones then, too; where they are half to three
/// quarters of one; and in one round of small tiles.
fn of_vectors(mnk: [usize; 3], sm_count: usize) -> bool {
    let large = tiles(128, mnk);
    let little_more = large < 3 * sm_count && large % sm_count < sm_count.div_ceil(10);
    let rounds = large > sm_count && !little_more;
    let half = 2 * large > sm_count && 4 * large <= 3 * sm_count;
    rounds || half || is_one_small_round(mnk, sm_count)
}

/// In one round of small tiles, unless those are few and k is long.
fn of_blocks_of_a(mnk: [usize; 3], sm_count: usize) -> bool {
    let small = tiles(64, mnk);
    small <= 2 * sm_count && (mnk[2] <= 4096 || small > sm_count)
}

/// Of precise sums: in rounds of our largest tiles that are full to nine tenths, and one of small ones.
fn of_matrices(mnk: [usize; 3], sm_count: usize) -> bool {
    fill_rounds(mnk, sm_count) || is_one_small_round(mnk, sm_count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Asked = Asked { stores: true, fast: false, to_fp32: false };
    const MATRICES: Sm90Scales = Sm90Scales::Outer { each: [false; 2] };
    const ROWS: Sm90Scales = Sm90Scales::Outer { each: [true; 2] };

    /// Our time as a share of cuBLASLt's, with pauses.
    #[test]
    fn what_was_faster_comes_first() {
        for (scales, mnk, share, first) in [
            (Sm90Scales::Vectors, [256, 10240, 5120], 0.54, true),
            (Sm90Scales::Vectors, [1024, 1536, 2048], 0.94, true),
            (Sm90Scales::Vectors, [256, 4096, 7168], 0.81, true),
            (Sm90Scales::Vectors, [512, 1536, 2048], 0.87, true),
            (Sm90Scales::Vectors, [1024, 4096, 7168], 0.94, true),
            (Sm90Scales::Vectors, [4096, 4096, 4096], 0.94, true),
            (Sm90Scales::Vectors, [8192, 2112, 7168], 0.95, true),
            (Sm90Scales::Vectors, [512, 4096, 7168], 1.05, false),
            (Sm90Scales::Vectors, [256, 7168, 2048], 1.10, false),
            (Sm90Scales::Vectors, [1024, 2112, 7168], 1.15, false),
            (Sm90Scales::Vectors, [2048, 2112, 7168], 1.16, false),
            (Sm90Scales::Vectors, [128, 1536, 2048], 1.14, false),
            (Sm90Scales::BlocksOfA, [256, 4096, 4096], 0.83, true),
            (Sm90Scales::BlocksOfA, [512, 1536, 2048], 0.82, true),
            (Sm90Scales::BlocksOfA, [512, 2112, 7168], 0.85, true),
            (Sm90Scales::BlocksOfA, [128, 4096, 7168], 1.02, false),
            (Sm90Scales::BlocksOfA, [512, 4096, 4096], 1.30, false),
            (MATRICES, [4096, 7168, 16384], 0.95, true),
            (MATRICES, [4096, 7168, 2048], 0.93, true),
            (MATRICES, [1024, 7168, 16384], 1.05, false),
            (MATRICES, [8192, 576, 7168], 1.12, false),
            (MATRICES, [128, 4096, 4096], 0.96, false), // left to cuBLASLt
        ] {
            assert!(!first || share < 1.0, "{mnk:?}: what is slower is not to come first");
            assert_eq!(is_first(scales, PLAIN, mnk, 132), first, "{scales:?} {mnk:?}: {share}");
        }
    }

    #[test]
    fn a_pass_of_the_other_counts() {
        let with_pass = Asked { stores: false, ..PLAIN };
        for (scales, mnk, first) in [
            (Sm90Scales::Vectors, [2048, 2112, 7168], false), // not measured
            (Sm90Scales::Vectors, [2048, 4096, 7168], true),
            (MATRICES, [512, 4096, 7168], true),
            (MATRICES, [32, 4096, 7168], false),
        ] {
            assert_eq!(is_first(scales, with_pass, mnk, 132), first, "{scales:?} {mnk:?}");
        }
        // Its fast sums are as fast as ours at the least, and what it stores in FP32.
        for asked in [Asked { fast: true, ..PLAIN }, Asked { to_fp32: true, ..PLAIN }] {
            assert!(!is_first(MATRICES, asked, [4096, 4096, 7168], 132));
            assert!(is_first(Sm90Scales::Vectors, asked, [4096, 4096, 7168], 132));
        }
    }

    /// Pairs of which it has two ways have tables.
    #[test]
    fn others_are_not_asked() {
        for scales in [ROWS, Sm90Scales::Blocks] {
            assert!(!is_first(scales, PLAIN, [4096, 4096, 7168], 132), "{scales:?}");
        }
    }

    #[test]
    fn the_largest_problems_are_answered() {
        let most = i32::MAX as usize;
        for scales in [Sm90Scales::Vectors, Sm90Scales::BlocksOfA, MATRICES] {
            for mnk in [[most; 3], [33, most, 16], [most, 8, most]] {
                is_first(scales, PLAIN, mnk, 132);
            }
        }
    }
}
