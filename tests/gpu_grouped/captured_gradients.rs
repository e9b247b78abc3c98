//! Gradients of activations in a captured graph.

use crate::common::*;
use crate::grouped::*;
use scaled_gemm::reference::{GroupedInput, GroupedView, quantize_grouped};
use scaled_gemm::{
    ActivationGradient, DType, Fp8Format, GroupedDeviceLayout, GroupedLayout, GroupedRecipe, GroupedScheme,
    GroupedSource, GroupedTo, Handle, KernelFamily,
};

/// Of every activation one graph, launched with other numbers, members of other shapes, and with those of the gradient and of x in other places, each time: a graph that kept any of these would have the bytes of an
/// earlier launch.
#[test]
fn gradients_are_captured() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    // Members that each block adds up itself, and those that a plan goes before.
    for (count, length) in [(70, 40_000), (600, 400_000)] {
        for of in GRADIENTS {
            captured_of(&handle, of, count, length);
        }
    }
}

fn captured_of(handle: &Handle, of: ActivationGradient, count: usize, length: usize) {
    let (g_type, x_type, scheme) = (DType::Bf16, DType::F16, GroupedScheme::new(Fp8Format::E5M2));
    let planned = GroupedLayout::new(&vec![[0, 0]; count], &vec![0; count], length).unwrap();
    let [mut places, mut x_places] = [(); 2].map(|()| GroupedDeviceLayout::from_host(handle, &planned).unwrap());
    let mut got = [scheme, scheme.transposed()].map(|scheme| poisoned_grouped(handle, scheme, &places));
    let [mut g, mut x] = [g_type, x_type].map(|dtype| handle.alloc(length * dtype.bytes()).unwrap());
    let mut amax = handle.alloc(count * 4).unwrap();
    let graph = capture_owned(handle, || {
        let source = GroupedSource::new(&g, g_type)?.of_activation(of, &x, x_type, &x_places)?;
        let [rows, cols] = &mut got;
        let both = GroupedTo::Both(rows, cols);
        handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), both, Some(&mut amax.view_mut()))
    });
    let graph = graph.unwrap();
    for (round, shapes) in [many(count), vec![[0, 5]; count], vec![[13, 41]; count], many(count)].iter().enumerate() {
        let [layout, x_layout] = [1 + 6 * round, 2 + 3 * round].map(|first| {
            let offsets: Vec<_> = with_gaps(shapes, first).members().iter().map(|member| member.offset()).collect();
            GroupedLayout::new(shapes, &offsets, length).unwrap()
        });
        places.write(handle, &layout).unwrap();
        x_places.write(handle, &x_layout).unwrap();
        let (g_values, x_values) =
            (values(&layout, g_type, round as u64), values(&x_layout, x_type, 90 + round as u64));
        handle.write(&mut g.view_mut(), &bytes_of(g_type, &g_values)).unwrap();
        handle.write(&mut x.view_mut(), &bytes_of(x_type, &x_values)).unwrap();
        for tensor in &mut got {
            handle.write(&mut tensor.codes_mut(), &vec![POISON; length]).unwrap();
        }
        handle.launch(&graph).unwrap();
        let views = [(&layout, &g_values), (&x_layout, &x_values)].map(|(at, of)| GroupedView::new(at, of).unwrap());
        let input = GroupedInput::activation_gradient(of, views[0], views[1]).unwrap();
        let (want, want_amax) = quantize_grouped(&input, GroupedRecipe::new(scheme)).unwrap();
        let what = format!("{of}, {count} members, launch {round}");
        assert_tensor(handle, &got[0], &want, &what);
        assert_tensor(handle, &got[1], &want.transpose(), &what);
        assert_floats(&handle.read::<f32>(&amax.view()).unwrap(), &want_amax, &what);
        assert_eq!(places.clamped(handle).unwrap(), 0, "{what}");
    }
}
