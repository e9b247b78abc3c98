//! [`GemmPlan::autotune`]: every formulation, finish and algorithm that is offered, validated and then timed.

use cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;

use crate::error::{Error, Result};
use crate::format::DType;

use crate::gpu::device::memory::driver;
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::desc::Accumulation;
use crate::gpu::gemm::formulation::{self, Facts, Finish, Formulation};
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::record::TuneRecord;
use crate::gpu::gemm::steps::{Candidate, Search};
use crate::gpu::handle::{Handle, Private};

/// What the L2 cache holds when a repetition begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheState {
    /// Nothing of the operands: a buffer of twice the cache's size is overwritten before each repetition. This is how a
    /// layer finds its weights when other layers ran in between.
    #[default]
    Cold,
    /// What the repetition before left there. The caller may rotate operands between calls of autotune.
    Warm,
}

/// How to measure.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TuneOptions {
    /// Algorithms to try for each formulation and finish.
    pub candidates: usize,
    /// Timed repetitions of each; the median counts.
    pub repetitions: usize,
    /// Untimed repetitions before them: the first call of a kernel loads it.
    pub warmup: usize,
    /// Whether operands come from memory or from the L2 cache.
    pub cache: CacheState,
    /// A later candidate wins only if it is faster by more than this part: near-ties flip from run to run.
    pub tie: f64,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self { candidates: 8, repetitions: 15, warmup: 2, cache: CacheState::Cold, tie: 0.03 }
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
}

/// What became of one candidate.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// Right, and this fast: median microseconds.
    Timed(f64),
    /// Its output differs from the first candidate's: what was found.
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
    /// Every candidate, in the order of preference; the first is what `plan` would take.
    pub trials: Vec<Trial>,
    /// Place of the winner in `trials`.
    pub winner: usize,
    /// The winner as a record.
    pub record: TuneRecord,
}

impl GemmPlan {
    /// Tries every formulation, finish and algorithm on these operands, and makes the fastest right one this plan's choice.
    ///
    /// Every candidate's D is compared with the first one's before it is timed; a candidate that differs or fails is dropped
    /// and reported. The operands should be typical data: timings depend on them. D's content is lost (with `accumulate`, old
    /// values are taken as zero). Slow: allocates, copies D to the host for each candidate, and waits.
    ///
    /// # Errors
    /// [`Error::Shape`] if the operands are not as planned; [`Error::Unsupported`] inside graph capture, where D has no
    /// elements, or if no candidate works; [`Error::Driver`]. The plan keeps its old choice then.
    pub fn autotune(&mut self, handle: &Handle, mut args: GemmArgs<'_>, options: &TuneOptions) -> Result<TuneReport> {
        handle.refuse_capture("autotuning")?;
        let desc = args.desc()?;
        self.check(handle, &desc)?;
        let search = Search { candidates: options.candidates, ..self.options.search() };
        let mut candidates = self.candidates(handle, search)?;
        let flush = Flush::new(handle, options.cache)?;
        let mut trials: Vec<Trial> = Vec::new();
        let mut first: Option<Vec<u8>> = None;
        let mut best: Option<(f64, usize, usize, usize)> = None;
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
                let verdict = self.attempt(handle, candidate, &mut args, &mut first, &flush, options)?;
                if let Verdict::Timed(us) = verdict {
                    // The first of near-equals stays.
                    if best.is_none_or(|(fastest, ..)| us < fastest * (1.0 - options.tie)) {
                        best = Some((us, i, algorithm, trials.len()));
                    }
                }
                trials.push(trial(candidate, verdict));
            }
        }
        let Some((us, place, algorithm, winner)) = best else {
            let reasons: Vec<String> = trials.iter().map(Trial::to_string).collect();
            return Err(Error::unsupported(
                format!("autotuning {desc}"),
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
        tracing::info!(%us, winner = %trials[winner], "tuned {desc}");
        Ok(TuneReport { trials, winner, record })
    }

    /// All candidates, the one that the rules prefer first.
    fn candidates(&self, handle: &Handle, search: Search) -> Result<Vec<Candidate>> {
        if self.desc.is_empty() {
            return Err(nothing_to_tune(self));
        }
        let (mut order, _) = formulation::preference(&self.desc, Facts::of(handle));
        if let Some(asked) = self.options.formulation {
            order.retain(|f| *f == asked);
        }
        let mut candidates = Vec::new();
        for formulation in order {
            if formulation::available(&self.desc, Facts::of(handle), formulation).is_err() {
                continue;
            }
            for finish in Finish::ALL {
                candidates.extend(Candidate::ask(handle, &self.desc, formulation, finish, search)?.ok());
            }
        }
        Ok(candidates)
    }

    /// Runs a candidate once, compares, and times it. Only errors that concern every candidate are returned as such.
    fn attempt(
        &self,
        handle: &Handle,
        candidate: &mut Candidate,
        args: &mut GemmArgs<'_>,
        first: &mut Option<Vec<u8>>,
        flush: &Flush,
        options: &TuneOptions,
    ) -> Result<Verdict> {
        clear_output(handle, args)?;
        let ran = candidate.enqueue(handle, &self.desc, args).and_then(|()| handle.synchronize());
        if let Err(error) = ran {
            return Ok(Verdict::Failed(error.to_string()));
        }
        let found = read_output(handle, args)?;
        match first {
            None => *first = Some(found),
            Some(first) => {
                let (dtype, cols) = (self.desc.out, self.desc.n);
                if let Some(difference) = difference(first, &found, dtype, cols, self.desc.accumulation) {
                    return Ok(Verdict::Wrong(difference));
                }
            }
        }
        for _ in 0..options.warmup {
            candidate.enqueue(handle, &self.desc, args)?;
        }
        let mut times = Vec::with_capacity(options.repetitions.max(1));
        let context = handle.stream().context();
        for _ in 0..options.repetitions.max(1) {
            // The flush keeps the GPU busy while the host enqueues the rest, so that launch time is not measured.
            flush.run(handle)?;
            let event = || context.new_event(Some(CU_EVENT_DEFAULT)).map_err(|e| driver("creating an event", e));
            let (start, end) = (event()?, event()?);
            start.record(handle.stream()).map_err(|e| driver("recording an event", e))?;
            candidate.enqueue(handle, &self.desc, args)?;
            end.record(handle.stream()).map_err(|e| driver("recording an event", e))?;
            let ms = start.elapsed_ms(&end).map_err(|e| driver("timing a candidate", e))?;
            times.push(f64::from(ms) * 1e3);
        }
        times.sort_by(f64::total_cmp);
        Ok(Verdict::Timed(times[times.len() / 2]))
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

/// Empties the L2 cache by overwriting a buffer of twice its size.
struct Flush(Private);

impl Flush {
    /// Also with warm caches there is something to overwrite: the GPU's work while the host enqueues.
    const WARM_BYTES: usize = 1 << 20;

    fn new(handle: &Handle, cache: CacheState) -> Result<Self> {
        let bytes = match cache {
            CacheState::Cold => handle.device().l2_bytes.max(1 << 24) * 2,
            CacheState::Warm => Self::WARM_BYTES,
        };
        Ok(Self(Private::zeros(handle.launch_stream(), bytes)?))
    }

    fn run(&self, handle: &Handle) -> Result<()> {
        handle.kernels().zero(handle.launch_stream(), &self.0.span(), self.0.bytes())
    }
}

/// Zeroes the rows of D: old values count as zero where D is added to, and a candidate that writes nothing is found out.
/// What lies between the rows is not D's.
fn clear_output(handle: &Handle, args: &mut GemmArgs<'_>) -> Result<()> {
    let stream = handle.launch_stream();
    let size = args.d.dtype().bytes();
    let (rows, row_bytes, stride) = (args.d.rows(), args.d.cols() * size, args.d.row_stride() * size);
    let d = args.d.data_mut().at(stream.order())?;
    handle.kernels().zero_2d(stream, &d, stride, rows, row_bytes)
}

/// D's rows, packed, on the host.
fn read_output(handle: &Handle, args: &mut GemmArgs<'_>) -> Result<Vec<u8>> {
    let size = args.d.dtype().bytes();
    let (rows, row_bytes, stride) = (args.d.rows(), args.d.cols() * size, args.d.row_stride() * size);
    let d = args.d.data_mut().at(handle.launch_stream().order())?;
    handle.read_rows(&d, rows, row_bytes, stride)
}

/// Relative distance up to which two candidates' outputs count as equal, in the 2-norm of a tile.
///
/// Derived: two orders of summation differ by a part e of the norm: 2^-10 with fast accumulation, 2^-11 otherwise (tensor
/// cores keep partial sums of sm_90 to about 2^-13; a few dozen of them add up as a random walk). Rounding to D's type,
/// steps of u, turns such a difference into a whole step with probability e / u: a norm of sqrt(e * u). Four times the sum
/// covers tiles of few elements. For E4M3, the coarsest, that is 0.048; a wrong scale order shows as 0.08 and more
/// (observed by others), a lost partial sum of a split k as 0.1 and more.
fn tolerance(out: DType, accumulation: Accumulation) -> f64 {
    let order = match accumulation {
        Accumulation::Fast => 2f64.powi(-10),
        Accumulation::Precise => 2f64.powi(-11),
    };
    let step = 2f64.powi(match out {
        DType::Bf16 => -7,
        DType::F16 => -10,
        DType::F32 => -23,
        DType::E4m3 => -3,
        DType::E5m2 => -2,
    });
    4.0 * (order + (order * step).sqrt())
}

/// Rows and columns of a tile: small enough that one wrong tile of a large D is not lost in the norm of the rest.
const TILE: usize = 64;

/// What differs between two outputs of `cols` columns, in words; `None` if they agree to [`tolerance`] tile by tile.
///
/// A tile of small values (an edge, a cancellation) is held against the mean norm of all tiles.
fn difference(want: &[u8], found: &[u8], out: DType, cols: usize, accumulation: Accumulation) -> Option<String> {
    let size = out.bytes();
    let rows = found.len() / (size * cols).max(1);
    if want.len() != found.len() {
        return Some(format!("{} bytes instead of {}", found.len(), want.len()));
    }
    let value = |bytes: &[u8], row: usize, col: usize| decode(out, &bytes[(row * cols + col) * size..]);
    let tolerance = tolerance(out, accumulation);
    let mut tiles = Vec::new();
    for row in (0..rows).step_by(TILE) {
        for col in (0..cols).step_by(TILE) {
            let (mut norm, mut distance, mut count) = (0f64, 0f64, 0usize);
            for i in row..rows.min(row + TILE) {
                for j in col..cols.min(col + TILE) {
                    let (a, b) = (value(want, i, j), value(found, i, j));
                    if a.is_finite() != b.is_finite() || a.is_nan() != b.is_nan() {
                        return Some(format!("{b} instead of {a} at row {i}, column {j}"));
                    }
                    if a.is_finite() {
                        norm += a * a;
                        distance += (a - b) * (a - b);
                        count += 1;
                    }
                }
            }
            tiles.push((row, col, norm, distance, count));
        }
    }
    let total: (f64, usize) = tiles.iter().fold((0.0, 0), |(norm, count), t| (norm + t.2, count + t.4));
    let mean = total.0 / (total.1.max(1)) as f64;
    tiles.into_iter().find_map(|(row, col, norm, distance, count)| {
        let reference = norm.max(mean * count as f64).sqrt();
        (distance.sqrt() > tolerance * reference).then(|| {
            format!(
                "relative distance {:.2e} above {tolerance:.2e} in the tile at row {row}, column {col}",
                distance.sqrt() / reference
            )
        })
    })
}

/// One element of D as f64.
fn decode(out: DType, bytes: &[u8]) -> f64 {
    match (out, bytes) {
        (DType::Bf16, [a, b, ..]) => half::bf16::from_ne_bytes([*a, *b]).to_f64(),
        (DType::F16, [a, b, ..]) => half::f16::from_ne_bytes([*a, *b]).to_f64(),
        (DType::F32, [a, b, c, d, ..]) => f64::from(f32::from_ne_bytes([*a, *b, *c, *d])),
        (DType::E4m3, [code, ..]) => float8::F8E4M3::from_bits(*code).to_f64(),
        (DType::E5m2, [code, ..]) => float8::F8E5M2::from_bits(*code).to_f64(),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(i: usize) -> f32 {
        let mut x = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66;
        x ^= x >> 29;
        x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((x >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    fn bf16(values: impl Iterator<Item = f32>) -> Vec<u8> {
        values.flat_map(|v| half::bf16::from_f32(v).to_ne_bytes()).collect()
    }

    #[test]
    fn another_order_of_summation_agrees_and_another_scale_does_not() {
        let (rows, cols) = (130, 200);
        let exact = || (0..rows * cols).map(noise);
        let want = bf16(exact());
        let close = bf16(exact().enumerate().map(|(i, v)| v + 2e-4 * noise(i + 7_777_777)));
        assert_eq!(difference(&want, &close, DType::Bf16, cols, Accumulation::Precise), None);
        // One tile of six scaled wrongly by 8 %.
        let wrong = bf16(exact().enumerate().map(|(i, v)| if i / cols >= 128 && i % cols < 64 { v * 1.08 } else { v }));
        let words = difference(&want, &wrong, DType::Bf16, cols, Accumulation::Precise).unwrap();
        assert!(words.contains("row 128, column 0"), "{words}");
        // A poisoned element that was never written.
        let mut hole = want.clone();
        hole[2 * (cols + 3)..][..2].copy_from_slice(&half::bf16::NAN.to_ne_bytes());
        let words = difference(&want, &hole, DType::Bf16, cols, Accumulation::Precise).unwrap();
        assert!(words.contains("NaN") && words.contains("row 1, column 3"), "{words}");
    }

    #[test]
    fn the_tolerance_is_tighter_for_finer_types_and_stays_below_a_wrong_layout() {
        for accumulation in [Accumulation::Precise, Accumulation::Fast] {
            let of = |out| tolerance(out, accumulation);
            assert!(of(DType::F32) < of(DType::F16) && of(DType::F16) < of(DType::Bf16));
            assert!(of(DType::Bf16) < of(DType::E4m3) && of(DType::E4m3) < 0.05, "{}", of(DType::E4m3));
        }
    }

    #[test]
    fn zeros_equal_zeros_and_nothing_else() {
        let zeros = bf16((0..64).map(|_| 0.0));
        assert_eq!(difference(&zeros, &zeros, DType::Bf16, 8, Accumulation::Precise), None);
        let one = bf16((0..64).map(|i| if i == 9 { 1e-6 } else { 0.0 }));
        assert!(difference(&zeros, &one, DType::Bf16, 8, Accumulation::Precise).is_some());
    }
}
