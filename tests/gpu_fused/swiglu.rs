//! The gradients of SwiGLU: as casts and as products read them, of numbers and of codes in every order of scales.

use super::*;

/// Some are 1, as where there are none.
fn weights_of(rng: &mut Noise, rows: usize) -> Vec<f32> {
    (0..rows).map(|i| if i % 3 == 0 { 1.0 } else { rng.uniform() + 0.25 }).collect()
}

/// Rows that are not few, on any GPU.
pub fn many_rows(handle: &Handle) -> usize {
    8 * handle.device().sm_count as usize + 5
}

/// Rows of which two warps of a block share each, on any GPU, where they are aligned and where not.
pub fn some_rows(handle: &Handle) -> usize {
    4 * handle.device().sm_count as usize + 7
}

/// Every way to call the backward pass, compared with the reference; x also from codes.
pub fn check_backward(
    handle: &Handle,
    rng: &mut Noise,
    (rows, half): (usize, usize),
    dtype: DType,
    apart: usize,
    group: usize,
) {
    let x = Both::new(handle, dtype, 2 * half + apart, numbers(rng, (rows, 2 * half), true));
    let g = Both::new(handle, dtype, half + apart, numbers(rng, (rows, half), false));
    let weights = weights_of(rng, rows);
    let experts: Vec<i32> = (0..rows).map(|i| if i % 7 == 3 { -1 } else { (i % 5) as i32 }).collect();
    let words: Vec<u32> = experts.iter().map(|e| e.cast_unsigned()).collect();
    let (weights_there, experts_there) = (handle.upload(&weights).unwrap(), handle.upload(&words).unwrap());
    // Codes of finite numbers, in groups along rows and in tiles; of_codes.rs has every grouping and order.
    let finite = x.values.mapv(|v| if v.is_finite() { v.clamp(-1e4, 1e4) } else { 1.0 });
    let coded_by = [CastGroup::Group1x128, CastGroup::Tile128x128, CastGroup::Group32x1].map(|group| {
        let recipe = CastRecipe::new(CastScheme::new(CodeFormat::E4M3, group).unwrap());
        reference::cast(&finite.view().into(), recipe).unwrap()
    });
    let to = if group == 32 { CastGroup::Group1x32 } else { CastGroup::Group1x128 };
    let to = CastScheme::new(CodeFormat::E4M3, to).unwrap();
    let (matrix, gradient) = (x.matrix(), g.matrix());
    for (way, scales) in
        [CastScales::RowMajor, CastScales::ColumnMajor, CastScales::Ue8m0].into_iter().cycle().take(16).enumerate()
    {
        let recipe = CastRecipe::new(to.with_scales(scales));
        // None, a clamp, weights, all; each from numbers and from codes, to codes and to the other results.
        let (given, from_codes) = (way % 4, (way % 4 + way / 4) % 2 == 1);
        let (clamp, weighted, all) = ((given % 2 == 1).then_some(10.0), given >= 2, given == 3);
        let codes = &coded_by[(way / 4 + way) % 3];
        let coded = from_codes.then(|| CastMatrix::from_host(handle, codes).unwrap());
        let read = if from_codes { reference::cast_back(codes, DType::F32) } else { x.values.clone() };
        let options = Swiglu { clamp, weights: weighted.then_some(&weights[..]), experts: all.then_some(&experts[..]) };
        let want = reference::swiglu_backward(read.view(), g.values.view(), &options).unwrap();
        let want_codes = reference::cast(&want.x.view().into(), recipe).unwrap();
        let context = format!("{rows} x {half} {dtype}, {apart} apart, way {way}, {}", recipe.scheme());
        let forward = match &coded {
            Some(coded) => SwigluSource::of_codes(coded).unwrap(),
            None => SwigluSource::new(&matrix).unwrap(),
        };
        let forward = if let Some(clamp) = clamp { forward.with_clamp(clamp).unwrap() } else { forward };
        let forward = if weighted {
            forward.with_weights(VecRef::new(&weights_there, DType::F32, rows).unwrap()).unwrap()
        } else {
            forward
        };
        let forward = if all { forward.with_experts(&experts_there).unwrap() } else { forward };
        let mut dx = poisoned_cast(handle, recipe.scheme(), rows, 2 * half);
        let mut wide = Both::new(handle, DType::Bf16, 2 * half + 8, Array2::ones((rows, 2 * half)));
        let mut out = Both::new(handle, DType::Bf16, half + 16, Array2::ones((rows, half)));
        let mut dw = handle.upload(&vec![f32::NAN; rows]).unwrap();
        // All of it, and each part alone.
        let wanted = |part: usize| way < 4 || way / 4 == part;
        let into = SwigluGradientsInto {
            x: wanted(1).then_some((recipe, &mut dx).into()),
            x_bf16: wanted(2).then(|| wide.matrix_mut()),
            out: wanted(3).then(|| out.matrix_mut()),
            weights: wanted(3).then(|| (&mut dw).into()),
        };
        handle.swiglu_backward(forward, &gradient, into).unwrap();
        if wanted(1) {
            assert_cast(handle, &dx, &want_codes, &context);
        }
        let rounded = |values: &Array2<f32>| values.mapv(|v| round_to(DType::Bf16, v));
        let ones = |values: &Array2<f32>| Array2::<f32>::ones(values.dim());
        let expected = if wanted(2) { rounded(&want.x) } else { ones(&want.x) };
        same(&wide.read(handle), &expected, &format!("{context}: gradient in BF16"));
        let expected = if wanted(3) { want.out.clone() } else { ones(&want.out) };
        same(&out.read(handle), &expected, &format!("{context}: forward pass again"));
        if wanted(3) {
            same(&floats(handle, &dw), &want.weights, &format!("{context}: gradient of the weights"));
        }
    }
}

#[test]
fn backward() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(983);
    // Of some, the right half's first group is no multiple of four, and the last step is not whole. Few rows, and so many that those which are not long have a warp each.
    let many = many_rows(&handle);
    for (rows, half, group) in [
        (0, 128, 128),
        (1, 64, 32),
        (127, 576, 32),
        (130, 1024, 128),
        (5, 7168, 128),
        (3, 4640, 32),
        (2, 7296, 128),
        (many, 1184, 32),
        (many, 128, 128),
    ] {
        check_backward(&handle, &mut rng, (rows, half), DType::Bf16, 0, group);
    }
    for dtype in INPUTS {
        check_backward(&handle, &mut rng, (many, 544), dtype, 0, 32);
        for apart in [0, 3] {
            check_backward(&handle, &mut rng, (some_rows(&handle), 1056), dtype, apart, 32);
        }
    }
    // More whole steps than one.
    for apart in [0, 3] {
        check_backward(&handle, &mut rng, (some_rows(&handle), 3232), DType::Bf16, apart, 32);
    }
}

/// As what products read: every byte, padding included, is that of the quantizer of the gradients in FP32.
#[test]
fn gradients_for_products() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(987);
    let mut recipes = Vec::new();
    for rule in MxScaleRule::ALL {
        recipes.extend(Fp8Format::ALL.map(|format| Recipe::from(Mxfp8Recipe { format, rule })));
    }
    for scales in [Fp8Scales::Exact, Fp8Scales::PowerOfTwo] {
        let recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
        recipes.push(Fp8Recipe { scales, ..recipe }.into());
    }
    for (rows, half, dtype, apart) in [
        (0, 128, DType::Bf16, 0),
        (1, 32, DType::Bf16, 0),
        (127, 96, DType::F16, 0),
        (130, 352, DType::F32, 4),
        (33, 1280, DType::Bf16, 3),
        (2, 4256, DType::F16, 0),
        (2, 2208, DType::F32, 3),
        (many_rows(&handle), 544, DType::Bf16, 0),
        (some_rows(&handle), 1056, DType::Bf16, 3),
        (some_rows(&handle), 3232, DType::Bf16, 0),
        (257, 128, DType::F32, 0),
    ] {
        let x = Both::new(&handle, dtype, 2 * half + apart, numbers(&mut rng, (rows, 2 * half), true));
        let g = Both::new(&handle, dtype, half + apart, numbers(&mut rng, (rows, half), true));
        let finite = x.values.mapv(|v| if v.is_finite() { v.clamp(-1e4, 1e4) } else { 1.0 });
        let codes = CastRecipe::new(CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128).unwrap());
        let codes = reference::cast(&finite.view().into(), codes).unwrap();
        let coded = CastMatrix::from_host(&handle, &codes).unwrap();
        let (matrix, gradient) = (x.matrix(), g.matrix());
        let weights = weights_of(&mut rng, rows);
        let experts: Vec<i32> = (0..rows).map(|i| if i % 7 == 3 { -1 } else { (i % 5) as i32 }).collect();
        let words: Vec<u32> = experts.iter().map(|e| e.cast_unsigned()).collect();
        let (weights_there, experts_there) = (handle.upload(&weights).unwrap(), handle.upload(&words).unwrap());
        let back = reference::cast_back(&codes, DType::F32);
        for (from_codes, all) in [(false, false), (false, true), (true, false), (true, true)] {
            let read = if from_codes { &back } else { &x.values };
            let options = match all {
                true => Swiglu { clamp: Some(10.0), weights: Some(&weights), experts: Some(&experts) },
                false => Swiglu::default(),
            };
            let want = reference::swiglu_backward(read.view(), g.values.view(), &options).unwrap();
            for recipe in recipes.iter().filter(|r| half % 128 == 0 || matches!(r.scheme(), Scheme::Mxfp8(_))) {
                let context = format!("{rows} x {half} {dtype}, from codes {from_codes}, options {all}, to {recipe:?}");
                let want_x = reference::quantize(want.x.view(), DType::F32, *recipe).unwrap();
                let mut got = match recipe {
                    Recipe::Fp8(_) => QuantMatrix::zeros(&handle, recipe.scheme(), rows, 2 * half).unwrap(),
                    _ => poisoned_matrix(&handle, recipe.scheme(), rows, 2 * half),
                };
                let mut wide = Both::new(&handle, DType::Bf16, 2 * half, Array2::ones((rows, 2 * half)));
                let mut out = Both::new(&handle, DType::Bf16, half + 8, Array2::ones((rows, half)));
                let mut dw = handle.upload(&vec![f32::NAN; rows]).unwrap();
                let forward = match from_codes {
                    true => SwigluSource::of_codes(&coded).unwrap(),
                    false => SwigluSource::new(&matrix).unwrap(),
                };
                let forward = match all {
                    true => {
                        let weights = VecRef::new(&weights_there, DType::F32, rows).unwrap();
                        let clamped = forward.with_clamp(10.0).unwrap();
                        clamped.with_weights(weights).unwrap().with_experts(&experts_there).unwrap()
                    }
                    false => forward,
                };
                let into = SwigluGradientsInto {
                    x: Some((*recipe, &mut got).into()),
                    x_bf16: Some(wide.matrix_mut()),
                    out: Some(out.matrix_mut()),
                    weights: Some((&mut dw).into()),
                };
                handle.swiglu_backward(forward, &gradient, into).unwrap();
                assert_device_bits(&handle, &got, &want_x, &context);
                same(&wide.read(&handle), &want.x.mapv(|v| round_to(DType::Bf16, v)), &context);
                same(&out.read(&handle), &want.out, &format!("{context}: forward pass again"));
                same(&floats(&handle, &dw), &want.weights, &context);
            }
        }
    }
}
