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
        let case = Case { alpha, ..Case::new(self.out) };
        self.want_with(handle, &case, groups, |_, count| Extras::new(handle, &mut Noise::new(1), count, self.n, &[]))
    }

    /// The same with what is computed behind the sums, of these numbers of a group of so many rows.
    pub fn want_with(
        &self,
        handle: &Handle,
        case: &Case,
        groups: &[(i64, i64)],
        mut extras: impl FnMut(usize, usize) -> Extras,
    ) -> Vec<u8> {
        let row = self.n * self.out.bytes();
        let mut d = vec![0xFF; self.x.nrows() * row];
        for (g, &(start, count)) in groups.iter().enumerate().filter(|(_, (_, count))| *count > 0) {
            let (start, count) = (start as usize, count as usize);
            let b = rows_of(&self.host_b, g * self.n..(g + 1) * self.n);
            let ops = Operands::of(handle, rows_of(&self.host_a, start..start + count), b);
            let extras = extras(g, count);
            let stored = execute(handle, &mut planned(handle, &case.desc(&ops), of_groups()[0]), &ops, &extras, case);
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

/// A bias of each group in every type, behind it an activation or none, into every type: by starts and in slots, in each of these configurations and as chosen, the bits of every group alone
/// with its own, and nothing else is written. Rows of no group hold NaN.
pub fn check_biases(handle: &Handle, rng: &mut Noise, pair: (Scheme, Scheme), configs: &[Sm90Config]) {
    let (n, k, slot) = (256, 400, 132);
    let in_slots = [5i64, 0, 132, 77, 200, 1];
    let slots: Vec<_> = in_slots.iter().enumerate().map(|(g, count)| ((g * slot) as i64, (*count).min(132))).collect();
    for (bias_type, out, activation, alpha) in [
        (DType::F32, DType::F16, Activation::Gelu, 1.0),
        (DType::Bf16, DType::F32, Activation::None, -0.5),
        (DType::F16, DType::Bf16, Activation::Silu, 1.0),
        (DType::Bf16, DType::Bf16, Activation::None, 1.0),
    ] {
        let (case, size) = (Case { alpha, bias: Some(bias_type), activation, ..Case::new(out) }, out.bytes());
        for (is_masked, places) in [(false, &PLACES[..]), (true, &slots[..])] {
            let m = if is_masked { slot * slots.len() } else { ROWS };
            let mut of = Groups::of(handle, rng, [m, n, k], places.len(), out, pair);
            of.poison_gaps(handle, places);
            // Another seed for each group, so that its bias is its own.
            let extras = |g: usize, count: usize| Extras::new(handle, &mut Noise::new(500 + g as u64), count, n, &[]);
            let want = of.want_with(handle, &case, places, extras);
            let biases: Vec<f32> = (0..places.len()).flat_map(|g| extras(g, 1).bias).collect();
            assert!(biases[..n] != biases[n..2 * n], "groups have biases of their own");
            let bias = upload(handle, &bytes_of(bias_type, &biases));
            let (starts, counts): (Vec<i64>, Vec<i64>) = places.iter().copied().unzip();
            let counts = if is_masked { in_slots.to_vec() } else { counts };
            let (starts, counts) = (numbers(handle, &starts), numbers(handle, &counts));
            for config in configs.iter().copied().map(Some).chain([None]) {
                let mut d = poisoned(handle, m * n * size + 1024);
                let rows = match is_masked {
                    true => GroupedRows::Masked { slot_rows: slot, counts: (&counts).into() },
                    false => GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() },
                };
                let bias = VecRef::new(&bias, bias_type, biases.len()).unwrap();
                let to = MatMut::new(&mut d, out, m, n).unwrap();
                let args = asked_for(GroupedGemmArgs::new(&of.a, &of.b, places.len(), rows, to), alpha, config);
                handle.grouped_gemm(args.bias(bias).activation(activation)).unwrap();
                let what = format!("{config:?}, {pair:?}, {bias_type} into {out}, masked {is_masked}");
                assert!(rows_of_d(handle, &d, m, n * size, 0) == want, "{what}");
            }
        }
    }
}

/// A thousand groups, of which most have no rows and many one, by starts and in slots of four rows, other counts at each launch of a graph: the bits of each alone.
pub fn check_a_thousand(handle: &Handle, rng: &mut Noise, family: KernelFamily, pair: (Scheme, Scheme)) {
    let (m, n, k, groups, slot) = (4096, 128, 144, 1000, 4);
    let of = Groups::of(handle, rng, [m, n, k], groups, DType::Bf16, pair);
    let (mut starts, mut counts) = (numbers(handle, &[0; 1000]), numbers(handle, &[0; 1000]));
    let mut d = poisoned(handle, m * n * 2 + 1024);
    handle.load_kernels(&[family]).unwrap();
    for is_masked in [false, true] {
        let graph = capture_among_others(handle, || {
            let rows = match is_masked {
                true => GroupedRows::Masked { slot_rows: slot, counts: (&counts).into() },
                false => GroupedRows::Contiguous { starts: (&starts).into(), counts: (&counts).into() },
            };
            // The one as of many rows, the other as of few: of each configuration that is chosen for some.
            of.enqueue(handle, groups, rows, &mut d, 0, |args| args.expected_rows(if is_masked { 1 } else { 4096 }))
        });
        let graph = graph.unwrap();
        for turn in 0..4 {
            let told = counts_of_a_thousand(turn);
            let mut at = 0;
            let place = |(g, count): (usize, &i64)| match is_masked {
                true => ((g * slot) as i64, (*count).min(slot as i64)),
                false => {
                    let start = at;
                    at += (count + 3) / 4 * 4;
                    (start, *count)
                }
            };
            let places: Vec<_> = told.iter().enumerate().map(place).collect();
            assert!(places.iter().all(|(start, count)| start + count <= m as i64));
            let begins: Vec<i64> = places.iter().map(|(start, _)| *start).collect();
            handle.stream().memcpy_htod(&begins, &mut starts).unwrap();
            handle.stream().memcpy_htod(&told, &mut counts).unwrap();
            handle.stream().memcpy_htod(&vec![0xFFu8; m * n * 2 + 1024], &mut d).unwrap();
            handle.launch(&graph).unwrap();
            let want = of.want(handle, 1.0, &places);
            let found = rows_of_d(handle, &d, m, 2 * n, 0);
            let wrong = found.chunks(2 * n).zip(want.chunks(2 * n)).position(|(found, want)| found != want);
            assert_eq!(wrong, None, "the first row that differs: {pair:?}, masked {is_masked}, turn {turn}");
        }
    }
}

/// First rows and rows of six groups.
type Places = [(i64, i64); 6];

/// Where six groups are told to lie at each launch, of 640 rows, and where they are taken to.
pub const TOLD_AND_TAKEN: [(Places, Places); 8] = {
    const MIN: i64 = i64::MIN;
    const NONE: (i64, i64) = (0, 0);
    let usual = [(0, 100), (128, 0), (128, 60), (256, 128), (384, 1), (512, 128)];
    // All that there is: other groups, at other places, and one that has it alone.
    let moved = [(0, 0), (0, 4), (4, 300), (304, 0), (304, 200), (504, 136)];
    let one = [(0, 640), (640, 0), (640, 0), (640, 0), (640, 0), (640, 0)];
    // More than that: rows behind A, more than up to the next group, less than none.
    let beyond = [(0, 100), (128, i64::MAX), (256, -7), (260, 30), (640, 5), (1 << 40, 9)];
    let beyond_is = [(0, 100), (128, 128), NONE, (260, 30), NONE, NONE];
    // Before an earlier one, at no multiple of 4, up to the next one and the end alone.
    let odd = [(512, 64), (128, 64), (0, 640), (514, 8), (576, 64), (636, 100)];
    let odd_is = [NONE, NONE, NONE, NONE, (576, 60), (636, 4)];
    let least = [(MIN, 5), (MIN, MIN), (-4, 8), (0, 4), (4, 4), (8, 632)];
    let least_is = [NONE, NONE, NONE, (0, 4), (4, 4), (8, 632)];
    [
        (usual, usual),
        (moved, moved),
        (beyond, beyond_is),
        (one, one),
        (odd, odd_is),
        (least, least_is),
        ([NONE; 6], [NONE; 6]),
        (usual, usual),
    ]
};

/// One captured graph by starts, whose launches find groups elsewhere, empty and filled again, all rows that were planned, and numbers beyond them: the bits of each group alone, how many were not
/// taken as they say, and of all operands, which lie between guards, nothing else is written.
pub fn check_starts_that_change(
    handle: &Handle,
    rng: &mut Noise,
    families: [KernelFamily; 2],
    pair: (Scheme, Scheme),
    out: DType,
) {
    // As many k-blocks as kernels with one end have in every configuration.
    let (m, n, k, gap, groups) = (640, 128, 1168, 8, 6);
    let of = Groups::of(handle, rng, [m, n, k], groups, out, pair);
    let (row, pitch) = (n * out.bytes(), (n + gap) * out.bytes());
    let d_bytes = m * pitch - gap * out.bytes();
    handle.load_kernels(&families).unwrap();
    for config in [None, Some(COMMON[0])] {
        let mut arena = Arena::new(handle, 4 << 20);
        let mut d = arena.place(handle, &vec![0xFF; d_bytes], 16);
        let at = arena.last().start;
        let [a, b] = [&of.host_a, &of.host_b].map(|host| arena.matrix(handle, host));
        let [mut starts, mut counts] = [(); 2].map(|()| arena.numbers(handle, &[0; 6]));
        let mut clamped = arena.place(handle, &[0x77; 4], 4);
        let counter = arena.last();
        let graph = capture_owned(handle, || {
            let rows = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
            let d = MatMut::new(&mut d, out, m, n)?.with_row_stride(n + gap)?;
            let args = asked_for(GroupedGemmArgs::new(&a, &b, groups, rows, d), 1.0, config);
            handle.grouped_gemm(args.clamped(clamped.view_mut()))
        });
        let graph = graph.unwrap();
        for (launch, (told, taken)) in TOLD_AND_TAKEN.into_iter().enumerate() {
            let words = format!("{config:?}, {pair:?}, {out}, launch {launch}");
            handle.write(&mut starts.view_mut(), &told.map(|(start, _)| start)).unwrap();
            handle.write(&mut counts.view_mut(), &told.map(|(_, count)| count)).unwrap();
            handle.write(&mut d.view_mut(), &vec![0xFFu8; d_bytes]).unwrap();
            let of_group =
                |(start, count): (i64, i64)| places_of_rows(at + start as usize * pitch, count as usize, row, pitch);
            let rows: Vec<_> = taken.into_iter().flat_map(of_group).collect();
            let written: Vec<_> = rows.iter().cloned().chain([counter.clone()]).collect();
            let before = arena.ready(handle);
            handle.launch(&graph).unwrap();
            let after = arena.read_behind(handle, &before, &written, &words);
            let all = of.want(handle, 1.0, &taken);
            let of_group = |(start, count): (i64, i64)| all[start as usize * row..][..count as usize * row].to_vec();
            let want: Vec<u8> = taken.into_iter().flat_map(of_group).collect();
            assert!(gathered_bytes(&after, &rows) == want, "{words}");
            let bad = told.iter().zip(&taken).filter(|(told, taken)| told.1 != taken.1).count() as u32;
            assert_eq!(after[counter.clone()], bad.to_le_bytes(), "clamped, {words}");
        }
    }
}
