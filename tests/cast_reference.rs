//! TileKernels' casts on the CPU: byte for byte their definition, over groupings, orders of scales, shapes and data; the amax contract.

use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::codec::{decode, encode_e2m1, encode_e4m3, round_to};
use scaled_gemm::reference::{
    CastInput, Noise, cast, cast_back, cast_scales, cast_with_scales, definition, fp4_to_fp8,
};
use scaled_gemm::{
    CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Error, Fp8Format, Fp8Scales, HostCastMatrix,
};

fn scheme(format: CodeFormat, group: CastGroup) -> CastScheme {
    CastScheme::new(format, group).unwrap()
}

fn recipe(format: CodeFormat, group: CastGroup) -> CastRecipe {
    CastRecipe::new(scheme(format, group))
}

/// Every recipe with its own floor.
fn recipes() -> impl Iterator<Item = CastRecipe> {
    CastScheme::all().flat_map(|scheme| {
        let recipe = CastRecipe::new(scheme);
        let powers = recipe.power_of_two();
        [Some(recipe), (recipe != powers).then_some(powers)].into_iter().flatten()
    })
}

/// Rows that a scheme takes next to `rows`: those that are stored as columns come in sixteens.
fn rows_for(scheme: CastScheme, rows: usize) -> usize {
    if scheme.is_transposed() { rows.next_multiple_of(16) } else { rows }
}

/// Data of one kind each.
fn data(rows: usize, cols: usize) -> Vec<(&'static str, Array2<f32>)> {
    let normal = Noise::new(31).matrix(rows, cols, DType::Bf16);
    let with = |values: &[f32], every: usize| {
        let mut x = normal.clone();
        x.iter_mut()
            .enumerate()
            .filter(|(at, _)| at % every == 3)
            .for_each(|(at, v)| *v = values[at / every % values.len()]);
        x
    };
    let mut noise = Noise::new(32);
    let ties = [448.0, -17.0, 19.0, 6.0, 0.25, -0.75, 1.25, -1.75, 2.5, -3.5, 5.0, 1.0625, -0.0029296875, 0.0009765625];
    vec![
        ("outliers", with(&[1e4, -3e6, 2e-9, 1.5e30], 23)),
        ("subnormal", normal.mapv(|v| v * 2f32.powi(-130))),
        ("least", normal.mapv(|v| if v > 0.0 { 1e-45 } else { -0.0 })),
        ("zeros", normal.mapv(|v| if v > 0.0 { 0.0 } else { -0.0 })),
        ("negative", normal.mapv(|v| -v.abs())),
        ("nan", with(&[f32::NAN, -f32::NAN], 7)),
        ("only nan", normal.mapv(|_| f32::NAN)),
        ("infinities", with(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN], 301)),
        (
            "powers",
            normal.mapv(|_| 2f32.powi(noise.below(40) as i32 - 30) * if noise.below(2) == 0 { 1.0 } else { -1.0 }),
        ),
        (
            "ties",
            Array2::from_shape_fn((rows, cols), |(i, j)| ties[(i * 5 + j) % ties.len()] * [1.0, 2.0, 0.125][i % 3]),
        ),
        ("any bits", Array2::from_shape_simple_fn((rows, cols), || f32::from_bits(noise.bits() as u32))),
        ("normal", normal),
    ]
}

#[track_caller]
fn same(got: &HostCastMatrix, want: &HostCastMatrix, context: &dyn std::fmt::Debug) {
    assert_eq!((got.scheme(), got.rows(), got.cols()), (want.scheme(), want.rows(), want.cols()));
    let place = got.codes().iter().zip(want.codes()).position(|(a, b)| a != b);
    assert!(place.is_none() && got.codes().len() == want.codes().len(), "byte {place:?} of the codes, {context:?}");
    let bits = |q: &HostCastMatrix| q.scales().iter().map(|s| s.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(got), bits(want), "{context:?}");
}

#[track_caller]
fn same_values(got: &Array2<f32>, want: &Array2<f32>, context: &dyn std::fmt::Debug) {
    let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    assert!(got.dim() == want.dim() && got.iter().zip(want).all(equal), "{context:?}");
}

/// A cast, its definition, its scales alone and the way back.
#[track_caller]
fn check(input: &CastInput<'_>, recipe: CastRecipe, context: &dyn std::fmt::Debug) -> HostCastMatrix {
    let q = cast(input, recipe).unwrap();
    same(&q, &definition::cast(input, recipe).unwrap(), &(context, recipe));
    let scales = cast_scales(input, recipe).unwrap();
    let bits = |s: &[f32]| s.iter().map(|s| s.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&scales), bits(q.scales()), "{context:?} {recipe:?}");
    let parts = HostCastMatrix::from_parts(q.scheme(), q.rows(), q.cols(), q.codes().to_vec(), &q.device_scales());
    same(&parts.unwrap(), &q, &(context, recipe));
    q
}

#[test]
fn every_cast_is_its_definition() {
    for (rows, cols) in [(0, 64), (1, 16), (1, 576), (127, 64), (129, 16), (129, 576), (33, 0)] {
        for recipe in recipes() {
            let rows = rows_for(recipe.scheme(), rows);
            for (name, x) in data(rows, cols) {
                let q = check(&x.view().into(), recipe, &(name, rows, cols));
                if cols == 64 {
                    for out in [DType::F32, DType::Bf16, DType::F16, DType::E4M3] {
                        same_values(&cast_back(&q, out), &definition::cast_back(&q, out), &(name, recipe, out));
                    }
                }
            }
        }
    }
}

#[test]
fn every_row_count_fills_its_last_group() {
    let x = Noise::new(33).matrix(260, 160, DType::Bf16);
    for rows in [2, 31, 32, 33, 128, 130, 256, 257, 260] {
        for recipe in recipes().filter(|r| rows_for(r.scheme(), rows) == rows) {
            check(&x.slice(s![..rows, ..]).into(), recipe, &rows);
        }
    }
}

#[test]
fn strided_values_and_gathered_rows_give_what_a_copy_gives() {
    let wide = Noise::new(34).matrix(160, 320, DType::F32);
    let strided: ArrayView2<f32> = wide.slice(s![..;-1, 32..;2]);
    let rows: Vec<i32> = (0..48).map(|i| if i % 7 == 2 { -1 - i } else { i * 37 % 160 }).collect();
    let gathered =
        Array2::from_shape_fn((48, 144), |(i, j)| if rows[i] < 0 { 0.0 } else { strided[[rows[i] as usize, j]] });
    for recipe in recipes() {
        let copy = strided.as_standard_layout().to_owned();
        let q = check(&strided.into(), recipe, &"strided");
        same(&q, &cast(&copy.view().into(), recipe).unwrap(), &recipe);
        let input = CastInput::from(strided).gathered(&rows).unwrap();
        let q = check(&input, recipe, &"gathered");
        same(&q, &cast(&gathered.view().into(), recipe).unwrap(), &recipe);
    }
    // Rows that are zero give the scale of the floor and zeros.
    let q = cast(&CastInput::from(strided).gathered(&[-1]).unwrap(), recipe(CodeFormat::E4M3, CastGroup::Row)).unwrap();
    assert_eq!((q.scales(), q.codes()), (&[1e-4f32 / 448.0][..], &[0u8; 144][..]));
}

/// Every grouping of the input with every grouping of the output would be 44 000 casts: each is met, many pairs are.
#[test]
fn quantized_input_is_multiplied_twice() {
    let x = Noise::new(35).matrix(144, 288, DType::Bf16);
    let rows: Vec<i32> = (0..64).map(|i| if i % 5 == 1 { -1 } else { i * 29 % 144 }).collect();
    let all: Vec<_> = recipes().collect();
    for (at, from) in all.iter().enumerate() {
        let q = cast(&x.view().into(), *from).unwrap();
        let values = cast_back(&q, DType::F32);
        for to in all.iter().skip(at % 5).step_by(5) {
            let context = format!("{from:?} to {to:?}");
            let again = check(&(&q).into(), *to, &context);
            same(&again, &cast(&values.view().into(), *to).unwrap(), &context);
        }
        let to = all[(at * 7 + 3) % all.len()];
        check(&CastInput::from(&q).gathered(&rows).unwrap(), to, &"gathered again");
    }
}

/// Groups of 1x128 by powers of two, cast once more by the same recipe, where nothing comes back infinite: what docs/casts.md says of gradients that a product is to read.
#[test]
fn powers_of_two_are_cast_again_without_loss() {
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128).unwrap();
    let recipe = CastRecipe::new(scheme).power_of_two();
    for (name, x) in data(129, 576).into_iter().filter(|(name, _)| !["infinities", "any bits"].contains(name)) {
        let q = cast(&x.view().into(), recipe).unwrap();
        let again = cast(&(&q).into(), recipe).unwrap();
        same_values(&cast_back(&again, DType::F32), &cast_back(&q, DType::F32), &name);
    }
}

/// What a cast writes of infinities, and a NaN that none writes, as a source.
#[test]
fn infinite_scales_and_negative_nan_are_cast_again() {
    let (name, x) = data(48, 288).into_iter().find(|(name, _)| *name == "infinities").unwrap();
    let all: Vec<_> = recipes().collect();
    // As a byte an infinite scale is NaN, which no source may have.
    for (at, from) in all.iter().enumerate().filter(|(_, from)| from.scheme().scales() != CastScales::Ue8m0) {
        let q = cast(&x.view().into(), *from).unwrap();
        let mut codes = q.codes().to_vec();
        if from.scheme().format() == CodeFormat::E4M3 {
            let nan = codes.iter_mut().filter(|code| **code == 0x7F).step_by(2).map(|code| *code = 0xFF).count();
            assert!(nan > 10, "{nan}");
        }
        assert!(q.scales().contains(&f32::INFINITY), "{from:?}");
        let q = HostCastMatrix::from_logical(q.scheme(), 48, 288, codes, q.scales().to_vec()).unwrap();
        let values = cast_back(&q, DType::F32);
        same_values(&values, &definition::cast_back(&q, DType::F32), from);
        for to in all.iter().skip(at % 5).step_by(5) {
            let context = (name, from, to);
            let again = check(&(&q).into(), *to, &context);
            same(&again, &cast(&values.view().into(), *to).unwrap(), &context);
        }
    }
}

#[test]
fn given_scales_divide_by_multiplying_with_the_inverse() {
    let mut noise = Noise::new(36);
    for (name, x) in data(48, 64) {
        for scheme in CastScheme::all() {
            let [r, c] = scheme.group().grid(48, 64);
            let power = scheme.scales() == CastScales::Ue8m0;
            let mut scales: Vec<f32> = (0..r * c)
                .map(|_| 2f32.powi(noise.below(20) as i32 - 10) * if power { 1.0 } else { 0.5 + noise.uniform() })
                .collect();
            scales[0] = f32::from_bits(1 << 22);
            let input = x.view().into();
            let q = cast_with_scales(&input, scheme, &scales).unwrap();
            assert_eq!(q.scales(), scales);
            same(&q, &definition::cast_with_scales(&input, scheme, &scales).unwrap(), &(name, scheme));
        }
        // The inverse of a stored power of two is what the cast multiplied by.
        for recipe in
            recipes().filter(|r| r.numbers() == Fp8Scales::PowerOfTwo && name != "infinities" && name != "any bits")
        {
            let q = cast(&x.view().into(), recipe).unwrap();
            same(&cast_with_scales(&x.view().into(), recipe.scheme(), q.scales()).unwrap(), &q, &(name, recipe));
        }
    }
}

#[test]
fn a_floor_of_ones_own_raises_small_scales() {
    let x = Noise::new(37).matrix(16, 64, DType::Bf16).mapv(|v| v * 1e-3);
    for recipe in recipes() {
        let q = check(&x.view().into(), recipe.with_floor(1.5).unwrap(), &"floor");
        let scale = recipe.group_scale(1.5).scale;
        assert!(q.scales().iter().all(|s| *s == scale), "{recipe:?}");
    }
}

/// numerics.md 1.2: an amax of BF16 must be the amax. Rows of 448 with one 450 anywhere: missed, the scale is 1 instead of 2.
#[test]
fn one_larger_element_is_seen_wherever_it_is() {
    for cols in [2048, 4096, 6144, 7168, 8192, 16384] {
        for sign in [1.0f32, -1.0] {
            let places: Vec<usize> = (0..cols).step_by(cols / 64 + 1).chain([cols - 1, cols - 168]).collect();
            let mut x = Array2::from_elem((places.len(), cols), 448.0 * sign);
            places.iter().enumerate().for_each(|(i, j)| x[[i, *j]] = 450.0 * sign);
            for group in CastGroup::ALL {
                let recipe = recipe(CodeFormat::E4M3, group).power_of_two();
                let q = check(&x.view().into(), recipe, &(cols, sign));
                places.iter().enumerate().for_each(|(i, j)| assert_eq!(q.scale_at(i, *j), 2.0, "{group} {i} {j}"));
                if group == CastGroup::Row {
                    let code = encode_e4m3(224.0 * sign);
                    assert!(q.codes().iter().all(|c| *c == code));
                }
            }
        }
    }
}

/// A maximum that starts from the first element, or from the least number, forgets the magnitude of what is negative.
#[test]
fn rows_that_are_negative_have_their_magnitude() {
    let x = Noise::new(38).matrix(128, 576, DType::Bf16).mapv(|v| -v.abs() - 1.0);
    for recipe in recipes().filter(|r| r.numbers() == Fp8Scales::Exact) {
        let q = check(&x.view().into(), recipe, &"negative");
        let positive = x.mapv(f32::abs);
        let p = cast(&positive.view().into(), recipe).unwrap();
        assert_eq!(q.scales(), p.scales());
        let sign = if recipe.scheme().format() == CodeFormat::E2M1 { 0x88 } else { 0x80 };
        assert!(q.codes().iter().zip(p.codes()).all(|(q, p)| *q == p | sign), "{recipe:?}");
    }
}

/// The amax of a quantized input is no number of BF16, and one rounded to BF16 gives another scale.
#[test]
fn the_amax_of_scaled_codes_is_not_rounded() {
    let mut codes = vec![0u8; 32];
    (codes[0], codes[1]) = (0x75, 0xDD);
    let scheme = scheme(CodeFormat::E4M3, CastGroup::Group1x32);
    let q = HostCastMatrix::from_logical(scheme, 1, 32, codes, vec![f32::from_bits(0x3F82_0200)]).unwrap();
    let amax = decode(Fp8Format::E4M3, 0x75) * f32::from_bits(0x3F82_0200);
    assert!((amax - 211.26).abs() < 0.01 && round_to(DType::Bf16, amax) == 211.0);
    let again = check(&(&q).into(), CastRecipe::new(scheme), &"requant");
    assert_eq!(again.scales(), [amax / 448.0]);
    assert_ne!(again.scales(), [211.0 / 448.0]);
    assert_eq!(again.codes()[..2], [0x7E, 0xE6]);
}

/// One combined factor, fl(code * fl(scale * encode)), is what TileKernels' kernel has; the order is that of its reference. 24 times
/// 25 / 24 is a tie of E4M3, where the last bit of a product decides; a code that is a power of two would not tell.
#[test]
fn the_order_of_two_multiplications_matters() {
    let mut noise = Noise::new(39);
    let codes: Vec<u8> = (0..256 * 32).map(|at| if at % 32 < 16 { 0x7E } else { encode_e4m3(24.0) }).collect();
    let scales: Vec<f32> =
        (0..256).map(|_| 1.0 + noise.uniform()).flat_map(|scale| [scale, scale * (25.0 / 24.0)]).collect();
    let from = scheme(CodeFormat::E4M3, CastGroup::Group1x16);
    let q = HostCastMatrix::from_logical(from, 256, 32, codes, scales).unwrap();
    let to = recipe(CodeFormat::E4M3, CastGroup::Row);
    let again = check(&(&q).into(), to, &"ties");
    let mut differ = 0;
    for i in 0..256 {
        let encode = to.group_scale(448.0 * q.scale_at(i, 0)).encode;
        let scale = q.scale_at(i, 16);
        let got = again.codes()[i * 32 + 16];
        assert_eq!(got, encode_e4m3(24.0 * scale * encode));
        differ += usize::from(got != encode_e4m3(24.0 * (scale * encode)));
    }
    assert!(differ > 10, "{differ} of 256");
}

#[test]
fn fp4_becomes_fp8_without_loss() {
    let x = Noise::new(40).matrix(33, 576, DType::Bf16);
    for group in [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128] {
        for scales in CastScales::ALL {
            let recipe = CastRecipe::new(scheme(CodeFormat::E2M1, group).with_scales(scales)).power_of_two();
            let mut x = x.clone();
            x.slice_mut(s![3, ..80]).fill(-0.0);
            x.row_mut(5).fill(0.0);
            x.row_mut(6).mapv_inplace(|v| v * 1e-38);
            x.row_mut(7).mapv_inplace(|v| v * 1e37);
            let q = cast(&x.view().into(), recipe).unwrap();
            let wide = fp4_to_fp8(&q).unwrap();
            assert_eq!(wide.scheme(), scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0));
            same_values(&cast_back(&wide, DType::F32), &cast_back(&q, DType::F32), &recipe);
            same(&wide, &definition::fp4_to_fp8(&q).unwrap(), &recipe);
        }
    }
}

/// As a GPU counts the groups that would lose, and writes the others.
#[test]
fn the_definition_without_loss_gives_blocks_beside_what_would_lose() {
    let e2m1 = scheme(CodeFormat::E2M1, CastGroup::Group1x128);
    let of = |scales: &[f32]| {
        HostCastMatrix::from_logical(e2m1, scales.len(), 128, vec![0x1F; 64 * scales.len()], scales.to_vec()).unwrap()
    };
    let want = fp4_to_fp8(&of(&[0.25])).unwrap();
    for scale in [0.75, 0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45] {
        let both = definition::fp4_to_fp8(&of(&[scale, 0.25])).unwrap();
        assert_eq!(both.codes()[128..], *want.codes(), "{scale}");
        assert_eq!(both.scales()[1], want.scales()[0], "{scale}");
    }
}

#[test]
fn what_would_lose_is_refused_with_its_group() {
    let e2m1 = scheme(CodeFormat::E2M1, CastGroup::Group1x32);
    let of = |codes: u8, scales: [f32; 4]| {
        HostCastMatrix::from_logical(e2m1, 1, 128, vec![codes; 64], scales.to_vec()).unwrap()
    };
    // Eleven powers of two below the largest: 0.5 becomes 2^-6, the least normal number.
    let wide = fp4_to_fp8(&of(0x1F, [1.0, 1.0 / 2048.0, 0.5, 1.0])).unwrap();
    assert_eq!(wide.scales(), [1.0 / 64.0]);
    assert_eq!((wide.codes()[0], wide.codes()[1], wide.codes()[33]), (0xFC, 0x60, 0x08));
    let error = fp4_to_fp8(&of(0x1F, [1.0, 1.0, 1.0, 1.0 / 4096.0])).unwrap_err().to_string();
    assert!(error.contains("group (0, 3)") && error.contains("2^-12") && error.contains("2^0"), "{error}");
    for scale in [0.75, 0.0, -1.0, f32::NAN, f32::INFINITY, 1e-45] {
        let error = fp4_to_fp8(&of(0x1F, [1.0, 1.0, scale, 1.0])).unwrap_err().to_string();
        assert!(error.contains("scale (0, 2)") && error.contains("powers of two"), "{error}");
    }
    for other in [scheme(CodeFormat::E4M3, CastGroup::Group1x32), scheme(CodeFormat::E2M1, CastGroup::Row)] {
        let q = cast(&Array2::<f32>::ones((1, 128)).view().into(), CastRecipe::new(other)).unwrap();
        let error = fp4_to_fp8(&q).unwrap_err().to_string();
        assert!(error.contains(&other.to_string()), "{error}");
    }
}

#[test]
fn refusals_name_place_number_rule_and_remedy() {
    let x = Array2::<f32>::ones((20, 48));
    let input = CastInput::from(x.view());
    let says = |error: scaled_gemm::Error, words: &[&str]| {
        let text = error.to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{text}: {word}"));
    };
    says(input.gathered(&[0, -5, 19, 20]).unwrap_err(), &["index 3", "20 must be below the 20 rows", "negative"]);
    let row = recipe(CodeFormat::E4M3, CastGroup::Row);
    says(cast(&x.slice(s![.., ..47]).into(), row).unwrap_err(), &["47", "multiple of 16", "pad"]);
    let channel = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group32x1).transposed().unwrap());
    says(cast(&input, channel).unwrap_err(), &["20", "multiple of 16"]);
    let tile = scheme(CodeFormat::E4M3, CastGroup::Tile32x32);
    says(cast_with_scales(&input, tile, &[1.0]).unwrap_err(), &["given scales", "1 must be 1 x 2", "logical"]);
    for scale in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = cast_with_scales(&input, tile, &[1.0, scale]).unwrap_err();
        says(error, &[&format!("given scale (0, 1), {scale} "), "finite numbers above 0"]);
    }
    let bytes = tile.with_scales(CastScales::Ue8m0);
    // (To round up was the remedy of all.)
    let (round, factor) = ("; round it up to a power of two", "; pass the factor that codes are multiplied by");
    for (scale, remedy) in [
        (0.75, round),
        (3.0, round),
        (2f32.powi(-127) * 1.5, round),
        // (2^-149 is a power of two already.)
        (1e-45, "; pass 2^-127, or a larger one"),
        (2f32.powi(-128), "; pass 2^-127, or a larger one"),
        (f32::MAX, "; pass 2^127, or a smaller one"),
        (0.0, factor),
        (f32::NAN, factor),
        (f32::INFINITY, factor),
        (-2.0, factor),
    ] {
        let error = cast_with_scales(&input, bytes, &[1.0, scale]).unwrap_err();
        says(error, &["given scale (0, 1)", "powers of two", remedy]);
    }
    // (1.5 became 1, 0 became 2^-127 and infinity NaN, without a word.)
    let given = |scale| HostCastMatrix::from_logical(bytes, 1, 64, vec![0; 64], vec![1.0, scale]);
    for scale in [1.5, 3.0, 2f32.powi(-128), f32::MAX, 0.0, -0.0, f32::INFINITY, -2.0] {
        let rule = "scales of ue8m0 are powers of two from 2^-127 to 2^127, or NaN; pass such scales";
        says(given(scale).unwrap_err(), &["scale (0, 1) of a quantized input, ", rule, "whose scales are FP32"]);
    }
    says(given(3.0).unwrap_err(), &["input, 3 is not supported"]);
    for scale in [2f32.powi(-127), 1.0, 2f32.powi(127)] {
        assert_eq!(given(scale).unwrap().scales(), [1.0, scale]);
    }
    assert!(given(f32::NAN).unwrap().scales()[1].is_nan());
    for scale in [f32::NAN, -1.0] {
        let scales = vec![1.0, 1.0, 1.0, 1.0, scale, 1.0];
        let q =
            HostCastMatrix::from_logical(scheme(CodeFormat::E4M3, CastGroup::Group1x16), 2, 48, vec![0; 96], scales)
                .unwrap();
        for error in [cast(&(&q).into(), row).unwrap_err(), cast_scales(&(&q).into(), row).unwrap_err()] {
            says(error, &["scale (1, 1)", &scale.to_string(), "from 0 on"]);
        }
    }
}

/// (Lengths were computed before the shape was looked at: with overflow checks, a panic.)
#[test]
fn shapes_that_are_too_large_are_refused_before_lengths() {
    for scheme in CastScheme::all() {
        for (rows, cols) in [(usize::MAX, 16), (1 << 63, 16), (1711551232, 1347224064), (16, usize::MAX - 15)] {
            let by_parts = HostCastMatrix::from_parts(scheme, rows, cols, vec![0; 1024], &[0; 4]).unwrap_err();
            let logical = HostCastMatrix::from_logical(scheme, rows, cols, vec![0; 1024], vec![1.0]).unwrap_err();
            for error in [by_parts, logical] {
                assert!(matches!(error, Error::Shape { .. }), "{scheme} of {rows} x {cols}: {error}");
            }
        }
    }
}

/// What a NaN, an infinity and a zero become, said in numbers.
#[test]
fn special_values_have_their_codes() {
    let mut x = Array2::zeros((1, 64));
    (x[[0, 0]], x[[0, 1]], x[[0, 2]]) = (f32::NAN, -0.0, 1.0);
    (x[[0, 32]], x[[0, 33]], x[[0, 34]]) = (f32::NEG_INFINITY, -3.0, f32::NAN);
    let q = cast(&x.view().into(), recipe(CodeFormat::E4M3, CastGroup::Group1x32)).unwrap();
    assert_eq!(q.scales(), [1.0 / 448.0, f32::INFINITY]);
    assert_eq!((&q.codes()[..3], &q.codes()[32..35]), (&[0x7F, 0x80, 0x7E][..], &[0x7F, 0x80, 0x7F][..]));
    let bytes = scheme(CodeFormat::E2M1, CastGroup::Group1x32).with_scales(CastScales::Ue8m0);
    let q = cast(&x.view().into(), CastRecipe::new(bytes)).unwrap();
    // 1 / 6 is raised to 1 / 4; infinity has the byte of NaN.
    assert!(q.scales()[0] == 0.25 && q.scales()[1].is_nan());
    assert_eq!(q.device_scales(), [125, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(q.codes()[..2], [7 | 8 << 4, encode_e2m1(4.0)]);
    assert_eq!(q.codes()[16..18], [7 | 8 << 4, 7]);
    // Cast back the group is NaN, but for what is infinite among codes that have no NaN, and no byte is infinity.
    assert!(cast_back(&q, DType::F32).row(0).iter().skip(32).all(|v| v.is_nan()));
    for (format, infinite) in [(CodeFormat::E4M3, false), (CodeFormat::E2M1, true)] {
        let q = cast(&x.view().into(), recipe(format, CastGroup::Group1x32)).unwrap();
        let back = cast_back(&q, DType::F32);
        assert_eq!(back[[0, 32]] == f32::INFINITY, infinite, "{back}");
        assert!(back[[0, 33]].is_nan() && (infinite || back[[0, 32]].is_nan()), "{back}");
    }
}
