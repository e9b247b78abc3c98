//! What is refused or warned of before the work: options that would do nothing, models that are quantized already, tensors that
//! engines do not read quantized.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use scaled_gemm::checkpoint::{Checkpoint, Dialect, printable};
use scaled_gemm::model_folder::{InputScales, ModelConfig, default_dialect, left_alone};
use scaled_gemm::{Basis, CodeFormat, Fp8Format, Recipe};
use serde_json::Value;

use super::super::dequantize::refusals;
use super::super::describe;
use super::advice;
use super::items::{Item, RAGGED};
use super::plan::{Given, Plan, Plans};
use crate::args::{QuantizeArgs, scheme, scheme_names};
use crate::folder::{self, module, some};
use crate::foreign;
use crate::non_finite::Others;
use crate::output::{Failure, Pronouns, count, exactly, named, shown};
use crate::remains;
use crate::sources;
use crate::target::{Target, published};
use crate::unread::{Unread, says_quantized, unread_codes};

/// Refuses options that would do nothing, and a dialect that nobody reads so.
pub fn refuse_idle(args: &QuantizeArgs, input: &Checkpoint, dialect: Dialect, target: Target) -> Result<(), Failure> {
    folder::refuse_idle(input, args.shard_size)?;
    if let Some(folder) = input.folder().filter(|_| dialect == Dialect::ComfyUi) {
        return Err(Failure::Use(format!(
            "{}: ComfyUI reads single files, and no folder; give one of its files, or choose another dialect",
            folder.display()
        )));
    }
    if args.weight_amax.is_some() && !target.has_whole() {
        return Err(Failure::Use(format!(
            "--weight-amax: {target} in {} has no scale of the whole that an amax decides; leave it out, or use nvfp4 or fp8-tensor",
            target.scheme()
        )));
    }
    // In a dialect, what engines fuse is quantized together or not at all, whatever the recipe.
    let option = if args.no_fuse { "--no-fuse" } else { "--fuse" };
    if (args.no_fuse || !args.fuse.is_empty()) && dialect == Dialect::Plain && !target.has_whole() {
        return Err(Failure::Use(format!(
            "{option}: matrices in {} have no scale of the whole ({target}) that they could share; leave it out",
            target.scheme()
        )));
    }
    Ok(())
}

/// Refuses matrices that a cast cannot store, experts in one tensor among them, which are copied by default.
pub fn refuse_shapes(input: &Checkpoint, plans: &Plans, target: Target) -> Result<(), Failure> {
    let ragged = plans.items.iter().zip(&plans.tensors).find(|(_, plan)| **plan == Plan::Copy(RAGGED));
    if let Some((Item { name, shape, .. }, _)) = ragged.filter(|_| target.product().is_none()) {
        return Err(Failure::Use(format!(
            "{}: tensor {}: {shape:?}, experts in one tensor whose matrices have {RAGGED}, as those of a cast must be; pad them with zeros, or leave \
             the tensor out with --exclude {}",
            shown(input.path()),
            named(name),
            exactly([name.as_str()])
        )));
    }
    for (at, weight) in plans.weights() {
        let Target::Cast(recipe) = weight.target else { continue };
        let name = &plans.items[at].name;
        recipe.scheme().check_shape(weight.rows, weight.cols).map_err(|e| {
            Failure::Use(format!(
                "{}: tensor {}: {} x {} cast to {}: {e}{}",
                shown(input.path()),
                named(name),
                weight.rows,
                weight.cols,
                recipe.scheme(),
                match plans.others() {
                    Others::Some => format!(", or leave the tensor out with --exclude {}", exactly([name.as_str()])),
                    Others::None => String::new(),
                }
            ))
        })?;
    }
    Ok(())
}

/// Refuses an `--exclude` that matches none of these tensors. (Where `--only` matches none there is nothing to quantize.)
pub fn refuse_unmatched(args: &QuantizeArgs, names: &[&str]) -> Result<(), Failure> {
    if let Some(regex) = args.exclude.iter().find(|regex| !names.iter().any(|name| regex.is_match(name))) {
        let (regex, path) = (printable(regex.as_str()), shown(&args.input));
        return Err(Failure::Use(format!("--exclude {regex}: matches no tensor of {path}; mend it, or leave it out")));
    }
    Ok(())
}

/// Refuses a model of which the config says that it is quantized: there is one such entry, and engines read one dialect at a time.
pub fn refuse_quantized(of: Given<'_>) -> Result<(), Failure> {
    let Given { input, config, dialect, .. } = of;
    let Some(folder) = input.folder().filter(|_| dialect != Dialect::Plain && is_quantized(input, config)) else {
        return Ok(());
    };
    let method = describe::method(input, config).map(|(method, _)| method);
    let unread = Unread::find(input, config, &remains::find(input, config).tensors).codes;
    // Something to quantize beside what is quantized.
    let has_plain = advice::works_plain(of);
    let remedy = match refusals::all(input, config) {
        // The program's own dequantize does not read them.
        _ if !unread.is_empty() => format!(
            "its codes are in a format that is not read here: {}{}",
            foreign::REMEDY,
            if has_plain { ", or write --dialect plain, which copies them" } else { "" }
        ),
        Ok(()) if has_plain => "dequantize it first, or for layers that are still plain write --dialect plain".into(),
        Ok(()) => "dequantize it first".into(),
        // Nor what is wrong with its matrices.
        Err(failure) => format!(
            "{}{}",
            if has_plain { "for layers that are still plain write --dialect plain; " } else { "" },
            refusals::why(failure, folder)
        ),
    };
    Err(Failure::Use(format!(
        "{}: is quantized already ({}); {remedy}",
        folder.display(),
        printable(method.as_deref().unwrap_or("no method named"))
    )))
}

/// True if matrices are quantized already, in formats that are read here or of which the config speaks.
pub fn is_quantized(input: &Checkpoint, config: Option<&ModelConfig>) -> bool {
    let says = || input.folder().is_some_and(|folder| says_quantized(folder, config));
    // An entry of the metadata that was left makes no codes of a plain matrix.
    input.quantized().into_iter().any(|name| !input.is_left(name)) || (says() && !unread_codes(input).is_empty())
}

/// What there is to say of options and input that are seldom meant so.
pub fn notes(args: &QuantizeArgs, input: &Checkpoint, dialect: Dialect, target: Target) -> Vec<String> {
    let no_fuse = (args.no_fuse && dialect != Dialect::Plain && target.has_whole()).then(|| {
        format!(
            "--no-fuse: each matrix in {} has a scale of its own; engines that fuse layers (q, k and v; gate and up) keep one of \
             them and read the others wrongly; leave it out",
            target.scheme()
        )
    });
    [plain_by_default(args, input, dialect, target), no_fuse, one_shard(input)].into_iter().flatten().collect()
}

/// Why a folder is written as no engine loads it, where nobody asked for that.
fn plain_by_default(args: &QuantizeArgs, input: &Checkpoint, dialect: Dialect, target: Target) -> Option<String> {
    let folder = input.folder().filter(|_| args.dialect.is_none() && dialect == Dialect::Plain)?;
    let recipe = match target {
        Target::Recipe(recipe) => recipe,
        // Nothing is wrong with it, and there is something to be done only where a recipe has the same groups.
        Target::Cast(cast) => {
            let remedy = published(cast).map(|options| format!("; for engines write --recipe {options}"));
            return Some(format!(
                "{}: what is written is for scaled-gemm's own readers: casts have no dialect of engines{}",
                folder.display(),
                remedy.unwrap_or_default()
            ));
        }
    };
    let is_loaded = |name: &str| default_dialect(Recipe::new(scheme(name, Fp8Format::E4M3))) != Dialect::Plain;
    let mut remedies = Vec::new();
    if recipe.basis() != Basis::Plain {
        remedies.push("leave --hadamard out".to_string());
    }
    if recipe.format() == CodeFormat::E5M2 {
        remedies.push("leave --format e5m2 out".to_string());
    }
    if !is_loaded(args.recipe_name()) {
        let known: Vec<_> = scheme_names().into_iter().filter(|name| is_loaded(name)).collect();
        remedies.push(format!("for --recipe {} choose one of {}", args.recipe_name(), known.join(", ")));
    }
    Some(format!(
        "{}: engines do not load what is written: no dialect of theirs has this recipe, so it is plain; {}, or say --dialect plain",
        folder.display(),
        remedies.join(", ")
    ))
}

/// Of one shard of a model, that the others are not seen.
fn one_shard(input: &Checkpoint) -> Option<String> {
    let (index, _) = index_around(input)?;
    Some(format!(
        "{}: is one of the shards of {}; layers that engines fuse with its own, and experts, may lie in the others, which are not \
         seen; give the folder",
        input.path().display(),
        shown(&index)
    ))
}

/// The index of which a file is one of several shards, and the tensors that it names.
fn index_around(input: &Checkpoint) -> Option<(PathBuf, Vec<String>)> {
    let file = Some(input.path()).filter(|_| input.folder().is_none())?;
    let (name, folder) = (file.file_name()?.to_str()?, folder::of_file(file)?);
    sources::indices(folder)
        .into_iter()
        .find_map(|index| Some((tensors_of_several(&index, name)?, index)))
        .map(|(names, index)| (index, names))
}

/// The tensors of an index that names this file and others.
fn tensors_of_several(index: &Path, name: &str) -> Option<Vec<String>> {
    let tensors = sources::weight_map(index)?;
    let files = || tensors.values().filter_map(Value::as_str);
    let is_one = files().any(|file| file == name) && files().any(|file| file != name);
    is_one.then(|| tensors.keys().cloned().collect())
}

/// What there is to say of tensors that are left alone by default, and that `--only` selects. `names`: one for each place of the
/// plans.
///
/// # Errors
/// [`Failure::Use`] for embeddings: engines replace linear layers by quantized ones, and look embeddings up in plain tables. And for
/// the transposed weights of Conv1D, which they do not replace either.
pub fn unusual(of: Given<'_>, plans: &Plans, names: &[&str]) -> Result<Option<String>, Failure> {
    let Given { args, config, dialect, .. } = of;
    if args.only.is_none() {
        return Ok(None);
    }
    // Of so many, where others are selected, too, and in the dialect that takes all.
    let remedy = |number: usize| {
        let leave = format!("leave {} out with --exclude", Pronouns::of(number).it);
        let others = (number < plans.weights().count()).then_some(leave);
        let plain = advice::works_plain(of).then(|| "write --dialect plain".to_string());
        let all: Vec<String> = others.into_iter().chain(plain).collect();
        if all.is_empty() { "select others".into() } else { all.join(", or ") }
    };
    let weights = || plans.weights().map(|(at, _)| names[at]);
    let turned: Vec<&str> = weights().filter(|name| plans.transposed.contains(module(name))).collect();
    let of_turned = some(turned.iter().copied()).map(|first| (count(turned.len(), "weight", "weights"), first));
    match (of_turned, dialect) {
        (Some((number, first)), Dialect::Plain) => {
            return Ok(Some(format!(
                "--only: selects {number} of Conv1D layers ({first}), [in, out], whose rows are not what products sum over; \
                 transpose {} for products",
                Pronouns::of(turned.len()).it
            )));
        }
        (Some((number, first)), _) => {
            return Err(Failure::Use(format!(
                "--only: selects {number} of Conv1D layers ({first}), [in, out], and no engine reads such layers quantized; {}",
                remedy(turned.len())
            )));
        }
        (None, Dialect::Plain) => return Ok(None),
        (None, _) => {}
    }
    let embeddings: Vec<&str> = weights().filter(|name| left_alone(module(name)) == Some("an embedding")).collect();
    if let Some(first) = some(embeddings.iter().copied()).filter(|_| dialect != Dialect::ComfyUi) {
        return Err(Failure::Use(format!(
            "--only: selects {} ({first}), and no engine reads embeddings quantized in the dialect {dialect}; {}",
            count(embeddings.len(), "embedding", "embeddings"),
            remedy(embeddings.len())
        )));
    }
    let left = |name: &&str| {
        let module = module(name);
        left_alone(module).is_some() || config.is_some_and(|config| config.ignores(module))
    };
    let unusual: Vec<&str> = weights().filter(left).collect();
    Ok(some(unusual.iter().copied()).map(|first| {
        format!(
            "--only: selects {} that {} left alone by default ({first}); engines may not read that quantized",
            count(unusual.len(), "tensor", "tensors"),
            if unusual.len() == 1 { "is" } else { "are" }
        )
    }))
}

/// The layers of a model, for a file of calibration.
pub struct Layers<'a> {
    here: HashSet<&'a str>,
    /// Those of the other shards, where the input is one, and the index that names them.
    elsewhere: Option<(PathBuf, HashSet<String>)>,
}

impl<'a> Layers<'a> {
    /// `names`: of tensors. Of matrices that are quantized already the names are others.
    pub fn new(input: &'a Checkpoint, names: &[&'a str]) -> Self {
        let here = names.iter().copied().chain(input.quantized()).map(module).collect();
        // What is quantized in them already has names of its own.
        let bare =
            |name: &str| ["_packed", "_blocks"].into_iter().find_map(|end| name.strip_suffix(end)).map(String::from);
        let layer = |name: String| module(&bare(&name).unwrap_or(name)).to_string();
        let layers = |names: Vec<String>| names.into_iter().map(layer).collect();
        Self { here, elsewhere: index_around(input).map(|(index, names)| (index, layers(names))) }
    }

    /// A head that is tied to the embeddings has no tensor, whatever is around it.
    fn is_here(&self, name: &str) -> bool {
        self.here.contains(name) || name.rsplit('.').next() == Some("lm_head")
    }

    fn is_elsewhere(&self, name: &str) -> bool {
        !self.is_here(name) && self.elsewhere.as_ref().is_some_and(|(_, layers)| layers.contains(name))
    }

    /// Refuses scales of layers that the model does not have: their names are wrong, or they are of another model.
    pub fn refuse_unknown(&self, args: &QuantizeArgs, scales: &InputScales) -> Result<(), Failure> {
        let unknown = scales.modules().filter(|name| !self.is_here(name) && !self.is_elsewhere(name));
        let Some(Counted { number, first, it }) = counted(unknown.collect()) else { return Ok(()) };
        let others = self.elsewhere.as_ref().map(|(index, _)| format!(", nor the other shards of {}", shown(index)));
        Err(Failure::Use(format!(
            "{}: {number} that {} does not have{} ({first}); mend {}, or leave {it} out",
            args.input_scales.as_deref().map(shown).unwrap_or_default(),
            shown(&args.input),
            others.unwrap_or_default(),
            if it == "it" { "the name" } else { "the names" }
        )))
    }

    /// What there is to say of scales of layers that the model has, and that stay as they are, or lie in other shards.
    pub fn unused(&self, args: &QuantizeArgs, scales: &InputScales, input: &Checkpoint, plans: &Plans) -> Vec<String> {
        let items = plans.weights().map(|(at, _)| &plans.items[at]);
        // Of experts in one tensor its name may stand for all.
        let used: HashSet<&str> =
            items.flat_map(|item| [module(&item.name), module(&input.tensors()[item.tensor].name)]).collect();
        let file = args.input_scales.as_deref().map(shown).unwrap_or_default();
        let idle = counted(scales.modules().filter(|name| self.is_here(name) && !used.contains(name)).collect());
        let idle = idle.map(|Counted { number, first, .. }| {
            format!("{file}: {number} not quantized, whose amax nothing is written for ({first})")
        });
        let away = counted(scales.modules().filter(|name| self.is_elsewhere(name)).collect());
        let away = away.map(|Counted { number, first, .. }| {
            format!("{file}: {number} of other shards, whose amax nothing is written for here ({first})")
        });
        idle.into_iter().chain(away).collect()
    }
}

/// How many layers a file of calibration names that are not among these, and the first few of them by name.
pub fn others(given: &InputScales, known: &HashSet<&str>) -> Option<Counted> {
    let others = given.modules().filter(|name| !known.contains(name)).collect();
    counted(others)
}

/// Layers in words: `2 layers`, the first few of them, and what they are called then, `it` or `them`.
pub struct Counted {
    pub number: String,
    pub first: String,
    pub it: &'static str,
}

fn counted(mut others: Vec<&str>) -> Option<Counted> {
    others.sort_unstable();
    let (number, it) = (count(others.len(), "layer", "layers"), Pronouns::of(others.len()).it);
    Some(Counted { number, first: some(others.iter().copied())?, it })
}
