//! Autotune: right candidates only, records that survive JSON and other handles, and are refused elsewhere by name.
#![cfg(feature = "cuda")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::gemm::*;
use common::*;
use scaled_gemm::{
    CacheState, CodeOrder, DType, Error, Finish, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle, MatMut,
    PlanOptions, QuantMatrix, Scheme, Sm90Config, Timing, TuneOptions, TuneRecord, TuneTable, Verdict,
};

const E4M3: Fp8Format = Fp8Format::E4M3;
const BLOCKS: (Scheme, Scheme) = (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3));
const ROWS_BY_ROWS: (Scheme, Scheme) = (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3));
const TENSORS: (Scheme, Scheme) = (Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3));

fn options(cache: CacheState) -> TuneOptions {
    TuneOptions::default().with_candidates(4).with_repetitions(3).with_cache(cache)
}

/// Operands as tuning should see them: data of one magnitude.
fn typical(handle: &Handle, rng: &mut Noise, [m, n, k]: [usize; 3], (a, b): (Scheme, Scheme)) -> Operands {
    let a = quantized(&rng.matrix(m, k, DType::Bf16), a);
    Operands::of(handle, a, quantized(&rng.matrix(n, k, DType::Bf16), b))
}

fn same_choice(record: &TuneRecord, other: &TuneRecord) -> bool {
    let choice = |r: &TuneRecord| (r.environment().clone(), r.formulation(), r.finish(), r.algorithm().clone());
    choice(record) == choice(other)
}

/// Tunes one problem, and follows its record through JSON, a file, other plans and another handle.
fn tune(handle: &Handle, shape: [usize; 3], pair: (Scheme, Scheme), case: Case, cache: CacheState) {
    let ops = typical(handle, &mut Noise::new(61), shape, pair);
    tune_product(handle, &ops, case, cache);
}

fn tune_product(handle: &Handle, ops: &impl Product, case: Case, cache: CacheState) {
    let (mut rng, shape) = (Noise::new(64), ops.shape());
    let extras = Extras::new(handle, &mut rng, shape[0], shape[1], &[case.gap]);
    let desc = case.desc(ops);
    let offered = offered(handle, &desc);
    if offered.is_empty() {
        println!("skipped: {} has no {desc}", handle.device());
        return;
    }
    let mut plan = handle.plan(&desc).unwrap();
    let mut output = Output::new(handle, ops, &extras, &case);
    let report = plan.autotune(handle, output.args(ops, &extras, &case), &options(cache)).unwrap();
    // Panics if something between or behind the rows was written.
    output.read(handle, "after autotune");
    output.reset(handle);

    println!("{desc}");
    for (i, trial) in report.trials.iter().enumerate() {
        println!("  {trial}{}", if i == report.winner { "  <- kept" } else { "" });
        assert!(!matches!(trial.verdict, Verdict::Wrong(_)), "{desc}: {trial}");
    }
    let missing: Vec<_> = offered.iter().filter(|f| report.trials.iter().all(|t| t.formulation != **f)).collect();
    assert!(missing.is_empty(), "{desc}: {missing:?} was not tried");
    let winner = &report.trials[report.winner];
    let Verdict::Timed(us) = winner.verdict else { panic!("{desc}: kept, and never timed: {winner}") };
    assert!(us > 0.0 && us < 1e6, "{us}");
    // The kept one is the fastest but for a near-tie.
    for trial in &report.trials {
        assert!(!matches!(trial.verdict, Verdict::Timed(other) if other < us * 0.9), "{winner} kept over {trial}");
    }
    assert_eq!((plan.formulation(), plan.finish()), (winner.formulation, winner.finish));
    let words = plan.explain();
    assert!(
        words.contains("measured: ") && words.contains("the fastest of") && words.contains(&winner.algorithm),
        "{words}"
    );

    let want = execute(handle, &mut plan, ops, &extras, &case);
    let bound = ops.sums(case.accumulation).with(&extras.inputs(ops, &case), gelu(&plan)).unwrap();
    bound.check(want.values(ops, &case).view()).unwrap_or_else(|e| panic!("{e}\n{words}"));

    let record = plan.record().unwrap();
    assert_eq!(record, report.record);
    assert_eq!(record.environment().gpu, handle.device().name);
    assert_eq!(record.measured_us(), Some(us));
    record.check(record.environment(), &desc).unwrap();
    let read_back = TuneRecord::from_json(&record.to_json().unwrap()).unwrap();
    assert_eq!(read_back, record, "through JSON");

    let by_record = |handle: &Handle| {
        let planned = handle.plan_with(&desc, &PlanOptions::default().with_record(read_back.clone())).unwrap();
        assert!(planned.explain().contains("a record says so"), "{}", planned.explain());
        assert!(same_choice(&planned.record().unwrap(), &record), "{}", planned.explain());
        planned
    };
    assert!(execute(handle, &mut by_record(handle), ops, &extras, &case) == want, "planned from the record\n{words}");
    let second = Handle::from_stream(handle.stream().context().new_stream().unwrap()).unwrap();
    assert!(execute(&second, &mut by_record(&second), ops, &extras, &case) == want, "on another handle\n{words}");

    // A table in a file decides what plan and scaled_gemm take, until it is taken away.
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("scaled-gemm-gpu-tune-{}-{number}.json", std::process::id()));
    let mut table = TuneTable::default();
    table.insert(record.clone());
    table.save(&file).unwrap();
    second.set_tuning(TuneTable::load(&file).unwrap());
    std::fs::remove_file(&file).unwrap();
    let mut tuned = second.plan(&desc).unwrap();
    assert!(tuned.explain().contains("a record says so"), "{}", tuned.explain());
    assert!(execute(&second, &mut tuned, ops, &extras, &case) == want, "from the table\n{words}");
    let mut output = Output::new(&second, ops, &extras, &case);
    second.scaled_gemm(output.args(ops, &extras, &case)).unwrap();
    assert!(output.read(&second, &words) == want, "scaled_gemm with the table\n{words}");
    assert_eq!(second.cached_plans(), 1);
    second.set_tuning(TuneTable::default());
    assert_eq!(second.cached_plans(), 0);
    assert!(!second.plan(&desc).unwrap().explain().contains("a record says so"));
}

/// D is the middle third of the columns of a larger matrix: tuning leaves the other two alone.
#[test]
fn the_neighbours_of_a_column_range_stay() {
    let Some(handle) = handle() else { return };
    let (m, n) = (20, 520);
    let ops = typical(&handle, &mut Noise::new(66), [m, n, 576], TENSORS);
    let case = Case { gap: 2 * n, ..Case::new(DType::Bf16) };
    if offered(&handle, &case.desc(&ops)).is_empty() {
        println!("skipped: {} multiplies no FP8", handle.device());
        return;
    }
    let mut plan = handle.plan(&case.desc(&ops)).unwrap();
    let mut whole = poisoned(&handle, m * 3 * n * 2);
    let mut columns = whole.slice_mut(n * 2..);
    let d = MatMut::new(&mut columns, DType::Bf16, m, n).unwrap().with_row_stride(3 * n).unwrap();
    plan.autotune(&handle, GemmArgs::new(&ops.a, &ops.b, d), &options(CacheState::Warm)).unwrap();
    let bytes = handle.stream().clone_dtoh(&whole).unwrap();
    for (i, row) in bytes.chunks(3 * n * 2).enumerate() {
        let thirds: Vec<&[u8]> = row.chunks(n * 2).collect();
        assert!([thirds[0], thirds[2]].iter().all(|third| third.iter().all(|b| *b == 0xFF)), "row {i} of a neighbour");
        assert!(thirds[1].iter().any(|b| *b != 0xFF), "row {i} of D was not written");
    }
}

#[test]
fn blocks_at_an_odd_m() {
    let Some(handle) = handle() else { return };
    tune(&handle, [17, 2112, 1024], BLOCKS, Case::new(DType::Bf16), CacheState::Cold);
}

#[test]
fn rows_with_a_bias() {
    let Some(handle) = handle() else { return };
    let case = Case { bias: Some(DType::Bf16), gap: 8, ..Case::new(DType::Bf16) };
    tune(&handle, [64, 2112, 1024], ROWS_BY_ROWS, case, CacheState::Warm);
}

#[test]
fn tensors_added_to_d() {
    let Some(handle) = handle() else { return };
    let case = Case { beta: Some(0.5), residual: Some(DType::F16), ..Case::new(DType::F32) };
    tune(&handle, [130, 520, 2048], TENSORS, case, CacheState::Warm);
    let case = Case { beta: Some(1.0), alpha: 0.5, ..Case::new(DType::F32) };
    tune(&handle, [130, 520, 2048], TENSORS, case, CacheState::Warm);
}

/// With warm caches a small product takes the GPU less than a launch takes the host: the record holds the former.
#[test]
fn warm_times_are_those_of_the_device() {
    let Some(handle) = handle() else { return };
    let ops = typical(&handle, &mut Noise::new(66), [16, 520, 576], TENSORS);
    let (case, extras) = (Case::new(DType::Bf16), Extras::new(&handle, &mut Noise::new(67), 16, 520, &[]));
    let desc = case.desc(&ops);
    if offered(&handle, &desc).is_empty() {
        println!("skipped: {} multiplies no FP8", handle.device());
        return;
    }
    let mut plan = handle.plan(&desc).unwrap();
    let mut output = Output::new(&handle, &ops, &extras, &case);
    let report = plan.autotune(&handle, output.args(&ops, &extras, &case), &options(CacheState::Warm)).unwrap();
    let tuned = report.record.measured_us().unwrap();
    let timed = borrowing(Timing::SUSTAINED)
        .time(&handle, |_| plan.execute(&handle, output.args(&ops, &extras, &case)))
        .unwrap();
    let ratio = tuned / timed.median();
    assert!((0.75..1.33).contains(&ratio), "autotune says {tuned:.2} us, a graph of the same calls takes {timed} us");
}

#[test]
fn blocks_of_sixteen_and_weights_alone() {
    let Some(handle) = handle() else { return };
    let (nv, mx) = (Scheme::Nvfp4, Scheme::Mxfp8(E4M3));
    tune(&handle, [64, 2112, 1024], (nv, nv), Case::new(DType::Bf16), CacheState::Cold);
    let layer = Case { beta: Some(0.5), bias: Some(DType::F32), alpha: 0.5, ..Case::new(DType::F32) };
    tune(&handle, [17, 520, 1024], (nv, Scheme::Nvfp4Row), layer, CacheState::Warm);
    tune(&handle, [130, 520, 1040], (mx, mx), layer, CacheState::Warm);
    let mut rng = Noise::new(65);
    let (x, w) = (rng.matrix(16, 1024, DType::Bf16), rng.matrix(2112, 1024, DType::Bf16));
    let ops = PlainOperands::of(&handle, &x, DType::Bf16, 8, quantized(&w, nv));
    tune_product(&handle, &ops, Case::new(DType::Bf16), CacheState::Cold);
    ops.b.keep_dequantized(&handle, DType::Bf16).unwrap();
    tune_product(&handle, &ops, Case { gap: 8, ..Case::new(DType::Bf16) }, CacheState::Cold);
    let ops = PlainOperands::of(&handle, &x, DType::Bf16, 8, quantized(&w, Scheme::Fp8Group128x128(E4M3)));
    tune_product(&handle, &ops, Case { gap: 8, ..Case::new(DType::Bf16) }, CacheState::Cold);
}

/// As links of chains, of several copies of the weights, with what these keep and in their order; records are found where chains are asked for, and nowhere else.
#[test]
fn links_of_chains() {
    let Some(handle) = handle() else { return };
    let chained = Case { chained: true, ..Case::new(DType::Bf16) };
    tune(&handle, [16, 2112, 1024], BLOCKS, chained, CacheState::Cold);
    tune(
        &handle,
        [130, 520, 2048],
        TENSORS,
        Case { beta: Some(0.5), chained: true, ..Case::new(DType::F32) },
        CacheState::Warm,
    );
    let mut rng = Noise::new(68);
    let (x, w) = (rng.matrix(16, 1024, DType::Bf16), rng.matrix(2112, 1024, DType::Bf16));
    let mut ops = PlainOperands::of(&handle, &x, DType::Bf16, 8, quantized(&w, Scheme::Nvfp4));
    ops.b.keep_dequantized(&handle, DType::Bf16).unwrap();
    tune_product(&handle, &ops, chained, CacheState::Cold);
    ops.b.forget_dequantized();
    ops.b.repack(&handle, CodeOrder::Repacked).unwrap();
    let extras = Extras::new(&handle, &mut rng, 16, 2112, &[]);
    let desc = chained.desc(&ops);
    if offered(&handle, &desc).is_empty() {
        println!("skipped: {} has no {desc}", handle.device());
        return;
    }
    let mut plan = handle.plan(&desc).unwrap();
    let mut output = Output::new(&handle, &ops, &extras, &chained);
    let report = plan.autotune(&handle, output.args(&ops, &extras, &chained), &options(CacheState::Cold)).unwrap();
    assert!(report.trials.iter().all(|trial| matches!(trial.verdict, Verdict::Timed(us) if us < 1e6)), "{report:?}");
    let alone = Case::new(DType::Bf16).desc(&ops);
    let refusal = report.record.check(report.record.environment(), &alone).unwrap_err().to_string();
    assert!(refusal.contains("chained is true in the record and false here"), "{refusal}");
    let mut table = TuneTable::default();
    table.insert(report.record);
    handle.set_tuning(table);
    let by_record = |desc: &GemmDesc| handle.plan(desc).unwrap().explain().contains("a record says so");
    assert_eq!([desc, alone].map(|desc| by_record(&desc)), [true, false]);
    // Of calls alone they hold in chains, too, but for those of few rows, whose parts of k are others there.
    let large = GemmDesc::new(130, 520, 2048, TENSORS.0, TENSORS.1, DType::Bf16);
    if offered(&handle, &large).is_empty() {
        return println!("skipped: {} has no {large}", handle.device());
    }
    let mut table = TuneTable::default();
    for desc in [alone, large] {
        table.insert(handle.plan(&desc).unwrap().record().unwrap());
    }
    handle.set_tuning(table);
    let found = [alone, large].map(|desc| [desc, desc.with_chained(true)].map(|desc| by_record(&desc)));
    let few = handle.plan(&alone).unwrap().formulation() == Formulation::SmallM;
    assert_eq!(found, [[true, !few], [true; 2]]);
}

/// Needs no GPU: measured times that a careless JSON reader returns one unit off.
#[test]
fn times_come_back_to_the_last_bit() {
    for us in [1251.1874437332153, 1258.1599950790405, 922.3319292068481, 918.0576801300049, 416.51639342308044] {
        let text = format!(
            r#"{{"version": 1,
            "environment": {{"gpu": "x", "compute_capability": [9, 0], "sm_count": 132, "cublaslt": 130100, "driver": 13000}},
            "problem": {{"m": 1, "n": 8, "k": 16, "a": "fp8-tensor:e4m3", "b": "fp8-tensor:e4m3", "out": "bf16",
                "out_stride": 8, "bias": null, "activation": "none", "residual": null, "accumulate": "replace",
                "accumulation": "precise", "out_amax": "ignore"}},
            "formulation": "native", "finish": "fused", "algorithm": "{}", "algorithm_config": "id 66",
            "workspace_bytes": 0, "measured_us": {us:?}}}"#,
            "0".repeat(128)
        );
        let record = TuneRecord::from_json(&text).unwrap();
        assert_eq!(record.measured_us(), Some(us));
        assert_eq!(TuneRecord::from_json(&record.to_json().unwrap()).unwrap(), record);
    }
}

fn refused(handle: &Handle, desc: &GemmDesc, record: TuneRecord, words: &[&str]) {
    let error = handle.plan_with(desc, &PlanOptions::default().with_record(record)).map(drop).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Record { .. }), "{text}");
    for word in [&["tuning record refused", "measure again here"], words].concat() {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn records_of_elsewhere_are_refused_by_the_field_that_differs() {
    let Some(handle) = handle() else { return };
    let shape = |m| GemmDesc::new(m, 520, 1024, TENSORS.0, TENSORS.1, DType::Bf16);
    let desc = shape(17);
    if offered(&handle, &desc).is_empty() {
        println!("skipped: {} multiplies no FP8", handle.device());
        return;
    }
    let record = handle.plan(&desc).unwrap().record().unwrap();
    assert_eq!(record.measured_us(), None, "planned, not measured");
    let text = record.to_json().unwrap();
    let edited = |from: &str, to: &str| {
        assert!(text.contains(from), "{from:?} is not in {text}");
        TuneRecord::from_json(&text.replacen(from, to, 1)).unwrap()
    };
    let here = record.environment().clone();
    let gpu = edited(&format!("\"{}\"", here.gpu), "\"NVIDIA Nothing\"");
    let words = format!("gpu is NVIDIA Nothing in the record and {} here", here.gpu);
    refused(&handle, &desc, gpu.clone(), &[&words]);
    let library = edited(&format!("\"cublaslt\": {}", here.cublaslt.unwrap()), "\"cublaslt\": 120801");
    refused(
        &handle,
        &desc,
        library,
        &[&format!("cublaslt is 120801 in the record and {} here", here.cublaslt.unwrap())],
    );
    let smaller = edited(&format!("\"sm_count\": {}", here.sm_count), "\"sm_count\": 7");
    refused(&handle, &desc, smaller, &["sm_count is 7 in the record"]);
    refused(&handle, &desc, edited("\"version\": 2", "\"version\": 9"), &["version is 9 in the record and 2 here"]);
    refused(&handle, &shape(20), record.clone(), &["m is 17 in the record and 20 here"]);
    let other = GemmDesc::new(17, 520, 1024, TENSORS.0, TENSORS.1, DType::F32);
    refused(&handle, &other, record.clone(), &["out is bf16 in the record and f32 here"]);
    let other = GemmDesc::new(17, 520, 1024, ROWS_BY_ROWS.0, ROWS_BY_ROWS.1, DType::Bf16);
    refused(&handle, &other, record.clone(), &["a is fp8-tensor:e4m3 in the record and fp8-row:e4m3 here"]);
    let strided = desc.with_out_stride(528);
    refused(&handle, &strided, record.clone(), &["out_stride is 520 in the record and 528 here"]);

    let both = PlanOptions::default().with_record(record.clone()).with_formulation(Formulation::Rescaled);
    let error = handle.plan_with(&desc, &both).map(drop).unwrap_err().to_string();
    assert!(error.contains("formulation is native") && error.contains("rescaled was asked for"), "{error}");

    // In a table, a record of another GPU is kept and passed over.
    let mut table = TuneTable::default();
    table.insert(gpu);
    handle.set_tuning(table);
    assert!(!handle.plan(&desc).unwrap().explain().contains("a record says so"));
}

/// Its numbers are right, its algorithm is the library's for the problem that it sees: only the word would give another sum.
#[test]
fn records_of_formulations_that_do_not_serve_the_pair_are_refused() {
    let Some(handle) = handle() else { return };
    let desc = |a, b| GemmDesc::new(20, 520, 1024, a, b, DType::Bf16);
    let vectors = Scheme::Fp8Group1x128(Fp8Format::E4M3);
    let forged = |of: &GemmDesc, words: &[(&str, &str)]| {
        let native = PlanOptions::default().with_formulation(words[0].0.parse().unwrap());
        let text = handle.plan_with(of, &native).unwrap().record().unwrap().to_json().unwrap();
        let text = words.iter().fold(text, |text, (from, to)| {
            assert!(text.contains(&format!("\"{from}\"")), "{from:?} is not in {text}");
            text.replacen(&format!("\"{from}\""), &format!("\"{to}\""), 1)
        });
        TuneRecord::from_json(&text).unwrap()
    };
    if !has_every_pair(&handle) {
        return println!("skipped: {} multiplies no FP8 by groups of 128", handle.device());
    }
    let record = forged(&desc(vectors, vectors), &[("native", "repeated-scales")]);
    refused(&handle, &desc(vectors, vectors), record, &["repeated-scales", "it serves fp8-1x128 x fp8-128x128"]);
    let row = Scheme::Fp8Row(Fp8Format::E4M3);
    let blocks = desc(vectors, Scheme::Fp8Group128x128(Fp8Format::E4M3));
    let words = [("rescaled", "rescaled"), ("fp8-row:e4m3", "fp8-1x128:e4m3"), ("fp8-row:e4m3", "fp8-128x128:e4m3")];
    refused(&handle, &blocks, forged(&desc(row, row), &words), &["rescaled", "it serves fp8-row x fp8-row"]);
}

#[test]
fn what_cannot_be_tuned_is_refused_and_the_plan_keeps_its_choice() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(62);
    let ops = typical(&handle, &mut rng, [20, 520, 576], TENSORS);
    let extras = Extras::new(&handle, &mut rng, 20, 520, &[]);
    let case = Case::new(DType::Bf16);
    let desc = case.desc(&ops);
    if offered(&handle, &desc).is_empty() {
        println!("skipped: {} multiplies no FP8", handle.device());
        return;
    }
    let refusal = |plan: &mut GemmPlan, ops: &Operands, case: &Case, words: &[&str]| {
        let mut output = Output::new(&handle, ops, &extras, case);
        let error = plan.autotune(&handle, output.args(ops, &extras, case), &options(CacheState::Warm)).unwrap_err();
        let text = error.to_string();
        words.iter().for_each(|w| assert!(text.contains(w), "{w:?} is not in {text:?}"));
    };
    let mut plan = handle.plan(&desc).unwrap();
    let want = execute(&handle, &mut plan, &ops, &extras, &case);
    let words = plan.explain();
    refusal(&mut plan, &ops, &Case::new(DType::F32), &["type of D = f32 where bf16 was planned"]);
    assert!(execute(&handle, &mut plan, &ops, &extras, &case) == want && plan.explain() == words);
    let empty = Operands::of(&handle, quantized(&rng.matrix(0, 576, DType::F32), TENSORS.0), ops.host_b.clone());
    let mut plan = handle.plan(&case.desc(&empty)).unwrap();
    assert_eq!(plan.record(), None);
    refusal(&mut plan, &empty, &case, &["no elements", "m and n above 0"]);
}

/// A tuned plan wants only its own formulation; a plan with a formulation asked for tunes within it.
#[test]
fn tuning_stays_within_the_formulation_that_was_asked_for() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(63);
    let ops = typical(&handle, &mut rng, [16, 520, 576], BLOCKS);
    let extras = Extras::new(&handle, &mut rng, 16, 520, &[]);
    let case = Case::new(DType::Bf16);
    for formulation in offered(&handle, &case.desc(&ops)) {
        let mut plan = plan(&handle, &case.desc(&ops), formulation);
        // Tuning makes the repeated scales itself where B has none.
        let fresh = QuantMatrix::from_host(&handle, &ops.host_b).unwrap();
        let mut output = Output::new(&handle, &ops, &extras, &case);
        let args = output.args_of(&ops.a, &fresh, &extras, &case);
        let report = plan.autotune(&handle, args, &options(CacheState::Warm)).unwrap();
        assert!(report.trials.iter().all(|t| t.formulation == formulation), "{:?}", report.trials);
        assert_eq!(plan.formulation(), formulation);
    }
}

/// Configurations of `sm90` that end plainly run another's kernel where alpha is not 1: they are no trials then, and what is kept is what was timed.
#[test]
fn trials_run_what_they_name_whatever_alpha_is() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(68);
    let ops = typical(&handle, &mut rng, [1024, 576, 7168], BLOCKS);
    let extras = Extras::new(&handle, &mut rng, 1024, 576, &[]);
    let case = Case::new(DType::Bf16);
    let desc = case.desc(&ops);
    if !offered(&handle, &desc).contains(&Formulation::Sm90) {
        println!("skipped: {} has no sm90", handle.device());
        return;
    }
    let plainly = |algorithm: &str| {
        let mut plain = Sm90Config::ALL.into_iter().filter(|config| config.ends_plainly());
        plain.any(|config| format!("sm90 {config}") == algorithm)
    };
    for alpha in [1.0, -0.5] {
        let mut plan = plan(&handle, &desc, Formulation::Sm90);
        assert!(plan.explain().contains("where alpha is not 1: sm90"), "{}", plan.explain());
        let case = Case { alpha, ..case };
        let mut output = Output::new(&handle, &ops, &extras, &case);
        let report = plan.autotune(&handle, output.args(&ops, &extras, &case), &options(CacheState::Warm)).unwrap();
        let fused = report.trials.iter().filter(|trial| trial.finish == Finish::Fused).count();
        assert_eq!(fused, 4, "{:?}", report.trials);
        assert_eq!(report.trials.iter().any(|trial| plainly(&trial.algorithm)), alpha == 1.0, "{:?}", report.trials);
        let kept = plainly(&report.trials[report.winner].algorithm);
        assert_eq!(plan.explain().contains("where alpha is not 1"), kept, "{}", plan.explain());
    }
}
