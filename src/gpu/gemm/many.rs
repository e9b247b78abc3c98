//! Products of one plan that do not wait for one another, in one call: dealt out to streams, of which each has scratch memory and workspace of its own.
//!
//! Every product has the plan's algorithm with as much workspace as that takes, wherever it runs, and so the same bits.

use crate::error::Result;
use crate::format::DType;
use crate::gpu::device::fork::Sides;
use crate::gpu::device::memory::Span;
use crate::gpu::gemm::call::{Call, ScratchSpans, Spans};
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::lanes::Lanes;
use crate::gpu::gemm::outline::Outline;
use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::QuantMatrix;

/// How many, on how many streams unless the rule decides, and their factors.
#[derive(Clone, Copy)]
pub(crate) struct Many {
    pub(crate) count: usize,
    pub(crate) streams: Option<usize>,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
}

/// The operands of one of them.
pub(crate) struct Member<'s> {
    pub(crate) a: Spans<'s>,
    pub(crate) b: Spans<'s>,
    pub(crate) d: Span<'s>,
    pub(crate) bias: Option<(Span<'s>, DType)>,
}

/// A plan with streams and memory for many calls.
pub(crate) struct ManyPlan<'p> {
    plan: &'p mut GemmPlan,
    lanes: Lanes,
    sides: &'p Sides,
    many: Many,
}

impl Handle {
    /// Calls `run` with the plan of these products, whose first call makes plan, streams and memory. `b`: that of one of them.
    pub(crate) fn with_many(
        &self,
        desc: &GemmDesc,
        b: &QuantMatrix,
        many: Many,
        run: impl FnOnce(ManyPlan<'_>) -> Result<()>,
    ) -> Result<()> {
        // One slot is lent at a time, and the plan's comes next.
        let mut sides = std::mem::take(&mut *self.slot::<Sides>());
        let done = self.with_plan(desc, b, |plan| {
            let lanes = Lanes::of(plan, many.count, many.streams);
            if lanes.sides() > sides.count() {
                self.refuse_first_in_capture("making streams for products that run at once")?;
                sides.reserve(self.queue(), lanes.sides())?;
            }
            self.reserve_scratch(lanes.bytes())?;
            run(ManyPlan { plan, lanes, sides: &sides, many })
        });
        *self.slot::<Sides>() = sides;
        done
    }
}

impl ManyPlan<'_> {
    /// What they compute, and in which parts; `None` where D has no elements.
    pub(crate) fn outline(&self) -> Option<Outline> {
        self.plan.candidate.as_ref().map(|candidate| *candidate.outline())
    }

    /// Makes ready what the plan reads in one more B.
    pub(crate) fn make_ready(&self, handle: &Handle, b: &QuantMatrix) -> Result<()> {
        self.plan.make_ready(handle, b)
    }

    /// Enqueues all of them. The caller holds an order in which the operands, of the plan's problem, were asked for; each D lies apart from all else. Allocates nothing, and waits for
    /// nothing. After an error some are enqueued, and what follows on the handle comes behind them all the same.
    pub(crate) fn enqueue<'s>(self, handle: &Handle, member: impl Fn(usize) -> Result<Member<'s>>) -> Result<()> {
        let Self { plan: GemmPlan { desc, candidate, .. }, lanes, sides, many } = self;
        // D has no elements.
        let Some(candidate) = candidate else { return Ok(()) };
        let outline = *candidate.outline();
        let (all, handles) = (handle.scratch(lanes.bytes())?, handle.workspace());
        let fork = sides.fork(handle.queue(), lanes.sides())?;
        for at in 0..many.count {
            let (lane, queue) = fork.turn(at);
            let [own, work] = lanes.parts(lane).map(|part| part.map(|(at, bytes)| all.slice(at, bytes)));
            let (scratch, _) = ScratchSpans::of(&outline, own.unwrap_or(all));
            let Member { a, b, d, bias } = member(at)?;
            let call = Call {
                handle,
                queue,
                desc,
                a,
                a_source: None,
                b,
                d,
                bias,
                residual: None,
                out_encode: None,
                amax: None,
                alpha: many.alpha,
                beta: many.beta,
                scratch,
                workspace: work.unwrap_or(handles),
            };
            call.check_alignments(&outline)?;
            candidate.enqueue_call(&call)?;
        }
        fork.join()
    }
}
