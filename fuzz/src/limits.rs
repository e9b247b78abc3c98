//! Limits of one case: a second of this process, and memory by what was read.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Longest a case may take, with instrumented code. libFuzzer's own limit is of the wall clock, and for what never ends.
const LONGEST: Duration = Duration::from_secs(1);

/// Counts what is allocated now, and the most since [`Limits::begin`].
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

fn more(bytes: usize) {
    MOST.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new may be there at once.
        more(size);
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

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
