//! [`preference_for_any_m`]: which of the formulations that take any m is tried first: cuBLASLt's ways, and our product for sm_90. Pure: nothing here asks a library.

use crate::epilogue::Activation;
use crate::format::DType;
use crate::format::layout::ScaleLayout;
use crate::gpu::gemm::available::{Facts, HOPPER, available};
use crate::gpu::gemm::desc::{Accumulate, Accumulation, GemmDesc, OutAmax};
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::measured::{self, Card, Choice, Measured, Problem, Rule};
use crate::gpu::gemm::one_way_rules::{self, Asked};
use crate::gpu::gemm::our_pairs::sm90_pair;
use crate::gpu::gemm::outline::outline;
use crate::gpu::gemm::pair_kind::{PairKind, pair_kind};
use crate::gpu::gemm::sm90_rules;
use crate::gpu::gemm::{measured_h100, measured_sm90, measured_sm90_h100};
use crate::gpu::kernels::Sm90Scales;

/// The order in which to try formulations, and the words for why, as if there were no product of few rows.
///
/// Where cuBLASLt has the pair natively and there is an alternative, [`crate::gpu::gemm::measured`] knows which is the faster one:
/// by measurement at the shapes of published models, by a rule at others. Repeated scales run in smaller tiles than the
/// native pair, and win while m is small or those tiles are few. A rescale costs some bytes an element of D, and wins while
/// native row scales, whose one algorithm never splits k, leave multiprocessors idle on a long k, or while D is small beside B. Our own
/// product for sm_90 is then held against the better of these: [`crate::gpu::gemm::measured_sm90`], unless its epilogue takes longer.
pub(super) fn preference_for_any_m(desc: &GemmDesc, facts: Facts) -> (Vec<Formulation>, String) {
    let all = |why: &str| (Formulation::ALL.to_vec(), why.to_string());
    let alternative = match pair_kind(desc) {
        PairKind::Fp8(ScaleLayout::Vec128, ScaleLayout::Blk128) => Formulation::RepeatedScales,
        PairKind::Fp8(ScaleLayout::Outer, ScaleLayout::Outer) => Formulation::Rescaled,
        PairKind::Block(_) if available(desc, facts, Formulation::Native).is_ok() => {
            return all("this GPU multiplies such blocks itself");
        }
        PairKind::WeightOnlyFp8 => return all("no library multiplies plain activations by FP8 weights"),
        PairKind::Block(_) | PairKind::Mxfp4 | PairKind::WeightOnly => {
            return all("no library multiplies such blocks on this GPU, and their values are exact in plain numbers");
        }
        PairKind::Fp8(..) => {
            return match ours_before_the_one_way(desc, facts) {
                Ok(()) => {
                    let order = led_by(Formulation::Sm90, Formulation::ALL.to_vec());
                    (order, "faster than cuBLASLt's one way at such shapes (rule from an H200)".to_string())
                }
                Err(why) => all(why),
            };
        }
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
    let (mnk, sm_count) = ([desc.m, desc.n, desc.k], facts.sm_count as usize);
    let (tables, tables_of_ours) = tables(alternative, facts.measured);
    let choice = measured::choose(tables, problem, mnk, sm_count, facts.measured.is_some());
    // The rules that hold on other GPUs, too: of the library from an H200, of ours from an H100, where its kernels were timed last.
    let library_rule = facts.measured.unwrap_or(Card::H200);
    let (wins, at) = match choice {
        Some(choice) => said(choice, facts.measured, library_rule),
        None => return all("nothing was measured"),
    };
    let order = Formulation::ALL.to_vec();
    let order = if wins { led_by(alternative, order) } else { order };
    let words = format!("{}, {at}", if wins { "faster than native" } else { "fastest" });
    let Ok(pair) = available(desc, facts, Formulation::Sm90).and_then(|()| sm90_pair(desc)) else {
        return (order, words);
    };
    if !sm90_rules::has_the_fastest(mnk, sm_count, pair) {
        return (order, format!("{words}; sm90 is not, without the kernel for such shapes with e5m2 codes"));
    }
    let library = if wins { alternative } else { Formulation::Native };
    // What costs the library a pass is like SiLU, whatever it is.
    let like_silu = !stores(desc, Formulation::Native);
    let one_round_of_rows = alternative == Formulation::Rescaled && measured_sm90::ONE_ROUND.wins(mnk, sm_count);
    let ends_sooner = !like_silu && !one_round_of_rows && is_fused_by_the_library(desc, library);
    if ends_sooner || outline(desc, Formulation::Sm90, Finish::Fused).is_err() {
        return (order, format!("{words}; sm90 is not, with such an epilogue (rule from an H200)"));
    }
    let problem = if like_silu { Problem { activation: Activation::Silu, ..problem } } else { problem };
    let ours = measured::choose(tables_of_ours, problem, mnk, sm_count, facts.measured.is_some());
    match ours.map(|choice| said(choice, facts.measured, Card::H100)) {
        Some((true, at)) => (led_by(Formulation::Sm90, order), format!("faster than cuBLASLt's products, {at}")),
        Some((false, at)) => (order, format!("{words}; sm90 is not, {at}")),
        None => (order, words),
    }
}

/// What was measured of the library's two ways, and of ours, on this GPU, or the rules for all.
fn tables(
    alternative: Formulation,
    card: Option<Card>,
) -> (&'static [Measured<measured::Row>], &'static [Measured<measured_sm90::Row>]) {
    match (alternative, card) {
        (Formulation::Rescaled, Some(Card::H100)) => (measured_h100::RESCALED, measured_sm90_h100::SM90_ROWS),
        (Formulation::Rescaled, _) => (measured::RESCALED, measured_sm90::SM90_ROWS),
        (_, Some(Card::H100)) => (measured_h100::REPEATED_SCALES, measured_sm90_h100::SM90),
        _ => (measured::REPEATED_SCALES, measured_sm90::SM90),
    }
}

/// Whether a way of cuBLASLt stores D, without a pass of our epilogue kernel.
fn stores(desc: &GemmDesc, library: Formulation) -> bool {
    [Finish::Fused, Finish::PaddedCopy].into_iter().any(|finish| outline(desc, library, finish).is_ok())
}

/// Whether sm90 is slower than this way of cuBLASLt because of an activation that the library fuses, which computes it less exactly (GELU at 4096 x 4096 x
/// 7168: 214 us for 194; observed: H200, 2026-11-25, `bench sm90`).
fn is_fused_by_the_library(desc: &GemmDesc, library: Formulation) -> bool {
    desc.epilogue.activation != Activation::None && stores(desc, library)
}

/// Of pairs for which cuBLASLt has one way: whether ours goes before it, or why not.
fn ours_before_the_one_way(desc: &GemmDesc, facts: Facts) -> Result<(), &'static str> {
    let pair = available(desc, facts, Formulation::Sm90).and_then(|()| sm90_pair(desc));
    let (Ok(pair), Ok(())) = (pair, available(desc, facts, Formulation::Native)) else {
        return Err("cuBLASLt has one way");
    };
    let (mnk, sm_count) = ([desc.m, desc.n, desc.k], facts.sm_count as usize);
    if desc.m < one_way_rules::FEWEST_ROWS {
        return Err("cuBLASLt's one way; sm90 was not measured with so few rows");
    }
    if outline(desc, Formulation::Sm90, Finish::Fused).is_err() {
        return Err("cuBLASLt's one way; sm90 does not store such a D");
    }
    if is_fused_by_the_library(desc, Formulation::Native) {
        return Err("cuBLASLt's one way; sm90 is not faster, with such an epilogue (rule from an H200)");
    }
    if !sm90_rules::has_the_fastest(mnk, sm_count, pair) {
        return Err("cuBLASLt's one way; sm90 is not faster, without the kernel for such shapes with these codes");
    }
    // cuBLASLt 13.1 adds to no D of products with 1x128 scales, which is known when it is asked.
    let adds_by_a_pass = desc.accumulate == Accumulate::Add && !matches!(pair.scales, Sm90Scales::Outer { .. });
    let asked = Asked {
        passes: adds_by_a_pass || !stores(desc, Formulation::Native),
        fast: desc.accumulation == Accumulation::Fast,
        to_fp32: desc.out == DType::F32,
    };
    match one_way_rules::is_first(pair.scales, asked, mnk, sm_count) {
        true => Ok(()),
        false => Err("cuBLASLt's one way is the fastest at such shapes, sums and types (rule from an H200)"),
    }
}

/// Whether the choice is for the alternative, and where that is known from: rows of one GPU, or a rule made from another's.
fn said(choice: Choice, rows: Option<Card>, rule: Card) -> (bool, String) {
    match (choice, rows) {
        (Choice::Measured(wins), Some(card)) => (wins, format!("measured at this shape ({card}, cuBLASLt 13.1)")),
        (Choice::Measured(wins) | Choice::Rule(wins), _) => {
            (wins, format!("at such shapes (rule from an {rule}, cuBLASLt 13.1)"))
        }
        (Choice::NearestRule(wins), _) => {
            (wins, format!("at such shapes (rule of similar problems on an {rule}, cuBLASLt 13.1)"))
        }
    }
}

/// The same order behind this formulation.
pub(super) fn led_by(first: Formulation, mut order: Vec<Formulation>) -> Vec<Formulation> {
    order.retain(|formulation| *formulation != first);
    order.insert(0, first);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Epilogue;
    use crate::format::{DType, Fp8Format, Scheme};
    use crate::gpu::lt::quirks::Version;

    const F: Fp8Format = Fp8Format::E4M3;
    const H200: Facts =
        Facts { cc: HOPPER, version: Some(Version::new(13, 1, 0)), sm_count: 132, measured: Some(Card::H200) };
    const H100: Facts = Facts { measured: Some(Card::H100), ..H200 };

    #[test]
    fn measured_shapes_first_then_rules_then_native() {
        use Formulation::{Native, RepeatedScales, Rescaled, Sm90};
        let (vec, blk, row) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F), Scheme::Fp8Row(F));
        let desc = |m, n, k, a, b| GemmDesc::new(m, n, k, a, b, DType::Bf16).with_accumulation(Accumulation::Fast);
        let first = |m, n, k, a, b, facts| preference_for_any_m(&desc(m, n, k, a, b), facts).0[0];
        // What the numbers say is the business of `measured`; here they are followed, by row or by rule, whatever they are.
        let other = Facts { measured: None, ..H200 };
        let mut seen = std::collections::HashSet::new();
        for (m, n, k) in [
            (1, 24576, 1536),
            (64, 24576, 1536),
            (4096, 24576, 1536),
            (8192, 4096, 7168),
            (16, 9984, 4096),
            (8192, 9984, 4096),
        ] {
            for (a, b, alternative) in [(vec, blk, RepeatedScales), (row, row, Rescaled)] {
                for facts in [H200, H100, other, Facts { sm_count: 8, ..other }] {
                    let fast = alternative == Rescaled;
                    let problem = Problem { fast, out: DType::Bf16, activation: Activation::None, more: false };
                    let sms = facts.sm_count as usize;
                    let (tables, tables_of_ours) = tables(alternative, facts.measured);
                    let rows = facts.measured.is_some();
                    let choice = measured::choose(tables, problem, [m, n, k], sms, rows).unwrap();
                    let (Choice::Measured(wins) | Choice::Rule(wins) | Choice::NearestRule(wins)) = choice;
                    assert_eq!(matches!(choice, Choice::Measured(_)), rows && n != 9984, "{choice:?}");
                    let wanted = if wins { alternative } else { Native };
                    let ours = measured::choose(tables_of_ours, problem, [m, n, k], sms, rows).unwrap();
                    let ours = said(ours, facts.measured, Card::H100).0;
                    let wanted = if ours { Sm90 } else { wanted };
                    assert_eq!(first(m, n, k, a, b, facts), wanted, "{m} x {n} x {k} on {facts:?}: {choice:?}");
                    // Another format has the same two ways of the library, and ours where the configuration for the shape has kernels for it.
                    if alternative == RepeatedScales {
                        let wide = Scheme::Fp8Group1x128(Fp8Format::E5M2);
                        let fast =
                            sm90_rules::has_the_fastest([m, n, k], sms, sm90_pair(&desc(m, n, k, wide, b)).unwrap());
                        assert_eq!(first(m, n, k, wide, b, facts) == Sm90, ours && fast, "{m} x {n} x {k}");
                        seen.insert((ours, fast));
                    }
                }
            }
        }
        assert!(seen.contains(&(true, true)) && seen.contains(&(true, false)), "{seen:?}");
        // In the record: one row of A is ours, eight on a wide B with a short k are repeated scales', thousands ours and native's.
        assert_eq!([vec, row].map(|a| first(1, 4096, 7168, a, if a == row { row } else { blk }, H200)), [Sm90, Sm90]);
        assert_eq!(first(8, 7168, 2048, vec, blk, H200), RepeatedScales);
        assert_eq!(
            [vec, row].map(|a| first(8192, 24576, 1536, a, if a == row { row } else { blk }, H200)),
            [Sm90, Native]
        );
        // A table is for what it was measured for and nothing else; the words say which rule was followed instead.
        let known = desc(2, 24576, 1536, row, row);
        let words = |desc: &GemmDesc| preference_for_any_m(desc, H200).1;
        assert!(words(&known).contains("measured at this shape"), "{}", words(&known));
        let silu = Epilogue { activation: Activation::Silu, ..Epilogue::default() };
        let similar = GemmDesc { out: DType::F16, ..known };
        assert!(words(&similar).contains("rule of similar problems"), "{similar}: {}", words(&similar));
        // A bias and every type cost ours what they cost the library, activations that the library fuses more, and what it leaves to a pass less.
        let wide = desc(8192, 24576, 1536, vec, blk);
        let of = |desc: &GemmDesc| preference_for_any_m(desc, H200);
        assert_eq!(of(&wide).0[0], Sm90);
        let with = |activation, bias| Epilogue { activation, bias, residual: None };
        for fused in [
            wide.with_epilogue(with(Activation::None, Some(DType::Bf16))),
            GemmDesc { out: DType::F16, ..wide },
            // Of 1x128 scales cuBLASLt wants rows in fours: it pads.
            GemmDesc { m: 8191, ..wide }.with_epilogue(with(Activation::None, Some(DType::Bf16))),
        ] {
            let (order, words) = of(&fused);
            assert_eq!((order[0], words.contains("rule of similar problems")), (Sm90, true), "{fused}: {words}");
        }
        let silu = of(&wide.with_epilogue(silu));
        assert!(silu.0[0] == Sm90 && silu.1.contains("measured at this shape"), "{silu:?}");
        let residual = Epilogue { residual: Some(DType::Bf16), ..Epilogue::default() };
        for (m, ours) in [(1, false), (16, false), (17, true), (512, true)] {
            let desc = desc(m, 4096, 14336, vec, blk).with_epilogue(residual);
            let (order, words) = of(&desc);
            assert_eq!(
                (order[0] == Sm90, words.contains("rule of similar problems on an H100")),
                (ours, true),
                "{desc}: {words}"
            );
        }
        for slower in
            [wide.with_epilogue(with(Activation::Gelu, None)), wide.with_epilogue(with(Activation::Relu, None))]
        {
            let (order, words) = of(&slower);
            assert_eq!(
                (order[0], words.contains("sm90 is not, with such an epilogue")),
                (Native, true),
                "{slower}: {words}"
            );
        }
        // Scales of rows: precise sums, one round of small tiles whatever the sums, and what costs the library a pass. Of matrices: precise sums in full rounds, and what costs it a pass.
        let precise = |m, n, k, scheme| desc(m, n, k, scheme, scheme).with_accumulation(Accumulation::Precise);
        let large = precise(4096, 4096, 7296, row);
        assert_eq!(of(&large).0[0], Sm90);
        assert!(of(&large).1.contains("rule from an H100"), "{}", of(&large).1);
        let silu = with(Activation::Silu, None);
        let fast = large.with_accumulation(Accumulation::Fast);
        assert_eq!([large, fast].map(|desc| of(&desc.with_epilogue(silu)).0[0]), [Sm90; 2]);
        let matrices = precise(4096, 4096, 7296, Scheme::Fp8Tensor(F));
        let fast_of_matrices = matrices.with_accumulation(Accumulation::Fast);
        assert!(of(&matrices).1.contains("faster than cuBLASLt's one way"), "{}", of(&matrices).1);
        assert_eq!([matrices, fast_of_matrices.with_epilogue(silu)].map(|desc| of(&desc).0[0]), [Sm90; 2]);
        for other in [
            fast,
            large.with_epilogue(with(Activation::Gelu, None)),
            fast_of_matrices,
            matrices.with_epilogue(with(Activation::Gelu, None)),
            GemmDesc { out: DType::F32, ..matrices },
            GemmDesc { m: 16, ..matrices }.with_epilogue(silu),
        ] {
            assert_ne!(of(&other).0[0], Sm90, "{other}");
        }
        let few = desc(128, 4096, 7296, row, row);
        for epilogue in
            [Epilogue::default(), silu, with(Activation::Gelu, None), Epilogue { residual: Some(DType::F16), ..silu }]
        {
            assert_eq!(of(&few.with_epilogue(epilogue)).0[0], Sm90, "{epilogue:?}");
        }
        assert_ne!(preference_for_any_m(&few, Facts { cc: (8, 9), ..H200 }).0[0], Sm90);
        // 1x128 scales on both sides, as of weight gradients: where another tile is faster than those of 128 x 128, and, added to D, in several rounds.
        let gradient = GemmDesc { out: DType::F32, ..precise(4096, 4096, 4096, vec) };
        let small = GemmDesc { m: 512, ..gradient };
        let narrow = GemmDesc { n: 2112, k: 7168, ..gradient };
        for (desc, first) in [(gradient, [Sm90; 2]), (small, [Native; 2]), (narrow, [Native, Sm90])] {
            assert_eq!([desc, desc.with_accumulate(Accumulate::Add)].map(|desc| of(&desc).0[0]), first, "{desc}");
        }
        let fused_there = GemmDesc { out: DType::Bf16, ..gradient }.with_epilogue(with(Activation::Gelu, None));
        assert_eq!(of(&fused_there).0[0], Native);
        assert!(of(&small).1.contains("one way is the fastest"), "{}", of(&small).1);
        // Of codes in E5M2 where a kernel for the shape has them.
        let wide = |m| GemmDesc { m, a: Scheme::Fp8Group1x128(Fp8Format::E5M2).into(), ..gradient };
        assert_eq!([4096, 300].map(|m| of(&wide(m)).0[0]), [Sm90, Native]);
        assert!(of(&wide(300)).1.contains("without the kernel"), "{}", of(&wide(300)).1);
        let wide_blk = Scheme::Fp8Group128x128(Fp8Format::E5M2);
        assert_eq!([(256, 4096), (512, 4096)].map(|(m, n)| first(m, n, 4096, wide_blk, vec, H200)), [Sm90, Native]);
        // Without cuBLASLt's way nothing is said of it.
        let none = Facts { version: None, ..H200 };
        assert_eq!(preference_for_any_m(&gradient, none).1, "cuBLASLt has one way");
        assert!(of(&GemmDesc { m: 63, ..gradient }).1.contains("so few rows"));
        assert_eq!(first(256, 4096, 4096, blk, vec, H200), Sm90);
        assert!(of(&desc(8, 7168, 2048, vec, blk)).1.contains("; sm90 is not, measured at this shape"));
        assert_eq!(first(1, 4096, 7168, blk, vec, H200), Native);
        assert_eq!(first(1, 4096, 7168, vec, blk, Facts { cc: (10, 0), ..other }), Native);
        let mut order = preference_for_any_m(&desc(1, 4096, 7168, row, row), H200).0;
        order.sort();
        assert_eq!(order, Formulation::ALL);
    }

    /// Of narrow weights with a long k: the fastest in the record of `formulations` (2026-11-29).
    #[test]
    fn narrow_weights_are_multiplied_as_the_records_say() {
        use Formulation::{Native, RepeatedScales, Rescaled, Sm90};
        let (vec, blk, row) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F), Scheme::Fp8Row(F));
        let first = |desc: GemmDesc| preference_for_any_m(&desc, H200).0[0];
        for (m, fastest) in
            [(8, RepeatedScales), (128, Sm90), (192, Sm90), (768, Sm90), (1024, Sm90), (4096, Sm90), (8192, Sm90)]
        {
            assert_eq!(first(GemmDesc::new(m, 2112, 7168, vec, blk, DType::Bf16)), fastest, "m = {m}");
        }
        for (m, n, fastest) in [
            (128, 576, Sm90),
            (1024, 576, Rescaled),
            (128, 2112, Sm90),
            (192, 2112, Sm90),
            (512, 2112, Sm90),
            (128, 4096, Sm90),
            (256, 4096, Sm90),
        ] {
            let desc = GemmDesc::new(m, n, 7168, row, row, DType::Bf16).with_accumulation(Accumulation::Fast);
            assert_eq!(first(desc), fastest, "m = {m}, n = {n}");
        }
        // Each card has rows of its own (H100: `2026-11-27-nvidia-h100-formulations-2`).
        let on = |n, m| {
            [H200, H100]
                .map(|facts| preference_for_any_m(&GemmDesc::new(m, n, 7168, vec, blk, DType::Bf16), facts).0[0])
        };
        assert_eq!([128, 256, 512].map(|m| on(4096, m)), [[Sm90; 2], [Sm90; 2], [Sm90, Native]]);
        assert_eq!([512, 768].map(|m| on(2112, m)), [[Sm90; 2]; 2]);
    }
}
