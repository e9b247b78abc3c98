//! FP8 products at the shapes of published models, as the plan takes them, against BF16 (the fastest of cuBLASLt's
//! algorithms): in turns, over the same sets of A, B and D, sustained, and from m = 1024 on with pauses too.
//!
//! `cargo bench --bench gemm`; `SCALED_GEMM_SHAPES=quick` takes three shapes only. About four minutes on an H200. Elements of
//! every product are checked against the f64 bound. Ends with what misses the targets: never slower than BF16 where
//! n k >= 8 M and m is a multiple of 4, quantizing and multiplying at least 1.4 times as fast as BF16 for m >= 4096.

mod common;

use common::check::{Check, assert_bf16};
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Accumulation, Activation, Cadence, ClockWatch, DType, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle,
    HostQuantMatrix, MatMut, QuantMatrix, QuantizeTo, Recipe, Result, Scheme, Times,
};

const F: Fp8Format = Fp8Format::E4M3;
const ROWS: [usize; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Pairs with their accumulation and short name.
const PAIRS: [(&str, Scheme, Scheme, Accumulation); 3] = [
    ("1x128 x 128x128", Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F), Accumulation::Precise),
    ("row x row", Scheme::Fp8Row(F), Scheme::Fp8Row(F), Accumulation::Fast),
    ("tensor x tensor", Scheme::Fp8Tensor(F), Scheme::Fp8Tensor(F), Accumulation::Fast),
];

/// The weights of one pair, in every set, and the first on the host.
struct Weights {
    sets: Vec<QuantMatrix>,
    host: HostQuantMatrix,
}

/// One product that competes with BF16.
struct Job<'a> {
    name: String,
    accumulation: Accumulation,
    plan: GemmPlan,
    weights: &'a Weights,
    tokens: Vec<QuantMatrix>,
    /// A is quantized in the same call.
    quantizes: bool,
    check: Check,
}

impl Job<'_> {
    fn call(&mut self, handle: &Handle, pool: &Pool, set: usize, d: &mut [CudaSlice<u8>]) -> Result<()> {
        let GemmDesc { m, n, k, .. } = *self.plan.desc();
        if self.quantizes {
            let to = &mut self.tokens[set];
            let recipe = Recipe::new(to.scheme());
            handle.quantize_into(&pool.a(set, m, k), recipe, QuantizeTo::Plain(to))?;
        }
        let d = MatMut::new(&mut d[set], DType::Bf16, m, n)?;
        let args = GemmArgs::new(&self.tokens[set], &self.weights.sets[set], d).accumulation(self.accumulation);
        self.plan.execute(handle, args)
    }
}

#[derive(Default)]
struct Misses {
    bf16: Vec<String>,
    quantized: Vec<String>,
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(
            handle,
            "GEMMs, E4M3 x E4M3 to BF16, FP32 scales, against BF16 (fastest of up to 8 algorithms of cuBLASLt)",
        );
        println!("row and tensor: fast accumulation; x: speed against BF16 in the same cadence");
        let pool = Pool::new(handle);
        let mut misses = Misses::default();
        for shape in shapes() {
            measure_shape(handle, watch, &pool, shape, &mut misses);
        }
        for (what, list) in [
            ("slower than BF16 (n k >= 8 M, m a multiple of 4)", misses.bf16),
            ("quantize and multiply below 1.4 x BF16 (m >= 4096)", misses.quantized),
        ] {
            println!("\n{what}: {}", list.len());
            list.iter().for_each(|line| println!("  {line}"));
        }
    });
}

fn measure_shape(handle: &Handle, watch: &ClockWatch, pool: &Pool, (n, k): (usize, usize), misses: &mut Misses) {
    println!("\n## n = {n}, k = {k}");
    println!("| m | cadence | product | us | x | how | clock |\n|---|---|---|---|---|---|---|");
    let most_sets = rotation(handle, n * k);
    let weights = PAIRS.map(|(_, _, b, _)| {
        let sets = pool.weights(handle, b, most_sets, (n, k));
        Weights { host: sets[0].to_host(handle).unwrap(), sets }
    });
    for m in ROWS.into_iter().filter(|m| m * n * k <= LARGEST) {
        measure(handle, watch, pool, &weights, [m, n, k], misses);
    }
}

fn jobs<'a>(
    handle: &Handle,
    pool: &Pool,
    weights: &'a [Weights; 3],
    [m, n, k]: [usize; 3],
    sets: usize,
) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    for ((name, a, b, accumulation), weights) in PAIRS.into_iter().zip(weights) {
        let both = m >= LARGE_ROWS && matches!(a, Scheme::Fp8Group1x128(_));
        for quantizes in [false, true].into_iter().filter(|quantizes| both || !quantizes) {
            let desc = GemmDesc::new(m, n, k, a, b, DType::Bf16).with_accumulation(accumulation);
            let mut plan = match handle.plan(&desc) {
                Ok(plan) => plan,
                Err(error) => {
                    println!("| {m} | | {name} | not offered: {error} | | | |");
                    continue;
                }
            };
            let tokens = pool.tokens(handle, a, sets, (m, k));
            weights.sets[..sets].iter().for_each(|b| plan.prepare(handle, b).unwrap());
            let accumulator = match accumulation {
                Accumulation::Precise => Accumulator::TensorCorePromoted,
                Accumulation::Fast => Accumulator::TensorCoreFast,
            };
            let check = Check::new(handle, &tokens[0], &weights.host, accumulator);
            let name = format!("{}{name}", if quantizes { "quantize + " } else { "" });
            jobs.push(Job { name, accumulation, plan, weights, tokens, quantizes, check });
        }
    }
    jobs
}

fn measure(
    handle: &Handle,
    watch: &ClockWatch,
    pool: &Pool,
    weights: &[Weights; 3],
    shape: [usize; 3],
    misses: &mut Misses,
) {
    let [m, n, k] = shape;
    // Codes of both operands, and D: the least that any competitor touches.
    let sets = rotation(handle, m * k + n * k + 2 * m * n).min(weights[0].sets.len());
    let mut d = outputs(handle, sets, 2 * m * n);
    let mut jobs = jobs(handle, pool, weights, shape, sets);
    let mut baseline = Baseline::new(handle, pool, shape);
    baseline.execute(0, &mut d).unwrap();
    assert_bf16(handle, pool, shape, &d[0]);
    for job in &mut jobs {
        handle.stream().memset_zeros(&mut d[0]).unwrap();
        job.call(handle, pool, 0, &mut d).unwrap();
        job.check.assert(handle, &d[0], DType::Bf16, Activation::None, &format!("{} {m} x {n} x {k}", job.name));
    }
    let others = jobs.len();
    let measured =
        against_bf16(handle, watch, &mut baseline, &mut d, others, |who, set, d| jobs[who].call(handle, pool, set, d));
    for AgainstBf16 { cadence, times, how, clocks } in measured {
        println!("| {m} | {cadence} | BF16 | {} | 1.00 | {how} | {clocks} |", times[0]);
        for (job, of_job) in jobs.iter().zip(&times[1..]) {
            line(cadence, job, of_job, times[0].median(), misses);
        }
    }
}

fn line(cadence: Cadence, job: &Job<'_>, times: &Times, bf16: f64, misses: &mut Misses) {
    let GemmDesc { m, n, k, .. } = *job.plan.desc();
    let (name, us) = (&job.name, times.median());
    let how = format!("{}, {}", job.plan.formulation(), job.plan.finish());
    println!("| {m} | {cadence} | {name} | {times} | {:.2} | {how} | |", bf16 / us);
    let place = format!("{m} x {n} x {k} {name}, {cadence}: {us:.1} us, BF16 {bf16:.1}: {:.2} x", bf16 / us);
    if us > bf16 && n * k >= 8 << 20 && m % 4 == 0 && !job.quantizes {
        misses.bf16.push(place.clone());
    }
    if job.quantizes && m >= 4096 && us * 1.4 > bf16 {
        misses.quantized.push(place);
    }
}
