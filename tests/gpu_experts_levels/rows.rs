//! Rows of experts before they are multiplied: as NVFP4 by a given level of each expert, and between tiles of 128 rows.

use ndarray::{Array2, s};
use scaled_gemm::reference;
use scaled_gemm::{
    BlockScaleRule, DType, DeviceBuffer, ErrorMath, ErrorMetric, Fp8Format, GivenScale, GroupedRows, Handle,
    HostQuantMatrix, KernelFamily, MatMut, MatRef, Nvfp4Options, Nvfp4Recipe, QuantMatrix, QuantizeTo, Recipe, Scheme,
};

use crate::common::*;

/// Rows of groups that were quantized each by itself, in one `nvfp4` matrix whose scale nobody may read, and in an `nvfp4-row` one; the level of each group. Rows of no group hold codes of 6 and a
/// scale of NaN.
pub fn padded(
    handle: &Handle,
    groups: &[HostQuantMatrix],
    places: &[(usize, usize)],
    rows: usize,
    k: usize,
) -> (DeviceBuffer, [QuantMatrix; 2]) {
    let (mut codes, mut blocks) = (vec![0x77u8; rows * k / 2], vec![0x38u8; rows * k / 16]);
    let mut scales = vec![f32::NAN; rows];
    for (q, (start, count)) in groups.iter().zip(places) {
        codes[start * k / 2..(start + count) * k / 2].copy_from_slice(&q.logical_codes()[..count * k / 2]);
        blocks[start * k / 16..(start + count) * k / 16].copy_from_slice(&q.logical_block_scales()[..count * k / 16]);
        scales[*start..start + count].fill(q.logical_scales()[0]);
    }
    let matrix = |scheme, scales: &[f32]| {
        let host = HostQuantMatrix::from_block_logical(scheme, rows, k, codes.clone(), scales, &blocks).unwrap();
        QuantMatrix::from_host(handle, &host).unwrap()
    };
    let levels: Vec<f32> = groups.iter().map(|q| q.logical_scales()[0]).collect();
    let both = [matrix(Scheme::Nvfp4, &[f32::NAN]), matrix(Scheme::Nvfp4Row, &scales)];
    (handle.upload(&levels).unwrap(), both)
}

pub const ROWS: usize = 640;

/// Starts, counts and the rows that are taken.
pub type Case = (Vec<i64>, Vec<i64>, Vec<(usize, usize)>);

/// Some that make sense, and some of every kind that does not.
pub fn cases() -> Vec<Case> {
    let sound = (vec![0, 128, 128, 384], vec![100, 0, 256, 255], vec![(0, 100), (128, 0), (128, 256), (384, 255)]);
    // Close together; up to the next alone; at an odd row.
    let close = (vec![4, 8, 72, 130], vec![4, 100, 1, 7], vec![(4, 4), (8, 64), (72, 1), (130, 0)]);
    // A negative count, and start; before an earlier one; up to the end.
    let wrong = (vec![-4, 256, 128, 512], vec![9, -1, 5, 1000], vec![(0, 0), (256, 0), (128, 0), (512, 128)]);
    // More than a warp has lanes.
    let starts: Vec<i64> = (0..70).map(|g| g * 8).collect();
    let counts: Vec<i64> = (0..70).map(|g| g % 10).collect();
    // The last has the rows up to the end.
    let taken = (0..70).map(|g| (g * 8, if g < 69 { (g % 10).min(8) } else { 9 })).collect();
    vec![sound, close, wrong, (starts, counts, taken)]
}

fn level(g: usize) -> f32 {
    [0.002, 3.0, 0.0, 1e-6, 0.04, 700.0][g % 6]
}

/// The plain rule, and two of 4over6.
pub fn options() -> [Nvfp4Options; 3] {
    let choice = |metric, math| Nvfp4Options {
        block_scale: BlockScaleRule::FourOverSix { metric, math },
        ..Nvfp4Options::default()
    };
    [Nvfp4Options::default(), choice(ErrorMetric::Mae, ErrorMath::Fast), choice(ErrorMetric::Mse, ErrorMath::Strict)]
}

fn recipes() -> Vec<Recipe> {
    options().map(|options| Nvfp4Recipe::rows(options).unwrap().into()).to_vec()
}

#[test]
fn rows_of_experts_are_quantized_by_the_level_of_each() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(611);
    let kinds = [GivenScale::Decode(()), GivenScale::Amax(()), GivenScale::Encode(())];
    for (i, (dtype, cols)) in [(DType::Bf16, 272), (DType::F16, 16), (DType::F32, 144)].into_iter().enumerate() {
        let mut x = spread(&mut rng, ROWS, cols, dtype);
        x[[5, 3]] = f32::NAN;
        x[[300, 2]] = f32::INFINITY;
        let on = handle.upload(&bytes_of(dtype, x.iter())).unwrap();
        let matrix = MatRef::new(&on, dtype, ROWS, cols).unwrap();
        for (j, (starts, counts, taken)) in cases().into_iter().enumerate() {
            let groups = starts.len();
            let [starts_on, counts_on] = [&starts, &counts].map(|numbers| handle.upload(numbers).unwrap());
            let numbers: Vec<f32> = (0..groups).map(level).collect();
            let numbers_on = handle.upload(&numbers).unwrap();
            for (recipe, kind) in recipes().into_iter().flat_map(|recipe| kinds.map(|kind| (recipe, kind))) {
                let what = format!("{dtype}, case {j}, {recipe}, {kind:?}");
                let none = if kind == GivenScale::Encode(()) { f32::INFINITY } else { 0.0 };
                let mut of_rows = vec![none; ROWS];
                for (g, (start, count)) in taken.iter().enumerate() {
                    of_rows[*start..start + count].fill(level(g));
                }
                let given = kind.with_number(&of_rows[..]);
                let want = reference::quantize_with_row_scales(x.view(), dtype, recipe, given).unwrap();
                let mut q = poisoned_matrix(&handle, Scheme::Nvfp4Row, ROWS, cols);
                let places = GroupedRows::Contiguous { starts: starts_on.view(), counts: counts_on.view() };
                let scales = kind.with_number(numbers_on.view());
                handle.quantize_nvfp4_groups_into(&matrix, recipe, &scales, groups, &places, &mut q).unwrap();
                assert_device_bits(&handle, &q, &want, &what);
            }
        }
        // Slots, captured: levels and counts change between launches.
        let recipe = recipes()[i];
        let (mut counts_on, mut numbers_on) = (handle.upload(&[0i64; 5]).unwrap(), handle.upload(&[0f32; 5]).unwrap());
        let mut q = poisoned_matrix(&handle, Scheme::Nvfp4Row, ROWS, cols);
        let graph = capture_owned(&handle, || {
            let places = GroupedRows::Masked { slot_rows: 128, counts: counts_on.view() };
            let scales = GivenScale::Decode(numbers_on.view());
            handle.quantize_nvfp4_groups_into(&matrix, recipe, &scales, 5, &places, &mut q)
        })
        .unwrap();
        for (turn, counts) in [[128i64, 0, 7, 200, -3], [1, 2, 3, 4, 5]].into_iter().enumerate() {
            let numbers: [f32; 5] = std::array::from_fn(|g| level(g + turn));
            handle.write(&mut counts_on.view_mut(), &counts).unwrap();
            handle.write(&mut numbers_on.view_mut(), &numbers).unwrap();
            handle.launch(&graph).unwrap();
            let mut of_rows = vec![0.0; ROWS];
            for (g, count) in counts.into_iter().enumerate() {
                of_rows[g * 128..][..count.clamp(0, 128) as usize].fill(numbers[g]);
            }
            let given = GivenScale::Decode(&of_rows[..]);
            let want = reference::quantize_with_row_scales(x.view(), dtype, recipe, given).unwrap();
            assert_device_bits(&handle, &q, &want, &format!("{dtype}, captured, turn {turn}"));
        }
    }
}

#[test]
fn levels_that_do_not_fit_are_refused() {
    let Some(handle) = handle() else { return };
    let (groups, cols) = (5, 32);
    let on = handle.alloc(ROWS * cols * 2).unwrap();
    let x = MatRef::new(&on, DType::Bf16, ROWS, cols).unwrap();
    let (counts, levels) = (handle.upload(&[0i64; 5]).unwrap(), handle.upload(&[1f32; 5]).unwrap());
    let few = handle.upload(&[1f32; 4]).unwrap();
    let refused = |scheme: Scheme, levels: &DeviceBuffer, slot_rows, out: Scheme, words: &[&str]| {
        let mut q = QuantMatrix::zeros(&handle, out, ROWS, cols).unwrap();
        let places = GroupedRows::Masked { slot_rows, counts: counts.view() };
        let scales = GivenScale::Decode(levels.view());
        let said = handle.quantize_nvfp4_groups_into(&x, Recipe::new(scheme), &scales, groups, &places, &mut q);
        let said = said.unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    let row = Scheme::Nvfp4Row;
    refused(Scheme::Nvfp4, &levels, 128, Scheme::Nvfp4, &["second levels of rows with nvfp4", "nvfp4-row alone"]);
    refused(row, &levels, 128, Scheme::Nvfp4, &["target", "nvfp4-row"]);
    refused(row, &few, 128, row, &["second levels of groups", "16 bytes", "20"]);
    refused(row, &levels, 132, row, &["640 rows for 5 slots of 132"]);
    refused(row, &levels, 6, row, &["multiple of 4 rows"]);
}

/// A cast to tiles of 128 rows behind zeros between groups: no tile has rows of two, wherever the device says that groups begin, and those that begin inside of one are counted.
#[test]
fn no_tile_is_of_two_groups() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let (cols, scheme) = (272, Scheme::Fp8Group128x128(Fp8Format::E4M3));
    let mut rng = Noise::new(613);
    for (starts, counts, taken, bad) in [
        // The second begins in the first one's tile: what is left of the first ends there.
        ([0i64, 100, 256, 384], [100i64, 28, 100, 256], [(0, 100), (0, 0), (256, 100), (384, 256)], 1),
        ([0, 128, 260, 512], [128, 128, 4, 1], [(0, 128), (128, 128), (0, 0), (512, 1)], 1),
        // Of a multiple of 4 each, as products take them.
        ([4, 8, 12, 16], [4, 4, 4, 600], [(0, 0); 4], 4),
        // Without rows it does not matter where they begin.
        ([0, 100, 104, 128], [90, 0, 0, 50], [(0, 90), (0, 0), (0, 0), (128, 50)], 0),
    ] {
        let mut x = spread(&mut rng, ROWS, cols, DType::Bf16);
        // An expert's numbers beside which those of others lose all their digits.
        for (g, (start, count)) in starts.into_iter().zip(counts).enumerate() {
            let rows = start as usize..((start + count) as usize).min(ROWS);
            x.slice_mut(s![rows, ..]).mapv_inplace(|v| v * 4f32.powi(6 * g as i32));
        }
        let mut on = handle.upload(&bytes_of(DType::Bf16, x.iter())).unwrap();
        let [starts_on, counts_on] = [&starts, &counts].map(|numbers| handle.upload(numbers).unwrap());
        let mut clamped = handle.upload(&[77u32]).unwrap();
        let places = GroupedRows::Contiguous { starts: starts_on.view(), counts: counts_on.view() };
        let mut of = MatMut::new(&mut on, DType::Bf16, ROWS, cols).unwrap();
        handle.clear_between_groups(&mut of, 4, &places, Some(&mut clamped.view_mut())).unwrap();
        let mut q = QuantMatrix::zeros(&handle, scheme, ROWS, cols).unwrap();
        let matrix = MatRef::new(&on, DType::Bf16, ROWS, cols).unwrap();
        handle.quantize_into(&matrix, Recipe::new(scheme), QuantizeTo::Plain(&mut q)).unwrap();
        assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "starts {starts:?}");
        let mut left = Array2::zeros((ROWS, cols));
        for (start, count) in taken {
            let rows = s![start..start + count, ..];
            left.slice_mut(rows).assign(&x.slice(rows));
        }
        assert!(handle.read_bytes(&on.view()).unwrap() == bytes_of(DType::Bf16, left.iter()), "starts {starts:?}");
        let want = reference::quantize(left.view(), DType::Bf16, Recipe::new(scheme)).unwrap();
        assert_device_bits(&handle, &q, &want, &format!("starts {starts:?}"));
        // Each group as if it were alone.
        let values = reference::dequantize(&q.to_host(&handle).unwrap(), DType::F32);
        for (start, count) in taken.into_iter().filter(|(_, count)| *count > 0) {
            let rows = s![start..start + count, ..];
            let alone = reference::quantize(x.slice(rows), DType::Bf16, Recipe::new(scheme)).unwrap();
            assert_eq!(values.slice(rows), reference::dequantize(&alone, DType::F32), "starts {starts:?}, row {start}");
        }
        // Slots of another length are refused, and a smaller step is taken at its word.
        let slots = GroupedRows::Masked { slot_rows: 64, counts: counts_on.view() };
        let mut of = MatMut::new(&mut on, DType::Bf16, ROWS, cols).unwrap();
        let said = handle.clear_between_groups(&mut of, 4, &slots, None).unwrap_err().to_string();
        assert!(said.contains("slots of 64") && said.contains("two groups"), "{said}");
        handle.clear_between_groups_at(64, &mut of, 4, &slots, None).unwrap();
        let said = handle.clear_between_groups_at(6, &mut of, 4, &slots, None).unwrap_err().to_string();
        assert!(said.contains("6 must be a multiple of 4, from 4"), "{said}");
    }
    handle.synchronize().unwrap();
}
