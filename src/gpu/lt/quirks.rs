//! Which cuBLASLt versions can do what, and which are known to do it wrong: one table, and the questions put to it.
//!
//! Sources: *notes* are NVIDIA's release notes, *reports* are public issue threads, *observed* is ours.

use std::fmt;

/// A cuBLASLt version as `cublasLtGetVersion` tells it: `major * 10000 + minor * 100 + patch`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Version(u32);

impl Version {
    pub(crate) const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self(major * 10_000 + minor * 100 + patch)
    }

    pub(crate) const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    pub(crate) const fn major(self) -> u32 {
        self.0 / 10_000
    }

    pub(crate) const fn minor(self) -> u32 {
        self.0 / 100 % 100
    }

    pub(crate) const fn patch(self) -> u32 {
        self.0 % 100
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major(), self.minor(), self.patch())
    }
}

/// The first version whose FP8 products and amax this crate trusts (notes: 12.4 mended fused GELU and amax).
pub(crate) const MINIMUM: Version = Version::new(12, 4, 0);
/// The first version with scale modes as attributes; before it every scale is one number per tensor.
pub(crate) const SCALE_MODE_ATTRIBUTES: Version = Version::new(12, 8, 0);
/// The first version whose NVFP4 and MXFP8 products run on sm_120 (notes 12.8U1); sm_100 has them since
/// [`SCALE_MODE_ATTRIBUTES`].
pub(crate) const SM120_BLOCK_SCALES: Version = Version::new(12, 8, 4);
/// The first version with per-row, 1x128 and 128x128 scales.
pub(crate) const BLOCK_SCALES: Version = Version::new(12, 9, 0);
/// The first version whose 128x128 scales are fast (notes 12.9.1).
pub(crate) const BLOCK_SCALES_ADVISED: Version = Version::new(12, 9, 1);

/// The first version with products of groups (CUDA 13.1).
pub(crate) const GROUPED: Version = Version::new(13, 2, 0);

/// `Err` with the reason below [`MINIMUM`].
pub(crate) fn check_minimum(version: Version) -> Result<(), String> {
    match version >= MINIMUM {
        true => Ok(()),
        false => Err(format!("version {version} is older than {MINIMUM}, the first whose FP8 products are right")),
    }
}

/// How A and B are scaled, as far as bugs care.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scaling {
    /// BF16 or F16, without scales.
    Unscaled,
    /// FP8, one scale per tensor.
    Tensor,
    /// FP8, one scale per row.
    Row,
    /// FP8, 1x128 or 128x128.
    Block128,
    /// MXFP8.
    Block32,
    /// NVFP4.
    Block16,
}

/// What is asked of the library, as far as bugs care. `m` and `n` may be swapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem {
    pub(crate) compute_capability: (u32, u32),
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) scaling: Scaling,
    pub(crate) has_bias: bool,
    pub(crate) has_activation: bool,
    /// beta is not zero.
    pub(crate) has_c: bool,
    pub(crate) fp32_out: bool,
    /// Bytes of the largest of A, B and D.
    pub(crate) largest_bytes: u64,
}

impl Problem {
    const fn is_fp8(&self) -> bool {
        matches!(self.scaling, Scaling::Tensor | Scaling::Row | Scaling::Block128 | Scaling::Block32)
    }

    const fn is_hopper(&self) -> bool {
        self.compute_capability.0 == 9
    }
}

/// What to do where a quirk applies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// Leave out the algorithms for which this is true, by id and number of K splits.
    DropAlgo(fn(&Problem, u32, i32) -> bool),
    /// Bias and activation in our own kernel.
    Unfuse,
    /// Do not ask the library at all.
    Refuse,
    /// FP32 scales at addresses that are multiples of this.
    AlignScales(u64),
    /// Nothing to decide here: how the crate as a whole keeps clear of it.
    Avoided(&'static str),
}

/// One row of the ledger.
#[derive(Debug)]
pub(crate) struct Quirk {
    /// A name for messages and tests.
    pub(crate) name: &'static str,
    /// Half-open version ranges: from, until.
    pub(crate) ranges: &'static [(Version, Version)],
    pub(crate) applies: fn(&Problem) -> bool,
    /// What goes wrong.
    pub(crate) effect: &'static str,
    pub(crate) source: &'static str,
    pub(crate) action: Action,
}

impl Quirk {
    /// True if this version has the quirk.
    pub(crate) fn covers(&self, version: Version) -> bool {
        self.ranges.iter().any(|&(from, until)| (from..until).contains(&version))
    }
}

/// `name: effect (source)`, and how it is avoided where that is not decided here.
impl fmt::Display for Quirk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, effect, source, .. } = self;
        write!(f, "{name}: {effect} ({source})")?;
        match self.action {
            Action::Avoided(how) => write!(f, "; {how}"),
            Action::DropAlgo(_) | Action::Unfuse | Action::Refuse | Action::AlignScales(_) => Ok(()),
        }
    }
}

const FIRST: Version = Version::new(12, 0, 0);

const fn v(major: u32, minor: u32, patch: u32) -> Version {
    Version::new(major, minor, patch)
}

/// Algorithm 66 was mended in 13.3.0 and, by patch, in 12.8.5, 12.9.2, 13.1.1 and 13.2.2.
const ALGO_66_UNPATCHED: &[(Version, Version)] =
    &[(FIRST, v(12, 8, 5)), (v(12, 9, 0), v(12, 9, 2)), (v(13, 0, 0), v(13, 1, 1)), (v(13, 2, 0), v(13, 2, 2))];

/// Every known-bad range that this crate could meet.
pub(crate) static LEDGER: &[Quirk] = &[
    Quirk {
        name: "fp8-fused-gelu",
        ranges: &[(FIRST, v(12, 4, 0))],
        applies: |p| p.is_fp8() && p.has_activation,
        effect: "FP8 with GELU is wrong (beta = 1 in place; all of it on sm_89)",
        source: "notes 12.3U1; XLA 64245",
        action: Action::Refuse,
    },
    Quirk {
        name: "fp8-bias-type",
        ranges: &[(FIRST, v(12, 6, 3))],
        applies: |p| p.is_fp8() && p.has_bias,
        effect: "the type given for the bias is ignored with FP8 operands",
        source: "notes 12.6U2",
        action: Action::Unfuse,
    },
    Quirk {
        name: "vector-bias",
        ranges: &[(FIRST, v(12, 8, 4))],
        applies: |p| p.has_bias && (p.m == 1 || p.n == 1),
        effect: "m or n = 1 with a bias is wrong",
        source: "notes 12.8U1, bug 5104822",
        action: Action::Unfuse,
    },
    Quirk {
        name: "row-major-e5m2",
        ranges: &[(FIRST, v(12, 6, 0))],
        applies: Problem::is_fp8,
        effect: "E4M3 x E5M2 with row-major D is wrong",
        source: "notes 12.6",
        action: Action::Avoided("D is always column-major to the library"),
    },
    Quirk {
        name: "mxfp8-cache-key",
        ranges: &[(v(12, 8, 0), v(12, 8, 4))],
        applies: |p| p.scaling == Scaling::Block32,
        effect: "the library's heuristic cache ignores the scale mode and may return an algorithm of another one",
        source: "TransformerEngine, nvmath-python",
        action: Action::Refuse,
    },
    Quirk {
        name: "algo-66-uneven-split-k",
        ranges: &[(v(12, 6, 3), v(13, 8, 0))],
        // Needs K = splits * q * stage + r with 0 < r < splits: even splits are safe, and those whose share of K, rounded down, is no multiple of
        // the stage, which is of 8 elements at least. Without the second half nearly all that split a K of 7168 or 8192 would go, the fastest of
        // plain BF16 among them.
        applies: |p| p.compute_capability.0 >= 9,
        effect: "algorithm 66 gives wrong results where its splits do not divide K, and their share is a multiple of its stage",
        source: "notes 13.8",
        action: Action::DropAlgo(|p, id, splits| {
            let splits = usize::try_from(splits).unwrap_or(1).max(1);
            id == 66 && !p.k.is_multiple_of(splits) && (p.k / splits).is_multiple_of(8)
        }),
    },
    Quirk {
        name: "algo-66-beta-hang",
        ranges: ALGO_66_UNPATCHED,
        applies: |p| p.is_hopper() && p.is_fp8() && p.has_c,
        effect: "algorithm 66 hangs on sm_90 with FP8 operands, beta != 0 and a zero scale of C",
        source: "notes 13.3.0",
        action: Action::DropAlgo(|_, id, _| id == 66),
    },
    Quirk {
        name: "algo-66-large",
        ranges: ALGO_66_UNPATCHED,
        applies: |p| p.largest_bytes > 1 << 31,
        effect: "algorithm 66 is wrong for matrices above 2^31 bytes",
        source: "notes 13.3.0",
        action: Action::DropAlgo(|_, id, _| id == 66),
    },
    Quirk {
        name: "algo-66-tmem",
        ranges: ALGO_66_UNPATCHED,
        applies: |p| p.compute_capability.0 >= 10,
        effect: "algorithm 66 is wrong on sm_100 beside another kernel that uses tensor memory",
        source: "notes 13.3.0",
        action: Action::DropAlgo(|_, id, _| id == 66),
    },
    Quirk {
        name: "algo-68-large",
        ranges: &[(v(13, 6, 0), v(13, 7, 0))],
        applies: |p| p.fp32_out && p.largest_bytes >= 1 << 33,
        effect: "algorithm 68 fails for FP32 results of 2^31 elements or more",
        source: "raft 3098",
        action: Action::DropAlgo(|_, id, _| id == 68),
    },
    Quirk {
        name: "scalar-scale-alignment",
        ranges: &[(v(12, 9, 0), v(13, 2, 1))],
        applies: |p| p.scaling == Scaling::Tensor,
        effect: "one-number scales at addresses that are not multiples of 16 are refused",
        source: "notes 13.2.1",
        action: Action::AlignScales(16),
    },
    Quirk {
        name: "nvfp4-output-scale",
        ranges: &[(v(13, 4, 0), v(13, 4, 1))],
        applies: |p| p.scaling == Scaling::Block16,
        effect: "NVFP4 output ignores the scale of D",
        source: "notes 13.4.1",
        action: Action::Avoided("products are stored as bf16, f16 or f32; a quantizer makes NVFP4 of them"),
    },
    Quirk {
        name: "sm120-odd-m",
        ranges: &[(v(13, 4, 0), v(13, 5, 0))],
        applies: |p| p.compute_capability.0 == 12 && p.is_fp8() && !(p.m.is_power_of_two() && p.n.is_power_of_two()),
        effect: "FP8 products whose m is no power of two are refused on sm_120",
        source: "kekzl/imp 446",
        action: Action::Avoided("a refusal by the heuristic makes the plan take another formulation"),
    },
    Quirk {
        name: "heuristic-in-capture",
        ranges: &[(v(13, 5, 1), v(13, 6, 1))],
        applies: |_| true,
        effect: "asking the heuristic while a stream is captured fails and spoils the capture",
        source: "notes 13.6.1; mudler/vllm.cpp 1732",
        action: Action::Avoided("plans are made before capture; execute never asks the heuristic"),
    },
    Quirk {
        name: "vector-refused",
        ranges: &[(v(13, 5, 1), v(13, 6, 1))],
        applies: |p| p.m == 1 || p.n == 1,
        effect: "products with m or n = 1 are refused",
        source: "notes 13.6.1",
        action: Action::Avoided("a refusal by the heuristic makes the plan take another formulation"),
    },
    Quirk {
        name: "device-alpha-overwritten",
        ranges: &[(v(13, 0, 0), v(13, 6, 1))],
        applies: |p| p.compute_capability.0 >= 10,
        effect: "alpha and beta on the device may be read after the product seems done, where launches overlap",
        source: "notes 13.6.1",
        action: Action::Avoided("the kernel that writes them waits for the end of the kernel before it"),
    },
    Quirk {
        name: "slow-128x128",
        ranges: &[(BLOCK_SCALES, BLOCK_SCALES_ADVISED)],
        applies: |p| p.scaling == Scaling::Block128,
        effect: "128x128 scales are slow",
        source: "notes 12.9.1",
        action: Action::Avoided("install cuBLAS 12.9.1 or newer for speed"),
    },
];

/// The rows that concern this problem on this version.
pub(crate) fn active(version: Version, problem: &Problem) -> impl Iterator<Item = &'static Quirk> {
    LEDGER.iter().filter(move |quirk| quirk.covers(version) && (quirk.applies)(problem))
}

/// Why an algorithm must be left out, if it must.
pub(crate) fn drops(version: Version, problem: &Problem, id: u32, split_k: i32) -> Option<&'static Quirk> {
    active(version, problem)
        .find(|quirk| matches!(quirk.action, Action::DropAlgo(is_bad) if is_bad(problem, id, split_k)))
}

/// Why bias and activation must not be fused, if they must not.
pub(crate) fn unfuse(version: Version, problem: &Problem) -> Option<&'static Quirk> {
    active(version, problem).find(|quirk| matches!(quirk.action, Action::Unfuse))
}

/// Why the library must not be asked, if it must not.
pub(crate) fn refuse(version: Version, problem: &Problem) -> Option<&'static Quirk> {
    active(version, problem).find(|quirk| matches!(quirk.action, Action::Refuse))
}

/// The alignment in bytes that a one-number FP32 scale needs.
pub(crate) fn scalar_scale_alignment(version: Version) -> u64 {
    let rows = LEDGER.iter().filter(|quirk| quirk.covers(version));
    rows.fold(4, |most, quirk| if let Action::AlignScales(bytes) = quirk.action { most.max(bytes) } else { most })
}

#[cfg(test)]
impl Problem {
    /// An FP8 product with one scale for each tensor and no epilogue, for tests to vary.
    pub(crate) const PLAIN: Self = Self {
        compute_capability: (9, 0),
        m: 128,
        n: 4096,
        k: 7168,
        scaling: Scaling::Tensor,
        has_bias: false,
        has_activation: false,
        has_c: false,
        fp32_out: false,
        largest_bytes: 1 << 25,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_and_order() {
        let version = Version::from_raw(130_100);
        assert_eq!(version, Version::new(13, 1, 0));
        assert_eq!(version.to_string(), "13.1.0");
        assert!(Version::new(12, 9, 13) < Version::new(13, 0, 0));
        assert!(check_minimum(MINIMUM).is_ok());
        let refusal = check_minimum(Version::new(12, 3, 4)).unwrap_err();
        assert!(refusal.contains("12.3.4") && refusal.contains("12.4.0"), "{refusal}");
    }

    #[test]
    fn ranges_are_ordered_and_named_once() {
        for (i, quirk) in LEDGER.iter().enumerate() {
            assert!(!quirk.ranges.is_empty(), "{}", quirk.name);
            let flat: Vec<_> = quirk.ranges.iter().flat_map(|&(from, until)| [from, until]).collect();
            assert!(flat.windows(2).all(|pair| pair[0] < pair[1]), "{}", quirk.name);
            assert!(LEDGER[..i].iter().all(|other| other.name != quirk.name), "{}", quirk.name);
        }
    }

    #[test]
    fn quirks_are_shown_in_words() {
        let shown = |name| LEDGER.iter().find(|quirk| quirk.name == name).map(ToString::to_string).unwrap_or_default();
        let expected = "algo-66-uneven-split-k: algorithm 66 gives wrong results where its splits do not divide K, and their share is a multiple of its stage (notes 13.8)";
        assert_eq!(shown("algo-66-uneven-split-k"), expected);
        assert!(
            shown("heuristic-in-capture")
                .ends_with("; plans are made before capture; execute never asks the heuristic")
        );
    }

    #[test]
    fn uneven_split_k_of_algorithm_66_is_dropped_until_mended() {
        let at = |version, k, id, splits| drops(version, &Problem { k, ..Problem::PLAIN }, id, splits).map(|q| q.name);
        let bad = Version::new(13, 1, 0);
        // 3 * 640 + 2, 17 * 64 + 16.
        assert_eq!(
            [(1922, 3), (1104, 17)].map(|(k, splits)| at(bad, k, 66, splits)),
            [Some("algo-66-uneven-split-k"); 2]
        );
        // Shares of 2389, 1433 and 1365: no stage ends there.
        assert_eq!([(7168, 3), (7168, 5), (8192, 6)].map(|(k, splits)| at(bad, k, 66, splits)), [None; 3]);
        assert_eq!([7, 1, 0, -1].map(|splits| at(bad, 7168, 66, splits)), [None; 4]);
        assert_eq!(at(bad, 1922, 65, 3), None);
        assert_eq!(at(Version::new(13, 8, 0), 1922, 66, 3), None);
        assert_eq!(at(Version::new(12, 6, 2), 1922, 66, 3), None);
    }

    #[test]
    fn patched_versions_are_trusted() {
        let accumulating = Problem { has_c: true, ..Problem::PLAIN };
        for (raw, is_bad) in [
            (120_804, true),
            (120_805, false),
            (120_901, true),
            (120_902, false),
            (130_100, true),
            (130_101, false),
            (130_200, true),
            (130_202, false),
            (130_300, false),
        ] {
            assert_eq!(drops(Version::from_raw(raw), &accumulating, 66, 1).is_some(), is_bad, "{raw}");
        }
        let large = Problem { largest_bytes: (1 << 31) + 1, ..Problem::PLAIN };
        assert!(drops(Version::new(13, 1, 0), &large, 66, 1).is_some());
        assert!(drops(Version::new(13, 1, 0), &Problem::PLAIN, 66, 1).is_none());
    }

    #[test]
    fn old_versions_unfuse_a_bias() {
        let bias = Problem { has_bias: true, ..Problem::PLAIN };
        let vector = Problem { m: 1, ..bias };
        assert_eq!(unfuse(Version::new(12, 6, 2), &bias).map(|q| q.name), Some("fp8-bias-type"));
        assert!(unfuse(Version::new(12, 6, 4), &bias).is_none());
        assert_eq!(unfuse(Version::new(12, 8, 3), &vector).map(|q| q.name), Some("vector-bias"));
        assert!(unfuse(Version::new(12, 8, 4), &vector).is_none());
        assert!(refuse(Version::new(13, 1, 0), &bias).is_none());
        assert_eq!(scalar_scale_alignment(Version::new(13, 1, 0)), 16);
        assert_eq!(scalar_scale_alignment(Version::new(13, 2, 1)), 4);
    }
}
