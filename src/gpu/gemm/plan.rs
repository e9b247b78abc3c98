//! [`GemmPlan`]: a [`GemmDesc`] made ready once, and executed many times.
//!
//! Host time (observed, one H200 machine, cuBLASLt 13.1.0, 2026-11-22, `benches/raw.rs`): a bare `cublasLtMatmul` takes 5.5 to
//! 8.9 us there, `execute` 0.5 to 0.9 us more, and 0.9 to 1.2 us more where cudarc tracks events.

use std::fmt::Write as _;

use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;

use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::available::{Facts, available};
use crate::gpu::gemm::cache::PlanState;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::pair_kind::{PairKind, pair_kind};
use crate::gpu::gemm::record::{Choice, Environment, TuneRecord};
use crate::gpu::gemm::rules;
use crate::gpu::gemm::scratch::Scratch;
use crate::gpu::gemm::steps::{Candidate, Offered, Product, Search};
use crate::gpu::gemm::sum::{ValueSource, Values};
use crate::gpu::handle::{Handle, WORKSPACE_BYTES};
use crate::gpu::kernels::KernelFamily;
use crate::gpu::lt::quirks::Version;
use crate::gpu::matrix::QuantMatrix;
use crate::gpu::matrix::derived::KeptWeights;

/// How to plan. `Default` leaves every choice to the crate.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PlanOptions {
    /// This formulation and no other.
    pub formulation: Option<Formulation>,
    /// This measured choice and no other; refused on another GPU, library version or problem.
    pub record: Option<TuneRecord>,
    /// Bytes of the handle's 32 MiB workspace that cuBLASLt's algorithms may use. 0 excludes those that split k; our own products use none.
    pub workspace_limit: usize,
    /// How many algorithms to ask cuBLASLt for, or configurations of our own product; the first good one is used, the others are what autotune tries.
    pub candidates: usize,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { formulation: None, record: None, workspace_limit: WORKSPACE_BYTES, candidates: 8 }
    }
}

impl PlanOptions {
    /// The same with this formulation and no other.
    pub fn with_formulation(self, formulation: Formulation) -> Self {
        Self { formulation: Some(formulation), ..self }
    }

    /// The same with this measured choice and no other.
    pub fn with_record(self, record: TuneRecord) -> Self {
        Self { record: Some(record), ..self }
    }

    /// The same with at most this much workspace.
    pub fn with_workspace_limit(self, bytes: usize) -> Self {
        Self { workspace_limit: bytes, ..self }
    }

    /// The same with this many algorithms.
    pub fn with_candidates(self, candidates: usize) -> Self {
        Self { candidates, ..self }
    }

    pub(crate) fn search(&self) -> Search {
        Search { candidates: self.candidates, workspace_limit: self.workspace_limit }
    }
}

/// One problem made ready on one handle: formulation, and the steps of a call with descriptors and algorithm.
///
/// Made by [`Handle::plan`]. It owns no device memory and works on its own handle only, whose scratch memory and workspace all
/// plans share, in the order of the stream.
pub struct GemmPlan {
    pub(crate) desc: GemmDesc,
    pub(crate) handle_id: u64,
    pub(crate) environment: Environment,
    pub(crate) options: PlanOptions,
    /// `None` where D has no elements.
    pub(crate) candidate: Option<Candidate>,
    /// Why this formulation, and why not each of the others.
    pub(crate) reason: String,
    pub(crate) rejected: Vec<String>,
    pub(crate) measured_us: Option<f64>,
    /// The product was run once by [`GemmPlan::prepare`].
    pub(crate) kernels_loaded: bool,
}

/// One formulation of a problem, and whether this GPU and library offer it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offer {
    /// The formulation.
    pub formulation: Formulation,
    /// Why it is not offered; `None` if it is.
    pub refusal: Option<String>,
}

impl Handle {
    /// Makes ready `D = epilogue(alpha * A Bᵀ + beta * D)`: picks formulation and algorithm, reserves scratch memory. Allocates where the handle
    /// has less, and loads kernels at their first use; waits for nothing on the stream.
    ///
    /// A measured record ([`Handle::set_tuning`]) wins; otherwise the measured choices and rules of this crate decide, and
    /// [`GemmPlan::explain`] says which and why. Slow (tens of microseconds and more), and not for graph capture.
    ///
    /// # Errors
    /// Those of [`GemmDesc::check`]; [`Error::Pair`] with all reasons if this GPU offers no way;
    /// [`Error::Unsupported`] inside graph capture; [`Error::Driver`] if there is no memory.
    pub fn plan(&self, desc: &GemmDesc) -> Result<GemmPlan> {
        self.plan_with(desc, &PlanOptions::default())
    }

    /// [`Handle::plan`] with options.
    ///
    /// # Errors
    /// As [`Handle::plan`]; [`Error::Unsupported`] if the formulation asked for is not offered; [`Error::Record`] if the
    /// record belongs elsewhere, or cuBLASLt no longer takes its algorithm.
    pub fn plan_with(&self, desc: &GemmDesc, options: &PlanOptions) -> Result<GemmPlan> {
        self.refuse_capture("planning")?;
        desc.check(&self.device().to_string())?;
        let mut plan = GemmPlan {
            desc: *desc,
            handle_id: self.id(),
            environment: self.environment(),
            options: options.clone(),
            candidate: None,
            reason: "D has no elements".to_string(),
            rejected: Vec::new(),
            measured_us: None,
            kernels_loaded: false,
        };
        if desc.is_empty() {
            return Ok(plan);
        }
        self.load_kernels_of(desc)?;
        if let Some(record) = &options.record {
            plan.take_record(self, record)?;
        } else if !plan.take_tuned(self)? {
            plan.choose(self)?;
        }
        self.reserve_scratch(plan.scratch_bytes())?;
        if let Some(family) = plan.candidate.as_ref().and_then(|candidate| candidate.product()?.kernels()) {
            self.load_kernels(&[family])?;
        }
        if self.slot::<PlanState>().is_first_time(desc) {
            tracing::info!(choice = %plan.headline(), reason = %plan.reason, "planned {desc}");
        }
        Ok(plan)
    }

    /// Loads what any way to compute the problem may run beside cuBLASLt.
    fn load_kernels_of(&self, desc: &GemmDesc) -> Result<()> {
        let operands = [desc.a.scheme(), Some(desc.b)];
        operands.into_iter().flatten().try_for_each(|scheme| self.kernels().load_casts(self.queue(), scheme))?;
        self.load_kernels(&[KernelFamily::Epilogue])
    }

    /// The formulations that this GPU and cuBLASLt offer for the problem, in the order of preference. Runs nothing, allocates on the host alone,
    /// and waits for nothing.
    ///
    /// # Errors
    /// Those of [`GemmDesc::check`]; [`Error::Pair`] with the reason for each formulation if there is none;
    /// [`Error::Unsupported`] inside graph capture.
    pub fn supports(&self, desc: &GemmDesc) -> Result<Vec<Formulation>> {
        let offers = self.offers(desc)?;
        let offered: Vec<Formulation> = offers.iter().filter(|o| o.refusal.is_none()).map(|o| o.formulation).collect();
        if offered.is_empty() {
            let reason = |o: &Offer| format!("{}: {}", o.formulation, o.refusal.as_deref().unwrap_or_default());
            return Err(self.no_way(desc, &offers.iter().map(reason).collect::<Vec<_>>()));
        }
        Ok(offered)
    }

    /// Every formulation, in the order of preference, with the reason where it is not offered. Runs nothing, allocates on the host alone,
    /// and waits for nothing.
    ///
    /// # Errors
    /// Those of [`GemmDesc::check`]; [`Error::Unsupported`] inside graph capture.
    pub fn offers(&self, desc: &GemmDesc) -> Result<Vec<Offer>> {
        self.refuse_capture("asking what is supported")?;
        desc.check(&self.device().to_string())?;
        let (order, _) = rules::preference(desc, Facts::of(self));
        let ask = |formulation| {
            // An empty D needs no library; what the table says is the answer.
            let refusal = match desc.is_empty() {
                true => available(desc, Facts::of(self), formulation).err(),
                false => self.offer(desc, formulation, PlanOptions::default().search())?.err(),
            };
            Ok(Offer { formulation, refusal })
        };
        order.into_iter().map(ask).collect()
    }

    /// `D = epilogue(alpha * A Bᵀ + beta * D)`, planned at the first call for each problem and cached. Operands are as [`GemmPlan::execute`] asks.
    ///
    /// A first call plans (and makes B's repeated scales where the formulation needs them): slow, and it allocates. Later
    /// ones are [`GemmPlan::execute`] after one look-up, also inside graph capture. The cache holds 64 plans, and forgets the
    /// longest unused. Waits for nothing. The first use in a process loads libraries and kernels besides: milliseconds, or up
    /// to a minute where NVRTC compiles them.
    ///
    /// # Errors
    /// Those of [`GemmArgs::desc`], [`Handle::plan`] and [`GemmPlan::execute`]; [`Error::Unsupported`] inside graph capture
    /// where something is left to be made: call it once with these operands before.
    pub fn scaled_gemm(&self, mut args: GemmArgs<'_>) -> Result<()> {
        let desc = args.desc()?;
        let mut state = self.slot::<PlanState>();
        if let Some(plan) = state.plans.get_mut(&desc) {
            plan.make_ready(self, args.b)?;
            return plan.run(self, &mut args);
        }
        drop(state);
        self.refuse_capture("the first scaled_gemm of a problem, or of one that was forgotten,")?;
        let mut plan = self.plan(&desc)?;
        plan.make_ready(self, args.b)?;
        plan.run(self, &mut args)?;
        self.slot::<PlanState>().plans.put(desc, plan);
        Ok(())
    }

    /// The best finish of one formulation, or why there is none.
    pub(crate) fn offer(
        &self,
        desc: &GemmDesc,
        formulation: Formulation,
        search: Search,
    ) -> Result<Offered<Candidate>> {
        if let Err(reason) = available(desc, Facts::of(self), formulation) {
            return Ok(Err(reason));
        }
        let mut reasons = Vec::new();
        for finish in Finish::ALL {
            match Candidate::ask(self, desc, formulation, finish, search)? {
                Ok(mut candidate) => {
                    candidate.passed_over = reasons;
                    return Ok(Ok(candidate));
                }
                Err(reason) => reasons.push(format!("{finish}: {reason}")),
            }
        }
        Ok(Err(reasons.join("; ")))
    }

    /// Where plans of this handle are made.
    pub(crate) fn environment(&self) -> Environment {
        let device = self.device();
        Environment {
            gpu: device.name.clone(),
            compute_capability: device.compute_capability,
            sm_count: device.sm_count,
            cublaslt: self.lt().version().raw(),
            driver: device.driver,
        }
    }

    fn no_way(&self, desc: &GemmDesc, rejected: &[String]) -> Error {
        let cc = self.device().compute_capability;
        let remedy = match pair_kind(desc) {
            _ if desc.batch_invariant => {
                "quantize both operands to FP8 in schemes that sm90 serves and multiply on an sm_90, or do not ask for batch_invariant"
            }
            PairKind::Fp8(..) if cc < (8, 9) => {
                "multiply on the CPU (reference::scaled_gemm), or on a GPU of sm_89 or newer"
            }
            PairKind::Fp8(ScaleLayout::Vec128 | ScaleLayout::Blk128, _) => {
                "quantize by row or tensor, which runs on sm_89 and up, or take cuBLASLt 12.9.1 or newer on sm_90"
            }
            PairKind::Block(_) | PairKind::Mxfp4 | PairKind::WeightOnly if cc < (8, 0) => {
                "multiply on the CPU (reference::scaled_gemm), or on a GPU of sm_80 or newer"
            }
            PairKind::WeightOnlyFp8 => {
                "quantize A, of fp8-1x128 and fp8-128x128 weights as fp8-1x128, of others as they are; or multiply at most 64 rows of it at a time on an sm_90"
            }
            _ => "try a newer cuBLASLt, another shape or a plainer epilogue",
        };
        Error::Pair {
            a: desc.a,
            b: desc.b,
            device: self.device().to_string(),
            reason: format!("no way to compute {desc}: {}", rejected.join("; ")),
            remedy: remedy.to_string(),
        }
    }
}

/// Loads the kernels of a candidate's product. The error, if this process cannot have them: then other ways will do where none was asked for.
fn cannot_load(handle: &Handle, candidate: &Candidate) -> Result<Option<Error>> {
    let Some(family) = candidate.product().and_then(|product| product.kernels()) else { return Ok(None) };
    match handle.load_kernels(&[family]) {
        Ok(()) => Ok(None),
        Err(error @ (Error::Kernel { .. } | Error::Library { .. })) => Ok(Some(error)),
        Err(other) => Err(other),
    }
}

impl GemmPlan {
    /// Takes the choice of a record, or refuses it.
    fn take_record(&mut self, handle: &Handle, record: &TuneRecord) -> Result<()> {
        record.check(&self.environment, &self.desc)?;
        if let Some(asked) = self.options.formulation.filter(|f| *f != record.formulation()) {
            return Err(Error::Record {
                reason: format!("formulation is {} in the record and {asked} was asked for", record.formulation()),
                remedy: "give the record or the formulation, not both".to_string(),
            });
        }
        let choice = (record.formulation(), record.finish(), record.algorithm());
        match Candidate::recorded(handle, &self.desc, choice, self.options.search())? {
            Ok(candidate) => self.candidate = Some(candidate),
            Err(reason) => {
                return Err(Error::Record {
                    reason: format!("{} with {}: {reason}", record.formulation(), record.algorithm()),
                    remedy: "measure again here: GemmPlan::autotune, or `scaled-gemm tune`".to_string(),
                });
            }
        }
        self.measured_us = record.measured_us();
        self.reason = match record.measured_us() {
            Some(us) => format!("a record says so, measured at {us:.1} us"),
            None => "a record says so".to_string(),
        };
        Ok(())
    }

    /// Takes the choice of the handle's tuning table, if it has one that still works. Never silent: it is logged.
    fn take_tuned(&mut self, handle: &Handle) -> Result<bool> {
        let found = handle.slot::<PlanState>().tuning.find(&self.environment, &self.desc).cloned();
        let Some(record) = found.filter(|r| self.options.formulation.is_none_or(|f| f == r.formulation())) else {
            return Ok(false);
        };
        let reason = match self.take_record(handle, &record) {
            Ok(()) => match self.candidate.as_ref().map_or(Ok(None), |candidate| cannot_load(handle, candidate))? {
                None => return Ok(true),
                Some(error) => error.to_string(),
            },
            Err(Error::Record { reason, .. }) => reason,
            Err(other) => return Err(other),
        };
        (self.candidate, self.measured_us) = (None, None);
        tracing::warn!(%reason, "tuning record passed over for {}", self.desc);
        self.rejected.push(format!("tuning record: {reason}"));
        Ok(false)
    }

    /// Tries formulations in the order of the rules; the first that is offered wins.
    fn choose(&mut self, handle: &Handle) -> Result<()> {
        let search = self.options.search();
        if let Some(asked) = self.options.formulation {
            match handle.offer(&self.desc, asked, search)? {
                Ok(candidate) => self.candidate = Some(candidate),
                Err(reason) => {
                    return Err(Error::unsupported(
                        format!("formulation {asked} for {} on {}", self.desc, handle.device()),
                        reason,
                        "leave the choice to plan, or ask Handle::supports",
                    ));
                }
            }
            self.reason = "it was asked for".to_string();
            let others = Formulation::ALL.into_iter().filter(|f| *f != asked);
            self.rejected.extend(others.map(|f| format!("{f}: {asked} was asked for")));
            return Ok(());
        }
        let (order, mut why) = rules::preference(&self.desc, Facts::of(handle));
        let mut not_loaded = None;
        for (place, formulation) in order.into_iter().enumerate() {
            if let Some(chosen) = &self.candidate {
                let chosen = chosen.outline().formulation;
                let reason = match available(&self.desc, Facts::of(handle), formulation) {
                    Ok(()) => format!("{chosen} comes first: {why}"),
                    Err(reason) => reason,
                };
                self.rejected.push(format!("{formulation}: {reason}"));
                continue;
            }
            match handle.offer(&self.desc, formulation, search)? {
                Ok(candidate) => {
                    if let Some(error) = cannot_load(handle, &candidate)? {
                        tracing::warn!(%error, "{formulation} passed over for {}", self.desc);
                        self.rejected.push(format!("{formulation}: {error}"));
                        not_loaded.get_or_insert(error);
                        continue;
                    }
                    self.candidate = Some(candidate);
                    // What the rules said, they said of the first.
                    if place > 0 {
                        why =
                            "what usually comes before it is not offered, or its kernels cannot be loaded".to_string();
                    }
                }
                Err(reason) => self.rejected.push(format!("{formulation}: {reason}")),
            }
        }
        if self.candidate.is_none() {
            return Err(not_loaded.unwrap_or_else(|| handle.no_way(&self.desc, &self.rejected)));
        }
        self.reason = why.to_string();
        Ok(())
    }

    /// The problem.
    pub fn desc(&self) -> &GemmDesc {
        &self.desc
    }

    /// The formulation in use; `Native` where D has no elements.
    pub fn formulation(&self) -> Formulation {
        self.candidate.as_ref().map_or(Formulation::Native, |c| c.outline().formulation)
    }

    /// How the formulation in use ends; `Fused` where D has no elements.
    pub fn finish(&self) -> Finish {
        self.candidate.as_ref().map_or(Finish::Fused, |c| c.outline().finish)
    }

    /// Bytes of the handle's scratch memory that a call uses ([`Handle::scratch_bytes`]).
    pub fn scratch_bytes(&self) -> usize {
        self.candidate.as_ref().map_or(0, Candidate::scratch_bytes)
    }

    /// Device bytes that a call uses beside its operands: scratch, and its part of the handle's workspace.
    pub fn workspace_bytes(&self) -> usize {
        let product = self.candidate.as_ref().and_then(Candidate::product);
        self.scratch_bytes() + product.map_or(0, Product::workspace_bytes)
    }

    /// Bytes of the second scale buffer that the formulation needs in B; 0 where it needs none.
    pub fn repeated_scale_bytes(&self) -> usize {
        match self.candidate.as_ref().map(|c| c.outline().formulation) {
            Some(Formulation::RepeatedScales) => QuantMatrix::repeated_len(self.desc.n, self.desc.k) * 4,
            _ => 0,
        }
    }

    /// `D = epilogue(alpha * A Bᵀ + beta * D)`: A `m x k`, B `n x k`, D `m x n` row-major.
    ///
    /// Operands are those of [`GemmPlan::desc`], 16-byte aligned; D's old value is read only with `accumulate`. What follows the sum, and in what
    /// order, says [`Epilogue`](crate::Epilogue). D must lie apart from all that is read: borrows see to that, but of memory that is passed by its address
    /// an A that the call quantizes and the residual are looked at, as far as their rows reach, and a D that overlaps is refused.
    ///
    /// Enqueued on the handle's stream: allocates nothing, asks no heuristic, waits for nothing, logs nothing; safe inside
    /// graph capture, which keeps the addresses, alpha and beta it saw.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not as planned, or D overlaps one of these; [`Error::Alignment`]; [`Error::Unsupported`] on another handle or
    /// for a B that [`GemmPlan::prepare`] has not seen; [`Error::Cublas`] or [`Error::Driver`] if a launch fails.
    pub fn execute(&mut self, handle: &Handle, mut args: GemmArgs<'_>) -> Result<()> {
        let desc = args.desc()?;
        self.check(handle, &desc)?;
        self.run(handle, &mut args)
    }

    /// Refuses another handle or problem.
    pub(crate) fn check(&self, handle: &Handle, desc: &GemmDesc) -> Result<()> {
        handle.check_own(self.handle_id, "executing a plan")?;
        match self.desc == *desc {
            true => Ok(()),
            false => Err(Error::shape(
                "operands",
                self.desc.difference(desc).unwrap_or_default(),
                "must be as in GemmPlan::desc",
                "make a plan for this problem, or call Handle::scaled_gemm",
            )),
        }
    }

    /// Enqueues a call whose arguments were checked.
    pub(crate) fn run(&mut self, handle: &Handle, args: &mut GemmArgs<'_>) -> Result<()> {
        match &mut self.candidate {
            Some(candidate) => candidate.enqueue(handle, &self.desc, args),
            // D has no elements; its amax is 0.
            None => match &mut args.amax {
                Some(amax) => {
                    let stream = handle.queue();
                    handle.kernels().zero(stream, &amax.at(&stream.order())?, 4)
                }
                None => Ok(()),
            },
        }
    }

    /// The choice in a few words.
    fn headline(&self) -> String {
        match &self.candidate {
            None => "nothing to do".to_string(),
            Some(c) => format!("{}, {}", c.outline().formulation, c.outline().finish),
        }
    }

    /// What was chosen, from what, and why; what it costs in memory; and why the others were not taken.
    pub fn explain(&self) -> String {
        let Environment { gpu, compute_capability: (major, minor), cublaslt, .. } = &self.environment;
        let version = Version::from_raw(*cublaslt);
        let mut text = format!("{} on {gpu} (sm_{major}{minor}), cuBLASLt {version}\n", self.desc);
        // Writing to a String cannot fail.
        let mut line = |words: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "  {words}");
        };
        line(format_args!("{}: {}", self.headline(), self.reason));
        if let Some(candidate) = &self.candidate {
            let outline = candidate.outline();
            if let Some(product) = candidate.product() {
                line(format_args!("algorithm: {}", product.describe()));
                line(format_args!(
                    "memory: {} bytes of scratch, shared by the handle's plans, {} of its {WORKSPACE_BYTES} bytes of workspace, \
                     {} bytes of repeated scales in each B",
                    self.scratch_bytes(),
                    product.workspace_bytes(),
                    self.repeated_scale_bytes(),
                ));
            }
            if let Some(quantize) = self.desc.quantize_a {
                let Scratch { codes, scales, .. } = outline.scratch;
                line(format_args!(
                    "A quantized in each call ({quantize}), in scratch: {codes} bytes of codes, {scales} of scales"
                ));
            }
            if let Some(Values { dtype, b: ValueSource::Codes, .. }) = outline.sum.values {
                if outline.scratch.a > 0 {
                    line(format_args!(
                        "A dequantized to {dtype} in each call, in scratch: {} bytes",
                        outline.scratch.a
                    ));
                }
                if self.desc.kept != KeptWeights::Nothing {
                    line(format_args!(
                        "B's codes are read, not the values that it keeps (QuantMatrix::forget_dequantized frees them)"
                    ));
                }
            } else if let Some(Values { dtype, .. }) = outline.sum.values {
                let Scratch { a, b, .. } = outline.scratch;
                line(format_args!("dequantized to {dtype} in each call, in scratch: {a} bytes of A, {b} bytes of B"));
                match self.desc.kept {
                    KeptWeights::Dequantized(kept) if kept != dtype => line(format_args!(
                        "the {kept} values that B keeps are of no use: keep {dtype} (QuantMatrix::keep_dequantized)"
                    )),
                    KeptWeights::Dequantized(_) => line(format_args!("B's own {dtype} values are used")),
                    KeptWeights::Nothing => {}
                }
            }
            if outline.sum.rows != self.desc.m {
                line(format_args!("m = {} is computed as {} rows", self.desc.m, outline.sum.rows));
            }
            for reason in &candidate.passed_over {
                line(format_args!("finish not taken: {reason}"));
            }
        }
        if let Some(us) = self.measured_us {
            line(format_args!("measured: {us:.2} us"));
        }
        for rejected in &self.rejected {
            line(format_args!("not taken: {rejected}"));
        }
        text
    }

    /// The choice as a record for [`PlanOptions::record`] or a [`TuneTable`](crate::gpu::gemm::record::table::TuneTable).
    ///
    /// With a time only after [`GemmPlan::autotune`]. `None` where D has no elements.
    pub fn record(&self) -> Option<TuneRecord> {
        let candidate = self.candidate.as_ref()?;
        let product = candidate.product()?;
        let choice = Choice {
            formulation: candidate.outline().formulation,
            finish: candidate.outline().finish,
            algorithm: product.algorithm(),
            workspace_bytes: product.workspace_bytes(),
            measured_us: self.measured_us,
        };
        Some(TuneRecord::new(self.environment.clone(), &self.desc, choice))
    }
}
