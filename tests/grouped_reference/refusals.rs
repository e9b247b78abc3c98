//! What is no grouped tensor, and calls that do not fit: operand, numbers, rule and remedy.

use ndarray::Array2;
use scaled_gemm::reference::{
    GroupedInput, GroupedView, Noise, delayed_update_grouped, quantize_grouped, quantize_grouped_with_scales,
    raise_amax,
};
use scaled_gemm::{
    ActivationGradient, AmaxHistory, Error, Fp8Format, GivenScale, GroupedLayout, GroupedRecipe, GroupedScales,
    GroupedScheme, HostGroupedTensor, Result,
};

use crate::{E4M3, input};

#[track_caller]
fn says<T>(result: Result<T>, text: &str) {
    match result {
        Err(error @ (Error::Shape { .. } | Error::Unsupported { .. })) => assert_eq!(error.to_string(), text),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("not refused: {text}"),
    }
}

/// (f) and (h): products of extents, offsets and ends are checked one by one; nothing that is wrong is taken, and nothing panics.
#[test]
fn layouts_that_are_none_are_refused_in_words() {
    let two = [[2, 8], [3, 8]];
    says(
        GroupedLayout::new(&two, &[0, 16, 40], 40),
        "offsets of a grouped tensor: 3 must be 2, one for each shape; pass where each member begins; the end of the last is no \
         offset, but the length of the buffer: with both in one array, call GroupedLayout::from_offsets",
    );
    says(
        GroupedLayout::new(&two, &[20, 4], 64),
        "member 1 of a grouped tensor, 3 x 8: at offset 4 must not begin before member 0, at 20: offsets do not decrease; list members \
         in the order of their offsets",
    );
    says(
        GroupedLayout::new(&two, &[0, 15], 64),
        "member 1 of a grouped tensor, 3 x 8: at offset 15 must not begin before member 0 ends, at 16; move it behind that; offsets \
         count elements, not bytes",
    );
    let past = "at offset 16 must end within the 39 elements of the buffer; pass the whole buffer; offsets count elements, not bytes";
    says(GroupedLayout::new(&two, &[0, 16], 39), &format!("member 1 of a grouped tensor, 3 x 8: {past}"));
    assert!(GroupedLayout::new(&two, &[0, 16], 40).is_ok());
    // A member without elements has a place too: at the end, not behind it.
    assert!(GroupedLayout::new(&[[2, 8], [0, 8]], &[0, 16], 16).is_ok());
    says(
        GroupedLayout::new(&[[2, 8], [0, 8]], &[0, 17], 16),
        "member 1 of a grouped tensor, 0 x 8: at offset 17 must end within the 16 elements of the buffer; pass the whole buffer; \
         offsets count elements, not bytes",
    );
    says(
        GroupedLayout::aligned(&two, 0),
        "alignment of a grouped tensor: 0 must be at least 1 element; pass 1 for members without gaps",
    );
    // TransformerEngine's form: the last offset is the end.
    let same = |a: Result<GroupedLayout>, b: Result<GroupedLayout>| assert_eq!(a.unwrap(), b.unwrap());
    same(GroupedLayout::from_offsets(&two, &[0, 17, 50]), GroupedLayout::new(&two, &[0, 17], 50));
    same(GroupedLayout::from_offsets(&[], &[3]), GroupedLayout::new(&[], &[], 3));
    for (shapes, offsets) in [(&two[..], &[0, 16][..]), (&two, &[0, 16, 40, 40]), (&[], &[])] {
        let text = format!(
            "offsets of a grouped tensor: {} must be {}, one for each shape and the length of the buffer; with where members begin \
             alone, call GroupedLayout::new",
            offsets.len(),
            shapes.len() + 1
        );
        says(GroupedLayout::from_offsets(shapes, offsets), &text);
    }
    // The end below the last member; members out of order, of which the first pair is said.
    for (offsets, t) in [([0, 20, 4], 1), ([20, 4, 64], 0), ([20, 4, 1], 0)] {
        let text = format!(
            "offset {} of a grouped tensor: {} must not lie below offset {t}, {}: offsets never decrease, and the last is the length of \
             the buffer; list members in the order of their offsets, and last the elements of the buffer, gaps included, not its bytes",
            t + 1,
            offsets[t + 1],
            offsets[t]
        );
        says(GroupedLayout::from_offsets(&two, &offsets), &text);
    }
    // Equal ones are of members without elements.
    same(GroupedLayout::from_offsets(&[[0, 8], [2, 8]], &[0, 0, 16]), GroupedLayout::packed(&[[0, 8], [2, 8]]));
    let huge = usize::MAX;
    let most = isize::MAX as usize / 8;
    for [rows, cols] in [[huge, 2], [1 << 32, 1 << 32], [huge, 1], [most + 1, 1]] {
        let name = format!("member 1 of a grouped tensor, {rows} x {cols}: at offset 16");
        let packed = format!("{name} must end within {most} elements; split the tensor");
        says(GroupedLayout::packed(&[[2, 8], [rows, cols]]), &packed);
        let rest =
            "must end within the 64 elements of the buffer; pass the whole buffer; offsets count elements, not bytes";
        says(GroupedLayout::new(&[[2, 8], [rows, cols]], &[0, 16], 64), &format!("{name} {rest}"));
    }
    let first = "member 0 of a grouped tensor, 1 x 1: at offset";
    let text = format!("{first} 0 must end within {most} elements; split the tensor");
    says(GroupedLayout::aligned(&[[1, 1], [1, 1]], huge), &text);
    let rest =
        "must end within the 64 elements of the buffer; pass the whole buffer; offsets count elements, not bytes";
    says(GroupedLayout::new(&[[1, 1]], &[huge], 64), &format!("{first} {huge} {rest}"));
    says(
        GroupedLayout::new(&[], &[], most + 1),
        &format!("buffer of a grouped tensor: {} elements must be at most {most}; split it", most + 1),
    );
}

#[test]
fn calls_that_do_not_fit_are_refused_in_words() {
    let layout = GroupedLayout::packed(&[[2, 16], [0, 16], [1, 7]]).unwrap();
    let x = [1.0; 39];
    says(
        GroupedView::new(&layout, &x[..38]),
        "values of a grouped tensor: 38 must be at least the 39 elements of its layout; pass the whole buffer, gaps included",
    );
    let view = GroupedView::new(&layout, &x).unwrap();
    let given =
        |scheme: GroupedScheme, scales: GivenScale<&[f32]>| quantize_grouped_with_scales(&view.into(), scheme, scales);
    for count in [0, 1, 2, 4] {
        let scales = vec![1.0; count];
        let text = format!(
            "given scales of a grouped tensor: {count} must be 3, one for each member, those without elements too; pass the whole \
             array, or share one scale (GroupedScheme::shared)"
        );
        says(given(E4M3, GivenScale::Encode(&scales)), &text);
    }
    for count in [0, 2, 3] {
        let scales = vec![1.0; count];
        let text = format!(
            "given scales of a grouped tensor: {count} must be 1: all members share it; pass one number, or take a scale for each \
             member (GroupedScheme::new)"
        );
        says(given(E4M3.shared(), GivenScale::Decode(&scales)), &text);
    }
    let amax = "a given amax for an FP8 cast is not supported: the rule that makes a scale of it is part of a recipe, and this cast has \
                none; pass the encode of the recipe's group_scale of that amax as GivenScale::Encode";
    says(given(E4M3, GivenScale::Amax(&[1.0; 3])), amax);
    let none = GroupedLayout::packed(&[]).unwrap();
    says(quantize_grouped_with_scales(&input(&none, &[]), E4M3, GivenScale::Amax(&[])), amax);

    let of = ActivationGradient::Gelu;
    let other = GroupedLayout::packed(&[[2, 16], [0, 16], [7, 1]]).unwrap();
    says(
        GroupedInput::activation_gradient(of, view, GroupedView::new(&other, &x).unwrap()),
        "x of an activation gradient, member 2: 7 x 1 must be 1 x 7; pass tensors of the same shapes; offsets and gaps may differ",
    );
    let fewer = GroupedLayout::packed(&[[2, 16]]).unwrap();
    says(
        GroupedInput::activation_gradient(of, view, GroupedView::new(&fewer, &x).unwrap()),
        "members of x of an activation gradient: 1 must be 3; pass tensors of the same shapes, those without elements too",
    );

    let (q, _) = quantize_grouped(&view.into(), GroupedRecipe::new(E4M3)).unwrap();
    says(
        q.in_layout(fewer),
        "members of the new layout: 1 must be 3; pass tensors of the same shapes, those without elements too",
    );
    // Nothing but a gap, of which a machine has no memory.
    let most = isize::MAX as usize / 8;
    let gap = GroupedLayout::new(&[[2, 16], [0, 16], [1, 7]], &[0, 32, 32], most).unwrap();
    says(
        q.in_layout(gap),
        &format!(
            "codes of the new layout: {most} bytes must fit in memory; leave shorter gaps, or none (GroupedLayout::packed)"
        ),
    );
    says(q.matrix(3), "member of a grouped tensor: 3 must be below 3, as many as there are; count members from 0");
    says(
        q.matrix(2),
        "member 2 of a grouped tensor, as an operand of 1 x 7: 7 elements along the quantized axis must be a multiple of 16 (quantized \
         operands, cuBLASLt); pad them with zeros",
    );
    says(
        q.transpose().matrix(0),
        "member 0 of a grouped tensor, as an operand of 16 x 2: 2 elements along the quantized axis must be a multiple of 16 (quantized \
         operands, cuBLASLt); pad them with zeros",
    );
    assert_eq!(q.matrix(1).unwrap().rows(), 0);
    let parts = |codes: usize, scales: usize| {
        HostGroupedTensor::from_parts(E4M3, layout.clone(), vec![0; codes], vec![1.0; scales])
    };
    says(
        parts(40, 3),
        "codes of a grouped tensor: 40 bytes must be the 39 elements of its layout; pass the whole buffer, gaps included",
    );
    says(
        parts(39, 2),
        "scales of a grouped tensor: 2 must be 3, one for each member, those without elements too; pass the whole array, or share one \
         scale (GroupedScheme::shared)",
    );

    says(
        raise_amax(&mut [0.0; 2], &[1.0; 3]),
        "running amax of a grouped tensor: 2 must be 3, as many as were found; pass one for each member, those without elements too, or \
         one if scales are shared",
    );
    let mut history = Array2::from_elem((4, 2), 1.0);
    says(
        delayed_update_grouped(history.view_mut(), &[1.0; 3], Fp8Format::E4M3, 0, AmaxHistory::Max),
        "amax history of a grouped tensor: 4 x 2 must have 3 columns, as many as there are encode factors; pass a row for each step and \
         a column for each scale",
    );
    says(
        delayed_update_grouped(history.view_mut(), &[1.0; 2], Fp8Format::E4M3, 200, AmaxHistory::Max),
        "delayed scaling with a margin of 200 is not supported: beyond 8 either way factors leave the range of FP32; use 0, or a few \
         powers of two",
    );
    for previous in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        says(
            delayed_update_grouped(history.view_mut(), &[1.0, previous], Fp8Format::E4M3, 0, AmaxHistory::Max),
            &format!(
                "the number {previous} as factor 1 of the step before is not supported: factors and their inverses are finite and above \
                 0; pass what the update before gave, and 1 before the first"
            ),
        );
    }
    assert!(history.iter().all(|amax| *amax == 1.0));
    assert_eq!(GroupedScales::ALL.map(|scales| scales.count(0)), [0, 1]);
}

/// Both panic with the same words, as their documentation says.
#[test]
fn a_member_that_is_not_there_is_told_with_its_number() {
    let q =
        HostGroupedTensor::from_parts(E4M3, GroupedLayout::packed(&[[1, 16]; 3]).unwrap(), vec![0; 48], vec![1.0; 3])
            .unwrap();
    let said = |call: &dyn Fn()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
        panic.downcast::<String>().map(|text| *text).unwrap()
    };
    assert_eq!(said(&|| drop(q.member_codes(99).to_vec())), "member 99 of 3");
    assert_eq!(said(&|| assert!(q.member_scale(3) > 0.0)), "member 3 of 3");
}

/// Random shapes, offsets and lengths, the largest numbers among them: what is taken is in order, apart and inside, and nothing else is.
#[test]
fn what_is_taken_as_a_layout_is_one() {
    let mut noise = Noise::new(68);
    let mut taken = 0;
    for _ in 0..50_000 {
        let count = noise.below(4);
        let mut number = |end: usize| match noise.below(40) {
            0 => usize::MAX,
            1 => usize::MAX / 2 + 1,
            2 => 1 << 33,
            _ => noise.below(end),
        };
        let shapes: Vec<_> = (0..count).map(|_| [number(3), number(3)]).collect();
        let offsets: Vec<_> = (0..count).map(|t| number(6).saturating_add(2 * t.min(1))).collect();
        let len = number(12);
        let numbers = |t: usize| {
            let [rows, cols] = shapes[t].map(|n| n as u128);
            [offsets[t] as u128, offsets[t] as u128 + rows * cols]
        };
        let apart = (1..count).all(|t| numbers(t - 1)[0] <= numbers(t)[0] && numbers(t - 1)[1] <= numbers(t)[0]);
        let inside = (0..count).all(|t| numbers(t)[1] <= len as u128) && len <= isize::MAX as usize / 8;
        let layout = GroupedLayout::new(&shapes, &offsets, len);
        assert_eq!(layout.is_ok(), apart && inside, "{shapes:?} at {offsets:?} of {len}");
        if let Some(layout) = layout.ok().filter(|layout| layout.buffer_len() < 100) {
            taken += 1;
            let x = vec![1.0; len];
            let (q, amax) = quantize_grouped(&input(&layout, &x), GroupedRecipe::new(E4M3.transposed())).unwrap();
            assert_eq!(q.codes().iter().filter(|code| **code != 0).count(), layout.elements());
            assert!((0..count).all(|t| amax[t] == f32::from(layout.members()[t].elements() > 0)));
            assert_eq!(q.transpose().in_layout(layout).unwrap().transpose(), q);
        }
    }
    assert!(taken > 5000, "{taken}");
}
