//! Where our product for sm_90 is faster than both ways of the library: measured m of the shapes of published models, and rules for others.
//!
//! Made by `scripts/measured-choices.py`, as [`measured`](super::measured), from one record of an NVIDIA H200 (2026-11-26; it was not kept: `benches/record/2026-11-26-nvidia-h200-sm90/beside.md` repeats a part of it).
//! Which of the two is faster changes from one wave of tiles to the next: ours
//! are of many sizes, the library's 128 x 128 mostly. So there are no ranges of m: at each m that was measured the record says, and elsewhere the rule.

use crate::epilogue::Activation;
use crate::format::DType;
use crate::gpu::gemm::measured::{Measured, Rule, Same, Shape};

/// One shape: B is `n x k`, and of [`ROWS_OF_A`], as far as they were measured, ours wins at these.
pub(super) struct Row {
    n: usize,
    k: usize,
    /// The largest m that was measured.
    upto: usize,
    wins: &'static [usize],
}

/// The m of the record.
const ROWS_OF_A: [usize; 20] =
    [1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192];

/// When ours wins: on a wide B, where m fills one tile of 64 rows; on a short k, where the end of a tile counts; and where its larger tiles leave
/// no larger part of their last wave idle, or everywhere.
pub(super) struct WaveRule {
    /// `few[0] <= m <= few[1]` and
    few: [usize; 2],
    /// `n >= wide`, or
    wide: usize,
    /// `m >= short_m` and
    short_m: usize,
    /// `k <= short_k`, or
    short_k: usize,
    /// `m >= least_m` and
    least_m: usize,
    /// tiles of 256 x 128 fill their waves to this part, in percent, of what tiles of 128 x 128 fill theirs to; 0: whatever they fill.
    percent: usize,
}

impl Shape for Row {
    type Rule = WaveRule;

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

impl Rule for WaveRule {
    fn wins(&self, [m, n, k]: [usize; 3], sm_count: usize) -> bool {
        // Tiles, and places for tiles in all their waves.
        let tiles = |rows: usize| {
            let tiles = n.div_ceil(128) * m.div_ceil(rows);
            (tiles, tiles.next_multiple_of(sm_count.max(1)))
        };
        let (ours, theirs) = (tiles(256), tiles(128));
        let fills = 100 * ours.0 as u128 * theirs.1 as u128 >= self.percent as u128 * theirs.0 as u128 * ours.1 as u128;
        ((self.few[0]..=self.few[1]).contains(&m) && n >= self.wide)
            || (m >= self.short_m && k <= self.short_k)
            || (m >= self.least_m && fills)
    }
}

/// Against the better of the native product and the one of repeated scales.
#[rustfmt::skip] // a row a line
pub(super) const SM90: &[Measured<Row>] = &[
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::None,
        rule: WaveRule { few: [17, 64], wide: 8192, short_m: 65, short_k: 0, least_m: 33, percent: 0 },
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
        rule: WaveRule { few: [17, 64], wide: 8192, short_m: 65, short_k: 0, least_m: 33, percent: 0 },
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
        rule: WaveRule { few: [1, 0], wide: 4096, short_m: 65, short_k: 0, least_m: 17, percent: 0 },
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
        rule: WaveRule { few: [1, 0], wide: 4096, short_m: 65, short_k: 1024, least_m: 17, percent: 100 },
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
        rule: WaveRule { few: [1, 0], wide: 4096, short_m: 65, short_k: 1024, least_m: 17, percent: 100 },
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
        rule: WaveRule { few: [1, 0], wide: 4096, short_m: 65, short_k: 0, least_m: 17, percent: 0 },
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
        rule: WaveRule { few: [1, 0], wide: 4096, short_m: 65, short_k: 0, least_m: 17, percent: 0 },
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
        rule: WaveRule { few: [1, 0], wide: 4096, short_m: 65, short_k: 0, least_m: 17, percent: 0 },
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
        rule: WaveRule { few: [1, 0], wide: 4096, short_m: 65, short_k: 0, least_m: 17, percent: 0 },
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
    use crate::models::weight_shapes;

    const PLAIN: Problem = Problem { fast: false, out: DType::Bf16, activation: Activation::None, more: false };

    #[test]
    fn every_published_shape_has_a_row_in_every_table() {
        for table in SM90.iter().chain(SM90_ROWS) {
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
        // Of 4096 x 7168 ours won at 768 and 4096 and not at 512. The rule is all from 33 rows on.
        let of = |m| choose(SM90, PLAIN, [m, 4096, 7168], 132, true);
        assert_eq!([512, 768, 4096].map(of), [false, true, true].map(|wins| Some(Choice::Measured(wins))));
        assert_eq!([24, 40, 3840].map(of), [false, true, true].map(|wins| Some(Choice::Rule(wins))));
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

    #[test]
    fn a_rule_counts_waves() {
        let rule = WaveRule { few: [33, 64], wide: 4096, short_m: 100, short_k: 512, least_m: 129, percent: 96 };
        let wins = |m, n, k| rule.wins([m, n, k], 132);
        assert_eq!([32, 33, 64, 65].map(|m| wins(m, 4096, 4096)), [false, true, true, false]);
        assert!(!wins(64, 4088, 4096) && wins(100, 8, 512) && !wins(99, 8, 512) && !wins(100, 8, 528));
        // 66 tiles, half a wave, and 132 of the library's.
        assert!(!wins(512, 33 * 128, 4096));
        // One wave and two, all full; with more columns 0.52 and 0.69 of two and three.
        assert!(wins(1024, 33 * 128, 4096) && !wins(1024, 34 * 128, 4096));
        assert!(!wins(128, 33 * 128, 4096), "m is below the least");
        assert!(rule.wins([1 << 30, 1 << 30, 1 << 20], 0), "no number is too large, none divides by zero");
    }
}
