//! One thread reads, this one computes, one writes: parts of tensors on their way, so that none is in memory as a whole.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::ScopedJoinHandle;

use scaled_gemm::HostQuantMatrix;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointWriter, MatrixWriter, TensorInfo, TensorWriter};

use crate::output::Failure;

/// Bytes of a part that is copied.
const PART: usize = 2 << 20;
/// Parts on their way from one thread to the next.
const DEPTH: usize = 2;

/// Bytes that were written, to be read into again: new ones are pages that the system first has to clear.
#[derive(Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// One, with or without room.
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().ok().and_then(|mut free| free.pop()).unwrap_or_default()
    }

    /// Keeps one for later, where there are not more than can be on their way.
    pub fn give(&self, buffer: Vec<u8>) {
        if let Ok(mut free) = self.0.lock()
            && free.len() < 2 * DEPTH + 3
        {
            free.push(buffer);
        }
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
    Rows(&'a str, HostQuantMatrix),
    Bytes(&'a str, Vec<u8>),
}

/// Runs the three. `compute` gives what is to be written, if anything; bytes that were written go to `buffers`. The first failure
/// ends all.
pub fn run<'a, R: Send>(
    read: impl FnOnce(&SyncSender<R>) -> Result<Sent, Failure> + Send,
    mut compute: impl FnMut(R) -> Result<Option<Part<'a>>, Failure>,
    writer: &CheckpointWriter,
    buffers: &Buffers,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let (to_compute, reads) = sync_channel(DEPTH);
        let (to_write, parts) = sync_channel(DEPTH);
        let reader = scope.spawn(move || read(&to_compute));
        let writing = scope.spawn(move || write(writer, parts, buffers));
        let mut computed = Ok(());
        // The ends of both channels go with this: who waits for them stops.
        for message in reads {
            match compute(message) {
                Ok(None) => {}
                Ok(Some(part)) => {
                    if to_write.send(part).is_err() {
                        // The writer says why.
                        break;
                    }
                }
                Err(failure) => {
                    computed = Err(failure);
                    break;
                }
            }
        }
        drop(to_write);
        let (read, wrote) = (joined(reader), joined(writing));
        computed?;
        // A tensor that was not read whole was not written whole either: that is no fault of the output.
        let sent = read?;
        wrote?;
        match sent {
            Sent::All => Ok(()),
            Sent::NotAll => Err(Failure::Check("the work ended before all was read; report it".into())),
        }
    })
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
    Tensor(TensorWriter<'w>),
}

impl Open<'_> {
    fn finish(self) -> scaled_gemm::Result<()> {
        match self {
            Self::Matrix(matrix) => matrix.finish(),
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
                Part::Rows(..) => Open::Matrix(writer.matrix(name)?),
                Part::Bytes(..) => Open::Tensor(writer.tensor(name)?),
            };
            if let Some((_, last)) = open.replace((name, next)) {
                last.finish()?;
            }
        }
        match (part, open.as_mut()) {
            (Part::Rows(_, rows), Some((_, Open::Matrix(matrix)))) => matrix.append(&rows)?,
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
