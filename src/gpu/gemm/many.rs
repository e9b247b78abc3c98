//! Products of one plan that do not wait for one another, in one call: dealt out to streams, of which each has scratch memory and workspace of its own.
//!
//! Every product has the plan's algorithm with as much workspace as that takes, wherever it runs, and so the same bits.

use crate::error::{Error, Result};
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
    /// Bytes of scratch memory beside what the products need.
    pub(crate) beside: usize,
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
        self.with_sides(|sides| {
            self.with_plan(desc, b, |plan| {
                let lanes = self.reserve_lanes(plan, many, sides)?;
                run(ManyPlan { plan, lanes, sides, many })
            })
        })
    }

    /// The same by a plan of the caller's, after [`Handle::reserve_many`] of it: makes nothing.
    pub(crate) fn with_many_of(
        &self,
        plan: &mut GemmPlan,
        many: Many,
        run: impl FnOnce(ManyPlan<'_>) -> Result<()>,
    ) -> Result<()> {
        let lanes = Lanes::of(plan, many.count, many.streams);
        self.with_sides(|sides| {
            check_sides(&lanes, sides.count())?;
            run(ManyPlan { plan, lanes, sides, many })
        })
    }

    /// Makes streams and memory for these products.
    pub(crate) fn reserve_many(&self, plan: &GemmPlan, many: Many) -> Result<()> {
        self.with_sides(|sides| self.reserve_lanes(plan, many, sides).map(drop))
    }

    /// Lends the streams beside the handle's: one slot is lent at a time, and the plan's comes next.
    fn with_sides<T>(&self, then: impl FnOnce(&mut Sides) -> T) -> T {
        let mut sides = std::mem::take(&mut *self.slot::<Sides>());
        let done = then(&mut sides);
        *self.slot::<Sides>() = sides;
        done
    }

    fn reserve_lanes(&self, plan: &GemmPlan, many: Many, sides: &mut Sides) -> Result<Lanes> {
        let lanes = Lanes::of(plan, many.count, many.streams);
        if lanes.sides() > sides.count() {
            let (needed, there) = (lanes.sides(), sides.count());
            self.refuse_first_in_capture(&format!(
                "making streams for products that run at once ({needed} beside the handle's; there are {there})"
            ))?;
            sides.reserve(self.queue(), lanes.sides())?;
        }
        self.reserve_scratch(many.scratch_bytes(&lanes))?;
        Ok(lanes)
    }
}

/// Refuses fewer streams than a plan made: a [fork](Sides::fork) would take those that are there, and nobody would see it but by the time it takes.
fn check_sides(lanes: &Lanes, there: usize) -> Result<()> {
    if lanes.sides() <= there {
        return Ok(());
    }
    Err(Error::unsupported(
        format!("planned products on {} streams beside the handle's", lanes.sides()),
        format!("there are {there}"),
        "this is a bug of scaled-gemm: please report it",
    ))
}

impl Many {
    /// Of all together.
    pub(crate) fn scratch_bytes(&self, lanes: &Lanes) -> usize {
        if self.beside > 0 { lanes.bytes_before() + self.beside } else { lanes.bytes() }
    }
}

impl ManyPlan<'_> {
    /// What they compute, and in which parts; `None` where D has no elements.
    pub(crate) fn outline(&self) -> Option<Outline> {
        self.plan.candidate.as_ref().map(|candidate| *candidate.outline())
    }

    /// The scratch memory beside what the products need.
    pub(crate) fn beside<'h>(&self, handle: &'h Handle) -> Result<Span<'h>> {
        let Many { beside, .. } = self.many;
        let all = handle.scratch(self.many.scratch_bytes(&self.lanes))?;
        Ok(all.slice(all.bytes - beside, beside))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Recipe, Scheme};
    use crate::gpu::device::graph::CapturedGraph;
    use crate::gpu::device::memory::{DeviceBuffer, raw};
    use crate::reference::{self, Noise};

    const COUNT: usize = 6;
    const SIZE: usize = 128;
    const UNTOUCHED: f32 = 77.0;

    /// A handle, or why the test is skipped.
    fn gpu() -> Option<Handle> {
        match Handle::new(0).and_then(|handle| handle.lt().map(drop).map(|()| handle)) {
            Ok(handle) => Some(handle),
            Err(error @ (Error::NoGpu { .. } | Error::Library { .. })) => {
                let required = std::env::var("SCALED_GEMM_REQUIRE_GPU").is_ok_and(|v| v == "1");
                assert!(!required, "SCALED_GEMM_REQUIRE_GPU=1 and {error}");
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// What is urgent on the handle's stream is as urgent beside it.
    #[test]
    fn further_streams_have_the_priority_of_the_handles() {
        let Some(first) = gpu() else { return };
        let context = first.stream().context();
        for priority in [0, -1] {
            let handle = Handle::from_stream(context.new_stream_with_priority(priority).unwrap()).unwrap();
            let mut sides = Sides::default();
            sides.reserve(handle.queue(), 2).unwrap();
            let found: Vec<_> = sides.streams().map(|stream| raw::priority(stream).unwrap()).collect();
            assert_eq!(found, [priority; 2]);
        }
        // The default stream is asked in a thread that no context is bound to.
        let (handle, mut sides) = (Handle::from_stream(context.default_stream()).unwrap(), Sides::default());
        sides.reserve(handle.queue(), 1).unwrap();
        std::thread::spawn(move || sides.reserve(handle.queue(), 2)).join().unwrap().unwrap();
    }

    #[test]
    fn a_planned_call_has_all_its_streams() {
        let lanes = |streams| Lanes::new(COUNT, Some(streams), 1.0, [0, 0]);
        for (streams, there) in [(1, 0), (1, 7), (3, 2), (3, 7)] {
            check_sides(&lanes(streams), there).unwrap();
        }
        for (streams, there) in [(2, 0), (3, 1)] {
            let error = check_sides(&lanes(streams), there).unwrap_err().to_string();
            let words = [&format!("{} streams beside", streams - 1), &format!("there are {there}"), "is a bug of"];
            assert!(words.iter().all(|word| error.contains(*word)), "{error}");
        }
    }

    /// By a plan of the caller's: first without streams, then with them.
    #[test]
    fn a_plan_without_its_streams_is_refused() {
        let Some(handle) = gpu() else { return };
        let plan = handle.plan(&GemmDesc::new(SIZE, SIZE, SIZE, Scheme::Nvfp4, Scheme::Nvfp4, DType::F32));
        let mut plan = plan.unwrap();
        let many = |streams| Many { count: COUNT, streams: Some(streams), alpha: 1.0, beta: 0.0, beside: 0 };
        let mut ran = |many| handle.with_many_of(&mut plan, many, |_| Ok(()));
        ran(many(1)).unwrap();
        let error = ran(many(3)).unwrap_err().to_string();
        assert!(error.contains("2 streams beside the handle's") && error.contains("there are 0"), "{error}");
        let plan = handle.plan(&GemmDesc::new(SIZE, SIZE, SIZE, Scheme::Nvfp4, Scheme::Nvfp4, DType::F32)).unwrap();
        handle.reserve_many(&plan, many(3)).unwrap();
        ran(many(3)).unwrap();
    }

    /// Captures until no other thread's test has broken it.
    fn captured(handle: &Handle, mut enqueue: impl FnMut() -> Result<()>) -> Result<CapturedGraph> {
        for _ in 0..4 {
            match handle.capture(&mut enqueue) {
                Err(Error::Driver { reason, .. }) if reason.contains("STREAM_CAPTURE_INVALIDATED") => {}
                done => return done,
            }
        }
        handle.capture(enqueue)
    }

    /// On several streams, one of the products of which fails before it is enqueued: those before it are there, streams are joined, in a capture too, and the next call is whole.
    #[test]
    fn a_failure_in_the_middle_leaves_all_streams_joined() {
        let Some(handle) = gpu() else { return };
        let desc = GemmDesc::new(SIZE, SIZE, SIZE, Scheme::Nvfp4, Scheme::Nvfp4, DType::F32);
        let mut rng = Noise::new(61);
        let [a, b] = [(); 2].map(|()| {
            let x = rng.matrix(SIZE, SIZE, DType::Bf16);
            let host = reference::quantize(x.view(), DType::Bf16, Recipe::new(Scheme::Nvfp4)).unwrap();
            QuantMatrix::from_host(&handle, &host).unwrap()
        });
        let mut d = handle.alloc(COUNT * SIZE * SIZE * 4).unwrap();
        let run = |d: &mut DeviceBuffer, fails: Option<usize>, streams: usize| {
            let many = Many { count: COUNT, streams: Some(streams), alpha: 1.0, beta: 0.0, beside: 0 };
            handle.with_many(&desc, &b, many, |plan| {
                let outline = plan.outline().expect("D has elements");
                let mut view = d.view_mut();
                let order = handle.queue().order();
                let (a, b) = (Spans::of_codes(&a, &order)?, Spans::of_b(&b, &outline, &order)?);
                let d = view.at(&order)?;
                let bytes = SIZE * SIZE * 4;
                plan.enqueue(&handle, |g| match fails == Some(g) {
                    true => Err(Error::shape("this one", "a test", "fails", "go on")),
                    false => Ok(Member { a, b, d: d.slice(g * bytes, bytes), bias: None }),
                })
            })
        };
        run(&mut d, None, 1).unwrap();
        let want: Vec<f32> = handle.read(&d.view()).unwrap();
        assert!(want.iter().any(|v| *v != 0.0) && want[..SIZE * SIZE] == want[(COUNT - 1) * SIZE * SIZE..]);
        let reset = |d: &mut DeviceBuffer| {
            handle.write(&mut d.view_mut(), &vec![UNTOUCHED; want.len()]).unwrap();
        };
        for streams in [2, 3, 4, 8] {
            for fails in [1, 2, 4, 5] {
                let what = format!("{streams} streams, number {fails} fails");
                let check = |d: &DeviceBuffer, whole: usize, what: &str| {
                    let (found, upto) = (handle.read::<f32>(&d.view()).unwrap(), whole * SIZE * SIZE);
                    assert!(found[..upto] == want[..upto], "{what}: those before it");
                    assert!(found[upto..].iter().all(|v| *v == UNTOUCHED), "{what}: those from it on");
                };
                reset(&mut d);
                let error = run(&mut d, Some(fails), streams).unwrap_err().to_string();
                assert!(error.contains("this one"), "{error}");
                check(&d, fails, &what);
                reset(&mut d);
                run(&mut d, None, streams).unwrap();
                check(&d, COUNT, &format!("{what}, the next"));
                // The capture goes on: a stream that is not joined would break it.
                let graph = captured(&handle, || {
                    run(&mut d, Some(fails), streams).unwrap_err();
                    Ok(())
                });
                reset(&mut d);
                handle.launch(&graph.unwrap()).unwrap();
                check(&d, fails, &format!("{what}, captured"));
                // The capture ends with the error, and the stream takes another.
                let error = captured(&handle, || run(&mut d, Some(fails), streams)).map(drop).unwrap_err().to_string();
                assert!(error.contains("this one"), "{error}");
                let graph = captured(&handle, || run(&mut d, None, streams)).unwrap();
                reset(&mut d);
                handle.launch(&graph).unwrap();
                check(&d, COUNT, &format!("{what}, captured next"));
            }
        }
        handle.synchronize().unwrap();
    }
}
