//! The README's twenty lines without a GPU: the same schemes, the same bytes of the operands, and sums in FP32. Needs nothing of the
//! feature `cuda`.
//!
//!     cargo run --release --example on_the_cpu

use ndarray::Array2;
use scaled_gemm::reference::{self, GemmInputs, HostOperand};
use scaled_gemm::{DType, Fp8Format, Recipe, Scheme};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (m, n, k) = (16, 64, 256);
    // Values are held in FP32, and `DType::Bf16` says which numbers they are.
    let x = Array2::<f32>::ones((m, k)); // activations
    let w = Array2::<f32>::ones((n, k)); // weights

    let activations = Recipe::new(Scheme::Fp8Group1x128(Fp8Format::E4M3)); // a scale for 128 features of a token
    let weights = Recipe::new(Scheme::Fp8Group128x128(Fp8Format::E4M3)); // a scale for a tile of 128x128
    let x = reference::quantize(x.view(), DType::Bf16, activations)?;
    let w = reference::quantize(w.view(), DType::Bf16, weights)?;
    let y = reference::scaled_gemm(&GemmInputs::new(&x, &w, DType::Bf16))?;
    println!("y[0, 0] = {} and must be {k}", y[[0, 0]]);

    // Weights alone quantized: A is plain numbers of a type.
    let (x, fp4) = (Array2::<f32>::ones((m, k)), Recipe::new(Scheme::Nvfp4));
    let fp4 = reference::quantize(Array2::<f32>::ones((n, k)).view(), DType::Bf16, fp4)?;
    let z = reference::scaled_gemm(&GemmInputs::new(HostOperand::Plain(x.view(), DType::Bf16), &fp4, DType::Bf16))?;
    println!("z[0, 0] = {} and must be {k}", z[[0, 0]]);

    // What the codes stand for.
    let back = reference::dequantize(&w, DType::F32);
    println!("w[0, 0] = {} and must be 1", back[[0, 0]]);
    assert_eq!((y[[0, 0]], z[[0, 0]], back[[0, 0]]), (k as f32, k as f32, 1.0));
    Ok(())
}
