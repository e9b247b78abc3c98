//! Scales that the input has, and that belong to no codes there: in the way of those that would be written, or wrong beside them.

use std::collections::{BTreeSet, HashMap, HashSet};

use scaled_gemm::checkpoint::{
    CODES_ENDINGS, Checkpoint, CheckpointLayout, Dialect, Dtype, RECIPE_KEY, SCALE_ENDINGS, TensorInfo, scaled_by_name,
};
use scaled_gemm::model_folder::ModelConfig;

use super::items::Item;
use super::plan::Plans;
use crate::activations::{ACTIVATIONS, is_scale};
use crate::copied;
use crate::folder::{self, module};
use crate::foreign;
use crate::orphans::{self, Fate};
use crate::output::{Failure, Pronouns, count, exactly, named, of_number, shown};
use crate::remains;
use crate::unread::{self, Unread};

/// Most tensors in the way that are named.
const MOST_NAMED: usize = 8;

/// A tensor of the input that cannot be copied, why, and the matrix that would be quantized.
struct InTheWay<'a> {
    name: &'a str,
    why: String,
    matrix: &'a Item,
}

/// Refuses tensors that are copied where a matrix is quantized: with the name of one that is written, or that would be taken for a scale of
/// it or of what enters it, by readers or engines. `owners`: for each tensor of the layout the place of its item in the plans.
pub fn refuse_stale(
    input: &Checkpoint,
    plans: &Plans,
    (layout, dialect): (&CheckpointLayout, Dialect),
    owners: &[usize],
) -> Result<(), Failure> {
    let mut known = HashSet::new();
    let found = codes(input, plans).into_iter().chain(experts(input, plans));
    let found = found.chain(twice(input, plans, layout, owners));
    let found: Vec<_> =
        found.chain(scales(input, plans, layout, dialect)).filter(|one| known.insert(one.name)).collect();
    let path = shown(input.path());
    match &*found {
        [] => Ok(()),
        [InTheWay { name, why, matrix }] => Err(Failure::Use(format!(
            "{path}: tensor {}: is there, and {why}; take it out of the input{}",
            named(name),
            exclude(plans, &[matrix])
        ))),
        many => {
            let mut named: Vec<_> =
                many.iter().take(MOST_NAMED).map(|one| format!("{} ({})", named(one.name), one.why)).collect();
            named.extend((many.len() > MOST_NAMED).then(|| format!("and {} more", many.len() - MOST_NAMED)));
            let matrices: Vec<_> = many.iter().map(|one| one.matrix).collect();
            Err(Failure::Use(format!(
                "{path}: {} tensors are in the way of matrices that would be quantized: {}; take them out of the input{}",
                many.len(),
                named.join(", "),
                exclude(plans, &matrices)
            )))
        }
    }
}

/// The way out that keeps such tensors. Of experts in one tensor none can be left as it is, and without all matrices nothing would be left
/// to do.
fn exclude(plans: &Plans, matrices: &[&Item]) -> String {
    let names: BTreeSet<&str> = matrices.iter().map(|matrix| matrix.name.as_str()).collect();
    if plans.has_no_other(&names) || matrices.iter().any(|matrix| matrix.slice.is_some()) {
        return String::new();
    }
    match names.len() {
        1 => format!(", or leave the matrix as it is with --exclude {}", exactly(names)),
        few if few <= MOST_NAMED => format!(", or leave the matrices as they are with --exclude {}", exactly(names)),
        _ => ", or leave the matrices as they are with --exclude".into(),
    }
}

/// Codes of a matrix that is there plain, too: which of the two counts nobody knows.
fn codes<'a>(input: &'a Checkpoint, plans: &'a Plans) -> Vec<InTheWay<'a>> {
    let mut found = Vec::new();
    let quantized: HashSet<&str> = input.quantized().into_iter().collect();
    for matrix in plans.weights().map(|(at, _)| &plans.items[at]) {
        let plain = &input.tensors()[matrix.tensor].name;
        if !quantized.contains(plain.as_str()) {
            continue;
        }
        let codes = CODES_ENDINGS.iter().filter(|ending| !ending.is_empty());
        let codes = codes.filter_map(|ending| input.get(&[plain.as_str(), ending].concat()));
        found.extend(codes.filter(|codes| codes.dtype == Dtype::U8).map(|codes| {
            let why = format!("holds codes of {}, which is there plain, too, and would be quantized", named(plain));
            InTheWay { name: &codes.name, why, matrix }
        }));
    }
    found
}

/// Tensors with the name of an expert that is taken out of another.
fn experts<'a>(input: &Checkpoint, plans: &'a Plans) -> Vec<InTheWay<'a>> {
    let slices = plans.items.iter().filter_map(|item| Some((item.name.as_str(), (item, item.slice?))));
    let slices: HashMap<_, _> = slices.collect();
    let whole = plans.items.iter().filter(|item| item.slice.is_none());
    whole
        .filter_map(|tensor| {
            let (expert, slice) = slices.get(tensor.name.as_str())?;
            let of = named(&input.tensors()[expert.tensor].name);
            let why = format!("expert {} of {of} would be written under that name", slice.experts[0]);
            Some(InTheWay { name: &tensor.name, why, matrix: expert })
        })
        .collect()
}

/// Tensors with the name of one that is written.
fn twice<'a>(
    input: &'a Checkpoint,
    plans: &'a Plans,
    layout: &CheckpointLayout,
    owners: &[usize],
) -> Vec<InTheWay<'a>> {
    let mut first: HashMap<&str, usize> = HashMap::with_capacity(owners.len());
    let mut found = Vec::new();
    for (name, owner) in layout.names().zip(owners) {
        let Some((other, there)) = first.insert(name, *owner).zip(input.get(name)) else { continue };
        // One that is copied has the name that it had.
        let matrix = [other, *owner].into_iter().map(|at| &plans.items[at]).find(|item| item.name != name);
        found.extend(matrix.map(|matrix| {
            let why = format!("{} would be quantized to a tensor of that name", named(&matrix.name));
            InTheWay { name: &there.name, why, matrix }
        }));
    }
    found
}

/// Tensors that would be taken for scales: of the codes that are written, where nothing would tell which belong to them, of what enters
/// their layers, and of a tensor of experts, which is gone then.
fn scales<'a>(
    input: &'a Checkpoint,
    plans: &'a Plans,
    layout: &CheckpointLayout,
    dialect: Dialect,
) -> Vec<InTheWay<'a>> {
    let items = || plans.weights().map(|(at, _)| &plans.items[at]);
    let matrices: HashMap<&str, &Item> = items().map(|item| (item.name.as_str(), item)).collect();
    let slices = items().filter(|item| item.slice.is_some());
    let whole: HashMap<&str, &Item> = slices.map(|item| (input.tensors()[item.tensor].name.as_str(), item)).collect();
    let read =
        layout.scales_of_others().into_iter().filter(|(.., is_read)| *is_read).filter_map(|(name, matrix, _)| {
            let (there, of) = (input.get(name)?, named(matrix));
            let why = match there.dtype {
                dtype @ (Dtype::F8_E4M3 | Dtype::F8_E5M2) => {
                    format!("is {dtype}, as codes are, with the name of a scale of {of}, which would be quantized")
                }
                _ => format!("would be read as a scale of {of}, which would be quantized"),
            };
            Some(InTheWay { name: &there.name, why, matrix: *matrices.get(matrix)? })
        });
    let entering = entering_scales(input, plans, dialect).into_iter().filter(|(.., is_taken)| *is_taken);
    let entering = entering.map(|(name, matrix, _)| {
        let of = named(&matrix.name);
        let why = format!("engines would take it for the scale of what enters {of}, which would be quantized");
        InTheWay { name, why, matrix }
    });
    let of_whole = |name: &'a str| {
        let of = SCALE_ENDINGS.iter().filter_map(|ending| name.strip_suffix(ending));
        let (of, matrix) = of.into_iter().find_map(|of| Some((of, *whole.get(of).filter(|item| item.name != of)?)))?;
        let why = format!("is a scale of {} by its name, whose experts would be quantized one by one", named(of));
        Some(InTheWay { name, why, matrix })
    };
    let beside = input.tensors().iter().map(|tensor| tensor.name.as_str());
    read.chain(entering).chain(beside.filter_map(of_whole)).collect()
}

/// Tensors with the name of a scale of what enters a layer that is quantized, with a matrix of it, and whether engines would take them for
/// one: where they read what is written, a number, or one for each expert.
fn entering_scales<'a>(input: &'a Checkpoint, plans: &'a Plans, dialect: Dialect) -> Vec<(&'a str, &'a Item, bool)> {
    let items = || {
        plans.weights().map(|(at, weight)| {
            let item = &plans.items[at];
            (item, &input.tensors()[item.tensor], dialect != Dialect::Plain && weight.target.product().is_some())
        })
    };
    // Of experts in one tensor, that one's too.
    let of_tensors = items().map(|found @ (_, tensor, _)| (module(&tensor.name), found));
    let layers: HashMap<&str, _> = of_tensors.chain(items().map(|found| (module(&found.0.name), found))).collect();
    let of_layer = |tensor: &'a TensorInfo| {
        let (layer, _) = tensor.name.rsplit_once('.').filter(|(_, last)| ACTIVATIONS.contains(last))?;
        let (item, whole, has_engine) = *layers.get(layer)?;
        let experts = item.slice.as_ref().and_then(|_| whole.shape.first().copied());
        Some((tensor.name.as_str(), item, has_engine && is_scale(tensor, experts)))
    };
    input.tensors().iter().filter_map(of_layer).collect()
}

/// What there is to say of those that no engine takes for a scale: they are copied.
pub fn entering(input: &Checkpoint, plans: &Plans, dialect: Dialect) -> Option<String> {
    let names: Vec<_> = entering_scales(input, plans, dialect).into_iter().map(|(name, ..)| name).collect();
    let Pronouns { it, as_it_is, .. } = Pronouns::of(names.len());
    Some(format!(
        "{}: {} ({}) with the name of a scale of what enters layers that are quantized, copied {as_it_is}: no engine takes {it} for it, \
         and one that refuses what it does not know does not load the model; if {} of what the layers were before, take {it} out of the input",
        shown(input.path()),
        count(names.len(), "tensor", "tensors"),
        folder::some(names.iter().copied())?,
        of_number(names.len(), "it is a scale", "they are scales")
    ))
}

/// What there is to say of scales beside matrices that are quantized, now or before, which are copied since nobody takes them for theirs.
pub fn unread(input: &Checkpoint, layout: &CheckpointLayout) -> Option<String> {
    let of_new =
        layout.scales_of_others().into_iter().filter(|(name, _, is_read)| !is_read && input.get(name).is_some());
    let found = of_new.map(|(name, matrix, _)| (name, matrix)).chain(input.scales_of_others());
    orphans::of_others_in_words(input, found, Fate::Copied)
}

/// What there is to say of entries of the metadata that are no recipe, and that have the name of one which is written, or of a plain matrix, of
/// which readers would take them for one: they are somebody's, and not in what is written.
pub fn foreign_entries(input: &Checkpoint, plans: &Plans) -> Option<String> {
    let quantized: HashSet<&str> = plans.weights().map(|(at, _)| plans.items[at].name.as_str()).collect();
    let goes = |name: &&str| input.said_scheme(name).is_none() && (quantized.contains(name) || input.is_left(name));
    let names = input.metadata().keys().filter_map(|key| key.strip_prefix(RECIPE_KEY)).filter(goes);
    let keys: Vec<String> = names.map(|name| [RECIPE_KEY, name].concat()).collect();
    Some(format!(
        "{}: {} of the metadata ({}) with the name of a recipe that quantize writes, and nothing that is known as one: not in what is \
         written; {}",
        shown(input.path()),
        count(keys.len(), "entry", "entries"),
        folder::some(keys.iter().map(String::as_str))?,
        of_number(keys.len(), "write it under another name to keep it", "write them under other names to keep them")
    ))
}

/// What there is to say of scales whose codes are gone, by an entry of the metadata, but for what `remains`, which is told so.
fn scales_alone(input: &Checkpoint, remains: &HashSet<&str>) -> Option<String> {
    let gone: HashSet<&str> = input.said_of_nothing().collect();
    let is_one = |name: &&str| !remains.contains(name) && scaled_by_name(name).any(|matrix| gone.contains(&*matrix));
    let names: Vec<&str> = input.tensors().iter().map(|tensor| tensor.name.as_str()).filter(is_one).collect();
    let Pronouns { as_it_is, .. } = Pronouns::of(names.len());
    let were = of_number(names.len(), "its matrix was", "their matrices were");
    Some(format!(
        "{}: {}, copied {as_it_is}: the metadata say how {were} quantized (scaled_gemm.NAME), of which no codes are there; \
         fetch what is missing, or take both out of the file",
        shown(input.path()),
        orphans::in_words(&names)?
    ))
}

/// What there is to say of what is copied, and wrong in a model that is quantized: what `info` says of it, in a line or two. `said`: scales
/// beside matrices that are quantized, of which more was said. Of codes that are not read the text says all but in a dialect, which is for
/// engines.
pub fn notes(
    input: &Checkpoint,
    config: Option<&ModelConfig>,
    said: &HashSet<String>,
    dialect: Dialect,
) -> Vec<String> {
    let remains = remains::find(input, config);
    let problems: Vec<_> = remains.problems.iter().cloned().chain(copied::broken(input, &remains.tensors)).collect();
    // What is wrong with a matrix is said of one tensor; what remains of one may be several.
    let number = if remains.problems.is_empty() { 1 } else { remains.tensors.len() };
    let more = match problems.len() {
        0 | 1 => String::new(),
        2 => "; 1 more is named by info".to_string(),
        all => format!("; {} more are named by info", all - 1),
    };
    let left = problems.first().map(|problem| copied::told(number, &format!("{problem}{more}")));
    let lost = Unread::find(input, config, &remains.tensors).lost;
    let not_read = foreign::not_read(input, &lost, &remains.tensors).filter(|_| dialect != Dialect::Plain);
    let lost = unread::lost_casts(&lost).map(|text| copied::told(lost.len(), &text));
    let alone = scales_alone(input, &remains.tensors);
    let plain_too = foreign::plain_too(input).map(|(text, number)| copied::told(number, &text));
    let not_read = not_read.map(|(text, number)| {
        let Pronouns { it, .. } = Pronouns::of(number);
        let engines =
            format!("in the dialect {dialect} nothing speaks of {it}, and engines take {it} for plain or fail");
        copied::told(number, &format!("{text}; {engines}"))
    });
    left.into_iter()
        .chain(lost)
        .chain(not_read)
        .chain(alone)
        .chain(plain_too)
        .chain(copied::beside_plain(input, |name| said.contains(name)))
        .collect()
}
