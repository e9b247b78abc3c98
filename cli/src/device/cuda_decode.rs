//! Products of few rows by every way that serves them, in turns.

use std::mem::swap;

use scaled_gemm::{
    Bf16Gemm, Cadence, CodeOrder, DType, Formulation, GemmPlan, KeptWeights, PlanOptions, QuantMatrix, Result, Timing,
};

use super::cuda::{BASELINE_CANDIDATES, Cuda, Sets, borrowing, kept_dtype};
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

/// The product from weights that are kept dequantized, where that is a way: its plan, and a set of such weights for each of the others.
fn kept_way(
    cuda: &Cuda,
    mnk: [usize; 3],
    pair: Pair,
    out: DType,
    plans: &[GemmPlan],
    sets: &Sets,
) -> Result<Option<(GemmPlan, Vec<QuantMatrix>)>> {
    if !plans.iter().any(|plan| plan.formulation() == Formulation::DequantizedBf16) {
        return Ok(None);
    }
    let dtype = kept_dtype(pair.a.operand(), out);
    let desc = cuda.desc(mnk, pair.a.operand(), pair.b.scheme(), out).with_kept(KeptWeights::Dequantized(dtype));
    let options = PlanOptions::default().with_formulation(Formulation::DequantizedBf16);
    let mut plan = cuda.handle.plan_with(&desc, &options)?;
    let kept = cuda.quantized_weights(sets, mnk, pair)?;
    for b in &kept {
        b.keep_dequantized(&cuda.handle, dtype)?;
        plan.prepare(&cuda.handle, b)?;
    }
    Ok(Some((plan, kept)))
}

/// The planned product with weights whose codes are repacked, where their scheme and shape have such an order: its plan, and a set of them.
fn repacked_way(
    cuda: &Cuda,
    mnk: [usize; 3],
    pair: Pair,
    out: DType,
    sets: &Sets,
) -> Result<Option<(GemmPlan, Vec<QuantMatrix>)>> {
    let [_, n, k] = mnk;
    let order = CodeOrder::Repacked;
    if order.check(pair.b.scheme(), n, k).is_err() {
        return Ok(None);
    }
    let mut plan = cuda.handle.plan(&cuda.desc(mnk, pair.a.operand(), pair.b.scheme(), out).with_b_order(order))?;
    let mut weights = cuda.quantized_weights(sets, mnk, pair)?;
    for b in &mut weights {
        b.repack(&cuda.handle, order)?;
        plan.prepare(&cuda.handle, b)?;
    }
    Ok(Some((plan, weights)))
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
    let mut kept = kept_way(cuda, mnk, pair, out, &plans, &sets)?;
    let mut repacked = repacked_way(cuda, mnk, pair, out, &sets)?;
    let mut baseline = Bf16Gemm::new(&cuda.handle, m, n, k, BASELINE_CANDIDATES)?;
    cuda.choose_baseline(&mut baseline, &mut sets, mnk, Cadence::Sustained)?;
    // The baseline, quantization of A with the planned product, every way, that of weights kept dequantized and that of repacked ones; then, as links of chains, the
    // planned product, quantization of A with it, and the product of repacked weights.
    let ways = 2 + plans.len();
    let of_repacked = ways + usize::from(kept.is_some());
    let chained = of_repacked + usize::from(repacked.is_some());
    let timing = borrowing(Timing::SUSTAINED).over(sets.d.len()).chained_from(chained);
    let all = chained + 2 + usize::from(repacked.is_some());
    let taken = timing.in_turns(&cuda.handle, all, |who, call| match (who, &mut kept) {
        (who, _) if (who == of_repacked && who < chained) || who == chained + 2 => {
            let Some((plan, b)) = &mut repacked else { return Ok(()) };
            swap(&mut sets.b, b);
            let done = cuda.execute(plan, &mut sets, call);
            swap(&mut sets.b, b);
            done
        }
        (0, _) => cuda.multiply_plain(&mut baseline, &mut sets, mnk, call),
        (who, _) if who == 1 || who == chained + 1 => {
            cuda.quantize_a(&mut sets, call)?;
            cuda.execute(&mut plans[0], &mut sets, call)
        }
        (who, _) if who == chained => cuda.execute(&mut plans[0], &mut sets, call),
        (_, Some((plan, b))) if who == ways => {
            swap(&mut sets.b, b);
            let done = cuda.execute(plan, &mut sets, call);
            swap(&mut sets.b, b);
            done
        }
        _ => cuda.execute(&mut plans[who - 2], &mut sets, call),
    })?;
    let us: Vec<f64> = taken.iter().map(|times| times.median()).collect();
    let name = |plan: &GemmPlan| format!("{} {}", plan.formulation(), plan.finish());
    let mut names: Vec<String> = plans.iter().map(name).collect();
    names.extend(kept.iter().map(|(plan, _)| format!("{}, weights kept dequantized", name(plan))));
    let ways = names.into_iter().zip(us[2..of_repacked].iter().copied()).collect();
    let error = cuda.error_of(&mut plans[0], &mut sets)?;
    let b = &sets.b[0];
    let weight_bytes = b.codes().len() + b.block_scales().len() + b.scales().len();
    let chained_us = [us[chained], us[chained + 1]];
    let repacked_us = repacked.is_some().then(|| [us[of_repacked], us[chained + 2]]);
    Ok(DecodeTime { baseline_us: us[0], both_us: us[1], chained_us, ways, repacked_us, weight_bytes, error })
}
