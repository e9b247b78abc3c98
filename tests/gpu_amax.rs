//! The largest magnitude is found in rows as long as those of models: hidden sizes from 2048 to 16384 in steps of 256, in each of which one
//! element alone is above its neighbours, so that a kernel that misses it writes another scale. Every way to read rows: plain, codes, producers and gradients; casts, what
//! products read, transposes, whole matrices and tiles, grouped tensors. And the published case whose amax no 16-bit number holds.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "common/grouped.rs"]
mod grouped;
#[path = "gpu_amax/many_rows.rs"]
mod many_rows;
#[path = "gpu_amax/of_codes.rs"]
mod of_codes;
#[path = "common/targets.rs"]
mod targets;

use cast::*;
use common::*;
use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::reference::{self, GroupedView, RmsNorm, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer, Fp8Format,
    Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale, GroupedDeviceLayout, GroupedLayout, GroupedRecipe, GroupedScheme,
    Handle, HostCastMatrix, HostQuantMatrix, MatRef, QuantMatrix, QuantizeTo, Recipe, RmsNormArgs, Scheme,
    SourceActivation, SwigluGradientsInto, SwigluSource, VecRef,
};
use targets::Target;

const ROWS: usize = 4;

fn hidden_sizes() -> impl Iterator<Item = usize> {
    (2048..=16384).step_by(256)
}

/// The place of the largest element of a row: another in each row and size, in each quarter; in odd rows, and from the fourth on, in another lane for each, too.
fn place(i: usize, hidden: usize) -> usize {
    (i * hidden / 4 + hidden - 168 + i % 2 * 37 * (hidden / 256) + i / ROWS * 13) % hidden
}

/// `least` everywhere but for one `most` in each row; every other row negative.
fn one_above(hidden: usize, ends: [f32; 2]) -> Array2<f32> {
    rows_above(ROWS, hidden, ends)
}

/// The same of so many rows.
fn rows_above(rows: usize, hidden: usize, [least, most]: [f32; 2]) -> Array2<f32> {
    Array2::from_shape_fn((rows, hidden), |(i, j)| {
        let v = if j == place(i, hidden) { most } else { least };
        if i % 2 == 0 { v } else { -v }
    })
}

/// Exactly the largest code times a power of two, and the next BF16 number.
fn ends(format: CodeFormat) -> [f32; 2] {
    if format == CodeFormat::E2M1 { [384.0, 386.0] } else { [448.0, 450.0] }
}

const ALONG_ROWS: [CastGroup; 5] =
    [CastGroup::Row, CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128];

fn to(format: CodeFormat, group: CastGroup) -> CastRecipe {
    CastRecipe::new(scheme(format, group)).power_of_two()
}

/// The same in one row alone, another for each size: a whole matrix has one largest element.
fn one_in_all(hidden: usize, [least, most]: [f32; 2]) -> Array2<f32> {
    let mut x = one_above(hidden, [least, most]);
    x.mapv_inplace(|v| if v.abs() == most { v.signum() * least } else { v });
    let row = hidden / 256 % ROWS;
    x[(row, place(row, hidden))] = -most;
    x
}

/// `[32 | r]`: 32 times its sigmoid is 32 in FP32, so that the products are 448, and 450 once.
fn gated(hidden: usize) -> Array2<f32> {
    gated_to(one_above(hidden, [14.0, 14.0625]))
}

/// The same of any right half: 32 times that.
fn gated_to(right: Array2<f32>) -> Array2<f32> {
    let hidden = right.ncols();
    Array2::from_shape_fn((right.nrows(), 2 * hidden), |(i, j)| if j < hidden { 32.0 } else { right[(i, j - hidden)] })
}

/// Of the columns of a norm: divided by the root of the mean of squares, which is a little above 448, those of 448 become a little less
/// than this, and those of 450 more than 448.
const NORM_WEIGHT: f32 = 447.0;

/// What the backward pass of SwiGLU reads: l and r of 32 everywhere, so that both gradients are 32 times g, 448, and 450 once.
fn backward(hidden: usize) -> [Array2<f32>; 2] {
    [Array2::from_elem((ROWS, 2 * hidden), 32.0), one_above(hidden, [14.0, 14.0625])]
}

/// Twice its neighbours, so that any block's scale is another: those of E4M3 with a given second level have three bits.
const TWICE: [f32; 2] = [256.0, 512.0];

/// Blocks of 16 and 32, and one given scale.
fn block_targets() -> [Target; 6] {
    let blocks = [Scheme::Mxfp8(Fp8Format::E4M3), Scheme::Mxfp8(Fp8Format::E5M2), Scheme::Mxfp4, Scheme::Nvfp4Row];
    let [e4m3, e5m2, mxfp4, row] = blocks.map(|scheme| Target::Found(Recipe::new(scheme)));
    let given = Target::Level(Recipe::new(Scheme::Nvfp4), GivenScale::Amax(600.0));
    [e4m3, e5m2, mxfp4, row, given, Target::Scale(Fp8Format::E4M3, GivenScale::Encode(0.75))]
}

fn exact_and_not(granularity: Fp8Granularity, rule: Fp8Rule) -> [Recipe; 2] {
    let exact = Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(rule);
    [exact, exact.power_of_two()].map(Recipe::from)
}

/// What is quantized along rows, with a scale of whole matrices, or of tiles.
fn product_recipes() -> Vec<Recipe> {
    let along_rows = [Fp8Granularity::Row, Fp8Granularity::Group1x128];
    let along_rows = along_rows.into_iter().flat_map(|of| exact_and_not(of, Fp8Rule::DeepSeek));
    let blocks = [Scheme::Mxfp8(Fp8Format::E4M3), Scheme::Mxfp4, Scheme::Nvfp4Row, Scheme::Nvfp4].map(Recipe::new);
    along_rows.chain(blocks).chain(whole_recipes()).collect()
}

fn whole_recipes() -> impl Iterator<Item = Recipe> {
    let whole = [Fp8Granularity::Tensor, Fp8Granularity::Group128x128];
    whole.into_iter().flat_map(|of| exact_and_not(of, Fp8Rule::TransformerEngine))
}

/// Without its largest element a row would have another scale: or a kernel that misses it would pass. Needs no GPU.
#[test]
fn the_data_decide() {
    let decides = |values: &Array2<f32>, recipe: CastRecipe| {
        let hidden = values.ncols();
        let mut without = values.clone();
        for i in 0..ROWS {
            without[(i, place(i, hidden))] = without[(i, (place(i, hidden) + 1) % hidden)];
        }
        let scales = |x: &Array2<f32>| reference::cast_scales(&x.view().into(), recipe).unwrap();
        assert!(scales(values).iter().zip(scales(&without)).all(|(a, b)| *a == 2.0 * b), "{hidden} {recipe:?}");
    };
    for hidden in hidden_sizes().step_by(8) {
        FORMATS.into_iter().for_each(|format| decides(&one_above(hidden, ends(format)), to(format, CastGroup::Row)));
        let row = to(CodeFormat::E4M3, CastGroup::Row);
        decides(&reference::swiglu(gated(hidden).view(), &Swiglu::default()).unwrap().0, row);
        decides(&reference::silu(one_above(hidden, [448.0, 450.0]).mapv(f32::abs).view()), row);
        let weight = vec![NORM_WEIGHT; hidden];
        let options = RmsNorm::new(&weight, 1e-6, DType::Bf16);
        decides(&reference::rms_norm(one_above(hidden, [448.0, 450.0]).view(), &options).unwrap().values, row);
        let positive = one_above(hidden, [448.0, 450.0]).mapv(f32::abs);
        decides(&reference::gelu(positive.view()), row);
        decides(&reference::gelu_tanh(positive.view()), row);
        let [x, g] = backward(hidden);
        let gradients = reference::swiglu_backward(x.view(), g.view(), &Swiglu::default()).unwrap().x;
        for half in [0, hidden] {
            decides(&gradients.slice(s![.., half..half + hidden]).to_owned(), row);
        }
    }
}

/// The same of what products read.
#[test]
fn the_data_decide_for_products() {
    let scales = |q: &HostQuantMatrix| {
        let scales: Vec<_> = q.scales().iter().map(|scale| scale.to_bits()).collect();
        (scales, q.block_scales().to_vec())
    };
    // A matrix with the largest element of a row, and without.
    let both = |x: Array2<f32>, row: usize| {
        let mut without = x.clone();
        without[(row, place(row, x.ncols()))] = x[(row, (place(row, x.ncols()) + 1) % x.ncols())];
        [x, without]
    };
    for hidden in hidden_sizes().step_by(8) {
        for target in block_targets().into_iter().filter(|target| !matches!(target, Target::Scale(..))) {
            for row in 0..ROWS {
                let [with, without] = both(one_above(hidden, TWICE), row).map(|x| scales(&target.want(x.view())));
                assert!(with != without, "{hidden} {target:?}");
            }
        }
        for recipe in whole_recipes() {
            let x = one_in_all(hidden, [448.0, 450.0]);
            let all = both(x, hidden / 256 % ROWS).map(|x| reference::quantize(x.view(), DType::Bf16, recipe).unwrap());
            assert!(scales(&all[0]) != scales(&all[1]), "{hidden} {recipe:?}");
        }
    }
}

#[test]
fn plain_rows() {
    let Some(handle) = handle() else { return };
    for hidden in hidden_sizes() {
        for dtype in [DType::Bf16, DType::F16] {
            for format in FORMATS {
                let x = one_above(hidden, ends(format));
                let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
                let matrix = MatRef::new(&data, dtype, ROWS, hidden).unwrap();
                for group in ALONG_ROWS {
                    let context = format!("{ROWS} x {hidden} {dtype}");
                    check_cast(&handle, (&matrix).into(), &x.view().into(), to(format, group), &context);
                }
            }
        }
    }
}

/// Quantizers of what products read.
#[test]
fn rows_for_products() {
    let Some(handle) = handle() else { return };
    let deepseek = |granularity| Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let fp8 = [Fp8Granularity::Row, Fp8Granularity::Group1x128];
    let fp8 = fp8.into_iter().flat_map(|granularity| [deepseek(granularity), deepseek(granularity).power_of_two()]);
    let blocks = [Scheme::Mxfp8(Fp8Format::E4M3), Scheme::Mxfp4, Scheme::Nvfp4Row, Scheme::Nvfp4];
    let recipes: Vec<Recipe> = fp8.map(Recipe::from).chain(blocks.map(Recipe::new)).collect();
    for hidden in hidden_sizes() {
        for (at, recipe) in recipes.iter().enumerate() {
            let dtype = [DType::Bf16, DType::F16][(at + hidden / 256) % 2];
            let x = one_above(hidden, ends(recipe.format()));
            let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
            let q = handle.quantize(&MatRef::new(&data, dtype, ROWS, hidden).unwrap(), *recipe).unwrap();
            let want = reference::quantize(x.view(), dtype, *recipe).unwrap();
            assert_device_bits(&handle, &q, &want, &format!("{ROWS} x {hidden} {dtype} {recipe:?}"));
        }
    }
}

/// Codes whose values differ by their scales alone.
#[test]
fn rows_of_codes() {
    let Some(handle) = handle() else { return };
    let largest = |format| if format == CodeFormat::E2M1 { 0x77 } else { 0x7E };
    for hidden in hidden_sizes() {
        for (at, group) in [CastGroup::Group1x128, CastGroup::Group1x32, CastGroup::Group1x16].into_iter().enumerate() {
            let format = FORMATS[(at + hidden / 256) % 2];
            let from = scheme(format, group);
            let [r, c] = group.grid(ROWS, hidden);
            let width = hidden / c;
            let scales =
                (0..r * c).map(|s| if s % c == place(s / c, hidden) / width { 1.0 + 2f32.powi(-20) } else { 1.0 });
            let codes = vec![largest(format); from.code_bytes(ROWS, hidden)];
            let q = HostCastMatrix::from_logical(from, ROWS, hidden, codes, scales.collect()).unwrap();
            let there = CastMatrix::from_host(&handle, &q).unwrap();
            // Exact scales have every digit of the amax.
            for (format, group) in [
                (CodeFormat::E4M3, CastGroup::Row),
                (CodeFormat::E2M1, CastGroup::Row),
                (CodeFormat::E4M3, CastGroup::Group1x128),
                (CodeFormat::E2M1, CastGroup::Group1x32),
            ] {
                let to = CastRecipe::new(scheme(format, group));
                check_cast(&handle, (&there).into(), &(&q).into(), to, &format!("{ROWS} x {hidden} of {from}"));
            }
        }
    }
}

fn uploaded(handle: &Handle, x: &Array2<f32>) -> DeviceBuffer {
    handle.upload(&bytes_of(DType::Bf16, x)).unwrap()
}

/// SwiGLU, an activation and norms, which find the largest value of what they compute.
#[test]
fn rows_of_producers() {
    let Some(handle) = handle() else { return };
    let row = to(CodeFormat::E4M3, CastGroup::Row);
    let read = Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek).power_of_two();
    for hidden in hidden_sizes() {
        let gated = gated(hidden);
        let (values, _) = reference::swiglu(gated.view(), &Swiglu::default()).unwrap();
        let data = uploaded(&handle, &gated);
        let matrix = MatRef::new(&data, DType::Bf16, ROWS, 2 * hidden).unwrap();
        let context = format!("SwiGLU of {ROWS} x {hidden}");
        for recipe in [row, to(CodeFormat::E4M3, CastGroup::Group1x128)] {
            check_cast(&handle, SwigluSource::new(&matrix).unwrap().into(), &values.view().into(), recipe, &context);
        }
        let mut got = poisoned_matrix(&handle, read.scheme(), ROWS, hidden);
        handle.quantize_source_into(SwigluSource::new(&matrix).unwrap(), read, &mut got).unwrap();
        let want = reference::quantize(values.view(), DType::F32, read).unwrap();
        assert_device_bits(&handle, &got, &want, &context);

        // Positive: of negative numbers SiLU makes zeros.
        let x = one_above(hidden, [448.0, 450.0]).mapv(f32::abs);
        let data = uploaded(&handle, &x);
        let matrix = MatRef::new(&data, DType::Bf16, ROWS, hidden).unwrap();
        let values = reference::silu(x.view());
        let source = CastSource::activated(&matrix, SourceActivation::Silu);
        check_cast(&handle, source, &values.view().into(), row, &format!("SiLU of {ROWS} x {hidden}"));

        let x = one_above(hidden, [448.0, 450.0]);
        let data = uploaded(&handle, &x);
        let matrix = MatRef::new(&data, DType::Bf16, ROWS, hidden).unwrap();
        let weight = vec![NORM_WEIGHT; hidden];
        let there = handle.upload(&weight).unwrap();
        let options = RmsNorm::new(&weight, 1e-6, DType::Bf16);
        let normed = reference::rms_norm(x.view(), &options).unwrap();
        let norm = || RmsNormArgs::new(&matrix, VecRef::new(&there, DType::F32, hidden).unwrap(), 1e-6).unwrap();
        let context = format!("norm of {ROWS} x {hidden}");
        for recipe in [row, to(CodeFormat::E4M3, CastGroup::Group1x32)] {
            let want = reference::cast(&normed.values.view().into(), recipe).unwrap();
            let mut got = poisoned_cast(&handle, recipe.scheme(), ROWS, hidden);
            handle.rms_norm_cast_into(norm(), recipe, &mut got).unwrap();
            assert_cast(&handle, &got, &want, &format!("{context} to {}", recipe.scheme()));
        }
        let rstd = handle.upload(&normed.rstd).unwrap();
        let factors = VecRef::new(&rstd, DType::F32, ROWS).unwrap();
        let source = CastSource::normed(&matrix, factors, VecRef::new(&there, DType::F32, hidden).unwrap()).unwrap();
        check_cast(&handle, source, &normed.values.view().into(), row, &format!("{context}, by its factors"));
    }
}

/// Both gradients of SwiGLU, each of whose groups is of one of them alone; of x in numbers, and in codes.
#[test]
fn rows_of_gradients() {
    let Some(handle) = handle() else { return };
    let groups = [CastGroup::Group1x32, CastGroup::Group1x128].map(|group| to(CodeFormat::E4M3, group));
    let [_, power_of_two] = exact_and_not(Fp8Granularity::Group1x128, Fp8Rule::DeepSeek);
    let products = [power_of_two, Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3))];
    for hidden in hidden_sizes() {
        let [x, g] = backward(hidden);
        let [x_there, g_there] = [&x, &g].map(|x| uploaded(&handle, x));
        let matrix = MatRef::new(&x_there, DType::Bf16, ROWS, 2 * hidden).unwrap();
        let gradient = MatRef::new(&g_there, DType::Bf16, ROWS, hidden).unwrap();
        let want = reference::swiglu_backward(x.view(), g.view(), &Swiglu::default()).unwrap().x;
        let context = format!("gradients of {ROWS} x {hidden}");
        // 32 in E4M3, under scales of 1.
        let kept = scheme(CodeFormat::E4M3, CastGroup::Group1x128);
        let ones = vec![1.0; kept.group().grid(ROWS, 2 * hidden).iter().product()];
        let kept = HostCastMatrix::from_logical(kept, ROWS, 2 * hidden, vec![0x60; ROWS * 2 * hidden], ones).unwrap();
        let coded = CastMatrix::from_host(&handle, &kept).unwrap();
        for of in ["numbers", "codes"] {
            let run = |into: SwigluGradientsInto<'_>| {
                let x = if of == "codes" { SwigluSource::of_codes(&coded) } else { SwigluSource::new(&matrix) };
                handle.swiglu_backward(x.unwrap(), &gradient, into).unwrap()
            };
            for recipe in groups {
                let mut dx = poisoned_cast(&handle, recipe.scheme(), ROWS, 2 * hidden);
                run(SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() });
                let want = reference::cast(&want.view().into(), recipe).unwrap();
                assert_cast(&handle, &dx, &want, &format!("{context} of {of} to {}", recipe.scheme()));
            }
            for recipe in products {
                let mut dx = QuantMatrix::zeros(&handle, recipe.scheme(), ROWS, 2 * hidden).unwrap();
                run(SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() });
                let want = reference::quantize(want.view(), DType::F32, recipe).unwrap();
                assert_device_bits(&handle, &dx, &want, &format!("{context} of {of} to {recipe:?}"));
            }
        }
    }
}

/// Every source that is computed, as the values that it has: one in each row is twice the others.
fn each_source(
    handle: &Handle,
    hidden: usize,
    mut check: impl for<'a> FnMut(&dyn Fn() -> CastSource<'a>, ArrayView2<f32>, &str),
) {
    let gated = gated_to(one_above(hidden, TWICE.map(|v| v / 32.0)));
    let there = uploaded(handle, &gated);
    let matrix = MatRef::new(&there, DType::Bf16, ROWS, 2 * hidden).unwrap();
    let (values, _) = reference::swiglu(gated.view(), &Swiglu::default()).unwrap();
    check(&|| SwigluSource::new(&matrix).unwrap().into(), values.view(), "SwiGLU");

    let x = one_above(hidden, TWICE).mapv(f32::abs);
    let there = uploaded(handle, &x);
    let matrix = MatRef::new(&there, DType::Bf16, ROWS, hidden).unwrap();
    for activation in SourceActivation::ALL {
        let values = match activation {
            SourceActivation::Silu => reference::silu(x.view()),
            SourceActivation::Gelu => reference::gelu(x.view()),
            SourceActivation::GeluTanh => reference::gelu_tanh(x.view()),
        };
        check(&|| CastSource::activated(&matrix, activation), values.view(), activation.name());
    }

    let x = one_above(hidden, TWICE);
    let there = uploaded(handle, &x);
    let matrix = MatRef::new(&there, DType::Bf16, ROWS, hidden).unwrap();
    let ones = handle.upload(&vec![1.0f32; hidden]).unwrap();
    let of = |count| VecRef::new(&ones, DType::F32, count).unwrap();
    check(&|| CastSource::normed(&matrix, of(ROWS), of(hidden)).unwrap(), x.view(), "norm");
}

/// Producers to blocks of 16 and 32; and the amax that delayed scaling remembers of a matrix that is cast by a given scale.
#[test]
fn rows_of_producers_for_products() {
    let Some(handle) = handle() else { return };
    for hidden in hidden_sizes() {
        each_source(&handle, hidden, |source, values, name| {
            for target in block_targets() {
                target.check(&handle, source(), values, name);
            }
        });
        let right = one_in_all(hidden, [14.0, 14.0625]);
        let gated = gated_to(right);
        let there = uploaded(&handle, &gated);
        let matrix = MatRef::new(&there, DType::Bf16, ROWS, 2 * hidden).unwrap();
        let encode = handle.upload(&[0.75f32]).unwrap();
        let mut amax = handle.upload(&[0.0f32]).unwrap();
        let mut out = poisoned_matrix(&handle, Scheme::Fp8Tensor(Fp8Format::E4M3), ROWS, hidden);
        let given = GivenScale::Encode(encode.view());
        let source = SwigluSource::new(&matrix).unwrap();
        let raised = Some(&mut amax.view_mut());
        handle.quantize_source_tensor_into(source, Fp8Format::E4M3, &given, &mut out, raised).unwrap();
        assert_eq!(handle.read::<f32>(&amax.view()).unwrap(), [450.0], "amax of {ROWS} x {hidden}");
    }
}

/// Exact GELU and its approximation, whole rows and groups.
#[test]
fn rows_of_gelu() {
    let Some(handle) = handle() else { return };
    for hidden in hidden_sizes() {
        let x = one_above(hidden, [448.0, 450.0]).mapv(f32::abs);
        let data = uploaded(&handle, &x);
        let matrix = MatRef::new(&data, DType::Bf16, ROWS, hidden).unwrap();
        for (activation, values) in [
            (SourceActivation::Gelu, reference::gelu(x.view())),
            (SourceActivation::GeluTanh, reference::gelu_tanh(x.view())),
        ] {
            for group in [CastGroup::Row, CastGroup::Group1x128] {
                let source = CastSource::activated(&matrix, activation);
                let context = format!("{activation} of {ROWS} x {hidden}");
                check_cast(&handle, source, &values.view().into(), to(CodeFormat::E4M3, group), &context);
            }
        }
    }
}

/// One element above all others of a matrix, which a scale of it all, or of its tile, must see; and the amax itself.
#[test]
fn whole_matrices_and_tiles() {
    let Some(handle) = handle() else { return };
    let tiles = [CastGroup::Tile32x32, CastGroup::Tile32x128, CastGroup::Tile128x32, CastGroup::Tile128x128];
    for hidden in hidden_sizes() {
        for format in FORMATS {
            let x = one_in_all(hidden, ends(format));
            let data = uploaded(&handle, &x);
            let matrix = MatRef::new(&data, DType::Bf16, ROWS, hidden).unwrap();
            let context = format!("one of {ROWS} x {hidden}");
            for group in tiles {
                check_cast(&handle, (&matrix).into(), &x.view().into(), to(format, group), &context);
            }
            if format == CodeFormat::E2M1 {
                continue;
            }
            for recipe in whole_recipes() {
                let want = reference::quantize(x.view(), DType::Bf16, recipe).unwrap();
                let mut got = poisoned_matrix(&handle, recipe.scheme(), ROWS, hidden);
                handle.quantize_into(&matrix, recipe, QuantizeTo::Plain(&mut got)).unwrap();
                assert_device_bits(&handle, &got, &want, &format!("{context} to {recipe:?}"));
            }
            let mut amax = handle.upload(&[f32::NAN]).unwrap();
            handle.amax_into(&matrix, &mut amax.view_mut()).unwrap();
            assert_eq!(handle.read::<f32>(&amax.view()).unwrap(), [450.0], "{context}");
            let mut of_rows = handle.upload(&[f32::NAN; ROWS]).unwrap();
            handle.row_amax_into(&matrix, &mut of_rows.view_mut()).unwrap();
            let want: Vec<_> = (0..ROWS).map(|i| if i == hidden / 256 % ROWS { 450.0 } else { 448.0 }).collect();
            assert_eq!(handle.read::<f32>(&of_rows.view()).unwrap(), want, "{context}");
        }
    }
}

/// As many rows as models have hidden sizes, read along columns: casts per channel, as they lie and transposed, and transposes for products.
#[test]
fn columns_as_long() {
    let Some(handle) = handle() else { return };
    let cols = 32;
    for hidden in hidden_sizes() {
        for format in FORMATS {
            let x = rows_above(cols, hidden, ends(format)).t().as_standard_layout().into_owned();
            let data = uploaded(&handle, &x);
            let matrix = MatRef::new(&data, DType::Bf16, hidden, cols).unwrap();
            let context = format!("{hidden} x {cols}");
            for group in [CastGroup::Group128x1, CastGroup::Group32x1] {
                let plain = to(format, group);
                let turned = CastRecipe::new(plain.scheme().transposed().unwrap()).power_of_two();
                for recipe in [plain, turned] {
                    check_cast(&handle, (&matrix).into(), &x.view().into(), recipe, &context);
                }
            }
            for recipe in product_recipes().into_iter().filter(|recipe| recipe.format() == format) {
                let want = reference::quantize_transposed(x.view(), DType::Bf16, recipe).unwrap();
                let mut got = poisoned_matrix(&handle, recipe.scheme(), cols, hidden);
                handle.quantize_into(&matrix, recipe, QuantizeTo::Transposed(&mut got)).unwrap();
                assert_device_bits(&handle, &got, &want, &format!("{context}, transposed, to {recipe:?}"));
            }
        }
    }
}

/// Members of a grouped tensor, of few and of so many that a plan goes before: the scale of each and one of all, by rows and transposed, and the amax.
#[test]
fn members_of_grouped_tensors() {
    let Some(handle) = handle() else { return };
    for hidden in hidden_sizes() {
        let mut shapes = vec![[1, hidden], [3, hidden], [0, hidden], [2, hidden]];
        // Some in each way to find members.
        if hidden / 256 % 2 == 0 {
            shapes.extend([[1, 16]; 600]);
        }
        let layout = GroupedLayout::packed(&shapes).unwrap();
        let mut x = vec![448.0f32; layout.buffer_len()];
        let members = || layout.members().iter().enumerate().filter(|(_, member)| member.elements() > 0);
        for (t, member) in members().filter(|(_, member)| member.elements() >= hidden) {
            x[member.offset() + place(t, member.elements())] = if t % 2 == 0 { -450.0 } else { 450.0 };
        }
        // Above those of all other members.
        x[place(0, hidden)] = 452.0;
        let data = grouped::Values::new(&handle, &x, DType::Bf16, 0);
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        let input = GroupedView::new(&layout, &x).unwrap().into();
        let case = grouped::Case { layout: &layout, places: &places, input, source: &|| data.source() };
        for scheme in GroupedScheme::all().filter(|scheme| scheme.format() == Fp8Format::E4M3) {
            case.current(&handle, GroupedRecipe::new(scheme), &format!("members of {hidden}"));
        }
    }
}

/// A case of numerics.md, section 1, and how its numbers are written: FP32 patterns, bytes, and runs of either.
struct Case(serde_json::Value);

impl Case {
    fn of(id: &str) -> Self {
        let all: serde_json::Value = serde_json::from_str(include_str!("data/numerics.json")).unwrap();
        let cases = all["1_tilekernels"].as_array().unwrap();
        Self(cases.iter().find(|case| case["id"] == id).unwrap().clone())
    }

    fn bits(v: &serde_json::Value) -> f32 {
        f32::from_bits(u32::from_str_radix(v.as_str().unwrap(), 16).unwrap())
    }

    fn hex(v: &serde_json::Value) -> Vec<u8> {
        let digits = v.as_str().unwrap();
        (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
    }

    fn runs<T: Copy>(v: &serde_json::Value, read: impl Fn(&serde_json::Value) -> T) -> Vec<T> {
        let runs = v.as_array().unwrap().iter();
        runs.flat_map(|run| vec![read(&run[1]); run[0].as_u64().unwrap() as usize]).collect()
    }

    fn codes(&self) -> Vec<u8> {
        Self::runs(&self.0["expect"]["data"], |code| Self::hex(code)[0])
    }
}

/// numerics.md 1.2, golden `fp32_amax_contract_requant`: rounded to BF16 the amax would give another scale.
#[test]
fn the_published_amax_of_codes() {
    let Some(handle) = handle() else { return };
    let case = Case::of("fp32_amax_contract_requant");
    let group: CastScheme = scheme(CodeFormat::E4M3, CastGroup::Group1x32);
    let (input, expect) = (&case.0["in"], &case.0["expect"]);
    let scales = vec![Case::bits(&input["x_sf"])];
    let q = HostCastMatrix::from_logical(group, 1, 32, Case::hex(&input["x_bytes"]), scales).unwrap();
    let there = CastMatrix::from_host(&handle, &q).unwrap();
    let got = handle.cast(&there, CastRecipe::new(group)).unwrap().to_host(&handle).unwrap();
    assert_eq!(got.codes(), case.codes());
    assert_eq!(got.scales()[0].to_bits(), Case::bits(&expect["sf"]).to_bits());
    assert_ne!(got.scales()[0].to_bits(), Case::bits(&expect["wrong_sf"]).to_bits());
}

/// The same, golden `bf16_hidden7168_edge`, the row that failed: alone and as each row of many, of every type, which all hold its numbers; as FP32 scales and as bytes.
#[test]
fn the_published_row() {
    let Some(handle) = handle() else { return };
    let case = Case::of("bf16_hidden7168_edge");
    let expect = &case.0["expect"];
    let row = Case::runs(&case.0["in"]["x"]["f32_rle"], Case::bits);
    let (codes, cols) = (case.codes(), row.len());
    for (rows, dtype) in [1, 4 * handle.device().sm_count as usize + 5].into_iter().flat_map(|n| INPUTS.map(|t| (n, t)))
    {
        let x = Array2::from_shape_fn((rows, cols), |(_, j)| row[j]);
        let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
        let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
        let exact = scheme(CodeFormat::E4M3, CastGroup::Row);
        for recipe in [to(CodeFormat::E4M3, CastGroup::Row), CastRecipe::new(exact.with_scales(CastScales::Ue8m0))] {
            let got = handle.cast(&matrix, recipe).unwrap().to_host(&handle).unwrap();
            assert!(got.codes().chunks(cols).all(|of_row| of_row == codes), "{rows} rows of {dtype}, {recipe:?}");
            let wanted = Case::bits(&expect["sf"][0]);
            assert!(got.scales().iter().all(|scale| *scale == wanted), "{rows} rows of {dtype}, {recipe:?}");
            assert_ne!(wanted, Case::bits(&expect["wrong_sf_if_max_missed"]));
            let byte = got.device_scales()[0];
            assert!(recipe.scheme().scales() != CastScales::Ue8m0 || byte == Case::hex(&expect["ue8m0"])[0]);
        }
    }
}
