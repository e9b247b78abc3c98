//! The product of a linear layer in NVFP4: what it costs in noise, memory and time against BF16.
//!
//! The weights are quantized once, with 4over6; the activations at every call, with a second-level scale for each token, or
//! not at all. A GPU before sm_100 multiplies no NVFP4: it dequantizes the weights at each call, or once if
//! they are kept. Times are medians over replayed graphs, operands warm in the L2 cache where they fit; that of the
//! activations' quantization is given apart. Without a GPU: noise on the CPU. Noise is measured on the first 64 rows of D.
//! k must be a multiple of 16, n of 16.
//!
//!     cargo run --release --example nvfp4 [M N K]

use half::bf16;
use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::{self, GemmInputs, HostOperand, sqnr_db};
use scaled_gemm::{
    Bf16Gemm, BlockScaleRule, BlockShape, DType, E4m3Bound, Error, ErrorMath, ErrorMetric, Formulation, GemmArgs,
    GemmPlan, Handle, MatMut, MatRef, Nvfp4Options, Nvfp4Recipe, QuantMatrix, QuantizeTo, Recipe, Scheme, time_calls,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ACTIVATIONS: Recipe = Recipe::new(Scheme::Nvfp4Row);
const WEIGHTS: Nvfp4Options = Nvfp4Options {
    block_scale: BlockScaleRule::FourOverSix { metric: ErrorMetric::Mse, math: ErrorMath::Strict },
    bound: E4m3Bound::Max256,
    ..Nvfp4Options::PLAIN
};
/// Where the transpose of the weights is needed with the same scales, for training: noisier, as tiles hold 256 elements.
const TILES: Nvfp4Options = Nvfp4Options { shape: BlockShape::Tile16x16, ..WEIGHTS };
const ROWS: usize = 64;

/// A as it comes to the product.
#[derive(Clone, Copy)]
enum Activations<'a> {
    Quantized(&'a QuantMatrix),
    Plain(&'a CudaSlice<bf16>),
}

impl<'a> Activations<'a> {
    fn times(self, weight: &'a QuantMatrix, d: &'a mut CudaSlice<bf16>, m: usize) -> scaled_gemm::Result<GemmArgs<'a>> {
        let (n, k) = (weight.rows(), weight.cols());
        let d = MatMut::new(d, DType::Bf16, m, n)?;
        Ok(match self {
            Self::Quantized(a) => GemmArgs::new(a, weight, d),
            Self::Plain(a) => GemmArgs::weight_only(MatRef::new(a, DType::Bf16, m, k)?, weight, d),
        })
    }
}

/// Signal to noise of the first rows of D.
fn noise_of(exact: &Array2<f32>, d: &[bf16]) -> f64 {
    let d: Vec<f32> = d[..exact.len()].iter().map(|v| v.to_f32()).collect();
    let exact: Vec<f32> = exact.iter().copied().collect();
    sqnr_db(&exact, &d)
}

/// Plans the product for these operands and times it.
fn time_product(
    handle: &Handle,
    a: Activations<'_>,
    weight: &QuantMatrix,
    d: &mut CudaSlice<bf16>,
    m: usize,
) -> scaled_gemm::Result<(GemmPlan, f64)> {
    // The problem says whether the weights are kept dequantized: a plan is for one or the other.
    let mut plan = handle.plan(&a.times(weight, d, m)?.desc()?)?;
    plan.prepare(handle, weight)?;
    let us = time_calls(handle, 20, 5, |_| plan.execute(handle, a.times(weight, d, m)?))?;
    Ok((plan, us))
}

fn on_gpu(handle: &Handle, x: &[bf16], w: &[bf16], exact: &Array2<f32>, [m, n, k]: [usize; 3]) -> Outcome<()> {
    let stream = handle.stream();
    let (x, w) = (stream.clone_htod(x)?, stream.clone_htod(w)?);
    let (x_ref, w_ref) = (MatRef::new(&x, DType::Bf16, m, k)?, MatRef::new(&w, DType::Bf16, n, k)?);
    let mut d = stream.alloc_zeros::<bf16>(m * n)?;
    let print = |name: &str, how: &str, bytes: usize, us: f64, d: &CudaSlice<bf16>| -> Outcome<()> {
        let (mib, noise) = (bytes as f64 / f64::from(1 << 20), noise_of(exact, &stream.clone_dtoh(d)?));
        println!("| {name} | {how} | {mib:.1} | {us:.1} | {noise:.1} |");
        Ok(())
    };

    println!("| product | how | weights and scratch, MiB | us | SQNR, dB |\n|---|---|---:|---:|---:|");
    let mut plain = Bf16Gemm::new(handle, m, n, k, 8)?;
    let mut base = f64::INFINITY;
    for index in 0..plain.candidates() {
        plain.choose(index);
        base = base.min(time_calls(handle, 20, 5, |_| {
            plain.execute(handle, &x_ref, &w_ref, &mut MatMut::new(&mut d, DType::Bf16, m, n)?)
        })?);
    }
    print("bf16 x bf16", "cuBLASLt", 2 * n * k, base, &d)?;

    let mut quantized = handle.quantize(&x_ref, ACTIVATIONS)?;
    let quantize_us =
        time_calls(handle, 20, 5, |_| handle.quantize_into(&x_ref, ACTIVATIONS, QuantizeTo::Plain(&mut quantized)))?;
    let mut weight = handle.quantize(&w_ref, Nvfp4Recipe::tensor(WEIGHTS)?)?;
    for (name, a) in
        [("nvfp4-row x nvfp4", Activations::Quantized(&quantized)), ("bf16 x nvfp4", Activations::Plain(&x))]
    {
        let (plan, us) = time_product(handle, a, &weight, &mut d, m)?;
        let bytes = weight.device_bytes() + plan.scratch_bytes();
        print(name, plan.formulation().name(), bytes, us, &d)?;
        if plan.formulation() == Formulation::DequantizedBf16 {
            weight.keep_dequantized(handle, DType::Bf16)?;
            let (plan, us) = time_product(handle, a, &weight, &mut d, m)?;
            let bytes = weight.device_bytes() + plan.scratch_bytes();
            print(name, "the same, weights kept", bytes, us, &d)?;
            weight.forget_dequantized();
        }
    }
    println!("\nquantizing the activations: {quantize_us:.1} us");
    Ok(())
}

fn on_cpu(x: ArrayView2<f32>, w: ArrayView2<f32>, exact: &Array2<f32>) -> Outcome<()> {
    let noise = |d: Array2<f32>| {
        let d: Vec<bf16> = d.iter().map(|v| bf16::from_f32(*v)).collect();
        noise_of(exact, &d)
    };
    println!("| product | weights | SQNR, dB |\n|---|---|---:|");
    println!("| bf16 x bf16 | | {:.1} |", noise(exact.clone()));
    let a = reference::quantize(x, DType::Bf16, ACTIVATIONS)?;
    for (words, options) in [("plain", Nvfp4Options::PLAIN), ("4over6", WEIGHTS), ("4over6, 16x16 tiles", TILES)] {
        let b = reference::quantize(w, DType::Bf16, Nvfp4Recipe::tensor(options)?)?;
        for a in [HostOperand::from(&a), HostOperand::Plain(x, DType::Bf16)] {
            let d = reference::scaled_gemm(&GemmInputs::new(a, &b, DType::Bf16))?;
            println!("| {} x {} | {words} | {:.1} |", a.operand(), b.scheme(), noise(d));
        }
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
        _ => return Err("usage: nvfp4 [M N K]".into()),
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
