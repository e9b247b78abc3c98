//! Products of 9 to 64 rows with weights that are decoded, by the warpgroup products of sm_90: that these are what is launched where `explain` says so, that parts of sums which meet in memory have the bits of those that meet
//! in a cluster, and that weights which were written just before are not read too early, as they are on their way before the kernel that arranges A has ended. Their bits are compared with those of tiles of few rows in
//! `gpu_small_m_passes`, too.
//!
//! Each test runs in a process of its own (`hazards::alone`): what loads kernels breaks the captures of others.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/foreign.rs"]
mod foreign;
#[path = "common/hazards.rs"]
mod hazards;
#[path = "common/small_m_weights.rs"]
#[allow(dead_code, unused_imports, reason = "what is for host operands is the other suites'")]
mod small_m_weights;

use common::*;
use foreign::{foreign, nodes};
use hazards::alone;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL;
use scaled_gemm::{
    Activation, CodeOrder, DType, DeviceBuffer, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle, MatMut,
    MatRef, Operand, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Scheme, SmallMBlock, SmallMConfig, VecRef,
};
use small_m_weights::planned;

const F: Fp8Format = Fp8Format::E4M3;
const WEIGHTS: [Scheme; 5] =
    [Scheme::Nvfp4Row, Scheme::Mxfp8(F), Scheme::Fp8Row(F), Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)];

fn hopper() -> Option<Handle> {
    let handle = handle()?;
    if handle.device().compute_capability == (9, 0) {
        return Some(handle);
    }
    println!("skipped: warpgroup products are those of sm_90");
    None
}

/// Whether it has as many multiprocessors as those for which these tests say where parts of sums meet.
fn usual(handle: &Handle) -> bool {
    handle.device().sm_count == 132
}

fn plan(handle: &Handle, [m, n, k]: [usize; 3], b: &QuantMatrix) -> GemmPlan {
    let desc = GemmDesc::new(m, n, k, Operand::Plain(DType::Bf16), b.scheme(), DType::Bf16);
    let options = PlanOptions::default().with_formulation(Formulation::SmallM);
    let mut plan = handle.plan_with(&desc, &options).unwrap();
    plan.prepare(handle, b).unwrap();
    plan
}

fn numbers(handle: &Handle, rng: &mut Noise, rows: usize, cols: usize) -> DeviceBuffer {
    let x = Array2::from_shape_fn((rows, cols), |_| rng.normal());
    handle.upload(&bytes_of(DType::Bf16, x.iter())).unwrap()
}

/// Two kernels where `explain` says so, the one that arranges A and the product, or three, with the one that adds parts of sums; else one.
#[test]
fn what_explain_says_is_what_is_launched() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let mut rng = Noise::new(951);
        for b in WEIGHTS {
            for (m, n, k) in [
                (16, 1160, 384),
                (16, 8200, 8192),
                (17, 1160, 384),
                (17, 10248, 384),
                (48, 1160, 384),
                (64, 128, 4096),
                (64, 3928, 7200),
                (64, 5128, 5120),
                (130, 1160, 384),
            ] {
                let e2m1 = b == Scheme::Nvfp4Row;
                if n == 8200 && !e2m1 {
                    continue;
                }
                if m > 64 && !matches!(b, Scheme::Fp8Row(_) | Scheme::Fp8Group1x128(_) | Scheme::Fp8Group128x128(_)) {
                    continue;
                }
                let (x, w) = (numbers(&handle, &mut rng, m, k), numbers(&handle, &mut rng, n, k));
                let w = handle.quantize(&MatRef::new(&w, DType::Bf16, n, k).unwrap(), Recipe::new(b)).unwrap();
                let mut d = handle.alloc(m * n * 2).unwrap();
                let mut plan = plan(&handle, [m, n, k], &w);
                let words = plan.explain();
                let by_warpgroups = words.contains("by warpgroup products");
                let in_memory = words.contains("one that adds parts of sums");
                let want = match (m, n) {
                    (16, _) => e2m1 && n == 8200,
                    (17, _) => e2m1 || n > 2048,
                    _ => true,
                };
                assert_eq!(by_warpgroups, want, "{b}, {m} x {n} x {k}: {words}");
                let meets = by_warpgroups && [3928, 5128, 8200].contains(&n);
                assert!(in_memory == meets || !usual(&handle), "{b}, {m} x {n} x {k}: {words}");
                let mut run = || {
                    let (x, d) = (MatRef::new(&x, DType::Bf16, m, k)?, MatMut::new(&mut d, DType::Bf16, m, n)?);
                    plan.execute(&handle, GemmArgs::weight_only(x, &w, d))
                };
                run().unwrap();
                // Of 130 rows two passes of 64, and one of two rows.
                let kernels = if m == 130 { 5 } else { 1 + usize::from(by_warpgroups) + usize::from(in_memory) };
                assert_eq!(nodes(&foreign(&handle, THREAD_LOCAL, &mut run)), kernels, "{b}, {m} x {n} x {k}: {words}");
            }
        }
    });
}

/// That rows multiplied by warpgroup products have the bits of the same configuration for eight rows at a time, which other kernels multiply, their parts in clusters: with the whole epilogue, in numbers of each type, of
/// rows of any size, infinities and NaN among them. Nothing but D's rows is written. Of each split, whether parts meet in memory.
fn check_bits(
    handle: &Handle,
    rng: &mut Noise,
    [n, k]: [usize; 2],
    weights: &[(Scheme, CodeOrder)],
    counts: &[usize],
    splits: &[(u32, bool)],
) {
    let (stride, most) = (k, *counts.iter().max().unwrap());
    let w = numbers(handle, rng, n, k);
    for (i, (scheme, order)) in weights.iter().copied().enumerate() {
        let recipe = Recipe::new(scheme);
        // Repacked codes are of whole steps of 128.
        let k = if order == CodeOrder::Repacked { k / 128 * 128 } else { k };
        let mut b = handle
            .quantize(&MatRef::new(&w, DType::Bf16, n, k).unwrap().with_row_stride(stride).unwrap(), recipe)
            .unwrap();
        b.repack(handle, order).unwrap();
        let e2m1 = scheme.is_nvfp4() || scheme == Scheme::Mxfp4;
        let (block, passes) = match e2m1 {
            true => (SmallMBlock::Tile, false),
            false => (SmallMBlock::TileE4m3, matches!(scheme, Scheme::Fp8Tensor(_) | Scheme::Fp8Row(_))),
        };
        let f16 = !matches!(scheme, Scheme::Mxfp4 | Scheme::Mxfp8(_)) && i % 2 == 1;
        let a_type = if f16 { DType::F16 } else { DType::Bf16 };
        let mut x = Array2::from_shape_fn((most, k), |_| 0.25 * rng.normal());
        for (r, mut row) in x.rows_mut().into_iter().enumerate() {
            match r % 8 {
                1 => row.mapv_inplace(|v| v * 2f32.powi(-12)),
                3 => row.fill(0.0),
                4 => row[r * 31 % k] = f32::INFINITY,
                5 => row[r * 37 % k] = f32::NAN,
                _ => {}
            }
        }
        let x = bytes_of(a_type, x.iter());
        let beside: Vec<f32> = (0..most * n).map(|_| rng.normal()).collect();
        let residual = bytes_of(DType::Bf16, beside.iter());
        let bias = handle.upload(&beside[..n]).unwrap();
        let d_type = [DType::F32, DType::Bf16, DType::F16][i % 3];
        let old = bytes_of(d_type, beside.iter());
        let cases = splits.iter().flat_map(|split| counts.iter().map(move |all| (*split, *all)));
        for ((split, meets_in_memory), all) in cases {
            if all > 64 && !passes {
                continue;
            }
            let config = SmallMConfig::new(block, split).unwrap();
            // Rows from..to of D, and whether they were in memory.
            let rows = |from: usize, to: usize| {
                let m = to - from;
                let place = |row: usize| from * row..to * row;
                let own = place(n * d_type.bytes());
                let x = handle.upload(&x[place(k * 2)]).unwrap();
                let residual = handle.upload(&residual[place(n * 2)]).unwrap();
                let mut d = handle.upload(&old).unwrap();
                let mut written = d.view_mut();
                let args = GemmArgs::weight_only(
                    MatRef::new(&x, a_type, m, k).unwrap(),
                    &b,
                    MatMut::new(written.part(own.clone()).unwrap(), d_type, m, n).unwrap(),
                );
                let args = args.alpha(-0.75).bias(VecRef::new(&bias, DType::F32, n).unwrap());
                let args = args.activation(Activation::Silu);
                let args = args.residual(MatRef::new(&residual, DType::Bf16, m, n).unwrap());
                let args = if d_type == DType::F32 { args.accumulate(0.5) } else { args };
                let mut plan = planned(handle, &args.desc().unwrap(), config);
                plan.execute(handle, args).unwrap();
                let all = handle.read_bytes(&d.view()).unwrap();
                assert!(all[..own.start] == old[..own.start] && all[own.end..] == old[own.end..], "{scheme}: beside D");
                let words = plan.explain();
                assert_eq!(words.contains("by warpgroup products"), m > 8, "{scheme}, {order}, {m} rows: {words}");
                (all[own].to_vec(), words.contains("one that adds parts of sums"))
            };
            let (whole, in_memory) = rows(0, all);
            assert!(in_memory == meets_in_memory || !usual(handle), "{scheme}, {order}, {all} rows, {config}");
            for from in (0..all).step_by(8) {
                let to = all.min(from + 8);
                let (few, in_memory) = rows(from, to);
                assert!(!in_memory, "{scheme}, {config}: few rows");
                let place = from * n * d_type.bytes()..to * n * d_type.bytes();
                assert!(few == whole[place], "{a_type} x {scheme}, {order}, {all} rows to {d_type}, {config}: {from}");
            }
        }
    }
}

/// Columns and rows of B that are no multiple of a tile, of weights in every scheme and order.
#[test]
fn parts_that_meet_in_memory_have_the_bits_of_clusters() {
    let Some(handle) = hopper() else { return };
    let block_scales = [Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp4, Scheme::Mxfp8(F)];
    let fp8 = [Scheme::Fp8Tensor(F), Scheme::Fp8Row(F), Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)];
    let published = block_scales.into_iter().chain(fp8).map(|scheme| (scheme, CodeOrder::Published));
    let weights: Vec<_> = [(Scheme::Nvfp4, CodeOrder::Repacked)].into_iter().chain(published).collect();
    check_bits(
        &handle,
        &mut Noise::new(953),
        [3928, 7200],
        &weights,
        &[17, 33, 64, 97, 130],
        &[(2, false), (4, true), (8, true)],
    );
}

/// Up to 16 rows of many E2M1 weights.
#[test]
fn few_rows_of_many_weights_have_the_bits_of_other_kernels() {
    let Some(handle) = hopper() else { return };
    let weights = [
        (Scheme::Nvfp4, CodeOrder::Published),
        (Scheme::Nvfp4, CodeOrder::Repacked),
        (Scheme::Nvfp4, CodeOrder::Repacked),
        (Scheme::Nvfp4Row, CodeOrder::Published),
        (Scheme::Mxfp4, CodeOrder::Published),
    ];
    check_bits(&handle, &mut Noise::new(954), [8200, 8224], &weights, &[9, 16], &[(1, false), (2, false), (4, true)]);
}

/// Codes and all scales are written by the kernel before, again and again, and another A is multiplied each time: eagerly, in a graph and as a chain, of clusters and of parts that meet in memory.
#[test]
fn weights_that_were_just_written_are_what_is_multiplied() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let mut rng = Noise::new(952);
        let (m, k) = (33, 4096);
        for (b, (n, in_memory)) in WEIGHTS.into_iter().flat_map(|b| [(3840, false), (4096, true)].map(|n| (b, n))) {
            let recipe = Recipe::new(b);
            let sources = [0; 3].map(|_| numbers(&handle, &mut rng, n, k));
            let source = |i: usize| MatRef::new(&sources[i], DType::Bf16, n, k);
            let rows = [0; 3].map(|_| numbers(&handle, &mut rng, m, k));
            let x = |i: usize| MatRef::new(&rows[i], DType::Bf16, m, k);
            let mut d = [0; 3].map(|_| handle.alloc(m * n * 2).unwrap());
            let mut written = handle.quantize(&source(0).unwrap(), recipe).unwrap();
            let mut plan = plan(&handle, [m, n, k], &written);
            let words = plan.explain();
            assert!(words.contains("by warpgroup products"), "{words}");
            assert!(words.contains("one that adds parts of sums") == in_memory || !usual(&handle), "{words}");
            let want = [0, 1, 2].map(|i| {
                let alone = handle.quantize(&source(i).unwrap(), recipe).unwrap();
                let out = MatMut::new(&mut d[i], DType::Bf16, m, n).unwrap();
                plan.execute(&handle, GemmArgs::weight_only(x(i).unwrap(), &alone, out)).unwrap();
                handle.read_bytes(&d[i].view()).unwrap()
            });
            assert!(want[0] != want[1] && want[1] != want[2], "{b}: weights that change nothing");
            let mut all = |d: &mut [DeviceBuffer; 3]| {
                (0..3).try_for_each(|i| {
                    handle.quantize_into(&source(i)?, recipe, QuantizeTo::Plain(&mut written))?;
                    let out = MatMut::new(&mut d[i], DType::Bf16, m, n)?;
                    plan.execute(&handle, GemmArgs::weight_only(x(i)?, &written, out))
                })
            };
            let check = |d: &[DeviceBuffer; 3], how: &str| {
                for (i, d) in d.iter().enumerate() {
                    assert!(handle.read_bytes(&d.view()).unwrap() == want[i], "{b}, {how}: product {i}");
                }
            };
            for round in 0..20 {
                all(&mut d).unwrap();
                check(&d, &format!("round {round}"));
            }
            for chained in [false, true] {
                let mut enqueue = || if chained { handle.chain(|| all(&mut d)) } else { all(&mut d) };
                let graph = foreign(&handle, THREAD_LOCAL, &mut enqueue);
                for launch in 0..20 {
                    d.iter_mut().for_each(|d| handle.write(&mut d.view_mut(), &[0xFFu8; 64]).unwrap());
                    graph.launch().unwrap();
                    handle.synchronize().unwrap();
                    check(&d, &format!("launch {launch}, in a chain: {chained}"));
                }
            }
        }
    });
}
