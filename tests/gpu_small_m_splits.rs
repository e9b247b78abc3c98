//! Splits of k that no cluster has, into 3 and 6, of products by the warpgroup products of sm_90 whose parts of sums meet in memory: within the f64 bound at shapes that cut tiles, steps and parts, also where parts have no
//! steps; the sums of the parts, added in the order of k; the same bits in codes of either order and whatever rows stand beside a row; operands between guards, graphs; refused elsewhere, with the numbers.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "common/guarded_weights.rs"]
mod guarded_weights;
#[path = "common/small_m_weights.rs"]
#[allow(dead_code, unused_imports, reason = "what is for other configurations is the other suites'")]
mod small_m_weights;

use common::gemm::*;
use common::*;
use guarded_weights::check_between_guards;
use ndarray::{Array2, s};
use scaled_gemm::reference::dequantize;
use scaled_gemm::{
    Accumulation, CodeOrder, DType, Formulation, Fp8Format, GemmArgs, GemmDesc, Handle, MatMut, MatRef, Operand,
    PlanOptions, QuantMatrix, Recipe, Scheme, SmallMBlock, SmallMConfig, TuneRecord,
};
use small_m_weights::*;

const F: Fp8Format = Fp8Format::E4M3;
const E2M1: [Pair; 6] = [
    (BF16, Scheme::Nvfp4),
    (F16, Scheme::Nvfp4Row),
    (BF16, Scheme::Mxfp4),
    (F16, Scheme::Nvfp4),
    (Operand::Quantized(Scheme::Nvfp4Row), Scheme::Nvfp4),
    (Operand::Quantized(Scheme::Mxfp8(F)), Scheme::Mxfp4),
];
const E4M3: [Pair; 6] = [
    (BF16, Scheme::Fp8Tensor(F)),
    (F16, Scheme::Fp8Row(F)),
    (BF16, Scheme::Fp8Group1x128(F)),
    (F16, Scheme::Fp8Group128x128(F)),
    (BF16, Scheme::Mxfp8(F)),
    (Operand::Quantized(Scheme::Mxfp8(F)), Scheme::Mxfp8(F)),
];
/// Steps of 128 of k: 1, 2 and 4, of which some parts have none; 6, 9 and 11, the last one cut. Up to 32 rows are by these products with a B of many rows alone, of E4M3 codes.
const OF_E2M1: [[usize; 3]; 6] =
    [[17, 136, 1152], [32, 72, 32], [33, 264, 160], [40, 128, 512], [48, 520, 672], [64, 1160, 1312]];
const OF_E4M3: [[usize; 3]; 5] = [[17, 2056, 160], [32, 2176, 400], [33, 136, 1168], [48, 72, 32], [64, 1160, 1312]];

fn hopper() -> Option<Handle> {
    let handle = decoding()?;
    if handle.device().compute_capability == (9, 0) && handle.device().sm_count >= 100 {
        return Some(handle);
    }
    println!("skipped: splits that meet in memory alone are those of a large sm_90");
    None
}

fn block(b: Scheme) -> SmallMBlock {
    if b.is_nvfp4() || b == Scheme::Mxfp4 { SmallMBlock::Tile } else { SmallMBlock::TileE4m3 }
}

/// 3 and 6.
fn splits_of(b: Scheme) -> [SmallMConfig; 2] {
    SmallMConfig::SPLITS_IN_MEMORY.map(|split| SmallMConfig::new(block(b), split).unwrap())
}

fn within(handle: &Handle, rng: &mut Noise, shape: [usize; 3], pair: Pair, case: Case) -> f64 {
    let both = new(handle, rng, shape, pair);
    let extras = Extras::new(handle, rng, shape[0], shape[1], &[case.gap]);
    with!(&both, |ops| {
        for config in splits_of(pair.1) {
            let words = planned(handle, &case.desc(ops), config).explain();
            let how = "by warpgroup products, between a kernel that arranges A and one that adds parts of sums";
            assert!(words.contains(how), "{words}");
        }
        let sums = ops.sums(Accumulation::Precise);
        check_with(handle, ops, &extras, &sums, case, splits_of(pair.1).into_iter())
    })
}

/// Small, for runs under a sanitizer: each kernel with each split.
#[test]
fn each_kernel_once() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(961);
    for (i, pair) in E2M1.into_iter().chain(E4M3).enumerate() {
        let rows = if block(pair.1) == SmallMBlock::Tile { [17, 33, 49] } else { [33, 48, 49] };
        for (j, m) in rows.into_iter().enumerate() {
            let case = Case { gap: 8, ..Case::new(WIDE[(i + j) % 3]) };
            within(&handle, &mut rng, [m, 136, 1056], pair, case);
        }
    }
}

#[test]
fn shapes_that_cut_tiles_steps_and_parts() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst) = (Noise::new(962), 0f64);
    for (pairs, shapes) in [(E2M1, &OF_E2M1[..]), (E4M3, &OF_E4M3)] {
        for (i, pair) in pairs.into_iter().enumerate() {
            for (j, shape) in shapes.iter().copied().enumerate() {
                // MXFP8 codes of A are of whole blocks.
                if pair.0.scheme().is_some() && !shape[2].is_multiple_of(32) {
                    continue;
                }
                let case = if (i + j) % 2 == 0 { layer() } else { Case::new(WIDE[(i + j / 2) % 3]) };
                worst = worst.max(within(&handle, &mut rng, shape, pair, case));
            }
        }
    }
    // FP8 weights with plain rows also in two whole passes, one behind the other in the same scratch memory.
    for (i, pair) in E4M3.into_iter().take(4).enumerate() {
        worst = worst.max(within(&handle, &mut rng, [128, 136, 1168], pair, Case::new(WIDE[i % 3])));
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// 0xFF lies between the operands, and what is written is D alone.
#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    let of_e2m1 = [[17, 72, 416], [33, 136, 1056], [64, 264, 2080]];
    let of_e4m3 = [[17, 2056, 160], [33, 72, 416], [64, 264, 2080]];
    for (pairs, shapes, seed) in [(E2M1, of_e2m1, 963), (E4M3, of_e4m3, 964)] {
        let configs = splits_of(pairs[0].1);
        check_between_guards(&handle, seed, &pairs, &shapes, |both| both, |_, _| configs.into_iter());
    }
}

#[test]
fn graphs_have_the_same_bits() {
    let Some(handle) = hopper() else { return };
    for (pairs, rows, seed) in [(E2M1, [17, 33, 64], 965), (E4M3, [33, 48, 64], 966)] {
        let configs = splits_of(pairs[0].1);
        let all = rows.into_iter().flat_map(|m| configs.map(|config| (m, config)));
        check_graphs(&handle, seed, &pairs, all);
    }
}

fn on_device(handle: &Handle, x: &Array2<f32>, dtype: DType) -> scaled_gemm::DeviceBuffer {
    handle.upload(&bytes_of(dtype, x.iter())).unwrap()
}

fn weights(handle: &Handle, w: &Array2<f32>, scheme: Scheme) -> QuantMatrix {
    let on_device = on_device(handle, w, DType::Bf16);
    let w = MatRef::new(&on_device, DType::Bf16, w.nrows(), w.ncols()).unwrap();
    handle.quantize(&w, Recipe::new(scheme)).unwrap()
}

/// D in FP32, of rows of this type, with nothing behind the sums.
fn product(handle: &Handle, x: &Array2<f32>, dtype: DType, b: &QuantMatrix, config: SmallMConfig) -> Vec<f32> {
    let (m, n) = (x.nrows(), b.rows());
    let on_device = on_device(handle, x, dtype);
    let mut d = handle.upload(&vec![f32::NAN; m * n]).unwrap();
    let x = MatRef::new(&on_device, dtype, m, x.ncols()).unwrap();
    let args = GemmArgs::weight_only(x, b, MatMut::new(&mut d, DType::F32, m, n).unwrap());
    planned(handle, &args.desc().unwrap(), config).execute(handle, args).unwrap();
    handle.read::<f32>(&d.view()).unwrap()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// What is joined is the products of parts of k, each alone and unsplit, added from zero in the order of k, of schemes whose scales are all in the sum. With parts that have no steps, and of 9 to 16 rows of many E2M1 weights.
#[test]
fn parts_are_added_in_the_order_of_k() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(967);
    let (tiles, vectors) = (Scheme::Fp8Group128x128(F), Scheme::Fp8Group1x128(F));
    for (scheme, dtype, [m, n, k]) in [
        (Scheme::Mxfp4, DType::Bf16, [17, 264, 1312]),
        (Scheme::Mxfp4, DType::Bf16, [64, 136, 512]),
        (Scheme::Mxfp4, DType::Bf16, [16, 3592, 8224]),
        (Scheme::Mxfp8(F), DType::Bf16, [40, 264, 1312]),
        (tiles, DType::Bf16, [64, 264, 1312]),
        (tiles, DType::F16, [48, 136, 512]),
        (vectors, DType::F16, [33, 264, 1312]),
        (vectors, DType::Bf16, [128, 136, 2080]),
    ] {
        let [x, w] =
            [m, n].map(|rows| Array2::from_shape_simple_fn((rows, k), || round_to(dtype, 0.25 * rng.normal())));
        let b = weights(&handle, &w, scheme);
        let whole = dequantize(&b.to_host(&handle).unwrap(), DType::F32);
        for config in splits_of(scheme) {
            let (steps, split) = (k.div_ceil(128), config.split() as usize);
            let alone = SmallMConfig::new(config.block(), 1).unwrap();
            let mut want = vec![0f32; m * n];
            for part in 0..split {
                let cols = steps * part / split * 128..k.min(steps * (part + 1) / split * 128);
                if cols.is_empty() {
                    continue;
                }
                let of = |x: &Array2<f32>| x.slice(s![.., cols.clone()]).as_standard_layout().to_owned();
                let b = weights(&handle, &of(&w), scheme);
                let same = dequantize(&b.to_host(&handle).unwrap(), DType::F32) == whole.slice(s![.., cols.clone()]);
                assert!(same, "{scheme}: a part of the weights has codes of its own");
                let sums = product(&handle, &of(&x), dtype, &b, alone);
                want.iter_mut().zip(sums).for_each(|(sum, part)| *sum += part);
            }
            let got = product(&handle, &x, dtype, &b, config);
            assert!(bits(&got) == bits(&want), "{dtype} x {scheme}, {m} x {n} x {k}, {config}");
        }
    }
}

/// Of as many or fewer rows, in kernels of other widths, at another place, and of codes in either order.
#[test]
fn rows_have_the_same_bits_wherever_they_stand() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(968);
    let (n, k) = (2056, 1408);
    let x = Array2::from_shape_simple_fn((64, k), || round_to(DType::F16, 0.25 * rng.normal()));
    let w = Array2::from_shape_simple_fn((n, k), || round_to(DType::Bf16, rng.normal()));
    for (scheme, order) in [
        (Scheme::Nvfp4, CodeOrder::Published),
        (Scheme::Nvfp4, CodeOrder::Repacked),
        (Scheme::Nvfp4Row, CodeOrder::Repacked),
        (Scheme::Fp8Row(F), CodeOrder::Published),
        (Scheme::Fp8Group128x128(F), CodeOrder::Published),
    ] {
        let published = weights(&handle, &w, scheme);
        let mut b = weights(&handle, &w, scheme);
        b.repack(&handle, order).unwrap();
        for dtype in [DType::Bf16, DType::F16] {
            let x = x.mapv(|x| round_to(dtype, x));
            for config in splits_of(scheme) {
                let all = product(&handle, &x, dtype, &published, config);
                for (from, to) in [(0, 64), (0, 17), (20, 52), (31, 64), (7, 55)] {
                    let rows = x.slice(s![from..to, ..]).to_owned();
                    let some = product(&handle, &rows, dtype, &b, config);
                    let same = bits(&some) == bits(&all[from * n..to * n]);
                    assert!(same, "{dtype} x {scheme}, {order}, {config}: rows {from} to {to}");
                }
            }
        }
    }
}

/// Where they were the fastest a plan has them, and no plan that is to give a row the same bits for every m.
#[test]
fn plans_have_them_where_they_fill_the_gpu_once() {
    let Some(handle) = hopper().filter(|handle| handle.device().sm_count == 132) else { return };
    let desc = |[m, n, k]: [usize; 3], b| GemmDesc::new(m, n, k, BF16, b, DType::Bf16);
    let cases = [
        ([64, 10240, 8192], 3, Scheme::Nvfp4),
        ([16, 10240, 8192], 3, Scheme::Nvfp4),
        ([64, 5120, 5120], 6, Scheme::Nvfp4),
        ([64, 2112, 7168], 6, Scheme::Nvfp4),
        ([64, 10240, 8192], 3, Scheme::Fp8Group128x128(F)),
    ];
    for (mnk, split, b) in cases {
        let plan = handle.plan(&desc(mnk, b)).unwrap();
        let words = plan.explain();
        let how = format!("{}, k split by {split}, by warpgroup products, between a kernel that arranges A", block(b));
        assert!(words.contains(&how), "{words}");
        // And their records hold.
        let record = TuneRecord::from_json(&plan.record().unwrap().to_json().unwrap()).unwrap();
        let again = handle.plan_with(&desc(mnk, b), &PlanOptions::default().with_record(record)).unwrap();
        assert!(again.explain().contains(&how), "{}", again.explain());
        let invariant = handle.plan(&desc(mnk, b).with_batch_invariant(true)).unwrap();
        assert!(!invariant.explain().contains(&how), "{}", invariant.explain());
    }
}

#[test]
fn refused_where_parts_cannot_meet_or_have_no_memory() {
    let Some(handle) = hopper() else { return };
    let desc = |m, n, k, b| GemmDesc::new(m, n, k, BF16, b, DType::Bf16);
    let by_record = |desc: &GemmDesc, block: &str, split: u32| {
        let text = plan(&handle, desc, Formulation::SmallM).record().unwrap().to_json().unwrap();
        let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
        *record.pointer_mut("/algorithm/small-m").unwrap() = serde_json::json!({ "block": block, "split": split });
        let record = TuneRecord::from_json(&record.to_string())?;
        handle.plan_with(desc, &PlanOptions::default().with_record(record))
    };
    let (nvfp4, fp8) = (Scheme::Nvfp4, Scheme::Fp8Row(F));
    let few = by_record(&desc(8, 520, 576, nvfp4), "tile", 3);
    let remedy = "choose a split of 1, 2, 4 or 8";
    refused(
        few,
        &["tuning record refused", "m = 8, n = 520, k = 576", "k split by 3", "do not multiply 8 rows", remedy],
    );
    let left = by_record(&desc(130, 520, 576, fp8), "tile-e4m3", 6);
    refused(left, &["tuning record refused", "m = 130, n = 520, k = 576", "do not multiply 2 rows", remedy]);
    let n = 128 * (handle.device().sm_count as usize + 1);
    let many = by_record(&desc(64, n, 576, nvfp4), "tile", 3);
    let blocks = format!("{}, and here are {}", handle.device().sm_count * 2, n / 128 * 3);
    refused(many, &["tuning record refused", "no more blocks than run at once", &blocks, remedy]);
    refused(by_record(&desc(8, 520, 576, nvfp4), "four", 3), &["blocks of four that splits k into 3", "3 or 6"]);
    refused(by_record(&desc(64, 520, 576, nvfp4), "tile", 5), &["blocks of tile that splits k into 5", "3 or 6"]);
    let invariant = desc(64, 520, 576, nvfp4).with_batch_invariant(true);
    refused(by_record(&invariant, "tile", 3), &["small-m has no such algorithm for bf16 x nvfp4"]);
    // Scratch memory for parts of sums is reserved by the plan; once it is given back, a call is refused.
    let mut rng = Noise::new(969);
    let config = splits_of(nvfp4)[1];
    let w = Array2::from_shape_simple_fn((520, 576), || rng.normal());
    let b = weights(&handle, &w, nvfp4);
    let x = on_device(&handle, &Array2::from_elem((64, 576), 0.5), DType::Bf16);
    let mut d = handle.alloc(64 * 520 * 2).unwrap();
    let mut run = |plan: &mut scaled_gemm::GemmPlan| {
        let (x, d) = (MatRef::new(&x, DType::Bf16, 64, 576)?, MatMut::new(&mut d, DType::Bf16, 64, 520)?);
        plan.execute(&handle, GemmArgs::weight_only(x, &b, d))
    };
    let mut plan = planned(&handle, &desc(64, 520, 576, nvfp4), config);
    assert_eq!(plan.workspace_bytes(), 64 * 640 * 2 + 6 * 64 * 520 * 4);
    run(&mut plan).unwrap();
    handle.trim_scratch().unwrap();
    refused(run(&mut plan), &[&format!("needs {} bytes of scratch memory", plan.scratch_bytes()), "GemmPlan::prepare"]);
    plan.prepare(&handle, &b).unwrap();
    run(&mut plan).unwrap();
}
