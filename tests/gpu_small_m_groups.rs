//! Groups of few plain rows with weights that are decoded, in one launch: every scheme of weights and width gives, bit for bit, what each group gives alone in the
//! same tiles, wherever groups lie, also in graphs whose counts change; two matrices side by side give SwiGLU of their products; nothing
//! else is written; refusals in words.
#![cfg(feature = "cuda")]

mod common;
#[allow(dead_code, unused_imports, reason = "what is for quantized rows, too, is the other suites'")]
#[path = "common/small_m_weights.rs"]
mod small_m_weights;

use common::gemm::*;
use common::*;
use ndarray::{Array2, s};
use scaled_gemm::reference::{self, Swiglu};
use scaled_gemm::{
    Activation, CodeOrder, DType, DeviceBuffer, Epilogue, Fp8Format, FusedGemmArgs, GemmArgs, GemmDesc,
    GroupedGemmArgs, GroupedRows, Handle, HostQuantMatrix, KernelFamily, MatMut, MatRef, Operand, QuantMatrix, Scheme,
    Sm90Config, SmallMBlock, SmallMConfig, VecRef,
};
use small_m_weights::*;

const F: Fp8Format = Fp8Format::E4M3;

/// A handle on an sm_90.
fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::SmallMGroups)
}

/// Every pair that a kernel multiplies.
const PAIRS: [(DType, Scheme); 14] = [
    (DType::Bf16, Scheme::Nvfp4),
    (DType::F16, Scheme::Nvfp4),
    (DType::Bf16, Scheme::Nvfp4Row),
    (DType::F16, Scheme::Nvfp4Row),
    (DType::Bf16, Scheme::Mxfp4),
    (DType::Bf16, Scheme::Mxfp8(F)),
    (DType::Bf16, Scheme::Fp8Tensor(F)),
    (DType::F16, Scheme::Fp8Tensor(F)),
    (DType::Bf16, Scheme::Fp8Row(F)),
    (DType::F16, Scheme::Fp8Row(F)),
    (DType::Bf16, Scheme::Fp8Group1x128(F)),
    (DType::F16, Scheme::Fp8Group1x128(F)),
    (DType::Bf16, Scheme::Fp8Group128x128(F)),
    (DType::F16, Scheme::Fp8Group128x128(F)),
];

const WIDE: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
/// Usual rows, of which each has kernels of its own.
const WIDTHS: [usize; 3] = [8, 16, 32];
const ALPHA: f32 = 0.75;

fn is_e2m1(scheme: Scheme) -> bool {
    matches!(scheme, Scheme::Nvfp4 | Scheme::Nvfp4Row | Scheme::Mxfp4)
}

/// The tiles that have the same order of sums: as many parts of k as have fourteen steps of 128 each, four at the most.
fn tiles(scheme: Scheme, k: usize) -> SmallMConfig {
    let block = if is_e2m1(scheme) { SmallMBlock::Tile } else { SmallMBlock::TileE4m3 };
    let split = [4, 2].into_iter().find(|split| k.div_ceil(128) >= 14 * split).unwrap_or(1);
    SmallMConfig::new(block, split as u32).unwrap()
}

/// So many rows of a matrix, from one on that begins a tile.
fn rows_of(q: &HostQuantMatrix, from: usize, count: usize) -> HostQuantMatrix {
    let (scheme, rows, k) = (q.scheme(), q.rows(), q.cols());
    let row = q.logical_codes().len() / rows;
    let codes = q.logical_codes()[from * row..(from + count) * row].to_vec();
    let [down, across] = scheme.scale_grid(rows, k);
    let scales = match scheme {
        _ if down <= 1 => q.logical_scales().to_vec(),
        _ => {
            let tall = rows.div_ceil(down);
            q.logical_scales()[from / tall * across..(from + count) / tall * across].to_vec()
        }
    };
    if scheme.spec().block.is_some() {
        let [_, blocks] = scheme.block_grid(rows, k);
        let block_scales = &q.logical_block_scales()[from * blocks..(from + count) * blocks];
        return HostQuantMatrix::from_block_logical(scheme, count, k, codes, &scales, block_scales).unwrap();
    }
    HostQuantMatrix::from_logical(scheme, count, k, codes, &scales).unwrap()
}

/// What groups multiply: rows of X are those of A, with what no group has between them.
struct Experts {
    x: Array2<f32>,
    dtype: DType,
    gap: usize,
    a: DeviceBuffer,
    w: HostQuantMatrix,
    b: QuantMatrix,
    groups: usize,
    /// Rows of B of a group.
    each: usize,
}

impl Experts {
    fn new(
        handle: &Handle,
        rng: &mut Noise,
        rows: usize,
        [groups, each, k]: [usize; 3],
        pair: (DType, Scheme),
    ) -> Self {
        let x = blocked(rng, rows, k);
        let w = quantized(&blocked(rng, groups * each, k), pair.1);
        Self::of(handle, x, w, groups, pair.0)
    }

    fn of(handle: &Handle, x: Array2<f32>, w: HostQuantMatrix, groups: usize, dtype: DType) -> Self {
        let gap = x.nrows() / 4 % 2 * 8;
        let x = x.mapv(|v| round_to(dtype, v));
        let a = handle.upload(&strided(&x, dtype, gap)).unwrap();
        let b = QuantMatrix::from_host(handle, &w).unwrap();
        Self { dtype, gap, a, b, groups, each: w.rows() / groups, x, w }
    }

    fn a(&self) -> MatRef<'_> {
        let (rows, k) = (self.x.nrows(), self.x.ncols());
        MatRef::new(&self.a, self.dtype, rows, k).unwrap().with_row_stride(k + self.gap).unwrap()
    }

    /// The product of some rows with a group's matrix.
    fn alone(&self, handle: &Handle, g: usize, rows: std::ops::Range<usize>, out: DType, end: &End) -> Vec<u8> {
        let (n, k) = (self.each, self.x.ncols());
        let b = QuantMatrix::from_host(handle, &rows_of(&self.w, g * n, n)).unwrap();
        let config = tiles(self.w.scheme(), k);
        let mut all = Vec::new();
        for start in rows.clone().step_by(64) {
            let own = self.x.slice(s![start..rows.end.min(start + 64), ..]).to_owned();
            let m = own.nrows();
            let epilogue =
                Epilogue { bias: end.bias.as_ref().map(|_| DType::F32), activation: end.activation, residual: None };
            let desc = GemmDesc::new(m, n, k, Operand::Plain(self.dtype), self.w.scheme(), out).with_epilogue(epilogue);
            let a = handle.upload(&strided(&own, self.dtype, 0)).unwrap();
            let a = MatRef::new(&a, self.dtype, m, k).unwrap();
            let mut d = poisoned(handle, m * n * out.bytes());
            let to = MatMut::new(&mut d, out, m, n).unwrap();
            let bias = end.bias.as_ref().map(|bias| handle.upload(&bias[g * n..(g + 1) * n]).unwrap());
            let mut args = GemmArgs::weight_only(a, &b, to).alpha(ALPHA).activation(end.activation);
            if let Some(bias) = &bias {
                args = args.bias(VecRef::new(bias, DType::F32, n).unwrap());
            }
            planned(handle, &desc, config).execute(handle, args).unwrap();
            all.extend(handle.stream().clone_dtoh(&d).unwrap());
        }
        all
    }

    /// The same of both matrices of a group, and SwiGLU of them.
    fn alone_gated(&self, handle: &Handle, g: usize, rows: std::ops::Range<usize>, out: DType) -> Vec<u8> {
        let m = rows.len();
        let both = values_of(DType::F32, &self.alone(handle, g, rows, DType::F32, &End::default()));
        let both = Array2::from_shape_vec((m, self.each), both).unwrap();
        let (h, _) = reference::swiglu(both.view(), &Swiglu::default()).unwrap();
        bytes_of(out, h.mapv(|v| round_to(out, v)).iter())
    }
}

/// What follows the sums.
#[derive(Default)]
struct End {
    bias: Option<Vec<f32>>,
    activation: Activation,
}

/// Rows `gap` elements apart, NaN between them.
fn strided(x: &Array2<f32>, dtype: DType, gap: usize) -> Vec<u8> {
    let mut values = Vec::new();
    for row in x.rows() {
        values.extend(row.iter());
        values.extend(vec![f32::NAN; gap]);
    }
    bytes_of(dtype, &values)
}

/// Where groups of these counts lie, with gaps, each at a multiple of four rows.
fn starts_of(counts: &[usize]) -> (Vec<i64>, usize) {
    let mut at = 4;
    let starts = counts.iter().enumerate().map(|(g, count)| {
        let start = at;
        at += count.next_multiple_of(4) + g % 3 * 4;
        start as i64
    });
    (starts.collect(), at + 4)
}

/// D of all groups in one launch: rows of no group are poison.
struct Launch<'a> {
    of: &'a Experts,
    starts: Option<&'a DeviceBuffer>,
    slot_rows: usize,
    counts: &'a DeviceBuffer,
    usual: usize,
    out: DType,
    gap: usize,
}

impl Launch<'_> {
    fn rows(&self) -> GroupedRows<'_> {
        match self.starts {
            Some(starts) => GroupedRows::Contiguous { starts: starts.view(), counts: self.counts.view() },
            None => GroupedRows::Masked { slot_rows: self.slot_rows, counts: self.counts.view() },
        }
    }

    fn columns(&self, gated: bool) -> usize {
        if gated { self.of.each / 2 } else { self.of.each }
    }

    fn bytes(&self, gated: bool) -> usize {
        self.of.x.nrows() * (self.columns(gated) + self.gap) * self.out.bytes()
    }

    fn enqueue(&self, handle: &Handle, d: &mut DeviceBuffer, gated: bool, end: &End) -> scaled_gemm::Result<()> {
        let (rows, n) = (self.of.x.nrows(), self.columns(gated));
        let to = MatMut::new(d, self.out, rows, n)?.with_row_stride(n + self.gap)?;
        if gated {
            let args = FusedGemmArgs::swiglu_weight_only(self.of.a(), &self.of.b, to).alpha(ALPHA);
            return handle.fused_gemm(args.groups(self.of.groups, self.rows()).expected_rows(self.usual));
        }
        let bias = end.bias.as_ref().map(|bias| handle.upload(bias)).transpose()?;
        let args = GroupedGemmArgs::weight_only(self.of.a(), &self.of.b, self.of.groups, self.rows(), to);
        let args = args.alpha(ALPHA).activation(end.activation).expected_rows(self.usual);
        match &bias {
            Some(bias) => handle.grouped_gemm(args.bias(VecRef::new(bias, DType::F32, self.of.w.rows())?)),
            None => handle.grouped_gemm(args),
        }
    }

    /// All bytes of D.
    fn run(&self, handle: &Handle, gated: bool, end: &End) -> Vec<u8> {
        let mut d = handle.upload(&vec![0xFFu8; self.bytes(gated)]).unwrap();
        self.enqueue(handle, &mut d, gated, end).unwrap();
        handle.read_bytes(&d.view()).unwrap()
    }

    /// What it must be where groups have these rows: start and count.
    fn want(&self, handle: &Handle, taken: &[(usize, usize)], gated: bool, end: &End) -> Vec<u8> {
        let (row, step) = (self.columns(gated) * self.out.bytes(), (self.columns(gated) + self.gap) * self.out.bytes());
        let mut want = vec![0xFF; self.bytes(gated)];
        for (g, (start, count)) in taken.iter().copied().enumerate().filter(|(_, (_, count))| *count > 0) {
            let rows = start..start + count;
            let own = match gated {
                true => self.of.alone_gated(handle, g, rows, self.out),
                false => self.of.alone(handle, g, rows, self.out, end),
            };
            for (i, bytes) in own.chunks(row).enumerate() {
                want[(start + i) * step..][..row].copy_from_slice(bytes);
            }
        }
        want
    }
}

/// Groups of these counts, contiguous or in slots, of rows of one width of kernels.
fn check(
    handle: &Handle,
    rng: &mut Noise,
    counts: &[usize],
    [n, k]: [usize; 2],
    pair: (DType, Scheme),
    (usual, out): (usize, DType),
    (slots, gated): (bool, bool),
) {
    let (starts, rows) = starts_of(counts);
    let slot_rows = counts.iter().max().unwrap().next_multiple_of(4);
    let rows = if slots { slot_rows * counts.len() } else { rows };
    let each = if gated { 2 * n } else { n };
    let mut of = Experts::new(handle, rng, rows, [counts.len(), each, k], pair);
    let start = |g: usize| if slots { g * slot_rows } else { starts[g] as usize };
    let taken: Vec<_> = counts.iter().enumerate().map(|(g, count)| (start(g), *count)).collect();
    let starts_on = handle.upload(&starts).unwrap();
    let counts_on = handle.upload(&counts.iter().map(|count| *count as i64).collect::<Vec<_>>()).unwrap();
    let starts = (!slots).then_some(&starts_on);
    let launch = Launch { of: &of, starts, slot_rows, counts: &counts_on, usual, out, gap: counts.len() % 2 * 4 };
    let mut end = End::default();
    if !gated && n == 256 {
        end.bias = Some((0..counts.len() * n).map(|_| rng.normal()).collect());
        end.activation = Activation::Silu;
    }
    let got = launch.run(handle, gated, &end);
    let want = launch.want(handle, &taken, gated, &end);
    let (step, size) = ((launch.columns(gated) + launch.gap) * out.bytes(), out.bytes());
    let wrong = (0..got.len() / size).find(|i| got[i * size..][..size] != want[i * size..][..size]);
    let wrong = wrong.map(|i| (i * size / step, i * size % step / size));
    assert_eq!(wrong, None, "{pair:?}, {usual} rows, n {n}, k {k}, slots {slots}, gated {gated}: row and column");
    assert!(launch.run(handle, gated, &end) == got, "a second run differs: {pair:?}");
    let gap = launch.gap;
    if CodeOrder::Repacked.check(pair.1, of.b.rows(), k).is_ok() {
        of.b.repack(handle, CodeOrder::Repacked).unwrap();
        let launch = Launch { of: &of, starts, slot_rows, counts: &counts_on, usual, out, gap };
        assert!(launch.run(handle, gated, &end) == got, "repacked weights: {pair:?}");
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
                check(
                    &handle,
                    &mut rng,
                    &counts,
                    [256, k],
                    pair,
                    (usual, WIDE[(i + j) % 3]),
                    ((i + j) % 2 == 0, gated),
                );
            }
        }
    }
}

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
            let of = (WIDTHS[(i + j) % 3], WIDE[(i + 2 * j) % 3]);
            check(&handle, &mut rng, counts, [n, k], pair, of, (i % 2 == 0, (i + j) % 2 == 0));
        }
    }
    // 200 tiles of 128 columns, of several groups, for some 100 clusters.
    for pair in [PAIRS[0], PAIRS[12]] {
        check(&handle, &mut rng, &[7, 1, 0, 12], [6400, 512], pair, (8, DType::Bf16), (true, false));
        check(&handle, &mut rng, &[3, 70], [6400, 3584], pair, (16, DType::Bf16), (false, true));
        // Clusters that compute three parts and more, of one block and of four.
        check(&handle, &mut rng, &[100, 70, 0, 30], [6400, 128], pair, (8, DType::Bf16), (true, false));
        check(&handle, &mut rng, &[100, 70, 0, 30], [1280, 7168], pair, (8, DType::Bf16), (true, false));
    }
}

/// One graph whose launches find other counts and starts, and other tokens: those of an engine that decodes.
#[test]
fn graphs_follow_counts_starts_and_rows() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(303);
    handle.load_kernels(&[KernelFamily::SmallMGroups, KernelFamily::Grouped]).unwrap();
    for (pair, gated) in [(PAIRS[0], false), (PAIRS[0], true), (PAIRS[12], false), (PAIRS[5], true)] {
        let (groups, n, k, rows) = (40, 128, 3616, 96);
        let each = if gated { 2 * n } else { n };
        let mut of = Experts::new(&handle, &mut rng, rows, [groups, each, k], pair);
        let mut starts = handle.upload(&vec![0i64; groups]).unwrap();
        let mut counts = handle.upload(&vec![0i64; groups]).unwrap();
        let mut d = handle.upload(&vec![0xFFu8; rows * n * 2]).unwrap();
        let graph = {
            let out = DType::Bf16;
            let launch =
                Launch { of: &of, starts: Some(&starts), slot_rows: 0, counts: &counts, usual: 8, out, gap: 0 };
            capture_owned(&handle, || launch.enqueue(&handle, &mut d, gated, &End::default())).unwrap()
        };
        for turn in 0..4 {
            // Of few groups each has some rows; others have none, and lie where the next one does.
            let mut at = 0;
            let mut found = Vec::new();
            for g in 0..groups {
                let count =
                    if turn < 3 && (g * 7 + turn) % 5 == 0 && at + 12 <= rows { 1 + (g + turn) % 11 } else { 0 };
                found.push((at, count));
                at += count.next_multiple_of(4);
            }
            let x = blocked(&mut rng, rows, k).mapv(|v| round_to(pair.0, v));
            handle.write(&mut of.a.view_mut(), &strided(&x, pair.0, of.gap)).unwrap();
            of.x = x;
            let numbers = |of: fn(&(usize, usize)) -> usize| found.iter().map(|x| of(x) as i64).collect::<Vec<_>>();
            handle.write(&mut starts.view_mut(), &numbers(|x| x.0)).unwrap();
            handle.write(&mut counts.view_mut(), &numbers(|x| x.1)).unwrap();
            handle.write(&mut d.view_mut(), &vec![0xFFu8; rows * n * 2]).unwrap();
            handle.launch(&graph).unwrap();
            let launch = Launch {
                of: &of,
                starts: Some(&starts),
                slot_rows: 0,
                counts: &counts,
                usual: 8,
                out: DType::Bf16,
                gap: 0,
            };
            let want = launch.want(&handle, &found, gated, &End::default());
            assert!(handle.read_bytes(&d.view()).unwrap() == want, "{pair:?}, gated {gated}, turn {turn}");
        }
    }
}

/// Counts and starts that say what cannot be: no row is written twice, none outside of D, and the clamped are counted.
#[test]
fn any_numbers_are_clamped() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(304);
    let (groups, n, k, rows) = (5, 128, 160, 40);
    let of = Experts::new(&handle, &mut rng, rows, [groups, n, k], PAIRS[0]);
    let mut clamped = handle.upload(&[77u32]).unwrap();
    let in_order = ([0i64, 8, 12, 24, 32], [8i64, 0, 100, -1, 3], [(0, 8), (8, 0), (12, 12), (24, 0), (32, 3)], 2);
    let odd = ([4i64, 9, 16, 20, 12], [8, 4, 9, 4, i64::MAX], [(4, 5), (0, 0), (16, 4), (20, 0), (0, 0)], 5);
    let outside = ([-8i64, 36, 1 << 40, i64::MIN, 4], [4, 9, 1, 1, 4], [(0, 0), (36, 4), (0, 0), (0, 0), (0, 0)], 5);
    for (starts, counts, taken, bad) in [in_order, odd, outside] {
        let (starts, counts) = (handle.upload(&starts).unwrap(), handle.upload(&counts).unwrap());
        let launch =
            Launch { of: &of, starts: Some(&starts), slot_rows: 0, counts: &counts, usual: 8, out: DType::F32, gap: 0 };
        let end = End::default();
        let got = launch.run(&handle, false, &end);
        assert!(got == launch.want(&handle, &taken, false, &end), "{taken:?}");
        let mut d = handle.upload(&vec![0xFFu8; launch.bytes(false)]).unwrap();
        let to = MatMut::new(&mut d, DType::F32, rows, n).unwrap();
        let args = GroupedGemmArgs::weight_only(of.a(), &of.b, groups, launch.rows(), to).alpha(ALPHA);
        handle.grouped_gemm(args.clamped(clamped.view_mut())).unwrap();
        assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "{taken:?}");
        assert!(handle.read_bytes(&d.view()).unwrap() == got);
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
            // E2M1 weights of so few rows: the product in other blocks, and a pass.
            let passes = is_e2m1(pair.1) && m <= 16 || n == 28672;
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

/// Gates from the ends of the sigmoid, zeros, infinities and NaN: what the reference makes of the products.
#[test]
fn gates_of_any_size() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(306);
    let (m, n, k) = (16, 128, 160);
    for size in [1e-20, 50.0, 1e4, 1e36] {
        let mut x = blocked(&mut rng, m, k).mapv(|v| v * size);
        x.row_mut(3).fill(0.0);
        x[[5, 7]] = f32::NAN;
        x[[6, 9]] = f32::INFINITY;
        let w = quantized(&blocked(&mut rng, 2 * n, k), Scheme::Nvfp4Row);
        let of = Experts::of(&handle, x, w, 1, DType::Bf16);
        let counts = handle.upload(&[m as i64]).unwrap();
        let launch = Launch { of: &of, starts: None, slot_rows: m, counts: &counts, usual: m, out: DType::F32, gap: 0 };
        let got = values_of(DType::F32, &launch.run(&handle, true, &End::default()));
        let want = values_of(DType::F32, &launch.want(&handle, &[(0, m)], true, &End::default()));
        assert_same_values(&got, &want, n, &format!("size {size:e}"));
    }
}

/// Tens of thousands of launches, each behind the one before it, whose counts change in between: then the right bits.
#[test]
fn long_runs() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(307);
    for (pair, gated) in [(PAIRS[0], true), (PAIRS[12], false)] {
        let (groups, n, k) = (24, 256, 2080);
        let of = Experts::new(&handle, &mut rng, 192, [groups, if gated { 2 * n } else { n }, k], pair);
        let counts: Vec<usize> = (0..groups).map(|g| g * 5 % 9).collect();
        let numbers = |turn: usize| (0..groups).map(|g| counts[(g + turn) % groups] as i64).collect::<Vec<_>>();
        let mut counts_on = handle.upload(&numbers(1)).unwrap();
        let mut d = handle.upload(&vec![0xFFu8; 192 * n * 2]).unwrap();
        for turn in (0..8).rev() {
            handle.write(&mut counts_on.view_mut(), &numbers(turn)).unwrap();
            let launch =
                Launch { of: &of, starts: None, slot_rows: 8, counts: &counts_on, usual: 8, out: DType::Bf16, gap: 0 };
            (0..2000).for_each(|_| launch.enqueue(&handle, &mut d, gated, &End::default()).unwrap());
        }
        handle.write(&mut d.view_mut(), &vec![0xFFu8; 192 * n * 2]).unwrap();
        let launch =
            Launch { of: &of, starts: None, slot_rows: 8, counts: &counts_on, usual: 8, out: DType::Bf16, gap: 0 };
        launch.enqueue(&handle, &mut d, gated, &End::default()).unwrap();
        let taken: Vec<_> = counts.iter().enumerate().map(|(g, count)| (8 * g, *count)).collect();
        let want = launch.want(&handle, &taken, gated, &End::default());
        assert!(handle.read_bytes(&d.view()).unwrap() == want, "{pair:?}, gated {gated}");
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
