//! Which formulation is the faster one: measured choices for the shapes of published models, and rules for others.
//!
//! Made by `scripts/measured-choices.py` from records of `benches/formulations.rs`, which also says how good table and rules
//! are at places that they were not made from. What stands here is of three runs on NVIDIA H200, `formulations.md` in
//! `2026-11-23-nvidia-h200`, `2026-11-23-nvidia-h200-fea77ce` and `2026-11-24-nvidia-h200-4259385` of `benches/record`: cuBLASLt 13.1.0,
//! formulations in turns and back to back, 17 shapes, 20 m. A table is for one problem: precision of the sums, type of D and activation, with
//! nothing else in the epilogue; and for the GPU and library that it was measured on. A rule is for every sm_90.

use crate::epilogue::Activation;
use crate::format::DType;
use crate::gpu::lt::quirks::Version;

/// What was measured of one pair of schemes and one problem.
pub(super) struct Measured<R: Shape + 'static> {
    /// Sums are [`Accumulation::Fast`](crate::gpu::gemm::desc::Accumulation); pairs with groups of 128, and sums of our kernels, are always precise.
    pub(super) fast: bool,
    pub(super) out: DType,
    pub(super) activation: Activation,
    pub(super) rule: R::Rule,
    pub(super) rows: &'static [R],
}

/// What was measured of one shape of B, and the rule for others.
pub(super) trait Shape {
    type Rule: Rule;

    /// Rows and columns of B.
    fn shape(&self) -> (usize, usize);

    /// Whether the alternative wins at this m; `None` where nothing is known of it.
    fn wins(&self, m: usize) -> Option<bool>;

    /// In what a problem should be like that of a table, from what decides most on.
    fn by_weight(same: Same) -> [bool; 4];
}

/// When an alternative wins at shapes that were not measured.
pub(super) trait Rule {
    fn wins(&self, mnk: [usize; 3], sm_count: usize) -> bool;
}

/// What a problem has in common with that of a table.
pub(super) struct Same {
    pub(super) fast: bool,
    pub(super) out: bool,
    pub(super) activation: bool,
    /// Nothing else in the epilogue.
    pub(super) plain: bool,
}

/// One shape: B is `n x k`. The alternative to the native formulation wins from the first m of each range to the second, both of [`ROWS_OF_A`], and
/// beyond 8192 if it wins there. Two ranges, where every record says so: repeated scales take 31 us for 44 at 1024 x 2112 x 7168, and 41 us for 24 at m = 768.
pub(super) struct Row {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) wins: &'static [[usize; 2]],
}

/// The m that ranges are made from. Not powers of two alone: at m = 192 the library's own product took up to 1.7 times the other's time, at shapes where it is
/// the faster one at 256.
const ROWS_OF_A: [usize; 18] = [1, 2, 4, 8, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192];

/// When the alternative wins: while m is small; while D is small beside B, as it costs some bytes an element of D; while
/// the native tiles leave a part of the GPU idle on a long k.
pub(super) struct SizeRule {
    /// `m <= small`, or
    pub(super) small: usize,
    /// `m * k_per_m <= k` (0: never), or
    pub(super) k_per_m: usize,
    /// `k >= least_k` and
    pub(super) least_k: usize,
    /// tiles of `tile x 128` elements of D on
    pub(super) tile: usize,
    /// at most this part of the multiprocessors.
    pub(super) percent: usize,
}

/// What decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) fast: bool,
    pub(super) out: DType,
    pub(super) activation: Activation,
    /// Bias, residual, old D or amax count, too: not what was measured.
    pub(super) more: bool,
}

/// Whether the alternative wins, and how that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// Measured at this shape.
    Measured(bool),
    /// By the rule for such problems.
    Rule(bool),
    /// By the rule for the nearest problems that were measured.
    NearestRule(bool),
}

/// A GPU that rows were measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Card {
    H200,
    H100,
}

impl Card {
    /// That of a GPU of this name.
    pub(crate) fn of(gpu: &str) -> Option<Self> {
        match gpu {
            "NVIDIA H200" => Some(Self::H200),
            "NVIDIA H100 80GB HBM3" => Some(Self::H100),
            _ => None,
        }
    }
}

/// The library that all rows were measured with.
const LIBRARY: (Version, Version) = (Version::new(13, 1, 0), Version::new(13, 2, 0));

/// The GPU whose rows hold for a GPU of this name, with this library.
pub(crate) fn card(gpu: &str, library: Version) -> Option<Card> {
    Card::of(gpu).filter(|_| (LIBRARY.0..LIBRARY.1).contains(&library))
}

impl std::fmt::Display for Card {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Card::H200 => "H200",
            Card::H100 => "H100",
        })
    }
}

/// Whether the alternative wins. Rows count where `rows` says that they hold here.
pub(super) fn choose<R: Shape>(
    tables: &[Measured<R>],
    problem: Problem,
    [m, n, k]: [usize; 3],
    sm_count: usize,
    rows: bool,
) -> Option<Choice> {
    let likeness = |t: &Measured<R>| {
        R::by_weight(Same {
            fast: t.fast == problem.fast,
            out: t.out == problem.out,
            activation: t.activation == problem.activation,
            plain: !problem.more,
        })
    };
    let table = tables.iter().max_by_key(|t| likeness(t))?;
    let by_rule = table.rule.wins([m, n, k], sm_count);
    if likeness(table) != [true; 4] {
        return Some(Choice::NearestRule(by_rule));
    }
    let row = table.rows.iter().find(|row| rows && row.shape() == (n, k));
    Some(row.and_then(|row| row.wins(m)).map_or(Choice::Rule(by_rule), Choice::Measured))
}

impl Shape for Row {
    type Rule = SizeRule;

    fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// As at the next measured m that is not smaller; beyond 8192 as there.
    fn wins(&self, m: usize) -> Option<bool> {
        let last = ROWS_OF_A[ROWS_OF_A.len() - 1];
        let place = ROWS_OF_A.into_iter().find(|place| *place >= m).unwrap_or(last);
        Some(self.wins.iter().any(|[first, last]| (*first..=*last).contains(&place)))
    }

    /// The sums decide more than the traffic of D, and that more than what the epilogue computes.
    fn by_weight(same: Same) -> [bool; 4] {
        [same.fast, same.out, same.activation, same.plain]
    }
}

impl Rule for SizeRule {
    fn wins(&self, [m, n, k]: [usize; 3], sm_count: usize) -> bool {
        let tiles = n.div_ceil(128) * m.div_ceil(self.tile);
        m <= self.small
            || (self.k_per_m > 0 && m * self.k_per_m <= k)
            || (k >= self.least_k && 100 * tiles <= self.percent * sm_count)
    }
}

/// Repeated scales against the native 1x128 x 128x128 product.
pub(super) const REPEATED_SCALES: &[Measured<Row>] = &[
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::None,
        rule: SizeRule { small: 64, k_per_m: 0, least_k: 0, tile: 64, percent: 75 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 512], [1024, 2048]] },
            Row { n: 576, k: 7168, wins: &[[1, 768]] },
            Row { n: 24576, k: 1536, wins: &[[1, 64]] },
            Row { n: 32768, k: 512, wins: &[[1, 64]] },
            Row { n: 7168, k: 16384, wins: &[[1, 64]] },
            Row { n: 4096, k: 7168, wins: &[[1, 128]] },
            Row { n: 7168, k: 2048, wins: &[[1, 64]] },
            Row { n: 10240, k: 8192, wins: &[[1, 48], [192, 192]] },
            Row { n: 8192, k: 8192, wins: &[[1, 128]] },
            Row { n: 57344, k: 8192, wins: &[[1, 64]] },
            Row { n: 8192, k: 28672, wins: &[[1, 64]] },
            Row { n: 1536, k: 2048, wins: &[[1, 256]] },
            Row { n: 2048, k: 768, wins: &[[1, 256]] },
            Row { n: 10240, k: 5120, wins: &[[1, 48], [192, 192]] },
            Row { n: 5120, k: 8192, wins: &[[1, 64]] },
            Row { n: 51200, k: 5120, wins: &[[1, 64]] },
            Row { n: 5120, k: 25600, wins: &[[1, 64]] },
        ],
    },
    Measured {
        fast: false,
        out: DType::F32,
        activation: Activation::None,
        rule: SizeRule { small: 64, k_per_m: 0, least_k: 0, tile: 64, percent: 75 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 512], [1024, 2048]] },
            Row { n: 576, k: 7168, wins: &[[1, 768]] },
            Row { n: 24576, k: 1536, wins: &[[1, 64]] },
            Row { n: 32768, k: 512, wins: &[[1, 64]] },
            Row { n: 7168, k: 16384, wins: &[[1, 64]] },
            Row { n: 4096, k: 7168, wins: &[[1, 128]] },
            Row { n: 7168, k: 2048, wins: &[[1, 64]] },
            Row { n: 10240, k: 8192, wins: &[[16, 48], [192, 192]] },
            Row { n: 8192, k: 8192, wins: &[[1, 128]] },
            Row { n: 57344, k: 8192, wins: &[[1, 64]] },
            Row { n: 8192, k: 28672, wins: &[[1, 64]] },
            Row { n: 1536, k: 2048, wins: &[[1, 256]] },
            Row { n: 2048, k: 768, wins: &[[1, 256]] },
            Row { n: 10240, k: 5120, wins: &[[1, 48], [192, 192]] },
            Row { n: 5120, k: 8192, wins: &[[1, 64]] },
            Row { n: 51200, k: 5120, wins: &[[1, 64]] },
            Row { n: 5120, k: 25600, wins: &[[1, 64]] },
        ],
    },
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::Silu,
        rule: SizeRule { small: 64, k_per_m: 0, least_k: 0, tile: 64, percent: 75 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 512], [1024, 2048]] },
            Row { n: 576, k: 7168, wins: &[[1, 768]] },
            Row { n: 24576, k: 1536, wins: &[[1, 64]] },
            Row { n: 32768, k: 512, wins: &[[1, 64]] },
            Row { n: 7168, k: 16384, wins: &[[1, 64]] },
            Row { n: 4096, k: 7168, wins: &[[1, 128]] },
            Row { n: 7168, k: 2048, wins: &[[1, 64]] },
            Row { n: 10240, k: 8192, wins: &[[16, 48], [192, 192]] },
            Row { n: 8192, k: 8192, wins: &[[1, 128]] },
            Row { n: 57344, k: 8192, wins: &[[1, 64]] },
            Row { n: 8192, k: 28672, wins: &[[1, 64]] },
            Row { n: 1536, k: 2048, wins: &[[1, 256]] },
            Row { n: 2048, k: 768, wins: &[[1, 256]] },
            Row { n: 10240, k: 5120, wins: &[[1, 48], [192, 192]] },
            Row { n: 5120, k: 8192, wins: &[[1, 64]] },
            Row { n: 51200, k: 5120, wins: &[[1, 64]] },
            Row { n: 5120, k: 25600, wins: &[[1, 64]] },
        ],
    },
];

/// A scalar product with a rescale against the native row x row product.
pub(super) const RESCALED: &[Measured<Row>] = &[
    Measured {
        fast: true,
        out: DType::Bf16,
        activation: Activation::None,
        rule: SizeRule { small: 4, k_per_m: 160, least_k: 6144, tile: 128, percent: 75 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 3072]] },
            Row { n: 576, k: 7168, wins: &[[1, 1024], [4096, 8192]] },
            Row { n: 24576, k: 1536, wins: &[[1, 2]] },
            Row { n: 32768, k: 512, wins: &[[1, 4]] },
            Row { n: 7168, k: 16384, wins: &[[1, 128]] },
            Row { n: 4096, k: 7168, wins: &[[1, 256]] },
            Row { n: 7168, k: 2048, wins: &[[1, 1]] },
            Row { n: 10240, k: 8192, wins: &[[192, 256]] },
            Row { n: 8192, k: 8192, wins: &[[1, 192]] },
            Row { n: 57344, k: 8192, wins: &[[1, 64], [192, 192]] },
            Row { n: 8192, k: 28672, wins: &[[1, 192]] },
            Row { n: 1536, k: 2048, wins: &[[1, 256]] },
            Row { n: 2048, k: 768, wins: &[] },
            Row { n: 10240, k: 5120, wins: &[[192, 256]] },
            Row { n: 5120, k: 8192, wins: &[[1, 512]] },
            Row { n: 51200, k: 5120, wins: &[[1, 16]] },
            Row { n: 5120, k: 25600, wins: &[[1, 1024]] },
        ],
    },
    Measured {
        fast: true,
        out: DType::F32,
        activation: Activation::None,
        rule: SizeRule { small: 16, k_per_m: 80, least_k: 4096, tile: 64, percent: 75 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 3072]] },
            Row { n: 576, k: 7168, wins: &[[1, 1024], [4096, 4096]] },
            Row { n: 24576, k: 1536, wins: &[[1, 16]] },
            Row { n: 32768, k: 512, wins: &[[1, 16]] },
            Row { n: 7168, k: 16384, wins: &[[1, 128]] },
            Row { n: 4096, k: 7168, wins: &[[1, 256]] },
            Row { n: 7168, k: 2048, wins: &[[1, 16]] },
            Row { n: 10240, k: 8192, wins: &[[192, 256]] },
            Row { n: 8192, k: 8192, wins: &[[1, 64]] },
            Row { n: 57344, k: 8192, wins: &[[1, 64], [192, 192]] },
            Row { n: 8192, k: 28672, wins: &[[1, 192]] },
            Row { n: 1536, k: 2048, wins: &[[1, 512]] },
            Row { n: 2048, k: 768, wins: &[[1, 2]] },
            Row { n: 10240, k: 5120, wins: &[[1, 16]] },
            Row { n: 5120, k: 8192, wins: &[[1, 512]] },
            Row { n: 51200, k: 5120, wins: &[[1, 16]] },
            Row { n: 5120, k: 25600, wins: &[[1, 512]] },
        ],
    },
    Measured {
        fast: true,
        out: DType::Bf16,
        activation: Activation::Silu,
        rule: SizeRule { small: 64, k_per_m: 0, least_k: 0, tile: 128, percent: 100 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 4096]] },
            Row { n: 576, k: 7168, wins: &[[1, 8192]] },
            Row { n: 24576, k: 1536, wins: &[[1, 256]] },
            Row { n: 32768, k: 512, wins: &[[1, 2048]] },
            Row { n: 7168, k: 16384, wins: &[[1, 768]] },
            Row { n: 4096, k: 7168, wins: &[[1, 768]] },
            Row { n: 7168, k: 2048, wins: &[[1, 768]] },
            Row { n: 10240, k: 8192, wins: &[[1, 512]] },
            Row { n: 8192, k: 8192, wins: &[[1, 192]] },
            Row { n: 57344, k: 8192, wins: &[[1, 192]] },
            Row { n: 8192, k: 28672, wins: &[[1, 192]] },
            Row { n: 1536, k: 2048, wins: &[[1, 3072]] },
            Row { n: 2048, k: 768, wins: &[[1, 4096]] },
            Row { n: 10240, k: 5120, wins: &[[1, 512]] },
            Row { n: 5120, k: 8192, wins: &[[1, 1024]] },
            Row { n: 51200, k: 5120, wins: &[[1, 128]] },
            Row { n: 5120, k: 25600, wins: &[[1, 1024]] },
        ],
    },
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::None,
        rule: SizeRule { small: 0, k_per_m: 80, least_k: 4096, tile: 64, percent: 75 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 3072]] },
            Row { n: 576, k: 7168, wins: &[[1, 1024], [4096, 8192]] },
            Row { n: 24576, k: 1536, wins: &[[1, 48]] },
            Row { n: 32768, k: 512, wins: &[[1, 1]] },
            Row { n: 7168, k: 16384, wins: &[[1, 1024]] },
            Row { n: 4096, k: 7168, wins: &[[1, 256]] },
            Row { n: 7168, k: 2048, wins: &[[1, 32]] },
            Row { n: 10240, k: 8192, wins: &[[1, 64], [192, 512]] },
            Row { n: 8192, k: 8192, wins: &[[1, 192]] },
            Row { n: 57344, k: 8192, wins: &[[1, 192]] },
            Row { n: 8192, k: 28672, wins: &[[1, 192]] },
            Row { n: 1536, k: 2048, wins: &[[1, 192]] },
            Row { n: 2048, k: 768, wins: &[] },
            Row { n: 10240, k: 5120, wins: &[[1, 64], [192, 192]] },
            Row { n: 5120, k: 8192, wins: &[[1, 512]] },
            Row { n: 51200, k: 5120, wins: &[[1, 64]] },
            Row { n: 5120, k: 25600, wins: &[[1, 512], [1024, 1024]] },
        ],
    },
    Measured {
        fast: false,
        out: DType::F32,
        activation: Activation::None,
        rule: SizeRule { small: 0, k_per_m: 80, least_k: 1024, tile: 64, percent: 75 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 512], [1024, 3072]] },
            Row { n: 576, k: 7168, wins: &[[1, 1024], [4096, 8192]] },
            Row { n: 24576, k: 1536, wins: &[[1, 32]] },
            Row { n: 32768, k: 512, wins: &[[1, 4]] },
            Row { n: 7168, k: 16384, wins: &[[1, 192]] },
            Row { n: 4096, k: 7168, wins: &[[1, 256]] },
            Row { n: 7168, k: 2048, wins: &[[1, 32]] },
            Row { n: 10240, k: 8192, wins: &[[1, 64], [192, 256]] },
            Row { n: 8192, k: 8192, wins: &[[1, 192]] },
            Row { n: 57344, k: 8192, wins: &[[1, 192]] },
            Row { n: 8192, k: 28672, wins: &[[1, 192]] },
            Row { n: 1536, k: 2048, wins: &[[1, 256]] },
            Row { n: 2048, k: 768, wins: &[[1, 1]] },
            Row { n: 10240, k: 5120, wins: &[[1, 64], [192, 192]] },
            Row { n: 5120, k: 8192, wins: &[[1, 512]] },
            Row { n: 51200, k: 5120, wins: &[[1, 64]] },
            Row { n: 5120, k: 25600, wins: &[[1, 1024]] },
        ],
    },
    Measured {
        fast: false,
        out: DType::Bf16,
        activation: Activation::Silu,
        rule: SizeRule { small: 128, k_per_m: 0, least_k: 0, tile: 128, percent: 100 },
        rows: &[
            Row { n: 2112, k: 7168, wins: &[[1, 8192]] },
            Row { n: 576, k: 7168, wins: &[[1, 8192]] },
            Row { n: 24576, k: 1536, wins: &[[1, 192]] },
            Row { n: 32768, k: 512, wins: &[[1, 8192]] },
            Row { n: 7168, k: 16384, wins: &[[1, 1024]] },
            Row { n: 4096, k: 7168, wins: &[[1, 768]] },
            Row { n: 7168, k: 2048, wins: &[[1, 1024]] },
            Row { n: 10240, k: 8192, wins: &[[1, 512]] },
            Row { n: 8192, k: 8192, wins: &[[1, 192]] },
            Row { n: 57344, k: 8192, wins: &[[1, 192]] },
            Row { n: 8192, k: 28672, wins: &[[1, 192]] },
            Row { n: 1536, k: 2048, wins: &[[1, 3072]] },
            Row { n: 2048, k: 768, wins: &[[1, 768]] },
            Row { n: 10240, k: 5120, wins: &[[1, 512]] },
            Row { n: 5120, k: 8192, wins: &[[1, 1024]] },
            Row { n: 51200, k: 5120, wins: &[[1, 128]] },
            Row { n: 5120, k: 25600, wins: &[[1, 1024]] },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::gemm::measured_h100;
    use crate::models::weight_shapes;

    #[test]
    fn every_published_shape_has_a_row_in_every_table() {
        let h100 = measured_h100::REPEATED_SCALES.iter().chain(measured_h100::RESCALED);
        for table in REPEATED_SCALES.iter().chain(RESCALED).chain(h100) {
            let rows: Vec<_> = table.rows.iter().map(|r| (r.n, r.k)).collect();
            assert_eq!(rows, weight_shapes().collect::<Vec<_>>());
            let measured = |m: usize| ROWS_OF_A.contains(&m);
            assert!(
                table
                    .rows
                    .iter()
                    .flat_map(|r| r.wins)
                    .all(|range| range[0] <= range[1] && range.map(measured) == [true; 2])
            );
        }
    }

    #[test]
    fn m_counts_as_the_next_measured_one() {
        let row = |wins| Row { n: 8, k: 16, wins };
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 8].map(|m| row(&[[2, 4]]).wins(m).unwrap()),
            [false, false, true, true, true, false, false]
        );
        assert_eq!([4096, 4097, 8192, 1 << 20].map(|m| row(&[[4096, 8192]]).wins(m).unwrap()), [true; 4]);
        assert_eq!([3073, 4096, 4097].map(|m| row(&[[1, 4096]]).wins(m).unwrap()), [true, true, false]);
        assert_eq!(
            [128, 129, 192, 193, 256].map(|m| row(&[[192, 192]]).wins(m).unwrap()),
            [false, true, true, false, false]
        );
        let two = row(&[[1, 512], [1024, 2048]]);
        assert_eq!(
            [512, 513, 768, 769, 2048, 2049].map(|m| two.wins(m).unwrap()),
            [true, false, false, true, true, false]
        );
        assert!([0, 1, 8192, 1 << 20].iter().all(|m| !row(&[]).wins(*m).unwrap()));
    }

    #[test]
    fn a_table_is_for_its_problem_a_rule_for_the_nearest() {
        let rule = SizeRule { small: 4, k_per_m: 100, least_k: 4096, tile: 128, percent: 50 };
        let rows: &[Row] = &[Row { n: 1024, k: 2048, wins: &[[64, 128]] }];
        let never = SizeRule { small: 0, k_per_m: 0, least_k: 0, tile: 64, percent: 0 };
        let table = |fast, rule| Measured { fast, out: DType::Bf16, activation: Activation::None, rule, rows };
        let tables = [table(true, rule), table(false, never)];
        let fast = Problem { fast: true, out: DType::Bf16, activation: Activation::None, more: false };
        let choose = |problem, m, n, k| choose(&tables, problem, [m, n, k], 132, true).unwrap();
        assert_eq!(choose(fast, 100, 1024, 2048), Choice::Measured(true));
        assert_eq!(choose(fast, 1, 1024, 2048), Choice::Measured(false));
        // 20 * 100 <= 2048 and not 21 * 100; at a long k 8 tiles of 128 rows are 64, below half of 132, and 72 are not.
        assert_eq!([4, 20, 21].map(|m| choose(fast, m, 1032, 2048)), [true, true, false].map(Choice::Rule));
        assert_eq!([1024, 1025].map(|m| choose(fast, m, 1024, 4096)), [true, false].map(Choice::Rule));
        for other in [
            Problem { out: DType::F32, ..fast },
            Problem { out: DType::F16, ..fast },
            Problem { activation: Activation::Silu, ..fast },
            Problem { more: true, ..fast },
        ] {
            assert_eq!(choose(other, 4, 1024, 2048), Choice::NearestRule(true), "{other:?}");
        }
        assert_eq!(choose(Problem { fast: false, ..fast }, 4, 8, 64), Choice::Rule(false));
        assert_eq!(super::choose(&tables, fast, [100, 1024, 2048], 132, false), Some(Choice::Rule(false)));
        assert_eq!(super::choose::<Row>(&[], fast, [1, 8, 16], 132, true), None);
    }

    #[test]
    fn the_rows_hold_for_their_gpu_and_library_only() {
        let of = |name, [major, minor, patch]: [u32; 3]| card(name, Version::new(major, minor, patch));
        for (name, expected) in [("NVIDIA H200", Card::H200), ("NVIDIA H100 80GB HBM3", Card::H100)] {
            assert_eq!([[13, 1, 0], [13, 1, 3]].map(|library| of(name, library)), [Some(expected); 2]);
            assert_eq!([[13, 2, 0], [12, 9, 1]].map(|library| of(name, library)), [None; 2]);
        }
        // Of less memory bandwidth and fewer multiprocessors.
        assert_eq!(["NVIDIA H100 PCIe", "NVIDIA H800"].map(|name| of(name, [13, 1, 0])), [None; 2]);
    }
}
