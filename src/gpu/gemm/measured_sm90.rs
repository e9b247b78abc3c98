//! Where our product for sm_90 is faster than both ways of the library: measured m of the shapes of published models, and rules for others.
//!
//! Made by `scripts/measured-choices.py`, as [`measured`](super::measured), from one record of an NVIDIA H200 (2026-11-26; it was not kept: `benches/record/2026-11-26-nvidia-h200-sm90/beside.md` repeats a part of it).
//! Its kernels have become 1 to 6 % faster since; the rules are those of [`measured_sm90_h100`](super::measured_sm90_h100). Which of the two is faster changes from one wave of tiles to the next: ours
//! are of many sizes, the library's 128 x 128 mostly. So there are no ranges of m: at each m that was measured the record says, and elsewhere the rule.

use crate::epilogue::Activation;
use crate::format::DType;
use crate::gpu::gemm::measured::{Measured, Rule, Same, Shape};

/// One shape: B is `n x k`, and of [`ROWS_OF_A`], as far as they were measured, ours wins at these.
pub(super) struct Row {
    pub(super) n: usize,
    pub(super) k: usize,
    /// The largest m that was measured.
    pub(super) upto: usize,
    pub(super) wins: &'static [usize],
}

/// The m of the record.
const ROWS_OF_A: [usize; 20] =
    [1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192];

/// When ours wins: from so many rows on, where tiles of 64 x 64 are at most so many for each multiprocessor, or however many they are. The library's fast sums of
/// rows are faster in more rounds than that.
pub(super) struct TileRule {
    pub(super) from: usize,
    /// 0: any number.
    pub(super) tiles: usize,
}

/// One round of tiles of 64 x 64, two on a multiprocessor, of more rows than few. Of row scales an activation that the library fuses is no reason against ours there: observed with SiLU,
/// which it does not fuse, and without one, at 26 shapes (H200, 2026-11-25, `formulations.md` of `a337ca2` and `4f99b82`, and `formulations-others.md`).
pub(super) const ONE_ROUND: TileRule = TileRule { from: 17, tiles: 2 };

impl Shape for Row {
    type Rule = TileRule;

    fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// At the m of the record alone.
    fn wins(&self, m: usize) -> Option<bool> {
        (m <= self.upto && ROWS_OF_A.contains(&m)).then(|| self.wins.contains(&m))
    }

    /// An activation decides more than the type of D: of SiLU the library needs a pass.
    fn by_weight(same: Same) -> [bool; 4] {
        [same.fast, same.activation, same.out, same.plain]
    }
}

impl Rule for TileRule {
    fn wins(&self, [m, n, _]: [usize; 3], sm_count: usize) -> bool {
        let tiles = m.div_ceil(64).saturating_mul(n.div_ceil(64));
        m >= self.from && (self.tiles == 0 || tiles <= self.tiles * sm_count)
    }
}

/// Against the better of the native product and the one of repeated scales.
#[rustfmt::skip] // a row a line
pub(super) const SM90: &[Measured<Row>] = &[
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::None,
        rule: TileRule { from: 17, tiles: 0 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[32, 48, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 4096, 8192] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[1, 2, 3, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[2, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[128, 768, 1024, 3072, 4096, 8192] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[32, 48, 128, 256, 768, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[48, 64, 128, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[48, 64, 192, 256, 512, 768, 2048, 3072, 4096, 8192] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[64, 128, 192, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[48, 64, 768, 1024, 2048, 3072, 4096] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 192, 256, 512, 2048, 3072, 4096, 8192] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 192, 256, 512, 3072, 4096, 8192] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[48, 64, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[64, 128, 192, 512, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[128, 256, 512, 768, 1024, 2048, 3072, 4096] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[64, 192, 512, 768, 1024, 3072, 4096, 8192] },
        ],
    },
    Measured {
        fast: false,
        out: DType::F32,
        activation: Activation::None,
        rule: TileRule { from: 17, tiles: 0 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[48, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 4096, 8192] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[1, 2, 3, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 8192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[2, 32, 48, 64, 128, 192, 256, 512, 2048, 4096, 8192] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[128, 512, 768, 1024, 3072, 4096] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[32, 48, 128, 256, 768, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[2, 3, 48, 64, 128, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[48, 64, 192, 256, 512, 768, 2048, 3072, 4096] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[48, 64, 128, 192, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[32, 48, 128, 512, 768, 1024, 2048] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[48, 64, 768, 1024, 2048, 3072, 4096] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 192, 256, 512, 768, 3072, 4096, 8192] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[48, 64, 192, 256, 512, 768, 2048, 3072, 4096] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[64, 128, 192, 512, 768, 1024, 3072, 4096, 8192] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[128, 256, 512, 2048, 4096] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[64, 192, 512, 768, 1024, 3072, 4096] },
        ],
    },
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::Silu,
        rule: TileRule { from: 17, tiles: 0 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[32, 48, 64, 128, 256, 512, 768, 1024, 2048, 3072, 4096] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[8, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[48, 64, 192, 512, 768, 1024, 2048, 3072, 4096, 8192] },
        ],
    },
];

/// Of scales of rows, against the better of the native product and the rescaled one; of these the rules of [`sm90_rules`](super::sm90_rules) are for other places.
#[rustfmt::skip] // a row a line
pub(super) const SM90_ROWS: &[Measured<Row>] = &[
    Measured {
        fast: true,
        out: DType::Bf16,
        activation: Activation::None,
        rule: TileRule { from: 17, tiles: 6 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[16, 32, 48, 64, 128, 256, 512, 1024, 2048, 3072, 4096] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 4096, 8192] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[4, 8, 12, 16, 32, 48, 64, 192, 256, 512, 768, 1024] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[48, 64, 128, 1024] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[3, 16, 32, 48, 64, 128, 256, 768] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[64, 256, 512] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[32, 48, 64, 128, 192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[48, 64] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[48, 64, 128] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 2048, 3072] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 3072, 4096, 8192] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[64, 256, 512] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[48, 64, 192, 512, 1024] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[48, 64, 512, 1024, 3072] },
        ],
    },
    Measured {
        fast: true,
        out: DType::F32,
        activation: Activation::None,
        rule: TileRule { from: 17, tiles: 6 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[32, 48, 64, 128, 256, 512, 1024, 3072] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 4096] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[4, 8, 12, 16, 32, 48, 64, 192, 256] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[48, 64, 128] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[16, 32, 48, 64, 128, 256, 768] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[48, 64, 256, 512] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[32, 48, 64, 128, 192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[48, 64] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[48, 64, 128] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 3072] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[32, 48, 64, 192, 256, 512] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[48, 64, 128, 192, 512, 1024] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[48, 64, 512, 1024, 3072] },
        ],
    },
    Measured {
        fast: true,
        out: DType::Bf16,
        activation: Activation::Silu,
        rule: TileRule { from: 17, tiles: 0 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[48, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 128, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[8, 16, 32, 48, 64, 128, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[48, 64, 128, 256, 512, 768, 1024, 2048] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[48, 64, 128, 256, 512, 768, 1024, 2048, 3072, 4096] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[32, 48, 64, 128, 192, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[48, 64, 192, 512, 768, 1024, 2048, 3072, 4096, 8192] },
        ],
    },
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::None,
        rule: TileRule { from: 17, tiles: 0 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[32, 48, 64, 128, 256, 512, 1024, 2048, 3072, 4096] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 4096, 8192] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[8, 12, 16, 32, 48, 64, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[48, 64, 128, 1024, 3072] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[3, 16, 32, 48, 64, 128, 256, 768, 2048, 4096, 8192] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 768, 1024, 3072, 4096, 8192] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[48, 64, 256, 512, 768, 2048, 4096] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[32, 48, 64, 128, 192, 768, 1024, 3072, 4096, 8192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[48, 64, 128, 512] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[48, 64, 128] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 2048, 3072, 4096, 8192] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 3072, 4096, 8192] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[32, 48, 64, 256, 512, 768, 2048, 3072] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[48, 64, 128, 192, 512, 1024, 3072, 8192] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[48, 64, 128, 192, 256, 512, 3072, 4096] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[48, 64, 512, 1024, 3072] },
        ],
    },
    Measured {
        fast: false,
        out: DType::F32,
        activation: Activation::None,
        rule: TileRule { from: 17, tiles: 0 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[32, 48, 64, 128, 256, 512, 1024, 2048, 3072, 4096] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 4096, 8192] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 192, 256] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[48, 64, 128, 1024, 3072] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[16, 32, 48, 64, 128, 256, 768] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 768, 1024, 3072] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[32, 48, 64, 256, 512, 768] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[32, 48, 64, 128, 192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[48, 64, 128] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[48, 64, 128] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 2048, 3072, 4096, 8192] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 3072, 4096] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[32, 48, 64, 192, 256, 512, 768] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[48, 64, 128, 192, 512, 1024, 3072] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[32, 48, 64, 128, 256] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[48, 64, 512, 1024, 3072] },
        ],
    },
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::Silu,
        rule: TileRule { from: 17, tiles: 0 },
        rows: &[
            Row { n: 2112, k: 7168, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 576, k: 7168, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 24576, k: 1536, upto: 8192, wins: &[2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 32768, k: 512, upto: 8192, wins: &[2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 16384, upto: 8192, wins: &[48, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 4096, k: 7168, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 128, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 7168, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 10240, k: 8192, upto: 8192, wins: &[8, 16, 32, 48, 64, 128, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 8192, k: 8192, upto: 8192, wins: &[8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 57344, k: 8192, upto: 2048, wins: &[48, 64, 128, 256, 512, 768, 1024, 2048] },
            Row { n: 8192, k: 28672, upto: 4096, wins: &[48, 64, 128, 256, 512, 768, 1024, 2048, 3072, 4096] },
            Row { n: 1536, k: 2048, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 2048, k: 768, upto: 8192, wins: &[1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 10240, k: 5120, upto: 8192, wins: &[3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 5120, k: 8192, upto: 8192, wins: &[32, 48, 64, 128, 192, 512, 768, 1024, 2048, 3072, 4096, 8192] },
            Row { n: 51200, k: 5120, upto: 4096, wins: &[32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096] },
            Row { n: 5120, k: 25600, upto: 8192, wins: &[48, 64, 192, 512, 768, 1024, 2048, 3072, 4096, 8192] },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gemm::measured::{Choice, Problem, choose};
    use crate::gpu::gemm::measured_sm90_h100;
    use crate::models::weight_shapes;

    const PLAIN: Problem = Problem { fast: false, out: DType::Bf16, activation: Activation::None, more: false };

    #[test]
    fn every_published_shape_has_a_row_in_every_table() {
        for table in SM90.iter().chain(SM90_ROWS).chain(measured_sm90_h100::SM90).chain(measured_sm90_h100::SM90_ROWS) {
            let rows: Vec<_> = table.rows.iter().map(|r| (r.n, r.k)).collect();
            assert_eq!(rows, weight_shapes().collect::<Vec<_>>());
            assert!(
                table
                    .rows
                    .iter()
                    .all(|r| r.wins.is_sorted() && r.wins.iter().all(|m| *m <= r.upto && ROWS_OF_A.contains(m)))
            );
        }
    }

    #[test]
    fn an_m_that_was_measured_is_known_and_others_follow_the_rule() {
        // Of 4096 x 7168 ours won at 768 and 4096 and not at 512. The rule is all from 17 rows on.
        let of = |m| choose(SM90, PLAIN, [m, 4096, 7168], 132, true);
        assert_eq!([512, 768, 4096].map(of), [false, true, true].map(|wins| Some(Choice::Measured(wins))));
        assert_eq!([15, 24, 3840].map(of), [false, true, true].map(|wins| Some(Choice::Rule(wins))));
        assert_eq!(choose(SM90, PLAIN, [4096, 4096, 7168], 132, false), Some(Choice::Rule(true)));
        // The largest B was measured up to 2048 rows.
        assert!(matches!(choose(SM90, PLAIN, [2048, 57344, 8192], 132, true), Some(Choice::Measured(_))));
        assert!(matches!(choose(SM90, PLAIN, [3072, 57344, 8192], 132, true), Some(Choice::Rule(_))));
        for other in [
            Problem { out: DType::F16, ..PLAIN },
            Problem { activation: Activation::Gelu, ..PLAIN },
            Problem { more: true, ..PLAIN },
        ] {
            assert!(
                matches!(choose(SM90, other, [512, 4096, 7168], 132, true), Some(Choice::NearestRule(_))),
                "{other:?}"
            );
        }
    }

    /// They are one record's, whichever card's rows stand beside them.
    #[test]
    fn rules_are_those_of_the_latest_kernels() {
        let of = |tables: &[Measured<Row>]| tables.iter().map(|t| (t.rule.from, t.rule.tiles)).collect::<Vec<_>>();
        assert_eq!(of(SM90), of(measured_sm90_h100::SM90));
        assert_eq!(of(SM90_ROWS), of(measured_sm90_h100::SM90_ROWS));
    }

    #[test]
    fn a_rule_counts_tiles() {
        let one_round = |mnk, sm_count| ONE_ROUND.wins(mnk, sm_count);
        assert!(one_round([17, 16896, 16], 132) && one_round([256, 4096, 7168], 132));
        assert!(!one_round([16, 64, 16], 132) && !one_round([512, 4096, 7168], 132));
        assert!(!one_round([1 << 40, 1 << 40, 16], 0), "no number is too large");
        let rule = TileRule { from: 17, tiles: 2 };
        let wins = |m, n| rule.wins([m, n, 512], 132);
        assert_eq!([16, 17, 64, 65].map(|m| wins(m, 264 * 64)), [false, true, true, false]);
        assert!(wins(256, 4096 + 128) && !wins(256, 4096 + 136));
        assert!(!rule.wins([1 << 40, 1 << 40, 1 << 20], 0), "no number is too large, none divides by zero");
        let any = TileRule { from: 33, tiles: 0 };
        assert_eq!([32, 33, 1 << 40].map(|m| any.wins([m, 1 << 40, 16], 132)), [false, true, true]);
    }
}
