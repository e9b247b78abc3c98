//! Quantization and product in one CUDA graph: captured once, replayed with new activations.
//!
//! Everything that allocates or waits is done before the capture: buffers, the plan, and `GemmPlan::prepare`, which makes
//! in B what the chosen formulation needs there. `Handle::quantize_into` and `GemmPlan::execute` then only enqueue. The
//! graph keeps the addresses it saw, and owns a share of the memory behind them. Needs a GPU of sm_90; without one it says so
//! and ends.
//!
//!     cargo run --release --example cuda_graph

use half::bf16;
use scaled_gemm::reference::Noise;
use scaled_gemm::{
    DType, Error, Fp8Format, GemmArgs, GemmDesc, Handle, MatMut, MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let handle = match Handle::new(0) {
        Ok(handle) => handle,
        Err(error @ (Error::NoGpu { .. } | Error::Library { .. })) => {
            println!("nothing to capture here: {error}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let (m, n, k) = (16, 4096, 7168);
    let activations = Recipe::new(Scheme::Fp8Group1x128(Fp8Format::E4M3));
    let weights = Recipe::new(Scheme::Fp8Group128x128(Fp8Format::E4M3));

    let w = handle.upload(&Noise::new(1).bf16(n * k, 1.0))?;
    let w = handle.quantize(&MatRef::new(&w, DType::Bf16, n, k)?, weights)?;
    let mut x = handle.upload(&Noise::new(2).bf16(m * k, 1.0))?;
    let mut x_quantized = QuantMatrix::zeros(&handle, activations.scheme(), m, k)?;
    let mut y = handle.alloc(2 * m * n)?;

    let mut plan = handle.plan(&GemmDesc::new(m, n, k, activations.scheme(), weights.scheme(), DType::Bf16))?;
    plan.prepare(&handle, &w)?;
    print!("{}", plan.explain());

    let graph = handle.capture(|| {
        let x = MatRef::new(&x, DType::Bf16, m, k)?;
        handle.quantize_into(&x, activations, QuantizeTo::Plain(&mut x_quantized))?;
        plan.execute(&handle, GemmArgs::new(&x_quantized, &w, MatMut::new(&mut y, DType::Bf16, m, n)?))
    })?;

    for step in 0..3 {
        // New data at the old address; the graph reads it there.
        handle.write(&mut x.view_mut(), &Noise::new(10 + step).bf16(m * k, 1.0))?;
        handle.launch(&graph)?;
        let replayed = handle.read::<bf16>(&y.view())?;

        let mut direct = handle.alloc(2 * m * n)?;
        let x_now = handle.quantize(&MatRef::new(&x, DType::Bf16, m, k)?, activations)?;
        plan.execute(&handle, GemmArgs::new(&x_now, &w, MatMut::new(&mut direct, DType::Bf16, m, n)?))?;
        let equal = handle.read::<bf16>(&direct.view())? == replayed;
        println!(
            "step {step}: y[0, 0] = {}, replay and direct call {}",
            replayed[0],
            if equal { "agree" } else { "DIFFER" }
        );
        if !equal {
            return Err("a replayed graph must give the bytes of the direct call".into());
        }
    }
    Ok(())
}
