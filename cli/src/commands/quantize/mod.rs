//! `quantize`: the weights of a file or of a model's folder become quantized ones; everything else is copied as it is.

mod advice;
mod beside;
mod checks;
mod fuse;
mod given;
mod items;
mod lost;
mod plan;
mod report;
mod rows;
mod stream;
mod torn;
mod zero_groups;
mod zero_values;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use scaled_gemm::checkpoint::{
    Checkpoint, CheckpointLayout, CheckpointWriter, Dialect, RECIPE_KEY, TensorInfo, WrittenCast, WrittenRecipe,
    printable,
};
use scaled_gemm::model_folder::{self, InputScales, ModelConfig, default_dialect};
use scaled_gemm::{GivenScale, Scheme};

use crate::args::{DeviceChoice, QuantizeArgs};
use crate::device;
use crate::files;
use crate::folder::{self, module};
use crate::non_finite::Others;
use crate::output::{Failure, Form, Outcome, byte_bar, float, named, shown};
use crate::sources;
use crate::target::Target;
use crate::threads;
use checks::Counted;
use plan::{Given, Plan, Plans, Weight};
use report::Report;
use stream::Work;

pub fn run(args: &QuantizeArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let first = args.target(0)?;
    let (input, config) = model_folder::open(&args.input)?;
    let beside = config.is_none().then(|| config_beside(&args.input)).flatten();
    let model = config.as_ref().or(beside.as_ref());
    let dialect = dialect(args, first, &input, model)?;
    checks::refuse_idle(args, &input, dialect, first)?;
    if let Some(output) = &args.output {
        folder::refuse_overlap(&input, output)?;
        let read = [("--input-scales", args.input_scales.as_ref()), ("--weight-amax", args.weight_amax.as_ref())];
        sources::refuse_output(output, &[&args.input], &read)?;
    }
    input.check_marks()?;
    let of = Given { args, input: &input, config: config.as_ref(), model, dialect };
    checks::refuse_quantized(of)?;
    let plans = Plans::new(of)?;
    // One for each place of the plans.
    let names: Vec<&str> = plans.items.iter().map(|item| item.name.as_str()).collect();
    // Experts in one tensor go by its name too, and by their own also where they are left with it.
    let left = items::left_whole(&input, model, dialect, &plans.items);
    let tensors = input.tensors().iter().map(|tensor| tensor.name.as_str());
    let both: Vec<&str> = names.iter().copied().chain(left.iter().map(String::as_str)).chain(tensors).collect();
    checks::refuse_unmatched(args, &both)?;
    let idle_fuse = fuse::check(of, &plans, &both)?;
    if plans.weights().next().is_none() {
        return Err(Failure::Use(report::nothing_to_do(of, &plans.items, &plans.tensors)));
    }
    checks::refuse_shapes(&input, &plans, first)?;
    let unusual = checks::unusual(of, &plans, &names)?;
    let scales = args.input_scales.as_ref().map(InputScales::read).transpose()?;
    let unused = scales.as_ref().map(|scales| unused(args, scales, (&input, &plans), &both)).transpose()?;
    let given = args.weight_amax.as_ref().map(InputScales::read).transpose()?;
    let given_amax = given.map(|given| weight_amax(args, &input, &plans, &given)).transpose()?;
    let (given_amax, untaken) = given_amax.unwrap_or_default();
    let unasked = checks::notes(args, &input, dialect, first);
    let torn = torn::without_fuse(of, &plans);
    let amax = scales.as_ref().map(|scales| activations(args, &input, &plans, scales)).transpose()?;
    let (layout, inputs) = layout(args, &input, &plans, dialect, amax.as_deref().unwrap_or_default())?;
    let unread = beside::unread(&input, &layout);
    let entering = beside::entering(&input, &plans, dialect);
    let foreign = beside::foreign_entries(&input, &plans);
    let said = layout.scales_of_others().into_iter().map(|(name, ..)| name.to_string());
    let said: HashSet<String> = said.chain(plans.left_out().map(|(item, _)| item.name.clone())).collect();
    let notes = || {
        unasked
            .into_iter()
            .chain(torn)
            .chain(idle_fuse)
            .chain(unusual)
            .chain(unused.into_iter().flatten())
            .chain(untaken)
            .chain(folder::not_in_index(&input))
            .chain(folder::written_metadata(&input))
            .chain(folder::broken_marks(&input))
            .chain(unread)
            .chain(entering)
            .chain(foreign)
            .chain(beside::notes(&input, config.as_ref(), &said, dialect))
    };
    let report = Report { args, first, dialect, input: &input, config: config.as_ref(), plans: &plans };
    let form = Form::from_flag(args.json);
    let device = device::open(choice);
    if args.dry_run {
        let device = device?;
        folder::check_others(&input, config_stays(of, &plans))?;
        let output = args.output.as_ref().map(|output| folder::check(layout, &input, output)).transpose()?;
        let value = form.value(|| report.value(device.name(), None));
        let outcome = Outcome::new(device.as_ref(), form, report.text(None), value);
        return Ok(outcome.with_notes(notes().chain(output.flatten())));
    }
    threads::make(args.jobs)?;
    let (writer, begun) = folder::create(layout, &input, args.output()?, args.shard_size)?;
    let device = device?;
    let bar = byte_bar(device.as_ref(), input.tensors().iter().map(TensorInfo::bytes).sum());
    let mut step = |name: &str, bytes: u64| {
        bar.set_message(printable(name));
        bar.inc(bytes);
    };
    for (name, number) in &inputs {
        writer.write(name, &number.to_le_bytes())?;
    }
    let allow_non_finite = args.allow_non_finite;
    let work = Work { input: &input, plans: &plans, given: &given_amax, dialect, allow_non_finite };
    // Before the long work: a file that cannot be copied is found now.
    let copied = write_folder(of, &plans, &writer)?;
    let found = stream::run(work, &writer, device.as_ref(), &mut step)?;
    let replaced = config.as_ref().filter(|config| config.quantization().is_some()).map(|config| {
        let fate = match (dialect, checks::is_quantized(&input, Some(config))) {
            (Dialect::Plain, true) => {
                "stays as it was, for what was quantized before; it does not speak of what is written now"
            }
            (Dialect::Plain, false) => "is left out: nothing was quantized",
            _ => "is replaced",
        };
        format!("{}: its quantization_config {fate}", config.path().display())
    });
    files::finish_checkpoint(writer)?;
    bar.finish_and_clear();
    let value = form.value(|| report.value(device.name(), Some(&found)));
    let outcome = Outcome::new(device.as_ref(), form, report.text(Some(&found)), value);
    Ok(outcome.with_notes(begun.into_iter().chain(notes()).chain(replaced).chain(copied)))
}

/// The dialect asked for; else, for a folder, the one that most engines load.
fn dialect(
    args: &QuantizeArgs,
    target: Target,
    input: &Checkpoint,
    model: Option<&ModelConfig>,
) -> Result<Dialect, Failure> {
    let experts = model.map(ModelConfig::expert_tensors).unwrap_or_default();
    let is_gpt_oss = experts.iter().any(|tensor| tensor.is_read_in(Dialect::GptOss));
    let dialect = args.dialect.unwrap_or_else(|| match input.folder() {
        Some(_) if is_gpt_oss && target.product() == Some(Scheme::Mxfp4) => Dialect::GptOss,
        Some(_) => match target {
            // With calibrated activations fp8-tensor is what ModelOpt writes, too; the names are those of fp8.
            Target::Recipe(recipe) => default_dialect(recipe),
            Target::Cast(_) => Dialect::Plain,
        },
        None => Dialect::Plain,
    });
    if dialect == Dialect::GptOss && !is_gpt_oss {
        let found = model.and_then(|model| model.model_types().next()).unwrap_or("none");
        return Err(Failure::Use(format!(
            "{}: the dialect gpt-oss is for the model_type gpt_oss, and its config.json names {}; choose another dialect",
            args.input.display(),
            printable(found)
        )));
    }
    Ok(dialect)
}

/// The config of the model that a file is of, which names its architecture. Nothing else is taken from it.
fn config_beside(file: &Path) -> Option<ModelConfig> {
    ModelConfig::read(folder::of_file(file)?).ok().flatten()
}

/// What will be written, with the scales of activations: name and number.
fn layout(
    args: &QuantizeArgs,
    input: &Checkpoint,
    plans: &Plans,
    dialect: Dialect,
    amax: &[(usize, f32)],
) -> Result<(CheckpointLayout, Vec<(String, f32)>), Failure> {
    let (mut layout, mut inputs) = (CheckpointLayout::of_dialect(dialect), Vec::new());
    let mut owners = Vec::with_capacity(plans.items.len());
    folder::say_format(&mut layout, input);
    let layers = plans.weights().map(|(at, _)| module(&plans.items[at].name));
    let layers: HashSet<&str> = layers.chain(plan::left_layers(input)).collect();
    for (key, value) in input.metadata() {
        match key.as_str() {
            // A mark of what is quantized now would be read as one of what it became, and one that was left makes codes of plain values.
            folder::COMFY_MARKS => {
                input.marks_without(|layer| layers.contains(layer)).map_or((), |left| layout.metadata(key, left))
            }
            // What is copied plain would be refused as codes of another type; what is quantized now has an entry of its own.
            key if key.strip_prefix(RECIPE_KEY).is_some_and(|name| input.is_left(name)) => {}
            _ => layout.metadata(key, value),
        }
    }
    for (at, (item, plan)) in plans.items.iter().zip(&plans.tensors).enumerate() {
        match plan {
            Plan::Quantize(weight) => {
                let source = weight.source;
                match weight.target {
                    Target::Recipe(recipe) => {
                        let experts = item.slice.map_or(1, |slice| slice.experts[1]);
                        let shape = [experts, weight.rows / experts, weight.cols];
                        layout.quantized_experts(&item.name, shape, WrittenRecipe { recipe, source });
                    }
                    Target::Cast(recipe) => {
                        layout.cast(&item.name, weight.rows, weight.cols, WrittenCast { recipe, source });
                    }
                }
                // In the order of the tensors.
                if let Ok(place) = amax.binary_search_by_key(&at, |(which, _)| *which) {
                    let (name, number) = layout.input_scale(&item.name, amax[place].1);
                    if !(number.is_finite() && number > 0.0) {
                        return Err(no_scale(args.input_scales.as_deref(), amax[place].1, &item.name));
                    }
                    inputs.push((name, number));
                }
            }
            Plan::Copy(_) => layout.tensor(&item.name, item.dtype, &item.shape),
            Plan::Drop(_) => {}
        }
        owners.resize(layout.names().len(), at);
    }
    beside::refuse_stale(input, plans, (&layout, dialect), &owners)?;
    Ok((layout, inputs))
}

/// What there is to say of scales that nothing is written for. Refuses those of layers that are not there.
fn unused(
    args: &QuantizeArgs,
    scales: &InputScales,
    (input, plans): (&Checkpoint, &Plans),
    names: &[&str],
) -> Result<Vec<String>, Failure> {
    let layers = checks::Layers::new(input, names);
    layers.refuse_unknown(args, scales)?;
    Ok(layers.unused(args, scales, input, plans))
}

/// The largest activations that meet each tensor to be quantized.
fn activations(
    args: &QuantizeArgs,
    input: &Checkpoint,
    plans: &Plans,
    scales: &InputScales,
) -> Result<Vec<(usize, f32)>, Failure> {
    let mut all = Vec::new();
    let mut groups: HashMap<usize, f32> = HashMap::new();
    for (at, _) in plans.weights() {
        let mut largest = 0.0f32;
        if let Some(known) = plans.group(at).and_then(|group| groups.get(&group)) {
            all.push((at, *known));
            continue;
        }
        // Layers that are fused have one input, of which engines keep one scale.
        for &member in plans.sharing(at).iter() {
            let item = &plans.items[member];
            let module = module(&item.name);
            // Of experts in one tensor, whose inputs are those of a layer, one amax may stand for all.
            let whole = self::module(&input.tensors()[item.tensor].name);
            let amax = scales.amax(module).or_else(|| scales.amax(whole)).ok_or_else(|| {
                Failure::Use(format!(
                    "{}: has no amax for {}, which is quantized; calibrate it{}",
                    args.input_scales.as_deref().map(shown).unwrap_or_default(),
                    printable(module),
                    match plans.others() {
                        Others::Some => ", or leave it out with --exclude",
                        Others::None => "",
                    }
                ))
            })?;
            largest = largest.max(amax);
        }
        groups.extend(plans.group(at).map(|group| (group, largest)));
        all.push((at, largest));
    }
    Ok(all)
}

/// What is refused of an amax, of inputs or of weights.
fn no_scale(file: Option<&Path>, amax: f32, name: &str) -> Failure {
    let (file, name) = (file.map(shown).unwrap_or_default(), named(name));
    Failure::Use(format!("{file}: the amax {} of {name} has no FP32 scale; give one nearer to 1", float(amax)))
}

/// By place, the amax that was given for a weight, and what there is to say of one that no weight takes. Refuses names of nothing that gets
/// a scale, and a file without any.
fn weight_amax(
    args: &QuantizeArgs,
    input: &Checkpoint,
    plans: &Plans,
    given: &InputScales,
) -> Result<(HashMap<usize, f32>, Option<String>), Failure> {
    let (mut names, mut taken, mut found) = (HashSet::new(), HashSet::new(), HashMap::new());
    for (at, _) in plans.weights() {
        let item = &plans.items[at];
        // Of experts in one tensor its own, or one for all.
        let both = [module(&item.name), module(&input.tensors()[item.tensor].name)];
        names.extend(both);
        let Some((name, amax)) = both.into_iter().find_map(|name| Some((name, given.amax(name)?))) else { continue };
        taken.insert(name);
        found.insert(at, amax);
    }
    let file = args.weight_amax.as_deref().map(shown).unwrap_or_default();
    let mut places: Vec<_> = found.iter().map(|(at, amax)| (*at, *amax)).collect();
    places.sort_unstable_by_key(|(at, _)| *at);
    for (at, amax) in places {
        if let Plan::Quantize(Weight { source, target: Target::Recipe(recipe), .. }) = plans.tensors[at] {
            // Of one so small it is no normal number, or 0, and every value with it. Some rules have a least amax.
            if !given::scale(recipe, source, GivenScale::Amax(amax))?.is_normal() {
                return Err(no_scale(args.weight_amax.as_deref(), amax, module(&plans.items[at].name)));
            }
        }
    }
    match checks::others(given, &names) {
        None if found.is_empty() => {
            let weights: Vec<&str> = plans.weights().map(|(at, _)| module(&plans.items[at].name)).collect();
            Err(Failure::Use(format!(
                "{file}: holds no amax, and --weight-amax asks for those of layers that are quantized ({}); write them, or leave the \
                 option out",
                folder::some(weights.iter().copied()).unwrap_or_default()
            )))
        }
        None => {
            let idle = checks::others(given, &taken).map(|Counted { number, first, .. }| {
                format!(
                    "{file}: {number} of experts in one tensor, each of which has an amax of its own: that of the tensor changes nothing \
                     ({first})"
                )
            });
            Ok((found, idle))
        }
        Some(Counted { number, first, it }) => {
            Err(Failure::Use(format!("{file}: {number} of which no weight is quantized ({first}); leave {it} out")))
        }
    }
}

/// True where the config of what is quantized already stays: the plain dialect has no such entry, and what is copied still needs its own.
fn config_stays(given: Given<'_>, plans: &Plans) -> bool {
    let has_entry = plans.quantization.is_some_and(|quantization| quantization.value(&[]).is_some());
    !has_entry && checks::is_quantized(given.input, given.config)
}

/// The other files of a folder. Says what was not copied.
fn write_folder(given: Given<'_>, plans: &Plans, writer: &CheckpointWriter) -> Result<Option<String>, Failure> {
    let Given { input, config, .. } = given;
    let Some(from) = input.folder() else { return Ok(None) };
    let (to, ignored) = (writer.folder()?, plans.ignored(given));
    let value = plans.quantization.and_then(|quantization| quantization.value(&ignored));
    let stays = config_stays(given, plans);
    if let Some(config) = config {
        let text = if stays { config.text() } else { config.with_quantization(value) };
        to.write("config.json", text.as_bytes())?;
    }
    if let Some(value) = plans.quantization.and_then(|quantization| quantization.hf_quant_config(&ignored)) {
        to.write("hf_quant_config.json", format!("{value:#}\n").as_bytes())?;
    }
    let old = from.join("hf_quant_config.json");
    if stays && old.is_file() {
        to.copy(&old)?;
    }
    folder::copy_others(input, from, to)
}
