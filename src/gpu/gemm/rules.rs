//! [`preference`]: which formulation is tried first, the one of few rows or those of `any_m_rules`. Pure: nothing here asks a library.

use crate::format::CodeFormat;

use crate::gpu::gemm::any_m_rules::{led_by, preference_for_any_m};
use crate::gpu::gemm::available::{Facts, HOPPER, available};
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::our_pairs::small_m_operands;
use crate::gpu::gemm::outline::outline;
use crate::gpu::gemm::pair_kind::{PairKind, pair_kind};
use crate::gpu::gemm::small_m_rules::{self, Kept};
use crate::gpu::gemm::sum::ValueSource;
use crate::gpu::gemm::wgmma_rules;
use crate::gpu::kernels::{SmallMOperands, SmallMScales, most_rows};

/// The order in which to try formulations, and the words for why.
///
/// That of [`preference_for_any_m`]. Before all of them comes our product of few rows, where it serves the pair, stores D itself, and is faster ([`small_m_rules::is_first`]).
///
/// Where rows must be batch-invariant there is one way, and nothing to be weighed.
pub(crate) fn preference(desc: &GemmDesc, facts: Facts) -> (Vec<Formulation>, String) {
    if desc.batch_invariant {
        let first = match pair_kind(desc) {
            PairKind::Fp8(..) => Formulation::Sm90,
            _ => Formulation::SmallM,
        };
        let order = led_by(first, Formulation::ALL.to_vec());
        return (order, "the one way in which the bits of a row do not depend on m (batch_invariant)".to_string());
    }
    let (order, words) = preference_for_any_m(desc, facts);
    let (few, mnk) = (Formulation::SmallM, [desc.m, desc.n, desc.k]);
    if available(desc, facts, few).is_err() {
        return (order, words);
    }
    if outline(desc, few, Finish::Fused).is_err() {
        return (order, format!("{words}; small-m would need a pass of the epilogue kernel"));
    }
    // One of cuBLASLt's ways, without our epilogue kernel.
    let stored = [Formulation::Native, Formulation::RepeatedScales].into_iter().any(|library| {
        let stores =
            [Finish::Fused, Finish::PaddedCopy].into_iter().any(|finish| outline(desc, library, finish).is_ok());
        stores && available(desc, facts, library).is_ok()
    });
    let first = match pair_kind(desc) {
        PairKind::Fp8(a, b) => {
            SmallMScales::of(a, b).is_some_and(|scales| small_m_rules::is_first(scales, stored, mnk))
        }
        // The library reads the same codes, on tensor cores made for them.
        PairKind::Block(_) if available(desc, facts, Formulation::Native).is_ok() => false,
        // All others read weights of four times the bytes, and dequantize them first unless they are kept.
        PairKind::Block(_) | PairKind::Mxfp4 | PairKind::WeightOnly => {
            let kept = kept_values(desc);
            let (operands, everywhere) = match desc.b.spec().format {
                CodeFormat::E2M1 => (SmallMOperands::E2m1Weights, small_m_rules::is_first_of_e2m1(kept, mnk)),
                _ => (SmallMOperands::E4m3Weights, small_m_rules::is_first_of_e4m3(kept, mnk)),
            };
            everywhere || (facts.cc == HOPPER && wgmma_rules::is_first(kept, operands, mnk))
        }
        // There is no other.
        PairKind::WeightOnlyFp8 => true,
    };
    if !first {
        return (order, format!("{words}; small-m is not faster at such shapes (rule from an H200 and an H100)"));
    }
    // More rows than few come here where there is no other way, which is what the order says then.
    let is_few = small_m_operands(desc).is_some_and(|operands| desc.m <= most_rows(operands));
    let words =
        if is_few { "one pass over B for few rows of A (rule from an H200 and an H100)".to_string() } else { words };
    (led_by(few, order), words)
}

/// What the product of dequantized values finds in B.
fn kept_values(desc: &GemmDesc) -> Kept {
    let given = |finish| {
        let library = outline(desc, Formulation::DequantizedBf16, finish);
        library.is_ok_and(|library| library.sum.values.is_some_and(|values| values.b == ValueSource::Given))
    };
    if given(Finish::Fused) {
        Kept::Fused
    } else if Finish::ALL.into_iter().any(given) {
        Kept::WithPass
    } else {
        Kept::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::{Activation, Epilogue};
    use crate::format::{DType, Fp8Format, Operand, Scheme};
    use crate::gpu::gemm::available::HOPPER;
    use crate::gpu::gemm::desc::Accumulate;
    use crate::gpu::gemm::measured::Card;
    use crate::gpu::lt::quirks::Version;
    use crate::gpu::matrix::derived::KeptWeights;

    const F: Fp8Format = Fp8Format::E4M3;
    const H200: Facts =
        Facts { cc: HOPPER, version: Some(Version::new(13, 1, 0)), sm_count: 132, measured: Some(Card::H200) };

    /// Before all that the tables say, where it does the whole epilogue.
    #[test]
    fn few_rows_are_for_the_kernel_of_few_rows() {
        use Formulation::{RepeatedScales, SmallM};
        let (vec, blk, row) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F), Scheme::Fp8Row(F));
        let all = Epilogue { bias: Some(DType::F32), activation: Activation::Gelu, residual: Some(DType::F16) };
        for (a, b) in [(vec, blk), (row, row), (Scheme::Fp8Tensor(F), Scheme::Fp8Tensor(F))] {
            let desc = |m, n, k| GemmDesc::new(m, n, k, a, b, DType::F16).with_epilogue(all);
            for (m, n, k, few) in
                [(1, 57344, 8192, true), (8, 520, 576, true), (16, 4096, 7168, true), (32, 57344, 8192, false)]
            {
                let desc = desc(m, n, k);
                let (mut order, words) = preference(&desc, H200);
                assert_eq!((order[0] == SmallM, words.contains("one pass over B")), (few, few), "{desc}: {words}");
                order.sort();
                assert_eq!(order, Formulation::ALL);
                for cc in [(8, 9), (10, 0), (12, 0)] {
                    assert_ne!(preference(&desc, Facts { cc, ..H200 }).0[0], SmallM);
                }
            }
            let codes = GemmDesc { out: DType::E4M3, ..desc(1, 4096, 7168) };
            assert_ne!(preference(&codes, H200).0[0], SmallM, "it does not store codes");
        }
        let wide = GemmDesc::new(1, 4096, 7168, Scheme::Fp8Group1x128(Fp8Format::E5M2), blk, DType::Bf16);
        assert_eq!(preference(&wide, H200).0[0], RepeatedScales);
        // E2M1 weights, kept dequantized or not.
        for (a, b) in [
            (Operand::Plain(DType::Bf16), Scheme::Nvfp4),
            (Operand::Plain(DType::Bf16), Scheme::Mxfp4),
            (Operand::Quantized(Scheme::Nvfp4Row), Scheme::Nvfp4),
        ] {
            for kept in [KeptWeights::Nothing, KeptWeights::Dequantized(DType::Bf16)] {
                let plain = |m, k| GemmDesc::new(m, 4096, k, a, b, DType::F32).with_kept(kept);
                let desc = |m, k| plain(m, k).with_epilogue(all);
                // Of a short k one pass over the codes is no faster than the library's product of values that are kept.
                let short = kept == KeptWeights::Nothing || a.scheme() == Some(Scheme::Nvfp4Row);
                let of_short = [(8, 1536), (9, 1536), (16, 2016), (16, 2048)]
                    .map(|(m, k)| preference(&plain(m, k), H200).0[0] == SmallM);
                assert_eq!(of_short, [true, short, short, true], "{a} x {b}, {kept:?}");
                assert_eq!(preference(&desc(16, 7168), H200).0[0], SmallM);
                assert!(preference(&desc(16, 7168), H200).1.contains("one pass over B"));
                // More rows come first where nothing is kept, up to 64 where there are weights enough, and by warpgroup products also where values are, of more weights.
                let first = |m, k| [plain(m, k), desc(m, k)].map(|desc| preference(&desc, H200).0[0] == SmallM);
                let codes = kept == KeptWeights::Nothing;
                assert_eq!([32, 33, 64].map(|m| first(m, 1024)), [[codes; 2]; 3], "{a} x {b}, {kept:?}");
                assert_eq!([17, 33, 64].map(|m| first(m, 3072)), [[true; 2]; 3], "{a} x {b}, {kept:?}");
                assert_eq!([32, 33, 64].map(|m| first(m, 992)), [[false; 2]; 3]);
                let words = preference(&desc(64, 992), H200).1;
                assert!(words.contains("small-m is not faster at such shapes"), "{words}");
                for other in [desc(64, 992), desc(65, 7168), desc(16, 7152)] {
                    assert_eq!(preference(&other, H200).0, Formulation::ALL, "{other}");
                }
                assert!(available(&desc(64, 7168), H200, SmallM).is_ok());
                assert!(available(&desc(65, 7168), H200, SmallM).is_err());
            }
        }
    }

    /// FP8 weights of plain activations have no other way; MXFP8 weights come as codes where few rows multiply them, or nothing is kept.
    #[test]
    fn few_rows_of_e4m3_weights_come_as_codes() {
        use Formulation::{DequantizedBf16, SmallM};
        let (bf16, f16) = (Operand::Plain(DType::Bf16), Operand::Plain(DType::F16));
        let all = Epilogue { bias: Some(DType::F32), activation: Activation::Gelu, residual: Some(DType::F16) };
        let first = |desc: GemmDesc| {
            let (order, words) = preference(&desc, H200);
            (order.into_iter().find(|way| available(&desc, H200, *way).is_ok()), words)
        };
        let fp8 = [Scheme::Fp8Tensor(F), Scheme::Fp8Row(F), Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)];
        for (a, b) in fp8.into_iter().flat_map(|b| [(bf16, b), (f16, b)]) {
            let desc = |m| GemmDesc::new(m, 4096, 7168, a, b, DType::F16).with_epilogue(all);
            for m in [1, 16, 17, 64] {
                let (way, words) = first(desc(m));
                assert_eq!((way, words.contains("one pass over B")), (Some(SmallM), true), "{a} x {b}: {words}");
            }
            let (way, words) = first(desc(65));
            assert_eq!(way, Some(SmallM), "{a} x {b}");
            assert!(words.contains("no library multiplies plain activations"), "{words}");
        }
        let mx = Scheme::Mxfp8(F);
        for a in [bf16, mx.into(), Scheme::Mxfp8(Fp8Format::E5M2).into()] {
            let desc = |m| GemmDesc::new(m, 4096, 7168, a, mx, DType::Bf16);
            let kept = |m| desc(m).with_kept(KeptWeights::Dequantized(DType::Bf16));
            for m in [1, 16] {
                assert_eq!([first(desc(m)).0, first(kept(m)).0], [Some(SmallM); 2], "{a}");
            }
            for m in [17, 64] {
                assert_eq!([first(desc(m)).0, first(kept(m)).0], [Some(SmallM); 2], "{a}");
                let fewer = |desc: GemmDesc| first(GemmDesc { k: 4096, ..desc }).0;
                assert_eq!([fewer(desc(m)), fewer(kept(m))], [Some(SmallM), Some(DequantizedBf16)], "{a}");
            }
            assert_eq!(first(desc(65)).0, Some(DequantizedBf16));
        }
        let wide = GemmDesc::new(1, 4096, 7168, bf16, Scheme::Mxfp8(Fp8Format::E5M2), DType::Bf16);
        assert_eq!(first(wide).0, Some(DequantizedBf16));
    }

    /// The same way and finish for every m, whatever comes first where nobody asks; and none for pairs and GPUs without it.
    #[test]
    fn batch_invariant_rows_have_one_way() {
        use Formulation::{Sm90, SmallM};
        let (vec, blk, row) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F), Scheme::Fp8Row(F));
        let (tensor, wide) = (Scheme::Fp8Tensor(F), Scheme::Fp8Group1x128(Fp8Format::E5M2));
        let ways = |desc: &GemmDesc, facts| {
            let (order, words) = preference(desc, facts);
            let first = if matches!(pair_kind(desc), PairKind::Fp8(..)) { Sm90 } else { SmallM };
            assert!(order[0] == first && words.contains("batch_invariant"), "{desc}: {order:?}, {words}");
            let finishes = |f| Finish::ALL.into_iter().filter(move |finish| outline(desc, f, *finish).is_ok());
            let offered = order.into_iter().filter(|f| available(desc, facts, *f).is_ok());
            offered.flat_map(|f| finishes(f).map(move |finish| (f, finish))).collect::<Vec<_>>()
        };
        let silu = Epilogue { activation: Activation::Silu, bias: Some(DType::F32), residual: Some(DType::Bf16) };
        let mut unasked = Vec::new();
        for m in [1, 2, 7, 16, 32, 33, 128, 513, 4096, 8192] {
            let of = |a: Operand, b, out| GemmDesc::new(m, 4096, 7168, a, b, out).with_batch_invariant(true);
            for (a, b) in [(vec, blk), (vec, vec), (blk, vec), (row, row), (tensor, tensor), (wide, blk), (blk, wide)] {
                let a = a.into();
                for out in [DType::Bf16, DType::F16, DType::F32] {
                    let add = of(a, b, DType::F32).with_accumulate(Accumulate::Add);
                    for desc in [of(a, b, out), of(a, b, out).with_epilogue(silu), add] {
                        assert_eq!(ways(&desc, H200), [(Sm90, Finish::Fused)], "{desc}");
                        unasked.push(preference(&desc.with_batch_invariant(false), H200).0[0]);
                    }
                }
            }
            let codes = of(tensor.into(), tensor, DType::E4M3).with_epilogue(silu);
            assert_eq!(ways(&codes, H200), [(Sm90, Finish::EpilogueKernel)], "{codes}");
            let plain = Operand::Plain(DType::Bf16);
            let e5m2 = Scheme::Mxfp8(Fp8Format::E5M2);
            for (a, b) in [(Operand::from(blk), blk), (plain, e5m2), (plain, Scheme::Fp8Row(Fp8Format::E5M2))] {
                assert_eq!(ways(&of(a, b, DType::Bf16), H200), [], "{a} x {b}");
            }
            for cc in [(8, 0), (8, 9), HOPPER, (10, 0), (12, 0)] {
                for (a, b) in [
                    (Scheme::Nvfp4.into(), Scheme::Nvfp4),
                    (plain, Scheme::Nvfp4),
                    (plain, Scheme::Mxfp4),
                    (plain, blk),
                    (plain, row),
                    (Scheme::Mxfp8(F).into(), Scheme::Mxfp8(F)),
                ] {
                    let desc = of(a, b, DType::Bf16).with_epilogue(silu);
                    assert_eq!(ways(&desc, Facts { cc, ..H200 }), [(SmallM, Finish::Fused)], "{a} x {b} on {cc:?}");
                }
            }
            for cc in [(8, 0), (8, 9), (10, 0), (12, 0)] {
                assert_eq!(ways(&of(row.into(), row, DType::Bf16), Facts { cc, ..H200 }), [], "on {cc:?}");
            }
        }
        unasked.sort();
        unasked.dedup();
        assert!(unasked.len() > 3, "what is taken follows m where nobody asks: {unasked:?}");
        let desc = GemmDesc::new(7, 4096, 7168, row, row, DType::Bf16).with_batch_invariant(true);
        for (way, words) in [
            (Formulation::Native, "chooses its algorithm for m = 7"),
            (Formulation::Rescaled, "chooses its algorithm for m = 7"),
            (Formulation::SmallM, "at most 32 rows of A, and the parts in which it sums k follow m"),
        ] {
            let refusals = [available(&desc, H200, way), outline(&desc, way, Finish::EpilogueKernel).map(|_| ())];
            for why in refusals.map(Result::unwrap_err) {
                assert!(why.contains("not batch-invariant") && why.contains(words), "{way}: {why}");
            }
        }
    }

    #[test]
    fn blocks_have_one_order_on_every_gpu() {
        for cc in [(8, 0), (9, 0), (10, 0), (12, 0)] {
            let facts = Facts { cc, ..H200 };
            for a in [Operand::Quantized(Scheme::Nvfp4), Operand::Plain(DType::Bf16)] {
                let native = cc.0 >= 10 && a.scheme().is_some();
                for m in [1, 16, 32, 65] {
                    let desc = GemmDesc::new(m, 4096, 7168, a, Scheme::Nvfp4, DType::Bf16);
                    let (order, why) = preference(&desc, facts);
                    assert_eq!(order == Formulation::ALL, native || m > 64, "{desc} on {facts:?}");
                    assert_eq!(order[0] == Formulation::SmallM, !native && m <= 64, "{desc} on {facts:?}");
                    assert_eq!(why.contains("multiplies such blocks itself"), native, "{desc} on {facts:?}: {why}");
                }
            }
        }
    }
}
