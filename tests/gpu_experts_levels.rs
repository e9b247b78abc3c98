//! Experts that were quantized each by itself, as published: a second level of NVFP4, or a scale of FP8, for each, in one launch of all groups and in products of slots.
//! Rows of experts as NVFP4 by a given level of each, or by one that is found, and zeros between groups of which none may share a tile of 128 rows.
#![cfg(feature = "cuda")]

mod common;
#[path = "gpu_experts_levels/found.rs"]
mod found;
#[path = "gpu_experts_levels/rows.rs"]
mod rows;
#[path = "gpu_experts_levels/tensors.rs"]
mod tensors;

use common::*;
use ndarray::{Array2, s};
use scaled_gemm::reference::{self, Accumulator, Gelu, GemmInputs, HostOperand, gemm_bound};
use scaled_gemm::{
    CodeOrder, DType, DeviceBuffer, Fp8Format, FusedGemmArgs, GemmArgs, GemmDesc, GroupedGemmArgs, GroupedRows, Handle,
    HostQuantMatrix, KernelFamily, MatMut, MatRef, QuantMatrix, Recipe, Result, Scheme,
};

const F: Fp8Format = Fp8Format::E4M3;
const GROUPS: usize = 4;
const N: usize = 256;
const ROWS: usize = 512;
/// Magnitudes of experts, no two of which have one scale.
const SIZES: [f32; GROUPS] = [0.25, 30.0, 1.0, 100.0];
/// Of each way to divide k.
const KS: [usize; 3] = [384, 3616, 7168];

fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::SmallMGroups)
}

/// Matrices one by one, each with a scale of its own.
fn each(rng: &mut Noise, rows: usize, k: usize, scheme: Scheme) -> Vec<HostQuantMatrix> {
    let one = |size: f32| {
        let x = rng.matrix(rows, k, DType::Bf16).mapv(|v| v * size);
        reference::quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap()
    };
    let all: Vec<_> = SIZES.into_iter().map(one).collect();
    assert!(scales_of(&all).windows(2).all(|two| two[0] != two[1]));
    all
}

fn scales_of(all: &[HostQuantMatrix]) -> Vec<f32> {
    all.iter().map(|one| one.logical_scales()[0]).collect()
}

/// The same rows upon rows, with a scale for the whole that nobody may read; or with that of each for its rows.
fn stacked(handle: &Handle, all: &[HostQuantMatrix], scheme: Scheme) -> QuantMatrix {
    let rows = all.iter().map(HostQuantMatrix::rows).sum();
    let codes = all.iter().flat_map(|one| one.logical_codes().to_vec()).collect();
    let blocks: Vec<u8> = all.iter().flat_map(HostQuantMatrix::logical_block_scales).collect();
    let scales = match scheme.scale_len(rows, all[0].cols()) {
        1 => vec![f32::NAN],
        _ => all.iter().flat_map(|one| vec![one.logical_scales()[0]; one.rows()]).collect(),
    };
    let host = HostQuantMatrix::from_block_logical(scheme, rows, all[0].cols(), codes, &scales, &blocks).unwrap();
    QuantMatrix::from_host(handle, &host).unwrap()
}

/// Where groups lie: starts and counts, with rows of no group between; the first is longer than any tile has columns.
const PLACES: [(usize, usize); GROUPS] = [(0, 100), (128, 0), (132, 70), (384, 128)];

struct Places {
    starts: DeviceBuffer,
    counts: DeviceBuffer,
}

impl Places {
    fn new(handle: &Handle) -> Self {
        let numbers = |of: fn((usize, usize)) -> usize| handle.upload(&PLACES.map(|place| of(place) as i64)).unwrap();
        Self { starts: numbers(|place| place.0), counts: numbers(|place| place.1) }
    }

    fn rows(&self) -> GroupedRows<'_> {
        GroupedRows::Contiguous { starts: self.starts.view(), counts: self.counts.view() }
    }
}

/// Bytes of D, which held 0xFF.
fn stored(handle: &Handle, out: DType, cols: usize, run: impl FnOnce(MatMut<'_>) -> Result<()>) -> Vec<u8> {
    let mut d = handle.upload(&vec![0xFFu8; ROWS * cols * out.bytes()]).unwrap();
    run(MatMut::new(&mut d, out, ROWS, cols).unwrap()).unwrap();
    handle.read_bytes(&d.view()).unwrap()
}

/// D of each group within the bound of its own operands.
fn check_bounds(
    d: &[u8],
    out: DType,
    [x, w]: [&[HostQuantMatrix]; 2],
    plain: Option<(&Array2<f32>, DType)>,
    what: &str,
) {
    let all = Array2::from_shape_vec((ROWS, N), values_of(out, d)).unwrap();
    for (g, (start, count)) in PLACES.into_iter().enumerate().filter(|(_, place)| place.1 > 0) {
        let rows = s![start..start + count, ..];
        let own = plain.map(|(x, dtype)| (x.slice(rows).to_owned(), dtype));
        let a = match &own {
            Some((x, dtype)) => HostOperand::Plain(x.view(), *dtype),
            None => HostOperand::Quantized(&x[g]),
        };
        let bound = gemm_bound(&GemmInputs::new(a, &w[g], out), Accumulator::TensorCoreWide, Gelu::Ieee).unwrap();
        // A quantized group is one of as many rows as it has in memory.
        bound.check(all.slice(rows).view()).unwrap_or_else(|e| panic!("{what}, group {g}: {e}"));
    }
}

/// Groups in one launch that decodes weights: the bits of weights that have the level of their expert in each row, within the bound of each expert alone, whatever A is; also of repacked
/// codes, and with levels that change between launches of a graph.
#[test]
fn weights_have_the_level_of_their_expert() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(601);
    let places = Places::new(&handle);
    let mut tried = 0;
    for (i, k) in KS.into_iter().enumerate() {
        // Quantized rows have no type.
        for (plain_type, one, row) in [
            (Some(DType::Bf16), Scheme::Nvfp4, Scheme::Nvfp4Row),
            (Some(DType::F16), Scheme::Nvfp4, Scheme::Nvfp4Row),
            (Some(DType::Bf16), Scheme::Fp8Tensor(F), Scheme::Fp8Row(F)),
            (Some(DType::F16), Scheme::Fp8Tensor(F), Scheme::Fp8Row(F)),
            (None, Scheme::Nvfp4, Scheme::Nvfp4Row),
        ] {
            let w = each(&mut rng, N, k, one);
            let (mut levels, by_rows) = (handle.upload(&scales_of(&w)).unwrap(), stacked(&handle, &w, row));
            let mut b = stacked(&handle, &w, one);
            let x = rng.matrix(ROWS, k, DType::F16);
            // Of each group by itself, with as many rows as it has; between them others.
            let of_groups: Vec<_> = PLACES
                .into_iter()
                .map(|(start, count)| {
                    let own = x.slice(s![start..start + count.max(1), ..]);
                    reference::quantize(own, DType::F16, Recipe::new(Scheme::Nvfp4)).unwrap()
                })
                .collect();
            let plain = plain_type.map(|dtype| handle.upload(&bytes_of(dtype, x.iter())).unwrap());
            let dtype = plain_type.unwrap_or(DType::Bf16);
            let (of_a, [a_one, a_row]) = rows::padded(&handle, &of_groups, &PLACES, ROWS, k);
            for (j, usual) in [8, 16, 32, 128].into_iter().enumerate() {
                tried += 1;
                let out = [DType::Bf16, DType::F32, DType::F16][(i + j) % 3];
                let what = format!("k = {k}, {one}, plain {}, usual {usual}, {out}", plain.is_some());
                let call = |b: &QuantMatrix, levels: Option<&DeviceBuffer>, own_a: bool, d: MatMut<'_>| {
                    let mut args = match &plain {
                        Some(x) => {
                            GroupedGemmArgs::weight_only(MatRef::new(x, dtype, ROWS, k)?, b, GROUPS, places.rows(), d)
                        }
                        None => GroupedGemmArgs::new(if own_a { &a_one } else { &a_row }, b, GROUPS, places.rows(), d),
                    };
                    if let Some(levels) = levels {
                        args = args.scales_of_b(levels.view());
                    }
                    if plain.is_none() && own_a {
                        args = args.scales_of_a(of_a.view());
                    }
                    handle.grouped_gemm(args.expected_rows(usual))
                };
                let want = stored(&handle, out, N, |d| call(&by_rows, None, false, d));
                let got = stored(&handle, out, N, |d| call(&b, Some(&levels), true, d));
                assert!(got == want, "{what}");
                // One of both has levels of rows.
                let mixed = stored(&handle, out, N, |d| call(&b, Some(&levels), false, d));
                assert!(mixed == want, "{what}, A by rows");
                let mixed = stored(&handle, out, N, |d| call(&by_rows, None, true, d));
                assert!(mixed == want, "{what}, B by rows");
                let numbers = reference::round_values(x.clone(), dtype);
                check_bounds(&got, out, [&of_groups, &w], plain.as_ref().map(|_| (&numbers, dtype)), &what);
                if j == 0 && one == Scheme::Nvfp4 && k.is_multiple_of(128) {
                    b.repack(&handle, CodeOrder::Repacked).unwrap();
                    let repacked = stored(&handle, out, N, |d| call(&b, Some(&levels), true, d));
                    assert!(repacked == want, "{what}, repacked");
                    b.repack(&handle, CodeOrder::Published).unwrap();
                }
            }
            // New levels in a graph.
            let mut d = handle.alloc(ROWS * N * 4).unwrap();
            let graph = capture_owned(&handle, || {
                let d = MatMut::new(&mut d, DType::F32, ROWS, N)?;
                let args = match &plain {
                    Some(x) => {
                        GroupedGemmArgs::weight_only(MatRef::new(x, dtype, ROWS, k)?, &b, GROUPS, places.rows(), d)
                    }
                    None => GroupedGemmArgs::new(&a_row, &b, GROUPS, places.rows(), d),
                };
                handle.grouped_gemm(args.scales_of_b(levels.view()))
            })
            .unwrap();
            let before = scales_of(&w);
            let run = |levels: &mut DeviceBuffer, d: &mut DeviceBuffer, numbers: &[f32]| -> Vec<f32> {
                handle.write(&mut levels.view_mut(), numbers).unwrap();
                handle.write(&mut d.view_mut(), &vec![0f32; ROWS * N]).unwrap();
                handle.launch(&graph).unwrap();
                handle.read(&d.view()).unwrap()
            };
            let doubled: Vec<f32> = before.iter().map(|level| level * 2.0).collect();
            let (old, new) = (run(&mut levels, &mut d, &before), run(&mut levels, &mut d, &doubled));
            assert!(
                old.iter().any(|v| *v != 0.0) && old.iter().zip(&new).all(|(a, b)| a * 2.0 == *b),
                "k = {k}, {one}"
            );
        }
    }
    assert_eq!(tried, 60);
}

/// SwiGLU of two matrices of each expert, gate and up with a level each.
#[test]
fn both_matrices_of_an_expert_have_levels() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(602);
    let places = Places::new(&handle);
    for (k, one, row) in [
        (416, Scheme::Nvfp4, Scheme::Nvfp4Row),
        (3616, Scheme::Nvfp4, Scheme::Nvfp4Row),
        (7168, Scheme::Fp8Tensor(F), Scheme::Fp8Row(F)),
    ] {
        // Gate and up of each in turn.
        let (gate, up) = (each(&mut rng, N, k, one), each(&mut rng, N, k, one));
        let w: Vec<_> = gate.into_iter().zip(up.into_iter().rev()).flat_map(|(gate, up)| [gate, up]).collect();
        let levels = handle.upload(&scales_of(&w)).unwrap();
        let (b, by_rows) = (stacked(&handle, &w, one), stacked(&handle, &w, row));
        let x =
            handle.upload(&bytes_of(DType::Bf16, rng.matrix(ROWS, k, DType::Bf16).mapv(|v| v / 64.0).iter())).unwrap();
        for usual in [8, 32, 128] {
            let call = |b: &QuantMatrix, levels: Option<&DeviceBuffer>, d: MatMut<'_>| {
                let x = MatRef::new(&x, DType::Bf16, ROWS, k)?;
                let args = FusedGemmArgs::swiglu_weight_only(x, b, d).groups(GROUPS, places.rows());
                let args = args.expected_rows(usual);
                handle.fused_gemm(if let Some(levels) = levels { args.scales_of_b(levels.view()) } else { args })
            };
            let want = stored(&handle, DType::F32, N, |d| call(&by_rows, None, d));
            let got = stored(&handle, DType::F32, N, |d| call(&b, Some(&levels), d));
            assert!(got == want, "k = {k}, {one}, usual {usual}");
            let values = values_of(DType::F32, &got);
            assert!(values[..PLACES[0].1 * N].iter().all(|v| v.is_finite()), "k = {k}, {one}");
        }
        // One for each group alone is too few.
        let few = handle.upload(&[1f32; GROUPS]).unwrap();
        let mut d = handle.alloc(ROWS * N * 4).unwrap();
        let mut refused = |b: &QuantMatrix, levels: &DeviceBuffer, groups: bool| {
            let (x, d) =
                (MatRef::new(&x, DType::Bf16, 64, k).unwrap(), MatMut::new(&mut d, DType::F32, 64, N).unwrap());
            let args = FusedGemmArgs::swiglu_weight_only(x, b, d).scales_of_b(levels.view());
            let small = GroupedRows::Masked { slot_rows: 16, counts: places.counts.view() };
            handle.fused_gemm(if groups { args.groups(GROUPS, small) } else { args }).unwrap_err().to_string()
        };
        let short = refused(&b, &few, true);
        assert!(short.contains("scales of B: 16 bytes") && short.contains("32"), "{short}");
        for (b, groups) in [(&by_rows, true), (&b, false)] {
            let said = refused(b, &levels, groups);
            assert!(said.contains("a scale for each matrix") && said.contains("groups of plain rows"), "{said}");
            assert!(said.contains("leave it out: each row of a B of nvfp4-row or fp8-row"), "{said}");
        }
    }
}

/// Products of slots: each has its own scale, the bits of its operands alone, on one stream and on several; scales are those that memory holds at each launch.
#[test]
fn slots_have_scales_of_their_own() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(603);
    let (slot, k) = (256, 416);
    let counts = handle.upload(&[1i64, 0, 256, 30]).unwrap();
    let mut tried = 0;
    for (a_scheme, b_scheme) in [
        (Scheme::Fp8Tensor(F), Scheme::Fp8Tensor(F)),
        (Scheme::Fp8Tensor(Fp8Format::E5M2), Scheme::Fp8Tensor(F)),
        (Scheme::Nvfp4, Scheme::Nvfp4),
        (Scheme::Nvfp4Row, Scheme::Nvfp4),
        (Scheme::Nvfp4, Scheme::Nvfp4Row),
    ] {
        let what = format!("{a_scheme} x {b_scheme}");
        let desc = GemmDesc::new(slot, N, k, a_scheme, b_scheme, DType::F32);
        if handle.supports(&desc).is_err() {
            println!("skipped: {what} on {}", handle.device());
            continue;
        }
        tried += 1;
        let one = |scheme| if scheme == Scheme::Nvfp4Row { Scheme::Nvfp4 } else { scheme };
        let (x, w) = (each(&mut rng, slot, k, one(a_scheme)), each(&mut rng, N, k, one(b_scheme)));
        let (a, b) = (stacked(&handle, &x, a_scheme), stacked(&handle, &w, b_scheme));
        let (mut of_a, of_b) = (handle.upload(&scales_of(&x)).unwrap(), handle.upload(&scales_of(&w)).unwrap());
        let (has_a, has_b) = (a_scheme != Scheme::Nvfp4Row, b_scheme != Scheme::Nvfp4Row);
        let mut d = handle.alloc(GROUPS * slot * N * 4).unwrap();
        let call = |d: &mut DeviceBuffer, of_a: &DeviceBuffer, streams: usize| {
            let rows = GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
            let d = MatMut::new(d, DType::F32, GROUPS * slot, N)?;
            let mut args = GroupedGemmArgs::new(&a, &b, GROUPS, rows, d).product_a_slot().streams(streams);
            if has_a {
                args = args.scales_of_a(of_a.view());
            }
            if has_b {
                args = args.scales_of_b(of_b.view());
            }
            let text = args.explain(&handle)?;
            assert!(text.contains("one product a slot") && text.contains("128 for the scales of groups"), "{text}");
            handle.grouped_gemm(args)
        };
        // What a slot gives with these scales.
        let alone = |scales: &[f32]| -> Vec<f32> {
            let all = (0..GROUPS).map(|g| {
                let of = |all: &[HostQuantMatrix], scheme: Scheme, scale: f32| {
                    let one = &all[g];
                    let count = if scheme == Scheme::Nvfp4Row { one.rows() } else { 1 };
                    let (codes, blocks) = (one.logical_codes().to_vec(), one.logical_block_scales());
                    let scales = vec![scale; count];
                    let host = HostQuantMatrix::from_block_logical(scheme, one.rows(), k, codes, &scales, &blocks);
                    QuantMatrix::from_host(&handle, &host.unwrap()).unwrap()
                };
                let (a, b) = (of(&x, a_scheme, scales[g]), of(&w, b_scheme, scales_of(&w)[g]));
                let mut d = handle.alloc(slot * N * 4).unwrap();
                handle.scaled_gemm(GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::F32, slot, N).unwrap())).unwrap();
                handle.read::<f32>(&d.view()).unwrap()
            });
            all.flatten().collect()
        };
        let same = |found: &[f32], want: &[f32]| found.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits());
        let want = alone(&scales_of(&x));
        assert!(want.iter().all(|v| v.is_finite()) && want.iter().any(|v| *v != 0.0), "{what}");
        for streams in [1, 3] {
            handle.write(&mut d.view_mut(), &vec![f32::NAN; GROUPS * slot * N]).unwrap();
            call(&mut d, &of_a, streams).unwrap();
            assert!(same(&handle.read::<f32>(&d.view()).unwrap(), &want), "{what}, {streams} streams");
        }
        if !has_a {
            continue;
        }
        let rows = || GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
        let graph = capture_owned(&handle, || {
            let d = MatMut::new(&mut d, DType::F32, GROUPS * slot, N)?;
            let args = GroupedGemmArgs::new(&a, &b, GROUPS, rows(), d).product_a_slot().streams(3);
            let args = args.scales_of_a(of_a.view());
            handle.grouped_gemm(if has_b { args.scales_of_b(of_b.view()) } else { args })
        })
        .unwrap();
        let other = [3.0f32, 0.5, 0.0078125, 11.0];
        let want = alone(&other);
        handle.write(&mut of_a.view_mut(), &other).unwrap();
        handle.launch(&graph).unwrap();
        assert!(same(&handle.read::<f32>(&d.view()).unwrap(), &want), "{what}, new scales in a graph");
        // Nothing else is taken for them.
        let few = handle.upload(&[1f32; GROUPS - 1]).unwrap();
        let target = MatMut::new(&mut d, DType::F32, GROUPS * slot, N).unwrap();
        let args = GroupedGemmArgs::new(&a, &b, GROUPS, rows(), target).product_a_slot().scales_of_a(few.view());
        let short = handle.grouped_gemm(args).unwrap_err().to_string();
        assert!(short.contains("scales of A: 12 bytes") && short.contains("16"), "{short}");
    }
    let everything = KernelFamily::SmallMGroups.runs_on(handle.device().compute_capability);
    assert!(!everything || tried == 5, "{tried} pairs");
    // Where no matrix has one scale there is none to take the place of.
    let zeros = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, k).unwrap();
    let (a, b) = (zeros(Scheme::Nvfp4Row, GROUPS * slot), zeros(Scheme::Nvfp4Row, GROUPS * N));
    let of = handle.upload(&[1f32; GROUPS]).unwrap();
    let mut d = handle.alloc(GROUPS * slot * N * 4).unwrap();
    let rows = GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
    let d = MatMut::new(&mut d, DType::F32, GROUPS * slot, N).unwrap();
    let args = GroupedGemmArgs::new(&a, &b, GROUPS, rows, d).scales_of_b(of.view());
    let said = handle.grouped_gemm(args).unwrap_err().to_string();
    assert!(said.contains("a scale for each group of nvfp4-row x nvfp4-row"), "{said}");
    // (To pass what was passed was the remedy.)
    assert!(
        said.ends_with("leave it out: each row of fp8-row and nvfp4-row operands has the scale of its group"),
        "{said}"
    );
}
