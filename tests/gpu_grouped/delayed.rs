//! Delayed scaling of grouped tensors on the device: factors and history have the bits of the reference, step by step, also in a captured graph.

use crate::common::*;
use crate::grouped::*;
use ndarray::{Array2, ArrayView1};
use scaled_gemm::reference::{self, GroupedView, quantize_grouped_with_scales};
use scaled_gemm::{
    AmaxHistory, DType, DelayedScaling, Fp8Format, GivenScale, GroupedDeviceLayout, GroupedScales, GroupedScheme,
    GroupedSource, Handle, KernelFamily,
};

/// Of every kind that an amax may be, and some that none is.
fn amax(step: usize, t: usize) -> f32 {
    match (step * 5 + t * 3) % 13 {
        0 | 7 => 0.0,
        1 => f32::INFINITY,
        2 => 1e-44,
        3 => f32::NAN,
        4 => -0.0,
        5 => 3e38,
        kind => (1 + (step * 31 + t * 17) % 97) as f32 * 2f32.powi(kind as i32 * 3 - 20),
    }
}

/// Several steps of so many scales.
fn check(handle: &Handle, scales: usize, scaling: DelayedScaling, format: Fp8Format) {
    let (window, margin, rule) = (scaling.window(), scaling.margin(), scaling.rule());
    let mut want = Array2::from_shape_fn((window, scales), |(step, t)| amax(step, t));
    let mut factors: Vec<f32> = (0..scales).map(|t| [1.0, f32::MAX, f32::MIN_POSITIVE, 3.5][t % 4]).collect();
    let mut history = handle.upload(want.as_slice().unwrap()).unwrap();
    let mut encode = handle.upload(&factors).unwrap();
    for step in 0..3 {
        let what = format!("{scales} scales, {window} steps, {rule}, margin {margin}, step {step}");
        let front: Vec<f32> = (0..scales).map(|t| amax(step + 7, t)).collect();
        handle.write(&mut history.view_mut().part(0..4 * scales).unwrap(), &front).unwrap();
        want.row_mut(0).assign(&ArrayView1::from(&front));
        let (mut past, mut now) = (history.view_mut(), encode.view_mut());
        handle.delayed_update_grouped_into(&mut past, &mut now, format, scaling).unwrap();
        let next = reference::delayed_update_grouped(want.view_mut(), &factors, format, margin, rule).unwrap();
        factors = next.iter().map(|factors| factors.encode).collect();
        assert_floats(&handle.read::<f32>(&encode.view()).unwrap(), &factors, &what);
        assert_floats(&handle.read::<f32>(&history.view()).unwrap(), want.as_slice().unwrap(), &what);
    }
}

/// Small, for runs under a sanitizer: more scales than a block has, and more rows than it reads at once.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    check(&handle, 33, DelayedScaling::new(300, 0, AmaxHistory::Max).unwrap(), Fp8Format::E4M3);
}

#[test]
fn histories_of_any_length_and_number() {
    let Some(handle) = handle() else { return };
    for (scales, window) in
        [0, 1, 31, 33, 70, 1000].into_iter().flat_map(|scales| [1, 2, 31, 127, 128, 129, 1024].map(|w| (scales, w)))
    {
        for (rule, margin, format) in
            [(AmaxHistory::Max, 0, Fp8Format::E4M3), (AmaxHistory::MostRecent, -8, Fp8Format::E5M2)]
        {
            check(&handle, scales, DelayedScaling::new(window, margin, rule).unwrap(), format);
        }
    }
}

#[test]
fn refusals() {
    let Some(handle) = handle() else { return };
    let (mut history, mut encode) = (handle.alloc(16 * 70 * 4).unwrap(), handle.alloc(70 * 4).unwrap());
    for window in [15, 17, DelayedScaling::MAX_WINDOW] {
        let scaling = DelayedScaling::new(window, 0, AmaxHistory::Max).unwrap();
        let (mut past, mut now) = (history.view_mut(), encode.view_mut());
        let said = handle.delayed_update_grouped_into(&mut past, &mut now, Fp8Format::E4M3, scaling).unwrap_err();
        assert!(said.to_string().contains(&format!("{window} rows")), "{said}");
    }
}

/// One graph is a step: a cast by the factors that are there, which raises row 0 of the history, and the update. Each launch finds other data, and
/// the factors of the launch before it.
#[test]
fn captured_steps_of_delayed_scaling() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let scaling = DelayedScaling::new(3, 1, AmaxHistory::Max).unwrap();
    let of = GroupedScheme::new(Fp8Format::E4M3);
    for (count, scheme) in [(70, of), (70, of.shared().transposed()), (1000, of), (0, of)] {
        let scales = scheme.scales().count(count);
        let layout = with_gaps(&many(count), 5);
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        let mut data = handle.alloc(layout.buffer_len() * 2).unwrap();
        let mut got = poisoned_grouped(&handle, scheme, &places);
        let (mut want, mut factors) = (Array2::zeros((3, scales)), vec![1.0f32; scales]);
        let (mut history, mut encode) = (handle.alloc(3 * scales * 4).unwrap(), handle.upload(&factors).unwrap());
        let graph = capture_owned(&handle, || {
            {
                let (mut past, given) = (history.view_mut(), GivenScale::Encode(encode.view()));
                let mut amax = past.part(0..4 * scales)?;
                let source = GroupedSource::new(&data, DType::Bf16)?;
                handle.quantize_grouped_with_scales_into(&source, scheme, &given, &mut got, Some(&mut amax))?;
            }
            handle.delayed_update_grouped_into(
                &mut history.view_mut(),
                &mut encode.view_mut(),
                scheme.format(),
                scaling,
            )
        });
        let graph = graph.unwrap();
        for step in 0..6 {
            let what = format!("{count} members, {scheme}, step {step}");
            // Now and then no token at all: nothing is forgotten.
            let none = vec![0.0; layout.buffer_len()];
            let mut x = if step == 3 { none } else { values(&layout, DType::Bf16, step) };
            // One that all share is infinite in each step otherwise, and stays 1.
            let infinite = x.iter_mut().filter(|v| v.is_infinite() && scheme.scales() == GroupedScales::Shared);
            infinite.for_each(|v| *v = 9.0);
            handle.write(&mut data.view_mut(), &bytes_of(DType::Bf16, &x)).unwrap();
            handle.launch(&graph).unwrap();
            let input = GroupedView::new(&layout, &x).unwrap().into();
            let given = GivenScale::Encode(&factors[..]);
            let (q, amax) = quantize_grouped_with_scales(&input, scheme, given).unwrap();
            assert_tensor(&handle, &got, &q, &what);
            reference::raise_amax(want.row_mut(0).as_slice_mut().unwrap(), &amax).unwrap();
            let (margin, rule) = (scaling.margin(), scaling.rule());
            let next = reference::delayed_update_grouped(want.view_mut(), &factors, scheme.format(), margin, rule);
            factors = next.unwrap().iter().map(|factors| factors.encode).collect();
            assert_floats(&handle.read::<f32>(&encode.view()).unwrap(), &factors, &what);
            assert_floats(&handle.read::<f32>(&history.view()).unwrap(), want.as_slice().unwrap(), &what);
        }
        assert!(count == 0 || factors.iter().any(|factor| *factor != 1.0), "{scheme}");
    }
}
