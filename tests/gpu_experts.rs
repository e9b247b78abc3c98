//! Rows of experts on the GPU: one cast of the whole padded buffer and one grouped product, captured into one graph whose launches find other
//! tokens and counts, give what each expert gives alone, bit for bit; so do slots of other pairs. Gradients are those of f64 sums. What is done to rows before they are
//! multiplied is in `gpu_experts_rows`.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/experts_signal.rs"]
mod experts_signal;
#[path = "gpu_experts/grouped_tensors.rs"]
mod grouped_tensors;
#[path = "gpu_experts/layer.rs"]
mod layer;
#[path = "gpu_experts/signal.rs"]
mod signal;
#[path = "gpu_experts/streams.rs"]
mod streams;
#[path = "gpu_experts/thousand.rs"]
mod thousand;
#[path = "gpu_experts/transposes.rs"]
mod transposes;

use common::*;
use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::reference::{self, sqnr_db};
use scaled_gemm::{
    DType, DeviceBuffer, Formulation, Fp8Format, GemmArgs, GemmDesc, GroupedGemmArgs, GroupedRows,
    GroupedWeightGradient, Handle, HostParts, HostQuantMatrix, KernelFamily, MatMut, MatRef, PlanOptions, QuantMatrix,
    QuantizeTo, Recipe, Scheme, Sm90Config, VecRef,
};

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
const EXPERTS: usize = 5;
const N: usize = 256;
const K: usize = 400;
/// Room of each expert, a multiple of 128 rows.
const ROOM: [usize; EXPERTS] = [128, 256, 128, 384, 128];

fn starts() -> [usize; EXPERTS] {
    std::array::from_fn(|g| ROOM[..g].iter().sum())
}

/// D of one expert by a plan for its rows alone, of the order of sums that groups have.
fn alone(handle: &Handle, x: &[u8], w: &[u8], rows: usize) -> Vec<u8> {
    let (x, w) = (upload(handle, x), upload(handle, w));
    let a = handle.quantize(&MatRef::new(&x, DType::Bf16, rows, K).unwrap(), Recipe::new(A)).unwrap();
    let b = handle.quantize(&MatRef::new(&w, DType::Bf16, N, K).unwrap(), Recipe::new(B)).unwrap();
    let options = PlanOptions::default().with_formulation(Formulation::Sm90);
    let mut plan =
        handle.plan_with(&GemmDesc::new(rows, N, K, A, B, DType::Bf16).with_batch_invariant(true), &options).unwrap();
    let mut d = poisoned(handle, rows * N * 2);
    let args = GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::Bf16, rows, N).unwrap());
    plan.execute(handle, args.batch_invariant(true)).unwrap();
    handle.stream().clone_dtoh(&d).unwrap()
}

#[test]
fn a_padded_buffer_gives_what_each_expert_gives_alone() {
    let Some(handle) = handle() else { return };
    if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        println!("skipped: {} has no grouped product", handle.device());
        return;
    }
    let (rows, starts) = (ROOM.iter().sum::<usize>(), starts());
    let mut rng = Noise::new(41);
    let w = spread(&mut rng, EXPERTS * N, K, DType::Bf16);
    let w_of = |g: usize| bytes_of(DType::Bf16, w.slice(s![g * N..(g + 1) * N, ..]).iter());
    let weights = upload(&handle, &bytes_of(DType::Bf16, w.iter()));
    let weights = MatRef::new(&weights, DType::Bf16, EXPERTS * N, K).unwrap();
    let b = handle.quantize(&weights, Recipe::new(B)).unwrap();

    let mut tokens = handle.alloc(rows * K * 2).unwrap();
    let mut a = QuantMatrix::zeros(&handle, A, rows, K).unwrap();
    let mut d = handle.alloc(rows * N * 2).unwrap();
    let places = handle.upload(&starts.map(|start| start as i64)).unwrap();
    let mut counts = handle.upload(&[0i64; EXPERTS]).unwrap();
    handle.load_kernels(&[KernelFamily::Sm90, KernelFamily::Fp8]).unwrap();
    let graph = capture_owned(&handle, || {
        let x = MatRef::new(&tokens, DType::Bf16, rows, K)?;
        handle.quantize_into(&x, Recipe::new(A), QuantizeTo::Plain(&mut a))?;
        let groups = GroupedRows::Contiguous { starts: places.view(), counts: counts.view() };
        let d = MatMut::new(&mut d, DType::Bf16, rows, N)?;
        handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, EXPERTS, groups, d))
    });
    let graph = graph.unwrap();
    for found in [[100, 256, 0, 133, 1], [0; EXPERTS], ROOM, [1, 2, 128, 300, 77]] {
        let mut x = spread(&mut rng, rows, K, DType::Bf16);
        let mut want = vec![0xFF; rows * N * 2];
        for (g, (start, count)) in starts.into_iter().zip(found).enumerate() {
            // Between groups lies anything.
            x.slice_mut(s![start + count..start + ROOM[g], ..]).fill(f32::NAN);
            if count > 0 {
                let own = bytes_of(DType::Bf16, x.slice(s![start..start + count, ..]).iter());
                let d = alone(&handle, &own, &w_of(g), count);
                want[start * N * 2..(start + count) * N * 2].copy_from_slice(&d);
            }
        }
        handle.write(&mut tokens.view_mut(), &bytes_of(DType::Bf16, x.iter())).unwrap();
        handle.write(&mut counts.view_mut(), &found.map(|count| count as i64)).unwrap();
        handle.write(&mut d.view_mut(), &vec![0xFFu8; rows * N * 2]).unwrap();
        handle.launch(&graph).unwrap();
        let got = handle.read_bytes(&d.view()).unwrap();
        let wrong = (0..rows).find(|row| got[row * N * 2..][..N * 2] != want[row * N * 2..][..N * 2]);
        assert_eq!(wrong, None, "counts {found:?}: the first row that differs");
    }
}

/// Rows of a slot, features out and in, of the tests below.
const SLOT: usize = 256;
const OUT: usize = 256;
const GROUPS: usize = 3;

fn matrix(rng: &mut Noise, rows: usize, cols: usize) -> Array2<f32> {
    rng.matrix(rows, cols, DType::Bf16)
}

fn on_device(handle: &Handle, x: &Array2<f32>) -> DeviceBuffer {
    handle.upload(&bytes_of(DType::Bf16, x.iter())).unwrap()
}

/// The product of all slots, to F32.
fn all_slots<'a>(
    a: &'a QuantMatrix,
    b: &'a QuantMatrix,
    counts: &'a DeviceBuffer,
    d: &'a mut DeviceBuffer,
) -> GroupedGemmArgs<'a> {
    let rows = GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
    GroupedGemmArgs::new(a, b, GROUPS, rows, MatMut::new(d, DType::F32, GROUPS * SLOT, OUT).unwrap())
}

/// Rows and matrices of experts that were quantized each by itself, with one scale: the product of all has the bits of one by one, also where one side has one
/// scale in all; scales are those that memory holds at each launch.
#[test]
fn a_scale_for_each_group_is_that_of_its_operand_alone() {
    let Some(handle) = handle() else { return };
    let scheme = Scheme::Fp8Tensor(Fp8Format::E4M3);
    let (mut rng, counts) = (Noise::new(47), [70usize, 0, SLOT]);
    let mut of_groups = |rows: usize| -> Vec<HostQuantMatrix> {
        let cast = |g: usize| {
            let x = matrix(&mut rng, rows, K).mapv(|v| v * [0.25, 1.0, 60.0][g]);
            reference::quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap()
        };
        (0..GROUPS).map(cast).collect()
    };
    let (x, w) = (of_groups(SLOT), of_groups(OUT));
    let stacked = |all: &[HostQuantMatrix], scale: f32| {
        let codes: Vec<u8> = all.iter().flat_map(|one| one.codes().to_vec()).collect();
        let parts = HostParts { codes, scales: vec![scale], ..HostParts::default() };
        let rows = all.iter().map(HostQuantMatrix::rows).sum();
        QuantMatrix::from_host(&handle, &HostQuantMatrix::from_parts(scheme, rows, K, parts).unwrap()).unwrap()
    };
    let scales = |all: &[HostQuantMatrix]| -> Vec<f32> { all.iter().map(|one| one.scales()[0]).collect() };
    assert!(scales(&x).windows(2).all(|two| two[0] != two[1]) && scales(&w).windows(2).all(|two| two[0] != two[1]));
    // A scale that nobody may read.
    let (a, b) = (stacked(&x, f32::NAN), stacked(&w, f32::NAN));
    let (one_a, one_b) = (stacked(&x, 0.5), stacked(&w, 0.75));
    let (mut of_a, of_b) = (handle.upload(&scales(&x)).unwrap(), handle.upload(&scales(&w)).unwrap());
    let counts_on = handle.upload(&counts.map(|count| count as i64)).unwrap();
    let mut d = handle.alloc(GROUPS * SLOT * OUT * 4).unwrap();
    if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        println!("skipped: on {} each slot is a product of its own, of gpu_experts_levels", handle.device());
        return;
    }
    let options = PlanOptions::default().with_formulation(Formulation::Sm90);
    // Of groups no block has a part of k, and of one product none where its rows have the same bits for any m.
    let desc = GemmDesc::new(SLOT, OUT, K, scheme, scheme, DType::F32).with_batch_invariant(true);
    let mut plan = handle.plan_with(&desc, &options).unwrap();
    let mut alone = |g: usize, scale_a: f32, scale_b: f32| -> Vec<f32> {
        let (a, b) = (stacked(&x[g..=g], scale_a), stacked(&w[g..=g], scale_b));
        let mut d = handle.alloc(SLOT * OUT * 4).unwrap();
        let args = GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::F32, SLOT, OUT).unwrap()).batch_invariant(true);
        plan.execute(&handle, args).unwrap();
        handle.read(&d.view()).unwrap()
    };
    let mut check = |d: &DeviceBuffer, of: [Vec<f32>; 2], what: &str| {
        let found: Vec<f32> = handle.read(&d.view()).unwrap();
        for (g, count) in counts.into_iter().enumerate() {
            let want = alone(g, of[0][g], of[1][g]);
            let same =
                found[g * SLOT * OUT..].iter().zip(&want[..count * OUT]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{what}, group {g}");
        }
    };
    for config in Sm90Config::ALL.into_iter().filter(|config| config.k_parts() == 1 && !config.ends_plainly()) {
        d = handle.upload(&vec![f32::NAN; GROUPS * SLOT * OUT]).unwrap();
        handle
            .grouped_gemm(
                all_slots(&a, &b, &counts_on, &mut d).scales_of_a(of_a.view()).scales_of_b(of_b.view()).config(config),
            )
            .unwrap();
        check(&d, [scales(&x), scales(&w)], &format!("{config}"));
        // BF16 is stored by kernels that have no other end: the same numbers, rounded once more.
        let mut narrow = handle.upload(&vec![0xFFu8; GROUPS * SLOT * OUT * 2]).unwrap();
        let rows = GroupedRows::Masked { slot_rows: SLOT, counts: counts_on.view() };
        let to = MatMut::new(&mut narrow, DType::Bf16, GROUPS * SLOT, OUT).unwrap();
        let args = GroupedGemmArgs::new(&a, &b, GROUPS, rows, to).config(config);
        handle.grouped_gemm(args.scales_of_a(of_a.view()).scales_of_b(of_b.view())).unwrap();
        let (found, all) = (handle.read_bytes(&narrow.view()).unwrap(), handle.read::<f32>(&d.view()).unwrap());
        // Rows of no group are NaN in both, of other bits.
        for (g, count) in counts.into_iter().enumerate() {
            let (from, upto) = (g * SLOT * OUT, (g * SLOT + count) * OUT);
            assert!(
                bytes_of(DType::Bf16, &all[from..upto]) == found[2 * from..2 * upto],
                "{config} into bf16, group {g}"
            );
            assert!(found[2 * upto..2 * (g + 1) * SLOT * OUT].iter().all(|byte| *byte == 0xFF), "{config}, group {g}");
        }
    }
    handle.grouped_gemm(all_slots(&a, &one_b, &counts_on, &mut d).scales_of_a(of_a.view())).unwrap();
    check(&d, [scales(&x), vec![0.75; GROUPS]], "A alone has them");
    handle.grouped_gemm(all_slots(&one_a, &b, &counts_on, &mut d).scales_of_b(of_b.view())).unwrap();
    check(&d, [vec![0.5; GROUPS], scales(&w)], "B alone has them");
    let graph = capture_owned(&handle, || {
        handle.grouped_gemm(all_slots(&a, &b, &counts_on, &mut d).scales_of_a(of_a.view()).scales_of_b(of_b.view()))
    });
    let graph = graph.unwrap();
    handle.write(&mut of_a.view_mut(), &[3.0f32, 5.0, 7.0]).unwrap();
    handle.launch(&graph).unwrap();
    check(&d, [vec![3.0, 5.0, 7.0], scales(&w)], "new scales in a graph");

    let few = handle.upload(&[1.0f32; 2]).unwrap();
    let text = |result: scaled_gemm::Result<()>| result.unwrap_err().to_string();
    let short = text(handle.grouped_gemm(all_slots(&a, &b, &counts_on, &mut d).scales_of_b(few.view())));
    assert!(short.contains("scales of B: 8 bytes") && short.contains("12"), "{short}");
    let (a, b) = (
        QuantMatrix::zeros(&handle, A, GROUPS * SLOT, K).unwrap(),
        QuantMatrix::zeros(&handle, B, GROUPS * OUT, K).unwrap(),
    );
    let other = text(handle.grouped_gemm(all_slots(&a, &b, &counts_on, &mut d).scales_of_b(of_b.view())));
    assert!(
        other.contains("a scale for each group of fp8-1x128:e4m3") && other.contains("of fp8-tensor operands"),
        "{other}"
    );
}

/// Each slot, and each group's matrix, has the same largest number, so that it has the scales alone that it has among all.
#[test]
fn groups_without_rows_or_columns_are_bounded() {
    let Some(handle) = handle() else { return };
    let (mut d, counts) = (handle.alloc(0).unwrap(), handle.alloc(0).unwrap());
    // In one launch on sm_90, and one product a slot.
    for pair in [Scheme::Fp8Tensor as fn(Fp8Format) -> Scheme, Scheme::Mxfp8] {
        let [a, b] = [pair(Fp8Format::E4M3), pair(Fp8Format::E5M2)]
            .map(|scheme| QuantMatrix::zeros(&handle, scheme, 0, K).unwrap());
        let mut call = |groups| {
            let rows = GroupedRows::Masked { slot_rows: 0, counts: counts.view() };
            let d = MatMut::new(&mut d, DType::F32, 0, 0).unwrap();
            handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, groups, rows, d))
        };
        call(0).unwrap();
        for groups in [1 << 31, 1 << 40, usize::MAX] {
            let error = call(groups).unwrap_err().to_string();
            assert!(error.contains(&format!("{groups} groups")) && error.contains("fewer than 2^31"), "{error}");
        }
    }
}

#[test]
fn slots_of_other_pairs_are_what_each_is_alone() {
    let Some(handle) = handle() else { return };
    let e4m3 = Fp8Format::E4M3;
    let mut rng = Noise::new(43);
    let mut of_groups = |rows: usize| {
        let mut x = matrix(&mut rng, GROUPS * rows, K).mapv(|v| v.clamp(-4.0, 4.0));
        (0..GROUPS).for_each(|g| x[[g * rows, 0]] = 6.0);
        x
    };
    let (x, w) = (of_groups(SLOT), of_groups(OUT));
    let bias: Vec<f32> = (0..GROUPS * OUT).map(|j| j as f32 * 0.25 - 7.0).collect();
    let (x_on, w_on) = (on_device(&handle, &x), on_device(&handle, &w));
    let (bias_on, mut counts) = (handle.upload(&bias).unwrap(), handle.upload(&[1i64, 0, 256]).unwrap());
    let mut clamped = handle.alloc(4).unwrap();
    let whole = |x: &Array2<f32>| x.mapv(f64::from);
    let hopper = handle.device().compute_capability == (9, 0);
    for (a_scheme, b_scheme, least) in [
        // Two bits of mantissa are 6 dB less than three.
        (Scheme::Mxfp8(e4m3), Scheme::Mxfp8(Fp8Format::E5M2), 22.0),
        (Scheme::Fp8Tensor(Fp8Format::E5M2), Scheme::Fp8Tensor(e4m3), 24.0),
        (Scheme::Fp8Row(e4m3), Scheme::Fp8Row(Fp8Format::E5M2), 24.0),
        (Scheme::Mxfp8(e4m3), Scheme::Mxfp8(e4m3), 26.0),
        (Scheme::Nvfp4, Scheme::Nvfp4, 16.0),
        (Scheme::Nvfp4Row, Scheme::Nvfp4, 16.0),
        (Scheme::Nvfp4Row, Scheme::Nvfp4Row, 16.0),
    ] {
        let what = format!("{a_scheme} x {b_scheme}");
        if hopper && matches!(a_scheme, Scheme::Fp8Tensor(_) | Scheme::Fp8Row(_)) {
            println!("skipped: {what} is one launch on {}, of gpu_sm90_e5m2", handle.device());
            continue;
        }
        if handle
            .supports(&GemmDesc::new(SLOT, OUT, K, a_scheme, b_scheme, DType::F32))
            .is_ok_and(|ways| ways.is_empty())
        {
            println!("skipped: {what} on {}", handle.device());
            continue;
        }
        let quantized = |x: &DeviceBuffer, rows, scheme| {
            handle.quantize(&MatRef::new(x, DType::Bf16, rows, K).unwrap(), Recipe::new(scheme)).unwrap()
        };
        let (a, b) = (quantized(&x_on, GROUPS * SLOT, a_scheme), quantized(&w_on, GROUPS * OUT, b_scheme));
        let mut d = handle.alloc(GROUPS * SLOT * (OUT + 8) * 4).unwrap();
        let call = |d: &mut DeviceBuffer, counts: &DeviceBuffer, clamped: &mut DeviceBuffer, explains: bool| {
            let rows = GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
            let d = MatMut::new(d, DType::F32, GROUPS * SLOT, OUT)?.with_row_stride(OUT + 8)?;
            let bias = VecRef::new(&bias_on, DType::F32, GROUPS * OUT)?;
            let mut args = GroupedGemmArgs::new(&a, &b, GROUPS, rows, d).bias(bias).alpha(0.5);
            args = args.clamped(clamped.view_mut());
            if explains {
                let text = args.explain(&handle)?;
                assert!(
                    text.contains("one product a slot, 3 of them")
                        && text.contains("counts are not read")
                        && text.contains("empty groups take as long")
                        && (text.contains("cuBLASLt's own product of groups") || text.contains("no grouped products")),
                    "{text}"
                );
            }
            handle.grouped_gemm(args)
        };
        // Counts are not read but for how many make no sense.
        let of_clamped = |clamped: &DeviceBuffer| handle.read::<u32>(&clamped.view()).unwrap();
        handle.write(&mut counts.view_mut(), &[1i64, 0, 256]).unwrap();
        handle.write(&mut clamped.view_mut(), &[77u32]).unwrap();
        call(&mut d, &counts, &mut clamped, true).unwrap();
        assert_eq!(of_clamped(&clamped), [0], "{what}");
        let got: Vec<f32> = handle.read(&d.view()).unwrap();
        handle.write(&mut counts.view_mut(), &[-1i64, 257, 256]).unwrap();
        call(&mut d, &counts, &mut clamped, false).unwrap();
        assert_eq!(of_clamped(&clamped), [2], "{what}");
        assert!(handle.read::<f32>(&d.view()).unwrap() == got, "{what}, counts that make no sense");
        for g in 0..GROUPS {
            let cut = |x: &Array2<f32>, rows: usize| x.slice(s![g * rows..(g + 1) * rows, ..]).to_owned();
            let (x, w) = (cut(&x, SLOT), cut(&w, OUT));
            let (a, b) =
                (quantized(&on_device(&handle, &x), SLOT, a_scheme), quantized(&on_device(&handle, &w), OUT, b_scheme));
            let mut d = handle.alloc(SLOT * (OUT + 8) * 4).unwrap();
            let own = handle.upload(&bias[g * OUT..(g + 1) * OUT]).unwrap();
            let target = MatMut::new(&mut d, DType::F32, SLOT, OUT).unwrap().with_row_stride(OUT + 8).unwrap();
            let args = GemmArgs::new(&a, &b, target).bias(VecRef::new(&own, DType::F32, OUT).unwrap()).alpha(0.5);
            handle.scaled_gemm(args).unwrap();
            let alone: Vec<f32> = handle.read(&d.view()).unwrap();
            let group = &got[g * SLOT * (OUT + 8)..][..SLOT * (OUT + 8)];
            let same = group.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{what}, group {g}");
            let exact: Vec<f64> = whole(&x).dot(&whole(&w).t()).iter().map(|v| v * 0.5).collect();
            let found: Vec<f32> = group
                .chunks(OUT + 8)
                .flat_map(|row| row[..OUT].iter().zip(&bias[g * OUT..]).map(|(v, bias)| v - bias))
                .collect();
            let db = sqnr_db(&exact, &found);
            assert!(db >= least, "{what}, group {g}: {db:.1} dB");
        }
        // Planned by then, so that a graph takes it.
        let graph = capture_owned(&handle, || call(&mut d, &counts, &mut clamped, false)).unwrap();
        for (found, bad) in [([256i64, 3, -5], 1), ([0, 0, 0], 0), ([i64::MAX, i64::MIN, 300], 3)] {
            handle.write(&mut counts.view_mut(), &found).unwrap();
            handle.write(&mut d.view_mut(), &vec![0f32; got.len()]).unwrap();
            handle.launch(&graph).unwrap();
            assert!(handle.read::<f32>(&d.view()).unwrap() == got, "{what}, captured");
            assert_eq!(of_clamped(&clamped), [bad], "{what}, captured, counts {found:?}");
        }
    }

    // What cannot be cut, or where nobody knows where.
    let zeros = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, K).unwrap();
    // Neither is multiplied in one launch anywhere.
    let (blocks, by_columns) = (
        (Scheme::Mxfp8(e4m3), Scheme::Mxfp8(Fp8Format::E5M2)),
        (Scheme::Fp8Group128x128(e4m3), Scheme::Fp8Group1x128(e4m3)),
    );
    let refused = |(a, b): (Scheme, Scheme), rows: GroupedRows<'_>, words: &[&str]| {
        let (a, b) = (zeros(a, GROUPS * SLOT), zeros(b, GROUPS * OUT));
        let mut d = handle.alloc(GROUPS * SLOT * OUT * 4).unwrap();
        let d = MatMut::new(&mut d, DType::F32, GROUPS * SLOT, OUT).unwrap();
        let text = handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, GROUPS, rows, d)).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let slots = |slot_rows| GroupedRows::Masked { slot_rows, counts: counts.view() };
    refused(
        blocks,
        GroupedRows::Contiguous { starts: counts.view(), counts: counts.view() },
        &["the device alone knows", "slots"],
    );
    refused(blocks, slots(132), &["slots of 132 rows", "128"]);
    refused(by_columns, slots(SLOT), &["lie by columns"]);
}

/// Normal numbers, and among them some a hundred times as large.
fn with_outliers(rng: &mut Noise, rows: usize, cols: usize) -> Array2<f32> {
    let x = matrix(rng, rows, cols);
    x.mapv(|v| if rng.below(512) == 0 { round_to(DType::Bf16, v * 100.0) } else { v })
}

/// Forward, dX and dW of three experts, of whose counts a graph of dW finds others at each launch, against f64 sums.
#[test]
fn gradients_of_experts() {
    let Some(handle) = handle_with(KernelFamily::Sm90) else { return };
    // Also of a group of one row: the sums of Y and dX are as long as ever (29.0 and 28.6 dB by the reference), and dW loses next to nothing, since each number is the largest of its block, which its scale makes 448.
    check_gradients(&handle, matrix, 28.0);
}

/// The same with outliers, beside which other numbers of their group lose digits.
#[test]
fn gradients_of_experts_with_outliers() {
    let Some(handle) = handle_with(KernelFamily::Sm90) else { return };
    check_gradients(&handle, with_outliers, 25.0);
}

fn check_gradients(handle: &Handle, drawn: fn(&mut Noise, usize, usize) -> Array2<f32>, least: f64) {
    let (features, rows) = (384, GROUPS * SLOT);
    let mut rng = Noise::new(47);
    let [w, x, dy] = [(GROUPS * OUT, features), (rows, features), (rows, OUT)].map(|(r, c)| drawn(&mut rng, r, c));
    let mut turned = Array2::zeros((GROUPS * features, OUT));
    for g in 0..GROUPS {
        let own = w.slice(s![g * OUT..(g + 1) * OUT, ..]);
        turned.slice_mut(s![g * features..(g + 1) * features, ..]).assign(&own.t());
    }
    let (mut x_on, mut dy_on) = (on_device(handle, &x), on_device(handle, &dy));
    let mut counts = handle.upload(&[0i64; GROUPS]).unwrap();
    let quantized = |x: &Array2<f32>, scheme| {
        let on = on_device(handle, x);
        handle.quantize(&MatRef::new(&on, DType::Bf16, x.nrows(), x.ncols()).unwrap(), Recipe::new(scheme)).unwrap()
    };
    let (weights, of_turned) = (quantized(&w, B), quantized(&turned, B));
    // The transposes on the device, made anew in each step: the bytes of those of turned numbers.
    let w_on = on_device(handle, &w);
    let mut weights_t = QuantMatrix::zeros(handle, B, GROUPS * features, OUT).unwrap();
    let zeros = |rows| -> Vec<_> { (0..GROUPS).map(|_| QuantMatrix::zeros(handle, A, rows, SLOT).unwrap()).collect() };
    let (mut x_t, mut dy_t) = (zeros(features), zeros(OUT));
    let mut a = [features, OUT].map(|cols| QuantMatrix::zeros(handle, A, rows, cols).unwrap());
    let mut y = handle.alloc(rows * OUT * 2).unwrap();
    let mut dx = handle.alloc(rows * features * 2).unwrap();
    let mut dw = handle.upload(&vec![0f32; GROUPS * OUT * features]).unwrap();
    let mut step = || {
        let places = || GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
        handle.clear_between_groups(
            &mut MatMut::new(&mut x_on, DType::Bf16, rows, features)?,
            GROUPS,
            &places(),
            None,
        )?;
        handle.clear_between_groups(&mut MatMut::new(&mut dy_on, DType::Bf16, rows, OUT)?, GROUPS, &places(), None)?;
        let (x, dy) = (MatRef::new(&x_on, DType::Bf16, rows, features)?, MatRef::new(&dy_on, DType::Bf16, rows, OUT)?);
        handle.quantize_into(&x, Recipe::new(A), QuantizeTo::Plain(&mut a[0]))?;
        handle.quantize_into(&dy, Recipe::new(A), QuantizeTo::Plain(&mut a[1]))?;
        handle.quantize_slots_transposed_into(&x, Recipe::new(A), &mut x_t)?;
        handle.quantize_slots_transposed_into(&dy, Recipe::new(A), &mut dy_t)?;
        let y = MatMut::new(&mut y, DType::Bf16, rows, OUT)?;
        handle.grouped_gemm(GroupedGemmArgs::new(&a[0], &weights, GROUPS, places(), y))?;
        let w = MatRef::new(&w_on, DType::Bf16, GROUPS * OUT, features)?;
        handle.quantize_stacked_transposed_into(&w, GROUPS, Recipe::new(B), &mut weights_t)?;
        let dx = MatMut::new(&mut dx, DType::Bf16, rows, features)?;
        handle.grouped_gemm(GroupedGemmArgs::new(&a[1], &weights_t, GROUPS, places(), dx))?;
        let dw = MatMut::new(&mut dw, DType::F32, GROUPS * OUT, features)?;
        handle.grouped_weight_gradient(GroupedWeightGradient::new(&dy_t, &x_t, dw))
    };
    step().unwrap();
    let graph = capture_owned(handle, &mut step).unwrap();
    let [made, want] = [&weights_t, &of_turned].map(|q| q.to_host(handle).unwrap());
    assert_same_bits(&made, &want, "transposes of all matrices");
    for found in [[256usize, 256, 256], [100, 0, 133], [0; GROUPS], [1, 256, 77]] {
        // Between groups lies anything.
        let (mut all_x, mut all_dy) = (x.clone(), dy.clone());
        for (g, count) in found.into_iter().enumerate() {
            for x in [&mut all_x, &mut all_dy] {
                x.slice_mut(s![g * SLOT + count..(g + 1) * SLOT, ..]).fill(f32::NAN);
            }
        }
        handle.write(&mut x_on.view_mut(), &bytes_of(DType::Bf16, all_x.iter())).unwrap();
        handle.write(&mut dy_on.view_mut(), &bytes_of(DType::Bf16, all_dy.iter())).unwrap();
        handle.write(&mut counts.view_mut(), &found.map(|count| count as i64)).unwrap();
        handle.write(&mut dw.view_mut(), &vec![0f32; GROUPS * OUT * features]).unwrap();
        handle.launch(&graph).unwrap();
        let wide = |x: ArrayView2<f32>| x.mapv(f64::from);
        let read = |d: &DeviceBuffer, cols: usize| {
            let values = values_of(DType::Bf16, &handle.read_bytes(&d.view()).unwrap());
            Array2::from_shape_vec((rows, cols), values).unwrap()
        };
        let (y, dx, dw) = (read(&y, OUT), read(&dx, features), handle.read::<f32>(&dw.view()).unwrap());
        for (g, count) in found.into_iter().enumerate() {
            let own = &dw[g * OUT * features..][..OUT * features];
            if count == 0 {
                assert!(own.iter().all(|v| *v == 0.0), "{found:?}, group {g}: no rows, no gradient");
                continue;
            }
            let taken = s![g * SLOT..g * SLOT + count, ..];
            let (x, dy) = (wide(x.slice(taken)), wide(dy.slice(taken)));
            let w = wide(w.slice(s![g * OUT..(g + 1) * OUT, ..]));
            let db = |exact: Array2<f64>, found: Vec<f32>| sqnr_db(&exact.iter().copied().collect::<Vec<_>>(), &found);
            let rows_of = |d: &Array2<f32>| d.slice(taken).iter().copied().collect::<Vec<_>>();
            let kept = [db(x.dot(&w.t()), rows_of(&y)), db(dy.dot(&w), rows_of(&dx)), db(dy.t().dot(&x), own.to_vec())];
            println!("{found:?}, group {g}: {kept:.1?} dB");
            assert!(kept.iter().all(|db| *db >= least), "{found:?}, group {g}: {kept:.1?} dB");
        }
    }
    let (other, mut d) = (zeros(features), handle.alloc(GROUPS * OUT * features * 4).unwrap());
    let mut of = |dy: &[QuantMatrix], rows: usize| {
        let dw = MatMut::new(&mut d, DType::F32, rows, features).unwrap();
        let mut of = GroupedWeightGradient::new(dy, &other, dw);
        of.explain(handle).and_then(|text| handle.grouped_weight_gradient(of).map(|()| text))
    };
    let text = of(&zeros(OUT), GROUPS * OUT).unwrap();
    assert!(text.contains("one product a group") && text.contains("GroupedWeightGradient::whole"), "{text}");
    let refused = |result: scaled_gemm::Result<String>, words: &[&str]| {
        let text = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    refused(of(&zeros(OUT)[..2], 2 * OUT), &["3 groups", "the 2 groups of dY"]);
    refused(of(&zeros(OUT), 2 * OUT), &["dW: 512 x 384", "3 * 256 x 384"]);
}
