//! What one mutant may use: a second, and memory by what was read. Counts what the thread of the test asks for: others run beside it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Longest that all of it may take.
const LONGEST: Duration = Duration::from_secs(1);

/// The system's allocator, and how much of it each thread has in use: now, and at the most.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    // A thread that ends has no more of its own.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new may be there at once.
        add(size as isize);
        add(-(layout.size() as isize));
        // SAFETY: as the caller promised.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What it gives, and the most bytes that it had in use at once beyond those before.
pub fn memory_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    MOST.set(before);
    let result = work();
    (result, (MOST.get() - before) as usize)
}

/// What it gives. Panics if it takes longer than a second, three times: the machine does other things too.
#[track_caller]
pub fn within_a_second<T>(what: impl Fn() -> String, mut work: impl FnMut() -> T) -> T {
    let mut took = Duration::ZERO;
    for _ in 0..3 {
        let started = Instant::now();
        let result = work();
        took = started.elapsed();
        if took <= LONGEST {
            return result;
        }
    }
    panic!("{}: took {took:?}", what());
}

/// Most memory that may be in use while `bytes` of headers and indices are read: four times as much, and room for a few names.
pub fn allowed(bytes: usize) -> usize {
    4 * bytes + (64 << 10)
}

/// The bytes of a file that its first eight call its header, as far as they are there.
pub fn header_of(file: &[u8]) -> usize {
    let len = file.get(..8).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    usize::try_from(len).unwrap_or(usize::MAX).min(file.len())
}

#[test]
fn what_was_given_back_counts_too() {
    let ((), most) = memory_of(|| drop(std::hint::black_box(vec![0u8; 1 << 20])));
    assert!((1 << 20..2 << 20).contains(&most), "{most}");
    assert_eq!(header_of(&[255; 40]), 40);
}
