//! Quantizers and the rescale epilogue: device time and bandwidth against the copy of the same run.
//!
//! `cargo bench --bench quantize`; on a machine without a toolchain, the runner that `scripts/bundle.sh` packs.

mod common;

use common::*;
use scaled_gemm::{
    DType, DeviceBytes, Fp8Format, GivenScale, Handle, MatMut, MatRef, QuantMatrix, QuantizeTo, Recipe, RescaleArgs,
    Scheme, VecRef, quantize_bytes,
};

/// Rows and columns: three that targets are set for, a decode step, two odd ones.
const SHAPES: [(usize, usize); 6] = [(16384, 6144), (4096, 7168), (128, 7168), (1, 7168), (4001, 2048), (8001, 4096)];

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Plain,
    Both,
    Transposed,
}

fn main() {
    main_with_gpu(|handle, _| {
        head(handle, "Quantizers, BF16 in, E4M3 and FP32 scales out");
        for (rows, cols) in SHAPES {
            let copied = copy_time(handle, rows * cols * 2);
            let roof = (4 * rows * cols) as f64 / copied;
            println!("\n## {rows} x {cols}");
            println!("copy BF16: {copied:.2} us, {:.3} TB/s", roof / 1e6);
            println!("| cast | us | TB/s | of the copy rate |\n|---|---|---|---|");
            quantizers(handle, rows, cols, roof);
        }
        epilogues(handle);
        dequantizers(handle);
    });
}

fn quantizers(handle: &Handle, rows: usize, cols: usize, roof: f64) {
    let schemes = Scheme::FP8.into_iter().filter(|s| s.spec().format == Fp8Format::E4M3);
    let sets = rotation(handle, rows * cols * 3);
    let inputs: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * cols, DType::Bf16)).collect();
    let inputs: Vec<_> = inputs.iter().map(|x| MatRef::new(x, DType::Bf16, rows, cols).unwrap()).collect();
    let factor = handle.stream().clone_htod(&[64.0f32]).unwrap();
    for scheme in schemes {
        let recipe = Recipe::new(scheme);
        let mut plain: Vec<_> = (0..sets).map(|_| QuantMatrix::zeros(handle, scheme, rows, cols).unwrap()).collect();
        let mut turned: Vec<_> = match rows % 16 {
            0 => (0..sets).map(|_| QuantMatrix::zeros(handle, scheme, cols, rows).unwrap()).collect(),
            _ => Vec::new(),
        };
        let tensor = matches!(scheme, Scheme::Fp8Tensor(_));
        if tensor {
            let time = time(handle, sets, |i| {
                let scale = GivenScale::Encode(DeviceBytes::from(&factor));
                handle.quantize_tensor_into(&inputs[i], Fp8Format::E4M3, &scale, &mut plain[i], None)
            });
            let bytes = quantize_bytes(recipe, DType::Bf16, rows, cols, false);
            report_rate("fp8-tensor, given scale", &time, bytes, roof, "");
        }
        for direction in [Direction::Plain, Direction::Both, Direction::Transposed] {
            if direction != Direction::Plain && turned.is_empty() {
                continue;
            }
            let time = time(handle, sets, |i| {
                let to = match direction {
                    Direction::Plain => QuantizeTo::Plain(&mut plain[i]),
                    Direction::Both => QuantizeTo::Both(&mut plain[i], &mut turned[i]),
                    Direction::Transposed => QuantizeTo::Transposed(&mut turned[i]),
                };
                handle.quantize_into(&inputs[i], recipe, to)
            });
            // A tensor's amax is a pass of its own over the input.
            let amax = if tensor { rows * cols * 2 } else { 0 };
            let (label, bytes) = match direction {
                Direction::Plain => ("", quantize_bytes(recipe, DType::Bf16, rows, cols, false)),
                Direction::Both => (", both directions", quantize_bytes(recipe, DType::Bf16, rows, cols, true)),
                Direction::Transposed => {
                    let out = scheme.code_bytes(rows, cols) + scheme.scale_len(rows, cols) * 4;
                    (", transposed only", quantize_bytes(recipe, DType::Bf16, rows, cols, true) - out)
                }
            };
            let amax_label = if tensor { ", amax and cast" } else { "" };
            report_rate(&format!("{}{amax_label}{label}", scheme.spec().name), &time, bytes + amax, roof, "");
        }
    }
}

fn epilogues(handle: &Handle) {
    println!("\n## Rescale epilogue, F32 in, BF16 out, row and column scales and F32 bias");
    println!("| m x n | us | TB/s | of the copy rate |\n|---|---|---|---|");
    for (m, n) in [(8192, 8192), (4096, 7168), (16, 4096), (128, 4096)] {
        let roof = 8.0 * (m * n) as f64 / copy_time(handle, m * n * 4);
        let sets = rotation(handle, m * n * 6);
        let acc: Vec<_> = (0..sets).map(|i| random(handle, i as u64, m * n, DType::F32)).collect();
        let mut d = outputs(handle, sets, m * n * 2);
        let rows = random(handle, 7, m, DType::F32);
        let cols = random(handle, 8, n, DType::F32);
        for scaled in [true, false] {
            let time = time(handle, sets, |i| {
                let acc = MatRef::new(&acc[i], DType::F32, m, n)?;
                let args = RescaleArgs::new(acc, MatMut::new(&mut d[i], DType::Bf16, m, n)?);
                let args = args.bias(VecRef::new(&cols, DType::F32, n)?);
                let vector = |v, len| VecRef::new(v, DType::F32, len);
                handle.rescale_into(match scaled {
                    true => args.row_scale(vector(&rows, m)?).col_scale(vector(&cols, n)?),
                    false => args,
                })
            });
            let label = if scaled { "rescale and bias" } else { "bias" };
            report_rate(&format!("{m} x {n} {label}"), &time, m * n * 6, roof, "");
        }
    }
}

fn dequantizers(handle: &Handle) {
    println!("\n## Dequantizers, E4M3 in, BF16 out, 16384 x 6144");
    println!("| scheme | us | TB/s | of the copy rate |\n|---|---|---|---|");
    let (rows, cols) = (16384, 6144);
    let roof = (4 * rows * cols) as f64 / copy_time(handle, rows * cols * 2);
    let x = random(handle, 1, rows * cols, DType::Bf16);
    let x = MatRef::new(&x, DType::Bf16, rows, cols).unwrap();
    for scheme in Scheme::FP8.into_iter().filter(|s| s.spec().format == Fp8Format::E4M3) {
        let q: Vec<_> = (0..2).map(|_| handle.quantize(&x, Recipe::new(scheme)).unwrap()).collect();
        let mut y = outputs(handle, 2, rows * cols * 2);
        let time =
            time(handle, 2, |i| handle.dequantize_into(&q[i], &mut MatMut::new(&mut y[i], DType::Bf16, rows, cols)?));
        let bytes = quantize_bytes(Recipe::new(scheme), DType::Bf16, rows, cols, false);
        report_rate(scheme.spec().name, &time, bytes, roof, "");
    }
}
