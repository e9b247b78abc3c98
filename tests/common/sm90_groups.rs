//! What the suites of groups of rows of our product for sm_90 share: operands, what each group gives alone, and checks of any pair.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    Activation, DType, Error, GroupedGemmArgs, GroupedRows, Handle, HostQuantMatrix, KernelFamily, MatMut, QuantMatrix,
    Scheme, Sm90Config, VecRef,
};

use crate::common::gemm::*;
use crate::common::*;
use crate::guarded::{Arena, gathered_bytes, places_of_rows};
use crate::sm90::*;

/// A, B and D of a grouped product, with as many rows between groups as there are.
pub struct Groups {
    pub a: QuantMatrix,
    pub b: QuantMatrix,
    pub host_a: HostQuantMatrix,
    pub host_b: HostQuantMatrix,
    pub x: Array2<f32>,
    pub n: usize,
    pub out: DType,
}

impl Groups {
    pub fn new(handle: &Handle, rng: &mut Noise, shape: [usize; 3], groups: usize, out: DType) -> Self {
        Self::of(handle, rng, shape, groups, out, (VEC, BLK))
    }

    pub fn of(
        handle: &Handle,
        rng: &mut Noise,
        [m, n, k]: [usize; 3],
        groups: usize,
        out: DType,
        (a, b): (Scheme, Scheme),
    ) -> Self {
        let x = tiled(rng, m, k);
        let (host_a, host_b) = (quantized(&x, a), quantized(&tiled(rng, groups * n, k), b));
        let [a, b] = [&host_a, &host_b].map(|host| QuantMatrix::from_host(handle, host).unwrap());
        Self { a, b, host_a, host_b, x, n, out }
    }

    /// Rows of no group hold NaN codes and NaN scales.
    pub fn poison_gaps(&mut self, handle: &Handle, groups: &[(i64, i64)]) {
        let host = &self.host_a;
        let (m, k) = self.x.dim();
        let (mut codes, mut scales) = (host.logical_codes().to_vec(), host.logical_scales().to_vec());
        // None where one is that of all rows.
        let row_scales = scales.len() / m;
        let inside = |row: usize| groups.iter().any(|(start, count)| (*start..start + count).contains(&(row as i64)));
        for row in (0..m).filter(|row| !inside(*row)) {
            codes[row * k..(row + 1) * k].fill(0x7F);
            scales[row * row_scales..(row + 1) * row_scales].fill(f32::NAN);
        }
        self.host_a = HostQuantMatrix::from_logical(host.scheme(), m, k, codes, &scales).unwrap();
        self.a = QuantMatrix::from_host(handle, &self.host_a).unwrap();
    }

    /// D, packed rows, as the product of each group alone leaves it: 0xFF where no group is.
    pub fn want(&self, handle: &Handle, alpha: f32, groups: &[(i64, i64)]) -> Vec<u8> {
        let row = self.n * self.out.bytes();
        let mut d = vec![0xFF; self.x.nrows() * row];
        for (g, &(start, count)) in groups.iter().enumerate().filter(|(_, (_, count))| *count > 0) {
            let (start, count) = (start as usize, count as usize);
            let b = rows_of(&self.host_b, g * self.n..(g + 1) * self.n);
            let ops = Operands::of(handle, rows_of(&self.host_a, start..start + count), b);
            let case = Case { alpha, ..Case::new(self.out) };
            let extras = Extras::new(handle, &mut Noise::new(1), count, self.n, &[]);
            let stored = execute(handle, &mut planned(handle, &case.desc(&ops), of_groups()[0]), &ops, &extras, &case);
            d[start * row..(start + count) * row].copy_from_slice(&stored.bytes);
        }
        d
    }

    /// Enqueues the product into `d`, whose rows lie `gap` elements apart.
    pub fn enqueue(
        &self,
        handle: &Handle,
        groups: usize,
        rows: GroupedRows<'_>,
        d: &mut CudaSlice<u8>,
        gap: usize,
        change: impl FnOnce(GroupedGemmArgs<'_>) -> GroupedGemmArgs<'_>,
    ) -> Result<(), Error> {
        let d = MatMut::new(d, self.out, self.x.nrows(), self.n)?.with_row_stride(self.n + gap)?;
        handle.grouped_gemm(change(GroupedGemmArgs::new(&self.a, &self.b, groups, rows, d)))
    }
}

pub fn numbers(handle: &Handle, numbers: &[i64]) -> CudaSlice<i64> {
    handle.stream().clone_htod(if numbers.is_empty() { &[0][..] } else { numbers }).unwrap()
}

/// The rows of D without what lies between them, which nobody may have written, nor what lies behind. Bytes of a row and of a gap.
pub fn rows_of_d(handle: &Handle, d: &CudaSlice<u8>, m: usize, row: usize, gap: usize) -> Vec<u8> {
    let bytes = handle.stream().clone_dtoh(d).unwrap();
    handle.synchronize().unwrap();
    let mut rows = Vec::new();
    for i in 0..m {
        let (inside, between) = bytes[i * (row + gap)..][..row + gap].split_at(row);
        rows.extend_from_slice(inside);
        assert!(between.iter().all(|b| *b == 0xFF), "written behind row {i}");
    }
    assert!(bytes[m * (row + gap)..].iter().all(|b| *b == 0xFF), "written behind D");
    rows
}

fn asked_for(args: GroupedGemmArgs<'_>, alpha: f32, config: Option<Sm90Config>) -> GroupedGemmArgs<'_> {
    let args = args.alpha(alpha);
    if let Some(config) = config { args.config(config) } else { args }
}

/// Places of groups: empty ones, one row, whole tiles and cut ones, a start at no multiple of 128, and rows between them.
pub const PLACES: [(i64, i64); 8] =
    [(0, 128), (128, 0), (128, 1), (256, 129), (388, 60), (512, 0), (512, 257), (896, 5)];
/// Rows that hold them, and more.
pub const ROWS: usize = 1000;

/// By starts and in slots, in each of these configurations and as chosen: the bits of every group alone, and nothing else is written. Rows of no group hold NaN.
pub fn check_alone(
    handle: &Handle,
    rng: &mut Noise,
    [n, k]: [usize; 2],
    (alpha, out): (f32, DType),
    pair: (Scheme, Scheme),
    configs: &[Sm90Config],
) {
    let (gap, size) = (8, out.bytes());
    let mut of = Groups::of(handle, rng, [ROWS, n, k], PLACES.len(), out, pair);
    of.poison_gaps(handle, &PLACES);
    let want = of.want(handle, alpha, &PLACES);
    let (starts, counts): (Vec<i64>, Vec<i64>) = PLACES.into_iter().unzip();
    let (starts, counts) = (numbers(handle, &starts), numbers(handle, &counts));
    let asked = || configs.iter().copied().map(Some).chain([None]);
    for config in asked() {
        let mut d = poisoned(handle, ROWS * (n + gap) * size + 1024);
        let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
        of.enqueue(handle, PLACES.len(), rows, &mut d, gap, |args| asked_for(args, alpha, config)).unwrap();
        assert!(rows_of_d(handle, &d, ROWS, n * size, gap * size) == want, "{config:?}, {pair:?}, k = {k}, {out}");
    }
    // In slots, whose counts may be anything.
    let (slot, counts) = (128, [128i64, 0, 5, 300, 127, 64, -1]);
    let m = slot * counts.len();
    let mut of = Groups::of(handle, rng, [m, n, k], counts.len(), out, pair);
    let taken: Vec<_> = counts.iter().enumerate().map(|(g, c)| ((slot * g) as i64, (*c).clamp(0, 128))).collect();
    of.poison_gaps(handle, &taken);
    let (want, counts_there) = (of.want(handle, alpha, &taken), numbers(handle, &counts));
    for config in asked() {
        let mut d = poisoned(handle, m * n * size + 1024);
        let rows = GroupedRows::Masked { slot_rows: slot, counts: (&counts_there).into() };
        of.enqueue(handle, counts.len(), rows, &mut d, 0, |args| asked_for(args, alpha, config)).unwrap();
        assert!(rows_of_d(handle, &d, m, n * size, 0) == want, "slots, {config:?}, {pair:?}, k = {k}, {out}");
    }
}

/// More groups than two rounds of a warp's lanes, of most of which there are no rows, and of others so many tiles that pairs of the largest take several.
pub fn check_many(handle: &Handle, rng: &mut Noise, pair: (Scheme, Scheme), configs: &[Sm90Config]) {
    let (n, k, groups) = (256, 656, 200);
    let mut places = Vec::new();
    let mut at = 0;
    for g in 0..groups {
        let count = if g % 9 == 4 { 300 } else { [5, 0, 0, 0, 129][g % 5] };
        places.push((at, count));
        at += (count + 127) / 128 * 128;
    }
    let pairs: i64 = places.iter().map(|(_, count)| (count + 255) / 256 * (n as i64 / 256)).sum();
    assert!(pairs > i64::from(handle.device().sm_count) / 2, "{pairs} pairs of the largest tiles");
    let m = at as usize + 128;
    let of = Groups::of(handle, rng, [m, n, k], groups, DType::Bf16, pair);
    let want = of.want(handle, 1.0, &places);
    let (starts, counts): (Vec<i64>, Vec<i64>) = places.iter().copied().unzip();
    let (starts, counts) = (numbers(handle, &starts), numbers(handle, &counts));
    for config in configs {
        let mut d = poisoned(handle, m * n * 2 + 1024);
        let rows = GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() };
        of.enqueue(handle, groups, rows, &mut d, 0, |args| args.config(*config)).unwrap();
        assert!(rows_of_d(handle, &d, m, 2 * n, 0) == want, "{config}, {pair:?}");
    }
}

/// One captured graph takes the counts that the device has by then.
pub fn check_counts_that_change(handle: &Handle, rng: &mut Noise, family: KernelFamily, pair: (Scheme, Scheme)) {
    // As many k-blocks as kernels with one end have in every configuration.
    let (slot, n, k) = (256, 256, 1168);
    let of = Groups::of(handle, rng, [4 * slot, n, k], 4, DType::Bf16, pair);
    let mut counts = numbers(handle, &[0; 4]);
    let mut d = poisoned(handle, 4 * slot * n * 2);
    handle.load_kernels(&[family]).unwrap();
    let graph = capture_among_others(handle, || {
        let rows = GroupedRows::Masked { slot_rows: slot, counts: (&counts).into() };
        of.enqueue(handle, 4, rows, &mut d, 0, |args| args)
    });
    let graph = graph.unwrap();
    for now in [[0i64; 4], [256; 4], [1, 0, 130, 7], [300, 256, 0, 0], [0; 4]] {
        handle.stream().memcpy_htod(&now, &mut counts).unwrap();
        handle.stream().memcpy_htod(&vec![0xFFu8; 4 * slot * n * 2], &mut d).unwrap();
        handle.launch(&graph).unwrap();
        let places: Vec<_> = now.iter().enumerate().map(|(g, c)| ((g * slot) as i64, (*c).min(256))).collect();
        assert!(rows_of_d(handle, &d, 4 * slot, 2 * n, 0) == of.want(handle, 1.0, &places), "{now:?}, {pair:?}");
    }
}

/// A, B, a bias, where groups lie and D in one allocation, 0xFF between them and in what is of no group: the bits of operands apart, and only rows of groups are written.
pub fn check_groups_between_guards(handle: &Handle, rng: &mut Noise, pair: (Scheme, Scheme), out: DType) {
    check_guarded_groups(handle, rng, pair, out, 400, true);
}

/// The same of products that nothing follows, and of as many k-blocks as kernels with one end have in every configuration.
pub fn check_plain_groups_between_guards(handle: &Handle, rng: &mut Noise, pair: (Scheme, Scheme)) {
    check_guarded_groups(handle, rng, pair, DType::Bf16, 1168, false);
}

fn check_guarded_groups(
    handle: &Handle,
    rng: &mut Noise,
    pair: (Scheme, Scheme),
    out: DType,
    k: usize,
    has_more: bool,
) {
    let (m, n, gap) = (401, 128, 8);
    let places = [(0, 63), (64, 0), (64, 1), (128, 130), (260, 141)];
    let (starts, counts): (Vec<i64>, Vec<i64>) = places.into_iter().unzip();
    let bias = bytes_of(DType::Bf16, &(0..places.len() * n).map(|_| rng.normal()).collect::<Vec<_>>());
    let mut of = Groups::of(handle, rng, [m, n, k], places.len(), out, pair);
    of.poison_gaps(handle, &places);
    let (row, pitch) = (n * out.bytes(), (n + gap) * out.bytes());
    let d_bytes = m * pitch - gap * out.bytes();
    for config in of_groups_with(pair) {
        let call = |a: &QuantMatrix, b: &QuantMatrix, d: MatMut<'_>, rows: GroupedRows<'_>, bias: VecRef<'_>| {
            let args = GroupedGemmArgs::new(a, b, places.len(), rows, d.with_row_stride(n + gap).unwrap());
            let args = if has_more { args.alpha(0.5).bias(bias).activation(Activation::Silu) } else { args };
            handle.grouped_gemm(args.config(config)).unwrap();
        };
        let count = places.len() * n;
        let mut apart = handle.upload(&vec![0xFFu8; d_bytes]).unwrap();
        {
            let [starts, counts] = [&starts, &counts].map(|of| handle.upload(of).unwrap());
            let rows = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
            let bias = handle.upload(&bias).unwrap();
            let bias = VecRef::new(&bias, DType::Bf16, count).unwrap();
            call(&of.a, &of.b, MatMut::new(&mut apart, out, m, n).unwrap(), rows, bias);
        }
        let apart = handle.read_bytes(&apart.view()).unwrap();
        let mut arena = Arena::new(handle, 4 << 20);
        let mut d = arena.place(handle, &vec![0xFF; d_bytes], 16);
        let at = arena.last().start;
        let [a, b] = [&of.host_a, &of.host_b].map(|host| arena.matrix(handle, host));
        let [starts, counts] = [&starts, &counts].map(|of| arena.numbers(handle, of));
        let bias = arena.place(handle, &bias, 2);
        let written: Vec<_> = places
            .iter()
            .flat_map(|(start, rows)| places_of_rows(at + *start as usize * pitch, *rows as usize, row, pitch))
            .collect();
        let before = arena.ready(handle);
        let rows = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
        let bias = VecRef::new(&bias, DType::Bf16, count).unwrap();
        call(&a, &b, MatMut::new(&mut d, out, m, n).unwrap(), rows, bias);
        let words = format!("{config}, {pair:?}, k = {k}");
        let after = arena.read_behind(handle, &before, &written, &words);
        assert!(after[at..at + d_bytes] == apart, "other bits than of operands apart: {words}");
        assert!(gathered_bytes(&after, &written).iter().any(|byte| *byte != 0xFF), "{words}");
    }
}
