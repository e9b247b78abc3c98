//! [`Formulation`]: the mathematically equal ways to compute one [`GemmDesc`], which of them a GPU and a cuBLASLt
//! version offer, how each is finished, and in which order to try them. Pure tables: nothing here asks a library.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::epilogue::{Activation, Epilogue};
use crate::format::DType;
use crate::format::layout::ScaleLayout;

use super::gemm_desc::{Accumulate, Accumulation, GemmDesc, OutAmax};
use super::measured;
use super::quirks::{BLOCK_SCALES, Version};

/// How the scales come into the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Formulation {
    /// cuBLASLt's own scale modes for this pair.
    Native,
    /// 1x128 x 128x128 as 1x128 x 1x128: the block scales of B are repeated for each row, once, in a second buffer of B.
    RepeatedScales,
    /// Row x row as an unscaled GEMM into FP32 scratch, then our kernel multiplies rows and columns by their scales.
    Rescaled,
}

impl Formulation {
    /// Every formulation.
    pub const ALL: [Self; 3] = [Self::Native, Self::RepeatedScales, Self::Rescaled];

    /// `native`, `repeated-scales`, `rescaled`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::RepeatedScales => "repeated-scales",
            Self::Rescaled => "rescaled",
        }
    }

    /// The formulation of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }
}

impl fmt::Display for Formulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where the sum goes, and who does the epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Finish {
    /// cuBLASLt writes D and does the whole epilogue.
    Fused,
    /// cuBLASLt writes a scratch matrix with m padded to a multiple of 4; the m rows are copied to D.
    PaddedCopy,
    /// cuBLASLt writes an FP32 scratch matrix; our kernel does scales, bias, activation, residual and the cast.
    EpilogueKernel,
}

impl Finish {
    /// Every finish, the one with the least traffic first.
    pub const ALL: [Self; 3] = [Self::Fused, Self::PaddedCopy, Self::EpilogueKernel];

    /// `fused`, `padded-copy`, `epilogue-kernel`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fused => "fused",
            Self::PaddedCopy => "padded-copy",
            Self::EpilogueKernel => "epilogue-kernel",
        }
    }
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What decides which formulations exist, and which is tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) cc: (u32, u32),
    pub(crate) version: Version,
    /// The choices of [`super::measured`] hold for this GPU and library.
    pub(crate) measured: bool,
}

const ADA: (u32, u32) = (8, 9);
const HOPPER: (u32, u32) = (9, 0);

/// The scale layouts of A and B, which say all that matters here about a pair.
fn layouts(desc: &GemmDesc) -> (ScaleLayout, ScaleLayout) {
    (desc.a.spec().scale_layout, desc.b.spec().scale_layout)
}

/// Whether this formulation serves this pair on this GPU and library; otherwise why not.
pub(crate) fn available(desc: &GemmDesc, facts: Facts, formulation: Formulation) -> Result<(), String> {
    use ScaleLayout::{Blk128, Outer, Scalar, Vec128};
    let Facts { cc: (major, minor), version, .. } = facts;
    if facts.cc < ADA {
        return Err(format!("sm_{major}{minor} has no FP8 tensor cores (sm_89 and up have)"));
    }
    let hopper_only = |what: &str| {
        if facts.cc != HOPPER {
            return Err(format!("cuBLASLt has {what} on sm_90 only, and this GPU is sm_{major}{minor}"));
        }
        if version < BLOCK_SCALES {
            return Err(format!("cuBLASLt has {what} since {BLOCK_SCALES}, and {version} is loaded"));
        }
        Ok(())
    };
    match (formulation, layouts(desc)) {
        (Formulation::Native, (Scalar, Scalar)) => Ok(()),
        (Formulation::Native, (Outer, Outer)) => hopper_only("row scales"),
        (Formulation::Native, (Vec128, Vec128 | Blk128) | (Blk128, Vec128)) => hopper_only("128-block scales"),
        (Formulation::RepeatedScales, (Vec128, Blk128)) => hopper_only("128-block scales"),
        (Formulation::Rescaled, (Outer, Outer)) => Ok(()),
        (Formulation::Native, _) => Err(format!("cuBLASLt has no scale modes for {} x {}", desc.a, desc.b)),
        (Formulation::RepeatedScales, _) => Err("it serves fp8-1x128 x fp8-128x128".to_string()),
        (Formulation::Rescaled, _) => Err("it serves fp8-row x fp8-row".to_string()),
    }
}

/// The order in which to try formulations, and the words for why.
///
/// The shapes of published models have measured choices ([`super::measured`]); for others two rules, fitted to the same
/// records (one H200, sm_90, cuBLASLt 13.1.0.3, 2026-11), say when the alternative fills the GPU better:
/// repeated scales run in smaller tiles than the native pair, and win while m is small or those tiles are few;
/// a rescale costs about ten bytes an element of D, and wins while native row scales, whose one algorithm never splits k,
/// leave multiprocessors idle on a long k, or while D is small beside B.
pub(crate) fn preference(desc: &GemmDesc, facts: Facts) -> (Vec<Formulation>, &'static str) {
    let GemmDesc { m, n, k, .. } = *desc;
    let tiles = |rows: usize| n.div_ceil(128) * m.div_ceil(rows);
    let (alternative, measured, rule) = match layouts(desc) {
        (ScaleLayout::Vec128, ScaleLayout::Blk128) => {
            let rule = m <= 64 || tiles(64) <= 100;
            (Formulation::RepeatedScales, measured::repeated_scales_win(m, n, k), rule)
        }
        (ScaleLayout::Outer, ScaleLayout::Outer) => {
            let rule = (k >= 4096 && tiles(128) <= 64) || 320 * m <= k;
            (Formulation::Rescaled, measured::rescaled_wins(m, n, k), rule)
        }
        _ => return (Formulation::ALL.to_vec(), "there is one way"),
    };
    let (wins, why) = match measured.filter(|_| facts.measured) {
        Some(true) => (true, "measured faster than native at this shape (H200, cuBLASLt 13.1)"),
        Some(false) => (false, "measured fastest at this shape (H200, cuBLASLt 13.1)"),
        None if facts.cc != HOPPER => (false, "no rule for this GPU prefers another"),
        None if rule => (true, "faster than native at such shapes (rule from an H200, cuBLASLt 13.1)"),
        None => (false, "fastest at such shapes (rule from an H200, cuBLASLt 13.1)"),
    };
    let mut order = Formulation::ALL.to_vec();
    if wins {
        order.retain(|f| *f != alternative);
        order.insert(0, alternative);
    }
    (order, why)
}

/// The cuBLASLt call of one formulation and finish, in row-major terms: `D[rows, n] = A[rows, k] B[n, k]ᵀ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Core {
    pub(crate) formulation: Formulation,
    pub(crate) finish: Finish,
    /// Rows that the GEMM computes: m, or m padded.
    pub(crate) rows: usize,
    /// Scale modes of A and B in the call, which are not always those of the matrices.
    pub(crate) a_scales: ScaleLayout,
    pub(crate) b_scales: ScaleLayout,
    /// Type and row stride of what the GEMM writes.
    pub(crate) d_type: DType,
    pub(crate) d_stride: usize,
    /// What cuBLASLt fuses.
    pub(crate) bias: Option<DType>,
    pub(crate) activation: Activation,
    pub(crate) accumulate: Accumulate,
    pub(crate) amax: OutAmax,
    pub(crate) accumulation: Accumulation,
}

impl Core {
    /// Bytes of the scratch matrix that the GEMM writes into; 0 if it writes D.
    pub(crate) fn scratch_bytes(&self) -> usize {
        match self.finish {
            Finish::Fused => 0,
            Finish::PaddedCopy | Finish::EpilogueKernel => self.rows * self.d_stride * self.d_type.bytes(),
        }
    }

    /// True if the scales of A and B are left to the epilogue kernel.
    pub(crate) fn unit_scales(&self) -> bool {
        self.formulation == Formulation::Rescaled
    }
}

/// Rows the GEMM must compute: cuBLASLt wants m in fours where A has 1x128 scales (documented and observed).
fn gemm_rows(desc: &GemmDesc) -> usize {
    desc.m.next_multiple_of(desc.a.spec().row_multiple)
}

/// Why cuBLASLt cannot do this epilogue, if so. What is left over is still asked of the heuristic.
fn not_fusable(desc: &GemmDesc) -> Option<String> {
    let Epilogue { bias, activation, residual } = desc.epilogue;
    if residual.is_some() {
        return Some("cuBLASLt adds no residual".to_string());
    }
    if activation == Activation::Silu {
        return Some("cuBLASLt has no SiLU".to_string());
    }
    if activation == Activation::Gelu && !matches!(desc.out, DType::Bf16 | DType::F16) {
        return Some(format!("fused GELU is kept for bf16 and f16 output, not {}", desc.out));
    }
    if desc.accumulate == Accumulate::Add && activation != Activation::None {
        return Some("an activation after accumulation is done in our kernel".to_string());
    }
    if desc.out == DType::E4m3 && (bias.is_some() || activation != Activation::None) {
        // Observed (H200, cuBLASLt 13.1.0): amax came back as 97.5 where FP32 gives 97.2995, so the library rounds the sum
        // to the bias type before it takes amax and encodes. Without bias and activation it stays in FP32.
        return Some("cuBLASLt rounds to bf16 between epilogue and e4m3 output; our kernel stays in f32".to_string());
    }
    let fused_bias = if desc.out == DType::F16 { DType::F16 } else { DType::Bf16 };
    match bias {
        Some(bias) if bias != fused_bias => {
            Some(format!("cuBLASLt fuses a {fused_bias} bias into {} output, not {bias}", desc.out))
        }
        _ => None,
    }
}

/// The call for one formulation and finish, or why this finish does not fit.
pub(crate) fn core(desc: &GemmDesc, formulation: Formulation, finish: Finish) -> Result<Core, String> {
    let rows = gemm_rows(desc);
    let padded = rows != desc.m;
    let (a_scales, b_scales) = match formulation {
        Formulation::Native => layouts(desc),
        Formulation::RepeatedScales => (ScaleLayout::Vec128, ScaleLayout::Vec128),
        Formulation::Rescaled => (ScaleLayout::Scalar, ScaleLayout::Scalar),
    };
    // Block modes promote every 128 columns anyway, and the library refuses fast accumulation with them (observed).
    let scalar_or_row = matches!(a_scales, ScaleLayout::Scalar | ScaleLayout::Outer);
    let accumulation = if scalar_or_row { desc.accumulation } else { Accumulation::Precise };
    let base = Core {
        formulation,
        finish,
        rows,
        a_scales,
        b_scales,
        d_type: desc.out,
        d_stride: desc.out_stride,
        bias: desc.epilogue.bias,
        activation: desc.epilogue.activation,
        accumulate: desc.accumulate,
        amax: desc.out_amax,
        accumulation,
    };
    if finish == Finish::EpilogueKernel {
        return Ok(Core {
            d_type: DType::F32,
            d_stride: desc.n,
            bias: None,
            activation: Activation::None,
            accumulate: Accumulate::Replace,
            amax: OutAmax::Ignore,
            ..base
        });
    }
    if formulation == Formulation::Rescaled {
        return Err("the rescale is the epilogue kernel's work".to_string());
    }
    if let Some(reason) = not_fusable(desc) {
        return Err(reason);
    }
    match (finish, padded) {
        (Finish::Fused, false) => Ok(base),
        (Finish::Fused, true) => Err(format!("m = {} is not a multiple of 4, as 1x128 scales of A need", desc.m)),
        (_, false) => Err(format!("m = {} needs no padding", desc.m)),
        (_, true) if desc.accumulate == Accumulate::Add => {
            Err("D's old value is not in the padded scratch matrix".to_string())
        }
        (_, true) => Ok(Core { d_stride: desc.n, ..base }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Fp8Format, Scheme};

    const F: Fp8Format = Fp8Format::E4M3;
    const H200: Facts = Facts { cc: HOPPER, version: Version::new(13, 1, 0), measured: true };

    fn desc(m: usize, a: Scheme, b: Scheme) -> GemmDesc {
        GemmDesc::new(m, 4096, 7168, a, b, DType::Bf16)
    }

    fn offered(desc: &GemmDesc, facts: Facts) -> Vec<Formulation> {
        Formulation::ALL.into_iter().filter(|f| available(desc, facts, *f).is_ok()).collect()
    }

    #[test]
    fn the_table_of_pairs_by_gpu_and_version() {
        use Formulation::{Native, RepeatedScales, Rescaled};
        let (tensor, row) = (Scheme::Fp8Tensor(F), Scheme::Fp8Row(F));
        let (vec, blk) = (Scheme::Fp8Block1x128(F), Scheme::Fp8Block128x128(F));
        let ada = Facts { cc: ADA, ..H200 };
        let blackwell = Facts { cc: (10, 0), ..H200 };
        let ampere = Facts { cc: (8, 0), ..H200 };
        let old = Facts { version: Version::new(12, 8, 4), ..H200 };
        let cases: [(GemmDesc, [&[Formulation]; 5]); 5] = [
            (desc(4, tensor, tensor), [&[Native], &[Native], &[Native], &[], &[Native]]),
            (desc(4, row, row), [&[Native, Rescaled], &[Rescaled], &[Rescaled], &[], &[Rescaled]]),
            (desc(4, vec, blk), [&[Native, RepeatedScales], &[], &[], &[], &[]]),
            (desc(4, blk, vec), [&[Native], &[], &[], &[], &[]]),
            (desc(4, vec, vec), [&[Native], &[], &[], &[], &[]]),
        ];
        for (desc, wanted) in cases {
            for (facts, wanted) in [H200, ada, blackwell, ampere, old].into_iter().zip(wanted) {
                assert_eq!(offered(&desc, facts), wanted, "{desc} on {facts:?}");
            }
        }
        assert!(available(&desc(4, vec, vec), ada, Native).unwrap_err().contains("sm_89"));
        assert!(available(&desc(4, vec, vec), old, Native).unwrap_err().contains("12.8.4"));
        assert!(available(&desc(4, tensor, tensor), ampere, Native).unwrap_err().contains("sm_80 has no FP8"));
    }

    #[test]
    fn measured_shapes_first_then_rules_then_native() {
        use Formulation::{Native, RepeatedScales, Rescaled};
        let (vec, blk, row) = (Scheme::Fp8Block1x128(F), Scheme::Fp8Block128x128(F), Scheme::Fp8Row(F));
        let first = |m, n, k, a, b, facts| preference(&GemmDesc::new(m, n, k, a, b, DType::Bf16), facts).0[0];
        // Measured: n = 24576, k = 1536 turns between m = 64 and 128 for blocks, between 2 and 4 for rows.
        assert_eq!(first(64, 24576, 1536, vec, blk, H200), RepeatedScales);
        assert_eq!(first(65, 24576, 1536, vec, blk, H200), Native);
        assert_eq!(first(2, 24576, 1536, row, row, H200), Rescaled);
        assert_eq!(first(4, 24576, 1536, row, row, H200), Native);
        // Not measured: the rules, on any sm_90.
        let other = Facts { measured: false, ..H200 };
        for facts in [H200, other] {
            assert_eq!(first(64, 9984, 4096, vec, blk, facts), RepeatedScales);
            assert_eq!(first(65, 9984, 4096, vec, blk, facts), Native);
            assert_eq!(first(128, 3072, 4096, vec, blk, facts), RepeatedScales);
            assert_eq!(first(128, 3072, 4096, row, row, facts), Rescaled);
            assert_eq!(first(512, 3072, 4096, row, row, facts), Native);
            assert_eq!(first(6, 9984, 2048, row, row, facts), Rescaled);
            assert_eq!(first(7, 9984, 2048, row, row, facts), Native);
        }
        assert_eq!(first(1, 4096, 7168, blk, vec, H200), Native);
        assert_eq!(first(1, 4096, 7168, vec, blk, Facts { cc: (10, 0), ..other }), Native);
        let mut order = preference(&GemmDesc::new(1, 4096, 7168, row, row, DType::F32), H200).0;
        order.sort();
        assert_eq!(order, Formulation::ALL);
    }

    #[test]
    fn padding_and_epilogues_decide_the_finish() {
        let (vec, blk, row) = (Scheme::Fp8Block1x128(F), Scheme::Fp8Block128x128(F), Scheme::Fp8Row(F));
        let finishes = |desc: &GemmDesc, formulation| -> Vec<Finish> {
            Finish::ALL.into_iter().filter(|f| core(desc, formulation, *f).is_ok()).collect()
        };
        use Finish::{EpilogueKernel, Fused, PaddedCopy};
        assert_eq!(finishes(&desc(8, vec, blk), Formulation::Native), [Fused, EpilogueKernel]);
        assert_eq!(finishes(&desc(7, vec, blk), Formulation::Native), [PaddedCopy, EpilogueKernel]);
        // 128x128 x 1x128 runs at any m.
        assert_eq!(finishes(&desc(7, blk, vec), Formulation::Native), [Fused, EpilogueKernel]);
        assert_eq!(finishes(&desc(7, row, row), Formulation::Rescaled), [EpilogueKernel]);
        let silu = Epilogue { activation: Activation::Silu, ..Epilogue::default() };
        assert_eq!(finishes(&desc(8, vec, blk).with_epilogue(silu), Formulation::Native), [EpilogueKernel]);
        let wide_bias = Epilogue { bias: Some(DType::F32), ..Epilogue::default() };
        assert_eq!(finishes(&desc(8, vec, blk).with_epilogue(wide_bias), Formulation::Native), [EpilogueKernel]);
        let tensor = Scheme::Fp8Tensor(F);
        let encoded = GemmDesc { out: DType::E4m3, ..desc(8, tensor, tensor) };
        assert_eq!(finishes(&encoded, Formulation::Native), [Fused, EpilogueKernel]);
        let bias = Epilogue { bias: Some(DType::Bf16), ..Epilogue::default() };
        let relu = Epilogue { activation: Activation::Relu, ..Epilogue::default() };
        for epilogue in [bias, relu] {
            assert_eq!(finishes(&encoded.with_epilogue(epilogue), Formulation::Native), [EpilogueKernel]);
        }
        let add = GemmDesc { out: DType::F32, accumulate: Accumulate::Add, ..desc(7, vec, blk) };
        assert_eq!(finishes(&add, Formulation::Native), [EpilogueKernel]);
        assert_eq!(finishes(&GemmDesc { m: 8, ..add }, Formulation::Native), [Fused, EpilogueKernel]);
    }

    #[test]
    fn scratch_is_counted_in_padded_rows() {
        let (vec, blk) = (Scheme::Fp8Block1x128(F), Scheme::Fp8Block128x128(F));
        let desc = desc(7, vec, blk).with_accumulation(Accumulation::Fast);
        let padded = core(&desc, Formulation::RepeatedScales, Finish::PaddedCopy).unwrap();
        assert_eq!((padded.rows, padded.scratch_bytes()), (8, 8 * 4096 * 2));
        assert_eq!(padded.accumulation, Accumulation::Precise);
        assert_eq!((padded.a_scales, padded.b_scales), (ScaleLayout::Vec128, ScaleLayout::Vec128));
        let wide = core(&desc, Formulation::Native, Finish::EpilogueKernel).unwrap();
        assert_eq!(wide.scratch_bytes(), 8 * 4096 * 4);
    }
}
