//! Our product for sm_90: every configuration within the f64 bound at shapes that cut tiles, stages and clusters; the same bits in every
//! configuration, run, graph and for any m; groups of rows, whose places and counts the device alone knows; refusals in words.
#![cfg(feature = "cuda")]

#[path = "gpu_sm90/changing.rs"]
mod changing;
mod common;
#[path = "gpu_sm90/groups.rs"]
mod groups;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "gpu_sm90/maps.rs"]
mod maps;
#[path = "common/sm90.rs"]
mod sm90;
#[path = "common/sm90_groups.rs"]
mod sm90_groups;
#[path = "gpu_sm90/soak.rs"]
mod soak;
#[path = "common/told.rs"]
mod told;

use common::gemm::*;
use common::*;
use guarded::check_guarded;
use ndarray::s;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    Accumulate, Activation, DType, Epilogue, Finish, Formulation, GemmDesc, GroupedGemmArgs, GroupedRows, Handle,
    KernelFamily, MatMut, MatRef, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Scheme, Sm90Config, TuneRecord,
};
use sm90::*;
use sm90_groups::*;

/// Small, for runs under a sanitizer: each kernel without groups.
#[test]
fn each_kernel_once() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(141);
    // The last has more k-blocks than any ring has stages: racecheck sees stages that are filled again.
    let shapes = [[1, 8, 16], [131, 136, 400], [131, 136, 400], [131, 136, 2064]];
    for (shape, out) in shapes.into_iter().zip([DType::Bf16, DType::Bf16, DType::F32, DType::Bf16]) {
        check(&handle, &mut rng, shape, (VEC, BLK), Case { gap: 8, ..Case::new(out) });
    }
}

#[test]
fn shapes_that_cut_tiles_stages_and_clusters() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst) = (Noise::new(142), 0f64);
    for (i, k) in [16, 112, 128, 144, 1040].into_iter().enumerate() {
        for (j, n) in [8, 120, 136, 264].into_iter().enumerate() {
            for m in [1, 63, 65, 127, 129, 300] {
                let ops = Operands::new(&handle, &mut rng, [m, n, k], (VEC, BLK));
                let gap = [0, 8, 40][(i + j) % 3];
                let extras = Extras::new(&handle, &mut rng, m, n, &[gap, 4]);
                let narrow = check_operands(&handle, &ops, &extras, Case { gap, ..Case::new(DType::Bf16) });
                let wide = check_operands(&handle, &ops, &extras, Case { gap: 4, ..Case::new(DType::F32) });
                worst = worst.max(narrow).max(wide);
            }
        }
    }
    for shape in [[257, 520, 2064], [1000, 1544, 272], [17, 72, 8192], [4099, 136, 128]].into_iter().chain(LONG_OR_TALL)
    {
        worst = worst.max(check(&handle, &mut rng, shape, (VEC, BLK), Case::new(DType::Bf16)));
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// Tiles of multiples of 16 columns: 128x128 scales meet at each of their columns that they may meet at, the last tile is cut at each of them, too, and blocks that divide k have
/// none of it, some, and unequal parts. What alpha asks for is done by kernels with other ends, which give the same sums.
#[test]
fn tiles_that_end_plainly() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(153);
    let bf16 = Case { gap: 8, ..Case::new(DType::Bf16) };
    // 1152 columns are eight tiles of 144, which begin at each multiple of 16 of a tile of scales; of tiles of 80 columns it takes 640, of 96 384.
    for (i, n) in (1152..=1296).step_by(16).enumerate() {
        let [m, k] = [[1, 1040], [65, 2064], [129, 128], [192, 400], [300, 1168]][i % 5];
        check(&handle, &mut rng, [m, n, k], (VEC, BLK), bf16);
        check(&handle, &mut rng, [m, n + 8, k], (VEC, BLK), Case { alpha: [1.0, -0.5][i % 2], ..bf16 });
    }
    // Several rounds of all of them.
    check(&handle, &mut rng, [1500, 3080, 528], (VEC, BLK), bf16);
}

/// Those are for no other product: neither offered for one, nor taken from a record.
#[test]
fn what_ends_plainly_is_refused_for_other_products() {
    let Some(handle) = hopper() else { return };
    let desc = |a, b, out| GemmDesc::new(4096, 576, 7168, a, b, out);
    let plain = desc(VEC, BLK, DType::Bf16);
    let bias = Epilogue { bias: Some(DType::Bf16), ..Epilogue::default() };
    let wide = desc(VEC, BLK, DType::F32);
    let others = [
        desc(VEC, BLK, DType::F16),
        wide,
        wide.with_accumulate(Accumulate::Add),
        plain.with_epilogue(bias),
        plain.with_epilogue(Epilogue { activation: Activation::Relu, ..Epilogue::default() }),
        plain.with_epilogue(Epilogue { residual: Some(DType::Bf16), ..Epilogue::default() }),
        desc(VECTOR_PAIR.0, VECTOR_PAIR.1, DType::Bf16),
        desc(ROW_PAIR.0, ROW_PAIR.1, DType::Bf16),
        desc(BLOCK_A_PAIR.0, BLOCK_A_PAIR.1, DType::Bf16),
    ];
    let offered = |desc: &GemmDesc| plan(&handle, desc, Formulation::Sm90).record().unwrap().to_json().unwrap();
    for config in Sm90Config::ALL {
        planned(&handle, &plain, config);
    }
    for desc in others {
        let text = offered(&desc);
        let (before, rest) = text.split_once("\"sm90\": \"").unwrap();
        let (first, after) = rest.split_once('"').unwrap();
        for config in Sm90Config::ALL.into_iter().filter(|config| config.ends_plainly()) {
            assert_ne!(first, config.to_string(), "{desc}");
            let record = TuneRecord::from_json(&format!("{before}\"sm90\": \"{config}\"{after}")).unwrap();
            let planned = handle.plan_with(&desc, &PlanOptions::default().with_record(record));
            refused(planned, &["tuning record refused", "sm90 has no such algorithm"]);
        }
    }
}

/// All operands in one allocation, 0xFF between them: the bits of operands apart, and nothing but D is written.
#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(150);
    for ([m, n, k], case) in [
        ([1, 8, 16], Case::new(DType::Bf16)),
        ([65, 120, 144], Case { gap: 8, ..Case::new(DType::F16) }),
        ([131, 136, 400], Case { gap: 4, ..Case::new(DType::F32) }),
        ([259, 200, 2064], Case { gap: 8, ..Case::new(DType::Bf16) }),
        ([131, 1160, 1040], Case { gap: 8, ..Case::new(DType::Bf16) }),
    ] {
        let ops = Operands::new(&handle, &mut rng, [m, n, k], (VEC, BLK));
        let extras = Extras::new(&handle, &mut rng, m, n, &[]);
        for config in serving(VEC, BLK, &case) {
            check_guarded(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
        }
    }
}

/// Blocks and pairs of them take several tiles, in more than one band of rows, the last of which have no rows or columns for some warpgroups: of fewer k-blocks than a loop's body has, as many, and more.
#[test]
fn tiles_outnumber_blocks() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(149);
    let bf16 = Case { gap: 8, ..Case::new(DType::Bf16) };
    for ([m, n, k], case) in [
        ([2200, 2312, 272usize], Case { alpha: -0.5, ..bf16 }),
        ([2150, 2312, 512], bf16),
        ([2150, 4360, 528], Case { gap: 8, ..Case::new(DType::F16) }),
        ([2150, 2312, 656], Case { gap: 4, ..Case::new(DType::F32) }),
        ([2150, 2312, 1024], bf16),
        ([2200, 2312, 1168], bf16),
        // Whole rounds of rings of five stages, so that each tile begins at the first: an odd number of them, and an even one.
        ([2150, 2312, 640], bf16),
        ([2150, 2312, 1280], bf16),
        // Of twelve stages two rounds.
        ([2150, 2312, 3072], bf16),
        // Four k-blocks behind the eight of a loop's body, and one or three more.
        ([2200, 2312, 1536], bf16),
        ([2150, 2312, 1552], bf16),
        ([2150, 2312, 1920], Case { gap: 8, ..Case::new(DType::F16) }),
    ] {
        let pairs = usize::div_ceil(m, 256) * usize::div_ceil(n, 256);
        assert!(pairs > handle.device().sm_count as usize / 2, "{pairs} pairs of the largest tiles");
        check(&handle, &mut rng, [m, n, k], (VEC, BLK), case);
    }
}

#[test]
fn alpha_multiplies_the_sum() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(143);
    for alpha in [0.0, -0.75, 3.0, 1e-6] {
        check(&handle, &mut rng, [130, 136, 400], (VEC, BLK), Case { alpha, gap: 8, ..Case::new(DType::Bf16) });
    }
}

/// A NaN code stays in the row that it is of, in kernels that have one end, too: of the largest tiles from eight k-blocks on.
#[test]
fn not_a_number_stays_in_its_row() {
    let Some(handle) = hopper() else { return };
    [400, 1168].into_iter().for_each(|k| not_a_number(&handle, k));
}

fn not_a_number(handle: &Handle, k: usize) {
    let mut rng = Noise::new(144);
    let (m, n) = (131, 136);
    let host = quantized(&tiled(&mut rng, m, k), VEC);
    let mut codes = host.logical_codes().to_vec();
    codes[70 * k + k - 10] = 0x7F;
    let host = scaled_gemm::HostQuantMatrix::from_logical(VEC, m, k, codes, &host.logical_scales()).unwrap();
    let ops = Operands::of(handle, host, quantized(&tiled(&mut rng, n, k), BLK));
    let (case, extras) = (Case::new(DType::Bf16), Extras::new(handle, &mut rng, m, n, &[]));
    for config in Sm90Config::ALL {
        let stored = execute(handle, &mut planned(handle, &case.desc(&ops), config), &ops, &extras, &case);
        let d = stored.values(&ops, &case);
        let nan = |row: usize| d.row(row).iter().all(|v| v.is_nan());
        let finite = |row: usize| d.row(row).iter().all(|v| v.is_finite());
        assert!(nan(70) && (0..m).filter(|row| *row != 70).all(finite), "{config}, k = {k}");
    }
}

/// A row of D has the same bits whatever m is, wherever the row stands and in whichever configuration that does not divide k.
#[test]
fn equal_rows_have_equal_results_for_any_m() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(145);
    let (most, n, k) = (1200, 520, 1168);
    let (x, w) = (tiled(&mut rng, most, k), quantized(&tiled(&mut rng, n, k), BLK));
    let case = Case::new(DType::Bf16);
    let all: Vec<_> = serving(VEC, BLK, &case).into_iter().filter(|config| config.k_parts() == 1).collect();
    let rows = |start: usize, m: usize| {
        let part = x.slice(s![start..start + m, ..]).to_owned();
        let ops = Operands::of(&handle, quantized(&part, VEC), w.clone());
        let extras = Extras::new(&handle, &mut Noise::new(146), m, n, &[]);
        let mut plan = planned(&handle, &case.desc(&ops), all[(start + m) % all.len()]);
        let stored = execute(&handle, &mut plan, &ops, &extras, &case);
        (stored.bytes, plan.explain())
    };
    let (want, _) = rows(0, most);
    for (start, m) in [
        (0, 1),
        (0, 64),
        (7, 1),
        (100, 63),
        (300, 129),
        (128, 128),
        (1, 300),
        (0, 700),
        (600, 600),
        (2, 2),
        (2, 3),
        (2, 4),
        (2, 5),
        (2, 6),
        (2, 7),
        (2, 8),
        (2, 9),
    ] {
        let (found, words) = rows(start, m);
        assert!(found == want[start * n * 2..(start + m) * n * 2], "rows {start} to {}\n{words}", start + m);
    }
}

#[test]
fn graphs_give_the_eager_bits_and_follow_a() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(147);
    let (m, n, k) = (300, 520, 1168);
    // Of alpha 1, alone, there are kernels of their own.
    for (config, alpha) in Sm90Config::ALL.into_iter().flat_map(|config| [(config, 0.5), (config, 1.0)]) {
        let mut ops = Operands::new(&handle, &mut rng, [m, n, k], (VEC, BLK));
        let extras = Extras::new(&handle, &mut rng, m, n, &[]);
        let case = Case { alpha, gap: 8, ..Case::new(DType::Bf16) };
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
        // Maps are made anew for operands elsewhere, and again for the first ones.
        let other = Operands::new(&handle, &mut rng, [m, n, k], (VEC, BLK));
        let elsewhere = execute(&handle, &mut plan, &other, &extras, &case);
        assert!(elsewhere != follows && execute(&handle, &mut plan, &ops, &extras, &case) == follows, "{config}");
    }
}

#[test]
fn what_it_does_not_do_is_refused_with_the_reason() {
    let Some(handle) = hopper() else { return };
    let ask = |desc: GemmDesc| {
        desc.check("test").unwrap();
        handle.plan_with(&desc, &PlanOptions::default().with_formulation(Formulation::Sm90))
    };
    let desc = |a, b| GemmDesc::new(20, 520, 576, a, b, DType::Bf16);
    let good = desc(VEC, BLK);
    let mx = Scheme::Mxfp8(E4M3);
    refused(ask(desc(mx, mx)), &["sm90", "it serves fp8-1x128:e4m3 x fp8-128x128:e4m3", "supports"]);
    // The algorithm of a record is for its own formulation.
    let record = ask(good).unwrap().record().unwrap().to_json().unwrap();
    let (from, to) = ("\"formulation\": \"sm90\"", "\"formulation\": \"native\"");
    assert!(record.contains(from), "{from} is not in {record}");
    let forged = TuneRecord::from_json(&record.replacen(from, to, 1)).unwrap();
    let planned = handle.plan_with(&good, &PlanOptions::default().with_record(forged));
    refused(planned, &["tuning record refused", "native has no such algorithm"]);
    let plan = ask(good).unwrap();
    assert_eq!((plan.finish(), plan.workspace_bytes()), (Finish::Fused, 0));
    assert!(plan.explain().contains("it was asked for"), "{}", plan.explain());
    // First where it was measured to be, or its rule says so; never left out.
    let of = |m| handle.plan(&GemmDesc::new(m, 24576, 1536, VEC, BLK, DType::Bf16)).unwrap();
    assert_eq!(of(8192).formulation(), Formulation::Sm90);
    assert!(of(8192).explain().contains("sm90, fused: faster than cuBLASLt's products, "), "{}", of(8192).explain());
}

/// Small, for runs under a sanitizer: each kernel of groups; every group as if it were multiplied alone.
#[test]
fn groups_are_what_each_is_alone() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(151);
    let (n, gap) = (256, 8);
    // Empty ones, one row, whole tiles and cut ones, a start at no multiple of 128, and rows between them.
    let places = [(0, 128), (128, 0), (128, 1), (256, 129), (388, 60), (512, 0), (512, 257), (896, 5)];
    let (starts, counts): (Vec<i64>, Vec<i64>) = places.into_iter().unzip();
    let m = 1000;
    // The largest tiles have kernels with one end from eight k-blocks on.
    for (k, alpha, out) in
        [(400, 1.0, DType::Bf16), (1168, 1.0, DType::Bf16), (400, -0.5, DType::Bf16), (400, 1.0, DType::F32)]
    {
        let mut of = Groups::new(&handle, &mut rng, [m, n, k], places.len(), out);
        of.poison_gaps(&handle, &places);
        let size = out.bytes();
        let want = of.want(&handle, alpha, &places);
        for config in of_groups() {
            let mut d = poisoned(&handle, m * (n + gap) * size + 1024);
            let (starts, counts) = (numbers(&handle, &starts), numbers(&handle, &counts));
            let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
            of.enqueue(&handle, places.len(), rows, &mut d, gap, |args| args.alpha(alpha).config(config)).unwrap();
            assert!(rows_of_d(&handle, &d, m, n * size, gap * size) == want, "{config}, k = {k}, alpha {alpha}, {out}");
        }
    }
}

/// Small, for runs under a sanitizer, too: the same with scales of rows and matrices.
#[test]
fn groups_are_what_each_is_alone_with_scales_of_rows_and_matrices() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(158);
    let (m, n, k, gap) = (900, 256, 272, 8);
    let places = [(0, 130), (132, 0), (132, 1), (256, 129), (512, 257), (896, 4)];
    let (starts, counts): (Vec<i64>, Vec<i64>) = places.into_iter().unzip();
    let (starts, counts) = (numbers(&handle, &starts), numbers(&handle, &counts));
    // In BF16 by kernels that have no other end.
    for (schemes, alpha, out) in
        [(ROW_PAIR, 1.0, DType::Bf16), (TENSOR_PAIR, -0.5, DType::F32), (TENSOR_PAIR, 1.0, DType::Bf16)]
    {
        let mut of = Groups::of(&handle, &mut rng, [m, n, k], places.len(), out, schemes);
        of.poison_gaps(&handle, &places);
        let (want, size) = (of.want(&handle, alpha, &places), out.bytes());
        for config in of_groups() {
            let mut d = poisoned(&handle, m * (n + gap) * size + 1024);
            let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
            of.enqueue(&handle, places.len(), rows, &mut d, gap, |args| args.alpha(alpha).config(config)).unwrap();
            assert!(rows_of_d(&handle, &d, m, n * size, gap * size) == want, "{config}, {schemes:?}");
        }
        // In slots of 128 rows each, seven of them.
        let counts = [128i64, 0, 5, 300, 127, 64, 1];
        let of = Groups::of(&handle, &mut rng, [896, n, k], 7, out, schemes);
        let taken: Vec<_> = counts.iter().enumerate().map(|(g, count)| (128 * g as i64, (*count).min(128))).collect();
        let (want, counts_there) = (of.want(&handle, 1.0, &taken), numbers(&handle, &counts));
        let mut d = poisoned(&handle, 896 * n * size + 1024);
        let rows = GroupedRows::Masked { slot_rows: 128, counts: (&counts_there).into() };
        of.enqueue(&handle, 7, rows, &mut d, 0, |args| args).unwrap();
        assert!(rows_of_d(&handle, &d, 896, n * size, 0) == want, "slots, {schemes:?}");
    }
}

#[test]
fn slots_hold_their_first_rows() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(152);
    // The last: eight k-blocks, four and one.
    [144, 1040, 1552].into_iter().for_each(|k| slots_of(&handle, &mut rng, k));
}

fn slots_of(handle: &Handle, rng: &mut Noise, k: usize) {
    // Those about 64 and 192 fill a warpgroup's first or second 64 rows of the largest tile, or one row more.
    let (n, slot, counts) = (128, 256, [0i64, 16, 300, 256, 200, -3, 1, 129, 64, 65, 192, 193]);
    let mut of = Groups::new(handle, rng, [slot * counts.len(), n, k], counts.len(), DType::Bf16);
    let clamped: Vec<_> =
        counts.iter().enumerate().map(|(g, c)| ((g * slot) as i64, (*c).clamp(0, slot as i64))).collect();
    of.poison_gaps(handle, &clamped);
    let want = of.want(handle, 1.0, &clamped);
    for config in of_groups() {
        let mut d = poisoned(handle, slot * counts.len() * n * 2 + 1024);
        let counts_there = numbers(handle, &counts);
        let rows = GroupedRows::Masked { slot_rows: slot, counts: (&counts_there).into() };
        of.enqueue(handle, counts.len(), rows, &mut d, 0, |args| args.config(config)).unwrap();
        assert!(rows_of_d(handle, &d, slot * counts.len(), 2 * n, 0) == want, "{config}, k = {k}");
    }
}

/// More groups than a warp has lanes, most of them empty; none at all; the configuration that the host takes by itself.
#[test]
fn any_number_of_groups() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(153);
    let (n, k) = (128, 272);
    for groups in [1, 2, 33, 70, 257, 1000] {
        let mut places = Vec::new();
        let mut at = 0;
        for g in 0..groups as i64 {
            let count = if groups > 60 && g % 9 != 4 { 0 } else { [5, 128, 0, 77, 200][g as usize % 5] };
            places.push((at, count));
            at += (count + 127) / 128 * 128;
        }
        let m = at as usize + 128;
        let of = Groups::new(&handle, &mut rng, [m, n, k], groups, DType::Bf16);
        let (starts, counts): (Vec<i64>, Vec<i64>) = places.iter().copied().unzip();
        let (starts, counts) = (numbers(&handle, &starts), numbers(&handle, &counts));
        for expected in [None, Some(1), Some(4096)] {
            let mut d = poisoned(&handle, m * n * 2 + 1024);
            let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
            let d_rows = MatMut::new(&mut d, DType::Bf16, m, n).unwrap();
            let mut args = GroupedGemmArgs::new(&of.a, &of.b, groups, rows, d_rows);
            if let Some(rows) = expected {
                args = args.expected_rows(rows);
            }
            handle.grouped_gemm(args).unwrap();
            assert!(rows_of_d(&handle, &d, m, 2 * n, 0) == of.want(&handle, 1.0, &places), "{groups}, {expected:?}");
        }
    }
    let none = Groups::new(&handle, &mut rng, [128, n, k], 0, DType::Bf16);
    let mut d = poisoned(&handle, 128 * n * 2);
    let nothing = numbers(&handle, &[]);
    let rows = GroupedRows::Masked { slot_rows: 128, counts: (&nothing).into() };
    none.enqueue(&handle, 0, rows, &mut d, 0, |args| args).unwrap();
    assert!(handle.stream().clone_dtoh(&d).unwrap().iter().all(|b| *b == 0xFF));
}

/// Whatever the device's numbers say, nothing outside of A and D is touched, no two groups share a row, and groups that make sense are multiplied.
#[test]
fn numbers_that_make_no_sense_are_left_out() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(154);
    let (m, n) = (640, 128);
    let none = (0, 0);
    let told_and_taken = [
        // A negative count, an odd row, more rows than up to the next group, and than up to the end of A.
        (
            [(0, 100), (128, -5), (129, 10), (256, 300), (384, 50), (512, i64::MAX)],
            [(0, 100), none, none, (256, 128), (384, 50), (512, 128)],
        ),
        // Before A; the next before the own; before an earlier one.
        (
            [(-128, 64), (0, 200), (64, 64), (256, 10), (128, 30), (256, 40)],
            [none, (0, 64), (64, 64), none, none, (256, 40)],
        ),
        // The last rows; behind A, and what comes after that.
        (
            [(0, 4), (636, 100), (640, 4), (1 << 40, 10), (4, 4), (i64::MAX, 1)],
            [(0, 4), (636, 4), none, none, none, none],
        ),
        // The least numbers.
        (
            [(i64::MIN, 1), (0, i64::MIN), (0, 8), (i64::MIN, 5), (8, 8), (644, 8)],
            [none, none, none, none, (8, 8), none],
        ),
    ];
    // Of as many k-blocks as kernels with one end have.
    for k in [144, 1040] {
        told_and_taken.iter().for_each(|(told, taken)| groups_told(&handle, &mut rng, [m, n, k], told, taken));
    }
    // The largest start goes on from one round of 32 groups to the next.
    let mut told: Vec<_> = (0..70).map(|g| (8 * g, 8)).collect();
    let mut taken = told.clone();
    (told[31], told[40], told[69]) = ((312, 8), (300, 8), (552, 90));
    (31..=40).for_each(|g| taken[g] = none);
    taken[69] = (552, 88);
    groups_told(&handle, &mut rng, [m, n, 144], &told, &taken);
}

/// D of groups that are told to lie elsewhere than they are taken to, and how many were.
fn groups_told(handle: &Handle, rng: &mut Noise, [m, n, k]: [usize; 3], told: &[(i64, i64)], taken: &[(i64, i64)]) {
    let of = Groups::new(handle, rng, [m, n, k], told.len(), DType::Bf16);
    let want = of.want(handle, 1.0, taken);
    let clamped = told.iter().zip(taken).filter(|(told, taken)| told.1 != taken.1).count() as u32;
    let (starts, counts): (Vec<i64>, Vec<i64>) = told.iter().copied().unzip();
    let (starts, counts) = (numbers(handle, &starts), numbers(handle, &counts));
    for config in of_groups() {
        let mut d = poisoned(handle, m * n * 2 + 1024);
        let mut found = handle.upload(&[77u32]).unwrap();
        let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
        let d_rows = MatMut::new(&mut d, DType::Bf16, m, n).unwrap();
        let args = GroupedGemmArgs::new(&of.a, &of.b, told.len(), rows, d_rows).config(config);
        handle.grouped_gemm(args.clamped(found.view_mut())).unwrap();
        assert!(rows_of_d(handle, &d, m, 2 * n, 0) == want, "{config}, {told:?}");
        assert_eq!(handle.read::<u32>(&found.view()).unwrap(), [clamped], "{config}, {told:?}");
    }
}

/// A graph of quantizer and product, the one directly behind the other, keeps what it was captured from: all in memory of this crate.
#[test]
fn a_graph_keeps_quantized_groups() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(157);
    let (m, n, k, places) = (512, 256, 656, [(0, 200), (256, 77)]);
    let of = Groups::new(&handle, &mut rng, [m, n, k], places.len(), DType::Bf16);
    let want = of.want(&handle, 1.0, &places);
    let mut d = handle.alloc(m * n * 2).unwrap();
    let poison = vec![0xFFu8; m * n * 2];
    handle.load_kernels(&[KernelFamily::Sm90]).unwrap();
    let graph = {
        let x = handle.upload(&bytes_of(DType::F32, of.x.iter())).unwrap();
        let mut a = QuantMatrix::zeros(&handle, VEC, m, k).unwrap();
        let starts = handle.upload(&places.map(|(start, _)| start)).unwrap();
        let counts = handle.upload(&places.map(|(_, count): (i64, i64)| count)).unwrap();
        let graph = capture_owned(&handle, || {
            let x = MatRef::new(&x, DType::F32, m, k)?;
            handle.quantize_into(&x, Recipe::new(VEC), QuantizeTo::Plain(&mut a))?;
            let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
            let d = MatMut::new(&mut d, DType::Bf16, m, n)?;
            handle.grouped_gemm(GroupedGemmArgs::new(&a, &of.b, places.len(), rows, d))
        });
        graph.unwrap()
    };
    drop(of);
    // What was given back is written by others.
    let scales =
        [m * k.div_ceil(128), 2 * n.div_ceil(128) * k.div_ceil(128).next_multiple_of(4)].map(|count| 4 * count);
    let lengths = [m * k * 4, m * k, 2 * n * k, scales[0], scales[1], 16, 16];
    let others = lengths.map(|bytes| [(); 4].map(|()| poisoned(&handle, bytes)));
    for launch in 0..4 {
        handle.write(&mut d.view_mut(), &poison).unwrap();
        handle.launch(&graph).unwrap();
        assert!(handle.read_bytes(&d.view()).unwrap() == want, "launch {launch}");
    }
    drop(others);
}

/// One captured graph takes the counts that the device has by then.
#[test]
fn graphs_follow_counts() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(155);
    for pair in [(VEC, BLK), VECTOR_PAIR, ROW_PAIR] {
        check_counts_that_change(&handle, &mut rng, KernelFamily::Sm90, pair);
    }
}
