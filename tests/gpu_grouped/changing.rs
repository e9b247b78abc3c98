//! Delayed scaling in one captured graph whose members have other extents and places at each launch: emptied for as long as the window and longer, filled again, and told by numbers that make no
//! sense. Codes, decode factors, amax, factors and history have the bits of the reference, step by step.

use crate::common::*;
use crate::grouped::*;
use crate::planned;
use ndarray::Array2;
use scaled_gemm::reference::{
    self, GroupedInput, GroupedView, delayed_update_grouped, quantize_grouped, quantize_grouped_with_scales,
};
use scaled_gemm::{
    ActivationGradient, AmaxHistory, DType, DelayedScaling, DeviceBuffer, Fp8Format, GivenScale, GroupedDeviceLayout,
    GroupedLayout, GroupedRecipe, GroupedScales, GroupedScheme, GroupedSource, GroupedTo, Handle, KernelFamily,
};

/// Steps of a history.
const WINDOW: usize = 3;
/// More of them without any element than a window has.
const NONE: std::ops::RangeInclusive<usize> = 3..=6;
/// Rows that are negative, and more than lie there.
const NONSENSE: usize = 8;
const STEPS: usize = 10;

/// Each half is empty once while the other is not, then all are, then a third is filled again, and all are.
fn shapes(count: usize, step: usize) -> Vec<[usize; 2]> {
    let shape = |t: usize| {
        let empty = match step {
            1 | 2 => t % 2 == step - 1,
            7 => !t.is_multiple_of(3),
            _ => NONE.contains(&step),
        };
        match empty {
            true => [[0, 16], [3, 0], [0, 0]][(t + step) % 3],
            false => [1 + (t + step) % 5, [16, 1, 32, 7][(t + 3 * step) % 4]],
        }
    };
    (0..count).map(shape).collect()
}

/// Where the members of a step lie, in a buffer of this length; `first` and `step` move all of them.
fn layout(shapes: &[[usize; 2]], first: usize, length: usize) -> GroupedLayout {
    let offsets: Vec<_> = with_gaps(shapes, first).members().iter().map(|member| member.offset()).collect();
    GroupedLayout::new(shapes, &offsets, length).unwrap()
}

/// Those of a step, smaller from step to step, so that an amax of the past counts; one that all share is finite.
fn numbers(layout: &GroupedLayout, dtype: DType, seed: u64, step: usize, scales: GroupedScales) -> Vec<f32> {
    let smaller =
        |v: f32| if v.is_infinite() && scales == GroupedScales::Shared { 9.0 } else { v * 0.5f32.powi(step as i32) };
    values(layout, dtype, seed + step as u64).into_iter().map(|v| round_to(dtype, smaller(v))).collect()
}

#[test]
fn captured_steps_of_members_that_come_and_go() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let (e4m3, e5m2) = (GroupedScheme::new(Fp8Format::E4M3), GroupedScheme::new(Fp8Format::E5M2));
    let silu = Some(ActivationGradient::Silu);
    // Members that each block adds up itself, and those that a plan goes before.
    for (count, length) in [(0, 16), (1, 400), (70, 40_000), (600, 400_000)] {
        for (scheme, of, rule) in [
            (e4m3, None, AmaxHistory::Max),
            (e4m3.shared(), None, AmaxHistory::MostRecent),
            (e5m2, silu, AmaxHistory::Max),
            (e5m2.shared(), Some(ActivationGradient::SquaredRelu), AmaxHistory::Max),
            (e5m2, Some(ActivationGradient::Relu), AmaxHistory::MostRecent),
            (e5m2, Some(ActivationGradient::Gelu), AmaxHistory::MostRecent),
            (e4m3, Some(ActivationGradient::QuickGelu), AmaxHistory::Max),
        ] {
            check(&handle, (count, length), scheme, of, DelayedScaling::new(WINDOW, 1, rule).unwrap());
        }
    }
}

fn check(
    handle: &Handle,
    (count, length): (usize, usize),
    scheme: GroupedScheme,
    of: Option<ActivationGradient>,
    scaling: DelayedScaling,
) {
    const TYPES_OF: [DType; 2] = [DType::Bf16, DType::F16];
    let scales = scheme.scales().count(count);
    let none = GroupedLayout::new(&vec![[0, 0]; count], &vec![0; count], length).unwrap();
    let [mut places, mut x_places] = [(); 2].map(|()| GroupedDeviceLayout::from_host(handle, &none).unwrap());
    // By given scales both orders at once, and by current ones, of which each launch finds an amax of its own.
    let mut got = [scheme, scheme.transposed(), scheme].map(|scheme| poisoned_grouped(handle, scheme, &places));
    let [mut g, mut x]: [DeviceBuffer; 2] = TYPES_OF.map(|dtype| handle.alloc(length * dtype.bytes()).unwrap());
    let (mut want, mut factors) = (Array2::<f32>::zeros((WINDOW, scales)), vec![1.0f32; scales]);
    let (mut history, mut encode) = (handle.alloc(WINDOW * scales * 4).unwrap(), handle.upload(&factors).unwrap());
    let mut found = handle.alloc(scales * 4).unwrap();
    let graph = capture_owned(handle, || {
        let mut source = GroupedSource::new(&g, TYPES_OF[0])?;
        if let Some(of) = of {
            source = source.of_activation(of, &x, TYPES_OF[1], &x_places)?;
        }
        let [rows, cols, current] = &mut got;
        {
            let (mut past, given) = (history.view_mut(), GivenScale::Encode(encode.view()));
            let (mut amax, both) = (past.part(0..4 * scales)?, GroupedTo::Both(rows, cols));
            handle.quantize_grouped_with_scales_into(&source, scheme, &given, both, Some(&mut amax))?;
        }
        handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), current, Some(&mut found.view_mut()))?;
        handle.delayed_update_grouped_into(&mut history.view_mut(), &mut encode.view_mut(), scheme.format(), scaling)
    });
    let graph = graph.unwrap();
    let mut all_factors = Vec::new();
    for step in 0..STEPS {
        let what = format!("{count} members, {scheme}, {of:?}, {}, step {step}", scaling.rule());
        let mut told = layout(&shapes(count, step), 1 + 6 * step, length);
        places.write(handle, &told).unwrap();
        let mut clamped = 0;
        if step == NONSENSE {
            // As a kernel of others may: rows that are negative, and of values without a second input more than up to the next member.
            let rows = |(t, rows): (usize, usize)| match t % 4 {
                1 => -1,
                2 if of.is_none() => i64::MAX,
                _ => rows as i64,
            };
            let rows: Vec<i64> = told.members().iter().map(|member| member.rows()).enumerate().map(rows).collect();
            let of_all = told.members().iter().zip(&rows);
            let of_all: Vec<_> =
                of_all.map(|(member, rows)| [*rows, member.cols() as i64, member.offset() as i64]).collect();
            (told, clamped) = planned(&of_all, length);
            assert!(clamped > 0 || count < 2, "{what}");
            handle.write(&mut places.rows_mut(), &rows).unwrap();
        }
        let taken: Vec<_> = told.members().iter().map(|member| [member.rows(), member.cols()]).collect();
        let x_told = layout(&taken, 2 + 3 * step, length);
        x_places.write(handle, &x_told).unwrap();
        let g_values = numbers(&told, TYPES_OF[0], 300, step, scheme.scales());
        let x_values = numbers(&x_told, TYPES_OF[1], 400, 0, scheme.scales());
        handle.write(&mut g.view_mut(), &bytes_of(TYPES_OF[0], &g_values)).unwrap();
        handle.write(&mut x.view_mut(), &bytes_of(TYPES_OF[1], &x_values)).unwrap();
        for tensor in &mut got {
            handle.write(&mut tensor.codes_mut(), &vec![POISON; length]).unwrap();
            handle.write(&mut tensor.scales_mut(), &vec![f32::NAN; scales]).unwrap();
        }
        handle.write(&mut found.view_mut(), &vec![7e30f32; scales]).unwrap();
        handle.launch(&graph).unwrap();

        let views = [(&told, &g_values), (&x_told, &x_values)].map(|(at, of)| GroupedView::new(at, of).unwrap());
        let input = match of {
            Some(of) => GroupedInput::activation_gradient(of, views[0], views[1]).unwrap(),
            None => views[0].into(),
        };
        let given = GivenScale::Encode(&factors[..]);
        let (q, raised) = quantize_grouped_with_scales(&input, scheme, given).unwrap();
        assert_tensor(handle, &got[0], &q, &what);
        assert_tensor(handle, &got[1], &q.transpose(), &format!("{what}, transposed"));
        let (current, amax) = quantize_grouped(&input, GroupedRecipe::new(scheme)).unwrap();
        assert_tensor(handle, &got[2], &current, &format!("{what}, current"));
        assert_floats(&handle.read::<f32>(&found.view()).unwrap(), &amax, &format!("amax, {what}"));
        assert_eq!(places.clamped(handle).unwrap(), clamped, "{what}");
        reference::raise_amax(want.row_mut(0).as_slice_mut().unwrap(), &raised).unwrap();
        let (margin, rule) = (scaling.margin(), scaling.rule());
        let next = delayed_update_grouped(want.view_mut(), &factors, scheme.format(), margin, rule).unwrap();
        factors = next.iter().map(|factors| factors.encode).collect();
        assert_floats(&handle.read::<f32>(&encode.view()).unwrap(), &factors, &format!("factors, {what}"));
        let past = handle.read::<f32>(&history.view()).unwrap();
        assert_floats(&past, want.as_slice().unwrap(), &format!("history, {what}"));
        all_factors.push(factors.iter().map(|factor| factor.to_bits()).collect::<Vec<_>>());
    }
    // Whoever had no elements for longer than a window forgot nothing, and what came then counted.
    let [before, last, end] = [NONE.start() - 1, *NONE.end(), STEPS - 1].map(|step| &all_factors[step]);
    assert!(before == last, "{count} members, {scheme}");
    let are_new = last != end && before.iter().any(|factor| *factor != 1f32.to_bits());
    assert!(count == 0 || are_new, "{count} members, {scheme}, {of:?}");
}
