//! [`Fork`]: one call's work on several streams. Each begins behind all that the queue has, and what the queue goes on with begins behind all of them.
//!
//! Events alone order them, which a capture turns into edges of its graph, whoever captures. Uses of memory are the queue's: its
//! [`Order`](super::stream::Order) holds them from before the fork until behind the join, so that what waits for the queue waits for all.

use cudarc::driver::CudaEvent;

use super::memory::raw::is_capturing;
use super::memory::{driver, with_kept_error_aside};
use super::stream::Queue;
use crate::error::Result;

/// Streams beside a queue's own.
#[derive(Default)]
pub(crate) struct Sides {
    sides: Vec<Side>,
    /// Where the queue was at the last fork.
    begun: Option<CudaEvent>,
}

struct Side {
    queue: Queue,
    /// Where it was at the last join.
    ended: CudaEvent,
}

impl Sides {
    pub(crate) fn count(&self) -> usize {
        self.sides.len()
    }

    #[cfg(test)]
    pub(crate) fn streams(&self) -> impl Iterator<Item = &cudarc::driver::CudaStream> {
        self.sides.iter().map(|side| &*side.queue.stream)
    }

    /// Makes them at least so many, beside this queue. Not while it is captured.
    pub(crate) fn reserve(&mut self, queue: &Queue, count: usize) -> Result<()> {
        let event = || queue.context().new_event(None).map_err(|e| driver("creating an event", e));
        if count > 0 && self.begun.is_none() {
            self.begun = Some(event()?);
        }
        while self.sides.len() < count {
            self.sides.push(Side { queue: queue.beside()?, ended: event()? });
        }
        Ok(())
    }

    /// Lets `count` of these streams, all where there are fewer, begin behind what the queue has. Allocates nothing, and waits for nothing. Where it fails, or what is enqueued
    /// after it, the streams are joined nevertheless: a capture with one that is not would be broken.
    pub(crate) fn fork<'f>(&'f self, queue: &'f Queue, count: usize) -> Result<Fork<'f>> {
        let mut fork = Fork { queue, sides: &self.sides[..0] };
        let Some(begun) = self.begun.as_ref().filter(|_| count > 0) else { return Ok(fork) };
        // What waits for the event comes behind a link of a chain, too.
        queue.settle()?;
        begun.record(&queue.stream).map_err(|e| driver("recording an event", e))?;
        for (at, side) in self.sides.iter().take(count).enumerate() {
            side.queue.stream.wait(begun).map_err(|e| driver("forking a stream", e))?;
            fork.sides = &self.sides[..=at];
        }
        Ok(fork)
    }
}

/// Streams that have been forked, and are joined when this is dropped at the latest.
pub(crate) struct Fork<'f> {
    queue: &'f Queue,
    sides: &'f [Side],
}

impl Fork<'_> {
    /// Where part `at` of the work goes: parts are dealt out in turns, beginning with the queue itself. With the number of its stream, 0 for the queue's.
    pub(crate) fn turn(&self, at: usize) -> (usize, &Queue) {
        let lane = at % (self.sides.len() + 1);
        (lane, lane.checked_sub(1).map_or(self.queue, |side| &self.sides[side].queue))
    }

    /// The queue goes on when all have ended.
    pub(crate) fn join(mut self) -> Result<()> {
        self.join_all()
    }

    /// All of them, also where one fails: says the first failure.
    fn join_all(&mut self) -> Result<()> {
        let sides = std::mem::take(&mut self.sides);
        if sides.is_empty() {
            return Ok(());
        }
        with_kept_error_aside(self.queue.context(), || {
            let mut joined = Ok(());
            for side in sides {
                let one = side.join(self.queue);
                joined = joined.and(one);
            }
            joined
        })
    }
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.join_all() {
            tracing::error!(%error, "a stream is not joined");
        }
    }
}

impl Side {
    fn join(&self, queue: &Queue) -> Result<()> {
        let Self { queue: own, ended } = self;
        let joined = own.settle().and_then(|()| {
            ended.record(&own.stream).map_err(|e| driver("recording an event", e))?;
            queue.stream.wait(ended).map_err(|e| driver("joining a stream", e))
        });
        // Nobody else could wait for its work, whose memory may be freed next. A failure that is the driver's to tell, nobody can do more about.
        if joined.is_err() && !is_capturing(&own.stream) {
            let _ = own.stream.synchronize();
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_can_move_to_another_thread() {
        fn send<T: Send>() {}
        send::<Sides>();
    }
}
