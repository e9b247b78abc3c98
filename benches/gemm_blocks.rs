//! NVFP4, MXFP8 and weight-only products against BF16 (the fastest of cuBLASLt's algorithms) at the shapes of published
//! models, with weights kept dequantized and not: in turns, over the same sets of A, B and D, sustained, and from m = 2048 on
//! with pauses too.
//!
//! `cargo bench --bench gemm_blocks`; `SCALED_GEMM_SHAPES=quick` takes three shapes only, `SCALED_GEMM_ROWS=few` at most 64 rows. Each product is the plan's
//! first choice; where that reads the codes of few rows itself (`small-m`), the products of dequantized weights stand beside it. Ends with what misses
//! the target: 0.9 of BF16's speed at m >= 2048 with weights kept. Elements of every product are checked against the f64 bound.

mod common;

use common::check::{Check, assert_bf16};
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Activation, ClockWatch, DType, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle, HostQuantMatrix,
    KeptWeights, MatMut, Operand, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Result, Scheme,
};

const NV: Scheme = Scheme::Nvfp4;
const NV_ROW: Scheme = Scheme::Nvfp4Row;
const MX: Scheme = Scheme::Mxfp8(Fp8Format::E4M3);
const MX4: Scheme = Scheme::Mxfp4;
const TILES: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
/// A and B.
const PAIRS: [(Operand, Scheme); 7] = [
    (Operand::Quantized(NV), NV),
    (Operand::Quantized(NV_ROW), NV),
    (Operand::Quantized(MX), MX),
    (Operand::Plain(DType::Bf16), NV),
    (Operand::Plain(DType::Bf16), MX4),
    (Operand::Plain(DType::Bf16), MX),
    (Operand::Plain(DType::Bf16), TILES),
];
/// Schemes of A, and of B.
const TOKENS: [Scheme; 3] = [NV, NV_ROW, MX];
const WEIGHTS: [Scheme; 4] = [NV, MX, MX4, TILES];

const ROWS: [usize; 12] = [1, 2, 4, 8, 16, 32, 48, 64, 128, 2048, 4096, 8192];
/// Rows at which weights that are not kept are measured, too.
const ROWS_NOT_KEPT: [usize; 9] = [1, 2, 4, 8, 16, 32, 48, 64, 4096];
/// Up to so many rows with `SCALED_GEMM_ROWS=few`.
const FEW_ROWS: usize = 64;
/// The target, and from which m on it holds.
const TARGET: f64 = 0.9;
const TARGET_ROWS: usize = 2048;

/// B in one scheme, as often as the rotation wants: with its values kept, and as codes only.
struct Weights {
    kept: Vec<QuantMatrix>,
    codes: Vec<QuantMatrix>,
    host: HostQuantMatrix,
}

impl Weights {
    fn new(handle: &Handle, pool: &Pool, scheme: Scheme, shape: (usize, usize)) -> Self {
        let sets = rotation(handle, shape.0 * shape.1 / 2);
        // FP8 keeps nothing.
        let of = |sets| pool.weights(handle, scheme, sets, shape);
        let (kept, codes) = (of(if scheme.spec().block.is_some() { sets } else { 0 }), of(sets));
        kept.iter().for_each(|b: &QuantMatrix| b.keep_dequantized(handle, DType::Bf16).unwrap());
        Self { host: codes[0].to_host(handle).unwrap(), kept, codes }
    }
}

/// How one product is called.
#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Kept,
    NotKept,
    /// The codes of few rows are read once, and nothing is dequantized: the plan's choice, where there is such a product.
    Few,
    /// B is kept, and A is quantized from BF16 in the same call.
    QuantizeToo,
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::NotKept => "codes",
            Self::Few => "codes, read once",
            Self::QuantizeToo => "kept, quantizing A",
        }
    }
}

/// One product that competes with BF16.
struct Job<'a> {
    pair: usize,
    variant: Variant,
    plan: GemmPlan,
    /// A of every set; none where it is plain.
    tokens: Option<&'a [QuantMatrix]>,
    weights: &'a [QuantMatrix],
    /// What A is quantized to.
    target: Option<QuantMatrix>,
}

impl Job<'_> {
    fn call(&mut self, handle: &Handle, pool: &Pool, set: usize, d: &mut [CudaSlice<u8>]) -> Result<()> {
        let GemmDesc { m, n, k, .. } = *self.plan.desc();
        let (b, out) = (&self.weights[set], MatMut::new(&mut d[set], DType::Bf16, m, n)?);
        let args = match (&mut self.target, self.tokens) {
            (Some(codes), _) => {
                let recipe = Recipe::new(codes.scheme());
                handle.quantize_into(&pool.a(set, m, k), recipe, QuantizeTo::Plain(&mut *codes))?;
                GemmArgs::new(codes, b, out)
            }
            (None, Some(tokens)) => GemmArgs::new(&tokens[set], b, out),
            (None, None) => GemmArgs::weight_only(pool.a(set, m, k), b, out),
        };
        self.plan.execute(handle, args)
    }
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
    main_with_gpu(|handle, watch| {
        head(handle, "NVFP4, MXFP8 and weight-only products to BF16, against BF16 (fastest of up to 8 algorithms)");
        println!("x: speed against BF16 in the same cadence; B kept: dequantized once to BF16");
        let pool = Pool::new(handle);
        let mut lines = Vec::new();
        for (n, k) in shapes() {
            let weights = WEIGHTS.map(|scheme| Weights::new(handle, &pool, scheme, (n, k)));
            println!("\n## n = {n}, k = {k}");
            println!(
                "| m | cadence | product | B | us | x | how | {TARGET} | clock |\n|---|---|---|---|---|---|---|---|---|"
            );
            for m in rows().filter(|m| m * n * k <= LARGEST) {
                measure(handle, watch, &pool, &weights, [m, n, k], &mut lines);
            }
        }
        summary(&lines);
    });
}

fn rows() -> impl Iterator<Item = usize> {
    let few = std::env::var("SCALED_GEMM_ROWS").is_ok_and(|rows| rows == "few");
    ROWS.into_iter().filter(move |m| !few || *m <= FEW_ROWS)
}

/// Weights of a scheme among all.
fn weights_of(weights: &[Weights; 4], b: Scheme) -> &Weights {
    &weights[WEIGHTS.iter().position(|scheme| *scheme == b).unwrap()]
}

fn measure(
    handle: &Handle,
    watch: &ClockWatch,
    pool: &Pool,
    weights: &[Weights; 4],
    shape: [usize; 3],
    lines: &mut Vec<Line>,
) {
    let [m, n, k] = shape;
    // At least codes of both operands, and D.
    let sets = rotation(handle, n * k / 2 + m * k / 2 + 2 * m * n).min(weights[0].codes.len());
    let mut d = outputs(handle, sets, 2 * m * n);
    let tokens = TOKENS.map(|scheme| pool.tokens(handle, scheme, sets, (m, k)));
    let mut jobs = jobs(handle, weights, &tokens, shape);
    let mut baseline = Baseline::new(handle, pool, shape);
    baseline.execute(0, &mut d).unwrap();
    assert_bf16(handle, pool, shape, &d[0]);
    for (pair, (_, b)) in PAIRS.into_iter().enumerate() {
        let of_pair = jobs.iter_mut().filter(|job| job.pair == pair);
        let b = &weights_of(weights, b).host;
        let check = match tokens_of(&tokens, pair) {
            Some(tokens) => Check::new(handle, &tokens[0], b, Accumulator::TensorCoreWide),
            None => Check::plain(handle, pool, (m, k), b),
        };
        for job in of_pair {
            handle.stream().memset_zeros(&mut d[0]).unwrap();
            job.call(handle, pool, 0, &mut d).unwrap();
            let words = format!("{}, {}, {m} x {n} x {k}", pair_name(pair), job.variant.name());
            check.assert(handle, &d[0], DType::Bf16, Activation::None, &words);
        }
    }
    let others = jobs.len();
    let measured =
        against_bf16(handle, watch, &mut baseline, &mut d, others, |who, set, d| jobs[who].call(handle, pool, set, d));
    for AgainstBf16 { cadence, times, how, clocks } in measured {
        let bf16 = times[0].median();
        println!("| {m} | {cadence} | BF16 | | {} | 1.00 | {how} | | {clocks} |", times[0]);
        for (Job { pair, variant, plan, .. }, times) in jobs.iter().zip(&times[1..]) {
            let ratio = bf16 / times.median();
            let how = format!("{}, {}", plan.formulation(), plan.finish());
            let verdict = match m >= TARGET_ROWS && *variant == Variant::Kept {
                true if ratio >= TARGET => "met",
                true => "missed",
                false => "",
            };
            let (name, kept) = (pair_name(*pair), variant.name());
            println!("| {m} | {cadence} | {name} | {kept} | {times} | {ratio:.2} | {how} | {verdict} | |");
            if m >= TARGET_ROWS {
                let words = format!("{cadence}, {times} us, BF16 {bf16:.1}; {how}");
                lines.push(Line { pair: *pair, variant: *variant, shape, ratio, words });
            }
        }
    }
}

/// A of a pair in every set; none where it is plain.
fn tokens_of(tokens: &[Vec<QuantMatrix>; 3], pair: usize) -> Option<&[QuantMatrix]> {
    let place = TOKENS.iter().position(|scheme| PAIRS[pair].0.scheme() == Some(*scheme))?;
    Some(&tokens[place])
}

fn jobs<'a>(
    handle: &Handle,
    weights: &'a [Weights; 4],
    tokens: &'a [Vec<QuantMatrix>; 3],
    [m, n, k]: [usize; 3],
) -> Vec<Job<'a>> {
    let mut jobs = Vec::new();
    for (pair, (a, b)) in PAIRS.into_iter().enumerate() {
        let of_b = weights_of(weights, b);
        for variant in [Variant::Few, Variant::Kept, Variant::NotKept, Variant::QuantizeToo] {
            let problem = GemmDesc::new(m, n, k, a, b, DType::Bf16);
            let few = handle.supports(&problem).unwrap().first() == Some(&Formulation::SmallM);
            let blocks = b.spec().block.is_some();
            let wanted = match variant {
                Variant::Few => few,
                Variant::Kept => blocks,
                Variant::NotKept => blocks && ROWS_NOT_KEPT.contains(&m),
                Variant::QuantizeToo => m >= TARGET_ROWS && a.scheme().is_some(),
            };
            if !wanted {
                continue;
            }
            let (weights, kept) = match variant {
                Variant::Few | Variant::NotKept => (&of_b.codes, KeptWeights::Nothing),
                Variant::Kept | Variant::QuantizeToo => (&of_b.kept, KeptWeights::Dequantized(DType::Bf16)),
            };
            let options = match few && variant != Variant::Few {
                true => PlanOptions::default().with_formulation(Formulation::DequantizedBf16),
                false => PlanOptions::default(),
            };
            let mut plan = handle.plan_with(&problem.with_kept(kept), &options).unwrap();
            plan.prepare(handle, &weights[0]).unwrap();
            let target = a.scheme().filter(|_| variant == Variant::QuantizeToo);
            let target = target.map(|scheme| QuantMatrix::zeros(handle, scheme, m, k).unwrap());
            jobs.push(Job { pair, variant, plan, tokens: tokens_of(tokens, pair), weights, target });
        }
    }
    jobs
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
