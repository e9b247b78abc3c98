//! Numbers of groups at random, of which many make no sense: clearing, the counts of clamped groups, the amax of each and both kernels of grouped products take them as one
//! definition says.

use ndarray::Array2;
use scaled_gemm::reference::{self, Noise};
use scaled_gemm::{
    DType, DeviceBuffer, Fp8Format, GroupedGemmArgs, GroupedRows, Handle, KernelFamily, MatMut, MatRef, QuantMatrix,
    Recipe, Scheme,
};

use super::POISON;
use crate::common::*;

const ROWS: usize = 640;
const N: usize = 128;
const K: usize = 16;

/// Whose each row is, and how many groups are not taken as they say: what `GroupedRows` writes in words.
fn taken(starts: &[i64], slot_rows: Option<i64>, counts: &[i64]) -> (Vec<Option<usize>>, u32) {
    let (mut whose, mut largest, mut clamped) = (vec![None; ROWS], 0, 0);
    for (g, (&start, &count)) in starts.iter().zip(counts).enumerate() {
        let next = match slot_rows {
            Some(rows) => start + rows,
            None => starts.get(g + 1).copied().unwrap_or(ROWS as i64),
        };
        let is_one = start >= largest && start % 4 == 0;
        let room = if is_one { (next.min(ROWS as i64).saturating_sub(start)).max(0) } else { 0 };
        let inside = count.clamp(0, room);
        clamped += u32::from(count < 0 || count > room);
        largest = largest.max(start);
        for row in 0..inside {
            let owner = &mut whose[(start + row) as usize];
            assert_eq!(owner.replace(g), None, "a row of two groups: {starts:?}, {counts:?}");
        }
    }
    (whose, clamped)
}

/// Starts that mostly increase by multiples of 4, and counts that mostly fit; others are anything.
fn drawn(rng: &mut Noise, groups: usize, slot_rows: Option<i64>) -> (Vec<i64>, Vec<i64>) {
    const EXTREME: [i64; 8] = [i64::MIN, i64::MAX, -1, -128, 1 << 32, (1 << 32) + 4, ROWS as i64, ROWS as i64 + 4];
    let step = (2 * ROWS / (4 * groups)).max(2);
    let odd = |rng: &mut Noise| rng.below(2 * groups.max(4)) == 0;
    let (mut starts, mut counts, mut at) = (Vec::new(), Vec::new(), 0);
    for g in 0..groups {
        let start = match slot_rows {
            Some(rows) => g as i64 * rows,
            None if odd(rng) => [EXTREME[rng.below(8)], rng.below(ROWS) as i64][rng.below(2)],
            None => at,
        };
        starts.push(start);
        let count = rng.below(4 * step);
        counts.push(if odd(rng) { EXTREME[rng.below(8)] } else { count as i64 });
        at += 4 * rng.below(step) as i64;
    }
    (starts, counts)
}

/// What each case shares: a matrix of one number for each group.
struct Products {
    x: DeviceBuffer,
    a: QuantMatrix,
    b: QuantMatrix,
}

/// The number of group g.
fn number(g: usize) -> f32 {
    (g % 13 + 1) as f32
}

impl Products {
    fn new(handle: &Handle, groups: usize) -> Self {
        let (a, b) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
        let quantized = |x: Array2<f32>, scheme| {
            let host = reference::quantize(x.view(), DType::Bf16, Recipe::new(scheme)).unwrap();
            QuantMatrix::from_host(handle, &host).unwrap()
        };
        let x = handle.upload(&bytes_of(DType::Bf16, &[1.0; ROWS * K])).unwrap();
        let a = quantized(Array2::ones((ROWS, K)), a);
        Self { x, a, b: quantized(Array2::from_shape_fn((groups * N, K), |(row, _)| number(row / N)), b) }
    }

    /// By FP8 rows, or by plain ones: rows of D of no group hold poison, others the products with their group's matrix.
    fn check(
        &self,
        handle: &Handle,
        rows: GroupedRows<'_>,
        groups: usize,
        plain: bool,
        (whose, bad): (&[Option<usize>], u32),
        what: &str,
    ) {
        let mut d = handle.upload(&vec![POISON; ROWS * N * 4]).unwrap();
        let mut clamped = handle.upload(&[77u32]).unwrap();
        let target = MatMut::new(&mut d, DType::F32, ROWS, N).unwrap();
        let args = match plain {
            true => {
                let x = MatRef::new(&self.x, DType::Bf16, ROWS, K).unwrap();
                GroupedGemmArgs::weight_only(x, &self.b, groups, rows, target)
            }
            false => GroupedGemmArgs::new(&self.a, &self.b, groups, rows, target),
        };
        handle.grouped_gemm(args.clamped(clamped.view_mut())).unwrap();
        assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "plain {plain}, {what}");
        let poison = u32::from_le_bytes([POISON; 4]);
        for (row, (found, owner)) in handle.read::<f32>(&d.view()).unwrap().chunks(N).zip(whose).enumerate() {
            let is_right = |v: &f32| match owner {
                None => v.to_bits() == poison,
                // Scales of 448 parts are no powers of two.
                Some(g) => (v - K as f32 * number(*g)).abs() < 0.01 * K as f32,
            };
            assert!(found.iter().all(is_right), "row {row}, of {owner:?}, plain {plain}, {what}: {:?}", &found[..4]);
        }
    }
}

/// D of FP8 rows by `sm90` and of plain ones by `small-m`, where there are such kernels.
#[test]
fn any_numbers_are_taken_alike() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(97);
    let numbers: Vec<f32> = (0..ROWS * K).map(|i| if i % K == i / K % K { (i / K + 1) as f32 } else { 0.0 }).collect();
    let counted = handle.upload(&numbers).unwrap();
    // More groups than a warp has lanes, and than two.
    for groups in [1, 2, 5, 31, 33, 70, 130] {
        let has_products = KernelFamily::Sm90.runs_on(handle.device().compute_capability);
        let products = has_products.then(|| Products::new(&handle, groups));
        let slots = Some((ROWS / groups / 4 * 4) as i64);
        for (case, slot_rows) in [None, slots, None, None, slots, None, None, None].into_iter().enumerate() {
            let (starts, counts) = drawn(&mut rng, groups, slot_rows);
            let (whose, bad) = taken(&starts, slot_rows, &counts);
            let what = format!("case {case}, slots of {slot_rows:?}, starts {starts:?}, counts {counts:?}");
            let [starts_on, counts_on] = [&starts, &counts].map(|numbers| handle.upload(numbers).unwrap());
            let places = || match slot_rows {
                Some(rows) => GroupedRows::Masked { slot_rows: rows as usize, counts: counts_on.view() },
                None => GroupedRows::Contiguous { starts: starts_on.view(), counts: counts_on.view() },
            };
            let mut x = handle.upload(&vec![POISON; ROWS * K * 2]).unwrap();
            let mut clamped = handle.upload(&[77u32]).unwrap();
            let mut of = MatMut::new(&mut x, DType::Bf16, ROWS, K).unwrap();
            handle.clear_between_groups_at(4, &mut of, groups, &places(), Some(&mut clamped.view_mut())).unwrap();
            assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "{what}");
            let cleared = handle.read_bytes(&x.view()).unwrap();
            for (row, (bytes, owner)) in cleared.chunks(K * 2).zip(&whose).enumerate() {
                let want = if owner.is_some() { POISON } else { 0 };
                assert!(bytes.iter().all(|byte| *byte == want), "row {row}, of {owner:?}, {what}");
            }
            // One number in each row, the larger the further behind.
            let mut amax = handle.upload(&vec![f32::NAN; groups]).unwrap();
            let x = MatRef::new(&counted, DType::F32, ROWS, K).unwrap();
            handle.group_amax_into(&x, groups, &places(), &mut amax.view_mut()).unwrap();
            let last = |g| whose.iter().rposition(|owner| *owner == Some(g)).map_or(0.0, |row| (row + 1) as f32);
            let want: Vec<f32> = (0..groups).map(last).collect();
            assert_eq!(handle.read::<f32>(&amax.view()).unwrap(), want, "{what}");
            for plain in [false, true] {
                if let Some(products) = &products {
                    products.check(&handle, places(), groups, plain, (&whose, bad), &what);
                }
            }
        }
    }
}

/// The definition, by hand, where there is no GPU either.
#[test]
fn the_definition_is_what_the_words_say() {
    let count = |whose: &[Option<usize>], g| whose.iter().filter(|owner| **owner == Some(g)).count();
    // A negative count, an odd row, more rows than up to the next group, and than up to the end.
    let (starts, counts) = ([0, 128, 130, 256, 384, 512], [100, -5, 10, 300, 50, i64::MAX]);
    let (whose, bad) = taken(&starts, None, &counts);
    assert_eq!(([0, 1, 2, 3, 4, 5].map(|g| count(&whose, g)), bad), ([100, 0, 0, 128, 50, 128], 4));
    // Before the start; the next before the own; before an earlier one.
    let (starts, counts) = ([-128, 0, 64, 256, 128, 256], [64, 200, 64, 10, 30, 40]);
    let (whose, bad) = taken(&starts, None, &counts);
    assert_eq!(([0, 1, 2, 3, 4, 5].map(|g| count(&whose, g)), bad), ([0, 64, 64, 0, 0, 40], 4));
    let (whose, bad) = taken(&[0, 128, 256, 384, 512], Some(128), &[129, 0, -1, 128, 3]);
    assert_eq!(([0, 1, 2, 3, 4].map(|g| count(&whose, g)), bad), ([128, 0, 0, 128, 3], 2));
    assert_eq!(whose[384 + 127], Some(3));
    // What is drawn is of every kind: groups that are taken as they say, in part, and not at all, and rows of none.
    let mut rng = Noise::new(97);
    let (mut whole, mut cut, mut none, mut free) = (0, 0, 0, 0);
    for groups in [1, 2, 5, 31, 33, 70, 130].into_iter().flat_map(|groups| [groups; 6]) {
        let (starts, counts) = drawn(&mut rng, groups, None);
        let (whose, _) = taken(&starts, None, &counts);
        free += whose.iter().filter(|owner| owner.is_none()).count();
        for (g, asked) in counts.into_iter().enumerate() {
            match count(&whose, g) as i64 {
                0 => none += usize::from(asked != 0),
                found if found == asked => whole += 1,
                _ => cut += 1,
            }
        }
    }
    assert!([whole, cut, none, free].iter().all(|kind| *kind > 50), "{whole}, {cut}, {none}, {free}");
}
