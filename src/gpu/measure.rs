//! Timing on the device: the one method of benches, examples, program and autotune.
//!
//! A figure is the time of a captured graph of many calls, by events on the GPU, divided by the calls: launch gaps as in an
//! engine that replays graphs, host time left out. Competitors take turns, launch by launch, so that a clock that drifts
//! meets all of them. Cold operands are the caller's business: call `i` takes set `i % sets` of buffers (A, B and D alike,
//! the same for every competitor) that together exceed the L2 cache ([`DeviceInfo::l2_bytes`](super::DeviceInfo)).
//!
//! The cadence decides (observed, H200, 2026-11): a product of some hundred microseconds is 10 to 18 % slower back to back,
//! at the power limit, than with pauses. Compare within one [`Cadence`] only.

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent_flags_enum::CU_EVENT_DEFAULT;
use cudarc::driver::{CudaEvent, CudaSlice};

use crate::error::{Error, Result};
use crate::gpu::device::graph::CapturedGraph;
use crate::gpu::device::libraries;
use crate::gpu::device::memory::{BorrowsOutliveGraph, driver};
use crate::gpu::handle::{Handle, Private};
use crate::gpu::lt;
use crate::reference::quantile;

/// How launches follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cadence {
    /// One launch at a time, then a pause four times as long: the GPU stays below its power limit.
    Pauses,
    /// Launches back to back, as the layers of a model follow one another: large products run at the power limit.
    Sustained,
}

named!(Cadence, "cadence", Pauses => "pauses", Sustained => "sustained");

/// How to time. Start from [`Timing::PAUSES`] or [`Timing::SUSTAINED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How launches follow one another.
    pub cadence: Cadence,
    /// Calls in one graph, at least; more where they take less than 0.3 ms together, so that the host stays ahead.
    pub calls: usize,
    /// Timed launches of each competitor's graph.
    pub launches: usize,
    /// One call a graph, and the L2 cache overwritten before each: for operands of which there is only one set. What was
    /// overwritten is written back while the call runs, some microseconds that are the same for every competitor.
    pub flush: bool,
    /// How long untimed turns go on first.
    warm_up: Duration,
    /// What is timed borrows cudarc slices ([`Timing::borrowing`]).
    borrows: bool,
    /// From this competitor on, graphs are captured in a scope of [`Handle::chain`].
    chained_from: usize,
}

/// Untimed turns at the start: an idle GPU takes this long to raise its clocks (14 % slower without them, observed: H200).
const WARM_UP: Duration = Duration::from_millis(100);
/// The shortest graph that is timed: a launch takes the host some ten microseconds.
const SHORTEST_US: f64 = 300.0;
/// Calls in one graph at the most.
const MOST_CALLS: usize = 1024;
/// The shortest pause.
const PAUSE: Duration = Duration::from_millis(2);

impl Timing {
    /// Graphs of four calls, eleven launches with a pause after each.
    pub const PAUSES: Self = Self {
        cadence: Cadence::Pauses,
        calls: 4,
        launches: 11,
        flush: false,
        warm_up: WARM_UP,
        borrows: false,
        chained_from: usize::MAX,
    };
    /// Graphs of 24 calls, 15 launches back to back.
    pub const SUSTAINED: Self = Self { cadence: Cadence::Sustained, calls: 24, launches: 15, ..Self::PAUSES };

    /// The method of this cadence.
    pub const fn of(cadence: Cadence) -> Self {
        match cadence {
            Cadence::Pauses => Self::PAUSES,
            Cadence::Sustained => Self::SUSTAINED,
        }
    }

    /// The same with whole rounds over `sets` sets of buffers in a graph.
    pub fn over(self, sets: usize) -> Self {
        Self { calls: self.calls.max(sets).next_multiple_of(sets.max(1)), ..self }
    }

    /// The same with this many launches.
    pub const fn with_launches(self, launches: usize) -> Self {
        Self { launches, ..self }
    }

    /// The same with this many calls in a graph, at least.
    pub const fn with_calls(self, calls: usize) -> Self {
        Self { calls, ..self }
    }

    /// The same with untimed turns for this long first: less where the GPU comes from work of the same kind.
    pub const fn with_warm_up(self, warm_up: Duration) -> Self {
        Self { warm_up, ..self }
    }

    /// The same with one call a graph, and the L2 cache overwritten before each.
    pub const fn flushed(self) -> Self {
        Self { flush: true, ..self }
    }

    /// The same with the calls of these competitors, from this number on, as links of chains ([`Handle::chain`]).
    pub const fn chained_from(self, competitor: usize) -> Self {
        Self { chained_from: competitor, ..self }
    }

    /// The same for calls that use cudarc slices or bare addresses too, which must stay alive and at their places until
    /// [`Timing::in_turns`] returns: graphs of the calls are launched, and they cannot own such memory.
    pub const fn borrowing(self, _: BorrowsOutliveGraph) -> Self {
        self.borrowing_from_caller()
    }

    /// The same where the caller holds the borrows of all operands itself.
    pub(crate) const fn borrowing_from_caller(self) -> Self {
        Self { borrows: true, ..self }
    }

    /// The times of one call; `enqueue(i)` puts call `i` on the handle's stream.
    ///
    /// # Errors
    /// As [`Timing::in_turns`].
    pub fn time(&self, handle: &Handle, mut enqueue: impl FnMut(usize) -> Result<()>) -> Result<Times> {
        let mut times = self.in_turns(handle, 1, |_, call| enqueue(call))?;
        times.pop().ok_or_else(|| Error::Driver { call: "timing".into(), reason: "nothing was timed".into() })
    }

    /// The times of one call of each competitor; `enqueue(who, i)` puts call `i` of competitor `who` on the stream.
    ///
    /// Captures a graph for each, warms up for 100 ms ([`Timing::with_warm_up`]), then launches the graphs in turns. Allocates and waits: when it
    /// returns, with an error too, no work of it is left, so what `enqueue` borrows may go. Operands lie in this crate's memory, or
    /// else [`Timing::borrowing`] has the caller's promise.
    ///
    /// # Errors
    /// What `enqueue` returns; those of `Handle::capture`.
    pub fn in_turns(
        &self,
        handle: &Handle,
        competitors: usize,
        mut enqueue: impl FnMut(usize, usize) -> Result<()>,
    ) -> Result<Vec<Times>> {
        handle.refuse_capture("timing work")?;
        let times = self.take_turns(handle, competitors, &mut enqueue);
        handle.synchronize()?;
        times
    }

    fn take_turns(
        &self,
        handle: &Handle,
        competitors: usize,
        enqueue: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Vec<Times>> {
        let lead = Lead::new(handle, self.flush)?;
        let runners: Vec<Runner> = (0..competitors)
            .map(|who| self.runner(handle, &lead, who >= self.chained_from, &mut |call| enqueue(who, call)))
            .collect::<Result<_>>()?;
        let warm_up = Instant::now();
        while warm_up.elapsed() < self.warm_up && !runners.is_empty() {
            self.turn(handle, &lead, &runners)?;
            handle.synchronize()?;
        }
        // From here on the host waits for nothing in the sustained cadence: the GPU finds the next launch when it ends one.
        lead.run(handle)?;
        let turns = (0..self.launches.max(1)).map(|_| self.turn(handle, &lead, &runners));
        let turns: Vec<Vec<Launch>> = turns.collect::<Result<_>>()?;
        let mut times = vec![Vec::with_capacity(turns.len()); competitors];
        for turn in turns {
            for ((launch, runner), times) in turn.iter().zip(&runners).zip(&mut times) {
                times.push(launch.microseconds()? / runner.calls as f64);
            }
        }
        Ok(times.into_iter().map(Times::new).collect())
    }

    /// A graph that is long enough. The first calls come before the capture: they load their kernels.
    fn runner(
        &self,
        handle: &Handle,
        lead: &Lead,
        chained: bool,
        enqueue: &mut dyn FnMut(usize) -> Result<()>,
    ) -> Result<Runner> {
        let calls = if self.flush { 1 } else { self.calls.max(1) };
        (0..calls.min(3)).try_for_each(&mut *enqueue)?;
        let mut graph_of = |calls: usize| {
            capture(handle, self.borrows, &mut || {
                let mut all = || (0..calls).try_for_each(&mut *enqueue);
                if chained { handle.chain(all) } else { all() }
            })
        };
        let graph = graph_of(calls)?;
        let runner = Runner { graph, calls };
        runner.launch(handle, lead)?.microseconds()?;
        let us = runner.launch(handle, lead)?.microseconds()?;
        let rounds = ((SHORTEST_US / us).ceil() as usize).min(MOST_CALLS / calls);
        if self.flush || rounds < 2 {
            return Ok(runner);
        }
        Ok(Runner { graph: graph_of(rounds * calls)?, calls: rounds * calls })
    }

    /// One launch of each.
    fn turn(&self, handle: &Handle, lead: &Lead, runners: &[Runner]) -> Result<Vec<Launch>> {
        let launch = |runner: &Runner| match self.cadence {
            Cadence::Pauses => {
                let launch = runner.launch(handle, lead)?;
                let us = launch.microseconds()?;
                sleep(PAUSE.max(Duration::from_secs_f64(4e-6 * us)));
                Ok(launch)
            }
            Cadence::Sustained if self.flush => runner.launch(handle, lead),
            Cadence::Sustained => runner.launch_next(handle),
        };
        runners.iter().map(launch).collect()
    }
}

/// How often a broken capture is begun again.
const CAPTURES: u32 = 10;

/// Captures what `enqueue` does.
///
/// Another thread that loads a kernel meanwhile may break a capture (status 13 of cuBLASLt; observed: H200, driver 580). Here
/// nothing is lost by beginning again.
fn capture(handle: &Handle, borrows: bool, enqueue: &mut dyn FnMut() -> Result<()>) -> Result<CapturedGraph> {
    let mut attempt = 1;
    loop {
        match handle.queue().capture(borrows, &mut *enqueue) {
            Err(error @ (Error::Cublas { .. } | Error::Driver { .. })) if attempt < CAPTURES => {
                tracing::debug!(%error, "a capture is begun again");
                // Kernels take milliseconds to load, and one that is loaded is often followed by others.
                sleep(Duration::from_millis(1 << attempt.min(5)));
                attempt += 1;
            }
            captured => return captured,
        }
    }
}

/// A competitor's graph.
struct Runner {
    graph: CapturedGraph,
    calls: usize,
}

impl Runner {
    /// A launch behind whatever is in the stream.
    fn launch_next(&self, handle: &Handle) -> Result<Launch> {
        handle.queue().launch_with(&self.graph, |launch| {
            let start = event(handle)?;
            launch()?;
            Ok(Launch { start, end: event(handle)? })
        })
    }

    /// A launch that is enqueued while the GPU is busy with something else.
    fn launch(&self, handle: &Handle, lead: &Lead) -> Result<Launch> {
        lead.run(handle)?;
        self.launch_next(handle)
    }
}

/// A launch between two events.
struct Launch {
    start: CudaEvent,
    end: CudaEvent,
}

impl Launch {
    /// Waits for its end.
    fn microseconds(&self) -> Result<f64> {
        let milliseconds = self.start.elapsed_ms(&self.end).map_err(|e| driver("reading the time", e))?;
        Ok(f64::from(milliseconds) * 1e3)
    }
}

/// An event recorded now.
fn event(handle: &Handle) -> Result<CudaEvent> {
    libraries::timing_available(lt::keep_loaded)?;
    let event = handle.stream().context().new_event(Some(CU_EVENT_DEFAULT));
    let event = event.map_err(|e| driver("creating an event", e))?;
    event.record(handle.stream()).map_err(|e| driver("recording an event", e))?;
    Ok(event)
}

/// Work before a timed launch. It keeps the GPU busy while the host enqueues the launch: on an idle GPU the first event
/// would be over before the launch arrives, and the host's time would count.
enum Lead {
    /// Small writes one after the other: the L2 cache stays as it is.
    Busy { graph: CapturedGraph, _memory: Private },
    /// One that overwrites the L2 cache twice over.
    Flush(Private),
}

impl Lead {
    const SMALL_BYTES: usize = 1 << 16;
    const SMALL_WRITES: usize = 48;

    fn new(handle: &Handle, flush: bool) -> Result<Self> {
        let bytes = if flush { handle.device().l2_bytes.max(1 << 24) * 2 } else { Self::SMALL_BYTES };
        let memory = Private::zeros(handle.queue(), bytes)?;
        if flush {
            return Ok(Self::Flush(memory));
        }
        let graph =
            capture(handle, false, &mut || (0..Self::SMALL_WRITES).try_for_each(|_| overwrite(handle, &memory)))?;
        Ok(Self::Busy { graph, _memory: memory })
    }

    fn run(&self, handle: &Handle) -> Result<()> {
        match self {
            Self::Busy { graph, .. } => handle.launch(graph),
            Self::Flush(memory) => overwrite(handle, memory),
        }
    }
}

fn overwrite(handle: &Handle, memory: &Private) -> Result<()> {
    handle.kernels().zero(handle.queue(), &memory.span(), memory.bytes())
}

/// The microseconds that one call took, launch by launch.
#[derive(Debug, Clone, PartialEq)]
pub struct Times(Vec<f64>);

impl Times {
    /// Of at least one launch.
    fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// What a quarter, a half and three quarters of the launches did not exceed; between two of them the mean.
    pub fn quartiles(&self) -> [f64; 3] {
        [1, 2, 3].map(|quarter| quantile(&self.0, [quarter, 4]).unwrap_or(f64::NAN))
    }

    /// The time that counts.
    pub fn median(&self) -> f64 {
        self.quartiles()[1]
    }
}

impl fmt::Display for Times {
    /// The median, and the quartiles in brackets: `12.31 (12.28-12.40)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [low, median, high] = self.quartiles();
        write!(f, "{median:.2} ({low:.2}-{high:.2})")
    }
}

/// Copies one device buffer to another of the same length: the roof that bandwidth is compared with. Enqueues only.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ.
pub fn copy(handle: &Handle, from: &CudaSlice<u8>, to: &mut CudaSlice<u8>) -> Result<()> {
    let stream = handle.queue();
    let (source, mut target) = (super::DeviceBytes::from(from), super::DeviceBytesMut::from(to));
    let order = stream.order();
    let (bytes, source, target) = (source.len(), source.at(&order)?, target.at(&order)?);
    handle.kernels().copy_2d(stream, &source, bytes, &target, bytes, 1, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_sorted_times() {
        let times = Times::new(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!((times.quartiles(), times.median()), ([2.0, 3.0, 4.0], 3.0));
        assert_eq!(times.to_string(), "3.00 (2.00-4.00)");
        assert_eq!(Times::new(vec![7.0]).quartiles(), [7.0; 3]);
        // (Of an even number it was the upper of the two in the middle.)
        assert_eq!(Times::new(vec![4.0, 1.0, 3.0, 2.0]).quartiles(), [1.5, 2.5, 3.5]);
    }

    #[test]
    fn a_graph_holds_whole_rounds_over_the_sets() {
        let calls = |sets| Timing::SUSTAINED.over(sets).calls;
        assert_eq!([0, 1, 2, 5, 24, 25, 64].map(calls), [24, 24, 24, 25, 24, 25, 64]);
        assert_eq!(Timing::PAUSES.over(3).calls, 6);
        for cadence in Cadence::ALL {
            assert_eq!(Timing::of(cadence).cadence, cadence);
        }
    }
}
