//! Our product of few rows with E2M1 weights: every scheme of weights, A plain or quantized, and every configuration within the f64 bound at shapes that cut
//! tiles, steps and splits, with every epilogue; the same bits from run to run, in graphs and whatever rows stand beside a row; refusals in words.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "common/guarded_weights.rs"]
mod guarded_weights;
#[path = "gpu_small_m_e2m1/one_row.rs"]
mod one_row;
#[path = "common/repacked.rs"]
mod repacked;
#[path = "common/small_m_weights.rs"]
mod small_m_weights;
#[path = "common/told.rs"]
mod told;

use common::gemm::*;
use common::*;
use guarded_weights::check_between_guards;
use ndarray::Array2;
use scaled_gemm::reference::{self, Gelu};
use scaled_gemm::{
    Accumulation, DType, Finish, Formulation, Fp8Format, GemmArgs, GemmDesc, HostQuantMatrix, KeptWeights, MatMut,
    MatRef, Operand, PlanOptions, QuantMatrix, Scheme, SmallMBlock, SmallMConfig, SmallMOperands, TuneRecord,
};
use small_m_weights::*;

const NV: Scheme = Scheme::Nvfp4;
const NV_ROW: Scheme = Scheme::Nvfp4Row;
const MX4: Scheme = Scheme::Mxfp4;

/// Every kind of A that each scheme of weights multiplies here.
const PAIRS: [Pair; 12] = [
    (BF16, NV),
    (F16, NV),
    (BF16, NV_ROW),
    (F16, NV_ROW),
    (BF16, MX4),
    (Operand::Quantized(NV), NV),
    (Operand::Quantized(NV), NV_ROW),
    (Operand::Quantized(NV_ROW), NV),
    (Operand::Quantized(NV_ROW), NV_ROW),
    (Operand::Quantized(MX4), MX4),
    (Operand::Quantized(Scheme::Mxfp8(Fp8Format::E4M3)), MX4),
    (Operand::Quantized(Scheme::Mxfp8(Fp8Format::E5M2)), MX4),
];

fn blocks(m: usize) -> impl Iterator<Item = SmallMBlock> {
    blocks_of(SmallMOperands::E2m1Weights, m)
}

fn all(m: usize) -> impl Iterator<Item = SmallMConfig> {
    all_of(SmallMOperands::E2m1Weights, m)
}

/// The most rows that a configuration multiplies.
fn most_of(config: SmallMConfig) -> usize {
    if blocks(64).any(|block| block == config.block()) { 64 } else { 16 }
}

fn one_of_each(m: usize, turn: usize) -> impl Iterator<Item = SmallMConfig> {
    one_of_each_of(SmallMOperands::E2m1Weights, m, turn)
}

/// Small, for runs under a sanitizer: each kernel, and each split.
#[test]
fn each_kernel_once() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(181);
    for (i, m) in [1, 16, 31, 48, 63].into_iter().enumerate() {
        for (j, pair) in [(BF16, NV), (F16, NV_ROW), (BF16, MX4), PAIRS[7]].into_iter().enumerate() {
            let case = Case { gap: 8, ..Case::new(WIDE[(i + j) % 3]) };
            check(&handle, &mut rng, [m, 136, 1056], pair, case, one_of_each(m, i + j));
        }
    }
}

/// Rows of A above 16: about those where the columns of a kernel end.
const MORE: [usize; 8] = [17, 24, 31, 32, 33, 48, 63, 64];

/// Every pair at shapes that cut tiles of 128 rows and steps of 128 of k, in every configuration.
#[test]
fn shapes_that_cut_tiles_steps_and_splits() {
    let Some(handle) = decoding() else { return };
    let (mut rng, mut worst) = (Noise::new(182), 0f64);
    for (i, k) in [32, 96, 128, 160, 1536].into_iter().enumerate() {
        for (j, n) in [8, 72, 128, 136].into_iter().enumerate() {
            for (l, pair) in PAIRS.into_iter().enumerate() {
                // All of 1 to 16 and of the others, over pairs and shapes.
                let more = MORE[(3 * i + 5 * j + l) % 8];
                for m in [1 + (i + 3 * j + 5 * l) % 8, 9 + (5 * i + j + 3 * l) % 8, more] {
                    let case = Case { gap: [0, 8, 40][(i + j) % 3], ..Case::new(WIDE[(i + l + m) % 3]) };
                    worst = worst.max(check(&handle, &mut rng, [m, n, k], pair, case, all(m)));
                }
            }
        }
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// Many tiles, as published shapes have them, a long k, and more blocks than run at once.
#[test]
fn large_shapes() {
    let Some(handle) = decoding() else { return };
    let (mut rng, mut worst) = (Noise::new(183), 0f64);
    let shapes = [
        [3, 264, 18944],
        [16, 136, 18944],
        [13, 2112, 1536],
        [8, 4104, 1536],
        [1, 4104, 4128],
        [7, 24584, 288],
        [17, 4104, 1536],
        [32, 2112, 1536],
        [33, 136, 18944],
        [48, 4104, 544],
        [64, 72, 18944],
        [63, 2112, 1536],
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        for pair in [(BF16, NV), (F16, NV_ROW), (BF16, MX4), PAIRS[8]] {
            let out = if shape[2] > 1536 { DType::F32 } else { DType::Bf16 };
            worst = worst.max(check(&handle, &mut rng, shape, pair, Case::new(out), one_of_each(shape[0], i)));
        }
    }
    // With all pairs in turn.
    for (i, shape) in decode_shapes(64, 32).enumerate() {
        let out = if shape[2] > 1536 { DType::F32 } else { DType::Bf16 };
        let pair = PAIRS[i % PAIRS.len()];
        worst = worst.max(check(&handle, &mut rng, shape, pair, Case::new(out), one_of_each(shape[0], i)));
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// Every code with every scale byte but NaN, in every kernel: what each decodes is what the reference does, one at a time. Nothing rounds, so that D is the
/// exact product, wherever that is no smaller than what tensor cores may take for zero.
#[test]
fn every_code_and_block_scale() {
    let Some(handle) = decoding() else { return };
    let (n, k) = (512, 512);
    for (b, m) in [NV, MX4].into_iter().flat_map(|b| [16, 32, 64].map(|m| (b, m))) {
        let width = if b == NV { 16 } else { 32 };
        let blocks = k / width;
        // NVFP4: the sign bit of a scale counts as nothing, NaN is at 127 and 255. MXFP4: NaN is at 255.
        let byte = |block: usize| match b {
            NV => (block % 254 + usize::from(block % 254 >= 127)) as u8,
            _ => (block % 255) as u8,
        };
        // All 16 in each block, from another one on in each; of the two largest scales those that stay finite.
        let code = |i: usize, j: usize| {
            let (block, code) = (i * blocks + j / width, (j + j / width + i) % 16);
            let magnitude = match byte(block) {
                254 if b == MX4 => code % 8 % 4,
                253 if b == MX4 => code % 8 % 6,
                _ => code % 8,
            };
            (magnitude | code & 8) as u8
        };
        let pairs = (0..n * k / 2).map(|at| (2 * at / k, 2 * at % k));
        let codes: Vec<u8> = pairs.map(|(i, j)| code(i, j) | code(i, j + 1) << 4).collect();
        let scales: Vec<u8> = (0..n * blocks).map(byte).collect();
        let seen: std::collections::HashSet<_> =
            (0..n * k).map(|at| (byte(at / width), code(at / k, at % k))).collect();
        assert_eq!(seen.len(), if b == NV { 254 * 16 } else { 253 * 16 + 12 + 8 });
        let outer = if b == NV { vec![0.5] } else { Vec::new() };
        let host_b = HostQuantMatrix::from_block_logical(b, n, k, codes, &outer, &scales).unwrap();
        let values = reference::dequantize(&host_b, DType::F32);
        for dtype in [DType::Bf16, DType::F16].into_iter().filter(|dtype| b == NV || *dtype == DType::Bf16) {
            let case = Case::new(DType::F32);
            for first in 0..k / m {
                // Rows of A that pick one column each.
                let column = |i: usize| i * (k / m) + first;
                let x = Array2::from_shape_fn((m, k), |(i, j)| if j == column(i) { 1.0 } else { 0.0 });
                let ops = PlainOperands::of(&handle, &x, dtype, 8, host_b.clone());
                let extras = Extras::new(&handle, &mut Noise::new(184), m, n, &[0]);
                for config in one_of_each(m, first) {
                    let stored =
                        execute(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
                    for ((i, j), got) in stored.values(&ops, &case).indexed_iter() {
                        let want = values[[j, column(i)]];
                        let lost = *got == 0.0 && want.abs() < f32::MIN_POSITIVE;
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
    let mut rng = Noise::new(185);
    for (j, pair) in [(BF16, NV), (F16, NV_ROW), (BF16, MX4), PAIRS[6], PAIRS[7]].into_iter().enumerate() {
        for m in [3, 16, 31, 64] {
            let both = new(&handle, &mut rng, [m, 136, 416], pair);
            let extras = Extras::new(&handle, &mut rng, m, 136, &[0, 8]);
            with!(&both, |ops| {
                let sums = ops.sums(Accumulation::Precise);
                for (i, case) in epilogue_cases(17, 8).chain([layer()]).enumerate() {
                    check_with(
                        &handle,
                        ops,
                        &extras,
                        &sums,
                        case,
                        one_of_each(m, i / 9).skip((i / 5 + j) % blocks(m).count()).take(1),
                    );
                }
                let plan = plan(&handle, &layer().desc(ops), Formulation::SmallM);
                let a_bytes = if pair.0.scheme().is_some() { m * 416 * 2 } else { 0 };
                // Before clusters also the sums of up to eight parts of k, and on sm_90 A in the order of warpgroup products, and the sums of a split into six, which meet in memory alone.
                let hopper = handle.device().compute_capability == (9, 0);
                let width = if m == 31 { 32 } else { 64 };
                let bytes = (width * 512 * 2 + 6 * m * 136 * 4_usize).next_multiple_of(128);
                let arranged = if hopper && m > 16 { bytes } else { 0 };
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
    let shapes = [[1, 8, 32], [9, 72, 160], [16, 136, 1056], [17, 72, 416], [33, 72, 416], [64, 264, 2080]];
    check_between_guards(&handle, 197, &PAIRS, &shapes, |both| both, one_of_each);
}

/// With `beta = 0` D's old value, NaN here, is not read.
#[test]
fn beta_zero_reads_nothing() {
    let Some(handle) = decoding() else { return };
    check_beta_zero(&handle, 186, [5, 72, 160], &PAIRS);
}

/// Second-level scales whose product overflows FP32, and an alpha that brings the result back.
#[test]
fn large_second_levels_do_not_overflow() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(187);
    let (m, n, k) = (7, 72, 576);
    let (x, w) = (blocked(&mut rng, m, k).mapv(|v| v * 1e35), blocked(&mut rng, n, k).mapv(|v| v * 1e20));
    for (a, b) in PAIRS.into_iter().filter(|(a, _)| a.scheme().is_some_and(Scheme::is_nvfp4)) {
        let both = operands(&handle, &x, quantized(&w, b), a);
        let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
        with!(&both, |ops| {
            let scale = |q: &HostQuantMatrix| q.scales().iter().copied().fold(0.0, f32::max);
            let quantized_a = ops.host_a().quantized().map(scale).unwrap();
            assert!((quantized_a * scale(ops.host_b())).is_infinite());
            let case = Case { alpha: 1e-30, ..Case::new(DType::F32) };
            let d = reference::scaled_gemm(&extras.inputs(ops, &case)).unwrap();
            assert!(d.iter().all(|v| v.is_finite()) && d.iter().any(|v| v.abs() > 1e20), "{a} x {b}");
            check_with(&handle, ops, &extras, &ops.sums(Accumulation::Precise), case, all(m));
        });
    }
}

/// Activations near both ends of BF16's range: what the kernel multiplies codes by, and takes back at the end, leaves no room of its own.
#[test]
fn activations_of_any_size() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(194);
    let (m, n, k) = (11, 72, 576);
    for (a, b) in [(BF16, NV), (BF16, NV_ROW), (BF16, MX4)] {
        for (size, alpha) in [(1e-37, 1e30), (1e32, 1e-30)] {
            let x = blocked(&mut rng, m, k).mapv(|v| v * size);
            let both = operands(&handle, &x, quantized(&blocked(&mut rng, n, k), b), a);
            let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
            let case = Case { alpha, ..Case::new(DType::F32) };
            with!(&both, |ops| {
                check_with(&handle, ops, &extras, &ops.sums(Accumulation::Precise), case, all(m));
            });
        }
    }
}

/// A NaN of A stays in its row, a NaN scale of B in its column, and what no memory holds changes none.
#[test]
fn not_a_number_stays_where_it_is() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(188);
    let (n, k) = (136, 416);
    let pairs = [(BF16, NV), (F16, NV), (BF16, NV_ROW), (BF16, MX4), PAIRS[7], PAIRS[9]];
    for ((a, b), m) in pairs.into_iter().flat_map(|pair| [13, 40].map(|m| (pair, m))) {
        let host_b = quantized(&blocked(&mut rng, n, k), b);
        let (mut scales, nan) = (host_b.logical_block_scales(), if b.is_nvfp4() { 0x7F } else { 0xFF });
        let blocks = scales.len() / n;
        scales[100 * blocks + blocks - 1] = nan;
        scales[3 * blocks + 5] = nan;
        let outer = host_b.logical_scales();
        let codes = host_b.logical_codes().to_vec();
        let host_b = HostQuantMatrix::from_block_logical(b, n, k, codes, &outer, &scales).unwrap();
        let mut x = blocked(&mut rng, m, k);
        let both = match a {
            Operand::Plain(dtype) => {
                x[[7, 409]] = f32::NAN;
                x[[11, 0]] = f32::NAN;
                Both::Plain(PlainOperands::of(&handle, &x, dtype, 8, host_b))
            }
            Operand::Quantized(scheme) => {
                let q = quantized(&x, scheme);
                let mut scales = q.logical_block_scales();
                let blocks = scales.len() / m;
                for row in [7, 11] {
                    scales[row * blocks + row] = if scheme.is_nvfp4() { 0x7F } else { 0xFF };
                }
                let (codes, outer) = (q.logical_codes().to_vec(), q.logical_scales());
                let q = HostQuantMatrix::from_block_logical(scheme, m, k, codes, &outer, &scales).unwrap();
                Both::Quantized(Operands::of(&handle, q, host_b))
            }
        };
        let (case, extras) = (Case::new(DType::F32), Extras::new(&handle, &mut rng, m, n, &[]));
        with!(&both, |ops| for config in all(m) {
            let stored = execute(&handle, &mut planned(&handle, &case.desc(ops), config), ops, &extras, &case);
            for ((row, col), v) in stored.values(ops, &case).indexed_iter() {
                let nan = [7, 11].contains(&row) || [3, 100].contains(&col);
                assert!(if nan { v.is_nan() } else { v.is_finite() }, "{a} x {b}, {config}: {v} at {row}, {col}");
            }
        });
    }
}

/// In one configuration a row of D has the same bits whatever m is, and with it the width of the product, and wherever the row stands.
#[test]
fn equal_rows_have_equal_results() {
    let Some(handle) = decoding() else { return };
    let pairs = [(BF16, NV), (F16, NV_ROW), (BF16, MX4), (Operand::Quantized(NV_ROW), NV)];
    let configs: Vec<_> = all(1).map(|config| (config, most_of(config))).collect();
    check_equal_rows(&handle, [189, 190], 1184, &pairs, &configs);
}

#[test]
fn graphs_give_the_eager_bits_and_follow_both_operands() {
    let Some(handle) = decoding() else { return };
    let configs = [12, 50, 12, 29].into_iter().flat_map(|m| all(m).map(move |config| (m, config)));
    check_graphs(&handle, 191, &PAIRS, configs);
}

/// D may begin at any multiple of 16 bytes, and so may its rows.
#[test]
fn d_at_any_16_bytes() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(195);
    let (n, k) = (136, 416);
    let cases = [(7, DType::Bf16, (BF16, NV)), (9, DType::F16, (F16, NV)), (16, DType::F32, (BF16, MX4))];
    for (m, out, pair) in cases.into_iter().chain([(33, DType::Bf16, (BF16, NV)), (64, DType::F32, (F16, NV))]) {
        let both = new(&handle, &mut rng, [m, n, k], pair);
        let (size, gap) = (out.bytes(), 16 / out.bytes());
        let case = Case { gap, ..Case::new(out) };
        with!(&both, |ops| for config in one_of_each(m, 1) {
            let mut plan = planned(&handle, &case.desc(ops), config);
            let mut at = |offset: usize| {
                let mut buffer = poisoned(&handle, 64 + m * (n + gap) * size);
                let mut view = buffer.slice_mut(offset..offset + (m * (n + gap) - gap) * size);
                let d = MatMut::new(&mut view, out, m, n).unwrap().with_row_stride(n + gap).unwrap();
                plan.execute(&handle, ops.call(d)).unwrap();
                let bytes = handle.stream().clone_dtoh(&buffer).unwrap();
                let (before, rest) = bytes.split_at(offset);
                let (rows, after) = rest.split_at((m * (n + gap) - gap) * size);
                let gaps = rows.chunks((n + gap) * size).flat_map(|row| row.iter().skip(n * size));
                assert!(before.iter().chain(gaps).chain(after).all(|byte| *byte == 0xFF), "{config}: beside D");
                rows.to_vec()
            };
            let aligned = at(0);
            assert!(at(16) == aligned && at(48) == aligned, "{config}");
        });
    }
}

/// Products back to back, each behind the one before it: tens of thousands of launches, of clusters of every size in turn, and then the right bits.
#[test]
fn long_chains() {
    let Some(handle) = decoding() else { return };
    let configs = all(16).chain(all(16)).chain(all(64)).enumerate();
    // Of tiles as many as they serve.
    let most = |i: usize, config| if most_of(config) == 64 { 1 + 9 * i % 64 } else { 1 + i % 16 };
    check_long_chains(&handle, 192, 2080, &PAIRS, configs.map(|(i, config)| (most(i, config), config)));
}

/// It comes first, also where B keeps its values, which it does not read.
#[test]
fn kept_values_are_not_read() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(193);
    for (a, b) in PAIRS {
        let both = new(&handle, &mut rng, [9, 136, 2080], (a, b));
        let extras = Extras::new(&handle, &mut rng, 9, 136, &[]);
        with!(&both, |ops| {
            let case = Case::new(DType::Bf16);
            let mut codes = handle.plan(&case.desc(ops)).unwrap();
            assert_eq!(codes.formulation(), Formulation::SmallM, "{}", codes.explain());
            assert!(codes.explain().contains("small-m, fused: one pass over B"), "{}", codes.explain());
            let quantized = a.scheme().is_some();
            assert_eq!(
                codes.explain().contains("A dequantized to bf16 in each call"),
                quantized,
                "{}",
                codes.explain()
            );
            let want = execute(&handle, &mut codes, ops, &extras, &case);
            let dtype = if a == F16 { DType::F16 } else { DType::Bf16 };
            ops.b().keep_dequantized(&handle, dtype).unwrap();
            let mut kept = handle.plan(&case.desc(ops)).unwrap();
            assert_eq!(kept.desc().kept, KeptWeights::Dequantized(dtype));
            assert_eq!(kept.formulation(), Formulation::SmallM, "{}", kept.explain());
            assert!(kept.explain().contains("not the values that it keeps"), "{}", kept.explain());
            assert!(execute(&handle, &mut kept, ops, &extras, &case) == want, "{a} x {b}");
        });
    }
}

/// Above 16 rows kept values come first, whoever does the epilogue of their product, and above 32 all but what is asked for; the results agree.
#[test]
fn kept_values_come_first_above_sixteen_rows() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(196);
    for ((a, b), m) in PAIRS.into_iter().flat_map(|pair| [17, 32, 33].map(|m| (pair, m))) {
        let both = new(&handle, &mut rng, [m, 136, 1056], (a, b));
        let extras = Extras::new(&handle, &mut rng, m, 136, &[]);
        with!(&both, |ops| {
            let (case, sums) = (Case::new(DType::Bf16), ops.sums(Accumulation::Precise));
            let bound = sums.with(&extras.inputs(ops, &case), Gelu::Ieee).unwrap();
            let first = |wanted: Formulation| {
                let mut plan = handle.plan(&case.desc(ops)).unwrap();
                assert_eq!(plan.formulation(), wanted, "{}", plan.explain());
                let stored = execute(&handle, &mut plan, ops, &extras, &case);
                bound.check(stored.values(ops, &case).view()).unwrap_or_else(|e| panic!("{e}\n{}", plan.explain()));
            };
            first(if m <= 32 { Formulation::SmallM } else { Formulation::DequantizedBf16 });
            ops.b().keep_dequantized(&handle, if a == F16 { DType::F16 } else { DType::Bf16 }).unwrap();
            first(Formulation::DequantizedBf16);
            assert!(handle.supports(&case.desc(ops)).unwrap().contains(&Formulation::SmallM));
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
    let desc = |m, k, (a, b): Pair| GemmDesc::new(m, 520, k, a, b, DType::Bf16);
    let good = desc(7, 576, (BF16, NV));
    refused(ask(desc(65, 576, (BF16, NV))), &["small-m", "at most 64 rows of A with nvfp4 weights, and m = 65"]);
    refused(ask(desc(7, 560, (BF16, MX4))), &["small-m", "multiples of 32, and k = 560", "supports"]);
    refused(ask(desc(7, 576, (F16, MX4))), &["small-m", "f16 x mxfp4 is a product in f16", "supports"]);
    let mx = Scheme::Mxfp8(Fp8Format::E5M2);
    refused(ask(desc(7, 576, (BF16, mx))), &["small-m", "mxfp4 and mxfp8:e4m3 weights", "supports"]);
    // A record of it is for its own weights, rows and k, and its algorithm for its own codes.
    let record = ask(good).unwrap().record().unwrap().to_json().unwrap();
    let block = |text: &str| {
        let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
        *value.pointer_mut("/algorithm/small-m/block").unwrap() = "two".into();
        value.to_string()
    };
    let fp8 = "fp8-row:e4m3";
    let of_fp8 =
        GemmDesc::new(7, 520, 576, Scheme::Fp8Row(Fp8Format::E4M3), Scheme::Fp8Row(Fp8Format::E4M3), DType::Bf16);
    for (text, why, wanted) in [
        (record.replacen("\"m\": 7", "\"m\": 65", 1), "at most 64 rows", desc(65, 576, good_pair())),
        (record.replacen("\"m\": 7", "\"m\": 17", 1), "for bf16 x nvfp4 and m = 17", desc(17, 576, good_pair())),
        (record.replacen("\"k\": 576", "\"k\": 560", 1), "multiples of 32", desc(7, 560, good_pair())),
        (block(&record), "small-m has no such algorithm for bf16 x nvfp4", good),
        (
            record.replacen("\"a\": \"bf16\"", &format!("\"a\": \"{fp8}\""), 1).replacen(
                "\"b\": \"nvfp4\"",
                &format!("\"b\": \"{fp8}\""),
                1,
            ),
            if handle.device().compute_capability < (8, 9) {
                "no FP8 tensor cores (sm_89 and up have)"
            } else {
                "small-m has no such algorithm for fp8-row"
            },
            of_fp8,
        ),
    ] {
        assert_ne!(text, record);
        let forged = TuneRecord::from_json(&text).unwrap();
        let planned = handle.plan_with(&wanted, &PlanOptions::default().with_record(forged));
        refused(planned, &["tuning record refused", why]);
    }
    for m in [17, 64] {
        assert_ne!(handle.plan(&desc(m, 576, good_pair())).unwrap().formulation(), Formulation::SmallM);
    }
    // An A that is not 16-byte aligned.
    let (x, mut buffer) = (poisoned(&handle, 4096), poisoned(&handle, 4096));
    let b = QuantMatrix::zeros(&handle, NV, 16, 64).unwrap();
    let a = MatRef::new(x.slice(8..), DType::Bf16, 4, 64).unwrap();
    let d = MatMut::new(&mut buffer, DType::Bf16, 4, 16).unwrap();
    refused(handle.scaled_gemm(GemmArgs::weight_only(a, &b, d)), &["A: address 0x", "16-byte aligned"]);
    // No rows, no work.
    let mut plan = ask(desc(0, 64, good_pair())).unwrap();
    let b = QuantMatrix::zeros(&handle, NV, 520, 64).unwrap();
    let a = MatRef::new(&x, DType::Bf16, 0, 64).unwrap();
    let d = MatMut::new(&mut buffer, DType::Bf16, 0, 520).unwrap();
    plan.execute(&handle, GemmArgs::weight_only(a, &b, d)).unwrap();
}

fn good_pair() -> Pair {
    (BF16, NV)
}
