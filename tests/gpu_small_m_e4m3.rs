//! Our product of few rows with E4M3 weights, A plain or MXFP8: every scheme of weights and every configuration within the f64 bound at shapes that cut
//! tiles, steps and splits, with every epilogue; every code with every scale; the same bits from run to run, in graphs and whatever rows stand beside a
//! row; refusals in words.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "common/guarded_weights.rs"]
mod guarded_weights;
#[path = "common/small_m_weights.rs"]
mod small_m_weights;

use common::gemm::*;
use common::*;
use guarded_weights::check_between_guards;
use ndarray::Array2;
use scaled_gemm::reference;
use scaled_gemm::{
    Accumulation, DType, Finish, Formulation, Fp8Format, GemmArgs, GemmDesc, HostQuantMatrix, KeptWeights, MatMut,
    MatRef, Operand, PlanOptions, QuantMatrix, Scheme, SmallMBlock, SmallMConfig, SmallMOperands, TuneRecord,
};
use small_m_weights::*;

const F: Fp8Format = Fp8Format::E4M3;
const TENSOR: Scheme = Scheme::Fp8Tensor(F);
const ROW: Scheme = Scheme::Fp8Row(F);
const VECTORS: Scheme = Scheme::Fp8Group1x128(F);
const TILES: Scheme = Scheme::Fp8Group128x128(F);
const MX: Scheme = Scheme::Mxfp8(F);

/// Every kind of A that each scheme of weights multiplies here.
const PAIRS: [Pair; 11] = [
    (BF16, TENSOR),
    (F16, TENSOR),
    (BF16, ROW),
    (F16, ROW),
    (BF16, VECTORS),
    (F16, VECTORS),
    (BF16, TILES),
    (F16, TILES),
    (BF16, MX),
    (Operand::Quantized(MX), MX),
    (Operand::Quantized(Scheme::Mxfp8(Fp8Format::E5M2)), MX),
];

fn all() -> impl Iterator<Item = SmallMConfig> {
    all_of(SmallMOperands::E4m3Weights, 64)
}

fn one_of_each(turn: usize) -> impl Iterator<Item = SmallMConfig> {
    one_of_each_of(SmallMOperands::E4m3Weights, 64, turn)
}

/// Small, for runs under a sanitizer: each kernel, and each split.
#[test]
fn each_kernel_once() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(281);
    for (i, m) in [1, 7, 16, 31, 63].into_iter().enumerate() {
        for (j, pair) in PAIRS.into_iter().enumerate() {
            let case = Case { gap: 8, ..Case::new(WIDE[(i + j) % 3]) };
            check(&handle, &mut rng, [m, 136, 1040], pair, case, one_of_each(i + j));
        }
    }
}

/// Every pair at shapes that cut tiles of 128 rows and steps of 128 of k, in every configuration; every m from 1 to 64.
#[test]
fn shapes_that_cut_tiles_steps_and_splits() {
    let Some(handle) = decoding() else { return };
    let (mut rng, mut worst, mut turn) = (Noise::new(282), 0f64, 0);
    for (i, k) in [16, 32, 48, 128, 144, 160, 1536].into_iter().enumerate() {
        for (j, n) in [8, 72, 128, 136].into_iter().enumerate() {
            for (l, pair) in PAIRS.into_iter().enumerate() {
                for m in [1 + turn % 16, 17 + turn * 7 % 48] {
                    let case = Case { gap: [0, 8, 40][(i + j) % 3], ..Case::new(WIDE[(i + l + m) % 3]) };
                    worst = worst.max(check(&handle, &mut rng, [m, n, k], pair, case, all()));
                }
                turn += 1;
            }
        }
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// Many tiles, as published shapes have them, a long k, and more blocks than run at once.
#[test]
fn large_shapes() {
    let Some(handle) = decoding() else { return };
    let (mut rng, mut worst) = (Noise::new(283), 0f64);
    let shapes = [
        [3, 264, 18944],
        [16, 136, 18944],
        [13, 2112, 1536],
        [8, 4104, 1536],
        [1, 4104, 4112],
        [7, 24584, 288],
        [17, 4104, 1536],
        [33, 72, 18944],
        [48, 4104, 544],
        [64, 2112, 1536],
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        for pair in [PAIRS[i % 4], PAIRS[4 + i % 2], PAIRS[6 + i % 2], PAIRS[8 + i % 3]] {
            let out = if shape[2] > 1536 { DType::F32 } else { DType::Bf16 };
            worst = worst.max(check(&handle, &mut rng, shape, pair, Case::new(out), one_of_each(i)));
        }
    }
    // With all pairs in turn.
    for (i, shape) in decode_shapes(64, 16).enumerate() {
        let out = if shape[2] > 1536 { DType::F32 } else { DType::Bf16 };
        let pair = PAIRS[i % PAIRS.len()];
        worst = worst.max(check(&handle, &mut rng, shape, pair, Case::new(out), one_of_each(i)));
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// Every code with scales of many sizes, with MXFP8 every scale byte but NaN: what is decoded is what the reference does, one at a time. Nothing rounds, so
/// that D is the exact product, wherever that is no smaller than what tensor cores may take for zero.
#[test]
fn every_code_and_scale() {
    let Some(handle) = decoding() else { return };
    let (n, k) = (256, 512);
    for (b, m) in [MX, VECTORS, TILES, ROW, TENSOR].into_iter().flat_map(|b| [8, 16, 32, 64].map(|m| (b, m))) {
        let byte = |block: usize| (block % 255) as u8;
        // All 256 in each row, from another one on in each; NaN, and what E8M0 makes infinite, is another test's.
        let code = |i: usize, j: usize| {
            let code = ((j * 5 + i * 3) % 256) as u8;
            let largest = if b == MX && byte(i * 16 + j / 32) > 246 { 0x3F } else { 0x7F };
            let code = if code & 0x7F == 0x7F { code ^ 1 } else { code };
            code & (0x80 | largest)
        };
        let codes: Vec<u8> = (0..n * k).map(|at| code(at / k, at % k)).collect();
        let host_b = if b == MX {
            let scales: Vec<u8> = (0..n * k / 32).map(byte).collect();
            HostQuantMatrix::from_block_logical(b, n, k, codes, &[], &scales).unwrap()
        } else {
            let [rows, cols] = b.scale_grid(n, k);
            // Powers of two, so that nothing rounds.
            let scales: Vec<f32> = (0..rows * cols).map(|i| 2f32.powi((i * 7 % 41) as i32 - 20)).collect();
            HostQuantMatrix::from_logical(b, n, k, codes, &scales).unwrap()
        };
        let values = reference::dequantize(&host_b, DType::F32);
        for dtype in [DType::Bf16, DType::F16].into_iter().filter(|dtype| b != MX || *dtype == DType::Bf16) {
            let case = Case::new(DType::F32);
            for first in 0..k / m {
                // Rows of A that pick one column each.
                let column = |i: usize| i * (k / m) + first;
                let x = Array2::from_shape_fn((m, k), |(i, j)| if j == column(i) { 1.0 } else { 0.0 });
                let ops = PlainOperands::of(&handle, &x, dtype, 8, host_b.clone());
                let extras = Extras::new(&handle, &mut Noise::new(284), m, n, &[0]);
                for config in one_of_each(first) {
                    let stored =
                        execute(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
                    for ((i, j), got) in stored.values(&ops, &case).indexed_iter() {
                        let want = values[[j, column(i)]];
                        // BF16 rounds what is below its subnormals' step, of 2^-133.
                        let near = *got == 0.0 || (got - want).abs() <= f32::from_bits(1 << 15);
                        let lost = want.abs() < f32::MIN_POSITIVE && near;
                        assert!(*got == want || lost, "{b}, {config}: {got:e} for {want:e} at {j}, {}", column(i));
                    }
                }
            }
        }
    }
}

/// Every bias, activation, residual and output type in the kernel itself.
#[test]
fn epilogues() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(285);
    for (j, pair) in PAIRS.into_iter().enumerate() {
        for m in [3, 16, 31, 64] {
            let both = new(&handle, &mut rng, [m, 136, 416], pair);
            let extras = Extras::new(&handle, &mut rng, m, 136, &[0, 8]);
            with!(&both, |ops| {
                let sums = ops.sums(Accumulation::Precise);
                for (i, case) in epilogue_cases(17, 8).chain([layer()]).enumerate() {
                    check_with(&handle, ops, &extras, &sums, case, one_of_each(i + j));
                }
                let plan = plan(&handle, &layer().desc(ops), Formulation::SmallM);
                let a_bytes = if pair.0.scheme().is_some() { m * 416 * 2 } else { 0 };
                // Before clusters also the sums of up to eight parts of k, and on sm_90 A in the order of warpgroup products, and the sums of a split into six, which meet in memory alone.
                let hopper = handle.device().compute_capability == (9, 0);
                let arranged = if hopper && m == 64 { 64 * 512 * 2 + 6 * 64 * 136 * 4 } else { 0 };
                let behind = if clusters() { arranged } else { 8 * m * 136 * 4 };
                let bytes = if behind > 0 { a_bytes.next_multiple_of(256) + behind } else { a_bytes };
                assert_eq!((plan.finish(), plan.workspace_bytes()), (Finish::Fused, bytes), "{}", plan.explain());
            });
        }
    }
}

/// All operands in one allocation, 0xFF between them, D, a bias and a residual at no more than their own size: the bits of operands apart, and nothing but D is written.
#[test]
fn operands_between_guards() {
    let Some(handle) = decoding() else { return };
    let shapes =
        [[1, 8, 32], [9, 72, 160], [16, 136, 1056], [17, 2056, 160], [33, 72, 416], [64, 264, 2080], [64, 264, 1568]];
    check_between_guards(&handle, 295, &PAIRS, &shapes, |both| both, |_, turn| one_of_each(turn));
}

/// With `beta = 0` D's old value, NaN here, is not read.
#[test]
fn beta_zero_reads_nothing() {
    let Some(handle) = decoding() else { return };
    check_beta_zero(&handle, 286, [5, 72, 144], &PAIRS);
}

/// Activations near both ends of BF16's range, and weights whose FP32 scales are as far away.
#[test]
fn activations_and_weights_of_any_size() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(294);
    let (m, n, k) = (11, 72, 576);
    for b in [TENSOR, ROW, VECTORS, TILES, MX] {
        for (size, weight, alpha) in [(1e-37, 1.0, 1e30), (1e32, 1.0, 1e-30), (1e25, 1e-30, 1.0), (1e-25, 1e30, 1.0)] {
            let x = blocked(&mut rng, m, k).mapv(|v| v * size);
            let w = blocked(&mut rng, n, k).mapv(|v| v * weight);
            let both = operands(&handle, &x, quantized(&w, b), BF16);
            let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
            let case = Case { alpha, ..Case::new(DType::F32) };
            with!(&both, |ops| {
                check_with(&handle, ops, &extras, &ops.sums(Accumulation::Precise), case, all());
            });
        }
    }
}

/// A NaN of A stays in its row, a NaN code or scale of B in its column, and what no memory holds changes none.
#[test]
fn not_a_number_stays_where_it_is() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(288);
    let (n, k) = (136, 416);
    for ((a, b), m) in PAIRS.into_iter().take(9).flat_map(|pair| [5, 13, 20, 40].map(|m| (pair, m))) {
        let host_b = quantized(&blocked(&mut rng, n, k), b);
        let mut codes = host_b.logical_codes().to_vec();
        codes[3 * k + 5] = 0x7F;
        codes[100 * k + k - 1] = 0xFF;
        let host_b = if b == MX {
            let mut scales = host_b.logical_block_scales();
            let blocks = scales.len() / n;
            scales[60 * blocks + blocks - 1] = 0xFF;
            HostQuantMatrix::from_block_logical(b, n, k, codes, &[], &scales).unwrap()
        } else {
            HostQuantMatrix::from_logical(b, n, k, codes, &host_b.logical_scales()).unwrap()
        };
        let columns: &[usize] = if b == MX { &[3, 60, 100] } else { &[3, 100] };
        let mut x = blocked(&mut rng, m, k);
        x[[4, 409]] = f32::NAN;
        x[[1, 0]] = f32::NAN;
        let both = operands(&handle, &x, host_b, a);
        let (case, extras) = (Case::new(DType::F32), Extras::new(&handle, &mut rng, m, n, &[]));
        with!(&both, |ops| for config in all() {
            let stored = execute(&handle, &mut planned(&handle, &case.desc(ops), config), ops, &extras, &case);
            for ((row, col), v) in stored.values(ops, &case).indexed_iter() {
                let nan = [1, 4].contains(&row) || columns.contains(&col);
                assert!(if nan { v.is_nan() } else { v.is_finite() }, "{a} x {b}, {config}: {v} at {row}, {col}");
            }
        });
    }
}

/// In one configuration a row of D has the same bits whatever m is, and with it the width of the product, and wherever the row stands.
#[test]
fn equal_rows_have_equal_results() {
    let Some(handle) = decoding() else { return };
    let pairs = [(BF16, TILES), (F16, VECTORS), (BF16, ROW), (BF16, MX)];
    let configs: Vec<_> = all().map(|config| (config, 64)).collect();
    check_equal_rows(&handle, [289, 290], 1168, &pairs, &configs);
}

#[test]
fn graphs_give_the_eager_bits_and_follow_both_operands() {
    let Some(handle) = decoding() else { return };
    let configs = [5, 12, 50, 29].into_iter().flat_map(|m| all().map(move |config| (m, config)));
    check_graphs(&handle, 291, &PAIRS, configs);
}

/// Products back to back, each behind the one before it: tens of thousands of launches, of clusters of every size in turn, and then the right bits.
#[test]
fn long_chains() {
    let Some(handle) = decoding() else { return };
    let configs = (0..8).flat_map(|_| all()).enumerate();
    check_long_chains(&handle, 292, 2064, &PAIRS, configs.map(|(i, config)| (1 + 9 * i % 64, config)));
}

/// It is planned for every pair; of MXFP8 weights also where they keep their values, which it does not read.
#[test]
fn few_rows_are_planned_so() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(293);
    for (a, b) in PAIRS {
        let both = new(&handle, &mut rng, [7, 136, 2064], (a, b));
        let extras = Extras::new(&handle, &mut rng, 7, 136, &[]);
        with!(&both, |ops| {
            let case = Case::new(DType::Bf16);
            let mut codes = handle.plan(&case.desc(ops)).unwrap();
            assert_eq!(codes.formulation(), Formulation::SmallM, "{}", codes.explain());
            assert!(codes.explain().contains("small-m, fused: one pass over B"), "{}", codes.explain());
            let want = execute(&handle, &mut codes, ops, &extras, &case);
            if b != MX {
                refused(ops.b().keep_dequantized(&handle, DType::Bf16), &["fp8", "block-scaled"]);
                return;
            }
            ops.b().keep_dequantized(&handle, DType::Bf16).unwrap();
            let mut kept = handle.plan(&case.desc(ops)).unwrap();
            assert_eq!(kept.desc().kept, KeptWeights::Dequantized(DType::Bf16));
            assert_eq!(kept.formulation(), Formulation::SmallM, "{}", kept.explain());
            assert!(kept.explain().contains("not the values that it keeps"), "{}", kept.explain());
            assert!(execute(&handle, &mut kept, ops, &extras, &case) == want, "{a} x {b}");
        });
    }
}

#[test]
fn what_it_does_not_do_is_refused_with_the_reason() {
    let Some(handle) = decoding() else { return };
    let ask = |desc: GemmDesc| {
        desc.check("test").unwrap();
        handle.plan_with(&desc, &PlanOptions::default().with_formulation(Formulation::SmallM))
    };
    let desc = |m, (a, b): Pair| GemmDesc::new(m, 520, 576, a, b, DType::Bf16);
    for pair in PAIRS.into_iter().filter(|pair| pair.1 == MX) {
        refused(
            ask(desc(65, pair)),
            &["small-m", &format!("at most 64 rows of A with {} weights, and m = 65", pair.1)],
        );
    }
    let wide = Scheme::Fp8Row(Fp8Format::E5M2);
    refused(handle.plan(&desc(65, (BF16, wide))), &["plain activations as E4M3", "quantize A"]);
    // A record of it is for its own weights.
    let record = ask(desc(7, (BF16, TILES))).unwrap().record().unwrap().to_json().unwrap();
    for block in SmallMBlock::ALL.into_iter().filter(|block| block.operands() != SmallMOperands::E4m3Weights) {
        let mut value: serde_json::Value = serde_json::from_str(&record).unwrap();
        *value.pointer_mut("/algorithm/small-m/block").unwrap() = block.name().into();
        let forged = TuneRecord::from_json(&value.to_string()).unwrap();
        let planned = handle.plan_with(&desc(7, (BF16, TILES)), &PlanOptions::default().with_record(forged));
        refused(planned, &["tuning record refused", "small-m has no such algorithm for bf16 x fp8-128x128"]);
    }
    // An A that is not 16-byte aligned, one whose rows are not, and one of another type.
    let (x, mut buffer) = (poisoned(&handle, 8192), poisoned(&handle, 4096));
    let b = QuantMatrix::zeros(&handle, TILES, 16, 64).unwrap();
    let a = |offset: usize, dtype, stride| MatRef::new(x.slice(offset..), dtype, 4, 64)?.with_row_stride(stride);
    let mut product = |a: MatRef<'_>| {
        let d = MatMut::new(&mut buffer, DType::Bf16, 4, 16).unwrap();
        handle.scaled_gemm(GemmArgs::weight_only(a, &b, d))
    };
    refused(product(a(8, DType::Bf16, 64).unwrap()), &["A: address 0x", "16-byte aligned"]);
    refused(product(a(0, DType::Bf16, 68).unwrap()), &["A: row stride 68", "multiple of 8"]);
    refused(product(a(0, DType::F32, 64).unwrap()), &["f32 x fp8-128x128", "quantize A as fp8-1x128"]);
    product(a(16, DType::F16, 72).unwrap()).unwrap();
    // No rows, no work.
    let mut plan = ask(GemmDesc::new(0, 16, 64, BF16, TILES, DType::Bf16)).unwrap();
    let a = MatRef::new(&x, DType::Bf16, 0, 64).unwrap();
    let d = MatMut::new(&mut buffer, DType::Bf16, 0, 16).unwrap();
    plan.execute(&handle, GemmArgs::weight_only(a, &b, d)).unwrap();
}
