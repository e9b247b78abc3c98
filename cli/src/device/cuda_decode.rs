//! Products of few rows by every way that serves them, in turns.

use scaled_gemm::{Bf16Gemm, Cadence, DType, Formulation, GemmPlan, PlanOptions, Result, Timing};

use super::cuda::{BASELINE_CANDIDATES, Cuda, borrowing, kept_dtype};
use super::{DecodeTime, Pair};

/// The plan of the handle, then one for each other way.
fn plans(cuda: &Cuda, mnk: [usize; 3], pair: Pair, out: DType) -> Result<Vec<GemmPlan>> {
    let desc = cuda.desc(mnk, pair.a.operand(), pair.b.scheme(), out);
    let mut plans = vec![cuda.handle.plan(&desc)?];
    for formulation in cuda.handle.supports(&desc)? {
        if formulation != plans[0].formulation() {
            plans.push(cuda.handle.plan_with(&desc, &PlanOptions::default().with_formulation(formulation))?);
        }
    }
    Ok(plans)
}

pub(super) fn time(cuda: &mut Cuda, mnk: [usize; 3], pair: Pair, out: DType) -> Result<DecodeTime> {
    let [m, n, k] = mnk;
    let mut sets = cuda.prepare(mnk, pair, out)?;
    let mut plans = plans(cuda, mnk, pair, out)?;
    for plan in &mut plans {
        for b in &sets.b {
            plan.prepare(&cuda.handle, b)?;
        }
    }
    let mut baseline = Bf16Gemm::new(&cuda.handle, m, n, k, BASELINE_CANDIDATES)?;
    cuda.choose_baseline(&mut baseline, &mut sets, mnk, Cadence::Sustained)?;
    let timing = borrowing(Timing::SUSTAINED).over(sets.d.len());
    // The baseline, quantization of A with the planned product, and every way.
    let taken = timing.in_turns(&cuda.handle, 2 + plans.len(), |who, call| match who {
        0 => cuda.multiply_plain(&mut baseline, &mut sets, mnk, call),
        1 => {
            cuda.quantize_a(&mut sets, call)?;
            cuda.execute(&mut plans[0], &mut sets, call)
        }
        _ => cuda.execute(&mut plans[who - 2], &mut sets, call),
    })?;
    let us: Vec<f64> = taken.iter().map(|times| times.median()).collect();
    let name = |plan: &GemmPlan| format!("{} {}", plan.formulation(), plan.finish());
    let mut ways: Vec<_> = plans.iter().map(name).zip(us[2..].iter().copied()).collect();
    let error = cuda.error_of(&mut plans[0], &mut sets)?;
    let b = &sets.b[0];
    let weight_bytes = b.codes().len() + b.block_scales().len() + b.scales().len();
    if plans.iter().any(|plan| plan.formulation() == Formulation::DequantizedBf16) {
        for b in &sets.b {
            b.keep_dequantized(&cuda.handle, kept_dtype(pair.a.operand(), out))?;
        }
        let options = PlanOptions::default().with_formulation(Formulation::DequantizedBf16);
        let desc = sets.args(mnk, out, 0)?.accumulation(plans[0].desc().accumulation).desc()?;
        let mut kept = cuda.handle.plan_with(&desc, &options)?;
        let taken = timing.time(&cuda.handle, |call| cuda.execute(&mut kept, &mut sets, call))?;
        ways.push((format!("{}, weights kept dequantized", name(&kept)), taken.median()));
    }
    Ok(DecodeTime { baseline_us: us[0], both_us: us[1], ways, weight_bytes, error })
}
