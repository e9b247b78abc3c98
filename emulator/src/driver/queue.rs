//! Work that is late. Work is done at once, by who enqueues it; but a function of the caller's runs on a thread of its own, and what its
//! stream is given meanwhile waits in a queue, as does what other streams are given behind an event there.

use std::collections::VecDeque;

use super::codes::*;
use super::op::{HostCall, Op};
use super::state::{Handle, PROGRESS, State, Turn};
use super::stream::LEGACY;

/// What a stream has not done yet.
#[derive(Default)]
pub struct Queue {
    waiting: VecDeque<Op>,
    /// Pieces of work that were ever put into the queue, and are done.
    done: u64,
    /// The first is a function that runs now.
    calls: bool,
}

/// A place in a stream: it has been reached when so many pieces are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    stream: Handle,
    done: u64,
}

impl Queue {
    /// Nothing waits here.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Forgets what waits.
    pub fn clear(&mut self) {
        self.done += self.waiting.len() as u64;
        self.waiting.clear();
    }

    fn pop(&mut self) -> Option<Op> {
        let op = self.waiting.pop_front();
        self.done += u64::from(op.is_some());
        op
    }
}

impl State {
    /// Whether a stream has come there. One that is gone has.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.streams.get(&ticket.stream).is_none_or(|stream| stream.queue.done >= ticket.done)
    }

    /// The end of what a stream was given.
    pub fn tail(&self, stream: Handle) -> Ticket {
        let queue = self.streams.get(&stream).map(|stream| &stream.queue);
        Ticket { stream, done: queue.map_or(0, |queue| queue.done + queue.waiting.len() as u64) }
    }

    /// The ends of what the next work of a stream comes behind, of those that are late: its own, and between the legacy default
    /// stream and blocking ones the other's.
    pub fn tails(&self, stream: Handle) -> Vec<Ticket> {
        let blocking = self.streams.get(&stream).is_some_and(|stream| stream.blocking);
        let comes_first = |other: Handle, is_blocking: bool| {
            other == stream || (stream == LEGACY && is_blocking) || (blocking && other == LEGACY)
        };
        let late = self.streams.iter().filter(|(_, other)| !other.queue.is_empty());
        late.filter(|(handle, other)| comes_first(**handle, other.blocking))
            .map(|(handle, _)| self.tail(*handle))
            .collect()
    }

    /// Puts work behind what is late, though nothing may be.
    pub fn push(&mut self, stream: Handle, op: Op) -> Outcome {
        let behind: Vec<_> = self.tails(stream).into_iter().filter(|tail| tail.stream != stream).collect();
        let queue = &mut self.stream(stream)?.queue;
        queue.waiting.extend(behind.into_iter().map(Op::Wait));
        queue.waiting.push_back(op);
        self.advance();
        Ok(())
    }

    /// Gives work to a stream: it is recorded, done, or put behind what is late.
    pub fn submit(&mut self, stream: Handle, op: Op) -> Outcome {
        self.stream(stream)?;
        self.refuse_implicit(stream)?;
        let Some(op) = self.record_op(stream, op)? else { return Ok(()) };
        match op {
            Op::Host(_) => self.push(stream, op),
            op if self.tails(stream).is_empty() => self.run(&op),
            op => {
                self.check(&op)?;
                self.push(stream, op)
            }
        }
    }

    /// Does what no longer waits for anything.
    pub fn advance(&mut self) {
        let mut moved = true;
        while moved {
            moved = false;
            for stream in self.streams.keys().copied().collect::<Vec<_>>() {
                while self.step(stream) {
                    moved = true;
                }
            }
        }
        self.streams.retain(|_, stream| !stream.destroyed || !stream.queue.is_empty());
        PROGRESS.notify_all();
    }

    /// Does the first of what waits on a stream, if it can be done.
    fn step(&mut self, stream: Handle) -> bool {
        let queue = self.streams.get(&stream).map(|stream| &stream.queue);
        let Some(op) = queue.and_then(|queue| queue.waiting.front()).cloned() else { return false };
        match op {
            Op::Wait(ticket) if !self.is_done(ticket) => return false,
            Op::Host(call) => {
                let queue = self.streams.get_mut(&stream).map(|stream| &mut stream.queue);
                if queue.is_some_and(|queue| !std::mem::replace(&mut queue.calls, true)) {
                    std::thread::spawn(move || Self::call_on_thread(stream, call));
                }
                return false;
            }
            op => {
                if let Err(error) = self.run(&op) {
                    // Its caller has gone on: a later call says it.
                    self.fail(error);
                }
            }
        }
        self.streams.get_mut(&stream).is_some_and(|stream| stream.queue.pop().is_some())
    }

    /// Calls without the lock, and then goes on.
    fn call_on_thread(stream: Handle, call: HostCall) {
        call.run();
        let mut turn = Turn::take();
        if let Some(stream) = turn.streams.get_mut(&stream)
            && std::mem::take(&mut stream.queue.calls)
        {
            stream.queue.pop();
        }
        turn.advance();
    }
}
