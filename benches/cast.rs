//! Casts to groupings that no product reads, and producers, to what products read too: device time and bandwidth against the copy of the same run.
//!
//! `cargo bench --bench cast`; on a machine without a toolchain, the runner that `scripts/bundle.sh` packs.

mod common;

use common::*;
use scaled_gemm::{
    BlockScaleRule, CastBytes, CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat,
    DType, DeviceBytes, ErrorMath, ErrorMetric, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale, Handle,
    MatMut, MatRef, Nvfp4Options, Nvfp4Recipe, QuantMatrix, QuantizeTo, Recipe, Scheme, SourceActivation, SwigluSource,
    cast_bytes, quantize_bytes,
};

/// Rows and columns: two that targets are set for, and a small one.
const SHAPES: [(usize, usize); 3] = [(16384, 6144), (4096, 7168), (128, 7168)];
const FORMATS: [CodeFormat; 2] = [CodeFormat::E4M3, CodeFormat::E2M1];

fn main() {
    main_with_gpu(|handle, _| {
        head(handle, "Casts, BF16 in unless said otherwise");
        for (rows, cols) in SHAPES {
            let copied = copy_time(handle, rows * cols * 2);
            let roof = (4 * rows * cols) as f64 / copied;
            println!("\n## {rows} x {cols}");
            println!("copy BF16: {copied:.2} us, {:.3} TB/s", roof / 1e6);
            println!("| cast | us | TB/s | of the copy rate |\n|---|---|---|---|");
            let sets = rotation(handle, rows * cols * 3);
            let inputs: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * cols, DType::Bf16)).collect();
            let inputs: Vec<_> = inputs.iter().map(|x| MatRef::new(x, DType::Bf16, rows, cols).unwrap()).collect();
            for recipe in recipes() {
                plain(handle, &inputs, recipe, roof);
            }
            for (from, to) in requantized() {
                coded(handle, &inputs, from, to, roof);
            }
            for scheme in
                [scheme(CodeFormat::E4M3, CastGroup::Group1x128), scheme(CodeFormat::E2M1, CastGroup::Group1x32)]
            {
                back(handle, &inputs, scheme, roof);
            }
            lossless(handle, &inputs, roof);
        }
        for (rows, half) in [(16384, 7168), (4096, 7168), (128, 7168)] {
            producers(handle, rows, half);
            products_read(handle, rows, half);
        }
    });
}

/// SwiGLU of rows x 2 half, and activations of rows x half, cast without being stored.
fn producers(handle: &Handle, rows: usize, half: usize) {
    let copied = copy_time(handle, rows * half * 2);
    let roof = (4 * rows * half) as f64 / copied;
    println!("\n## producers of {rows} x {half}");
    println!("copy BF16: {copied:.2} us, {:.3} TB/s", roof / 1e6);
    println!("| cast | us | TB/s | of the copy rate |\n|---|---|---|---|");
    let sets = rotation(handle, rows * half * 5);
    let data: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * 2 * half, DType::Bf16)).collect();
    let gated: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, 2 * half).unwrap()).collect();
    let single: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, half).unwrap()).collect();
    for group in [CastGroup::Group1x128, CastGroup::Row, CastGroup::Group128x1] {
        let to = scheme(CodeFormat::E4M3, group).with_scales(CastScales::ColumnMajor);
        let mut out = targets(handle, to, &single);
        let (recipe, written) = (CastRecipe::new(to), to.code_bytes(rows, half) + to.scale_bytes(rows, half));
        let plain = time(handle, sets, |i| handle.cast_into(&single[i], recipe, &mut out[i]));
        report_rate(&format!("plain to {to}"), &plain, rows * half * 2 + written, roof, "");
        let swiglu = time(handle, sets, |i| handle.cast_into(SwigluSource::new(&gated[i])?, recipe, &mut out[i]));
        report_rate(&format!("swiglu to {to}"), &swiglu, rows * half * 4 + written, roof, "");
        for activation in SourceActivation::ALL {
            let time = time(handle, sets, |i| {
                handle.cast_into(CastSource::activated(&single[i], activation), recipe, &mut out[i])
            });
            report_rate(&format!("{activation} to {to}"), &time, rows * half * 2 + written, roof, "");
        }
    }
}

/// SwiGLU to what products read, against the quantizer of values that are stored in BF16.
fn products_read(handle: &Handle, rows: usize, half: usize) {
    let copied = copy_time(handle, rows * half * 2);
    let roof = (4 * rows * half) as f64 / copied;
    println!("\n## swiglu of {rows} x {half} to what products read");
    println!("copy BF16: {copied:.2} us, {:.3} TB/s", roof / 1e6);
    println!("| cast | us | TB/s | of the copy rate |\n|---|---|---|---|");
    let sets = rotation(handle, rows * half * 5);
    let data: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * 2 * half, DType::Bf16)).collect();
    let gated: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, 2 * half).unwrap()).collect();
    let single: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, half).unwrap()).collect();
    let number = handle.upload(&[4.0f32]).unwrap();
    let given = GivenScale::Amax(DeviceBytes::from(&number));
    let encode = GivenScale::Encode(DeviceBytes::from(&number));
    let four_over_six = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Strict };
    let options = Nvfp4Options { block_scale: four_over_six, ..Nvfp4Options::PLAIN };
    let row = Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let group = Fp8Recipe { granularity: Fp8Granularity::Group1x128, ..row };
    for recipe in [
        row.into(),
        group.into(),
        Recipe::new(Scheme::Fp8Tensor(Fp8Format::E4M3)),
        Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3)),
        Recipe::new(Scheme::Mxfp4),
        Recipe::new(Scheme::Nvfp4),
        Nvfp4Recipe::tensor(options).unwrap().into(),
        Recipe::new(Scheme::Nvfp4Row),
        Nvfp4Recipe::rows(options).unwrap().into(),
    ] {
        let scheme = recipe.scheme();
        let mut out: Vec<_> = single.iter().map(|_| QuantMatrix::zeros(handle, scheme, rows, half).unwrap()).collect();
        let bytes = quantize_bytes(recipe, DType::Bf16, rows, half, false);
        let plain = time(handle, sets, |i| match scheme {
            Scheme::Fp8Tensor(format) => handle.quantize_tensor_into(&single[i], format, &encode, &mut out[i], None),
            Scheme::Nvfp4 => handle.quantize_nvfp4_into(&single[i], recipe, &given, QuantizeTo::Plain(&mut out[i])),
            _ => handle.quantize_into(&single[i], recipe, QuantizeTo::Plain(&mut out[i])),
        });
        report_rate(&format!("plain to {scheme}, {recipe}"), &plain, bytes, roof, "");
        let swiglu = time(handle, sets, |i| {
            let source = SwigluSource::new(&gated[i])?;
            match scheme {
                Scheme::Fp8Tensor(format) => {
                    handle.quantize_source_tensor_into(source, format, &encode, &mut out[i], None)
                }
                Scheme::Nvfp4 => handle.quantize_source_nvfp4_into(source, recipe, &given, &mut out[i]),
                _ => handle.quantize_source_into(source, recipe, &mut out[i]),
            }
        });
        report_rate(&format!("swiglu to {scheme}, {recipe}"), &swiglu, bytes + rows * half * 2, roof, "");
    }
}

fn scheme(format: CodeFormat, group: CastGroup) -> CastScheme {
    CastScheme::new(format, group).unwrap()
}

fn recipes() -> Vec<CastRecipe> {
    let mut all = Vec::new();
    for format in FORMATS {
        for group in CastGroup::ALL {
            let one = scheme(format, group);
            all.push(one);
            if group.is_per_channel() {
                all.push(one.transposed().unwrap());
            }
            if matches!(group, CastGroup::Group1x32 | CastGroup::Group1x128) {
                all.push(one.with_scales(CastScales::ColumnMajor));
                all.push(one.with_scales(CastScales::Ue8m0));
            }
        }
    }
    all.into_iter().map(CastRecipe::new).collect()
}

fn requantized() -> Vec<(CastScheme, CastScheme)> {
    let (e4m3, e2m1) = (|group| scheme(CodeFormat::E4M3, group), |group| scheme(CodeFormat::E2M1, group));
    vec![
        (e4m3(CastGroup::Group1x128), e4m3(CastGroup::Group1x32)),
        (e4m3(CastGroup::Group1x128), e4m3(CastGroup::Group128x1)),
        (e4m3(CastGroup::Group1x128), e2m1(CastGroup::Group1x32)),
        (e2m1(CastGroup::Group1x32), e4m3(CastGroup::Group1x128)),
    ]
}

fn targets(handle: &Handle, scheme: CastScheme, inputs: &[MatRef<'_>]) -> Vec<CastMatrix> {
    inputs.iter().map(|x| CastMatrix::zeros(handle, scheme, x.rows(), x.cols()).unwrap()).collect()
}

fn plain(handle: &Handle, inputs: &[MatRef<'_>], recipe: CastRecipe, roof: f64) {
    let mut out = targets(handle, recipe.scheme(), inputs);
    let time = time(handle, inputs.len(), |i| handle.cast_into(&inputs[i], recipe, &mut out[i]));
    let bytes = cast_bytes(CastBytes::Plain(DType::Bf16), recipe.scheme(), inputs[0].rows(), inputs[0].cols());
    report_rate(&recipe.scheme().to_string(), &time, bytes, roof, "");
}

fn sources(handle: &Handle, inputs: &[MatRef<'_>], scheme: CastScheme) -> Vec<CastMatrix> {
    inputs.iter().map(|x| handle.cast(x, CastRecipe::new(scheme).power_of_two()).unwrap()).collect()
}

fn coded(handle: &Handle, inputs: &[MatRef<'_>], from: CastScheme, to: CastScheme, roof: f64) {
    let (q, mut out) = (sources(handle, inputs, from), targets(handle, to, inputs));
    let recipe = CastRecipe::new(to);
    let time = time(handle, inputs.len(), |i| handle.cast_into(&q[i], recipe, &mut out[i]));
    let bytes = cast_bytes(CastBytes::Coded(from), to, inputs[0].rows(), inputs[0].cols());
    report_rate(&format!("{from} to {to}"), &time, bytes, roof, "");
}

fn back(handle: &Handle, inputs: &[MatRef<'_>], from: CastScheme, roof: f64) {
    let (rows, cols) = (inputs[0].rows(), inputs[0].cols());
    let q = sources(handle, inputs, from);
    let mut y = outputs(handle, inputs.len(), rows * cols * 2);
    let time = time(handle, inputs.len(), |i| {
        handle.cast_back_into(&q[i], &mut MatMut::new(&mut y[i], DType::Bf16, rows, cols)?)
    });
    let bytes = from.code_bytes(rows, cols) + from.scale_bytes(rows, cols) + rows * cols * 2;
    report_rate(&format!("{from} back to bf16"), &time, bytes, roof, "");
}

fn lossless(handle: &Handle, inputs: &[MatRef<'_>], roof: f64) {
    let from = scheme(CodeFormat::E2M1, CastGroup::Group1x32).with_scales(CastScales::Ue8m0);
    let to = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
    let (q, mut out) = (sources(handle, inputs, from), targets(handle, to, inputs));
    let time = time(handle, inputs.len(), |i| handle.fp4_to_fp8_into(&q[i], &mut out[i], None));
    let bytes = cast_bytes(CastBytes::Coded(from), to, inputs[0].rows(), inputs[0].cols());
    report_rate(&format!("{from} to {to}, lossless"), &time, bytes, roof, "");
}
