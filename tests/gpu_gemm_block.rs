//! NVFP4, MXFP8, MXFP4 and weight-only products: every pair x output x epilogue x shape within the f64 bound, with weights kept
//! dequantized or not; alpha on the device in graphs; refusals in words.
#![cfg(feature = "cuda")]

mod common;

use common::gemm::*;
use common::*;
use ndarray::Array2;
use scaled_gemm::reference::{self, GemmInputs};
use scaled_gemm::{
    Accumulation, Activation, Basis, CodeFormat, DType, Finish, Formulation, Fp8Format, GemmArgs, GemmDesc, Handle,
    HostQuantMatrix, KeptWeights, MatMut, MatRef, Operand, PlanOptions, QuantMatrix, Scheme,
};

const MX: Scheme = Scheme::Mxfp8(Fp8Format::E4M3);
const MX5: Scheme = Scheme::Mxfp8(Fp8Format::E5M2);
const MX4: Scheme = Scheme::Mxfp4;
const NV: Scheme = Scheme::Nvfp4;
const NV_ROW: Scheme = Scheme::Nvfp4Row;
const BF16: Operand = Operand::Plain(DType::Bf16);
const F16: Operand = Operand::Plain(DType::F16);

type Pair = (Operand, Scheme);

const fn quantized_pair(a: Scheme, b: Scheme) -> Pair {
    (Operand::Quantized(a), b)
}

const NVFP4: [Pair; 4] =
    [quantized_pair(NV, NV), quantized_pair(NV, NV_ROW), quantized_pair(NV_ROW, NV), quantized_pair(NV_ROW, NV_ROW)];
const MXFP8: [Pair; 3] = [quantized_pair(MX, MX), quantized_pair(MX, MX5), quantized_pair(MX5, MX)];
const MXFP4: [Pair; 5] =
    [quantized_pair(MX4, MX4), quantized_pair(MX, MX4), quantized_pair(MX5, MX4), (BF16, MX4), (F16, MX4)];
const WEIGHT_ONLY: [Pair; 6] = [(BF16, NV), (F16, NV), (BF16, NV_ROW), (F16, NV_ROW), (BF16, MX), (BF16, MX5)];

fn every_pair() -> impl Iterator<Item = Pair> {
    NVFP4.into_iter().chain(MXFP8).chain(MXFP4).chain(WEIGHT_ONLY)
}

/// Normal data in which every row and every 16 columns of a row have a size of their own, over two orders of magnitude: a
/// block scale or a row scale taken from a wrong place shows. Products stay within F16 up to k = 576.
fn blocked(rng: &mut Noise, rows: usize, cols: usize) -> Array2<f32> {
    let groups = cols.div_ceil(16);
    let by_row: Vec<f32> = (0..rows).map(|_| 10f32.powf(rng.uniform() - 0.5)).collect();
    let by_block: Vec<f32> = (0..rows * groups).map(|_| 10f32.powf(rng.uniform() - 0.5)).collect();
    Array2::from_shape_fn((rows, cols), |(i, j)| 0.125 * rng.normal() * by_row[i] * by_block[i * groups + j / 16])
}

/// Either kind of product.
enum Both {
    Quantized(Operands),
    Plain(PlainOperands),
}

/// Runs the same code on whichever kind it is.
macro_rules! with {
    ($both:expr, |$ops:ident| $body:expr) => {
        match $both {
            Both::Quantized($ops) => $body,
            Both::Plain($ops) => $body,
        }
    };
}

fn operands(handle: &Handle, x: &Array2<f32>, w: &Array2<f32>, (a, b): Pair) -> Both {
    let host_b = quantized(w, b);
    match a {
        Operand::Quantized(a) => Both::Quantized(Operands::of(handle, quantized(x, a), host_b)),
        // Rows of A lie apart where their number is odd.
        Operand::Plain(dtype) => Both::Plain(PlainOperands::of(handle, x, dtype, x.nrows() % 2 * 8, host_b)),
    }
}

/// The same operands, with B's values kept in this type.
fn keeping(handle: &Handle, both: &Both, dtype: DType) -> Both {
    match both {
        Both::Quantized(ops) => {
            let ops = Operands::of(handle, ops.host_a.clone(), ops.host_b.clone());
            ops.b.keep_dequantized(handle, dtype).unwrap();
            Both::Quantized(ops)
        }
        Both::Plain(ops) => {
            let ops = PlainOperands::of(handle, &ops.host_a, ops.dtype, ops.a_gap, ops.host_b.clone());
            ops.b.keep_dequantized(handle, dtype).unwrap();
            Both::Plain(ops)
        }
    }
}

/// The type in which operands are multiplied: A's own, F16 for NVFP4 into F16, else BF16.
fn value_type(a: Operand, out: DType) -> DType {
    match a {
        Operand::Plain(dtype) => dtype,
        Operand::Quantized(a) if a.is_nvfp4() && out == DType::F16 => DType::F16,
        Operand::Quantized(_) => DType::Bf16,
    }
}

/// Every shape for some pairs: in bounds, and kept weights give the same bits.
fn every_shape(pairs: &[Pair]) {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(101);
    let (mut tally, mut posed) = (Tally::default(), 0);
    for (n, k) in [(520, 16), (520, 48), (520, 576), (72, 7168)] {
        let w = blocked(&mut rng, n, k);
        for m in [1, 3, 17, 130, 512] {
            let x = blocked(&mut rng, m, k);
            posed += pairs.len() * WIDE.len();
            for pair in pairs {
                let both = operands(&handle, &x, &w, *pair);
                let kept = [DType::Bf16, DType::F16].map(|dtype| {
                    (pair.1.spec().format == CodeFormat::E2M1 || dtype == DType::Bf16)
                        .then(|| keeping(&handle, &both, dtype))
                });
                let extras = Extras::new(&handle, &mut rng, m, n, &[]);
                let sums = with!(&both, |ops| ops.sums(Accumulation::Precise));
                for out in WIDE {
                    let case = Case { gap: tally.posed % 2 * 16, ..Case::new(out) };
                    with!(&both, |ops| tally.check(&handle, ops, &extras, &sums, &case));
                    let dtype = value_type(pair.0, out);
                    let kept = kept[usize::from(dtype == DType::F16)].as_ref().unwrap();
                    with!(kept, |ops| assert!(!check_case(&handle, ops, &extras, &sums, &case).is_empty()));
                    assert_kept_is_equal(&handle, &both, kept, &extras, &case);
                }
            }
        }
    }
    // These pairs are offered wherever BF16 tensor cores are.
    tally.finish(&format!("{pairs:?}"), posed, posed);
}

/// A B that keeps its values gives the same bits, and needs no scratch for them.
fn assert_kept_is_equal(handle: &Handle, both: &Both, kept: &Both, extras: &Extras, case: &Case) {
    let run = |both: &Both| {
        with!(both, |ops| {
            let mut plan = plan(handle, &case.desc(ops), Formulation::DequantizedBf16);
            let stored = execute(handle, &mut plan, ops, extras, case);
            (stored, plan.scratch_bytes(), plan.explain())
        })
    };
    let ((want, scratch, _), (found, less, words)) = (run(both), run(kept));
    assert!(found == want, "kept values change the result\n{words}");
    let b_bytes = with!(both, |ops| ops.shape()[1] * ops.shape()[2] * 2);
    assert!(scratch >= less + b_bytes, "{scratch} bytes of scratch, {less} with kept values\n{words}");
    assert!(words.contains("B's own") && words.contains(" 0 bytes of B"), "{words}");
}

/// Bias, activation, residual and accumulation, alpha other than 1, strided D.
fn every_epilogue(pairs: &[Pair]) {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(102);
    let (mut tally, mut posed) = (Tally::default(), 0);
    for m in [17, 20] {
        let (n, k, gap) = (520, 144, 8);
        for pair in pairs {
            let both = operands(&handle, &blocked(&mut rng, m, k), &blocked(&mut rng, n, k), *pair);
            let extras = Extras::new(&handle, &mut rng, m, n, &[0, gap]);
            let sums = with!(&both, |ops| ops.sums(Accumulation::Precise));
            for case in epilogue_cases(m, gap) {
                with!(&both, |ops| tally.check(&handle, ops, &extras, &sums, &case));
                posed += 1;
            }
        }
    }
    tally.finish(&format!("{pairs:?}, epilogues"), posed, posed);
}

/// One test for each family, so that they run side by side and can be chosen by name.
macro_rules! families {
    ($($pairs:ident: $shapes:ident, $epilogues:ident;)+) => {$(
        #[test]
        fn $shapes() {
            every_shape(&$pairs);
        }

        #[test]
        fn $epilogues() {
            every_epilogue(&$pairs);
        }
    )+};
}
families! {
    NVFP4: every_shape_nvfp4, every_epilogue_nvfp4;
    MXFP8: every_shape_mxfp8, every_epilogue_mxfp8;
    MXFP4: every_shape_mxfp4, every_epilogue_mxfp4;
    WEIGHT_ONLY: every_shape_weight_only, every_epilogue_weight_only;
}

/// Second-level scales whose product overflows FP32, and an alpha that brings the result back.
#[test]
fn large_second_levels_do_not_overflow_alpha() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(103);
    let (m, n, k) = (17, 72, 576);
    let (x, w) = (blocked(&mut rng, m, k).mapv(|v| v * 1e35), blocked(&mut rng, n, k).mapv(|v| v * 1e20));
    for pair in NVFP4 {
        let both = operands(&handle, &x, &w, pair);
        let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
        with!(&both, |ops| {
            let scale = |q: &HostQuantMatrix| q.scales().iter().copied().fold(0.0, f32::max);
            let (Some(a), b) = (ops.host_a().quantized(), ops.host_b()) else { panic!("{pair:?} is quantized") };
            assert!((scale(a) * scale(b)).is_infinite(), "{} * {} must overflow", scale(a), scale(b));
            let sums = ops.sums(Accumulation::Precise);
            for out in [DType::Bf16, DType::F32] {
                for beta in [None, Some(0.5)].into_iter().filter(|beta| beta.is_none() || out == DType::F32) {
                    for activation in [Activation::None, Activation::Silu] {
                        let case = Case { alpha: 1e-30, beta, activation, ..Case::new(out) };
                        check_case(&handle, ops, &extras, &sums, &case);
                        let inputs = extras.inputs(ops, &case);
                        let d = reference::scaled_gemm(&inputs).unwrap();
                        assert!(d.iter().all(|v| v.is_finite()) && d.iter().any(|v| v.abs() > 1e20), "{pair:?}");
                    }
                }
            }
        });
    }
}

/// With `beta = 0` D's old value, NaN here, is not read, whoever adds it; beta is on the device in some of these.
#[test]
fn beta_zero_reads_nothing() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(104);
    for pair in every_pair() {
        let both = operands(&handle, &blocked(&mut rng, 20, 144), &blocked(&mut rng, 72, 144), pair);
        let mut extras = Extras::new(&handle, &mut rng, 20, 72, &[0]);
        with!(&both, |ops| {
            let sums = ops.sums(Accumulation::Precise);
            for activation in [Activation::None, Activation::Silu] {
                let case = Case { beta: Some(0.0), activation, ..Case::new(DType::F32) };
                let replaced = Case { beta: None, ..case };
                let bound = sums.with(&extras.inputs(ops, &replaced), reference::Gelu::Ieee).unwrap();
                extras.old.fill(f32::NAN);
                for formulation in offered(&handle, &case.desc(ops)) {
                    let mut plan = plan(&handle, &case.desc(ops), formulation);
                    let stored = execute(&handle, &mut plan, ops, &extras, &case);
                    let found = bound.check(stored.values(ops, &case).view());
                    found.unwrap_or_else(|e| panic!("{e}\n{}", plan.explain()));
                }
            }
        });
    }
}

/// A NaN block scale poisons its row and nothing else.
#[test]
fn a_nan_scale_stays_in_its_row() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(105);
    let (m, n, k) = (8, 72, 256);
    for (a, b) in NVFP4.into_iter().chain(MXFP8).chain(MXFP4) {
        let Some(a) = a.scheme() else { continue };
        let q = quantized(&blocked(&mut rng, m, k), a);
        let mut block_scales = q.logical_block_scales();
        let blocks = block_scales.len() / m;
        block_scales[2 * blocks + 3] = if a.is_nvfp4() { 0x7F } else { 0xFF };
        let (codes, scales) = (q.logical_codes().to_vec(), q.logical_scales());
        let q = HostQuantMatrix::from_block_logical(a, m, k, codes, &scales, &block_scales).unwrap();
        let ops = Operands::of(&handle, q, quantized(&blocked(&mut rng, n, k), b));
        let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
        let sums = ops.sums(Accumulation::Precise);
        for activation in [Activation::None, Activation::Relu, Activation::Silu] {
            for out in WIDE {
                check_case(&handle, &ops, &extras, &sums, &Case { activation, ..Case::new(out) });
            }
        }
    }
}

/// One call equals plan and execute, and every call equals the first, in every bit.
#[test]
fn scaled_gemm_is_its_plan_bit_for_bit() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(106);
    for pair in every_pair() {
        let (m, n, k) = (130, 520, 576);
        let both = operands(&handle, &blocked(&mut rng, m, k), &blocked(&mut rng, n, k), pair);
        let extras = Extras::new(&handle, &mut rng, m, n, &[0, 8]);
        let fusable = Case { bias: Some(DType::F16), alpha: 0.5, gap: 8, ..Case::new(DType::F16) };
        let layer = Case {
            bias: Some(DType::F32),
            activation: Activation::Silu,
            residual: Some(DType::F16),
            beta: Some(0.5),
            ..Case::new(DType::F32)
        };
        with!(&both, |ops| for case in [Case::new(DType::Bf16), fusable, layer] {
            let desc = case.desc(ops);
            let call = || {
                let mut output = Output::new(&handle, ops, &extras, &case);
                handle.scaled_gemm(output.args(ops, &extras, &case)).unwrap();
                output.read(&handle, "scaled_gemm")
            };
            let first = call();
            let mut plan = handle.plan(&desc).unwrap();
            let want = execute(&handle, &mut plan, ops, &extras, &case);
            assert!(first == want, "{desc}: the first scaled_gemm differs from the plan\n{}", plan.explain());
            for i in 0..3 {
                assert!(call() == want, "{desc}: call {i} of scaled_gemm differs\n{}", plan.explain());
                assert!(execute(&handle, &mut plan, ops, &extras, &case) == want, "{desc}: execute {i}");
            }
        });
        handle.clear_plans();
    }
}

/// Replays follow A, its second-level scale included: alpha is formed on the device at each launch.
#[test]
fn graphs_follow_their_operands() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(107);
    let (n, k) = (520, 400);
    let layer = layer();
    for pair in every_pair() {
        for (m, keep) in [(17, false), (64, true)] {
            for case in [Case::new(DType::Bf16), Case { beta: None, ..layer }, layer] {
                let (x, w) = (blocked(&mut rng, m, k), blocked(&mut rng, n, k));
                let mut both = operands(&handle, &x, &w, pair);
                if keep {
                    both = keeping(&handle, &both, value_type(pair.0, case.out));
                }
                let extras = Extras::new(&handle, &mut rng, m, n, &[case.gap]);
                let desc = with!(&both, |ops| case.desc(ops));
                for formulation in offered(&handle, &desc) {
                    let mut plan = plan(&handle, &desc, formulation);
                    let words = plan.explain();
                    let want = with!(&both, |ops| execute(&handle, &mut plan, ops, &extras, &case));
                    let mut output = with!(&both, |ops| Output::new(&handle, ops, &extras, &case));
                    let graph = with!(&both, |ops| capture_among_others(&handle, || plan
                        .execute(&handle, output.args(ops, &extras, &case))))
                    .unwrap();
                    let replay = |output: &mut Output| {
                        output.reset(&handle);
                        handle.launch(&graph).unwrap();
                        output.read(&handle, &words)
                    };
                    for i in 0..3 {
                        assert!(replay(&mut output) == want, "replay {i} differs from the eager call\n{words}");
                    }
                    rewrite_a(&handle, &mut both, &blocked(&mut rng, m, k).mapv(|v| v * 3.0));
                    let follows = with!(&both, |ops| execute(&handle, &mut plan, ops, &extras, &case));
                    assert!(follows != want, "other operands, same result\n{words}");
                    assert!(replay(&mut output) == follows, "the replay does not follow A\n{words}");
                }
            }
        }
    }
}

/// Other activations, where a graph finds them.
fn rewrite_a(handle: &Handle, both: &mut Both, x: &Array2<f32>) {
    match both {
        Both::Plain(ops) => ops.rewrite(handle, x),
        Both::Quantized(ops) => rewrite(handle, x, &mut ops.a),
    }
}

/// What README promises: native from sm_100 on, dequantized everywhere; the plan says what it costs.
#[test]
fn supports_and_explain_say_what_is_done() {
    let Some(handle) = handle() else { return };
    let blackwell = handle.device().compute_capability >= (10, 0);
    for (a, b) in every_pair() {
        for (m, k, out) in [(1, 16, DType::Bf16), (17, 48, DType::F16), (130, 576, DType::F32)] {
            let desc = GemmDesc::new(m, 520, k, a, b, out);
            let found = handle.supports(&desc).unwrap();
            let plan = handle.plan(&desc).unwrap();
            assert_eq!(plan.formulation(), found[0], "{desc}: the first is what plan takes");
            // cuBLASLt multiplies no MXFP4.
            let has_native = a.scheme().is_some() && a != Operand::Quantized(MX4) && b != MX4;
            let native = blackwell && has_native && k % 32 == 0;
            assert_eq!(found.contains(&Formulation::Native), native, "{desc}");
            assert!(found.contains(&Formulation::DequantizedBf16), "{desc}");
            for other in [Formulation::RepeatedScales, Formulation::Rescaled] {
                let error = handle.plan_with(&desc, &PlanOptions::default().with_formulation(other));
                refused(error, &[other.name(), "it serves fp8-", "supports"]);
            }
            let options = PlanOptions::default().with_formulation(Formulation::DequantizedBf16);
            let plan = handle.plan_with(&desc, &options).unwrap();
            let dtype = value_type(a, out);
            let a_bytes = if a.scheme().is_some() { m * k * 2 } else { 0 };
            let cost = format!(
                "dequantized to {dtype} in each call, in scratch: {a_bytes} bytes of A, {} bytes of B",
                520 * k * 2
            );
            let text = plan.explain();
            for word in [&desc.to_string(), "dequantized-bf16", &cost, "bytes of scratch"] {
                assert!(text.contains(word), "{word:?} is not in {text}");
            }
            assert!(plan.scratch_bytes() >= a_bytes + 520 * k * 2, "{text}");
            let rows = [a, b.into()].contains(&Operand::Quantized(NV_ROW));
            let fused = !rows && (out == DType::F32 || out == dtype);
            assert_eq!(plan.finish(), if fused { Finish::Fused } else { Finish::EpilogueKernel }, "{text}");
            if !blackwell && has_native {
                assert!(text.contains("sm_100 and newer") || text.contains("was asked for"), "{text}");
                assert!(handle.plan(&desc).unwrap().explain().contains("sm_100 and newer"));
            }
        }
    }
}

#[test]
fn refusals_name_schemes_numbers_rule_and_remedy() {
    let Some(handle) = handle() else { return };
    let (m, n, k) = (4, 16, 32);
    let zeros = |scheme, rows, cols| QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap();
    let mut buffer = poisoned(&handle, 4096);
    let x = poisoned(&handle, 4096);
    let mut gemm = |a: Scheme, b: Scheme| {
        let (a, b) = (zeros(a, m, k), zeros(b, n, k));
        handle.scaled_gemm(GemmArgs::new(&a, &b, MatMut::new(&mut buffer, DType::Bf16, m, n).unwrap()))
    };
    let fp8 = Scheme::Fp8Tensor(Fp8Format::E4M3);
    let device = handle.device().to_string();
    refused(gemm(NV, fp8), &["nvfp4 x fp8-tensor:e4m3", &device, "quantize both as nvfp4"]);
    refused(gemm(fp8, NV_ROW), &["fp8-tensor:e4m3 x nvfp4-row", "quantize both as nvfp4"]);
    refused(gemm(MX, NV), &["mxfp8:e4m3 x nvfp4"]);
    refused(gemm(MX, Scheme::Fp8Row(Fp8Format::E4M3)), &["mxfp8:e4m3 x fp8-row:e4m3", "quantize both as mxfp8"]);
    refused(gemm(MX5, MX5), &["E5M2 by E5M2"]);
    refused(gemm(MX4, MX), &["mxfp4 x mxfp8:e4m3", "quantize A as mxfp8, or B as mxfp4"]);

    let mut plain = |dtype: DType, stride: usize, b: Scheme, out: DType| {
        let b = zeros(b, n, k);
        let a = MatRef::new(&x, dtype, m, k)?.with_row_stride(stride)?;
        handle.scaled_gemm(GemmArgs::weight_only(a, &b, MatMut::new(&mut buffer, out, m, n)?))
    };
    refused(plain(DType::F16, k, MX, DType::Bf16), &["f16 x mxfp8:e4m3", "E8M0", "round A to bf16"]);
    refused(plain(DType::F32, k, NV, DType::Bf16), &["f32 x nvfp4", "round A to bf16"]);
    let wide = Scheme::Fp8Tensor(Fp8Format::E5M2);
    refused(plain(DType::Bf16, k, wide, DType::Bf16), &["bf16 x fp8-tensor:e5m2", "plain activations as E4M3"]);
    refused(plain(DType::Bf16, k + 4, NV, DType::Bf16), &["A: row stride 36", "16 bytes", "multiple of 8"]);
    refused(plain(DType::Bf16, k, NV, DType::E4M3), &["D", "e4m3"]);
    plain(DType::Bf16, k + 8, NV, DType::F16).unwrap();

    // An A that is not 16-byte aligned.
    let b = zeros(NV, n, k);
    let a = MatRef::new(x.slice(8..), DType::Bf16, m, k).unwrap();
    let error = handle.scaled_gemm(GemmArgs::weight_only(a, &b, MatMut::new(&mut buffer, DType::Bf16, m, n).unwrap()));
    refused(error, &["A: address 0x", "16-byte aligned"]);

    // Bases must agree; a plain A is in the basis of the data.
    let transformed = |rows| zeros(NV, rows, k).assume_basis(Basis::Hadamard16);
    let (plain_a, hadamard_a, hadamard_b) = (zeros(NV, m, k), transformed(m), transformed(n));
    let call = |a: &QuantMatrix, b: &QuantMatrix, buffer: &mut _| {
        handle.scaled_gemm(GemmArgs::new(a, b, MatMut::new(buffer, DType::Bf16, m, n).unwrap()))
    };
    refused(call(&plain_a, &hadamard_b, &mut buffer), &["basis", "Hadamard16", "quantize both"]);
    refused(call(&hadamard_a, &b, &mut buffer), &["basis", "Hadamard16"]);
    call(&hadamard_a, &hadamard_b, &mut buffer).unwrap();
    let a = MatRef::new(&x, DType::Bf16, m, k).unwrap();
    let d = MatMut::new(&mut buffer, DType::Bf16, m, n).unwrap();
    refused(handle.scaled_gemm(GemmArgs::weight_only(a, &hadamard_b, d)), &["basis", "Hadamard16"]);
}

#[test]
fn kept_values_belong_to_plan_and_matrix() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(108);
    let (m, n, k) = (4, 128, 64);
    let ops = Operands::of(&handle, quantized(&blocked(&mut rng, m, k), NV), quantized(&blocked(&mut rng, n, k), NV));
    let extras = Extras::new(&handle, &mut rng, m, n, &[]);
    let case = Case::new(DType::Bf16);
    let mut before = handle.plan(&case.desc(&ops)).unwrap();
    let want = execute(&handle, &mut before, &ops, &extras, &case);

    assert_eq!(ops.b.kept(), KeptWeights::Nothing);
    refused(ops.b.keep_dequantized(&handle, DType::F32), &["nvfp4", "f32", "exact in bf16"]);
    let bytes = ops.b.device_bytes();
    ops.b.keep_dequantized(&handle, DType::Bf16).unwrap();
    ops.b.keep_dequantized(&handle, DType::Bf16).unwrap();
    assert_eq!(ops.b.device_bytes(), bytes + n * k * 2, "made once");
    refused(ops.b.keep_dequantized(&handle, DType::F16), &["bf16 already", "forget_dequantized"]);
    let fp8 = QuantMatrix::zeros(&handle, Scheme::Fp8Tensor(Fp8Format::E4M3), n, k).unwrap();
    refused(fp8.keep_dequantized(&handle, DType::Bf16), &["fp8-tensor:e4m3", "nvfp4, nvfp4-row, mxfp8"]);
    let mx = QuantMatrix::zeros(&handle, MX, n, k).unwrap();
    refused(mx.keep_dequantized(&handle, DType::F16), &["mxfp8:e4m3", "f16"]);

    // The plan from before was made for a B without values, the one from now on for one with them.
    let mut output = Output::new(&handle, &ops, &extras, &case);
    let error = before.execute(&handle, output.args(&ops, &extras, &case));
    refused(error, &["values kept in B = Dequantized(Bf16) where Nothing was planned", "make a plan"]);
    refused(before.prepare(&handle, &ops.b), &["values kept in B", "keep_dequantized"]);
    let options = PlanOptions::default().with_formulation(Formulation::DequantizedBf16);
    let mut after = handle.plan_with(&case.desc(&ops), &options).unwrap();
    let same = execute(&handle, &mut after, &ops, &extras, &case) == want;
    assert!(same || before.formulation() != Formulation::DequantizedBf16);
    let wide = handle.plan_with(&Case::new(DType::F16).desc(&ops), &options).unwrap();
    assert!(wide.explain().contains("the bf16 values that B keeps are of no use: keep f16"), "{}", wide.explain());

    // Writing to B keeps them, and products then read what was written.
    let mut b = ops.b;
    let other = quantized(&blocked(&mut rng, n, k), NV);
    let write = b.write_parts(&handle, |mut parts| {
        handle.write(&mut parts.scales, other.scales())?;
        handle.write(&mut parts.codes, other.codes())?;
        handle.write(&mut parts.block_scales, other.block_scales())
    });
    write.unwrap();
    assert_eq!(b.device_bytes(), bytes + n * k * 2, "kept");
    let fresh = QuantMatrix::from_host(&handle, &other).unwrap();
    let product = |b: &QuantMatrix| {
        let mut d = poisoned(&handle, m * n * 2);
        handle.scaled_gemm(GemmArgs::new(&ops.a, b, MatMut::new(&mut d, DType::Bf16, m, n).unwrap())).unwrap();
        handle.stream().clone_dtoh(&d).unwrap()
    };
    assert_eq!(product(&b), product(&fresh), "values kept from before the write");
    b.forget_dequantized();
    assert_eq!(b.kept(), KeptWeights::Nothing);
    b.keep_dequantized(&handle, DType::F16).unwrap();
    assert_eq!(b.kept(), KeptWeights::Dequantized(DType::F16));
    let none_kept = QuantMatrix::zeros(&handle, NV, n, k).unwrap();
    let mut none = handle.plan_with(&GemmDesc::new(m, n, k, NV, NV, DType::Bf16), &options).unwrap();
    none.prepare(&handle, &none_kept).unwrap();
}

/// An empty D is no error: nothing is written.
#[test]
fn empty_products() {
    let Some(handle) = handle() else { return };
    for (a, b) in every_pair() {
        for (m, n) in [(0, 16), (3, 0), (0, 0)] {
            let b = QuantMatrix::zeros(&handle, b, n, 144).unwrap();
            let x = poisoned(&handle, 3 * 144 * 2);
            for out in WIDE {
                let mut buffer = poisoned(&handle, 64);
                let d = MatMut::new(&mut buffer, out, m, n).unwrap();
                match a {
                    Operand::Quantized(a) => {
                        let a = QuantMatrix::zeros(&handle, a, m, 144).unwrap();
                        handle.scaled_gemm(GemmArgs::new(&a, &b, d)).unwrap();
                    }
                    Operand::Plain(dtype) => {
                        let a = MatRef::new(&x, dtype, m, 144).unwrap();
                        handle.scaled_gemm(GemmArgs::weight_only(a, &b, d)).unwrap();
                    }
                }
                assert!(handle.stream().clone_dtoh(&buffer).unwrap().iter().all(|b| *b == 0xFF));
            }
        }
    }
}

/// Needs no GPU: a bound that accepts scales in a wrong order would make the tests above worthless.
#[test]
fn the_bounds_refuse_every_wrong_scale_order() {
    let mut rng = Noise::new(109);
    let (m, n, k) = (17, 136, 576);
    for (a, b) in NVFP4.into_iter().chain(MXFP8).chain(MXFP4) {
        let Some(a) = a.scheme() else { continue };
        let (a, b) = (quantized(&blocked(&mut rng, m, k), a), quantized(&blocked(&mut rng, n, k), b));
        let sums = reference::SumBound::new(&a, &b, reference::Accumulator::TensorCoreWide);
        let bound = sums.with(&GemmInputs::new(&a, &b, DType::Bf16), reference::Gelu::Ieee).unwrap();
        let passes = |a: &HostQuantMatrix, b: &HostQuantMatrix| {
            let d = reference::scaled_gemm(&GemmInputs::new(a, b, DType::Bf16)).unwrap();
            bound.check(d.view()).is_ok()
        };
        assert!(passes(&a, &b));
        let wrong = |q: &HostQuantMatrix, order: &dyn Fn(usize, usize, usize, usize) -> usize| {
            let [rows, cols] = q.scheme().block_grid(q.rows(), q.cols());
            let old = q.logical_block_scales();
            let new: Vec<u8> = (0..rows * cols).map(|at| old[order(at / cols, at % cols, rows, cols)]).collect();
            let (codes, scales) = (q.logical_codes().to_vec(), q.logical_scales());
            HostQuantMatrix::from_block_logical(q.scheme(), q.rows(), q.cols(), codes, &scales, &new).unwrap()
        };
        // The next scale; the transposed grid; every block with the first one's scale; two neighbouring rows exchanged.
        let orders: [&dyn Fn(usize, usize, usize, usize) -> usize; 4] = [
            &|row, col, rows, cols| (row * cols + col + 1) % (rows * cols),
            &|row, col, rows, cols| (col * rows + row) % (rows * cols),
            &|row, _, _, cols| row * cols,
            &|row, col, _, cols| if row < 2 { (1 - row) * cols + col } else { row * cols + col },
        ];
        for (i, order) in orders.into_iter().enumerate() {
            assert!(!passes(&wrong(&a, order), &b), "order {i} of A's scales passes");
            assert!(!passes(&a, &wrong(&b, order)), "order {i} of B's scales passes");
        }
    }
}
