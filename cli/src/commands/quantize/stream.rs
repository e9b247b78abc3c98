//! The work: matrices pass in parts, so that none is in memory as a whole.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use ndarray::Array2;
use rayon::prelude::*;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointWriter, Dialect, PlainRows, printable};
use scaled_gemm::reference::{self, sqnr_db};
use scaled_gemm::{Basis, DType, GivenScale, Recipe, Scheme};

use super::given::{GivenAmax, Outweighed, scale};
use super::items::Item;
use super::lost::Lost;
use super::plan::{Plan, Plans, Weight};
use super::rows::Rows;
use crate::coded::Coded;
use crate::device::{Caster, Device};
use crate::non_finite::{NonFinite, takes_infinities};
use crate::output::Failure;
use crate::pipeline::{self, Buffers, Gate, Part, Pass, Sent, Turns};
use crate::target::Target;
use crate::threads;

/// Bytes read at a time where only the largest value is asked for: it stays in a cache.
const AMAX_PART: usize = 512 << 10;

/// Matrices whose largest value is known before they are quantized: their bytes are in memory yet.
const AHEAD: usize = 2;

/// Rows that say what sharing a scale costs.
const SAMPLE: usize = 128;

/// What is to be done.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    pub input: &'a Checkpoint,
    pub plans: &'a Plans,
    /// By place, what the scale of a weight is made for instead of its largest value.
    pub given: &'a HashMap<usize, f32>,
    pub dialect: Dialect,
    pub allow_non_finite: bool,
}

/// What was found on the way.
#[derive(Default)]
pub struct Found {
    /// By tensor, in their order, in which it is said: what was not finite.
    pub non_finite: BTreeMap<usize, NonFinite>,
    /// By tensor, in their order: what an amax that was given made of the values.
    pub given: BTreeMap<usize, GivenAmax>,
    /// By tensor, in their order: an amax that was given and is not the one that counts.
    pub outweighed: BTreeMap<usize, Outweighed>,
    /// By tensor, in their order: of what finite values nothing is left.
    pub lost: BTreeMap<usize, Lost>,
    /// By tensor: SQNR in dB with its own scale, and with the shared one, of its first rows.
    pub shared: HashMap<usize, [f64; 2]>,
}

/// The one scale of a matrix.
#[derive(Clone, Copy)]
struct Whole {
    /// The largest value of the matrix, and of all that share its scale.
    own: f32,
    shared: f32,
    /// Whether that was given, for this matrix or for another that shares it.
    is_given: bool,
    /// The first that has the largest value.
    of: usize,
}

/// Some rows of a matrix, and the scale of the whole.
struct Piece<'a> {
    at: usize,
    weight: &'a Weight,
    rows: Range<usize>,
    whole: Option<Whole>,
    /// Of a large one, until it is collected.
    _pass: Option<Pass<'a>>,
}

/// What a lane is to do.
enum Task<'a> {
    /// Rows to be quantized; what was read of them already.
    Rows(Piece<'a>, Option<PlainRows>),
    Bytes(usize, Vec<u8>),
}

/// What a lane has done.
enum Done<'a> {
    Rows(Box<Quantized<'a>>),
    Bytes(usize, Vec<u8>),
}

struct Quantized<'a> {
    piece: Piece<'a>,
    /// Bytes of the input.
    bytes: u64,
    non_finite: Option<NonFinite>,
    cost: Option<[f64; 2]>,
    given: Option<GivenAmax>,
    lost: Option<Lost>,
    /// Nothing where these rows alone are refused, or the scale of the whole.
    part: Option<Coded>,
}

/// Quantizes and copies what the plans say. `step` hears of every part: its tensor, its bytes.
pub fn run(
    work: Work<'_>,
    writer: &CheckpointWriter,
    device: &dyn Device,
    step: &mut dyn FnMut(&str, u64),
) -> Result<Found, Failure> {
    let mut found = Found::default();
    let casters = device.casters();
    let stream = Stream {
        work,
        buffers: &Buffers::of_lanes(casters.len()),
        gate: &Gate::new(),
        part_bytes: device.part_bytes(),
        divides_stochastic: device.divides_stochastic(),
        reads_ahead: casters.len() == 1,
    };
    let lane = |mut caster: Box<dyn Caster>| move |task| stream.quantize(task, caster.as_mut());
    let lanes = casters.into_iter().map(lane).collect();
    let collect = |done| collect(work, done, &mut found, step);
    pipeline::run(|to| stream.read(to), lanes, collect, writer, stream.buffers)?;
    Ok(found)
}

/// What all threads of the work share.
#[derive(Clone, Copy)]
struct Stream<'a> {
    work: Work<'a>,
    buffers: &'a Buffers,
    gate: &'a Gate,
    part_bytes: usize,
    /// Whether parts are rounded at random, too.
    divides_stochastic: bool,
    /// Whether parts are read for the lanes: several read for themselves, as reading takes longer than all else.
    reads_ahead: bool,
}

/// Sends the largest value of each matrix that has one scale, those that share it together, in the order in which they are asked for.
fn find_largest(
    Work { input, plans, given, .. }: Work<'_>,
    buffers: &Buffers,
    to: &SyncSender<Result<(usize, f32), Failure>>,
) {
    let (mut sent, mut source) = (HashSet::new(), Rows::new(input));
    for at in 0..plans.tensors.len() {
        if plans.group(at).is_some_and(|group| !sent.insert(group)) {
            continue;
        }
        for &member in plans.sharing(at).iter() {
            let Plan::Quantize(weight) = &plans.tensors[member] else { continue };
            if weight.target.has_one_scale() {
                let found = match given.get(&member) {
                    Some(amax) => Ok(*amax),
                    None => amax(&mut source, &plans.items[member], weight, buffers),
                };
                if to.send(found.map(|amax| (member, amax))).is_err() {
                    return;
                }
            }
        }
    }
}

impl<'a> Stream<'a> {
    fn parts(&self, weight: &Weight) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = match self.divides_stochastic || !weight.target.is_stochastic() {
            true => pipeline::part_rows(self.part_bytes, weight.cols * weight.source.bytes()),
            false => weight.rows,
        };
        pipeline::parts(weight.rows, step)
    }

    fn read(&self, to: &Turns<Task<'a>>) -> Result<Sent, Failure> {
        std::thread::scope(|scope| {
            let (sender, largest) = sync_channel(AHEAD);
            let Self { work, buffers, .. } = *self;
            threads::spawn(scope, move || find_largest(work, buffers, &sender))?;
            self.tasks(&largest, to)
        })
    }

    /// Says what is to be done, in the order of the input.
    fn tasks(&self, largest: &Receiver<Result<(usize, f32), Failure>>, to: &Turns<Task<'a>>) -> Result<Sent, Failure> {
        let Self { work: Work { input, plans, given, allow_non_finite, .. }, buffers, gate, reads_ahead, .. } = *self;
        let mut known: HashMap<usize, f32> = HashMap::new();
        // By group: the largest value of all, whether that was given, whose it is, and the first that holds an infinity.
        let mut groups: HashMap<usize, (f32, bool, usize, Option<usize>)> = HashMap::new();
        let mut source = Rows::new(input);
        for (at, (item, plan)) in plans.items.iter().zip(&plans.tensors).enumerate() {
            let weight = match plan {
                Plan::Quantize(weight) => weight,
                Plan::Drop(_) => continue,
                Plan::Copy(_) => {
                    let tensor = &input.tensors()[item.tensor];
                    match pipeline::copy(input, tensor, buffers, |bytes| to.send(Task::Bytes(at, bytes)))? {
                        Sent::All => continue,
                        Sent::NotAll => return Ok(Sent::NotAll),
                    }
                }
            };
            let mut whole = None;
            if weight.target.has_one_scale() {
                let of_group = plans.group(at).and_then(|group| groups.get(&group).copied());
                let (shared, is_given, of, infinite) = match of_group {
                    Some(found) => found,
                    None => {
                        let members = plans.sharing(at);
                        for member in members.iter() {
                            while !known.contains_key(member) {
                                let (member, amax) = largest
                                    .recv()
                                    .map_err(|_| Failure::Check("a thread of the work panicked; report it".into()))??;
                                known.insert(member, amax);
                            }
                        }
                        let shared = members.iter().map(|member| known[member]).fold(0.0, f32::max);
                        let is_given = members.iter().any(|member| given.get(member) == Some(&shared));
                        let infinite = members.iter().copied().find(|member| known[member].is_infinite());
                        let of = members.iter().copied().find(|member| known[member] == shared).unwrap_or(at);
                        let found = (shared, is_given, of, infinite);
                        groups.extend(plans.group(at).map(|group| (group, found)));
                        found
                    }
                };
                // Said here of the matrix that holds it, not of the first that shares its scale.
                if let Some(member) = infinite.filter(|_| known[&at].is_finite())
                    && !(allow_non_finite && takes_infinities(weight.target, weight.source)?)
                {
                    return Err(self.refuse_infinity(&mut source, member, &item.name));
                }
                whole = Some(Whole { own: known[&at], shared, is_given, of });
            }
            for rows in self.parts(weight) {
                let _pass = gate.pass(rows.len() * weight.cols * weight.source.bytes());
                // An expert that has to be turned is read once for all its rows.
                let x = match reads_ahead || item.slice.is_some() {
                    true => Some(source.read(item, weight.source, rows.clone(), buffers.take())?),
                    false => None,
                };
                if !to.send(Task::Rows(Piece { at, weight, rows, whole, _pass }, x)) {
                    return Ok(Sent::NotAll);
                }
            }
        }
        Ok(Sent::All)
    }

    /// Refuses the infinities of a matrix that shares its scale with one that is quantized before it: which, and where the first is.
    fn refuse_infinity(&self, source: &mut Rows<'_>, at: usize, other: &str) -> Failure {
        let Work { input, plans, allow_non_finite, .. } = self.work;
        let item = &plans.items[at];
        let Plan::Quantize(weight) = &plans.tensors[at] else {
            return Failure::Check(format!("{}: is quantized no more; report it", printable(&item.name)));
        };
        let mut counts = NonFinite::default();
        for rows in pipeline::parts(weight.rows, pipeline::part_rows(AMAX_PART, weight.cols * weight.source.bytes())) {
            match source.read(item, weight.source, rows.clone(), self.buffers.take()) {
                Ok(x) if !x.is_finite() => counts.add_rows(&x.to_f32(), rows.start),
                Ok(_) => {}
                Err(e) => return e,
            }
        }
        let shares = format!("it shares its scale with {}", printable(other));
        match counts.check((input.path(), &item.name, plans.others()), allow_non_finite, weight.target, weight.source) {
            Err(Failure::Use(text)) => Failure::Use(format!("{text}; {shares}")),
            Err(failure) => failure,
            Ok(()) => Failure::Check(format!("{}: holds an infinity no more; {shares}", printable(&item.name))),
        }
    }

    /// What a lane does.
    fn quantize(&self, task: Task<'a>, caster: &mut dyn Caster) -> Result<Done<'a>, Failure> {
        let Self { work: Work { input, plans, dialect, allow_non_finite, .. }, buffers, .. } = *self;
        let (piece, x) = match task {
            Task::Bytes(at, bytes) => return Ok(Done::Bytes(at, bytes)),
            Task::Rows(piece, x) => (piece, x),
        };
        let (name, weight, first, whole) = (&plans.items[piece.at].name, piece.weight, piece.rows.start, piece.whole);
        let x = x.map_or_else(|| input.plain_rows(name, piece.rows.clone(), buffers.take()), Ok)?;
        let bytes = x.bytes().len() as u64;
        let mut done = Quantized { piece, bytes, non_finite: None, cost: None, given: None, lost: None, part: None };
        if !x.is_finite() {
            let counts = done.non_finite.insert(NonFinite::default());
            counts.add_rows(&x.to_f32(), first);
            if counts
                .check((input.path(), name, plans.others()), allow_non_finite, weight.target, weight.source)
                .is_err()
            {
                return Ok(Done::Rows(Box::new(done)));
            }
        }
        // Another part holds an infinity, and the recipe has no scale for it: what is refused is said of the whole, with its last part.
        // Of transformed rows the largest value may be infinite where none of the input is: then the last part has a scale to refuse.
        let says_scale = !weight.target.has_whole() && done.piece.rows.end == weight.rows;
        if whole.is_some_and(|whole| whole.shared.is_infinite())
            && !says_scale
            && !takes_infinities(weight.target, weight.source)?
        {
            return Ok(Done::Rows(Box::new(done)));
        }
        if let (Some(whole), Target::Recipe(recipe)) = (whole, weight.target)
            && first == 0
            && whole.own != whole.shared
        {
            let cost = cost(&x.first_rows(SAMPLE), (weight, recipe), dialect, whole)?;
            // Of rows of zeros, or with NaN, there is none.
            done.cost = Some(cost).filter(|cost| cost.iter().all(|db| db.is_finite()));
        }
        let given = whole.map(|whole| Ok::<_, Failure>((given(dialect, weight, whole.shared)?, first))).transpose()?;
        let part = match weight.target {
            Target::Recipe(recipe) => {
                Coded::Quantized(caster.quantize_part(&x, recipe, given, buffers.take_codes())?)
            }
            Target::Cast(recipe) => Coded::Cast(caster.cast(&x, recipe)?),
        };
        done.lost = Some(Lost::of(&x, &part));
        done.part = Some(part);
        if let (Some(Whole { shared, is_given: true, .. }), Some(Coded::Quantized(codes)), Target::Recipe(recipe)) =
            (whole, &done.part, weight.target)
        {
            done.given = Some(GivenAmax::of_rows(shared, recipe, &x, codes));
        }
        buffers.give(x.into_bytes());
        Ok(Done::Rows(Box::new(done)))
    }
}

/// The largest value of a matrix, by parts; of tensors that are read as they lie on all cores.
fn amax(source: &mut Rows<'_>, item: &Item, weight: &Weight, buffers: &Buffers) -> Result<f32, Failure> {
    let rows = (AMAX_PART / (weight.cols * weight.source.bytes()).max(1)).max(1);
    let parts: Vec<_> = pipeline::parts(weight.rows, rows).collect();
    let largest = |x: PlainRows| {
        let amax = match weight.target.basis() {
            Basis::Plain => x.amax(),
            Basis::Hadamard16 => reference::hadamard16_amax(x.to_f32().as_slice().unwrap_or_default()),
        };
        buffers.give(x.into_bytes());
        amax
    };
    if item.slice.is_some() {
        let each = parts.into_iter().map(|rows| source.read(item, weight.source, rows, buffers.take()).map(largest));
        return each.collect::<Result<Vec<f32>, _>>().map(|all| all.into_iter().fold(0.0, f32::max));
    }
    let input = source.input();
    let amax = |rows| Ok(largest(input.plain_rows(&item.name, rows, buffers.take())?));
    parts.into_par_iter().map(amax).try_reduce(|| 0.0, |a, b| Ok(a.max(b)))
}

/// Hears of the parts in their order: what is written of one, if anything.
fn collect<'a>(
    Work { input, plans, given, allow_non_finite, .. }: Work<'a>,
    done: Done<'a>,
    found: &mut Found,
    step: &mut dyn FnMut(&str, u64),
) -> Result<Option<Part<'a>>, Failure> {
    let done = match done {
        Done::Bytes(at, bytes) => {
            let name = &plans.items[at].name;
            step(name, bytes.len() as u64);
            return Ok(Some(Part::Bytes(name, bytes)));
        }
        Done::Rows(done) => *done,
    };
    let Piece { at, weight, rows, whole, .. } = done.piece;
    let name = &plans.items[at].name;
    step(name, done.bytes);
    if let Some(counts) = &done.non_finite {
        found.non_finite.entry(at).or_default().add_all(counts);
    }
    if let Some(counts) = found.non_finite.get(&at) {
        // The words say how many there are in all.
        match counts.check((input.path(), name, plans.others()), allow_non_finite, weight.target, weight.source) {
            Err(refused) if rows.end == weight.rows => return Err(refused),
            Err(_) => return Ok(None),
            Ok(()) => {}
        }
    }
    if let Some(lost) = done.lost {
        found.lost.entry(at).and_modify(|before| *before = before.with(lost)).or_insert(lost);
    }
    if let Some(given) = done.given {
        let sum = found.given.entry(at).or_default();
        *sum = sum.with(given);
    }
    if let (Some(Whole { shared, of, .. }), Some(&given)) = (whole, given.get(&at))
        && given < shared
    {
        found.outweighed.insert(at, Outweighed { given, counts: shared, of });
    }
    found.shared.extend(done.cost.map(|cost| (at, cost)));
    Ok(done.part.map(|part| Part::Rows(name, part)))
}

/// The scale of a matrix of this amax, as the dialect can say it.
fn given(dialect: Dialect, weight: &Weight, amax: f32) -> Result<GivenScale, Failure> {
    let given = GivenScale::Amax(amax);
    let Target::Recipe(recipe) = weight.target else { return Ok(given) };
    if dialect != Dialect::CompressedTensors || recipe.scheme() != Scheme::Nvfp4 {
        return Ok(given);
    }
    // The file has a divisor. Whoever reads it takes its reciprocal: a scale that is one itself comes back to the last bit.
    let divisor = 1.0 / scale(recipe, weight.source, given)?;
    Ok(GivenScale::Encode(if divisor.is_finite() && divisor > 0.0 { divisor } else { 1.0 }))
}

/// SQNR of the first rows with their own scale, and with the shared one.
fn cost(
    x: &Array2<f32>,
    (weight, recipe): (&Weight, Recipe),
    dialect: Dialect,
    whole: Whole,
) -> Result<[f64; 2], Failure> {
    let sqnr = |amax: f32| {
        let given = given(dialect, weight, amax)?;
        let q = reference::quantize_part(x.view(), weight.source, recipe, given)?;
        let back = reference::dequantize(&q, DType::F32);
        Ok::<_, Failure>(sqnr_db(x.as_slice().unwrap_or_default(), back.as_slice().unwrap_or_default()))
    };
    Ok([sqnr(whole.own)?, sqnr(whole.shared)?])
}
