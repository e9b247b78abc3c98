//! Our product for sm_90 of E5M2 codes on one side and E4M3 codes on the other: each configuration that has kernels for them, with every kind of scales and every epilogue, within the
//! f64 bound and with the same bits in all of them, whatever m is, in graphs; groups of rows, each with the bits that it gives alone; what has no kernel is refused; the library's products agree.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "common/sm90.rs"]
mod sm90;
#[path = "common/sm90_groups.rs"]
mod sm90_groups;

use common::gemm::*;
use common::*;
use guarded::check_guarded;
use ndarray::Array2;
use scaled_gemm::reference::Gelu;
use scaled_gemm::{
    Accumulation, DType, Finish, Formulation, Fp8Format, GemmArgs, GroupedGemmArgs, GroupedRows, Handle,
    HostQuantMatrix, KernelFamily, MatMut, PlanOptions, QuantMatrix, Scheme, Sm90Config, TuneRecord,
};
use sm90::{COMMON, E4M3, LONG_OR_TALL, of_groups, planned};
use sm90_groups::{
    Groups, check_alone, check_biases, check_counts_that_change, check_groups_between_guards, check_many,
    check_starts_that_change, numbers,
};

const E5M2: Fp8Format = Fp8Format::E5M2;
/// Those with kernels for them.
const CONFIGS: [Sm90Config; 4] = COMMON;

fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::Sm90E5m2)
}

/// Every pair of schemes, with E5M2 on either side.
fn pairs() -> Vec<(Scheme, Scheme)> {
    use Scheme::{Fp8Group1x128 as Vec128, Fp8Group128x128 as Blk};
    let of = |a, b| (Blk(a), Vec128(b));
    pairs_of_groups().into_iter().chain([of(E5M2, E4M3), of(E4M3, E5M2)]).collect()
}

/// Those of which groups of rows are multiplied, too.
fn pairs_of_groups() -> Vec<(Scheme, Scheme)> {
    use Scheme::{Fp8Group1x128 as Vec128, Fp8Group128x128 as Blk, Fp8Row as Row, Fp8Tensor as Tensor};
    let of = |a, b| [(Vec128(a), Blk(b)), (Vec128(a), Vec128(b)), (Row(a), Row(b)), (Tensor(a), Tensor(b))];
    [of(E5M2, E4M3), of(E4M3, E5M2)].into_iter().flatten().collect()
}

fn check(handle: &Handle, rng: &mut Noise, [m, n, k]: [usize; 3], pair: (Scheme, Scheme), case: Case) -> f64 {
    let ops = Operands::new(handle, rng, [m, n, k], pair);
    let extras = Extras::new(handle, rng, m, n, &[case.gap]);
    let bound = ops.sums(Accumulation::Precise).with(&extras.inputs(&ops, &case), Gelu::Ieee).unwrap();
    let (mut first, mut worst) = (None, 0f64);
    for config in CONFIGS {
        let mut plan = planned(handle, &case.desc(&ops), config);
        assert_eq!((plan.finish(), plan.workspace_bytes()), (Finish::Fused, 0), "{}", plan.explain());
        let stored = execute(handle, &mut plan, &ops, &extras, &case);
        let found = bound.check(stored.values(&ops, &case).view());
        worst = worst.max(found.unwrap_or_else(|e| panic!("{pair:?}: {e}\n{}", plan.explain())));
        let (name, first) = first.get_or_insert_with(|| (config, stored.clone()));
        assert!(*first == stored, "{pair:?}: {config} differs from {name}");
    }
    worst
}

/// Small, for runs under a sanitizer; with more k-blocks than any ring has stages.
#[test]
fn each_kernel_once() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(601);
    for pair in pairs() {
        check(&handle, &mut rng, [131, 136, 1168], pair, layer());
    }
}

#[test]
fn shapes_that_cut_tiles_stages_and_clusters() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst) = (Noise::new(602), 0f64);
    for pair in pairs() {
        for shape in [[1, 8, 16], [63, 120, 112], [65, 264, 144], [300, 136, 2064], [129, 520, 128]] {
            for case in [
                Case { gap: 8, ..Case::new(DType::Bf16) },
                Case { beta: Some(1.0), alpha: -0.75, gap: 4, ..Case::new(DType::F32) },
            ] {
                worst = worst.max(check(&handle, &mut rng, shape, pair, case));
            }
        }
    }
    // The others of the issue, with the pairs in turn.
    for (shape, pair) in LONG_OR_TALL.into_iter().zip(pairs().into_iter().cycle()) {
        worst = worst.max(check(&handle, &mut rng, shape, pair, Case::new(DType::Bf16)));
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// Blocks take several tiles: 128x128 scales of A into BF16 and added to D, and every other kind once.
#[test]
fn tiles_outnumber_blocks() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(613);
    let plain = Case { gap: 8, ..Case::new(DType::Bf16) };
    for pair in pairs() {
        check(&handle, &mut rng, [2150, 4360, 528], pair, plain);
        if matches!(pair.0, Scheme::Fp8Group128x128(_)) {
            let added = Case { beta: Some(1.0), ..Case::new(DType::F32) };
            check(&handle, &mut rng, [2200, 2312, 1168], pair, added);
        }
    }
}

/// All operands in one allocation, 0xFF between them: the bits of operands apart, and nothing but D is written.
#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(608);
    for (i, pair) in pairs().into_iter().enumerate() {
        let [m, n, k] = [[131, 136, 400], [65, 120, 144], [1, 8, 16], [257, 264, 1168]][i % 4];
        for case in [layer(), Case { gap: 8, ..Case::new(DType::Bf16) }] {
            let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
            let extras = Extras::new(&handle, &mut rng, m, n, &[case.gap]);
            for config in CONFIGS {
                check_guarded(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
            }
        }
    }
}

/// Sides are not exchanged, and codes are not read as of the other format: 0.5 and 4, which have other codes in each.
#[test]
fn codes_are_of_their_side() {
    let Some(handle) = hopper() else { return };
    let [m, n, k] = [64, 72, 128usize];
    for (a, b) in [(E5M2, E4M3), (E4M3, E5M2)] {
        let full = |format, rows: usize, [e5m2, e4m3]: [u8; 2]| {
            let code = if format == E5M2 { e5m2 } else { e4m3 };
            HostQuantMatrix::from_logical(Scheme::Fp8Tensor(format), rows, k, vec![code; rows * k], &[1.0]).unwrap()
        };
        let ops = Operands::of(&handle, full(a, m, [0x38, 0x30]), full(b, n, [0x44, 0x48]));
        let (case, extras) = (Case::new(DType::F32), Extras::new(&handle, &mut Noise::new(603), m, n, &[]));
        for config in CONFIGS {
            let stored = execute(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
            assert!(stored.values(&ops, &case).iter().all(|v| *v == 256.0), "{a} x {b}, {config}");
        }
    }
}

/// Infinities and NaN of E5M2 stay in their row, and the others are what they are without them.
#[test]
fn infinities_stay_in_their_row() {
    let Some(handle) = hopper() else { return };
    let (mut rng, [m, n, k]) = (Noise::new(604), [131, 136, 400]);
    let pair = (Scheme::Fp8Group1x128(E5M2), Scheme::Fp8Group128x128(E4M3));
    let host = quantized(&tiled(&mut rng, m, k), pair.0);
    let mut codes = host.logical_codes().to_vec();
    (codes[70 * k + 390], codes[3 * k + 5]) = (0x7C, 0x7E);
    let host = HostQuantMatrix::from_logical(pair.0, m, k, codes, &host.logical_scales()).unwrap();
    let ops = Operands::of(&handle, host, quantized(&tiled(&mut rng, n, k), pair.1));
    let (case, extras) = (Case::new(DType::Bf16), Extras::new(&handle, &mut rng, m, n, &[]));
    for config in CONFIGS {
        let stored = execute(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
        let d = stored.values(&ops, &case);
        let finite = |row: usize| d.row(row).iter().all(|v| v.is_finite());
        assert!(d.row(70).iter().all(|v| !v.is_finite()) && d.row(3).iter().all(|v| v.is_nan()), "{config}");
        assert!((0..m).filter(|row| ![3, 70].contains(row)).all(finite), "{config}");
    }
}

/// The planner's choice is within the bound at any m, and rows of batch-invariant products have the same bits for all.
#[test]
fn plans_choose_what_there_is() {
    let Some(handle) = hopper() else { return };
    let (mut rng, most, n, k) = (Noise::new(605), 700, 264, 656);
    for pair in pairs() {
        let all = Operands::new(&handle, &mut rng, [most, n, k], pair);
        let (codes, scales) = (all.host_a.logical_codes().to_vec(), all.host_a.logical_scales());
        let mut want: Option<Vec<f32>> = None;
        for m in [most, 1, 33, 128] {
            // Scales of rows and of tiles of 128 are those of its rows, and one is that of all.
            let own = match pair.0 {
                Scheme::Fp8Tensor(_) => scales.clone(),
                Scheme::Fp8Group128x128(_) => scales[..m.div_ceil(128) * k.div_ceil(128)].to_vec(),
                _ => scales[..scales.len() / most * m].to_vec(),
            };
            let a = HostQuantMatrix::from_logical(pair.0, m, k, codes[..m * k].to_vec(), &own).unwrap();
            let ops = Operands::of(&handle, a, all.host_b.clone());
            let (case, extras) = (Case::new(DType::F32), Extras::new(&handle, &mut rng, m, n, &[]));
            let bound = ops.sums(Accumulation::Precise).with(&extras.inputs(&ops, &case), Gelu::Ieee).unwrap();
            let mut plan = handle.plan(&case.desc(&ops)).unwrap();
            let stored = execute(&handle, &mut plan, &ops, &extras, &case);
            bound.check(stored.values(&ops, &case).view()).unwrap_or_else(|e| panic!("{e}\n{}", plan.explain()));
            let mut invariant = handle.plan(&case.desc(&ops).with_batch_invariant(true)).unwrap();
            assert_eq!(invariant.formulation(), Formulation::Sm90, "{}", invariant.explain());
            let mut d = handle.alloc(m * n * 4).unwrap();
            let args = GemmArgs::new(&ops.a, &ops.b, MatMut::new(&mut d, DType::F32, m, n).unwrap());
            invariant.execute(&handle, args.batch_invariant(true)).unwrap();
            let found: Vec<f32> = handle.read(&d.view()).unwrap();
            let values = Array2::from_shape_vec((m, n), found.clone()).unwrap();
            bound.check(values.view()).unwrap_or_else(|e| panic!("{e}\n{}", invariant.explain()));
            let want = want.get_or_insert_with(|| found.clone());
            assert!(found.iter().zip(&*want).all(|(a, b)| a.to_bits() == b.to_bits()), "{pair:?}, m = {m}");
        }
    }
}

#[test]
fn graphs_give_the_eager_bits() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(606);
    // Of alpha 1, alone, there is a loop of its own.
    let cases = pairs().into_iter().zip(CONFIGS.into_iter().cycle());
    for ((pair, config), alpha) in cases.flat_map(|of| [(of, 0.5), (of, 1.0)]) {
        let ops = Operands::new(&handle, &mut rng, [300, 520, 656], pair);
        let extras = Extras::new(&handle, &mut rng, 300, 520, &[8]);
        let case = Case { alpha, gap: 8, ..Case::new(DType::Bf16) };
        let mut plan = planned(&handle, &case.desc(&ops), config);
        let want = execute(&handle, &mut plan, &ops, &extras, &case);
        let mut output = Output::new(&handle, &ops, &extras, &case);
        let graph = capture_among_others(&handle, || plan.execute(&handle, output.args(&ops, &extras, &case))).unwrap();
        for _ in 0..3 {
            output.reset(&handle);
            handle.launch(&graph).unwrap();
            assert!(output.read(&handle, "replay") == want, "{pair:?}, {config}: a replay differs");
        }
    }
}

/// A record of a configuration without kernels for E5M2 is refused, and so are both sides in it.
#[test]
fn what_has_no_kernel_is_refused() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(607);
    for pair in pairs() {
        let ops = Operands::new(&handle, &mut rng, [131, 136, 400], pair);
        let desc = Case::new(DType::Bf16).desc(&ops);
        let good = plan(&handle, &desc, Formulation::Sm90).record().unwrap().to_json().unwrap();
        let (before, rest) = good.split_once("\"sm90\": \"").unwrap();
        let (_, after) = rest.split_once('"').unwrap();
        for config in Sm90Config::ALL.into_iter().filter(|config| !CONFIGS.contains(config)) {
            let record = TuneRecord::from_json(&format!("{before}\"sm90\": \"{config}\"{after}")).unwrap();
            let planned = handle.plan_with(&desc, &PlanOptions::default().with_record(record));
            refused(planned, &["tuning record refused", "sm90 has no such algorithm"]);
        }
    }
    let both = Scheme::Fp8Tensor(E5M2);
    let ops = Operands::new(&handle, &mut rng, [16, 16, 16], (both, both));
    refused(handle.plan(&Case::new(DType::Bf16).desc(&ops)), &["E5M2 by E5M2"]);
}

/// Small, for runs under a sanitizer, too: each kernel of groups of rows, whichever side E5M2 is on.
#[test]
fn groups_are_what_each_is_alone() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(609);
    for (i, pair) in pairs_of_groups().into_iter().enumerate() {
        let (shape, out) = [([256, 400], DType::Bf16), ([128, 1168], DType::F32), ([384, 144], DType::F16)][i % 3];
        check_alone(&handle, &mut rng, shape, ([1.0, -0.5][i % 2], out), pair, &CONFIGS);
    }
}

/// A bias and SiLU behind the sums, too.
#[test]
fn groups_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(613);
    use Scheme::{Fp8Group1x128 as Vec128, Fp8Group128x128 as Blk, Fp8Row as Row};
    for (pair, out) in [
        ((Vec128(E5M2), Blk(E4M3)), DType::Bf16),
        ((Vec128(E4M3), Vec128(E5M2)), DType::F32),
        ((Row(E5M2), Row(E4M3)), DType::F16),
    ] {
        check_groups_between_guards(&handle, &mut rng, pair, out);
    }
}

/// More groups than two rounds of a warp's lanes, most of them empty.
#[test]
fn groups_are_many_and_idle() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(610);
    pairs_of_groups().into_iter().for_each(|pair| check_many(&handle, &mut rng, pair, &CONFIGS));
}

#[test]
fn graphs_follow_counts() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(611);
    let pairs = pairs_of_groups().into_iter();
    pairs.for_each(|pair| check_counts_that_change(&handle, &mut rng, KernelFamily::Sm90E5m2, pair));
}

/// By starts, too, with numbers that make no sense among them.
#[test]
fn graphs_follow_starts_and_counts_up_to_all_rows_and_beyond() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(614);
    let families = [KernelFamily::Sm90E5m2, KernelFamily::Grouped];
    for (i, pair) in pairs_of_groups().into_iter().enumerate() {
        let out = [DType::Bf16, DType::F32][i % 2];
        check_starts_that_change(&handle, &mut rng, families, pair, out);
    }
}

#[test]
fn groups_have_biases_of_their_own() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(615);
    pairs_of_groups().into_iter().for_each(|pair| check_biases(&handle, &mut rng, pair, &CONFIGS));
}

/// Each group's own scale in the place of one: powers of two of it, which change no digit. Of A, of B and of both, whose products are all different, so that neither is taken for the other's.
#[test]
fn groups_have_scales_of_their_own() {
    let Some(handle) = hopper() else { return };
    let (mut rng, [n, k, slot]) = (Noise::new(612), [128, 272, 128]);
    for pair in pairs().into_iter().filter(|pair| matches!(pair.0, Scheme::Fp8Tensor(_))) {
        let of = Groups::of(&handle, &mut rng, [4 * slot, n, k], 4, DType::F32, pair);
        let (taken, by_a, by_b) = ([128i64, 0, 5, 77], [2.0f32, 0.5, 4.0, 0.25], [8.0f32, 1.0, 0.5, 0.125]);
        let counts = numbers(&handle, &taken);
        let times =
            |host: &HostQuantMatrix, by: [f32; 4]| handle.upload(&by.map(|by| by * host.logical_scales()[0])).unwrap();
        let (of_a, of_b) = (times(&of.host_a, by_a), times(&of.host_b, by_b));
        let product = |own: [bool; 2]| -> Vec<f32> {
            let mut d = handle.upload(&vec![f32::NAN; 4 * slot * n]).unwrap();
            let rows = GroupedRows::Masked { slot_rows: slot, counts: (&counts).into() };
            let target = MatMut::new(&mut d, DType::F32, 4 * slot, n).unwrap();
            let mut args = GroupedGemmArgs::new(&of.a, &of.b, 4, rows, target);
            if own[0] {
                args = args.scales_of_a(of_a.view());
            }
            if own[1] {
                args = args.scales_of_b(of_b.view());
            }
            handle.grouped_gemm(args).unwrap();
            handle.read(&d.view()).unwrap()
        };
        let one = product([false, false]);
        for own in [[true, false], [false, true], [true, true]] {
            let found = product(own);
            for (g, (count, (by_a, by_b))) in taken.into_iter().zip(by_a.into_iter().zip(by_b)).enumerate() {
                let by = if own[0] { by_a } else { 1.0 } * if own[1] { by_b } else { 1.0 };
                let (all, written) = (g * slot * n..(g + 1) * slot * n, count as usize * n);
                let ((one, idle_one), (found, idle)) =
                    (one[all.clone()].split_at(written), found[all].split_at(written));
                let words = format!("{pair:?}, scales of groups {own:?}, group {g}");
                let same = |(one, found): (&f32, &f32)| (one * by).to_bits() == found.to_bits();
                assert!(one.iter().zip(found).all(same), "{words}");
                assert!(written == 0 || found.iter().any(|v| *v != 0.0 && v.is_finite()), "{words}: nothing but zeros");
                assert!(idle_one.iter().chain(idle).all(|v| v.is_nan()), "{words}: rows of no group are written");
            }
        }
    }
}

/// Configurations without kernels for E5M2, both sides in it, and what a group of a scale of its own cannot be.
#[test]
fn groups_without_kernels_are_refused() {
    let Some(handle) = hopper() else { return };
    let zeros = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, 128).unwrap();
    let counts = numbers(&handle, &[1, 1]);
    let mut buffer = poisoned(&handle, 256 * 128 * 4);
    let mut call = |(a, b): (Scheme, Scheme), config: Option<Sm90Config>| {
        let (a, b) = (zeros(a, 256), zeros(b, 256));
        let rows = GroupedRows::Masked { slot_rows: 128, counts: (&counts).into() };
        let d = MatMut::new(&mut buffer, DType::Bf16, 256, 128).unwrap();
        let args = GroupedGemmArgs::new(&a, &b, 2, rows, d);
        handle.grouped_gemm(if let Some(config) = config { args.config(config) } else { args })
    };
    for pair in pairs_of_groups() {
        for config in Sm90Config::ALL.into_iter().filter(|config| !CONFIGS.contains(config)) {
            let name = format!("the configuration {config} of a product of e");
            refused(
                call(pair, Some(config)),
                &[&name[..], "whole or of groups", "256x128, 128x128, 64x128 and 64x64-two"],
            );
        }
        call(pair, None).unwrap();
    }
    assert!(of_groups().len() > CONFIGS.len());
    let both = Scheme::Fp8Tensor(E5M2);
    refused(call((both, both), None), &["E5M2 by E5M2"]);
}
