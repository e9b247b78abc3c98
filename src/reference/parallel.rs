//! Spreads independent work over all cores, by rayon. What is not worth it stays on the caller's, and makes no threads.

use rayon::prelude::*;

/// Work below this many simple operations is not worth another core.
const GRAIN: usize = 1 << 16;

/// Calls `work(i, &mut data[i * len..][..len])` for every piece of `len` elements, on several cores if there is enough.
///
/// `cost` says how many simple operations an element takes.
pub(super) fn for_each_piece<T: Send>(data: &mut [T], len: usize, cost: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    if data.is_empty() || len == 0 {
        return;
    }
    let pieces = GRAIN.div_ceil(len.saturating_mul(cost).max(1));
    if data.len().div_ceil(len) <= pieces {
        return data.chunks_mut(len).enumerate().for_each(|(i, piece)| work(i, piece));
    }
    let all = data.par_chunks_mut(len).with_min_len(pieces).enumerate();
    all.for_each(|(i, piece)| work(i, piece));
}

/// The same for the pieces of two slices, which must have equally many: `work(i, piece of a, piece of b)`.
///
/// `cost` says how many simple operations an element of `a` takes.
pub(super) fn for_each_pair<A: Send, B: Send>(
    (a, a_len): (&mut [A], usize),
    (b, b_len): (&mut [B], usize),
    cost: usize,
    work: impl Fn(usize, &mut [A], &mut [B]) + Sync,
) {
    if a.is_empty() || a_len == 0 || b_len == 0 {
        return;
    }
    let pieces = GRAIN.div_ceil(a_len.saturating_mul(cost).max(1));
    if a.len().div_ceil(a_len) <= pieces {
        return a.chunks_mut(a_len).zip(b.chunks_mut(b_len)).enumerate().for_each(|(i, (a, b))| work(i, a, b));
    }
    let all = a.par_chunks_mut(a_len).zip(b.par_chunks_mut(b_len)).with_min_len(pieces).enumerate();
    all.for_each(|(i, (a, b))| work(i, a, b));
}

/// Calls `work(task)` for every task below `tasks`, uneven ones too; `elements` is the size of all the work.
pub(super) fn for_each_task(tasks: usize, elements: usize, work: impl Fn(usize) + Send + Sync) {
    if elements <= GRAIN {
        return (0..tasks).for_each(work);
    }
    (0..tasks).into_par_iter().with_max_len(1).for_each(work);
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
