//! The work: matrices pass in parts, so that none is in memory as a whole.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::SyncSender;

use ndarray::{Array2, s};
use scaled_gemm::checkpoint::{Checkpoint, CheckpointWriter, Dialect};
use scaled_gemm::reference::{self, sqnr_db};
use scaled_gemm::{DType, GivenScale, Scheme};

use super::items::Item;
use super::plan::{Plan, Plans, Weight, has_whole, is_divisible};
use super::rows::Rows;
use crate::device::Device;
use crate::non_finite::NonFinite;
use crate::output::Failure;
use crate::pipeline::{self, Part, Sent};

/// Rows that say what sharing a scale costs.
const SAMPLE: usize = 128;

/// What is to be done.
#[derive(Clone, Copy)]
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

/// Quantizes and copies what the plans say. `step` hears of every part: its tensor, its bytes.
pub fn run(
    work: Work<'_>,
    writer: &CheckpointWriter,
    device: &mut dyn Device,
    step: &mut dyn FnMut(&str, u64),
) -> Result<Found, Failure> {
    let mut found = Found::default();
    let compute = |message| compute(work, message, &mut found, device, step);
    pipeline::run(|to| read(work, to), compute, writer)?;
    Ok(found)
}

fn parts(weight: &Weight) -> impl Iterator<Item = Range<usize>> + use<> {
    let step = match is_divisible(weight.recipe) {
        true => pipeline::part_rows(weight.cols * weight.source.bytes()),
        false => weight.rows,
    };
    pipeline::parts(weight.rows, step)
}

fn read(Work { input, plans, .. }: Work<'_>, to: &SyncSender<Read>) -> Result<Sent, Failure> {
    let mut known: HashMap<usize, f32> = HashMap::new();
    let mut source = Rows::new(input);
    for (at, (item, plan)) in plans.items.iter().zip(&plans.tensors).enumerate() {
        let Plan::Quantize(weight) = plan else {
            match pipeline::copy(input, &input.tensors()[item.tensor], |bytes| to.send(Read::Bytes(at, bytes)).is_ok())?
            {
                Sent::All => continue,
                Sent::NotAll => return Ok(Sent::NotAll),
            }
        };
        let mut whole = None;
        if has_whole(weight.recipe) {
            let alone = [at];
            let members = weight.group.map_or(&alone[..], |group| &plans.groups[group]);
            for &member in members {
                if !known.contains_key(&member)
                    && let Plan::Quantize(weight) = &plans.tensors[member]
                {
                    known.insert(member, amax(&mut source, &plans.items[member], weight)?);
                }
            }
            let shared = members.iter().map(|member| known[member]).fold(0.0, f32::max);
            whole = Some(Whole { own: known[&at], shared });
        }
        for rows in parts(weight) {
            let x = source.read(item, weight.source, rows.clone())?;
            if to.send(Read::Rows(at, rows, x, whole)).is_err() {
                return Ok(Sent::NotAll);
            }
        }
    }
    Ok(Sent::All)
}

/// The largest value of a matrix, by parts.
fn amax(source: &mut Rows<'_>, item: &Item, weight: &Weight) -> Result<f32, Failure> {
    let mut largest = 0.0f32;
    for rows in parts(weight) {
        let x = source.read(item, weight.source, rows)?;
        largest = largest.max(reference::amax(x.as_slice().unwrap_or_default()));
    }
    Ok(largest)
}

fn compute<'a>(
    work: Work<'a>,
    message: Read,
    found: &mut Found,
    device: &mut dyn Device,
    step: &mut dyn FnMut(&str, u64),
) -> Result<Option<Part<'a>>, Failure> {
    let (at, rows, x, whole) = match message {
        Read::Bytes(at, bytes) => {
            let name = &work.plans.items[at].name;
            step(name, bytes.len() as u64);
            return Ok(Some(Part::Bytes(name, bytes)));
        }
        Read::Rows(at, rows, x, whole) => (at, rows, x, whole),
    };
    let name = &work.plans.items[at].name;
    let Plan::Quantize(weight) = &work.plans.tensors[at] else { return Ok(None) };
    step(name, (x.len() * weight.source.bytes()) as u64);
    if !is_finite(&x) || found.non_finite.contains_key(&at) {
        let counts = found.non_finite.entry(at).or_default();
        counts.add_rows(&x, rows.start);
        // The words say how many there are in all.
        match counts.check(name, work.allow_non_finite, weight.recipe, weight.source) {
            Err(refused) if rows.end == weight.rows => return Err(refused),
            Err(_) => return Ok(None),
            Ok(()) => {}
        }
    }
    if let Some(whole) = whole.filter(|whole| rows.start == 0 && whole.own != whole.shared) {
        let cost = cost(&x, weight, work.dialect, whole)?;
        // Of rows of zeros, or with NaN, there is none.
        if cost.iter().all(|db| db.is_finite()) {
            found.shared.insert(at, cost);
        }
    }
    let given = whole.map(|whole| given(work.dialect, weight, whole.shared)).transpose()?;
    Ok(Some(Part::Rows(name, device.quantize_part(x.view(), weight.source, weight.recipe, given)?)))
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
