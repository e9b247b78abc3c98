//! Products of few rows by every way that serves them, in turns.

use std::mem::swap;

use scaled_gemm::{
    Bf16Gemm, Cadence, CodeOrder, DType, Formulation, GemmDesc, GemmPlan, KeptWeights, PlanOptions, QuantMatrix,
    Result, Timing,
};

use super::cuda::{BASELINE_CANDIDATES, Cuda, Sets, borrowing, kept_dtype};
use super::{DecodeTime, Pair, RepackedTime};

/// A way: its plan for calls behind one another, and that for links of chains.
struct Way([GemmPlan; 2]);

impl Way {
    /// Both of the formulation that is planned for calls behind one another.
    fn of(cuda: &Cuda, desc: &GemmDesc, plan: GemmPlan) -> Result<Self> {
        let same = PlanOptions::default().with_formulation(plan.formulation());
        let chained = cuda.handle.plan_with(&desc.with_chained(true), &same)?;
        Ok(Self([plan, chained]))
    }

    fn prepare(&mut self, cuda: &Cuda, b: &QuantMatrix) -> Result<()> {
        self.0.iter_mut().try_for_each(|plan| plan.prepare(&cuda.handle, b))
    }

    /// The first plan, as the ways are named.
    fn plan(&self) -> &GemmPlan {
        &self.0[0]
    }
}

/// The plan of the handle, then one for each other way.
fn ways(cuda: &Cuda, mnk: [usize; 3], pair: Pair, out: DType) -> Result<Vec<Way>> {
    let desc = cuda.desc(mnk, pair.a.operand(), pair.b.scheme(), out);
    let mut ways = vec![Way::of(cuda, &desc, cuda.handle.plan(&desc)?)?];
    for formulation in cuda.handle.supports(&desc)? {
        if formulation != ways[0].plan().formulation() {
            let options = PlanOptions::default().with_formulation(formulation);
            ways.push(Way::of(cuda, &desc, cuda.handle.plan_with(&desc, &options)?)?);
        }
    }
    Ok(ways)
}

/// The product from weights that are kept dequantized, where that is a way: its plan, and a set of such weights for each of the others.
fn kept_way(
    cuda: &Cuda,
    mnk: [usize; 3],
    pair: Pair,
    out: DType,
    ways: &[Way],
    sets: &Sets,
) -> Result<Option<(Way, Vec<QuantMatrix>)>> {
    if !ways.iter().any(|way| way.plan().formulation() == Formulation::DequantizedBf16) {
        return Ok(None);
    }
    let dtype = kept_dtype(pair.a.operand(), out);
    let desc = cuda.desc(mnk, pair.a.operand(), pair.b.scheme(), out).with_kept(KeptWeights::Dequantized(dtype));
    let options = PlanOptions::default().with_formulation(Formulation::DequantizedBf16);
    let mut way = Way::of(cuda, &desc, cuda.handle.plan_with(&desc, &options)?)?;
    let kept = cuda.quantized_weights(sets, mnk, pair)?;
    for b in &kept {
        b.keep_dequantized(&cuda.handle, dtype)?;
        way.prepare(cuda, b)?;
    }
    Ok(Some((way, kept)))
}

/// The planned product with weights whose codes are repacked, where their scheme and shape have such an order: its plan, and a set of them.
fn repacked_way(
    cuda: &Cuda,
    mnk: [usize; 3],
    pair: Pair,
    out: DType,
    sets: &Sets,
) -> Result<Option<(Way, Vec<QuantMatrix>)>> {
    let [_, n, k] = mnk;
    let order = CodeOrder::Repacked;
    if order.check(pair.b.scheme(), n, k).is_err() {
        return Ok(None);
    }
    let desc = cuda.desc(mnk, pair.a.operand(), pair.b.scheme(), out).with_b_order(order);
    let mut way = Way::of(cuda, &desc, cuda.handle.plan(&desc)?)?;
    let mut weights = cuda.quantized_weights(sets, mnk, pair)?;
    for b in &mut weights {
        b.repack(&cuda.handle, order)?;
        way.prepare(cuda, b)?;
    }
    Ok(Some((way, weights)))
}

/// What is timed, each as calls behind one another and again as links of chains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    /// The unquantized product.
    Baseline,
    /// Quantization of A, and the planned product.
    Both,
    /// By the way of this number; the first is the planned one.
    Way(usize),
    /// From weights that are kept dequantized.
    Kept,
    /// From weights that are repacked.
    Repacked,
    /// Quantization of A, and the product from weights that are repacked.
    BothRepacked,
}

pub(super) fn time(cuda: &mut Cuda, mnk: [usize; 3], pair: Pair, out: DType) -> Result<DecodeTime> {
    let [m, n, k] = mnk;
    let mut sets = cuda.prepare(mnk, pair, out)?;
    let mut ways = ways(cuda, mnk, pair, out)?;
    for way in &mut ways {
        for b in &sets.b {
            way.prepare(cuda, b)?;
        }
    }
    let mut kept = kept_way(cuda, mnk, pair, out, &ways, &sets)?;
    let mut repacked = repacked_way(cuda, mnk, pair, out, &sets)?;
    let mut baseline = Bf16Gemm::new(&cuda.handle, m, n, k, BASELINE_CANDIDATES)?;
    cuda.choose_baseline(&mut baseline, &mut sets, mnk, Cadence::Sustained)?;
    let mut runs = vec![Run::Baseline, Run::Both];
    runs.extend((0..ways.len()).map(Run::Way));
    runs.extend(kept.iter().map(|_| Run::Kept));
    runs.extend(repacked.iter().flat_map(|_| [Run::Repacked, Run::BothRepacked]));
    let timing = borrowing(Timing::SUSTAINED).over(sets.d.len()).chained_from(runs.len());
    let taken = timing.in_turns(&cuda.handle, 2 * runs.len(), |who, call| {
        let (run, chained) = (runs[who % runs.len()], who / runs.len());
        if matches!(run, Run::Both | Run::BothRepacked) {
            cuda.quantize_a(&mut sets, call)?;
        }
        let others = match run {
            Run::Baseline => return cuda.multiply_plain(&mut baseline, &mut sets, mnk, call),
            Run::Both => return cuda.execute(&mut ways[0].0[chained], &mut sets, call),
            Run::Way(way) => return cuda.execute(&mut ways[way].0[chained], &mut sets, call),
            Run::Kept => &mut kept,
            Run::Repacked | Run::BothRepacked => &mut repacked,
        };
        let Some((way, b)) = others else { return Ok(()) };
        swap(&mut sets.b, b);
        let done = cuda.execute(&mut way.0[chained], &mut sets, call);
        swap(&mut sets.b, b);
        done
    })?;
    let of = |run: Run| {
        let at = runs.iter().position(|other| *other == run)?;
        Some([at, at + runs.len()].map(|who| taken[who].median()))
    };
    // Those that need no weights of their own are among the runs of every product.
    let always = |run: Run| of(run).unwrap_or([f64::NAN; 2]);
    let name = |plan: &GemmPlan| format!("{} {}", plan.formulation(), plan.finish());
    let error = cuda.error_of(&mut ways[0].0[0], &mut sets)?;
    let mut ways: Vec<_> = ways.iter().enumerate().map(|(i, way)| (name(way.plan()), always(Run::Way(i)))).collect();
    let of_kept = kept.iter().map(|(way, _)| format!("{}, weights kept dequantized", name(way.plan())));
    ways.extend(of_kept.zip(of(Run::Kept)));
    let repacked = of(Run::Repacked).zip(of(Run::BothRepacked)).map(|(us, both_us)| RepackedTime { us, both_us });
    let b = &sets.b[0];
    let weight_bytes = b.codes().len() + b.block_scales().len() + b.scales().len();
    let (baseline_us, both_us) = (always(Run::Baseline), always(Run::Both));
    Ok(DecodeTime { baseline_us, both_us, ways, repacked, weight_bytes, error })
}
