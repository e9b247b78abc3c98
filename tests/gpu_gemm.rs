//! Every pair x output x formulation x epilogue within the f64 bound; refusals in words; `scaled_gemm` equals its plan.
#![cfg(feature = "cuda")]

mod common;

use common::gemm::*;
use common::*;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::reference::{self, GemmInputs, SumBound};
use scaled_gemm::{
    Accumulation, Activation, DType, DeviceBytes, DeviceBytesMut, Error, Formulation, Fp8Format, GemmArgs, GemmDesc,
    Handle, HostQuantMatrix, MatMut, MatRef, OutAmax, PlanOptions, QuantMatrix, Scheme, VecRef,
};

const E4M3: Fp8Format = Fp8Format::E4M3;
const TENSOR: Scheme = Scheme::Fp8Tensor(E4M3);
const ROW: Scheme = Scheme::Fp8Row(E4M3);
const VEC: Scheme = Scheme::Fp8Group1x128(E4M3);
const TILE: Scheme = Scheme::Fp8Group128x128(E4M3);

/// Every m, n, k of the issue and a row gap in turn, for one family: every mix of formats, wide output and accumulation.
fn every_shape(family: (&str, &str)) {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(11);
    let (mut tally, mut posed) = (Tally::default(), 0);
    for k in K {
        for n in N {
            let w = tiled(&mut rng, n, k);
            let inputs: Vec<_> = ROWS.iter().map(|m| tiled(&mut rng, *m, k)).collect();
            for (sa, sb) in mixes(family) {
                let host_b = quantized(&w, sb);
                posed += ROWS.len() * accumulations(sa).len() * WIDE.len();
                for x in &inputs {
                    let ops = Operands::of(&handle, quantized(x, sa), host_b.clone());
                    let extras = Extras::new(&handle, &mut rng, x.nrows(), n, &[]);
                    for accumulation in accumulations(sa) {
                        let sums = ops.sums(*accumulation);
                        for out in WIDE {
                            let gap = if tally.posed.is_multiple_of(2) { 0 } else { 16 };
                            let case = Case { accumulation: *accumulation, gap, ..Case::new(out) };
                            tally.check(&handle, &ops, &extras, &sums, &case);
                        }
                    }
                }
            }
        }
    }
    tally.finish(&format!("{family:?}"), posed, least_fp8(&handle, posed));
}

/// Bias, activation, residual and accumulation for one family, at an m that needs padding and one that does not.
fn every_epilogue(family: (&str, &str)) {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(12);
    let (mut tally, mut posed) = (Tally::default(), 0);
    for m in [17, 20] {
        let (n, k, gap) = (520, 144, 8);
        for (sa, sb) in mixes(family) {
            let ops = Operands::new(&handle, &mut rng, [m, n, k], (sa, sb));
            let extras = Extras::new(&handle, &mut rng, m, n, &[0, gap]);
            let sums = ops.sums(Accumulation::Precise);
            for case in epilogue_cases(m, gap) {
                tally.check(&handle, &ops, &extras, &sums, &case);
                posed += 1;
            }
        }
    }
    tally.finish(&format!("{family:?}, epilogues"), posed, least_fp8(&handle, posed));
}

/// One test for each family, so that they run side by side and can be chosen by name.
macro_rules! families {
    ($($place:literal: $shapes:ident, $epilogues:ident;)+) => {$(
        #[test]
        fn $shapes() {
            every_shape(FAMILIES[$place]);
        }

        #[test]
        fn $epilogues() {
            every_epilogue(FAMILIES[$place]);
        }
    )+};
}
families! {
    0: every_shape_tensor, every_epilogue_tensor;
    1: every_shape_row, every_epilogue_row;
    2: every_shape_1x128_by_128x128, every_epilogue_1x128_by_128x128;
    3: every_shape_128x128_by_1x128, every_epilogue_128x128_by_1x128;
    4: every_shape_1x128_by_1x128, every_epilogue_1x128_by_1x128;
}

/// E4M3 out of tensor x tensor: saturating encode factors, amax, epilogues fused and not.
#[test]
fn e4m3_output_with_encode_factor_and_amax() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(13);
    for (n, k) in [(16, 16), (528, 144), (2112, 576)] {
        for m in ROWS {
            for pair in mixes(FAMILIES[0]) {
                let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
                let extras = Extras::new(&handle, &mut rng, m, n, &[0, 16]);
                for accumulation in accumulations(pair.0) {
                    let sums = ops.sums(*accumulation);
                    let plain = GemmInputs::new(&ops.host_a, &ops.host_b, DType::F32);
                    let exact = sums.with(&plain, reference::Gelu::Ieee).unwrap().exact;
                    let amax = exact.iter().fold(0.0f64, |a, v| a.max(v.abs())) as f32;
                    for (encode, amax, gap) in [
                        (448.0 / amax, OutAmax::Store, 0),
                        (2.0 * 448.0 / amax, OutAmax::Store, 16),
                        (0.01 / amax, OutAmax::Ignore, 0),
                    ] {
                        let case = Case { accumulation: *accumulation, encode, amax, gap, ..Case::new(DType::E4M3) };
                        check_case(&handle, &ops, &extras, &sums, &case);
                    }
                    if n != 528 {
                        continue;
                    }
                    for bias in [None, Some(DType::Bf16), Some(DType::F32)] {
                        for activation in Activation::ALL {
                            for residual in [None, Some(DType::F16)] {
                                let encode = 448.0 / amax;
                                let epilogue = Case { bias, activation, residual, encode, ..Case::new(DType::E4M3) };
                                let case = Case {
                                    alpha: 0.75,
                                    accumulation: *accumulation,
                                    amax: OutAmax::Store,
                                    gap: 16,
                                    ..epilogue
                                };
                                check_case(&handle, &ops, &extras, &sums, &case);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Needs no GPU: a bound that accepts scales in a wrong order would make the tests above worthless.
#[test]
fn the_bounds_refuse_every_wrong_scale_order() {
    let mut rng = Noise::new(14);
    let (m, n, k) = (17, 520, 576);
    for (sa, sb) in pairs() {
        let (a, b) = (quantized(&tiled(&mut rng, m, k), sa), quantized(&tiled(&mut rng, n, k), sb));
        let widest = accumulator(*accumulations(sa).last().unwrap());
        let bound = SumBound::new(&a, &b, widest);
        let inputs = GemmInputs::new(&a, &b, DType::Bf16);
        let bound = bound.with(&inputs, reference::Gelu::Ieee).unwrap();
        bound.check(reference::scaled_gemm(&inputs).unwrap().view()).unwrap();
        let passes = |a: &HostQuantMatrix, b: &HostQuantMatrix| {
            let inputs = GemmInputs::new(a, b, DType::Bf16);
            bound.check(reference::scaled_gemm(&inputs).unwrap().view()).is_ok()
        };
        let wrong = |q: &HostQuantMatrix, order: &dyn Fn(usize, usize, usize, usize) -> usize| {
            let [rows, cols] = q.scheme().scale_grid(q.rows(), q.cols());
            let old = q.logical_scales();
            let new: Vec<f32> = (0..rows * cols).map(|at| old[order(at / cols, at % cols, rows, cols)]).collect();
            let codes = q.logical_codes().to_vec();
            (new != old).then(|| HostQuantMatrix::from_logical(q.scheme(), q.rows(), q.cols(), codes, &new).unwrap())
        };
        // The next scale; the transposed grid; every block with the first one's scale; two neighbouring rows exchanged.
        let orders: [&dyn Fn(usize, usize, usize, usize) -> usize; 4] = [
            &|row, col, rows, cols| (row * cols + col + 1) % (rows * cols),
            &|row, col, rows, cols| (col * rows + row) % (rows * cols),
            &|row, _, _, cols| row * cols,
            &|row, col, rows, cols| if rows > 1 && row < 2 { (1 - row) * cols + col } else { row * cols + col },
        ];
        for (i, order) in orders.into_iter().enumerate() {
            if let Some(a) = wrong(&a, order) {
                assert!(!passes(&a, &b), "{sa} x {sb}: order {i} of A's scales passes");
            }
            if let Some(b) = wrong(&b, order) {
                assert!(!passes(&a, &b), "{sa} x {sb}: order {i} of B's scales passes");
            }
        }
    }
}

/// One call equals plan and execute, and every call equals the first, in every bit; one plan in the cache for each problem.
#[test]
fn scaled_gemm_is_its_plan_bit_for_bit() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(15);
    for pair in pairs() {
        for m in [3, 130] {
            let ops = Operands::new(&handle, &mut rng, [m, 520, 576], pair);
            let extras = Extras::new(&handle, &mut rng, m, 520, &[0, 8]);
            let plain = Case::new(DType::Bf16);
            let fusable = Case { bias: Some(DType::F16), alpha: 0.5, gap: 8, ..Case::new(DType::F16) };
            let layer = Case {
                bias: Some(DType::F32),
                activation: Activation::Silu,
                residual: Some(DType::F16),
                beta: Some(0.5),
                ..Case::new(DType::F32)
            };
            for case in [plain, fusable, layer] {
                let desc = case.desc(&ops);
                if offered(&handle, &desc).is_empty() {
                    continue;
                }
                let call = || {
                    let mut output = Output::new(&handle, &ops, &extras, &case);
                    handle.scaled_gemm(output.args(&ops, &extras, &case)).unwrap();
                    output.read(&handle, "scaled_gemm")
                };
                let before = handle.cached_plans();
                // The first call, and for the first case also the first that sees this B.
                let first = call();
                let mut plan = handle.plan(&desc).unwrap();
                let want = execute(&handle, &mut plan, &ops, &extras, &case);
                assert!(first == want, "{desc}: the first scaled_gemm differs from the plan\n{}", plan.explain());
                for i in 0..4 {
                    assert!(call() == want, "{desc}: call {i} of scaled_gemm differs\n{}", plan.explain());
                    assert_eq!(handle.cached_plans(), before + 1, "{desc}: call {i}");
                    assert!(execute(&handle, &mut plan, &ops, &extras, &case) == want, "{desc}: execute {i}");
                }
            }
            handle.clear_plans();
            assert_eq!(handle.cached_plans(), 0);
        }
    }
}

/// The cache stays within its bound, and a problem that was forgotten is planned again with the same result.
#[test]
fn the_plan_cache_is_bounded() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(16);
    let call = |ops: &Operands| {
        let extras = Extras::new(&handle, &mut Noise::new(0), ops.a.rows(), 16, &[]);
        let mut output = Output::new(&handle, ops, &extras, &Case::new(DType::F32));
        handle.scaled_gemm(output.args(ops, &extras, &Case::new(DType::F32))).unwrap();
        output.read(&handle, "scaled_gemm")
    };
    let first = Operands::new(&handle, &mut rng, [1, 16, 32], (TENSOR, TENSOR));
    let want = call(&first);
    for m in 2..100 {
        call(&Operands::new(&handle, &mut rng, [m, 16, 32], (TENSOR, TENSOR)));
        assert!(handle.cached_plans() <= 64);
    }
    assert_eq!(handle.cached_plans(), 64);
    assert!(call(&first) == want);
}

/// With `beta = 0` D's old value, NaN here, is not read, whoever adds it.
#[test]
fn beta_zero_reads_nothing() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(17);
    for pair in pairs() {
        let ops = Operands::new(&handle, &mut rng, [20, 72, 144], pair);
        let mut extras = Extras::new(&handle, &mut rng, 20, 72, &[0]);
        let sums = ops.sums(Accumulation::Precise);
        for activation in [Activation::None, Activation::Silu] {
            let case = Case { beta: Some(0.0), activation, ..Case::new(DType::F32) };
            let replaced = Case { beta: None, ..case };
            let bound = sums.with(&extras.inputs(&ops, &replaced), reference::Gelu::Ieee).unwrap();
            extras.old.fill(f32::NAN);
            for formulation in offered(&handle, &case.desc(&ops)) {
                let mut plan = plan(&handle, &case.desc(&ops), formulation);
                let stored = execute(&handle, &mut plan, &ops, &extras, &case);
                bound.check(stored.values(&ops, &case).view()).unwrap_or_else(|e| panic!("{e}\n{}", plan.explain()));
            }
        }
    }
}

/// A NaN code poisons its row and nothing else; what is beyond the output type is infinite.
#[test]
fn non_finite_values_travel() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(18);
    let (m, n, k) = (8, 72, 256);
    for (sa, sb) in pairs() {
        let (a, b) = (quantized(&tiled(&mut rng, m, k), sa), quantized(&tiled(&mut rng, n, k), sb));
        let mut codes = a.logical_codes().to_vec();
        codes[2 * k + 200] = 0x7F;
        let a = HostQuantMatrix::from_logical(sa, m, k, codes, &a.logical_scales()).unwrap();
        let big: Vec<f32> = b.logical_scales().iter().map(|s| s * 1e6).collect();
        let big = HostQuantMatrix::from_logical(sb, n, k, b.logical_codes().to_vec(), &big).unwrap();
        let extras = Extras::new(&handle, &mut rng, m, n, &[]);
        for (b, out) in [(b, DType::Bf16), (big, DType::F16)] {
            let ops = Operands::of(&handle, a.clone(), b);
            check_case(&handle, &ops, &extras, &ops.sums(Accumulation::Precise), &Case::new(out));
        }
    }
}

/// `max(v, 0)` with a NaN stays NaN, whoever computes it.
#[test]
fn nan_survives_every_activation() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(19);
    let (m, n, k) = (8, 72, 256);
    for (sa, sb) in pairs().into_iter().filter(|(a, b)| a.spec().format == b.spec().format) {
        let a = quantized(&tiled(&mut rng, m, k), sa);
        let mut codes = a.logical_codes().to_vec();
        codes[2 * k + 200] = 0x7F;
        let a = HostQuantMatrix::from_logical(sa, m, k, codes, &a.logical_scales()).unwrap();
        let ops = Operands::of(&handle, a, quantized(&tiled(&mut rng, n, k), sb));
        let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
        let sums = ops.sums(Accumulation::Precise);
        for activation in Activation::ALL {
            for out in WIDE {
                check_case(&handle, &ops, &extras, &sums, &Case { activation, ..Case::new(out) });
            }
        }
    }
}

/// What README promises for sm_90; everything listed is planned, everything refused has a reason.
#[test]
fn supports_lists_what_is_promised() {
    let Some(handle) = handle() else { return };
    use Formulation::{Native, RepeatedScales, Rescaled, Sm90, SmallM};
    if !has_every_pair(&handle) {
        println!("skipped: {} with cuBLASLt {:?} is not what the table is for", handle.device(), handle.library());
        return;
    }
    for (family, wanted) in
        FAMILIES.into_iter().zip([&[Native][..], &[Native, Rescaled], &[Native, RepeatedScales], &[Native], &[Native]])
    {
        for (a, b) in mixes(family) {
            let ours_in_e4m3 = |a: &str, b: &str| {
                [
                    ("fp8-row:e4m3", "fp8-row:e4m3"),
                    ("fp8-tensor:e4m3", "fp8-tensor:e4m3"),
                    ("fp8-1x128:e4m3", "fp8-128x128:e4m3"),
                    ("fp8-1x128:e4m3", "fp8-1x128:e4m3"),
                    ("fp8-128x128:e4m3", "fp8-1x128:e4m3"),
                ]
                .contains(&(a, b))
            };
            let ours = ![(VEC, VEC), (TILE, VEC)].contains(&(a, b)) && ours_in_e4m3(&a.to_string(), &b.to_string());
            for m in [1, 3, 17, 130, 300] {
                let few = (ours && m <= 32).then_some(SmallM);
                // E5M2 on one side has kernels, too.
                let e4m3 = |scheme: Scheme| scheme.to_string().replace("e5m2", "e4m3");
                let sm90 = ours_in_e4m3(&e4m3(a), &e4m3(b));
                let wanted: Vec<_> = wanted.iter().copied().chain(sm90.then_some(Sm90)).chain(few).collect();
                let desc = GemmDesc::new(m, 520, 576, a, b, DType::Bf16);
                let mut found = handle.supports(&desc).unwrap();
                let chosen = handle.plan(&desc).unwrap();
                assert_eq!(chosen.formulation(), found[0], "{desc}: the first is what plan takes");
                found.sort();
                assert_eq!(found, wanted, "{desc}");
                for formulation in Formulation::ALL {
                    let options = PlanOptions::default().with_formulation(formulation);
                    let planned = handle.plan_with(&desc, &options);
                    assert_eq!(planned.is_ok(), wanted.contains(&formulation), "{desc} by {formulation}");
                    if let Err(error) = planned {
                        refused::<()>(Err(error), &[formulation.name(), "it serves", "supports"]);
                    }
                    if formulation != chosen.formulation() {
                        let (text, not) = (chosen.explain(), format!("not taken: {formulation}: "));
                        let reason = text.lines().find_map(|line| line.trim().strip_prefix(&not));
                        assert!(reason.is_some_and(|r| r.len() > 10), "{formulation} is not in {text}");
                    }
                }
                let text = chosen.explain();
                for word in [&desc.to_string(), chosen.formulation().name(), "algorithm", "bytes of scratch"] {
                    assert!(text.contains(word), "{word:?} is not in {text}");
                }
            }
        }
    }
}

fn zeros(handle: &Handle, scheme: Scheme, rows: usize, cols: usize) -> QuantMatrix {
    QuantMatrix::zeros(handle, scheme, rows, cols).unwrap()
}

#[test]
fn refused_pairs_name_both_schemes_the_gpu_and_a_way_out() {
    let Some(handle) = handle() else { return };
    let device = handle.device().to_string();
    let mut refusals = 0;
    for sa in Scheme::FP8 {
        for sb in Scheme::FP8.into_iter().filter(|sb| !pairs().contains(&(sa, *sb))) {
            let (a, b) = (zeros(&handle, sa, 4, 128), zeros(&handle, sb, 16, 128));
            let mut d = poisoned(&handle, 4 * 16 * 2);
            let d = MatMut::new(&mut d, DType::Bf16, 4, 16).unwrap();
            let (sa, sb) = (sa.to_string(), sb.to_string());
            let way_out = if sa.contains("e5m2") && sb.contains("e5m2") {
                ["E5M2 by E5M2", "quantize one of the two as e4m3"]
            } else if sa.contains("-128x128") && sb.contains("-128x128") {
                ["at least one operand must have 1x128 scales", "quantize one of the two, usually A"]
            } else {
                ["of one family", "quantize both with one recipe"]
            };
            let words = [&format!("{sa} x {sb}"), &device, way_out[0], way_out[1]];
            let error = refused(handle.scaled_gemm(GemmArgs::new(&a, &b, d)), &words);
            assert!(matches!(error, Error::Pair { .. }), "{error:?}");
            let desc = GemmDesc::new(4, 16, 128, a.scheme(), b.scheme(), DType::Bf16);
            refused(handle.plan(&desc), &words);
            refused(handle.supports(&desc), &words);
            refusals += 1;
        }
    }
    assert_eq!(refusals, 64 - 15);
}

#[test]
fn refused_operands_name_numbers_rule_and_remedy() {
    let Some(handle) = handle() else { return };
    let (m, n, k) = (4, 16, 32);
    let (a, b) = (zeros(&handle, TENSOR, m, k), zeros(&handle, TENSOR, n, k));
    // Calls `gemm` with a fresh D of this type, rows and columns.
    let call = |dtype: DType, rows: usize, cols: usize, a: &QuantMatrix, b: &QuantMatrix| {
        let mut buffer = poisoned(&handle, 4096);
        let d = MatMut::new(&mut buffer, dtype, rows, cols).unwrap();
        handle.scaled_gemm(GemmArgs::new(a, b, d))
    };
    let shapes: [(usize, usize, usize, &[&str]); 3] = [
        (m, n, 24, &["A and B", "k = 24", "m = 4", "n = 16", "multiple of 16", "pad the columns"]),
        (m, 12, k, &["B", "n = 12", "multiple of 8", "pad the rows of B"]),
        (m, n, 0, &["A: 4 x 0", "k is a positive multiple of 16", "pass A and B of the same k"]),
    ];
    for (sa, sb) in [(TENSOR, TENSOR), (ROW, ROW), (VEC, TILE), (TILE, VEC), (VEC, VEC)] {
        for (m, n, k, words) in shapes {
            refused(call(DType::Bf16, m, n, &zeros(&handle, sa, m, k), &zeros(&handle, sb, n, k)), words);
        }
    }
    refused(call(DType::Bf16, m, n, &a, &zeros(&handle, TENSOR, n, 48)), &["B: 16 x 48", "32 columns", "B is n x k"]);
    refused(call(DType::Bf16, m, 24, &a, &b), &["D: 4 x 24", "must be 4 x 16", "rows of A by the rows of B"]);
    refused(call(DType::E5M2, m, n, &a, &b), &["D", "e5m2", "store bf16, f16 or f32"]);
    refused(call(DType::E4M3, m, n, &a, &b), &["D", "e4m3", "needs an encode factor", "out_encode"]);

    let one = handle.stream().clone_htod(&[1.0f32]).unwrap();
    let mut buffer = poisoned(&handle, 4096);
    let (row_a, row_b) = (zeros(&handle, ROW, m, k), zeros(&handle, ROW, n, k));
    let args = GemmArgs::new(&row_a, &row_b, MatMut::new(&mut buffer, DType::E4M3, m, n).unwrap()).out_encode(&one);
    refused(handle.scaled_gemm(args), &["D", "e4m3", "fp8-tensor", "fp8-row:e4m3 x fp8-row:e4m3", "store bf16"]);
    let eight = zeros(&handle, TENSOR, 8, k);
    let args = GemmArgs::new(&a, &eight, MatMut::new(&mut buffer, DType::E4M3, m, 8).unwrap()).out_encode(&one);
    refused(handle.scaled_gemm(args), &["n = 8", "multiple of 16", "e4m3"]);
    let args = GemmArgs::new(&a, &b, MatMut::new(&mut buffer, DType::Bf16, m, n).unwrap()).out_encode(&one);
    refused(handle.scaled_gemm(args), &["D", "bf16", "no encode factor"]);

    // Every refusal of one more operand, with D of BF16.
    let bytes = poisoned(&handle, 4096);
    let mut amax = handle.stream().clone_htod(&[0.0f32]).unwrap();
    let mut short = poisoned(&handle, 2);
    let mut with = |change: &mut dyn FnMut(GemmArgs<'_>) -> Error| {
        let d = MatMut::new(&mut buffer, DType::Bf16, m, n).unwrap();
        change(GemmArgs::new(&a, &b, d))
    };
    with(&mut |args| {
        let bias = VecRef::new(&bytes, DType::Bf16, 15).unwrap();
        refused(handle.scaled_gemm(args.bias(bias)), &["bias: 15 elements", "n = 16", "one value for each row of B"])
    });
    with(&mut |args| {
        let bias = VecRef::new(&bytes, DType::E4M3, n).unwrap();
        refused(handle.scaled_gemm(args.bias(bias)), &["bias", "e4m3", "bf16, f16 or f32"])
    });
    with(&mut |args| {
        let residual = MatRef::new(&bytes, DType::F32, m, 24).unwrap();
        refused(handle.scaled_gemm(args.residual(residual)), &["residual: 4 x 24", "must be 4 x 16"])
    });
    with(&mut |args| {
        let residual = MatRef::new(&bytes, DType::E5M2, m, n).unwrap();
        refused(handle.scaled_gemm(args.residual(residual)), &["residual", "e5m2", "bf16, f16 or f32"])
    });
    // A residual where D lies: D itself, or its last row alone.
    {
        let (base, _guard) = bytes.device_ptr(handle.stream());
        // SAFETY: `bytes` lives to the end of the test; the calls that are enqueued read and write different parts of it.
        let d = || unsafe { DeviceBytesMut::from_raw(base, m * n * 2) };
        // SAFETY: the same.
        let residual = |at: u64| unsafe { DeviceBytes::from_raw(base + at, m * n * 2) };
        let ask = |at: u64| {
            let residual = MatRef::new(residual(at), DType::Bf16, m, n).unwrap();
            let d = MatMut::new(d(), DType::Bf16, m, n).unwrap();
            handle.scaled_gemm(GemmArgs::new(&a, &b, d).residual(residual))
        };
        for at in [0, (m - 1) * n * 2] {
            refused(ask(at as u64), &["D", "must not overlap the residual", "memory of its own"]);
        }
        ask((m * n * 2) as u64).unwrap();
        handle.synchronize().unwrap();
    }
    with(&mut |args| refused(handle.scaled_gemm(args.accumulate(1.0)), &["D", "bf16", "accumulate into f32"]));
    with(&mut |args| refused(handle.scaled_gemm(args.amax(&mut amax)), &["D", "bf16", "amax", "e4m3 output"]));
    let args = GemmArgs::new(&a, &b, MatMut::new(&mut buffer, DType::E4M3, m, n).unwrap());
    let args = args.out_encode(&one).amax(&mut short);
    refused(handle.scaled_gemm(args), &["amax: 2 bytes", "one FP32 number"]);

    // Addresses and strides.
    let mut view = buffer.slice_mut(8..);
    let d = MatMut::new(&mut view, DType::Bf16, m, n).unwrap();
    let error = refused(handle.scaled_gemm(GemmArgs::new(&a, &b, d)), &["D: address 0x", "16-byte aligned", "copy"]);
    assert!(matches!(error, Error::Alignment { required: 16, address, .. } if address % 16 == 8), "{error:?}");
    let mut view = buffer.slice_mut(16..);
    let d = MatMut::new(&mut view, DType::Bf16, m, n).unwrap();
    handle.scaled_gemm(GemmArgs::new(&a, &b, d)).unwrap();
    let d = MatMut::new(&mut buffer, DType::Bf16, m, n).unwrap().with_row_stride(17).unwrap();
    refused(handle.scaled_gemm(GemmArgs::new(&a, &b, d)), &["D: row stride 17", "n = 16", "16 bytes", "multiple of 8"]);
    refused(MatMut::new(&mut short, DType::Bf16, m, n), &["2 bytes for 4 x 16 bf16", "at least 128 bytes"]);
    refused(VecRef::new(&bytes, DType::F32, 1025), &["4096 bytes for 1025 f32", "1025 elements"]);

    // The handle is as good as before.
    let ops = Operands::new(&handle, &mut Noise::new(20), [m, n, k], (TENSOR, TENSOR));
    let extras = Extras::new(&handle, &mut Noise::new(0), m, n, &[]);
    check_case(&handle, &ops, &extras, &ops.sums(Accumulation::Precise), &Case::new(DType::Bf16));
}

#[test]
fn a_plan_takes_its_own_problem_handle_and_prepared_b_only() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(21);
    let ops = Operands::new(&handle, &mut rng, [4, 128, 256], (TENSOR, TENSOR));
    let extras = Extras::new(&handle, &mut rng, 4, 128, &[]);
    let planned = Case::new(DType::Bf16);
    let mut plan = handle.plan(&planned.desc(&ops)).unwrap();
    let others: [(Case, &str); 5] = [
        (Case::new(DType::F32), "type of D = f32 where bf16 was planned"),
        (Case { gap: 8, ..planned }, "row stride of D = 136 where 128"),
        (Case { accumulation: Accumulation::Fast, ..planned }, "accumulation = Fast where Precise"),
        (Case { activation: Activation::Relu, ..planned }, "epilogue = "),
        (Case { bias: Some(DType::F32), ..planned }, "epilogue = "),
    ];
    for (other, word) in others {
        let mut output = Output::new(&handle, &ops, &extras, &other);
        let error = refused(plan.execute(&handle, output.args(&ops, &extras, &other)), &[word, "make a plan"]);
        assert!(matches!(error, Error::Shape { .. }), "{error:?}");
        assert!(output.read(&handle, "refused").bytes.iter().all(|b| *b == 0xFF), "written although refused");
    }
    let wider = Operands::new(&handle, &mut rng, [4, 136, 256], (TENSOR, TENSOR));
    let wide_extras = Extras::new(&handle, &mut rng, 4, 136, &[]);
    let mut output = Output::new(&handle, &wider, &wide_extras, &planned);
    refused(plan.execute(&handle, output.args(&wider, &wide_extras, &planned)), &["n = 136 where 128 was planned"]);
    let second = Handle::from_stream(handle.stream().context().new_stream().unwrap()).unwrap();
    let mut output = Output::new(&handle, &ops, &extras, &planned);
    let error = plan.execute(&second, output.args(&ops, &extras, &planned));
    refused(error, &["another handle", "make a plan for each handle"]);

    let ops = Operands::new(&handle, &mut rng, [4, 128, 256], (VEC, TILE));
    let desc = planned.desc(&ops);
    if !offered(&handle, &desc).contains(&Formulation::RepeatedScales) {
        println!("skipped: {} offers no repeated scales", handle.device());
        return;
    }
    let options = PlanOptions::default().with_formulation(Formulation::RepeatedScales);
    let mut plan = handle.plan_with(&desc, &options).unwrap();
    let mut output = Output::new(&handle, &ops, &extras, &planned);
    let error = plan.execute(&handle, output.args(&ops, &extras, &planned));
    refused(error, &["repeated-scales", "no repeated scales yet", "GemmPlan::prepare"]);
    refused(plan.prepare(&handle, &wider.b), &["B: 136 x 256", "must be 128 x 256", "as planned"]);
    assert_eq!(plan.repeated_scale_bytes(), 128 * 2 * 4);
    let before = ops.b.device_bytes();
    plan.prepare(&handle, &ops.b).unwrap();
    plan.prepare(&handle, &ops.b).unwrap();
    assert_eq!(ops.b.device_bytes(), before + plan.repeated_scale_bytes(), "made once");
    plan.execute(&handle, output.args(&ops, &extras, &planned)).unwrap();
}

/// An empty D is no error: nothing is written, and the amax of nothing is 0.
#[test]
fn empty_products() {
    let Some(handle) = handle() else { return };
    for (sa, sb) in pairs() {
        for (m, n) in [(0, 16), (3, 0), (0, 0)] {
            let (a, b) = (zeros(&handle, sa, m, 144), zeros(&handle, sb, n, 144));
            for out in WIDE {
                let mut d = poisoned(&handle, 64);
                handle.scaled_gemm(GemmArgs::new(&a, &b, MatMut::new(&mut d, out, m, n).unwrap())).unwrap();
                let desc = GemmDesc::new(m, n, 144, sa, sb, out);
                assert_eq!(handle.plan(&desc).unwrap().workspace_bytes(), 0);
                assert!(handle.stream().clone_dtoh(&d).unwrap().iter().all(|b| *b == 0xFF), "{desc}");
            }
            if is_tensor(sa) {
                let one = handle.stream().clone_htod(&[1.0f32]).unwrap();
                let mut amax = handle.stream().clone_htod(&[f32::NAN]).unwrap();
                let mut d = poisoned(&handle, 64);
                let args = GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::E4M3, m, n).unwrap());
                handle.scaled_gemm(args.out_encode(&one).amax(&mut amax)).unwrap();
                assert_eq!(handle.stream().clone_dtoh(&amax).unwrap(), [0.0]);
            }
        }
    }
}
