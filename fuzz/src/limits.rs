//! Limits of one case: a second of this process, and memory by what was read.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::allocations::{MOST, NOW};

/// Longest a case may take, with instrumented code. libFuzzer's own limit is of the wall clock, and for what never ends.
const LONGEST: Duration = Duration::from_secs(1);

/// What one step of a case may use.
pub struct Limits {
    memory: usize,
    started: Duration,
}

impl Limits {
    pub fn begin() -> Self {
        let memory = NOW.load(Relaxed);
        MOST.store(memory, Relaxed);
        Self { memory, started: cpu_time() }
    }

    /// Panics if more than `bytes` were in use at once, or more than a second was.
    pub fn check(&self, what: &str, bytes: usize) {
        let used = MOST.load(Relaxed).saturating_sub(self.memory);
        assert!(used <= bytes, "{what}: {used} bytes in use at once, of {bytes} allowed");
        let took = cpu_time() - self.started;
        assert!(took <= LONGEST, "{what}: took {took:?}");
    }
}

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
