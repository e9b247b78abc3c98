//! NVFP4, MXFP8 and weight-only products against BF16 at the shapes of published models, with weights kept dequantized
//! and not.
//!
//! `cargo bench --bench gemm_blocks`; `SCALED_GEMM_SHAPES=quick` takes three shapes only. Each product is the plan's first
//! choice; BF16 is the fastest of up to eight algorithms. Ends with what misses the target: 0.9 of BF16's speed at
//! m >= 2048 with weights kept. Elements of every timed product are checked against the f64 bound.

mod common;

use std::time::Instant;

use common::*;
use half::bf16;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::{Accumulator, Bound, Gelu, GemmInputs, HostOperand, SumBound};
use scaled_gemm::{
    Bf16Gemm, DType, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle, HostQuantMatrix, KeptWeights, MatMut, MatRef,
    Operand, QuantMatrix, QuantizeTo, Recipe, Scheme, time_calls,
};

const NV: Scheme = Scheme::Nvfp4;
const NV_ROW: Scheme = Scheme::Nvfp4Row;
const MX: Scheme = Scheme::Mxfp8(Fp8Format::E4M3);
/// A and B.
const PAIRS: [(Operand, Scheme); 4] = [
    (Operand::Quantized(NV), NV),
    (Operand::Quantized(NV_ROW), NV),
    (Operand::Quantized(MX), MX),
    (Operand::Plain(DType::Bf16), NV),
];
/// Schemes of A, and of B.
const TOKENS: [Scheme; 3] = [NV, NV_ROW, MX];
const WEIGHTS: [Scheme; 2] = [NV, MX];

const ROWS: [usize; 6] = [1, 16, 128, 2048, 4096, 8192];
/// Rows at which weights that are not kept are measured, too.
const ROWS_NOT_KEPT: [usize; 3] = [1, 16, 4096];
/// The largest product that is measured, m n k: a few milliseconds.
const LARGEST: usize = 8192 << 28;
/// The target, and from which m on it holds.
const TARGET: f64 = 0.9;
const TARGET_ROWS: usize = 2048;
/// Everything is timed in turns, so that a clock that drifts meets all of it.
const ROUNDS: usize = 3;
const REPLAYS: usize = 3;

/// Random BF16 that matrices are cut from, at different places.
struct Pool {
    data: CudaSlice<u8>,
    elements: usize,
}

/// Where the pool's A matrices begin; B's begin at 0.
const A_PLACE: usize = 100;

impl Pool {
    fn new(handle: &Handle) -> Self {
        let elements = 1 << 30;
        Self { data: random(handle, 1, elements, DType::Bf16), elements }
    }

    fn start(&self, index: usize, rows: usize, cols: usize) -> usize {
        (index * 7_340_033 * 8) % (self.elements - rows * cols)
    }

    fn matrix(&self, index: usize, rows: usize, cols: usize) -> MatRef<'_> {
        let start = self.start(index, rows, cols);
        MatRef::new(self.data.slice(2 * start..), DType::Bf16, rows, cols).unwrap()
    }

    /// The values of some rows of a matrix.
    fn rows(&self, handle: &Handle, index: usize, (rows, cols): (usize, usize), wanted: &[usize]) -> Array2<f32> {
        let start = self.start(index, rows, cols);
        let row = |i: &usize| bf16_values(handle, &self.data, start + i * cols, cols);
        Array2::from_shape_vec((wanted.len(), cols), wanted.iter().flat_map(row).collect()).unwrap()
    }
}

fn bf16_values(handle: &Handle, data: &CudaSlice<u8>, start: usize, count: usize) -> Vec<f32> {
    let bytes = handle.stream().clone_dtoh(&data.slice(2 * start..2 * (start + count))).unwrap();
    handle.synchronize().unwrap();
    bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
}

/// B in one scheme, as often as the rotation wants: with its values kept, and as codes only.
struct Weights {
    kept: Vec<QuantMatrix>,
    codes: Vec<QuantMatrix>,
    /// The sampled rows of the first one.
    sample: HostQuantMatrix,
}

impl Weights {
    fn new(handle: &Handle, pool: &Pool, scheme: Scheme, (n, k): (usize, usize)) -> Self {
        let sets = rotation(handle, n * k / 2);
        let quantize = |i| handle.quantize(&pool.matrix(i, n, k), Recipe::new(scheme)).unwrap();
        let (kept, codes): (Vec<_>, Vec<_>) = ((0..sets).map(quantize).collect(), (0..sets).map(quantize).collect());
        kept.iter().for_each(|b: &QuantMatrix| b.keep_dequantized(handle, DType::Bf16).unwrap());
        let sample = sample(&codes[0].to_host(handle).unwrap(), &spots(SAMPLED_COLS, n));
        Self { kept, codes, sample }
    }
}

/// Rows and columns of D that are checked.
const SAMPLED_ROWS: usize = 4;
const SAMPLED_COLS: usize = 16;

/// Up to `count` places from the first to the last of `len`.
fn spots(count: usize, len: usize) -> Vec<usize> {
    (0..count.min(len)).map(|t| t * (len - 1) / (count - 1)).collect()
}

/// Some rows of a matrix as a matrix of their own.
fn sample(q: &HostQuantMatrix, rows: &[usize]) -> HostQuantMatrix {
    let (scheme, cols) = (q.scheme(), q.cols());
    let codes = rows.iter().flat_map(|i| q.row_codes(*i).to_vec()).collect();
    let scales: Vec<f32> = match scheme {
        Scheme::Nvfp4 => vec![q.scale_at(0, 0)],
        Scheme::Nvfp4Row => rows.iter().map(|i| q.scale_at(*i, 0)).collect(),
        _ => Vec::new(),
    };
    let [_, blocks] = scheme.block_grid(q.rows(), cols);
    let block_scales: Vec<u8> = rows.iter().flat_map(|i| (0..blocks).map(|b| q.block_scale_at(*i, b))).collect();
    HostQuantMatrix::from_block_logical(scheme, rows.len(), cols, codes, &scales, &block_scales).unwrap()
}

fn bound(a: HostOperand<'_>, b: &HostQuantMatrix) -> Bound {
    let sums = SumBound::new(a, b, Accumulator::TensorCoreWide);
    sums.with(&GemmInputs::new(a, b, DType::Bf16), Gelu::Ieee).unwrap()
}

/// The sampled elements of D.
fn sampled(handle: &Handle, d: &CudaSlice<u8>, m: usize, n: usize) -> Array2<f32> {
    let (rows, cols) = (spots(SAMPLED_ROWS, m), spots(SAMPLED_COLS, n));
    let read: Vec<_> = rows.iter().map(|i| bf16_values(handle, d, i * n, n)).collect();
    Array2::from_shape_fn((rows.len(), cols.len()), |(i, j)| read[i][cols[j]])
}

/// How one product is called.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Kept,
    NotKept,
    /// B is kept, and A is quantized from BF16 in the same call.
    QuantizeToo,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::NotKept => "codes",
            Self::QuantizeToo => "kept, quantizing A",
        }
    }
}

/// One product that is timed.
struct Job<'a> {
    pair: usize,
    variant: Variant,
    plan: GemmPlan,
    /// A, as often as the rotation wants; none where it is plain.
    tokens: Option<&'a [QuantMatrix]>,
    weights: &'a [QuantMatrix],
    /// What A is quantized to.
    target: Option<QuantMatrix>,
    times: Vec<f64>,
}

/// What one (m, n, k) is timed with.
struct Bench<'a> {
    handle: &'a Handle,
    pool: &'a Pool,
    shape: [usize; 3],
    sets: usize,
    calls: usize,
    d: Vec<CudaSlice<u8>>,
}

impl<'a> Bench<'a> {
    fn new(handle: &'a Handle, pool: &'a Pool, shape: [usize; 3]) -> Self {
        let [m, n, k] = shape;
        // At least codes of both operands, and D.
        let sets = rotation(handle, n * k / 2 + m * k / 2 + 2 * m * n);
        let estimate = 3.0 + (2 * (n * k + m * k + m * n)) as f64 / 4e6 + (2 * m * n * k) as f64 / 7e8;
        let calls = ((1500.0 / estimate) as usize).clamp(sets, 64).next_multiple_of(sets);
        let d = (0..sets).map(|_| handle.stream().alloc_zeros::<u8>(m * n * 2).unwrap()).collect();
        Self { handle, pool, shape, sets, calls, d }
    }

    fn bf16(&mut self, plan: &mut Bf16Gemm, replays: usize) -> f64 {
        let [m, n, k] = self.shape;
        let time = time_calls(self.handle, self.calls, replays, |i| {
            let i = i % self.sets;
            let mut out = MatMut::new(&mut self.d[i], DType::Bf16, m, n)?;
            plan.execute(self.handle, &self.pool.matrix(A_PLACE + i, m, k), &self.pool.matrix(i, n, k), &mut out)
        });
        time.unwrap()
    }

    fn job(&mut self, job: &mut Job<'_>) {
        let [m, n, k] = self.shape;
        let time = time_calls(self.handle, self.calls, REPLAYS, |i| {
            let i = i % self.sets;
            let out = MatMut::new(&mut self.d[i], DType::Bf16, m, n)?;
            let args = match (&mut job.target, job.tokens) {
                (Some(codes), _) => {
                    let recipe = Recipe::new(codes.scheme());
                    let x = self.pool.matrix(A_PLACE + i, m, k);
                    self.handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut *codes))?;
                    GemmArgs::new(codes, &job.weights[i], out)
                }
                (None, Some(tokens)) => GemmArgs::new(&tokens[i], &job.weights[i], out),
                (None, None) => GemmArgs::weight_only(self.pool.matrix(A_PLACE + i, m, k), &job.weights[i], out),
            };
            job.plan.execute(self.handle, args)
        });
        job.times.push(time.unwrap());
    }

    /// Forgets what lies in the D that is checked.
    fn clear(&mut self) {
        self.handle.stream().memset_zeros(&mut self.d[0]).unwrap();
    }

    fn check(&self, bound: &Bound, words: &str) {
        let [m, n, _] = self.shape;
        if let Err(error) = bound.check(sampled(self.handle, &self.d[0], m, n).view()) {
            panic!("{words} at m, n, k = {:?}: {error}", self.shape);
        }
    }

    /// The BF16 product within half a unit of its type, and 2^-14 of the sum of magnitudes for its FP32 sums.
    fn check_bf16(&self) {
        let [m, n, k] = self.shape;
        let a = self.pool.rows(self.handle, A_PLACE, (m, k), &spots(SAMPLED_ROWS, m));
        let b = self.pool.rows(self.handle, 0, (n, k), &spots(SAMPLED_COLS, n));
        for ((i, j), got) in sampled(self.handle, &self.d[0], m, n).indexed_iter() {
            let products = a.row(i).into_iter().zip(b.row(j)).map(|(x, y)| f64::from(*x) * f64::from(*y));
            let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            let error = (f64::from(*got) - sum).abs();
            assert!(error <= sum.abs() / 256.0 + size / 16384.0, "BF16, {:?}: {got} for {sum}", self.shape);
        }
    }

    /// Microseconds of A's dequantization alone, as a call with this A begins.
    fn dequantize(&self, tokens: &[QuantMatrix]) -> f64 {
        let [m, _, k] = self.shape;
        let mut values = self.handle.stream().alloc_zeros::<u8>(m * k * 2).unwrap();
        let time = time_calls(self.handle, self.calls, REPLAYS, |i| {
            self.handle.dequantize_into(&tokens[i % self.sets], &mut MatMut::new(&mut values, DType::Bf16, m, k)?)
        });
        time.unwrap()
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn pair_name(pair: usize) -> String {
    format!("{} x {}", PAIRS[pair].0, PAIRS[pair].1)
}

/// A ratio that counts for the summary.
struct Line {
    pair: usize,
    variant: Variant,
    shape: [usize; 3],
    ratio: f64,
    words: String,
}

fn main() {
    main_with_gpu(|handle| {
        head(handle, "NVFP4, MXFP8 and weight-only products to BF16, against BF16 (fastest of up to 8 algorithms)");
        println!(
            "x: BF16 time by this time; B kept: dequantized once to BF16; A alone: its dequantization to BF16 by itself"
        );
        let quick = std::env::var("SCALED_GEMM_SHAPES").is_ok_and(|v| v == "quick");
        let shapes: &[_] = if quick { &QUICK } else { &SHAPES };
        let start = Instant::now();
        let pool = Pool::new(handle);
        let mut lines = Vec::new();
        for shape in shapes {
            let weights = WEIGHTS.map(|scheme| Weights::new(handle, &pool, scheme, *shape));
            println!("\n## n = {}, k = {}", shape.0, shape.1);
            println!("| m | product | B | us | x | how | A alone us | {TARGET} |\n|---|---|---|---|---|---|---|---|");
            for m in ROWS.into_iter().filter(|m| m * shape.0 * shape.1 <= LARGEST) {
                measure(handle, &pool, &weights, [m, shape.0, shape.1], &mut lines);
            }
        }
        summary(&lines);
        println!("\n{:.0} s in all", start.elapsed().as_secs_f64());
    });
}

fn measure(handle: &Handle, pool: &Pool, weights: &[Weights; 2], shape: [usize; 3], lines: &mut Vec<Line>) {
    let [m, n, k] = shape;
    let mut bench = Bench::new(handle, pool, shape);
    let quantize = |scheme, i| handle.quantize(&pool.matrix(A_PLACE + i, m, k), Recipe::new(scheme)).unwrap();
    let tokens: [Vec<QuantMatrix>; 3] = TOKENS.map(|s| (0..bench.sets).map(|i| quantize(s, i)).collect());
    let tokens_of = |a: Operand| a.scheme().and_then(|a| TOKENS.iter().position(|s| *s == a)).map(|i| &tokens[i][..]);
    let weights_of = |b: Scheme| if b == MX { &weights[1] } else { &weights[0] };
    let rows = spots(SAMPLED_ROWS, m);
    let plain = pool.rows(handle, A_PLACE, (m, k), &rows);
    let bounds = PAIRS.map(|(a, b)| match tokens_of(a) {
        Some(tokens) => {
            let tokens = sample(&tokens[0].to_host(handle).unwrap(), &rows);
            bound(HostOperand::Quantized(&tokens), &weights_of(b).sample)
        }
        None => bound(HostOperand::Plain(plain.view(), DType::Bf16), &weights_of(b).sample),
    });

    let mut jobs = Vec::new();
    for (pair, (a, b)) in PAIRS.into_iter().enumerate() {
        for variant in [Variant::Kept, Variant::NotKept, Variant::QuantizeToo] {
            let wanted = match variant {
                Variant::Kept => true,
                Variant::NotKept => ROWS_NOT_KEPT.contains(&m),
                Variant::QuantizeToo => m >= TARGET_ROWS && a.scheme().is_some(),
            };
            if !wanted {
                continue;
            }
            let (weights, kept) = match variant {
                Variant::NotKept => (&weights_of(b).codes, KeptWeights::Nothing),
                Variant::Kept | Variant::QuantizeToo => (&weights_of(b).kept, KeptWeights::Dequantized(DType::Bf16)),
            };
            let mut plan = handle.plan(&GemmDesc::new(m, n, k, a, b, DType::Bf16).with_kept(kept)).unwrap();
            plan.prepare(handle, &weights[0]).unwrap();
            let target = a.scheme().filter(|_| variant == Variant::QuantizeToo);
            let target = target.map(|scheme| QuantMatrix::zeros(handle, scheme, m, k).unwrap());
            jobs.push(Job { pair, variant, plan, tokens: tokens_of(a), weights, target, times: Vec::new() });
        }
    }

    let mut plan = Bf16Gemm::new(handle, m, n, k, 8).unwrap();
    let searched: Vec<f64> = (0..plan.candidates())
        .map(|index| {
            plan.choose(index);
            bench.bf16(&mut plan, 1)
        })
        .collect();
    let best = (0..searched.len()).min_by(|i, j| searched[*i].total_cmp(&searched[*j])).unwrap();
    plan.choose(best);
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        bench.clear();
        times.push(bench.bf16(&mut plan, REPLAYS));
        if round == 0 {
            bench.check_bf16();
        }
        for job in &mut jobs {
            bench.clear();
            bench.job(job);
            if round == 0 {
                bench.check(&bounds[job.pair], &format!("{}, {}", pair_name(job.pair), job.variant.name()));
            }
        }
    }
    let bf16 = median(&mut times);
    let (first, offered) = (searched[0], searched.len());
    println!("| {m} | BF16 | | {bf16:.1} | 1.00 | number {} of {offered} (the first: {first:.1}) | | |", best + 1);
    for job in &mut jobs {
        let (pair, variant) = (job.pair, job.variant);
        let time = median(&mut job.times);
        let ratio = bf16 / time;
        let how = format!("{}, {}", job.plan.formulation(), job.plan.finish());
        let alone = match (job.tokens, variant) {
            (Some(tokens), Variant::Kept) => format!("{:.1}", bench.dequantize(tokens)),
            _ => String::new(),
        };
        let counts = m >= TARGET_ROWS && variant == Variant::Kept;
        let verdict = match counts {
            true if ratio >= TARGET => "met",
            true => "missed",
            false => "",
        };
        let (name, kept) = (pair_name(pair), variant.name());
        println!("| {m} | {name} | {kept} | {time:.1} | {ratio:.2} | {how} | {alone} | {verdict} |");
        if m >= TARGET_ROWS {
            let words = format!("{time:.1} us, BF16 {bf16:.1}; {how}; A alone {alone}");
            lines.push(Line { pair, variant, shape, ratio, words });
        }
    }
}

fn summary(lines: &[Line]) {
    for variant in [Variant::Kept, Variant::QuantizeToo, Variant::NotKept] {
        println!("\n## m >= {TARGET_ROWS}, B {}", variant.name());
        for pair in 0..PAIRS.len() {
            let of_pair: Vec<_> = lines.iter().filter(|l| (l.pair, l.variant) == (pair, variant)).collect();
            let reached = of_pair.iter().filter(|l| l.ratio >= TARGET).count();
            let smallest = of_pair.iter().min_by(|l, r| l.ratio.total_cmp(&r.ratio));
            if let Some(Line { shape: [m, n, k], ratio, .. }) = smallest {
                let (name, count) = (pair_name(pair), of_pair.len());
                println!("{name}: {reached} of {count} reach {TARGET}; smallest {ratio:.3} at {m}, {n}, {k}");
            }
        }
    }
    let kept: Vec<_> = lines.iter().filter(|l| l.variant == Variant::Kept).collect();
    let missed: Vec<_> = kept.iter().filter(|l| l.ratio < TARGET).collect();
    println!("\nB kept: {} of {} reach {TARGET}; {} miss:", kept.len() - missed.len(), kept.len(), missed.len());
    for Line { pair, shape: [m, n, k], ratio, words, .. } in missed {
        println!("  {} {m}, {n}, {k}: {ratio:.3} ({words})", pair_name(*pair));
    }
}
