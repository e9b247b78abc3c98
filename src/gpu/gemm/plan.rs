//! [`GemmPlan`]: a [`GemmDesc`] made ready once, and executed many times.
//!
//! Host time (observed, one H200 machine, cuBLASLt 13.1.0, 2026-11-22, `benches/raw.rs`): a bare `cublasLtMatmul` takes 5.5 to
//! 8.9 us there, `execute` 0.5 to 0.9 us more, and 0.9 to 1.2 us more where cudarc tracks events.

use crate::error::{Error, Result};

use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::cache::PlanState;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::record::{Choice, Environment, TuneRecord};
use crate::gpu::gemm::steps::{Candidate, Product, Search};
use crate::gpu::handle::{Handle, WORKSPACE_BYTES};
use crate::gpu::kernels::KernelFamily;
use crate::gpu::lt::quirks::Version;
use crate::gpu::matrix::QuantMatrix;

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
        Search { candidates: self.candidates, workspace_limit: self.workspace_limit, alpha: 1.0 }
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
            plan.take_record(self, record, desc)?;
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
        self.with_plan(&desc, args.b, |plan| plan.run(self, &mut args))
    }

    /// Calls `run` with the plan of a problem, which the first call makes, ready for this B. No slot of the handle is to be had inside.
    pub(crate) fn with_plan(
        &self,
        desc: &GemmDesc,
        b: &QuantMatrix,
        run: impl FnOnce(&mut GemmPlan) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.slot::<PlanState>();
        if let Some(plan) = state.plans.get_mut(desc) {
            plan.make_ready(self, b)?;
            return run(plan);
        }
        drop(state);
        self.refuse_first_in_capture("the first product of a problem, or of one that was forgotten,")?;
        let mut plan = self.plan(desc)?;
        plan.make_ready(self, b)?;
        run(&mut plan)?;
        self.slot::<PlanState>().plans.put(*desc, plan);
        Ok(())
    }

    /// Where plans of this handle are made.
    pub(crate) fn environment(&self) -> Environment {
        let device = self.device();
        Environment {
            gpu: device.name.clone(),
            compute_capability: device.compute_capability,
            sm_count: device.sm_count,
            cublaslt: self.lt_version().map(Version::raw),
            driver: device.driver,
        }
    }
}

impl GemmPlan {
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
    /// Operands are those of [`GemmPlan::desc`] (what arguments say of chains is disregarded), 16-byte aligned; D's old value is read only with `accumulate`. What follows the sum, and in what
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
        match self.desc == desc.with_chained(self.desc.chained) {
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
