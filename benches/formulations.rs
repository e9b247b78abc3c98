//! Every formulation that is offered, for each problem whose choice is measured: the records that
//! `scripts/measured-choices.py` makes src/gpu/gemm/measured.rs from.
//!
//! `cargo bench --bench formulations`; `SCALED_GEMM_SHAPES=quick` takes three shapes only, `NxK,NxK` these, `SCALED_GEMM_MOST_ROWS` no m above it,
//! `SCALED_GEMM_ACTIVATIONS=silu` problems with this activation only (`none,silu`: both). About three minutes on an H200.
//! Formulations of one problem take turns, back to back. All m but 3 and 12 make the tables, which these judge.
//! Elements of every product are checked against the f64 bound.

mod common;

use std::time::Instant;

use common::check::Check;
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Accumulation, Activation, ClockWatch, DType, Epilogue, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan,
    Handle, HostQuantMatrix, MatMut, PlanOptions, QuantMatrix, Result, Scheme, Timing,
};

const F: Fp8Format = Fp8Format::E4M3;
const ROWS: [usize; 20] = [1, 2, 3, 4, 8, 12, 16, 32, 48, 64, 128, 192, 256, 512, 768, 1024, 2048, 3072, 4096, 8192];
/// Pairs that have two formulations, and the accumulations that make a difference for them.
const PAIRS: [(&str, Scheme, Scheme, &[Accumulation]); 2] = [
    ("1x128 x 128x128", Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F), &[Accumulation::Precise]),
    ("row x row", Scheme::Fp8Row(F), Scheme::Fp8Row(F), &[Accumulation::Fast, Accumulation::Precise]),
];
/// Types of D with activations: cuBLASLt stores the sum as it is, or our kernel finishes it.
const OUTPUTS: [(DType, Activation); 3] =
    [(DType::Bf16, Activation::None), (DType::F32, Activation::None), (DType::Bf16, Activation::Silu)];
/// Short graphs suffice to tell two formulations apart, in turns.
const TIMING: Timing = Timing::SUSTAINED.with_calls(4).with_launches(7);

struct Weights {
    sets: Vec<QuantMatrix>,
    host: HostQuantMatrix,
}

/// One formulation of one problem.
struct Job<'a> {
    pair: usize,
    plan: GemmPlan,
    tokens: &'a [QuantMatrix],
    weights: &'a [QuantMatrix],
}

impl Job<'_> {
    fn call(&mut self, handle: &Handle, set: usize, d: &mut [CudaSlice<u8>], alpha: f32) -> Result<()> {
        let GemmDesc { m, n, out, accumulation, epilogue, .. } = *self.plan.desc();
        let args = GemmArgs::new(&self.tokens[set], &self.weights[set], MatMut::new(&mut d[set], out, m, n)?);
        self.plan.execute(handle, args.alpha(alpha).accumulation(accumulation).activation(epilogue.activation))
    }

    /// As large as what activations are for: sums of thousands of products of normal numbers are beyond what `sm90` has its short way for.
    fn timed(&mut self, handle: &Handle, set: usize, d: &mut [CudaSlice<u8>]) -> Result<()> {
        let plain = self.plan.desc().epilogue.activation == Activation::None;
        self.call(handle, set, d, if plain { 1.0 } else { 1.0 / 64.0 })
    }

    /// What [`TIMING`]'s competitors have in common, as the script reads it.
    fn problem(&self) -> (usize, String) {
        let GemmDesc { out, accumulation, epilogue, .. } = *self.plan.desc();
        let sums = if accumulation == Accumulation::Fast { "fast" } else { "precise" };
        (self.pair, format!("{sums}, {out}, {}", format!("{:?}", epilogue.activation).to_lowercase()))
    }
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "Formulations of FP8 products, E4M3 x E4M3, by accumulation, type of D and activation");
        let pool = Pool::new(handle);
        for shape in shapes() {
            measure_shape(handle, watch, &pool, shape);
        }
    });
}

fn is_wanted(activation: Activation) -> bool {
    let wanted = std::env::var("SCALED_GEMM_ACTIVATIONS").ok();
    let name = format!("{activation:?}").to_lowercase();
    wanted.is_none_or(|list| list.split(',').any(|wanted| wanted == name))
}

fn measure_shape(handle: &Handle, watch: &ClockWatch, pool: &Pool, (n, k): (usize, usize)) {
    println!("\n## n = {n}, k = {k}");
    println!("| m | pair | accumulation, D, activation | formulation: us ... | planned |\n|---|---|---|---|---|");
    let start = Instant::now();
    let most_sets = rotation(handle, n * k);
    let weights = PAIRS.map(|(_, _, b, _)| {
        let sets = pool.weights(handle, b, most_sets, (n, k));
        Weights { host: sets[0].to_host(handle).unwrap(), sets }
    });
    let most_rows = std::env::var("SCALED_GEMM_MOST_ROWS").map_or(usize::MAX, |most| most.parse().expect("a number"));
    for m in ROWS.into_iter().filter(|m| *m <= most_rows && m * n * k <= LARGEST) {
        measure(handle, pool, &weights, [m, n, k]);
    }
    println!("\n{:.0} s; {}", start.elapsed().as_secs_f64(), watch.since(start));
}

fn measure(handle: &Handle, pool: &Pool, weights: &[Weights; 2], [m, n, k]: [usize; 3]) {
    // Codes of both operands, and the smallest D.
    let sets = rotation(handle, m * k + n * k + 2 * m * n).min(weights[0].sets.len());
    let mut d = outputs(handle, sets, 4 * m * n);
    let tokens = PAIRS.map(|(_, a, _, _)| pool.tokens(handle, a, sets, (m, k)));
    let mut jobs = Vec::new();
    for (pair, (name, a, b, accumulations)) in PAIRS.into_iter().enumerate() {
        let (tokens, weights) = (&tokens[pair], &weights[pair]);
        for accumulation in accumulations {
            let accumulator = match accumulation {
                Accumulation::Precise => Accumulator::TensorCorePromoted,
                Accumulation::Fast => Accumulator::TensorCoreFast,
            };
            let check = Check::new(handle, &tokens[0], &weights.host, accumulator);
            for (out, activation) in OUTPUTS.into_iter().filter(|(_, activation)| is_wanted(*activation)) {
                let desc = GemmDesc::new(m, n, k, a, b, out)
                    .with_accumulation(*accumulation)
                    .with_epilogue(Epilogue { activation, ..Epilogue::default() });
                // None on GPUs without the pair.
                for formulation in handle.supports(&desc).unwrap_or_default() {
                    let options = PlanOptions::default().with_formulation(formulation);
                    let mut plan = handle.plan_with(&desc, &options).unwrap();
                    weights.sets[..sets].iter().for_each(|b| plan.prepare(handle, b).unwrap());
                    let mut job = Job { pair, plan, tokens, weights: &weights.sets };
                    handle.stream().memset_zeros(&mut d[0]).unwrap();
                    job.call(handle, 0, &mut d, 1.0).unwrap();
                    let words = format!("{name} {m} x {n} x {k}, {}, {formulation}", job.problem().1);
                    check.assert(handle, &d[0], out, activation, &words);
                    jobs.push(job);
                }
            }
        }
    }
    let timing = borrowing(TIMING).over(sets);
    let times = timing.in_turns(handle, jobs.len(), |who, call| jobs[who].timed(handle, call % sets, &mut d)).unwrap();
    let timed: Vec<_> = jobs.iter().zip(&times).map(|(job, times)| (job, times.median())).collect();
    for of_problem in timed.chunk_by(|(a, _), (b, _)| a.problem() == b.problem()) {
        let (job, _) = of_problem[0];
        let (pair, problem) = job.problem();
        let list: Vec<String> =
            of_problem.iter().map(|(job, us)| format!("{} {us:.2}", job.plan.formulation())).collect();
        // The plan's own choice stands first among those that are supported.
        let planned: Formulation = job.plan.formulation();
        println!("| {m} | {} | {problem} | {} | {planned} |", PAIRS[pair].0, list.join(", "));
    }
}
