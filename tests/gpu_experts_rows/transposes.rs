//! Transposed casts behind zeros between groups: one of all rows, whose blocks along k are then those of each group alone; and one for each slot.

use ndarray::{Array2, ArrayView2};
use scaled_gemm::Result;

use super::*;

/// Largest magnitude that the one scale of an `nvfp4` matrix is for.
const LEVEL: f32 = 90.0;

/// Tokens and where they lie: between groups is what would decide every scale.
fn tokens(rng: &mut Noise, rows: usize, cols: usize, groups: &[(usize, usize)]) -> (Array2<f32>, Array2<f32>) {
    let all = spread(rng, rows, cols, DType::Bf16);
    let [mut told, mut cleared] = [Array2::from_elem((rows, cols), 3e38), Array2::zeros((rows, cols))];
    for (start, count) in groups {
        let part = s![*start..start + count, ..];
        told.slice_mut(part).assign(&all.slice(part));
        cleared.slice_mut(part).assign(&all.slice(part));
    }
    (told, cleared)
}

/// The reference's transpose; of `nvfp4` with the given second level.
fn turned(x: ArrayView2<'_, f32>, scheme: Scheme) -> HostQuantMatrix {
    let turned = match scheme {
        Scheme::Nvfp4 => {
            let amax = GivenScale::Amax(LEVEL);
            reference::quantize_transposed_with_scale(x, DType::Bf16, Recipe::new(scheme), amax)
        }
        _ => reference::quantize_transposed(x, DType::Bf16, Recipe::new(scheme)),
    };
    turned.unwrap()
}

/// Codes and scales of columns `from..from + count` of a transpose, which begin and end blocks, row by row.
fn columns(q: &HostQuantMatrix, from: usize, count: usize) -> (Vec<u8>, Vec<u32>, Vec<u8>) {
    let (scheme, rows, cols) = (q.scheme(), q.rows(), q.cols());
    let of_each = |all: usize, from: usize, count: usize| {
        (0..rows).flat_map(move |row| row * all + from..row * all + from + count).collect::<Vec<_>>()
    };
    let (bits, codes) = (scheme.spec().code_bits, q.logical_codes());
    let places = of_each(cols * bits / 8, from * bits / 8, count * bits / 8);
    let codes = places.into_iter().map(|at| codes[at]).collect();
    let (all, [_, across], wide) =
        (q.logical_scales(), scheme.scale_grid(rows, cols), scheme.spec().group_cols.size(cols));
    let scales = match scheme {
        Scheme::Nvfp4 => vec![all[0].to_bits()],
        Scheme::Fp8Group1x128(_) => {
            let places = of_each(across, from / wide, count.div_ceil(wide));
            places.into_iter().map(|at| all[at].to_bits()).collect()
        }
        _ => Vec::new(),
    };
    let (all, [_, blocks]) = (q.logical_block_scales(), scheme.block_grid(rows, cols));
    let block_scales = match blocks {
        0 => Vec::new(),
        _ => {
            let wide = cols / blocks;
            let places = of_each(blocks, from / wide, count / wide);
            places.into_iter().map(|at| all[at]).collect()
        }
    };
    (codes, scales, block_scales)
}

/// That one transpose of all rows has in the columns of each group what its rows have alone, and zeros behind them up to the next group.
#[track_caller]
fn assert_groups(q: &HostQuantMatrix, cleared: &Array2<f32>, groups: &[(usize, usize)], what: &str) {
    let (scheme, rows) = (q.scheme(), cleared.nrows());
    let zeros = turned(Array2::zeros((128, cleared.ncols())).view(), scheme);
    for (g, (start, count)) in groups.iter().copied().enumerate() {
        // Rows up to the end of a block are the zeros behind the group.
        let own = count.next_multiple_of(block_of(scheme));
        let alone = turned(cleared.slice(s![start..start + own, ..]), scheme);
        let is_one = own == 0 || columns(q, start, own) == columns(&alone, 0, own);
        assert!(is_one, "{scheme}, {what}, group {g}");
        // Scales of zeros alone are those that zeros have.
        let next = groups.get(g + 1).map_or(rows, |next| next.0);
        for from in (start + count.next_multiple_of(128)..next).step_by(128) {
            assert!(columns(q, from, 128) == columns(&zeros, 0, 128), "{scheme}, {what}: zeros from {from} on");
        }
    }
}

/// The whole padded buffer cleared and cast to its transpose in one graph, by starts: of each group the bytes of its rows alone, and zeros up to the next one; plain beside it in the same pass, too.
#[test]
fn transposes_behind_zeros_between_groups_are_those_of_each_group() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let (rows, starts) = (ROOM.iter().sum::<usize>(), starts());
    let places = handle.upload(&starts.map(|start| start as i64)).unwrap();
    let level = handle.upload(&[LEVEL]).unwrap();
    let mut rng = Noise::new(57);
    let with_formats =
        Fp8Format::ALL.into_iter().flat_map(|format| [Scheme::Mxfp8(format), Scheme::Fp8Group1x128(format)]);
    for scheme in with_formats.chain([Scheme::Mxfp4, Scheme::Nvfp4]) {
        let mut tokens_on = handle.alloc(rows * K * 2).unwrap();
        let mut counts = handle.upload(&[0i64; EXPERTS]).unwrap();
        let mut clamped = handle.upload(&[77u32]).unwrap();
        let mut transposed = [(); 2].map(|()| poisoned_matrix(&handle, scheme, K, rows));
        let mut plain = poisoned_matrix(&handle, scheme, rows, K);
        let mut step = || {
            let groups = GroupedRows::Contiguous { starts: places.view(), counts: counts.view() };
            let mut x = MatMut::new(&mut tokens_on, DType::Bf16, rows, K)?;
            handle.clear_between_groups(&mut x, EXPERTS, &groups, Some(&mut clamped.view_mut()))?;
            let x = MatRef::new(&tokens_on, DType::Bf16, rows, K)?;
            let cast = |to: QuantizeTo<'_>| -> Result<()> {
                if scheme == Scheme::Nvfp4 {
                    return handle.quantize_nvfp4_into(&x, Recipe::new(scheme), &GivenScale::Amax(level.view()), to);
                }
                handle.quantize_into(&x, Recipe::new(scheme), to)
            };
            let [alone, beside] = &mut transposed;
            cast(QuantizeTo::Transposed(alone))?;
            cast(QuantizeTo::Both(&mut plain, beside))
        };
        step().unwrap();
        let graph = capture_owned(&handle, step).unwrap();
        for found in [[100, 256, 0, 133, 1], [0; EXPERTS], ROOM, [1, 2, 128, 300, 77]] {
            let groups: Vec<_> = starts.into_iter().zip(found).collect();
            let (told, cleared) = tokens(&mut rng, rows, K, &groups);
            handle.write(&mut tokens_on.view_mut(), &bytes_of(DType::Bf16, told.iter())).unwrap();
            handle.write(&mut counts.view_mut(), &found.map(|count| count as i64)).unwrap();
            handle.launch(&graph).unwrap();
            assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [0], "{scheme}, counts {found:?}");
            for (q, way) in transposed.iter().zip(["transposed", "both"]) {
                let got = q.to_host(&handle).unwrap();
                assert_groups(&got, &cleared, &groups, &format!("{way}, counts {found:?}"));
                assert_device_bits(&handle, q, &turned(cleared.view(), scheme), &format!("{scheme}, {way}"));
            }
        }
    }
}

/// Rows of a block along a transpose.
fn block_of(scheme: Scheme) -> usize {
    match scheme {
        Scheme::Nvfp4 | Scheme::Nvfp4Row => 16,
        Scheme::Mxfp4 | Scheme::Mxfp8(_) => 32,
        // Of a group that ends before 128 the scale is the same, and codes are cut at any multiple of 16.
        _ => 16,
    }
}

/// Slots cleared behind their counts and cast to transposes of their own, with scales of rows and second levels of their own, too: the bytes of each slot's rows and zeros behind them alone, to whatever
/// it is cast, in a graph whose counts change.
#[test]
fn slots_behind_zeros_are_cast_to_transposes_of_their_own() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let (slot, groups, cols) = (160, 4, 272);
    let mut rng = Noise::new(58);
    for scheme in Scheme::ALL {
        let recipe = Recipe::new(scheme);
        let mut there = handle.alloc(groups * slot * cols * 2).unwrap();
        let mut counts = handle.upload(&[0i64; 4]).unwrap();
        let mut slots: Vec<_> = (0..groups).map(|_| poisoned_matrix(&handle, scheme, cols, slot)).collect();
        let mut step = || {
            let places = GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
            let mut x = MatMut::new(&mut there, DType::Bf16, groups * slot, cols)?;
            handle.clear_between_groups_at(32, &mut x, groups, &places, None)?;
            let x = MatRef::new(&there, DType::Bf16, groups * slot, cols)?;
            handle.quantize_slots_transposed_into(&x, recipe, &mut slots)
        };
        step().unwrap();
        let graph = capture_owned(&handle, step).unwrap();
        for found in [[160usize, 0, 33, 1], [0; 4], [16, 160, 128, 77]] {
            let taken: Vec<_> = found.into_iter().enumerate().map(|(g, count)| (g * slot, count)).collect();
            let (told, cleared) = tokens(&mut rng, groups * slot, cols, &taken);
            handle.write(&mut there.view_mut(), &bytes_of(DType::Bf16, told.iter())).unwrap();
            handle.write(&mut counts.view_mut(), &found.map(|count| count as i64)).unwrap();
            handle.launch(&graph).unwrap();
            for (g, got) in slots.iter().enumerate() {
                let own = cleared.slice(s![g * slot..(g + 1) * slot, ..]);
                let want = reference::quantize_transposed(own, DType::Bf16, recipe).unwrap();
                assert_device_bits(&handle, got, &want, &format!("{scheme}, counts {found:?}, slot {g}"));
            }
        }
    }
}

/// On the CPU: of one transpose of all rows, cleared, the columns of a group are those of its rows alone, and `columns` tells others from them.
#[test]
fn columns_of_a_transpose_are_those_of_each_group() {
    let mut rng = Noise::new(59);
    let (groups, rows) = ([(0, 100), (128, 256), (384, 0), (512, 133), (768, 1)], 896);
    let (_, cleared) = tokens(&mut rng, rows, 64, &groups);
    for scheme in [Scheme::Mxfp8(Fp8Format::E4M3), Scheme::Mxfp4, Scheme::Nvfp4, Scheme::Fp8Group1x128(Fp8Format::E5M2)]
    {
        let all = turned(cleared.view(), scheme);
        assert_groups(&all, &cleared, &groups, "on the CPU");
        for (start, count) in groups.into_iter().filter(|(_, count)| *count > 0) {
            let own = count.next_multiple_of(block_of(scheme));
            let alone = turned(cleared.slice(s![start..start + own, ..]), scheme);
            assert!(columns(&all, (start + 128) % 768, own) != columns(&alone, 0, own), "{scheme}, from {start} on");
        }
    }
}
