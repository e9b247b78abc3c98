//! Groups of few plain rows with weights that are decoded, in one launch: every scheme of weights and width gives, bit for bit, what each group gives alone in the
//! same tiles, wherever groups lie, also in graphs whose counts change; two matrices side by side give SwiGLU of their products; nothing
//! else is written; refusals in words.
#![cfg(feature = "cuda")]

#[path = "gpu_small_m_groups/codes.rs"]
mod codes;
mod common;
#[path = "gpu_small_m_groups/ends.rs"]
mod ends;
#[path = "gpu_small_m_groups/experts.rs"]
mod experts;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "gpu_small_m_groups/many_rows.rs"]
mod many_rows;
#[path = "gpu_small_m_groups/places.rs"]
mod places;
#[allow(dead_code, unused_imports, reason = "what is for quantized rows, too, is the other suites'")]
#[path = "common/small_m_weights.rs"]
mod small_m_weights;
#[path = "gpu_small_m_groups/thousand.rs"]
mod thousand;
#[path = "gpu_small_m_groups/walks.rs"]
mod walks;

use common::gemm::*;
use common::*;
use experts::*;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::reference::{self, Swiglu};
use scaled_gemm::{
    DType, DeviceBuffer, DeviceBytes, DeviceBytesMut, Formulation, Fp8Format, FusedGemmArgs, GemmArgs, GemmDesc,
    GroupedGemmArgs, GroupedRows, Handle, HostQuantMatrix, KernelFamily, MatMut, MatRef, QuantMatrix, Scheme,
    Sm90Config, SmallMConfig, VecRef,
};
use small_m_weights::{blocked, planned};

/// Small, for runs under a sanitizer: each kernel, gated and not, with every split.
#[test]
fn each_kernel_once() {
    each_kernel_of(&PAIRS[..5]);
}

#[test]
fn each_kernel_once_of_e4m3() {
    each_kernel_of(&PAIRS[5..]);
}

fn each_kernel_of(pairs: &[(DType, Scheme)]) {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(301);
    for (i, pair) in pairs.iter().copied().enumerate() {
        for (j, usual) in WIDTHS.into_iter().enumerate() {
            let k = [416, 3616, 7200][(i + j) % 3];
            let counts = [usual - 3, 0, usual + 1];
            let what = |gated| ((i + j) % 2 == 0, gated);
            check(&handle, &mut rng, &counts, [128, k], pair, (usual, WIDE[(i + j) % 3]), what(false));
            check(&handle, &mut rng, &counts, [128, k], pair, (usual, WIDE[j % 3]), what(true));
        }
    }
}

/// Weights whose codes are repacked, in each kernel and split: the bits of those that are as published.
#[test]
fn repacked_weights_have_the_same_bits() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(309);
    for (i, pair) in PAIRS.into_iter().filter(|pair| pair.1.is_nvfp4()).enumerate() {
        for (j, usual) in WIDTHS.into_iter().enumerate() {
            let k = [384, 3584, 7168][(i + j) % 3];
            let counts = [usual - 3, 0, usual + 1];
            for gated in [false, true] {
                let end = (usual, WIDE[(i + j) % 3]);
                check(&handle, &mut rng, &counts, [256, k], pair, end, ((i + j) % 2 == 0, gated));
            }
        }
    }
}

/// Any counts, more groups than a warp has lanes, more parts of D than clusters run at once, and k that cuts steps.
#[test]
fn groups_are_what_each_is_alone() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(302);
    let many: Vec<usize> = (0..70).map(|g| [0, 1, 0, 3, 8, 0, 0, 17, 9, 0, 33, 2][g * 5 % 12]).collect();
    for (i, pair) in PAIRS.into_iter().enumerate() {
        let k = if is_e2m1(pair.1) { [32, 160, 3616] } else { [16, 144, 3600] };
        for (j, k) in k.into_iter().enumerate() {
            let counts: &[usize] = if j == 1 { &many } else { &[100, 0, 5, 64, 31] };
            let n = if j == 1 { 128 } else { 256 + 128 * (i % 2) };
            let of = (WIDTHS[(i + j) % WIDTHS.len()], WIDE[(i + 2 * j) % 3]);
            check(&handle, &mut rng, counts, [n, k], pair, of, (i % 2 == 0, (i + j) % 2 == 0));
        }
    }
    // 200 tiles of 128 columns, of several groups, for some 100 clusters.
    for pair in [PAIRS[0], PAIRS[12]] {
        check(&handle, &mut rng, &[7, 1, 0, 12], [6400, 512], pair, (8, DType::Bf16), (true, false));
        check(&handle, &mut rng, &[3, 70], [6400, 3584], pair, (16, DType::Bf16), (false, true));
        // Groups of many rows: parts of all widths one behind the other, the last of any rows.
        for usual in [32, 64, 300] {
            check(
                &handle,
                &mut rng,
                &[300, 0, 257, 64, 131],
                [384, 1824],
                pair,
                (usual, DType::Bf16),
                (usual == 64, false),
            );
            check(&handle, &mut rng, &[130, 190], [256, 7168], pair, (usual, DType::Bf16), (usual == 32, true));
        }
        // Clusters that compute three parts and more, of one block and of four.
        check(&handle, &mut rng, &[100, 70, 0, 30], [6400, 128], pair, (8, DType::Bf16), (true, false));
        check(&handle, &mut rng, &[100, 70, 0, 30], [1280, 7168], pair, (8, DType::Bf16), (true, false));
    }
}

/// What rows and weights with block scales give, each group alone in 64 rows at a time.
fn alone_quantized(
    handle: &Handle,
    [x, w]: [&HostQuantMatrix; 2],
    (g, n): (usize, usize),
    rows: std::ops::Range<usize>,
    out: DType,
) -> Vec<u8> {
    let (k, b) = (x.cols(), QuantMatrix::from_host(handle, &rows_of(w, g * n, n)).unwrap());
    let mut all = Vec::new();
    for start in rows.clone().step_by(64) {
        let m = (rows.end - start).min(64);
        let a = QuantMatrix::from_host(handle, &rows_of(x, start, m)).unwrap();
        let mut d = poisoned(handle, m * n * out.bytes());
        let args = GemmArgs::new(&a, &b, MatMut::new(&mut d, out, m, n).unwrap()).alpha(ALPHA);
        let desc = GemmDesc::new(m, n, k, x.scheme(), w.scheme(), out);
        planned(handle, &desc, tiles(w.scheme(), k)).execute(handle, args).unwrap();
        all.extend(handle.stream().clone_dtoh(&d).unwrap());
    }
    all
}

/// Quantized rows in any places, groups of few and of many: behind a launch that dequantizes all of them, one launch, whose counts change from launch to launch of a graph.
#[test]
fn quantized_rows_are_what_each_group_is_alone() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(308);
    let (groups, n, rows) = (6, 256, 512);
    let quantizes = |s: &Scheme| matches!(s, Scheme::Nvfp4 | Scheme::Nvfp4Row | Scheme::Mxfp4 | Scheme::Mxfp8(_));
    let all: Vec<_> = Scheme::ALL.into_iter().filter(quantizes).collect();
    let mut tried = 0;
    for (i, (a, b)) in all.iter().flat_map(|a| all.iter().map(|b| (*a, *b))).enumerate() {
        let (out, k) = (WIDE[i % 3], [416, 1824, 3616][i % 3]);
        let served = handle.supports(&GemmDesc::new(64, n, k, a, b, out));
        if !served.is_ok_and(|ways| ways.contains(&Formulation::SmallM)) {
            continue;
        }
        tried += 1;
        let x = quantized(&blocked(&mut rng, rows, k), a);
        let w = quantized(&blocked(&mut rng, groups * n, k), b);
        let [on_a, on_b] = [&x, &w].map(|host| QuantMatrix::from_host(&handle, host).unwrap());
        let mut starts = handle.upload(&[0i64; 6]).unwrap();
        let mut counts = handle.upload(&[0i64; 6]).unwrap();
        let mut clamped = handle.upload(&[77u32]).unwrap();
        let mut d = handle.alloc(rows * n * out.bytes()).unwrap();
        let mut call = |explains: bool| {
            let d = MatMut::new(&mut d, out, rows, n)?;
            let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
            let mut args = GroupedGemmArgs::new(&on_a, &on_b, groups, places, d).alpha(ALPHA);
            if explains {
                let text = args.explain(&handle)?;
                let as_type = if out == DType::F16 && a.is_nvfp4() { "f16" } else { "bf16" };
                // Of as many usual rows A is arranged, too, in whole steps of 128.
                let bytes = rows * k * 2 + rows * k.next_multiple_of(128) * 2;
                let words = format!("dequantizes all of A to {as_type}, {bytes} bytes of scratch memory");
                assert!(text.contains("one launch of small-m") && text.contains(&words), "{text}");
            }
            handle.grouped_gemm(args.clamped(clamped.view_mut()))
        };
        call(true).unwrap();
        let graph = capture_owned(&handle, || call(false)).unwrap();
        let many = [(4, 300), (304, 0), (308, 1), (312, 65), (380, 0), (380, 132)];
        for (turn, taken) in
            [many, [(0, 0); 6], [(0, 8), (8, 8), (16, 0), (16, 64), (80, 33), (500, 12)]].iter().enumerate()
        {
            let numbers = |of: fn(&(usize, usize)) -> usize| taken.iter().map(|x| of(x) as i64).collect::<Vec<_>>();
            handle.write(&mut starts.view_mut(), &numbers(|x| x.0)).unwrap();
            handle.write(&mut counts.view_mut(), &numbers(|x| x.1)).unwrap();
            handle.write(&mut d.view_mut(), &vec![0xFFu8; rows * n * out.bytes()]).unwrap();
            handle.launch(&graph).unwrap();
            let mut want = vec![0xFFu8; rows * n * out.bytes()];
            for (g, (start, count)) in taken.iter().copied().enumerate().filter(|(_, (_, count))| *count > 0) {
                let own = alone_quantized(&handle, [&x, &w], (g, n), start..start + count, out);
                want[start * n * out.bytes()..][..own.len()].copy_from_slice(&own);
            }
            assert!(handle.read_bytes(&d.view()).unwrap() == want, "{a} x {b}, k {k}, {out}, turn {turn}");
            assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [0], "{a} x {b}, turn {turn}");
        }
    }
    assert!(tried >= 5, "{tried} pairs");
    // Slots of many usual rows are one product each, of few this launch.
    let (a, b) =
        (QuantMatrix::zeros(&handle, Scheme::Nvfp4, rows, 64), QuantMatrix::zeros(&handle, Scheme::Nvfp4, 2 * n, 64));
    let (a, b) = (a.unwrap(), b.unwrap());
    let counts = handle.upload(&[256i64, 3]).unwrap();
    let mut d = handle.alloc(rows * n * 2).unwrap();
    let mut text = |usual: Option<usize>| {
        let places = GroupedRows::Masked { slot_rows: 256, counts: counts.view() };
        let d = MatMut::new(&mut d, DType::Bf16, rows, n).unwrap();
        let args = GroupedGemmArgs::new(&a, &b, 2, places, d);
        let mut args = if let Some(usual) = usual { args.expected_rows(usual) } else { args };
        args.explain(&handle).unwrap()
    };
    let texts = [None, Some(129), Some(128)].map(&mut text);
    assert_eq!(texts.each_ref().map(|text| text.contains("one product a slot")), [true, true, false], "{texts:?}");
    assert!(texts[2].contains("one launch of small-m"), "{}", texts[2]);
}

fn by_starts<'a>(of: &'a Experts, starts: &'a DeviceBuffer, counts: &'a DeviceBuffer, usual: usize) -> Launch<'a> {
    Launch { of, starts: Some(starts), slot_rows: 0, counts, usual, out: DType::Bf16, gap: 0 }
}

/// A graph of each width, whose launches find other counts and starts, and other tokens: those of an engine that decodes.
#[test]
fn graphs_follow_counts_starts_and_rows() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(303);
    handle.load_kernels(&[KernelFamily::SmallMGroups, KernelFamily::Grouped]).unwrap();
    for (pair, gated) in [(PAIRS[0], false), (PAIRS[0], true), (PAIRS[12], false), (PAIRS[5], true)] {
        let (groups, n, k, rows) = (40, 128, 3616, 512);
        let each = if gated { 2 * n } else { n };
        let mut of = Experts::new(&handle, &mut rng, rows, [groups, each, k], pair);
        let mut starts = handle.upload(&vec![0i64; groups]).unwrap();
        let mut counts = handle.upload(&vec![0i64; groups]).unwrap();
        let mut d = handle.upload(&vec![0xFFu8; rows * n * 2]).unwrap();
        let graphs = WIDTHS.map(|usual| {
            let launch = by_starts(&of, &starts, &counts, usual);
            launch.explain(&handle, gated);
            let mut enqueue = || launch.enqueue(&handle, &mut d, gated, &End::default());
            // Of many rows A is arranged in scratch memory, which is not reserved in a capture.
            enqueue().unwrap();
            (usual, capture_owned(&handle, enqueue).unwrap())
        });
        for turn in 0..4 {
            // Of few groups each has some rows, one or more than the widest tiles take; others have none, and lie where the next one does.
            let mut at = 0;
            let mut found = Vec::new();
            for g in 0..groups {
                let has_rows = turn < 3 && (g * 7 + turn) % 5 == 0 && at + 132 <= rows;
                let count = if has_rows { 1 + (g + turn).pow(2) % 131 } else { 0 };
                found.push((at, count));
                at += count.next_multiple_of(4);
            }
            let x = blocked(&mut rng, rows, k).mapv(|v| round_to(pair.0, v));
            handle.write(&mut of.a.view_mut(), &strided(&x, pair.0, of.gap)).unwrap();
            of.x = x;
            let numbers = |of: fn(&(usize, usize)) -> usize| found.iter().map(|x| of(x) as i64).collect::<Vec<_>>();
            handle.write(&mut starts.view_mut(), &numbers(|x| x.0)).unwrap();
            handle.write(&mut counts.view_mut(), &numbers(|x| x.1)).unwrap();
            let want = by_starts(&of, &starts, &counts, 8).want(&handle, &found, gated, &End::default());
            for (usual, graph) in &graphs {
                handle.write(&mut d.view_mut(), &vec![0xFFu8; rows * n * 2]).unwrap();
                handle.launch(graph).unwrap();
                let words = format!("{pair:?}, {usual} rows, gated {gated}, turn {turn}");
                assert!(handle.read_bytes(&d.view()).unwrap() == want, "{words}");
            }
        }
    }
}

/// Counts and starts that say what cannot be: no row is written twice, none outside of D, and the clamped are counted.
#[test]
fn any_numbers_are_clamped() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(304);
    let (groups, n, k) = (5, 128, 160);
    let mut clamped = handle.upload(&[77u32]).unwrap();
    for (pair, usual) in [PAIRS[0], PAIRS[12]].into_iter().flat_map(|pair| WIDTHS.map(|usual| (pair, usual))) {
        // More rows than are usual, so that one group is clamped to parts behind each other.
        let rows = 32 + usual;
        let of = Experts::new(&handle, &mut rng, rows, [groups, n, k], pair);
        let all = rows as i64;
        let in_order = (
            [0i64, 8, 12, all - 16, all - 8],
            [8i64, 0, 1000, -1, 3],
            [(0, 8), (8, 0), (12, rows - 28), (rows - 16, 0), (rows - 8, 3)],
            2,
        );
        let odd = ([4i64, 9, 16, 20, 12], [8, 4, 9, 4, i64::MAX], [(4, 5), (0, 0), (16, 4), (20, 0), (0, 0)], 5);
        let outside = (
            [-8i64, all - 4, 1 << 40, i64::MIN, 4],
            [4, 9, 1, 1, 4],
            [(0, 0), (rows - 4, 4), (0, 0), (0, 0), (0, 0)],
            5,
        );
        for (starts, counts, taken, bad) in [in_order, odd, outside] {
            let (starts, counts) = (handle.upload(&starts).unwrap(), handle.upload(&counts).unwrap());
            let launch = Launch { out: DType::F32, ..by_starts(&of, &starts, &counts, usual) };
            launch.explain(&handle, false);
            let end = End::default();
            let got = launch.run(&handle, false, &end);
            let words = format!("{pair:?}, {usual} rows, {taken:?}");
            assert!(got == launch.want(&handle, &taken, false, &end), "{words}");
            let mut d = handle.upload(&vec![0xFFu8; launch.bytes(false)]).unwrap();
            let to = MatMut::new(&mut d, DType::F32, rows, n).unwrap();
            handle.grouped_gemm(launch.plain(to).clamped(clamped.view_mut())).unwrap();
            assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "{words}");
            assert!(handle.read_bytes(&d.view()).unwrap() == got, "{words}");
        }
    }
}

/// Without groups: SwiGLU of two products of all rows, up to 64, in the tiles that are chosen for them.
#[test]
fn two_matrices_side_by_side() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(305);
    for (i, pair) in PAIRS.into_iter().enumerate() {
        // The last are more tiles than run at once.
        let wide = if [0, 6, 12].contains(&i) { vec![(3, 28672, 160), (35, 28672, 32)] } else { Vec::new() };
        let shapes = [(1, 128, 2080), (9, 384, 416), (33, 256, 1056), (64, 128, 544)];
        for (j, (m, n, k)) in shapes.into_iter().chain(wide).enumerate() {
            let of = Experts::new(&handle, &mut rng, m, [1, 2 * n, k], pair);
            let out = WIDE[(i + j) % 3];
            let mut d = handle.upload(&vec![0xFFu8; m * (n + 4) * out.bytes()]).unwrap();
            let to = MatMut::new(&mut d, out, m, n).unwrap().with_row_stride(n + 4).unwrap();
            let args = FusedGemmArgs::swiglu_weight_only(of.a(), &of.b, to).alpha(ALPHA);
            let text = args.explain(&handle).unwrap();
            let (blocks, split) = text.split_once(", k split by ").expect("a split");
            // E2M1 weights of so few rows: the product in other blocks, and a pass; and of more rows the product by warpgroups.
            let by_warpgroups = is_e2m1(pair.1) && m > 16 || m > 32;
            assert_eq!(text.contains("by warpgroup products"), by_warpgroups, "{text}");
            let passes = is_e2m1(pair.1) || by_warpgroups || n == 28672;
            assert_eq!(text.contains("a pass over both products"), passes, "{text}");
            let block =
                if passes { blocks.rsplit(' ').next().unwrap().parse().unwrap() } else { tiles(pair.1, k).block() };
            let config = SmallMConfig::new(block, split[..1].parse().unwrap()).unwrap();
            handle.fused_gemm(args).unwrap();
            let got = handle.read_bytes(&d.view()).unwrap();
            // Both products by themselves.
            let mut both = poisoned(&handle, m * 2 * n * 4);
            let args = GemmArgs::weight_only(of.a(), &of.b, MatMut::new(&mut both, DType::F32, m, 2 * n).unwrap());
            let args = args.alpha(ALPHA);
            planned(&handle, &args.desc().unwrap(), config).execute(&handle, args).unwrap();
            let both = values_of(DType::F32, &handle.stream().clone_dtoh(&both).unwrap());
            let both = Array2::from_shape_vec((m, 2 * n), both).unwrap();
            let (h, _) = reference::swiglu(both.view(), &Swiglu::default()).unwrap();
            let mut want = vec![0xFF; got.len()];
            for (row, to) in h.rows().into_iter().zip(want.chunks_mut((n + 4) * out.bytes())) {
                let bytes = bytes_of(out, row.mapv(|v| round_to(out, v)).iter());
                to[..bytes.len()].copy_from_slice(&bytes);
            }
            assert!(got == want, "{pair:?}, m {m}, n {n}, k {k}\n{text}");
        }
    }
}

/// Gates from the ends of the sigmoid, zeros, infinities and NaN, in the first rows and in the last, which other parts have: what the reference makes of the products.
#[test]
fn gates_of_any_size() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(306);
    let (n, k) = (128, 160);
    let schemes = [Scheme::Nvfp4Row, Scheme::Fp8Group128x128(F)];
    for (scheme, m) in schemes.into_iter().flat_map(|scheme| [16, 32, 64, 128].map(|m| (scheme, m))) {
        for size in [1e-20, 50.0, 1e4, 1e36] {
            let mut x = blocked(&mut rng, m, k).mapv(|v| v * size);
            for from in [0, m - 16] {
                x.row_mut(from + 3).fill(0.0);
                x[[from + 5, 7]] = f32::NAN;
                x[[from + 6, 9]] = f32::INFINITY;
            }
            let w = quantized(&blocked(&mut rng, 2 * n, k), scheme);
            let of = Experts::of(&handle, x, w, 1, DType::Bf16);
            let counts = handle.upload(&[m as i64]).unwrap();
            let (slot_rows, usual, out) = (m, m, DType::F32);
            let launch = Launch { of: &of, starts: None, slot_rows, counts: &counts, usual, out, gap: 0 };
            launch.explain(&handle, true);
            let got = values_of(out, &launch.run(&handle, true, &End::default()));
            let want = values_of(out, &launch.want(&handle, &[(0, m)], true, &End::default()));
            assert_same_values(&got, &want, n, &format!("{scheme}, {m} rows, size {size:e}"));
        }
    }
}

/// Thousands of launches, each behind the one before it and with a D of its own, whose counts change in between: each has the right bits, whatever number of rows is usual.
#[test]
fn long_runs() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(307);
    for (pair, gated) in [(PAIRS[0], true), (PAIRS[12], false)] {
        // Slots that hold two parts of the widest tiles, every other one from four rows beyond a multiple of eight on.
        let (groups, n, k, slot_rows) = (24, 256, 2080, 76);
        let rows = groups * slot_rows;
        let of = Experts::new(&handle, &mut rng, rows, [groups, if gated { 2 * n } else { n }, k], pair);
        let counts: Vec<usize> = (0..groups).map(|g| g * 5 % 9 * slot_rows / 8).collect();
        let count = |turn: usize, g: usize| counts[(g + turn) % groups];
        let mut counts_on = handle.upload(&vec![0i64; groups]).unwrap();
        let poison = vec![0xFFu8; rows * n * 2];
        let mut all: Vec<_> = (0..64).map(|_| handle.upload(&poison).unwrap()).collect();
        for turn in 0..8 {
            let numbers: Vec<_> = (0..groups).map(|g| count(turn, g) as i64).collect();
            handle.write(&mut counts_on.view_mut(), &numbers).unwrap();
            let launch = |usual: usize| Launch {
                of: &of,
                starts: None,
                slot_rows,
                counts: &counts_on,
                usual,
                out: DType::Bf16,
                gap: 0,
            };
            let taken: Vec<_> = (0..groups).map(|g| (slot_rows * g, count(turn, g))).collect();
            let want = launch(8).want(&handle, &taken, gated, &End::default());
            for (run, usual) in [8, 64, 128].into_iter().cycle().take(9).enumerate() {
                let launch = launch(usual);
                launch.explain(&handle, gated);
                all.iter_mut().for_each(|d| handle.write(&mut d.view_mut(), &poison).unwrap());
                for d in &mut all {
                    launch.enqueue(&handle, d, gated, &End::default()).unwrap();
                }
                let wrong = all.iter().position(|d| handle.read_bytes(&d.view()).unwrap() != want);
                let words = format!("{pair:?}, {usual} rows, gated {gated}, turn {turn}, run {run}");
                assert_eq!(wrong, None, "{words}: which launch");
            }
        }
    }
}

#[test]
fn what_it_does_not_do_is_refused_with_the_reason() {
    let Some(handle) = hopper() else { return };
    let (groups, n, k) = (2, 128, 64);
    let x = handle.alloc(64 * k * 4).unwrap();
    let counts = handle.upload(&[3i64, 4]).unwrap();
    let mut d = handle.alloc(256 * 256 * 4).unwrap();
    let rows = || GroupedRows::Masked { slot_rows: 4, counts: counts.view() };
    let zeros = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, k).unwrap();
    let nvfp4 = zeros(Scheme::Nvfp4, groups * n);
    let a = |dtype| MatRef::new(&x, dtype, 8, k).unwrap();
    let mut ask = |a: MatRef<'_>, b: &QuantMatrix, n: usize| {
        let to = MatMut::new(&mut d, DType::Bf16, 8, n).unwrap();
        handle.grouped_gemm(GroupedGemmArgs::weight_only(a, b, groups, rows(), to))
    };
    ask(a(DType::Bf16), &nvfp4, n).unwrap();
    refused(ask(a(DType::F32), &nvfp4, n), &["f32 x nvfp4", "FP32 A would be rounded"]);
    refused(ask(a(DType::F16), &zeros(Scheme::Mxfp4, groups * n), n), &["f16 x mxfp4", "plain A are of bf16"]);
    refused(
        ask(a(DType::Bf16), &zeros(Scheme::Fp8Row(Fp8Format::E5M2), groups * n), n),
        &["bf16 x fp8-row:e5m2", "E4M3"],
    );
    refused(ask(a(DType::Bf16), &nvfp4, 64), &["multiple of 128 columns"]);
    refused(ask(a(DType::Bf16), &zeros(Scheme::Nvfp4, 3 * n), n), &["must be 2 * 128 x 64"]);
    let odd = MatRef::new(&x, DType::Bf16, 8, k).unwrap().with_row_stride(k + 4).unwrap();
    refused(ask(odd, &nvfp4, n), &["row stride 68", "multiple of 8"]);
    let mut with = |change: fn(GroupedGemmArgs<'_>) -> GroupedGemmArgs<'_>| {
        let to = MatMut::new(&mut d, DType::Bf16, 8, n).unwrap();
        handle.grouped_gemm(change(GroupedGemmArgs::weight_only(a(DType::Bf16), &nvfp4, groups, rows(), to)))
    };
    refused(with(|args| args.config(Sm90Config::Tile128x128)), &["configuration of sm90", "leave it out"]);
    // Of two matrices.
    let pair = zeros(Scheme::Nvfp4, 2 * n);
    let mut gated = |m: usize, n: usize, b: &QuantMatrix| {
        let a = MatRef::new(&x, DType::Bf16, m, k).unwrap();
        handle.fused_gemm(FusedGemmArgs::swiglu_weight_only(a, b, MatMut::new(&mut d, DType::Bf16, m, n).unwrap()))
    };
    gated(64, n, &pair).unwrap();
    gated(0, n, &pair).unwrap();
    refused(gated(65, n, &pair), &["at most 64", "quantize A as fp8-1x128"]);
    refused(gated(4, 256, &pair), &["2 * 256 x 64", "the rows of gate, then those of up"]);
    let text = {
        let to = MatMut::new(&mut d, DType::Bf16, 8, n).unwrap();
        let a = MatRef::new(&x, DType::Bf16, 8, k).unwrap();
        GroupedGemmArgs::weight_only(a, &nvfp4, groups, rows(), to).explain(&handle).unwrap()
    };
    assert!(text.contains("one launch of small-m") && text.contains("not read"), "{text}");
}

/// D must lie apart from all that is read: A, B, a bias, and where groups lie.
#[test]
fn a_d_that_overlaps_is_refused() {
    let Some(handle) = hopper() else { return };
    let (groups, n, k) = (2, 128, 64);
    let memory = poisoned(&handle, 1 << 20);
    let (base, _guard) = memory.device_ptr(handle.stream());
    // SAFETY: `memory` lives to the end of the test, and what is enqueued reads and writes different parts of it.
    let read = |at: u64, bytes: usize| unsafe { DeviceBytes::from_raw(base + at, bytes) };
    // SAFETY: the same.
    let part =
        |at: u64, bytes: usize| unsafe { DeviceBuffer::from_raw(handle.stream(), base + at, bytes, ()) }.unwrap();
    // A at 0, codes at 64 KiB, block scales at 128, scales at 192, counts at 256, the bias at 320, D.
    let kib = |at: u64| at << 10;
    let scheme = Scheme::Nvfp4Row;
    let (rows, cols) = (groups * n, k);
    let b = QuantMatrix::from_parts(
        scheme,
        rows,
        cols,
        part(kib(64), scheme.code_bytes(rows, cols)),
        Some(part(kib(192), rows * 4)),
        Some(part(kib(128), scheme.block_scale_len(rows, cols))),
    )
    .unwrap();
    let ask = |at: u64| {
        // SAFETY: the same.
        let d = unsafe { DeviceBytesMut::from_raw(base + at, 8 * n * 2) };
        let rows = GroupedRows::Masked { slot_rows: 4, counts: read(kib(256), groups * 8) };
        let a = MatRef::new(read(0, 8 * k * 2), DType::Bf16, 8, k).unwrap();
        let d = MatMut::new(d, DType::Bf16, 8, n).unwrap();
        let bias = VecRef::new(read(kib(320), groups * n * 2), DType::Bf16, groups * n).unwrap();
        handle.grouped_gemm(GroupedGemmArgs::weight_only(a, &b, groups, rows, d).bias(bias))
    };
    let d_bytes = 8 * n as u64 * 2;
    for (at, words) in [
        (8 * k as u64 * 2 - 2, "must not overlap A"),
        (kib(64) - d_bytes + 2, "must not overlap B"),
        (kib(128), "must not overlap B"),
        (kib(192) + 4, "must not overlap B"),
        (kib(256) + 14, "must not overlap where groups lie"),
        (kib(320), "must not overlap a bias"),
    ] {
        refused(ask(at), &[words, "other tiles still read"]);
    }
    for at in [8 * k as u64 * 2, kib(64) - d_bytes, kib(256) + 16, kib(512)] {
        ask(at).unwrap();
    }
    handle.synchronize().unwrap();
}
