//! Events.

use std::time::Instant;

use super::capture::Captured;
use super::codes::*;
use super::op::Op;
use super::queue::Ticket;
use super::state::{Handle, State, call, call_in_context};
use super::stream::resolve;

/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// `CU_EVENT_WAIT_EXTERNAL` and `CU_EVENT_RECORD_EXTERNAL`: a node of the graph, which the emulator has not.
const EXTERNAL: u32 = 1;

/// An event.
pub struct Event {
    timing: bool,
    last: Last,
    records: u64,
}

/// How it was recorded last.
#[derive(Clone)]
enum Last {
    Never,
    /// When the stream came there, if it has.
    Plain(Ticket, Option<Instant>),
    Captured(Captured),
}

impl State {
    fn event(&mut self, event: Handle) -> Outcome<&mut Event> {
        self.events.get_mut(&event).ok_or(INVALID_HANDLE)
    }

    /// Records an event on a stream.
    pub fn record_event(&mut self, event: Handle, stream: Handle) -> Outcome {
        self.event(event)?;
        self.stream(stream)?;
        self.refuse_implicit(stream)?;
        let id = self.stream(stream)?.capture;
        let captured = self.capture_of(stream)?.and_then(|capture| capture.members.get(&stream).cloned());
        let last = match (id, captured) {
            (Some(capture), Some(after)) => Last::Captured(Captured { capture, after }),
            _ if self.tails(stream).is_empty() => Last::Plain(self.tail(stream), Some(Instant::now())),
            _ => {
                let records = self.event(event)?.records + 1;
                self.push(stream, Op::Reach(event, records))?;
                Last::Plain(self.tail(stream), None)
            }
        };
        let event = self.event(event)?;
        event.records += 1;
        event.last = last;
        Ok(())
    }

    /// A stream has come to where an event was recorded, unless it was recorded again.
    pub fn reach(&mut self, event: Handle, record: u64) {
        if let Some(event) = self.events.get_mut(&event).filter(|event| event.records == record)
            && let Last::Plain(_, time) = &mut event.last
        {
            *time = Some(Instant::now());
        }
    }

    /// Lets a stream go on behind an event. An event that was never recorded is waited for by nobody.
    pub fn wait_event(&mut self, stream: Handle, event: Handle) -> Outcome {
        let last = self.event(event)?.last.clone();
        self.stream(stream)?;
        match last {
            Last::Never => self.capture_of(stream).map(drop),
            Last::Captured(captured) => self.join_capture(stream, &captured),
            Last::Plain(ticket, _) => {
                self.refuse_implicit(stream)?;
                self.refuse_captured(stream, CAPTURE_ISOLATION)?;
                if self.is_done(ticket) { Ok(()) } else { self.push(stream, Op::Wait(ticket)) }
            }
        }
    }

    /// When it was recorded: `None` where it never was, or its stream is not there yet. That of a capture breaks it.
    fn ticket(&mut self, event: Handle) -> Outcome<Option<Ticket>> {
        match self.event(event)?.last.clone() {
            Last::Never => Ok(None),
            Last::Plain(ticket, _) => Ok(Some(ticket)),
            Last::Captured(captured) => Err(self.break_captures(&[captured.capture], CAPTURED_EVENT)),
        }
    }

    fn time(&mut self, event: Handle) -> Outcome<Instant> {
        match self.event(event)? {
            Event { timing: false, .. } | Event { last: Last::Never, .. } => Err(INVALID_HANDLE),
            Event { last: Last::Plain(_, time), .. } => time.ok_or(NOT_READY),
            Event { last: Last::Captured(_), .. } => Err(CAPTURED_EVENT),
        }
    }
}

/// `cuEventCreate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut Handle, flags: u32) -> Code {
    call_in_context(|turn| {
        let handle = turn.new_handle();
        turn.events.insert(handle, Event { timing: flags & NO_TIMING == 0, last: Last::Never, records: 0 });
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(event, handle) }
    })
}

/// `cuEventDestroy_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: Handle) -> Code {
    call(|turn| turn.events.remove(&event).map(drop).ok_or(INVALID_HANDLE))
}

/// `cuEventRecord`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Code {
    call(|turn| turn.record_event(event, resolve(stream)?))
}

/// `cuEventRecordWithFlags`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: u32) -> Code {
    if flags & EXTERNAL != 0 {
        return NOT_SUPPORTED;
    }
    call(|turn| turn.record_event(event, resolve(stream)?))
}

/// `cuStreamWaitEvent`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) -> Code {
    if flags & EXTERNAL != 0 {
        return NOT_SUPPORTED;
    }
    call(|turn| turn.wait_event(resolve(stream)?, event))
}

/// `cuEventQuery`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: Handle) -> Code {
    call(|turn| match turn.ticket(event)? {
        Some(ticket) if !turn.is_done(ticket) => Err(NOT_READY),
        _ => Ok(()),
    })
}

/// `cuEventSynchronize`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: Handle) -> Code {
    call(|turn| match turn.ticket(event)? {
        Some(ticket) => turn.wait_until(|state| state.is_done(ticket)),
        None => Ok(()),
    })
}

/// `cuEventElapsedTime`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> Code {
    call(|turn| {
        let (start, end) = (turn.time(start)?, turn.time(end)?);
        let forwards = end.saturating_duration_since(start).as_secs_f64();
        let backwards = start.saturating_duration_since(end).as_secs_f64();
        // SAFETY: the caller's, as CUDA documents.
        unsafe { put(milliseconds, ((forwards - backwards) * 1e3) as f32) }
    })
}

/// `cuEventElapsedTime_v2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) -> Code {
    // SAFETY: the caller's, as CUDA documents.
    unsafe { cuEventElapsedTime(milliseconds, start, end) }
}
