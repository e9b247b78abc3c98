//! Rows of experts before they are multiplied: what lies between groups becomes zeros, and one cast of all rows behind that has the bytes of each group's rows cast
//! alone; slots are cast to transposes of their own.
#![cfg(feature = "cuda")]

#[path = "gpu_experts_rows/any_numbers.rs"]
mod any_numbers;
mod common;
#[path = "gpu_experts_rows/given_scales.rs"]
mod given_scales;
#[path = "gpu_experts_rows/transposes.rs"]
mod transposes;

use common::*;
use ndarray::s;
use scaled_gemm::reference;
use scaled_gemm::{
    DType, Fp8Format, GivenScale, GroupedRows, HostQuantMatrix, KernelFamily, MatMut, MatRef, QuantMatrix, QuantizeTo,
    Recipe, Scheme,
};

/// What rows hold that nobody may have written.
const POISON: u8 = 0xA5;

const EXPERTS: usize = 5;
const K: usize = 400;
/// Room of each expert, a multiple of 128 rows.
const ROOM: [usize; EXPERTS] = [128, 256, 128, 384, 128];

fn starts() -> [usize; EXPERTS] {
    std::array::from_fn(|g| ROOM[..g].iter().sum())
}

/// Small, for runs under a sanitizer, too. Rows at any stride and alignment.
#[test]
fn what_lies_between_groups_becomes_zeros() {
    let Some(handle) = handle() else { return };
    let rows = 40;
    // Slots of eight: all of it, none, more than there is, less than none, a part.
    let counts = [8i64, 0, 9, -1, 3];
    // In order, with one count below none; up to the next group alone, at an odd row, before an earlier one.
    let in_order = ([0i64, 8, 12, 24, 32], [(0, 8), (8, 0), (12, 9), (24, 0), (32, 3)], 1);
    let odd = ([4i64, 9, 16, 20, 12], [(4, 5), (9, 0), (16, 4), (20, 0), (12, 0)], 4);
    // Of slots 9 of 8 rows and -1.
    let slots = ([0i64; 5], [(0, 8), (8, 0), (16, 8), (24, 0), (32, 3)], 2);
    let counts_on = handle.upload(&counts).unwrap();
    for (dtype, cols, gap, skip) in [(DType::Bf16, 24, 0, 0), (DType::Bf16, 21, 3, 1), (DType::F32, 300, 5, 3)] {
        for (masked, (starts, taken, bad)) in [(true, slots), (false, in_order), (false, odd)] {
            let size = dtype.bytes();
            let stride = cols + gap;
            let lies = |row: usize| taken.iter().any(|(start, count)| (*start..start + count).contains(&row));
            let starts_on = handle.upload(&starts).unwrap();
            let mut want = vec![POISON; (skip + rows * stride) * size];
            for row in (0..rows).filter(|row| !lies(*row)) {
                want[(skip + row * stride) * size..][..cols * size].fill(0);
            }
            let mut x = upload(&handle, &vec![POISON; want.len()]);
            let mut clamped = handle.upload(&[77u32]).unwrap();
            let places = match masked {
                true => GroupedRows::Masked { slot_rows: 8, counts: counts_on.view() },
                false => GroupedRows::Contiguous { starts: starts_on.view(), counts: counts_on.view() },
            };
            let mut inside = x.slice_mut(skip * size..);
            let mut of = MatMut::new(&mut inside, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap();
            handle.clear_between_groups_at(4, &mut of, 5, &places, Some(&mut clamped.view_mut())).unwrap();
            handle.clear_between_groups_at(4, &mut of, 5, &places, None).unwrap();
            let what = format!("{dtype}, {cols} columns, masked {masked}");
            assert!(handle.stream().clone_dtoh(&x).unwrap() == want, "{what}");
            assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "{what}");
        }
    }
    // More groups than a warp has lanes: the last starts behind all others, and the one before it too early.
    let mut starts: Vec<i64> = (0..70).map(|g| 4 * g).collect();
    starts[68] = 100;
    let counts_of_many: Vec<i64> = (0..70).map(|g| g % 5).collect();
    let taken = |g: usize| if g == 67 || g == 68 { 0 } else { counts_of_many[g].min(4) as usize };
    let mut x = upload(&handle, &vec![POISON; 280 * 16]);
    let (starts_on, many_on) = (handle.upload(&starts).unwrap(), handle.upload(&counts_of_many).unwrap());
    let places = GroupedRows::Contiguous { starts: starts_on.view(), counts: many_on.view() };
    let mut clamped = handle.upload(&[77u32]).unwrap();
    let mut of = MatMut::new(&mut x, DType::Bf16, 280, 8).unwrap();
    handle.clear_between_groups_at(4, &mut of, 70, &places, Some(&mut clamped.view_mut())).unwrap();
    let found = handle.stream().clone_dtoh(&x).unwrap();
    for (row, bytes) in found.chunks(16).enumerate() {
        let is_taken = row % 4 < taken(row / 4);
        assert!(bytes.iter().all(|byte| *byte == if is_taken { POISON } else { 0 }), "row {row}");
    }
    assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [2]);
    let mut x = handle.alloc(rows * 48).unwrap();
    let mut x = MatMut::new(&mut x, DType::Bf16, rows, 24).unwrap();
    let mut refused = |slot_rows, groups, words: &[&str]| {
        let places = GroupedRows::Masked { slot_rows, counts: counts_on.view() };
        let text = handle.clear_between_groups_at(4, &mut x, groups, &places, None).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    refused(6, 5, &["slots of 6", "multiple of 4"]);
    refused(8, 6, &["counts of groups", "40 bytes", "48"]);
    refused(12, 5, &["5 groups, slots of 12 rows, in 40"]);
}

/// At any stride and alignment, and at each launch of a captured graph; between rows and around the matrix nothing is written.
#[test]
fn a_matrix_becomes_zeros_and_what_lies_around_its_rows_stays() {
    let Some(handle) = handle() else { return };
    for (dtype, rows, cols, gap, skip) in [
        (DType::Bf16, 7, 33, 0, 0),
        (DType::F16, 7, 33, 5, 1),
        (DType::F32, 300, 129, 3, 3),
        (DType::F32, 1, 129, 3, 1),
        (DType::Bf16, 300, 1, 1, 1),
        (DType::F32, 0, 8, 0, 2),
        (DType::Bf16, 8, 0, 4, 0),
    ] {
        let (size, stride, what) = (dtype.bytes(), cols + gap, format!("{dtype} {rows} x {cols}, {gap} between rows"));
        let poison = vec![POISON; (skip + rows * stride + 9) * size];
        let zeros_from = |skip: usize| {
            let mut want = poison.clone();
            (0..rows).for_each(|row| want[(skip + row * stride) * size..][..cols * size].fill(0));
            want
        };
        let mut x = upload(&handle, &poison);
        let mut inside = x.slice_mut(skip * size..);
        handle
            .zero(&mut MatMut::new(&mut inside, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap())
            .unwrap();
        assert!(handle.stream().clone_dtoh(&x).unwrap() == zeros_from(skip), "{what}");

        let mut x = handle.upload(&poison).unwrap();
        let graph = capture_owned(&handle, || {
            handle.zero(&mut MatMut::new(&mut x, dtype, rows, cols)?.with_row_stride(stride)?)
        });
        let graph = graph.unwrap();
        assert!(handle.read_bytes(&x.view()).unwrap() == poison, "{what}, captured");
        for _ in 0..2 {
            handle.write(&mut x.view_mut(), &poison).unwrap();
            handle.launch(&graph).unwrap();
            assert!(handle.read_bytes(&x.view()).unwrap() == zeros_from(0), "{what}, launched");
        }
    }
}

/// Codes, scales and block scales of `count` rows from row `from` on, which begins a tile of 128.
fn parts_of(q: &HostQuantMatrix, from: usize, count: usize) -> (Vec<u8>, Vec<u32>, Vec<u8>) {
    let (scheme, rows) = (q.scheme(), q.rows());
    let row = q.logical_codes().len() / rows;
    let codes = q.logical_codes()[from * row..(from + count) * row].to_vec();
    let ([_, across], tall) = (scheme.scale_grid(rows, K), scheme.spec().group_rows.size(rows));
    let scales = &q.logical_scales()[from / tall * across..(from + count).div_ceil(tall) * across];
    let [_, blocks] = scheme.block_grid(rows, K);
    let block_scales = q.logical_block_scales()[from * blocks..(from + count) * blocks].to_vec();
    (codes, scales.iter().map(|scale| scale.to_bits()).collect(), block_scales)
}

/// One cast of the whole padded buffer, behind zeros for what lies between: of each group the bytes that the reference gives for its rows
/// alone, whatever the counts of a launch are.
#[test]
fn casts_behind_zeros_between_groups_are_those_of_each_group() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let (rows, starts) = (ROOM.iter().sum::<usize>(), starts());
    let places = handle.upload(&starts.map(|start| start as i64)).unwrap();
    const LEVEL: f32 = 90.0;
    let level = handle.upload(&[LEVEL]).unwrap();
    let mut rng = Noise::new(53);
    for format in Fp8Format::ALL {
        for scheme in [
            Scheme::Fp8Group128x128(format),
            Scheme::Fp8Group1x128(format),
            Scheme::Fp8Row(format),
            Scheme::Mxfp8(format),
            Scheme::Mxfp4,
            Scheme::Nvfp4Row,
            Scheme::Nvfp4,
        ] {
            // The second level of nvfp4 is that of all rows: given, so that it is no matter of the other groups.
            let given = scheme == Scheme::Nvfp4;
            let mut tokens = handle.alloc(rows * K * 2).unwrap();
            let mut counts = handle.upload(&[0i64; EXPERTS]).unwrap();
            let mut clamped = handle.upload(&[77u32]).unwrap();
            let mut q = QuantMatrix::zeros(&handle, scheme, rows, K).unwrap();
            let graph = capture_owned(&handle, || {
                let groups = GroupedRows::Contiguous { starts: places.view(), counts: counts.view() };
                let mut x = MatMut::new(&mut tokens, DType::Bf16, rows, K)?;
                handle.clear_between_groups(&mut x, EXPERTS, &groups, Some(&mut clamped.view_mut()))?;
                let x = MatRef::new(&tokens, DType::Bf16, rows, K)?;
                if given {
                    let amax = GivenScale::Amax(level.view());
                    return handle.quantize_nvfp4_into(&x, Recipe::new(scheme), &amax, QuantizeTo::Plain(&mut q));
                }
                handle.quantize_into(&x, Recipe::new(scheme), QuantizeTo::Plain(&mut q))
            });
            let graph = graph.unwrap();
            for found in [[100, 256, 0, 133, 1], [0; EXPERTS], ROOM, [1, 2, 128, 300, 77]] {
                let mut x = spread(&mut rng, rows, K, DType::Bf16);
                for (g, (start, count)) in starts.into_iter().zip(found).enumerate() {
                    // Larger than all numbers of a group, and a number: it would decide scales.
                    x.slice_mut(s![start + count..start + ROOM[g], ..]).fill(3e38);
                }
                handle.write(&mut tokens.view_mut(), &bytes_of(DType::Bf16, x.iter())).unwrap();
                handle.write(&mut counts.view_mut(), &found.map(|count| count as i64)).unwrap();
                handle.launch(&graph).unwrap();
                let got = q.to_host(&handle).unwrap();
                for (start, count) in starts.into_iter().zip(found).filter(|(_, count)| *count > 0) {
                    let own = x.slice(s![start..start + count, ..]);
                    let want = match given {
                        true => {
                            let amax = GivenScale::Amax(LEVEL);
                            reference::quantize_with_scale(own, DType::Bf16, Recipe::new(scheme), amax)
                        }
                        false => reference::quantize(own, DType::Bf16, Recipe::new(scheme)),
                    };
                    let want = want.unwrap();
                    let same = parts_of(&got, start, count) == parts_of(&want, 0, count);
                    assert!(same, "{scheme}, counts {found:?}, the {count} rows from {start} on");
                }
                assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [0], "{scheme}, counts {found:?}");
            }
        }
    }
}

/// Each slot to a transpose of its own, whatever it is cast to: the bytes that the reference gives for the slot alone.
#[test]
fn slots_are_cast_to_transposes_of_their_own() {
    let Some(handle) = handle() else { return };
    let (slot, groups, cols) = (144, 3, 272);
    let mut rng = Noise::new(54);
    // One row more than the slots have.
    let x = spread(&mut rng, groups * slot + 1, cols, DType::Bf16);
    let there = handle.upload(&bytes_of(DType::Bf16, &x)).unwrap();
    let matrix = MatRef::new(&there, DType::Bf16, groups * slot + 1, cols).unwrap();
    for scheme in Scheme::ALL {
        let recipe = Recipe::new(scheme);
        let mut slots: Vec<_> = (0..groups).map(|_| poisoned_matrix(&handle, scheme, cols, slot)).collect();
        handle.quantize_slots_transposed_into(&matrix, recipe, &mut slots).unwrap();
        let want = |x: &ndarray::Array2<f32>, g: usize| {
            reference::quantize_transposed(x.slice(s![g * slot..(g + 1) * slot, ..]), DType::Bf16, recipe).unwrap()
        };
        for (g, got) in slots.iter().enumerate() {
            assert_device_bits(&handle, got, &want(&x, g), &format!("{scheme}, slot {g}"));
        }
        // A graph follows what the slots hold.
        let other = spread(&mut rng, groups * slot + 1, cols, DType::Bf16);
        let mut changing = handle.upload(&bytes_of(DType::Bf16, &x)).unwrap();
        let graph = capture_owned(&handle, || {
            let matrix = MatRef::new(&changing, DType::Bf16, groups * slot + 1, cols)?;
            handle.quantize_slots_transposed_into(&matrix, recipe, &mut slots)
        });
        let graph = graph.unwrap();
        handle.write(&mut changing.view_mut(), &bytes_of(DType::Bf16, &other)).unwrap();
        handle.launch(&graph).unwrap();
        for (g, got) in slots.iter().enumerate() {
            assert_device_bits(&handle, got, &want(&other, g), &format!("{scheme}, slot {g}, captured"));
        }
    }
    let zeros = |rows, cols| QuantMatrix::zeros(&handle, Scheme::Nvfp4Row, rows, cols).unwrap();
    let refused = |into: &mut [QuantMatrix], words: &[&str]| {
        let text = handle.quantize_slots_transposed_into(&matrix, Recipe::new(Scheme::Nvfp4Row), into);
        let text = text.unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    refused(&mut [zeros(cols, 160), zeros(cols, 144)], &["433 rows", "2 slots of 160"]);
    refused(&mut [zeros(cols, 160), zeros(cols, 160), zeros(cols, 160)], &["433 rows", "3 slots of 160"]);
    refused(&mut [zeros(cols - 16, 144)], &["256 x 144", "272"]);
    let half_a_block = QuantMatrix::zeros(&handle, Scheme::Nvfp4Row, cols, 136).map(drop).unwrap_err().to_string();
    assert!(half_a_block.contains("136") && half_a_block.contains("multiple of 16"), "{half_a_block}");
    handle.synchronize().unwrap();
}
