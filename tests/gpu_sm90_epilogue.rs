//! What our product for sm_90 does behind the sums, and its scales of rows and whole matrices, and of 128x128 of A: every epilogue and scale layout in every configuration
//! within the f64 bound, the same bits in all of them, whatever m is and in graphs; biases and residuals at any place; biases of groups; kernels that have one end alone.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "gpu_sm90_epilogue/one_end.rs"]
mod one_end;
#[path = "common/sm90.rs"]
mod sm90;

use common::gemm::*;
use common::*;
use guarded::check_guarded;
use ndarray::s;
use scaled_gemm::reference::Gelu;
use scaled_gemm::{
    Accumulation, Activation, DType, Finish, Formulation, GemmArgs, GemmDesc, GroupedGemmArgs, GroupedRows, Handle,
    HostQuantMatrix, MatMut, MatRef, QuantMatrix, Scheme, Sm90Config, VecRef,
};
use sm90::*;

const PAIRS: [(Scheme, Scheme); 5] = [(VEC, BLK), ROW_PAIR, VECTOR_PAIR, TENSOR_PAIR, BLOCK_A_PAIR];

/// What the L2 cache adds up: the product and D's old value, and nothing else.
fn added() -> Case {
    Case { beta: Some(1.0), alpha: -0.75, gap: 4, ..Case::new(DType::F32) }
}

/// Small, for runs under a sanitizer: each kernel with a whole epilogue, its sums alone, and added to D.
#[test]
fn each_kernel_once() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(171);
    for pair in PAIRS {
        for case in [layer(), Case::new(DType::Bf16), added()] {
            check(&handle, &mut rng, [131, 136, 400], pair, case);
        }
    }
    // Kernels with one end, of more k-blocks than any ring has stages.
    for (pair, case) in [
        (ROW_PAIR, Case { gap: 8, ..Case::new(DType::Bf16) }),
        (VECTOR_PAIR, Case { gap: 4, ..Case::new(DType::F32) }),
        (VECTOR_PAIR, Case { alpha: 1.0, ..added() }),
    ] {
        check(&handle, &mut rng, [131, 136, 2064], pair, case);
    }
}

/// Every bias, activation, residual, beta and output type.
#[test]
fn epilogues() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst, mut computed) = (Noise::new(172), 0f64, 0);
    for pair in PAIRS {
        for (m, n) in [(17, 136), (141, 200)] {
            let ops = Operands::new(&handle, &mut rng, [m, n, 400], pair);
            let extras = Extras::new(&handle, &mut rng, m, n, &[0, 8]);
            let sums = ops.sums(Accumulation::Precise);
            for (i, case) in epilogue_cases(17, 8).chain([layer()]).enumerate() {
                let bound = sums.with(&extras.inputs(&ops, &case), Gelu::Ieee).unwrap();
                let mut firsts = std::collections::HashMap::new();
                // Two of the configurations with each, every two of them in turn.
                let all = of_whole(pair.0, pair.1);
                for config in [all[i % all.len()], all[(i + 1 + i / all.len() % (all.len() - 1)) % all.len()]] {
                    let mut plan = planned(&handle, &case.desc(&ops), config);
                    assert_eq!((plan.finish(), plan.workspace_bytes()), (Finish::Fused, 0), "{}", plan.explain());
                    let stored = execute(&handle, &mut plan, &ops, &extras, &case);
                    let found = bound.check(stored.values(&ops, &case).view());
                    worst = worst.max(found.unwrap_or_else(|e| panic!("{e}; {case:?}\n{}", plan.explain())));
                    let first = firsts.entry(config.k_parts()).or_insert_with(|| stored.clone());
                    assert!(*first == stored, "{config} differs; {case:?}\n{}", plan.explain());
                    computed += 1;
                }
            }
        }
    }
    println!("{computed} computed, largest error {worst:.3} of its tolerance");
}

#[test]
fn shapes_that_cut_tiles_stages_and_clusters() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst) = (Noise::new(173), 0f64);
    for (i, k) in [16, 112, 128, 144, 1040].into_iter().enumerate() {
        for (j, n) in [8, 120, 136, 264].into_iter().enumerate() {
            for (l, m) in [1, 63, 65, 127, 129, 300].into_iter().enumerate() {
                let pair = PAIRS[(i + j + l) % PAIRS.len()];
                let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
                let gap = [0, 8, 40][(i + j) % 3];
                let extras = Extras::new(&handle, &mut rng, m, n, &[gap, 4]);
                let plain = Case { gap, alpha: -0.75, ..Case::new(WIDE[l % 2]) };
                let wide = Case { beta: Some(0.5), bias: Some(DType::Bf16), gap: 4, ..Case::new(DType::F32) };
                worst = worst.max(check_operands(&handle, &ops, &extras, plain));
                worst =
                    worst.max(check_operands(&handle, &ops, &extras, if (i + l) % 2 == 0 { wide } else { added() }));
            }
        }
    }
    // Blocks and pairs of them take several tiles, in more than one band of rows; and a long k.
    for pair in PAIRS {
        for (shape, case) in [
            ([2200, 2312, 272], Case { residual: Some(DType::F16), bias: Some(DType::F32), ..Case::new(DType::Bf16) }),
            ([17, 72, 8192], Case::new(DType::F32)),
            ([600, 2312, 272], added()),
            ([4099, 136, 128], Case { activation: Activation::Silu, gap: 8, ..Case::new(DType::F16) }),
        ] {
            worst = worst.max(check(&handle, &mut rng, shape, pair, case));
        }
    }
    // One kind of scales each, another one than in the list of whole products.
    for (i, shape) in LONG_OR_TALL.into_iter().enumerate() {
        let plain = Case { bias: Some(DType::F16), ..Case::new(DType::Bf16) };
        // Each kind meets both cases: the case does not follow from the kind.
        let case = if i / 4 % 2 == 0 { plain } else { added() };
        worst = worst.max(check(&handle, &mut rng, shape, PAIRS[1 + i % 4], case));
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// 128x128 scales of A: blocks take several tiles, of more k-blocks than a loop's body has, into BF16 alone and added to D.
#[test]
fn tiles_of_128x128_scales_of_a_outnumber_blocks() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(183);
    for (shape, case) in [
        ([2150, 4360, 528], Case { gap: 8, ..Case::new(DType::Bf16) }),
        ([2200, 2312, 1168], Case { beta: Some(1.0), ..Case::new(DType::F32) }),
    ] {
        check(&handle, &mut rng, shape, BLOCK_A_PAIR, case);
    }
}

/// All operands in one allocation, 0xFF between them, biases and residuals at no more than their own size: the bits of operands apart, and nothing but D is written.
#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(181);
    let activated = Case { activation: Activation::Gelu, bias: Some(DType::Bf16), ..Case::new(DType::F16) };
    let cases = [
        ([1, 8, 16], Case { residual: Some(DType::F32), ..activated }),
        ([65, 120, 144], added()),
        ([131, 136, 400], layer()),
        (
            [259, 200, 1040],
            Case { bias: Some(DType::F32), residual: Some(DType::Bf16), gap: 8, ..Case::new(DType::Bf16) },
        ),
    ];
    for (i, pair) in PAIRS.into_iter().enumerate() {
        for (j, ([m, n, k], case)) in cases.into_iter().enumerate() {
            let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
            let extras = Extras::new(&handle, &mut rng, m, n, &[case.gap]);
            // Half of the configurations with each, and both halves with each kind of scales.
            for config in of_whole(pair.0, pair.1).into_iter().skip((i + j) % 2).step_by(2) {
                check_guarded(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
            }
        }
    }
}

/// Only their own size aligns biases and residuals.
#[test]
fn biases_and_residuals_at_any_place() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(174);
    let [m, n, k] = [131, 136, 144];
    for (pair, dtype) in PAIRS.into_iter().zip(WIDE.into_iter().cycle()) {
        let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
        let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
        let case = Case { bias: Some(dtype), residual: Some(dtype), ..Case::new(DType::F16) };
        let desc = case.desc(&ops);
        for config in of_whole(pair.0, pair.1) {
            let mut plan = planned(&handle, &desc, config);
            let want = execute(&handle, &mut plan, &ops, &extras, &case);
            for offset in [1, 2, 3, 4] {
                let bytes = dtype.bytes();
                let mut moved = vec![0u8; offset * bytes];
                moved.extend(bytes_of(dtype, &extras.bias));
                let bias = upload(&handle, &moved);
                let stride = n + 16 / bytes;
                let residual = upload_strided(&handle, &extras.residual, dtype, stride, offset);
                let mut d = poisoned(&handle, m * n * 2);
                let there = MatMut::new(&mut d, DType::F16, m, n).unwrap();
                let residual = MatRef::new(residual.slice(offset * bytes..), dtype, m, n)
                    .unwrap()
                    .with_row_stride(stride)
                    .unwrap();
                let args = GemmArgs::new(&ops.a, &ops.b, there)
                    .bias(VecRef::new(bias.slice(offset * bytes..), dtype, n).unwrap());
                plan.execute(&handle, args.residual(residual)).unwrap();
                let found = handle.stream().clone_dtoh(&d).unwrap();
                assert!(found == want.bytes, "{config}, {dtype}, {offset} behind a multiple of 16 bytes");
            }
        }
    }
}

/// A row of D has the same bits whatever m is, wherever the row stands and in whichever configuration that does not divide k.
#[test]
fn equal_rows_have_equal_results_for_any_m() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(175);
    let (most, n, k) = (1200, 520, 1168);
    for pair in [ROW_PAIR, VECTOR_PAIR, TENSOR_PAIR] {
        let (x, w) = (tiled(&mut rng, most, k), quantized(&tiled(&mut rng, n, k), pair.1));
        let (case, all) = (Case::new(DType::Bf16), quantized(&x, pair.0));
        let rows = |start: usize, m: usize| {
            let codes = all.logical_codes()[start * k..(start + m) * k].to_vec();
            let scales = all.logical_scales();
            // A scale of the whole matrix stays that of all rows.
            let each = scales.len() / most;
            let scales = if each == 0 { &scales[..] } else { &scales[start * each..(start + m) * each] };
            let a = HostQuantMatrix::from_logical(pair.0, m, k, codes, scales).unwrap();
            let ops = Operands::of(&handle, a, w.clone());
            let extras = Extras::new(&handle, &mut Noise::new(176), m, n, &[]);
            let mut plan = planned(&handle, &case.desc(&ops), of_groups()[(start + m) % of_groups().len()]);
            execute(&handle, &mut plan, &ops, &extras, &case).bytes
        };
        let want = rows(0, most);
        for (start, m) in [(0, 1), (0, 64), (7, 1), (100, 63), (300, 129), (128, 128), (1, 300), (0, 700), (600, 600)] {
            assert!(rows(start, m) == want[start * n * 2..(start + m) * n * 2], "rows {start} to {}", start + m);
        }
    }
}

/// The same with 128x128 scales of A, wherever its tiles of 128 rows stand, and of plans that ask for it; a NaN scale of a tile is that of its rows.
#[test]
fn tiles_of_scales_of_a_are_those_of_their_rows() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(182);
    let (most, n, k) = (1200usize, 520, 1168usize);
    let all = quantized(&tiled(&mut rng, most, k), BLK);
    let (w, blocks) = (quantized(&tiled(&mut rng, n, k), VEC), k.div_ceil(128));
    let silu = Case { bias: Some(DType::Bf16), activation: Activation::Silu, alpha: 0.5, ..Case::new(DType::F32) };
    for case in [Case::new(DType::Bf16), silu] {
        let extras = Extras::new(&handle, &mut rng, most, n, &[]);
        let rows = |start: usize, m: usize, config: Option<Sm90Config>, spoiled: Option<usize>| {
            let codes = all.logical_codes()[start * k..(start + m) * k].to_vec();
            let mut scales = all.logical_scales()[start / 128 * blocks..][..m.div_ceil(128) * blocks].to_vec();
            if let Some(tile) = spoiled {
                scales[tile * blocks + 3] = f32::NAN;
            }
            let a = HostQuantMatrix::from_logical(BLK, m, k, codes, &scales).unwrap();
            let ops = Operands::of(&handle, a, w.clone());
            let mut plan = match config {
                Some(config) => planned(&handle, &case.desc(&ops), config),
                None => handle.plan(&case.desc(&ops).with_batch_invariant(true)).unwrap(),
            };
            let mut output = Output::new(&handle, &ops, &extras, &case);
            let args = output.args(&ops, &extras, &case).batch_invariant(config.is_none());
            plan.execute(&handle, args).unwrap();
            let stored = output.read(&handle, &plan.explain());
            (stored.values(&ops, &case), stored.bytes)
        };
        let (_, want) = rows(0, most, Some(COMMON[0]), None);
        let row = want.len() / most;
        for m in [1, 64, 128, 129, 176, 300, 700, 1024] {
            for (i, start) in [0, 128, 512, 1024].into_iter().filter(|start| start + m <= most).enumerate() {
                for config in [Some(COMMON[(i + m) % 4]), None] {
                    let found = rows(start, m, config, None).1;
                    assert!(found == want[start * row..][..m * row], "{m} rows from {start} on, {config:?}, {case:?}");
                }
            }
        }
        for (tile, config) in
            [(0, COMMON[0]), (1, COMMON[0]), (9, COMMON[0]), (2, COMMON[1]), (4, COMMON[2]), (9, COMMON[3])]
        {
            let (values, bytes) = rows(0, most, Some(config), Some(tile));
            for (at, of_row) in values.rows().into_iter().enumerate() {
                let spoiled = at / 128 == tile;
                assert!(!spoiled || of_row.iter().all(|v| v.is_nan()), "{config}: row {at}, tile {tile}");
                assert!(
                    spoiled || bytes[at * row..][..row] == want[at * row..][..row],
                    "{config}: row {at}, tile {tile}"
                );
            }
        }
    }
}

/// A NaN code or scale of A stays in its row, one of B in its column, in kernels that have one end, too.
#[test]
fn not_a_number_stays_in_its_row() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(177);
    let (m, n, k) = (131, 136, 400);
    let spoiled = |rng: &mut Noise, scheme, rows: usize, code: usize, scale: usize| {
        let host = quantized(&tiled(rng, rows, k), scheme);
        let (mut codes, mut scales) = (host.logical_codes().to_vec(), host.logical_scales());
        codes[code * k + 390] = 0x7F;
        // The last one of this row.
        let each = scales.len() / rows;
        scales[scale * each + each - 1] = f32::NAN;
        HostQuantMatrix::from_logical(scheme, rows, k, codes, &scales).unwrap()
    };
    for (pair, out) in
        [(ROW_PAIR, DType::Bf16), (ROW_PAIR, DType::F32), (VECTOR_PAIR, DType::Bf16), (VECTOR_PAIR, DType::F32)]
    {
        let ops = Operands::of(&handle, spoiled(&mut rng, pair.0, m, 70, 11), spoiled(&mut rng, pair.1, n, 100, 3));
        let (case, extras) = (Case::new(out), Extras::new(&handle, &mut rng, m, n, &[]));
        for config in of_whole(pair.0, pair.1) {
            let stored = execute(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case);
            for ((row, col), v) in stored.values(&ops, &case).indexed_iter() {
                let nan = [70, 11].contains(&row) || [100, 3].contains(&col);
                assert!(if nan { v.is_nan() } else { v.is_finite() }, "{config}, {pair:?}: {v} at {row}, {col}");
            }
        }
    }
}

#[test]
fn graphs_give_the_eager_bits_and_follow_a() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(178);
    let with_all = of_whole(VEC, BLK).into_iter().enumerate().map(|(i, config)| (config, PAIRS[i % 4]));
    for (config, pair) in with_all.chain(COMMON.map(|config| (config, BLOCK_A_PAIR))) {
        check_graph(&handle, &mut rng, [300, 520, 656], pair, layer(), config);
    }
}

/// Replays of a captured product give the eager bits, also of another A at the same place.
fn check_graph(
    handle: &Handle,
    rng: &mut Noise,
    [m, n, k]: [usize; 3],
    pair: (Scheme, Scheme),
    case: Case,
    config: Sm90Config,
) {
    let mut ops = Operands::new(handle, rng, [m, n, k], pair);
    let extras = Extras::new(handle, rng, m, n, &[case.gap]);
    let mut plan = planned(handle, &case.desc(&ops), config);
    let want = execute(handle, &mut plan, &ops, &extras, &case);
    let mut output = Output::new(handle, &ops, &extras, &case);
    let graph = capture_among_others(handle, || plan.execute(handle, output.args(&ops, &extras, &case))).unwrap();
    let replay = |output: &mut Output| {
        output.reset(handle);
        handle.launch(&graph).unwrap();
        output.read(handle, "replay")
    };
    for _ in 0..3 {
        assert!(replay(&mut output) == want, "{config}, {pair:?}: a replay differs");
    }
    rewrite(handle, &tiled(rng, m, k), &mut ops.a);
    let follows = execute(handle, &mut plan, &ops, &extras, &case);
    assert!(follows != want && replay(&mut output) == follows, "{config}, {pair:?}: the replay does not follow A");
}

/// Codes are all that is left to the epilogue kernel.
#[test]
fn codes_are_left_to_their_kernel() {
    let Some(handle) = hopper() else { return };
    let (a, b) = TENSOR_PAIR;
    let desc = GemmDesc::new(131, 144, 400, a, b, DType::E4M3);
    let plan = plan(&handle, &desc, Formulation::Sm90);
    assert_eq!(plan.finish(), Finish::EpilogueKernel, "{}", plan.explain());
    assert!(plan.explain().contains("finish not taken: fused: our product stores"), "{}", plan.explain());
}

/// Bias, activation and F16 output of groups, as if each were multiplied alone.
#[test]
fn groups_have_biases_of_their_own() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(179);
    let (slot, n, k, counts) = (132, 128, 272, [5i64, 0, 132, 77]);
    let m = slot * counts.len();
    let (x, w) = (tiled(&mut rng, m, k), tiled(&mut rng, counts.len() * n, k));
    let a = QuantMatrix::from_host(&handle, &quantized(&x, VEC)).unwrap();
    let b = QuantMatrix::from_host(&handle, &quantized(&w, BLK)).unwrap();
    let there = handle.stream().clone_htod(&counts).unwrap();
    for (bias_type, out, activation) in [
        (DType::F32, DType::F16, Activation::Gelu),
        (DType::Bf16, DType::F32, Activation::None),
        (DType::F16, DType::Bf16, Activation::Silu),
    ] {
        let case = Case { bias: Some(bias_type), activation, ..Case::new(out) };
        let (mut biases, row) = (Vec::new(), n * out.bytes());
        let mut want = vec![0xFF; m * row];
        for (g, count) in counts.into_iter().enumerate() {
            let count = count as usize;
            let extras = Extras::new(&handle, &mut rng, count.max(1), n, &[0]);
            biases.extend(extras.bias.iter().copied());
            if count == 0 {
                continue;
            }
            let x = x.slice(s![g * slot..g * slot + count, ..]).to_owned();
            let w = w.slice(s![g * n..(g + 1) * n, ..]).to_owned();
            let ops = Operands::of(&handle, quantized(&x, VEC), quantized(&w, BLK));
            let stored =
                execute(&handle, &mut planned(&handle, &case.desc(&ops), of_groups()[0]), &ops, &extras, &case);
            want[g * slot * row..][..count * row].copy_from_slice(&stored.bytes);
        }
        let bias = upload(&handle, &bytes_of(bias_type, &biases));
        for config in of_groups() {
            let mut d = poisoned(&handle, m * row);
            let rows = GroupedRows::Masked { slot_rows: slot, counts: (&there).into() };
            let to = MatMut::new(&mut d, out, m, n).unwrap();
            let bias = VecRef::new(&bias, bias_type, biases.len()).unwrap();
            let args = GroupedGemmArgs::new(&a, &b, counts.len(), rows, to).config(config);
            handle.grouped_gemm(args.bias(bias).activation(activation)).unwrap();
            assert!(handle.stream().clone_dtoh(&d).unwrap() == want, "{config}, {bias_type} into {out}");
        }
        let rows = GroupedRows::Masked { slot_rows: slot, counts: (&there).into() };
        let mut d = poisoned(&handle, m * row);
        let to = MatMut::new(&mut d, out, m, n).unwrap();
        let short = VecRef::new(&bias, bias_type, n).unwrap();
        let args = GroupedGemmArgs::new(&a, &b, counts.len(), rows, to).bias(short);
        refused(handle.grouped_gemm(args), &["bias: 128 numbers", "must have 4 * 128"]);
    }
}
