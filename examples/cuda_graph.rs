//! Quantization and product in one CUDA graph: captured once, replayed with new activations.
//!
//! Everything that allocates or waits is done before the capture: buffers, the plan, and `GemmPlan::prepare`, which makes
//! in B what the chosen formulation needs there. `Handle::quantize_into` and `GemmPlan::execute` then only enqueue. The
//! graph keeps the addresses it saw: operands, plan and handle must live as long as it is launched. Needs a GPU of sm_90;
//! without one it says so and ends.
//!
//!     cargo run --release --example cuda_graph

use half::bf16;
use scaled_gemm::{
    DType, Error, Fp8Format, GemmArgs, GemmDesc, Handle, MatMut, MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme,
    capture,
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
    let stream = handle.stream().clone();
    let (m, n, k) = (16, 4096, 7168);
    let activations = Recipe::new(Scheme::Fp8Group1x128(Fp8Format::E4M3));
    let weights = Recipe::new(Scheme::Fp8Group128x128(Fp8Format::E4M3));

    let w = stream.clone_htod(&noise(1, n * k))?;
    let w = handle.quantize(&MatRef::new(&w, DType::Bf16, n, k)?, weights)?;
    let mut x = stream.clone_htod(&noise(2, m * k))?;
    let mut x_quantized = QuantMatrix::zeros(&handle, activations.scheme(), m, k)?;
    let mut y = stream.alloc_zeros::<bf16>(m * n)?;

    let mut plan = handle.plan(&GemmDesc::new(m, n, k, activations.scheme(), weights.scheme(), DType::Bf16))?;
    plan.prepare(&handle, &w)?;
    print!("{}", plan.explain());

    let graph = capture(&handle, || {
        let x = MatRef::new(&x, DType::Bf16, m, k)?;
        handle.quantize_into(&x, activations, QuantizeTo::Plain(&mut x_quantized))?;
        plan.execute(&handle, GemmArgs::new(&x_quantized, &w, MatMut::new(&mut y, DType::Bf16, m, n)?))
    })?;

    for step in 0..3 {
        // New data at the old address; the graph reads it there.
        stream.memcpy_htod(&noise(10 + step, m * k), &mut x)?;
        graph.launch()?;
        let replayed = stream.clone_dtoh(&y)?;

        let mut direct = stream.alloc_zeros::<bf16>(m * n)?;
        let x_now = handle.quantize(&MatRef::new(&x, DType::Bf16, m, k)?, activations)?;
        plan.execute(&handle, GemmArgs::new(&x_now, &w, MatMut::new(&mut direct, DType::Bf16, m, n)?))?;
        let equal = stream.clone_dtoh(&direct)? == replayed;
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

/// Uniform numbers in (-1, 1), the same on every machine.
fn noise(seed: u64, count: usize) -> Vec<bf16> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| bf16::from_f32(next())).collect()
}
