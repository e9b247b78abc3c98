//! Spreads independent work over all cores with scoped threads.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Work below this many elements is not worth a thread.
const GRAIN: usize = 1 << 16;

fn threads(elements: usize, pieces: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    cores.min(elements.div_ceil(GRAIN)).min(pieces).max(1)
}

/// Calls `work(i, &mut data[i * len..][..len])` for every piece of `len` elements, on several cores if there is enough.
///
/// `cost` says how many simple operations an element takes.
pub(super) fn for_each_piece<T: Send>(data: &mut [T], len: usize, cost: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    if data.is_empty() || len == 0 {
        return;
    }
    let pieces = data.len().div_ceil(len);
    let per_thread = pieces.div_ceil(threads(data.len().saturating_mul(cost), pieces));
    let run = |first: usize, part: &mut [T]| {
        part.chunks_mut(len).enumerate().for_each(|(i, piece)| work(first + i, piece));
    };
    if per_thread == pieces {
        return run(0, data);
    }
    thread::scope(|scope| {
        for (t, part) in data.chunks_mut(per_thread * len).enumerate() {
            let run = &run;
            scope.spawn(move || run(t * per_thread, part));
        }
    });
}

/// Calls `work(task)` for every task below `tasks`; cores take tasks one by one, so uneven ones balance.
///
/// `elements` is the size of all the work, to decide how many cores are worth it.
pub(super) fn for_each_task(tasks: usize, elements: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            work(task);
        }
    };
    let threads = threads(elements, tasks);
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_piece_and_task_is_done_once() {
        for len in [1usize, 7, 1000] {
            let mut data = vec![0u32; 200_001];
            for_each_piece(&mut data, len, 1, |i, piece| piece.iter_mut().for_each(|v| *v += 1 + i as u32));
            assert!(data.iter().enumerate().all(|(at, v)| *v == 1 + (at / len) as u32));
        }
        let done = Mutex::new(vec![0; 100]);
        for_each_task(100, usize::MAX / 2, |t| done.lock().unwrap()[t] += 1);
        assert_eq!(done.into_inner().unwrap(), vec![1; 100]);
        for_each_task(0, 0, |_| unreachable!());
        for_each_piece(&mut [0u8; 0], 0, 1, |_, _| unreachable!());
    }
}
