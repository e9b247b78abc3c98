//! Grouped tensors on the device equal the reference byte for byte: members of any shapes and places, every scheme, type and rule, both
//! orders, gradients of activations; gaps are neither read nor written; what a device's numbers may say, and launches that find others.
#![cfg(feature = "cuda")]

#[path = "gpu_grouped/captured_gradients.rs"]
mod captured_gradients;
#[path = "gpu_grouped/changing.rs"]
mod changing;
mod common;
#[path = "gpu_grouped/delayed.rs"]
mod delayed;
#[path = "common/grouped.rs"]
mod grouped;
#[path = "gpu_grouped/second_input.rs"]
mod second_input;

use common::*;
use grouped::*;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::reference::{self, GroupedView, dequantize_grouped, quantize_grouped, quantize_grouped_with_scales};
use scaled_gemm::{
    ActivationGradient, DType, DeviceBuffer, Fp8Format, Fp8Rule, GivenScale, GroupedDeviceLayout, GroupedLayout,
    GroupedRecipe, GroupedScheme, GroupedSource, GroupedTensor, GroupedTo, Handle, KernelFamily, MatRef,
};

/// Small, for runs under a sanitizer: each kernel.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    let shapes = &SHAPES[..9];
    for (dtype, skip) in TYPES.into_iter().flat_map(|dtype| [(dtype, 0), (dtype, 3)]) {
        check_plain(&handle, &with_gaps(shapes, 5), dtype, skip, &plain_recipes()[..2]);
        let schemes = [GroupedScheme::new(Fp8Format::E4M3), GroupedScheme::new(Fp8Format::E5M2).transposed()];
        check_gradient(&handle, ActivationGradient::Silu, &shapes[..6], [dtype, DType::Bf16], [skip, 0], &schemes);
    }
}

/// For runs under a sanitizer: more chunks, tiles and members than blocks, so that each goes from one to the next, and a plan of three
/// rounds.
#[test]
fn more_than_one_for_a_block() {
    let Some(handle) = handle() else { return };
    // Blocks take stretches of many members, and pieces of few ones in turns.
    for count in [2500, 100] {
        let mut shapes = many(count);
        shapes.push([1300, 2048]);
        let layout = with_gaps(&shapes, 5);
        let x = values(&layout, DType::Bf16, 9);
        let data = Values::new(&handle, &x, DType::Bf16, 0);
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        let input = GroupedView::new(&layout, &x).unwrap().into();
        let case = Case { layout: &layout, places: &places, input, source: &|| data.source() };
        let (scheme, what) = (GroupedScheme::new(Fp8Format::E4M3), format!("more than blocks, {count} members"));
        case.current(&handle, GroupedRecipe::new(scheme.transposed()), &what);
        for scheme in [scheme, scheme.transposed()] {
            check_back(&handle, &case.given(&handle, scheme, &what), &what);
        }
    }
}

/// For runs under a sanitizer, too: members that each block adds up itself, of which a thread has two.
#[test]
fn more_than_one_member_for_a_thread() {
    let Some(handle) = handle() else { return };
    let recipes = [GroupedScheme::new(Fp8Format::E4M3), GroupedScheme::new(Fp8Format::E5M2).transposed()];
    check_plain(&handle, &with_gaps(&many(300), 5), DType::Bf16, 0, &recipes.map(GroupedRecipe::new));
}

#[test]
fn members_of_any_number_and_place() {
    let Some(handle) = handle() else { return };
    for shapes in
        [vec![], vec![[3, 16]], vec![[0, 7]], SHAPES.to_vec(), many(70), many(512), many(513), many(1000), many(2049)]
    {
        for layout in layouts(&shapes) {
            for (dtype, skip) in [(DType::Bf16, 0), (DType::F32, 0), (DType::F16, 8), (DType::Bf16, 1)] {
                check_plain(&handle, &layout, dtype, skip, &plain_recipes());
            }
        }
    }
}

#[test]
fn every_rule() {
    let Some(handle) = handle() else { return };
    let of = |recipe: GroupedRecipe| {
        let rules = Fp8Rule::ALL.into_iter().filter(move |rule| rule.has(recipe.scheme().format()));
        rules.map(move |rule| recipe.with_rule(rule))
    };
    let exact: Vec<_> = plain_recipes().into_iter().flat_map(of).collect();
    let recipes: Vec<_> = exact.iter().flat_map(|recipe| [*recipe, recipe.power_of_two()]).collect();
    check_plain(&handle, &with_gaps(&SHAPES, 5), DType::Bf16, 0, &recipes);
}

/// Numbers that no rule makes, on elements that are not all finite.
#[test]
fn extreme_given_scales() {
    let Some(handle) = handle() else { return };
    let extremes = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -2.0, 1e-40, -1e-40, 2e-39, f32::MAX, 1e38];
    let shapes = [[3, 16]; 11];
    let layout = with_gaps(&shapes, 3);
    for dtype in TYPES {
        let mut x = values(&layout, dtype, 3);
        for member in layout.members() {
            let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            member.range().zip(special).for_each(|(at, value)| x[at] = value);
        }
        let data = Values::new(&handle, &x, dtype, 0);
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        let input = GroupedView::new(&layout, &x).unwrap().into();
        let case = Case { layout: &layout, places: &places, input, source: &|| data.source() };
        for scheme in GroupedScheme::all() {
            for first in 0..extremes.len() {
                let count = scheme.scales().count(shapes.len());
                let numbers: Vec<f32> = (0..count).map(|t| extremes[(first + t) % extremes.len()]).collect();
                case.given_numbers(&handle, scheme, &numbers, &format!("{dtype}, from {:e} on", numbers[0]));
            }
        }
    }
}

/// More than blocks have parts, members that many blocks share, and a maximum at either end of one.
#[test]
fn large_members() {
    let Some(handle) = handle() else { return };
    let shapes = [[1, 5], [3001, 1000], [0, 3], [777, 2048], [1, 3_000_001], [600_000, 1], [64, 64]];
    // The first has more than an amax pass leaves in the L2 cache (KEPT_BYTES in kernels/cast/tile.cuh).
    let more = [&shapes[..], &[[5000, 1000]]].concat();
    let forms =
        [(with_gaps(&more, 3), DType::Bf16, 0), (GroupedLayout::aligned(&shapes, 128).unwrap(), DType::Bf16, 0)];
    let others = [(with_gaps(&shapes, 3), DType::F32, 0), (with_gaps(&shapes, 3), DType::Bf16, 1)];
    for (layout, dtype, skip) in forms.into_iter().chain(others) {
        let mut x = values(&layout, dtype, 5);
        for (t, member) in layout.members().iter().enumerate().filter(|(_, member)| member.elements() > 0) {
            let at = if t % 2 == 0 { member.range().end - 1 } else { member.offset() };
            x[at] = 8192.0 * (1 + t % 4) as f32;
        }
        let data = Values::new(&handle, &x, dtype, skip);
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        let input = GroupedView::new(&layout, &x).unwrap().into();
        let case = Case { layout: &layout, places: &places, input, source: &|| data.source() };
        let scheme = GroupedScheme::new(Fp8Format::E4M3);
        for scheme in [scheme, scheme.shared()] {
            case.current(&handle, GroupedRecipe::new(scheme), "large");
            check_back(&handle, &case.given(&handle, scheme.transposed(), "large"), "large");
            check_back(&handle, &case.given(&handle, scheme, "large"), "large");
        }
    }
}

/// The plan takes a thousand rounds.
#[test]
fn a_million_members() {
    let Some(handle) = handle() else { return };
    let shapes: Vec<_> = (0..1 << 20).map(|t| if t % 5 == 0 { [0, 4] } else { [1 + t % 2, 1 + t % 3] }).collect();
    let layout = GroupedLayout::packed(&shapes).unwrap();
    check_plain(&handle, &layout, DType::Bf16, 0, &plain_recipes()[..1]);
}

#[test]
fn gradients_of_every_activation_and_type() {
    let Some(handle) = handle() else { return };
    let e4m3 = GroupedScheme::new(Fp8Format::E4M3);
    for of in GRADIENTS {
        for g_type in TYPES {
            for x_type in TYPES {
                check_gradient(&handle, of, &SHAPES, [g_type, x_type], [0, 0], &[e4m3, e4m3.transposed()]);
            }
        }
        let schemes: Vec<_> = GroupedScheme::all().collect();
        check_gradient(&handle, of, &many(70), [DType::Bf16, DType::F32], [1, 3], &schemes);
    }
}

/// Of more members than blocks find themselves, so that a plan goes before: of numbers that are not all zeros, for each activation, types and offsets in turns.
#[test]
fn gradients_of_many_members() {
    let Some(handle) = handle() else { return };
    let schemes: Vec<_> = GroupedScheme::all().collect();
    for (at, of) in GRADIENTS.into_iter().enumerate() {
        let [g_type, x_type] = [TYPES[at % 3], TYPES[(at + at / 3 + 1) % 3]];
        let some: Vec<_> = (0..4).map(|way| schemes[(at * 3 + way * 5) % schemes.len()]).collect();
        check_gradient(&handle, of, &many([513, 1000, 600][at % 3]), [g_type, x_type], [at % 4, at * 3 % 4], &some);
    }
}

/// What the device is to make of any numbers: shapes and offsets that a layout may have, and how many were not taken as they are.
fn planned(numbers: &[[i64; 3]], length: usize) -> (GroupedLayout, usize) {
    let (mut shapes, mut offsets, mut clamped) = (Vec::new(), Vec::new(), 0);
    let (mut largest, length_i) = (0, length as i64);
    for (t, [rows, cols, offset]) in numbers.iter().copied().enumerate() {
        let end = numbers.get(t + 1).map_or(length_i, |next| next[2].clamp(0, length_i));
        let valid = rows >= 0 && cols >= 0 && (largest..=length_i).contains(&offset);
        largest = largest.max(offset.clamp(0, length_i));
        let fitting = match valid && rows > 0 && cols > 0 {
            true => rows.min((end - offset).max(0) / cols),
            false => 0,
        };
        clamped += usize::from(!valid || (rows > 0 && cols > 0 && fitting < rows));
        shapes.push(if fitting > 0 { [fitting as usize, cols as usize] } else { [0, 0] });
        offsets.push(largest as usize);
    }
    (GroupedLayout::new(&shapes, &offsets, length).unwrap(), clamped)
}

fn column(numbers: &[[i64; 3]], at: usize) -> Vec<i64> {
    numbers.iter().map(|member| member[at]).collect()
}

#[test]
fn any_numbers_on_the_device() {
    let Some(handle) = handle() else { return };
    const M: i64 = i64::MAX;
    let length = 4000;
    let cases: &[&[[i64; 3]]] = &[
        &[[3, 16, 0], [4, 10, 48], [2, 5, 88]],
        // Past the end, past the next, longer than all, and products that no 64 bits hold.
        &[[10, 500, 0]],
        &[[10, 10, 0], [5, 10, 50], [3, 7, 100]],
        &[[M, 1, 0], [M, M, 3000], [1, M, 3001], [M, 0, 3002], [0, M, 3003], [M, 7, 3004]],
        &[[1 << 32, 1 << 32, 0], [1 << 62, 4, 1000], [2, 3, 2000]],
        // Negative, also where the product is not.
        &[[-1, -1, 0], [-3, 5, 10], [5, i64::MIN, 20], [2, 5, 30], [2, 5, -40], [2, 5, 60], [i64::MIN, i64::MIN, 70]],
        // Below earlier ones: [50, 200) would be in the first.
        &[[10, 10, 0], [1, 1, 100], [15, 10, 50], [2, 3, 200]],
        &[[1, 1, M], [5, 5, 0], [1, 1, 3999]],
        &[[0, 5, 4000], [0, 5, 4001], [1, 1, 4000]],
        &[[2, 5, 3990], [1, 1, 4000]],
        &[[i64::MIN, M, i64::MIN], [M, M, M]],
    ];
    let many = |count: usize| -> Vec<[i64; 3]> {
        (0..count).map(|t| [[1, 3, -2, M][t % 4], [1, 2, 5][t % 3], t as i64 * 2 - (t % 11) as i64]).collect()
    };
    for numbers in cases.iter().map(|case| case.to_vec()).chain([many(300), many(1001), many(3000)]) {
        let (layout, clamped) = planned(&numbers, length);
        let upload_column = |at| handle.upload(&column(&numbers, at)).unwrap();
        let [rows, cols, offsets] = [0, 1, 2].map(upload_column);
        let places = GroupedDeviceLayout::from_parts(&handle, rows, cols, offsets, length).unwrap();
        assert_eq!(places.to_host(&handle).is_err(), clamped > 0, "{numbers:?}");
        let x = values(&layout, DType::Bf16, 9);
        let data = Values::new(&handle, &x, DType::Bf16, 0);
        let input = GroupedView::new(&layout, &x).unwrap().into();
        for scheme in GroupedScheme::all() {
            let what = format!("{:?}, {scheme}", &numbers[..numbers.len().min(9)]);
            let (want, want_amax) = quantize_grouped(&input, GroupedRecipe::new(scheme)).unwrap();
            let mut amax = handle.alloc(want_amax.len() * 4).unwrap();
            let mut got = poisoned_grouped(&handle, scheme, &places);
            let recipe = GroupedRecipe::new(scheme);
            handle.quantize_grouped_into(&data.source(), recipe, &mut got, Some(&mut amax.view_mut())).unwrap();
            assert_tensor(&handle, &got, &want, &what);
            assert_floats(&handle.read::<f32>(&amax.view()).unwrap(), &want_amax, &what);
            assert_eq!(places.clamped(&handle).unwrap(), clamped, "{what}");

            let mut y = handle.upload(&vec![POISON; length * 4]).unwrap();
            handle.dequantize_grouped_into(&got, &mut y.view_mut(), DType::F32).unwrap();
            let back = handle.read::<f32>(&y.view()).unwrap();
            let poison = f32::from_le_bytes([POISON; 4]);
            let mut expected = vec![poison; length];
            let want_back = dequantize_grouped(&want, DType::F32);
            layout.members().iter().for_each(|m| expected[m.range()].copy_from_slice(&want_back[m.range()]));
            assert_same_values(&back, &expected, 1, &what);
        }
    }
}

/// Rows that the second input has no room for are left out; of few members, and of more than a block adds up itself.
#[test]
fn any_numbers_of_a_second_input() {
    let Some(handle) = handle() else { return };
    // Behind the four, members without elements.
    for empty in [0, 300, 1100] {
        let with_empty = |four: [[usize; 2]; 4]| [four.to_vec(), vec![[0, 10]; empty]].concat();
        let from = |four: [usize; 4], end: usize| [four.to_vec(), vec![end; empty]].concat();
        let (shapes, offsets) = (with_empty([[4, 10]; 4]), from([0, 40, 80, 120], 200));
        let layout = GroupedLayout::new(&shapes, &offsets, 200).unwrap();
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        // Room for two rows and a part of one, for none, before the start, for one row.
        let x_offsets: Vec<i64> = from([0, 25, 20, 85], 100).iter().map(|at| *at as i64).collect();
        let x_rows = handle.upload(&vec![-1i64; shapes.len()]).unwrap();
        let x_cols = handle.upload(&vec![i64::MAX; shapes.len()]).unwrap();
        let x_places =
            GroupedDeviceLayout::from_parts(&handle, x_rows, x_cols, handle.upload(&x_offsets).unwrap(), 100).unwrap();
        // Rows of each: to 25, to 20 (none), to 85 (all four), to 100.
        let taken = with_empty([[2, 10], [0, 10], [4, 10], [1, 10]]);
        let x_taken = GroupedLayout::new(&taken, &from([0, 20, 20, 85], 100), 100).unwrap();
        let taken = GroupedLayout::new(&taken, &offsets, 200).unwrap();
        let (g, x) = (values(&taken, DType::Bf16, 1), values(&x_taken, DType::F16, 2));
        let (g_data, x_data) = (Values::new(&handle, &g, DType::Bf16, 0), Values::new(&handle, &x, DType::F16, 0));
        let views = [GroupedView::new(&taken, &g).unwrap(), GroupedView::new(&x_taken, &x).unwrap()];
        for of in GRADIENTS {
            let input = reference::GroupedInput::activation_gradient(of, views[0], views[1]).unwrap();
            for scheme in GroupedScheme::all() {
                let what = format!("{of}, {scheme}, {empty} without elements");
                let recipe = GroupedRecipe::new(scheme);
                let (want, _) = quantize_grouped(&input, recipe).unwrap();
                let mut got = poisoned_grouped(&handle, scheme, &places);
                let source = g_data.source().of_activation(of, x_data.bytes(), DType::F16, &x_places).unwrap();
                handle.quantize_grouped_into(&source, recipe, &mut got, None).unwrap();
                assert_tensor(&handle, &got, &want, &what);
                assert_eq!(places.clamped(&handle).unwrap(), 3, "{what}");
            }
        }
    }
}

/// Members behind 2^31 elements, in the longest buffer in which blocks find members themselves, and behind 2^32 in a longer one.
#[test]
fn places_that_32_bits_hardly_hold() {
    let Some(handle) = handle() else { return };
    let total = handle.stream().context().mem_get_info().unwrap().1;
    if total < 32 << 30 {
        println!("skipped: {total} bytes of device memory, 32 GiB are wanted");
        return;
    }
    let shapes = [[3, 16], [65, 100], [0, 7], [40, 129], [70, 64], [1, 5]];
    let small = GroupedLayout::packed(&shapes).unwrap();
    let x = values(&small, DType::Bf16, 21);
    let input = GroupedView::new(&small, &x).unwrap().into();
    for (length, second) in [(0xFFFF_0000, (1 << 31) - 100), ((1 << 32) + 30_000, (1 << 32) - 200)] {
        // The last ends where the buffer does; one lies across 2^31, or 2^32.
        let offsets = [8, second, second + 6500, second + 7003, length - 4490, length - 5];
        let layout = GroupedLayout::new(&shapes, &offsets, length).unwrap();
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        let mut data = handle.stream().alloc_zeros::<u8>(length * 2).unwrap();
        for scheme in GroupedScheme::all() {
            let what = format!("{length} elements, {scheme}");
            for (far, near) in layout.members().iter().zip(small.members()).filter(|(_, near)| near.elements() > 0) {
                let bytes = bytes_of(DType::Bf16, &x[near.range()]);
                let mut to = data.slice_mut(far.offset() * 2..far.offset() * 2 + bytes.len());
                handle.stream().memcpy_htod(&bytes, &mut to).unwrap();
            }
            let (want, _) = quantize_grouped(&input, GroupedRecipe::new(scheme)).unwrap();
            let mut got = GroupedTensor::zeros(&handle, scheme, places.share().unwrap()).unwrap();
            let source = GroupedSource::new(&data, DType::Bf16).unwrap();
            handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), &mut got, None).unwrap();
            assert_floats(&handle.read::<f32>(&got.scales()).unwrap(), want.scales(), &what);
            assert_eq!(places.clamped(&handle).unwrap(), 0, "{what}");
            // Back to where the values came from.
            handle.dequantize_grouped_into(&got, &mut (&mut data).into(), DType::Bf16).unwrap();
            let want = dequantize_grouped(&want, DType::Bf16);
            for (far, near) in layout.members().iter().zip(small.members()).filter(|(_, near)| near.elements() > 0) {
                let from = data.slice(far.offset() * 2..(far.offset() + far.elements()) * 2);
                let back = values_of(DType::Bf16, &handle.stream().clone_dtoh(&from).unwrap());
                assert_same_values(&back, &want[near.range()], 1, &format!("{what}, at {}", far.offset()));
            }
        }
    }
}

/// One graph, launched with members of other shapes and places each time.
#[test]
fn captured() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    // Members that each block adds up itself, and those that a plan goes before.
    captured_of(&handle, 70, 40_000);
    captured_of(&handle, 600, 400_000);
}

fn captured_of(handle: &Handle, count: usize, length: usize) {
    let planned = GroupedLayout::new(&vec![[0, 0]; count], &vec![0; count], length).unwrap();
    let mut places = GroupedDeviceLayout::from_host(handle, &planned).unwrap();
    let scheme = GroupedScheme::new(Fp8Format::E4M3);
    let mut got = [scheme, scheme.transposed()].map(|scheme| poisoned_grouped(handle, scheme, &places));
    let mut given = poisoned_grouped(handle, scheme.shared(), &places);
    let mut data = handle.alloc(length * 2).unwrap();
    let scale = handle.upload(&[3.0f32]).unwrap();
    let (mut amax, mut y) = (handle.alloc(count * 4).unwrap(), handle.alloc(length * 4).unwrap());
    let graph = capture_owned(handle, || {
        let source = GroupedSource::new(&data, DType::Bf16)?;
        let [rows, cols] = &mut got;
        let both = GroupedTo::Both(rows, cols);
        handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), both, Some(&mut amax.view_mut()))?;
        let scale = GivenScale::Encode(scale.view());
        handle.quantize_grouped_with_scales_into(&source, scheme.shared(), &scale, &mut given, None)?;
        handle.dequantize_grouped_into(&got[1], &mut y.view_mut(), DType::F32)
    });
    let graph = graph.unwrap();
    for (round, shapes) in [many(count), vec![[0, 5]; count], vec![[13, 41]; count], many(count)].iter().enumerate() {
        let layout = with_gaps(shapes, 1 + 6 * round);
        let layout =
            GroupedLayout::new(shapes, &layout.members().iter().map(|m| m.offset()).collect::<Vec<_>>(), length)
                .unwrap();
        places.write(handle, &layout).unwrap();
        let x = values(&layout, DType::Bf16, round as u64);
        handle.write(&mut data.view_mut(), &bytes_of(DType::Bf16, &x)).unwrap();
        for tensor in got.iter_mut().chain([&mut given]) {
            handle.write(&mut tensor.codes_mut(), &vec![POISON; length]).unwrap();
        }
        handle.write(&mut y.view_mut(), &vec![POISON; length * 4]).unwrap();
        handle.launch(&graph).unwrap();
        let input = GroupedView::new(&layout, &x).unwrap().into();
        let (want, want_amax) = quantize_grouped(&input, GroupedRecipe::new(scheme)).unwrap();
        let what = format!("launch {round}");
        assert_tensor(handle, &got[0], &want, &what);
        assert_tensor(handle, &got[1], &want.transpose(), &what);
        assert_floats(&handle.read::<f32>(&amax.view()).unwrap(), &want_amax, &what);
        let (shared, _) = quantize_grouped_with_scales(&input, scheme.shared(), GivenScale::Encode(&[3.0])).unwrap();
        assert_tensor(handle, &given, &shared, &what);
        assert_eq!(&got[0].to_host(handle).unwrap(), &want, "{what}");
        let back = handle.read::<f32>(&y.view()).unwrap();
        let want_back = dequantize_grouped(&want, DType::F32);
        for member in layout.members() {
            assert_same_values(&back[member.range()], &want_back[member.range()], 1, &what);
        }
    }
}

/// Everything is checked before the first launch: a refused call has set no amax to zero, counted no member and written no code, and of one in a
/// capture nothing is launched.
#[test]
fn refused_calls_leave_no_work_behind() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped, KernelFamily::Fp8]).unwrap();
    let scheme = GroupedScheme::new(Fp8Format::E4M3);
    // Of few members, and of so many that a plan goes before.
    for count in [70, 600] {
        let layout = with_gaps(&many(count), 5);
        let length = layout.buffer_len();
        let mut places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        // Any kernel would count them.
        handle.write(&mut places.rows_mut(), &vec![-1i64; count]).unwrap();
        let before = bytes_of(DType::Bf16, &values(&layout, DType::Bf16, 1));
        let whole = upload(&handle, &before);
        let address = whole.device_ptr(handle.stream()).0;
        // SAFETY: parts of `whole`, which lives to the end of the round, on this handle's stream, which has done its work by then.
        let part = |bytes: usize| unsafe { DeviceBuffer::from_raw(handle.stream(), address, bytes, ()) }.unwrap();
        let (x, mut amax_in_x, apart) = (part(length * 2), part(count * 4), handle.alloc(length * 2).unwrap());
        let (mut y_in_x, factors_in_x) = (part(length * 2), part(count * 4));
        let numbers = |numbers: i64| handle.upload(&vec![numbers; count]).unwrap();
        let x_places =
            GroupedDeviceLayout::from_parts(&handle, numbers(1), numbers(1), part(count * 8), length).unwrap();
        let scales = handle.alloc(count * 4).unwrap();
        let mut in_x = GroupedTensor::from_parts(scheme, places.share().unwrap(), part(length), scales).unwrap();
        let mut out = poisoned_grouped(&handle, scheme, &places);
        let mut amax = handle.upload(&vec![7e30f32; count]).unwrap();
        let mut refused = || {
            let recipe = GroupedRecipe::new(scheme);
            let source = |values| GroupedSource::new(values, DType::Bf16).unwrap();
            let silu = ActivationGradient::Silu;
            let gradient = |x, places| source(&apart).of_activation(silu, x, DType::Bf16, places).unwrap();
            let given = GivenScale::Encode(factors_in_x.view());
            let results = [
                handle.quantize_grouped_into(&source(&x), recipe, &mut out, Some(&mut amax_in_x.view_mut())),
                handle.quantize_grouped_into(&source(&x), recipe, &mut in_x, Some(&mut amax.view_mut())),
                handle.dequantize_grouped_into(&in_x, &mut y_in_x.view_mut(), DType::Bf16),
                // The second input, its offsets, and given scales are read while codes are written, too.
                handle.quantize_grouped_into(&gradient(&x, &places), recipe, &mut in_x, None),
                handle.quantize_grouped_into(&gradient(&apart, &x_places), recipe, &mut in_x, None),
                handle.quantize_grouped_with_scales_into(&source(&apart), scheme, &given, &mut in_x, None),
            ];
            for result in results {
                let said = result.unwrap_err().to_string();
                assert!(said.contains("overlap"), "{said}");
            }
        };
        refused();
        // What the graph holds beside nothing of those.
        let three = handle.upload(&[3.0f32; 16]).unwrap();
        let mut found = handle.alloc(4).unwrap();
        let graph = capture_owned(&handle, || {
            refused();
            handle.amax_into(&MatRef::new(&three, DType::F32, 1, 16)?, &mut found.view_mut())
        });
        let graph = graph.unwrap();
        handle.launch(&graph).unwrap();
        assert_eq!(handle.read::<f32>(&found.view()).unwrap(), [3.0]);
        assert_eq!(places.clamped(&handle).unwrap(), 0, "{count} members");
        assert!(handle.read::<f32>(&amax.view()).unwrap().iter().all(|amax| *amax == 7e30), "{count} members");
        assert!(handle.read_bytes(&out.codes()).unwrap().iter().all(|code| *code == POISON), "{count} members");
        assert!(handle.stream().clone_dtoh(&whole).unwrap() == before, "{count} members");

        // The same call, not refused.
        let source = GroupedSource::new(&apart, DType::Bf16).unwrap();
        let to = Some(&mut amax.view_mut());
        handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), &mut out, to).unwrap();
        assert!(handle.read::<f32>(&amax.view()).unwrap().iter().all(|amax| *amax == 0.0), "{count} members");
        assert_eq!(places.clamped(&handle).unwrap(), count);
    }
}

#[test]
fn refusals() {
    let Some(handle) = handle() else { return };
    let layout = with_gaps(&SHAPES, 5);
    let (length, count) = (layout.buffer_len(), layout.members().len());
    let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
    let scheme = GroupedScheme::new(Fp8Format::E4M3);
    let zeros = |scheme| GroupedTensor::zeros(&handle, scheme, places.share().unwrap()).unwrap();
    let (mut out, mut transposed) = (zeros(scheme), zeros(scheme.transposed()));
    let data = handle.alloc(length * 4).unwrap();
    let source = GroupedSource::new(&data, DType::F32).unwrap();
    let recipe = GroupedRecipe::new(scheme);
    let fails = |result: scaled_gemm::Result<()>, says: &[&str]| {
        let said = result.unwrap_err().to_string();
        assert!(says.iter().all(|part| said.contains(part)), "{said:?} lacks one of {says:?}");
    };

    fails(GroupedSource::new(&data, DType::E4M3).map(drop), &["e4m3", "bf16"]);
    let short = handle.alloc(length * 2 - 1).unwrap();
    let half = GroupedSource::new(&short, DType::Bf16).unwrap();
    fails(handle.quantize_grouped_into(&half, recipe, &mut out, None), &["input", "bytes"]);
    fails(handle.quantize_grouped_into(&source, recipe, &mut transposed, None), &["transposed"]);
    let other = GroupedRecipe::new(GroupedScheme::new(Fp8Format::E5M2));
    fails(handle.quantize_grouped_into(&source, other, &mut out, None), &["e4m3", "e5m2"]);
    let other_places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
    let mut apart = GroupedTensor::zeros(&handle, scheme.transposed(), other_places).unwrap();
    fails(handle.quantize_grouped_into(&source, recipe, GroupedTo::Both(&mut out, &mut apart), None), &["share"]);
    let mut amax = handle.alloc(count * 4 - 4).unwrap();
    fails(handle.quantize_grouped_into(&source, recipe, &mut out, Some(&mut amax.view_mut())), &["11", "12"]);
    let few = GivenScale::Encode(amax.view());
    fails(handle.quantize_grouped_with_scales_into(&source, scheme, &few, &mut out, None), &["11", "12"]);
    let found = GivenScale::Amax(data.view());
    fails(handle.quantize_grouped_with_scales_into(&source, scheme, &found, &mut out, None), &["amax"]);
    // x of another number of members, and of a type that no x has.
    let fewer = GroupedDeviceLayout::from_host(&handle, &GroupedLayout::packed(&SHAPES[1..]).unwrap()).unwrap();
    let of_x = |dtype, places| {
        GroupedSource::new(&data, DType::F32).unwrap().of_activation(ActivationGradient::Relu, &data, dtype, places)
    };
    let gradient = of_x(DType::F32, &fewer).unwrap();
    fails(handle.quantize_grouped_into(&gradient, recipe, &mut out, None), &["members of x", "11", "12"]);
    fails(of_x(DType::E5M2, &fewer).map(drop), &["x of an activation gradient", "e5m2", "bf16"]);
    // The layout is read while the output is written.
    let small = GroupedDeviceLayout::from_host(&handle, &GroupedLayout::packed(&[[1, 4]; 8]).unwrap()).unwrap();
    let of_small = GroupedTensor::zeros(&handle, scheme, small.share().unwrap()).unwrap();
    let mut alias = small.share().unwrap();
    fails(
        handle.dequantize_grouped_into(&of_small, &mut alias.offsets_mut(), DType::Bf16),
        &["output", "overlap", "offsets of the layout"],
    );
    fails(
        handle.dequantize_grouped_into(&of_small, &mut alias.rows_mut(), DType::Bf16),
        &["output", "overlap", "rows of the layout"],
    );
    let mut y = handle.alloc(length * 2 - 2).unwrap();
    fails(handle.dequantize_grouped_into(&out, &mut y.view_mut(), DType::Bf16), &["output", "bytes"]);

    let numbers = |count: usize| handle.alloc(count * 8).unwrap();
    let parts = |rows, cols, offsets, length| {
        GroupedDeviceLayout::from_parts(&handle, numbers(rows), numbers(cols), numbers(offsets), length).map(drop)
    };
    fails(parts(3, 2, 3, 16), &["columns", "16 bytes", "24"]);
    fails(parts(3, 3, 4, 16), &["offsets", "32 bytes"]);
    fails(parts(3, 3, 3, usize::MAX), &["buffer"]);
    let longer =
        GroupedLayout::new(&SHAPES, &layout.members().iter().map(|m| m.offset()).collect::<Vec<_>>(), length + 1);
    let mut places = places;
    fails(places.write(&handle, &longer.unwrap()), &["at most"]);
    fails(places.write(&handle, &GroupedLayout::packed(&SHAPES[1..]).unwrap()), &["11 members", "12 members"]);
    let (codes, scales) = (handle.alloc(length - 1).unwrap(), handle.alloc(count * 4).unwrap());
    let shared = places.share().unwrap();
    fails(GroupedTensor::from_parts(scheme, shared, codes, scales).map(drop), &["codes", "elements of its layout"]);
    handle.synchronize().unwrap();
}
