//! The largest magnitude is found in rows as long as those of models: hidden sizes from 2048 to 16384 in steps of 256, in each of which one
//! element alone is above its neighbours, so that a kernel that misses it writes another power of two. Every way to read rows: plain, codes,
//! producers; casts and what products read. And the published case whose amax no 16-bit number holds.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;

use cast::*;
use common::*;
use ndarray::Array2;
use scaled_gemm::reference::{self, CastInput, RmsNorm, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer, Fp8Format,
    Fp8Granularity, Fp8Recipe, Fp8Rule, Handle, HostCastMatrix, MatRef, Recipe, RmsNormArgs, Scheme, SourceActivation,
    SwigluSource, VecRef,
};

const ROWS: usize = 4;

fn hidden_sizes() -> impl Iterator<Item = usize> {
    (2048..=16384).step_by(256)
}

/// The place of the largest element of a row: another in each row and size, in each quarter.
fn place(i: usize, hidden: usize) -> usize {
    (i * hidden / 4 + hidden - 168) % hidden
}

/// `least` everywhere but for one `most` in each row; every other row negative.
fn one_above(hidden: usize, [least, most]: [f32; 2]) -> Array2<f32> {
    Array2::from_shape_fn((ROWS, hidden), |(i, j)| {
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

fn check(handle: &Handle, source: CastSource<'_>, input: &CastInput<'_>, recipe: CastRecipe, context: &str) {
    let want = reference::cast(input, recipe).unwrap();
    let mut got = poisoned_cast(handle, recipe.scheme(), source.rows(), source.cols());
    handle.cast_into(source, recipe, &mut got).unwrap();
    assert_cast(handle, &got, &want, &format!("{context} to {}", recipe.scheme()));
}

/// `[32 | r]`: 32 times its sigmoid is 32 in FP32, so that the products are 448, and 450 once.
fn gated(hidden: usize) -> Array2<f32> {
    let right = one_above(hidden, [14.0, 14.0625]);
    Array2::from_shape_fn((ROWS, 2 * hidden), |(i, j)| if j < hidden { 32.0 } else { right[(i, j - hidden)] })
}

/// Of the columns of a norm: divided by the root of the mean of squares, which is a little above 448, those of 448 become a little less
/// than this, and those of 450 more than 448.
const NORM_WEIGHT: f32 = 447.0;

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
        let options = RmsNorm { weight: &weight, epsilon: 1e-6, residual: None, dtype: DType::Bf16 };
        decides(&reference::rms_norm(one_above(hidden, [448.0, 450.0]).view(), &options).unwrap().values, row);
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
                    check(&handle, (&matrix).into(), &x.view().into(), to(format, group), &context);
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
                check(&handle, (&there).into(), &(&q).into(), to, &format!("{ROWS} x {hidden} of {from}"));
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
            check(&handle, SwigluSource::new(&matrix).unwrap().into(), &values.view().into(), recipe, &context);
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
        check(&handle, source, &values.view().into(), row, &format!("SiLU of {ROWS} x {hidden}"));

        let x = one_above(hidden, [448.0, 450.0]);
        let data = uploaded(&handle, &x);
        let matrix = MatRef::new(&data, DType::Bf16, ROWS, hidden).unwrap();
        let weight = vec![NORM_WEIGHT; hidden];
        let there = handle.upload(&weight).unwrap();
        let options = RmsNorm { weight: &weight, epsilon: 1e-6, residual: None, dtype: DType::Bf16 };
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
        check(&handle, source, &normed.values.view().into(), row, &format!("{context}, by its factors"));
    }
}

/// numerics.md 1.2, golden `fp32_amax_contract_requant`: rounded to BF16 the amax would give another scale.
#[test]
fn the_published_amax_of_codes() {
    let Some(handle) = handle() else { return };
    let all: serde_json::Value = serde_json::from_str(include_str!("data/numerics.json")).unwrap();
    let cases = all["1_tilekernels"].as_array().unwrap();
    let case = cases.iter().find(|case| case["id"] == "fp32_amax_contract_requant").unwrap();
    let bits = |v: &serde_json::Value| f32::from_bits(u32::from_str_radix(v.as_str().unwrap(), 16).unwrap());
    let hex = |v: &serde_json::Value| {
        let digits = v.as_str().unwrap();
        (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect::<Vec<_>>()
    };
    let group: CastScheme = scheme(CodeFormat::E4M3, CastGroup::Group1x32);
    let (input, expect) = (&case["in"], &case["expect"]);
    let q = HostCastMatrix::from_logical(group, 1, 32, hex(&input["x_bytes"]), vec![bits(&input["x_sf"])]).unwrap();
    let there = CastMatrix::from_host(&handle, &q).unwrap();
    let got = handle.cast(&there, CastRecipe::new(group)).unwrap().to_host(&handle).unwrap();
    let runs = expect["data"].as_array().unwrap().iter();
    let codes: Vec<u8> = runs.flat_map(|run| vec![hex(&run[1])[0]; run[0].as_u64().unwrap() as usize]).collect();
    assert_eq!(got.codes(), codes);
    assert_eq!(got.scales()[0].to_bits(), bits(&expect["sf"]).to_bits());
    assert_ne!(got.scales()[0].to_bits(), bits(&expect["wrong_sf"]).to_bits());
}
