//! What the suites of our products of few rows with weights that are decoded are made of: configurations, plans, operands of either kind, and the check
//! against the bound.

use crate::common::gemm::*;
use crate::common::{Noise, capture_among_others, handle_with};
use std::sync::atomic::{AtomicBool, Ordering};

use ndarray::{Array2, s};
use scaled_gemm::reference::{Gelu, SumBound};
use scaled_gemm::{
    Accumulation, DType, Formulation, GemmDesc, GemmPlan, Handle, HostQuantMatrix, KernelFamily, Operand, PlanOptions,
    QuantMatrix, Scheme, SmallMBlock, SmallMConfig, SmallMOperands, TuneRecord,
};

pub const BF16: Operand = Operand::Plain(DType::Bf16);
pub const F16: Operand = Operand::Plain(DType::F16);

pub type Pair = (Operand, Scheme);

/// Whether the GPU's blocks form clusters.
static CLUSTERS: AtomicBool = AtomicBool::new(true);

/// A handle on a GPU that has these kernels.
pub fn decoding() -> Option<Handle> {
    let handle = handle_with(KernelFamily::SmallMWeights)?;
    CLUSTERS.store(handle.device().compute_capability >= (9, 0), Ordering::Relaxed);
    Some(handle)
}

/// Whether its blocks form clusters; else a plan has scratch memory for parts of sums, too.
pub fn clusters() -> bool {
    CLUSTERS.load(Ordering::Relaxed)
}

/// Whether the GPU runs this configuration.
fn runs(config: &SmallMConfig) -> bool {
    clusters() || !config.needs_clusters()
}

/// Blocks that multiply so many rows.
pub fn blocks_of(operands: SmallMOperands, m: usize) -> impl Iterator<Item = SmallMBlock> {
    use SmallMBlock::{Eight, Four, Narrow, Sixteen};
    let most = |block: SmallMBlock| if [Four, Eight, Sixteen, Narrow].contains(&block) { 16 } else { 64 };
    SmallMBlock::ALL.into_iter().filter(move |block| operands == block.operands() && m <= most(*block))
}

pub fn all_of(operands: SmallMOperands, m: usize) -> impl Iterator<Item = SmallMConfig> {
    let of_block = move |config: &SmallMConfig| blocks_of(operands, m).any(|block| block == config.block());
    SmallMConfig::all(operands).filter(of_block).filter(runs)
}

/// Those of a kernel each, with splits in turn.
pub fn one_of_each_of(operands: SmallMOperands, m: usize, turn: usize) -> impl Iterator<Item = SmallMConfig> {
    let splits = SmallMConfig::SPLITS;
    let blocks = blocks_of(operands, m).enumerate();
    let of = |block, split| SmallMConfig::new(block, split).unwrap();
    blocks.map(move |(i, block)| {
        Some(of(block, splits[(3 * i + turn) % splits.len()])).filter(runs).unwrap_or(of(block, 1))
    })
}

/// A plan in this configuration, by way of a record.
pub fn planned(handle: &Handle, desc: &GemmDesc, config: SmallMConfig) -> GemmPlan {
    let text = plan(handle, desc, Formulation::SmallM).record().unwrap().to_json().unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    let place = record.pointer_mut("/algorithm/small-m").unwrap_or_else(|| panic!("no configuration in {text}"));
    *place = serde_json::to_value(config).unwrap();
    let record = TuneRecord::from_json(&record.to_string()).unwrap();
    let plan = handle.plan_with(desc, &PlanOptions::default().with_record(record)).unwrap();
    assert!(plan.explain().contains(&format!("algorithm: small-m {config}, ")), "{}", plan.explain());
    plan
}

/// Normal data in which every row and every 16 columns of a row have a size of their own, over two orders of magnitude: a
/// block scale or a row scale taken from a wrong place shows. Products stay within F16 up to k = 1536.
pub fn blocked(rng: &mut Noise, rows: usize, cols: usize) -> Array2<f32> {
    let groups = cols.div_ceil(16);
    let by_row: Vec<f32> = (0..rows).map(|_| 10f32.powf(rng.uniform() - 0.5)).collect();
    let by_block: Vec<f32> = (0..rows * groups).map(|_| 10f32.powf(rng.uniform() - 0.5)).collect();
    Array2::from_shape_fn((rows, cols), |(i, j)| 0.125 * rng.normal() * by_row[i] * by_block[i * groups + j / 16])
}

/// Either kind of product.
pub enum Both {
    Quantized(Operands),
    Plain(PlainOperands),
}

/// Runs the same code on whichever kind it is.
macro_rules! with {
    ($both:expr, |$ops:ident| $body:expr) => {
        match $both {
            $crate::small_m_weights::Both::Quantized($ops) => $body,
            $crate::small_m_weights::Both::Plain($ops) => $body,
        }
    };
}
pub(crate) use with;

/// The same matrix, each part of it in an allocation of its own: what reads beyond one is seen by a sanitizer.
fn apart(handle: &Handle, host: &HostQuantMatrix) -> QuantMatrix {
    let codes = handle.upload(host.codes()).unwrap();
    let scales = (!host.scales().is_empty()).then(|| handle.upload(host.scales()).unwrap());
    let block_scales = (!host.block_scales().is_empty()).then(|| handle.upload(host.block_scales()).unwrap());
    QuantMatrix::from_parts(host.scheme(), host.rows(), host.cols(), codes, scales, block_scales).unwrap()
}

pub fn operands(handle: &Handle, x: &Array2<f32>, host_b: HostQuantMatrix, a: Operand) -> Both {
    let b = apart(handle, &host_b);
    match a {
        Operand::Quantized(a) => Both::Quantized(Operands { b, ..Operands::of(handle, quantized(x, a), host_b) }),
        // Rows of A lie apart where their number is odd.
        Operand::Plain(dtype) => {
            let mut plain = PlainOperands::of(handle, x, dtype, x.nrows() % 2 * 8, host_b);
            plain.b = b;
            Both::Plain(plain)
        }
    }
}

pub fn new(handle: &Handle, rng: &mut Noise, [m, n, k]: [usize; 3], (a, b): Pair) -> Both {
    let x = blocked(rng, m, k);
    operands(handle, &x, quantized(&blocked(rng, n, k), b), a)
}

/// Each of these configurations gives D within the bound, twice the same.
pub fn check_with(
    handle: &Handle,
    ops: &impl Product,
    extras: &Extras,
    sums: &SumBound,
    case: Case,
    configs: impl Iterator<Item = SmallMConfig>,
) -> f64 {
    let desc = case.desc(ops);
    let bound = sums.with(&extras.inputs(ops, &case), Gelu::Ieee).unwrap();
    let mut worst = 0f64;
    for config in configs {
        let mut plan = planned(handle, &desc, config);
        let stored = execute(handle, &mut plan, ops, extras, &case);
        let found = bound.check(stored.values(ops, &case).view());
        worst = worst.max(found.unwrap_or_else(|e| panic!("{e}; alpha {}\n{}", case.alpha, plan.explain())));
        let again = execute(handle, &mut plan, ops, extras, &case);
        assert!(again == stored, "a second run differs\n{}", plan.explain());
    }
    worst
}

pub fn check(
    handle: &Handle,
    rng: &mut Noise,
    shape: [usize; 3],
    pair: Pair,
    case: Case,
    configs: impl Iterator<Item = SmallMConfig>,
) -> f64 {
    let both = new(handle, rng, shape, pair);
    let extras = Extras::new(handle, rng, shape[0], shape[1], &[case.gap]);
    with!(&both, |ops| {
        let sums = ops.sums(Accumulation::Precise);
        check_with(handle, ops, &extras, &sums, case, configs)
    })
}

/// With `beta = 0` D's old value, NaN here, is not read.
pub fn check_beta_zero(handle: &Handle, seed: u64, [m, n, k]: [usize; 3], pairs: &[Pair]) {
    let mut rng = Noise::new(seed);
    for pair in pairs {
        let both = new(handle, &mut rng, [m, n, k], *pair);
        let mut extras = Extras::new(handle, &mut rng, m, n, &[0]);
        with!(&both, |ops| {
            let case = Case { beta: Some(0.0), ..Case::new(DType::F32) };
            let sums = ops.sums(Accumulation::Precise);
            let bound = sums.with(&extras.inputs(ops, &Case { beta: None, ..case }), Gelu::Ieee).unwrap();
            extras.old.fill(f32::NAN);
            let mut plan = plan(handle, &case.desc(ops), Formulation::SmallM);
            let stored = execute(handle, &mut plan, ops, &extras, &case);
            bound.check(stored.values(ops, &case).view()).unwrap_or_else(|e| panic!("{e}\n{}", plan.explain()));
        });
    }
}

/// In one configuration a row of D has the same bits whatever m is, and with it the width of the product, and wherever the row stands. Each configuration comes with
/// the most rows that it multiplies.
pub fn check_equal_rows(
    handle: &Handle,
    [seed, of_extras]: [u64; 2],
    k: usize,
    pairs: &[Pair],
    configs: &[(SmallMConfig, usize)],
) {
    let mut rng = Noise::new(seed);
    let n = 520;
    for &(a, b) in pairs {
        let (x, w) = (blocked(&mut rng, 64, k), quantized(&blocked(&mut rng, n, k), b));
        let case = Case::new(DType::F32);
        for &(config, most) in configs {
            let rows = |start: usize, m: usize| {
                let part = x.slice(s![start..start + m, ..]).to_owned();
                let both = operands(handle, &part, w.clone(), a);
                let extras = Extras::new(handle, &mut Noise::new(of_extras), m, n, &[]);
                with!(&both, |ops| {
                    execute(handle, &mut planned(handle, &case.desc(ops), config), ops, &extras, &case).bytes
                })
            };
            let want = rows(0, most);
            let parts = [(0, 1), (15, 1), (3, 8), (5, 9), (0, 13), (0, 17), (20, 33), (15, 49), (63, 1)];
            for (start, m) in parts.into_iter().filter(|(start, m)| start + m <= most) {
                assert!(rows(start, m) == want[start * n * 4..(start + m) * n * 4], "{config}: rows from {start}, {m}");
            }
        }
    }
}

/// The eager bits in graphs, which follow A and B. Of these m and configurations, with the pairs in turn.
pub fn check_graphs(handle: &Handle, seed: u64, pairs: &[Pair], configs: impl Iterator<Item = (usize, SmallMConfig)>) {
    let mut rng = Noise::new(seed);
    let (n, k) = (520, 672);
    for (i, (m, config)) in configs.enumerate() {
        let mut both = new(handle, &mut rng, [m, n, k], pairs[i % pairs.len()]);
        let extras = Extras::new(handle, &mut rng, m, n, &[]);
        let case = Case { alpha: 0.5, gap: 8, ..Case::new(DType::Bf16) };
        let mut plan = with!(&both, |ops| planned(handle, &case.desc(ops), config));
        let want = with!(&both, |ops| execute(handle, &mut plan, ops, &extras, &case));
        let mut output = with!(&both, |ops| Output::new(handle, ops, &extras, &case));
        let graph = with!(&both, |ops| capture_among_others(handle, || plan
            .execute(handle, output.args(ops, &extras, &case))))
        .unwrap();
        let replay = |output: &mut Output| {
            output.reset(handle);
            handle.launch(&graph).unwrap();
            output.read(handle, "replay")
        };
        for _ in 0..3 {
            assert!(replay(&mut output) == want, "{config}: a replay differs");
        }
        let x = blocked(&mut rng, m, k).mapv(|v| v * 3.0);
        match &mut both {
            Both::Plain(ops) => ops.rewrite(handle, &x),
            Both::Quantized(ops) => rewrite(handle, &x, &mut ops.a),
        }
        let follows = with!(&both, |ops| execute(handle, &mut plan, ops, &extras, &case));
        assert!(follows != want && replay(&mut output) == follows, "{config}: the replay does not follow A");
        let w = blocked(&mut rng, n, k);
        match &mut both {
            Both::Plain(ops) => rewrite(handle, &w, &mut ops.b),
            Both::Quantized(ops) => rewrite(handle, &w, &mut ops.b),
        }
        let want = with!(&both, |ops| execute(handle, &mut plan, ops, &extras, &case));
        assert!(follows != want && replay(&mut output) == want, "{config}: the replay does not follow B");
    }
}

/// Products back to back, each behind the one before it: tens of thousands of launches, of clusters of every size in turn, and then the right bits. Of these m
/// and configurations, with the pairs in turn.
pub fn check_long_chains(
    handle: &Handle,
    seed: u64,
    k: usize,
    pairs: &[Pair],
    configs: impl Iterator<Item = (usize, SmallMConfig)>,
) {
    let mut rng = Noise::new(seed);
    let case = Case { gap: 8, ..Case::new(DType::Bf16) };
    let mut links: Vec<_> = configs
        .enumerate()
        .map(|(i, (m, config))| {
            let both = new(handle, &mut rng, [m, 264, k], pairs[i % pairs.len()]);
            let extras = Extras::new(handle, &mut rng, m, 264, &[case.gap]);
            let mut plan = with!(&both, |ops| planned(handle, &case.desc(ops), config));
            let want = with!(&both, |ops| execute(handle, &mut plan, ops, &extras, &case));
            let output = with!(&both, |ops| Output::new(handle, ops, &extras, &case));
            (both, extras, plan, want, output)
        })
        .collect();
    for _ in 0..2000 {
        for (both, extras, plan, _, output) in &mut links {
            with!(&*both, |ops| plan.execute(handle, output.args(ops, extras, &case)).unwrap());
        }
    }
    for (.., plan, want, output) in &links {
        assert!(output.read(handle, "the end of a chain") == *want, "{}", plan.explain());
    }
}
