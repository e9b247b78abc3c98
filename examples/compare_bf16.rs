//! What FP8 gains and costs against BF16: time, and signal to noise of the result, for every pair of schemes.
//!
//! On a GPU: medians over replayed graphs, operands warm in the L2 cache where they fit (`benches/` measures cold ones),
//! BF16 as the best of eight algorithms. Without one: signal to noise on the CPU, and times that say nothing about GPUs.
//! The noise is measured on the first 64 rows of D. k must be a multiple of 16, n of 8.
//!
//!     cargo run --release --example compare_bf16 [M N K]

use std::time::Instant;

use half::bf16;
use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::reference::{self, GemmInputs, sqnr_db};
use scaled_gemm::{
    Bf16Gemm, DType, Error, Fp8Format, GemmArgs, GemmDesc, Handle, MatMut, MatRef, QuantizeTo, Recipe, Scheme,
    time_calls,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const E4M3: Fp8Format = Fp8Format::E4M3;
const PAIRS: [(Scheme, Scheme); 4] = [
    (Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3)),
    (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3)),
    (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3)),
    (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group1x128(E4M3)),
];
const ROWS: usize = 64;

/// Signal to noise of the first rows of D, `n` wide.
fn noise_of(exact: &Array2<f32>, d: &[bf16]) -> f64 {
    let d: Vec<f32> = d[..exact.len()].iter().map(|v| v.to_f32()).collect();
    let exact: Vec<f32> = exact.iter().copied().collect();
    sqnr_db(&exact, &d)
}

fn on_gpu(handle: &Handle, x: &[bf16], w: &[bf16], exact: &Array2<f32>, [m, n, k]: [usize; 3]) -> Outcome<()> {
    let stream = handle.stream();
    let (x, w) = (stream.clone_htod(x)?, stream.clone_htod(w)?);
    let (x, w) = (MatRef::new(&x, DType::Bf16, m, k)?, MatRef::new(&w, DType::Bf16, n, k)?);
    let mut d = stream.alloc_zeros::<bf16>(m * n)?;
    let tflops = |us: f64| 2.0 * (m * n * k) as f64 / us / 1e6;

    let mut plain = Bf16Gemm::new(handle, m, n, k, 8)?;
    let mut base = f64::INFINITY;
    for index in 0..plain.candidates() {
        plain.choose(index);
        let time =
            time_calls(handle, 20, 5, |_| plain.execute(handle, &x, &w, &mut MatMut::new(&mut d, DType::Bf16, m, n)?))?;
        base = base.min(time);
    }
    println!("| pair | formulation | us | TFLOP/s | x BF16 | with quantization of A, us | x BF16 | SQNR, dB |");
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    let quality = noise_of(exact, &stream.clone_dtoh(&d)?);
    println!("| bf16 | | {base:.1} | {:.0} | 1.00 | {base:.1} | 1.00 | {quality:.1} |", tflops(base));

    for (scheme_a, scheme_b) in PAIRS {
        let (recipe_a, recipe_b) = (Recipe::new(scheme_a), Recipe::new(scheme_b));
        let mut plan = match handle.plan(&GemmDesc::new(m, n, k, scheme_a, scheme_b, DType::Bf16)) {
            Ok(plan) => plan,
            Err(error @ Error::Pair { .. }) => {
                println!("{error}");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let (mut a, b) = (handle.quantize(&x, recipe_a)?, handle.quantize(&w, recipe_b)?);
        plan.prepare(handle, &b)?;
        let gemm = time_calls(handle, 20, 5, |_| {
            plan.execute(handle, GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::Bf16, m, n)?))
        })?;
        let both = time_calls(handle, 20, 5, |_| {
            handle.quantize_into(&x, recipe_a, QuantizeTo::Plain(&mut a))?;
            plan.execute(handle, GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::Bf16, m, n)?))
        })?;
        let quality = noise_of(exact, &stream.clone_dtoh(&d)?);
        println!(
            "| {scheme_a} x {scheme_b} | {} | {gemm:.1} | {:.0} | {:.2} | {both:.1} | {:.2} | {quality:.1} |",
            plan.formulation(),
            tflops(gemm),
            base / gemm,
            base / both
        );
    }
    Ok(())
}

fn on_cpu(x: ArrayView2<f32>, w: ArrayView2<f32>, exact: &Array2<f32>) -> Outcome<()> {
    println!("| pair | quantize A and B, ms | multiply, ms | SQNR, dB |\n|---|---:|---:|---:|");
    let rounded: Vec<bf16> = exact.iter().map(|v| bf16::from_f32(*v)).collect();
    println!("| bf16 | | | {:.1} |", noise_of(exact, &rounded));
    for (scheme_a, scheme_b) in PAIRS {
        let start = Instant::now();
        let a = reference::quantize(x, DType::Bf16, Recipe::new(scheme_a))?;
        let b = reference::quantize(w, DType::Bf16, Recipe::new(scheme_b))?;
        let quantized = start.elapsed().as_secs_f64() * 1e3;
        let start = Instant::now();
        let d = reference::scaled_gemm(&GemmInputs::new(&a, &b, DType::Bf16))?;
        let multiplied = start.elapsed().as_secs_f64() * 1e3;
        let d: Vec<bf16> = d.iter().map(|v| bf16::from_f32(*v)).collect();
        println!("| {scheme_a} x {scheme_b} | {quantized:.1} | {multiplied:.1} | {:.1} |", noise_of(exact, &d));
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let arguments: Vec<usize> = std::env::args().skip(1).map(|a| a.parse()).collect::<Result<_, _>>()?;
    let handle = match Handle::new(0) {
        Ok(handle) => Some(handle),
        Err(error @ (Error::NoGpu { .. } | Error::Library { .. })) => {
            println!("{error}\non the CPU, then:");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let [m, n, k] = match (arguments.as_slice(), &handle) {
        (&[m, n, k], _) => [m, n, k],
        ([], Some(_)) => [4096, 4096, 7168],
        ([], None) => [256, 1024, 2048],
        _ => return Err("usage: compare_bf16 [M N K]".into()),
    };
    let (x, w) = (noise(1, m * k), noise(2, n * k));
    let widened = |v: &[bf16], rows| Array2::from_shape_vec((rows, k), v.iter().map(|v| v.to_f32()).collect());
    let (x_wide, w_wide) = (widened(&x, m)?, widened(&w, n)?);
    let exact = x_wide.slice(s![..m.min(ROWS), ..]).dot(&w_wide.t());
    match handle {
        Some(handle) => {
            println!("m = {m}, n = {n}, k = {k} on {}", handle.device());
            on_gpu(&handle, &x, &w, &exact, [m, n, k])
        }
        None => {
            println!("m = {m}, n = {n}, k = {k}");
            on_cpu(x_wide.view(), w_wide.view(), &exact)
        }
    }
}

/// About normal numbers (the sum of four uniform ones), the same on every machine.
fn noise(seed: u64, count: usize) -> Vec<bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| bf16::from_f32(next() + next() + next() + next())).collect()
}
