//! What `plan` takes of 1x128 x 128x128 to BF16 beside cuBLASLt's formulations, and our part of a comparison with another library, which `scripts/beside-deepgemm.py` makes.
//!
//! `cargo bench --bench beside` measures alone: `SCALED_GEMM_SHAPES=NxK,...` takes these shapes, `SCALED_GEMM_ROWS=128,...` these m. With `--requests` it obeys lines on standard input
//! ([`obey`]), so that the other library's turns come between ours. `SCALED_GEMM_CONFIGS=MOST` adds each configuration of `sm90` up to that m.
//! Elements of every product are checked against the f64 bound before it is timed.

mod common;

use std::io::BufRead;
use std::str::FromStr;
use std::time::{Duration, Instant};

use common::check::Check;
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Activation, Algorithm, Cadence, ClockWatch, DType, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle,
    HostQuantMatrix, MatMut, PlanOptions, QuantMatrix, Result, Scheme, Sm90Config, Timing, TuneRecord,
};

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
const ROWS: [usize; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];
/// Short, as there are hundreds of problems.
const PAUSES: Timing = Timing::PAUSES.with_calls(2).with_launches(7);
const SUSTAINED: Timing = Timing::SUSTAINED.with_calls(12).with_launches(9);

/// B of one (n, k), over all m.
struct Weights {
    shape: (usize, usize),
    sets: Vec<QuantMatrix>,
    host: HostQuantMatrix,
}

impl Weights {
    fn new(handle: &Handle, pool: &Pool, (n, k): (usize, usize)) -> Self {
        let sets = pool.weights(handle, B, rotation(handle, n * k), (n, k));
        let host = sets[0].to_host(handle).unwrap();
        Self { shape: (n, k), sets, host }
    }
}

/// One way to multiply.
struct Job {
    name: String,
    plan: GemmPlan,
}

impl Job {
    fn call(&mut self, handle: &Handle, a: &QuantMatrix, b: &QuantMatrix, d: &mut CudaSlice<u8>) -> Result<()> {
        let GemmDesc { m, n, out, .. } = *self.plan.desc();
        self.plan.execute(handle, GemmArgs::new(a, b, MatMut::new(d, out, m, n)?))
    }
}

/// Operands and ways of one product, each way checked.
struct Problem {
    planned: Formulation,
    tokens: Vec<QuantMatrix>,
    d: Vec<CudaSlice<u8>>,
    jobs: Vec<Job>,
}

impl Problem {
    fn new(handle: &Handle, pool: &Pool, weights: &Weights, m: usize) -> Self {
        let (n, k) = weights.shape;
        let sets = rotation(handle, m * k + n * k + 2 * m * n).min(weights.sets.len());
        let tokens = pool.tokens(handle, A, sets, (m, k));
        let mut d = outputs(handle, sets, 2 * m * n);
        let check = Check::new(handle, &tokens[0], &weights.host, Accumulator::TensorCorePromoted);
        let desc = GemmDesc::new(m, n, k, A, B, DType::Bf16);
        let planned = handle.plan(&desc).unwrap().formulation();
        let configs = numbers("SCALED_GEMM_CONFIGS").is_some_and(|most| m <= most[0]);
        let mut jobs = jobs(handle, &desc, configs);
        for job in &mut jobs {
            weights.sets[..sets].iter().for_each(|b| job.plan.prepare(handle, b).unwrap());
            handle.stream().memset_zeros(&mut d[0]).unwrap();
            job.call(handle, &tokens[0], &weights.sets[0], &mut d[0]).unwrap();
            check.assert(handle, &d[0], DType::Bf16, Activation::None, &format!("{m} x {n} x {k}, {}", job.name));
        }
        Self { planned, tokens, d, jobs }
    }

    /// Median microseconds of these ways, in turns.
    fn time(&mut self, handle: &Handle, weights: &Weights, ways: &[usize], timing: Timing) -> Vec<f64> {
        let Self { tokens, d, jobs, .. } = self;
        let sets = tokens.len();
        let call = |who: usize, call: usize| {
            let set = call % sets;
            jobs[ways[who]].call(handle, &tokens[set], &weights.sets[set], &mut d[set])
        };
        let times = borrowing(timing).over(sets).in_turns(handle, ways.len(), call).unwrap();
        times.iter().map(|times| times.median()).collect()
    }
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "The plan of 1x128 x 128x128 to BF16 and cuBLASLt's formulations");
        let pool = Pool::new(handle);
        if std::env::args().any(|word| word == "--requests") {
            return obey(handle, &pool);
        }
        for shape in shapes() {
            measure_shape(handle, watch, &pool, shape);
        }
    });
}

/// Answers requests until there are no more, a line each; it works only between a request and its answer.
///
/// - `problem M N K`: prepares and checks this product. `ready SETS | PLAN | WAY | WAY...`: sets of operands, the formulation of the plan, and the ways, from number 0.
/// - `time CADENCE CALLS LAUNCHES MILLISECONDS WAY,WAY...`: times ways of it in turns, graphs of so many calls, after so long a warm-up. `times MICROSECONDS...`: the median of each.
fn obey(handle: &Handle, pool: &Pool) {
    let mut weights: Option<Weights> = None;
    let mut problem: Option<Problem> = None;
    for line in std::io::stdin().lock().lines().map_while(|line| line.ok()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["problem", m, n, k] => {
                let shape = (parsed(n), parsed(k));
                // Memory of the last one first: two of the largest do not fit.
                problem = None;
                if weights.as_ref().is_none_or(|weights| weights.shape != shape) {
                    weights = None;
                }
                let weights = weights.get_or_insert_with(|| Weights::new(handle, pool, shape));
                let new = problem.insert(Problem::new(handle, pool, weights, parsed(m)));
                let ways: Vec<&str> = new.jobs.iter().map(|job| &*job.name).collect();
                println!("ready {} | {} | {}", new.tokens.len(), new.planned, ways.join(" | "));
            }
            ["time", cadence, calls, launches, milliseconds, ways] => {
                let (Some(problem), Some(weights)) = (&mut problem, &weights) else { panic!("{line}: no problem yet") };
                let ways: Vec<usize> = ways.split(',').map(parsed).collect();
                let timing = Timing::of(parsed::<Cadence>(cadence)).with_calls(parsed(calls));
                let timing = timing.with_launches(parsed(launches));
                let timing = timing.with_warm_up(Duration::from_millis(parsed(milliseconds)));
                let times = problem.time(handle, weights, &ways, timing);
                let times: Vec<String> = times.iter().map(|us| format!("{us:.3}")).collect();
                println!("times {}", times.join(" "));
            }
            _ => panic!("{line}: neither `problem M N K` nor `time CADENCE CALLS LAUNCHES MILLISECONDS WAY,...`"),
        }
    }
}

fn parsed<T: FromStr<Err: std::fmt::Debug>>(word: &str) -> T {
    word.parse().unwrap_or_else(|error| panic!("{word}: {error:?}"))
}

/// Numbers of a list in the environment.
fn numbers(variable: &str) -> Option<Vec<usize>> {
    let list = std::env::var(variable).ok()?;
    Some(list.split(',').map(parsed).collect())
}

/// With pauses the ways of a problem take turns; sustained each runs alone, so that its power is its own, and configurations do not.
fn measure_shape(handle: &Handle, watch: &ClockWatch, pool: &Pool, (n, k): (usize, usize)) {
    let weights = Weights::new(handle, pool, (n, k));
    for m in numbers("SCALED_GEMM_ROWS").unwrap_or_else(|| ROWS.to_vec()) {
        let mut problem = Problem::new(handle, pool, &weights, m);
        let all: Vec<usize> = (0..problem.jobs.len()).collect();
        let ways = problem.jobs.iter().filter(|job| !job.name.contains(' ')).count();
        for cadence in Cadence::ALL {
            let start = Instant::now();
            let times: Vec<f64> = match cadence {
                Cadence::Pauses => problem.time(handle, &weights, &all, PAUSES),
                Cadence::Sustained => {
                    all[..ways].iter().flat_map(|way| problem.time(handle, &weights, &[*way], SUSTAINED)).collect()
                }
            };
            let named = problem.jobs.iter().zip(&times);
            let list: Vec<String> = named.map(|(job, us)| format!("{} {us:.2}", job.name)).collect();
            let (planned, clocks) = (problem.planned, watch.since(start));
            println!("| {m} | {n} | {k} | {cadence} | {} | plan {planned} | {clocks} |", list.join(", "));
        }
    }
}

/// A plan of each formulation, and with `configs` of each configuration of `sm90`.
fn jobs(handle: &Handle, desc: &GemmDesc, configs: bool) -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut records = Vec::new();
    for formulation in handle.supports(desc).unwrap_or_default() {
        let plan = handle.plan_with(desc, &PlanOptions::default().with_formulation(formulation)).unwrap();
        if let Some(record) = plan.record().filter(|_| configs && formulation == Formulation::Sm90) {
            let Algorithm::Sm90(chosen) = *record.algorithm() else { panic!("{}", plan.explain()) };
            let json = record.to_json().unwrap();
            for config in Sm90Config::ALL {
                let json = json.replace(&format!("\"{chosen}\""), &format!("\"{config}\""));
                records.push((config, TuneRecord::from_json(&json).unwrap()));
            }
        }
        jobs.push(Job { name: formulation.to_string(), plan });
    }
    for (config, record) in records {
        let plan = handle.plan_with(desc, &PlanOptions::default().with_record(record)).unwrap();
        jobs.push(Job { name: format!("sm90 {config}"), plan });
    }
    jobs
}
