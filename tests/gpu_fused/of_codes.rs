//! The backward pass of SwiGLU reads x in every grouping and order of scales that casts write in E4M3.

use crate::cast::*;
use crate::common::*;
use crate::strided::*;
use crate::swiglu::{many_rows, some_rows};
use ndarray::Array2;
use scaled_gemm::reference::{self, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CodeFormat, DType, Fp8Format, Handle, Recipe, Scheme,
    SwigluGradientsInto, SwigluSource, VecRef,
};

/// Numbers whose groups are of other sizes than those beside, before and behind them, so that no other's scale will do, powers of two included.
fn of_sizes(rng: &mut Noise, (rows, cols): (usize, usize), group: CastGroup) -> Array2<f32> {
    let [height, width] = group.extents();
    let (height, width) = (height.size(rows), width.size(cols));
    Array2::from_shape_fn((rows, cols), |(i, j)| {
        let size = (5 * (i / height) + 3 * (j / width)) % 13;
        rng.normal() * 2f32.powi(size as i32 - 8)
    })
}

/// From codes by one recipe: every result at once, the gradient of x as a cast and then as MXFP8.
fn check(handle: &Handle, rng: &mut Noise, (rows, half): (usize, usize), from: CastRecipe, turn: usize) {
    let (dtype, apart, all) = (INPUTS[turn / 3 % 3], if turn % 4 == 1 { 3 } else { 0 }, turn.is_multiple_of(2));
    let x = of_sizes(rng, (rows, 2 * half), from.scheme().group());
    let codes = reference::cast(&x.view().into(), from).unwrap();
    let coded = CastMatrix::from_host(handle, &codes).unwrap();
    let g = Both::new(handle, dtype, half + apart, numbers(rng, (rows, half), false));
    let weights: Vec<f32> = (0..rows).map(|_| rng.uniform() + 0.25).collect();
    let experts: Vec<i32> = (0..rows).map(|i| if i % 7 == 3 { -1 } else { (i % 5) as i32 }).collect();
    let words: Vec<u32> = experts.iter().map(|e| e.cast_unsigned()).collect();
    let (weights_there, experts_there) = (handle.upload(&weights).unwrap(), handle.upload(&words).unwrap());
    let options = match all {
        true => Swiglu { clamp: Some(10.0), weights: Some(&weights), experts: Some(&experts) },
        false => Swiglu::default(),
    };
    let want = reference::swiglu_backward(reference::cast_back(&codes, DType::F32).view(), g.values.view(), &options);
    let want = want.unwrap();
    let gradient = g.matrix();
    let forward = || {
        let source = SwigluSource::of_codes(&coded).unwrap();
        if !all {
            return source;
        }
        let weights = VecRef::new(&weights_there, DType::F32, rows).unwrap();
        let source = source.with_clamp(10.0).unwrap().with_weights(weights).unwrap();
        source.with_experts(&experts_there).unwrap()
    };
    let by_128 = half.is_multiple_of(128) && (turn / 2).is_multiple_of(2);
    let to = scheme(CodeFormat::E4M3, if by_128 { CastGroup::Group1x128 } else { CastGroup::Group1x32 });
    let to = CastRecipe::new(to.with_scales(CastScales::ALL[turn % 3]));
    let context = format!(
        "{rows} x {half}, of {} {:?}, g {dtype}, {apart} apart, all {all}, to {}",
        from.scheme(),
        from.numbers(),
        to.scheme()
    );

    let mut dx = poisoned_cast(handle, to.scheme(), rows, 2 * half);
    let mut wide = Both::new(handle, DType::Bf16, 2 * half, Array2::ones((rows, 2 * half)));
    let mut out = Both::new(handle, DType::Bf16, half, Array2::ones((rows, half)));
    let mut dw = handle.upload(&vec![f32::NAN; rows]).unwrap();
    let into = SwigluGradientsInto {
        x: Some((to, &mut dx).into()),
        x_bf16: Some(wide.matrix_mut()),
        out: Some(out.matrix_mut()),
        weights: Some((&mut dw).into()),
    };
    handle.swiglu_backward(forward(), &gradient, into).unwrap();
    assert_cast(handle, &dx, &reference::cast(&want.x.view().into(), to).unwrap(), &context);
    same(&wide.read(handle), &want.x.mapv(|v| round_to(DType::Bf16, v)), &context);
    same(&out.read(handle), &want.out, &format!("{context}: forward pass again"));
    same(&floats(handle, &dw), &want.weights, &format!("{context}: gradient of the weights"));

    let mxfp8 = Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3));
    let mut product = poisoned_matrix(handle, mxfp8.scheme(), rows, 2 * half);
    let into = SwigluGradientsInto { x: Some((mxfp8, &mut product).into()), ..Default::default() };
    handle.swiglu_backward(forward(), &gradient, into).unwrap();
    let want = reference::quantize(want.x.view(), DType::F32, mxfp8).unwrap();
    assert_device_bits(handle, &product, &want, &format!("{context}, and to mxfp8"));
}

/// No rows are a multiple of 4, to which scales by columns are padded. Halves of whole groups of 128, and others, of which the right one begins within a
/// group; of more columns than a block takes at once, the last ones no whole step; and so many rows that each has a warp, or two.
#[test]
fn every_grouping() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(995);
    let of_rows = |rows| {
        let e4m3 =
            |recipe: &CastRecipe| recipe.scheme().format() == CodeFormat::E4M3 && !recipe.scheme().is_transposed();
        recipes_of(rows).into_iter().filter(e4m3)
    };
    let (some, many) = (some_rows(&handle), many_rows(&handle));
    for (at, shape) in
        [(13, 160), (135, 1280), (5, 4480), (many, 576), (some, 576), (some, 2368)].into_iter().enumerate()
    {
        // What is large takes its time on the CPU.
        for (turn, from) in of_rows(shape.0).enumerate().step_by(if shape.1 == 2368 { 5 } else { 1 }) {
            check(&handle, &mut rng, shape, from, turn + at);
        }
    }
}
