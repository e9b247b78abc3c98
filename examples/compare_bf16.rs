//! What FP8 gains and costs against BF16: time, and signal to noise of the result, for every pair of schemes.
//!
//! On a GPU: competitors in turns over cold operands, with pauses and back to back, as the benches measure; BF16 is the fastest
//! of up to eight algorithms. Without one: signal to noise on the CPU, and times that say nothing about GPUs. The noise is
//! measured on the first 64 rows of D. k must be a multiple of 16, n of 8.
//!
//!     cargo run --release --example compare_bf16 [M N K]

mod common;

use std::time::Instant;

use common::{Outcome, Problem, Sets, begin, narrow, times};
use scaled_gemm::reference::{self, GemmInputs};
use scaled_gemm::{
    Cadence, DType, Error, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle, QuantMatrix, QuantizeTo, Recipe, Scheme,
    Timing,
};

const E4M3: Fp8Format = Fp8Format::E4M3;
const PAIRS: [(Scheme, Scheme); 4] = [
    (Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3)),
    (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3)),
    (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3)),
    (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group1x128(E4M3)),
];

/// One pair, with A and B of every set.
struct Job {
    plan: GemmPlan,
    a: Vec<QuantMatrix>,
    b: Vec<QuantMatrix>,
    sqnr: f64,
}

impl Job {
    fn call(&mut self, handle: &Handle, sets: &mut Sets, set: usize, quantizes: bool) -> scaled_gemm::Result<()> {
        let (x, d) = sets.x_and_d(set)?;
        let a = &mut self.a[set];
        if quantizes {
            handle.quantize_into(&x, Recipe::new(a.scheme()), QuantizeTo::Plain(a))?;
        }
        self.plan.execute(handle, GemmArgs::new(a, &self.b[set], d))
    }
}

fn on_gpu(handle: &Handle, problem: &Problem) -> Outcome<()> {
    let [m, n, k] = problem.shape;
    let mut sets = Sets::new(handle, problem)?;
    let bf16_sqnr = sets.bf16_sqnr(handle, problem)?;
    let mut jobs = Vec::new();
    for (a, b) in PAIRS {
        let mut plan = match handle.plan(&GemmDesc::new(m, n, k, a, b, DType::Bf16)) {
            Ok(plan) => plan,
            Err(error @ Error::Pair { .. }) => {
                println!("{error}");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let count = sets.count();
        let a = (0..count).map(|set| handle.quantize(&sets.x(set)?, Recipe::new(a)));
        let b = (0..count).map(|set| handle.quantize(&sets.w(set)?, Recipe::new(b)));
        let (a, b) = (a.collect::<scaled_gemm::Result<Vec<_>>>()?, b.collect::<scaled_gemm::Result<Vec<_>>>()?);
        b.iter().try_for_each(|b| plan.prepare(handle, b))?;
        let mut job = Job { plan, a, b, sqnr: 0.0 };
        job.call(handle, &mut sets, 0, false)?;
        job.sqnr = sets.sqnr(handle, problem)?;
        jobs.push(job);
    }
    let tflops = |us: f64| 2.0 * (m * n * k) as f64 / us / 1e6;
    for cadence in Cadence::ALL {
        // Each product alone, and with the quantization of A.
        let times = times(handle, Timing::of(cadence), &mut sets, 2 * jobs.len(), |sets, who, set| {
            jobs[who / 2].call(handle, sets, set, who % 2 == 1)
        })?;
        let times: Vec<f64> = times.iter().map(|times| times.median()).collect();
        println!("| pair | formulation | us | TFLOP/s | x BF16 | with quantization of A, us | x BF16 | SQNR, dB |");
        println!("|---|---|---:|---:|---:|---:|---:|---:|");
        let base = times[0];
        println!("| bf16 | | {base:.1} | {:.0} | 1.00 | {base:.1} | 1.00 | {bf16_sqnr:.1} |", tflops(base));
        for (job, times) in jobs.iter().zip(times[1..].chunks(2)) {
            let (GemmDesc { a, b, .. }, alone, with) = (job.plan.desc(), times[0], times[1]);
            println!(
                "| {a} x {b} | {} | {alone:.1} | {:.0} | {:.2} | {with:.1} | {:.2} | {:.1} |",
                job.plan.formulation(),
                tflops(alone),
                base / alone,
                base / with,
                job.sqnr
            );
        }
    }
    Ok(())
}

fn on_cpu(problem: &Problem) -> Outcome<()> {
    println!("| pair | quantize A and B, ms | multiply, ms | SQNR, dB |\n|---|---:|---:|---:|");
    println!("| bf16 | | | {:.1} |", problem.rounded_sqnr());
    for (scheme_a, scheme_b) in PAIRS {
        let start = Instant::now();
        let a = reference::quantize(problem.x.view(), DType::Bf16, Recipe::new(scheme_a))?;
        let b = reference::quantize(problem.w.view(), DType::Bf16, Recipe::new(scheme_b))?;
        let quantized = start.elapsed().as_secs_f64() * 1e3;
        let start = Instant::now();
        let d = reference::scaled_gemm(&GemmInputs::new(&a, &b, DType::Bf16))?;
        let multiplied = start.elapsed().as_secs_f64() * 1e3;
        let sqnr = problem.sqnr(&narrow(&d));
        println!("| {scheme_a} x {scheme_b} | {quantized:.1} | {multiplied:.1} | {sqnr:.1} |");
    }
    Ok(())
}

fn main() -> Outcome<()> {
    match begin("compare_bf16")? {
        (Some(handle), problem) => on_gpu(&handle, &problem),
        (None, problem) => on_cpu(&problem),
    }
}
