//! Plans: scratch memory that all plans of a handle share, products that are captured once they are cached, and records that
//! name an algorithm which the library offers.
#![cfg(feature = "cuda")]

mod common;

use common::gemm::*;
use common::*;
use scaled_gemm::{
    Activation, DType, Error, Formulation, Fp8Format, GemmDesc, PlanOptions, Scheme, TuneRecord, TuneTable,
};

const NVFP4: (Scheme, Scheme) = (Scheme::Nvfp4, Scheme::Nvfp4);
const TENSORS: (Scheme, Scheme) = (Scheme::Fp8Tensor(Fp8Format::E4M3), Scheme::Fp8Tensor(Fp8Format::E4M3));

/// A layer of NVFP4 weights that are not kept, and whose sum goes through scratch memory too.
fn layer() -> Case {
    Case { activation: Activation::Silu, bias: Some(DType::Bf16), ..Case::new(DType::Bf16) }
}

fn refused<T>(result: Result<T, Error>, words: &[&str]) {
    let Err(error) = result else { panic!("accepted, and should be refused with {words:?}") };
    let text = error.to_string();
    assert!(matches!(error, Error::Unsupported { .. }), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text:?}"));
}

/// The scratch of a handle is that of its largest plan; it outlives plans, and comes back after it was trimmed.
#[test]
fn plans_share_scratch_and_own_none() {
    let Some(handle) = handle() else { return };
    let (mut rng, case) = (Noise::new(121), layer());
    let small = Operands::new(&handle, &mut rng, [17, 528, 576], NVFP4);
    let large = Operands::new(&handle, &mut rng, [130, 2112, 576], NVFP4);
    let extras = [(17, 528), (130, 2112)].map(|(m, n)| Extras::new(&handle, &mut Noise::new(122), m, n, &[0]));
    if offered(&handle, &case.desc(&small)).is_empty() {
        println!("skipped: {} has no BF16 products", handle.device());
        return;
    }
    let by_values = |ops| plan(&handle, &case.desc(ops), Formulation::DequantizedBf16);
    assert_eq!(handle.scratch_bytes(), 0, "before any plan");

    let mut first = by_values(&small);
    let want = execute(&handle, &mut first, &small, &extras[0], &case);
    assert!(first.scratch_bytes() > 0 && handle.scratch_bytes() >= first.scratch_bytes(), "{}", first.explain());
    let mut second = by_values(&large);
    let want_large = execute(&handle, &mut second, &large, &extras[1], &case);
    let held = handle.scratch_bytes();
    assert!(held >= second.scratch_bytes() && second.scratch_bytes() > first.scratch_bytes(), "{}", second.explain());
    // The first plan goes on in memory that was made for the second, and they overwrite each other's.
    for round in 0..3 {
        assert!(execute(&handle, &mut first, &small, &extras[0], &case) == want, "round {round}");
        assert!(execute(&handle, &mut second, &large, &extras[1], &case) == want_large, "round {round}");
    }
    drop(second);
    handle.clear_plans();
    handle.set_tuning(TuneTable::default());
    assert_eq!(handle.scratch_bytes(), held, "plans own no device memory");

    handle.trim_scratch().unwrap();
    assert_eq!(handle.scratch_bytes(), 0);
    let mut output = Output::new(&handle, &small, &extras[0], &case);
    refused(
        first.execute(&handle, output.args(&small, &extras[0], &case)),
        &[&first.scratch_bytes().to_string(), "scratch", "holds 0", "GemmPlan::prepare"],
    );
    assert!(output.read(&handle, "refused").bytes.iter().all(|b| *b == 0xFF), "written although refused");
    refused(
        capture(&handle, || first.prepare(&handle, &small.b)).map(drop),
        &["reserving scratch memory", "make this call once before the capture"],
    );
    assert!(execute(&handle, &mut first, &small, &extras[0], &case) == want, "prepared again");
    assert!(handle.scratch_bytes() >= first.scratch_bytes() && handle.scratch_bytes() < held);
    refused(capture(&handle, || handle.trim_scratch()).map(drop), &["freeing scratch memory", "capture"]);

    // A cached plan asks for what was trimmed by itself.
    handle.scaled_gemm(output.args(&small, &extras[0], &case)).unwrap();
    handle.trim_scratch().unwrap();
    output.reset(&handle);
    handle.scaled_gemm(output.args(&small, &extras[0], &case)).unwrap();
    assert!(output.read(&handle, "after trim_scratch") == want);
}

/// A problem that was computed before is captured; what is left to be made is refused in words.
#[test]
fn scaled_gemm_is_captured_once_its_plan_is_cached() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(123);
    let (m, n, k) = (17, 528, 576);
    let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
    let blocks = mixes(("fp8-1x128", "fp8-128x128"))[0];
    let cases = [(NVFP4, layer()), (TENSORS, Case::new(DType::Bf16)), (blocks, Case::new(DType::Bf16))];
    for (pair, case) in cases {
        let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
        let fresh = Operands::of(&handle, ops.host_a.clone(), ops.host_b.clone());
        let desc = case.desc(&ops);
        if offered(&handle, &desc).is_empty() {
            continue;
        }
        let mut output = Output::new(&handle, &ops, &extras, &case);
        let new = capture(&handle, || handle.scaled_gemm(output.args(&ops, &extras, &case))).map(drop);
        refused(new, &["first product", "capture", "before the capture begins"]);
        handle.scaled_gemm(output.args(&ops, &extras, &case)).unwrap();
        let want = output.read(&handle, "eager");
        let needs_b = handle.plan(&desc).unwrap().repeated_scale_bytes() > 0;
        if needs_b {
            let unprepared = capture(&handle, || handle.scaled_gemm(output.args(&fresh, &extras, &case))).map(drop);
            refused(unprepared, &["making repeated scales", "capture"]);
        }
        let graph = capture_among_others(&handle, || handle.scaled_gemm(output.args(&ops, &extras, &case))).unwrap();
        // The graph has no use for the plan.
        handle.clear_plans();
        for launch in 0..3 {
            output.reset(&handle);
            handle.launch(&graph).unwrap();
            assert!(output.read(&handle, "graph") == want, "{desc}: launch {launch}");
        }
    }
}

/// The words of a record's algorithm, replaced by others.
fn forged(record: &TuneRecord, words: impl FnOnce(&str) -> String) -> TuneRecord {
    let text = record.to_json().unwrap();
    let (before, rest) = text.split_once("\"words\": \"").unwrap();
    let (old, after) = rest.split_once('"').unwrap();
    assert_eq!(old.len(), 128, "{text}");
    let new = words(old);
    assert_ne!(old, new);
    TuneRecord::from_json(&format!("{before}\"words\": \"{new}\"{after}")).unwrap()
}

/// Bytes of a file are no algorithm: a record is taken only if cuBLASLt offers that algorithm for the problem by itself.
#[test]
fn a_record_is_taken_only_if_its_algorithm_is_offered_again() {
    let Some(handle) = handle() else { return };
    let desc = GemmDesc::new(16, 2112, 1024, TENSORS.0, TENSORS.1, DType::Bf16);
    if offered(&handle, &desc).is_empty() {
        println!("skipped: {} multiplies no FP8", handle.device());
        return;
    }
    let record = handle.plan(&desc).unwrap().record().unwrap();
    let take = |record: &TuneRecord| handle.plan_with(&desc, &PlanOptions::default().with_record(record.clone()));
    let taken = take(&record).unwrap();
    assert_eq!(taken.record().unwrap().algorithm(), record.algorithm());
    let fewest = PlanOptions::default().with_record(record.clone()).with_candidates(1);
    handle.plan_with(&desc, &fewest).unwrap();

    let flipped = |words: &str| {
        let (digit, rest) = words.split_at(1);
        format!("{:x}{rest}", u8::from_str_radix(digit, 16).unwrap() ^ 8)
    };
    let forgeries = [
        forged(&record, flipped),
        forged(&record, |_| "f".repeat(128)),
        forged(&record, |_| "0".repeat(128)),
        forged(&record, |_| "not hexadecimal".to_string()),
    ];
    for forgery in &forgeries {
        let error = take(forgery).map(drop).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Record { .. }), "{text}");
        for word in ["tuning record refused", "does not offer", "measure again here"] {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
        // In a table it is passed over, and explain says so.
        let mut table = TuneTable::default();
        table.insert(forgery.clone());
        handle.set_tuning(table);
        let words = handle.plan(&desc).unwrap().explain();
        assert!(words.contains("tuning record: ") && !words.contains("a record says so"), "{words}");
        handle.set_tuning(TuneTable::default());
    }
}
