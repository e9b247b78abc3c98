//! Our product for sm_90 against cuBLASLt's ways, by scales, sums and epilogue: what its rules are judged by.
//!
//! `cargo bench --bench sm90`; `SCALED_GEMM_SHAPES=MxNxK,...` takes other shapes, `SCALED_GEMM_CASES=bf16,...` those epilogues only, and
//! `SCALED_GEMM_PAIRS=row,...` those pairs only. About a minute on an H200. All ways of one problem take turns, sustained and with pauses; elements of
//! plain products are checked against the f64 bound. Sums are precise unless it says `fast`, which cuBLASLt alone has.

mod common;

use std::time::Instant;

use common::check::Check;
use common::testing::bytes_of;
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Accumulate, Accumulation, Activation, Cadence, ClockWatch, DType, Epilogue, Formulation, Fp8Format, GemmArgs,
    GemmDesc, GemmPlan, Handle, HostQuantMatrix, MatMut, MatRef, PlanOptions, QuantMatrix, Result, Scheme, Timing,
    VecRef,
};

const F: Fp8Format = Fp8Format::E4M3;
const SHAPES: [[usize; 3]; 6] = [
    [128, 4096, 7168],
    [512, 7168, 2048],
    [1024, 4096, 7168],
    [4096, 4096, 7168],
    [4096, 24576, 1536],
    [4096, 7168, 16384],
];
const PAIRS: [(&str, Scheme, Scheme); 5] = [
    ("block", Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)),
    ("vector", Scheme::Fp8Group1x128(F), Scheme::Fp8Group1x128(F)),
    ("block-a", Scheme::Fp8Group128x128(F), Scheme::Fp8Group1x128(F)),
    ("row", Scheme::Fp8Row(F), Scheme::Fp8Row(F)),
    ("tensor", Scheme::Fp8Tensor(F), Scheme::Fp8Tensor(F)),
];

/// What follows the sums.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    out: DType,
    epilogue: Epilogue,
    add: bool,
}

const fn case(
    name: &'static str,
    out: DType,
    bias: Option<DType>,
    activation: Activation,
    residual: Option<DType>,
) -> Case {
    Case { name, out, epilogue: Epilogue { bias, activation, residual }, add: false }
}

const CASES: [Case; 8] = [
    case("bf16", DType::Bf16, None, Activation::None, None),
    case("f16", DType::F16, None, Activation::None, None),
    case("f32", DType::F32, None, Activation::None, None),
    Case { add: true, ..case("f32-add", DType::F32, None, Activation::None, None) },
    case("bf16-bias", DType::Bf16, Some(DType::Bf16), Activation::None, None),
    case("bf16-bias-gelu", DType::Bf16, Some(DType::Bf16), Activation::Gelu, None),
    case("bf16-silu", DType::Bf16, None, Activation::Silu, None),
    case("bf16-residual", DType::Bf16, None, Activation::None, Some(DType::Bf16)),
];

/// Those of a list in the environment, all without it.
fn chosen<T>(variable: &str, all: impl IntoIterator<Item = T>, name: impl Fn(&T) -> &'static str) -> Vec<T> {
    let wanted = std::env::var(variable).ok();
    all.into_iter().filter(|it| wanted.as_ref().is_none_or(|w| w.split(',').any(|w| w == name(it)))).collect()
}

fn shapes_of_products() -> Vec<[usize; 3]> {
    let Ok(list) = std::env::var("SCALED_GEMM_SHAPES") else { return SHAPES.to_vec() };
    let shape = |text: &str| {
        let numbers: Vec<usize> = text.split('x').map(|n| n.parse().expect("a number")).collect();
        numbers.try_into().expect("MxNxK")
    };
    list.split(',').map(shape).collect()
}

/// Alpha of products with an activation: sums of some thousands of products of normal numbers become as large as one of them.
const SMALL: f32 = 1.0 / 64.0;

/// What a call reads beside A and B.
struct Beside {
    bias: CudaSlice<u8>,
    residual: CudaSlice<u8>,
}

struct Job {
    name: String,
    plan: GemmPlan,
}

impl Job {
    fn call(
        &mut self,
        handle: &Handle,
        (a, b): (&QuantMatrix, &QuantMatrix),
        beside: &Beside,
        d: &mut CudaSlice<u8>,
    ) -> Result<()> {
        let GemmDesc { m, n, out, accumulation, epilogue, accumulate, .. } = *self.plan.desc();
        let args = GemmArgs::new(a, b, MatMut::new(d, out, m, n)?);
        // As large as what activations are for.
        let args = if epilogue.activation == Activation::None { args } else { args.alpha(SMALL) };
        let mut args = args.accumulation(accumulation).activation(epilogue.activation);
        if accumulate == Accumulate::Add {
            args = args.accumulate(1.0);
        }
        if let Some(dtype) = epilogue.bias {
            args = args.bias(VecRef::new(&beside.bias, dtype, n)?);
        }
        if let Some(dtype) = epilogue.residual {
            args = args.residual(MatRef::new(&beside.residual, dtype, m, n)?);
        }
        self.plan.execute(handle, args)
    }
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "The product for sm_90 and those of cuBLASLt, E4M3 x E4M3");
        let pool = Pool::new(handle);
        for shape in shapes_of_products() {
            measure_shape(handle, watch, &pool, shape);
        }
    });
}

fn measure_shape(handle: &Handle, watch: &ClockWatch, pool: &Pool, [m, n, k]: [usize; 3]) {
    println!("\n## m = {m}, n = {n}, k = {k}");
    println!("| pair | epilogue | cadence | way: us ... | plan |\n|---|---|---|---|---|");
    let start = Instant::now();
    let sets = rotation(handle, m * k + n * k + 2 * m * n);
    for pair in chosen("SCALED_GEMM_PAIRS", PAIRS, |pair| pair.0) {
        let (a, b) = (pool.tokens(handle, pair.1, sets, (m, k)), pool.weights(handle, pair.2, sets, (n, k)));
        let host = b[0].to_host(handle).unwrap();
        for case in chosen("SCALED_GEMM_CASES", CASES, |case| case.name) {
            measure(handle, pair, case, (&a, &b), &host);
        }
    }
    println!("\n{:.0} s; {}", start.elapsed().as_secs_f64(), watch.since(start));
}

fn measure(
    handle: &Handle,
    (pair, scheme_a, scheme_b): (&str, Scheme, Scheme),
    case: Case,
    (a, b): (&[QuantMatrix], &[QuantMatrix]),
    host: &HostQuantMatrix,
) {
    let (m, n, k, sets) = (a[0].rows(), b[0].rows(), a[0].cols(), a.len());
    let mut d = outputs(handle, sets, m * n * case.out.bytes());
    let beside = Beside {
        bias: handle.stream().clone_htod(&bytes_of(DType::Bf16, &vec![0.5; n])).unwrap(),
        residual: random(handle, 3, if case.epilogue.residual.is_some() { m * n } else { 8 }, DType::Bf16),
    };
    let accumulate = if case.add { Accumulate::Add } else { Accumulate::Replace };
    let mut jobs = Vec::new();
    for accumulation in
        if ["block", "vector", "block-a"].contains(&pair) { &[Accumulation::Precise][..] } else { &Accumulation::ALL }
    {
        let desc = GemmDesc::new(m, n, k, scheme_a, scheme_b, case.out)
            .with_epilogue(case.epilogue)
            .with_accumulate(accumulate)
            .with_accumulation(*accumulation);
        for formulation in handle.supports(&desc).unwrap_or_default() {
            let fast = *accumulation == Accumulation::Fast;
            if fast && [Formulation::Sm90, Formulation::SmallM].contains(&formulation) {
                continue;
            }
            let mut plan = handle.plan_with(&desc, &PlanOptions::default().with_formulation(formulation)).unwrap();
            b.iter().for_each(|b| plan.prepare(handle, b).unwrap());
            let sums = if fast { " fast" } else { "" };
            jobs.push(Job { name: format!("{formulation}{sums} ({})", plan.finish()), plan });
        }
    }
    let plain = case.epilogue == Epilogue::default() && !case.add;
    let check = plain.then(|| Check::new(handle, &a[0], host, Accumulator::TensorCoreFast));
    for job in &mut jobs {
        handle.stream().memset_zeros(&mut d[0]).unwrap();
        job.call(handle, (&a[0], &b[0]), &beside, &mut d[0]).unwrap();
        if let Some(check) = &check {
            let words = format!("{pair} {m} x {n} x {k} {}, {}", case.name, job.name);
            check.assert(handle, &d[0], case.out, case.epilogue.activation, &words);
        }
    }
    let planned = handle.plan(jobs[0].plan.desc()).unwrap().formulation();
    for cadence in Cadence::ALL {
        let timing = match cadence {
            Cadence::Sustained => Timing::SUSTAINED.with_calls(12).with_launches(7),
            Cadence::Pauses => Timing::PAUSES.with_calls(2).with_launches(9),
        };
        let times = borrowing(timing).over(sets).in_turns(handle, jobs.len(), |who, call| {
            let set = call % sets;
            jobs[who].call(handle, (&a[set], &b[set]), &beside, &mut d[set])
        });
        let times = times.unwrap();
        let list: Vec<_> =
            jobs.iter().zip(&times).map(|(job, times)| format!("{} {:.2}", job.name, times.median())).collect();
        println!("| {pair} | {} | {cadence} | {} | {planned} |", case.name, list.join(", "));
    }
}
