//! Parts of tensors on their way, so that none is in memory as a whole: one thread says what is to be done, some do it side by
//! side, one writes.

use std::cell::Cell;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex};
use std::thread::ScopedJoinHandle;

use scaled_gemm::checkpoint::{CastWriter, Checkpoint, CheckpointWriter, MatrixWriter, TensorInfo, TensorWriter};

use crate::coded::Coded;
use crate::output::Failure;
use crate::threads;

/// Bytes of a part that is copied.
const PART: usize = 2 << 20;
/// Bytes of the largest buffer that is kept. What is larger is a matrix that passes whole, or very wide rows: its pages are not what
/// takes long, and a pool of such would be gigabytes.
const MOST_KEPT: usize = 64 << 20;
/// How many parts larger than that are read or quantized at a time.
const LARGE: usize = 1;
/// Parts on their way from one thread to the next.
const DEPTH: usize = 2;

/// Bytes that were written, to be filled again: new ones are pages that the system first has to clear.
pub struct Buffers {
    /// Of what is read and of plain values, and of codes: each kind has its sizes.
    plain: Mutex<Vec<Vec<u8>>>,
    codes: Mutex<Vec<Vec<u8>>>,
    /// How many of a kind are kept: not more than can be on their way.
    most: usize,
}

impl Buffers {
    pub fn of_lanes(lanes: usize) -> Self {
        let most = 4 * lanes + 3;
        Self { plain: Mutex::default(), codes: Mutex::default(), most }
    }

    /// One for bytes that are read or plain values, with or without room.
    pub fn take(&self) -> Vec<u8> {
        Self::of(&self.plain)
    }

    /// One for codes.
    pub fn take_codes(&self) -> Vec<u8> {
        Self::of(&self.codes)
    }

    pub fn give(&self, buffer: Vec<u8>) {
        self.keep(&self.plain, buffer);
    }

    pub fn give_codes(&self, buffer: Vec<u8>) {
        self.keep(&self.codes, buffer);
    }

    fn of(pool: &Mutex<Vec<Vec<u8>>>) -> Vec<u8> {
        pool.lock().ok().and_then(|mut free| free.pop()).unwrap_or_default()
    }

    fn keep(&self, pool: &Mutex<Vec<Vec<u8>>>, buffer: Vec<u8>) {
        if buffer.capacity() <= MOST_KEPT
            && let Ok(mut free) = pool.lock()
            && free.len() < self.most
        {
            free.push(buffer);
        }
    }
}

/// Lets one large part through at a time, of all lanes together: whole matrices, of which each lane would hold several.
pub struct Gate {
    free: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    pub fn new() -> Self {
        Self { free: Mutex::new(LARGE), changed: Condvar::new() }
    }

    /// For a part of so many bytes: nothing where it is small; else waits until there is room. To be asked in the order of the tasks,
    /// since they are collected in it: what is waited for is then always on its way.
    pub fn pass(&self, bytes: usize) -> Option<Pass<'_>> {
        if bytes <= MOST_KEPT {
            return None;
        }
        let free = self.free.lock().ok()?;
        let mut free = self.changed.wait_while(free, |free| *free == 0).ok()?;
        *free -= 1;
        Some(Pass(self))
    }
}

/// Held by a large part, and gone with it, also where the work has failed.
pub struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Ok(mut free) = self.0.free.lock() {
            *free += 1;
        }
        self.0.changed.notify_one();
    }
}

/// Whether a thread has passed on all that it had.
pub enum Sent {
    All,
    /// Nobody was left to take it.
    NotAll,
}

/// What is written: the next rows of a quantized matrix, or the next bytes of a tensor, by the name of either.
pub enum Part<'a> {
    Rows(&'a str, Coded),
    Bytes(&'a str, Vec<u8>),
}

/// Says what is to be done, to each lane in its turn.
pub struct Turns<T> {
    lanes: Vec<SyncSender<T>>,
    next: Cell<usize>,
}

impl<T> Turns<T> {
    /// False if nobody takes it: the work has failed.
    pub fn send(&self, task: T) -> bool {
        let turn = self.next.replace((self.next.get() + 1) % self.lanes.len());
        self.lanes[turn].send(task).is_ok()
    }
}

/// Runs the work. One thread says what is to be done, `tasks`; each of `lanes` does a task at a time on a thread of its own; this
/// one, `collect`, hears of what they did in the order of the tasks and gives what is to be written, if anything, to one that
/// writes. Bytes that were written go to `buffers`. The first failure ends all, also that of a thread that cannot be made: those that were
/// made find the ends of their channels gone.
pub fn run<'a, T: Send, D: Send>(
    tasks: impl FnOnce(&Turns<T>) -> Result<Sent, Failure> + Send,
    lanes: Vec<impl FnMut(T) -> Result<D, Failure> + Send>,
    mut collect: impl FnMut(D) -> Result<Option<Part<'a>>, Failure>,
    writer: &CheckpointWriter,
    buffers: &Buffers,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let (mut turns, mut done, mut working) = (Vec::new(), Vec::new(), Vec::new());
        for mut lane in lanes {
            let (to_lane, tasks) = sync_channel::<T>(DEPTH);
            let (to_collect, results) = sync_channel(DEPTH);
            turns.push(to_lane);
            done.push(results);
            let work = move || {
                for task in tasks {
                    let result = lane(task);
                    let failed = result.is_err();
                    if to_collect.send(result).is_err() || failed {
                        break;
                    }
                }
                Ok(())
            };
            working.push(threads::spawn(scope, work)?);
        }
        let turns = Turns { lanes: turns, next: Cell::new(0) };
        let (to_write, parts) = sync_channel(DEPTH);
        let planning = threads::spawn(scope, move || tasks(&turns))?;
        let writing = threads::spawn(scope, move || write(writer, parts, buffers))?;
        let collected = collect_in_turn(&done, &mut collect, &to_write);
        // The ends of all channels go: who waits for them stops.
        drop((done, to_write));
        let worked = working.into_iter().map(joined).collect::<Result<Vec<()>, _>>();
        let (planned, wrote) = (joined(planning), joined(writing));
        collected?;
        worked?;
        // A tensor that was not read whole was not written whole either: that is no fault of the output.
        let sent = planned?;
        wrote?;
        match sent {
            Sent::All => Ok(()),
            Sent::NotAll => Err(Failure::Check("the work ended before all was read; report it".into())),
        }
    })
}

/// Ends where a lane whose turn it is has no more: then none has.
fn collect_in_turn<'a, D>(
    done: &[Receiver<Result<D, Failure>>],
    collect: &mut impl FnMut(D) -> Result<Option<Part<'a>>, Failure>,
    to_write: &SyncSender<Part<'a>>,
) -> Result<(), Failure> {
    for lane in done.iter().cycle() {
        let Ok(result) = lane.recv() else { return Ok(()) };
        if let Some(part) = collect(result?)?
            && to_write.send(part).is_err()
        {
            // The writer says why.
            return Ok(());
        }
    }
    Ok(())
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, Failure>>) -> Result<T, Failure> {
    thread.join().unwrap_or_else(|_| Err(Failure::Check("a thread of the work panicked; report it".into())))
}

/// Rows of a part of so many bytes, about: whole groups of rows of every scheme.
pub fn part_rows(part_bytes: usize, row_bytes: usize) -> usize {
    (part_bytes / row_bytes.max(1) / 128 * 128).max(128)
}

/// The parts of `rows` rows, `step` in each.
pub fn parts(rows: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows.div_ceil(step.max(1))).map(move |i| i * step..((i + 1) * step).min(rows))
}

/// Reads a tensor in parts; `send` says whether somebody takes them. An empty tensor is one part, since it is to be written.
pub fn copy(
    input: &Checkpoint,
    tensor: &TensorInfo,
    buffers: &Buffers,
    mut send: impl FnMut(Vec<u8>) -> bool,
) -> Result<Sent, Failure> {
    let mut place = 0;
    loop {
        let len = (tensor.bytes() - place).min(PART as u64);
        let mut bytes = buffers.take();
        bytes.resize(len as usize, 0);
        input.read(&tensor.name, place, &mut bytes)?;
        if !send(bytes) {
            return Ok(Sent::NotAll);
        }
        place += len;
        if place == tensor.bytes() {
            return Ok(Sent::All);
        }
    }
}

/// The tensor that is being written.
enum Open<'w> {
    Matrix(MatrixWriter<'w>),
    Cast(CastWriter<'w>),
    Tensor(TensorWriter<'w>),
}

impl Open<'_> {
    fn finish(self) -> scaled_gemm::Result<()> {
        match self {
            Self::Matrix(matrix) => matrix.finish(),
            Self::Cast(cast) => cast.finish(),
            Self::Tensor(tensor) => tensor.finish(),
        }
    }
}

fn write(writer: &CheckpointWriter, from: Receiver<Part<'_>>, buffers: &Buffers) -> Result<(), Failure> {
    let mut open: Option<(&str, Open<'_>)> = None;
    for part in from {
        let (Part::Rows(name, _) | Part::Bytes(name, _)) = part;
        if open.as_ref().is_none_or(|(which, _)| *which != name) {
            let next = match &part {
                Part::Rows(_, Coded::Quantized(_)) => Open::Matrix(writer.matrix(name)?),
                Part::Rows(_, Coded::Cast(_)) => Open::Cast(writer.cast(name)?),
                Part::Bytes(..) => Open::Tensor(writer.tensor(name)?),
            };
            if let Some((_, last)) = open.replace((name, next)) {
                last.finish()?;
            }
        }
        match (part, open.as_mut()) {
            (Part::Rows(_, Coded::Quantized(rows)), Some((_, Open::Matrix(matrix)))) => {
                matrix.append(&rows)?;
                buffers.give_codes(rows.into_parts().codes);
            }
            (Part::Rows(_, Coded::Cast(rows)), Some((_, Open::Cast(cast)))) => cast.append(&rows)?,
            (Part::Bytes(_, bytes), Some((_, Open::Tensor(tensor)))) => {
                tensor.append(&bytes)?;
                buffers.give(bytes);
            }
            _ => {}
        }
    }
    // Where the work failed a tensor is not whole, and the words of the failure count.
    Ok(open.map_or(Ok(()), |(_, last)| last.finish())?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scaled_gemm::checkpoint::{CheckpointLayout, Dtype};

    use super::*;

    const TASKS: u8 = 100;

    /// Has five lanes, of which some take longer, do a hundred tasks; each gives a byte of a tensor. What it says, and the file.
    fn work(fails: Option<u8>) -> (Result<(), Failure>, Vec<u8>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.safetensors");
        let mut layout = CheckpointLayout::new();
        layout.tensor("t", Dtype::U8, &[TASKS.into()]);
        let writer = layout.create(&path, &[]).unwrap();
        let buffers = Buffers::of_lanes(5);
        let lane = |number: u64| {
            move |task: u8| {
                std::thread::sleep(Duration::from_micros(number * 50 + u64::from(task % 7) * 30));
                match fails == Some(task) {
                    true => Err(Failure::Use(format!("task {task}"))),
                    false => Ok(vec![task]),
                }
            }
        };
        let mut heard = 0;
        let result = run(
            |to| Ok(if (0..TASKS).all(|task| to.send(task)) { Sent::All } else { Sent::NotAll }),
            (0..5).map(lane).collect(),
            |byte| {
                heard += 1;
                Ok(Some(Part::Bytes("t", byte)))
            },
            &writer,
            &buffers,
        );
        let bytes = result.as_ref().map_or_else(
            |_| Vec::new(),
            |()| {
                writer.finish().unwrap();
                Checkpoint::open(&path).unwrap().bytes("t").unwrap()
            },
        );
        (result, bytes, heard)
    }

    #[test]
    fn parts_are_written_in_the_order_of_the_tasks_whichever_lane_is_slow() {
        let (result, bytes, _) = work(None);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(bytes, (0..TASKS).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_failure_in_the_order_of_the_tasks_is_said_and_nothing_after_it_is_heard() {
        let (result, _, heard) = work(Some(37));
        assert!(matches!(&result, Err(Failure::Use(said)) if said == "task 37"), "{result:?}");
        assert_eq!(heard, 37);
    }

    /// Two lanes and a hundred tasks, all of large parts, each of which gives a byte of a tensor, `too_many` of one of ten; what is
    /// said. A hang is a failure too.
    fn said(planner_fails: bool, lane_panics: bool, too_many: bool) -> String {
        let (to_test, result) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let folder = tempfile::tempdir().unwrap();
            let mut layout = CheckpointLayout::new();
            layout.tensor("t", Dtype::U8, &[if too_many { 10 } else { TASKS.into() }]);
            let writer = layout.create(folder.path().join("out.safetensors"), &[]).unwrap();
            let gate = Gate::new();
            let pass = || gate.pass(MOST_KEPT + 1);
            let stops = |task: u8, to: &Turns<_>| (planner_fails && task == 50) || !to.send((task, pass()));
            let tasks = |to: &Turns<_>| match (0..TASKS).find(|task| stops(*task, to)) {
                Some(50) if planner_fails => Err(Failure::Use("task 50 is not there".into())),
                Some(_) => Ok(Sent::NotAll),
                None => Ok(Sent::All),
            };
            let lane = |_| {
                move |(task, pass): (u8, _)| {
                    assert!(!(lane_panics && task == 60), "as it was told to");
                    Ok((vec![task], pass))
                }
            };
            let lanes = (0..2).map(lane).collect();
            let collect = |(byte, _pass)| Ok(Some(Part::Bytes("t", byte)));
            let result = run(tasks, lanes, collect, &writer, &Buffers::of_lanes(2));
            to_test.send(result.err().map_or_else(|| "nothing".into(), Failure::into_message)).unwrap();
        });
        result.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|e| format!("it hangs: {e}"))
    }

    #[test]
    fn whoever_fails_ends_all_with_words_of_its_own() {
        assert_eq!(said(false, false, false), "nothing");
        assert_eq!(said(true, false, false), "task 50 is not there");
        assert_eq!(said(false, true, false), "a thread of the work panicked; report it");
        let words = said(false, false, true);
        assert!(words.contains("tensor t: ") && !words.contains("report it"), "{words}");
        // Whichever of two that fail is heard first.
        let words = said(true, false, true);
        assert!(words == "task 50 is not there" || words.contains("tensor t: "), "{words}");
    }

    #[test]
    fn few_large_parts_pass_at_a_time() {
        let gate = Gate::new();
        let held: Vec<_> = (0..LARGE).map(|_| gate.pass(MOST_KEPT + 1)).collect();
        assert!(held.iter().all(Option::is_some) && gate.pass(MOST_KEPT).is_none());
        std::thread::scope(|scope| {
            let (to_test, passed) = sync_channel(1);
            let gate = &gate;
            scope.spawn(move || to_test.send(gate.pass(MOST_KEPT + 1).is_some()));
            assert!(passed.recv_timeout(Duration::from_millis(50)).is_err());
            drop(held);
            assert!(passed.recv_timeout(Duration::from_secs(60)).unwrap());
        });
    }

    #[test]
    fn no_large_buffer_is_kept() {
        let buffers = Buffers::of_lanes(1);
        for (bytes, is_kept) in [(MOST_KEPT + 1, false), (MOST_KEPT, true)] {
            buffers.give(Vec::with_capacity(bytes));
            buffers.give_codes(Vec::with_capacity(bytes));
            assert_eq!([buffers.take().capacity() > 0, buffers.take_codes().capacity() > 0], [is_kept; 2], "{bytes}");
        }
    }
}
