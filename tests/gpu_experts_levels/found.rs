//! The amax of each group, found on the device, and rows quantized by it as the second level of their group.

use ndarray::{Array2, s};
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference;
use scaled_gemm::{
    DType, DeviceBuffer, Error, GivenScale, GroupedRows, Handle, HostQuantMatrix, KernelFamily, MatRef, Nvfp4Recipe,
    Recipe, Result, Scheme,
};

use super::rows::{ROWS, cases, options};
use crate::common::*;

/// Rows on both sides, so many elements apart, the first that many behind an aligned address.
struct Both {
    x: Array2<f32>,
    dtype: DType,
    stride: usize,
    offset: usize,
    on: CudaSlice<u8>,
}

impl Both {
    fn new(handle: &Handle, x: Array2<f32>, dtype: DType, gap: usize, offset: usize) -> Self {
        let stride = x.ncols() + gap;
        let on = upload_strided(handle, &x, dtype, stride, offset);
        Self { x, dtype, stride, offset, on }
    }

    fn part(&self, from: usize, count: usize) -> MatRef<'_> {
        let from = if count == 0 { 0 } else { from };
        let view = self.on.slice((self.offset + from * self.stride) * self.dtype.bytes()..);
        MatRef::new(view, self.dtype, count, self.x.ncols()).unwrap().with_row_stride(self.stride).unwrap()
    }
}

/// Numbers that `spread` does not reach, in the rows of no group; NaN and infinities in others where they are wanted, rows and, of `cases`, a group of nothing else among them.
fn tokens(rng: &mut Noise, cols: usize, dtype: DType, taken: &[(usize, usize)], specials: bool) -> Array2<f32> {
    let mut x = spread(rng, ROWS, cols, dtype);
    if specials {
        x[[5, 3]] = f32::NAN;
        x[[300, 2]] = f32::NEG_INFINITY;
        x[[129, 15]] = f32::INFINITY;
        x.slice_mut(s![24..32, ..]).fill(f32::NAN);
    }
    let lies = |row: usize| taken.iter().any(|(start, count)| (*start..start + count).contains(&row));
    for row in (0..ROWS).filter(|row| !lies(*row)) {
        x.row_mut(row).fill(round_to(dtype, if row % 2 == 0 { 6e4 } else { -6e4 }));
    }
    x
}

fn amax_of(x: &Array2<f32>, (start, count): (usize, usize)) -> f32 {
    reference::amax(x.slice(s![start..start + count, ..]).as_standard_layout().as_slice().unwrap())
}

/// Of each group the bits of `amax_into` of its rows alone, and of the CPU; what lies behind is left as it was.
#[track_caller]
fn check_amax(handle: &Handle, rows: &Both, places: &GroupedRows<'_>, taken: &[(usize, usize)], what: &str) {
    let groups = taken.len();
    let mut amax = handle.upload(&vec![f32::NAN; groups + 2]).unwrap();
    handle.group_amax_into(&rows.part(0, rows.x.nrows()), groups, places, &mut amax.view_mut()).unwrap();
    let found = handle.read::<f32>(&amax.view()).unwrap();
    assert!(found[groups..].iter().all(|v| v.is_nan()), "{what}: {:?}", &found[groups..]);
    let mut one = handle.upload(&[f32::NAN]).unwrap();
    for (g, (start, count)) in taken.iter().copied().enumerate() {
        handle.amax_into(&rows.part(start, count), &mut one.view_mut()).unwrap();
        let alone = handle.read::<f32>(&one.view()).unwrap()[0];
        let want = amax_of(&rows.x, (start, count));
        let bits = [found[g], alone, want].map(f32::to_bits);
        assert!(bits[0] == bits[2] && bits[1] == bits[2], "{what}, group {g}: {}, alone {alone}, {want}", found[g]);
    }
}

/// Slots of 128 rows, and of 4, more of them than there are multiprocessors.
fn slots() -> [(usize, Vec<i64>); 2] {
    [
        (128, vec![128, 0, 7, 200, -3]),
        (4, (0..ROWS as i64 / 4).map(|g| [4, 0, 1, -1, i64::MAX, 3, i64::MIN][g as usize % 7]).collect()),
    ]
}

fn taken_of_slots(slot: usize, counts: &[i64]) -> Vec<(usize, usize)> {
    counts.iter().enumerate().map(|(g, count)| (g * slot, (*count).clamp(0, slot as i64) as usize)).collect()
}

/// Wherever groups lie, whatever rows of none hold, of each type, aligned and not.
#[test]
fn amax_of_groups_is_that_of_their_rows_alone() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(631);
    for (dtype, cols, gap, offset) in [
        (DType::Bf16, 272, 0, 0),
        (DType::Bf16, 144, 8, 3),
        (DType::F16, 16, 3, 0),
        (DType::F16, 528, 0, 0),
        (DType::F32, 144, 4, 0),
        (DType::F32, 400, 1, 1),
    ] {
        for specials in [false, true] {
            let words = format!("{dtype}, {cols} columns and {gap} between, specials {specials}");
            for (j, (starts, counts, taken)) in cases().into_iter().enumerate() {
                let x = tokens(&mut rng, cols, dtype, &taken, specials);
                let rows = Both::new(&handle, x, dtype, gap, offset);
                let [starts, counts] = [&starts, &counts].map(|numbers| handle.upload(numbers).unwrap());
                let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
                check_amax(&handle, &rows, &places, &taken, &format!("{words}, case {j}"));
            }
            for (slot_rows, counts) in slots() {
                let taken = taken_of_slots(slot_rows, &counts);
                let x = tokens(&mut rng, cols, dtype, &taken, specials);
                let rows = Both::new(&handle, x, dtype, gap, offset);
                let counts = handle.upload(&counts).unwrap();
                let places = GroupedRows::Masked { slot_rows, counts: counts.view() };
                check_amax(&handle, &rows, &places, &taken, &format!("{words}, slots of {slot_rows}"));
            }
        }
    }
}

/// A thousand groups, of which most have no rows; one number in each row, no two alike.
#[test]
fn amax_of_a_thousand_groups() {
    let Some(handle) = handle() else { return };
    for turn in 0..3 {
        let counts = counts_of_a_thousand(turn);
        let mut at = 4;
        let taken: Vec<_> = counts
            .iter()
            .map(|count| {
                let start = at;
                at += (*count as usize + turn).next_multiple_of(4);
                (start, *count as usize)
            })
            .collect();
        let x = Array2::from_shape_fn((at + 4, 16), |(i, j)| if j == i % 16 { (i + 1) as f32 } else { 0.0 });
        let rows = Both::new(&handle, x, DType::F32, 0, 0);
        let starts: Vec<i64> = taken.iter().map(|place| place.0 as i64).collect();
        let [starts, counts] = [&starts, &counts].map(|numbers| handle.upload(numbers).unwrap());
        let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
        check_amax(&handle, &rows, &places, &taken, &format!("turn {turn}"));
    }
}

/// One element above all others, in the first and the last rows of what a thread, a warp, a block and its loop take; larger ones before and behind the group.
#[test]
fn amax_of_long_groups_sees_every_row() {
    let Some(handle) = handle() else { return };
    let cols = 16;
    for (start, count) in [(4, 17_001), (0, 33_026), (8, 1023), (4, (1 << 20) + 21)] {
        let rows = start + count + 3;
        let mut on = handle.upload(&vec![0f32; rows * cols]).unwrap();
        let set = |on: &mut DeviceBuffer, row: usize, value: f32| {
            let at = (row * cols + row % cols) * 4;
            handle.write(&mut on.view_mut().part(at..at + 4).unwrap(), &[value]).unwrap();
        };
        for row in (0..start).chain(start + count..rows) {
            set(&mut on, row, 9.0);
        }
        let numbers = [[start as i64, rows as i64], [count as i64, 1]];
        let [starts, counts] = numbers.map(|numbers| handle.upload(&numbers).unwrap());
        let mut amax = handle.upload(&[f32::NAN; 2]).unwrap();
        let edges = [1, 4, 128, 1024, 4096, 16_384, 32_768, 1 << 20, count];
        let near = edges.into_iter().flat_map(|edge| edge.saturating_sub(2)..edge + 3).chain([0]);
        for (turn, row) in near.filter(|row| *row < count).enumerate() {
            let value = if turn % 2 == 0 { 3.0 } else { -2.5 };
            set(&mut on, start + row, value);
            let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
            let x = MatRef::new(&on, DType::F32, rows, cols).unwrap();
            handle.group_amax_into(&x, 2, &places, &mut amax.view_mut()).unwrap();
            // The second begins behind all rows.
            assert_eq!(handle.read::<f32>(&amax.view()).unwrap(), [value.abs(), 0.0], "{count} rows, row {row}");
            set(&mut on, start + row, 0.0);
        }
    }
}

/// The rows of each group have the codes and block scales of the `nvfp4` matrix that they are alone, and its scale: of `quantize` on the GPU, and on the CPU.
#[track_caller]
fn check_groups(q: &HostQuantMatrix, groups: impl Iterator<Item = (usize, HostQuantMatrix)>, what: &str) {
    let (cols, scales) = (q.cols(), q.logical_scales());
    let (codes, blocks) = (q.logical_codes(), q.logical_block_scales());
    for (start, alone) in groups {
        let count = alone.rows();
        let of = |wide: usize| start * wide..(start + count) * wide;
        assert!(codes[of(cols / 2)] == alone.logical_codes()[..], "{what}: codes from row {start} on");
        assert!(blocks[of(cols / 16)] == alone.logical_block_scales()[..], "{what}: block scales from row {start} on");
        let one = alone.logical_scales()[0];
        let same = |v: &f32| v.to_bits() == one.to_bits() || (v.is_nan() && one.is_nan());
        assert!(scales[of(1)].iter().all(same), "{what}: scales from row {start} on, {one}");
    }
}

/// What all rows are by the amax of each group: rows of no group have a level of 0.
fn wanted(x: &Array2<f32>, dtype: DType, recipe: Recipe, taken: &[(usize, usize)]) -> HostQuantMatrix {
    let mut of_rows = vec![0.0; x.nrows()];
    for place in taken {
        of_rows[place.0..place.0 + place.1].fill(amax_of(x, *place));
    }
    reference::quantize_with_row_scales(x.view(), dtype, recipe, GivenScale::Amax(&of_rows[..])).unwrap()
}

#[test]
fn rows_are_quantized_by_the_level_that_their_group_has() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(632);
    for (dtype, cols, gap) in [(DType::Bf16, 272, 0), (DType::F16, 16, 1), (DType::F32, 144, 4)] {
        for (specials, options) in [false, true].into_iter().flat_map(|specials| options().map(|one| (specials, one))) {
            let [row, tensor]: [Recipe; 2] =
                [Nvfp4Recipe::rows(options).unwrap().into(), Nvfp4Recipe::tensor(options).unwrap().into()];
            for (j, (starts, counts, taken)) in cases().into_iter().enumerate() {
                let what = format!("{dtype}, {row}, specials {specials}, case {j}");
                let rows = Both::new(&handle, tokens(&mut rng, cols, dtype, &taken, specials), dtype, gap, 0);
                let [starts, counts] = [&starts, &counts].map(|numbers| handle.upload(numbers).unwrap());
                let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
                let mut amax = handle.upload(&vec![f32::NAN; taken.len()]).unwrap();
                let mut q = poisoned_matrix(&handle, Scheme::Nvfp4Row, ROWS, cols);
                let x = rows.part(0, ROWS);
                handle.group_amax_into(&x, taken.len(), &places, &mut amax.view_mut()).unwrap();
                let found = GivenScale::Amax(amax.view());
                handle.quantize_nvfp4_groups_into(&x, row, &found, taken.len(), &places, &mut q).unwrap();
                assert_device_bits(&handle, &q, &wanted(&rows.x, dtype, row, &taken), &what);
                let q = q.to_host(&handle).unwrap();
                let of = || taken.iter().copied().filter(|place| place.1 > 0);
                let on_gpu = of().map(|(start, count)| {
                    let alone = handle.quantize(&rows.part(start, count), tensor).unwrap();
                    (start, alone.to_host(&handle).unwrap())
                });
                check_groups(&q, on_gpu, &what);
                let on_cpu = of().map(|(start, count)| {
                    let own = rows.x.slice(s![start..start + count, ..]);
                    (start, reference::quantize(own, dtype, tensor).unwrap())
                });
                check_groups(&q, on_cpu, &what);
            }
        }
    }
}

/// Both calls in one graph: other rows, starts and counts at each launch, with nobody in between.
#[test]
fn levels_are_found_in_a_graph() {
    let Some(handle) = handle() else { return };
    let (dtype, cols, groups) = (DType::Bf16, 272, 5);
    let mut rng = Noise::new(633);
    for (i, options) in options().into_iter().enumerate() {
        let row: Recipe = Nvfp4Recipe::rows(options).unwrap().into();
        let tensor: Recipe = Nvfp4Recipe::tensor(options).unwrap().into();
        for slot_rows in [None, Some(128)] {
            let mut on = handle.alloc(ROWS * cols * 2).unwrap();
            let [mut starts, mut counts] = [(); 2].map(|()| handle.upload(&[0i64; 5]).unwrap());
            let mut amax = handle.upload(&[f32::NAN; 5]).unwrap();
            let mut q = poisoned_matrix(&handle, Scheme::Nvfp4Row, ROWS, cols);
            let mut step = || -> Result<()> {
                let places = match slot_rows {
                    Some(slot_rows) => GroupedRows::Masked { slot_rows, counts: counts.view() },
                    None => GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() },
                };
                let x = MatRef::new(&on, dtype, ROWS, cols)?;
                handle.group_amax_into(&x, groups, &places, &mut amax.view_mut())?;
                let found = GivenScale::Amax(amax.view());
                handle.quantize_nvfp4_groups_into(&x, row, &found, groups, &places, &mut q)
            };
            // Kernels and scratch memory.
            step().unwrap();
            let graph = capture_owned(&handle, &mut step).unwrap();
            for (turn, (begin, found)) in [
                ([0i64, 128, 256, 384, 512], [128i64, 0, 7, 200, -3]),
                ([4, 8, 300, 300, 500], [1, 292, 50, 200, 141]),
                ([0; 5], [0; 5]),
                ([0, 4, 8, 12, 16], [4, 4, 4, 4, 624]),
            ]
            .into_iter()
            .enumerate()
            {
                let what = format!("{row}, slots of {slot_rows:?}, turn {turn}");
                let taken: Vec<_> = match slot_rows {
                    Some(slot_rows) => taken_of_slots(slot_rows, &found),
                    None => (0..groups)
                        .map(|g| {
                            let end = if g + 1 < groups { begin[g + 1] } else { ROWS as i64 };
                            (begin[g] as usize, found[g].clamp(0, end - begin[g]) as usize)
                        })
                        .collect(),
                };
                let x = tokens(&mut rng, cols, dtype, &taken, (i + turn) % 2 == 1);
                handle.write(&mut on.view_mut(), &bytes_of(dtype, x.iter())).unwrap();
                handle.write(&mut starts.view_mut(), &begin).unwrap();
                handle.write(&mut counts.view_mut(), &found).unwrap();
                handle.launch(&graph).unwrap();
                let levels: Vec<_> = handle.read::<f32>(&amax.view()).unwrap().into_iter().map(f32::to_bits).collect();
                let want: Vec<_> = taken.iter().map(|place| amax_of(&x, *place).to_bits()).collect();
                assert_eq!(levels, want, "{what}");
                assert_device_bits(&handle, &q, &wanted(&x, dtype, row, &taken), &what);
                let alone = taken.iter().copied().filter(|place| place.1 > 0).map(|(start, count)| {
                    let own = x.slice(s![start..start + count, ..]);
                    (start, reference::quantize(own, dtype, tensor).unwrap())
                });
                check_groups(&q.to_host(&handle).unwrap(), alone, &what);
            }
        }
    }
}

/// No rows, no columns, no groups: 0 of each group that there is, and nothing behind.
#[test]
fn amax_of_groups_without_elements_is_zero() {
    let Some(handle) = handle() else { return };
    let counts = handle.upload(&[5i64, -1, 0]).unwrap();
    let starts = handle.upload(&[0i64; 3]).unwrap();
    let nothing = handle.upload(&[0u8; 16]).unwrap();
    let full = handle.upload(&vec![f32::INFINITY; 8 * 16]).unwrap();
    for (rows, cols, groups) in [(0, 64, 3), (8, 0, 3), (0, 0, 3), (0, 16, 0), (8, 16, 0), (8, 0, 0)] {
        for in_slots in [false, true] {
            let places = match in_slots {
                true => GroupedRows::Masked { slot_rows: if rows == 0 { 0 } else { 4 }, counts: counts.view() },
                false => GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() },
            };
            // (Three slots of 4 rows are more than 8.)
            let groups = if in_slots && rows > 0 { groups.min(2) } else { groups };
            let mut amax = handle.upload(&[f32::NAN; 4]).unwrap();
            let x = MatRef::new(if rows * cols == 0 { &nothing } else { &full }, DType::F32, rows, cols).unwrap();
            handle.group_amax_into(&x, groups, &places, &mut amax.view_mut()).unwrap();
            let found = handle.read::<f32>(&amax.view()).unwrap();
            let is_right = |(g, v): (usize, &f32)| if g < groups { v.to_bits() == 0 } else { v.is_nan() };
            assert!(found.iter().enumerate().all(is_right), "{rows} x {cols}, {groups} groups: {found:?}");
        }
    }
}

#[test]
fn an_amax_of_groups_that_does_not_fit_is_refused() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped, KernelFamily::Fp8]).unwrap();
    let (groups, cols) = (5, 32);
    let on = handle.upload(&vec![1f32; ROWS * cols]).unwrap();
    let x = MatRef::new(&on, DType::F32, ROWS, cols).unwrap();
    let (starts, counts) = (handle.upload(&[0i64; 5]).unwrap(), handle.upload(&[1i64; 5]).unwrap());
    let mut memory = handle.upload(&[7u8; 24]).unwrap();
    let mut refused = |x: &MatRef<'_>, groups: usize, places: GroupedRows<'_>, part, words: &[&str]| -> Error {
        let mut all = memory.view_mut();
        let refused = handle.group_amax_into(x, groups, &places, &mut all.part(part).unwrap()).unwrap_err();
        let said = refused.to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert_eq!(handle.read_bytes(&memory.view()).unwrap(), [7; 24], "{said}");
        refused
    };
    let slots = |slot_rows| GroupedRows::Masked { slot_rows, counts: counts.view() };
    let begun = || GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
    let short = refused(&x, groups, slots(128), 0..16, &["amax of groups", "16 bytes", "20"]);
    assert!(matches!(short, Error::Shape { .. }), "{short}");
    refused(&x, groups, begun(), 4..20, &["amax of groups", "16 bytes", "20"]);
    let odd = refused(&x, groups, slots(128), 2..22, &["amax of groups", "4"]);
    assert!(matches!(odd, Error::Alignment { .. }), "{odd}");
    refused(&x, groups, slots(132), 0..20, &["640 rows for 5 slots of 132"]);
    refused(&x, groups, slots(6), 0..20, &["multiple of 4 rows"]);
    refused(&x, 6, begun(), 0..24, &["counts of groups", "40 bytes", "48"]);
    refused(&x, usize::MAX, begun(), 0..24, &["amax of groups", "24 bytes"]);
    let codes = MatRef::new(&on, DType::E4M3, ROWS, cols).unwrap();
    let said = refused(&codes, groups, slots(128), 0..20, &["cannot be quantized", "bf16, f16 or f32"]);
    assert!(matches!(said, Error::DType { .. }), "{said}");
    let narrow = MatRef::new(&on, DType::F32, ROWS, 24).unwrap();
    refused(&narrow, groups, slots(128), 0..20, &["24 elements", "multiple of 16"]);
    // More rows than there can be, which takes no memory where they have no columns.
    let endless = MatRef::new(&on, DType::F32, 1 << 62, 0).unwrap();
    refused(&endless, groups, slots(128), 0..20, &["2^31"]);
    let said = handle.row_amax_into(&endless, &mut handle.alloc(64).unwrap().view_mut()).unwrap_err().to_string();
    assert!(said.contains("row amax") && said.contains("64 bytes"), "{said}");
    // Numbers that are too few are refused where there are no rows, too.
    let none = MatRef::new(&on, DType::F32, 0, cols).unwrap();
    let mut q = scaled_gemm::QuantMatrix::zeros(&handle, Scheme::Nvfp4Row, 0, cols).unwrap();
    let levels = GivenScale::Amax(memory.view());
    let said = handle.quantize_nvfp4_groups_into(&none, Recipe::new(Scheme::Nvfp4Row), &levels, 7, &begun(), &mut q);
    let said = said.unwrap_err().to_string();
    assert!(said.contains("second levels of groups") && said.contains("28"), "{said}");
    // In a capture, on a handle that has no scratch memory yet.
    let fresh = Handle::new(0).unwrap();
    let (on, counts) = (fresh.upload(&vec![1f32; ROWS * cols]).unwrap(), fresh.upload(&[1i64; 5]).unwrap());
    let mut amax = fresh.alloc(20).unwrap();
    let mut call = || {
        let places = GroupedRows::Masked { slot_rows: 128, counts: counts.view() };
        fresh.group_amax_into(&MatRef::new(&on, DType::F32, ROWS, cols)?, groups, &places, &mut amax.view_mut())
    };
    let said = capture_owned(&fresh, &mut call).map(drop).unwrap_err().to_string();
    assert!(said.contains("reserving scratch memory") && said.contains("once before the capture"), "{said}");
    // After such a call it captures.
    call().unwrap();
    let graph = capture_owned(&fresh, &mut call).unwrap();
    fresh.write(&mut amax.view_mut(), &[f32::NAN; 5]).unwrap();
    fresh.launch(&graph).unwrap();
    assert_eq!(fresh.read::<f32>(&amax.view()).unwrap(), [1.0; 5]);
}

/// The references alone, where there is no GPU either: a level that is found is the amax of the group's rows, whatever they hold.
#[test]
fn rows_by_the_amax_of_their_group_are_what_they_are_alone() {
    let mut rng = Noise::new(634);
    for (dtype, specials) in [(DType::Bf16, false), (DType::F16, true), (DType::F32, true)] {
        for options in options() {
            let [row, tensor]: [Recipe; 2] =
                [Nvfp4Recipe::rows(options).unwrap().into(), Nvfp4Recipe::tensor(options).unwrap().into()];
            for (j, (.., taken)) in cases().into_iter().enumerate() {
                let x = tokens(&mut rng, 144, dtype, &taken, specials);
                let alone = taken.iter().copied().filter(|place| place.1 > 0).map(|(start, count)| {
                    let own = x.slice(s![start..start + count, ..]);
                    (start, reference::quantize(own, dtype, tensor).unwrap())
                });
                check_groups(&wanted(&x, dtype, row, &taken), alone, &format!("{dtype}, {row}, case {j}"));
            }
        }
    }
}
