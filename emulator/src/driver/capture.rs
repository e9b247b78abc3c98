//! Captures: what is enqueued on some streams is recorded as the nodes of a graph, and not run.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread::ThreadId;

use super::codes::*;
use super::graph::{Graph, Node};
use super::op::Op;
use super::state::{Handle, State};
use super::stream::{LEGACY, Stream};

/// `CUstreamCaptureMode`: which calls beside a capture break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Those of any thread.
    Global,
    /// Those of the thread that began it.
    ThreadLocal,
    /// None.
    Relaxed,
}

impl Mode {
    /// By CUDA's number.
    pub fn of(number: u32) -> Outcome<Self> {
        [Self::Global, Self::ThreadLocal, Self::Relaxed].get(number as usize).copied().ok_or(INVALID_VALUE)
    }
}

thread_local! {
    /// Of the calls of this thread (`cuThreadExchangeStreamCaptureMode`).
    pub static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// A capture under way.
pub struct Capture {
    /// The stream that it was begun on, and is ended on.
    pub origin: Handle,
    /// The thread that began it.
    pub thread: ThreadId,
    /// How it was begun.
    pub mode: Mode,
    /// Nothing has broken it yet.
    pub valid: bool,
    /// What was recorded, in an order that heeds all edges.
    pub nodes: Vec<Node>,
    /// The streams that are captured, each with the nodes that its next one follows.
    pub members: BTreeMap<Handle, Vec<usize>>,
    /// Device memory that was allocated inside.
    pub allocated: Vec<u64>,
    /// Handles that were given to a caller who asked where a stream is; they stay where they are until the next question.
    pub told: Vec<Handle>,
}

impl Capture {
    /// True if nothing was recorded that the origin does not follow.
    fn is_joined(&self) -> bool {
        let mut reached = vec![false; self.nodes.len()];
        for &node in &self.members[&self.origin] {
            reached[node] = true;
        }
        // Nodes follow earlier ones alone.
        for at in (0..self.nodes.len()).rev() {
            if reached[at] {
                self.nodes[at].after.iter().for_each(|&before| reached[before] = true);
            }
        }
        reached.into_iter().all(|reached| reached)
    }
}

/// What an event that was recorded in a capture stands for.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Which.
    pub capture: Handle,
    /// The nodes that the stream's next one would have followed.
    pub after: Vec<usize>,
}

impl State {
    /// The capture that a stream is in; `Err` where that is broken.
    pub fn capture_of(&mut self, stream: Handle) -> Outcome<Option<&mut Capture>> {
        let Some(id) = self.streams.get(&stream).and_then(|stream| stream.capture) else { return Ok(None) };
        let capture = self.captures.get_mut(&id).expect("streams are released when it ends");
        if capture.valid { Ok(Some(capture)) } else { Err(CAPTURE_INVALIDATED) }
    }

    /// The captures that the legacy default stream would have to wait for.
    pub fn implicit(&self) -> Vec<Handle> {
        let blocking = self.streams.values().filter(|stream| stream.blocking);
        blocking.filter_map(|stream| stream.capture).collect()
    }

    /// Breaks captures, and gives the error back.
    pub fn break_captures(&mut self, ids: &[Handle], error: Code) -> Code {
        for id in ids {
            if let Some(capture) = self.captures.get_mut(id) {
                capture.valid = false;
            }
        }
        error
    }

    /// Breaks the capture of a stream by what it does not bear.
    pub fn refuse_captured(&mut self, stream: Handle, error: Code) -> Outcome {
        match self.streams.get(&stream).and_then(|stream| stream.capture) {
            None => Ok(()),
            Some(id) if !self.captures[&id].valid => Err(CAPTURE_INVALIDATED),
            Some(id) => Err(self.break_captures(&[id], error)),
        }
    }

    /// Use of the legacy default stream beside captures of streams that it would wait for, which breaks them.
    pub fn refuse_implicit(&mut self, stream: Handle) -> Outcome {
        let held = if stream == LEGACY { self.implicit() } else { Vec::new() };
        if held.is_empty() { Ok(()) } else { Err(self.break_captures(&held, CAPTURE_IMPLICIT)) }
    }

    /// A call that may wait for the device, beside captures that do not bear that.
    pub fn refuse_unsafe(&mut self) -> Outcome {
        let here = std::thread::current().id();
        let forbids = |capture: &Capture| {
            let own = capture.thread == here && capture.mode != Mode::Relaxed;
            match THREAD_MODE.get() {
                Mode::Global => own || capture.mode == Mode::Global,
                Mode::ThreadLocal => own,
                Mode::Relaxed => false,
            }
        };
        let broken: Vec<_> = self.captures.iter().filter(|(_, c)| c.valid && forbids(c)).map(|(id, _)| *id).collect();
        if broken.is_empty() { Ok(()) } else { Err(self.break_captures(&broken, CAPTURE_UNSUPPORTED)) }
    }

    /// Begins one on a stream that is in none.
    pub fn begin_capture(&mut self, stream: Handle, mode: Mode) -> Outcome {
        if stream == LEGACY {
            return Err(CAPTURE_UNSUPPORTED);
        }
        if self.stream(stream)?.capture.is_some() {
            return Err(ILLEGAL_STATE);
        }
        let id = self.new_handle();
        let capture = Capture {
            origin: stream,
            thread: std::thread::current().id(),
            mode,
            valid: true,
            nodes: Vec::new(),
            members: [(stream, Vec::new())].into(),
            allocated: Vec::new(),
            told: Vec::new(),
        };
        self.captures.insert(id, capture);
        self.stream(stream)?.capture = Some(id);
        Ok(())
    }

    /// Ends that which was begun on this stream.
    pub fn end_capture(&mut self, stream: Handle) -> Outcome<Graph> {
        let id = self.stream(stream)?.capture.ok_or(ILLEGAL_STATE)?;
        let capture = &self.captures[&id];
        if capture.origin != stream {
            return Err(CAPTURE_UNMATCHED);
        }
        if capture.mode != Mode::Relaxed && capture.thread != std::thread::current().id() {
            return Err(CAPTURE_WRONG_THREAD);
        }
        let capture = self.captures.remove(&id).expect("just seen");
        let members = self.streams.values_mut().filter(|stream| stream.capture == Some(id));
        members.for_each(|stream: &mut Stream| stream.capture = None);
        if !capture.valid {
            return Err(CAPTURE_INVALIDATED);
        }
        if !capture.is_joined() {
            return Err(CAPTURE_UNJOINED);
        }
        Ok(Graph { nodes: capture.nodes })
    }

    /// Records work on a stream; `None` where it is not captured, and the work is given back.
    pub fn record_op(&mut self, stream: Handle, op: Op) -> Outcome<Option<Op>> {
        let handle = self.new_handle();
        let Some(capture) = self.capture_of(stream)? else { return Ok(Some(op)) };
        let at = capture.nodes.len();
        let after = capture.members.insert(stream, vec![at]).unwrap_or_default();
        capture.nodes.push(Node { handle, op, after });
        Ok(None)
    }

    /// A stream waits for an event of a capture, and is in it from then on.
    pub fn join_capture(&mut self, stream: Handle, event: &Captured) -> Outcome {
        let own = self.stream(stream)?.capture;
        if own.is_some() {
            self.capture_of(stream)?;
        }
        let Some(theirs) = self.captures.get(&event.capture) else {
            return Err(
                self.break_captures(own.as_slice(), if own.is_some() { CAPTURE_ISOLATION } else { CAPTURED_EVENT })
            );
        };
        if !theirs.valid {
            return Err(CAPTURE_INVALIDATED);
        }
        if let Some(own) = own.filter(|own| *own != event.capture) {
            return Err(self.break_captures(&[own, event.capture], CAPTURE_MERGE));
        }
        if stream == LEGACY {
            return Err(self.break_captures(&[event.capture], CAPTURE_IMPLICIT));
        }
        self.stream(stream)?.capture = Some(event.capture);
        let capture = self.captures.get_mut(&event.capture).expect("just seen");
        let after = capture.members.entry(stream).or_default();
        for node in &event.after {
            if !after.contains(node) {
                after.push(*node);
            }
        }
        Ok(())
    }
}
