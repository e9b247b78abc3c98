//! [`preference`]: which formulation is tried first. Pure: nothing here asks a library.

use crate::format::layout::ScaleLayout;

use crate::gpu::gemm::desc::{Accumulate, Accumulation, GemmDesc, OutAmax};
use crate::gpu::gemm::formulation::{Facts, Formulation, HOPPER, PairKind, available, pair_kind};
use crate::gpu::gemm::measured::{self, Choice, Problem};

/// The order in which to try formulations, and the words for why.
///
/// Where cuBLASLt has the pair natively and there is an alternative, [`crate::gpu::gemm::measured`] knows which is the faster one:
/// by measurement at the shapes of published models, by a rule at others. Repeated scales run in smaller tiles than the
/// native pair, and win while m is small or those tiles are few. A rescale costs some bytes an element of D, and wins while
/// native row scales, whose one algorithm never splits k, leave multiprocessors idle on a long k, or while D is small beside B.
pub(crate) fn preference(desc: &GemmDesc, facts: Facts) -> (Vec<Formulation>, String) {
    let all = |why: &str| (Formulation::ALL.to_vec(), why.to_string());
    let (alternative, tables) = match pair_kind(desc) {
        PairKind::Fp8(ScaleLayout::Vec128, ScaleLayout::Blk128) => {
            (Formulation::RepeatedScales, measured::REPEATED_SCALES)
        }
        PairKind::Fp8(ScaleLayout::Outer, ScaleLayout::Outer) => (Formulation::Rescaled, measured::RESCALED),
        PairKind::Block(_) if available(desc, facts, Formulation::Native).is_ok() => {
            return all("this GPU multiplies such blocks itself");
        }
        PairKind::Block(_) | PairKind::WeightOnly => {
            return all("this GPU multiplies no such blocks, and their values are exact in plain numbers");
        }
        PairKind::Fp8(..) => return all("there is one way"),
    };
    if facts.cc != HOPPER {
        return all("no rule for this GPU prefers another");
    }
    let problem = Problem {
        fast: alternative == Formulation::Rescaled && desc.accumulation == Accumulation::Fast,
        out: desc.out,
        activation: desc.epilogue.activation,
        more: desc.epilogue.bias.is_some()
            || desc.epilogue.residual.is_some()
            || desc.accumulate == Accumulate::Add
            || desc.out_amax == OutAmax::Store,
    };
    let choice = measured::choose(tables, problem, [desc.m, desc.n, desc.k], facts.sm_count as usize, facts.measured);
    let (wins, at, source) = match choice {
        Some(Choice::Measured(wins)) => (wins, "measured at this shape", "H200, cuBLASLt 13.1"),
        Some(Choice::Rule(wins)) => (wins, "at such shapes", "rule from an H200, cuBLASLt 13.1"),
        Some(Choice::NearestRule(wins)) => {
            (wins, "at such shapes", "rule of similar problems on an H200, cuBLASLt 13.1")
        }
        None => return all("nothing was measured"),
    };
    let mut order = Formulation::ALL.to_vec();
    if wins {
        order.retain(|f| *f != alternative);
        order.insert(0, alternative);
    }
    let what = if wins { "faster than native" } else { "fastest" };
    (order, format!("{what}, {at} ({source})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::{Activation, Epilogue};
    use crate::format::{DType, Fp8Format, Operand, Scheme};
    use crate::gpu::lt::quirks::Version;

    const F: Fp8Format = Fp8Format::E4M3;
    const H200: Facts = Facts { cc: HOPPER, version: Version::new(13, 1, 0), sm_count: 132, measured: true };

    #[test]
    fn measured_shapes_first_then_rules_then_native() {
        use Formulation::{Native, RepeatedScales, Rescaled};
        let (vec, blk, row) = (Scheme::Fp8Block1x128(F), Scheme::Fp8Block128x128(F), Scheme::Fp8Row(F));
        let desc = |m, n, k, a, b| GemmDesc::new(m, n, k, a, b, DType::Bf16).with_accumulation(Accumulation::Fast);
        let first = |m, n, k, a, b, facts| preference(&desc(m, n, k, a, b), facts).0[0];
        // Measured: n = 24576, k = 1536 turns between m = 64 and 128 for blocks, between 2 and 4 for rows.
        assert_eq!(first(64, 24576, 1536, vec, blk, H200), RepeatedScales);
        assert_eq!(first(65, 24576, 1536, vec, blk, H200), Native);
        assert_eq!(first(2, 24576, 1536, row, row, H200), Rescaled);
        assert_eq!(first(3, 24576, 1536, row, row, H200), Native);
        // Not measured: the rules, on any sm_90.
        let other = Facts { measured: false, ..H200 };
        for facts in [H200, other] {
            assert_eq!(first(64, 9984, 4096, vec, blk, facts), RepeatedScales);
            assert_eq!(first(65, 9984, 4096, vec, blk, facts), Native);
            assert_eq!(first(128, 3072, 4096, vec, blk, facts), RepeatedScales);
            assert_eq!(first(128, 3072, 4096, row, row, facts), Rescaled);
            assert_eq!(first(512, 3072, 4096, row, row, facts), Native);
            assert_eq!(first(12, 9984, 2048, row, row, facts), Rescaled);
            assert_eq!(first(13, 9984, 2048, row, row, facts), Native);
        }
        // 24 tiles are less than half of 132 multiprocessors, and more than half of 40.
        let small = Facts { sm_count: 40, ..other };
        assert_eq!(first(128, 3072, 4096, row, row, small), Native);
        // The table is for fast sums into BF16 and nothing else; the words say which rule was followed instead.
        let measured = desc(2, 24576, 1536, row, row);
        let words = |desc: &GemmDesc| preference(desc, H200).1;
        assert!(words(&measured).contains("measured at this shape"), "{}", words(&measured));
        let silu = Epilogue { activation: Activation::Silu, ..Epilogue::default() };
        for similar in [
            measured.with_accumulation(Accumulation::Precise),
            measured.with_epilogue(silu),
            measured.with_accumulate(Accumulate::Add),
            GemmDesc { out: DType::F32, ..measured },
        ] {
            assert!(words(&similar).contains("rule of similar problems"), "{similar}: {}", words(&similar));
        }
        assert_eq!(first(1, 4096, 7168, blk, vec, H200), Native);
        assert_eq!(first(1, 4096, 7168, vec, blk, Facts { cc: (10, 0), ..other }), Native);
        let mut order = preference(&desc(1, 4096, 7168, row, row), H200).0;
        order.sort();
        assert_eq!(order, Formulation::ALL);
    }

    #[test]
    fn blocks_have_one_order_on_every_gpu() {
        for cc in [(8, 0), (9, 0), (10, 0), (12, 0)] {
            let facts = Facts { cc, ..H200 };
            for a in [Operand::Quantized(Scheme::Nvfp4), Operand::Plain(DType::Bf16)] {
                let desc = GemmDesc::new(17, 4096, 7168, a, Scheme::Nvfp4, DType::Bf16);
                let (order, why) = preference(&desc, facts);
                assert_eq!(order, Formulation::ALL, "{desc} on {facts:?}");
                let native = cc.0 >= 10 && a.scheme().is_some();
                assert_eq!(why.contains("multiplies such blocks itself"), native, "{desc} on {facts:?}: {why}");
            }
        }
    }
}
