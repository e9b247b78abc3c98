//! The product of a linear layer in NVFP4: what it costs in noise, memory and time against BF16.
//!
//! The weights are quantized once, with 4over6; the activations at every call, with a second-level scale for each token, or
//! not at all. A GPU before sm_100 multiplies no NVFP4: it dequantizes the weights at each call, or once if they are kept.
//! Competitors in turns over cold operands, with pauses and back to back, as the benches measure; BF16 is the fastest of up to
//! eight algorithms; the quantization of the activations is given apart. Without a GPU: noise on the CPU. Noise is measured on
//! the first 64 rows of D. k must be a multiple of 16, n of 16.
//!
//!     cargo run --release --example nvfp4 [M N K]

mod common;

use common::{Outcome, Problem, Sets, begin, narrow, times};
use scaled_gemm::reference::{self, GemmInputs, HostOperand};
use scaled_gemm::{
    BlockScaleRule, BlockShape, Cadence, DType, E4m3Bound, ErrorMath, ErrorMetric, Formulation, GemmArgs, GemmPlan,
    Handle, Nvfp4Options, Nvfp4Recipe, QuantMatrix, QuantizeTo, Recipe, Scheme, Timing,
};

const ACTIVATIONS: Recipe = Recipe::new(Scheme::Nvfp4Row);
const WEIGHTS: Nvfp4Options = Nvfp4Options {
    block_scale: BlockScaleRule::FourOverSix { metric: ErrorMetric::Mse, math: ErrorMath::Strict },
    bound: E4m3Bound::Max256,
    ..Nvfp4Options::PLAIN
};
/// Where the transpose of the weights is needed with the same scales, for training: noisier, as tiles hold 256 elements.
const TILES: Nvfp4Options = Nvfp4Options { shape: BlockShape::Tile16x16, ..WEIGHTS };

/// One product, with A of every set (none where it stays plain) and the weights.
struct Job<'a> {
    name: &'static str,
    kept: bool,
    plan: GemmPlan,
    a: Option<&'a [QuantMatrix]>,
    weights: &'a [QuantMatrix],
    sqnr: f64,
}

/// The operands of one call.
fn args<'a>(
    sets: &'a mut Sets,
    a: Option<&'a [QuantMatrix]>,
    weights: &'a [QuantMatrix],
    set: usize,
) -> scaled_gemm::Result<GemmArgs<'a>> {
    let (x, d) = sets.x_and_d(set)?;
    Ok(match a {
        Some(a) => GemmArgs::new(&a[set], &weights[set], d),
        None => GemmArgs::weight_only(x, &weights[set], d),
    })
}

fn on_gpu(handle: &Handle, problem: &Problem) -> Outcome<()> {
    let [_, n, k] = problem.shape;
    let mut sets = Sets::new(handle, problem)?;
    let (count, bf16_sqnr) = (sets.count(), sets.bf16_sqnr(handle, problem)?);
    let all = |quantize: &dyn Fn(usize) -> scaled_gemm::Result<QuantMatrix>| {
        (0..count).map(quantize).collect::<scaled_gemm::Result<Vec<_>>>()
    };
    let activations = all(&|set| handle.quantize(&sets.x(set)?, ACTIVATIONS))?;
    let mut target = all(&|set| handle.quantize(&sets.x(set)?, ACTIVATIONS))?;
    let recipe = Nvfp4Recipe::tensor(WEIGHTS)?;
    let codes = all(&|set| handle.quantize(&sets.w(set)?, recipe))?;
    let kept = all(&|set| handle.quantize(&sets.w(set)?, recipe))?;
    let mut jobs = Vec::new();
    for (name, a) in [("nvfp4-row x nvfp4", Some(&activations[..])), ("bf16 x nvfp4", None)] {
        for weights in [&codes, &kept] {
            let keeps = std::ptr::eq(weights, &kept);
            if keeps {
                weights.iter().try_for_each(|b| b.keep_dequantized(handle, DType::Bf16))?;
            }
            // The problem says whether the weights are kept dequantized: a plan is for one or the other.
            let mut plan = handle.plan(&args(&mut sets, a, weights, 0)?.desc()?)?;
            if keeps && plan.formulation() != Formulation::DequantizedBf16 {
                continue;
            }
            weights.iter().try_for_each(|b| plan.prepare(handle, b))?;
            plan.execute(handle, args(&mut sets, a, weights, 0)?)?;
            let sqnr = sets.sqnr(handle, problem)?;
            jobs.push(Job { name, kept: keeps, plan, a, weights, sqnr });
        }
    }
    for cadence in Cadence::ALL {
        // The products, and the quantization of the activations by itself.
        let times =
            times(handle, Timing::of(cadence), &mut sets, jobs.len() + 1, |sets, who, set| match jobs.get_mut(who) {
                Some(job) => job.plan.execute(handle, args(sets, job.a, job.weights, set)?),
                None => handle.quantize_into(&sets.x(set)?, ACTIVATIONS, QuantizeTo::Plain(&mut target[set])),
            })?;
        println!("| product | how | weights and scratch, MiB | us | SQNR, dB |\n|---|---|---:|---:|---:|");
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        println!("| bf16 x bf16 | cuBLASLt | {:.1} | {} | {:.1} |", mib(2 * n * k), times[0], bf16_sqnr);
        for (job, times) in jobs.iter().zip(&times[1..]) {
            let how = if job.kept { "the same, weights kept" } else { job.plan.formulation().name() };
            let bytes = mib(job.weights[0].device_bytes() + job.plan.scratch_bytes());
            println!("| {} | {how} | {bytes:.1} | {times} | {:.1} |", job.name, job.sqnr);
        }
        if let Some(quantize) = times.last() {
            println!("quantizing the activations: {quantize} us");
        }
    }
    Ok(())
}

fn on_cpu(problem: &Problem) -> Outcome<()> {
    println!("| product | weights | SQNR, dB |\n|---|---|---:|");
    println!("| bf16 x bf16 | | {:.1} |", problem.rounded_sqnr());
    let a = reference::quantize(problem.x.view(), DType::Bf16, ACTIVATIONS)?;
    for (words, options) in [("plain", Nvfp4Options::PLAIN), ("4over6", WEIGHTS), ("4over6, 16x16 tiles", TILES)] {
        let b = reference::quantize(problem.w.view(), DType::Bf16, Nvfp4Recipe::tensor(options)?)?;
        for a in [HostOperand::from(&a), HostOperand::Plain(problem.x.view(), DType::Bf16)] {
            let d = reference::scaled_gemm(&GemmInputs::new(a, &b, DType::Bf16))?;
            println!("| {} x {} | {words} | {:.1} |", a.operand(), b.scheme(), problem.sqnr(&narrow(&d)));
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    match begin("nvfp4")? {
        (Some(handle), problem) => on_gpu(&handle, &problem),
        (None, problem) => on_cpu(&problem),
    }
}
