//! What `plan` takes of 1x128 x 128x128 to BF16 beside cuBLASLt's formulations: our part of a comparison with another library, which
//! `scripts/beside-deepgemm.py` runs one (n, k) at a time in turns with this.
//!
//! `cargo bench --bench beside`; `SCALED_GEMM_SHAPES=NxK,...` takes these shapes, `SCALED_GEMM_ROWS=128,...` these m, and `SCALED_GEMM_CONFIGS=MOST` adds each configuration of
//! `sm90` up to that m, with pauses. With pauses the ways of a problem take turns; sustained each runs alone, as the other library does, so that its power is its own.
//! Elements of every product are checked against the f64 bound.

mod common;

use std::time::Instant;

use common::check::Check;
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Activation, Algorithm, Cadence, ClockWatch, DType, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle,
    MatMut, PlanOptions, QuantMatrix, Result, Scheme, Sm90Config, Timing, TuneRecord,
};

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
const ROWS: [usize; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];
/// The times of `scripts/beside-deepgemm.py`: short, as there are hundreds of them.
const PAUSES: Timing = Timing::PAUSES.with_calls(2).with_launches(7);
const SUSTAINED: Timing = Timing::SUSTAINED.with_calls(12).with_launches(9);

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

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "The plan of 1x128 x 128x128 to BF16 and cuBLASLt's formulations");
        let pool = Pool::new(handle);
        for (n, k) in shapes() {
            measure_shape(handle, watch, &pool, (n, k));
        }
    });
}

/// Numbers of a list in the environment.
fn numbers(variable: &str) -> Option<Vec<usize>> {
    let list = std::env::var(variable).ok()?;
    Some(list.split(',').map(|n| n.parse().expect("a number")).collect())
}

fn measure_shape(handle: &Handle, watch: &ClockWatch, pool: &Pool, (n, k): (usize, usize)) {
    let weights = pool.weights(handle, B, rotation(handle, n * k), (n, k));
    let host = weights[0].to_host(handle).unwrap();
    let configs = numbers("SCALED_GEMM_CONFIGS").map_or(0, |most| most[0]);
    for m in numbers("SCALED_GEMM_ROWS").unwrap_or_else(|| ROWS.to_vec()) {
        let sets = rotation(handle, m * k + n * k + 2 * m * n).min(weights.len());
        let tokens = pool.tokens(handle, A, sets, (m, k));
        let mut d = outputs(handle, sets, 2 * m * n);
        let check = Check::new(handle, &tokens[0], &host, Accumulator::TensorCorePromoted);
        let desc = GemmDesc::new(m, n, k, A, B, DType::Bf16);
        let planned = handle.plan(&desc).unwrap().formulation();
        let mut jobs = jobs(handle, &desc, m <= configs);
        let all = jobs.len();
        let ways = jobs.iter().filter(|job| !job.name.contains(' ')).count();
        for job in &mut jobs {
            weights[..sets].iter().for_each(|b| job.plan.prepare(handle, b).unwrap());
            handle.stream().memset_zeros(&mut d[0]).unwrap();
            job.call(handle, &tokens[0], &weights[0], &mut d[0]).unwrap();
            check.assert(handle, &d[0], DType::Bf16, Activation::None, &format!("{m} x {n} x {k}, {}", job.name));
        }
        for cadence in Cadence::ALL {
            let start = Instant::now();
            let times: Vec<f64> = match cadence {
                Cadence::Pauses => {
                    let call = |who: usize, call: usize| {
                        let set = call % sets;
                        jobs[who].call(handle, &tokens[set], &weights[set], &mut d[set])
                    };
                    let times = borrowing(PAUSES).over(sets).in_turns(handle, all, call);
                    times.unwrap().iter().map(|times| times.median()).collect()
                }
                Cadence::Sustained => jobs[..ways]
                    .iter_mut()
                    .map(|job| {
                        let call = |call: usize| {
                            let set = call % sets;
                            job.call(handle, &tokens[set], &weights[set], &mut d[set])
                        };
                        borrowing(SUSTAINED).over(sets).time(handle, call).unwrap().median()
                    })
                    .collect(),
            };
            let list: Vec<String> = jobs.iter().zip(&times).map(|(job, us)| format!("{} {us:.2}", job.name)).collect();
            println!("| {m} | {n} | {k} | {cadence} | {} | plan {planned} | {} |", list.join(", "), watch.since(start));
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
