//! [`GemmPlan::autotune`]: every formulation, finish and algorithm that is offered, validated and then timed.

use crate::error::{Error, Result};

use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::available::{Facts, available};
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::judge::Judge;
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::record::TuneRecord;
use crate::gpu::gemm::rules;
use crate::gpu::gemm::steps::{Candidate, Search};
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{KeptWeights, QuantMatrix};
use crate::gpu::measure::Timing;

/// What the L2 cache holds when a repetition begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheState {
    /// Nothing of the operands: a buffer of twice the cache's size is overwritten before each call. This is how a layer finds
    /// its weights when other layers ran in between. Of a [chained](crate::GemmDesc::chained) problem nothing of B, of which copies take turns; A and D are warm, as what the layer before has just written is.
    #[default]
    Cold,
    /// What the call before left there: graphs of 24 calls, so that the GPU is timed and not the host.
    Warm,
}

named!(CacheState, "cache state", Cold => "cold", Warm => "warm");

/// How to measure.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TuneOptions {
    /// Algorithms to try for each formulation and finish.
    pub candidates: usize,
    /// Timed launches of each, in turns; the median counts.
    pub repetitions: usize,
    /// Whether operands come from memory or from the L2 cache.
    pub cache: CacheState,
    /// A later candidate wins only if it is faster by more than this part: near-ties flip from run to run.
    pub tie: f64,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self { candidates: 8, repetitions: 15, cache: CacheState::Cold, tie: 0.03 }
    }
}

impl TuneOptions {
    /// The same with this many algorithms for each formulation and finish.
    pub fn with_candidates(self, candidates: usize) -> Self {
        Self { candidates, ..self }
    }

    /// The same with this many timed repetitions.
    pub fn with_repetitions(self, repetitions: usize) -> Self {
        Self { repetitions, ..self }
    }

    /// The same with operands from memory or cache.
    pub fn with_cache(self, cache: CacheState) -> Self {
        Self { cache, ..self }
    }

    /// Back to back; cold operands call by call, as there is one set of them; links of a chain, which has many calls, over so many sets of weights.
    fn timing(&self, chained: bool, sets: usize) -> Timing {
        // The operands are borrowed by the arguments of autotune, longer than any graph lives.
        let timing = Timing::SUSTAINED.with_launches(self.repetitions).borrowing_from_caller();
        match (chained, self.cache) {
            (true, _) => timing.over(sets).chained_from(0),
            (false, CacheState::Cold) => timing.flushed(),
            (false, CacheState::Warm) => timing,
        }
    }
}

/// The most copies of weights: they are as many as leave nothing of one in the L2 cache when its turn comes again, of small ones fewer.
const MOST_COPIES: usize = 64;

/// What became of one candidate.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// Right, and this fast: median microseconds.
    Timed(f64),
    /// Its output is beyond the f64 bound, or differs from that of a candidate within it: what was found.
    Wrong(String),
    /// It did not run: the error.
    Failed(String),
}

/// One candidate of an autotune.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Trial {
    /// Its formulation.
    pub formulation: Formulation,
    /// Its finish.
    pub finish: Finish,
    /// Its algorithm's configuration in words.
    pub algorithm: String,
    /// What became of it.
    pub verdict: Verdict,
}

/// What an autotune found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TuneReport {
    /// Every candidate, in the order of preference; the first is what `plan` would take, but for configurations of `sm90` that end plainly where alpha is not 1.
    pub trials: Vec<Trial>,
    /// Place of the winner in `trials`.
    pub winner: usize,
    /// The winner as a record.
    pub record: TuneRecord,
}

impl GemmPlan {
    /// Tries every formulation, finish and algorithm on these operands, and makes the fastest right one this plan's choice.
    ///
    /// Before any is timed, every candidate's D is held against the f64 bound ([`gemm_bound`](crate::reference::gemm_bound)) where it is
    /// sampled, and everywhere against the first D that passed; a candidate that is wrong or fails is dropped and reported.
    /// The others are timed in turns ([`Timing::in_turns`]), those of a [chained](crate::GemmDesc::chained) problem as links of a chain, if cold of copies of B in device memory, twice as large as the L2 cache together (two at the least, 64 at most); the plan says whether it is one, not the arguments. The operands should be typical data: timings depend on them. With an alpha other
    /// than 1 configurations of `sm90` that [end plainly](crate::Sm90Config::ends_plainly) are no candidates: another's kernel would run in their place. D's
    /// content is lost (with `accumulate`, old values are taken as zero). Slow: allocates the scratch of the largest, copies
    /// the operands, and D for each candidate, to the host, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] if the operands are not as planned; [`Error::Unsupported`] inside graph capture, where D has no
    /// elements, or if no candidate works; [`Error::Driver`]. The plan keeps its old choice then.
    pub fn autotune(&mut self, handle: &Handle, mut args: GemmArgs<'_>, options: &TuneOptions) -> Result<TuneReport> {
        handle.refuse_capture("autotuning")?;
        let desc = args.desc()?;
        self.check(handle, &desc)?;
        let search = Search { candidates: options.candidates, alpha: args.alpha, ..self.options.search() };
        let mut candidates = self.candidates(handle, search)?;
        let mut judge = Judge::new(handle, &desc, &args)?;
        let mut trials: Vec<Trial> = Vec::new();
        // Candidate, algorithm and trial of what is right.
        let mut right: Vec<(usize, usize, usize)> = Vec::new();
        for (i, candidate) in candidates.iter_mut().enumerate() {
            if let Err(error) = handle.reserve_scratch(candidate.scratch_bytes()) {
                trials.push(trial(candidate, Verdict::Failed(error.to_string())));
                continue;
            }
            if candidate.outline().formulation == Formulation::RepeatedScales {
                args.b.repeat_scales(handle)?;
            }
            for algorithm in 0..candidate.algorithms() {
                candidate.choose(algorithm);
                let verdict = match self.attempt(handle, candidate, &mut args, &mut judge)? {
                    Some(verdict) => verdict,
                    None => {
                        right.push((i, algorithm, trials.len()));
                        // Its time is written below.
                        Verdict::Timed(f64::INFINITY)
                    }
                };
                trials.push(trial(candidate, verdict));
            }
        }
        let copies = match (self.desc.chained, options.cache) {
            (true, CacheState::Cold) if !right.is_empty() => copies(handle, args.b)?,
            _ => Vec::new(),
        };
        let repeats = |(place, ..): &(usize, usize, usize)| {
            candidates[*place].outline().formulation == Formulation::RepeatedScales
        };
        if right.iter().any(repeats) {
            copies.iter().try_for_each(|b| b.repeat_scales(handle))?;
        }
        let mut args = args;
        let times = options.timing(self.desc.chained, copies.len()).in_turns(handle, right.len(), |who, call| {
            let (place, algorithm, _) = right[who];
            candidates[place].choose(algorithm);
            if !copies.is_empty() {
                args.b = &copies[call % copies.len()];
            }
            candidates[place].enqueue(handle, &self.desc, &mut args)
        })?;
        let mut best: Option<(f64, usize, usize, usize)> = None;
        for ((place, algorithm, at), times) in right.into_iter().zip(times) {
            let us = times.median();
            trials[at].verdict = Verdict::Timed(us);
            // The first of near-equals stays.
            if best.is_none_or(|(fastest, ..)| us < fastest * (1.0 - options.tie)) {
                best = Some((us, place, algorithm, at));
            }
        }
        let Some((us, place, algorithm, winner)) = best else {
            let reasons: Vec<String> = trials.iter().map(Trial::to_string).collect();
            return Err(Error::unsupported(
                format!("autotuning {}", self.desc),
                format!("no candidate works: {}", reasons.join("; ")),
                "see what Handle::supports says; a failure of every candidate is a broken installation",
            ));
        };
        let mut chosen = candidates.swap_remove(place);
        chosen.choose(algorithm);
        self.rejected = trials.iter().enumerate().filter(|(i, _)| *i != winner).map(|(_, t)| t.to_string()).collect();
        self.candidate = Some(chosen);
        self.measured_us = Some(us);
        self.reason = format!("the fastest of {} measured here", trials.len());
        let record = self.record().ok_or_else(|| nothing_to_tune(self))?;
        tracing::info!(%us, winner = %trials[winner], "tuned {}", self.desc);
        Ok(TuneReport { trials, winner, record })
    }

    /// All candidates, the one that the rules prefer first.
    fn candidates(&self, handle: &Handle, search: Search) -> Result<Vec<Candidate>> {
        if self.desc.is_empty() {
            return Err(nothing_to_tune(self));
        }
        let (mut order, _) = rules::preference(&self.desc, Facts::of(handle));
        if let Some(asked) = self.options.formulation {
            order.retain(|f| *f == asked);
        }
        let mut candidates = Vec::new();
        for formulation in order {
            if available(&self.desc, Facts::of(handle), formulation).is_err() {
                continue;
            }
            for finish in Finish::ALL {
                candidates.extend(Candidate::ask(handle, &self.desc, formulation, finish, search)?.ok());
            }
        }
        Ok(candidates)
    }

    /// Runs a candidate once and judges its D: what is wrong with it, or nothing. Only errors that concern every candidate are
    /// returned as such.
    fn attempt(
        &self,
        handle: &Handle,
        candidate: &mut Candidate,
        args: &mut GemmArgs<'_>,
        judge: &mut Judge,
    ) -> Result<Option<Verdict>> {
        // Old values count as zero where D is added to, and a candidate that writes nothing is found out.
        handle.zero(&mut args.d)?;
        let ran = candidate.enqueue(handle, &self.desc, args).and_then(|()| handle.synchronize());
        if let Err(error) = ran {
            return Ok(Some(Verdict::Failed(error.to_string())));
        }
        let found = read_output(handle, args)?;
        let fault = judge.fault(candidate.outline().formulation, candidate.outline().finish, found)?;
        Ok(fault.map(Verdict::Wrong))
    }
}

fn nothing_to_tune(plan: &GemmPlan) -> Error {
    Error::unsupported(
        format!("autotuning {}", plan.desc),
        "D has no elements, so there is nothing to measure",
        "tune a shape with m and n above 0",
    )
}

fn trial(candidate: &Candidate, verdict: Verdict) -> Trial {
    Trial {
        formulation: candidate.outline().formulation,
        finish: candidate.outline().finish,
        algorithm: candidate.product().map_or_else(String::new, |product| product.algorithm().to_string()),
        verdict,
    }
}

impl std::fmt::Display for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}: ", self.formulation, self.finish, self.algorithm)?;
        match &self.verdict {
            Verdict::Timed(us) => write!(f, "{us:.2} us"),
            Verdict::Wrong(difference) => write!(f, "wrong result: {difference}"),
            Verdict::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// Copies of B, with what it keeps.
fn copies(handle: &Handle, b: &QuantMatrix) -> Result<Vec<QuantMatrix>> {
    let host = b.to_host(handle)?;
    // What every way reads of one at the least: beside it values that are kept, which not every way reads, keep nothing out of the cache.
    let bytes = b.codes().len() + b.scales().len() + b.block_scales().len();
    let count = (2 * handle.device().l2_bytes).div_ceil(bytes.max(1)).clamp(2, MOST_COPIES);
    let copy = |_| {
        let mut copy = QuantMatrix::from_host(handle, &host)?;
        copy.repack(handle, b.code_order())?;
        if let KeptWeights::Dequantized(dtype) = b.kept() {
            copy.keep_dequantized(handle, dtype)?;
        }
        Ok(copy)
    };
    (0..count).map(copy).collect()
}

/// D's rows, packed, on the host.
fn read_output(handle: &Handle, args: &mut GemmArgs<'_>) -> Result<Vec<u8>> {
    let size = args.d.dtype().bytes();
    let (rows, row_bytes, stride) = (args.d.rows(), args.d.cols() * size, args.d.row_stride() * size);
    let order = handle.queue().order();
    let d = args.d.data_mut().at(&order)?;
    handle.read_rows(&d, rows, row_bytes, stride)
}
