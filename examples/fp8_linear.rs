//! An FP8 linear layer: `y = silu(x Wᵀ + bias)`.
//!
//! The weights are quantized once, with one scale for each 128x128 tile; the activations at every call, with one scale
//! for each 128 features of a token. Runs on the GPU if there is one of sm_90 (cuBLASLt has these scales nowhere else),
//! else on the CPU, where the bytes of the operands are the same. In-features must be a multiple of 16, out-features of
//! 8; any number of tokens. x, bias and y are BF16.
//!
//!     cargo run --release --example fp8_linear

use half::bf16;
use ndarray::{Array2, ArrayView2};
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::{self, GemmInputs, Noise};
use scaled_gemm::{
    Activation, DType, Error, Fp8Format, GemmArgs, Handle, HostQuantMatrix, MatMut, MatRef, QuantMatrix, Recipe,
    Scheme, VecRef,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ACTIVATIONS: Recipe = Recipe::new(Scheme::Fp8Group1x128(Fp8Format::E4M3));
const WEIGHTS: Recipe = Recipe::new(Scheme::Fp8Group128x128(Fp8Format::E4M3));

/// The layer on a GPU.
struct GpuLinear {
    weight: QuantMatrix,
    bias: CudaSlice<bf16>,
}

impl GpuLinear {
    fn new(handle: &Handle, weight: &[bf16], bias: &[bf16]) -> Outcome<Self> {
        let stream = handle.stream();
        let features = weight.len() / bias.len();
        let wide = stream.clone_htod(weight)?;
        let weight = handle.quantize(&MatRef::new(&wide, DType::Bf16, bias.len(), features)?, WEIGHTS)?;
        Ok(Self { weight, bias: stream.clone_htod(bias)? })
    }

    /// Plans at the first call for each number of tokens; see `cuda_graph.rs` for a call that allocates nothing.
    fn forward(&self, handle: &Handle, x: &MatRef<'_>) -> Outcome<CudaSlice<bf16>> {
        let n = self.weight.rows();
        let x = handle.quantize(x, ACTIVATIONS)?;
        let mut y = handle.stream().alloc_zeros::<bf16>(x.rows() * n)?;
        let call = GemmArgs::new(&x, &self.weight, MatMut::new(&mut y, DType::Bf16, x.rows(), n)?)
            .bias(VecRef::new(&self.bias, DType::Bf16, n)?)
            .activation(Activation::Silu);
        handle.scaled_gemm(call)?;
        Ok(y)
    }
}

/// The layer on the CPU: the same bytes, sums in FP32.
fn cpu_forward(x: ArrayView2<f32>, weight: &HostQuantMatrix, bias: &[f32]) -> Outcome<Array2<f32>> {
    let x = reference::quantize(x, DType::Bf16, ACTIVATIONS)?;
    let mut call = GemmInputs::new(&x, weight, DType::Bf16);
    call.bias = Some((bias, DType::Bf16));
    call.activation = Activation::Silu;
    Ok(reference::scaled_gemm(&call)?)
}

fn main() -> Outcome<()> {
    let (tokens, in_features, out_features) = (37, 1024, 1536);
    let x = Noise::new(1).bf16(tokens * in_features, 1.0);
    let weight = Noise::new(2).bf16(out_features * in_features, 0.03);
    let bias = Noise::new(3).bf16(out_features, 0.5);

    let (x_wide, weight_wide) = (
        widened(&x).into_shape_with_order((tokens, in_features))?,
        widened(&weight).into_shape_with_order((out_features, in_features))?,
    );
    let bias_wide = widened(&bias);
    let exact = (x_wide.dot(&weight_wide.t()) + &bias_wide).mapv(|v| v / (1.0 + (-v).exp()));

    let (device, y) = match Handle::new(0) {
        Ok(handle) => {
            let layer = GpuLinear::new(&handle, &weight, &bias)?;
            let x = handle.stream().clone_htod(&x)?;
            let y = layer.forward(&handle, &MatRef::new(&x, DType::Bf16, tokens, in_features)?)?;
            let y: Vec<f32> = handle.stream().clone_dtoh(&y)?.iter().map(|v| v.to_f32()).collect();
            (handle.device().to_string(), y)
        }
        Err(error @ (Error::NoGpu { .. } | Error::Library { .. })) => {
            println!("{error}\non the CPU, then:");
            let weight = reference::quantize(weight_wide.view(), DType::Bf16, WEIGHTS)?;
            let y = cpu_forward(x_wide.view(), &weight, bias_wide.as_slice().unwrap_or_default())?;
            ("the CPU".to_string(), y.into_iter().collect())
        }
        Err(error) => return Err(error.into()),
    };
    let exact: Vec<f32> = exact.into_iter().collect();
    println!(
        "{tokens} tokens, {in_features} -> {out_features} features on {device}: {:.1} dB signal to noise against FP32",
        reference::sqnr_db(&exact, &y)
    );
    Ok(())
}

fn widened(values: &[bf16]) -> ndarray::Array1<f32> {
    values.iter().map(|v| v.to_f32()).collect()
}
