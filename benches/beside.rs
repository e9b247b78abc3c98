//! What `plan` takes of 1x128 x 128x128 to BF16 beside cuBLASLt's formulations, and our part of comparisons with other libraries, which `scripts/beside-deepgemm.py` and, at few
//! rows, `scripts/beside-decode.py` make.
//!
//! `cargo bench --bench beside` measures alone: `SCALED_GEMM_SHAPES=NxK,...` takes these shapes, `SCALED_GEMM_ROWS=128,...` these m. With `--requests` it obeys lines on standard input
//! ([`obey`]), so that the turns of others come between ours. `SCALED_GEMM_CONFIGS=MOST` adds each configuration of `sm90` up to that m.
//! Elements of every product are checked against the f64 bound before it is timed.

mod common;

use std::time::Instant;

use common::check::Check;
use common::requests::parsed;
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Activation, Algorithm, Cadence, ClockWatch, CodeOrder, DType, Error, Formulation, Fp8Format, GemmArgs, GemmDesc,
    GemmPlan, Handle, HostQuantMatrix, MatMut, Operand, PlanOptions, QuantMatrix, Result, Scheme, Sm90Config, Timing,
    TuneRecord,
};

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
const ROWS: [usize; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];
/// Short, as there are hundreds of problems.
const PAUSES: Timing = Timing::PAUSES.with_calls(2).with_launches(7);
const SUSTAINED: Timing = Timing::SUSTAINED.with_calls(12).with_launches(9);

/// B of one scheme and (n, k), over all m.
struct Weights {
    scheme: Scheme,
    shape: (usize, usize),
    published: Vec<QuantMatrix>,
    /// As many, where a way reads such.
    repacked: Vec<QuantMatrix>,
    host: HostQuantMatrix,
}

impl Weights {
    fn new(handle: &Handle, pool: &Pool, scheme: Scheme, (n, k): (usize, usize)) -> Self {
        let published = pool.weights(handle, scheme, rotation(handle, bytes_of(scheme, n, k)), (n, k));
        let host = published[0].to_host(handle).unwrap();
        Self { scheme, shape: (n, k), published, repacked: Vec::new(), host }
    }

    /// Makes those that `order` asks for.
    fn make(&mut self, handle: &Handle, pool: &Pool, order: CodeOrder) {
        if order == CodeOrder::Repacked && self.repacked.is_empty() {
            self.repacked = pool.weights(handle, self.scheme, self.published.len(), self.shape);
            self.repacked.iter_mut().for_each(|b| b.repack(handle, order).unwrap());
        }
    }

    fn of(&self, order: CodeOrder) -> &[QuantMatrix] {
        match order {
            CodeOrder::Published => &self.published,
            CodeOrder::Repacked => &self.repacked,
        }
    }
}

/// What a product reads of such a matrix.
fn bytes_of(scheme: Scheme, rows: usize, cols: usize) -> usize {
    scheme.code_bytes(rows, cols) + scheme.block_scale_len(rows, cols) + 4 * scheme.scale_len(rows, cols)
}

/// One way to multiply.
struct Job {
    name: String,
    plan: GemmPlan,
    /// As links of a chain.
    chained: bool,
}

impl Job {
    fn order(&self) -> CodeOrder {
        self.plan.desc().b_order
    }
}

/// A of each set: quantized, or the pool's as it is.
struct Tokens<'p> {
    pool: &'p Pool,
    quantized: Vec<QuantMatrix>,
}

impl Tokens<'_> {
    fn multiply(
        &self,
        handle: &Handle,
        job: &mut Job,
        set: usize,
        b: &QuantMatrix,
        d: &mut CudaSlice<u8>,
    ) -> Result<()> {
        let GemmDesc { m, n, k, out, .. } = *job.plan.desc();
        let d = MatMut::new(d, out, m, n)?;
        let args = match self.quantized.get(set) {
            Some(a) => GemmArgs::new(a, b, d),
            None => GemmArgs::weight_only(self.pool.a(set, m, k), b, d),
        };
        job.plan.execute(handle, args)
    }
}

/// Operands and ways of one product, each way checked.
struct Problem<'p> {
    planned: Formulation,
    tokens: Tokens<'p>,
    d: Vec<CudaSlice<u8>>,
    jobs: Vec<Job>,
}

impl<'p> Problem<'p> {
    fn new(handle: &Handle, pool: &'p Pool, weights: &mut Weights, mut jobs: Vec<Job>, planned: Formulation) -> Self {
        let GemmDesc { m, n, k, a, .. } = *jobs[0].plan.desc();
        let a_bytes = a.scheme().map_or(2 * m * k, |scheme| scheme.code_bytes(m, k));
        let set = a_bytes + weights.scheme.code_bytes(n, k) + 2 * m * n;
        let sets = rotation(handle, set).min(weights.published.len());
        let quantized = a.scheme().map_or_else(Vec::new, |scheme| pool.tokens(handle, scheme, sets, (m, k)));
        let check = match quantized.first() {
            Some(a) => Check::new(handle, a, &weights.host, Accumulator::TensorCorePromoted),
            None => Check::plain(handle, pool, (m, k), &weights.host),
        };
        let (tokens, mut d) = (Tokens { pool, quantized }, outputs(handle, sets, 2 * m * n));
        for job in &mut jobs {
            weights.make(handle, pool, job.order());
            let b = &weights.of(job.order())[..sets];
            b.iter().for_each(|b| job.plan.prepare(handle, b).unwrap());
            handle.stream().memset_zeros(&mut d[0]).unwrap();
            tokens.multiply(handle, job, 0, &b[0], &mut d[0]).unwrap();
            check.assert(handle, &d[0], DType::Bf16, Activation::None, &format!("{m} x {n} x {k}, {}", job.name));
        }
        Self { planned, tokens, d, jobs }
    }

    /// Median microseconds of these ways, in turns; those in chains come last.
    fn time(&mut self, handle: &Handle, weights: &Weights, ways: &[usize], timing: Timing) -> Vec<f64> {
        let Self { tokens, d, jobs, .. } = self;
        let sets = d.len();
        let chained_from = ways.partition_point(|way| !jobs[*way].chained);
        assert!(ways[chained_from..].iter().all(|way| jobs[*way].chained), "chains last: {ways:?}");
        let call = |who: usize, call: usize| {
            let (job, set) = (&mut jobs[ways[who]], call % sets);
            tokens.multiply(handle, job, set, &weights.of(job.order())[set], &mut d[set])
        };
        let timing = borrowing(timing).over(sets).chained_from(chained_from);
        let times = timing.in_turns(handle, ways.len(), call).unwrap();
        times.iter().map(|times| times.median()).collect()
    }
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "The plan of 1x128 x 128x128 to BF16 and cuBLASLt's formulations");
        let pool = Pool::new(handle);
        if requests::asked() {
            return obey(handle, &pool);
        }
        for shape in shapes() {
            measure_shape(handle, watch, &pool, shape);
        }
    });
}

/// Answers requests until there are no more, a line each; it works only between a request and its answer.
///
/// - `problem M N K`: prepares and checks this product of 1x128 x 128x128 by each formulation. `ready SETS | PLAN | WAY | WAY...`: sets of operands, the formulation of the plan, and the
///   ways, from number 0.
/// - `decode M N K A B`: likewise this product of operands of these names by the plan alone, of codes as published and, where they have that order, repacked, each plain and in a chain.
/// - `time CADENCE CALLS LAUNCHES MILLISECONDS WAY,WAY...`: times ways of it in turns, graphs of so many calls, after so long a warm-up. `times MICROSECONDS...`: the median of each.
///
/// A product that no plan serves, or a name that there is not, is `refused WHY`, and nothing is ready.
fn obey(handle: &Handle, pool: &Pool) {
    let mut weights: Option<Weights> = None;
    let mut problem: Option<Problem> = None;
    for line in requests::lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ways = match words[..] {
            ["problem", m, n, k] => by_formulation(handle, [m, n, k].map(parsed)),
            ["decode", m, n, k, a, b] => as_planned(handle, [m, n, k].map(parsed), a, b),
            ["time", cadence, calls, launches, milliseconds, ways] => {
                let (Some(problem), Some(weights)) = (&mut problem, &weights) else { panic!("{line}: no problem yet") };
                let ways: Vec<usize> = ways.split(',').map(parsed).collect();
                let timing = requests::timing([cadence, calls, launches, milliseconds]);
                requests::say_times(problem.time(handle, weights, &ways, timing));
                continue;
            }
            _ => panic!(
                "{line}: neither `problem M N K` nor `decode M N K A B` nor `time CADENCE CALLS LAUNCHES MILLISECONDS WAY,...`"
            ),
        };
        // Memory of the last one first: two of the largest do not fit.
        problem = None;
        let (planned, jobs) = match ways {
            Ok(ways) => ways,
            Err(why) => {
                requests::refuse(&why);
                continue;
            }
        };
        let GemmDesc { n, k, b, .. } = *jobs[0].plan.desc();
        if weights.as_ref().is_none_or(|weights| (weights.scheme, weights.shape) != (b, (n, k))) {
            weights = None;
        }
        let weights = weights.get_or_insert_with(|| Weights::new(handle, pool, b, (n, k)));
        let new = problem.insert(Problem::new(handle, pool, weights, jobs, planned));
        let ways: Vec<&str> = new.jobs.iter().map(|job| &*job.name).collect();
        println!("ready {} | {} | {}", new.d.len(), new.planned, ways.join(" | "));
    }
}

/// The plan's formulation, and the ways of a problem, or why there are none.
type Ways = std::result::Result<(Formulation, Vec<Job>), String>;

/// Numbers of a list in the environment.
fn numbers(variable: &str) -> Option<Vec<usize>> {
    let list = std::env::var(variable).ok()?;
    Some(list.split(',').map(parsed).collect())
}

/// With pauses the ways of a problem take turns; sustained each runs alone, so that its power is its own, and configurations do not.
fn measure_shape(handle: &Handle, watch: &ClockWatch, pool: &Pool, (n, k): (usize, usize)) {
    let mut weights = Weights::new(handle, pool, B, (n, k));
    for m in numbers("SCALED_GEMM_ROWS").unwrap_or_else(|| ROWS.to_vec()) {
        let (planned, jobs) = by_formulation(handle, [m, n, k]).unwrap();
        let mut problem = Problem::new(handle, pool, &mut weights, jobs, planned);
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

/// A plan of each formulation, and where it is asked for of each configuration of `sm90`.
fn by_formulation(handle: &Handle, [m, n, k]: [usize; 3]) -> Ways {
    let desc = GemmDesc::new(m, n, k, A, B, DType::Bf16);
    let said = |error: Error| error.to_string();
    let planned = handle.plan(&desc).map_err(said)?.formulation();
    let configs = numbers("SCALED_GEMM_CONFIGS").is_some_and(|most| m <= most[0]);
    let mut jobs = Vec::new();
    let mut records = Vec::new();
    for formulation in handle.supports(&desc).map_err(said)? {
        let plan = handle.plan_with(&desc, &PlanOptions::default().with_formulation(formulation)).map_err(said)?;
        if let Some(record) = plan.record().filter(|_| configs && formulation == Formulation::Sm90) {
            let Algorithm::Sm90(chosen) = *record.algorithm() else { panic!("{}", plan.explain()) };
            let json = record.to_json().unwrap();
            for config in Sm90Config::ALL {
                let json = json.replace(&format!("\"{chosen}\""), &format!("\"{config}\""));
                records.push((config, TuneRecord::from_json(&json).unwrap()));
            }
        }
        jobs.push(Job { name: formulation.to_string(), plan, chained: false });
    }
    for (config, record) in records {
        let plan = handle.plan_with(&desc, &PlanOptions::default().with_record(record)).map_err(said)?;
        jobs.push(Job { name: format!("sm90 {config}"), plan, chained: false });
    }
    Ok((planned, jobs))
}

/// What is planned of weights in each order that they have: `small-m`, `small-m repacked`, and both chained.
fn as_planned(handle: &Handle, [m, n, k]: [usize; 3], a: &str, b: &str) -> Ways {
    let a: Operand = a.parse().map_err(|error| format!("A: {error}"))?;
    let b: Scheme = b.parse().map_err(|error| format!("B: {error}"))?;
    let desc = GemmDesc::new(m, n, k, a, b, DType::Bf16);
    let mut jobs = Vec::new();
    for chained in [false, true] {
        for order in CodeOrder::ALL.into_iter().filter(|order| order.check(b, n, k).is_ok()) {
            let plan =
                handle.plan(&desc.with_b_order(order).with_chained(chained)).map_err(|error| error.to_string())?;
            let repacked = if order == CodeOrder::Repacked { " repacked" } else { "" };
            let name = format!("{}{repacked}{}", plan.formulation(), if chained { " chained" } else { "" });
            jobs.push(Job { name, plan, chained });
        }
    }
    Ok((jobs[0].plan.formulation(), jobs))
}
