//! The same where rows are many: groups along rows, and whole rows to E2M1, have other kernels there. Few rows again and again, no two of a square of
//! eight alike, so that the reference takes no time.

use super::{ALONG_ROWS, ends, gated_to};
use crate::cast::*;
use crate::common::*;
use ndarray::Array2;
use scaled_gemm::reference::{self, CastInput, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastSource, CodeFormat, DType, Handle, HostCastMatrix, MatRef,
    SourceActivation, SwigluSource, VecRef,
};

/// Of these one is a multiple of no group but the smallest, so that no matrix of it is one long row, and one has rows of two parts.
const HIDDEN: [usize; 5] = [2048, 4608, 5008, 7168, 16384];

/// Rows that are repeated: no multiple of what a block takes.
const DISTINCT: usize = 61;

/// More than a block for each row, or part of one, would be few of; and no multiple of 4.
fn many(handle: &Handle) -> usize {
    4 * handle.device().sm_count as usize + 5
}

/// From the first column to the last, in other lanes for each row.
fn place(i: usize, hidden: usize) -> usize {
    i * (hidden - 1) / (DISTINCT - 1)
}

/// `least` everywhere but for one `most` in each row; every other row negative.
fn one_above(hidden: usize, [least, most]: [f32; 2]) -> Array2<f32> {
    Array2::from_shape_fn((DISTINCT, hidden), |(i, j)| {
        let v = if j == place(i, hidden) { most } else { least };
        if i % 2 == 0 { v } else { -v }
    })
}

/// Codes likewise, the largest of the format and the one below; without `most`, that one alone. All have one scale, which puts the largest code of
/// the target between the two, so that powers of two decide as well.
fn codes_above(hidden: usize, of: CodeFormat, to: CodeFormat, most: bool) -> HostCastMatrix {
    let bytes = of == CodeFormat::E4M3;
    let (least, sign, middle) = if bytes { (0x7D, 0x80, 432.0) } else { (0x6, 0x8, 5.0) };
    let code = |i: usize, j: usize| {
        let code = least + u8::from(most && j == place(i, hidden));
        if i.is_multiple_of(2) { code } else { code | sign }
    };
    let all = |step: usize| (0..DISTINCT).flat_map(move |i| (0..hidden).step_by(step).map(move |j| (i, j)));
    let codes: Vec<u8> = match bytes {
        true => all(1).map(|(i, j)| code(i, j)).collect(),
        false => all(2).map(|(i, j)| code(i, j) | code(i, j + 1) << 4).collect(),
    };
    let from = scheme(of, CastGroup::Group1x128);
    let [r, c] = from.group().grid(DISTINCT, hidden);
    HostCastMatrix::from_logical(from, DISTINCT, hidden, codes, vec![to.max() / middle; r * c]).unwrap()
}

/// Every group along rows, scales in every order.
fn recipes(format: CodeFormat) -> impl Iterator<Item = CastRecipe> {
    let schemes =
        ALONG_ROWS.into_iter().flat_map(move |group| CastScales::ALL.map(|s| scheme(format, group).with_scales(s)));
    schemes.map(CastRecipe::new)
}

/// What [`DISTINCT`] rows hold, again and again.
fn repeated<T: Copy>(of: &[T], rows: usize) -> Vec<T> {
    let mut all = of.repeat(rows.div_ceil(DISTINCT));
    all.truncate(rows * (of.len() / DISTINCT));
    all
}

fn repeated_cast(q: &HostCastMatrix, rows: usize) -> HostCastMatrix {
    let (codes, scales) = (repeated(q.codes(), rows), repeated(q.scales(), rows));
    HostCastMatrix::from_logical(q.scheme(), rows, q.cols(), codes, scales).unwrap()
}

/// Casts, and compares every byte with the rows of `want`, repeated.
fn check(handle: &Handle, source: CastSource<'_>, (recipe, want): &(CastRecipe, HostCastMatrix), context: &str) {
    let (rows, cols) = (source.rows(), source.cols());
    let mut got = poisoned_cast(handle, recipe.scheme(), rows, cols);
    handle.cast_into(source, *recipe, &mut got).unwrap();
    let context = format!("{context} of {rows} x {cols} to {} {:?}", recipe.scheme(), recipe.numbers());
    assert_cast(handle, &got, &repeated_cast(want, rows), &context);
}

/// What a kernel would write that misses the largest element of a row has another scale, in one group of the row. Needs no GPU.
#[test]
fn the_data_decide() {
    let decides = |with_and_without: [CastInput<'_>; 2], recipe: CastRecipe| {
        let [with, without] = with_and_without.map(|x| reference::cast_scales(&x, recipe).unwrap());
        let groups = with.len() / DISTINCT;
        let differ = |i: usize| (0..groups).filter(|g| with[i * groups + g] != without[i * groups + g]).count();
        assert!((0..DISTINCT).all(|i| differ(i) == 1), "{recipe:?}");
    };
    for hidden in HIDDEN.into_iter().step_by(2) {
        for format in FORMATS {
            let [least, most] = ends(format);
            let [with, without] = [most, least].map(|most| one_above(hidden, [least, most]));
            recipes(format).for_each(|to| decides([with.view().into(), without.view().into()], to.power_of_two()));
            for of in FORMATS {
                let [with, without] = [true, false].map(|most| codes_above(hidden, of, format, most));
                for recipe in recipes(format) {
                    decides([(&with).into(), (&without).into()], recipe);
                    decides([(&with).into(), (&without).into()], recipe.power_of_two());
                }
            }
        }
    }
}

/// Every type; BF16 with rows that begin at no multiple of 16 bytes, too.
#[test]
fn plain() {
    let Some(handle) = handle() else { return };
    let rows = many(&handle);
    for hidden in HIDDEN {
        for format in FORMATS {
            let x = one_above(hidden, ends(format));
            let cast = |recipe: CastRecipe| (recipe, reference::cast(&x.view().into(), recipe).unwrap());
            let wanted: Vec<_> = recipes(format).map(|recipe| cast(recipe.power_of_two())).collect();
            for (dtype, apart) in [(DType::Bf16, 0), (DType::F16, 0), (DType::F32, 0), (DType::Bf16, 3)] {
                let values = |(i, j)| if j < hidden { x[(i, j)] } else { f32::NAN };
                let values = Array2::from_shape_fn((DISTINCT, hidden + apart), values);
                let data = handle.upload(&repeated(&bytes_of(dtype, &values), rows)).unwrap();
                let matrix = MatRef::new(&data, dtype, rows, hidden).unwrap().with_row_stride(hidden + apart).unwrap();
                for want in &wanted {
                    check(&handle, (&matrix).into(), want, &format!("{dtype}, {apart} apart,"));
                }
            }
        }
    }
}

/// Both formats, scales as FP32 exact.
#[test]
fn codes() {
    let Some(handle) = handle() else { return };
    let rows = many(&handle);
    for hidden in HIDDEN {
        for (of, to) in FORMATS.into_iter().flat_map(|of| FORMATS.map(|to| (of, to))) {
            let few = codes_above(hidden, of, to, true);
            let there = CastMatrix::from_host(&handle, &repeated_cast(&few, rows)).unwrap();
            for recipe in recipes(to) {
                let want = (recipe, reference::cast(&(&few).into(), recipe).unwrap());
                check(&handle, (&there).into(), &want, &format!("{}", few.scheme()));
            }
        }
    }
}

/// SwiGLU without anything, with weights, and SiLU, which have kernels of their own each.
#[test]
fn producers() {
    let Some(handle) = handle() else { return };
    let rows = many(&handle);
    let ones = handle.upload(&vec![1.0f32; rows]).unwrap();
    for (turn, hidden) in HIDDEN.into_iter().enumerate() {
        for (at, format) in FORMATS.into_iter().enumerate() {
            let dtype = INPUTS[(turn + at) % 3];
            let x = one_above(hidden, ends(format));
            let (gated, positive) = (gated_to(x.mapv(|v| v / 32.0)), x.mapv(f32::abs));
            let values =
                [reference::swiglu(gated.view(), &Swiglu::default()).unwrap().0, reference::silu(positive.view())];
            assert!(values[0] == x && values[1] == positive, "every value is as it was meant");
            let [wide, narrow] =
                [&gated, &positive].map(|x| handle.upload(&repeated(&bytes_of(dtype, x), rows)).unwrap());
            let wide = MatRef::new(&wide, dtype, rows, 2 * hidden).unwrap();
            let narrow = MatRef::new(&narrow, dtype, rows, hidden).unwrap();
            for recipe in recipes(format).map(CastRecipe::power_of_two) {
                let [gated, activated] = [&values[0], &values[1]]
                    .map(|values| (recipe, reference::cast(&values.view().into(), recipe).unwrap()));
                let swiglu = || SwigluSource::new(&wide).unwrap();
                check(&handle, swiglu().into(), &gated, &format!("SwiGLU of {dtype}"));
                let weights = VecRef::new(&ones, DType::F32, rows).unwrap();
                let weighted = swiglu().with_weights(weights).unwrap();
                check(&handle, weighted.into(), &gated, &format!("SwiGLU of {dtype}, weighted,"));
                let silu = CastSource::activated(&narrow, SourceActivation::Silu);
                check(&handle, silu, &activated, &format!("SiLU of {dtype}"));
            }
        }
    }
}
