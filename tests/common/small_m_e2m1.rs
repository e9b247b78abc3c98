//! What the suite of our product of few rows with E2M1 weights is made of: pairs, configurations, plans, operands of either kind.

use crate::common::gemm::*;
use crate::common::{Noise, handle};
use ndarray::Array2;
use scaled_gemm::{
    CodeFormat, DType, Formulation, Fp8Format, GemmDesc, GemmPlan, Handle, HostQuantMatrix, KernelFamily, Operand,
    PlanOptions, QuantMatrix, Scheme, SmallMBlock, SmallMConfig, TuneRecord,
};

pub const NV: Scheme = Scheme::Nvfp4;
pub const NV_ROW: Scheme = Scheme::Nvfp4Row;
pub const MX4: Scheme = Scheme::Mxfp4;
pub const BF16: Operand = Operand::Plain(DType::Bf16);
pub const F16: Operand = Operand::Plain(DType::F16);

pub type Pair = (Operand, Scheme);

/// Every kind of A that each scheme of weights multiplies here.
pub const PAIRS: [Pair; 12] = [
    (BF16, NV),
    (F16, NV),
    (BF16, NV_ROW),
    (F16, NV_ROW),
    (BF16, MX4),
    (Operand::Quantized(NV), NV),
    (Operand::Quantized(NV), NV_ROW),
    (Operand::Quantized(NV_ROW), NV),
    (Operand::Quantized(NV_ROW), NV_ROW),
    (Operand::Quantized(MX4), MX4),
    (Operand::Quantized(Scheme::Mxfp8(Fp8Format::E4M3)), MX4),
    (Operand::Quantized(Scheme::Mxfp8(Fp8Format::E5M2)), MX4),
];

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
pub fn blocks(m: usize) -> impl Iterator<Item = SmallMBlock> {
    let most = |block: SmallMBlock| if block == SmallMBlock::Tile { 64 } else { 16 };
    SmallMBlock::ALL.into_iter().filter(move |block| CodeFormat::E2M1 == block.codes() && m <= most(*block))
}

pub fn all(m: usize) -> impl Iterator<Item = SmallMConfig> {
    SmallMConfig::all(CodeFormat::E2M1).filter(move |config| blocks(m).any(|block| block == config.block()))
}

/// Those of a kernel each, with splits in turn.
pub fn one_of_each(m: usize, turn: usize) -> impl Iterator<Item = SmallMConfig> {
    let splits = SmallMConfig::SPLITS;
    let blocks = blocks(m).enumerate();
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
            $crate::small_m_e2m1::Both::Quantized($ops) => $body,
            $crate::small_m_e2m1::Both::Plain($ops) => $body,
        }
    };
}
pub(crate) use with;

/// The same matrix, each part of it in an allocation of its own: what reads beyond one is seen by a sanitizer.
fn apart(handle: &Handle, host: &HostQuantMatrix) -> QuantMatrix {
    let codes = handle.upload(host.codes()).unwrap();
    let scales = (!host.scales().is_empty()).then(|| handle.upload(host.scales()).unwrap());
    let block_scales = Some(handle.upload(host.block_scales()).unwrap());
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
