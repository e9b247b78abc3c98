//! SwiGLU of plain rows to codes: the bytes of the reference quantizer of what the same call stores in FP32, also in graphs; rows of any number; refusals.

use scaled_gemm::{Fp8Granularity, Fp8Recipe, FusedOut};

use super::*;
use crate::guarded::Arena;

const CODES: Scheme = Scheme::Fp8Group1x128(F);

fn recipes() -> Vec<Fp8Recipe> {
    Fp8Recipe::all().filter(|r| (r.granularity, r.format) == (Fp8Granularity::Group1x128, F)).collect()
}

/// Codes of 0xFF, and scales of NaN but for their padding.
fn target(handle: &Handle, m: usize, n: usize) -> QuantMatrix {
    let mut q = QuantMatrix::zeros(handle, CODES, m, n).unwrap();
    poison(handle, &mut q);
    q
}

fn poison(handle: &Handle, q: &mut QuantMatrix) {
    let (m, n) = (q.rows(), q.cols());
    q.write_parts(handle, |mut parts| {
        let padded = m.next_multiple_of(4);
        let (mut codes, mut scales) = (vec![0u8; parts.codes.len()], vec![f32::NAN; padded * (n / 128)]);
        codes[..m * n].fill(0xFF);
        scales.chunks_mut(padded).for_each(|of_block| of_block[m..].fill(0.0));
        handle.write(&mut parts.codes, &codes)?;
        handle.write(&mut parts.scales, &scales)
    })
    .unwrap();
}

fn swiglu<'a>(of: &'a Experts, d: impl Into<FusedOut<'a>>, invariant: bool) -> FusedGemmArgs<'a> {
    FusedGemmArgs::swiglu_weight_only(of.a(), &of.b, d).alpha(ALPHA).batch_invariant(invariant)
}

/// What it stores in FP32.
fn numbers(handle: &Handle, of: &Experts, [m, n]: [usize; 2], invariant: bool) -> Array2<f32> {
    let mut d = handle.upload(&vec![0xFFu8; m * n * 4]).unwrap();
    handle.fused_gemm(swiglu(of, MatMut::new(&mut d, DType::F32, m, n).unwrap(), invariant)).unwrap();
    Array2::from_shape_vec((m, n), values_of(DType::F32, &handle.read_bytes(&d.view()).unwrap())).unwrap()
}

#[test]
fn codes_are_those_of_the_reference_quantizer() {
    let Some(handle) = hopper() else { return };
    let (mut rng, recipes) = (Noise::new(321), recipes());
    let (mut ways, mut met) = ([0; 2], [false; 2]);
    for (i, pair) in PAIRS.into_iter().enumerate() {
        // The first is more tiles than run at once, and parts of the sums of the last meet in memory.
        let wide = if [0, 12].contains(&i) { vec![(3, 28672, 160), (33, 2048, 7200)] } else { Vec::new() };
        let shapes = [(1, 128, 2080), (9, 384, 384), (33, 256, 1056), (64, 128, 640)];
        for (j, (m, n, k)) in shapes.into_iter().chain(wide).enumerate() {
            let mut of = Experts::new(&handle, &mut rng, m, [1, 2 * n, k], pair);
            if pair.1.is_nvfp4() && k.is_multiple_of(128) {
                of.b.repack(&handle, scaled_gemm::CodeOrder::Repacked).unwrap();
            }
            for invariant in [false, true] {
                let recipe = recipes[(i + j + usize::from(invariant)) % recipes.len()];
                let mut d = target(&handle, m, n);
                let args = swiglu(&of, &mut d, invariant).recipe(recipe);
                let text = args.explain(&handle).unwrap();
                let passes = text.contains("a pass over both products");
                assert!(!(passes && invariant), "{text}");
                ways[usize::from(passes)] += 1;
                // Of warpgroup products A in their order, too, and parts of sums that meet in memory.
                let width = [32, 48, 64].into_iter().find(|width| m <= *width).unwrap();
                let in_memory = text.contains("one that adds parts of sums");
                met[usize::from(in_memory)] |= passes;
                let split =
                    [1, 2, 3, 4, 6, 8].into_iter().find(|split| text.contains(&format!("k split by {split}"))).unwrap();
                let parts = if in_memory { split * m * 2 * n * 4 } else { 0 };
                let arranged = if text.contains("by warpgroup products") {
                    (width * k.next_multiple_of(128) * 2 + parts).next_multiple_of(128)
                } else {
                    0
                };
                let words = match passes {
                    true => format!("a pass over both products; {} bytes of scratch memory", m * 2 * n * 4 + arranged),
                    false => format!(", and the quantizer behind it; {} bytes of scratch memory", m * n * 4),
                };
                assert!(text.contains(&words) && text.contains("to fp8-1x128:e4m3"), "{words:?} is not in {text}");
                handle.fused_gemm(args).unwrap();
                let stored = numbers(&handle, &of, [m, n], invariant);
                assert!(stored.iter().any(|v| *v != 0.0), "{text}");
                let want = reference::quantize(stored.view(), DType::F32, recipe).unwrap();
                assert_device_bits(&handle, &d, &want, &format!("{pair:?}, m {m}, n {n}, k {k}, {recipe:?}\n{text}"));
            }
        }
    }
    // Where parts meet follows how many multiprocessors there are.
    let met = met == [true; 2] || handle.device().sm_count != 132;
    assert!(ways.iter().all(|count| *count > 0) && met, "{ways:?}");
    // No rows, no codes.
    let of = Experts::new(&handle, &mut rng, 1, [1, 256, 64], PAIRS[0]);
    let mut none = QuantMatrix::zeros(&handle, CODES, 0, 128).unwrap();
    let a = MatRef::new(&of.a, of.dtype, 0, 64).unwrap();
    handle.fused_gemm(FusedGemmArgs::swiglu_weight_only(a, &of.b, &mut none)).unwrap();
}

/// A batch-invariant row has the same codes and scales whatever m is.
#[test]
fn rows_have_the_same_codes_for_every_m() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(322);
    let (n, k) = (256, 3616);
    for pair in [PAIRS[0], PAIRS[13]] {
        let of = Experts::new(&handle, &mut rng, 64, [1, 2 * n, k], pair);
        let rows = |m: usize| -> Vec<Vec<u8>> {
            let mut d = target(&handle, m, n);
            let a = MatRef::new(&of.a, of.dtype, m, k).unwrap().with_row_stride(k + of.gap).unwrap();
            let args = FusedGemmArgs::swiglu_weight_only(a, &of.b, &mut d).alpha(ALPHA).batch_invariant(true);
            handle.fused_gemm(args).unwrap();
            let d = d.to_host(&handle).unwrap();
            let (codes, scales) = (d.logical_codes(), d.logical_scales());
            let row = |i: usize| {
                let mut row = codes[i * n..(i + 1) * n].to_vec();
                row.extend(bytes_of(DType::F32, &scales[i * n / 128..(i + 1) * n / 128]));
                row
            };
            (0..m).map(row).collect()
        };
        let all = rows(64);
        for m in [1, 2, 8, 9, 16, 31, 32, 33, 63] {
            assert!(rows(m) == all[..m], "{pair:?}, m = {m}");
        }
    }
}

/// A, B, codes and scales in one allocation, 0xFF between them: the bytes of operands apart, and nothing else is written.
#[test]
fn codes_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(323);
    for (i, pair) in [PAIRS[0], PAIRS[5], PAIRS[13]].into_iter().enumerate() {
        for (j, m) in [7, 18, 61].into_iter().enumerate() {
            let (n, k) = (128 + 128 * (j % 2), [416, 3616][i % 2]);
            let of = Experts::new(&handle, &mut rng, m, [1, 2 * n, k], pair);
            let mut apart = poisoned_matrix(&handle, CODES, m, n);
            handle.fused_gemm(swiglu(&of, &mut apart, false)).unwrap();
            let mut arena = Arena::new(&handle, 2 * (m + 2 * n + 256) * (k + 256) + (4 << 20));
            let a = arena.rows(&handle, of.x.view(), pair.0, k + 8, 16);
            let b = arena.matrix(&handle, &of.w);
            let (mut d, written) = arena.target(&handle, CODES, [m, n]);
            let before = arena.ready(&handle);
            let a = MatRef::new(&a, pair.0, m, k).unwrap().with_row_stride(k + 8).unwrap();
            handle.fused_gemm(FusedGemmArgs::swiglu_weight_only(a, &b, &mut d).alpha(ALPHA)).unwrap();
            let words = format!("{pair:?}, {m} x {n} x {k}");
            arena.read_behind(&handle, &before, &written, &words);
            for (got, want) in [(d.codes(), apart.codes()), (d.scales(), apart.scales())] {
                let [got, want] = [got, want].map(|bytes| handle.read_bytes(&bytes).unwrap());
                assert!(got == want, "other codes or scales than of operands apart: {words}");
                assert!(want.iter().any(|byte| *byte != 0xFF), "nothing was written: {words}");
            }
        }
    }
}

/// In a graph, with and without a chain, and the product that reads the codes behind it: the eager bits. Scratch memory is there before.
#[test]
fn graphs_of_codes_give_the_eager_bits() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(324);
    let (n, k) = (256, 2080);
    // Planned for calls alone, and for links.
    for (pair, m, planned) in [(PAIRS[0], 9, false), (PAIRS[0], 9, true), (PAIRS[0], 40, false), (PAIRS[12], 9, true)] {
        let of = Experts::new(&handle, &mut rng, m, [1, 2 * n, k], pair);
        let down = quantized(&blocked(&mut rng, n, n), Scheme::Fp8Group128x128(F));
        let down = QuantMatrix::from_host(&handle, &down).unwrap();
        let mut hidden = target(&handle, m, n);
        let mut y = handle.alloc(m * n * 2).unwrap();
        let run = |hidden: &mut QuantMatrix, y: &mut DeviceBuffer| {
            handle.fused_gemm(swiglu(&of, &mut *hidden, false).chained(planned))?;
            handle.scaled_gemm(GemmArgs::new(hidden, &down, MatMut::new(y, DType::Bf16, m, n)?))
        };
        run(&mut hidden, &mut y).unwrap();
        let stored = |hidden: &QuantMatrix, y: &DeviceBuffer| {
            [hidden.codes(), hidden.scales(), y.view()].map(|bytes| handle.read_bytes(&bytes).unwrap())
        };
        let want = stored(&hidden, &y);
        for chained in [false, true] {
            let graph = capture_owned(&handle, || match chained {
                true => handle.chain(|| run(&mut hidden, &mut y)),
                false => run(&mut hidden, &mut y),
            });
            let graph = graph.unwrap();
            for launches in [1, 1, 40] {
                handle.write(&mut y.view_mut(), &vec![0xFFu8; m * n * 2]).unwrap();
                poison(&handle, &mut hidden);
                (0..launches).for_each(|_| handle.launch(&graph).unwrap());
                let words = format!("{pair:?}, m = {m}, chained {chained}, {launches} launches");
                assert!(stored(&hidden, &y) == want, "{words}");
            }
        }
    }
}

#[test]
fn other_codes_and_codes_of_groups_are_refused() {
    let Some(handle) = hopper() else { return };
    let (m, n, k) = (8, 128, 64);
    let x = handle.alloc(65 * k * 2).unwrap();
    let b = QuantMatrix::zeros(&handle, Scheme::Nvfp4, 2 * n, k).unwrap();
    let a = |rows| MatRef::new(&x, DType::Bf16, rows, k).unwrap();
    let matrix = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, n).unwrap();
    let mut codes = matrix(CODES, m);
    handle.fused_gemm(FusedGemmArgs::swiglu_weight_only(a(m), &b, &mut codes)).unwrap();
    let counts = handle.upload(&[5i64]).unwrap();
    let mut grouped = |explains: bool| {
        let rows = GroupedRows::Masked { slot_rows: m, counts: counts.view() };
        let args = FusedGemmArgs::swiglu_weight_only(a(m), &b, &mut codes).groups(1, rows);
        if explains { args.explain(&handle).map(drop) } else { handle.fused_gemm(args) }
    };
    let words = ["quantized D of plain rows in groups", "rows of no group must not be written", "store numbers"];
    [true, false].into_iter().for_each(|explains| drop(refused(grouped(explains), &words)));
    let ask = |codes: &mut QuantMatrix, rows| handle.fused_gemm(FusedGemmArgs::swiglu_weight_only(a(rows), &b, codes));
    refused(ask(&mut matrix(Scheme::Fp8Row(F), m), m), &["D: 8 x 128 fp8-row:e4m3", "must be fp8-1x128:e4m3"]);
    refused(ask(&mut matrix(CODES, 65), 65), &["at most 64", "quantize A as fp8-1x128"]);
    refused(ask(&mut codes, 4), &["D: 8 x 128", "A's 4 rows"]);
    let recipe = Fp8Recipe::new(Fp8Granularity::Row, F);
    let args = FusedGemmArgs::swiglu_weight_only(a(m), &b, &mut codes).recipe(recipe);
    refused(handle.fused_gemm(args), &["a recipe of fp8-row:e4m3 for D", "Group1x128"]);
    // Scratch memory cannot be made inside a capture; once it has been made all is well.
    let handle = Handle::new(handle.device().ordinal).unwrap();
    handle.load_kernels(&[KernelFamily::SmallMGroups, KernelFamily::SmallMWeights, KernelFamily::Fp8]).unwrap();
    let x = handle.alloc(64 * k * 2).unwrap();
    let b = QuantMatrix::zeros(&handle, Scheme::Nvfp4, 2 * n, k).unwrap();
    let mut codes = QuantMatrix::zeros(&handle, CODES, m, n).unwrap();
    let mut run = || {
        let a = MatRef::new(&x, DType::Bf16, m, k)?;
        handle.fused_gemm(FusedGemmArgs::swiglu_weight_only(a, &b, &mut codes))
    };
    refused(handle.capture(&mut run).map(drop), &["scratch memory", "capture"]);
    run().unwrap();
    capture_owned(&handle, &mut run).map(drop).unwrap();
}
