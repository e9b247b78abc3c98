//! Gradients of activations: of no member, of one, and of a thousand; extents that are the gradient's, whatever is said of x's; x behind places that 32 bits hold.

use crate::common::*;
use crate::grouped::*;
use scaled_gemm::reference::{GroupedInput, GroupedView, quantize_grouped};
use scaled_gemm::{DType, GroupedDeviceLayout, GroupedLayout, GroupedRecipe, GroupedScheme, GroupedSource};

/// Of every activation and scheme, types and offsets in turns.
#[test]
fn gradients_of_none_and_of_one_member() {
    let Some(handle) = handle() else { return };
    let schemes: Vec<_> = GroupedScheme::all().collect();
    for (at, of) in GRADIENTS.into_iter().enumerate() {
        for (turn, shapes) in
            [vec![], vec![[3, 16]], vec![[0, 7]], vec![[1, 1]], vec![[7, 0]], vec![[130, 129]]].iter().enumerate()
        {
            let types = [TYPES[(at + turn) % 3], TYPES[(at + 2 * turn + turn / 3) % 3]];
            check_gradient(&handle, of, shapes, types, [turn % 4, (at + turn) % 3], &schemes);
        }
    }
}

#[test]
fn gradients_of_a_thousand_members() {
    let Some(handle) = handle() else { return };
    let schemes: Vec<_> = GroupedScheme::all().collect();
    for (at, of) in GRADIENTS.into_iter().enumerate() {
        let types = [TYPES[(at + 1) % 3], TYPES[(at + at / 3) % 3]];
        let some: Vec<_> = (0..3).map(|way| schemes[(at * 3 + way * 5 + 1) % schemes.len()]).collect();
        check_gradient(&handle, of, &many(1000), types, [at % 4, at * 3 % 4], &some);
    }
}

/// x is told to be the transpose of what the gradient is, which the host knows, and to have any rows and columns, which the device alone knows: where its members begin is all that counts.
#[test]
fn extents_are_the_gradients_whatever_is_said_of_x() {
    let Some(handle) = handle() else { return };
    let schemes: Vec<_> = GroupedScheme::all().collect();
    for (turn, shapes) in [vec![[65, 12]], SHAPES.to_vec(), many(600)].iter().enumerate() {
        let (layout, x_layout) = (with_gaps(shapes, 5), with_gaps(shapes, 9));
        let offsets: Vec<_> = x_layout.members().iter().map(|member| member.offset()).collect();
        let turned: Vec<_> = shapes.iter().map(|[rows, cols]| [*cols, *rows]).collect();
        assert_ne!(&turned, shapes);
        let turned = GroupedLayout::new(&turned, &offsets, x_layout.buffer_len()).unwrap();
        let on_device = |numbers: &dyn Fn(usize) -> i64| {
            handle.upload(&(0..shapes.len()).map(numbers).collect::<Vec<_>>()).unwrap()
        };
        let rows = on_device(&|t| [0, shapes[t][0] as i64 + 1000, -1, i64::MAX, 1][t % 5]);
        let cols = on_device(&|t| [shapes[t][1] as i64 + 3, 0, i64::MIN, i64::MAX][t % 4]);
        let begins = on_device(&|t| offsets[t] as i64);
        let any = GroupedDeviceLayout::from_parts(&handle, rows, cols, begins, x_layout.buffer_len()).unwrap();
        for (told, x_places) in
            [("turned", GroupedDeviceLayout::from_host(&handle, &turned).unwrap()), ("any numbers", any)]
        {
            for (at, of) in GRADIENTS.into_iter().enumerate() {
                let (g_type, x_type) = (TYPES[(at + turn) % 3], TYPES[(at / 2 + turn) % 3]);
                let (g, x) = (values(&layout, g_type, 81), values(&x_layout, x_type, 82));
                let (g_data, x_data) = (Values::new(&handle, &g, g_type, 0), Values::new(&handle, &x, x_type, at % 2));
                let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
                let views = [(&layout, &g), (&x_layout, &x)].map(|(at, of)| GroupedView::new(at, of).unwrap());
                let input = GroupedInput::activation_gradient(of, views[0], views[1]).unwrap();
                let source = || g_data.source().of_activation(of, x_data.bytes(), x_type, &x_places).unwrap();
                let case = Case { layout: &layout, places: &places, input, source: &source };
                let what = format!("{of}, x {told}, {g_type} and {x_type}");
                for way in 0..3 {
                    let scheme = schemes[(at * 3 + way * 5) % schemes.len()];
                    case.current(&handle, GroupedRecipe::new(scheme), &what);
                    case.given(&handle, scheme, &what);
                }
            }
        }
    }
}

/// Members of x behind 2^31 and 2^32 elements, and across them, and room for one of them that is 0 in 32 bits: of members that blocks find themselves, since the gradient's buffer is short, and of
/// so many that a plan goes before.
#[test]
fn places_of_x_that_32_bits_hardly_hold() {
    let Some(handle) = handle() else { return };
    if !has_free(&handle, 20) {
        return;
    }
    let some = [[3, 16], [65, 100], [0, 7], [40, 129], [70, 64], [1, 5]];
    let (g_type, x_type, length) = (DType::F16, DType::Bf16, (1 << 32) + 30_000);
    let mut x_far = handle.stream().alloc_zeros::<u8>(length * x_type.bytes()).unwrap();
    for empty in [0, 600] {
        let shapes = [some.to_vec(), vec![[0, 3]; empty]].concat();
        let (layout, near) = (with_gaps(&shapes, 5), GroupedLayout::packed(&shapes).unwrap());
        // Slopes are seldom those of the zeros that lie elsewhere.
        let mut noise = Noise::new(32);
        let x: Vec<f32> = (0..near.buffer_len()).map(|_| round_to(x_type, 2.0 * noise.normal())).collect();
        let g = values(&layout, g_type, 31);
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        let data = Values::new(&handle, &g, g_type, 0);
        let views = [(&layout, &g), (&near, &x)].map(|(at, of)| GroupedView::new(at, of).unwrap());
        for (turn, second) in [(1 << 31) - 100, (1 << 32) - 200, (1 << 32) + 8].into_iter().enumerate() {
            // The last ends where the buffer does.
            let offsets = [8, second, second + 6500, second + 7003, length - 4490, length - 5];
            let offsets = [offsets.to_vec(), vec![length; empty]].concat();
            let far = GroupedLayout::new(&shapes, &offsets, length).unwrap();
            let x_places = GroupedDeviceLayout::from_host(&handle, &far).unwrap();
            for (far, near) in far.members().iter().zip(near.members()).filter(|(_, near)| near.elements() > 0) {
                let bytes = bytes_of(x_type, &x[near.range()]);
                let mut to = x_far.slice_mut(far.offset() * 2..far.offset() * 2 + bytes.len());
                handle.stream().memcpy_htod(&bytes, &mut to).unwrap();
            }
            for (at, scheme) in GroupedScheme::all().enumerate() {
                let of = GRADIENTS[(at + turn) % GRADIENTS.len()];
                let what = format!("{of}, {scheme}, x from {second} on, {empty} without elements");
                let input = GroupedInput::activation_gradient(of, views[0], views[1]).unwrap();
                let (want, want_amax) = quantize_grouped(&input, GroupedRecipe::new(scheme)).unwrap();
                let mut got = poisoned_grouped(&handle, scheme, &places);
                let mut amax = handle.upload(&vec![7e30f32; want_amax.len()]).unwrap();
                let source = GroupedSource::new(data.bytes(), g_type).unwrap();
                let source = source.of_activation(of, &x_far, x_type, &x_places).unwrap();
                let recipe = GroupedRecipe::new(scheme);
                handle.quantize_grouped_into(&source, recipe, &mut got, Some(&mut amax.view_mut())).unwrap();
                assert_tensor(&handle, &got, &want, &what);
                assert_floats(&handle.read::<f32>(&amax.view()).unwrap(), &want_amax, &what);
                assert_eq!(places.clamped(&handle).unwrap(), 0, "{what}");
            }
        }
    }
}
