//! More rows than tiles of few rows hold, in passes over weights that are decoded in each: where nothing else multiplies them within the f64 bound, and where a row
//! is to have the same bits for every m, at any place and beside any rows, those bits.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/small_m_weights.rs"]
#[allow(dead_code, unused_imports, reason = "what is for few rows is the other suites'")]
mod small_m_weights;

use common::gemm::*;
use common::*;
use ndarray::{Array2, s};
use scaled_gemm::reference::Gelu;
use scaled_gemm::{
    Accumulation, CodeOrder, DType, Finish, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle, MatMut,
    MatRef, Operand, PlanOptions, QuantMatrix, Scheme, SmallMConfig, SmallMOperands, TuneRecord, VecRef,
};
use small_m_weights::*;

const F: Fp8Format = Fp8Format::E4M3;
const FP8: [Scheme; 4] =
    [Scheme::Fp8Tensor(F), Scheme::Fp8Row(F), Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)];
/// A of each row alone: a scale of a whole matrix would follow the batch.
const BY_ROWS: [Pair; 9] = [
    (BF16, Scheme::Nvfp4),
    (F16, Scheme::Nvfp4Row),
    (BF16, Scheme::Mxfp4),
    (BF16, Scheme::Mxfp8(F)),
    (F16, Scheme::Fp8Row(F)),
    (BF16, Scheme::Fp8Group128x128(F)),
    (Operand::Quantized(Scheme::Nvfp4Row), Scheme::Nvfp4),
    (Operand::Quantized(Scheme::Mxfp8(F)), Scheme::Mxfp4),
    (Operand::Quantized(Scheme::Mxfp8(Fp8Format::E5M2)), Scheme::Mxfp8(F)),
];

#[test]
fn fp8_weights_multiply_any_number_of_plain_rows() {
    let Some(handle) = decoding() else { return };
    let (mut rng, mut tally) = (Noise::new(821), Tally::default());
    for (i, b) in FP8.into_iter().enumerate() {
        for (j, (m, n, k)) in [(65, 136, 272), (128, 72, 144), (200, 264, 1552)].into_iter().enumerate() {
            let (x, w) = (tiled(&mut rng, m, k), tiled(&mut rng, n, k));
            let dtype = [DType::Bf16, DType::F16][(i + j) % 2];
            let ops = PlainOperands::of(&handle, &x, dtype, 8, quantized(&w, b));
            let extras = Extras::new(&handle, &mut rng, m, n, &[0, 8]);
            for case in [Case::new(DType::Bf16), layer()] {
                let mut plan = handle.plan(&case.desc(&ops)).unwrap();
                assert_eq!((plan.formulation(), plan.finish()), (Formulation::SmallM, Finish::Fused));
                assert!(plan.explain().contains(&format!(", {} passes over B", m.div_ceil(64))), "{}", plan.explain());
                let first = execute(&handle, &mut plan, &ops, &extras, &case);
                assert!(execute(&handle, &mut plan, &ops, &extras, &case) == first, "{b}: the same every time");
                tally.check(&handle, &ops, &extras, &ops.sums(Accumulation::Precise), &case);
            }
        }
    }
    tally.finish("in passes", 24, 24);
}

/// Every configuration of tiles gives rows of a later pass the bits that it gives them alone.
#[test]
fn rows_of_later_passes_are_what_they_are_alone() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(822);
    let (m, n, k) = (150, 136, 1040);
    for b in FP8 {
        let (x, w) = (tiled(&mut rng, m, k), quantized(&tiled(&mut rng, n, k), b));
        let case = Case { bias: Some(DType::F32), ..Case::new(DType::F32) };
        let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
        let rows = |from: usize, to: usize, config: SmallMConfig| {
            let ops = PlainOperands::of(&handle, &x.slice(s![from..to, ..]).to_owned(), DType::Bf16, 0, w.clone());
            let mut plan = planned(&handle, &case.desc(&ops), config);
            let values = execute(&handle, &mut plan, &ops, &extras, &case).values(&ops, &case);
            values.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        for config in all_of(SmallMOperands::E4m3Weights, 64) {
            let all = rows(0, m, config);
            for (from, to) in [(0, 64), (63, 66), (64, 128), (70, 101), (128, 150), (149, 150)] {
                assert!(rows(from, to, config) == all[from * n..to * n], "{b}, {config}: rows {from} to {to}");
            }
        }
    }
}

/// Tiles of more than 16 rows, which on sm_90 are multiplied by warpgroup products, have the bits of those of 16, which are not: of numbers of any size, of infinities and of what is no number.
#[test]
fn rows_have_the_bits_of_tiles_of_few_rows() {
    let Some(handle) = decoding() else { return };
    let on_hopper = handle.device().compute_capability == (9, 0);
    let mut rng = Noise::new(823);
    let weights = [Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp4, Scheme::Mxfp8(F)].into_iter().chain(FP8);
    let mut by_warpgroups = 0;
    for (i, b) in weights.enumerate() {
        let e2m1 = !FP8.contains(&b) && b != Scheme::Mxfp8(F);
        let operands = if e2m1 { SmallMOperands::E2m1Weights } else { SmallMOperands::E4m3Weights };
        let dtypes = if matches!(b, Scheme::Mxfp4 | Scheme::Mxfp8(_)) {
            vec![DType::Bf16]
        } else {
            vec![DType::Bf16, DType::F16]
        };
        let orders: &[_] =
            if b.is_nvfp4() { &[CodeOrder::Published, CodeOrder::Repacked] } else { &[CodeOrder::Published] };
        // Of E4M3 weights up to 32 rows are so of a B of many rows alone.
        let shapes = if e2m1 {
            [(17, 136, 1152), (32, 1160, 384), (33, 136, 1152), (64, 1160, 1408)]
        } else {
            [(17, 2056, 384), (32, 2176, 160), (33, 136, 1168), (64, 1160, 1424)]
        };
        for ((m, n, k), dtype) in shapes.into_iter().flat_map(|shape| dtypes.iter().map(move |dtype| (shape, *dtype))) {
            let mut x = blocked(&mut rng, m, k);
            // Rows as small and as large as BF16 and F16 hold, zeros, and single columns beyond.
            for (r, mut row) in x.rows_mut().into_iter().enumerate() {
                match r % 8 {
                    1 => row.mapv_inplace(|v| v * 2f32.powi(if dtype == DType::F16 { -18 } else { -118 })),
                    2 => row.mapv_inplace(|v| v * 2f32.powi(if dtype == DType::F16 { 9 } else { 100 })),
                    3 => row.fill(0.0),
                    4 => row[r % k] = f32::INFINITY,
                    5 => row[(r * 37) % k] = f32::NAN,
                    6 => row.iter_mut().enumerate().for_each(|(j, v)| *v *= 2f32.powi((j % 29) as i32 - 14)),
                    _ => {}
                }
            }
            let w = quantized(&blocked(&mut rng, n, k), b);
            let case = Case::new(DType::F32);
            let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
            for order in orders {
                let rows = |from: usize, to: usize, config: SmallMConfig| {
                    let x = x.slice(s![from..to, ..]).to_owned();
                    let mut ops = PlainOperands::of(&handle, &x, dtype, 8 * (i % 2), w.clone());
                    ops.b.repack(&handle, *order).unwrap();
                    let mut plan = planned(&handle, &case.desc(&ops), config);
                    let values = execute(&handle, &mut plan, &ops, &extras, &case).values(&ops, &case);
                    (
                        values.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
                        plan.explain().contains("by warpgroup products"),
                    )
                };
                for config in all_of(operands, m) {
                    let (all, warpgroups) = rows(0, m, config);
                    assert_eq!(warpgroups, on_hopper, "{b}, {m} x {n} x {k}, {config}");
                    by_warpgroups += usize::from(warpgroups);
                    for from in (0..m).step_by(16) {
                        let to = m.min(from + 16);
                        let (few, warpgroups) = rows(from, to, config);
                        assert!(
                            !warpgroups && few == all[from * n..to * n],
                            "{dtype} x {b}, {order}, {m} x {n} x {k}, {config}: rows {from} to {to}"
                        );
                    }
                }
            }
        }
    }
    println!("{by_warpgroups} products by warpgroup products");
}

/// One product of these rows, what it adds to and its plan.
fn product(
    handle: &Handle,
    pair: Pair,
    b: &QuantMatrix,
    x: &Array2<f32>,
    beside: &Array2<f32>,
) -> (Vec<u32>, GemmPlan) {
    let ([m, k], n) = ([x.nrows(), x.ncols()], b.rows());
    let mut d = handle.upload(beside.as_standard_layout().as_slice().unwrap()).unwrap();
    let residual = upload(handle, &bytes_of(DType::Bf16, beside.iter()));
    let bias = handle.upload(&(0..n).map(|j| j as f32 * 0.01 - 0.3).collect::<Vec<_>>()).unwrap();
    let (plain, codes);
    let to = MatMut::new(&mut d, DType::F32, m, n).unwrap();
    let args = match pair.0 {
        Operand::Plain(dtype) => {
            plain = upload(handle, &bytes_of(dtype, x.iter()));
            GemmArgs::weight_only(MatRef::new(&plain, dtype, m, k).unwrap(), b, to)
        }
        Operand::Quantized(scheme) => {
            codes = QuantMatrix::from_host(handle, &quantized(x, scheme)).unwrap();
            GemmArgs::new(&codes, b, to)
        }
    };
    let args = args.batch_invariant(true).alpha(-0.75).accumulate(0.5);
    let args = args.bias(VecRef::new(&bias, DType::F32, n).unwrap());
    let args = args.residual(MatRef::new(&residual, DType::Bf16, m, n).unwrap());
    let mut plan = handle.plan(&args.desc().unwrap()).unwrap();
    plan.execute(handle, args).unwrap();
    (handle.read::<f32>(&d.view()).unwrap().into_iter().map(f32::to_bits).collect(), plan)
}

#[test]
fn a_row_has_the_same_bits_for_every_m() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(823);
    let most = 1000;
    for (n, k) in [(136, 544), (1032, 1536)] {
        for pair in BY_ROWS {
            let b = QuantMatrix::from_host(&handle, &quantized(&tiled(&mut rng, n, k), pair.1)).unwrap();
            let x = tiled(&mut rng, most, k);
            let beside = Array2::from_shape_simple_fn((most, n), || round_to(DType::Bf16, rng.normal()));
            let (all, whole) = product(&handle, pair, &b, &x, &beside);
            for m in [1, 2, 7, 8, 16, 17, 33, 48, 63, 64, 65, 127, 128, 129, 200, 513] {
                let start = (most - m) / 3;
                let rows = |of: &Array2<f32>| of.slice(s![start..start + m, ..]).to_owned();
                let (found, plan) = product(&handle, pair, &b, &rows(&x), &rows(&beside));
                let same = found == all[start * n..(start + m) * n];
                assert!(same, "{} x {}: {m} rows\n{}", pair.0, pair.1, plan.explain());
                assert_eq!((plan.formulation(), plan.finish()), (Formulation::SmallM, Finish::Fused));
                let algorithm = |plan: &GemmPlan| plan.record().unwrap().algorithm().clone();
                assert_eq!(algorithm(&plan), algorithm(&whole), "one configuration for every m");
            }
        }
    }
}

/// What they are is what other ways give, within the bound; a record of another split would give other bits.
#[test]
fn invariant_products_are_right_and_have_one_configuration() {
    let Some(handle) = decoding() else { return };
    let (mut rng, mut worst) = (Noise::new(824), 0f64);
    for (pair, m) in BY_ROWS.into_iter().zip([1, 16, 70, 130].into_iter().cycle()) {
        let both = small_m_weights::new(&handle, &mut rng, [m, 72, 1536], pair);
        let case = layer();
        let extras = Extras::new(&handle, &mut rng, m, 72, &[case.gap]);
        let found = with!(&both, |ops| {
            let bound = ops.sums(Accumulation::Precise).with(&extras.inputs(ops, &case), Gelu::Ieee).unwrap();
            let mut output = Output::new(&handle, ops, &extras, &case);
            let args = output.args(ops, &extras, &case).batch_invariant(true);
            let mut plan = handle.plan(&args.desc().unwrap()).unwrap();
            plan.execute(&handle, args).unwrap();
            bound.check(output.read(&handle, &plan.explain()).values(ops, &case).view())
        });
        worst = worst.max(found.unwrap_or_else(|e| panic!("{pair:?}, m = {m}: {e}")));
    }
    println!("largest error {worst:.3} of its tolerance");
    let desc = GemmDesc::new(5, 4096, 7168, BF16, Scheme::Nvfp4, DType::Bf16).with_batch_invariant(true);
    let record = handle.plan(&desc).unwrap().record().unwrap();
    assert!(handle.plan_with(&desc, &PlanOptions::default().with_record(record.clone())).is_ok());
    let mut value: serde_json::Value = serde_json::from_str(&record.to_json().unwrap()).unwrap();
    let split = value.pointer_mut("/algorithm/small-m/split").unwrap();
    *split = if *split == 1 { 2 } else { 1 }.into();
    let forged = TuneRecord::from_json(&value.to_string()).unwrap();
    let refusal = handle.plan_with(&desc, &PlanOptions::default().with_record(forged));
    refused(refusal, &["tuning record refused", "small-m has no such algorithm for bf16 x nvfp4"]);
}
