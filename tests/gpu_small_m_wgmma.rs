//! Products of 17 to 64 rows with weights that are decoded, by the warpgroup products of sm_90: that these are what is launched where `explain` says so, and that weights which were written just before are not
//! read too early, as they are on their way before the kernel that arranges A has ended. Their bits are compared with those of tiles of few rows in `gpu_small_m_passes`.
//!
//! Each test runs in a process of its own (`hazards::alone`): what loads kernels breaks the captures of others.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/foreign.rs"]
mod foreign;
#[path = "common/hazards.rs"]
mod hazards;

use common::*;
use foreign::{foreign, nodes};
use hazards::alone;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL;
use scaled_gemm::{
    DType, DeviceBuffer, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle, MatMut, MatRef, Operand,
    PlanOptions, QuantMatrix, QuantizeTo, Recipe, Scheme,
};

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

/// Two kernels, the one that arranges A and the product, where `explain` says so, and else one.
#[test]
fn what_explain_says_is_what_is_launched() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let mut rng = Noise::new(951);
        for b in WEIGHTS {
            for (m, n, k) in
                [(16, 1160, 384), (17, 1160, 384), (17, 10248, 384), (48, 1160, 384), (64, 128, 4096), (130, 1160, 384)]
            {
                if m > 64 && !matches!(b, Scheme::Fp8Row(_) | Scheme::Fp8Group1x128(_) | Scheme::Fp8Group128x128(_)) {
                    continue;
                }
                let (x, w) = (numbers(&handle, &mut rng, m, k), numbers(&handle, &mut rng, n, k));
                let w = handle.quantize(&MatRef::new(&w, DType::Bf16, n, k).unwrap(), Recipe::new(b)).unwrap();
                let mut d = handle.alloc(m * n * 2).unwrap();
                let mut plan = plan(&handle, [m, n, k], &w);
                let words = plan.explain();
                let by_warpgroups = words.contains("by warpgroup products");
                let e2m1 = b == Scheme::Nvfp4Row;
                let want = match (m, n) {
                    (16, _) => false,
                    (17, _) => e2m1 || n > 2048,
                    _ => true,
                };
                assert_eq!(by_warpgroups, want, "{b}, {m} x {n} x {k}: {words}");
                let mut run = || {
                    let (x, d) = (MatRef::new(&x, DType::Bf16, m, k)?, MatMut::new(&mut d, DType::Bf16, m, n)?);
                    plan.execute(&handle, GemmArgs::weight_only(x, &w, d))
                };
                run().unwrap();
                // Of 130 rows two passes of 64, and one of two rows.
                let kernels = if m == 130 { 5 } else { 1 + usize::from(by_warpgroups) };
                assert_eq!(nodes(&foreign(&handle, THREAD_LOCAL, &mut run)), kernels, "{b}, {m} x {n} x {k}: {words}");
            }
        }
    });
}

/// Codes and all scales are written by the kernel before, again and again, with A and what multiplies it: eagerly and in a graph.
#[test]
fn weights_that_were_just_written_are_what_is_multiplied() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let mut rng = Noise::new(952);
        let (m, n, k) = (33, 4096, 4096);
        for b in WEIGHTS {
            let recipe = Recipe::new(b);
            let sources = [0; 3].map(|_| numbers(&handle, &mut rng, n, k));
            let source = |i: usize| MatRef::new(&sources[i], DType::Bf16, n, k);
            let x = numbers(&handle, &mut rng, m, k);
            let x = || MatRef::new(&x, DType::Bf16, m, k);
            let mut d = [0; 3].map(|_| handle.alloc(m * n * 2).unwrap());
            let mut written = handle.quantize(&source(0).unwrap(), recipe).unwrap();
            let mut plan = plan(&handle, [m, n, k], &written);
            assert!(plan.explain().contains("by warpgroup products"), "{}", plan.explain());
            let want = [0, 1, 2].map(|i| {
                let alone = handle.quantize(&source(i).unwrap(), recipe).unwrap();
                let out = MatMut::new(&mut d[i], DType::Bf16, m, n).unwrap();
                plan.execute(&handle, GemmArgs::weight_only(x().unwrap(), &alone, out)).unwrap();
                handle.read_bytes(&d[i].view()).unwrap()
            });
            assert!(want[0] != want[1] && want[1] != want[2], "{b}: weights that change nothing");
            let mut all = |d: &mut [DeviceBuffer; 3]| {
                (0..3).try_for_each(|i| {
                    handle.quantize_into(&source(i)?, recipe, QuantizeTo::Plain(&mut written))?;
                    let out = MatMut::new(&mut d[i], DType::Bf16, m, n)?;
                    plan.execute(&handle, GemmArgs::weight_only(x()?, &written, out))
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
            let graph = foreign(&handle, THREAD_LOCAL, || all(&mut d));
            for launch in 0..40 {
                d.iter_mut().for_each(|d| handle.write(&mut d.view_mut(), &[0xFFu8; 64]).unwrap());
                graph.launch().unwrap();
                handle.synchronize().unwrap();
                check(&d, &format!("launch {launch}"));
            }
        }
    });
}
