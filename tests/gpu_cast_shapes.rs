//! Casts from codes, SwiGLU and its gradients, and casts back over the shapes and kinds of data of plain casts, sampled: bytes equal the
//! reference's.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "common/producers.rs"]
mod producers;

use cast::*;
use common::*;
use ndarray::Array2;
use producers::*;
use scaled_gemm::reference::{self, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Handle, HostCastMatrix, MatMut,
    MatRef, SwigluGradientsInto, SwigluSource, VecRef,
};

const SHAPES: [(usize, usize); 7] = [(0, 64), (1, 64), (1, 18944), (127, 576), (129, 18944), (4001, 64), (4001, 7168)];

/// Exact and powers of two of every scheme that rows allow.
fn recipes(rows: usize) -> Vec<CastRecipe> {
    let kinds = |scheme: CastScheme| {
        let exact = CastRecipe::new(scheme);
        if scheme.scales() == CastScales::Ue8m0 { vec![exact] } else { vec![exact, exact.power_of_two()] }
    };
    schemes(rows).into_iter().flat_map(kinds).collect()
}

/// Every grouping with every other would take hours: each is met, as a source and as a target, and the pairs are others in each shape.
#[test]
fn codes_to_codes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(920);
    for (shape, (rows, cols)) in SHAPES.into_iter().enumerate() {
        let x = of_kind(&mut rng, ["nan", "outliers", "powers"][shape % 3], rows, cols, DType::F32);
        let (sources, targets) = (recipes(1), recipes(rows));
        // The reference takes a tenth of a second for the largest.
        let step = if rows * cols > 1 << 22 { 17 } else { 3 };
        for (at, from) in sources.iter().enumerate().skip(shape % step).step_by(step) {
            let q = reference::cast(&x.view().into(), *from).unwrap();
            let there = CastMatrix::from_host(&handle, &q).unwrap();
            for way in 0..if rows * cols > 1 << 22 { 4 } else { 9 } {
                let to = targets[(at * 7 + way * 13 + shape) % targets.len()];
                let want = reference::cast(&(&q).into(), to).unwrap();
                let mut got = poisoned_cast(&handle, to.scheme(), rows, cols);
                handle.cast_into(&there, to, &mut got).unwrap();
                assert_cast(&handle, &got, &want, &format!("{rows} x {cols} of {from:?} to {to:?}"));
            }
        }
    }
}

/// E4M3 codes to E2M1 in groups of 32 columns and more, which are found by thresholds (`kernels/cast/thresholds.cuh`): below each largest code of a group all that are
/// smaller, under scales of which many make ties, and such as thresholds do not serve; least amax that count, and powers of two as well.
#[test]
fn every_code_below_every_largest() {
    let Some(handle) = handle() else { return };
    let (rows, cols) = (126 * 12 + 37, 640);
    let scales = [1.0, 0.25, 1.0 / 3.0, 0.7, 1.1e-30, 9e-31, 2f32.powi(-140), 0.0, 9e29, 1.1e30, 3e35, 3.1e-5];
    let mut rng = Noise::new(925);
    let code = |row: usize, col: usize, noise: u64| {
        let (largest, group, at) = (1 + row % 126, col / 32, col % 32);
        let magnitude = if at == group % 32 { largest } else { (31 * group + at) % (largest + 1) };
        magnitude as u8 | if noise.is_multiple_of(2) { 0 } else { 0x80 }
    };
    let codes: Vec<u8> = (0..rows * cols).map(|i| code(i / cols, i % cols, rng.bits())).collect();
    for from in [CastGroup::Group1x128, CastGroup::Group1x32, CastGroup::Group1x64] {
        let from = scheme(CodeFormat::E4M3, from);
        let [_, groups] = from.group().grid(rows, cols);
        let of_groups = (0..rows * groups)
            .map(|i| scales[(i / groups / 126 + i % groups % 2 * (i / groups % 2)) % scales.len()])
            .collect();
        let q = HostCastMatrix::from_logical(from, rows, cols, codes.clone(), of_groups).unwrap();
        let there = CastMatrix::from_host(&handle, &q).unwrap();
        for to in [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128] {
            let exact = CastRecipe::new(scheme(CodeFormat::E2M1, to));
            for recipe in [exact, exact.power_of_two(), exact.with_floor(30.0).unwrap()] {
                let want = reference::cast(&(&q).into(), recipe).unwrap();
                let mut got = poisoned_cast(&handle, recipe.scheme(), rows, cols);
                handle.cast_into(&there, recipe, &mut got).unwrap();
                assert_cast(&handle, &got, &want, &format!("{from} to {recipe:?}"));
            }
        }
    }
}

/// To kernels whose lanes have sixteen neighbours, and those of matrices without gaps, few rows and many, the last block a part of one: numbers of every size that
/// their type has, so that factors of two are inside and outside of what products of 16 bits are found with; ties, and in some rows NaN.
#[test]
fn sixteen_neighbours_of_all_sizes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(924);
    let groups =
        [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128, CastGroup::Row];
    for (dtype, least, sizes) in [(DType::Bf16, -133, 255), (DType::F16, -26, 40)] {
        for rows in [5, 4 * handle.device().sm_count as usize + 5] {
            let cols = 17 * 128;
            let mut x = of_kind(&mut rng, "ties", rows, cols, DType::F32);
            for (i, mut row) in x.rows_mut().into_iter().enumerate() {
                let factor = 2f64.powi(least + (i * 7 % sizes) as i32);
                row.mapv_inplace(|v| round_to(dtype, (f64::from(v) / 448.0 * factor) as f32));
                if i % 5 == 4 {
                    row[i * 31 % cols] = f32::NAN;
                }
            }
            for stride in [cols, cols + 8] {
                let buffer = upload_strided(&handle, &x, dtype, stride, 0);
                let matrix = MatRef::new(&buffer, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap();
                for recipe in recipes(1).into_iter().filter(|recipe| groups.contains(&recipe.scheme().group())) {
                    let want = reference::cast(&x.view().into(), recipe).unwrap();
                    let mut got = poisoned_cast(&handle, recipe.scheme(), rows, cols);
                    handle.cast_into(&matrix, recipe, &mut got).unwrap();
                    assert_cast(&handle, &got, &want, &format!("{rows} x {cols} {dtype}, stride {stride}, {recipe:?}"));
                }
            }
        }
    }
}

fn check_swiglu(handle: &Handle, x: &Array2<f32>, dtype: DType, recipe: CastRecipe, context: &str) {
    let (rows, half) = (x.nrows(), x.ncols() / 2);
    let (values, _) = reference::swiglu(x.view(), &Swiglu::default()).unwrap();
    let per_channel = recipe.scheme().group().is_per_channel();
    let values = if per_channel { reference::round_values(values, DType::Bf16) } else { values };
    let want = reference::cast(&values.view().into(), recipe).unwrap();
    let data = handle.upload(&bytes_of(dtype, x)).unwrap();
    let matrix = MatRef::new(&data, dtype, rows, 2 * half).unwrap();
    let mut got = poisoned_cast(handle, recipe.scheme(), rows, half);
    handle.cast_into(SwigluSource::new(&matrix).unwrap(), recipe, &mut got).unwrap();
    assert_cast(handle, &got, &want, &format!("SwiGLU of {context}, {rows} x {half} {dtype}, to {recipe:?}"));
}

#[test]
fn swiglu() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(921);
    for (shape, (rows, half)) in [(4001, 64), (4001, 1024), (129, 18944), (1, 18944)].into_iter().enumerate() {
        let gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
        let step = if rows * half > 1 << 20 { 11 } else { 3 };
        for recipe in recipes(rows).into_iter().skip(shape % step).step_by(step) {
            check_swiglu(&handle, &gated.x, DType::Bf16, recipe, "mixed numbers");
        }
    }
    // Every kind of data to every recipe: column-major, bytes, powers of two, transposed.
    for kind in ["zeros", "subnormal", "tiny", "powers", "ties", "outliers", "specials"] {
        for dtype in INPUTS {
            let x = of_kind(&mut rng, kind, 160, 2 * 144, dtype);
            for recipe in recipes(160) {
                check_swiglu(&handle, &x, dtype, recipe, kind);
            }
        }
    }
}

#[test]
fn gradients() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(922);
    let kinds = ["nan", "zeros", "subnormal", "powers", "ties", "outliers"];
    let cases = [(4001, 128), (4001, 1024), (129, 9472), (1, 18944)].into_iter().map(|shape| (shape, "nan"));
    let cases: Vec<_> = cases.chain(kinds.map(|kind| ((96, 256), kind))).collect();
    for ((rows, half), kind) in cases {
        let gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
        let x = if kind == "nan" { gated.x.clone() } else { of_kind(&mut rng, kind, rows, 2 * half, DType::Bf16) };
        let g = of_kind(&mut rng, if kind == "nan" { "outliers" } else { kind }, rows, half, DType::Bf16);
        let [x_there, g_there] = [&x, &g].map(|m| handle.upload(&bytes_of(DType::Bf16, m)).unwrap());
        let matrix = MatRef::new(&x_there, DType::Bf16, rows, 2 * half).unwrap();
        let gradient = MatRef::new(&g_there, DType::Bf16, rows, half).unwrap();
        for (way, scales) in CastScales::ALL.into_iter().enumerate() {
            let group = [CastGroup::Group1x128, CastGroup::Group1x32][way % 2];
            let exact = CastRecipe::new(scheme(CodeFormat::E4M3, group).with_scales(scales));
            for recipe in [exact, exact.power_of_two()] {
                let all = way != 1;
                let want = reference::swiglu_backward(x.view(), g.view(), &gated.options(all)).unwrap();
                let want = reference::cast(&want.x.view().into(), recipe).unwrap();
                let mut source = SwigluSource::new(&matrix).unwrap();
                if all {
                    let weights = VecRef::new(&gated.weights_there, DType::F32, rows).unwrap();
                    source = source.with_clamp(10.0).unwrap().with_weights(weights).unwrap();
                    source = source.with_experts(&gated.experts_there).unwrap();
                }
                let mut dx = poisoned_cast(&handle, recipe.scheme(), rows, 2 * half);
                let into = SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() };
                handle.swiglu_backward(source, &gradient, into).unwrap();
                assert_cast(&handle, &dx, &want, &format!("gradients of {kind}, {rows} x {half}, {recipe:?}"));
            }
        }
    }
}

#[test]
fn back() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(923);
    for (rows, cols, step) in [(4001, 7168, 9), (4001, 64, 1), (127, 18944, 5), (1, 576, 1)] {
        let x = of_kind(&mut rng, "outliers", rows, cols, DType::F32);
        for (at, recipe) in recipes(rows).into_iter().enumerate().step_by(step) {
            let q = reference::cast(&x.view().into(), recipe).unwrap();
            let there = CastMatrix::from_host(&handle, &q).unwrap();
            let dtype = INPUTS[at % 3];
            let mut y = poisoned(&handle, rows * cols * dtype.bytes());
            handle.cast_back_into(&there, &mut MatMut::new(&mut y, dtype, rows, cols).unwrap()).unwrap();
            let got = values_of(dtype, &handle.stream().clone_dtoh(&y).unwrap());
            let want = reference::cast_back(&q, dtype);
            let context = format!("{rows} x {cols} of {recipe:?} to {dtype}");
            assert_same_values(&got, want.as_slice().unwrap(), cols, &context);
        }
    }
}
