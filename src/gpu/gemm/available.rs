//! [`available`]: which formulations a GPU and a cuBLASLt version offer for a problem. Pure tables: nothing here asks a library.

use crate::format::CodeOrder;
use crate::format::layout::ScaleLayout;

use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::formulation::Formulation;
use crate::gpu::gemm::measured::{self, Card};
use crate::gpu::gemm::our_pairs::{sm90_pair, small_m_operands, small_m_pair};
use crate::gpu::gemm::pair_kind::{PairKind, pair_kind};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{SmallMOperands, most_rows};
use crate::gpu::lt::quirks::{BLOCK_SCALES, SCALE_MODE_ATTRIBUTES, SM120_BLOCK_SCALES, Version};

/// What decides which formulations exist, and which is tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) cc: (u32, u32),
    /// cuBLASLt's; `None` where there is none.
    pub(crate) version: Option<Version>,
    pub(crate) sm_count: u32,
    /// The GPU whose rows in [`crate::gpu::gemm::measured`] hold for this one and its library.
    pub(crate) measured: Option<Card>,
}

impl Facts {
    pub(crate) fn of(handle: &Handle) -> Self {
        let (device, version) = (handle.device(), handle.lt_version());
        let measured = version.and_then(|version| measured::card(&device.name, version));
        Self { cc: device.compute_capability, version, sm_count: device.sm_count, measured }
    }
}

const AMPERE: (u32, u32) = (8, 0);
const ADA: (u32, u32) = (8, 9);
pub(crate) const HOPPER: (u32, u32) = (9, 0);
const BLACKWELL: (u32, u32) = (10, 0);

/// Whether this formulation serves this problem on this GPU and library; otherwise why not.
pub(crate) fn available(desc: &GemmDesc, facts: Facts, formulation: Formulation) -> Result<(), String> {
    available_pair(desc, facts, formulation)?;
    if formulation.is_by_cublaslt() && facts.version.is_none() {
        return Err("it is cuBLASLt's, which is not here (Handle::library and `scaled-gemm info` say why)".to_string());
    }
    code_order(desc, formulation)?;
    batch_invariance(desc, formulation)
}

/// Why this formulation does not read the codes of B as they lie, if so.
pub(crate) fn code_order(desc: &GemmDesc, formulation: Formulation) -> Result<(), String> {
    match (desc.b_order, formulation) {
        (CodeOrder::Published, _) | (CodeOrder::Repacked, Formulation::SmallM | Formulation::DequantizedBf16) => Ok(()),
        (CodeOrder::Repacked, _) => Err(
            "it reads codes in their published order, and those of B are repacked (QuantMatrix::repack puts them back)"
                .to_string(),
        ),
    }
}

/// Why this formulation does not give what [`GemmDesc::batch_invariant`] asks for, where it is asked for.
///
/// Sm90 does, in the configurations of one order of sums (`sm90_rules::SumOrder`), which are those it then has, and with one finish (`outline`); `small-m` of decoded weights does, in the one
/// configuration that it then has. Nothing is claimed of cuBLASLt: it chooses among
/// algorithms that it says little of, and its own flag for this, of 13.8 and newer, is not asked for, as no such version was at hand.
pub(crate) fn batch_invariance(desc: &GemmDesc, formulation: Formulation) -> Result<(), String> {
    if !desc.batch_invariant {
        return Ok(());
    }
    match formulation {
        Formulation::Sm90 => Ok(()),
        // Tiles of one split: `small_m_rules::of_any_m`.
        Formulation::SmallM if small_m_operands(desc).is_some_and(|operands| operands != SmallMOperands::Fp8) => Ok(()),
        Formulation::SmallM => Err(format!(
            "it is not batch-invariant: it serves at most {} rows of A, and the parts in which it sums k follow m",
            small_m_operands(desc).map_or(0, most_rows)
        )),
        Formulation::Native | Formulation::RepeatedScales | Formulation::Rescaled | Formulation::DequantizedBf16 => {
            Err(format!(
                "it is not batch-invariant: cuBLASLt chooses its algorithm for m = {}, and the order of sums with it",
                desc.m
            ))
        }
    }
}

fn available_pair(desc: &GemmDesc, facts: Facts, formulation: Formulation) -> Result<(), String> {
    use Formulation::{DequantizedBf16, Native, RepeatedScales, Rescaled, Sm90, SmallM};
    let (major, minor) = facts.cc;
    let kind = pair_kind(desc);
    match (formulation, kind) {
        (_, PairKind::Fp8(..)) if facts.cc < ADA => {
            Err(format!("sm_{major}{minor} has no FP8 tensor cores (sm_89 and up have)"))
        }
        (Native | RepeatedScales | Rescaled, PairKind::Fp8(a, b)) => available_fp8(desc, facts, formulation, (a, b)),
        (Sm90, _) => available_sm90(desc, facts),
        (SmallM, _) => available_small_m(desc, facts),
        (DequantizedBf16, PairKind::Fp8(..)) => Err(DEQUANTIZED_SERVES.to_string()),
        (DequantizedBf16, PairKind::WeightOnlyFp8) => {
            Err(format!("{DEQUANTIZED_SERVES}: codes times FP32 scales are not exact in bf16"))
        }
        (DequantizedBf16, _) if facts.cc < AMPERE => {
            Err(format!("sm_{major}{minor} has no BF16 tensor cores (sm_80 and up have)"))
        }
        (DequantizedBf16, _) => Ok(()),
        (Native, PairKind::WeightOnly | PairKind::WeightOnlyFp8) => {
            Err(format!("cuBLASLt multiplies {} by {} nowhere: it serves pairs of quantized operands", desc.a, desc.b))
        }
        (Native, PairKind::Block(_)) => available_block(desc, facts),
        // Documented: VEC32_UE8M0 is for FP8 operands, and FP4 operands take VEC16_UE4M3 (cuBLAS 12.8 to 13.x).
        (Native, PairKind::Mxfp4) => {
            Err("cuBLASLt has no MXFP4 on any GPU: its E8M0 scales are for FP8 codes, its E2M1 codes for NVFP4"
                .to_string())
        }
        (RepeatedScales, _) => Err(REPEATED_SERVES.to_string()),
        (Rescaled, _) => Err(RESCALED_SERVES.to_string()),
    }
}

/// Our product for sm_90: no library has a part in it.
fn available_sm90(desc: &GemmDesc, facts: Facts) -> Result<(), String> {
    sm90_pair(desc)?;
    let (major, minor) = facts.cc;
    if facts.cc != HOPPER {
        return Err(format!("its kernels are for sm_90 alone, and this GPU is sm_{major}{minor}"));
    }
    Ok(())
}

/// Our products of few rows: no library has a part in them.
fn available_small_m(desc: &GemmDesc, facts: Facts) -> Result<(), String> {
    small_m_pair(desc)?;
    let (major, minor) = facts.cc;
    match small_m_operands(desc) {
        Some(SmallMOperands::Fp8) if facts.cc != HOPPER => Err(format!(
            "its kernels for FP8 codes on both sides are for sm_90 alone, and this GPU is sm_{major}{minor}"
        )),
        _ if facts.cc < AMPERE => Err(format!("its kernels need sm_80, and this GPU is sm_{major}{minor}")),
        _ => Ok(()),
    }
}

const DEQUANTIZED_SERVES: &str = "it serves nvfp4, nvfp4-row, mxfp4 and mxfp8 weights";
const REPEATED_SERVES: &str = "it serves fp8-1x128 x fp8-128x128";
const RESCALED_SERVES: &str = "it serves fp8-row x fp8-row";

/// The rows of FP8 with FP32 scales.
fn available_fp8(
    desc: &GemmDesc,
    facts: Facts,
    formulation: Formulation,
    layouts: (ScaleLayout, ScaleLayout),
) -> Result<(), String> {
    use ScaleLayout::{Blk128, Outer, Scalar, Vec128};
    let Facts { cc: (major, minor), version, .. } = facts;
    let hopper_only = |what: &str| {
        if facts.cc != HOPPER {
            return Err(format!("cuBLASLt has {what} on sm_90 only, and this GPU is sm_{major}{minor}"));
        }
        if let Some(version) = version.filter(|version| *version < BLOCK_SCALES) {
            return Err(format!("cuBLASLt has {what} since {BLOCK_SCALES}, and {version} is loaded"));
        }
        Ok(())
    };
    match (formulation, layouts) {
        (Formulation::Native, (Scalar, Scalar)) => Ok(()),
        (Formulation::Native, (Outer, Outer)) => hopper_only("row scales"),
        (Formulation::Native, (Vec128, Vec128 | Blk128) | (Blk128, Vec128)) => hopper_only("128-wide group scales"),
        (Formulation::RepeatedScales, (Vec128, Blk128)) => hopper_only("128-wide group scales"),
        (Formulation::Rescaled, (Outer, Outer)) => Ok(()),
        (Formulation::RepeatedScales, _) => Err(REPEATED_SERVES.to_string()),
        (Formulation::Rescaled, _) => Err(RESCALED_SERVES.to_string()),
        (Formulation::Native | Formulation::DequantizedBf16 | Formulation::Sm90 | Formulation::SmallM, _) => {
            Err(format!("cuBLASLt has no scale modes for {} x {}", desc.a, desc.b))
        }
    }
}

/// The native products of NVFP4 and MXFP8 (documented; no such GPU was at hand).
fn available_block(desc: &GemmDesc, facts: Facts) -> Result<(), String> {
    let Facts { cc: (major, minor), version, .. } = facts;
    let what = format!("products of {} and {}", desc.a, desc.b);
    if facts.cc < BLACKWELL {
        return Err(format!("cuBLASLt has {what} on sm_100 and newer, and this GPU is sm_{major}{minor}"));
    }
    let since = if major == 12 { SM120_BLOCK_SCALES } else { SCALE_MODE_ATTRIBUTES };
    if let Some(version) = version.filter(|version| *version < since) {
        return Err(format!("cuBLASLt has {what} on sm_{major}{minor} since {since}, and {version} is loaded"));
    }
    if !desc.k.is_multiple_of(32) {
        return Err(format!("k = {} is not a multiple of 32, as the tensor cores of sm_{major}{minor} need", desc.k));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DType, Fp8Format, Operand, Scheme};

    const F: Fp8Format = Fp8Format::E4M3;
    const H200: Facts =
        Facts { cc: HOPPER, version: Some(Version::new(13, 1, 0)), sm_count: 132, measured: Some(Card::H200) };

    fn desc(m: usize, a: Scheme, b: Scheme) -> GemmDesc {
        GemmDesc::new(m, 4096, 7168, a, b, DType::Bf16)
    }

    fn offered(desc: &GemmDesc, facts: Facts) -> Vec<Formulation> {
        Formulation::ALL.into_iter().filter(|f| available(desc, facts, *f).is_ok()).collect()
    }

    #[test]
    fn the_table_of_pairs_by_gpu_and_version() {
        use Formulation::{Native, RepeatedScales, Rescaled, Sm90, SmallM};
        let (tensor, row) = (Scheme::Fp8Tensor(F), Scheme::Fp8Row(F));
        let (vec, blk) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F));
        let ada = Facts { cc: ADA, ..H200 };
        let blackwell = Facts { cc: (10, 0), ..H200 };
        let ampere = Facts { cc: (8, 0), ..H200 };
        let old = Facts { version: Some(Version::new(12, 8, 4)), ..H200 };
        let wide = Scheme::Fp8Group1x128(Fp8Format::E5M2);
        let cases: [(GemmDesc, [&[Formulation]; 5]); 7] = [
            (desc(4, tensor, tensor), [&[Native, Sm90, SmallM], &[Native], &[Native], &[], &[Native, Sm90, SmallM]]),
            (
                desc(4, row, row),
                [&[Native, Rescaled, Sm90, SmallM], &[Rescaled], &[Rescaled], &[], &[Rescaled, Sm90, SmallM]],
            ),
            (desc(4, vec, blk), [&[Native, RepeatedScales, Sm90, SmallM], &[], &[], &[], &[Sm90, SmallM]]),
            (desc(4, blk, vec), [&[Native, Sm90], &[], &[], &[], &[Sm90]]),
            (desc(4, vec, vec), [&[Native, Sm90], &[], &[], &[], &[Sm90]]),
            (desc(4, wide, blk), [&[Native, RepeatedScales, Sm90], &[], &[], &[], &[Sm90]]),
            (
                desc(4, tensor, Scheme::Fp8Tensor(Fp8Format::E5M2)),
                [&[Native, Sm90], &[Native], &[Native], &[], &[Native, Sm90]],
            ),
        ];
        for (desc, wanted) in cases {
            for (facts, wanted) in [H200, ada, blackwell, ampere, old].into_iter().zip(wanted) {
                assert_eq!(offered(&desc, facts), wanted, "{desc} on {facts:?}");
            }
        }
        assert!(
            available(&desc(4, vec, blk), blackwell, Sm90).unwrap_err().contains("sm_90 alone, and this GPU is sm_100")
        );
        let (sm90, small_m): (&[_], &[_]) = (&[Sm90], &[SmallM]);
        for (a, b, refusing) in [
            (wide, blk, small_m),
            (blk, vec, small_m),
            (blk, blk, &[Sm90, SmallM]),
            (Scheme::Fp8Tensor(Fp8Format::E5M2), tensor, small_m),
            (Scheme::Mxfp8(F), Scheme::Mxfp8(F), sm90),
        ] {
            for ours in [Sm90, SmallM] {
                let Err(why) = available(&desc(4, a, b), H200, ours) else {
                    assert!(!refusing.contains(&ours), "{a} x {b} by {ours}");
                    continue;
                };
                assert!(refusing.contains(&ours), "{a} x {b} by {ours}");
                assert!(why.contains("it serves fp8-1x128:e4m3 x fp8-128x128:e4m3, and fp8-row"), "{why}");
                for words in ["also with e5m2 codes on one", "and fp8-128x128:e4m3 x fp8-1x128:e4m3"] {
                    assert_eq!(why.contains(words), ours == Sm90, "{why}");
                }
            }
        }
        assert!(available(&desc(4, vec, vec), H200, SmallM).unwrap_err().contains("it serves"));
        assert!(available(&desc(32, row, row), H200, SmallM).is_ok());
        let long = GemmDesc { k: (1 << 30) + 16, ..desc(1, row, row) };
        assert!(available(&long, H200, SmallM).unwrap_err().contains("k = 1073741840"));
        assert!(
            available(&desc(33, row, row), H200, SmallM)
                .unwrap_err()
                .contains("at most 32 rows of A with fp8-row:e4m3 weights, and m = 33")
        );
        assert!(available(&desc(4, vec, blk), blackwell, SmallM).unwrap_err().contains("this GPU is sm_100"));
        assert!(available(&desc(4, vec, vec), ada, Native).unwrap_err().contains("sm_89"));
        assert!(available(&desc(4, vec, vec), old, Native).unwrap_err().contains("12.8.4"));
        assert!(available(&desc(4, tensor, tensor), ampere, Native).unwrap_err().contains("sm_80 has no FP8"));
    }

    /// Then FP8 has our kernels on sm_90, and few rows have those that decode weights.
    #[test]
    fn without_cublaslt_there_are_our_own() {
        use Formulation::{Native, Sm90, SmallM};
        let none = Facts { version: None, measured: None, ..H200 };
        let (tensor, row) = (Scheme::Fp8Tensor(F), Scheme::Fp8Row(F));
        let (vec, blk) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F));
        for (a, b) in [(tensor, tensor), (row, row), (vec, blk), (vec, vec), (blk, vec)] {
            assert_eq!(offered(&desc(100, a, b), none), [Sm90], "{a} x {b}");
        }
        assert_eq!(offered(&desc(4, vec, blk), none), [Sm90, SmallM]);
        for a in [Operand::Plain(DType::Bf16), Scheme::Nvfp4.into()] {
            let of = |m| GemmDesc::new(m, 4096, 7168, a, Scheme::Nvfp4, DType::Bf16);
            for cc in [(8, 0), HOPPER, (10, 0)] {
                assert_eq!(offered(&of(64), Facts { cc, ..none }), [SmallM], "{a}");
                assert_eq!(offered(&of(65), Facts { cc, ..none }), [], "{a}");
            }
        }
        for facts in [none, Facts { cc: ADA, ..none }] {
            let why = available(&desc(4, tensor, tensor), facts, Native).unwrap_err();
            assert!(why.contains("cuBLASLt's, which is not here") && why.contains("Handle::library"), "{why}");
        }
    }

    #[test]
    fn blocks_are_native_on_blackwell_and_dequantized_everywhere_from_ampere_on() {
        use Formulation::{DequantizedBf16, Native};
        let (nv, row, mx) = (Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp8(F));
        let on = |cc, version| Facts { cc, version: Some(version), sm_count: 132, measured: None };
        let new = Version::new(13, 1, 0);
        let both: &[Formulation] = &[Native, DequantizedBf16];
        let plain: &[Formulation] = &[DequantizedBf16];
        for (a, b) in [(nv, nv), (nv, row), (row, nv), (row, row), (mx, mx), (mx, Scheme::Mxfp8(Fp8Format::E5M2))] {
            let desc = desc(65, a, b);
            for (facts, wanted) in [
                (on((8, 0), new), plain),
                (on((8, 9), new), plain),
                (H200, plain),
                (on((10, 0), new), both),
                (on((10, 3), Version::new(12, 8, 0)), both),
                (on((10, 0), Version::new(12, 6, 4)), plain),
                (on((12, 0), Version::new(12, 8, 3)), plain),
                (on((12, 0), Version::new(12, 8, 4)), both),
                (on((7, 5), new), &[]),
            ] {
                assert_eq!(offered(&desc, facts), wanted, "{desc} on {facts:?}");
            }
            let refusal = |desc: &GemmDesc, facts| available(desc, facts, Native).unwrap_err();
            let repacked = GemmDesc { n: 128, b_order: CodeOrder::Repacked, ..desc };
            assert_eq!(offered(&repacked, on((10, 0), new)), plain, "cuBLASLt reads the published order alone");
            assert!(refusal(&repacked, on((10, 0), new)).contains("those of B are repacked (QuantMatrix::repack"));
            assert!(refusal(&desc, H200).contains("sm_100 and newer, and this GPU is sm_90"));
            assert!(refusal(&desc, on((12, 1), Version::new(12, 8, 3))).contains("since 12.8.4, and 12.8.3 is loaded"));
            let ragged = GemmDesc { k: 48, a_stride: 48, ..desc };
            assert!(refusal(&ragged, on((10, 0), new)).contains("k = 48 is not a multiple of 32"));
            assert_eq!(offered(&ragged, on((10, 0), new)), plain);
            for other in [Formulation::RepeatedScales, Formulation::Rescaled] {
                assert!(available(&desc, H200, other).unwrap_err().contains("it serves fp8-"), "{desc}");
            }
            assert!(available(&desc, on((7, 5), new), DequantizedBf16).unwrap_err().contains("sm_75 has no BF16"));
        }
        for (a, b) in [(DType::Bf16, nv), (DType::F16, row), (DType::Bf16, mx)] {
            let desc = GemmDesc::new(65, 4096, 7168, Operand::Plain(a), b, DType::Bf16);
            for facts in [on((8, 0), new), H200, on((10, 0), new)] {
                assert_eq!(offered(&desc, facts), plain, "{desc} on {facts:?}");
            }
            assert!(available(&desc, H200, Native).unwrap_err().contains("it serves pairs of quantized operands"));
        }
        // MXFP4 is dequantized everywhere.
        let mx4 = Scheme::Mxfp4;
        for a in [mx4.into(), mx.into(), Operand::Plain(DType::Bf16), Operand::Plain(DType::F16)] {
            let desc = GemmDesc::new(65, 4096, 2880, a, mx4, DType::Bf16);
            for facts in [on((8, 0), new), H200, on((10, 0), new), on((12, 0), new)] {
                assert_eq!(offered(&desc, facts), plain, "{desc} on {facts:?}");
            }
            let why = available(&desc, on((10, 0), new), Native).unwrap_err();
            let words =
                if a.scheme().is_some() { "no MXFP4 on any GPU" } else { "it serves pairs of quantized operands" };
            assert!(why.contains(words), "{why}");
            assert!(offered(&desc, on((7, 5), new)).is_empty());
        }
        assert!(available(&desc(3, Scheme::Fp8Row(F), Scheme::Fp8Row(F)), H200, DequantizedBf16).is_err());
    }

    #[test]
    fn few_rows_of_e2m1_weights_are_read_once() {
        use Formulation::{DequantizedBf16, SmallM};
        let (nv, row, mx, mx4) = (Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp8(F), Scheme::Mxfp4);
        let (bf16, f16) = (Operand::Plain(DType::Bf16), Operand::Plain(DType::F16));
        let pairs: [(Operand, Scheme); 11] = [
            (bf16, nv),
            (f16, nv),
            (bf16, row),
            (f16, row),
            (bf16, mx4),
            (nv.into(), nv),
            (nv.into(), row),
            (row.into(), nv),
            (row.into(), row),
            (mx4.into(), mx4),
            (mx.into(), mx4),
        ];
        let of = |m, k, a, b| GemmDesc::new(m, 4096, k, a, b, DType::Bf16);
        for (a, b) in pairs {
            for m in [1, 16, 17, 64] {
                assert_eq!(offered(&of(m, 7168, a, b), H200), [DequantizedBf16, SmallM], "{a} x {b}");
            }
            for cc in [(8, 0), (8, 9), (10, 0), (12, 0)] {
                assert!(offered(&of(1, 7168, a, b), Facts { cc, ..H200 }).contains(&SmallM), "{a} x {b}");
            }
            assert!(available(&of(1, 7168, a, b), Facts { cc: (7, 5), ..H200 }, SmallM).unwrap_err().contains("sm_80"));
            let why = |desc: &GemmDesc| available(desc, H200, SmallM).unwrap_err();
            assert!(why(&of(65, 7168, a, b)).contains(&format!("at most 64 rows of A with {b} weights, and m = 65")));
            assert!(why(&of(1, 7152, a, b)).contains("in multiples of 32, and k = 7152"));
            assert!(why(&of(1, (1 << 26) + 32, a, b)).contains("k up to 2^26, and n = 4096, k = 67108896"));
        }
        let why = available(&of(1, 7168, f16, mx4), H200, SmallM).unwrap_err();
        assert!(why.contains("f16 x mxfp4 is a product in f16"), "{why}");
        let why = available(&of(1, 7168, bf16, Scheme::Mxfp8(Fp8Format::E5M2)), H200, SmallM).unwrap_err();
        assert!(why.contains("nvfp4, nvfp4-row, mxfp4 and mxfp8:e4m3 weights"), "{why}");
    }

    /// FP8 weights of plain activations there alone; of MXFP8 their values may be dequantized, too.
    #[test]
    fn few_rows_of_e4m3_weights_are_read_once() {
        use Formulation::{DequantizedBf16, SmallM};
        let (bf16, f16, mx) = (Operand::Plain(DType::Bf16), Operand::Plain(DType::F16), Scheme::Mxfp8(F));
        let fp8 = [Scheme::Fp8Tensor(F), Scheme::Fp8Row(F), Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)];
        let plain = fp8.into_iter().flat_map(|b| [bf16, f16].map(|a| (a, b)));
        let wide = Operand::Quantized(Scheme::Mxfp8(Fp8Format::E5M2));
        for (a, b) in plain.chain([(bf16, mx), (mx.into(), mx), (wide, mx)]) {
            let of = |m, k| GemmDesc::new(m, 4096, k, a, b, DType::Bf16);
            let ways: &[Formulation] = if b == mx { &[DequantizedBf16, SmallM] } else { &[SmallM] };
            for (m, k) in [(1, 7168), (16, 7184), (17, 16), (64, 7168)] {
                assert_eq!(offered(&of(m, k), H200), ways, "{a} x {b}");
            }
            for cc in [(8, 0), (8, 9), (10, 0), (12, 0)] {
                assert!(offered(&of(1, 7168), Facts { cc, ..H200 }).contains(&SmallM), "{a} x {b}");
            }
            let why = |desc: &GemmDesc, way| available(desc, H200, way).unwrap_err();
            // More rows are multiplied in passes, where nothing else does, or the bits of a row are to be the same.
            let many = [of(65, 7168), of(5000, 7168)].map(|desc| available(&desc, H200, SmallM));
            match b == mx {
                true => {
                    let words = format!("at most 64 rows of A with {b} weights, and m = 65");
                    assert!(why(&of(65, 7168), SmallM).contains(&words));
                    assert_eq!(available(&of(65, 7168).with_batch_invariant(true), H200, SmallM), Ok(()));
                }
                false => assert_eq!(many, [Ok(()), Ok(())]),
            }
            assert!(why(&of(1, (1 << 25) + 16), SmallM).contains("k up to 2^25, and n = 4096, k = 33554448"));
            let invariant = of(1, 7168).with_batch_invariant(true);
            assert_eq!(offered(&invariant, H200), [SmallM], "{a} x {b}");
            if b != mx {
                assert!(why(&of(1, 7168), DequantizedBf16).contains("FP32 scales are not exact in bf16"));
                assert!(why(&of(1, 7168), Formulation::Native).contains("it serves pairs of quantized operands"));
            }
        }
    }
}
