//! Our product of few rows: every configuration within the f64 bound at shapes that cut tiles, stages and splits, with every scale layout and
//! epilogue; the same bits from run to run, in graphs and whatever rows stand beside a row; long chains; refusals in words.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;

use common::gemm::*;
use common::*;
use guarded::check_guarded;
use ndarray::s;
use scaled_gemm::reference::Gelu;
use scaled_gemm::{
    Accumulation, Activation, DType, Finish, Formulation, Fp8Format, GemmDesc, GemmPlan, Handle, HostQuantMatrix,
    KernelFamily, PlanOptions, QuantMatrix, Scheme, SmallMBlock, SmallMConfig, SmallMOperands, TuneRecord,
};

const E4M3: Fp8Format = Fp8Format::E4M3;
const BLOCKS: (Scheme, Scheme) = (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3));
const ROWS: (Scheme, Scheme) = (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3));
const TENSORS: (Scheme, Scheme) = (Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3));

/// A handle on an sm_90.
fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::SmallM)
}

/// A plan in this configuration, by way of a record.
fn planned(handle: &Handle, desc: &GemmDesc, config: SmallMConfig) -> GemmPlan {
    let text = plan(handle, desc, Formulation::SmallM).record().unwrap().to_json().unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let place = record.pointer_mut("/algorithm/small-m").unwrap_or_else(|| panic!("no configuration in {text}"));
    *place = serde_json::to_value(config).unwrap();
    let record = TuneRecord::from_json(&record.to_string()).unwrap();
    let plan = handle.plan_with(desc, &PlanOptions::default().with_record(record)).unwrap();
    assert!(plan.explain().contains(&format!("algorithm: small-m {config}, ")), "{}", plan.explain());
    plan
}

/// Each of these configurations gives D within the bound, twice the same.
fn check(
    handle: &Handle,
    rng: &mut Noise,
    shape: [usize; 3],
    pair: (Scheme, Scheme),
    case: Case,
    configs: impl Iterator<Item = SmallMConfig>,
) -> f64 {
    let ops = Operands::new(handle, rng, shape, pair);
    let extras = Extras::new(handle, rng, shape[0], shape[1], &[case.gap]);
    let desc = case.desc(&ops);
    let bound = ops.sums(Accumulation::Precise).with(&extras.inputs(&ops, &case), Gelu::Ieee).unwrap();
    let mut worst = 0f64;
    for config in configs {
        let mut plan = planned(handle, &desc, config);
        let stored = execute(handle, &mut plan, &ops, &extras, &case);
        let found = bound.check(stored.values(&ops, &case).view());
        worst = worst.max(found.unwrap_or_else(|e| panic!("{e}; alpha {}\n{}", case.alpha, plan.explain())));
        let again = execute(handle, &mut plan, &ops, &extras, &case);
        assert!(again == stored, "a second run differs\n{}", plan.explain());
    }
    worst
}

/// Those of a kernel each, with splits in turn.
fn one_of_each(turn: usize) -> impl Iterator<Item = SmallMConfig> {
    let splits = SmallMConfig::SPLITS;
    let blocks = SmallMBlock::ALL.into_iter().filter(|block| block.operands() == SmallMOperands::Fp8);
    blocks.enumerate().map(move |(i, block)| SmallMConfig::new(block, splits[(i + turn) % splits.len()]).unwrap())
}

/// Small, for runs under a sanitizer: each kernel, and each split.
#[test]
fn each_kernel_once() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(161);
    for (i, m) in [1, 16, 31].into_iter().enumerate() {
        for (j, pair) in [BLOCKS, ROWS, TENSORS].into_iter().enumerate() {
            let case = Case { gap: 8, ..Case::new(WIDE[(i + j) % 3]) };
            check(&handle, &mut rng, [m, 136, 1040], pair, case, one_of_each(i + j));
        }
    }
}

#[test]
fn shapes_that_cut_tiles_stages_and_splits() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst) = (Noise::new(162), 0f64);
    for (i, k) in [16, 112, 128, 144, 1040, 1536].into_iter().enumerate() {
        for (j, n) in [8, 56, 72, 136, 264].into_iter().enumerate() {
            for m in [1, 2, 5, 8, 9, 16, 17, 32] {
                let pair = [BLOCKS, ROWS, BLOCKS, TENSORS][(i + j + m) % 4];
                let case = Case { gap: [0, 8, 40][(i + j) % 3], ..Case::new(WIDE[(i + m) % 3]) };
                worst =
                    worst.max(check(&handle, &mut rng, [m, n, k], pair, case, SmallMConfig::all(SmallMOperands::Fp8)));
            }
        }
    }
    // Many tiles, as published shapes have them, a k that no split divides, and more blocks than run at once.
    for (i, shape) in [[3, 4104, 18944], [13, 2112, 7168], [32, 1032, 4112], [7, 24584, 272]].into_iter().enumerate() {
        for pair in [BLOCKS, ROWS] {
            worst = worst.max(check(&handle, &mut rng, shape, pair, Case::new(DType::Bf16), one_of_each(i)));
        }
    }
    for (i, shape) in decode_shapes(32, 16).enumerate() {
        let out = if shape[2] > 1536 { DType::F32 } else { DType::Bf16 };
        worst =
            worst.max(check(&handle, &mut rng, shape, [BLOCKS, ROWS, TENSORS][i % 3], Case::new(out), one_of_each(i)));
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// All operands in one allocation, 0xFF between them, D, a bias and a residual at no more than their own size: the bits of operands apart, and nothing but D is written.
#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(169);
    for (i, [m, n, k]) in [[1, 8, 16], [9, 72, 144], [17, 136, 1040], [32, 264, 2064]].into_iter().enumerate() {
        for (j, pair) in [BLOCKS, ROWS, TENSORS].into_iter().enumerate() {
            let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
            for case in [layer(), Case { gap: 8, ..Case::new(WIDE[(i + j) % 3]) }] {
                let extras = Extras::new(&handle, &mut rng, m, n, &[case.gap]);
                for config in SmallMConfig::all(SmallMOperands::Fp8).skip((i + j) % 2).step_by(2) {
                    check_guarded(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
                }
            }
        }
    }
}

/// Every bias, activation, residual and output type in the kernel itself, and what it leaves to the epilogue kernel.
#[test]
fn epilogues() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(163);
    // Each with all scales; rows of A, blocks and splits are counted each by itself, so that no two go together.
    for (i, case) in epilogue_cases(17, 8).chain([layer()]).enumerate() {
        for (j, pair) in [BLOCKS, ROWS, TENSORS].into_iter().enumerate() {
            let m = [17, 3, 9][(i / 3 + j) % 3];
            check(&handle, &mut rng, [m, 136, 400], pair, case, one_of_each(i / 9).skip((i / 5 + j) % 3).take(1));
        }
    }
    let ops = Operands::new(&handle, &mut rng, [17, 136, 400], ROWS);
    let plan = plan(&handle, &layer().desc(&ops), Formulation::SmallM);
    assert_eq!((plan.finish(), plan.workspace_bytes()), (Finish::Fused, 0), "{}", plan.explain());
}

/// A NaN code or scale of A stays in its row, one of B in its column, and what no memory holds changes none.
#[test]
fn not_a_number_stays_in_its_row() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(164);
    let (m, n, k) = (13, 136, 400);
    // Rows: 7 by a code, 11 by a scale; columns: 100 by a code.
    let a = quantized(&tiled(&mut rng, m, k), BLOCKS.0);
    let (mut codes, mut scales) = (a.logical_codes().to_vec(), a.logical_scales());
    codes[7 * k + 390] = 0x7F;
    scales[11 * k.div_ceil(128) + 2] = f32::NAN;
    let a = HostQuantMatrix::from_logical(BLOCKS.0, m, k, codes, &scales).unwrap();
    let b = quantized(&tiled(&mut rng, n, k), BLOCKS.1);
    let mut codes = b.logical_codes().to_vec();
    codes[100 * k + 3] = 0xFF;
    let b = HostQuantMatrix::from_logical(BLOCKS.1, n, k, codes, &b.logical_scales()).unwrap();
    let ops = Operands::of(&handle, a, b);
    let (case, extras) = (Case::new(DType::Bf16), Extras::new(&handle, &mut rng, m, n, &[]));
    for config in SmallMConfig::all(SmallMOperands::Fp8) {
        let stored = execute(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
        for ((row, col), v) in stored.values(&ops, &case).indexed_iter() {
            let nan = [7, 11].contains(&row) || col == 100;
            assert!(if nan { v.is_nan() } else { v.is_finite() }, "{config}: {v} at {row}, {col}");
        }
    }
}

/// In one configuration a row of D has the same bits whatever m is and wherever the row stands.
#[test]
fn equal_rows_have_equal_results() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(165);
    let (most, n, k) = (32, 520, 1168);
    for pair in [BLOCKS, ROWS, TENSORS] {
        let (x, w) = (tiled(&mut rng, most, k), quantized(&tiled(&mut rng, n, k), pair.1));
        let (case, all) = (Case::new(DType::F32), quantized(&x, pair.0));
        for config in SmallMConfig::all(SmallMOperands::Fp8) {
            let rows = |start: usize, m: usize| {
                // A scale of the whole matrix stays that of all rows.
                let a = match pair.0 {
                    Scheme::Fp8Tensor(_) => {
                        let codes = all.logical_codes()[start * k..(start + m) * k].to_vec();
                        HostQuantMatrix::from_logical(pair.0, m, k, codes, &all.logical_scales()).unwrap()
                    }
                    _ => quantized(&x.slice(s![start..start + m, ..]).to_owned(), pair.0),
                };
                let ops = Operands::of(&handle, a, w.clone());
                let extras = Extras::new(&handle, &mut Noise::new(166), m, n, &[]);
                execute(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case).bytes
            };
            let want = rows(0, most);
            for (start, m) in [(0, 1), (31, 1), (3, 8), (9, 16), (0, 17), (7, 25)] {
                assert!(rows(start, m) == want[start * n * 4..(start + m) * n * 4], "{config}: rows from {start}, {m}");
            }
        }
    }
}

#[test]
fn graphs_give_the_eager_bits_and_follow_a() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(167);
    let (m, n, k) = (12, 520, 656);
    for (i, config) in SmallMConfig::all(SmallMOperands::Fp8).enumerate() {
        let mut ops = Operands::new(&handle, &mut rng, [m, n, k], [BLOCKS, ROWS, TENSORS][i % 3]);
        let extras = Extras::new(&handle, &mut rng, m, n, &[]);
        let case = Case { alpha: 0.5, gap: 8, ..Case::new(DType::Bf16) };
        let mut plan = planned(&handle, &case.desc(&ops), config);
        let want = execute(&handle, &mut plan, &ops, &extras, &case);
        let mut output = Output::new(&handle, &ops, &extras, &case);
        let graph = capture_among_others(&handle, || plan.execute(&handle, output.args(&ops, &extras, &case))).unwrap();
        let replay = |output: &mut Output| {
            output.reset(&handle);
            handle.launch(&graph).unwrap();
            output.read(&handle, "replay")
        };
        for _ in 0..3 {
            assert!(replay(&mut output) == want, "{config}: a replay differs");
        }
        rewrite(&handle, &tiled(&mut rng, m, k), &mut ops.a);
        let follows = execute(&handle, &mut plan, &ops, &extras, &case);
        assert!(follows != want && replay(&mut output) == follows, "{config}: the replay does not follow A");
    }
}

/// Products back to back, each behind the one before it: tens of thousands of launches, of clusters of every size in turn, and then the right bits.
#[test]
fn long_chains() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(168);
    let case = Case { gap: 8, ..Case::new(DType::Bf16) };
    let mut links: Vec<_> = SmallMConfig::all(SmallMOperands::Fp8)
        .enumerate()
        .map(|(i, config)| {
            let ops = Operands::new(&handle, &mut rng, [1 + i, 264, 2064], [BLOCKS, ROWS, TENSORS][i % 3]);
            let extras = Extras::new(&handle, &mut rng, 1 + i, 264, &[case.gap]);
            let mut plan = planned(&handle, &case.desc(&ops), config);
            let want = execute(&handle, &mut plan, &ops, &extras, &case);
            let output = Output::new(&handle, &ops, &extras, &case);
            (ops, extras, plan, want, output)
        })
        .collect();
    for _ in 0..3000 {
        for (ops, extras, plan, _, output) in &mut links {
            plan.execute(&handle, output.args(ops, extras, &case)).unwrap();
        }
    }
    for (.., plan, want, output) in &links {
        assert!(output.read(&handle, "the end of a chain") == *want, "{}", plan.explain());
    }
}

#[test]
fn what_it_does_not_do_is_refused_with_the_reason() {
    let Some(handle) = hopper() else { return };
    let ask = |desc: GemmDesc| {
        desc.check("test").unwrap();
        handle.plan_with(&desc, &PlanOptions::default().with_formulation(Formulation::SmallM))
    };
    let desc = |m, (a, b)| GemmDesc::new(m, 520, 576, a, b, DType::Bf16);
    let good = desc(7, BLOCKS);
    let e5m2 = (Scheme::Fp8Group1x128(Fp8Format::E5M2), BLOCKS.1);
    for pair in [(BLOCKS.0, BLOCKS.0), e5m2] {
        refused(
            ask(desc(7, pair)),
            &[
                "small-m",
                "it serves fp8-1x128:e4m3 x fp8-128x128:e4m3, and fp8-row",
                "fp8-row:e4m3 and fp8-tensor:e4m3",
                "supports",
            ],
        );
    }
    refused(
        ask(desc(33, ROWS)),
        &["small-m", "at most 32 rows of A with fp8-row:e4m3 weights, and m = 33", "supports"],
    );
    // A record of it is for its own codes and rows, and its algorithm for its own formulation.
    let record = ask(good).unwrap().record().unwrap().to_json().unwrap();
    for (from, to, why, wanted) in [
        ("\"a\": \"fp8-1x128:e4m3\"", "\"a\": \"fp8-1x128:e5m2\"", "it serves", desc(7, e5m2)),
        ("\"m\": 7", "\"m\": 33", "at most 32 rows", desc(33, BLOCKS)),
        ("\"formulation\": \"small-m\"", "\"formulation\": \"sm90\"", "sm90 has no such algorithm", good),
    ] {
        assert!(record.contains(from), "{from} is not in {record}");
        let forged = TuneRecord::from_json(&record.replacen(from, to, 1)).unwrap();
        let planned = handle.plan_with(&wanted, &PlanOptions::default().with_record(forged));
        refused(planned, &["tuning record refused", why]);
    }
    // First for few rows; never left out.
    for pair in [BLOCKS, ROWS, TENSORS] {
        let of = |m| handle.plan(&GemmDesc::new(m, 4096, 7168, pair.0, pair.1, DType::Bf16)).unwrap();
        assert_eq!(of(1).formulation(), Formulation::SmallM, "{}", of(1).explain());
        assert!(of(1).explain().contains("small-m, fused: one pass over B"), "{}", of(1).explain());
        assert_ne!(of(64).formulation(), Formulation::SmallM);
    }
    // No rows, no work.
    let none = desc(0, BLOCKS);
    let mut plan = ask(none).unwrap();
    let (a, b) = (
        QuantMatrix::zeros(&handle, BLOCKS.0, 0, 576).unwrap(),
        QuantMatrix::zeros(&handle, BLOCKS.1, 520, 576).unwrap(),
    );
    let mut d = handle.alloc(16).unwrap();
    let d = scaled_gemm::MatMut::new(&mut d, DType::Bf16, 0, 520).unwrap();
    plan.execute(&handle, scaled_gemm::GemmArgs::new(&a, &b, d)).unwrap();
    assert_eq!(plan.desc().epilogue.activation, Activation::None);
}
