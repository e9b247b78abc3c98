//! What is computed before a cast with results beside it equals the reference byte for byte: RMSNorm with a residual, the gradients of
//! SwiGLU; captures; what is refused.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "gpu_fused/of_codes.rs"]
mod of_codes;
#[path = "common/strided.rs"]
mod strided;
#[path = "gpu_fused/swiglu.rs"]
mod swiglu;

use cast::*;
use common::*;
use ndarray::Array2;
use scaled_gemm::reference::{self, RmsNorm, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer,
    DeviceBytes, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, Fp8Scales, GivenScale, Handle, KernelFamily, MatMut,
    MatRef, MxScaleRule, Mxfp8Recipe, QuantMatrix, Recipe, RmsNormArgs, RowIndex, Scheme, SwigluGradientsInto,
    SwigluSource, VecRef,
};
use strided::*;

fn along_rows() -> Vec<CastRecipe> {
    let mut all = Vec::new();
    for format in [CodeFormat::E4M3, CodeFormat::E2M1] {
        for group in CastGroup::ALL.into_iter().filter(|group| group.grid(128, 128)[0] == 128) {
            let scheme = CastScheme::new(format, group).unwrap();
            for scales in [CastScales::RowMajor, CastScales::ColumnMajor, CastScales::Ue8m0] {
                all.push(CastRecipe::new(scheme.with_scales(scales)));
            }
        }
    }
    all
}

/// Every way to call a norm, compared with the reference.
fn check_norm(
    handle: &Handle,
    rng: &mut Noise,
    shape: (usize, usize),
    dtype: DType,
    apart: usize,
    recipes: &[CastRecipe],
) {
    let (rows, cols) = shape;
    let x = Both::new(handle, dtype, cols + apart, numbers(rng, shape, true));
    let residual = numbers(rng, shape, true);
    let weight: Vec<f32> = (0..cols).map(|_| round_to(dtype, rng.uniform() + 0.5)).collect();
    let narrow = handle.upload(&bytes_of(dtype, &weight)).unwrap();
    let wide = handle.upload(&weight).unwrap();
    for (at, recipe) in recipes.iter().enumerate() {
        // So that every way meets every order of scales.
        let (recipe, way) = (*recipe, at + at / 3);
        // No residual, one with a sum of its own, one that is replaced; and the weight in both types.
        let other = Both::new(handle, dtype, cols + apart, residual.clone());
        let mut updated = Both::new(handle, dtype, cols + apart, residual.clone());
        let mut sum = Both::new(handle, dtype, cols + apart, Array2::zeros(shape));
        let given = (way % 3 > 0).then(|| other.values.clone());
        let options = RmsNorm { weight: &weight, epsilon: 1e-6, residual: given.as_ref().map(|r| r.view()), dtype };
        let want = reference::rms_norm(x.values.view(), &options).unwrap();
        let codes = reference::cast(&want.values.view().into(), recipe).unwrap();
        let context = format!("{rows} x {cols} {dtype}, {apart} apart, way {way}, to {}", recipe.scheme());
        let mut rstd = handle.alloc(4 * rows).unwrap();
        let mut got = poisoned_cast(handle, recipe.scheme(), rows, cols);
        let matrix = x.matrix();
        let of = if way % 2 == 0 { VecRef::new(&narrow, dtype, cols) } else { VecRef::new(&wide, DType::F32, cols) };
        let norm = RmsNormArgs::new(&matrix, of.unwrap(), 1e-6).unwrap().with_rstd(&mut rstd).unwrap();
        let read = other.matrix();
        let norm = match way % 3 {
            0 => norm,
            1 => norm.with_residual(&read, sum.matrix_mut()).unwrap(),
            _ => norm.with_updated_residual(updated.matrix_mut()).unwrap(),
        };
        handle.rms_norm_cast_into(norm, recipe, &mut got).unwrap();
        same(&floats(handle, &rstd), &want.rstd, &format!("{context}: factors"));
        match way % 3 {
            0 => {}
            1 => {
                same(&sum.read(handle), want.sum.as_ref().unwrap(), &format!("{context}: sum"));
                same(&other.read(handle), &other.values, &format!("{context}: residual, which is read alone"));
            }
            _ => same(&updated.read(handle), want.sum.as_ref().unwrap(), &format!("{context}: residual")),
        }
        assert_cast(handle, &got, &codes, &context);
    }
}

/// Small, for runs under a sanitizer.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(980);
    for dtype in INPUTS {
        for apart in [0, 8, 3] {
            let recipes = along_rows();
            check_norm(&handle, &mut rng, (5, 272), dtype, apart, &recipes);
            // A value in each of a thread's vectors.
            check_norm(&handle, &mut rng, (3, 6416), dtype, apart, &recipes);
            let long = recipes.iter().filter(|r| [CastGroup::Group1x32, CastGroup::Row].contains(&r.scheme().group()));
            check_norm(&handle, &mut rng, (2, 8208), dtype, apart, &long.copied().collect::<Vec<_>>());
            for rows in [5, 33] {
                swiglu::check_backward(&handle, &mut rng, (rows, 160), dtype, apart, 32);
            }
            swiglu::check_backward(&handle, &mut rng, (6, 2176), dtype, apart, 128);
            // A warp a row.
            swiglu::check_backward(&handle, &mut rng, (5, 512), dtype, apart, 128);
        }
    }
}

#[test]
fn norms() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(981);
    let recipes = along_rows();
    for (rows, cols) in [(0, 64), (1, 16), (127, 576), (129, 7168), (3, 8192), (2, 18944), (4001, 64)] {
        check_norm(&handle, &mut rng, (rows, cols), DType::Bf16, 0, &recipes);
    }
    // Rows enough for blocks with no more threads than a row takes: two, seven and five warps, and one of two vectors.
    let many = 4 * handle.device().sm_count as usize + 3;
    for (cols, dtype, apart) in
        [(2000, DType::Bf16, 0), (6416, DType::F16, 0), (4112, DType::F32, 0), (576, DType::Bf16, 3)]
    {
        check_norm(&handle, &mut rng, (many, cols), dtype, apart, &recipes);
    }
}

/// Into matrices that products read, and by the factors into tiles, channels and transposed codes.
#[test]
fn norms_for_products_and_tiles() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(982);
    for (rows, cols) in [(1, 64), (144, 576), (128, 16400)] {
        let x = Both::new(&handle, DType::Bf16, cols, numbers(&mut rng, (rows, cols), false));
        let weight: Vec<f32> = (0..cols).map(|_| rng.uniform() + 0.5).collect();
        let there = handle.upload(&weight).unwrap();
        let of_columns = || VecRef::new(&there, DType::F32, cols).unwrap();
        let matrix = x.matrix();
        let norm = || RmsNormArgs::new(&matrix, of_columns(), 1e-5).unwrap();
        let options = RmsNorm { weight: &weight, epsilon: 1e-5, residual: None, dtype: DType::Bf16 };
        let values = reference::rms_norm(x.values.view(), &options).unwrap().values;
        for granularity in [Fp8Granularity::Row, Fp8Granularity::Group1x128] {
            let recipe = Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
            let want = reference::quantize(values.view(), DType::F32, recipe).unwrap();
            let mut got = QuantMatrix::zeros(&handle, recipe.scheme(), rows, cols).unwrap();
            handle.rms_norm_quantize_into(norm(), recipe, &mut got).unwrap();
            assert_device_bits(&handle, &got, &want, &format!("norm of {rows} x {cols} {recipe:?}"));
        }
        let mut rstd = handle.alloc(4 * rows).unwrap();
        handle.rms_norm(norm().with_rstd(&mut rstd).unwrap()).unwrap();
        let factors = || VecRef::new(&rstd, DType::F32, rows).unwrap();
        let mxfp8 = Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3));
        let want = reference::quantize(values.view(), DType::F32, mxfp8).unwrap();
        let mut got = QuantMatrix::zeros(&handle, mxfp8.scheme(), rows, cols).unwrap();
        let source = CastSource::normed(&matrix, factors(), of_columns()).unwrap();
        handle.quantize_source_into(source, mxfp8, &mut got).unwrap();
        assert_device_bits(&handle, &got, &want, &format!("by factors, {rows} x {cols} to mxfp8"));
        for group in CastGroup::ALL {
            let scheme = CastScheme::new(CodeFormat::E4M3, group).unwrap();
            let transposed = group.is_per_channel() && rows.is_multiple_of(16);
            for scheme in [Some(scheme), transposed.then(|| scheme.transposed().unwrap())].into_iter().flatten() {
                let recipe = CastRecipe::new(scheme);
                let want = reference::cast(&values.view().into(), recipe).unwrap();
                let source = CastSource::normed(&matrix, factors(), of_columns()).unwrap();
                let got = handle.cast(source, recipe).unwrap();
                assert_cast(&handle, &got, &want, &format!("by factors, {rows} x {cols} to {scheme}"));
            }
        }
    }
}

/// One call to every target: those of one pass and those that take a second launch, which reads the sum and the factors that the first wrote.
#[test]
fn norms_are_sources() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(986);
    let nvfp4 = [Recipe::new(Scheme::Nvfp4Row), Recipe::new(Scheme::Nvfp4)];
    let mx = [Scheme::Mxfp8(Fp8Format::E4M3), Scheme::Mxfp8(Fp8Format::E5M2), Scheme::Mxfp4].map(Recipe::new);
    let fp8 = [Fp8Granularity::Row, Fp8Granularity::Group1x128, Fp8Granularity::Tensor]
        .map(|of| Fp8Recipe::new(of, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek).into());
    let number = handle.upload(&[3.5f32]).unwrap();
    for (rows, cols, dtype, apart) in
        [(129, 576, DType::Bf16, 0), (3, 8208, DType::Bf16, 0), (127, 320, DType::F16, 5), (5, 16400, DType::F32, 0)]
    {
        let x = Both::new(&handle, dtype, cols + apart, numbers(&mut rng, (rows, cols), false));
        let residual = numbers(&mut rng, (rows, cols), false);
        let weight: Vec<f32> = (0..cols).map(|_| rng.uniform() + 0.5).collect();
        let there = handle.upload(&weight).unwrap();
        let matrix = x.matrix();
        let of_columns = || VecRef::new(&there, DType::F32, cols).unwrap();
        let index: Vec<i32> = (0..rows as i32 + 3)
            .map(|i| if i % 5 == 2 { -1 } else { rows as i32 - 1 - i.min(rows as i32 - 1) })
            .collect();
        let chosen = RowIndex::new(&handle, &index, rows).unwrap();
        for way in 0..3 {
            let mut before = Both::new(&handle, dtype, cols + apart, residual.clone());
            let read = Both::new(&handle, dtype, cols + apart, residual.clone());
            let added = (way > 0).then(|| read.values.clone());
            let options = RmsNorm { weight: &weight, epsilon: 1e-5, residual: added.as_ref().map(|r| r.view()), dtype };
            let want = reference::rms_norm(x.values.view(), &options).unwrap();
            let mut rstd = handle.alloc(4 * rows).unwrap();
            let other = read.matrix();
            let mut run = |rstd: Option<&mut DeviceBuffer>, cast: &mut dyn FnMut(RmsNormArgs<'_>)| {
                // In place the sum would grow from call to call.
                handle.write(&mut before.data.view_mut(), &bytes_of(dtype, &apart_by(&read, f32::NAN))).unwrap();
                let norm = RmsNormArgs::new(&matrix, of_columns(), 1e-5).unwrap();
                let norm = match way {
                    0 => norm,
                    1 => norm.with_residual(&other, before.matrix_mut()).unwrap(),
                    _ => norm.with_updated_residual(before.matrix_mut()).unwrap(),
                };
                cast(match rstd {
                    Some(rstd) => norm.with_rstd(rstd).unwrap(),
                    None => norm,
                });
                if let Some(sum) = &want.sum {
                    same(&before.read(&handle), sum, "sum");
                }
            };
            for recipe in nvfp4.into_iter().chain(mx).chain(fp8) {
                let scheme = recipe.scheme();
                let context = format!("{rows} x {cols} {dtype}, way {way}, to {scheme}");
                let mut got = QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap();
                let at_once = matches!(scheme, Scheme::Fp8Row(_) | Scheme::Fp8Group1x128(_));
                run((!at_once).then_some(&mut rstd), &mut |norm| match scheme {
                    Scheme::Nvfp4 => {
                        let given = GivenScale::Amax(DeviceBytes::from(&number));
                        handle.quantize_source_nvfp4_into(norm, recipe, &given, &mut got).unwrap();
                    }
                    Scheme::Fp8Tensor(format) => {
                        let given = GivenScale::Encode(DeviceBytes::from(&number));
                        handle.quantize_source_tensor_into(norm, format, &given, &mut got, None).unwrap();
                    }
                    _ => handle.rms_norm_quantize_into(norm, recipe, &mut got).unwrap(),
                });
                let values = want.values.view();
                let want = match scheme {
                    Scheme::Nvfp4 => {
                        reference::quantize_with_scale(values, DType::F32, recipe, GivenScale::Amax(3.5)).unwrap()
                    }
                    Scheme::Fp8Tensor(format) => {
                        reference::quantize_tensor(values, format, GivenScale::Encode(3.5)).unwrap().0
                    }
                    _ => reference::quantize(values, DType::F32, recipe).unwrap(),
                };
                assert_device_bits(&handle, &got, &want, &context);
            }
            let tile = CastRecipe::new(CastScheme::new(CodeFormat::E4M3, CastGroup::Tile32x32).unwrap());
            let mut got = CastMatrix::zeros(&handle, tile.scheme(), rows, cols).unwrap();
            run(Some(&mut rstd), &mut |norm| handle.rms_norm_cast_into(norm, tile, &mut got).unwrap());
            assert_cast(&handle, &got, &reference::cast(&want.values.view().into(), tile).unwrap(), "norm to tiles");
            same(&floats(&handle, &rstd), &want.rstd, "factors");
            // Chosen rows of a norm, to what one pass writes otherwise.
            let rows_of = CastRecipe::new(CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128).unwrap());
            let picked = Array2::from_shape_fn((index.len(), cols), |(i, j)| {
                usize::try_from(index[i]).map_or(0.0, |row| want.values[[row, j]])
            });
            run(Some(&mut rstd), &mut |norm| {
                let got = handle.cast(CastSource::from(norm).gathered(&chosen).unwrap(), rows_of).unwrap();
                let want = reference::cast(&picked.view().into(), rows_of).unwrap();
                assert_cast(&handle, &got, &want, "chosen rows of a norm");
            });
        }
    }
}

#[test]
fn captured() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(984);
    handle.load_kernels(&[KernelFamily::Fused]).unwrap();
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128).unwrap();
    let (recipe, shape) = (CastRecipe::new(scheme), (33, 256));
    let mut x = Both::new(&handle, DType::Bf16, 256, numbers(&mut rng, shape, false));
    let weight: Vec<f32> = (0..256).map(|_| rng.uniform() + 0.5).collect();
    let there = handle.upload(&weight).unwrap();
    let mut residual = Both::new(&handle, DType::Bf16, 256, numbers(&mut rng, shape, false));
    let gradient = Both::new(&handle, DType::Bf16, 128, numbers(&mut rng, (33, 128), false));
    let mut normed = CastMatrix::zeros(&handle, scheme, 33, 256).unwrap();
    let mut dx = CastMatrix::zeros(&handle, scheme, 33, 256).unwrap();
    let graph = {
        let (matrix, g) = (x.matrix(), gradient.matrix());
        capture_owned(&handle, || {
            let weight = VecRef::new(&there, DType::F32, 256)?;
            let norm = RmsNormArgs::new(&matrix, weight, 1e-6)?.with_updated_residual(residual.matrix_mut())?;
            handle.rms_norm_cast_into(norm, recipe, &mut normed)?;
            let into = SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..SwigluGradientsInto::default() };
            handle.swiglu_backward(SwigluSource::new(&matrix)?, &g, into)
        })
        .unwrap()
    };
    let mut before = residual.values.clone();
    for _ in 0..3 {
        let other = Both::new(&handle, DType::Bf16, 256, numbers(&mut rng, shape, false));
        handle.write(&mut x.data.view_mut(), &bytes_of(DType::Bf16, &other.values)).unwrap();
        x.values = other.values;
        handle.launch(&graph).unwrap();
        let options = RmsNorm { weight: &weight, epsilon: 1e-6, residual: Some(before.view()), dtype: DType::Bf16 };
        let want = reference::rms_norm(x.values.view(), &options).unwrap();
        assert_cast(&handle, &normed, &reference::cast(&want.values.view().into(), recipe).unwrap(), "captured norm");
        before = want.sum.unwrap();
        same(&residual.read(&handle), &before, "captured sum");
        let want = reference::swiglu_backward(x.values.view(), gradient.values.view(), &Swiglu::default()).unwrap();
        assert_cast(&handle, &dx, &reference::cast(&want.x.view().into(), recipe).unwrap(), "captured gradients");
    }
}

/// What is refused has added nothing to a residual in place, also where two launches were to follow.
#[test]
fn refused_norms_leave_the_residual() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(988);
    let (rows, cols) = (16, 128);
    let x = Both::new(&handle, DType::Bf16, cols, numbers(&mut rng, (rows, cols), false));
    let mut residual = Both::new(&handle, DType::Bf16, cols, numbers(&mut rng, (rows, cols), false));
    let there = handle.upload(&vec![1.0f32; cols]).unwrap();
    let [mut factors, mut small] = [4 * rows, 3].map(|bytes| handle.alloc(bytes).unwrap());
    let number = handle.upload(&[3.5f32]).unwrap();
    let matrix = x.matrix();
    let mut refused = |what: &str, words: &[&str], call: &mut dyn FnMut(RmsNormArgs<'_>) -> scaled_gemm::Result<()>| {
        let weight = VecRef::new(&there, DType::F32, cols).unwrap();
        let norm = RmsNormArgs::new(&matrix, weight, 1e-6).unwrap().with_rstd(&mut factors).unwrap();
        let said = call(norm.with_updated_residual(residual.matrix_mut()).unwrap()).unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{what}: {said:?} lacks one of {words:?}");
        same(&residual.read(&handle), &residual.values, &format!("the residual after a refusal: {what}"));
    };
    let (fp8, nvfp4) = (Scheme::Fp8Tensor(Fp8Format::E4M3), Recipe::new(Scheme::Nvfp4));
    let [mut tensor, mut blocks] =
        [fp8, nvfp4.scheme()].map(|scheme| QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap());
    refused("an amax of 3 bytes", &["amax", "3 bytes"], &mut |norm| {
        let given = GivenScale::Encode(DeviceBytes::from(&number));
        let amax = Some(&mut (&mut small).into());
        handle.quantize_source_tensor_into(norm, Fp8Format::E4M3, &given, &mut tensor, amax)
    });
    let of_three = || GivenScale::Amax(DeviceBytes::from(&small));
    refused("a second level of 3 bytes", &["3 bytes"], &mut |norm| {
        handle.quantize_source_nvfp4_into(norm, nvfp4, &of_three(), &mut blocks)
    });
    refused("an encode factor of 3 bytes", &["3 bytes"], &mut |norm| {
        let given = GivenScale::Encode(DeviceBytes::from(&small));
        handle.quantize_source_tensor_into(norm, Fp8Format::E4M3, &given, &mut tensor, None)
    });
    refused("a scale given as an amax", &["amax"], &mut |norm| {
        let given = GivenScale::Amax(DeviceBytes::from(&number));
        handle.quantize_source_tensor_into(norm, Fp8Format::E4M3, &given, &mut tensor, None)
    });
    let tile = CastScheme::new(CodeFormat::E4M3, CastGroup::Tile32x32).unwrap();
    let mut short = CastMatrix::zeros(&handle, tile, rows - 1, cols).unwrap();
    refused("a target of fewer rows", &["15 x 128", "16 x 128"], &mut |norm| {
        handle.rms_norm_cast_into(norm, CastRecipe::new(tile), &mut short)
    });
    handle.synchronize().unwrap();
}

#[test]
fn refusals() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(985);
    let x = Both::new(&handle, DType::Bf16, 128, numbers(&mut rng, (16, 128), false));
    let g = Both::new(&handle, DType::Bf16, 64, numbers(&mut rng, (16, 64), false));
    let (matrix, gradient) = (x.matrix(), g.matrix());
    let says = |result: scaled_gemm::Result<()>, words: &[&str]| {
        let said = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said:?} lacks one of {words:?}");
    };
    let there = handle.alloc(4 * 128).unwrap();
    let weight = || VecRef::new(&there, DType::F32, 128).unwrap();
    says(
        RmsNormArgs::new(&matrix, VecRef::new(&there, DType::F32, 127).unwrap(), 1e-6).map(drop),
        &["127 elements", "128 columns"],
    );
    says(RmsNormArgs::new(&matrix, VecRef::new(&there, DType::F16, 128).unwrap(), 1e-6).map(drop), &["f16", "bf16"]);
    says(RmsNormArgs::new(&matrix, weight(), -1.0).map(drop), &["-1", "at least 0"]);
    let norm = || RmsNormArgs::new(&matrix, weight(), 1e-6).unwrap();
    let mut narrow = handle.alloc(2 * 16 * 64).unwrap();
    let half = MatMut::new(&mut narrow, DType::Bf16, 16, 64).unwrap();
    says(norm().with_updated_residual(half).map(drop), &["16 x 64", "16 x 128"]);
    let mut f16 = handle.alloc(2 * 16 * 128).unwrap();
    let other = MatMut::new(&mut f16, DType::F16, 16, 128).unwrap();
    says(norm().with_updated_residual(other).map(drop), &["residual of a norm", "f16", "must be bf16, as x"]);
    let mut few = handle.alloc(60).unwrap();
    says(norm().with_rstd(&mut few).map(drop), &["60 bytes", "16 rows"]);
    says(handle.rms_norm(norm()), &["with_rstd"]);
    let tile = CastScheme::new(CodeFormat::E4M3, CastGroup::Tile128x128).unwrap();
    let mut out = CastMatrix::zeros(&handle, tile, 16, 128).unwrap();
    says(handle.rms_norm_cast_into(norm(), CastRecipe::new(tile), &mut out), &["two launches", "with_rstd"]);
    let mxfp8 = Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3));
    let mut product = QuantMatrix::zeros(&handle, mxfp8.scheme(), 16, 128).unwrap();
    says(handle.rms_norm_quantize_into(norm(), mxfp8, &mut product), &["two launches", "with_rstd"]);
    let tensor = Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let mut product = QuantMatrix::zeros(&handle, tensor.scheme(), 16, 128).unwrap();
    says(handle.rms_norm_quantize_into(norm(), tensor, &mut product), &["twice"]);

    let forward = || SwigluSource::new(&matrix).unwrap();
    says(handle.swiglu_backward(forward(), &matrix, SwigluGradientsInto::default()), &["16 x 128", "16 x 64"]);
    let scheme = |group| CastScheme::new(CodeFormat::E4M3, group).unwrap();
    let into = |recipe_of: CastScheme, words: &[&str]| {
        let mut dx = CastMatrix::zeros(&handle, recipe_of, 16, 128).unwrap();
        let into = SwigluGradientsInto { x: Some((CastRecipe::new(recipe_of), &mut dx).into()), ..Default::default() };
        says(handle.swiglu_backward(forward(), &gradient, into), words);
    };
    into(scheme(CastGroup::Group1x64), &["1x64", "1x32 or 1x128"]);
    // Halves of 64 columns would share groups.
    into(scheme(CastGroup::Group1x128), &["64 columns", "multiple of 128"]);
    let product = |recipe: Recipe, words: &[&str]| {
        let mut dx = QuantMatrix::zeros(&handle, recipe.scheme(), 16, 128).unwrap();
        let into = SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() };
        says(handle.swiglu_backward(forward(), &gradient, into), words);
    };
    let of = |granularity| Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    product(of(Fp8Granularity::Row).into(), &["fp8-row", "fp8-1x128 or mxfp8"]);
    product(Recipe::new(Scheme::Mxfp4), &["mxfp4", "fp8-1x128 or mxfp8"]);
    product(of(Fp8Granularity::Group1x128).into(), &["64 columns", "multiple of 128"]);
    product(of(Fp8Granularity::Group1x128).with_rule(Fp8Rule::TorchAo).into(), &["deepseek"]);
    let odd = MatMut::new(&mut f16, DType::Bf16, 8, 128).unwrap().with_row_stride(130).unwrap();
    let few = MatRef::new(&x.data, DType::Bf16, 8, 128).unwrap();
    let of_few = MatRef::new(&g.data, DType::Bf16, 8, 64).unwrap();
    let into = SwigluGradientsInto { x_bf16: Some(odd), ..Default::default() };
    says(handle.swiglu_backward(SwigluSource::new(&few).unwrap(), &of_few, into), &["130", "multiple of 8"]);
    let mut counts = handle.alloc(24).unwrap();
    let counting = forward().with_clamp(1.0).unwrap().with_counts(&mut counts).unwrap();
    says(handle.swiglu_backward(counting, &gradient, SwigluGradientsInto::default()), &["counting", "forward"]);
    let coded = CastMatrix::zeros(&handle, scheme(CastGroup::Row), 16, 128).unwrap();
    let forward_of_codes = SwigluSource::of_codes(&coded).unwrap();
    says(handle.cast(forward_of_codes, CastRecipe::new(scheme(CastGroup::Row))).map(drop), &["backward"]);
    handle.synchronize().unwrap();
}
