//! cuBLASLt's own product of groups, where it is asked for: every pair and type that it has here within the bound of each group alone, wherever groups lie and whatever is said of them, also in graphs whose counts
//! change; nothing else is written, nor read into a result, also between guards; many of them one behind the other; refusals in words. A version that has none, or is known to err on this GPU, is refused with the reason, and then that is what is tested.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;

use common::gemm::{accumulator, refused};
use common::*;
use guarded::{Arena, places_of_rows};
use ndarray::{Array2, s};
use scaled_gemm::reference::{self, Gelu, GemmInputs, HostOperand, gemm_bound};
use scaled_gemm::{
    Accumulation, DType, DeviceBuffer, Fp8Format, GroupedGemmArgs, GroupedGemmDesc, GroupedGemmPlan, GroupedRows,
    Handle, HostQuantMatrix, MatMut, QuantMatrix, Recipe, Result, Scheme, VecRef,
};

const E4M3: Scheme = Scheme::Fp8Tensor(Fp8Format::E4M3);
const E5M2: Scheme = Scheme::Fp8Tensor(Fp8Format::E5M2);
const PAIRS: [(Scheme, Scheme); 3] = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)];
const OUTS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
const ALPHA: f32 = 0.75;

/// A side of the product: of each group numbers of another size, with one scale or one each.
struct Side {
    parts: Vec<HostQuantMatrix>,
    all: QuantMatrix,
    each: Option<DeviceBuffer>,
}

impl Side {
    fn new(handle: &Handle, rng: &mut Noise, rows: &[usize], k: usize, scheme: Scheme, each: bool) -> Self {
        let x: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(g, rows)| rng.matrix(*rows, k, DType::Bf16).mapv(|v| v * [0.25, 30.0, 1.0][g % 3]))
            .collect();
        let cast = |x: &Array2<f32>| reference::quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap();
        let code_bytes = |codes: &[u8], at: usize, rows: usize| codes[at * k..(at + rows) * k].to_vec();
        let (mut parts, mut codes) = (Vec::new(), Vec::new());
        let total: usize = rows.iter().sum();
        let of = |rows, codes, scale| HostQuantMatrix::from_logical(scheme, rows, k, codes, &[scale]).unwrap();
        let scale = if each {
            for x in &x {
                let own = cast(x);
                codes.extend(own.logical_codes().to_vec());
                parts.push(own);
            }
            // Nobody may read it.
            f32::NAN
        } else {
            let all = Array2::from_shape_vec((total, k), x.iter().flatten().copied().collect()).unwrap();
            let all = cast(&all);
            codes = all.logical_codes().to_vec();
            let mut at = 0;
            for rows in rows {
                parts.push(of(*rows, code_bytes(&codes, at, *rows), all.logical_scales()[0]));
                at += rows;
            }
            all.logical_scales()[0]
        };
        let scales: Vec<f32> = parts.iter().map(|part| part.logical_scales()[0]).collect();
        let all = QuantMatrix::from_host(handle, &of(total, codes, scale)).unwrap();
        Self { parts, all, each: each.then(|| handle.upload(&scales).unwrap()) }
    }

    /// Moves what the device has into an arena, NaN codes in the rows of which that is said.
    fn move_into(&mut self, handle: &Handle, arena: &mut Arena, is_nan: impl Fn(usize) -> bool) {
        let host = self.all.to_host(handle).unwrap();
        let (rows, k) = (host.rows(), host.cols());
        let mut codes = host.logical_codes().to_vec();
        for row in (0..rows).filter(|row| is_nan(*row)) {
            codes[row * k..(row + 1) * k].fill(0x7F);
        }
        let host = HostQuantMatrix::from_logical(host.scheme(), rows, k, codes, &host.logical_scales()).unwrap();
        self.all = arena.matrix(handle, &host);
        if let Some(each) = &mut self.each {
            *each = arena.place(handle, &handle.read_bytes(&each.view()).unwrap(), 4);
        }
    }
}

/// Operands, where groups lie, and D as wide as it may be.
struct Experts {
    a: Side,
    b: Side,
    starts: Vec<usize>,
    rows: usize,
    n: usize,
    k: usize,
    out: DType,
    gap: usize,
    starts_there: DeviceBuffer,
    counts: DeviceBuffer,
}

impl Experts {
    fn new(
        handle: &Handle,
        rng: &mut Noise,
        rooms: &[usize],
        [n, k]: [usize; 2],
        (a, b): (Scheme, Scheme),
        each: [bool; 2],
        out: DType,
    ) -> Self {
        let starts: Vec<usize> = rooms.iter().scan(0, |at, room| Some(std::mem::replace(at, *at + room))).collect();
        let numbers: Vec<i64> = starts.iter().map(|at| *at as i64).collect();
        Self {
            a: Side::new(handle, rng, rooms, k, a, each[0]),
            b: Side::new(handle, rng, &vec![n; rooms.len()], k, b, each[1]),
            rows: rooms.iter().sum(),
            starts,
            n,
            k,
            out,
            gap: 16 / out.bytes(),
            starts_there: handle.upload(&numbers).unwrap(),
            counts: handle.upload(&vec![0i64; rooms.len()]).unwrap(),
        }
    }

    fn set_counts(&mut self, handle: &Handle, counts: &[i64]) {
        handle.write(&mut self.counts.view_mut(), counts).unwrap();
    }

    /// Moves all that is read into an arena, and makes rows of A of no group NaN.
    fn move_into(&mut self, handle: &Handle, arena: &mut Arena, counts: &[usize]) {
        let mut is_ours = vec![false; self.rows];
        self.starts.iter().zip(counts).for_each(|(start, count)| is_ours[*start..start + count].fill(true));
        self.a.move_into(handle, arena, |row| !is_ours[row]);
        self.b.move_into(handle, arena, |_| false);
        let [starts, counts] = [&self.starts_there, &self.counts].map(|of| handle.read::<i64>(&of.view()).unwrap());
        self.starts_there = arena.numbers(handle, &starts);
        self.counts = arena.numbers(handle, &counts);
    }

    fn poison(&self) -> Vec<u8> {
        vec![0xFF; (self.rows * (self.n + self.gap) - self.gap) * self.out.bytes()]
    }

    fn args<'a>(
        &'a self,
        slot_rows: Option<usize>,
        usual: usize,
        d: &'a mut DeviceBuffer,
    ) -> Result<GroupedGemmArgs<'a>> {
        let groups = self.starts.len();
        let rows = match slot_rows {
            Some(slot_rows) => GroupedRows::Masked { slot_rows, counts: self.counts.view() },
            None => GroupedRows::Contiguous { starts: self.starts_there.view(), counts: self.counts.view() },
        };
        let d = MatMut::new(d, self.out, self.rows, self.n)?.with_row_stride(self.n + self.gap)?;
        let mut args =
            GroupedGemmArgs::new(&self.a.all, &self.b.all, groups, rows, d).alpha(ALPHA).expected_rows(usual);
        if let Some(scales) = &self.a.each {
            args = args.scales_of_a(scales.view());
        }
        if let Some(scales) = &self.b.each {
            args = args.scales_of_b(scales.view());
        }
        Ok(args.by_cublaslt())
    }

    fn plan(&self, handle: &Handle, slot_rows: Option<usize>, usual: usize) -> GroupedGemmPlan {
        let mut d = handle.upload(&self.poison()).unwrap();
        let desc = self.args(slot_rows, usual, &mut d).unwrap().desc().unwrap();
        handle.plan_grouped(&desc).unwrap()
    }

    /// That rows of groups are within the bound of each alone, and nothing else was written.
    fn check(&self, d: &[u8], counts: &[usize], what: &str) {
        let (stride, size) = (self.n + self.gap, self.out.bytes());
        let mut whole = d.to_vec();
        whole.resize(self.rows * stride * size, 0xFF);
        let values = Array2::from_shape_vec((self.rows, stride), values_of(self.out, &whole)).unwrap();
        let mut is_ours = vec![false; self.rows];
        for (g, (start, count)) in self.starts.iter().zip(counts).enumerate().filter(|(_, (_, count))| **count > 0) {
            is_ours[*start..start + count].fill(true);
            let part = &self.a.parts[g];
            let codes = part.logical_codes()[..count * self.k].to_vec();
            let a =
                HostQuantMatrix::from_logical(part.scheme(), *count, self.k, codes, &part.logical_scales()).unwrap();
            let mut inputs = GemmInputs::new(HostOperand::Quantized(&a), &self.b.parts[g], self.out);
            inputs.alpha = ALPHA;
            let bound = gemm_bound(&inputs, accumulator(Accumulation::Precise), Gelu::Ieee).unwrap();
            bound
                .check(values.slice(s![*start..start + count, ..self.n]))
                .unwrap_or_else(|e| panic!("{what}, group {g}: {e}"));
        }
        for (row, bytes) in whole.chunks(stride * size).enumerate() {
            let untouched = if is_ours[row] { &bytes[self.n * size..] } else { bytes };
            assert!(untouched.iter().all(|byte| *byte == 0xFF), "{what}: row {row} was written outside of its group");
        }
    }
}

#[test]
fn groups_are_within_the_bound_of_each_alone() {
    let Some(handle) = handle().filter(has_cublaslts_groups) else { return };
    let mut rng = Noise::new(701);
    let rooms = [128, 64, 260, 4, 132];
    for (i, pair) in PAIRS.into_iter().enumerate() {
        for (j, [n, k]) in [[128, 16], [384, 144], [256, 1552], [128, 7168]].into_iter().enumerate() {
            let (each, out) = ([(i + j) % 2 == 0, (i + j) % 3 == 0], OUTS[(i + j) % 3]);
            let mut of = Experts::new(&handle, &mut rng, &rooms, [n, k], pair, each, out);
            let mut plan = of.plan(&handle, None, 60);
            for counts in [[128, 0, 260, 4, 131], [1, 63, 0, 0, 77], [0; 5]] {
                let what = format!("{pair:?}, {n} x {k}, {out}, scales of groups {each:?}, {counts:?}");
                of.set_counts(&handle, &counts.map(|count| count as i64));
                let mut results = Vec::new();
                for planned in [true, false, true] {
                    let mut d = handle.upload(&of.poison()).unwrap();
                    let args = of.args(None, 60, &mut d).unwrap();
                    if planned {
                        plan.execute(&handle, args).unwrap()
                    } else {
                        handle.grouped_gemm(args).unwrap()
                    }
                    results.push(handle.read_bytes(&d.view()).unwrap());
                }
                assert!(results.windows(2).all(|two| two[0] == two[1]), "{what}: other bits from run to run");
                of.check(&results[0], &counts, &what);
            }
        }
    }
}

/// Slots, whose counts change between launches of one graph of several products, which share workspace and scratch memory: a handle that has multiplied nothing before.
#[test]
fn graphs_of_several_products_follow_counts() {
    let Some(maker) = handle().filter(has_cublaslts_groups) else { return };
    let mut rng = Noise::new(702);
    let fresh = required(Handle::new(0)).unwrap();
    let slot = 132;
    let mut all: Vec<_> = [([128, 512], E4M3, DType::Bf16), ([512, 2048], E5M2, DType::F32)]
        .map(|(nk, a, out)| Experts::new(&maker, &mut rng, &[slot; 40], nk, (a, E4M3), [true, false], out))
        .into();
    maker.synchronize().unwrap();
    let mut plans: Vec<_> = all.iter().map(|of| of.plan(&fresh, Some(slot), 32)).collect();
    let scratch = fresh.scratch_bytes();
    let mut ds: Vec<_> = all.iter().map(|of| fresh.upload(&of.poison()).unwrap()).collect();
    let graph = capture_owned(&fresh, || {
        // Each twice, in turns.
        for _ in 0..2 {
            for ((of, plan), d) in all.iter().zip(&mut plans).zip(&mut ds) {
                plan.execute(&fresh, of.args(Some(slot), 32, d)?)?;
            }
        }
        Ok(())
    })
    .unwrap();
    let mut last: Vec<_> = all.iter().map(Experts::poison).collect();
    for turn in 0..60 {
        let counts: Vec<usize> =
            (0..40).map(|g| if (g + turn) % 3 == 0 { 0 } else { (g * 37 + turn * 11) % (slot + 1) }).collect();
        let numbers: Vec<i64> = counts.iter().map(|count| *count as i64).collect();
        for (of, d) in all.iter_mut().zip(&mut ds) {
            of.set_counts(&fresh, &numbers);
            fresh.write(&mut d.view_mut(), &of.poison()).unwrap();
        }
        fresh.launch(&graph).unwrap();
        let launched: Vec<_> = ds.iter().map(|d| fresh.read_bytes(&d.view()).unwrap()).collect();
        // A graph that kept numbers of an earlier launch, or arrays of another of its products, would differ from calls that are made with these counts, in this turn or that.
        for (i, (of, plan)) in all.iter().zip(&mut plans).enumerate() {
            let what = format!("turn {turn}, product {i}");
            fresh.write(&mut ds[i].view_mut(), &of.poison()).unwrap();
            plan.execute(&fresh, of.args(Some(slot), 32, &mut ds[i]).unwrap()).unwrap();
            assert!(launched[i] == fresh.read_bytes(&ds[i].view()).unwrap(), "{what}: other bits than of a call");
            assert!(launched[i] != last[i], "{what}: nothing to see");
            // The reference takes its time.
            if turn % 20 == 0 {
                of.check(&launched[i], &counts, &what);
            }
        }
        last = launched;
    }
    fresh.synchronize().unwrap();
    assert_eq!(fresh.scratch_bytes(), scratch, "planned for the most rows");
}

/// Counts and starts that say what cannot be: nothing is written outside, and the clamped are counted.
#[test]
fn any_numbers_are_clamped() {
    let Some(handle) = handle().filter(has_cublaslts_groups) else { return };
    let mut rng = Noise::new(703);
    let mut of =
        Experts::new(&handle, &mut rng, &[8, 4, 12, 8, 8], [128, 160], (E4M3, E4M3), [false, false], DType::F32);
    let mut clamped = handle.upload(&[77u32]).unwrap();
    let in_order = ([0i64, 8, 12, 24, 32], [8i64, 0, 100, -1, 3], [8, 0, 12, 0, 3], 2);
    let odd = ([0i64, 9, 12, 24, 20], [8, 4, 12, i64::MAX, 4], [8, 0, 12, 0, 0], 3);
    let outside = ([0i64, i64::MIN, 12, 1 << 40, 32], [4, 9, 1, 1, 9], [0, 0, 1, 0, 0], 4);
    for (starts, counts, taken, bad) in [in_order, odd, outside] {
        handle.write(&mut of.starts_there.view_mut(), &starts).unwrap();
        of.set_counts(&handle, &counts);
        let mut d = handle.upload(&of.poison()).unwrap();
        let args = of.args(None, 8, &mut d).unwrap().clamped(clamped.view_mut());
        handle.grouped_gemm(args).unwrap();
        let d = handle.read_bytes(&d.view()).unwrap();
        of.check(&d, &taken, &format!("{starts:?}, {counts:?}"));
        assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "{starts:?}, {counts:?}");
    }
}

/// A thousand groups, of which most have no rows; no groups; and no rows.
#[test]
fn any_number_of_groups() {
    let Some(handle) = handle().filter(has_cublaslts_groups) else { return };
    let mut rng = Noise::new(704);
    let mut of = Experts::new(&handle, &mut rng, &[4; 1000], [128, 144], (E4M3, E4M3), [true; 2], DType::Bf16);
    let mut plan = of.plan(&handle, Some(4), 1);
    for turn in 0..3 {
        let counts: Vec<i64> = counts_of_a_thousand(turn).iter().map(|count| (*count).min(4)).collect();
        of.set_counts(&handle, &counts);
        let mut d = handle.upload(&of.poison()).unwrap();
        plan.execute(&handle, of.args(Some(4), 1, &mut d).unwrap()).unwrap();
        let taken: Vec<usize> = counts.iter().map(|count| *count as usize).collect();
        of.check(&handle.read_bytes(&d.view()).unwrap(), &taken, &format!("turn {turn}"));
    }
    for (groups, rows) in [(0, 64), (3, 0)] {
        let desc = GroupedGemmDesc::contiguous(groups, rows, 128, 128, E4M3, E4M3, DType::Bf16).with_by_cublaslt(true);
        assert!(handle.plan_grouped(&desc).unwrap().explain().contains("nothing to do"));
    }
}

/// All operands in one allocation, each at the smallest alignment that is asked of it, NaN around them and in rows of A of no group: the bits of operands that lie apart, so that what is beside an operand or a group
/// is in no result, and of all bytes only rows of groups in D are written.
#[test]
fn operands_between_guards() {
    let Some(handle) = handle().filter(has_cublaslts_groups) else { return };
    let mut rng = Noise::new(706);
    // The first and the last rows of A are a group's.
    let (rooms, counts) = ([128, 64, 260, 4, 132], [101, 0, 260, 3, 132]);
    for (i, pair) in PAIRS.into_iter().enumerate() {
        for (j, [n, k]) in [[128, 144], [256, 400]].into_iter().enumerate() {
            let each = [[true; 2], [false, true], [false; 2], [true, false]][(2 * i + j) % 4];
            let out = OUTS[(i + j) % 3];
            let what = format!("{pair:?}, {n} x {k}, {out}, scales of groups {each:?}");
            let mut of = Experts::new(&handle, &mut rng, &rooms, [n, k], pair, each, out);
            of.set_counts(&handle, &counts.map(|count| count as i64));
            let mut apart = handle.upload(&of.poison()).unwrap();
            handle.grouped_gemm(of.args(None, 60, &mut apart).unwrap()).unwrap();
            let apart = handle.read_bytes(&apart.view()).unwrap();
            of.check(&apart, &counts, &what);

            let mut plan = of.plan(&handle, None, 60);
            let mut arena = Arena::new(&handle, 4 << 20);
            let mut d = arena.place(&handle, &of.poison(), 16);
            let at = arena.last();
            of.move_into(&handle, &mut arena, &counts);
            let (row, pitch) = (n * out.bytes(), (n + of.gap) * out.bytes());
            let rows_of = |(start, count): (&usize, usize)| places_of_rows(at.start + start * pitch, count, row, pitch);
            let written: Vec<_> = of.starts.iter().zip(counts).flat_map(rows_of).collect();
            for planned in [false, true] {
                let what = format!("{what}, planned {planned}");
                handle.write(&mut d.view_mut(), &of.poison()).unwrap();
                let before = arena.ready(&handle);
                let args = of.args(None, 60, &mut d).unwrap();
                if planned {
                    plan.execute(&handle, args).unwrap()
                } else {
                    handle.grouped_gemm(args).unwrap()
                }
                let after = arena.read_behind(&handle, &before, &written, &what);
                assert!(after[at.clone()] == apart, "{what}: other bits than of operands apart");
            }
        }
    }
}

#[test]
fn what_it_has_not_is_refused() {
    let Some(handle) = handle().filter(has_cublaslts_groups) else { return };
    let mut rng = Noise::new(705);
    let of = Experts::new(&handle, &mut rng, &[128, 128], [128, 128], (E4M3, E4M3), [false; 2], DType::Bf16);
    let mut d = handle.upload(&of.poison()).unwrap();
    let remedy = ["cuBLASLt's own product of groups", "leave by_cublaslt out"];
    let bias = handle.upload(&[0f32; 256]).unwrap();
    let args = of.args(None, 8, &mut d).unwrap().bias(VecRef::new(&bias, DType::F32, 256).unwrap());
    refused(handle.grouped_gemm(args), &[remedy[0], remedy[1], "bias"]);
    refused(
        handle.grouped_gemm(of.args(None, 8, &mut d).unwrap().streams(2)),
        &[remedy[0], "leave one of the two out"],
    );
    // Without a plan an algorithm is asked for, which no capture takes.
    handle.grouped_gemm(of.args(None, 8, &mut d).unwrap()).unwrap();
    let captured = capture_owned(&handle, || handle.grouped_gemm(of.args(None, 8, &mut d)?));
    refused(captured.map(drop), &["Handle::plan_grouped", "captured into a graph"]);
    let mut plan = of.plan(&handle, None, 8);
    let mut other = handle.upload(&of.poison()).unwrap();
    refused(plan.execute(&handle, of.args(Some(128), 8, &mut other).unwrap()), &["place of groups"]);
    assert!(handle.read_bytes(&other.view()).unwrap() == of.poison(), "written although refused");
}
