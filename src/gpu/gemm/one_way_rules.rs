//! [`is_first`]: where our product for sm_90 comes before cuBLASLt's, of pairs for which cuBLASLt has one way: 1x128 scales on both sides, 128x128 x 1x128, and whole matrices. Pure.
//!
//! Of 98 products of each kind at 13 shapes, m of 64 to 8192, and 30 at five more, on an H200: `benches/record/2026-12-01-nvidia-h200-vectors` says how often these rules are right.

use crate::gpu::gemm::sm90_rules::{fill_rounds, has_rounds, of_vectors_beside_squares};
use crate::gpu::kernels::Sm90Scales;

/// What a call asks of cuBLASLt's one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// What needs a pass of our epilogue kernel behind it.
    pub(super) passes: bool,
    /// That it may take its fast sums, which we do not have.
    pub(super) fast: bool,
    /// D of FP32, whose stores do not overlap our products.
    pub(super) to_fp32: bool,
}

/// Fewer were not measured.
pub(super) const FEWEST_ROWS: usize = 64;

/// Whether ours comes first, of so many rows.
pub(super) fn is_first(scales: Sm90Scales, asked: Asked, mnk: [usize; 3], sm_count: usize) -> bool {
    if mnk[0] < FEWEST_ROWS {
        return false;
    }
    match scales {
        // With a pass, as where it would add to D, ours took 0.70 to 0.97 of its time in several rounds (`sm90.md` of 2026-11-25-nvidia-h200-8e7501d and -27ea1e5, by the kernels of then).
        Sm90Scales::Vectors => of_vectors(mnk, sm_count) || (asked.passes && has_rounds(mnk, sm_count)),
        Sm90Scales::BlocksOfA => of_blocks_of_a(mnk, sm_count),
        // With a pass, of SiLU and of a residual to BF16, ours took 0.64 to 0.89 of the time of precise sums and 0.65 to 0.98 of that of fast ones at all of 14 products.
        Sm90Scales::Outer { each: [false, false] } => {
            asked.passes || (!asked.fast && !asked.to_fp32 && of_matrices(mnk, sm_count))
        }
        Sm90Scales::Outer { .. } | Sm90Scales::Blocks => false,
    }
}

/// Tiles of so many rows and columns.
fn tiles(size: usize, [m, n, _]: [usize; 3]) -> usize {
    m.div_ceil(size).saturating_mul(n.div_ceil(size))
}

/// One round of small tiles, two of 64 x 64 on a multiprocessor, that is full to 0.72 or more.
fn is_one_small_round(mnk: [usize; 3], sm_count: usize) -> bool {
    let small = tiles(64, mnk);
    small <= 2 * sm_count && small.saturating_mul(16) >= 23 * sm_count
}

/// cuBLASLt's tiles are of 128 x 128 mostly, and a little faster than ours of that size. So ours come first where another configuration takes less by a tenth. Not where these tiles are a little more than whole rounds, or too few, as cuBLASLt has other ways there, too; but where they are very few and k is long, blocks of a cluster
/// divide it.
fn of_vectors(mnk: [usize; 3], sm_count: usize) -> bool {
    let [fastest, squares] = of_vectors_beside_squares(mnk, sm_count);
    let below = |percent: u128| 100 * (fastest as u128) < percent * squares as u128;
    !is_little_more(tiles(128, mnk), sm_count) && (below(30) || (mnk[0] > 64 && below(91) && !below(50)))
}

/// Up to an eighth of a round behind one to four whole ones.
fn is_little_more(tiles: usize, sm_count: usize) -> bool {
    tiles > sm_count && tiles < 5 * sm_count && (1..=sm_count / 8).contains(&(tiles % sm_count))
}

/// In one round of small tiles, unless those are few and k is long.
fn of_blocks_of_a(mnk: [usize; 3], sm_count: usize) -> bool {
    let small = tiles(64, mnk);
    small <= 2 * sm_count && (mnk[2] <= 4096 || small > sm_count)
}

/// Of precise sums: in rounds of our largest tiles that are full to nine tenths, in one of small ones, and in two or more of tiles of 128 x 128 where neither n is so small that it cuts many of them nor k so long that cuBLASLt gains by it.
fn of_matrices(mnk: [usize; 3], sm_count: usize) -> bool {
    let (large, [_, n, k]) = (tiles(128, mnk), mnk);
    let rounds = large >= 2 * sm_count && !is_little_more(large, sm_count) && n >= 1024 && k <= 8192;
    rounds || fill_rounds(mnk, sm_count) || is_one_small_round(mnk, sm_count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Asked = Asked { passes: false, fast: false, to_fp32: false };
    const MATRICES: Sm90Scales = Sm90Scales::Outer { each: [false; 2] };
    const ROWS: Sm90Scales = Sm90Scales::Outer { each: [true; 2] };

    /// Our time as a share of cuBLASLt's, to BF16 with pauses (`after.md` and `kept-out.md` of the record; of m = 64, n = 576 and 128x128 x 1x128 `before.md`).
    #[test]
    fn what_was_faster_comes_first() {
        for (scales, mnk, share, first) in [
            (Sm90Scales::Vectors, [256, 10240, 5120], 0.541, true),
            (Sm90Scales::Vectors, [512, 5120, 8192], 0.515, true),
            (Sm90Scales::Vectors, [128, 5120, 8192], 0.803, true),
            (Sm90Scales::Vectors, [256, 4096, 7168], 0.824, true),
            (Sm90Scales::Vectors, [512, 1536, 2048], 0.858, true),
            (Sm90Scales::Vectors, [128, 12288, 1024], 0.894, true),
            (Sm90Scales::Vectors, [1024, 4096, 7168], 0.960, true),
            (Sm90Scales::Vectors, [4096, 4096, 4096], 0.940, true),
            (Sm90Scales::Vectors, [4096, 24576, 1536], 0.957, true),
            (Sm90Scales::Vectors, [128, 576, 7168], 0.813, true),
            (Sm90Scales::Vectors, [512, 4096, 7168], 1.059, false),
            (Sm90Scales::Vectors, [256, 7168, 2048], 1.081, false),
            (Sm90Scales::Vectors, [128, 28672, 4096], 1.115, false),
            (Sm90Scales::Vectors, [1024, 2112, 7168], 1.143, false),
            (Sm90Scales::Vectors, [4096, 2112, 7168], 1.013, false),
            (Sm90Scales::Vectors, [128, 3072, 4096], 1.061, false),
            (Sm90Scales::Vectors, [64, 7168, 2048], 1.080, false),
            (Sm90Scales::BlocksOfA, [256, 4096, 4096], 0.834, true),
            (Sm90Scales::BlocksOfA, [512, 1536, 2048], 0.823, true),
            (Sm90Scales::BlocksOfA, [512, 2112, 7168], 0.854, true),
            (Sm90Scales::BlocksOfA, [128, 4096, 7168], 1.023, false),
            (Sm90Scales::BlocksOfA, [512, 4096, 4096], 1.301, false),
            (MATRICES, [4096, 7168, 16384], 0.945, true),
            (MATRICES, [4096, 7168, 2048], 0.932, true),
            (MATRICES, [512, 12288, 1024], 0.862, true),
            (MATRICES, [1024, 5120, 8192], 0.953, true),
            (MATRICES, [512, 7168, 2048], 1.080, false),
            (MATRICES, [1024, 7168, 16384], 1.050, false),
            (MATRICES, [128, 32768, 512], 1.107, false),
            (MATRICES, [8192, 576, 7168], 1.121, false),
        ] {
            assert_eq!(share < 1.0, first, "{mnk:?}");
            assert_eq!(is_first(scales, PLAIN, mnk, 132), first, "{scales:?} {mnk:?}: {share}");
        }
        // Of so few rows nothing was measured.
        assert!(!is_first(Sm90Scales::Vectors, PLAIN, [63, 576, 7168], 132));
    }

    #[test]
    fn whole_rounds_are_no_little_more() {
        let found = [1, 132, 133, 148, 149, 264, 272, 281, 528, 544, 660, 661].map(|tiles| is_little_more(tiles, 132));
        assert_eq!(found, [false, false, true, true, false, false, true, false, false, true, false, false]);
    }

    #[test]
    fn a_pass_of_the_other_counts() {
        let with_pass = Asked { passes: true, ..PLAIN };
        for (scales, mnk, first) in [
            (Sm90Scales::Vectors, [4096, 2112, 7168], true), // which is left to cuBLASLt without one
            (Sm90Scales::Vectors, [2048, 7168, 16384], true), // likewise
            (Sm90Scales::Vectors, [1024, 2112, 7168], false), // not several rounds
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
            for (mnk, sm_count) in
                [([most; 3], 132), ([65, most, 16], 132), ([most, 8, most], 8), ([most, 8, 16], 1), ([65, 8, 16], 0)]
            {
                is_first(scales, PLAIN, mnk, sm_count);
            }
        }
    }
}
