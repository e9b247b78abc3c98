//! The work: one thread reads, this one quantizes, one writes. Matrices pass in parts, so that none is in memory as a whole.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use ndarray::{Array2, s};
use scaled_gemm::checkpoint::{Checkpoint, CheckpointWriter, Dialect, MatrixWriter, TensorWriter};
use scaled_gemm::reference::{self, sqnr_db};
use scaled_gemm::{DType, GivenScale, HostQuantMatrix, Recipe, Scheme};

use super::plan::{Plan, Plans, Weight, is_divisible};
use crate::device::Device;
use crate::non_finite::NonFinite;
use crate::output::Failure;

/// Bytes of a part, about: enough that its work is worth passing on.
const PART: usize = 16 << 20;
/// Parts on their way from one thread to the next.
const DEPTH: usize = 2;
/// Rows that say what sharing a scale costs.
const SAMPLE: usize = 128;

/// What is to be done.
pub struct Work<'a> {
    pub input: &'a Checkpoint,
    pub plans: &'a Plans,
    pub dialect: Dialect,
    pub allow_non_finite: bool,
}

/// What was found on the way.
#[derive(Default)]
pub struct Found {
    /// By tensor: what was not finite.
    pub non_finite: HashMap<usize, NonFinite>,
    /// By tensor: SQNR in dB with its own scale, and with the shared one, of its first rows.
    pub shared: HashMap<usize, [f64; 2]>,
}

/// The one scale of a matrix.
#[derive(Clone, Copy)]
struct Whole {
    /// The largest value of the matrix, and of all that share its scale.
    own: f32,
    shared: f32,
}

enum Read {
    Rows(usize, Range<usize>, Array2<f32>, Option<Whole>),
    Bytes(usize, Vec<u8>),
}

enum Done {
    Rows(usize, HostQuantMatrix),
    Bytes(usize, Vec<u8>),
}

/// Quantizes and copies what the plans say. `step` hears of every part: its tensor, its bytes.
pub fn run(
    work: &Work<'_>,
    writer: &CheckpointWriter,
    device: &mut dyn Device,
    step: &mut dyn FnMut(&str, u64),
) -> Result<Found, Failure> {
    std::thread::scope(|scope| {
        let (to_compute, reads) = sync_channel(DEPTH);
        let (to_write, dones) = sync_channel(DEPTH);
        let reader = scope.spawn(move || read(work, &to_compute));
        let writing = scope.spawn(move || write(work, writer, dones));
        let computed = compute(work, reads, to_write, device, step);
        // Whoever fails ends the others by leaving its channels; its words are those that count.
        let (read, wrote) = (joined(reader), joined(writing));
        let found = computed?;
        wrote?;
        match read? {
            Sent::All => Ok(found),
            Sent::NotAll => Err(Failure::Check("the work ended before all was read; report it".into())),
        }
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, Failure>>) -> Result<T, Failure> {
    thread.join().unwrap_or_else(|_| Err(Failure::Check("a thread of the work panicked; report it".into())))
}

/// Rows of a part of a matrix.
fn part_rows(weight: &Weight) -> usize {
    if !is_divisible(weight.recipe) {
        return weight.rows;
    }
    // Whole groups of rows of every scheme.
    let rows = PART / (weight.cols * weight.source.bytes()).max(1);
    (rows / 128 * 128).max(128)
}

fn parts(weight: &Weight) -> impl Iterator<Item = Range<usize>> {
    let (rows, step) = (weight.rows, part_rows(weight));
    (0..rows.div_ceil(step)).map(move |i| i * step..((i + 1) * step).min(rows))
}

/// True for schemes with one scale for the matrix, which is to be known before the first part.
fn has_whole(recipe: Recipe) -> bool {
    matches!(recipe.scheme(), Scheme::Nvfp4 | Scheme::Fp8Tensor(_)) && is_divisible(recipe)
}

/// Whether a thread has passed on all that it had.
enum Sent {
    All,
    /// Nobody was left to take it.
    NotAll,
}

fn read(work: &Work<'_>, to: &SyncSender<Read>) -> Result<Sent, Failure> {
    let Work { input, plans, .. } = *work;
    let mut known: HashMap<usize, f32> = HashMap::new();
    for (at, (tensor, plan)) in input.tensors().iter().zip(&plans.tensors).enumerate() {
        match plan {
            Plan::Quantize(weight) => {
                let mut whole = None;
                if has_whole(weight.recipe) {
                    let alone = [at];
                    let members = weight.group.map_or(&alone[..], |group| &plans.groups[group]);
                    for &member in members {
                        if !known.contains_key(&member)
                            && let Plan::Quantize(weight) = &plans.tensors[member]
                        {
                            known.insert(member, amax(input, &input.tensors()[member].name, weight)?);
                        }
                    }
                    let shared = members.iter().map(|member| known[member]).fold(0.0, f32::max);
                    whole = Some(Whole { own: known[&at], shared });
                }
                for rows in parts(weight) {
                    let x = input.matrix_rows(&tensor.name, rows.clone())?;
                    if to.send(Read::Rows(at, rows, x, whole)).is_err() {
                        return Ok(Sent::NotAll);
                    }
                }
            }
            Plan::Copy(_) => {
                let mut place = 0;
                // An empty tensor is sent, too: it is to be written.
                loop {
                    let len = (tensor.bytes() - place).min(PART as u64);
                    let mut bytes = vec![0; len as usize];
                    input.read(&tensor.name, place, &mut bytes)?;
                    if to.send(Read::Bytes(at, bytes)).is_err() {
                        return Ok(Sent::NotAll);
                    }
                    place += len;
                    if place == tensor.bytes() {
                        break;
                    }
                }
            }
        }
    }
    Ok(Sent::All)
}

/// The largest value of a matrix, by parts.
fn amax(input: &Checkpoint, name: &str, weight: &Weight) -> Result<f32, Failure> {
    let mut largest = 0.0f32;
    for rows in parts(weight) {
        let x = input.matrix_rows(name, rows)?;
        largest = largest.max(reference::amax(x.as_slice().unwrap_or_default()));
    }
    Ok(largest)
}

fn compute(
    work: &Work<'_>,
    from: Receiver<Read>,
    to: SyncSender<Done>,
    device: &mut dyn Device,
    step: &mut dyn FnMut(&str, u64),
) -> Result<Found, Failure> {
    let mut found = Found::default();
    for message in from {
        let done = match message {
            Read::Rows(at, rows, x, whole) => {
                let (tensor, Plan::Quantize(weight)) = (&work.input.tensors()[at], &work.plans.tensors[at]) else {
                    continue;
                };
                step(&tensor.name, (x.len() * weight.source.bytes()) as u64);
                if !is_finite(&x) || found.non_finite.contains_key(&at) {
                    let counts = found.non_finite.entry(at).or_default();
                    counts.add_rows(&x, rows.start);
                    // The words say how many there are in all.
                    match counts.check(&tensor.name, work.allow_non_finite, weight.recipe, weight.source) {
                        Err(refused) if rows.end == weight.rows => return Err(refused),
                        Err(_) => continue,
                        Ok(()) => {}
                    }
                }
                if let Some(whole) = whole.filter(|whole| rows.start == 0 && whole.own != whole.shared) {
                    found.shared.insert(at, cost(&x, weight, work.dialect, whole)?);
                }
                let given = whole.map(|whole| given(work.dialect, weight, whole.shared)).transpose()?;
                Done::Rows(at, device.quantize_part(x.view(), weight.source, weight.recipe, given)?)
            }
            Read::Bytes(at, bytes) => {
                step(&work.input.tensors()[at].name, bytes.len() as u64);
                Done::Bytes(at, bytes)
            }
        };
        if to.send(done).is_err() {
            // The writer says why.
            break;
        }
    }
    Ok(found)
}

fn is_finite(x: &Array2<f32>) -> bool {
    let largest = |x: &[f32]| x.iter().fold(0, |largest, v| largest.max(v.to_bits() & 0x7FFF_FFFF));
    x.as_slice().is_some_and(|x| largest(x) < f32::INFINITY.to_bits())
}

/// The scale of a matrix of this amax, as the dialect can say it.
fn given(dialect: Dialect, weight: &Weight, amax: f32) -> Result<GivenScale, Failure> {
    let given = GivenScale::Amax(amax);
    if dialect != Dialect::CompressedTensors || weight.recipe.scheme() != Scheme::Nvfp4 {
        return Ok(given);
    }
    // The file has a divisor. Whoever reads it takes its reciprocal: a scale that is one itself comes back to the last bit.
    let none = Array2::zeros((weight.recipe.row_multiple(), 16));
    let scale = reference::quantize_part(none.view(), weight.source, weight.recipe, given)?.scales()[0];
    let divisor = 1.0 / scale;
    Ok(GivenScale::Encode(if divisor.is_finite() && divisor > 0.0 { divisor } else { 1.0 }))
}

/// SQNR of the first rows with their own scale, and with the shared one.
fn cost(x: &Array2<f32>, weight: &Weight, dialect: Dialect, whole: Whole) -> Result<[f64; 2], Failure> {
    let x = x.slice(s![..SAMPLE.min(x.nrows()), ..]);
    let sqnr = |amax: f32| {
        let given = given(dialect, weight, amax)?;
        let q = reference::quantize_part(x, weight.source, weight.recipe, given)?;
        let back = reference::dequantize(&q, DType::F32);
        Ok::<_, Failure>(sqnr_db(x.as_slice().unwrap_or_default(), back.as_slice().unwrap_or_default()))
    };
    Ok([sqnr(whole.own)?, sqnr(whole.shared)?])
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

fn write(work: &Work<'_>, writer: &CheckpointWriter, from: Receiver<Done>) -> Result<(), Failure> {
    let mut open: Option<(usize, Open<'_>)> = None;
    for message in from {
        let (Done::Rows(at, _) | Done::Bytes(at, _)) = message;
        if open.as_ref().is_none_or(|(which, _)| *which != at) {
            let name = &work.input.tensors()[at].name;
            let next = match &message {
                Done::Rows(..) => Open::Matrix(writer.matrix(name)?),
                Done::Bytes(..) => Open::Tensor(writer.tensor(name)?),
            };
            if let Some((_, last)) = open.replace((at, next)) {
                last.finish()?;
            }
        }
        match (message, open.as_mut()) {
            (Done::Rows(_, part), Some((_, Open::Matrix(matrix)))) => matrix.append(&part)?,
            (Done::Bytes(_, bytes), Some((_, Open::Tensor(tensor)))) => tensor.append(&bytes)?,
            _ => {}
        }
    }
    // Where the work failed a tensor is not whole, and the words of the failure count.
    Ok(open.map_or(Ok(()), |(_, last)| last.finish())?)
}
