//! GEMMs at the shapes of published models: every formulation the device offers, the one the plan takes, BF16.
//!
//! `cargo bench --bench gemm`; `SCALED_GEMM_SHAPES=quick` takes three shapes only. Ends with what misses the targets:
//! the chosen formulation within 3 % of the best, never slower than BF16 where n k >= 8 M and m is a multiple of 4,
//! quantizing and multiplying at least 1.4 times as fast as BF16 for m >= 4096.

mod common;

use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    Accumulation, Bf16Gemm, DType, Formulation, Fp8Format, GemmArgs, GemmDesc, Handle, MatMut, MatRef, PlanOptions,
    QuantMatrix, QuantizeTo, Recipe, Scheme, time_calls,
};

const F: Fp8Format = Fp8Format::E4M3;

const ROWS: [usize; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Pairs with their accumulation and short name.
const PAIRS: [(&str, Scheme, Scheme, Accumulation); 3] = [
    ("1x128 x 128x128", Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F), Accumulation::Precise),
    ("row x row", Scheme::Fp8Row(F), Scheme::Fp8Row(F), Accumulation::Fast),
    ("tensor x tensor", Scheme::Fp8Tensor(F), Scheme::Fp8Tensor(F), Accumulation::Fast),
];

/// Random BF16 that matrices are cut from, at different places.
struct Pool {
    data: CudaSlice<u8>,
    elements: usize,
}

impl Pool {
    fn new(handle: &Handle) -> Self {
        let elements = 1 << 30;
        Self { data: random(handle, 1, elements, DType::Bf16), elements }
    }

    fn matrix(&self, index: usize, rows: usize, cols: usize) -> MatRef<'_> {
        let start = (index * 7_340_033 * 8) % (self.elements - rows * cols);
        MatRef::new(self.data.slice(2 * start..), DType::Bf16, rows, cols).unwrap()
    }
}

#[derive(Default)]
struct Misses {
    formulation: Vec<String>,
    bf16: Vec<String>,
    quantized: Vec<String>,
}

fn main() {
    main_with_gpu(|handle| {
        head(handle, "GEMMs, E4M3 x E4M3 to BF16, FP32 scales, against BF16 (first algorithm of cuBLASLt)");
        println!("row and tensor: fast accumulation; times in microseconds; x: speed against BF16");
        let quick = std::env::var("SCALED_GEMM_SHAPES").is_ok_and(|v| v == "quick");
        let shapes: &[_] = if quick { &QUICK } else { &SHAPES };
        let pool = Pool::new(handle);
        let mut misses = Misses::default();
        for (n, k) in shapes {
            shape(handle, &pool, *n, *k, &mut misses);
        }
        for (what, list) in [
            ("chosen formulation more than 3 % behind the best", misses.formulation),
            ("slower than BF16 (n k >= 8 M, m a multiple of 4)", misses.bf16),
            ("quantize and multiply below 1.4 x BF16 (m >= 4096)", misses.quantized),
        ] {
            println!("\n{what}: {}", list.len());
            list.iter().for_each(|line| println!("  {line}"));
        }
    });
}

fn shape(handle: &Handle, pool: &Pool, n: usize, k: usize, misses: &mut Misses) {
    println!("\n## n = {n}, k = {k}");
    println!("| m | BF16 | pair | formulation: us ... | chosen | x |\n|---|---|---|---|---|---|");
    let sets = rotation(handle, n * k);
    let weights: Vec<Vec<QuantMatrix>> = PAIRS
        .iter()
        .map(|(_, _, b, _)| {
            let quantize = |i| handle.quantize(&pool.matrix(i, n, k), Recipe::new(*b)).unwrap();
            (0..sets).map(quantize).collect()
        })
        .collect();
    for m in ROWS {
        let estimate = 3.0 + (n * k) as f64 / 3.5e6 + (m * n * k) as f64 / 5e8;
        let calls = ((2000.0 / estimate) as usize).clamp(sets.min(8), 64).next_multiple_of(sets.min(8));
        let mut d: Vec<_> = (0..2).map(|_| handle.stream().alloc_zeros::<u8>(m * n * 2).unwrap()).collect();
        let mut plan = Bf16Gemm::new(handle, m, n, k, 1).unwrap();
        let bf16 = time_calls(handle, calls, 5, |i| {
            let mut out = MatMut::new(&mut d[i % 2], DType::Bf16, m, n)?;
            plan.execute(handle, &pool.matrix(100 + i % sets, m, k), &pool.matrix(i % sets, n, k), &mut out)
        })
        .unwrap();
        for ((name, a, b, accumulation), weights) in PAIRS.iter().zip(&weights) {
            let tokens: Vec<_> =
                (0..2).map(|i| handle.quantize(&pool.matrix(100 + i, m, k), Recipe::new(*a)).unwrap()).collect();
            let desc = GemmDesc::new(m, n, k, *a, *b, DType::Bf16).with_accumulation(*accumulation);
            let chosen = handle.plan(&desc).unwrap().formulation();
            let mut times: Vec<(Formulation, f64)> = Vec::new();
            for formulation in handle.supports(&desc).unwrap() {
                let mut plan = handle.plan_with(&desc, &PlanOptions::default().with_formulation(formulation)).unwrap();
                weights.iter().for_each(|b| plan.prepare(handle, b).unwrap());
                let time = time_calls(handle, calls, 5, |i| {
                    let out = MatMut::new(&mut d[i % 2], DType::Bf16, m, n)?;
                    let args = GemmArgs::new(&tokens[i % 2], &weights[i % sets], out).accumulation(*accumulation);
                    plan.execute(handle, args)
                });
                times.push((formulation, time.unwrap()));
            }
            let best = times.iter().map(|t| t.1).fold(f64::INFINITY, f64::min);
            let taken = times.iter().find(|t| t.0 == chosen).map_or(f64::INFINITY, |t| t.1);
            let list: Vec<String> = times.iter().map(|(f, t)| format!("{f:?} {t:.1}")).collect();
            println!("| {m} | {bf16:.1} | {name} | {} | {chosen:?} | {:.2} |", list.join(", "), bf16 / taken);
            let place = format!("{m} x {n} x {k} {name}: {} (BF16 {bf16:.1}, chosen {chosen:?})", list.join(", "));
            if taken > 1.03 * best {
                misses.formulation.push(place.clone());
            }
            if taken > bf16 && n * k >= 8 << 20 && m % 4 == 0 {
                misses.bf16.push(place.clone());
            }
            if m >= 4096 && matches!(a, Scheme::Fp8Group1x128(_)) {
                let both = quantize_and_multiply(handle, pool, &desc, weights, &mut d, calls);
                println!("| {m} | {bf16:.1} | quantize + {name} | {both:.1} | {chosen:?} | {:.2} |", bf16 / both);
                if both * 1.4 > bf16 {
                    misses
                        .quantized
                        .push(format!("{m} x {n} x {k}: {both:.1} us, BF16 {bf16:.1}: {:.2} x", bf16 / both));
                }
            }
        }
    }
}

/// One call: BF16 activations to 1x128, then the product.
fn quantize_and_multiply(
    handle: &Handle,
    pool: &Pool,
    desc: &GemmDesc,
    weights: &[QuantMatrix],
    d: &mut [CudaSlice<u8>],
    calls: usize,
) -> f64 {
    let GemmDesc { m, n, k, .. } = *desc;
    let mut plan = handle.plan(desc).unwrap();
    weights.iter().for_each(|b| plan.prepare(handle, b).unwrap());
    let scheme = desc.a.scheme().expect("A is quantized here");
    let mut codes = QuantMatrix::zeros(handle, scheme, m, k).unwrap();
    let time = time_calls(handle, calls, 5, |i| {
        handle.quantize_into(&pool.matrix(100 + i % 4, m, k), Recipe::new(scheme), QuantizeTo::Plain(&mut codes))?;
        let out = MatMut::new(&mut d[i % 2], DType::Bf16, m, n)?;
        plan.execute(handle, GemmArgs::new(&codes, &weights[i % weights.len()], out))
    });
    time.unwrap()
}
