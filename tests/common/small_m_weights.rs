//! What the suites of our products of few rows with weights that are decoded are made of: configurations, plans, operands of either kind, and the check
//! against the bound.

use crate::common::gemm::*;
use crate::common::{Noise, handle};
use ndarray::Array2;
use scaled_gemm::reference::{Gelu, SumBound};
use scaled_gemm::{
    Accumulation, DType, Formulation, GemmDesc, GemmPlan, Handle, HostQuantMatrix, KernelFamily, Operand, PlanOptions,
    QuantMatrix, Scheme, SmallMBlock, SmallMConfig, SmallMOperands, TuneRecord,
};

pub const BF16: Operand = Operand::Plain(DType::Bf16);
pub const F16: Operand = Operand::Plain(DType::F16);

pub type Pair = (Operand, Scheme);

/// A handle on an sm_90.
pub fn hopper() -> Option<Handle> {
    let handle = handle()?;
    if !KernelFamily::SmallM.runs_on(handle.device().compute_capability) {
        println!("skipped: {} is no sm_90", handle.device());
        return None;
    }
    Some(handle)
}

/// Blocks that multiply so many rows.
pub fn blocks_of(operands: SmallMOperands, m: usize) -> impl Iterator<Item = SmallMBlock> {
    let most = |block: SmallMBlock| if [SmallMBlock::Four, SmallMBlock::Eight].contains(&block) { 16 } else { 64 };
    SmallMBlock::ALL.into_iter().filter(move |block| operands == block.operands() && m <= most(*block))
}

pub fn all_of(operands: SmallMOperands, m: usize) -> impl Iterator<Item = SmallMConfig> {
    SmallMConfig::all(operands).filter(move |config| blocks_of(operands, m).any(|block| block == config.block()))
}

/// Those of a kernel each, with splits in turn.
pub fn one_of_each_of(operands: SmallMOperands, m: usize, turn: usize) -> impl Iterator<Item = SmallMConfig> {
    let splits = SmallMConfig::SPLITS;
    let blocks = blocks_of(operands, m).enumerate();
    blocks.map(move |(i, block)| SmallMConfig::new(block, splits[(3 * i + turn) % splits.len()]).unwrap())
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
